"""Tolerances, and comparison of arrays."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING

import numpy as np

from .. import bfloat16, ndarray as nd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    from .._internal.types import ArrayLike

    Tolerance: TypeAlias = float | Mapping[Any, float] | None
    Tolerances: TypeAlias = dict[Any, float]


__all__ = [
    "almost_equal",
    "assert_allclose",
    "assert_almost_equal",
    "assert_almost_equal_ignore_nan",
    "assert_almost_equal_with_err",
    "assign_each",
    "assign_each2",
    "compare_ndarray_tuple",
    "default_atols",
    "default_numeric_eps",
    "default_rtols",
    "effective_dtype",
    "find_max_violation",
    "get_tolerance",
    "get_tols",
    "np_reduce",
    "same",
    "same_array",
]


def _table(float16, float32, float64, exact):
    """Returns a table by dtype; `bfloat16`, which NumPy lacks, gets twice the float16 value."""
    table: dict[Any, float] = {
        np.dtype(np.float16): float16,
        bfloat16: 2 * float16,
        np.dtype(np.float32): float32,
        np.dtype(np.float64): float64,
    }
    if exact:
        names = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64"
        table.update((np.dtype(name), 0) for name in names.split())
    return table


def default_rtols() -> Tolerances:
    """Returns the relative tolerance of each dtype, a dict."""
    return _table(1e-2, 1e-4, 1e-5, True)


def default_atols() -> Tolerances:
    """Returns the absolute tolerance of each dtype, a dict."""
    return _table(1e-1, 1e-3, 1e-20, True)


def default_numeric_eps() -> Tolerances:
    """Returns the step of numerical gradients for each dtype, a dict of powers of two."""
    return _table(2.0**-6, 2.0**-9, 2.0**-14, False)


def _values(value):
    """Converts an array, a list or a number to NumPy values."""
    return value.asnumpy() if isinstance(value, nd.NDArray) else np.asarray(value)


def effective_dtype(dat: Any) -> Any:
    """Returns the dtype whose precision a value has: a numpy.dtype, or `mpgluon.bfloat16`."""
    dtype = getattr(dat, "dtype", None)
    if dtype is None:
        dtype = np.asarray(dat).dtype
    return dtype if dtype is bfloat16 else np.dtype(dtype)


def get_tolerance(dat: Any, tol: Tolerance, default_tol: Mapping[Any, float]) -> float:
    """Returns the tolerance for comparing `dat`.

    It is `tol` if that is a number, or its entry for the dtype of `dat` if it is a dict, else the
    entry of `default_tol`.
    """
    if isinstance(tol, numbers.Number):
        return float(tol)  # type: ignore[arg-type]
    dtype = effective_dtype(dat)
    given = tol.get(dtype) if tol else None  # type: ignore[union-attr]
    return default_tol[dtype] if given is None else given


def get_tols(x: Any, y: Any, rtol: Tolerance = None, atol: Tolerance = None) -> tuple[float, float]:
    """Returns ``(rtol, atol)`` for two values; the defaults are those of the less precise dtype."""
    rtols, atols = default_rtols(), default_atols()
    return (
        max(get_tolerance(x, rtol, rtols), get_tolerance(y, rtol, rtols)),
        max(get_tolerance(x, atol, atols), get_tolerance(y, atol, atols)),
    )


def same(a: ArrayLike, b: ArrayLike) -> bool:
    """True if shapes and all values are equal (NaN is never equal)."""
    return np.array_equal(_values(a), _values(b))


def same_array(array1: nd.NDArray, array2: nd.NDArray) -> bool:
    """True if two arrays share their memory.

    It adds to the first array and reads the second; afterwards it restores the values, up to
    rounding.
    """
    array1[:] += 1
    shown = same(array1, array2)
    array1[:] -= 1
    return shown and same(array1, array2)


def _check_shapes(a, b):
    if a.shape != b.shape:
        raise AssertionError(f"shapes differ: a.shape = {a.shape} and b.shape = {b.shape}")


def almost_equal(
    a: ArrayLike,
    b: ArrayLike,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    use_broadcast: bool = True,
) -> bool:
    """True if ``|a - b| <= atol + rtol * |b|`` everywhere.

    The default tolerances are those of float64. Raises AssertionError if the shapes differ and
    `use_broadcast` is False.
    """
    a, b = _values(a), _values(b)
    if not use_broadcast:
        _check_shapes(a, b)
    rtol = 1e-5 if rtol is None else rtol
    atol = 1e-20 if atol is None else atol
    return np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def find_max_violation(
    a: ArrayLike, b: ArrayLike, rtol: float | None = None, atol: float | None = None
) -> tuple[Any, Any]:
    """Returns (position, size) of the largest difference, in units of the allowed one."""
    rtol, atol = get_tols(a, b, rtol, atol)
    a, b = np.broadcast_arrays(_values(a).astype(np.float64), _values(b).astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        violation = np.abs(a - b) / (atol + rtol * np.abs(b) + 1e-300)
    violation = np.where(a == b, 0.0, np.where(np.isnan(violation), np.inf, violation))
    if violation.size == 0:
        return (), 0.0
    place = np.unravel_index(np.argmax(violation), violation.shape)
    return tuple(int(i) for i in place), float(violation[place])


def _raise_unless_close(a, b, rtol, atol, etol, names, equal_nan, mismatches):
    rtol, atol = get_tols(a, b, rtol, atol)
    a, b = _values(a), _values(b)
    try:
        a, b = np.broadcast_arrays(a, b)
    except ValueError:
        raise AssertionError(f"shapes differ: {names[0]} {a.shape}, {names[1]} {b.shape}") from None
    close = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)
    wrong = int(np.count_nonzero(~close))
    if wrong <= etol * close.size:
        return
    place, worst = find_max_violation(
        np.where(close, 0, a.astype(np.float64)), np.where(close, 0, b), rtol, atol
    )
    lines = [
        f"{wrong} of {close.size} values differ by more than rtol={rtol:g}, atol={atol:g}; "
        f"worst at {place}: {worst:.3g} times that",
        f"Location of maximum error: {place}, {names[0]}={float(a[place]):.8f}, "
        f"{names[1]}={float(b[place]):.8f}",
    ]
    for where in np.argwhere(~close)[: mismatches[0]]:
        where = tuple(int(i) for i in where)
        lines.append(f"  {where}: {names[0]}={a[where]!r} {names[1]}={b[where]!r}")
    raise AssertionError("\n".join(lines))


def assert_almost_equal(
    a: ArrayLike,
    b: ArrayLike,
    rtol: Tolerance = None,
    atol: Tolerance = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    use_broadcast: bool = True,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """Raises AssertionError, with the largest differences, unless ``|a - b| <= atol + rtol * |b|``.

    Parameters
    ----------
    a, b : NDArray, numpy.ndarray, list or number
        The arrays to compare.
    rtol, atol : float, dict of dtype to float, or None
        By default the tolerances of the less precise dtype: `default_rtols`, `default_atols`.
    names : two str
        The names of the arrays in the message.
    equal_nan : bool, default False
        True if NaN equals NaN.
    use_broadcast : bool, default True
        True to compare shapes that broadcast to each other.
    mismatches : two int
        The maximum number of differences in the message; the second is kept for MXNet and ignored.
    """
    if not use_broadcast:
        _check_shapes(_values(a), _values(b))
    _raise_unless_close(a, b, rtol, atol, 0, names, equal_nan, mismatches)


def assert_allclose(
    a: ArrayLike, b: ArrayLike, rtol: float = 1e-07, atol: float = 0, equal_nan: bool = True
) -> None:
    """Calls `assert_almost_equal` with the defaults of NumPy's assert_allclose."""
    assert_almost_equal(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def assert_almost_equal_with_err(
    a: ArrayLike,
    b: ArrayLike,
    rtol: Tolerance = None,
    atol: Tolerance = None,
    etol: float | None = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """Calls `assert_almost_equal`, but allows the fraction `etol` of the values to differ more.

    For instance, 0.01 is one in a hundred.
    """
    _raise_unless_close(a, b, rtol, atol, etol or 0, names, equal_nan, mismatches)


def assert_almost_equal_ignore_nan(
    a: ArrayLike,
    b: ArrayLike,
    rtol: Tolerance = None,
    atol: Tolerance = None,
    names: tuple[str, str] = ("a", "b"),
) -> None:
    """Calls `assert_almost_equal` on the elements that are NaN in neither array."""
    x, y = _values(a).copy(), _values(b).copy()
    missing = np.isnan(x) | np.isnan(y)
    x[missing] = 0
    y[missing] = 0
    assert_almost_equal(x, y, rtol, atol, names)


def compare_ndarray_tuple(t1: Any, t2: Any, rtol: Tolerance = None, atol: Tolerance = None) -> None:
    """Calls `assert_almost_equal` on arrays, or on tuples of them; None is skipped."""
    if t1 is None or t2 is None:
        return
    if isinstance(t1, tuple):
        for one, other in zip(t1, t2):
            compare_ndarray_tuple(one, other, rtol, atol)
    else:
        assert_almost_equal(t1, t2, rtol=rtol, atol=atol)


def assign_each(
    the_input: np.ndarray[Any, Any], function: Callable[[Any], Any] | None
) -> np.ndarray[Any, Any]:
    """Applies `function` to each value, as float64; copies the array if it is None."""
    values = np.array(the_input)
    if function is None:
        return values
    return np.array([function(value) for value in values.flat], np.float64).reshape(values.shape)


def assign_each2(
    input1: np.ndarray[Any, Any],
    input2: np.ndarray[Any, Any],
    function: Callable[[Any, Any], Any] | None,
) -> np.ndarray[Any, Any]:
    """Applies `function` to pairs of values, as float64; copies the first array if it is None."""
    first = np.array(input1)
    if function is None:
        return first
    second = np.asarray(input2)
    _check_shapes(first, second)
    results = [function(one, other) for one, other in zip(first.flat, second.flat)]
    return np.array(results, np.float64).reshape(first.shape)


def np_reduce(
    dat: np.ndarray[Any, Any],
    axis: int | list[int] | tuple[int, ...] | None,
    keepdims: bool,
    numpy_reduce_func: Callable[..., Any],
) -> Any:
    """Applies ``numpy_reduce_func(dat, axis=i)``, such as ``numpy.sum``, to one axis after another.

    axis: an int, several, or None for all. keepdims: True to keep the axes, with length 1.
    """
    axes = [axis] if isinstance(axis, int) else range(dat.ndim) if axis is None else list(axis)
    result = dat
    for i in sorted(axes, reverse=True):
        result = numpy_reduce_func(result, axis=i)
    if keepdims:
        shape = list(dat.shape)
        for i in axes:
            shape[i] = 1
        result = result.reshape(tuple(shape))
    return result
