"""Samples of the elementwise family."""

import math

import numpy as np

from samples.base import Sample

FLOATS = ("float32", "float64", "float16")
INTS = ("int32", "int64")
_erf = np.vectorize(math.erf, otypes=[float])
_gamma = np.vectorize(math.gamma, otypes=[float])
_lgamma = np.vectorize(math.lgamma, otypes=[float])


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _softrelu(x):
    return np.logaddexp(0, x)


def _mod(a, b):
    return np.where(b == 0, 0, np.mod(a, np.where(b == 0, 1, b)))


def _safe(function):
    """Wraps `function` to ignore parameters."""
    return lambda *arrays, **params: function(*arrays)


# name, reference, ranges of both operands, has a gradient, has a second gradient
_BINARY = [
    ("add", np.add, None, True, True),
    ("sub", np.subtract, None, True, True),
    ("mul", np.multiply, None, True, True),
    ("div", np.divide, [(-1, 1), (0.5, 2)], True, True),
    ("mod", _mod, [(-3, 3), (0.7, 0.9)], [0], False),
    ("power", np.power, [(0.5, 2), (-2, 2)], True, True),
    ("maximum", np.maximum, None, True, False),
    ("minimum", np.minimum, None, True, False),
    ("hypot", np.hypot, [(0.5, 1), (0.5, 1)], True, True),
    ("equal", np.equal, None, False, False),
    ("not_equal", np.not_equal, None, False, False),
    ("greater", np.greater, None, False, False),
    ("greater_equal", np.greater_equal, None, False, False),
    ("lesser", np.less, None, False, False),
    ("lesser_equal", np.less_equal, None, False, False),
    ("logical_and", np.logical_and, None, False, False),
    ("logical_or", np.logical_or, None, False, False),
    ("logical_xor", np.logical_xor, None, False, False),
]
_SAME = {"add": "elemwise_add", "sub": "elemwise_sub", "mul": "elemwise_mul", "div": "elemwise_div"}
_SHAPES = [
    ((2, 3), (2, 3)),
    ((4, 3, 5), (1, 3, 1)),
    ((3, 1), (1, 4)),
    ((5,), (2, 5)),
    ((2, 1, 3), (4, 1)),
    ((0, 3), (1, 3)),
    ((2, 3), (1,)),
    ((2, 700), (2, 1)),
    ((600,), (1,)),
    ((1, 1), (1, 1)),
    ((1,), (2, 3, 4)),
]
_A = np.array([-7, 7, -8, 0, 5, 3, 1, -2], dtype="int32")
_B = np.array([2, -2, 3, 5, 2, 3, -1, 4], dtype="int32")


