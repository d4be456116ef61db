"""Samplers with NumPy's names and signatures, as in ``mxnet.numpy.random``.

Parameters are numbers, arrays of mx.np, or values that NumPy converts to arrays. Parameters are
broadcast, and ``size`` is the whole shape of the result. ``size=None`` gives the shape of the
parameters: a result without dimensions if all of them are numbers.

The samplers are composed of the ops of ``mx.nd.random``. Equal calls therefore give equal numbers:
``mx.np.random.uniform(size=3)`` and ``mx.nd.random.uniform(shape=3)``. A hybridized block draws new
numbers in every call. Draws that are a differentiable function of their parameters and of noise
have gradients (the reparameterization trick): normal, lognormal, laplace, gumbel, logistic,
exponential, weibull, pareto, power, rayleigh and uniform, gamma by its scale, and
multivariate_normal by its mean. The gradients of other parameters are zero.

Invalid parameters raise MXNetError, as a ValueError: numbers at once, and elements of arrays when
the numbers are drawn.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from .._core import MXNetTypeError, MXNetValueError, ndarray
from .._internal.numpy_hints import list_names as _list_names
from ..random import seed as _seed
from ._arguments import broadcast, common_shape
from ._draws import LARGEST_MEAN, Call, as_parameter, op, place_of, shape_of, values_of
from ._selections import choice, multinomial, permutation, shuffle

if TYPE_CHECKING:
    from .._core import Context
    from .._internal.types import DType, ShapeLike
    from ._draws import Parameter

__all__ = [
    "beta",
    "binomial",
    "chisquare",
    "choice",
    "dirichlet",
    "exponential",
    "f",
    "gamma",
    "gumbel",
    "laplace",
    "logistic",
    "lognormal",
    "multinomial",
    "multivariate_normal",
    "negative_binomial",
    "normal",
    "pareto",
    "permutation",
    "poisson",
    "power",
    "rand",
    "randint",
    "randn",
    "rayleigh",
    "seed",
    "shuffle",
    "uniform",
    "weibull",
]


_block, _cast, _exp, _expm1, _floor, _log = map(
    op, ["BlockGrad", "cast", "exp", "expm1", "floor", "log"]
)
_sigmoid, _softmax, _sqrt = map(op, ["sigmoid", "softmax", "sqrt"])
_eigenvectors = op("_linalg_syevd")


def seed(seed: int, ctx: Context | str = "all") -> None:
    """Sets the seed, as `mx.random.seed`. ``ctx`` is ignored, as all devices share one sequence.

    Raises ValueError if the seed is not an integer.

    Examples
    --------
    >>> np.random.seed(7)
    >>> first = np.random.uniform(size=3).tolist()
    >>> np.random.seed(7)
    >>> np.random.uniform(size=3).tolist() == first
    True
    """
    _seed(seed, ctx)


def uniform(
    low: Parameter = 0.0,
    high: Parameter = 1.0,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws from the uniform distribution on [low, high).

    Parameters
    ----------
    low, high
        Bounds; low must not be above high.
    size
        The shape of the result; None for the shape of the parameters.
    dtype
        A floating-point dtype; None for float32.
    ctx, device
        The device of the result; None for the parameters' or the current one.
    out
        The array that the numbers are written to.

    Examples
    --------
    >>> draws = np.random.uniform(0, 10, size=(2, 3))
    >>> draws.shape, str(draws.dtype), np.random.uniform().shape
    ((2, 3), 'float32', ())
    """
    call = Call("uniform", {"low": low, "high": high}, size, dtype, ctx, device, out)
    return call.uniform(*call.values())


