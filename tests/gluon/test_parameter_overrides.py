"""Parameter values that a program supplies: an overridden `Parameter.data`, and arrays set in the
lists `_data` and `_grad`."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.devices import on
from support.training import backward_of, variable

WAYS = {
    "eager": None,
    "hybridized": {},
    "exact": {"exact": True},
    "pipelined": {"pipeline": mx.parallel.Pipeline(2)},
}
ways = pytest.mark.parametrize("way", WAYS)


def run_in(net, way):
    if WAYS[way] is not None:
        net.hybridize(**WAYS[way])
    return net


class Doubled(gluon.Parameter):
    def data(self, ctx=None):
        return 2 * super().data(ctx)


class Scaled(gluon.Parameter):
    """Reads its arrays as gluonnlp's weight dropout does."""

    factor = 2.0

    def data(self, ctx=None):
        return self._check_and_get(self._data, ctx) * self.factor


def put(net, name, new):
    """Replaces a layer's Parameter object, as gluonnlp's weight dropout does."""
    net.params._params[new.name] = net._reg_params[name] = new
    object.__setattr__(net, name, new)


class Own(gluon.HybridBlock):
    def __init__(self, kind):
        super().__init__()
        self.w = kind("w", shape=(2,), init="ones")

    def hybrid_forward(self, F, x, w):
        return x * w


@ways
@pytest.mark.parametrize("kind", [Doubled, Scaled])
def test_blocks_compute_with_overridden_data(way, kind):
    net = run_in(Own(kind), way)
    net.w.initialize()
    for k in (1, 2):
        y = backward_of(lambda: net(nd.ones((4, 2)) * k))
        assert y.asnumpy().tolist() == [[2 * k] * 2] * 4
        assert net.w.grad().asnumpy().tolist() == [8 * k] * 2
    net.w.set_data(nd.array([3, 5]))
    net.w.reset_ctx(on(1))
    assert net(nd.ones((4, 2), ctx=on(1))).asnumpy()[0].tolist() == [6, 10]


@ways
def test_overridden_data_applies_to_weights_of_unknown_shape(way):
    net = gluon.nn.Dense(3, use_bias=False, weight_initializer="ones")
    old = net.weight
    new = Scaled(old.name, shape=old.shape, init="ones", allow_deferred_init=True)
    put(net, "weight", new)
    net.initialize()
    y = run_in(net, way)(nd.ones((2, 5)))
    assert y.asnumpy().tolist() == [[10] * 3] * 2


@ways
@pytest.mark.parametrize("layer", ["LSTM", "LSTMCell"])
def test_overridden_data_reaches_recurrent_weights(way, layer):
    def build(factor):
        mx.random.seed(3)
        net = getattr(gluon.rnn, layer)(4, input_size=3, prefix="net_")
        for name, param in list(net._reg_params.items()):
            if "h2h_weight" in name:
                new = Scaled(param.name, shape=param.shape)
                new.factor = factor
                put(net, name, new)
        net.initialize(mx.init.Uniform(1))
        return net

    def outputs(net):
        if layer == "LSTM":
            return net(x)[0] if isinstance(net(x), (list, tuple)) else net(x)
        return net(x[0], [nd.ones((2, 4)), nd.ones((2, 4))])[0]

    x = nd.random.normal(shape=(5, 2, 3))
    plain = build(0.5)
    halves = build(1.0)
    for name, param in plain._reg_params.items():
        value = param._data[0] * (0.5 if "h2h_weight" in name else 1)
        halves._reg_params[name].set_data(value)
    if way == "pipelined" and layer == "LSTM":
        return  # the layer's batch axis is 1
    expected = outputs(halves).asnumpy()
    np.testing.assert_allclose(outputs(run_in(plain, way)).asnumpy(), expected, rtol=1e-5)


def test_overridden_data_may_draw_random_numbers():
    """Weight dropout draws a new mask in each recorded call and none in prediction."""

    class Dropped(gluon.Parameter):
        def data(self, ctx=None):
            return nd.Dropout(self._check_and_get(self._data, ctx), 0.5)

    results = []
    for hybridize in (False, True):
        mx.random.seed(1)
        net = gluon.nn.Dense(8, in_units=8, use_bias=False)
        old = net.weight
        put(net, "weight", Dropped(old.name, shape=(8, 8)))
        net.weight.initialize("ones")
        net.hybridize(hybridize, exact=True)
        x = nd.ones((1, 8))
        assert net(x).asnumpy().tolist() == [[8] * 8]
        mx.random.seed(5)
        with autograd.record():
            masked = [net(x).asnumpy() for _ in range(3)]
        assert not np.array_equal(masked[0], masked[1])
        results.append(masked)
    np.testing.assert_array_equal(*results)


