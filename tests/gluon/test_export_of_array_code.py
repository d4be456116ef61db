"""Symbols of blocks whose code has another meaning for Symbols than for arrays: rows, `len`,
iteration, and operators that broadcast."""

import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn, rnn

CASES = {
    "row": lambda d, F, x: d(x[0]),
    "row of a layer": lambda d, F, x: d(x)[0] - x[-1],
    "rows of a result": lambda d, F, x: F.concat(d(x)[0:1], d(x), dim=0),
    "backward": lambda d, F, x: d(x)[::-1] - x[::-1],
    "iteration": lambda d, F, x: F.stack(*[d(row) for row in x], axis=0),
    "sum of rows": lambda d, F, x: d(sum(x)),
    "zip": lambda d, F, x: F.stack(*[d(a) * b for a, b in zip(x, x)], axis=0),
    "unpacking": lambda d, F, x: (lambda first, *rest: d(first))(*x),
    "len": lambda d, F, x: d(x) / len(x),
    "split into one part": lambda d, F, x: F.split(d(x), num_outputs=1, axis=1)[0],
    "subtraction": lambda d, F, x: d(x) - x.mean(axis=2, keepdims=True),
    "product": lambda d, F, x: d(x) * (x > 0).sum(axis=2).expand_dims(2),
    "sum without an axis": lambda d, F, x: d(x) + x.mean(axis=0),
    "comparison": lambda d, F, x: d(x) * (x > x.mean(axis=1, keepdims=True)),
    "power": lambda d, F, x: (d(x).abs() + 1) ** x.mean(axis=2, keepdims=True),
    "index after an error": lambda d, F, x: d(x) / (len(x) - 1),
}
SAME = {  # several outputs are a list of arrays
    "part of a split": lambda d, F, x: F.split(d(x), num_outputs=2, axis=2)[1],
    "parts of a split": lambda d, F, x: F.concat(*F.split(d(x), num_outputs=2, axis=2)[::-1]),
    "number of parts": lambda d, F, x: d(x) * len(F.split(x, num_outputs=2, axis=2)),
    "equal shapes": lambda d, F, x: d(x) * x + (x > d(x)),
}


class Calling(gluon.HybridBlock):
    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function
        with self.name_scope():
            self.d = nn.Dense(4, flatten=False, in_units=4)

    def hybrid_forward(self, F, x):
        return self.function(self.d, F, x)


def called(function, shape=(3, 5, 4), **options):
    """Returns a network that was called, its input and its result."""
    net = Calling(function, **options)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = nd.array(np.random.RandomState(0).normal(size=shape))
    return net, x, net(x).asnumpy()


def imported(net, folder):
    symbol, params = net.export(str(folder / "net"))
    return gluon.SymbolBlock.imports(symbol, ["data"], params)


@pytest.mark.parametrize("name", [*CASES, *SAME])
def test_exported_block_computes_as_on_arrays(tmp_path, name):
    net, x, wanted = called({**CASES, **SAME}[name])
    found = imported(net, tmp_path)(x).asnumpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["amp", "quantization", "onnx"])
def test_other_conversions_compute_as_on_arrays(tmp_path, name, how):
    net, x, wanted = called(CASES[name])
    if how == "amp":
        block = mx.contrib.amp.convert_hybrid_block(net, target_dtype="bfloat16")
    elif how == "quantization":
        block = mx.contrib.quantization.quantize_net(
            net, calib_mode="none", data_shapes=[x.shape], exclude_layers_match=["fully"]
        )
    else:
        pytest.importorskip("onnx")
        path = str(tmp_path / "net.onnx")
        mx.onnx.export_model(net, in_shapes=[x.shape], onnx_file_path=path)
        block = mx.onnx.import_to_gluon(path, ctx=mx.cpu())
    found = block(x).asnumpy()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0.1, atol=0.1)


