"""Plans: the device of each layer of a network, the number of micro-batches, and the schedule."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from ..._internal import graph_breaks
from ..._internal.device_groups import is_placement
from ..._internal.tables import Tabular
from ...base import MXNetError, counted
from ...context import Context
from ...gluon._tree import (
    ONE_LAYOUT,
    group_of,
    refuse_partitioned,
    set_devices_of_groups,
    set_group,
    walk,
)
from ...gluon.block import HybridBlock
from ...ndarray import NDArray
from .._mesh import forget_placement, refuse_inner
from .._pipeline.report import Report, draw_spans, new_figure
from ..schedules import SCHEDULES, named
from . import layer_profile, rank_measurement
from .memory_measurement import MemoryMeter, best_within
from .search import Search
from .trial_runs import improve

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from ...optimizer import Optimizer
    from .._pipeline.pipeline import Pipeline
    from ..schedules import Simulation

__all__ = ["Comparison", "Plan", "plan"]

FORMAT = "mpgluon plan 1"
GROUP = "plan:"  # prefix of a plan's device groups


def plan(
    net: HybridBlock,
    sample: NDArray | Sequence[NDArray],
    devices: Context | Sequence[Context],
    *,
    memory: int | dict[Context, int | None] | None = None,
    micro_batches: int | Sequence[int] | None = None,
    schedules: str | Sequence[str] | None = None,
    loss: Callable[..., Any] | None = None,
    labels: NDArray | Sequence[NDArray] = (),
    optimizer: str | Optimizer = "sgd",
    optimizer_params: dict[str, Any] | None = None,
    profile: layer_profile.Profile | None = None,
    repeats: int = 3,
    progress: bool | None = None,
    trials: int = 6,
) -> Plan:
    """Finds the placement of a network's layers, the number of micro-batches and the schedule with
    the shortest predicted step. All arguments except the first three are keyword-only.

    Parameters
    ----------
    net : HybridBlock
        Network, initialized on any devices. Its layers are the children of HybridSequentials
        (nested ones are expanded), the branches of HybridConcurrents, and other children of `net`,
        in the order of calls.
    sample : NDArray or list of NDArray
        A whole batch of inputs.
    devices : list of Context
        The devices to use, without duplicates. If they belong to several ranks, all ranks must call
        `plan`, with the network and the sample on devices that name no rank.
    memory : int, or dict of Context to int, optional
        Limit of the bytes on each device for parameters, gradients, optimizer states and
        micro-batches in flight. Defaults to the limits set by `mx.context.set_memory_limit`, if
        any.
    micro_batches : int or list of int, optional
        Numbers of micro-batches to choose from; by default 1, 2 and 4 times the number of devices.
    schedules : list of str, optional
        Names of schedules to choose from; by default all.
    loss : callable, optional
        Function ``loss(outputs, *labels)``, as for `TrainStep`. It is measured with the last layer.
    labels : NDArray or list of NDArray
        A whole batch of the loss's arguments after the outputs.
    optimizer : str or Optimizer, default 'sgd'
        Optimizer. Its updates are measured, and its states count as memory.
    optimizer_params : dict, optional
        Arguments of an optimizer that is given by name.
    profile : Profile, optional
        Existing measurements (``plan.profile``, `Profile.load`). Nothing is measured in this case.
        If there are memory limits, plans are still compiled to determine their bytes.
    repeats : int, default 3
        Number of repetitions of each measurement, of which the fastest is used.
    progress : bool, optional
        Whether to show progress bars; by default on terminals.
    trials : int, default 6
        Maximum number of trial runs. A trial runs a plan for some steps on a copy of the network,
        and its times correct the measurements of separate layers. The fastest plan is chosen. No
        plan is run if `trials` is 0, if `profile` is given, if a device's memory limit leaves no
        room for the copy, or if devices belong to several ranks.

    Returns
    -------
    Plan

    Raises
    ------
    MXNetError
        If no placement fits. The message has the smallest required bytes, the device, and the
        number of missing bytes. Also raised if the network is not initialized, or if `profile` has
        other devices or another batch size.
    ValueError
        If another argument is invalid.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(8, in_units=4), mx.gluon.nn.Dense(2, in_units=8))
    >>> net.initialize()
    >>> plan = mx.parallel.plan(net, mx.nd.ones((8, 4)), [mx.cpu(0), mx.cpu(1)],
    ...                         micro_batches=2, repeats=1, trials=0, progress=False)
    >>> sorted(plan.placement)
    ['0', '1']
    >>> _ = plan.place(net)
    >>> net.hybridize(pipeline=plan.pipeline())
    >>> net(mx.nd.ones((8, 4), ctx=plan.placement['0'])).shape
    (8, 2)
    """
    if not isinstance(net, HybridBlock):
        raise MXNetError(f"plan: the network must be a HybridBlock, not {type(net).__name__}")
    graph_breaks.refuse_in_trace("plan")
    devices = _devices(devices)
    names = _schedule_names(schedules)
    rows = _check_arrays(sample, labels)
    for name, value, least in (("repeats", repeats, 1), ("trials", trials, 0)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"plan: {name} must be an integer, at least {least}, not {value!r}")
    counts = _numbers(micro_batches, rows, len(devices))
    limits = _limits(memory, devices)
    batch, training = (sample, labels, loss), (optimizer, optimizer_params, progress)
    if profile is not None:
        profile = _fitting(profile, devices, rows)
        meter = _meter(profile, limits, net, batch)
        return Plan(profile, limits, best_within(profile, limits, counts, names, meter, progress))
    _check_initialized(net)
    profile = rank_measurement.measure(
        net, sample, devices, counts, loss, labels, optimizer, optimizer_params, repeats, progress
    )
    choices, meter = (limits, counts, names), _meter(profile, limits, net, batch)
    if rank_measurement.over_ranks(devices):
        trials = 0
    best = improve(
        profile, *choices, _plans(profile, limits), meter, trials, net, *batch, *training
    )
    return Plan(profile, limits, best)


def _plans(profile, limits):
    """Returns a function from candidates to plans."""
    return lambda candidate: Plan(profile, limits, candidate)


def _meter(profile, limits, net, batch):
    """Returns a meter that compiles plans to measure their bytes, or None if a device lacks the
    memory for its copy of the network."""
    meter = MemoryMeter(profile, _plans(profile, limits), net, *batch)
    return meter if rank_measurement.agreed(profile.devices, meter.has_room()) else None


def _devices(devices):
    devices = [devices] if isinstance(devices, Context) else list(devices)
    known = all(isinstance(ctx, Context) for ctx in devices)
    if not devices or not known or len(set(devices)) != len(devices):
        raise ValueError(f"plan: devices must be a list of different Contexts, not {devices!r}")
    return devices


def _schedule_names(schedules):
    schedules = SCHEDULES if schedules is None else schedules
    names = [schedules] if isinstance(schedules, str) else list(schedules)
    for name in names:
        named(name, "plan: ")
    if not names:
        known = ", ".join(SCHEDULES)
        raise ValueError(f"plan: schedules must have at least one of {known}")
    return names


def _check_initialized(net):
    for param in net.collect_params().values():
        if param.arrays is None and not param.deferred_init:
            raise MXNetError(
                f"plan: parameter '{param.name}' is not initialized; call net.initialize() first"
            )


def _fitting(profile, devices, rows):
    """Returns the profile restricted to the given devices. Raises MXNetError if it has other
    devices or another batch size."""
    missing = [ctx for ctx in devices if ctx not in profile.devices]
    if missing:
        raise MXNetError(
            f"plan: the profile has no measurements on {missing[0]}; it has "
            f"{', '.join(map(str, profile.devices))}"
        )
    if profile.rows != rows:
        raise MXNetError(
            f"plan: the profile was made for batches of {counted(profile.rows, 'row')}, but the "
            f"sample has {rows}"
        )
    return _restricted(profile, devices)


def _check_arrays(sample, labels):
    """Returns the rows of the batch. Raises ValueError for invalid arrays."""
    arrays = list(sample) if isinstance(sample, (list, tuple)) else [sample]
    if not arrays or not all(isinstance(a, NDArray) for a in arrays) or not arrays[0].ndim:
        raise ValueError(
            "plan: sample must be an NDArray with the batch along axis 0, or a list of these, "
            f"not {_described(sample)}"
        )
    rows = arrays[0].shape[0]
    for i, label in enumerate(labels if isinstance(labels, (list, tuple)) else [labels]):
        if not isinstance(label, NDArray):
            raise ValueError(
                f"plan: labels must be an NDArray or a list of NDArrays, not {_described(label)}"
            )
        if label.ndim and label.shape[0] not in (1, rows):
            raise ValueError(
                f"plan: label {i} has {counted(label.shape[0], 'row')}, but the sample has {rows}"
            )
    return rows


def _described(value):
    if isinstance(value, NDArray):
        return f"an array of shape {value.shape}"
    return f"a list of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__


def _numbers(micro_batches, rows, count):
    if micro_batches is None:
        counts = sorted({min(k * count, rows) for k in (1, 2, 4)})
    else:
        counts = sorted({micro_batches} if isinstance(micro_batches, int) else set(micro_batches))
    bad = [m for m in counts if not isinstance(m, int) or isinstance(m, bool) or not 1 <= m <= rows]
    if bad or not counts:
        raise ValueError(
            f"plan: a batch of {counted(rows, 'row')} cannot be divided into "
            f"{bad[0] if bad else 'no'} micro-batches"
        )
    return counts


def _limits(memory, devices):
    if memory is None:
        return rank_measurement.limits_of(devices)
    for ctx, limit in memory.items() if isinstance(memory, dict) else [(None, memory)]:
        if (limit is None and ctx is not None) or (
            isinstance(limit, numbers.Real) and not isinstance(limit, bool) and limit >= 0
        ):
            continue
        raise ValueError(
            "plan: memory must be a number of bytes, or a dict of Context to bytes, not "
            f"{limit!r}{f' for {ctx}' if ctx is not None else ''}"
        )
    if isinstance(memory, dict):
        other = [ctx for ctx in memory if ctx not in devices]
        if other:
            raise ValueError(
                f"plan: memory has a limit for {other[0]}, which is not one of the devices"
            )
        return {ctx: int(limit) for ctx, limit in memory.items() if limit is not None}
    return {ctx: int(memory) for ctx in devices}


def _restricted(profile, devices):
    if profile.devices == devices:
        return profile
    pairs = {
        pair: seconds
        for pair, seconds in profile.transfer.items()
        if pair[0] in devices and pair[1] in devices
    }
    return layer_profile.Profile(
        profile.layers,
        devices,
        profile.rows,
        {ctx: profile.costs[ctx] for ctx in devices},
        {ctx: profile.update[ctx] for ctx in devices},
        profile.state_factor,
        pairs,
        profile.home,
        profile.input_bytes,
        {pair: seconds for pair, seconds in profile.waits.items() if pair in pairs},
        profile.host_overhead,
    )


class Plan(layer_profile.SavedAsJson, Tabular):
    """The placement of a network's layers, and its predicted performance; see `plan`.

    Attributes
    ----------
    profile : Profile
        Measurements that the predictions are based on.
    devices : list of Context
        Devices that may be used.
    micro_batches : int
        Number of micro-batches into which the batch is divided.
    schedule : str
        Name of the schedule.
    seconds : float
        Predicted time of a step including the update.
    simulation : schedules.Simulation
        Simulation of the step without the update.
    bubble : float
        Predicted fraction of the used devices' time that is idle.
    memory : dict of Context to int
        Predicted bytes of parameters, gradients, optimizer states and micro-batches in flight.

    Examples
    --------
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
    >>> net.initialize()
    >>> plan = mx.parallel.plan(net, nd.ones((8, 4)), [mx.cpu(0), mx.cpu(1)],
    ...                         micro_batches=2, repeats=1, trials=0, progress=False)
    >>> plan.move('0', mx.cpu(1)).move('1', mx.cpu(0)).placement
    {'0': cpu(1), '1': cpu(0)}
    >>> plan.change(schedule='1f1b').schedule
    '1f1b'
    """

    profile: layer_profile.Profile
    devices: list[Context]
    micro_batches: int
    schedule: str
    seconds: float
    simulation: Simulation
    bubble: float
    memory: dict[Context, int]

    def __init__(
        self, profile: layer_profile.Profile, limits: dict[Context, int], candidate: Any
    ) -> None:
        self.profile, self.devices = profile, profile.devices
        self.limits: dict[Context, int] = limits
        self._take(candidate)

    def _take(self, candidate):
        self.candidate: Any = candidate
        self.micro_batches, self.schedule, self.seconds, self.simulation = (
            candidate.micro_batches,
            candidate.schedule,
            candidate.seconds,
            candidate.simulation,
        )
        self.bubble = candidate.simulation.bubble
        self.memory = {ctx: sum(candidate.memory[d]) for d, ctx in enumerate(self.devices)}

    def _search(self):
        return Search(self.profile, self.limits, [self.micro_batches], [self.schedule])

    @property
    def placement(self) -> dict[str, Context]:
        """The device of each layer, by its path."""
        whole = self._search().whole(self.candidate.placement)
        return {
            layer.path: self.devices[d]
            for layer, d in zip(self.profile.layers, whole)
            if layer.path
        }

    @property
    def stages(self) -> list[tuple[Context, list[str]]]:
        """The device and the layers' names of each stage."""
        return [
            (self.devices[d], [self.profile.layers[i].name for i in stage])
            for d, stage in zip(self.candidate.where, self.candidate.stages)
        ]

    def move(self, layer: str, device: Context) -> Plan:
        """Moves a layer to another device and recomputes the predictions.

        Parameters
        ----------
        layer : str
            Path of the layer in the network's tree, as in `placement`.
        device : Context
            One of `devices`.

        Returns
        -------
        Plan
            This plan.

        Raises
        ------
        ValueError
            If the layer does not exist, or the device is not one of the plan's devices.
        """
        if device not in self.devices:
            raise ValueError(
                f"Plan.move: {device} is not one of the plan's devices, "
                f"{', '.join(map(str, self.devices))}"
            )
        search = self._search()
        places = [self.profile.layers[i].path for i in search.free]
        if layer not in places:
            raise ValueError(
                f"Plan.move: unknown layer {layer!r}; expected one of {', '.join(places)}"
            )
        placement = list(self.candidate.placement)
        placement[places.index(layer)] = self.devices.index(device)
        return self._anew(tuple(placement), self.micro_batches, self.schedule)

    def change(self, micro_batches: int | None = None, schedule: str | None = None) -> Plan:
        """Changes the number of micro-batches or the schedule, and recomputes the predictions.

        Parameters
        ----------
        micro_batches : int, optional
            Number from 1 to the rows of the batch.
        schedule : str, optional
            A name in `mpgluon.parallel.schedules.SCHEDULES`.

        Returns
        -------
        Plan
            This plan.

        Raises
        ------
        ValueError
            If the batch cannot be divided into this number, or the schedule does not exist.
        """
        if schedule is not None:
            named(schedule, "Plan.change: ")
        if micro_batches is not None:
            _numbers(micro_batches, self.profile.rows, 1)
        return self._anew(
            self.candidate.placement, micro_batches or self.micro_batches, schedule or self.schedule
        )

    def _anew(self, placement, micro_batches, schedule):
        self._take(self._search().evaluate(placement, micro_batches, schedule))
        return self

    def fits(self) -> bool:
        """True if every device has enough memory."""
        return not self._search().excess(self.candidate)[0]

    # Usage

    def pipeline(self) -> Pipeline:
        """Returns the planned `Pipeline`, whose schedule uses the planned times."""
        from .._pipeline.pipeline import Expected, Pipeline

        pipeline = Pipeline(self.micro_batches, self.schedule)
        if self.candidate.order is not None:
            pipeline.expected = Expected(
                [self.devices[d] for d in self.candidate.where], self.candidate.order
            )
        return pipeline

    def place(self, net: HybridBlock) -> HybridBlock:
        """Moves the parameters of a network to the planned devices, on which its layers then
        compute. The network's code does not change.

        Every layer gets the device group of its device (as with ``mx.AttrScope(ctx_group=...)``),
        so its inputs are moved there. Operators between layers run on the device of their first
        input. Optimizer states follow with the next step. Returns the network.

        Raises
        ------
        MXNetError
            If the plan is for another network, or the network is not initialized or belongs to
            other device groups.
        """
        refuse_inner(net, "Plan.place")
        refuse_partitioned(net, "Plan.place", ONE_LAYOUT)
        found = {path: block for _, _, path, block in walk(net)}
        placement = self.placement
        for layer in self.profile.layers:
            if not layer.path:
                continue
            block = found.get(layer.path)
            if block is None or type(block).__name__ != layer.kind:
                there = "none" if block is None else f"a {type(block).__name__}"
                raise MXNetError(
                    f"Plan.place: the plan is for another network: it has a {layer.kind} at "
                    f"{layer.path!r}, but this network has {there}"
                )
            missing = [
                p.name
                for p in block.collect_params().values()
                if p.arrays is None and not p.deferred_init
            ]
            if missing:
                raise MXNetError(
                    f"Plan.place: parameter '{missing[0]}' is not initialized; call "
                    "net.initialize() first"
                )
        other = [
            path
            for path, block in found.items()
            if group_of(block) is not None and not is_placement(group_of(block))
        ]
        if other:
            raise MXNetError(
                f"Plan.place: block {other[0]!r} already belongs to the group "
                f"{group_of(found[other[0]])!r}"
            )
        moved = set()
        forget_placement(net)
        for path, ctx in placement.items():
            set_group(found[path], f"{GROUP}{ctx}")
            for param in found[path].collect_params().values():
                if param not in moved:  # shared parameters are on the device of the first layer
                    moved.add(param)
                    if param.list_ctx() != [ctx]:
                        param.reset_ctx(ctx)
        set_devices_of_groups(net, {f"{GROUP}{ctx}": ctx for ctx in self.devices})
        return net

    def compare(self, report: Report) -> Comparison:
        """Returns a `Comparison` of the predictions with the measurements in the pipeline's
        `Report`."""
        if not isinstance(report, Report):
            raise TypeError(
                "Plan.compare: report must be the result of pipeline.report(), not "
                f"{type(report).__name__}"
            )
        return Comparison(self, report)

    # Storage

    def to_json(self) -> dict[str, Any]:
        """Returns a dict of plain values."""
        return {
            "format": FORMAT,
            "placement": {path: str(ctx) for path, ctx in self.placement.items()},
            "micro_batches": self.micro_batches,
            "schedule": self.schedule,
            "memory": {str(ctx): limit for ctx, limit in self.limits.items()},
            "predicted": {
                "seconds": self.seconds,
                "bubble": self.bubble,
                "bytes": {str(ctx): size for ctx, size in self.memory.items()},
            },
            "profile": self.profile.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """Returns the plan that `to_json` described. Raises MXNetError if `data` is invalid."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise MXNetError(
                "not a plan: its format is "
                f"{data.get('format') if isinstance(data, dict) else data!r}, not {FORMAT!r}"
            )
        try:
            profile = layer_profile.Profile.from_json(data["profile"])
            limits = {
                layer_profile.parse_context(name): limit for name, limit in data["memory"].items()
            }
            named(data["schedule"])
            _numbers(data["micro_batches"], profile.rows, 1)
            search = Search(profile, limits, [data["micro_batches"]], [data["schedule"]])
            placement = tuple(
                profile.devices.index(
                    layer_profile.parse_context(data["placement"][profile.layers[i].path])
                )
                for i in search.free
            )
            return cls(
                profile, limits, search.evaluate(placement, data["micro_batches"], data["schedule"])
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise MXNetError(f"the plan is damaged: {type(error).__name__}: {error}") from error

    # Output

    def _parts(self):
        times, spans = self.candidate.times, self.simulation.spans
        rows = [
            (
                "stage",
                "device",
                "forward ms",
                "backward ms",
                "deferred ms",
                "idle",
                "parameter bytes",
                "layers",
            )
        ]
        busy = dict.fromkeys(self.devices, 0.0)
        for s, (ctx, _) in enumerate(self.stages):
            busy[ctx] += sum(end - begin for a, (begin, end) in spans.items() if a.stage == s)
        for s, (ctx, names) in enumerate(self.stages):
            ms = [f"{times[k, s] * 1e3:.3f}" if (k, s) in times else "" for k in "FBW"]
            size = sum(self.profile.layers[i].param_bytes for i in self.candidate.stages[s])
            rows.append(
                (
                    str(s),
                    str(ctx),
                    *ms,
                    f"{1 - busy[ctx] / max(self.simulation.makespan, 1e-30):.1%}",
                    f"{size:,}",
                    _span(names),
                )
            )
        memory = [("device", "bytes of parameters and states", "bytes of micro-batches", "limit")]
        for d, ctx in enumerate(self.devices):
            limit = self.limits.get(ctx)
            memory.append(
                (
                    str(ctx),
                    *[f"{size:,}" for size in self.candidate.memory[d]],
                    f"{limit:,}" if limit is not None else "",
                )
            )
        first = (
            f"{len(self.stages)} stages, {self.micro_batches} micro-batches, {self.schedule}: "
            f"{_ms(self.seconds)} ms a step predicted, bubble {self.bubble:.1%}"
        )
        return [first, rows, memory]

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the predicted timeline and each device's memory. Returns the figure, and writes it
        to `path` if given.

        Raises
        ------
        ImportError
            If matplotlib, which the extra ``viz`` installs, is missing.
        """
        figure, (time, memory) = new_figure(
            "Plan.plot", 1.2 + 0.7 * len(self.devices), ncols=2, width_ratios=(4, 1), sharey=True
        )
        spans = self.simulation.spans
        draw_spans(
            time,
            spans,
            [self.devices.index(self.stages[action.stage][0]) for action in spans],
            self.simulation.makespan,
        )
        time.set_title(
            f"{self.micro_batches} micro-batches, {self.schedule}: {_ms(self.seconds)} ms "
            "predicted",
            loc="left",
            fontsize=10,
        )
        time.set_xlabel("ms")
        time.set_yticks(range(len(self.devices)), [str(ctx) for ctx in self.devices])
        for row, ctx in enumerate(self.devices):
            fixed, moving = self.candidate.memory[row]
            memory.barh(
                row,
                fixed / 2**20,
                height=0.6,
                color="#a9a9a9",
                label="parameters and states" if not row else None,
            )
            memory.barh(
                row,
                moving / 2**20,
                left=fixed / 2**20,
                height=0.6,
                color="#d8c36a",
                label="micro-batches" if not row else None,
            )
            if self.limits.get(ctx) is not None:
                memory.plot([self.limits[ctx] / 2**20] * 2, [row - 0.4, row + 0.4], color="#b03030")
        memory.set_xlabel("MB")
        memory.legend(fontsize=7, frameon=False, loc="upper right", bbox_to_anchor=(1, 1.3))
        time.invert_yaxis()
        if path is not None:
            figure.savefig(path, dpi=130)
        return figure


def _ms(seconds):
    return f"{seconds * 1e3:.2f}" if seconds >= 1e-3 else f"{seconds * 1e3:.4f}"


def _span(names):
    return (
        names[0]
        if len(names) == 1
        else f"{names[0]} ... {names[-1]} ({len(names)})"
        if names
        else "(sends the batch)"
    )


class Comparison(Tabular):
    """A comparison of a plan with a measured step.

    Attributes
    ----------
    predicted, measured : float
        Seconds from the start of the first stage to the end of the last one. If the plan was run in
        a trial, these are the seconds of the fastest step.
    error : float
        Relative error of the prediction.
    stages : list of (Context, dict of str to (float or None, float or None))
        For each stage its device, and predicted and measured seconds of its passes 'F', 'B' and
        'W'.
    """

    predicted: float
    measured: float
    error: float
    stages: list[tuple[Context, dict[str, tuple[float | None, float | None]]]]

    def __init__(self, plan: Plan, report: Report) -> None:
        trial = plan.profile.trial(plan.candidate)
        self.predicted, self.measured = (
            trial.makespan if trial and trial.makespan else plan.simulation.makespan,
            report.seconds,
        )
        self.error = self.predicted / self.measured - 1 if self.measured else 0.0
        self.bubbles: tuple[float, float] = plan.bubble, report.bubble
        times = plan.candidate.times
        graph, contexts = report.stages.graph, report.stages.contexts
        planned, measured = {}, {}
        any_rank = any(ctx.rank is not None for ctx in plan.devices)
        for s, (ctx, _) in enumerate(plan.stages):
            planned.setdefault(ctx, []).append((s, {k: times.get((k, s)) for k in "FBW"}))
        for s, d in enumerate(graph.devices):
            if contexts[d].rank is None and contexts[d] not in planned and any_rank:
                continue  # a copy from one of the rank's own devices
            measured.setdefault(contexts[d], []).append(
                {k: report.times.get((k, s)) for k in "FBW"}
            )
        if {ctx: len(rows) for ctx, rows in planned.items()} != {
            ctx: len(rows) for ctx, rows in measured.items()
        }:
            raise MXNetError(
                "Plan.compare: the report belongs to another placement: its stages are on "
                f"{', '.join(str(contexts[d]) for d in graph.devices)}, the plan's on "
                f"{', '.join(str(ctx) for ctx, _ in plan.stages)}"
            )
        if report.micro_batches != plan.micro_batches:
            raise MXNetError(
                f"Plan.compare: the report has {report.micro_batches} micro-batches, but the "
                f"plan has {plan.micro_batches}"
            )
        self.stages = [None] * len(plan.stages)
        for ctx, rows in planned.items():
            for (s, one), two in zip(rows, measured[ctx]):
                self.stages[s] = ctx, {k: (one[k], two[k]) for k in "FBW"}
        self.memory: dict[Context, tuple[Any, int]] = {
            ctx: (plan.candidate.memory[plan.devices.index(ctx)][1], size)
            for ctx, size in report.planned_bytes.items()
            if ctx in plan.devices
        }

    def _parts(self):
        rows = [
            (
                "stage",
                "device",
                "forward ms",
                "measured",
                "backward ms",
                "measured",
                "deferred ms",
                "measured",
            )
        ]
        for number, (ctx, passes) in enumerate(self.stages):
            rows.append(
                (
                    str(number),
                    str(ctx),
                    *[
                        "" if value is None else f"{value * 1e3:.3f}"
                        for k in "FBW"
                        for value in passes[k]
                    ],
                )
            )
        memory = [("device", "bytes of micro-batches", "by the compiled plan")]
        memory += [(str(ctx), *[f"{size:,}" for size in pair]) for ctx, pair in self.memory.items()]
        first = (
            f"passes: predicted {_ms(self.predicted)} ms, measured {_ms(self.measured)} ms "
            f"({self.error:+.1%}); bubble {self.bubbles[0]:.1%}, measured {self.bubbles[1]:.1%}"
        )
        return [first, rows, memory]
