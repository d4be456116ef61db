"""Sparse arrays, which store some rows of an array (`RowSparseNDArray`) or the nonzero elements of
a matrix (`CSRNDArray`).

A sparse array consists of dense arrays: its values and int64 indices. The core does not support
sparse arrays, so `ops.call` runs ops on them. The dense arrays are immutable: a change of a sparse
array replaces them.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

import numpy as np

from ... import _core
from ..._core import Context, MXNetError, NDArray
from ..._internal import ranks
from .rows import add_rows, index_array, occurring, pointers, row_numbers, take_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    from ..._internal.types import DType, Shape

__all__ = ["BaseSparseNDArray", "CSRNDArray", "RowSparseNDArray"]

_op = _core.get_op


def zeros_of(stype: str, shape: Shape, ctx: Context, dtype: DType) -> Any:
    """Returns a sparse array without stored elements."""
    none = index_array([], ctx)
    if stype == "row_sparse":
        return RowSparseNDArray(_core.empty((0, *shape[1:]), ctx, dtype), none, shape)
    if stype == "csr":
        if len(shape) != 2:
            raise _core.MXNetValueError(f"a csr array must have two dimensions, not shape {shape}")
        indptr = index_array(np.zeros(shape[0] + 1), ctx)
        return CSRNDArray(_core.empty((0,), ctx, dtype), none, indptr, shape)
    raise ValueError(f"unknown storage type {stype!r}; expected 'default', 'row_sparse' or 'csr'")


def _refuse_in_trace(array, stype):
    """Raises NotSupportedError if the stored positions of a sparse array depend on `array`, which
    belongs to a trace."""
    if array._in_trace:
        raise _core.NotSupportedError(
            f"a {stype} array cannot be used in a hybridized block, whose programs have dense "
            "arrays only; keep it dense, as x.tostype('default'), or pass it as an input, which "
            "becomes dense, or do not hybridize the block"
        )


def cast_storage(array: NDArray, stype: str) -> NDArray:
    """Converts an array to another storage type. The result is a new array, unless a dense array
    stays dense."""
    if stype not in ("default", "row_sparse", "csr"):
        raise ValueError(
            f"unknown storage type {stype!r}; expected 'default', 'row_sparse' or 'csr'"
        )
    if isinstance(array, BaseSparseNDArray):
        return array.tostype(stype)
    if stype == "default":
        return array
    _refuse_in_trace(array, stype)
    twin = array if _core.is_recording() and _core.on_tape(array) else None
    array = array.detach()
    result = _rows_of(array) if stype == "row_sparse" else _elements_of(array)
    if twin is not None:
        result.be_variable(twin, None)
    return result


def _rows_of(array):
    if array.ndim < 1:
        raise _core.MXNetValueError("tostype: a row_sparse array must have at least one dimension")
    count = array.shape[0]
    if array.size:
        used = (array.detach() != 0).reshape((count, -1)).max(axis=1)
        rows = np.flatnonzero(used.asnumpy())
    else:
        rows = np.arange(0)
    indices = index_array(rows, array.context)
    return RowSparseNDArray(take_rows(array, indices), indices, array.shape)


def _elements_of(array):
    if array.ndim != 2:
        raise _core.MXNetValueError(
            f"tostype: a csr array must have two dimensions, not shape {array.shape}"
        )
    rows, columns = np.nonzero(array.detach().asnumpy())
    ctx, (height, width) = array.context, array.shape
    places = index_array(rows * width + columns, ctx)
    values = take_rows(array.reshape((-1,)), places)
    indptr = index_array(pointers(rows, height), ctx)
    return CSRNDArray(values, index_array(columns, ctx), indptr, array.shape)


class BaseSparseNDArray(NDArray):
    """Base of sparse arrays, which have the methods of NDArray. A method without a sparse
    implementation works on a dense copy (`tostype`).

    Other modules of the package use `values`, `index` and, for csr, `pointers`, which return the
    parts without a copy. `numbers` returns indices or pointers on the host. `with_values` returns
    an array with other values at the same positions. The returned parts must not be written to.
    """

    __slots__ = ("_gradient", "_host", "_index", "_shape", "_source", "_values", "_variable")

    def __init__(self, values: NDArray, indices: NDArray, shape: Shape) -> None:
        self._shape = tuple(int(size) for size in shape)
        # _variable is the dense array that is differentiated in place of this array, if it is on
        # the tape. If this array is a variable, _gradient is its gradient. If this array is a
        # gradient, _source has the dense variable and the dense gradient that backward writes.
        self._variable = self._gradient = self._source = None
        self._set(values, indices)

    def _set(self, values, indices):
        self._values, self._index, self._host = values, indices, {}
        if self._gradient is None:
            self._variable = None  # belongs to the replaced values
        else:
            with _core.pause():
                self._variable[:] = self.tostype("default")

    def _refresh(self):
        """If this array is a gradient, updates it from the dense gradient if backward has written
        that since the previous call."""
        if self._source is None:
            return
        variable, gradient = self._source
        if variable._fresh_grad:
            variable._fresh_grad = False
            with _core.pause():
                self._take_over(cast_storage(gradient, self.stype))

    def follow(self, variable: NDArray, gradient: NDArray) -> None:
        """Makes this array the gradient of a dense variable until the variable is marked again.
        `gradient` is the dense array that backward writes. For other modules of the package."""
        # Use an alias, so that the user's array object is not kept alive.
        self._source = _core.alias(variable), gradient

    def be_variable(self, variable: NDArray, gradient: NDArray | None) -> None:
        """Sets the dense array on the tape that is differentiated in place of this one. `gradient`
        is the gradient of a variable, or None. For other modules of the package."""
        self._variable, self._gradient = variable, gradient

    @property
    def differentiated(self) -> bool:
        """True if ops are recorded on a dense array that is differentiated in place of this one."""
        return self._variable is not None and _core.is_recording()

    def on_tape(self) -> NDArray:
        """Returns the dense array that is differentiated in place of this one."""
        with _core.record(_core.is_training()):
            return self.tostype("default")

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """Makes the array a variable with a gradient. The gradient's storage type is `stype`, or by
        default the array's."""
        from .variables import attach

        attach(self, grad_req, self.stype if stype is None else stype)

    @property
    def grad(self) -> Any:
        return self._gradient

    @property
    def grad_req(self) -> str | None:
        return None if self._variable is None else self._variable.grad_req

    @property
    def _fresh_grad(self):
        return self._variable is not None and self._variable._fresh_grad

    @_fresh_grad.setter
    def _fresh_grad(self, fresh):
        self._variable._fresh_grad = fresh

    def numbers(self, part: str = "index") -> np.ndarray[Any, Any]:
        """Returns indices or pointers as a NumPy array, which is cached. Raises an MXNetError if
        they are out of range."""
        known = self._known()
        numbers = known.get(part)
        if numbers is None:
            numbers = getattr(self, part).asnumpy().astype(np.int64, copy=False)
            wrong = self._beyond(part, numbers)
            if wrong:
                raise MXNetError(f"{type(self).__name__} of shape {self._shape}: {wrong}")
            known[part] = numbers
        return numbers

    def _known(self):
        """Returns the host's cache of values that depend only on the stored positions."""
        self._refresh()
        _refuse_in_trace(self._index, self.stype)
        return self._host

    def _beyond(self, part, numbers):
        """Returns a description of indices or pointers that are out of range, or a false value."""
        raise NotImplementedError

    @property
    def values(self) -> NDArray:
        """The values, without a copy."""
        self._refresh()
        if self._variable is not None and _core.is_recording():
            return self._taken(self._variable)
        return self._values

    @property
    def index(self) -> NDArray:
        """The indices of the stored rows, or the columns of the stored elements, as int64."""
        self._refresh()
        return self._index

    # Properties

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def here(self) -> bool:
        """True if this process has the contents: the device belongs to its rank. For other modules
        of the package."""
        rank = self.context.rank
        return rank is None or rank == ranks.own()

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> NoReturn:
        raise NotImplementedError("the size of a sparse array is ambiguous; use shape or data")

    @property
    def dtype(self) -> Any:
        return self._values.dtype

    @property
    def context(self) -> Context:
        return self._values.context

    ctx = context

    @property
    def writable(self) -> bool:
        return True

    @property
    def T(self) -> NDArray:
        return _op("transpose")(self)

    @property
    def data(self) -> NDArray:
        """A copy of the values."""
        return self.values.copy()

    @property
    def indices(self) -> NDArray:
        """A copy of the int64 indices."""
        return self.index.copy()

    def _aux_data(self, i):
        return getattr(self, self.aux[i]).copy()

    def _data(self):
        return self.data

    @property
    def _num_aux(self):
        return len(self.aux)

    @property
    def _aux_types(self):
        return [np.int64] * len(self.aux)

    def _aux_type(self, i):
        return self._aux_types[i]

    def __len__(self) -> int:
        return self._shape[0]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._shape))
        return f"\n<{type(self).__name__} {shape} @{self.context}>"

    _repr_html_ = None

    # Values

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """Returns the values as a dense NumPy array."""
        return self.tostype("default").asnumpy()

    def as_np_ndarray(self) -> NoReturn:
        raise ValueError(
            f"as_np_ndarray: mx.np has no arrays of stype {self.stype}; use "
            "x.tostype('default').as_np_ndarray()"
        )

    def wait_to_read(self) -> None:
        self.values.wait_to_read()

    def wait_to_write(self) -> None:
        self.values.wait_to_write()

    def copy(self) -> Any:
        return self.copyto(self.context)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        return self.copy()

    def detach(self) -> Any:
        self._refresh()
        return self.with_values(self._values.detach())

    def as_in_context(self, context: Context) -> Any:
        return self if self.context == context else self.copyto(context)

    as_in_ctx = as_in_context

    def astype(self, dtype: DType, copy: bool = True) -> Any:
        """Converts the array to a dtype. Returns the array itself if it has that dtype and `copy`
        is false."""
        if _core.dtype_name(dtype) == _core.dtype_name(self.dtype):
            return self.copy() if copy else self
        return self.with_values(self.values.astype(dtype))

    def copyto(self, other: NDArray | Context) -> Any:
        """Copies the array to a device or into another array, and returns the copy.

        Parameters
        ----------
        other : Context or NDArray
            A device for a new array. Or an array of the same shape, which is dense or has the same
            storage type.
        """
        if isinstance(other, Context):
            return self._on(other)
        if not isinstance(other, NDArray):
            raise TypeError(f"copyto: expected an array or a Context, got {type(other).__name__}")
        if other is self:
            warnings.warn(
                "copyto: the array cannot be copied to itself", RuntimeWarning, stacklevel=2
            )
            return False
        if other.stype not in ("default", self.stype):
            raise TypeError(f"copyto: from {self.stype} to {other.stype} is not supported")
        if isinstance(other, BaseSparseNDArray):
            return other.copy_from(self)
        return self.tostype("default").copyto(other)

    def copy_from(self, source: NDArray) -> BaseSparseNDArray:
        """Copies the values of a sparse or dense array into this one, and returns it."""
        with _core.pause():
            _core.at_once(*self.changes_to_copy(source))
        return self

    def changes_to_copy(self, source: NDArray) -> list[tuple[Any, ...]]:
        """Returns the changes for `_core.at_once` that copy the values of `source` into this array.
        For other modules of the package."""
        if source.shape != self.shape:
            raise _core.MXNetValueError(
                f"an array of shape {source.shape} cannot be copied to an array of shape "
                f"{self.shape}"
            )
        if source.stype not in ("default", self.stype):
            source = source.tostype("default")
        copy = cast_storage(source, self.stype) if source.stype == "default" else source.copy()
        copy = copy.astype(self.dtype, copy=False).as_in_context(self.context)
        copy = copy.detach()
        state = [
            item for name in ("values", *self.aux) for item in (f"_{name}", getattr(copy, name))
        ]
        if self._gradient is None:
            return [(_core.set_attributes, self, *state, "_host", {}, "_variable", None)]
        dense = copy.tostype("default")
        return [(dense.copyto, self._variable), (_core.set_attributes, self, *state, "_host", {})]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assigns to all elements. Only ``x[:] = value`` is supported."""
        if not (isinstance(key, slice) and key == slice(None)):
            raise TypeError(
                f"{type(self).__name__}: values can only be assigned to the whole array, x[:] = ..."
            )
        if isinstance(value, NDArray):
            if value is not self:
                self.copy_from(value)
        elif isinstance(value, (int, float, np.number)):
            self._fill(value)
        else:
            self.copy_from(_core.array(np.broadcast_to(value, self.shape), dtype=self.dtype))

    def check_format(self, full_check: bool = True) -> None:
        """Raises an MXNetError if the sizes or indices are invalid. Only sizes are checked unless
        `full_check` is true."""
        try:
            wrong = self._wrong_sizes() or (full_check and self._wrong_indices())
        except MXNetError as error:  # indices out of range
            raise MXNetError(f"check_format: {error}") from None
        if wrong:
            raise MXNetError(f"check_format: {type(self).__name__}: {wrong}")

    def __reduce__(self) -> Any:
        from ..files import save_tobuffer

        return _loaded, (save_tobuffer([self]),)

    # Op methods are inherited from NDArray and work like nd.op(x, ...).

    def reshape(self, *shape: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            "reshape: sparse arrays are not supported; use tostype('default')"
        )

    def _at(self, index):
        raise NotImplementedError("sparse arrays are not supported; use tostype('default')")

    _slice = _at

    def backward(self, *args: Any, **kwargs: Any) -> None:
        return self.on_tape().backward(*args, **kwargs)

    @property
    def __array_interface__(self) -> NoReturn:
        raise AttributeError("__array_interface__ is not supported; use x.asnumpy()")

    @property
    def _traced(self):
        return self.values._traced

    def __iter__(self) -> Iterator[NDArray]:
        return map(self.__getitem__, range(len(self)))

    def __hash__(self) -> int:
        return object.__hash__(self)


def _loaded(buffer):
    from ..files import load_frombuffer

    return load_frombuffer(buffer)[0]


def _on_dense(name):
    """Returns a method that calls NDArray's method on a dense copy."""
    method = getattr(NDArray, name)

    @functools.wraps(method, assigned=("__name__", "__doc__"))
    def call(self, *args, **kwargs):
        return getattr(self.tostype("default"), name)(*args, **kwargs)

    return call


