"""Types shared by annotations; only type checkers import this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from .._core import NDArray
from ..context import Context
from ..io import DataDesc
from ..metric import EvalMetric
from ..symbol import Symbol

if TYPE_CHECKING:
    from ..gluon.block import HybridBlock
    from ..initializer import Initializer

    class Layer(HybridBlock):
        """A HybridBlock that maps an array to an array, and a symbol to a symbol."""

        def __call__(self, x: Array, *args: Any) -> Array: ...


__all__ = [
    "Alias",
    "Array",
    "ArrayLike",
    "ArrayOperator",
    "Arrays",
    "Callbacks",
    "Class",
    "DType",
    "DataShapes",
    "Devices",
    "Function",
    "Groups",
    "Init",
    "Keys",
    "Kind",
    "Layer",
    "Metric",
    "NDArray",
    "Register",
    "Shape",
    "ShapeLike",
    "Symbol",
    "SymbolLike",
    "SymbolOperator",
    "Values",
]

Array = TypeVar("Array", NDArray, Symbol)
Class = TypeVar("Class", bound=type)
Kind = TypeVar("Kind")
Function = TypeVar("Function", bound=Callable[..., Any])

Arrays: TypeAlias = NDArray | Sequence[NDArray]

Devices: TypeAlias = Context | Sequence[Context]
"""Where something lives: on one device, or a copy on each of several."""

Init: TypeAlias = "Initializer | str"
"""An initializer, or the name of one."""

ArrayLike: TypeAlias = NDArray | np.ndarray[Any, Any] | np.generic | float
"""An argument that operators and ops take for an array."""

DType: TypeAlias = str | type[Any] | np.dtype[Any]
"""A dtype by name, as NumPy's type, or `mpgluon.bfloat16`."""

Shape: TypeAlias = tuple[int, ...]

ShapeLike: TypeAlias = int | Sequence[int]
"""A shape where one integer stands for a single dimension."""

SymbolLike: TypeAlias = Symbol | np.generic | float


Groups: TypeAlias = Mapping[str, Devices]
"""The devices of the groups that ``AttrScope(ctx_group=...)`` names."""

DataShapes: TypeAlias = Sequence[DataDesc | tuple[str, Shape]]
"""Names and shapes of a module's data or labels."""

Metric: TypeAlias = EvalMetric | str | Callable[..., Any] | Sequence[Any]
"""What `mx.metric.create` takes."""

Callbacks: TypeAlias = Callable[..., Any] | Sequence[Callable[..., Any]]

Keys: TypeAlias = int | str | Sequence[int] | Sequence[str]
"""A key of a store, or several."""

Values: TypeAlias = NDArray | Sequence[NDArray] | Sequence[Sequence[NDArray]]
"""An array, or one for each device; for several keys a list of these."""


class ArrayOperator(Protocol):
    """A function of arrays or numbers; it returns a number if both arguments are numbers."""

    def __call__(self, lhs: ArrayLike, rhs: ArrayLike) -> NDArray: ...


class SymbolOperator(Protocol):
    """A function of symbols or numbers; it returns a number if both arguments are numbers."""

    def __call__(self, left: SymbolLike, right: SymbolLike) -> Symbol: ...


class Alias(Protocol):
    """`alias(*names)`: a decorator that registers a class under additional names."""

    def __call__(self, *names: str) -> Callable[[Class], Class]: ...


class Register(Protocol):
    """A class decorator that accepts an alternative name for the class as its second argument."""

    def __call__(self, klass: Class, name: str | None = None) -> Class: ...
