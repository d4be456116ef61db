"""The ops of the registry under their names and aliases."""

from .. import _core
from . import _namespaces

_namespaces.fill(
    {name: op for name, op in _core.ops().items() if "hidden" not in op.describe()["flags"]},
    {"op": globals()},
)
