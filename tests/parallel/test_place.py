"""`net.place({...})`: blocks on devices by name."""

import copy
import gc
import pickle
import re
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import vision
from support.compare import same_bits
from support.devices import on

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


class Net(gluon.HybridBlock):
    """Layers with ops between them; the network has a parameter in addition to its children."""

    def __init__(self, **settings):
        super().__init__(prefix="net_", **settings)
        with self.name_scope():
            self.features = nn.HybridSequential()
            self.features.add(
                nn.Dense(8, activation="relu", in_units=6),
                nn.BatchNorm(in_channels=8),
                nn.Dense(8, in_units=8),
                nn.Dropout(0.3),
            )
            self.shift = self.params.get("shift", shape=(1, 8), init="ones")
            self.output = nn.Dense(4, in_units=8)

    def hybrid_forward(self, F, x, shift):
        y = self.features(x)
        return self.output(F.tanh(y + shift) * 2)


def made(where=None, first=False, hybridize=False):
    mx.random.seed(3)
    net = Net()
    if where is not None and first:
        net.place(where, verbose=False)
    net.initialize(mx.init.Xavier())
    if where is not None and not first:
        net.place(where, verbose=False)
    if hybridize:
        net.hybridize(exact=True)
    return net


def trained(net, steps=3, trainer=None):
    trainer = trainer or gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}
    )
    random, losses = np.random.RandomState(0), []
    mx.random.seed(5)
    for _ in range(steps):
        x = nd.array(random.randn(8, 6), ctx=on(0))
        with autograd.record():
            out = net(x)
            loss = LOSS(out, nd.array(random.randint(0, 4, 8), ctx=out.context))
        loss.backward()
        trainer.step(8)
        losses.append(loss.asnumpy())
    return [*losses, *(param.list_data()[0].asnumpy() for param in net.collect_params().values())]


WHERE = [
    {"features": on(0), "output": on(1)},
    {"output": on(1)},
    {"features.[01]": on(1), "net_dense2": on(2)},
    {"": on(2), "features": on(1)},
    {"features": on(1), "features.2": on(0), "output": on(2)},
    {".*": on(1)},
]


@pytest.mark.parametrize("where", WHERE, ids=str)
@pytest.mark.parametrize("hybridize", [False, True])
def test_placed_network_has_the_bits_of_one_device(where, hybridize):
    expected = trained(made(hybridize=hybridize))
    for first in (False, True):
        same_bits(trained(made(where, first, hybridize)), expected)


class Cell(gluon.HybridBlock):
    def __init__(self, **settings):
        super().__init__(**settings)
        with self.name_scope():
            self.key, self.value, self.query = [
                nn.Dense(6, in_units=6, use_bias=False, flatten=False) for _ in range(3)
            ]

    def hybrid_forward(self, F, x, memory):
        weights = F.softmax(F.batch_dot(self.query(x), self.key(memory), transpose_b=True))
        return x + F.batch_dot(weights, self.value(memory))


