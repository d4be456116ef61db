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
    for rank, (_, why) in enumerate(said):
        if why:
            return f"rank {rank}: {why}"
    cards = [card for card, _ in said]
    for rank, card in enumerate(cards):
        first = cards.index(card)
        if first < rank:
            return f"ranks {first} and {rank} are on one card, which NCCL takes only once"
    return None


def _card(ctx, transport):
    """(card, why it can't take part)."""
    if transport == "local":
        return "", "MPGLUON_COLLECTIVES=local"
    if count() > _IN_ORDER and not any_order():
        return "", f"more than {_IN_ORDER} ranks are summed in their order in memory of the host"
    try:
        return _core.ranks_gpu_card(ctx), ""
    except (MXNetError, NotImplementedError) as error:
        return "", str(error)


def can_sum(ctx: Context) -> bool:
    """Whether arrays on that GPU, an own one of this rank, are summed over ranks on GPUs. The first
    call for a GPU joins a communicator, if there can be one: all ranks make it."""
    from ..parallel.collectives import default_transport

    key = ctx.device_id, ctx.rank
    if key in _joined:
        return _joined[key]
    transport = default_transport()
    what = "a communicator of GPUs"
    said = [json.loads(text) for text in gather(what, json.dumps(_card(ctx, transport)))]
    why = _obstacle(said)
    if why is None:
        made = gather(what + ": its id", _core.ranks_gpu_id(ctx).hex() if own() == 0 else "")[0]
        try:
            wait(_Joining(ctx, bytes.fromhex(made)), "joining a communicator of GPUs")
        except BaseException:
            _core.ranks_gpu_leave(ctx)
            raise
    elif transport == "nccl":
        raise MXNetError(f"NCCL can't sum over ranks: {why}")
    _joined[key] = why is None
    return why is None
