"""Prediction with many input shapes: shared packed weights and a warning for recompilation.

All shapes share one packed copy of each weight. It is released before a device runs out of memory.
"""

import gc
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from programs.random_blocks import check_many
from programs.random_shapes import Case
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


def test_all_shapes_share_one_packed_copy_of_each_weight():
    ctx = on(2)
    net, rows = network(ctx), [*range(1, 41), *range(1, 41)]
    expected = results(net, ctx, rows)
    net.hybridize()
    gc.collect()
    before = mx.context.memory_stats(ctx)["in_use"]
    found = results(net, ctx, rows)
    gc.collect()
    assert mx.context.memory_stats(ctx)["in_use"] - before < 1.5 * WEIGHTS
    for a, b in zip(expected, found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_two_networks_share_the_packed_weights_of_common_parameters():
    ctx = on(2)
    nets = [network(ctx)]
    nets.append(nn.HybridSequential(params=nets[0].params))
    nets[1].add(*nets[0])
    x = nd.ones((8, UNITS), ctx=ctx)
    expected = nets[0](x).asnumpy()
    gc.collect()
    before = mx.context.memory_stats(ctx)["in_use"]
    for net in nets:
        net.hybridize()
        np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-4, atol=1e-6)
    gc.collect()
    assert mx.context.memory_stats(ctx)["in_use"] - before < 1.5 * WEIGHTS


@pytest.mark.parametrize("cases", [[(5, 7), (9, 3)], [(1, 2, 3)] * 2])
def test_shared_values_follow_parameter_writes_of_every_signature(cases):
    """Writes between calls of alternating signatures. Each call reads the current parameters."""
    ctx = on(2)
    net, eager = network(ctx), network(ctx)
    net.hybridize()
    parameters = list(zip(net.collect_params().values(), eager.collect_params().values()))
    for step, rows in enumerate(n for sizes in cases for n in (*sizes, *sizes)):
        if step % 3 != 1:
            for param, other in parameters[step % 2 :: 2]:
                param.set_data(param.data() * 0.9 + 0.001 * step)
        for param, other in parameters:
            other.set_data(param.data())
        x = nd.random.uniform(shape=(rows, UNITS), ctx=ctx)
        np.testing.assert_allclose(
            net(x).asnumpy(), eager(x).asnumpy(), rtol=1e-4, atol=1e-5, err_msg=str((step, rows))
        )


class Tables(gluon.HybridBlock):
    """Adds to a projection a table of the parameters' exponentials, cut to the length of x. The
    cut depends on the shape, and the exponentials do not."""

    def __init__(self):
        super().__init__()
        self.table = self.params.get("table", shape=(64, UNITS), init=mx.init.Uniform(1))
        self.project = nn.Dense(UNITS, in_units=UNITS, flatten=False)

    def hybrid_forward(self, F, x, table):
        return self.project(x) + F.slice_like(F.exp(table) * 0.1, x, axes=(0,))


def test_signatures_compute_only_the_values_that_others_do_not_share():
    ctx = on(2)
    net = Tables()
    net.initialize(mx.init.Xavier(), ctx=ctx)
    lengths = [3, 8, 5, 3, 8, 64, 20, 33, 3]
    expected = results(net, ctx, lengths)
    net.hybridize()
    for a, b in zip(expected, results(net, ctx, lengths)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    net.table.set_data(nd.zeros((64, UNITS), ctx=ctx))
    found = results(net, ctx, lengths)
    net.hybridize(False)
    for a, b in zip(results(net, ctx, lengths), found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_convolutions_of_all_batch_sizes_share_one_packed_copy():
    ctx = on(2)
    net = nn.HybridSequential()
    net.add(*[nn.Conv2D(128, 3, padding=1, in_channels=128, strides=2) for _ in range(2)])
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.collect_params().setattr("grad_req", "null")
    data = [nd.random.uniform(shape=(n, 128, 14, 14), ctx=ctx) for n in range(1, 9)]
    expected = [net(x).asnumpy() for x in data]
    net.hybridize()
    gc.collect()
    before = mx.context.memory_stats(ctx)["in_use"]
    found = [net(x).asnumpy() for x in data]
    gc.collect()
    assert mx.context.memory_stats(ctx)["in_use"] - before < 1.5 * 2 * 128 * 128 * 9 * 4
    for a, b in zip(expected, found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


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


class Growing(gluon.HybridBlock):
    """Appends a token to the first of two states."""

    def hybrid_forward(self, F, token, states):
        keys = F.concat(states[0], token, dim=1)
        return keys.sum(axis=1), [keys, states[1] + 1]


def warnings_of(calls):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for call in calls:
            call()
    return [str(warning.message) for warning in seen]


def dense():
    net = nn.Dense(2, in_units=2)
    net.initialize()
    net.hybridize()
    return net


def test_repeated_recompilation_warns_once_and_names_the_axis():
    net = dense()
    (seen,) = warnings_of([lambda n=n: net(nd.ones((n, 2))) for n in range(1, 80)])
    assert seen.startswith("Dense: ")
    assert "axis 0 of input 'x' was" in seen and "Pad them to a few sizes" in seen
    assert "axis 1" not in seen


def test_interrupt_while_the_recompilation_warning_is_written_is_raised(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mpgluon.gluon._compiled.call.input_names", interrupted)
    net = dense()
    with pytest.raises(KeyboardInterrupt):
        for n in range(1, 80):
            net(nd.ones((n, 2)))
    assert net(nd.ones((1, 2))).shape == (1, 2)


def test_recompilation_warning_without_input_names_numbers_them(monkeypatch):
    def failing(*_):
        raise ValueError

    monkeypatch.setattr("mpgluon.gluon._compiled.call.input_names", failing)
    net = dense()
    (seen,) = warnings_of([lambda n=n: net(nd.ones((n, 2))) for n in range(1, 80)])
    assert "axis 0 of input 0 was" in seen


def test_recompilation_warning_names_a_growing_state():
    net, states = Growing(), [nd.zeros((1, 3, 4)), nd.zeros((1,))]
    net.hybridize()

    def step():
        nonlocal states
        _, states = net(nd.ones((1, 1, 4)), states)

    (seen,) = warnings_of([step] * 80)
    assert "axis 1 of input 'states[0]' was" in seen and "a cache of fixed size" in seen


@pytest.mark.parametrize("sizes", [[1, 2, 3, 4] * 40, [*range(1, 16)] * 8])
def test_recurring_shapes_do_not_warn(sizes):
    net = dense()
    assert not warnings_of([lambda n=n: net(nd.ones((n, 2))) for n in sizes])


def test_rare_new_shapes_among_many_calls_do_not_warn():
    net = dense()
    sizes = [size for n in range(1, 41) for size in (n, 1, 1, 1)]
    assert not warnings_of([lambda n=n: net(nd.ones((n, 2))) for n in sizes])


def test_dropped_signatures_warn_even_if_compilation_takes_little_time():
    net = dense()
    sizes = [size for n in range(1, 71) for size in (n, 1, 1, 1)]
    (seen,) = warnings_of([lambda n=n: net(nd.ones((n, 2))) for n in sizes])
    assert "more than 64 signatures" in seen and "axis 0 of input 'x' was" in seen


def test_random_networks_of_shared_weights_match_fresh_copies():
    """Shared packed weights and other kept values, with fresh seeds; `random_shapes.py` repeats a
    seed or runs thousands."""
    check_many(Case, 5, "random_shapes.py")


@pytest.mark.slow
def test_many_random_networks_of_shared_weights_match_fresh_copies():
    check_many(Case, 100, "random_shapes.py")
