"""Pipelines along time whose initial states are not on the device that returns new states."""

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
