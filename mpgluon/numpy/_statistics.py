"""Averages, deviations and other statistics of mx.np, composed of ops."""

from __future__ import annotations

__all__: list[str] = []
