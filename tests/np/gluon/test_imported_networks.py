"""Networks of mx.nd in files compute on arrays of mx.np, and layers of mx.np follow them."""

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, np, npx
from mpgluon.gluon import nn

SHAPE = (2, 3, 6, 6)


@pytest.fixture(autouse=True)
def switch():
    npx.reset_np()
    yield
    npx.reset_np()


@pytest.fixture
def network():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Flatten())
    net.initialize()
    net.hybridize()
    net(nd.ones(SHAPE))
    return net


def from_symbol(net, folder):
    files = net.export(str(folder / "net"))
    npx.set_np()
    return gluon.SymbolBlock.imports(files[0], "data", files[1])


def from_onnx(net, folder):
    pytest.importorskip("onnx")
    path = str(folder / "net.onnx")
    mx.onnx.export_model(net, in_shapes=[SHAPE], onnx_file_path=path)
    npx.set_np()
    return mx.onnx.import_to_gluon(path)


class Classifier(nn.HybridBlock):
    def __init__(self, features):
        super().__init__()
        self.features = features
        self.output = nn.Dense(2)

    def forward(self, x):
        return np.tanh(self.output(self.features(x)))


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("read", [from_symbol, from_onnx])
def test_imported_network_trains_below_a_layer_of_arrays_of_np(network, tmp_path, read, hybridize):
    draw = onp.random.default_rng(0).normal(size=SHAPE).astype("float32")
    expected = network(nd.array(draw)).asnumpy()
    features = read(network, tmp_path)
    x = np.array(draw)
    assert type(features(x)) is np.ndarray and type(features(nd.array(draw))) is nd.NDArray
    onp.testing.assert_allclose(features(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    net = Classifier(features)
    net.output.initialize(init="normal")
    if hybridize:
        net.hybridize()
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(x), np.array([0, 1])).mean()
    loss.backward()
    weight = next(p for name, p in features.collect_params().items() if name.endswith("weight"))
    assert type(loss) is np.ndarray and float(np.abs(weight.grad()).sum()) > 0


def test_imported_network_is_exported_with_a_layer_of_arrays_of_np(network, tmp_path):
    net = Classifier(from_symbol(network, tmp_path))
    net.output.initialize()
    net.hybridize()
    x = np.array(onp.random.default_rng(0).normal(size=SHAPE), dtype="float32")
    expected = net(x).asnumpy()
    files = net.export(str(tmp_path / "whole"))
    loaded = gluon.SymbolBlock.imports(files[0], "data", files[1])
    onp.testing.assert_array_equal(loaded(x).asnumpy(), expected)


def test_imported_network_follows_the_kind_of_symbols(network, tmp_path):
    net = from_symbol(network, tmp_path)
    x = mx.sym.var("x")
    assert type(net(x)) is mx.sym.Symbol
    assert type(net(x.as_np_ndarray())) is type(x.as_np_ndarray())
