"""NumPy functions of NDArrays that are composed of the functions in `_numpy_protocol.py`, so that
autograd records them."""

from __future__ import annotations

import math
import operator

import numpy as np

from .. import _core
from .._core import NDArray
from ._numpy_protocol import arrays_of, axes_of, implements, is_float, real_of, shaped

_op = _core.get_op


def _along(x, axis, begin, end):
    return _op("slice_axis")(x, axis=axis, begin=begin, end=end)


def _at_least(ndim, shape_of):
    """Returns the implementation of np.atleast_<ndim>d. `shape_of` maps a shape with fewer
    dimensions to the shape of the result."""

    def function(*arys):
        made = [x if x.ndim >= ndim else shaped(x, shape_of(x.shape)) for x in map(_one, arys)]
        return made[0] if len(made) == 1 else tuple(made)

    return function


def _one(value):
    return value if isinstance(value, NDArray) else np.asarray(value)


implements("atleast_1d")(_at_least(1, lambda shape: (1,)))
implements("atleast_2d")(_at_least(2, lambda shape: (1, *shape) if shape else (1, 1)))


def _as_cube(shape):
    return {0: (1, 1, 1), 1: (1, *shape, 1), 2: (*shape, 1)}[len(shape)]


_at_least_3d = implements("atleast_3d")(_at_least(3, _as_cube))


# --- Joining and splitting ------------------------------------------------------------------------
@implements("dstack")
def _dstack(tup):
    return np.concatenate([_at_least_3d(x) for x in arrays_of(tup)], axis=2)


@implements("column_stack")
def _column_stack(tup):
    columns = [shaped(x, (x.size, 1)) if x.ndim < 2 else x for x in arrays_of(tup)]
    return np.concatenate(columns, axis=1)


@implements("append")
def _append(arr, values, axis=None):
    arr, values = arrays_of((arr, values))
    if axis is None:
        arr, values, axis = np.ravel(arr), np.ravel(values), 0
    return np.concatenate([arr, values], axis=axis)


@implements("array_split")
def _array_split(ary, indices_or_sections, axis=0):
    try:
        sections = operator.index(indices_or_sections)
    except TypeError:
        return np.split(ary, indices_or_sections, axis)
    if sections <= 0:
        raise ValueError("number sections must be larger than 0.")
    (place,) = axes_of(axis, ary.ndim)
    each, more = divmod(ary.shape[place], sections)
    ends = np.cumsum([each + 1] * more + [each] * (sections - more))
    return np.split(ary, [int(end) for end in ends[:-1]], axis)


def _split_along(axis_of):
    return lambda ary, indices_or_sections: np.split(ary, indices_or_sections, axis_of(ary))


implements("vsplit")(_split_along(lambda x: 0))
implements("hsplit")(_split_along(lambda x: 1 if x.ndim > 1 else 0))
implements("dsplit")(_split_along(lambda x: 2))


# --- Moving axes and elements ---------------------------------------------------------------------
@implements("flipud")
def _flipud(m):
    return np.flip(m, 0)


@implements("fliplr")
def _fliplr(m):
    return np.flip(m, 1)


@implements("roll")
def _roll(a, shift, axis=None):
    if not isinstance(a, NDArray):
        return NotImplemented
    if axis is None:
        return shaped(_roll(np.ravel(a), shift, 0), a.shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    if len(axes) == 1 and len(shifts) > 1:
        axes = axes * len(shifts)
    for place, distance in zip(axes, shifts):
        (place,) = axes_of(place, a.ndim)
        size = a.shape[place]
        cut = -operator.index(distance) % size if size else 0
        if cut:
            parts = _along(a, place, cut, size), _along(a, place, 0, cut)
            a = np.concatenate(parts, axis=place)
    return a


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


def _triangle(lower):
    def function(m, k=0):
        if m.ndim < 2:
            return NotImplemented
        mask = np.tri(*m.shape[-2:], k=k if lower else k - 1, dtype="float32")
        mask = np.broadcast_to(mask if lower else 1 - mask, m.shape)
        return np.where(mask, m, 0)

    return function


implements("tril")(_triangle(True))
implements("triu")(_triangle(False))


# --- Products and differences ---------------------------------------------------------------------
@implements("tensordot")
def _tensordot(a, b, axes=2):
    a, b = arrays_of((a, b))
    if not is_float(a.dtype):
        return NotImplemented
    if isinstance(axes, int):
        left, right = range(a.ndim - axes, a.ndim), range(axes)
    else:
        left, right = (axis if isinstance(axis, (tuple, list)) else (axis,) for axis in axes)
    left, right = (
        axes_of(tuple(x), n) if len(x) else () for x, n in ((left, a.ndim), (right, b.ndim))
    )
    sizes = [a.shape[i] for i in left]
    if sizes != [b.shape[i] for i in right]:
        raise ValueError("shape-mismatch for sum")
    free_a = [i for i in range(a.ndim) if i not in left]
    free_b = [i for i in range(b.ndim) if i not in right]
    shape = [a.shape[i] for i in free_a] + [b.shape[i] for i in free_b]
    count = math.prod(sizes)
    rows = shaped(np.transpose(a, [*free_a, *left]), (math.prod(shape[: len(free_a)]), count))
    columns = shaped(np.transpose(b, [*right, *free_b]), (count, math.prod(shape[len(free_a) :])))
    return shaped(np.dot(rows, columns), shape)


@implements("inner")
def _inner(a, b):
    a, b = arrays_of((a, b))
    return a * b if not a.ndim or not b.ndim else _tensordot(a, b, (-1, -1))


@implements("vdot")
def _vdot(a, b):
    a, b = arrays_of((a, b))
    return np.sum(np.ravel(a) * np.ravel(b))


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
