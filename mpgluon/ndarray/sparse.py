"""``mx.nd.sparse``: sparse arrays, functions that create them, and ops by name.

`RowSparseNDArray` stores some rows of an array, `CSRNDArray` the nonzero elements of a matrix.
Every op accepts sparse arrays; an op without a sparse form runs on dense copies. A result is sparse
if MXNet's result is sparse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import Context, NDArray
from .._internal.hints import unknown_option_of
from . import _namespaces
from ._sparse import ops as _sparse_ops
from ._sparse.arrays import (
    BaseSparseNDArray as BaseSparseNDArray,
    CSRNDArray as CSRNDArray,
    RowSparseNDArray as RowSparseNDArray,
    zeros_of,
)
from ._sparse.ops import retain as retain
from ._sparse.row_gradients import RowGradientWeight
from ._sparse.rows import pointers
from ._sparse.variables import gradients
from .functions import (
    UpSampling as UpSampling,
    add as add,
    cast_storage as cast_storage,
    divide as divide,
    multiply as multiply,
    subtract as subtract,
)

if TYPE_CHECKING:
    from typing import Any

    from .._internal.types import DType, ShapeLike
    from ._sparse_named_ops import *  # noqa: F403
    from .op import *  # noqa: F403

__all__ = [
    "BaseSparseNDArray",
    "CSRNDArray",
    "RowSparseNDArray",
    "add",
    "array",
    "csr_matrix",
    "divide",
    "empty",
    "multiply",
    "retain",
    "row_sparse_array",
    "subtract",
    "zeros",
]


def _is_scipy(source):
    return type(source).__module__.startswith("scipy.sparse")


def _check_shape(found, wanted):
    if wanted is not None and tuple(found) != tuple(wanted):
        raise ValueError(f"expected shape {tuple(wanted)}, got {tuple(found)}")


def _part(values, ctx, dtype):
    """Copies a part of a sparse array to an NDArray on the device."""
    if dtype is None:
        dtype = values.dtype if isinstance(values, (NDArray, np.ndarray)) else "float32"
    if not isinstance(values, NDArray):
        values = np.asarray(values)
        if values.dtype == object:
            raise TypeError("the parts of a sparse array must be arrays of numbers")
    return _core.array(values, ctx=ctx, dtype=dtype)


def _is_shape(arg):
    return isinstance(arg, tuple) and all(isinstance(n, (int, np.integer)) for n in arg)


def csr_matrix(
    arg1: Any,
    shape: tuple[int, ...] | None = None,
    ctx: Context | None = None,
    dtype: DType | None = None,
) -> CSRNDArray:
    """Creates a matrix in compressed sparse row (CSR) storage.

    Parameters
    ----------
    arg1 : array-like, sparse matrix, or tuple
        A matrix of numbers, an NDArray, a CSRNDArray or a matrix of ``scipy.sparse``. Or a shape,
        which creates a matrix of zeros. Or the parts ``(data, indices, indptr)``, with ascending
        columns in each row. Or the elements ``(data, (rows, columns))``; duplicates are summed.
    shape : tuple of int, optional
        The shape; by default the smallest that the parts allow.
    ctx : Context, optional
        The device; default: the current context.
    dtype : str or numpy.dtype, optional
        By default that of the values, and float32 for lists.

    Examples
    --------
    >>> x = nd.sparse.csr_matrix(([1, 2, 3], [1, 0, 2], [0, 1, 2, 2, 3]), shape=(4, 3))
    >>> x.asnumpy()
    array([[0., 1., 0.],
           [2., 0., 0.],
           [0., 0., 0.],
           [0., 0., 3.]], dtype=float32)
    """
    ctx = ctx or _core.current_context()
    if isinstance(arg1, tuple) and len(arg1) == 3:
        return _from_parts(*arg1, shape, ctx, dtype)
    if isinstance(arg1, tuple) and len(arg1) == 2:
        if isinstance(arg1[1], tuple) and len(arg1[1]) == 2:
            return _from_elements(arg1[0], *arg1[1], shape, ctx, dtype)
        _check_shape(arg1, shape)
        return empty("csr", arg1, ctx, dtype)
    if isinstance(arg1, tuple):
        raise ValueError(f"csr_matrix: expected a tuple of 2 or 3 parts, got {len(arg1)}")
    if isinstance(arg1, RowSparseNDArray):
        raise ValueError(
            "csr_matrix: cannot convert a RowSparseNDArray; use tostype('default') first"
        )
    if isinstance(arg1, CSRNDArray) or _is_scipy(arg1):
        _check_shape(arg1.shape, shape)
        return array(arg1, ctx, dtype)
    dense = _part(arg1, ctx, dtype)
    _check_shape(dense.shape, shape)
    return dense.tostype("csr")


def _from_parts(data, indices, indptr, shape, ctx, dtype):
    data, indices, indptr = (
        _part(data, ctx, dtype),
        _part(indices, ctx, "int64"),
        _part(indptr, ctx, "int64"),
    )
    if shape is None:
        if not indices.shape[0]:
            raise ValueError("csr_matrix: without elements, the shape must be given")
        shape = (indptr.shape[0] - 1, int(indices.max().asscalar()) + 1)
    if not data.ndim == indices.ndim == indptr.ndim == 1 or not indptr.shape[0] or len(shape) != 2:
        raise ValueError(
            "csr_matrix: data, indices and indptr must be vectors, and the shape must have two "
            "sizes"
        )
    return CSRNDArray(data, indices, indptr, shape)


def _from_elements(data, rows, columns, shape, ctx, dtype):
    data, rows, columns = (
        x.asnumpy() if isinstance(x, NDArray) else np.asarray(x) for x in (data, rows, columns)
    )
    if shape is None:
        shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    keys, places = np.unique(rows.astype(np.int64) * shape[1] + columns, return_inverse=True)
    values = np.zeros(len(keys), data.dtype)
    np.add.at(values, places.reshape(-1), data)
    rows, columns = np.divmod(keys, shape[1])
    return _from_parts(values, columns, pointers(rows, shape[0]), shape, ctx, dtype)


def row_sparse_array(
    arg1: Any,
    shape: tuple[int, ...] | None = None,
    ctx: Context | None = None,
    dtype: DType | None = None,
) -> RowSparseNDArray:
    """Creates an array that stores only some rows.

    Parameters
    ----------
    arg1 : array-like, RowSparseNDArray, or tuple
        An array. Or a shape, which creates an array of zeros. Or the parts ``(data, indices)``: the
        rows and their ascending row indices.
    shape : tuple of int, optional
        The shape; by default the smallest that the parts allow.
    ctx : Context, optional
        The device; default: the current context.
    dtype : str or numpy.dtype, optional
        By default that of the values, and float32 for lists.

    Examples
    --------
    >>> x = nd.sparse.row_sparse_array(([[1, 2], [3, 4]], [1, 3]), shape=(5, 2))
    >>> x.asnumpy().tolist()
    [[0.0, 0.0], [1.0, 2.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]
    """
    ctx = ctx or _core.current_context()
    if isinstance(arg1, tuple):
        if len(arg1) < 2:
            raise ValueError(
                "row_sparse_array: expected a shape or a tuple of two parts, got a tuple of "
                f"{len(arg1)}"
            )
        if _is_shape(arg1):
            _check_shape(arg1, shape)
            return empty("row_sparse", arg1, ctx, dtype)
        return _from_rows(*arg1, shape, ctx, dtype)
    if isinstance(arg1, CSRNDArray):
        raise ValueError(
            "row_sparse_array: cannot convert a CSRNDArray; use tostype('default') first"
        )
    if isinstance(arg1, RowSparseNDArray):
        _check_shape(arg1.shape, shape)
        return array(arg1, ctx, dtype)
    dense = _part(arg1, ctx, dtype)
    _check_shape(dense.shape, shape)
    return dense.tostype("row_sparse")


def _from_rows(data, indices, shape, ctx, dtype):
    data, indices = _part(data, ctx, dtype), _part(indices, ctx, "int64")
    if shape is None:
        if not indices.shape[0]:
            raise ValueError("row_sparse_array: without rows, the shape must be given")
        shape = (int(indices[-1].asscalar()) + 1, *data.shape[1:])
    fits = data.ndim == len(shape) and data.shape[1:] == tuple(shape[1:])
    if not fits or indices.ndim != 1 or 0 in shape[1:]:
        raise ValueError(
            f"row_sparse_array: data of shape {data.shape} and indices of shape {indices.shape} "
            f"do not fit an array of shape {tuple(shape)}"
        )
    return RowSparseNDArray(data, indices, shape)


def zeros(
    stype: str,
    shape: ShapeLike,
    ctx: Context | None = None,
    dtype: DType | None = None,
    **kwargs: Any,
) -> NDArray:
    """Returns an array of zeros with the storage type 'row_sparse', 'csr' or 'default'.

    Examples
    --------
    >>> nd.sparse.zeros("csr", (2, 3)).data.shape
    (0,)
    """
    from .functions import zeros as dense_zeros

    if stype == "default":
        return dense_zeros(shape, ctx=ctx, dtype=dtype, **kwargs)
    if kwargs:
        raise unknown_option_of("zeros", kwargs, ("stype", "shape", "ctx", "dtype"))
    shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    return zeros_of(stype, shape, ctx or _core.current_context(), dtype or "float32")


def empty(
    stype: str, shape: ShapeLike, ctx: Context | None = None, dtype: DType | None = None
) -> NDArray:
    """Returns an array of zeros like `zeros`, because sparse arrays have no uninitialized elements.

    Examples
    --------
    >>> nd.sparse.empty("row_sparse", (2, 3)).stype
    'row_sparse'
    """
    return zeros(stype, shape, ctx, dtype)


def array(source_array: Any, ctx: Context | None = None, dtype: DType | None = None) -> NDArray:
    """Copies a sparse array, or a matrix of ``scipy.sparse``.

    Examples
    --------
    >>> nd.sparse.array(nd.sparse.zeros("csr", (3, 2))).shape
    (3, 2)
    """
    ctx = ctx or _core.current_context()
    if isinstance(source_array, BaseSparseNDArray):
        return source_array.astype(dtype or source_array.dtype, copy=False).copyto(ctx)
    if isinstance(source_array, NDArray):
        raise AssertionError(
            "array: cannot convert a dense NDArray; use tostype('row_sparse') or tostype('csr')"
        )
    if _is_scipy(source_array):
        matrix = source_array.tocsr(copy=True)
        matrix.sum_duplicates()
        parts = matrix.data, matrix.indices, matrix.indptr
        return _from_parts(*parts, matrix.shape, ctx, dtype)
    raise ValueError(
        f"array: expected a sparse array, got {type(source_array).__name__}; use nd.array for "
        "dense arrays"
    )


_namespaces.fill(_core.ops(), {"sparse": globals(), "op": globals()})
_core.set_sparse(BaseSparseNDArray, RowGradientWeight, _sparse_ops.call, gradients)
