"""Placeholder for MXNet's NumPy-like symbols, which are not part of this package.

Programs may test whether a symbol is one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import _core
from ..symbol import Symbol

if TYPE_CHECKING:
    from typing import Any


__all__ = ["_Symbol"]


class _Symbol(Symbol):
    """The symbol type of ``mx.sym.np``, which has no instances."""

    __slots__ = ()

    def __init__(self, *args: Any) -> None:
        raise _core.NotSupportedError("mx.sym.np: mpgluon does not have mx.np; use mx.sym")
