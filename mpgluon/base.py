"""Errors, and helpers that ported programs import from ``mxnet.base``.

All errors are ``MXNetError`` (a ``RuntimeError``). An error with a matching built-in class also
derives from that class, so ``except ValueError`` works as well.
"""

from __future__ import annotations

import ctypes as _ctypes
import io as _io
import os as _os
from typing import TYPE_CHECKING

import numpy as _np

from ._core import (
    DeviceMemoryError,
    HostMemoryError,
    MXNetAssertionError,
    MXNetError,
    MXNetIndexError,
    MXNetIOError,
    MXNetKeyError,
    MXNetTypeError,
    MXNetValueError,
    NotSupportedError,
    bfloat16,
    dtype_name,
)
from ._internal.files import open_regular as _open_regular
from .libinfo import __version__  # noqa: F401 - MXNet has it here as well

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ._internal.types import DType


__all__ = [
    "DeviceMemoryError",
    "HostMemoryError",
    "MXNetAssertionError",
    "MXNetError",
    "MXNetIOError",
    "MXNetIndexError",
    "MXNetKeyError",
    "MXNetTypeError",
    "MXNetValueError",
    "NotImplementedForSymbol",
    "NotSupportedForSparseNDArray",
    "NotSupportedError",
    "bfloat16",
    "data_dir",
    "integer_types",
    "mx_real_t",
    "numeric_types",
    "string_types",
]

integer_types: tuple[type, ...] = (int, _np.int32, _np.int64)
numeric_types: tuple[type, ...] = (float, int, _np.generic)
string_types: tuple[type, ...] = (str,)
mx_real_t: type[_np.float32] = _np.float32


def data_dir() -> str:
    """Returns the folder for downloaded and cached files: ``$MXNET_HOME``, or ``~/.mxnet``.

    Examples
    --------
    >>> import os
    >>> os.path.basename(mx.base.data_dir()) != ""
    True
    """
    return _os.environ.get("MXNET_HOME") or _os.path.join(_os.path.expanduser("~"), ".mxnet")


def py_str(value: bytes | str) -> str:
    """Decodes UTF-8 bytes; returns text unchanged."""
    return value if isinstance(value, str) else value.decode("utf-8")


def counted(number: int, noun: str) -> str:
    """Returns a count with its noun: "1 row", "3 rows"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def is_floating(dtype: DType) -> bool:
    """True if arrays of the dtype can have gradients."""
    return dtype_name(dtype) in ("float16", "bfloat16", "float32", "float64")


def itemsize(dtype: DType) -> int:
    """Returns the size of an element in bytes."""
    # NumPy has no bfloat16.
    return 2 if dtype_name(dtype) == "bfloat16" else _np.dtype(dtype).itemsize


def lines_of(path: str | _os.PathLike[str], encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yields the lines of a file with their numbers, from 1; raises MXNetError if it is not text.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "some.txt")
    >>> with open(path, "w") as file:
    ...     _ = file.write("a\\nb")
    >>> list(mx.base.lines_of(path))
    [(1, 'a\\n'), (2, 'b')]
    """
    with _open_regular(path) as file, _io.TextIOWrapper(file, encoding) as lines:
        try:
            yield from enumerate(lines, 1)
        except UnicodeDecodeError as error:
            raise MXNetError(f"{_os.fspath(path)} is not a text file: {error}") from None


def _as_list(value):
    """Returns a list or tuple unchanged, and any other value in a list."""
    return value if isinstance(value, (list, tuple)) else [value]


class NotImplementedForSymbol(MXNetError):
    """Raised by array methods that symbols lack, since symbols have no values."""

    def __init__(self, function: Callable[..., Any], alias: str | None, *args: object) -> None:
        operator = f' (namely operator "{alias}")' if alias else ""
        kinds = f" with arguments ({', '.join(str(type(arg)) for arg in args)})" if args else ""
        super().__init__(
            f"{function.__name__}{operator}{kinds} needs values, which a Symbol does not have: "
            "bind it, or use an NDArray"
        )


class NotSupportedForSparseNDArray(MXNetError):
    """Raised by methods of dense arrays that sparse arrays lack."""

    def __init__(self, function: Callable[..., Any], alias: str | None, *args: object) -> None:
        operator = f' (namely operator "{alias}")' if alias else ""
        kinds = f" with arguments ({', '.join(str(type(arg)) for arg in args)})" if args else ""
        super().__init__(
            f"{function.__name__}{operator}{kinds} is not supported for sparse arrays: use "
            "tostype('default')"
        )


# Names of MXNet's C interface. Packages import them, but using one raises an error.


def _absent(name):
    raise MXNetError(
        f"{name} needs MXNet's C library, which mpgluon does not have: arrays are "
        "mpgluon.nd.NDArray, and nd.from_dlpack and NDArray.to_dlpack_for_read share memory with "
        "other libraries"
    )


class _Library:
    """Placeholder for the library; using any of its functions raises an error."""

    def __getattr__(self, name):
        _absent(f"base._LIB.{name}")

    def __repr__(self):
        return "<MXNet's C library, which mpgluon does not have>"


_LIB = _Library()


def check_call(ret: int) -> None:
    """Raises MXNetError, because only MXNet's C library returns status codes."""
    _absent("base.check_call")


def c_handle_array(objs: Sequence[Any]) -> None:
    """Raises MXNetError, because arrays have no handles."""
    _absent("base.c_handle_array")


def c_str(string: str) -> _ctypes.c_char_p:
    """Converts a text to a C string."""
    return _ctypes.c_char_p(string.encode("utf-8"))


def c_array(ctype: type[Any], values: Sequence[Any]) -> _ctypes.Array[Any]:
    """Returns a C array of the given ctypes type."""
    return (ctype * len(values))(*values)


def c_str_array(strings: Sequence[str]) -> _ctypes.Array[Any]:
    """Converts texts to an array of C strings."""
    return c_array(_ctypes.c_char_p, [string.encode("utf-8") for string in strings])


mx_int: type[_ctypes.c_int] = _ctypes.c_int
mx_uint: type[_ctypes.c_uint] = _ctypes.c_uint
mx_int64: type[_ctypes.c_int64] = _ctypes.c_int64
mx_float: type[_ctypes.c_float] = _ctypes.c_float
NDArrayHandle: type[_ctypes.c_void_p] = _ctypes.c_void_p
SymbolHandle: type[_ctypes.c_void_p] = _ctypes.c_void_p
KVStoreHandle: type[_ctypes.c_void_p] = _ctypes.c_void_p
CachedOpHandle: type[_ctypes.c_void_p] = _ctypes.c_void_p
