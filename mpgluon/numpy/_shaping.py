"""Functions of mx.np that rearrange arrays, composed of ops."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

from .._core import MXNetValueError, NDArray, ndarray
from ._arguments import (
    axes_of,
    axis_of,
    broadcast,
    check,
    check_order,
    common_shape,
    filled,
    flat,
    is_float,
    joined,
    op,
    operand,
    part,
    refuse_recorded,
    shape_of,
    shaped,
    transposed,
)

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_arrays",
    "fliplr",
    "flipud",
    "ravel",
    "resize",
    "roll",
    "rot90",
]

_reverse = op("_npi_reverse")
_sum = op("_npi_sum")
_tile = op("_npi_tile")


# --- Dimensions -----------------------------------------------------------------------------------
def _at_least(name, arrays, ndim, shape_of):
    """Reshapes arrays with fewer than `ndim` dimensions. `shape_of` maps their shapes."""
    for x in arrays:
        check(name, arys=x)
    made = [x if x.ndim >= ndim else shaped(x, shape_of(x.shape)) for x in arrays]
    return made[0] if len(made) == 1 else made


def atleast_1d(*arys: ndarray) -> ndarray | list[ndarray]:
    """Converts arrays without dimensions to shape ``(1,)``.

    Returns
    -------
    ndarray or list of ndarray
        An array for one argument, otherwise a list.

    Source: numpy.atleast_1d

    Examples
    --------
    >>> mx.np.atleast_1d(mx.nd.array([[1, 2]]).as_np_ndarray().sum()).shape
    (1,)
    """
    return _at_least("atleast_1d", arys, 1, lambda shape: (1,))


def atleast_2d(*arys: ndarray) -> ndarray | list[ndarray]:
    """Inserts axes of size 1 before the axes of arrays with fewer than two dimensions.

    Returns
    -------
    ndarray or list of ndarray
        An array for one argument, otherwise a list.

    Source: numpy.atleast_2d

    Examples
    --------
    >>> mx.np.atleast_2d(mx.nd.array([1, 2]).as_np_ndarray()).shape
    (1, 2)
    """
    return _at_least("atleast_2d", arys, 2, lambda shape: (1, *shape) if shape else (1, 1))


def atleast_3d(*arys: ndarray) -> ndarray | list[ndarray]:
    """Converts arrays with fewer than three dimensions: shape ``(n,)`` becomes ``(1, n, 1)``, and
    ``(m, n)`` becomes ``(m, n, 1)``.

    Returns
    -------
    ndarray or list of ndarray
        An array for one argument, otherwise a list.

    Source: numpy.atleast_3d

    Examples
    --------
    >>> mx.np.atleast_3d(mx.nd.array([1, 2]).as_np_ndarray()).shape
    (1, 2, 1)
    """
    return _at_least("atleast_3d", arys, 3, lambda shape: (*(1,) * (2 - len(shape)), *shape, 1))


def ravel(x: ndarray, order: str = "C") -> ndarray:
    """Returns the elements as a vector, in C order.

    Raises
    ------
    NotImplementedError
        If `order` is not ``"C"``.

    Source: numpy.ravel

    Examples
    --------
    >>> mx.np.ravel(mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()).asnumpy().tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    check("ravel", x=x)
    check_order("ravel", order)
    return op("_npi__reshape_exact")(x, shape=(x.size,))


def broadcast_arrays(*args: Any) -> list[ndarray]:
    """Broadcasts arrays and numbers to their common shape.

    Floats take the dtype of the first array if it has floats, and otherwise become float32.
    Integers take its dtype if it has integers and holds them, and otherwise become int64.

    Raises
    ------
    ValueError
        If the shapes do not match.

    Source: numpy.broadcast_arrays

    Examples
    --------
    >>> x, y = (mx.nd.ones(shape).as_np_ndarray() for shape in ((3, 1), (1, 2)))
    >>> [z.shape for z in mx.np.broadcast_arrays(x, y)]
    [(3, 2), (3, 2)]
    """
    first = next((x for x in args if isinstance(x, ndarray)), None)
    arrays = []
    for x in args:
        if first is not None and not isinstance(x, NDArray):
            refuse_recorded("broadcast_arrays", "args", x)
            x = operand(np.asarray(x), first)
        check("broadcast_arrays", args=x)
        arrays.append(x)
    shape = common_shape(*(x.shape for x in arrays))
    return [broadcast(x, shape) for x in arrays]


