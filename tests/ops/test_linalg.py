"""Linear algebra: gradients that treat a matrix as symmetric, and errors."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, nd


def symmetric(m):
    """Returns a symmetric positive definite matrix derived from any square matrix."""
    eye = nd.array(np.eye(m.shape[-1]), dtype="float64")
    return nd.broadcast_add(
        nd.linalg.gemm2(m, m, transpose_b=True), nd.reshape(eye, (1,) * (m.ndim - 2) + eye.shape)
    )


def cholesky(lower):
    return lambda m: nd.linalg.potrf(symmetric(m), lower=lower)


def inverse(lower):
    return lambda m: nd.linalg.potri(nd.linalg.potrf(symmetric(m), lower=lower), lower=lower)


def vectors(m):
    return nd.linalg.syevd(symmetric(m))[0]


def values(m):
    return nd.linalg.syevd(symmetric(m))[1]


@pytest.mark.parametrize(
    "function",
    [cholesky(True), cholesky(False), inverse(True), inverse(False), vectors, values],
    ids=["potrf", "potrf_upper", "potri", "potri_upper", "syevd_vectors", "syevd_values"],
)
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (1, 1)], ids=str)
def test_symmetric_gradients_match_finite_differences(function, shape):
    random = np.random.RandomState(2)
    m = nd.array(random.uniform(-1, 1, shape), dtype="float64")
    head = random.uniform(-1, 1, function(m).shape)
    m.attach_grad()
    with autograd.record():
        out = function(m)
    out.backward(nd.array(head, dtype="float64"))
    direction = random.uniform(-1, 1, shape)
    ahead, behind = (
        function(m + nd.array(s * 1e-5 * direction, dtype="float64")).asnumpy() for s in (1, -1)
    )
    difference = ((ahead - behind) * head).sum() / 2e-5
    assert abs((m.grad.asnumpy() * direction).sum() - difference) < 1e-6 * max(1, abs(difference))


def test_cholesky_gradient_is_symmetric():
    a = nd.array([[4.0, 1.0], [1.0, 3.0]])
    a.attach_grad()
    with autograd.record():
        factor = nd.linalg.potrf(a)
    # Elements above the diagonal do not contribute
    factor.backward(nd.array([[0.0, 5.0], [1.0, 0.0]]))
    grad = a.grad.asnumpy()
    assert grad[0, 1] == grad[1, 0] and abs(grad[0, 1] - 0.25) < 1e-6


def test_gradient_of_singular_determinant_is_zero():
    a = nd.ones((2, 3, 3))
    for function in (nd.linalg.det, lambda x: nd.linalg.slogdet(x)[1]):
        a.attach_grad()
        with autograd.record():
            out = function(a)
        out.backward()
        assert (a.grad.asnumpy() == 0).all()


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: nd.linalg.potrf(-nd.ones((2, 3, 3))), "matrix 0 is not positive definite"),
        (
            lambda: nd.linalg.inverse(nd.array(np.stack([np.eye(2), np.ones((2, 2))]))),
            "matrix 1 is singular",
        ),
        (lambda: nd.linalg.potri(nd.zeros((2, 2))), "zero on its diagonal"),
        (lambda: nd.linalg.potrf(nd.ones((2, 3))), "square"),
        (lambda: nd.linalg.potrf(nd.ones((2,))), "two axes"),
        (lambda: nd.linalg.gelqf(nd.ones((3, 2))), "more rows than columns"),
        (lambda: nd.linalg.trsm(nd.ones((2, 2)), nd.ones((3, 2))), "rightside=False"),
        (lambda: nd.linalg.trmm(nd.ones((2, 2)), nd.ones((1, 2, 2))), "leading axes"),
        (lambda: nd.linalg.extractdiag(nd.ones((2, 2)), offset=3), "diagonal 3 is out of range"),
        (lambda: nd.linalg.extracttrian(nd.ones((2, 2)), offset=-3), "diagonal -3 is out of range"),
        (lambda: nd.linalg.maketrian(nd.ones((4,))), "a triangle has"),
        (lambda: nd.linalg.makediag(nd.ones((4,)), offset=2**40), "too large"),
        (lambda: nd.linalg.det(nd.ones((2, 2), dtype="float16")), "float16"),
    ],
)
def test_invalid_linalg_call_is_refused(call, text):
    with pytest.raises((mx.MXNetError, TypeError, ValueError), match=text):
        out = call()
        (out[0] if isinstance(out, (list, tuple)) else out).wait_to_read()


def test_linalg_symbols_infer_shapes():
    a = mx.sym.Variable("a")
    q, lower = mx.sym.linalg.gelqf(a)
    assert mx.sym.Group([q, lower]).infer_shape(a=(2, 3, 4))[1] == [(2, 3, 4), (2, 3, 3)]
    assert mx.sym.linalg.sumlogdiag(a).infer_shape(a=(3, 3))[1] == [(1,)]
    assert mx.sym.linalg.maketrian(a).infer_shape(a=(2, 6))[1] == [(2, 3, 3)]
    assert mx.sym.linalg_gemm2(q, lower, transpose_a=True).infer_shape(a=(2, 3, 4))[1] == [
        (2, 4, 3)
    ]
