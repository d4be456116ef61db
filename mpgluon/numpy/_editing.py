"""Functions of mx.np that insert, delete and replace elements, composed of ops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import MXNetIndexError, MXNetTypeError, MXNetValueError, ndarray
from ._arguments import (
    axis_of,
    broadcast,
    check,
    choose,
    common_shape,
    constant,
    count_up,
    filled,
    flat,
    joined,
    of_values,
    op,
    part,
    refuse_recorded,
    shaped,
    transposed,
)

if TYPE_CHECKING:
    from typing import Any

__all__ = ["delete", "insert", "take_along_axis"]

_argsort = op("_npi_argsort")
_scatter = op("_npi__scatter_set_nd")
_squeeze = op("_npi_squeeze")
_pick = op("_npi_pick")
_take = op("_npi_take")


def _flat_axis(name, arr, axis):
    """Returns the array and the axis >= 0 along which it is edited."""
    check(name, arr=arr)
    return (flat(arr), 0) if axis is None else (arr, axis_of(axis, arr.ndim))


def _host_indices(name, obj, size):
    """Returns indices >= 0 of a slice, an integer or a sequence, with their dimensions."""
    if isinstance(obj, slice):
        return np.arange(*obj.indices(size))
    places = np.asarray(obj)
    if places.dtype.kind == "b":
        return np.flatnonzero(places)
    if not places.size:
        return places.astype("int64")
    if places.dtype.kind not in "iu":
        raise MXNetTypeError(
            f"{name}: obj must be a slice, integers or an array of them, not {obj!r}"
        )
    return np.where(places < 0, places + size, places)


def _check_range(name, places, obj, size, last):
    if ((places < 0) | (places > last)).any():
        raise MXNetIndexError(f"{name}: index {obj!r} is out of range for an axis of size {size}")


def _wrapped(places, size):
    """Converts an array of indices to a vector of indices >= 0."""
    places = flat(places).astype("int64", copy=False)
    return choose(places < 0, places + size, places)


# --- Insertion ------------------------------------------------------------------------------------
def insert(arr: ndarray, obj: Any, values: Any, axis: int | None = None) -> ndarray:
    """Inserts values before given indices of an axis.

    Parameters
    ----------
    arr : ndarray
        The array.
    obj : int, slice, sequence of int or ndarray
        The indices, which refer to `arr`. Values for equal indices keep their order.
    values : ndarray or float
        The values, which are broadcast and converted to the dtype of `arr`.
    axis : int, optional
        The axis; by default, `arr` is flattened.

    Raises
    ------
    IndexError
        If an index is out of range. Indices in an ndarray are not checked.
    TypeError
        If `obj` does not have integers.

    Source: numpy.insert

    Examples
    --------
    >>> x = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> mx.np.insert(x, 1, 9, axis=1).asnumpy().tolist()
    [[1.0, 9.0, 2.0], [3.0, 9.0, 4.0]]
    >>> mx.np.insert(x, [0, 4], 7).asnumpy().tolist()
    [7.0, 1.0, 2.0, 3.0, 4.0, 7.0]
    """
    x, axis = _flat_axis("insert", arr, axis)
    size = x.shape[axis]
    if isinstance(values, ndarray):
        values = values.astype(x.dtype, copy=False)
    else:
        refuse_recorded("insert", "values", values)
        given = np.asarray(values)
        values = filled((), values, x) if not given.ndim else constant(given, x.context, x.dtype)
    if isinstance(obj, ndarray):
        if _core.dtype_name(obj.dtype) == "bool":
            raise MXNetTypeError("insert: obj must have integers, not bools")
        count, places = obj.size, None
        single = count == 1 and not obj.ndim
    else:
        places = _host_indices("insert", obj, size)
        _check_range("insert", places, obj, size, size)
        count, single = places.size, not places.ndim
        places = places.reshape(-1)
    values = shaped(values, (1,) * (x.ndim - values.ndim) + values.shape)
    if single:  # the first axis of the values is the one of the new elements
        values = transposed(values, [*range(1, axis + 1), 0, *range(axis + 1, values.ndim)])
    if count == 1 and size:
        count = values.shape[axis]
        places = None if places is None else places.repeat(count)
    values = broadcast(values, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    if places is not None and len({*places.tolist()}) == 1:
        place = int(places[0])
        return joined([part(x, axis, 0, place), values, part(x, axis, place, size)], axis)
    # Sort by index: new elements have even keys, and old ones have odd keys.
    both = joined([values, x], axis)
    if places is not None:
        keys = np.concatenate([places * 2, np.arange(size) * 2 + 1])
        order = constant(np.argsort(keys, kind="stable"), x.context, "int64")
    else:
        new = broadcast(_wrapped(obj, size) * 2, (count,))
        keys = joined([new, count_up(size, x) * 2 + 1], 0)
        order = _argsort(keys, axis=0, dtype="int64")
    return _take(both, order, axis=axis)


# --- Deletion -------------------------------------------------------------------------------------
def delete(arr: ndarray, obj: Any, axis: int | None = None) -> ndarray:
    """Removes the elements or slices at given indices of an axis.

    Parameters
    ----------
    arr : ndarray
        The array.
    obj : int, slice, sequence of int or ndarray
        The indices; or a mask, which is true for the elements to remove. The number of different
        indices in an ndarray determines the shape of the result.
    axis : int, optional
        The axis; by default, `arr` is flattened.

    Raises
    ------
    IndexError
        If an index is out of range. Those in an ndarray are ignored.
    TypeError
        If `obj` does not have integers.

    Source: numpy.delete

    Examples
    --------
    >>> x = mx.nd.array([[1, 2, 3], [4, 5, 6]]).as_np_ndarray()
    >>> mx.np.delete(x, 1, axis=1).asnumpy().tolist()
    [[1.0, 3.0], [4.0, 6.0]]
    >>> mx.np.delete(x, [0, -1]).asnumpy().tolist()
    [2.0, 3.0, 4.0, 5.0]
    """
    x, axis = _flat_axis("delete", arr, axis)
    size = x.shape[axis]
    if isinstance(obj, ndarray):
        return _take(x, _kept(obj, size, x), axis=axis) if size else op("_npi__copy")(x)
    places = _host_indices("delete", obj, size)
    _check_range("delete", places, obj, size, size - 1)
    kept = np.delete(np.arange(size), places)
    if not places.size:
        return op("_npi__copy")(x)
    if not kept.size or kept[-1] - kept[0] + 1 == kept.size:
        first = int(kept[0]) if kept.size else 0
        return part(x, axis, first, first + kept.size)
    if size - kept.size == 1:
        place = int(places.reshape(-1)[0])
        return joined([part(x, axis, 0, place), part(x, axis, place + 1, size)], axis)
    return _take(x, constant(kept, x.context, "int64"), axis=axis)


def _kept(obj, size, like):
    """Returns the indices that are not in an array of indices, or the false ones of a mask."""
    if _core.dtype_name(obj.dtype) == "bool":
        if obj.shape != (size,):
            raise MXNetValueError(f"delete: a mask of shape {obj.shape} must have shape ({size},)")
        keep = obj == 0
    else:
        places = _wrapped(obj, size)
        places = choose((places < 0) + (places >= size), size, places)  # a last, unused element
        keep = filled((size + 1,), 1, like).astype("int64")
        index = shaped(places, (1, places.size))
        keep = part(_scatter(keep, places * 0, index, shape=(size + 1,)), 0, 0, size)
    return _squeeze(of_values("_npi_nonzero", [keep])[0], axis=(1,))


# --- Selection ------------------------------------------------------------------------------------
def take_along_axis(arr: ndarray, indices: ndarray, axis: int | None) -> ndarray:
    """Selects elements along an axis by an array of indices of the same number of dimensions.

    Parameters
    ----------
    arr : ndarray
        The array.
    indices : ndarray of integers
        The indices along `axis`; other axes are broadcast with `arr`. Negative ones count from the
        end.
    axis : int or None
        The axis; None flattens `arr`, and `indices` must be a vector.

    Raises
    ------
    ValueError
        If the numbers of dimensions differ, or if the axis is out of range.

    Source: numpy.take_along_axis

    Examples
    --------
    >>> x = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> i = mx.nd.array([[1], [0]], dtype="int64").as_np_ndarray()
    >>> mx.np.take_along_axis(x, i, axis=1).asnumpy().tolist()
    [[2.0], [3.0]]
    """
    x, axis = _flat_axis("take_along_axis", arr, axis)
    check("take_along_axis", indices=indices)
    if indices.ndim != x.ndim:
        raise MXNetValueError(
            f"take_along_axis: indices must have {x.ndim} dimensions, not {indices.ndim}"
        )
    count, size = indices.shape[axis], x.shape[axis]
    rest = common_shape(*(y.shape[:axis] + y.shape[axis + 1 :] for y in (x, indices)))
    before, after = math.prod(rest[:axis]), math.prod(rest[axis:])
    x = broadcast(x, (*rest[:axis], size, *rest[axis:]))
    places = broadcast(indices, (*rest[:axis], count, *rest[axis:])).astype("int64", copy=False)
    shape = places.shape
    places = choose(places < 0, places + size, places)
    if count == 1 and size:
        return _pick(x, places, axis=axis, keepdims=True)
    # Indices of the flattened array, because the gradient of take adds up equal indices.
    places = shaped(places, (before, count, after))
    rows = shaped(count_up(before, x) * size, (before, 1, 1))
    places = (places + rows) * after + count_up(after, x)
    return _take(flat(x), shaped(places, shape), axis=0)
