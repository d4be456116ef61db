"""Functions under their names in ``mx.nd.sparse``; all arrays are dense here."""

from . import _namespaces
from .. import _core

_namespaces.fill(_core.ops(), {"sparse": globals()})
