"""Functions of mx.np that create arrays, and NumPy's constants and dtypes."""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING

import numpy as onp
from numpy import (
    bool_,
    dtype,
    e,
    euler_gamma,
    finfo,
    float16,
    float32,
    float64,
    iinfo,
    inf,
    int8,
    int32,
    int64,
    nan,
    newaxis,
    pi,
    uint8,
)

from .. import _core
from .._core import NDArray, get_op, ndarray
from ._arguments import axis_of, check, holds_recorded, is_float
from ._table import make

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .._core import Context
    from .._internal.types import ArrayLike, DType, ShapeLike

CREATION = """
zeros(shape, dtype=None, order:_='C', ctx=None, device:ctx=None) -> _zeros
An array of zeros. The defaults are float32 and the current context.
>>> np.zeros((2,))
array([0., 0.])

ones(shape, dtype=None, order:_='C', ctx=None, device:ctx=None) -> _ones
An array of ones. The defaults are float32 and the current context.
>>> np.ones((2,), dtype='int32')
array([1, 1], dtype=int32)

arange(start, stop=None, step=None, dtype=None, ctx=None, device:ctx=None) -> _arange
Numbers from start to before stop, or from 0 to before start if stop is None, as float32. The
step is 1 by default.
>>> np.arange(3)
array([0., 1., 2.])

identity(n:N, dtype=None, ctx=None, device:ctx=None) -> _eye
The square matrix of n rows with ones on the diagonal and zeros elsewhere.
>>> np.identity(2)
array([[1., 0.],
       [0., 1.]])
"""

_MADE = make("mpgluon.numpy", CREATION, {})
globals().update(_MADE)

if TYPE_CHECKING:
    from ._named import arange, broadcast_to, expand_dims, floor, full_like, power, stack, zeros
else:
    from ._functions import broadcast_to, expand_dims, floor, full_like, power, stack

# MXNet's names of NumPy's constants.
NAN: float = nan
NaN: float = nan
NINF, NZERO, PINF, PZERO = -inf, -0.0, inf, 0.0
bool = bool_

__all__ = [
    *_MADE,
    "NAN",
    "NINF",
    "NZERO",
    "NaN",
    "PINF",
    "PZERO",
    "array",
    "asarray",
    "bool",
    "bool_",
    "dtype",
    "e",
    "empty",
    "empty_like",
    "euler_gamma",
    "eye",
    "finfo",
    "float16",
    "float32",
    "float64",
    "full",
    "iinfo",
    "indices",
    "inf",
    "int32",
    "int64",
    "int8",
    "linspace",
    "logspace",
    "meshgrid",
    "nan",
    "newaxis",
    "pi",
    "uint8",
]

_linspace = get_op("_npi__linspace")
_eye = get_op("_npi__eye")
_full = get_op("_npi__full")
_copy = get_op("_npi__copy")


def _check_order(function, order):
    if order != "C":
        raise NotImplementedError(f"{function}: order must be 'C', got {order!r}")


