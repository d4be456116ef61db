"""Callbacks that a training loop calls after a batch or an epoch.

A batch callback takes one argument with the attributes `epoch`, `nbatch` and `eval_metric`.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from ._internal.hints import constructed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .model import BatchEndParam
    from .module import BaseModule


__all__ = [
    "Speedometer",
    "ProgressBar",
    "LogValidationMetricsCallback",
    "log_train_metric",
    "do_checkpoint",
    "module_checkpoint",
]


def _every(period):
    period = max(1, int(period))
    return lambda epoch: (epoch + 1) % period == 0


def module_checkpoint(
    mod: BaseModule, prefix: str, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., None]:
    """Returns an epoch callback that saves a module every `period` epochs.

    It calls `mod.save_checkpoint(prefix, epoch + 1, save_optimizer_states)`.

    Examples
    --------
    >>> x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
    >>> module = mx.mod.Module(mx.sym.SoftmaxOutput(x, name="softmax"))
    >>> save = mx.callback.module_checkpoint(module, "net", period=10)
    >>> data = mx.io.NDArrayIter(np.ones((4, 3)), np.zeros(4), batch_size=2)
    >>> module.fit(data, num_epoch=2, epoch_end_callback=save)
    """
    due = _every(period)

    def callback(iter_no, sym=None, arg=None, aux=None):
        if due(iter_no):
            mod.save_checkpoint(prefix, iter_no + 1, save_optimizer_states)

    return callback


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """Returns an epoch callback that saves a checkpoint every `period` epochs.

    It writes `prefix-symbol.json` and `prefix-0001.params`, numbered by epoch.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save = mx.callback.do_checkpoint(os.path.join(folder, "net"), period=2)
    ...     for epoch in range(2):
    ...         save(epoch, mx.sym.var("x"), {}, {})
    ...     names = sorted(os.listdir(folder))
    >>> names
    ['net-0002.params', 'net-symbol.json']
    """
    due = _every(period)

    def callback(iter_no, sym, arg, aux):
        if due(iter_no):
            from . import model  # would be circular at module level

            model.save_checkpoint(prefix, iter_no + 1, sym, arg, aux)

    return callback


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[BatchEndParam], None]:
    """Returns a batch callback that logs the metric every `period` batches.

    With `auto_reset` it then resets the metric.

    Examples
    --------
    >>> report = mx.callback.log_train_metric(period=50)
    >>> report(mx.model.BatchEndParam(epoch=0, nbatch=1, eval_metric=None, locals=None))
    """

    def callback(param):
        if param.nbatch % period == 0 and param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info(
                    "Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value
                )
            if auto_reset:
                param.eval_metric.reset_local()

    return callback


class Speedometer:
    """Logs the samples per second and the metric every `frequent` batches of `batch_size` samples.

    With `auto_reset` the metric is then reset, so each line covers the batches since the previous
    line.

    Examples
    --------
    >>> report = mx.callback.Speedometer(batch_size=32, frequent=50)
    >>> for batch in range(100):
    ...     report(mx.model.BatchEndParam(0, batch, eval_metric=None, locals=None))
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size = batch_size
        self.frequent = frequent
        self.auto_reset = auto_reset
        self.init: bool = False
        self.tic: float = 0.0
        self.last_count: int = 0

    def __repr__(self) -> str:
        return constructed(self)

    def __call__(self, param: BatchEndParam) -> None:
        count = param.nbatch
        if count < self.last_count:  # a new epoch has begun
            self.init = False
        self.last_count = count
        if not self.init:
            self.init = True
            self.tic = time.time()
        elif count % self.frequent == 0:
            self._report(param, count)
            self.tic = time.time()

    def _report(self, param, count):
        elapsed = time.time() - self.tic
        speed = self.frequent * self.batch_size / elapsed if elapsed > 0 else float("inf")
        if param.eval_metric is None:
            logging.info("Iter[%d] Batch [%d]\tSpeed: %.2f samples/sec", param.epoch, count, speed)
            return
        values = param.eval_metric.get_name_value()
        first = 0
        if self.auto_reset:
            param.eval_metric.reset_local()
            first = count - self.frequent
        metrics = "".join(f"\t{name}={value:f}" for name, value in values)
        logging.info(
            "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec%s",
            param.epoch,
            first,
            count,
            speed,
            metrics,
        )


class ProgressBar:
    """Logs a progress bar of `length` characters, which is full after `total` batches.

    Examples
    --------
    >>> bar = mx.callback.ProgressBar(total=2, length=10)
    >>> bar(mx.model.BatchEndParam(epoch=0, nbatch=1, eval_metric=None, locals=None))
    """

    def __init__(self, total: int, length: int = 80) -> None:
        self.total = total
        self.bar_len = length

    def __repr__(self) -> str:
        return f"ProgressBar(total={self.total}, length={self.bar_len})"

    def __call__(self, param: BatchEndParam) -> None:
        part = param.nbatch / float(self.total)
        filled = int(round(self.bar_len * part))
        logging.info(
            "[%s] %s%%\r", "=" * filled + "-" * (self.bar_len - filled), math.ceil(100.0 * part)
        )


class LogValidationMetricsCallback:
    """Logs the metric at the end of each evaluation.

    Examples
    --------
    >>> metric = mx.metric.Accuracy()
    >>> metric.update([nd.array([1])], [nd.array([[0.1, 0.9]])])
    >>> report = mx.callback.LogValidationMetricsCallback()
    >>> report(mx.model.BatchEndParam(epoch=0, nbatch=1, eval_metric=metric, locals=None))
    """

    def __call__(self, param: BatchEndParam) -> None:
        if param.eval_metric:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)
