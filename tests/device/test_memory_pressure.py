"""Caches give memory back before a device is out of memory."""

import itertools

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.context import memory_stats, set_memory_limit
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep

MIB = 1 << 20


numbers = itertools.count(94)


@pytest.fixture
def ctx():
    """A device without the peaks and caches of other tests."""
    device = mx.cpu(next(numbers))
    yield device
    set_memory_limit(device, None)


def used(ctx):
    nd.waitall()
    return memory_stats(ctx)["in_use"]


def chain(ctx, layers, units):
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(nn.Dense(units, in_units=units))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize()
    return net


def packed_bytes(net, x, ctx):
    """Returns the bytes that remain in use after a prediction."""
    before = used(ctx)
    net(x).wait_to_read()
    return used(ctx) - before


def test_packed_weights_of_other_networks_are_released(ctx):
    x = nd.random.normal(shape=(64, 512), ctx=ctx)
    nets = [chain(ctx, 1, 512) for _ in range(3)]
    expected = [net(x).asnumpy() for net in nets]
    free = used(ctx)
    set_memory_limit(ctx, free + MIB // 4)
    large = nd.ones((MIB // 2,), ctx=ctx)  # 2 MiB fit only without the three packed weights
    assert used(ctx) < free + 2 * MIB
    for net, wanted in zip(nets, expected):
        np.testing.assert_array_equal(net(x).asnumpy(), wanted)
    assert large[0].asscalar() == 1


def test_call_whose_packed_weights_do_not_fit_packs_them_one_at_a_time(ctx):
    net, x = chain(ctx, 4, 512), nd.random.normal(shape=(64, 512), ctx=ctx)
    before = used(ctx)
    kept = packed_bytes(net, x, ctx)
    assert kept >= 4 * MIB
    expected = net(x).asnumpy()
    set_memory_limit(ctx, before + 3 * kept // 4)
    for _ in range(2):
        np.testing.assert_array_equal(net(x).asnumpy(), expected)
    other = nd.random.normal(shape=(8, 512), ctx=ctx)
    net(other).wait_to_read()  # a new shape
    net[0].weight.set_data(net[0].weight.data() * 2)
    changed = net(x).asnumpy()
    assert not np.array_equal(changed, expected)
    set_memory_limit(ctx, None)
    fresh = chain(ctx, 4, 512)
    for one, two in zip(fresh.collect_params().values(), net.collect_params().values()):
        one.set_data(two.data())
    np.testing.assert_array_equal(fresh(x).asnumpy(), changed)


def test_call_without_enough_memory_still_raises_and_later_calls_work(ctx):
    net, x = chain(ctx, 2, 512), nd.ones((64, 512), ctx=ctx)
    expected = net(x).asnumpy()
    set_memory_limit(ctx, used(ctx) + MIB // 4)
    with pytest.raises(MemoryError, match="is out of memory: asked for"):
        net(nd.ones((4096, 512), ctx=ctx))
    np.testing.assert_array_equal(net(x).asnumpy(), expected)


def test_call_that_ran_out_of_memory_keeps_packed_weights_later(ctx):
    net, x = chain(ctx, 2, 512), nd.ones((64, 512), ctx=ctx)
    set_memory_limit(ctx, used(ctx) + MIB // 16)
    with pytest.raises(MemoryError, match="is out of memory: asked for"):
        net(x)
    set_memory_limit(ctx, None)
    assert packed_bytes(net, x, ctx) >= 2 * MIB


@pytest.mark.parametrize("way", ["step", "auto", "loop"])
def test_pipeline_releases_packed_weights_before_it_checks_the_limit(ctx, way):
    net, other = chain(ctx, 3, 128), chain(ctx, 2, 512)
    x = nd.ones((1024, 128), ctx=ctx)
    pipeline = Pipeline(4, "auto" if way == "auto" else "1f1b")
    step = TrainStep(net, gluon.loss.L2Loss(), None, pipeline)
    if way == "loop":
        net.hybridize(pipeline=pipeline)

    def train():
        if way != "loop":
            return step(x, x)
        with autograd.record():
            out = net(x)
        out.backward()
        return out

    for _ in range(3):
        expected = train().asnumpy()
    row = nd.ones((64, 512), ctx=ctx)
    before = used(ctx)
    kept = packed_bytes(other, row, ctx)
    needed = memory_stats(ctx)["peak_in_use"] - before
    set_memory_limit(ctx, max(before + kept, before + needed) + MIB // 8)
    for _ in range(3):
        other(row).wait_to_read()
        np.testing.assert_array_equal(train().asnumpy(), expected)


def test_memory_of_many_shapes_is_available_to_other_sizes(ctx):
    net = chain(ctx, 2, 128)

    def train(rows):
        with autograd.record():
            loss = net(nd.ones((rows, 128), ctx=ctx)).sum()
        loss.backward()
        nd.waitall()

    train(2000)
    most = memory_stats(ctx)["peak_in_use"]
    set_memory_limit(ctx, most + MIB)
    for rows in (*range(100, 2000, 190), 2000):
        train(rows)
        net(nd.ones((rows, 128), ctx=ctx)).wait_to_read()
    train(2000)
    assert memory_stats(ctx)["held"] <= most + MIB
    with pytest.raises(MemoryError):
        train(8000)
    train(2000)


def test_caches_of_finished_generations_are_released(ctx):
    config = {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    }
    net = gluon.model_zoo.text.from_config(config)
    net.initialize(mx.init.Xavier(), ctx=ctx)

    def generate(count):
        return gluon.model_zoo.text.generate(net, [list(range(5))] * 4, max_new=count)

    short = generate(4)
    before = used(ctx)
    assert generate(4) == short
    assert used(ctx) == before
    generate(500)
    set_memory_limit(ctx, memory_stats(ctx)["peak_in_use"] + MIB // 8)
    for count in (500, 120, 500, 250, 500):
        generate(count)
    assert generate(4) == short
