"""Files of the safetensors format: eight bytes for the length of a JSON header, the header, then
the arrays one after the other.

Arrays are written and read one at a time, so a file is never in memory as a whole.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from typing import Any

import numpy as np

from .._core import NotSupportedError
from ..base import MXNetError, itemsize

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {code: name for name, code in _NAMES.items()}
_OTHERS = (  # that no array here can have
    *("I16", "U16", "U32", "U64", "C64"),
    *("F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4"),
)
_LARGEST_HEADER = 100_000_000
_CHUNK = 4 << 20


def encode(value: Any, dtype: str) -> Any:
    """A NumPy array as it is stored. bfloat16 comes as float32, of which the upper half is all
    there is."""
    value = np.ascontiguousarray(value).reshape(np.shape(value))  # () becomes (1,)
    if dtype == "bfloat16":
        value = (value.astype("<f4", copy=False).view("<u4") >> 16).astype("<u2")
    return value.astype(value.dtype.newbyteorder("<"), copy=False)


def write(path: str, arrays: Any, progress: Any) -> Any:
    """Writes a file and flushes it to the disk.

    Parameters
    ----------
    path : str
        The file; one that is there is overwritten.
    arrays : list of (name, dtype, shape, callable)
        The callable gives the contents, a NumPy array, when their turn has come.
    progress : callable
        Called with the number of bytes behind each array.

    Returns
    -------
    (int, int, list of int)
        The size of the file, and the CRC-32 of the header and of each array.
    """
    header, end = {"__metadata__": {"format": "mpgluon"}}, 0
    for name, dtype, shape, _ in arrays:
        size = math.prod(shape) * itemsize(dtype)
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sums = []
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, dtype, shape, read in arrays:
            value = encode(read(), dtype)
            if value.shape != tuple(shape):
                raise MXNetError(
                    f"internal: an array of shape {value.shape} was to have shape {shape}"
                )
            data = memoryview(value.reshape(-1)).cast("B") if value.size else b""
            sums.append(zlib.crc32(data))
            file.write(data)
            progress(len(data))
            del value, data
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text) + end, zlib.crc32(text), sums


class File:
    """A file of the format, for reading. Raises MXNetError, naming the file, where it is
    damaged."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.size = os.path.getsize(path)
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if self.size < 8 or length > min(self.size - 8, _LARGEST_HEADER):
                    raise self.damaged("it is cut off in its header")
                text = file.read(length)
        except OSError as error:
            raise MXNetError(f"safetensors file '{path}' can't be read: {error}") from error
        self.header_sum = zlib.crc32(text)
        self._begin = 8 + length
        try:
            header = json.loads(text)
            self.entries = {
                name: self._entry(name, entry)
                for name, entry in header.items()
                if name != "__metadata__"
            }
            cut = next(
                (
                    name
                    for name, (_, _, _, end) in self.entries.items()
                    if self._begin + end > self.size
                ),
                None,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self.damaged(f"its header is no list of arrays ({error})") from error
        if cut is not None:
            raise self.damaged(f"it is cut off: '{cut}' would end behind the end of the file")

    def damaged(self, why: str) -> MXNetError:
        """The error that says so."""
        return MXNetError(f"safetensors file '{self.path}' is damaged: {why}")

    def _entry(self, name, entry):
        if entry["dtype"] in _OTHERS:
            raise NotSupportedError(
                f"safetensors file '{self.path}': '{name}' is {entry['dtype']}, which no array "
                "here can be; convert it with the program that wrote it"
            )
        dtype, shape, (begin, end) = (
            _DTYPES[entry["dtype"]],
            tuple(entry["shape"]),
            entry["data_offsets"],
        )
        if not all(
            isinstance(n, int) and n >= 0 for n in (*shape, begin, end)
        ) or end - begin != math.prod(shape) * itemsize(dtype):
            raise ValueError("an array's size is not that of its shape")
        return dtype, shape, begin, end

    def checksum(self, name: str, progress: Any = None) -> int:
        """The CRC-32 of an array as stored."""
        _, _, begin, end = self.entries[name]
        total = 0
        with open(self.path, "rb") as file:
            file.seek(self._begin + begin)
            left = end - begin
            while left:
                data = file.read(min(left, _CHUNK))
                if not data:
                    raise self.damaged(f"it ends within '{name}'")
                total = zlib.crc32(data, total)
                left -= len(data)
                if progress is not None:
                    progress(len(data))
        return total

    def read(self, name: str, ranges: Any = None) -> np.ndarray:
        """An array, or the part of it that `ranges`, a dict of axes to (begin, end), says. bfloat16
        is returned as float32."""
        dtype, shape, offset, _ = self.entries[name]
        stored = np.dtype("<u2" if dtype == "bfloat16" else dtype).newbyteorder("<")
        if not math.prod(shape):
            return np.empty(shape, stored)
        value = np.memmap(self.path, stored, "r", self._begin + offset, shape)
        if ranges:
            value = value[
                tuple(slice(*ranges[d]) if d in ranges else slice(None) for d in range(len(shape)))
            ]
        value = np.array(value)
        return (value.astype("<u4") << 16).view("<f4") if dtype == "bfloat16" else value
