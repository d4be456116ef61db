"""Callbacks of `Module.fit` that collect metrics in pandas tables, or plot them with Bokeh."""

from __future__ import annotations

import datetime
import importlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import BatchEndParam

__all__ = ["LiveBokehChart", "LiveLearningCurve", "LiveTimeSeries", "PandasLogger", "args_wrapper"]


def _package(name, user):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{user} needs {name.partition('.')[0]}: {error}") from None


def _metrics_of(param):
    """Returns the values of a batch's metric, and resets it."""
    if param.eval_metric is None:
        return {}
    values = dict(param.eval_metric.get_name_value())
    param.eval_metric.reset()
    return values


class PandasLogger:
    """Collects training metrics in three tables: of batches, of evaluations, and of epochs.

    Parameters
    ----------
    batch_size : int
        The batch size, to compute the speed.
    frequent : int, default 50
        The number of batches between rows.

    Raises
    ------
    ImportError
        If pandas is not installed.

    Examples
    --------
    >>> def train(module, batches):
    ...     logger = mx.notebook.callback.PandasLogger(batch_size=32)
    ...     module.fit(batches, num_epoch=2, **logger.callback_args())
    ...     return logger.train_df
    """

    def __init__(self, batch_size: int, frequent: int = 50) -> None:
        self.batch_size = batch_size
        self.frequent = frequent
        pandas = _package("pandas", "PandasLogger")
        self._dataframes: dict[str, Any] = {
            name: pandas.DataFrame() for name in ("train", "eval", "epoch")
        }
        self.last_time: float = time.time()
        self.start_time: datetime.datetime = datetime.datetime.now()
        self.last_epoch_time: datetime.datetime = self.start_time

    @property
    def train_df(self) -> Any:
        """The table of training batches."""
        return self._dataframes["train"]

    @property
    def eval_df(self) -> Any:
        """The table of evaluations."""
        return self._dataframes["eval"]

    @property
    def epoch_df(self) -> Any:
        """The table of epochs and their durations."""
        return self._dataframes["epoch"]

    @property
    def all_dataframes(self) -> dict[str, Any]:
        """All three tables by name: 'train', 'eval' and 'epoch'."""
        return self._dataframes

    def elapsed(self) -> datetime.timedelta:
        """Returns the time since the logger was created."""
        return datetime.datetime.now() - self.start_time

    def append_metrics(self, metrics: dict[str, Any], df_name: str) -> None:
        """Adds a row to a table, and columns that are new."""
        table = self._dataframes[df_name]
        for name in metrics:
            if name not in table.columns:
                table[name] = None
        table.loc[len(table)] = {name: metrics.get(name) for name in table.columns}

    def train_cb(self, param: BatchEndParam) -> None:
        """Runs at the end of training batches."""
        if param.nbatch % self.frequent == 0:
            self._process_batch(param, "train")

    def eval_cb(self, param: BatchEndParam) -> None:
        """Runs at the end of evaluations."""
        self._process_batch(param, "eval")

    def _process_batch(self, param, dataframe):
        now = time.time()
        speed = self.frequent / max(now - self.last_time, 1e-9)
        metrics = {
            **_metrics_of(param),
            "batches_per_sec": speed * self.batch_size,  # MXNet's name
            "records_per_sec": speed,
            "elapsed": self.elapsed(),
            "minibatch_count": param.nbatch,
            "epoch": param.epoch,
        }
        self.append_metrics(metrics, dataframe)
        self.last_time = now

    def epoch_cb(self, *_: Any) -> None:
        """Runs at the end of epochs."""
        now = datetime.datetime.now()
        line = {"elapsed": self.elapsed(), "epoch_time": now - self.last_epoch_time}
        self.append_metrics(line, "epoch")
        self.last_epoch_time = now

    def callback_args(self) -> dict[str, Callable[..., None]]:
        """Returns the arguments of `Module.fit` for all three callbacks."""
        return {
            "batch_end_callback": self.train_cb,
            "eval_end_callback": self.eval_cb,
            "epoch_end_callback": self.epoch_cb,
        }


class LiveBokehChart:
    """The base of charts in a notebook that are updated during training.

    A subclass defines `setup_chart` and `update_chart_data`.

    Parameters
    ----------
    pandas_logger : PandasLogger, optional
        Collects the metrics; by default one is created with `batch_size` and `frequent`.
    metric_name : str
        The metric to plot.
    display_freq : float, default 10
        The seconds between two updates.
    batch_size, frequent
        As in `PandasLogger`.

    Raises
    ------
    ImportError
        If Bokeh is not installed.

    Examples
    --------
    >>> issubclass(mx.notebook.callback.LiveLearningCurve, mx.notebook.callback.LiveBokehChart)
    True
    """

    def __init__(
        self,
        pandas_logger: PandasLogger | None,
        metric_name: str,
        display_freq: float = 10,
        batch_size: int | None = None,
        frequent: int = 50,
    ) -> None:
        self._io = _package("bokeh.io", type(self).__name__)
        self._plotting = _package("bokeh.plotting", type(self).__name__)
        self.pandas_logger: PandasLogger = pandas_logger or PandasLogger(batch_size or 1, frequent)
        self.display_freq = display_freq
        self.last_update: float = time.time()
        self.metric_name = metric_name
        self._io.output_notebook()
        self.handle: Any = self.setup_chart()

    def setup_chart(self) -> Any:
        """Draws the chart for the first time; returns its handle."""
        raise NotImplementedError(f"{type(self).__name__} does not define setup_chart")

    def update_chart_data(self) -> None:
        """Updates the chart with the newest values."""
        raise NotImplementedError(f"{type(self).__name__} does not define update_chart_data")

    def interval_elapsed(self) -> bool:
        """True if the next update is due."""
        return time.time() - self.last_update > self.display_freq

    def _push_render(self):
        self._io.push_notebook(handle=self.handle)
        self.last_update = time.time()

    def _do_update(self):
        self.update_chart_data()
        self._push_render()

    def batch_cb(self, param: BatchEndParam) -> None:
        """Runs at the end of training batches."""
        if self.interval_elapsed():
            self._do_update()

    def eval_cb(self, param: BatchEndParam) -> None:
        """Runs at the end of evaluations, and updates the chart immediately."""
        self._do_update()

    def callback_args(self) -> dict[str, Callable[..., None]]:
        """Returns the arguments of `Module.fit` for both callbacks."""
        return {"batch_end_callback": self.batch_cb, "eval_end_callback": self.eval_cb}


