"""Batch normalization folded into products for prediction."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on


class Net(gluon.HybridBlock):
    """A product, its normalization and relu, with the parts on `devices`."""

    def __init__(self, product, norm, device=0):
        super().__init__()
        self._device = device
        with self.name_scope():
            self.product = product
            self.norm = norm

    def hybrid_forward(self, F, x):
        y = self.product(x).as_in_context(on(self._device))
        return F.relu(self.norm(y))


def conv(**options):
    return nn.Conv2D(8, 3, in_channels=4, **options), (2, 4, 9, 7)


PRODUCTS = {
    "conv": lambda: conv(use_bias=False),
    "bias": lambda: conv(),
    "strided": lambda: conv(strides=2, padding=1, use_bias=False),
    "grouped": lambda: conv(groups=2, use_bias=False),
    "conv1d": lambda: (nn.Conv1D(6, 3, in_channels=4), (3, 4, 11)),
    "conv3d": lambda: (nn.Conv3D(6, (1, 2, 3), in_channels=4), (2, 4, 5, 4, 6)),
    "dense": lambda: (nn.Dense(8, in_units=5), (6, 5)),
    "dense without bias": lambda: (nn.Dense(8, in_units=5, use_bias=False), (6, 5)),
    "dense, last axis": lambda: (nn.Dense(8, in_units=5, flatten=False), (3, 6, 5)),
}


def make(kind, device=0, seed=3, **norm_options):
    mx.random.seed(seed)
    product, shape = PRODUCTS[kind]()
    channels = product._channels if hasattr(product, "_channels") else product._units
    axis = -1 if kind.startswith("dense") else 1
    norm = nn.BatchNorm(axis=axis, in_channels=channels, **norm_options)
    net = Net(product, norm, device)
    product.initialize(mx.init.Uniform(1), ctx=on(0))
    norm.initialize(mx.init.Uniform(1), ctx=on(device))
    rng = np.random.RandomState(seed)
    for param in norm.collect_params().values():
        param.set_data(nd.array(rng.uniform(0.5, 2, param.shape)))
    if product.bias is not None:
        product.bias.set_data(nd.array(rng.randn(*product.bias.shape)))
    return net, nd.array(rng.randn(*shape))


def ops(net, phase="forward"):
    return [
        step["op"]
        for entry in net.compiled()
        for device in entry["devices"].values()
        for step in device[phase]
        if "op" in step
    ]


@pytest.mark.parametrize(
    "options", [{}, {"scale": False}, {"center": False}, {"use_global_stats": True}], ids=str
)
@pytest.mark.parametrize("kind", PRODUCTS)
def test_batch_norm_is_folded_into_product_for_prediction(kind, options):
    net, x = make(kind, **options)
    eager = net(x).asnumpy()
    net.hybridize()
    folded = net(x).asnumpy()
    assert "BatchNorm" not in ops(net)
    assert np.linalg.norm(folded - eager) <= 1e-6 * np.linalg.norm(eager)


@pytest.mark.parametrize("kind", ["conv", "bias", "dense"])
def test_exact_does_not_fold_batch_norm(kind):
    net, x = make(kind)
    eager = net(x).asnumpy()
    net.hybridize(exact=True)
    assert (net(x).asnumpy() == eager).all()
    assert "BatchNorm" in ops(net)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_folded_batch_norm_bits_do_not_depend_on_placement(kind):
    results = []
    for device in (0, 1):
        net, x = make(kind, device)
        net.hybridize()
        results.append(net(x).asnumpy())
        assert "BatchNorm" not in ops(net)
    assert (results[0] == results[1]).all()


def test_batch_norm_is_not_folded_when_training_or_recording():
    net, x = make("conv")
    net.hybridize()
    with autograd.record():
        y = net(x)
    y.backward()
    with autograd.record(train_mode=False):
        net(x)
    with autograd.train_mode():
        net(x)
    assert sum(name in ("BatchNorm", "_batch_norm_relu") for name in ops(net)) == 3


def test_folded_batch_norm_follows_trained_statistics():
    net, x = make("bias")
    plain, _ = make("bias")
    net.hybridize()
    for _ in range(3):
        for n in (net, plain):
            with autograd.record():
                loss = (n(x) ** 2).sum()
            loss.backward()
            for param in n.collect_params().values():
                if param.grad_req != "null":
                    param.set_data(param.data() - 0.01 * param.grad())
        expected = plain(x).asnumpy()
        assert np.linalg.norm(net(x).asnumpy() - expected) <= 1e-5 * np.linalg.norm(expected)


def test_product_with_another_reader_is_not_folded():
    class Twice(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.product, self.norm = nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4)

        def hybrid_forward(self, F, x):
            y = self.product(x)
            return self.norm(y), y

    net = Twice()
    net.initialize()
    net.hybridize()
    net(nd.ones((2, 3)))
    assert "BatchNorm" in ops(net)


def test_batch_norm_with_input_weights_is_not_folded():
    def function(x, w, gamma, beta, mean, var):
        return [
            nd.BatchNorm(
                nd.FullyConnected(x, w, num_hidden=4, no_bias=True), gamma, beta, mean, var
            )
        ]

    op = mx._core.CachedOp(function)
    rng = np.random.RandomState(0)
    arrays = [
        nd.array(rng.uniform(0.5, 1, shape)) for shape in ((2, 3), (4, 3), (4,), (4,), (4,), (4,))
    ]
    np.testing.assert_array_equal(op(*arrays)[0].asnumpy(), function(*arrays)[0].asnumpy())
    assert "BatchNorm" in op.dump()