def test_operators_that_broadcast_for_other_batch_sizes_are_exported(tmp_path):
    """With one row, the shapes are equal, and elementwise ops would suffice."""
    net, _, _ = called(lambda d, F, x: d(x) - x.mean(axis=0, keepdims=True), (1, 5, 4))
    block = imported(net, tmp_path)
    x = nd.random.normal(shape=(3, 5, 4))
    np.testing.assert_allclose(block(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)


def test_blocks_that_compute_the_same_on_symbols_keep_the_names_of_their_ops(tmp_path):
    net, _, _ = called(SAME["part of a split"], prefix="net_")
    net.export(str(tmp_path / "net"))
    nodes = json.loads((tmp_path / "net-symbol.json").read_text())["nodes"]
    assert "net_dense0_fwd" in [node["name"] for node in nodes]


def test_loop_in_a_block_that_indexes_rows_names_the_line():
    def function(d, F, x):
        return F.contrib.foreach(lambda row, states: (row[0], states), d(x), [])[0]

    net, _, _ = called(function)
    with pytest.raises(mx.base.NotSupportedError, match=r"x\[0\] at .*test_export_of_array_code"):
        net.export("unused")


def test_block_called_on_symbols_keeps_the_meaning_of_mxnet_and_warns():
    net, _, _ = called(CASES["row"])
    with pytest.warns(UserWarning, match=r"x\[0\] at .*selects outputs of a Symbol"):
        symbol = net(mx.sym.var("data"))
    assert symbol.infer_shape(data=(3, 5, 4))[1] == [(3, 5, 4)]


def test_amp_converts_blocks_that_capture_arrays():
    class Scaled(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.scale = nd.array([1.0, 2, 3, 4])
            with self.name_scope():
                self.d = nn.Dense(4, in_units=4)

        def hybrid_forward(self, F, x):
            return self.d(F.broadcast_mul(x, self.scale.reshape((1, -1))))

    net = Scaled()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    with pytest.raises(RuntimeError, match="before calling convert_hybrid_block"):
        mx.contrib.amp.convert_hybrid_block(net, target_dtype="bfloat16")
    x = nd.random.normal(shape=(3, 4))
    wanted = net(x).asnumpy()
    block = mx.contrib.amp.convert_hybrid_block(net, target_dtype="bfloat16")
    np.testing.assert_allclose(block(x).asnumpy(), wanted, rtol=0.1, atol=0.1)


LAYERS = {
    "LSTM": lambda: rnn.LSTM(3, num_layers=2, bidirectional=True),
    "GRU": lambda: rnn.GRU(3, layout="NTC"),
    "RNN": lambda: rnn.RNN(3, activation="tanh"),
    "clipped": lambda: rnn.LSTM(3, state_clip_min=-0.1, state_clip_max=0.1),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("how", ["shape", "captured", "row"])
def test_recurrent_layers_in_array_code_are_exported_as_mxnets_op(tmp_path, name, how):
    class Recurrent(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.layer = LAYERS[name]()
            self.scale = nd.ones((1, 1, 4)) * 2

        def hybrid_forward(self, F, x):
            if how == "captured":
                x = F.broadcast_mul(x, self.scale)
            y = self.layer(x)
            return y / 2 if how == "captured" else y[1] if how == "row" else y / x.shape[2]

    net = Recurrent()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = nd.random.normal(shape=(3, 5, 4))
    wanted = net(x).asnumpy()
    block = imported(net, tmp_path)
    np.testing.assert_allclose(block(x).asnumpy(), wanted, rtol=1e-5, atol=1e-6)
    nodes = json.loads((tmp_path / "net-symbol.json").read_text())["nodes"]
    ops = {node["op"] for node in nodes}
    assert "RNN" in ops and "_rnn" not in ops
    x = nd.random.normal(shape=(3, 2, 4) if name != "GRU" else (2, 5, 4))
    np.testing.assert_allclose(block(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)


def test_recurrent_layer_with_lengths_in_array_code_is_exported(tmp_path):
    class Recurrent(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.layer = rnn.LSTM(3, use_sequence_length=True)

        def hybrid_forward(self, F, x, lengths):
            return self.layer(x, None, lengths) / x.shape[2]

    net = Recurrent()
    net.initialize()
    net.hybridize()
    x, lengths = nd.random.normal(shape=(4, 3, 2)), nd.array([1, 4, 2])
    wanted = net(x, lengths).asnumpy()
    symbol, params = net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(symbol, ["data0", "data1"], params)
    np.testing.assert_allclose(block(x, lengths).asnumpy(), wanted, rtol=1e-5, atol=1e-6)


INTERNAL = {
    "cross entropy": lambda d, F, x: gluon.loss.SoftmaxCELoss()(d(x), x[:, :, 0].abs()),
    "masked": lambda d, F, x: F.SequenceMask(
        d(x), x[:, 0, 0].abs() * 3, use_sequence_length=True, axis=1, value=0.5
    ),
    "full_like": lambda d, F, x: d(x) * nd.full_like(x[0], 3),
    "full_like of a dtype": lambda d, F, x: d(x).astype("float64") * nd.full_like(x, 3, "float64"),
}


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_ops_are_written_as_ops_of_mxnet(tmp_path, name):
    net, x, wanted = called(INTERNAL[name])
    found = imported(net, tmp_path)(x).asnumpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    nodes = json.loads((tmp_path / "net-symbol.json").read_text())["nodes"]
    assert not {"_softmax_ce", "_full_like", "full_like"} & {node["op"] for node in nodes}


def test_traced_attention_is_exported(tmp_path):
    """The ops that the public op emits are internal."""

    def function(d, F, x):
        query = d(x)[::-1].expand_dims(2)
        out = F.contrib.attention(query, query, x[:].expand_dims(2), causal=True, scale=0.7)
        return out.reshape((x.shape[0], -1, 4))

    net, x, wanted = called(function)
    np.testing.assert_array_equal(imported(net, tmp_path)(x).asnumpy(), wanted)
