"""``mx.contrib.tensorboard``: logs metrics and arrays for TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core import NDArray
from ..base import dtype_name

if TYPE_CHECKING:
    from ..model import BatchEndParam

__all__ = ["LogMetricsCallback", "SummaryWriter"]


class SummaryWriter:
    """The event file writer of mxboard, tensorboardX or PyTorch, with methods that also accept
    arrays of any device.

    Parameters
    ----------
    logdir : str, optional
        The folder of the file; the writer's default if it is the only argument and None.
    *args, **kwargs
        Further arguments of that writer.

    Raises
    ------
    ImportError
        If none of the packages is installed.

    Examples
    --------
    >>> def watch(net, loss, step):
    ...     with mx.contrib.tensorboard.SummaryWriter("logs") as writer:
    ...         writer.add_scalar("loss", loss.mean(), step)
    ...         for name, parameter in net.collect_params().items():
    ...             writer.add_histogram(name, parameter.data(), step)
    """

    def __init__(self, logdir: str | None = None, *args: Any, **kwargs: Any) -> None:
        if args or logdir is not None:
            args = (logdir, *args)
        self._writer: Any = _writer()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._writer, name)
        if not callable(method):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            return method(*_as_numpy(args), **_as_numpy(kwargs))

        return call

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def _as_numpy(value: Any) -> Any:
    """Converts the arrays in a value to NumPy arrays."""
    if isinstance(value, NDArray):
        wide = dtype_name(value.dtype) == "bfloat16"  # NumPy lacks bfloat16
        return (value.astype("float32") if wide else value).asnumpy()
    if type(value) in (list, tuple):
        return type(value)(_as_numpy(part) for part in value)
    if type(value) is dict:
        return {key: _as_numpy(part) for key, part in value.items()}
    return value


class LogMetricsCallback:
    """A callback that writes metrics to an event file; `summary_writer` is its `SummaryWriter`.

    Parameters
    ----------
    logging_dir : str
        The folder of the file.
    prefix : str, optional
        A prefix of the names of metrics.

    Raises
    ------
    ImportError
        If none of mxboard, tensorboardX and PyTorch is installed.

    Examples
    --------
    >>> def train(module, batches):
    ...     log = mx.contrib.tensorboard.LogMetricsCallback("logs", prefix="train")
    ...     module.fit(batches, num_epoch=2, batch_end_callback=log)
    """

    def __init__(self, logging_dir: str, prefix: str | None = None) -> None:
        self.prefix = prefix
        self.summary_writer: SummaryWriter = SummaryWriter(logging_dir)

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
    raise ImportError(
        "TensorBoard: no summary writer is installed; install mxboard, tensorboardX, or "
        "tensorboard with torch"
    )
