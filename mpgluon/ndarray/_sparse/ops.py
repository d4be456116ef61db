"""Ops on sparse arrays. Some ops have a sparse form, a function in this module. All other ops run
on dense copies.

A sparse form takes the op's user-facing arguments. It returns NotImplemented for cases that must
run on dense copies. Results have the same storage type as in MXNet.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from ... import _core
from ..._core import NDArray
from ..._internal import ranks
from ..._internal.kinds import is_numpy
from .arrays import BaseSparseNDArray, CSRNDArray, RowSparseNDArray, cast_storage, zeros_of
from .row_gradients import RowGradientWeight, rows_of, whole
from .rows import add_rows, index_array, pointers, set_rows, sum_equal, take_rows

if TYPE_CHECKING:
    from typing import Any

_op = _core.get_op
_add_products = _op("_add_products")
_FORMS = {}


def _form(*names):
    """Registers a function as the sparse form of ops."""

    def mark(function):
        for name in names:
            _FORMS[name] = function
        return function

    return mark


@functools.cache
def _described(op):
    return op.describe()


def call(op, args, kwargs):
    """Runs an op with a sparse input or output."""
    kwargs.pop("name", None)
    args = _without_out(op, args, kwargs)
    out = kwargs.get("out")
    if out is not None:
        kwargs["out"] = out = _plain(out)
    form = _FORMS.get(_described(op)["name"])
    if form is not None and form not in _OF_WEIGHTS:
        args = [_whole_weights(value) for value in args]
        kwargs = {name: _whole_weights(value) for name, value in kwargs.items()}
        if not any(map(_is_sparse, (*args, *kwargs.values()))):
            form = None
    values = (*args, *kwargs.values())
    if any(map(is_numpy, values)) and any(map(_is_sparse, values)):
        raise _core.MXNetTypeError(
            f"{_described(op)['name']}: sparse arrays are of mx.nd, but another argument is of "
            "mx.np; convert it with as_nd_ndarray(), or the sparse one with "
            "tostype('default').as_np_ndarray()"
        )
    if form is not None and _core.is_recording() and any(map(_differentiated, args)):
        return _on_tape(op, form, args, kwargs, out)
    if form is not None:
        options = {name: value for name, value in kwargs.items() if name != "out"}
        result = form(op, *args, **options)
        if result is not NotImplemented:
            return result if out is None else _put(result, out)
    return _on_dense(op, args, kwargs, out)


def _without_out(op, args, kwargs):
    """Returns the positional arguments before `out` and `name`, which are the last ones."""
    described = _described(op)
    if any(entry["variadic"] for entry in described["inputs"]):
        return args
    last = len(described["inputs"]) + len(described["params"])
    if len(args) > last and args[last] is not None:
        kwargs.setdefault("out", args[last])
    return args[:last] if len(args) <= last + 2 else args


def _whole_weights(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(_whole_weights, value))
    return whole(value) if isinstance(value, RowGradientWeight) else value


def _is_sparse(value):
    if isinstance(value, (list, tuple)):
        return any(map(_is_sparse, value))
    return isinstance(value, BaseSparseNDArray)


def _differentiated(value):
    if isinstance(value, (list, tuple)):
        return any(map(_differentiated, value))
    return isinstance(value, BaseSparseNDArray) and value.differentiated


def _on_tape(op, form, args, kwargs, out):
    """Runs the op on the dense arrays that are differentiated in place of the sparse inputs. The
    result has the storage type that the sparse form would return."""
    dense = _on_dense(op, args, kwargs, out)
    if out is not None:
        return dense
    with _core.pause(train_mode=_core.is_training()):
        stored = form(op, *args, **kwargs)
    if not isinstance(stored, BaseSparseNDArray):
        return dense
    stored.be_variable(dense, None)
    return stored


def _put(result, out):
    """Writes a result to the array given for it."""
    if isinstance(out, (list, tuple)):
        for one, target in zip(result if isinstance(result, (list, tuple)) else [result], out):
            _put(one, target)
    elif isinstance(out, BaseSparseNDArray):
        out.copy_from(result)
    elif result is not out:
        result.copyto(out)
    return out


def _plain(value):
    """Returns output arrays without their gradients."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value.plain if isinstance(value, RowGradientWeight) else value


