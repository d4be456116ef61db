"""Ops whose names begin with an underscore, which implement operators, indexing and gradients."""

from .. import _core
from . import _namespaces

_namespaces.fill(_core.ops(), {"_internal": globals()})
