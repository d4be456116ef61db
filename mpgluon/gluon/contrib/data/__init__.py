"""Additional samplers, and text data sets for language models."""

from . import sampler, text
from .sampler import *

__all__ = [*sampler.__all__, "text"]
