"""Samples of the reduce family."""

import numpy as np

from samples.base import Sample


def _axes(ndim, axis=None, exclude=False, **params):
    if axis is None or axis == ():
        return tuple(range(ndim))
    axes = {a % ndim for a in ((axis,) if isinstance(axis, int) else axis)}
    return tuple(i for i in range(ndim) if (i in axes) != bool(exclude))


def _reduced(function):
    def reference(x, keepdims=False, **params):
        result = np.asarray(function(x, axis=_axes(x.ndim, **params), keepdims=keepdims))
        return result.reshape(1) if result.ndim == 0 else result

    return reference


_CASES = [
    ((2, 3, 4), {}),
    ((2, 3, 4), {"axis": 1}),
    ((2, 3, 4), {"axis": -1, "keepdims": True}),
    ((2, 3, 4), {"axis": (0, 2)}),
    ((2, 3, 4), {"axis": 1, "exclude": True}),
    ((2, 3, 4, 2), {"axis": (0, 2), "keepdims": True}),
    ((5,), {"axis": 0}),
    ((3, 1, 2), {"axis": 1}),
    ((1, 1), {}),
    ((4, 3), {"axis": ()}),
]
_LARGE = [
    ((3, 40000), {"axis": 1}),
    ((20000, 3), {"axis": 0}),
    ((70, 300, 3), {"axis": (0, 2)}),
    ((50000,), {}),
    ((3, 700, 130), {"axis": 1}),
]
_WHOLE = np.arange(-5, 7, dtype="int32").reshape(3, 4)
_HOLES = np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, -3.0]])


def _samples(function, bounds=None, grad=True, grad2=True, large=True, extent=(0, 3)):
    reference, ranges = _reduced(function), [bounds] if bounds else None
    rows = [
        Sample(
            [shape],
            params,
            reference=reference,
            ranges=ranges,
            grad=grad,
            grad2=grad2 and i < 4,
            name=f"axes{i}",
        )
        for i, (shape, params) in enumerate(_CASES)
    ]
    if large:
        rows += [
            Sample(
                [shape],
                params,
                reference=reference,
                ranges=ranges,
                grad=False,
                dtypes=("float32", "float64"),
                rtol=2e-5,
                atol=2e-3,
                name=f"large{i}",
            )
            for i, (shape, params) in enumerate(_LARGE)
        ]
    if extent:
        rows.append(Sample([extent], {"axis": 1}, reference=reference, grad=False, name="empty"))
    return rows


def _norm(x, ord=2, axis=None, keepdims=False, **params):
    axes = _axes(x.ndim, axis)
    result = (
        np.sum(np.abs(x), axis=axes, keepdims=keepdims)
        if ord == 1
        else np.sqrt(np.sum(x * x, axis=axes, keepdims=keepdims))
    )
    return np.asarray(result).reshape(1) if np.ndim(result) == 0 else result


def _broadcast_axis(x, axis=(), size=()):
    shape = list(x.shape)
    for a, n in zip(
        (axis,) if isinstance(axis, int) else axis, (size,) if isinstance(size, int) else size
    ):
        shape[a] = n
    return np.broadcast_to(x, shape)


def _broadcast_like(x, y, lhs_axes=None, rhs_axes=None):
    shape = list(x.shape)
    if lhs_axes is None:
        shape = y.shape
    else:
        for a, b in zip(lhs_axes, rhs_axes):
            shape[a] = y.shape[b]
    return np.broadcast_to(x, shape)


def _cumsum(a, axis=None, dtype=None, reverse=False):
    if reverse:
        return np.flip(
            np.cumsum(np.flip(a if axis is not None else a.ravel(), axis or 0), axis=axis or 0),
            axis or 0,
        )
    return np.cumsum(a, axis=axis, dtype=dtype or a.dtype)


