"""NumPy's ops that MXNet's nd functions lack: dtypes of results, errors, hybridized calls."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.calls import call, call_in_block, raises


def array(values, dtype="int32"):
    return nd.array(values, dtype=dtype)


def test_indices_and_counts_are_int64():
    x = array([[1, 0], [1, 2]], "int8")
    options = {"return_index": True, "return_inverse": True, "return_counts": True}
    assert call("_nonzero", [x], {})[0].dtype == np.int64
    assert [r.dtype for r in call("_unique", [x], options)] == [
        np.int8,
        np.int64,
        np.int64,
        np.int64,
    ]
    assert call("_bincount", [x[0]], {})[0].dtype == np.int64
    assert call("_bincount", [x[0], nd.array([1, 2], dtype="float16")], {})[0].dtype == np.float16


def test_counts_exceed_the_range_of_small_integers():
    x = nd.zeros((300,), dtype="int8")
    assert call("_bincount", [x], {})[0].asnumpy().tolist() == [300]


@pytest.mark.parametrize(
    "name, arrays, params, text",
    [
        ("_bincount", [[1, -2]], {}, "negative number: -2"),
        ("_bincount", [[[1, 2]]], {}, "must have one dimension"),
        ("_bincount", [[1, 2], [3]], {}, "weights"),
        ("_unique", [[1, 2]], {"axis": 1}, "axis 1 is out of range"),
        ("_unique", [1], {"axis": 1}, "axis 1 is out of range"),
    ],
)
def test_invalid_calls_are_refused(name, arrays, params, text):
    raises(mx.MXNetError, text, lambda: call(name, [array(a) for a in arrays], params))


def test_bincount_refuses_floats():
    raises(mx.MXNetError, "float32", lambda: call("_bincount", [nd.array([1])], {}))


class Found(mx.gluon.HybridBlock):
    """The slices of an array, and how often the values of its product with 2 occur."""

    def hybrid_forward(self, F, x):
        doubled = x * 2
        values, counts = call_in_block("_unique", [doubled], {"return_counts": True})
        places = call_in_block("_nonzero", [doubled], {})[0]
        return values + 1, counts, places


def test_hybridized_blocks_call_ops_of_dynamic_shape():
    net, x = Found(), nd.array([[3, 0], [0, 1]])
    plain = [r.asnumpy() for r in net(x)]
    net.hybridize()
    for data in (x, nd.array([[3, 0], [0, 1]])):
        for result, wanted in zip(net(data), plain):
            np.testing.assert_array_equal(result.asnumpy(), wanted)
    assert net(nd.array([[1, 1, 1]]))[1].asnumpy().tolist() == [3]


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 5, 5)])
def test_eigenvectors_have_length_1_and_satisfy_their_equation(shape):
    random = np.random.RandomState(2)
    half = random.uniform(-1, 1, shape)
    # similar to a symmetric matrix, so that all eigenvalues are real
    scale = random.uniform(1, 2, shape[-1])
    a = (half + np.swapaxes(half, -1, -2)) * scale[:, None]
    w, v = (r.asnumpy() for r in call("_eig", [nd.array(a, dtype="float64")], {}))
    np.testing.assert_allclose(a @ v, v * w[..., None, :], atol=1e-12)
    np.testing.assert_allclose((v * v).sum(-2), np.ones(shape[:-1]), rtol=1e-12)


@pytest.mark.parametrize(
    "name, arrays, text",
    [
        ("_eig", [[[0, 1], [-1, 0]]], "matrix 0 has complex eigenvalues"),
        ("_eigvals", [[[[1, 0], [0, 1]], [[0, 1], [-1, 0]]]], "matrix 1 has complex eigenvalues"),
        ("_eigvals", [[[np.nan, 1], [1, 0]]], "not finite"),
        ("_svd", [[[np.inf, 1], [1, 0]]], "is the matrix finite"),
        ("_svd", [[[1], [2]]], "more rows than columns"),
        ("_solve", [[[1, 2], [2, 4]], [1, 2]], "matrix 0 is singular"),
        ("_solve", [[[1, 2], [2, 3]], [1, 2, 3]], "B must have"),
        ("_solve", [[[1, 2], [2, 3]], 1], "B must have"),
        ("_eig", [[[1, 2, 3]]], "must be square"),
    ],
)
def test_matrices_without_a_result_are_refused(name, arrays, text):
    def run():
        call(name, [nd.array(a, dtype="float64") for a in arrays], {})[0].wait_to_read()

    raises(mx.MXNetError, text, run)


def test_svd_gradient_of_values_allows_equal_ones():
    x = nd.array([[2, 0, 0], [0, 2, 0]])
    x.attach_grad()
    with mx.autograd.record():
        values = call("_svd", [x], {})[1]
    values.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [[1, 0, 0], [0, 1, 0]], atol=1e-6)
