"""Samplers of mx.np.random that select elements."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING

import numpy as _np

from .. import _core
from .._core import MXNetValueError, NDArray, ndarray
from .._internal import graph_breaks
from ._arguments import broadcast, check, is_float
from ._draws import as_parameter, op, place_of, shape_of

if TYPE_CHECKING:
    from .._core import Context
    from .._internal.types import ShapeLike
    from ._draws import Parameter

__all__ = ["choice", "multinomial", "permutation", "shuffle"]

_arange, _argsort, _block, _cast, _copy_to = map(
    op, ["_arange", "argsort", "BlockGrad", "cast", "_copyto"]
)
_full, _shuffled, _take = map(op, ["_full", "_shuffle", "take"])
_integers, _multinomial = map(op, ["_random_randint", "_sample_multinomial"])
_exponential, _scatter_sum = map(op, ["_sample_exponential", "_backward_take"])


# Bits of the fraction of a float
_MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def _probabilities(name, key, values, ctx):
    """Returns probabilities as an array. Raises an error for values that are no array. An array
    whose sum is above 1 gets negative numbers, which the ops refuse."""
    if isinstance(values, ndarray):
        if not is_float(values):
            values = _cast(values, dtype="float32")
        # NumPy's tolerance: the square root of the rounding error
        tolerance = float(_np.sqrt(2.0 ** -_MANTISSA[_core.dtype_name(values.dtype)]))
        values = _block(values)
        beyond = _cast(values, dtype="float64").sum() > 1 + tolerance
        return values - 2 * values * _cast(beyond, dtype=values.dtype)
    array = as_parameter(name, key, _np.atleast_1d(values), ctx)
    numbers = _np.asarray(values, "float64")
    if numbers.size and not ((numbers >= 0).all() and numbers.sum() <= 1 + 1e-6):
        raise MXNetValueError(
            f"random.{name}: {key} must not be negative, and their sum must be at most 1"
        )
    return array


def multinomial(
    n: int,
    pvals: Parameter,
    size: ShapeLike | None = None,
    *,
    ctx: Context | None = None,
    device: Context | None = None,
) -> ndarray:
    """Draws how often each outcome occurs in ``n`` experiments.

    Parameters
    ----------
    n
        The number of experiments.
    pvals
        The probabilities of the outcomes, a vector whose sum is 1.
    size
        The shape of the draws; None for one.
    ctx, device
        The device of the result; None for the device of ``pvals`` or the current one.

    Returns
    -------
    int64 counts (*size, outcomes)

    Examples
    --------
    >>> np.random.multinomial(100, [0, 1, 0]).tolist()
    [0, 100, 0]
    """
    pvals = _probabilities("multinomial", "pvals", pvals, place_of(ctx, device, pvals))
    if pvals.ndim != 1:
        raise MXNetValueError(
            f"random.multinomial: pvals must have one dimension, but has the shape {pvals.shape}"
        )
    n, shape, outcomes = index(n), shape_of(size), pvals.shape[0]
    if n < 0:
        raise MXNetValueError(f"random.multinomial: n must not be negative, got {n}")
    rows = math.prod(shape)
    place = pvals.context
    if not (outcomes and rows and n):
        return _full((*shape, outcomes), 0, dtype="int64", ctx=place)
    draws = _multinomial(pvals, shape=(rows, n), dtype="int64")
    first = _arange(0, rows * outcomes, outcomes, dtype="int64", ctx=place)
    counts = _scatter_sum(
        _full((rows * n,), 1, dtype="float64", ctx=place),
        (draws + first.reshape((rows, 1))).reshape((rows * n,)),
        axis=0,
        shape=(rows * outcomes,),
    )
    return _cast(counts.reshape((*shape, outcomes)), dtype="int64")


def choice(
    a: Parameter,
    size: ShapeLike | None = None,
    replace: bool = True,
    p: Parameter | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws elements of a vector.

    Parameters
    ----------
    a
        A vector, or an integer for the vector of the int64 numbers below it.
    size
        The shape of the result; None for one element.
    replace
        Whether an element may be drawn several times.
    p
        The probabilities of the elements; None for equal ones.
    ctx, device
        The device of the result; None for the device of the arrays or the current one.
    out
        The array that the elements are written to.

    Raises MXNetError, as a ValueError, if more elements are drawn than there are, or if the lengths
    of ``a`` and ``p`` differ. The elements of an array ``a`` have gradients.

    Examples
    --------
    >>> sorted(np.random.choice(3, size=3, replace=False).tolist())
    [0, 1, 2]
    >>> np.random.choice(3, size=2, p=[0, 0, 1]).tolist()
    [2, 2]
    """
    place = place_of(ctx, device, a, p, out)
    shape = shape_of(out.shape if size is None and out is not None else size)
    items = None
    if hasattr(a, "__index__") and not isinstance(a, NDArray):
        total = index(a)
    else:
        items = _vector("choice", a, place)
        if items.ndim != 1:
            raise MXNetValueError(
                f"random.choice: a must have one dimension, but has the shape {items.shape}"
            )
        total = items.shape[0]
    count = math.prod(shape)
    if total < 1 and count:
        raise MXNetValueError("random.choice: a must not be empty")
    if p is not None:
        chances = p
        p = _probabilities("choice", "p", p, place)
        if p.shape != (total,):
            raise MXNetValueError(
                f"random.choice: p must have the shape ({total},), as a, but has {p.shape}"
            )
    if not replace and count > total:
        raise MXNetValueError(
            f"random.choice: cannot draw {count} of {total} elements without replacement"
        )
    if not replace and p is not None and not isinstance(chances, ndarray):
        possible = _np.count_nonzero(chances)
        if possible < count:
            raise MXNetValueError(
                f"random.choice: cannot draw {count} elements without replacement, because p is "
                f"above 0 for {possible}"
            )
    result = _chosen(total, shape, count, replace, p, place)
    if items is not None:
        result = _take(items, result, axis=0)
    return result if out is None else _copy_to(result, out=out)


