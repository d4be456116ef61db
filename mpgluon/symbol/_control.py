"""Loops and branches of symbols: ``sym.contrib.foreach``, ``while_loop``, ``cond``.

Each call creates a node with subgraphs, as in MXNet's files: ``_foreach``, ``_while_loop`` or
``_cond``. Each variable of a subgraph is an input of the node; the node's attributes ("locs") map
variables to inputs. The body is called once, on new variables. Each outer symbol that the body uses
also becomes a variable of the subgraph and an input of the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from .._internal.graph_breaks import PythonCall
from ..attribute import AttrScope
from ..base import MXNetError
from ..name import NameManager
from ._functions import attributes, symbol_type
from ._graph import Node, entries_of, placement, states, topological
from ._infer import Inference

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .._core import Context


# Limit of nested subgraphs; deeper nesting only occurs in malicious files.
MAX_DEPTH = 32
_MARK = "__subgraph_name__"


def _numbers(text, what, limit, size=None, missing=False):
    """Parses a list of indices below `limit`."""
    try:
        found = [int(part) for part in str(text).strip().strip("[]()").split(",") if part.strip()]
    except ValueError:
        raise MXNetError(f"{what} must be a list of integers, not {text!r}") from None
    if any(not (-1 if missing else 0) <= number < limit for number in found):
        raise MXNetError(f"{what} must have indices below {limit}, got {text}")
    if size is not None and len(found) != size:
        raise MXNetError(f"{what} must have {size} numbers, not {len(found)}")
    return found


def _number(attrs, key, low, high):
    try:
        number = int(attrs[key])
    except KeyError:
        raise MXNetError(f"the attribute {key} is missing") from None
    except ValueError:
        raise MXNetError(f"{key} must be an integer, not {attrs[key]!r}") from None
    if not low <= number <= high:
        raise MXNetError(f"{key} is {number}, but must be {low} to {high}")
    return number


class Subgraph:
    """A graph inside a node: its entries, and the node's input index of each of its variables."""

    def __init__(self, entries, locs) -> None:
        self.entries = entries
        self.order = topological(entries)
        self.variables = [node for node in self.order if node.call is None]
        self.numpy = any(node.call is not None and node.call.numpy for node in self.order)
        if len({node.name for node in self.variables}) != len(self.variables):
            raise MXNetError("two variables of a graph inside a node have the same name")
        self.locs = locs
        self.written = states(self.order)
        self._program = None

    def run(self, inputs):
        """Computes the results for arrays of the node's inputs."""
        if self._program is None:
            from ..executor import Program

            self._program = Program(self.entries, self.order, placement(self.order, None, {}), None)
            place = {node: self.locs[i] for i, node in enumerate(self.variables)}
            self._places = [
                place[node] for node in (*self._program.arguments, *self._program.auxiliary)
            ]
        arrays = [inputs[i] for i in self._places]
        return self._program.run(arrays, ctx=arrays[0].context if arrays else None)

    def infer(self, descs, train):
        """Returns (completed descriptions of the variables, descriptions of the results)."""
        shapes = {
            node.name: descs[loc][0]
            for node, loc in zip(self.variables, self.locs)
            if descs[loc][0] is not None
        }
        dtypes = {
            node.name: descs[loc][1]
            for node, loc in zip(self.variables, self.locs)
            if descs[loc][1] is not None
        }
        inference = Inference(self.entries, shapes, dtypes, train)
        return inference.of(self.variables), inference.outputs()


class Control(PythonCall):
    """The call of a node with subgraphs."""

    def __init__(self, attrs, graphs, num_inputs) -> None:
        self.graphs = graphs
        self.count = num_inputs
        self.num_outputs = _number(attrs, "num_outputs", 1, 4096)

    def num_inputs(self, given):
        return self.count

    def input_names(self, count):
        return tuple([f"data{i}" for i in range(count)])

    def output_names(self, count):
        return (
            ("output",)
            if self.num_outputs == 1
            else tuple([f"output{i}" for i in range(self.num_outputs)])
        )

    def states(self, count):
        written = {
            loc
            for graph in self.graphs
            for node, loc in zip(graph.variables, graph.locs)
            if node in graph.written
        }
        return tuple([i in written for i in range(count)])

    def text(self, name: str | None):
        raise TypeError(f"{self.name} has no parameter {name!r}")

    @property
    def numpy(self) -> bool:
        """True if the graphs compute with arrays of ``mx.np``."""
        return any(graph.numpy for graph in self.graphs)

    def of_kind(self, arrays):
        """Returns arrays as the kind with which the graphs compute."""
        return [array.as_np_ndarray() for array in arrays] if self.numpy else arrays

    def _learn(self, graph, descs, inputs, train, lift=lambda loc, desc: desc):
        """Runs inference on a subgraph whose variables have the descriptions `descs`. Merges the
        inferred descriptions into `inputs`, after converting them with `lift`. Returns the
        descriptions of the subgraph's results.
        """
        found, results = graph.infer(descs, train)
        for loc, desc in zip(graph.locs, found):
            inputs[loc] = _merged(inputs[loc], lift(loc, desc))
        return results


