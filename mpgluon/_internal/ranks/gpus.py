"""NCCL communicators between ranks, for all-reduces of arrays on GPUs.

A communicator has one GPU of each rank, and each of them must be a different card. Otherwise, no
communicator is possible, and the arrays are summed in host memory. The key of a communicator is the
tuple of its GPU indices by rank. All ranks request the same communicators in the same order.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

from ... import _core
from ...base import MXNetError
from ...context import Context, num_gpus
from . import any_order, count, gather, own, wait

Indices = tuple[int, ...]  # GPU index by rank; -1 means no GPU
# Cache of `_find_obstacle`: (True if the contexts name their ranks, GPU indices) -> reason why NCCL
# cannot be used, or None if the communicator exists.
_obstacles: dict[tuple[bool, Indices], str | None] = {}


class _Joining:
    """Request for `wait` that completes when this rank has joined a communicator."""

    def __init__(self, gpus, made):
        self._gpus = gpus
        _core.ranks_gpu_join(gpus, made)

    def Test(self):  # named as in mpi4py
        return _core.ranks_gpu_joined(self._gpus)


def _look(ctx):
    """Returns a dict with this rank's card, or with the reason why it cannot join a communicator.
    Rank 0 adds NCCL's unique id."""
    if count() > _core.GPU_RANKS_IN_ORDER and not any_order():
        return {
            "why": f"GPUs support sums in rank order for at most {_core.GPU_RANKS_IN_ORDER} ranks; "
            "set MPGLUON_RANKS_SUMS=mpi to allow any order"
        }
    try:
        made = _core.ranks_gpu_id(ctx).hex() if own() == 0 else ""
        return {"why": "", "card": _core.ranks_gpu_card(ctx), "id": made}
    except MXNetError as error:
        return {"why": str(error)}


def _obstacle(said):
    """Returns the reason why the ranks' cards cannot form a communicator, or None if they can."""
    for rank, one in enumerate(said):
        if one["why"]:
            return f"rank {rank}: {one['why']}"
    cards = [one["card"] for one in said]
    for rank, card in enumerate(cards):
        first = cards.index(card)
        if first < rank:
            return f"ranks {first} and {rank} are on the same GPU, which NCCL does not support"
    return None


def _join(gpus, made):
    """Joins a communicator. Raises an MXNetError on all ranks if one of them fails to join."""
    failure = ""
    try:
        wait(_Joining(gpus, bytes.fromhex(made)), "joining a communicator of GPUs", works=True)
    except MXNetError as error:
        failure = str(error)
    except BaseException:
        _core.ranks_gpu_leave(gpus)
        raise
    failures = gather("a communicator of GPUs: joined", failure)
    for rank, text in enumerate(failures):
        if text:
            _core.ranks_gpu_leave(gpus)
            raise MXNetError(f"on rank {rank}: {text}")


def _find_obstacle(indices, with_ranks):
    if -1 in indices:
        return f"rank {indices.index(-1)}: its array is not on a GPU"
    ctx = Context("gpu", indices[own()], rank=own() if with_ranks else None)
    said = [json.loads(text) for text in gather("a communicator of GPUs", json.dumps(_look(ctx)))]
    why = _obstacle(said)
    if why is None:
        _join((ctx, indices), said[0]["id"])
    return why


def can_sum(indices: Indices, transport: str, with_ranks: bool = False) -> bool:
    """Returns True if NCCL can sum arrays on these GPUs, one of each rank.

    The first call for a tuple of indices joins a communicator if one is possible. All ranks call
    it.

    Parameters
    ----------
    indices : tuple of int
        The GPU index by rank; -1 if the rank's array is not on a GPU.
    transport : {'auto', 'local', 'nccl'}
        'local' always returns False. 'nccl' raises an error instead of returning False.
    with_ranks : bool, default False
        True if the contexts name their ranks, such as ``gpu(0, rank=1)``.

    Raises
    ------
    MXNetError
        If `transport` is 'nccl' and no communicator is possible, or if a rank failed to join.
    """
    if transport == "local":
        return False
    key = with_ranks, indices
    if key not in _obstacles:
        _obstacles[key] = _find_obstacle(indices, with_ranks)
    why = _obstacles[key]
    if why is not None and transport == "nccl":
        raise MXNetError(f"NCCL cannot sum over ranks: {why}")
    return why is None


@functools.cache
def _anywhere():
    """True if any rank has GPUs."""
    return any(int(text) for text in gather("GPUs of ranks", str(num_gpus())))


def joined(contexts: Sequence[Context], transport: str) -> list[Indices | None]:
    """Returns, for each array, the GPU indices by rank of the communicator that sums it.

    An entry is None if the array is summed in host memory. `contexts` are the devices of this
    rank's arrays, which name no rank. All ranks call it for the same arrays.
    """
    if not _anywhere():
        return [None] * len(contexts)
    numbers = [ctx.device_id if ctx.device_type == "gpu" else -1 for ctx in contexts]
    said = [json.loads(text) for text in gather("GPUs of arrays", json.dumps(numbers))]
    if len(set(map(len, said))) > 1:
        raise MXNetError(
            "the ranks run different programs; they sum different numbers of arrays over ranks: "
            + ", ".join(f"{len(one)} on rank {rank}" for rank, one in enumerate(said))
        )
    return [
        indices if max(indices) >= 0 and can_sum(indices, transport) else None
        for indices in zip(*said)
    ]
