"""NumPy's functions on NDArrays: ``np.exp(x)``, ``np.concatenate([x, y])``, ``np.mean(x, axis=0)``.

Functions that this module implements with ops return NDArrays and are recorded. They accept NumPy's
arguments and return NumPy's shapes. If NumPy converts integers to float64, they convert them to
float32. An implementation returns NotImplemented for arguments that the ops do not support. In this
case, and for all other functions, NumPy computes on copies of the values and returns NumPy arrays.
``mpgluon.numpy._nd_rules`` registers the functions that call mx.np.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import NDArray, bfloat16
from . import functions

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_op = _core.get_op
_UNSET = object()

# Ufuncs that are operators of NDArray -> index of the operator for `_core._binary`.
_OPERATORS = {
    np.add: 0,
    np.subtract: 1,
    np.multiply: 2,
    np.true_divide: 3,
    np.remainder: 4,
    np.power: 5,
    np.equal: 6,
    np.not_equal: 7,
    np.greater: 8,
    np.greater_equal: 9,
    np.less: 10,
    np.less_equal: 11,
}
_BINARY = {
    np.maximum: functions.maximum,
    np.minimum: functions.minimum,
    np.hypot: functions.hypot,
    np.logical_and: functions.logical_and,
    np.logical_or: functions.logical_or,
    np.logical_xor: functions.logical_xor,
}
# Ufuncs of real numbers -> op. Integers are converted to float32.
_REAL = {
    getattr(np, name): name
    for name in (
        "exp expm1 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh tanh arcsin arccos arctan "
        "arcsinh arccosh arctanh degrees radians"
    ).split()
} | {np.rad2deg: "degrees", np.deg2rad: "radians"}
_UNARY = {
    getattr(np, name): name
    for name in "abs sign floor ceil trunc square negative reciprocal logical_not".split()
} | {np.fabs: "abs", np.positive: "_copy", np.conjugate: "_copy"}
_REDUCTIONS = {np.add: np.sum, np.multiply: np.prod, np.maximum: np.max, np.minimum: np.min}

_FUNCTIONS: dict[Any, Callable[..., Any]] = {}


def implements(*names):
    """Registers a function as the implementation of NumPy functions, if this NumPy has them."""

    def register(function):
        for name in names:
            try:
                _FUNCTIONS[operator.attrgetter(name)(np)] = function
            except AttributeError:  # missing in this version of NumPy
                continue
        return function

    return register


# --- Arguments ------------------------------------------------------------------------------------
def is_float(dtype):
    return dtype is bfloat16 or np.dtype(dtype).kind == "f"


def real_of(x):
    """Converts integers to float32."""
    return x if is_float(x.dtype) else x.astype("float32")


def wide_of(x):
    """Converts integers to int64, in which NumPy sums them."""
    return x if is_float(x.dtype) else x.astype("int64")


def arrays_of(values, joined=True):
    """Converts values, some of which are NDArrays, to NDArrays on the same device.

    If `joined`, all are converted to a common dtype. Values other than NDArrays do not affect it,
    except that floats turn an integer dtype into float32.
    """
    ours = [value for value in values if isinstance(value, NDArray)]
    kinds = list(dict.fromkeys(array.dtype for array in ours))
    if len(kinds) == 1:
        dtype = kinds[0]
    elif bfloat16 in kinds:
        dtype = np.float32
    else:
        dtype = np.result_type(*kinds).type
    others = [value if isinstance(value, NDArray) else np.asarray(value) for value in values]
    if not is_float(dtype) and any(
        isinstance(value, np.ndarray) and value.dtype.kind == "f" for value in others
    ):
        dtype = np.float32
    made = [
        value if isinstance(value, NDArray) else functions.array(value, ours[0].context, dtype)
        for value in others
    ]
    return [value.astype(dtype, copy=False) for value in made] if joined else made


def axes_of(axis, ndim):
    """Normalizes NumPy's axis argument to axes >= 0; None means all."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    found = []
    for i in axes:
        i = operator.index(i)
        if not -ndim <= i < ndim:
            raise np.exceptions.AxisError(i, ndim)
        found.append(i % ndim)
    if len(set(found)) < len(found):
        raise ValueError("duplicate value in 'axis'")
    return tuple(found)


