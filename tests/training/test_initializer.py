"""Initializers: values, rules by name, independence of devices, and serialization."""

import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import init
from support.calls import raises
from support.compare import same_bits


def fill(initializer, shape, name="x_weight", ctx=None, dtype="float32"):
    array = mx.nd.full(shape, 7.0, ctx=ctx, dtype=dtype)
    initializer(init.InitDesc(name), array)
    return array.asnumpy()


RANDOM = [
    init.Uniform(0.3),
    init.Normal(0.2),
    init.Orthogonal(),
    init.Orthogonal(rand_type="normal"),
    init.Xavier(),
    init.Xavier("gaussian", "in", 2),
    init.MSRAPrelu(),
]


@pytest.mark.parametrize("initializer", RANDOM, ids=repr)
def test_draws_depend_on_seed_and_order_only(initializer):
    def draw(ctx):
        mx.random.seed(42)
        return fill(initializer, (6, 5), ctx=ctx), fill(initializer, (6, 5), ctx=ctx)

    first, second = draw(mx.cpu(0))
    assert not np.array_equal(first, second)
    same_bits((first, second), draw(mx.cpu(1)))


def test_random_initializers_have_expected_ranges():
    uniform = fill(init.Uniform(0.3), (100, 100))
    assert np.abs(uniform).max() <= 0.3
    assert np.abs(uniform).max() > 0.29
    assert abs(uniform.mean()) < 0.01
    assert fill(init.Normal(0.2), (100, 100)).std() == pytest.approx(0.2, rel=0.05)
    bound = np.sqrt(3 / ((50 * 9 + 20 * 9) / 2))
    xavier = fill(init.Xavier(), (20, 50, 3, 3))
    assert 0.98 * bound < np.abs(xavier).max() <= bound
    assert fill(init.Xavier("gaussian", "out", 2), (40, 300)).std() == pytest.approx(
        np.sqrt(2 / 40), rel=0.05
    )
    assert fill(init.MSRAPrelu("in", 0.0), (300, 40)).std() == pytest.approx(
        np.sqrt(2 / 40), rel=0.05
    )


def test_orthogonal_initializer_fills_orthogonal_rows_or_columns():
    wide = fill(init.Orthogonal(scale=2.0), (4, 3, 3))
    np.testing.assert_allclose(wide.reshape(4, 9) @ wide.reshape(4, 9).T, 4 * np.eye(4), atol=1e-5)
    tall = fill(init.Orthogonal(scale=1.0), (9, 4))
    np.testing.assert_allclose(tall.T @ tall, np.eye(4), atol=1e-5)


def test_constant_initializers_fill_expected_values():
    assert (fill(init.Zero(), (2, 3)) == 0).all() and (fill(init.One(), (2, 3)) == 1).all()
    assert (fill(init.Constant(2.5), (2, 3)) == 2.5).all()
    np.testing.assert_array_equal(
        fill(init.Constant(mx.nd.array([[1, 2, 3]] * 2)), (2, 3)), [[1, 2, 3]] * 2
    )
    np.testing.assert_array_equal(fill(init.LSTMBias(2.0), (8,)), [0, 0, 2, 2, 0, 0, 0, 0])
    # MXNet's interpolation weights
    down = np.array([1, 2, 3, 2]) / 3
    across = np.array([1, 2, 3, 2, 1]) / 3
    np.testing.assert_allclose(
        fill(init.Bilinear(), (2, 1, 4, 5)),
        np.broadcast_to(np.outer(down, across), (2, 1, 4, 5)),
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    "name,value",
    [("a_bias", 0), ("a_beta", 0), ("a_gamma", 1), ("a_min", 0), ("a_max", 1), ("a_weight", 5)],
)
def test_parameter_name_suffix_selects_the_initial_value(name, value):
    assert (fill(init.Constant(5), (3, 4), name) == value).all()


def test_unknown_name_needs_an_initializer_of_its_own():
    raises(ValueError, "a_something", lambda: fill(init.Zero(), (3,), "a_something"))
    array = mx.nd.zeros((3,))
    init.Zero()(init.InitDesc("a_something", {"__init__": init.One().dumps()}), array)
    assert (array.asnumpy() == 1).all()


def test_initializers_round_trip_through_json():
    assert json.loads(init.Xavier(magnitude=2).dumps()) == [
        "xavier",
        {"rnd_type": "uniform", "factor_type": "avg", "magnitude": 2},
    ]
    for initializer in [
        *RANDOM,
        init.Zero(),
        init.LSTMBias(2.0),
        init.Constant(3),
        init.Constant(np.array([1.0, 2.0])),
    ]:
        assert init.create(initializer.dumps()).dumps() == initializer.dumps()
    assert init.create("zeros") == init.Zero()
    assert init.create("Xavier") == init.Xavier() != init.Xavier(magnitude=2)
    assert init.create(init.One()) == init.One()


def test_mixed_and_load_select_values_by_name():
    mixed = init.Mixed([".*bias", ".*"], [init.One(), init.Constant(3)])
    net = mx.gluon.nn.Dense(2, in_units=1, bias_initializer=None)
    net.initialize(mixed)
    assert (net.weight.data().asnumpy() == 3).all() and (net.bias.data().asnumpy() == 1).all()
    for name, expected in (("a_weight", 3), ("bias_weight", 1)):
        array = mx.nd.zeros((2, 2))
        mixed(init.InitDesc(name), array)
        assert (array.asnumpy() == expected).all()
    load = init.Load({"arg:a": mx.nd.array([1, 2])}, default_init=init.Zero())
    array = mx.nd.zeros((2,), ctx=mx.cpu(1))
    load("a", array)
    np.testing.assert_array_equal(array.asnumpy(), [1, 2])
    load(init.InitDesc("b_weight"), array)
    np.testing.assert_array_equal(array.asnumpy(), [0, 0])
    raises(ValueError, "shape", lambda: load("a", mx.nd.zeros((3,))))
    raises(ValueError, "not among", lambda: init.Load({})("a", array))


def test_fused_rnn_initializer_fills_packed_parameters():
    hidden, inputs = 2, 3
    size = 4 * hidden * (inputs + hidden + 2) + 4 * hidden * (hidden + hidden + 2)
    values = fill(
        init.FusedRNN(init.Constant(5), hidden, 2, "lstm", forget_bias=2.0),
        (size,),
        "parameters_weight",
    )
    weights = 4 * hidden * (inputs + hidden) + 4 * hidden * 2 * hidden
    assert (values[:weights] == 5).all()
    np.testing.assert_array_equal(
        values[weights:].reshape(-1, 4, hidden),
        np.broadcast_to([[0], [2], [0], [0]], (4, 4, hidden)),
    )
    with pytest.raises(ValueError):
        fill(init.FusedRNN(init.Zero(), hidden, 2, "lstm"), (size + 1,), "parameters_weight")


def test_initializers_reject_invalid_arguments():
    raises(ValueError, "two dimensions", lambda: fill(init.Xavier(), (3,)))
    for make in (
        lambda: init.Xavier("normal"),
        lambda: init.Xavier(factor_type="sum"),
        lambda: init.Orthogonal(rand_type="x"),
    ):
        with pytest.raises(ValueError):
            make()
    raises(ValueError, "unknown initializer", lambda: init.create("xaver"))


def test_registered_initializer_class_is_created_by_name():
    @init.register
    class Counting(init.Initializer):
        def _init_weight(self, _, arr):
            arr[:] = np.arange(arr.size).reshape(arr.shape)

    np.testing.assert_array_equal(fill(init.create("counting"), (2, 2)), [[0, 1], [2, 3]])