def _merged(old, new):
    """Merges two descriptions; the old one wins if they contradict each other."""
    shape, other = old[0], new[0]
    if shape is None:
        shape = other
    elif other is not None and len(other) == len(shape):
        shape = tuple([b if a < 0 else a for a, b in zip(shape, other)])
    return shape, old[1] or new[1]


def _rows(desc, count):
    """Adds a first axis of length `count` to a description."""
    return (None if desc[0] is None else (-1 if count is None else count, *desc[0]), desc[1])


def _row(desc, numpy):
    # In mx.nd, a row of a vector is an array with one element.
    return (
        desc[0][1:] or (() if numpy else (1,)) if desc[0] else None,
        desc[1],
    )


class Foreach(Control):
    name = "_foreach"
    num_graphs = 1

    def __init__(self, attrs, graphs, num_inputs) -> None:
        super().__init__(attrs, graphs, num_inputs)
        (entries,) = graphs
        variables = sum(node.call is None for node in topological(entries))
        data, state, remain = (
            _numbers(attrs.get(key, "[]"), key, variables)
            for key in ("in_data_locs", "in_state_locs", "remain_locs")
        )
        self.num_data, self.num_states = len(data), len(state)
        self.num_out = _number(attrs, "num_out_data", 0, self.num_outputs)
        if sorted([*data, *state, *remain]) != list(range(num_inputs)) or num_inputs != variables:
            raise MXNetError(
                "in_data_locs, in_state_locs and remain_locs must contain each of the "
                f"{variables} variables of the graph exactly once, for {num_inputs} inputs"
            )
        if (
            self.num_outputs - self.num_out != self.num_states
            or len(entries) != self.num_outputs
            or not data
        ):
            raise MXNetError(
                f"the graph has {len(entries)} results, but needs {self.num_out} outputs and "
                f"{self.num_states} states, over {self.num_data} arrays"
            )
        locs = [0] * variables
        for loc, place in enumerate([*data, *state, *remain]):
            locs[place] = loc
        self.graphs = [Subgraph(entries, locs)]

    def infer(self, inputs, outputs, train):
        inputs = list(inputs)
        count = next(
            (
                desc[0][0]
                for desc in (*inputs[: self.num_data], *outputs[: self.num_out])
                if desc[0]
            ),
            None,
        )
        states = slice(self.num_data, self.num_data + self.num_states)
        inputs[states] = [_merged(*pair) for pair in zip(inputs[states], outputs[self.num_out :])]
        rows = [_row(desc, self.numpy) for desc in inputs[: self.num_data]]
        descs = [*rows, *inputs[self.num_data :]]
        results = self._learn(
            self.graphs[0],
            descs,
            inputs,
            train,
            lambda loc, desc: _rows(desc, count) if loc < self.num_data else desc,
        )
        inputs[states] = [_merged(*pair) for pair in zip(inputs[states], results[self.num_out :])]
        return inputs, [
            *[_rows(desc, count) for desc in results[: self.num_out]],
            *results[self.num_out :],
        ]

    def run(self, inputs, ctx: Context | None = None):
        from ..ndarray import contrib

        inputs = self.of_kind(inputs)
        rest = inputs[self.num_data + self.num_states :]

        def body(slices, now):
            results = self.graphs[0].run([*slices, *now, *rest])
            return results[: self.num_out], results[self.num_out :]

        outputs, last = contrib.foreach(
            body, inputs[: self.num_data], inputs[self.num_data : self.num_data + self.num_states]
        )
        return [*outputs, *last]


