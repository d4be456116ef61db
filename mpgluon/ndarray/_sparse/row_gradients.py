"""Row-sparse gradients, which store some rows and never allocate the full array.

A weight with such a gradient (`RowGradientWeight`) is not a variable of the tape. Instead, rows
that are taken from it while recording become a variable, called a *tap*. A tap's gradient, with its
row indices, is a part of the weight's gradient. `RowSparseGradient` sums the parts when it is read.
As a result, the cost of a step is proportional to the number of rows that it uses. Any op that does
not take rows uses all rows of the weight.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from ... import _core
from ..._core import NDArray
from ..._internal import ranks
from .arrays import BaseSparseNDArray, RowSparseNDArray, cast_storage, zeros_of
from .rows import index_array, sum_equal

if TYPE_CHECKING:
    from typing import Any

    from ..._core import Context
    from ..._internal.types import DType, Shape

_op = _core.get_op
_MANY_PARTS = 64


class _Part:
    """A tap: rows that are a variable, and their row indices. If these are None, the tap has all
    rows in order."""

    __slots__ = ("numbers", "rows")

    def __init__(self, rows, numbers):
        self.rows, self.numbers = rows, numbers

    @property
    def reached(self):
        """True if backward has written the tap's gradient since it was read."""
        return bool(self.rows._fresh_grad)

    @property
    def kept(self):
        """True if a backward pass may still write the tap's gradient."""
        return self.rows._on_tape

    @property
    def number(self):
        """Number of the backward pass that wrote the tap's gradient."""
        return self.rows._backward_number

    def forget(self):
        """Marks the tap's gradient as read."""
        self.rows._fresh_grad = False

    def take(self, count):
        """Returns (values, row indices) of the tap's gradient, and marks it as read."""
        self.forget()
        values = self.rows.grad
        if self.rows.grad_req == "add":
            values = values.copy()
            self.rows.grad[:] = 0
        if self.numbers is None:
            return values, np.arange(count)
        numbers = self.numbers.asnumpy().reshape(-1).clip(0, count - 1)
        return values.reshape((len(numbers), *values.shape[self.numbers.ndim :])), numbers


class _MicroBatches:
    """The taps of one pipelined call. Their gradients are summed as if each micro-batch had been a
    separate call.

    `counts` holds the number of rows of each part in each micro-batch.
    """

    __slots__ = ("_counts", "_parts")

    def __init__(self, parts, counts):
        self._parts, self._counts = parts, counts

    @property
    def reached(self):
        return any(part.reached for part in self._parts)

    @property
    def kept(self):
        return any(part.kept for part in self._parts)

    @property
    def number(self):
        return max(part.number for part in self._parts if part.reached)

    def forget(self):
        for part in self._parts:
            part.forget()

    def take(self, count):
        reached = [i for i, part in enumerate(self._parts) if part.reached]
        taken = [self._parts[i].take(count) for i in reached]
        if len(taken) == 1:
            return taken[0]
        pieces, places, begins = [], [], [0] * len(taken)
        for counts in self._counts:
            for j, (values, numbers) in enumerate(taken):
                rows = slice(begins[j], begins[j] + counts[reached[j]])
                begins[j] = rows.stop
                pieces.append(values[rows])
                places.append(numbers[rows])
        ctx = pieces[0].context
        joined = _op("Concat")(*[piece.as_in_context(ctx) for piece in pieces], dim=0)
        return joined, np.concatenate(places)


