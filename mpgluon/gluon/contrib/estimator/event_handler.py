"""Event handlers of a training loop. A handler inherits from the class of each event that it
handles: `TrainBegin`, `EpochBegin`, `BatchBegin`, `BatchEnd`, `EpochEnd`, `TrainEnd`."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ....metric import Loss as LossMetric
from ._events import BatchBegin, BatchEnd, EpochBegin, EpochEnd, EventHandler, TrainBegin, TrainEnd
from ._metrics import check_metrics
from ._monitors import CheckpointHandler, EarlyStoppingHandler

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ....metric import EvalMetric
    from ...data import DataLoader
    from .estimator import Estimator


__all__ = [
    "BatchBegin",
    "BatchEnd",
    "CheckpointHandler",
    "EarlyStoppingHandler",
    "EpochBegin",
    "EpochEnd",
    "EventHandler",
    "GradientUpdateHandler",
    "LoggingHandler",
    "MetricHandler",
    "ProgressBarHandler",
    "StoppingHandler",
    "TrainBegin",
    "TrainEnd",
    "ValidationHandler",
]


class StoppingHandler(TrainBegin, BatchEnd, EpochEnd):
    """Ends training after the number of epochs or batches given to `Estimator.fit`.

    Parameters
    ----------
    max_epoch, max_batch : int, optional
        Limits; the values given to `Estimator.fit` replace them when training begins.

    Examples
    --------
    >>> gluon.contrib.estimator.StoppingHandler(max_epoch=3).max_epoch
    3
    """

    def __init__(self, max_epoch: int | None = None, max_batch: int | None = None) -> None:
        self.max_epoch = max_epoch
        self.max_batch = max_batch
        self.current_batch: int = 0
        self.current_epoch: int = 0
        self.stop_training: bool = False

    def train_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Resets the counters and takes over the limits of `Estimator.fit`."""
        self.max_epoch, self.max_batch = estimator.max_epoch, estimator.max_batch
        self.current_batch = self.current_epoch = 0
        self.stop_training = False

    def batch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> bool:
        """Returns True after the last batch."""
        self.current_batch += 1
        self.stop_training |= self.current_batch == self.max_batch
        return self.stop_training

    def epoch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> bool:
        """Returns True after the last epoch."""
        self.current_epoch += 1
        self.stop_training |= self.current_epoch == self.max_epoch
        return self.stop_training


class MetricHandler(EpochBegin, BatchEnd):
    """Updates metrics after each batch, and resets them before each epoch.

    Parameters
    ----------
    metrics : EvalMetric or list of them
        Metrics to update. `mx.metric.Loss` receives losses, other metrics labels and predictions.
    priority : float, default -1000
        Handlers with lower priority are called first.

    Examples
    --------
    >>> accuracy = mx.metric.Accuracy()
    >>> gluon.contrib.estimator.MetricHandler(accuracy).metrics[0] is accuracy
    True
    """

    def __init__(self, metrics: EvalMetric | list[EvalMetric], priority: float = -1000) -> None:
        self.metrics: list[EvalMetric] = check_metrics(metrics)
        self.priority = priority

    def epoch_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Resets the metrics."""
        for metric in self.metrics:
            metric.reset()

    def batch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Updates the metrics."""
        for metric in self.metrics:
            if isinstance(metric, LossMetric):
                metric.update(None, kwargs["loss"])
            else:
                metric.update(kwargs["label"], kwargs["pred"])


