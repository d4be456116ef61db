"""Broadcasts one rank's parameter values to the parameters that each rank has on its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import ndarray as nd
from .._internal.ranks import compare
from .._internal.ranks.own_arrays import check_own, copies_of
from .._internal.ranks.store import broadcast_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .parameter import Parameter

_WORD = 1 << 32


def _split(numbers):
    return [half for number in numbers for half in divmod(number, _WORD)]


def take_values(rank: int, params: Sequence[Parameter], what: str) -> list[Parameter]:
    """Copies the parameter values of `rank` to all ranks. Collective: all ranks must call it.

    Parameters with unknown shapes take over the random state from which that rank will initialize
    them, so they get the same values. Returns these parameters.
    """
    compare(what, f"root_rank {rank} and {len(params)} parameters")
    here = [param for param in params if param.arrays is not None]
    arrays = [list(param.arrays.values()) for param in here]
    for copies in arrays:
        for copy in copies:
            check_own(copy, what)
    broadcast_values(rank, [copies[0] for copies in arrays])
    for first, *others in arrays:
        for other in others:
            first.copyto(other)
    waiting = [param for param in params if param.arrays is None]
    for param in waiting:
        if not param.deferred_init:
            raise param.missing_error()
        init, contexts, default_init, value, key = param.deferred_init
        if value is not None:
            (value,) = copies_of(rank, [value])
        (halves,) = copies_of(rank, [nd.array(_split(key), dtype="int64")])
        seed_high, seed, call_high, call = (int(half) for half in halves.asnumpy())
        key = seed_high * _WORD + seed, call_high * _WORD + call
        param.deferred_init = (init, contexts, default_init, value, key)
    return waiting
