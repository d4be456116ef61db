"""``mx.sym.npx``: the functions of ``mx.npx`` for symbols."""

from __future__ import annotations

from ... import numpy_extension as _arrays
from .._control import cond as cond, foreach as foreach, while_loop as while_loop
from ..numpy._function import fill as _fill
from . import image as image, random as random

__all__ = ["cond", "foreach", "image", "random", "while_loop", *_fill(globals(), _arrays, "npx")]
