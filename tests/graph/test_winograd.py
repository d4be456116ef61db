"""Winograd 3x3 convolutions: the ops and the rules that select them in graphs."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on


def random(shape, seed=0, dtype="float32"):
    return nd.array(np.random.RandomState(seed).uniform(-1, 1, shape), dtype=dtype)


def call(name, *arrays, **params):
    return _core.get_op(name)(*arrays, **params)


def wide(array):
    return array.astype("float64")


def error(result, expected):
    return np.linalg.norm(result.asnumpy() - expected.asnumpy()) / np.linalg.norm(
        expected.asnumpy()
    )


# batch, height, width, channels, filters, pad. Covers odd sizes, partial panels, few tiles with
# large weights and several blocks of tiles.
CASES = [
    (2, 14, 14, 64, 64, (1, 1)),
    (2, 7, 9, 32, 48, (1, 0)),
    (1, 5, 6, 16, 16, (0, 0)),
    (3, 8, 8, 16, 80, (2, 2)),
    (1, 3, 3, 16, 16, (0, 0)),
    (4, 28, 27, 32, 32, (1, 1)),
    (2, 7, 7, 272, 304, (1, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_winograd_convolution_matches_float64_reference(case):
    batch, height, width, channels, filters, pad = case
    x, weight, bias = (
        random((batch, height, width, channels), 1),
        random((filters, channels, 3, 3), 2),
        random((filters,), 3),
    )
    params = {"kernel": (3, 3), "pad": pad, "num_filter": filters}
    expected = call("_convolution_channels_last", wide(x), wide(weight), wide(bias), **params)
    result = call(
        "_winograd_convolution",
        x,
        call("_pack_winograd", weight),
        bias,
        pad=pad,
        num_filter=filters,
    )
    assert error(result, expected) < 1e-6
    grad, params = random(expected.shape, 4), {"pad": pad, "layout": "channels_last_data"}
    expected = call("_backward_convolution_data", wide(grad), wide(weight), shape=x.shape, **params)
    turned = call("_pack_winograd", weight, backward=True)
    result = call(
        "_winograd_convolution",
        grad,
        turned,
        no_bias=True,
        pad=(2 - pad[0], 2 - pad[1]),
        num_filter=channels,
    )
    assert error(result, expected) < 1e-6
    expected = call(
        "_backward_convolution_weight", wide(grad), wide(x), shape=weight.shape, **params
    )
    assert error(call("_winograd_backward_weight", grad, x, pad=pad), expected) < 1e-6


@pytest.mark.parametrize("shape", [(2, 28, 28, 32), (2, 7, 7, 272)])
def test_winograd_bits_do_not_depend_on_threads_or_batch(shape):
    filters = shape[3]
    x, weight, grad = random(shape, 1), random((filters, filters, 3, 3), 2), random(shape, 3)
    results = []
    try:
        for threads in (1, 2, 3, 7):
            mx.context.set_threads(threads)
            packed = call("_pack_winograd", weight)
            y = call(
                "_winograd_convolution", x, packed, no_bias=True, pad=(1, 1), num_filter=filters
            )
            parts = [
                call(
                    "_winograd_convolution",
                    x[i : i + 1],
                    packed,
                    no_bias=True,
                    pad=(1, 1),
                    num_filter=filters,
                )
                for i in range(shape[0])
            ]
            assert np.array_equal(y.asnumpy(), nd.concat(*parts, dim=0).asnumpy())
            results.append(
                [
                    a.asnumpy()
                    for a in (packed, y, call("_winograd_backward_weight", grad, x, pad=(1, 1)))
                ]
            )
    finally:
        mx.context.set_threads(0)
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other))


def test_winograd_epilogue_is_bitwise_equal_to_separate_ops():
    x, weight, bias, added = (
        random((2, 9, 8, 16), 1),
        random((32, 16, 3, 3), 2),
        random((32,), 3),
        random((2, 9, 8, 32), 4),
    )
    x[0, 3, 3, 0] = np.nan
    packed, params = call("_pack_winograd", weight), {"pad": (1, 1), "num_filter": 32}
    expected = call("_winograd_convolution", x, packed, no_bias=True, **params) + bias
    np.testing.assert_array_equal(
        call("_winograd_convolution", x, packed, bias, **params).asnumpy(), expected.asnumpy()
    )
    expected = nd.relu(expected + added)
    result = call(
        "_winograd_convolution", x, packed, bias, added, add=True, relu=True, **params
    ).asnumpy()
    np.testing.assert_array_equal(result, expected.asnumpy())
    assert np.isnan(result).any() and (result >= 0).any()


@pytest.mark.parametrize(
    "name, shapes, params",
    [
        ("_pack_winograd", [(16, 16, 3)], {}),
        ("_pack_winograd", [(16, 16, 5, 5)], {}),
        ("_pack_winograd", [(16, 17, 3, 3)], {}),
        ("_winograd_convolution", [(2, 8, 8), (4096,), (16,)], {"num_filter": 16}),
        ("_winograd_convolution", [(2, 8, 8, 17), (4352,), (16,)], {"num_filter": 16}),
        ("_winograd_convolution", [(2, 2, 8, 16), (4096,), (16,)], {"num_filter": 16}),
        ("_winograd_convolution", [(2, 8, 8, 16), (4095,), (16,)], {"num_filter": 16}),
        ("_winograd_convolution", [(2, 8, 8, 16), (4096,), (17,)], {"num_filter": 16}),
        (
            "_winograd_convolution",
            [(2, 8, 8, 16), (4096,), (16,)],
            {"num_filter": 16, "pad": (3, 3)},
        ),
        (
            "_winograd_convolution",
            [(2, 8, 8, 16), (4096,), (16,)],
            {"num_filter": 16, "pad": (1, 1, 1)},
        ),
        (
            "_winograd_convolution",
            [(2, 8, 8, 16), (4096,), (16,), (2, 8, 8, 16)],
            {"num_filter": 16, "add": True},
        ),
        (
            "_winograd_convolution",
            [(2, 8, 8, 16), (4096,), (16, 16, 3, 2), (16,)],
            {"num_filter": 16, "trains": True},
        ),
        ("_winograd_backward_weight", [(2, 8, 8, 16), (2, 8, 8, 16)], {}),
        ("_winograd_backward_weight", [(2, 8, 8, 16), (2, 8, 8, 16)], {"pad": (1,)}),
        ("_winograd_backward_weight", [(2, 8, 16), (2, 8, 8, 16)], {}),
    ],
)
def test_winograd_ops_refuse_wrong_shapes(name, shapes, params):
    with pytest.raises(mx.base.MXNetError, match=name):
        call(name, *[nd.zeros(shape) for shape in shapes], **params).wait_to_read()


def test_winograd_gradient_without_weight_is_refused():
    x = random((1, 4, 4, 16))
    x.attach_grad()
    with autograd.record():
        y = call("_winograd_convolution", x, nd.zeros((4096,)), no_bias=True, num_filter=16)
    with pytest.raises(mx.base.MXNetError, match="trains=True"):
        y.backward()


# --- In graphs ------------------------------------------------------------------------------------


class Net(gluon.HybridBlock):
    """Convolutions of several kinds, with the last part on another device."""

    def __init__(self, device, bias):
        super().__init__()
        self._device = device
        with self.name_scope():
            self.first, self.last = nn.HybridSequential(), nn.HybridSequential()
            self.first.add(
                nn.Conv2D(32, 3, 1, 1, use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
                nn.Conv2D(48, 3, 1, 1, use_bias=bias),
            )
            self.last.add(
                nn.Conv2D(32, 3, 1, 0, use_bias=bias),
                nn.Activation("relu"),
                nn.Conv2D(32, 3, 2, 1, use_bias=bias),
                nn.GlobalAvgPool2D(),
                nn.Dense(5),
            )

    def hybrid_forward(self, F, x):
        return self.last(self.first(x).as_in_context(on(self._device)))


def make(device=0, bias=False, batch=2):
    mx.random.seed(3)
    net = Net(device, bias)
    net.first.initialize(mx.init.Xavier(), ctx=on(0))
    net.last.initialize(mx.init.Xavier(), ctx=on(device))
    x = random((batch, 16, 20, 18), 5)
    net(x)
    return net, x


def step(net, x):
    x.attach_grad()
    with autograd.record():
        y = net(x)
        loss = (y * y).sum()
    loss.backward()
    return [y.asnumpy(), x.grad.asnumpy()] + [
        p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"
    ]


def ops(net, phase):
    return [
        s["op"]
        for entry in net.compiled()
        for device in entry["devices"].values()
        for s in device.get(phase, [])
        if "op" in s
    ]


@pytest.mark.parametrize("bias", [False, True])
def test_winograd_training_matches_eager(bias):
    net, x = make(bias=bias)
    eager = step(net, x)
    net.hybridize()
    for result, expected in zip(step(net, x), eager):
        assert np.linalg.norm(result - expected) <= 2e-6 * np.linalg.norm(expected)
    # Convolutions with 16 channels or with strides do not use Winograd
    assert ops(net, "forward").count("_winograd_convolution") == 2
    assert ops(net, "forward").count("_convolution_channels_last") == 2
    assert (
        ops(net, "backward").count("_winograd_backward_weight") == 2
        and ops(net, "backward").count("_winograd_convolution") == 2
    )
    net.hybridize(exact=True)
    for result, expected in zip(step(net, x), eager):
        np.testing.assert_array_equal(result, expected)


def test_winograd_training_bits_do_not_depend_on_placement():
    one, two = [], []
    for results, device in ((one, 0), (two, 1)):
        net, x = make(device)
        net.hybridize()
        results.extend(step(net, x))
        assert ops(net, "forward").count("_winograd_convolution") == 2
    assert all(np.array_equal(a, b) for a, b in zip(one, two))


def test_winograd_prediction_repacks_weights_after_update():
    net, x = make(bias=True)
    net.hybridize()
    for scale in (1, 0.5):
        for param in net.collect_params(".*weight").values():
            param.set_data(param.data() * scale)
        result = net(x).asnumpy()
        assert ops(net, "forward").count(
            "_winograd_convolution"
        ) == 2 and "_pack_winograd" not in ops(net, "forward")
        assert ops(net, "invariants").count("_pack_winograd") == 2
        net.hybridize(False)
        expected = net(x).asnumpy()
        assert np.linalg.norm(result - expected) <= 1e-6 * np.linalg.norm(expected)
        net.hybridize()


def test_winograd_is_not_used_for_few_tiles():
    net, x = make(batch=1)
    net.hybridize()
    step(net, x)
    assert "_winograd_convolution" not in ops(net, "forward")


def test_winograd_second_gradient_matches_eager():
    weight, x = random((32, 32, 3, 3), 1), random((4, 32, 16, 16), 2)

    class Convolve(gluon.HybridBlock):
        def hybrid_forward(self, F, x, weight):
            return F.Convolution(x, weight, kernel=(3, 3), pad=(1, 1), num_filter=32, no_bias=True)

    results = []
    for hybrid in (False, True):
        net = Convolve()
        if hybrid:
            net.hybridize()
        x.attach_grad()
        weight.attach_grad()
        with autograd.record():
            (first,) = autograd.grad((net(x, weight) ** 2).sum(), [x], create_graph=True)
            loss = (first * first).sum()
        loss.backward()
        results.append((x.grad.asnumpy(), weight.grad.asnumpy()))
    for a, b in zip(*results):
        assert np.linalg.norm(a - b) <= 3e-6 * np.linalg.norm(a)
