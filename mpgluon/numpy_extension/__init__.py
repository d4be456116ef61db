"""MXNet's extensions of NumPy, as in ``mxnet.numpy_extension``."""

from typing import TYPE_CHECKING

from .._internal.numpy_hints import list_names as _list_names
from ..context import cpu, cpu_pinned, current_context, gpu, num_gpus
from ..util import get_cuda_compute_capability, is_np_array, is_np_shape, reset_np, set_np
from . import _ops, image, random as random
from ._files import load, save, savez
from ._ops import *

__all__ = [
    "cpu",
    "cpu_pinned",
    "current_context",
    "get_cuda_compute_capability",
    "gpu",
    "image",
    "is_np_array",
    "is_np_shape",
    "load",
    "num_gpus",
    "random",
    "reset_np",
    "save",
    "savez",
    "set_np",
    *_ops.__all__,
]

if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__
    _list_names(__name__)
