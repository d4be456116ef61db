"""The kvstore of several ranks: each has a copy of all values, with the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _core, _ranks, autograd, ndarray as nd
from .._core import NDArray, dtype_name
from ..base import MXNetError
from ..kvstore import KVStore
from . import own_arrays

if TYPE_CHECKING:
    from .._types import Keys

_PER_BYTE = (1.0, 4.0, 16.0, 64.0)  # four numbers of 2 bits in a byte


class DistKVStore(KVStore):
    """Values by key, of all ranks together: ``mx.kv.create('dist_sync')``.

    All ranks call `init`, `push` and the methods made of them, with the same keys in the same
    order. The first values are those of rank 0. What the ranks push is summed, for each rank over
    its devices first, then in the order of ranks. The sum replaces the value or goes through the
    updater, on every rank alike: there are no servers.
    """

    spans_ranks = True

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._threshold: float | None = None  # of gradients of 2 bits
        self._residuals: dict[Any, NDArray] = {}  # by key, what was rounded away
        _ranks.count()

    @property
    def rank(self) -> int:
        return _ranks.own()

    @property
    def num_workers(self) -> int:
        return _ranks.count()

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        _ranks.barrier()

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
        """The sums over ranks of what this rank pushes for the keys."""
        for array in arrays:
            own_arrays.check_own(array, "push")
        return self.add_up(keys, arrays)

    def add_up(self, keys: Keys, arrays: list[Any], in_place: bool = False) -> list[Any]:
        """The sums over ranks of arrays, compressed if that was asked for; the keys tell apart
        what they are of. in_place: those of dense arrays may be these arrays."""
        dense = [number for number, array in enumerate(arrays) if array.stype == "default"]
        if self._threshold is None:
            sums = own_arrays.add_up([arrays[number] for number in dense], in_place)
        else:
            if len(dense) < len(arrays):
                raise MXNetError("row_sparse arrays are not compressed: push dense ones")
            with autograd.pause():
                sums = [self._add_up_bits(key, array) for key, array in zip(keys, arrays)]
        found = dict(zip(dense, sums))
        return [
            found[number] if number in found else own_arrays.add_up_rows(array)
            for number, array in enumerate(arrays)
        ]

    def set_gradient_compression(self, compression_params: dict[str, Any] | None) -> None:
        """Rounds what is pushed from now on to -threshold, 0 or threshold, 2 bits a number; what
        is rounded away is added to the next push of the key.

        Parameters
        ----------
        compression_params : dict
            ``{'type': '2bit', 'threshold': 0.5}``; the type 'none' compresses nothing.

        Raises
        ------
        MXNetError
            When the type is another, or the threshold not above 0.
        """
        params = dict(compression_params or {})
        kind, threshold = params.pop("type", "none"), float(params.pop("threshold", 0.5))
        if kind not in ("none", "2bit") or params:
            raise MXNetError(
                "set_gradient_compression: takes the type 'none' or '2bit' and a threshold, not "
                f"{compression_params}"
            )
        if not threshold > 0:
            raise MXNetError(
                f"set_gradient_compression: the threshold must be above 0, not {threshold}"
            )
        self._threshold = threshold if kind == "2bit" else None

    def _add_up_bits(self, key, array):
        if dtype_name(array.dtype) != "float32":
            raise MXNetError(
                f"only float32 is compressed; the array of {key!r} is {dtype_name(array.dtype)}"
            )
        residual, threshold = self._residuals.get(key), self._threshold
        total = array.reshape((-1,)) if residual is None else array.reshape((-1,)) + residual
        above, below = total >= threshold, total <= -threshold
        self._residuals[key] = total - (above - below) * threshold
        codes = above + below * 2
        size = -(-total.size // len(_PER_BYTE))
        if size * len(_PER_BYTE) > total.size:
            more = nd.zeros((size * len(_PER_BYTE) - total.size,), ctx=total.context)
            codes = nd.concat(codes, more, dim=0)
        weights = nd.array([_PER_BYTE], ctx=total.context)
        packed = (codes.reshape((size, -1)) * weights).sum(axis=1).astype("uint8")
        sums = None
        for rank in range(_ranks.count()):
            packed_there = own_arrays.copies_of(rank, [packed])[0].astype("float32")
            codes = nd.floor(packed_there.reshape((size, 1)) / weights)
            codes = codes - nd.floor(codes / 4) * 4
            part = ((codes == 1) - (codes == 2)) * threshold
            sums = part if sums is None else sums + part
        return sums.reshape((-1,))[: total.size].reshape(array.shape)


def broadcast_values(rank: int, arrays: list[NDArray]) -> None:
    """Writes what that rank has in the arrays into those of all ranks."""
    values = own_arrays.copies_of(rank, arrays)
    _core.at_once(*[(value.copyto, array) for array, value in zip(arrays, values)])


def sums_over_ranks(store: Any, groups: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
    """Lists of (name, gradient, weight) with the gradients' sums over ranks, where the store is one
    of ranks; else as they are."""
    if not isinstance(store, DistKVStore):
        return groups
    sums = {}
    for place, group in groups.items():
        names, grads, weights = (list(part) for part in zip(*group))
        sums[place] = list(zip(names, store.add_up(names, grads), weights))
    return sums


__all__ = ["DistKVStore", "broadcast_values", "sums_over_ranks"]
