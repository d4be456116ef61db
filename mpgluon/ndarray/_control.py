"""Loops and branches over arrays (``nd.contrib.foreach``, ...), and rows chosen by a mask.

They run in Python. While a block is traced, `foreach` becomes its unrolled steps; what depends on values (`while_loop`, `cond`,
`boolean_mask`) raises there, since a traced array has none.
"""

import numpy as np

from .. import _core
from .._core import NDArray


def _flat(items):
    """The arrays of nested lists in order, and a function that nests others alike."""
    if isinstance(items, NDArray):
        return [items], lambda arrays: arrays[0]
    if not isinstance(items, (list, tuple)):
        raise TypeError(f"expected an NDArray or nested lists of them, got {type(items).__name__}")
    parts = [_flat(item) for item in items]

    def nest(arrays):
        result, begin = [], 0
        for leaves, function in parts:
            result.append(function(arrays[begin : begin + len(leaves)]))
            begin += len(leaves)
        return result

    return [leaf for leaves, _ in parts for leaf in leaves], nest


def _stack(rows):
    return [_core.get_op("stack")(*items, axis=0) for items in zip(*rows)]


def foreach(body, data, init_states):
    """Calls ``body(slice, states) -> (outputs, states)`` for each slice of ``data`` along its first axis.

    data, init_states, outputs: an NDArray or nested lists. Returns the outputs of all steps stacked along a new first axis, and the
    last states. ValueError when there are no slices.
    """
    arrays, nest = _flat(data)
    steps = {array.shape[0] for array in arrays}
    if len(steps) != 1 or 0 in steps:
        raise ValueError(f"foreach: the data need first axes of one length of at least 1, got {sorted(steps)}")
    states, rows, nest_outputs = init_states, [], None
    for step in range(steps.pop()):
        outputs, states = body(nest([array[step] for array in arrays]), states)
        leaves, nest_outputs = _flat(outputs)
        rows.append(leaves)
    return nest_outputs(_stack(rows)), states


def while_loop(cond, func, loop_vars, max_iterations=None):
    """While ``cond(*loop_vars)`` is true, at most ``max_iterations`` times: ``outputs, loop_vars = func(*loop_vars)``.

    Returns the outputs of all steps stacked along a new first axis of length ``max_iterations``, zeros behind the last step, and the
    last loop_vars. ValueError without max_iterations.
    """
    if max_iterations is None:
        raise ValueError("while_loop: max_iterations has to be given")
    single = isinstance(loop_vars, NDArray)
    variables = [loop_vars] if single else list(loop_vars)
    rows, nest = [], None
    while len(rows) < max_iterations and bool(cond(*variables)):
        outputs, new = func(*variables)
        variables = [new] if isinstance(new, NDArray) else list(new or variables)
        leaves, nest = _flat([] if outputs is None else outputs)
        rows.append(leaves)
    stacked = _stack(rows)
    missing = int(max_iterations) - len(rows)
    if missing:
        concat, full = _core.get_op("Concat"), _core.get_op("_full")
        stacked = [concat(array, full(shape=(missing, *array.shape[1:]), ctx=array.context, dtype=array.dtype), dim=0) for array in stacked]
    return (nest(stacked) if nest else []), (variables[0] if single else variables)


def cond(pred, then_func, else_func):
    """``then_func()`` if the one element of ``pred`` is true, else ``else_func()``."""
    return then_func() if bool(pred) else else_func()


def boolean_mask(data, index, axis=0):
    """The entries of ``data`` along ``axis`` where the vector ``index`` is not 0. Waits for ``index``."""
    if axis != 0:
        raise _core.NotSupportedError("boolean_mask: only axis 0 is supported")
    return data[np.flatnonzero(index.asnumpy())]


def allclose(a, b, rtol=1e-5, atol=1e-8, equal_nan=False):
    """An array with 1 when all elements are equal within ``atol + rtol * abs(b)``, else with 0. Waits for both."""
    close = np.allclose(a.asnumpy(), b.asnumpy(), rtol=rtol, atol=atol, equal_nan=equal_nan)
    return _core.array([float(close)], ctx=a.context)
