"""Pipeline parallelism for blocks: micro-batches run concurrently on the block's devices."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from ... import _core, autograd, ndarray as nd
from ..._core import (
    MICRO_BATCH_CARRIED as CARRIED,
    MICRO_BATCH_SHARED as SHARED,
    MICRO_BATCH_SPLIT as SPLIT,
)
from ..._internal import device_groups, graph_breaks
from ..._internal.hints import OptionsChecked
from ..._internal.kinds import like
from ...base import MXNetError, counted, is_floating
from ...gluon import _nested
from ...gluon._compiled import running_statistics
from ...gluon._compiled.call import CompiledCall, Signature
from ...gluon._compiled.captured import without_variables
from ...ndarray._sparse.row_taps import FlatTaps, MicroBatchTaps, has_row_gradient
from .. import collectives, schedules
from ..collectives import divide
from .advice import divided_by_length, of_size
from .checks import check, placeholders
from .driver import AUTO, Driver
from .host_steps import HostCalls, HostSteps, LiveDiscovery
from .report import Report

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from ...context import Context

__all__ = ["Pipeline"]

_NONE = contextlib.nullcontext()


class Pipeline(OptionsChecked):
    """Pipeline parallelism for a hybridized block: ``net.hybridize(pipeline=Pipeline(...))`` or
    `TrainStep`.

    A stage is the block's work on one device between two moves to another device; the block's code
    does not change. Every call divides its batch into micro-batches. While one device works on a
    micro-batch, the next device works on the previous one.

    Parameters
    ----------
    micro_batches : int
        Number of micro-batches. If the batch cannot be divided evenly, the first ones have one more
        row. A batch with fewer rows has one micro-batch for each row.
    schedule : str or list, default '1f1b'
        A name in `mpgluon.parallel.schedules.SCHEDULES` ('gpipe', '1f1b', 'interleaved',
        'zero_bubble'), 'auto' (the fastest of them by measured times, chosen after the first
        steps), or a table. A table has, for each device in the order of its first stage, a list of
        (kind, stage, micro_batch), in which kind is 'F', 'B' or 'W'. In the ordinary loop of
        ``record`` and ``backward``, all forward passes precede all backward passes, whatever the
        schedule. `TrainStep` includes the loss in the graph and follows the schedule.
    along : {'batch', 'time'}, default 'batch'
        'time' divides sequences. It is for recurrent and causal networks, which pass state from
        micro-batch to micro-batch.
    axis : int, default 0
        The axis to divide, the same for all inputs that have it.
    split : list of int, optional
        Indices of the input arrays to divide; arrays in nested lists are counted in order. By
        default, the first input is divided, and all inputs with the same length along ``axis``.
        Every micro-batch receives the whole of the remaining inputs.
    carry : dict of int to int, optional
        Along time: maps the index of an argument with state to the index of the result that
        replaces it in the next micro-batch. By default ``{1: 1}``: the block is called as ``net(x,
        states)`` and returns ``(out, states)``.
    statistics : {'micro_batch', 'batch'}, default 'micro_batch'
        How BatchNorm's running averages are updated. 'micro_batch' updates them with every
        micro-batch in turn. 'batch' updates them once, with the mean and variance of the whole
        batch, combined from the statistics of the micro-batches. In both cases, a micro-batch is
        normalized by its own statistics in training, so it does not wait for the others, and
        results and gradients are bitwise equal. 'batch' supports `gluon.nn.BatchNorm`.
    check : bool, default True
        Whether to raise an error, before anything runs, for an operator whose result on a
        micro-batch differs from the same rows of its result on the whole batch. Examples are
        softmax over the batch, a mean of all rows, x[:4] and x / len(x). If False, the operator is
        applied to every micro-batch separately.

    Notes
    -----
    Results and gradients are bitwise identical to running the micro-batches one after the other and
    accumulating gradients. Dropout masks, and random arrays of the divided inputs' shapes, are the
    same as for the whole batch. A draw without the batch axis, such as a mask of a weight, is the
    same in all micro-batches. Draws whose batch axis is not the divided axis, such as
    ``normal_like(x.T)``, have the same distribution, but other numbers than the whole batch.
    Statistics over the batch (BatchNorm) are those of a micro-batch.

    Raises
    ------
    ValueError
        If an argument is invalid.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(8, in_units=4), mx.gluon.nn.Dense(2, in_units=8))
    >>> mesh = mx.parallel.Mesh({'stage': 2}, [mx.cpu(0), mx.cpu(1)])
    >>> _ = mesh.place(net)
    >>> net.initialize()
    >>> net.hybridize(pipeline=mx.parallel.Pipeline(micro_batches=4))
    >>> net(mx.nd.ones((8, 4))).shape
    (8, 2)
    >>> mx.parallel.Pipeline(4, 'zero_bubble')
    Pipeline(4 micro-batches along batch, schedule='zero_bubble')
    """

    def __init__(
        self,
        micro_batches: int,
        schedule: str | Sequence[Sequence[tuple[str, int, int]]] = schedules.DEFAULT,
        along: str = "batch",
        axis: int = 0,
        split: Sequence[int] | None = None,
        carry: dict[int, int] | None = None,
        statistics: str = "micro_batch",
        check: bool = True,
    ) -> None:
        if (
            not isinstance(micro_batches, int)
            or isinstance(micro_batches, bool)
            or micro_batches < 1
        ):
            raise ValueError(
                f"Pipeline: micro_batches must be a positive integer, not {micro_batches!r}"
            )
        if along not in ("batch", "time"):
            raise ValueError(f"Pipeline: along must be 'batch' or 'time', not {along!r}")
        if isinstance(schedule, str):
            schedule = schedule.lower()  # accept '1F1B', the name in other frameworks
        if isinstance(schedule, str) and schedule != AUTO:
            schedules.named(schedule, "Pipeline: ", f", {AUTO}, and your own tables")
        if not isinstance(schedule, (str, list, tuple)) or not all(
            isinstance(row, (list, tuple)) for row in schedule if not isinstance(schedule, str)
        ):
            raise ValueError(
                "Pipeline: schedule must be a name, or for each device a list of (kind, stage, "
                f"micro_batch), not {str(schedule)[:80]}"
            )
        if not _whole(axis):
            raise ValueError(
                "Pipeline: axis must be a non-negative integer (inputs may have different "
                f"numbers of axes), not {axis!r}"
            )
        if split is not None and not (
            isinstance(split, (list, tuple))
            and split
            and all(map(_whole, split))
            and len(set(split)) == len(split)
        ):
            raise ValueError(
                f"Pipeline: split must be a list of unique input indices, not {split!r}"
            )
        if carry is not None and along != "time":
            raise ValueError("Pipeline: carry= needs a pipeline along time")
        if carry is not None and not (
            isinstance(carry, dict) and carry and all(map(_whole, [*carry, *carry.values()]))
        ):
            raise ValueError(
                f"Pipeline: carry must be a dict of integers, {{argument: result}}, not {carry!r}"
            )
        if statistics not in ("micro_batch", "batch"):
            raise ValueError(
                f"Pipeline: statistics must be 'micro_batch' or 'batch', not {statistics!r}"
            )
        self.micro_batches = micro_batches
        self.schedule = schedule
        self.along = along
        self.axis = axis
        self.split: list[int] | None = None if split is None else list(split)
        self.statistics = statistics
        self.carry: dict[int, int] = (
            ({1: 1} if carry is None else dict(carry)) if along == "time" else {}
        )
        self.check: bool = bool(check)
        self._last = None
        self.expected: Expected | None = None  # predictions of a plan

    def __repr__(self) -> str:
        schedule = repr(self.schedule) if isinstance(self.schedule, str) else "a custom table"
        if self.schedule == AUTO and self._last is not None:
            schedule += f", last {self._last[1].schedule}"
        axis = f", axis={self.axis}" if self.axis else ""
        return (
            f"Pipeline({self.micro_batches} micro-batches along {self.along}{axis}, "
            f"schedule={schedule})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}  # a copy has not run yet

    @property
    def deferred(self) -> bool:
        """True if weight gradients are queued separately."""
        if isinstance(self.schedule, str):
            names = schedules.SCHEDULES if self.schedule == AUTO else [self.schedule]
            return any(schedules.named(name).deferred for name in names)
        return any(
            isinstance(entry, (list, tuple)) and entry[:1] in (("W",), ["W"])
            for row in self.schedule
            for entry in row
        )

    def report(self) -> Report:
        """Returns a `Report` with the times of the last step. Waits for the end of the step. Raises
        MXNetError if nothing has run."""
        if self._last is None:
            raise MXNetError("Pipeline: no step has run in this pipeline yet")
        return Report(*self._last)

    def note_run(self, *run: Any) -> None:
        """Records the arguments as the value of `last_run`."""
        self._last = run

    def last_run(self) -> tuple[Any, ...] | None:
        """Returns the last run: (its times, a `Prepared`, phases)."""
        return self._last

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Returns a figure of the planned and the measured timeline of the last step; see
        `Report.plot`."""
        return self.report().plot(path)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the planned and the measured timeline of the last step as a Chrome trace; see
        `Report.trace`."""
        self.report().trace(path)


class Expected:
    """A plan's predictions for a pipeline: the devices of the stages, and a dict from (kind, stage)
    to the seconds for one micro-batch."""

    def __init__(self, contexts: list[Context], times: dict[Any, float]) -> None:
        self.contexts: list[Context] = contexts
        self.times: dict[Any, float] = times


def _whole(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _leading(a, axis):
    """Swaps the divided axis with axis 0. A second call restores the array."""
    return a if axis == 0 else nd.swapaxes(a, dim1=0, dim2=axis)


def _carried_places(args, carry):
    """Returns a dict from each carried argument to the indices of its arrays in the flat list of
    all arguments' arrays."""
    places, at = {}, 0
    for number, arg in enumerate(args):
        flat = []
        _nested.flatten(arg, flat, "The inputs")
        if number in carry:
            places[number] = range(at, at + len(flat))
        at += len(flat)
    return places


