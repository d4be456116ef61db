"""Samples of NumPy's decompositions of matrices, and of linear systems."""

import numpy as np

from samples.base import Sample

FLOATS = ("float32", "float64")
_random = np.random.RandomState(5)


def _svd(a):
    """A = UT diag(L) V, where the largest element of each row of V is positive."""
    ut, values, v = np.linalg.svd(a, full_matrices=False)
    largest = np.take_along_axis(v, np.abs(v).argmax(-1)[..., None], -1)
    signs = np.where(largest < 0, -1.0, 1.0)
    return ut * np.swapaxes(signs, -1, -2), values, v * signs


def _solve(a, b):
    return np.linalg.solve(a, b[..., None])[..., 0] if b.ndim < a.ndim else np.linalg.solve(a, b)


def _with_eigenvalues(values):
    """Matrices with these real eigenvalues, and well-conditioned eigenvectors."""
    values = np.array(values, "float64")
    n = values.shape[-1]
    basis = np.eye(n) + 0.3 * _random.uniform(-1, 1, (*values.shape[:-1], n, n))
    return basis @ (values[..., None] * np.linalg.inv(basis))


def _values(a):
    return np.linalg.eig(a)[0].real


def _typed(reference, arrays, name, grad=False):
    """Samples of arrays in both dtypes; gradients are checked in float64."""
    return [
        Sample(
            [a.astype(dtype) for a in arrays],
            None,
            reference,
            grad=[0] if grad and dtype == "float64" else False,
            dtypes=(dtype,),
            rtol=1e-3 if dtype == "float32" else 1e-8,
            atol=1e-4 if dtype == "float32" else 1e-9,
            name=f"{name}-{dtype}",
        )
        for dtype in FLOATS
    ]


def _matrices(*shape):
    """Matrices with distinct singular values that are far from 0."""
    return _svd_with(np.arange(shape[-2], 0, -1.0), shape)


def _svd_with(values, shape):
    m, n = shape[-2:]
    u = np.linalg.qr(_random.normal(size=(*shape[:-2], m, m)))[0]
    v = np.linalg.qr(_random.normal(size=(*shape[:-2], n, m)))[0]
    return u * values @ np.swapaxes(v, -1, -2)


def _systems(a, b, name, **options):
    """Systems of generated matrices: the diagonal is made large by the range."""
    return Sample([a, b], None, _solve, dtypes=FLOATS, rtol=1e-3, atol=1e-4, name=name, **options)


_A = np.eye(4) * 3 + _random.uniform(-1, 1, (2, 3, 4, 4))
_ROTATED = _with_eigenvalues([[3, -1, 0.5], [2, 1, -4]])

SAMPLES = {
    "_svd": [
        *_typed(_svd, [_matrices(3, 3)], "square", True),
        *_typed(_svd, [_matrices(2, 5)], "wide", True),
        *_typed(_svd, [_matrices(2, 3, 3, 4)], "batched", True),
        *_typed(_svd, [_matrices(1, 6)], "row", True),
        *_typed(_svd, [np.array([[-2.0]])], "one", True),
        *_typed(_svd, [np.zeros((0, 2, 3))], "empty"),
        *_typed(_svd, [np.zeros((2, 0, 3))], "no-rows"),
        *_typed(_svd, [_matrices(70, 90)], "blocked"),
    ],
    "_solve": [
        *_typed(_solve, [_A[0, 0], _random.normal(size=(4, 2))], "matrix"),
        *_typed(_solve, [_A, _random.normal(size=(2, 3, 4, 5))], "batched"),
        *_typed(_solve, [_A, _random.normal(size=(2, 3, 4))], "vectors"),
        *_typed(_solve, [np.zeros((2, 0, 0)), np.zeros((2, 0, 3))], "empty"),
        *_typed(_solve, [np.eye(3), np.zeros((3, 0))], "no-columns"),
        *_typed(lambda a, b: b[::-1], [np.eye(3)[::-1], _random.normal(size=(3, 3))], "pivots"),
        _systems((3, 3), (3, 2), "generated"),
        _systems((2, 3, 3), (2, 3), "generated-vectors"),
        _systems((2, 1, 2, 2), (2, 1, 2, 3), "generated-batched"),
    ],
    "_eig": [
        *_typed(_values, [_ROTATED], "batched", True),
        *_typed(_values, [_with_eigenvalues([5, 3, 1, -2, -6])], "one", True),
        *_typed(_values, [np.diag([3.0, 1.0, 3.0])], "diagonal"),
        *_typed(_values, [np.zeros((2, 0, 0))], "empty"),
    ],
    "_eigvals": [
        *_typed(_values, [_ROTATED], "batched", True),
        *_typed(_values, [_with_eigenvalues([5, 3, 1, -2, -6])], "one", True),
        *_typed(_values, [np.zeros((0, 2, 2))], "empty"),
    ],
}
