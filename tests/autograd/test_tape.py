"""The tape: what is recorded, what backward computes and where it puts it, and what is an error."""

import gc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd
from support.devices import on


def variable(values, ctx=None, grad_req="write"):
    array = nd.array(np.asarray(values, dtype="float32"), ctx=ctx or on(0))
    array.attach_grad(grad_req)
    return array


@pytest.fixture(params=["async", "sync", "shuffle"])
def engine(request):
    mx.engine.set_mode(request.param, 7)
    yield request.param
    mx.engine.set_mode("async")


def test_a_chain(engine):
    x = variable([1, 2, 3])
    with autograd.record():
        y = (x * x + 3 * x).sum()
    y.backward()
    assert np.array_equal(x.grad.asnumpy(), [5, 7, 9])


def test_a_value_used_several_times(engine):
    x = variable([2.0, -1.0])
    with autograd.record():
        a = x * x
        b = a * x + a
        y = b * a
    y.backward()
    v = x.asnumpy()
    assert np.allclose(x.grad.asnumpy(), 5 * v**4 + 4 * v**3)


def test_gradients_live_with_their_arrays(engine):
    x, w = variable(np.ones((2, 3))), variable(np.full((2, 3), 2.0), ctx=on(1))
    with autograd.record():
        h = (x * 3).as_in_context(on(1))
        h = (h * w).as_in_context(on(2))
        y = (h * h).as_in_context(on(0)).sum()
    y.backward()
    assert x.grad.context == on(0) and w.grad.context == on(1)
    assert np.array_equal(x.grad.asnumpy(), np.full((2, 3), 72.0))
    assert np.array_equal(w.grad.asnumpy(), np.full((2, 3), 36.0))


def test_inputs_on_different_devices_are_an_error():
    a, b = nd.ones((2,)), nd.ones((2,), ctx=on(1))
    with pytest.raises(mx.MXNetError, match=r"[cg]pu\(0\).*[cg]pu\(1\).*as_in_context"):
        a + b


def test_grad_req_add_and_null():
    x, y, z = (
        variable([1.0, 2.0]),
        variable([3.0, 4.0], grad_req="add"),
        variable([5.0, 6.0], grad_req="null"),
    )
    for _ in range(3):
        with autograd.record():
            out = x * y * z
        out.backward()
    assert np.array_equal(x.grad.asnumpy(), [15, 24])
    assert np.array_equal(y.grad.asnumpy(), [15, 36])
    assert z.grad is None or not z.grad.asnumpy().any()


def test_one_gradient_for_two_variables():
    x, y, z = variable([1.0]), variable([2.0]), variable([3.0], grad_req="add")
    with autograd.record():
        out = (x + y) + z
    out.backward(nd.array([7.0]))
    assert [a.grad.asscalar() for a in (x, y, z)] == [7, 7, 7]
    x.grad[:] = 0
    assert y.grad.asscalar() == 7


def test_the_head_is_a_variable():
    x = variable([1.0, 2.0])
    with autograd.record():
        pass
    x.backward(nd.array([3.0, 4.0]))
    assert np.array_equal(x.grad.asnumpy(), [3, 4])


def test_head_gradients():
    x = variable([1.0, 2.0])
    with autograd.record():
        y, z = x * 2, x * x
    autograd.backward([y, z], [nd.array([10.0, 20.0]), None])
    assert np.array_equal(x.grad.asnumpy(), [22, 44])
    with autograd.record():
        y = x * 2
    with pytest.raises(ValueError, match="shape"):
        y.backward(nd.ones((3,)))


