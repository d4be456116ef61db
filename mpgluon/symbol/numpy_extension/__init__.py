"""``mx.sym.npx``: the functions of ``mx.npx`` for symbols."""

from __future__ import annotations

from ... import numpy_extension as _arrays
from ..numpy._function import fill as _fill
from . import image as image, random as random

__all__ = ["image", "random", *_fill(globals(), _arrays, "npx")]
