"""``mx.sym.np.linalg``: the functions of ``mx.np.linalg`` for symbols."""

from __future__ import annotations

from ...numpy import linalg as _arrays
from ._function import fill as _fill

__all__ = _fill(globals(), _arrays, "np.linalg")
