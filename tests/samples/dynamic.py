"""Samples of ops whose result's shape depends on values."""

import numpy as np

from samples.base import Sample

EVERY = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
_random = np.random.RandomState(0)


def _cases(function, name, array, dtypes=EVERY, **params):
    """Samples of one array in several dtypes."""
    return [
        Sample(
            [array.astype("float32" if dtype == "bfloat16" else dtype)],
            params,
            reference=function,
            grad=False,
            dtypes=(dtype,),
            name=f"{name}-{dtype}",
        )
        for dtype in dtypes
    ]


def _nonzero(x):
    return np.argwhere(np.atleast_1d(x)).astype("int64")


def _unique(x, axis=None, **returned):
    """Like np.unique, but also treats NaN as equal along an axis."""
    x = np.atleast_1d(x)
    keys = x
    if axis is not None and x.dtype.kind == "f":
        keys = np.where(np.isnan(x), np.inf, x)
    results = np.unique(keys, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    values = np.take(x, results[1], axis=axis) if axis is not None else x.ravel()[results[1]]
    chosen = [returned.get(f"return_{name}") for name in ("index", "inverse", "counts")]
    return (values, *(r.reshape(-1) for r, kept in zip(results[1:], chosen) if kept))


def _bincount(data, weights=None, minlength=0, **params):
    return np.bincount(data, weights, minlength)


def _bits(*shape):
    return _random.randint(0, 2, shape)


_THIRDS = _random.randint(0, 3, (4, 5, 3)) - (_random.rand(4, 5, 3) < 0.2)
_NAN = np.array([[np.nan, 1, -0.0], [2, np.nan, 0.0], [np.nan, 1, 0.0], [1, -np.inf, np.inf]])
_ALL = {"return_index": True, "return_inverse": True, "return_counts": True}
_COUNTED = np.array([3, 1, 1, 0, 7, 3, 3])

SAMPLES = {
    "_nonzero": [
        *_cases(_nonzero, "cube", np.abs(_THIRDS)),
        *_cases(_nonzero, "empty", np.zeros((0, 3)), EVERY[:1]),
        *_cases(_nonzero, "no-columns", np.zeros((2, 0, 3)), EVERY[:1]),
        *_cases(_nonzero, "none", np.zeros((2, 3)), EVERY[:2]),
        *_cases(_nonzero, "scalar", np.array(2), EVERY[:1]),
        *_cases(_nonzero, "zero", np.array(0), EVERY[:1]),
        *_cases(_nonzero, "special", np.array([-0.0, np.nan, np.inf, 1e-45, 0]), EVERY[:2]),
        *_cases(_nonzero, "long", _random.randint(0, 2, (2, 1500)), EVERY[:1]),
    ],
    "_unique": [
        *_cases(_unique, "flat", np.abs(_THIRDS), **_ALL),
        *_cases(_unique, "values", _THIRDS - 1, ("float32", "int32")),
        *_cases(_unique, "index", _THIRDS, ("float32",), return_index=True),
        *_cases(_unique, "counts", _THIRDS, ("int64",), return_counts=True),
        *_cases(_unique, "nan", _NAN, EVERY[:3], **_ALL),
        *_cases(_unique, "nan-rows", _NAN, EVERY[:3], axis=0, **_ALL),
        *_cases(_unique, "wide", np.array([2**62, 2**62 + 1, -5, 2**62]), ("int64",), **_ALL),
        *_cases(_unique, "same", np.full((3, 4), 5), EVERY[:1], axis=1, **_ALL),
        *_cases(_unique, "empty", np.zeros((0, 3)), EVERY[:1], **_ALL),
        *_cases(_unique, "no-rows", np.zeros((0, 3)), EVERY[:1], axis=0, **_ALL),
        *_cases(_unique, "empty-rows", np.zeros((3, 0)), EVERY[:1], axis=0),
        *_cases(_unique, "scalar", np.array(2), EVERY[:1], **_ALL),
        *_cases(_unique, "scalar-axis", np.array(2), EVERY[:1], axis=-1, **_ALL),
        *_cases(_unique, "long", _random.randint(0, 900, 3000), ("float32", "int64"), **_ALL),
        *_cases(_unique, "axis0", _bits(40, 3), ("float32", "int32", "bool"), axis=0, **_ALL),
        *_cases(_unique, "axis1", _bits(2, 40, 2), ("float32", "int32"), axis=1, **_ALL),
        *_cases(_unique, "axis2", _bits(3, 1, 40), ("float32", "uint8"), axis=-1, **_ALL),
        *_cases(_unique, "odd", _bits(300, 7), ("float16", "int64"), axis=0, **_ALL),
    ],
    "_bincount": [
        *_cases(_bincount, "plain", _COUNTED, ("int8", "uint8", "int32", "int64")),
        *_cases(_bincount, "more", _COUNTED, ("int32",), minlength=12),
        *_cases(_bincount, "fewer", _COUNTED, ("int32",), minlength=3),
        *_cases(_bincount, "empty", _COUNTED[:0], ("int32", "int64")),
        *_cases(_bincount, "empty-bins", _COUNTED[:0], ("int32",), minlength=4),
        *_cases(_bincount, "long", _random.randint(0, 50, 5000), ("int64",)),
        Sample([_COUNTED, (7,)], {"has_weights": True}, _bincount, name="weights"),
        Sample([_COUNTED, (7,)], {"minlength": 10}, _bincount, name="weights-more"),
        Sample([_COUNTED[:0], (0,)], None, _bincount, grad=False, name="no-weights"),
    ],
    "_bincount_bins": [
        *_cases(
            lambda data, minlength=0: np.zeros(max(minlength, int(data.max()) + 1)),
            "plain",
            _COUNTED,
            ("uint8", "int64"),
        ),
        *_cases(
            lambda data, minlength=0: np.zeros(3), "empty", _COUNTED[:0], ("int32",), minlength=3
        ),
    ],
}
