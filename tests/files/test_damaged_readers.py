"""Every file reader on truncated, changed or unrelated files.

The reader must quickly raise an error that names the file, and leave the loading object unchanged.
"""

import contextlib
import gzip
import io
import os
import random
import struct
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest

import mpgluon as mx
from fuzz import run
from fuzz.cost import PLUS, bounded
from mpgluon import gluon, nd
from mpgluon.contrib import onnx

pytest.importorskip("PIL")
pytestmark = pytest.mark.filterwarnings("ignore")
# Exceptions of readers besides ours; these are MXNet's.
OTHERS = (AssertionError, ValueError, FileNotFoundError, RuntimeError)
# Name prefixes of readers that decode images
IMAGES = ("image", "box", "png", "jpeg", "bmp", "gif", "list of images")
PIXELS = (np.arange(192) % 251).reshape(8, 8, 3).astype("uint8")


def trained():
    net = gluon.nn.HybridSequential(prefix="net_")
    net.add(gluon.nn.Dense(2, in_units=3), gluon.nn.BatchNorm(in_channels=2))
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    with mx.autograd.record():
        loss = net(nd.ones((2, 3)))
    loss.backward()
    trainer.step(1)
    return net, trainer


def values(arrays):
    return [array.asnumpy().tolist() for array in arrays]


def of_net(net):
    return lambda: values(param.data() for param in net.collect_params().values())


def parameters(path):
    net, _ = trained()
    net.save_parameters(path)
    return lambda: net.load_parameters(path), of_net(net)


def parameter_dict(path):
    net, _ = trained()
    net.collect_params().save(path)
    return lambda: net.collect_params().load(path), of_net(net)


def trainer_states(path):
    net, trainer = trained()
    trainer.save_states(path)
    state = lambda: [
        trainer.learning_rate,
        [values(state) for updater in trainer._updaters for state in updater.states.values()],
    ]
    return lambda: trainer.load_states(path), state


def arrays(path):
    kinds = [nd.array([[0, 1], [2, 0]]).tostype(stype) for stype in ("csr", "row_sparse")]
    nd.save(
        path, {"a": nd.ones((2, 3)), "b": nd.array([1], dtype="bool"), **dict(zip("cd", kinds))}
    )
    # Not as dense arrays: damage can make a csr array millions of columns wide.
    parts = lambda array: array if array.stype == "default" else array.data
    return lambda: [parts(array).asnumpy() for array in nd.load(path).values()], None


def symbol(path):
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    mx.sym.SoftmaxOutput(net, name="softmax").save(path)
    return lambda: mx.sym.load(path), None


def module():
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    made = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    made.bind([("data", (2, 3))], [("softmax_label", (2,))])
    made.init_params()
    made.init_optimizer(optimizer="adam")
    made.forward_backward(mx.io.DataBatch([nd.ones((2, 3))], [nd.zeros((2,))]))
    made.update()
    return made


def module_states(path):
    made = module()
    made.save_optimizer_states(path)
    state = lambda: [values(state) for state in made._updater.states.values()]
    return lambda: made.load_optimizer_states(path), state


def store_states(path):
    store = mx.kv.create("local")
    store.set_optimizer(mx.optimizer.SGD(momentum=0.5))
    store.init(0, nd.ones((2,)))
    store.push(0, nd.ones((2,)))
    store.save_optimizer_states(path)
    return (
        lambda: store.load_optimizer_states(path),
        lambda: values(store._updater.states.values()),
    )


def module_parameters(path):
    made = module()
    made.save_params(path)
    return lambda: made.load_params(path), lambda: values(made.get_params()[0].values())


def packed(path, label=lambda i: float(i)):
    record = mx.recordio.MXIndexedRecordIO(path + ".idx", path, "w")
    for i in range(3):
        record.write_idx(i, mx.recordio.pack_img((0, label(i), i, 0), PIXELS, 1, ".png"))
    record.close()


def all_records(record):
    with contextlib.closing(record):
        while record.read() is not None:
            pass


def records(path):
    packed(path)
    return lambda: all_records(mx.recordio.MXRecordIO(path, "r")), None


