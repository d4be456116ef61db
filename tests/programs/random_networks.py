"""Random networks of operators and layers over devices have the same bits in every way of running.

    python tests/programs/random_networks.py --count 5000 [--seed 7]

A failure is printed with its seed; that `--seed` and `--count 1` reproduce it.

A network is a list of operators and layers on random devices, each applied to earlier values:
branches, returns to earlier devices, layers used twice, unused values, captured arrays, losses
after stopped gradients, several results. It trains for some steps on batches of changing sizes, by
first gradients or by a penalty on them, and predicts in between. Results of `autograd.grad` are
overwritten before backward. Eager and exact networks have the same bits on one device and on
several. So have default networks among themselves, including static memory, recomputation and
offload of activations.
"""

import os
import sys
from unittest import mock

import numpy as np

import mpgluon as mx
from mpgluon import autograd, nd
from mpgluon._internal import kinds
from mpgluon.gluon import nn, rnn
from mpgluon.gluon._compiled import offload

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

from programs import random_blocks
from programs.features.blocks import packed
from programs.random_blocks import Node, hunt
from support.devices import on

WIDTH = 6


def rows(F, x, *shape):
    return F.reshape(x, shape=(-1, *shape))


def attend(F, x):
    parts = rows(F, x, 2, 3)
    scores = F.batch_dot(parts, parts, transpose_b=True) * 0.5
    return F.reshape(F.batch_dot(F.softmax(scores, axis=-1), parts), shape=(-1, WIDTH))


def normalise(F, x):
    centred = F.broadcast_sub(x, F.mean(x, axis=1, keepdims=True))
    return F.broadcast_div(centred, F.sqrt(F.mean(F.square(centred), axis=1, keepdims=True) + 0.1))


def positions(F, x):
    """Uses two views of a constant array in a product that is too large to be cached."""
    count = kinds.like(F.arange(0, 96, ctx=x.context, dtype=x.dtype), x)
    outer = F.broadcast_mul(F.reshape(count, shape=(1, 96)), F.reshape(count, shape=(96, 1)))
    table = F.mean(F.sin(outer * 0.01), axis=0, keepdims=True)
    return F.broadcast_add(x, F.slice_axis(table, axis=1, begin=0, end=WIDTH))


def heads(F, x, **options):
    """Attention over the rows: three heads of queries, and one of keys and values."""
    query = F.reshape(x, shape=(1, -1, 3, 2))
    key = F.slice_axis(query, axis=2, begin=0, end=1)
    value = F.slice_axis(query, axis=2, begin=2, end=3)
    own = [options.pop(name) for name in ("mask", "lengths", "segments") if name in options]
    return F.reshape(F.contrib.attention(query, key, value, *own, **options), shape=(-1, WIDTH))


def limited_heads(F, x):
    """Attention with a mask, a length and segments, all computed from x."""
    scores = F.dot(x, x, transpose_b=True)
    sums = F.sum(F.BlockGrad(F.sign(x)), axis=1)
    options = {
        "mask": F.BlockGrad(F.reshape(scores, shape=(1, 1, 0, -1), reverse=True)),
        "lengths": F.cast(F.slice_axis(F.abs(sums), axis=0, begin=0, end=1) + 1, "int32"),
        "segments": F.cast(F.expand_dims(sums > 0, axis=0), "int32"),
    }
    return heads(F, x, **options, use_mask=True, use_lengths=True, use_segments=True)


def turned(F, x):
    positions = F.cast(F.BlockGrad(F.argsort(F.sum(x, axis=1), axis=0)) * 3, "int32")
    steps = F.contrib.rotary(F.reshape(x, shape=(1, -1, 1, WIDTH)), positions, dims=4, base=50)
    return F.reshape(steps, shape=(-1, WIDTH))


def classes(F, x):
    """Multiplies by the losses of classes, whose weights are the rows."""
    label = F.cast(F.BlockGrad(F.argmax(x, axis=1)), "int32")
    loss = F.contrib.linear_cross_entropy(
        x, x * 0.5, label, z_loss=0.01, softcap=3.0, ignore_index=1
    )
    return F.broadcast_mul(x, F.expand_dims(F.cast(loss, x.dtype), axis=1)) * 0.3


def tokens(F, x):
    keys = F.cast(F.BlockGrad(F.round(F.slice_axis(x, axis=1, begin=0, end=2) * 100)), "int64")
    drawn = F.contrib.sample_tokens(F.BlockGrad(x) * 3, keys, top_k=4, top_p=0.9, min_p=0.05)
    return F.broadcast_add(x, F.expand_dims(F.cast(drawn, x.dtype), axis=1) * 0.1)


