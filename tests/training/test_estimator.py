"""`gluon.contrib.estimator`: the training loop and its event handlers."""

import io
import os
import sys

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon
from mpgluon.gluon import nn
from mpgluon.gluon.contrib import estimator as est
from support.calls import raises
from support.compare import same_bits

LOSS = gluon.loss.SoftmaxCrossEntropyLoss


def loader(count=32, batch_size=8):
    random = np.random.RandomState(0)
    x = random.standard_normal((count, 5)).astype(np.float32)
    return gluon.data.DataLoader(
        gluon.data.ArrayDataset(x, (x[:, 0] > 0).astype(np.float32)), batch_size=batch_size
    )


def network(devices=None, hybridize=True):
    mx.random.seed(1)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, activation="relu", in_units=5), nn.Dense(2, in_units=8))
    if devices:
        net.initialize("xavier", ctx=devices)
    if hybridize:
        net.hybridize()
    return net


def trainer_of(net):
    return gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})


def make(devices=(mx.cpu(0),), **settings):
    devices = list(devices)
    net = network(devices)
    one = est.Estimator(net, LOSS(), trainer=trainer_of(net), context=devices, **settings)
    one.logger.setLevel("ERROR")
    return one


def values(net):
    return [parameter.data(parameter.list_ctx()[0]) for parameter in net.collect_params().values()]


def test_fit_equals_a_manual_training_loop():
    devices = [mx.cpu(0), mx.cpu(1)]
    one = make(devices)
    one.fit(loader(), val_data=loader(16), epochs=3)
    net = network(devices)
    trainer = trainer_of(net)
    for _ in range(3):
        for x, y in loader():
            parts = gluon.utils.split_and_load(x, devices), gluon.utils.split_and_load(y, devices)
            with autograd.record():
                losses = [LOSS()(net(x), y) for x, y in zip(*parts)]
            autograd.backward(losses)
            trainer.step(len(x))
    same_bits(values(one.net), values(net))
    assert [metric.name for metric in one.train_metrics + one.val_metrics] == [
        "training accuracy",
        "training softmaxcrossentropyloss",
        "validation accuracy",
        "validation softmaxcrossentropyloss",
    ]
    assert one.val_metrics[0].num_inst == 16 and one.train_metrics[0].num_inst == 32
    assert one.train_metrics[0].get()[1] > 0.8


def test_fit_by_batches_calls_handlers_in_order():
    events = []

    class Recorder(est.TrainBegin, est.EpochBegin, est.BatchBegin, est.BatchEnd, est.TrainEnd):
        priority = -5000

        def train_begin(self, estimator, *args, **kwargs):
            events.append("train")

        def epoch_begin(self, estimator, *args, **kwargs):
            events.append("epoch")

        def batch_begin(self, estimator, *args, **kwargs):
            events.append("batch")

        def batch_end(self, estimator, *args, **kwargs):
            assert set(kwargs) == {"batch", "pred", "label", "loss"}

        def train_end(self, estimator, *args, **kwargs):
            events.append("end")

    one = make()
    given = [Recorder(), est.ValidationHandler(loader(8), one.evaluate, None, batch_period=3)]
    one.fit(loader(), batches=6, event_handlers=given)
    assert events == ["train", "epoch", *["batch"] * 4, "epoch", *["batch"] * 2, "end"]
    assert len(given) == 2 and one.val_metrics[0].num_inst == 8


def test_logging_and_progress_handlers_write_expected_lines(monkeypatch):
    one = make()
    one.logger.setLevel("INFO")
    one.logger.handlers[0].setStream(io.StringIO())
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    log = est.LoggingHandler(log_interval=2, metrics=one.train_metrics)
    one.fit(loader(), loader(8), epochs=1, event_handlers=log)
    lines = one.logger.handlers[0].stream.getvalue().splitlines()
    begins = [
        "Training begin: using optimizer Adam with current learning rate 0.0500 ",
        "Train for 1 epochs.",
        "[Epoch 0] Begin, current learning rate: 0.0500",
        "[Epoch 0][Batch 0][Samples 8] time/interval: ",
        "[Epoch 0][Batch 2][Samples 24] time/interval: ",
        "Validation Begin",
        "[Epoch 0] Finished in ",
        "[Epoch 0] Finished in ",
        "Train finished using total 0s with 1 epochs. training accuracy: ",
    ]
    assert len(lines) == len(begins) and all(map(str.startswith, lines, begins)), lines
    assert "Epoch 0:" in terminal.getvalue() and "/4" in terminal.getvalue()
    raises(ValueError, "log_interval", lambda: est.LoggingHandler("batch"))