def resize(a: ndarray, new_shape: Any) -> ndarray:
    """Repeats or drops elements so that they fill a shape, in C order.

    Parameters
    ----------
    a : ndarray
        The array. If it is empty, the result is filled with 0.
    new_shape : int or tuple of int
        The shape of the result.

    Source: numpy.resize

    Examples
    --------
    >>> x = mx.nd.array([1, 2, 3]).as_np_ndarray()
    >>> mx.np.resize(x, (2, 2)).asnumpy().tolist()
    [[1.0, 2.0], [3.0, 1.0]]
    """
    check("resize", a=a)
    shape = shape_of(new_shape)
    if min(shape, default=0) < 0:
        raise MXNetValueError(f"resize: sizes must not be negative, got {new_shape}")
    size = math.prod(shape)
    if not a.size:
        nothing = filled(shape, 0, a)
        return nothing + _sum(a) if is_float(a) else nothing  # so that backward gives zeros
    x = flat(a)
    if size > x.size:
        x = _tile(x, reps=(-(-size // x.size),))
    return shaped(part(x, 0, 0, size), shape)


# --- Moving elements ------------------------------------------------------------------------------
def flipud(m: ndarray) -> ndarray:
    """Reverses the first axis.

    Raises
    ------
    ValueError
        If the array has no dimensions.

    Source: numpy.flipud

    Examples
    --------
    >>> mx.np.flipud(mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()).asnumpy().tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    """
    return _flipped("flipud", m, 0)


def fliplr(m: ndarray) -> ndarray:
    """Reverses the second axis.

    Raises
    ------
    ValueError
        If the array has fewer than two dimensions.

    Source: numpy.fliplr

    Examples
    --------
    >>> mx.np.fliplr(mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()).asnumpy().tolist()
    [[2.0, 1.0], [4.0, 3.0]]
    """
    return _flipped("fliplr", m, 1)


def _flipped(name, m, axis):
    check(name, m=m)
    if m.ndim <= axis:
        raise MXNetValueError(
            f"{name}: the array must have at least {axis + 1} dimensions, not {m.ndim}"
        )
    return _reverse(m, axis=(axis,))


def rot90(m: ndarray, k: int = 1, axes: tuple[int, int] = (0, 1)) -> ndarray:
    """Rotates an array by 90 degrees, `k` times, in the plane of two axes.

    Parameters
    ----------
    m : ndarray
        An array with at least two dimensions.
    k : int
        The number of rotations, from the first of `axes` to the second.
    axes : tuple of int
        Two different axes.

    Raises
    ------
    ValueError
        If the axes are equal or out of range.

    Source: numpy.rot90

    Examples
    --------
    >>> mx.np.rot90(mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()).asnumpy().tolist()
    [[2.0, 4.0], [1.0, 3.0]]
    """
    check("rot90", m=m)
    if len(axes) != 2:
        raise MXNetValueError(f"rot90: axes must be two axes, not {axes}")
    first, second = axes_of(tuple(axes), m.ndim, "axes")
    k = operator.index(k) % 4
    if k == 0:
        return op("_npi__copy")(m)
    if k == 2:
        return _reverse(m, axis=(first, second))
    order = [*range(m.ndim)]
    order[first], order[second] = second, first
    if k == 1:
        return transposed(_reverse(m, axis=(second,)), order)
    return _reverse(transposed(m, order), axis=(second,))


def roll(a: ndarray, shift: Any, axis: Any = None) -> ndarray:
    """Moves elements along axes; those that leave the array at its end reappear at its start.

    Parameters
    ----------
    a : ndarray
        The array.
    shift : int or tuple of int
        The number of positions for each axis of `axis`.
    axis : int or tuple of int, optional
        The axes. By default, the elements move in C order, as in a vector.

    Raises
    ------
    ValueError
        If an axis is out of range, or if the numbers of shifts and axes differ.

    Source: numpy.roll

    Examples
    --------
    >>> x = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> mx.np.roll(x, 1).asnumpy().tolist()
    [[4.0, 1.0], [2.0, 3.0]]
    >>> mx.np.roll(x, 1, axis=1).asnumpy().tolist()
    [[2.0, 1.0], [4.0, 3.0]]
    """
    check("roll", a=a)
    if axis is None:
        total = sum(shift) if np.iterable(shift) else shift
        return shaped(roll(flat(a), total, 0), a.shape)
    axes = axis if np.iterable(axis) else (axis,)
    shifts = shift if np.iterable(shift) else (shift,)
    if len(axes) != len(shifts) and 1 not in (len(axes), len(shifts)):
        raise MXNetValueError(f"roll: shift {shift} and axis {axis} must have equal lengths")
    count = max(len(axes), len(shifts))
    result = a
    for place, distance in zip(axes * (count // len(axes)), tuple(shifts) * (count // len(shifts))):
        place = axis_of(place, a.ndim)
        size = a.shape[place]
        cut = -operator.index(distance) % size if size else 0
        if cut:
            result = joined([part(result, place, cut, size), part(result, place, 0, cut)], place)
    return op("_npi__copy")(a) if result is a else result
