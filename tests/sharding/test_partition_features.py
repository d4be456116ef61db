"""Mesh.partition with other features: a combination computes the same as on one device, or raises
an error that names both features."""

import copy
import logging
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, autograd, gluon, nd, parallel
from mpgluon.contrib import amp, lora, quantization
from mpgluon.gluon import nn
from mpgluon.gluon.contrib.estimator import Estimator
from support.devices import on
from support.meshes import ADAM, backward, build, check, inputs, mesh_of, trained, values

SHARD = {"data": 2, "shard": 2}, None
MODEL = (
    {"data": 2, "model": 2},
    {"data0": "data", "0.weight": "model", "2.weight": (None, "model")},
)
STAGES = {"stage": 2, "shard": 2}, None
PARTITIONS = pytest.mark.parametrize(
    "where", [SHARD, MODEL, STAGES], ids=["shard", "model", "stages"]
)


def mlp():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(64, in_units=48, activation="relu"), nn.LayerNorm(in_channels=64))
        net.add(nn.Dense(40, in_units=64), nn.Dense(10, in_units=40))
    return net


(X,) = BATCH = inputs((12, 48))


def steps(net, trainer, count):
    for _ in range(count):
        backward(net, BATCH)
        trainer.step(4)


# --- Copies and files -----------------------------------------------------------------------------


@PARTITIONS
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_are_independent(copied, where):
    net = build(mlp, *where)
    net(X)
    other = copied(net)
    other.hybridize()
    found = trained(net, [BATCH])
    check(trained(other, [BATCH]), found)
    check(found, trained(build(mlp), [BATCH]))


OTHER = {"shard": [3, 1]}, None


@pytest.mark.parametrize(
    "first, second", [(SHARD, ()), ((), SHARD), (SHARD, MODEL), (MODEL, OTHER), (OTHER, SHARD)]
)
def test_checkpoints_fit_any_mesh(first, second, tmp_path):
    def make(where):
        net = build(mlp, *where)
        return net, gluon.Trainer(net.collect_params(), *ADAM)

    net, trainer = make(first)
    steps(net, trainer, 2)
    parallel.save(tmp_path, net, trainer)
    steps(net, trainer, 2)
    other, its = make(second)
    parallel.load(tmp_path, other, its)
    steps(other, its, 2)
    check(values(other), values(net))
    parallel.save(tmp_path, other, its)
    back, its = make(first)
    parallel.load(tmp_path, back, its)
    check(values(back), values(other))


@PARTITIONS
@pytest.mark.parametrize("suffix", ["params", "safetensors", "npz"])
def test_parameter_files_have_the_whole_parameters(where, suffix, tmp_path):
    """They load into networks that are not divided, or otherwise, and the other way round."""
    file = str(tmp_path / f"net.{suffix}")
    net, one = build(mlp, *where), build(mlp)
    steps(net, gluon.Trainer(net.collect_params(), "sgd"), 1)
    wanted = values(net)
    net.save_parameters(file)
    assert set(nd.load(file)) == {*one._collect_params_with_prefix()}
    one.load_parameters(file)
    assert all(np.array_equal(a, b) for a, b in zip(values(one).values(), wanted.values()))
    other = build(mlp, {"shard": [3, 1]}, None)
    other.load_parameters(file)
    check(values(other), wanted)
    other.save_parameters(file)
    back = build(mlp, *where)
    back.load_parameters(file)
    check(values(back), wanted)
    back.load_dict({f"arg:{name}": array for name, array in nd.load(file).items()})


# --- Training -------------------------------------------------------------------------------------


@PARTITIONS
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_train_step(micro_batches, where):
    found = []
    for each in ((), where):
        net = build(mlp, *each)
        trainer = gluon.Trainer(net.collect_params(), *ADAM)
        loss, pipeline = gluon.loss.L2Loss(), parallel.Pipeline(micro_batches)
        step = parallel.TrainStep(net, loss, trainer, pipeline)
        losses = [step(X, nd.ones((12, 10), dtype="float64", ctx=on(0))) for _ in range(3)]
        found.append({"losses": nd.stack(*losses).asnumpy(), **values(net)})
    kinds = {transfer["kind"] for transfer in step.compiled().shardings().transfers}
    assert kinds >= ({"reduce"} if "model" in where[0] else {"gather", "scatter"})
    check(found[1], found[0])


