"""Networks with arrays large enough for memory measurements."""

import numpy as np

import mpgluon as mx
from mpgluon import autograd
from mpgluon.gluon import nn, rnn
from support.networks import Placed

WIDTH = 64


class Started(Placed):
    """A network whose children are initialized in the constructor."""

    def __init__(self, places, prefix="net_"):
        super().__init__(places, prefix)
        self.start()


class MLP(Started):
    names = [f"layer{i}" for i in range(6)]

    def make(self):
        for name in self.names:
            setattr(self, name, nn.Dense(WIDTH, activation="tanh", in_units=WIDTH))

    def hybrid_forward(self, F, x):
        for name in self.names:
            x = getattr(self, name)(x.as_in_context(self.places[name]))
        return x


class Chain(MLP):
    """An MLP with dropout, normalization and a residual connection."""

    def make(self):
        for name in self.names:
            block = nn.HybridSequential()
            block.add(
                nn.Dense(WIDTH, in_units=WIDTH),
                nn.LayerNorm(in_channels=WIDTH),
                nn.Activation("relu"),
                nn.Dropout(0.2),
            )
            setattr(self, name, block)

    def hybrid_forward(self, F, x):
        for name in self.names:
            x = x.as_in_context(self.places[name])
            x = x + getattr(self, name)(x)
        return x


class Branches(Started):
    names = ["stem", "left", "middle", "right", "head"]

    def make(self):
        for name in self.names:
            setattr(
                self,
                name,
                nn.Dense(WIDTH, activation="tanh", in_units=3 * WIDTH if name == "head" else WIDTH),
            )

    def hybrid_forward(self, F, x):
        x = self.stem(x)
        branches = [
            getattr(self, name)(x.as_in_context(self.places[name])) for name in self.names[1:4]
        ]
        return self.head(
            F.concat(*[branch.as_in_context(self.places["head"]) for branch in branches], dim=1)
        )


class Recurrent(Started):
    names = ["embed", "lstm1", "lstm2", "decoder"]

    def make(self):
        self.embed = nn.Embedding(50, WIDTH)
        self.lstm1 = rnn.LSTM(WIDTH, input_size=WIDTH)
        self.lstm2 = rnn.LSTM(WIDTH, input_size=WIDTH)
        self.decoder = nn.Dense(50, flatten=False, in_units=WIDTH)

    def hybrid_forward(self, F, x):
        x = self.embed(F.floor(F.abs(x) * 49))
        for name in self.names[1:]:
            x = getattr(self, name)(x.as_in_context(self.places[name]))
        return x


NETS = {net.__name__: net for net in (MLP, Chain, Branches, Recurrent)}


def batch():
    return mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (16, WIDTH)))


def step(net, trainer, x):
    with autograd.record():
        y = net(x)
        loss = (y * y).mean()
    loss.backward()
    trainer.step(1)
    return loss
