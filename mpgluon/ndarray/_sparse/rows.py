"""The ways in which sparse arrays compute: with indices on the host, and rows where these lie.

Indices are small beside the rows, and the shapes that follow from them have to be known, so sorting
and matching them is NumPy's work; rows are taken, added up and put back by ops.
"""

from __future__ import annotations

import numpy as np

from ... import _core

_op = _core.get_op
_take, _add_rows = _op("take"), _op("_backward_take")


def index_array(values, ctx):
    """Indices from NumPy as an array of int64."""
    return _core.array(np.ascontiguousarray(values, np.int64), ctx=ctx, dtype="int64")


def take_rows(array, rows):
    """The rows of these numbers, an NDArray of int64."""
    if not rows.shape[0]:
        return _core.empty((0, *array.shape[1:]), array.context, array.dtype)
    return _take(array, rows)


def add_rows(rows, numbers, count):
    """An array of `count` rows in which each of `rows` is added to the row of its number."""
    shape = (count, *rows.shape[1:])
    if not rows.shape[0]:
        return _op("_full")(shape=shape, value=0, ctx=rows.context, dtype=rows.dtype)
    return _add_rows(rows, numbers, shape=shape)


def set_rows(array, rows, numbers):
    """Overwrites rows of `array`, whose numbers are all different."""
    if numbers.shape[0]:
        _op("_set_rows")(array, rows, numbers.reshape((1, -1)), shape=array.shape, out=array)


def sum_equal(rows, numbers, ctx):
    """(sums, numbers): the rows of equal numbers (NumPy's) added up, ascending by number."""
    unique, places = np.unique(numbers, return_inverse=True)
    if len(unique) == len(numbers):
        if (np.diff(numbers) > 0).all():
            return rows, unique
        return take_rows(rows, index_array(np.argsort(numbers), ctx)), unique
    return add_rows(rows, index_array(places.reshape(-1), ctx), len(unique)), unique


def occurring(numbers, size):
    """The numbers, below `size`, that occur, ascending; and the place among them of each."""
    if size > 16 * len(numbers) + 1024:
        used, places = np.unique(numbers, return_inverse=True)
        return used, places.reshape(-1)
    found = np.zeros(size, bool)
    found[numbers] = True
    return np.flatnonzero(found), (np.cumsum(found) - 1)[numbers]


def row_numbers(indptr):
    """The row of each element of a csr matrix."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def pointers(rows, count):
    """The reverse: `indptr` for elements whose rows ascend."""
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]).astype(np.int64)
