"""Callbacks, loggers and registries."""

import logging
import os
from types import SimpleNamespace

import pytest

import mpgluon as mx
from mpgluon import callback
from support.processes import output_of


def test_speedometer_logs_and_resets(caplog):
    caplog.set_level(logging.INFO)
    metric = mx.metric.Loss()
    report = callback.Speedometer(batch_size=4, frequent=2)
    for batch in range(5):
        metric.update(None, mx.nd.array([float(batch)]))
        report(SimpleNamespace(epoch=3, nbatch=batch, eval_metric=metric))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("Epoch[3] Batch [0-2]\tSpeed: ")
    assert lines[0].endswith("\tloss=1.000000")
    assert lines[1].endswith("\tloss=3.500000")
    assert metric.get_global()[1] == 2.0


def test_callbacks_log_metrics_and_progress(caplog):
    caplog.set_level(logging.INFO)
    metric = mx.metric.Loss()
    metric.update(None, mx.nd.array([2.0]))
    param = SimpleNamespace(epoch=1, nbatch=10, eval_metric=metric)
    callback.log_train_metric(5, auto_reset=True)(param)
    callback.ProgressBar(total=20, length=10)(param)
    callback.LogValidationMetricsCallback()(SimpleNamespace(epoch=1, eval_metric=mx.metric.Loss()))
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "Iter[1] Batch[10] Train-loss=2.000000",
        "[=====-----] 50%\r",
        "Epoch[1] Validation-loss=nan",
    ]


def test_checkpoint_callbacks_save_every_period(tmp_path):
    save = callback.do_checkpoint(str(tmp_path / "net"), period=2)
    for epoch in range(4):
        save(epoch, None, {"w": mx.nd.array([epoch])}, {"mean": mx.nd.array([9])})
    assert sorted(os.listdir(tmp_path)) == ["net-0002.params", "net-0004.params"]
    loaded = mx.nd.load(tmp_path / "net-0004.params")
    assert loaded["arg:w"].asscalar() == 3 and loaded["aux:mean"].asscalar() == 9

    class Module:
        saved = []

        def save_checkpoint(self, *args):
            self.saved.append(args)

    every = callback.module_checkpoint(Module(), "p", period=3, save_optimizer_states=True)
    for epoch in range(6):
        every(epoch)
    assert Module.saved == [("p", 3, True), ("p", 6, True)]


def test_get_logger_formats_lines(tmp_path):
    path = tmp_path / "log"
    logger = mx.log.get_logger("mpgluon-test", str(path), level=mx.log.INFO)
    assert mx.log.get_logger("mpgluon-test") is logger
    logger.info("hello %d", 5)
    logger.debug("not shown")
    for handler in logger.handlers:
        handler.close()
    (line,) = path.read_text().splitlines()
    assert line.startswith("I ")
    assert line.endswith("] hello 5")
    assert "test_training_helpers.py" in line


def test_registry_creates_classes_by_name_and_alias():
    class Base:
        def __init__(self, size=1):
            self.size = size

    register = mx.registry.get_register_func(Base, "thing")
    create = mx.registry.get_create_func(Base, "thing")

    @mx.registry.get_alias_func(Base, "thing")("short", "shorter")
    @register
    class LongName(Base):
        pass

    assert (
        create("LONGNAME", 3).size
        == create("short", size=3).size
        == create('["shorter", {"size": 3}]').size
        == create({"thing": "short", "size": 3}).size
        == 3
    )
    assert set(mx.registry.get_registry(Base)) == {"longname", "short", "shorter"}
    one = LongName()
    assert create(one) is one
    for wrong, words in (
        (lambda: create(one, 5), "no further arguments"),
        (lambda: create('["short", {}]', size=3), "no further arguments"),
        (lambda: create("none"), "longname, short, shorter"),
        (lambda: create(None), "thing must be a name or an instance, got NoneType"),
        (lambda: register(int), "only subclasses of Base"),
    ):
        with pytest.raises(AssertionError, match=words):
            wrong()
    with pytest.warns(UserWarning, match="replaces"):
        register(type("Short", (Base,), {}))


def test_optional_modules_load_lazily():
    code = (
        "import sys; before = set(sys.modules); import mpgluon; print([m for m in "
        "('multiprocessing', 'json', 'mpgluon.metric', 'mpgluon.optimizer', 'PIL') "
        "if m in sys.modules and m not in before])"
    )
    assert output_of(code).strip() == "[]"