class WhileLoop(Control):
    name = "_while_loop"
    num_graphs = 2

    def __init__(self, attrs, graphs, num_inputs) -> None:
        super().__init__(attrs, graphs, num_inputs)
        counts = [sum(node.call is None for node in topological(entries)) for entries in graphs]
        test = _numbers(
            attrs.get("cond_input_locs", "[]"), "cond_input_locs", num_inputs, counts[0]
        )
        body = _numbers(
            attrs.get("func_input_locs", "[]"), "func_input_locs", num_inputs, counts[1]
        )
        places = _numbers(attrs.get("func_var_locs", "[]"), "func_var_locs", len(body))
        self.limit = _number(attrs, "max_iterations", 1, 1 << 31)
        self.num_out = _number(attrs, "num_out_data", 0, self.num_outputs)
        self.loop_vars = [body[place] for place in places]  # input indices of the loop variables
        if (
            len(graphs[0]) != 1
            or len(graphs[1]) != self.num_outputs
            or self.num_outputs - self.num_out != len(places)
            or not places
        ):
            raise MXNetError(
                f"the graphs have {len(graphs[0])} and {len(graphs[1])} results, but need "
                f"{self.num_out} outputs and {len(places)} loop_vars"
            )
        if len(set(places)) != len(places):
            raise MXNetError("func_var_locs contains a variable twice")
        self.graphs = [Subgraph(graphs[0], test), Subgraph(graphs[1], body)]

    def infer(self, inputs, outputs, train):
        inputs = list(inputs)
        for loc, desc in zip(self.loop_vars, outputs[self.num_out :]):
            inputs[loc] = _merged(inputs[loc], desc)
        results = self._learn(self.graphs[1], inputs, inputs, train)
        for loc, desc in zip(self.loop_vars, results[self.num_out :]):
            inputs[loc] = _merged(inputs[loc], desc)
        self._learn(self.graphs[0], inputs, inputs, train)
        return inputs, [
            *[_rows(desc, self.limit) for desc in results[: self.num_out]],
            *results[self.num_out :],
        ]

    def run(self, inputs, ctx: Context | None = None):
        from ..ndarray import _control

        inputs = self.of_kind(inputs)

        def with_vars(variables):
            now = list(inputs)
            for loc, array in zip(self.loop_vars, variables):
                now[loc] = array
            return now

        def func(*variables):
            results = self.graphs[1].run(with_vars(variables))
            return results[: self.num_out], results[self.num_out :]

        outputs, last = _control.while_loop(
            lambda *variables: self.graphs[0].run(with_vars(variables))[0],
            func,
            [inputs[loc] for loc in self.loop_vars],
            self.limit,
        )
        if len(outputs) != self.num_out:  # the loop ran on values, and for zero steps
            descs = self.infer(
                [(array.shape, _core.dtype_name(array.dtype)) for array in inputs],
                [(None, None)] * self.num_outputs,
                _core.is_training(),
            )[1]
            make = _core.get_op("_full")
            outputs = self.of_kind(
                [
                    make(shape=shape, dtype=dtype, ctx=last[0].context, value=0.0)
                    for shape, dtype in descs[: self.num_out]
                ]
            )
        return [*outputs, *last]


class Cond(Control):
    name = "_cond"
    num_graphs = 3

    def __init__(self, attrs, graphs, num_inputs) -> None:
        super().__init__(attrs, graphs, num_inputs)
        made = []
        for key, entries, count in zip(
            ("cond_input_locs", "then_input_locs", "else_input_locs"),
            graphs,
            (1, self.num_outputs, self.num_outputs),
        ):
            variables = sum(node.call is None for node in topological(entries))
            if len(entries) != count:
                raise MXNetError(f"the graph of {key} has {len(entries)} results, not {count}")
            made.append(
                Subgraph(entries, _numbers(attrs.get(key, "[]"), key, num_inputs, variables))
            )
        self.graphs = made

    def infer(self, inputs, outputs, train):
        inputs = list(inputs)
        self._learn(self.graphs[0], inputs, inputs, train)
        first = self._learn(self.graphs[1], inputs, inputs, train)
        second = self._learn(self.graphs[2], inputs, inputs, train)
        return inputs, [_merged(*pair) for pair in zip(first, second)]

    def run(self, inputs, ctx: Context | None = None):
        from ..ndarray import contrib

        inputs = self.of_kind(inputs)
        pred = self.graphs[0].run(inputs)[0]
        return contrib.cond(
            pred, lambda: self.graphs[1].run(inputs), lambda: self.graphs[2].run(inputs)
        )


