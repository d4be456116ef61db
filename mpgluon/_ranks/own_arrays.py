"""Arrays that each rank has by itself, on devices that name no rank: their sums, and copies of
those of one rank. All ranks call each function, with arrays of the same shapes and dtypes.

An array goes to the others by way of the CPU device that names its rank (``csrc/device/ranks``).
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import _core, autograd, ndarray as nd
from .._core import NDArray, dtype_name
from ..base import MXNetError, itemsize
from ..context import cpu
from ..ndarray.sparse import RowSparseNDArray, row_sparse_array
from . import count, own

_TOGETHER = 4 << 20  # bytes; smaller arrays travel together
_WHOLE = 16 << 10  # bytes; smaller ones are summed by all ranks instead of in parts


def check_own(array: NDArray, what: str) -> None:
    """MXNetError for an array on a device that names a rank."""
    if array.context.rank is not None:
        raise MXNetError(
            f"{what}: the array is on {array.context}, which is one device for all ranks; take a "
            "device that names no rank, such as cpu(0), of which each rank has its own"
        )


def _bytes(array):
    return array.size * itemsize(array.dtype)


def _grouped(arrays):
    """Numbers of arrays that travel together."""
    open_, groups = {}, []
    for number, array in enumerate(arrays):
        dtype = dtype_name(array.dtype)
        numbers, size = open_.pop(dtype, ([], 0))
        numbers.append(number)
        size += _bytes(array)
        if size >= _TOGETHER:
            groups.append(numbers)
        else:
            open_[dtype] = numbers, size
    return groups + [numbers for numbers, _ in open_.values()]


def _together(arrays, work):
    """`work` on arrays, joined into flat ones; new arrays of their shapes, where they are."""
    results = [None] * len(arrays)
    with autograd.pause():
        for numbers in _grouped(arrays):
            flat = [arrays[number].reshape((-1,)).as_in_context(cpu(0)) for number in numbers]
            flat = work(flat[0] if len(flat) == 1 else nd.concat(*flat, dim=0))
            begin = 0
            for number in numbers:
                array = arrays[number]
                part = flat[begin : begin + array.size].reshape(array.shape)
                begin += array.size
                results[number] = part.as_in_context(array.context)
    return results


def _run(kind, arrays, contexts, root=None):
    return _core.collective(kind, arrays, contexts, 0, 0, root, "auto", "local")


def _sum_flat(flat):
    ranks = [cpu(0, rank=rank) for rank in range(count())]
    parts = [flat.as_in_context(rank) for rank in ranks]
    if _bytes(flat) < _WHOLE or flat.size < len(ranks):
        return nd.add_n(*[part.as_in_context(cpu(0)) for part in parts])
    sums = _run("reduce_scatter", parts, ranks)
    return nd.concat(*[part.as_in_context(cpu(0)) for part in sums], dim=0)


def add_up(arrays: Sequence[NDArray]) -> list[NDArray]:
    """The sums over ranks, in the order of ranks, of each array; on all ranks, where the array is.
    Small arrays travel together."""
    if count() == 1:
        return [array.copy() for array in arrays]
    return _together(arrays, _sum_flat)


def copies_of(rank: int, arrays: Sequence[NDArray]) -> list[NDArray]:
    """New arrays with what that rank has in the arrays."""
    if not 0 <= rank < count():
        raise MXNetError(f"there is no rank {rank}: there are {count()}")
    if count() == 1:
        return [array.copy() for array in arrays]
    return _together(arrays, lambda flat: flat.as_in_context(cpu(0, rank=rank)).copyto(cpu(0)))


def rows_of(rank: int, array: RowSparseNDArray) -> RowSparseNDArray | None:
    """The row_sparse array of that rank; None where it has no rows. Waits for the number of
    rows."""
    mine = rank == own()
    stored = nd.array([array.indices.shape[0] if mine else 0], dtype="int64")
    rows = int(copies_of(rank, [stored])[0].asscalar())
    if rows == 0:
        return None
    data, indices = (
        (array.data, array.indices)
        if mine
        else (
            nd.zeros((rows, *array.shape[1:]), ctx=array.context, dtype=array.dtype),
            nd.zeros((rows,), ctx=array.context, dtype="int64"),
        )
    )
    data, indices = copies_of(rank, [data])[0], copies_of(rank, [indices])[0]
    return row_sparse_array((data, indices), array.shape, array.context, array.dtype)


def add_up_rows(array: RowSparseNDArray) -> RowSparseNDArray:
    """The sum over ranks of row_sparse arrays, in the order of ranks."""
    parts = [rows_of(rank, array) for rank in range(count())]
    parts = [part for part in parts if part is not None]
    if not parts:
        return row_sparse_array(array.shape, ctx=array.context, dtype=array.dtype)
    return parts[0] if len(parts) == 1 else nd.add_n(*parts)
