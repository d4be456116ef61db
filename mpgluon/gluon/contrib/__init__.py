"""Layers beyond the usual ones."""

from . import nn

__all__ = ["nn"]