class Entry:
    """A block compiled for batches of given shapes, with a staged call for each micro-batch
    size."""

    def __init__(self, signature, kinds, pipeline):
        self.signature, self.kinds, self.pipeline = signature, kinds, pipeline
        # (rows of a micro-batch, recording state, ...) -> (StagedCall, statistics, kinds of the
        # call's outputs)
        self.calls = {}
        self.output_kinds, self.carried_from = None, None
        # Number of the block's own outputs. The outputs for taps and statistics follow the block's
        # outputs.
        self.own = 0
        self.lookups = {}  # (rows, shapes of the state) -> `row_taps.Lookup` of each tap
        self.compared = False  # True once the traces of two micro-batch sizes have been compared
        self.misshapen = None  # (index, shape) of a result that lacks the divided axis
        self.copied = ()  # indices of results that must be copied to have separate memory
        # Statistics of BatchNorm layers in the last trace
        # (running_statistics.Statistics.layers).
        self.statistics = []
        # Results of the host steps of the first trace, for micro-batches of `host_rows` rows, the
        # steps of the last trace, and the calls of steps that the first trace has made.
        self.host_results, self.host_rows = [], 0
        self.host_steps, self.host_records = [], []
        self.updates = {}  # sizes of micro-batches -> running_statistics.Update
        self.tables = {}  # (programs, phases, schedule) -> Prepared
        self.structures = {}  # (structures of programs, phases, schedule) -> Prepared
        # `called` counts the calls. `micro_batches` and `shapes` describe the last call: the rows
        # of each micro-batch, and (device, dtype, shape) of the inputs.
        self.called, self.micro_batches, self.shapes = 0, (), ()
        self.runs, self.chosen = 0, None  # schedule='auto': number of runs, and the chosen schedule

    def trace(self, rows, *arrays):
        """Runs the block on traced arrays whose divided axis is axis 0. The results have the same
        layout."""
        axis = self.pipeline.axis
        inputs, params, taps = self._apart(arrays)
        taps = FlatTaps.of(taps) if taps else None
        tracer = self._tracer(rows)
        with (
            _core.Scope((vars(graph_breaks.thread), "tracer", tracer)),
            running_statistics.Statistics()
            if self.pipeline.statistics == "batch" and self.pipeline.micro_batches > 1
            else _NONE as statistics,
        ):
            with collectives.in_pipeline():
                outputs = (
                    self.signature.trace_tapped(inputs, params, taps)
                    if taps
                    else self.signature.trace(*inputs, *params)
                )
        self.statistics = statistics.layers if statistics else []
        self.host_steps = tracer.steps
        carried = self._carried_outputs()
        self.misshapen = None
        kinds, results = [], []
        for i, out in enumerate(outputs):
            if i in carried:
                kinds.append(CARRIED)
            elif out.ndim > axis and out.shape[axis] == rows:
                out = _leading(out, axis)
                kinds.append(SPLIT)
            elif axis == 0 and out.ndim and rows and out.shape[0] % rows == 0 and out.shape[0]:
                kinds.append(SPLIT)
            else:
                kinds.append(SPLIT)
                self.misshapen = self.misshapen or (i, out.shape)
            results.append(out)
        self.own = len(results)
        if taps:
            kinds += [SPLIT] * len(taps.lookups)
            results += taps.outputs()
        results = [out.copy() if i in self.copied else out for i, out in enumerate(results)]
        if statistics:
            kinds += [SPLIT] * len(statistics.arrays)  # one row per micro-batch
            results += statistics.arrays
        self.output_kinds = kinds
        return results

    def _tracer(self, rows):
        return HostSteps(self.host_results, self.host_rows, rows, self.pipeline.axis)

    def _apart(self, arrays):
        """Splits the arrays into (inputs as the block expects them, parameters, taps)."""
        first = len(self.kinds)
        last = first + len(self.signature.used)
        inputs = [
            _leading(a, self.pipeline.axis) if kind == SPLIT else a
            for a, kind in zip(arrays, self.kinds)
        ]
        return inputs, list(arrays[first:last]), list(arrays[last:])

    def find_lookups(self, rows, arrays):
        """Returns the lookups of a recorded call on these arrays: the rows that it uses of
        parameters with row_sparse gradients."""
        if not any(has_row_gradient(param) for param, _ in self.signature.used):
            return []
        key = (rows, tuple(a.shape for a in arrays))
        if key not in self.lookups:
            with autograd.record(autograd.is_training()), collectives.in_pipeline():
                inputs = self._apart(arrays)[0]
                found, _ = self.signature.discover_taps(inputs, FlatTaps, self._tracer(rows))
            self.lookups[key] = found.lookups
        return self.lookups[key]

    def _carried_outputs(self):
        """Returns the indices of carried results. Also records the result that each carried input
        receives from the previous micro-batch."""
        if not self.pipeline.carry:
            return ()
        structure = self.signature.outputs
        if not isinstance(structure, tuple) or structure[0] not in (list, tuple):
            raise MXNetError(
                f"{self.signature.path}: a pipeline along time needs a block that is called as "
                "net(x, states) and returns (out, states)"
            )
        places, at = {}, 0
        for number, part in enumerate(structure[1:]):
            count = _nested.count(part)
            places[number] = range(at, at + count)
            at += count
        carried, carried_from = set(), [0] * len(self.kinds)
        for argument, result in self.pipeline.carry.items():
            inputs = self.signature.carried_places.get(argument, ())
            outputs = places.get(result, ())
            if len(inputs) != len(outputs):
                raise MXNetError(
                    f"{self.signature.path}: argument {argument} has {len(inputs)} arrays of "
                    f"state, but result {result}, which is carried over to it, has "
                    f"{len(outputs)}"
                )
            for i, o in zip(inputs, outputs):
                carried_from[i] = o
                carried.add(o)
        self.carried_from = carried_from
        return carried

    def describe(self, path, exact):
        """Returns stages, programs, copies and planned bytes of the last run, as a dict."""
        latest = list(reversed(self.tables.items()))
        prepared = next((value for key, value in latest if "B" in key[1]), latest[0][1])
        stages, peaks, rows = prepared.stages, prepared.peaks, self.micro_batches
        devices = {}
        described = stages.describe()
        for ctx in stages.contexts:
            own = [stage for stage in described if stage["device"] == str(ctx)]
            steps = {
                title: [_step(op) for stage in own for op in stage[title]]
                for title in ("forward", "backward", "deferred")
            }
            devices[str(ctx)] = {
                "invariants": [],
                "forward": steps["forward"],
                "backward": [*steps["backward"], *steps["deferred"]],
                "segments": sum(
                    s["device"] == ctx
                    for d in (stages.forward, stages.backward)
                    if d
                    for s in d[0]["segments"]
                ),
                "copies": sum(stage["copies"] for stage in own),
                "bytes_sent": sum(stage["bytes_sent"] for stage in own),
                "planned": {
                    size: stages.planned(rows.index(size))[ctx] for size in dict.fromkeys(rows)
                },
                "peak": peaks.get(ctx, 0),
            }
        inputs = [
            (shape, _core.dtype_name(dtype), str(ctx), False)
            for shape, dtype, ctx, _ in self.shapes
        ]
        return {
            "block": path,
            "pipeline": repr(self.pipeline),
            "train": self.signature.training,
            "exact": exact,
            "shardings": stages.forward[0]["shardings"],
            "calls": self.called,
            "rows": list(rows),
            "inputs": inputs,
            "stages": described,
            "devices": devices,
            "ops": sum(len(stage["forward"]) for stage in described),
        }

    def call(self, rows, arrays, lookups, whole, wanted, exact, deferred):
        """Returns the staged call for micro-batches of `rows` rows, and the statistics of its
        BatchNorm layers. `whole` has the inputs of all micro-batches. `wanted` has True for each
        input that needs a gradient; None disables recording."""
        if wanted is not None:
            wanted = [*wanted, *[True] * len(lookups)]
        recording = wanted is not None
        total = next(a.shape[0] for a, kind in zip(whole, self.kinds) if kind == SPLIT)
        divided = rows < total
        states = tuple((a.shape, a.dtype) for a, kind in zip(arrays, self.kinds) if kind == CARRIED)
        key = (rows, divided, recording and tuple(wanted), states)
        if key not in self.calls:
            carried = [kind == CARRIED for kind in self.kinds]
            arrays = [*arrays, *placeholders(lookups)]
            carried += [False] * (len(arrays) - len(carried))

            def make():
                none = [False] * len(arrays)
                return _core.StagedCall(
                    lambda *traced: self.trace(rows, *traced),
                    arrays,
                    wanted or none,
                    carried,
                    recording=recording,
                    exact=exact,
                    defer=deferred,
                )

            try:
                call = make()
            except MemoryError:
                raise
            except (MXNetError, ValueError) as error:
                works = next((size for size, *_ in self.calls if size != rows), None)
                if works is None or _core.ranks_find_lost()[0] >= 0:
                    raise
                raise of_size(
                    error, self.signature.path, rows, works, self.pipeline, self.kinds
                ).with_traceback(error.__traceback__) from None
            shared = tuple(i for i, (*_, own) in enumerate(call.outputs) if not own)
            if shared:
                self.copied = shared
                call = make()
            steps = self.host_steps
            if divided and (self.pipeline.check or call.draws):
                try:
                    check(self, call, rows, arrays, whole, exact)
                except MemoryError:
                    raise
                except MXNetError as error:
                    advice = divided_by_length(self.pipeline, self.kinds, total)
                    raise type(error)(f"{error}{advice}").with_traceback(
                        error.__traceback__
                    ) from None
            if self.misshapen is not None:
                raise MXNetError(
                    f"{self.signature.path}: result {self.misshapen[0]} of a micro-batch of "
                    f"{counted(rows, 'row')} has shape {self.misshapen[1]}, without the axis "
                    "along which the batch is divided: an operator mixes data across the batch. "
                    "Apply it after the pipeline, to the whole result"
                )
            self.calls[key] = call, self.statistics, steps, self.output_kinds
        *found, self.output_kinds = self.calls[key]
        return found

    def update(self, rows, statistics):
        """Returns a function that updates the running averages, or None if there are none. It must
        be called after all micro-batches are queued."""
        if not statistics[0]:
            return None
        key = tuple(rows)
        if key not in self.updates:
            self.updates[key] = running_statistics.Update(statistics)
        return self.updates[key]


