"""Channels-last convolutions: compiled graphs, results against eager, equal bits on many
devices."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo.vision import BasicBlockV1
from support.devices import on
from support.graphs import array, dump, ops, run

CONV = dict(kernel=(3, 3), pad=(1, 1), num_filter=8, no_bias=True)


def distance(a, b):
    return [
        np.linalg.norm(x.astype(np.float64) - y) / max(np.linalg.norm(y.astype(np.float64)), 1e-3)
        for x, y in zip(a, b, strict=True)
    ]


def check(function, arrays):
    """exact=True gives eager's bits.

    The default may differ from eager by 1e-6 in norm plus eager's own rounding error, measured as
    its distance from float64. Gradients through a normalization are small differences of large
    sums.
    """
    eager, truth = (
        run(function, arrays, hybridize=False),
        run(function, [a.astype("float64") for a in arrays], hybridize=False),
    )
    for a, b in zip(run(function, arrays, exact=True), eager, strict=True):
        assert np.array_equal(a, b)
    for found, allowed in zip(
        distance(run(function, arrays), eager), distance(eager, truth), strict=True
    ):
        assert found < 1e-6 + 4 * allowed


def names(lines):
    return [line.split(" = ")[1].split("(")[0] for line in lines if " = " in line]


def norm(x, channels=8, train=True, **kwargs):
    one, zero = (fill((channels,), ctx=x.context, dtype=x.dtype) for fill in (nd.ones, nd.zeros))
    return nd.BatchNorm(x, one, one * 2, zero, one * 1, fix_gamma=False, **kwargs)


X, W = array((2, 3, 7, 6), 0), array((8, 3, 3, 3), 1, scale=0.3)
V = array((8, 8, 3, 3), 2, scale=0.2)


def block(x, w, v):
    """A residual block with its surrounding ops."""
    x = nd.relu(norm(nd.Convolution(x, w, **CONV)))
    y = nd.relu(norm(nd.Convolution(x, v, **CONV)))
    y = nd.Activation(norm(nd.Convolution(y, v, **CONV)) + x, act_type="relu")
    return nd.Pooling(y, global_pool=True, pool_type="avg").reshape((0, -1))


def test_residual_block_graph_is_channels_last():
    lines = dump(block, X, W, V, train=True)
    assert [n for n in names(lines) if n not in ("_ones", "_zeros", "_mul_scalar", "_full")] == [
        "transpose",
        "_convolution_channels_last",
        "_batch_norm_relu",
        "_convolution_channels_last",
        "_batch_norm_relu",
        "_convolution_channels_last",
        "_batch_norm_relu",
        "Pooling",
        "_reshape_exact",
        "Reshape",
    ]
    assert any("add=True" in line for line in lines)
    assert "_convolution_channels_last" not in ops(block, X, W, V, exact=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_residual_blocks_are_channels_last(dtype):
    """Residual blocks of ResNet cast to half precision.

    Checks the graph and that results and gradients are as close to float32 as eager ones.
    """
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(16, 7, 2, 3, in_channels=3, use_bias=False),
        nn.BatchNorm(in_channels=16),
        nn.Activation("relu"),
        nn.MaxPool2D(3, 2, 1),
        BasicBlockV1(16, 1, in_channels=16),
        BasicBlockV1(24, 2, downsample=True, in_channels=16),
        nn.GlobalAvgPool2D(),
    )
    mx.random.seed(3)
    net.initialize(mx.init.Xavier(), ctx=on(0))
    images = array((4, 3, 20, 24), 5)
    net(images)
    values = [p.data().asnumpy() for p in net.collect_params().values()]

    def results(dtype, hybridize):
        net.cast(dtype)
        net.hybridize(hybridize)
        for p, value in zip(net.collect_params().values(), values):
            p.set_data(nd.array(value, dtype=p.dtype))
        x = images.astype(dtype)
        x.attach_grad()
        with autograd.record():
            y = net(x)
            loss = (y.astype("float32") * array(y.shape, 6)).sum()
        loss.backward()
        found = [y, x.grad] + [
            p.grad() for p in net.collect_params().values() if p.grad_req != "null"
        ]
        return [a.astype("float32").asnumpy() for a in found]

    truth, eager, compiled = (
        results("float32", False),
        results(dtype, False),
        results(dtype, True),
    )
    ran = names(dump(net, images.astype(dtype), train=True))
    assert ran.count("_convolution_channels_last") == 6 and "Convolution" not in ran
    assert ran.count("_batch_norm_relu") == 5
    assert "_max_pooling_channels_last" in ran and ran.count("transpose") <= 2
    for found, allowed in zip(distance(compiled, truth), distance(eager, truth), strict=True):
        assert found < 0.002 + 2 * allowed


def test_transposes_around_channels_last_data_cancel():
    """A user's channels-last arrays are not transposed."""

    def function(x, w):
        return nd.Convolution(nd.transpose(x, axes=(0, 3, 1, 2)), w, **CONV).transpose((0, 2, 3, 1))

    x = array((2, 7, 6, 3), 3)
    assert "transpose" not in ops(function, x, W)
    check(function, [x, W])


