"""Nested optimizer states: arrays, numbers, and tuples of these. Used by other modules of the
package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import ndarray as nd
from .._core import dtype_name
from ..base import MXNetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._types import NDArray


def copy_state(state, ctx):
    """Returns a copy of a nested state on device `ctx`."""
    if isinstance(state, nd.NDArray):
        return state.copyto(ctx)
    if isinstance(state, (tuple, list)):
        return type(state)(copy_state(part, ctx) for part in state)
    return state


def cast_state(state, old, dtype):
    """Returns a nested state with the arrays of dtype `old` cast to `dtype`."""
    if isinstance(state, nd.NDArray):
        return state.astype(dtype) if dtype_name(state.dtype) == old else state
    if isinstance(state, (tuple, list)):
        return type(state)(cast_state(part, old, dtype) for part in state)
    return state


def take_apart(state, name, arrays, who="Trainer.save_states"):
    """Adds the arrays of a nested state to `arrays`. Returns its structure for JSON."""
    if isinstance(state, nd.NDArray):
        arrays[name] = state
        return "array"
    if isinstance(state, (tuple, list)):
        return [take_apart(part, f"{name}:{i}", arrays, who) for i, part in enumerate(state)]
    if state is None or isinstance(state, (int, float, bool)):
        return {"value": state}
    raise MXNetError(
        f"{who}: the state of parameter '{name}' holds a {type(state).__name__}, which cannot "
        "be saved"
    )


def put_together(
    shape: Sequence[int], name: str, arrays: Sequence[NDArray], fname: str | os.PathLike[str]
) -> NDArray:
    if shape == "array":
        if name not in arrays:
            raise MXNetError(f"'{fname}' is damaged: the array '{name}' is missing")
        return arrays[name]
    if isinstance(shape, list):
        return tuple(
            put_together(part, f"{name}:{i}", arrays, fname) for i, part in enumerate(shape)
        )
    if isinstance(shape, dict) and isinstance(shape.get("value", ""), (int, float, type(None))):
        return shape["value"]
    raise MXNetError(f"'{fname}' is damaged: the state of '{name}' has an invalid structure")


def check_state(state, param, fname):
    """Raises MXNetError unless every array of a state broadcasts to the shape of its parameter or
    (for layer-wise rates) has fewer dimensions."""
    if isinstance(state, tuple):
        for part in state:
            check_state(part, param, fname)
    elif isinstance(state, nd.NDArray) and state.ndim == len(param.shape or ()):
        pairs = zip(param.shape, state.shape)
        if any(known not in (0, -1, size) and size != 1 for known, size in pairs):
            raise MXNetError(
                f"'{fname}' holds a state of shape {state.shape} for parameter '{param.name}', "
                f"which has shape {param.shape}"
            )
