"""Functions of mx.np for diagonals, triangles and indices of elements, composed of ops."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from .._core import MXNetValueError, ndarray
from ._arguments import (
    axis_of,
    check,
    check_order,
    choose,
    constant,
    count_up,
    flat,
    into,
    op,
    part,
    shape_of,
    shaped,
)

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "diag_indices_from",
    "diagflat",
    "diagonal",
    "trace",
    "tri",
    "tril",
    "tril_indices",
    "tril_indices_from",
    "triu",
    "triu_indices",
    "triu_indices_from",
    "unravel_index",
]

_arange = op("_npi__arange")
_diag = op("_npi_diag")
_full = op("_npi__full")
_sum = op("_npi_sum")
_unravel = op("_npi__unravel_index")


# --- Diagonals ------------------------------------------------------------------------------------
def diagonal(a: ndarray, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
    """Returns a diagonal of the matrices in two axes, as the last axis.

    Parameters
    ----------
    a : ndarray
        An array with at least two dimensions.
    offset : int
        The diagonal: 0 is the main one, positive ones are above it.
    axis1, axis2 : int
        The axes of the rows and of the columns.

    Raises
    ------
    ValueError
        If the array has fewer than two dimensions, or if the axes are equal or out of range.

    Source: numpy.diagonal

    Examples
    --------
    >>> x = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> mx.np.diagonal(x).asnumpy().tolist()
    [1.0, 4.0]
    """
    check("diagonal", a=a)
    if a.ndim < 2:
        raise MXNetValueError(f"diagonal: a must have at least 2 dimensions, not {a.ndim}")
    rows, columns = axis_of(axis1, a.ndim, "axis1"), axis_of(axis2, a.ndim, "axis2")
    if rows == columns:
        raise MXNetValueError(f"diagonal: axis1 and axis2 must differ, got {axis1} and {axis2}")
    return _diag(a, k=operator.index(offset), axis1=rows, axis2=columns)


def trace(
    a: ndarray, offset: int = 0, axis1: int = 0, axis2: int = 1, out: ndarray | None = None
) -> ndarray:
    """Sums a diagonal of the matrices in two axes.

    Parameters
    ----------
    a, offset, axis1, axis2
        As in `diagonal`.
    out : ndarray, optional
        The array that receives the result.

    Source: numpy.trace

    Examples
    --------
    >>> mx.np.trace(mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()).item()
    5.0
    """
    return into(_sum(diagonal(a, offset, axis1, axis2), axis=-1), out)


def diagflat(array: ndarray, k: int = 0) -> ndarray:
    """Returns a matrix of zeros with the elements of an array on diagonal `k`.

    Source: numpy.diagflat

    Examples
    --------
    >>> mx.np.diagflat(mx.nd.array([[1, 2]]).as_np_ndarray()).asnumpy().tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    check("diagflat", array=array)
    return _diag(flat(array), k=operator.index(k))


def diag_indices_from(arr: ndarray) -> tuple[ndarray, ...]:
    """Returns the indices of the main diagonal of an array whose axes have equal sizes.

    Returns
    -------
    tuple of ndarray
        A vector of int64 for each axis.

    Raises
    ------
    ValueError
        If the array has fewer than two dimensions, or if its sizes differ.

    Source: numpy.diag_indices_from

    Examples
    --------
    >>> x = mx.np.ones((2, 2))
    >>> [i.asnumpy().tolist() for i in mx.np.diag_indices_from(x)]
    [[0, 1], [0, 1]]
    """
    check("diag_indices_from", arr=arr)
    if arr.ndim < 2 or len({*arr.shape}) != 1:
        raise MXNetValueError(
            f"diag_indices_from: arr must have at least 2 dimensions of equal sizes, got the shape "
            f"{arr.shape}"
        )
    return (count_up(arr.shape[0], arr),) * arr.ndim


# --- Triangles ------------------------------------------------------------------------------------
def _lower(rows, columns, k, context):
    """Returns a mask of the elements on and below diagonal `k`."""
    if not rows or not columns:
        return _full(shape=(rows, columns), value=0, dtype="bool", ctx=context)
    i = _arange(start=k, stop=rows + k, dtype="int64", ctx=context)
    return shaped(i, (rows, 1)) >= _arange(start=0, stop=columns, dtype="int64", ctx=context)


def _triangle(name, m, k, lower):
    check(name, m=m)
    if not m.ndim:
        raise MXNetValueError(f"{name}: m must have at least one dimension")
    rows, columns = m.shape[-2:] if m.ndim > 1 else m.shape * 2
    k = operator.index(k)
    if lower:
        return choose(_lower(rows, columns, k, m.context), m, 0)
    return choose(_lower(rows, columns, k - 1, m.context), 0, m)


def tril(m: ndarray, k: int = 0) -> ndarray:
    """Replaces the elements above diagonal `k` of matrices by 0.

    Parameters
    ----------
    m : ndarray
        An array of shape ``(..., rows, columns)``. A vector is repeated as the rows of a matrix.
    k : int
        The diagonal: 0 is the main one, positive ones are above it.

    Raises
    ------
    ValueError
        If the array has no dimensions.

    Source: numpy.tril

    Examples
    --------
    >>> mx.np.tril(mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()).asnumpy().tolist()
    [[1.0, 0.0], [3.0, 4.0]]
    """
    return _triangle("tril", m, k, lower=True)


