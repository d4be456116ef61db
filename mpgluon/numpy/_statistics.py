"""Averages, deviations and other statistics of mx.np, composed of ops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import MXNetTypeError, MXNetValueError, NotSupportedError, ndarray
from ._arguments import (
    axes_of,
    axis_of,
    broadcast,
    check,
    choose,
    constant,
    filled,
    flat,
    into,
    is_float,
    joined,
    of_values,
    op,
    part,
    real_of,
    shaped,
    transposed,
)
from ._shaping import atleast_2d

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "average",
    "bincount",
    "corrcoef",
    "cov",
    "histogram",
    "median",
    "percentile",
    "ptp",
    "quantile",
    "std",
    "var",
]

_dot = op("_npi_dot")
_histogram = op("_npi__histogram")
_isnan = op("_npi_isnan")
_max = op("_npi_max")
_mean = op("_npi_mean")
_min = op("_npi_min")
_sort = op("_npi_sort")
_sqrt = op("_npi_sqrt")
_square = op("_npi_square")
_sum = op("_npi_sum")
_take = op("_npi_take")


# --- Averages -------------------------------------------------------------------------------------
def _reduced(reduce, x, axes, keepdims=False):
    """Reduces axes >= 0. An op would read () as all axes."""
    return reduce(x, axis=axes, keepdims=keepdims) if axes else x


def average(
    a: ndarray,
    axis: Any = None,
    weights: ndarray | None = None,
    returned: bool = False,
    out: ndarray | None = None,
    *,
    keepdims: bool = False,
) -> Any:
    """Returns weighted averages along axes.

    Parameters
    ----------
    a : ndarray
        The values. Averages of integers are float32.
    axis : int or tuple of int, optional
        The axes; by default, all.
    weights : ndarray, optional
        Weights of the shape of `a`, or a vector of weights along one axis. By default, all are 1.
    returned : bool
        Also return the sums of the weights.
    out : ndarray, optional
        The array that receives the averages.
    keepdims : bool
        Keep the axes with size 1.

    Returns
    -------
    ndarray or list of ndarray
        The averages, or with `returned`, the averages and the sums of the weights, of equal shapes.

    Raises
    ------
    TypeError, ValueError
        If the shape of the weights does not fit.

    Source: numpy.average

    Examples
    --------
    >>> x, weights = (mx.nd.array(v).as_np_ndarray() for v in ([[1, 2], [3, 4]], [3, 1]))
    >>> mx.np.average(x, axis=1, weights=weights).asnumpy().tolist()
    [1.25, 3.25]
    """
    check("average", a=a)
    x, axes = real_of(a), axes_of(axis, a.ndim)
    if weights is None:
        result = into(_reduced(_mean, x, axes, keepdims), out)
        if not returned:
            return result
        return [result, filled(result.shape, math.prod(a.shape[i] for i in axes), result)]
    check("average", weights=weights)
    w = real_of(weights)
    if w.shape == a.shape:
        total = _reduced(_sum, w, axes, keepdims)
    else:
        w = _weights_along(w, axis, a.shape)
        total = _sum(w)
    result = into(_reduced(_sum, x * w, axes, keepdims) / total, out)
    return [result, broadcast(total, result.shape)] if returned else result


def _weights_along(weights, axis, shape):
    """Reshapes a vector of weights along one axis, so that it can be broadcast."""
    if axis is None or np.iterable(axis) or weights.ndim != 1:
        raise MXNetTypeError(
            f"average: weights of shape {weights.shape} must have the shape {shape} of the values, "
            "or be a vector along one axis"
        )
    place = axis_of(axis, len(shape))
    if weights.shape[0] != shape[place]:
        raise MXNetValueError(
            f"average: {weights.shape[0]} weights do not fit axis {axis} of size {shape[place]}"
        )
    return shaped(weights, [size if i == place else 1 for i, size in enumerate(shape)])


# --- Deviations -----------------------------------------------------------------------------------
def _precise(x):
    """Converts integers to floats in which they are exact (below 2**53), because a deviation can be
    far smaller than the values."""
    wide = _core.dtype_name(x.dtype) in ("int32", "int64")
    return x.astype("float64") if wide else real_of(x)


def _variance(a, axis, dtype, ddof, keepdims):
    """Returns variances, of float32 at least, and the dtype of the result."""
    axes = axes_of(axis, a.ndim)
    if dtype is None:
        x, made = _precise(a), a.dtype if is_float(a) else "float32"
    else:
        x, made = real_of(a.astype(dtype)), dtype
    if _core.dtype_name(x.dtype) in ("float16", "bfloat16"):
        x = x.astype("float32")
    centered = x - _reduced(_mean, x, axes, keepdims=True)
    result = _reduced(_mean, _square(centered), axes, keepdims)
    if ddof:
        count = math.prod(a.shape[i] for i in axes)
        result = result * count / max(count - ddof, 0)
    return result, made


def var(
    a: ndarray,
    axis: Any = None,
    dtype: Any = None,
    out: ndarray | None = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> ndarray:
    """Returns variances along axes: the averages of the squared distances from the mean.

    Parameters
    ----------
    a : ndarray
        The values. Variances of integers are float32. float16 is computed in float32.
    axis : int or tuple of int, optional
        The axes; by default, all.
    dtype : dtype, optional
        The dtype of the computation and the result.
    out : ndarray, optional
        The array that receives the result.
    ddof : float
        The sum of squares is divided by the number of values minus `ddof`.
    keepdims : bool
        Keep the axes with size 1.

    Raises
    ------
    ValueError
        If an axis is out of range.

    Source: numpy.var

    Examples
    --------
    >>> mx.np.var(mx.nd.array([[1, 2], [3, 5]]).as_np_ndarray(), axis=1).asnumpy().tolist()
    [0.25, 1.0]
    """
    check("var", a=a)
    result, dtype = _variance(a, axis, dtype, ddof, keepdims)
    return into(result.astype(dtype, copy=False), out)


def std(
    a: ndarray,
    axis: Any = None,
    dtype: Any = None,
    out: ndarray | None = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> ndarray:
    """Returns standard deviations along axes: the square roots of the variances.

    Parameters
    ----------
    a, axis, dtype, out, ddof, keepdims
        As in `var`.

    Source: numpy.std

    Examples
    --------
    >>> mx.np.std(mx.nd.array([[1, 2], [3, 5]]).as_np_ndarray(), axis=1).asnumpy().tolist()
    [0.5, 1.0]
    """
    check("std", a=a)
    result, dtype = _variance(a, axis, dtype, ddof, keepdims)
    return into(_sqrt(result).astype(dtype, copy=False), out)


def ptp(
    a: ndarray, axis: Any = None, out: ndarray | None = None, keepdims: bool = False
) -> ndarray:
    """Returns the differences between the largest and the smallest values along axes.

    Source: numpy.ptp

    Examples
    --------
    >>> mx.np.ptp(mx.nd.array([[1, 2], [3, 7]]).as_np_ndarray(), axis=1).asnumpy().tolist()
    [1.0, 4.0]
    """
    check("ptp", a=a)
    axes = axes_of(axis, a.ndim)
    return into(_reduced(_max, a, axes, keepdims) - _reduced(_min, a, axes, keepdims), out)


def cov(
    m: ndarray,
    y: ndarray | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: float | None = None,
    fweights: ndarray | None = None,
    aweights: ndarray | None = None,
    *,
    dtype: Any = None,
) -> ndarray:
    """Returns the covariances of variables.

    Parameters
    ----------
    m : ndarray
        A vector, or a matrix whose rows are variables and whose columns are observations.
    y : ndarray, optional
        More variables.
    rowvar : bool
        If False, columns are variables.
    bias : bool
        Divide by the number of observations instead of this number minus 1.
    ddof : float, optional
        Replaces the 1 that is subtracted.
    fweights, aweights : ndarray, optional
        Vectors with the number of times that each observation occurs, and with its weight.
    dtype : dtype, optional
        The dtype of the result.

    Returns
    -------
    ndarray
        A square matrix; 0-d for one variable.

    Source: numpy.cov

    Examples
    --------
    >>> mx.np.cov(mx.nd.array([[1, 2, 3], [3, 2, 1]]).as_np_ndarray()).asnumpy().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    rows = []
    for name, values in (("m", m), ("y", y)):
        if values is not None:
            check("cov", **{name: values})
            if values.ndim > 2:
                raise MXNetValueError(f"cov: {name} must have at most 2 dimensions")
            x = atleast_2d(_precise(values) if dtype is None else values.astype(dtype))
            rows.append(x if rowvar or (values.ndim < 2) else transposed(x, (1, 0)))
    made = rows[0].dtype
    if dtype is None:
        floats = [v.dtype for v in (m, y) if v is not None and is_float(v)]
        made = floats[0] if floats else "float32"
    if any(row.dtype == "float64" for row in rows):
        rows = [row.astype("float64", copy=False) for row in rows]
    x = rows[0] if y is None else joined(rows, 0)
    less = (0 if bias else 1) if ddof is None else ddof
    for name, values in (("fweights", fweights), ("aweights", aweights)):
        if values is not None:
            check("cov", **{name: values})
            if values.shape != x.shape[1:]:
                raise MXNetValueError(
                    f"cov: {name} must have the shape {x.shape[1:]}, one number for each "
                    f"observation, not {values.shape}"
                )
    factors = [real_of(w) for w in (fweights, aweights) if w is not None]
    if factors:
        weights = factors[0] * factors[1] if len(factors) == 2 else factors[0]
        total = _sum(weights)
        mean = _sum(x * weights, axis=1, keepdims=True) / total
        scaled = weights if aweights is None else weights * real_of(aweights)
        count = total - (less if aweights is None else less * _sum(scaled) / total)
        centered = x - mean
        weighted = centered * weights
    else:
        count = max(x.shape[1] - less, 0)
        centered = weighted = x - _mean(x, axis=1, keepdims=True)
    result = (_dot(weighted, centered, transpose_b=True) / count).astype(made, copy=False)
    return shaped(result, ()) if result.shape == (1, 1) else result


