"""Layers and cells beyond the usual ones."""

from . import data, nn, rnn

__all__ = ["data", "nn", "rnn"]
