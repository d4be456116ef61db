"""Weights in few bits in the layouts of AutoGPTQ and GPTQModel, AutoAWQ, compressed-tensors and
bitsandbytes, which are converted to the layout of `nn.QuantizedDense`.

Each layout stores a weight in several arrays. They become one array with the name of the weight
(`QuantizedArray`), so that the map of the network's weights applies as usual.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import MXNetError
from ..nn.quantized_layers import NF4
from .quantized import LastTensor, QuantizedArray, converted
from .values import LazyArray, Quantized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Arrays = dict[str, LazyArray]

__all__ = ["METHODS", "unpacked"]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column of each 4 bits of a word, from the lowest
_FLOATS = ("float16", "bfloat16", "float32")
_LARGEST_OFFSET = 1e30  # of bitsandbytes


def unpacked(arrays: Mapping[str, LazyArray], config: Mapping[str, Any], source: str) -> Arrays:
    """Returns the arrays of a file. The arrays of each weight in few bits are joined into one.

    Parameters
    ----------
    arrays : dict of str to LazyArray
        The arrays of the files.
    config : dict
        The key ``quantization_config`` of ``config.json``.
    source : str
        Name of the config in errors.
    """
    method = config.get("quant_method")
    if method is None and (config.get("load_in_4bit") or config.get("load_in_8bit")):
        method = "bitsandbytes"  # older files
    if method not in METHODS:
        raise MXNetError(
            f"{source}: quant_method = {method!r} is not supported; the methods are "
            f"{', '.join(METHODS)}. Load the original model, and quantize it with quantize="
        )
    return METHODS[method](_Reader(arrays, config, source))


class _Reader:
    """Takes the arrays of quantized weights out of the arrays of a file."""

    def __init__(
        self, arrays: Mapping[str, LazyArray], config: Mapping[str, Any], source: str
    ) -> None:
        self.rest = dict(arrays)
        self.config, self.source, self.last = config, source, LastTensor()

    def error(self, text: str) -> MXNetError:
        """Returns an error that names the config."""
        return MXNetError(f"{self.source}: {text}")

    def expect(self, key: str, *allowed: Any) -> Any:
        """Returns the value of a key, which must be one of those allowed. The first one is the
        default."""
        value = self.config.get(key)
        value = allowed[0] if value is None else value
        if (type(value), value) not in [(type(choice), choice) for choice in allowed]:
            choices = " or ".join(repr(choice) for choice in allowed)
            raise self.error(f"{key} = {value!r} is not supported; it must be {choices}")
        return value

    def part(self, config: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Returns an object in a config; an empty one if it is missing."""
        value = config.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(f"{key} = {value!r} must be an object")
        return value or {}

    def group(self) -> int:
        """Returns ``group_size``; 0 for one group a row."""
        value = self.config.get("group_size", self.config.get("q_group_size", 128))
        if type(value) is not int or not (value == -1 or value > 0):
            raise self.error(f"group_size = {value!r} must be a positive integer or -1")
        return max(value, 0)

    def stems(self, ending: str) -> list[str]:
        """Returns the names of the arrays with an ending, without it."""
        return [name.removesuffix(ending) for name in self.rest if name.endswith(ending)]

    def take(self, name: str, *dtypes: str, optional: bool = False) -> Any:
        """Removes an array from the rest and returns it. It must have one of the dtypes."""
        array = self.rest.pop(name, None)
        if array is None:
            if optional:
                return None
            raise self.error(f"the file lacks '{name}'")
        if array.dtype not in dtypes:
            raise self.error(f"'{name}' is {array.dtype}, expected {' or '.join(dtypes)}")
        return array

    def check(self, name: str, array: LazyArray, *shape: int) -> None:
        """Raises an error if an array has another shape."""
        if array.shape != shape:
            raise self.error(f"'{name}' has shape {array.shape}, expected {shape}")

    def add(
        self,
        name: str,
        form: tuple[str, int],
        shape: tuple[int, int],
        dtype: str,
        fields: Mapping[str, tuple[tuple[int, ...], str]],
        convert: Callable[[], Any],
    ) -> None:
        """Adds a weight. `form` is its format and group."""
        if name in self.rest:
            raise self.error(f"the file holds '{name}' both quantized and not quantized")
        arrays = converted(self.last, name, fields, convert)
        self.rest[name] = QuantizedArray(Quantized(*form, arrays), shape, dtype)


