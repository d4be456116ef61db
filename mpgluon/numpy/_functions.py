"""Functions of mx.np that are ops: elementwise functions, reductions and changes of shape.

Most are made from tables (`_table`). The functions at the end combine ops, or run the calls of a
table's function that its op cannot.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
from typing import TYPE_CHECKING

import numpy as onp

from .. import _core
from .._core import NDArray, get_op, ndarray
from ..ndarray.functions import moveaxis as _moveaxis
from ._arguments import check, choose, into, is_float
from ._elementwise import ELEMENTWISE
from ._shapes import SHAPES
from ._table import make
from ._values import nonzero

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ._named import (
        concatenate,
        copy,
        divide,
        equal,
        flip,
        isinf,
        maximum,
        minimum,
        multiply,
        not_equal,
        repeat,
        reshape,
        rint,
        take,
        transpose,
    )

_product = get_op("_npi_dot")
_pad = get_op("_npi_pad")
_select = get_op("_npi_where")
_ARRAYS = (NDArray, onp.ndarray)
_PADDINGS = ("constant", "edge", "reflect", "symmetric", "maximum", "minimum")


def _clip(a, a_min=None, a_max=None, out=None):
    """Clips with one bound, or with arrays of bounds."""
    if a_min is None and a_max is None:
        raise ValueError("clip: a_min and a_max cannot both be None")
    if a_max is None:
        return maximum(a, a_min, out=out)
    return minimum(a if a_min is None else maximum(a, a_min), a_max, out=out)


def _concatenate(seq, axis=None, out=None):
    """Joins flattened arrays."""
    return concatenate([reshape(x, (-1,)) for x in seq], axis=0, out=out)


def _dot(a, b, out=None):
    """The product for numbers and for more than two dimensions of b."""
    if not getattr(a, "ndim", 0) or not getattr(b, "ndim", 0):
        return multiply(a, b, out=out)
    last = b.ndim - 2
    axes = (last, *range(last), b.ndim - 1)
    return _product(a, transpose(b, axes) if last > 0 else b, out=out)


def _flip(m, axis=None, out=None):
    """Reverses all dimensions."""
    return flip(m, tuple(range(m.ndim)), out) if m.ndim else copy(m, out)


@functools.cache
def _signature(name):
    return inspect.signature(_MADE[name])


def _kept(name):
    """Returns the function that runs a reduction over no axes, which only casts, or over the axis
    of an array without dimensions: a reduction over a new axis of size 1."""

    def reduce(*args, **kwargs):
        function = _MADE[name]
        given = _signature(name).bind(*args, **kwargs).arguments
        a, axis = given.pop("a"), given.pop("axis")
        given["keepdims"] = False
        return function(reshape(a, (*a.shape, 1)), -1 if axis == () else axis, **given)

    return reduce


def _located(name):
    """Returns the function that runs argmax or argmin along the axis of an array without
    dimensions."""

    def search(a, axis, out=None, *, keepdims=False):
        if axis == ():
            raise TypeError(f"{name}: axis must be an integer or None, got ()")
        return _MADE[name](reshape(a, (1,)), axis, out)

    return search


_located_max, _located_min = _located("argmax"), _located("argmin")
_kept_max, _kept_mean, _kept_min = _kept("max"), _kept("mean"), _kept("min")
_kept_prod, _kept_sum = _kept("prod"), _kept("sum")


def _take(a, indices, axis=None, mode="raise", out=None):
    """Selects elements of the flattened array."""
    return take(reshape(a, (-1,)), indices, axis=0, mode=mode, out=out)


_MADE = make("mpgluon.numpy", ELEMENTWISE + SHAPES, globals())

globals().update(_MADE)

__all__ = [
    *_MADE,
    "all",
    "any",
    "around",
    "floor_divide",
    "moveaxis",
    "pad",
    "round",
    "round_",
    "sometrue",
    "where",
]


def any(a: ndarray, axis: Any = None, keepdims: bool = False, out: ndarray | None = None) -> Any:
    """True if an element along the axes is true (not 0).

    Examples
    --------
    >>> np.any(np.array([[0, 1], [0, 0]]), axis=1)
    array([ True, False])
    """
    return not_equal(sum(not_equal(a, 0), axis=axis, keepdims=keepdims), 0, out=out)


sometrue: Callable[..., Any] = any


def all(a: ndarray, axis: Any = None, keepdims: bool = False, out: ndarray | None = None) -> Any:
    """True if all elements along the axes are true (not 0).

    Examples
    --------
    >>> np.all(np.array([[2, 1], [0, 0]]), axis=1)
    array([ True, False])
    """
    return equal(sum(equal(a, 0), axis=axis, keepdims=keepdims), 0, out=out)


def around(x: ndarray, decimals: int = 0, out: ndarray | None = None) -> Any:
    """The values rounded to a number of decimals. Halves are rounded to even numbers, and integers
    remain integers.

    Examples
    --------
    >>> np.around(np.array([1.25, 0.5, -1.5]))
    array([ 1.,  0., -2.])
    >>> np.around(np.array([1.26, 1.24]), decimals=1)
    array([1.3, 1.2])
    """
    if isinstance(x, (int, float, onp.number)) and out is None:
        return onp.around(x, decimals)
    if decimals == 0:
        return rint(x, out=out)
    check("around", x=x)
    if builtins.abs(decimals) > 308:
        raise ValueError(f"around: decimals must be from -308 to 308, got {decimals}")
    scale = 10.0 ** builtins.abs(decimals)
    if "int" in _core.dtype_name(x.dtype):
        if decimals > 0:
            return copy(x, out=out)
        result = rint(x.astype("float64") / scale) * scale
        return into(result.astype(x.dtype), out)
    if decimals < 0:
        return multiply(rint(x / scale), scale, out=out)
    return divide(rint(x * scale), scale, out=out)


round: Callable[..., Any] = around
round_: Callable[..., Any] = around


def floor_divide(x1: Any, x2: Any, out: ndarray | None = None) -> Any:
    """The quotient rounded down, ``x1 // x2``, of arrays or an array and a number.

    The result has the dtype of `mod`, so the quotient of integers is an exact integer. The quotient
    of two bools is int8.

    Examples
    --------
    >>> np.floor_divide(np.array([7, -7]), 2)
    array([ 3., -4.])
    """
    if not isinstance(x1, NDArray) and not isinstance(x2, NDArray):
        return onp.floor_divide(x1, x2)
    if isinstance(x1, onp.ndarray) or isinstance(x2, onp.ndarray):
        x1, x2 = map(_number_of, (x1, x2))
    if isinstance(x1, _ARRAYS) and x1.dtype == bool and isinstance(x2, _ARRAYS):
        x1 = x1.astype("int8") if x2.dtype == bool else x1
    rest = x1 % x2
    if is_float(rest):
        quotient = rint((x1 - rest) / x2, out=out)
        if isinstance(x2, float) and math.isinf(x2):  # the rest is infinite if signs differ
            return into(choose(isinf(rest), -1, quotient), out)
        return quotient
    # mx.np divides integers as float32, but mx.nd divides them exactly and rounds towards 0.
    x1, x2 = (_integers(x, rest) for x in (x1, x2))
    result = (_as_nd(x1) / _as_nd(x2)).as_np_ndarray()
    beyond = multiply(not_equal(rest, 0), not_equal(x1 - result * x2, rest))
    return into(result - beyond.astype(rest.dtype), out)


def _number_of(x):
    """Returns an array of NumPy without dimensions as a number."""
    return x.item() if isinstance(x, onp.ndarray) and not x.ndim else x


def _integers(x, like):
    """Converts an operand to the dtype of an array of integers, and a number to an integer."""
    if isinstance(x, onp.ndarray):
        return _core.array(x, like.ctx, like.dtype).as_np_ndarray()
    if isinstance(x, ndarray):
        return x.astype(like.dtype, copy=False)
    if not math.isfinite(x):
        raise OverflowError(f"floor_divide: an array of integers cannot be divided by or into {x}")
    return int(x)


def _as_nd(x):
    return x.as_nd_ndarray() if isinstance(x, ndarray) else x


def moveaxis(a: ndarray, source: int | Sequence[int], destination: int | Sequence[int]) -> ndarray:
    """Moves the dimensions `source` to the positions `destination`.

    Examples
    --------
    >>> np.moveaxis(np.zeros((2, 3, 4)), 0, 2).shape
    (3, 4, 2)
    """
    return _moveaxis(a, source, destination)


def where(condition: ndarray, x: Any = None, y: Any = None) -> Any:
    """The elements of x where the condition is true, and of y elsewhere, with broadcasting.

    x and y may be numbers, which take the dtype of the other one, or float32. Without x and y,
    returns a tuple of the indices of true elements.

    Examples
    --------
    >>> np.where(np.array([1, 0, 1]), np.array([1, 2, 3]), 0)
    array([1., 0., 3.])
    >>> np.where(np.array([0, 2]))
    (array([1], dtype=int64),)
    """
    if x is None and y is None:
        return nonzero(condition)
    if x is None or y is None:
        raise ValueError("where: expected both x and y, or neither")
    if isinstance(x, ndarray) and isinstance(y, ndarray) and x.shape == y.shape:
        if condition.shape == x.shape:
            return _select(condition, x, y)
    elif not isinstance(x, ndarray) and not isinstance(y, ndarray):
        x = _core.get_op("_npi__full")((), x, "float32", condition.ctx)
    return choose(condition, x, y)


def pad(x: ndarray, pad_width: Any, mode: str = "constant", **kwargs: Any) -> ndarray:
    """Pads the array.

    Parameters
    ----------
    x : ndarray
        The array.
    pad_width : int, pair, or a pair per dimension
        The numbers of elements added before and after.
    mode : {'constant', 'edge', 'reflect', 'symmetric', 'maximum', 'minimum'}
        The source of the new elements.
    constant_values : number
        The new elements for 'constant'; 0 by default.

    Examples
    --------
    >>> np.pad(np.array([1, 2]), (1, 2), constant_values=9)
    array([9., 1., 2., 9., 9.])
    """
    constant = kwargs.pop("constant_values", 0)
    if kwargs or mode not in _PADDINGS:
        what = next(iter(kwargs), f"mode {mode!r}")
        raise NotImplementedError(f"pad: {what} is not supported; supported modes: {_PADDINGS}")
    widths = onp.broadcast_to(onp.asarray(pad_width, dtype="int64"), (x.ndim, 2)).tolist()
    if mode == "constant":
        return _pad(x, mode, [width for pair in widths for width in pair], constant)
    for axis, (before, after) in enumerate(widths):
        if before or after:
            x = _pad_axis(x, axis, before, after, mode)
    return x


def _pad_axis(x, axis, before, after, mode):
    if mode in ("maximum", "minimum"):
        extreme = (max if mode == "maximum" else min)(x, axis=axis, keepdims=True)
        parts = [repeat(extreme, before, axis), x, repeat(extreme, after, axis)]
        return concatenate([part for part in parts if part.shape[axis]], axis=axis)
    indices = onp.pad(onp.arange(x.shape[axis]), (before, after), mode=mode)
    return take(x, _core.array(indices, x.ctx, "int64").as_np_ndarray(), axis=axis, mode="clip")
