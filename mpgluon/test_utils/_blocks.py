"""Comparison of a block's eager and hybridized results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import autograd
from ..util import use_np
from ._comparison import assert_almost_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._internal.types import NDArray
    from ..gluon import HybridBlock


__all__ = ["check_gluon_hybridize_consistency"]


@use_np
def check_gluon_hybridize_consistency(
    net_builder: Callable[..., HybridBlock],
    data_l: Sequence[NDArray],
    numpy_func: Callable[..., Any] | None = None,
    test_grad: bool = True,
    rtol: float = 1e-4,
    atol: float = 1e-4,
) -> None:
    """Raises AssertionError unless a block computes the same eagerly and hybridized, in np mode.

    Parameters
    ----------
    net_builder : callable
        ``net_builder(prefix=...)`` creates the block, which returns one array and draws no random
        numbers.
    data_l : list of mx.np.ndarray
        The inputs.
    numpy_func : callable, optional
        A function of NumPy arrays that computes the right output.
    test_grad : bool, default True
        True to compare the gradients of the inputs as well.
    rtol, atol : float
        See `assert_almost_equal`.
    """
    eager = net_builder(prefix="net_")
    eager.initialize()
    expected, gradients = _results(eager, data_l, test_grad)
    values = {name: param.data() for name, param in eager.collect_params().items()}
    hybridized = net_builder(prefix="net_")
    hybridized.initialize()
    hybridized.hybridize()
    hybridized(*data_l)  # completes the shapes of the parameters
    for name, param in hybridized.collect_params().items():
        param.set_data(values[name])
    found, found_gradients = _results(hybridized, data_l, test_grad)
    names = ("hybridized", "eager")
    assert_almost_equal(found, expected, rtol=rtol, atol=atol, names=names)
    for i, (one, other) in enumerate(zip(found_gradients, gradients)):
        names = (f"hybridized gradient of input {i}", "eager")
        assert_almost_equal(one, other, rtol=rtol, atol=atol, names=names)
    if numpy_func is not None:
        right = numpy_func(*[array.asnumpy() for array in data_l])
        assert_almost_equal(expected, right, rtol=rtol, atol=atol, names=("eager", "numpy_func"))


def _results(net, data, with_gradients):
    """Returns the output, and the gradients of the inputs for the output as head gradient."""
    inputs = [array.copy() for array in data]
    output = net(*inputs)
    if not with_gradients:
        return output, []
    for array in inputs:
        array.attach_grad()
    with autograd.record():
        recorded = net(*inputs)
    recorded.backward(recorded)
    return recorded, [array.grad for array in inputs]
