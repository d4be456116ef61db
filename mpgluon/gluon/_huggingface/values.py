"""Arrays that are read on demand, in parts: arrays of files, arrays of parameters, and rearranged
arrays.

A map between two sets of names (`_entries`) rearranges these arrays without reading them. Reading a
part of the result then reads only the parts of the originals that it needs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..._core import dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...ndarray._safetensors import File

    Ranges = Sequence[tuple[int, int]]  # (begin, end) along each axis


class Quantized(NamedTuple):
    """The stored form of a weight (units, in_units) in few bits.

    Attributes
    ----------
    format, group : str, int
        Options of `nn.QuantizedDense`.
    arrays : dict of str to LazyArray
        The values of the layer's parameters: `packed`, and perhaps `scales`, `zeros` and `order`.
    """

    format: str
    group: int
    arrays: dict[str, LazyArray]

    def each(self, change: Callable[[LazyArray], LazyArray]) -> Quantized:
        """Returns the form after a change of the units. `order` concerns the inputs."""
        arrays = {
            name: array if name == "order" else change(array) for name, array in self.arrays.items()
        }
        return self._replace(arrays=arrays)


class Stored(NamedTuple):
    """The elements [begin, end) of an array of a safetensors file, in row-major order."""

    file: File
    name: str
    begin: int
    end: int


class LazyArray:
    """An array that is read on demand.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        bfloat16 values are read as float32.
    slow_axis : int
        The axis along which the array should be read in pieces. Each piece then reads different
        bytes of the original.
    """

    shape: tuple[int, ...]
    dtype: str
    slow_axis: int = 0

    def read(self, ranges: Ranges) -> np.ndarray:
        """Reads a part of the array."""
        raise NotImplementedError

    def whole(self) -> np.ndarray:
        """Reads the whole array."""
        return self.read([(0, size) for size in self.shape])

    def stored(self, begin: int, end: int) -> list[Stored] | None:
        """Returns the parts of files that hold the rows [begin, end) one after the other, in the
        array's dtype and order. Returns None if the rows are stored in another form."""
        return None

    def quantized(self) -> Quantized | None:
        """Returns the stored form of a weight that is stored in few bits, or None."""
        return None


class FileArray(LazyArray):
    """An array of a safetensors file."""

    def __init__(self, file: File, name: str) -> None:
        self.file, self.name = file, name
        self.dtype, self.shape = file.entries[name][:2]

    def read(self, ranges: Ranges) -> np.ndarray:
        return self.file.read(self.name, dict(enumerate(ranges)))

    def stored(self, begin: int, end: int) -> list[Stored] | None:
        row = math.prod(self.shape[1:])
        return [Stored(self.file, self.name, begin * row, end * row)]


class ParameterArray(LazyArray):
    """The value of a parameter, or of the parts into which it is split.

    Parameters
    ----------
    pieces : list of (NDArray, (axis, ranges) or None)
        Arrays, each with its ranges along an axis of the whole, or None for the whole.
    """

    def __init__(self, shape: Sequence[int], pieces: Sequence[tuple[Any, Any]]) -> None:
        self.shape, self._pieces = tuple(shape), pieces
        self.dtype = dtype_name(pieces[0][0].dtype)

    def read(self, ranges: Ranges) -> np.ndarray:
        if self._pieces[0][1] is None:
            array = self._pieces[0][0]
            if ranges and tuple(ranges[0]) != (0, self.shape[0]):
                begin, end = ranges[0]
                array, ranges = array[begin:end], [(0, end - begin), *ranges[1:]]
            return array.asnumpy().reshape(array.shape)[_slices(ranges)]
        whole = None
        for array, (axis, spans) in self._pieces:
            value, before, at = array.asnumpy(), (slice(None),) * axis, 0
            whole = np.empty(self.shape, value.dtype) if whole is None else whole
            for begin, end in spans:
                whole[(*before, slice(begin, end))] = value[(*before, slice(at, at + end - begin))]
                at += end - begin
        return whole[_slices(ranges)]


class Part(LazyArray):
    """The range [begin, end) of an array along an axis."""

    def __init__(self, array: LazyArray, axis: int, begin: int, end: int) -> None:
        self._array, self._axis, self._begin = array, axis, begin
        self.shape = (*array.shape[:axis], end - begin, *array.shape[axis + 1 :])
        self.dtype, self.slow_axis = array.dtype, array.slow_axis

    def read(self, ranges: Ranges) -> np.ndarray:
        moved = list(ranges)
        moved[self._axis] = tuple(at + self._begin for at in ranges[self._axis])
        return self._array.read(moved)

    def stored(self, begin: int, end: int) -> list[Stored] | None:
        if self._axis:
            return None
        return self._array.stored(begin + self._begin, end + self._begin)

    def quantized(self) -> Quantized | None:
        whole = self._array.quantized()
        if whole is None or self._axis:
            return None
        end = self._begin + self.shape[0]
        return whole.each(lambda array: Part(array, 0, self._begin, end))


