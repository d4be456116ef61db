"""Layers and cells beyond the usual ones."""

from . import data, estimator, nn, rnn

__all__ = ["data", "estimator", "nn", "rnn"]
