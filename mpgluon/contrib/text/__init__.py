"""Vocabularies and word vectors: ``mx.contrib.text``."""

from . import embedding, utils, vocab

__all__ = ["embedding", "utils", "vocab"]
