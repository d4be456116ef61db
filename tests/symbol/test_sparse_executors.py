"""Sparse arrays in executors and modules."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd

VALUES = np.array([[0, 1, 0], [2, 0, 3]], "float32")


@pytest.mark.parametrize("grad_stype", ["row_sparse", "default"])
def test_product_with_csr(grad_stype):
    out = mx.sym.sparse.dot(mx.sym.var("data", stype="csr"), mx.sym.var("weight"))
    weight = nd.array([[1, 2], [3, 4], [5, 6]])
    grad = nd.zeros((3, 2), stype=grad_stype)
    executor = out.bind(
        mx.cpu(),
        {"data": nd.array(VALUES).tostype("csr"), "weight": weight},
        {"weight": grad},
        {"data": "null", "weight": "write"},
    )
    for factor in (1, 2):
        weight *= factor
        (y,) = executor.forward(is_train=True)
        assert np.array_equal(y.asnumpy(), VALUES @ weight.asnumpy())
        executor.backward([nd.full((2, 2), factor)])
        assert np.array_equal(grad.asnumpy(), VALUES.T @ np.full((2, 2), factor))
        assert grad.stype == grad_stype


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
@pytest.mark.parametrize("sparse_grad", [True, False])
def test_lookups(stype, sparse_grad):
    out = mx.sym.Embedding(
        mx.sym.var("data"),
        mx.sym.var("weight", stype=stype),
        input_dim=5,
        output_dim=2,
        sparse_grad=sparse_grad,
    )
    executor = out.simple_bind(mx.cpu(), grad_req={"data": "null", "weight": "write"}, data=(3,))
    weight, grad = executor.arg_dict["weight"], executor.grad_dict["weight"]
    assert weight.stype == stype and grad.stype == ("row_sparse" if sparse_grad else "default")
    executor.arg_dict["data"][:] = nd.array([1, 3, 1])
    for values in (np.arange(10).reshape(5, 2), np.zeros((5, 2))):
        weight[:] = nd.array(values).tostype(stype)
        (y,) = executor.forward(is_train=True)
        assert np.array_equal(y.asnumpy(), values[[1, 3, 1]])
        executor.backward([nd.ones((3, 2))])
        assert grad.asnumpy()[:, 0].tolist() == [0, 2, 0, 1, 0]


def test_outputs_are_stored_as_by_ops():
    x = mx.sym.var("x", stype="csr")
    for symbol, stype in ((x * 2, "csr"), (mx.sym.sin(x), "csr"), (x + 1, "default")):
        executor = symbol.bind(mx.cpu(), {"x": nd.array(VALUES).tostype("csr")})
        assert executor.forward()[0].stype == stype


def test_module_of_csr():
    """Logistic regression; the weight's gradient is row_sparse."""
    rng = np.random.RandomState(0)
    features = rng.rand(40, 10) * (rng.rand(40, 10) < 0.3)
    labels = (features @ rng.randn(10) > 0).astype("float32")
    data = mx.io.NDArrayIter(
        nd.array(features).tostype("csr"), labels, 10, last_batch_handle="discard"
    )
    x = mx.sym.var("data", stype="csr")
    out = mx.sym.sparse.dot(x, mx.sym.var("weight", shape=(10, 2)))
    out = mx.sym.broadcast_add(out, mx.sym.var("bias", shape=(2,)))
    module = mx.mod.Module(mx.sym.SoftmaxOutput(out, mx.sym.var("softmax_label"), name="softmax"))
    metric = mx.metric.Accuracy()
    module.fit(
        data,
        eval_metric=metric,
        num_epoch=30,
        optimizer="adam",
        optimizer_params={"learning_rate": 0.1},
        initializer=mx.init.Zero(),
    )
    assert module.score(data, metric)[0][1] > 0.9
