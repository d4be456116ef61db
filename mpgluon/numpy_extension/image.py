"""Ops on images of mx.np, and the functions and augmenters of ``mx.image``."""

from .. import _core
from ..image import *  # noqa: F403 - the same names, after MXNet
from ..image import __all__ as _names
from ..ndarray import _namespaces

OPS: dict[str, _core.Op] = {}
_namespaces.fill(_core.ops(), {"image": OPS})
OPS = {name: _core.get_op(f"_npx_{op.__name__}") for name, op in OPS.items()}
globals().update(OPS)

__all__ = [*_names, *OPS]
