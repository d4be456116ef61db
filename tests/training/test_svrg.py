"""`contrib.svrg_optimization.SVRGModule`; expected values are MXNet 1.9.1's."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.contrib.svrg_optimization import SVRGModule
from mpgluon.contrib.svrg_optimization.svrg_optimizer import SVRGOptimizer
from support.devices import on

RNG = np.random.RandomState(0)
SAMPLES = RNG.rand(23, 3).astype("float32")
LABELS = (SAMPLES @ [1.0, 2.0, -1.0]).astype("float32")
START = {
    "fc1_weight": RNG.randn(4, 3) * 0.3,
    "fc1_bias": np.zeros(4),
    "fc2_weight": RNG.randn(1, 4) * 0.3,
    "fc2_bias": np.zeros(1),
}


def batches(size):
    return mx.io.NDArrayIter(SAMPLES, LABELS, batch_size=size, label_name="lro_label")


def made(devices=1, update_freq=2, data=None):
    net = mx.sym.FullyConnected(mx.sym.var("data"), name="fc1", num_hidden=4)
    net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, name="fc2", num_hidden=1)
    loss = mx.sym.LinearRegressionOutput(net, mx.sym.var("lro_label"), name="lro")
    contexts = [on(i) for i in range(devices)]
    module = SVRGModule(loss, label_names=["lro_label"], context=contexts, update_freq=update_freq)
    if data is not None:
        module.bind(data.provide_data, data.provide_label)
        module.init_params(arg_params={name: nd.array(value) for name, value in START.items()})
    return module


@pytest.mark.parametrize(
    "devices, optimizer, size, update_freq, weight, bias",
    [
        (1, "sgd", 5, 2, [0.16488, -0.63214, -0.15054, -0.13028], 0.54993),
        (2, "sgd", 4, 2, [0.15708, -0.64749, -0.15791, -0.14549], 0.53795),
        (1, "adam", 5, 3, [0.50922, -0.70426, -0.98029, 0.31124], 0.68214),
        (2, "adam", 4, 1, [0.65347, -0.73584, -1.31853, 0.2941], 0.57048),
        (1, "nag", 23, 2, [0.16263, -0.57052, -0.08513, -0.12375], 0.44776),
    ],
)
def test_svrg_training_matches_mxnet(devices, optimizer, size, update_freq, weight, bias):
    data = batches(size)
    module = made(devices, update_freq, data)
    params = {"learning_rate": 0.05, "wd": 0.01}
    module.fit(data, eval_metric="mse", optimizer=optimizer, optimizer_params=params, num_epoch=6)
    found = module.get_params()[0]
    np.testing.assert_allclose(found["fc2_weight"].asnumpy()[0], weight, atol=3e-5)
    np.testing.assert_allclose(found["fc2_bias"].asnumpy(), bias, atol=3e-5)


@pytest.mark.parametrize("devices", [1, 2])
def test_svrg_step_uses_the_full_gradient(devices):
    data = batches(4)
    module = made(devices, data=data)
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    module.update_full_grads(data)
    whole = dict(module._param_dict[0])
    data.reset()
    alone, each = made(devices, data=data), []
    for batch in data:
        super(SVRGModule, alone).forward(batch)
        super(SVRGModule, alone).backward()
        each.append(alone._execs[0].grad_dict["fc2_weight"].asnumpy())
    if devices == 1:  # the last batch has 3 samples and 1 of padding, so 5.75 batches
        np.testing.assert_allclose(whole["fc2_weight"].asnumpy(), sum(each) / 5.75, rtol=1e-5)
    before = module.get_params()[0]["fc2_weight"].asnumpy()
    data.reset()
    module.forward_backward(next(data))
    module.update()
    # The weights still equal the snapshot's, so the batch gradients cancel out.
    step = before - module.get_params()[0]["fc2_weight"].asnumpy()
    full = whole["fc2_weight"].asnumpy() * devices
    np.testing.assert_allclose(step, 0.5 / 4 * full, rtol=1e-4, atol=1e-6)


def test_layer_name_containing_full_trains():
    """The default layer name fullyconnected0 contains "full", SVRG's suffix for full gradients."""
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="fullyconnected0")
    loss = mx.sym.LinearRegressionOutput(net, mx.sym.var("lro_label"))
    data = batches(4)
    module = SVRGModule(loss, label_names=["lro_label"], context=on(0), update_freq=2)
    params = {"learning_rate": 0.2}
    module.fit(data, eval_metric="mse", optimizer_params=params, num_epoch=40)
    assert module.score(data, "mse")[0][1] < 0.01


def test_svrg_module_validates_arguments_and_rebinds():
    for wrong, error in ((None, TypeError), (1.5, TypeError), (0, ValueError), (-2, ValueError)):
        with pytest.raises(error, match="update_freq"):
            made(update_freq=wrong)
    data = batches(4)
    module = made(data=data)
    with pytest.raises(AssertionError, match="init_optimizer"):
        module.update_full_grads(data)  # init_optimizer was not called
    module.init_optimizer(mx.kv.create("local"), mx.optimizer.SGD(learning_rate=0.5))
    assert module._optimizer.default_opt.lr == 0.5
    module.reshape([("data", (2, 3))], [("lro_label", (2,))])
    assert module._mod_aux.data_shapes[0].shape == (2, 3)
    module.bind([("data", (2, 3))], [("lro_label", (2,))], for_training=False, force_rebind=True)
    assert not module._mod_aux.binded


def test_svrg_optimizer_assigns_full_gradients():
    names = {0: "weight", 1: "weight_full"}
    optimizer = SVRGOptimizer("sgd", param_idx2name=names, learning_rate=1.0, wd=0)
    store = mx.kv.create("local")
    store.set_optimizer(optimizer)
    for key, expected in ((0, [-1, -2]), (1, [1, 2])):
        store.init(key, nd.zeros((2,)))
        store.push(key, nd.array([1, 2]))
        out = nd.zeros((2,))
        store.pull(key, out)
        assert out.asnumpy().tolist() == expected
    assert mx.optimizer.create("svrgoptimizer", default_optimizer="adam").default_opt.beta1 == 0.9
