"""`mx.parallel.layouts`: training by a layout needs the predicted bytes. Also tests the search for
plans, recomputation and errors."""

import functools
import gc
import threading

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel
from mpgluon.gluon import nn, rnn
from mpgluon.gluon.model_zoo import text, vision
from mpgluon.parallel import Mesh, _partition, layouts
from mpgluon.parallel._planner import staged_layout
from programs import random_partitions
from programs.random_partitions import WIDTH
from support.devices import cpus_only
from support.meshes import gradients

pytestmark = cpus_only
DEVICES = [mx.cpu(20 + i) for i in range(4)]  # their pools are not used by other tests


def llama(layers=3):
    return text.from_config(
        {
            "model_type": "llama",
            "vocab_size": 512,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
    )


def tokens(rows=4, length=32):
    return nd.array(np.arange(rows * length).reshape(rows, length) % 512, dtype="int32")


def mlp():
    net = nn.HybridSequential()
    net.add(nn.Dense(256, activation="relu"), nn.LayerNorm(), nn.Dense(128), nn.Dense(8))
    return net


def resnet():
    return vision.resnet18_v1(thumbnail=True, classes=10)


NETWORKS = {
    "llama": (llama, tokens()),
    "mlp": (mlp, nd.zeros((16, 64))),
    "resnet": (resnet, nd.zeros((4, 3, 16, 16))),
}


def results(outputs):
    """The loss of a pipeline whose results get gradients of ones, as by `backward`."""
    return outputs


def trained(net, layout, x, devices=DEVICES):
    """Trains a network by a layout. Returns its results, the peak bytes of each device, and the
    description of the compiled programs."""
    devices = devices[: len(layout.bytes)]
    gc.collect()
    nd.waitall()
    before = [mx.context.memory_stats(ctx)["in_use"] for ctx in devices]
    layout.partition(net, devices)
    net.initialize(mx.init.Uniform(0.05), ctx=None if layout.axes else devices[0])
    net.hybridize(recompute=layout.recompute(devices))
    x = x.as_in_context(devices[0])
    trainer, pipelined = None, None
    for step in range(3):
        if layout.pipeline is not None:
            trainer = trainer or gluon.Trainer(net.collect_params(), "adam")
            pipelined = pipelined or parallel.TrainStep(net, results, trainer, layout.pipeline)
            y = pipelined(x, [])
        else:
            with autograd.record():
                y = net(x)
            y.backward()
            trainer = trainer or gluon.Trainer(net.collect_params(), "adam")
            trainer.step(len(x))
        nd.waitall()
        if step == 1:
            del y
            for ctx in devices:
                mx.context.reset_peak_memory(ctx)
    peaks = [mx.context.memory_stats(ctx)["peak_in_use"] for ctx in devices]
    entry = (net if pipelined is None else pipelined).compiled()[-1]
    return y.asnumpy(), [peak - base for peak, base in zip(peaks, before)], entry


@pytest.fixture(scope="module")
def used_devices():
    """A device allocates the workspace of its kernels once, with the first products."""
    [layout] = layouts(mlp(), nd.zeros((16, 64)), ["1GB"], devices=DEVICES[:1], progress=False)
    for ctx in DEVICES:
        trained(mlp(), layout, nd.zeros((16, 64)), [ctx])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.usefixtures("used_devices")
@pytest.mark.parametrize("memory", [["1GB"] * 2, ["3GB", "1GB"], ["1GB"] * 4], ids=len)
def test_bytes_are_those_of_training(name, memory):
    make, x = NETWORKS[name]
    found = layouts(make(), x, memory, devices=DEVICES[: len(memory)], progress=False)
    names = {axis for layout in found for axis in layout.axes}
    assert names == {
        *("stage", "data", "shard", "model"),
        *(["context"] if name == "llama" else []),
    }
    assert not found.skipped or name != "llama", found.skipped
    for layout in found:
        y, peaks, entry = trained(make(), layout, x)
        around = 1.125 * (2 * y.nbytes + 4 * x.size)  # the result, its gradient and the input
        # Programs have the same bytes with and without values.
        for ctx, one, peak in zip(DEVICES, layout.bytes, peaks):
            device = entry["devices"].get(str(ctx), {"peak": 0})
            planned = device["peak"] if layout.pipeline else device["planned"]["total"]
            assert 0 <= one.values - planned <= around + planned / 8, layout
            # Convolutions allocate temporary memory.
            most = 1.12 if name == "resnet" else 1.05
            assert 0.9 * one.total <= peak <= most * one.total + 2**16, (layout, ctx, peak)


@pytest.mark.parametrize("number", range(4))
def test_layouts_compute_the_same(number):
    x = tokens()
    found = layouts(llama(), x, ["1GB"] * 2, devices=DEVICES[:2], progress=False)
    computed = []
    for layout in (found[number], found[-1]):
        mx.random.seed(3)
        computed.append(trained(llama(), layout, x)[0])
    np.testing.assert_allclose(*computed, rtol=2e-3, atol=2e-4)


def test_plans_cut_transformers_by_heads_and_hidden_units():
    """The search finds the cuts of Megatron: whole heads and hidden units, and the next weights
    along the other dimension."""
    found = layouts(llama(), tokens(), ["1GB"] * 2, progress=False)
    [layout] = [one for one in found if one.axes == {"model": 2}]
    plan = {key.removeprefix(r"layers.\d+."): entry for key, entry in layout.plan.items()}
    units, sums = ("model",), (None, "model")
    for name in ("mlp.gate", "mlp.up", "attention.query", "attention.key", "attention.value"):
        assert plan[f"{name}.weight"] == units
    assert plan["mlp.down.weight"] == plan["attention.proj.weight"] == sums
    assert layout.largest.total < 0.6 * found[-1].largest.total
    assert not layout.wanted


def test_plans_are_completed():
    """The cut of the first layer spreads to the weights of the second."""
    net = nn.HybridSequential()
    net.add(nn.Dense(256), nn.Activation("relu"), nn.Dense(128))
    found = layouts(
        net, nd.zeros((16, 64)), ["1GB"] * 2, plan={"0.weight": "model"}, progress=False
    )
    [layout] = [one for one in found if one.axes == {"model": 2}]
    assert layout.plan["0.weight"] == "model" and layout.plan["2.weight"] == (None, "model")


def test_networks_keep_their_state():
    """Neither values nor unknown shapes change."""
    net, x = mlp(), nd.zeros((16, 64))
    layouts(net, x, ["1GB"] * 2, progress=False)
    assert net[0].weight.shape == (256, 0) and net[0].weight.arrays is None
    net.initialize()
    net(x)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with autograd.record():
        y = net(x + 1)
    y.backward()
    state = mx.random.get_state() if hasattr(mx.random, "get_state") else None
    before = [(p.data().asnumpy(), p.grad().asnumpy()) for p in net.collect_params().values()]
    layouts(net, x, ["1GB"] * 2, progress=False)
    after = [(p.data().asnumpy(), p.grad().asnumpy()) for p in net.collect_params().values()]
    np.testing.assert_equal(after, before)
    assert state is None or state == mx.random.get_state()
    trainer.step(16)


def test_unequal_devices_get_shares_by_memory():
    need = layouts(llama(), tokens(), ["1GB"], progress=False)[0].bytes[0].total
    found = layouts(llama(), tokens(), [need * 3 // 10, need * 9 // 10], progress=False)
    best = found.best
    assert best.axes["shard"][1] > 2 * best.axes["shard"][0] and best.fits
    turned = layouts(llama(), tokens(), [need * 9 // 10, need * 3 // 10], progress=False).best
    assert turned.axes["shard"][0] > 2 * turned.axes["shard"][1] and turned.fits
    assert found[-1].missing > 0


def test_recomputation_is_tried_if_nothing_fits():
    [alone] = layouts(llama(6), tokens(), ["1GB"], progress=False)
    limit = alone.bytes[0].total - alone.bytes[0].values // 5
    [layout] = layouts(llama(6), tokens(), [limit], progress=False)
    assert layout.fits and layout.recompute([mx.gpu(3)]) == {mx.gpu(3): layout.budget[0]}
    assert alone.recompute() is False
    _, [peak], _ = trained(llama(6), layout, tokens())
    assert peak <= 1.03 * limit
    assert "recompute" in repr(layout)


def test_networks_that_do_not_fit():
    found = layouts(llama(), tokens(), ["1MB"] * 2, progress=False)
    assert not found[0].fits and "lacks" in repr(found) and "lacks" in repr(found[0])
    with pytest.raises(mx.MXNetError, match=r"does not fit on 2 devices.* lacks [\d.]+ MB"):
        _ = found.best
    assert "<table>" in found._repr_html_()


@pytest.mark.parametrize(
    "flags", [{"exact": True}, {"recompute": True}, {"offload": True}], ids=str
)
def test_flags_of_hybridize_count(flags):
    """The programs are those of the hybridized network."""
    flags = {"offload": {"activations": mx.cpu(30)}} if "offload" in flags else flags
    net = llama()
    net.hybridize(**flags)
    [layout] = layouts(net, tokens(), ["1GB"], devices=DEVICES[:1], progress=False)
    other = llama()
    other.initialize(ctx=DEVICES[0])
    other.hybridize(**flags)
    with autograd.record():
        y = other(tokens().as_in_context(DEVICES[0]))
    y.backward()
    planned = other.compiled()[-1]["devices"][str(DEVICES[0])]["planned"]["total"]
    assert planned <= layout.bytes[0].values <= 1.13 * (planned + 12 * y.size)
    if "offload" in flags:
        [plain] = layouts(llama(), tokens(), ["1GB"], progress=False)
        assert layout.bytes[0].values < 0.9 * plain.bytes[0].values


@pytest.mark.parametrize(
    "optimizer, factor",
    [("sgd", 0), (mx.optimizer.SGD(momentum=0.9), 1), ("adam", 2), ("adafactor", 1 / 32)],
    ids=str,
)
def test_states_of_optimizers(optimizer, factor):
    [alone] = layouts(llama(), tokens(), ["1GB"], optimizer=optimizer, progress=False)
    weights, gradients, states, _ = alone.bytes[0]
    assert gradients == weights and states == pytest.approx(factor * weights, rel=1e-3)


def test_types_prediction_and_frozen_parameters():
    net = llama()
    [whole] = layouts(net, tokens(), ["1GB"], progress=False)
    [alone] = layouts(net, tokens(), ["1GB"], train=False, progress=False)
    assert alone.bytes[0].gradients == alone.bytes[0].states == 0
    assert alone.bytes[0].values < whole.bytes[0].values
    net.cast("bfloat16")
    [plain] = layouts(net, tokens(), ["1GB"], progress=False)
    assert plain.bytes[0].states == 2 * plain.bytes[0].weights
    options = {"optimizer_params": {"multi_precision": True}, "progress": False}
    [half] = layouts(net, tokens(), ["1GB"], **options)
    assert half.bytes[0].weights * 2 == whole.bytes[0].weights
    assert half.bytes[0].states == 6 * half.bytes[0].weights  # float32 copy and two states
    net.collect_params().setattr("grad_req", "null")
    [frozen] = layouts(net, tokens(), ["1GB"], progress=False)
    assert frozen.bytes[0].gradients == frozen.bytes[0].states == 0


def test_losses_and_labels():
    loss, x = gluon.loss.SoftmaxCrossEntropyLoss(), nd.zeros((16, 64))
    found = layouts(
        mlp(), x, ["1GB"] * 2, loss=loss, labels=nd.zeros((16,)), optimizer="sgd", progress=False
    )
    names = {axis for layout in found for axis in layout.axes}
    assert names == {"stage", "data", "shard", "model"}


class Mixture(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(64, in_units=64, flatten=False)
        self.moe = nn.MoE(64, 128, experts=8, k=2, in_units=64)

    def hybrid_forward(self, F, x):
        return self.moe(self.first(x))


@pytest.mark.usefixtures("used_devices")
@pytest.mark.parametrize("count", [2, 4])
def test_experts_are_divided(count):
    """Along `expert`, alone and with one other axis. Training needs the predicted bytes."""
    x = nd.zeros((16, 8, 64))
    memory, devices = ["1GB"] * count, DEVICES[:count]
    found = layouts(Mixture(), x, memory, devices=devices, progress=False)
    divided = {layout.name: layout for layout in found if "expert" in layout.axes}
    several = {f"{axis} 2, expert 2" for axis in ("data", "shard", "stage")}
    assert set(divided) == ({"expert 2"} if count == 2 else {"expert 4", *several})
    for name, layout in divided.items():
        assert layout.plan["moe.up_weight"] == "expert"
        if name.startswith("expert"):
            assert layout.largest.weights < found[-1].largest.weights / count * 1.3
        _, peaks, _ = trained(Mixture(), layout, x, devices)
        for one, peak in zip(layout.bytes, peaks):
            assert 0.85 * one.total <= peak <= 1.1 * one.total + 2**16, (layout, peak)
    assert not [
        1
        for layout in layouts(mlp(), nd.zeros((16, 64)), memory, progress=False)
        if "expert" in layout.axes
    ]


def test_stages_need_blocks_in_sequence_and_rows():
    """Otherwise, no pipeline is tried. A network of two blocks has no four stages."""
    for net, rows, counts in (
        (in_sequence(nn.Dense(128, in_units=64)), 16, []),
        (Mixture(), 16, [2]),
        (mlp(), 16, [2, 4]),
        (mlp(), 1, []),
    ):
        shape = (rows, 8, 64) if isinstance(net, Mixture) else (rows, 64)
        found = layouts(net, nd.zeros(shape), ["1GB"] * 4, progress=False)
        sizes = {layout.axes["stage"] for layout in found if "stage" in layout.axes}
        assert sizes == set(counts) and "stage 4" not in found.skipped


def test_pipelines_have_stages_of_equal_rows():
    for rows, axes, count in (
        (16, {"stage": 2}, 8),
        (12, {"stage": 2}, 6),
        (7, {"stage": 2}, 7),
        (13, {"stage": 2}, 8),
        (16, {"stage": 4, "data": 2}, 8),
        (3, {"stage": 2, "shard": 2}, 0),
    ):
        assert staged_layout.micro_batches(rows, axes) == count, (rows, axes)


def test_pipelines_of_predictions():
    x = tokens(8)
    found = layouts(llama(), x, ["1GB"] * 2, train=False, progress=False)
    [layout] = [one for one in found if one.axes == {"stage": 2}]
    net = layout.partition(llama(), DEVICES[:2])
    net.initialize()
    net.hybridize(pipeline=layout.pipeline)
    net(x.as_in_context(DEVICES[0]))
    entry = net.compiled()[-1]
    for ctx, one in zip(DEVICES, layout.bytes):
        assert entry["devices"][str(ctx)]["peak"] <= one.values
    assert layout.sent == sum(8 * stage["bytes_sent"] for stage in entry["stages"])
    assert "8 micro-batches" in repr(layout) and "8 micro-batches" in repr(found)


def test_each_axis_of_the_best_layout_has_a_line():
    """Also of a pipeline, if it alone fits."""
    [alone] = layouts(llama(6), tokens(8), ["1GB"], progress=False)
    found = layouts(llama(6), tokens(8), ["1GB"] * 4, progress=False)
    smallest = min(found, key=lambda layout: layout.largest.total)
    assert smallest.name == "stage 4" and smallest.largest.total < alone.largest.total / 3
    limit = smallest.largest.total
    found = layouts(llama(6), tokens(8), [limit] * 4, progress=False)
    assert found.best.name == "stage 4" and found.best.pipeline is not None
    lines = [line for line in repr(found).splitlines() if " instead of " in line]
    assert len(lines) == 1 and lines[0].strip().startswith("stage: ")


@pytest.mark.parametrize("seed", range(25))
def test_layouts_of_random_networks(seed, monkeypatch):
    """All layouts compute the same, and their programs have the predicted bytes."""
    monkeypatch.setattr(_partition, "_SMALLEST", 8)
    case = random_partitions.Case(seed)
    case.marks = {}
    for node in case.nodes:
        node.device = 0
    x = nd.array(np.random.RandomState(seed).uniform(-1, 1, (12, WIDTH)), dtype=case.dtype)
    make = functools.partial(random_partitions.Network, case)
    if not [*make().collect_params()]:
        return
    wanted = None
    for layout in reversed([*layouts(make(), x, ["1GB"] * 2, progress=False)]):
        net = make()
        layout.partition(net)
        net.hybridize()
        mx.random.seed(seed)
        with autograd.record():
            outputs = net(x)
            loss = nd.add_n(*[(out * out).mean() for out in outputs])
        loss.backward()
        found = [*[out.asnumpy() for out in outputs], *gradients(net).values()]
        wanted = wanted or found
        for a, b in zip(found, wanted):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8 * max(1, np.abs(b).max()))
        if layout.pipeline is not None:
            continue  # this was not in micro-batches
        devices = net.compiled()[-1]["devices"]
        for ctx, one in zip(layout.devices, layout.bytes):
            assert devices[str(ctx)]["planned"]["total"] <= one.values, layout


class Listed(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(128, in_units=64)

    def hybrid_forward(self, F, x):
        return self.dense(x[0]) + self.dense(x[1])


class Capturing(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.array = nd.ones((64,))
        self.dense = nn.Dense(128, in_units=64)

    def hybrid_forward(self, F, x, y=None):
        return self.dense(F.broadcast_mul(x, self.array))


def in_sequence(layer):
    net = nn.HybridSequential()
    net.add(layer)
    return net


@pytest.mark.parametrize("kind", ["list", "captured", "None", "lstm", "lstm in a network", "np"])
def test_kinds_of_networks_and_inputs(kind):
    x = nd.zeros((16, 64))
    with mx.util.np_shape(kind == "np"), mx.util.np_array(kind == "np"):
        lstm = rnn.LSTM(64, 2, bidirectional=True, input_size=32)
        net, sample = {
            "list": (Listed(), [[x, x]]),
            "captured": (Capturing(), x),
            "None": (Capturing(), [x, None]),
            "lstm": (lstm, nd.zeros((5, 4, 32))),
            "lstm in a network": (in_sequence(lstm), nd.zeros((5, 4, 32))),
            "np": (mlp(), mx.np.zeros((16, 64))),
        }[kind]
        found = layouts(net, sample, [1e7] * 2, progress=False)
    assert "shard" in {axis for layout in found for axis in layout.axes}, found.skipped


def test_layouts_leave_no_device_idle():
    """A batch of two rows has no parts for four devices."""
    found = layouts(mlp(), nd.zeros((2, 64)), ["1GB"] * 4, progress=False)
    assert all("data" not in layout.axes or layout.axes["data"] == 2 for layout in found)
    assert "data 4" in found.skipped
    for layout in found:
        assert layout.name == "one device" or all(one.total for one in layout.bytes)


class Selected(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.contrib.boolean_mask(x, x.sum(axis=1))


def test_invalid_arguments_raise():
    x = nd.zeros((4, 64))
    for error, what, arguments in (
        (TypeError, "must be a HybridBlock", (nn.Sequential(), x, ["1GB"])),
        (TypeError, "sample must be", (mlp(), [1], ["1GB"])),
        (ValueError, "pass memory=", (mlp(), x)),
        (ValueError, "a list with an entry for each device", (mlp(), x, "1GB")),
        (ValueError, "a list with an entry for each device", (mlp(), x, 10**9)),
        (TypeError, "plan must be a dict", (mlp(), x, ["1GB"] * 2, "model")),
        (ValueError, "memory must be .* not '1XB'", (mlp(), x, ["1XB"])),
        (ValueError, "memory must be positive, not 0", (mlp(), x, [0])),
        (ValueError, "at most 64", (mlp(), x, ["1GB"] * 65)),
        (ValueError, "'zzz' does not match", (mlp(), x, ["1GB"] * 2, {"zzz": "model"})),
        (ValueError, "names the axis 'foo'", (mlp(), x, ["1GB"] * 2, {"0.weight": "foo"})),
        (mx.MXNetError, "is not compiled as a whole", (Selected(), x, ["1GB"])),
    ):
        plan = arguments[3] if len(arguments) > 3 else None
        with pytest.raises(error, match=what):
            layouts(*arguments[:3], plan=plan, progress=False)
    for error, what, options in (
        (TypeError, "loss must be a function", {"loss": "l2"}),
        (TypeError, "must return arrays, not float", {"loss": lambda out: 1.0}),
        (ValueError, "pass loss=", {"labels": x}),
    ):
        with pytest.raises(error, match=what):
            layouts(mlp(), x, ["1GB"], progress=False, **options)
    locked = mlp()
    locked.lock = threading.Lock()
    with pytest.raises(mx.MXNetError, match="cannot be copied"):
        layouts(locked, x, ["1GB"], progress=False)
    with pytest.raises(ValueError, match="different Contexts"):
        layouts(mlp(), x, ["1GB"] * 2, devices=[mx.cpu(0)] * 2)
    with pytest.raises(ValueError, match=r"cpu\(40\) has no memory limit"):
        layouts(mlp(), x, devices=[mx.cpu(40)])
    net = mlp()
    net.initialize()
    net(x)
    Mesh({"shard": 2}, DEVICES[:2]).partition(net)
    with pytest.raises(mx.MXNetError, match="before it is divided"):
        layouts(net, x, ["1GB"])


def test_limits_of_devices_are_the_default():
    ctx = mx.cpu(41)
    mx.context.set_memory_limit(ctx, 2**20)
    try:
        [layout] = layouts(mlp(), nd.zeros((4, 64)), devices=ctx, progress=False)
    finally:
        mx.context.set_memory_limit(ctx, 0)
    assert layout.limits == [2**20]
    [layout] = layouts(mlp(), nd.zeros((4, 64)), {ctx: "3MB"}, progress=False)
    assert layout.devices == [ctx] and layout.limits == [3 * 10**6]
    with pytest.raises(ValueError, match="each of the devices"):
        layouts(mlp(), nd.zeros((4, 64)), {ctx: "3MB"}, devices=[mx.cpu(0)])
