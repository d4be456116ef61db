"""Serialization of symbols: writes MXNet 1.x's ``-symbol.json`` format and reads the format of all
MXNet versions."""

import json
import re
import textwrap
from typing import NamedTuple

from .. import _core
from .._internal.hints import of_op
from ..base import MXNetError
from ..ndarray.functions import bilinear_upsampling
from ..util import is_np_shape
from ._control import KINDS, MAX_DEPTH, Control
from ._graph import HIDDEN, INPUTS_EACH, Node, initializer, topological

VERSION = 10901
# Maximum number of nodes in a file. No network reaches it; it bounds the memory that reading a
# damaged file can use.
_MAX_NODES = 1 << 24


def without_casts(entries):
    """Removes the casts of automatic mixed precision from the graph of the entries."""
    order = topological(entries)
    if not any(node.call is not None and node.call.amp_cast for node in order):
        return entries
    copies = {}  # node -> its entries

    def entry(source, index):
        return copies[source][index]

    for node in order:
        inputs = tuple([entry(*one) for one in node.inputs])
        if node.call is not None and node.call.amp_cast:
            copies[node] = list(inputs)
        else:
            copy = Node(node.name, dict(node.attrs), node.call, inputs)
            copies[node] = [(copy, i) for i in range(copy.num_outputs)]
    return [entry(*one) for one in entries]


def without_devices(entries, body=False):
    """Removes device placement from the graph of the entries, so that it runs on one device.

    It removes copies between devices, and the device parameters of ops that create arrays. In the
    body of a loop or branch, results must be outputs of ops, so a copy becomes an op that copies on
    the same device.
    """
    copies = {}  # node -> its entries
    for node in topological(entries):
        inputs = tuple([copies[source][index] for source, index in node.inputs])
        attrs, call = dict(node.attrs), node.call
        if call is not None and call.copies:
            if not body:
                copies[node] = list(inputs)
                continue
            attrs.pop("ctx", None)
            call = _core.OpCall("_copy", {}, call.numpy)
        elif isinstance(call, Control):
            graphs = [without_devices(graph.entries, body=True) for graph in call.graphs]
            call = type(call)(attrs, graphs, call.count)
        elif call is not None and "ctx" in attrs:
            del attrs["ctx"]
            if isinstance(call, _core.OpCall):
                known = {param["name"] for param in _core.get_op(call.name).describe()["params"]}
                call = _core.OpCall(call.name, {k: v for k, v in attrs.items() if k in known})
            else:
                call = call.without("ctx")
        copy = Node(node.name, attrs, call, inputs)
        copy.origin = node.origin
        copies[node] = [(copy, i) for i in range(copy.num_outputs)]
    return [copies[source][index] for source, index in entries]


def has_numpy(entries):
    """True if a node, also one inside a loop or branch, is of ``mx.np``."""
    return any(
        has_numpy([entry for graph in node.call.graphs for entry in graph.entries])
        if isinstance(node.call, Control)
        else node.call is not None and node.call.numpy
        for node in topological(entries)
    )


def dump(entries):
    """Returns the JSON text of the symbol."""
    numpy = ', "is_np_shape": ["int", 1]' if is_np_shape() or has_numpy(entries) else ""
    return _graph_text(entries, f', \n  "attrs": {{"mxnet_version": ["int", {VERSION}]{numpy}}}')


def _name_in_file(call):
    """Returns the name of a node's op in files. An op whose name MXNet uses in both dialects keeps
    it; `is_np_shape` then selects the dialect."""
    name = call.name.removeprefix("_npi_") if call.numpy else ""
    return name if name.startswith("_np_") else call.name


