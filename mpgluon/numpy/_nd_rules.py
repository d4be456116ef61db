"""NumPy's functions of arrays of mx.nd that call functions of mx.np.

They run on views of the arrays, which share the place in the recorded computation. The results are
the ones that `mpgluon.ndarray._numpy_protocol` documents.
"""

from __future__ import annotations

import inspect
import operator
from typing import TYPE_CHECKING

import numpy as np

from .. import numpy as package
from .._core import NDArray
from ..ndarray._numpy_protocol import (
    arrays_of,
    axes_of,
    cast,
    implements,
    into,
    is_float,
    real_of,
    wide_of,
)
from ._fallback import converted

if TYPE_CHECKING:
    from typing import Any


def _views(value):
    return converted(value, NDArray, lambda array: array.as_np_ndarray())


def _call(function, *args, **kwargs):
    """Calls a function of mx.np with views of arrays of mx.nd, and returns arrays of mx.nd."""
    result = function(*map(_views, args), **{key: _views(value) for key, value in kwargs.items()})
    return converted(result, NDArray, lambda array: array.as_nd_ndarray())


# --- Functions with the arguments of mx.np --------------------------------------------------------
def _kept(arguments):
    """Accepts arguments whose first one is an array."""
    return arguments if isinstance(arguments[0], NDArray) else NotImplemented


def _all_separate(arguments):
    """Converts all arguments to arrays."""
    return arrays_of(arguments, joined=False)


def _list_joined(arguments):
    """Converts the arrays in the first argument, a list, to a common dtype."""
    return [arrays_of([*arguments[0]]), *arguments[1:]]


def _two_joined(arguments):
    """Converts the first two arguments to arrays of a common dtype."""
    return [*arrays_of(arguments[:2]), *arguments[2:]]


def _two_numbers(arguments):
    """Converts the first two arguments to arrays of a common dtype, which must not be bool."""
    joined = _two_joined(arguments)
    return NotImplemented if joined[0].dtype == np.bool_ else joined


def _rule(function, prepare):
    """Returns a rule that calls a function of mx.np with prepared arguments."""
    signature = inspect.signature(function)

    def rule(*args, out=None, dtype=None, casting="same_kind", **kwargs):
        try:
            arguments = signature.bind(*args, **kwargs)
        except TypeError:  # an argument that mx.np lacks
            return NotImplemented
        given = prepare(arguments.args)
        if given is NotImplemented or arguments.kwargs:
            return NotImplemented
        return into(cast(_call(function, *given), dtype), out)

    return rule


for _names, _prepare in (
    ("flipud fliplr roll array_split vsplit hsplit dsplit tril triu linalg.det linalg.inv", _kept),
    ("atleast_1d atleast_2d atleast_3d", _all_separate),
    ("vstack row_stack hstack dstack column_stack", _list_joined),
    ("append outer", _two_joined),
    ("inner tensordot vdot", _two_numbers),
):
    for _name in _names.split():
        implements(_name)(_rule(operator.attrgetter(_name)(package), _prepare))


# --- Products -------------------------------------------------------------------------------------
@implements("matmul")
def matmul(a: Any, b: Any) -> Any:
    """Multiplies matrices of mx.nd; the axes before the last two are broadcast. Returns
    NotImplemented for integers. The operator ``@`` of arrays calls it."""
    a, b = arrays_of((a, b))
    if not is_float(a.dtype) or not a.ndim or not b.ndim:
        return NotImplemented
    return package.matmul(a.as_np_ndarray(), b.as_np_ndarray()).as_nd_ndarray()


# --- Statistics -----------------------------------------------------------------------------------
def _deviation(name):
    function = getattr(package, name)

    def rule(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, **options):
        if where is not True or options or not isinstance(a, NDArray):
            return NotImplemented
        axes = axes_of(axis, a.ndim)
        return into(_call(function, real_of(cast(a, dtype)), axes, None, None, ddof, keepdims), out)

    return rule


implements("var")(_deviation("var"))
implements("std")(_deviation("std"))


@implements("average")
def _average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    shape = np.shape(a)
    axes = axes_of(axis, len(shape))
    if weights is not None:
        if np.shape(weights) != shape and (axis is None or np.ndim(weights) != 1 or len(axes) != 1):
            return NotImplemented
        a, weights = arrays_of((a, weights))
    axis = axes[0] if len(axes) == 1 else axes
    result = _call(package.average, a, axis, weights, returned, keepdims=keepdims)
    return tuple(result) if returned else result


@implements("ptp")
def _ptp(a, axis=None, out=None, keepdims=False):
    if not isinstance(a, NDArray):
        return NotImplemented
    return into(_call(package.ptp, a, axes_of(axis, a.ndim), keepdims=keepdims), out)


# --- Rounding -------------------------------------------------------------------------------------
@implements("rint")
def _rint(x):
    """Rounds halves to even, unlike mx.nd.rint."""
    return _call(package.rint, real_of(x))


@implements("round", "around", "round_")
def _round(a, decimals=0, out=None):
    if is_float(a.dtype):
        return into(_call(package.around, a, decimals), out)
    return NotImplemented if decimals < 0 else into(a.copy(), out)


# --- Differences and diagonals --------------------------------------------------------------------
@implements("diff")
def _diff(a, n=1, axis=-1, **options):
    if options or not isinstance(a, NDArray) or not a.ndim:
        return NotImplemented
    return _call(package.diff, a, n, *axes_of(axis, a.ndim))


@implements("trace")
def _trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    if not isinstance(a, NDArray) or a.ndim < 2:
        return NotImplemented
    x = wide_of(a) if dtype is None else a.astype(dtype)
    return into(_call(package.trace, x, offset, axis1, axis2), out)


# --- Padding --------------------------------------------------------------------------------------
@implements("pad")
def _pad(array, pad_width, mode="constant", **options):
    value = options.get("constant_values", 0)
    if not isinstance(array, NDArray) or not isinstance(value, (int, float)):
        return NotImplemented
    if isinstance(pad_width, dict) or callable(mode):
        return NotImplemented
    widths = np.asarray(pad_width)
    if widths.dtype.kind != "i" or (widths < 0).any():
        return NotImplemented
    try:
        return _call(package.pad, array, widths, mode, **options)
    except NotImplementedError:
        return NotImplemented
