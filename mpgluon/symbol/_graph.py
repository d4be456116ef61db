"""The nodes of symbols, and graph traversal.

A node is a variable (``call`` is None) or an op with its parameters (`_core.OpCall`) and inputs. An
entry is a ``(node, index)`` pair that identifies one output of a node. A symbol is a list of
entries. Symbols share nodes, so only the name and attributes of a node change after its creation,
and composition copies nodes. All traversals are iterative, because deep chains would exceed
Python's recursion limit.
"""

from .. import _core
from .._internal import device_groups

# Number of inputs per array counted in num_args. It is 1 for ops that are not listed.
INPUTS_EACH = {"_contrib_quantized_concat": 3}
# Attributes that MXNet defines. They are stored as ``__name__``; lookups accept ``name`` as well.
HIDDEN = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage", "profiler_scope")


def row_name(call):
    """Returns the name of a call's op in ``mx.nd``, also for the same op of ``mx.np``."""
    if isinstance(call, _core.OpCall) or call.is_op:
        return _core.row_of(call.name)[0]
    return call.name


def output_names(call, count):
    """Returns the suffixes of the names of a call's outputs. `count` is the number of inputs."""
    names = call.output_names(count)
    # In MXNet, topk has a second, hidden output (the indices), so the name has a number.
    if names == ("output",) and call.name == "topk" and call.text("ret_typ") == "value":
        return ("output0",)
    return names


class Node:
    """A variable, or a call of an op."""

    __slots__ = ("name", "attrs", "call", "inputs", "outputs", "origin", "__weakref__")

    def __init__(self, name, attrs, call=None, inputs=()):
        self.name = name
        self.attrs = attrs  # the op's given parameters and the node's attributes, as text
        self.call = call
        self.inputs = inputs  # entries: (node, output index)
        self.outputs = None if call is None else output_names(call, len(inputs))
        self.origin = 0  # id (`_core._origin`) of the user's source line that created the node

    @property
    def num_outputs(self):
        return 1 if self.call is None else len(self.outputs)

    def output_name(self, index):
        return self.name if self.call is None else f"{self.name}_{self.outputs[index]}"

    def get(self, key):
        """Returns an attribute, or None if the node lacks it. The key of an attribute in `HIDDEN`
        may omit the underscores."""
        value = self.attrs.get(key)
        if value is None and key in HIDDEN:
            value = self.attrs.get(f"__{key}__")
        return value

    def all_attrs(self):
        """Returns the attributes in the form that users see."""
        shown = dict(self.attrs)
        for key in HIDDEN:
            value = shown.get(f"__{key}__")
            if value is not None:
                shown[key] = value
        return shown


def topological(entries):
    """Returns all nodes that the entries depend on, in MXNet's topological order."""
    order = []
    seen = set()
    for root, _ in entries:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(root.inputs))]
        while stack:
            node, rest = stack[-1]
            for child, _ in rest:
                if child not in seen:
                    seen.add(child)
                    stack.append((child, iter(child.inputs)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def states(order):
    """Returns the auxiliary states among the nodes: the variables that ops write."""
    found = set()
    for node in order:
        if node.call is not None:
            for (source, _), state in zip(node.inputs, node.call.states(len(node.inputs))):
                if state and source.call is None:
                    found.add(source)
    return found


def rebuild(entries, replace):
    """Copies the graph of the entries, with the variables in `replace` (node -> entry) replaced.
    Returns the new entries."""
    copies = {}
    for node in topological(entries):
        if node in replace:
            copies[node] = replace[node]
            continue
        inputs = tuple(
            [
                copies[source] if source in replace else (copies[source][0], index)
                for source, index in node.inputs
            ]
        )
        copies[node] = (Node(node.name, dict(node.attrs), node.call, inputs), 0)
        copies[node][0].origin = node.origin
    return [
        copies[node] if node in replace else (copies[node][0], index) for node, index in entries
    ]


def hidden_key(key):
    """Returns the key under which an attribute is stored."""
    return f"__{key}__" if key in HIDDEN else key


def initializer(value):
    """Returns the attribute ``__init__`` of a variable whose initial value is a number."""
    return {0: '["zero", {}]', 1: '["one", {}]'}.get(value, f'["Constant", {{"value": {value}}}]')


def make(call, texts, name, arrays, given):
    """Creates a node for `call`.

    `texts` holds its parameters and attributes. `given` maps input names to entries. `arrays` lists
    entries in order for variadic ops, and is None otherwise. A missing input becomes a variable.
    """
    count = call.num_inputs(len(arrays or ()) + len(given))
    names = call.input_names(count)
    inputs = [None] * count
    inputs[: len(arrays or ())] = arrays or ()
    for key, entry in given.items():
        if key not in names:
            raise TypeError(
                f"{call.name}: the input {key!r} is not used with these parameters; the inputs "
                f"are {', '.join(names) or 'none'}"
            )
        place = names.index(key)
        if inputs[place] is not None:
            raise TypeError(f"{call.name}: the input {key!r} is given twice")
        inputs[place] = entry
    if len(inputs) != count:
        raise TypeError(f"{call.name}: expected {count} inputs, got {len(inputs)}")
    for place, (key, entry, initial) in enumerate(zip(names, inputs, call.initial_values(count))):
        if entry is None:
            made = dict(texts)
            if initial is not None:
                made["__init__"] = initializer(initial)
            inputs[place] = (Node(f"{name}_{key}", made), 0)
    node = Node(name, texts, call, tuple(inputs))
    node.origin = _core._origin()
    return node


def made_at(node):
    """Returns the source line that created a node, for errors."""
    line = _core._origin_line(node.origin)
    return f"\n  made at {line}" if line else ""


def placement(order, group2ctx, variables):
    """Returns a dict from nodes to their devices. It omits nodes whose device is unknown.

    The core derives an op's device from its group and its inputs' devices. A variable or op that
    has no device after this gets the device of a consumer. `variables` maps variables that already
    have arrays to the arrays' contexts.
    """
    devices = dict(variables)
    for node in order:
        name = node.get("ctx_group") if group2ctx else None
        device = None if name is None else device_groups.lookup(name, group2ctx, node.name)
        if node.call is not None:
            device = node.call.place([devices.get(source) for source, _ in node.inputs], device)
        if device is not None:
            devices.setdefault(node, device)
    for node in reversed(order):
        device = devices.get(node)
        if device is not None and not (node.call is not None and node.call.copies):
            for source, _ in node.inputs:
                devices.setdefault(source, device)
    return devices


class Entries:
    """Base class of `Symbol` that holds its only state, the entries."""

    __slots__ = ("_entries",)


def entries_of(symbol):
    """Returns the entries of a symbol: a list of (node, output index)."""
    return symbol._entries