def _graph_text(entries, end):
    order = topological(entries)
    place = {node: i for i, node in enumerate(order)}
    nodes, rows = [], [0]
    for node in order:
        lines = [
            f'      "op": {json.dumps(_name_in_file(node.call) if node.call else "null")}',
            f'      "name": {json.dumps(node.name)}',
        ]
        if node.attrs:
            attrs = ", \n".join(
                f"        {json.dumps(key)}: {json.dumps(node.attrs[key])}"
                for key in sorted(node.attrs)
            )
            lines.append('      "attrs": {\n' + attrs + "\n      }")
        states = node.call.states(len(node.inputs)) if node.call else ()
        inputs = ", ".join(
            f"[{place[source]}, {index}, {int(state)}]"
            for (source, index), state in zip(node.inputs, states)
        )
        lines.append(f'      "inputs": [{inputs}]')
        if isinstance(node.call, Control):
            graphs = ", \n".join(_graph_text(graph.entries, "") for graph in node.call.graphs)
            lines.append(
                '      "subgraphs": [\n' + textwrap.indent(graphs, "        ") + "\n      ]"
            )
        nodes.append("    {\n" + ", \n".join(lines) + "\n    }")
        rows.append(rows[-1] + node.num_outputs)
    variables = [i for i, node in enumerate(order) if node.call is None]
    heads = ", ".join(f"[{place[node]}, {index}, 0]" for node, index in entries)
    return (
        '{\n  "nodes": [\n'
        + ", \n".join(nodes)
        + '\n  ], \n  "arg_nodes": '
        + json.dumps(variables)
        + ', \n  "node_row_ptr": '
        + json.dumps(rows)
        + f', \n  "heads": [{heads}]{end}\n}}'
    )


def _wrong(text):
    return MXNetError(f"invalid JSON of a symbol: {text}")


def _expect(value, kind, what):
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(f"{what} should be {kind.__name__}, not {type(value).__name__}")
    return value


def _texts(value, what):
    return {
        key: one if isinstance(one, str) else str(one)
        for key, one in _expect(value, dict, what).items()
    }


def _entry(value, count, what):
    """Returns (node index, output) of an input or head; node indices must be below `count`."""
    parts = _expect(value, list, what)
    if not 2 <= len(parts) <= 3:
        raise _wrong(f"{what} must have 2 or 3 numbers, not {len(parts)}")
    node, index = (_expect(part, int, what) for part in parts[:2])
    if not 0 <= node < count:
        raise _wrong(
            f"{what} refers to node {node}, but can only refer to the {count} nodes before it"
        )
    return node, index


def _upgrade(op, attrs, version, params):
    """Upgrades the attributes of an op in a file of an older version, in place.

    Old versions stored attributes of variables on the op that reads the variable. Returns these as
    (input's name, key, value).
    """
    moved = []
    for key in list(attrs):
        for known in HIDDEN:
            if key == known:
                attrs[f"__{known}__"] = attrs.pop(key)
            elif key.endswith("_" + known) and key not in params:
                moved.append((key[: -len(known) - 1], f"__{known}__", attrs.pop(key)))
                break
    if version < 905 and op in ("argmax", "argmin") and attrs.get("axis") == "-1":
        del attrs["axis"]
    return moved


def parse(text):
    """Parses a symbol. Returns its entries, and whether it is a symbol of ``mx.sym.np``.

    Raises MXNetError for invalid text."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise _wrong("it is nested too deeply") from None
    except ValueError as error:
        raise _wrong(str(error)) from None
    _expect(document, dict, "the document")
    version = 0
    attrs = _expect(document.get("attrs", {}), dict, "attrs")
    tag, shapes = attrs.get("mxnet_version"), attrs.get("is_np_shape")
    if isinstance(tag, list) and len(tag) == 2 and isinstance(tag[1], int):
        version = tag[1]
    numpy = isinstance(shapes, list) and len(shapes) == 2 and bool(shapes[1])
    entries = _graph(document, _Format(version, numpy), [0], 0)
    return entries, numpy and has_numpy(entries)


class _Format(NamedTuple):
    """The version of MXNet that wrote a file, and whether its shapes are NumPy's."""

    version: int
    numpy: bool


