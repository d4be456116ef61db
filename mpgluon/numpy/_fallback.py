"""Functions of mx.np that run NumPy on copies of the values.

Their results are arrays of mx.np on the device of the first array, but autograd can't record them,
and they can't be traced. `on_copies` also computes NumPy's other functions on arrays.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import NDArray, ndarray
from ..context import current_context
from ._arguments import WIDER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# Functions of mx.np, with the sentence that their docstrings begin with. Those that the installed
# NumPy lacks are omitted. If another module defines a name with ops, mx.np has that function.
FUNCTIONS = {
    "allclose": "True if all elements of two arrays are equal within a tolerance.",
    "alltrue": "True if all elements are true.",
    "apply_along_axis": "Applies a function to the 1-d slices along an axis.",
    "apply_over_axes": "Applies a reduction to several axes, one after the other.",
    "argpartition": "Returns the indices that partition an array around its k-th element.",
    "argwhere": "Returns the indices of the nonzero elements, one row per element.",
    "array_equal": "True if two arrays have the same shape and elements.",
    "array_equiv": "True if two arrays are equal after broadcasting.",
    "choose": "Selects each element from one of several arrays.",
    "compress": "Selects slices along an axis by a list of conditions.",
    "corrcoef": "Returns Pearson's correlation coefficients.",
    "correlate": "Returns the cross-correlation of two sequences.",
    "count_nonzero": "Counts the nonzero elements.",
    "cov": "Estimates a covariance matrix.",
    "digitize": "Returns the indices of the bins of the elements.",
    "divmod": "Returns the quotient, rounded down, and the remainder.",
    "extract": "Returns the elements that satisfy a condition.",
    "flatnonzero": "Returns the indices of the nonzero elements of the flattened array.",
    "float_power": "Raises elements to powers, in float64.",
    "frexp": "Splits elements into mantissas and exponents of two.",
    "heaviside": "Computes the Heaviside step function.",
    "histogram2d": "Returns the histogram of pairs of samples.",
    "histogram_bin_edges": "Returns the edges of a histogram's bins.",
    "histogramdd": "Returns the histogram of samples with several coordinates.",
    "i0": "Computes the modified Bessel function of the first kind and order 0.",
    "in1d": "True for each element of one array that is in another array.",
    "interp": "Interpolates linearly between the points of a function.",
    "intersect1d": "Returns the sorted, unique elements that are in both arrays.",
    "isclose": "True for each pair of elements that are equal within a tolerance.",
    "isin": "True for each element of one array that is in another array.",
    "ix_": "Returns open index grids of several sequences.",
    "lexsort": "Returns the indices that sort by several keys, the last key first.",
    "min_scalar_type": "Returns the smallest dtype that can hold a scalar.",
    "mirr": "Returns the modified internal rate of return.",
    "modf": "Splits elements into fractional and integral parts.",
    "may_share_memory": "True if the bounds of two arrays in memory overlap.",
    "msort": "Sorts an array along its first axis.",
    "nanargmax": "Returns the indices of the maxima, ignoring NaNs.",
    "nanargmin": "Returns the indices of the minima, ignoring NaNs.",
    "nancumprod": "Returns cumulative products, with NaNs as ones.",
    "nancumsum": "Returns cumulative sums, with NaNs as zeros.",
    "nanmax": "Returns the maxima, ignoring NaNs.",
    "nanmedian": "Returns the medians, ignoring NaNs.",
    "nanmin": "Returns the minima, ignoring NaNs.",
    "nanpercentile": "Returns percentiles, ignoring NaNs.",
    "nanprod": "Returns products, with NaNs as ones.",
    "nanquantile": "Returns quantiles, ignoring NaNs.",
    "ndim": "Returns the number of dimensions.",
    "npv": "Returns the net present value of cash flows.",
    "packbits": "Packs binary elements into the bits of uint8 elements.",
    "partition": "Partitions an array around its k-th element.",
    "piecewise": "Evaluates a function that is defined piecewise.",
    "poly": "Returns the coefficients of the polynomial with the given roots.",
    "polyadd": "Returns the sum of two polynomials.",
    "polydiv": "Returns the quotient and the remainder of two polynomials.",
    "polyfit": "Fits a polynomial by least squares.",
    "polyint": "Returns an antiderivative of a polynomial.",
    "polymul": "Returns the product of two polynomials.",
    "polysub": "Returns the difference of two polynomials.",
    "positive": "Returns a copy of a numeric array.",
    "ppmt": "Returns the payment against the principal of a loan.",
    "promote_types": "Returns the smallest dtype to which NumPy casts two dtypes.",
    "ptp": "Returns the differences between the maxima and the minima.",
    "pv": "Returns the present value of payments.",
    "rate": "Returns the rate of interest per period.",
    "real": "Returns the real parts of the elements.",
    "result_type": "Returns the dtype to which NumPy would promote the arguments.",
    "rollaxis": "Moves an axis before another axis.",
    "roots": "Returns the roots of a polynomial.",
    "searchsorted": "Returns the indices at which elements keep a sequence sorted.",
    "select": "Selects elements from a list of arrays by a list of conditions.",
    "setdiff1d": "Returns the sorted, unique elements that are only in the first array.",
    "setxor1d": "Returns the sorted, unique elements that are in only one of two arrays.",
    "shape": "Returns the sizes of the dimensions.",
    "shares_memory": "True if two arrays share memory.",
    "signbit": "True for each element whose sign bit is set.",
    "size": "Returns the number of elements, in total or along an axis.",
    "spacing": "Returns the distances to the nearest adjacent numbers.",
    "take_along_axis": "Selects elements along an axis by an array of indices.",
    "trapz": "Integrates by the trapezoidal rule.",
    "tril_indices_from": "Returns the indices of the lower triangle of a matrix.",
    "trim_zeros": "Removes zeros at the ends of a sequence.",
    "triu_indices_from": "Returns the indices of the upper triangle of a matrix.",
    "union1d": "Returns the sorted, unique elements of two arrays.",
    "unpackbits": "Unpacks uint8 elements into their bits.",
    "unwrap": "Replaces large jumps of phases by the smaller complement.",
    "vander": "Returns a Vandermonde matrix.",
}
LINALG_FUNCTIONS = {
    "lstsq": "Solves a linear system by least squares.",
    "qr": "Returns the QR decomposition of a matrix.",
}
# Names that NumPy 2 removed -> the name with the same arguments and results.
_RENAMED = {"alltrue": "all", "trapz": "trapezoid"}

# Functions of NumPy whose results have no gradient, so that they accept recorded arrays.
WITHOUT_GRADIENT = set(
    "all allclose alltrue any argmax argmin argpartition argsort argwhere array2string array_equal "
    "array_equiv array_repr array_str bincount can_cast common_type count_nonzero digitize equal "
    "flatnonzero greater greater_equal heaviside iscomplex iscomplexobj isclose isfinite isin "
    "isinf isnan isneginf isposinf isreal isrealobj less less_equal lexsort logical_and "
    "logical_not logical_or logical_xor matrix_rank min_scalar_type nanargmax nanargmin nonzero "
    "not_equal packbits promote_types result_type save savetxt savez savez_compressed "
    "searchsorted sign signbit unpackbits".split()
)
# Functions that use only the shapes and dtypes of arrays.
_OF_SHAPES = set(
    "can_cast common_type iscomplexobj isrealobj ndim promote_types result_type shape size "
    "tril_indices_from triu_indices_from".split()
)

# Functions that use the addresses of arrays.
_OF_VIEWS = {"may_share_memory", "shares_memory"}


def arrays_in(values):
    """Yields the arrays in arguments, which may be nested lists, tuples and dicts."""
    for value in values:
        if isinstance(value, NDArray):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from arrays_in(value)
        elif isinstance(value, dict):
            yield from arrays_in(value.values())


def converted(value, kind, function):
    """Applies a function to the objects of type `kind` in nested lists and tuples."""
    if isinstance(value, kind):
        return function(value)
    if not isinstance(value, (list, tuple)):
        return value
    items = [converted(item, kind, function) for item in value]
    if all(new is old for new, old in zip(items, value)):
        return value
    if hasattr(value, "_fields"):  # a named tuple, such as the result of qr
        return type(value)(*items)
    return items if isinstance(value, list) else tuple(items)


def array_of(values: np.ndarray, ctx: _core.Context) -> Any:
    """Converts NumPy's result to an array of mx.np. Arrays of dtypes that mx.np doesn't have, such
    as complex128, are returned as they are."""
    dtype = WIDER.get(values.dtype, values.dtype)
    try:
        return _core.array(values, ctx, dtype).as_np_ndarray()
    except TypeError:
        return values


def _check(name, arrays, gradient):
    """Raises an error if arrays have no values, or if a gradient would be lost."""
    if name in LINALG_FUNCTIONS:
        name = f"linalg.{name}"
    for array in arrays:
        if array._traced and isinstance(array, ndarray):
            raise _core.MXNetError(
                f"np.{name}: NumPy computes this function on copies of the values, but arrays "
                "have no values while hybridize() traces a block; call it outside of the block, "
                "or call the block without hybridize()"
            )
        if gradient and _core.is_recording() and array._wants_gradient:
            raise _core.MXNetValueError(
                f"numpy.{name}: the gradient of a recorded array would be lost, because NumPy "
                "computes this function on copies of the values; use ops, or x.asnumpy() or "
                "x.detach() for the values only"
            )


def has_values(name: str, arguments: Any) -> bool:
    """True if NumPy can compute the function on copies: its arrays have values, and no gradient
    would be lost."""
    try:
        _check(name, arrays_in(arguments), name not in WITHOUT_GRADIENT)
    except _core.MXNetError:
        return False
    return True


def _values(array):
    return array.asnumpy()


def _shape_only(array):
    """Returns a NumPy array with the shape and dtype of an array, but without its values."""
    dtype = np.dtype("float32" if array.dtype is _core.bfloat16 else array.dtype)
    return np.broadcast_to(np.zeros((), dtype), array.shape)


def _view(array):
    """Returns a view of an array on a CPU."""
    if array.context.device_type not in ("cpu", "cpu_pinned"):
        raise _core.NotSupportedError(
            f"np.may_share_memory: the array must be on a CPU, got {array.context}"
        )
    return np.asarray(array)


def on_copies(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls NumPy's function `name` on copies of the values of arrays.

    Results are arrays of mx.np on the device of the first array, or on the current device if no
    argument is an array. If all arrays are of mx.nd, results are NumPy arrays. Results for arrays
    in ``out`` are copied to these afterwards.
    """
    given = list(arrays_in((*args, kwargs)))
    copy = _shape_only if name in _OF_SHAPES else _view if name in _OF_VIEWS else _values
    if copy is _values:
        _check(name, given, name.partition(".")[0] not in WITHOUT_GRADIENT)
    args = tuple(converted(value, NDArray, copy) for value in args)
    copies = {key: converted(value, NDArray, copy) for key, value in kwargs.items()}
    result = function(*args, **copies)
    out = kwargs.get("out")
    targets = out if isinstance(out, tuple) else (out,)
    if any(isinstance(target, NDArray) for target in targets):
        written = copies["out"] if isinstance(out, tuple) else (copies["out"],)
        for target, values in zip(targets, written):
            if isinstance(target, NDArray):
                _core.get_op("_copyto")(
                    _like(target, _core.array(values, target.context, target.dtype)), out=target
                )
        return targets[0] if len(targets) == 1 else targets
    in_place = any(isinstance(target, np.ndarray) for target in targets)
    if in_place or (given and not any(isinstance(array, ndarray) for array in given)):
        return result
    ctx = given[0].context if given else current_context()
    return converted(result, np.ndarray, lambda values: array_of(values, ctx))


