"""Weights in few bits: their values, and the values of the parameters of `nn.QuantizedDense`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ... import ndarray as nd
from ...context import cpu
from .._packing.weights import quantize_array
from .values import LazyArray, Quantized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .values import Ranges

    Values = Mapping[str, np.ndarray]


_PIECE = 1 << 20  # elements that are rounded at once


class QuantizedArray(LazyArray):
    """A weight in few bits. Reading it returns dequantized values.

    Parameters
    ----------
    form : Quantized
        The stored form, with axes before the units if `shape` has more than two.
    shape : tuple of int
        (units, in_units), perhaps after further axes.
    dtype : str, default 'float32'
        Dtype of the values.
    """

    def __init__(self, form: Quantized, shape: Sequence[int], dtype: str = "float32") -> None:
        self._form, self.shape, self.dtype = form, tuple(shape), dtype

    def read(self, ranges: Ranges) -> np.ndarray:
        *outer, (begin, end) = ranges
        inputs = self.shape[-1]
        arrays = {}
        for name, array in self._form.arrays.items():
            if name == "order":
                arrays[name] = array.whole()
            else:
                value = array.read([*outer, (0, array.shape[-1])])
                arrays[name] = value.reshape(-1, value.shape[-1])
        values = dequantized(self._form.format, self._form.group, arrays, inputs)
        return values.reshape([high - low for low, high in outer] + [inputs])[..., begin:end]

    def quantized(self) -> Quantized | None:
        return self._form if len(self.shape) == 2 else None


def dequantized(format: str, group: int, arrays: Values, in_units: int) -> np.ndarray:
    """Returns the float32 weight (units, in_units) of a stored form, as `QuantizedDense` uses it.

    Parameters
    ----------
    format, group
        See `Quantized`.
    arrays : dict of str to numpy.ndarray
        The values of the layer's parameters.
    """
    units = len(arrays["packed"])
    if not units:
        return np.empty((0, in_units), np.float32)
    if format == "int8" and "zeros" in arrays:  # no format of the layer
        scales, zeros = (
            np.repeat(arrays[name].astype(np.float32), group or in_units, axis=1)
            for name in ("scales", "zeros")
        )
        return _in_file_order((arrays["packed"] - zeros) * scales, arrays)
    inputs = {
        name: nd.array(value, ctx=cpu(0), dtype=value.dtype if name == "packed" else "float32")
        for name, value in arrays.items()
        if name != "order"
    }
    weight = nd.contrib.dequantize_weight(
        **inputs, format=format, group=group, units=units, in_units=in_units
    ).asnumpy()
    return _in_file_order(weight, arrays)


def _in_file_order(weight, arrays):
    if "order" not in arrays:
        return weight
    found = np.empty_like(weight)
    found[:, arrays["order"]] = weight  # the layer reads its inputs in this order
    return found


class LastTensor:
    """The values of the tensor that was converted last.

    The parameters of a layer are read one after another, and the conversion of a tensor computes
    all of them. Only one tensor is held.
    """

    def __init__(self) -> None:
        self._name: str | None = None
        self._values: Values = {}

    def values(self, name: str, convert: Callable[[], Values]) -> Values:
        """Returns the values of a tensor, which `convert` computes."""
        if self._name != name:
            self._name, self._values = None, {}  # frees the tensor before
            self._values = convert()
            self._name = name
        return self._values


class _Field(LazyArray):
    """One of the arrays that the conversion of a tensor returns."""

    def __init__(
        self,
        tensor: Callable[[], Values],
        name: str,
        shape: Sequence[int],
        dtype: str,
    ) -> None:
        self._tensor, self._name = tensor, name
        self.shape, self.dtype = tuple(shape), dtype

    def read(self, ranges: Ranges) -> np.ndarray:
        value = self._tensor()[self._name]
        if value.shape != self.shape:
            raise AssertionError(f"'{self._name}' has shape {value.shape}, not {self.shape}")
        return value[tuple(slice(begin, end) for begin, end in ranges)]


def converted(
    last: LastTensor,
    tensor: str,
    fields: Mapping[str, tuple[Sequence[int], str]],
    convert: Callable[[], Values],
) -> dict[str, LazyArray]:
    """Returns arrays whose values `convert` computes when the first of them is read.

    Parameters
    ----------
    last : LastTensor
        Holds the values.
    tensor : str
        Name of the tensor.
    fields : dict of str to (shape, dtype)
        The arrays.
    convert : callable
        Returns the value of each array.
    """

    def values():
        return last.values(tensor, convert)

    return {name: _Field(values, name, *field) for name, field in fields.items()}


def rounded(
    last: LastTensor,
    name: str,
    array: LazyArray,
    format: str,
    group: int,
    fields: Mapping[str, tuple[Sequence[int], str]],
) -> dict[str, LazyArray]:
    """Returns the form of a float weight in few bits, which is rounded to nearest while it is
    read, a few rows at a time. `fields` has the shape and dtype of the layer's parameters."""

    def convert() -> Any:
        units, in_units = array.shape
        # Rows of an array with another slow axis would read the whole file again for each piece.
        step = units if array.slow_axis else max(1, _PIECE // in_units)
        found: dict[str, Any] = {}
        for begin in range(0, units, step):
            end = min(begin + step, units)
            rows = nd.array(array.read([(begin, end), (0, in_units)]), ctx=cpu(0), dtype="float32")
            for key, value in quantize_array(rows, format, group, "zeros" in fields).items():
                if key not in found:
                    found[key] = np.empty(fields[key][0], value.dtype)
                found[key][begin:end] = value.asnumpy()
        if "order" in fields:
            found["order"] = np.arange(in_units, dtype=np.int32)
        return found

    return converted(last, name, fields, convert)
