"""Random networks in pipelines, and random draws: a micro-batch draws the numbers of its rows in
the whole batch."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline
from programs.random_blocks import Node, check_many
from programs.random_pipelines import Case
from support.pipelines import DEVICES, data, gradients


class Parts(gluon.HybridBlock):
    """Dense layers a and b on two devices, combined by a function, and an optional recurrent
    layer."""

    def __init__(self, body, layer=None, width=6):
        super().__init__(prefix="net_")
        self.body, self.two = body, DEVICES[1]
        with self.name_scope():
            self.a, self.b = (
                nn.Dense(6, in_units=6, flatten=False),
                nn.Dense(6, in_units=width, flatten=False),
            )
        self.layer = layer
        mx.random.seed(3)
        self.a.initialize(mx.init.Xavier(), ctx=DEVICES[0])
        self.b.initialize(mx.init.Xavier(), ctx=self.two)
        if layer is not None:
            layer.initialize(mx.init.Uniform(0.5), ctx=DEVICES[0])

    def hybrid_forward(self, F, x, *more):
        return self.body(self, F, x, *more)


def run(make, pipeline, exact, *inputs):
    """Returns the result and the gradients."""
    net = make()
    net.hybridize(exact=exact, pipeline=pipeline)
    mx.random.seed(9)
    with autograd.record():
        out = net(*inputs)
        out = out[0] if isinstance(out, tuple) else out
    out.backward()
    return out.asnumpy(), gradients(net)


def check(make, exact, axis, along, *inputs):
    """Checks that any number of micro-batches gives the results without a pipeline."""
    out, grads = run(make, None, exact, *inputs)
    for pieces in (2, 5):
        found, summed = run(make, Pipeline(pieces, axis=axis, along=along), exact, *inputs)
        np.testing.assert_allclose(out, found, rtol=1e-5, atol=1e-5)
        for name in grads:
            np.testing.assert_allclose(
                grads[name], summed[name], rtol=1e-4, atol=1e-5 * abs(grads[name]).max()
            )


def attended(F, x, batch):
    """Attention whose head axis comes before the batch axis."""
    q = F.reshape(F.transpose(F.reshape(x, (0, 0, 2, 3)), (2, batch, 1 - batch, 3)), (-3, 0, 0))
    scores = F.Dropout(F.softmax(F.batch_dot(q, q, transpose_b=True)), p=0.3)
    out = F.transpose(
        F.reshape(F.batch_dot(scores, q), (-4, 2, -1, 0, 0)),
        (1, 2, 0, 3) if batch == 0 else (2, 1, 0, 3),
    )
    return F.reshape(out, (0, 0, -3))


DROPPED = {
    "the axis": (0, lambda F, x: F.Dropout(x, p=0.3)),
    "another axis": (1, lambda F, x: F.Dropout(x, p=0.3)),
    "swapped": (0, lambda F, x: F.Dropout(x.swapaxes(0, 1), p=0.3).swapaxes(0, 1)),
    "swapped and flat": (
        0,
        lambda F, x: (
            F.Dropout(x.swapaxes(0, 1).reshape((-3, 0)), p=0.3)
            .reshape((-4, 7, -1, 0))
            .swapaxes(0, 1)
        ),
    ),
    "masks of time": (0, lambda F, x: F.Dropout(x.swapaxes(0, 1), p=0.3, axes=(0,)).swapaxes(0, 1)),
    "slopes": (0, lambda F, x: F.LeakyReLU(x.swapaxes(0, 1), act_type="rrelu")[0].swapaxes(0, 1)),
    "heads first": (0, lambda F, x: attended(F, x, 0)),
    "heads first, steps in front": (1, lambda F, x: attended(F, x, 1)),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("where", DROPPED)
def test_dropout_does_not_depend_on_micro_batches(where, exact):
    """There are as many time steps as rows in a micro-batch, so sizes do not reveal the divided
    axis."""
    axis, body = DROPPED[where]

    def make():
        return Parts(lambda net, F, x: body(F, net.b(body(F, net.a(x)).as_in_context(net.two))))

    check(make, exact, axis, "batch", data((14, 7, 6) if axis == 0 else (7, 14, 6), 4))


CAPTURED = nd.ones((6,), ctx=DEVICES[0])
# Draws that all rows share; the last case also draws for each row.
SHARED = {
    "one vector": lambda F, x: F.broadcast_add(x, F.random.normal(shape=(6,))),
    "one number": lambda F, x: F.broadcast_mul(x, F.random.uniform(shape=(1, 1))),
    "like a constant": lambda F, x: F.broadcast_mul(x, F.random.uniform_like(F.ones((1, 6)))),
    "of distributions": lambda F, x: F.broadcast_add(x, F.sample_normal(CAPTURED, CAPTURED)),
    "mask of a weight": lambda F, x: F.dot(x, F.random.uniform(shape=(6, 6))),
    "as many rows as a micro-batch": lambda F, x: F.dot(
        F.dot(x, F.ones((6, 3))), F.random.uniform(shape=(3, 6))
    ),
    "dropped constant": lambda F, x: F.broadcast_mul(x, F.Dropout(CAPTURED, p=0.5)),
    "dropped mask": lambda F, x: F.broadcast_mul(x, F.Dropout(F.ones((1, 6)), p=0.5)),
    "several": lambda F, x: (
        F.broadcast_add(
            F.broadcast_mul(F.random.normal(shape=(1,)), F.Dropout(x, p=0.5)),
            F.random.uniform(shape=(1, 6)),
        )
        + F.random.normal(shape=x.shape)
    ),
}


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_draws_without_rows_are_the_same_in_all_micro_batches(name, exact, verified):
    x = data((12, 6), 4)
    for body in (SHARED[name], lambda F, x: F.relu(SHARED[name](F, SHARED[name](F, x)))):
        found = []
        for pieces in (None, 2, 4, 5, 12):
            pipeline = pieces and Pipeline(pieces, check=verified)
            net = gluon.nn.HybridLambda(body)
            if pieces:
                net.hybridize(exact=exact, pipeline=pipeline)
            mx.random.seed(9)
            x.attach_grad()
            with autograd.record():
                out = net(x)
            out.backward()
            found.append((out.asnumpy(), x.grad.asnumpy()))
            found[-1] += (mx.random.normal(shape=(3,)).asnumpy(),)
        for other in found[1:]:
            for a, b in zip(found[0], other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_draws_of_the_other_axis_are_the_same_in_all_micro_batches():
    """Along time, each step of the batch uses the mask that is drawn once."""

    def make():
        return Parts(
            lambda net, F, x, state: (
                F.broadcast_mul(x, F.random.uniform(shape=(x.shape[0], 1, 6))),
                state,
            )
        )

    found = []
    for pieces in (None, 2, 3):
        net = make()
        if pieces:
            net.hybridize(pipeline=Pipeline(pieces, along="time", axis=1))
        mx.random.seed(9)
        found.append(net(data((2, 6, 6), 4), nd.zeros((2, 6), ctx=DEVICES[0]))[0].asnumpy())
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def recurrent(net, F, x, states=None):
    out = net.layer(net.a(x)) if states is None else net.layer(net.a(x), states)
    out, states = (out, None) if states is None else out
    out = net.b(out.as_in_context(net.two))
    return out if states is None else (out, states)


@pytest.mark.parametrize(
    "along, layout, bidirectional",
    [
        ("batch", "TNC", False),
        ("batch", "NTC", True),
        ("time", "TNC", False),
        ("time", "NTC", False),
    ],
)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_dropout_does_not_depend_on_micro_batches(kind, along, layout, bidirectional):
    """The mask is drawn inside one operator."""

    def make():
        layer = getattr(rnn, kind)(
            4,
            num_layers=3,
            input_size=6,
            dropout=0.4,
            layout=layout,
            bidirectional=bidirectional,
            prefix="layer_",
        )
        return Parts(recurrent, layer, 4 * (1 + bidirectional))

    states = (
        [rnn.LSTM(4, num_layers=3).begin_state(6, ctx=DEVICES[0])[: 2 if kind == "LSTM" else 1]]
        if along == "time"
        else []
    )
    check(
        make,
        True,
        layout.index("N" if along == "batch" else "T"),
        along,
        data((6, 6, 6), 4),
        *states,
    )


def test_random_networks_keep_the_bits_of_one_device():
    """Acyclic networks over two to six devices with fresh seeds have the bits of micro-batches
    accumulated on one device. `random_pipelines.py` repeats a seed or runs thousands."""
    check_many(Case, 25, "random_pipelines.py")


@pytest.mark.slow
def test_many_random_networks_keep_the_bits_of_one_device():
    check_many(lambda seed: Case(seed, every_schedule=True), 100, "random_pipelines.py")


FIXED = {
    "gradients come back twice": dict(
        nodes=[
            ("dense", 1, [0], 0),
            ("tanh", 2, [1]),
            ("sigmoid", 1, [2]),
            ("tanh", 2, [3]),
            ("multiply", 1, [2, 3]),
            ("move", 0, [5]),
            ("add", 0, [6, 4]),
        ],
        outputs=[(7, 0)],
    ),
    "deferred on both": dict(
        nodes=[("prelu", 0, [0], 0), ("dense", 1, [1], 1), ("tanh", 0, [2]), ("halve", 1, [3])],
        outputs=[(4, 0), (2, 0)],
    ),
    "four devices, three results": dict(
        nodes=[
            ("unbiased", 0, [0], 0),
            ("sigmoid", 3, [1]),
            ("unbiased", 2, [2], 1),
            ("tanh", 2, [2]),
            ("unbiased", 1, [4], 2),
            ("sigmoid", 0, [3]),
            ("sigmoid", 2, [6]),
        ],
        outputs=[(7, 0), (4, 0), (5, 0)],
    ),
    "recomputed as one": dict(
        nodes=[("dense", 0, [0], 0), ("dense", 1, [1], 1), ("dense", 2, [2], 2)],
        outputs=[(3, 2)],
        recompute="all",
    ),
    "a state from another device": dict(
        nodes=[("dense", 0, [0], 0), ("multiply", 2, [1, 2]), ("tanh", 2, [3])],
        outputs=[(4, 2)],
        timewise=True,
        carried=(4, 1),
    ),
    "pieces of several stages, and of one step": dict(
        nodes=[("dense", 0, [0], 0), ("add", 1, [1, 2])],
        outputs=[(3, 0)],
        timewise=True,
        carried=(3, 2),
        rows=5,
        micro_batches=3,
    ),
    "a state of bfloat16": dict(
        nodes=[("dense", 0, [0], 0), ("multiply", 0, [1, 2])],
        outputs=[(3, 0)],
        timewise=True,
        carried=(3, 0),
        dtype="bfloat16",
    ),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_networks_keep_the_bits_of_one_device(name):
    options = {
        "dtype": "float32",
        "recompute": None,
        "timewise": False,
        "rows": 8,
        "micro_batches": 4,
        "statistics": "micro_batch",
        "wants_input": True,
        "devices": 4,
        **FIXED[name],
    }
    options["nodes"] = [Node(*node) for node in options["nodes"]]
    options.update(used=[True] * len(options["outputs"]), axes=3 if options["timewise"] else 2)
    Case(3, every_schedule=True, **options).check()