class Joined(LazyArray):
    """Arrays that are concatenated along an axis."""

    def __init__(self, arrays: Sequence[LazyArray], axis: int) -> None:
        first, self._arrays, self._axis = arrays[0], arrays, axis
        total = sum(array.shape[axis] for array in arrays)
        self.shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
        self.dtype, self.slow_axis = _common(arrays), first.slow_axis

    def _overlaps(self, begin, end):
        """Yields (array, begin, end) for the arrays that overlap the range [begin, end)."""
        at = 0
        for array in self._arrays:
            size = array.shape[self._axis]
            low, high = max(begin - at, 0), min(end - at, size)
            if low < high:
                yield array, low, high
            at += size

    def read(self, ranges: Ranges) -> np.ndarray:
        found = []
        for array, low, high in self._overlaps(*ranges[self._axis]):
            own = list(ranges)
            own[self._axis] = (low, high)
            found.append(array.read(own))
        if not found:
            return np.empty([high - low for low, high in ranges], _numpy(self.dtype))
        return np.concatenate(found, self._axis, dtype=_numpy(self.dtype))

    def stored(self, begin: int, end: int) -> list[Stored] | None:
        if self._axis or any(array.dtype != self.dtype for array in self._arrays):
            return None
        return _in_order(array.stored(low, high) for array, low, high in self._overlaps(begin, end))


class Stacked(LazyArray):
    """Arrays of one shape that are stacked along a new axis."""

    def __init__(self, arrays: Sequence[LazyArray], axis: int) -> None:
        first, self._arrays, self._axis = arrays[0], arrays, axis
        self.shape = (*first.shape[:axis], len(arrays), *first.shape[axis:])
        self.dtype, self.slow_axis = _common(arrays), axis

    def read(self, ranges: Ranges) -> np.ndarray:
        own = [*ranges[: self._axis], *ranges[self._axis + 1 :]]
        begin, end = ranges[self._axis]
        found = np.empty([high - low for low, high in ranges], _numpy(self.dtype))
        before = (slice(None),) * self._axis
        for at, array in enumerate(self._arrays[begin:end]):
            found[(*before, at)] = array.read(own)
        return found

    def stored(self, begin: int, end: int) -> list[Stored] | None:
        if self._axis or any(array.dtype != self.dtype for array in self._arrays):
            return None
        return _in_order(
            array.stored(0, array.shape[0] if array.shape else 1)
            for array in self._arrays[begin:end]
        )


class Selected(LazyArray):
    """The array at an index of an axis, which is removed."""

    def __init__(self, array: LazyArray, axis: int, index: int) -> None:
        self._array, self._axis, self._index = array, axis, index
        self.shape = (*array.shape[:axis], *array.shape[axis + 1 :])
        self.dtype = array.dtype

    def read(self, ranges: Ranges) -> np.ndarray:
        own = (self._index, self._index + 1)
        value = self._array.read([*ranges[: self._axis], own, *ranges[self._axis :]])
        return value.squeeze(self._axis)


class Transposed(LazyArray):
    """An array with permuted axes: axis i is axis ``axes[i]`` of the original."""

    def __init__(self, array: LazyArray, axes: Sequence[int]) -> None:
        self._array, self._axes = array, tuple(axes)
        self.shape = tuple(array.shape[axis] for axis in axes)
        self.dtype, self.slow_axis = array.dtype, self._axes.index(array.slow_axis)

    def read(self, ranges: Ranges) -> np.ndarray:
        own: list[Any] = [None] * len(self._axes)
        for axis, span in zip(self._axes, ranges):
            own[axis] = span
        return self._array.read(own).transpose(self._axes)


class Reordered(LazyArray):
    """An array whose axis is divided into groups of ``len(order)`` elements, each reordered:
    element i of a group is element ``order[i]`` of the original group."""

    def __init__(self, array: LazyArray, axis: int, order: Sequence[int]) -> None:
        self._array, self._axis, self._order = array, axis, np.asarray(order)
        self.shape, self.dtype, self.slow_axis = array.shape, array.dtype, array.slow_axis

    def read(self, ranges: Ranges) -> np.ndarray:
        size, (begin, end) = len(self._order), ranges[self._axis]
        first, last = begin // size * size, math.ceil(end / size) * size
        own = list(ranges)
        own[self._axis] = (first, last)
        wanted = np.arange(begin, end)
        index = wanted // size * size + self._order[wanted % size] - first
        return np.take(self._array.read(own), index, self._axis)

    def quantized(self) -> Quantized | None:
        whole = self._array.quantized()
        if whole is None or self._axis:
            return None
        return whole.each(lambda array: Reordered(array, 0, self._order))


class Shifted(LazyArray):
    """An array plus a constant."""

    def __init__(self, array: LazyArray, by: float) -> None:
        self._array, self._by = array, by
        self.shape, self.dtype, self.slow_axis = array.shape, array.dtype, array.slow_axis

    def read(self, ranges: Ranges) -> np.ndarray:
        value = self._array.read(ranges)
        return value + value.dtype.type(self._by)


class Reshaped(LazyArray):
    """A small array in another shape. Each read reads the whole."""

    def __init__(self, array: LazyArray, shape: Sequence[int]) -> None:
        self._array, self.shape, self.dtype = array, tuple(shape), array.dtype

    def read(self, ranges: Ranges) -> np.ndarray:
        return self._array.whole().reshape(self.shape)[_slices(ranges)]


def _in_order(parts):
    """Concatenates the results of `LazyArray.stored`. Returns None if one of them is None."""
    found: list[Stored] = []
    for part in parts:
        if part is None:
            return None
        found += part
    return found


def _slices(ranges):
    return tuple(slice(begin, end) for begin, end in ranges)


def _common(arrays):
    """Returns the dtype that holds all values of the arrays."""
    dtypes = {array.dtype for array in arrays}
    return dtypes.pop() if len(dtypes) == 1 else np.result_type(*map(_numpy, dtypes)).name


def _numpy(dtype):
    """Returns the NumPy dtype in which values of `dtype` are read."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)
