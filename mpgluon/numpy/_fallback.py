"""Functions of mx.np that run NumPy on copies of the values."""

from __future__ import annotations

__all__: list[str] = []
