"""Parameters that are stored on another device (`Mesh.partition(offload=...)`)."""

import gc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn
from support.devices import on
from support.meshes import mesh_of, values

UNITS, LAYERS = 64, 4
OFFLOAD = {"parameters": on(2)}
FAR = {"parameters": on(9)}


def network(layers=LAYERS, units=UNITS, dtype="float32"):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(layers):
            net.add(nn.Dense(units, activation="relu", in_units=units))
    mx.random.seed(2)
    net.initialize(mx.init.Xavier(), ctx=on(0))
    net.cast(dtype)
    return net


def tokens():
    """Returns a network with an embedding that is also the weight of its last layer."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Embedding(50, UNITS), nn.LayerNorm(in_channels=UNITS), nn.Dropout(0.3))
        net.add(nn.Dense(UNITS, flatten=False, activation="tanh", in_units=UNITS))
        net.add(nn.Dense(50, flatten=False, in_units=UNITS, params=net[0].params))
    mx.random.seed(2)
    net.initialize(mx.init.Xavier(), ctx=on(0))
    return net


def divided(net, axes=None, plan=None, offload=OFFLOAD, **options):
    return mesh_of(axes or {"data": 1}).partition(net, plan, offload=offload, **options)


def train(net, x, steps=3, **options):
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, **options)
    mx.random.seed(5)
    for _ in range(steps):
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        trainer.step(8)
    return {name: value.astype("float64") for name, value in values(net).items()}


def batch(units=UNITS, dtype="float32"):
    random = np.random.RandomState(4)
    return nd.array(random.uniform(-1, 1, (8, units)), ctx=on(0)).astype(dtype)


def same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize("flags", [{}, {"recompute": True}, {"static_alloc": True}, None], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_keeps_the_bits(dtype, flags):
    found = []
    for offload in (None, OFFLOAD):
        net = network(dtype=dtype)
        if offload:
            divided(net)
        net.hybridize(flags is not None, **(flags or {}))
        found.append(train(net, batch(dtype=dtype)))
    same(*found)
    assert {str(p.list_ctx()) for p in net.collect_params(".*weight").values()} == {f"[{on(2)}]"}
    assert {str(p.list_ctx()) for p in net.collect_params(".*bias").values()} == {f"[{on(0)}]"}


def test_shared_parameters_and_dropout_keep_the_bits():
    x = nd.array(np.arange(24).reshape(4, 6), dtype="int32", ctx=on(0))
    found = []
    for offload in (None, OFFLOAD):
        net = tokens()
        if offload:
            divided(net)
        net.hybridize()
        found.append(train(net, x))
    same(*found)
    assert net[4].weight is net[0].weight and net[0].weight.list_ctx() == [on(2)]


@pytest.mark.parametrize("hybrid", [True, False])
def test_inference_keeps_the_bits(hybrid):
    plain, net = network(), divided(network())
    for one in (plain, net):
        one.hybridize(hybrid, exact=True)
    np.testing.assert_array_equal(plain(batch()).asnumpy(), net(batch()).asnumpy())


@pytest.mark.parametrize(
    "axes, plan",
    [
        ({"data": 2}, None),
        ({"model": 2}, {"0.weight": "model"}),
        ({"data": 2}, {"data0": "data"}),
    ],
    ids=str,
)
def test_meshes_keep_the_bits_of_the_same_mesh(axes, plan):
    found = []
    for offload in (None, OFFLOAD):
        net = network()
        divided(net, axes, plan, offload)
        net.hybridize()
        found.append(train(net, batch()))
    same(*found)
    assert net[1].weight.list_ctx() == [on(2)]


TREE = {"sums": "tree"}
STAGES = {"stage": 2, "data": 2}


@pytest.mark.parametrize(
    "axes, plan, options",
    [
        ({"data": 2}, None, TREE),
        ({"data": [1, 2], "model": 2}, {"data0": "data", "0.weight": "model"}, TREE),
        (STAGES, None, {}),
        (STAGES, None, TREE),
        ({"stage": 2, "model": 2}, {"1.weight": "model"}, {"stages": [["0", "1"], ["2", "3"]]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("flags", [{}, {"recompute": True}, None], ids=str)
def test_trees_and_stages_keep_the_bits_of_the_same_mesh(axes, plan, options, flags):
    found = []
    for offload in (None, FAR):
        net = divided(network(), axes, plan, offload, **options)
        net.hybridize(flags is not None, **(flags or {}))
        found.append(train(net, batch()))
    same(*found)
    assert net[2].weight.list_ctx() == [on(9)]
    assert net[3].bias.list_ctx() == [mesh_of(axes).device(stage=-1)]


def test_tree_sums_have_the_same_bits_on_every_number_of_devices():
    found = []
    for count in (1, 2, 3, 4):
        net = divided(network(), {"data": count}, {"data0": "data"}, FAR, **TREE)
        net.hybridize()
        found.append(train(net, batch()))
    for other in found[1:]:
        same(found[0], other)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_pipelines_keep_the_bits_of_the_same_mesh(micro_batches):
    found = []
    for offload in (None, FAR):
        net = divided(network(), STAGES, None, offload)
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "adam")
        pipeline = par.Pipeline(micro_batches)
        step = par.TrainStep(net, gluon.loss.L2Loss(), trainer, pipeline)
        losses = [step(batch(), batch() * 2).asnumpy() for _ in range(2)]
        found.append({"losses": np.stack(losses), **values(net)})
    same(*found)


def test_stages_are_initialized_afterwards():
    """A weight that two stages share is on the other device for both."""
    found = []
    for offload in (None, FAR):
        net = tokens()
        mx.random.seed(2)
        stages = {net[0]: 0, net[3]: 0, net[4]: 1}
        divided(net, STAGES, None, offload, stages=stages).hybridize()
        net.initialize(mx.init.Xavier(), force_reinit=True)
        x = nd.array(np.arange(24).reshape(4, 6), dtype="int32", ctx=on(0))
        found.append(train(net, x))
    same(*found)
    assert net[4].weight.list_ctx() == net[3].weight.list_ctx() == [on(9)]
    assert net[4].bias.list_ctx() == [on(2)]


@pytest.mark.parametrize("context", ["gather", "ulysses", "ring"])
def test_context_keeps_the_bits_of_the_same_mesh(context):
    found = []
    for offload in (None, FAR):
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(nn.MultiHeadAttention(UNITS, in_units=UNITS, heads=8, rotary=True))
        mx.random.seed(2)
        net.initialize(mx.init.Xavier(), ctx=on(0))
        divided(net, {"context": 2}, {"data0": (None, "context")}, offload, context=context)
        net.hybridize()
        found.append(train(net, batch().reshape((2, 4, UNITS))))
    same(*found)
    kinds = {move["kind"] for move in net.compiled().shardings().transfers}
    assert "copy" in kinds and ("all_to_all" in kinds) == (context == "ulysses")
    assert ("ring" in kinds) == (context == "ring")


def test_default_plan_along_shard_divides_only_the_batch():
    net = divided(network(), {"shard": 2})
    net.hybridize()
    same(train(net, batch()), train(divided_by_data(), batch()))
    assert net[0].weight.list_ctx() == [on(2)]


def divided_by_data():
    net = divided(network(), {"data": 2}, offload=None)
    net.hybridize()
    return net


@pytest.mark.parametrize("training", [True, False])
def test_compute_device_holds_two_layers(training):
    """In training, the gradient of a layer is added. The other device has all 16 bytes."""

    def stats(key):
        gc.collect()
        nd.waitall()
        return [mx.context.memory_stats(ctx)[key] for ctx in (on(0), on(2))]

    units, layers = 256, 12
    before = stats("in_use")
    net = network(layers, units)
    divided(net)
    net.hybridize()
    x, layer = batch(units), 4 * units * units
    if training:
        train(net, x, 2)
    else:
        net(x)
    for ctx in (on(0), on(2)):
        mx.context.reset_peak_memory(ctx)
    if training:
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
    else:
        net(x)
    peak, other = [p - b for p, b in zip(stats("peak_in_use"), before)]
    assert peak <= (3.2 if training else 2.5) * layer, peak / layer
    assert other >= layers * layer
    [entry] = net.compiled()
    assert entry["devices"]


def test_offloaded_states_stay_with_offloaded_parameters():
    net = divided(network())
    net.hybridize()
    plain = network()
    plain.hybridize()
    same(train(net, batch(), offload={"states": on(2)}), train(plain, batch()))


def test_checkpoints_load_onto_one_device(tmp_path):
    net = divided(network())
    net.hybridize()
    trained = train(net, batch())
    par.save(str(tmp_path), net)
    plain = network()
    par.load(str(tmp_path), plain)
    same(values(plain), {name: array.astype("float32") for name, array in trained.items()})
    assert plain[0].weight.list_ctx() == [on(0)]
    again = divided(network())
    par.load(str(tmp_path), again)
    same(values(again), values(plain))
    assert again[0].weight.list_ctx() == [on(2)]


def test_pinned_memory():
    net, plain = network(), network()
    par.Mesh({"data": 1}, [on(0)]).partition(net, offload={"parameters": mx.cpu_pinned(2)})
    for one in (net, plain):
        one.hybridize()
    same(train(net, batch()), train(plain, batch()))


@pytest.mark.parametrize(
    "offload, error, text",
    [
        (mx.cpu(2), ValueError, "a dict from 'parameters' to a device"),
        ({"states": mx.cpu(2)}, ValueError, "optimizer states by gluon.Trainer"),
        ({"parameters": 2}, TypeError, "must be a device or the path of a directory, not 2"),
        ({"parameters": on(0)}, mx.MXNetError, "is a device of the mesh; use another device"),
    ],
)
def test_invalid_devices_raise(offload, error, text):
    with pytest.raises(error, match=text):
        divided(network(), offload=offload)


def test_one_device_without_offload_needs_a_plan():
    with pytest.raises(ValueError, match="needs a plan"):
        divided(network(), offload=None)