def corrcoef(
    x: ndarray, y: ndarray | None = None, rowvar: bool = True, *, dtype: Any = None
) -> ndarray:
    """Returns the correlation coefficients of variables, from -1 to 1.

    Parameters
    ----------
    x, y, rowvar, dtype
        As in `cov`.

    Source: numpy.corrcoef

    Examples
    --------
    >>> x = mx.np.array([[1, 2, 3], [3, 2, 1]])
    >>> mx.np.corrcoef(x).asnumpy().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return c / c
    deviations = _sqrt(op("_npi_diag")(c))
    size = c.shape[0]
    result = c / shaped(deviations, (size, 1)) / deviations
    return op("_npi_clip")(result, a_min=-1, a_max=1)


# --- Quantiles ------------------------------------------------------------------------------------
_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _positions(name, q, scale, last, method):
    """Returns the indices of the values below and above the quantiles, and the weight of the latter
    (None if it is 0). The results are vectors of NumPy, or arrays if `q` is an array, on
    which NumPy's functions call mx.np."""
    if isinstance(q, ndarray):
        place = flat(real_of(q)) * (last / scale)
    else:
        q = np.asarray(q, "float64").reshape(-1)
        if not ((q >= 0) & (q <= scale)).all():
            raise MXNetValueError(f"{name}: q must be between 0 and {scale}")
        place = q / scale * last
    if method in ("lower", "higher", "nearest"):
        round_ = {"lower": np.floor, "higher": np.ceil, "nearest": np.rint}[method]
        index = round_(place).astype("int64")
        return index, index, None
    below = np.floor(place)
    rest = place - below
    if method == "midpoint":
        rest = np.ceil(rest) / 2
    index, exact = below.astype("int64"), isinstance(rest, np.ndarray) and not rest.any()
    return index, np.clip(index + 1, 0, last), None if exact else rest


