"""Functions under their names in ``mx.nd.sparse``; all arrays are dense here."""

from .. import _core
from . import _namespaces

_namespaces.fill(_core.ops(), {"sparse": globals()})
