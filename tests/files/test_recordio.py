"""RecordIO files: MXNet's bytes, indexed records, use by processes and threads, damaged files."""

import faulthandler
import io
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import recordio
from mpgluon.base import MXNetError
from support.calls import raises

MAGIC = bytes.fromhex("0a23d7ce")
# Records, and the bytes that MXNet 1.9.1 writes for them.
WRITTEN = [
    (b"", "0a23d7ce00000000"),
    (b"abcde", "0a23d7ce050000006162636465000000"),
    (MAGIC, "0a23d7ce000000200a23d7ce00000060"),
    (b"abcd" + MAGIC + b"e", "0a23d7ce04000020616263640a23d7ce0100006065000000"),
    (MAGIC + MAGIC + b"x", "0a23d7ce000000200a23d7ce000000400a23d7ce0100006078000000"),
    (b"a" + MAGIC, "0a23d7ce05000000610a23d7ce000000"),
]


@pytest.fixture
def paths(tmp_path):
    return str(tmp_path / "some.idx"), str(tmp_path / "some.rec")


def write(paths, records):
    record = recordio.MXIndexedRecordIO(*paths, "w")
    for i, data in enumerate(records):
        record.write_idx(i, data)
    record.close()


def test_record_bytes_match_mxnet(paths):
    write(paths, [data for data, _ in WRITTEN])
    with open(paths[1], "rb") as file:
        assert file.read().hex() == "".join(text for _, text in WRITTEN)
    with open(paths[0]) as file:
        assert file.read() == "0\t0\n1\t8\n2\t24\n3\t40\n4\t64\n5\t92\n"


def test_records_are_read_in_order_and_by_index(paths):
    records = [data for data, _ in WRITTEN]
    write(paths, records)
    record = recordio.MXRecordIO(paths[1], "r")
    for _ in range(2):
        assert [record.read() for _ in range(len(records) + 2)] == [*records, None, None]
        record.reset()
    record = recordio.MXIndexedRecordIO(*paths, "r")
    assert [record.read_idx(i) for i in reversed(record.keys)] == records[::-1]
    with pytest.raises(KeyError):
        record.read_idx(7)


def test_random_records_round_trip(paths):
    random = np.random.RandomState(0)
    pieces = [MAGIC, b"\x0a", b"\x23\xd7", b"abcd", b""]
    records = [b"".join(random.choice(pieces, 6)) for _ in range(100)]
    write(paths, records)
    record = recordio.MXIndexedRecordIO(*paths, "r")
    assert [record.read_idx(i) for i in range(100)] == records


def test_misuse_of_recordio_is_refused(paths):
    raises(ValueError, "flag", lambda: recordio.MXRecordIO(paths[1], "a"))
    with pytest.raises(FileNotFoundError):
        recordio.MXRecordIO(paths[1], "r")
    record = recordio.MXIndexedRecordIO(*paths, "w")
    raises(TypeError, "encode", lambda: record.write("text"))
    raises(AssertionError, "cannot be read", record.read)
    raises(AssertionError, "cannot be read$", lambda: record.read_idx(0))
    raises(MXNetError, "close it first", lambda: pickle.dumps(record))
    record.close()
    record.close()
    raises(MXNetError, "closed", lambda: record.write(b""))
    os.remove(paths[0])
    with pytest.raises(FileNotFoundError):
        recordio.MXIndexedRecordIO(*paths, "r")


def test_pickled_reader_reopens_its_file(paths):
    write(paths, [b"a", b"b"])
    record = recordio.MXIndexedRecordIO(*paths, "r")
    record.read_idx(1)
    copy = pickle.loads(pickle.dumps(record))
    assert copy.read() == b"a" and copy.read_idx(1) == b"b" and record.read() is None
    record.close()
    copy = pickle.loads(pickle.dumps(record))
    assert not copy.is_open
    copy.reset()
    assert copy.read() == b"a"


