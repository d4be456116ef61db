"""Convolutions in row panels with fused epilogues: equal bits and no extra pass over memory."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn
from support.compare import same_bits
from support.functions import check, compiled, draw, groups


def winograd(x, weight, *bias, pad=(1, 1)):
    op, pack = _core.get_op("_winograd_convolution"), _core.get_op("_pack_winograd")
    return op(
        x,
        pack(weight),
        weight,
        *bias,
        trains=True,
        no_bias=not bias,
        num_filter=weight.shape[0],
        pad=pad,
    )


NAME = "_winograd_convolution"
FUNCTIONS = {
    "relu": (lambda x, w, b, r: nd.relu(winograd(x, w, b)), ["relu"]),
    "activation, no bias": (
        lambda x, w, b, r: nd.Activation(winograd(x, w), act_type="relu"),
        ["Activation"],
    ),
    "residual, relu": (
        lambda x, w, b, r: nd.relu(winograd(x, w, b) + r),
        ["broadcast_add", "relu"],
    ),
    "residual first": (
        lambda x, w, b, r: nd.relu(r + winograd(x, w, b)),
        ["broadcast_add", "relu"],
    ),
    "residual twice": (
        lambda x, w, b, r: winograd(x, w, b) + r + r,
        ["broadcast_add", "broadcast_add"],
    ),
    "twice itself": (
        lambda x, w, b, r: (lambda y: nd.relu(y + y))(winograd(x, w, b)),
        ["broadcast_add", "relu"],
    ),
    "row": (
        lambda x, w, b, r: nd.relu(nd.broadcast_add(winograd(x, w), b.reshape((1, 1, 1, -1)))),
        ["broadcast_add", "relu"],
    ),
    "dropout": (
        lambda x, w, b, r: nd.Dropout(nd.relu(winograd(x, w, b)), p=0.4, mode="always"),
        ["relu", "Dropout"],
    ),
    "gelu, residual": (
        lambda x, w, b, r: nd.LeakyReLU(winograd(x, w, b), act_type="gelu") + r,
        ["LeakyReLU", "broadcast_add"],
    ),
    "relu, then more": (
        lambda x, w, b, r: nd.tanh(nd.relu(winograd(x, w, b)) * 2) + r,
        ["relu", "_mul_scalar", "tanh", "broadcast_add"],
    ),
    "relu, kept": (
        lambda x, w, b, r: (lambda y: [y, nd.square(y)])(nd.relu(winograd(x, w, b))),
        ["relu", "square"],
    ),
    "itself kept": (lambda x, w, b, r: (lambda y: [y, nd.relu(y)])(winograd(x, w, b)), ["relu"]),
    "made before": (lambda x, w, b, r: nd.relu(winograd(x, w, b) + nd.tanh(r)), None),
    "sum of channels": (
        lambda x, w, b, r: nd.square(winograd(x, w, b)).sum(axis=3),
        ["square", "sum"],
    ),
    "sum for a bias": (lambda x, w, b, r: nd.relu(winograd(x, w, b)).sum(axis=(0, 1, 2)), None),
}
SHAPES = {
    "rows": (8, 28, 28, 48),
    "images": (24, 15, 15, 64),
    "a part of a panel": (17, 9, 13, 144),
}


def arrays_of(shape):
    channels = shape[3]
    x, w, b, r = draw(shape, (channels, channels, 3, 3), (channels,), shape)
    return [x, w * 0.1, b, r]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "shape, threads",
    [("rows", 1), ("rows", 2), ("rows", 20), ("images", 2), ("a part of a panel", 2)],
)
def test_fused_convolution_epilogue_is_bitwise_equal(name, shape, threads):
    function, members = FUNCTIONS[name]
    mx.context.set_threads(threads)
    try:
        op = check(function, arrays_of(SHAPES[shape]))
        if members:
            assert [NAME] + members in groups(op, entry=1)
        assert any(group[0] == NAME for group in groups(op, entry=1))
    finally:
        mx.context.set_threads(0)


def test_convolution_epilogue_keeps_nan_and_sign_of_zero():
    x, w, b, r = arrays_of(SHAPES["rows"])
    w[:] = 0
    b[:] = -0.0
    r[:] = -0.0
    x[0, 3, 4, 5] = float("nan")
    r[1, 2, 3, 4] = float("nan")
    for name in ["relu", "residual, relu", "relu, kept"]:
        function, _ = FUNCTIONS[name]
        found, wanted = compiled(function)(x, w, b, r), function(x, w, b, r)
        for a, e in zip(found, wanted if isinstance(wanted, list) else [wanted]):
            a, e = a.asnumpy(), e.asnumpy()
            assert np.isnan(e).any()
            np.testing.assert_array_equal(np.isnan(a), np.isnan(e))
            np.testing.assert_array_equal(np.signbit(a), np.signbit(e))


def test_relu_gradient_fuses_into_convolution_and_keeps_nan():
    """The data gradient is also a convolution: relu's gradient and the bias sum fuse into its
    panels."""

    def f(x, w, b, v):
        return winograd(nd.relu(x + b.reshape((1, 1, 1, -1))), w, v)

    x, w, b, _ = arrays_of((16, 56, 56, 32))
    x[0, 3, 4, 5] = float("nan")
    op = check(f, [x, w, b, b * 0.3])
    assert [NAME, "_backward_relu", "sum"] in groups(op, "backward")


def test_groups_dump_shows_convolution_epilogue():
    op = compiled(FUNCTIONS["dropout"][0])
    op(*arrays_of(SHAPES["rows"]))
    assert (
        op.groups()
        == """forward on cpu(0) (301056)
  panel = _winograd_convolution(in0, in1, in2, in3) in panels of 392 rows
  slot0 = relu(panel) : float32 (301056,)
  out0, slot1 = Dropout(slot0) : float32 (301056,)
