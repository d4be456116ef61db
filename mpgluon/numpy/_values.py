"""Functions of mx.np for the values of arrays: comparisons, differences, different and nonzero
elements, polynomials and windows."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import MXNetTypeError, MXNetValueError, ndarray
from ._arguments import (
    axes_of,
    axis_of,
    check,
    choose,
    common_shape,
    constant,
    filled,
    flat,
    is_float,
    joined,
    of_values,
    op,
    part,
    refuse_recorded,
)

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "allclose",
    "argwhere",
    "array_equal",
    "array_equiv",
    "blackman",
    "count_nonzero",
    "diff",
    "ediff1d",
    "flatnonzero",
    "hamming",
    "hanning",
    "isclose",
    "nan_to_num",
    "nonzero",
    "polyval",
    "unique",
]

_abs = op("_npi_abs")
_arange = op("_npi__arange")
_cos = op("_npi_cos")
_full = op("_npi__full")
_isfinite = op("_npi_isfinite")
_isnan = op("_npi_isnan")
_slice_axis = op("_npi_slice_axis")
_split = op("_npi__split_v2")
_squeeze = op("_npi_squeeze")
_take = op("_npi_take")
_sum = op("_npi_sum")


# --- Comparisons ----------------------------------------------------------------------------------
def isclose(
    a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> ndarray:
    """True for elements of `a` whose distance from `b` is at most ``atol + rtol * abs(b)``.

    Parameters
    ----------
    a, b : ndarray or float
        The values; at least one must be an array of mx.np, and the other may be one of NumPy. Equal
        infinities are close.
    rtol, atol : float
        The relative and the absolute tolerance.
    equal_nan : bool
        Treat NaN as close to NaN.

    Source: numpy.isclose

    Examples
    --------
    >>> mx.np.isclose(mx.nd.array([1, 2]).as_np_ndarray(), 1.000001).asnumpy().tolist()
    [True, False]
    """
    if isinstance(a, (int, float, np.generic)):
        check("isclose", b=b)
        a = filled((), a, _real_of(b))
    elif isinstance(b, (int, float, np.generic)):
        check("isclose", a=a)
        b = filled((), b, _real_of(a))
    a, b = map(_real_of, _comparable("isclose", a=a, b=b))
    close = (_abs(a - b) <= _abs(b) * rtol + atol) * _isfinite(b) + (a == b)
    return close + _isnan(a) * _isnan(b) if equal_nan else close


def _real_of(x):
    """Converts integers to float64, in which int32 are exact."""
    return x if is_float(x) else x.astype("float64")


def _comparable(function, **values):
    """Returns two arguments as arrays of one dtype. One may be a list or an array of NumPy."""
    like = next((x for x in values.values() if isinstance(x, ndarray)), None)
    for name, x in values.items():
        if like is not None and isinstance(x, (list, tuple, np.ndarray)):
            x = np.asarray(x)
            values[name] = constant(x, like.context, x.dtype)
    check(function, **values)
    arrays = values.values()
    if len({x.dtype for x in arrays}) == 1:
        return arrays
    dtype = "float64" if any(is_float(x) for x in arrays) else "int64"
    return [x.astype(dtype, copy=False) for x in arrays]


def _decided(x):
    """Returns a 0-d array as a bool, or unchanged if it is traced."""
    return x if x._traced else bool(x.item())


def allclose(
    a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    """True if all elements are close, as defined by `isclose`.

    Returns
    -------
    bool
        In hybridized blocks, a 0-d array of bool.

    Source: numpy.allclose

    Examples
    --------
    >>> x = mx.nd.array([1, 2]).as_np_ndarray()
    >>> mx.np.allclose(x, x + 1e-9)
    True
    """
    return _decided(_all(isclose(a, b, rtol, atol, equal_nan)))


def _all(truth):
    """Returns a 0-d array of bool."""
    return _sum((truth == 0).astype("int64")) == 0


def array_equal(a1: ndarray, a2: ndarray, equal_nan: bool = False) -> Any:
    """True if two arrays have the same shape and equal elements.

    Parameters
    ----------
    a1, a2 : ndarray
        The arrays, of any dtypes. One of them may be an array of NumPy.
    equal_nan : bool
        Treat NaN as equal to NaN.

    Returns
    -------
    bool
        In hybridized blocks, a 0-d array of bool, or False for arrays of different shapes.

    Source: numpy.array_equal

    Examples
    --------
    >>> x = mx.nd.array([1, 2]).as_np_ndarray()
    >>> mx.np.array_equal(x, x)
    True
    """
    a1, a2 = _comparable("array_equal", a1=a1, a2=a2)
    if a1.shape != a2.shape:
        return False
    equal = a1 == a2
    return _decided(_all(equal + _isnan(a1) * _isnan(a2) if equal_nan else equal))


def array_equiv(a1: ndarray, a2: ndarray) -> Any:
    """True if two arrays can be broadcast to a common shape and then have equal elements.

    Returns
    -------
    bool
        In hybridized blocks, a 0-d array of bool, or False for shapes that do not match.

    Source: numpy.array_equiv

    Examples
    --------
    >>> mx.np.array_equiv(mx.nd.ones((2, 3)).as_np_ndarray(), mx.nd.ones(3).as_np_ndarray())
    True
    """
    a1, a2 = _comparable("array_equiv", a1=a1, a2=a2)
    try:
        common_shape(a1.shape, a2.shape)
    except ValueError:
        return False
    return _decided(_all(a1 == a2))


# --- Differences ----------------------------------------------------------------------------------
def diff(
    a: ndarray, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None
) -> ndarray:
    """Returns the differences of neighbors along an axis, `n` times.

    Parameters
    ----------
    a : ndarray
        An array with at least one dimension. Differences of bools are True if these differ.
    n : int
        The number of repetitions.
    axis : int
        The axis.
    prepend, append : ndarray or float, optional
        Values that are joined to the array first. A number is repeated to the shape of a slice.

    Raises
    ------
    ValueError
        If the array has no dimensions, `n` is negative, or the axis is out of range.

    Source: numpy.diff

    Examples
    --------
    >>> mx.np.diff(mx.nd.array([1, 2, 5]).as_np_ndarray()).asnumpy().tolist()
    [1.0, 3.0]
    """
    check("diff", a=a)
    n = operator.index(n)
    if n < 0:
        raise MXNetValueError(f"diff: n must not be negative, got {n}")
    if not a.ndim:
        raise MXNetValueError("diff: a must have at least one dimension")
    axis = axis_of(axis, a.ndim)
    if n == 0:
        return op("_npi__copy")(a)
    edge = (*a.shape[:axis], 1, *a.shape[axis + 1 :])
    ends = [
        [] if x is None else [x if isinstance(x, ndarray) and x.ndim else _edge(x, edge, a)]
        for x in (prepend, append)
    ]
    if ends != [[], []]:
        a = joined([*ends[0], a, *ends[1]], axis)
    for _ in range(n):
        size = a.shape[axis]
        right, left = part(a, axis, min(1, size), size), part(a, axis, 0, max(size - 1, 0))
        a = right != left if _core.dtype_name(a.dtype) == "bool" else right - left
    return a


def _edge(x, shape, like):
    """Returns a number, an array without axes, or a list of NumPy as an array to join."""
    if isinstance(x, (list, tuple, np.ndarray)) and np.ndim(x):
        return constant(x, like.context, like.dtype)
    return filled(shape, 1, like) * x if isinstance(x, ndarray) else filled(shape, x, like)


def ediff1d(ary: ndarray, to_end: Any = None, to_begin: Any = None) -> ndarray:
    """Returns the differences of neighbors in C order, between other values.

    Parameters
    ----------
    ary : ndarray
        The array.
    to_end, to_begin : ndarray, float or list, optional
        Values after and before the differences, flattened.

    Source: numpy.ediff1d

    Examples
    --------
    >>> x = mx.nd.array([[1, 2], [5, 9]]).as_np_ndarray()
    >>> mx.np.ediff1d(x, to_begin=0).asnumpy().tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    check("ediff1d", ary=ary)
    refuse_recorded("ediff1d", "to_begin", to_begin)
    refuse_recorded("ediff1d", "to_end", to_end)
    found = diff(flat(ary))
    before, after = (
        []
        if x is None
        else [flat(x)]
        if isinstance(x, ndarray)
        else [constant(np.ravel(x), found.context, found.dtype)]
        if isinstance(x, (list, tuple, np.ndarray))
        else [filled((1,), x, found)]
        for x in (to_begin, to_end)
    )
    return joined([*before, found, *after], 0) if before or after else found


