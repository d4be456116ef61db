"""Networks of mx.np with an overridden ``forward``, placed over two devices and pipelined: losses,
gradients and parameters after two updates have the bits of one device."""

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, init, np, npx
from mpgluon.gluon import nn, rnn
from support.compare import same_bits

DEVICES = [mx.cpu(0), mx.cpu(1)]
draw = onp.random.RandomState(8)
IMAGES = draw.uniform(-1, 1, (4, 2, 12, 12)).astype("float32")
TOKENS, TARGETS = draw.randint(0, 9, (2, 4, 5)).astype("float32")
LENGTHS = onp.array([3, 5, 1, 4], "float32")


@pytest.fixture(scope="module", autouse=True)
def _devices_share_the_threads():
    """oneDNN's sums depend on the number of threads of a device."""
    for device in DEVICES:
        np.ones(1, ctx=device).wait_to_read()


@pytest.fixture(autouse=True)
def _off():
    npx.set_np()
    yield
    npx.reset_np()


class Residual(nn.HybridBlock):
    def __init__(self, channels, strides):
        super().__init__()
        self.first = nn.Conv2D(channels, 3, strides, 1)
        self.norm = nn.BatchNorm()
        self.second = nn.Conv2D(channels, 3, padding=1)
        self.shortcut = nn.Conv2D(channels, 1, strides)

    def forward(self, x):
        return npx.relu(self.second(npx.relu(self.norm(self.first(x)))) + self.shortcut(x))


class Branches(nn.HybridBlock):
    """Joins its input, a convolution and a pooled convolution along the channels."""

    def __init__(self, channels):
        super().__init__()
        self.wide = nn.Conv2D(channels, 3, padding=1, activation="relu")
        self.pool = nn.MaxPool2D(3, 1, 1)
        self.narrow = nn.Conv2D(channels, 1)

    def forward(self, x):
        return np.concatenate((x, self.wide(x), self.narrow(self.pool(x))), axis=1)


def convolutions():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1, activation="relu"), nn.AvgPool2D(2, 2))
    net.add(Branches(3), Residual(6, 2), Branches(2), nn.GlobalAvgPool2D(), nn.Dropout(0.2))
    net.add(nn.Flatten(), nn.Dense(6))
    return net


class LanguageModel(nn.HybridBlock):
    def __init__(self, layer):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.layer = layer
        self.dense = nn.Dense(6, flatten=False)

    def forward(self, tokens):
        steps = self.embedding(tokens.T)
        states = self.layer.begin_state(steps.shape[1], ctx=steps.ctx)
        outputs, _ = self.layer(steps, states)
        return self.dense(outputs).swapaxes(0, 1)


class Gates(nn.HybridBlock):
    """A GRU with its own parameters and a Python loop over the steps."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.hidden = hidden
        for gate in ("reset", "update", "state"):
            setattr(self, f"{gate}_x", gluon.Parameter(f"{gate}_x", shape=(inputs, hidden)))
            setattr(self, f"{gate}_h", gluon.Parameter(f"{gate}_h", shape=(hidden, hidden)))
            setattr(self, f"{gate}_b", gluon.Parameter(f"{gate}_b", shape=hidden, init="zeros"))

    def begin_state(self, batch_size, ctx):
        return np.zeros((batch_size, self.hidden), ctx=ctx)

    def forward(self, inputs, state):
        def gate(name, x, h):
            of_x, of_h, bias = (getattr(self, f"{name}_{part}").data(x.ctx) for part in "xhb")
            return np.dot(x, of_x) + np.dot(h, of_h) + bias

        outputs = []
        for x in inputs:
            update = npx.sigmoid(gate("update", x, state))
            reset = npx.sigmoid(gate("reset", x, state))
            state = update * state + (1 - update) * np.tanh(gate("state", x, reset * state))
            outputs.append(state)
        return np.stack(outputs), state


def masked_softmax(scores, lengths):
    if lengths is None:
        return npx.softmax(scores)
    lengths = lengths.repeat(scores.shape[1]) if lengths.ndim == 1 else lengths.reshape(-1)
    rows = scores.reshape(-1, scores.shape[-1])
    rows = npx.sequence_mask(rows, lengths, True, value=-1e6, axis=1)
    return npx.softmax(rows).reshape(scores.shape)


class AdditiveDecoder(nn.HybridBlock):
    """A GRU whose steps read a weighted sum of the encoder's outputs."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.query = nn.Dense(7, use_bias=False, flatten=False)
        self.key = nn.Dense(7, use_bias=False, flatten=False)
        self.score = nn.Dense(1, use_bias=False, flatten=False)
        self.layer = rnn.GRU(6, 2)
        self.dense = nn.Dense(6, flatten=False)

    def forward(self, tokens, memory, state, lengths):
        steps, outputs = self.embedding(tokens).swapaxes(0, 1), []
        for x in steps:
            query = np.expand_dims(state[-1], axis=1)
            features = np.expand_dims(self.query(query), 2) + np.expand_dims(self.key(memory), 1)
            scores = np.squeeze(self.score(np.tanh(features)), axis=-1)
            context = npx.batch_dot(masked_softmax(scores, lengths), memory)
            x = np.concatenate((context, np.expand_dims(x, axis=1)), axis=-1)
            output, (state,) = self.layer(x.swapaxes(0, 1), [state])
            outputs.append(self.dense(output))
        return np.concatenate(outputs).swapaxes(0, 1)