@PARTITIONS
def test_estimator_with_a_small_last_batch(where):
    found = []
    logging.disable()
    for each in ((), where):
        net = build(mlp, *each)
        data = gluon.data.ArrayDataset(X, nd.ones((12, 10), dtype="float64"))
        trainer = gluon.Trainer(net.collect_params(), *ADAM)
        estimator = Estimator(net, gluon.loss.L2Loss(), mx.metric.Loss(), trainer=trainer)
        estimator.fit(gluon.data.DataLoader(data, batch_size=11, last_batch="keep"), epochs=2)
        found.append(values(net))
    logging.disable(logging.NOTSET)
    check(found[1], found[0])


@PARTITIONS
def test_modes_and_clipping(where):
    found = []
    for each in ((), where):
        net = build(mlp, *each)
        with autograd.record(train_mode=False):
            y = net(X)
        y.backward()
        gradients = [param.grad() for param in net.collect_params().values()]
        norm = gluon.utils.clip_global_norm(gradients, 0.5)
        with autograd.train_mode():
            found.append({"y": net(X).asnumpy(), "norm": np.asarray(float(norm))})
    check(found[1], found[0], "float32")


@PARTITIONS
def test_loss_scaling(where, monkeypatch):
    monkeypatch.setattr(amp.amp, "_state", copy.copy(amp.amp.__dict__.get("_state")), raising=False)
    net = build(mlp, *where, dtype="float16")
    one = build(mlp, dtype="float16")
    found = []
    for each in (one, net):
        trainer = gluon.Trainer(each.collect_params(), "sgd", {"multi_precision": True})
        backward(each, [X.astype("float16")])
        trainer.step(4)
        found.append({name: np.float64(value) for name, value in values(each).items()})
    check(found[1], found[0], "float16")


# --- LoRA and quantization ------------------------------------------------------------------------


def adapt(net):
    mx.random.seed(5)
    lora.apply(net, {"[02]": 64})
    for number, param in enumerate(lora.parameters(net).values()):
        drawn = np.random.RandomState(number).uniform(-0.3, 0.3, param.shape)
        param.set_data(nd.array(drawn).astype(param.dtype))


def adapted():
    net = mlp()
    net.initialize(mx.init.Uniform(0.3), ctx=on(0))
    adapt(net)
    return net


@PARTITIONS
def test_adapters_from_before(where, tmp_path):
    net = build(adapted, *where)
    check(trained(net, [BATCH]), trained(build(adapted), [BATCH]))
    lora.save(net, tmp_path)
    one = build(mlp)
    for name, value in values(net).items():
        if "lora" not in name:
            one.collect_params()[name].set_data(nd.array(value, dtype="float64"))
    lora.load(one, tmp_path)
    lora.merge(one)
    check({"y": one(X).asnumpy()}, {"y": net(X).asnumpy()}, "float32")
    for refused in (lora.merge, lora.remove, adapt):
        with pytest.raises(
            MXNetError, match=r"lora\.\w+: .*Mesh\.partition.*not partitioned|before"
        ):
            refused(net)


def test_quantized_weights():
    def packed():
        net = mlp()
        net.initialize(mx.init.Uniform(0.3), ctx=on(0))
        return quantization.quantize_weights(net, "int8")

    wanted = build(packed, dtype="float32")(X.astype("float32")).asnumpy()
    for axes, plan in (SHARD, (MODEL[0], {"[02].(packed|scales)": "model"})):
        net = build(packed, axes, plan, dtype="float32")
        assert net[0].shard1_packed.list_ctx() == [mesh_of(axes).line([*axes][-1])[1]]
        found = net(X.astype("float32")).asnumpy()
        check({"y": found}, {"y": wanted}, "float32")
        net.collect_params().setattr("grad_req", "write")
        assert net[0].shard1_packed.grad_req == "null"


