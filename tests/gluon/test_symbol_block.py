"""`SymbolBlock`: casts."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn


def imported(net, x, folder):
    net.initialize(mx.init.Xavier())
    net.hybridize()
    expected = net(x).asnumpy()
    files = net.export(str(folder / "net"))
    return gluon.SymbolBlock.imports(files[0], ["data"], files[1]), expected


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("before", ["float32", "float64"])
def test_cast_to_half_keeps_the_statistics_of_batch_norm(tmp_path, half, hybridize, before):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(2))
    x = nd.array(np.random.RandomState(0).randn(2, 3, 6, 6))
    block, expected = imported(net, x, tmp_path)
    block.cast(before)
    block.cast(half)
    dtypes = {name: mx._core.dtype_name(p.dtype) for name, p in block.collect_params().items()}
    kept = ("gamma", "beta", "running_mean", "running_var")
    assert dtypes == {n: "float32" if n.endswith(kept) else half for n in dtypes}
    block.hybridize(hybridize)
    y = block(x.astype(half))
    assert mx._core.dtype_name(y.dtype) == half
    np.testing.assert_allclose(y.astype("float32").asnumpy(), expected, atol=5e-2)
    block.cast("float32")
    np.testing.assert_allclose(block(x).asnumpy(), expected, atol=5e-2)


def test_cast_reaches_all_other_parameters(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Embedding(5, 4), nn.LayerNorm(), nn.Dense(2, flatten=False))
    x = nd.array([[1, 2], [3, 4]])
    block, expected = imported(net, x, tmp_path)
    outer = nn.HybridSequential()
    outer.add(block)
    outer.cast("float16")
    assert {np.dtype(p.dtype).name for p in block.collect_params().values()} == {"float16"}
    np.testing.assert_allclose(outer(x).asnumpy(), expected, atol=2e-2)


def test_cast_keeps_float32_after_a_cast_op_in_the_graph():
    data = mx.sym.var("data")
    hidden = mx.sym.FullyConnected(data, num_hidden=3, name="half")
    block = gluon.SymbolBlock(
        mx.sym.FullyConnected(mx.sym.cast(hidden, "float32"), num_hidden=2, name="single"), data
    )
    block.initialize()
    block.cast("float16")
    assert block(nd.ones((1, 4), dtype="float16")).dtype == np.float32
    assert block.params["half_weight"].dtype == np.dtype("float16")


def test_half_precision_statistics_error_names_the_first_input():
    half, single = nd.ones(3, dtype="float16"), nd.ones(3)
    with pytest.raises(mx.MXNetError, match="gamma must be float32 if the first input is float16"):
        nd.BatchNorm(nd.ones((2, 3), dtype="float16"), half, single, single, single)
