"""Checkpoints load onto any layout; killed saves and damaged files do no harm."""

import io
import json
import os
import random as pyrandom
import re
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import (
    Mesh,
    ParallelLSTM,
    ParallelSelfAttention,
    ShardedParameter,
    load,
    save,
    shard,
)
from support.calls import raises
from support.compare import same_bits
from support.devices import on
from support.processes import environment
from support.training import backward_of

CPU = [on(i) for i in range(6)]
LOSS = gluon.loss.L2Loss()


def mlp(prefix="net_"):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(
            nn.Dense(12, activation="relu"),
            nn.BatchNorm(),
            nn.Dense(10, activation="tanh"),
            nn.Dense(4),
        )
    return net


def build(axes, seed=5, make=mlp, optimizer="adam", prefix="net_", **options):
    mx.random.seed(seed)
    net, mesh = make(prefix), Mesh(axes)
    net.place(mesh)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    run(net, mesh, None)
    return net, mesh, gluon.Trainer(net.collect_params(), optimizer, **options)


def run(net, mesh, trainer, steps=3, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps if trainer else 1):
        x, y = nd.array(rng.standard_normal((12, 6))), nd.array(rng.standard_normal((12, 4)))
        for part, label in zip(mesh.split_and_load(x), mesh.split_and_load(y, stage=-1)):
            if trainer is None:
                net(part)
                continue
            backward_of(lambda: LOSS(net(part), label))
        if trainer is not None:
            trainer.step(12)


def values(net):
    return {
        name: param.reduced().asnumpy() for name, param in net._collect_params_with_prefix().items()
    }


def close(one, other):
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-6)


LAYOUTS = [{"data": 1}, {"stage": 2}, {"stage": 4}, {"data": 2, "stage": 2}, {"data": 3}]


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("source", LAYOUTS, ids=str)
def test_checkpoint_loads_onto_any_layout(tmp_path, source, gather):
    net, mesh, trainer = build(source, shard_updates=True)
    run(net, mesh, trainer)
    mx.random.seed(77)
    nd.random.uniform(shape=(3,))
    save(
        tmp_path,
        net,
        trainer,
        position={"epoch": 2, "batch": 7},
        loss_scale=1024.0,
        extra=["x"],
        gather=gather,
    )
    drawn = nd.random.uniform(shape=(3,)).asnumpy()
    saved = values(net)
    shards = [name for name in os.listdir(tmp_path) if name.endswith(".safetensors")]
    if gather:
        assert len(shards) == 1
    elif "data" not in source:
        assert len(shards) == source["stage"]
    run(net, mesh, trainer, seed=1)
    for target in LAYOUTS:
        other, other_mesh, other_trainer = build(target, seed=9, prefix="other_")
        found = load(tmp_path, other, other_trainer)
        assert found == {
            "step": 3,
            "position": {"epoch": 2, "batch": 7},
            "loss_scale": 1024.0,
            "extra": ["x"],
        }
        assert nd.random.uniform(shape=(3,)).asnumpy().tobytes() == drawn.tobytes()
        same_bits(saved, values(other))
        run(other, other_mesh, other_trainer, seed=1)
        assert other_trainer.optimizer.num_update == 6
        if target == source and source.get("data", 1) == 1:
            same_bits(values(net), values(other))
        elif target.get("data", 1) == source.get("data", 1) == 1:
            close(values(net), values(other))


@pytest.mark.parametrize(
    "optimizer, options",
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9}),
        ("lamb", {}),
        ("adafactor", {}),
        ("rmsprop", {"centered": True}),
    ],
)
def test_optimizer_states_are_restored_bitwise(tmp_path, optimizer, options):
    net, mesh, trainer = build({"stage": 2}, optimizer=optimizer, optimizer_params=options)
    run(net, mesh, trainer)
    save(tmp_path, net, trainer)
    other, other_mesh, other_trainer = build(
        {"data": 1}, seed=1, optimizer=optimizer, optimizer_params=options
    )
    load(tmp_path, other, other_trainer)
    states = [s for u in other_trainer._state.by_device.values() for s in u.states]
    assert not states  # the next step creates them on their devices
    for n, m, t in ((net, mesh, trainer), (other, other_mesh, other_trainer)):
        run(n, m, t, seed=2)
    same_bits(values(net), values(other))


