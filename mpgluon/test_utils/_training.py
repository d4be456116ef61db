"""Comparison of optimizers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from .. import ndarray as nd
from ._arrays import rand_ndarray
from ._comparison import compare_ndarray_tuple
from ._environment import default_context

if TYPE_CHECKING:
    from typing import Any

    from .._internal.types import DType, Shape
    from ..optimizer import Optimizer


__all__ = ["compare_optimizer"]


def compare_optimizer(
    opt1: Optimizer,
    opt2: Optimizer,
    shape: Shape | list[Shape],
    dtype: DType,
    w_stype: str = "default",
    g_stype: str = "default",
    rtol: float = 1e-4,
    atol: float = 1e-5,
    compare_states: bool = True,
    ntensors: int = 1,
) -> None:
    """Raises AssertionError unless two optimizers compute the same weights and states.

    Parameters
    ----------
    opt1, opt2 : Optimizer
        The optimizers.
    shape : tuple, or list of them
        The shape of the weight. With a list, `opt2` updates all weights in one call.
    dtype : str or type
        The dtype of the weight.
    w_stype, g_stype : str, default "default"
        Storage of the weight and of the gradient: "default", "row_sparse" or "csr".
    rtol, atol : float
        See `assert_almost_equal`.
    compare_states : bool, default True
        True to compare states as well.
    ntensors : int, default 1
        The length of the list.
    """

    def uniform(size, stype):
        if stype != "default":
            return rand_ndarray(size, stype)
        return nd.random.uniform(shape=size, ctx=default_context(), dtype=dtype)

    shapes = shape if isinstance(shape, list) else [shape]
    if ntensors != len(shapes):
        raise ValueError(
            f"compare_optimizer: ntensors is {ntensors}, but there are {len(shapes)} shapes"
        )
    weights = [uniform(size, w_stype) for size in shapes]
    gradients = [uniform(size, g_stype) for size in shapes]
    others, other_gradients = copy.deepcopy(weights), copy.deepcopy(gradients)
    states = [opt1.create_state_multi_precision(i, weight) for i, weight in enumerate(weights)]
    other_states = [opt2.create_state_multi_precision(i, weight) for i, weight in enumerate(others)]
    if compare_states:
        compare_ndarray_tuple(tuple(states), tuple(other_states))
    for i, (weight, gradient, state) in enumerate(zip(weights, gradients, states)):
        opt1.update_multi_precision(i, weight, gradient, state)
    if isinstance(shape, list):
        numbers: Any = list(range(ntensors))
        opt2.update_multi_precision(numbers, others, other_gradients, other_states)
    else:
        opt2.update_multi_precision(0, others[0], other_gradients[0], other_states[0])
    if compare_states:
        compare_ndarray_tuple(tuple(states), tuple(other_states), rtol=rtol, atol=atol)
    compare_ndarray_tuple(tuple(weights), tuple(others), rtol=rtol, atol=atol)
