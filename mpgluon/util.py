"""Helpers under MXNet's names.

The NumPy-like interface (``mx.np``) is not part of this package, and its switches are off. The
switch for NumPy shapes affects only symbols: with it, `Symbol.infer_shape` represents unknown sizes
and shapes as -1 and None instead of 0 and (). Arrays with zero dimensions or of zero size always
exist.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    from ._core import Context
    from ._internal.types import Function


__all__ = [
    "get_cuda_compute_capability",
    "get_gpu_count",
    "get_gpu_memory",
    "getenv",
    "is_np_array",
    "is_np_shape",
    "makedirs",
    "np_array",
    "np_shape",
    "np_ufunc_legal_option",
    "reset_np",
    "set_module",
    "set_np",
    "set_np_shape",
    "setenv",
    "use_np",
    "use_np_array",
    "use_np_shape",
    "wrap_np_binary_func",
    "wrap_np_unary_func",
]

_UFUNC_OPTIONS = {
    "where": True,
    "casting": "same_kind",
    "order": "K",
    "dtype": None,
    "subok": True,
}
_UFUNC_DTYPES = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64")


def np_ufunc_legal_option(key: str, value: Any) -> bool:
    """True if NumPy's functions accept the option.

    Examples
    --------
    >>> mx.util.np_ufunc_legal_option("casting", "safe")
    True
    """
    if key == "where":
        return True
    if key == "casting":
        return value in ("no", "equiv", "safe", "same_kind", "unsafe")
    if key == "order":
        return isinstance(value, str)
    if key == "dtype":
        return getattr(value, "__name__", value) in _UFUNC_DTYPES
    return key == "subok" and isinstance(value, bool)


def _wrapped(func, count):
    """Wraps a function of `count` arrays and `out` so that it accepts default NumPy options."""

    @functools.wraps(func)
    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if len(args) > count:
            args, out = args[:count], args[count]
        for key, value in kwargs.items():
            if key not in _UFUNC_OPTIONS:
                raise TypeError(f"{key} is an invalid keyword to function '{func.__name__}'")
            if value == _UFUNC_OPTIONS[key]:
                continue
            if np_ufunc_legal_option(key, value):
                raise NotImplementedError(f"{func.__name__}: {key}={value} is not implemented")
            raise TypeError(f"{func.__name__}: {key}={value} not understood")
        return func(*args, out=out)

    return call


def wrap_np_unary_func(func: Function) -> Function:
    """Wraps a function of one array so that it checks NumPy's options."""
    return _wrapped(func, 1)


def wrap_np_binary_func(func: Function) -> Function:
    """Wraps a function of two arrays so that it checks NumPy's options."""
    return _wrapped(func, 2)


def getenv(name: str) -> str | None:
    """Returns the value of an environment variable, or None if it is not set."""
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Sets an environment variable; None removes it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = str(value)


def makedirs(d: str) -> None:
    """Creates a folder and its parents; it may already exist.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mx.util.makedirs(os.path.join(folder, "a", "b"))
    ...     names = os.listdir(folder)
    >>> names
    ['a']
    """
    os.makedirs(os.path.expanduser(d), exist_ok=True)


def get_gpu_count() -> int:
    """Returns the number of usable GPUs.

    Examples
    --------
    >>> mx.util.get_gpu_count() == mx.context.num_gpus()
    True
    """
    return _core.num_gpus()


def get_gpu_memory(gpu_dev_id: int) -> tuple[int, int]:
    """Returns ``(free, total)`` bytes of a GPU's memory."""
    from .context import gpu_memory_info

    return gpu_memory_info(gpu_dev_id)


def get_cuda_compute_capability(ctx: Context) -> NoReturn:
    """Always raises NotSupportedError: the compute capability is not available."""
    raise _core.NotSupportedError(f"get_cuda_compute_capability: not available for {ctx}")


def is_np_array() -> bool:
    """Returns False: operators and Gluon use NDArray."""
    return False


_switches = threading.local()


def is_np_shape() -> bool:
    """True if unknown sizes are written as -1 in this thread (see `np_shape`).

    Examples
    --------
    >>> mx.util.is_np_shape()
    False
    """
    return getattr(_switches, "np_shape", False)


def set_np_shape(active: bool) -> bool:
    """Sets whether unknown sizes are written as -1 in this thread; returns the former value.

    Examples
    --------
    >>> former = mx.util.set_np_shape(True)
    >>> mx.util.set_np_shape(former)
    True
    """
    former = is_np_shape()
    _switches.np_shape = bool(active)
    return former


def set_np(shape: bool = True, array: bool = True) -> None:
    """Rejects `array` with NotSupportedError: there is no ``mx.np`` here."""
    if array:
        raise _core.NotSupportedError("set_np: mpgluon does not have mx.np; use mx.nd")


def reset_np() -> None:
    """Does nothing: there is nothing to reset."""


class np_shape(_core.Scope):
    """A scope in which symbols write unknown sizes and shapes as -1 and None instead of 0 and ().

    Examples
    --------
    >>> with mx.util.np_shape(True):
    ...     shape = nd.zeros((0, 2)).shape
    >>> shape
    (0, 2)
    """

    def __init__(self, active: bool = True) -> None:
        self._active = bool(active)

    def _changes(self):
        return [(vars(_switches), "np_shape", self._active)]


@contextlib.contextmanager
def np_array(active: bool = True) -> Iterator[None]:
    """Returns a scope that can only switch NumPy arrays off; True raises NotSupportedError."""
    if active:
        set_np()
    yield


def use_np_shape(func: Function) -> Function:
    """Returns the function or class unchanged.

    Examples
    --------
    >>> @mx.util.use_np_shape
    ... def rows():
    ...     return nd.zeros((0, 2)).shape
    >>> rows()
    (0, 2)
    """
    return func


def use_np_array(func: Function) -> Function:
    """Returns the function or class unchanged."""
    return func


def use_np(func: Function) -> Function:
    """Returns the function or class unchanged."""
    return func


def set_module(module: str | None) -> Callable[[Function], Function]:
    """Returns a decorator that sets ``__module__`` of a function or class."""

    def decorate(func):
        if module is not None:
            func.__module__ = module
        return func

    return decorate
