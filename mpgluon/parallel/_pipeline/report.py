"""Measured times of a pipeline step, compared to the planned ones."""

from __future__ import annotations

import collections
import json
from typing import TYPE_CHECKING, Any

from ... import ndarray as nd, profiler
from ..._internal.chrome_trace import chrome_trace
from ..._internal.tables import Tabular
from .. import schedules

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ...context import Context

COLORS = {"F": "#8ab6e8", "B": "#6fb96b", "W": "#c5e3bd"}


def draw_spans(
    ax: Axes,
    spans: dict[schedules.Action, tuple[float, float]],
    rows: Sequence[int],
    seconds: float,
) -> None:
    """Draws actions, {action: (begin, end)} in seconds, as bars in ``rows``. Bars that are wide
    enough relative to ``seconds`` show their micro-batch's number."""
    for (action, (begin, end)), row in zip(spans.items(), rows):
        ax.barh(
            row,
            (end - begin) * 1e3,
            left=begin * 1e3,
            height=0.8,
            color=COLORS[action.kind],
            edgecolor="white",
            linewidth=0.5,
        )
        if end - begin > 0.012 * max(seconds, 1e-9):
            ax.text(
                (begin + end) / 2 * 1e3,
                row,
                str(action.micro_batch),
                ha="center",
                va="center",
                fontsize=7,
            )


