"""Concurrent use of the library from several threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon._internal import graph_breaks
from mpgluon.gluon import nn

THREADS = 4


def network(first=0, dropout=0.0):
    class Pair(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.a, self.b = (
                    nn.Dense(16, activation="tanh", in_units=8),
                    nn.Dense(4, in_units=16),
                )

        def hybrid_forward(self, F, x):
            return self.b(F.Dropout(self.a(x), p=dropout).as_in_context(mx.cpu(first + 1)))

    net = Pair()
    net.a.initialize(mx.init.Xavier(), ctx=mx.cpu(first))
    net.b.initialize(mx.init.Xavier(), ctx=mx.cpu(first + 1))
    return net


def together(work, items, threads=THREADS):
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


@pytest.mark.parametrize("hybridize", [False, True])
def test_one_network_gives_same_results_in_many_threads(hybridize):
    net = network()
    net.hybridize(hybridize)
    batches = [
        np.random.RandomState(i).uniform(-1, 1, (1 + i % 5, 8)).astype("float32") for i in range(40)
    ]
    expected = [net(nd.array(batch)).asnumpy() for batch in batches]
    net.hybridize(hybridize)  # compiled by the first thread that calls it
    for found, wanted in zip(
        together(lambda batch: net(nd.array(batch)).asnumpy(), batches), expected
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("hybridize", [False, True])
def test_networks_trained_in_threads_match_sequential_training(hybridize):
    """Networks that share devices give the same results if each trains in its own thread."""

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


class Many(gluon.HybridBlock):
    """Prediction features besides programs: folded norms, packed weights, counters of random draws,
    loops cut out of the graph and several outputs."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.conv, self.norm, self.dense = (
                nn.Conv2D(4, 3, in_channels=2),
                nn.BatchNorm(in_channels=4),
                nn.Dense(6, in_units=4),
            )
            self.scale = self.params.get("scale", shape=(1, 6))

    def hybrid_forward(self, F, x, steps, scale):
        y = F.relu(self.norm(self.conv(x))).mean(axis=(2, 3)).as_in_context(mx.cpu(1))
        y = F.Dropout(self.dense(y.as_in_context(mx.cpu(0))), p=0.5)
        rows, last = F.contrib.foreach(
            lambda step, state: (state * step, F.broadcast_mul(F.tanh(state), scale)), steps, y
        )
        return rows.sum(axis=0), [last, y]


def test_one_network_predicts_in_many_threads_with_many_signatures():
    """Signatures are compiled, found and evicted by concurrent threads while parameters change."""
    net = Many()
    net.initialize(mx.init.Uniform(1), ctx=mx.cpu(0))
    draw = np.random.RandomState(0)
    inputs = []
    for i in range(120):
        shape = (1 + i % 4, 2, 5 + i % 3, 6)
        inputs.append(
            (
                draw.uniform(-1, 1, shape).astype("float32"),
                draw.uniform(-1, 1, (3 if i % 2 else 1100, 1)).astype("float32"),
            )
        )

    def predict(arrays):
        rows, (last, y) = net(*map(nd.array, arrays))
        return [array.asnumpy() for array in (rows, last, y)]

    def check(found, expected):
        for one, other in zip(found, expected):
            for a, b in zip(one, other):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    for round in range(2):
        net.hybridize(False)
        expected = [predict(arrays) for arrays in inputs]
        net.hybridize()
        check(together(predict, inputs, 12), expected)
        check(together(predict, inputs[::-1], 12), expected[::-1])
        net.scale.set_data(net.scale.data() * 0.5)
        net.norm.running_mean.set_data(net.norm.running_mean.data() + 1)
    assert 12 <= len(net.compiled())


class Cut(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.contrib.boolean_mask(x + 1, x.sum(axis=1)) * 2


def test_partially_traced_part_is_not_run_by_another_thread(monkeypatch):
    """The first thread pauses between two parts until a second one has called.

    The second thread waits before tracing until the first one has finished.
    """
    net = Cut()
    net.hybridize()
    stopped, go_on = threading.Event(), threading.Event()
    step, extend = graph_breaks.Host.__call__, graph_breaks.Split._extend

    def stop_the_first(host, env):
        if not stopped.is_set():
            stopped.set()
            assert go_on.wait(60)
        return step(host, env)

    def stop_the_second(split, *args):
        if stopped.is_set():
            go_on.set()
            first.result(60)
        return extend(split, *args)

    monkeypatch.setattr(graph_breaks.Host, "__call__", stop_the_first)
    monkeypatch.setattr(graph_breaks.Split, "_extend", stop_the_second)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: net(nd.ones((2, 3))).asnumpy())
        assert stopped.wait(60)
        for found in (net(nd.ones((2, 3))), net(nd.ones((2, 3)))):
            np.testing.assert_array_equal(found.asnumpy(), np.full((2, 3), 4))
        np.testing.assert_array_equal(first.result(), np.full((2, 3), 4))


