"""Malicious files are refused at a cost bounded by their size.

The files try to run code, or to use up memory or time.
"""

import gc
import gzip
import io
import json
import os
import pickle
import stat
import struct
import sys
import tarfile
import threading
import zipfile
import zlib

import numpy as np
import pytest

import mpgluon as mx
from fuzz.cost import bounded
from mpgluon import image, recordio
from mpgluon._internal import files
from mpgluon._internal.files import open_regular, replacing
from mpgluon.base import MXNetError
from mpgluon.ndarray import _safetensors
from support.paths import TESTS

DATA = os.path.join(TESTS, "data", "mxnet-1.9.1")

# --- Images ---------------------------------------------------------------------------------------
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def stand_in(folder, name, witness):
    """Creates a program that only leaves a file when it runs."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho run > '{witness}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_image_decoding_starts_no_program(tmp_path, monkeypatch):
    pytest.importorskip("PIL")
    witness = tmp_path / "witness"
    stand_in(tmp_path, "gs", witness)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path = tmp_path / "named.jpg"
    path.write_bytes(EPS)
    record = mx.recordio.pack((0, 1.0, 0, 0), EPS)
    for read in (
        lambda: image.imdecode(EPS),
        lambda: image.imread(str(path)),
        lambda: mx.recordio.unpack_img(record),
    ):
        with pytest.raises(MXNetError, match="cannot be decoded"):
            read()
    assert not witness.exists()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_supported_image_formats_are_decoded(kind):
    module = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    module.new("RGB", (5, 4), (200, 100, 50)).save(out, kind)
    assert image.imdecode(out.getvalue()).shape == (4, 5, 3)


def test_image_memory_is_bounded_by_the_pixel_limit(monkeypatch):
    module = pytest.importorskip("PIL.Image")
    side = 1500
    out = io.BytesIO()
    module.fromarray(np.zeros((side, side), np.uint16)).save(out, "PNG", compress_level=9)
    with bounded(side * side, "a PNG of 16 bits", times=16):
        assert image.imdecode(out.getvalue()).shape == (side, side, 3)
    monkeypatch.setattr(module, "MAX_IMAGE_PIXELS", side * side - 1)
    with (
        pytest.warns(module.DecompressionBombWarning),
        pytest.raises(MXNetError, match="1500 x 1500 pixels exceed the limit"),
        bounded(len(out.getvalue()), "a PNG above the limit", plus=1 << 20),
    ):
        image.imdecode(out.getvalue())


def test_deep_images_keep_their_upper_bits():
    module = pytest.importorskip("PIL.Image")
    values = np.array([[-5, 0, 255, 256, 65535, 70000]])
    for dtype in (np.int32, np.float32):
        out = io.BytesIO()
        module.fromarray(values.astype(dtype)).save(out, "TIFF")
        found = image.imdecode(out.getvalue(), flag=0).asnumpy()
        assert found[0, :, 0].tolist() == [0, 0, 0, 1, 255, 255]


# --- Optimizer states -----------------------------------------------------------------------------
class Runs:
    """Creates a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def module_reader(path):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", (1, 2))])
    module.init_params()
    module.init_optimizer()
    return lambda: module.load_optimizer_states(path)


def preloading_reader(path):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", (1, 2))])
    module.init_params()
    prefix = path.removesuffix("-0001.states")
    module.save_checkpoint(prefix, 1)

    def read():
        loaded = mx.mod.Module.load(prefix, 1, load_optimizer_states=True, label_names=None)
        loaded.bind([("data", (1, 2))])
        loaded.init_optimizer()

    return read


def store_reader(path):
    store = mx.kv.create("local")
    store.set_optimizer(mx.optimizer.SGD())
    return lambda: store.load_optimizer_states(path)


def trainer_reader(path):
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    return lambda: trainer.load_states(path)


STATES = [module_reader, preloading_reader, store_reader, trainer_reader]


