"""Offload to files of a directory: bits, memory, full disks, forks and errors."""

import gc
import multiprocessing
import os
import pathlib
import pickle
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn
from support.devices import cpus_only, on
from support.meshes import values

UNITS = 160  # so that weights are in files
pytestmark = cpus_only


def network(layers=3, dtype="float32", units=UNITS):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(layers):
            net.add(nn.Dense(units, activation="tanh", in_units=units))
    mx.random.seed(2)
    net.initialize(mx.init.Xavier(), ctx=on(0))
    net.cast(dtype)
    return net


def train(net, trainer=None, steps=3, units=UNITS, **options):
    trainer = trainer or gluon.Trainer(net.collect_params(), "adam", **options)
    x = nd.array(np.random.RandomState(4).uniform(-1, 1, (16, units)), ctx=on(0))
    x = x.astype(net[0].weight.dtype)
    for _ in range(steps):
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        trainer.step(8)
    return {name: value.astype("float64") for name, value in values(net).items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def stored_in(net, kind, path):
    """Hybridizes a network that stores values of this kind in the directory. Returns the options of
    its Trainer."""
    if kind == "parameters":
        par.Mesh({"data": 1}, [on(0)]).partition(net, offload={kind: path})
    net.hybridize(**({"offload": {kind: path}} if kind == "activations" else {}))
    return {"offload": {kind: path}} if kind == "states" else {}


KINDS = "states", "parameters", "activations"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_keep_the_bits(kind, dtype, tmp_path):
    options = {"optimizer_params": {"multi_precision": dtype != "float32"}}
    plain = network(dtype=dtype)
    plain.hybridize()
    expected = train(plain, **options)
    net = network(dtype=dtype)
    options.update(stored_in(net, kind, tmp_path))
    same(train(net, **options), expected)
    assert mx.context.memory_stats(mx.context.file_device(tmp_path))["peak_in_use"] > 0
    assert os.listdir(tmp_path) == []  # the files have no names


@pytest.mark.parametrize("as_path", [str, pathlib.Path, os.path.relpath])
def test_one_device_for_each_directory(as_path, tmp_path):
    device = mx.context.file_device(tmp_path)
    trainer = gluon.Trainer(
        network().collect_params(), "adam", offload={"states": as_path(tmp_path)}
    )
    assert trainer._state.offload.default == device != mx.context.file_device(tmp_path.parent)
    assert f"states on {device} (files in {os.path.realpath(tmp_path)!r})" in repr(trainer)


def test_directories_by_device(tmp_path):
    net = network(4)
    net.hybridize()
    net.place({"0": on(0), "1": on(0), "2": on(1), "3": on(1)}, verbose=False)
    (tmp_path / "a").mkdir()
    where = {on(0): tmp_path / "a", on(1): tmp_path}
    trainer = gluon.Trainer(net.collect_params(), "adam", offload={"states": where})
    plain = network(4)
    plain.hybridize()
    same(train(net, trainer), train(plain))
    devices = {
        array.context
        for updater in trainer._updaters
        for state in updater.states.values()
        for array in state
    }
    assert devices == {mx.context.file_device(path) for path in where.values()}
    assert f"(files in {os.path.realpath(tmp_path)!r}) for {on(1)}" in repr(trainer)


def peak(kind, path):
    """Returns the peak memory of the computing device in a step."""
    units = 256
    gc.collect()
    nd.waitall()
    before = mx.context.memory_stats(on(0))["in_use"]
    net = network(8, units=units)
    options = stored_in(net, kind, path) if kind else net.hybridize() or {}
    trainer = gluon.Trainer(net.collect_params(), "adam", **options)
    train(net, trainer, 2, units=units)
    nd.waitall()
    mx.context.reset_peak_memory(on(0))
    train(net, trainer, 1, units=units)
    return mx.context.memory_stats(on(0))["peak_in_use"] - before, 8 * units * units


def test_memory_of_the_device_falls(tmp_path):
    """With Adam, 16 bytes for each parameter: 8 without states, and about three layers (weight, the
    next weight, gradient) if the parameters are in files."""
    whole, size = peak(None, tmp_path)
    device = mx.context.file_device(tmp_path)
    assert 16 * size <= whole
    states, _ = peak("states", tmp_path)
    assert 8 * size <= states <= 8.5 * size
    assert mx.context.memory_stats(device)["peak_in_use"] >= 16 * size
    parameters, _ = peak("parameters", tmp_path)
    assert parameters <= 4 * 3.5 / 8 * size


def test_pages_belong_to_files(tmp_path):
    """The kernel can drop pages of files, but not anonymous pages without swap."""

    def anonymous():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

    device = mx.context.file_device(tmp_path)
    nd.ones((1024, 1024), ctx=device).wait_to_read()
    before = anonymous()
    x = nd.ones((64, 1024, 1024), ctx=device)
    x.wait_to_read()
    assert anonymous() - before < 32 * 1024  # KiB; the array has 256 MiB
    assert x[63, 5, 7].asscalar() == 1


def test_freed_memory_returns_to_the_file_system(tmp_path):
    device = mx.context.file_device(tmp_path)
    x = nd.ones((1024, 1024), ctx=device)
    x.wait_to_read()
    assert mx.context.memory_stats(device)["held"] >= 2**22
    del x
    gc.collect()
    mx.context.set_memory_limit(device, 1)
    mx.context.set_memory_limit(device, None)
    assert mx.context.memory_stats(device)["held"] == 0


@pytest.mark.parametrize("first, second", [(False, True), (True, False), (True, True)])
def test_states_are_saved_and_loaded(first, second, tmp_path):
    plain = network()
    plain.hybridize()
    expected = train(plain, steps=6)
    options = [{"offload": {"states": tmp_path}} if files else {} for files in (first, second)]
    for way in ("states", "checkpoint"):
        net = network()
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "adam", **options[0])
        train(net, trainer)
        if way == "states":
            net.save_parameters(str(tmp_path / "p"))
            trainer.save_states(str(tmp_path / "s"))
        else:
            par.save(str(tmp_path / "c"), net, trainer)
        net = network()
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "adam", **options[1])
        if way == "states":
            net.load_parameters(str(tmp_path / "p"))
            trainer.load_states(str(tmp_path / "s"))
        else:
            par.load(str(tmp_path / "c"), net, trainer)
        same(train(net, trainer), expected)