def test_threads_may_predict_while_one_records():
    net = network()
    net.hybridize()
    x = np.random.RandomState(1).uniform(-1, 1, (3, 8)).astype("float32")
    expected = net(nd.array(x)).asnumpy()

    def gradient():
        with autograd.record():
            y = net(nd.array(x))
        y.backward()
        return [p.grad(p.list_ctx()[0]).asnumpy() for p in net.collect_params().values()]

    alone = gradient()

    def work(i):
        for _ in range(30):
            if i:
                np.testing.assert_array_equal(net(nd.array(x)).asnumpy(), expected)
            else:
                for a, b in zip(gradient(), alone):
                    np.testing.assert_array_equal(a, b)

    together(work, range(6), 6)


def test_array_memory_may_be_replaced_while_other_threads_read_it():
    """An executor replaces its results. A waiting reader gets the array that it started with."""
    x = nd.ones((1000,))
    big = nd.ones((200, 200))
    stop = threading.Event()

    def replace():
        while not stop.is_set():
            product = nd.dot(big, big).reshape((-1,))
            _core.replace_array(x, product)
            _core.replace_array(x, nd.ones((10,)))
            product.wait_to_read()

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(40):
            for read in (
                lambda: x.asnumpy(),
                lambda: np.array(memoryview(x)),
                lambda: np.from_dlpack(x).copy(),
                lambda: (x + 0).asnumpy(),
            ):
                values = read()
                assert len(values) in (10, 1000, 40000) and values.min() == values.max() == (
                    200 if len(values) == 40000 else 1
                )
            x.wait_to_read()
            x.wait_to_write()
    finally:
        stop.set()
        writer.join()


def test_recording_state_is_thread_local():
    with autograd.record():
        assert (
            together(lambda _: (autograd.is_recording(), autograd.is_training()), range(8))
            == [(False, False)] * 8
        )


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


def test_arrays_may_be_passed_between_threads():
    a = nd.ones((64, 64), ctx=mx.cpu(0))

    def work(i):
        nonlocal a
        for _ in range(20):
            a = a.as_in_context(mx.cpu(i % 3)) * 1  # may come from any thread
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


def test_threads_sharing_arrays_see_atomic_ops():
    """Ops of all threads are ordered: an array never mixes the values of two writes."""
    x, one = nd.zeros((300, 400)), nd.ones((300, 400))

    def work(i):
        for k in range(25):
            if i == 0:
                nd.elemwise_add(x, one, out=x)
            elif i == 1:
                x[:] = np.full(x.shape, 1000 + k, "float32")
            elif i == 2:
                x[:] = nd.full(x.shape, 2000 + k, ctx=mx.cpu(2)).as_in_context(mx.cpu(0))
            found = (x if i % 2 else x.as_in_context(mx.cpu(1 + i % 4))).asnumpy()
            assert found.min() == found.max()

    together(work, range(6), 6)


def test_captured_arrays_swapped_before_concurrent_calls_are_seen():
    class Slow(tuple):
        def __getitem__(self, index):
            time.sleep(1e-4)  # lets other threads run
            return super().__getitem__(index)

    class Pair(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.pair = Slow([nd.array([2]), nd.array([10])])

        def hybrid_forward(self, F, x):
            return x * self.pair[0] - self.pair[1]

    net, x, ready = Pair(), nd.array([1]), threading.Barrier(THREADS, timeout=20)
    net.hybridize()
    net(x)
    traced = net.compiled()[0]["calls"]

    def work(i):
        for k in range(50):
            ready.wait()
            if i == 0:
                net.pair = Slow(reversed(net.pair))
            ready.wait()
            assert net(x).asscalar() == (-8 if k % 2 else 8)
        return True

    assert all(together(work, range(THREADS)))
    assert net.compiled()[0]["calls"] == traced + 50 * THREADS  # without another trace
    net.pair = nd.array([3]), nd.array([4])
    assert net(x).asscalar() == -1


@pytest.mark.parametrize(
    "end",
    [np.asarray, memoryview, np.from_dlpack, nd.NDArray.wait_to_read, nd.NDArray.wait_to_write],
)
def test_thread_that_queues_endlessly_does_not_block_waiters(end):
    x, most = nd.zeros((100000,)), 60000
    queued, over = [0], threading.Event()

    def write():
        while queued[0] < most and not over.is_set():
            x.__iadd__(1)
            queued[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    end(x)
    over.set()
    writer.join()
    assert queued[0] < most
