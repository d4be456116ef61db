"""`Block.place` with a dict: blocks on devices by name, with the bits of one device."""

import copy

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on


class Branches(gluon.HybridBlock):
    """Two branches, what both share, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.second = nn.HybridSequential(), nn.HybridSequential()
            for branch in (self.first, self.second):
                branch.add(nn.Dense(6, activation="tanh"), nn.BatchNorm(), nn.Dropout(0.3))
            self.shared = nn.Dense(5)
            self.scale = self.params.get("scale", shape=(1,), init="ones")
            self.output = nn.Dense(3)

    def hybrid_forward(self, F, x, scale):
        y = F.broadcast_mul(self.first(x) + self.second(x), scale)
        return self.output(self.shared(y) + self.shared(-y))


def made(where=None):
    mx.random.seed(3)
    net = Branches()
    net.initialize(mx.init.Xavier(), ctx=on(0))
    net(nd.ones((2, 4), ctx=on(0)))
    return net.place(where, verbose=False) if where else net


def trained(net, steps=3):
    mx.random.seed(4)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
    losses = []
    for step in range(steps):
        x = nd.array(np.random.RandomState(step).randn(8, 4), ctx=on(0))
        with autograd.record():
            loss = (net(x) ** 2).mean()
        loss.backward()
        trainer.step(1)
        losses.append(loss.asnumpy())
    values = [param.data().asnumpy() for param in net.collect_params().values()]
    return losses + values


PLACES = [
    {"first": on(1), "second": on(2)},
    {"output": on(3)},
    {"second": on(1), "second[.]0": on(2), "shared|output": on(3)},
    {".*": on(2)},
    {"first[.][0-1]": on(1), "first.2": on(0), "second": on(1), "": on(2)},
]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("hybridized", [False, True])
def test_bits_are_those_of_one_device(where, hybridized):
    alone, placed = made(), made(where)
    if hybridized:
        alone.hybridize()
        placed.hybridize()
    for mine, its in zip(trained(placed), trained(alone)):
        np.testing.assert_array_equal(mine, its)


def test_parameters_and_results_are_where_the_dict_says(capsys):
    net = made()
    assert net.place({"first": on(1), "first.1": on(2), "output": on(1)}) is net
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["blocks", "device", "parameters", "bytes"]
    assert rows[1:-1] == [
        ["Branches", str(on(0)), "1", "4"],
        ["first", str(on(1)), "2", "120"],
        ["first.1", str(on(2)), "4", "96"],
        ["second.0", str(on(0)), "2", "120"],
        ["second.1", str(on(0)), "4", "96"],
        ["shared", str(on(0)), "2", "140"],
        ["output", str(on(1)), "2", "72"],
    ]
    assert rows[-1] == ["8", "parameters", "moved"]
    homes = {"first.0": on(1), "first.1": on(2), "second.0": on(0), "output": on(1)}
    for path, ctx in homes.items():
        block = net
        for name in path.split("."):
            block = block[int(name)] if name.isdigit() else getattr(block, name)
        assert all(param.list_ctx() == [ctx] for param in block.collect_params().values())
    for _ in range(2):
        assert net(nd.ones((2, 4), ctx=on(0))).context == on(1)
        net.hybridize()


def test_a_placement_replaces_the_one_before():
    net = made({"first": on(1), "second": on(2)})
    net.hybridize()
    x = nd.ones((2, 4), ctx=on(0))
    before = net(x).asnumpy()
    for where, at in (({"output": on(3)}, on(3)), ({"": on(1)}, on(1))):
        result = net.place(where, verbose=False)(x)
        assert result.context == at
        np.testing.assert_array_equal(result.asnumpy(), before)
    net.reset_ctx(on(0))
    assert net(x).context == on(0)
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    trained(net)


def test_what_contains_a_placed_block_is_compiled_anew():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))
    net.initialize(ctx=on(0))
    net.hybridize()
    x = nd.ones((2, 3), ctx=on(0))
    before = net(x)
    net[1].place({"": on(1)}, verbose=False)
    after = net(x)
    assert (before.context, after.context) == (on(0), on(1))
    np.testing.assert_array_equal(before.asnumpy(), after.asnumpy())


def test_shapes_that_are_not_known_yet(capsys):
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.Dense(2))
    net.initialize(ctx=on(0))
    net.place({"1": on(1)})
    assert capsys.readouterr().out.count("?") == 2
    assert net(nd.ones((2, 3), ctx=on(0))).context == on(1)
    assert net[1].weight.list_ctx() == [on(1)]


def test_blocks_that_are_not_hybrid_files_and_copies(tmp_path):
    net = nn.Sequential()
    net.add(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))
    net.initialize(ctx=on(0))
    x = nd.ones((2, 3), ctx=on(0))
    before = net(x).asnumpy()
    net.place({"1": on(1)}, verbose=False)
    assert net(x).context == on(1)
    net.save_parameters(str(tmp_path / "net.params"))
    net.load_parameters(str(tmp_path / "net.params"))
    for one in (net, copy.deepcopy(net)):
        np.testing.assert_array_equal(one(x).asnumpy(), before)
        assert one(x).context == on(1)


def test_pipelines_and_plans_of_placed_networks():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), nn.Dense(4, in_units=4), nn.Dense(2, in_units=4))
    net.initialize(ctx=on(0))
    x = nd.ones((4, 3), ctx=on(0))
    before = net(x).asnumpy()
    net.place({"[12]": on(1)}, verbose=False)
    net.hybridize(pipeline=mx.parallel.Pipeline(2))
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    net.hybridize(pipeline=None)
    plan = mx.parallel.plan(
        net, x, [on(0), on(1)], micro_batches=2, repeats=1, trials=0, progress=False
    )
    assert net.place(plan) is net
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    net.place({"": on(2)}, verbose=False)
    assert net(x).context == on(2)


def refused(net, where, error, text):
    with pytest.raises(error, match=text):
        net.place(where)


def test_refusals():
    net = made()
    refused(
        net, {"frist": on(1)}, ValueError, "no block has the path 'frist'; did you mean 'first'"
    )
    refused(net, {"first": 1}, TypeError, "'first' to 1")
    refused(net, {0: on(1)}, TypeError, "0 to")
    refused(net, {}, ValueError, "empty")
    refused(net, {"(": on(1)}, ValueError, "no regular expression")
    refused(net, 3, TypeError, "int is no Plan, no Mesh and no dict")
    refused(nn.Dense(2), {"": on(1)}, mx.MXNetError, "not initialized; call net.initialize")
    replicas = nn.HybridSequential()
    replicas.add(nn.Dense(2, in_units=2), nn.Dense(2, in_units=2))
    replicas.initialize(ctx=[on(0), on(1)])
    refused(
        replicas, {"1": on(1)}, mx.MXNetError, "'0', which the dict does not name, has parameters"
    )
    with mx.AttrScope(ctx_group="mine"):
        grouped = nn.Dense(2, in_units=2)
    grouped.initialize(ctx=on(0))
    refused(grouped, {"": on(1)}, mx.MXNetError, "belongs to the group 'mine' already")
    split = nn.HybridSequential()
    split.add(mx.parallel.ColumnParallelDense(4, in_units=2, ctx=[on(0), on(1)]))
    split.initialize()
    refused(split, {"": on(1)}, mx.MXNetError, "'0' is split over devices")
    assert all(param.list_ctx() == [on(0)] for param in net.collect_params().values())
