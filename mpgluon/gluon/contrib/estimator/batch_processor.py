"""Processing of a batch by an estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import autograd, ndarray as nd
from ..._nested import flatten
from ...trainer import scaled_losses
from ...utils import split_and_load

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from ...._core import Context, NDArray
    from ....parallel import Pipeline, TrainStep
    from .estimator import Estimator

    Parts: TypeAlias = tuple[list[NDArray], list[NDArray], list[Any], list[Any]]


__all__ = ["BatchProcessor", "PipelineBatchProcessor"]


def _beside(labels, outputs):
    """Returns the labels, moved to the devices of the outputs if these are arrays. The output of a
    network that spans several devices is on its last device."""
    return [
        label.as_in_context(output.context) if hasattr(output, "context") else label
        for label, output in zip(labels, outputs)
    ]


class BatchProcessor:
    """Trains and evaluates one batch. Subclasses override `fit_batch` and `evaluate_batch`.

    Examples
    --------
    >>> class WithTwoInputs(gluon.contrib.estimator.BatchProcessor):
    ...     def fit_batch(self, estimator, train_batch, batch_axis=0):
    ...         (left, right), label = train_batch
    ...         with mx.autograd.record():
    ...             pred = estimator.net(left, right)
    ...             loss = estimator.loss(pred, label)
    ...         loss.backward()
    ...         return [left, right], [label], [pred], [loss]
    """

    def _get_data_and_label(
        self, batch: Any, ctx: list[Context], batch_axis: int = 0
    ) -> tuple[list[NDArray], list[NDArray]]:
        return (
            split_and_load(batch[0], ctx_list=ctx, batch_axis=batch_axis),
            split_and_load(batch[1], ctx_list=ctx, batch_axis=batch_axis),
        )

    def evaluate_batch(self, estimator: Estimator, val_batch: Any, batch_axis: int = 0) -> Parts:
        """Runs the validation network and its loss.

        Parameters
        ----------
        estimator : Estimator
            The estimator, with its networks and losses.
        val_batch : sequence
            Data and labels.
        batch_axis : int, default 0
            The axis along which the batch is divided over the estimator's devices.

        Returns
        -------
        (data, label, pred, loss), each a list with an array for each device.
        """
        data, label = self._get_data_and_label(val_batch, estimator.context, batch_axis)
        pred = [estimator.val_net(x) for x in data]
        label = _beside(label, pred)
        loss = [estimator.val_loss(y_hat, y) for y_hat, y in zip(pred, label)]
        return data, label, pred, loss

    def fit_batch(self, estimator: Estimator, train_batch: Any, batch_axis: int = 0) -> Parts:
        """Computes the loss and the gradients; `GradientUpdateHandler` updates the parameters.

        Parameters
        ----------
        estimator : Estimator
            The estimator, with its networks and losses.
        train_batch : sequence
            Data and labels.
        batch_axis : int, default 0
            The axis along which the batch is divided over the estimator's devices.

        Returns
        -------
        (data, label, pred, loss), each a list with an array for each device.
        """
        data, label = self._get_data_and_label(train_batch, estimator.context, batch_axis)
        with autograd.record():
            pred = [estimator.net(x) for x in data]
            label = _beside(label, pred)
            loss = [estimator.loss(y_hat, y) for y_hat, y in zip(pred, label)]
            scaled = scaled_losses(loss, estimator.trainer)
        autograd.backward(scaled)
        return data, label, pred, loss


class PipelineBatchProcessor(BatchProcessor):
    """Trains in a pipeline (`mpgluon.parallel.TrainStep`), and evaluates like `BatchProcessor`. A
    pipeline returns losses but no predictions.

    A batch is a pair of data and labels. Each may be a list, whose items are the inputs of the
    network, or the arguments of the loss after the network's results.

    Parameters
    ----------
    pipeline : mpgluon.parallel.Pipeline
        Number of micro-batches, schedule, and axis along which batches are divided.
    train_step : mpgluon.parallel.TrainStep, optional
        The step to use for its network, loss and trainer.

    Examples
    --------
    >>> pipeline = mx.parallel.Pipeline(4)
    >>> gluon.contrib.estimator.PipelineBatchProcessor(pipeline).pipeline is pipeline
    True
    """

    def __init__(self, pipeline: Pipeline, train_step: TrainStep | None = None) -> None:
        if pipeline.carry:
            raise ValueError(
                "Estimator: a pipeline along time has states, which an estimator does not pass on; "
                "call the TrainStep in a loop"
            )
        self.pipeline = pipeline
        self._step = train_step
        self._made_of: tuple[Any, ...] | None = None  # arguments from which the step was created
        if train_step is not None:
            self._made_of = (train_step.net, train_step.loss, train_step.trainer, pipeline)
        self.inputs: list[Any] | None = None  # (shape, dtype) of each input of the first batch
        # Number of samples in the last batch. The losses do not show it if there are several.
        self.samples: int | None = None

    def _get_data_and_label(
        self, batch: Any, ctx: list[Context], batch_axis: int = 0
    ) -> tuple[list[Any], list[Any]]:
        return _on_device(batch[0], ctx[0]), _on_device(batch[1], ctx[0])

    def evaluate_batch(self, estimator: Estimator, val_batch: Any, batch_axis: int = 0) -> Parts:
        """Runs the validation network and its loss; see `BatchProcessor.evaluate_batch`."""
        data, labels = self._get_data_and_label(val_batch, estimator.context)
        pred = estimator.val_net(*data)
        several = isinstance(pred, (list, tuple))
        labels = _beside(labels, pred if several else [pred] * len(labels))
        loss = estimator.val_loss(pred, *labels)
        return (
            data,
            labels,
            list(pred) if several else [pred],
            list(loss) if isinstance(loss, (list, tuple)) else [loss],
        )

    def fit_batch(self, estimator: Estimator, train_batch: Any, batch_axis: int = 0) -> Parts:
        """Computes the loss and the gradients in the pipeline; see `BatchProcessor.fit_batch`. The
        list of predictions is empty."""
        from ....parallel import TrainStep

        if len(estimator.context) != 1:
            raise ValueError(
                "Estimator: with a pipeline, context must be one device, to which batches are "
                f"copied; got {estimator.context}"
            )
        made_of = (estimator.net, estimator.loss, estimator.trainer, self.pipeline)
        if self._step is None or made_of != self._made_of:
            self._step, self._made_of = TrainStep(*made_of), made_of
        data, label = self._get_data_and_label(train_batch, estimator.context)
        arrays: list[Any] = []
        flatten(data, arrays, "the data")
        self.samples = arrays[0].shape[self.pipeline.axis]
        if self.inputs is None:
            self.inputs = [(array.shape, array.dtype) for array in arrays]
        loss = self._step.gradients(data, label)
        return data, label, [], list(loss) if isinstance(loss, (list, tuple)) else [loss]


def _on_device(arrays, ctx):
    """Returns the arguments of a batch as a list, with their arrays on a device."""
    if not isinstance(arrays, (list, tuple)):
        return [_moved(arrays, ctx)]
    return [_moved(argument, ctx) for argument in arrays]


def _moved(value, ctx):
    """Returns an array, or nested lists, tuples or dicts of arrays, on a device."""
    if isinstance(value, (list, tuple)):
        return type(value)([_moved(item, ctx) for item in value])
    if isinstance(value, dict):
        return {key: _moved(item, ctx) for key, item in value.items()}
    return value.as_in_context(ctx) if isinstance(value, nd.NDArray) else nd.array(value, ctx)
