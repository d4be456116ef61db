"""Tests of the public mx.autograd API."""

import gc
import re
import sys
import threading
import weakref
from typing import NamedTuple

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.devices import on


def variable(values, **kwargs):
    x = nd.array(values)
    x.attach_grad(**kwargs)
    return x


def test_recording_and_training_flags_follow_nested_scopes():
    def state():
        return autograd.is_recording(), autograd.is_training()

    assert state() == (False, False)
    with autograd.record():
        assert state() == (True, True)
        with autograd.pause():
            assert state() == (False, False)
            with autograd.train_mode():
                assert state() == (False, True)
        with autograd.predict_mode():
            assert state() == (True, False)
        with autograd.record(train_mode=False):
            assert state() == (True, False)
        with autograd.pause(True):
            assert state() == (False, True)
        assert state() == (True, True)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(state()))
        thread.start()
        thread.join()
        assert seen == [(False, False)]
    with pytest.raises(KeyError):
        with autograd.record():
            raise KeyError
    assert state() == (False, False)
    assert autograd.set_recording(True) is False and autograd.set_recording(False) is True
    assert autograd.set_training(True) is False and autograd.set_training(False) is True
    for wrong in (
        lambda: autograd.record(1, 2),
        lambda: autograd.record(mode=True),
        lambda: autograd.pause(nothing=1),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_backward_respects_grad_req():
    x = variable([1, 2, 3])
    with autograd.record():
        y = (x * x * 2).sum()
    y.backward()
    assert x.grad.asnumpy().tolist() == [4, 8, 12] and x.grad_req == "write"
    z = variable([1, 2], grad_req="add")
    for _ in range(3):
        with autograd.record():
            y = z * 3
        y.backward()
    assert z.grad.asnumpy().tolist() == [9, 9] and z.grad_req == "add"
    z.grad[:] = 0
    assert z.grad.asnumpy().tolist() == [0, 0]
    with pytest.raises(ValueError):
        z.attach_grad("often")
    z.attach_grad(stype="row_sparse")
    assert z.grad.stype == "row_sparse"
    for stype in ("row_sparse", "default"):
        z.attach_grad("null", stype=stype)
        assert z.grad is None and z.as_np_ndarray().grad is None
    z.attach_grad()
    assert z.grad.stype == "default"
    assert nd.ones(1).grad is None


def test_backward_scales_by_head_gradients_and_validates_them():
    x = variable([1, 2])
    with autograd.record():
        y = x * x
    y.backward(nd.array([10, 100]))
    assert x.grad.asnumpy().tolist() == [20, 400]
    with autograd.record():
        a, b = x * 2, x * 3
    autograd.backward([a, b], [nd.array([1, 0]), None])
    assert x.grad.asnumpy().tolist() == [5, 3]
    with autograd.record():
        a, b = x * 2, x * 3
    with pytest.raises(ValueError):
        autograd.backward([a, b], [nd.ones(2)])
    with pytest.raises(TypeError):
        autograd.backward([a, "b"])
    with pytest.raises(TypeError):
        autograd.backward(3)
    with pytest.raises(ValueError):
        autograd.backward([])
    with pytest.raises(mx.MXNetError):
        a.backward(nd.ones((3, 3)))


def test_head_gradient_with_extra_rows_is_truncated_for_concat():
    # A longer head gradient is accepted only for arrays concatenated along the first axis, as in
    # MXNet.
    for pieces in (1, 2):
        x, y = variable([[1, 2], [3, 4]]), variable([[1, 2], [3, 4]])
        head_grad = nd.arange(4 * pieces + 2).reshape((-1, 2))
        with autograd.record():
            longer = nd.concat(*[x * 3] * pieces, dim=0)
            same = nd.concat(*[y * 3] * pieces, dim=0)
            other = nd.concat(x, x, dim=1)
        longer.backward(head_grad)
        same.backward(head_grad[: 2 * pieces])
        assert x.grad.asnumpy().tolist() == y.grad.asnumpy().tolist()
        with pytest.raises(ValueError, match="a different number of elements"):
            other.backward(nd.ones((3, 4)))
        with autograd.record():
            longer = nd.concat(x, x, dim=0)
        for shape in ((3, 2), (5, 3), (5,)):
            with pytest.raises(ValueError, match="a different number of elements"):
                longer.backward(nd.ones(shape))


def test_backward_of_unrecorded_array_is_refused():
    x = variable([1.0])
    y = x * 2
    with pytest.raises(mx.MXNetError):
        y.backward()
    with autograd.record():
        y = x * 2
    y.backward()
    with pytest.raises(mx.MXNetError):
        y.backward()


def test_retain_graph_allows_second_backward():
    x = variable([3.0])
    with autograd.record():
        y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.asscalar() == 6


def test_grad_returns_first_and_second_order_gradients():
    x = variable([2.0, 3.0])
    with autograd.record():
        y = x * x * x
        # grad returns a list even for a single variable.
        (dx,) = autograd.grad(y, x, create_graph=True, retain_graph=True)
        (again,) = autograd.grad(dx.sum(), [x], retain_graph=True)
    np.testing.assert_allclose(dx.asnumpy(), [12, 27])
    np.testing.assert_allclose(again.asnumpy(), [12, 18])
    assert x.grad.asnumpy().tolist() == [0, 0]
    with pytest.raises(ValueError):
        autograd.grad(y, [])
    with pytest.raises(mx.MXNetError):
        autograd.grad(y, [nd.ones(2)])
    with pytest.raises(TypeError):
        autograd.grad(y, "x")


def test_mark_variables_attaches_given_gradient_arrays():
    x, dx = nd.array([1, 2]), nd.zeros(2)
    autograd.mark_variables([x], [dx], ["write"])
    with autograd.record():
        y = x * 5
    y.backward()
    assert dx.asnumpy().tolist() == [5, 5]
    autograd.mark_variables(x, dx, "add")
    with autograd.record():
        y = x * 5
    y.backward()
    assert dx.asnumpy().tolist() == [10, 10]
    for wrong in (
        lambda: autograd.mark_variables([x], []),
        lambda: autograd.mark_variables([x], [dx], ["a"]),
        lambda: autograd.mark_variables([x], [dx], ["write", "add"]),
        lambda: autograd.mark_variables([x], None),
        lambda: autograd.mark_variables([1], [dx]),
    ):
        with pytest.raises((ValueError, TypeError)):
            wrong()
    with pytest.raises(mx.MXNetError):
        autograd.mark_variables([x], [nd.zeros(3)])


def test_detach_and_pause_exclude_values_from_gradient():
    x = variable([2.0])
    with autograd.record():
        y = x * x
        with autograd.pause():
            scale = y * 10
        z = x * y.detach() + scale
    z.backward()
    assert x.grad.asscalar() == 4
    assert y.detach().asscalar() == 4


def test_in_place_op_on_recorded_array_is_refused():
    x = variable([1.0])
    with autograd.record():
        y = x * 2
        with pytest.raises(mx.MXNetError):
            y += 1
        with pytest.raises(mx.MXNetError):
            x *= 2
        fresh = nd.ones(1)
        fresh += 1
    assert fresh.asscalar() == 2


def test_backward_crosses_devices():
    x = variable([1.0, 2.0])
    w = nd.array([3.0, 4.0], ctx=on(1))
    w.attach_grad()
    with autograd.record():
        y = (x.as_in_context(on(1)) * w).as_in_context(on(0)) * x
        loss = y.sum()
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [6, 16])
    np.testing.assert_allclose(w.grad.asnumpy(), [1, 4])
    assert x.grad.context == on(0) and w.grad.context == on(1)


