"""Attributes attached to every symbol created inside a ``with`` block."""

from __future__ import annotations

import threading

from . import _core
from ._internal import device_groups

__all__ = ["AttrScope"]


class AttrScope(_core.Scope):
    """Attaches string attributes, such as ``ctx_group='dev1'``, to the symbols created inside it.

    Scopes nest.

    Examples
    --------
    >>> with mx.AttrScope(ctx_group="dev1"):
    ...     x = mx.sym.var("x")
    >>> x.attr("ctx_group")
    'dev1'
    """

    _current = threading.local()

    def __init__(self, **attributes: str) -> None:
        for key, value in attributes.items():
            if not isinstance(value, str):
                raise ValueError(
                    f"AttrScope: attribute {key!r} must be a string, not {type(value).__name__}"
                )
        self._attr = attributes

    @staticmethod
    def current() -> AttrScope:
        """Returns the innermost scope of this thread."""
        scope = getattr(AttrScope._current, "value", None)
        if scope is None:
            scope = AttrScope._current.value = AttrScope()
        return scope

    def get(self, attr: dict[str, str] | None) -> dict[str, str]:
        """Returns the attributes of this scope, overridden by the dict `attr` (or None)."""
        return {**self._attr, **(attr or {})}

    def _changes(self):
        attributes = {**AttrScope.current()._attr, **self._attr}
        changes = [(vars(self), "_attr", attributes), (vars(AttrScope._current), "value", self)]
        return (
            [*changes, device_groups.placed(attributes.get("ctx_group"))]
            if device_groups.running()
            else changes
        )