def index(path):
    packed(path[:-4])

    def read():
        record = mx.recordio.MXIndexedRecordIO(path, path[:-4], "r")
        with contextlib.closing(record):
            return [record.read_idx(key) for key in record.keys]

    return read, None


def image_records(path):
    packed(path)
    return lambda: [b.data[0] for b in mx.io.ImageRecordIter(path, (3, 4, 4), 2)], None


def box_records(path):
    packed(path, lambda i: [2, 5, 0, 0.1, 0.2, 0.5, 0.6])
    return lambda: [b.data[0] for b in mx.io.ImageDetRecordIter(path, (3, 4, 4), 2)], None


def picture(path):
    from PIL import Image

    Image.fromarray(PIXELS).save(path)
    return lambda: mx.image.imread(path).asnumpy(), None


def picture_list(path):
    folder = os.path.dirname(path)
    picture(os.path.join(folder, "i.png"))
    with open(path, "w") as file:
        file.write("0\t1.0\ti.png\n1\t2.0\ti.png\n")

    def read():
        data = gluon.data.vision.ImageListDataset(folder, path)
        return [data[i] for i in range(len(data))]

    return read, None


def digits(path):
    folder, opened = os.path.dirname(path), gzip.open if path.endswith(".gz") else open
    suffix = ".gz" if path.endswith(".gz") else ""
    with opened(os.path.join(folder, "train-images-idx3-ubyte" + suffix), "wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, 4, 2, 2) + bytes(16))
    with opened(os.path.join(folder, "train-labels-idx1-ubyte" + suffix), "wb") as file:
        file.write(struct.pack(">4BI", 0, 0, 8, 1, 4) + bytes(4))
    return lambda: gluon.data.vision.MNIST(folder), None


def objects(path):
    with open(path, "wb") as file:
        file.write(bytes(3073 * 2))
    return lambda: gluon.data.vision.CIFAR10(os.path.dirname(path), train=False), None


def packed_objects(path):
    info = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
    info.size = 3073
    with tarfile.open(path, "w:gz") as file:
        file.addfile(info, io.BytesIO(np.random.RandomState(0).bytes(3073)))
    return lambda: gluon.data.vision.CIFAR10(os.path.dirname(path), train=False), None


def text(content, read):
    def make(path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        return lambda: read(path), None

    return make


def network(read):
    def make(path):
        made = module()
        mx.onnx.export_model(made.symbol, made.get_params()[0], [(2, 3)], "float32", path)
        return lambda: read(path), None

    return make


def exported(suffix):
    def make(path):
        net, _ = trained()
        net.hybridize()
        net(nd.ones((1, 3)))
        files = net.export(os.path.join(os.path.dirname(path), "net"))
        return lambda: gluon.SymbolBlock.imports(files[0], ["data"], files[1]), None

    return make


def wiki_text(path):
    folder, name = os.path.dirname(path), "wiki.test.tokens"
    words = " = A title = \n\n The cat sat on the mat .\n" * 8
    if path.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(f"wikitext-2/{name}", words)
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(words)
    data = gluon.contrib.data.text
    return lambda: data.WikiText2(folder, segment="test", seq_len=60), None


def model(suffix):
    """Reads with `Block.load`, which uses two files."""

    def make(path):
        net, _ = trained()
        prefix = os.path.join(os.path.dirname(path), "net")
        net.hybridize()
        net.save(prefix)
        other = gluon.nn.HybridSequential(prefix="net_")
        other.add(gluon.nn.Dense(2, in_units=3), gluon.nn.BatchNorm(in_channels=2))
        other.initialize()
        state = lambda: [list(other._children), other._active, other[0]._active, of_net(other)()]

        return lambda: other.load(prefix), state

    return make


def profile(path):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=3), gluon.nn.Dense(2, in_units=3))
    net.initialize()
    devices = [mx.cpu(0), mx.cpu(1)]
    made = mx.parallel.plan(net, nd.ones((2, 3)), devices, repeats=1, progress=False)
    (made if path.endswith("plan.json") else made.profile).save(path)
    kind = mx.parallel.Plan if path.endswith("plan.json") else mx.parallel.Profile
    return lambda: kind.load(path), None