def nested(depth):
    part = [1]
    for _ in range(depth):
        part = [part, part]
    return part


# Pickles of a few bytes that demand gigabytes or years.
BOMBS = {
    "memo": b"\x80\x02Nr" + struct.pack("<I", 1 << 26) + b".",
    "text memo": b"\x80\x02Np100000000\n.",
    "length of a bytearray": b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 33) + b".",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b".",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 33) + b"N.",
    "nested": pickle.dumps({0: nested(60)}),
    "nested pair": pickle.dumps(({0: nested(60)}, 1)),
}


def repeats(large, opcodes):
    """A pickle that memoizes a large value as 1, and repeats opcodes that copy it."""
    return b"\x80\x04" + large + b"q\x01" + opcodes * (len(large) // len(opcodes)) + b"}."


_LARGE = b"B" + struct.pack("<I", 600_000) + bytes(600_000)
_ITEMS = b"](" + b"".join(b"M" + struct.pack("<H", i) for i in range(60_000)) + b"e"
_ATTRIBUTES = b"}(" + b"".join(b"\x8c\x05%05dN" % i for i in range(40_000)) + b"u"
BOMBS |= {
    "bytearrays": repeats(b"cbuiltins\nbytearray\nq\x00" + _LARGE, b"h\x00h\x01\x85R"),
    "sets": repeats(b"cbuiltins\nset\nq\x00" + _ITEMS, b"h\x00h\x01\x85R"),
    "attributes": repeats(b"cmxnet.optimizer.a\nA\nq\x00" + _ATTRIBUTES, b"h\x00)\x81h\x01b"),
    "arrays": repeats(
        b"cmxnet.ndarray\nNDArray\nq\x00}\x8c\x06handle"
        + b"B"
        + struct.pack("<I", len(_record := mx.nd.save_tobuffer([mx.nd.ones(150_000)])[24:-8]))
        + _record
        + b"s",
        b"h\x00)\x81h\x01b",
    ),
    "classes": repeats(
        b"\x8c\x11mxnet.optimizer.aq\x00\x8c\x01A" + b"N0" * 300_000 + b"\x8c\x01A",
        b"h\x00h\x01\x93",
    ),
    "empty sets": b"\x80\x04" + b"\x8f" * 1_000_000 + b"}.",
    "key": b"\x80\x04}N\x85" + b"2\x86" * 60 + b"Ns.",
    "keys": b"\x80\x04}(N\x85" + b"2\x86" * 60 + b"Nu.",
    "old dict": b"\x80\x04(N\x85" + b"2\x86" * 60 + b"Nd.",
    "member": b"\x80\x04\x8f(N\x85" + b"2\x86" * 60 + b"\x90.",
    "frozen member": b"\x80\x04(N\x85" + b"2\x86" * 60 + b"\x91.",
    "set of tuples": b"\x80\x04cbuiltins\nset\nN\x85" + b"2\x86" * 60 + b"\x85\x85R.",
    "integer key": repeats(
        b"\x8b" + struct.pack("<i", 500_000) + bytes([7]) * 500_000, b"}h\x01Ns"
    ),
}


@pytest.mark.parametrize("reader", STATES)
def test_hostile_states_run_no_code_and_use_bounded_memory(reader, tmp_path):
    path, made = tmp_path / "net-0001.states", tmp_path / "made"
    read = reader(str(path))
    bad = {"code": pickle.dumps({0: Runs(made)}), "in a pair": pickle.dumps(({}, Runs(made)))}
    for what, data in (bad | BOMBS).items():
        path.write_bytes(data)
        with bounded(len(data), what, seconds=2), pytest.raises(MXNetError, match="0001.states"):
            read()
    assert not made.exists()


def test_hostile_states_do_not_modify_classes():
    """A pickle can set attributes of the objects that it names."""
    name = b"\x80\x04\x8c\x0dmxnet.ndarray\x8c\x07NDArray\x93"
    change = b"N}\x8c\x0c__setstate__K\x01s\x86b."
    updater = mx.optimizer.get_updater(mx.optimizer.SGD())
    with pytest.raises(MXNetError):
        updater.set_states(name + change)
    with open(os.path.join(DATA, "momentum.states"), "rb") as file:
        updater.set_states(file.read())
    assert sorted(updater.states) == [0, 1, 2, 3]


def test_pickled_optimizers_need_trust(tmp_path):
    store = mx.kv.create("local")
    store.set_optimizer(mx.optimizer.SGD(momentum=0.5))
    store.init("w", mx.nd.ones(2))
    store.push("w", mx.nd.ones(2))
    for dump in (False, True):
        path = str(tmp_path / f"{dump}.states")
        store.save_optimizer_states(path, dump_optimizer=dump)
        other = mx.kv.create("local")
        other.set_optimizer(mx.optimizer.SGD(momentum=0.9))
        if dump:
            with pytest.raises(MXNetError, match=r"True.states: .*, pass trusted=True"):
                other.load_optimizer_states(path)
            assert other._updater.states == {}
        other.load_optimizer_states(path, trusted=dump)
        np.testing.assert_allclose(other._updater.states["w"].asnumpy(), -0.01)
        assert other._updater.optimizer.momentum == (0.5 if dump else 0.9)


def test_optimizer_states_keep_their_structure():
    updater = mx.optimizer.get_updater(mx.optimizer.Adam())
    states = {
        0: None,
        "w": (mx.nd.ones(2), mx.nd.zeros((2, 3)).tostype("row_sparse")),
        7: ((mx.nd.array([1], dtype="float16"), None), 3, 0.5),
        8: [{"a": 1, 2: [mx.nd.ones(3)]}, True, "text"],
    }
    updater.states = states
    other = mx.optimizer.get_updater(mx.optimizer.Adam())
    other.set_states(updater.get_states())
    assert list(other.states) == [0, "w", 7, 8]
    assert other.states[0] is None and other.states[7][1:] == (3, 0.5)
    assert other.states["w"][1].stype == "row_sparse"
    assert other.states[7][0][0].dtype == np.float16 and other.states[7][0][1] is None
    (found, *others) = other.states[8]
    assert others == [True, "text"] and found.pop(2)[0].asnumpy().tolist() == [1, 1, 1]
    assert found == {"a": 1} and type(other.states["w"]) is tuple
    updater.states = {0: {"a": {1}}}
    with pytest.raises(MXNetError, match="get_states: .* holds a set, which cannot be saved"):
        updater.get_states()


# --- safetensors ----------------------------------------------------------------------------------
def tensors(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return 8 + len(text) + len(data)


def entry(shape, begin, end, dtype="U8"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


WRONG_HEADERS = {
    "the same bytes twice": {"a": entry([4], 0, 4), "b": entry([4], 0, 4)},
    "an overlap": {"a": entry([3], 0, 3), "b": entry([2], 2, 4)},
    "a gap": {"a": entry([1], 0, 1), "b": entry([2], 2, 4)},
    "bytes after the last": {"a": entry([3], 0, 3)},
    "bytes before the first": {"a": entry([3], 1, 4)},
    "a bool as a dimension": {"a": entry([True, 4], 0, 4)},
    "a bool as an offset": {"a": entry([4], False, 4)},
    "a fraction": {"a": entry([4.0], 0, 4)},
    "a negative dimension": {"a": entry([-2, -2], 0, 4)},
    "a shape without memory": {"a": entry([4], 0, 4), "b": entry([1 << 62, 0], 4, 4, "F64")},
    "65 bits": {"a": entry([4], 0, 4), "b": entry([1 << 64, 0], 4, 4)},
    "dimensions": {"a": entry([1] * 11 + [4], 0, 4)},
    "no list": {"a": 3},
    "a list as a dtype": {"a": entry([4], 0, 4, dtype=["U8"])},
}


@pytest.mark.parametrize("what", WRONG_HEADERS)
def test_safetensors_ranges_cover_the_file_once(what, tmp_path):
    path = tmp_path / "a.safetensors"
    tensors(path, WRONG_HEADERS[what], bytes(4))
    with pytest.raises(MXNetError, match=r"a.safetensors' is damaged"):
        mx.nd.load(str(path))
    tensors(path, {"a": entry([4], 0, 4), "none": entry([0, 3], 4, 4)}, bytes(4))
    assert mx.nd.load(str(path))["a"].shape == (4,)


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"U8","shape":[' + b",".join([b"9" * 4000] * 500) + b"]}}",
        b'{"a":' + b"[" * 100000,
        b'{"a":[' + b"[]," * 100000 + b"0]}",
        json.dumps({f"a{i}": entry([1 << 20], 0, 1 << 20) for i in range(200)}).encode(),
        json.dumps({f"a{i}": entry([0], 0, 0) for i in range(4000)}).encode(),
    ],
    ids=["digits", "depth", "lists", "twins", "empty arrays"],
)
def test_safetensors_header_cost_is_bounded_by_its_size(header, tmp_path):
    path = tmp_path / "a.safetensors"
    size = tensors(path, header, b"" if b'"a3999"' in header else bytes(1 << 20))
    with bounded(size, plus=8 << 20):
        try:
            assert len(mx.nd.load(str(path))) == 4000
        except MXNetError as error:
            assert "is damaged" in str(error)


@pytest.mark.parametrize("ranges", [None, {0: (3, 7)}, {1: (1, 3)}, {0: (2, 9), 2: (0, 1)}])
def test_safetensors_parts_are_read_without_the_rest(ranges, tmp_path, monkeypatch):
    path = str(tmp_path / "a.safetensors")
    values = np.arange(10 * 4 * 3, dtype=np.float32).reshape(10, 4, 3)
    mx.nd.save(path, {"a": mx.nd.array(values), "h": mx.nd.array(values).astype("bfloat16")})
    monkeypatch.setattr(_safetensors, "_CHUNK", 100)  # two rows
    chosen = tuple(slice(*(ranges or {}).get(d, (None,))) for d in range(3))
    for name in "ah":
        found = _safetensors.File(path).read(name, ranges)
        np.testing.assert_array_equal(found, values[chosen])


def test_file_that_shrinks_while_being_read_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors(path, {"a": entry([1 << 16], 0, 1 << 16)}, bytes(1 << 16))
    file = _safetensors.File(str(path))
    os.truncate(path, 4096)
    for read in (lambda: file.read("a"), file.checksums):
        with pytest.raises(MXNetError, match="it ends within 'a'"):
            read()


# --- Checkpoints ----------------------------------------------------------------------------------
def write_index(path, index):
    text = json.dumps(index)[:-1]
    checksum = zlib.crc32(text.encode() + b"\n}")
    path.write_text(f'{text},\n "crc32": {checksum}\n}}\n')


def paths_of_keys(value, path=()):
    """Yields the paths of all keys of nested dicts and lists."""
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield (*path, key)
        yield from paths_of_keys(value[key], (*path, key))


def test_missing_entries_of_the_index_raise_errors_of_the_package(tmp_path):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(2, in_units=3))
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 3)))
    loss.backward()
    trainer.step(1)
    mx.parallel.save(tmp_path, net, trainer)
    index = json.loads((tmp_path / "index.json").read_text())
    del index["crc32"]
    index["trainer"]["ambiguous"] = {"optimizer:0.weight:0": [0, True]}
    write_index(tmp_path / "index.json", index)
    mx.parallel.load(tmp_path, net, trainer)
    refused = []
    for path in list(paths_of_keys(index)):
        changed = json.loads(json.dumps(index))
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]
        write_index(tmp_path / "index.json", changed)
        try:
            mx.parallel.load(tmp_path, net, trainer)
        except MXNetError:
            refused.append(path)
    assert {("trainer",), ("arrays", "0.weight", "axis")} <= set(refused)


