"""Optimizer states of parameters that are split over devices, and how checkpoints split them.

The optimizer has a state for each part of a parameter. An array of the state either is split like
the parameter, or has the same value for all parts. Saving and loading use the same rule.

If all parts have size 1 along the split axis, the shape is ambiguous. The array is then saved as
split, and the index lists it. Loading onto larger parts compares it with the optimizer's new state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._core import NotSupportedError
from .._internal.ranks.own_arrays import brought_to_all
from ..base import MXNetError
from ..optimizer._nested_states import take_apart

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .._internal.types import NDArray
    from ..gluon.parameter import Parameter
    from ..optimizer.optimizer import Optimizer


def is_split(shape: Sequence[int], param_shape: Sequence[int], axis: int) -> bool | None:
    """Returns True if a state's array is split along `axis` like its parameter, False if each part
    has the whole array, and None if the shape matches neither case.

    The array is split if it has the parameter's shape, except that dimensions other than `axis` may
    have size 1.
    """
    if len(shape) == len(param_shape) and all(
        size in (1, full) for size, full in zip(shape, param_shape)
    ):
        return shape[axis] == param_shape[axis]
    return False if math.prod(shape) == 1 else None


def is_split_over(
    name: str, axis: int, parts: Sequence[Parameter], arrays: Sequence[NDArray]
) -> bool:
    """True if an array of the state of parameter `name` is split like the parameter, given the
    array for each part. Raises NotSupportedError if it is not and differs between the parts."""
    kinds = [is_split(array.shape, part.shape, axis) for array, part in zip(arrays, parts)]
    if None in kinds:
        at = kinds.index(None)
        raise NotSupportedError(
            f"save: the state of parameter '{name}' has an array of shape {arrays[at].shape}, "
            f"which cannot be split along axis {axis} like the part of shape {parts[at].shape}; "
            "use an array of the part's shape, of sizes 1 along other axes, or of one element, or "
            "save with Trainer.save_states"
        )
    if not all(kinds) and len(set(map(_contents, arrays))) > 1:
        raise NotSupportedError(
            f"save: the state of parameter '{name}' has an array of shape {arrays[0].shape} that "
            "differs between the parts of the parameter, but is not split like them; save with "
            "Trainer.save_states"
        )
    return all(kinds)


def equal_if_ambiguous(
    axis: int, parts: Sequence[Parameter], arrays: Sequence[NDArray]
) -> bool | None:
    """Checks a state's array that is treated as split. Returns None if the shapes of the parts
    prove that it is split. Otherwise, it may also be an unsplit array that each part has. In this
    case, returns True if the arrays of all parts are equal."""
    if len(parts) == 1 or any(part.shape[axis] != 1 for part in parts):
        return None
    return len(set(map(_contents, arrays))) == 1


class NewShapes:
    """The shapes of the arrays in the state that an optimizer creates for a parameter. Creates the
    state on first use."""

    def __init__(self, optimizer: Optimizer, index: int, param: Parameter, name: str) -> None:
        self._of = optimizer, index, param, name
        self._shapes: dict[str, tuple[int, ...]] | None = None

    def is_one_part(
        self, key: str, whole: Sequence[int], part: Sequence[int], axis: int, equal: bool
    ) -> bool:
        """True if the ambiguous array `key` is unsplit: in the state that the optimizer creates for
        this parameter, it has the shape of one saved part instead of the shape `part`. Raises
        MXNetError if it is unsplit but the saved parts differ."""
        optimizer, index, param, name = self._of
        if self._shapes is None:
            arrays: dict[str, Any] = {}
            weight = param.list_data()[0].detach()
            state = optimizer.of(index).create_state_multi_precision(index, weight)
            take_apart(state, name, arrays, "load")
            self._shapes = {key: array.shape for key, array in arrays.items()}
        one = (*whole[:axis], 1, *whole[axis + 1 :])
        if tuple(part) == one or self._shapes.get(key) != one:
            return False
        if not equal:
            raise MXNetError(
                f"load: the state of parameter '{name}' has an array of shape {one} that differed "
                f"between the {whole[axis]} parts of the saved parameter, so it cannot be loaded "
                "unsplit; load the checkpoint into a network with the same split"
            )
        return True


def _contents(array):
    return array.shape, brought_to_all(array).asnumpy().tobytes()


def check_splittable(name: str, shape: Sequence[int], whole: Sequence[int], axis: int) -> None:
    """Raises NotSupportedError if a saved array cannot be split over the parts of a parameter."""
    if is_split(shape, whole, axis) is None:
        raise NotSupportedError(
            f"load: the state of parameter '{name}' has an array of shape {tuple(shape)}, which "
            f"cannot be split along axis {axis} like the parameter, which has shape "
            f"{tuple(whole)}; load the checkpoint into a network with the whole parameter"
        )