class ValidationHandler(TrainBegin, BatchEnd, EpochEnd):
    """Evaluates at regular intervals of epochs or batches.

    Parameters
    ----------
    val_data : DataLoader
        Loader of data and labels.
    eval_fn : callable
        Function called as ``eval_fn(val_data=..., batch_axis=..., event_handlers=...)``, such as
        `Estimator.evaluate`.
    epoch_period : int or None, default 1
        Number of epochs between evaluations; None disables evaluation after epochs.
    batch_period : int, optional
        Number of batches between evaluations; by default, none run within epochs.
    priority : float, default -1000
        Handlers with lower priority are called first.
    event_handlers : EventHandler or list of them, optional
        Handlers for `eval_fn`.

    Examples
    --------
    >>> handler = gluon.contrib.estimator.ValidationHandler([], print, epoch_period=5)
    >>> handler.epoch_period
    5
    """

    def __init__(
        self,
        val_data: DataLoader,
        eval_fn: Callable[..., Any],
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        priority: float = -1000,
        event_handlers: Any = None,
    ) -> None:
        self.val_data = val_data
        self.eval_fn = eval_fn
        self.epoch_period = epoch_period
        self.batch_period = batch_period
        self.current_batch: int = 0
        self.current_epoch: int = 0
        self.priority = priority
        self.event_handlers = event_handlers

    def train_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Resets the counters."""
        self.current_batch = self.current_epoch = 0

    def _evaluate_if_due(self, estimator, count, period):
        if period and count % period == 0:
            self.eval_fn(
                val_data=self.val_data,
                batch_axis=estimator.batch_axis,
                event_handlers=self.event_handlers,
            )

    def batch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Evaluates if it is due."""
        self.current_batch += 1
        self._evaluate_if_due(estimator, self.current_batch, self.batch_period)

    def epoch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Evaluates if it is due."""
        self.current_epoch += 1
        self._evaluate_if_due(estimator, self.current_epoch, self.epoch_period)


def _values(metrics):
    """Returns ``name: value`` for each metric, separated by commas."""
    return ", ".join(
        f"{name}: {value:.4f}" for metric in metrics for name, value in metric.get_name_value()
    )


def _samples_of(estimator):
    """Returns the number of samples in the last batch of a pipeline, or None."""
    return getattr(estimator.batch_processor, "samples", None)


class LoggingHandler(TrainBegin, TrainEnd, EpochBegin, EpochEnd, BatchBegin, BatchEnd):
    """Logs the progress of training to the estimator's logger.

    Parameters
    ----------
    log_interval : int or "epoch", default "epoch"
        Number of batches between log lines, in addition to those of epochs. Raises ValueError for
        other values.
    metrics : EvalMetric or list of them, optional
        The metrics to log.
    priority : float, default infinity
        Handlers with lower priority are called first.

    Examples
    --------
    >>> gluon.contrib.estimator.LoggingHandler(log_interval=50).log_interval
    50
    """

    def __init__(
        self,
        log_interval: int | str = "epoch",
        metrics: EvalMetric | list[EvalMetric] | None = None,
        priority: float = math.inf,
    ) -> None:
        if not isinstance(log_interval, int) and log_interval != "epoch":
            raise ValueError(f"log_interval must be an integer or 'epoch', got {log_interval!r}")
        self.metrics: list[EvalMetric] = check_metrics(metrics)
        self.priority = priority
        self.log_interval = log_interval
        self.batch_index: int = 0
        self.current_epoch: int = 0
        self.processed_samples: int = 0
        self.log_interval_time: float = 0.0
        self.train_start: float = 0.0
        self.epoch_start: float = 0.0
        self.batch_start: float = 0.0

    def train_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Logs the optimizer and the length of the training."""
        self.train_start = time.time()
        estimator.logger.info(
            "Training begin: using optimizer %s with current learning rate %.4f ",
            type(estimator.trainer.optimizer).__name__,
            estimator.trainer.learning_rate,
        )
        if estimator.max_epoch:
            estimator.logger.info("Train for %d epochs.", estimator.max_epoch)
        else:
            estimator.logger.info("Train for %d batches.", estimator.max_batch)
        self.current_epoch = self.batch_index = self.processed_samples = 0
        self.log_interval_time = 0.0

    def train_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Logs the duration of the training and the metrics."""
        estimator.logger.info(
            "Train finished using total %ds with %d epochs. %s",
            time.time() - self.train_start,
            self.current_epoch,
            _values(self.metrics),
        )

    def batch_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Records the start time of the batch."""
        self.batch_start = time.time()

    def batch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Logs the metrics if it is due."""
        if isinstance(self.log_interval, int):
            samples = _samples_of(estimator)
            self.processed_samples += kwargs["batch"][0].shape[0] if samples is None else samples
            self.log_interval_time += time.time() - self.batch_start
            if self.batch_index % self.log_interval == 0:
                estimator.logger.info(
                    "[Epoch %d][Batch %d][Samples %s] time/interval: %.3fs %s",
                    self.current_epoch,
                    self.batch_index,
                    self.processed_samples,
                    self.log_interval_time,
                    _values(self.metrics),
                )
                self.log_interval_time = 0.0
        self.batch_index += 1

    def epoch_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Logs the learning rate, or the start of an evaluation."""
        self.epoch_start = time.time()
        if any("training" in metric.name for metric in self.metrics):
            estimator.logger.info(
                "[Epoch %d] Begin, current learning rate: %.4f",
                self.current_epoch,
                estimator.trainer.learning_rate,
            )
        else:
            estimator.logger.info("Validation Begin")

    def epoch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Logs the duration of the epoch and the metrics."""
        estimator.logger.info(
            "[Epoch %d] Finished in %.3fs, %s",
            self.current_epoch,
            time.time() - self.epoch_start,
            _values(self.metrics),
        )
        self.current_epoch += 1
        self.batch_index = 0


class ProgressBarHandler(TrainBegin, EpochBegin, BatchEnd, EpochEnd, TrainEnd):
    """Shows a progress bar of each epoch, with the metrics, on a terminal.

    Parameters
    ----------
    metrics : EvalMetric or list of them, optional
        Metrics to show after the bar.
    disable : bool, optional
        Whether to hide the bar; by default, it is hidden if the standard error is not a terminal.
    priority : float, default 1000
        Handlers with lower priority are called first.

    Examples
    --------
    >>> without_bar = gluon.contrib.estimator.ProgressBarHandler(disable=True)
    """

    def __init__(
        self,
        metrics: EvalMetric | list[EvalMetric] | None = None,
        disable: bool | None = None,
        priority: float = 1000,
    ) -> None:
        self.metrics: list[EvalMetric] = check_metrics(metrics)
        self.disable = disable
        self.priority = priority
        self.current_epoch: int = 0
        self.current_batch: int = 0
        self._bar: Any = None

    def train_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Resets the counters."""
        self.current_epoch = self.current_batch = 0

    def epoch_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Starts a progress bar."""
        from tqdm import tqdm

        total = estimator.batches_per_epoch
        if total is not None and estimator.max_batch:
            total = min(total, estimator.max_batch - self.current_batch)
        name = f"Epoch {self.current_epoch}"
        self._bar = tqdm(total=total, desc=name, unit="batch", leave=False, disable=self.disable)

    def batch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Advances the progress bar."""
        self.current_batch += 1
        if not self._bar.disable:
            self._bar.set_postfix_str(_values(self.metrics), refresh=False)
            self._bar.update()

    def epoch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Removes the progress bar."""
        self._bar.close()
        self.current_epoch += 1

    def train_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Releases the last progress bar."""
        self._bar = None


class GradientUpdateHandler(BatchEnd):
    """Updates the parameters after each batch.

    Parameters
    ----------
    priority : float, default -2000
        Handlers with lower priority are called first.

    Examples
    --------
    >>> class EverySecondBatch(gluon.contrib.estimator.GradientUpdateHandler):
    ...     count = 0
    ...     def batch_end(self, estimator, *args, **kwargs):
    ...         self.count += 1
    ...         if self.count % 2 == 0:
    ...             super().batch_end(estimator, *args, **kwargs)
    """

    def __init__(self, priority: float = -2000) -> None:
        self.priority = priority

    def batch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Calls ``trainer.step`` with the number of samples."""
        loss = kwargs["loss"]
        losses = loss if isinstance(loss, list) else [loss]
        samples = _samples_of(estimator)
        estimator.trainer.step(sum(x.shape[0] for x in losses) if samples is None else samples)
