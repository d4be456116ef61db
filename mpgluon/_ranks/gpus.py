"""Communicators over ranks of GPUs (NCCL's), for sums of arrays on them: of each rank one GPU, on a
card of its own. Where there can be none, the arrays are summed in memory of the host.

A communicator goes by the numbers of its GPUs, by rank. All ranks ask for the same ones in the same
order.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

from .. import _core
from ..base import MXNetError
from ..context import Context, num_gpus
from . import any_order, count, gather, own, wait

Indices = tuple[int, ...]  # by rank; -1: no GPU
# Whether the GPUs are named with their ranks, and their numbers: why they can't be joined; None:
# they are.
_obstacles: dict[tuple[bool, Indices], str | None] = {}


class _Joining:
    """A request, as `wait` takes it."""

    def __init__(self, gpus, made):
        self._gpus = gpus
        _core.ranks_gpu_join(gpus, made)

    def Test(self):  # as MPI calls it
        return _core.ranks_gpu_joined(self._gpus)


def _look(ctx):
    """News of this rank for the others: its card, or why it can't take part; of rank 0 an id."""
    if count() > _core.GPU_RANKS_IN_ORDER and not any_order():
        return {
            "why": f"more than {_core.GPU_RANKS_IN_ORDER} ranks cannot be summed in the order of "
            "ranks on GPUs (MPGLUON_RANKS_SUMS)"
        }
    try:
        made = _core.ranks_gpu_id(ctx).hex() if own() == 0 else ""
        return {"why": "", "card": _core.ranks_gpu_card(ctx), "id": made}
    except MXNetError as error:
        return {"why": str(error)}


def _obstacle(said):
    """Why the ranks' cards can't be joined; None: they can."""
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
    """Joins a communicator; an error on all ranks unless all could."""
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
    """Whether arrays on the GPUs of these numbers, one of each rank, are summed between the GPUs.
    The first call for them joins a communicator, if there can be one: all ranks make it.

    Parameters
    ----------
    indices : tuple of int
        By rank, the GPU's number; -1 where the rank's array is on no GPU.
    transport : {'auto', 'local', 'nccl'}
        'local': never; 'nccl': else it is an error.
    with_ranks : bool, default False
        Whether the GPUs are those that name their ranks, such as ``gpu(0, rank=1)``.

    Raises
    ------
    MXNetError
        `transport` is 'nccl', and there can be no communicator; or one rank could not join.
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
    """Whether a rank has GPUs."""
    return any(int(text) for text in gather("GPUs of ranks", str(num_gpus())))


def joined(contexts: Sequence[Context], transport: str) -> list[Indices | None]:
    """The GPUs between which arrays are summed that this rank has in these contexts, which name no
    rank: their numbers by rank; None for an array that is summed in memory of the host. All ranks
    call it, for the same arrays."""
    if not _anywhere():
        return [None] * len(contexts)
    numbers = [ctx.device_id if ctx.device_type == "gpu" else -1 for ctx in contexts]
    said = [json.loads(text) for text in gather("GPUs of arrays", json.dumps(numbers))]
    if len(set(map(len, said))) > 1:
        raise MXNetError(
            "the ranks run different programs; numbers of arrays that they sum over ranks: "
            + ", ".join(f"{len(one)} on rank {rank}" for rank, one in enumerate(said))
        )
    return [
        indices if max(indices) >= 0 and can_sum(indices, transport) else None
        for indices in zip(*said)
    ]