def _packing(bits, units, in_units):
    """Returns the format of integers of `bits` bits, and shape and dtype of the packed values."""
    if bits == 4:
        return "int4", ((units, in_units // 2), "uint8")
    return "int8", ((units, in_units), "int8")


def _bytes(words):
    """Returns the bytes of words of 32 bits, from the lowest, along the last axis."""
    found = np.ascontiguousarray(words, "<i4").view(np.uint8)
    return found.reshape(*words.shape[:-1], words.shape[-1] * 4)


def _fours(packed):
    """Returns the numbers of 4 bits in bytes, from the lowest, along the last axis."""
    found = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    found[..., 0::2], found[..., 1::2] = packed & 15, packed >> 4
    return found


def _in_bytes(values):
    """Packs two numbers of 4 bits into each byte, the first into the lower bits."""
    return values[..., 0::2] | values[..., 1::2] << 4


def _signed(values):
    """Converts bytes 0 to 255 with the zero 128 to int8."""
    return (values ^ 128).view(np.int8)


def _unpacked_words(words, bits):
    """Returns the numbers in words of 32 bits along the last axis."""
    found = _bytes(words)
    return _fours(found) if bits == 4 else found


# --- GPTQ -----------------------------------------------------------------------------------------


def _gptq(file: _Reader) -> Arrays:
    bits = file.expect("bits", 4, 8)
    layout = file.expect("checkpoint_format", file.expect("format", "gptq", "gptq_v2"), "gptq_v2")
    file.expect("is_marlin_format", False)
    file.expect("pack_dtype", "int32")
    if file.config.get("dynamic"):
        raise file.error("dynamic, which gives layers different bits, is not supported")
    group, symmetric = file.group(), bool(file.config.get("sym", True))
    for stem in file.stems(".qweight"):
        _gptq_weight(file, stem, bits, group, symmetric, layout == "gptq")
    return file.rest


def _gptq_weight(file, stem, bits, group, symmetric, is_first):
    """Adds a weight of GPTQ. Words hold adjacent inputs, and words of zeros adjacent units. The
    first version of the format stores zeros minus 1."""
    count = 32 // bits
    words = file.take(f"{stem}.qweight", "int32")
    zeros = file.take(f"{stem}.qzeros", "int32")
    scales = file.take(f"{stem}.scales", *_FLOATS)
    index = file.take(f"{stem}.g_idx", "int32", optional=True)
    if len(words.shape) != 2 or not all(words.shape):
        raise file.error(f"'{stem}.qweight' has shape {words.shape}, expected (inputs, units)")
    in_units, units = words.shape[0] * count, words.shape[1]
    size = group or in_units
    if in_units % size or units % count:
        raise file.error(
            f"'{stem}.qweight' of shape {words.shape} does not fit groups of {size} inputs"
        )
    groups = in_units // size
    file.check(f"{stem}.scales", scales, groups, units)
    file.check(f"{stem}.qzeros", zeros, groups, units // count)
    order = None
    if index is not None:
        file.check(f"{stem}.g_idx", index, in_units)
        order = _order(file, f"{stem}.g_idx", index.whole(), size)
    format, packing = _packing(bits, units, in_units)
    fields = {"packed": packing, "scales": ((units, groups), scales.dtype)}
    if not symmetric:
        fields["zeros"] = ((units, groups), scales.dtype)
    if order is not None:
        fields["order"] = ((in_units,), "int32")

    def convert():
        values = _bytes(words.whole()[..., None]).transpose(1, 0, 2).reshape(units, -1)
        if order is not None and bits == 4:
            values = _in_bytes(_fours(values)[:, order])
        elif order is not None:
            values = values[:, order]
        found = {"packed": values if bits == 4 else _signed(values), "scales": scales.whole().T}
        stored = _unpacked_words(zeros.whole(), bits)
        # Zero 0 is stored as -1, which is 15 in 4 bits.
        stored = (stored + np.uint8(is_first)) & np.uint8((1 << bits) - 1)
        middle = 1 << (bits - 1)
        if not symmetric:
            found["zeros"] = stored.T.astype(np.float32) - (0 if bits == 4 else middle)
        elif (stored != middle).any():
            raise file.error(f"sym is true, but '{stem}.qzeros' has zeros other than {middle}")
        if order is not None:
            found["order"] = order
        return found

    file.add(
        f"{stem}.weight",
        (format, size if groups > 1 else 0),
        (units, in_units),
        scales.dtype,
        fields,
        convert,
    )


def _order(file, name, index, size):
    """Returns the order of the inputs in which groups are contiguous (`act-order`); None if they
    already are."""
    groups = len(index) // size
    # The range is checked first, because bincount allocates an element for each value up to the
    # largest.
    valid = index.min() >= 0 and index.max() < groups
    if not valid or (np.bincount(index, minlength=groups) != size).any():
        raise file.error(f"'{name}' does not divide the inputs into {groups} groups of {size}")
    order = np.argsort(index, kind="stable").astype(np.int32)
    return None if (order == np.arange(len(order))).all() else order


# --- AWQ ------------------------------------------------------------------------------------------


def _awq(file: _Reader) -> Arrays:
    bits_key = "bits" if "bits" in file.config else "w_bit"
    file.expect(bits_key, 4)
    for key in ("version", "format"):
        value = file.config.get(key)
        if value is not None and str(value).lower() != "gemm":
            raise file.error(f"{key} = {value!r} is not supported; it must be 'gemm'")
    group = file.group()
    for stem in file.stems(".qweight"):
        _awq_weight(file, stem, group)
    return file.rest


def _awq_weight(file, stem, group):
    """Adds a weight of AWQ. Words hold 8 adjacent units in the order `_AWQ_ORDER`."""
    words = file.take(f"{stem}.qweight", "int32")
    zeros = file.take(f"{stem}.qzeros", "int32")
    scales = file.take(f"{stem}.scales", *_FLOATS)
    if len(words.shape) != 2 or not all(words.shape):
        raise file.error(f"'{stem}.qweight' has shape {words.shape}, expected (inputs, units)")
    in_units, units = words.shape[0], words.shape[1] * 8
    size = group or in_units
    if in_units % size or in_units % 2:
        raise file.error(f"{in_units} inputs of '{stem}' are not a multiple of the group {size}")
    groups = in_units // size
    file.check(f"{stem}.scales", scales, groups, units)
    file.check(f"{stem}.qzeros", zeros, groups, units // 8)
    _, packing = _packing(4, units, in_units)

    def unpacked_units(array):
        stored = _fours(_bytes(array.whole())).reshape(array.shape[0], -1, 8)
        found = np.empty_like(stored)
        found[..., _AWQ_ORDER] = stored
        return found.reshape(array.shape[0], units).T

    def convert():
        return {
            "packed": _in_bytes(unpacked_units(words)),
            "scales": scales.whole().T,
            "zeros": unpacked_units(zeros).astype(np.float32),
        }

    rows = ((units, groups), scales.dtype)
    fields = {"packed": packing, "scales": rows, "zeros": rows}
    form = "int4", size if groups > 1 else 0
    file.add(f"{stem}.weight", form, (units, in_units), scales.dtype, fields, convert)


# --- compressed-tensors ---------------------------------------------------------------------------


def _compressed(file: _Reader) -> Arrays:
    file.expect("format", "pack-quantized")
    file.expect("quantization_status", "compressed")
    for key in ("kv_cache_scheme", "transform_config"):
        if file.config.get(key):
            raise file.error(f"{key} = {file.config[key]!r} is not supported")
    sparsity = file.part(file.config, "sparsity_config")
    if sparsity.get("format", "dense") != "dense":
        raise file.error(f"sparsity_config.format = {sparsity['format']!r} is not supported")
    schemes = file.part(file.config, "config_groups")
    for name in schemes:
        scheme = file.part(schemes, name)
        weights = file.part(scheme, "weights")
        if scheme.get("input_activations") or scheme.get("output_activations"):
            raise file.error(f"{name} quantizes activations, which is not supported")
        if weights.get("type", "int") != "int" or weights.get("num_bits") not in (4, 8):
            raise file.error(
                f"{name} has weights of {weights.get('num_bits')!r} bits and type "
                f"{weights.get('type')!r}; integers of 4 and 8 bits are supported"
            )
        if scheme.get("format") not in (None, "pack-quantized"):
            raise file.error(f"{name} has the format {scheme['format']!r}, not 'pack-quantized'")
    for stem in file.stems(".weight_packed"):
        _compressed_weight(file, stem)
    return file.rest


def _compressed_weight(file, stem):
    """Adds a weight of compressed-tensors. Words hold adjacent inputs, as integers from 0; words of
    zeros hold adjacent units."""
    name = f"{stem}.weight"
    words = file.take(f"{name}_packed", "int32")
    scales = file.take(f"{name}_scale", *_FLOATS)
    zeros = file.take(f"{name}_zero_point", "int32", "int8", optional=True)
    index = file.take(f"{name}_g_idx", "int32", optional=True)
    shape = file.take(f"{name}_shape", "int64", "int32")
    file.check(f"{name}_shape", shape, 2)
    units, in_units = (int(size) for size in shape.whole())
    bits = next((b for b in (4, 8) if words.shape == (units, -(-in_units * b // 32))), None)
    if bits is None or min(units, in_units) < 1 or in_units * bits % 8:
        raise file.error(f"'{name}_packed' of shape {words.shape} does not hold {units, in_units}")
    groups = 1
    if len(scales.shape) == 2 and scales.shape[0] == units and scales.shape[1]:
        groups = scales.shape[1]
    elif math.prod(scales.shape) != 1:
        raise file.error(f"'{name}_scale' has shape {scales.shape}, expected ({units}, groups)")
    if in_units % groups:
        raise file.error(f"{in_units} inputs of '{name}' cannot be divided into {groups} groups")
    size = in_units // groups
    order = None
    if index is not None:
        file.check(f"{name}_g_idx", index, in_units)
        value = index.whole()
        order = None if (value == -1).all() else _order(file, f"{name}_g_idx", value, size)
    format, packing = _packing(bits, units, in_units)
    fields = {"packed": packing, "scales": ((units, groups), scales.dtype)}
    if zeros is not None:
        rows = -(-units * bits // 32) if zeros.dtype == "int32" else units
        file.check(f"{name}_zero_point", zeros, rows, groups)
        fields["zeros"] = ((units, groups), scales.dtype)
    if order is not None:
        fields["order"] = ((in_units,), "int32")
    middle = 1 << (bits - 1)

    def convert():
        values = _bytes(words.whole())
        if order is not None and bits == 4:
            values = _in_bytes(_fours(values)[:, order])
        elif order is not None:
            values = values[:, order]
        values = values[:, : in_units * bits // 8]
        found = {"packed": values if bits == 4 else _signed(values)}
        found["scales"] = np.broadcast_to(scales.whole(), (units, groups))
        if zeros is not None:
            stored = zeros.whole()
            if zeros.dtype == "int32":
                stored = _unpacked_words(stored.T, bits)[:, :units].T - np.float32(middle)
            found["zeros"] = stored.astype(np.float32) + (middle if bits == 4 else 0)
        if order is not None:
            found["order"] = order
        return found

    form = format, size if groups > 1 else 0
    file.add(name, form, (units, in_units), scales.dtype, fields, convert)


# --- bitsandbytes ---------------------------------------------------------------------------------

_STATE = ".quant_state.bitsandbytes__"


def _bitsandbytes(file: _Reader) -> Arrays:
    for name in list(file.rest):
        found = re.fullmatch(rf"(.*){re.escape(_STATE)}(\w+)", name)
        if found is None:
            continue
        if found[2] != "nf4":
            raise file.error(f"'{found[1]}' has the type {found[2]!r}; expected 'nf4'")
        _nf4_weight(file, found[1])
    for stem in file.stems(".SCB"):
        _int8_weight(file, stem)
    return file.rest


def _nf4_weight(file, name):
    """Adds a weight of type nf4. Blocks of the flat weight have a scale; the first of two numbers
    is in the higher bits of a byte. Scales may be quantized themselves."""
    state = file.take(f"{name}{_STATE}nf4", "uint8")
    try:
        options = json.loads(state.whole().tobytes())
        units, in_units = options["shape"]
        size = options["blocksize"]
        if not all(type(n) is int and n > 0 for n in (units, in_units, size)):
            raise ValueError("a size is not a positive integer")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise file.error(f"the quant_state of '{name}' is damaged: {error}") from error
    if in_units % size:
        raise file.error(
            f"rows of '{name}' have {in_units} elements, not a multiple of the block size {size}"
        )
    groups = in_units // size
    packed = file.take(name, "uint8")
    table = file.take(f"{name}.quant_map", "float32")
    scales = file.take(f"{name}.absmax", "float32", "uint8")
    if math.prod(packed.shape) != units * in_units // 2 or in_units % 2:
        raise file.error(f"'{name}' of shape {packed.shape} does not hold {units, in_units}")
    file.check(f"{name}.absmax", scales, units * groups)
    if table.shape != (16,) or not np.allclose(table.whole(), NF4, rtol=0, atol=1e-6):
        raise file.error(f"'{name}.quant_map' does not hold the 16 values of nf4")
    nested = None
    if scales.dtype == "uint8":
        outer = file.take(f"{name}.nested_absmax", "float32")
        values = file.take(f"{name}.nested_quant_map", "float32")
        length, offset = options.get("nested_blocksize"), options.get("nested_offset")
        if type(length) is not int or length < 1:
            raise file.error(
                f"nested_blocksize = {length!r} of '{name}' must be a positive integer"
            )
        if type(offset) not in (int, float) or not abs(offset) < _LARGEST_OFFSET:
            raise file.error(f"nested_offset = {offset!r} of '{name}' must be a finite number")
        file.check(f"{name}.nested_quant_map", values, 256)
        file.check(f"{name}.nested_absmax", outer, -(-units * groups // length))
        nested = outer, values, length, offset

    def convert():
        stored = packed.whole().reshape(units, -1)
        found = scales.whole()
        if nested is not None:
            outer, values, length, offset = nested
            blocks = np.arange(found.size) // length
            found = values.whole()[found] * outer.whole()[blocks]
            found = found + np.float32(offset)
        return {"packed": stored >> 4 | stored << 4, "scales": found.reshape(units, groups)}

    fields = {
        "packed": ((units, in_units // 2), "uint8"),
        "scales": ((units, groups), "float32"),
    }
    dtype = options.get("dtype", "float32")
    dtype = dtype if dtype in _FLOATS else "float32"
    form = "nf4", size if groups > 1 else 0
    file.add(name, form, (units, in_units), dtype, fields, convert)


def _int8_weight(file, stem):
    """Adds a weight of LLM.int8, whose rows have a scale of 1 / 127 of ``SCB``."""
    name = f"{stem}.weight"
    packed = file.take(name, "int8")
    scales = file.take(f"{stem}.SCB", "float32")
    order = file.take(f"{name}_format", "uint8", optional=True)
    if order is not None and order.whole().any():
        raise file.error(f"'{name}' has another layout than rows; save it without a GPU layout")
    if len(packed.shape) != 2:
        raise file.error(f"'{name}' has shape {packed.shape}, expected (units, inputs)")
    units = packed.shape[0]
    file.check(f"{stem}.SCB", scales, units)

    def convert():
        return {"packed": packed.whole(), "scales": scales.whole()[:, None] / np.float32(127)}

    fields = {"packed": (packed.shape, "int8"), "scales": ((units, 1), "float32")}
    file.add(name, ("int8", 0), packed.shape, "float16", fields, convert)


METHODS: dict[str, Callable[[_Reader], Arrays]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
}
