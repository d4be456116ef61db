"""Host steps of a pipeline: user code inside a stage, such as an `autograd.Function`.

In the graph, a host step is one op without a kernel. Once its inputs are queued, the thread that
submits the run calls the code on copies of them, and queues copies of its results. The code is
recorded on the tape, so its gradient needs no special handling. `HostSteps` traces the steps of one
micro-batch size, and `HostCalls` calls them for all micro-batches of a run.

The shapes of an `autograd.Function`'s results are not known before it has run. `LiveDiscovery`, the
first trace of a block, therefore runs the steps on the first micro-batch. The first run uses these
results, so the code is called once for each micro-batch.
"""

from __future__ import annotations

from array import array as array_of
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _core, autograd
from ..._core import MICRO_BATCH_CARRIED as CARRIED, MICRO_BATCH_SHARED as SHARED
from ..._internal import graph_breaks, kinds
from ...base import MXNetError, is_floating
from ...gluon._compiled import tracing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...ndarray import NDArray

__all__ = ["HostCalls", "HostSteps", "LiveDiscovery"]


class Record(NamedTuple):
    """One call of a host step, on the tape if the run is recorded."""

    inputs: list[NDArray]
    outputs: list[NDArray]
    written: list[int]  # indices of the inputs that the code has written


class Step:
    """A host step of a traced block."""

    def __init__(self, name: str, run: Any, inputs: Sequence[NDArray], outputs: Any) -> None:
        self.name, self.run = name, run
        self.inputs: list[Any] = [(array.context, kinds.is_numpy(array)) for array in inputs]
        self.outputs = [_normal(desc) for desc in outputs]
        self.scope, self.path = _core.get_scope(), _core.current_scope()

    def call(self, arrays: Sequence[NDArray], recording: bool, training: bool) -> Record:
        """Runs the code on arrays that no other code uses."""
        with graph_breaks.running(recording, training):
            inputs = [
                kinds.of_kind(a.as_in_context(ctx), numpy)
                for a, (ctx, numpy) in zip(arrays, self.inputs)
            ]
            for a in inputs if recording else ():
                if is_floating(a.dtype):
                    a.attach_grad()
            versions = [a._version for a in inputs]
            with _core.Scope((_core.set_group, None), (_core.set_scope, self.scope)):
                outputs = list(self.run(inputs))
        written = [i for i, a in enumerate(inputs) if a._version != versions[i]]
        return Record(inputs, outputs, written)

    def check(self, outputs: Sequence[NDArray]) -> None:
        """Raises MXNetError if the results differ from the trace."""
        found = [_normal(graph_breaks.describe(array)) for array in outputs]
        if found == self.outputs:
            return
        texts = [
            ", ".join(f"{dtype} {shape} on {ctx}" for shape, dtype, ctx, _ in descs) or "nothing"
            for descs in (found, self.outputs)
        ]
        raise MXNetError(
            f"{self.path or 'block'}: {self.name} returned {texts[0]}, but {texts[1]} was expected "
            "from earlier micro-batches; in a pipeline, results must have the same shapes in every "
            "call, except for the rows of the micro-batch"
        )


def _normal(desc):
    """Returns a description (`graph_breaks.describe`) with the name of the dtype."""
    shape, dtype, ctx, numpy = desc
    return tuple(shape), _core.dtype_name(dtype), ctx, numpy


