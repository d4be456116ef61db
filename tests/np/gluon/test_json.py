"""Files of symbols of mx.np: names of ops, NumPy's shapes, and exported blocks."""

import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from mpgluon.symbol.numpy import _Symbol


@pytest.fixture(autouse=True)
def switches():
    yield
    mx.util.reset_np()


def var(name):
    return mx.sym.var(name).as_np_ndarray()


def ops_of(text):
    return [node["op"] for node in json.loads(text)["nodes"] if node["op"] != "null"]


def node(op, inputs, **attrs):
    return {"op": op, "name": "n", "attrs": attrs, "inputs": [[i, 0, 0] for i in range(inputs)]}


def file_of(op, inputs, numpy=True, **attrs):
    variables = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(inputs)]
    own = {"mxnet_version": ["int", 10901], **({"is_np_shape": ["int", 1]} if numpy else {})}
    return json.dumps(
        {
            "nodes": [*variables, node(op, inputs, **attrs)],
            "arg_nodes": list(range(inputs)),
            "heads": [[inputs, 0, 0]],
            "attrs": own,
        }
    )


def test_ops_have_numpy_names_and_files_turn_on_its_shapes():
    text = ((var("x") + var("y")) * 2 > 1).tojson()
    assert ops_of(text) == ["_npi_add", "_npi_multiply_scalar", "_npi_greater_scalar"]
    assert json.loads(text)["attrs"]["is_np_shape"] == ["int", 1]
    assert not mx.util.is_np_shape()
    symbol = mx.sym.load_json(text)
    assert mx.util.is_np_shape() and type(symbol) is _Symbol and symbol.tojson() == text
    mx.util.reset_np()
    plain = (mx.sym.var("x") + 1).tojson()
    assert "is_np_shape" not in plain
    assert type(mx.sym.load_json(plain)) is mx.sym.Symbol and not mx.util.is_np_shape()


def test_names_of_both_dialects_follow_the_file():
    for numpy in (False, True):
        symbol = mx.sym.load_json(file_of("_np_cumsum", 1, numpy, axis="0"))
        assert type(symbol) is (_Symbol if numpy else mx.sym.Symbol)
        assert ops_of(symbol.tojson()) == ["_np_cumsum"]
        mx.util.reset_np()
    assert ops_of(mx.sym.cumsum(var("x"), axis=0).tojson()) == ["_np_cumsum"]


X = np.array([[1, 2, 3], [4, 5, 7]], "float32")
FILES = {  # nodes as MXNet 1.9.1 writes them
    "_npi_add_scalar": (1, {"scalar": "1.5", "is_int": "False"}, lambda x: x + 1.5),
    "_npi_rsubtract_scalar": (1, {"scalar": "1", "is_int": "True"}, lambda x: 1 - x),
    "_npi_true_divide": (2, {}, lambda x, y: x / y),
    "_npi_exp": (1, {}, np.exp),
    "_npi_less": (2, {}, lambda x, y: x < y),
    "_npi_logical_not": (1, {}, np.logical_not),
}


@pytest.mark.parametrize("op", FILES)
def test_files_of_mxnet_load(op):
    count, attrs, function = FILES[op]
    arrays = [X, X[::-1].copy()][:count]
    symbol = mx.sym.load_json(file_of(op, count, **attrs))
    args = {f"x{i}": nd.array(array) for i, array in enumerate(arrays)}
    result = symbol.bind(mx.cpu(), args).forward()[0].asnumpy()
    expected = function(*arrays)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_transposed_dots_load():
    """mpgluon once wrote attributes that MXNet's op lacks."""
    symbol = mx.sym.load_json(file_of("_np_dot", 2, transpose_b="True"))
    square = np.arange(9, dtype="float32").reshape(3, 3)
    args = {"x0": nd.array(square), "x1": nd.array(square)}
    assert np.array_equal(symbol.bind(mx.cpu(), args).forward()[0].asnumpy(), square @ square.T)


def test_internal_ops_cannot_be_in_files():
    for op in ("_npi__backward_relu", "_backward_relu"):
        with pytest.raises(mx.MXNetError, match="internal op"):
            mx.sym.load_json(file_of(op, 2))
    with pytest.raises(mx.MXNetError, match="no op '_npi_unheard_of'"):
        mx.sym.load_json(file_of("_npi_unheard_of", 1))


class Network(gluon.HybridBlock):
    """Layers and arithmetic that symbols can express."""

    def __init__(self, devices=(mx.cpu(0),)):
        super().__init__()
        self.first = nn.Dense(5, activation="relu", in_units=3)
        self.norm = nn.BatchNorm(in_channels=5)
        self.second = nn.Dense(2, in_units=5)
        self.devices = devices

    def hybrid_forward(self, F, x):
        x = self.norm(self.first(x)).as_in_context(self.devices[-1])
        return self.second(x) * 2 + 1


