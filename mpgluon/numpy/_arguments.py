"""Arguments of the functions of mx.np: axes, shapes, dtypes and constants.

The helpers call ops of NumPy's dialect, so that a composition works on eager and on traced arrays.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import MXNetTypeError, MXNetValueError, NDArray, NotSupportedError, ndarray
from .._internal import graph_breaks
from ..ndarray._control import dynamic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

op = _core.get_op
_arange = op("_npi__arange")
_broadcast = op("_npi__broadcast_exact")
_broadcast_like = op("_npi_broadcast_like")
_concat = op("_npi_Concat")
_full = op("_npi__full")
_reshape = op("_npi__reshape_exact")
_slice_axis = op("_npi_slice_axis")
_split = op("_npi__split_v2")
_transpose = op("_npi_transpose")
_where = op("_npi_where")


# dtypes of NumPy that arrays don't have -> the dtype to which they are converted.
WIDER = {np.dtype("int16"): "int32", np.dtype("uint16"): "int32", np.dtype("uint32"): "int64"}


# --- Axes and shapes ------------------------------------------------------------------------------
def axis_of(axis: Any, ndim: int, name: str = "axis") -> int:
    """Returns an axis >= 0. Raises ValueError if an array with `ndim` dimensions lacks the axis."""
    try:
        axis = operator.index(axis)
    except TypeError:
        raise MXNetTypeError(
            f"{name} must be an integer, got {type(axis).__name__} {axis!r}"
        ) from None
    if not -ndim <= axis < ndim:
        raise MXNetValueError(f"{name} {axis} is out of range for an array with {ndim} dimensions")
    return axis % ndim


def axes_of(axis: Any, ndim: int, name: str = "axis") -> tuple[int, ...]:
    """Returns the axes >= 0 that an argument `axis` lists; None means all."""
    if axis is None:
        return tuple(range(ndim))
    if not isinstance(axis, (tuple, list)):
        return (axis_of(axis, ndim, name),)
    axes = tuple(axis_of(each, ndim, name) for each in axis)
    if len({*axes}) < len(axes):
        raise MXNetValueError(f"{name} {axis} lists an axis twice")
    return axes


def shape_of(shape: Any) -> tuple[int, ...]:
    """Returns a shape given as an integer or a sequence of integers."""
    return (*map(operator.index, shape),) if np.iterable(shape) else (operator.index(shape),)


def shaped(x: ndarray, shape: Iterable[int]) -> ndarray:
    """Reshapes an array. All sizes are literal: 0 and -1 are not codes."""
    shape = tuple(shape)
    return x if x.shape == shape else _reshape(x, shape=shape)


def flat(x: ndarray) -> ndarray:
    """Returns the elements as a vector."""
    return x if x.ndim == 1 else _reshape(x, shape=(x.size,))


def part(x: ndarray, axis: int, begin: int, end: int) -> ndarray:
    """Returns the slices [begin, end) along an axis; both must be in range."""
    return _slice_axis(x, axis=axis, begin=begin, end=end)


_MOST_PARTS = 24  # entries of an op's parameter


def parts_of(x: ndarray, starts: Sequence[int], axis: int) -> list[ndarray]:
    """Splits an array along an axis. Each part ends before the next start, and starts[0] is 0.

    Many parts are split off in groups, because an op takes a limited number of indices.
    """
    if len(starts) <= _MOST_PARTS:
        parts = _split(x, indices=tuple(starts), axis=axis)
        return [*parts] if isinstance(parts, (list, tuple)) else [parts]
    width = _MOST_PARTS
    while width * _MOST_PARTS < len(starts):
        width *= _MOST_PARTS
    groups = [starts[i : i + width] for i in range(0, len(starts), width)]
    pieces = parts_of(x, [group[0] for group in groups], axis)
    return [
        each
        for group, piece in zip(groups, pieces, strict=True)
        for each in parts_of(piece, [start - group[0] for start in group], axis)
    ]


def transposed(x: ndarray, axes: Sequence[int]) -> ndarray:
    """Transposes an array, unless the order of its axes stays the same."""
    return x if list(axes) == list(range(x.ndim)) else _transpose(x, axes=tuple(axes))


def joined(arrays: Sequence[ndarray], axis: int, out: ndarray | None = None) -> ndarray:
    """Concatenates arrays along an axis >= 0."""
    return _concat(*arrays, dim=axis, out=out)


def _padded(x, ndim):
    """Inserts axes of size 1 before the first axis, so that the array has `ndim` axes."""
    return shaped(x, (1,) * (ndim - x.ndim) + x.shape)


def broadcast(x: ndarray, shape: Sequence[int]) -> ndarray:
    """Broadcasts an array to a shape."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    return _broadcast(_padded(x, len(shape)), shape=shape)


