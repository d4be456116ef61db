"""Arrays of any origin and number that a pipelined block captures: inputs of the compiled
micro-batches that the caller does not pass."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep, schedules
from support.pipelines import DEVICES, data, equal, gradients, loss_of

WIDTH = 4
SHARED = nd.array([[0.5, 1.0, 1.5, 0.25]])


def values(i):
    return np.random.RandomState(i).uniform(0.8, 1.2, (1, WIDTH)).astype("float32")


class Scale(gluon.HybridBlock):
    """Moves its input to a device, then multiplies it by a captured array."""

    def __init__(self, i, ctx):
        super().__init__()
        self.i, self.ctx = i, ctx
        self.make()

    def make(self):
        pass

    def hybrid_forward(self, F, x, **parameters):
        x = x.as_in_context(self.ctx)
        return F.broadcast_mul(x, self.table(x, **parameters))


class Attribute(Scale):
    def make(self):
        self.array = nd.array(values(self.i), ctx=self.ctx)

    def table(self, x):
        return self.array


class Elsewhere(Scale):
    """Its array is on the first device, independent of the block's device."""

    def make(self):
        self.array = nd.array(values(self.i), ctx=DEVICES[0])

    def table(self, x):
        return self.array.as_in_context(x.context)


class Shared(Scale):
    def table(self, x):
        return SHARED.as_in_context(x.context)


class NumPy(Scale):
    def make(self):
        self.array = values(self.i)

    def table(self, x):
        return nd.array(self.array, ctx=x.context)


class InTheBlock(Scale):
    def table(self, x):
        return nd.array([[1.0, 0.5, 1.0 + self.i % 7 / 8, 0.75]], ctx=x.context)


class View(Scale):
    def make(self):
        self.array = nd.array(np.repeat(values(self.i), 3, axis=0), ctx=self.ctx)

    def table(self, x):
        return self.array[1:2]


class Constant(Scale):
    def make(self):
        self.array = self.params.get_constant("array", values(self.i))

    def table(self, x, array):
        return array


class Frozen(Scale):
    """An array with a gradient buffer that is not recorded."""

    def make(self):
        self.array = nd.array(values(self.i), ctx=self.ctx)
        self.array.attach_grad()

    def table(self, x):
        return self.array.detach()


ORIGINS = (Attribute, Elsewhere, Shared, NumPy, InTheBlock, View, Constant, Frozen)


def network(count, devices, origins=ORIGINS):
    """Returns a network that captures `count` arrays, distributed evenly over the devices."""
    net = nn.HybridSequential()
    for d, device in enumerate(devices):
        ctx = DEVICES[device]
        begin, end = count * d // len(devices), count * (d + 1) // len(devices)
        part = [origins[i % len(origins)](i, ctx) for i in range(begin, end)]
        part.append(nn.Dense(WIDTH, in_units=WIDTH, activation="tanh"))
        mx.random.seed(d)
        for block in part:
            block.initialize(mx.init.Xavier(), ctx=ctx)
        net.add(*part)
    return net


def by_hand(net):
    """Returns losses and gradients of successive micro-batches, without a pipeline."""
    for param in net.collect_params().values():
        if param.grad_req != "null":
            param.grad_req = "add"
    losses = []
    for begin, end in ((0, 3), (3, 6), (6, 8), (8, 10)):
        with autograd.record():
            loss = loss_of(net(data((10, WIDTH))[begin:end]))
        loss.backward()
        losses.append(loss.asnumpy())
    return np.concatenate(losses), gradients(net)


def ordinary_loop(net, pipeline):
    net.hybridize(exact=True, pipeline=pipeline)
    for _ in range(2):
        with autograd.record():
            loss = loss_of(net(data((10, WIDTH))))
        loss.backward()
    return loss.asnumpy(), gradients(net)


