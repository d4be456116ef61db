"""Predefined network architectures."""

from . import model_store, vision

__all__ = ["model_store", "vision"]