def aligned(arrays: Sequence[ndarray], shape: tuple[int, ...]) -> list[ndarray]:
    """Broadcasts arrays to their common shape.

    In a trace, the sizes come from a traced array, so that arrays which do not depend on the
    block's inputs are not captured with the sizes of the traced call."""
    traced = [x for x in arrays if x._in_trace]
    if not traced or all(x.shape == shape for x in arrays):
        return [broadcast(x, shape) for x in arrays]
    source = next((x for x in traced if x.shape == shape), traced[0])
    like = broadcast(source, shape)
    return [
        like
        if x is source
        else x
        if x.shape == shape
        else _broadcast_like(_padded(x, len(shape)), like)
        for x in arrays
    ]


def spread(x: ndarray, batch: tuple[int, ...], count: int, like: ndarray) -> ndarray:
    """Broadcasts the axes before the last `count` ones to the sizes in `batch`. In a trace, an
    array that does not depend on the block's inputs takes the sizes from `like` (see `aligned`)."""
    shape = (*batch, *x.shape[x.ndim - count :])
    if x.shape == shape or x._in_trace or not like._in_trace or like.shape[: len(batch)] != batch:
        return broadcast(x, shape)
    axes = tuple(range(len(batch)))
    return _broadcast_like(_padded(x, len(shape)), like, lhs_axes=axes, rhs_axes=axes)


def common_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape to which arrays of the given shapes are broadcast."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = ", ".join(map(str, shapes))
        raise MXNetValueError(f"arrays of shapes {text} cannot be broadcast together") from None


# --- Kinds and dtypes -----------------------------------------------------------------------------
def is_float(x: ndarray) -> bool:
    """True if the elements are real numbers."""
    return "float" in _core.dtype_name(x.dtype)


def real_of(x: ndarray) -> ndarray:
    """Converts integers and bools to float32."""
    return x if is_float(x) else x.astype("float32")


def check(function: str, **arrays: Any) -> None:
    """Raises TypeError if an argument is not an array of mx.np."""
    for name, x in arrays.items():
        if not isinstance(x, ndarray):
            kind, hint = type(x).__name__, ""
            if isinstance(x, NDArray):
                hint = "; convert it with as_np_ndarray()"
            elif isinstance(x, np.ndarray):
                kind, hint = "numpy.ndarray", "; use mx.np.array(x)"
            raise MXNetTypeError(f"{function}: {name} must be an array of mx.np, not {kind}{hint}")


def check_order(function: str, order: str) -> None:
    """Raises NotImplementedError for an order of elements other than C."""
    if order != "C":
        raise NotSupportedError(f"{function}: order must be 'C', not {order!r}")


def arrays_of(function: str, arrays: Any, name: str = "arrays") -> list[ndarray]:
    """Returns the arrays of a sequence, or the slices of one array along its first axis."""
    if not isinstance(arrays, (tuple, list, ndarray)):
        raise MXNetTypeError(f"{function}: {name} must be a sequence of arrays of mx.np")
    if isinstance(arrays, ndarray):
        arrays = [arrays[i] for i in range(arrays.shape[0])]
    if not arrays:
        raise MXNetValueError(f"{function}: {name} must have at least one array")
    for x in arrays:
        check(function, **{name: x})
    return list(arrays)


# --- Recorded arrays in lists ---------------------------------------------------------------------
def holds_recorded(values: Any) -> bool:
    """True for nested lists with an array that autograd records or hybridize() traces."""
    if not isinstance(values, (list, tuple)):
        return False
    if not _core.is_recording() and graph_breaks.thread.tracing is None:
        return False
    return any(
        value._in_trace or (_core.is_recording() and value._wants_gradient)
        if isinstance(value, NDArray)
        else holds_recorded(value)
        for value in values
    )


