"""Variables and gradients that are sparse arrays. Each is backed by a dense variable or gradient,
so it needs the memory of the full array, unlike the gradients of `row_gradients.py`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ... import _core
from ..._core import NDArray
from .arrays import BaseSparseNDArray, zeros_of

if TYPE_CHECKING:
    from typing import Any

_op = _core.get_op
gradients: dict[int, Any] = {}  # id of a dense array -> its sparse gradient


def mark(variable: NDArray, gradient: NDArray, request: str) -> None:
    """Makes an array a variable with the given gradient. Both may be sparse."""
    target = variable
    if isinstance(variable, BaseSparseNDArray):
        with _core.pause():
            target = variable.detach().tostype("default")
    if not isinstance(gradient, BaseSparseNDArray):
        _core.mark_variables(target, gradient, request)
    else:
        zeros = _op("_full")(shape=target.shape, value=0, ctx=target.context, dtype=target.dtype)
        _core.mark_variables(target, zeros, request)
        gradient.follow(target, zeros)
    if isinstance(variable, BaseSparseNDArray):
        variable.be_variable(target, gradient)


def attach(variable: NDArray, request: str, stype: str) -> NDArray:
    """Makes an array a variable with a new gradient of storage type `stype`. Returns the
    gradient."""
    shape, ctx, dtype = variable.shape, variable.context, variable.dtype
    if stype == "default":
        gradient = _op("_full")(shape=shape, value=0, ctx=ctx, dtype=dtype)
    else:
        gradient = zeros_of(stype, shape, ctx, dtype)
    mark(variable, gradient, request)
    return gradient


def attach_to_dense(array: NDArray, request: str, stype: str) -> None:
    """Implements `attach_grad` of a dense array with a sparse gradient."""
    gradients[id(array)] = attach(array, request, stype)
    weakref.finalize(array, gradients.pop, id(array), None)