# --- Refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [SHARD, MODEL], ids=["shard", "model"])
@pytest.mark.parametrize(
    "use, error",
    [
        (lambda net: quantization.quantize_weights(net), r"before the network is partitioned"),
        (lambda net: parallel.shard(net, {"3": "column"}, [on(0), on(1)]), r"plan of Mesh\.part"),
        (lambda net: mesh_of({"data": 2}).place(net), r"Mesh\.place: .*either placed or part"),
        (lambda net: net.place({"0": on(1)}), r"place: .*either placed or partitioned"),
        (lambda net: mesh_of({"data": 2}).partition(net), r"is partitioned already"),
        (lambda net: net.export("x"), r"export .*Mesh\.partition.*mx\.parallel\.save"),
        (lambda net: mx.onnx.export_model(net, in_shapes=[X.shape]), r"Mesh\.partition.*save"),
        (lambda net: amp.convert_hybrid_block(net), r"convert_hybrid_block .*Mesh\.partition"),
        (lambda net: net(mx.sym.var("x")), r"called on Symbols|Mesh\.partition"),
        (lambda net: net.collect_params().reset_ctx(on(1)), r"cannot leave"),
        (lambda net: net(X.as_in_context(on(1))), r"is on .*, but the input is on"),
    ],
)
def test_features_that_need_one_device(use, error, where):
    net = build(mlp, *where)
    before = net(X).asnumpy()
    with pytest.raises(MXNetError, match=error):
        use(net)
    np.testing.assert_array_equal(net(X).asnumpy(), before)


def test_parameters_of_before_are_refused():
    net = build(mlp)
    weight, trainer = net[0].weight, gluon.Trainer(net.collect_params(), "sgd")
    mesh_of({"shard": 2}).partition(net)
    backward(net, BATCH)
    for use in (weight.data, lambda: trainer.step(1)):
        with pytest.raises(MXNetError, match=r"Mesh\.partition has divided '0\.weight'"):
            use()


@pytest.mark.parametrize(
    "plan, error",
    [
        ({"data3": "shard"}, "input data3"),
        ({"data0": "model"}, "names the axis 'model', but the mesh has data, shard"),
        ({"data0": ("shard", "shard")}, "named twice"),
        ({"data0": (None, None, "shard")}, "more names than dimensions"),
        ({"data0": "shard:x"}, "name:blocks:unit"),
        ({"0.weight": ("shard", "data")}, "must be cut along one axis"),
        ({"0.weight": (("data", "shard"),)}, "must be cut along one axis"),
        ({"0.weight": ()}, "must be cut along one axis"),
        ({"0.weight": (("shard", "shard"),)}, "these are the same axis"),
        ({"0.weight": (None, None, "shard")}, "3 dimensions of '0.weight', whose shape is"),
        ({"0.weight": "shard:5"}, "not a multiple of 5"),
        ({"0.weight": "shard", "3.weight": "shard:1:10"}, "it has only 1 groups of 10"),
        ({"0.weight": "shard:0"}, "malformed"),
        ({"0.weight": 3}, "must be a tuple"),
        ({"nothing": "shard"}, "does not match the whole path"),
        ({"[": "shard"}, "not a regular expression"),
        ({"1.running_mean": "shard"}, "updated in the forward pass"),
    ],
)
def test_wrong_plans_change_nothing(plan, error):
    def make():
        net = mlp()
        net.add(nn.BatchNorm(in_channels=10, prefix="net_norm_"))
        return net

    if "1.running_mean" in plan:
        plan = {"4.running_mean": "shard"}
    net = build(make)
    before = list(net.collect_params())
    with pytest.raises((MXNetError, ValueError, TypeError), match=error):
        mesh_of({"data": 2, "shard": 2}).partition(net, plan)
        net(X)
    if not any(key.startswith("data") for key in plan):
        assert list(net.collect_params()) == before
        mesh_of({"shard": 2}).partition(net)


