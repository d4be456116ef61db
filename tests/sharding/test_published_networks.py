"""Networks of the model zoo, divided over four devices by at most five annotated arrays, compute
the same as on one device, or the error names the annotation that prevents it."""

import re

import numpy as np
import pytest

from mpgluon import MXNetError, autograd, gluon, init, nd, random
from mpgluon.gluon import nn, rnn
from mpgluon.gluon._tree import parameters_by_path
from mpgluon.gluon.model_zoo import text, vision
from support.devices import on
from support.meshes import arrays, cast, check, flat, gradients, mesh_of, values

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
THIN = [8, 8, 16, 24, 32]
SMALL = {"vocab_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
LLAMA = {
    **SMALL,
    "model_type": "llama",
    "intermediate_size": 48,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 96,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.2,
}
BERT = {
    **SMALL,
    "model_type": "bert",
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


class LanguageModel(gluon.HybridBlock):
    """The word language model of GluonNLP."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embed = nn.Embedding(96, 32)
            self.dropout = nn.Dropout(0.0)
            self.lstm = rnn.LSTM(32, num_layers=2, layout="NTC", input_size=32)
            self.head = nn.Dense(96, flatten=False, params=self.embed.params)

    def hybrid_forward(self, F, x):
        return self.head(self.dropout(self.lstm(self.dropout(self.embed(x)))))


class EncoderCell(gluon.HybridBlock):
    """A cell of GluonNLP's BERT: interleaved projections (time, batch, features)."""

    def __init__(self, heads=4, units=32, dropout=0.2):
        super().__init__()
        self._heads = heads
        with self.name_scope():
            self.qkv = nn.Dense(3 * units, in_units=units, flatten=False)
            self.dropout = nn.Dropout(dropout)
            self.proj = nn.Dense(units, in_units=units, flatten=False)
            self.norm = nn.LayerNorm(in_channels=units)
            self.up = nn.Dense(2 * units, in_units=units, flatten=False)
            self.gelu = nn.GELU()
            self.down = nn.Dense(units, in_units=2 * units, flatten=False)
            self.out_norm = nn.LayerNorm(in_channels=units)

    def hybrid_forward(self, F, x):
        qkv = self.qkv(x)
        scores = F.contrib.interleaved_matmul_selfatt_qk(qkv, heads=self._heads)
        weights = self.dropout(F.softmax(scores))
        mixed = F.contrib.interleaved_matmul_selfatt_valatt(qkv, weights, heads=self._heads)
        x = self.norm(x + self.proj(mixed))
        return self.out_norm(x + self.down(self.gelu(self.up(x))))


class Transformer(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embed = nn.Embedding(96, 32)
            self.cells = nn.HybridSequential()
            self.cells.add(EncoderCell(), EncoderCell())
            self.head = nn.Dense(96, in_units=32, flatten=False)

    def hybrid_forward(self, F, x):
        return self.head(self.cells(self.embed(x).swapaxes(0, 1)).swapaxes(0, 1))


def zoo(name):
    return lambda: vision.get_model(name, classes=12)


IMAGES, LARGE, TOKENS = (8, 3, 64, 64), (4, 3, 224, 224), (8, 12)
# Layers of the decoders and encoders of the zoo that are cut. The others follow.
CUT = [r"layers\.\d\.(attention\.query|mlp\.up)\.weight"]
# Networks: how to make them, the shape of the batch, and patterns of at most five parameters, or
# None to cut some of the convolutions.
NETWORKS = {
    "resnet_v1": (
        lambda: vision.ResNetV1(vision.BasicBlockV1, [1] * 4, THIN, classes=12),
        IMAGES,
        None,
    ),
    "resnet_v2": (
        lambda: vision.ResNetV2(vision.BottleneckV2, [1] * 4, THIN, classes=12),
        IMAGES,
        None,
    ),
    "mobilenet": (zoo("mobilenet0.25"), IMAGES, None),
    "mobilenet_v2": (zoo("mobilenetv2_0.25"), IMAGES, None),
    "densenet": (lambda: vision.DenseNet(8, 4, [1] * 4, bn_size=2, classes=12), LARGE, None),
    "squeezenet": (zoo("squeezenet1.1"), LARGE, None),
    "vgg": (zoo("vgg11_bn"), (8, 3, 32, 32), None),
    "resnet18": (zoo("resnet18_v1"), IMAGES, None),
    "llama": (lambda: text.from_config(LLAMA), TOKENS, [*CUT, "embed.weight"]),
    "gpt2": (lambda: text.from_config(GPT2), TOKENS, CUT),
    "bert": (lambda: text.from_config(BERT), TOKENS, [*CUT, "embed.tokens.weight"]),
    "language_model": (LanguageModel, TOKENS, ["embed.weight"]),
    "transformer": (Transformer, TOKENS, [r"cells.\d.(proj.weight|up.weight)", "embed.weight"]),
}
SLOW = {"squeezenet", "vgg", "resnet18"}
MESHES = {
    "data": {"data": 4},
    "shard": {"shard": 4},
    "model": {"model": 4},
    "both": {"data": 2, "model": 2},
}
CASES = [
    pytest.param(name, kind, id=f"{name}-{kind}", marks=[pytest.mark.slow] * (name in SLOW))
    for name in NETWORKS
    for kind in MESHES
]


def inputs_of(name, dtype):
    shape, draw = NETWORKS[name][1], np.random.RandomState(5)
    if shape is TOKENS:
        return nd.array(draw.randint(0, 96, shape), dtype="int32", ctx=on(0))
    return nd.array(draw.uniform(-1, 1, shape), ctx=on(0)).astype(dtype)


def make(name, kind=None, partition="fast", dtype="float64"):
    """Returns a hybridized network, its input and the patterns that are annotated."""
    create, shape, patterns = NETWORKS[name]
    random.seed(3)
    net = create()
    net.initialize(init.Xavier(), ctx=on(0))
    net.cast(dtype)
    x = inputs_of(name, dtype)
    net(x[:1])  # completes shapes
    plan = {}
    if kind is not None:
        by_path = parameters_by_path(net)
        if patterns is None:
            weights = [p for p, w in by_path.items() if len(w.shape) == 4 and w.shape[0] % 4 == 0]
            chosen = weights[:: -(-len(weights) // 4)]
        else:
            chosen = [p for p in by_path if any(re.fullmatch(k, p) for k in patterns)]
        if "model" in MESHES[kind]:
            columns = {p: (None, "model") for p in chosen if "proj" in p}
            plan = {re.escape(p): columns.get(p, "model") for p in chosen}
        if "data" in MESHES[kind]:
            plan = {"data0": "data", **dict(list(plan.items())[:4])}
        assert len(plan) <= 5
        mesh_of(MESHES[kind]).partition(net, plan or None, partition)
    net.hybridize()
    return net, x, plan


def train(net, x, rate=0.005, steps=3):
    """Returns losses, outputs, gradients, parameters and predictions, by name."""
    random.seed(11)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate, "momentum": 0.9})
    draw, found = np.random.RandomState(7), {}
    for step in range(steps):
        with autograd.record():
            outputs = flat(net(x))
            labels = [
                nd.array(draw.randint(0, out.shape[-1], out.shape[:-1]), ctx=on(0))
                for out in outputs
            ]
            losses = [LOSS(out, label) for out, label in zip(outputs, labels)]
        autograd.backward(losses)
        for i, (out, loss) in enumerate(zip(outputs, losses)):
            found[f"{step} output {i}"], found[f"{step} loss {i}"] = out.asnumpy(), loss.asnumpy()
        found.update({f"{step} gradient {k}": g for k, g in named(cast(gradients, net)).items()})
        trainer.step(len(x))
    found.update(named(cast(values, net)))
    found.update({f"prediction {i}": out.asnumpy() for i, out in enumerate(flat(net(x)))})
    return found


def named(found):
    """Returns arrays by names without the number of the network."""
    return {re.sub(r"^[a-z]+[a-z0-9]*?\d+_", "", k): v for k, v in arrays(found).items()}


@pytest.fixture(scope="module")
def on_one_device():
    """Returns a function that trains a network on one device, once."""
    found = {}

    def trained(name, dtype="float64"):
        if (name, dtype) not in found:
            net, x, _ = make(name, dtype=dtype)
            found[name, dtype] = train(net, x)
        return found[name, dtype]

    return trained


@pytest.mark.parametrize("name, kind", CASES)
def test_a_divided_network_trains_as_on_one_device(name, kind, on_one_device):
    net, x, _ = make(name, kind)
    check(train(net, x), on_one_device(name))


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in SLOW])
@pytest.mark.parametrize("kind", ["data", "both"])
def test_exact_networks_have_equal_bits_or_name_the_annotation(name, kind, on_one_device):
    net, x, plan = make(name, kind, "exact", "float32")
    try:
        found = train(net, x)
    except MXNetError as error:
        message = re.search(r"the annotation '([^']*)' in block (\S+)", str(error))
        assert message, error
        axes, block = message.groups()
        assert axes.strip(",") in ("data", "model")
        block = block.partition(".")[2]
        assert axes == "data" or any(re.sub(r"\\", "", p).startswith(block) for p in plan), error
        return
    for key, array in on_one_device(name, "float32").items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)


