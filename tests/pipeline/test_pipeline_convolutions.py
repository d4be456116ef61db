"""Pipelines of Winograd convolutions have the bits of their separate micro-batches."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline
from support.compare import same_bits
from support.devices import cpus_only, on
from support.pipelines import Chain

pytestmark = cpus_only
CHANNELS = 32


def convolutions(i, count=2):
    part = nn.HybridSequential()
    for _ in range(count):
        part.add(nn.Conv2D(CHANNELS, 3, padding=1, in_channels=CHANNELS, activation="relu"))
    return part


def data(rows=8, size=16, seed=0):
    return nd.array(
        np.random.RandomState(seed).uniform(-1, 1, (rows, CHANNELS, size, size)), ctx=on(0)
    )


def chain(devices=(0, 1), make=convolutions, **options):
    net = Chain(list(devices), make)
    net.hybridize(**options)
    return net


def grads(net):
    return [
        p.grad(p.list_ctx()[0]).asnumpy()
        for p in net.collect_params().values()
        if p.grad_req != "null"
    ]


def step(net, x):
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    return [loss.asnumpy(), *grads(net)]


def accumulate(net, x, count):
    """Runs the micro-batches one after the other, each in a separate call."""
    pieces = np.array_split(np.arange(x.shape[0]), count)
    for params in net.collect_params().values():
        params.grad_req = "add"
    net.collect_params().zero_grad()
    outputs = []
    for rows in pieces:
        piece = x[int(rows[0]) : int(rows[-1]) + 1]
        with autograd.record():
            out = net(piece)
        outputs.append(out)
        out.backward(2 * out)
    return outputs, grads(net)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble"])
@pytest.mark.parametrize("rows", [8, 10])  # 10 rows give micro-batches of two sizes
def test_convolutions_have_the_bits_of_separate_micro_batches(schedule, rows):
    x = data(rows)
    net = chain(pipeline=Pipeline(4, schedule=schedule))
    other = chain()
    for a, b in zip(net.collect_params().values(), other.collect_params().values()):
        same_bits([a.data(a.list_ctx()[0]).asnumpy()], [b.data(b.list_ctx()[0]).asnumpy()])
    sizes = np.array_split(np.arange(rows), 4)
    outputs, wanted = accumulate(other, x, len(sizes))
    for _ in range(2):
        with autograd.record():
            out = net(x)
        out.backward(2 * out)
        same_bits([out.asnumpy()], [np.concatenate([o.asnumpy() for o in outputs])])
        same_bits(grads(net), wanted)


def test_updated_weights_are_used_by_the_next_step():
    x = data()
    net, other = chain(pipeline=Pipeline(4)), chain(pipeline=Pipeline(4))
    step(net, x)
    for params in (net.collect_params(), other.collect_params()):
        for p in params.values():
            p.set_data(p.data(p.list_ctx()[0]) * 0.5)
    same_bits(step(net, x), step(other, x))


@pytest.mark.parametrize("exact", [True, False])
def test_convolutions_are_near_eager_with_and_without_exact(exact):
    x = data()
    net = chain(pipeline=Pipeline(4), exact=exact)
    found = step(net, x)
    eager = Chain([0, 1], convolutions)
    wanted = step(eager, x)
    for a, b in zip(found[1:], wanted[1:]):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


def test_convolutions_with_a_tied_weight_keep_the_bits():
    x = data()

    def tied(i):
        part = convolutions(i, 1)
        part.add(nn.Conv2D(CHANNELS, 3, padding=1, in_channels=CHANNELS, params=part[0].params))
        return part

    net, other = chain(pipeline=Pipeline(4), make=tied), chain(make=tied)
    with autograd.record():
        out = net(x)
    out.backward(2 * out)
    _, wanted = accumulate(other, x, 4)
    for a, b in zip(grads(net), wanted):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_convolutions_have_the_same_bits_in_any_engine_order(seed):
    x = data()
    net = chain(pipeline=Pipeline(4))
    wanted = step(net, x)
    mx.engine.set_mode("shuffle", seed)
    try:
        for _ in range(2):
            same_bits(step(net, x), wanted)
    finally:
        mx.engine.set_mode("async")