# --- Elements -------------------------------------------------------------------------------------
def nan_to_num(
    x: ndarray,
    copy: bool = True,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> ndarray:
    """Replaces NaN and infinities by numbers.

    Parameters
    ----------
    x : ndarray
        The array. Integers are returned as they are.
    copy : bool
        If False, write the result to `x`.
    nan : float
        The number for NaN.
    posinf, neginf : float, optional
        The numbers for infinities; by default, the largest and the smallest number of the dtype.

    Source: numpy.nan_to_num

    Examples
    --------
    >>> x = mx.nd.array([1, float("nan"), float("inf")]).as_np_ndarray()
    >>> mx.np.nan_to_num(x, posinf=9).asnumpy().tolist()
    [1.0, 0.0, 9.0]
    """
    check("nan_to_num", x=x)
    if not is_float(x):
        return op("_npi__copy")(x) if copy else x
    limit = _largest(x)
    result = choose(_isnan(x), nan, x)
    result = choose(x == math.inf, limit if posinf is None else posinf, result)
    result = choose(x == -math.inf, -limit if neginf is None else neginf, result)
    if copy or x._in_trace:  # values of hybridized blocks are never overwritten
        return result
    return op("_npi__copyto")(result, out=x)


def _largest(x):
    name = _core.dtype_name(x.dtype)
    return 3.3895313892515355e38 if name == "bfloat16" else float(np.finfo(name).max)


def nonzero(a: ndarray) -> tuple[ndarray, ...]:
    """Returns the indices of the elements that are not 0, in C order.

    Returns
    -------
    tuple of ndarray
        A vector of int64 for each axis. An array without dimensions is treated as a vector.

    Source: numpy.nonzero

    Examples
    --------
    >>> x = mx.nd.array([[0, 7], [1, 0]]).as_np_ndarray()
    >>> [i.asnumpy().tolist() for i in mx.np.nonzero(x)]
    [[0, 1], [1, 0]]
    """
    check("nonzero", a=a)
    return tuple(_columns(_places_of(a), max(a.ndim, 1)))


def _places_of(a):
    """Returns the indices of the nonzero elements, one row per element."""
    return of_values("_npi_nonzero", [a])[0]


def _columns(rows, count):
    """Returns the columns of a matrix whose number of rows depends on values."""
    return [
        _squeeze(_slice_axis(rows, axis=1, begin=i, end=i + 1), axis=(1,)) for i in range(count)
    ]


def argwhere(a: ndarray) -> ndarray:
    """Returns the indices of the elements that are not 0, one row per element, as int64.

    Source: numpy.argwhere

    Examples
    --------
    >>> mx.np.argwhere(mx.nd.array([[0, 7], [1, 0]]).as_np_ndarray()).asnumpy().tolist()
    [[0, 1], [1, 0]]
    """
    check("argwhere", a=a)
    return _places_of(a)


def flatnonzero(a: ndarray) -> ndarray:
    """Returns the indices in C order of the elements that are not 0, as int64.

    Source: numpy.flatnonzero

    Examples
    --------
    >>> mx.np.flatnonzero(mx.nd.array([[0, 7], [1, 0]]).as_np_ndarray()).asnumpy().tolist()
    [1, 2]
    """
    check("flatnonzero", a=a)
    return _columns(_places_of(flat(a)), 1)[0]


def count_nonzero(a: ndarray, axis: Any = None, *, keepdims: bool = False) -> ndarray:
    """Counts the elements that are not 0 along axes, as int64.

    Source: numpy.count_nonzero

    Examples
    --------
    >>> x = mx.nd.array([[0, 7], [1, 2]]).as_np_ndarray()
    >>> mx.np.count_nonzero(x, axis=1).asnumpy().tolist()
    [1, 2]
    """
    check("count_nonzero", a=a)
    truth, axes = (a != 0).astype("int64"), axes_of(axis, a.ndim)
    return _sum(truth, axis=axes, keepdims=keepdims) if axes else truth


def unique(
    ar: ndarray,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    """Returns the different elements, in ascending order.

    The gradient of an element is passed to its first occurrence.

    Parameters
    ----------
    ar : ndarray
        The array.
    return_index : bool
        Also return the index at which each value first occurs.
    return_inverse : bool
        Also return the index in the result of each element.
    return_counts : bool
        Also return how often each value occurs.
    axis : int, optional
        Return the different slices along this axis, instead of elements.

    Returns
    -------
    ndarray or tuple of ndarray
        The values; then, if requested, vectors of int64.

    Raises
    ------
    ValueError
        If the axis is out of range.

    Source: numpy.unique

    Examples
    --------
    >>> x = mx.nd.array([3, 1, 3]).as_np_ndarray()
    >>> values, counts = mx.np.unique(x, return_counts=True)
    >>> values.asnumpy().tolist(), counts.asnumpy().tolist()
    ([1.0, 3.0], [1, 2])
    """
    check("unique", ar=ar)
    if axis is not None:
        axis = axis_of(axis, ar.ndim)
    differentiable = is_float(ar) and (_core.is_recording() or ar._in_trace)
    found = of_values(
        "_npi_unique",
        [ar],
        return_index=bool(return_index) or differentiable,
        return_inverse=bool(return_inverse),
        return_counts=bool(return_counts),
        axis=axis,
    )
    if differentiable:
        first = found[1] if return_index else found.pop(1)
        found[0] = _take(flat(ar), first) if axis is None else _take(ar, first, axis=axis)
    return found[0] if len(found) == 1 else tuple(found)


# --- Polynomials and windows ----------------------------------------------------------------------
def polyval(p: ndarray, x: ndarray) -> ndarray:
    """Returns the values of a polynomial.

    Parameters
    ----------
    p : ndarray
        A vector of the coefficients, from the highest power to the constant.
    x : ndarray
        The points.

    Raises
    ------
    ValueError
        If `p` is not a vector.

    Source: numpy.polyval

    Examples
    --------
    >>> p, x = (mx.nd.array(v).as_np_ndarray() for v in ([1, 0, 2], [0, 3]))
    >>> mx.np.polyval(p, x).asnumpy().tolist()
    [2.0, 11.0]
    """
    check("polyval", p=p, x=x)
    if p.ndim != 1:
        raise MXNetValueError(f"polyval: p must have one dimension, not {p.ndim}")
    if not p.size:
        return x * 0
    parts = _split(p, indices=(), sections=p.size, axis=0, squeeze_axis=True)
    first, *rest = parts if isinstance(parts, (list, tuple)) else [parts]
    result = first * filled(x.shape, 1, x)
    for coefficient in rest:  # Horner's method
        result = result * x + coefficient
    return result


def _window(name, M, dtype, ctx, terms):
    """Returns a sum of cosines over one period, with the factors `terms`."""
    if not isinstance(M, (int, np.integer)):
        raise MXNetTypeError(f"{name}: M must be an integer, not {type(M).__name__}")
    if M < 2:
        return _full(shape=(max(M, 0),), value=1, dtype=dtype, ctx=ctx)
    turns = _arange(start=0, stop=M, dtype="float64", ctx=ctx) * (2 * math.pi / (M - 1))
    result = terms[0] + terms[1] * _cos(turns)
    for i, term in enumerate(terms[2:], 2):
        result = result + term * _cos(turns * i)
    return result.astype(dtype)


def hanning(M: int, dtype: Any = "float32", ctx: Any = None) -> ndarray:
    """Returns the Hann window of `M` points, which is 0 at both ends.

    Source: numpy.hanning

    Examples
    --------
    >>> mx.np.hanning(5).asnumpy().tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return _window("hanning", M, dtype, ctx, (0.5, -0.5))


def hamming(M: int, dtype: Any = "float32", ctx: Any = None) -> ndarray:
    """Returns the Hamming window of `M` points, which is 0.08 at both ends.

    Source: numpy.hamming

    Examples
    --------
    >>> mx.np.hamming(3).asnumpy().round(2).tolist()
    [0.07999999821186066, 1.0, 0.07999999821186066]
    """
    return _window("hamming", M, dtype, ctx, (0.54, -0.46))


def blackman(M: int, dtype: Any = "float32", ctx: Any = None) -> ndarray:
    """Returns the Blackman window of `M` points, which is 0 at both ends.

    Source: numpy.blackman

    Examples
    --------
    >>> mx.np.blackman(5).asnumpy().round(2) + 0
    array([0.  , 0.34, 1.  , 0.34, 0.  ], dtype=float32)
    """
    return _window("blackman", M, dtype, ctx, (0.42, -0.5, 0.08))
