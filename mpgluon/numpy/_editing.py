"""Functions of mx.np that insert, delete and replace elements, composed of ops."""

from __future__ import annotations

__all__: list[str] = []
