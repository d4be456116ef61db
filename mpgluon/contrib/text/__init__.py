"""Vocabularies, word vectors, and generation by language models: ``mx.contrib.text``."""

from ...gluon.model_zoo.text import generate
from . import embedding, utils, vocab

__all__ = ["embedding", "generate", "utils", "vocab"]
