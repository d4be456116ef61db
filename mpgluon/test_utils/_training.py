"""Checks of blocks and optimizers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from .. import autograd, ndarray as nd
from ._arrays import rand_ndarray
from ._comparison import assert_almost_equal, compare_ndarray_tuple
from ._environment import default_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._core import NDArray
    from .._types import DType, Shape
    from ..gluon import Block
    from ..optimizer import Optimizer


__all__ = ["check_gluon_hybridize_consistency", "compare_optimizer"]


def _run(net, data, with_gradients):
    """Returns the output, and the gradients of half its squared norm with respect to the inputs."""
    inputs = [array.copy() for array in data]
    if not with_gradients:
        return net(*inputs).asnumpy(), None
    for array in inputs:
        array.attach_grad()
    with autograd.record():
        output = net(*inputs)
    output.backward(output)
    return output.asnumpy(), [array.grad.asnumpy() for array in inputs]


def check_gluon_hybridize_consistency(
    net_builder: Callable[..., Block],
    data_l: Sequence[NDArray],
    numpy_func: Callable[..., Any] | None = None,
    test_grad: bool = True,
    rtol: float = 1e-4,
    atol: float = 1e-4,
) -> None:
    """Raises AssertionError unless a block is consistent hybridized and not, recorded and not.

    Parameters
    ----------
    net_builder : callable
        ``net_builder(prefix="net_")`` creates the block, which must not use random numbers.
    data_l : list of NDArray
        The inputs.
    numpy_func : callable, optional
        A function of NumPy arrays that returns the expected output.
    test_grad : bool, default True
        True to compare the gradients of the inputs as well.
    rtol, atol : float, default 1e-4
        See `assert_almost_equal`.
    """
    values: dict[str, Any] = {}
    outputs: list[Any] = []
    gradients: list[Any] = []
    for hybridize in (False, True):
        for with_gradients in (False, True)[: 1 + test_grad]:
            net = net_builder(prefix="net_")
            net.initialize()
            for name, parameter in net.collect_params().items() if values else ():
                parameter.shape = values[name].shape
                parameter.set_data(values[name])
            if hybridize:
                net.hybridize()
            output, gradient = _run(net, data_l, with_gradients)
            values = values or {
                name: parameter.data().copy() for name, parameter in net.collect_params().items()
            }
            outputs.append(output)
            if gradient is not None:
                gradients.append(gradient)
    for output in outputs[1:]:
        assert_almost_equal(output, outputs[0], rtol=rtol, atol=atol)
    for gradient in gradients[1:]:
        for one, other in zip(gradient, gradients[0]):
            assert_almost_equal(one, other, rtol=rtol, atol=atol)
    if numpy_func is not None:
        right = numpy_func(*[array.asnumpy() for array in data_l])
        assert_almost_equal(outputs[0], right, rtol=rtol, atol=atol)


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
