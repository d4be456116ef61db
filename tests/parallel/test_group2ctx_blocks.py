"""AttrScope(ctx_group=...) with group2ctx for blocks: groups of layers and ops on separate
devices."""

import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon
from mpgluon.gluon import nn
from support.devices import on

ONE = {"dev1": on(0), "dev2": on(0)}
TWO = {"dev1": on(1), "dev2": on(2)}


class Called(gluon.HybridBlock):
    """Sets groups in hybrid_forward, around calls of children."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.a, self.b, self.c = nn.Dense(8), nn.Dense(8), nn.Dense(3)
            self.scale = self.params.get("scale", shape=(8,))

    def hybrid_forward(self, F, x, scale):
        with mx.AttrScope(ctx_group="dev1"):
            h = F.relu(self.a(x))
        with mx.AttrScope(ctx_group="dev2"):
            return self.c(self.b(h) * scale + h) + F.sum(h * F.ones((1, 8)), axis=1, keepdims=True)


class Made(gluon.HybridBlock):
    """Sets groups around the creation of children."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            with mx.AttrScope(ctx_group="dev1"):
                self.a = nn.HybridSequential()
                self.a.add(nn.Dense(8, activation="tanh"), nn.BatchNorm())
            with mx.AttrScope(ctx_group="dev2"):
                self.b, self.c = nn.Dense(8), nn.Dense(3)

    def hybrid_forward(self, F, x):
        h = self.a(x)
        # The sum belongs to no group and runs on the device of its first input
        return self.c(self.b(h) + h)


def trained(kind, group2ctx, hybrid, steps=3):
    mx.random.seed(1)
    net = kind(prefix="net_")
    net.initialize(mx.init.Uniform(0.5), group2ctx=group2ctx)
    if hybrid:
        net.hybridize(exact=True)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    x = mx.nd.array(np.random.RandomState(0).randn(4, 5))
    x.attach_grad()
    for _ in range(steps):
        with autograd.record():
            y = net(x)
        y.backward()
        trainer.step(4)
    return net, [y, x.grad, *[param.data() for param in net.collect_params().values()]]


@pytest.mark.parametrize("kind", [Called, Made])
def test_grouped_block_has_the_bits_of_one_device(kind):
    reference = None
    for hybrid in (False, True):
        for groups in (ONE, TWO):
            net, arrays = trained(kind, groups, hybrid)
            homes = {name: param.list_ctx() for name, param in net.collect_params().items()}
            assert homes["net_dense1_weight"] == [groups["dev2"]]
            assert arrays[0].context == groups["dev2"]
            if reference is not None:
                for one, other in zip(reference, arrays):
                    assert np.array_equal(one.asnumpy(), other.asnumpy())
            reference = reference or arrays


def test_copies_between_groups_are_made_once():
    net, _ = trained(Called, TWO, True)
    entry = net.compiled()[0]
    sent = [
        step["to"] for step in entry["devices"][str(on(1))]["forward"] if step["kind"] == "copy"
    ]
    assert sent == [str(on(2))]  # the hidden layer is copied once for three ops
    # Created outside of any group and passed to an op, so it stays and is copied
    assert net.scale.list_ctx() == [on(0)]


def test_plain_block_places_children_by_group():
    class Plain(gluon.Block):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.a, self.b = nn.Dense(4), nn.Dense(2)

        def forward(self, x):
            with mx.AttrScope(ctx_group="dev1"):
                x = self.a(x)
            with mx.AttrScope(ctx_group="dev2"):
                return self.b(x)

    net = Plain()
    net.initialize(group2ctx=TWO)
    net.hybridize()
    assert net(mx.nd.ones((2, 3))).context == on(2)
    assert net.a.weight.list_ctx() == [on(1)] and len(net.compiled()) == 2
    net._group2ctx = {"dev1": on(3), "dev2": on(3)}
    # Recompiled because the groups are part of the signature
    assert net(mx.nd.ones((2, 3))).context == on(3)
    assert net.a.weight.list_ctx() == [on(1)]


def test_hybridize_with_groups_keeps_parameter_devices():
    net = Called()
    net.initialize(ctx=on(0))
    expected = net(mx.nd.ones((2, 5))).asnumpy()
    net.hybridize(exact=True, group2ctx=TWO)
    out = net(mx.nd.ones((2, 5)))
    assert out.context == on(2) and np.array_equal(out.asnumpy(), expected)
    assert net.a.weight.list_ctx() == [on(0)]


