"""Nested optimizer states: arrays of any shapes, numbers and strings in tuples, lists and dicts."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from .. import ndarray as nd
from .._core import dtype_name
from ..base import MXNetError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._internal.types import NDArray
    from ..context import Context
    from ..gluon.parameter import Parameter

# Limits on saved states: levels of nesting, because JSON readers recurse, and bits of integers,
# because Python only parses integers of up to 4300 digits.
_DEEPEST, _LONGEST = 200, 14_000


def map_arrays(function: Callable[[NDArray], Any], state: Any) -> Any:
    """Returns a nested state with each array replaced by `function(array)`."""
    if isinstance(state, nd.NDArray):
        return function(state)
    if isinstance(state, dict):
        mapped = copy.copy(state)
        for key, part in state.items():
            mapped[key] = map_arrays(function, part)
        return mapped
    if isinstance(state, (tuple, list)):
        parts = [map_arrays(function, part) for part in state]
        return state._make(parts) if hasattr(state, "_make") else type(state)(parts)
    return state


def arrays_of(state: Any) -> list[NDArray]:
    """Returns the arrays of a nested state."""
    arrays: list[NDArray] = []
    map_arrays(arrays.append, state)
    return arrays


def copy_state(state: Any, ctx: Context) -> Any:
    """Returns a copy of a nested state on device `ctx`."""
    return map_arrays(lambda array: array.copyto(ctx), state)


def is_complete(state: Any) -> bool:
    """True if no part of a nested state of tuples and lists is None."""
    if isinstance(state, (tuple, list)):
        return all(map(is_complete, state))
    return state is not None


def completed(state: Any, new: Any) -> Any:
    """Replaces the parts of a nested state that are None by the corresponding parts of a new
    state."""
    if state is None:
        return new
    pair = isinstance(state, (tuple, list)) and isinstance(new, (tuple, list))
    if pair and len(state) == len(new):
        return type(state)(map(completed, state, new))
    return state


def continues(state: Any, new: Any) -> bool:
    """True if a nested state has all parts of a new state, so training can continue with it. It may
    have an array for which the new state has None, such as the array of a momentum that is now
    0."""
    if isinstance(new, (tuple, list)):
        return (
            isinstance(state, (tuple, list))
            and len(state) == len(new)
            and all(map(continues, state, new))
        )
    return (new is None and state is None) or isinstance(state, nd.NDArray)


def cast_state(state: Any, old: str, dtype: str) -> Any:
    """Returns a nested state with the arrays of dtype `old` cast to `dtype`."""
    return map_arrays(
        lambda array: array.astype(dtype) if dtype_name(array.dtype) == old else array, state
    )


def take_apart(
    state: Any,
    name: str,
    arrays: dict[str, NDArray],
    who: str = "Trainer.save_states",
    inside: tuple[Any, ...] = (),
) -> Any:
    """Adds the arrays of a nested state to `arrays`. Returns its structure for JSON.

    A tuple becomes a JSON list. A list or dict becomes a JSON object with the key "list" or "dict".
    `inside` has the tuples, lists and dicts that contain the state, to detect cycles.
    """
    if isinstance(state, nd.NDArray):
        arrays[name] = state
        return "array" if state.stype == "default" else state.stype
    if len(inside) > _DEEPEST or any(state is outer for outer in inside):
        raise MXNetError(
            f"{who}: the state of parameter '{name:.80}' is nested more than {_DEEPEST} levels "
            "deep or contains itself, so it cannot be saved"
        )
    inside = (*inside, state)
    if type(state) in (tuple, list):
        parts = [
            take_apart(part, f"{name}:{i}", arrays, who, inside) for i, part in enumerate(state)
        ]
        return parts if type(state) is tuple else {"list": parts}
    if type(state) is dict and all(type(key) in (int, str) for key in state):
        parts = [
            [
                _checked(key, name, who),
                take_apart(part, f"{name}:{i}", arrays, who, inside),
            ]
            for i, (key, part) in enumerate(state.items())
        ]
        return {"dict": parts}
    if isinstance(state, np.generic):
        state = state.item()
    if state is None or isinstance(state, (int, float, str)):
        return {"value": _checked(state, name, who)}
    kind = type(state).__name__
    raise MXNetError(
        f"{who}: the state of parameter '{name}' holds a {kind}, which cannot be saved; use "
        "arrays, numbers, strings, tuples, lists, and dicts whose keys are str or int"
    )


def _checked(value, name, who):
    """Returns a value of a state. Raises MXNetError for an integer that JSON cannot store."""
    if isinstance(value, int) and value.bit_length() > _LONGEST:
        raise MXNetError(
            f"{who}: the state of parameter '{name}' holds an integer of {value.bit_length()} "
            f"bits, which cannot be saved; at most {_LONGEST} are supported"
        )
    return value


def put_together(
    structure: Any, name: str, array_of: Callable[[str, str], Any], source: str
) -> Any:
    """Rebuilds a nested state from the structure that `take_apart` returned.

    Calls `array_of(name, stype)` for each array. Raises MXNetError for an invalid structure;
    `source` describes its origin in the error message.
    """
    match structure:
        case "array":
            return array_of(name, "default")
        case "row_sparse" | "csr":
            return array_of(name, structure)
        case [*parts]:
            return tuple(_put_all(parts, name, array_of, source))
        case {"list": [*parts]}:
            return _put_all(parts, name, array_of, source)
        case {"dict": [*pairs]} if all(map(_is_pair, pairs)):
            parts = _put_all([part for _, part in pairs], name, array_of, source)
            return dict(zip([key for key, _ in pairs], parts))
        case {"value": None | int() | float() | str() as value}:
            return value
    raise MXNetError(f"{source} is damaged: the state of '{name}' has an invalid structure")


def _put_all(parts, name, array_of, source):
    try:
        return [put_together(part, f"{name}:{i}", array_of, source) for i, part in enumerate(parts)]
    except RecursionError as error:
        raise MXNetError(f"{source} is damaged: a state is nested too deeply") from error


def _is_pair(value):
    return isinstance(value, list) and len(value) == 2 and type(value[0]) in (int, str)


def check_state(state: Any, shape: Sequence[int] | None, param: Parameter, source: str) -> None:
    """Raises MXNetError if a loaded state belongs to a parameter of another shape. `shape` is the
    shape of the saved parameter, or None if it is unknown.

    Files of MXNet and of earlier versions do not contain the shape. In this case, an array of the
    state must broadcast to the parameter's shape, or have another number of dimensions.
    """
    if param.shape is None:
        return
    if shape is not None:
        if not _fits(shape, param.shape):
            raise MXNetError(
                f"{source} holds the state of a parameter of shape {tuple(shape)}, but parameter "
                f"'{param.name}' has shape {param.shape}"
            )
        return
    for array in arrays_of(state):
        ones = [known if size == 1 else size for size, known in zip(array.shape, param.shape)]
        if array.ndim == len(param.shape) and not _fits(ones, param.shape):
            raise MXNetError(
                f"{source} holds a state of shape {array.shape} for parameter '{param.name}', "
                f"which has shape {param.shape}"
            )


def _fits(shape, known):
    """True if two shapes are equal, except for dimensions that are not known."""
    return len(shape) == len(known) and all(a == b or min(a, b) <= 0 for a, b in zip(shape, known))