KINDS = {kind.name: kind for kind in (Foreach, WhileLoop, Cond)}


# --- Creating nodes -------------------------------------------------------------------------------


def _flat(value, what):
    """Flattens nested lists of symbols to a list with a symbol for each output. Also returns a
    function that restores the nesting."""
    from .symbol import Symbol

    if isinstance(value, Symbol):
        parts = [type(value)([entry]) for entry in entries_of(value)]
        return parts, (lambda items: items[0]) if len(parts) == 1 else list
    if not isinstance(value, (list, tuple)):
        raise TypeError(
            f"{what}: expected a Symbol or nested lists of them, got {type(value).__name__}"
        )
    found = [_flat(item, what) for item in value]

    def nest(items):
        result, begin = [], 0
        for leaves, function in found:
            result.append(function(items[begin : begin + len(leaves)]))
            begin += len(leaves)
        return result

    return [leaf for leaves, _ in found for leaf in leaves], nest


def _scope_name(name):
    """Returns a unique name for the graph of a body."""
    outer = AttrScope.current().get(None).get(_MARK)
    return NameManager.current().get(None, f"{outer}${name}" if outer else name)


def _placeholders(symbols):
    """Creates new variables for the inputs of a body."""
    names, made = set(), []
    for symbol in symbols:
        (node, index), number = entries_of(symbol)[0], 0
        name = f"{node.name}-{index}"
        while name in names:
            number += 1
            name = f"{node.name}-{index}-{number}"
        names.add(name)
        made.append(type(symbol)([(Node(name, attributes(None)), 0)]))
    return made


def _cut(results, mark, own):
    """Extracts a body's graph by copying its nodes. Variables of the subgraph are the body's own
    variables, and new ones in place of outer values.

    Returns the entries of the results and, for each variable in order, the outer entry that it
    replaces, or None for the body's own variables.
    """
    own_nodes = {entries_of(symbol)[0][0] for symbol in own}
    names = {node.name for node in own_nodes}
    copies, outside = {}, {}

    def variable(node, index):
        key = (node, 0 if node.call is None else index)
        found = copies.get(key)
        if found is None:
            name, number = node.output_name(index), 0
            while name in names and node not in own_nodes:
                number += 1
                name = f"{node.output_name(index)}_{number}"
            names.add(name)
            found = copies[key] = (Node(name, dict(node.attrs) if node.call is None else {}), 0)
            outside[found[0]] = None if node in own_nodes else key
        return found

    def inside(node):
        return node.call is not None and node.attrs.get(_MARK) == mark

    stack = [(node, False) for node, _ in reversed([entries_of(symbol)[0] for symbol in results])]
    while stack:
        node, done = stack.pop()
        if not inside(node) or node in copies:
            continue
        if not done:
            stack.append((node, True))
            stack.extend((source, False) for source, _ in reversed(node.inputs))
            continue
        inputs = tuple(
            [
                (copies[source], index) if inside(source) else variable(source, index)
                for source, index in node.inputs
            ]
        )
        copies[node] = Node(node.name, dict(node.attrs), node.call, inputs)
        copies[node].origin = node.origin
    entries = []
    for symbol in results:
        node, index = entries_of(symbol)[0]
        if inside(node) and (copies[node], index) not in entries:
            entries.append((copies[node], index))
        else:  # insert an identity op: each result of a subgraph must be a separate op output
            source = (copies[node], index) if inside(node) else variable(node, index)
            name = NameManager.current().get(None, "identity")
            call = _core.OpCall("_copy", {}, symbol.numpy)
            entries.append((Node(name, {_MARK: mark}, call, (source,)), 0))
    return entries, [(node, outside[node]) for node in topological(entries) if node.call is None]


def _node(kind, graphs, inputs, attrs, name):
    texts = {
        **{key: str(value) for key, value in attrs.items()},
        "num_args": str(len(inputs) + len(graphs)),
    }
    call = kind(texts, graphs, len(inputs))
    name = NameManager.current().get(name, kind.name)
    node = Node(name, {**texts, **attributes(None)}, call, tuple(inputs))
    node.origin = _core._origin()
    return [symbol_type(call.numpy)([(node, i)]) for i in range(node.num_outputs)]


