"""Copy on write of arrays that a gradient reads and that are overwritten before backward."""

import gc
import threading

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.devices import on

SMALL, LARGE = 4, 1 << 17  # copied immediately; copied in the device's queue order


def variable(values, ctx=None):
    x = nd.array(values, ctx=ctx)
    x.attach_grad()
    return x


def write_whole(w):
    w[:] = 7


def write_row(w):
    w[0] = 7


def write_view(w):
    w.reshape((-1,))[1:2] = 7


def write_by_out(w):
    nd.ones_like(w, out=w)


def write_from_host(w):
    w[:] = np.full(w.shape, 7, w.dtype)


def write_by_update(w):
    nd.sgd_update(w, nd.ones_like(w), out=w, lr=1.0)


def write_by_fused_updates(w):
    nd.multi_sgd_update(w, nd.ones_like(w), out=[w], lrs=[1.0], wds=[0.0], num_weights=1)


def write_in_place(w):
    w += 1


def write_many_times(w):
    for i in range(5):
        w[:] = i


def write_by_backward(w):
    """Writes `w` as the gradient buffer of another variable."""
    other = nd.zeros(w.shape, ctx=w.context)
    autograd.mark_variables([other], [w])
    with autograd.record():
        y = other * 3
    y.backward()


WRITES = [value for name, value in sorted(globals().items()) if name.startswith("write_")]


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_gradient_uses_values_read_in_forward_despite_overwrite(write, hybridize, size):
    net = gluon.nn.HybridLambda(lambda F, x, w: F.exp(x) * w)
    net.hybridize(hybridize)
    for ctx in (on(0), on(1)):
        x = variable(np.linspace(-1, 1, size).reshape(size // 2, 2), ctx)
        w = nd.array(np.linspace(2, 3, size).reshape(size // 2, 2), ctx=ctx)
        former = w.asnumpy()
        with autograd.record():
            y = net(x, w)
        exp = y.asnumpy() / former
        write(w)
        assert (w.asnumpy() != former).any()
        y.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), exp * former, rtol=1e-6)


def test_each_op_keeps_contents_it_read():
    w = variable([1.0, 2, 3])
    with autograd.record():
        y = w * w
        with autograd.pause():
            w[0] = 5
        z = w * w
        with autograd.pause():
            w[1] = 7
        total = y.sum() + z.sum() + nd.square(w).sum()
    total.backward()
    assert w.grad.asnumpy().tolist() == [2 + 10 + 10, 4 + 4 + 14, 18]


def test_overwritten_result_is_differentiated_correctly_when_reread():
    x = variable([1.0, 2.0])
    with autograd.record():
        y = nd.exp(x)
        a = y * y
        with autograd.pause():
            y[:] = 1
        b = y * y
        (a + b).backward()
    e = np.exp([1.0, 2.0])
    np.testing.assert_allclose(x.grad.asnumpy(), (2 * e + 2) * e, rtol=1e-5)


def test_second_gradient_uses_values_before_overwrite():
    x, w = variable([1.0, 2.0]), variable([3.0, 4.0])
    with autograd.record():
        y = x * x * w
        with autograd.pause():
            w[:] = 0
            x[:] = 10
        g = autograd.grad(y, [x], create_graph=True)[0]
    assert g.asnumpy().tolist() == [6, 16]
    g.backward()
    assert x.grad.asnumpy().tolist() == [6, 8]  # 2 w
    assert w.grad.asnumpy().tolist() == [2, 4]  # 2 x


def test_hybridized_second_gradient_uses_values_before_overwrite():
    net = gluon.nn.HybridLambda(lambda F, x, w: F.square(x) * w)
    net.hybridize()
    x, w = variable([1.0, 2.0]), variable([3.0, 4.0])
    with autograd.record():
        y = net(x, w)
        with autograd.pause():
            w[:] = 0
            x[:] = 10
        g = autograd.grad(y, [x], create_graph=True)[0]
    assert g.asnumpy().tolist() == [6, 16]
    g.backward()
    assert x.grad.asnumpy().tolist() == [6, 8]


def test_spectral_norm_gradient_survives_power_iteration_writes():
    """The power iteration overwrites its vector in the forward pass."""

    class SpectralNorm(gluon.Block):
        def __init__(self):
            super().__init__()
            self.weight = self.params.get("weight", shape=(3, 4))
            self.u = self.params.get("u", shape=(1, 3), init="normal", grad_req="null")

        def forward(self, x):
            w, u = self.weight.data(), self.u.data()
            v = nd.L2Normalization(nd.dot(u, w))
            u = nd.L2Normalization(nd.dot(v, w, transpose_b=True))
            sigma = nd.sum(nd.dot(u, w) * v)
            self.u.set_data(u)
            return nd.dot(x, w / sigma, transpose_b=True)

    net = SpectralNorm()
    net.initialize(mx.init.Normal(1))
    x = nd.array(np.arange(8).reshape(2, 4))
    first = net.u.data().copy()
    with autograd.record():
        y = net(x) + net(x)
    y.backward()
    found = net.weight.grad().asnumpy().copy()
    # Reference: the same computation without overwriting the vectors
    w, total = net.weight.data().copy(), 0
    w.attach_grad()
    u = first
    with autograd.record():
        for _ in range(2):
            v = nd.L2Normalization(nd.dot(u, w))
            u = nd.L2Normalization(nd.dot(v, w, transpose_b=True))
            total = total + nd.dot(x, w / nd.sum(nd.dot(u, w) * v), transpose_b=True)
            u = u.detach()
    total.backward()
    np.testing.assert_allclose(found, w.grad.asnumpy(), rtol=1e-4, atol=1e-5)


def in_use():
    nd.waitall()
    return mx.context.memory_stats(on(0))["in_use"]


@pytest.mark.parametrize("hybridize", [False, True])
def test_training_step_makes_no_copy_on_write_copies(hybridize):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(512, in_units=512), gluon.nn.Dense(512, in_units=512))
    net.initialize(ctx=on(0))
    net.hybridize(hybridize)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x = nd.ones((2, 512), ctx=on(0))
    for _ in range(3):
        with autograd.record():
            loss = net(x).sum()
        loss.backward()
        before = in_use()
        mx.context.reset_peak_memory(on(0))
        trainer.step(1)
        nd.waitall()
    assert mx.context.memory_stats(on(0))["peak_in_use"] == before


@pytest.mark.parametrize("hybridize", [False, True])
def test_copy_on_write_copies_are_freed_with_the_tape(hybridize):
    net = gluon.nn.HybridLambda(lambda F, x, w: x * w)
    net.hybridize(hybridize)
    w, x = (variable(np.ones(LARGE), on(0)) for _ in range(2))
    assert w.grad is not None is not x.grad  # allocates them
    for _ in range(2):
        before = in_use()
        with autograd.record():
            y = net(x, w)
        w[:] = 2
        w[:] = 3
        assert in_use() == before + 2 * 4 * LARGE  # y and one copy
        y.backward()
        del y
        assert in_use() == before
    with autograd.record():
        y = net(x, w)
    w[:] = 2
    del y  # without running backward
    assert in_use() == before


@pytest.mark.parametrize("hybridize", [False, True])
def test_backward_is_refused_if_copy_on_write_ran_out_of_memory(hybridize):
    net = gluon.nn.HybridLambda(lambda F, x, w: x * w)
    net.hybridize(hybridize)
    w, x = (variable(np.ones(LARGE), on(0)) for _ in range(2))
    with autograd.record():
        y = net(x, w)
    try:
        gc.collect()
        on(0).empty_cache()
        mx.context.set_memory_limit(on(0), in_use())
        w[:] = 2  # the write itself needs no memory
        assert w.asnumpy()[0] == 2
    finally:
        mx.context.set_memory_limit(on(0), 0)
    with pytest.raises(
        mx.MXNetError, match="overwritten .* there was not enough memory to keep them"
    ):
        y.backward()
    with autograd.record():
        y = net(x, w)
    y.backward()
    assert x.grad.asnumpy()[0] == 2


def test_threads_may_write_arrays_while_other_threads_record():
    """Each gradient matches the values that its forward pass read."""
    w = variable(np.ones(64))
    stop, wrong = threading.Event(), []

    def write():
        value = 0
        while not stop.is_set():
            value = (value + 1) % 100
            w[:] = value

    def record():
        x = variable(np.ones(64))
        for _ in range(300):
            with autograd.record():
                y = x * w
            y.backward()
            if (x.grad.asnumpy() != y.asnumpy()).any():
                wrong.append((x.grad.asnumpy(), y.asnumpy()))

    threads = [threading.Thread(target=record) for _ in range(2)]
    writer = threading.Thread(target=write)
    writer.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    writer.join()
    assert not wrong
