"""Iterators over arrays and over CSV and LibSVM files."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.base import MXNetAssertionError, MXNetError
from support.calls import raises


def rows(batches):
    return [
        batch.data[0].asnumpy()[: batch.data[0].shape[0] - batch.pad, 0].tolist()
        for batch in batches
    ]


def test_ndarray_iter_pads_discards_or_rolls_over_the_last_batch():
    data, label = np.arange(10).reshape(5, 2), np.arange(5)
    pad = mx.io.NDArrayIter(data, label, batch_size=3)
    assert rows(pad) == [[0, 2, 4], [6, 8]]
    pad.reset()
    last = list(pad)[-1]
    assert last.pad == 1
    assert last.data[0].asnumpy()[:, 0].tolist() == [6, 8, 0]
    assert last.label[0].asnumpy().tolist() == [3, 4, 0]
    assert rows(mx.io.NDArrayIter(data, batch_size=3, last_batch_handle="discard")) == [[0, 2, 4]]
    rolled = mx.io.NDArrayIter(data, batch_size=3, last_batch_handle="roll_over")
    assert [batch.data[0].asnumpy()[:, 0].tolist() for batch in rolled] == [[0, 2, 4]]
    rolled.reset()
    assert [batch.data[0].asnumpy()[:, 0].tolist() for batch in rolled] == [[6, 8, 0], [2, 4, 6]]
    rolled.hard_reset()
    assert next(rolled).data[0].asnumpy()[:, 0].tolist() == [0, 2, 4]
    few = mx.io.NDArrayIter(data, batch_size=12)
    assert next(few).data[0].asnumpy()[:, 0].tolist() == [0, 2, 4, 6, 8, 0, 2, 4, 6, 8, 0, 2]
    shuffled = mx.io.NDArrayIter({"a": data, "b": data + 1}, label, batch_size=5, shuffle=True)
    batch = next(shuffled)
    assert sorted(batch.data[0].asnumpy()[:, 0].tolist()) == [0, 2, 4, 6, 8]
    assert (batch.data[1] - batch.data[0]).asnumpy().tolist() == [[1, 1]] * 5
    assert (batch.data[0].asnumpy()[:, 0] / 2).tolist() == batch.label[0].asnumpy().tolist()
    assert [desc.name for desc in shuffled.provide_data] == ["a", "b"]
    assert shuffled.provide_label[0].shape == (5,)
    with pytest.raises(ValueError):
        mx.io.NDArrayIter(data, batch_size=6, last_batch_handle="discard")
    with pytest.raises(ValueError):
        mx.io.NDArrayIter(data, last_batch_handle="other")
    with pytest.raises(TypeError):
        mx.io.NDArrayIter(3)


def test_resize_and_prefetching_iters_yield_all_batches():
    data = np.arange(10).reshape(5, 2)
    resized = mx.io.ResizeIter(mx.io.NDArrayIter(data, batch_size=5), 3)
    assert len(list(resized)) == 3
    ahead = mx.io.PrefetchingIter(
        [mx.io.NDArrayIter(data, batch_size=2), mx.io.NDArrayIter(data + 1, batch_size=2)],
        rename_data=[{"data": "x"}, {"data": "y"}],
    )
    for _ in range(3):
        batches = list(ahead)
        assert rows(batches) == [[0, 2], [4, 6], [8]] and len(batches[0].data) == 2
        ahead.reset()
    next(ahead)
    ahead.reset()  # in mid-epoch
    assert rows(ahead) == [[0, 2], [4, 6], [8]]
    assert [desc.name for desc in ahead.provide_data] == ["x", "y"]

    class Failing(mx.io.NDArrayIter):
        def next(self):
            raise RuntimeError("no data today")

    raises(RuntimeError, "today", lambda: next(mx.io.PrefetchingIter(Failing(data, batch_size=2))))


def test_csv_iter_reads_data_and_labels(tmp_path):
    (tmp_path / "data.csv").write_text("1,2\n3,4\n5,6\n")
    (tmp_path / "label.csv").write_text("7\n8\n9\n")
    files = {
        "data_csv": str(tmp_path / "data.csv"),
        "label_csv": str(tmp_path / "label.csv"),
        "batch_size": 2,
    }

    def epoch(batches):
        seen = [
            (batch.data[0].asnumpy()[:, 0].tolist(), batch.label[0].asnumpy().tolist(), batch.pad)
            for batch in batches
        ]
        batches.reset()
        return seen

    batches = mx.io.CSVIter(data_shape=(2,), **files)
    assert batches.provide_data[0].shape == (2, 2) and batches.provide_label[0].shape == (2,)
    assert epoch(batches) == [([1, 3], [7, 8], 0), ([5, 1], [9, 7], 1)]
    assert epoch(batches) == [([3, 5], [8, 9], 0)]
    assert epoch(batches) == [([1, 3], [7, 8], 0), ([5, 1], [9, 7], 1)]
    again = mx.io.CSVIter(data_shape=(2, 1), round_batch=False, dtype="int64", **files)
    assert [epoch(again), epoch(again)] == [[([[1], [3]], [7, 8], 0), ([[5], [1]], [9, 7], 1)]] * 2
    assert next(again).data[0].dtype == np.int64
    with pytest.raises(
        mx.MXNetError, match=r"lines of .*data.csv have 2 numbers, but the shape \(3,\) has 3"
    ):
        mx.io.CSVIter(data_shape=(3,), **files)
    (tmp_path / "label.csv").write_text("7\n")
    raises(mx.MXNetError, "3 lines", lambda: mx.io.CSVIter(data_shape=(2,), **files))
    (tmp_path / "data.csv").write_text("1,2\n3,x\n")
    raises(mx.MXNetError, "data.csv", lambda: mx.io.CSVIter(data_shape=(2,), **files))


def test_numpy_arrays_become_float32():
    batch = next(mx.io.NDArrayIter({"a": np.arange(4), "b": np.ones(4)}, np.arange(4), 2))
    assert [array.dtype for array in (*batch.data, *batch.label)] == [np.float32] * 3


def test_shuffled_ndarray_iter_draws_orders_as_mxnet():
    """Attributes follow the epoch's order; orders are drawn and composed as in MXNet."""
    data, label = np.arange(24).reshape(6, 4), np.arange(6)
    np.random.seed(3)
    drawn, draws = np.arange(6), []
    for _ in range(3):
        np.random.shuffle(drawn)
        draws.append(drawn.copy())
    np.random.seed(3)
    batches = mx.io.NDArrayIter({"a": data, "b": data + 1}, label, 6, shuffle=True)
    order = np.arange(6)
    for drawn in draws:
        order = order[drawn]
        assert batches.idx.tolist() == drawn.tolist()
        batch = next(batches)
        for arrays in (batches.data, batch.data, batches.data_list):
            first = arrays[0][1] if arrays is batches.data else arrays[0]
            assert first.asnumpy().tolist() == data[order].tolist()
        assert batches.label[0][1].asnumpy().tolist() == order.tolist()
        assert batch.label[0].asnumpy().tolist() == order.tolist()
        batches.reset()
    assert batches.num_source == len(batches.data_list) == 3