class Sigmoid(autograd.Function):
    def forward(self, x):
        y = 1 / (1 + nd.exp(-x))
        self.save_for_backward(y)
        return y

    def backward(self, dy):
        (y,) = self.saved_tensors
        return dy * y * (1 - y)


def test_function_backward_is_used_and_instance_runs_once():
    x = variable([0.0, 1.0])
    function = Sigmoid()
    with autograd.record():
        y = function(x) * 2
    y.backward()
    s = 1 / (1 + np.exp(-x.asnumpy()))
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * s * (1 - s), rtol=1e-6)
    with pytest.raises(mx.MXNetError, match="once"):
        function(x)
    assert Sigmoid()(nd.array([0.0])).asscalar() == 0.5


def test_function_apply_error_explains_how_to_call():
    with pytest.raises(AttributeError, match=r"'Sigmoid' object has no attribute 'apply'; use an"):
        Sigmoid.apply(nd.ones((1,)))
    assert not hasattr(Sigmoid(), "apply")


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_function_with_a_static_method_is_refused(kind, name):
    message = rf"Own\.{name}: a {kind.__name__} cannot keep values .* write `def {name}\(self, "
    with pytest.raises(TypeError, match=message):
        type("Own", (autograd.Function,), {name: kind(lambda ctx, x: x)})