def shaped(x, shape):
    """Reshapes an array to `shape`, which may be (). Sizes are literal: 0 is not a code."""
    shape = tuple(shape)
    return x if x.shape == shape else _op("_reshape_exact")(x, shape=shape)


def cast(x, dtype):
    return x if dtype is None else x.astype(dtype)


# --- Output arrays ------------------------------------------------------------------------------
def into(result, out):
    """Writes the result to ``out`` if given, and returns it."""
    if out is None or result is NotImplemented:
        return result
    if not isinstance(out, NDArray):
        return NotImplemented
    if out.shape != result.shape:
        raise ValueError(f"out has shape {out.shape}, but the result has shape {result.shape}")
    return _op("_copyto")(result.astype(out.dtype, copy=False), out=out)


# --- The protocols --------------------------------------------------------------------------------
def of_ufunc(ufunc: np.ufunc, method: str, inputs: Any, kwargs: dict[str, Any]) -> Any:
    """Computes a ufunc with ops. Returns NotImplemented if no op supports the arguments."""
    if not kwargs and method == "__call__":
        return _of_ufunc(ufunc, inputs)
    return _with_options(ufunc, method, inputs, dict(kwargs))


def _with_options(ufunc, method, inputs, options):
    if method == "reduce" and ufunc in _REDUCTIONS:
        options.setdefault("axis", 0)
        options["out"] = options.get("out", (None,))[0]
        return _FUNCTIONS[_REDUCTIONS[ufunc]](*inputs, **options)
    if method != "__call__" or [*options] != ["out"] or not isinstance(options["out"][0], NDArray):
        return NotImplemented
    if not any(isinstance(x, NDArray) for x in inputs):
        return NotImplemented
    return into(_of_ufunc(ufunc, inputs), options["out"][0])


def _operands(ufunc, left, right):
    """Converts the arguments of a binary function that is not an operator.

    Integers next to real numbers become real.
    """
    arrays = [x for x in (left, right) if isinstance(x, NDArray)]
    if all(is_float(x.dtype) for x in arrays):
        return left, right
    left, right = arrays_of((left, right))
    return (real_of(left), real_of(right)) if ufunc is np.hypot else (left, right)


def _real_operands(left, right):
    """Returns the arguments, with all NDArrays converted to real numbers if all are integers."""
    arrays = [x for x in (left, right) if isinstance(x, NDArray)]
    if any(is_float(x.dtype) for x in arrays):
        return left, right
    return [real_of(x) if isinstance(x, NDArray) else x for x in (left, right)]


def _of_ufunc(ufunc, inputs):
    number = _OPERATORS.get(ufunc)
    if number is not None or ufunc in _BINARY:
        left, right = inputs
        if isinstance(left, (list, tuple)) or isinstance(right, (list, tuple)):
            left, right = arrays_of(inputs, joined=False)
        if ufunc is np.true_divide:
            left, right = _real_operands(left, right)
        if number is not None:
            return _core._binary(number, left, right)
        return _BINARY[ufunc](*_operands(ufunc, left, right))
    if ufunc in _REAL:
        return _op(_REAL[ufunc])(real_of(inputs[0]))
    if ufunc in _UNARY:
        return _op(_UNARY[ufunc])(inputs[0])
    if ufunc in _FUNCTIONS:
        return _FUNCTIONS[ufunc](*inputs)
    return NotImplemented


