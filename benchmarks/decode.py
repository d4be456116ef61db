"""Measures a decoding step of a tiny transformer: microseconds per token, with states of fixed size
that go in and out of a compiled call. The computation is negligible, so this is overhead.

    python benchmarks/decode.py

A token is read before the next step ("read"), or steps follow each other ("queued").
"""

import time

import mpgluon as mx
import networks
from mpgluon import gluon, nd
from mpgluon.gluon import nn

LAYERS, WIDTH, HEADS, SHARED, LENGTH, VOCAB = 4, 64, 4, 2, 64, 256
SIZE = WIDTH // HEADS


class Attention(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.query, self.out = [networks.projection(WIDTH, WIDTH) for _ in range(2)]
        self.key, self.value = [networks.projection(SHARED * SIZE, WIDTH) for _ in range(2)]

    def hybrid_forward(self, F, x, keys, values, here, mask):
        k, v = [part(x).reshape((SHARED, 1, SIZE)) for part in (self.key, self.value)]
        keys, values = [
            F.broadcast_mul(old, 1 - here) + F.broadcast_mul(new, here)
            for old, new in ((keys, k), (values, v))
        ]
        all_keys, all_values = [F.repeat(a, HEADS // SHARED, axis=0) for a in (keys, values)]
        scores = F.batch_dot(self.query(x).reshape((HEADS, 1, SIZE)), all_keys, transpose_b=True)
        weights = F.softmax(F.broadcast_add(scores * SIZE**-0.5, mask))
        return self.out(F.batch_dot(weights, all_values).reshape((1, 1, -1))), keys, values


class Layer(networks.LlamaLayer):
    def __init__(self, **kwargs):
        super().__init__(WIDTH, Attention(), **kwargs)

    def hybrid_forward(self, F, x, keys, values, here, mask):
        mixed, keys, values = self.attention(self.norm1(x), keys, values, here, mask)
        x = x + mixed
        y = self.norm2(x)
        gate = self.gate(y)
        return x + self.down(gate * F.sigmoid(gate) * self.up(y)), keys, values


class Step(gluon.HybridBlock):
    """Returns the next token and the new states, a list of (keys, values)."""

    def __init__(self, devices, **kwargs):
        super().__init__(**kwargs)
        self.devices = devices
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = networks.sequence(*[Layer() for _ in range(LAYERS)])
        self.norm = networks.RootMeanSquareNorm(WIDTH)
        self.head = networks.projection(VOCAB, WIDTH)

    def hybrid_forward(self, F, token, place, states):
        x, new = self.embed(token), []
        here = F.one_hot(place, LENGTH).reshape((1, LENGTH, 1))
        mask = (F.broadcast_greater(F.arange(LENGTH), place) * -1e9).reshape((1, 1, LENGTH))
        for number, (layer, (keys, values)) in enumerate(zip(self.layers, states)):
            x, here, mask = [
                a.as_in_context(device_of(number, self.devices)) for a in (x, here, mask)
            ]
            x, keys, values = layer(x, keys, values, here, mask)
            new.append((keys, values))
        return F.argmax(self.head(self.norm(x)), axis=-1), new


def device_of(layer, devices):
    return mx.cpu(layer * devices // LAYERS)


def make(devices):
    net = Step(devices)
    net.initialize()
    for number, layer in enumerate(net.layers):
        layer.collect_params().reset_ctx(device_of(number, devices))
    for block in (net.norm, net.head):
        block.collect_params().reset_ctx(device_of(LAYERS - 1, devices))
    net.hybridize()
    places = [device_of(number, devices) for number in range(LAYERS)]
    return net, [
        tuple([nd.zeros((SHARED, LENGTH, SIZE), ctx=ctx) for _ in range(2)]) for ctx in places
    ]


def measure(devices, read, rounds=20):
    net, states = make(devices)
    token, places = nd.zeros((1, 1)), [nd.array([i]) for i in range(LENGTH)]
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for place in places:
            found, states = net(token, place, states)
            if read:
                found.asnumpy()
        nd.waitall()
        best = min(best, (time.perf_counter() - start) / LENGTH)
    return best


if __name__ == "__main__":
    for devices in (1, 2):
        times = [
            f"{1e6 * measure(devices, read):.0f} us {name}"
            for name, read in (("read", True), ("queued", False))
        ]
        print(f"{devices} device{'s' * (devices > 1)}: {', '.join(times)} per token")
