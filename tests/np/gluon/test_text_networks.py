"""Encoders of text and tables as users write them for mx.np: with ``hybrid_forward`` and ``F`` as
in MXNet 1.x, and with ``forward`` as in MXNet 2.0. Both compute the same."""

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, init, np, npx, use_np
from mpgluon.gluon import HybridBlock, Parameter, nn
from support.compare import same_bits

UNITS, HEADS = 8, 2
DEVICES = [mx.cpu(0), mx.cpu(1)]
draw = onp.random.RandomState(9)
TOKENS = draw.randint(1, 11, (4, 6)).astype("int32")
SEGMENTS = (onp.arange(6) > 3).astype("int32") * onp.ones((4, 1), "int32")
LENGTHS = onp.array([6, 2, 4, 5], "float32")
CATEGORIES = draw.randint(0, 5, 4).astype("int32")
NUMBERS = draw.uniform(-1, 1, (4, 3)).astype("float32")
LABELS = onp.array([0, 2, 1, 2], "int32")
INPUTS = (TOKENS, SEGMENTS, LENGTHS, CATEGORIES, NUMBERS)


@pytest.fixture(autouse=True)
def _off():
    npx.set_np()
    for device in DEVICES:  # oneDNN's sums depend on the number of threads of a device
        np.ones(1, ctx=device).wait_to_read()
    yield
    npx.reset_np()