def test_inputs_in_a_dict_move_to_the_group():
    class Keyed(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.inner = nn.Dense(3, in_units=4)

        def hybrid_forward(self, F, inputs):
            self.seen = [x.context for x in inputs.values()]
            return self.inner(inputs["a"] + inputs["b"]) + F.sum(inputs["a"])

    class Outer(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope(), mx.AttrScope(ctx_group="dev1"):
                self.keyed = Keyed()

        def hybrid_forward(self, F, x):
            return self.keyed({"a": x, "b": x * 2})

    net, x = Outer(), mx.nd.ones((2, 4), ctx=on(0))
    net.initialize(mx.init.One(), ctx=on(0), group2ctx=TWO)
    for hybrid in (False, True):
        net.hybridize(hybrid)
        found = net(x)
        assert net.keyed.seen == [on(1)] * 2 and found.context == on(1)
        np.testing.assert_array_equal(found.asnumpy(), np.full((2, 3), 20))


def test_arrays_outside_a_block_are_not_moved():
    net, _ = trained(Called, TWO, False, steps=1)
    with pytest.raises(mx.MXNetError, match="different devices"):
        mx.nd.ones(2, ctx=on(1)) + mx.nd.ones(2, ctx=on(2))
    with mx.AttrScope(ctx_group="anything"):
        assert mx.nd.ones(2).context == on(0)


@pytest.mark.parametrize("hybrid", [False, True])
def test_new_arrays_and_in_place_operators_follow_the_group(hybrid):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            with mx.AttrScope(ctx_group="dev2"):
                y = F.zeros((2, 3)) + x
                y = y - F.concat(x, x, dim=0)[0:2]
                if not hybrid:
                    y += x  # in place, so it runs on y's device
                return F.concat(*[y] * 20, x)

    net = Net()
    net.initialize(group2ctx=TWO)
    net.hybridize(hybrid)
    out = net(mx.nd.ones((2, 3)))
    assert out.context == on(2) and out.asnumpy()[:, :3].tolist() == [[0 if hybrid else 1] * 3] * 2


def test_errors_name_the_group():
    class Wrong(Called):
        def hybrid_forward(self, F, x, scale):
            with mx.AttrScope(ctx_group="dev3"):
                return self.a(x)

    net = Wrong()
    net.initialize(group2ctx=TWO)
    for hybrid in (False, True):
        net.hybridize(hybrid)
        with pytest.raises(
            mx.MXNetError, match="'dev3' is not in group2ctx, whose groups are: dev1, dev2"
        ):
            net(mx.nd.ones((2, 3)))
        with pytest.raises(mx.MXNetError, match="different devices"):  # the group mode has ended
            mx.nd.ones(2, ctx=on(1)) + mx.nd.ones(2, ctx=on(2))
    with pytest.raises(
        mx.MXNetError,
        match=r"Made\.b: ctx_group 'dev2' is not in group2ctx, whose groups are: dev1",
    ):
        Made().initialize(group2ctx={"dev1": on(1)})
    for wrong in ({"dev1": str(on(1))}, [("dev1", on(1))]):
        with pytest.raises(TypeError, match="group2ctx must be a dict"):
            Made().initialize(group2ctx=wrong)
        with pytest.raises(TypeError, match="group2ctx must be a dict"):
            Made().hybridize(group2ctx=wrong)
    with pytest.raises(ValueError, match="ctx must be one device"):
        Made().initialize(ctx=[on(0), on(1)], group2ctx=TWO)


def test_exported_symbol_keeps_groups(tmp_path):
    net, _ = trained(Made, TWO, True)
    expected = net(mx.nd.ones((4, 5))).asnumpy()
    symbol, params = net.export(str(tmp_path / "net"))
    groups = {
        node["name"]: node.get("attrs", {}).get("__ctx_group__")
        for node in json.load(open(symbol))["nodes"]
        if node["op"] != "null"
    }
    assert groups["net_dense0_fwd"] == "dev1" and groups["net_dense1_fwd"] == "dev2"
    loaded = mx.sym.load(symbol)
    arrays = {key.split(":")[1]: array for key, array in mx.nd.load(params).items()}
    executor = loaded.simple_bind(on(0), data=(4, 5), grad_req="null", group2ctx=TWO)
    executor.copy_params_from(
        {name: array for name, array in arrays.items() if name in executor.arg_dict},
        {name: arrays[name] for name in executor.aux_dict},
    )
    out = executor.forward(data=mx.nd.ones((4, 5)))[0]
    assert out.context == on(2)
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-6)


def test_parameters_are_placed_after_a_data_dependent_op():
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.a, self.b = nn.Dense(4), nn.Dense(3)

        def hybrid_forward(self, F, x):
            with mx.AttrScope(ctx_group="dev1"):
                x = self.a(x)
            x = F.contrib.boolean_mask(x, x[:, 0] > -9)
            with mx.AttrScope(ctx_group="dev2"):
                return self.b(x)

    net = Net()
    net.initialize(ctx=on(0), group2ctx=TWO)
    net.hybridize()
    x = mx.nd.ones((2, 5), ctx=on(0))
    for _ in range(2):
        with autograd.record():
            out = net(x)
        out.backward()
    assert out.context == net.b.weight.list_ctx()[0] == net.b.weight.grad().context == TWO["dev2"]
