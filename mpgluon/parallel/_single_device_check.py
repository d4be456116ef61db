"""Comparison of a block on many devices with the same block on one device."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, autograd, ndarray as nd, random
from .._internal import graph_breaks
from ..base import MXNetError
from ..context import cpu
from ..gluon import _nested
from ..gluon._compiled import grouped
from ..gluon._compiled.call import Signature
from ..gluon.block import HybridBlock

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["check_against_single_device"]


def check_against_single_device(
    net: HybridBlock,
    *inputs: Any,
    ctx: Context | None = None,
    train: bool = True,
    exact: bool = True,
    rtol: float | None = None,
) -> dict[str, float]:
    """Runs a block on its devices and with everything on one device, and compares results and
    gradients.

    Parameters
    ----------
    net : HybridBlock
        Block with initialized parameters, on any devices. Parameters, gradients, moving statistics
        and the random state are not changed.
    *inputs
        Arguments of the block: arrays, or nested lists of arrays.
    ctx : Context, default cpu(0)
        The single device. It must have enough memory for the whole network.
    train : bool, default True
        Whether to run in training mode, as under ``autograd.record()``.
    exact : bool, default True
        Whether to disable rewrites that change bits. In both cases, the two runs must have the same
        bits.
    rtol : float, optional
        Tolerance relative to the largest element, instead of a bitwise comparison. Use it for sums
        that are split over devices.

    Returns
    -------
    dict of str to float
        The largest difference of each result ('output 0', ...) and each gradient (by the
        parameter's name). All are zero, or within ``rtol``.

    Raises
    ------
    MXNetError
        If a result or gradient differs; the message names the first one and the difference.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(4, in_units=3, prefix='first_'))
    >>> net.initialize(ctx=mx.cpu(1))
    >>> x = mx.nd.ones((2, 3), ctx=mx.cpu(1))
    >>> for name, difference in mx.parallel.check_against_single_device(net, x).items():
    ...     print(name, difference)
    output 0 0.0
    the gradient of first_weight 0.0
    the gradient of first_bias 0.0
    """
    if not isinstance(net, HybridBlock):
        raise MXNetError(
            "check_against_single_device: the network must be a HybridBlock, not "
            f"{type(net).__name__}"
        )
    graph_breaks.refuse_in_trace("check_against_single_device")
    ctx = cpu(0) if ctx is None else ctx
    flat, state = [], random.get_state()
    with _called(net, inputs):
        structure = _nested.flatten(grouped.moved(net, inputs, False, None), flat, "The inputs")
    with random.calls_at(state):
        with _called(net, inputs), autograd.record(train_mode=train):
            signature = Signature(net, type(net).__name__, structure, train)
            signature.discover(flat)

        def traced(*arrays):
            with _called(net, inputs):
                return signature.trace(*arrays)

        placed = _run(signature, traced, flat, None, train, exact)
        random.set_state(state)
        single = _run(signature, traced, flat, ctx, train, exact)
    differences = {}
    for (name, a), (_, b) in zip(placed, single):
        a, b = a.asnumpy(), b.asnumpy()
        difference = float(np.abs(a.astype(np.float64) - b).max()) if a.size else 0.0
        allowed = 0.0 if rtol is None else rtol * float(np.abs(b).max(initial=0.0))
        same = np.array_equal(a, b, equal_nan=True) if rtol is None else difference <= allowed
        if not same:
            raise MXNetError(
                f"check_against_single_device: {name} differs from the result of one device "
                f"({ctx}) by up to {difference:.3g}"
                + ("" if rtol is None else f", where {allowed:.3g} is allowed")
            )
        differences[name] = difference if same and difference == difference else 0.0
    return differences


@contextmanager
def _called(net, inputs):
    """Enters the replica and group of a block, as a call of the block does."""
    with grouped.replica(net, inputs, False), grouped.group(net, False):
        yield


def _run(signature, traced, flat, ctx, train, exact):
    """Returns results and gradients of one run on copies of all arrays, on device `ctx` or, with
    None, on their current devices."""

    def trace(*arrays):
        if ctx is not None:
            _core.trace_on(ctx)
        return traced(*arrays)

    arrays = [a.copyto(ctx or a.context) for a in flat]
    params = []
    for param, place in signature.used:
        copy = param.arrays[place].copyto(ctx or place)
        if param.grad_req != "null":
            copy.attach_grad()
        params.append(copy)
    with autograd.record(train_mode=train):
        outputs = _core.CachedOp(trace, {"exact": exact})(*arrays, *params)
    autograd.backward(outputs, [nd.ones_like(out) for out in outputs])
    named = [(f"output {i}", out) for i, out in enumerate(outputs)]
    for (param, place), copy in zip(signature.used, params):
        if copy.grad is not None:
            replicas = sum(other is param for other, _ in signature.used)
            named.append(
                (
                    f"the gradient of {param.name}" + (f" on {place}" if replicas > 1 else ""),
                    copy.grad,
                )
            )
    return named
