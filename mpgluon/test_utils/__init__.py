"""Test helpers for code that uses arrays.

They cover comparison, random arrays, numerical gradients, distributions of random numbers, and data
sets in local files.
"""

from .._internal.hints import near_names as _near_names
from ..util import use_np as use_np
from . import _arrays, _blocks, _comparison, _environment, _files, _generators, _symbols, _training
from ._arrays import *
from ._blocks import *
from ._comparison import *
from ._environment import *
from ._files import *
from ._generators import *
from ._symbols import *
from ._training import *

__all__ = [
    *_arrays.__all__,
    *_blocks.__all__,
    *_comparison.__all__,
    *_environment.__all__,
    *_files.__all__,
    *_generators.__all__,
    *_symbols.__all__,
    *_training.__all__,
]

# Helpers of MXNet that its own tests of operators do not need
_near_names(
    __name__,
    check_speed="time.perf_counter, and nd.waitall() before each reading",
    chi_square_check="verify_generator",
    collapse_sum_like="numpy.sum",
    mean_check="verify_generator",
    numeric_grad="check_numeric_gradient",
    simple_forward="Symbol.eval",
    var_check="verify_generator",
)
