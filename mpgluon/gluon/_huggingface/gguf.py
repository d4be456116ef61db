"""Reads files in the GGUF format of llama.cpp, versions 2 and 3: metadata, a table of tensors, and
the tensors, each at a multiple of the alignment.

Offsets, sizes, counts and types are checked before they are used, because the files come from
anywhere.
"""

from __future__ import annotations

import math
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..._internal.files import Readable, open_regular
from ...base import MXNetError
from .quantized import QuantizedArray
from .values import LazyArray, Quantized

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from .values import Ranges

__all__ = ["GGUF"]

_MAGIC = b"GGUF"
_MOST = (1 << 63) - 1  # largest number of elements and bytes
_MOST_DIMENSIONS = 4
_MOST_DEPTH = 4  # of arrays in arrays
_CHUNK = 1 << 20

# Types of metadata: code -> format of `struct`. Strings and arrays have a length of 64 bits.
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9


class _Type(NamedTuple):
    """A type of tensors: rows consist of blocks of `block` elements in `size` bytes."""

    name: str
    block: int
    size: int
    dtype: str | None = None  # of plain numbers
    format: str | None = None  # of `QuantizedDense`


_TYPES = {
    0: _Type("F32", 1, 4, "float32"),
    1: _Type("F16", 1, 2, "float16"),
    2: _Type("Q4_0", 32, 18, format="q4_0"),
    3: _Type("Q4_1", 32, 20),
    6: _Type("Q5_0", 32, 22),
    7: _Type("Q5_1", 32, 24),
    8: _Type("Q8_0", 32, 34, format="q8_0"),
    9: _Type("Q8_1", 32, 36),
    10: _Type("Q2_K", 256, 84),
    11: _Type("Q3_K", 256, 110),
    12: _Type("Q4_K", 256, 144, format="q4_k"),
    13: _Type("Q5_K", 256, 176),
    14: _Type("Q6_K", 256, 210, format="q6_k"),
    15: _Type("Q8_K", 256, 292),
    16: _Type("IQ2_XXS", 256, 66),
    17: _Type("IQ2_XS", 256, 74),
    18: _Type("IQ3_XXS", 256, 98),
    19: _Type("IQ1_S", 256, 50),
    20: _Type("IQ4_NL", 32, 18),
    21: _Type("IQ3_S", 256, 110),
    22: _Type("IQ2_S", 256, 82),
    23: _Type("IQ4_XS", 256, 136),
    24: _Type("I8", 1, 1, "int8"),
    25: _Type("I16", 1, 2),
    26: _Type("I32", 1, 4, "int32"),
    27: _Type("I64", 1, 8, "int64"),
    28: _Type("F64", 1, 8, "float64"),
    29: _Type("IQ1_M", 256, 56),
    30: _Type("BF16", 1, 2, "bfloat16"),
    34: _Type("TQ1_0", 256, 54),
    35: _Type("TQ2_0", 256, 66),
    39: _Type("MXFP4", 32, 17),
}
_READABLE = ", ".join(kind.name for kind in _TYPES.values() if kind.dtype or kind.format)


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    type: _Type
    begin: int  # byte of the file

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.type.block * self.type.size

    @property
    def bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes


