"""Samples of linear algebra.

tests/ops/test_linalg.py checks gradients that treat a matrix as symmetric.
"""

import numpy as np

from samples.base import Sample

FLOATS = ("float32", "float64")


def swap(a):
    return np.swapaxes(a, -1, -2)


def make(shape, seed=1):
    return np.random.RandomState(seed).uniform(-1, 1, shape)


def positive(*shape):
    """A symmetric positive definite matrix."""
    a = make(shape)
    return a @ swap(a) + np.eye(shape[-1])


def regular(*shape):
    """A well-conditioned matrix."""
    return make(shape) + 2 * np.eye(shape[-1])


def factor(*shape, lower=True):
    found = np.linalg.cholesky(positive(*shape))
    return found if lower else np.ascontiguousarray(swap(found))


def triangle(a, lower=True):
    return np.tril(a) if lower else np.triu(a)


def potrf(a, lower=True):
    return np.linalg.cholesky(a) if lower else swap(np.linalg.cholesky(a))


def potri(a, lower=True):
    a = triangle(a, lower)
    return np.linalg.inv(a @ swap(a) if lower else swap(a) @ a)


def trmm(a, b, transpose=False, rightside=False, lower=True, alpha=1.0):
    a = triangle(a, lower)
    a = swap(a) if transpose else a
    return alpha * (b @ a if rightside else a @ b)


def trsm(a, b, transpose=False, rightside=False, lower=True, alpha=1.0):
    a = triangle(a, lower)
    inverse = np.linalg.inv(swap(a) if transpose else a)
    return alpha * (b @ inverse if rightside else inverse @ b)


def syrk(a, transpose=False, alpha=1.0):
    return alpha * (swap(a) @ a if transpose else a @ swap(a))


def per_matrix(values):
    return values.reshape(1) if values.ndim == 0 else values


def sumlogdiag(a):
    return per_matrix(np.log(np.diagonal(a, axis1=-2, axis2=-1)).sum(-1))


def extractdiag(a, offset=0):
    return np.diagonal(a, offset, -2, -1)


def makediag(a, offset=0):
    out = np.zeros(a.shape[:-1] + (a.shape[-1] + abs(offset),) * 2)
    i = np.arange(a.shape[-1])
    out[..., i + max(0, -offset), i + max(0, offset)] = a
    return out


def places(n, offset, lower):
    """Returns rows and columns of a triangle's elements in storage order."""
    rows, columns = np.tril_indices(n - abs(offset))
    if offset > 0 or (offset == 0 and not lower):
        return columns, rows + abs(offset)
    return rows + abs(offset), columns


def extracttrian(a, offset=0, lower=True):
    rows, columns = places(a.shape[-1], offset, lower)
    return a[..., rows, columns]


def maketrian(a, offset=0, lower=True):
    n = int(round((np.sqrt(8 * a.shape[-1] + 1) - 1) / 2)) + abs(offset)
    out = np.zeros(a.shape[:-1] + (n, n))
    rows, columns = places(n, offset, lower)
    out[..., rows, columns] = a
    return out


def gelqf(a):
    """LQ factors from NumPy's QR, which has the same signs because both use LAPACK's Householder
    method."""
    q, r = np.linalg.qr(swap(a))
    return swap(q), swap(r)


def syevd(a):
    values, vectors = np.linalg.eigh(a)
    rows = swap(vectors)
    largest = np.take_along_axis(rows, np.abs(rows).argmax(-1)[..., None], -1)
    return rows * np.sign(largest), values


def det(a):
    return per_matrix(np.linalg.det(a))


def slogdet(a):
    return tuple(per_matrix(v) for v in np.linalg.slogdet(a))


def typed(reference, arrays, params=None, **more):
    """One sample per dtype, with the given arrays."""
    more.setdefault("rtol", 1e-4)
    more.setdefault("atol", 1e-5)
    name = more.pop("name", "plain")
    return [
        Sample(
            [a.astype(t) for a in arrays],
            params,
            reference,
            grad=False,
            dtypes=(t,),
            name=f"{name}-{t}",
            **more,
        )
        for t in FLOATS
    ]


def inverses():
    return [
        *typed(np.linalg.inv, [regular(4, 4)]),
        *typed(np.linalg.inv, [regular(2, 3, 5, 5)], name="batched"),
        *typed(np.linalg.inv, [regular(1, 1)], name="one"),
        Sample([(0, 3, 3)], None, np.linalg.inv, grad=False, dtypes=FLOATS, name="empty"),
    ]


SINGULAR = np.stack([np.ones((3, 3)), 2 * np.eye(3)])
TRIANGULAR = [
    dict(transpose=t, rightside=r, lower=lower, alpha=0.5)
    for t in (False, True)
    for r in (False, True)
    for lower in (False, True)
]
DIAGONALS = [dict(offset=k) for k in (0, 1, -2)]
TRIANGLES = [dict(offset=0), dict(offset=0, lower=False), dict(offset=1), dict(offset=-2)]


def other(p, rows, columns):
    return (2, columns, rows) if p["rightside"] else (2, rows, columns)


