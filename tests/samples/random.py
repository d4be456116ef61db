"""Samples of the random family.

Values are checked by properties of every draw, or with degenerate distributions.
"""

import numpy as np
from scipy import special, stats

from samples.base import Sample

ONE = ("float32",)
_HALF = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], dtype="float32")


def _fixed(value):
    """Reference of a distribution with a single value."""
    return lambda shape=1, **params: np.full(shape, value)


_DRAWS = {
    "uniform": ({"low": -2.0, "high": 3.0}, {"low": 2.0, "high": 2.0}, 2.0),
    "normal": ({"loc": 1.0, "scale": 2.0}, {"loc": 1.5, "scale": 0.0}, 1.5),
    "gamma": ({"alpha": 0.7, "beta": 2.0}, {"alpha": 2.0, "beta": 0.0}, 0.0),
    "exponential": ({"lam": 3.0}, {"lam": 1e30}, 0.0),
    "poisson": ({"lam": 15.0}, {"lam": 0.0}, 0.0),
    "negative_binomial": ({"k": 3, "p": 0.4}, {"k": 3, "p": 1.0}, 0.0),
    "generalized_negative_binomial": ({"mu": 3.0, "alpha": 0.3}, {"mu": 0.0, "alpha": 0.3}, 0.0),
}
_ARRAYS = {
    "uniform": [np.array([1.0, 2.0]), np.array([1.0, 2.0])],
    "normal": [np.array([1.0, -2.0]), np.zeros(2)],
    "gamma": [np.array([1.0, 2.0]), np.zeros(2)],
    "exponential": [np.array([1e30, 1e31])],
    "poisson": [np.zeros(2)],
    "negative_binomial": [np.array([2.0, 3.0]), np.ones(2)],
    "generalized_negative_binomial": [np.zeros(2), np.ones(2)],
}
_MEANS = {"uniform": [1.0, 2.0], "normal": [1.0, -2.0]}

SAMPLES = {}
for _name, (_params, _still, _value) in _DRAWS.items():
    SAMPLES["_random_" + _name] = [
        Sample([], dict(_still, shape=(3, 5)), reference=_fixed(_value), dtypes=ONE, atol=1e-20),
        Sample(
            [],
            dict(_still, shape=(0, 5), dtype="float16"),
            reference=_fixed(_value),
            dtypes=ONE,
            name="empty",
        ),
        Sample([], dict(_params, shape=(700,), dtype="float64"), dtypes=ONE, name="draws"),
    ]
    SAMPLES[f"_random_{_name}_like"] = [
        Sample(
            [(3, 5)],
            _still,
            reference=lambda x, value=_value, **p: np.full(x.shape, value),
            grad=False,
            atol=1e-20,
        ),
        Sample([(30, 50)], _params, grad=False, name="draws"),
    ]
    _arrays = [a.astype("float32") for a in _ARRAYS[_name]]
    _mean = _MEANS.get(_name, [0.0, 0.0])
    SAMPLES["_sample_" + _name] = [
        Sample(
            _arrays,
            {"shape": (3,)},
            reference=lambda *a, mean=_mean, **p: np.repeat(np.array(mean)[:, None], 3, 1),
            grad=False,
            dtypes=ONE,
            atol=1e-20,
        ),
        Sample(
            _arrays,
            {},
            reference=lambda *a, mean=_mean, **p: np.array(mean),
            grad=False,
            dtypes=ONE,
            atol=1e-20,
            name="one",
        ),
        Sample(
            _arrays,
            {"shape": (0,)},
            reference=lambda *a, **p: np.zeros((2, 0)),
            grad=False,
            dtypes=ONE,
            name="empty",
        ),
    ]