def _quantiles(name, a, q, scale, axis, out, method, keepdims):
    check(name, a=a)
    if method not in _METHODS:
        raise NotSupportedError(
            f"{name}: interpolation must be one of {', '.join(_METHODS)}, not {method!r}"
        )
    x = a if _core.dtype_name(a.dtype) == "float64" else a.astype("float32", copy=False)
    axes = axes_of(axis, a.ndim)
    free = [i for i in range(a.ndim) if i not in axes]
    count = math.prod(a.shape[i] for i in axes)
    if not count:
        raise MXNetValueError(f"{name}: a must not be empty along the axes")
    # The axes become the last one, which is sorted and then has the quantiles.
    values = shaped(transposed(x, (*free, *axes)), (*(a.shape[i] for i in free), count))
    values = _sort(values, axis=-1)
    below, above, weight = _positions(name, q, scale, count - 1, method)
    result = _taken(values, below)
    if weight is not None:
        if isinstance(weight, ndarray):
            weight = weight.astype(x.dtype, copy=False)
        else:
            weight = weight[0] if len(weight) == 1 else constant(weight, x.context, x.dtype)
        higher = _taken(values, above)
        if isinstance(weight, float) and weight == 0.5:  # exact, and right next to infinities
            result = result * 0.5 + higher * 0.5
        else:
            result = result + (higher - result) * weight
    if "float" in _core.dtype_name(a.dtype):  # NaN are sorted last
        result = choose(_isnan(part(values, len(free), count - 1, count)), math.nan, result)
    result = transposed(result, (len(free), *range(len(free))))
    kept = [1 if i in axes else size for i, size in enumerate(a.shape)]
    shape = kept if keepdims else [a.shape[i] for i in free]
    return into(shaped(result, (*np.shape(q), *shape)), out)


