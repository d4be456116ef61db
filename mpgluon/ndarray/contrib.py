"""Ops that MXNet keeps under ``contrib``."""

from . import _namespaces
from .. import _core

_namespaces.fill(_core.ops(), {"contrib": globals()})