# Per name: the file, and a function that writes it and returns the reader and the state that must
# not change. A star marks formats in which a truncated file may be valid (lines, records, images
# whose last bytes only mark the end).
READERS = {
    "arrays": ("a.params", arrays),
    "parameters": ("net.params", parameters),
    "parameter dict": ("net.params", parameter_dict),
    "trainer states": ("t.states", trainer_states),
    "symbol": ("net-symbol.json", symbol),
    "exported symbol": ("net-symbol.json", exported("symbol")),
    "exported parameters": ("net-0000.params", exported("params")),
    "module states": ("m.states", module_states),
    "store states": ("kv.states", store_states),
    "module parameters": ("m.params", module_parameters),
    "records*": ("some.rec", records),
    "index*": ("some.rec.idx", index),
    "image records*": ("some.rec", image_records),
    "box records*": ("some.rec", box_records),
    "png*": ("i.png", picture),
    "jpeg": ("i.jpg", picture),
    "bmp": ("i.bmp", picture),
    "gif*": ("i.gif", picture),
    "list of images*": ("some.lst", picture_list),
    "mnist": ("train-images-idx3-ubyte", digits),
    "mnist labels": ("train-labels-idx1-ubyte", digits),
    "mnist gz": ("train-images-idx3-ubyte.gz", digits),
    "cifar": ("test_batch.bin", objects),
    "cifar archive*": ("cifar-10-binary.tar.gz", packed_objects),
    "libsvm*": (
        "d.t",
        text("1.0 0:0.5 2:1.25\n-2.0\n3 1:2\n", lambda p: list(mx.io.LibSVMIter(p, (3,)))),
    ),
    "csv*": ("d.csv", text("1,2,3\n4,5,6\n", lambda p: list(mx.io.CSVIter(p, (3,))))),
    "embedding*": (
        "v.txt",
        text("the 1.0 2.5\nof 3 4\né 5 6\n", mx.contrib.text.embedding.CustomEmbedding),
    ),
    "text*": ("wiki.test.tokens", wiki_text),
    "text archive*": ("wikitext-2-v1.zip", wiki_text),
    "structure of a model": ("net-model.json", model("json")),
    "parameters of a model": ("net-model.params", model("params")),
    "profile": ("profile.json", profile),
    "plan": ("plan.json", profile),
    "onnx": ("net.onnx", network(onnx.import_model)),
    "onnx block": ("net.onnx", network(lambda path: onnx.import_to_gluon(path, mx.cpu()))),
    "onnx names": ("net.onnx", network(onnx.get_model_metadata)),
}
JUNK = [
    b"",
    bytes(64),
    b"\xff" * 64,
    b"hello world\n",
    b"{}",
    b"PK\x03\x04" + bytes(40),
    b"\x80\x04\x95" + b"\xff" * 30,  # a pickle with a false size
    b"\x1f\x8b" + bytes(30),
]
SIZES = [b"\xff" * 8, bytes(8), *((1 << bit).to_bytes(8, "little") for bit in (31, 40, 63))]


