"""Small networks over devices, and their training results."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.gluon.model_zoo import text
from support.devices import on

STEPS = 20
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3},
    "adam": {"learning_rate": 0.01},
}


class Placed(gluon.HybridBlock):
    """Base class of the networks below. `places` maps each child to its device."""

    def __init__(self, places, prefix="net_"):
        super().__init__(prefix=prefix)
        self.places = places
        with self.name_scope():
            self.make()

    def start(self):
        for name, child in self._children.items():
            child.initialize(mx.init.Xavier(), ctx=self.places.get(name, on(0)))


class Chain(Placed):
    """A chain of layers with dropout, over any number of devices."""

    names = ["a", "b", "c"]

    def make(self):
        self.a = nn.Dense(8, activation="tanh")
        self.b = nn.Dense(8, activation="relu")
        self.c = nn.Dense(4)
        self.drop = nn.Dropout(0.3)

    def hybrid_forward(self, F, x):
        for name in self.names:
            x = getattr(self, name)(x.as_in_context(self.places[name]))
            x = self.drop(x) if name != "c" else x
        return x


class BackAndForth(Placed):
    """A network that visits every device twice."""

    names = ["a", "b", "c"]

    def make(self):
        self.a = nn.Dense(8, in_units=6)
        self.b = nn.Dense(8, in_units=8)
        self.c = nn.Dense(8, in_units=8)
        self.drop = nn.Dropout(0.2)

    def hybrid_forward(self, F, x):
        x = self.a(x.as_in_context(self.places["a"]))
        y = self.b(F.tanh(x).as_in_context(self.places["b"]))
        z = self.c(self.drop(y).as_in_context(self.places["c"]))
        z = self.b(F.relu(z).as_in_context(self.places["b"]))
        return x + z.as_in_context(self.places["a"])


class Branches(Placed):
    """Branches on several devices, joined on the first."""

    names = ["stem", "left", "right", "head"]

    def make(self):
        self.stem = nn.Dense(8, activation="tanh")
        self.left = nn.HybridSequential()
        self.left.add(nn.Dense(8, activation="relu"), nn.Dropout(0.5), nn.Dense(6))
        self.right = nn.HybridSequential()
        self.right.add(nn.Dense(6), nn.LayerNorm())
        self.head = nn.Dense(4)

    def hybrid_forward(self, F, x):
        x = self.stem(x.as_in_context(self.places["stem"]))
        left = self.left(x.as_in_context(self.places["left"]))
        right = self.right(x.as_in_context(self.places["right"]))
        joined = F.concat(*[y.as_in_context(self.places["head"]) for y in (left, right)], dim=1)
        return self.head(joined)


class Shared(Placed):
    """One weight used on two devices: it is copied, and its gradient is the sum of both uses."""

    names = ["embed", "middle"]

    def make(self):
        self.embed = Tied(12, 6)
        self.middle = nn.Dense(6, activation="tanh")

    def hybrid_forward(self, F, x):
        tokens = F.floor(F.abs(x) * 11)
        y = self.middle(self.embed(tokens).as_in_context(self.places["middle"]))
        return self.embed.decode(y)


class Tied(gluon.HybridBlock):
    def __init__(self, vocab, units, **kwargs):
        super().__init__(**kwargs)
        self.vocab, self.units = vocab, units
        self.weight = self.params.get("weight", shape=(vocab, units))

    def hybrid_forward(self, F, tokens, weight):
        return F.Embedding(tokens, weight, input_dim=self.vocab, output_dim=self.units)

    def decode(self, x):
        weight = self.weight.data(self.weight.list_ctx()[0]).as_in_context(x.context)
        return mx.nd.FullyConnected(x, weight, num_hidden=self.vocab, no_bias=True)


class Recurrent(Placed):
    """A language model: embedding and first LSTM, then second LSTM and decoder on another
    device."""

    names = ["embed", "lstm1", "lstm2", "decoder"]

    def make(self):
        self.embed = nn.Embedding(20, 6)
        self.lstm1 = rnn.LSTM(6, input_size=6)
        self.lstm2 = rnn.LSTM(6, input_size=6)
        self.decoder = nn.Dense(20, in_units=6, flatten=False)
        self.drop = nn.Dropout(0.2)

    def hybrid_forward(self, F, x):
        tokens = F.floor(F.abs(x) * 19)
        out = self.lstm1(self.embed(tokens).as_in_context(self.places["lstm1"]))
        out = self.lstm2(self.drop(out).as_in_context(self.places["lstm2"]))
        return self.decoder(out.as_in_context(self.places["decoder"]))


NETS = {net.__name__: net for net in (Chain, BackAndForth, Branches, Shared, Recurrent)}


def place(kind, devices):
    """Spreads the children over `devices` devices in order; children without parameters are
    omitted."""
    return {name: on(i * devices // len(kind.names)) for i, name in enumerate(kind.names)}


def train(kind, devices, optimizer, hybridize=None, steps=STEPS):
    """Returns losses and final parameters."""
    mx.random.seed(9)
    net = kind(place(kind, devices))
    net.start()
    if hybridize is not None:
        net.hybridize(**hybridize)
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]))
    draw = np.random.RandomState(0)
    losses = []
    for _ in range(steps):
        x = mx.nd.array(draw.uniform(-1, 1, (5, 6)).astype("float32"))
        with autograd.record():
            y = net(x)
            loss = (y * y).mean()
        loss.backward()
        gluon.utils.clip_global_norm(
            [p.grad() for p in net.collect_params().values()], 0.5, check_isfinite=False
        )
        trainer.step(1)
        losses.append(loss)
    values = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    return [loss.asscalar() for loss in losses], values


# Small language models, prompts and options for the tests of generation
DECODERS = {
    "llama": dict(rotary={}, kv_heads=2),
    "llama3": dict(
        rotary=dict(
            scaling="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_length=16,
        )
    ),
    "gpt2": dict(norm="layer", positions=100, gated=False, activation="gelu_tanh", tied=True),
    "gemma": dict(
        rotary={},
        window=[4, 0],
        softcap=5.0,
        head_softcap=3.0,
        embed_scale=4.0,
        norm_offset=1.0,
        sandwich=True,
        qk_norm=True,
    ),
    "olmo2": dict(rotary={}, kv_heads=2, sandwich=True, pre_norm=False, qk_norm="whole"),
    "mixtral": dict(rotary={}, experts=dict(hidden=48, experts=4, k=2)),
}
PROMPTS = [[1, 5, 3, 9, 11, 2, 7, 8, 1, 4, 3, 2, 6, 6], [7, 2, 5]]
DRAWN = dict(temperature=0.9, top_k=20, top_p=0.9, repetition_penalty=1.3)


def decoder(name="llama", seed=3):
    mx.random.seed(seed)
    net = text.Decoder(
        97, units=32, layers=2, heads=4, hidden=48, deviation=0.5, **DECODERS[name], prefix="net_"
    )
    net.initialize(ctx=on(0))
    return net


def without_cache(net, prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        scores = net(nd.array([tokens], dtype="int32", ctx=on(0)))
        tokens.append(int(scores[0, -1].asnumpy().argmax()))
    return tokens[len(prompt) :]


def llama_pair(folder, seed=0, **more):
    """Returns the package torch, and the same Llama of transformers and of this package."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.35,
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **more})).eval()
    model.save_pretrained(folder)
    return torch, model, text.from_pretrained(str(folder))
