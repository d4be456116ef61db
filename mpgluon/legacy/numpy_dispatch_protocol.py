"""MXNet's module of this name: the functions of NumPy that call functions of ``mx.np``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mpgluon.numpy import _dispatch

if TYPE_CHECKING:
    from typing import Any

    from mpgluon._internal.types import Function

__all__ = ["with_array_function_protocol", "with_array_ufunc_protocol"]


def _names(is_kind: Any) -> list[str]:
    """Returns the names of NumPy's functions of a kind that call functions of mx.np."""
    found = []
    for prefix, module in (("", np), ("linalg.", np.linalg)):
        functions = {name: getattr(module, name) for name in module.__all__}
        found += [
            prefix + name
            for name, function in functions.items()
            if is_kind(function) and _dispatch.has_ops(function)
        ]
    return sorted(found)


_NUMPY_ARRAY_FUNCTION_LIST = _names(lambda function: hasattr(function, "_implementation"))
_NUMPY_ARRAY_UFUNC_LIST = _names(lambda function: isinstance(function, np.ufunc))


def with_array_function_protocol(func: Function) -> Function:
    """Returns the function: all supported versions of NumPy have ``__array_function__``.

    Examples
    --------
    >>> @mx.numpy_dispatch_protocol.with_array_function_protocol
    ... def three():
    ...     return 3
    >>> three()
    3
    """
    return func


def with_array_ufunc_protocol(func: Function) -> Function:
    """Returns the function: all supported versions of NumPy have ``__array_ufunc__``.

    Examples
    --------
    >>> @mx.numpy_dispatch_protocol.with_array_ufunc_protocol
    ... def three():
    ...     return 3
    >>> three()
    3
    """
    return func
