"""Random graphs of layers under every compiler pass and placement.

Steps are the patterns of real networks (convolution, normalization, activation; attention written
out; residuals; recurrent cells), with device copies in unusual places, including the middle of a
pattern. These must be bitwise equal: eager and exact on one device and on many, and the default on
one device and on many, all also under the shuffle engine. The default may differ from eager by 1e-6
of an array's scale, or by a few times the graph's own single-precision error.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mpgluon as mx
from mpgluon import _core, autograd, nd
from programs.random_blocks import Node, check_many
from programs.random_networks import Case
from support.compare import same_bits
from support.devices import on

ROWS, WIDTH = 4, 8
# Parameters: name -> shape.
PARAMETERS = {
    "dense0": (WIDTH, WIDTH),
    "dense1": (WIDTH, WIDTH),
    "bias": (WIDTH,),
    "wide": (3 * WIDTH, WIDTH),
    "up": (4 * WIDTH, WIDTH),
    "down": (WIDTH, 4 * WIDTH),
    "kernel": (2, 2, 3, 3),
    "point": (2, 2, 1, 1),
    "channel": (2,),
    "gamma": (WIDTH,),
    "gamma2": (2,),
}
STATES = {"mean": (2,), "variance": (2,), "wide_mean": (WIDTH,), "wide_variance": (WIDTH,)}


class Walk:
    """Runs steps on values of shape (ROWS, WIDTH), with each op on the next device of the step's
    list."""

    def __init__(self, arrays, devices):
        self.arrays, self.devices = arrays, devices
        self.values = [arrays["x"]]

    def begin(self, places):
        self.places, self.count = places, 0

    def place(self):
        return self.places[(self.count - 1) % len(self.places)]

    def to(self, *values):
        """Copies the values to the device of the next op."""
        self.count += 1
        return [value.as_in_context(self.devices[self.place()]) for value in values]

    def param(self, name):
        return self.arrays[name].as_in_context(self.devices[self.place()])

    def pick(self, number):
        return self.values[number % len(self.values)]

    # Patterns: array -> array of the same shape.

    def dense(self, x, weight, activation=None, bias=True):
        (x,) = self.to(x)
        y = (
            nd.FullyConnected(x, self.param(weight), self.param("bias"), num_hidden=WIDTH)
            if bias
            else nd.FullyConnected(x, self.param(weight), no_bias=True, num_hidden=WIDTH)
        )
        if activation:
            (y,) = self.to(y)
            y = nd.Activation(y, act_type=activation)
        return y

    def convolution(self, x, kernel, pool, residual):
        (image,) = self.to(x)
        image = image.reshape((ROWS, 2, 2, 2))
        name, size, pad = (("kernel", (3, 3), (1, 1)), ("point", (1, 1), (0, 0)))[kernel]
        y = nd.Convolution(
            image, self.param(name), no_bias=True, num_filter=2, kernel=size, pad=pad
        )
        (y,) = self.to(y)
        y = nd.BatchNorm(
            y,
            self.param("gamma2"),
            self.param("channel"),
            self.state("mean"),
            self.state("variance"),
            fix_gamma=False,
        )
        if residual:
            y, image = self.to(y, image)
            y = y + image
        (y,) = self.to(y)
        y = nd.relu(y)
        if pool:
            (y,) = self.to(y)
            y = nd.Pooling(
                y,
                kernel=(2, 2),
                stride=(1, 1),
                pad=(1, 1),
                pool_type=("max", "avg")[pool - 1],
                pooling_convention="valid",
            )
            y = nd.slice(y, begin=(0, 0, 0, 0), end=(ROWS, 2, 2, 2))
        return y.reshape((ROWS, WIDTH))

    def state(self, name):
        # Effects are not moved: each place has its own copy, even if two places are one device.
        return self.arrays[f"{name}{self.place()}"]

    def batch_norm(self, x, relu):
        (x,) = self.to(x)
        y = nd.BatchNorm(
            x,
            self.param("gamma"),
            self.param("bias"),
            self.state("wide_mean"),
            self.state("wide_variance"),
            fix_gamma=False,
        )
        return nd.relu(self.to(y)[0]) if relu else y

    def layer_norm(self, x, parts):
        (x,) = self.to(x)
        if not parts:
            return nd.LayerNorm(x, self.param("gamma"), self.param("bias"))
        centred = nd.broadcast_sub(x, nd.mean(x, axis=1, keepdims=True))
        (centred,) = self.to(centred)
        variance = nd.mean(nd.square(centred), axis=1, keepdims=True)
        centred, variance = self.to(centred, variance)
        return nd.broadcast_add(
            nd.broadcast_mul(
                nd.broadcast_mul(centred, nd.rsqrt(variance + 1e-3)), self.param("gamma")
            ),
            self.param("bias"),
        )

    def attention(self, x, masked, dropout):
        (x,) = self.to(x)
        q, k, v = nd.split(
            nd.FullyConnected(x, self.param("wide"), no_bias=True, num_hidden=3 * WIDTH),
            num_outputs=3,
            axis=1,
        )
        q, k, v = [part.reshape((ROWS, 2, WIDTH // 2)).transpose((1, 0, 2)) for part in (q, k, v)]
        q, k = self.to(q, k)
        scores = nd.batch_dot(q, k, transpose_b=True) * 0.5
        if masked:
            (scores,) = self.to(scores)
            rows = nd.arange(ROWS, ctx=self.devices[self.place()])
            mask = nd.broadcast_greater(rows.reshape((1, ROWS)), rows.reshape((ROWS, 1))) * -1e9
            scores = nd.broadcast_add(scores, mask.expand_dims(0).astype(scores.dtype))
        (weights,) = self.to(scores)
        weights = nd.softmax(weights, axis=-1)
        if dropout:
            weights = nd.Dropout(weights, p=0.3)
        weights, v = self.to(weights, v)
        return nd.batch_dot(weights, v).transpose((1, 0, 2)).reshape((ROWS, WIDTH))

    def feed_forward(self, x, kind):
        (x,) = self.to(x)
        y = nd.FullyConnected(x, self.param("up"), no_bias=True, num_hidden=4 * WIDTH)
        (y,) = self.to(y)
        y = (
            nd.LeakyReLU(y, act_type="gelu")
            if kind == 0
            else y * nd.sigmoid(y)
            if kind == 1
            else nd.square(nd.relu(y))
        )
        (y,) = self.to(y)
        return nd.FullyConnected(y, self.param("down"), no_bias=True, num_hidden=WIDTH)

    def cell(self, x, other):
        """One step of a gated cell."""
        (x,) = self.to(x)
        gates = nd.FullyConnected(x, self.param("wide"), no_bias=True, num_hidden=3 * WIDTH)
        (gates,) = self.to(gates)
        i, f, c = nd.split(gates, num_outputs=3, axis=1)
        i, f, c, other = self.to(i, f, c, other)
        return nd.sigmoid(f) * other + nd.sigmoid(i) * nd.tanh(c)

    def elementwise(self, x, other, kind):
        x, other = self.to(x, other)
        if kind == 0:
            return nd.tanh(x) * other + x * 0.5
        if kind == 1:
            return nd.broadcast_add(
                nd.broadcast_mul(x, self.param("gamma")), self.param("bias")
            ) - nd.maximum(x, other)
        if kind == 2:
            return nd.exp(-nd.square(x)) / (1 + nd.abs(other))
        if kind == 3:
            return nd.broadcast_mul(x, nd.sum(nd.tanh(other), axis=0, keepdims=True)) * 0.1
        if kind == 4:
            return nd.where(x > other, nd.sigmoid(x), other * 0.3)
        return nd.clip(x, -1.5, 1.5) + nd.Dropout(other, p=0.4)

    def redundant(self, x, other, kind):
        """Redundant ops that a simplifier may remove."""
        x, other = self.to(x, other)
        if kind == 0:
            return (nd.tanh(x) + nd.tanh(x)) * 1 + 0
        if kind == 1:
            return (
                nd.dot(nd.transpose(x), other)
                .transpose()
                .reshape((-1,))[: ROWS * WIDTH]
                .reshape((ROWS, WIDTH))
                * 0.1
            )
        if kind == 2:
            return nd.identity(x.reshape((WIDTH, ROWS)).reshape((ROWS, WIDTH))) - nd.zeros_like(
                other
            )
        if kind == 3:
            nd.exp(other)  # dead code
            return x.transpose().transpose() * nd.ones_like(other)
        return nd.concat(x[2:4], other[0:2], dim=0).astype("float32").astype(x.dtype)

    def step(self, kind, places, numbers):
        self.begin(places)
        a, b, choice = numbers
        x, other = self.pick(a), self.pick(b)
        if kind == "dense":
            y = self.dense(
                x,
                ("dense0", "dense1")[choice % 2],
                (None, "relu", "tanh", "sigmoid")[choice % 4],
                choice % 3 > 0,
            )
        elif kind == "convolution":
            y = self.convolution(x, choice % 2, choice % 3, choice % 5 > 2)
        elif kind == "batch_norm":
            y = self.batch_norm(x, choice % 2)
        elif kind == "layer_norm":
            y = self.layer_norm(x, choice % 2)
        elif kind == "attention":
            y = self.attention(x, choice % 2, choice % 3 == 0)
        elif kind == "feed_forward":
            y = self.feed_forward(x, choice % 3)
        elif kind == "cell":
            y = self.cell(x, other)
        elif kind == "elementwise":
            y = self.elementwise(x, other, choice % 6)
        elif kind == "redundant":
            y = self.redundant(x, other, choice % 5)
        elif kind == "residual":
            x, other = self.to(x, nd.Dropout(self.dense(other, "dense0", bias=True), p=0.2))
            y = x + other
        elif kind == "softmax":
            (x,) = self.to(x)
            y = (nd.softmax if choice % 2 else nd.log_softmax)(x, axis=choice % 2 - 1)
        elif kind == "update":
            x, other = self.to(x * 1, other)
            x[1:3] = other[0:2]
            x += other
            y = x
        else:  # to the next device and back
            (x,) = self.to(x)
            (x,) = self.to(x)
            y = x
        self.values.append(y)


KINDS = (
    "dense convolution batch_norm layer_norm attention feed_forward cell elementwise elementwise"
    " redundant residual softmax move"
).split()
step = st.tuples(
    st.sampled_from(KINDS),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
)
graphs = st.fixed_dictionaries(
    {
        "steps": st.lists(step, min_size=1, max_size=8),
        "outputs": st.lists(st.integers(0, 99), min_size=1, max_size=3),
        "homes": st.lists(st.integers(0, 3), min_size=len(PARAMETERS), max_size=len(PARAMETERS)),
        # bit mask of parameters with grad_req add
        "added": st.integers(0, 2 ** len(PARAMETERS) - 1),
        "num_devices": st.integers(2, 4),
        "again": st.integers(0, 255),  # bit mask of steps that backward recomputes, if requested
    }
)


def run(graph, num_devices, flags=None, dtype="float32", rounds=2, again=False):
    """Returns the results of two training rounds and a prediction.

    flags=None runs eagerly; again=True recomputes in backward.
    """
    devices = [on(70 + i % num_devices) for i in range(4)]
    mx.random.seed(7)
    draw = np.random.RandomState(3)
    values = {"x": draw.uniform(-1, 1, (ROWS, WIDTH))}
    contexts = {"x": devices[0]}
    for (name, shape), home in zip(PARAMETERS.items(), graph["homes"]):
        values[name] = draw.uniform(-0.7, 0.7, shape) + (1 if name.startswith("gamma") else 0)
        contexts[name] = devices[home]
    trained = list(values)
    # One copy of each moving statistic per place keeps the updates of a copy in program order on
    # one device and on many.
    for name, shape in STATES.items():
        for place in range(4):
            values[f"{name}{place}"] = np.ones(shape) if "variance" in name else np.zeros(shape)
            contexts[f"{name}{place}"] = devices[place]
    arrays = {
        name: nd.array(value.astype("float32").astype(dtype), ctx=contexts[name], dtype=dtype)
        for name, value in values.items()
    }
    for i, name in enumerate(trained):
        arrays[name].attach_grad("add" if i and graph["added"] >> (i - 1) & 1 else "write")
    names = list(arrays)

    def function(*given):
        walk = Walk(dict(zip(names, given)), devices)
        for i, (kind, places, numbers) in enumerate(graph["steps"]):
            begun = again and graph["again"] >> i & 1 and _core.begin_recompute()
            walk.step(kind, places, numbers)
            if begun:
                _core.end_recompute()
        return [walk.values[-1 - number % len(walk.values)] for number in graph["outputs"]]

    op = function if flags is None else _core.CachedOp(function, flags)
    results = []
    for _ in range(rounds):
        with autograd.record():
            outputs = op(*arrays.values())
            loss = nd.add_n(
                *[
                    (output * (i + 1)).mean().as_in_context(devices[0])
                    for i, output in enumerate(outputs)
                ]
            )
        loss.backward()
        results += [*outputs, *[arrays[name].grad.copy() for name in trained]]
        for name in trained[1:]:
            arrays[name] -= 0.1 * arrays[name].grad
    results += op(*arrays.values())
    results += [array for name, array in arrays.items() if name not in trained]
    return [result.asnumpy() for result in results]


def close(found, wanted, truth):
    """Compares within 1e-6 of the array's scale per step plus a few times the single-precision
    error.

    The error is the worst among the results because a single result of an ill-conditioned graph may
    be accurate by luck. Intermediate values are about 1, so a result near 0 comes from sums that
    cancel and has an error as large as theirs.
    """
    scales = [np.abs(exact).max(initial=0.1) for exact in truth]
    error = max(
        np.abs(b - exact).max(initial=0) / scale
        for b, exact, scale in zip(wanted, truth, scales, strict=True)
    )
    for i, (a, b, scale) in enumerate(zip(found, wanted, scales, strict=True)):
        np.testing.assert_allclose(
            a,
            b,
            rtol=0,
            atol=(4e-6 + 6 * error) * scale,
            err_msg=f"default against eager, result {i}",
        )


def check(graph, modes):
    mx.engine.set_mode("async")
    many = graph["num_devices"]
    eager, default = run(graph, 1), run(graph, 1, {})
    same_bits(run(graph, 1, {"exact": True}), eager, "exact on one device")
    same_bits(run(graph, 1, {}, again=True), default, "recomputing on one device")
    close(default, eager, run(graph, 1, dtype="float64"))
    for mode, seed in modes:
        mx.engine.set_mode(mode, seed)
        try:
            same_bits(run(graph, many), eager, f"eager on {many} devices, {mode} {seed}")
            same_bits(
                run(graph, many, {"exact": True}), eager, f"exact on {many} devices, {mode} {seed}"
            )
            same_bits(run(graph, many, {}), default, f"default on {many} devices, {mode} {seed}")
            same_bits(
                run(graph, many, {"exact": True}, again=True),
                eager,
                f"recomputing on {many} devices, {mode} {seed}",
            )
        finally:
            mx.engine.set_mode("async")


SETTINGS = dict(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@settings(max_examples=40, **SETTINGS)
@given(graphs)
def test_random_layer_graphs_match_eager(graph):
    check(graph, [("async", 0), ("shuffle", 1)])


@pytest.mark.slow
@settings(max_examples=250, **SETTINGS)
@given(graphs)
def test_many_random_layer_graphs_match_eager(graph):
    check(graph, [("async", 0), ("shuffle", 1), ("shuffle", 2), ("shuffle", 3)])


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_every_layer_pattern_matches_eager(kind):
    """Covers each pattern in all variants, with and without device copies in its middle."""
    for choice in range(12):
        graph = {
            "steps": [
                ("dense", [0], (0, 0, 1)),
                (kind, [0], (0, 1, choice)),
                (kind, [0, 1, 2], (1, 2, choice)),
            ],
            "outputs": [0, 1],
            "homes": [0, 1] * 5 + [2],
            "added": choice,
            "num_devices": 3,
            "again": choice,
        }
        check(graph, [("async", 0)])


def test_received_array_whose_values_are_unused_keeps_its_memory():
    """Only the shape of a copied array is used.

    Its destination must not be reused for other arrays because the copy may arrive at any time.
    """
    steps = [
        ("move", [0], (0, 0, 0)),
        ("convolution", [2], (4, 78, 93)),
        ("cell", [2], (67, 77, 70)),
        ("feed_forward", [3], (67, 80, 81)),
        ("batch_norm", [0, 0, 2], (16, 95, 46)),
        ("softmax", [3, 0], (68, 63, 95)),
        ("feed_forward", [3], (67, 80, 81)),
        ("redundant", [2, 2], (4, 78, 93)),
    ]
    graph = {
        "steps": steps,
        "outputs": [62, 29, 27],
        "homes": [1, 2, 0, 0, 3, 3, 3, 3, 3, 3, 0],
        "added": 51,
        "num_devices": 4,
        "again": 0,
    }
    expected = run(graph, 1)
    for _ in range(10):
        same_bits(run(graph, 4, {"exact": True}), expected, "exact on 4 devices")


def test_random_networks_match_eager():
    """Operators and layers over one to six devices, with fresh seeds, first and second order.

    `random_networks.py` repeats a seed and runs thousands of cases.
    """
    check_many(Case, 15, "random_networks.py")


@pytest.mark.slow
def test_many_random_networks_match_eager():
    check_many(Case, 120, "random_networks.py")


def test_attention_over_copied_array_sums_gradients_on_its_device():
    """Query, key and value are one copied array that has another reader."""
    case = Case(0)
    case.devices, case.dtype, case.second, case.sizes = 4, "float32", False, [2, 5, 5, 5]
    case.nodes = [
        Node("attend", 0, [0]),
        Node("sin", 2, [1]),
        Node("stop", 2, [2]),
        Node("attend", 3, [3]),
        Node("pool", 0, [3]),
        Node("sum", 2, [4]),
        Node("gelu", 2, [5]),
    ]
    case.outputs = [7, 6]
    for case.seed in range(4):
        case.check()
