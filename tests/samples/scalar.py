"""Samples of the scalar family."""

import numpy as np

from samples.base import Sample


def _with(function):
    return lambda x, scalar=1, **params: function(x, scalar)


_ROWS = [
    ("_plus_scalar", lambda x, s: x + s, 1.5, None, True, True),
    ("_minus_scalar", lambda x, s: x - s, 1.5, None, True, True),
    ("_rminus_scalar", lambda x, s: s - x, 1.5, None, True, True),
    ("_mul_scalar", lambda x, s: x * s, -2.5, None, True, True),
    ("_div_scalar", lambda x, s: x / s, 4, None, True, True),
    ("_rdiv_scalar", lambda x, s: s / x, 3, (0.5, 2), True, True),
    ("_mod_scalar", lambda x, s: np.mod(x, s), 0.75, (-3, 3), False, False),
    ("_rmod_scalar", lambda x, s: np.mod(s, x), 5.3, (0.7, 0.75), False, False),
    ("_power_scalar", np.power, 2.5, (0.5, 2), True, True),
    ("_rpower_scalar", lambda x, s: np.power(s, x), 1.7, None, True, True),
    ("_maximum_scalar", np.maximum, 0.2, None, True, False),
    ("_minimum_scalar", np.minimum, 0.2, None, True, False),
    ("_hypot_scalar", np.hypot, 1.2, (0.5, 2), True, True),
    ("_equal_scalar", np.equal, 0.5, None, False, False),
    ("_not_equal_scalar", np.not_equal, 0.5, None, False, False),
    ("_greater_scalar", np.greater, 0.1, None, False, False),
    ("_greater_equal_scalar", np.greater_equal, 0.1, None, False, False),
    ("_lesser_scalar", np.less, 0.1, None, False, False),
    ("_lesser_equal_scalar", np.less_equal, 0.1, None, False, False),
    ("_logical_and_scalar", lambda x, s: np.logical_and(x, s), 1, None, False, False),
    ("_logical_or_scalar", lambda x, s: np.logical_or(x, s), 0, None, False, False),
    ("_logical_xor_scalar", lambda x, s: np.logical_xor(x, bool(s)), 1, None, False, False),
]
_INTS = np.array([-7, 7, -8, 0, 5], dtype="int32")

SAMPLES = {
    name: [
        Sample(
            [(3, 4)],
            {"scalar": number},
            reference=_with(function),
            ranges=[bounds] if bounds else None,
            grad=grad,
            grad2=grad2,
            dtypes=("float32", "float64") if "mod" in name else ("float32", "float64", "float16"),
            rtol=5e-5,
            atol=1e-5,
        ),
        Sample([(2, 0)], {"scalar": number}, reference=_with(function), grad=False, name="empty"),
        Sample(
            [(1, 1203)],
            {"scalar": number},
            reference=_with(function),
            ranges=[bounds] if bounds else None,
            grad=False,
            dtypes=("float32",) if "mod" in name else ("float32", "float16"),
            rtol=5e-5,
            atol=1e-5,
            name="blocks",
        ),
    ]
    for name, function, number, bounds, grad, grad2 in _ROWS
}
_trunc = lambda x, s: np.trunc(x / s)
for _name, _function, _number in (
    ("_plus_scalar", np.add, 3),
    ("_rminus_scalar", lambda x, s: s - x, 3),
    ("_mul_scalar", np.multiply, -2),
    ("_div_scalar", _trunc, 2),
    ("_mod_scalar", np.mod, 3),
    ("_mod_scalar", np.mod, -3),
    ("_power_scalar", np.power, 2),
    ("_power_scalar", np.power, 3),
    ("_greater_scalar", np.greater, 0),
):
    SAMPLES[_name].append(
        Sample(
            [_INTS],
            {"scalar": _number},
            reference=_with(_function),
            grad=False,
            dtypes=("int32",),
            name=f"integers{len(SAMPLES[_name])}",
        )
    )
SAMPLES["_power_scalar"] += [
    Sample(
        [(3, 4)],
        {"scalar": p},
        reference=_with(np.power),
        grad2=p > 1,
        ranges=[(0.5, 2)],
        name=f"power{p}",
    )
    for p in (2, 3, 1, 0, -1, 0.5)
]


def _smooth_l1(x, scalar=1.0, **params):
    s = scalar * scalar
    return np.where(np.abs(x) < 1 / s, 0.5 * s * x * x, np.abs(x) - 0.5 / s)


SAMPLES["smooth_l1"] = [
    Sample([(4, 5)], {"scalar": 1.0}, reference=_smooth_l1, ranges=[(-3, 3)], grad2=True),
    Sample([(4, 5)], {"scalar": 2.0}, reference=_smooth_l1, ranges=[(-3, 3)]),
]
SAMPLES["_contrib_gradientmultiplier"] = [
    Sample([(2, 3)], {"scalar": 3.0}, reference=lambda x, **p: x, grad=False),
    Sample([(2, 3)], {"scalar": 1.0}, reference=lambda x, **p: x, grad2=True, name="one"),
]
