"""Helpers under MXNet's names, and the switches of ``mx.np``.

`set_np` makes Gluon create arrays of ``mx.np``: parameters, gradients, batches of a DataLoader,
images. Layers, losses and optimizers follow their inputs, whatever the switches are. The functions
of ``mx.np`` can always be called. The switch for NumPy shapes affects unknown sizes: with it, they
and unknown shapes are written as -1 and None instead of 0 and (). Arrays without dimensions or of
zero size always exist. New threads start with both switches off, except the workers of a
DataLoader, which inherit them.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import TYPE_CHECKING

from . import _core
from ._core import is_np_array, is_np_shape

if TYPE_CHECKING:
    from collections.abc import Callable
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


def set_np_shape(active: bool | int) -> bool:
    """Sets whether unknown sizes are written as -1 in this thread, or in all threads if `active` is
    2. Returns the previous value.

    Raises ValueError if `active` is False while arrays of ``mx.np`` are created.

    Examples
    --------
    >>> former = mx.util.set_np_shape(True)
    >>> mx.util.set_np_shape(former)
    True
    """
    _check_off(active)
    return bool(_core.set_np_shape(active))


def _check_off(active):
    if not active and is_np_array():
        raise ValueError(
            "set_np_shape: NumPy shapes cannot be switched off while NumPy arrays are on; "
            "npx.reset_np() switches both off"
        )


def set_np(shape: bool = True, array: bool = True) -> None:
    """Sets both switches of this thread: NumPy shapes, and arrays of ``mx.np`` in Gluon.

    Raises ValueError if `array` is True and `shape` False.

    Examples
    --------
    >>> mx.npx.set_np()
    >>> net = nn.Dense(2, in_units=3)
    >>> net.initialize()
    >>> type(net.weight.data())
    <class 'mpgluon.numpy.ndarray'>
    >>> mx.npx.reset_np()
    """
    if array and not shape:
        raise ValueError("set_np: array=True needs shape=True")
    _core.set_np_array(array)
    _core.set_np_shape(bool(shape))


def reset_np() -> None:
    """Switches NumPy shapes and arrays off in this thread."""
    set_np(False, False)


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
        _check_off(self._active)
        return [(_core.set_np_shape, self._active)]


class np_array(_core.Scope):
    """A scope in which Gluon creates arrays of ``mx.np``, or of ``mx.nd`` if not `active`.

    Examples
    --------
    >>> with mx.util.np_array():
    ...     inside = mx.util.is_np_array()
    >>> inside, mx.util.is_np_array()
    (True, False)
    """

    def __init__(self, active: bool = True) -> None:
        self._active = bool(active)

    def _changes(self):
        return [(_core.set_np_array, self._active)]


class _np_scope(_core.Scope):
    """A scope with NumPy shapes and arrays."""

    def _changes(self):
        return [(_core.set_np_shape, True), (_core.set_np_array, True)]


def _scoped(func, scope):
    """Returns a function that runs `func` inside a new scope."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        return scope().run(func, *args, **kwargs)

    return call


def _scoped_member(member, scope):
    """Returns a class member (function, property, class or static method) that runs inside a
    scope, or None for other members."""
    if inspect.isfunction(member):
        return _scoped(member, scope)
    if isinstance(member, (classmethod, staticmethod)):
        return type(member)(_scoped(member.__func__, scope))
    if isinstance(member, property):
        functions = [f and _scoped(f, scope) for f in (member.fget, member.fset, member.fdel)]
        return property(*functions, member.__doc__)
    return None


_PACKAGE = __name__.partition(".")[0]
# Inherited methods that work on the kind of their inputs, so they need no scope.
_FOLLOWING = frozenset(("forward", "hybrid_forward"))


def _is_inherited_as_is(base, name):
    """True if a subclass inherits a member of `base` without a scope: internal methods of this
    package, and those that follow their inputs."""
    if base is object:
        return True
    if base.__module__.partition(".")[0] != _PACKAGE:
        return False
    return name in _FOLLOWING or (name.startswith("_") and name not in ("__init__", "__call__"))


def _use(func, scope, name):
    if isinstance(func, type):
        members: dict[str, Any] = {}
        for base in reversed(func.__mro__):
            for key, member in vars(base).items():
                if base is not func and _is_inherited_as_is(base, key):
                    members.pop(key, None)
                else:
                    members[key] = member
        for key, member in members.items():
            scoped = _scoped_member(member, scope)
            if scoped is not None:
                setattr(func, key, scoped)
        return func
    if callable(func):
        return _scoped(func, scope)
    raise TypeError(f"{name}: expected a class or a callable, got {type(func).__name__}")


def use_np_shape(func: Function) -> Function:
    """Returns a function that runs inside `np_shape`, or the class after this change of all its
    methods and properties.

    Examples
    --------
    >>> @mx.util.use_np_shape
    ... def inside():
    ...     return mx.util.is_np_shape()
    >>> inside()
    True
    """
    return _use(func, np_shape, "use_np_shape")


def use_np_array(func: Function) -> Function:
    """Returns a function that runs inside `np_array`, or the class after this change of all its
    methods and properties.

    Examples
    --------
    >>> @mx.util.use_np_array
    ... def inside():
    ...     return mx.util.is_np_array()
    >>> inside()
    True
    """
    return _use(func, np_array, "use_np_array")


def use_np(func: Function) -> Function:
    """Returns a function that runs inside `np_shape` and `np_array`, or the class after this change
    of all its methods and properties.

    Examples
    --------
    >>> @mx.use_np
    ... class Model(nn.Dense):
    ...     pass
    >>> net = Model(2, in_units=3)
    >>> net.initialize()
    >>> type(net.weight.data())
    <class 'mpgluon.numpy.ndarray'>
    """
    return _use(func, _np_scope, "use_np")


def set_module(module: str | None) -> Callable[[Function], Function]:
    """Returns a decorator that sets ``__module__`` of a function or class."""

    def decorate(func):
        if module is not None:
            func.__module__ = module
        return func

    return decorate
