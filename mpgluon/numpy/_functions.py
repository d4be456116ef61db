"""Functions of mx.np that are ops: elementwise functions, reductions and changes of shape."""

from __future__ import annotations

__all__: list[str] = []
