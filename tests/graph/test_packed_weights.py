"""Convolutions whose weights are packed once for prediction, with their epilogues in the same
call."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn

RNG = np.random.RandomState


def random(shape, seed=0):
    return nd.array(RNG(seed).uniform(-1, 1, shape))


def call(name, *arrays, **params):
    return _core.get_op(name)(*arrays, **params)


# (channels-last data shape, weight shape, parameters)
CASES = {
    "3x3": ((2, 14, 14, 64), (64, 64, 3, 3), {"pad": (1, 1)}),
    "3x3, one sample": ((1, 28, 28, 32), (48, 32, 3, 3), {"pad": (1, 1)}),
    "strided": ((2, 14, 14, 64), (128, 64, 3, 3), {"pad": (1, 1), "stride": (2, 2)}),
    "1x1": ((2, 14, 14, 64), (128, 64, 1, 1), {"stride": (2, 2)}),
    "first": ((1, 40, 40, 3), (64, 3, 7, 7), {"pad": (3, 3), "stride": (2, 2)}),
    "odd": ((2, 9, 7, 5), (7, 5, 3, 2), {}),
    "dilated": ((2, 16, 16, 16), (16, 16, 3, 3), {"dilate": (2, 2)}),
    "depthwise": ((2, 12, 12, 32), (32, 1, 3, 3), {"pad": (1, 1), "num_group": 32}),
    "grouped": ((2, 12, 12, 32), (64, 8, 3, 3), {"pad": (1, 1), "num_group": 4}),
    "one axis": ((2, 50, 16), (24, 16, 5), {}),
    "three axes": ((1, 6, 8, 8, 16), (16, 16, 3, 3, 3), {}),
    "empty": ((0, 8, 8, 4), (4, 4, 3, 3), {}),
}


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    "add, relu, bias",
    [(False, False, False), (False, True, True), (True, True, True), (True, False, False)],
)
@pytest.mark.parametrize("case", CASES)
def test_packed_convolution_is_bitwise_equal_to_replaced_ops(case, add, relu, bias, channels_last):
    shape, weight_shape, params = CASES[case]
    x, weight = random(shape, 1), random(weight_shape, 2)
    if not channels_last:
        x = nd.array(np.moveaxis(x.asnumpy(), -1, 1))
    params = {"kernel": weight_shape[2:], "num_filter": weight_shape[0], **params}
    arrays = [random(weight_shape[:1], 3)] * bias
    plain = call(
        "_convolution_channels_last" if channels_last else "Convolution",
        x,
        weight,
        *arrays,
        no_bias=not bias,
        **params,
    )
    extra = [random(plain.shape, 4)] * add
    expected = plain + extra[0] if add else plain
    expected = nd.relu(expected) if relu else expected
    flags = {
        "no_bias": not bias,
        "channels_last": channels_last,
        "add": add,
        "relu": relu,
        **params,
    }
    packed = call("_pack_convolution", weight, shape=x.shape, **flags)
    result = call("_packed_convolution", x, packed, *arrays, *extra, **flags)
    assert np.array_equal(result.asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("add", [False, True])
def test_packed_convolution_relu_keeps_nan_and_sign_of_zero(add, channels_last):
    """Holds for NaN in the data, the weight and the added array, as in every relu."""
    shape, weight_shape, params = (
        CASES["first"] if channels_last else ((1, 3, 40, 40), *CASES["first"][1:])
    )
    flags = {
        "kernel": (7, 7),
        "num_filter": 64,
        "channels_last": channels_last,
        "add": add,
        "no_bias": not add,
        **params,
    }
    for place in ["data", "weight"] + ["added"] * add:
        x, weight, bias = random(shape, 1), random(weight_shape, 2), [nd.full((64,), -0.0)] * add
        plain = call(
            "_convolution_channels_last" if channels_last else "Convolution",
            x,
            weight,
            *bias,
            no_bias=not add,
            kernel=(7, 7),
            num_filter=64,
            **params,
        )
        extra = [nd.full(plain.shape, -0.0)] * add
        {"data": x, "weight": weight, "added": extra[0] if add else x}[place][0, 1, 2, 1] = float(
            "nan"
        )
        plain = call(
            "_convolution_channels_last" if channels_last else "Convolution",
            x,
            weight,
            *bias,
            no_bias=not add,
            kernel=(7, 7),
            num_filter=64,
            **params,
        )
        expected = nd.relu(plain + extra[0] if add else plain).asnumpy()
        packed = call("_pack_convolution", weight, shape=shape, **flags, relu=True)
        result = call("_packed_convolution", x, packed, *bias, *extra, **flags, relu=True).asnumpy()
        assert np.isnan(expected).any() and not np.isnan(expected).all()
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


def test_packed_network_propagates_nan():
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(8, 5, activation="relu", in_channels=3),
        nn.Conv2D(8, 1, activation="relu", in_channels=8),
    )
    net.initialize(mx.init.Xavier())
    x = random((2, 3, 16, 16))
    x[0, 0, 3, 3] = float("nan")
    eager = np.isnan(net(x).asnumpy())
    net.hybridize()
    np.testing.assert_array_equal(np.isnan(net(x).asnumpy()), eager)
    assert eager.any() and not eager.all() and ops(net).count("_packed_convolution") == 2


def test_weight_packed_with_other_thread_count_gives_same_bits():
    shape, weight_shape, params = CASES["3x3"]
    x, weight = random(shape, 1), random(weight_shape, 2)
    flags = {"kernel": (3, 3), "num_filter": 64, "channels_last": True, "no_bias": True, **params}
    try:
        mx.context.set_threads(1)
        packed = call("_pack_convolution", weight, shape=shape, **flags)
        expected = call("_packed_convolution", x, packed, **flags).asnumpy()
        mx.context.set_threads(3)
        np.testing.assert_array_equal(
            call("_packed_convolution", x, packed, **flags).asnumpy(), expected
        )
    finally:
        mx.context.set_threads(0)


@pytest.mark.parametrize(
    "name, shapes, params",
    [
        ("_pack_convolution", [(4, 3, 3, 3)], {"shape": (2, 5, 8, 8)}),
        ("_pack_convolution", [(4, 3, 3, 3)], {"shape": (2, 3, 2, 8)}),
        ("_pack_convolution", [(4, 3, 3, 3)], {"shape": (2, 3)}),
        ("_packed_convolution", [(2, 3, 8, 8), (17,), (4,)], {}),
        ("_packed_convolution", [(2, 3, 8, 8), (2320,), (5,)], {}),
        ("_packed_convolution", [(2, 3, 8, 8), (2320,), (4,), (2, 4, 6, 5)], {"add": True}),
        ("_packed_convolution", [(2, 3, 8, 8), (2320,), (4,)], {"pad": (1, 1, 1)}),
        ("_packed_convolution", [(2, 3, 8, 8), (2320,), (4,)], {"num_group": 2}),
    ],
)
def test_packed_convolution_refuses_wrong_shapes(name, shapes, params):
    with pytest.raises(mx.base.MXNetError):
        call(
            name, *[nd.zeros(shape) for shape in shapes], kernel=(3, 3), num_filter=4, **params
        ).wait_to_read()


class Residual(gluon.HybridBlock):
    def __init__(self, channels, stride=1, device=0):
        super().__init__()
        self._device = device
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(
                nn.Conv2D(channels, 3, stride, 1, use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
                nn.Conv2D(channels, 3, 1, 1, use_bias=False),
                nn.BatchNorm(),
            )
            self.shortcut = nn.HybridSequential()
            if stride > 1:
                self.shortcut.add(nn.Conv2D(channels, 1, stride, use_bias=False), nn.BatchNorm())

    def hybrid_forward(self, F, x):
        return F.relu(self.body(x) + self.shortcut(x))


class Split(gluon.HybridBlock):
    """A small residual network with its last part on another device."""

    def __init__(self, device):
        super().__init__()
        self._device = device
        with self.name_scope():
            self.first = nn.HybridSequential()
            self.first.add(
                nn.Conv2D(16, 5, 2, 2, use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
                nn.MaxPool2D(3, 2, 1),
                Residual(16),
            )
            self.last = nn.HybridSequential()
            self.last.add(Residual(32, 2), nn.GlobalAvgPool2D(), nn.Dense(10))

    def hybrid_forward(self, F, x):
        return self.last(self.first(x).as_in_context(mx.cpu(self._device)))


def network(device=0):
    mx.random.seed(5)
    net = Split(device)
    net.first.initialize(mx.init.Xavier(), ctx=mx.cpu(0))
    net.last.initialize(mx.init.Xavier(), ctx=mx.cpu(device))
    x = random((2, 3, 32, 32))
    with autograd.train_mode():
        for _ in range(3):
            net(x)
    return net, x


def ops(net, phase="forward"):
    return [
        step["op"]
        for entry in net.compiled()
        for device in entry["devices"].values()
        for step in device[phase]
        if "op" in step
    ]


def test_prediction_network_packs_weights_and_matches_eager():
    net, x = network()
    eager = net(x).asnumpy()
    net.hybridize()
    result = net(x).asnumpy()
    assert np.linalg.norm(result - eager) <= 3e-6 * np.linalg.norm(eager)
    forward = ops(net)
    assert forward.count("_packed_convolution") == 6
    assert not {
        "BatchNorm",
        "Convolution",
        "_convolution_channels_last",
        "broadcast_add",
        "elemwise_add",
        "Activation",
        "relu",
        "_pack_convolution",
    } & set(forward)
    assert ops(net, "invariants").count("_pack_convolution") == 6
    (entry,) = net.compiled()
    assert entry["devices"]["cpu(0)"]["planned"]["saved"] == 0


def test_exact_does_not_pack_weights():
    net, x = network()
    eager = net(x).asnumpy()
    net.hybridize(exact=True)
    assert np.array_equal(net(x).asnumpy(), eager)
    assert "_packed_convolution" not in ops(net)


def test_packed_network_bits_do_not_depend_on_placement():
    results = []
    for device in (0, 1):
        net, x = network(device)
        net.hybridize()
        results.append(net(x).asnumpy())
        assert ops(net).count("_packed_convolution") == 6
    assert np.array_equal(*results)


def test_weights_are_repacked_after_update():
    net, x = network()
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    for _ in range(3):
        net(x)
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        trainer.step(2)
        compiled = net(x).asnumpy()
        net.hybridize(False)
        eager = net(x).asnumpy()
        net.hybridize()
        assert np.linalg.norm(compiled - eager) <= 3e-6 * np.linalg.norm(eager)


def test_different_batch_sizes_do_not_affect_each_other():
    net, _ = network()
    net.hybridize()
    inputs = [random((n, 3, 32, 32), n) for n in (1, 2, 5)]
    first = [net(x).asnumpy() for x in inputs]
    again = [net(x).asnumpy() for x in inputs]
    assert all(np.array_equal(a, b) for a, b in zip(first, again))


# --- Dense layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows, features, hidden",
    [(1, 512, 1000), (7, 100, 65), (200, 64, 64), (3, 5, 1000), (16, 1000, 10)],
)
@pytest.mark.parametrize("bias", [False, True])
def test_packed_dense_matches_float64_reference(rows, features, hidden, bias):
    x, weight, arrays = (
        random((rows, features), 1),
        random((hidden, features), 2),
        [random((hidden,), 3)] * bias,
    )
    expected = call(
        "FullyConnected",
        *[a.astype("float64") for a in (x, weight, *arrays)],
        num_hidden=hidden,
        no_bias=not bias,
    ).asnumpy()
    packed = call("_pack_fully_connected", weight, no_bias=not bias)
    result = call(
        "_packed_fully_connected", x, packed, *arrays, num_hidden=hidden, no_bias=not bias
    ).asnumpy()
    assert np.linalg.norm(result - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("threads", [(1, 1), (3, 3), (3, 1), (1, 3)])
@pytest.mark.parametrize("features, hidden", [(64, 64), (100, 65), (700, 129), (64, 1000)])
def test_one_packed_dense_weight_serves_all_numbers_of_rows(features, hidden, threads):
    """For any number of threads, also if it changes after packing."""
    weight = random((hidden, features), 2)
    try:
        mx.context.set_threads(threads[0])
        packed = call("_pack_fully_connected", weight, no_bias=True)
        packed.wait_to_read()
        mx.context.set_threads(threads[1])
        check_packed_product(weight, packed)
    finally:
        mx.context.set_threads(0)


def check_packed_product(weight, packed):
    hidden, features = weight.shape
    for rows in (1, 2, 3, 5, 8, 13, 17, 48, 64, 65, 100, 257, 1000):
        x = random((rows, features), rows)
        result = call("_packed_fully_connected", x, packed, num_hidden=hidden, no_bias=True)
        expected = x.asnumpy().astype("float64") @ weight.asnumpy().T
        error = np.linalg.norm(result.asnumpy() - expected)
        assert error <= 1e-6 * np.linalg.norm(expected), rows


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_one_packed_convolution_weight_serves_all_batch_sizes(case, channels_last):
    shape, weight_shape, params = CASES[case]
    weight = random(weight_shape, 2)
    if not channels_last:
        shape = (shape[0], shape[-1], *shape[1:-1])
    flags = {"kernel": weight_shape[2:], "num_filter": weight_shape[0], "no_bias": True, **params}
    name = "_convolution_channels_last" if channels_last else "Convolution"
    extra = {"channels_last": channels_last}
    packed = call("_pack_convolution", weight, shape=(1, *shape[1:]), **flags, **extra)
    for batch in (1, 2, 3, 7, 16):
        x = random((batch, *shape[1:]), batch)
        result = call("_packed_convolution", x, packed, **flags, **extra).asnumpy()
        assert np.array_equal(result, call(name, x, weight, **flags).asnumpy()), batch


@pytest.mark.parametrize(
    "name, shapes, params",
    [
        ("_pack_fully_connected", [(4, 3, 3)], {}),
        ("_packed_fully_connected", [(), (4112,), (4,)], {"num_hidden": 4}),
        ("_packed_fully_connected", [(2, 65), (4112,), (4,)], {"num_hidden": 4}),
        ("_packed_fully_connected", [(2, 6), (4112,), (5,)], {"num_hidden": 4}),
    ],
)
def test_packed_dense_refuses_wrong_shapes(name, shapes, params):
    with pytest.raises(mx.base.MXNetError, match=name):
        call(name, *[nd.zeros(shape) for shape in shapes], **params).wait_to_read()


class Dense(gluon.HybridBlock):
    def __init__(self, device=0):
        super().__init__()
        self._device = device
        with self.name_scope():
            self.first = nn.Dense(96, activation="relu", flatten=False, in_units=80)
            self.last = nn.HybridSequential()
            self.last.add(
                nn.Dense(128, use_bias=False, in_units=480),
                nn.BatchNorm(in_channels=128),
                nn.Dense(3, in_units=128),
            )

    def hybrid_forward(self, F, x):
        return self.last(self.first(x).as_in_context(mx.cpu(self._device)))


def dense(device=0):
    mx.random.seed(5)
    net = Dense(device)
    net.first.initialize(mx.init.Xavier(), ctx=mx.cpu(0))
    net.last.initialize(mx.init.Xavier(), ctx=mx.cpu(device))
    return net, random((6, 5, 80))


def test_prediction_dense_layers_are_packed_and_follow_updates():
    net, x = dense()
    net.hybridize()
    for scale in (1, 2):
        for param in net.collect_params(".*weight").values():
            param.set_data(param.data() * scale)
        result = net(x).asnumpy()
        forward = ops(net)
        # The last layer is small
        assert (
            forward.count("_packed_fully_connected") == 2 and forward.count("FullyConnected") == 1
        )
        assert (
            "_pack_fully_connected" not in forward
            and ops(net, "invariants").count("_pack_fully_connected") == 2
        )
        net.hybridize(False)
        expected = net(x).asnumpy()
        assert np.linalg.norm(result - expected) <= 1e-6 * np.linalg.norm(expected)
        net.hybridize()
    net.hybridize(exact=True)
    assert np.array_equal(net(x).asnumpy(), expected)
    assert "_packed_fully_connected" not in ops(net)
    net.hybridize()
    with autograd.record():
        net(x)
    assert "_packed_fully_connected" not in ops(net)


def test_packed_dense_bits_do_not_depend_on_placement():
    results = []
    for device in (0, 1):
        net, x = dense(device)
        net.hybridize()
        results.append(net(x).asnumpy())
        assert ops(net).count("_packed_fully_connected") == 2
    assert np.array_equal(*results)


def test_large_dense_layers_run_in_panels():
    """They are not packed, so the epilogue can follow panel by panel."""
    net = nn.HybridSequential()
    net.add(nn.Dense(1024, activation="relu", in_units=80), nn.Dense(16, in_units=1024))
    net.initialize(mx.init.Xavier())
    x = random((2150, 80))
    expected = net(x).asnumpy()
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    (entry,) = net.compiled()
    steps = [step for step in entry["devices"]["cpu(0)"]["forward"] if step["kind"] == "run"]
    assert [step.get("fused", step.get("op")) for step in steps] == [
        ["FullyConnected", "Activation"],
        "_packed_fully_connected",
    ]