def test_head_gradients_of_another_shape():
    """As many elements are enough; they are taken in their order."""
    x = variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    with autograd.record():
        y = x * x
    y.backward(nd.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    assert np.array_equal(x.grad.asnumpy(), [[2, 8, 18], [32, 50, 72]])
    head = variable([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    with autograd.record():
        y = x * x
        gradient = autograd.grad(y, x, head_grads=head, create_graph=True)[0]
        total = gradient.sum()
    total.backward()
    assert np.array_equal(x.grad.asnumpy(), [[2, 4, 6], [8, 10, 12]])
    assert np.array_equal(head.grad.asnumpy(), [[2], [4], [6], [8], [10], [12]])


def test_retain_graph():
    x = variable([3.0])
    with autograd.record():
        y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.asscalar() == 6
    with pytest.raises(mx.MXNetError, match="retain_graph"):
        y.backward()


def test_not_on_the_tape():
    x = nd.ones((2,))
    with autograd.record():
        y = x * 2
    with pytest.raises(mx.MXNetError, match="record"):
        y.backward()
    x.attach_grad()
    y = x * 2
    with pytest.raises(mx.MXNetError, match="record"):
        y.backward()


def test_after_backward_results_are_plain_values():
    x = variable([2.0])
    with autograd.record():
        y = x * x
    y.backward()
    with autograd.record():
        z = y * x  # y's past is given up: it counts as a constant
    z.backward()
    assert x.grad.asscalar() == 4


def test_detach_and_pause():
    x = variable([3.0])
    with autograd.record():
        y = (x * x).detach() * x
        with autograd.pause():
            c = x * 5
        z = y + c * x
    z.backward()
    assert x.grad.asscalar() == 9 + 15


def test_what_is_not_saved_may_be_overwritten():
    x, w = variable([1.0, 2.0]), variable([3.0, 4.0])
    with autograd.record():
        y = x + w
    w[:] = 0
    y.backward()
    assert np.array_equal(w.grad.asnumpy(), [1, 1])


def test_writing_into_the_tape_is_an_error():
    x = variable([1.0, 2.0])
    with autograd.record():
        y = x * 2
        with pytest.raises(mx.MXNetError, match="autograd (is recording|records)"):
            nd.elemwise_add(y, y, out=y)


def test_grad_function():
    x, y = variable([2.0]), variable([5.0])
    with autograd.record():
        z = x * x * y
    gx, gy = autograd.grad(z, [x, y])
    assert (gx.asscalar(), gy.asscalar()) == (20, 4)
    assert x.grad.asscalar() == 0
    with autograd.record():
        z = x * x
    with pytest.raises(ValueError, match="variable 0"):
        autograd.grad(z, [y])


def test_gradients_of_gradients(engine):
    x = variable([1.0, 2.0, -3.0])
    v = x.asnumpy()
    with autograd.record():
        y = (x * x * x * x).sum()
        g = autograd.grad(y, [x], create_graph=True, retain_graph=True)[0]
        h = autograd.grad(g.sum(), [x], create_graph=True, retain_graph=True)[0]
    assert np.allclose(g.asnumpy(), 4 * v**3)
    assert np.allclose(h.asnumpy(), 12 * v**2)
    h.backward()
    assert np.allclose(x.grad.asnumpy(), 24 * v)


@pytest.mark.parametrize("linear", [lambda x: 3 * x, nd.radians, nd.transpose, nd.sum])
def test_gradients_of_constant_gradients_are_zero(engine, linear):
    x, w = variable([[1.0, 2.0], [3.0, 4.0]]), variable([5.0])
    with autograd.record():
        g, of_w = autograd.grad([linear(x), w * w], [x, w], create_graph=True)
        (second,) = autograd.grad(g, [x], create_graph=True)
        (third,) = autograd.grad(second, [x], create_graph=True)
        (of_square,) = autograd.grad(of_w, [w], create_graph=True)
        mixed = (g * x).sum() + of_square
    assert not second.asnumpy().any() and not third.asnumpy().any()
    assert of_square.asscalar() == 2
    mixed.backward()
    assert np.array_equal(x.grad.asnumpy(), g.asnumpy()) and w.grad.asscalar() == 0


def test_gradients_of_gradients_across_devices():
    x = variable([1.0, 2.0])
    with autograd.record():
        y = ((x * x).as_in_context(on(1)) * 2).as_in_context(on(0)) * x
        g = autograd.grad(y, [x], create_graph=True)[0]
        s = (g * g).sum()
    s.backward()
    v = x.asnumpy()
    assert np.allclose(x.grad.asnumpy(), 2 * 6 * v**2 * 12 * v)


class Cube(autograd.Function):
    calls = 0

    def forward(self, x, y):
        self.save_for_backward(x)
        return x * x * x, y * 2

    def backward(self, dx, dy):
        Cube.calls += 1
        (x,) = self.saved_tensors
        return 3 * x * x * dx, dy * 2


def test_function():
    x, y = variable([2.0]), variable([1.0], grad_req="add")
    for _ in range(2):
        with autograd.record():
            a, b = Cube()(x, y)
            z = a * b
        z.backward()
    assert x.grad.asscalar() == 24 and y.grad.asscalar() == 2 * 16
    assert Cube.calls == 2


def test_function_that_raises():
    class Bad(autograd.Function):
        def forward(self, x):
            return x * 1

        def backward(self, dx):
            raise KeyError("mine")

    x = variable([1.0])
    with autograd.record():
        y = Bad()(x * 2)
    with pytest.raises(KeyError, match="mine"):
        y.backward()
    with autograd.record():
        y = x * 2
    y.backward()
    assert x.grad.asscalar() == 2


def test_deep_chains_do_not_recurse():
    x = variable([1.0, 1.0])
    with autograd.record():
        y = x
        for _ in range(10000):
            y = y * 1.0
    y.backward()
    assert np.array_equal(x.grad.asnumpy(), [1, 1])
    with autograd.record():
        y = x
        for _ in range(10000):
            y = y + 1
    del y  # freeing must not recurse either
    gc.collect()


def test_deep_chains_of_functions():
    class Same(autograd.Function):
        def forward(self, x):
            return x + 0

        def backward(self, dx):
            return dx

    x = variable([1.0])
    with autograd.record():
        y = x
        for _ in range(3000):
            y = Same()(y)
    y.backward()
    assert x.grad.asscalar() == 1


def test_zero_gradient_is_written():
    x = variable([1.5])
    x.grad[:] = 9
    with autograd.record():
        y = nd.floor(x)
    y.backward()
    assert x.grad.asscalar() == 0


def test_memory_goes_back_as_backward_proceeds():
    x = variable(np.ones((256, 256)))

    def run():
        with autograd.record():
            y = x
            for _ in range(20):
                y = y * y
        y.backward()

    run()
    nd.waitall()
    before = _core.memory_stats(on(0))["in_use"]
    _core.reset_peak_memory(on(0))
    run()
    nd.waitall()
    gc.collect()
    stats = _core.memory_stats(on(0))
    assert stats["in_use"] <= before
    # What was saved is freed while the gradient moves up
    assert stats["peak_in_use"] - before <= 24 * 256 * 1024


def test_bits_do_not_depend_on_devices():
    rng = np.random.RandomState(3)
    data, weights = (
        rng.randn(8, 6).astype("float32"),
        [rng.randn(6, 6).astype("float32") for _ in range(4)],
    )

    def run(devices):
        x = variable(data, ctx=devices[0])
        ws = [variable(w, ctx=d) for w, d in zip(weights, devices)]
        with autograd.record():
            h = x
            for w, d in zip(ws, devices):
                h = h.as_in_context(d)
                h = nd.tanh(nd.dot(h, w)) + h
            loss = (h * h).mean()
        loss.backward()
        return [loss.asnumpy(), x.grad.asnumpy()] + [w.grad.asnumpy() for w in ws]

    one = run([on(0)] * 4)
    for devices in ([on(0), on(1), on(0), on(1)], [on(3), on(2), on(1), on(0)]):
        assert all(np.array_equal(a, b) for a, b in zip(one, run(devices)))
