"""Prediction with one hybridized network from many threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.compare import same_bits

THREADS = 4


class Split(gluon.HybridBlock):
    """Convolutions with normalization on one device, a product on the next."""

    def __init__(self, devices):
        super().__init__()
        self._devices = devices
        with self.name_scope():
            self.first = nn.HybridSequential()
            self.first.add(
                nn.Conv2D(8, 3, in_channels=3),
                nn.BatchNorm(in_channels=8),
                nn.Activation("relu"),
                nn.GlobalAvgPool2D(),
            )
            self.last = nn.Dense(5, in_units=8)

    def hybrid_forward(self, F, x):
        return self.last(self.first(x).as_in_context(mx.cpu(self._devices - 1)))


def network(devices):
    mx.random.seed(2)
    net = Split(devices)
    net.first.initialize(mx.init.Xavier(), ctx=mx.cpu(0))
    net.last.initialize(mx.init.Xavier(), ctx=mx.cpu(devices - 1))
    with autograd.train_mode():
        net(nd.random.uniform(shape=(4, 3, 9, 9)))
    return net


def together(work, items, threads=THREADS):
    """Calls `work` on the items in threads that start at the same time."""
    barrier = threading.Barrier(threads)

    def run(thread):
        barrier.wait()
        return [work(item) for item in items[thread::threads]]

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(run, range(threads)))
    return [parts[i % threads][i // threads] for i in range(len(items))]


def while_predicting(net, x, change):
    """Runs `change` in one thread and the network in other threads until `change` returns.

    Returns all network outputs.
    """
    done = threading.Event()

    def run():
        try:
            change()
        finally:
            done.set()

    def predict():
        results = []
        while not done.is_set() or not results:
            results.append(net(x).asnumpy())
        return results

    with ThreadPoolExecutor(THREADS) as pool:
        waiting = [pool.submit(predict) for _ in range(THREADS - 1)]
        pool.submit(run).result()
        return [y for w in waiting for y in w.result()]


@pytest.mark.parametrize("devices", [1, 2])
def test_concurrent_first_calls_give_correct_results(devices):
    net = network(devices)
    net.hybridize()
    batches = [nd.random.uniform(shape=(1 + i % 3, 3, 9, 9)) for i in range(24)]
    expected = [net(x).asnumpy() for x in batches]
    for _ in range(4):
        net.hybridize()
        same_bits(together(lambda x: net(x).asnumpy(), batches), expected)


def test_concurrent_signature_evictions_give_correct_results():
    """More signatures than the cache holds, in an order that causes constant evictions."""
    net = network(2)
    net.hybridize()
    batches = [nd.random.uniform(shape=(1 + i % 70, 3, 4, 4)) for i in range(210)]
    expected = {x.shape[0]: None for x in batches}
    results = together(lambda x: net(x).asnumpy(), batches)
    for x, found in zip(batches, results):
        if expected[x.shape[0]] is None:
            expected[x.shape[0]] = True
            np.testing.assert_array_equal(found, net(x).asnumpy())
    assert len(net.compiled()) <= 64


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("write", ["set_data", "slices", "optimizer"])
def test_concurrent_parameter_writes_are_never_mixed(devices, write):
    """Each result uses the parameters before or after one change, never a mixture.

    The final result uses the last parameters.
    """

    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.w = self.params.get("w", shape=(6,))

        def hybrid_forward(self, F, x, w):
            scale = F.exp(w)
            if devices > 1:
                scale, x = scale.as_in_context(mx.cpu(1)), x.as_in_context(mx.cpu(1))
            return F.broadcast_mul(x, scale)

    net = Net()
    net.initialize(mx.init.Zero(), ctx=mx.cpu(0))
    net.hybridize()
    x = nd.ones((4, 6))
    levels = np.exp(np.arange(0, 2, 0.125, dtype="float32")).astype("float32")

    def change():
        for k in range(16):
            if write == "set_data":
                net.w.set_data(nd.full((6,), k / 8))
            elif write == "slices":
                net.w.data()[:] = k / 8
            elif k:
                nd.sgd_update(net.w.data(), nd.full((6,), -0.125), lr=1, out=net.w.data())
            net(x).wait_to_read()

    results = while_predicting(net, x, change)
    for y in results:
        assert (y == y[0, 0]).all(), "parts of two states"
        assert np.isclose(levels, y[0, 0], rtol=1e-5).any(), y[0, 0]
    np.testing.assert_allclose(net(x).asnumpy(), np.full((4, 6), levels[15]), rtol=1e-5)


def test_concurrent_parameter_replacement_is_never_mixed():
    """Each call uses either the old or the new arrays of a parameter."""
    net = nn.Dense(3, in_units=4, use_bias=False)
    net.initialize(mx.init.One())
    net.hybridize()
    x = nd.ones((2, 4))
    net(x).wait_to_read()

    def change():
        for k in range(30):
            net.weight.arrays = {mx.cpu(0): nd.full((3, 4), 1 + k % 2)}

    results = while_predicting(net, x, change)
    assert all((y == 4).all() or (y == 8).all() for y in results)
    assert (net(x).asnumpy() == 8).all()


def test_error_in_one_thread_does_not_affect_other_threads():
    net = network(2)
    net.hybridize()
    good, bad = nd.ones((2, 3, 9, 9)), nd.ones((2, 4, 9, 9))
    expected = net(good).asnumpy()

    def work(i):
        if i % 3 == 0:
            with pytest.raises(mx.MXNetError):
                net(bad)
            return True
        return np.array_equal(net(good).asnumpy(), expected)

    assert all(together(work, list(range(40))))
