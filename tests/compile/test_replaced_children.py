"""Replacing a child block: by assignment, by `replace_child`, and by an index."""

import copy
import gc
import weakref

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.compare import same_bits
from support.devices import on


class Attention(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.query = nn.Dense(4, in_units=4)
            self.proj = nn.Dense(4, in_units=4)

    def hybrid_forward(self, F, x):
        return self.proj(F.tanh(self.query(x)))


class Doubled(gluon.HybridBlock):
    """A wrapper with a parameter of its own."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.scale = self.params.get("scale", shape=(1, 1), init="ones")
            self.inner = inner

    def hybrid_forward(self, F, x, scale):
        return F.broadcast_mul(self.inner(x), scale * 2)


def network(hybridize=False, **flags):
    mx.random.seed(1)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(Attention(), Attention(), nn.Dense(3, in_units=4))
    net.initialize()
    if hybridize:
        net.hybridize(**flags)
    return net


def wrapped(inner, ctx=None):
    block = Doubled(inner)
    block.scale.initialize(ctx=ctx)
    return block


def reference(net, x, doubled):
    """The network's result in NumPy. `doubled` is the number of the layer with a wrapped query."""
    x = x.asnumpy().astype("float64")

    def dense(layer, x):
        return x @ layer.weight.data().asnumpy().T + layer.bias.data().asnumpy()

    for i in range(2):
        query = net[i].query.inner if i == doubled else net[i].query
        x = dense(net[i].proj, np.tanh(dense(query, x) * (2 if i == doubled else 1)))
    return dense(net[2], x)


@pytest.mark.parametrize("hybridize", [False, True])
def test_assigned_wrapper_replaces_the_layer(hybridize):
    net, x = network(hybridize), nd.random.uniform(shape=(2, 4))
    before = net(x)
    net[1].query = wrapped(net[1].query)
    after = net(x)
    assert not np.array_equal(before.asnumpy(), after.asnumpy())
    np.testing.assert_allclose(after.asnumpy(), reference(net, x, 1), rtol=1e-5)
    assert "2.query.inner.weight" not in net._collect_params_with_prefix()
    assert "1.query.inner.weight" in net._collect_params_with_prefix()
    assert net[1].query.scale.name in net.collect_params()
    net[1].query = net[1].query.inner
    same_bits(net(x).asnumpy(), before.asnumpy())


def test_replace_child_of_a_dotted_path_returns_the_old_block():
    net, x = network(True), nd.ones((2, 4))
    net(x)
    old = net[0].query
    assert net.replace_child("0.query", wrapped(old)) is old
    assert type(net[0].query) is Doubled and list(net[0]._children) == ["query", "proj"]
    np.testing.assert_allclose(net(x).asnumpy(), reference(net, x, 0), rtol=1e-5)


def test_item_of_a_sequence_is_replaced():
    net, x = network(True), nd.ones((2, 4))
    net(x)
    net[-1] = nn.Dense(5, in_units=4)
    net[2].initialize()
    assert net(x).shape == (2, 5) and len(net) == 3
    assert list(net.collect_params())[-1] == net[2].bias.name


def test_gradients_reach_the_new_block_only():
    net, x = network(True), nd.ones((2, 4))
    old = net[0].query
    with autograd.record():
        net(x).backward()
    stale = old.weight.grad().asnumpy()
    net[0].query = nn.Dense(4, in_units=4)
    net[0].query.initialize()
    with autograd.record():
        (3 * net(x)).backward()
    same_bits(old.weight.grad().asnumpy(), stale)
    assert np.abs(net[0].query.weight.grad().asnumpy()).sum() > 0
    assert old.weight.name not in net.collect_params()
    assert net[0].query.weight.name in net.collect_params()


def test_old_trainer_refuses_parameters_that_left_the_network():
    net, x = network(), nd.ones((2, 4))
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    net[2] = nn.Dense(3, in_units=4)
    net[2].initialize()
    with autograd.record():
        net(x).backward()
    with pytest.raises(UserWarning, match="dense"):
        trainer.step(1)
    gluon.Trainer(net.collect_params(), "sgd").step(1)


def test_only_the_named_occurrence_of_a_shared_block_is_replaced():
    net = nn.HybridSequential()
    shared = nn.Dense(4, in_units=4)
    net.add(shared, shared)
    net.initialize()
    net.replace_child("0", wrapped(shared))
    assert net[1] is shared and net[0].inner is shared
    x = nd.ones((1, 4))
    same_bits(net(x).asnumpy(), shared(shared(x) * 2).asnumpy())


def test_hooks_stay_at_the_old_block():
    net, seen = network(), []
    old = net[2]
    old.register_forward_hook(lambda *_: seen.append("old"))
    net[2] = nn.Dense(3, in_units=4)
    net[2].initialize()
    net(nd.ones((1, 4)))
    assert not seen
    net[2] = wrapped(old)
    net(nd.ones((1, 4)))
    assert seen == ["old"]


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("where", [{"1": 1}, {"1.query": 1}, {"0": 0, "1": 1, "2": 0}])
@pytest.mark.parametrize("first", [False, True])
def test_new_block_runs_on_the_devices_of_the_old_one(where, first, hybridize):
    expected, x = network(), nd.random.uniform(shape=(2, 4))
    expected[1].query = wrapped(expected[1].query)
    net = nn.HybridSequential() if first else network(hybridize)
    if first:
        mx.random.seed(1)
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(Attention(), Attention(), nn.Dense(3, in_units=4))
    net.place({path: on(device) for path, device in where.items()}, verbose=False)
    if first:
        net[1].query = Doubled(net[1].query)
        net.initialize(ctx=None if len(where) == 3 else on(0))
        for name, param in expected._collect_params_with_prefix().items():
            net._collect_params_with_prefix()[name].set_data(param.data())
        net.hybridize(hybridize)
    else:
        net(x)
        net[1].query = wrapped(net[1].query)
    assert net[1].query.scale.list_ctx() == [on(1)]
    assert net[1].query.inner.weight.list_ctx() == [on(1)]
    same_bits(net(x).asnumpy(), expected(x).asnumpy())
    copy.deepcopy(net)(x)


def test_replacement_of_an_unnamed_layer_stays_on_its_device():
    net = network()
    net[1].collect_params().reset_ctx(on(1))
    net.place({"0": on(0), "2": on(0)}, verbose=False)
    net[1].proj = nn.Dense(4, in_units=4)
    net[1].proj.initialize()
    assert net[1].proj.weight.list_ctx() == [on(1)]
    assert net(nd.ones((1, 4))).context == on(0)


def test_replacement_of_layers_on_two_devices_runs_on_the_first_one():
    net = network(True)
    net.place({"0": on(0), "1.query": on(1), "1.proj": on(2), "2": on(0)}, verbose=False)
    new = Attention()
    new.initialize()
    net[1] = new
    assert new.query.weight.list_ctx() == new.proj.weight.list_ctx() == [on(1)]
    assert net(nd.ones((1, 4))).context == on(0)
    for _ in range(2):  # the placement keeps no reference to blocks that left the network
        reference = weakref.ref(net[1])
        net[1] = new = Attention()
        new.initialize()
        net(nd.ones((1, 4)))
        gc.collect()
    assert reference() is None


def test_initialize_repeats_a_placement_whose_names_were_replaced():
    net = nn.HybridSequential(prefix="net_")
    net.add(nn.Dense(4, in_units=4, prefix="first_"), nn.Dense(4, in_units=4))
    net.place({"first": on(1)}, verbose=False)
    net[0] = nn.Dense(4, in_units=4)
    net.initialize(ctx=on(0))
    assert net[0].weight.list_ctx() == [on(1)] and net[1].weight.list_ctx() == [on(0)]
    net(nd.ones((1, 4)))


def test_new_block_joins_all_replicas_of_a_mesh():
    mesh = mx.parallel.Mesh({"data": 2, "stage": 2}, [on(i) for i in range(4)])
    net = network(True)
    mesh.place(net, stages={"0": 0, "1": 1, "2": 1})
    expected = network()
    expected[1].query = wrapped(expected[1].query)
    net[1].query = wrapped(net[1].query)
    devices = net[1].query.inner.weight.list_ctx()
    assert net[1].query.scale.list_ctx() == devices and len(devices) == 2
    x = nd.random.uniform(shape=(2, 4))
    for device in (on(0), on(2)):
        out = net(x.as_in_context(device))
        same_bits(out.asnumpy(), expected(x).asnumpy())


def test_pipeline_notices_a_replaced_child():
    net = network()
    net.place({"0": on(0), "1": on(1), "2": on(1)}, verbose=False)
    net.hybridize(pipeline=mx.parallel.Pipeline(micro_batches=2))
    x = nd.random.uniform(shape=(4, 4))
    net(x)
    net[1].query = wrapped(net[1].query)
    expected = network()
    expected[1].query = wrapped(expected[1].query)
    same_bits(net(x).asnumpy(), expected(x).asnumpy())
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    trainer.step(4)
    assert net[1].query.scale.data().asscalar() != 1


def test_parameter_files_have_the_new_paths(tmp_path):
    net = network()
    net[0].query = wrapped(net[0].query)
    net.save_parameters(str(tmp_path / "a.params"))
    other = network()
    other[0].query = wrapped(other[0].query)
    other.load_parameters(str(tmp_path / "a.params"))
    assert "0.query.inner.weight" in nd.load(str(tmp_path / "a.params"))


def test_invalid_replacements_name_the_remedy():
    net = network()
    with pytest.raises(TypeError, match="Changing attribute type for query .*HybridLambda"):
        net[0].query = lambda x: x
    with pytest.raises(TypeError, match=r"replace_child: expected a Block for '0.query'.*Hybrid"):
        net.replace_child("0.query", lambda x: x)
    with pytest.raises(ValueError, match="must also be HybridBlock"):
        net[0].query = nn.Sequential()
    with pytest.raises(ValueError, match="'0.key' names no child.*children are 'query', 'proj'"):
        net.replace_child("0.key", nn.Dense(4))
    with pytest.raises(ValueError, match="contains .* cannot become its child"):
        net[0].query = wrapped(net[0])
    with pytest.raises(IndexError):
        net[3] = nn.Dense(3)
    assert type(net[0].query) is nn.Dense and net[0]._children["query"] is net[0].query


def test_failed_move_keeps_the_old_block(monkeypatch):
    net = network()
    net.place({"0": on(1)}, verbose=False)
    old, new = net[0].query, nn.Dense(4, in_units=4)
    new.initialize()

    def fail(ctx):
        raise mx.MXNetError("out of memory")

    monkeypatch.setattr(new.weight, "reset_ctx", fail)
    with pytest.raises(mx.MXNetError, match="'query' of .* cannot move .* out of memory"):
        net[0].query = new
    assert net[0].query is old and net[0]._children["query"] is old