# --- Folders writable by other users, and pipes ---------------------------------------------------
def test_saving_and_downloading_do_not_follow_planted_links(tmp_path, monkeypatch):
    """A link planted at a predictable name does not redirect a write."""
    victim, source = tmp_path / "victim", tmp_path / "source"
    victim.write_text("precious")
    source.write_text("downloaded")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    names = [
        checkpoint / "index.json.new",
        checkpoint / "shard-000001-cpu0.safetensors",
        tmp_path / f"model.params.part{os.getpid()}",
        tmp_path / f"a.npz.{os.getpid()}-{threading.get_ident()}.new",
    ]
    for name in names:
        name.symlink_to(victim)
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    mx.parallel.save(str(checkpoint), net)
    mx.gluon.utils.download(f"file://{source}", str(tmp_path / "model.params"))
    mx.nd.save(str(tmp_path / "a.npz"), {"a": mx.nd.ones(1)})
    assert victim.read_text() == "precious"
    assert not (tmp_path / "model.params").is_symlink()
    mx.parallel.load(str(checkpoint), net)


def test_interrupted_save_leaves_no_files(tmp_path):
    class Stop(Exception):
        pass

    path = tmp_path / "a"
    path.write_text("before")
    with pytest.raises(Stop), replacing(path) as file:
        file.write(b"half")
        raise Stop
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["a"]


