"""Methods of NDArray that call ops, and a few methods written in Python."""

from __future__ import annotations

import struct
import warnings
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import NDArray
from .._internal import ranks
from .._internal.hints import ARRAY, absent, present
from ..base import MXNetError, MXNetTypeError, MXNetValueError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any


# Ops that are methods of NDArray: as in MXNet, x.op(...) is nd.op(x, ...).
OPS = (
    "abs arccos arccosh arcsin arcsinh arctan arctanh argmax argmax_channel argmin argsort "
    "broadcast_axes broadcast_like broadcast_to cbrt ceil clip cos cosh degrees depth_to_space "
    "diag erf erfinv exp expand_dims expm1 fix flatten flip floor gamma gammaln log log10 log1p "
    "log2 log_softmax max mean min nanprod nansum norm one_hot ones_like pad pick prod radians "
    "rcbrt reciprocal relu repeat reshape_like rint round rsqrt shape_array sigmoid sign sin sinh "
    "size_array slice slice_axis slice_like softmax softmin softsign sort space_to_depth split "
    "sqrt square squeeze stack sum swapaxes take tan tanh tile topk transpose trunc zeros_like"
).split()


# numpy.random.shuffle exchanges elements by x[i], x[j] = x[j], x[i], which loses elements of arrays
# whose elements are views. NumPy calls no code of the array before it starts, but it warns.
warnings.filterwarnings(
    "error", r"you are shuffling an? '(ndarray|NDArray)' object", category=UserWarning
)


def _check_two_axes(array, axes):
    """Raises an error or warns for ``x.transpose(0, 1)``, unless it swaps the two axes.

    In PyTorch, the call swaps the axes. In MXNet 1.9.1, it raises an error, because the second
    argument is the output.
    """
    first, second = axes
    if array.ndim != 2:
        raise MXNetValueError(
            f"transpose: expected all {array.ndim} axes in their new order, got ({first}, {second})"
            f"; use x.swapaxes({first}, {second}) to swap two axes"
        )
    if axes in ((0, 1), (-2, -1), (0, -1), (-2, 1)):
        warnings.warn(
            f"transpose({first}, {second}) of a matrix keeps the order of its axes; use "
            f"x.swapaxes({first}, {second}) or x.T to swap them",
            stacklevel=3,
        )


def _transpose(self, *axes: int | Sequence[int], **kwargs: Any) -> NDArray:
    """Permutes the axes: ``x.transpose((1, 0))`` or ``x.transpose(1, 0)``. Reverses their order if
    no axes are given. ``x.swapaxes(0, 1)`` swaps two axes."""
    if len(axes) > 1:
        if len(axes) == 2:
            _check_two_axes(self, axes)
        axes = (axes,)
    return _core.get_op("transpose")(self, *axes, **kwargs)


def _squeeze(self, axis: int | Sequence[int] | None = None, inplace: bool = False) -> NDArray:
    """Removes all axes of length 1, or only those in ``axis``. With ``inplace``, the result shares
    memory with the array."""
    if not inplace:
        return _core.get_op("squeeze")(self, axis=axis)
    ndim = self.ndim
    axes = (
        [i for i in range(ndim) if self.shape[i] == 1]
        if axis is None
        else [axis]
        if isinstance(axis, int)
        else list(axis)
    )
    for i in axes:
        if not -ndim <= i < ndim or self.shape[i] != 1:
            raise ValueError(
                f"squeeze: axis {i} of an array of shape {self.shape} is not of length 1"
            )
    dropped = {i % ndim for i in axes}
    return self.reshape([self.shape[i] for i in range(ndim) if i not in dropped] or [1])


def _expand_dims(self, axis: int, inplace: bool = False) -> NDArray:
    """Inserts an axis of length 1 at ``axis``; with ``inplace`` the result shares memory."""
    if not inplace:
        return _core.get_op("expand_dims")(self, axis=axis)
    if not -self.ndim - 1 <= axis <= self.ndim:
        raise ValueError(
            f"expand_dims: axis {axis} is out of range for an array of shape {self.shape}"
        )
    shape = list(self.shape)
    shape.insert(axis if axis >= 0 else axis + self.ndim + 1, 1)
    return self.reshape(shape)


def _flatten(self, inplace: bool = False) -> NDArray:
    """Flattens all axes but the first into one; with ``inplace`` the result shares memory."""
    return self.reshape((0, -1)) if inplace else _core.get_op("Flatten")(self)


def ___iter__(self) -> Iterator[NDArray]:
    """Iterates over the entries along the first axis."""
    return map(self.__getitem__, range(len(self)))


def ___format__(self, spec: str) -> str:
    """Formats the single element: ``f"{loss:.4f}"``."""
    return format(self.item(), spec) if spec else str(self)


def __repr_html_(self) -> str:
    """Returns the HTML for notebooks: abbreviated values, shape, dtype and device."""
    import html

    if self._traced or self.context.rank not in (None, ranks.own()):
        return f"<div>{html.escape(repr(self))}</div>"
    values = np.array2string(self.asnumpy(), max_line_width=100, threshold=100)
    shape = " × ".join(map(str, self.shape)) or "no axes"
    line = f"NDArray {shape}, {_core.dtype_name(self.dtype)}, {self.context}"
    return f"<pre>{html.escape(values)}</pre><div>{html.escape(line)}</div>"


def _array_interface(self) -> dict[str, Any]:
    """Returns NumPy's array interface, version 3: shape, type and memory, read-only.

    Arrays of bfloat16, on a GPU or being traced do not have it.
    """
    if self._traced or self.dtype is _core.bfloat16 or self.context.device_type == "gpu":
        raise AttributeError("__array_interface__ is not supported; use x.asnumpy()")
    memory = memoryview(self)
    return {**np.asarray(memory).__array_interface__, "data": memory}


