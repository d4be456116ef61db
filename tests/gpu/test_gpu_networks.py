"""Convolution, pooling, recurrent layers and attention on a GPU compared with the CPU, and small
networks of them over several devices."""

import itertools

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon
from mpgluon.gluon import nn, rnn
from support.compare import at, same_bits, same_on_both, uniform
from support.stand_in import needs_gpu, needs_stand_in
from support.training import backward_of

pytestmark = needs_gpu


AXES = {1: ((11,), "NCW", "NWC"), 2: ((9, 8), "NCHW", "NHWC"), 3: ((5, 6, 7), "NCDHW", "NDHWC")}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_convolutions_match_the_cpu(ndim, groups, dtype):
    """Covers strides, pads, dilations, both layouts, with and without bias: results and all
    gradients, also of deconvolutions."""
    space, first, last = AXES[ndim]
    for stride, dilate, layout in [(1, 1, first), (2, 1, last), (2, 2, first), (3, 2, last)]:
        kernel, channels_last = (3,) * ndim, layout == last
        steps = dict(stride=(stride,) * ndim, dilate=(dilate,) * ndim, pad=(1,) * ndim)
        options = dict(kernel=kernel, num_group=groups, layout=layout, **steps)
        data = (2,) + space + (4,) if channels_last else (2, 4) + space
        weight = (8,) + kernel + (4 // groups,) if channels_last else (8, 4 // groups) + kernel
        turned = (4,) + kernel + (8 // groups,) if channels_last else (4, 8 // groups) + kernel
        same_on_both(
            lambda x, w, b: mx.nd.Convolution(x, w, b, num_filter=8, **options),
            uniform(data, weight, (8,)),
            dtype,
        )
        same_on_both(
            lambda x, w: mx.nd.Convolution(x, w, num_filter=8, no_bias=True, **options),
            uniform(data, weight),
            dtype,
        )
        same_on_both(
            lambda x, w, b: mx.nd.Deconvolution(
                x, w, b, num_filter=8, no_bias=False, adj=(stride - 1,) * ndim, **options
            ),
            uniform(data, turned, (8,)),
            dtype,
        )


def test_convolutions_of_empty_and_single_element_arrays_match_the_cpu():
    for batch, channels, filters in [(0, 2, 3), (2, 0, 3), (1, 1, 1)]:
        same_on_both(
            lambda x, w, b: mx.nd.Convolution(x, w, b, kernel=(3, 3), num_filter=filters),
            uniform((batch, channels, 5, 5), (filters, channels, 3, 3), (filters,)),
        )


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_unaligned_convolutions_have_the_same_bits(dtype):
    random, results = np.random.RandomState(1), []
    values = [
        random.uniform(-1, 1, shape).astype(dtype) for shape in [(2, 3, 6, 5), (4, 3, 3, 3), (4,)]
    ]
    for shift in (0, 1, 3):
        arrays = [at(value, mx.gpu(0), dtype, shift) for value in values]
        for array in arrays:
            array.attach_grad()
        buffer = mx.nd.zeros((2 * 4 * 4 * 3 + shift,), ctx=mx.gpu(0), dtype=dtype)
        mx.nd.Convolution(
            *arrays, kernel=(3, 3), num_filter=4, out=buffer[shift:].reshape((2, 4, 4, 3))
        )
        with autograd.record():
            y = mx.nd.Convolution(*arrays, kernel=(3, 3), num_filter=4)
            apart = mx.nd.Convolution(*arrays[:2], kernel=(3, 3), num_filter=4, no_bias=True)
        autograd.backward([y, apart])
        results.append(
            [buffer[shift:].asnumpy(), y.asnumpy().ravel(), apart.asnumpy()]
            + [a.grad.asnumpy() for a in arrays]
        )
    for other in results[1:]:
        same_bits(results[0], other)
    np.testing.assert_array_equal(results[0][0], results[0][1])


@needs_stand_in  # cuDNN on a card may lack an engine for it
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NCW", "NDHWC"])
@pytest.mark.parametrize("groups", [1, 2])
def test_bias_is_added_before_rounding_if_cudnn_supports_it(groups, layout, dtype):
    """One graph rounds once. If the stand-in has no engine for that graph, the convolution and the
    bias addition round separately."""
    ndim, last, random = len(layout) - 2, layout.endswith("C"), np.random.RandomState(3)
    shapes = (
        [(2, 5, 4, 6)[: ndim + 1] + (4,), (8,) + (1,) * ndim + (4 // groups,), (8,)]
        if last
        else [(2, 4, 5, 4)[: ndim + 2], (8, 4 // groups) + (1,) * ndim, (8,)]
    )
    with mx.gpu(0):
        x, w, b = (mx.nd.array(random.uniform(-1, 1, shape)).astype(dtype) for shape in shapes)
        options = dict(kernel=(1,) * ndim, num_filter=8, num_group=groups, layout=layout)
        result = mx.nd.Convolution(x, w, b, **options)
        apart = mx.nd.Convolution(x, w, no_bias=True, **options)
        along = b.reshape((1,) * (ndim + 1) + (8,)) if last else b.reshape((1, 8) + (1,) * ndim)
        wide = mx.nd.Convolution(*(a.astype("float32") for a in (x, w, b)), **options)
        once = wide.astype(dtype).astype("float32").asnumpy()
        twice = mx.nd.broadcast_add(apart, along).astype("float32").asnumpy()
    assert (once != twice).any()
    np.testing.assert_array_equal(
        result.astype("float32").asnumpy(), twice if groups > 1 or ndim == 3 else once
    )


def test_evicted_convolution_plans_are_recreated():
    """Uses more convolutions than the plan cache holds."""
    with mx.gpu(0):
        data = [mx.nd.ones((1, 1, 1, i)) for i in range(40, 90)]
        weights = [mx.nd.ones((1, 1, 1, j)) for j in range(1, 26)]
        for _ in range(2):
            sums = [
                mx.nd.Convolution(x, w, kernel=w.shape[2:], num_filter=1, no_bias=True).sum()
                for x in data
                for w in weights
            ]
            assert [int(s.asscalar()) for s in sums] == [
                j * (i - j + 1) for i in range(40, 90) for j in range(1, 26)
            ]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("channels", [3, 16, 270])
@pytest.mark.parametrize("pool_type", ["max", "avg", "sum"])
def test_pooling_has_the_same_bits_in_both_layouts(pool_type, channels, dtype):
    """Channels last equals channels first, forward and backward, at any address. Some windows
    contain NaN or only -infinity."""
    random = np.random.RandomState(channels)
    images = random.randn(2, 9, 7, channels).astype("float32")
    images[0, :4, :4] = -np.inf if pool_type == "max" else 1
    images[1, 5, 5] = np.nan
    for kernel, stride, pad in ((3, 2, 1), (2, 2, 0), (3, 1, 1)):
        found = []
        for layout, place in (("NCHW", 0), ("NHWC", 0), ("NHWC", 1)):
            last = layout == "NHWC"
            turned = images if last else images.transpose(0, 3, 1, 2)
            x = at(turned, mx.gpu(0), dtype, place)
            x.attach_grad()
            windows = dict(kernel=(kernel,) * 2, stride=(stride,) * 2, pad=(pad,) * 2)
            with autograd.record():
                y = mx.nd.Pooling(x, pool_type=pool_type, layout=layout, **windows)
            shape = y.shape if last else (y.shape[0], *y.shape[2:], y.shape[1])
            slopes = np.arange(y.size).reshape(shape).astype("float32") % 17 - 8
            slopes = slopes if last else slopes.transpose(0, 3, 1, 2)
            y.backward(mx.nd.array(slopes, ctx=mx.gpu(0)).astype(dtype))
            arrays = [a.astype("float64").asnumpy() for a in (y, x.grad)]
            found.append([a if last else a.transpose(0, 2, 3, 1) for a in arrays])
        for other in found[1:]:
            for a, b in zip(found[0], other):
                assert np.array_equal(a, b, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "pool_type, p", [("max", None), ("avg", None), ("sum", None), ("lp", 1), ("lp", 2), ("lp", 3)]
)
def test_pooling_matches_the_cpu(pool_type, p, dtype):
    """Covers conventions, padding, layouts, large windows, and equal elements, of which the first
    wins."""
    for ndim, convention, count_pad in itertools.product(
        (1, 2, 3), ("valid", "full", "same"), (True, False)
    ):
        space, first, last = AXES[ndim]
        for layout in (first, last):
            shape = (2, 3) + space if layout == first else (2,) + space + (3,)
            pad = (0,) * ndim if convention == "same" else (1,) * ndim
            values = uniform(shape, seed=ndim)
            if pool_type == "lp":
                values = [np.abs(v) + 0.1 for v in values]
            if pool_type == "max":
                values = [np.round(v * 3) for v in values]
            windows = dict(kernel=(3,) * ndim, stride=(2,) * ndim, pad=pad, layout=layout)
            how = dict(pooling_convention=convention, count_include_pad=count_pad)
            how.update(pool_type=pool_type, p_value=p)
            same_on_both(lambda x: mx.nd.Pooling(x, **windows, **how), values, dtype)
    values = [np.round(np.abs(uniform((2, 3, 13, 12))[0]) * 9) / 9 + 0.5]
    same_on_both(
        lambda x: mx.nd.Pooling(x, global_pool=True, pool_type=pool_type, p_value=p), values, dtype
    )
    same_on_both(
        lambda x: mx.nd.Pooling(x, kernel=(9, 10), pad=(4, 3), pool_type=pool_type, p_value=p),
        values,
        dtype,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "both-ways"])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_recurrent_layers_match_the_cpu(mode, bidirectional, dtype):
    """Three layers with dropout between them; includes gradients of the states."""
    hidden, layers, directions, gates = 5, 3, 1 + bidirectional, {"lstm": 4, "gru": 3}.get(mode, 1)
    size = sum(
        gates * hidden * directions * ((4 if layer == 0 else hidden * directions) + hidden + 2)
        for layer in range(layers)
    )
    state = (layers * directions, 3, hidden)
    values = uniform((7, 3, 4), (size,), *[state] * (2 if mode == "lstm" else 1))
    values[1] *= 0.5
    # The slope of relu jumps at 0, so keep rounded preactivations away from it
    if mode == "rnn_relu" and dtype in ("float16", "bfloat16"):
        values = [np.abs(v) / 2 for v in values]
    for p in (0, 0.4):
        options = dict(mode=mode, p=p, num_layers=layers, bidirectional=bidirectional)
        same_on_both(
            lambda *a: mx.nd.RNN(*a, state_size=hidden, state_outputs=True, **options),
            values,
            dtype,
        )


def test_clipped_lstm_matches_the_cpu():
    values = uniform((6, 2, 3), (4 * 4 * (3 + 4 + 2),), (1, 2, 4), (1, 2, 4))
    values[1] *= 3
    options = dict(state_size=4, num_layers=1, mode="lstm", state_outputs=True)
    clip = dict(lstm_state_clip_min=-0.25, lstm_state_clip_max=0.5)
    same_on_both(lambda *a: mx.nd.RNN(*a, **options, **clip), values)


def hidden_keys(length):
    """Returns a causal (rows, keys) mask with -1e4 for later keys."""
    return np.triu(np.full((length, length), -1e4, "float32"), 1)


def attend(p):
    """Attention of (batch * heads, rows, width), with or without a mask."""

    def function(q, k, v, *masks):
        scores = mx.nd.batch_dot(q, k, transpose_b=True) * 0.4
        for mask in masks:
            scores = mx.nd.broadcast_add(scores, mask)
        weights = mx.nd.softmax(scores)
        return mx.nd.batch_dot(mx.nd.Dropout(weights, p=p) if p else weights, v)

    return function


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("p", [0, 0.3])
def test_fused_attention_matches_the_cpu(p, dtype):
    """Covers results and gradients for more rows and keys than a tile, wide heads, and masks of
    rows and keys."""
    for rows, keys, width, value_width, mask in [
        (3, 5, 2, 4, None),
        (70, 131, 24, 72, (1, 70, 131)),
        (65, 65, 80, 8, (1, 65, 65)),
        (33, 64, 64, 64, (2, 1, 64)),
    ]:
        values = uniform((2, rows, width), (2, keys, width), (2, keys, value_width), seed=rows)
        masks = (
            [] if mask is None else [hidden_keys(65)[None] if rows == keys else uniform(mask)[0]]
        )
        dumps = []

        def run(*arrays):
            constants = [mx.nd.array(m, ctx=arrays[0].context).astype(dtype) for m in masks]
            op = _core.CachedOp(lambda *a: [attend(p)(*a)], {})
            results = op(*arrays, *constants)
            dumps.append(op.dump())
            return results

        same_on_both(run, values, dtype)
        assert len(dumps) == 2
        for dump in dumps:
            assert ("_dropout_attention(" if p else "_attention(") in dump
            assert "batch_dot(" not in dump


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_unaligned_attention_has_the_same_bits(dtype):
    values, results = uniform((2, 20, 16), (2, 36, 16), (2, 36, 8)), []
    for shift in (0, 1, 8):
        arrays = [at(value, mx.gpu(0), dtype, shift) for value in values]
        for array in arrays:
            array.attach_grad()
        op = _core.CachedOp(lambda *a: [attend(0)(*a)], {})
        with autograd.record():
            y = op(*arrays)
            y = y[0] if isinstance(y, list) else y
        y.backward()
        results.append([y.asnumpy()] + [a.grad.asnumpy() for a in arrays])
    for other in results[1:]:
        same_bits(results[0], other)


# --- Networks -------------------------------------------------------------------------------------


class Parts(gluon.HybridBlock):
    """Sequential parts of a network, each on its device."""

    def __init__(self, parts, devices):
        super().__init__(prefix="parts_")
        self.parts = list(zip(parts, devices))
        for index, (part, ctx) in enumerate(self.parts):
            setattr(self, f"part{index}", part)
            part.initialize(mx.init.Xavier(), ctx=ctx)

    def hybrid_forward(self, F, x):
        for part, ctx in self.parts:
            x = part(x.as_in_context(ctx))
        return x


def lenet():
    first, second = nn.HybridSequential(), nn.HybridSequential()
    first.add(
        nn.Conv2D(6, 5, in_channels=1, activation="tanh"),
        nn.MaxPool2D(2, 2),
        nn.BatchNorm(in_channels=6),
    )
    second.add(
        nn.Conv2D(8, 3, in_channels=6, activation="relu"),
        nn.AvgPool2D(2, 2),
        nn.Flatten(),
        nn.Dense(20, in_units=8 * 3 * 3, activation="tanh"),
        nn.Dense(5, in_units=20),
    )
    return [first, second], lambda random: (
        random.uniform(-1, 1, (8, 1, 20, 20)),
        random.randint(0, 5, (8,)),
    )


class Time(gluon.HybridBlock):
    """Transposes (batch, time, ...) to (time, batch, ...) around a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def hybrid_forward(self, F, x):
        return self.layer(x.transpose((1, 0, 2))).transpose((1, 0, 2))


def language_model():
    first, second = nn.HybridSequential(), nn.HybridSequential()
    first.add(nn.Embedding(30, 12), Time(rnn.LSTM(16, 2, dropout=0.3, input_size=12)))
    second.add(
        Time(rnn.GRU(10, input_size=16, bidirectional=True)),
        nn.Dropout(0.1),
        nn.Dense(30, in_units=20, flatten=False),
    )
    return [first, second], lambda random: (
        random.randint(0, 30, (4, 9)),
        random.randint(0, 30, (4, 9)),
    )


class Attending(gluon.HybridBlock):
    """A transformer layer: causal multi-head attention and two dense layers."""

    def __init__(self, units=16, heads=2, dropout=0.2):
        super().__init__()
        self.heads, self.units = heads, units
        self.norm = nn.LayerNorm(in_channels=units)
        self.qkv = nn.Dense(3 * units, in_units=units, flatten=False)
        self.out = nn.Dense(units, in_units=units, flatten=False)
        self.drop = nn.Dropout(dropout)
        self.after = nn.LayerNorm(in_channels=units)
        self.up = nn.Dense(4 * units, in_units=units, flatten=False)
        self.down = nn.Dense(units, in_units=4 * units, flatten=False)

    def hybrid_forward(self, F, x):
        def heads(y):
            return F.reshape(
                F.transpose(F.reshape(y, (0, 0, self.heads, -1)), (0, 2, 1, 3)), (-3, 0, 0)
            )

        q, k, v = (heads(part) for part in F.split(self.qkv(self.norm(x)), 3, axis=2))
        scores = F.batch_dot(q, k, transpose_b=True) / (self.units // self.heads) ** 0.5
        rows = F.arange(0, 12).reshape((-1, 1))
        hidden = F.broadcast_lesser(rows, F.arange(0, 12).reshape((1, -1)))
        hidden = F.cast(F.expand_dims(hidden * -1e9, 0), dtype=scores.dtype)
        weights = self.drop(F.softmax(F.broadcast_add(scores, hidden), axis=-1))
        y = F.reshape(
            F.transpose(
                F.reshape(F.batch_dot(weights, v), (-4, -1, self.heads, 0, 0)), (0, 2, 1, 3)
            ),
            (0, 0, -3),
        )
        x = x + self.out(y)
        return x + self.down(F.LeakyReLU(self.up(self.after(x)), act_type="gelu"))


def transformer():
    first, second = nn.HybridSequential(), nn.HybridSequential()
    first.add(nn.Embedding(30, 16), Attending())
    second.add(Attending(), nn.Dense(30, in_units=16, flatten=False))
    return [first, second], lambda random: (
        random.randint(0, 30, (3, 12)),
        random.randint(0, 30, (3, 12)),
    )


def train(make, devices, hybridize):
    mx.random.seed(3)
    parts, draw = make()
    net = Parts(parts, devices)
    if hybridize:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    loss, losses, random = gluon.loss.SoftmaxCrossEntropyLoss(), [], np.random.RandomState(0)
    for _ in range(5):
        x, y = (mx.nd.array(a, ctx=ctx) for a, ctx in zip(draw(random), devices))
        value = backward_of(lambda: loss(net(x), y))
        trainer.step(x.shape[0])
        losses.append(value.mean().asscalar())
    return np.array(losses)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("groups", [1, 2])
def test_biased_convolutions_have_the_same_bits_on_several_gpus(groups, dtype):
    """Activations are on the convolution's device, where cuDNN may fuse them, or on the next."""
    if mx.num_gpus() < 2:
        pytest.skip("one GPU")
    results = []
    for places in ((0, 0, 0, 0), (0, 1, 1, 0), (1, 1, 0, 0)):
        devices = [mx.gpu(place) for place in places]
        mx.random.seed(5)
        convolutions = [
            nn.Conv2D(
                6, 3, padding=1, groups=groups, in_channels=6, bias_initializer=mx.init.Normal(0.3)
            )
            for _ in range(2)
        ]
        net = Parts(
            [convolutions[0], nn.Activation("relu"), convolutions[1], nn.Activation("relu")],
            devices,
        )
        net.cast(dtype)
        net.hybridize()
        x = mx.nd.array(
            np.random.RandomState(0).uniform(-1, 1, (2, 6, 7, 7)), ctx=devices[0]
        ).astype(dtype)
        for _ in range(3):  # the third pass replays captures
            y = backward_of(lambda: net(x))
        results.append([y.asnumpy()] + [p.grad().asnumpy() for p in net.collect_params().values()])
    for other in results[1:]:
        same_bits(results[0], other)


@pytest.mark.parametrize("make", [lenet, language_model, transformer])
@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybridized"])
def test_networks_train_as_on_cpus(make, hybridize):
    """On one GPU, over two, and over a GPU and a CPU, the initial weights, dropout masks and losses
    are the same."""
    cpu = train(make, (mx.cpu(0), mx.cpu(1)), True)
    assert np.isfinite(cpu).all() and len(set(cpu)) == len(cpu)
    for devices in (
        (mx.gpu(0), mx.gpu(0)),
        (mx.gpu(0), mx.gpu(mx.num_gpus() - 1)),
        (mx.cpu(0), mx.gpu(0)),
    ):
        np.testing.assert_allclose(
            train(make, devices, hybridize), cpu, rtol=1e-5, err_msg=str(devices)
        )


# --- Products of 8-bit integers: the exact sums of the CPU, over tiles, groups, layouts and
# unaligned sizes.


def integers(shape, dtype, seed):
    low, high = (-128, 128) if dtype == "int8" else (0, 256)
    return np.random.RandomState(seed).randint(low, high, shape).astype(dtype)


def integers_on_both(op, data, weight, place, **params):
    """Runs the op on a CPU and a GPU with data that starts at byte `place` of its memory."""
    found = []
    for ctx in (mx.cpu(0), mx.gpu(0)):
        x, w = at(data, ctx, data.dtype, place), mx.nd.array(weight, ctx=ctx, dtype="int8")
        ends = [mx.nd.array([end], ctx=ctx) for end in (-1.0, 1.0)] * 2
        out = op(x, w, None, *ends, no_bias=True, **params)[0]
        assert out.dtype == np.int32 and out.context == ctx
        found.append(out.asnumpy())
    np.testing.assert_array_equal(*found)
    return found[1]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    "m, n, k", [(1, 1, 1), (3, 5, 7), (65, 70, 36), (130, 64, 65), (2, 3, 400)]
)
def test_int8_dense_is_exact(m, n, k, dtype, place):
    data, weight = integers((m, k), dtype, 0), integers((n, k), "int8", 1)
    out = integers_on_both(
        mx.nd.contrib.quantized_fully_connected, data, weight, place, num_hidden=n
    )
    np.testing.assert_array_equal(out, data.astype("int32") @ weight.astype("int32").T)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize(
    "batch, channels, filters, groups, size, kernel, how",
    [
        (2, 3, 5, 1, (9,), (3,), {}),
        (2, 8, 70, 1, (11, 9), (3, 2), {"stride": (2, 1), "pad": (2, 1)}),
        (1, 12, 6, 3, (8, 8), (3, 3), {"dilate": (2, 2), "pad": (1, 0)}),
        (3, 4, 4, 1, (4, 5, 6), (2, 3, 3), {"pad": (0, 1, 2)}),
    ],
)
def test_int8_convolution_equals_the_cpu(
    batch, channels, filters, groups, size, kernel, how, layout, dtype
):
    data, weight = (batch, channels, *size), (filters, channels // groups, *kernel)
    axes = (0, *range(2, len(data)), 1)
    data, weight = integers(data, dtype, 0), integers(weight, "int8", 1)
    how = {"kernel": kernel, "num_filter": filters, "num_group": groups, **how}
    if layout == "last":
        data, weight = (np.ascontiguousarray(a.transpose(axes)) for a in (data, weight))
        how["layout"] = {3: "NWC", 4: "NHWC", 5: "NDHWC"}[data.ndim]
    assert integers_on_both(mx.nd.contrib.quantized_conv, data, weight, 0, **how).any()


def test_int8_dense_accepts_empty_batches():
    none = np.zeros((0, 4), "int8")
    out = integers_on_both(
        mx.nd.contrib.quantized_fully_connected, none, np.ones((3, 4), "int8"), 0, num_hidden=3
    )
    assert out.shape == (0, 3)