def _dense(value):
    if isinstance(value, BaseSparseNDArray):
        return value.tostype("default")
    if isinstance(value, RowGradientWeight):
        return whole(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_dense, value))
    return value


def _on_dense(op, args, kwargs, out):
    """Runs the op on dense copies, and copies the arrays that it writes back."""
    options = {name: _dense(value) for name, value in kwargs.items() if name != "out"}
    dense = [_dense(value) for value in args]
    outs = out if isinstance(out, (list, tuple)) else [out]
    if out is None or not any(isinstance(one, BaseSparseNDArray) for one in outs):
        result = op(*dense, **options) if out is None else op(*dense, out=out, **options)
    else:
        result = _put(op(*dense, **options), out)
    for i, entry in enumerate(_described(op)["inputs"]):
        if not entry["mutable"]:
            continue
        given = args[i] if i < len(args) else kwargs.get(entry["name"])
        if isinstance(given, BaseSparseNDArray):
            given.copy_from(dense[i] if i < len(args) else options[entry["name"]])
    return result


# --- Storage --------------------------------------------------------------------------------------
@_form("zeros_like")
def _zeros_like(op, data):
    return zeros_of(data.stype, data.shape, data.context, data.dtype)


@_form("_copyto")
def _copyto(op, data, ctx=None):
    return data.copyto(data.context if ctx is None else _core.Context(ctx))


@_form("_full", "_zeros")
def _full(op, shape=None, value=0, ctx=None, dtype="float32"):
    return NotImplemented


