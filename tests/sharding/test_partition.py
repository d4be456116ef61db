"""Mesh.partition: networks that are divided over devices compute the same as on one device."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, autograd, gluon, nd, parallel
from mpgluon.gluon import nn, rnn
from mpgluon.gluon.model_zoo import text
from support.devices import on
from support.meshes import (
    ADAM,
    SGD,
    backward,
    build,
    check,
    gradients,
    inputs,
    mesh_of,
    trained,
    values,
)


def stack(*layers):
    """Returns a function that creates a network of layers."""

    def make():
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(*[layer() for layer in layers])
        return net

    return make


MLP = stack(
    lambda: nn.Dense(64, in_units=48, activation="relu"),
    lambda: nn.LayerNorm(in_channels=64),
    lambda: nn.Dense(40, in_units=64),
    lambda: nn.Dense(10, in_units=40),
)
CNN = stack(
    lambda: nn.Conv2D(16, 3, padding=1, in_channels=4, use_bias=False),
    lambda: nn.BatchNorm(in_channels=16),
    lambda: nn.Activation("relu"),
    lambda: nn.MaxPool2D(2),
    lambda: nn.Conv2D(16, 3, padding=1, in_channels=16, groups=4),
    lambda: nn.GlobalAvgPool2D(),
    lambda: nn.Flatten(),
    lambda: nn.Dense(5, in_units=16),
)
# The default plan would divide parameters of this size.
WIDE = stack(
    lambda: nn.Dense(1100, in_units=8, use_bias=False),
    lambda: nn.BatchNorm(in_channels=1100),
    lambda: nn.Dense(4, in_units=1100),
)
DROPPED = stack(
    lambda: nn.Embedding(60, 32),
    lambda: nn.Dense(40, in_units=32, flatten=False),
    lambda: nn.Dropout(0.5),
    lambda: nn.Dense(40, in_units=40, flatten=False, activation="relu"),
    lambda: nn.Dropout(0.3),
)


class Block(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.make()


class Recurrent(Block):
    def make(self):
        self.layer = rnn.LSTM(16, input_size=8, num_layers=2, bidirectional=True)
        self.head = nn.Dense(6, in_units=32, flatten=False)

    def hybrid_forward(self, F, x):
        return self.head(self.layer(x))


class Attention(Block):
    def make(self):
        self.qkv = nn.Dense(96, in_units=32, flatten=False)
        self.out = nn.Dense(32, in_units=32, flatten=False, use_bias=False)
        self.norm = nn.LayerNorm(in_channels=32)

    def hybrid_forward(self, F, x):
        def heads(a):
            return F.reshape(F.transpose(F.reshape(a, (0, 0, 4, 8)), (0, 2, 1, 3)), (-3, 0, 0))

        query, key, value = map(heads, F.split(self.qkv(x), 3, axis=-1))
        scores = F.softmax(F.batch_dot(query, key, transpose_b=True) * 0.3)
        mixed = F.reshape(F.batch_dot(scores, value), (-4, -1, 4, 0, 0))
        return self.norm(x + self.out(F.reshape(F.transpose(mixed, (0, 2, 1, 3)), (0, 0, -3))))


class Tied(Block):
    def make(self):
        self.embed = nn.Embedding(60, 32)
        self.body = nn.Dense(32, in_units=32, flatten=False)
        self.head = nn.Dense(
            60, in_units=32, flatten=False, use_bias=False, params=self.embed.params
        )

    def hybrid_forward(self, F, x):
        return self.head(self.body(self.embed(x)))


class Several(Block):
    def make(self):
        self.a, self.b = nn.Dense(36, in_units=12), nn.Dense(36, in_units=7)
        self.c = nn.Dense(5, in_units=36)

    def hybrid_forward(self, F, x, y):
        hidden = F.tanh(self.a(x) * self.b(y))
        return self.c(hidden), F.sum(hidden, axis=1), F.max(F.relu(hidden), axis=1), hidden


class Shapes(Block):
    def make(self):
        self.a = nn.Dense(36, in_units=12, flatten=False)

    def forward(self, x):
        rows, steps, _ = x.shape
        y = self.a(x).reshape((rows, steps, 6, 6)).transpose((0, 2, 1, 3))
        y = y.reshape((rows * 6, steps * 6))
        return y.mean(axis=1).reshape((rows, 6)) / steps, y.sum()


class Loop(Block):
    kind = "foreach"

    def make(self):
        self.a, self.b = nn.Dense(40, in_units=32), nn.Dense(32, in_units=40)

    def hybrid_forward(self, F, x):
        if self.kind == "cond":
            y = self.b(self.a(x[0]))
            return F.contrib.cond(F.sum(x) < 0, lambda: y * 2, lambda: self.b(self.a(y)))

        def step(item, state):
            y = F.tanh(self.b(self.a(item)) + state)
            return y, y

        return F.contrib.foreach(step, x, F.zeros_like(x[0]))[0]


class Branch(Loop):
    kind = "cond"


class Experts(Block):
    def make(self):
        self.moe = nn.MoE(16, 24, experts=8, k=2, in_units=16, aux_loss=0.01)
        self.norm = nn.RMSNorm(in_channels=16)

    def hybrid_forward(self, F, x):
        return x + self.moe(self.norm(x))


LLAMA = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 96,
    "n_embd": 64,
    "n_layer": 1,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
SPLIT = {
    r".*attention\.(query|key|value)\.weight": "model",
    r".*attention\.proj\.weight": (None, "model"),
    r".*mlp\.(gate|up)\.weight": "model",
    r".*mlp\.down\.weight": (None, "model"),
}
HALVES = {"model": 2}
QUARTERS = {
    key: tuple(entry and (entry, "shard") for entry in ([axes] if axes == "model" else axes))
    for key, axes in SPLIT.items()
}
# Networks: how to make them, the shapes of their batches (and the vocabulary), and plans.
NETWORKS = {
    "mlp": (
        MLP,
        [[(12, 48)], [(5, 48)], [(1, 48)]],
        None,
        [
            (HALVES, {"0.weight": "model"}),
            (HALVES, {"0.weight": (None, "model"), "data0": (None, "model")}),
            (HALVES, {"0.weight": "model", "0.bias": "model", "2.weight": (None, "model")}),
            ({"model": [3, 1]}, {".*weight": "model", "1.gamma": "model"}),
            ({"data": 2, "model": 2}, {"data0": ("data", "model"), "3.weight": "model"}),
            ({"data": 2, "shard": 2}, {"data0": (("shard", "data"),), ".*weight": "shard"}),
        ],
    ),
    "cnn": (
        CNN,
        [[(6, 4, 8, 8)]],
        None,
        [
            (HALVES, {".*weight": "model", "1.gamma": "model"}),
            (HALVES, {"0.weight": (None, "model"), "data0": (None, "model")}),
            (HALVES, {"data0": (None, None, "model"), "7.weight": (None, "model")}),
        ],
    ),
    "wide": (WIDE, [[(6, 8)]], None, [(HALVES, {"1.(gamma|beta)": "model", "0.weight": "model"})]),
    "dropped": (
        DROPPED,
        [[(4, 6)]],
        60,
        [(HALVES, {"1.weight": "model", "0.weight": (None, "model")})],
    ),
    "recurrent": (
        Recurrent,
        [[(5, 4, 8)]],
        None,
        [
            ({"data": 2}, {"data0": (None, "data")}),
            ({"shard": 2}, {"layer.*weight": "shard", "data0": (None, "shard")}),
            (HALVES, {"layer.*weight": "model:4", "head.weight": (None, "model")}),
        ],
    ),
    "attention": (
        Attention,
        [[(4, 6, 32)]],
        None,
        [
            (HALVES, {"qkv.weight": "model:3:8", "out.weight": (None, "model")}),
            (HALVES, {"qkv.weight": "model", "qkv.bias": "model:3"}),
            ({"model": [3, 1]}, {"qkv.weight": "model:3:8", "out.weight": (None, "model")}),
            ({"context": 2}, {"data0": (None, "context")}),
            (
                {"data": 2, "context": 2, "model": 2},
                {"data0": ("data", "context"), "qkv.weight": "model:3:8"},
            ),
        ],
    ),
    "tied": (
        Tied,
        [[(4, 6)]],
        60,
        [
            (HALVES, {"embed.weight": "model"}),
            ({"data": 2, "model": 2}, {"embed.weight": (None, "model"), "data0": "data"}),
        ],
    ),
    "several": (
        Several,
        [[(6, 12), (6, 7)]],
        None,
        [
            ({"data": 2, "model": 3}, {"data1": "data", "c.weight": (None, "model")}),
            ({"data": 2, "model": 2}, {"data0": "data", "[ab].weight": "model"}),
        ],
    ),
    "shapes": (
        Shapes,
        [[(6, 4, 12)]],
        None,
        [
            ({"model": 3}, {"a.weight": "model:1:6"}),
            ({"data": 2, "context": 2}, {"data0": ("data", "context")}),
        ],
    ),
    "loop": (
        Loop,
        [[(3, 4, 32)]],
        None,
        [
            ({"data": 2}, {"data0": (None, "data")}),
            (HALVES, {"a.weight": "model", "b.weight": (None, "model")}),
        ],
    ),
    "experts": (
        Experts,
        [[(4, 5, 16)], [(1, 2, 16)]],
        None,
        [
            ({"expert": 2}, {"moe.(gate|up|down)_weight": "expert"}),
            ({"expert": [5, 2, 1]}, {"moe.(gate|up|down)_weight": "expert"}),
            (
                {"data": 2, "expert": 2, "model": 2},
                {
                    "data0": "data",
                    "moe.down_weight": "expert",
                    "moe.(gate|up)_weight": (None, "model"),
                },
            ),
        ],
    ),
    "branch": (Branch, [[(3, 4, 32)]], None, [({"data": 2}, {"data0": (None, "data")})]),
    "llama": (
        lambda: text.from_config(LLAMA),
        [[(4, 16)], [(3, 8)]],
        96,
        [
            (HALVES, SPLIT),
            ({"data": 2, "model": 2}, {**SPLIT, "data0": "data", "embed.weight": (None, "model")}),
            ({"context": 2}, {"data0": (None, "context")}),
            ({"shard": 2, "model": 2}, {**SPLIT, "data0": "shard", "head.weight": "shard"}),
            ({"shard": 2, "model": 2}, {**QUARTERS, "data0": "shard", "head.weight": "shard"}),
            ({"data": 2, "model": 2, "shard": 2}, {**QUARTERS, "data0": (("data", "shard"),)}),
        ],
    ),
    "gpt2": (
        lambda: text.from_config(GPT2),
        [[(4, 16)]],
        96,
        [(HALVES, {key: axes for key, axes in SPLIT.items() if "gate" not in key})],
    ),
}
MESHES = [{"data": 2}, {"shard": 2}, {"shard": [3, 1]}, {"shard": 3}, {"data": 2, "shard": 2}]
CASES = [
    pytest.param(name, axes, plan, id=f"{name}-{number}")
    for name, (*_, plans) in NETWORKS.items()
    for number, (axes, plan) in enumerate([*[(axes, None) for axes in MESHES], *plans])
]


def batches_of(name, dtype="float64"):
    _, shapes, high, _ = NETWORKS[name]
    return [inputs(*batch, dtype=dtype, high=high) for batch in shapes]


@pytest.fixture(scope="module")
def on_one_device():
    """Returns a function that trains a network on one device, once."""
    found = {}

    def train(name, optimizer=SGD, dtype="float64"):
        key = name, optimizer[0], dtype
        if key not in found:
            net = build(NETWORKS[name][0], dtype=dtype)
            found[key] = trained(net, batches_of(name, dtype), optimizer)
        return found[key]

    return train


@pytest.mark.parametrize("name, axes, plan", CASES)
def test_a_partitioned_network_trains_as_on_one_device(name, axes, plan, on_one_device):
    net = build(NETWORKS[name][0], axes, plan)
    check(trained(net, batches_of(name)), on_one_device(name))


PLANS = [
    ({"data": 2, "shard": 2}, None),
    ({"data": 2, "model": 2}, {"data0": "data", "0.weight": "model", "2.weight": (None, "model")}),
    (
        {"shard": 2, "model": 2},
        {"data0": "shard", "0.weight": "model+shard", "2.weight": (None, "model+shard")},
    ),
]


@pytest.mark.parametrize("axes, plan", PLANS)
@pytest.mark.parametrize(
    "flags",
    [
        {"active": False},
        {"recompute": True},
        {"static_alloc": True, "static_shape": True},
        {"pipeline": mx.parallel.Pipeline(2)},
    ],
    ids=str,
)
def test_options_of_hybridize(flags, axes, plan, on_one_device):
    check(trained(build(MLP, axes, plan, **flags), batches_of("mlp")), on_one_device("mlp"))


@pytest.mark.parametrize("axes, plan", PLANS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype, axes, plan, on_one_device):
    net = build(MLP, axes, plan, dtype=dtype)
    assert net[0].weight.dtype == net[0].shard0_weight.dtype
    check(trained(net, batches_of("mlp", dtype)), on_one_device("mlp", dtype=dtype), dtype)


@pytest.mark.parametrize("axes, plan", PLANS)
def test_adam(axes, plan, on_one_device):
    net = build(MLP, axes, plan)
    check(trained(net, batches_of("mlp"), ADAM), on_one_device("mlp", ADAM))


@pytest.mark.parametrize("axes, plan", PLANS)
def test_added_gradients(axes, plan):
    found = []
    for where in ((), (axes, plan)):
        net = build(MLP, *where)
        net.collect_params().setattr("grad_req", "add")
        found.append(trained(net, batches_of("mlp"), None))
    check(found[1], found[0])


@pytest.mark.parametrize("axes, plan", PLANS)
def test_numpy_arrays(axes, plan, on_one_device):
    batches = [[x.as_np_ndarray() for x in batch] for batch in batches_of("mlp")]
    with mx.util.np_shape(True), mx.util.np_array(True):
        found = trained(build(MLP, axes, plan), batches)
    check(found, on_one_device("mlp"))


@pytest.mark.parametrize("axes, plan", PLANS)
def test_gradients_of_gradients(axes, plan):
    found = []
    for where in ((), (axes, plan)):
        net, (x,) = build(MLP, *where), inputs((12, 48))
        x.attach_grad()
        with autograd.record():
            (gradient,) = autograd.grad((net(x) ** 2).sum(), [x], create_graph=True)
            penalty = (gradient**2).sum()
        penalty.backward()
        found.append({"penalty": penalty.asnumpy(), "x": x.grad.asnumpy(), **gradients(net)})
    check(found[1], found[0])


def test_each_of_several_equal_maxima_gets_the_gradient():
    class Maximum(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.max(F.relu(x), axis=1), F.min(F.abs(x), axis=0), F.sum(x)

    (x,), found = inputs((4, 8)), []
    x[:] = nd.round(x)
    x.attach_grad()
    for where in ((), ({"data": 2, "model": 2}, {"data0": ("data", "model")})):
        trained(build(Maximum, *where), [[x]], None, 1)
        found.append({"x": x.grad.asnumpy()})
    check(found[1], found[0])


def test_networks_are_initialized_with_the_same_values_before_and_after():
    """Even on devices other than the default."""
    mesh = mesh_of({"shard": 2}, first=2)
    mx.random.seed(3)
    net = MLP()
    mesh.partition(net)
    net.initialize(mx.init.Uniform(0.3))
    net.hybridize()
    assert net[0].bias.list_ctx() == [on(2)] and net[0].shard1_weight.list_ctx() == [on(3)]
    (x,) = inputs((4, 48), dtype="float32")
    wanted = build(MLP, dtype="float32")(x).asnumpy()
    np.testing.assert_allclose(net(x.as_in_context(on(2))).asnumpy(), wanted, atol=1e-5)
    with pytest.raises(ValueError, match="is placed on"):
        net.initialize(ctx=on(0), force_reinit=True)


@pytest.mark.parametrize(
    "name, axes, plan", [("llama", HALVES, SPLIT), ("gpt2", {"shard": 2}, None)]
)
def test_generation(name, axes, plan):
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    wanted = text.generate(build(NETWORKS[name][0], dtype="float32"), prompts, max_new=6)
    net = build(NETWORKS[name][0], axes, plan, dtype="float32")
    assert text.generate(net, prompts, max_new=6) == wanted


def test_inputs_of_a_network_within_another_block_are_divided():
    outer = nn.HybridSequential(prefix="outer_")
    outer.add(build(MLP, {"data": 2}), nn.Activation("tanh"))
    outer.hybridize()
    outer(*inputs((12, 48)))
    assert "(12, 48)\t0 data data" in outer.compiled()[0]["shardings"]


# --- Sums by trees --------------------------------------------------------------------------------

LEAVES = {
    "data": [{"data": 1}, {"data": 2}, {"data": 3}, {"data": 4}, {"data": [3, 1]}],
    "shard": [{"shard": 1}, {"shard": 3}, {"shard": 4}, {"shard": [1, 3]}],
    "data, model": [
        {"data": 1, "model": 1},
        {"data": 4, "model": 1},
        {"data": 1, "model": 2},
        {"data": [3, 1], "model": 2},
        {"data": 4, "model": 2},
    ],
}
TREES = {
    "mlp": {"data0": "data", "0.weight": "model", "2.weight": (None, "model")},
    "cnn": {"data0": "data", "(0|4|7).weight": "model"},
    "dropped": {"data0": "data", "1.weight": "model", "0.weight": (None, "model")},
    "recurrent": {"data0": (None, "data"), "head.weight": (None, "model")},
    "attention": {"data0": "data", "qkv.weight": "model:3:8", "out.weight": (None, "model")},
    "tied": {"data0": "data", "embed.weight": "model"},
    "several": {"data0": "data", "data1": "data", "[ab].weight": "model"},
    "loop": {"data0": (None, "data"), "a.weight": "model", "b.weight": (None, "model")},
    "experts": {"data0": "data", "moe.(gate|up|down)_weight": "model"},
    "llama": {**SPLIT, "data0": "data", "embed.weight": (None, "model")},
}


def equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(array).tobytes(), name


@pytest.mark.parametrize("axes", LEAVES)
@pytest.mark.parametrize("name", TREES)
def test_bits_do_not_depend_on_the_number_of_devices(name, axes):
    first, *others = LEAVES[axes]
    make, batches = NETWORKS[name][0], batches_of(name, "float32")
    leaves = {axis: 2 if axis == "model" else 4 for axis in first}
    plan = TREES[name] if "model" in first else None
    wanted = trained(build(make, first, plan, dtype="float32", leaves=leaves), batches, SGD)
    check(wanted, trained(build(make, dtype="float32"), batches, SGD), "float32")
    for mesh in others:
        net = build(make, mesh, plan, dtype="float32", leaves=leaves)
        equal(trained(net, batches, SGD), wanted)
    # The default plan cuts the steps of the loop, and loops are not divided along their steps.
    assert net.compiled().shardings().transfers or (name, plan) == ("loop", None)


def test_data_parallelism_and_sharded_storage_have_the_same_bits():
    """The batch has eight leaves in both cases."""
    make, batches = NETWORKS["mlp"][0], [inputs((16, 48), dtype="float32")]
    ways = [
        ({"data": 2}, {"data": 8}),
        ({"shard": 2}, {"shard": 8}),
        ({"data": 2, "shard": 2}, {"data": 4, "shard": 2}),
        ({"data": 1, "shard": 4}, {"data": 2, "shard": 4}),
    ]
    found = [trained(build(make, m, None, dtype="float32", leaves=n), batches) for m, n in ways]
    for other in found[1:]:
        equal(other, found[0])


@pytest.mark.parametrize("shares", [{"shard": 2}, {"data": 2, "shard": [2, 1]}], ids=str)
def test_levels_of_zero_have_the_same_bits(shares):
    make, batches = NETWORKS["mlp"][0], [inputs((16, 48), dtype="float32")]
    found = [trained(build(make, shares, None, dtype="float32", zero=n), batches) for n in (3, 2)]
    equal(*found)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("flags", [{"recompute": True}, {"static_alloc": True}], ids=str)
def test_half_precision_and_options_of_hybridize(dtype, flags):
    make, batches = NETWORKS["mlp"][0], batches_of("mlp", dtype)
    found = [
        trained(build(make, mesh, None, dtype=dtype, leaves=4, **flags), batches, ADAM)
        for mesh in ({"shard": 1}, {"shard": 2}, {"shard": [3, 1]})
    ]
    for other in found[1:]:
        equal(other, found[0])


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "lamb", "lars", "adafactor"])
def test_train_steps(optimizer, micro_batches):
    """Norms of whole parameters add up the parts of the leaves."""
    (x,) = batches_of("mlp", "float32")[0]
    label = nd.ones((12, 10), ctx=on(0))
    found = []
    for mesh in ({"shard": 1}, {"shard": 2}, {"shard": 4}):
        net = build(NETWORKS["mlp"][0], mesh, None, dtype="float32", leaves=4)
        trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01})
        loss, pipeline = gluon.loss.L2Loss(), parallel.Pipeline(micro_batches)
        step = parallel.TrainStep(net, loss, trainer, pipeline)
        losses = [step(x, label) for _ in range(3)]
        found.append({"losses": nd.stack(*losses).asnumpy(), **values(net)})
    for other in found[1:]:
        equal(other, found[0])


def test_checkpoints_go_on_with_the_same_bits_on_other_devices(tmp_path):
    def make(mesh):
        net = build(NETWORKS["mlp"][0], mesh, None, dtype="float32", leaves=4)
        return net, gluon.Trainer(net.collect_params(), *ADAM)

    def steps(net, trainer):
        for _ in range(2):
            backward(net, batches_of("mlp", "float32")[0])
            trainer.step(4)

    net, trainer = make({"shard": 4})
    steps(net, trainer)
    parallel.save(tmp_path, net, trainer)
    steps(net, trainer)
    for mesh in ({"shard": 1}, {"shard": [1, 3]}):
        other, its = make(mesh)
        parallel.load(tmp_path, other, its)
        steps(other, its)
        equal(values(other), values(net))


def test_a_device_gets_each_value_once():
    """Devices with several leaves share the values they receive, and add up before they send."""

    def copied(mesh, leaves):
        net = build(lambda: nn.Dense(64, in_units=32), mesh, {"data0": "data"}, leaves=leaves)
        net(*inputs((16, 32)))
        transfers = net.compiled().shardings().transfers
        return sorted((t["kind"], t["bytes"]) for t in transfers if t["op"] == "input")

    assert copied({"data": 2}, 8) == copied({"data": 2}, 2) == copied({"data": 2}, None) != []


def dense():
    net = nn.Dense(8, in_units=8)
    net.initialize(ctx=on(0))
    return net


@pytest.mark.parametrize(
    "options, error",
    [
        ({"sums": "trees"}, "sums must be 'order' or 'tree', not 'trees'"),
        ({"leaves": 1}, "1 leaves are too few for the 2 devices along 'data'; pass leaves"),
        ({"leaves": {"model": 2}}, "leaves names the axis 'model', but the mesh has data"),
        ({"leaves": 1024}, "the mesh has 1024 leaves, more than 512"),
        ({"partition": "exact"}, "sums='tree' .* partition='exact'"),
        ({"zero": 1}, "zero must be 3 or 2; for level 1, .* train replicas"),
        ({"zero": "3"}, "zero must be 3 or 2, not '3'"),
    ],
    ids=str,
)
def test_wrong_options(options, error):
    with pytest.raises(ValueError, match=error):
        mesh_of({"data": 2}).partition(dense(), {"data0": "data"}, **{"sums": "tree", **options})


@pytest.mark.parametrize("leaves", [2.0, True, "2", {"data": None}], ids=str)
def test_leaves_are_integers(leaves):
    with pytest.raises(TypeError, match="leaves must be integers, not"):
        mesh_of({"data": 2}).partition(dense(), {"data0": "data"}, sums="tree", leaves=leaves)


def test_devices_of_other_meshes_must_differ():
    """A device may be at several places of a mesh with trees only."""
    x = nd.ones((4, 4), ctx=on(0))

    class Twice(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.contrib.sharded(x, axes="data", mesh="data=2;cpu(0),cpu(0)") * 2

    net = Twice()
    net.hybridize()
    with pytest.raises(MXNetError, match="different devices"):
        net(x)


class Joined(Block):
    def make(self):
        self.a = nn.Dense(6, in_units=6, flatten=False)

    def hybrid_forward(self, F, x):
        x = self.a(x)
        parts = F.slice_axis(x, axis=1, begin=2, end=None), F.slice_axis(x, axis=1, begin=0, end=2)
        return F.contrib.sharded(F.concat(*parts, dim=1), axes=",model:2:1") * 2


@pytest.mark.parametrize("leaves", [None, 2])
@pytest.mark.parametrize("plan", [{"a.bias": "model"}, {"a.weight": "model:1:2"}], ids=str)
def test_joined_arrays_are_not_parts_of_another_cut(plan, leaves):
    """The two arrays have the shapes of the parts: 4 and 2 of 6 columns."""
    batches = [inputs((4, 6))]
    wanted = trained(build(Joined), batches)
    for mesh in [{"model": 2}, {"model": 1}] if leaves else [{"model": 2}]:
        check(trained(build(Joined, mesh, plan, leaves=leaves), batches), wanted)