def _step(op):
    scope, name = op.rsplit("/", 1)
    return {"kind": "run", "scope": scope, "op": name}


class PipelinedCall:
    """Runs a block's calls in micro-batches. Replaces `CompiledCall` after
    ``hybridize(pipeline=...)``. Refers to the block weakly, like `CompiledCall`."""

    def __init__(self, block: Any, flags: dict[str, Any]) -> None:
        self._block, self._pipeline = weakref.ref(block), flags["pipeline"]
        self._exact = bool(flags.get("exact"))
        self._entries = {}

    def __call__(self, args: tuple[Any, ...]) -> Any:
        run, entry, note = self.begin(args, autograd.is_recording())
        driver = Driver(entry, self._pipeline)
        driver.forward(run, autograd.is_recording())
        if autograd.is_recording():
            outputs = run.record(driver)
        else:
            outputs = run.outputs()
            run.finish()
        note(outputs)
        return self.regroup(entry, outputs)

    def structure(self) -> Any:
        """Returns the argument structure of the first call, or None before it."""
        return next(iter(self._entries))[0] if self._entries else None

    def inputs(self) -> list[tuple[Any, ...]]:
        """Returns the description of each array of the first call (`graph_breaks.describe`)."""
        return next(iter(self._entries.values())).shapes

    def regroup(self, entry: Entry, outputs: list[nd.NDArray]) -> Any:
        axis = self._pipeline.axis
        outputs = [
            _leading(out, axis) if kind == SPLIT and axis else out
            for out, kind in zip(outputs[: entry.own], entry.output_kinds)
        ]
        structure = entry.signature.outputs
        return (
            outputs[0] if structure is _nested.ARRAY else _nested.regroup(structure, iter(outputs))
        )

    def begin(
        self, args: tuple[Any, ...], recording: bool, moved: bool = False, records: Any = ()
    ) -> tuple[_core.PipelineRun, Entry, Any]:
        """Returns a run of all micro-batches with nothing queued yet, its entry, and a function
        that must be called with the results once everything is queued. `moved` is True if the
        states are already on the devices on which the block returns them. `records` are calls of
        host steps that the first trace has already made."""
        axis, flat = self._pipeline.axis, []
        structure = _nested.flatten(args, flat, "The inputs")
        places = _carried_places(args, self._pipeline.carry)
        kinds, total = self.input_kinds(flat, places)
        count = max(min(self._pipeline.micro_batches, total), 1)  # at most one micro-batch per row
        rows = divide(total, count)
        fronts = [_leading(a, axis) if kind == SPLIT else a for a, kind in zip(flat, kinds)]
        entry, params = self._entry_of(structure, places, fronts, kinds, rows, recording)
        records, entry.host_records = [*records, *entry.host_records], []
        calls, statistics, taps, steps = self._calls(entry, fronts, kinds, params, rows, recording)
        if self._pipeline.carry and not moved:
            homes, outputs = [a.context for a in flat], calls[0].outputs
            for i in [i for i, kind in enumerate(kinds) if kind == CARRIED]:
                homes[i] = outputs[entry.carried_from[i]][2]
            if homes != [a.context for a in flat]:
                states = iter([a.as_in_context(ctx) for a, ctx in zip(flat, homes)])
                return self.begin(_nested.regroup(structure, states), recording, True, records)
        run = _core.PipelineRun(
            tuple(calls),
            tuple((axis, begin, end - begin, total) for begin, end in rows),
            [*kinds, *[SHARED] * len(params), *[SPLIT] * len(taps.arrays)],
            entry.output_kinds,
            [
                *(entry.carried_from or [0] * len(kinds)),
                *[0] * (len(params) + len(taps.arrays)),
            ],
            [*fronts, *params, *taps.arrays],
            HostCalls(steps, recording, autograd.is_training(), records) if any(steps) else None,
        )
        entry.called += 1
        entry.micro_batches = [end - begin for begin, end in rows]
        entry.shapes = [graph_breaks.describe(a) for a in flat]
        update = entry.update(list(entry.micro_batches), statistics)

        def note(outputs):
            taps.give(outputs[entry.own : entry.own + len(taps.arrays)])
            if update is not None:
                update(outputs[-update.count :])

        return run, entry, note

    def _entry_of(self, structure, places, fronts, kinds, rows, recording):
        """Returns the entry for calls with this signature, and the arrays of its parameters.
        Traces the block if there is no current entry."""
        key = (
            structure,
            tuple(kinds),
            tuple(
                (a.context, type(a), a.dtype, a.shape[1:] if k == SPLIT else a.shape)
                for a, k in zip(fronts, kinds)
            ),
            autograd.is_training(),
            _core.precision_changes(),
            device_groups.current(),
        )
        entry = self._entries.get(key)
        if entry is not None and entry.signature.is_current():
            try:
                return entry, entry.signature.parameter_arrays()
            except (KeyError, TypeError):
                pass  # retrace, because a parameter was moved or lost its arrays since the trace
        signature, discovery = self._discovered(structure, places, fronts, kinds, rows, recording)
        entry = self._entries[key] = Entry(signature, kinds, self._pipeline)
        entry.host_results, entry.host_rows = discovery.results, rows[0][1]
        entry.host_records = discovery.records
        return entry, signature.parameter_arrays()

    def _discovered(self, structure, places, fronts, kinds, rows, recording):
        """Returns a signature whose parameters are known and its `LiveDiscovery`, after tracing the
        first micro-batch. Raises MXNetError if the block does not support micro-batches."""
        axis, total = self._pipeline.axis, rows[-1][1]
        sample = [
            _leading(f[: rows[0][1]], axis) if kind == SPLIT else f
            for f, kind in zip(fronts, kinds)
        ]
        signature = self._signature(structure, places)
        discovery = LiveDiscovery(
            sample, (axis, *rows[0], total), recording, autograd.is_training()
        )
        try:
            signature.discover(sample, discovery)
        except MemoryError:
            raise
        except (MXNetError, ValueError) as error:
            own = len(rows) == 1 or discovery.failed
            if own or not self._works(self._signature(structure, places), fronts, kinds):
                raise
            size = rows[0][1]
            raise of_size(error, signature.path, size, total, self._pipeline, kinds).with_traceback(
                error.__traceback__
            ) from None
        return signature, discovery

    def _calls(self, entry, fronts, kinds, params, rows, recording):
        """Returns the compiled call and the BatchNorm statistics of each micro-batch, the taps, and
        the host steps of each micro-batch."""
        wanted = None
        if recording:
            carries = [kind == CARRIED and is_floating(a.dtype) for a, kind in zip(fronts, kinds)]
            wanted = [a._wants_gradient or carried for a, carried in zip(fronts, carries)]
            wanted += [param._wants_gradient for param in params]
        calls, statistics, lookups, steps = [], [], [], []
        state = {i: fronts[i] for i, kind in enumerate(kinds) if kind == CARRIED}
        for begin, end in rows:
            arrays = [
                f[begin:end] if kind == SPLIT else state.get(i, f)
                for i, (f, kind) in enumerate(zip(fronts, kinds))
            ]
            arrays += params
            lookups.append(entry.find_lookups(end - begin, arrays) if recording else [])
            call, found, own_steps = entry.call(
                end - begin,
                arrays,
                lookups[-1],
                fronts,
                wanted,
                self._exact,
                self._pipeline.deferred and recording,
            )
            calls.append(without_variables(call, entry.signature))
            statistics.append(found)
            steps.append(own_steps)
            for i in state:  # shape and dtype of the state after this micro-batch
                shape, dtype, *_ = call.outputs[entry.carried_from[i]]
                if (shape, dtype) != (state[i].shape, _core.dtype_name(state[i].dtype)):
                    empty = nd.empty(shape, ctx=state[i].context, dtype=dtype)
                    state[i] = like(empty, state[i])
        return calls, statistics, MicroBatchTaps(lookups), steps

    def _signature(self, structure, places):
        block = self._block()
        signature = Signature(
            block,
            getattr(block, "shown_name", type(block).__name__),
            structure,
            autograd.is_training(),
        )
        signature.carried_places = places
        return signature

    def _works(self, signature, fronts, kinds):
        """True if the block can be traced on the whole batch."""
        try:
            signature.discover(
                [
                    _leading(f, self._pipeline.axis) if kind == SPLIT else f
                    for f, kind in zip(fronts, kinds)
                ]
            )
        except MemoryError:
            raise
        except (MXNetError, ValueError):
            return False
        return True

    def input_kinds(self, flat: list[Any], places: dict[int, list[int]]) -> tuple[list[Any], int]:
        """Returns the kind of each input, and the number of rows of the divided inputs. `places`
        has the indices of the carried inputs (see `_carried_places`)."""
        pipeline, axis = self._pipeline, self._pipeline.axis
        carried = {i for arrays in places.values() for i in arrays}
        split = pipeline.split
        if split is None:
            first = next((a for i, a in enumerate(flat) if i not in carried), None)
            if first is None or first.ndim <= axis:
                raise ValueError(
                    f"Pipeline: the first input must have axis {axis}, along which it is divided"
                )
            total = first.shape[axis]
            split = [
                i
                for i, a in enumerate(flat)
                if i not in carried and a.ndim > axis and a.shape[axis] == total
            ]
        else:
            bad = [i for i in split if not 0 <= i < len(flat) or flat[i].ndim <= axis]
            if bad or not split:
                raise ValueError(
                    f"Pipeline: split={split} does not match the {len(flat)} inputs: these "
                    f"inputs must exist and have axis {axis}"
                )
            total = flat[split[0]].shape[axis]
            other = [i for i in split if flat[i].shape[axis] != total]
            if other:
                raise ValueError(
                    f"Pipeline: input {other[0]} has "
                    f"{counted(flat[other[0]].shape[axis], 'row')} along axis {axis}, but input "
                    f"{split[0]} has {total}"
                )
        return [
            CARRIED if i in carried else SPLIT if i in split else SHARED for i in range(len(flat))
        ], total

    @property
    def dropped(self) -> int:
        return 0  # signatures are never evicted

    def entries(self, path: str) -> list[dict[str, Any]]:
        """Returns the compiled programs as dicts (see `CompiledPrograms`), one for each
        signature."""
        return [
            entry.describe(path, self._exact) for entry in self._entries.values() if entry.tables
        ]

    def discover(self, args: tuple[Any, ...]) -> None:
        CompiledCall(self._block(), {}).discover(args)
