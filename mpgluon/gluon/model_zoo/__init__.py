"""Networks that are ready to use."""

from . import model_store, vision

__all__ = ["model_store", "vision"]
