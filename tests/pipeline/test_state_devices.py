"""Pipelines along time whose initial states have another device or dtype than the new states."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline, TrainStep
from support.devices import on


class Model(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embed, self.cell = nn.Embedding(7, 3), rnn.GRU(4, input_size=3)
            self.out = nn.Dense(2, flatten=False, in_units=4)

    def hybrid_forward(self, F, x, states):
        y, states = self.cell(self.embed(x), states)
        return self.out(y), states


def trained(way, home):
    """Returns losses, states, the gradient of the initial state and the weights after two steps."""
    mx.random.seed(3)
    net = Model()
    net.place({"embed": on(0), "cell": on(1), "out": on(2)}, verbose=False)
    net.initialize(mx.init.Uniform(1))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x = nd.array(np.arange(40).reshape(8, 5) % 7, ctx=on(0))
    labels = nd.ones((8, 5, 2), ctx=on(2))
    first = nd.array(np.linspace(-1, 1, 20).reshape(1, 5, 4), ctx=home)
    if way == "loop":  # states of a TrainStep have no gradient
        first.attach_grad()
    pipeline, states, found = Pipeline(4, along="time"), [first], []

    def loss_of(out, label):
        return nd.mean(nd.square(out - label), axis=-1)

    if way == "loop":
        net.hybridize(exact=True, pipeline=pipeline)
    step = TrainStep(net, loss_of, trainer, pipeline, exact=True)
    for _ in range(2):
        if way == "step":
            loss, states = step(x, labels, states)
        else:
            with autograd.record():
                out, states = net(x, states)
                loss = loss_of(out, labels)
            loss.backward()
            trainer.step(8)
            found.append(first.grad.asnumpy().copy())
            states = [state.detach() for state in states]
        assert states[0].context == on(1)
        found += [loss.asnumpy(), states[0].asnumpy()]
    return found + [param.data().asnumpy() for param in net.collect_params().values()]


@pytest.mark.parametrize("way", ("loop", "step"))
@pytest.mark.parametrize("home", (0, 2))
def test_states_move_to_the_device_that_returns_them(way, home):
    for a, b in zip(trained(way, on(home)), trained(way, on(1)), strict=True):
        assert np.array_equal(a, b)


class Widening(gluon.HybridBlock):
    """Returns a float32 state, whatever the dtype of the given one."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layer = nn.Dense(3, in_units=3, flatten=False)

    def hybrid_forward(self, F, x, state):
        h = F.broadcast_add(self.layer(x), F.cast(state, "float32"))
        return h, F.slice_axis(h, axis=0, begin=-1, end=None) / 3


@pytest.mark.parametrize("way", ("loop", "step"))
def test_states_change_their_dtype(way):
    x, found = nd.random.uniform(shape=(6, 2, 3), ctx=on(0)), []
    for pipelined in (False, True):
        mx.random.seed(3)
        net, pipeline = Widening(), Pipeline(3, along="time")
        net.initialize(mx.init.Uniform(1), ctx=on(0))
        first = nd.ones((1, 2, 3), dtype="float16", ctx=on(0)) / 3
        parts = [x] if pipelined else [x[i : i + 2] for i in (0, 2, 4)]
        if way == "step" and pipelined:
            step = TrainStep(net, lambda out, label: out * label, None, pipeline)
            loss, state = step(x, nd.ones_like(x), first)
        else:
            first.attach_grad()
            if pipelined:
                net.hybridize(pipeline=pipeline)
            with autograd.record():
                outs, state = [], first
                for part in parts:
                    out, state = net(part, state)
                    outs.append(out)
                loss = nd.concat(*outs, dim=0)
            loss.backward()
        grads = [net.layer.weight.grad()] + ([first.grad] if way == "loop" else [])
        assert state.dtype == np.float32
        found.append([a.asnumpy() for a in (loss, state, *grads)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