def retain(
    data: NDArray | None = None,
    indices: NDArray | None = None,
    out: NDArray | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> RowSparseNDArray | Any:
    """Returns a row_sparse array with only the rows in `indices`. Rows that the input does not
    store are zero.

    Examples
    --------
    >>> x = nd.array([[1, 2], [3, 4], [5, 6]]).tostype("row_sparse")
    >>> nd.sparse.retain(x, nd.array([0, 2])).asnumpy().tolist()
    [[1.0, 2.0], [0.0, 0.0], [5.0, 6.0]]
    """
    if kwargs:
        raise _core.MXNetTypeError(f"retain has no parameter {next(iter(kwargs))!r}")
    if not isinstance(data, RowSparseNDArray) or not isinstance(indices, NDArray):
        raise _core.MXNetTypeError(
            "retain: expected a row_sparse array and an array of indices, got "
            f"{getattr(data, 'stype', type(data).__name__)} and {type(indices).__name__}"
        )
    result = data.retain(indices)
    return result if out is None else _put(result, out)


@_form("_sparse_retain")
def _retain(op, data, indices):
    return retain(data, indices) if isinstance(data, RowSparseNDArray) else NotImplemented


@_form("cast_storage")
def _cast_storage(op, data, stype):
    return cast_storage(data, stype)


# --- Element-wise functions -----------------------------------------------------------------------
# Functions that map 0 to 0.
_ZERO_AT_ZERO = (
    "abs sign rint ceil floor trunc fix round square sqrt cbrt log1p expm1 sin tan arcsin arctan "
    "degrees radians sinh tanh arcsinh arctanh relu softsign erf erfinv negative _copy identity "
    "BlockGrad make_loss _contrib_quadratic Cast amp_cast hard_tanh"
).split()


@_form(*_ZERO_AT_ZERO)
def _of_elements(op, data, *args, **kwargs):
    if not isinstance(data, BaseSparseNDArray):
        return NotImplemented
    if op.__name__ in ("quadratic", "_contrib_quadratic") and kwargs.get("c", 0.0) != 0:
        return NotImplemented
    return data.with_values(op(data.values, *args, **kwargs))


@_form("clip")
def _clip(op, data, a_min, a_max):
    return (
        data.with_values(op(data.values, a_min, a_max)) if a_min <= 0 <= a_max else NotImplemented
    )


def _zero_with(function):
    """Wraps a function so that it returns NaN for numbers outside its domain."""

    def at(number):
        try:
            return function(number)
        except (ZeroDivisionError, OverflowError):
            return math.nan

    return at


_SCALAR = {
    "_plus_scalar": lambda s: s,
    "_minus_scalar": lambda s: -s,
    "_rminus_scalar": lambda s: s,
    "_mul_scalar": lambda s: 0 * s,
    "_div_scalar": lambda s: 0 / s,
    "_rdiv_scalar": lambda s: math.nan,
    "_mod_scalar": lambda s: 0 % s,
    "_rmod_scalar": lambda s: math.nan,
    "_power_scalar": lambda s: 0.0**s,
    "_rpower_scalar": lambda s: 1,
    "_equal_scalar": lambda s: s == 0,
    "_not_equal_scalar": lambda s: s != 0,
    "_greater_scalar": lambda s: 0 > s,
    "_greater_equal_scalar": lambda s: 0 >= s,
    "_lesser_scalar": lambda s: 0 < s,
    "_lesser_equal_scalar": lambda s: 0 <= s,
    "_maximum_scalar": lambda s: max(0, s),
    "_minimum_scalar": lambda s: min(0, s),
    "_logical_and_scalar": lambda s: 0,
    "_logical_or_scalar": lambda s: bool(s),
    "_logical_xor_scalar": lambda s: bool(s),
    "_hypot_scalar": lambda s: s,
}


@_form(*_SCALAR)
def _with_scalar(op, data, scalar=1.0, **options):
    zero = _zero_with(_SCALAR[_described(op)["name"]])(scalar)
    return data.with_values(op(data.values, scalar=scalar)) if zero == 0 else NotImplemented


@_form("_scatter_plus_scalar", "_scatter_minus_scalar")
def _with_scalar_where_stored(op, data, scalar=1.0, **options):
    return data.with_values(op(data.values, scalar=scalar))


# --- Binary functions -----------------------------------------------------------------------------
def _keys(array):
    """Returns the positions of the stored rows or elements, as ascending integers."""
    if array.stype == "row_sparse":
        return array.numbers()
    return array.rows() * array.shape[1] + array.numbers()


def _at_keys(like, values, keys):
    """Builds a sparse array with the storage and shape of `like` from values at these keys."""
    ctx, shape = like.context, like.shape
    if like.stype == "row_sparse":
        return RowSparseNDArray(values, index_array(keys, ctx), shape)
    rows, columns = np.divmod(keys, max(1, shape[1]))
    indptr = index_array(pointers(rows, shape[0]), ctx)
    return CSRNDArray(values, index_array(columns, ctx), indptr, shape)


def _sum(first, *others):
    """Sums arrays with the same storage type. row_sparse arrays are summed only by the rank that
    owns their device."""
    parts = (first, *others)
    if first.stype == "row_sparse" and not first.here:
        return first.without_contents(1)
    with ranks.alone():
        values = _op("Concat")(*[part.values for part in parts], dim=0)
        keys = np.concatenate([_keys(part) for part in parts])
        return _at_keys(first, *sum_equal(values, keys, first.context))


def _alike(lhs, rhs):
    return (
        isinstance(lhs, BaseSparseNDArray)
        and isinstance(rhs, BaseSparseNDArray)
        and lhs.stype == rhs.stype
        and lhs.shape == rhs.shape
        and lhs.dtype == rhs.dtype
    )


@_form("elemwise_add", "broadcast_add", "_grad_add")
def _add(op, lhs, rhs):
    return _sum(lhs, rhs) if _alike(lhs, rhs) else NotImplemented


@_form("elemwise_sub", "broadcast_sub")
def _sub(op, lhs, rhs):
    return _sum(lhs, rhs.with_values(-rhs.values)) if _alike(lhs, rhs) else NotImplemented


@_form("add_n", "ElementWiseSum")
def _add_n(op, *args, **kwargs):
    arrays = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    return _sum(*arrays) if all(_alike(arrays[0], other) for other in arrays) else NotImplemented


@_form("elemwise_mul", "broadcast_mul")
def _mul(op, lhs, rhs):
    if _alike(lhs, rhs):
        keys, left, right = np.intersect1d(_keys(lhs), _keys(rhs), True, True)
        left, right = index_array(left, lhs.context), index_array(right, rhs.context)
        return _at_keys(lhs, take_rows(lhs.values, left) * take_rows(rhs.values, right), keys)
    sparse, other = (lhs, rhs) if isinstance(lhs, BaseSparseNDArray) else (rhs, lhs)
    if isinstance(other, BaseSparseNDArray) or sparse.dtype != other.dtype:
        return NotImplemented
    if sparse.stype == "row_sparse" and sparse.shape == other.shape:
        return sparse.with_values(sparse.values * take_rows(other, sparse.index))
    if sparse.stype == "csr" and sparse.shape == other.shape:
        places = index_array(_keys(sparse), sparse.context)
        return sparse.with_values(sparse.values * take_rows(other.reshape((-1,)), places))
    return _scaled(op, lhs, rhs)


@_form(
    "_maximum", "_minimum", "_hypot", "broadcast_maximum", "broadcast_minimum", "broadcast_hypot"
)
def _of_both(op, lhs, rhs):
    if not _alike(lhs, rhs):
        return NotImplemented
    keys = np.union1d(_keys(lhs), _keys(rhs))
    left, right = (
        add_rows(
            part.values,
            index_array(np.searchsorted(keys, _keys(part)), lhs.context),
            len(keys),
        )
        for part in (lhs, rhs)
    )
    return _at_keys(lhs, op(left, right), keys)


@_form("broadcast_div")
def _div(op, lhs, rhs):
    return _scaled(op, lhs, rhs)


def _scaled(op, lhs, rhs):
    """Multiplies or divides a csr matrix by a row, a column or a number; the result is csr."""
    if not isinstance(lhs, CSRNDArray) or isinstance(rhs, BaseSparseNDArray):
        return NotImplemented
    if lhs.shape == rhs.shape or rhs.ndim > 2:
        return NotImplemented
    height, width = (1,) * (2 - rhs.ndim) + rhs.shape
    if height not in (1, lhs.shape[0]) or width not in (1, lhs.shape[1]):
        return NotImplemented
    places = (lhs.rows() if height > 1 else 0) * width + (lhs.numbers() if width > 1 else 0)
    places = index_array(np.broadcast_to(places, lhs.values.shape), lhs.context)
    return lhs.with_values(op(lhs.values, take_rows(rhs.reshape((-1,)), places)))


@_form("_scatter_elemwise_div")
def _div_where_stored(op, lhs, rhs):
    if not isinstance(lhs, RowSparseNDArray):
        return NotImplemented
    divisor = take_rows(_dense(rhs), lhs.index)
    return lhs.with_values(lhs.values / divisor)


@_form("where")
def _where(op, condition, x, y):
    if not isinstance(condition, CSRNDArray) or x.stype != "default" or y.stype != "default":
        return NotImplemented
    return op(condition.tostype("default"), x, y)


# --- Sums -----------------------------------------------------------------------------------------
def _one_axis(axis, ndim):
    """Returns the single axis of a reduction, or None if there are several or it is invalid."""
    if isinstance(axis, (list, tuple)):
        axis = axis[0] if len(axis) == 1 else None
    return None if axis is None or not -ndim <= axis < ndim else axis % ndim


@_form("sum", "sum_axis", "mean")
def _reduce(op, data, axis=None, keepdims=False, exclude=False):
    along = _one_axis(axis, data.ndim)
    if exclude or not isinstance(data, CSRNDArray) or along is None:
        return NotImplemented
    mean = _described(op)["name"] == "mean"
    if mean and data.dtype not in (np.float32, np.float64):
        return NotImplemented  # in other dtypes, the sum may overflow
    places, kept = (data.numbers(), 1) if along == 0 else (data.rows(), 0)
    total = add_rows(data.values, index_array(places, data.context), data.shape[kept])
    if mean:
        total = total / data.shape[along]
    return total.expand_dims(along) if keepdims else total


@_form("_square_sum")
def _square_sum(op, data, axis=None, keepdims=False, exclude=False):
    if not isinstance(data, RowSparseNDArray) or data.ndim != 2 or exclude:
        return NotImplemented
    along = _one_axis(axis, 2)
    if along == 1:
        sums = (data.values * data.values).sum(axis=1, keepdims=keepdims)
        if keepdims:
            return RowSparseNDArray(sums, data.index, (data.shape[0], 1))
        return add_rows(sums, data.index, data.shape[0])
    if data.values.shape[0] == 0:
        return NotImplemented
    return (data.values * data.values).sum(axis=axis, keepdims=keepdims)


@_form("norm")
def _norm(op, data, ord=2, axis=None, out_dtype=None, keepdims=False):
    if ord != 2 or axis is not None or keepdims or not data.values.size:
        return NotImplemented
    return op(data.values)


def getnnz(data: CSRNDArray, axis: int | None = None) -> NDArray:
    """Counts the stored elements of a csr matrix, in total or (axis=1) per row.

    Examples
    --------
    >>> nd.contrib.getnnz(nd.array([[0, 1], [2, 3]]).tostype("csr"), axis=1).asnumpy()
    array([1, 2])
    """
    if not isinstance(data, CSRNDArray):
        raise _core.MXNetTypeError(f"getnnz: expected a csr matrix, not {type(data).__name__}")
    if axis not in (1, None):
        raise _core.MXNetValueError(f"getnnz: axis must be 1 or None, not {axis!r}")
    counts = np.diff(data.numbers("pointers")) if axis == 1 else [len(data.numbers())]
    return index_array(counts, data.context)


# --- Rows -----------------------------------------------------------------------------------------
@_form("slice")
def _slice(op, data, begin, end, step=()):
    begin, end = [tuple(x) if isinstance(x, (list, tuple)) else (x,) for x in (begin, end)]
    steps = step if isinstance(step, (list, tuple)) else (step,)
    if not isinstance(data, CSRNDArray) or any(s not in (None, 1) for s in steps):
        return NotImplemented
    if len(begin) != len(end) or len(begin) > 2:
        return NotImplemented
    edges = [slice(b, e).indices(n) for b, e, n in zip(begin, end, data.shape)]
    part = data.sliced(edges[0][0], max(edges[0][:2]))
    if len(edges) == 1:
        return part
    first, last = edges[1][0], max(edges[1][:2])
    columns = part.numbers()
    kept = np.flatnonzero((columns >= first) & (columns < last))
    indptr = index_array(pointers(part.rows()[kept], part.shape[0]), data.context)
    values = take_rows(part.values, index_array(kept, data.context))
    shape = part.shape[0], last - first
    return CSRNDArray(values, index_array(columns[kept] - first, data.context), indptr, shape)


@_form("slice_axis")
def _slice_axis(op, data, axis, begin, end):
    if not isinstance(data, CSRNDArray) or axis not in (0, -2):
        return NotImplemented
    first, last, _ = slice(begin, end).indices(data.shape[0])
    return data.sliced(first, max(first, last))


@_form("Concat")
def _concat(op, *args, dim=1, **kwargs):
    arrays = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    if dim != 0 or not all(isinstance(array, CSRNDArray) for array in arrays):
        return NotImplemented
    ctx, width = arrays[0].context, arrays[0].shape[1]
    if any(array.shape[1] != width for array in arrays):
        return NotImplemented
    counts = np.concatenate([np.diff(array.numbers("pointers")) for array in arrays])
    return CSRNDArray(
        op(*[array.values for array in arrays], dim=0),
        index_array(np.concatenate([array.numbers() for array in arrays]), ctx),
        index_array(np.concatenate([[0], np.cumsum(counts)]), ctx),
        (sum(array.shape[0] for array in arrays), width),
    )


@_form("take")
def _take(op, a, indices, axis=0, mode="clip"):
    if isinstance(a, RowGradientWeight) and axis in (0, -a.ndim) and _core.is_recording():
        numbers = _dense(indices)
        if mode == "wrap":
            numbers = numbers % a.shape[0]
        elif mode == "raise":
            op(a.plain, numbers, axis, mode)  # raises the error
        return rows_of(a, numbers)
    if not isinstance(a, CSRNDArray) or axis not in (0, -2):
        return NotImplemented
    if not isinstance(indices, NDArray) or indices.ndim != 1:
        return NotImplemented
    count = a.shape[0]
    wanted = _dense(indices).asnumpy().astype(np.int64)
    if mode == "raise" and len(wanted) and (wanted.min() < 0 or wanted.max() >= count):
        raise _core.MXNetIndexError(f"take: an index is out of range (0 to {count - 1})")
    wanted = wanted % count if mode == "wrap" else wanted.clip(0, count - 1)
    indptr = a.numbers("pointers")
    lengths = np.diff(indptr)[wanted]
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum()) + np.repeat(indptr[wanted] - (ends - lengths), lengths)
    ctx = a.context
    return CSRNDArray(
        take_rows(a.values, index_array(places, ctx)),
        index_array(a.numbers()[places], ctx),
        index_array(np.concatenate([[0], ends]), ctx),
        (len(wanted), a.shape[1]),
    )


