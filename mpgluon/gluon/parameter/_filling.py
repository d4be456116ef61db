"""Fills parameters piece by piece, so that the host never holds a whole value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _core, ndarray as nd
from ..._internal import kinds
from ...ndarray._sparse.row_gradients import RowGradientWeight

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from ..._internal.types import Devices, NDArray


class Fillable:
    """The part of `Parameter` that is filled piece by piece."""

    is_numpy: bool

    def blank(self) -> Self:
        """Returns a copy of the parameter without values, devices and Trainer."""
        made = object.__new__(type(self))
        names = ("arrays", "gradients", "placed", "_trainer_reference", "_var", "_calls")
        nothing = {**dict.fromkeys(names), "left": (), "deferred_init": ()}
        made.__dict__.update({**self.__dict__, **nothing})
        return made

    def to_fill(self: Any, ctx: Devices | None) -> tuple[list[NDArray], Callable[[], None]]:
        """Returns the arrays of the parameter, one on each of its devices, for the caller to fill,
        and a function that the caller must call afterwards. The shape must be known.

        An initialized parameter is written in place. Otherwise, the arrays are new and become the
        parameter's value in the end.
        """
        if self.arrays is not None:
            if self._trainer is not None:
                self._trainer.notice(self)
            found = [
                array.plain if isinstance(array, RowGradientWeight) else array
                for array in self.arrays.values()
            ]
            return found, lambda: None
        self.is_numpy = self.is_numpy or _core.is_np_array()
        devices = self.list_ctx() if self.deferred_init else self._devices(ctx)
        made = {ctx: nd.empty(self._shape, ctx=ctx, dtype=self.dtype) for ctx in devices}
        arrays = {ctx: kinds.of_kind(array, self.is_numpy) for ctx, array in made.items()}
        return list(arrays.values()), lambda: self._hold_data(arrays, self.grad_req)


def defer(param: Any, devices: Any) -> None:
    """Makes a parameter without values usable in traces on these devices."""
    param.is_numpy = param.is_numpy or _core.is_np_array()
    param.deferred_init = ("zeros", list(devices), "zeros", None, None)
