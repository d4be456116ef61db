"""Reads and writes files in the safetensors format: the length of a JSON header in 8 bytes, the
header, and the arrays.

Arrays are written and read one at a time, so the whole file is never in memory.
"""

from __future__ import annotations

import json
import math
import os
import sys
import zlib
from typing import Any

import numpy as np

from .._core import NotSupportedError, dtype_name, read_rows
from .._internal.files import Readable, open_regular, replacing
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


def is_dtype(name: str) -> bool:
    """True if the format supports arrays of the dtype."""
    return name in _NAMES


_OTHERS = (  # dtypes of the format that NDArrays do not support
    *("I16", "U16", "U32", "U64", "C64"),
    *("F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4"),
)
_LARGEST_HEADER = 100_000_000
_CHUNK = 4 << 20
_MOST = (1 << 63) - 1  # largest dimension, offset and number of bytes
_MOST_DIMENSIONS = 10  # maximum ndim of NDArrays


def encode(value: Any, dtype: str) -> Any:
    """Converts a NumPy array to its stored form, which is little-endian.

    bfloat16 values are given as float32 whose lower half is zero.
    """
    value = np.ascontiguousarray(value).reshape(np.shape(value))  # undoes () -> (1,)
    if dtype == "bfloat16":
        value = (value.astype("<f4", copy=False).view("<u4") >> 16).astype("<u2")
    return value.astype(value.dtype.newbyteorder("<"), copy=False)


def write(path: str, arrays: Any, progress: Any, origin: str = "mpgluon") -> Any:
    """Writes a file and flushes it to disk. Once it is complete, it replaces an existing file
    atomically.

    Parameters
    ----------
    path : str
        The file.
    arrays : list of (name, dtype, shape, callable)
        The callable returns the contents as a NumPy array. It is called when the array is written.
    progress : callable
        Called after each array with its number of bytes.
    origin : str
        The entry "format" of the metadata. Hugging Face's transformers requires "pt".

    Returns
    -------
    (int, int, list of int)
        The size of the file, and the CRC-32 of the header and of each array.
    """
    header, end = {"__metadata__": {"format": origin}}, 0
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
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, dtype, shape, read in arrays:
            value = encode(read(), dtype)
            if value.shape != tuple(shape) or value.itemsize != itemsize(dtype):
                raise MXNetError(
                    f"internal: an array of shape {value.shape} and dtype {value.dtype} was to "
                    f"have shape {shape} and dtype {dtype}"
                )
            data = memoryview(value.reshape(-1)).cast("B") if value.size else b""
            sums.append(zlib.crc32(data))
            file.write(data)
            progress(len(data))
            del value, data
    return 8 + len(text) + end, zlib.crc32(text), sums


def _integer(text):
    """Parses an integer of the header.

    A number with too many digits is rejected first, because parsing n digits takes O(n^2) steps.
    """
    if len(text) > len(str(_MOST)):
        raise ValueError("a number has too many digits")
    return int(text)


