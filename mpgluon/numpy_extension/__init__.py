"""MXNet's extensions of NumPy, as in ``mxnet.numpy_extension``."""

from typing import TYPE_CHECKING

from .._internal.hints import of_numpy as _of_numpy
from ..context import cpu, cpu_pinned, current_context, gpu, num_gpus
from ..util import get_cuda_compute_capability, is_np_array, is_np_shape, reset_np, set_np
from . import image, random as random
from ._files import load, save, savez
from ._ops import *

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _of_numpy(__name__, name)
