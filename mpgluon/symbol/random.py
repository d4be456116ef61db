"""Samplers.

Parameters are numbers, or Symbols. Each element of a Symbol is the parameter of ``shape`` draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from ..context import current_context  # noqa: F401 - MXNet has it here as well
from ..ndarray import _rates
from ._functions import Function
from ._namespaces import fill
from .symbol import Symbol

if TYPE_CHECKING:
    from typing import Any

    from .._internal.types import DType, ShapeLike, SymbolLike
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
        raise ValueError(f"random.{name}: the parameters must be all Symbols or all numbers")
    return _call(f"_random_{name}", *params, shape=shape, dtype=dtype, **kwargs)


def uniform(
    low: SymbolLike = 0,
    high: SymbolLike = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    **kwargs: Any,
) -> Symbol:
    """Draws from the uniform distribution on [low, high).

    Examples
    --------
    >>> mx.sym.random.uniform(2, 3, shape=(2, 4)).eval()[0].shape
    (2, 4)
    """
    return _draw("uniform", (low, high), shape, dtype, kwargs)


def normal(
    loc: SymbolLike = 0,
    scale: SymbolLike = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    **kwargs: Any,
) -> Symbol:
    """Draws from the normal distribution with mean ``loc`` and standard deviation ``scale``.

    Examples
    --------
    >>> mx.sym.random.normal(0, 0.1, shape=(2, 4)).eval()[0].shape
    (2, 4)
    """
    return _draw("normal", (loc, scale), shape, dtype, kwargs)


def randn(
    *shape: int,
    loc: SymbolLike = 0,
    scale: SymbolLike = 1,
    dtype: DType | None = None,
    **kwargs: Any,
) -> Symbol:
    """Draws from the normal distribution, with the shape as arguments: ``randn(2, 3)``.

    Examples
    --------
    >>> mx.sym.random.randn(2, 4).eval()[0].shape
    (2, 4)
    """
    return _draw("normal", (loc, scale), shape or None, dtype, kwargs)


def poisson(
    lam: SymbolLike = 1, shape: ShapeLike | None = None, dtype: DType | None = None, **kwargs: Any
) -> Symbol:
    """Draws from the Poisson distribution with rate ``lam``.

    Examples
    --------
    >>> mx.sym.random.poisson(4, shape=(2, 4)).eval()[0].shape
    (2, 4)
    """
    return _draw("poisson", (lam,), shape, dtype, kwargs)


def exponential(
    scale: SymbolLike = 1, shape: ShapeLike | None = None, dtype: DType | None = None, **kwargs: Any
) -> Symbol:
    """Draws from the exponential distribution with mean ``scale``.

    Examples
    --------
    >>> mx.sym.random.exponential(4, shape=(2, 4)).eval()[0].shape
    (2, 4)
    """
    return _draw("exponential", (_rates.rate_of(scale),), shape, dtype, kwargs)


def gamma(
    alpha: SymbolLike = 1,
    beta: SymbolLike = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    **kwargs: Any,
) -> Symbol:
    """Draws from the gamma distribution with shape ``alpha`` and scale ``beta``.

    Examples
    --------
    >>> mx.sym.random.gamma(9, 0.5, shape=(2, 4)).eval()[0].shape
    (2, 4)
    """
    return _draw("gamma", (alpha, beta), shape, dtype, kwargs)


def negative_binomial(
    k: SymbolLike = 1,
    p: SymbolLike = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    **kwargs: Any,
) -> Symbol:
    """Draws from the negative binomial distribution.

    Samples are numbers of failures before the ``k``-th success, which has probability ``p``.

    Examples
    --------
    >>> mx.sym.random.negative_binomial(3, 0.4, shape=(2, 4)).eval()[0].shape
    (2, 4)
    """
    return _draw("negative_binomial", (k, p), shape, dtype, kwargs)


def generalized_negative_binomial(
    mu: SymbolLike = 1,
    alpha: SymbolLike = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    **kwargs: Any,
) -> Symbol:
    """Draws from the negative binomial distribution with mean ``mu`` and dispersion ``alpha``.

    Examples
    --------
    >>> mx.sym.random.generalized_negative_binomial(2, 0.3, shape=(2, 4)).eval()[0].shape
    (2, 4)
    """
    return _draw("generalized_negative_binomial", (mu, alpha), shape, dtype, kwargs)


def randint(
    low: int, high: int, shape: ShapeLike | None = None, dtype: DType | None = None, **kwargs: Any
) -> Symbol:
    """Draws integers from [low, high), int32 by default.

    Examples
    --------
    >>> mx.sym.random.randint(0, 2, shape=(2, 4)).eval()[0].shape
    (2, 4)
    """
    return _draw("randint", (low, high), shape, dtype, kwargs)


def multinomial(
    data: Symbol,
    shape: ShapeLike | None = None,
    get_prob: bool = True,
    dtype: DType = "int32",
    **kwargs: Any,
) -> Symbol:
    """Draws indices with the probabilities in the last axis of ``data``.

    With ``get_prob`` it also returns their log-likelihoods.

    Examples
    --------
    >>> draws = mx.sym.random.multinomial(mx.sym.var("p"), shape=3)
    >>> draws.eval(p=nd.array([0, 0, 1]))[0].asnumpy()
    array([2, 2, 2], dtype=int32)
    """
    return _call("_sample_multinomial", data, shape=shape, get_prob=get_prob, dtype=dtype, **kwargs)


def shuffle(data: Symbol, **kwargs: Any) -> Symbol:
    """Returns the symbol with its first axis in random order.

    Examples
    --------
    >>> y = mx.sym.random.shuffle(mx.sym.var("x")).eval(x=nd.array([1, 2, 3]))[0]
    >>> sorted(y.asnumpy().tolist())
    [1.0, 2.0, 3.0]
    """
    return _call("_shuffle", data, **kwargs)


fill("random", globals())  # uniform_like and similar ops