def _binary_samples():
    table = {}
    for name, function, ranges, grad, grad2 in _BINARY:
        same = _SAME.get(name, "_" + name)
        reference = _safe(function)
        table[same] = [
            Sample(
                [(3, 4), (3, 4)],
                reference=reference,
                grad=grad,
                grad2=grad2,
                ranges=ranges,
                name="same",
            ),
            Sample([(0, 2), (0, 2)], reference=reference, grad=False, ranges=ranges, name="empty"),
            Sample(
                [(2, 601), (2, 601)],
                reference=reference,
                grad=False,
                ranges=ranges,
                dtypes=("float32", "float16"),
                name="blocks",
            ),
        ]
        table["broadcast_" + name] = [
            Sample(
                [a, b],
                reference=reference,
                grad=grad,
                grad2=grad2 and i in (1, 2),
                ranges=ranges,
                name=f"shapes{i}",
                rtol=1e-4 if name == "power" else None,
            )
            for i, (a, b) in enumerate(_SHAPES)
        ]
        if name not in ("div", "power", "hypot"):
            table["broadcast_" + name].append(
                Sample(
                    [_A, _B], reference=reference, grad=False, dtypes=("int32",), name="integers"
                )
            )
            wide = _A.astype("int64").reshape(8, 1)
            table["broadcast_" + name].append(
                Sample(
                    [wide, _B.astype("int64")],
                    reference=reference,
                    grad=False,
                    dtypes=("int64",),
                    name="int64",
                )
            )
            if name not in ("mod", "sub"):
                small = np.array([1, 2, 3], dtype="uint8")
                table["broadcast_" + name].append(
                    Sample(
                        [small, small[::-1].copy()],
                        reference=reference,
                        grad=False,
                        dtypes=("uint8",),
                        name="uint8",
                    )
                )
    quotient = lambda a, b: np.trunc(a / b)
    table["broadcast_div"].append(
        Sample([_A, _B], reference=quotient, grad=False, dtypes=("int32",), name="integers")
    )
    table["broadcast_div"].append(
        Sample(
            [_A, np.zeros(8, "int32")],
            reference=lambda a, b: 0 * a,
            grad=False,
            dtypes=("int32",),
            name="by-zero",
        )
    )
    table["broadcast_mod"].append(
        Sample(
            [_A, np.zeros(8, "int32")],
            reference=lambda a, b: 0 * a,
            grad=False,
            dtypes=("int32",),
            name="by-zero",
        )
    )
    table["broadcast_power"].append(
        Sample([_A, np.abs(_B)], reference=np.power, grad=False, dtypes=("int32",), name="integers")
    )
    table["_grad_add"] = [Sample([(3, 2), (3, 2)], reference=np.add, grad2=True)]
    for name, function in (
        ("relu", lambda g, y: np.where(y > 0, g, 0)),
        ("sigmoid", lambda g, y: g * y * (1 - y)),
        ("tanh", lambda g, y: g * (1 - y * y)),
    ):
        table["_backward_" + name] = [
            Sample(
                [(3, 5), (3, 5)],
                reference=function,
                grad=[0] if name == "relu" else True,
                grad2=True,
                rtol=1e-4,
            )
        ]
    return table