def test_networks_that_cannot_be_partitioned():
    mesh = mesh_of({"shard": 2})
    with pytest.raises(MXNetError, match="only HybridBlocks"):
        mesh.partition(nn.Sequential())
    split = build(mlp)
    parallel.shard(split, {"0": "column"}, [on(0), on(1)])
    with pytest.raises(MXNetError, match="split over devices already"):
        mesh.partition(split, {"2.weight": "shard"})
    unknown = nn.HybridSequential()
    unknown.add(nn.Dense(4))
    with pytest.raises(MXNetError, match="not known yet"):
        mesh.partition(unknown)
    uneven = mesh_of({"shard": [100, 1]})
    with pytest.raises(ValueError, match=r"with shares \[100, 1\]"):
        uneven.partition(build(mlp), {"3.weight": "shard"})


# --- Annotations in the network's code ------------------------------------------------------------


class Annotated(gluon.HybridBlock):
    def __init__(self, options):
        super().__init__(prefix="net_")
        self.options = options
        with self.name_scope():
            self.a = nn.Dense(40, in_units=48, flatten=False)
            self.b = nn.Dense(6, in_units=40, flatten=False)

    def hybrid_forward(self, F, x):
        return self.b(F.relu(F.contrib.sharded(self.a(x), **self.options)))


TWO = f"shard=2;{on(0)},{on(1)}"


@pytest.mark.parametrize("axes", ["shard", ",shard", ",shard:2:4", "", ","])
@pytest.mark.parametrize("mesh", [None, TWO], ids=["network", "named"])
def test_annotations_in_code(axes, mesh):
    options = {"axes": axes, **({} if mesh is None else {"mesh": mesh})}
    batches = [inputs((rows, 48)) for rows in (6, 1)]
    # Without a mesh, networks that are not partitioned ignore the annotation.
    wanted = trained(build(lambda: Annotated({"axes": axes})), batches)
    check(trained(build(lambda: Annotated(options), {"shard": 2}), batches), wanted)
    check(trained(build(lambda: Annotated(options)), batches), wanted)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"axes": "model"}, "the mesh has no axis of this name"),
        ({"axes": "shard,shard"}, "named twice"),
        ({"axes": "shard+shard"}, "named twice"),
        ({"axes": ",,shard"}, "more names than dimensions"),
        ({"axes": ",shard:3"}, "not a multiple of blocks"),
        ({"axes": "shard:6"}, "too small for the devices"),
        ({"axes": "shard:"}, "name:blocks:unit"),
        ({"axes": "model", "mesh": f"model=2;{on(0)},{on(1)}"}, "start on the same device"),
        (
            {"axes": "model", "mesh": f"model=2;{on(2)},{on(3)}"},
            "not on the first device of its mesh",
        ),
        ({"axes": "shard", "mesh": f"shard=2;{on(0)}"}, "malformed"),
        ({"axes": "shard", "mesh": f"shard=2;{on(0)},{on(0)}"}, "malformed"),
        ({"axes": "shard", "mesh": f"{TWO};nearly"}, "malformed"),
        ({"axes": "shard", "mesh": "shard=2"}, "malformed"),
    ],
)
def test_wrong_annotations_in_code(options, error):
    net = build(lambda: Annotated(options), {"shard": 2})
    with pytest.raises(MXNetError, match=error):
        net(*inputs((6, 48)))


# --- Exactness ------------------------------------------------------------------------------------


class Exact(gluon.HybridBlock):
    """A function of the input and a parameter."""

    def __init__(self, ops):
        super().__init__(prefix="net_")
        self.ops = ops
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(6, 4, 40))

    def hybrid_forward(self, F, x, weight):
        return self.ops(F, x, weight)