def foreach(
    body: Callable[[Any, Any], tuple[Any, Any]], data: Any, init_states: Any, name: str = "foreach"
) -> tuple[Any, Any]:
    """Calls ``body(slice, states) -> (outputs, states)`` for each slice along the first axis.

    The loop is one node.

    data, init_states, outputs: a Symbol or nested lists. Returns the outputs of all steps stacked
    along a new first axis, and the last states.

    Examples
    --------
    >>> add = lambda x, state: (x + state, x + state)
    >>> sums, last = mx.sym.contrib.foreach(add, mx.sym.var("x"), mx.sym.var("start"))
    >>> sums.eval(x=nd.array([1, 2, 3]), start=nd.array([0]))[0].asnumpy().tolist()
    [[1.0], [3.0], [6.0]]
    """
    arrays, nest = _flat(data, "foreach: data")
    first, nest_states = _flat(init_states, "foreach: init_states")
    mark = _scope_name(name)
    with AttrScope(**{_MARK: mark}):
        own = _placeholders([*arrays, *first])
        result = body(nest(own[: len(arrays)]), nest_states(own[len(arrays) :]))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise MXNetError(
                f"foreach: body must return (outputs, states), not {type(result).__name__}"
            )
        outputs, new = result
        outputs, nest_outputs = _flat(outputs, "foreach: the outputs of the body")
        new, nest_new = _flat(new, "foreach: the states that the body returned")
        if len(new) != len(first):
            raise MXNetError(f"foreach: the body gets {len(first)} states but returned {len(new)}")
        entries, variables = _cut([*outputs, *new], mark, own)
    place = {node.name: i for i, (node, _) in enumerate(variables)}
    locs = []
    for symbol, outer in zip(own, (*arrays, *first)):
        if symbol.name not in place:
            raise AssertionError(
                f"foreach: the body does not use {outer.list_outputs()[0]}, one of its data and "
                "states; a symbol's body must use all of them"
            )
        locs.append(place[symbol.name])
    rest = [(i, outer) for i, (_, outer) in enumerate(variables) if outer is not None]
    results = _node(
        Foreach,
        [entries],
        [*[entries_of(symbol)[0] for symbol in (*arrays, *first)], *[outer for _, outer in rest]],
        {
            "num_outputs": len(entries),
            "num_out_data": len(outputs),
            "in_data_locs": locs[: len(arrays)],
            "in_state_locs": locs[len(arrays) :],
            "remain_locs": [i for i, _ in rest],
        },
        None,
    )
    return nest_outputs(results[: len(outputs)]), nest_new(results[len(outputs) :])


def _join(graphs, own, outer):
    """Returns the combined inputs of a node with several subgraphs, and for each subgraph the input
    indices of its variables."""
    inputs, places, locs = [], {}, []
    for variables, symbols in zip(graphs, own):
        known = {symbol.name: entries_of(entry)[0] for symbol, entry in zip(symbols, outer)}
        found = []
        for node, entry in variables:
            # A loop variable is a separate input, even if another loop variable or the body uses
            # the same symbol.
            key = (node.name, None) if entry is None else entry
            if key not in places:
                places[key] = len(inputs)
                inputs.append(known[node.name] if entry is None else entry)
            found.append(places[key])
        locs.append(found)
    return inputs, locs