# name, reference, range, has a gradient, has a second gradient
_UNARY = [
    ("_copy", lambda x: x, None, True, True),
    ("BlockGrad", lambda x: x, None, False, False),
    ("make_loss", lambda x: x, None, False, False),
    ("abs", np.abs, None, True, True),
    ("sign", np.sign, None, False, False),
    ("negative", np.negative, None, True, True),
    ("round", lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), (-5, 5), False, False),
    ("rint", lambda x: np.ceil(x - 0.5), (-5, 5), False, False),
    ("ceil", np.ceil, (-5, 5), False, False),
    ("floor", np.floor, (-5, 5), False, False),
    ("trunc", np.trunc, (-5, 5), False, False),
    ("fix", np.fix, (-5, 5), False, False),
    (
        "_contrib_round_ste",
        lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
        (-5, 5),
        False,
        False,
    ),
    ("_contrib_sign_ste", np.sign, None, False, False),
    ("square", np.square, None, True, True),
    ("sqrt", np.sqrt, (0.1, 4), True, True),
    ("rsqrt", lambda x: 1 / np.sqrt(x), (0.3, 4), True, True),
    ("cbrt", np.cbrt, (0.1, 4), True, True),
    ("rcbrt", lambda x: 1 / np.cbrt(x), (0.3, 4), True, True),
    ("reciprocal", lambda x: 1 / x, (0.5, 2), True, True),
    ("exp", np.exp, (-3, 3), True, True),
    ("expm1", np.expm1, (-3, 3), True, True),
    ("log", np.log, (0.1, 4), True, True),
    ("log2", np.log2, (0.1, 4), True, True),
    ("log10", np.log10, (0.1, 4), True, True),
    ("log1p", np.log1p, (-0.5, 4), True, True),
    ("sin", np.sin, (-4, 4), True, True),
    ("cos", np.cos, (-4, 4), True, True),
    ("tan", np.tan, (-1, 1), True, True),
    ("arcsin", np.arcsin, (-0.9, 0.9), True, True),
    ("arccos", np.arccos, (-0.9, 0.9), True, True),
    ("arctan", np.arctan, (-3, 3), True, True),
    ("sinh", np.sinh, (-2, 2), True, True),
    ("cosh", np.cosh, (-2, 2), True, True),
    ("tanh", np.tanh, (-3, 3), True, True),
    ("arcsinh", np.arcsinh, (-3, 3), True, True),
    ("arccosh", np.arccosh, (1.2, 4), True, True),
    ("arctanh", np.arctanh, (-0.9, 0.9), True, True),
    ("degrees", np.degrees, None, True, True),
    ("radians", np.radians, (-90, 90), True, True),
    ("erf", _erf, (-3, 3), True, True),
    ("erfinv", None, (-0.9, 0.9), True, True),
    ("gamma", _gamma, (0.5, 4), True, False),
    ("gammaln", _lgamma, (0.5, 4), True, False),
    ("_digamma", None, (0.5, 4), True, False),
    ("_trigamma", None, (0.5, 4), False, False),
    ("relu", lambda x: np.maximum(x, 0), None, True, True),
    ("sigmoid", _sigmoid, (-4, 4), True, True),
    ("log_sigmoid", lambda x: -_softrelu(-x), (-4, 4), True, True),
    ("mish", lambda x: x * np.tanh(_softrelu(x)), (-3, 3), True, True),
    ("softsign", lambda x: x / (1 + np.abs(x)), (-3, 3), True, True),
    ("_softrelu", _softrelu, (-4, 4), True, True),
    ("logical_not", np.logical_not, None, False, False),
    ("_contrib_isnan", np.isnan, None, False, False),
    ("_contrib_isinf", np.isinf, None, False, False),
    ("_contrib_isfinite", np.isfinite, None, False, False),
]
_WHOLE = np.array([[-3, 0, 2], [5, -1, 4]], dtype="int32")
_INTEGER = {
    "abs": np.abs,
    "sign": np.sign,
    "negative": np.negative,
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "floor": np.floor,
    "round": lambda x: x,
    "logical_not": np.logical_not,
    "_copy": lambda x: x,
}
_SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, 1.5, -2.0], dtype="float32")


def _unary_samples():
    table = {}
    for name, function, bounds, grad, grad2 in _UNARY:
        reference = _safe(function) if function else None
        ranges = [bounds] if bounds else None
        table[name] = [
            Sample([(3, 5)], reference=reference, grad=grad, grad2=grad2, ranges=ranges),
            Sample([(0, 4)], reference=reference, grad=False, ranges=ranges, name="empty"),
            Sample(
                [(1, 1203)],
                reference=reference,
                grad=False,
                ranges=ranges,
                dtypes=("float32", "float16"),
                name="blocks",
            ),
        ]
        if name in _INTEGER:
            table[name].append(
                Sample(
                    [_WHOLE],
                    reference=_safe(_INTEGER[name]),
                    grad=False,
                    dtypes=("int32",),
                    name="integers",
                )
            )
        if name.startswith("_contrib_is"):
            table[name].append(Sample([_SPECIAL], reference=reference, grad=False, name="special"))
    table["erfinv"].append(
        Sample(
            [_erf(np.array([-2.0, -0.5, 0.1, 1.7]))],
            reference=lambda x: np.array([-2.0, -0.5, 0.1, 1.7]),
            grad=False,
            dtypes=("float64",),
            rtol=1e-8,
            name="inverse",
        )
    )
    table["_digamma"].append(
        Sample(
            [np.array([1.0, 0.5, -0.5, 10.0])],
            grad=False,
            dtypes=("float64",),
            name="known",
            reference=lambda x: np.array(
                [-0.5772156649015329, -1.9635100260214235, 0.03648997397857652, 2.2517525890667211]
            ),
        )
    )
    table["_trigamma"].append(
        Sample(
            [np.array([1.0, 0.5, 10.0])],
            grad=False,
            dtypes=("float64",),
            name="known",
            reference=lambda x: np.array([np.pi**2 / 6, np.pi**2 / 2, 0.10516633568168575]),
        )
    )
    large = np.array([1e5, -3e4, 20000.5, np.pi * 1000], dtype="float32")
    for name in ("sin", "cos"):
        table[name].append(
            Sample(
                [large],
                reference=_safe(getattr(np, name)),
                grad=False,
                dtypes=("float32",),
                name="large",
            )
        )
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997], dtype="float32")
    for name in ("round", "rint"):
        table[name].append(
            Sample(
                [halves],
                grad=False,
                name="halves",
                reference=lambda x, n=name: np.array(
                    [-3, -2, -1, 1, 2, 3, 0] if n == "round" else [-3, -2, -1, 0, 1, 2, 0]
                ),
            )
        )
    return table


