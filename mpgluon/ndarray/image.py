"""Ops on images."""

from .. import _core
from . import _namespaces

_namespaces.fill(_core.ops(), {"image": globals()})