def _taken(values, index):
    """Returns slices along the last axis."""
    last = values.ndim - 1
    if isinstance(index, ndarray):
        return _take(values, index, axis=last)
    if len(index) == 1:
        return part(values, last, int(index[0]), int(index[0]) + 1)
    return _take(values, constant(index, values.context, "int64"), axis=last)


def percentile(
    a: ndarray,
    q: Any,
    axis: Any = None,
    out: ndarray | None = None,
    overwrite_input: bool | None = None,
    interpolation: str = "linear",
    keepdims: bool = False,
) -> ndarray:
    """Returns percentiles of the values along axes.

    Parameters
    ----------
    a : ndarray
        The values.
    q : float, sequence of float or ndarray
        Percentages from 0 to 100.
    axis : int or tuple of int, optional
        The axes; by default, all.
    out : ndarray, optional
        The array that receives the result.
    overwrite_input : bool, optional
        Has no effect.
    interpolation : str
        The result for a percentile between two values: their ``"linear"`` interpolation, the
        ``"lower"`` or ``"higher"`` one, their ``"midpoint"``, or the ``"nearest"`` one.
    keepdims : bool
        Keep the axes with size 1.

    Returns
    -------
    ndarray
        The percentiles: the axes of `q`, then the remaining axes of `a`. The dtype is float64 for
        float64, otherwise float32. Percentiles of values with NaN are NaN.

    Raises
    ------
    ValueError
        If a percentage is not between 0 and 100, or if there are no values. Percentages in an
        ndarray are not checked.

    Source: numpy.percentile

    Examples
    --------
    >>> x = mx.nd.array([[1, 2, 3], [4, 5, 9]]).as_np_ndarray()
    >>> mx.np.percentile(x, [25, 50], axis=1).asnumpy().tolist()
    [[1.5, 4.5], [2.0, 5.0]]
    """
    return _quantiles("percentile", a, q, 100, axis, out, interpolation, keepdims)


def quantile(
    a: ndarray,
    q: Any,
    axis: Any = None,
    out: ndarray | None = None,
    overwrite_input: bool | None = None,
    interpolation: str = "linear",
    keepdims: bool = False,
) -> ndarray:
    """Returns quantiles of the values along axes: `percentile` with `q` from 0 to 1.

    Raises
    ------
    ValueError
        If `q` is not between 0 and 1, or if there are no values.

    Source: numpy.quantile

    Examples
    --------
    >>> mx.np.quantile(mx.nd.array([1, 2, 4]).as_np_ndarray(), 0.75).item()
    3.0
    """
    return _quantiles("quantile", a, q, 1, axis, out, interpolation, keepdims)


def median(
    a: ndarray,
    axis: Any = None,
    out: ndarray | None = None,
    overwrite_input: bool | None = None,
    keepdims: bool = False,
) -> ndarray:
    """Returns the medians of the values along axes: `percentile` with 50.

    Raises
    ------
    ValueError
        If there are no values.

    Source: numpy.median

    Examples
    --------
    >>> x = mx.np.array([[1, 2, 9], [4, 5, 6]])
    >>> mx.np.median(x, axis=1).asnumpy().tolist()
    [2.0, 5.0]
    """
    return _quantiles("median", a, 50, 100, axis, out, "midpoint", keepdims)