def _tolist(self) -> Any:
    """Returns the values as nested lists of Python numbers; waits for them."""
    return self.asnumpy().tolist()


def _to_numpy(self) -> np.ndarray[Any, Any]:
    """Returns the values like `asnumpy`, under the name that some libraries call."""
    return self.asnumpy()


def ___dir__(self) -> list[str]:
    return present(self, object.__dir__(self))


def _split_v2(
    self, indices_or_sections: int | Sequence[int], axis: int = 0, squeeze_axis: bool = False
) -> NDArray | Any:
    """Calls ``nd.split_v2``."""
    from .functions import split_v2

    return split_v2(self, indices_or_sections, axis, squeeze_axis)


def _tostype(self, stype: str) -> NDArray:
    """Converts the array to the storage type 'row_sparse' or 'csr'. Returns the array itself for
    'default'."""
    from ._sparse.arrays import cast_storage

    return cast_storage(self, stype)


def _slice_assign(
    self,
    rhs: NDArray,
    begin: Sequence[int | None],
    end: Sequence[int | None],
    step: Sequence[int | None] = (),
) -> NDArray:
    """Writes ``rhs`` to the slice of this array; returns the array."""
    return _core.get_op("_slice_assign")(self, rhs, begin=begin, end=end, step=step, out=self)


def _slice_assign_scalar(
    self,
    value: float,
    begin: Sequence[int | None],
    end: Sequence[int | None],
    step: Sequence[int | None] = (),
) -> NDArray:
    """Writes a number to the slice of this array; returns the array."""
    return _core.get_op("_slice_assign_scalar")(
        self, scalar=value, begin=begin, end=end, step=step, out=self
    )


def _to_dlpack_for_read(self) -> Any:
    """Calls ``nd.to_dlpack_for_read``."""
    return _core.to_dlpack_for_read(self)


def _to_dlpack_for_write(self) -> Any:
    """Calls ``nd.to_dlpack_for_write``."""
    return _core.to_dlpack_for_write(self)


def __sync_copyfrom(self, source_array: Any) -> None:
    """Copies the values of an array-like object of the same shape."""
    source = np.asarray(source_array)
    if source.dtype.kind not in "biufV":
        raise TypeError(f"values of {source.dtype} cannot be copied into an array of {self.dtype}")
    if source.shape != self.shape:
        raise ValueError(
            f"values of shape {source.shape} cannot be copied into an array of shape {self.shape}"
        )
    _core.array(source, self.context, _core.dtype_name(self.dtype)).copyto(self)


def ___setstate__(self, state: dict[str, Any]) -> None:
    """Restores an array pickled by MXNet: the state is its record in an array file."""
    record = state.get("handle") if isinstance(state, dict) else None
    if not isinstance(record, (bytes, bytearray)):
        raise MXNetTypeError("the state of an array must be a dict with its bytes, 'handle'")
    # Build an array file with one array: magic number, reserved field, number of arrays, the
    # record, number of names (0).
    head, tail = struct.pack("<QQQ", 0x112, 0, 1), struct.pack("<Q", 0)
    (array,), *_ = _core.load_arrays_from_bytes(head + bytes(record) + tail)
    if not isinstance(array, NDArray):
        raise MXNetError("the state of an array must hold a dense array")
    if self.shape != (0,):
        raise MXNetTypeError("__setstate__: the array already has values; use x[:] = values")
    _core.replace_array(self, array)


def ___array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Computes NumPy's ufuncs with ops, or on copies of the values if no op exists.

    Raises MXNetError if a gradient would be lost.
    """
    from ..numpy import _dispatch  # first needed by programs that call NumPy's functions

    return _dispatch.array_ufunc(ufunc, method, inputs, kwargs)


def ___array_function__(
    self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Computes NumPy's functions with ops, or on copies of the values if no op exists.

    Raises MXNetError if a gradient would be lost.
    """
    from ..numpy import _dispatch

    return _dispatch.array_function(function, args, kwargs)


def add_methods(ops: dict[str, _core.Op]) -> None:
    """Adds the methods to NDArray. Must be called once."""
    for name in OPS:
        if name in ops and not hasattr(NDArray, name):
            setattr(NDArray, name, ops[name])
    NDArray.__array_priority__ = 1000.0
    NDArray.__array_ufunc__ = ___array_ufunc__
    NDArray.__array_function__ = ___array_function__
    NDArray.__array_interface__ = property(_array_interface)
    # Names of Python 2's operators, which MXNet's arrays have as well.
    NDArray.__div__, NDArray.__rdiv__ = NDArray.__truediv__, NDArray.__rtruediv__
    NDArray.__idiv__, NDArray.__nonzero__ = NDArray.__itruediv__, NDArray.__bool__
    absent(NDArray, ARRAY)
    for function in (
        ___dir__,
        ___format__,
        ___iter__,
        _to_numpy,
        __repr_html_,
        _tolist,
        _transpose,
        _squeeze,
        _expand_dims,
        _flatten,
        _split_v2,
        _tostype,
        _slice_assign,
        _slice_assign_scalar,
        __sync_copyfrom,
        ___setstate__,
        _to_dlpack_for_read,
        _to_dlpack_for_write,
    ):
        name = function.__name__[1:]
        function.__name__ = name
        function.__qualname__ = f"NDArray.{name}"
        setattr(NDArray, name, function)
