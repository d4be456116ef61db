"""The optimizer of `SVRGModule`, which wraps another one and stores full gradients unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import optimizer as optimizers

if TYPE_CHECKING:
    from typing import Any

    from ..._core import NDArray

__all__ = ["AssignmentOptimizer", "SVRGOptimizer"]

BASE_PARAMETERS = (
    "rescale_grad",
    "param_idx2name",
    "wd",
    "clip_gradient",
    "learning_rate",
    "lr_scheduler",
    "sym",
    "begin_num_update",
    "multi_precision",
    "param_dict",
)


@optimizers.register
class AssignmentOptimizer(optimizers.Optimizer):
    """Assigns the gradient to the weight, to sum gradients in a kvstore.

    Examples
    --------
    >>> store, total = mx.kv.create("local"), nd.zeros((2,))
    >>> store.init("total", total)
    >>> store.set_optimizer(mx.optimizer.create("assignmentoptimizer"))
    >>> store.push("total", [nd.ones((2,)), nd.ones((2,))])
    >>> store.pull("total", total)
    >>> total.asnumpy()
    array([2., 2.], dtype=float32)
    """

    def update(self, index: Any, weight: NDArray, grad: NDArray, state: Any) -> None:
        weight[:] = grad


@optimizers.register
class SVRGOptimizer(optimizers.Optimizer):
    """Applies an optimizer to weights, and an assignment to names that end in "_full".

    Parameters
    ----------
    default_optimizer : str or Optimizer
        The optimizer of the weights.
    **kwargs
        Options of the optimizer, if it is given by name.

    Examples
    --------
    >>> mx.optimizer.create("svrgoptimizer", default_optimizer="sgd").default_opt
    SGD(learning_rate=0.01, wd=0.0)
    """

    def __init__(self, default_optimizer: str | optimizers.Optimizer, **kwargs: Any) -> None:
        named = isinstance(default_optimizer, str)
        super().__init__(
            **{key: value for key, value in kwargs.items() if not named or key in BASE_PARAMETERS}
        )
        if isinstance(default_optimizer, str):
            default_optimizer = optimizers.create(default_optimizer, **kwargs)
        self.default_opt: optimizers.Optimizer = default_optimizer
        self.aux_opt: optimizers.Optimizer = AssignmentOptimizer()

    def _optimizer_of(self, index):
        name = index if isinstance(index, str) else self.idx2name[index]
        return self.aux_opt if name.endswith("_full") else self.default_opt

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return self._optimizer_of(index).create_state(index, weight)

    def update(self, index: Any, weight: NDArray, grad: NDArray, state: Any) -> None:
        self._optimizer_of(index).update(index, weight, grad, state)


# MXNet's names.
_AssignmentOptimizer, _SVRGOptimizer = AssignmentOptimizer, SVRGOptimizer