UNARY = {
    "tanh": lambda F, x: F.tanh(x),
    "sigmoid": lambda F, x: F.sigmoid(x),
    "relu": lambda F, x: F.relu(x),
    "gelu": lambda F, x: F.LeakyReLU(x, act_type="gelu"),
    "elu": lambda F, x: F.LeakyReLU(x, act_type="elu", slope=0.3),
    "softrelu": lambda F, x: F.Activation(x, act_type="softrelu"),
    "exp": lambda F, x: F.exp(-F.square(x)),
    "sin": lambda F, x: F.sin(x * 2),
    "square": lambda F, x: F.square(x) * 0.5,
    "root": lambda F, x: F.sqrt(F.abs(x) + 1),
    "smooth": lambda F, x: F.smooth_l1(x, scalar=1.5),
    "clip": lambda F, x: F.clip(x, -0.5, 0.7),
    "softmax": lambda F, x: F.softmax(x, axis=-1),
    "log_softmax": lambda F, x: F.log_softmax(x, axis=0) * 0.3,
    "normalise": normalise,
    "unit": lambda F, x: F.L2Normalization(x),
    "attend": attend,
    "product": lambda F, x: F.dot(F.dot(x, x, transpose_b=True), x) * 0.1,
    "sum": lambda F, x: F.broadcast_mul(x, F.sum(x, axis=1, keepdims=True)) * 0.2,
    "mean": lambda F, x: F.broadcast_add(x, F.mean(x, axis=0, keepdims=True)),
    "max": lambda F, x: F.broadcast_sub(x, F.max(x, axis=1, keepdims=True)),
    "norm": lambda F, x: F.broadcast_div(x, F.norm(x, axis=1, keepdims=True) + 1),
    "cumsum": lambda F, x: F.cumsum(x, axis=1) * 0.3,
    "sort": lambda F, x: F.sort(x, axis=1),
    "take": lambda F, x: F.take(
        x, kinds.like(F.array([5, 0, 0, 3, 1, 5], ctx=x.context), x), axis=1
    ),
    "turn": lambda F, x: F.reverse(x, axis=0) + F.transpose(F.transpose(x)),
    "halves": lambda F, x: F.concat(*reversed(F.split(x, num_outputs=2, axis=1)), dim=1),
    "slice": lambda F, x: F.concat(
        F.slice_axis(x, axis=1, begin=2, end=None), F.slice_axis(x, axis=1, begin=0, end=2), dim=1
    ),
    "repeat": lambda F, x: F.mean(F.repeat(F.expand_dims(x, axis=2), repeats=3, axis=2), axis=2),
    "pool": lambda F, x: F.reshape(
        F.Pooling(rows(F, x, 1, 2, 3), kernel=(3, 3), pad=(1, 1), pool_type="max"),
        shape=(-1, WIDTH),
    ),
    "dropout": lambda F, x: F.Dropout(x, p=0.3),
    "draw": lambda F, x: (
        x
        + F.broadcast_like(
            kinds.like(F.random.normal(shape=(WIDTH,), ctx=x.context, dtype=x.dtype), x).reshape(
                (1, WIDTH)
            ),
            x,
        )
        * 0.1
    ),
    "stop": lambda F, x: x * F.BlockGrad(x) + x,
    "through": lambda F, x: x + F.BlockGrad(F.round(x) - x),
    "made_loss": lambda F, x: x + F.floor(F.make_loss(x * 0.1)),
    "regression": lambda F, x: (
        F.tanh(x) + F.sign(F.LinearRegressionOutput(x, F.BlockGrad(x * 0.5), grad_scale=0.1))
    ),
    "shifted_loss": lambda F, x: x - F.BlockGrad(F.MakeLoss(F.square(x), grad_scale=0.05)),
    "detached": lambda F, x: x + F.make_loss(F.sigmoid(x)).detach(),
    "captured": None,
    "cast": lambda F, x: F.cast(F.cast(x, "float32"), x.dtype),
    "twice": lambda F, x: F.tanh(x) * F.tanh(x) + F.tanh(x),
    "positions": positions,
    "rms_norm": lambda F, x: F.contrib.rms_norm(x, eps=1e-3),
    "rotary": turned,
    "heads": lambda F, x: heads(F, x, causal=True, window=3, softcap=2.0),
    "limited_heads": limited_heads,
    "thinned_heads": lambda F, x: heads(F, x, scale=0.5, p=0.3),
    "classes": classes,
    "tokens": tokens,
    "move": lambda F, x: x,
}
FIRST_ORDER = ("heads", "limited_heads", "thinned_heads", "classes", "attention")
BINARY = {
    "add": lambda F, x, y: x + y,
    "multiply": lambda F, x, y: x * y,
    "divide": lambda F, x, y: x / (1 + F.square(y)),
    "maximum": lambda F, x, y: F.maximum(x, y),
    "where": lambda F, x, y: F.where(x > y, F.sigmoid(x), y),
    "gate": lambda F, x, y: F.sigmoid(x) * F.tanh(y),
    "gated": lambda F, x, y: F.contrib.gated(x, y, act="gelu_tanh"),
    "join": lambda F, x, y: F.concat(
        F.slice_axis(x, axis=1, begin=0, end=4), F.slice_axis(y, axis=1, begin=4, end=6), dim=1
    ),
    "products": lambda F, x, y: (
        F.slice_axis(
            F.tile(
                F.reshape(F.batch_dot(rows(F, x, 2, 3), rows(F, y, 3, 2)), shape=(-1, 4)), (1, 2)
            ),
            axis=1,
            begin=0,
            end=6,
        )
        * 0.3
    ),
}
LAYERS = {
    "dense": lambda: nn.Dense(WIDTH, in_units=WIDTH, activation="tanh"),
    "unbiased": lambda: nn.Dense(WIDTH, in_units=WIDTH, use_bias=False),
    "quantized": lambda: packed(None),
    "convolution": lambda: nn.Conv2D(2, 3, padding=1, in_channels=2),
    "deconvolution": lambda: nn.Conv2DTranspose(2, (1, 3), padding=(0, 1), in_channels=2),
    "batch_norm": lambda: nn.BatchNorm(in_channels=2),
    "layer_norm": lambda: nn.LayerNorm(in_channels=WIDTH),
    "group_norm": lambda: nn.GroupNorm(num_groups=2),
    "instance_norm": lambda: nn.InstanceNorm(in_channels=2),
    "prelu": lambda: nn.PReLU(),
    "rms": lambda: nn.RMSNorm(in_channels=WIDTH),
    "gated_mlp": lambda: nn.GatedMLP(WIDTH, 4, in_units=WIDTH),
    "attention": lambda: nn.MultiHeadAttention(
        2, 2, kv_heads=1, head_dim=4, qk_norm=True, rotary=True, window=2, in_units=2
    ),
    "lstm": lambda: rnn.LSTM(2, input_size=2),
    "gru": lambda: rnn.GRU(2, input_size=2),
    "experts": lambda: nn.MoE(WIDTH, 5, experts=3, k=2, shared=1, in_units=WIDTH),
}
PLANES = ("convolution", "deconvolution", "batch_norm", "group_norm", "instance_norm")