def test_checkpoint_handler_resumes_training(tmp_path):
    whole = make()
    whole.fit(loader(), epochs=4)
    folder = str(tmp_path / "checkpoints")
    first = make()
    handler = est.CheckpointHandler(
        folder, monitor=first.train_metrics[0], save_best=True, max_checkpoints=2
    )
    first.fit(loader(), epochs=3, event_handlers=handler)
    names = {"model-epoch1batch8", "model-epoch2batch12", "model-best"}
    expected = {f"{name}.{kind}" for name in names for kind in ("params", "states")}
    assert set(os.listdir(folder)) == expected | {"model-symbol.json"}
    assert handler.best == first.train_metrics[0].get()[1]
    rest = make()
    rest.fit(
        loader(),
        epochs=4,
        event_handlers=est.CheckpointHandler(
            folder, max_checkpoints=2, resume_from_checkpoint=True
        ),
    )
    same_bits(values(rest.net), values(whole.net))
    assert "model-epoch3batch16.params" in os.listdir(folder)
    assert "model-epoch1batch8.params" not in os.listdir(folder)
    again = est.CheckpointHandler(folder, resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="trained for all 4"):
        make().fit(loader(), epochs=4, event_handlers=again)
    raises(ValueError, "to resume", lambda: make().fit(loader(), batches=4, event_handlers=again))
    raises(ValueError, "needs a monitor", lambda: est.CheckpointHandler(folder, save_best=True))


def placed(axes, pipeline=None):
    """Returns an estimator of a network on a mesh."""
    mesh = mx.parallel.Mesh(axes, [mx.cpu(i) for i in range(8)][: np.prod([*axes.values()])])
    net = mesh.place(network())
    net.initialize("xavier")
    one = est.Estimator(net, LOSS(), trainer=trainer_of(net), pipeline=pipeline)
    assert one.context == (mesh.line("data") if pipeline is None else [mx.cpu(0)])
    one.logger.setLevel("ERROR")
    return one


@pytest.mark.parametrize(
    "axes, schedule",
    [
        ({"stage": 2}, None),
        ({"data": 2, "stage": 2}, None),
        ({"stage": 2, "model": 2}, None),
        ({"stage": 2}, "1f1b"),
        ({"data": 2, "stage": 2}, "zero_bubble"),
        ({"data": 2, "stage": 2, "model": 2}, "gpipe"),
    ],
)
def test_estimator_on_meshes_and_pipelines_fits_resumes_and_stops(tmp_path, axes, schedule):
    """Equals a manual training loop, resumes by epochs and batches, evaluates and stops early."""

    def made():
        return placed(axes, mx.parallel.Pipeline(2, schedule) if schedule else None)

    whole, first, rest, loop = made(), made(), made(), made()
    whole.fit(loader(), loader(16), epochs=3)
    handler = est.CheckpointHandler(str(tmp_path), monitor=first.val_metrics[1], save_best=True)
    first.fit(loader(), loader(16), epochs=2, event_handlers=handler)
    assert (tmp_path / "model-symbol.json").exists() == ("model" not in axes)
    again = est.CheckpointHandler(str(tmp_path), resume_from_checkpoint=True)
    rest.fit(loader(), loader(16), epochs=3, event_handlers=again)
    if schedule:
        pipeline = mx.parallel.Pipeline(2, schedule)
        step = mx.parallel.TrainStep(loop.net, LOSS(), loop.trainer, pipeline)
    for x, y in [*loader()] * 3:
        if schedule:
            step(x, y)
            continue
        parts = [gluon.utils.split_and_load(array, loop.context) for array in (x, y)]
        with autograd.record():
            outputs = [loop.net(part) for part in parts[0]]
            losses = [
                LOSS()(out, y.as_in_context(out.context)) for out, y in zip(outputs, parts[1])
            ]
        autograd.backward(losses)
        loop.trainer.step(len(x))
    for one in (rest, loop):
        same_bits(values(one.net), values(whole.net))
    loop.evaluate(loader(16))
    assert [m.get() for m in loop.val_metrics] == [m.get() for m in whole.val_metrics]
    stop = est.EarlyStoppingHandler(loop.val_metrics[1], min_delta=10.0, patience=1)
    loop.fit(loader(), loader(16), epochs=9, event_handlers=stop)
    assert stop.current_epoch == 2

    periods = {"epoch_period": None, "batch_period": 3, "model_prefix": "batches"}
    whole, rest = made(), made()
    saving = est.CheckpointHandler(str(tmp_path), **periods)
    whole.fit(loader(), batches=4, event_handlers=saving)
    again = est.CheckpointHandler(str(tmp_path), **periods, resume_from_checkpoint=True)
    rest.fit(loader(), batches=4, event_handlers=again)
    assert rest.max_batch == 1 and rest.trainer.optimizer.num_update == 4