def test_parameters_are_saved_and_loaded(tmp_path):
    net = network()
    stored_in(net, "parameters", tmp_path)
    expected = train(net)
    net.save_parameters(str(tmp_path / "p"))
    par.save(str(tmp_path / "c"), net)
    for load in (
        lambda net: net.load_parameters(str(tmp_path / "p")),
        lambda net: par.load(str(tmp_path / "c"), net),
    ):
        for kind in ("parameters", "states"):
            other = network()
            stored_in(other, kind, tmp_path)
            load(other)
            same({k: v.astype("float64") for k, v in values(other).items()}, expected)


def test_moved_and_cast_networks_keep_the_bits(tmp_path):
    found = []
    for options in ({}, {"offload": {"states": tmp_path}}):
        net = network()
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "adam", **options)
        train(net, trainer, 2)
        net.collect_params().reset_ctx(on(1))
        net.collect_params().reset_ctx(on(0))
        train(net, trainer, 1)
        net.cast("float64")
        trainer = gluon.Trainer(net.collect_params(), "adam", **options)
        found.append(train(net, trainer, 2))
    same(*found)


def test_full_file_system_raises():
    """A file that is larger than the file system fails before anything is written."""
    path = "/dev/shm"
    if not os.path.isdir(path):
        pytest.skip("needs /dev/shm")
    size = os.statvfs(path)
    too_large = size.f_blocks * size.f_frsize + 2**30
    device = mx.context.file_device(path)
    with pytest.raises(MemoryError, match=f"cpu.*asked for .*directory '{path}'; use one with"):
        nd.empty((too_large,), ctx=device, dtype="int8")
    nd.ones((256, 256), ctx=device).wait_to_read()


def test_training_on_a_full_disk_raises(tmp_path):
    """Files may not exceed a limit, which is smaller than a weight. The step fails and the process
    lives."""
    program = """
import resource, sys
import mpgluon as mx
from mpgluon import autograd, gluon, nd
net = gluon.nn.Dense(512, in_units=512)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "adam", offload={"states": sys.argv[1]})
resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, resource.RLIM_INFINITY))
x = nd.ones((2, 512))
for attempt in range(2):
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    before = net.weight.data().asnumpy()
    try:
        trainer.step(1)
        nd.waitall()
        print("trained")
    except MemoryError as error:
        print("full", sys.argv[1] in str(error), (net.weight.data().asnumpy() == before).all())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
"""
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert found.stdout.splitlines() == ["full True True", "trained"], found.stderr