def _graph(document, form, counted, depth):
    """Parses the entries of a graph; `counted` holds the total number of nodes so far."""
    items = _expect(document.get("nodes"), list, "nodes")
    counted[0] += len(items)
    if counted[0] > _MAX_NODES:
        raise _wrong(f"it has {counted[0]} nodes")
    nodes = []
    for number, item in enumerate(items):
        what = f"node {number}"
        _expect(item, dict, what)
        op, name = (
            _expect(item.get("op"), str, f"{what}: op"),
            _expect(item.get("name"), str, f"{what}: name"),
        )
        graphs = _expect(item.get("subgraphs") or [], list, f"{what}: subgraphs")
        if graphs and op not in KINDS:
            raise MXNetError(f"{name}: nodes with graphs inside them ({op}) cannot be loaded")
        attrs = {}
        for key in ("param", "attr", "attrs"):
            if item.get(key) is not None:
                attrs.update(_texts(item[key], f"{what}: {key}"))
        inputs = []
        for one in _expect(item.get("inputs", []), list, f"{what}: inputs"):
            at, index = _entry(one, number, f"{what}: an input")
            if not 0 <= index < nodes[at].num_outputs:
                raise _wrong(f"{what}: {nodes[at].name} has no output {index}")
            inputs.append((nodes[at], index))
        if op == "null":
            if inputs:
                raise _wrong(f"{what}: {name} is a variable but has inputs")
            attrs = {f"__{key}__" if key in HIDDEN else key: value for key, value in attrs.items()}
            nodes.append(Node(name, attrs if form.numpy else _with_unknown_sizes(attrs)))
            continue
        if op in KINDS:
            nodes.append(_control_node(op, name, attrs, inputs, graphs, form, counted, depth))
        else:
            nodes.append(_op_node(op, name, attrs, inputs, form))
    heads = _expect(document.get("heads"), list, "heads")
    entries = []
    for one in heads:
        at, index = _entry(one, len(nodes), "a head")
        if not 0 <= index < nodes[at].num_outputs:
            raise _wrong(f"a head: {nodes[at].name} has no output {index}")
        entries.append((nodes[at], index))
    if not entries:
        raise _wrong("it has no heads")
    return entries


def _with_unknown_sizes(attrs):
    """Returns the attributes of a variable of a file in which sizes of 0 are unknown. While NumPy's
    shapes are on, unknown sizes are -1."""
    if not is_np_shape() or "__shape__" not in attrs:
        return attrs
    return {**attrs, "__shape__": re.sub(r"\b0\b", "-1", attrs["__shape__"])}


def _control_node(op, name, attrs, inputs, graphs, form, counted, depth):
    kind = KINDS[op]
    if depth == MAX_DEPTH:
        raise _wrong(f"{name}: graphs are nested deeper than {MAX_DEPTH}")
    if len(graphs) != kind.num_graphs:
        raise MXNetError(
            f"{name}: {op} must have {kind.num_graphs} graphs inside it, but the file has "
            f"{len(graphs)}"
        )
    entries = [
        _graph(_expect(graph, dict, f"{name}: a graph inside it"), form, counted, depth + 1)
        for graph in graphs
    ]
    try:
        return Node(name, attrs, kind(attrs, entries, len(inputs)), tuple(inputs))
    except MemoryError:
        raise
    except MXNetError as error:
        raise MXNetError(f"{name}: {error}") from None


def _custom_node(name, attrs, inputs):
    from ..operator import CustomCall

    params = {
        key: value for key, value in attrs.items() if key != "op_type" and not key.startswith("__")
    }
    try:
        call = CustomCall(attrs.get("op_type"), params)
    except MemoryError:
        raise
    except MXNetError as error:
        raise MXNetError(f"{name}: {error}") from None
    if len(inputs) != call.num_inputs(0):
        raise MXNetError(
            f"{name}: {call.op_type} needs {call.num_inputs(0)} inputs, but the file has "
            f"{len(inputs)}"
        )
    return Node(name, attrs, call, tuple(inputs))


def _bilinear(name, attrs):
    """Converts the attributes of a bilinear UpSampling to those of the equivalent Deconvolution."""
    own = {key: value for key, value in attrs.items() if key.startswith("__")}
    try:
        params = bilinear_upsampling(int(attrs.get("scale", "")), int(attrs.get("num_filter", "0")))
        return {**own, **{key: str(value) for key, value in params.items()}}
    except ValueError as error:  # integers with thousands of digits cannot be parsed
        raise MXNetError(f"{name}: {error}") from None