def test_checkpoint_loads_into_network_with_unknown_shapes(tmp_path):
    net, mesh, trainer = build({"stage": 2})
    save(tmp_path, net)
    fresh = mlp("fresh_")
    fresh.initialize()
    load(tmp_path, fresh)
    same_bits(values(net), values(fresh))
    bare = mlp("bare_")
    raises(MXNetError, "has not been initialized", lambda: load(tmp_path, bare))
    raises(MXNetError, "saved without a trainer", lambda: load(tmp_path, net, trainer))


class Split(gluon.HybridBlock):
    """A product whose weight is split over devices like that of sharded layers.

    Its parameters have global_shape, axis and index.
    """

    def __init__(self, count, axis, sizes):
        super().__init__(prefix="split_")
        self.count = count
        with self.name_scope():
            for i, size in enumerate(sizes):
                shape = (size, 9) if axis == 0 else (7, size)
                param = self.params.get(f"weight{i}", shape=shape)
                param.global_shape, param.axis, param.index = (7, 9), axis, i
                setattr(self, f"weight{i}", param)
        for i in range(len(sizes)):
            getattr(self, f"weight{i}").initialize(mx.init.Uniform(), ctx=CPU[i])


class Plain(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="plain_")
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(7, 9))
        self.weight.initialize(mx.init.Uniform(), ctx=CPU[5])


SPLITS = {
    "whole": Plain,
    "2 of axis 0": lambda: Split(2, 0, [4, 3]),
    "3 of axis 0": lambda: Split(3, 0, [3, 2, 2]),
    "2 of axis 1": lambda: Split(2, 1, [5, 4]),
}


def whole(params, read):
    """Returns the assembled value of a parameter or state."""
    parts = [read(param) for param in params]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, params[0].axis)


def one_step(net, trainer):
    with autograd.record():
        losses = [
            (param.data() * param.data() * 3).sum() for param in net.collect_params().values()
        ]
    autograd.backward(losses)
    trainer.step(1)


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("source", SPLITS)
def test_split_parameters_load_into_any_split_or_whole(tmp_path, source, gather):
    net = SPLITS[source]()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    one_step(net, trainer)
    params = list(net.collect_params().values())
    saved = whole(params, lambda param: param.data().asnumpy())
    save(tmp_path, net, trainer, gather=gather)
    one_step(net, trainer)
    expected = whole(params, lambda param: param.data().asnumpy())
    for target in SPLITS.values():
        other = target()
        other_trainer = gluon.Trainer(other.collect_params(), "adam")
        load(tmp_path, other, other_trainer)
        others = list(other.collect_params().values())
        assert whole(others, lambda param: param.data().asnumpy()).tobytes() == saved.tobytes()
        one_step(other, other_trainer)
        assert whole(others, lambda param: param.data().asnumpy()).tobytes() == expected.tobytes()


