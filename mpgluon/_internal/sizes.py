"""Numbers of bytes, as text."""

from __future__ import annotations


def byte_text(number: float) -> str:
    """Formats a number of bytes, in powers of 1000, as in ``'1.5 GB'``."""
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")
