"""Meshes with an axis `model`: networks that are replicated, staged and split at once match one
device."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, gluon, nd, parallel as par
from mpgluon.gluon import nn, rnn
from support.compare import close_by_name
from support.devices import on
from support.meshes import LOSS, train, values

DEVICES = [on(i) for i in range(8)]
SHAPES = [
    {"model": 2},
    {"data": 2, "model": 2},
    {"stage": 2, "model": 3},
    {"data": 2, "stage": 2, "model": 2},
    {"model": 2, "stage": 2, "data": 2},
]


def mlp():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Dense(16, activation="relu"),
            nn.LayerNorm(),
            nn.Dense(12, activation="tanh"),
            nn.Dropout(0.0),
            nn.Dense(16, activation="relu"),
            nn.Dense(5),
        )
    return net


def images():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(6, 3, padding=1, activation="relu"),
            nn.MaxPool2D(),
            nn.Conv2D(8, 3, groups=2, in_channels=6),
            nn.GlobalAvgPool2D(),
            nn.Dense(9),
            nn.Dense(5),
        )
    return net


class Words(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="words_")
        with self.name_scope():
            self.embed, self.lstm = nn.Embedding(13, 8), rnn.LSTM(6, layout="NTC", input_size=8)
            self.attention = par.ParallelSelfAttention(6, 3, DEVICES[:3], causal=True)
            self.norm, self.out = nn.LayerNorm(in_channels=6), nn.Dense(5, in_units=30)

    def hybrid_forward(self, F, x):
        x = self.lstm(self.embed(x))
        return self.out(self.norm(x + self.attention(x)))


def batches(shape, integers=0, count=3, size=8):
    rng = np.random.default_rng(3)
    draw = (
        (lambda: rng.integers(0, integers, (size, *shape)))
        if integers
        else (lambda: rng.standard_normal((size, *shape)))
    )
    return [
        (nd.array(draw(), dtype="float32"), nd.array(rng.integers(0, 5, size)))
        for _ in range(count)
    ]


def build(axes, make, when="before", hybrid=True, **options):
    """Returns a network on a mesh, placed before its initialization ("before"), before its shapes
    are known ("deferred") or after its first batch ("after")."""
    mx.random.seed(5)
    net, mesh = make(), par.Mesh(axes, devices=DEVICES[: np.prod(list(axes.values()))])
    if when != "before":
        net.initialize(mx.init.Xavier())
    if when == "after":
        net(batches((10,))[0][0])
    assert net.place(mesh, **options) is net
    if when == "before":
        net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize()
    return net, mesh


@pytest.fixture(scope="module")
def reference():
    net, mesh = build({"data": 1}, mlp)
    losses = train(
        net,
        mesh,
        gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
        batches((10,)),
    )
    return losses, values(net)


@pytest.mark.parametrize(
    "when, hybrid", [("before", True), ("before", False), ("deferred", True), ("after", False)]
)
@pytest.mark.parametrize("axes", SHAPES, ids=str)
def test_model_mesh_training_matches_one_device(axes, when, hybrid, reference):
    net, mesh = build(axes, mlp, when, hybrid)
    net(mesh.split_and_load(batches((10,))[0][0])[0])
    losses = train(
        net,
        mesh,
        gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
        batches((10,)),
    )
    np.testing.assert_allclose(losses, reference[0], rtol=1e-5)
    close_by_name(reference[1], values(net))
    for param in net.collect_params().values():
        assert len(param.list_ctx()) == mesh.size("data")
    for stage in range(mesh.size("stage")):
        for part in range(mesh.size("model")):
            homes = mesh.line("data", stage=stage, model=part)
            assert any(param.list_ctx() == homes for param in net.collect_params().values()), (
                stage,
                part,
            )
    assert type(net[0]) is type(net[2]) is par.ColumnParallelDense and type(net[1]) is nn.LayerNorm


@pytest.mark.parametrize("axes", [{"data": 2, "model": 2}, {"stage": 2, "model": 2}], ids=str)
def test_split_convolutions_match_one_device(axes):
    results = []
    for where in ({"data": 1}, axes):
        net, mesh = build(where, images)
        train(
            net,
            mesh,
            gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}),
            batches((3, 8, 8)),
        )
        results.append(values(net))
    assert type(net[0]) is type(net[2]) is par.ParallelConv2D
    close_by_name(*results)


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybridized"])
def test_split_lstm_and_attention_are_replicated_and_staged(hybrid):
    """Layers that span several devices are replicated and staged with the network."""
    stages, results = [["embed", "lstm"], ["attention", "norm", "out"]], []
    for axes in ({"data": 1, "model": 3}, {"data": 2, "model": 3}):
        net, mesh = build(axes, Words, hybrid=hybrid)
        train(
            net,
            mesh,
            gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}),
            batches((5,), 13),
        )
        results.append(values(net))
    close_by_name(*results)
    mx.random.seed(5)
    net = Words()
    with pytest.raises(
        MXNetError, match="is split over 3 devices, but the mesh has 2 along 'model'"
    ):
        net.place(par.Mesh({"stage": 2, "model": 2}), stages)
    net.attention = par.ParallelSelfAttention(
        6, 3, DEVICES[:2], causal=True, prefix="words_parallelselfattention0_"
    )
    net.place(par.Mesh({"stage": 2, "model": 2}, devices=DEVICES[4:]), stages)
    net.initialize(mx.init.Xavier())
    assert net.attention.ctx == DEVICES[6:] and net.lstm.ctx == DEVICES[4:6]
    mesh = net._group2ctx.mesh
    train(
        net,
        mesh,
        gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}),
        batches((5,), 13),
    )
    close_by_name(results[0], values(net))


@pytest.mark.parametrize(
    "options", [{"shard_updates": True}, {"clip_global_norm": 0.1}, {"accumulate": 3}], ids=str
)
def test_trainer_options_match_one_device_on_a_model_mesh(options):
    results = []
    for axes in ({"data": 1}, {"data": 2, "stage": 2, "model": 2}):
        net, mesh = build(axes, mlp)
        net(mesh.split_and_load(batches((10,))[0][0])[0])
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, **options
        )
        train(net, mesh, trainer, batches((10,)), loop="all backward together")
        results.append(values(net))
        if "shard_updates" in options:
            assert sum(len(updater.states) for updater in trainer._state.by_device.values()) == len(
                net.collect_params()
            )
    close_by_name(*results)


@pytest.mark.parametrize(
    "axes", [{"data": 2, "stage": 2, "model": 2}, {"stage": 2, "model": 2}], ids=str
)
@pytest.mark.parametrize("loop", ["step", "ordinary"])
def test_pipelined_model_mesh_matches_one_device(axes, loop, reference):
    net, mesh = build(axes, mlp, hybrid=False)
    net(mesh.split_and_load(batches((10,))[0][0])[0])
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    if loop == "step":
        step = par.TrainStep(net, LOSS, trainer, par.Pipeline(2, "1f1b"))
        losses = [float(step(x, y).mean().asscalar()) for x, y in batches((10,))]
    else:
        net.hybridize(pipeline=par.Pipeline(2))
        losses = train(net, mesh, trainer, batches((10,)))
    np.testing.assert_allclose(losses, reference[0], rtol=1e-5)
    close_by_name(reference[1], values(net))


def test_checkpoint_loads_onto_other_meshes(tmp_path):
    results, data = [], batches((10,))
    for axes in ({"data": 2, "stage": 2, "model": 2}, {"stage": 2, "model": 3}, {"data": 2}):
        net, mesh = build(axes, mlp)
        net(mesh.split_and_load(data[0][0])[0])
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
        if not results:
            train(net, mesh, trainer, data)
            par.save(str(tmp_path), net, trainer)
        else:
            par.load(str(tmp_path), net, trainer)
        train(net, mesh, trainer, data)
        results.append(values(net))
    for other in results[1:]:
        close_by_name(results[0], other, 2e-5)


def test_layers_are_split_by_default_or_by_plan():
    """By default every layer that can be split, with a plan those it names, and none without an
    axis `model`."""
    net, _ = build({"model": 2}, mlp, split={"[04]": "row", "5": "column"})
    kinds = [
        par.RowParallelDense,
        nn.LayerNorm,
        nn.Dense,
        nn.Dropout,
        par.RowParallelDense,
        par.ColumnParallelDense,
    ]
    assert [type(layer) for layer in net] == kinds
    net, mesh = build({"model": 8}, mlp)
    # 5 units cannot be split over 8 devices
    assert type(net[5]) is nn.Dense and net[5].weight.list_ctx() == DEVICES[:1]
    assert net(batches((10,))[0][0]).shape == (8, 5) and net[0].ctx == DEVICES
    net, _ = build({"data": 2}, mlp, split={"0": "column"})
    assert type(net[0]) is nn.Dense
    tables = nn.HybridSequential()
    tables.add(nn.Embedding(8, 4), nn.Embedding(8, 4, sparse_grad=True))
    tables.place(par.Mesh({"model": 2}, devices=DEVICES[:2]))
    assert [type(layer) for layer in tables] == [par.VocabParallelEmbedding, nn.Embedding]


def test_second_place_moves_all_parameters():
    net, mesh = build({"stage": 2, "model": 2}, mlp, "after")
    x = batches((10,))[0][0]
    expected = net(mesh.split_and_load(x)[0]).asnumpy()
    other = par.Mesh({"data": 2, "stage": 2, "model": 2}, devices=DEVICES[::-1])
    net.place(other)
    net.hybridize()
    parts = other.split_and_load(x)
    np.testing.assert_array_equal(np.concatenate([net(part).asnumpy() for part in parts]), expected)
    assert net[0].ctx == [DEVICES[7], DEVICES[6]] and net(parts[1]).context == other.device(
        data=1, stage=1
    )
    with pytest.raises(
        MXNetError, match="belongs to a network that is placed on a mesh; call the network"
    ):
        net[0](x)


@pytest.mark.parametrize("first", [False, True], ids=["uninitialized", "initialized"])
def test_place_prints_the_devices_of_split_layers(first, capsys):
    net = nn.HybridSequential(prefix="net_")
    net.add(nn.Dense(8, in_units=6), nn.Dense(4, in_units=8), nn.LayerNorm(in_channels=4))
    if first:
        net.initialize()
    a, b, c, d, *rest = DEVICES
    net.place(par.Mesh({"stage": 2, "model": 2}, [a, b, c, d]), split={"0": "column", "1": "row"})
    assert capsys.readouterr().out == (
        "HybridSequential 'net':\n"
        f"  {c}: 2 (2 parameters, 32 B)\n"
        f"  split over {a} + {b}: 0 (4 parameters, 224 B)\n"
        f"  split over {c} + {d}: 1 (3 parameters, 144 B)\n"
        f"  arrays move before 1, from {a} to {c}\n"
        + (
            "  moved: 7 parameters, 288 B\n"  # all but the parts on the first device
            if first
            else "  moved: 0 parameters\n"
        )
    )
    net.initialize()
    net.place(par.Mesh({"data": 2, "model": 2, "stage": 2}, DEVICES))
    printed = capsys.readouterr().out
    assert f"  split over {a} + {c}, {rest[0]} + {rest[2]}: 0 (4 parameters" in printed
    assert "  moved: 9 parameters, 400 B\n" in printed


def test_failed_place_keeps_the_network():
    net = mlp()
    with pytest.raises(
        ValueError, match=r"Mesh.place: unknown split 'rows' \(for '0'\); expected one of column"
    ):
        net.place(par.Mesh({"model": 2}), split={"0": "rows"})
    with pytest.raises(
        ValueError, match="Mesh.place: 'first' does not match the whole path or name of any layer"
    ):
        net.place(par.Mesh({"model": 2}), split={"first": "row"})
    with pytest.raises(ValueError, match="Mesh.place: '5' .*cannot be split over 8 devices"):
        net.place(par.Mesh({"model": 8}), split={"5": "column"})
    assert type(net[0]) is nn.Dense and net._group2ctx is None
    with pytest.raises(
        MXNetError, match="data 2 x stage 2 x model 2 needs 8 devices, but 7 were given"
    ):
        par.Mesh({"data": 2, "stage": 2, "model": 2}, devices=DEVICES[:7])
