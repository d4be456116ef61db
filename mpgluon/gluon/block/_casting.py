"""Casts of the arrays that a block holds besides its parameters, such as ``self.mask``."""

from __future__ import annotations

import threading

from ... import _core, autograd, ndarray as nd
from ..._core import dtype_name
from ...base import is_floating
from .._tree import Parts

# The casts of the running `Block.cast`, so that blocks that share an array share its cast.
_running = threading.local()


class casting(_core.Scope):
    """A scope in which each array is cast once, although several blocks hold it."""

    def _changes(self):
        return (
            [] if getattr(_running, "casts", None) is not None else [(vars(_running), "casts", {})]
        )


def cast_arrays(block, dtype):
    """Casts the floating-point arrays in a block's attributes, also in lists, tuples and dicts.
    Arrays with a gradient are variables of the program, and keep their dtype."""
    if not is_floating(dtype):
        return
    with autograd.pause():
        for name, value in list(vars(block).items()):
            if not isinstance(value, Parts):
                new = _cast(value, dtype)
                if new is not value:
                    setattr(block, name, new)


def _cast(value, dtype):
    """Returns the value with its arrays cast. Changes lists and dicts in place."""
    casts = _running.casts  # holds the objects, because their ids must not be reused
    key = id(value), dtype_name(dtype)  # a block may cast a child to another dtype
    if isinstance(value, nd.NDArray):
        if not is_floating(value.dtype) or value._wants_gradient:
            return value
        if dtype_name(value.dtype) == dtype_name(dtype):
            return value
        if key not in casts:
            casts[key] = value, value.astype(dtype)
        return casts[key][1]
    if isinstance(value, (list, dict)):
        if key in casts:  # several blocks hold it, or it contains itself
            return value
        casts[key] = value, value
        for at, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            new = _cast(item, dtype)
            if new is not item:
                value[at] = new
    elif isinstance(value, tuple):
        new = [_cast(item, dtype) for item in value]
        if any(a is not b for a, b in zip(new, value)):
            return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
    return value
