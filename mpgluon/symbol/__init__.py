"""``mx.sym``: computations described as graphs, which are later bound to arrays.

Every op of the registry is here under its name and aliases, and in the sub-namespaces ``random``,
``linalg``, ``contrib``, ``image`` and ``_internal``, as under ``mx.nd``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._internal.hints import FUNCTIONS as _FUNCTIONS, of_module as _of_module
from . import (
    _internal as _internal,
    contrib as contrib,
    image as image,
    linalg as linalg,
    numpy as numpy,
    numpy_extension as numpy_extension,
    op as op,
    random as random,
    sparse as sparse,
)
from ._functions import Function as _Function

if TYPE_CHECKING:
    from .op import *

from .creation import *
from .creation import __all__ as _functions
from .symbol import (
    Group as Group,
    Symbol as Symbol,
    Variable as Variable,
    fromjson as fromjson,
    load as load,
    load_json as load_json,
    var as var,
)

np = numpy
npx = numpy_extension

_fixed = {
    *_functions,
    "np",
    "npx",
    "Group",
    "Symbol",
    "Variable",
    "fromjson",
    "load",
    "load_json",
    "var",
    "random",
    "linalg",
    "contrib",
    "image",
    "op",
    "sparse",
}
_ops = {name: function for name, function in vars(op).items() if isinstance(function, _Function)}
globals().update({name: function for name, function in _ops.items() if name not in _fixed})

__all__ = sorted({*_fixed, *_ops})


_WAYS = {name: way.replace("nd.", "sym.") for name, way in _FUNCTIONS.items()}

if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__

    def __getattr__(name: str) -> object:
        raise _of_module(__name__, name, _WAYS)
