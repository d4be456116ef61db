"""Communicators over ranks of GPUs (NCCL's), for sums of arrays on them: of each rank one GPU, on a
card of its own. Where there can be none, the arrays are summed in memory of the host.

All ranks join in the same order: the GPU that one names first belongs together with those that the
others name first.
"""

from __future__ import annotations

import json

from .. import _core
from ..base import MXNetError
from ..context import Context
from . import any_order, count, gather, own, wait

_IN_ORDER = 32  # ranks: that a kernel adds up in their order (csrc/comm/gpu_rank_sums.h)
_joined: dict[tuple[int, int | None], bool] = {}  # own GPUs: whether they have a communicator


class _Joining:
    """A request, as `wait` takes it."""

    def __init__(self, ctx, made):
        self._ctx = ctx
        _core.ranks_gpu_join(ctx, made)

    def Test(self):  # as MPI calls it
        return _core.ranks_gpu_joined(self._ctx)


def _obstacle(said):
    """Why these cards can't have a communicator; None: they can."""
    for rank, one in enumerate(said):
        if one["why"]:
            return f"rank {rank}: {one['why']}"
    cards = [one["card"] for one in said]
    for rank, card in enumerate(cards):
        first = cards.index(card)
        if first < rank:
            return f"ranks {first} and {rank} are on one card, which NCCL takes only once"
    return None


def _look(ctx):
    """News of this rank for the others: its card, or why it can't take part; of rank 0 an id."""
    from ..parallel.collectives import default_transport

    try:
        transport = default_transport()
        if transport == "local":
            return {"why": "MPGLUON_COLLECTIVES=local"}
        needed = {"needed": transport == "nccl"}
        if count() > _IN_ORDER and not any_order():
            return {"why": f"more than {_IN_ORDER} ranks can't be summed in their order", **needed}
        made = _core.ranks_gpu_id(ctx).hex() if own() == 0 else ""
        return {"why": "", "card": _core.ranks_gpu_card(ctx), "id": made, **needed}
    except (MXNetError, NotImplementedError, ValueError) as error:
        return {"why": str(error), "needed": isinstance(error, ValueError)}


def _join(ctx, made):
    """Joins a communicator; an error on all ranks unless all could."""
    failure = ""
    try:
        wait(_Joining(ctx, bytes.fromhex(made)), "joining a communicator of GPUs", works=True)
    except MXNetError as error:
        failure = str(error)
    except BaseException:
        _core.ranks_gpu_leave(ctx)
        raise
    failures = gather("a communicator of GPUs: joined", failure)
    for rank, text in enumerate(failures):
        if text:
            _core.ranks_gpu_leave(ctx)
            raise MXNetError(f"on rank {rank}: {text}")


def can_sum(ctx: Context) -> bool:
    """Whether arrays on that GPU, an own one of this rank, are summed over ranks on GPUs. The first
    call for a GPU joins a communicator, if there can be one: all ranks make it. MXNetError where
    MPGLUON_COLLECTIVES=nccl asks for one, and there can be none."""
    key = ctx.device_id, ctx.rank
    if key in _joined:
        return _joined[key]
    said = [json.loads(text) for text in gather("a communicator of GPUs", json.dumps(_look(ctx)))]
    why = _obstacle(said)
    if why is None:
        _join(ctx, said[0]["id"])
    elif any(one.get("needed") for one in said):
        raise MXNetError(f"NCCL can't sum over ranks: {why}")
    _joined[key] = why is None
    return why is None