SAMPLES["_random_randint"] = [
    Sample(
        [],
        {"low": 7, "high": 8, "shape": (2, 3)},
        reference=lambda shape, **p: np.full(shape, 7),
        dtypes=ONE,
    ),
    Sample(
        [], {"low": -5, "high": 2**40, "shape": (300,), "dtype": "int64"}, dtypes=ONE, name="wide"
    ),
]
SAMPLES["_contrib_sample_tokens"] = [
    Sample(
        [(3, 7), np.array([[1, 0], [2, 5], [3, 9]], dtype="int64")],
        {"temperature": 0},
        reference=lambda logits, keys, temperature: logits.argmax(axis=1),
        grad=False,
        name="greedy",
    ),
    Sample(
        [(3, 7), np.array([[1, 0], [2, 5], [3, 9]], dtype="int64")],
        {"top_k": 1},
        reference=lambda logits, keys, top_k: logits.argmax(axis=1),
        grad=False,
        name="top_k",
    ),
]
SAMPLES["_sample_multinomial"] = [
    Sample([_HALF], {}, reference=lambda x, **p: np.array([2, 0]), grad=False, dtypes=ONE),
    Sample(
        [_HALF],
        {"shape": (4,), "get_prob": True},
        reference=lambda x, **p: (np.array([[2] * 4, [0] * 4]), np.zeros((2, 4))),
        grad=False,
        dtypes=ONE,
        name="prob",
    ),
    Sample(
        [_HALF[0]], {}, reference=lambda x, **p: np.array([2]), grad=False, dtypes=ONE, name="one"
    ),
    Sample(
        [(2, 5)], {"shape": (300,), "get_prob": True}, ranges=[(0.1, 1)], grad=True, name="draws"
    ),
]
SAMPLES["_shuffle"] = [
    Sample([np.full((5, 3), 2.5, "float32")], reference=lambda x: x, grad=False, dtypes=ONE),
    Sample([(1, 4)], reference=lambda x: x, grad=False, name="one-row"),
    Sample([(300, 2)], grad=False, name="draws"),
    Sample([(0, 2)], reference=lambda x: x, grad=False, name="empty"),
]
# Format of _dropout_draw: seed, call, position, run, stride
_DRAW = np.array([7, 3, 0, 0, 0], "int64")
SAMPLES["Dropout"] = [
    Sample([(3, 4)], {"p": 0.5}, reference=lambda x, **p: x, grad2=True, name="predict"),
    Sample([(3, 4)], {"p": 0.0}, reference=lambda x, **p: x, train=True, name="none"),
    Sample([(3, 4)], {"p": 1.0}, reference=lambda x, **p: 0 * x, train=True, name="all"),
    Sample([(3, 400)], {"p": 0.3}, train=True, grad2=True, name="train"),
    Sample([(3, 4, 5)], {"p": 0.3, "axes": (0, 2)}, train=True, name="axes"),
    Sample([(3, 4)], {"p": 0.3, "mode": "always"}, name="always"),
    Sample([(0, 4)], {"p": 0.3}, train=True, reference=lambda x, **p: x, name="empty"),
]
SAMPLES["_dropout_draw"] = [Sample([(2, 3)], {"axis": 1, "total": 6}, grad=False)]
SAMPLES["_dropout_part"] = [
    Sample(
        [(3, 40), _DRAW],
        {"p": 0.3, "axis": 1, "begin": 20, "total": 80},
        train=True,
        grad=[0],
        grad2=True,
        name="train",
    ),
    Sample(
        [(3, 4), _DRAW],
        {"p": 0.3, "axis": 0, "begin": 0, "total": 4},
        reference=lambda x, d, **p: x,
        grad=[0],
        name="predict",
    ),
    Sample(
        [(0, 4), _DRAW],
        {"p": 0.3, "axis": -1, "begin": 0, "total": 4},
        train=True,
        reference=lambda x, d, **p: x,
        grad=False,
        name="empty",
    ),
]
SAMPLES["_dropout_apply"] = [
    Sample(
        [(2, 3), np.array([[1, 0, 1], [0, 1, 1]], "uint8")],
        {"p": 0.5},
        reference=lambda x, m, p: x * m * 2,
        grad=[0],
    ),
    Sample(
        [(2, 3), np.array([[1], [0]], "uint8")],
        {"p": 0.5},
        reference=lambda x, m, p: x * m * 2,
        grad=[0],
        name="axes",
    ),
]