SAMPLES = {
    "_linalg_potrf": [
        *typed(potrf, [positive(4, 4)]),
        *typed(potrf, [positive(2, 3, 5, 5)], {"lower": False}, name="upper"),
        *typed(potrf, [positive(70, 70)], name="large"),
        Sample([(2, 0, 0)], None, potrf, grad=False, dtypes=FLOATS, name="empty"),
    ],
    "_linalg_potri": [
        *typed(potri, [factor(4, 4)]),
        *typed(potri, [factor(2, 3, 5, 5, lower=False)], {"lower": False}, name="upper"),
    ],
    "_linalg_trmm": [
        Sample([(2, 4, 4), other(p, 4, 3)], p, trmm, grad2=True, dtypes=FLOATS, name=str(i))
        for i, p in enumerate(TRIANGULAR)
    ]
    + [Sample([(4, 4), (4, 0)], None, trmm, dtypes=FLOATS, name="empty")],
    "_linalg_trsm": [
        Sample(
            [(2, 3, 3), other(p, 3, 4)],
            p,
            trsm,
            grad2=True,
            dtypes=FLOATS,
            ranges=[(1, 2), None],
            rtol=1e-3,
            atol=1e-4,
            name=str(i),
        )
        for i, p in enumerate(TRIANGULAR)
    ]
    + [Sample([(4, 4), (4, 0)], None, trsm, dtypes=FLOATS, name="empty")],
    "_linalg_syrk": [
        Sample([(4, 3)], {"alpha": 0.5}, syrk, grad2=True, dtypes=FLOATS, name="plain"),
        Sample(
            [(2, 3, 4, 5)],
            {"transpose": True, "alpha": 2.0},
            syrk,
            grad2=True,
            dtypes=FLOATS,
            name="transpose",
        ),
        Sample([(2, 3, 0)], None, syrk, dtypes=FLOATS, name="empty_sum"),
        Sample(
            [(40, 9, 30)], None, syrk, grad=False, dtypes=FLOATS, rtol=1e-4, atol=1e-5, name="many"
        ),
    ],
    "_linalg_sumlogdiag": [
        Sample([(4, 4)], None, sumlogdiag, ranges=[(1, 2)], grad2=True, dtypes=FLOATS, name="one"),
        Sample(
            [(2, 3, 4, 4)],
            None,
            sumlogdiag,
            ranges=[(1, 2)],
            grad2=True,
            dtypes=FLOATS,
            name="batched",
        ),
    ],
    "_linalg_extractdiag": [
        Sample([(2, 4, 4)], p, extractdiag, grad2=True, dtypes=FLOATS) for p in DIAGONALS
    ]
    + [Sample([(3, 3)], {"offset": 3}, extractdiag, dtypes=FLOATS, name="empty")],
    "_linalg_makediag": [
        Sample([(2, 4)], p, makediag, grad2=True, dtypes=FLOATS) for p in DIAGONALS
    ]
    + [Sample([(3,)], None, makediag, dtypes=FLOATS, name="one")],
    "_linalg_extracttrian": [
        Sample([(2, 4, 4)], p, extracttrian, grad2=True, dtypes=FLOATS) for p in TRIANGLES
    ],
    "_linalg_maketrian": [
        Sample([(2, 6)], p, maketrian, grad2=True, dtypes=FLOATS) for p in TRIANGLES
    ]
    + [Sample([(0,)], None, maketrian, dtypes=FLOATS, name="empty")],
    "_linalg_gelqf": [
        Sample([(3, 5)], None, gelqf, grad2=True, dtypes=FLOATS, rtol=1e-3, atol=1e-4, name="wide"),
        Sample([(2, 3, 4, 4)], None, gelqf, dtypes=FLOATS, rtol=1e-3, atol=1e-3, name="square"),
        Sample([(1, 1)], None, gelqf, dtypes=FLOATS, name="one"),
        Sample([(0, 3, 4)], None, gelqf, dtypes=FLOATS, name="empty"),
    ],
    "_linalg_syevd": [
        *typed(syevd, [positive(4, 4)]),
        *typed(syevd, [make((2, 3, 5, 5)) + swap(make((2, 3, 5, 5)))], name="batched", atol=1e-4),
        *typed(syevd, [np.diag([3.0, 1.0, 2.0])], name="diagonal"),
    ],
    "_linalg_inverse": inverses()
    + [Sample([(3, 3)], None, None, grad2=True, dtypes=FLOATS, name="gradient")],
    "_linalg_inverse_or_zero": inverses()
    + typed(lambda a: np.stack([np.zeros((3, 3)), np.eye(3) / 2]), [SINGULAR], name="singular"),
    "_linalg_det": [
        Sample([(4, 4)], None, det, grad2=True, dtypes=FLOATS, rtol=1e-3, atol=1e-5, name="one"),
        Sample(
            [(2, 3, 3, 3)],
            None,
            det,
            grad2=True,
            dtypes=FLOATS,
            rtol=1e-3,
            atol=1e-5,
            name="batched",
        ),
        *typed(det, [SINGULAR], name="singular"),
        Sample([(2, 0, 0)], None, det, dtypes=FLOATS, name="empty"),
    ],
    "_linalg_slogdet": [
        Sample(
            [(4, 4)], None, slogdet, grad2=True, dtypes=FLOATS, rtol=1e-3, atol=1e-4, name="one"
        ),
        Sample([(2, 3, 3, 3)], None, slogdet, dtypes=FLOATS, rtol=1e-3, atol=1e-4, name="batched"),
        *typed(slogdet, [SINGULAR], name="singular"),
    ],
}