def read_file(path):
    with open_regular(path) as file:
        assert file.read() == b"kept"


def replace_file(path):
    with replacing(path) as file:
        file.write(b"kept")


@pytest.mark.parametrize("work", [read_file, replace_file])
def test_interrupt_of_file_access_is_no_other_error(work, tmp_path):
    """A descriptor that is closed twice raises OSError, or closes a file of another thread.

    The interrupts include the return of each built-in function, before its result is stored."""
    path = tmp_path / "file"
    path.write_bytes(b"kept")

    def points(n):
        count = 0

        def met(frame, event, _):
            nonlocal count
            count += event in ("call", "c_return")
            if count == n:
                sys.setprofile(None)
                raise KeyboardInterrupt

        sys.setprofile(met)
        try:
            work(path)
        finally:
            sys.setprofile(None)
        return count

    for n in range(1, points(0)):
        with pytest.raises(KeyboardInterrupt):
            points(n)
        gc.collect()
        assert [name.name for name in tmp_path.iterdir()] == ["file"]
        assert path.read_bytes() == b"kept"


@pytest.mark.parametrize("suffix", ["params", "safetensors", "npz", "states", "json"])
def test_readers_refuse_pipes_without_waiting(suffix, tmp_path):
    path = str(tmp_path / f"net-0001.{suffix}")
    os.mkfifo(path)
    readers = {
        "states": [trainer_reader(path), store_reader(path), module_reader(path)],
        "json": [lambda: mx.sym.load(path)],
    }
    for read in readers.get(suffix, [lambda: mx.nd.load(path)]):
        with pytest.raises(MXNetError, match="device or pipe"):
            read()


