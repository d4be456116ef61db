"""`notebook.callback` with fakes for pandas and Bokeh that record their input."""

import sys
import types

import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.notebook import callback


class Table:
    def __init__(self):
        self.columns, self.lines, self.loc = [], [], self

    def __len__(self):
        return len(self.lines)

    def __setitem__(self, key, value):
        if isinstance(key, int):
            assert list(value) == self.columns and key == len(self.lines)
            self.lines.append(value)
        else:
            assert value is None
            self.columns.append(key)
            self.lines = [{**line, key: None} for line in self.lines]


@pytest.fixture
def packages(monkeypatch):
    """Fakes pandas and Bokeh; returns the log of shown and pushed charts."""
    shown = []

    class Line:
        def __init__(self, x, y, **options):
            self.data_source, self.data = self, {"x": list(x), "y": list(y)}

        def stream(self, more):
            self.data = {name: self.data[name] + more[name] for name in self.data}

    class Figure:
        def __init__(self, **options):
            self.options, self.legend = options, types.SimpleNamespace()
            self.line = Line

    def show(figure, notebook_handle):
        shown.append(("show", figure.options))
        return len(shown)

    io = types.SimpleNamespace(
        output_notebook=lambda: shown.append("notebook"),
        push_notebook=lambda handle: shown.append(("push", handle)),
    )
    plotting = types.SimpleNamespace(figure=Figure, show=show)
    for name, module in (
        ("pandas", types.SimpleNamespace(DataFrame=Table)),
        ("bokeh", types.SimpleNamespace(io=io, plotting=plotting)),
        ("bokeh.io", io),
        ("bokeh.plotting", plotting),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return shown


def trained(*callbacks):
    """Trains two epochs of three batches; each ends with an evaluation of two batches."""
    data = mx.io.NDArrayIter(nd.arange(12).reshape((6, 2)), nd.array([0, 1] * 3), batch_size=2)
    test = mx.io.NDArrayIter(nd.arange(8).reshape((4, 2)), nd.array([0, 1] * 2), batch_size=2)
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.fit(data, test, num_epoch=2, **callback.args_wrapper(*callbacks))


def test_pandas_logger_fills_tables(packages):
    logger = callback.PandasLogger(batch_size=2, frequent=2)
    trained(logger)
    assert [(line["epoch"], line["minibatch_count"]) for line in logger.train_df.lines] == [
        (0, 0),
        (0, 2),
        (1, 0),
        (1, 2),
    ]
    assert all(0 <= line["accuracy"] <= 1 for line in logger.train_df.lines)
    assert [line["epoch"] for line in logger.eval_df.lines] == [0, 1]
    assert len(logger.epoch_df) == 2 and logger.epoch_df.columns == ["elapsed", "epoch_time"]
    times = [line["elapsed"] for line in logger.epoch_df.lines]
    assert times == sorted(times) and logger.elapsed() >= times[-1]
    assert logger.train_df.lines[0]["batches_per_sec"] == pytest.approx(
        2 * logger.train_df.lines[0]["records_per_sec"]
    )
    logger.append_metrics({"new": 1}, "epoch")
    assert logger.all_dataframes["epoch"].lines[-1] == {
        "elapsed": None,
        "epoch_time": None,
        "new": 1,
    }
    logger.train_cb(mx.model.BatchEndParam(0, 2, None, None))
    assert logger.train_df.lines[-1]["accuracy"] is None


def test_learning_curve_plots_train_and_eval_points(packages):
    chart = callback.LiveLearningCurve("accuracy", display_freq=0, frequent=1)
    assert packages == ["notebook", ("show", chart.fig.options)]
    assert chart.fig.options["y_axis_label"] == "accuracy"
    trained(chart)
    for name, points in (("train", 6), ("eval", 2)):
        data = chart._lines[name].data
        assert len(data["x"]) == len(data["y"]) == points and data["x"] == sorted(data["x"])
    assert packages.count(("push", 2)) == 8
    slow = callback.LiveLearningCurve("accuracy", display_freq=1e9, frequent=1)
    del packages[:]
    trained(slow)
    assert len(packages) == 2  # only evaluations are drawn immediately


def test_time_series_plots_each_value(packages):
    chart = callback.LiveTimeSeries(y_axis_label="loss")
    assert chart.fig.options["y_axis_label"] == "loss"
    for value in (3, 1):
        chart.update_chart_data(value)
    assert chart._line.data["y"] == [3, 1] and chart.elapsed() >= chart._line.data["x"][1]
    with pytest.raises(NotImplementedError, match="LiveBokehChart does not define setup_chart"):
        callback.LiveBokehChart(None, "accuracy")


def test_missing_packages_raise_import_errors(monkeypatch):
    for name in ("pandas", "bokeh.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="PandasLogger needs pandas"):
        callback.PandasLogger(1)
    with pytest.raises(ImportError, match="LiveTimeSeries needs bokeh"):
        callback.LiveTimeSeries()