def test_early_stopping_handler_stops_after_patience():
    class Constant(mx.metric.EvalMetric):
        def update(self, labels, preds):
            self.sum_metric += 1
            self.num_inst += 1

    one = make(train_metrics=Constant("acc"))
    stop = est.EarlyStoppingHandler(one.train_metrics[0], patience=2)
    one.fit(loader(), epochs=10, event_handlers=stop)
    assert stop.stopped_epoch == 2 and stop.current_epoch == 3 and stop.greater_is_better
    assert not est.EarlyStoppingHandler(mx.metric.Loss()).greater_is_better
    with pytest.warns(RuntimeWarning, match="unknown"):
        est.EarlyStoppingHandler(mx.metric.MSE(), mode="best")
    with pytest.raises(ValueError, match="simple metric"):
        est.EarlyStoppingHandler(mx.metric.CompositeEvalMetric())


def test_deleted_checkpoints_do_not_stop_training(tmp_path):
    class Deleting(est.BatchEnd):
        def batch_end(self, *_, **__):
            for name in os.listdir(tmp_path):
                os.remove(tmp_path / name)

    one = make()
    keeping = est.CheckpointHandler(str(tmp_path), batch_period=1, max_checkpoints=1)
    one.fit(loader(), epochs=2, event_handlers=[keeping, Deleting()])
    assert len(keeping.saved_checkpoints) == 1


def test_pipeline_uses_a_replaced_trainer():
    one = make(pipeline=mx.parallel.Pipeline(2))
    one.fit(loader(), epochs=1)
    former, one.trainer = one.trainer, trainer_of(one.net)
    one.fit(loader(), epochs=1)
    assert former.optimizer.num_update == one.trainer.optimizer.num_update == 4


def test_pipeline_trains_like_one_device():
    plain = make()
    plain.fit(loader(), epochs=2)
    net = network(hybridize=False)
    mx.parallel.Mesh({"stage": 2}, [mx.cpu(0), mx.cpu(1)]).place(net)
    net.initialize("xavier")
    piped = est.Estimator(
        net, LOSS(), trainer=trainer_of(net), context=mx.cpu(0), pipeline=mx.parallel.Pipeline(2)
    )
    piped.logger.setLevel("ERROR")
    piped.fit(loader(), loader(16), epochs=2)
    for left, right in zip(values(net), values(plain.net)):
        assert np.allclose(left.asnumpy(), right.asnumpy(), atol=1e-5)
    assert [metric.name for metric in piped.train_metrics] == ["training softmaxcrossentropyloss"]
    assert piped.val_metrics[0].name == "validation accuracy"
    assert piped.val_metrics[0].num_inst == 16
    with pytest.raises(ValueError, match="losses but no predictions"):
        est.Estimator(net, LOSS(), mx.metric.Accuracy(), pipeline=mx.parallel.Pipeline(2))


def two_stages(**trainer):
    net = network(hybridize=False)
    net.place({"0": mx.cpu(0), "1": mx.cpu(1)}, verbose=False)
    net.initialize("xavier")
    adam = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05}, **trainer)
    return net, adam


@pytest.mark.parametrize("accumulate", [1, 2])
def test_estimator_drives_a_train_step(tmp_path, accumulate):
    """The weights are those of a loop over the TrainStep, even if training is resumed."""
    net, trainer = two_stages(accumulate=accumulate)
    step = mx.parallel.TrainStep(net, LOSS(), trainer, mx.parallel.Pipeline(4))
    for x, y in [*loader()] * 2:
        step(x, y)
    nets = []
    for epochs in (1, 2):
        own, trainer = two_stages(accumulate=accumulate)
        loss = LOSS()
        step = mx.parallel.TrainStep(own, loss, trainer, mx.parallel.Pipeline(4))
        one = est.Estimator(own, loss, context=mx.cpu(0), train_step=step)
        one.logger.setLevel("ERROR")
        assert one.trainer is trainer and one.batch_processor.pipeline is step.pipeline
        saving = est.CheckpointHandler(str(tmp_path), resume_from_checkpoint=True)
        one.fit(loader(), loader(16), epochs=epochs, event_handlers=saving)
        assert step.pipeline.report().micro_batches == 4 and step.compiled()
        assert one.val_metrics[0].num_inst == 16
        nets.append(own)
    same_bits(values(nets[1]), values(net))
    assert (tmp_path / "model-symbol.json").exists()


class TwoHeads(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="heads_")
        with self.name_scope():
            self.body = nn.Dense(8, in_units=5)
            self.one, self.two = nn.Dense(2, in_units=8), nn.Dense(2, in_units=8)

    def hybrid_forward(self, F, x, shift):
        y = F.relu(self.body(x) + shift)
        return self.one(y), self.two(y)


