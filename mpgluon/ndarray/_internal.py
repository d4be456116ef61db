"""Ops whose names begin with an underscore: what operators, indexing and gradients are made of."""

from . import _namespaces
from .. import _core

_namespaces.fill(_core.ops(), {"_internal": globals()})