@_form("Embedding", "_contrib_SparseEmbedding")
def _embedding(op, data, weight, input_dim=None, output_dim=None, **options):
    if isinstance(weight, RowGradientWeight) and not isinstance(data, BaseSparseNDArray):
        return rows_of(weight, data)
    if not isinstance(weight, RowSparseNDArray) or isinstance(data, BaseSparseNDArray):
        return NotImplemented
    wanted = data.asnumpy().astype(np.int64).clip(0, weight.shape[0] - 1)
    numbers = weight.numbers()
    places = np.searchsorted(numbers, wanted).clip(0, max(0, len(numbers) - 1))
    if not len(numbers) or (numbers[places] != wanted).any():
        return NotImplemented  # some of the rows are not stored
    return _op("take")(weight.values, index_array(places, weight.context))


@_form("FullyConnected")
def _fully_connected(op, data, weight, bias=None, *args, **kwargs):
    if bias is None or bias.ndim != 2:
        return NotImplemented
    return op(_dense(data), _dense(weight), _dense(bias).reshape((-1,)), *args, **kwargs)


# --- Products -------------------------------------------------------------------------------------
def _times(csr, dense, columns, rows, count):
    """Multiplies a csr matrix by a dense one: sums each element times a dense row.

    With rows and columns exchanged, it multiplies the transpose.
    """
    plain = csr.dtype in (np.float32, np.float64) and csr.dtype == dense.dtype
    if plain and csr.context.device_type == "cpu" and dense.shape[0]:
        return _add_products(csr.values, rows, columns, dense, count=count)
    values = csr.values.reshape((-1, *[1] * (dense.ndim - 1)))
    products = take_rows(dense, columns) * values
    return add_rows(products, rows, count)


