"""Vocabularies and vectors of words: ``mx.contrib.text``."""

from . import embedding, utils, vocab

__all__ = ["embedding", "utils", "vocab"]