def test_ndarray_iter_accepts_array_like_data_sets():
    class Dataset:  # like h5py.Dataset
        shape, dtype = (5, 2), np.dtype("float64")

        def __array__(self, dtype=None, copy=None):
            return np.arange(10.0).reshape(5, 2).astype(dtype or self.dtype)

    for data in (Dataset(), [Dataset()], {"data": Dataset()}):
        batches = mx.io.NDArrayIter(data, batch_size=2)
        assert rows(batches) == [[0, 2], [4, 6], [8]]
        assert batches.provide_data[0].name == "data"


def test_ndarray_iter_rejects_data_that_is_no_array():
    for data in (None, [], {}):
        raises(MXNetAssertionError, "data must not be empty", lambda: mx.io.NDArrayIter(data))
    for wrong, kind in (("xyz", "str"), (object(), "object"), (["a", [1]], "list")):
        with pytest.raises(TypeError, match=f"'b' is a {kind}.*cannot be converted to an array"):
            mx.io.NDArrayIter({"a": np.zeros(2), "b": wrong})
        with pytest.raises(TypeError, match="'softmax_label' is a|list of them"):
            mx.io.NDArrayIter(np.zeros(2), [wrong])
    for wrong, kind in ((np.float32(3), "float32"), ([None], "NoneType")):
        with pytest.raises(TypeError, match=f"'data' is a {kind} without a sample axis"):
            mx.io.NDArrayIter(wrong)
    raises(TypeError, "not int", lambda: mx.io.NDArrayIter(3))


