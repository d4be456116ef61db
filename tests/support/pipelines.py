"""Networks for pipelines, their inputs and their gradients."""

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline
from support.devices import on

DEVICES = [on(i) for i in range(4)]


class Chain(gluon.HybridBlock):
    """Parts on devices in a chain."""

    def __init__(self, devices, make):
        super().__init__()
        self.devices, self.parts = [DEVICES[d] for d in devices], []
        with self.name_scope():
            for i, ctx in enumerate(self.devices):
                part = make(i)
                self.register_child(part)
                self.parts.append(part)
        mx.random.seed(11)
        for part, ctx in zip(self.parts, self.devices):
            part.initialize(mx.init.Xavier(), ctx=ctx)

    def hybrid_forward(self, F, x):
        for part, ctx in zip(self.parts, self.devices):
            x = part(x.as_in_context(ctx))
        return x


class Attention(gluon.HybridBlock):
    def __init__(self, width):
        super().__init__()
        with self.name_scope():
            self.norm = nn.LayerNorm(in_channels=width)
            self.qkv = nn.Dense(3 * width, in_units=width, flatten=False)
            self.out = nn.Dense(width, in_units=width, flatten=False)
            self.drop = nn.Dropout(0.2)

    def hybrid_forward(self, F, x):
        q, k, v = F.split(self.qkv(self.norm(x)), num_outputs=3, axis=-1)
        weights = F.softmax(F.batch_dot(q, k, transpose_b=True) / 4)
        return x + self.drop(self.out(F.batch_dot(weights, v)))


class Branches(gluon.HybridBlock):
    """Two branches on two devices, joined on a third; the end reuses the first part's weight."""

    def __init__(self, devices):
        super().__init__()
        self.devices = [DEVICES[d] for d in devices]
        with self.name_scope():
            self.a = nn.Dense(16, in_units=16, activation="relu")
            self.b = nn.Dense(16, in_units=16, activation="tanh")
            self.c = nn.Dense(16, in_units=16)
        mx.random.seed(11)
        for part, ctx in zip((self.a, self.b, self.c), (self.devices * 3)[:3]):
            part.initialize(mx.init.Xavier(), ctx=ctx)

    def hybrid_forward(self, F, x):
        one, two, three = (self.devices * 3)[:3]
        x = self.a(x.as_in_context(one))
        left, right = self.b(x.as_in_context(two)), self.c(x.as_in_context(three))
        return self.a(left.as_in_context(one) * right.as_in_context(one))


def dense(i):
    part = nn.HybridSequential()
    with part.name_scope():
        part.add(
            nn.Dense(16, in_units=16, activation="tanh"), nn.Dropout(0.3), nn.Dense(16, in_units=16)
        )
    return part


def convolution(i):
    part = nn.HybridSequential()
    with part.name_scope():
        part.add(
            nn.Conv2D(4, 3, padding=1, in_channels=4, activation="relu"), nn.MaxPool2D(2, strides=1)
        )
    return part


NETS = {
    "dense": (lambda devices: Chain(devices, dense), (10, 16), (10, 16)),
    "attention": (lambda devices: Chain(devices, lambda i: Attention(8)), (10, 5, 8), (10, 5, 8)),
    "convolution": (lambda devices: Chain(devices, convolution), (10, 4, 9, 9), None),
    "branches": (Branches, (10, 16), (10, 16)),
}


def gradients(net):
    return {
        name: param.grad().asnumpy()
        for name, param in net.collect_params().items()
        if param.grad_req != "null"
    }


def equal(a, b):
    """True if gradients are equal, ignoring their names."""
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a.values(), b.values()))


def data(shape, seed=0):
    return nd.array(np.random.RandomState(seed).randn(*shape))


def loss_of(out):
    return (out.reshape((out.shape[0], -1)) ** 2).mean(axis=1)


class Recurrent(gluon.HybridBlock):
    def __init__(self, devices, dropout):
        super().__init__()
        self.devices = [DEVICES[d] for d in devices]
        with self.name_scope():
            self.embed = nn.Embedding(20, 8)
            self.layers = []
            for i, ctx in enumerate(self.devices):
                layer = rnn.LSTM(8, input_size=8)
                setattr(self, f"lstm{i}", layer)
                self.layers.append(layer)
            self.drop = nn.Dropout(dropout)
            self.decode = nn.Dense(20, in_units=8, flatten=False)
        mx.random.seed(11)
        self.embed.initialize(mx.init.Xavier(), ctx=self.devices[0])
        self.decode.initialize(mx.init.Xavier(), ctx=self.devices[-1])
        for layer, ctx in zip(self.layers, self.devices):
            layer.initialize(mx.init.Xavier(), ctx=ctx)

    def states(self, batch):
        return [layer.begin_state(batch, ctx=ctx) for layer, ctx in zip(self.layers, self.devices)]

    def hybrid_forward(self, F, x, states):
        x, after = self.embed(x), []
        for layer, ctx, state in zip(self.layers, self.devices, states):
            x, state = layer(x.as_in_context(ctx), state)
            x = self.drop(x)
            after.append(state)
        return self.decode(x), after


TOKENS = nd.array(np.random.RandomState(0).randint(0, 20, (11, 3)))
TARGETS = nd.array(np.random.RandomState(1).randint(0, 20, (11, 3)))


def token_loss(out, y):
    return -nd.pick(nd.log_softmax(out), y)


def big(i):
    part = nn.HybridSequential()
    with part.name_scope():
        for _ in range(4):
            part.add(nn.Dense(256, in_units=256, activation="tanh"))
    return part


def results_in_all_ways(make, arrays, *others):
    """Returns the result and gradients of the network `make(device)` for `arrays` and `others`:
    eager, compiled, on a second device, and in pipelines. All results must have the same bits."""
    results = []
    for place, flags in (
        (0, None),
        (0, {}),
        (1, {}),
        (0, {"pipeline": Pipeline(3)}),
        (1, {"pipeline": Pipeline(4)}),
    ):
        net = make(on(place))
        if flags is not None:
            net.hybridize(exact=True, **flags)
        for array in arrays:
            array.attach_grad()
        mx.random.seed(5)
        with autograd.record():
            out = net(*arrays, *others)
            loss = (out * out).sum()
        loss.backward()
        results.append([a.asnumpy() for a in (out, *[array.grad for array in arrays])])
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            assert a.tobytes() == b.tobytes()
    return results[0]
