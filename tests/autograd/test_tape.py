"""The autograd tape: recording, backward and its errors."""

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


def test_gradient_of_chain_of_ops_matches_formula(engine):
    x = variable([1, 2, 3])
    with autograd.record():
        y = (x * x + 3 * x).sum()
    y.backward()
    assert np.array_equal(x.grad.asnumpy(), [5, 7, 9])


def test_gradients_of_reused_value_are_summed(engine):
    x = variable([2.0, -1.0])
    with autograd.record():
        a = x * x
        b = a * x + a
        y = b * a
    y.backward()
    v = x.asnumpy()
    assert np.allclose(x.grad.asnumpy(), 5 * v**4 + 4 * v**3)


def test_gradients_live_on_device_of_their_arrays(engine):
    x, w = variable(np.ones((2, 3))), variable(np.full((2, 3), 2.0), ctx=on(1))
    with autograd.record():
        h = (x * 3).as_in_context(on(1))
        h = (h * w).as_in_context(on(2))
        y = (h * h).as_in_context(on(0)).sum()
    y.backward()
    assert x.grad.context == on(0) and w.grad.context == on(1)
    assert np.array_equal(x.grad.asnumpy(), np.full((2, 3), 72.0))
    assert np.array_equal(w.grad.asnumpy(), np.full((2, 3), 36.0))


def test_op_with_inputs_on_different_devices_is_refused():
    a, b = nd.ones((2,)), nd.ones((2,), ctx=on(1))
    with pytest.raises(mx.MXNetError, match=r"[cg]pu\(0\).*[cg]pu\(1\).*as_in_context"):
        a + b


def test_grad_req_add_accumulates_and_null_computes_nothing():
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
    assert z.grad is None


def test_variables_sharing_one_gradient_value_get_separate_arrays():
    x, y, z = variable([1.0]), variable([2.0]), variable([3.0], grad_req="add")
    with autograd.record():
        out = (x + y) + z
    out.backward(nd.array([7.0]))
    assert [a.grad.asscalar() for a in (x, y, z)] == [7, 7, 7]
    x.grad[:] = 0
    assert y.grad.asscalar() == 7


def test_head_that_is_a_variable_receives_head_gradient():
    x = variable([1.0, 2.0])
    with autograd.record():
        pass
    x.backward(nd.array([3.0, 4.0]))
    assert np.array_equal(x.grad.asnumpy(), [3, 4])


def test_head_gradients_of_several_heads_are_summed():
    x = variable([1.0, 2.0])
    with autograd.record():
        y, z = x * 2, x * x
    autograd.backward([y, z], [nd.array([10.0, 20.0]), None])
    assert np.array_equal(x.grad.asnumpy(), [22, 44])
    with autograd.record():
        y = x * 2
    with pytest.raises(ValueError, match="shape"):
        y.backward(nd.ones((3,)))


def test_head_gradient_of_another_shape_is_read_in_row_major_order():
    """Only the number of elements must match. They are read in row-major order."""
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


def test_backward_may_repeat_only_with_retain_graph():
    x = variable([3.0])
    with autograd.record():
        y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.asscalar() == 6
    with pytest.raises(mx.MXNetError, match="retain_graph"):
        y.backward()


def test_backward_of_array_not_on_tape_is_refused():
    x = nd.ones((2,))
    with autograd.record():
        y = x * 2
    with pytest.raises(mx.MXNetError, match="record"):
        y.backward()
    x.attach_grad()
    y = x * 2
    with pytest.raises(mx.MXNetError, match="record"):
        y.backward()


def test_result_is_a_constant_after_backward():
    x = variable([2.0])
    with autograd.record():
        y = x * x
    y.backward()
    with autograd.record():
        z = y * x  # y's history was freed, so y is a constant
    z.backward()
    assert x.grad.asscalar() == 4


def test_detach_and_pause_stop_gradients():
    x = variable([3.0])
    with autograd.record():
        y = (x * x).detach() * x
        with autograd.pause():
            c = x * 5
        z = y + c * x
    z.backward()
    assert x.grad.asscalar() == 9 + 15


def test_arrays_not_saved_for_backward_may_be_overwritten():
    x, w = variable([1.0, 2.0]), variable([3.0, 4.0])
    with autograd.record():
        y = x + w
    w[:] = 0
    y.backward()
    assert np.array_equal(w.grad.asnumpy(), [1, 1])


def test_writing_recorded_array_is_refused_while_recording():
    x = variable([1.0, 2.0])
    with autograd.record():
        y = x * 2
        with pytest.raises(mx.MXNetError, match="autograd (is recording|records)"):
            nd.elemwise_add(y, y, out=y)


def test_grad_returns_gradients_without_writing_them():
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


def test_higher_order_gradients_of_polynomial_match_formula(engine):
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


def test_second_gradient_crosses_devices():
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


def test_function_with_two_outputs_runs_backward_once_per_call():
    x, y = variable([2.0]), variable([1.0], grad_req="add")
    for _ in range(2):
        with autograd.record():
            a, b = Cube()(x, y)
            z = a * b
        z.backward()
    assert x.grad.asscalar() == 24 and y.grad.asscalar() == 2 * 16
    assert Cube.calls == 2


def test_exception_in_function_backward_propagates():
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


def test_deep_chain_backward_and_free_do_not_recurse():
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


def test_deep_chain_of_functions_does_not_recurse():
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


def test_zero_gradient_overwrites_old_gradient():
    x = variable([1.5])
    x.grad[:] = 9
    with autograd.record():
        y = nd.floor(x)
    y.backward()
    assert x.grad.asscalar() == 0


def test_saved_memory_is_freed_as_backward_proceeds():
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
    # Saved arrays are freed while backward proceeds
    assert stats["peak_in_use"] - before <= 24 * 256 * 1024


def test_gradient_bits_do_not_depend_on_placement():
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
