"""Placed networks whose parameters are created, replaced or loaded in other ways than by
``net.initialize()``."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on


class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.features = nn.HybridSequential()
            with self.features.name_scope():
                self.features.add(
                    nn.Dense(6, in_units=5, activation="tanh"), nn.Dense(4, in_units=6)
                )
            self.output = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


def mesh_of(net, **axes):
    count = int(np.prod(list(axes.values())))
    mesh = mx.parallel.Mesh(axes, [on(i) for i in range(count)])
    return mesh.place(net)


PLACEMENTS = {
    "dict": lambda net: net.place({"features": on(0), "output": on(1)}, verbose=False),
    "nested dict": lambda net: net.place(
        {"features.0": on(1), "features.1": on(0), "output": on(1)}, verbose=False
    ),
    "one device": lambda net: net.place(on(1), verbose=False),
    "stages": lambda net: mesh_of(net, stage=2),
    "replicas": lambda net: mesh_of(net, data=2),
    "replicas and stages": lambda net: mesh_of(net, data=2, stage=2),
}


def by_parts(net, path):
    for block in (*net.features, net.output):
        block.initialize()


def reinitialized(net, path):
    net.initialize()
    net.collect_params().initialize(force_reinit=True)


def reinitialized_child(net, path):
    net.initialize()
    net.output.initialize(force_reinit=True)


WAYS = {
    "collect_params": lambda net, path: net.collect_params().initialize(),
    "children": by_parts,
    "apply": lambda net, path: net.apply(
        lambda block: block.initialize() if isinstance(block, nn.Dense) else None
    ),
    "load_parameters": lambda net, path: net.load_parameters(path),
    "load": lambda net, path: net.collect_params().load(path + ".names"),
    "reinitialized": reinitialized,
    "reinitialized child": reinitialized_child,
}


def numbers(seed, shape):
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype("float32")


def trained(net, ctx=None):
    """Returns the weights after three steps from fixed initial weights."""
    for i, param in enumerate(net.collect_params().values()):
        param.set_data(nd.array(numbers(i, param.shape)))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = mx.parallel.TrainStep(net, gluon.loss.L2Loss(), trainer, mx.parallel.Pipeline(1))
    for i in range(3):
        step(nd.array(numbers(i, (4, 5)), ctx=ctx), nd.array(numbers(i, (4, 3)), ctx=ctx))
    return [param.data(param.list_ctx()[0]).asnumpy() for param in net.collect_params().values()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parameters_of_a_placed_network_are_created_on_its_devices(placement, way, tmp_path):
    source = Net()
    source.initialize(ctx=on(0))
    path = str(tmp_path / "net.params")
    source.save_parameters(path)
    source.collect_params().save(path + ".names")
    wanted = PLACEMENTS[placement](Net())
    wanted.initialize()
    net = PLACEMENTS[placement](Net())
    WAYS[way](net, path)
    for name, param in wanted.collect_params().items():
        assert net.collect_params()[name].list_ctx() == param.list_ctx(), name
    for found, one in zip(trained(net), trained(source, on(0)), strict=True):
        np.testing.assert_allclose(found, one, rtol=2e-5, atol=1e-6)


def test_other_devices_than_those_of_the_placement_are_refused():
    net = PLACEMENTS["replicas"](Net())
    with pytest.raises(ValueError, match="is placed on .*omit ctx"):
        net.collect_params().initialize(ctx=on(0))
    with pytest.raises(ValueError, match="is placed on .*omit ctx"):
        net.output.weight.initialize(ctx=[on(1)])
    net.collect_params().initialize(ctx=[on(0), on(1)])


def test_reset_ctx_ends_the_placement_of_a_parameter():
    net = PLACEMENTS["dict"](Net())
    net.initialize()
    net.collect_params().reset_ctx(on(0))
    net.collect_params().initialize(ctx=on(1), force_reinit=True)
    assert net.collect_params().list_ctx() == [on(1)]


@pytest.mark.parametrize("change", ["added", "in the dict of children"])
def test_new_layer_of_a_replicated_network_needs_a_placement(change):
    net = PLACEMENTS["replicas"](Net())
    net.initialize()
    new = nn.Dense(3, in_units=4)
    if change == "added":
        net.features.add(nn.Dense(4, in_units=4))
    else:
        net._children["output"] = net.__dict__["output"] = new
    for block in (*net.features, net.output):
        if block.weight.arrays is None:
            block.initialize()
    loss, data = gluon.loss.L2Loss(), nd.ones((4, 5))
    step = mx.parallel.TrainStep(net, loss, None, mx.parallel.Pipeline(1))
    with pytest.raises(mx.MXNetError, match="doesn't belong to this replica; place the network"):
        step(data, nd.ones((4, 3)))
    with autograd.record(), pytest.raises(mx.MXNetError, match="place the network"):
        net(nd.ones((2, 5), ctx=on(1)))
    mx.parallel.Mesh({"data": 2}, [on(0), on(1)]).place(net)
    step(data, nd.ones((4, 3)))


@pytest.mark.parametrize("initialized", [False, True])
def test_replaced_layer_of_a_replicated_network_joins_its_replicas(initialized):
    net = PLACEMENTS["replicas"](Net())
    net.initialize()
    new = nn.Dense(3, in_units=4)
    if initialized:
        new.initialize()
    net.output = new
    if not initialized:
        new.initialize()
    assert new.weight.list_ctx() == [on(0), on(1)]
    step = mx.parallel.TrainStep(net, gluon.loss.L2Loss(), None, mx.parallel.Pipeline(1))
    step(nd.ones((4, 5)), nd.zeros((4, 3)))
    assert all(np.abs(grad.asnumpy()).sum() > 0 for grad in new.weight.list_grad())


def test_train_step_needs_the_whole_network_on_the_mesh():
    inner = PLACEMENTS["replicas"](Net())
    net = nn.HybridSequential()
    net.add(inner)
    net.initialize()
    step = mx.parallel.TrainStep(net, gluon.loss.L2Loss(), None, mx.parallel.Pipeline(1))
    with pytest.raises(mx.MXNetError, match="block '0' is placed on 2 replicas, but the network"):
        step(nd.ones((4, 5)), nd.ones((4, 3)))


def test_layer_can_replace_the_split_form_of_its_class():
    net = mesh_of(Net(), model=2)
    net.initialize()
    with pytest.raises(TypeError, match="not allowed"):
        net.output = 3
    net.output = nn.Dense(2, in_units=4)
    net.output.initialize()
    assert net(nd.ones((2, 5))).shape == (2, 2)


def test_split_layers_cannot_be_placed():
    net = mesh_of(Net(), model=2)
    for where in (on(3), {"output": on(0)}, {".*": on(0)}):
        with pytest.raises(mx.MXNetError, match="is split over devices .*use Mesh.place"):
            net.place(where, verbose=False)


def test_errors_about_files_of_split_networks_name_the_way(tmp_path):
    split, whole = mesh_of(Net(), model=2), Net()
    for net in (split, whole):
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "adam")
        with autograd.record():
            net(nd.ones((2, 5))).sum().backward()
        trainer.step(2)
        name = str(tmp_path / ("split" if net is split else "whole"))
        net.save_parameters(name + ".params")
        trainer.save_states(name + ".states")
    for net, name in ((split, "whole"), (whole, "split")):
        path = str(tmp_path / name)
        with pytest.raises(AssertionError, match="use mx.parallel.save and mx.parallel.load"):
            net.load_parameters(path + ".params")
        trainer = gluon.Trainer(net.collect_params(), "adam")
        with pytest.raises(mx.MXNetError, match="use mx.parallel.save and mx.parallel.load"):
            trainer.load_states(path + ".states")
