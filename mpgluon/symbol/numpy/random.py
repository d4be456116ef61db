"""``mx.sym.np.random``: the samplers of ``mx.np.random`` for symbols."""

from __future__ import annotations

from ...numpy import random as _arrays
from ._function import fill as _fill

__all__ = _fill(globals(), _arrays, "np.random")