@_form("dot")
def _dot(op, lhs, rhs, transpose_a=False, transpose_b=False, forward_stype=None):
    result = _product(lhs, rhs, transpose_a, transpose_b, forward_stype)
    if result is NotImplemented:
        result = op(_dense(lhs), _dense(rhs), transpose_a=transpose_a, transpose_b=transpose_b)
    if forward_stype is None or forward_stype == result.stype:
        return result
    return cast_storage(_dense(result), forward_stype)


def _product(lhs, rhs, transpose_a, transpose_b, forward_stype):
    if lhs.dtype != rhs.dtype:
        return NotImplemented
    if isinstance(lhs, CSRNDArray) and not transpose_b and not isinstance(rhs, CSRNDArray):
        _check_product(lhs.shape[0 if transpose_a else 1], rhs)
        rows = lhs.row_index()
        if isinstance(rhs, RowGradientWeight) and _core.is_recording() and not transpose_a:
            used, columns = lhs.columns_used()
            return _times(lhs, rows_of(rhs, used), columns, rows, lhs.shape[0])
        dense = _dense(rhs)
        if not transpose_a:
            return _times(lhs, dense, lhs.index, rows, lhs.shape[0])
        if forward_stype == "default":
            return _times(lhs, dense, rows, lhs.index, lhs.shape[1])
        used, columns = lhs.columns_used()
        values = _times(lhs, dense, rows, columns, used.shape[0])
        return RowSparseNDArray(values, used, (lhs.shape[1], *rhs.shape[1:]))
    if isinstance(rhs, CSRNDArray) and not transpose_a and isinstance(lhs, NDArray):
        if isinstance(lhs, BaseSparseNDArray) or lhs.ndim != 2:
            return NotImplemented
        # lhs . rhs is (rhs.T . lhs.T).T
        _check_product(rhs.shape[1 if transpose_b else 0], lhs.T)
        rows = rhs.row_index()
        parts = (rhs.index, rows) if transpose_b else (rows, rhs.index)
        product = _times(rhs, lhs.T, *parts, rhs.shape[0 if transpose_b else 1]).T
        if forward_stype is None:
            return cast_storage(product, "csr")
        return product
    return NotImplemented


