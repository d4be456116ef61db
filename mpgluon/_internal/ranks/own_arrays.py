"""All-reduce and broadcast of arrays on devices that name no rank. Each rank has its own array. All
ranks call each function with arrays of the same shapes and dtypes.

Sums are queued concurrently with the work of the devices (``csrc/comm/rank_sums.c``). A broadcast
copies the array to the CPU device that names the source rank, and from there to all ranks
(``csrc/device/ranks``).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from ... import _core, autograd, ndarray as nd
from ..._core import NDArray, dtype_name
from ...base import MXNetError, itemsize
from ...context import cpu, gpu
from ...ndarray.sparse import RowSparseNDArray, row_sparse_array
from . import count, own
from .gpus import Indices

_TOGETHER = 4 << 20  # maximum bytes of a bucket of small arrays
_ALONE = 1 << 20  # arrays of at least this many bytes are summed without a bucket
_MOST = 2048  # maximum number of arrays in a bucket, because an op has at most 4096 inputs


def check_own(array: NDArray, what: str) -> None:
    """Raises an MXNetError if the array is on a device that names a rank."""
    if array.context.rank is not None:
        raise MXNetError(
            f"{what}: the array is on {array.context}, which is one device for all ranks; use a "
            "device that names no rank, such as cpu(0), which each rank has"
        )


def brought_to_all(array: NDArray) -> NDArray:
    """Returns the array on a device of this process. All ranks call it if the array's device names
    a rank."""
    return array if array.context.rank is None else array.as_in_context(cpu(0))


def _bytes(array):
    return array.size * itemsize(array.dtype)


def _grouped(arrays):
    """Splits arrays into buckets by dtype. Returns lists of indices."""
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
    """Applies `work` to flattened buckets of the arrays. Returns new arrays with the shapes and
    devices of the given arrays."""
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
    """Queues sums over ranks, with small arrays in buckets.

    `parts` lists tuples (array, destination of its sum, GPU indices by rank or None for CPU
    devices). Sums are queued in reverse order, because backward finishes the last gradients first.
    All ranks compare `names`, a hash.
    """
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
    """Returns the array on the device that sums it."""
    if indices is not None:
        return array.as_in_context(gpu(indices[own()]))
    return array.as_in_context(cpu(0)) if array.context.device_type == "gpu" else array


def add_up(
    arrays: Sequence[NDArray],
    in_place: bool = False,
    gpus: Sequence[Indices | None] | None = None,
    keys: Sequence[Any] = (),
) -> list[NDArray]:
    """Sums each array over all ranks (all-reduce), by default in rank order.

    Parameters
    ----------
    arrays : sequence of NDArray
        This rank's arrays.
    in_place : bool, default False
        Whether to write the sums into `arrays`. By default, returns new arrays on the same devices.
    gpus : sequence of tuple or None
        The communicator of each array, from `gpus.joined`. The array is moved to this rank's GPU of
        the communicator. An array without a communicator is summed in host memory.
    keys : sequence
        Names of the arrays, which all ranks compare.
    """
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
    """Returns new arrays with the values that `rank` has in its arrays (broadcast)."""
    if not 0 <= rank < count():
        raise MXNetError(f"rank {rank} is out of range: there are {count()} ranks")
    if count() == 1:
        return [array.copy() for array in arrays]
    return _together(arrays, lambda flat: flat.as_in_context(cpu(0, rank=rank)).copyto(cpu(0)))


def rows_of(rank: int, array: RowSparseNDArray) -> RowSparseNDArray | None:
    """Returns a copy of the row_sparse array of `rank`, or None if it has no rows. Waits for the
    number of rows."""
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
    """Sums row_sparse arrays over all ranks, in rank order."""
    parts = [rows_of(rank, array) for rank in range(count())]
    parts = [part for part in parts if part is not None]
    if not parts:
        return row_sparse_array(array.shape, ctx=array.context, dtype=array.dtype)
    return parts[0] if len(parts) == 1 else nd.add_n(*parts)