# --- Densities -----------------------------------------------------------------------------------


def _density(distribution):
    """Reference density whose parameters broadcast over the trailing axes of samples."""

    def reference(sample, *parameters, is_log=False):
        spread = [p.reshape(p.shape + (1,) * (sample.ndim - p.ndim)) for p in parameters]
        value = distribution(sample, *spread)
        return value if is_log else np.exp(value)

    return reference


def _dirichlet(sample, alpha, is_log=False):
    spread = alpha.reshape(alpha.shape[:-1] + (1,) * (sample.ndim - alpha.ndim) + alpha.shape[-1:])
    value = ((spread - 1) * np.log(sample)).sum(-1)
    value = value + special.gammaln(spread.sum(-1)) - special.gammaln(spread).sum(-1)
    value = value if is_log else np.exp(value)
    return value.reshape(1) if value.ndim == 0 else value


def _negative_binomial(x, k, p):
    choices = special.gammaln(x + k) - special.gammaln(x + 1) - special.gammaln(k)
    return choices + k * np.log(p) + x * np.log(1 - p)


def _densities(reference, ranges, counts=False):
    """Samples with one parameter per element, with parameters for leading axes, and with
    logarithms.

    Samples of discrete distributions (`counts`) get no gradient.
    """
    number = len(ranges) - 1
    made = []
    for name, sample, parameter, params in [
        ("each", (2, 3), (2, 3), {}),
        ("leading", (2, 3), (2,), {}),
        ("log", (2, 3), (2,), {"is_log": True}),
    ]:
        made.append(
            Sample(
                [sample] + [parameter] * number,
                params,
                reference=reference,
                ranges=ranges,
                grad=list(range(1, number + 1)) if counts else True,
                dtypes=("float32", "float64", "float16", "bfloat16"),
                rtol=1e-4,
                atol=1e-5,
                name=name,
            )
        )
    return made


def _uniform(sample, low, high):
    return -np.log(high - low) + 0 * sample


SAMPLES["_random_pdf_uniform"] = _densities(
    _density(_uniform), [(-1, 1), (-2, -1), (1, 2)], counts=True
)
SAMPLES["_random_pdf_normal"] = _densities(
    _density(lambda x, mu, sigma: stats.norm.logpdf(x, mu, sigma)), [(-1, 1), (-1, 1), (0.5, 2)]
)
SAMPLES["_random_pdf_gamma"] = _densities(
    _density(lambda x, a, b: stats.gamma.logpdf(x, a, scale=1 / b)), [(0.5, 2), (1, 3), (1, 2)]
)
SAMPLES["_random_pdf_exponential"] = _densities(
    _density(lambda x, lam: stats.expon.logpdf(x, scale=1 / lam)), [(0.5, 2), (0.5, 2)]
)
SAMPLES["_random_pdf_poisson"] = _densities(
    _density(lambda x, lam: x * np.log(lam) - special.gammaln(x + 1) - lam),
    [(0, 4), (0.5, 2)],
    counts=True,
)
SAMPLES["_random_pdf_negative_binomial"] = _densities(
    _density(_negative_binomial), [(0, 4), (1, 3), (0.2, 0.8)], counts=True
)
SAMPLES["_random_pdf_generalized_negative_binomial"] = _densities(
    _density(lambda x, mu, alpha: _negative_binomial(x, 1 / alpha, 1 / (mu * alpha + 1))),
    [(0, 4), (1, 3), (0.5, 2)],
    counts=True,
)
SAMPLES["_random_pdf_dirichlet"] = [
    Sample(
        [sample, alpha],
        params,
        reference=_dirichlet,
        ranges=[(0.2, 0.9), (0.5, 2)],
        rtol=1e-4,
        atol=1e-5,
        name=name,
    )
    for name, sample, alpha, params in [
        ("each", (2, 3), (2, 3), {}),
        ("leading", (2, 4, 3), (2, 3), {}),
        ("log", (2, 4, 3), (2, 3), {"is_log": True}),
        ("single", (3,), (3,), {}),
    ]
]
