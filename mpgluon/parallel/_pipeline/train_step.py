"""A training step that includes the loss in the graph, so backward passes can start while forward
passes still run."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

from ... import autograd, ndarray as nd
from ..._internal import graph_breaks
from ...base import MXNetError, MXNetTypeError, counted
from ...gluon import _nested
from ...gluon._compiled.programs import CompiledPrograms
from ...gluon._tree import walk
from ...gluon.block import Block, HybridBlock
from ...gluon.loss import Loss
from ...gluon.trainer import loss_scaling, scaled_by
from .._mesh import placement
from .driver import Driver
from .pipeline import SPLIT, Pipeline, PipelinedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...context import Context
    from ...gluon.trainer import Trainer

__all__ = ["TrainStep"]


def first_of(outputs: Any, *_: Any) -> Any:
    """Loss function for a network that computes its own loss: returns the outputs."""
    return outputs


def _arguments(value):
    """Converts a value to a list of arguments. A list or tuple holds several arguments; any other
    value is one argument."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _flat(value, what):
    """Returns the arrays in nested lists, tuples and dicts as a flat list."""
    flat = []
    _nested.flatten(value, flat, f"TrainStep: {what}")
    return flat


def _each(value, what, function):
    """Returns `value` with a function applied to each array."""
    flat = []
    structure = _nested.flatten(value, flat, f"TrainStep: {what}")
    return _nested.regroup(structure, iter([function(array) for array in flat]))


def _beside_outputs(labels, outputs):
    """Moves each label to the device of its output. If the numbers of outputs and labels are equal,
    this is the output with the same index, otherwise the first output."""
    if isinstance(outputs, dict) and len(labels) == 1 and isinstance(labels[0], dict):
        keys, (label,) = list(labels[0]), labels
        if not all(key in outputs for key in keys):
            return [_beside(label, outputs)]
        return [{key: _beside(label[key], outputs[key]) for key in keys}]
    paired = isinstance(outputs, (list, tuple)) and len(outputs) == len(labels)
    return [_beside(label, outputs[i] if paired else outputs) for i, label in enumerate(labels)]


def _check_placement(net):
    """Raises MXNetError if only blocks inside the network are placed on several replicas."""
    if placement(net) is not None:
        return
    for _, _, path, block in walk(net):
        placed = placement(block)
        if placed is not None and len(placed.dicts) > 1:
            raise MXNetError(
                f"TrainStep: block '{path}' is placed on {len(placed.dicts)} replicas, but the "
                f"network around it, {type(net).__name__}, is not; place the whole network "
                "(Mesh.place)"
            )


def _check_arguments(loss, outputs, labels):
    """Raises TypeError if the loss cannot be called with these arguments."""
    try:
        signature = inspect.signature(loss)
    except ValueError:
        return  # a function of a C extension may have no signature
    try:
        signature.bind(outputs, *labels)
    except TypeError as error:
        raise TypeError(
            "TrainStep: loss is called as loss(outputs, *labels), with all results of the network "
            f"as one argument and {counted(len(labels), 'label')}: {error}"
        ) from None


def _beside(label, output):
    ctx = _nested.first_context(output)
    return label if ctx is None else _each(label, "labels", lambda a: a.as_in_context(ctx))


class StepWithLoss(HybridBlock):
    """Network and loss combined into one block."""

    def __init__(self, net, loss, num_labels, states, axis):
        super().__init__(prefix="", params=None)
        self.net, self.loss, self._num_labels, self._states = net, loss, num_labels, states
        self._axis = axis
        self.shown_name = type(net).__name__

    def forward(self, *args):
        # The arguments are the data, the states (only if the time axis is divided) and the labels.
        count = len(args) - self._num_labels
        outputs = self.net(*args[:count])
        labels = args[count:]
        states = None
        if self._states:
            outputs, states = outputs
        labels = _beside_outputs(labels, outputs)
        _check_arguments(self.loss, outputs, labels)
        losses = self.loss(outputs, *labels)
        losses = list(losses) if isinstance(losses, (list, tuple)) else [losses]
        if not losses or not all(isinstance(loss, nd.NDArray) for loss in losses):
            raise MXNetError(
                "TrainStep: loss must return an array with the loss of each sample, or a list "
                f"of these arrays, not {type(losses[0]).__name__ if losses else 'nothing'}"
            )
        first = _flat(args, "the data")[0].shape
        several = len(first) > self._axis and first[self._axis] > 1
        if several and any(math.prod(loss.shape) == 1 for loss in losses):
            raise MXNetError(
                "TrainStep: loss must return an array with the loss of each sample, not their "
                "mean or sum. Leave out mean() or sum(), or limit it to axes of each sample; the "
                "trainer divides the gradients by batch_size"
            )
        return (losses, states) if self._states else (losses,)