class RowSparseGradient(RowSparseNDArray):
    """The gradient of a weight. It is summed from the weight's taps on access.

    Other modules of the package use `tap`, which makes rows a variable, and `fresh`, which is True
    if backward has written the gradient since `used` was called.
    """

    __slots__ = ("_fresh", "_parts", "_request")

    def __init__(self, shape: Shape, ctx: Context, dtype: DType, request: str) -> None:
        self._parts: list[_Part | _MicroBatches] = []
        self._request, self._fresh = request, False
        zeros = zeros_of("row_sparse", shape, ctx, dtype)
        super().__init__(zeros.values, zeros.index, shape)

    def tap(self, rows: NDArray, numbers: NDArray | None) -> NDArray:
        """Makes the rows a variable whose gradient is a part of this one.

        `numbers` holds the row indices, an array with the leading dimensions of `rows`, or None
        for all rows.
        """
        if rows._traced:
            raise _core.NotSupportedError(
                "the rows of a weight with a sparse gradient are used in a program that does "
                "not own the weight; make the weight a parameter of the block"
            )
        rows = rows.detach()
        self._mark(rows, self._new(rows.shape, rows.context, rows.dtype))
        self.add_part(rows, None if numbers is None else copied_index(numbers))
        return _core.alias(rows)  # the part is kept as long as the alias exists

    def new_tap(self, shape: Shape, ctx: Context, dtype: DType) -> NDArray:
        """Creates a variable for `add_part`; its values are never read."""
        tap = self._new(shape, ctx, dtype)
        self._mark(tap, tap.detach())  # gradient and tap share memory, as the tap is never read
        return tap

    def _new(self, shape, ctx, dtype):
        if self._request == "add":
            return _op("_full")(shape=shape, value=0, ctx=ctx, dtype=dtype)
        return _core.empty(shape, ctx, dtype)

    def _mark(self, rows, grad):
        _core.mark_variables(rows, grad, self._request)

    def add_part(self, rows: NDArray, numbers: NDArray | None) -> None:
        """Records a tap, whose gradient becomes a part of this one."""
        self._add(_Part(rows, numbers))

    def add_micro_batches(
        self, parts: list[tuple[NDArray, NDArray]], counts: list[list[int]]
    ) -> None:
        """Records (rows, row indices) pairs that are variables of a pipelined call.

        `counts` holds the number of rows of each pair in each micro-batch. The sum is computed
        micro-batch by micro-batch.
        """
        self._add(_MicroBatches([_Part(*part) for part in parts], counts))

    def _add(self, part):
        if len(self._parts) >= _MANY_PARTS:
            self._gather()
        self._parts.append(part)

    def all_rows(self, weight: NDArray) -> NDArray:
        """Returns a tap with all rows. Returns the same tap until backward has written its
        gradient."""
        for part in self._parts:
            if isinstance(part, _Part) and part.numbers is None and not part.reached:
                return _core.alias(part.rows)
        return self.tap(weight, None)

    def _gather(self):
        """Sums the parts that backward has written, and drops parts that no backward pass can
        write anymore."""
        reached = [part for part in self._parts if part.reached]
        if reached and self._request == "write":  # only the latest backward pass is used
            last = max(part.number for part in reached)
            for part in reached:
                if part.number != last:
                    part.forget()
            reached = [part for part in reached if part.reached]
        if not self.here:
            for part in reached:
                part.forget()
            self._fresh = self._fresh or bool(reached)
            reached = []
        # Only the rank that owns the gradient's device computes the sum.
        with _core.pause(), ranks.alone():
            taken = [part.take(self._shape[0]) for part in reached]
            self._parts = [part for part in self._parts if part.kept]
            if not taken:
                return
            if self._request == "add":
                taken.insert(0, (self._values, self.numbers_now()))
            ctx = self._values.context
            values = [values.as_in_context(ctx) for values, _ in taken]
            joined = values[0] if len(values) == 1 else _op("Concat")(*values, dim=0)
            sums, numbers = sum_equal(joined, np.concatenate([n for _, n in taken]), ctx)
            self._set(sums, index_array(numbers, ctx))
        self._fresh = True

    def numbers_now(self) -> np.ndarray[Any, Any]:
        """Returns the indices of the rows that are already summed."""
        return super().numbers()

    def numbers(self, part: str = "index") -> Any:
        self._gather()
        return super().numbers(part)

    @property
    def values(self) -> NDArray:
        self._gather()
        return self._values

    @property
    def index(self) -> NDArray:
        self._gather()
        return self._index

    @property
    def fresh(self) -> bool:
        """True if backward has written the gradient since the last call of `used`."""
        return self._fresh or any(part.reached for part in self._parts)

    @property
    def awaited(self) -> bool:
        """True if a backward pass may still write the gradient."""
        return any(part.kept for part in self._parts)

    def for_update(self) -> RowSparseNDArray:
        """Returns the gradient for an update that all ranks run. Ranks without its contents get a
        placeholder row."""
        return self if self.here else self.without_contents(1)

    def mark(self, fresh: bool) -> None:
        """Sets `fresh`, which says whether backward has written the gradient."""
        self._fresh = fresh

    def used(self) -> None:
        """Records that an update has used the gradient, so it is no longer fresh."""
        self._gather()
        self._fresh = False

    def replacement(self, content: RowSparseNDArray | None, fresh: bool) -> tuple[Any, ...]:
        """Returns the change (`_core.at_once`) that replaces the gradient's contents. If `content`
        is None, the gradient has no rows afterwards."""
        if content is None:
            content = zeros_of("row_sparse", self._shape, self._values.context, self._values.dtype)
        values, index = content.values, content.index
        parts = [part for part in self._parts if part.kept]
        names = ("_values", values), ("_index", index), ("_host", {}), ("_parts", parts)
        pairs = [item for pair in (*names, ("_fresh", fresh)) for item in pair]
        return (_core.set_attributes, self, *pairs)

    def _take_over(self, other):
        self._gather()
        super()._take_over(other)

    def __reduce__(self) -> Any:
        return RowSparseNDArray.__reduce__(self.copy())