def is_internal(op):
    """True if an op is an internal one of gradients or compiled networks, which files cannot
    contain. Ops that only ``mx.np`` has are hidden in ``mx.nd``."""
    hidden = "hidden" in _core.get_op(op).describe()["flags"]
    return hidden and (not _core.row_of(op)[1] or op.startswith("_npi__"))


def _numpy_node(op, name, attrs, inputs):
    """Returns the node of an op of ``mx.np`` that is a function in Python, or that MXNet writes
    with other parameters than the op here. Returns None for other ops."""
    from .numpy._composition import from_file, is_composition

    if is_composition(op, attrs):
        return from_file(op, name, attrs, inputs)
    try:
        params = _core.get_op(op).describe()["params"]
    except MemoryError:
        raise
    except MXNetError:
        return from_file(op, name, attrs, inputs)
    known = {"is_int", *[param["name"] for param in params]}
    if all(key in known or key.startswith("__") for key in attrs):
        return None
    return from_file(op, name, attrs, inputs)


def _op_node(op, name, attrs, inputs, form):
    if op == "Custom":
        return _custom_node(name, attrs, inputs)
    if op == "UpSampling" and attrs.get("sample_type") == "bilinear":
        op, attrs = "Deconvolution", _bilinear(name, attrs)
    version, numpy = form.version, op.startswith(("_np_", "_npi_", "_npx_"))
    if numpy:
        node = _numpy_node(op, name, attrs, inputs)
        if node is not None:
            return node
    try:
        described = _core.get_op(op).describe()
    except MemoryError:
        raise
    except MXNetError:
        raise MXNetError(f"{name}: this build has no op {op!r}{of_op(op)}") from None
    if is_internal(op):
        raise MXNetError(
            f"{name}: {op} is an internal op of gradients or compiled networks, which files "
            "cannot contain"
        )
    known = {param["name"] for param in described["params"]}
    if numpy and "is_int" not in known:
        attrs = {key: text for key, text in attrs.items() if key != "is_int"}
    moved = _upgrade(op, attrs, version, known)
    unknown = [key for key in attrs if key not in known and not key.startswith("__")]
    if known and unknown:  # as in MXNet, ops without parameters keep any attribute
        raise MXNetError(
            f"{name}: {op} has no parameter {unknown[0]!r}; its parameters are "
            f"{', '.join(sorted(known))}. User-defined attributes must begin and end with __"
        )
    try:
        params = {key: value for key, value in attrs.items() if key in known}
        call = _core.OpCall(op, params, numpy and form.numpy)
    except MemoryError:
        raise
    except MXNetError as error:
        raise MXNetError(f"{name}: {error}") from None
    stated_inputs, stated = len(inputs), attrs.get("num_args")
    counted = len(inputs) // INPUTS_EACH.get(op, 1)
    if "num_args" in known and stated is not None and stated != str(counted):
        raise MXNetError(
            f"{name}: {op} has num_args={stated}, but the file has {len(inputs)} inputs"
        )
    count = call.num_inputs(len(inputs))
    if len(inputs) > count:
        raise MXNetError(f"{name}: {op} needs {count} inputs, but the file has {len(inputs)}")
    names, states = call.input_names(count), call.states(count)
    for place in range(len(inputs), count):
        # Files of versions before 0.9 omit variables without a user-given name. Auxiliary states
        # may be missing in any version.
        if version >= 900 and not states[place]:
            raise MXNetError(f"{name}: {op} needs {count} inputs, but the file has {len(inputs)}")
        inputs.append((Node(f"{name}_{names[place]}", dict(attrs)), 0))
    for place, (key, initial) in enumerate(zip(names, call.initial_values(count))):
        node = inputs[place][0]
        if initial is not None and node.call is None and (version < 904 or place >= stated_inputs):
            node.attrs.setdefault("__init__", initializer(initial))
        for target, attr, value in moved:
            if target == key and node.call is None:
                node.attrs[attr] = value
    return Node(name, attrs, call, tuple(inputs))
