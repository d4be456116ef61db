"""Callbacks for notebooks: ``mx.notebook``."""

from . import callback as callback

__all__ = ["callback"]