def array(
    object: ArrayLike | NDArray,
    dtype: DType | None = None,
    ctx: Context | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Returns a new array with the values of `object`.

    Arrays of NumPy and mx.np keep their dtype unless another is given; other values become
    float32. Arrays in lists are read, and stacked if they are recorded or traced. `device` is
    another name of `ctx`.

    Examples
    --------
    >>> np.array([[1, 2], [3, 4]])
    array([[1., 2.],
           [3., 4.]])
    >>> np.array([1, 2], dtype="int32")
    array([1, 2], dtype=int32)
    """
    ctx = device if ctx is None else ctx
    if isinstance(object, NDArray):
        if not isinstance(object, ndarray):
            raise ValueError(
                "array: the object is an array of mx.nd; use as_np_ndarray(), or asnumpy()"
            )
        result = _copy(object) if dtype is None else object.astype(dtype)
        return result if ctx is None else result.as_in_context(ctx)
    if dtype is None:
        dtype = object.dtype if isinstance(object, (onp.ndarray, onp.generic)) else float32
    if holds_recorded(object):
        return _stacked(object, dtype, _core.current_context() if ctx is None else ctx)
    return _core.array(object, ctx, dtype).as_np_ndarray()


def _stacked(values, dtype, ctx):
    """Returns nested lists, which hold arrays that are recorded or traced, as an array."""
    if holds_recorded(values):
        return stack([_stacked(value, dtype, ctx) for value in values])
    return asarray(values, dtype, ctx)


def asarray(
    object: ArrayLike | NDArray,
    dtype: DType | None = None,
    ctx: Context | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Returns `object` as an array, without a copy if it is one of mx.np already.

    Examples
    --------
    >>> x = np.array([1, 2])
    >>> np.asarray(x) is x
    True
    """
    ctx = device if ctx is None else ctx
    if not isinstance(object, ndarray):
        return array(object, dtype, ctx)
    result = object if dtype is None else object.astype(dtype, copy=False)
    return result if ctx is None else result.as_in_context(ctx)


def empty(
    shape: ShapeLike,
    dtype: DType | None = None,
    order: str = "C",
    ctx: Context | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Returns an array whose values are not set.

    Examples
    --------
    >>> np.empty((2, 3)).shape
    (2, 3)
    """
    _check_order("empty", order)
    ctx = device if ctx is None else ctx
    return _core.empty(shape, ctx, float32 if dtype is None else dtype).as_np_ndarray()


def empty_like(
    prototype: ndarray,
    dtype: DType | None = None,
    order: str = "C",
    subok: builtins.bool = False,
    shape: ShapeLike | None = None,
) -> ndarray:
    """Returns an array whose values are not set, with the shape and dtype of another array.

    Examples
    --------
    >>> np.empty_like(np.zeros((2, 3))).shape
    (2, 3)
    """
    _check_order("empty_like", order)
    check("empty_like", prototype=prototype)
    if subok:
        raise NotImplementedError("empty_like: subok must be False, got True")
    if shape is None:
        return full_like(prototype, 0, dtype)
    return empty(shape, prototype.dtype if dtype is None else dtype, ctx=prototype.ctx)


def full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: DType | None = None,
    order: str = "C",
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Returns an array of one value, or of the values of an array that is broadcast.

    The default dtype is bool for a bool, the array's for an array, and float32 otherwise.

    Examples
    --------
    >>> np.full((2,), 3)
    array([3., 3.])
    >>> np.full((2,), True)
    array([ True,  True])
    """
    _check_order("full", order)
    ctx = device if ctx is None else ctx
    if isinstance(fill_value, NDArray):
        result = broadcast_to(asarray(fill_value, dtype, ctx), shape)
        return result if out is None else _copy(result, out=out)
    if dtype is None:
        dtype = bool_ if isinstance(fill_value, (builtins.bool, bool_)) else float32
    whole = "int" in _core.dtype_name(dtype if out is None else out.dtype)
    if whole and isinstance(fill_value, float) and not math.isfinite(fill_value):
        raise ValueError(f"full: integers cannot be {fill_value}")
    if out is not None:
        return _full(shape, fill_value, out.dtype, out.ctx, out=out)
    return _full(shape, fill_value, dtype, ctx)


def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DType | None = None,
    ctx: Context | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Returns ones on diagonal `k` of a matrix of N rows and M columns, and zeros elsewhere.

    M is N by default. The default dtype is float32.

    Examples
    --------
    >>> np.eye(2)
    array([[1., 0.],
           [0., 1.]])
    """
    ctx = device if ctx is None else ctx
    columns = N if M is None else M
    if N == 0 or columns == 0:  # 0 columns mean N in the op
        return zeros((N, columns), dtype, ctx=ctx)
    return _eye(N, columns, k, ctx, float32 if dtype is None else dtype)


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: builtins.bool = True,
    retstep: builtins.bool = False,
    dtype: DType | None = None,
    axis: int = 0,
    ctx: Context | None = None,
    *,
    device: Context | None = None,
) -> Any:
    """Returns `num` numbers from start to stop at equal distances, as float32. Integer dtypes
    round down.

    With ``endpoint=False``, stop is the number after the last one. With `retstep`, returns the
    array and the distance. Arrays `start` and `stop` give ranges along a new dimension `axis`.

    Examples
    --------
    >>> np.linspace(0, 1, 5)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    >>> np.linspace(0, 1, 5, endpoint=False, retstep=True)[1]
    0.2
    """
    ctx = device if ctx is None else ctx
    if num < 0:
        raise ValueError(f"linspace: num must be at least 0, got {num}")
    parts = num - 1 if endpoint else num
    dtype = float32 if dtype is None else dtype
    # Integers round down, as in NumPy. The op would round towards 0.
    whole = "int" in _core.dtype_name(dtype)
    if not isinstance(start, NDArray) and not isinstance(stop, NDArray):
        step = (stop - start) / parts if parts > 0 else nan
        result = _linspace(start, stop, num, endpoint, ctx, float64 if whole else dtype)
    else:
        start, stop = (
            x.astype(float64) if isinstance(x, NDArray) and not is_float(x) else x
            for x in (start, stop)
        )
        difference = stop - start
        step = difference / parts if parts > 0 else difference * nan
        numbers = [start + difference * (i / parts if parts > 0 else 0.0) for i in range(num)]
        if num:
            result = stack(numbers, axis=axis)
        else:
            axis = axis_of(axis, difference.ndim + 1)
            shape = (*difference.shape[:axis], 0, *difference.shape[axis:])
            result = _full(shape, 0, dtype=difference.dtype, ctx=difference.ctx)
    result = (floor(result) if whole else result).astype(dtype, copy=False)
    return (result, step) if retstep else result


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: builtins.bool = True,
    base: float = 10.0,
    dtype: DType | None = None,
    axis: int = 0,
    ctx: Context | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Returns powers of `base`, whose exponents are ``linspace(start, stop, num, endpoint)``.

    Examples
    --------
    >>> np.logspace(0, 2, 3)
    array([  1.,  10., 100.])
    """
    exponents = linspace(start, stop, num, endpoint, axis=axis, ctx=ctx, device=device)
    result = power(base, exponents)
    return result if dtype is None else result.astype(dtype, copy=False)


def indices(
    dimensions: Sequence[int],
    dtype: DType | None = None,
    ctx: Context | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Returns the indices of the elements of an array, one array per dimension, as int32.

    Examples
    --------
    >>> np.indices((2, 2))
    array([[[0, 0],
            [1, 1]],
    <BLANKLINE>
           [[0, 1],
            [0, 1]]], dtype=int32)
    """
    ctx = device if ctx is None else ctx
    dtype = int32 if dtype is None else dtype
    if not dimensions:
        return empty((0,), dtype, ctx=ctx)
    grids = meshgrid(*(arange(n, dtype=dtype, ctx=ctx) for n in dimensions), indexing="ij")
    return stack(grids)


def meshgrid(
    *xi: ndarray,
    copy: builtins.bool = True,
    sparse: builtins.bool = False,
    indexing: str = "xy",
) -> list[ndarray]:
    """Returns arrays of coordinates on a grid, from arrays of coordinates along its axes.

    `indexing` is 'xy' if the first array varies along the second dimension, and 'ij' if each array
    varies along its own dimension. With `sparse`, the arrays keep size 1 along other dimensions.

    Examples
    --------
    >>> x, y = np.meshgrid(np.array([1, 2, 3]), np.array([4, 5]))
    >>> x
    array([[1., 2., 3.],
           [1., 2., 3.]])
    >>> y
    array([[4., 4., 4.],
           [5., 5., 5.]])
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    count = len(xi)
    places = list(range(count))
    if indexing == "xy" and count > 1:
        places[:2] = 1, 0
    arrays = []
    for x, place in zip(xi, places):
        x = x.reshape((-1,))
        for axis in range(count):
            if axis != place:
                x = expand_dims(x, axis)
        arrays.append(x)
    if sparse:
        return [_copy(x) for x in arrays] if copy else arrays
    shape = [0] * count
    for x, place in zip(arrays, places):
        shape[place] = x.shape[place]
    return [broadcast_to(x, tuple(shape)) for x in arrays]
