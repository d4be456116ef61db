"""Samples of the creation family."""

import numpy as np

from samples.base import Sample


def _arange(start=0, stop=None, step=1.0, repeat=1, **params):
    values = np.arange(start, step=step) if stop is None else np.arange(start, stop, step)
    return np.repeat(values, repeat)


def _arange_like(x, start=0, step=1, repeat=1, axis=None, **params):
    count = x.size if axis is None else x.shape[axis]
    values = start + step * (np.arange(count) // repeat)
    return values.reshape(x.shape) if axis is None else values


ONE = ("float32",)  # ops without inputs are tested once
_SHAPES = [(2, 3), (0, 3), (1203,), 4]
_HALVES = np.array([2.5, -1.5, 0.0, 7.9], dtype="float32")
_INTS = np.array([[-3, 0, 200], [5, -1, 4]], dtype="int32")

SAMPLES = {
    "_full": [
        Sample(
            [],
            dtypes=ONE,
            params={"shape": s, "value": 2.5, "dtype": d},
            reference=lambda shape, value, dtype: np.full(shape, value).astype(dtype),
            name=f"{s}-{d}",
        )
        for s in _SHAPES
        for d in ("float32", "float16", "int64", "bool")
    ],
    "_zeros": [
        Sample(
            [],
            dtypes=ONE,
            params={"shape": s, "dtype": d},
            reference=lambda shape, dtype: np.zeros(shape),
            name=f"{s}-{d}",
        )
        for s in _SHAPES
        for d in ("float32", "uint8")
    ],
    "_ones": [
        Sample(
            [],
            dtypes=ONE,
            params={"shape": s, "dtype": d},
            reference=lambda shape, dtype: np.ones(shape),
            name=f"{s}-{d}",
        )
        for s in _SHAPES
        for d in ("float64", "int8")
    ],
    "_full_like": [
        Sample(
            [(2, 3)],
            {"fill_value": 3.0},
            reference=lambda x, fill_value: np.full(x.shape, fill_value),
            grad=False,
        ),
        Sample(
            [(0, 3)],
            {"fill_value": 3.0, "dtype": "int32"},
            reference=lambda x, fill_value, dtype: np.full(x.shape, 3),
            grad=False,
            name="empty",
        ),
    ],
    "zeros_like": [
        Sample([(2, 3)], reference=np.zeros_like, grad=False),
        Sample([(0,)], reference=np.zeros_like, grad=False, name="empty"),
    ],
    "ones_like": [
        Sample([(2, 3)], reference=np.ones_like, grad=False),
        Sample([_INTS], reference=np.ones_like, grad=False, dtypes=("int32",), name="integers"),
    ],
    "_eye": [
        Sample(
            [], p, dtypes=ONE, reference=lambda N, M=0, k=0, **_: np.eye(N, M or N, k), name=str(i)
        )
        for i, p in enumerate(
            [
                {"N": 3},
                {"N": 2, "M": 4, "k": 1},
                {"N": 4, "M": 2, "k": -2, "dtype": "int32"},
                {"N": 2, "k": 5},
                {"N": 0},
            ]
        )
    ],
    "_arange": [
        Sample([], p, dtypes=ONE, reference=_arange, name=str(i))
        for i, p in enumerate(
            [
                {"start": 5},
                {"start": 2, "stop": 7},
                {"start": 0, "stop": 1, "step": 0.3},
                {"start": 5, "stop": 0, "step": -2},
                {"start": 1, "stop": 4, "repeat": 3},
                {"start": 0, "stop": 5, "dtype": "int64"},
                {"start": 3, "stop": 3},
            ]
        )
    ],
    "_linspace": [
        Sample(
            [],
            p,
            dtypes=ONE,
            reference=lambda start, stop, num=50, endpoint=True, **_: np.linspace(
                start, stop, num, endpoint
            ),
            name=str(i),
        )
        for i, p in enumerate(
            [
                {"start": 0, "stop": 1},
                {"start": -1, "stop": 3, "num": 7, "endpoint": False},
                {"start": 2, "stop": 9, "num": 1},
                {"start": 2, "stop": 9, "num": 0},
            ]
        )
    ],
    "_contrib_arange_like": [
        Sample([(2, 3)], p, reference=_arange_like, grad=False, name=str(i))
        for i, p in enumerate(
            [{}, {"axis": 1}, {"axis": -2, "start": 2, "step": 0.5}, {"repeat": 2}]
        )
    ],
    "Cast": [
        Sample([(3, 4)], {"dtype": "float64"}, reference=lambda x, dtype: x, grad2=True),
        Sample(
            [(3, 4)],
            {"dtype": "float16"},
            reference=lambda x, dtype: x.astype("float16"),
            grad=False,
            atol=1e-3,
            name="half",
        ),
        Sample(
            [_HALVES],
            {"dtype": "int32"},
            reference=lambda x, dtype: np.trunc(x),
            grad=False,
            name="to-int",
        ),
        Sample(
            [_HALVES],
            {"dtype": "bool"},
            reference=lambda x, dtype: x != 0,
            grad=False,
            name="to-bool",
        ),
        Sample(
            [_INTS],
            {"dtype": "uint8"},
            reference=lambda x, dtype: x.astype("uint8"),
            grad=False,
            dtypes=("int32",),
            name="wrap",
        ),
        Sample(
            [_INTS],
            {"dtype": "float32"},
            reference=lambda x, dtype: x,
            grad=False,
            dtypes=("int32",),
            name="from-int",
        ),
        Sample(
            [np.array([2**53 + 1, -5])],
            {"dtype": "int32"},
            reference=lambda x, dtype: x.astype("int32"),
            grad=False,
            dtypes=("int64",),
            name="narrow",
        ),
        Sample(
            [(0, 2)], {"dtype": "float16"}, reference=lambda x, dtype: x, grad=False, name="empty"
        ),
    ],
    "amp_cast": [
        Sample([(3, 4)], {"dtype": "float64"}, reference=lambda x, dtype: x, grad2=True),
        Sample(
            [_INTS],
            {"dtype": "float16"},
            reference=lambda x, dtype: x,
            grad=False,
            dtypes=("int32",),
            name="integers",
        ),
    ],
    "amp_multicast": [
        Sample(
            [(2, 3), (4,)],
            {"num_outputs": 2},
            reference=lambda a, b, num_outputs: (a, b),
            grad2=True,
        ),
        Sample(
            [(2, 3), np.ones(3, "float16")],
            {"num_outputs": 2},
            reference=lambda a, b, num_outputs: (a, b),
            grad=False,
            dtypes=("float32",),
            name="widest",
        ),
    ],
    "_copyto": [
        Sample([(2, 3)], reference=lambda x: x, grad2=True),
        Sample([(0, 3)], reference=lambda x: x, grad=False, name="empty"),
    ],
}
