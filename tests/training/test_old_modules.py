"""Modules that MXNet keeps for older programs, and names that other packages import."""

import importlib
import importlib.util
import sys
import types

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from support.calls import raises
from support.processes import output_of


def test_executor_manager_splits_and_loads_batches():
    module = mx.executor_manager
    assert module._split_input_slice(7, [1, 1]) == [slice(0, 4), slice(4, 7)]
    raises(ValueError, "Too many", lambda: module._split_input_slice(1, [1, 1]))
    batch = mx.io.DataBatch([nd.arange(4)], [nd.ones(4)])
    whole, parts = nd.zeros(4), [nd.zeros(1), nd.zeros(3)]
    module._load_data(batch, [[(slice(0, 1), parts[0]), (slice(1, 4), parts[1])]])
    module._load_label(batch, [whole])
    assert parts[1].asnumpy().tolist() == [1, 2, 3] and whole.asnumpy().all()
    x = mx.sym.var("x")
    module._check_arguments(x + mx.sym.var("y"))
    with pytest.raises(ValueError, match="two of the argument 'x'"):
        module._check_arguments(x + mx.sym.var("x"))
    raises(mx.base.NotSupportedError, "Module", lambda: module.DataParallelExecutorManager(x))


def test_misc_factor_scheduler_decays_as_mxnet():
    scheduler = mx.misc.FactorScheduler(2, 0.5)
    scheduler.base_lr = 1.0
    assert [scheduler(i) for i in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    for arguments in ((0,), (1, 1.0)):
        with pytest.raises(ValueError):
            mx.misc.FactorScheduler(*arguments)


def test_data_loader_iter_feeds_modules():
    data = gluon.data.ArrayDataset(np.random.rand(10, 3), np.arange(10) % 2)
    batches = mx.contrib.io.DataLoaderIter(gluon.data.DataLoader(data, 4))
    assert batches.provide_data[0].shape == (4, 3)
    for _ in range(2):
        seen = [(batch.data[0].shape, batch.pad) for batch in batches]
        assert seen == [((4, 3), 0), ((4, 3), 0), ((4, 3), 2)]
        batches.reset()
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.fit(batches, num_epoch=1)


def test_contrib_autograd_records_and_differentiates():
    old = mx.contrib.autograd
    x, y = nd.array([2.0]), nd.array([3.0])
    gradients, result = old.grad_and_loss(lambda a, b: a * b, argnum=1)(x, y)
    assert [g.asscalar() for g in gradients] == [2] and result.asscalar() == 6
    assert [g.asscalar() for g in old.grad(lambda a, b: a * b)(x, y)] == [3, 2]
    with old.train_section():
        assert mx.autograd.is_recording() and mx.autograd.is_training()
        with old.test_section():
            assert not mx.autograd.is_recording() and not mx.autograd.is_training()
    assert not mx.autograd.is_recording()
    assert old.set_is_training(True) is False and old.set_is_training(False) is True
    with pytest.raises(AssertionError):
        old.backward(result)


def test_tensorboard_callback_writes_metrics(monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder

        def add_scalar(self, name, value, global_step):
            written.append((self.folder, name, value, global_step))

    fake = types.ModuleType("mxboard")
    fake.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "mxboard", fake)
    metric = mx.metric.Accuracy()
    metric.update([nd.array([1])], [nd.array([[0, 1]])])
    callback = mx.contrib.tensorboard.LogMetricsCallback("logs", prefix="train")
    callback(mx.model.BatchEndParam(3, 1, metric, None))
    callback(mx.model.BatchEndParam(3, 1, None, None))
    assert written == [("logs", "train-accuracy", 1.0, 3)]
    SummaryWriter.add_histogram = lambda self, *args, **named: written.append((args, named))
    SummaryWriter.close = lambda self: written.append("closed")
    half = nd.array([1, 2], dtype="bfloat16")
    with mx.contrib.tensorboard.SummaryWriter("logs") as writer:
        assert writer.folder == "logs"
        writer.add_histogram(
            "weights", half, parts=[nd.array([3]), {"a": nd.array(4)}], bins="auto"
        )
        raises(AttributeError, "add_image", lambda: writer.add_image("image", half))
    (name, values), named = written[1]
    assert name == "weights" and values.dtype == "float32" and values.tolist() == [1, 2]
    assert named["parts"][0].tolist() == [3] and named["parts"][1]["a"].shape == ()
    assert isinstance(named["parts"][0], np.ndarray) and named["bins"] == "auto"
    assert written[2] == "closed"
    for name in ("mxboard", "tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    raises(ImportError, "install", lambda: mx.contrib.tensorboard.LogMetricsCallback("logs"))


def test_errors_can_be_registered_by_name():
    @mx.error.register
    class Odd(mx.MXNetError):
        pass

    assert mx.error.register("Odder", ValueError) is ValueError
    assert mx.error.register("Odd")(Odd) is Odd
    with pytest.raises(mx.MXNetError, match="went wrong\nhint: .*report") as caught:
        raise mx.error.InternalError("went wrong")
    assert str(mx.error.InternalError("wrong; hint: none")) == "wrong; hint: none"
    assert type(caught.value).__module__ == "mpgluon.error"
    assert mx.rnd is mx.random


def test_unsupported_kvstore_server_raises():
    raises(mx.base.NotSupportedError, "dist_async", lambda: mx.kvstore.KVStoreServer(None).run())
    mx.profiler.set_kvstore_handle(None)


def test_util_functions_match_mxnet():
    assert mx.util.np_ufunc_legal_option("dtype", np.float32)
    assert not mx.util.np_ufunc_legal_option("dtype", "text")
    for option, legal in (("where", True), ("order", True), ("subok", False), ("other", False)):
        assert mx.util.np_ufunc_legal_option(option, "C") == legal
    plus = mx.util.wrap_np_binary_func(lambda a, b, out=None: a + b)
    assert plus(1, 2, casting="same_kind") == 3
    square = mx.util.wrap_np_unary_func(lambda a, out=None: a * a)
    for options, error in (
        ({"casting": "no"}, NotImplementedError),
        ({"casting": "never"}, TypeError),
        ({"other": 1}, TypeError),
    ):
        with pytest.raises(error):
            square(2, **options)
    found = importlib.util.find_spec("mpi4py") is not None
    assert mx.runtime.Features().is_enabled("DIST_KVSTORE") is found
    feature = mx.runtime.Feature("A", 1)
    assert feature.name == "A" and feature.enabled is True
    with pytest.raises(AttributeError):
        feature.enabled = False
    features = mx.runtime.Features()
    assert features is mx.runtime.Features()
    assert {"CPU_AVX2", "BLAS_MKL", "JEMALLOC", "PROFILER", "CXX14"} <= set(features)
    assert [feature.name for feature in mx.runtime.feature_list()] == list(features)
    metric = mx.metric.PearsonCorrelation(average="micro")
    metric.update([nd.array([1, 2, 3])], [nd.array([2, 4, 7])])
    count, mean, squares = metric.update_variance(np.array([4.0, 6.0]), 1, 2.0, 0.0)
    assert (count, mean, squares) == (3, 4, 8)
    before = metric.get()[1]
    metric.update_cov(np.array([3.0]), np.array([7.0]))
    assert metric.get()[1] > before
    metric.reset_micro()
    assert np.isnan(metric.get()[1])
    lists = importlib.import_module("mpgluon.contrib.amp.lists")
    assert "RNN" in lists.symbol_fp16.FP16_FUNCS and "RNN" in lists.symbol_bf16.FP32_FUNCS
    cells = gluon.rnn.SequentialRNNCell()
    cells.add(gluon.rnn.RNNCell(2, input_size=3))
    cells.initialize()
    state = cells.begin_state(batch_size=1)
    one, other = cells(nd.ones((1, 3)), state), cells.hybrid_forward(nd, nd.ones((1, 3)), state)
    assert (one[0] == other[0]).asnumpy().all()


@pytest.mark.slow
def test_old_modules_import_as_mxnet():
    names = (
        "contrib.amp.lists contrib.autograd contrib.io contrib.quantization contrib.tensorboard"
        " executor_manager gluon.contrib.cnn.conv_layers kvstore.kvstore_server misc"
        " module.executor_group"
    ).split()
    imports = "; ".join(f"import mxnet.{name}" for name in names)
    code = f"import mpgluon; mpgluon.as_mxnet(); {imports}; print(mxnet.misc.__name__)"
    assert output_of(code).strip() == "mpgluon.misc"
