"""Prediction draws no random numbers, so evaluation between training steps changes no later
draw."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline
from samples.base import all_samples
from support.calls import call, place
from support.compare import same_bits
from support.devices import on
from support.processes import output_of
from support.training import backward_of

SAMPLES = all_samples()
MODE_DEPENDENT = sorted(
    name for name in SAMPLES if {"random", "train"} <= set(_core.get_op(name).describe()["flags"])
)


def next_draw():
    return nd.random.uniform(shape=(4,)).asnumpy().tolist()


def test_random_ops_that_depend_on_mode_are_known():
    assert MODE_DEPENDENT == ["Dropout", "LeakyReLU", "RNN", "_rnn"]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", MODE_DEPENDENT)
def test_op_in_predict_mode_draws_no_number(name, recorded):
    mx.random.seed(3)
    expected = next_draw()
    for sample in SAMPLES[name]:
        if (sample.params or {}).get("mode") == "always":
            continue
        arrays = place(sample, "float32")
        mx.random.seed(3)
        if recorded:
            for i in sample.gradient_inputs():
                arrays[i].attach_grad()
            with autograd.record(train_mode=False):
                call(name, arrays, sample.params)
        else:
            call(name, arrays, sample.params)
        assert next_draw() == expected


def test_always_dropout_draws_in_predict_mode():
    x = nd.ones((100,))
    mx.random.seed(3)
    first, second = (nd.Dropout(x, p=0.5, mode="always").asnumpy() for _ in range(2))
    assert 20 < first.astype(bool).sum() < 80
    assert (first != second).any()


def dense():
    net = nn.HybridSequential()
    net.add(nn.Dense(8, in_units=4), nn.Dropout(0.5), nn.Dense(8, in_units=8), nn.Dropout(0.3))
    return net, (6, 4)


def lstm():
    net = nn.HybridSequential()
    net.add(rnn.LSTM(6, 2, dropout=0.5, input_size=4, layout="NTC"), nn.Dropout(0.2))
    return net, (6, 3, 4)


def cell():
    class Steps(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.cell = rnn.HybridSequentialRNNCell()
            self.cell.add(rnn.DropoutCell(0.5))
            self.cell.add(rnn.ZoneoutCell(rnn.GRUCell(4, input_size=4), 0.3, 0.3))

        def hybrid_forward(self, F, x):
            outputs, _ = self.cell.unroll(3, x, layout="NTC", merge_outputs=True)
            return outputs

    return Steps(), (6, 3, 4)


def attention():
    class Attention(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            scores = F.batch_dot(x, x, transpose_b=True)
            return F.batch_dot(F.Dropout(F.softmax(scores), p=0.4), x)

    return Attention(), (2, 8, 8)


WAYS = {
    "eager": None,
    "hybridized": {},
    "exact": {"exact": True},
    "pipelined": {"pipeline": Pipeline(2)},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [dense, lstm, cell, attention])
def test_evaluation_does_not_shift_training_draws(make, way):
    net, shape = make()
    mx.random.seed(1)
    net.initialize(mx.init.Xavier(), ctx=on(0))
    if WAYS[way] is not None:
        net.hybridize(**WAYS[way])
    x = nd.random.uniform(shape=shape, ctx=on(0))
    x.attach_grad()

    def train(evaluations):
        mx.random.seed(123)
        results = []
        for _ in range(2):
            for _ in range(evaluations):
                net(x).wait_to_read()
            y = backward_of(lambda: net(x))
            results += [y.asnumpy(), x.grad.asnumpy()]
        return results

    expected = train(0)
    assert (expected[0] != expected[2]).any()  # the two steps draw different masks
    for evaluations in (1, 3):
        same_bits(train(evaluations), expected)


def test_executor_in_predict_mode_draws_no_number():
    symbol = mx.sym.Dropout(mx.sym.var("x"), p=0.5)
    x = nd.ones((40,), ctx=on(0))
    executor = symbol.bind(on(0), {"x": x})
    draws = []
    for evaluations in (0, 2):
        mx.random.seed(9)
        for _ in range(evaluations):
            (y,) = executor.forward(is_train=False)
            assert (y.asnumpy() == 1).all()
        draws.append(executor.forward(is_train=True)[0].asnumpy())
    np.testing.assert_array_equal(*draws)


def test_compiled_prediction_program_has_no_dropout():
    net = nn.HybridSequential()
    net.add(nn.Dense(8, in_units=4), nn.Dropout(0.5), nn.Dense(8, in_units=8))
    net.initialize(ctx=on(0))
    net.hybridize()
    net(nd.ones((2, 4), ctx=on(0)))
    assert "Dropout" not in str(net.compiled().programs())


def seed_first(F, x):
    mx.random.seed(3)
    return F.Dropout(x, p=0.5) + F.random.uniform(shape=(2, 3))


def seed_between_draws(F, x):
    x = F.Dropout(x, p=0.5)
    mx.random.seed(3)
    return x + F.random.uniform(shape=(2, 3))


def seed_last(F, x):
    x = F.Dropout(x, p=0.5)
    mx.random.seed(3)
    return x


def seed_in_loop(F, x):
    def body(row, total):
        mx.random.seed(4)
        drawn = F.random.uniform(shape=(3,))
        return row * drawn, total + drawn

    rows, total = F.contrib.foreach(body, x, F.zeros((3,)))
    return rows + total


def set_state(F, x):
    mx.random.set_state((3, 7))
    return F.Dropout(x, p=0.5)


@pytest.mark.parametrize(
    "function", [seed_first, seed_between_draws, seed_last, seed_in_loop, set_state]
)
def test_seed_in_hybrid_forward_acts_in_every_call(function):
    def draws(hybridize):
        net = nn.HybridLambda(function)
        net.hybridize(hybridize)
        mx.random.seed(0)
        x, found = nd.ones((2, 3)), []
        x.attach_grad()
        for _ in range(3):
            y = backward_of(lambda: net(x))
            found += [y, x.grad, nd.random.uniform(shape=2)]
            found = [array.copy() for array in found]
        return [array.asnumpy() for array in found]

    np.testing.assert_equal(draws(True), draws(False))


def test_random_state_in_hybrid_forward_is_refused():
    net = nn.HybridLambda(lambda F, x: x + mx.random.get_state()[1])
    net(nd.ones(2))
    net.hybridize()
    with pytest.raises(mx.MXNetError, match="random.get_state cannot .* outside of the block"):
        net(nd.ones(2))
    net = nn.HybridLambda(seed_first)
    net.hybridize(pipeline=Pipeline(1))
    with pytest.raises(mx.MXNetError, match="random.seed runs on the host"):
        net(nd.ones((2, 3)))


def test_dropout_of_a_part_ends_for_any_saved_draw():
    """The key has runs of 2 ** 64 - 1 elements, which are one run for the array."""
    code = """
from mpgluon import _core, autograd, nd

def part(*key):
    draw = nd.array(key, dtype="int64")
    with autograd.train_mode():
        return _core.get_op("_dropout_part")(nd.ones((3, 40)), draw, axis=1, begin=0, total=40)

assert (part(7, 3, 0, -1, 5) == part(7, 3, 0, 0, 0)).asnumpy().all()
"""
    output_of(code, timeout=60)
