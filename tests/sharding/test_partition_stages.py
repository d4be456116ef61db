"""Mesh.partition on meshes with an axis 'stage': each pipeline stage is divided over its own
devices, and computes the same as on one device."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, autograd, gluon, nd, parallel
from mpgluon.gluon import nn
from support.devices import on
from support.meshes import ADAM, backward, build, check, inputs, mesh_of, trained, values

MODEL = (
    {"stage": 2, "model": 2},
    {"0.weight": "model", "2.weight": (None, "model"), "3.weight": "model"},
)
SHARD = {"stage": 2, "shard": 2}, None
UNEVEN = {"shard": [3, 1], "stage": 2}, None
THREE = (
    {"data": 2, "stage": 2, "model": 2},
    {"data0": "data", "0.weight": "model", "2.weight": (None, "model")},
)
WHERE = {"model": MODEL, "shard": SHARD, "uneven": UNEVEN, "three": THREE}
PARTITIONS = pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)


def mlp():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(64, in_units=48, activation="relu"), nn.LayerNorm(in_channels=64))
        net.add(nn.Dense(40, in_units=64), nn.Dense(10, in_units=40))
    return net


(X,) = BATCH = inputs((12, 48))


@pytest.fixture(scope="module")
def wanted():
    return trained(build(mlp), [BATCH])


# --- Networks -------------------------------------------------------------------------------------


@PARTITIONS
def test_stages_compute_the_same(where, wanted):
    net = build(mlp, *where)
    check(trained(net, [BATCH]), wanted)
    mesh = mesh_of(where[0])
    assert net(X).context == mesh.device(stage=1)
    last = net[3]
    for param in last.collect_params().values():
        assert set(param.list_ctx()) <= set(mesh.devices_of_stage(1))
    divided = {cut["block"] for cut in net.compiled().shardings() if cut["op"] == "FullyConnected"}
    assert "HybridSequential.0" in divided
    assert divided & {"HybridSequential.2", "HybridSequential.3"}


def test_cuts_of_a_batch_spread_to_all_stages():
    """The second stage has no annotation."""
    net = build(mlp, {"data": 2, "stage": 3}, {"data0": "data"})
    check(trained(net, [BATCH]), trained(build(mlp), [BATCH]))
    shapes = [cut["shape"] for cut in net.compiled().shardings() if cut["op"] == "FullyConnected"]
    assert shapes == ["(12, 64)", "(12, 40)", "(12, 10)"]
    # Activations are copied between the devices with the same index. Only the output is gathered.
    moved = [move for move in net.compiled().shardings().transfers if move["kind"] == "gather"]
    assert [move["shape"] for move in moved] == ["(12, 10)"]


@pytest.mark.parametrize("way", [{"active": False}, {"recompute": True}, {"static_alloc": True}])
def test_modes(way, wanted):
    check(trained(build(mlp, *THREE, **way), [BATCH]), wanted)


def test_initialization_afterwards():
    def make():
        mx.random.seed(3)
        return mlp()

    net = make()
    mesh_of({"stage": 2, "shard": 2}).partition(net)
    net.initialize(mx.init.Uniform(0.3))
    one = make()
    one.initialize(mx.init.Uniform(0.3), ctx=on(0))
    check(values(net), values(one), "float32")
    with pytest.raises(ValueError, match="omit ctx"):
        net.initialize(ctx=on(0), force_reinit=True)


class Tied(gluon.HybridBlock):
    """An embedding in the first stage, whose weight the last stage uses as well. Its output depends
    on a second input, and on a sum outside of the stages."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.embedding = nn.Embedding(12, 16)
            self.body = nn.Dense(16, in_units=16, flatten=False, activation="tanh")
            self.scores = nn.Dense(
                12, in_units=16, flatten=False, use_bias=False, params=self.embedding.params
            )

    def hybrid_forward(self, F, x, y):
        h = self.embedding(x)
        h = h + self.body(h)
        return self.scores(h * 2) * y, h


@pytest.mark.parametrize("entry", ["model", (None, "model")])
def test_weights_that_stages_share(entry):
    (x,), (y,) = inputs((4, 6), high=12), inputs((4, 6, 1))
    plan = {"embedding.weight": entry, "data0": "data"}
    found = []
    for stages in (None, [["embedding", "body"], ["scores"]]):
        net = build(Tied)
        if stages:
            net = build(Tied, active=False)
            mesh_of({"data": 2, "stage": 2, "model": 2}).partition(net, plan, stages=stages)
            net.hybridize()
        found.append(trained(net, [(x, y)]))
    check(found[1], found[0])


@pytest.mark.parametrize("device", [0, 1, 2, 5])
def test_inputs_may_be_on_any_device(device):
    net = build(mlp, {"stage": 2, "data": 2}, {"data0": "data"})
    wanted = build(mlp)(X).asnumpy()
    check({"y": net(X.as_in_context(on(device))).asnumpy()}, {"y": wanted})


def test_stages_of_an_earlier_placement(wanted):
    net = build(mlp)
    parallel.Mesh({"stage": 2}, [on(0), on(1)]).place(net, [["0"], ["1", "2", "3"]])
    mesh_of({"stage": 2, "shard": 2}).partition(net)
    assert net[2].shard1_weight.list_ctx() == [on(3)]
    check(trained(net, [BATCH]), wanted)


# --- Training -------------------------------------------------------------------------------------


