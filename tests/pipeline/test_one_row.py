"""Micro-batches of one row, in which any axis of size 1 could be the batch axis."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.parallel import Pipeline

TIME, WIDTH = 5, 3
BODIES = {
    "mask of time-major data": lambda F, x, n: F.SequenceMask(
        x.swapaxes(0, 1), n, use_sequence_length=True
    ).swapaxes(0, 1),
    "mask of one feature": lambda F, x, n: F.SequenceMask(
        F.slice_axis(x, axis=2, begin=0, end=1).swapaxes(0, 1), n, use_sequence_length=True
    ).swapaxes(0, 1),
    "row of lengths": lambda F, x, n: F.broadcast_mul(
        x,
        F.broadcast_lesser(F.arange(0, TIME).reshape((TIME, 1)), n.reshape((1, -1)))
        .transpose()
        .expand_dims(2),
    ),
    "last axis": lambda F, x, n: F.broadcast_mul(
        x.transpose((1, 2, 0)), n.reshape((1, 1, -1))
    ).transpose((2, 0, 1)),
    "to a row and back": lambda F, x, n: F.broadcast_add(
        F.slice_axis(x, axis=1, begin=0, end=1).reshape((0, -1)),
        (n.reshape((1, -1)) * 2).reshape((-1, 1)),
    ),
    "heads to the batch": lambda F, x, n: F.broadcast_mul(
        F.softmax(x.transpose((0, 2, 1)).reshape((-3, 0)), axis=1).reshape((-4, -1, WIDTH, TIME)),
        n.reshape((-1, 1, 1)),
    ),
}


class Net(gluon.HybridBlock):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def hybrid_forward(self, F, x, n):
        return self.body(F, x, n)


def run(net, rows):
    generator = np.random.RandomState(rows)
    x, n = nd.array(generator.randn(rows, TIME, WIDTH)), nd.array(generator.randint(1, 6, rows))
    x.attach_grad()
    with autograd.record():
        out = net(x, n)
        loss = (out * out).sum()
    loss.backward()
    return out.asnumpy(), x.grad.asnumpy()


@pytest.mark.parametrize("name", BODIES)
def test_one_row_micro_batches_equal_the_whole_batch(name):
    eager, net = Net(BODIES[name]), Net(BODIES[name])
    net.hybridize(pipeline=Pipeline(4))
    for rows in (3, 8, 4, 1):  # micro-batches of 1, 2 and 1 rows, then a batch of one row
        for expected, found in zip(run(eager, rows), run(net, rows)):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class Recurrent(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layer = gluon.rnn.LSTM(
                4, input_size=WIDTH, use_sequence_length=True, bidirectional=True
            )

    def hybrid_forward(self, F, x, n):
        return self.layer(x.swapaxes(0, 1), sequence_length=n).swapaxes(0, 1)


def test_recurrent_layers_support_one_row_micro_batches():
    found = []
    for pipeline in (None, Pipeline(4)):
        net = Recurrent()
        mx.random.seed(1)
        net.initialize(mx.init.Xavier())
        net.hybridize(exact=True, pipeline=pipeline)
        found.append([array for rows in (3, 8) for array in run(net, rows)])
    for expected, array in zip(*found):
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        lambda F, x, n: F.squeeze(F.slice_axis(x, axis=1, begin=0, end=1)),
        lambda F, x, n: F.broadcast_add(x, x.mean(axis=0, keepdims=True)),
        lambda F, x, n: F.broadcast_mul(x.transpose((1, 0, 2)), n.reshape((-1, 1, 1))),
    ],
)
def test_ops_across_the_batch_raise_with_one_row_micro_batches(body):
    net = Net(body)
    net.hybridize(pipeline=Pipeline(5))
    with pytest.raises(mx.MXNetError):
        net(nd.ones((5, 5, WIDTH)), nd.ones(5))


class TwoResults(gluon.HybridBlock):
    """Graph simplification removes its reshapes and folds its constants."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.conv = gluon.nn.Conv2D(2, (1, 3), padding=(0, 1), in_channels=2)

    def hybrid_forward(self, F, x):
        x = F.tanh((x * 2 + 1) * 3 + 1)
        y = self.conv(x.reshape((x.shape[0], 2, 1, 3))).reshape(x.shape)
        return y.reshape(y.shape), x.reshape(x.shape)


@pytest.mark.parametrize("exact", [False, True])
def test_one_row_micro_batches_return_several_results(exact):
    found = []
    for pipeline in (None, Pipeline(4)):
        net = TwoResults()
        mx.random.seed(1)
        net.initialize(mx.init.Xavier())
        net.hybridize(exact=exact, pipeline=pipeline)
        x = nd.array(np.random.RandomState(2).randn(3, 6))
        with autograd.record():
            results = net(x)
        found.append([result.asnumpy() for result in results])
    for expected, array in zip(*found):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)