@ways
@pytest.mark.parametrize("in_place", ["item", "slice"])
def test_set_items_of_data_take_effect_with_gradients(way, in_place):
    net = run_in(gluon.nn.Dense(1, in_units=2, use_bias=False), way)
    net.initialize()
    source = variable(nd.array([[3, 4]]))
    for k in (1, 2, 3):
        with autograd.record():
            if in_place == "item":
                net.weight._data[0] = source * k
            else:
                net.weight._data[:] = [source * k]
            y = net(nd.ones((4, 2)))
        y.backward()
        assert y.asnumpy().ravel().tolist() == [7 * k] * 4
        assert source.grad.asnumpy().tolist() == [[4 * k, 4 * k]]
        assert net.weight.data().asnumpy().tolist() == [[3 * k, 4 * k]]


@ways
def test_set_items_of_data_take_effect_on_each_device(way):
    net = run_in(gluon.nn.Dense(1, in_units=2, use_bias=False), way)
    net.initialize("ones", ctx=[on(0), on(1)])
    source = variable(nd.array([[3, 4]], ctx=on(1)))
    with autograd.record():
        net.weight._data[1] = source * 2
        ys = [net(nd.ones((2, 2), ctx=ctx)) for ctx in (on(0), on(1))]
    autograd.backward(ys)
    assert [y.asnumpy().ravel().tolist() for y in ys] == [[2, 2], [14, 14]]
    assert source.grad.asnumpy().tolist() == [[4, 4]]
    assert net.weight.grad(on(0)).asnumpy().tolist() == [[2, 2]]
    with pytest.raises(mx.MXNetError, match=r"the array for cpu\(0\) is on cpu\(1\)"):
        net.weight._data[0] = source


@pytest.mark.parametrize("way", ["eager", "hybridized", "exact"])
def test_items_of_data_set_inside_a_block_take_effect(way):
    class Given(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.inner = gluon.nn.Dense(1, in_units=2, use_bias=False)

        def hybrid_forward(self, F, x, w):
            self.inner.weight._data[0] = w * 2
            return self.inner(x) + self.inner.weight._data[0].sum()

    net = run_in(Given(), way)
    net.initialize()
    w = variable(nd.array([[1, 2]]))
    for _ in range(2):
        y = backward_of(lambda: net(nd.ones((1, 2)), w))
        assert y.asscalar() == 12 and w.grad.asnumpy().tolist() == [[4, 4]]


def test_trainer_uses_set_items_of_grad():
    param = gluon.Parameter("w", shape=(2,), init="zeros")
    param.initialize(ctx=[on(0), on(1)])
    trainer = gluon.Trainer([param], "sgd", {"learning_rate": 1})
    with autograd.record():
        losses = [param.data(ctx).sum() for ctx in (on(0), on(1))]
    autograd.backward(losses)
    param._grad[0] = nd.array([1, 2])
    param._grad[1] = nd.array([3, 4], ctx=on(1))
    assert param.grad(on(1)).asnumpy().tolist() == [3, 4]
    trainer.step(1)
    assert param.data(on(1)).asnumpy().tolist() == [-4, -6]


def test_data_list_rejects_a_changed_number_of_arrays():
    param = gluon.Parameter("w", shape=(2,), init="zeros")
    param.initialize()
    for change in (
        lambda: param._data.append(nd.ones(2)),
        lambda: param._data.pop(),
        lambda: param._data.__setitem__(slice(None), []),
    ):
        with pytest.raises(mx.MXNetError, match="one array per device"):
            change()
    assert len(param._data) == 1 and param._data == param.list_data()


def test_requires_grad_error_suggests_grad_req():
    param = gluon.Parameter("w", shape=(2,))
    with pytest.raises(AttributeError, match="use param.grad_req = 'null'"):
        param.requires_grad = False
