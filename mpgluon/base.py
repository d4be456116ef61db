"""Errors, and small names that ported programs import from ``mxnet.base``.

All errors are ``MXNetError`` (a ``RuntimeError``). Those with a fitting built-in are of that class
too, so ``except ValueError`` works as well.
"""

from __future__ import annotations

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
from .libinfo import __version__  # noqa: F401 - found here in MXNet, too

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._types import DType


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
    """The folder of files that are fetched or kept for programs: ``$MXNET_HOME``, ``~/.mxnet`` when
    it is not set.

    Examples
    --------
    >>> import os
    >>> os.path.basename(mx.base.data_dir()) != ""
    True
    """
    return _os.environ.get("MXNET_HOME") or _os.path.join(_os.path.expanduser("~"), ".mxnet")


def py_str(value: bytes) -> str:
    """The text of UTF-8 bytes."""
    return value.decode("utf-8")


def counted(number: int, noun: str) -> str:
    """ "1 row", "3 rows"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def is_floating(dtype: DType) -> bool:
    """Whether arrays of that dtype can have gradients."""
    return dtype_name(dtype) in ("float16", "bfloat16", "float32", "float64")


def itemsize(dtype: DType) -> int:
    """Bytes of an element."""
    # NumPy knows no bfloat16.
    return 2 if dtype_name(dtype) == "bfloat16" else _np.dtype(dtype).itemsize


def _as_list(value):
    """A list or tuple as it is; anything else as a list with it."""
    return value if isinstance(value, (list, tuple)) else [value]


class NotImplementedForSymbol(MXNetError):
    """A method of arrays that symbols lack, as they have no values."""

    def __init__(self, function: Callable[..., Any], alias: str | None, *args: object) -> None:
        operator = f' (namely operator "{alias}")' if alias else ""
        kinds = f" with arguments ({', '.join(str(type(arg)) for arg in args)})" if args else ""
        super().__init__(
            f"{function.__name__}{operator}{kinds} needs values, which a Symbol does not have: "
            "bind it, or use an NDArray"
        )