def test_function_that_keeps_its_results_is_freed():
    """Holds even if no backward runs, and for every way of keeping the results."""

    class Keeping(autograd.Function):
        def forward(self, a):
            y, z = a * 2, a + 1
            self.save_for_backward(y, z)
            self.mine, self.nested, self.called = y, {"z": [z]}, lambda: (y, z)
            return y, z

        def backward(self, dy, dz):
            y, z = self.saved_tensors
            assert self.mine.asnumpy().tolist() == y.asnumpy().tolist() == [2, 4]
            return dy * 2 + dz

    references = []
    for differentiate in (False, True):
        x = variable([1.0, 2.0])
        for make in (Keeping, Sigmoid):
            function = make()
            references.append(weakref.ref(function))
            with autograd.record():
                results = function(x)
            if differentiate:
                autograd.backward(results)
    del function, results
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


def test_function_with_several_arrays_gets_zeros_for_unused_output():
    class Both(autograd.Function):
        def forward(self, a, b):
            return a * b, a + b

        def backward(self, dm, ds):
            self.seen = dm.asnumpy().tolist(), ds.asnumpy().tolist()
            return ds * 10, None

    a, b = variable([1.0, 2.0]), variable([3.0, 4.0])
    b.grad[:] = 7
    function = Both()
    with autograd.record():
        product, total = function(a, b)
        y = total * 2
    y.backward()
    assert function.seen == ([0, 0], [2, 2])
    assert a.grad.asnumpy().tolist() == [20, 20] and b.grad.asnumpy().tolist() == [0, 0]


def test_function_backward_errors_propagate_and_keep_state_valid():
    class Broken(autograd.Function):
        def __init__(self, answer):
            super().__init__()
            self.answer = answer

        def forward(self, x):
            return x * 1

        def backward(self, dy):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    x = variable([1.0])
    for answer, error in (
        (KeyError("mine"), KeyError),
        ((x, x), ValueError),
        ("text", TypeError),
        (3, TypeError),
    ):
        with autograd.record():
            y = Broken(answer)(x)
        with pytest.raises(error):
            y.backward()
        assert not autograd.is_recording()
    with autograd.record():
        y = x * 2
    y.backward()
    assert x.grad.asscalar() == 2
    with pytest.raises(NotImplementedError):
        autograd.Function()(x)


class Product(autograd.Function):
    """x * y computed in NumPy, outside the tape; `answer` maps the true gradients to the returned
    ones."""

    def __init__(self, answer=lambda *gradients: gradients):
        super().__init__()
        self.answer = answer

    def forward(self, x, y):
        self.save_for_backward(x, y)
        return nd.array(x.asnumpy() * y.asnumpy(), ctx=x.context)

    def backward(self, dz):
        x, y = self.saved_tensors
        return self.answer(dz * y, dz * x)


def test_second_gradient_through_function_is_refused():
    """Covers every path by which the second gradient reaches the function."""
    x, y = variable([1.0, 2.0]), variable([3.0, 4.0])
    for compute in (
        lambda: Product()(x, y),
        lambda: Product()(x, y) ** 2,
        lambda: Product()(x * y, y) + x * x,
    ):
        with autograd.record():
            (g,) = autograd.grad(compute(), [x], create_graph=True)
            total = (g * g).sum()
        with pytest.raises(mx.MXNetError, match="Function: the gradient that its backward"):
            total.backward()
    with autograd.record():
        z = variable([5.0, 6.0])
        (g,) = autograd.grad(Product()(x, y) * z, [x], create_graph=True)
    with pytest.raises(mx.MXNetError, match="has no gradient"):
        autograd.grad(g, [z])
    with autograd.record():  # The head does not depend on the Function.
        Product()(x, y)
        (g,) = autograd.grad(x**3, [x], create_graph=True)
    g.backward()
    assert x.grad.asnumpy().tolist() == [6, 12]


def test_function_gradient_is_cast_to_input_dtype():
    x, y = variable([1.0, 2.0]), variable([3.0, 4.0])
    for dtype in ("float16", "float64", "int32"):
        with autograd.record():
            z = Product(lambda dx, dy: (dx.astype(dtype), dy))(x * 1, y)
        z.backward()
        assert x.grad.dtype == np.float32 and x.grad.asnumpy().tolist() == [3, 4]


