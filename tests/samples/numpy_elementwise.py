"""Samples of NumPy's elementwise ops."""

import numpy as np

from samples.base import Sample

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int32", "int64")
_SHAPES = [
    ((3, 4), (3, 4)),
    ((4, 3, 5), (1, 3, 1)),
    ((2, 1, 3), (4, 1)),
    ((0, 3), (1, 3)),
    ((), (2,)),
]
_SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -2.0, 1e-40, 3e38])


def _floats(name, function, ranges, grad, second, special):
    plain = lambda x, y, **params: function(x, y)
    rows = [
        Sample(
            [a, b],
            reference=plain,
            ranges=ranges,
            grad=grad if np.prod(a) else False,
            grad2=second,
            dtypes=FLOATS,
            name=f"shapes{i}",
        )
        for i, (a, b) in enumerate(_SHAPES)
    ]
    rows.append(Sample([(2, 601)] * 2, reference=plain, ranges=ranges, grad=False, name="blocks"))
    for dtype in ("float32", "float64"):
        x = _SPECIAL.astype(dtype)
        rows.append(
            Sample(
                [x[:, None], np.array(special, dtype)],
                reference=lambda x, y, dtype=dtype: _quietly(function, x, y, dtype),
                grad=False,
                dtypes=(dtype,),
                name=f"special-{dtype}",
            )
        )
    return {name: rows}


def _quietly(function, x, y, dtype):
    with np.errstate(all="ignore"):
        return function(x, y).astype(dtype)


def _ldexp(x, y):
    """x * 2**y without overflow of the power."""
    y = np.clip(y, -5000, 5000)
    whole = np.where(np.isnan(y), 0, np.floor(y))
    return np.ldexp(x * np.exp2(y - whole), whole.astype(int))


def _scalars(name, function, numbers, ranges=None, grad=True, second=True):
    return {
        name: [
            Sample(
                [shape],
                {"scalar": number},
                reference=lambda x, scalar: function(x, scalar),
                ranges=[ranges],
                grad=grad if np.prod(shape) else False,
                grad2=second,
                dtypes=FLOATS,
                name=f"{number}-{shape}",
            )
            for number in numbers
            for shape in ((3, 4), (2, 0), (1203,))
        ]
    }


def _integers(name, function, numbers, booleans):
    """Samples of an op on integers, and of its form with a scalar."""
    small = np.array([0, 1, 2, 4, 6, 9, 10, 12, 127])
    rows, scalars = [], []
    for dtype in INTEGERS + (("bool",) if booleans else ()):
        x = small.astype(dtype)
        if np.dtype(dtype).kind == "i":
            x = np.concatenate([x, -x])
        for a, b in ((x[:, None], x), (x[:0], x[:1]), (x, x[::-1].copy())):
            rows.append(
                Sample(
                    [a, b],
                    reference=lambda x, y: function(x, y),
                    grad=False,
                    dtypes=(dtype,),
                    name=f"{dtype}-{b.size}-{a.ndim}-{a.size}",
                )
            )
        for number in numbers:
            if dtype != "bool" and not (dtype == "uint8" and number < 0):
                scalars.append(
                    Sample(
                        [x],
                        {"scalar": number},
                        reference=lambda x, scalar: function(x, x.dtype.type(scalar)),
                        grad=False,
                        dtypes=(dtype,),
                        name=f"{dtype}-{number}",
                    )
                )
    wide = np.array([2**62 + 1, -(2**60) - 7, 3], "int64")
    rows.append(
        Sample(
            [wide, np.array([1, 2**60 + 3, -1], "int64")],
            reference=lambda x, y: function(x, y),
            grad=False,
            dtypes=("int64",),
            name="wide",
        )
    )
    return {name: rows, name + "_scalar": scalars}


def _not_references():
    rows = []
    for dtype in INTEGERS + ("bool",):
        for shape in ((2, 3), (0,), (700,)):
            x = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)
            rows.append(
                Sample(
                    [x],
                    reference=np.invert,
                    grad=False,
                    dtypes=(dtype,),
                    name=f"{dtype}-{shape}",
                )
            )
    return {"_bitwise_not": rows}


_AWAY = (0.3, 2)  # away from zero, where a derivative jumps
SAMPLES = {
    **_floats("_arctan2", np.arctan2, [_AWAY, (-2, 2)], True, True, _SPECIAL),
    **_scalars("_arctan2_scalar", np.arctan2, [1.5, -0.5]),
    **_scalars("_rarctan2_scalar", lambda x, s: np.arctan2(s, x), [1.5, -0.5]),
    **_floats("_copysign", np.copysign, [_AWAY, (-2, -0.3)], True, True, _SPECIAL),
    **_scalars("_copysign_scalar", np.copysign, [2, -0.0], (-2, -0.3)),
    **_scalars("_rcopysign_scalar", lambda x, s: np.copysign(s, x), [2, -0.5], _AWAY),
    **_floats("_ldexp", _ldexp, [None, (-3, 3)], True, True, [0, -1, 0.5, 3, -2000, 2000, 150]),
    **_scalars("_ldexp_scalar", lambda x, s: x * 2.0**s, [3, -1.5]),
    **_scalars("_rldexp_scalar", lambda x, s: s * 2.0**x, [3, -1.5], (-3, 3)),
    **_integers("_lcm", np.lcm, [6, -4, 0], False),
    **_integers("_bitwise_and", np.bitwise_and, [6, -4, 0], True),
    **_integers("_bitwise_or", np.bitwise_or, [6, -4, 0], True),
    **_integers("_bitwise_xor", np.bitwise_xor, [6, -4, 0], True),
    **_not_references(),
    "_rint_even": [
        Sample([(2, 3)], reference=np.rint, grad=False, name="random"),
        Sample([(np.arange(-15, 16) / 2)], reference=np.rint, grad=False, name="halves"),
        Sample([np.arange(5, dtype="int32")], reference=np.rint, grad=False, name="integers"),
    ],
}
