"""Profiles on devices of several ranks: each rank measures its own devices concurrently, then the
links are measured. All ranks get the same profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._internal import ranks
from ..._internal.ranks import links
from ...base import MXNetError
from ...context import Context, memory_stats
from . import layer_measurement
from .layer_profile import Profile

if TYPE_CHECKING:
    from collections.abc import Sequence


def over_ranks(devices: Sequence[Context]) -> bool:
    """True if devices name ranks."""
    return any(ctx.rank is not None for ctx in devices)


def measure(net: Any, sample: Any, devices: Sequence[Context], *more: Any) -> Profile:
    """Returns the profile of a network's layers on devices that may name ranks. Collective: all
    ranks must call it. The arguments are those of `layer_measurement.measure`.

    Raises
    ------
    MXNetError
        If the network or the batch is on devices that name ranks, because each rank measures
        separately.
    """
    if not over_ranks(devices):
        return layer_measurement.measure(net, sample, devices, *more)
    _check_own(net, sample)
    own = [ctx for ctx in devices if ctx.rank in (None, ranks.own())]
    there = {ctx: Context(ctx.device_type, ctx.device_id) for ctx in own}
    arrays = list(sample) if isinstance(sample, (list, tuple)) else [sample]
    ranks.barrier()
    found = {}  # empty on a rank without devices in this list
    if own:
        measured = list(dict.fromkeys(there.values()))
        profile = layer_measurement.measure(net, sample, measured, *more)
        found[ranks.own()] = profile.to_json()
    joined = ranks.join(found)
    profiles = {rank: Profile.from_json(data) for rank, data in joined.items()}
    return _joined(devices, profiles, arrays[0].context)


def _check_own(net, sample):
    named = [
        ctx
        for param in net.collect_params().values()
        if param.arrays is not None
        for ctx in param.list_ctx()
    ]
    arrays = list(sample) if isinstance(sample, (list, tuple)) else [sample]
    named = [ctx for ctx in [*named, *[a.context for a in arrays]] if ctx.rank is not None]
    if named:
        raise MXNetError(
            f"plan: the network or the batch is on {named[0]}, but each rank measures by "
            "itself; initialize the network on a device that names no rank, such as cpu(0), and "
            "place it with the plan"
        )


def _joined(devices, profiles, home):
    def source(ctx):
        """Returns the profile with the measurements of a device, and the device in that
        profile."""
        rank = ranks.own() if ctx.rank is None else ctx.rank
        return profiles[rank], Context(ctx.device_type, ctx.device_id)

    costs, update = {}, {}
    for ctx in devices:
        profile, there = source(ctx)
        costs[ctx], update[ctx] = dict(profile.costs[there]), profile.update[there]
    layer_measurement.level(devices, costs, update)
    pairs = [(a, b) for a in devices for b in devices if a != b]
    between = sorted({(a.rank, b.rank) for a, b in pairs if a.rank != b.rank})
    measured = links.measure(between)
    transfer, waits = {}, {}
    for a, b in pairs:
        if a.rank != b.rank:
            seconds, rate = measured[a.rank, b.rank]
            transfer[a, b], waits[a, b] = (seconds, 1 / rate), 0.0
            continue
        (profile, one), (_, two) = source(a), source(b)
        transfer[a, b], waits[a, b] = profile.transfer[one, two], profile.waits[one, two]
    first = profiles[min(profiles)]
    return Profile(
        first.layers,
        devices,
        first.rows,
        costs,
        update,
        first.state_factor,
        transfer,
        home,
        first.input_bytes,
        waits,
        max(profile.host_overhead for profile in profiles.values()),
    )


def limits_of(devices: Sequence[Context]) -> dict[Context, int]:
    """Returns the memory limits of devices that have one, on any rank."""
    own = {
        number: memory_stats(ctx)["limit"]
        for number, ctx in enumerate(devices)
        if ctx.rank in (None, ranks.own())
    }
    found = ranks.join(own) if over_ranks(devices) else own
    return {ctx: found[number] for number, ctx in enumerate(devices) if found[number]}


def agreed(devices: Sequence[Context], value: bool) -> bool:
    """True if `value` is true on all ranks."""
    return all(ranks.join({ranks.own(): value}).values()) if over_ranks(devices) else value


__all__ = ["agreed", "limits_of", "measure", "over_ranks"]