def of_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Computes a function with ops. Returns NotImplemented if no op supports the arguments."""
    rule = _FUNCTIONS.get(function)
    return NotImplemented if rule is None else rule(*args, **kwargs)


# --- Ufuncs composed of several ops ---------------------------------------------------------------
@implements("exp2")
def _exp2(x):
    return functions.power(2, real_of(x))


def _truth(op):
    """Returns an implementation of a predicate that leaves arrays with values to NumPy, whose
    result has dtype bool, and calls the op for traced arrays."""
    return lambda x: _op(op)(x) if x._traced else NotImplemented


implements("isnan")(_truth("_contrib_isnan"))
implements("isinf")(_truth("_contrib_isinf"))
implements("isfinite")(_truth("_contrib_isfinite"))


# --- Reductions -----------------------------------------------------------------------------------
@functools.cache
def _twin(op):
    return _op(f"_npi_{op}")


def _reduce(op, x, axis, keepdims, **params):
    """Calls the op of mx.np, whose results may have no dimensions."""
    axes = axes_of(axis, x.ndim)
    if not axes:
        return _op("_copy")(x)
    return _twin(op)(x.as_np_ndarray(), axis=axes, keepdims=keepdims, **params).as_nd_ndarray()


def _reduction(op, prepare, *names):
    def function(a, axis=None, dtype=None, out=None, keepdims=False, initial=_UNSET, where=True):
        if initial is not _UNSET or where is not True or not isinstance(a, NDArray):
            return NotImplemented
        if prepare is None:  # max and min have no dtype
            return into(_reduce(op, a, axis, keepdims), out)
        return into(_reduce(op, prepare(cast(a, dtype)), axis, keepdims), out)

    if prepare is not None:
        implements(*names)(function)
        return

    def without_dtype(
        a, axis=None, out=None, keepdims=False, initial=_UNSET, where=True, dtype=None
    ):
        return function(a, axis, None, out, keepdims, initial, where)

    implements(*names)(without_dtype)


_reduction("sum", wide_of, "sum")
_reduction("prod", wide_of, "prod")
_reduction("nansum", wide_of, "nansum")
_reduction("nanprod", wide_of, "nanprod")
_reduction("max", None, "max", "amax")
_reduction("min", None, "min", "amin")


@implements("mean")
def _mean(a, axis=None, dtype=None, out=None, keepdims=False, *, where=True):
    if where is not True or not isinstance(a, NDArray):
        return NotImplemented
    return into(_reduce("mean", real_of(cast(a, dtype)), axis, keepdims), out)


@implements("linalg.norm")
def _norm(x, ord=None, axis=None, keepdims=False):
    vectors = isinstance(axis, int) or x.ndim == 1
    if not (ord is None or (vectors and ord in (1, 2))):
        return NotImplemented
    return _reduce("norm", real_of(x), axis, keepdims, ord=ord or 2)


def _chosen(op):
    def function(a, axis=None, out=None, *, keepdims=False):
        if not isinstance(a, NDArray) or not a.ndim or out is not None:
            return NotImplemented
        length = a.size if axis is None else a.shape[axes_of(axis, a.ndim)[0]]
        wide = a.dtype in (np.float64, np.int64, np.int32)
        if length > 2**24 and not wide:
            return NotImplemented  # the op returns float32 indices, which are exact up to 2**24
        shape = [1] * a.ndim
        if axis is not None:
            (axis,) = axes_of(axis, a.ndim)
            shape = [1 if i == axis else size for i, size in enumerate(a.shape)]
            if not keepdims:
                del shape[axis]
        elif not keepdims:
            shape = []
        found = _op(op)(a if wide else a.astype("float32", copy=False), axis=axis)
        # An index over all elements is used as a list index, so it must be an integer. Indices
        # along an axis are usually compared with labels, so they keep the op's dtype.
        return shaped(found.astype("int64") if axis is None else found, shape)

    return function


implements("argmax")(_chosen("argmax"))
implements("argmin")(_chosen("argmin"))


@implements("cumsum")
def _cumsum(a, axis=None, dtype=None, out=None):
    x = wide_of(cast(a, dtype))
    if axis is not None:
        (axis,) = axes_of(axis, x.ndim)
    return into(_op("cumsum")(x, axis=axis), out)


@implements("sort")
def _sort(a, axis=-1, kind=None, order=None, *, stable=None):
    if not a.ndim and axis is not None:
        return NotImplemented
    return _op("sort")(a if axis is not None else _ravel(a), axis=-1 if axis is None else axis)


@implements("argsort")
def _argsort(a, axis=-1, kind=None, order=None, *, stable=None):
    if not a.ndim and axis is not None:
        return NotImplemented
    x = a if axis is not None else _ravel(a)
    return _op("argsort")(x, axis=-1 if axis is None else axis, dtype="int64")


# --- Elements -------------------------------------------------------------------------------------
@implements("clip")
def _clip(a, a_min=None, a_max=None, out=None, *, min=None, max=None, **options):
    lowest = min if a_min is None else a_min
    highest = max if a_max is None else a_max
    if options or not isinstance(a, NDArray):
        return NotImplemented
    limits = [limit for limit in (lowest, highest) if limit is not None]
    whole = all(isinstance(limit, (int, np.integer)) for limit in limits)
    if len(limits) == 2 and all(isinstance(limit, (int, float, np.number)) for limit in limits):
        a = a if whole else real_of(a)
        return into(_op("clip")(a, a_min=lowest, a_max=highest), out)
    result = a if lowest is None else _of_ufunc(np.maximum, (a, lowest))
    result = result if highest is None else _of_ufunc(np.minimum, (result, highest))
    return into(_op("_copy")(a) if result is a else result, out)


@implements("fix")
def _fix(x, out=None):
    return into(_op("fix")(x), out)


@implements("where")
def _where(condition, *values):
    if not values:
        return NotImplemented
    like = next(v for v in (*values, condition) if isinstance(v, NDArray))
    if not isinstance(condition, NDArray):
        condition = functions.array(np.asarray(condition, bool), like.context)
    if any(isinstance(v, NDArray) for v in values):
        left, right = arrays_of(values)
    else:
        left, right = (functions.array(v, like.context) for v in values)
    shape = np.broadcast_shapes(condition.shape, left.shape, right.shape)
    return _op("where")(*(_broadcast_to(x, shape) for x in (condition, left, right)))


def _filled_like(op):
    def function(a, dtype=None, order="K", subok=True, shape=None, *, device=None):
        return cast(_op(op)(a), dtype) if shape is None else NotImplemented

    return function


implements("zeros_like")(_filled_like("zeros_like"))
implements("ones_like")(_filled_like("ones_like"))


@implements("full_like")
def _full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, *, device=None):
    if not isinstance(fill_value, (int, float)) or shape is not None or not isinstance(a, NDArray):
        return NotImplemented
    dtype = a.dtype if dtype is None else dtype
    return _op("_full")(shape=a.shape, value=fill_value, ctx=a.context, dtype=dtype)


@implements("copy")
def _copy(a, order="K", subok=False):
    return _op("_copy")(a)


# --- Shapes ---------------------------------------------------------------------------------------
@implements("shape")
def _shape(a):
    return a.shape if isinstance(a, NDArray) else NotImplemented


@implements("ndim")
def _ndim(a):
    return a.ndim if isinstance(a, NDArray) else NotImplemented


@implements("size")
def _size(a, axis=None):
    if not isinstance(a, NDArray):
        return NotImplemented
    return a.size if axis is None else math.prod(a.shape[i] for i in axes_of(axis, a.ndim))


@implements("reshape")
def _reshape(a, shape=None, order="C", *, newshape=None, copy=None):
    shape = newshape if shape is None else shape
    if order != "C" or shape is None:
        return NotImplemented
    shape = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
    if -1 in shape:
        known = math.prod(size for size in shape if size != -1)
        if shape.count(-1) > 1 or not known or a.size % known:
            raise ValueError(f"cannot reshape array of size {a.size} into shape {tuple(shape)}")
        shape[shape.index(-1)] = a.size // known
    return _op("_reshape_exact")(a, shape=tuple(shape))


@implements("ravel")
def _ravel(a, order="C"):
    return shaped(a, (a.size,)) if order == "C" else NotImplemented


@implements("transpose", "permute_dims")
def _transpose(a, axes=None):
    if a.ndim < 2:
        return _op("_copy")(a)
    return _op("transpose")(a) if axes is None else _op("transpose")(a, axes=axes_of(axes, a.ndim))


@implements("swapaxes")
def _swapaxes(a, axis1, axis2):
    return _op("swapaxes")(a, dim1=axis1, dim2=axis2)


@implements("moveaxis")
def _moveaxis(a, source, destination):
    return functions.moveaxis(a, source, destination)


@implements("expand_dims")
def _expand_dims(a, axis):
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    new = axes_of(axes, a.ndim + len(axes))
    sizes = iter(a.shape)
    return shaped(a, [1 if i in new else next(sizes) for i in range(a.ndim + len(axes))])


@implements("squeeze")
def _squeeze(a, axis=None):
    if axis is None:
        return shaped(a, [size for size in a.shape if size != 1])
    axes = axes_of(axis, a.ndim)
    if any(a.shape[i] != 1 for i in axes):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return shaped(a, [size for i, size in enumerate(a.shape) if i not in axes])


@implements("broadcast_to")
def _broadcast_to(array, shape, subok=False):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if array.shape == shape:
        return array
    if len(shape) < array.ndim or np.broadcast_shapes(array.shape, shape) != shape:
        raise ValueError(f"an array of shape {array.shape} cannot be broadcast to {shape}")
    whole = shaped(array, (1,) * (len(shape) - array.ndim) + array.shape)
    return _op("broadcast_to")(whole, shape=shape)


@implements("concatenate", "concat")
def _concatenate(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    if isinstance(arrays, NDArray):
        arrays = list(arrays)
    if not any(isinstance(array, NDArray) for array in arrays):
        return NotImplemented
    arrays = arrays_of([*arrays])
    if axis is None:
        arrays, axis = [_ravel(array) for array in arrays], 0
    (axis,) = axes_of(axis, arrays[0].ndim)
    return into(cast(_op("concat")(*arrays, dim=axis), dtype), out)


@implements("stack")
def _stack(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    if isinstance(arrays, NDArray):
        arrays = list(arrays)
    if not any(isinstance(array, NDArray) for array in arrays):
        return NotImplemented
    arrays = arrays_of([*arrays])
    (axis,) = axes_of(axis, arrays[0].ndim + 1)
    return into(cast(_op("stack")(*arrays, axis=axis), dtype), out)


@implements("split")
def _split(ary, indices_or_sections, axis=0):
    (axis,) = axes_of(axis, ary.ndim)
    length = ary.shape[axis]
    if isinstance(indices_or_sections, (int, np.integer)):
        if indices_or_sections < 1 or length % indices_or_sections:
            return NotImplemented
        part = length // indices_or_sections
        ends = [part * i for i in range(1, indices_or_sections + 1)]
    else:
        ends = [slice(None, int(i)).indices(length)[1] for i in indices_or_sections] + [length]
    starts = [0, *ends[:-1]]
    pick = (slice(None),) * axis
    return [ary[(*pick, slice(start, max(start, end)))] for start, end in zip(starts, ends)]


@implements("tile")
def _tile(A, reps):
    return _op("tile")(A, reps=(reps,) if isinstance(reps, int) else tuple(reps))


@implements("diag")
def _diag(v, k=0):
    if v.ndim not in (1, 2):
        raise ValueError("Input must be 1- or 2-d.")
    return _op("diag")(v, k=operator.index(k))


@implements("repeat")
def _repeat(a, repeats, axis=None):
    if not isinstance(repeats, (int, np.integer)):
        return NotImplemented
    return _op("repeat")(a, repeats=repeats, axis=axis)


@implements("flip")
def _flip(m, axis=None):
    return _op("flip")(m, axis=axes_of(axis, m.ndim))


@implements("take")
def _take(a, indices, axis=None, out=None, mode="raise"):
    if not isinstance(a, NDArray):
        return NotImplemented
    if not isinstance(indices, NDArray):
        indices = functions.array(np.asarray(indices), a.context, "int64")
    source, axis = (_ravel(a), 0) if axis is None else (a, axes_of(axis, a.ndim)[0])
    shape = source.shape[:axis] + indices.shape + source.shape[axis + 1 :]
    length = source.shape[axis]
    if mode == "raise":  # like the op's mode 'raise', but negative indices count from the end
        indices = functions.add(indices, (indices < 0) * length)
    return into(shaped(_op("take")(source, indices, axis=axis, mode=mode), shape), out)


# --- Products -------------------------------------------------------------------------------------
@implements("dot")
def _dot(a, b, out=None):
    a, b = arrays_of((a, b))
    if not a.ndim or not b.ndim:
        return into(a * b, out)
    if b.ndim > 2 or not is_float(a.dtype):
        return NotImplemented
    return into(shaped(_op("dot")(a, b), a.shape[:-1] + b.shape[1:]), out)


# --- Memory ---------------------------------------------------------------------------------------
@implements("shares_memory", "may_share_memory")
def _shares_memory(a, b, max_work=None):
    return np.may_share_memory(np.asarray(a), np.asarray(b))
