"""Attributes attached to everything created inside a ``with`` block."""

import threading

from . import _groups

__all__ = ["AttrScope"]


class AttrScope:
    """Attaches string attributes, such as ``ctx_group='dev1'``, to the symbols created inside it; scopes nest."""

    _current = threading.local()

    def __init__(self, **attributes):
        for key, value in attributes.items():
            if not isinstance(value, str):
                raise ValueError(f"AttrScope: attribute {key!r} must be a string, not {type(value).__name__}")
        self._attr = attributes
        self._outer = []

    @staticmethod
    def current():
        """The innermost scope of this thread."""
        scope = getattr(AttrScope._current, "value", None)
        if scope is None:
            scope = AttrScope._current.value = AttrScope()
        return scope

    def get(self, attr):
        """The attributes of this scope, overridden by those in the dict `attr` (which may be None)."""
        return {**self._attr, **(attr or {})}

    def __enter__(self):
        outer = AttrScope.current()
        attributes = {**outer._attr, **self._attr}
        group = _groups.placed(attributes.get("ctx_group")) if _groups.running() else None
        if group is not None:
            group.__enter__()  # an unknown group is an error here, before anything has changed
        self._outer.append((outer, self._attr, group))
        self._attr = attributes
        AttrScope._current.value = self
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        AttrScope._current.value, self._attr, group = self._outer.pop()
        if group is not None:
            group.__exit__(exc_type, exc_value, traceback)