def test_max_pooling_keeps_argmax_bytes_for_training():
    """In training, pooling keeps one byte per element instead of data and result.

    Gradients equal eager's bit for bit, even if windows overlap.
    """

    def function(x, w, v):
        return nd.Pooling(
            nd.tanh(nd.Convolution(x, w, **CONV)), kernel=(3, 2), stride=(2, 1), pad=(1, 1)
        )

    lines = dump(function, X, W, V, train=True)
    assert "_max_pooling_channels_last" in names(lines)
    check(function, [X, W, V])


def test_transposes_between_convolutions_cancel():
    """A program's own transposes to channels last and back, between two convolutions."""

    def function(x, w, v):
        y = nd.Convolution(x, w, **CONV).transpose((0, 2, 3, 1))
        return nd.Convolution(nd.tanh(y).transpose((0, 3, 1, 2)), v, **CONV)

    assert ops(function, X, W, V).count("transpose") == 2  # input and output
    check(function, [X, W, V])


FUNCTIONS = {
    "block": (block, 1),
    "pooling": (
        lambda x, w, v: nd.Pooling(
            nd.Convolution(x, w, **CONV), kernel=(3, 3), stride=(2, 2), pad=(1, 1)
        ),
        2,
    ),
    "two norms": (
        lambda x, w, v: nd.relu(
            norm(nd.Convolution(x, w, **CONV))
            + norm(nd.Convolution(nd.Convolution(x, w, **CONV), v, **CONV))
        ),
        3,
    ),
    "residual from outside": (
        lambda x, w, v: nd.relu(
            nd.concat(x, x, x[:, :2], dim=1) + norm(nd.Convolution(x, w, **CONV))
        ),
        2,
    ),
    "transposed between": (
        lambda x, w, v: nd.Convolution(
            nd.relu(nd.Convolution(x, w, **CONV).transpose((0, 1, 3, 2))), v, **CONV
        ),
        5,
    ),
    "channels reshaped": (
        lambda x, w, v: nd.Convolution(
            nd.Convolution(x, w, **CONV)
            .reshape((0, 4, 2, 7, 6))
            .transpose((0, 2, 1, 3, 4))
            .reshape((0, 8, 7, 6)),
            v,
            **CONV,
        ),
        None,
    ),
    "concat": (
        lambda x, w, v: nd.concat(
            nd.Convolution(x, w, **CONV), nd.relu(nd.Convolution(x, w, **CONV)), dim=1
        ),
        None,
    ),
    "concat along batch": (
        lambda x, w, v: nd.concat(
            nd.Convolution(x, w, **CONV), nd.tanh(nd.Convolution(x, w, **CONV)), dim=0
        ),
        None,
    ),
    "concat along width": (
        lambda x, w, v: nd.concat(
            nd.Convolution(x, w, **CONV), nd.tanh(nd.Convolution(x, w, **CONV)), dim=-1
        ),
        None,
    ),
    "concat with outside": (
        lambda x, w, v: nd.concat(nd.Convolution(x, w, **CONV), x, dim=1),
        None,
    ),
    "split": (
        lambda x, w, v: nd.split(nd.Convolution(x, w, **CONV), num_outputs=2, axis=1)[0] * 2,
        None,
    ),
    "squeeze and excite": (
        lambda x, w, v: nd.broadcast_mul(
            nd.Convolution(x, w, **CONV),
            nd.sigmoid(nd.Pooling(nd.Convolution(x, w, **CONV), global_pool=True, pool_type="avg")),
        ),
        None,
    ),
    "per channel": (
        lambda x, w, v: nd.broadcast_add(
            nd.Convolution(x, w, **CONV), nd.mean(v, axis=(1, 2, 3)).reshape((1, 8, 1, 1))
        ),
        None,
    ),
    "per place": (
        lambda x, w, v: nd.broadcast_mul(
            nd.Convolution(x, w, **CONV), nd.sigmoid(nd.mean(x, axis=1, keepdims=True))
        ),
        None,
    ),
    "leaky": (
        lambda x, w, v: nd.Convolution(
            nd.LeakyReLU(nd.Convolution(x, w, **CONV), act_type="leaky", slope=0.1), v, **CONV
        ),
        None,
    ),
    "elu": (
        lambda x, w, v: nd.Convolution(
            nd.LeakyReLU(nd.Convolution(x, w, **CONV), act_type="elu", slope=0.5), v, **CONV
        ),
        None,
    ),
    "prelu": (
        lambda x, w, v: nd.LeakyReLU(
            nd.Convolution(x, w, **CONV), nd.mean(v, axis=(1, 2, 3)), act_type="prelu"
        ),
        None,
    ),
    "dropout": (
        lambda x, w, v: nd.Convolution(nd.Dropout(nd.Convolution(x, w, **CONV), p=0.5), v, **CONV),
        None,
    ),
    "softmax over channels": (
        lambda x, w, v: nd.softmax(nd.Convolution(x, w, **CONV), axis=1),
        None,
    ),
    "norm along width": (lambda x, w, v: norm(nd.Convolution(x, w, **CONV), 6, axis=3), None),
    "norm read twice": (
        lambda x, w, v: (lambda y: nd.relu(y) + y)(norm(nd.Convolution(x, w, **CONV))),
        None,
    ),
    "sum of the norm twice": (
        lambda x, w, v: (lambda y: nd.relu(y + y))(norm(nd.Convolution(x, w, **CONV))),
        None,
    ),
    "clip and scale": (lambda x, w, v: nd.clip(nd.Convolution(x, w, **CONV) * 2 + 1, 0, 6), None),
    "grouped": (
        lambda x, w, v: nd.Convolution(nd.Convolution(x, w, **CONV), v[:, :2], num_group=4, **CONV),
        None,
    ),
    "depthwise": (
        lambda x, w, v: nd.Convolution(nd.Convolution(x, w, **CONV), v[:, :1], num_group=8, **CONV),
        None,
    ),
    "dilated": (
        lambda x, w, v: nd.Convolution(
            x, w, kernel=(3, 3), dilate=(2, 1), stride=(1, 2), num_filter=8, no_bias=True
        ),
        None,
    ),
    "with bias": (
        lambda x, w, v: nd.Convolution(
            x, w, nd.mean(v, axis=(1, 2, 3)), kernel=(3, 3), num_filter=8
        ),
        None,
    ),
    "one place": (
        lambda x, w, v: nd.relu(
            nd.Convolution(x[:, :, :3, :3], w, kernel=(3, 3), num_filter=8, no_bias=True)
        ),
        None,
    ),
    "one channel": (
        lambda x, w, v: nd.relu(
            nd.Convolution(
                nd.Convolution(x, w[:1], kernel=(3, 3), num_filter=1, no_bias=True),
                w[:, :1],
                kernel=(3, 3),
                num_filter=8,
                no_bias=True,
            )
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_channels_last_functions_match_eager(name):
    function, transposes = FUNCTIONS[name]
    arrays = [a.copy() for a in (X, W, V)]
    check(function, arrays)
    if transposes is not None:
        assert ops(function, *arrays).count("transpose") == transposes


@pytest.mark.parametrize(
    "name, data, weight, params",
    [
        ("one axis", (2, 3, 9), (4, 3, 3), {}),
        ("three axes", (1, 2, 4, 5, 3), (4, 2, 2, 3, 1), {}),
        ("no rows", (0, 3, 6, 6), (4, 3, 3, 3), {}),
        ("one", (1, 1, 1, 1), (1, 1, 1, 1), {}),
        ("odd", (3, 5, 11, 2), (7, 5, 4, 1), {"stride": (3, 1), "pad": (2, 0)}),
    ],
)
def test_channels_last_convolution_shapes_match_eager(name, data, weight, params):
    def function(x, w):
        y = nd.Convolution(x, w, kernel=weight[2:], num_filter=weight[0], no_bias=True, **params)
        return nd.relu(norm(y, weight[0])) if y.size else y

    check(function, [array(data, 4), array(weight, 5)])


class Cut(gluon.HybridBlock):
    """A small ResNet with each piece on the device given by `places`, even inside a block."""

    def __init__(self, devices, places):
        super().__init__()
        self._at = [devices[p % len(devices)] for p in places]
        with self.name_scope():
            self.layers = nn.HybridSequential()
            for i in range(4):
                self.layers.add(
                    nn.Conv2D(8, 3, padding=1, use_bias=False, in_channels=3 if i == 0 else 8)
                )
            self.norms = nn.HybridSequential()
            for _ in range(4):
                self.norms.add(nn.BatchNorm(in_channels=8))
            self.dense = nn.Dense(5, in_units=8)

    def initialize_on(self):
        for i in range(4):
            self.layers[i].initialize(mx.init.Xavier(), ctx=self._at[2 * i])
            self.norms[i].initialize(ctx=self._at[2 * i + 1])
        self.dense.initialize(mx.init.Xavier(), ctx=self._at[8])

    def hybrid_forward(self, F, x):
        at = self._at
        for i in range(4):
            residual = x
            x = self.layers[i](x.as_in_context(at[2 * i]))
            x = self.norms[i](x.as_in_context(at[2 * i + 1]))
            if i % 2:
                x = x.as_in_context(at[9]) + residual.as_in_context(at[9])
            x = F.relu(x.as_in_context(at[10]))
            if i == 1:
                x = F.Pooling(
                    x.as_in_context(at[11]),
                    kernel=(3, 3),
                    stride=(2, 2),
                    pad=(1, 1),
                    pool_type="max",
                )
        x = F.Pooling(x, global_pool=True, pool_type="avg")
        return self.dense(x.as_in_context(at[8]))


@pytest.mark.parametrize(
    "places",
    [
        [0] * 6 + [1] * 6,
        [i % 3 for i in range(12)],
        [0, 1, 1, 0, 2, 2, 0, 1, 2, 0, 1, 2],
        [2] * 11 + [0],
    ],
)
def test_channels_last_bits_do_not_depend_on_placement(places):
    def train(count):
        mx.random.seed(4)
        net = Cut([on(90 + i) for i in range(count)], places)
        net.initialize_on()
        net.hybridize()
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}
        )
        x = array((4, 3, 9, 7), 8, ctx=on(90))
        results = []
        for _ in range(2):
            with autograd.record():
                y = net(x)
            y.backward(nd.ones_like(y))
            trainer.step(4)
            results.append(y.asnumpy())
        return results + [p.data(p.list_ctx()[0]).asnumpy() for p in net.collect_params().values()]

    for a, b in zip(train(1), train(3), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("channels", [3, 20])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("where", ["data", "residual", "weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_channels_last_keeps_nan_and_infinity(channels, train, where, value):
    """Results and gradients are NaN or infinite in the same elements as eager ones."""
    conv = dict(kernel=(1, 1), num_filter=channels, no_bias=True)

    def function(x, w, residual):
        y = norm(nd.Convolution(x, w, **conv), channels, use_global_stats=not train)
        z = norm(nd.Convolution(residual, w * 0.5, **conv), channels, use_global_stats=not train)
        return nd.relu(y + nd.relu(nd.Convolution(residual, w, **conv))) + nd.relu(z)

    arrays = [array((2, 4, 5, 3), 1), array((channels, 4, 1, 1), 2), array((2, 4, 5, 3), 3)]
    bad = {"data": arrays[0], "weight": arrays[1], "residual": arrays[2]}[where]
    bad[1 if where != "weight" else 2, 1] = value
    for found, eager in zip(
        run(function, arrays), run(function, arrays, hybridize=False), strict=True
    ):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(eager))
        np.testing.assert_array_equal(
            np.where(np.isinf(found), found, 0), np.where(np.isinf(eager), eager, 0)
        )


def test_channels_last_training_keeps_eager_moving_statistics():
    """Channels-last training keeps the same moving statistics as eager training."""

    def train(hybridize):
        mx.random.seed(4)
        net = nn.HybridSequential()
        net.add(
            nn.Conv2D(20, 3, in_channels=3),
            nn.BatchNorm(in_channels=20),
            nn.Activation("relu"),
            nn.GlobalAvgPool2D(),
            nn.Dense(2, in_units=20),
        )
        net.initialize(mx.init.Xavier())
        if hybridize:
            net.hybridize()
        for _ in range(3):
            with autograd.record():
                net(X * 3 + 1).backward()
        return (
            net(X).asnumpy(),
            net[1].running_mean.data().asnumpy(),
            net[1].running_var.data().asnumpy(),
        )

    for a, b in zip(train(True), train(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3, 16, 20, 50, 64, 70, 130])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_max_pooling_in_training_is_equal_in_both_layouts(dtype, channels):
    """Equal bit for bit, with zeros of both signs and NaN, for full and partial channel vectors."""
    random = np.random.RandomState(channels)
    x = random.randn(2, 9, 11, channels)
    x[random.rand(*x.shape) < 0.1] = -0.0
    x[random.rand(*x.shape) < 0.1] = 0
    x[random.rand(*x.shape) < 0.02] = np.nan
    for kernel, stride, pad in ((3, 1, 1), (2, 2, 0), (5, 3, 2)):
        results = []
        for layout in ("NHWC", "NCHW"):
            turn = (lambda a: a) if layout == "NHWC" else (lambda a: a.transpose(0, 3, 1, 2))
            back = (lambda a: a) if layout == "NHWC" else (lambda a: a.transpose(0, 2, 3, 1))
            net = nn.HybridSequential()
            net.add(nn.MaxPool2D(kernel, stride, pad, layout=layout))
            net.hybridize()
            data = nd.array(turn(x), dtype=dtype)
            data.attach_grad()
            with autograd.record():
                out = net(data)
            slopes = np.arange(out.size).reshape(back(out.asnumpy()).shape) % 17 - 8
            out.backward(nd.array(turn(slopes), dtype=dtype))
            results.append((back(out.asnumpy()), back(data.grad.asnumpy())))
        for a, b in zip(*results):
            assert np.array_equal(a, b, equal_nan=True) and np.array_equal(
                np.signbit(a), np.signbit(b)
            ), (kernel, stride, pad)