def test_batches_and_prefetching_iter_reject_invalid_sources():
    for given in (dict(data=nd.ones(2)), dict(data=None, label=nd.ones(2))):
        with pytest.raises(MXNetAssertionError, match="must be list of NDArrays, not NDArray"):
            mx.io.DataBatch(**given)
    raises(MXNetAssertionError, "iters must not be empty", lambda: mx.io.PrefetchingIter([]))
    for samples, words in ((8, "different numbers of batches"), (5, "padded differently")):
        sources = [mx.io.NDArrayIter(np.ones((n, 2)), batch_size=2) for n in (6, samples)]
        raises(MXNetAssertionError, words, lambda: list(mx.io.PrefetchingIter(sources)))


def test_batch_size_below_1_raises(tmp_path):
    (tmp_path / "data.csv").write_text("1,2\n")
    (tmp_path / "data.t").write_text("1 0:1\n")
    for size in (0, -2):
        for make in (
            lambda: mx.io.NDArrayIter(np.ones((3, 2)), batch_size=size),
            lambda: mx.io.NDArrayIter(
                np.ones((3, 2)), batch_size=size, last_batch_handle="discard"
            ),
            lambda: mx.io.CSVIter(str(tmp_path / "data.csv"), (2,), batch_size=size),
            lambda: mx.io.LibSVMIter(str(tmp_path / "data.t"), (2,), batch_size=size),
        ):
            raises(ValueError, f"Iter: batch_size must be at least 1, not {size}", make)


def test_csv_iter_reads_folders(tmp_path):
    folder = tmp_path / "parts"
    (folder / "inner").mkdir(parents=True)
    for name, text in (("b", "5,6\n"), ("a", "1,2\n3,4\n"), ("none", "")):
        (folder / name).write_text(text)
    (batch,) = mx.io.CSVIter(str(folder), 2, label_csv="NULL", label_shape=2, batch_size=3)
    assert batch.data[0].asnumpy().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch.label[0].asnumpy().tolist() == [[0, 0]] * 3
    with pytest.raises(MXNetError, match="inner has only empty files or none"):
        mx.io.CSVIter(str(folder / "inner"), 2)
    (folder / "b").write_text("5,6,7\n")
    raises(MXNetError, "b have 3 numbers", lambda: mx.io.CSVIter(str(folder), 2))


@pytest.mark.parametrize("kind", ["csv", "libsvm"])
def test_batch_larger_than_the_data_wraps_around(tmp_path, kind):
    """Samples of the next epoch fill the batch; that epoch starts after them. If too few samples
    remain, it raises an error."""
    path = str(tmp_path / "data")
    with open(path, "w") as file:
        file.write("".join(f"{i}\n" if kind == "csv" else f"{i} 0:{i}\n" for i in range(4)))

    def epochs(size, count):
        make = mx.io.CSVIter if kind == "csv" else mx.io.LibSVMIter
        batches = make(path, data_shape=(1,), batch_size=size)
        for _ in range(count):
            yield [batch.data[0].asnumpy()[:, 0].tolist() for batch in batches]
            batches.reset()

    assert list(epochs(6, 3)) == [[[0, 1, 2, 3, 0, 1]], [[2, 3, 0, 1, 2, 3]], [[0, 1, 2, 3, 0, 1]]]
    assert list(epochs(8, 2)) == [[[0, 1, 2, 3] * 2]] * 2
    for size, good in ((7, 1), (9, 0)):
        found = epochs(size, 5)
        for _ in range(good):
            assert len(next(found)) == 1
        raises(MXNetError, f"batch_size={size} is too large for 4 samples", lambda: next(found))
