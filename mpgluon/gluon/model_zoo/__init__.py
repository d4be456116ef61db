"""Predefined network architectures."""

from . import model_store, text, vision

__all__ = ["model_store", "text", "vision"]