class TrainStep:
    """One training step in a pipeline: forward, loss, backward, and the trainer's update.

    Parameters
    ----------
    net : HybridBlock
        Network that spans devices. It need not be hybridized itself.
    loss : callable
        Function ``loss(outputs, *labels)`` that returns the loss of each sample, like Gluon's
        losses. If it returns a list, for example with auxiliary losses, the losses are summed.
    trainer : Trainer
        If None, gradients are computed but nothing is updated.
    pipeline : Pipeline
        Number of micro-batches, schedule, and axis to divide.
    exact : bool, default False
        Whether results must be bitwise equal to those of eager execution. This disables
        optimizations that change the rounding.

    Notes
    -----
    A call is ``step(data, labels)`` and returns the losses of the samples. For a network with
    several inputs, pass a list, ``step([x, ids], labels)``; the same applies to a loss with several
    labels. A dict is one argument. Along time, the call is ``step(data, labels, states)`` and
    returns ``(losses, states)``.

    Labels move to the device of their output. If the numbers of outputs and labels are equal, this
    is the output at the same position (or with the same key), otherwise the first output.

    Network and loss are traced as by `HybridBlock.hybridize`: numbers in attributes, such as a
    loss's weight, are constant. Create another TrainStep after changing one, or make it an array.

    If the network is placed on a `Mesh` with several replicas, each replica receives a part of the
    batch, which its pipeline divides further.

    Raises
    ------
    MXNetError
        If an argument has the wrong type.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(8, in_units=4), mx.gluon.nn.Dense(2, in_units=8))
    >>> mesh = mx.parallel.Mesh({'stage': 2}, [mx.cpu(0), mx.cpu(1)])
    >>> _ = mesh.place(net)
    >>> net.initialize()
    >>> trainer = mx.gluon.Trainer(net.collect_params(), 'sgd')
    >>> loss, pipeline = mx.gluon.loss.L2Loss(), mx.parallel.Pipeline(4)
    >>> step = mx.parallel.TrainStep(net, loss, trainer, pipeline)
    >>> step(mx.nd.ones((8, 4)), mx.nd.zeros((8, 2))).shape
    (8,)
    >>> step.pipeline.report().micro_batches
    4
    """

    def __init__(
        self,
        net: HybridBlock,
        loss: Callable[..., Any],
        trainer: Trainer | None,
        pipeline: Pipeline | None = None,
        exact: bool = False,
    ) -> None:
        if not isinstance(net, HybridBlock):
            raise MXNetError(
                f"TrainStep: the network must be a HybridBlock, not {type(net).__name__}"
            )
        if isinstance(net, Loss):
            raise MXNetError(
                "TrainStep: the first argument must be the network and the second the loss, not "
                f"{type(net).__name__}"
            )
        if not callable(loss):
            raise MXNetError(
                "TrainStep: loss must be callable as loss(outputs, *labels), but "
                f"{type(loss).__name__} is not"
            )
        if trainer is not None and not callable(getattr(trainer, "step", None)):
            raise MXNetError(
                f"TrainStep: trainer must be a gluon.Trainer or None, not {type(trainer).__name__}"
            )
        if not isinstance(pipeline, Pipeline):
            raise MXNetTypeError(
                "TrainStep: pipeline must be an mx.parallel.Pipeline, not "
                f"{type(pipeline).__name__}; Pipeline(4) divides each batch into 4 micro-batches, "
                "Pipeline(1) keeps it whole"
            )
        # Allocates the gradients, because the first step compares its memory with that in use.
        for param in net.collect_params().values():
            list((param.gradients or {}).values())
        self._net, self._loss, self._trainer, self._pipeline = net, loss, trainer, pipeline
        self._flags = {"pipeline": pipeline, "exact": exact}
        self._calls = {}
        self._blocks = []  # keeps blocks alive, to which `_calls` has weak references

    def __repr__(self) -> str:
        loss = getattr(self._loss, "__name__", type(self._loss).__name__)
        return (
            f"TrainStep({type(self._net).__name__}, {loss}, {self._trainer!r}, {self._pipeline!r})"
        )

    @property
    def net(self) -> HybridBlock:
        """The network."""
        return self._net

    @property
    def loss(self) -> Callable[..., Any]:
        """The loss function."""
        return self._loss

    @property
    def trainer(self) -> Trainer | None:
        """The trainer, or None if nothing is updated."""
        return self._trainer

    @property
    def pipeline(self) -> Pipeline:
        """The `Pipeline` that runs the step."""
        return self._pipeline

    def compiled(self) -> CompiledPrograms:
        """Returns the compiled programs: stages, operators, copies and planned bytes, as in
        `HybridBlock.compiled`."""
        return CompiledPrograms(
            [
                entry
                for call in self._calls.values()
                for entry in call.entries(type(self._net).__name__)
            ]
        )

    def __call__(
        self,
        data: Any,
        labels: nd.NDArray | Sequence[Any] | dict[str, Any],
        states: Any = None,
        batch_size: int | None = None,
        ignore_stale_grad: bool = False,
    ) -> Any:
        """Trains on one batch.

        Parameters
        ----------
        data : NDArray, dict or list
            The inputs of the network, each for the whole batch. A list has one item for each
            argument; a dict is one argument.
        labels : NDArray, dict or list
            The arguments of the loss after the network's outputs.
        states : NDArray or nested list, optional
            Along time: the initial states of the first micro-batch.
        batch_size : int, optional
            Divisor for the gradients; defaults to the number of samples.
        ignore_stale_grad : bool, default False
            As in `Trainer.step`: whether to skip parameters that the losses do not depend on,
            instead of raising an error.

        Returns
        -------
        NDArray, or list of NDArray if there are several losses; along time (losses, states).

        Raises
        ------
        ValueError
            If labels have a different number of rows than the data, or if states are missing along
            time or given along the batch.
        ScheduleError
            If a device's memory limit leaves less than the schedule needs.
        """
        losses = self.gradients(data, labels, states)
        if self._trainer is not None:
            if batch_size is None:
                batch_size = self._samples(_arguments(data), _arguments(labels))
            try:
                self._trainer.step(batch_size, ignore_stale_grad=ignore_stale_grad)
            except UserWarning as error:
                if self._trains_another_network():
                    raise UserWarning(
                        "TrainStep: the trainer has none of the parameters of the network; "
                        "create it with gluon.Trainer(net, ...)"
                    ) from error
                raise
        return losses

    def _trains_another_network(self):
        """True if the trainer has no parameter of the network or the loss."""
        blocks = [one for one in (self._net, self._loss) if isinstance(one, Block)]
        own = {id(param) for block in blocks for param in block.collect_params().values()}
        return own.isdisjoint(map(id, self._trainer.parameters))

    def gradients(
        self,
        data: Any,
        labels: nd.NDArray | Sequence[Any] | dict[str, Any],
        states: Any = None,
    ) -> Any:
        """Runs a step without the update, and returns its results. To complete the step, call
        ``trainer.step``.

        Parameters
        ----------
        data, labels, states
            See `__call__`.

        Returns
        -------
        The results of a call.
        """
        graph_breaks.refuse_in_trace("TrainStep")
        data, labels = _arguments(data), _arguments(labels)
        timewise = bool(self._pipeline.carry)
        if states is not None and not timewise:
            raise ValueError(
                "TrainStep: states, the third argument, needs a pipeline along time; pass "
                "several inputs or labels as lists: step([x, ids], [y, z])"
            )
        self._check_labels(data, labels)
        if timewise and states is None:
            raise ValueError(
                "TrainStep: a pipeline along time needs the states to start from: step(data, "
                "labels, states)"
            )
        call = self._calls.get((len(labels), timewise))
        if call is None:
            _check_placement(self._net)
            block = StepWithLoss(self._net, self._loss, len(labels), timewise, self._pipeline.axis)
            self._blocks.append(block)
            call = self._calls[len(labels), timewise] = PipelinedCall(block, self._flags)
        args = (*data, states, *labels) if timewise else (*data, *labels)
        replicas = placement(self._net)
        if replicas is None or len(replicas.dicts) == 1:
            _, losses, states = self._run(call, args)
        else:
            losses = self._run_replicas(replicas.mesh, call, data, labels)
        losses = losses[0] if len(losses) == 1 else losses
        return (losses, states) if timewise else losses

    def bytes_of_step(
        self,
        data: Any,
        labels: nd.NDArray | Sequence[Any] | dict[str, Any],
    ) -> dict[Context, int]:
        """Returns the planned maximum bytes of a step's micro-batches on each device. Compiles the
        step, but does not run it.

        Parameters
        ----------
        data, labels : NDArray, dict or list
            See `__call__`; only shapes, dtypes and devices are used.

        Returns
        -------
        dict of Context to int
            Bytes, without parameters.
        """
        data, labels = _arguments(data), _arguments(labels)
        block = StepWithLoss(self._net, self._loss, len(labels), False, self._pipeline.axis)
        call = PipelinedCall(block, self._flags)
        with autograd.train_mode():
            run, entry, _ = call.begin((*data, *labels), True)
            run.train(self._heads(entry, run.outputs(), 1))
            return Driver(entry, self._pipeline).peaks(run)

    @staticmethod
    def _heads(entry, outputs, scale):
        """Returns the loss scale as the gradient of each loss, and None for other outputs."""
        num_losses = len(entry.signature.outputs[1]) - 1
        return [
            nd.full_like(out, scale) if i < num_losses else None for i, out in enumerate(outputs)
        ]

    def _samples(self, data, labels):
        """Returns the number of rows of the arrays that are divided."""
        if self._pipeline.carry:
            return _flat(data, "the data")[0].shape[self._pipeline.axis]
        call = self._calls[len(labels), False]
        return call.input_kinds(_flat((*data, *labels), "data and labels"), {})[1]

    def _scale(self):
        """Returns the loss scale (contrib.amp) by which the trainer divides gradients, or 1."""
        scaler = None if self._trainer is None else loss_scaling(self._trainer)
        if scaler is None:
            return 1
        scaled_by(self._trainer, scaler.loss_scale)
        return scaler.loss_scale

    def _check_labels(self, data, labels):
        """Raises ValueError if a label's length differs from the data's, because the label would
        not be divided, which is usually a mistake. Some options of the pipeline allow it."""
        axis = self._pipeline.axis
        first = next(iter(_flat(data, "the data")), None)
        if first is None:
            raise ValueError("TrainStep: the data must hold at least one array")
        if self._pipeline.carry or self._pipeline.split is not None or first.ndim <= axis:
            return
        for i, label in enumerate(_flat(labels, "labels")):
            if label.ndim > axis and label.shape[axis] not in (1, first.shape[axis]):
                raise ValueError(
                    f"TrainStep: label {i} has {counted(label.shape[axis], 'row')} along axis "
                    f"{axis}, but the data has {first.shape[axis]}. To pass it whole to each "
                    "micro-batch, list only the arrays to divide in Pipeline(split=[...])"
                )

    def _run(self, call, args, earlier=None):
        """Queues forward and backward passes. `earlier` is the run of another replica in the same
        step. Returns the run, the losses and, along time, the states."""
        with autograd.train_mode():
            run, entry, note = call.begin(args, True)
            outputs = run.outputs()
            run.train(self._heads(entry, outputs, self._scale()), earlier)
            Driver(entry, self._pipeline).train(run)
            note(outputs)
        run.finish()
        results = call.regroup(entry, outputs)
        return run, results[0], results[1] if len(results) > 1 else None

    def _run_replicas(self, mesh, call, data, labels):
        if self._pipeline.carry:
            raise MXNetError(
                "TrainStep: a pipeline along time runs on one replica; use the ordinary loop, "
                "with separate states for each replica"
            )
        axis, count, flat = self._pipeline.axis, mesh.size("data"), []
        structure = _nested.flatten((data, labels), flat, "TrainStep: data and labels")
        kinds, rows = call.input_kinds(flat, {})
        if rows < count:
            raise ValueError(
                f"TrainStep: a batch of {counted(rows, 'row')} along axis {axis} cannot be "
                f"divided among {count} replicas, which need at least one each; use larger "
                "batches, or skip this one (DataLoader(last_batch='discard'))"
            )
        parts = []
        for array, kind in zip(flat, kinds):
            if kind == SPLIT:
                parts.append(mesh.split_and_load(array, axis, even_split=False))
            else:
                parts.append([array.as_in_context(mesh.device(data=i)) for i in range(count)])
        calls = [sum(_nested.regroup(structure, iter(part)), []) for part in zip(*parts)]
        run, losses = None, []
        for args in calls:
            run, own, _ = self._run(call, args, run)
            losses.append(own)
        with autograd.pause():
            return [
                nd.concat(*[part.as_in_context(own[0].context) for part in own], dim=axis)
                for own in zip(*losses)
            ]
