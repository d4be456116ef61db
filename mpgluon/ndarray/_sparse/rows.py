"""Primitives of sparse arrays: index arithmetic on the host, row operations on the arrays' device.

NumPy sorts and matches the indices on the host, because they determine the shapes of results and
are small compared with the rows. Ops gather, sum and scatter the rows.
"""

from __future__ import annotations

import numpy as np

from ... import _core

_op = _core.get_op
_take, _add_rows = _op("take"), _op("_backward_take")


def index_array(values, ctx):
    """Converts NumPy indices to an int64 array."""
    return _core.array(np.ascontiguousarray(values, np.int64), ctx=ctx, dtype="int64")


def take_rows(array, rows):
    """Takes the rows with these indices, an NDArray of int64."""
    if not rows.shape[0]:
        return _core.empty((0, *array.shape[1:]), array.context, array.dtype)
    return _take(array, rows)


def add_rows(rows, numbers, count):
    """Scatter-add: returns an array of `count` rows in which each row of `rows` is added at its
    index in `numbers`."""
    shape = (count, *rows.shape[1:])
    if not rows.shape[0]:
        return _op("_full")(shape=shape, value=0, ctx=rows.context, dtype=rows.dtype)
    return _add_rows(rows, numbers, shape=shape)


def set_rows(array, rows, numbers):
    """Overwrites rows of `array`; the row indices must be distinct."""
    if numbers.shape[0]:
        _op("_set_rows")(array, rows, numbers.reshape((1, -1)), shape=array.shape, out=array)


def sum_equal(rows, numbers, ctx):
    """Sums rows with equal indices (a NumPy array); returns (sums, ascending indices)."""
    unique, places = np.unique(numbers, return_inverse=True)
    if len(unique) == len(numbers):
        if (np.diff(numbers) > 0).all():
            return rows, unique
        return take_rows(rows, index_array(np.argsort(numbers), ctx)), unique
    return add_rows(rows, index_array(places.reshape(-1), ctx), len(unique)), unique


def occurring(numbers, size):
    """Returns the distinct values of `numbers`, ascending, and the position of each number among
    them. All numbers must be below `size`."""
    if size > 16 * len(numbers) + 1024:
        used, places = np.unique(numbers, return_inverse=True)
        return used, places.reshape(-1)
    found = np.zeros(size, bool)
    found[numbers] = True
    return np.flatnonzero(found), (np.cumsum(found) - 1)[numbers]


def row_numbers(indptr):
    """Returns the row of each element of a csr matrix."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def pointers(rows, count):
    """Returns `indptr` for elements with ascending rows, the inverse of `row_numbers`."""
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]).astype(np.int64)
