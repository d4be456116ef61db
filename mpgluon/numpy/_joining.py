"""Functions of mx.np that join and split arrays, composed of ops."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING

import numpy as np

from .._core import MXNetValueError, ndarray
from ._arguments import arrays_of, axis_of, check, flat, joined, op, part, parts_of, shaped
from ._shaping import atleast_1d, atleast_2d, atleast_3d

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = [
    "append",
    "array_split",
    "column_stack",
    "dsplit",
    "dstack",
    "hsplit",
    "hstack",
    "row_stack",
    "split",
    "vsplit",
    "vstack",
]

_split = op("_npi__split_v2")
_MOST_SECTIONS = 512  # of one call of the op


# --- Joining --------------------------------------------------------------------------------------
def append(arr: ndarray, values: ndarray, axis: int | None = None) -> ndarray:
    """Joins two arrays along an axis; by default, joins their elements to a vector.

    Parameters
    ----------
    arr, values : ndarray
        Arrays of equal dtypes, and of equal sizes along all axes except `axis`.
    axis : int, optional
        The axis along which the arrays are joined.

    Raises
    ------
    ValueError
        If the axis is out of range.

    Source: numpy.append

    Examples
    --------
    >>> x = mx.nd.array([[1, 2]]).as_np_ndarray()
    >>> mx.np.append(x, x).asnumpy().tolist()
    [1.0, 2.0, 1.0, 2.0]
    >>> mx.np.append(x, x, axis=0).shape
    (2, 2)
    """
    check("append", arr=arr, values=values)
    if axis is None:
        return joined([flat(arr), flat(values)], 0)
    return joined([arr, values], axis_of(axis, arr.ndim))


def vstack(arrays: Sequence[ndarray], out: ndarray | None = None) -> ndarray:
    """Joins arrays along the first axis; vectors become rows.

    Parameters
    ----------
    arrays : sequence of ndarray
        Arrays of equal dtypes, and of equal sizes along all axes except the first.
    out : ndarray, optional
        The array that receives the result.

    Source: numpy.vstack

    Examples
    --------
    >>> x = mx.nd.array([1, 2]).as_np_ndarray()
    >>> mx.np.vstack([x, x]).asnumpy().tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    return joined([atleast_2d(x) for x in arrays_of("vstack", arrays)], 0, out)


def row_stack(arrays: Sequence[ndarray]) -> ndarray:
    """Alias of `vstack`.

    Source: numpy.vstack

    Examples
    --------
    >>> x = mx.nd.array([1, 2]).as_np_ndarray()
    >>> mx.np.row_stack([x, x]).shape
    (2, 2)
    """
    return vstack(arrays)