def _check_product(size, other):
    if not other.ndim:
        raise _core.MXNetValueError("dot: a csr matrix cannot be multiplied by a 0-d array")
    if other.shape[0] != size:
        raise _core.MXNetValueError(f"dot: {size} columns do not match {other.shape[0]} rows")


# The forms that accept weights with sparse gradients directly.
_OF_WEIGHTS = (_take, _embedding, _dot, _fully_connected)


# --- Updates --------------------------------------------------------------------------------------
@_form("sgd_update", "sgd_mom_update", "adam_update", "ftrl_update")
def _update_rows(op, *args, **options):
    """Updates only the rows that the gradient has, if weight and states are row_sparse as well.

    All other rows do not decay.
    """
    about = _described(op)
    inputs, params = [[entry["name"] for entry in about[key]] for key in ("inputs", "params")]
    options.update(zip([*inputs, *params], args))
    weight, grad, *states = arrays = [options.pop(name) for name in inputs]
    lazy = options.get("lazy_update", True) in (True, 1, "True", "1")
    if "lazy_update" not in params:
        lazy = all(isinstance(array, RowSparseNDArray) for array in arrays)
    alike = all(state.stype == weight.stype for state in states)
    if not (lazy and alike and isinstance(grad, RowSparseNDArray)):
        return NotImplemented
    rows = grad.index
    result, *wholes = [_dense(array) for array in (weight, *states)]
    if result is weight:
        result = weight.copy()
    if rows.shape[0]:
        parts = [take_rows(whole, rows) for whole in wholes]
        set_rows(result, op(take_rows(result, rows), grad.values, *parts, **options), rows)
        for state, whole, part in zip(states, wholes, parts):
            set_rows(whole, part, rows)
            if whole is not state:
                state.copy_from(whole)
    return cast_storage(result, weight.stype)