def changed(rng, data):
    """Returns the data with changed, added or removed bytes."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 3])):
        at, kind = rng.randrange(len(data)), rng.randrange(5)
        if kind == 0:
            data[at] = rng.choice([0, 127, 128, 255, rng.randrange(256)])
        elif kind in (1, 2):
            data[at : at + 4 * kind] = rng.choice(SIZES)[: 4 * kind]
        elif kind == 3 and len(data) > 40:
            del data[at : at + rng.choice([1, 4, 30])]
        else:
            data[at:at] = rng.randbytes(rng.choice([1, 8, 64]))
    return bytes(data)


@pytest.mark.parametrize("name", READERS)
def test_damaged_file_error_names_file_and_changes_nothing(tmp_path, name):
    file, make = READERS[name]
    path = str(tmp_path / file)
    read, state = make(path)
    with open(path, "rb") as opened:
        whole = opened.read()
    read()

    def failed(data, what):
        """True if reading raised an error, whose type and message are checked."""
        with open(path, "wb") as opened:
            opened.write(data)
        before = state and state()
        try:
            # An image may use as many pixels as the limit allows, whatever its file size
            with bounded(len(data), what, plus=2 << 30 if name.startswith(IMAGES) else PLUS):
                read()
        except (mx.MXNetError, *OTHERS) as error:
            # An image list and a symbol can refer to missing files
            there = str(tmp_path) if name in ("list of images*", "exported symbol") else file
            assert there in str(error), f"{what}: {type(error).__name__}: {error}"
            assert state is None or state() == before, what
            return True
        return False

    ends = range(len(whole)) if len(whole) < 200 else range(0, len(whole), len(whole) // 60)
    wrong = [end for end in ends if not failed(whole[:end], f"cut off at {end}")]
    assert not wrong or name.endswith("*"), wrong
    assert len(wrong) < len(ends) * 0.9
    for number in range(30):
        failed(changed(random.Random(number), whole), f"change {number}")
    for junk in JUNK:
        assert failed(junk, junk[:8]) or not junk.strip(b"\0") or name.endswith("*"), junk[:8]
    failed(whole, "whole")
    read()


@pytest.mark.parametrize("suffix", ["json", "params"])
def test_unreadable_model_does_not_hybridize_the_block(tmp_path, suffix):
    net, _ = trained()
    net.hybridize()
    net.save(str(tmp_path / "net"))
    other = gluon.nn.HybridSequential(prefix="net_")
    with other.name_scope():
        other.register_child(gluon.nn.Dense(2, in_units=3), "first")
        other.register_child(gluon.nn.BatchNorm(in_channels=2), "second")
    other.initialize()
    path = tmp_path / f"net-model.{suffix}"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises((mx.MXNetError, ValueError), match=path.name):
        other.load(str(tmp_path / "net"))
    assert list(other._children) == ["first", "second"] and not other._active
    path.write_bytes(whole)
    other.load(str(tmp_path / "net"))
    assert list(other._children) == ["0", "1"] and other._active
    assert of_net(other)() == of_net(net)()


def test_hostile_array_names_have_no_side_effects(tmp_path):
    """Names inside files are only names: they cause no writes and run no code."""
    before = set(os.listdir(tmp_path))
    names = [
        "../up",
        "/etc/x",
        "a\nb",
        "a" * 10000,
        "",
        "__class__",
        "é\u202e",
        "%s{0}",
        "arg:",
        "\0",
    ]
    path = str(tmp_path / "a.params")
    nd.save(path, {name: nd.ones((1,)) for name in names})
    assert set(nd.load(path)) == set(names)
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    weight = net.weight.data().asnumpy()
    with pytest.raises(AssertionError, match="is missing in file"):
        net.load_parameters(path)
    assert net.weight.data().asnumpy() == weight
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as file:
        for member in ("../../test_batch.bin", "/tmp/test_batch.bin"):
            info = tarfile.TarInfo(member)
            info.size = 3073
            file.addfile(info, io.BytesIO(bytes(3073)))
    try:
        gluon.data.vision.CIFAR10(str(tmp_path), train=False)
    except (mx.MXNetError, FileNotFoundError) as error:
        assert "cifar-10" in str(error) or "test_batch" in str(error)
    assert set(os.listdir(tmp_path)) - before == {"a.params", "cifar-10-binary.tar.gz"}


@pytest.mark.slow
@pytest.mark.skipif(run.clang() is None, reason="there is no clang")
def test_core_fuzzer_builds_and_accepts_its_corpus(tmp_path, monkeypatch):
    """The fuzzer's own memory and time limits hold for each corpus file."""
    monkeypatch.setattr(run, "WORK", str(tmp_path))
    command = [run.build_core(), "-runs=0", run.corpus_of(run.CORE)]
    environment = {**os.environ, "LD_PRELOAD": ""}  # it contains its own sanitizer
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "DONE" in done.stderr, done.stderr[-2000:]
