"""The ops of the registry under their names and aliases."""

from .. import _core
from . import _namespaces
from ._cached_op import CachedOp  # noqa: F401 - MXNet has it here as well
from .functions import Custom, UpSampling, cast_storage  # noqa: F401

_namespaces.fill(
    {name: op for name, op in _core.ops().items() if "hidden" not in op.describe()["flags"]},
    {"op": globals()},
)
