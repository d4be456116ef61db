"""Samples of ops on sparse arrays, of dense ones."""

import numpy as np

from samples.base import Sample


def retain(data, indices):
    out = np.zeros_like(data)
    rows = indices.astype(int)
    out[rows] = data[rows]
    return out


ROWS = np.array([0, 3, 3], "int64")

SAMPLES = {
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
