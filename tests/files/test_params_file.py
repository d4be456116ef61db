"""Array files: exact bytes, every dtype, old versions, damage and atomic replacement."""

import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import mpgluon as mx
from support.calls import raises
from support.processes import output_of

VERSION_1, VERSION_2, VERSION_3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DTYPES = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "uint8": 3,
    "int32": 4,
    "int8": 5,
    "int64": 6,
    "bool": 7,
    "bfloat16": 12,
}


def array_bytes(shape, dtype_number, data, version=VERSION_2, device=(1, 0)):
    """Encodes an array as the format description specifies."""
    if version is None:
        head = struct.pack(f"<I{len(shape)}I", len(shape), *shape)
    elif version == VERSION_1:
        head = struct.pack(f"<Ii{len(shape)}q", version, len(shape), *shape)
    else:
        head = struct.pack(f"<Iii{len(shape)}q", version, 0, len(shape), *shape)
    return head + struct.pack("<iii", *device, dtype_number) + data


def file_bytes(arrays, names=()):
    names = [name.encode() if isinstance(name, str) else name for name in names]
    out = (
        struct.pack("<QQQ", 0x112, 0, len(arrays))
        + b"".join(arrays)
        + struct.pack("<Q", len(names))
    )
    return out + b"".join(struct.pack("<Q", len(name)) + name for name in names)


SIX = np.arange(6, dtype="float32").reshape(2, 3)
GOLDEN = file_bytes(
    [array_bytes((2, 3), 0, SIX.tobytes()), array_bytes((2,), 6, np.array([5, -1]).tobytes())],
    ["arg:w", "aux:ü"],
)


def test_saved_dict_has_expected_bytes(tmp_path):
    path = tmp_path / "a.params"
    mx.nd.save(path, {"arg:w": mx.nd.array(SIX), "aux:ü": mx.nd.array([5, -1], dtype="int64")})
    assert path.read_bytes() == GOLDEN
    assert (
        mx.nd.save_tobuffer(
            {"arg:w": mx.nd.array(SIX), "aux:ü": mx.nd.array([5, -1], dtype="int64")}
        )
        == GOLDEN
    )


@pytest.mark.parametrize("how", ["file", "buffer"])
def test_dict_is_loaded_from_file_and_buffer(tmp_path, how):
    (tmp_path / "a.params").write_bytes(GOLDEN)
    loaded = (
        mx.nd.load(str(tmp_path / "a.params"))
        if how == "file"
        else mx.nd.load_frombuffer(bytearray(GOLDEN))
    )
    assert list(loaded) == ["arg:w", "aux:ü"]
    np.testing.assert_array_equal(loaded["arg:w"].asnumpy(), SIX)
    assert loaded["aux:ü"].dtype == np.int64 and loaded["aux:ü"].asnumpy().tolist() == [5, -1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 1, 2), (0, 3), (70000,)])
def test_every_dtype_and_shape_round_trips(tmp_path, dtype, shape):
    values = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 100, shape)
    array = mx.nd.array(values, dtype=dtype)
    mx.nd.save(tmp_path / "a", [array])
    number = struct.unpack_from("<i", (tmp_path / "a").read_bytes(), 24 + 12 + 8 * len(shape) + 8)[
        0
    ]
    assert number == DTYPES[dtype]
    (loaded,) = mx.nd.load(tmp_path / "a")
    assert loaded.shape == shape and loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded.asnumpy(), array.asnumpy())


def test_single_array_and_empty_collections_are_saved(tmp_path):
    mx.nd.save(tmp_path / "a", mx.nd.array(SIX))
    assert (tmp_path / "a").read_bytes() == file_bytes([array_bytes((2, 3), 0, SIX.tobytes())])
    for nothing in ([], {}):
        mx.nd.save(tmp_path / "a", nothing)
        assert mx.nd.load(tmp_path / "a") == []


@pytest.mark.parametrize("version", [None, VERSION_1, VERSION_2, VERSION_3])
def test_every_format_version_is_loaded(version):
    loaded = mx.nd.load_frombuffer(
        file_bytes([array_bytes((2, 3), 0, SIX.tobytes(), version)], ["x"])
    )
    np.testing.assert_array_equal(loaded["x"].asnumpy(), SIX)


