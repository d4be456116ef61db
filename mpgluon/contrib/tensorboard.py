"""``mx.contrib.tensorboard``: metrics for TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..model import BatchEndParam

__all__ = ["LogMetricsCallback"]


class LogMetricsCallback:
    """A callback that writes metrics into an event file.

    Parameters
    ----------
    logging_dir : str
        The folder of the file.
    prefix : str, optional
        In front of the names of metrics.

    Raises
    ------
    ImportError
        There is no package that writes such files: mxboard, tensorboardX, or PyTorch.

    Examples
    --------
    >>> def train(module, batches):
    ...     log = mx.contrib.tensorboard.LogMetricsCallback("logs", prefix="train")
    ...     module.fit(batches, num_epoch=2, batch_end_callback=log)
    """

    def __init__(self, logging_dir: str, prefix: str | None = None) -> None:
        self.prefix = prefix
        self.summary_writer: Any = _writer()(logging_dir)

    def __call__(self, param: BatchEndParam) -> None:
        if param.eval_metric is None:
            return
        for name, value in param.eval_metric.get_name_value():
            shown = name if self.prefix is None else f"{self.prefix}-{name}"
            self.summary_writer.add_scalar(shown, value, global_step=param.epoch)


def _writer() -> Any:
    for module in ("mxboard", "tensorboardX", "torch.utils.tensorboard"):
        try:
            return __import__(module, fromlist=["SummaryWriter"]).SummaryWriter
        except ImportError:
            continue
    raise ImportError("LogMetricsCallback: install mxboard, tensorboardX or tensorboard with torch")
