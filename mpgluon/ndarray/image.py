"""Pictures."""

from . import _namespaces
from .. import _core

_namespaces.fill(_core.ops(), {"image": globals()})
