"""Compares the attributes of a parameter with those that a caller asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core import dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._parameter import Parameter


def _merge_shapes(a, b):
    """Merges two shapes, in which 0 and -1 mean unknown. Returns None if they contradict."""
    if len(a) != len(b):
        return None
    merged = []
    for x, y in zip(a, b):
        if x != y and x > 0 and y > 0:
            return None
        merged.append(x if x > 0 else y)
    return tuple(merged)


def match_attributes(param: Parameter, attributes: Mapping[str, Any]) -> None:
    """Sets the attributes that are None in a parameter, and completes its shape. Raises
    AssertionError if an attribute has a different value."""
    for key, value in attributes.items():
        existing = getattr(param, key, None)
        if existing is None:
            setattr(param, key, value)
            continue
        if value is None or value is existing:
            continue
        if key == "shape":
            merged = _merge_shapes((value,) if isinstance(value, int) else value, existing)
            if merged is not None:
                param.complete(merged)
                continue
        elif key == "dtype" and dtype_name(value) == dtype_name(existing):
            continue
        if value != existing:
            raise AssertionError(
                f"Cannot retrieve Parameter '{param.name}' because its attribute '{key}' does not "
                f"match: desired '{value}' vs stored '{existing}'."
            )