class TwoLosses(gluon.loss.Loss):
    def __init__(self):
        super().__init__(None, 0)
        self.inner = LOSS()

    def hybrid_forward(self, F, outputs, first, second):
        return [self.inner(outputs[0], first), self.inner(outputs[1], second)]


def test_pipeline_takes_several_inputs_labels_and_losses():
    def batches():
        random = np.random.RandomState(0)
        x = random.standard_normal((32, 5)).astype(np.float32)
        shift = random.standard_normal((32, 8)).astype(np.float32)
        labels = [(x[:, i] > 0).astype(np.float32) for i in (0, 1)]
        samples = [((a, b), (c, d)) for a, b, c, d in zip(x, shift, *labels)]
        return gluon.data.DataLoader(gluon.data.SimpleDataset(samples), batch_size=8)

    def made():
        mx.random.seed(1)
        net = TwoHeads()
        net.place({"body": mx.cpu(0), "one": mx.cpu(1), "two": mx.cpu(1)}, verbose=False)
        net.initialize("xavier")
        return net, trainer_of(net)

    net, trainer = made()
    step = mx.parallel.TrainStep(net, TwoLosses(), trainer, mx.parallel.Pipeline(2))
    for data, labels in [*batches()] * 2:
        step(list(data), list(labels))
    other, trainer = made()
    one = est.Estimator(
        other, TwoLosses(), trainer=trainer, context=mx.cpu(0), pipeline=mx.parallel.Pipeline(2)
    )
    one.logger.setLevel("ERROR")
    log = est.LoggingHandler(log_interval=2, metrics=one.train_metrics)
    one.fit(batches(), batches(), epochs=2, event_handlers=log)
    same_bits(values(other), values(net))
    assert log.processed_samples == 64 and one.val_metrics[-1].num_inst == 64


def test_train_step_must_fit_the_estimator():
    net, trainer = two_stages()
    loss, pipeline = LOSS(), mx.parallel.Pipeline(2)
    step = mx.parallel.TrainStep(net, loss, trainer, pipeline)
    other = two_stages()[0]
    for arguments, message in (
        ((other, loss, {"train_step": step}), "net differs from that of train_step"),
        ((net, LOSS(), {"train_step": step}), "loss differs"),
        ((net, loss, {"train_step": step, "trainer": trainer_of(net)}), "trainer differs"),
        ((net, loss, {"train_step": step, "pipeline": pipeline}), "train_step or pipeline"),
        ((net, loss, {"train_step": pipeline}), "must be an mx.parallel.TrainStep"),
    ):
        raises(ValueError, message, lambda a=arguments: est.Estimator(a[0], a[1], **a[2]))
    idle = mx.parallel.TrainStep(net, loss, None, pipeline)
    raises(ValueError, "has no trainer", lambda: est.Estimator(net, loss, train_step=idle))
    along = mx.parallel.Pipeline(2, along="time")
    raises(
        ValueError, "along time", lambda: est.Estimator(net, loss, trainer=trainer, pipeline=along)
    )


def test_estimator_rejects_invalid_arguments():
    net = network([mx.cpu(0)])
    raises(ValueError, "must be a gluon.loss.Loss", lambda: est.Estimator(net, lambda x, y: x))
    raises(ValueError, "must be a gluon.Trainer", lambda: est.Estimator(net, LOSS(), trainer="sgd"))
    raises(ValueError, "context must be", lambda: est.Estimator(net, LOSS(), context="cpu"))
    with pytest.raises(ValueError, match="evaluate_batch"):
        est.Estimator(net, LOSS(), trainer=trainer_of(net), batch_processor=object())
    with pytest.warns(UserWarning) as warned:
        est.Estimator(net, LOSS(), initializer="ones", context=mx.cpu(0))
    assert ["already" in str(one.message) for one in warned] == [True, False]
    one = make()
    raises(ValueError, "epochs= and batches=", lambda: one.fit(loader()))
    raises(ValueError, "DataLoader", lambda: one.fit([1], epochs=1))
    with pytest.raises(ValueError, match="does not belong to the estimator"):
        one.fit(loader(), epochs=1, event_handlers=est.LoggingHandler(metrics=mx.metric.MAE()))
    raises(ValueError, "EventHandler", lambda: one.fit(loader(), epochs=1, event_handlers=[1]))


def test_estimator_rejects_missing_devices():
    net = gluon.nn.Dense(1)
    with pytest.raises(AssertionError, match=r"gpu\(100\) does not exist"):
        gluon.contrib.estimator.Estimator(net, gluon.loss.L2Loss(), context=[mx.gpu(100)])