class File(Readable):
    """A file of the format, for reading.

    Raises MXNetError, which names the file, if it is damaged. Arrays are read instead of
    memory-mapped, so that a truncation by another process raises an error instead of a signal.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            with open_regular(path) as file:
                self.size = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(8), "little")
                if self.size < 8 or length > min(self.size - 8, _LARGEST_HEADER):
                    raise self.damaged("its header is truncated")
                text = file.read(length)
        except OSError as error:
            raise MXNetError(f"safetensors file '{path}' cannot be read: {error}") from error
        self.header_sum = zlib.crc32(text)
        self._begin = 8 + length
        try:
            header = json.loads(text, parse_int=_integer)
            self.entries = {
                name: self._entry(name, entry)
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self.damaged(f"its header is not a dict of arrays ({error})") from error
        self._check_ranges()

    def damaged(self, why: str) -> MXNetError:
        """Returns the error for a damaged file."""
        return MXNetError(f"safetensors file '{self.path}' is damaged: {why}")

    def _check_ranges(self):
        """Checks that arrays follow each other without overlap or gap, as the format requires."""
        at, last = 0, "its header"
        ranges = sorted((begin, end, name) for name, (_, _, begin, end) in self.entries.items())
        for begin, end, name in ranges:
            if self._begin + end > self.size:
                raise self.damaged(f"it is truncated: '{name}' extends past the end of the file")
            if begin != at:
                raise self.damaged(f"'{name}' begins at byte {begin}, but '{last}' ends at {at}")
            at, last = end, name
        if self._begin + at != self.size:
            raise self.damaged(f"{self.size - self._begin - at} bytes follow its last array")

    def _entry(self, name, entry):
        if entry["dtype"] in _OTHERS:
            raise NotSupportedError(
                f"safetensors file '{self.path}': '{name}' is {entry['dtype']}, which mpgluon "
                "does not support; convert it with the program that wrote it"
            )
        dtype, shape, (begin, end) = (
            _DTYPES[entry["dtype"]],
            tuple(entry["shape"]),
            entry["data_offsets"],
        )
        if len(shape) > _MOST_DIMENSIONS:
            raise ValueError(f"'{name}' has {len(shape)} dimensions; arrays have at most 10")
        if not all(type(n) is int and 0 <= n <= _MOST for n in (*shape, begin, end)):
            raise ValueError(f"a number of '{name}' is out of range")
        # Ignore zeros, because NumPy computes strides from the nonzero sizes, which must not
        # overflow even if the array is empty.
        if math.prod(filter(None, shape)) * itemsize(dtype) > _MOST:
            raise ValueError(f"the shape of '{name}' is too large for memory")
        if end - begin != math.prod(shape) * itemsize(dtype):
            raise ValueError("an array's size does not match its shape")
        return dtype, shape, begin, end

    def checksums(self, progress: Any = None) -> dict[str, int]:
        """Reads the file sequentially and returns the CRC-32 of each array's stored bytes."""
        sums = {}
        with open_regular(self.path) as file:
            for name, (_, _, begin, end) in sorted(
                self.entries.items(), key=lambda item: item[1][2:]
            ):
                file.seek(self._begin + begin)
                total, left = 0, end - begin
                while left:
                    data = file.read(min(left, _CHUNK))
                    if not data:
                        raise self.damaged(f"it ends within '{name}'")
                    total = zlib.crc32(data, total)
                    left -= len(data)
                    if progress is not None:
                        progress(len(data))
                    del data  # frees the chunk before the next one is read
                sums[name] = total
        return sums

    def read(self, name: str, ranges: Any = None) -> np.ndarray:
        """Reads an array, or the part given by `ranges`, a dict of axes to (begin, end).

        bfloat16 is returned as float32.
        """
        dtype, shape, offset, _ = self.entries[name]
        stored = np.dtype("<u2" if dtype == "bfloat16" else dtype).newbyteorder("<")
        parts = [
            range(size)[slice(*(ranges or {}).get(d, (None,)))] for d, size in enumerate(shape)
        ]
        value = np.empty([len(part) for part in parts], stored)
        if value.size:
            with self._file() as file:
                self._fill(file, name, self._begin + offset, value, shape, parts)
        if dtype != "bfloat16":
            return value
        return np.left_shift(value, 16, dtype="<u4").view("<f4")

    def read_into(self, name: str, begin: int, end: int, array: Any, row: int) -> bool:
        """Reads the elements [begin, end) of an array, counted in row-major order, into the memory
        of an NDArray, from its row `row` on. They must fill complete rows.

        Returns False and reads nothing if the dtypes differ, or if the host cannot access the
        memory.
        """
        dtype, _, offset, _ = self.entries[name]
        if dtype != dtype_name(array.dtype) or sys.byteorder != "little":
            return False
        size = itemsize(dtype)
        last = row + (end - begin) // max(1, math.prod(array.shape[1:]))
        with self._file() as file:
            at = self._begin + offset + begin * size
            done = read_rows(self.path, file.fileno(), at, array, row, last)
        if done is not None and done < (end - begin) * size:
            raise self.damaged(f"it ends within '{name}'")
        return done is not None

    def _fill(self, file, name, offset, value, shape, parts):
        """Reads parts of an array into `value`. Complete rows are read at once, and others row by
        row."""

        def read(target, row):
            file.seek(offset + row * width)
            if file.readinto(target.reshape(-1).view(np.uint8)) != target.nbytes:
                raise self.damaged(f"it ends within '{name}'")

        width = math.prod(shape[1:]) * value.itemsize
        rows = parts[0] if parts else range(1)
        if all(len(part) == size for part, size in zip(parts[1:], shape[1:])):
            read(value, rows.start)
            return
        step = max(1, _CHUNK // width)
        chosen = tuple(slice(part.start, part.stop) for part in parts[1:])
        for done in range(0, len(rows), step):
            count = min(step, len(rows) - done)
            some = np.empty((count, *shape[1:]), value.dtype)
            read(some, rows.start + done)
            value[done : done + count] = some[(slice(None), *chosen)]