def image_iter(path, **options):
    return mx.image.ImageIter(1, (3, 4, 4), path_root=os.path.dirname(path), **options)


PIPES = {
    "imread": image.imread,
    "a listed image": lambda path: image_iter(path, imglist=[[0, path]]).next(),
    ".lst": lambda path: image_iter(path, path_imglist=path),
    "MXRecordIO": lambda path: recordio.MXRecordIO(path, "r"),
    "an index of records": lambda path: recordio.MXIndexedRecordIO(path, __file__, "r"),
    "ImageRecordIter": lambda path: mx.io.ImageRecordIter(
        path_imgrec=path, data_shape=(3, 4, 4), batch_size=1
    ),
    "ImageRecordDataset": mx.gluon.data.vision.ImageRecordDataset,
    "CSVIter": lambda path: mx.io.CSVIter(data_csv=path, data_shape=(1,), batch_size=1),
    "LibSVMIter": lambda path: mx.io.LibSVMIter(data_libsvm=path, data_shape=(1,), batch_size=1),
    "a library": mx.library.load,
    "check_sha1": lambda path: mx.gluon.utils.check_sha1(path, "0" * 40),
    "download": lambda path: mx.gluon.utils.download("file:///missing", path),
    "a profile": mx.parallel.Profile.load,
}


