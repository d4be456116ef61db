"""``mx.sym.npx.random``: the samplers of ``mx.npx.random`` for symbols."""

from __future__ import annotations

from ...numpy_extension import random as _arrays
from ..numpy._function import fill as _fill

__all__ = _fill(globals(), _arrays, "npx.random")
