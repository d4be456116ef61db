"""Prediction with many input shapes: bounded packed weights and a warning for recompilation.

Packed weights do not accumulate and are released before a device runs out of memory.
"""

import gc
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon import nn
from support.devices import on

UNITS = 256
WEIGHTS = 4 * UNITS * UNITS * 4  # bytes


def network(ctx):
    net = nn.HybridSequential()
    net.add(*[nn.Dense(UNITS, in_units=UNITS, activation="tanh") for _ in range(4)])
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.collect_params().setattr("grad_req", "null")
    return net


def results(net, ctx, rows):
    return [net(nd.ones((n, UNITS), ctx=ctx) / n).asnumpy() for n in rows]


def test_packed_weights_of_many_shapes_do_not_accumulate():
    ctx = on(2)
    net, rows = network(ctx), [*range(1, 21), *range(1, 21)]
    expected = results(net, ctx, rows)
    net.hybridize()
    gc.collect()
    before = mx.context.memory_stats(ctx)["in_use"]
    found = results(net, ctx, rows)
    gc.collect()
    assert mx.context.memory_stats(ctx)["in_use"] - before < 5.5 * WEIGHTS
    for a, b in zip(expected, found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_packed_weights_are_released_before_memory_runs_out():
    ctx = on(3)
    net = network(ctx)
    expected = results(net, ctx, range(1, 9))
    net.hybridize()
    gc.collect()
    stats = mx.context.memory_stats(ctx)
    former = stats["limit"]
    mx.context.set_memory_limit(ctx, stats["in_use"] + int(2.5 * WEIGHTS))
    try:
        found = results(net, ctx, range(1, 9))
    finally:
        mx.context.set_memory_limit(ctx, former)
    for a, b in zip(expected, found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_repeated_recompilation_warns_once():
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2))
    net.initialize()
    net.hybridize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 65):
            net(nd.ones((n, 2)))
    with pytest.warns(UserWarning, match="HybridSequential: more than 64 signatures") as seen:
        for n in range(65, 68):
            net(nd.ones((n, 2)))
    assert len(seen) == 1 and "pad it to a few sizes" in str(seen[0].message)
