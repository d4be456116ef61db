"""Compiles plans to check them against memory limits. Compiling determines the bytes of a plan
without running anything.

The search estimates the bytes of a plan from layers that were compiled separately. Before a plan is
chosen within limits, it is compiled as a whole, with its schedule's table for equal stage
durations, and the resulting bytes are used. If nothing that the search finds fits, the plans with
the smallest estimates are compiled. Measured times have no influence. Therefore, every call reports
the same required bytes, and a limit of that size is sufficient.
"""

from ... import random
from ...context import memory_stats
from . import layer_measurement
from .layer_profile import key_of
from .search import SIMULATED, Search

__all__ = ["MemoryMeter", "best_within"]

# A plan is ruled out without compiling it if its estimated bytes exceed a limit, or the smallest
# measured requirement so far, by more than this fraction.
SLACK = 0.2
TURNS = 32  # maximum number of plans to compile in the order of the search
LEANEST = 96  # maximum number of plans to compile in the order of their estimated bytes


class MemoryMeter:
    """Compiles plans for a copy of the network to measure their memory.

    Parameters
    ----------
    plan_of : callable
        Creates a `Plan` from a candidate.
    """

    def __init__(self, profile, plan_of, net, sample, labels, loss):
        self.profile, self._plan_of, self._loss = profile, plan_of, loss
        self._net, self._sample, self._labels, self._copy = net, sample, labels, None

    def has_room(self):
        """True if a copy of the network's parameters and gradients fits into the memory left on
        each device."""
        if self._copy is not None:
            return True
        params = list(self._net.collect_params().values())
        if any(p.arrays is None and not p.deferred_init for p in params):
            return False
        needed = 2.2 * sum(layer.param_bytes for layer in self.profile.layers)
        devices = {
            *self.profile.devices,
            *(ctx for p in params if p.arrays is not None for ctx in p.list_ctx()),
        }
        return all(
            not stats["limit"] or stats["in_use"] + needed <= stats["limit"]
            for stats in map(memory_stats, devices)
        )

    def measure(self, candidate):
        """Records the bytes of a candidate in the profile."""
        from .._pipeline.pipeline import Pipeline
        from .._pipeline.train_step import TrainStep, first_of

        if self._copy is None:
            self._copy = layer_measurement.detached_copy(self._net)
        self._plan_of(candidate).place(self._copy)
        # Skip the pipeline's check, because it would trace the whole batch. The check is made when
        # the plan runs.
        pipeline = Pipeline(candidate.micro_batches, candidate.schedule, check=False)
        with random.calls_at(random.get_state()):
            peaks = TrainStep(self._copy, self._loss or first_of, None, pipeline).bytes_of_step(
                self._sample, self._labels
            )
        self.profile.measured_bytes[key_of(candidate)] = [
            peaks.get(ctx, 0) for ctx in self.profile.devices
        ]


def best_within(profile, limits, numbers, names, meter=None, progress=False, most=SIMULATED):
    """Returns the best candidate that fits. Raises an MXNetError that describes the shortage if
    there is none.

    With ``meter`` None, nothing can be compiled, and the search's estimates are used.
    """
    if meter is None or not any(limit is not None for limit in (limits or {}).values()):
        return Search(profile, limits, numbers, names, progress=progress, most=most).run()
    search = Search(profile, limits, numbers, names, SLACK, progress, most)
    for _ in range(TURNS):
        best = search.find()
        if best is None or profile.is_measured(best):
            break
        meter.measure(best)
        search.forget(best)
    else:
        best = None
    if best is None:
        _measure_leanest(search, meter)
        known = [search.evaluate(*key) for key in profile.measured_bytes]
        best = min(
            (c for c in known if not search.excess(c)[0]), key=lambda c: c.seconds, default=None
        )
        if best is None:
            search.fail(min(known, key=search.over))
    search.choose(best)
    return best


def _measure_leanest(search, meter):
    """Compiles the candidates in the order of their estimated bytes. Stops once the estimates are
    far above the smallest measured value."""
    profile, least = search.profile, None
    for candidate in search.lean()[:LEANEST]:
        key = key_of(candidate)
        if (
            least is not None
            and search.over_by(*zip(*candidate.memory), search.slack)[0] > search.over(least)[0]
        ):
            continue
        if key not in profile.measured_bytes:
            meter.measure(candidate)
            search.forget(candidate)
        found = search.evaluate(*key)
        if least is None or search.over(found)[0] < search.over(least)[0]:
            least = found