def _vector(name, values, ctx):
    """Returns an array, or values of a dtype that arrays have, as an array with an axis 0."""
    if not isinstance(values, NDArray):
        values = _np.asarray(values)
        values = _core.array(values, ctx, values.dtype).as_np_ndarray()
    _check_axis(name, values)
    return values


def _chosen(total, shape, count, replace, p, ctx):
    """Draws `count` indices below `total` as an int64 array of the given shape."""
    if not count:
        return _full(shape, 0, dtype="int64", ctx=ctx)
    if replace:
        if p is None:
            return _integers(0, total, shape=shape, ctx=ctx, dtype="int64")
        return _multinomial(p, shape=shape, dtype="int64")
    if p is None:
        order = _shuffled(_arange(0, total, dtype="int64", ctx=ctx))
    else:
        # The first arrivals of independent Poisson processes with the rates p
        rates = _cast(_block(p), dtype="float64")
        # Draws the numbers of the distribution with the rate 1. A negative rate raises an error.
        enough = _cast(rates > 0, dtype="float64").sum() >= count
        checks = broadcast(2 * _cast(enough, dtype="float64") - 1, (total,))
        order = _argsort(_exponential(checks, dtype="float64") / rates, dtype="int64")
    return order[:count].reshape(shape)


def permutation(
    x: Parameter, *, ctx: Context | None = None, device: Context | None = None
) -> ndarray:
    """Returns the slices of an array along its first axis in random order.

    For an integer ``x``, returns the int64 numbers below it in random order. An array is not
    changed, and its elements have gradients.

    Examples
    --------
    >>> sorted(np.random.permutation(3).tolist())
    [0, 1, 2]
    """
    place = place_of(ctx, device, x)
    if hasattr(x, "__index__") and not isinstance(x, NDArray):
        return _shuffled(_arange(0, index(x), dtype="int64", ctx=place))
    x = _vector("permutation", x, place)
    order = _shuffled(_arange(0, x.shape[0], dtype="int64", ctx=x.context))
    return _take(x, order, axis=0)


def shuffle(x: ndarray) -> None:
    """Changes the order of an array's slices along its first axis, in place.

    Raises MXNetError if autograd records or if a block is traced; `permutation` works there.

    Examples
    --------
    >>> x = np.random.permutation(4)
    >>> np.random.shuffle(x)
    >>> sorted(x.tolist())
    [0, 1, 2, 3]
    """
    _check_axis("shuffle", x)
    if _core.is_recording() or x._traced or graph_breaks.thread.tracing is not None:
        raise _core.MXNetError(
            "random.shuffle: an array cannot be shuffled in place while autograd records or a "
            "block is traced; use x = np.random.permutation(x)"
        )
    if x.shape[0]:
        _copy_to(_shuffled(x), out=x)


def _check_axis(name, x):
    check(f"random.{name}", x=x)
    if x.ndim == 0:
        raise MXNetValueError(f"random.{name}: x must have at least one dimension")