def triu(m: ndarray, k: int = 0) -> ndarray:
    """Replaces the elements below diagonal `k` of matrices by 0.

    Parameters
    ----------
    m, k
        As in `tril`.

    Source: numpy.triu

    Examples
    --------
    >>> mx.np.triu(mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()).asnumpy().tolist()
    [[1.0, 2.0], [0.0, 4.0]]
    """
    return _triangle("triu", m, k, lower=False)


def tri(
    N: int, M: int | None = None, k: int = 0, dtype: Any = "float32", ctx: Any = None
) -> ndarray:
    """Returns a matrix with 1 on and below diagonal `k` and with 0 above it.

    Parameters
    ----------
    N, M : int
        The numbers of rows and of columns; by default, they are equal.
    k : int
        The diagonal: 0 is the main one, positive ones are above it.
    dtype : dtype
        The dtype of the result.
    ctx : Context, optional
        The device, by default the current one.

    Source: numpy.tri

    Examples
    --------
    >>> mx.np.tri(2, 3).asnumpy().tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    N, k = operator.index(N), operator.index(k)
    return _lower(N, N if M is None else operator.index(M), k, ctx).astype(dtype)


def tril_indices(
    n: int, k: int = 0, m: int | None = None, ctx: Any = None
) -> tuple[ndarray, ndarray]:
    """Returns the indices of the elements on and below diagonal `k` of an ``(n, m)`` matrix.

    Returns
    -------
    tuple of ndarray
        The rows and the columns, as vectors of int64.

    Source: numpy.tril_indices

    Examples
    --------
    >>> [i.asnumpy().tolist() for i in mx.np.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    return _indices(np.tril_indices(n, k, m), ctx)


def triu_indices(
    n: int, k: int = 0, m: int | None = None, ctx: Any = None
) -> tuple[ndarray, ndarray]:
    """Returns the indices of the elements on and above diagonal `k` of an ``(n, m)`` matrix.

    Returns
    -------
    tuple of ndarray
        The rows and the columns, as vectors of int64.

    Source: numpy.triu_indices

    Examples
    --------
    >>> [i.asnumpy().tolist() for i in mx.np.triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    return _indices(np.triu_indices(n, k, m), ctx)


def _indices(places, ctx):
    rows, columns = (constant(place, ctx, "int64") for place in places)
    return rows, columns


def tril_indices_from(arr: ndarray, k: int = 0) -> tuple[ndarray, ndarray]:
    """Returns the indices of the elements on and below diagonal `k` of a matrix.

    Raises
    ------
    ValueError
        If the array is not a matrix.

    Source: numpy.tril_indices_from

    Examples
    --------
    >>> x = mx.np.ones((2, 2))
    >>> [i.asnumpy().tolist() for i in mx.np.tril_indices_from(x)]
    [[0, 1, 1], [0, 0, 1]]
    """
    rows, columns = _matrix_shape("tril_indices_from", arr)
    return tril_indices(rows, k, columns, arr.context)


def triu_indices_from(arr: ndarray, k: int = 0) -> tuple[ndarray, ndarray]:
    """Returns the indices of the elements on and above diagonal `k` of a matrix.

    Raises
    ------
    ValueError
        If the array is not a matrix.

    Source: numpy.triu_indices_from

    Examples
    --------
    >>> x = mx.np.ones((2, 2))
    >>> [i.asnumpy().tolist() for i in mx.np.triu_indices_from(x)]
    [[0, 0, 1], [0, 1, 1]]
    """
    rows, columns = _matrix_shape("triu_indices_from", arr)
    return triu_indices(rows, k, columns, arr.context)


def _matrix_shape(name, arr):
    check(name, arr=arr)
    if arr.ndim != 2:
        raise MXNetValueError(f"{name}: arr must have 2 dimensions, not {arr.ndim}")
    return arr.shape


def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Any, ...]:
    """Converts indices of the elements in C order to an index for each axis.

    Parameters
    ----------
    indices : int or ndarray of integers
        Indices of elements.
    shape : int or tuple of int
        The shape of the array that the indices refer to.
    order : {'C'}
        The order of the elements.

    Returns
    -------
    tuple
        For each axis, an array of the shape and dtype of `indices`, or an integer for an integer.

    Raises
    ------
    NotImplementedError
        If `order` is not ``"C"``.

    Source: numpy.unravel_index

    Examples
    --------
    >>> i = mx.nd.array([3, 5], dtype="int64").as_np_ndarray()
    >>> [x.asnumpy().tolist() for x in mx.np.unravel_index(i, (2, 3))]
    [[1, 1], [0, 2]]
    >>> [int(i) for i in mx.np.unravel_index(5, (2, 3))]
    [1, 2]
    """
    check_order("unravel_index", order)
    shape = shape_of(shape)
    if not isinstance(indices, ndarray):
        return np.unravel_index(indices, shape)
    result = _unravel(flat(indices), shape=shape)
    return tuple(shaped(part(result, 0, i, i + 1), indices.shape) for i in range(len(shape)))