@pytest.mark.parametrize("reader", PIPES)
def test_data_readers_refuse_pipes_without_waiting(reader, tmp_path):
    path = str(tmp_path / "pipe.so")
    os.mkfifo(path)
    os.mkfifo(tmp_path / "pipe.idx")
    with pytest.raises(MXNetError, match="device or pipe"):
        PIPES[reader](path)


# --- .params --------------------------------------------------------------------------------------
def params_file(records, names=()):
    head = struct.pack("<QQQ", 0x112, 0, len(records))
    tail = b"".join(struct.pack("<Q", len(name)) + name for name in names)
    return head + b"".join(records) + struct.pack("<Q", len(names)) + tail


ABSENT = bytes(4)
EMPTY = struct.pack("<IIiii", 1, 0, 1, 0, 0)  # the oldest format version: one dimension of size 0


@pytest.mark.parametrize("record, count", [(ABSENT, 1 << 20), (ABSENT, 1 << 16), (EMPTY, 100_000)])
def test_params_memory_is_bounded_by_the_size_of_the_file(record, count):
    data = params_file([record] * count)
    with bounded(len(data)):
        try:
            assert len(mx.nd.load_frombuffer(data)) == count
        except MXNetError as error:
            assert count > 1 << 16 and "more than 65536 arrays are missing" in str(error)


def test_params_with_duplicate_names_take_linear_time():
    names = [b"%07d" % i for i in range(40_000)]
    data = params_file([ABSENT] * len(names), [*names[:-1], names[-2]])
    with bounded(len(data), seconds=1), pytest.warns(UserWarning, match="several arrays named"):
        mx.nd.load_frombuffer(data)


# --- Archives -------------------------------------------------------------------------------------
ZEROS = 4 << 20


def test_compressed_datasets_expand_within_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "EXPANDS_PLUS", 1 << 20)
    vision, text = mx.gluon.data.vision, mx.gluon.contrib.data.text
    labels = gzip.compress(struct.pack(">II", 0x801, 0))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(labels)
    images = tmp_path / "train-images-idx3-ubyte.gz"
    zeros = gzip.compress(bytes(ZEROS), 6)
    for shape in ((1, 1, 1), (ZEROS, 1, 1)):
        images.write_bytes(gzip.compress(struct.pack(">IIII", 0x803, *shape)) + zeros)
        with bounded(images.stat().st_size), pytest.raises(MXNetError, match="images-idx3"):
            vision.MNIST(root=str(tmp_path))
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=6) as file:
        info = tarfile.TarInfo("test_batch.bin")
        info.size = ZEROS
        file.addfile(info, Zeros())
    with bounded(archive.stat().st_size), pytest.raises(MXNetError, match="would expand to"):
        vision.CIFAR10(str(tmp_path), train=False)
    archive = tmp_path / "wikitext-2-v1.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as file:
        file.writestr("wikitext-2/wiki.train.tokens", bytes(ZEROS))
    with bounded(archive.stat().st_size), pytest.raises(MXNetError, match="would expand to"):
        text.WikiText2(root=str(tmp_path))


class Zeros:
    def read(self, size):
        return bytes(size)


# --- ONNX -----------------------------------------------------------------------------------------
SIDE = 1 << 14


