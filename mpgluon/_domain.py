"""Domains of constructors' parameters: an error names the parameter, its value and what it may
be."""

from __future__ import annotations

from typing import Any

from .base import MXNetTypeError, MXNetValueError


def _each(values, domain, holds):
    for name, value in values.items():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if one is None:
                continue
            try:
                good = holds(one)
            except TypeError:
                raise MXNetTypeError(
                    f"{name} must be {domain}, got {type(one).__name__}: {value!r}"
                ) from None
            if not good:
                raise MXNetValueError(f"{name} must be {domain}, got {value}")


def at_least(least: float, /, **values: Any) -> None:
    """Each value, or each of a tuple, is a number from `least` on; None passes."""
    _each(values, f"at least {least}", lambda one: one >= least)


def fraction(**values: Any) -> None:
    """Each value is a number from 0 to 1."""
    _each(values, "between 0 and 1", lambda one: 0 <= one <= 1)


def decay(**values: Any) -> None:
    """Each value is a number from 0 to below 1: 1 would never forget, and divides by zero."""
    _each(values, "at least 0 and below 1", lambda one: 0 <= one < 1)