# --- Counts ---------------------------------------------------------------------------------------
def histogram(
    a: ndarray,
    bins: Any = 10,
    range: Any = None,
    normed: bool | None = None,
    weights: Any = None,
    density: bool | None = None,
) -> tuple[ndarray, ndarray]:
    """Counts the values in bins.

    Parameters
    ----------
    a : ndarray
        The values.
    bins : int, sequence of float or ndarray
        The number of equal bins, or the ascending edges of the bins. The last bin includes both
        edges.
    range : tuple of float, optional
        The outermost edges of equal bins; by default, the extremes of the values. Hybridized blocks
        must pass it, because the default reads the values.
    normed, weights
        Not supported.
    density : bool, optional
        Divide the counts by their sum and by the widths of the bins.

    Returns
    -------
    tuple of ndarray
        The counts, int64 or with `density` a float dtype, and the edges. Equal bins have edges of
        the dtype of floats `a`, and float64 otherwise.

    Raises
    ------
    NotImplementedError
        For `normed`, `weights`, and names of rules as `bins`.

    Source: numpy.histogram

    Examples
    --------
    >>> counts, edges = mx.np.histogram(mx.nd.array([1, 2, 4]).as_np_ndarray(), 3)
    >>> counts.asnumpy().tolist(), edges.asnumpy().tolist()
    ([1, 1, 1], [1.0, 2.0, 3.0, 4.0])
    """
    check("histogram", a=a)
    if normed or weights is not None or isinstance(bins, str):
        raise NotSupportedError("histogram: normed, weights and rules for bins are not supported")
    x = flat(a)
    if not isinstance(bins, ndarray):
        edges = _listed_edges(bins) if np.iterable(bins) else _equal_edges(x, bins, range)
        bins = constant(edges, x.context, x.dtype if is_float(x) else edges.dtype)
    counts, edges = _histogram(*_comparable(x, bins))[0], bins
    if density:
        widths = part(edges, 0, 1, edges.size) - part(edges, 0, 0, edges.size - 1)
        counts = counts.astype(widths.dtype)
        counts = counts / (widths * _sum(counts))
    return counts, edges


def _listed_edges(bins):
    """Returns the edges in a sequence of numbers."""
    edges = np.asarray(bins)
    if (edges[:-1] > edges[1:]).any():
        raise MXNetValueError("histogram: bins must be ascending")
    return edges if edges.dtype.kind == "f" else edges.astype("int64")


def _equal_edges(x, bins, range):
    """Returns the edges of equal bins, as NumPy computes them."""
    extremes = []
    if range is None and x._traced:
        raise NotSupportedError("histogram: a hybridized block must pass a range")
    if range is None and x.size:
        extremes = [_min(x).item(), _max(x).item()]
    dtype = np.float32 if x.dtype is _core.bfloat16 else x.dtype
    return np.histogram_bin_edges(np.array(extremes, dtype), bins, range)


def _comparable(x, edges):
    """Converts values and edges to a dtype that holds both."""
    if x.dtype == edges.dtype:
        return x, edges
    dtype = "float64" if is_float(x) or is_float(edges) else "int64"
    return x.astype(dtype), edges.astype(dtype)


def bincount(x: ndarray, weights: ndarray | None = None, minlength: int = 0) -> ndarray:
    """Counts how often each number from 0 to the largest one occurs in a vector.

    Parameters
    ----------
    x : ndarray
        A vector of integers >= 0.
    weights : ndarray, optional
        A weight for each element; the result has the sums of weights.
    minlength : int
        The smallest number of counts.

    Returns
    -------
    ndarray
        The counts as int64, or the sums in the dtype of the weights.

    Source: numpy.bincount

    Examples
    --------
    >>> x = mx.np.array([2, 0, 2], dtype="int32")
    >>> mx.np.bincount(x).asnumpy().tolist()
    [1, 0, 2]
    """
    check("bincount", x=x)
    if weights is not None:
        check("bincount", weights=weights)
    return of_values(
        "_npi_bincount", [x] if weights is None else [x, weights], minlength=minlength
    )[0]
