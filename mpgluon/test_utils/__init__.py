"""Test helpers for code that uses arrays.

They cover comparison, random arrays, numerical gradients, distributions of random numbers, and data
sets in local files.
"""

from . import _arrays, _comparison, _environment, _files, _generators, _symbols, _training
from ._arrays import *
from ._comparison import *
from ._environment import *
from ._files import *
from ._generators import *
from ._symbols import *
from ._training import *

__all__ = [
    *_arrays.__all__,
    *_comparison.__all__,
    *_environment.__all__,
    *_files.__all__,
    *_generators.__all__,
    *_symbols.__all__,
    *_training.__all__,
]