@pytest.mark.parametrize(
    "answer, match",
    [
        (
            lambda dx, dy: (nd.ones((3,)), dy),
            rf"shape \(3,\) on {re.escape(str(on(0)))}, but the input has shape \(2,\)",
        ),
        (
            lambda dx, dy: (dx.as_in_context(on(1)), dy),
            rf"on {re.escape(str(on(1)))}, .* is on {re.escape(str(on(0)))}",
        ),
    ],
)
def test_function_gradient_of_wrong_shape_or_device_is_reported(answer, match):
    x, y = variable([1.0, 2.0]), variable([3.0, 4.0])
    with autograd.record():
        z = Product(answer)(x, y)
    with pytest.raises(mx.MXNetError, match=match):
        z.backward()


@pytest.mark.parametrize("result", [None, 3.0, "text", {"a": nd.ones(1)}, iter([])])
def test_function_with_invalid_result_is_named_in_error(result):
    class Wrong(autograd.Function):
        def forward(self, x):
            return result

    with autograd.record(), pytest.raises(TypeError, match="Wrong.forward must return"):
        Wrong()(variable([1.0]))


class WithFunction(mx.gluon.HybridBlock):
    """A Function between two layers, which may be on different devices."""

    def __init__(self, ctx):
        super().__init__()
        self.ctx = ctx
        self.first = mx.gluon.nn.Dense(2, in_units=2)
        self.last = mx.gluon.nn.Dense(1, in_units=2)
        self.first.initialize(mx.init.Constant(0.5))
        self.last.initialize(mx.init.Constant(0.25), ctx=ctx)

    def hybrid_forward(self, F, x):
        h = self.first(x)
        return self.last(Product()(h, F.relu(h)).as_in_context(self.ctx))


@pytest.mark.parametrize("device", [0, 1])
def test_function_in_hybridized_block_matches_eager(device):
    net = WithFunction(mx.cpu(device))
    results = []
    for hybridize in (False, True):
        net.hybridize(hybridize)
        for rows in (3, 3, 2):
            x = variable(np.arange(2.0 * rows).reshape(rows, 2))
            with autograd.record():
                y = net(x)
            y.backward()
            results.append(
                [a.asnumpy().tolist() for a in (y, net(x), x.grad, net.first.weight.grad())]
            )
    assert results[:3] == results[3:]


def test_fresh_grad_flag_is_set_by_backward():
    x = variable([1.0])
    x._fresh_grad = False
    with autograd.record():
        y = x * 2
    y.backward()
    assert x._fresh_grad == 1
    x._fresh_grad = False
    assert x._fresh_grad == 0


def test_recorded_functions_do_not_leak_memory_or_references():
    x = variable(np.ones((32, 32)))

    class Twice(autograd.Function):
        def forward(self, a):
            return a * 2

        def backward(self, da):
            return da * 2

    def work():
        for _ in range(30):
            with autograd.record():
                y = Twice()(x[1:5] * 2).sum() + (x * x).sum()
                dx = autograd.grad(y, x, retain_graph=True)[0]
            y.backward()
            with autograd.record():
                dropped = x * 3 + dx  # noqa: F841 - never differentiated
        nd.waitall()
        gc.collect()

    work()
    before = mx.context.memory_stats(on(0))["in_use"], sys.getrefcount(x)
    work()
    assert (mx.context.memory_stats(on(0))["in_use"], sys.getrefcount(x)) == before
    function = Twice()
    reference = weakref.ref(function)
    with autograd.record():
        y = function(x)
    del function
    assert reference() is not None
    y.backward()
    del y
    gc.collect()
    assert reference() is None


def test_relu_gradient_propagates_nan():
    x = mx.nd.array([-1.0, 0.0, 2.0, float("nan")])
    x.attach_grad()
    with autograd.record():
        y = mx.nd.relu(x)
    y.backward()
    gradient = x.grad.asnumpy()
    assert gradient[:3].tolist() == [0, 0, 1] and np.isnan(gradient[3])


def test_get_symbol_returns_recorded_graph():
    x, z, plain = variable([1.0, 2.0]), variable([3.0, 4.0]), nd.array([5.0, 6.0])
    with autograd.record():
        y = x * x + 2 * x - 1
    sym = autograd.get_symbol(y)
    assert sym.list_arguments() == ["var0"]
    assert sym.eval(var0=nd.array([3.0]))[0].asnumpy().tolist() == [14]
    with autograd.record():
        y = nd.split(nd.stack(x * z, plain), num_outputs=2, axis=0, squeeze_axis=True)[1]
    sym = autograd.get_symbol(y)
    names = sym.list_arguments()
    assert len(names) == 3  # the last one is the array that is not a variable
    values = dict(zip(names, (x, z, plain)))
    assert sym.eval(**values)[0].asnumpy().tolist() == [5, 6]
    assert autograd.get_symbol(x).list_arguments() == ["var0"]
    with autograd.record():
        (grad,) = autograd.grad((x * x * x).sum(), [x], create_graph=True)
    found = autograd.get_symbol(grad)
    assert len(found.list_arguments()) == 3  # the initial gradient is read by two ops