class Network(random_blocks.Network):
    """The nodes of a `Case` on several devices, or `together` on one."""

    def __init__(self, case, together):
        super().__init__(case, together)
        self.captured = [
            kinds.of_mode(nd.full((1, WIDTH), 0.5 + i / 8, ctx=place, dtype=case.dtype))
            for i, place in enumerate(self.places)
        ]

    @staticmethod
    def make(kind):
        return LAYERS[kind]()

    def compute(self, F, node, inputs):
        kind, layer = node.kind, node.layer
        if kind == "captured":
            return F.broadcast_mul(inputs[0], self.captured[node.device])
        if kind in UNARY:
            return UNARY[kind](F, inputs[0])
        if kind in BINARY:
            return BINARY[kind](F, *inputs)
        if kind in PLANES:
            return F.reshape(self.layers[layer](rows(F, inputs[0], 2, 1, 3)), shape=(-1, WIDTH))
        if kind in ("lstm", "gru"):
            steps = F.transpose(rows(F, inputs[0], 3, 2), axes=(1, 0, 2))
            return F.reshape(
                F.transpose(self.layers[layer](steps), axes=(1, 0, 2)), shape=(-1, WIDTH)
            )
        if kind == "attention":
            return F.reshape(self.layers[layer](rows(F, inputs[0], 3, 2)), shape=(-1, WIDTH))
        return self.layers[layer](inputs[0])

    def hybrid_forward(self, F, x):
        values = [x]
        for node in self.case.nodes:
            values.append(self.compute(F, node, self.inputs(node, values)))
        return [values[i].as_in_context(self.places[0]) for i in self.case.outputs]


