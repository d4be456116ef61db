"""Exported blocks for other sizes of the input than those of the traced call: they compute the same
as the block, or raise an error that names the axis."""

import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn

HEADS = 2


def attention(F, h):
    b, t, d = h.shape
    q = h.reshape((b, t, HEADS, d // HEADS)).transpose((0, 2, 1, 3)).reshape((b * HEADS, t, -1))
    a = F.softmax(F.batch_dot(q, q, transpose_b=True))
    q = F.batch_dot(a, q).reshape((b, HEADS, t, d // HEADS))
    return q.transpose((0, 2, 1, 3)).reshape((b, t, d))


def table(F):
    return F.arange(60).reshape((30, 2))


# Results that only depend on sizes in ways that ops can infer
FREE = {
    "last": lambda F, h: h[:, -1],
    "inner": lambda F, h: h[:, 1:-1],
    "backward": lambda F, h: h[:, ::-1],
    "backward of the batch": lambda F, h: h[::-1],
    "backward and one": lambda F, h: h[:, 1, ::-1],
    "last two": lambda F, h: h[:, -2:],
    "first of a longer axis": lambda F, h: h[:, :2],
    "every second": lambda F, h: h[:, ::2],
    "beyond the end": lambda F, h: h[:, :9],
    "beyond the start": lambda F, h: h[..., -6:, :],
    "beyond the end in steps": lambda F, h: h[:, 0:5:2],
    "beyond the end backward": lambda F, h: h[:, 5::-2],
    "beyond the batch": lambda F, h: h[:5, None],
    "slice_axis": lambda F, h: F.slice_axis(h, axis=1, begin=h.shape[1] - 2, end=h.shape[1]),
    "indices": lambda F, h: h[:, [2, 0]],
    "indices of features": lambda F, h: h[:, :, np.array([[1, 0], [0, 1]])],
    "new axis": lambda F, h: h[:, None],
    "roll": lambda F, h: np.roll(h, 1, axis=1),
    "diff": lambda F, h: np.diff(h, axis=1),
    "pad": lambda F, h: np.pad(h, ((0, 0), (1, 1), (0, 2)), constant_values=1),
    "mean by size of features": lambda F, h: h.sum(axis=2) / h.shape[2],
    "merged axes": lambda F, h: h.reshape((h.shape[0] * h.shape[1], 2)),
    "attention": attention,
    "repeated": lambda F, h: F.broadcast_to(h.mean(axis=2, keepdims=True), (*h.shape[:2], 3)),
    "token": lambda F, h: F.concat(F.broadcast_to(F.ones((1, 1, 2)), (len(h), 1, 2)), h, dim=1),
    "token by axis": lambda F, h: F.concat(
        F.broadcast_axis(F.ones((1, 1, 2)) * 2, axis=0, size=len(h)), h, dim=1
    ),
    "token for each place": lambda F, h: F.broadcast_to(F.ones((1, 1, 2)) * 2, h.shape) * h,
    "positions": lambda F, h: h * F.arange(h.shape[1]).reshape((1, -1, 1)),
    "positions from 2": lambda F, h: (
        h * F.arange(2, 2 + h.shape[1], dtype="int32").astype("float32").reshape((1, -1, 1))
    ),
    "zeros": lambda F, h: F.concat(F.zeros((h.shape[0], 1, 2)), h, dim=1),
    "rows of a table": lambda F, h: h + table(F)[: h.shape[1]],
    "part of a table": lambda F, h: h + table(F).reshape((1, 30, 2))[:, : h.shape[1]],
    "slice_axis of a table": lambda F, h: (
        h + F.slice_axis(table(F), axis=-2, begin=0, end=h.shape[1])
    ),
    "slice_like of a table": lambda F, h: (
        h + F.slice_like(table(F).reshape((1, 30, 2)), h, axes=(1,))
    ),
    "square of a table": lambda F, h: F.batch_dot(
        F.broadcast_to(
            F.arange(900).reshape((1, 30, 30))[:, : h.shape[1], : h.shape[1]],
            (len(h), h.shape[1], h.shape[1]),
        ),
        h,
    ),
    "tiled token": lambda F, h: F.concat(
        F.tile(F.arange(2).reshape((1, 1, 2)), (len(h), 1, 1)), h, dim=1
    ),
    "repeated token": lambda F, h: F.concat(
        F.repeat(F.arange(2).reshape((1, 1, 2)), len(h), axis=0), h, dim=1
    ),
}
# Results that depend on sizes, and the axes on which they depend
FIXED = {
    "mean": (lambda F, h: h.sum(axis=1) / h.shape[1], [1]),
    "share of the batch": (lambda F, h: h / h.shape[0], [0]),
    "half": (lambda F, h: h[:, : h.shape[1] // 2], [1]),
    "half of the batch": (lambda F, h: h[: h.shape[0] // 2], [0]),
    "rows": (lambda F, h: sum(h) / len(h), [0]),
    "end of a table": (lambda F, h: h + table(F)[1 : 1 + h.shape[1]], [1]),
    "tiled table": (lambda F, h: h * F.tile(table(F), (len(h), 1)).sum(), [0]),
    "repeated table": (lambda F, h: h * F.repeat(table(F), len(h), axis=0).sum(), [0]),
    "unrolled": (lambda F, h: sum(h[:, i] * i for i in range(h.shape[1])), [1]),
    "made on the host": (lambda F, h: h * nd.array(np.arange(h.shape[1])).reshape((1, -1, 1)), [1]),
}


class Calling(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function
        with self.name_scope():
            self.d = nn.Dense(2, flatten=False, in_units=3)

    def hybrid_forward(self, F, x):
        assert x.shape  # never runs on symbols
        return self.function(F, self.d(x))


def called(function, shape=(2, 4, 3)):
    net = Calling(function)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net(nd.random.normal(shape=shape))
    return net


def imported(net, folder):
    symbol, params = net.export(str(folder / "net"))
    return gluon.SymbolBlock.imports(symbol, ["data"], params)


@pytest.mark.parametrize("name", FREE)
def test_sizes_that_ops_infer_stay_free(tmp_path, name):
    net = called(FREE[name])
    block = imported(net, tmp_path)
    for shape in ((2, 4, 3), (5, 4, 3), (2, 7, 3), (6, 5, 3), (2, 12, 3)):
        x = nd.random.normal(shape=shape)
        np.testing.assert_allclose(block(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FIXED)
def test_sizes_that_results_depend_on_are_checked(tmp_path, name):
    function, axes = FIXED[name]
    net = called(function)
    block = imported(net, tmp_path)
    for axis in (None, 0, 1):
        shape = [2, 4, 3]
        if axis is not None:
            shape[axis] *= 2
        x = nd.random.normal(shape=tuple(shape))
        if axis in axes:
            with pytest.raises(mx.MXNetError, match=f"data_axis{axis}_must_be_{shape[axis] // 2}"):
                block(x).asnumpy()
        else:
            np.testing.assert_allclose(block(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*FREE, *FIXED])
def test_dynamic_onnx_file_computes_as_the_block(tmp_path, name):
    pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    function, axes = FIXED[name] if name in FIXED else (FREE[name], [])
    net = called(function)
    path = str(tmp_path / "net.onnx")

    def write(shape):
        mx.onnx.export_model(
            net,
            in_shapes=[(2, 4, 3)],
            onnx_file_path=path,
            dynamic=True,
            dynamic_input_shapes=[shape],
        )

    for axis in axes:
        with pytest.raises(mx.MXNetError, match=re.escape(f"data_axis{axis}_must_be_")):
            write(tuple("t" if i == axis else size for i, size in enumerate((2, 4, 3))))
    write(tuple(size if i in (*axes, 2) else f"n{i}" for i, size in enumerate((2, 4, 3))))
    session = ort.InferenceSession(path)
    shape = tuple(size if i in (*axes, 2) else size + 3 for i, size in enumerate((2, 4, 3)))
    x = nd.random.normal(shape=shape)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.asnumpy()})
    np.testing.assert_allclose(found, net(x).asnumpy(), rtol=1e-4, atol=1e-5)


def test_axes_of_equal_size_stay_free_together(tmp_path):
    class Graph(gluon.HybridBlock):
        def hybrid_forward(self, F, x, links):
            n = x.shape[0]
            return F.dot(links, x).reshape((n, -1))[: n - 1]

    net = Graph()
    net.hybridize()
    net(nd.ones((4, 3)), nd.ones((4, 4)))
    symbol, params = net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(symbol, ["data0", "data1"], params)
    x, links = nd.random.normal(shape=(6, 3)), nd.random.normal(shape=(6, 6))
    np.testing.assert_allclose(block(x, links).asnumpy(), net(x, links).asnumpy(), rtol=1e-5)