@pytest.mark.parametrize("hybridized", [False, True])
def test_get_symbol_of_recorded_network_computes_same_outputs(hybridized):
    """Spans two devices and has states. A later backward must be unaffected."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Dense(4, activation="relu", in_units=3),
        gluon.nn.BatchNorm(in_channels=4),
        gluon.nn.HybridLambda("square"),
    )
    net.initialize(mx.init.Xavier(), ctx=on(0))
    if hybridized:
        net.hybridize()
    x = nd.random.normal(shape=(5, 3), ctx=on(0))
    x.attach_grad()
    with autograd.record(train_mode=False):
        y = net(x).as_in_context(on(1)).sum(axis=1)
    sym = autograd.get_symbol(y)
    names = sym.get_internals().list_outputs()
    assert [re.sub(r"\d+_output", "", name) for name in names if "output" in name] == [
        "fullyconnected",
        "activation",
        "batchnorm",
        "square",
        "copyto",
        "sum",
    ]
    dense, norm = net[0], net[1]
    arguments = [x, dense.weight.data(), dense.bias.data(), norm.gamma.data(), norm.beta.data()]
    states = [norm.running_mean.data(), norm.running_var.data()]
    executor = sym.bind(on(0), arguments, aux_states=states)
    np.testing.assert_allclose(executor.forward()[0].asnumpy(), y.asnumpy(), rtol=1e-5)
    y.backward()
    assert x.grad.asnumpy().any()


def test_get_symbol_of_unsupported_array_raises_clear_error():
    x = variable([1.0])

    class Twice(autograd.Function):
        def forward(self, x):
            return x * 2

        def backward(self, grad):
            return grad * 2

    with autograd.record():
        y = Twice()(x) + 1
    with pytest.raises(NotImplementedError, match="get_symbol: .* is a Python function"):
        autograd.get_symbol(y)
    with pytest.raises(mx.MXNetError, match="get_symbol: the array was not computed from"):
        autograd.get_symbol(nd.ones((1,)))
    with pytest.raises(TypeError, match="get_symbol"):
        autograd.get_symbol(3)
    with autograd.record():
        y = x * 2
    y.backward()
    with pytest.raises(mx.MXNetError, match="get_symbol: .*retain_graph=True"):
        autograd.get_symbol(y)


class KeptSigmoid(autograd.Function):
    def forward(self, x):
        y = 1 / (1 + mx.nd.exp(-x))
        self.save_for_backward(x, 4, y)
        return y

    def backward(self, dy):
        x, four, y = self.saved_tensors
        assert four == 4 and x.shape == y.shape
        return dy * y * (1 - y) + 0 * x


@pytest.mark.parametrize("hybrid", [False, True])
def test_function_saved_tensors_survive_overwrites(hybrid):
    block = mx.gluon.nn.HybridLambda(lambda F, x: KeptSigmoid()(x))
    if hybrid:
        block.hybridize()
    x = mx.nd.zeros((2,))
    x.attach_grad()
    for _ in range(2):
        x[:] = 0
        with autograd.record():
            y = block(x)
        y *= 5
        x[:] = np.inf
        y.backward()
        assert x.grad.asnumpy().tolist() == [0.25, 0.25]


def test_function_refuses_list_of_arrays():
    class First(autograd.Function):
        def forward(self, x, more):
            return x * more[0]

        def backward(self, grad):
            return grad

    x = mx.nd.ones((2,))
    with pytest.raises(TypeError, match="First: argument 1 is a list of arrays"):
        First()(x, [x])
    assert First()(x, (2,)).asnumpy().tolist() == [2, 2]


def test_function_may_return_named_tuple():
    class Pair(NamedTuple):
        left: object
        right: object

    class Two(autograd.Function):
        def forward(self, x):
            return Pair(x * 2, x * 3)

        def backward(self, left, right):
            return left * 2 + right * 3

    x = mx.nd.ones((2,))
    x.attach_grad()
    with autograd.record():
        pair = Two()(x)
        total = pair.left + pair.right
    total.backward()
    assert isinstance(pair, Pair) and x.grad.asnumpy().tolist() == [5, 5]
