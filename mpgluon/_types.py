"""Types that annotations share. Type checkers alone import this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from ._core import NDArray
from .symbol import Symbol

ArrayLike: TypeAlias = NDArray | np.ndarray[Any, Any] | np.generic | float
"""What operators and ops take for an array."""

DType: TypeAlias = str | type[Any] | np.dtype[Any]
"""A dtype by name, as NumPy's type, or `mpgluon.bfloat16`."""

Shape: TypeAlias = tuple[int, ...]

ShapeLike: TypeAlias = int | Sequence[int]
"""A shape where one integer stands for a single dimension."""

SymbolLike: TypeAlias = Symbol | np.generic | float


class ArrayOperator(Protocol):
    """A function of arrays or numbers; of numbers it gives a number."""

    def __call__(self, lhs: ArrayLike, rhs: ArrayLike) -> NDArray: ...


class SymbolOperator(Protocol):
    """A function of symbols or numbers; of numbers it gives a number."""

    def __call__(self, left: SymbolLike, right: SymbolLike) -> Symbol: ...