def onnx_bomb(path, kind):
    """A file of a few hundred bytes whose constants would expand to gigabytes."""
    onnx = pytest.importorskip("onnx")
    node, tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
    sizes = {"column": [SIDE, 1], "row": [1, SIDE], "line": [SIDE]}
    nodes = [node("ConstantOfShape", [f"{name} size"], [name]) for name in sizes]
    nodes.append(node("Cast", ["line"], ["i"], to=onnx.TensorProto.INT64))
    if kind == "Gather":
        nodes.append(node("Gather", ["row", "i"], ["c"], axis=0))
    elif kind == "Concat":
        nodes += [node("Concat", [x, x], [y], axis=0) for x, y in zip(DOUBLES, DOUBLES[1:])]
        nodes.append(node("Identity", [DOUBLES[-1]], ["c"]))
    elif kind == "Where":
        nodes.append(node("Cast", ["column"], ["b"], to=onnx.TensorProto.BOOL))
        nodes.append(node("Where", ["b", "row", "row"], ["c"]))
    else:
        nodes.append(node(kind, ["column", "row"], ["c"]))
    nodes.append(node("Identity", ["c"], ["y"]))
    float32 = onnx.TensorProto.FLOAT
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "bomb",
        [value("x", float32, [2])],
        [value("y", onnx.TensorProto.BOOL if kind in ("Equal", "Less") else float32, [1])],
        [tensor(np.array(size), f"{name} size") for name, size in sizes.items()],
    )
    opset = [onnx.helper.make_opsetid("", 13)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset), path)
    return os.path.getsize(path)


DOUBLES = ["line", *(f"k{n}" for n in range(20))]


@pytest.mark.parametrize("kind", ["Add", "Div", "Equal", "Less", "Where", "Gather", "Concat"])
def test_onnx_constant_folding_is_bounded(kind, tmp_path):
    path = str(tmp_path / "a.onnx")
    size = onnx_bomb(path, kind)
    with bounded(size, kind, plus=384 << 20, seconds=10):
        with pytest.raises(MXNetError, match="too large for a constant|more memory than"):
            mx.onnx.import_model(path)


def test_onnx_tensors_sharing_file_bytes_are_bounded(tmp_path):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "data").write_bytes(bytes(4 << 20))
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1 << 20])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1 << 20])
    for count in (2, 200):
        tensors = []
        for i in range(count):
            tensor = onnx.TensorProto(name=f"w{i}", data_type=onnx.TensorProto.FLOAT)
            tensor.dims.append(1 << 20)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, text in (("location", "data"), ("offset", "0"), ("length", str(4 << 20))):
                tensor.external_data.add(key=key, value=text)
            tensors.append(tensor)
        nodes = [onnx.helper.make_node("Sum", ["x", *(one.name for one in tensors)], ["y"])]
        graph = onnx.helper.make_graph(nodes, "shared", [x], [y], tensors)
        path = str(tmp_path / "a.onnx")
        opset = [onnx.helper.make_opsetid("", 13)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opset), path)
        with bounded(8 << 20, times=16):
            if count == 2:
                assert len(mx.onnx.import_model(path)[1]) == 2
                continue
            with pytest.raises(MXNetError, match="its tensors need 838860800 bytes, but the files"):
                mx.onnx.import_model(path)


# --- Text -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a"', "[1]", '["uniform"', "[" + "9" * 5000])
def test_invalid_json_of_objects_raises_mxnet_error(text):
    with pytest.raises(MXNetError, match="is not the JSON of an object"):
        mx.init.create(text)


def test_bilinear_upsampling_with_huge_numbers_is_refused():
    attributes = {"scale": "9" * 4000, "num_filter": "9" * 4000, "sample_type": "bilinear"}
    document = {
        "nodes": [
            {"op": "null", "name": "x", "inputs": []},
            {"op": "UpSampling", "name": "up", "attrs": attributes, "inputs": [[0, 0, 0]]},
        ],
        "arg_nodes": [0],
        "heads": [[1, 0, 0]],
    }
    with pytest.raises(MXNetError):
        mx.sym.load_json(json.dumps(document))
