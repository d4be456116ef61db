"""Samplers.

Parameters are numbers, or NDArrays. Each element of an NDArray is the parameter of ``shape`` draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from ..context import current_context  # noqa: F401 - MXNet has it here as well
from . import _namespaces, _rates

if TYPE_CHECKING:
    from typing import Any

    from .._core import Context, NDArray
    from .._internal.types import DType, ShapeLike
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

_OPS = _core.ops()


def _draw(name, params, shape, dtype, ctx, out, options):
    """Draws samples. `options` has additional arguments; the op rejects unknown ones."""
    arrays = [isinstance(param, _core.NDArray) for param in params]
    if out is not None:
        options["out"] = out
    if dtype is not None:
        options["dtype"] = dtype
    if any(arrays):
        if not all(arrays):
            raise TypeError(f"random.{name}: the parameters must be all NDArrays or all numbers")
        op = _OPS.get("_sample_" + name)
        if op is None:
            raise _core.NotSupportedError(f"random.{name}: parameters must be numbers")
        if shape is not None:
            options["shape"] = shape
        return op(*params, **options)
    for param in params:
        if not hasattr(param, "__float__"):
            raise ValueError(
                f"random.{name}: parameters must be numbers or NDArrays, got {type(param).__name__}"
            )
    if out is not None:
        shape = out.shape if shape is None else shape
        options.setdefault("dtype", out.dtype)
    if ctx is None:
        ctx = out.context if out is not None else _core.current_context()
    op = _OPS.get("_random_" + name)
    if op is None:
        raise _core.NotSupportedError(f"random.{name}: this build has no op _random_{name}")
    return op(*params, shape=1 if shape is None else shape, ctx=ctx, **options)


def uniform(
    low: NDArray | float = 0,
    high: NDArray | float = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Draws from the uniform distribution on [low, high): ``shape`` samples (default 1), float32.

    Examples
    --------
    >>> draws = nd.random.uniform(0, 10, shape=(2, 3))
    >>> draws.shape, bool((draws.asnumpy() < 10).all())
    ((2, 3), True)
    """
    return _draw("uniform", (low, high), shape, dtype, ctx, out, kwargs)


def normal(
    loc: NDArray | float = 0,
    scale: NDArray | float = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Draws from the normal distribution with mean ``loc`` and standard deviation ``scale``.

    Examples
    --------
    >>> nd.random.normal(5, 0.1, shape=(2,)).shape
    (2,)
    """
    return _draw("normal", (loc, scale), shape, dtype, ctx, out, kwargs)


def randn(
    *shape: int,
    loc: NDArray | float = 0,
    scale: NDArray | float = 1,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Draws from the normal distribution, with the shape as arguments: ``randn(2, 3)``.

    Examples
    --------
    >>> nd.random.randn(2, 3).shape
    (2, 3)
    """
    return _draw("normal", (loc, scale), shape or None, dtype, ctx, out, kwargs)


def poisson(
    lam: NDArray | float = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Draws from the Poisson distribution with rate ``lam``.

    Examples
    --------
    >>> nd.random.poisson(4, shape=(2,)).shape
    (2,)
    """
    return _draw("poisson", (lam,), shape, dtype, ctx, out, kwargs)


def exponential(
    scale: NDArray | float = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Draws from the exponential distribution with mean ``scale``.

    Examples
    --------
    >>> nd.random.exponential(0.5, shape=(2,)).shape
    (2,)
    """
    return _draw("exponential", (_rates.rate_of(scale),), shape, dtype, ctx, out, kwargs)


def gamma(
    alpha: NDArray | float = 1,
    beta: NDArray | float = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Draws from the gamma distribution with shape ``alpha`` and scale ``beta``.

    Examples
    --------
    >>> nd.random.gamma(2, 1, shape=(2,)).shape
    (2,)
    """
    return _draw("gamma", (alpha, beta), shape, dtype, ctx, out, kwargs)


def negative_binomial(
    k: NDArray | int = 1,
    p: NDArray | float = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Draws from the negative binomial distribution.

    Samples are numbers of failures before the ``k``-th success, which has probability ``p``.

    Examples
    --------
    >>> nd.random.negative_binomial(3, 0.5, shape=(2,)).shape
    (2,)
    """
    return _draw("negative_binomial", (k, p), shape, dtype, ctx, out, kwargs)


def generalized_negative_binomial(
    mu: NDArray | float = 1,
    alpha: NDArray | float = 1,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Draws from the negative binomial distribution with mean ``mu`` and dispersion ``alpha``.

    Examples
    --------
    >>> nd.random.generalized_negative_binomial(2, 0.3, shape=(2,)).shape
    (2,)
    """
    return _draw("generalized_negative_binomial", (mu, alpha), shape, dtype, ctx, out, kwargs)


def randint(
    low: int,
    high: int,
    shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Draws integers from [low, high), int32 by default.

    Examples
    --------
    >>> int(nd.random.randint(3, 4).asscalar())
    3
    """
    return _draw("randint", (low, high), shape, dtype, ctx, out, kwargs)


def multinomial(
    data: NDArray,
    shape: ShapeLike | None = None,
    get_prob: bool = False,
    out: NDArray | None = None,
    dtype: DType = "int32",
    **kwargs: Any,
) -> NDArray | Any:
    """Draws indices with the probabilities in the last axis of ``data``.

    With ``get_prob`` it also returns their log-likelihoods.

    Examples
    --------
    >>> nd.random.multinomial(nd.array([0, 1, 0]), shape=4).asnumpy()
    array([1, 1, 1, 1], dtype=int32)
    """
    if out is not None:
        kwargs["out"] = out
    if shape is not None:
        kwargs["shape"] = shape
    return _OPS["_sample_multinomial"](data, get_prob=get_prob, dtype=dtype, **kwargs)


def shuffle(data: NDArray, **kwargs: Any) -> NDArray:
    """Returns the array with its first axis in random order.

    Examples
    --------
    >>> sorted(nd.random.shuffle(nd.arange(3)).asnumpy().tolist())
    [0.0, 1.0, 2.0]
    """
    return _OPS["_shuffle"](data, **kwargs)


_namespaces.fill(_OPS, {"random": globals()})  # uniform_like and similar ops
