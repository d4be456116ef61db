"""Functions of mx.np that are ops: elementwise functions, reductions and changes of shape."""

from __future__ import annotations

from ._elementwise import ELEMENTWISE
from ._table import make

_MADE = make("mpgluon.numpy", ELEMENTWISE)

globals().update(_MADE)

__all__ = [*_MADE]
