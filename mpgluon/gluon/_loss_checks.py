"""Checks of the inputs of losses. Symbols have no shapes, so only arrays are checked."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, ndarray as nd
from .._internal import ranks
from ..base import MXNetError

if TYPE_CHECKING:
    from .._internal.types import NDArray


def _has_values(array):
    """True if the array is not traced, and this rank has its values."""
    return not array._traced and array.context.rank in (None, ranks.own())


def check_labels(who: str, label: NDArray, classes: int, ignored: int | None = None) -> None:
    """In synchronous mode, checks that labels are classes or `ignored`."""
    if _core.engine_mode() == "sync" and label.size and _has_values(label):
        labels = label.asnumpy()
        wrong = ~((labels > -1) & (labels < classes))  # NaN is also wrong
        wrong = np.argwhere(wrong if ignored is None else wrong & (labels != ignored))
        if len(wrong):
            place = tuple(wrong[0].tolist())
            raise ValueError(
                f"{who}: there are {classes} classes, 0 to {classes - 1}, "
                f"but label{list(place)} is {labels[place]:g}"
            )


def check_weight_shape(loss: Any, sample_weight: Any) -> None:
    """Raises MXNetError for weights that lack the last axis of the elementwise loss, unless they
    broadcast to it."""
    if not isinstance(sample_weight, nd.NDArray) or not isinstance(loss, nd.NDArray):
        return
    if sample_weight.shape != loss.shape[:-1]:
        return
    try:
        np.broadcast_shapes(loss.shape, sample_weight.shape)
    except ValueError:
        raise MXNetError(
            f"sample_weight has shape {sample_weight.shape}, but the elementwise loss has shape "
            f"{loss.shape}; pass mask.expand_dims(-1)"
        ) from None


def check_weights(loss: Any, sample_weight: Any, weighted: Any, who: str | None = None) -> None:
    """Checks that sample weights did not extend the elementwise loss. Its mean would then combine
    each weight with the losses of other positions. Warns, because MXNet accepts these weights, or
    raises ValueError for a loss that MXNet lacks, whose name is given."""
    if not isinstance(weighted, nd.NDArray) or weighted.shape == loss.shape:
        return
    text = (
        f"sample_weight has shape {sample_weight.shape}, which broadcasts the loss of shape "
        f"{loss.shape} to {weighted.shape}, so that a weight applies to several positions; "
        f"reshape it so that it broadcasts to {loss.shape}"
    )
    if sample_weight.size == loss.size:
        text += f", here to {loss.shape} itself"
        if sample_weight.shape == loss.shape[:-1]:
            text += ", by mask.expand_dims(-1)"
    elif sample_weight.size == loss.shape[0]:
        text += f", here to {(loss.shape[0], *[1] * (loss.ndim - 1))}"
    if who is not None:
        raise ValueError(f"{who}: {text}")
    warnings.warn(text, stacklevel=3)