class Translating(gluon.Block):
    """Cells whose methods all use one array several times."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.encoder = Cell()
            self.decoder = nn.HybridSequential()
            self.decoder.add(Cell(), Cell())

    def decode(self, x, memory):
        for cell in self.decoder:
            x = cell(x, memory)
        return x

    def forward(self, x):
        memory = self.encoder(x, x)
        return self.decode(memory * 2, memory)


@pytest.mark.parametrize(
    "pattern, hybridize",
    [
        ("encoder", False),
        ("decoder.1", False),
        ("decoder.1", True),
        (r".*\.(key|query)", False),
        (r".*\.(key|query)", True),
    ],
)
def test_summed_gradients_have_the_bits_of_one_device(pattern, hybridize):
    found = []
    for placed in (False, True):
        mx.random.seed(2)
        net = Translating()
        net.initialize(mx.init.Xavier())
        if placed:
            net.place({pattern: on(1)}, verbose=False)
        if hybridize:
            net.hybridize(exact=True)
        x = nd.random.normal(shape=(2, 5, 6), ctx=on(0))
        x.attach_grad()
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        grads = [param.list_grad()[0].asnumpy() for param in net.collect_params().values()]
        # A custom method calls inner blocks, which know their devices
        found.append([loss.asnumpy(), x.grad.asnumpy(), *grads, net.decode(x, x).asnumpy()])
    same_bits(*found)


def test_place_moves_parameters_of_named_blocks():
    net = made({"features": on(1), "features.2": on(2)})
    found = {path: param.list_ctx() for path, param in net._collect_params_with_prefix().items()}
    assert found["features.0.weight"] == found["features.1.gamma"] == [on(1)]
    assert found["features.2.weight"] == [on(2)]
    assert found["output.weight"] == found["shift"] == [on(0)]
    later = made({"output": on(1)}, first=True)
    assert later.output.weight.list_ctx() == [on(1)]
    assert later.features[0].weight.list_ctx() == later.shift.list_ctx() == [on(0)]
    assert later(nd.ones((2, 6))).context == on(1)
    later.initialize(ctx=on(2), force_reinit=True)
    assert later.output.weight.list_ctx() == [on(1)]
    assert later.features[0].weight.list_ctx() == later.shift.list_ctx() == [on(2)]
    assert later(nd.ones((2, 6), ctx=on(2))).context == on(1)
    later.initialize(force_reinit=True)
    assert later.output.weight.list_ctx() == [on(1)]
    later.place(on(1), verbose=False)
    with pytest.raises(ValueError, match="omit ctx"):
        later.initialize(ctx=on(0), force_reinit=True)


def test_second_place_while_training_keeps_the_bits(capsys):
    expected = trained(made(), 6)
    net = made(hybridize=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    random = np.random.RandomState(0)
    mx.random.seed(5)
    mesh = mx.parallel.Mesh({"stage": 2}, [on(0), on(1)])
    losses = []
    placements = [{"output": on(1)}, mesh, {"features.2": on(2)}, on(0), {".*": on(1)}, mesh]
    for where in placements:
        if isinstance(where, mx.parallel.Mesh):
            net.place(where, stages=[["features"], ["output"]])
        else:
            assert net.place(where) is net
        x = nd.array(random.randn(8, 6), ctx=on(0))
        with autograd.record():
            out = net(x)
            loss = LOSS(out, nd.array(random.randint(0, 4, 8), ctx=out.context))
        loss.backward()
        trainer.step(8)
        losses.append(loss.asnumpy())
    same_bits(losses, expected[:6])
    assert capsys.readouterr().out.count("moved:") == len(placements)


def test_place_prints_devices_and_moves(capsys):
    made().place({"output": on(1)})
    assert capsys.readouterr().out == (
        "Net 'net':\n"
        f"  {on(1)}: output (2 parameters, 144 B)\n"
        f"  {on(0)}: features.0, features.1, features.2 (8 parameters, 640 B)\n"
        "  not placed: 1 parameter, 32 B\n"
        "  moved: 2 parameters, 144 B\n"
    )
    made().place({"": on(1)}, verbose=False)
    assert capsys.readouterr().out == ""
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    net.place(on(0))
    assert re.fullmatch(
        rf"HybridSequential '.*':\n  {re.escape(str(on(0)))}: all \(2 parameters\)\n"
        "  moved: 0 parameters\n",
        capsys.readouterr().out,
    )


def test_moves_are_printed_only_between_layers_that_run_in_order(capsys):
    """A custom block may run its children in any order; nested sequences run in order."""
    net = nn.HybridSequential()
    inner = nn.HybridSequential()
    inner.add(nn.Dense(3, in_units=3), nn.Activation("relu"), nn.Dense(3, in_units=3))
    net.add(nn.Dense(3, in_units=3), inner, nn.Dense(3, in_units=3))
    net.initialize()
    net.place({"1.2": on(1), "2": on(2)})
    lines = [line for line in capsys.readouterr().out.splitlines() if "move before" in line]
    assert lines == [
        f"  arrays move before 1.2, from {on(0)} to {on(1)}",
        f"  arrays move before 2, from {on(1)} to {on(2)}",
    ]
    made().place({"output": on(1)})
    assert "move before" not in capsys.readouterr().out


def test_place_time_is_linear_in_keys():
    """Only patterns are matched with every path, and each is compiled once."""

    def seconds(count, pattern=""):
        net = nn.HybridSequential()
        for _ in range(count):
            net.add(nn.Dense(1, in_units=1))
        net.initialize()
        keys = {str(i) + pattern: on(i * 2 // count) for i in range(count)}
        gc.collect()
        gc.disable()  # a collection would visit the objects of all earlier tests
        try:
            begin = time.process_time()
            net.place(keys, verbose=False)
            return time.process_time() - begin
        finally:
            gc.enable()

    assert seconds(600) < 10 * seconds(200) + 0.3
    assert seconds(560, "$") < 2  # at least 5 if compiled for each path


def test_place_accepts_plans_and_placements(capsys):
    net = nn.HybridSequential()
    net.add(nn.Dense(8, in_units=6), nn.Dense(8, in_units=8), nn.Dense(4, in_units=8))
    net.initialize()
    x = nd.random.normal(shape=(8, 6), ctx=on(0))
    expected = net(x).asnumpy()
    plan = mx.parallel.plan(
        net, x, [on(0), on(1)], micro_batches=2, repeats=1, trials=0, progress=False
    )
    plan.move("0", on(0)).move("1", on(1)).move("2", on(1))
    for where in (plan, plan.placement, plan):
        net.place(where)
        assert [layer.weight.list_ctx() for layer in net] == [[on(0)], [on(1)], [on(1)]]
        assert f"  {on(1)}: 1, 2 (4 param" in capsys.readouterr().out
        same_bits([net(x).asnumpy()], [expected])
    net.place(on(0))
    assert net(x).context == on(0)


@pytest.mark.parametrize("name", ["mobilenetv2_0.25", "resnet18_v1", "squeezenet1.1"])
def test_placed_zoo_models_have_the_bits_of_one_device(name):
    def run(devices):
        mx.random.seed(1)
        net = vision.get_model(name, classes=4)
        layers = list(net.features._children)
        later = layers[len(layers) // 2 :]
        net.initialize(mx.init.Xavier())
        if devices > 1:
            net.place({**{f"features.{k}": on(1) for k in later}, "output": on(1)}, verbose=False)
        net.hybridize(exact=True)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
        x = nd.random.uniform(shape=(2, 3, 224, 224) if "squeeze" in name else (2, 3, 32, 32))
        with autograd.record():
            loss = LOSS(net(x), nd.array([0, 1], ctx=on(devices - 1)))
        loss.backward()
        trainer.step(2)
        params = net.collect_params().values()
        return [loss.asnumpy(), *(param.list_data()[0].asnumpy() for param in params)]

    nd.ones(1, ctx=on(1)).wait_to_read()  # from here on both devices share the threads
    same_bits(run(2), run(1))


def test_place_accepts_device_names():
    net = made({"output": str(on(1))})
    assert net.output.weight.list_ctx() == [on(1)]


@pytest.mark.parametrize(
    "where, error, text",
    [
        (
            {"nothing": on(1)},
            ValueError,
            "'nothing' does not match the path or name of any block of 'net'",
        ),
        ({".*": on(0), "output": on(1)}, ValueError, "'output' does not match .* that no earlier"),
        ({}, ValueError, "the dict is empty"),
        ({"(": on(0)}, ValueError, "nor a regular expression"),
        ({1: on(0)}, TypeError, "names of blocks to devices"),
        ({"output": 1}, TypeError, "names of blocks to devices"),
        ({"output": "cpu:1"}, KeyError, "unknown context .cpu:1."),
        ({"output": mx.gpu(99)}, mx.MXNetError, "does not exist"),
        (3, TypeError, "a Mesh or a Plan, got int"),
    ],
)
def test_failed_place_changes_nothing(where, error, text):
    net = made({"output": on(1)})
    with pytest.raises(error, match=text):
        net.place(where)
    assert net.output.weight.list_ctx() == [on(1)]
    same_bits(trained(net), trained(made()))


def test_place_rejects_existing_groups_and_extra_arguments():
    net = made()
    with pytest.raises(TypeError, match="no other arguments"):
        net.place({"output": on(1)}, split=None)
    with mx.AttrScope(ctx_group="mine"):
        net.output = nn.Dense(4, in_units=8)
    with pytest.raises(mx.MXNetError, match="'output' already belongs to ctx_group 'mine'"):
        net.place({"features": on(1)})


@pytest.mark.parametrize("hybridize", [False, True])
def test_reset_ctx_of_a_placed_network_moves_its_layers(hybridize):
    """Covers the whole network, one of its blocks, and parameters that match a pattern."""
    plain = made(hybridize=hybridize)
    expected = trained(plain)
    for reset, devices in (
        (lambda net: net.collect_params().reset_ctx(on(0)), {on(0)}),
        (lambda net: net.reset_ctx(on(2)), {on(2)}),
        (lambda net: net.features.reset_ctx(on(2)), {on(0), on(1), on(2)}),
        (lambda net: net.collect_params(".*batchnorm").reset_ctx(on(2)), {on(0), on(1), on(2)}),
    ):
        net = made({"features": on(0), "output": on(1)}, hybridize=hybridize)
        reset(net)
        assert set(net.collect_params().list_ctx()) == devices
        if devices == {on(2)}:
            with autograd.record():
                out = net(nd.ones((4, 6), ctx=on(2)))
            assert out.context == on(2)
            continue
        same_bits(trained(net), expected)
        assert set(net.collect_params().list_ctx()) == devices
        net.place({"": on(1)}, verbose=False)
        assert net.collect_params().list_ctx() == [on(1)]


def test_reset_ctx_of_placed_network_that_runs_in_a_pipeline_and_is_copied():
    net = made({"features": on(0), "output": on(1)})
    for twin in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        twin.collect_params().reset_ctx(on(0))
        twin.hybridize(pipeline=mx.parallel.Pipeline(2))
        assert twin(nd.ones((4, 6), ctx=on(0))).context == on(0)
    assert pickle.loads(pickle.dumps(net.collect_params())).list_ctx() == [on(0)]


def test_reset_ctx_of_a_network_on_a_mesh_ends_the_placement():
    mesh = mx.parallel.Mesh({"data": 2, "stage": 2}, devices=[on(i) for i in range(4)])
    net = Net()
    mesh.place(net, stages={"features": 0, "output": 1})
    net.initialize()
    net.collect_params().reset_ctx(on(0))
    assert net(nd.ones((4, 6), ctx=on(0))).context == on(0)


@pytest.mark.parametrize("axes", [{"data": 2}, {"data": 2, "stage": 2}, {"stage": 2}])
def test_block_of_a_network_on_a_mesh_cannot_be_placed(axes):
    mesh, x = mx.parallel.Mesh(axes), nd.ones((4, 6), ctx=on(0))
    net = made(mesh)
    expected, devices = net(x).asnumpy(), {p: p.list_ctx() for p in net.collect_params().values()}
    for place in (
        lambda: net.features.place({"0": on(3)}),
        lambda: net.output.place(on(3)),
        lambda: mx.parallel.Mesh({"data": 2}).place(net.features),
    ):
        with pytest.raises(
            mx.MXNetError, match=r"is part of a network that is placed on Mesh.*place the whole"
        ):
            place()
    assert {p: p.list_ctx() for p in net.collect_params().values()} == devices
    same_bits(net(x).asnumpy(), expected)
    # The network itself, its copies, and networks around it can be placed again.
    for other in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        outer = nn.HybridSequential()
        outer.add(other)
        for block in (other, outer):
            block.place({".*": on(1)}, verbose=False)
            assert block(x).context == on(1)
            other.place(mesh, verbose=False)


def test_networks_on_meshes_may_share_a_block():
    shared, x = nn.Dense(6, in_units=6), nd.ones((4, 6), ctx=on(0))
    nets = [nn.HybridSequential() for _ in range(2)]
    for net in nets:
        net.add(shared, nn.Dense(3, in_units=6))
        net.initialize()
    for axes in ({"stage": 2}, {"data": 2, "stage": 2}):
        for net in nets:
            net.place(mx.parallel.Mesh(axes), verbose=False)
        assert [net(x).context for net in nets] == [on(1), on(1)]


@pytest.mark.parametrize("key", ["shift", "net_shift", "output.weight"])
def test_placing_a_parameter_names_its_block(key):
    with pytest.raises(ValueError, match=f"place: '{key}' is a parameter, which follows its block"):
        made({key: on(1)})


def test_reset_ctx_of_a_network_in_groups_ends_them():
    net = nn.HybridSequential()
    for i in range(2):
        with mx.AttrScope(ctx_group=f"dev{i}"):
            net.add(nn.Dense(4, in_units=4), nn.BatchNorm(in_channels=4))
    net.initialize(group2ctx={"dev0": on(0), "dev1": on(1)})
    net.collect_params().reset_ctx(on(2))
    with autograd.record():
        out = net(nd.ones((3, 4), ctx=on(2)))
    assert out.context == on(2)
