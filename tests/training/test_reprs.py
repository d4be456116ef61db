"""The repr of training objects: their class and the arguments that created them."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon.contrib import estimator
from support.devices import on


def numbers():
    return mx.io.NDArrayIter(np.ones((10, 3)), np.ones(10), 5)


def symbol():
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def test_iterator_and_batch_repr():
    inner = "NDArrayIter(data (10, 3), softmax_label (10,); batch_size=5)"
    assert repr(mx.io.ResizeIter(numbers(), 3)) == f"ResizeIter({inner}, size=3)"
    assert repr(mx.io.PrefetchingIter(numbers())) == f"PrefetchingIter({inner})"
    assert repr(next(iter(numbers()))) == "DataBatch(data (5, 3), label (5,))"
    assert repr(mx.io.DataBatch([nd.ones((4, 2))], pad=1)) == "DataBatch(data (4, 2); pad=1)"
    assert repr(mx.io.DataBatch(None)) == "DataBatch()"


def test_store_repr():
    store = mx.kv.create("local")
    assert repr(store) == "KVStore('local', 0 keys)"
    store.init("a", nd.zeros(2))
    store.set_optimizer(mx.optimizer.SGD())
    assert repr(store) == "KVStore('local', 1 key, values are updated)"


def test_module_and_executor_repr():
    module = mx.mod.Module(symbol(), context=on(0))
    assert repr(module) == "Module(softmax: not bound)"
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    shapes = "softmax: data (4, 3), softmax_label (4,)"
    assert repr(module) == f"Module({shapes}, no parameters)"
    module.init_params()
    module.init_optimizer()
    assert repr(module) == f"Module({shapes}, with an optimizer)"
    executor = symbol().simple_bind(on(0), data=(4, 3))
    assert repr(executor) == (
        f"Executor(data (4, 3) on {on(0)}, fc_weight (2, 3) on {on(0)}, fc_bias (2,) on {on(0)}, "
        f"softmax_label (4,) on {on(0)}; 4 with gradients)"
    )


def test_sequential_and_bucketing_module_repr():
    for module in (
        mx.mod.SequentialModule(),
        mx.mod.BucketingModule(lambda key: (symbol(), ("data",), ("softmax_label",)), 4),
    ):
        assert repr(module).startswith(type(module).__name__ + "(")


def test_estimator_handler_and_callback_repr(tmp_path):
    net = gluon.nn.Dense(2, in_units=3, prefix="net_")
    net.initialize(ctx=on(0))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    made = estimator.Estimator(net, gluon.loss.L2Loss(), trainer=trainer, context=on(0))
    assert repr(made).startswith(f"Estimator(Dense 'net' on {on(0)}, L2Loss(")
    assert repr(trainer) in repr(made)
    assert repr(estimator.StoppingHandler(max_epoch=3)) == "StoppingHandler(max_epoch=3)"
    saving = repr(estimator.CheckpointHandler(str(tmp_path), epoch_period=2))
    assert saving.startswith("CheckpointHandler(") and "epoch_period=2" in saving
    assert repr(mx.callback.Speedometer(32)) == "Speedometer(batch_size=32)"
    assert repr(mx.callback.ProgressBar(3)) == "ProgressBar(total=3, length=80)"


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: mx.image.ResizeAug(256), "ResizeAug(size=256, interp=2)"),
        (lambda: mx.image.HorizontalFlipAug(0.5), "HorizontalFlipAug(p=0.5)"),
        (lambda: mx.image.CastAug("float32"), "CastAug("),
        (lambda: mx.image.LightingAug(0.1, np.ones(3), np.ones((30, 30))), "LightingAug("),
        (lambda: mx.image.DetHorizontalFlipAug(0.5), "DetHorizontalFlipAug(p=0.5)"),
    ],
)
def test_augmenter_repr(make, text):
    assert repr(make()).startswith(text) and len(repr(make())) < 250