"""
    )


def test_small_convolutions_are_not_split_into_panels():
    for shape in [(2, 28, 28, 32), (16, 7, 7, 512), (1, 64, 64, 64)]:
        op = compiled(FUNCTIONS["relu"][0])
        op(*arrays_of(shape))
        assert groups(op) == ([[NAME, "relu"]] if shape[0] == 1 else [])


class Net(gluon.HybridBlock):
    def __init__(self, other=None, **kwargs):
        super().__init__(**kwargs)
        self.other = other
        with self.name_scope():
            self.first = nn.Conv2D(32, 3, padding=1, in_channels=32, activation="relu")
            self.second = nn.Conv2D(32, 3, padding=1, in_channels=32)

    def hybrid_forward(self, F, x):
        y = self.first(x)
        if self.other is not None:
            y = y.as_in_context(self.other)
        return F.relu(self.second(y) + y)


@pytest.mark.parametrize("threads", [1, 2])
def test_network_without_norm_is_bitwise_equal_fused_and_unfused(threads):
    """Training gives equal bits fused and unfused, and on one device and on two."""
    mx.context.set_threads(threads)
    try:
        data = nd.random.uniform(-1, 1, shape=(12, 32, 28, 28), ctx=mx.cpu(60))
        found = []
        for other, options in [(None, {}), (None, {"fuse": False}), (mx.cpu(61), {})]:
            mx.random.seed(5)
            net = Net(other, prefix="net_")
            net.first.initialize(mx.init.Xavier(), ctx=mx.cpu(60))
            net.second.initialize(mx.init.Xavier(), ctx=other or mx.cpu(60))
            x = data.copy()
            x.attach_grad()
            op = _core.CachedOp(net.forward, options)
            for _ in range(2):
                with autograd.record():
                    y = op(x)[0]
                y.backward()
            found.append(
                [y.asnumpy(), x.grad.asnumpy()]
                + [p.grad().asnumpy() for p in net.collect_params().values()]
            )
            heads = [
                g[1:]
                for phase in ("forward", "backward")
                for g in groups(op, phase)
                if g[0] == NAME
            ]
            backward = [["elemwise_add", "_backward_relu"] if other is None else ["elemwise_add"]]
            assert heads == (
                [] if options else [["Activation"], ["broadcast_add", "relu"]] + backward
            )
        same_bits(found[1], found[0])
        same_bits(found[2], found[0])
    finally:
        mx.context.set_threads(0)
