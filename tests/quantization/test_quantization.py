"""Quantization: networks with int8 and uint8 layers."""

import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, sym
from mpgluon.contrib import quantization
from mpgluon.gluon import nn


class Residual(gluon.HybridBlock):
    """Convolutions with and without BatchNorm, a sum, a concatenation, pooling and a Dense."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2D(8, 3, padding=1, use_bias=False)
        self.norm = nn.BatchNorm()
        self.second = nn.Conv2D(8, 3, padding=1)
        self.third = nn.Conv2D(4, 1, activation="relu")
        self.norm3 = nn.BatchNorm(scale=False)
        self.dense = nn.Dense(5)

    def hybrid_forward(self, F, x):
        x = F.relu(self.norm(self.first(x)))
        y = F.relu(x + self.second(x))
        y = F.concat(F.Pooling(y, kernel=(2, 2), stride=(2, 2)), self.pooled(F, x), dim=1)
        return self.dense(self.norm3(self.third(y)))

    def pooled(self, F, x):
        return F.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg")


def trained(net, x):
    net.initialize(mx.init.Xavier())
    with autograd.record():
        net(x)  # sets running statistics
    return net


def ops_of(symbol):
    return [node["op"] for node in json.loads(symbol.tojson())["nodes"] if node["op"] != "null"]


def far(got, wanted):
    return abs(got - wanted).max().asscalar() / abs(wanted).max().asscalar()


@pytest.mark.parametrize("dtype", ["int8", "auto"])
@pytest.mark.parametrize("mode", ["none", "naive", "entropy"])
def test_quantized_network_is_near_float32(mode, dtype, tmp_path):
    x = nd.random.uniform(shape=(8, 3, 12, 12))
    net = trained(Residual(), x)
    wanted = net(x)
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(x, nd.arange(8)), batch_size=4)
    small = quantization.quantize_net_v2(net, dtype, calib_data=data, calib_mode=mode)
    assert far(small(x), wanted) < (0.25 if mode == "entropy" else 0.05)  # few values
    eager = small(x)
    small.hybridize(exact=True)
    assert (small(x) == eager).min().asscalar()
    small.export(str(tmp_path / "small"))
    found = ops_of(sym.load(str(tmp_path / "small-symbol.json")))
    assert found.count("_contrib_quantized_conv") == 3
    assert found.count("_contrib_quantized_fully_connected") == 1
    for op in ("elemwise_add", "concat", "pooling", "act"):
        assert f"_contrib_quantized_{op}" in found, op
    # the first BatchNorm is folded into its convolution; the last one follows a relu
    assert "_contrib_quantized_batch_norm" in found if mode != "none" else "BatchNorm" in found
    again = gluon.SymbolBlock.imports(
        str(tmp_path / "small-symbol.json"), ["data"], str(tmp_path / "small-0000.params")
    )
    assert (again(x) == eager).min().asscalar()
    weights = [p for name, p in again.collect_params().items() if name.endswith("weight_quantize")]
    assert len(weights) == 4 and all(p.dtype == np.int8 for p in weights)


def test_excluded_layers_and_operators_stay_float32():
    x = nd.random.uniform(shape=(4, 3, 12, 12))
    net = trained(Residual(), x)
    args = {"calib_data": [x], "calib_mode": "naive"}
    small = quantization.quantize_net(net, exclude_operators=["Convolution", "BatchNorm"], **args)
    found = ops_of(small(sym.var("data")))
    assert found.count("Convolution") == 3 and "_contrib_quantized_fully_connected" in found
    assert far(small(x), net(x)) < 0.05
    small = quantization.quantize_net(net, exclude_layers_match=["conv", "dense"], **args)
    assert "_contrib_quantized_fully_connected" not in ops_of(small(sym.var("data")))
    smart = quantization.quantize_net(net, quantize_mode="smart", **args)
    assert far(smart(x), net(x)) < 0.05


def test_symbolic_models_are_quantized():
    data, weight = sym.var("data"), sym.var("shared_weight", shape=(6, 6))
    x = sym.FullyConnected(data, weight, num_hidden=6, no_bias=True, name="one")
    x = sym.BatchNorm(x, name="norm", fix_gamma=False)
    x = sym.FullyConnected(x, num_hidden=6, name="two") + sym.dot(data, weight)
    net = sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=3, name="three"), name="softmax")
    module = mx.mod.Module(net)
    values = nd.random.normal(shape=(16, 6))
    module.bind([("data", (16, 6))], [("softmax_label", (16,))])
    module.init_params(mx.init.Xavier())
    module.forward(mx.io.DataBatch([values], [nd.zeros(16)]), is_train=True)
    module.forward(mx.io.DataBatch([values], [nd.zeros(16)]), is_train=False)
    wanted = module.get_outputs()[0]
    args, aux = module.get_params()
    data_iter = mx.io.NDArrayIter(values, np.zeros(16), batch_size=8)
    for mode in ("full", "smart"):
        qsym, qargs, qaux = quantization.quantize_model(
            net,
            args,
            aux,
            calib_mode="naive",
            calib_data=data_iter,
            num_calib_examples=16,
            quantize_mode=mode,
        )
        # kept in both forms because sym.dot reads the float32 weight
        assert {"shared_weight", "shared_weight_quantize"} <= set(qargs)
        assert "norm_moving_mean" in qargs and "norm_moving_mean" not in qaux
        small = mx.mod.Module(qsym)
        small.bind([("data", (16, 6))], [("softmax_label", (16,))], for_training=False)
        small.set_params(qargs, qaux)
        small.forward(mx.io.DataBatch([values], [nd.zeros(16)]), is_train=False)
        assert far(small.get_outputs()[0], wanted) < 0.05
        attributes = qsym.attr_dict()
        assert "min_calib_range" in attributes["requantize_one"]
        assert "min_calib_range" in attributes["data_quantize"]


class Halves:
    """A custom LayerOutputCollector that halves every range."""

    def __init__(self):
        self.min_max_dict = {}

    def collect(self, name, arr):
        if name in self.include_layer:
            self.min_max_dict[name] = (arr.min().asscalar() / 2, arr.max().asscalar() / 2)


def test_custom_collector_sets_calibration_ranges():
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2, use_bias=False, weight_initializer="ones"))
    net.initialize()
    x = nd.array([[1, 0.5]])
    small = quantization.quantize_net_v2(
        net, calib_data=[x], calib_mode="customize", LayerOutputCollector=Halves()
    )
    assert abs(small(x) - 0.75).max().asscalar() < 0.02  # 1 is clipped to 0.5
    with pytest.raises(ValueError, match="needs a LayerOutputCollector"):
        quantization.quantize_net_v2(net, calib_data=[x], calib_mode="customize")


def test_quantization_rejects_invalid_arguments():
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2))
    net.initialize()
    x = nd.ones((1, 2))
    for options, text in [
        (
            {"quantized_dtype": "int4"},
            "quantized_dtype must be one of auto, int8, uint8, not 'int4'",
        ),
        ({"calib_mode": "naif"}, "calib_mode must be one of none, naive"),
        ({"quantize_mode": "half"}, "quantize_mode must be 'full' or 'smart'"),
    ]:
        with pytest.raises(ValueError, match=text):
            quantization.quantize_net_v2(net, data_shapes=[(1, 2)], **options)
    with pytest.raises(ValueError, match="data_shapes or calib_data must be given"):
        quantization.quantize_net(net)
    with pytest.raises(ValueError, match="calib_mode='naive' needs calib_data"):
        quantization.quantize_net(net, data_shapes=[(1, 2)], calib_mode="naive")
    with pytest.raises(ValueError, match="calib_data has no batches"):
        quantization.quantize_net(net, data_shapes=[(1, 2)], calib_data=[], calib_mode="naive")
    with pytest.raises(mx.base.NotSupportedError, match="tensor-wise"):
        quantization.quantize_net_v2(net, calib_data=[x], quantize_granularity="channel-wise")


def test_entropy_threshold_covers_the_values():
    edges = nd.array(np.linspace(-2, 2, 1000))
    threshold, _ = nd.contrib.calibrate_entropy(nd.array([0] * 998 + [1000]), edges, 5)
    assert threshold.asscalar() == 2  # the bin that holds all values
    hist, edges = np.histogram(np.random.RandomState(0).normal(size=20000), 1001, (-50, 50))
    threshold, loss = nd.contrib.calibrate_entropy(nd.array(hist), nd.array(edges))
    assert 3 < threshold.asscalar() < 15 and 0 <= loss.asscalar() < 0.1
    with pytest.raises(ValueError, match="one more element"):
        nd.contrib.calibrate_entropy(nd.ones(5), nd.ones(5))
    with pytest.raises(ValueError, match="cannot be told apart"):
        nd.contrib.calibrate_entropy(nd.ones(5), nd.ones(6), 255)


def test_quantized_dense_without_bias_takes_positional_ranges():
    data, weight = nd.ones((2, 3), dtype="int8"), nd.ones((4, 3), dtype="int8")
    ends = [nd.array([-1]), nd.array([1])] * 2
    product = nd.contrib.quantized_fully_connected
    sums = product(data, weight, *ends, num_hidden=4, no_bias=True)[0]
    named = dict(zip(["min_data", "max_data", "min_weight", "max_weight"], ends))
    assert (product(data, weight, num_hidden=4, no_bias=True, **named)[0] == sums).min()
    with pytest.raises(mx.MXNetError, match="the array max_weight is missing"):
        product(data, weight, *ends, num_hidden=4)
