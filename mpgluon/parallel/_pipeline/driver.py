"""The driver of a pipeline run. It queues the passes in the order of the schedule, after checking
that they fit into the devices' memory."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from ... import _core
from ..._internal import ranks
from ...context import memory_stats
from .. import schedules
from .stages import Stages

if TYPE_CHECKING:
    from ...context import Context
    from .pipeline import Entry, Pipeline

__all__ = ["AUTO", "Driver"]

AUTO = "auto"  # chooses the schedule by the measured times of the first steps


def _stats_for(ctx, needed):
    """Returns the `memory_stats` of a device, and the bytes that its limit leaves (None without a
    limit)."""
    for last in (False, True):
        stats = memory_stats(ctx)
        if not stats["limit"]:
            return stats, None
        # Cached memory of the allocator counts as free, because it is reused or released on demand.
        left = max(stats["limit"] - stats["in_use"], 0)
        if needed <= left or last:
            return stats, left
        _core.collect_memory()  # packed weights, and arrays in reference cycles


def _check_memory(peaks, advice):
    """Raises ScheduleError if a device's memory limit leaves less than the schedule needs."""
    for ctx, needed in peaks.items():
        stats, left = _stats_for(ctx, needed)
        if left is not None and needed > left:
            raise schedules.ScheduleError(
                f"the schedule needs {needed:,} bytes on {ctx} for micro-batches in flight, "
                f"{needed - left:,} more than its limit of {stats['limit']:,} leaves with "
                f"{stats['in_use']:,} in use. {advice}"
            )


ALL_AT_ONCE = (
    "In the ordinary loop all micro-batches are in flight at once; TrainStep with "
    "schedule='1f1b', or recompute, needs less"
)


def _fits(peaks):
    """True if the needed bytes are within the limit of each device."""
    lefts = [(needed, _stats_for(ctx, needed)[1]) for ctx, needed in peaks.items()]
    return all(left is None or needed <= left for needed, left in lefts)


def _costs_of_ranks(report):
    """Returns the costs in a report, each as measured by the rank that owns the device. Collective:
    all ranks must call it."""
    stages, actions = report.stages, sorted(report.costs)
    owners = [stages.contexts[stages.graph.devices[action.stage]].rank for action in actions]
    known = (None, ranks.own())
    costs = {i: report.costs[a] for i, a in enumerate(actions) if owners[i] in known}
    joined = ranks.join(costs)
    return {action: joined[i] for i, action in enumerate(actions)}


# The order in which the passes of a run are queued. `peaks` maps each device to the maximum number
# of bytes in use on it since the start of the run.
Prepared = collections.namedtuple("Prepared", "stages table items peaks schedule")


