"""Loops and branches over arrays (``nd.contrib.foreach``, ...).

On arrays with values, loops and branches run in Python. While a block is traced, their bodies are
traced once. Short loops over slices are unrolled into the block's graph. Any other loop or branch
cuts the graph (see `mpgluon._internal.graph_breaks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from .._core import NDArray
from .._internal import device_groups, graph_breaks, ranks
from ..base import MXNetError
from ._sparse.row_gradients import RowGradientWeight, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


# foreach is unrolled into the enclosing graph if this adds at most this many ops.
UNROLLED = 1024


def _flat(items, what):
    """Returns the arrays of nested lists in order, and a function that restores the nesting."""
    if isinstance(items, NDArray):
        return [items], lambda arrays: arrays[0]
    if not isinstance(items, (list, tuple)):
        raise TypeError(
            f"{what}: expected an NDArray or nested lists of them, got {type(items).__name__}"
        )
    parts = [_flat(item, what) for item in items]

    def nest(arrays):
        result, begin = [], 0
        for leaves, function in parts:
            result.append(function(arrays[begin : begin + len(leaves)]))
            begin += len(leaves)
        return result

    return [leaf for leaves, _ in parts for leaf in leaves], nest


def _of_symbols(name, value):
    """Returns the function of symbols if a value has symbols, as in a block that becomes a symbol.
    Returns None for arrays."""
    while isinstance(value, (list, tuple)) and value:
        value = next((item for item in value if not isinstance(item, NDArray)), value[0])
    if isinstance(value, NDArray):
        return None
    from ..symbol import Symbol, _control

    return getattr(_control, name) if isinstance(value, Symbol) else None


def _pair(result, what, names):
    """Checks that a body returned two values."""
    if isinstance(result, (tuple, list)) and len(result) == 2:
        return result
    raise _core.MXNetTypeError(
        f"{what} must return ({names}), not "
        + (f"{len(result)} values" if isinstance(result, (tuple, list)) else type(result).__name__)
    )


class _Steps(_core.Scope):
    """Counts the steps of a loop, so that errors of its queued work name the step."""

    def _changes(self):
        self._outer = _core.get_steps()
        return [(_core.set_steps, 0)]

    def numbers(self, limit):
        for step in range(limit):
            _core.begin_step(self._outer, step)
            yield step


def _tracer(arrays):
    """Returns the tracer of the trace that the arrays belong to, or None if they have values."""
    return graph_breaks.current() if any(array._in_trace for array in arrays) else None


def foreach(
    body: Callable[[Any, Any], tuple[Any, Any]], data: Any, init_states: Any
) -> tuple[Any, Any]:
    """Calls ``body(slice, states) -> (outputs, states)`` for each slice along the first axis.

    data, init_states, outputs: an NDArray or nested lists. Returns the outputs of all steps,
    stacked along a new first axis, and the last states. Raises ValueError if there are no slices.

    Examples
    --------
    >>> add = lambda x, state: (x + state, x + state)
    >>> sums, last = nd.contrib.foreach(add, nd.array([1, 2, 3]), nd.array([0]))
    >>> sums.asnumpy().tolist(), last.asnumpy()
    ([[1.0], [3.0], [6.0]], array([6.], dtype=float32))
    """
    symbols = _of_symbols("foreach", [data, init_states])
    if symbols:
        return symbols(body, data, init_states)
    arrays, nest = _flat(data, "foreach: data")
    states, nest_states = _flat(init_states, "foreach: init_states")
    arrays = [whole(array) for array in arrays]
    if any(isinstance(array, RowGradientWeight) for array in states):
        states = [whole(array) for array in states]
        init_states = nest_states(states)
    steps = {array.shape[0] if array.shape else 0 for array in arrays}
    if len(steps) != 1 or 0 in steps:
        raise ValueError(
            "foreach: the first axes of the data must have the same length, at least 1, got "
            f"{sorted(steps)}"
        )
    count = steps.pop()
    tracer = _tracer([*arrays, *states])
    if tracer is not None:
        found = _traced_foreach(tracer, body, arrays, nest, states, nest_states, count)
        if found is not None:
            return found
    slices = [_core.loop_slices(array) for array in arrays]
    states, rows, nest_outputs = init_states, [], None
    with _Steps() as numbered:
        for step in numbered.numbers(count):
            result = body(nest([array[step] for array in slices]), states)
            outputs, states = _pair(result, "foreach: body", "outputs, states")
            leaves, nest_outputs = _flat(outputs, "foreach: the outputs of the body")
            if rows and len(leaves) != len(rows[0]):
                raise ValueError(
                    f"foreach: the body returned {len(rows[0])} outputs first, and {len(leaves)} "
                    f"in step {step}"
                )
            rows.append(leaves)
    return nest_outputs([_core.loop_stack(items, count) for items in zip(*rows)]), states


def _slice(array):
    """Returns the description of a slice along the first axis."""
    shape, dtype, ctx, numpy = graph_breaks.describe(array)
    return shape[1:] if numpy else shape[1:] or (1,), dtype, ctx, numpy


def _traced_foreach(tracer, body, data, nest, states, nest_states, count):
    """Traces the loop. Returns None if the body cannot be traced separately.

    This is the case if the states change their shapes between steps, or if a shape depends on
    values.
    """
    nests = []

    def step(arrays):
        result = body(nest(arrays[: len(data)]), nest_states(arrays[len(data) :]))
        outputs, new = _pair(result, "foreach: body", "outputs, states")
        leaves, nest_outputs = _flat(outputs, "foreach: the outputs of the body")
        new, nest_new = _flat(new, "foreach: the states that the body returned")
        nests[:] = nest_outputs, nest_new, len(leaves)
        return [*leaves, *new]

    try:
        traced = graph_breaks.Body(
            step,
            [
                *map(_slice, data),
                *map(graph_breaks.describe, states),
            ],
            "the body of foreach",
        )
    except graph_breaks.NeedsValues:
        return None
    nest_outputs, nest_new, num_outputs = nests
    if traced.descs[num_outputs:] != [graph_breaks.describe(state) for state in states]:
        return None

    def inlined(arrays):
        slices = [_core.loop_slices(array) for array in arrays[: len(data)]]
        now, captures = (
            arrays[len(data) : len(data) + len(states)],
            arrays[len(data) + len(states) :],
        )
        rows = []
        for step in range(count):
            results = traced.inline([*[array[step] for array in slices], *now, *captures])
            rows.append(results[:num_outputs])
            now = results[num_outputs:]
        return [*[_core.loop_stack(items, count) for items in zip(*rows)], *now]

    arrays = [*data, *states, *traced.captures]
    if traced.inlines and count * traced.nodes <= UNROLLED:
        results = inlined(arrays)
    else:
        rows = traced.descs[:num_outputs]
        loop = _core.Routine.loop(
            "foreach",
            count,
            len(data),
            len(states),
            traced.routine,
            len(traced.captures),
            None,
            0,
            rows,
        )
        results = tracer.host(
            "foreach",
            loop,
            arrays,
            [*_rows(rows, count), *traced.descs[num_outputs:]],
            [traced],
            (len(data), num_outputs),
        )
    return nest_outputs(results[:num_outputs]), nest_new(results[num_outputs:])


def _check_rank(ctx, what):
    """Raises MXNetError on all ranks if only one rank has the value of a condition, because the
    other ranks could not follow the branch."""
    if ctx.rank is not None and ranks.count() > 1:
        raise MXNetError(
            f"{what} is on {ctx}, so other ranks do not have its value; use "
            "mx.parallel.fetch(x), which all ranks must call"
        )


def _truth(value, what):
    """Converts a condition to bool."""
    if isinstance(value, NDArray):
        _check_rank(value.context, what)
        if value.size != 1:
            raise ValueError(f"{what} must be one number, not an array of shape {value.shape}")
        return bool(value)
    try:
        return bool(value)
    except Exception as error:
        raise ValueError(
            f"{what} must be one number, not {type(value).__name__}: {error}"
        ) from error


def _step_of(func, variables, what):
    """Returns ``func(*variables)`` as (outputs, list of new variables)."""
    result = func(*variables)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise ValueError(
            f"{what}: func must return (outputs, loop_vars), not {type(result).__name__}"
        )
    outputs, new = result
    new = [new] if isinstance(new, NDArray) else list(new or [])
    if len(new) != len(variables):
        raise ValueError(
            f"{what}: func must return the same number of loop_vars as it gets, "
            f"{len(variables)}, not {len(new)}"
        )
    return ([] if outputs is None else outputs), new


def while_loop(
    cond: Callable[..., Any],
    func: Callable[..., tuple[Any, Any]],
    loop_vars: Any,
    max_iterations: int | None = None,
) -> tuple[Any, Any]:
    """Runs ``outputs, loop_vars = func(*loop_vars)`` while ``cond(*loop_vars)`` is true.

    Runs at most ``max_iterations`` steps. Returns the outputs of all steps, stacked along a new
    first axis of length ``max_iterations`` and padded with zeros after the last step, and the last
    loop_vars. If no step runs on arrays with values, the list of outputs is empty; in a hybridized
    block the outputs are zeros. Raises ValueError without max_iterations or loop_vars.

    Examples
    --------
    >>> outputs, (i,) = nd.contrib.while_loop(
    ...     lambda i: i < 3, lambda i: (i * i, [i + 1]), [nd.array([1])], max_iterations=2
    ... )
    >>> outputs.asnumpy().tolist(), i.asnumpy()
    ([[1.0], [4.0]], array([3.], dtype=float32))
    """
    symbols = _of_symbols("while_loop", loop_vars)
    if symbols:
        return symbols(cond, func, loop_vars, max_iterations)
    if max_iterations is None:
        raise ValueError("while_loop: max_iterations must be given")
    try:
        limit = int(
            max_iterations.item() if isinstance(max_iterations, NDArray) else max_iterations
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"while_loop: max_iterations must be an integer, not {max_iterations!r}"
        ) from None
    single = isinstance(loop_vars, NDArray)
    variables = [loop_vars] if single else list(loop_vars)
    if not variables:
        raise ValueError("while_loop: loop_vars must not be empty")
    leaves, nest = _flat(variables, "while_loop: loop_vars")
    tracer = _tracer(leaves)
    if tracer is not None:
        outputs, variables = _traced_while(tracer, cond, func, leaves, nest, limit)
        return outputs, (variables[0] if single else variables)
    rows, nest_outputs = [], None
    with _Steps() as numbered:
        for _ in numbered.numbers(limit):
            if not _truth(cond(*variables), "while_loop: the result of cond"):
                break
            outputs, variables = _step_of(func, variables, "while_loop")
            leaves, nest_outputs = _flat(outputs, "while_loop: the outputs of func")
            if rows and len(leaves) != len(rows[0]):
                raise ValueError(
                    f"while_loop: func returned {len(rows[0])} outputs first, and {len(leaves)} in "
                    f"step {len(rows)}"
                )
            for place, (leaf, first) in enumerate(zip(leaves, rows[0] if rows else ())):
                if leaf.shape != first.shape:
                    raise ValueError(
                        f"while_loop: output {place} of func had the shape {first.shape} first, "
                        f"and {leaf.shape} in step {len(rows)}"
                    )
            rows.append(leaves)
    stacked = [_core.loop_stack(items, limit) for items in zip(*rows)]
    return (nest_outputs(stacked) if nest_outputs else []), (variables[0] if single else variables)


def _rows(descs, count):
    """Adds a first axis of length `count` to the shape of each description."""
    return [((count, *shape), *rest) for shape, *rest in descs]


def _traced_while(tracer, cond, func, variables, nest, limit):
    nests = []

    def step(arrays):
        outputs, new = _step_of(func, nest(arrays), "while_loop")
        leaves, nest_outputs = _flat(outputs, "while_loop: the outputs of func")
        new, nest_new = _flat(new, "while_loop: the loop_vars that func returned")
        nests[:] = nest_outputs, nest_new, len(leaves)
        return [*leaves, *new]

    def test(arrays):
        result = cond(*nest(arrays))
        if not isinstance(result, NDArray):
            raise ValueError(
                "while_loop: in a hybridized block, cond must return an array, not "
                f"{type(result).__name__}"
            )
        if result.size != 1:
            raise ValueError(
                "while_loop: the result of cond must be one number, not an array of shape "
                f"{result.shape}"
            )
        _check_rank(result.context, "while_loop: the result of cond")
        return [result]

    descs = [graph_breaks.describe(array) for array in variables]
    try:
        tested = graph_breaks.Body(test, descs, "the condition of while_loop")
        stepped = graph_breaks.Body(step, descs, "the body of while_loop")
    except graph_breaks.NeedsValues as error:
        raise _inside(error, "while_loop") from None
    nest_outputs, nest_new, num_outputs = nests
    after = stepped.descs[num_outputs:]
    for place, (before, new) in enumerate(zip(descs, after)):
        if before != new:
            raise ValueError(
                "while_loop: in a hybridized block, the loop_vars must keep shapes, dtypes and "
                f"devices, but number {place} is {_text(before)} before and {_text(new)} after "
                f"func; convert it to {_text(new)} before the loop"
            )

    limit, rows = max(limit, 0), stepped.descs[:num_outputs]
    loop = _core.Routine.loop(
        "while_loop",
        limit,
        0,
        len(variables),
        stepped.routine,
        len(stepped.captures),
        tested.routine,
        len(tested.captures),
        rows,
    )
    results = tracer.host(
        "while_loop",
        loop,
        [*variables, *stepped.captures, *tested.captures],
        [*_rows(rows, limit), *descs],
        [tested, stepped],
        (0, num_outputs),
    )
    return nest_outputs(results[:num_outputs]), nest_new(results[num_outputs:])


def cond(pred: Any, then_func: Callable[..., Any], else_func: Callable[..., Any]) -> Any:
    """Calls ``then_func()`` if the single element of ``pred`` is true, else ``else_func()``.

    In a hybridized block both must return arrays of the same shapes, dtypes and devices.

    Examples
    --------
    >>> x = nd.array([3])
    >>> nd.contrib.cond(x > 2, lambda: x * 10, lambda: x).asnumpy()
    array([30.], dtype=float32)
    """
    symbols = _of_symbols("cond", pred)
    if symbols:
        return symbols(pred, then_func, else_func)
    tracer = _tracer([pred]) if isinstance(pred, NDArray) else None
    if tracer is None:
        return then_func() if _truth(pred, "cond: pred") else else_func()
    if pred.size != 1:
        raise ValueError(f"cond: pred must be one number, not an array of shape {pred.shape}")
    _check_rank(pred.context, "cond: pred")
    nests = []

    def flat_of(function, what):
        def flat(_):
            leaves, nest = _flat(function(), f"cond: the outputs of {what}")
            nests.append(nest)
            return leaves

        return flat

    try:
        bodies = [
            graph_breaks.Body(flat_of(function, what), [], f"{what} of cond")
            for function, what in ((then_func, "then_func"), (else_func, "else_func"))
        ]
    except graph_breaks.NeedsValues as error:
        raise _inside(error, "cond") from None
    first, second = bodies
    if len(first.descs) != len(second.descs):
        raise ValueError(
            f"cond: then_func returned {len(first.descs)} arrays, but else_func returned "
            f"{len(second.descs)}; the numbers must be equal"
        )
    for place, (left, right) in enumerate(zip(first.descs, second.descs)):
        if left != right:
            raise ValueError(
                f"cond: output {place} is {_text(left)} from then_func but {_text(right)} from "
                "else_func; in a hybridized block they must match"
            )
    branch = _core.Routine.branch(
        first.routine, len(first.captures), second.routine, len(second.captures), len(first.descs)
    )
    results = tracer.host(
        "cond", branch, [pred, *first.captures, *second.captures], first.descs, [first, second]
    )
    return nests[0](results)


def _text(desc):
    shape, dtype, ctx, numpy = desc
    kind = "mx.np array of " if numpy else ""
    return f"{kind}{_core.dtype_name(dtype)} {shape} on {ctx}"


def _inside(error, what):
    return _core.NotSupportedError(
        f"{error.name}: the shape of its result depends on values, so in a hybridized block it "
        f"cannot be inside {what}, whose steps are compiled before values exist; use a mask "
        f"(F.where, multiplication) inside, call {error.name} outside of the {what}, or do not "
        "hybridize this block"
    )


def dynamic(call: Any, inputs: Sequence[NDArray]) -> Any:
    """Runs `call`, a `_core.OpCall` of an op whose output shape depends on values.

    If the inputs are traced, the op becomes a host step between two compiled parts.
    """
    tracer = _tracer(inputs)
    if tracer is None:
        return call.run(inputs)
    name = _core.row_of(call.name)[0].removeprefix("_contrib_")
    return tracer.dynamic(name, call.run, device_groups.gathered(inputs))


def boolean_mask(data: NDArray, index: NDArray, axis: int = 0) -> NDArray:
    """Selects the entries of ``data`` along ``axis`` for which the vector ``index`` is not 0.

    Waits for ``index``. A hybridized block is cut into two compiled parts at this op.

    Examples
    --------
    >>> x = nd.array([[1, 2], [3, 4], [5, 6]])
    >>> nd.contrib.boolean_mask(x, nd.array([0, 1, 1])).asnumpy().tolist()
    [[3.0, 4.0], [5.0, 6.0]]
    """
    for name, array in {"data": data, "index": index}.items():
        if not isinstance(array, NDArray):
            kind = type(array).__name__
            raise _core.MXNetTypeError(f"boolean_mask: {name} must be an NDArray, got {kind}")
    numpy = isinstance(data, _core.ndarray)
    if isinstance(index, _core.ndarray) != numpy:
        raise _core.MXNetTypeError(
            "boolean_mask: data and index are of mx.nd and mx.np; convert one with "
            "as_nd_ndarray() or as_np_ndarray()"
        )
    return dynamic(_core.OpCall("_contrib_boolean_mask", {"axis": axis}, numpy), [data, index])[0]
