"""Samples of the dense inner ops of sparse arrays."""

import numpy as np

from samples.base import Sample


def retain(data, indices):
    out = np.zeros_like(data)
    rows = indices.astype(int)
    out[rows] = data[rows]
    return out


ROWS = np.array([0, 3, 3], "int64")


def added(values, rows, columns, dense, count):
    out = np.zeros((count, *dense.shape[1:]))
    np.add.at(
        out,
        rows.astype(int),
        dense[columns.astype(int)] * np.multiply.outer(values, np.ones(dense.shape[1:])),
    )
    return out


def elements(*numbers):
    return np.array(numbers, "int64")


FLOATS = {"dtypes": ("float32", "float64")}

SAMPLES = {
    "_add_products": [
        Sample(
            [(5,), elements(0, 0, 1, 3, 3), elements(2, 0, 1, 2, 2), (3, 4)],
            {"count": 5},
            added,
            grad=[0, 3],
            **FLOATS,
        ),
        Sample(
            [(4,), elements(2, 0, 2, 1), elements(0, 1, 2, 0), (3,)],
            {"count": 3},
            added,
            grad=[0, 3],
            name="vector",
            **FLOATS,
        ),
        Sample(
            [(3000,), np.sort(np.arange(3000) * 7 % 50), np.arange(3000) % 40, (40, 5)],
            {"count": 50},
            added,
            grad=False,
            name="many",
            rtol=1e-3,
            atol=1e-4,
            **FLOATS,
        ),
        Sample(
            [(3000,), np.arange(3000) * 7 % 50, np.arange(3000) % 40, (40, 70)],
            {"count": 50},
            added,
            grad=False,
            name="in any order",
            rtol=1e-3,
            atol=1e-4,
            **FLOATS,
        ),
        Sample(
            [(0,), elements(), elements(), (2, 3)],
            {"count": 2},
            added,
            grad=False,
            name="none",
            **FLOATS,
        ),
    ],
    "cast_storage": [Sample([(3, 4)], {"stype": "csr"}, lambda x, stype: x)],
    "_sparse_retain": [
        Sample([(5, 2, 3), ROWS], None, retain, grad=[0]),
        Sample([(5,), ROWS], None, retain, grad=[0], name="vector"),
    ],
    "_square_sum": [
        Sample([(3, 4)], {"axis": 1}, lambda x, axis: (x * x).sum(axis)),
    ],
    "_scatter_plus_scalar": [Sample([(3, 4)], {"scalar": 2.0}, lambda x, scalar: x + scalar)],
    "_scatter_minus_scalar": [Sample([(3, 4)], {"scalar": 2.0}, lambda x, scalar: x - scalar)],
    "_scatter_elemwise_div": [
        Sample([(3, 4), (3, 4)], None, lambda a, b: a / b, ranges=[None, (0.5, 2)])
    ],
    "_contrib_SparseEmbedding": [
        Sample(
            [ROWS, (4, 3)],
            {"input_dim": 4, "output_dim": 3, "deterministic": True},
            lambda index, weight, **params: weight[index.astype(int)],
            grad=[1],
        )
    ],
}
