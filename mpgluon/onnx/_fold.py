"""Constant folding at import, for constants and shapes that the nodes of a file compute.

A shape is an object array of integers, with `Open` for each size that the file leaves open.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

from ._package import ONNXError, dtype_of
from ._source import Open, runs_of, size_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Maximum number of elements of a result, and of a result that Python computes element by element.
MOST = 1 << 24
_MOST_SLOW = 1 << 16


# --- Sizes of results before they are computed ----------------------------------------------------
def _product_of(sizes):
    """Returns the number of elements of a shape as a Python integer, which does not overflow."""
    if any(not isinstance(size, Open) and size < 0 for size in sizes):
        raise ONNXError(f"a shape has negative sizes: {sizes}")
    return math.prod(1 if isinstance(size, Open) else int(size) for size in sizes)


def _of_input(node):
    return node.constant(0).shape


def _broadcast(node):
    return np.broadcast_shapes(*[node.constant(place).shape for place in range(node.count)])


def _of_gather(node):
    found, axis = node.constant(0).shape, node.attribute("axis", 0) % node.constant(0).ndim
    return (*found[:axis], *node.constant(1).shape, *found[axis + 1 :])


def _of_concat(node):
    return (sum(node.constant(place).size for place in range(node.count)),)


def _of_range(node):
    values = [node.constant(place).reshape(-1)[0] for place in range(3)]
    if any(isinstance(value, Open) for value in values):
        return ()
    start, limit, delta = values
    return (abs(int(math.ceil((float(limit) - float(start)) / float(delta)))),)


# Functions that return the shape that a fold allocates. Folds that are missing here allocate
# nothing: they return views of their inputs, or tensors of the file.
_ALLOCATED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Equal", "Less", "Greater", "Where"), _broadcast),
    **dict.fromkeys(("Cast", "Not", "Neg", "Trilu", "Floor", "Sqrt", "ReduceProd"), _of_input),
    "ConstantOfShape": lambda node: node.sizes(0),
    "Gather": _of_gather,
    "Concat": _of_concat,
    "Range": _of_range,
}


def fold(node: Any) -> Any:
    """Folds a node whose inputs are constants. Returns None if the importer must convert the node.

    Raises ONNXError if the result has more than MOST elements, or exceeds the memory allowed for a
    file of this size. The check precedes any allocation.
    """
    shape = _ALLOCATED[node.op](node) if node.op in _ALLOCATED else ()
    size = _product_of(shape)
    slow = any(
        isinstance(node.value(place), np.ndarray) and node.value(place).dtype == object
        for place in range(node.count)
    )
    if size > (_MOST_SLOW if slow or node.op == "ReduceProd" else MOST):
        raise ONNXError(f"its result of shape {tuple(shape)} is too large for a constant")
    node.graph.charge(size * 8)
    return FOLDS[node.op](node)


# --- Folds ----------------------------------------------------------------------------------------
def _shape(node):
    shape = node.shape(0)
    if shape is None:
        raise ONNXError("the shape of its input is not known")
    return _sizes(shape[node.attribute("start", 0) : node.attribute("end")])


def _sizes(sizes):
    """Converts sizes to an int64 array, or to an object array if some are `Open`."""
    if not any(isinstance(size, Open) for size in sizes):
        return np.array(sizes, dtype=np.int64)
    found = np.empty(len(sizes), dtype=object)
    found[:] = sizes
    return found


def _constant(node):
    found = node.attribute("value")
    if found is not None:
        return node.graph.tensor(found)
    for key, dtype in (
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_float", np.float32),
        ("value_floats", np.float32),
    ):
        if node.attribute(key) is not None:
            return np.array(node.attribute(key), dtype=dtype)
    raise ONNXError("a constant that is not a tensor")


def _constant_of_shape(node):
    shape = node.sizes(0)
    if any(isinstance(size, Open) for size in shape):
        return None  # the importer converts the node
    found = node.attribute("value")
    value = np.zeros(1, np.float32) if found is None else node.graph.tensor(found)
    return np.full(shape, value.reshape(-1)[0], dtype=value.dtype)


def _unsqueeze(node):
    found = node.constant(0)
    axes = node.integers(1, "axes")
    ndim = found.ndim + len(axes)
    for axis in sorted(axis % ndim for axis in axes):
        found = np.expand_dims(found, axis)
    return found


def _reshape(node):
    found, shape = node.constant(0), node.integers(1)
    if not node.attribute("allowzero", 0):
        shape = [size or found.shape[axis] for axis, size in enumerate(shape)]
    return found.reshape(shape)


def _squeeze(node):
    axes = node.integers(1, "axes")
    return np.squeeze(node.constant(0), None if axes is None else tuple(axes))


def _slice(node):
    found = node.constant(0)
    begins, ends = node.sizes(1, "starts"), node.sizes(2, "ends")
    if any(isinstance(item, Open) for item in (*begins, *ends)):
        return None
    axes = node.integers(3, "axes") or list(range(len(begins)))
    steps = node.integers(4) or [1] * len(begins)
    places = [slice(None)] * found.ndim
    for axis, begin, end, step in zip(axes, begins, ends, steps):
        end = None if step < 0 and end < -found.shape[axis] else end
        places[axis] = slice(begin, end, step)
    return found[tuple(places)]


def _range(node):
    if isinstance(node.sizes(1)[0], Open):
        return None  # the importer converts the node
    start, limit, delta = [node.constant(place).reshape(-1)[0] for place in range(3)]
    return np.arange(start, limit, delta, dtype=node.constant(0).dtype)


def _cast(node):
    found, dtype = node.constant(0), dtype_of(node.attribute("to"))
    if found.dtype == object:
        return None if "float" in dtype else found
    return found.astype(np.float32 if dtype == "bfloat16" else dtype)


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def fold(node):
        x, y = node.constant(0), node.constant(1)
        if object not in (x.dtype, y.dtype):
            return function(x, y).astype(x.dtype)
        parts = np.broadcast_arrays(x, y)
        found = [
            size_of(function(*[np.array(runs_of(size)) for size in pair]))
            for pair in zip(*[part.reshape(-1) for part in parts])
        ]
        return _sizes(found).reshape(parts[0].shape)

    return fold


def _quotient(x, y):
    if np.issubdtype(np.asarray(x).dtype, np.integer):
        return np.trunc(np.true_divide(x, y))
    return np.true_divide(x, y)


def _gather(node):
    found, places = node.constant(0), node.constant(1).astype(np.int64)
    return _array(np.take(found, places, node.attribute("axis", 0)))


def _array(item):
    """Converts a scalar, which NumPy returns instead of a 0-d array, to a 0-d array."""
    if not isinstance(item, Open):
        return np.asarray(item)
    found = np.empty((), dtype=object)
    found[()] = item
    return found


def _compared(function):
    def fold(node):
        x, y = node.constant(0), node.constant(1)
        if object not in (x.dtype, y.dtype):
            return function(x, y)
        x, y = np.broadcast_arrays(x, y)
        pairs = zip(x.reshape(-1), y.reshape(-1))
        found = [
            all(function(a, b) for a, b in zip(runs_of(one), runs_of(other)))
            if Open in (type(one), type(other))
            else function(one, other)
            for one, other in pairs
        ]
        return np.array(found, dtype=bool).reshape(x.shape)

    return fold


def _expand(node):
    sizes = node.sizes(1)
    if any(isinstance(size, Open) for size in sizes) or _product_of(sizes) > MOST:
        return None  # the importer converts the node
    found = node.constant(0)
    return np.broadcast_to(found, np.broadcast_shapes(found.shape, tuple(sizes)))


def _trilu(node):
    function = np.triu if node.attribute("upper", 1) else np.tril
    return function(node.constant(0), int(node.number(1) or 0)).astype(node.constant(0).dtype)


def _concat(node):
    parts = [node.constant(place) for place in range(node.count)]
    return np.concatenate(parts, axis=node.attribute("axis"))


def _of_numbers(function):
    """Returns the fold for a function of numbers. It leaves arrays with `Open` to the importer."""
    return lambda node: None if node.value(0).dtype == object else function(node.value(0))


def _product(node):
    runs = np.array([runs_of(size) for size in node.constant(0).reshape(-1)])
    found = _sizes([size_of(np.prod(runs, axis=0))])
    return found if node.attribute("keepdims", 1) else found.reshape(())


FOLDS: dict[str, Callable[[Any], Any]] = {
    "Shape": _shape,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Range": _range,
    "Cast": _cast,
    "Gather": _gather,
    "Concat": _concat,
    "Add": _arithmetic(np.add),
    "Sub": _arithmetic(np.subtract),
    "Mul": _arithmetic(np.multiply),
    "Div": _arithmetic(_quotient),
    "Identity": lambda node: node.constant(0),
    "Reshape": _reshape,
    "Transpose": lambda node: np.transpose(node.constant(0), node.attribute("perm")),
    "Equal": _compared(operator.eq),
    "Less": _compared(operator.lt),
    "Greater": _compared(operator.gt),
    "Not": lambda node: np.logical_not(node.constant(0)),
    "Neg": lambda node: -node.constant(0),
    "Where": lambda node: np.where(*[node.constant(place) for place in range(3)]),
    "Expand": _expand,
    "Trilu": _trilu,
    "Floor": _of_numbers(np.floor),
    "Sqrt": _of_numbers(np.sqrt),
    "ReduceProd": _product,
}
