"""Functions of mx.np in pipelined blocks: arrays that do not depend on the batch are not mistaken
for rows of the batch."""

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, np, npx
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline

X = onp.random.RandomState(0).uniform(-1, 1, (8, 5, 6)).astype("float32")
CAPTURED = onp.arange(30).reshape(1, 5, 6) % 3 > 0
MATRIX = onp.eye(5, dtype="float32") * 2 + onp.tri(5, dtype="float32")


def scores(x):
    return npx.batch_dot(x, x, transpose_b=True)


def causal(x):
    return np.tril(np.ones((5, 5), ctx=x.ctx)) > 0


def heads(x):
    b, t, _ = x.shape
    h = x.reshape(b, t, 2, 3).transpose(0, 2, 1, 3).reshape(b * 2, t, 3)
    h = npx.batch_dot(npx.softmax(np.where(causal(x), scores(h), -1e9)), h)
    return h.reshape(b, 2, t, 3).transpose(0, 2, 1, 3).reshape(b, t, 6)


def captured(x, values):
    return np.array(values, dtype=values.dtype, ctx=x.ctx)


def looped(x, limit=5, steps=3):
    """Returns the stacked results of the steps of a while_loop, and the last state."""
    rows, (_, state) = npx.while_loop(
        lambda i, h: i < steps,
        lambda i, h: (h * 2, (i + 1, np.tanh(h))),
        (np.zeros((), ctx=x.ctx), x),
        max_iterations=limit,
    )
    return rows, state


def scanned(x, steps):
    """A foreach over time steps that is too long for one program."""
    shifts = np.arange(steps, ctx=x.ctx).reshape(-1, 1, 1, 1) * np.ones_like(x) * 1e-3
    rows, state = npx.foreach(lambda t, h: (np.tanh(t + h),) * 2, shifts, x)
    return rows[-1] + state


CALLS = {
    "while_loop with unused rows": lambda x: looped(x)[1],
    "while_loop with rows": lambda x: looped(x)[0].sum(axis=0) + looped(x)[1],
    "while_loop with one row": lambda x: looped(x)[0][1],
    # Micro-batches of 1, 2 to 3 and 4 rows: the number of steps equals some of these sizes
    "while_loop of 2 steps": lambda x: looped(x, 2)[0].sum(axis=0),
    "while_loop of 3 steps": lambda x: looped(x, 3)[0].sum(axis=0),
    "while_loop of 4 steps": lambda x: looped(x, 4)[0].sum(axis=0),
    "long foreach": lambda x: scanned(x, 600),
    "causal mask": lambda x: npx.softmax(np.where(causal(x), scores(x), -1e9)),
    "causal mask of heads": heads,
    "masked_softmax": lambda x: npx.masked_softmax(scores(x), causal(x)[None]),
    "captured mask": lambda x: np.where(captured(x, CAPTURED), x, 0.0),
    "vector": lambda x: np.where(np.arange(6, ctx=x.ctx) > 2, x, 1.0),
    "three shapes": lambda x: np.where(x[:, :, :1] > 0, x, np.arange(6, ctx=x.ctx)),
    "no whole array": lambda x: np.where(causal(x), x[:, :, :1], x[:, :1, :5]),
    "tril": lambda x: np.tril(x),
    "triu": lambda x: np.triu(x, 1),
    "take_along_axis": lambda x: np.take_along_axis(x, np.argmax(x, 2, keepdims=True), 2),
    "index": lambda x: x[:, np.array([0, 3], dtype="int32", ctx=x.ctx)],
    "index before an axis": lambda x: x[:, np.array([0, 3], dtype="int32", ctx=x.ctx), :],
    "solve": lambda x: np.linalg.solve(captured(x, MATRIX), x),
    "solve for a constant": lambda x: np.linalg.solve(
        scores(x) + captured(x, MATRIX), np.arange(5, ctx=x.ctx)
    ),
}


class Net(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.first, self.last = nn.Dense(6, flatten=False), nn.Dense(3, flatten=False)

    def forward(self, x):
        return self.last(self.function(self.first(x)).as_in_ctx(mx.cpu(1)))


@pytest.fixture(autouse=True)
def _np_mode():
    npx.set_np()
    yield
    npx.reset_np()


def run(net, x):
    with autograd.record():
        y = net(x)
    y.backward()
    return y.asnumpy(), x.grad.asnumpy()


@pytest.mark.parametrize("name", CALLS)
def test_constants_may_meet_rows_of_the_batch(name):
    net = Net(CALLS[name])
    net.initialize(mx.init.Xavier())
    net.last.collect_params().reset_ctx(mx.cpu(1))
    x = np.array(X)
    x.attach_grad()
    net(x)
    expected = run(net, x)
    for pieces in (2, 3, 8):
        net.hybridize(pipeline=Pipeline(pieces))
        for found, wanted in zip(run(net, x), expected):
            onp.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