@functools.cache
def _positions(function):
    """Returns the names of the positional arguments, or () for functions without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # functions that NumPy implements in C may have none
        return ()
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind in named)


def with_names(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    others: Sequence[str] = (),
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of a function of NumPy, with a positional `out`, and the arguments
    after it, as keywords. The same applies to the first argument that has another position in
    `others`, the names of another function's arguments."""
    for i, name in enumerate(_positions(function)[: len(args)]):
        if name == "out" or (name in others and others.index(name) != i):
            return args[:i], {**dict(zip(_positions(function)[i:], args[i:])), **kwargs}
    return args, kwargs


def _like(target, array):
    return array.as_np_ndarray() if isinstance(target, ndarray) else array


def _refuse_nd(name, values):
    if any(not isinstance(array, ndarray) for array in arrays_in(values)):
        raise _core.MXNetTypeError(
            f"np.{name}: expected arrays of mx.np, got an array of mx.nd; use x.as_np_ndarray()"
        )


def _copying(name, function, text, module):
    """Returns mx.np's function for a function of NumPy."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _refuse_nd(name, (*args, kwargs))
        return on_copies(name, function, *with_names(function, args, kwargs))

    call.on_copies = True
    call.__name__ = call.__qualname__ = name
    call.__module__ = module
    call.__doc__ = (
        f"{text}\n\nRuns ``{function.__module__ or 'numpy'}.{function.__name__}``, which documents "
        "the arguments, on copies of the values.\nAutograd doesn't record it."
    )
    with contextlib.suppress(ValueError):  # functions that NumPy implements in C may have none
        call.__signature__ = inspect.signature(function)
    return call


def _numpys(module, name):
    """Returns NumPy's function, which may have been renamed, or None."""
    return getattr(module, name, None) or getattr(module, _RENAMED.get(name, name), None)


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """Returns mx.np's function for a name in `__all__`."""
    return _copying(name, _numpys(np, name), FUNCTIONS[name], __package__)


__all__ = [name for name in FUNCTIONS if _numpys(np, name)]
# Functions of mx.np.linalg.
LINALG = {
    name: _copying(name, getattr(np.linalg, name), text, f"{__package__}.linalg")
    for name, text in LINALG_FUNCTIONS.items()
}
