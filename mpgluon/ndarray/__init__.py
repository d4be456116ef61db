"""``mx.nd``: arrays and their functions.

Every op of the registry is here under its name and aliases, and in the sub-namespaces that MXNet
derives from prefixes: ``nd.random``, ``nd.linalg``, ``nd.contrib``, ``nd.image``. ``nd._internal``
has the names that begin with an underscore.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from .. import _core
from .._core import NDArray as NDArray
from .._internal.hints import FUNCTIONS as _FUNCTIONS, of_module as _of_module
from .._internal.numpy_methods import add_methods as _add_numpy_methods
from . import (
    _internal as _internal,
    contrib as contrib,
    image as image,
    linalg as linalg,
    ndarray as ndarray,
    op as op,
    random as random,
    sparse as sparse,
)
from ._cached_op import CachedOp as CachedOp
from ._methods import add_methods as _add_methods
from .files import (
    load as load,
    load_frombuffer as load_frombuffer,
    save as save,
    save_tobuffer as save_tobuffer,
)

if TYPE_CHECKING:
    from .op import *

from .functions import *
from .functions import __all__ as _functions

_ops = {name: function for name, function in vars(op).items() if isinstance(function, _core.Op)}
globals().update({name: function for name, function in _ops.items() if name not in _functions})
_add_methods(_core.ops())
_add_numpy_methods()

__all__ = sorted(
    {
        "CachedOp",
        "NDArray",
        "contrib",
        "image",
        "linalg",
        "load",
        "load_frombuffer",
        "op",
        "random",
        "save",
        *_functions,
        *_ops,
    }
)


if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__

    def __getattr__(name: str) -> object:
        if name in ("np", "npx"):  # F.np and F.npx of hybrid_forward
            from .. import numpy, numpy_extension

            globals().update(np=numpy, npx=numpy_extension)
            return globals()[name]
        raise _of_module(__name__, name, _FUNCTIONS)