@PARTITIONS
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_pipelines(schedule, where):
    found = []
    for each in ((), where):
        net = build(mlp, *each)
        trainer = gluon.Trainer(net.collect_params(), *ADAM)
        loss, pipeline = gluon.loss.L2Loss(), parallel.Pipeline(4, schedule)
        step = parallel.TrainStep(net, loss, trainer, pipeline)
        target = nd.ones((12, 10), dtype="float64", ctx=net(X).context)
        losses = [step(X, target) for _ in range(3)]
        found.append({"losses": nd.stack(*losses).asnumpy(), **values(net)})
    check(found[1], found[0])


def test_interleaved_pipelines():
    """Each device has two stages of a pipeline."""
    stages = {"0": 0, "1": 1, "2": 0, "3": 1}
    found = []
    for placed in (False, True):
        net = build(mlp)
        if placed:
            mesh_of({"stage": 2, "data": 2}).partition(net, {"data0": "data"}, stages=stages)
        trainer = gluon.Trainer(net.collect_params(), *ADAM)
        schedule = "interleaved" if placed else "gpipe"
        loss, pipeline = gluon.loss.L2Loss(), parallel.Pipeline(4, schedule)
        step = parallel.TrainStep(net, loss, trainer, pipeline)
        target = nd.ones((12, 10), dtype="float64", ctx=net(X).context)
        losses = [step(X, target) for _ in range(3)]
        found.append({"losses": nd.stack(*losses).asnumpy(), **values(net)})
    check(found[1], found[0])


def test_exact_stages_have_the_same_bits():
    """Parameters that are stored in parts are gathered, and a batch that no weight's gradient sums
    over is divided."""
    found = []
    for where in ((), ({"stage": 2, "shard": 2}, {".*weight": "shard"}, "exact")):
        net = build(mlp, *where, dtype="float32", exact=True)
        found.append(trained(net, [inputs((12, 48), dtype="float32")]))
    for name, array in found[0].items():
        np.testing.assert_array_equal(found[1][name], array, err_msg=name)
    net = build(mlp, {"stage": 2, "data": 2}, {"data0": "data"}, "exact")
    with pytest.raises(MXNetError, match=r"partition='exact'"):
        backward(net, BATCH)


def test_tree_sums_do_not_depend_on_the_devices_of_a_stage():
    found = []
    for count in (1, 2, 3):
        net = build(mlp, active=False, dtype="float32")
        mesh_of({"stage": 2, "data": count}).partition(net, {"data0": "data"}, sums="tree")
        net.hybridize()
        found.append(trained(net, [inputs((12, 48), dtype="float32")]))
    for other in found[1:]:
        for name, array in found[0].items():
            np.testing.assert_array_equal(other[name], array, err_msg=name)


@pytest.mark.parametrize("first, second", [(MODEL, ()), ((), SHARD), (THREE, UNEVEN)])
def test_checkpoints_fit_any_stages(first, second, tmp_path):
    found = []
    for number, where in enumerate((first, first, second)):
        net = build(mlp, *where)
        trainer = gluon.Trainer(net.collect_params(), *ADAM)
        if number:
            parallel.load(tmp_path, net, trainer)
        for _ in range(2):
            backward(net, BATCH)
            trainer.step(4)
        if not number:
            parallel.save(tmp_path, net, trainer)
        found.append(values(net))
    check(found[2], found[1])


# --- Refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use, error",
    [
        (
            lambda net: mesh_of({"stage": 2}).partition(net, {}),
            "only the axis 'stage'; use Mesh.place",
        ),
        (lambda net: mesh_of({"data": 2}).partition(net, stages=[]), "needs a mesh with an axis"),
        (lambda net: mesh_of(SHARD[0]).partition(net, stages=[["0"], ["5"]]), "no block at path"),
        (lambda net: mesh_of(SHARD[0]).partition(net, stages=[["0"], []]), "stage 1 of 2 has no"),
        (lambda net: mesh_of({"stage": 5, "data": 2}).partition(net), "too few for 5 stages"),
        (lambda net: mesh_of(MODEL[0]).partition(net, {"0.weight": "stage"}), "names the axis"),
        (lambda net: mesh_of(MODEL[0]).partition(net), "one device along 'data' and 'shard'"),
    ],
)
def test_wrong_stages_change_nothing(use, error, wanted):
    net = build(mlp)
    with pytest.raises((MXNetError, ValueError), match=error):
        use(net)
    check(trained(net, [BATCH]), wanted)


@PARTITIONS
@pytest.mark.parametrize(
    "use, error",
    [
        (lambda net: mesh_of({"stage": 2}).place(net), r"Mesh\.place: .*either placed or part"),
        (lambda net: mesh_of(SHARD[0]).partition(net), r"is partitioned already"),
        (lambda net: mesh_of(SHARD[0]).partition(net[0]), r"is part of a network|already"),
    ],
)
def test_partitioned_stages_keep_their_devices(use, error, where):
    net = build(mlp, *where)
    before = net(X).asnumpy()
    with pytest.raises(MXNetError, match=error):
        use(net)
    np.testing.assert_array_equal(net(X).asnumpy(), before)


def test_placed_networks_need_a_mesh_with_stages():
    net = build(mlp)
    mesh_of({"stage": 2}).place(net)
    with pytest.raises(MXNetError, match="is placed on devices.*axis 'stage'"):
        mesh_of({"shard": 2}).partition(net)
    with autograd.record():
        assert net(X).context == on(1)