def test_killed_process_leaves_no_files(tmp_path):
    program = """
import os, signal, sys
import mpgluon as mx
x = mx.nd.ones((1024, 1024), ctx=mx.context.file_device(sys.argv[1]))
x.wait_to_read()
os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", program, str(tmp_path)])
    assert found.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


def in_child(run):
    """Returns the result of a function in a forked child, or its error's text."""
    nd.waitall()
    receiver, sender = multiprocessing.Pipe(False)
    if (child := os.fork()) == 0:
        try:
            sender.send(run())
        except BaseException as error:
            sender.send(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    sender.close()
    result = receiver.recv() if receiver.poll(60) else None
    assert os.waitpid(child, 0)[1] == 0
    return result


def test_forked_children_cannot_use_the_arrays(tmp_path):
    device = mx.context.file_device(tmp_path)
    x, small = nd.ones((256, 256), ctx=device), nd.ones((3,), ctx=device)

    def write():
        x[:] = 2

    for use in (
        x.asnumpy,
        small.asnumpy,
        lambda: (x + 1).asnumpy(),
        lambda: x.as_in_context(on(0)).asnumpy(),
        lambda: nd.add_n(x, x).asnumpy(),
        lambda: nd.ones((256, 256), ctx=device).asnumpy(),
        lambda: nd.save(str(tmp_path / "x"), [x]),
        write,
    ):
        result = in_child(use)
        assert "which a forked process cannot use; copy the values to another" in result, result
    assert (x.asnumpy() == 1).all()


def test_forked_children_can_offload_to_the_directory(tmp_path):
    net = network()
    net.hybridize()
    offload = {"offload": {"states": tmp_path}}
    trainer = gluon.Trainer(net.collect_params(), "adam", **offload)
    train(net, trainer)
    before = mx.context.file_device(tmp_path)

    def run():
        other = network()
        other.hybridize()
        found = train(other, **offload)
        return found, mx.context.file_device(tmp_path) != before

    found, differs = in_child(run)
    assert differs
    same(found, values(net))
    train(net, trainer)


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_directories_raise(kind, tmp_path):
    (tmp_path / "file").write_text("")
    for path, text in (
        (tmp_path / "absent", "No such file or directory"),
        (str(tmp_path / "file"), "Not a directory"),
        ("/proc", "/proc"),
    ):
        with pytest.raises(mx.MXNetError, match=f"{kind} cannot be offloaded to .*{text}") as error:
            options = stored_in(network(), kind, path)
            gluon.Trainer(network().collect_params(), "adam", **options)
        assert str(path) in str(error.value) and "existing, writable directory" in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to all directories")
def test_directory_without_permission_raises(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match=f"'{tmp_path}': Permission denied"):
        mx.context.file_device(tmp_path)


def test_removed_directory_raises(tmp_path):
    path = tmp_path / "a"
    path.mkdir()
    device = mx.context.file_device(path)
    path.rmdir()
    with pytest.raises(OSError, match=f"cannot create a file in the directory '{path}'"):
        nd.ones((256, 256), ctx=device).wait_to_read()
    path.mkdir()
    assert nd.ones((256, 256), ctx=device).sum().asscalar() == 2**16


def test_threads_of_other_devices_do_not_change(tmp_path):
    nd.ones(2, ctx=on(0)).wait_to_read()
    before = dict(mx.context.opened_devices())
    files = mx.context.file_device(tmp_path)
    after = dict(mx.context.opened_devices())
    assert after.pop(files) == before[on(0)]
    assert after == before


def test_freed_space_of_another_directory_is_returned(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one, other = mx.context.file_device(first), mx.context.file_device(second)
    nd.zeros((600, 600), ctx=one).wait_to_read()
    gc.collect()
    assert mx.context.memory_stats(one)["held"] >= 4 * 600 * 600
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        with pytest.raises(MemoryError, match="second"):
            nd.zeros((600, 600), ctx=other).wait_to_read()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert mx.context.memory_stats(one)["held"] == 0


def test_a_pickled_network_is_loaded_into_files_of_its_directory(tmp_path):
    net = network()
    stored_in(net, "parameters", tmp_path)
    file = tmp_path / "net"
    file.write_bytes(pickle.dumps(net))
    code = (
        "import pickle, mpgluon as mx\n"
        f"mx.context.file_device({str(tmp_path.parent)!r})\n"
        f"net = pickle.loads(open({str(file)!r}, 'rb').read())\n"
        f"files = mx.context.file_device({str(tmp_path)!r})\n"
        "assert net[0].weight.list_ctx() == [files], net[0].weight.list_ctx()\n"
        "assert mx.context.memory_stats(files)['in_use'] > 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_empty_path_is_refused():
    with pytest.raises(mx.MXNetError, match="the path of the directory is empty"):
        network().hybridize(offload={"activations": ""})
