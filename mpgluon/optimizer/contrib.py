"""Optimizers of MXNet's `contrib` module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import ndarray as nd
from .._internal import domain
from .grouped import GroupedOptimizer
from .optimizer import register

if TYPE_CHECKING:
    from .._internal.types import NDArray

__all__ = ["GroupAdaGrad"]


@register
class GroupAdaGrad(GroupedOptimizer):
    """AdaGrad with one history value for each row of a matrix, without weight decay."""

    def __init__(self, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        domain.at_least(0, eps=eps)
        self.float_stable_eps = eps

    @property
    def updates_rows(self) -> bool:
        return True

    def create_state(self, index: Any, weight: NDArray) -> Any:
        if len(weight.shape) != 2:
            raise ValueError(
                "GroupAdaGrad supports only matrices; parameter "
                f"{self.idx2name.get(index, index)!r} has shape {weight.shape}"
            )
        return nd.zeros((weight.shape[0], 1), ctx=weight.context, dtype=weight.dtype)

    def combines(self, axis: int) -> bool:
        return axis == 1

    def _phases(self, indices, weights, grads, states, lrs, wds):
        for index, wd in zip(indices, wds):
            if wd != 0:
                raise ValueError(
                    "GroupAdaGrad does not support weight decay, but parameter "
                    f"{self.idx2name.get(index, index)!r} has {wd}"
                )
        grads, means = [self._gradient(grad) for grad in grads], []
        for index, grad in zip(indices, grads):
            columns = getattr(self.param_dict.get(index), "global_shape", grad.shape)[1]
            mean = nd.mean(nd.square(grad), axis=1, keepdims=True)
            means.append(mean * (grad.shape[1] / columns))
        yield [], means
        changes = []
        for weight, grad, state, mean, lr in zip(weights, grads, states, means, lrs):
            history = state + mean
            step = nd.broadcast_div(lr * grad, nd.sqrt(history + self.float_stable_eps))
            changes += [(history.copyto, state), ((weight - step).copyto, weight)]
        yield changes
