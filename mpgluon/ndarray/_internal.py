"""Ops whose names begin with an underscore: what operators, indexing and gradients are made of."""

from .. import _core
from . import _namespaces

_namespaces.fill(_core.ops(), {"_internal": globals()})