SAMPLES = {
    "_np_cumsum": [
        Sample([(2, 3, 4)], {"axis": 1}, reference=_cumsum, grad2=True, name="middle"),
        Sample([(2, 3, 4)], {"axis": -1}, reference=_cumsum, grad2=True, name="last"),
        Sample([(2, 3)], {}, reference=_cumsum, grad2=True, name="flattened"),
        Sample([(5,)], {"axis": 0, "reverse": True}, reference=_cumsum, name="reverse"),
        Sample([(3, 700)], {"axis": 0}, reference=_cumsum, grad=False, name="wide"),
        Sample([(0, 3)], {"axis": 0}, reference=_cumsum, name="empty"),
        Sample(
            [_WHOLE],
            {"axis": 0, "dtype": "int64"},
            reference=_cumsum,
            grad=False,
            name="int32-to-int64",
        ),
        Sample([_WHOLE.astype("uint8")], {"axis": 1}, reference=_cumsum, grad=False, name="uint8"),
    ],
    "sum": _samples(np.sum)
    + [
        Sample(
            [_WHOLE],
            {"axis": 0},
            reference=_reduced(np.sum),
            grad=False,
            dtypes=("int32",),
            name="integers",
        ),
        Sample([(3, 0)], {"axis": 1}, reference=_reduced(np.sum), grad=False, name="of-nothing"),
        Sample([(0,)], {}, reference=_reduced(np.sum), grad=False, name="of-nothing-at-all"),
    ],
    "mean": _samples(np.mean)
    + [
        Sample(
            [np.array([[-7, 7, -8], [0, 5, 1]], dtype="int32")],
            {"axis": 1},
            reference=lambda x, **p: np.array([-2, 2]),
            grad=False,
            dtypes=("int32",),
            name="integers",
        ),
        Sample(
            [(2, 0)],
            {"axis": 1},
            reference=lambda x, **p: np.full(2, np.nan),
            grad=False,
            name="of-nothing",
        ),
    ],
    "prod": _samples(np.prod, (0.5, 1.5), large=False)
    + [
        Sample(
            [_WHOLE],
            {"axis": 1},
            reference=_reduced(np.prod),
            grad=False,
            dtypes=("int32",),
            name="integers",
        )
    ],
    "max": _samples(np.max, grad2=False)
    + [
        Sample(
            [_WHOLE],
            {"axis": 1},
            reference=_reduced(np.max),
            grad=False,
            dtypes=("int32",),
            name="integers",
        ),
        Sample(
            [_HOLES],
            {"axis": 0},
            reference=_reduced(np.max),
            grad=False,
            dtypes=("float64",),
            name="nan",
        ),
    ],
    "min": _samples(np.min, grad2=False)
    + [
        Sample(
            [_WHOLE],
            {"axis": 0},
            reference=_reduced(np.min),
            grad=False,
            dtypes=("int32",),
            name="integers",
        ),
        Sample(
            [_HOLES],
            {"axis": 1},
            reference=_reduced(np.min),
            grad=False,
            dtypes=("float64",),
            name="nan",
        ),
    ],
    "nansum": _samples(np.nansum, large=False)
    + [
        Sample(
            [_HOLES],
            {"axis": 1},
            reference=_reduced(np.nansum),
            grad=False,
            dtypes=("float64",),
            name="nan",
        )
    ],
    "nanprod": _samples(np.nanprod, (0.5, 1.5), grad2=False, large=False)
    + [
        Sample(
            [_HOLES],
            {"axis": 1},
            reference=_reduced(np.nanprod),
            grad=False,
            dtypes=("float64",),
            name="nan",
        )
    ],
    "norm": [
        Sample(
            [shape],
            dict(params, ord=order),
            reference=_norm,
            grad2=order == 2,
            name=f"ord{order}-{i}",
        )
        for order in (1, 2)
        for i, (shape, params) in enumerate(
            [
                ((2, 3, 4), {}),
                ((2, 3, 4), {"axis": 1}),
                ((2, 3, 4), {"axis": (0, 2), "keepdims": True}),
            ]
        )
    ]
    + [
        Sample([(0, 3)], {"axis": 0}, reference=_norm, grad=False, name="empty"),
        Sample(
            [(3, 30000)],
            {"axis": 1},
            reference=_norm,
            grad=False,
            dtypes=("float32",),
            name="large",
        ),
    ],
    "broadcast_to": [
        Sample(
            [(1, 3)],
            {"shape": (4, 3)},
            reference=lambda x, shape: np.broadcast_to(x, shape),
            grad2=True,
        ),
        Sample(
            [(2, 1)],
            {"shape": (0, 5)},
            reference=lambda x, shape: np.broadcast_to(x, (2, 5)),
            grad2=True,
            name="keep",
        ),
        Sample(
            [(1, 3, 1)],
            {"shape": (2, 3, 600)},
            reference=lambda x, shape: np.broadcast_to(x, shape),
            name="inner",
        ),
    ],
    "broadcast_axis": [
        Sample(
            [(1, 3, 1)], {"axis": (0, 2), "size": (2, 4)}, reference=_broadcast_axis, grad2=True
        ),
        Sample([(3, 1)], {"axis": 1, "size": 2}, reference=_broadcast_axis),
        Sample(
            [(3, 1)],
            {"axis": 1, "size": 0},
            reference=_broadcast_axis,
            grad=False,
            name="to-nothing",
        ),
    ],
    "broadcast_like": [
        Sample([(1, 3), (4, 3)], reference=_broadcast_like, grad=[0], grad2=True),
        Sample(
            [(1, 3, 1), (5, 7)],
            {"lhs_axes": (0, 2), "rhs_axes": (1, 0)},
            reference=_broadcast_like,
            grad=[0],
            name="axes",
        ),
    ],
}
CLOSE = np.array([1, -2e3, np.inf, 0, 3])
SAMPLES["_contrib_allclose"] = [
    Sample(
        [a, b],
        params,
        lambda a, b, equal_nan=True, **p: np.uint8(np.allclose(a, b, equal_nan=equal_nan, **p)),
        grad=False,
        dtypes=("float64",),
        name=name,
    )
    for name, a, b, params in [
        ("", CLOSE, CLOSE * (1 + 9e-6), {}),
        ("apart", CLOSE, CLOSE * (1 + 2e-5), {}),
        ("far", CLOSE, CLOSE + 0.3, {"rtol": 0, "atol": 0.5}),
        ("infinite", CLOSE, np.array([1, -2e3, 5, 0, 3]), {}),
        ("against infinity", np.array([1, -2e3, 5, 0, 3]), CLOSE, {}),
        ("signs", CLOSE, np.array([1, -2e3, -np.inf, 0, 3]), {}),
        ("nan", np.array([1, np.nan]), np.array([1, np.nan]), {}),
        ("nan apart", np.array([1, np.nan]), np.array([1, np.nan]), {"equal_nan": False}),
        ("one nan", np.array([1, np.nan]), np.array([1, 2.0]), {}),
        ("empty", np.zeros((0, 2)), np.zeros((0, 2)), {}),
    ]
]
SAMPLES["moments"] = [
    Sample(
        [shape],
        params,
        reference=lambda x, axes, keepdims=False: (
            x.mean(axes, keepdims=keepdims),
            x.var(axes, keepdims=keepdims),
        ),
        name=name,
    )
    for name, shape, params in [
        ("all", (3, 4), {"axes": (0, 1), "keepdims": True}),
        ("rows", (3, 4, 5), {"axes": (1, 2)}),
        ("first", (6, 2), {"axes": (0,)}),
        ("negative", (2, 3, 4), {"axes": (-1,), "keepdims": True}),
        ("alone", (3, 1), {"axes": (1,)}),
    ]
]