def hstack(arrays: Sequence[ndarray]) -> ndarray:
    """Joins arrays along the second axis; vectors are joined along their only axis.

    Parameters
    ----------
    arrays : sequence of ndarray
        Arrays of equal dtypes, and of equal sizes along all other axes.

    Source: numpy.hstack

    Examples
    --------
    >>> x = mx.nd.array([1, 2]).as_np_ndarray()
    >>> mx.np.hstack([x, x]).asnumpy().tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    parts = [atleast_1d(x) for x in arrays_of("hstack", arrays)]
    return joined(parts, 0 if parts[0].ndim == 1 else 1)


def dstack(arrays: Sequence[ndarray]) -> ndarray:
    """Joins arrays along the third axis, after `atleast_3d`.

    Source: numpy.dstack

    Examples
    --------
    >>> x = mx.nd.array([1, 2]).as_np_ndarray()
    >>> mx.np.dstack([x, x]).asnumpy().tolist()
    [[[1.0, 1.0], [2.0, 2.0]]]
    """
    return joined([atleast_3d(x) for x in arrays_of("dstack", arrays)], 2)


def column_stack(tup: Sequence[ndarray]) -> ndarray:
    """Joins arrays along the second axis; vectors become columns.

    Source: numpy.column_stack

    Examples
    --------
    >>> x = mx.nd.array([1, 2]).as_np_ndarray()
    >>> mx.np.column_stack([x, x]).asnumpy().tolist()
    [[1.0, 1.0], [2.0, 2.0]]
    """
    parts = arrays_of("column_stack", tup, "tup")
    return joined([x if x.ndim > 1 else shaped(x, (x.size, 1)) for x in parts], 1)


# --- Splitting ------------------------------------------------------------------------------------
def _parts(name, ary, indices_or_sections, axis, equal):
    """Splits an array into a list of parts. If `equal`, all parts must have the same size."""
    axis = axis_of(axis, ary.ndim)
    size = ary.shape[axis]
    if np.iterable(indices_or_sections):
        cuts = [slice(int(i)).indices(size)[1] for i in indices_or_sections]
        starts = [0, *itertools.accumulate(cuts, max)]
        if starts[1:] != cuts:  # an index below its predecessor gives an empty part
            ends = [*cuts, size]
            return [part(ary, axis, i, max(i, j)) for i, j in zip([0, *cuts], ends)]
    else:
        sections = operator.index(indices_or_sections)
        if sections <= 0:
            raise MXNetValueError(f"{name}: sections must be at least 1, not {sections}")
        each, more = divmod(size, sections)
        if equal and more:
            raise MXNetValueError(
                f"{name}: an axis of size {size} cannot be split into {sections} equal parts"
            )
        # Exported blocks split other sizes into as many parts.
        if not more and sections <= _MOST_SECTIONS:
            parts = _split(ary, indices=(), axis=axis, sections=sections)
            return parts if isinstance(parts, list) else [parts]
        counts = [each + 1] * more + [each] * (sections - more)
        starts = [0, *itertools.accumulate(counts[:-1])]
    return parts_of(ary, starts, axis)


def split(ary: ndarray, indices_or_sections: Any, axis: int = 0) -> list[ndarray]:
    """Splits an array along an axis into equal parts, or at the given indices.

    Parameters
    ----------
    ary : ndarray
        The array.
    indices_or_sections : int or sequence of int
        The number of equal parts, or the indices at which all parts except the first start.
    axis : int
        The axis.

    Raises
    ------
    ValueError
        If the array cannot be split into equal parts, or if the axis is out of range.

    Source: numpy.split

    Examples
    --------
    >>> x = mx.nd.array([1, 2, 3]).as_np_ndarray()
    >>> [part.asnumpy().tolist() for part in mx.np.split(x, [1])]
    [[1.0], [2.0, 3.0]]
    """
    check("split", ary=ary)
    return _parts("split", ary, indices_or_sections, axis, equal=True)


def array_split(ary: ndarray, indices_or_sections: Any, axis: int = 0) -> list[ndarray]:
    """Splits an array along an axis into parts, which may differ in size.

    Parameters
    ----------
    ary, axis
        As in `split`.
    indices_or_sections : int or sequence of int
        The number of parts, the first ones larger by 1 if necessary; or the indices at
        which all parts except the first start.

    Raises
    ------
    ValueError
        If the number of parts is not positive, or if the axis is out of range.

    Source: numpy.array_split

    Examples
    --------
    >>> x = mx.nd.array([1, 2, 3]).as_np_ndarray()
    >>> [part.asnumpy().tolist() for part in mx.np.array_split(x, 2)]
    [[1.0, 2.0], [3.0]]
    """
    check("array_split", ary=ary)
    return _parts("array_split", ary, indices_or_sections, axis, equal=False)


def _split_along(name, ary, indices_or_sections, axis, ndim):
    check(name, ary=ary)
    if ary.ndim < ndim:
        raise MXNetValueError(
            f"{name}: the array must have at least {ndim} dimensions, not {ary.ndim}"
        )
    return _parts(name, ary, indices_or_sections, axis, equal=True)


def hsplit(ary: ndarray, indices_or_sections: Any) -> list[ndarray]:
    """Splits an array along the second axis, or a vector along its only axis.

    Parameters
    ----------
    ary : ndarray
        The array.
    indices_or_sections : int or sequence of int
        The number of equal parts, or the indices at which all parts except the first start.

    Raises
    ------
    ValueError
        If the array has no dimensions, or if it cannot be split into equal parts.

    Source: numpy.hsplit

    Examples
    --------
    >>> x = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> [part.asnumpy().tolist() for part in mx.np.hsplit(x, 2)]
    [[[1.0], [3.0]], [[2.0], [4.0]]]
    """
    check("hsplit", ary=ary)
    return _split_along("hsplit", ary, indices_or_sections, 1 if ary.ndim > 1 else 0, 1)


def vsplit(ary: ndarray, indices_or_sections: Any) -> list[ndarray]:
    """Splits an array with at least two dimensions along the first axis.

    Parameters
    ----------
    ary, indices_or_sections
        As in `hsplit`.

    Raises
    ------
    ValueError
        If the array has fewer than two dimensions, or if it cannot be split into equal parts.

    Source: numpy.vsplit

    Examples
    --------
    >>> x = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> [part.asnumpy().tolist() for part in mx.np.vsplit(x, 2)]
    [[[1.0, 2.0]], [[3.0, 4.0]]]
    """
    return _split_along("vsplit", ary, indices_or_sections, 0, 2)


def dsplit(ary: ndarray, indices_or_sections: Any) -> list[ndarray]:
    """Splits an array with at least three dimensions along the third axis.

    Parameters
    ----------
    ary, indices_or_sections
        As in `hsplit`.

    Raises
    ------
    ValueError
        If the array has fewer than three dimensions, or if it cannot be split into equal parts.

    Source: numpy.dsplit

    Examples
    --------
    >>> [part.shape for part in mx.np.dsplit(mx.nd.ones((2, 1, 4)).as_np_ndarray(), [1])]
    [(2, 1, 1), (2, 1, 3)]
    """
    return _split_along("dsplit", ary, indices_or_sections, 2, 3)
