"""A training step with the loss in the graph, so that backward passes start while forward passes
still run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import autograd, ndarray as nd
from ...base import MXNetError, counted
from ...gluon import _nested
from ...gluon._compiled.programs import CompiledPrograms
from ...gluon.block import HybridBlock
from ...gluon.loss import Loss
from ...gluon.trainer import loss_scaling, scaled_by
from .._mesh import placement
from .driver import Driver
from .pipeline import Pipeline, PipelinedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...context import Context
    from ...gluon.trainer import Trainer

__all__ = ["TrainStep"]


def first_of(outputs: Any, *_: Any) -> Any:
    """Returns a network that gives its own loss."""
    return outputs


def _arguments(value):
    """As a list of arguments: a list or tuple is one already."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _flat(value, what):
    """Returns the arrays in nested lists, tuples and dicts."""
    flat = []
    _nested.flatten(value, flat, f"TrainStep: {what}")
    return flat


def _each(value, what, function):
    """`value` with the result of a function in place of each array."""
    flat = []
    structure = _nested.flatten(value, flat, f"TrainStep: {what}")
    return _nested.regroup(structure, iter([function(array) for array in flat]))


def _beside_outputs(labels, outputs):
    """Returns the labels, each on the device of the output that it belongs to: the output in the
    same place where there are as many outputs as labels, otherwise the first one."""
    if isinstance(outputs, dict) and len(labels) == 1 and isinstance(labels[0], dict):
        keys, (label,) = list(labels[0]), labels
        if not all(key in outputs for key in keys):
            return [_beside(label, outputs)]
        return [{key: _beside(label[key], outputs[key]) for key in keys}]
    paired = isinstance(outputs, (list, tuple)) and len(outputs) == len(labels)
    return [_beside(label, outputs[i] if paired else outputs) for i, label in enumerate(labels)]


def _beside(label, output):
    ctx = _nested.first_context(output)
    return label if ctx is None else _each(label, "labels", lambda a: a.as_in_context(ctx))


class _Losses(HybridBlock):
    """Network and loss as one block."""

    def __init__(self, net, loss, num_labels, states):
        super().__init__(prefix="", params=None)
        self.net, self.loss, self._num_labels, self._states = net, loss, num_labels, states
        self.shown_name = type(net).__name__

    def forward(self, *args):
        # data, then (along time) states, then labels
        count = len(args) - self._num_labels
        outputs = self.net(*args[:count])
        labels = args[count:]
        states = None
        if self._states:
            outputs, states = outputs
        losses = self.loss(outputs, *_beside_outputs(labels, outputs))
        losses = list(losses) if isinstance(losses, (list, tuple)) else [losses]
        if not losses or not all(isinstance(loss, nd.NDArray) for loss in losses):
            raise MXNetError(
                "TrainStep: loss must return an array with the loss of each sample, or a list of "
                f"such, not {type(losses[0]).__name__ if losses else 'nothing'}"
            )
        return (losses, states) if self._states else (losses,)