def train_step(net, pipeline):
    step = TrainStep(net, loss_of, None, pipeline, exact=True)
    for _ in range(2):
        loss = step(data((10, WIDTH)), [])
    return loss.asnumpy(), gradients(net)


@pytest.mark.parametrize(
    "count, names",
    [
        (1, schedules.NAMES),
        (2, schedules.NAMES),
        (3, schedules.NAMES),
        (20, ["1f1b"]),
        pytest.param(20, schedules.NAMES, marks=pytest.mark.slow),
        pytest.param(300, ["1f1b"], marks=pytest.mark.slow),
    ],
)
def test_captured_arrays_keep_the_bits_of_one_device(count, names):
    losses, expected = by_hand(network(count, [0, 0]))
    for devices in ([0, 0], [0, 1]):
        for way, name in [(ordinary_loop, "1f1b"), *((train_step, name) for name in names)]:
            loss, grads = way(network(count, devices), Pipeline(4, name))
            assert np.array_equal(loss, losses), (way, name, devices)
            assert equal(grads, expected), (way, name, devices)


def test_many_captured_arrays_keep_the_bits_of_one_device():
    losses, expected = by_hand(network(150, [0, 0], [Attribute]))
    loss, grads = train_step(network(150, [0, 1], [Attribute]), Pipeline(4))
    assert np.array_equal(loss, losses)
    assert equal(grads, expected)


@pytest.mark.parametrize("origin", ORIGINS)
def test_captured_arrays_of_each_origin_keep_the_bits_of_one_device(origin):
    losses, expected = by_hand(network(3, [0, 0], [origin]))
    for way in (ordinary_loop, train_step):
        loss, grads = way(network(3, [0, 1], [origin]), Pipeline(4))
        assert np.array_equal(loss, losses)
        assert equal(grads, expected)


@pytest.mark.parametrize("count", [2, 20])
def test_captured_arrays_with_a_gradient_raise(count):
    class Wanted(Frozen):
        def table(self, x):
            return self.array

    for way in (ordinary_loop, train_step):
        with pytest.raises(mx.MXNetError, match="neither an input nor a parameter; pass it as"):
            way(network(count, [0, 1], [Attribute, Wanted]), Pipeline(4))


KEPT = nd.ones((1, WIDTH))


def kept_in_places():
    """Yields (block that uses a captured array, the array, the text of its place)."""
    inner = nd.ones((1, WIDTH))

    def default(F, x, table=nd.ones((1, WIDTH))):
        return F.broadcast_mul(x, table)

    class Kept(gluon.HybridBlock):
        table = nd.ones((1, WIDTH))

        def __init__(self):
            super().__init__(prefix="kept_")
            self.tables = {"first": [nd.ones((1, WIDTH))]}

        def hybrid_forward(self, F, x):
            return F.broadcast_mul(x, self.find())

    for array, text, find in (
        (Kept.table, "self.table of Kept 'kept'", lambda self: self.table),
        (None, "self.tables['first'][0] of Kept 'kept'", lambda self: self.tables["first"][0]),
        (KEPT, "KEPT of Kept 'kept'", lambda self: KEPT),
        (inner, "inner of Kept 'kept'", lambda self: inner),
    ):
        block = type("Kept", (Kept,), {"find": find})()
        yield block, find(block) if array is None else array, text
    block = gluon.nn.HybridLambda(default, prefix="layer_")
    yield block, default.__defaults__[0], "self._func.__defaults__[0] of HybridLambda 'layer'"


def test_captured_array_with_a_gradient_is_named():
    for block, array, text in kept_in_places():
        array.attach_grad()
        for net in (block, nn.HybridSequential()):
            if net is not block:
                net.add(block)
            net.hybridize(pipeline=Pipeline(2))
            net(nd.ones((4, WIDTH)))
            with autograd.record(), pytest.raises(mx.MXNetError) as caught:
                net(nd.ones((4, WIDTH)))
            assert f": {text} has a gradient, but is neither an input" in str(caught.value)
