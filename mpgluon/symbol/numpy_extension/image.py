"""``mx.sym.npx.image``: the ops of ``mx.npx.image`` for symbols."""

from __future__ import annotations

from types import SimpleNamespace

from ...numpy_extension.image import OPS
from ..numpy._function import fill as _fill

__all__ = _fill(globals(), SimpleNamespace(**OPS), "npx.image")
