"""Products of mx.np, composed of ops: matmul, tensordot, einsum and others."""

from __future__ import annotations

__all__: list[str] = []
