"""Gradient clipping for replicated and split networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import autograd, ndarray as nd
from ..gluon.trainer import Trainer, current_plan
from ..gluon.utils import global_norm, scale_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..gluon.parameter import Parameter, ParameterDict

__all__ = ["clip_global_norm"]


def clip_global_norm(
    params: Trainer | ParameterDict | Sequence[Parameter], max_norm: float
) -> nd.NDArray:
    """Scales the gradients of parameters in place so that their joint 2-norm is at most `max_norm`.

    The norm includes one replica of each parameter, and all shards of a split parameter. All copies
    are scaled by the same factor. The call is asynchronous. Call it between
    ``trainer.allreduce_grads()`` and ``trainer.update(batch_size)``, or use
    ``Trainer(clip_global_norm=...)``.

    Parameters
    ----------
    params : Trainer, ParameterDict, or list of Parameter
        With ``shard_updates``, pass the Trainer, which knows the copy that holds the sum, instead
        of the parameters. For a Trainer, gradients that backward has not written since the last
        step are skipped, as in ``update(ignore_stale_grad=True)``.
    max_norm : float
        Maximum norm of the gradients, before they are divided by the batch size.

    Returns
    -------
    NDArray
        The norm before scaling, of shape (1,), on the device of the first parameter.

    Raises
    ------
    ValueError
        If none of the parameters has a gradient, or `max_norm` is not positive.

    Examples
    --------
    >>> net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
    >>> net.initialize(mx.init.One())
    >>> with mx.autograd.record():
    ...     y = net(mx.nd.array([[3, 4]]))
    >>> y.backward()
    >>> mx.parallel.clip_global_norm(net.collect_params(), 1.0).asnumpy().tolist()
    [5.0]
    >>> net.weight.grad().asnumpy()
    array([[0.6, 0.8]], dtype=float32)
    """
    if not max_norm > 0:
        raise ValueError(f"clip_global_norm: max_norm must be positive, not {max_norm!r}")
    trainer = isinstance(params, Trainer)
    if trainer:
        plan = current_plan(params)
        once, grads = plan.gradients(plan.fresh_work())
    else:
        params = list(params.values() if hasattr(params, "values") else params)
        once = [next(iter(param.gradients.values())) for param in params if param.gradients]
        grads = [grad for param in params for grad in (param.gradients or {}).values()]
    if not once:
        raise ValueError(
            "clip_global_norm: none of the parameters has a gradient"
            + (" that backward has written since the last step" if trainer else "")
        )
    with autograd.pause():
        norm = global_norm(once)
        scale_arrays(grads, nd.minimum(max_norm / (norm + 1e-8), 1.0))
    return norm
