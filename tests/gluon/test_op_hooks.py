"""Op hooks: callbacks that receive the results of a block's operators."""

import pytest

import mpgluon as mx
from mpgluon import autograd, nd
from mpgluon.gluon import nn


@pytest.mark.parametrize("monitor_all", [False, True])
def test_op_hook_receives_every_output(monitor_all):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(2), nn.Activation("relu"), nn.BatchNorm())
    net.initialize()
    net.hybridize()
    x = nd.ones((3, 4))
    expected = net(x)
    seen = []
    net.register_op_hook(lambda name, op, array: seen.append((name, op, array)), monitor_all)
    found = net(x)
    assert (found == expected).asnumpy().all()
    outputs = {name: (op, array.shape) for name, op, array in seen if "output" in name}
    assert outputs == {
        "net_dense0_fwd_output": ("FullyConnected", (3, 2)),
        "net_relu0_fwd_output": ("Activation", (3, 2)),
        "net_batchnorm0_fwd_output": ("BatchNorm", (3, 2)),
    }
    names = [name for name, _, _ in seen]
    assert ("net_dense0_fwd_weight" in names) == monitor_all
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    assert len(seen) == 2 * len(names)


def test_infer_type_sets_parameter_dtypes():
    layer = nn.Dense(2)
    layer.initialize()
    layer.infer_type(nd.ones((1, 2), dtype="float64"))
    assert layer(nd.ones((1, 2), dtype="float64")).dtype == layer.weight.data().dtype
    assert mx.base.py_str("a") == mx.base.py_str(b"a") == "a"
