"""Arrays that each rank has by itself, on devices that name no rank: their sums, and copies of
those of one rank. All ranks call each function, with arrays of the same shapes and dtypes.

Sums are queued beside what the devices do (``csrc/comm/rank_sums.c``). A copy goes to the others by
way of the CPU device that names its rank (``csrc/device/ranks``).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from .. import _core, autograd, ndarray as nd
from .._core import NDArray, dtype_name
from ..base import MXNetError, itemsize
from ..context import cpu, gpu
from ..ndarray.sparse import RowSparseNDArray, row_sparse_array
from . import count, own
from .gpus import Indices

_TOGETHER = 4 << 20  # bytes; smaller arrays travel together
_ALONE = 1 << 20  # bytes; larger ones are summed where they are
_MOST = 2048  # arrays that travel together; an op takes at most 4096


def check_own(array: NDArray, what: str) -> None:
    """MXNetError for an array on a device that names a rank."""
    if array.context.rank is not None:
        raise MXNetError(
            f"{what}: the array is on {array.context}, which is one device for all ranks; use a "
            "device that names no rank, such as cpu(0), which each rank has"
        )


def brought_to_all(array: NDArray) -> NDArray:
    """The array on a device of this process. All ranks call it if the array's device names one."""
    return array if array.context.rank is None else array.as_in_context(cpu(0))


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
        if size >= _TOGETHER or len(numbers) == _MOST:
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


def _queue_sums(parts, names):
    """Queues sums: (array, its sum, the GPUs between which they are summed, or None for arrays on
    CPU devices). The last ones first: backward finishes these first. Small ones travel together.
    All ranks compare `names`, a hash."""
    open_ = {}
    for array, total, indices in reversed(parts):
        size = _bytes(array)
        if size >= _ALONE:
            _core.sum_over_ranks([array], [total], indices, names)
            continue
        kind = dtype_name(array.dtype), indices, array.context if indices is None else None
        arrays, totals, before = open_.pop(kind, ([], [], 0))
        arrays.append(array)
        totals.append(total)
        if before + size >= _TOGETHER or len(arrays) == _MOST:
            _core.sum_over_ranks(arrays, totals, indices, names)
        else:
            open_[kind] = arrays, totals, before + size
    for (_, indices, _), (arrays, totals, _) in open_.items():
        _core.sum_over_ranks(arrays, totals, indices, names)


def _brought(array, indices):
    """The array where it is summed."""
    if indices is not None:
        return array.as_in_context(gpu(indices[own()]))
    return array.as_in_context(cpu(0)) if array.context.device_type == "gpu" else array


def add_up(
    arrays: Sequence[NDArray],
    in_place: bool = False,
    gpus: Sequence[Indices | None] | None = None,
    keys: Sequence[Any] = (),
) -> list[NDArray]:
    """The sums over ranks, in the order of ranks, of each array; on all ranks, in new arrays where
    the arrays are, or `in_place`. gpus: for each array the GPUs between which it is summed, of
    which this rank's gets it if it is elsewhere (`gpus.joined`); others are brought to the host.
    keys: names of what is summed, which all ranks compare."""
    if count() == 1:
        return list(arrays) if in_place else [array.copy() for array in arrays]
    where = [None] * len(arrays) if gpus is None else list(gpus)
    with autograd.pause():
        here = [_brought(array, indices) for array, indices in zip(arrays, where)]
        sums = [
            there
            if in_place or there is not array
            else nd.empty(array.shape, ctx=array.context, dtype=array.dtype)
            for there, array in zip(here, arrays)
        ]
        names = zlib.crc32(repr(list(keys)).encode()) if keys else 0
        _queue_sums(list(zip(here, sums, where)), names)
        if not in_place:
            return [total.as_in_context(array.context) for total, array in zip(sums, arrays)]
        moved = [pair for pair in zip(sums, arrays) if pair[0] is not pair[1]]
        if moved:
            _core.at_once(*[(total.copyto, array) for total, array in moved])
        return list(arrays)


def copies_of(rank: int, arrays: Sequence[NDArray]) -> list[NDArray]:
    """New arrays with what that rank has in the arrays."""
    if not 0 <= rank < count():
        raise MXNetError(f"rank {rank} is out of range: there are {count()} ranks")
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
