"""Batch statistics in pipelines: per micro-batch, and running averages."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep, schedules
from support.pipelines import DEVICES, Chain, data, equal, gradients, loss_of


def test_batch_norm_uses_micro_batch_statistics():
    def make(devices):
        net = Chain(devices, lambda i: nn.BatchNorm(in_channels=16, momentum=0.7))
        return net

    x, net, one = data((12, 16)), make([0, 1]), make([0, 0])
    TrainStep(net, loss_of, None, Pipeline(3), exact=True)(x, [])
    for begin in (0, 4, 8):
        with autograd.record():
            one(x[begin : begin + 4])
    params = zip(net.collect_params().values(), one.collect_params().values())
    for mine, its in params:
        assert np.array_equal(mine.data().asnumpy(), its.data().asnumpy()), mine.name
    with pytest.raises(ValueError, match="statistics must be"):
        Pipeline(3, statistics="all")


class Normalised(gluon.HybridBlock):
    """Dense layers and BatchNorms on devices; the last two share their running averages."""

    def __init__(self, devices, recompute=False):
        super().__init__()
        self.devices = [DEVICES[d] for d in devices]
        mx.random.seed(3)
        with self.name_scope():
            self.dense, self.norm = (
                nn.Dense(6, in_units=6, flatten=False),
                nn.BatchNorm(in_channels=6, momentum=0.8, axis=-1),
            )
            self.other, self.last = (
                nn.Dense(6, in_units=6, flatten=False),
                nn.BatchNormReLU(in_channels=6, momentum=0.7, axis=-1),
            )
        for child, ctx in zip(
            self._children.values(),
            [ctx for ctx in self.devices for _ in range(4 // len(self.devices))],
        ):
            child.initialize(mx.init.Xavier(), ctx=ctx)
        if recompute:
            self.norm.hybridize(recompute=True)

    def hybrid_forward(self, F, x):
        x = self.norm(self.dense(x))
        x = self.last(self.other(x.as_in_context(self.devices[-1])))
        return self.last(x + 1)


def by_hand(net, pieces):
    """Returns running averages after one update with the statistics of the whole batch, in double
    precision. Each piece is normalized by its own statistics."""

    def normalise(parts, layer):
        return [
            (p - p.mean(axis=axes)) / np.sqrt(p.var(axis=axes) + 1e-5)
            for p in parts
            for axes in [tuple(range(p.ndim - 1))]
        ]

    def update(parts, layer, averages):
        whole = np.concatenate([p.reshape(-1, p.shape[-1]) for p in parts])
        momentum = layer._kwargs["momentum"]
        return [
            momentum * a + (1 - momentum) * s
            for a, s in zip(averages, (whole.mean(axis=0), whole.var(axis=0)))
        ]

    def dense(parts, layer):
        return [
            p @ layer.weight.data().asnumpy().astype("float64").T + layer.bias.data().asnumpy()
            for p in parts
        ]

    first = second = (np.zeros(6), np.ones(6))
    parts = dense([p.astype("float64") for p in pieces], net.dense)
    first = update(parts, net.norm, first)
    parts = dense(normalise(parts, net.norm), net.other)
    second = update(parts, net.last, second)
    parts = [np.maximum(p, 0) + 1 for p in normalise(parts, net.last)]
    second = update(parts, net.last, second)
    return [*first, *second]


def averages(net):
    return [
        a.data().asnumpy()
        for layer in (net.norm, net.last)
        for a in (layer.running_mean, layer.running_var)
    ]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("shape, axis", [((11, 6), 0), ((11, 3, 6), 0), ((3, 11, 6), 1)])
def test_batch_statistics_update_running_averages_once(shape, axis, recompute):
    """statistics='batch' makes one update with mean and variance over all micro-batches, here of 4,
    4 and 3 rows."""
    x = data(shape)
    x[:] = x * 3 + 5
    pieces = [np.take(x.asnumpy(), range(b, e), axis=axis) for b, e in ((0, 4), (4, 8), (8, 11))]
    results = []
    for devices in ([0], [0, 1], [1, 0]):
        for way in ("loop", *schedules.NAMES):
            net = Normalised(devices, recompute)
            pipeline = Pipeline(3, "1f1b" if way == "loop" else way, axis=axis, statistics="batch")
            x = x.as_in_context(net.devices[0])
            if way == "loop":
                net.hybridize(exact=True, pipeline=pipeline)
                with autograd.record():
                    loss = net(x).mean(axis=-1)
                loss.backward()
            else:
                loss = TrainStep(net, lambda out: out.mean(axis=-1), None, pipeline, exact=True)(
                    x, []
                )
            for got, expected in zip(averages(net), by_hand(net, pieces)):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
            results.append((loss.asnumpy(), gradients(net), averages(net)))
    plain = Normalised([0])
    TrainStep(plain, lambda out: out.mean(axis=-1), None, Pipeline(3, axis=axis), exact=True)(
        x.as_in_context(DEVICES[0]), []
    )
    # Updated once per micro-batch
    assert not np.allclose(plain.last.running_var.data().asnumpy(), results[0][2][3], rtol=1e-3)
    for got in results:
        assert np.array_equal(got[0], results[0][0]) and equal(got[1], gradients(plain))
        assert all(np.array_equal(a, b) for a, b in zip(got[2], results[0][2]))


def test_running_averages_accumulate_over_steps_and_predict():
    net = Normalised([0, 1])
    train = TrainStep(
        net,
        lambda out: out.mean(axis=-1),
        gluon.Trainer(net.collect_params(), "sgd"),
        Pipeline(3, statistics="batch"),
    )
    expected = [np.zeros(6), np.ones(6)]
    for seed in range(4):
        x = data((8 + seed, 6), seed)
        hidden = net.dense(x).asnumpy().astype("float64")
        for k, statistic in enumerate((hidden.mean(axis=0), hidden.var(axis=0))):
            expected[k] = 0.8 * expected[k] + 0.2 * statistic
        train(x, [])
    for got, wanted in zip(averages(net), expected):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    before = averages(net)
    whole = net(data((7, 6))).asnumpy()
    net.hybridize(exact=True, pipeline=Pipeline(3, statistics="batch"))
    assert np.array_equal(net(data((7, 6))).asnumpy(), whole)
    with autograd.record(train_mode=False):
        net(data((7, 6)))
    assert all(np.array_equal(a, b) for a, b in zip(before, averages(net)))


def test_one_micro_batch_equals_the_whole_batch():
    results = []
    for pipeline in (None, Pipeline(1, statistics="batch")):
        net = Normalised([0, 1])
        net.hybridize(exact=True, pipeline=pipeline)
        with autograd.record():
            net(data((7, 6)))
        results.append(averages(net))
    assert all(np.array_equal(a, b) for a, b in zip(*results))


def test_rewritten_convolutions_keep_batch_statistics():
    """Rewriting moves channels last and fuses BatchNorm with relu, which hides its statistics."""

    def run(exact, pipeline):
        net = Chain([0, 1], lambda i: nn.HybridSequential())
        mx.random.seed(3)
        for part, ctx in zip(net.parts, net.devices):
            part.add(
                nn.Conv2D(4, 3, in_channels=4), nn.BatchNorm(in_channels=4), nn.Activation("relu")
            )
            part.initialize(mx.init.Xavier(), ctx=ctx)
        TrainStep(net, loss_of, None, pipeline, exact=exact)(data((7, 4, 9, 9)), [])
        norms = [part[1] for part in net.parts]
        return [
            a.data().asnumpy() for norm in norms for a in (norm.running_mean, norm.running_var)
        ], gradients(net)

    expected, grads = run(True, Pipeline(3, statistics="batch"))
    got, other = run(False, Pipeline(3, "zero_bubble", statistics="batch"))
    assert all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(expected, got))
    assert all(
        np.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(grads.values(), other.values())
    )
    assert not np.allclose(expected[1], run(True, Pipeline(3))[0][1], rtol=1e-3)


def test_replicas_keep_their_own_statistics():
    """Each replica uses the statistics of its part of the batch."""
    net = nn.HybridSequential()
    net.add(nn.Dense(6, in_units=6), nn.BatchNorm(in_channels=6, momentum=0.5))
    mesh = mx.parallel.Mesh({"data": 2}, devices=[DEVICES[0], DEVICES[1]])
    net.place(mesh)
    net.initialize(mx.init.Xavier())
    x = data((12, 6))
    hidden = [
        net[0](x[b:e].as_in_context(ctx)).asnumpy()
        for (b, e), ctx in zip(((0, 6), (6, 12)), mesh.devices)
    ]
    TrainStep(
        net, loss_of, gluon.Trainer(net.collect_params(), "sgd"), Pipeline(3, statistics="batch")
    )(x, [])
    for half, ctx in zip(hidden, mesh.devices):
        np.testing.assert_allclose(
            net[1].running_mean.data(ctx).asnumpy(), 0.5 * half.mean(axis=0), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(
            net[1].running_var.data(ctx).asnumpy(),
            0.5 + 0.5 * half.var(axis=0),
            rtol=1e-5,
            atol=1e-6,
        )


def test_batch_norm_op_rejects_batch_statistics():
    class Raw(Normalised):
        def hybrid_forward(self, F, x):
            return F.BatchNorm(
                self.dense(x),
                *[
                    p.data()
                    for p in (
                        self.norm.gamma,
                        self.norm.beta,
                        self.norm.running_mean,
                        self.norm.running_var,
                    )
                ],
                axis=-1,
            )

    net = Raw([0])
    net.hybridize(pipeline=Pipeline(3, statistics="batch"))
    with (
        autograd.record(),
        pytest.raises(
            mx.MXNetError,
            match="BatchNorm in block .* statistics='batch' requires gluon.nn.BatchNorm",
        ),
    ):
        net(data((7, 6)))
