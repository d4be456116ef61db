"""Samplers that NumPy doesn't have, as in ``mxnet.numpy_extension.random``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import MXNetValueError, ndarray
from .._internal.numpy_hints import list_names as _list_names
from ..numpy._arguments import check
from ..numpy._draws import Call, op, shape_of
from ..numpy.random import seed

if TYPE_CHECKING:
    from .._core import Context
    from .._internal.types import DType, ShapeLike
    from ..numpy._draws import Parameter

__all__ = ["bernoulli", "categorical", "normal_n", "seed", "uniform_n"]

_multinomial, _sigmoid = op("_sample_multinomial"), op("sigmoid")


def bernoulli(
    prob: Parameter | None = None,
    logit: Parameter | None = None,
    size: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    out: ndarray | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws ones with probability ``prob``, or with the logarithm ``logit`` of the odds, and zeros.

    Parameters
    ----------
    prob, logit
        One of both. Their gradients are zero.
    size
        The shape of the result; None for the shape of the parameter.
    dtype
        Any dtype; None for float32.
    ctx, device
        The device of the result; None for the parameter's or the current one.
    out
        The array that the numbers are written to.

    Raises MXNetError, as a ValueError, if both or neither are given, or for probabilities outside
    [0, 1]. Elements of arrays are checked when the numbers are drawn.

    Examples
    --------
    >>> npx.random.bernoulli(prob=np.random.uniform(size=(2, 3))).shape
    (2, 3)
    >>> npx.random.bernoulli(1, size=2).tolist()
    [1.0, 1.0]
    """
    if (prob is None) == (logit is None):
        raise MXNetValueError("random.bernoulli: give either prob or logit")
    key, value = ("prob", prob) if logit is None else ("logit", logit)
    call = Call("bernoulli", {key: value}, size, dtype, ctx, device, out)
    if logit is None:
        prob = call.checked(*call.values(prob="be from 0 to 1"))
    else:
        (logit,) = call.values()
        prob = _sigmoid(logit if isinstance(logit, ndarray) else call.filled(logit))
    return call.finish(call.noise("uniform", 0, 1) < prob)


def uniform_n(
    low: Parameter = 0.0,
    high: Parameter = 1.0,
    batch_shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws uniform numbers for every element of the parameters.

    The result has the shape ``(*batch_shape, *shape)`` for parameters that are broadcast to
    ``shape``. `mx.np.random.uniform` describes the other arguments.

    Examples
    --------
    >>> npx.random.uniform_n(np.random.rand(3), 2, batch_shape=(5, 4)).shape
    (5, 4, 3)
    """
    call = _batch("uniform_n", {"low": low, "high": high}, batch_shape, dtype, ctx, device)
    return call.uniform(*call.values())


def normal_n(
    loc: Parameter = 0.0,
    scale: Parameter = 1.0,
    batch_shape: ShapeLike | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
    *,
    device: Context | None = None,
) -> ndarray:
    """Draws normal numbers for every element of the parameters, which have gradients.

    The result has the shape ``(*batch_shape, *shape)`` for parameters that are broadcast to
    ``shape``. `mx.np.random.normal` describes the other arguments.

    Examples
    --------
    >>> npx.random.normal_n(np.random.rand(3), 2, batch_shape=(5, 4)).shape
    (5, 4, 3)
    """
    call = _batch("normal_n", {"loc": loc, "scale": scale}, batch_shape, dtype, ctx, device)
    return call.normal(*call.values(scale="not be negative"))


def _batch(name, params, batch_shape, dtype, ctx, device):
    call = Call(name, params, None, dtype, ctx, device, None)
    call.shape = (*shape_of(batch_shape), *call.shape)
    return call


def categorical(
    data: ndarray,
    shape: ShapeLike | None = None,
    get_prob: bool = False,
    dtype: DType = "int32",
) -> ndarray | list[ndarray]:
    """Draws indices with the probabilities in the last axis of ``data``.

    Parameters
    ----------
    data
        Array (..., outcomes) of probabilities; rows are divided by their sums.
    shape
        The shape of the draws per row; None for one.
    get_prob
        Also return the logarithms of the drawn probabilities, which have gradients.
    dtype
        The dtype of the indices.

    Examples
    --------
    >>> npx.random.categorical(npx.random.bernoulli(1, size=(2, 1)), shape=3).tolist()
    [[0, 0, 0], [0, 0, 0]]
    """
    check("random.categorical", data=data)
    result = _multinomial(data, shape=shape_of(shape), get_prob=get_prob, dtype=dtype)
    return list(result) if get_prob else result


_list_names(__name__)
