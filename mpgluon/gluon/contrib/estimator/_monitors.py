"""Handlers that monitor a metric: checkpoints and early stopping."""

from __future__ import annotations

import contextlib
import math
import os
import re
import warnings
from typing import TYPE_CHECKING

from ....base import MXNetError
from ....metric import CompositeEvalMetric, EvalMetric
from ..._tree import is_hybridized
from ._events import BatchEnd, EpochEnd, TrainBegin, TrainEnd

if TYPE_CHECKING:
    from typing import Any

    from .estimator import Estimator


__all__ = ["CheckpointHandler", "EarlyStoppingHandler"]


def _greater_is_better(mode, monitor):
    """True if greater values of the monitored metric are better."""
    if mode not in ("auto", "min", "max"):
        warnings.warn(f"unknown mode {mode!r}; using 'auto'", RuntimeWarning, stacklevel=4)
        mode = "auto"
    if mode != "auto":
        return mode == "max"
    names = " ".join(name.lower() for name, _ in monitor.get_name_value())
    return "acc" in names or "f1" in names


def _monitored(monitor):
    """Returns the value of the monitored metric. Warns and returns None if it was not updated."""
    name, value = monitor.get_name_value()[0]
    if math.isnan(value):
        warnings.warn(
            f"{name} is never updated; monitor a metric of estimator.train_metrics or "
            "estimator.val_metrics",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    return value


class CheckpointHandler(TrainBegin, BatchEnd, EpochEnd):
    """Saves parameters and the trainer's states at regular intervals of epochs or batches, and the
    symbol of a hybridized network after the first batch.

    The files are ``PREFIX-epochEbatchB.params`` and ``.states``, ``PREFIX-best.params`` and
    ``.states``, and ``PREFIX-symbol.json``.

    Parameters
    ----------
    model_dir : str
        Folder of the files, created if it does not exist.
    model_prefix : str, default "model"
        Prefix of the files' names.
    monitor : EvalMetric, optional
        A metric of the estimator that `save_best` compares.
    verbose : int, default 0
        If greater than 0, saved files are logged.
    save_best : bool, default False
        Whether to save the best checkpoint as well. Raises ValueError without a monitor.
    mode : {"auto", "min", "max"}
        Which values are better. "auto" selects "max" for accuracies and F1, and "min" otherwise.
    epoch_period : int or None, default 1
        Number of epochs between checkpoints; None disables checkpoints after epochs.
    batch_period : int, optional
        Number of batches between checkpoints; by default, none are saved within epochs.
    max_checkpoints : int, default 5
        Number of checkpoints to keep in addition to the best one.
    resume_from_checkpoint : bool, default False
        Whether to continue from the last checkpoint in the folder, for the remaining epochs or
        batches. Checkpoints must be saved by the unit that limits training, epochs or batches.
        Raises ValueError otherwise, and if nothing remains to be trained.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     handler = gluon.contrib.estimator.CheckpointHandler(folder, max_checkpoints=2)
    >>> handler.epoch_period
    1
    """

    def __init__(
        self,
        model_dir: str,
        model_prefix: str = "model",
        monitor: EvalMetric | None = None,
        verbose: int = 0,
        save_best: bool = False,
        mode: str = "auto",
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        max_checkpoints: int = 5,
        resume_from_checkpoint: bool = False,
    ) -> None:
        if save_best and not isinstance(monitor, EvalMetric):
            raise ValueError(
                "CheckpointHandler: save_best needs a monitor, a metric of estimator.train_metrics "
                "or estimator.val_metrics"
            )
        os.makedirs(model_dir, exist_ok=True)
        self.model_dir = model_dir
        self.model_prefix = model_prefix
        self.monitor = monitor
        self.verbose = verbose
        self.save_best = save_best
        self.epoch_period = epoch_period
        self.batch_period = batch_period
        self.max_checkpoints = max_checkpoints
        self.resume_from_checkpoint = resume_from_checkpoint
        self.current_batch: int = 0
        self.current_epoch: int = 0
        self.trained_epoch: int = -1
        self.trained_batch: int = -1
        self.saved_checkpoints: list[str] = []
        self.greater_is_better: bool = bool(save_best) and _greater_is_better(mode, monitor)
        self.best: float = -math.inf if self.greater_is_better else math.inf

    def train_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Resets the counters, and loads the last checkpoint if training resumes from it."""
        self.current_epoch = self.current_batch = 0
        self.best = -math.inf if self.greater_is_better else math.inf
        if not self.resume_from_checkpoint:
            return
        by_batches, by_epochs = bool(self.batch_period), bool(self.epoch_period)
        if by_batches != bool(estimator.max_batch) or by_epochs != bool(estimator.max_epoch):
            raise ValueError(
                "CheckpointHandler: to resume, set only batch_period if training counts "
                "batches, or only epoch_period if it counts epochs"
            )
        self._resume(estimator)

    def batch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Saves a checkpoint if it is due."""
        if self.current_batch == 0:
            self._save_symbol(estimator)
        if self.batch_period and (self.current_batch + 1) % self.batch_period == 0:
            self._save_checkpoint(estimator, self.current_batch + 1)
        self.current_batch += 1

    def epoch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Saves a checkpoint if it is due."""
        if self.epoch_period and (self.current_epoch + 1) % self.epoch_period == 0:
            self._save_checkpoint(estimator, self.current_batch)
        self.current_epoch += 1

    def _path(self, name, suffix):
        return os.path.join(self.model_dir, f"{name}{suffix}")

    def _save_symbol(self, estimator):
        from ...block import HybridBlock
        from ...block._symbol_block import portable_symbol

        path = self._path(self.model_prefix, "-symbol.json")
        net = estimator.net
        reason: object = "the network is not a hybridized HybridBlock"
        inputs = getattr(estimator.batch_processor, "inputs", None)
        if isinstance(net, HybridBlock) and (inputs or is_hybridized(net)):
            try:
                with estimator.context[0]:
                    portable_symbol(net, inputs)[0].save(path)
                return
            # Not all networks can be exported; split layers, for example, have no symbol.
            except (MXNetError, RuntimeError) as error:
                reason = error
        estimator.logger.info("CheckpointHandler: %s is not written: %s", path, reason)

    def _save_checkpoint(self, estimator, batches):
        epoch, batch = self.current_epoch, self.current_batch
        if self.resume_from_checkpoint:
            epoch += self.trained_epoch + 1
            # current_batch already counts the last batch in epoch_end, but not in batch_end.
            batch += self.trained_batch + (0 if estimator.max_epoch else 1)
        name = f"{self.model_prefix}-epoch{epoch}batch{batch}"
        self._save(estimator, name)
        if name in self.saved_checkpoints:
            self.saved_checkpoints.remove(name)
        self.saved_checkpoints.append(name)
        if len(self.saved_checkpoints) > self.max_checkpoints:
            oldest = self.saved_checkpoints.pop(0)
            for suffix in (".params", ".states"):
                with contextlib.suppress(FileNotFoundError):  # the user may have deleted the file
                    os.remove(self._path(oldest, suffix))
        self._report(
            estimator,
            f"trained {batches} batches; saved {name} in {self.model_dir}",
        )
        value = _monitored(self.monitor) if self.save_best else None
        if value is None:
            return
        if value > self.best if self.greater_is_better else value < self.best:
            best = f"{self.model_prefix}-best"
            self._save(estimator, best)
            self._report(
                estimator,
                f"the metric improved from {self.best:0.5f} to {value:0.5f}; saved {best} in "
                f"{self.model_dir}",
            )
            self.best = value
        else:
            self._report(estimator, f"the metric did not improve from {self.best:0.5f}")

    def _report(self, estimator, text):
        if self.verbose > 0:
            estimator.logger.info("[Epoch %d] CheckpointHandler: %s", self.current_epoch, text)

    def _save(self, estimator, name):
        estimator.net.save_parameters(self._path(name, ".params"))
        estimator.trainer.save_states(self._path(name, ".states"))

    def _found(self):
        """Returns (epoch, batch, name) for each checkpoint in the folder, oldest first."""
        pattern = re.compile(
            re.escape(self.model_prefix) + r"-epoch(\d+)batch(\d+)\.params", re.ASCII
        )
        matches = filter(None, map(pattern.fullmatch, os.listdir(self.model_dir)))
        return sorted((int(m[1]), int(m[2]), m[0].removesuffix(".params")) for m in matches)

    def _resume(self, estimator):
        found = self._found()
        self.saved_checkpoints = [name for _, _, name in found]
        unit = "epoch" if estimator.max_epoch else "batch"
        total = estimator.max_epoch or estimator.max_batch
        if not found:
            self.trained_epoch = self.trained_batch = -1
            estimator.logger.info(
                "CheckpointHandler: no checkpoint found; training from the beginning for %d %s",
                total,
                "epochs" if unit == "epoch" else "batches",
            )
            return
        self.trained_epoch, self.trained_batch, name = found[-1]
        done = self.trained_epoch if unit == "epoch" else self.trained_batch
        if done >= total - 1:
            raise ValueError(
                f"CheckpointHandler: the checkpoint {name} is already trained for all {total} "
                f"{unit}; set resume_from_checkpoint=False to train from the beginning"
            )
        for suffix in (".params", ".states"):
            if not os.path.exists(self._path(name, suffix)):
                raise FileNotFoundError(f"CheckpointHandler: {self._path(name, suffix)} is missing")
        rest = total - done - 1
        if unit == "epoch":
            estimator.max_epoch = rest
        else:
            estimator.max_batch = rest
        estimator.net.load_parameters(self._path(name, ".params"))  # parameters keep their devices
        estimator.trainer.load_states(self._path(name, ".states"))
        estimator.logger.warning(
            "CheckpointHandler: resuming from the checkpoint of epoch %d, batch %d, for %d %s",
            self.trained_epoch,
            self.trained_batch,
            rest,
            "epochs" if unit == "epoch" else "batches",
        )


class EarlyStoppingHandler(TrainBegin, EpochEnd, TrainEnd):
    """Ends training when a metric stops improving.

    Parameters
    ----------
    monitor : EvalMetric
        A metric of the estimator. Raises ValueError for composite metrics.
    min_delta : float, default 0
        Smallest change that counts as an improvement.
    patience : int, default 0
        Number of epochs without improvement after which training ends.
    mode : {"auto", "min", "max"}
        Which values are better. "auto" selects "max" for accuracies and F1, and "min" otherwise.
    baseline : float, optional
        Initial value to compare with.

    Examples
    --------
    >>> loss = mx.metric.Loss()
    >>> gluon.contrib.estimator.EarlyStoppingHandler(loss, patience=3).greater_is_better
    False
    """

    def __init__(
        self,
        monitor: EvalMetric,
        min_delta: float = 0,
        patience: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
    ) -> None:
        if not isinstance(monitor, EvalMetric) or isinstance(monitor, CompositeEvalMetric):
            raise ValueError(
                "EarlyStoppingHandler: monitor must be a simple metric of estimator.train_metrics "
                f"or estimator.val_metrics, not {type(monitor).__name__}"
            )
        self.monitor = monitor
        self.greater_is_better: bool = _greater_is_better(mode, monitor)
        self.min_delta: float = min_delta if self.greater_is_better else -min_delta
        self.patience = patience
        self.baseline = baseline
        self.wait: int = 0
        self.stopped_epoch: int = 0
        self.current_epoch: int = 0
        self.stop_training: bool = False
        self.best: float = 0.0

    def train_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Resets the counters."""
        self.wait = self.stopped_epoch = self.current_epoch = 0
        self.stop_training = False
        worst = -math.inf if self.greater_is_better else math.inf
        self.best = worst if self.baseline is None else self.baseline

    def epoch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> bool:
        """Returns True to end training if the metric has not improved for `patience` epochs."""
        value = _monitored(self.monitor)
        if value is not None:
            changed = value - self.min_delta
            if changed > self.best if self.greater_is_better else changed < self.best:
                self.best = value
                self.wait = 0
            else:
                self.wait += 1
                if self.wait >= self.patience:
                    self.stopped_epoch = self.current_epoch
                    self.stop_training = True
        self.current_epoch += 1
        return self.stop_training

    def train_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Logs that this handler ended training."""
        if self.stopped_epoch > 0:
            estimator.logger.info(
                "[Epoch %d] EarlyStoppingHandler: early stopping due to %s not improving",
                self.stopped_epoch,
                self.monitor.get()[0],
            )
