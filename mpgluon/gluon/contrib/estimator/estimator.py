"""The training loop."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from typing import TYPE_CHECKING

from ....base import MXNetAssertionError
from ....context import Context, cpu, gpu, num_gpus
from ....metric import Loss as LossMetric
from ..._tree import devices_of_groups
from ...data import DataLoader
from ...loss import Loss
from ...trainer import Trainer
from ._events import check_event_handlers
from ._metrics import check_handler_metric_ref, check_metrics, suggest_metric_for_loss
from .batch_processor import BatchProcessor, PipelineBatchProcessor
from .event_handler import (
    BatchBegin,
    BatchEnd,
    EpochBegin,
    EpochEnd,
    GradientUpdateHandler,
    LoggingHandler,
    MetricHandler,
    ProgressBarHandler,
    StoppingHandler,
    TrainBegin,
    TrainEnd,
    ValidationHandler,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    from ...._internal.types import Init
    from ....metric import EvalMetric
    from ....parallel import Pipeline, TrainStep
    from ...block import Block
    from .event_handler import EventHandler

    Metrics: TypeAlias = EvalMetric | list[EvalMetric] | None
    Handlers: TypeAlias = EventHandler | Sequence[EventHandler] | None


__all__ = ["Estimator"]


class _Console(logging.StreamHandler):
    """Writes log lines above a progress bar."""

    def emit(self, record):
        from tqdm import tqdm

        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)


class Estimator:
    """Trains a block on the batches of a DataLoader, and evaluates it.

    Parameters
    ----------
    net : Block
        The network to train.
    loss : gluon.loss.Loss
        Computes the loss from predictions and labels. Raises ValueError for other types.
    train_metrics, val_metrics : EvalMetric or list of them, optional
        By default the loss, and the accuracy for `SoftmaxCrossEntropyLoss`. The default metrics for
        validation are copies of those for training. Names are prefixed with "training" or
        "validation".
    initializer : Initializer or str, optional
        For parameters that are not initialized yet.
    trainer : Trainer, optional
        By default "sgd" with a learning rate of 0.001, with a warning.
    context : Context or list of Context, optional
        Devices over which batches are divided; each holds a copy of the parameters. By default the
        first GPU, or ``cpu()``. For a placed network, the first device of each replica.
    val_net : Block, optional
        Network to evaluate instead of `net`, with the same parameters.
    val_loss : gluon.loss.Loss, optional
        Loss for validation; defaults to `loss`.
    batch_processor : BatchProcessor, optional
        An object with the methods `fit_batch` and `evaluate_batch`.
    pipeline : mpgluon.parallel.Pipeline, optional
        Trains in a pipeline over the devices that the network spans. A pipeline returns no
        predictions, so the default metric for training is the loss, and other metrics raise
        ValueError. Data and labels of a batch may be lists: the inputs of the network, and the
        arguments of the loss. Updates after several batches are an option of the trainer,
        ``Trainer(accumulate=4)``.
    train_step : mpgluon.parallel.TrainStep, optional
        A step of this network and loss, instead of `pipeline`. Its trainer is used.

    Attributes
    ----------
    logger : logging.Logger
        Logger of this estimator and its handlers; initially writes to the standard output.
    train_metrics, val_metrics : list of EvalMetric

    Examples
    --------
    >>> net = nn.Dense(2)
    >>> net.initialize()
    >>> estimator = gluon.contrib.estimator.Estimator(
    ...     net, gluon.loss.L2Loss(), trainer=gluon.Trainer(net.collect_params(), "sgd"),
    ...     context=mx.cpu())
    >>> estimator.logger.setLevel("WARNING")
    >>> data = gluon.data.ArrayDataset(nd.ones((8, 3)), nd.zeros((8, 2)))
    >>> loader = gluon.data.DataLoader(data, batch_size=4)
    >>> estimator.fit(loader, val_data=loader, epochs=2)
    >>> [metric.name for metric in estimator.train_metrics + estimator.val_metrics]
    ['training l2loss', 'validation l2loss']
    """

    def __init__(
        self,
        net: Block,
        loss: Loss,
        train_metrics: Metrics = None,
        val_metrics: Metrics = None,
        initializer: Init | None = None,
        trainer: Trainer | None = None,
        context: Context | list[Context] | None = None,
        val_net: Block | None = None,
        val_loss: Loss | None = None,
        batch_processor: Any = None,
        pipeline: Pipeline | None = None,
        train_step: TrainStep | None = None,
    ) -> None:
        self.net = net
        self.loss: Loss = self._check_loss(loss)
        if train_step is not None:
            pipeline = self._check_train_step(train_step, trainer, pipeline)
            trainer = train_step.trainer
        self.val_net: Block = net if val_net is None else val_net
        self.val_loss: Loss = self.loss if val_loss is None else self._check_loss(val_loss)
        self.spans_devices: bool = pipeline is not None
        self._train_metrics: list[EvalMetric] = list(check_metrics(train_metrics))
        self._val_metrics: list[EvalMetric] = list(check_metrics(val_metrics))
        self._name_metrics()
        self.logger: logging.Logger = logging.Logger(name="Estimator", level=logging.INFO)
        self.logger.addHandler(_Console(sys.stdout))
        self.context: list[Context] = self._check_context(context)
        self._initialize(initializer, given=context is not None)
        self.trainer: Trainer = self._check_trainer(trainer)
        self.batch_processor: Any = self._check_batch_processor(
            batch_processor, pipeline, train_step
        )
        self.max_epoch: int | None = None
        self.max_batch: int | None = None
        self.batch_axis: int = 0
        self.batches_per_epoch: int | None = None

    def __repr__(self) -> str:
        kind, devices = type(self.net).__name__, ", ".join(map(str, self.context))
        return f"Estimator({kind} {self.net.name!r} on {devices}, {self.loss!r}, {self.trainer!r})"

    def _check_loss(self, loss):
        if not isinstance(loss, Loss):
            raise ValueError(f"loss must be a gluon.loss.Loss, got {loss}")
        return loss

    def _check_context(self, context):
        if isinstance(context, Context):
            context = [context]
        if context:
            if not isinstance(context, list) or not all(isinstance(c, Context) for c in context):
                raise ValueError(
                    "context must be a Context or a list of Context, for example mx.cpu() or "
                    f"[mx.gpu(0), mx.gpu(1)]; got {context}"
                )
            count = num_gpus()
            absent = [c for c in context if c.device_type == "gpu" and c.device_id >= count]
            if absent:
                raise MXNetAssertionError(
                    f"Estimator: {absent[0]} does not exist; the devices are mx.cpu() and "
                    f"{count} GPUs"
                )
            return context
        placed = devices_of_groups(self.net)
        if placed is not None and not self.spans_devices:  # use the first device of each replica
            replicas = [placed] if isinstance(placed, dict) else placed.dicts
            return [next(iter(devices.values())) for devices in replicas]
        if num_gpus() > 1 and not self.spans_devices:
            warnings.warn(
                "You have multiple GPUs, gpu(0) will be used by default; to use several, pass a "
                "list, as context=[mx.gpu(0), mx.gpu(1)]",
                stacklevel=3,
            )
        return [gpu(0) if num_gpus() else cpu()]

    def _initialize(self, initializer, given):
        if self._is_initialized():
            if initializer:
                warnings.warn(
                    "Network already fully initialized, skipping initialization; "
                    "net.initialize(init=..., force_reinit=True) re-initializes it",
                    stacklevel=3,
                )
            return
        settings = {"init": initializer} if initializer else {}
        # A placed network determines the devices of its parameters, so omit ctx.
        if given or not (self.spans_devices or devices_of_groups(self.net) is not None):
            settings["ctx"] = self.context
        self.net.initialize(**settings)

    def _is_initialized(self):
        for parameter in self.net.collect_params().values():
            try:
                parameter.list_ctx()
            except RuntimeError:
                return False
        return True

    def _check_trainer(self, trainer):
        if not trainer:
            warnings.warn(
                "No trainer specified, default SGD optimizer with learning rate 0.001 is used.",
                stacklevel=3,
            )
            return Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.001})
        if not isinstance(trainer, Trainer):
            raise ValueError(f"trainer must be a gluon.Trainer, got {trainer}")
        return trainer

    def _check_train_step(self, step, trainer, pipeline):
        """Returns the pipeline of a TrainStep, or raises ValueError if it does not fit."""
        from ....parallel import TrainStep

        if not isinstance(step, TrainStep):
            raise ValueError(f"train_step must be an mx.parallel.TrainStep, got {step}")
        if pipeline is not None:
            raise ValueError("Estimator: give train_step or pipeline, not both")
        for what, given, own in (
            ("net", self.net, step.net),
            ("loss", self.loss, step.loss),
            ("trainer", step.trainer if trainer is None else trainer, step.trainer),
        ):
            if given is not own:
                raise ValueError(
                    f"Estimator: {what} differs from that of train_step; pass the object with "
                    "which the TrainStep was created"
                )
        if step.trainer is None:
            raise ValueError(
                "Estimator: train_step has no trainer, so nothing would be updated; create the "
                "TrainStep with a gluon.Trainer"
            )
        return step.pipeline

    def _check_batch_processor(self, processor, pipeline, train_step=None):
        if pipeline is not None:
            if processor is not None:
                raise ValueError("Estimator: give batch_processor or pipeline, not both")
            return PipelineBatchProcessor(pipeline, train_step)
        if processor is None:
            return BatchProcessor()
        for name in ("fit_batch", "evaluate_batch"):
            if not callable(getattr(processor, name, None)):
                raise ValueError(
                    f"batch_processor must have fit_batch() and evaluate_batch(): {name}"
                )
        return processor

    def _name_metrics(self):
        """Sets the default metrics and names all metrics, so that handlers can tell them apart."""
        suggested = suggest_metric_for_loss(self.loss)
        loss = self.loss.name.rstrip("1234567890")
        if not self._train_metrics:
            if suggested and not self.spans_devices:
                self._train_metrics = [suggested]
            self._train_metrics.append(LossMetric(loss))
        elif self.spans_devices and not all(isinstance(m, LossMetric) for m in self._train_metrics):
            raise ValueError(
                "Estimator: a pipeline returns losses but no predictions; with pipeline=, "
                "train_metrics must be mx.metric.Loss; use val_metrics for other metrics"
            )
        for metric in self._train_metrics:
            metric.name = f"training {metric.name}"
        if not self._val_metrics:
            self._val_metrics = [copy.deepcopy(metric) for metric in self._train_metrics]
            if suggested and self.spans_devices:
                self._val_metrics.insert(0, suggested)
        for metric in self._val_metrics:
            if "training" in metric.name:
                metric.name = metric.name.replace("training", "validation")
            else:
                metric.name = f"validation {metric.name}"

    @property
    def train_metrics(self) -> list[EvalMetric]:
        """The metrics for training."""
        return self._train_metrics

    @property
    def val_metrics(self) -> list[EvalMetric]:
        """The metrics for validation."""
        return self._val_metrics

    def evaluate(
        self, val_data: DataLoader, batch_axis: int = 0, event_handlers: Handlers = None
    ) -> None:
        """Computes `val_metrics`.

        Parameters
        ----------
        val_data : DataLoader
            Loader of data and labels.
        batch_axis : int, default 0
            The axis along which batches are divided over devices.
        event_handlers : EventHandler or list of them, optional
            Handlers. A `MetricHandler` and a `LoggingHandler` are added if missing.
        """
        _check_loader(val_data)
        for metric in self.val_metrics:
            metric.reset()
        handlers = self._prepare_default_validation_handlers(event_handlers)
        _, epoch_begin, batch_begin, batch_end, epoch_end, _ = self._categorize_handlers(handlers)
        for handler in epoch_begin:
            handler.epoch_begin(self)
        for batch in val_data:
            for handler in batch_begin:
                handler.batch_begin(self, batch=batch)
            _, label, pred, loss = self.batch_processor.evaluate_batch(self, batch, batch_axis)
            for handler in batch_end:
                handler.batch_end(self, batch=batch, pred=pred, label=label, loss=loss)
        for handler in epoch_end:
            handler.epoch_end(self)

    def fit(
        self,
        train_data: DataLoader,
        val_data: DataLoader | None = None,
        epochs: int | None = None,
        event_handlers: Handlers = None,
        batches: int | None = None,
        batch_axis: int = 0,
    ) -> None:
        """Trains for a number of epochs, or of batches.

        Parameters
        ----------
        train_data : DataLoader
            Loader of data and labels.
        val_data : DataLoader, optional
            Loader of data and labels for an evaluation after each epoch.
        epochs, batches : int
            Length of the training. Raises ValueError unless exactly one of them is given.
        event_handlers : EventHandler or list of them, optional
            Handlers. The default handlers for training, metrics, validation, logging and a progress
            bar are added unless one of the same class is given. Handlers with lower ``priority``
            are called first.
        batch_axis : int, default 0
            The axis along which batches are divided over devices.
        """
        _check_loader(train_data)
        if (not epochs) == (not batches):
            raise ValueError("Estimator.fit: exactly one of epochs= and batches= must be given")
        self.max_epoch, self.max_batch, self.batch_axis = epochs, batches, batch_axis
        self.batches_per_epoch = len(train_data)
        handlers = self._prepare_default_handlers(val_data, event_handlers)
        train_begin, epoch_begin, batch_begin, batch_end, epoch_end, train_end = (
            self._categorize_handlers(handlers)
        )
        for handler in train_begin:
            handler.train_begin(self)
        while True:
            for handler in epoch_begin:
                handler.epoch_begin(self)
            for batch in train_data:
                for handler in batch_begin:
                    handler.batch_begin(self, batch=batch)
                _, label, pred, loss = self.batch_processor.fit_batch(self, batch, batch_axis)
                facts = {"batch": batch, "pred": pred, "label": label, "loss": loss}
                if any([handler.batch_end(self, **facts) for handler in batch_end]):
                    break
            if any([handler.epoch_end(self) for handler in epoch_end]):
                break
        for handler in train_end:
            handler.train_end(self)

    def _prepare_default_handlers(self, val_data, event_handlers):
        given = check_event_handlers(event_handlers)
        added: list[EventHandler] = [StoppingHandler(self.max_epoch, self.max_batch)]
        defaults = [
            (GradientUpdateHandler, lambda: GradientUpdateHandler()),
            (MetricHandler, lambda: MetricHandler(self.train_metrics)),
            (LoggingHandler, lambda: LoggingHandler(metrics=self.train_metrics)),
        ]
        if sys.stderr.isatty():
            bar = lambda: ProgressBarHandler(metrics=self.train_metrics)
            defaults.append((ProgressBarHandler, bar))
        if val_data:
            validate = lambda: ValidationHandler(val_data=val_data, eval_fn=self.evaluate)
            defaults.insert(2, (ValidationHandler, validate))
        for kind, make in defaults:
            if not any(isinstance(handler, kind) for handler in given):
                added.append(make())
        return self._in_order(given, added, self.train_metrics + self.val_metrics)

    def _prepare_default_validation_handlers(self, event_handlers):
        given = check_event_handlers(event_handlers)
        added: list[EventHandler] = []
        if not any(isinstance(handler, MetricHandler) for handler in given):
            added.append(MetricHandler(metrics=self.val_metrics))
        if not any(isinstance(handler, LoggingHandler) for handler in given):
            added.append(LoggingHandler(metrics=self.val_metrics))
        return self._in_order(given, added, self.val_metrics)

    def _in_order(self, given, added, known):
        handlers = [*given, *added]
        if given and added:
            for handler in handlers:
                check_handler_metric_ref(handler, known)
        return sorted(handlers, key=lambda handler: getattr(handler, "priority", 0))

    def _categorize_handlers(self, event_handlers):
        """Returns the handlers of each event as six lists."""
        events = (TrainBegin, EpochBegin, BatchBegin, BatchEnd, EpochEnd, TrainEnd)
        return tuple([h for h in event_handlers if isinstance(h, event)] for event in events)


def _check_loader(data):
    if not isinstance(data, DataLoader):
        raise ValueError(
            f"Estimator: data must come from a gluon.data.DataLoader, not {type(data).__name__}"
        )
