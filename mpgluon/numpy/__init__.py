"""NumPy's functions for arrays on devices, as in ``mxnet.numpy``.

Arrays are `ndarray`. Functions are ops of ``mx.nd`` with NumPy's names, signatures, shapes and
dtypes, so they are recorded by autograd, traced by ``hybridize()``, and run on every device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import ndarray
from .._internal.numpy_hints import list_names as _list_names
from . import (
    _creation,
    _diagonals,
    _editing,
    _fallback,
    _functions,
    _joining,
    _methods as _methods,
    _products,
    _shaping,
    _statistics,
    _text,
    _values,
    linalg as linalg,
    random as random,
)
from ._creation import *
from ._diagonals import *
from ._editing import *
from ._functions import *
from ._joining import *
from ._products import *
from ._shaping import *
from ._statistics import *
from ._text import *
from ._values import *

__all__ = [
    "ndarray",
    *_creation.__all__,
    *_diagonals.__all__,
    *_editing.__all__,
    *_fallback.__all__,
    *_functions.__all__,
    *_joining.__all__,
    *_products.__all__,
    *_shaping.__all__,
    *_statistics.__all__,
    *_text.__all__,
    *_values.__all__,
]

if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__
    _list_names(__name__, _fallback.function)
