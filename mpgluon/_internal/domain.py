"""Validates constructor parameters; an error names the parameter, its value and its domain."""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Any

from ..base import MXNetAssertionError, MXNetTypeError, MXNetValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LARGEST = 2**63 - 1


class Default(float):
    """A default number in a signature. It is equal to a number that the caller passes, but
    constructors can tell the two apart."""


def _each(values: dict[str, Any], domain: str, holds: Callable[[Any], bool]) -> None:
    for name, value in values.items():
        try:
            good = holds(value)
        except (TypeError, ValueError):
            kind = type(value).__name__
            raise MXNetTypeError(f"{name} must be {domain}, got {kind}: {value!r}") from None
        if not good:
            raise MXNetValueError(f"{name} must be {domain}, got {value}")


def number(**values: Any) -> None:
    """Checks that each value is a finite number."""
    _each(values, "a finite number", math.isfinite)


def at_least(least: float, /, **values: Any) -> None:
    """Checks that each value is a finite number >= `least`."""
    _each(values, f"at least {least}, and finite", lambda one: least <= one < math.inf)


def positive(**values: Any) -> None:
    """Checks that each value is a finite number > 0."""
    _each(values, "above 0, and finite", lambda one: 0 < one < math.inf)


_UNITS = {
    **{f"{letter}B": 10 ** (3 * power) for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 2 ** (10 * power) for power, letter in enumerate("KMGT", 1)},
}


def byte_count(who: str, name: str, value: Any) -> float:
    """Returns a positive number of bytes, given as a number or as a string with a unit, such as
    '2GB' (10 ** 9 bytes each) or '20GiB' (2 ** 30)."""
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+(?:\.\d*)?) *([KMGT]i?B)", value.strip())
        if found is None:
            raise MXNetValueError(
                f"{who}: {name} must be a number of bytes, or a number with one of the units "
                f"{', '.join(_UNITS)}, not {value!r}"
            )
        value = float(found[1]) * _UNITS[found[2]]
    try:
        good = value > 0
    except TypeError:
        raise MXNetTypeError(
            f"{who}: {name} must be a number of bytes or a string such as '20GiB', not {value!r}"
        ) from None
    if not good:
        raise MXNetValueError(f"{who}: {name} must be positive, not {value!r}")
    return float(value)


def not_negative(**values: Any) -> None:
    """Checks that each value is a number >= 0, possibly infinite."""
    _each(values, "at least 0", lambda one: one >= 0)


def fraction(**values: Any) -> None:
    """Checks that each value is a number in [0, 1]."""
    _each(values, "between 0 and 1", lambda one: 0 <= one <= 1)


def decay(**values: Any) -> None:
    """Checks that each value is in [0, 1). A decay of 1 would ignore all new values, and the bias
    correction would divide by zero."""
    _each(values, "at least 0 and below 1", lambda one: 0 <= one < 1)


def axis(**values: Any) -> None:
    """Checks that each value is an integer, a tuple of integers, or None."""
    for name, value in values.items():
        if value is not None:
            _sizes(value, name, "an integer or a tuple of them", -_LARGEST, _integers)


def size(least: int, /, **values: Any) -> None:
    """Checks that each value is a 64-bit integer >= `least`."""
    for name, value in values.items():
        _sizes(value, name, f"an integer, at least {least}", least, _integer)


def as_many(**lists: Sequence[Any] | None) -> None:
    """Checks that parallel lists have the same length; None means the list was not given."""
    counts = {name: len(values) for name, values in lists.items() if values is not None}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise MXNetValueError(f"the lists must have the same length, got {text}")


def per_axis(value: Any, ndim: int, name: str, least: int) -> tuple[int, ...]:
    """Checks `value`, which is an integer or `ndim` integers, all 64-bit and >= `least`. Returns a
    tuple of `ndim` integers."""
    domain = f"an integer or {ndim} of them, at least {least}"
    sizes = _sizes(value, name, domain, least, _integers)
    if not _many(value):
        return sizes * ndim
    if len(sizes) != ndim:
        raise MXNetAssertionError(f"{name} must be {domain}, got {value}")
    return sizes


def _sizes(value, name, domain, least, convert):
    try:
        sizes = convert(value)
    except TypeError:
        kind = type(value).__name__
        raise MXNetTypeError(f"{name} must be {domain}, got {kind}: {value!r}") from None
    if not all(least <= one <= _LARGEST for one in sizes):
        raise MXNetValueError(f"{name} must be {domain}, got {value}")
    return sizes


def _integer(value):
    return (operator.index(value),)


def _integers(value):
    return tuple([operator.index(one) for one in value]) if _many(value) else _integer(value)


def _many(value):
    return hasattr(value, "__len__")