class Case:
    """A network and its training, generated from a seed."""

    def __init__(self, seed):
        draw = np.random.RandomState(seed)
        self.seed, self.devices = seed, draw.randint(1, 7)
        self.dtype = draw.choice(
            ["float32", "float32", "float32", "float64", "float16", "bfloat16"]
        )
        self.second = draw.rand() < 0.5
        self.sizes = [int(n) for n in draw.choice([2, 4, 5], 2)]
        self.nodes, made = [], []
        for number in range(1, draw.randint(4, 20)):
            kinds = [*UNARY, *BINARY, *LAYERS, *LAYERS]
            if self.second:
                kinds = [kind for kind in kinds if kind not in FIRST_ORDER]
            kind = str(draw.choice(kinds))
            # prefers the latest values
            earlier = [int(i) for i in np.minimum(draw.geometric(0.5, 2), number)]
            inputs = [number - i for i in earlier[: 2 if kind in BINARY else 1]]
            device, layer = int(draw.randint(self.devices)), None
            if kind in LAYERS:
                alike = [m for m in made if m[0] == kind]
                if alike and draw.rand() < 0.3:
                    _, device, layer = alike[0]
                else:
                    layer = len(made)
                    made.append((kind, device, layer))
            self.nodes.append(Node(kind, device, inputs, layer))
        self.outputs = [
            len(self.nodes),
            *[int(i) for i in draw.randint(0, len(self.nodes) + 1, draw.randint(0, 3))],
        ]
        self.numpy = draw.rand() < 0.3  # also runs on arrays of mx.np

    def __str__(self):
        steps = "".join(f"\n  v{i + 1} = {node}" for i, node in enumerate(self.nodes))
        order = "second" if self.second else "first"
        return (
            f"seed {self.seed}: {self.dtype}{' of mx.np' if self.numpy else ''}, {order} order, "
            f"{self.devices} devices, rows "
            f"{self.sizes}{steps}\n  results {self.outputs}"
        )

    def run(self, flags, together, numpy=False):
        """Runs the case on arrays of mx.np, or of mx.nd if not `numpy`."""
        with (
            mx.util.np_shape(numpy),
            mx.util.np_array(numpy),
            mock.patch.object(offload, "SMALLEST", 1),
        ):
            return self.train(flags, together)

    def train(self, flags, together):
        """Returns results, gradients, parameters and running statistics of all steps as NumPy
        arrays. Predictions in between must not draw random numbers, which is checked by a
        different number of predictions in every way of running."""
        draws = any(node.kind == "draw" for node in self.nodes)
        predictions = 1 if draws else len(flags or ()) + together
        net = Network(self, together)
        if flags is not None:
            net.hybridize(**flags)
        mx.random.seed(self.seed + 1)
        params = list(net.collect_params().values())
        found = []
        for step, size in enumerate(self.sizes):
            values = np.random.RandomState(step).uniform(-1, 1, (size, WIDTH))
            x = kinds.of_mode(nd.array(values, ctx=on(0), dtype=self.dtype))
            x.attach_grad()
            with autograd.record():
                outputs = net(x)
                loss = nd.add_n(*[(out * out).mean() * (i + 1) for i, out in enumerate(outputs)])
                if self.second:
                    (gradient,) = autograd.grad(loss, [x], create_graph=True, retain_graph=True)
                    loss = loss + (gradient * gradient).sum()
            if not self.second:
                (gradient,) = autograd.grad(loss, [x], retain_graph=True)
            found.append(gradient.copy())
            gradient[:] = 100
            loss.backward()
            found += [*outputs, x.grad, *[p.grad().copy() for p in params if p.grad_req != "null"]]
            for p in params:
                if p.grad_req != "null":
                    p.set_data(p.data() - 0.1 * p.grad())
            found += [p.data().copy() for p in params]
            for array in net.captured:
                array *= 0.75
            for _ in range(predictions):
                net(x)
        found += net(kinds.of_mode(nd.ones((3, WIDTH), ctx=on(0), dtype=self.dtype)))
        return [array.astype("float64").asnumpy() for array in found]

    def check(self):
        # cores are divided among the devices in use, so open all devices first
        for d in range(self.devices):
            nd.zeros((1,), ctx=on(d)).wait_to_read()
        exact, default = self.run(None, True), self.run({}, True)
        recompute = {"recompute": True}
        away = {"offload": {"activations": on(self.seed % (self.devices + 1))}}
        for expected, ways in (
            (exact, [None, {"exact": True}, {"exact": True, **recompute}, {"exact": True, **away}]),
            (default, [{}, {"static_alloc": True}, recompute, away, {**recompute, **away}]),
        ):
            for flags in ways:
                for together in (True, False):
                    for i, (a, b) in enumerate(
                        zip(self.run(flags, together, self.numpy), expected, strict=True)
                    ):
                        where = "one device" if together else f"{self.devices} devices"
                        np.testing.assert_array_equal(
                            a, b, err_msg=f"{flags} on {where}, array {i}\n{self}"
                        )


if __name__ == "__main__":
    sys.exit(hunt(lambda seed, options: Case(seed)))