@pytest.mark.parametrize("axes", ["data", (None, "data")], ids=["batch", "channels"])
def test_exact_batch_norm_in_training_names_the_annotation(axes):
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=8))
    net.initialize(ctx=on(0))
    mesh_of({"data": 4}).partition(net, {"data0": axes}, "exact")
    net.hybridize()
    x = nd.ones((8, 8, 2), ctx=on(0))
    with pytest.raises(MXNetError, match=r"BatchNorm in block .* the annotation ',?data'"):
        with autograd.train_mode():
            net(x)
    assert net(x).shape == x.shape  # given statistics keep bits


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("block", [vision.BasicBlockV1, vision.BasicBlockV2])
def test_fused_convolutions_train_as_on_one_device(block, kind):
    """In single precision, images have channels last, BatchNorm is fused with relu and additions,
    and Winograd's algorithm computes convolutions."""
    found = []
    for divided in (False, True):
        random.seed(3)
        net = gluon.nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(nn.Conv2D(32, 3, padding=1, in_channels=3, use_bias=False))
            net.add(nn.BatchNorm(in_channels=32), nn.Activation("relu"), nn.MaxPool2D(2))
            net.add(block(32, 1, in_channels=32), block(32, 1, in_channels=32))
            net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(8, in_units=32))
        net.initialize(init.Xavier(), ctx=on(0))
        x = nd.array(np.random.RandomState(5).uniform(-1, 1, (8, 3, 32, 32)), ctx=on(0))
        net(x[:1])  # completes shapes
        if divided:
            first = "4.body.0.weight" if block is vision.BasicBlockV1 else "4.conv1.weight"
            plan = {"data0": "data"} if "data" in MESHES[kind] else {}
            if "model" in MESHES[kind]:
                plan[first] = "model"
            mesh_of(MESHES[kind]).partition(net, plan or None)
        net.hybridize()
        found.append(train(net, x, steps=1))
    for key, array in found[0].items():
        scale = np.abs(array).max(initial=0.1)
        assert np.abs(found[1][key] - array).max(initial=0) <= 2e-4 * scale, key


def test_a_divided_vocabulary_is_looked_up_in_parts():
    net, x, _ = make("language_model", "model", dtype="float32")
    net(x)
    report = net.compiled().shardings()
    moves = {(move["kind"], move["op"]) for move in report.transfers}
    assert ("reduce", "Embedding") in moves and ("gather", "_contrib_sharded") not in moves
