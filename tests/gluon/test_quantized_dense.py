"""nn.QuantizedDense and quantize_weights."""

import copy

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon import nn

quantize_weights = mx.contrib.quantization.quantize_weights


def network(**options):
    net = nn.HybridSequential()
    net.add(
        nn.Dense(64, in_units=32, activation="relu", **options),
        nn.GatedMLP(64, 96, in_units=64),
        nn.Dense(8, in_units=64, flatten=False),
    )
    net.initialize(mx.init.Normal(0.3))
    return net


def dense_of(net):
    """Returns the network with unpacked weights."""
    net = copy.deepcopy(net)

    def visit(block):
        for name, child in list(block._children.items()):
            if isinstance(child, nn.QuantizedDense):
                new = nn.Dense(
                    child._units,
                    in_units=child._in_units,
                    use_bias=child.bias is not None,
                    flatten=child._flatten,
                )
                new.initialize()
                new.weight.set_data(child.dequantized())
                if child.bias is not None:
                    new.bias.set_data(child.bias.data())
                new.act = child.act
                block.replace_child(name, new)
            else:
                visit(child)

    visit(net)
    return net


@pytest.mark.parametrize("format", ["int8", "int4", "nf4", "q8_0", "q4_0"])
def test_networks_equal_those_of_unpacked_weights(format):
    net = network()
    x = nd.random.uniform(-1, 1, (4, 32))
    before = net(x)
    assert quantize_weights(net, format) is net
    assert isinstance(net[1].up, nn.QuantizedDense)
    after = net(x)
    np.testing.assert_allclose(after.asnumpy(), dense_of(net)(x).asnumpy(), rtol=1e-4, atol=1e-4)
    change = np.abs((after - before).asnumpy()).max() / np.abs(before.asnumpy()).max()
    assert 0 < change < 0.3
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), after.asnumpy(), rtol=1e-4, atol=1e-4)
    net.hybridize(exact=True)
    np.testing.assert_array_equal(net(x).asnumpy(), after.asnumpy())