class HostSteps:
    """The tracer that adds the host steps of one micro-batch size to a trace.

    `known` has the results of each step for micro-batches of `known_rows` rows.
    """

    flags: dict[str, Any] = {}
    has_bodies = False

    def __init__(self, known: list[Any], known_rows: int, rows: int, axis: int) -> None:
        self.steps: list[Step] = []
        self._known, self._sizes, self._axis = known, (known_rows, rows), axis

    def host(
        self,
        name: str,
        run: Any,
        inputs: Sequence[NDArray],
        outputs: Any,
        bodies: Any = (),
        stacked: tuple[int, int] = (0, 0),
    ) -> list[NDArray]:
        """Adds a step whose result shapes are known (see `graph_breaks.Tracer`)."""
        if not inputs:
            raise MXNetError(
                f"{name} runs on the host without an input, so a pipeline cannot order it; call it "
                "before or after the pipelined block"
            )
        step = Step(name, run, inputs, list(outputs))
        home = inputs[0].context
        call = _core.OpCall(
            "_host_step",
            {
                "code": name,
                "number": len(self.steps),
                "outputs": "".join(f"{dtype}{shape}" for shape, dtype, *_ in step.outputs),
                "stacked_inputs": stacked[0],
                "stacked_outputs": stacked[1],
            },
        )
        self.steps.append(step)
        with _core.Scope((_core.set_group, None)):
            results = call.run([a.as_in_context(home) for a in inputs])
            return [
                kinds.of_kind(a.as_in_context(ctx), numpy)
                for a, (*_, ctx, numpy) in zip(results, step.outputs)
            ]

    def dynamic(self, name: str, run: Any, inputs: Sequence[NDArray]) -> list[NDArray]:
        """Adds a step whose result shapes are known from the first trace."""
        number = len(self.steps)
        if number >= len(self._known):
            raise MXNetError(
                f"{name} was not called in the first trace of the block; the computation of a "
                "pipelined block may depend only on its inputs' shapes, dtypes and devices, and on "
                "the training mode"
            )
        outputs = [(self._resized(shape), *rest) for shape, *rest in self._known[number]]
        return self.host(name, run, inputs, outputs)

    def _resized(self, shape):
        """Returns the shape of a result for this trace's number of rows."""
        before, rows = self._sizes
        for axis in dict.fromkeys((self._axis, 0)):
            if before and len(shape) > axis and shape[axis] and shape[axis] % before == 0:
                return (*shape[:axis], shape[axis] // before * rows, *shape[axis + 1 :])
        return shape


class LiveDiscovery(tracing.Discovery):
    """The first trace of a pipelined block, which calls host steps on the first micro-batch.

    Parameters
    ----------
    arrays : list of NDArray
        The inputs of the first micro-batch.
    rows : tuple
        (axis, begin, count, total) of the micro-batch, for random draws.
    recording, training : bool
        The mode of the run.
    """

    def __init__(
        self,
        arrays: Sequence[NDArray],
        rows: tuple[int, int, int, int],
        recording: bool,
        training: bool,
    ) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.failed = False  # True if user code raised an exception
        self._values = dict(enumerate(arrays))
        self._rows, self._mode = rows, (recording, training)

    @property
    def results(self) -> list[Any]:
        """(shape, dtype, device) of the results of each step."""
        return [
            [graph_breaks.describe(array) for array in record.outputs] for record in self.records
        ]

    def host(self, name, run, inputs, outputs, bodies=(), stacked=(0, 0)):
        return self.dynamic(name, run, inputs)

    def dynamic(self, name, run, inputs):
        values = self._evaluate(inputs)
        try:
            record = Step(name, run, inputs, ()).call(values, *self._mode)
        except BaseException:
            self.failed = True
            raise
        self.records.append(record)
        new = [self.trace.new_input(*graph_breaks.describe(array)) for array in record.outputs]
        self._values.update(zip(map(self.trace.value, new), record.outputs))
        return [array.detach() for array in new] if self.trace.paused else new

    def _evaluate(self, arrays):
        """Returns the contents of traced arrays, in new arrays."""
        ids = [self.trace.value(array) for array in arrays]
        function = self.trace.cut(0, arrays)
        with graph_breaks.running(False, self._mode[1]):
            values = {**self._values, **dict(self.trace.constants(0))}
            values.update(
                (self.trace.value(traced), self._parameter_array(*copy))
                for copy, traced in self.used.items()
            )
            if function is not None:
                found = self._run(function, [values[i] for i in function.inputs])
                values.update(zip(function.outputs, found))
            return [values[i].copy() for i in ids]

    def _parameter_array(self, param, ctx):
        if param in self.settled:
            param.reset_ctx(self.settled[param])
            param.floating = False
        if param.arrays is None:
            param.finish_deferred_init()
        # The run updates these again, so this trace gets copies of the running averages.
        return param.arrays[ctx].copy() if param.grad_req == "null" else param.arrays[ctx]

    def _run(self, function, arrays):
        """Runs the ops before a step, with the random numbers of the run that follows."""
        state, none = _core.random_state(), [False] * len(arrays)
        call = _core.StagedCall(
            lambda *traced: [out.copy() for out in function(*traced)],
            arrays,
            none,
            none,
            recording=False,
        )
        results = [CARRIED] * len(call.outputs)
        run = _core.PipelineRun(
            (call,), (self._rows,), [SHARED] * len(arrays), results, [0] * len(arrays), arrays
        )
        segments = range(len(call.forward()["segments"]))
        run.submit(array_of("I", chain.from_iterable((0, 0, i, 0) for i in segments)))
        outputs = run.outputs()
        run.finish()
        _core.random_restore(state)
        return outputs


class HostCalls:
    """Calls the host steps of a run, and their gradients. Called by `_core.PipelineRun`.

    Parameters
    ----------
    steps : list of list of Step
        The steps of each micro-batch.
    recording, training : bool
        The mode of the run.
    records : list of Record
        Calls for the first micro-batch that the first trace has made.
    """

    def __init__(
        self, steps: list[list[Step]], recording: bool, training: bool, records: list[Record]
    ) -> None:
        self._steps, self._mode = steps, (recording, training)
        self._made = {(0, number): record for number, record in enumerate(records)}
        self._records: dict[tuple[int, int], Record] = {}

    def __call__(
        self,
        micro_batch: int,
        number: int,
        backward: bool,
        retain: bool,
        inputs: list[NDArray],
        outputs: list[NDArray],
    ) -> None:
        key = micro_batch, number
        if backward:
            found = self._gradients(key, inputs, retain)
        else:
            found = self._results(key, inputs)
        with graph_breaks.running(False, False):
            for array, out in zip(found, outputs):
                if array is None:
                    out[:] = 0
                else:
                    array.as_in_context(out.context).copyto(out)

    def _results(self, key, inputs):
        step, record = self._steps[key[0]][key[1]], self._made.pop(key, None)
        if record is None:
            with graph_breaks.running(False, False):
                copies = [array.copy() for array in inputs]
            record = step.call(copies, *self._mode)
        step.check(record.outputs)
        with graph_breaks.running(False, False):
            for i in record.written:
                record.inputs[i].as_in_context(inputs[i].context).copyto(inputs[i])
        if self._mode[0]:
            self._records[key] = record
        return record.outputs

    def _gradients(self, key, heads, retain):
        record = self._records[key] if retain else self._records.pop(key)
        recorded = [
            (out, head.as_in_context(out.context).copy())
            for out, head in zip(record.outputs, heads)
            if out._wants_gradient
        ]
        if recorded:
            with graph_breaks.running(False, self._mode[1]):
                autograd.backward(*map(list, zip(*recorded)), retain_graph=retain)
        return [array.grad for array in record.inputs]
