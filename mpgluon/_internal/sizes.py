"""Numbers of bytes, as text."""

from __future__ import annotations

import re
from typing import Any


def parse_bytes(value: Any) -> int | None:
    """Converts an int or a string such as ``'64MB'`` to bytes; returns None for anything else.
    Units are powers of 1024."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?\s*", value.upper())
        if isinstance(value, str)
        else None
    )
    return None if match is None else int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))


def bytes_text(size: float) -> str:
    """Formats a number of bytes with three digits, in powers of 1024: ``'1.50 GB'``."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 999.5:
            break
        size /= 1024
    else:
        unit = "TB"
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.3g} {unit}"