def copied_index(numbers: NDArray) -> NDArray:
    """Returns a copy of the row indices as int64."""
    numbers = numbers.detach()
    same = _core.dtype_name(numbers.dtype) == "int64"
    return numbers.copy() if same else numbers.astype("int64")


class RowGradientWeight(NDArray):
    """A dense array with a row_sparse gradient.

    It shares memory with `plain`, an ordinary NDArray. `gradient` is a `RowSparseGradient`, or
    while tracing an object with the same method `tap`.
    """

    __slots__ = ("gradient", "plain")

    def __init__(self, plain: NDArray, gradient: Any) -> None:
        self.plain, self.gradient = plain, gradient
        _core.share(self, plain)

    @property
    def grad(self) -> Any:
        return self.gradient if isinstance(self.gradient, RowSparseNDArray) else None

    @property
    def _fresh_grad(self):
        return self.gradient.fresh

    @_fresh_grad.setter
    def _fresh_grad(self, fresh):
        if not fresh:
            self.gradient.used()

    @property
    def _on_tape(self):
        return self.gradient.awaited

    def detach(self) -> NDArray:
        return self.plain.detach()

    def as_in_context(self, context: Context) -> NDArray:
        """Moves the array to a device; the gradient flows back to this one."""
        if self.context == context:
            return self
        return RowGradientWeight(self.plain.as_in_context(context), self.gradient)

    as_in_ctx = as_in_context

    def tostype(self, stype: str) -> NDArray:
        """Converts all rows to a storage type."""
        return cast_storage(whole(self), stype)


def whole(array: Any) -> Any:
    """Converts an array for ops without a sparse form.

    A weight with a sparse gradient becomes a variable of all its rows while recording, and a sparse
    array becomes dense. Any other object is returned unchanged.
    """
    if isinstance(array, BaseSparseNDArray):
        return array.tostype("default")
    if not isinstance(array, RowGradientWeight):
        return array
    if not _core.is_recording():
        return array.plain
    return array.gradient.all_rows(array.plain)


def rows_of(weight: NDArray, numbers: NDArray) -> NDArray:
    """Takes rows of a weight, with indices clipped to the valid range. While recording, the rows
    become a tap of a `RowGradientWeight`."""
    if not isinstance(weight, RowGradientWeight):
        return _op("take")(weight, numbers)
    if not isinstance(numbers, NDArray):
        numbers = _core.array(numbers, ctx=weight.context)
    rows = _op("take")(weight.plain, numbers)
    return weight.gradient.tap(rows, numbers) if _core.is_recording() else rows


def _on_whole(name):
    method = getattr(NDArray, name)

    @functools.wraps(method, assigned=("__name__", "__doc__"))
    def call(self, *args, **kwargs):
        return getattr(whole(self), name)(*[whole(arg) for arg in args], **kwargs)

    return call


_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv mod rmod pow rpow matmul rmatmul neg abs getitem "
    "iter copy"
).split()
for _name in (
    *[f"__{_operator}__" for _operator in _OPERATORS],
    *("astype", "copy", "copyto", "reshape"),
):
    if hasattr(NDArray, _name):
        setattr(RowGradientWeight, _name, _on_whole(_name))
RowGradientWeight.T = property(lambda self: whole(self).T)


def row_sparse_part(weight: NDArray, gradient: RowSparseGradient | None, numbers: Any) -> Any:
    """Returns rows of a weight as a row_sparse array whose gradient is a part of `gradient`.

    `numbers` is a NumPy array of ascending row indices.
    """
    index = index_array(numbers, weight.context)
    rows = _op("take")(weight, index)
    if gradient is not None:
        rows = gradient.tap(rows, index)
    return RowSparseNDArray(rows, index, weight.shape)
