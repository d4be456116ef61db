"""``mx.sym.np``: the functions of ``mx.np`` for symbols."""

from __future__ import annotations

from ... import numpy as _arrays
from . import linalg as linalg, random as random
from ._function import fill as _fill
from ._symbol import _Symbol as _Symbol

NumPySymbol = _Symbol  # the name inside this package

__all__ = ["_Symbol", "linalg", "random", *_fill(globals(), _arrays, "np")]