def _leaky(x, gamma=None, act_type="leaky", slope=0.25, **params):
    below = {
        "leaky": lambda: slope * x,
        "elu": lambda: slope * np.expm1(np.minimum(x, 0)),
        "selu": lambda: 1.6732632423543772 * np.expm1(np.minimum(x, 0)),
        "prelu": lambda: x * gamma.reshape(gamma.shape + (1,) * (x.ndim - 2)),
        "rrelu": lambda: (
            x * (params.get("lower_bound", 0.125) + params.get("upper_bound", 0.334)) / 2
        ),
    }
    if act_type == "gelu":
        return x * _normal(x)
    return np.where(x > 0, x, below[act_type]()) * (1.0507009873554805 if act_type == "selu" else 1)


def _normal(x):
    return 0.5 * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _slope(function, x, step=1e-4):
    """The derivative, to some 1e-12 by Richardson's extrapolation."""
    near = (function(x + step) - function(x - step)) / (2 * step)
    far = (function(x + 2 * step) - function(x - 2 * step)) / (4 * step)
    return (4 * near - far) / 3


_ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "softrelu": _softrelu,
    "softsign": lambda x: x / (1 + np.abs(x)),
}

SAMPLES = {
    **_binary_samples(),
    **_unary_samples(),
    "add_n": [
        Sample([(2, 3)] * 4, reference=lambda *a, **p: sum(a), grad2=True),
        Sample([(700,)], reference=lambda a, **p: a),
        Sample(
            [(2, 700)] * 3,
            {"num_args": 3},
            reference=lambda *a, **p: sum(a),
            grad=False,
            name="blocks",
        ),
        Sample(
            [_A, _B, _A],
            reference=lambda *a, **p: sum(a),
            grad=False,
            dtypes=("int32",),
            name="integers",
        ),
    ],
    "silu": [Sample([(4, 5)], {}, lambda x: x / (1 + np.exp(-x)), ranges=[(-6, 6)], grad2=True)],
    "_gelu_tanh": [Sample([(4, 5)], {}, _gelu_tanh, ranges=[(-6, 6)], grad2=True)],
    "gelu": [
        Sample([(4, 5)], {}, lambda x: x * _normal(x), ranges=[(-4, 4)]),
        Sample(
            [(4, 5)],
            {"approximate": "tanh"},
            lambda x, approximate: _gelu_tanh(x),
            ranges=[(-4, 4)],
            name="tanh",
        ),
    ],
    "_contrib_gated": [
        Sample(
            [(4, 5), (4, 5)],
            {"act": name},
            lambda gate, up, act, function=function: function(gate) * up,
            ranges=[(0.2, 4) if name == "relu" else (-4, 4), None],
            name=name,
        )
        for name, function in (
            ("silu", lambda x: x / (1 + np.exp(-x))),
            ("gelu", lambda x: x * _normal(x)),
            ("gelu_tanh", _gelu_tanh),
            ("gelu_quick", lambda x: x / (1 + np.exp(-1.702 * x))),
            ("relu", lambda x: np.maximum(x, 0)),
            ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        )
    ],
    "_backward_silu": [
        Sample(
            [(4, 5), (4, 5)],
            {},
            lambda g, x: g * _slope(lambda x: x / (1 + np.exp(-x)), x),
            ranges=[None, (-6, 6)],
        )
    ],
    "_backward_gelu_tanh": [
        Sample(
            [(4, 5), (4, 5)],
            {},
            lambda g, x: g * _slope(_gelu_tanh, x),
            ranges=[None, (-6, 6)],
        )
    ],
    "hard_sigmoid": [
        Sample(
            [(4, 5)],
            reference=lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
            ranges=[(-4, 4)],
            grad2=True,
        ),
        Sample(
            [(4, 5)],
            {"alpha": 0.5, "beta": 0.1},
            reference=lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
            ranges=[(-4, 4)],
        ),
    ],
    "clip": [
        Sample(
            [(4, 5)],
            {"a_min": -0.4, "a_max": 0.6},
            reference=lambda x, a_min, a_max: np.clip(x, a_min, a_max),
            grad2=True,
        ),
        Sample(
            [_WHOLE],
            {"a_min": -1, "a_max": 3},
            reference=lambda x, a_min, a_max: np.clip(x, a_min, a_max),
            grad=False,
            dtypes=("int32",),
            name="integers",
        ),
    ],
    "_contrib_quadratic": [
        Sample(
            [(3, 4)],
            {"a": 2.0, "b": -1.0, "c": 0.5},
            reference=lambda x, a, b, c: a * x * x + b * x + c,
            grad2=True,
        )
    ],
    "_contrib_div_sqrt_dim": [Sample([(3, 4)], reference=lambda x: x / 2, grad2=True)],
    "Activation": [
        Sample(
            [(3, 4)],
            {"act_type": name},
            reference=lambda x, act_type: _ACTIVATIONS[act_type](x),
            ranges=[(-3, 3)],
            grad2=True,
            name=name,
        )
        for name in _ACTIVATIONS
    ],
    "LeakyReLU": [
        Sample(
            [(3, 4)],
            {"act_type": name, "slope": 0.3},
            reference=_leaky,
            ranges=[(-2, 2)],
            grad2=True,
            name=name,
        )
        for name in ("leaky", "elu", "selu", "gelu")
    ]
    + [
        Sample(
            [(2, 3, 4), (3,)], {"act_type": "prelu"}, reference=_leaky, grad2=True, name="prelu"
        ),
        Sample([(2, 3), (3,)], {"act_type": "prelu"}, reference=_leaky, name="prelu2d"),
        Sample([(2, 3, 2), (1,)], {"act_type": "prelu"}, reference=_leaky, name="prelu-shared"),
        Sample([(2, 3, 2), (2, 3)], {"act_type": "prelu"}, reference=_leaky, name="prelu-rows"),
        Sample([(2, 3), (2, 1)], {"act_type": "prelu"}, reference=_leaky, name="prelu-a-row"),
        Sample([(3, 4)], {"act_type": "rrelu"}, reference=_leaky, grad=True, name="rrelu"),
        Sample([(3, 4)], {"act_type": "rrelu"}, train=True, grad=True, name="rrelu-train"),
    ],
    "_backward_LeakyReLU": [
        Sample(
            [(3, 4), (3, 4)],
            {"act_type": name, "slope": 0.3},
            ranges=[(-1, 1), (-2, 2)],
            grad=[0] if name == "leaky" else True,
            grad2=True,
            name=name,
        )
        for name in ("leaky", "elu", "selu", "gelu")
    ],
}
# MXNet's gradient is not the derivative of the value, so finite differences cannot check it.
for _sample in SAMPLES["_backward_LeakyReLU"]:
    _sample.grad2 = False
