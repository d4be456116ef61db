"""Linear algebra."""

from .. import _core
from . import _namespaces

_namespaces.fill(_core.ops(), {"linalg": globals()})