class Driver:
    """Queues the passes of a run by the pipeline's schedule."""

    def __init__(self, entry: Entry, pipeline: Pipeline) -> None:
        self.entry, self.pipeline = entry, pipeline
        self.begun = None  # `Prepared` of the forward pass of a recorded run

    def _prepare(self, run, phases, schedule=None, keep=False):
        """Returns the `Prepared` for the given phases. With `keep`, no memory is released, because
        a backward pass follows."""
        pipeline, micro_batches = self.pipeline, run.micro_batches
        if schedule is None and pipeline.schedule == AUTO:
            schedule = self.entry.chosen or schedules.DEFAULT
        schedule = schedule or pipeline.schedule
        # A backward pass has the stages of its forward pass.
        places = [(k, phase) for k in range(micro_batches) for phase in range(1 + ("B" in phases))]
        options = phases, str(schedule), pipeline.expected
        key = (tuple([run.program(*place) for place in places]), *options)
        prepared = self.entry.tables.get(key)
        if prepared is None:
            # Programs for another batch size have the same stages, tables and items.
            structure = (tuple([run.structure(*place) for place in places]), *options)
            known = self.entry.structures.get(structure)
            if known is None:
                described = Stages(run, "B" in phases, bool(pipeline.carry))
                if pipeline.expected and described.placement() == pipeline.expected.contexts:
                    described.durations = described.costs(pipeline.expected.times)
                table = described.table(schedule, micro_batches, phases, pipeline.micro_batches)
                items = described.items(table, micro_batches, phases)
            else:
                described, table, items = known.stages.resized(run), known.table, known.items
            whole = self.begun.items + items if phases == "B" else items
            peaks = described.peaks(run, whole, keep)
            prepared = self.entry.tables[key] = Prepared(
                described, table, items, peaks, schedule if isinstance(schedule, str) else None
            )
            self.entry.structures.setdefault(structure, prepared)
        return prepared

    def _choose(self, run):
        """Implements schedule='auto'. In the third step, simulates all schedules with the times
        measured in the second step. Chooses the fastest one that fits into the devices' memory.
        Each rank contributes the times and limits of its own devices, so all ranks choose the same
        schedule."""
        entry = self.entry
        entry.runs += 1
        if self.pipeline.schedule != AUTO or entry.chosen or entry.runs < 3:
            return
        report, best = self.pipeline.report(), None
        own = any(report.stages is prepared.stages for prepared in entry.tables.values())
        if report.micro_batches != run.micro_batches or not own:
            return  # the last step had other shapes, so do not use its times
        ranked = any(ctx.rank is not None for ctx in report.stages.contexts)
        costs = _costs_of_ranks(report) if ranked else report.costs
        prepared = {name: self._prepare(run, "FB", name) for name in schedules.SCHEDULES}
        too_large = {i: True for i, one in enumerate(prepared.values()) if not _fits(one.peaks)}
        if ranked:
            too_large = ranks.join(too_large)
        for i, (name, (stages, table, _, peaks, _)) in enumerate(prepared.items()):
            if i in too_large:
                continue
            makespan = schedules.simulate(table, stages.graph, run.micro_batches, costs).makespan
            if best is None or (makespan, sum(peaks.values())) < best[:2]:
                best = (makespan, sum(peaks.values()), name)
        chosen = best[2] if best else schedules.DEFAULT
        entry.chosen = ranks.gather("the schedule of a pipeline", chosen)[0] if ranked else chosen

    def _queue(self, run, prepared, phases):
        """Queues the passes of a `Prepared`, and records it for the report."""
        run.submit(prepared.items)
        self.pipeline.note_run(run.watch(), prepared, phases)

    def forward(self, run: _core.PipelineRun, recording: bool = False) -> None:
        prepared = self._prepare(run, "F", keep=recording)
        if recording:
            self.begun = prepared
            _check_memory(prepared.peaks, ALL_AT_ONCE)
        self._queue(run, prepared, "F")

    def peaks(self, run: _core.PipelineRun) -> dict[Context, int]:
        """Returns the maximum bytes of the interleaved passes on each device."""
        return self.prepared(run, "FB").peaks

    def prepared(self, run: _core.PipelineRun, phases: str) -> Prepared:
        """Returns the `Prepared` of a run's passes, FB or F, which it does not queue."""
        return self._prepare(run, phases)

    def train(self, run: _core.PipelineRun) -> None:
        """Queues both passes, interleaved."""
        self._choose(run)
        prepared = self._prepare(run, "FB")
        leaner = "" if prepared.schedule == "1f1b" else ", schedule='1f1b'"
        _check_memory(prepared.peaks, f"More micro-batches{leaner} or recompute need less")
        self._queue(run, prepared, "FB")

    def __call__(self, run: _core.PipelineRun) -> None:
        """Queues the backward pass of a recorded run."""
        prepared = self._prepare(run, "B")
        held = self.begun.peaks
        more = {ctx: needed - held.get(ctx, 0) for ctx, needed in prepared.peaks.items()}
        _check_memory(more, ALL_AT_ONCE)
        self._queue(run, prepared, "B")
