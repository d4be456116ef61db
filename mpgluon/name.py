"""Automatic names for objects that the user did not name.

A `NameManager` generates ``hint0``, ``hint1``, ...; a `Prefix` also prepends a prefix to every
name. The innermost ``with`` block of the running thread applies.
"""

from __future__ import annotations

import threading

from . import _core

__all__ = ["NameManager", "Prefix"]


class NameManager(_core.Scope):
    """Generates names, with a counter per hint.

    Examples
    --------
    >>> with mx.name.NameManager():
    ...     y = mx.sym.relu(mx.sym.var("x"))
    >>> y.name
    'relu0'
    """

    _current = threading.local()

    def __init__(self) -> None:
        self._counter = {}

    @staticmethod
    def current() -> NameManager:
        """Returns the innermost manager of this thread."""
        manager = getattr(NameManager._current, "value", None)
        if manager is None:
            manager = NameManager._current.value = NameManager()
        return manager

    def get(self, name: str | None, hint: str) -> str:
        """Returns `name` if it is given, else the next free name for `hint`."""
        if name:
            return name
        count = self._counter.get(hint, 0)
        self._counter[hint] = count + 1
        return f"{hint}{count}"

    def _changes(self):
        return [(vars(NameManager._current), "value", self)]


class Prefix(NameManager):
    """A name manager that prepends `prefix` to every name, given or generated.

    Examples
    --------
    >>> with mx.name.Prefix("stage1_"):
    ...     y = mx.sym.relu(mx.sym.var("x"))
    >>> y.name
    'stage1_relu0'
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        return self._prefix + super().get(name, hint)