class GGUF(Readable):
    """A file in the GGUF format, for reading. Only metadata and the table of tensors are read at
    first.

    The file is read instead of memory-mapped, so that a truncation by another process raises an
    error instead of a signal. Each piece of a tensor is read straight into the array that is copied
    to the device.

    Parameters
    ----------
    path : str
        The file. A model that is split into several files must be merged with llama.cpp's
        ``llama-gguf-split --merge``.

    Raises
    ------
    MXNetError
        If the file is missing or damaged. The message names it.

    Examples
    --------
    ::

        file = mx.contrib.huggingface.GGUF("model.gguf")
        file.metadata["general.architecture"]    # 'llama'
        file.types()["blk.0.attn_q.weight"]      # 'Q4_K'
        file.read("blk.0.attn_q.weight")         # dequantized
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.metadata: dict[str, Any]
        try:
            with open_regular(self.path) as file:
                self.metadata, self._tensors = _header(_Cursor(file, self), self)
        except OSError as error:
            raise MXNetError(f"GGUF file '{self.path}' cannot be read: {error}") from error
        _check_overlap(self._tensors, self)
        parts = self.metadata.get("split.count", 1)
        if type(parts) is not int:
            raise self.damaged(f"split.count = {parts!r} is not an integer")
        if parts > 1:
            raise MXNetError(
                f"GGUF file '{self.path}' is one of {parts} parts; merge them with llama.cpp: "
                "llama-gguf-split --merge"
            )

    @property
    def arrays(self) -> Mapping[str, LazyArray]:
        """The tensors by name, which are read on demand. Quantized ones are read as float32.

        Raises MXNetError, which names the tensor, if the type of a tensor is not supported.
        """
        return {name: self._array(name) for name in self._tensors}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each tensor. The last axis has adjacent elements."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def types(self) -> dict[str, str]:
        """Returns the type of each tensor, such as 'Q4_K'."""
        return {name: tensor.type.name for name, tensor in self._tensors.items()}

    def read(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Reads a tensor, or its rows [begin, end). Quantized and bfloat16 values are returned as
        float32.

        Raises KeyError if the name is unknown, and ValueError if the rows are out of range.
        """
        array = self._array(name)
        if rows is None:
            return array.whole()
        begin, end = rows
        if not 0 <= begin <= end <= array.shape[0]:
            raise ValueError(f"rows {rows} of '{name}', whose shape is {array.shape}")
        return array.read([(begin, end), *((0, size) for size in array.shape[1:])])

    def damaged(self, why: str) -> MXNetError:
        """Returns the error for a damaged file."""
        return MXNetError(f"GGUF file '{self.path}' is damaged: {why}")

    def read_bytes(self, name: str, begin: int, end: int) -> np.ndarray:
        """Reads the bytes [begin, end) of a tensor."""
        found = np.empty(end - begin, np.uint8)
        with self._file() as file:
            file.seek(self._tensors[name].begin + begin)
            if found.size and file.readinto(found) != found.nbytes:
                raise self.damaged(f"it ends within '{name}'")
        return found

    def _array(self, name):
        tensor = self._tensors[name]
        kind = tensor.type
        if kind.dtype is not None:
            return _Rows(self, name, tensor.shape, kind.dtype)
        if kind.format is None:
            raise MXNetError(
                f"GGUF file '{self.path}': '{name}' has the type {kind.name}, which is not "
                f"supported; the types are {_READABLE}. Convert the original model with "
                "llama.cpp's llama-quantize to Q4_K_S, Q6_K, Q4_0 or Q8_0"
            )
        packed = _Rows(self, name, (*tensor.shape[:-1], tensor.row_bytes), "uint8")
        return QuantizedArray(Quantized(kind.format, 0, {"packed": packed}), tensor.shape)