def refuse_recorded(name: str, key: str, values: Any) -> None:
    """Raises an error if values that would be read are nested lists of recorded arrays."""
    if holds_recorded(values):
        raise MXNetTypeError(
            f"{name}: {key} holds recorded arrays, whose gradients would be lost; use np.stack"
        )


# --- Constants ------------------------------------------------------------------------------------
def count_up(size: int, like: ndarray, dtype: Any = "int64") -> ndarray:
    """Returns 0, ..., size - 1 on the device of an array."""
    if size == 0:
        return _full(shape=(0,), value=0, dtype=dtype, ctx=like.context)
    return _arange(start=0, stop=size, dtype=dtype, ctx=like.context)


def filled(shape: Sequence[int], value: float, like: ndarray) -> ndarray:
    """Returns an array with the dtype and the device of another one, filled with a number."""
    return _full(shape=tuple(shape), value=value, dtype=like.dtype, ctx=like.context)


def constant(values: Any, context: Any, dtype: Any) -> ndarray:
    """Returns values of the host as an array on a device."""
    return _core.array(np.asarray(values), context, dtype).as_np_ndarray()


def operand(values: np.ndarray[Any, Any], like: ndarray, promotes: bool = False) -> ndarray:
    """Converts a NumPy array to the device of an array, as operators do (``mpg_py_operand``).
    Floats take the dtype of an array of floats; next to others, NumPy's default float64 becomes
    float32. Integers take the dtype of an array of integers that holds them, unless the function
    promotes its operands."""
    kind = values.dtype.kind
    if kind == "f" and is_float(like):
        return constant(values, like.context, like.dtype)
    if values.dtype == np.float64:
        return constant(values, like.context, "float32")
    if kind in "iu" and not is_float(like) and not promotes and _holds(like.dtype, values):
        return constant(values, like.context, like.dtype)
    dtype = WIDER.get(values.dtype, values.dtype)
    if dtype == "uint64" and _holds("int64", values):
        dtype = "int64"
    return constant(values, like.context, dtype)


def _holds(dtype, values):
    """True if a dtype of integers or bools holds the integers of a NumPy array."""
    low, high = (
        (0, 1) if np.dtype(dtype).kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    )
    return not values.size or (low <= values.min() and values.max() <= high)


def choose(condition: ndarray, x: ndarray | float, y: ndarray | float) -> ndarray:
    """Returns x if a condition is true and y otherwise, elementwise with broadcasting.

    At least one of x and y must be an array; a number is converted to its dtype. So are the values
    of a NumPy array if the dtype is floating or holds them.
    """
    like = x if isinstance(x, ndarray) else y
    if is_float(like):
        x, y = (
            constant(v, like.context, like.dtype) if isinstance(v, np.ndarray) else v
            for v in (x, y)
        )
    else:
        x, y = (operand(v, like) if isinstance(v, np.ndarray) else v for v in (x, y))
    parts = [value for value in (condition, x, y) if isinstance(value, ndarray)]
    shape = common_shape(*(value.shape for value in parts))
    condition, *arrays = aligned(parts, shape)
    left, right = (
        arrays.pop(0) if isinstance(v, ndarray) else filled(shape, v, like) for v in (x, y)
    )
    return _where(condition, left, right)


def of_values(name: str, inputs: Sequence[ndarray], **params: Any) -> list[ndarray]:
    """Calls an op whose shapes depend on values. Hybridized blocks are cut at this op."""
    if any(x._in_trace for x in inputs):
        return [x.as_np_ndarray() for x in dynamic(_core.OpCall(name, params), inputs)]
    result = op(name)(*inputs, **params)
    return [*result] if isinstance(result, (list, tuple)) else [result]


def into(result: ndarray, out: ndarray | None) -> ndarray:
    """Writes a result to `out` if given, and returns it. Shapes and dtypes must be equal."""
    if out is None:
        return result
    check("out", out=out)
    if out.shape != result.shape or out.dtype != result.dtype:
        raise MXNetValueError(
            f"out must have shape {result.shape} and dtype {_core.dtype_name(result.dtype)}, not "
            f"{out.shape} and {_core.dtype_name(out.dtype)}"
        )
    return op("_npi__copyto")(result, out=out)
