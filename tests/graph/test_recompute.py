"""hybridize(recompute=...): keeps less for backward without changing any bit."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.compare import same_bits
from support.devices import on

WIDTH, LAYERS = 32, 8


class Layer(gluon.HybridBlock):
    """Covers difficult cases: random numbers, moving statistics, a residual and views."""

    def __init__(self, ctx, **kwargs):
        super().__init__(**kwargs)
        self.ctx = ctx
        with self.name_scope():
            self.first, self.second = (
                nn.Dense(2 * WIDTH, in_units=WIDTH),
                nn.Dense(WIDTH, in_units=2 * WIDTH),
            )
            self.norm, self.dropout = nn.BatchNorm(in_channels=WIDTH), nn.Dropout(0.3)

    def hybrid_forward(self, F, x):
        x = x.as_in_context(self.ctx)
        y = (
            F.LeakyReLU(self.first(self.norm(x)), act_type="gelu")
            .reshape((-1, 2, WIDTH))
            .reshape((-1, 2 * WIDTH))
        )
        return x + self.dropout(F.tanh(self.second(y)))


class Net(gluon.HybridBlock):
    def __init__(self, devices, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.layers = nn.HybridSequential()
            for i in range(LAYERS):
                self.layers.add(Layer(devices[i * len(devices) // LAYERS]))

    def hybrid_forward(self, F, x):
        return self.layers(x)


def make(num_devices=1):
    devices = [on(80 + i) for i in range(num_devices)]
    mx.random.seed(2)
    net = Net(devices)
    for layer in net.layers:
        layer.initialize(mx.init.Xavier(), ctx=layer.ctx)
    return net, nd.random.normal(shape=(16, WIDTH), ctx=devices[0])


def train(net, x, steps=3, retain=False):
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x.attach_grad()
    mx.random.seed(6)
    results = []
    for _ in range(steps):
        with autograd.record():
            y = net(x)
        if retain:
            y.backward(retain_graph=True)
            results.append(x.grad.asnumpy())
        y.backward()
        results += [y.asnumpy(), x.grad.asnumpy()]
        trainer.step(16)
    return results + [p.data(p.list_ctx()[0]).asnumpy() for p in net.collect_params().values()]


def planned(net):
    return {name: device["planned"] for name, device in net.compiled()[0]["devices"].items()}


def again(net):
    """Returns the recomputed steps as (op, block)."""
    steps = [
        step
        for device in net.compiled()[0]["devices"].values()
        for step in device["backward"]
        if step.get("recomputed")
    ]
    return [(op, step["scope"]) for step in steps for op in step.get("fused", [step["op"]])]


def each_layer(net):
    net.hybridize()
    for layer in net.layers:
        layer.hybridize(recompute=True)


WAYS = {
    "layers": each_layer,
    "block": lambda net: net.hybridize(recompute=True),
    "some layers, exact": lambda net: (
        net.hybridize(exact=True),
        [net.layers[i].hybridize(recompute=True) for i in (0, 3, 4)],
    ),
    "inside layers": lambda net: (
        net.hybridize(),
        [
            layer.first.hybridize(recompute=True) or layer.norm.hybridize(recompute=True)
            for layer in net.layers
        ],
    ),
    "tight budget": lambda net: net.hybridize(recompute="96KB"),
    "slight budget": lambda net: net.hybridize(recompute=120_000),
    "exact budget": lambda net: net.hybridize(recompute="0.1MB", exact=True),
}


@pytest.mark.parametrize("num_devices", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_recompute_does_not_change_bits(way, num_devices):
    net, x = make()
    expected = train(net, x)
    net, x = make(num_devices)
    WAYS[way](net)
    same_bits(train(net, x), expected)
    if num_devices == 1:
        assert again(net)


@pytest.mark.parametrize("mode,seed", [("shuffle", 1), ("shuffle", 2)])
def test_recompute_does_not_change_bits_in_shuffled_order(mode, seed):
    net, x = make()
    expected = train(net, x)
    try:
        mx.engine.set_mode(mode, seed)
        net, x = make(3)
        each_layer(net)
        same_bits(train(net, x), expected)
    finally:
        mx.engine.set_mode("async")


def test_recompute_keeps_only_layer_inputs():
    net, x = make()
    net.hybridize()
    train(net, x, 1)
    everything = planned(net)[str(on(80))]
    each_layer(net)
    train(net, x, 1)
    layers = planned(net)[str(on(80))]
    kept = 16 * WIDTH * 4 * (LAYERS - 1)  # inputs of all layers but the first
    # The upper bound adds values of the next layer that a layer's backward reads
    assert kept <= layers["saved"] <= kept + LAYERS * 1024
    assert layers["total"] < 0.55 * everything["total"]
    ops = [op for op, _ in again(net)]
    assert ops.count("Dropout") == ops.count("BatchNorm") == LAYERS  # each once
    assert all("layer" in scope for _, scope in again(net))


def test_recompute_updates_moving_statistics_once():
    net, x = make()
    each_layer(net)
    with autograd.record():
        y = net(x)
    after_forward = [layer.norm.running_mean.data().asnumpy() for layer in net.layers]
    y.backward()
    same_bits([layer.norm.running_mean.data().asnumpy() for layer in net.layers], after_forward)
    assert np.abs(after_forward[3]).max() > 0


def test_recompute_supports_retain_graph_and_two_forwards():
    net, x = make()
    expected = train(net, x, retain=True)
    net, x = make()
    each_layer(net)
    same_bits(train(net, x, retain=True), expected)

    def twice(hybridize):
        net, x = make()
        if hybridize:
            each_layer(net)
        x.attach_grad()
        mx.random.seed(6)
        with autograd.record():
            y = net(x)
            z = net(x * 2)
        z.backward()
        results = [x.grad.asnumpy()]
        y.backward()
        return [*results, x.grad.asnumpy()]

    same_bits(twice(True), twice(False))


def test_recompute_supports_second_gradients():
    def second(hybridize):
        mx.random.seed(1)
        net = nn.HybridSequential()
        net.add(nn.Dense(5, activation="tanh", in_units=4), nn.Dense(3, in_units=5))
        net.initialize(mx.init.Xavier())
        if hybridize:
            net.hybridize()
            net[0].hybridize(recompute=True)
        x = nd.random.normal(shape=(2, 4))
        x.attach_grad()
        with autograd.record():
            (gradient,) = autograd.grad(net(x), [x], create_graph=True)
            total = (gradient * gradient).sum()
        total.backward()
        return [x.grad.asnumpy()]

    same_bits(second(True), second(False))


def test_states_read_before_update_are_kept_for_recompute():
    """Statistics with readers outside the layer that updates them."""

    class Odd(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.norm = nn.BatchNorm(in_channels=4, prefix="norm_")

        def hybrid_forward(self, F, x):
            before = self.norm.running_mean.data(x.context) * 2
            return F.tanh(F.broadcast_add(self.norm(x), before)) * F.broadcast_add(x, before)

    def go(**flags):
        net = Odd()
        net.initialize()
        if flags:
            net.hybridize(**flags)
        x = nd.array(np.arange(12).reshape(3, 4))
        x.attach_grad()
        results = []
        for _ in range(2):
            with autograd.record():
                y = net(x)
            y.backward()
            results += [y.asnumpy(), x.grad.asnumpy(), net.norm.running_mean.data().asnumpy()]
        return results

    same_bits(go(recompute=True), go())


def test_recompute_budget_is_met_with_minimal_recomputation():
    net, x = make()
    net.hybridize()
    train(net, x, 1)
    total = planned(net)[str(on(80))]["total"]
    counts = []
    for share in (1.0, 0.9, 0.6, 0.45):
        net.hybridize(recompute=int(total * share))
        train(net, x, 1)
        assert planned(net)[str(on(80))]["total"] <= total * share
        products = sum(op == "FullyConnected" for op, _ in again(net))
        counts.append((len(again(net)), products))
    assert counts[0] == (0, 0)  # fits without recomputing
    assert 0 < counts[1][0] and counts[1][1] == 0  # recomputing cheap ops is enough
    assert counts[3][1] > 0
    assert "recomputed" in repr(net.compiled())


def test_child_is_recomputed_in_block_with_graph_break():
    class Rows(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(3, in_units=2)

        def hybrid_forward(self, F, x):
            return self.dense(F.contrib.boolean_mask(x, x.sum(axis=1) > 1))

    net = Rows()
    net.initialize()
    net.hybridize()
    x = mx.nd.array([[1, 2], [0, 0]])
    y = net(x).asnumpy()
    net.dense.hybridize(recompute=True)
    np.testing.assert_array_equal(net(x).asnumpy(), y)


def test_recompute_budget_per_device_is_met():
    net, x = make(2)
    net.hybridize()
    train(net, x, 1)
    before = planned(net)
    limit = before[str(on(81))]["total"] * 2 // 3
    net.hybridize(recompute={on(81): limit})
    train(net, x, 1)
    assert planned(net)[str(on(81))]["total"] <= limit
    expected = train(*make())
    net, x = make(2)
    net.hybridize(recompute={on(80): "128 KiB", on(81): limit})
    same_bits(train(net, x), expected)


def test_unreachable_recompute_budget_raises_error():
    net, x = make(2)
    net.hybridize(recompute={on(80): 1000, on(81): "1MB"})
    x.attach_grad()
    with (
        autograd.record(),
        pytest.raises(
            mx.MXNetError, match=r"needs \d+ bytes on [cg]pu\([80]+\), of which 1000 are allowed"
        ),
    ):
        net(x)
    net(x)  # prediction keeps nothing for backward
    net.hybridize(recompute="1MB")
    assert len(train(net, x, 1)) > 2


def test_recompute_of_child_recompiles_its_parent():
    net, x = make()
    net.hybridize()
    expected = train(net, x, 1)
    assert not again(net)
    net.layers[2].hybridize(recompute=True)
    train(net, x, 1)
    assert {scope.split("/")[0] for _, scope in again(net)} and again(net)
    net.layers[2].hybridize()
    train(net, x, 1)
    assert not again(net)
    assert len(expected) > 2


@pytest.mark.parametrize(
    "value", ["lots", "12 parsecs", -1, 1.5, [1], {str(on(0)): 1}, {on(0): "x"}]
)
def test_invalid_recompute_budget_is_refused(value):
    net, _ = make()
    with pytest.raises(mx.MXNetError, match="recompute"):
        net.hybridize(recompute=value)