class Translator(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.encoder = rnn.GRU(6, 2)
        self.decoder = AdditiveDecoder()

    def forward(self, source, target, lengths):
        steps = self.embedding(source.T)
        states = self.encoder.begin_state(steps.shape[1], ctx=steps.ctx)
        outputs, (state,) = self.encoder(steps, states)
        return self.decoder(target, outputs.swapaxes(0, 1), state, lengths)


class Attention(nn.HybridBlock):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Dense(size, use_bias=False, flatten=False)
        self.key = nn.Dense(size, use_bias=False, flatten=False)
        self.value = nn.Dense(size, use_bias=False, flatten=False)
        self.output = nn.Dense(size, use_bias=False, flatten=False)
        self.dropout = nn.Dropout(0.1)

    def split(self, x):
        x = x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(0, 2, 1, 3)
        return x.reshape(-1, x.shape[2], x.shape[3])

    def forward(self, queries, keys, lengths):
        query, key, value = map(self.split, (self.query(queries), self.key(keys), self.value(keys)))
        lengths = None if lengths is None else lengths.repeat(self.heads, axis=0)
        scores = npx.batch_dot(query, key, transpose_b=True) / query.shape[-1] ** 0.5
        self.weights = masked_softmax(scores, lengths)
        x = npx.batch_dot(self.dropout(self.weights), value)
        x = x.reshape(-1, self.heads, x.shape[1], x.shape[2]).transpose(0, 2, 1, 3)
        return self.output(x.reshape(x.shape[0], x.shape[1], -1))


class TransformerLayer(nn.HybridBlock):
    def __init__(self, size, heads, decoder=False):
        super().__init__()
        self.attention, self.norm = Attention(size, heads), nn.LayerNorm()
        if decoder:
            self.cross, self.cross_norm = Attention(size, heads), nn.LayerNorm()
        self.ffn = nn.HybridSequential()
        self.ffn.add(nn.Dense(12, activation="relu", flatten=False), nn.Dense(size, flatten=False))
        self.ffn_norm = nn.LayerNorm()

    def forward(self, x, lengths, memory=None):
        if memory is None:
            x = self.norm(x + self.attention(x, x, lengths))
        else:
            batch, steps, _ = x.shape
            visible = np.tile(np.arange(1, steps + 1, ctx=x.ctx), (batch, 1))
            x = self.norm(x + self.attention(x, x, visible))
            x = self.cross_norm(x + self.cross(x, memory, lengths))
        return self.ffn_norm(x + self.ffn(x))


class Positions(nn.HybridBlock):
    """Adds a table of sines and cosines that was computed with assignments to slices."""

    def __init__(self, size):
        super().__init__()
        self.table = np.zeros((1, 20, size))
        angles = np.arange(20).reshape(-1, 1) / np.power(100, np.arange(0, size, 2) / size)
        self.table[:, :, 0::2], self.table[:, :, 1::2] = np.sin(angles), np.cos(angles)

    def forward(self, x):
        return x + self.table[:, : x.shape[1], :].as_in_ctx(x.ctx)


class Transformer(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(9, 8), nn.Embedding(9, 8)
        self.positions = Positions(8)
        self.encoder, self.decoder = nn.HybridSequential(), nn.HybridSequential()
        for _ in range(2):
            self.encoder.add(TransformerLayer(8, 2))
            self.decoder.add(TransformerLayer(8, 2, decoder=True))
        self.dense = nn.Dense(6, flatten=False)

    def forward(self, source, target, lengths):
        x = self.positions(self.source(source) * 8**0.5)
        for layer in self.encoder:
            x = layer(x, lengths)
        y = self.positions(self.target(target) * 8**0.5)
        for layer in self.decoder:
            y = layer(y, lengths, x)
        return self.dense(y)


class MaskedModel(nn.HybridBlock):
    """Predicts the tokens at given positions, and a class of the whole row."""

    def __init__(self):
        super().__init__()
        self.tokens, self.segments = nn.Embedding(9, 8), nn.Embedding(2, 8)
        self.positions = gluon.Parameter("positions", shape=(1, 20, 8), init=init.Normal(0.1))
        self.layers = nn.HybridSequential()
        self.layers.add(TransformerLayer(8, 2), TransformerLayer(8, 2))
        self.masked, self.pooler = nn.HybridSequential(), nn.Dense(8, activation="tanh")
        self.masked.add(nn.Dense(8, flatten=False, activation="relu"), nn.LayerNorm())
        self.masked.add(nn.Dense(6, flatten=False))
        self.classes = nn.Dense(6)

    def forward(self, tokens, segments, lengths, positions):
        x = self.tokens(tokens) + self.segments(segments)
        x = x + self.positions.data(x.ctx)[:, : x.shape[1], :]
        for layer in self.layers:
            x = layer(x, lengths)
        batch, count = positions.shape
        rows = np.repeat(np.arange(batch, ctx=x.ctx), count)
        chosen = x[rows, positions.reshape(-1).as_in_ctx(x.ctx)].reshape((batch, count, -1))
        whole = np.expand_dims(self.classes(self.pooler(x[:, 0, :])), axis=1)
        return np.concatenate((self.masked(chosen), whole), axis=1)


TEXT = (TOKENS, TARGETS, LENGTHS)
NETWORKS = {
    "convolutions": (convolutions, (IMAGES,)),
    "LSTM": (lambda: LanguageModel(rnn.LSTM(6, 2, dropout=0.1)), (TOKENS,)),
    "own GRU": (lambda: LanguageModel(Gates(8, 6)), (TOKENS,)),
    "additive attention": (Translator, TEXT),
    "transformer": (Transformer, TEXT),
    "masked tokens": (
        MaskedModel,
        (TOKENS, (TARGETS > 4).astype("float32"), LENGTHS, TARGETS[:, :2] % 5),
    ),
}


def trained(name, placed, prepare):
    """Trains a network for two steps. Returns all losses, gradients and parameters."""
    make, values = NETWORKS[name]
    mx.random.seed(3)
    net = make()
    net.initialize(init.Xavier())
    inputs = [np.array(x) for x in values]
    net(*inputs)
    if placed:
        net.place(DEVICES, verbose=False)
    params = net.collect_params().values()
    assert {p.list_ctx()[0] for p in params} == {*(DEVICES if placed else DEVICES[:1])}
    prepare(net)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    arrays = []
    mx.random.seed(4)
    for _ in range(2):
        with autograd.record():
            scores = net(*inputs)
            labels = np.arange(scores.size // 6, ctx=scores.ctx) % 6
            losses = loss(scores.reshape(-1, 6), labels)
        losses.backward()
        arrays += [losses, *[p.grad(p.list_ctx()[0]) for p in params if p.grad_req != "null"]]
        arrays = [x.asnumpy() if isinstance(x, np.ndarray) else x for x in arrays]
        trainer.step(4)
    return arrays + [p.data(p.list_ctx()[0]).asnumpy() for p in params]


# The check of pipelines refuses the numbers of the samples, by which MaskedModel selects tokens.
WAYS = {
    "eager": lambda net: None,
    "hybridized": lambda net: net.hybridize(),
    "exact": lambda net: net.hybridize(exact=True),
    "pipeline": lambda net: net.hybridize(
        pipeline=mx.parallel.Pipeline(micro_batches=2, check=not isinstance(net, MaskedModel))
    ),
}
# An eager call of a block copies its inputs. So each layer of the decoder gets its own copy of the
# encoder's results, and the gradients of each copy are summed first.
CASES = [
    (name, way) for name in NETWORKS for way in WAYS if (name, way) != ("transformer", "eager")
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_networks_on_two_devices_have_the_bits_of_one(name, way):
    one, two = (trained(name, placed, WAYS[way]) for placed in (False, True))
    same_bits(two, one)
    assert all(onp.isfinite(x).all() for x in one)
