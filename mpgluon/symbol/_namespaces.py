"""Fills the namespaces of ``mx.sym`` with a function for each op, placed as under ``mx.nd``."""

from .. import _core
from ..ndarray._namespaces import place
from ._functions import Function


def fill(space, names):
    """Puts the functions of the sub-namespace `space` into the dict `names`, where they aren't
    there yet."""
    for name, op in _core.ops().items():
        where, short = place(name)
        if where == space and short not in names and "hidden" not in op.describe()["flags"]:
            names[short] = Function(op, short)