def normal(
    loc: Parameter = 0.0,
    scale: Parameter = 1.0,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws from the normal distribution with mean ``loc`` and standard deviation ``scale``.

    ``scale`` must not be negative. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.normal(5, 0.1, size=(2, 3)).shape
    (2, 3)
    """
    call = Call("normal", {"loc": loc, "scale": scale}, size, dtype, ctx, device, out)
    loc, scale = call.values(scale="not be negative")
    return call.normal(loc, scale)


def randn(
    *size: int,
    dtype: DType | None = None,
    ctx: Context | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws from the standard normal distribution, with the shape as arguments.

    Examples
    --------
    >>> np.random.randn(2, 3).shape
    (2, 3)
    """
    return normal(0.0, 1.0, size, dtype, ctx, device=device)


def rand(
    *size: int,
    dtype: DType | None = None,
    ctx: Context | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws from the uniform distribution on [0, 1), with the shape as arguments.

    Examples
    --------
    >>> np.random.rand(2, 3).shape
    (2, 3)
    """
    return uniform(0.0, 1.0, size, dtype, ctx, device=device)


def lognormal(
    mean: Parameter = 0.0,
    sigma: Parameter = 1.0,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws numbers whose logarithms are normal, with mean ``mean`` and deviation ``sigma``.

    ``sigma`` must not be negative. `uniform` describes the other arguments.

    Examples
    --------
    >>> bool((np.random.lognormal(size=4) > 0).asnumpy().all())
    True
    """
    call = Call("lognormal", {"mean": mean, "sigma": sigma}, size, dtype, ctx, device, out)
    mean, sigma = call.values(sigma="not be negative")
    return call.finish(_exp(mean + sigma * call.noise("normal", 0, 1)))


def laplace(
    loc: Parameter = 0.0,
    scale: Parameter = 1.0,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws from the Laplace distribution with mean ``loc`` and mean distance ``scale`` from it.

    ``scale`` must not be negative. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.laplace(size=4).shape
    (4,)
    """
    call = Call("laplace", {"loc": loc, "scale": scale}, size, dtype, ctx, device, out)
    loc, scale = call.values(scale="not be negative")
    noise = call.noise("exponential", 1) - call.noise("exponential", 1)
    return call.finish(loc + scale * noise)


def gumbel(
    loc: Parameter = 0.0,
    scale: Parameter = 1.0,
    size: ShapeLike | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    dtype: DType | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws from the Gumbel distribution with mode ``loc`` and scale ``scale``.

    ``scale`` must not be negative. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.gumbel(size=4).shape
    (4,)
    """
    call = Call("gumbel", {"loc": loc, "scale": scale}, size, dtype, ctx, device, out)
    loc, scale = call.values(scale="not be negative")
    return call.finish(loc - scale * _log(call.exponential()))


def logistic(
    loc: Parameter = 0.0,
    scale: Parameter = 1.0,
    size: ShapeLike | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    dtype: DType | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws from the logistic distribution with mean ``loc`` and scale ``scale``.

    ``scale`` must not be negative. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.logistic(size=4).shape
    (4,)
    """
    call = Call("logistic", {"loc": loc, "scale": scale}, size, dtype, ctx, device, out)
    loc, scale = call.values(scale="not be negative")
    return call.finish(loc + scale * _log(_expm1(call.exponential())))


def exponential(
    scale: Parameter = 1.0,
    size: ShapeLike | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    dtype: DType | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws from the exponential distribution with mean ``scale``.

    ``scale`` must not be negative. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.exponential(0.5, size=4).shape
    (4,)
    """
    call = Call("exponential", {"scale": scale}, size, dtype, ctx, device, out)
    (scale,) = call.values(scale="not be negative")
    if not call.arrays:
        return call.direct("exponential", 1 / scale if scale else float("inf"))
    return call.finish(scale * call.noise("exponential", 1))


def weibull(
    a: Parameter,
    size: ShapeLike | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    dtype: DType | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws from the Weibull distribution with shape ``a`` and scale 1.

    ``a`` must be positive. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.weibull(5, size=4).shape
    (4,)
    """
    call = Call("weibull", {"a": a}, size, dtype, ctx, device, out)
    (a,) = call.values(a="be positive")
    return call.finish(call.exponential() ** (1 / a))


def pareto(
    a: Parameter,
    size: ShapeLike | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    dtype: DType | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws from the Pareto II (Lomax) distribution with shape ``a``.

    Add 1 for draws from the Pareto distribution. ``a`` must be positive. `uniform`
    describes the other arguments.

    Examples
    --------
    >>> np.random.pareto(3, size=4).shape
    (4,)
    """
    call = Call("pareto", {"a": a}, size, dtype, ctx, device, out)
    (a,) = call.values(a="be positive")
    return call.finish(_expm1(call.exponential() / a))


def power(
    a: Parameter,
    size: ShapeLike | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    dtype: DType | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws from [0, 1] with the density a * x ** (a - 1).

    ``a`` must be positive. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.power(3, size=4).shape
    (4,)
    """
    call = Call("power", {"a": a}, size, dtype, ctx, device, out)
    (a,) = call.values(a="be positive")
    return call.finish((-_expm1(-call.exponential())) ** (1 / a))


def rayleigh(
    scale: Parameter = 1.0,
    size: ShapeLike | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    dtype: DType | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws from the Rayleigh distribution with mode ``scale``.

    ``scale`` must not be negative. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.rayleigh(2, size=4).shape
    (4,)
    """
    call = Call("rayleigh", {"scale": scale}, size, dtype, ctx, device, out)
    (scale,) = call.values(scale="not be negative")
    return call.finish(scale * _sqrt(2 * call.exponential()))


# --- Distributions composed of gamma draws --------------------------------------------------------


def _negative_if(value, refused):
    """Returns a parameter with negative numbers, which the ops refuse, in place of the elements of
    an array for which the function `refused` is true."""
    if not isinstance(value, ndarray):
        return value
    return value - 2 * value * _cast(refused(value), dtype=value.dtype)


def _positive(value):
    """Returns a parameter that must be positive for the op of the gamma distribution. The op
    refuses negative elements only, so 2 is subtracted from elements that aren't positive: they
    are below 0 even if 1 is added."""
    if not isinstance(value, ndarray):
        return value
    return value - 2 * _cast(value <= 0, dtype=value.dtype)


def _log_gamma(call, a):
    """Draws logarithms of gamma draws of scale 1, which doesn't underflow for small parameters: a
    draw for `a` is a draw for `a + 1` times a uniform number to the power `1 / a`."""
    a = _positive(a)
    return _log(call.drawn("gamma", a + 1, 1)) - call.exponential() / _block_number(a)


def _block_number(value):
    return _block(value) if isinstance(value, ndarray) else value


def gamma(
    shape: Parameter,
    scale: Parameter = 1.0,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws from the gamma distribution with shape ``shape`` and scale ``scale``.

    Both must be positive. The gradient of ``shape`` is zero. `uniform` describes the other
    arguments.

    Examples
    --------
    >>> np.random.gamma(2, 1, size=4).shape
    (4,)
    """
    call = Call("gamma", {"shape": shape, "scale": scale}, size, dtype, ctx, device, out)
    shape, scale = call.values(shape="be positive", scale="be positive")
    draws = call.direct("gamma", _positive(shape), _positive(scale))
    return call.differentiable(draws, (scale, lambda values: values / scale))


def chisquare(
    df: Parameter,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws from the chi-square distribution with ``df`` degrees of freedom.

    ``df`` must be positive. Its gradient is zero. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.chisquare(2, size=4).shape
    (4,)
    """
    call = Call("chisquare", {"df": df}, size, dtype, ctx, device, out)
    (df,) = call.values(df="be positive")
    return call.direct("gamma", _positive(df) / 2, 2)


def f(
    dfnum: Parameter,
    dfden: Parameter,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws from the F distribution with ``dfnum`` and ``dfden`` degrees of freedom.

    Both must be positive. Their gradients are zero. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.f(5, 2, size=4).shape
    (4,)
    """
    call = Call("f", {"dfnum": dfnum, "dfden": dfden}, size, dtype, ctx, device, out)
    dfnum, dfden = call.values(dfnum="be positive", dfden="be positive")
    means = [call.drawn("gamma", _positive(df) / 2, 1) / _block_number(df) for df in (dfnum, dfden)]
    return call.finish(means[0] / means[1])


def beta(
    a: Parameter,
    b: Parameter,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws from the beta distribution, whose density is proportional to
    x ** (a - 1) * (1 - x) ** (b - 1).

    Both must be positive. Their gradients are zero. `uniform` describes the other arguments.

    Examples
    --------
    >>> np.random.beta(2, 3, size=4).shape
    (4,)
    """
    call = Call("beta", {"a": a, "b": b}, size, dtype, ctx, device, out)
    a, b = call.values(a="be positive", b="be positive")
    return call.finish(_sigmoid(_log_gamma(call, a) - _log_gamma(call, b)))


def dirichlet(
    alpha: Parameter,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws probabilities of outcomes from the Dirichlet distribution.

    ``alpha``, an array (..., outcomes), has the positive concentrations. Their gradients are zero.
    ``size`` is the shape of the draws for every row of ``alpha``, so the result has the shape
    ``(*size, *alpha.shape)``. `uniform` describes the other arguments.

    Examples
    --------
    >>> draws = np.random.dirichlet([1, 2, 3], size=4)
    >>> draws.shape, draws.sum(axis=-1).asnumpy().round(3).tolist()
    ((4, 3), [1.0, 1.0, 1.0, 1.0])
    """
    call = Call("dirichlet", {"alpha": values_of(alpha)}, None, dtype, ctx, device, out)
    call.shape = (*shape_of(size), *call.shape)
    return call.finish(_softmax(_log_gamma(call, *call.values()), axis=-1))


# --- Integers -------------------------------------------------------------------------------------


def poisson(
    lam: Parameter = 1.0,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws from the Poisson distribution with mean ``lam``.

    ``lam`` must not be negative, and at most 9.2e18. ``dtype`` is any dtype; None for int64.
    Gradients of the parameters of integer draws are zero. `uniform` describes the other arguments.

    Examples
    --------
    >>> draws = np.random.poisson(4, size=3)
    >>> draws.shape, str(draws.dtype)
    ((3,), 'int64')
    """
    call = Call("poisson", {"lam": lam}, size, dtype, ctx, device, out, counts=True)
    (lam,) = call.values(lam="be from 0 to 9.2e18")
    return call.finish(call.drawn("poisson", _negative_if(lam, lambda mean: mean > LARGEST_MEAN)))


def negative_binomial(
    n: Parameter,
    p: Parameter,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws numbers of failures before the ``n``-th success, which has probability ``p``.

    ``n`` must be positive but need not be an integer. ``p`` must be above 0 and at most 1.
    `poisson` describes the other arguments.

    Examples
    --------
    >>> np.random.negative_binomial(3, 0.5, size=4).shape
    (4,)
    """
    call = Call("negative_binomial", {"n": n, "p": p}, size, dtype, ctx, device, out, counts=True)
    n, p = call.values(n="be positive", p="be above 0 and at most 1")
    if not call.arrays and n != int(n):
        n = call.filled(n)
    return call.finish(call.drawn("negative_binomial", _positive(n), _positive(p)))


def binomial(
    n: Parameter,
    p: Parameter,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws numbers of successes in ``n`` experiments that succeed with probability ``p``.

    ``n`` must not be negative, and elements of an array ``n`` must be below 2 ** 31. ``p`` must be
    from 0 to 1. `poisson` describes the other arguments.

    Examples
    --------
    >>> np.random.binomial(10, [0, 1]).tolist()
    [0, 10]
    """
    call = Call("binomial", {"n": n, "p": p}, size, dtype, ctx, device, out, counts=True)
    n, p = call.values(n="not be negative", p="be from 0 to 1")
    p = call.filled(call.checked(p))
    # Splits at order statistics. If n uniform numbers are drawn, the k-th smallest has the
    # distribution beta(k, n + 1 - k). If it is at most p, k of the numbers are successes, and the
    # n - k larger ones are uniform above it; otherwise only the k - 1 smaller ones can be
    # successes. With the median, each step halves n.
    steps = 31 if isinstance(n, ndarray) else int(n).bit_length()
    if isinstance(n, ndarray):
        n = n - 2 * _cast(n < 0, dtype=n.dtype)  # so that -1 also makes a gamma parameter negative
    n, total = call.filled(n), call.filled(0)
    for _ in range(steps):
        k = _floor((n + 1) / 2)
        first = call.drawn("gamma", k + (k == 0), 1)
        second = call.drawn("gamma", n + 1 - k, 1)
        split = first / (first + second)
        below = call.cast(split <= p, "float64")
        above = 1 - below
        total = total + k * below
        p = below * (p - split) / (1 - split) + above * p / split
        n = below * (n - k) + above * (k - (k > 0))
    return call.finish(total)


def randint(
    low: Parameter,
    high: Parameter | None = None,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws integers from [low, high), or from [0, low) if ``high`` is None.

    Parameters
    ----------
    low, high
        Integers, or arrays of integers whose difference is below 2 ** 53.
    size
        The shape of the result; None for the shape of the parameters.
    dtype
        ``int32`` or ``int64``; None for int64.
    ctx, device
        The device of the result; None for the parameters' or the current one.
    out
        The array that the numbers are written to.

    Examples
    --------
    >>> draws = np.random.randint(3, size=(2, 4))
    >>> draws.shape, str(draws.dtype), set(draws.asnumpy().flat) <= {0, 1, 2}
    ((2, 4), 'int64', True)
    """
    if high is None:
        low, high = 0, low
    params = {"low": low, "high": high}
    call = Call("randint", params, size, dtype, ctx, device, out, counts=True)
    if call.dtype not in ("int32", "int64"):
        raise MXNetTypeError(f"random.randint: dtype must be int32 or int64, got {call.dtype}")
    if not call.arrays:
        low, high = (int(call.params[key]) for key in ("low", "high"))
        return call.direct("randint", low, high)
    low, high = call.values()
    return call.finish(_floor(low + (high - low) * call.noise("uniform", 0, 1)))


def multivariate_normal(
    mean: Parameter,
    cov: Parameter,
    size: ShapeLike | None = None,
    check_valid: str | None = None,
    tol: float | None = None,
    *,
    dtype: DType | None = None,
    ctx: Context | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws vectors from normal distributions.

    Parameters
    ----------
    mean
        The means, an array (..., n).
    cov
        The covariances, an array (..., n, n) of symmetric, positive semidefinite matrices. Their
        leading axes are broadcast with the leading axes of ``mean``.
    size
        The shape of the draws per distribution; None for one.
    check_valid, tol
        Accepted for compatibility and ignored.
    dtype
        A floating-point dtype; None for float32.
    ctx, device
        The device of the result; None for the parameters' or the current one.

    Returns
    -------
    Draws of the shape (*size, ..., n). ``mean`` has a gradient. The gradient of ``cov`` is zero.

    Examples
    --------
    >>> np.random.multivariate_normal([0, 5], [[1, 0], [0, 2]], size=(3,)).shape
    (3, 2)
    """
    place = place_of(ctx, device, mean, cov)
    call = Call("multivariate_normal", {"mean": values_of(mean)}, None, dtype, place, None, None)
    (mean,) = call.values()
    cov = call.cast(as_parameter(call.name, "cov", values_of(cov), call.ctx), call.work)
    n, batch = mean.shape[-1], None
    if cov.shape[-2:] == (n, n):
        with contextlib.suppress(ValueError):
            *batch, _ = common_shape(mean.shape, cov.shape[:-1])
    if batch is None:
        raise MXNetValueError(
            "random.multivariate_normal: mean must have the shape (..., n) and cov (..., n, n), "
            f"but they are {mean.shape} and {cov.shape}"
        )
    shape = call.shape = (*shape_of(size), *batch, n)
    if 0 in shape:
        return call.finish(call.filled(0))
    rows, matrices = math.prod(shape_of(size)), math.prod(batch)
    call.shape = (rows, matrices, n)
    vectors, values = _eigenvectors(_block(cov))
    # Rounding can make the eigenvalue 0 of a semidefinite matrix negative.
    tolerance = -1e-3 * (values[..., -1:] - values[..., :1])
    call.require(broadcast(values >= tolerance, (*batch, n)).reshape((1, matrices, n)))
    factors = vectors * _sqrt(op("_maximum_scalar")(values, scalar=0)).reshape((*values.shape, 1))
    factors = broadcast(factors, (*batch, n, n)).reshape((matrices, n, n))
    draws = op("batch_dot")(call.noise("normal", 0, 1).transpose((1, 0, 2)), factors)
    return call.finish(mean + draws.transpose((1, 0, 2)).reshape(shape))


_list_names(__name__)
