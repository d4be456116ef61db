"""The device, the process and its environment in tests."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

from .. import ndarray as nd
from ..context import Context, current_context, num_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


__all__ = [
    "assert_exception",
    "default_context",
    "default_dtype",
    "discard_stderr",
    "environment",
    "is_aarch64_run",
    "list_gpus",
    "retry",
    "set_default_context",
]

_of_thread = threading.local()


def default_context() -> Context:
    """Returns the device that tests run on.

    It is the current one, or MXNET_TEST_DEFAULT_CTX (such as "cpu(1)") from the environment if
    `set_default_context` was not called.
    """
    text = os.environ.get("MXNET_TEST_DEFAULT_CTX")
    if not text or getattr(_of_thread, "default", None) is not None:
        return current_context()
    kind, _, number = text.partition("(")
    return Context(kind, int(number.rstrip(")") or 0))


def set_default_context(ctx: Context | None) -> None:
    """Makes `ctx` the current device of this thread; None restores the former one.

    Call it outside of ``with`` statements of devices.
    """
    former = getattr(_of_thread, "default", None)
    if former is not None:
        former.__exit__(None, None, None)
    _of_thread.default = ctx
    if ctx is not None:
        ctx.__enter__()


def default_dtype() -> type[np.floating[Any]]:
    """Returns the default dtype of tests, numpy.float32."""
    return np.float32


def list_gpus() -> range:
    """Returns the indices of the available GPUs."""
    return range(num_gpus())


@contextlib.contextmanager
def environment(
    *args: str | None | dict[str, str | None] | dict[str, str] | dict[str, None],
) -> Iterator[None]:
    """Returns a scope with changed environment variables.

    Use ``environment(name, value)`` or ``environment({name: value, ...})``; None removes a
    variable. The scope waits for all devices before it restores the former values.
    """
    if len(args) == 2 and isinstance(args[0], str) and not isinstance(args[1], dict):
        values: dict[str, Any] = {args[0]: args[1]}
    elif len(args) == 1 and isinstance(args[0], dict):
        values = dict(args[0])
    else:
        raise ValueError(f"environment: expected a dict, or a name and a value, got {args}")
    former = {name: os.environ.get(name) for name in values}
    _set_environment(values)
    try:
        yield
    finally:
        nd.waitall()
        _set_environment(former)


def _set_environment(values):
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def discard_stderr() -> Iterator[None]:
    """Returns a scope that discards the process's standard error output, including that of C."""
    number = sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
    sys.stderr.flush()
    kept = os.dup(number)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), number)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, number)
        os.close(kept)


def retry(n: int) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Returns a decorator for tests of random results.

    The test runs up to `n` times until it raises no AssertionError.
    """
    if n < 1:
        raise ValueError(f"retry: n must be positive, got {n}")

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            for attempt in range(n):
                try:
                    function(*args, **kwargs)
                    return
                except AssertionError:
                    if attempt == n - 1:
                        raise
                    nd.waitall()

        return wrapper

    return decorate


def assert_exception(
    f: Callable[..., Any], exception_type: type[BaseException], *args: Any, **kwargs: Any
) -> None:
    """Raises AssertionError unless ``f(*args, **kwargs)`` raises `exception_type`."""
    try:
        f(*args, **kwargs)
    except exception_type:
        return
    raise AssertionError(f"{getattr(f, '__name__', f)} did not raise {exception_type.__name__}")


def is_aarch64_run() -> bool:
    """True if the processor is a 64-bit ARM."""
    return platform.machine() == "aarch64"