class _Rows(LazyArray):
    """A tensor of plain numbers, or the bytes of a quantized one."""

    def __init__(self, file: GGUF, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self._file, self._name = file, name
        self.shape, self.dtype = shape, dtype

    def read(self, ranges: Ranges) -> np.ndarray:
        stored = np.dtype("<u2" if self.dtype == "bfloat16" else self.dtype).newbyteorder("<")
        (begin, end), *inner = ranges
        width = math.prod(self.shape[1:]) * stored.itemsize
        value = self._file.read_bytes(self._name, begin * width, end * width).view(stored)
        value = value.reshape((end - begin, *self.shape[1:]))
        value = value[(slice(None), *(slice(low, high) for low, high in inner))]
        if self.dtype != "bfloat16":
            return value
        return np.left_shift(value, 16, dtype="<u4").view("<f4")


class _Cursor:
    """Reads the header of a file. Lengths are compared with the size of the file before they are
    used."""

    def __init__(self, file: BinaryIO, owner: GGUF) -> None:
        self._file, self._owner = file, owner
        self.size = os.fstat(file.fileno()).st_size
        self._data, self._at, self._done = b"", 0, 0  # _done: bytes before _data

    @property
    def position(self) -> int:
        """The number of bytes that were read."""
        return self._done + self._at

    def take(self, count: int, subject: str) -> bytes:
        """Returns the next bytes."""
        if count > self.size - self.position:
            raise self._owner.damaged(f"it ends within {subject}")
        if self._at + count > len(self._data):
            rest = self._data[self._at :]
            self._done += self._at
            self._data = rest + self._file.read(max(count - len(rest), _CHUNK))
            self._at = 0
            if len(self._data) < count:
                raise self._owner.damaged(f"it ends within {subject}")
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def number(self, form: str, subject: str) -> Any:
        """Returns the next number, in a format of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form), subject))[0]

    def count(self, least: int, subject: str) -> int:
        """Returns a number of items that take at least `least` bytes each."""
        count = self.number("<Q", subject)
        if count > (self.size - self.position) // least:
            raise self._owner.damaged(f"{subject} has {count} items, more than the file can hold")
        return count

    def text(self, subject: str) -> str:
        """Returns a string."""
        raw = self.take(self.count(1, subject), subject)
        # Vocabularies of some models hold incomplete UTF-8.
        return raw.decode("utf-8", "surrogateescape")


def _header(cursor, file):
    """Reads the metadata and the table of tensors."""
    if cursor.size < 24 or cursor.take(4, "its header") != _MAGIC:
        raise MXNetError(f"'{file.path}' is not a GGUF file: it does not begin with 'GGUF'")
    version = cursor.number("<I", "its header")
    if version not in (2, 3):
        reason = "it is big-endian" if version and not version & 0xFFFF else "it is"
        detail = "" if version and not version & 0xFFFF else f" of version {version}"
        raise MXNetError(
            f"GGUF file '{file.path}': {reason}{detail}; little-endian files of versions 2 and 3 "
            "are supported, convert it with llama.cpp"
        )
    tensors = cursor.count(24, "the table of tensors")
    pairs = cursor.count(13, "the metadata")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.text("a name of the metadata")
        subject = f"the metadata '{key}'"
        if key in metadata:
            raise file.damaged(f"{subject} occurs twice")
        metadata[key] = _value(cursor, file, cursor.number("<I", subject), subject, 0)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise file.damaged(f"general.alignment = {alignment!r} is not a power of two")
    rows: dict[str, tuple[Any, ...]] = {}
    for _ in range(tensors):
        name = cursor.text("the name of a tensor")
        if name in rows:
            raise file.damaged(f"the tensor '{name}' occurs twice")
        rows[name] = _entry(cursor, file, name, alignment)
    begin = -(-cursor.position // alignment) * alignment
    found = {}
    for name, (shape, kind, offset) in rows.items():
        tensor = _Tensor(shape, kind, begin + offset)
        if tensor.begin + tensor.bytes > cursor.size:
            raise file.damaged(f"'{name}' extends past the end of the file")
        found[name] = tensor
    return metadata, found


def _value(cursor, file, kind, subject, depth):
    """Reads a value of the metadata. Arrays of numbers are NumPy arrays."""
    if kind in _SCALARS:
        if kind == _BOOL:
            value = cursor.number("<B", subject)
            if value > 1:
                raise file.damaged(f"{subject} is a bool with the value {value}")
            return bool(value)
        return cursor.number(_SCALARS[kind], subject)
    if kind == _STRING:
        return cursor.text(subject)
    if kind != _ARRAY:
        raise file.damaged(f"{subject} has the unknown type {kind}")
    if depth == _MOST_DEPTH:
        raise file.damaged(f"{subject} has arrays in more than {_MOST_DEPTH} arrays")
    inner = cursor.number("<I", subject)
    if inner in _SCALARS:
        form = np.dtype(_SCALARS[inner])
        count = cursor.count(form.itemsize, subject)
        found = np.frombuffer(cursor.take(count * form.itemsize, subject), form)
        if inner == _BOOL and (found.view(np.uint8) > 1).any():
            raise file.damaged(f"{subject} has a bool that is neither 0 nor 1")
        return found
    count = cursor.count(8 if inner == _STRING else 12, subject)
    return [_value(cursor, file, inner, subject, depth + 1) for _ in range(count)]


def _entry(cursor, file, name, alignment):
    """Reads an entry of the table of tensors. Returns (shape, type, offset)."""
    subject = f"the entry of '{name}'"
    dimensions = cursor.number("<I", subject)
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise file.damaged(f"'{name}' has {dimensions} dimensions, not 1 to {_MOST_DIMENSIONS}")
    sizes = [cursor.number("<Q", subject) for _ in range(dimensions)]
    code, offset = cursor.number("<I", subject), cursor.number("<Q", subject)
    if code not in _TYPES:
        raise MXNetError(
            f"GGUF file '{file.path}': '{name}' has the unknown type {code}; the types are "
            f"{_READABLE}"
        )
    kind = _TYPES[code]
    if 0 in sizes or math.prod(sizes) > _MOST // kind.size:
        raise file.damaged(f"the sizes {sizes} of '{name}' are out of range")
    if sizes[0] % kind.block:
        raise file.damaged(
            f"rows of '{name}' have {sizes[0]} elements, not a multiple of {kind.block} as "
            f"{kind.name} needs"
        )
    if offset % alignment or offset > _MOST:
        raise file.damaged(f"the offset {offset} of '{name}' is not a multiple of {alignment}")
    return tuple(reversed(sizes)), kind, offset


def _check_overlap(tensors, file):
    last, at = None, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        if tensor.begin < at:
            raise file.damaged(f"'{name}' overlaps with '{last}'")
        last, at = name, tensor.begin + tensor.bytes
