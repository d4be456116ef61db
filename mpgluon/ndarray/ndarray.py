"""NDArray and the functions on top of ops, under the module name that MXNet's programs import them from."""

from .._core import NDArray, waitall  # noqa: F401
from .functions import *  # noqa: F401,F403
from .functions import __all__ as _functions

py_slice = slice
__all__ = ["NDArray", "py_slice", *_functions]
