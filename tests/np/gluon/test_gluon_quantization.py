"""Quantization of networks with arrays of mx.np: the bits of mx.nd."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import npx
from mpgluon.contrib.quantization import quantize_net, quantize_weights
from mpgluon.gluon import nn
from support.kinds import both, new

DATA = np.random.RandomState(7).uniform(-1, 1, (40, 32)).astype("float32")


@pytest.fixture(autouse=True)
def _off():
    yield
    npx.reset_np()


def network():
    net = nn.HybridSequential()
    net.add(nn.Dense(32, in_units=32, activation="relu"), nn.Dense(8, in_units=32))
    net.initialize(mx.init.Normal(0.3))
    return net


@pytest.mark.parametrize("options", [{"method": "gptq"}, {"method": "awq"}, {}], ids=str)
def test_weights_are_quantized_to_the_bits_of_nd(options):
    def quantize(numpy):
        net, data = network(), new.array(DATA)
        if options:
            options["data"] = data
        quantize_weights(net, "int4", group=16, **options)
        return [net(data), *[param.data() for param in net.collect_params().values()]]

    both(quantize)


def test_quantize_net_names_alternatives_for_numpy_networks():
    npx.set_np()
    with pytest.raises(mx.base.NotSupportedError, match="or use quantize_weights"):
        quantize_net(network(), calib_mode="none", data_shapes=[DATA.shape])
