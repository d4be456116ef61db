"""Synchronous kvstore over ranks. Each rank has a bitwise identical replica of all values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _core, autograd, ndarray as nd
from ..._core import NDArray
from ...kvstore import KVStore
from .. import ranks
from ..transport import default_transport
from . import gpus, own_arrays
from .two_bits import TwoBits, decompressed

if TYPE_CHECKING:
    from ..types import Keys


class DistKVStore(TwoBits, KVStore):
    """Key-value store that is replicated on all ranks: ``mx.kv.create('dist_sync')``.

    All ranks call `init`, `push` and the methods built on them with the same keys in the same
    order. Rank 0 provides the initial values. Pushed arrays are summed over the devices of each
    rank and then over the ranks, in rank order. On every rank, the sum replaces the value or is
    passed to the updater. There are no servers.
    """

    spans_ranks = True

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        # {key: GPU indices of the communicator that sums its arrays, or None for host memory}
        self._gpus: dict[Any, gpus.Indices | None] = {}
        ranks.count()

    @property
    def rank(self) -> int:
        return ranks.own()

    @property
    def num_workers(self) -> int:
        return ranks.count()

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        ranks.barrier()

    def _barrier(self):
        self.barrier()

    def _first_values(self, arrays):
        for array in arrays:
            own_arrays.check_own(array, "init")
        dense = [number for number, array in enumerate(arrays) if array.stype == "default"]
        values = own_arrays.copies_of(0, [arrays[number] for number in dense])
        found = dict(zip(dense, values))
        for number, array in enumerate(arrays):
            if number not in found:
                rows = own_arrays.rows_of(0, array)
                found[number] = nd.zeros_like(array) if rows is None else rows
        return [found[number] for number in range(len(arrays))]

    def _sums(self, keys, arrays):
        """Sums the pushed arrays of the keys over all ranks."""
        for array in arrays:
            own_arrays.check_own(array, "push")
        return self.add_up(keys, arrays)

    def add_up(self, keys: Keys, arrays: list[Any], in_place: bool = False) -> list[Any]:
        """Sums arrays over all ranks, compressed if gradient compression is set.

        `keys` has the key of each array. The key selects the residual and the communicator. With
        `in_place`, the sums of dense arrays may be written into `arrays`.
        """
        dense = [number for number, array in enumerate(arrays) if array.stype == "default"]
        if self._threshold is None:
            sums = own_arrays.add_up(
                [arrays[number] for number in dense],
                in_place,
                self._gpus_of([(keys[number], arrays[number].context) for number in dense]),
                [keys[number] for number in dense],
            )
        else:
            with autograd.pause():
                sums = [self._add_up_bits(key, array) for key, array in zip(keys, arrays)]
        found = dict(zip(dense, sums))
        return [
            found[number] if number in found else own_arrays.add_up_rows(array)
            for number, array in enumerate(arrays)
        ]

    def _gpus_of(self, places):
        """Returns the GPU indices of the communicator for each (key, context), or None for host
        memory. The ranks agree on a key's communicator at the key's first sum, based on the
        contexts of its arrays at that time."""
        asked = [(key, ctx) for key, ctx in places if key not in self._gpus]
        if asked:
            found = gpus.joined([ctx for _, ctx in asked], default_transport())
            self._gpus.update((key, where) for (key, _), where in zip(asked, found))
        return [self._gpus[key] for key, _ in places]

    def _add_up_bits(self, key, array):
        packed, sums = self._compressed(key, array), None
        for rank in range(ranks.count()):
            there = own_arrays.copies_of(rank, [packed])[0]
            part = decompressed(there, array.shape, self._threshold)
            sums = part if sums is None else sums + part
        return sums


def broadcast_values(rank: int, arrays: list[NDArray]) -> None:
    """Copies the values of the arrays of `rank` into the arrays of all ranks (broadcast)."""
    values = own_arrays.copies_of(rank, arrays)
    _core.at_once(*[(value.copyto, array) for array, value in zip(arrays, values)])


def sums_over_ranks(store: Any, groups: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
    """Replaces the gradients in lists of (name, gradient, weight) by their sums over ranks. Returns
    the lists unchanged unless the store spans ranks."""
    if not isinstance(store, DistKVStore):
        return groups
    sums = {}
    for place, group in groups.items():
        names, grads, weights = (list(part) for part in zip(*group))
        sums[place] = list(zip(names, store.add_up(names, grads), weights))
    return sums


__all__ = ["DistKVStore", "broadcast_values", "sums_over_ranks"]
