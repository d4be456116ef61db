"""Threads that use the library at the same time."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn

THREADS = 4


def network(first=0, dropout=0.0):
    class Pair(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.a, self.b = nn.Dense(16, activation="tanh", in_units=8), nn.Dense(4, in_units=16)

        def hybrid_forward(self, F, x):
            return self.b(F.Dropout(self.a(x), p=dropout).as_in_context(mx.cpu(first + 1)))

    net = Pair()
    net.a.initialize(mx.init.Xavier(), ctx=mx.cpu(first))
    net.b.initialize(mx.init.Xavier(), ctx=mx.cpu(first + 1))
    return net


def together(work, items):
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))


@pytest.mark.parametrize("hybridize", [False, True])
def test_one_network_in_many_threads(hybridize):
    net = network()
    net.hybridize(hybridize)
    batches = [np.random.RandomState(i).uniform(-1, 1, (1 + i % 5, 8)).astype("float32") for i in range(40)]
    expected = [net(nd.array(batch)).asnumpy() for batch in batches]
    net.hybridize(hybridize)  # compiled anew, by whichever thread comes first
    for found, wanted in zip(together(lambda batch: net(nd.array(batch)).asnumpy(), batches), expected):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("hybridize", [False, True])
def test_networks_trained_in_threads(hybridize):
    """Networks that share devices, each trained in its own thread, learn what they learn alone."""

    def train(net):
        net.hybridize(hybridize)
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
        draw = np.random.RandomState(0)
        for _ in range(8):
            x = nd.array(draw.uniform(-1, 1, (4, 8)), ctx=net.a.weight.list_ctx()[0])
            with autograd.record():
                loss = (net(x) ** 2).sum()
            loss.backward()
            trainer.step(4)
        return [param.data().asnumpy() for param in net.collect_params().values()]

    results = []
    for way in (lambda nets: [train(net) for net in nets], lambda nets: together(train, nets)):
        mx.random.seed(3)
        results.append(way([network(i % 2) for i in range(6)]))
    for alone, beside in zip(*results):
        for a, b in zip(alone, beside):
            np.testing.assert_array_equal(a, b)


def test_recording_belongs_to_a_thread():
    with autograd.record():
        assert together(lambda _: (autograd.is_recording(), autograd.is_training()), range(8)) == [(False, False)] * 8


def test_errors_stay_in_their_threads():
    def work(i):
        if i % 2:
            with pytest.raises(mx.MXNetError, match=rf"\({i}, 3\)"):
                nd.dot(nd.ones((i, 3)), nd.ones((5, i)))
            with pytest.raises(mx.MXNetError, match="out of"):
                nd.take(nd.ones((3,)), nd.array([3 + i]), mode="raise").asnumpy()
            return 0
        return float((nd.ones((i + 1, 4), ctx=mx.cpu(i % 3)) * i).sum().asscalar())

    assert together(work, range(60)) == [0 if i % 2 else (i + 1) * 4 * i for i in range(60)]


def test_arrays_are_passed_between_threads():
    a = nd.ones((64, 64), ctx=mx.cpu(0))

    def work(i):
        nonlocal a
        for _ in range(20):
            a = a.as_in_context(mx.cpu(i % 3)) * 1  # whatever thread's array it is now
        return float(a.sum().asscalar())

    assert together(work, range(8)) == [64 * 64] * 8
    limited = mx.cpu(70)

    def limits(i):
        mx.context.set_memory_limit(limited, (i % 3 + 1) << 20)
        try:
            return nd.ones((300, 300), ctx=limited).sum().asscalar() == 90000
        except MemoryError:
            return True

    try:
        assert all(together(limits, range(60)))
    finally:
        mx.context.set_memory_limit(limited, None)