class Reading(Network):
    """Reads shapes, so its symbol is made from a trace."""

    def hybrid_forward(self, F, x):
        return super().hybrid_forward(F, x).reshape((x.shape[0] * 2, -1))


def built(kind, devices=(mx.cpu(0),)):
    mx.random.seed(3)
    mx.util.set_np()
    net = kind(devices)
    net.initialize(mx.init.Xavier(), ctx=devices[0])
    net.second.collect_params().reset_ctx(devices[-1])
    net.hybridize()
    return net


@pytest.mark.parametrize("kind", [Network, Reading])
@pytest.mark.parametrize("devices", [1, 2])
def test_exported_blocks_have_the_same_bits(kind, devices, tmp_path):
    net = built(kind, [mx.cpu(i) for i in range(devices)])
    x = nd.array(X).as_np_ndarray()
    expected = net(x)
    assert isinstance(expected, mx.np.ndarray)
    files = net.export(str(tmp_path / "net"))
    assert {op[:4] for op in ops_of(open(files[0]).read())} <= {"_npi", "_npx", "_np_"}
    loaded = gluon.SymbolBlock.imports(files[0], "data", files[1])
    for _ in range(2):
        result = loaded(x)
        assert isinstance(result, mx.np.ndarray)
        assert np.array_equal(result.asnumpy(), expected.as_in_context(mx.cpu(0)).asnumpy())
        loaded.hybridize()


def test_blocks_called_on_symbols_of_np():
    net = built(Network)
    symbol = net(var("data"))
    assert type(symbol) is _Symbol
    assert symbol.list_auxiliary_states() == [
        net.norm.running_mean.name,
        net.norm.running_var.name,
    ]
    with mx.util.np_shape(True):
        assert symbol.infer_shape(data=(4, 3))[1] == [(4, 2)]


def test_networks_of_np_are_exported_to_onnx(tmp_path):
    pytest.importorskip("onnx")
    net, path = built(Network), str(tmp_path / "net.onnx")
    x = nd.array(X).as_np_ndarray()
    expected = net(x).asnumpy()
    mx.onnx.export_model(net, in_shapes=[X.shape], onnx_file_path=path)
    symbol, arguments, states = mx.onnx.import_model(path)
    executor = symbol.bind(mx.cpu(), {**arguments, "data": nd.array(X)}, aux_states=states)
    np.testing.assert_allclose(executor.forward()[0].asnumpy(), expected, rtol=1e-6)


def test_onnx_exports_totals_without_dimensions(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = str(tmp_path / "net.onnx")
    mx.onnx.export_model(mx.sym.sum(var("x")), {}, in_shapes=[(2, 3)], onnx_file_path=path)
    (result,) = onnx.load(path).graph.output
    assert list(result.type.tensor_type.shape.dim) == []


class Named(gluon.HybridBlock):
    """Calls functions of mx.np and mx.npx through F."""

    def hybrid_forward(self, F, x):
        return F.np.tanh(x) + F.np.add(x, 1) * F.np.exp(x)


def test_functions_are_found_through_F(tmp_path):
    net = Named()
    net.hybridize()
    x = nd.array(X).as_np_ndarray()
    expected = net(x).asnumpy()
    np.testing.assert_allclose(expected, np.tanh(X) + (X + 1) * np.exp(X), rtol=1e-6)
    files = net.export(str(tmp_path / "net"))
    assert ops_of(open(files[0]).read()) == [
        "_npi_tanh",
        "_npi_add_scalar",
        "_npi_exp",
        "_npi_multiply",
        "_npi_add",
    ]
    loaded = gluon.SymbolBlock.imports(files[0], "data")
    assert np.array_equal(loaded(x).asnumpy(), expected)


def test_unknown_sizes_of_files_remain_unknown_under_numpy_shapes():
    data, weight = mx.sym.var("data"), mx.sym.var("weight", shape=(3, 0))
    text = mx.sym.FullyConnected(data, weight, num_hidden=3).tojson()
    for numpy in (False, True):
        with mx.np_shape(numpy):
            shapes, outputs, _ = mx.sym.load_json(text).infer_shape(data=(2, 4))
            assert shapes == [(2, 4), (3, 4), (3,)] and outputs == [(2, 3)]
    with mx.np_shape():
        data, weight = mx.sym.var("data"), mx.sym.var("weight", shape=(0, 4))
        text = mx.sym.dot(weight, data).tojson()
        assert mx.sym.load_json(text).infer_shape(data=(4, 2))[1] == [(0, 2)]