BITS = {
    "elementwise": lambda F, x, w: F.tanh(x) * F.exp(w) + F.sigmoid(w),
    "softmax": lambda F, x, w: F.softmax(x * w, axis=-1),
    "last axis": lambda F, x, w: F.sum(x * w, axis=-1),
    "norm": lambda F, x, w: F.LayerNorm(x * w, F.ones((40,)), F.zeros((40,))),
    "moves": lambda F, x, w: F.concat(F.transpose(x, (0, 2, 1)), F.reshape(w, (6, 40, 4)), dim=2),
    "maximum": lambda F, x, w: F.max(x * w, axis=1),
    "products of stacks": lambda F, x, w: F.batch_dot(x, w, transpose_b=True),
}
CHANGED = {
    "sum": (lambda F, x, w: F.sum(x, axis=0), "sum in block Exact adds up"),
    "sum of vectors": (lambda F, x, w: F.sum(x, axis=1), "sum in block Exact orders its sums"),
    "product": (
        lambda F, x, w: F.dot(x, F.reshape(w, (40, 24))),
        "dot in block Exact has a gradient that adds up",
    ),
    "product of constants": (
        lambda F, x, w: F.dot(x, F.ones((40, 24), dtype="float64")),
        "dot in block Exact orders its sums",
    ),
    "broadcast": (lambda F, x, w: F.broadcast_mul(x, F.slice_axis(w, 0, 0, 1)), "broadcast_mul"),
}


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("axes", [{"data": 2}, {"data": [1, 2], "model": 2}])
def test_exact_partitions_have_the_same_bits(name, axes):
    plan = {"data0": ("data", "model" if "model" in axes and name != "last axis" else None)}
    if name == "products of stacks":
        plan = {"data0": "data"}
    batch = inputs((6, 4, 40), dtype="float32")
    found = []
    for where in ((), (axes, plan, "exact")):
        found.append(
            trained(build(lambda: Exact(BITS[name]), *where, dtype="float32"), [batch], None)
        )
    for key, array in found[0].items():
        np.testing.assert_array_equal(found[1][key], array, err_msg=key)


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("partition", ["exact", "fast"])
def test_cuts_that_change_bits(name, partition):
    ops, reason = CHANGED[name]
    exact = partition == "fast"
    net = build(lambda: Exact(ops), {"data": 2}, {"data0": "data"}, partition, exact=exact)
    rule = r"exact=True.*exact=False" if exact else r"partition='exact'.*partition='fast'"
    with pytest.raises(MXNetError, match=rule) as error:
        backward(net, inputs((6, 4, 40)))
    assert reason in str(error.value) and "annotation 'data'" in str(error.value)


def test_exact_storage_in_parts():
    """Parameters that are stored in parts are gathered before they are used."""
    plan = {".*weight": "shard"}
    found = trained(build(mlp, {"shard": 2}, plan, "exact", exact=True), [BATCH])
    for name, array in trained(build(mlp, exact=True), [BATCH]).items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_comparison_with_a_single_device():
    net, x = build(mlp, *SHARD, dtype="float32"), X.astype("float32")
    found = parallel.check_against_single_device(net, x, exact=False, rtol=1e-4)
    assert any(found.values())
    with pytest.raises(MXNetError, match="exact=True"):
        parallel.check_against_single_device(net, x)


@pytest.mark.parametrize("fails_late", [False, True])
def test_a_partition_that_runs_out_of_memory_changes_nothing(fails_late):
    """The first parameters are divided before the memory is used up."""
    devices = [on(42), on(43)] if fails_late else [on(40), on(41)]
    net = nn.HybridSequential()
    for _ in range(6):
        net.add(nn.Dense(256, activation="tanh", in_units=256))
    net.initialize(mx.init.Xavier(), ctx=devices[0])
    x = nd.random.normal(shape=(4, 256), ctx=devices[0])
    expected, before = net(x).asnumpy(), list(net.collect_params())
    nd.zeros(1, ctx=devices[1]).wait_to_read()
    mesh = mx.parallel.Mesh({"shard": 2}, devices)
    held = mx.context.memory_stats(devices[1])["held"]
    mx.context.set_memory_limit(devices[1], held + (300_000 if fails_late else 100_000))
    try:
        with pytest.raises(MemoryError):
            mesh.partition(net)
    finally:
        mx.context.set_memory_limit(devices[1], 0)
    assert list(net.collect_params()) == before
    assert net[0].weight.list_ctx() == [devices[0]]
    np.testing.assert_array_equal(net(x).asnumpy(), expected)
    mesh.partition(net)
    np.testing.assert_array_equal(net(x).asnumpy(), expected)