@use_np
class OldAttention(HybridBlock):
    """Attention with special sizes of ``npx.reshape`` and a mask of 0 and 1."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.qkv = nn.Dense(3 * UNITS, flatten=False, in_units=UNITS, prefix="qkv_")
            self.proj = nn.Dense(UNITS, flatten=False, in_units=UNITS, prefix="proj_")
            self.dropout = nn.Dropout(0.1)

    def hybrid_forward(self, F, data, mask):
        query, key, value = (
            F.np.swapaxes(F.npx.reshape(x, (-2, -2, HEADS, -1)), 1, 2)
            for x in F.np.split(self.qkv(data), 3, axis=-1)
        )
        scores = F.npx.batch_dot(query, key, transpose_b=True) / float(UNITS // HEADS) ** 0.5
        mask = F.np.expand_dims(mask, axis=1)
        weights = F.npx.softmax(F.np.where(mask, scores, -1e18), axis=-1) * mask
        context = F.np.swapaxes(F.npx.batch_dot(self.dropout(weights), value), 1, 2)
        return self.proj(F.npx.reshape(context, (-2, -2, -1)))


@use_np
class OldLayer(HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.attention = OldAttention(prefix="attention_")
            self.norm = nn.LayerNorm(epsilon=1e-12, in_channels=UNITS, prefix="norm_")
            self.wide = nn.Dense(16, flatten=False, in_units=UNITS, prefix="wide_")
            self.narrow = nn.Dense(UNITS, flatten=False, in_units=16, prefix="narrow_")
            self.ffn_norm = nn.LayerNorm(epsilon=1e-12, in_channels=UNITS, prefix="ffn_norm_")

    def hybrid_forward(self, F, data, mask):
        data = self.norm(data + self.attention(data, mask))
        hidden = F.npx.leaky_relu(self.wide(data), act_type="gelu")
        return self.ffn_norm(data + self.narrow(hidden))


@use_np
class OldEncoder(HybridBlock):
    def __init__(self, frozen=0, **kwargs):
        super().__init__(**kwargs)
        self.frozen = frozen
        with self.name_scope():
            self.words = nn.Embedding(11, UNITS, prefix="words_")
            self.kinds = nn.Embedding(2, UNITS, prefix="kinds_")
            self.positions = self.params.get("positions", shape=(16, UNITS), init=init.Normal(0.1))
            self.norm = nn.LayerNorm(epsilon=1e-12, in_channels=UNITS, prefix="norm_")
            self.layers = nn.HybridSequential()
            for i in range(2):
                self.layers.add(OldLayer(prefix=f"layer{i}_"))

    def hybrid_forward(self, F, tokens, segments, lengths, positions):
        x = self.words(tokens) + self.kinds(segments)
        steps = F.npx.arange_like(x, axis=1)
        valid = F.npx.reshape(steps, (1, 1, -1)) < F.npx.reshape(lengths, (-2, 1, 1))
        mask = valid * (F.npx.reshape(steps, (1, -1, 1)) < F.npx.reshape(lengths, (-2, 1, 1)))
        table = F.npx.embedding(steps, positions, input_dim=16, output_dim=UNITS)
        x = self.norm(x + F.np.expand_dims(table, axis=0))
        for i, layer in enumerate(self.layers):
            x = layer(x, mask)
            if i < self.frozen:
                x = F.npx.stop_gradient(x)
        return x


@use_np
class OldNetwork(HybridBlock):
    """Means of the features of a text, a category and a row of numbers, and a classifier."""

    encoder_type = OldEncoder

    def __init__(self, frozen=0, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.encoder = self.encoder_type(frozen)
            self.category = nn.HybridSequential()
            self.category.add(nn.Embedding(5, 4), nn.Dense(UNITS, flatten=False, in_units=4))
            self.numbers = nn.HybridSequential()
            self.numbers.add(nn.BatchNorm(in_channels=3), nn.Dense(UNITS, in_units=3))
            self.head = nn.HybridSequential()
            self.head.add(nn.Dense(UNITS, in_units=UNITS, activation="tanh"), nn.Dropout(0.1))
            self.head.add(nn.Dense(3, in_units=UNITS))

    def hybrid_forward(self, F, tokens, segments, lengths, category, numbers):
        text = self.encoder(tokens, segments, lengths)[:, 0, :]
        fields = [text, self.category(category), self.numbers(numbers)]
        return self.head(F.np.mean(F.np.stack(fields, axis=1), axis=1))


class NewAttention(HybridBlock):
    """Attention with a mask of bools and einsum."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Dense(3 * UNITS, flatten=False, in_units=UNITS)
        self.proj = nn.Dense(UNITS, flatten=False, in_units=UNITS)
        self.dropout = nn.Dropout(0.1)

    def forward(self, data, mask):
        batch, steps, _ = data.shape
        query, key, value = (
            x.reshape(batch, steps, HEADS, -1) for x in np.split(self.qkv(data), 3, axis=-1)
        )
        scores = np.einsum("bqhc,bkhc->bhqk", query, key)
        scale = (UNITS // HEADS) ** 0.5
        weights = npx.masked_softmax(scores, np.expand_dims(mask, 1), axis=-1, temperature=scale)
        context = np.einsum("bhqk,bkhc->bqhc", self.dropout(weights), value)
        return self.proj(context.reshape(batch, steps, -1))


class NewLayer(HybridBlock):
    def __init__(self):
        super().__init__()
        self.attention = NewAttention()
        self.norm = nn.LayerNorm(epsilon=1e-12, in_channels=UNITS)
        self.wide = nn.Dense(16, flatten=False, in_units=UNITS)
        self.narrow = nn.Dense(UNITS, flatten=False, in_units=16)
        self.ffn_norm = nn.LayerNorm(epsilon=1e-12, in_channels=UNITS)

    def forward(self, data, mask):
        data = self.norm(data + self.attention(data, mask))
        return self.ffn_norm(data + self.narrow(npx.gelu(self.wide(data))))


class NewEncoder(HybridBlock):
    def __init__(self, frozen=0):
        super().__init__()
        self.frozen = frozen
        self.words, self.kinds = nn.Embedding(11, UNITS), nn.Embedding(2, UNITS)
        self.positions = Parameter("positions", shape=(16, UNITS), init=init.Normal(0.1))
        self.norm = nn.LayerNorm(epsilon=1e-12, in_channels=UNITS)
        self.layers = nn.HybridSequential()
        self.layers.add(NewLayer(), NewLayer())

    def forward(self, tokens, segments, lengths):
        steps = np.arange(tokens.shape[1], device=tokens.device)
        valid = np.expand_dims(steps, 0) < np.expand_dims(lengths, 1)
        mask = np.logical_and(np.expand_dims(valid, 1), np.expand_dims(valid, 2))
        x = self.words(tokens) + self.kinds(segments)
        x = self.norm(x + self.positions.data(x.device)[: tokens.shape[1]])
        for i, layer in enumerate(self.layers):
            x = layer(x, mask)
            x = npx.stop_gradient(x) if i < self.frozen else x
        return x


class NewNetwork(OldNetwork):
    encoder_type = NewEncoder
    hybrid_forward = None

    def forward(self, tokens, segments, lengths, category, numbers):
        text = self.encoder(tokens, segments, lengths)[:, 0]
        fields = (text, self.category(category), self.numbers(numbers))
        return self.head(np.stack(fields, axis=1).mean(axis=1))


KINDS = {"F": OldNetwork, "2.0": NewNetwork}


def network(kind, frozen=0):
    mx.random.seed(6)
    net = KINDS[kind](frozen)
    net.initialize(init.Xavier())
    return net


def arrays(values=INPUTS, ctx=None):
    return [np.array(x, dtype=x.dtype, ctx=ctx) for x in values]


def trained(net):
    """Fine-tunes with smaller rates for lower layers, gradients of two batches and clipping."""
    params = net.collect_params()
    for name, param in params.items():
        param.lr_mult = 0.9 ** (2 - ("layer" in name))
        param.wd_mult = float(name.endswith("weight"))
        if param.grad_req != "null":
            param.grad_req = "add"
    trainer = gluon.Trainer(params, "adam", {"learning_rate": 0.01, "wd": 0.01})
    trained = [param for param in params.values() if param.grad_req != "null"]
    loss, results = gluon.loss.SoftmaxCELoss(), []
    mx.random.seed(7)
    for _ in range(2):
        params.zero_grad()
        for _ in range(2):
            with autograd.record():
                scores = net(*arrays())
                losses = loss(scores, np.array(LABELS, ctx=scores.ctx)).mean() / 2
            losses.backward()
            results.append(losses.asnumpy())
        trainer.allreduce_grads()
        gluon.utils.clip_global_norm([grad for p in trained for grad in p.list_grad()], 1.0)
        results += [param.grad(param.list_ctx()[0]).asnumpy() for param in trained]
        trainer.update(1)
    return results + [param.data(param.list_ctx()[0]).asnumpy() for param in params.values()]


@pytest.mark.parametrize("way", ["eager", "hybridized", "exact"])
@pytest.mark.parametrize("kind", KINDS)
def test_fine_tuning_on_two_devices_has_the_bits_of_one(kind, way):
    results = []
    for placed in (False, True):
        net = network(kind)
        if placed:
            net.place({r"encoder\.layers\.1|head": DEVICES[1]}, verbose=False)
        if way != "eager":
            net.hybridize(exact=way == "exact")
        results.append(trained(net))
    same_bits(results[1], results[0])


def test_both_ways_to_write_a_network_compute_the_same(tmp_path):
    path, found = str(tmp_path / "encoder.params"), []
    for kind in KINDS:
        net = network(kind)
        net.save_parameters(path) if kind == "F" else net.load_parameters(path)
        with autograd.record(train_mode=False):
            scores = net(*arrays())
        scores.backward()
        params = [p for p in net.collect_params().values() if p.grad_req != "null"]
        found.append([scores.asnumpy(), *[param.grad().asnumpy() for param in params]])
    assert len(found[0]) == len(found[1])
    for old, new in zip(*found, strict=True):
        onp.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_frozen_layers(kind, hybridize):
    net = network(kind, frozen=1)
    if hybridize:
        net.hybridize()
    values = arrays()
    other = np.where(np.arange(6) < values[2].reshape(-1, 1), values[0], np.full_like(values[0], 5))
    assert (other != values[0]).any()
    same_bits(net(other, *values[1:]).asnumpy(), net(*values).asnumpy())
    with autograd.record():
        loss = net(*values).sum()
    loss.backward()
    moved = {name for name, p in net.encoder.collect_params().items() if p.grad().asnumpy().any()}
    upper = {*net.encoder.layers[1].collect_params()}
    assert moved and moved <= upper


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_other_sizes_and_replicas(kind):
    net = network(kind)
    net.hybridize()
    with autograd.predict_mode():
        whole = net(*arrays()).asnumpy()
        net.collect_params().reset_ctx(DEVICES)
        parts = [gluon.utils.split_and_load(x, DEVICES) for x in arrays()]
        scores = [net(*inputs) for inputs in zip(*parts)]
        assert [part.ctx for part in scores] == DEVICES
        found = onp.concatenate([part.asnumpy() for part in scores])
        short = net(*[x[:1, :3] if x.ndim == 2 and x.shape[1] == 6 else x[:1] for x in arrays()])
    onp.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-6)
    assert short.shape == (1, 3)


def test_masked_tokens_are_replaced():
    """Writes of a text model that predicts hidden tokens."""
    tokens, picked = np.array(TOKENS), np.array([[0, 1, 3], [2, 0, 3]])
    found = npx.index_update(tokens, picked, np.array([10, 10, 10]))
    expected = TOKENS.copy()
    expected[[0, 1, 3], [2, 0, 3]] = 10
    same_bits(found.asnumpy(), expected.astype(found.dtype))
    net = network("2.0").encoder
    x = net(found, np.array(SEGMENTS), np.array(LENGTHS))
    chosen = npx.gather_nd(x, picked)
    same_bits(chosen.asnumpy(), x.asnumpy()[[0, 1, 3], [2, 0, 3]])