class LiveTimeSeries(LiveBokehChart):
    """A chart of values over time; `update_chart_data(value)` adds a value.

    Parameters
    ----------
    **fig_params
        Parameters of Bokeh's `figure`.

    Examples
    --------
    >>> def show(values):
    ...     chart = mx.notebook.callback.LiveTimeSeries(y_axis_label="loss")
    ...     for value in values:
    ...         chart.update_chart_data(value)
    """

    def __init__(self, **fig_params: Any) -> None:
        self._params = fig_params
        super().__init__(None, "")

    def setup_chart(self) -> Any:
        labels = {"x_axis_type": "datetime", "x_axis_label": "Elapsed time"}
        self.fig: Any = self._plotting.figure(**{**labels, **self._params})
        self.start_time: datetime.datetime = datetime.datetime.now()
        self._line = self.fig.line([], [])
        return self._plotting.show(self.fig, notebook_handle=True)

    def elapsed(self) -> datetime.timedelta:
        """Returns the time since the chart was created."""
        return datetime.datetime.now() - self.start_time

    def update_chart_data(self, value: float | None = None) -> None:
        """Adds a value, and updates the chart."""
        if value is not None:
            self._line.data_source.stream({"x": [self.elapsed()], "y": [value]})
        self._push_render()


class LiveLearningCurve(LiveBokehChart):
    """A chart of a metric over time, for training batches and for evaluations.

    Parameters
    ----------
    metric_name : str
        The metric.
    display_freq : float, default 10
        The seconds between two updates.
    frequent : int, default 50
        The number of batches between points.

    Examples
    --------
    >>> def train(module, batches, held_out):
    ...     chart = mx.notebook.callback.LiveLearningCurve("accuracy")
    ...     module.fit(batches, held_out, num_epoch=9, **chart.callback_args())
    """

    def __init__(self, metric_name: str, display_freq: float = 10, frequent: int = 50) -> None:
        self.frequent = frequent
        self.start_time: datetime.datetime = datetime.datetime.now()
        self._data: dict[str, list[tuple[datetime.timedelta, float]]] = {"train": [], "eval": []}
        super().__init__(None, metric_name, display_freq, frequent=frequent)

    def setup_chart(self) -> Any:
        self.fig: Any = self._plotting.figure(
            x_axis_type="datetime", x_axis_label="Training time", y_axis_label=self.metric_name
        )
        dotted = {"line_dash": "dotted", "alpha": 0.5, "legend_label": "train"}
        solid = {"line_color": "green", "line_width": 2, "legend_label": "validation"}
        self._lines = {
            "train": self.fig.line([], [], **dotted),
            "eval": self.fig.line([], [], **solid),
        }
        self.fig.legend.location = "bottom_right"
        return self._plotting.show(self.fig, notebook_handle=True)

    def batch_cb(self, param: BatchEndParam) -> None:
        if param.nbatch % self.frequent == 0:
            self._process_batch(param, "train")
        super().batch_cb(param)

    def eval_cb(self, param: BatchEndParam) -> None:
        self._process_batch(param, "eval")
        super().eval_cb(param)

    def _process_batch(self, param, df_name):
        metrics = _metrics_of(param)
        if self.metric_name in metrics:
            elapsed = datetime.datetime.now() - self.start_time
            self._data[df_name].append((elapsed, metrics[self.metric_name]))

    def update_chart_data(self) -> None:
        for name, points in self._data.items():
            x, y = ([point[i] for point in points] for i in (0, 1))
            self._lines[name].data_source.data = {"x": x, "y": y}


def args_wrapper(*args: Any) -> dict[str, list[Callable[..., None]]]:
    """Merges the arguments of `Module.fit` for several callbacks.

    Parameters
    ----------
    *args : PandasLogger or LiveBokehChart
        The callbacks.

    Returns
    -------
    dict of str to list

    Examples
    --------
    >>> mx.notebook.callback.args_wrapper()
    {}
    """
    together: dict[str, list[Callable[..., None]]] = {}
    for callback in args:
        for name, function in callback.callback_args().items():
            together.setdefault(name, []).append(function)
    return together