for _name in (
    "asscalar item tolist __array__ __dlpack__ __dlpack_device__ __bool__ __float__ __int__ "
    "__index__ __format__ to_dlpack_for_read to_dlpack_for_write"
).split():
    if hasattr(NDArray, _name):
        setattr(BaseSparseNDArray, _name, _on_dense(_name))


def _out_of_range(what, numbers, size):
    if not len(numbers) or (numbers.min() >= 0 and numbers.max() < size):
        return None
    wrong = np.flatnonzero((numbers < 0) | (numbers >= size))[0]
    return f"index {wrong} is {what} {numbers[wrong]}, which is out of range (0 to {size - 1})"


class RowSparseNDArray(BaseSparseNDArray):
    """An array that stores only some rows. All other rows are 0.

    `data` has the stored rows, and `indices` their ascending row indices. Embeddings can have
    gradients of this type. Use `row_sparse_array` to create one.

    Examples
    --------
    >>> x = nd.array([[0, 0], [1, 2], [0, 0], [3, 4]]).tostype("row_sparse")
    >>> x.indices.asnumpy()
    array([1, 3])
    >>> x.data.asnumpy().tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """

    __slots__ = ()
    aux: tuple[str, ...] = ("index",)
    stype = "row_sparse"

    def with_values(self, values: NDArray) -> RowSparseNDArray:
        """Returns an array with other values in the same rows."""
        return RowSparseNDArray(values, self.index, self._shape)

    def _on(self, ctx):
        source = self if self.context.rank == ctx.rank else self.with_rows_of_owner()
        values, index = source.values, source.index
        return RowSparseNDArray(values.copyto(ctx), index.copyto(ctx), self._shape)

    def with_rows_of_owner(self) -> RowSparseNDArray:
        """Returns the array with the owner's number of rows on all ranks. All ranks call it. Only
        the owner knows the number of rows of a gradient, and a transfer needs the same shape on
        all ranks. For other modules of the package."""
        rank, rows = self.context.rank, self.values.shape[0]
        if rank is None or ranks.count() == 1:
            return self
        owned = int(ranks.gather("the number of rows of a row_sparse array", str(rows))[rank])
        return self if rows == owned else self.without_contents(owned)

    def without_contents(self, rows: int) -> RowSparseNDArray:
        """Returns a placeholder with this shape and `rows` rows, for ranks without the contents.
        For other modules of the package."""
        with ranks.alone():
            values = _core.empty((rows, *self._shape[1:]), self.context, self.dtype)
            index = _core.empty((rows,), self.context, "int64")
        return RowSparseNDArray(values, index, self._shape)

    def _taken(self, dense):
        return take_rows(dense, self._index)

    def _take_over(self, other):
        self._set(other.values, other.index)

    def _fill(self, number):
        if number == 0:
            self._take_over(zeros_of("row_sparse", self.shape, self.context, self.dtype))
            return
        full = _op("_full")(shape=self.shape, value=number, ctx=self.context, dtype=self.dtype)
        self._set(full, index_array(np.arange(self.shape[0]), self.context))

    def __getitem__(self, key: Any) -> RowSparseNDArray:
        """Returns the array itself for ``x[:]``, the only supported index."""
        if isinstance(key, slice) and key == slice(None):
            return self
        raise TypeError("RowSparseNDArray: only x[:] is supported; use tostype('default')")

    def tostype(self, stype: str) -> Any:
        """Returns a copy with storage type 'default' or 'row_sparse'."""
        if stype == "row_sparse":
            return self.copy()
        if stype != "default":
            raise ValueError(f"tostype: from row_sparse to {stype!r} is not supported")
        if self._variable is not None and _core.is_recording():
            return self._variable
        if self.here:
            self.numbers()  # checks the range of the indices
        # Only the rank that owns the array knows its number of rows, which determines the op, so
        # ranks may run different ops.
        with ranks.alone():
            return add_rows(self.values, self.index, self._shape[0])

    def retain(self, indices: NDArray) -> RowSparseNDArray:
        """Returns only the rows with these indices. Rows that are not stored become zeros. Raises
        an IndexError for an index that is out of range."""
        wanted, numbers = np.unique(indices.asnumpy().astype(np.int64)), self.numbers()
        none = wanted[(wanted < 0) | (wanted >= self._shape[0])]
        if len(none):
            raise _core.MXNetIndexError(
                f"row {none[0]} is out of range (0 to {self._shape[0] - 1})"
            )
        kept = np.flatnonzero(np.isin(numbers, wanted))
        rows = take_rows(self.values, index_array(kept, self.context))
        if len(kept) < len(wanted):
            places = np.searchsorted(wanted, numbers[kept])
            rows = add_rows(rows, index_array(places, self.context), len(wanted))
        return RowSparseNDArray(rows, index_array(wanted, self.context), self._shape)

    def _wrong_sizes(self):
        if self.index.shape != self.values.shape[:1]:
            return f"got {self.values.shape[0]} rows, but indices of shape {self.index.shape}"
        return (
            self.values.shape[1:] != self._shape[1:]
            and "the rows do not have the shape of the array's rows"
        )

    def _beyond(self, part, numbers):
        if len(numbers) != self._values.shape[0]:
            return f"got {self._values.shape[0]} rows, but {len(numbers)} indices"
        return _out_of_range("row", numbers, self._shape[0])

    def _wrong_indices(self):
        numbers = self.numbers()
        return (np.diff(numbers) <= 0).any() and "the row indices must be increasing"


