"""Samplers beyond the usual ones, and texts for language models."""

from . import sampler, text
from .sampler import *

__all__ = [*sampler.__all__, "text"]
