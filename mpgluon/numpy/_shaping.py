"""Functions of mx.np that join, split and rearrange arrays, composed of ops."""

from __future__ import annotations

__all__: list[str] = []