def new_figure(what: str, height: float, **subplots: Any) -> tuple[Figure, Any]:
    """Returns (figure, axes) without boxes around the axes. Raises ImportError, which names `what`,
    without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"{what} needs matplotlib: pip install mpgluon[viz]") from error
    figure = Figure(figsize=(12, height), layout="constrained")
    axes = figure.subplots(**subplots)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


class Report(Tabular):
    """Busy and idle time of the devices in one step of a pipeline; see `Pipeline.report`.

    Attributes
    ----------
    seconds : float
        Time from the start of the first stage to the end of the last one.
    schedule : str, optional
        Name of the schedule; with 'auto', the chosen one. None for a table.
    busy, idle : dict of Context to float
        Seconds of each device.
    bubble : float
        Fraction of the devices' time in which they were idle.
    planned_bubble : float
        The same for the simulated schedule, with the mean measured time of each action and no time
        for transfers.
    bytes_copied : dict of Context to int
        Bytes that each device sent to other devices.
    times : dict of (kind, stage) to float
        Mean seconds of the actions.
    costs : dict of Action to float
        Seconds of each action, averaged over the actions of the same stage and kind that do the
        same work. The first and the last micro-batch of a sequence may do less work, because they
        have fewer gradients.
    planned_bytes : dict of Context to int
        Planned maximum memory of the micro-batches in flight on each device, including values held
        between forward and backward.

    Examples
    --------
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
    >>> _ = mx.parallel.Mesh({'stage': 2}, [mx.cpu(0), mx.cpu(1)]).place(net)
    >>> net.initialize()
    >>> pipeline = mx.parallel.Pipeline(4)
    >>> net.hybridize(pipeline=pipeline)
    >>> _ = net(nd.ones((8, 4)))
    >>> report = pipeline.report()
    >>> list(report.busy), 0 <= report.bubble < 1
    ([cpu(0), cpu(1)], True)
    """

    seconds: float
    busy: dict[Context, float]
    idle: dict[Context, float]
    stages: Any
    table: Any
    phases: str
    micro_batches: int
    schedule: str | None
    spans: dict[schedules.Action, tuple[float, float]]
    planned: schedules.Simulation
    bubble: float
    planned_bubble: float
    bytes_copied: dict[Context, int]
    times: dict[tuple[str, int], float]
    costs: dict[schedules.Action, float]
    planned_bytes: dict[Context, int]

    def __init__(self, run: Any, prepared: Any, phases: str) -> None:
        nd.waitall()
        stages, table, micro_batches = (
            prepared.stages,
            prepared.table,
            prepared.stages.micro_batches,
        )
        self._run, self.stages, self.table = run, stages, table
        self.phases, self.micro_batches = phases, micro_batches
        self.schedule = prepared.schedule
        measured = {
            (micro_batch, phase): run.times(micro_batch, phase)
            for micro_batch in range(micro_batches)
            for phase, kind in enumerate("FB")
            if kind in phases
        }
        self.spans = {}  # action -> (begin, end) in seconds since the start of the step
        for action in stages.actions(micro_batches, phases):
            phase, micro_batch, segments = stages.segments_of(action)
            spans = [measured[micro_batch, phase][s] for s in segments]
            spans = [span for span in spans if span[0] and span[1]]
            if spans:
                self.spans[action] = (
                    min(b for b, _ in spans) / 1e9,
                    max(e for _, e in spans) / 1e9,
                )
        start = min((b for b, _ in self.spans.values()), default=0.0)
        self._start = start
        self.spans = {action: (b - start, e - start) for action, (b, e) in self.spans.items()}
        self.seconds = max((e for _, e in self.spans.values()), default=0.0)
        self.busy = dict.fromkeys(stages.contexts, 0.0)
        sums = collections.defaultdict(list)
        for action, (b, e) in self.spans.items():
            self.busy[stages.contexts[stages.graph.devices[action.stage]]] += e - b
            sums[action.kind, action.stage].append(e - b)
        self.times = {key: sum(values) / len(values) for key, values in sums.items()}
        self.idle = {ctx: self.seconds - busy for ctx, busy in self.busy.items()}
        whole = self.seconds * len(self.busy)
        self.bubble = 1 - sum(self.busy.values()) / whole if whole else 0.0
        alike = collections.defaultdict(list)
        for action, (b, e) in self.spans.items():
            alike[stages.alike(action)].append(e - b)
        self.costs = {action: 0.0 for row in table for action in row}
        for action in self.spans:
            own = alike[stages.alike(action)]
            self.costs[action] = sum(own) / len(own)
        planned = schedules.simulate(table, stages.graph, micro_batches, self.costs, phases)
        # A micro-batch may lack an action of the plan. Omit actions that did not run from the
        # planned timeline.
        spans = {a: span for a, span in planned.spans.items() if a in self.spans}
        self.planned = planned._replace(spans=spans)
        self.planned_bubble = planned.bubble
        self.planned_bytes = prepared.peaks
        self.bytes_copied = dict(stages.bytes_sent(phases))

    def peaks_of(self, schedule: str, times: Any) -> dict[Context, int]:
        """Returns `planned_bytes` for another schedule, built from the given times."""
        return self.stages.peaks_of(self._run, schedule, times)

    def _parts(self):
        named = f" by {self.schedule}" if self.schedule else ""
        first = (
            f"{len(self.stages)} stages, {self.micro_batches} micro-batches{named}: "
            f"{self.seconds * 1e3:.2f} ms, bubble {self.bubble:.1%} (planned "
            f"{self.planned.makespan * 1e3:.2f} ms, {self.planned_bubble:.1%})"
        )
        rows = [("device", "busy ms", "idle ms", "bytes sent", "bytes of micro-batches")]
        for ctx, busy in self.busy.items():
            rows.append(
                (
                    str(ctx),
                    f"{busy * 1e3:.2f}",
                    f"{self.idle[ctx] * 1e3:.2f}",
                    f"{self.bytes_copied.get(ctx, 0):,}",
                    f"{self.planned_bytes.get(ctx, 0):,}",
                )
            )
        rows_of_stages = [("stage", "device", "forward ms", "backward ms", "deferred ms", "blocks")]
        sums = collections.defaultdict(list)
        for action, (begin, end) in self.spans.items():
            sums[self.stages.shown(action)[:2]].append(end - begin)
        means = {key: f"{sum(found) / len(found) * 1e3:.3f}" for key, found in sums.items()}
        for s, name in enumerate(self.stages.names):
            ms = [means.get((kind, s), "") for kind in "FBW"]
            rows_of_stages.append(
                (
                    str(s),
                    str(self.stages.contexts[self.stages.graph.devices[s]]),
                    *ms,
                    name,
                )
            )
        return [first, rows, rows_of_stages]

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the planned timeline above the measured one. Returns the figure, and writes it to
        `path` if given.

        Raises
        ------
        ImportError
            If matplotlib, which the extra ``viz`` installs, is missing.
        """
        figure, axes = new_figure("Pipeline.plot", 1.2 + 1.1 * len(self.busy), nrows=2, sharex=True)
        for ax, spans, title in (
            (axes[0], self.planned.spans, "planned"),
            (axes[1], self.spans, "measured"),
        ):
            self._draw(ax, {self.stages.shown(a): span for a, span in spans.items()}, title)
        axes[1].set_xlabel("ms")
        if path is not None:
            figure.savefig(path, dpi=130)
        return figure

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes both timelines as a Chrome trace. Each device has a row with planned and one with
        measured actions. If `mpgluon.profiler` was recording during the step, its operators and
        copies are included.

        Parameters
        ----------
        path : str
            Path of the JSON file, which chrome://tracing and Perfetto can show.
        """
        marks = []
        for ctx in self.stages.contexts:
            for spans, title in ((self.planned.spans, "planned"), (self.spans, "measured")):
                for action, (begin, end) in spans.items():
                    if self.stages.contexts[self.stages.graph.devices[action.stage]] == ctx:
                        args = {
                            "stage": action.stage,
                            "micro_batch": action.micro_batch,
                            "blocks": self.stages.names[action.stage],
                        }
                        times = {"ts": (self._start + begin) * 1e6, "dur": (end - begin) * 1e6}
                        marks.append(
                            {
                                "ph": "X",
                                "name": str(self.stages.shown(action)),
                                "cat": title,
                                "tid": f"{ctx} {title}",
                                **times,
                                "args": args,
                            }
                        )
        inside = [
            event
            for event in profiler.events()
            if event["end"] >= self._start and event["begin"] <= self._start + self.seconds
        ]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(chrome_trace(inside, marks), f)

    def _draw(self, ax, spans, title):
        draw_spans(
            ax, spans, [self.stages.graph.devices[action.stage] for action in spans], self.seconds
        )
        length = max((e for _, e in spans.values()), default=0.0)
        ax.set_title(f"{title}: {length * 1e3:.2f} ms", loc="left", fontsize=10)
        ax.set_yticks(range(len(self.stages.contexts)), [str(ctx) for ctx in self.stages.contexts])
        ax.invert_yaxis()
        if title == "planned":
            from matplotlib.patches import Patch

            kinds = [k for k in "FBW" if any(a.kind == k for a in spans)]
            texts = {"F": "forward", "B": "backward", "W": "weight gradients"}
            ax.legend(
                handles=[Patch(color=COLORS[k], label=texts[k]) for k in kinds],
                loc="upper right",
                fontsize=8,
                ncols=3,
                bbox_to_anchor=(1, 1.25),
                frameon=False,
            )