class CSRNDArray(BaseSparseNDArray):
    """Matrix in compressed sparse row (CSR) format.

    The stored elements of row i are ``data[indptr[i]:indptr[i + 1]]``, in the ascending columns
    ``indices[indptr[i]:indptr[i + 1]]``. Use `csr_matrix` to create one.

    Examples
    --------
    >>> x = nd.array([[0, 1, 0], [2, 0, 0], [0, 0, 0], [0, 0, 3]]).tostype("csr")
    >>> x.data.asnumpy(), x.indices.asnumpy(), x.indptr.asnumpy()
    (array([1., 2., 3.], dtype=float32), array([1, 0, 2]), array([0, 1, 2, 2, 3]))
    """

    __slots__ = ("_pointers",)
    aux: tuple[str, ...] = ("pointers", "index")
    stype = "csr"

    def __init__(self, values: NDArray, indices: NDArray, indptr: NDArray, shape: Shape) -> None:
        self._pointers = indptr
        super().__init__(values, indices, shape)

    @property
    def pointers(self) -> NDArray:
        """The offsets of the rows' first elements, then the number of elements, as int64."""
        self._refresh()
        return self._pointers

    @property
    def indptr(self) -> NDArray:
        """A copy of the int64 row pointers."""
        return self.pointers.copy()

    def rows(self) -> np.ndarray[Any, Any]:
        """Returns the row of each element as a NumPy array, which is cached."""
        known = self._known()
        rows = known.get("rows")
        if rows is None:
            self.numbers()  # checks the range of the columns
            rows = known["rows"] = row_numbers(self.numbers("pointers"))
        return rows

    def row_index(self) -> NDArray:
        """Returns the row of each element on the matrix's device. The result is cached."""
        known = self._known()
        index = known.get("row index")
        if index is None:
            index = known["row index"] = index_array(self.rows(), self.context)
        return index

    def columns_used(self) -> tuple[NDArray, NDArray]:
        """Returns the columns that have elements, and the position of each element's column among
        them, on the matrix's device. The results are cached."""
        known = self._known()
        parts = known.get("columns used")
        if parts is None:
            parts = occurring(self.numbers(), self._shape[1])
            parts = tuple([index_array(part, self.context) for part in parts])
            known["columns used"] = parts
        return parts

    def with_values(self, values: NDArray) -> CSRNDArray:
        """Returns a matrix with other values at the same positions."""
        other = CSRNDArray(values, self.index, self.pointers, self._shape)
        if other.context == self.context:
            # Both arrays have elements at the same positions, so they share the cache `_host`. If
            # one of them changes, `_set` gives it a new cache.
            other._host = self._host
        return other

    def _on(self, ctx):
        parts = [part.copyto(ctx) for part in (self.values, self.index, self.pointers)]
        return CSRNDArray(*parts, self._shape)

    def _taken(self, dense):
        return take_rows(dense.reshape((-1,)), self._places())

    def _places(self):
        """Returns the positions of the elements in the flattened matrix."""
        return index_array(self.rows() * self._shape[1] + self.numbers(), self.context)

    def _take_over(self, other):
        self._pointers = other.pointers
        self._set(other.values, other.index)

    def _fill(self, number):
        if number != 0:
            raise ValueError("CSRNDArray: only arrays can be assigned, not numbers")
        self._take_over(zeros_of("csr", self.shape, self.context, self.dtype))

    def __getitem__(self, key: Any) -> CSRNDArray:
        """Returns rows: ``x[i]`` (a matrix with one row), ``x[begin:end]``, or ``x[:]`` (the array
        itself)."""
        if isinstance(key, (int, np.integer)):
            count = self._shape[0]
            if not -count <= key < count:
                raise _core.MXNetIndexError(f"row {key} is out of range for {count} rows")
            key = key % count
            return self.sliced(key, key + 1)
        if not isinstance(key, slice):
            raise ValueError(f"CSRNDArray: an index must be x[i] or x[begin:end], not {key!r}")
        if key.step not in (None, 1):
            raise ValueError("CSRNDArray: the step of a slice must be 1")
        if key.start is None and key.stop is None:
            return self
        begin, end, _ = key.indices(self._shape[0])
        return self.sliced(begin, max(begin, end))

    def sliced(self, begin: int, end: int) -> CSRNDArray:
        """Returns the rows from `begin` to before `end`, which must be in range."""
        indptr = self.numbers("pointers")[begin : end + 1]
        first, last, ctx = int(indptr[0]), int(indptr[-1]), self.context
        places = index_array(np.arange(first, last), ctx)
        return CSRNDArray(
            take_rows(self.values, places),
            take_rows(self.index, places),
            index_array(indptr - first, ctx),
            (end - begin, self._shape[1]),
        )

    def tostype(self, stype: str) -> Any:
        """Returns a copy with storage type 'default' or 'csr'."""
        if stype == "csr":
            return self.copy()
        if stype != "default":
            raise ValueError(f"tostype: from csr to {stype!r} is not supported")
        if self._variable is not None and _core.is_recording():
            return self._variable
        height, width = self._shape
        if not height * width:  # reshape would treat a size of 0 as a code
            return _core.empty(self._shape, self.context, self.dtype)
        return add_rows(self.values, self._places(), height * width).reshape(self._shape)

    def asscipy(self) -> Any:
        """Returns the matrix as a ``scipy.sparse.csr_matrix``."""
        from scipy.sparse import csr_matrix

        parts = self.values.asnumpy(), self.numbers(), self.numbers("pointers")
        return csr_matrix(parts, shape=self._shape, dtype=self.dtype)

    def _wrong_sizes(self):
        if self.pointers.shape != (self._shape[0] + 1,):
            return f"indptr of shape {self.pointers.shape} does not match {self._shape[0]} rows"
        return (
            self.index.shape != self.values.shape and "indices and values must have the same length"
        )

    def _beyond(self, part, numbers):
        if part == "index":
            return _out_of_range("column", numbers, self._shape[1])
        ends = numbers[0] == 0 and numbers[-1] == self._index.shape[0]
        if not ends or (np.diff(numbers) < 0).any():
            return "indptr must increase from 0 to the number of elements"
        return None

    def _wrong_indices(self):
        indptr, columns = self.numbers("pointers"), self.numbers()
        rising = np.diff(columns) > 0
        rising[indptr[1:-1][(indptr[1:-1] > 0) & (indptr[1:-1] < len(columns))] - 1] = True
        return not rising.all() and "the column indices of a row must be increasing"
