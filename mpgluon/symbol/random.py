"""Samplers. Parameters are numbers, or Symbols, of which each element is the parameter of a draw of
``shape``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from ._functions import Function
from ._namespaces import fill
from .symbol import Symbol

if TYPE_CHECKING:
    from ._random_ops import *  # noqa: F403

__all__ = [
    "exponential",
    "gamma",
    "generalized_negative_binomial",
    "multinomial",
    "negative_binomial",
    "normal",
    "poisson",
    "randint",
    "randn",
    "shuffle",
    "uniform",
]


def _call(op, *args, **kwargs):
    return Function(_core.get_op(op), op)(
        *args, **{key: value for key, value in kwargs.items() if value is not None}
    )


def _draw(name, params, shape, dtype, kwargs):
    symbols = [isinstance(param, Symbol) for param in params]
    kwargs.pop("ctx", None)
    if all(symbols):
        return _call(f"_sample_{name}", *params, shape=shape, dtype=dtype, **kwargs)
    if any(symbols) or not all(isinstance(param, (int, float, np.generic)) for param in params):
        raise ValueError(f"random.{name}: the parameters have to be all Symbols or all numbers")
    return _call(f"_random_{name}", *params, shape=shape, dtype=dtype, **kwargs)


def uniform(low=0, high=1, shape=None, dtype=None, **kwargs):
    """Uniform on [low, high)."""
    return _draw("uniform", (low, high), shape, dtype, kwargs)


def normal(loc=0, scale=1, shape=None, dtype=None, **kwargs):
    """Normal with mean ``loc`` and standard deviation ``scale``."""
    return _draw("normal", (loc, scale), shape, dtype, kwargs)


def randn(*shape, loc=0, scale=1, dtype=None, **kwargs):
    """Normal, the shape given as arguments: ``randn(2, 3)``."""
    return _draw("normal", (loc, scale), shape or None, dtype, kwargs)


def poisson(lam=1, shape=None, dtype=None, **kwargs):
    """Poisson with rate ``lam``."""
    return _draw("poisson", (lam,), shape, dtype, kwargs)


def exponential(scale=1, shape=None, dtype=None, **kwargs):
    """Exponential with mean ``scale``."""
    return _draw("exponential", (1.0 / scale,), shape, dtype, kwargs)


def gamma(alpha=1, beta=1, shape=None, dtype=None, **kwargs):
    """Gamma with shape ``alpha`` and scale ``beta``."""
    return _draw("gamma", (alpha, beta), shape, dtype, kwargs)


def negative_binomial(k=1, p=1, shape=None, dtype=None, **kwargs):
    """Negative binomial: failures before the ``k``-th success of probability ``p``."""
    return _draw("negative_binomial", (k, p), shape, dtype, kwargs)


def generalized_negative_binomial(mu=1, alpha=1, shape=None, dtype=None, **kwargs):
    """Negative binomial by mean ``mu`` and dispersion ``alpha``."""
    return _draw("generalized_negative_binomial", (mu, alpha), shape, dtype, kwargs)


def randint(low, high, shape=None, dtype=None, **kwargs):
    """Integers of [low, high), int32 by default."""
    return _draw("randint", (low, high), shape, dtype, kwargs)


def multinomial(data, shape=None, get_prob=True, dtype="int32", **kwargs):
    """Indices drawn with the probabilities in the last axis of ``data``; with ``get_prob`` also
    their log-likelihoods."""
    return _call("_sample_multinomial", data, shape=shape, get_prob=get_prob, dtype=dtype, **kwargs)


def shuffle(data, **kwargs):
    """The symbol with its first axis in random order."""
    return _call("_shuffle", data, **kwargs)


fill("random", globals())  # uniform_like and its like
