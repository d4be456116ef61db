"""NumPy functions of NDArrays that call functions of mx.np, or that are composed of functions in
`_numpy_protocol.py`. So autograd records them."""

from __future__ import annotations

import inspect
import operator

import numpy as np

from .. import _core
from .._core import NDArray
from ..numpy._fallback import converted
from ._numpy_protocol import arrays_of, axes_of, implements, is_float, real_of

_op = _core.get_op


# --- Functions of mx.np ---------------------------------------------------------------------------
def _views(value):
    return converted(value, NDArray, lambda array: array.as_np_ndarray())


def _nd_views(value):
    return converted(value, NDArray, lambda array: array.as_nd_ndarray())


def _kept(arguments):
    """Accepts arguments whose first one is an array, or a list of arrays."""
    first = arguments[0]
    return arguments if isinstance(first, NDArray) else NotImplemented


def _all_separate(arguments):
    """Converts all arguments to arrays."""
    return arrays_of(arguments, joined=False)


def _list_joined(arguments):
    """Converts the arrays in the first argument, a list, to a common dtype."""
    return [arrays_of([*arguments[0]]), *arguments[1:]]


def _two_joined(arguments):
    """Converts the first two arguments to arrays of a common dtype."""
    return [*arrays_of(arguments[:2]), *arguments[2:]]


def _two_reals(arguments):
    """Converts the first two arguments to arrays of a common dtype, which must not be integer."""
    joined = _two_joined(arguments)
    return joined if is_float(joined[0].dtype) else NotImplemented


def _rule(name, prepare):
    """Returns a rule that calls a function of mx.np with views of the arrays, which share the place
    in the recorded computation."""

    def rule(*args, **kwargs):
        from .. import numpy as package

        function = getattr(package, name)
        try:
            arguments = inspect.signature(function).bind(*args, **kwargs)
        except TypeError:  # an argument that mx.np lacks
            return NotImplemented
        given = prepare(arguments.args)
        if given is NotImplemented or arguments.kwargs:
            return NotImplemented
        return _nd_views(function(*map(_views, given)))

    return rule


for _names, _prepare in (
    ("flipud fliplr roll array_split vsplit hsplit dsplit tril triu", _kept),
    ("atleast_1d atleast_2d atleast_3d", _all_separate),
    ("vstack row_stack hstack dstack column_stack", _list_joined),
    ("append outer", _two_joined),
    ("tensordot inner vdot", _two_reals),
):
    for _name in _names.split():
        implements(_name)(_rule(_name, _prepare))


# --- Compositions ---------------------------------------------------------------------------------
def _along(x, axis, begin, end):
    return _op("slice_axis")(x, axis=axis, begin=begin, end=end)


def _constant_edge(array, axis, count, value):
    """Returns an array filled with `value`, like `array` but with `count` elements along an
    axis."""
    if array.shape[axis] == 0 or array.dtype == np.bool_:
        shape = [count if i == axis else size for i, size in enumerate(array.shape)]
        return _op("_full")(shape=shape, value=value, ctx=array.context, dtype=array.dtype)
    # Derive the sizes from the array at run time, so that exported blocks accept other sizes.
    row = _op("zeros_like")(_op("slice_axis")(array, axis=axis, begin=0, end=1))
    return _op("repeat")(row + value if value else row, repeats=count, axis=axis)


@implements("pad")
def _pad(array, pad_width, mode="constant", **options):
    if mode != "constant" or not isinstance(array, NDArray) or {*options} - {"constant_values"}:
        return NotImplemented
    value = options.get("constant_values", 0)
    if not isinstance(value, (int, float)) or isinstance(pad_width, dict):
        return NotImplemented
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2))
    if widths.dtype.kind != "i" or (widths < 0).any():
        return NotImplemented
    for axis, ends in enumerate(widths.tolist()):
        edges = [[_constant_edge(array, axis, count, value)] if count else [] for count in ends]
        array = np.concatenate([*edges[0], array, *edges[1]], axis=axis)
    return array


# --- Diagonals and triangles ----------------------------------------------------------------------
@implements("diag")
def _diag(v, k=0):
    if v.ndim not in (1, 2):
        raise ValueError("Input must be 1- or 2-d.")
    return _op("diag")(v, k=operator.index(k))


@implements("trace")
def _trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    if a.ndim != 2 or dtype is not None or out is not None or {axis1 % 2, axis2 % 2} != {0, 1}:
        return NotImplemented
    return np.sum(_op("diag")(a, k=offset if axis1 % 2 == 0 else -offset))


# --- Products and differences ---------------------------------------------------------------------
@implements("diff")
def _diff(a, n=1, axis=-1, **options):
    if options or not isinstance(a, NDArray) or not a.ndim:
        return NotImplemented
    (axis,) = axes_of(axis, a.ndim)
    for _ in range(operator.index(n)):
        size = a.shape[axis]
        a = _along(a, axis, min(1, size), size) - _along(a, axis, 0, max(size - 1, 0))
    return a


@implements("ptp")
def _ptp(a, axis=None, out=None, keepdims=False):
    if out is not None:
        return NotImplemented
    return np.max(a, axis=axis, keepdims=keepdims) - np.min(a, axis=axis, keepdims=keepdims)


@implements("full_like")
def _full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, *, device=None):
    if not isinstance(fill_value, (int, float)) or shape is not None or not isinstance(a, NDArray):
        return NotImplemented
    dtype = a.dtype if dtype is None else dtype
    return _op("_full")(shape=a.shape, value=fill_value, ctx=a.context, dtype=dtype)


@implements("average")
def _average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    if weights is None and not returned:
        return np.mean(a, axis=axis, keepdims=keepdims)
    if returned or np.shape(weights) != np.shape(a):
        return NotImplemented
    a, weights = arrays_of((a, weights))
    total = np.sum(weights, axis=axis, keepdims=keepdims)
    return np.sum(real_of(a) * real_of(weights), axis=axis, keepdims=keepdims) / real_of(total)