def test_absent_array_is_loaded_as_none():
    for absent in (
        struct.pack("<I", 0),
        struct.pack("<Iii", VERSION_2, 0, 0),
        struct.pack("<Iii", VERSION_3, 0, -1),
    ):
        loaded = mx.nd.load_frombuffer(
            file_bytes([absent, array_bytes((2, 3), 0, SIX.tobytes())], ["a", "b"])
        )
        assert loaded["a"] is None and loaded["b"].shape == (2, 3)


def test_device_is_saved_and_ignored_on_load(tmp_path):
    mx.nd.save(tmp_path / "a", [mx.nd.array(SIX, ctx=mx.cpu(1))])
    assert (tmp_path / "a").read_bytes() == file_bytes(
        [array_bytes((2, 3), 0, SIX.tobytes(), device=(1, 1))]
    )
    assert mx.nd.load(tmp_path / "a")[0].context == mx.cpu(0)
    (loaded,) = mx.nd.load_frombuffer(
        file_bytes([array_bytes((2, 3), 0, SIX.tobytes(), device=(2, 1000))])
    )
    assert loaded.context == mx.cpu(0)


def test_save_waits_for_queued_work(tmp_path):
    array = mx.nd.ones((300, 300), ctx=mx.cpu(1))
    for _ in range(20):
        array = mx.nd.dot(array, array) / 300
    mx.nd.save(tmp_path / "a", [array])
    np.testing.assert_array_equal(mx.nd.load(tmp_path / "a")[0].asnumpy(), array.asnumpy())


def test_reused_memory_of_failed_op_holds_loaded_values(tmp_path):
    path = str(tmp_path / "one")
    values = np.arange(9, dtype="float32").reshape(3, 3)
    mx.nd.save(path, mx.nd.array(values))
    failed = mx.nd.linalg.potrf(-mx.nd.ones((3, 3)))
    raises(mx.MXNetError, "linalg_potrf", failed.wait_to_read)
    del failed
    for _ in range(3):
        assert np.array_equal(mx.nd.load(path)[0].asnumpy(), values)


def test_loaded_bools_are_normalized_to_zero_or_one():
    (loaded,) = mx.nd.load_frombuffer(file_bytes([array_bytes((3,), 7, b"\x00\x01\xff")]))
    assert loaded.asnumpy().view("uint8").tolist() == [0, 1, 1]


