"""Dynamic loss scaling, which adapts the scale to gradient overflows."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from ... import _core, autograd, ndarray as nd
from ..._internal.ranks.own_arrays import brought_to_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..._core import NDArray
    from ...gluon import Parameter

__all__ = ["LossScaler"]

_AT_ONCE = 200  # maximum number of arrays per call


def all_finite(arrays: Iterable[Any]) -> bool:
    """True if no array has an infinity or a NaN; waits for the arrays once."""
    by_device: dict[Any, list[NDArray]] = {}
    for array in arrays:
        dense = array if array.stype == "default" else array.data
        # Add a flag even if this rank has no elements on the device, because the rank that owns the
        # device may have some, and all ranks must run the same copies.
        by_device.setdefault(dense.context, []).extend([dense] if dense.size else [])
    flags = []
    with autograd.pause():
        for ctx, own in by_device.items():
            flag = nd.ones((1,), ctx=ctx)
            for begin in range(0, len(own), _AT_ONCE):
                some = own[begin : begin + _AT_ONCE]
                nd.multi_all_finite(*some, num_arrays=len(some), init_output=False, out=flag)
            flags.append(flag)
        flags = [brought_to_all(flag) for flag in flags]  # queue all copies before reading a flag
        return all(flag.item() != 0 for flag in flags)


class LossScaler:
    """A loss scale that an overflow halves, and 2000 updates without overflow double.

    Examples
    --------
    >>> mx.contrib.amp.LossScaler().loss_scale
    65536.0
    """

    def __init__(self) -> None:
        self._loss_scale = self._next_loss_scale = 2.0**16
        self._max_loss_scale = 2.0**24
        self._scale_seq_len = 2000
        self._unskipped = 0
        self._scales_outputs = False

    def scale_outputs(self) -> None:
        """Makes output layers (SoftmaxOutput) multiply the gradients they create by the scale."""
        self._scales_outputs = True
        _core.set_loss_scale(self._loss_scale)

    @property
    def loss_scale(self) -> float:
        """The present loss scale. Setting a value that is not positive raises ValueError."""
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, scale: float) -> None:
        if not 0 < scale < math.inf:
            raise ValueError(f"LossScaler: the scale must be positive and finite, not {scale!r}")
        self._go_on(float(scale), 0)

    def _go_on(self, scale, unskipped):
        self._loss_scale = self._next_loss_scale = scale
        self._unskipped = unskipped
        if self._scales_outputs:
            _core.set_loss_scale(scale)

    @property
    def state(self) -> tuple[float, int]:
        """Returns the scale and the number of updates since its last change, for checkpoints."""
        return self._next_loss_scale, self._unskipped

    @state.setter
    def state(self, state: tuple[float, int]) -> None:
        self._go_on(*state)

    def has_overflow(self, params: Iterable[Parameter]) -> bool:
        """True if the gradients of parameters, on any device, have an infinity or a NaN.

        Also updates the scale for the next update.
        """
        return self.overflows(grad for param in params for grad in (param.gradients or {}).values())

    def overflows(self, gradients: Iterable[Any]) -> bool:
        """Implements `has_overflow` for a sequence of gradient arrays."""
        finite = all_finite(gradients)
        scale, unskipped = self._next_loss_scale, self._unskipped + 1
        if not finite:
            unskipped = 0
            scale = max(scale / 2, 2.0**-24)
            logging.info("AMP: decreasing loss scale to %f", scale)
        elif unskipped == self._scale_seq_len:
            unskipped = 0
            scale = min(self._max_loss_scale, scale * 2)
            logging.info("AMP: increasing loss scale to %f", scale)
        self._go_on(scale, unskipped)
        return not finite
