"""Fills the namespaces of ``mx.sym`` with a function for each op, arranged as under ``mx.nd``."""

from .. import _core
from ..ndarray._namespaces import place
from ._functions import Function


def fill(space, names):
    """Adds the functions of the sub-namespace `space` to `names`, keeping existing entries."""
    for name, op in _core.ops().items():
        where, short = place(name)
        if where == space and short not in names and "hidden" not in op.describe()["flags"]:
            names[short] = Function(op, short)
