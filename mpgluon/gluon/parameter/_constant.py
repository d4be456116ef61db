"""`Constant`: a parameter that is not trained."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ... import initializer, ndarray as nd
from ..._internal import kinds
from ...base import is_floating
from ._parameter import Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._internal.types import ArrayLike, DType


class _Value(initializer.Initializer):
    """Fills an array with a given value."""

    def __init__(self, value):
        super().__init__()
        self._value = value

    def _init_weight(self, _, array):
        array[...] = kinds.like(self._value.as_in_context(array.context), array)


class Constant(Parameter):
    """A parameter that autograd and Trainer do not change; `set_data` may still change it.

    Parameters
    ----------
    name : str, optional
        Name of the constant. ``Constant(value)`` gets the name of the block's attribute to which it
        is assigned.
    value : NDArray or array-like
        Value, which determines shape and dtype.

    Examples
    --------
    >>> gluon.Constant("two", [2.0])
    Constant two (shape=(1,), dtype=<class 'numpy.float32'>)
    """

    def __init__(
        self,
        name: str | ArrayLike | Sequence[Any] | None = None,
        value: ArrayLike | Sequence[Any] | None = None,
    ) -> None:
        if value is None:
            name, value = None, name
        if value is None or isinstance(value, str):
            raise TypeError("Constant: the argument value is missing")
        named = name is not None
        if not isinstance(value, nd.NDArray):
            value = kinds.of_mode(nd.array(value))
        self.value = value
        super().__init__(
            str(name) if named else "const",
            grad_req="null",
            shape=value.shape,
            dtype=value.dtype,
            init=_Value(value),
        )
        self.named = named

    def cast(self, dtype: DType) -> None:
        """Casts the value. A constant of integers ignores floating-point types, because indices
        would be rounded."""
        if is_floating(self.dtype) or not is_floating(dtype):
            super().cast(dtype)

    @property
    def grad_req(self) -> str:
        return "null"

    @grad_req.setter
    def grad_req(self, req: str) -> None:
        self._grad_req = "null"
        if req != "null":
            warnings.warn(
                f"Constant parameter '{self.name}' has no gradient; grad_req '{req}' is ignored.",
                stacklevel=2,
            )
