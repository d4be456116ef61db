"""Samples of matrix products."""

import numpy as np

from samples.base import Sample


def dot(a, b, transpose_a=False, transpose_b=False):
    if a.ndim == 1 and b.ndim == 1:
        return np.array([a @ b])
    if transpose_a and a.ndim > 1:
        a = np.moveaxis(a, 0, -1)
    if transpose_b and b.ndim > 1:
        b = np.moveaxis(b, -1, 0)
    return np.tensordot(a, b, axes=(-1, 0))


def swap(a, wanted):
    return np.swapaxes(a, -1, -2) if wanted else a


def batch_dot(a, b, transpose_a=False, transpose_b=False):
    return swap(a, transpose_a) @ swap(b, transpose_b)


def fully_connected(data, weight, bias=None, num_hidden=0, no_bias=False, flatten=True):
    rows = data.reshape(data.shape[0], int(np.prod(data.shape[1:]))) if flatten else data
    out = rows @ weight.T
    return out if no_bias else out + bias


def packed_dense(data, num_hidden, name, no_bias=False, flatten=True):
    """A sample whose packed weight is the plain weight after a header."""
    features = int(np.prod(data[1:])) if flatten else data[-1]
    values = np.random.RandomState(1).uniform(-1, 1, (num_hidden, features)).astype(np.float32)
    up = lambda n: -(-n // 64) * 64
    buffer = np.zeros(16 + up(num_hidden) * up(features), np.float32)
    buffer[16 : 16 + values.size] = values.ravel()

    def reference(x, _, *bias, **params):
        return fully_connected(x, values.astype(np.float64), *bias, **params)

    return Sample(
        [data, buffer] + [(num_hidden,)] * (not no_bias),
        dict(num_hidden=num_hidden, no_bias=no_bias, flatten=flatten),
        reference,
        grad=False,
        dtypes=("float32",),
        name=name,
    )


def gemm2(a, b, transpose_a=False, transpose_b=False, alpha=1.0, axis=-2):
    a, b = np.moveaxis(a, axis, -2), np.moveaxis(b, axis, -2)
    return np.moveaxis(alpha * (swap(a, transpose_a) @ swap(b, transpose_b)), -2, axis)


def gemm(a, b, c, transpose_a=False, transpose_b=False, alpha=1.0, beta=1.0, axis=-2):
    return gemm2(a, b, transpose_a, transpose_b, alpha, axis) + beta * c


def khatri_rao(*matrices):
    out = matrices[0]
    for matrix in matrices[1:]:
        out = np.einsum("in,jn->ijn", out, matrix).reshape(-1, out.shape[1])
    return out


BOTH = [(False, False), (True, False), (False, True), (True, True)]
HALVES = ("float32", "float64", "float16", "bfloat16")


def transposed(rows, columns, wanted):
    return (columns, rows) if wanted else (rows, columns)


SAMPLES = {
    "dot": [
        Sample(
            [transposed(4, 5, ta), transposed(5, 3, tb)],
            dict(transpose_a=ta, transpose_b=tb),
            dot,
            grad2=True,
            name=f"{'nt'[ta]}{'nt'[tb]}",
        )
        for ta, tb in BOTH
    ]
    + [
        Sample([(5,), (5,)], {}, dot, grad2=True, name="vectors"),
        Sample([(5,), (5, 3)], {}, dot, name="vector_matrix"),
        Sample([(4, 5), (5,)], dict(transpose_b=True), dot, name="matrix_vector"),
        Sample([(2, 3, 4), (4, 5, 2)], {}, dot, grad2=True, name="many_axes"),
        Sample(
            [(4, 2, 3), (5, 2, 4)],
            dict(transpose_a=True, transpose_b=True),
            dot,
            name="many_axes_tt",
        ),
        Sample([(0, 4), (4, 3)], {}, dot, name="no_rows"),
        Sample([(3, 0), (0, 4)], {}, dot, name="empty_sum"),
        # Too large for the small loop: uses oneDNN, OpenBLAS or the blocked loop.
        Sample(
            [(70, 130), (130, 90)],
            {},
            dot,
            grad=False,
            dtypes=HALVES,
            rtol=1e-4,
            atol=2e-5,
            name="large",
        ),
        Sample(
            [(130, 70), (90, 130)],
            dict(transpose_a=True, transpose_b=True),
            dot,
            grad=False,
            dtypes=HALVES,
            rtol=1e-4,
            atol=2e-5,
            name="large_tt",
        ),
        Sample(
            [(1, 700), (300, 700)],
            dict(transpose_b=True),
            dot,
            grad=False,
            rtol=1e-4,
            atol=2e-5,
            name="one_row",
        ),
        Sample(
            [(300, 700), (700, 1)], {}, dot, grad=False, rtol=1e-4, atol=2e-5, name="one_column"
        ),
    ],
    "batch_dot": [
        Sample(
            [(3,) + transposed(4, 5, ta), (3,) + transposed(5, 2, tb)],
            dict(transpose_a=ta, transpose_b=tb),
            batch_dot,
            grad2=True,
            name=f"{'nt'[ta]}{'nt'[tb]}",
        )
        for ta, tb in BOTH
    ]
    + [
        Sample([(2, 3, 4, 5), (2, 3, 5, 2)], {}, batch_dot, name="four_axes"),
        Sample([(0, 4, 5), (0, 5, 2)], {}, batch_dot, name="no_batch"),
        Sample([(2, 4, 0), (2, 0, 3)], {}, batch_dot, name="empty_sum"),
        Sample(
            [(3, 70, 90), (3, 80, 90)],
            dict(transpose_b=True),
            batch_dot,
            grad=False,
            dtypes=HALVES,
            rtol=1e-4,
            atol=2e-5,
            name="large",
        ),
        Sample([(40, 6, 7), (40, 7, 5)], {}, batch_dot, grad=False, name="many_small"),
    ],
    "FullyConnected": [
        Sample(
            [(4, 6), (3, 6), (3,)], dict(num_hidden=3), fully_connected, grad2=True, name="plain"
        ),
        Sample(
            [(4, 6), (3, 6)],
            dict(num_hidden=3, no_bias=True),
            fully_connected,
            grad2=True,
            name="no_bias",
        ),
        Sample([(4, 2, 3), (5, 6), (5,)], dict(num_hidden=5), fully_connected, name="flatten"),
        Sample(
            [(4, 2, 3), (5, 3), (5,)],
            dict(num_hidden=5, flatten=False),
            fully_connected,
            grad2=True,
            name="last_axis",
        ),
        Sample([(0, 6), (3, 6), (3,)], dict(num_hidden=3), fully_connected, name="no_rows"),
        Sample([(4, 0), (3, 0), (3,)], dict(num_hidden=3), fully_connected, name="no_features"),
        Sample(
            [(60, 120), (90, 120), (90,)],
            dict(num_hidden=90),
            fully_connected,
            grad=False,
            dtypes=HALVES,
            rtol=1e-4,
            atol=2e-5,
            name="large",
        ),
    ],
    "_pack_fully_connected": [
        Sample([(65, 7)], grad=False, dtypes=("float32",), name="plain"),
        Sample(
            [(64, 100)],
            dict(no_bias=True),
            grad=False,
            dtypes=("float32",),
            name="no_bias",
        ),
    ],
    "_packed_fully_connected": [
        packed_dense((4, 6), 3, "plain"),
        packed_dense((4, 2, 3), 5, "flatten", no_bias=True),
        packed_dense((4, 2, 3), 5, "last_axis", flatten=False),
        packed_dense((0, 6), 3, "no_rows"),
        packed_dense((60, 120), 90, "large"),
    ],
    "_linalg_gemm": [
        Sample(
            [transposed(4, 5, ta), transposed(5, 3, tb), (4, 3)],
            dict(transpose_a=ta, transpose_b=tb, alpha=0.5, beta=2.0),
            gemm,
            grad2=True,
            name=f"{'nt'[ta]}{'nt'[tb]}",
        )
        for ta, tb in BOTH
    ]
    + [
        Sample([(2, 3, 4, 5), (2, 3, 5, 2), (2, 3, 4, 2)], {}, gemm, name="batched"),
        Sample([(2, 4, 3, 5), (2, 5, 3, 2), (2, 4, 3, 2)], dict(axis=1), gemm, name="axis"),
    ],
    "_linalg_gemm2": [
        Sample(
            [transposed(4, 5, ta), transposed(5, 3, tb)],
            dict(transpose_a=ta, transpose_b=tb, alpha=0.5),
            gemm2,
            grad2=True,
            name=f"{'nt'[ta]}{'nt'[tb]}",
        )
        for ta, tb in BOTH
    ]
    + [
        Sample([(2, 4, 3, 5), (2, 5, 3, 2)], dict(axis=1), gemm2, grad2=True, name="axis"),
        Sample([(0, 4, 5), (0, 5, 2)], {}, gemm2, name="no_batch"),
    ],
    "khatri_rao": [
        Sample([(3, 4), (2, 4)], {}, khatri_rao, dtypes=("float32", "float64"), name="two"),
        Sample(
            [(3, 4), (2, 4), (5, 4)],
            {},
            khatri_rao,
            dtypes=("float32", "float64"),
            name="three",
        ),
        Sample([(3, 4)], {}, khatri_rao, dtypes=("float32", "float64"), name="one"),
    ],
}
