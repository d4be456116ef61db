"""Samplers beyond the usual ones."""

from . import sampler
from .sampler import *

__all__ = [*sampler.__all__]
