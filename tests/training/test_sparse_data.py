"""csr arrays in iterators and row_sparse arrays in key-value stores."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.calls import raises

VALUES = np.array([[0, 1, 0], [2, 0, 3], [0, 0, 0], [0, 0, 4], [5, 0, 0]], "float32")


def test_ndarray_iter_yields_csr_batches():
    data = nd.array(VALUES).tostype("csr")
    batches = list(mx.io.NDArrayIter(data, np.arange(5), 2, last_batch_handle="discard"))
    assert [batch.data[0].stype for batch in batches] == ["csr", "csr"]
    assert np.array_equal(batches[1].data[0].asnumpy(), VALUES[2:4])
    np.random.seed(0)
    shuffled = mx.io.NDArrayIter(data, np.arange(5), 2, True, last_batch_handle="discard")
    for batch in shuffled:
        assert batch.data[0].stype == "csr"
        order = batch.label[0].asnumpy().astype(int)
        assert np.array_equal(batch.data[0].asnumpy(), VALUES[order])
    raises(NotImplementedError, "discard", lambda: mx.io.NDArrayIter(data, np.arange(5), 2))
    scipy = pytest.importorskip("scipy.sparse")
    (batch,) = mx.io.NDArrayIter(
        scipy.csr_matrix(VALUES), batch_size=5, last_batch_handle="discard"
    )
    assert batch.data[0].stype == "csr" and np.array_equal(batch.data[0].asnumpy(), VALUES)


DATA = "1.0 0:0.5 2:1.25\n-2.0\n\n-3.0 0:0.5 1:2.5 2:1.25 # three\n4 2:-1.25\n"
ROWS = np.array([[0.5, 0, 1.25], [0, 0, 0], [0.5, 2.5, 1.25], [0, 0, -1.25]], "float32")


def test_libsvm_iter_reads_csr_data_and_labels(tmp_path):
    path, labels = tmp_path / "data.t", tmp_path / "label.t"
    path.write_text(DATA)
    labels.write_text("1.0\n-2.0 0:0.125\n-3.0 2:1.25\n4 1:1.0 2:-1.25\n")
    batches = mx.io.LibSVMIter(str(path), (3,), batch_size=3)
    assert isinstance(batches, mx.io.MXDataIter)
    assert batches.provide_data[0].shape == (3, 3) and batches.provide_label[0].shape == (3,)
    first, second = list(batches)
    assert first.data[0].stype == "csr" and np.array_equal(first.data[0].asnumpy(), ROWS[:3])
    assert first.label[0].asnumpy().tolist() == [1, -2, -3] and second.pad == 2
    assert np.array_equal(second.data[0].asnumpy(), ROWS[[3, 0, 1]])
    batches = mx.io.LibSVMIter(
        str(path), (3,), label_libsvm=str(labels), label_shape=(3,), batch_size=2
    )
    label = next(batches).label[0]
    assert label.stype == "csr" and label.asnumpy().tolist() == [[0, 0, 0], [0.125, 0, 0]]
    (batch,) = mx.io.LibSVMIter(str(path), (3,), num_parts=2, part_index=1, batch_size=2)
    assert np.array_equal(batch.data[0].asnumpy(), ROWS[2:])


def test_libsvm_iter_ignores_weights_and_query_ids(tmp_path):
    path = tmp_path / "data.t"
    path.write_text("1:2.5 0:1\n2 qid:1 0:1\n3:1 qid:2\n")
    (batch,) = mx.io.LibSVMIter(str(path), 2, batch_size=3)
    assert batch.label[0].asnumpy().tolist() == [1, 2, 3]
    assert batch.data[0].asnumpy().tolist() == [[1, 0], [1, 0], [0, 0]]


def test_libsvm_label_shape_needs_a_label_file(tmp_path):
    path = tmp_path / "data.t"
    path.write_text("1 0:1\n")
    for shape in (1, (1,)):
        assert len(list(mx.io.LibSVMIter(str(path), 2, label_shape=shape))) == 1
    for shape in (3, (3,)):
        with pytest.raises(mx.MXNetError, match="label_shape must be .1,.* not .*3.*label_libsvm"):
            mx.io.LibSVMIter(str(path), 2, label_shape=shape)
    with pytest.raises(mx.MXNetError, match="csr rows .* pass their label_shape"):
        mx.io.LibSVMIter(str(path), 2, label_libsvm=str(path), batch_size=1)


@pytest.mark.parametrize(
    "text, message",
    [
        ("1 -1:0.5 2:1\n", "check_format"),
        ("1 3:0.5\n", "check_format"),
        ("1 2:1 1:1\n", "check_format"),
        ("1 2\n", "line 1"),
        ("one 2:1\n", "line 1"),
        ("1:x 2:1\n", "line 1"),
        ("1 qid:x 2:1\n", "line 1"),
        ("1 2:1 qid:1\n", "line 1"),
        ("", "empty"),
    ],
)
def test_invalid_libsvm_files_raise(tmp_path, text, message):
    (tmp_path / "data.t").write_text(text)
    raises(mx.MXNetError, message, lambda: mx.io.LibSVMIter(str(tmp_path / "data.t"), (3,)))


def test_store_pulls_and_pushes_row_sparse_arrays():
    store = mx.kv.create("device")
    store.init("a", nd.ones((4, 2)).tostype("row_sparse"))
    outs = [nd.zeros((4, 2), ctx=mx.cpu(i), stype="row_sparse") for i in range(2)]
    store.row_sparse_pull("a", out=outs, row_ids=[nd.array([2, 0, 2]), nd.array([[1], [3]])])
    assert [out.indices.asnumpy().tolist() for out in outs] == [[0, 2], [1, 3]]
    store.row_sparse_pull(["a"], out=[outs], row_ids=[nd.array([1])])
    assert [out.indices.asnumpy().tolist() for out in outs] == [[1], [1]]
    store.push("a", outs)
    dense = nd.zeros((4, 2))
    store.pull("a", out=[dense, outs[0]])
    assert dense.asnumpy()[:, 0].tolist() == [0, 2, 0, 0]
    assert outs[0].asnumpy().sum() == 2  # pull ignores row_sparse outputs by default
    store.pull("a", out=outs[0], ignore_sparse=False)
    assert outs[0].asnumpy().sum() == 4
    for wrong in (
        lambda: store.row_sparse_pull("a", out=dense, row_ids=nd.array([0])),
        lambda: store.row_sparse_pull("a", out=outs, row_ids=[nd.array([0])] * 3),
    ):
        raises(mx.MXNetError, "row_sparse_pull", wrong)
    raises(AssertionError, "row_ids", lambda: store.row_sparse_pull("a", out=outs[0]))


@pytest.mark.parametrize("weight_stype", ["default", "row_sparse"])
def test_store_updates_only_pushed_rows(weight_stype):
    store = mx.kv.create("local")
    store.init(0, nd.ones((4, 2)).tostype(weight_stype))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1, momentum=0.5))
    for _ in range(2):
        grads = [
            nd.sparse.row_sparse_array(([[1, 1]], [row]), shape=(4, 2), ctx=mx.cpu(row))
            for row in (0, 1)
        ]
        store.push(0, [grads[0], grads[1], grads[1]])
    out = nd.zeros((4, 2), stype=weight_stype)
    store.pull(0, out=out, ignore_sparse=False)
    assert out.asnumpy()[:, 0].tolist() == [-1.5, -4, 1, 1]


@pytest.mark.parametrize("shuffle", [False, True])
def test_label_with_fewer_samples_than_data_raises(shuffle):
    with pytest.raises(ValueError, match="label has 2 samples, but data has 3"):
        mx.io.NDArrayIter(np.ones((3, 2)), np.ones(2), shuffle=shuffle)