def test_incomplete_parameter_shards_are_refused(tmp_path):
    with pytest.raises(
        MXNetError, match="shards of parameter 'weight' have 6 elements in total along axis 0"
    ):
        save(tmp_path, Split(2, 0, [3, 3]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_checkpoint_dtypes_are_readable_by_safetensors(tmp_path, dtype):
    net = nn.Dense(3, in_units=5)
    net.initialize()
    net.cast(dtype)
    net.weight.set_data(nd.array(np.linspace(-3, 3, 15).reshape(3, 5)).astype(dtype))
    save(tmp_path, net)
    other = nn.Dense(3, in_units=5)
    other.initialize()
    other.cast(dtype)
    load(tmp_path, other)
    same_bits(values(net), values(other))
    reader = pytest.importorskip("safetensors")
    (path,) = [
        str(tmp_path / name) for name in os.listdir(tmp_path) if name.endswith(".safetensors")
    ]
    with open(path, "rb") as file:
        tensors = dict(reader.deserialize(file.read()))
    assert set(tensors) == {"weight", "bias"}
    expected = net.weight.data().asnumpy()
    if dtype == "bfloat16":  # NumPy represents it as float32
        expected = (expected.view(np.uint32) >> 16).astype(np.uint16)
    names = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16"}
    tensor = tensors["weight"]
    assert (tensor["dtype"], tensor["shape"]) == (names[dtype], [3, 5])
    assert bytes(tensor["data"]) == expected.tobytes()


def test_background_save_keeps_values_of_the_call(tmp_path):
    net, mesh, trainer = build({"data": 2, "stage": 2})
    run(net, mesh, trainer)
    expected = values(net)
    saving = save(tmp_path, net, trainer, background=True)
    run(net, mesh, trainer, steps=10)
    saving.wait()
    assert saving.done()
    saving.wait()  # a second wait returns immediately
    load(tmp_path, net, trainer)
    same_bits(expected, values(net))


def test_save_onto_a_file_asks_for_a_folder(tmp_path):
    net, file = nn.Dense(2, in_units=2), tmp_path / "model.params"
    net.initialize()
    file.write_text("kept")
    message = "model.params' is a file, but a checkpoint is a folder"
    raises(FileExistsError, message, lambda: save(file, net))
    assert file.read_text() == "kept"


def test_background_save_errors_are_raised(tmp_path):
    net = nn.Dense(2, in_units=2)
    net.initialize()
    (tmp_path / "file").write_text("in the way")
    saving = save(tmp_path / "file", net, background=True)
    with pytest.raises(OSError):
        saving.wait()
    saving.wait()  # raised only once
    save(tmp_path / "file", net, background=True)
    with pytest.raises(OSError):
        save(tmp_path / "file", net, background=True)
    with pytest.raises(MXNetError, match="JSON-serializable"):
        save(tmp_path / "other", net, position=object())
    assert not (tmp_path / "other").exists()


def test_failed_save_keeps_previous_checkpoint(tmp_path, monkeypatch):
    net = nn.Dense(2, in_units=2)
    net.initialize()
    save(tmp_path, net)
    expected = values(net)
    net.weight.set_data(nd.ones((2, 2)))

    def full(*_):
        raise OSError("no space left")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, full)
            raises(OSError, "no space left", lambda: save(tmp_path, net))
        load(tmp_path, net)
        same_bits(expected, values(net))
        net.weight.set_data(nd.ones((2, 2)))
    save(tmp_path, net)
    assert len(os.listdir(tmp_path)) == 2  # leftover files are removed
    load(tmp_path, net)
    assert (net.weight.data().asnumpy() == 1).all()


KILLED = """
import builtins, os, signal, sys
import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon import nn
directory, first, moment = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
steps = 0

def step(call, *args, **options):
    global steps
    if steps == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    steps += 1
    return call(*args, **options)

class Written:
    def __init__(self, file):
        self.file = file
    def __getattr__(self, name):
        return getattr(self.file, name)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.file.close()
    def write(self, data):
        half = len(data) // 2  # what was written may be cut anywhere: it is killed there, too
        self.file.write(data[:half])
        self.file.flush()
        return half + step(self.file.write, data[half:])

def opened(path, mode="r", *args, _open=open, **options):
    if "w" not in mode or not str(path).startswith(directory):
        return _open(path, mode, *args, **options)
    return Written(step(_open, path, mode, *args, **options))

net = nn.HybridSequential()
for i in range(3):
    net.add(nn.Dense(30, in_units=30))
    net[i].initialize(ctx=mx.cpu(i))
for k in (first, first + 1):
    for param in net.collect_params().values():
        param.set_data(nd.full(param.shape, k))
    if k == first + 1:
        builtins.open = opened
        for name in ("fsync", "replace", "remove"):
            setattr(os, name, lambda *args, _call=getattr(os, name): step(_call, *args))
    saving = mx.parallel.save(directory, net, step=k, background=sys.argv[4] == "True")
    if saving is not None:
        saving.wait()
print(steps)
"""


def kill_while_saving(directory, first, moment, background):
    """Saves twice in a child process, which is killed before the `moment`-th file operation.

    Only operations of the second save are counted. Returns the exit code and the output.
    """
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(directory), str(first), str(moment), str(background)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
def test_kill_at_any_moment_keeps_a_complete_checkpoint(tmp_path, background):
    net = nn.HybridSequential()
    for i in range(3):
        net.add(nn.Dense(30, in_units=30))
    net.initialize()
    code, steps = kill_while_saving(tmp_path / "whole", 1, -1, background)
    assert code == 0
    steps = int(steps)
    loaded = []
    # Covers every third moment of writing the shards, and all of the index: opened, written,
    # synced, replaced, name synced, old files removed.
    moments = [*range(0, steps - 8, 3), *range(steps - 8, steps)]
    for number, moment in enumerate(moments[::2] if background else moments):
        # reuses the directory, because leftovers of a killed save do no harm
        first = 1 + 2 * number
        code, _ = kill_while_saving(tmp_path / "c", first, moment, background)
        assert code == -signal.SIGKILL
        step = load(tmp_path / "c", net)["step"]
        loaded.append(step - first)
        for param in net.collect_params().values():
            assert (param.data().asnumpy() == step).all()
    # The new checkpoint loads from the moment its index replaces the old one
    assert set(loaded) == {0, 1} and loaded == sorted(loaded)


def damage(path, rng):
    """Damages a file at random and returns the kind of damage."""
    data = bytearray(path.read_bytes())
    how = rng.choice(["truncate", "flip", "append", "zero", "empty", "header"])
    if how == "truncate":
        del data[rng.randrange(len(data)) :]
    elif how == "flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == "append":
        data += b"more"
    elif how == "zero":
        at = rng.randrange(len(data))
        former = bytes(data)
        data[at : at + 64] = bytes(len(data[at : at + 64]))
        if data == former:
            data[at] ^= 255
    elif how == "empty":
        data.clear()
    else:
        data[: rng.randrange(1, 12)] = rng.randbytes(11)[: rng.randrange(1, 12)]
        data[8] ^= 1
    path.write_bytes(bytes(data))
    return how


def test_damaged_checkpoint_is_named_and_changes_nothing(tmp_path):
    net, mesh, trainer = build({"stage": 3})
    run(net, mesh, trainer)
    save(tmp_path, net, trainer)
    whole_files = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    assert len(whole_files) == 4
    run(net, mesh, trainer, seed=3)
    before, random_state = values(net), mx.random.get_state()
    rng = pyrandom.Random(1)
    for attempt in range(120):
        name = rng.choice(sorted(whole_files))
        how = damage(tmp_path / name, rng)
        with pytest.raises(MXNetError, match=name) as error:
            load(tmp_path, net, trainer)
        assert "damaged" in str(error.value), (how, error.value)
        (tmp_path / name).write_bytes(whole_files[name])
    shard = next(name for name in whole_files if name.endswith(f"{on(1).device_type}1.safetensors"))
    os.remove(tmp_path / shard)
    raises(MXNetError, f"{shard}' cannot be read", lambda: load(tmp_path, net, trainer))
    same_bits(before, values(net))
    assert mx.random.get_state() == random_state
    (tmp_path / shard).write_bytes(whole_files[shard])
    load(tmp_path, net, trainer)
    raises(FileNotFoundError, "no checkpoint at", lambda: load(tmp_path / "nowhere", net))


def test_changed_array_contents_are_named(tmp_path):
    net = nn.Dense(2, in_units=2)
    net.initialize()
    save(tmp_path, net)
    (path,) = tmp_path.glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    raises(MXNetError, "the contents of '(weight|bias)' were changed", lambda: load(tmp_path, net))


def test_checkpoint_of_another_network_is_refused(tmp_path):
    net, mesh, trainer = build({"stage": 2})
    run(net, mesh, trainer)
    save(tmp_path, net, trainer)

    def other(width=12, last=True, dtype="float32"):
        changed = nn.HybridSequential()
        changed.add(
            nn.Dense(width, in_units=6),
            nn.BatchNorm(in_channels=width),
            nn.Dense(10, in_units=width),
        )
        if last:
            changed.add(nn.Dense(4, in_units=10))
        changed.initialize()
        changed.cast(dtype)
        return changed

    for changed, message in (
        (
            other(width=13),
            r"'0.weight' has shape \(13, 6\) in the network, \(12, 6\) in the checkpoint; .*; and "
            r"\d more",
        ),
        (other(last=False), r"the network has no parameter '3.weight' \(4, 10\)"),
        (other(dtype="float64"), "is float64 in the network, float32 in the checkpoint"),
    ):
        before = values(changed)
        raises(MXNetError, message, lambda: load(tmp_path, changed))
        same_bits(before, values(changed))
    longer = other()
    longer.add(nn.Dense(2, in_units=4))
    longer[4].initialize()
    raises(MXNetError, "the checkpoint has no parameter '4.weight'", lambda: load(tmp_path, longer))
    before = values(net)
    with pytest.raises(MXNetError, match="states of optimizer Adam, but this trainer has SGD"):
        load(tmp_path, net, gluon.Trainer(net.collect_params(), "sgd"))
    part = gluon.Trainer(net[0].collect_params(), "adam")
    with pytest.raises(MXNetError, match="states of parameters that this trainer does not have"):
        load(tmp_path, net, part)
    same_bits(before, values(net))


def test_save_and_load_hold_at_most_one_shard_in_memory(tmp_path):
    """Four devices hold 4 MB each.

    tracemalloc counts host arrays and the pools count device memory.
    """
    net = nn.HybridSequential()
    for i in range(4):
        net.add(nn.Dense(1024, in_units=1024, use_bias=False))
    net.place(Mesh({"stage": 4}))
    net.initialize()
    net(nd.ones((1, 1024)))
    nd.waitall()
    shard = 4 << 20
    single = nn.HybridSequential()
    for i in range(4):
        single.add(nn.Dense(1024, in_units=1024, use_bias=False))
    single.initialize(ctx=on(5))
    single.collect_params().zero_grad()
    nd.waitall()
    save(tmp_path, net)  # warms up one-time allocations
    peaks = {}
    for name, work in (
        ("save", lambda: save(tmp_path, net)),
        ("load", lambda: load(tmp_path, net)),
        ("load onto one device", lambda: load(tmp_path, single)),
    ):
        for ctx in CPU:
            mx.context.reset_peak_memory(ctx)
        before = {ctx: mx.context.memory_stats(ctx)["in_use"] for ctx in CPU}
        tracemalloc.start()
        work()
        nd.waitall()
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        for ctx in CPU:
            assert mx.context.memory_stats(ctx)["peak_in_use"] - before[ctx] <= 1.05 * shard
    assert all(peak < 1.1 * shard for peak in peaks.values()), peaks
    sizes = [
        os.path.getsize(tmp_path / name)
        for name in os.listdir(tmp_path)
        if name.endswith(".safetensors")
    ]
    assert len(sizes) == 4 and all(abs(size - shard) < 4096 for size in sizes)


def test_progress_bar_is_shown_only_on_request(tmp_path, capsys):
    net = nn.Dense(2, in_units=2)
    net.initialize()
    save(tmp_path, net)
    load(tmp_path, net)
    assert "saving" not in capsys.readouterr().err
    save(tmp_path, net, progress=True)
    load(tmp_path, net, progress=True)
    text = capsys.readouterr().err
    assert "saving" in text and "checking" in text


def test_index_lists_names_shapes_and_shards(tmp_path):
    net, mesh, trainer = build({"stage": 2})
    run(net, mesh, trainer)
    save(tmp_path, net, trainer, step=41)
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["step"] == 41 and index["trainer"]["optimizer"] == "Adam"
    assert index["arrays"]["0.weight"]["shape"] == [12, 6]
    devices = [shard["device"] for shard in index["shards"]]
    assert sorted(devices) == [str(on(0)), str(on(1))]
    assert devices[index["arrays"]["3.bias"]["pieces"][0]["shard"]] == str(on(1))
    assert index["arrays"]["optimizer:3.bias:0"]["shape"] == [4]


def split_pair(seed):
    """Returns a network, and the same network with its layers split over two devices."""
    nets = []
    for split in (False, True):
        net = nn.HybridSequential()
        net.add(nn.Dense(8, in_units=6, activation="relu"), nn.Dense(4, in_units=8))
        if split:
            shard(net, {"0": "column", "1": "row"}, CPU[:2])
        mx.random.seed(seed)
        net.initialize(mx.init.Xavier())
        nets.append(net)
    return nets


def test_split_layers_load_into_whole_layers_and_back(tmp_path):
    x = nd.array(np.random.RandomState(0).randn(3, 6))
    (whole, split), (other_whole, other_split) = split_pair(1), split_pair(2)
    expected = whole(x).asnumpy()
    for number, (source, targets) in enumerate(
        ((split, (other_whole, other_split)), (whole, (split_pair(3)[1],)))
    ):
        save(tmp_path / str(number), source)
        for target in targets:
            load(tmp_path / str(number), target)
            np.testing.assert_allclose(target(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


SEVERAL = {
    "lstm": (
        lambda ctx: (
            ParallelLSTM(7, ctx, num_layers=2, prefix="a_")
            if ctx
            else rnn.LSTM(7, num_layers=2, prefix="a_")
        ),
        (3, 2, 5),
    ),
    "lstm of two directions": (
        lambda ctx: (
            ParallelLSTM(8, ctx, bidirectional=True) if ctx else rnn.LSTM(8, bidirectional=True)
        ),
        (3, 2, 5),
    ),
    "queries, keys, values": (
        lambda ctx: ParallelSelfAttention(12, 4, ctx or CPU[:1], prefix="a_"),
        (2, 3, 12),
    ),
    "convolution": (
        lambda ctx: wrapped(nn.Conv2D(8, 3, groups=4, in_channels=8), ctx, "column"),
        (1, 8, 5, 5),
    ),
    "classes": (lambda ctx: wrapped(nn.Embedding(11, 4), ctx, "vocab"), (3,)),
}


def wrapped(layer, ctx, kind):
    net = nn.HybridSequential()
    net.add(layer)
    return shard(net, {"0": kind}, ctx) if ctx else net


def together(net):
    """Assembles split parameters under their global names."""
    found = {}
    for name, param in net._collect_params_with_prefix().items():
        if not isinstance(param, ShardedParameter):
            found[name] = param.data().asnumpy()
            continue
        target = found.setdefault(
            re.sub(r"shard\d+_", "", name), np.zeros(param.global_shape, "float32")
        )
        before, at, value = (slice(None),) * param.axis, 0, param.data().asnumpy()
        for begin, end in param.ranges:
            target[(*before, slice(begin, end))] = value[(*before, slice(at, at + end - begin))]
            at += end - begin
    return found


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("name", SEVERAL)
def test_multi_range_parts_load_into_any_split(tmp_path, name, gather):
    """Covers gates, heads and groups: same split, different split and whole.

    Compares parameters, momenta and the results of the next step.
    """
    make, shape = SEVERAL[name]
    rng = np.random.default_rng(2)
    data = [
        nd.array(rng.integers(0, 11, shape) if name == "classes" else rng.standard_normal(shape))
        for _ in range(3)
    ]

    def step(net, trainer, x):
        backward_of(lambda: (net(x) ** 2).mean())
        trainer.step(1)

    for number, source in enumerate((None, CPU[:3], CPU[2:4])):
        mx.random.seed(number)
        net, results = make(source), []
        net.initialize(mx.init.Xavier())
        net(data[0])
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
        step(net, trainer, data[0])
        save(tmp_path / str(number), net, trainer, gather=gather)
        saved = together(net)
        for target in (None, CPU[:2], CPU[1:4], CPU[:4]):
            other = make(target)
            other.initialize()  # shapes come from the checkpoint
            other_trainer = gluon.Trainer(other.collect_params(), "sgd", {"momentum": 0.9})
            load(tmp_path / str(number), other, other_trainer)
            same_bits(saved, together(other))
            step(other, other_trainer, data[1])
            results.append(together(other))
        step(net, trainer, data[1])
        for result in results:
            for key, value in together(net).items():
                assert np.abs(value - result[key]).max() <= 1e-5 * np.abs(value).max(), key


def test_multi_range_part_is_checked_and_read_separately(tmp_path):
    """Damage is reported by file and parameter before anything changes.

    No device or host holds more than one part.
    """
    net = ParallelLSTM(256, CPU[:4], input_size=256)
    net.initialize()
    net(nd.ones((1, 1, 256)))
    nd.waitall()
    save(tmp_path, net)
    part = max(param.data().size for param in net.collect_params().values()) * 4
    for work in (lambda: save(tmp_path, net), lambda: load(tmp_path, net)):
        for ctx in CPU[:4]:
            mx.context.reset_peak_memory(ctx)
        before = {ctx: mx.context.memory_stats(ctx)["in_use"] for ctx in CPU[:4]}
        tracemalloc.start()
        work()
        nd.waitall()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.2 * part + io.DEFAULT_BUFFER_SIZE
        for ctx in CPU[:4]:
            assert mx.context.memory_stats(ctx)["peak_in_use"] - before[ctx] <= 1.05 * part
    expected = together(net)
    path = next(tmp_path.glob(f"*{on(2).device_type}2.safetensors"))
    data = path.read_bytes()
    for damaged in (data[:-100], data[:-5] + bytes([data[-5] ^ 4]) + data[-4:]):
        path.write_bytes(damaged)
        raises(MXNetError, f"'.*{path.name}' is damaged", lambda: load(tmp_path, net))
        same_bits(expected, together(net))
    path.write_bytes(data)
    with pytest.raises(
        MXNetError,
        match=r"'_unfused.0.i2h_weight' has shape \(512, 256\) in the network, \(1024, 256\) in "
        r"the checkpoint",
    ):
        other = rnn.LSTM(128, input_size=256)
        other.initialize()
        load(tmp_path, other)


def test_overlapping_parameter_ranges_are_refused(tmp_path):
    net = Split(2, 0, [4, 3])
    for param, ranges in zip(net.collect_params().values(), ([(0, 2), (3, 5)], [(2, 3), (4, 6)])):
        param.ranges = ranges
    with pytest.raises(
        MXNetError,
        match=r"shards of parameter 'weight' do not cover it exactly once: they are the ranges "
        r"\[\(0, 2\), \(2, 3\), \(3, 5\), \(4, 6\)\]",
    ):
        save(tmp_path, net)