def while_loop(
    cond: Callable[..., Any],
    func: Callable[..., tuple[Any, Any]],
    loop_vars: Any,
    max_iterations: int | None = None,
    name: str = "while_loop",
) -> tuple[Any, Any]:
    """Runs ``outputs, loop_vars = func(*loop_vars)`` while ``cond(*loop_vars)`` is true, as one
    node.

    Runs at most ``max_iterations`` steps. Returns the outputs of all steps, stacked along a new
    first axis of length ``max_iterations`` and padded with zeros after the last step, and the last
    loop_vars.

    Examples
    --------
    >>> outputs, last = mx.sym.contrib.while_loop(
    ...     lambda i: i < 3, lambda i: (i * i, [i + 1]), [mx.sym.var("i")], max_iterations=2
    ... )
    >>> outputs[0].eval(i=nd.array([1]))[0].asnumpy().tolist()
    [[1.0], [4.0]]
    """
    from .symbol import Symbol

    if max_iterations is None:
        raise ValueError("while_loop: max_iterations must be given")
    try:
        limit = int(max_iterations)
    except (TypeError, ValueError):
        raise ValueError(
            f"while_loop: max_iterations must be an integer, not {max_iterations!r}"
        ) from None
    single = isinstance(loop_vars, Symbol)
    outer, nest = _flat([loop_vars] if single else loop_vars, "while_loop: loop_vars")
    if not outer:
        raise ValueError("while_loop: loop_vars must not be empty")
    mark = _scope_name(name + "_cond")
    with AttrScope(**{_MARK: mark}):
        own = [_placeholders(outer)]
        result = cond(*nest(own[0]))
        if not isinstance(result, Symbol) or len(entries_of(result)) != 1:
            raise ValueError(
                f"while_loop: cond must return a Symbol of one output, not {type(result).__name__}"
            )
        test = _cut([result], mark, own[0])
    mark = _scope_name(name + "_func")
    with AttrScope(**{_MARK: mark}):
        own.append(_placeholders(outer))
        result = func(*nest(own[1]))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise ValueError(
                f"while_loop: func must return (outputs, loop_vars), not {type(result).__name__}"
            )
        outputs, nest_outputs = _flat(
            [] if result[0] is None else result[0], "while_loop: the outputs of func"
        )
        new, _ = _flat(
            [] if result[1] is None else result[1], "while_loop: the loop_vars that func returned"
        )
        if len(new) != len(outer):
            raise ValueError(
                "while_loop: func must return the same number of loop_vars as it gets, "
                f"{len(outer)}, not {len(new)}"
            )
        entries, variables = _cut([*outputs, *new], mark, own[1])
    place = {node.name: i for i, (node, _) in enumerate(variables)}
    for i, symbol in enumerate(own[1]):
        if symbol.name not in place:
            raise ValueError(
                f"while_loop: func does not use loop_vars[{i}] ({outer[i].list_outputs()[0]}); "
                "a symbol's body must use all of them"
            )
    inputs, (test_locs, body_locs) = _join([test[1], variables], own, outer)
    results = _node(
        WhileLoop,
        [test[0], entries],
        inputs,
        {
            "max_iterations": limit,
            "cond_input_locs": test_locs,
            "func_input_locs": body_locs,
            "func_var_locs": [place[symbol.name] for symbol in own[1]],
            "num_out_data": len(outputs),
            "num_outputs": len(entries),
        },
        None,
    )
    last = nest(results[len(outputs) :])
    return nest_outputs(results[: len(outputs)]), (last[0] if single else last)


def cond(
    pred: Any, then_func: Callable[..., Any], else_func: Callable[..., Any], name: str = "cond"
) -> Any:
    """Calls ``then_func()`` if the element of ``pred`` is true, else ``else_func()``, as one node.

    Both must return the same number of symbols, with the same shapes and dtypes.

    Examples
    --------
    >>> x = mx.sym.var("x")
    >>> y = mx.sym.contrib.cond(x > 2, lambda: x * 10, lambda: x)
    >>> y.eval(x=nd.array([3]))[0].asnumpy()
    array([30.], dtype=float32)
    """
    from .symbol import Symbol

    if not isinstance(pred, Symbol) or len(entries_of(pred)) != 1:
        raise ValueError(f"cond: pred must be a Symbol of one output, not {type(pred).__name__}")
    graphs, nests, counts = [], [], []
    for part, function in (("pred", lambda: pred), ("then", then_func), ("else", else_func)):
        mark = _scope_name(f"{name}_{part}")
        with AttrScope(**{_MARK: mark}):
            found, nest = _flat(function(), f"cond: the outputs of {part}_func")
            graphs.append(_cut(found, mark, []))
        nests.append(nest)
        counts.append(len(found))
    if counts[1] != counts[2]:
        raise ValueError(
            f"cond: then_func returned {counts[1]} symbols, but else_func returned {counts[2]}; "
            "the numbers must be equal"
        )
    inputs, locs = _join([variables for _, variables in graphs], [[], [], []], [])
    results = _node(
        Cond,
        [entries for entries, _ in graphs],
        inputs,
        {
            "cond_input_locs": locs[0],
            "then_input_locs": locs[1],
            "else_input_locs": locs[2],
            "num_outputs": counts[1],
        },
        None,
    )
    return nests[1](results)