def in_a_fork(function):
    """Returns the result of a function in a forked process, or raises its exception."""
    source, target = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = function()
        except BaseException as error:
            found = error
        os.write(target, pickle.dumps(found))
        os._exit(0)
    os.close(target)
    with open(source, "rb") as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    assert text, f"the child has ended with {os.waitstatus_to_exitcode(status)}"
    value = pickle.loads(text)
    if isinstance(value, BaseException):
        raise value
    return value


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_process_reads_records_independently(paths):
    write(paths, [b"a", b"b", b"c"])
    record = recordio.MXIndexedRecordIO(*paths, "r")
    assert record.read() == b"a"
    assert in_a_fork(lambda: record.read_idx(2)) == b"c"
    assert record.read() == b"b"

    def read():
        try:
            record.read()
        except RuntimeError as error:
            return str(error)

    assert "another process" in in_a_fork(read)
    writer = recordio.MXRecordIO(paths[1], "w")
    writer.write(b"a")
    in_a_fork(writer.close)
    writer.write(b"b")
    writer.close()
    assert os.path.getsize(paths[1]) == 24


@pytest.fixture
def hasty_threads():
    """A thread pool with a minimal switch interval."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(4) as pool:
        yield pool
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("scanned", [False, True])
def test_threads_may_share_an_indexed_reader(paths, hasty_threads, scanned):
    """Seeking and reading are atomic; the file is larger than its buffer."""
    write(paths, [b"%03d" % i * 3000 for i in range(64)])
    record = (
        recordio.ScannedRecordIO(paths[1]) if scanned else recordio.MXIndexedRecordIO(*paths, "r")
    )
    keys = np.random.RandomState(0).randint(0, 64, 2000).tolist()
    for reader in (record, pickle.loads(pickle.dumps(record))):
        found = hasty_threads.map(lambda key: reader.read_idx(key)[:3], keys)
        assert list(found) == [b"%03d" % key for key in keys]


def test_threads_may_share_sequential_writes_and_reads(paths, hasty_threads):
    """Each record is written atomically and given to exactly one reading thread."""
    records = [b"%03d" % i * 3000 for i in range(300)]
    record = recordio.MXIndexedRecordIO(*paths, "w")
    list(hasty_threads.map(record.write_idx, range(300), records))
    record.close()
    record = recordio.MXIndexedRecordIO(*paths, "r")
    assert sorted(record.keys) == list(range(300))
    assert [record.read_idx(i) for i in range(300)] == records
    record.reset()
    found = list(hasty_threads.map(lambda _: record.read(), range(300)))
    assert sorted(found) == records


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_fork_during_read_does_not_deadlock(paths):
    """The child does not wait for a lock held by a thread of the parent."""
    write(paths, [b"a", b"b"])
    record = recordio.MXIndexedRecordIO(*paths, "r")
    held, done = threading.Event(), threading.Event()

    class Slow:
        def __getattr__(self, name):
            return getattr(file, name)

        def read(self, size):
            held.set()
            done.wait(60)
            return file.read(size)

    file, record._file = record._file, Slow()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(record.read_idx, 1)
        assert held.wait(60)

        def child():
            faulthandler.dump_traceback_later(30, exit=True, file=sys.__stderr__)
            with ThreadPoolExecutor(4) as pool:
                return list(pool.map(lambda key: (len(record.keys), record.read_idx(key)), [0, 1]))

        try:
            assert in_a_fork(child) == [(2, b"a"), (2, b"b")]
        finally:
            done.set()
        assert reading.result() == b"b"


def read_all(path):
    record, found = recordio.MXRecordIO(path, "r"), []
    while (data := record.read()) is not None:
        found.append(data)
    return found


def test_truncated_record_file_is_refused_after_the_cut(paths):
    """Reads the records before the cut, then raises an error unless the cut is between records."""
    records = [data for data, _ in WRITTEN]
    write(paths, records)
    ends = [0, *np.cumsum([len(text) // 2 for _, text in WRITTEN]).tolist()]
    with open(paths[1], "rb") as file:
        whole = file.read()
    for size in range(len(whole)):
        with open(paths[1], "wb") as file:
            file.write(whole[:size])
        if size in ends:
            assert read_all(paths[1]) == records[: ends.index(size)]
            with pytest.raises(MXNetError, match="ends before"):
                recordio.MXIndexedRecordIO(*paths, "r").read_idx(ends.index(size))
        else:
            raises(MXNetError, "damaged", lambda: read_all(paths[1]))


@pytest.mark.parametrize(
    "place, value",
    [(0, b"x"), (4, b"\xff"), (7, b"\x1f"), (7, b"\x40"), (7, b"\x60"), (7, b"\xa0")],
)
def test_damaged_record_header_is_refused(paths, place, value):
    write(paths, [b"abcde"])
    with open(paths[1], "r+b") as file:
        file.seek(place)
        file.write(value)
    raises(MXNetError, "damaged", lambda: read_all(paths[1]))


@pytest.mark.parametrize("line", ["", "0", "0\tx", "x\t0", "0\t-8", "0\t0\t0", "\t"])
def test_damaged_index_line_is_refused(paths, line):
    write(paths, [b"a"])
    with open(paths[0], "a") as file:
        file.write(line + "\n")
    raises(MXNetError, "line 2", lambda: recordio.MXIndexedRecordIO(*paths, "r"))


def test_pack_and_unpack_match_mxnet():
    record = recordio.pack((5, 2.5, 7, 1), b"data")
    assert record.hex() == "00000000000020400700000000000000010000000000000064617461"
    header, data = recordio.unpack(record)
    assert header == recordio.IRHeader(0, 2.5, 7, 1) and data == b"data"
    for label in ([1, 2], np.array([1.0, 2.0]), mx.nd.array([1, 2])):
        header, data = recordio.unpack(recordio.pack(recordio.IRHeader(0, label, 7, 0), b"data"))
        assert header.flag == 2 and header.label.tolist() == [1, 2] and data == b"data"
        assert header.label.dtype == np.float32
    for bad in ((0, 1, -1, 0), (0, 1, 0, 2**64), (0, 1, "a", 0)):
        raises(ValueError, "cannot be packed", lambda: recordio.pack(bad, b""))


def test_truncated_packed_record_is_refused():
    record = recordio.pack((0, [1, 2, 3], 0, 0), b"")
    for size in range(len(record)):
        raises(MXNetError, "header", lambda: recordio.unpack(record[:size]))


def picture(mode):
    shape = (6, 5) if mode == "L" else (6, 5, len(mode))
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_packed_images_round_trip(mode):
    image = pytest.importorskip("PIL.Image")
    values = picture(mode)
    record = recordio.pack_img((0, 1, 2, 0), values, quality=3, img_fmt=".png")
    header, same = recordio.unpack_img(record)
    assert header == (0, 1, 2, 0) and same.dtype == np.uint8
    np.testing.assert_array_equal(same, values)
    # blue, green, red
    stored = np.asarray(image.open(io.BytesIO(recordio.unpack(record)[1])))
    np.testing.assert_array_equal(
        stored[..., :3], values[..., ::-1] if mode == "RGB" else stored[..., :3]
    )
    assert recordio.unpack_img(record, 0)[1].shape == (6, 5)
    assert recordio.unpack_img(record, 1)[1].shape == (6, 5, 3)
    smooth = np.full_like(values, 100)
    near = recordio.unpack_img(recordio.pack_img((0, 1, 2, 0), smooth))[1]
    assert abs(near.astype(int) - 100).max() <= 2


def test_invalid_packed_images_are_refused():
    pytest.importorskip("PIL")
    values = picture("RGB")
    raises(ValueError, "img_fmt", lambda: recordio.pack_img((0, 1, 0, 0), values, img_fmt=".xyz"))
    raises(ValueError, "uint8", lambda: recordio.pack_img((0, 1, 0, 0), values.astype("float32")))
    raises(ValueError, "shape", lambda: recordio.pack_img((0, 1, 0, 0), values[0, 0]))
    for suffix in (".jpg", ".png"):
        record = recordio.pack_img((0, 1, 0, 0), values, img_fmt=suffix)
        for size in range(24, len(record) - 20, 7):
            raises(MXNetError, "decoded", lambda: recordio.unpack_img(record[:size]))