class TrainStep:
    """One step of training in a pipeline: forward, loss, backward, and the trainer's update.

    Parameters
    ----------
    net : HybridBlock
        Spans the devices; it need not be hybridized itself.
    loss : callable
        ``loss(outputs, *labels)`` gives the loss of each sample, as Gluon's losses do, or a list of
        such (auxiliary losses, all of which are added up).
    trainer : Trainer
        None: gradients are computed, and nothing is updated.
    pipeline : Pipeline
        Number of micro-batches, schedule, and which axis is divided.
    exact : bool, default False
        Leave out rewrites that change bits.

    Notes
    -----
    A call is ``step(data, labels)`` and returns the losses of the samples. A network with several
    inputs takes a list, ``step([x, ids], labels)``, and likewise a loss with several labels; a dict
    is one argument. Along time it is ``step(data, labels, states)`` and returns ``(losses,
    states)``.

    Labels move to the device of the output that they belong to: if there are as many outputs as
    labels (or keys in both), to that of the output in the same place, otherwise to that of the
    first output.

    Of a network that is placed on a `Mesh` with several replicas, each replica gets its part of the
    batch, which its pipeline divides further.

    Raises
    ------
    MXNetError
        An argument is not of the class that is asked for.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(8, in_units=4), mx.gluon.nn.Dense(2, in_units=8))
    >>> mesh = mx.parallel.Mesh({'stage': 2}, [mx.cpu(0), mx.cpu(1)])
    >>> _ = mesh.place(net)
    >>> net.initialize()
    >>> trainer = mx.gluon.Trainer(net.collect_params(), 'sgd')
    >>> step = mx.parallel.TrainStep(net, mx.gluon.loss.L2Loss(), trainer, mx.parallel.Pipeline(4))
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
        pipeline: Pipeline,
        exact: bool = False,
    ) -> None:
        if not isinstance(net, HybridBlock):
            raise MXNetError(
                f"TrainStep: the network must be a HybridBlock, not {type(net).__name__}"
            )
        if isinstance(net, Loss):
            raise MXNetError(
                f"TrainStep: the network comes first, then the loss, not {type(net).__name__}"
            )
        if not callable(loss):
            raise MXNetError(
                "TrainStep: loss must be called as loss(outputs, *labels), which "
                f"{type(loss).__name__} can't be"
            )
        if trainer is not None and not callable(getattr(trainer, "step", None)):
            raise MXNetError(
                f"TrainStep: trainer must be a gluon.Trainer or None, not {type(trainer).__name__}"
            )
        if not isinstance(pipeline, Pipeline):
            raise MXNetError(
                "TrainStep: pipeline must be an mx.parallel.Pipeline, not "
                f"{type(pipeline).__name__}"
            )
        self._net, self._loss, self._trainer, self._pipeline = net, loss, trainer, pipeline
        self._flags = {"pipeline": pipeline, "exact": exact}
        self._calls = {}

    def __repr__(self) -> str:
        loss = getattr(self._loss, "__name__", type(self._loss).__name__)
        return (
            f"TrainStep({type(self._net).__name__}, {loss}, {self._trainer!r}, {self._pipeline!r})"
        )

    @property
    def pipeline(self) -> Pipeline:
        """The `Pipeline` that runs the step."""
        return self._pipeline

    def compiled(self) -> CompiledPrograms:
        """Returns the compiled programs: stages, operators, copies and planned bytes, as
        `HybridBlock.compiled` tells them."""
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
            The inputs of the network, the whole batch of each. A list has one item for each
            argument; a dict is one argument.
        labels : NDArray, dict or list
            The arguments of the loss beside the network's outputs.
        states : NDArray or nested list, optional
            Along time: what the first micro-batch starts from.
        batch_size : int, optional
            The number that gradients are divided by; by default the number of samples.
        ignore_stale_grad : bool, default False
            As in `Trainer.step`: parameters that the losses do not depend on are left as they are,
            instead of an error.

        Returns
        -------
        NDArray, or list of NDArray where the loss gives several; along time (losses, states).

        Raises
        ------
        ValueError
            Labels have another number of rows than the data, or along time there are no states, or
            there are states otherwise.
        ScheduleError
            A device's memory limit leaves less than the schedule needs.
        """
        losses = self.gradients(data, labels, states)
        if self._trainer is not None:
            if batch_size is None:
                batch_size = _flat(data, "the data")[0].shape[self._pipeline.axis]
            self._trainer.step(batch_size, ignore_stale_grad=ignore_stale_grad)
        return losses

    def gradients(
        self,
        data: Any,
        labels: nd.NDArray | Sequence[Any] | dict[str, Any],
        states: Any = None,
    ) -> Any:
        """Returns a call without the update: ``trainer.step`` is left to you.

        Parameters
        ----------
        data, labels, states
            As for a call.

        Returns
        -------
        What a call does.
        """
        data, labels = _arguments(data), _arguments(labels)
        timewise = bool(self._pipeline.carry)
        if states is not None and not timewise:
            raise ValueError(
                "TrainStep: the third argument is the states of a pipeline along time, which this "
                "one is not; pass several inputs or labels as lists: step([x, ids], [y, z])"
            )
        self._check_labels(data, labels)
        if timewise and states is None:
            raise ValueError(
                "TrainStep: a pipeline along time needs the states to start from: step(data, "
                "labels, states)"
            )
        call = self._calls.get((len(labels), timewise))
        if call is None:
            block = _Losses(self._net, self._loss, len(labels), timewise)
            call = self._calls[len(labels), timewise] = PipelinedCall(block, self._flags)
        args = (*data, states, *labels) if timewise else (*data, *labels)
        replicas = placement(self._net)
        if replicas is None or len(replicas.dicts) == 1:
            losses, states = self._run(call, args)
        else:
            losses = self._run_replicas(replicas.mesh, call, data, labels)
        losses = losses[0] if len(losses) == 1 else losses
        return (losses, states) if timewise else losses

    def bytes_of_step(
        self,
        data: Any,
        labels: nd.NDArray | Sequence[Any] | dict[str, Any],
    ) -> dict[Context, int]:
        """Returns the most bytes that the micro-batches of such a step take on each device, by
        plan; it is compiled for that, and nothing is run.

        Parameters
        ----------
        data, labels : NDArray, dict or list
            As for a call; only shapes, dtypes and devices count.

        Returns
        -------
        dict of Context to int
            Bytes, without parameters.
        """
        data, labels = _arguments(data), _arguments(labels)
        call = PipelinedCall(_Losses(self._net, self._loss, len(labels), False), self._flags)
        with autograd.train_mode():
            run, entry, _ = call.begin((*data, *labels), True)
            run.train(self._heads(entry, run.outputs(), 1))
            return Driver(entry, self._pipeline).peaks(run)

    @staticmethod
    def _heads(entry, outputs, scale):
        """Returns the scale for the losses, and nothing for what else there is."""
        num_losses = len(entry.signature.outputs[1]) - 1
        return [
            nd.full_like(out, scale) if i < num_losses else None for i, out in enumerate(outputs)
        ]

    def _scale(self):
        """Returns the scale of losses (contrib.amp), by which the trainer divides gradients."""
        scaler = None if self._trainer is None else loss_scaling(self._trainer)
        if scaler is None:
            return 1
        scaled_by(self._trainer, scaler.loss_scale)
        return scaler.loss_scale

    def _check_labels(self, data, labels):
        """A label that is not divided would meet each micro-batch whole: unless that was said, its
        length is a mistake."""
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
                    f"{axis}, the data {first.shape[axis]}. Pipeline(split=[...]) says what is "
                    "divided where it is to go whole to each micro-batch"
                )

    def _run(self, call, args):
        """Queues forward and backward; the losses, and what else there is along time."""
        with autograd.train_mode():
            run, entry, note = call.begin(args, True)
            outputs = run.outputs()
            run.train(self._heads(entry, outputs, self._scale()))
            Driver(entry, self._pipeline).train(run)
            note(outputs)
        run.finish()
        results = call.regroup(entry, outputs)
        return results[0], results[1] if len(results) > 1 else None

    def _run_replicas(self, mesh, call, data, labels):
        if self._pipeline.carry:
            raise MXNetError(
                "TrainStep: a pipeline along time runs on one replica; use the ordinary loop, with "
                "states of its own for each replica"
            )
        axis, count, flat = self._pipeline.axis, mesh.size("data"), []
        structure = _nested.flatten((data, labels), flat, "TrainStep: data and labels")
        rows = flat[0].shape[axis] if flat[0].ndim > axis else count
        if rows < count:
            raise ValueError(
                f"TrainStep: a batch of {counted(rows, 'row')} along axis {axis} can't be divided "
                f"among {count} replicas, which need one each; take larger batches, or leave this "
                "one out (DataLoader(last_batch='discard'))"
            )
        chosen = self._pipeline.split
        parts = []
        for number, array in enumerate(flat):
            divided = array.ndim > axis and array.shape[axis] == rows
            if divided if chosen is None else number in chosen:
                parts.append(mesh.split_and_load(array, axis, even_split=False))
            else:
                parts.append([array.as_in_context(mesh.device(data=i)) for i in range(count)])
        calls = [sum(_nested.regroup(structure, iter(part)), []) for part in zip(*parts)]
        losses = zip(*[self._run(call, args)[0] for args in calls])
        with autograd.pause():
            return [
                nd.concat(*[part.as_in_context(own[0].context) for part in own], dim=0)
                for own in losses
            ]
