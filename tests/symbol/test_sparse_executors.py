"""Sparse arrays in executors and modules."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd

VALUES = np.array([[0, 1, 0], [2, 0, 3]], "float32")


@pytest.mark.parametrize("grad_stype", ["row_sparse", "default"])
def test_csr_product_has_gradients_of_either_storage(grad_stype):
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
def test_embedding_executor_supports_sparse_weights_and_gradients(stype, sparse_grad):
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


def test_output_storage_matches_the_op():
    x = mx.sym.var("x", stype="csr")
    for symbol, stype in ((x * 2, "csr"), (mx.sym.sin(x), "csr"), (x + 1, "default")):
        executor = symbol.bind(mx.cpu(), {"x": nd.array(VALUES).tostype("csr")})
        assert executor.forward()[0].stype == stype


def test_module_trains_on_csr_data():
    """Logistic regression with a row_sparse weight gradient."""
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


def run(symbol, *arrays):
    names = symbol.list_arguments()
    executor = symbol.bind(mx.cpu(), dict(zip(names, arrays)))
    return executor.forward()[0]


def test_sparse_ops_run_in_executors():
    rows = mx.test_utils.rand_ndarray((6, 3), "row_sparse", density=0.5)
    x, y = mx.sym.var("x", stype="row_sparse"), mx.sym.var("y")
    dense = rows.asnumpy()
    for symbol, arrays, wanted, stype in (
        (mx.sym.cast_storage(x, stype="default"), [rows], dense, "default"),
        (
            mx.sym.sparse.retain(x, y),
            [rows, nd.array([1, 4])],
            dense * [[n in (1, 4)] for n in range(6)],
            "row_sparse",
        ),
        (
            mx.sym._internal._square_sum(x, axis=1, keepdims=True),
            [rows],
            (dense**2).sum(1, keepdims=True),
            "row_sparse",
        ),
        (mx.sym._internal._square_sum(x, axis=0), [rows], (dense**2).sum(0), "default"),
        (
            mx.sym._internal._scatter_plus_scalar(x, scalar=2),
            [rows],
            (dense + 2) * dense.any(1, keepdims=True),
            "row_sparse",
        ),
        (
            mx.sym._internal._scatter_elemwise_div(x, y),
            [rows, nd.full((6, 3), 2)],
            dense / 2,
            "row_sparse",
        ),
        (mx.sym._internal._maximum(x, y), [rows, rows * 2], dense * 2, "row_sparse"),
    ):
        result = run(symbol, *arrays)
        assert result.stype == stype
        np.testing.assert_allclose(result.asnumpy(), wanted, rtol=1e-6)


def test_sparse_embedding_symbol_has_row_sparse_gradient():
    lookup = mx.sym.contrib.SparseEmbedding(
        mx.sym.var("x"), mx.sym.var("w"), input_dim=5, output_dim=2, deterministic=True
    )
    executor = lookup.simple_bind(mx.cpu(), x=(3,), grad_req={"x": "null", "w": "write"})
    executor.arg_dict["x"][:] = nd.array([4, 1, 4])
    executor.forward(is_train=True)
    executor.backward(nd.ones((3, 2)))
    gradient = executor.grad_dict["w"]
    assert gradient.stype == "row_sparse"
    assert gradient.asnumpy()[:, 0].tolist() == [0, 1, 0, 0, 2]


def test_module_parameters_keep_declared_storage():
    x, w = mx.sym.var("data"), mx.sym.var("w", shape=(4, 1), init=mx.init.One(), stype="row_sparse")
    module = mx.mod.Module(mx.sym.dot(x, w), data_names=["data"], label_names=None)
    module.bind([("data", (2, 4))], for_training=False)
    module.init_params()
    parameter = module.get_params()[0]["w"]
    assert parameter.stype == "row_sparse"
    assert parameter.asnumpy().tolist() == [[1]] * 4
