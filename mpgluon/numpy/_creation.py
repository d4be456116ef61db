"""Functions of mx.np that create arrays."""

from __future__ import annotations

__all__: list[str] = []
