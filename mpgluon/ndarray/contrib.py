"""Ops that MXNet keeps under ``contrib``."""

from . import _namespaces
from .. import _core
from ._control import allclose, boolean_mask, cond, foreach, while_loop  # noqa: F401

_namespaces.fill(_core.ops(), {"contrib": globals()})