DAMAGED = {
    "empty": b"",
    "not ours": b"PK\x03\x04" + GOLDEN,
    "huge count": struct.pack("<QQQ", 0x112, 0, 1 << 60) + GOLDEN[24:],
    "huge dimension": file_bytes([array_bytes((1 << 40, 1 << 40), 0, b"")]),
    "dimension past the file": file_bytes([array_bytes((1 << 40,), 0, b"1234")]),
    "negative dimension": file_bytes([array_bytes((-2, 3), 0, b"")]),
    "many dimensions": file_bytes([array_bytes((1,) * 11, 0, b"1234")]),
    "unknown dtype": file_bytes([array_bytes((1,), 9, b"1234")]),
    "unknown version": file_bytes([struct.pack("<I", 0xF993FACB) + bytes(40)]),
    "unknown storage type": file_bytes([struct.pack("<Ii", VERSION_2, 3) + bytes(40)]),
    "wrong number of names": file_bytes([array_bytes((1,), 0, b"1234")], ["a", "b"]),
    "name not UTF-8": file_bytes([array_bytes((1,), 0, b"1234")], [b"\xff\xfe"]),
    "huge name": file_bytes([array_bytes((1,), 0, b"1234")])[:-8] + struct.pack("<QQ", 1, 1 << 62),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damage_error_names_file_and_byte(tmp_path, what):
    path = tmp_path / "damaged.params"
    path.write_bytes(DAMAGED[what])
    raises(mx.MXNetError, r"damaged\.params', byte \d+: ", lambda: mx.nd.load(path))


def shape_bytes(*shape):
    return struct.pack(f"<i{len(shape)}q", len(shape), *shape)


def sparse_bytes(stype, values, shape, data, *aux):
    """Encodes a sparse float32 array; `aux` are lists of indices."""
    parts = [struct.pack("<Ii", VERSION_2, stype), shape_bytes(*values), shape_bytes(*shape)]
    parts.append(struct.pack("<iii", 1, 0, 0))
    parts += [struct.pack("<i", 6) + shape_bytes(len(numbers)) for numbers in aux]
    parts.append(np.array(data, "float32").tobytes())
    return b"".join(parts + [np.array(numbers, "int64").tobytes() for numbers in aux])


ROWS = sparse_bytes(1, (2, 2), (4, 2), [[1, 2], [3, 4]], [1, 3])
ELEMENTS = sparse_bytes(2, (3,), (2, 4), [5, 6, 7], [0, 2, 3], [0, 3, 1])


def test_sparse_arrays_round_trip():
    loaded = mx.nd.load_frombuffer(file_bytes([ROWS, ELEMENTS]))
    assert [array.stype for array in loaded] == ["row_sparse", "csr"]
    assert loaded[0].asnumpy().tolist() == [[0, 0], [1, 2], [0, 0], [3, 4]]
    assert loaded[1].asnumpy().tolist() == [[5, 0, 0, 6], [0, 7, 0, 0]]
    assert mx.nd.save_tobuffer(loaded) == file_bytes([ROWS, ELEMENTS])


@pytest.mark.parametrize(
    "record",
    [
        sparse_bytes(1, (2, 2), (4, 2), [[1, 2], [3, 4]], [1, 4]),
        sparse_bytes(1, (2, 2), (4, 2), [[1, 2], [3, 4]], [3, 1]),
        sparse_bytes(1, (2, 2), (4, 2), [[1, 2], [3, 4]], [1]),
        sparse_bytes(1, (2, 2), (4, 3), [[1, 2], [3, 4]], [1, 2]),
        sparse_bytes(2, (1,), (2, 4), [5], [0, 2, 1], [0]),
        sparse_bytes(2, (1,), (2, 4), [5], [0, 1], [0]),
        sparse_bytes(2, (1,), (2, 4), [5], [0, 1, 1], [9]),
        sparse_bytes(2, (1,), (2,), [5], [0, 1, 1], [0]),
    ],
)
def test_inconsistent_sparse_array_is_refused(record):
    with pytest.raises(mx.MXNetError, match=r"are inconsistent|check_format"):
        mx.nd.load_frombuffer(file_bytes([record]))


def test_truncated_sparse_arrays_are_refused():
    whole = file_bytes([ROWS, ELEMENTS])
    for length in range(len(whole)):
        with pytest.raises(mx.MXNetError):
            mx.nd.load_frombuffer(whole[:length])


def test_truncated_file_is_refused():
    for length in range(len(GOLDEN)):
        with pytest.raises(mx.MXNetError):
            mx.nd.load_frombuffer(GOLDEN[:length])


def test_mutated_file_is_loaded_or_refused():
    """Loading a mutated file either gives arrays or raises an error."""
    rng = random.Random(7)
    seeds = [
        GOLDEN,
        file_bytes(
            [array_bytes((2, 3), 0, SIX.tobytes(), v) for v in (None, VERSION_1, VERSION_3)],
            ["a", "b", "c"],
        ),
    ]
    loaded = failed = 0
    for _ in range(4000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            place, kind = rng.randrange(len(data)), rng.randrange(4)
            if kind == 0:
                data[place] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif kind == 2:
                data[place : place + 8] = b"\xff" * len(data[place : place + 8])
            else:
                del data[place : place + rng.randint(1, 8)]
                data = data or bytearray(b"\0")
        try:
            mx.nd.load_frombuffer(data)
            loaded += 1
        except mx.MXNetError:
            failed += 1
    assert loaded and failed > 1000


def test_missing_files_and_invalid_arguments_are_refused(tmp_path):
    raises(mx.MXNetError, "none.params", lambda: mx.nd.load(tmp_path / "none.params"))
    raises(mx.MXNetError, "folder", lambda: mx.nd.load(tmp_path))
    with pytest.raises(mx.MXNetError, match="cannot be written"):
        mx.nd.save(tmp_path / "no" / "folder", [mx.nd.zeros((1,))])
    raises(mx.MXNetError, "folder", lambda: mx.nd.save(tmp_path, [mx.nd.zeros((1,))]))
    for wrong in (5, [1, 2], {"a": 1}, {1: mx.nd.zeros((1,))}, "text", (mx.nd.zeros((1,)),)):
        with pytest.raises(TypeError if isinstance(wrong, (list, dict)) else ValueError):
            mx.nd.save(tmp_path / "a", wrong)
    with pytest.raises(TypeError):
        mx.nd.load_frombuffer("text")
    assert not os.listdir(tmp_path)


def test_replacing_file_keeps_links_and_permissions(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    mx.nd.save(target, [mx.nd.zeros((1,))])
    os.chmod(target, 0o640)
    link.symlink_to(target)
    mx.nd.save(link, [mx.nd.ones((2,))])
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o640
    assert mx.nd.load(target)[0].shape == (2,)
    assert sorted(os.listdir(tmp_path)) == ["link", "target"]


def test_dangling_link_is_kept_and_its_target_created(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(tmp_path / "folder" / "target")
    mx.nd.save(tmp_path / "first", [mx.nd.ones((2,))])
    assert (tmp_path / "first").is_symlink() and (tmp_path / "second").is_symlink()
    assert os.listdir(tmp_path / "folder") == ["target"]
    assert mx.nd.load(tmp_path / "first")[0].shape == (2,)


def test_circular_links_are_refused_and_kept(tmp_path):
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("first")
    with pytest.raises(OSError, match="following its links"):
        mx.nd.save(tmp_path / "first", [mx.nd.ones((2,))])
    assert (tmp_path / "first").is_symlink() and sorted(os.listdir(tmp_path)) == ["first", "second"]


def test_duplicate_array_names_warn():
    raw = file_bytes([array_bytes((2, 3), 0, SIX.tobytes())] * 2, ["w", "w"])
    with pytest.warns(UserWarning, match="several arrays named 'w'"):
        assert list(mx.nd.load_frombuffer(raw)) == ["w"]


def test_loading_refuses_pipes_and_saving_to_pipe_releases_the_gil(tmp_path):
    """Loading refuses pipes. Saving lets other threads run, one of which may be the reader."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    printed = output_of(f"""
        import threading, mpgluon as mx
        try:
            mx.nd.load({str(path)!r})
        except mx.MXNetError as error:
            print("pipe" in str(error))
        read = []
        reader = threading.Thread(target=lambda: read.append(open({str(path)!r}, "rb").read()))
        reader.start()
        mx.nd.save({str(path)!r}, [mx.nd.ones((1 << 20,))])
        reader.join()
        print(mx.nd.load_frombuffer(read[0])[0].asnumpy().sum() == 1 << 20)
        """)
    assert printed.split() == ["True", "True"]


def test_arrays_written_during_save_are_not_torn(tmp_path):
    x = mx.nd.zeros((300000,))
    stop = threading.Event()

    def write():
        while not stop.is_set():
            x[:] = x + 1
            x.wait_to_read()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            mx.nd.save(tmp_path / "x", [x, x])
            for saved in mx.nd.load(tmp_path / "x"):
                assert saved.min().asscalar() == saved.max().asscalar()
    finally:
        stop.set()
        writer.join()


def test_failed_save_keeps_previous_file(tmp_path):
    path = tmp_path / "a"
    mx.nd.save(path, [mx.nd.array(SIX)])
    before = path.read_bytes()
    limit = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000)); import "
        "signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    )
    code = (
        f"{limit}\nimport mpgluon as mx\ntry:\n  mx.nd.save({str(path)!r}, [mx.nd.zeros((1000, "
        "1000))])\nexcept mx.MXNetError as e:\n  print(e)"
    )
    assert "cannot be written" in output_of(code)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a"]


def test_kill_during_save_keeps_a_complete_file(tmp_path):
    path = tmp_path / "a"
    mx.nd.save(path, [mx.nd.ones((3,))])
    code = (
        "import mpgluon as mx\nx = [mx.nd.zeros((1000, 1000)) for _ in range(4)]\nprint('ready', "
        f"flush=True)\nwhile True: mx.nd.save({str(path)!r}, x)"
    )
    for delay in (0.01, 0.05):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        shapes = [array.shape for array in mx.nd.load(path)]
        assert shapes in ([(3,)], [(1000, 1000)] * 4)


def test_write_file_writes_bytes_only(tmp_path):
    mx._core.write_file(tmp_path / "a", b"hello")
    assert (tmp_path / "a").read_bytes() == b"hello"
    with pytest.raises(TypeError):
        mx._core.write_file(tmp_path / "a", "text")
