"""Number of Python runs of a hybridized block in its first call, and correctness of that trace."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on
from support.interrupts import interrupted


class Counted(gluon.HybridBlock):
    """Applies `body` to itself and an input; `runs` counts the runs of the body."""

    def __init__(self, body, make=lambda block: None, **params):
        super().__init__(prefix="counted_")
        self.body, self.runs = body, 0
        with self.name_scope():
            make(self)
            for name, shape in params.items():
                setattr(self, name, self.params.get(name, shape=shape, allow_deferred_init=True))

    def hybrid_forward(self, F, x, **params):
        self.runs += 1
        return self.body(self, F, x, **params)


def children(**blocks):
    return lambda block: [setattr(block, name, make()) for name, make in blocks.items()]


def nested():
    """Three nested hybridized blocks."""
    inner = lambda: Counted(lambda b, F, x: b.d(x) * 2, children(d=lambda: nn.Dense(3)))
    middle = lambda: Counted(lambda b, F, x: b.inner(x) + b.inner(x * 2), children(inner=inner))
    return Counted(lambda b, F, x: F.tanh(b.middle(x)), children(middle=middle))


def elsewhere(b, F, x):
    return b.second(F.relu(b.first(x)).as_in_context(on(1))).as_in_context(on(0)) + x[:, :3]


def captured(b, F, x):
    return x * b.mask + F.array([1, 2, 3, 4], ctx=on(0)), b.mask


def paused(b, F, x, w):
    with autograd.pause():
        scale = F.mean(x * w)
    return x * scale + w


BLOCKS = {
    "plain": lambda: Counted(lambda b, F, x, w: F.broadcast_mul(x, w), w=(4,)),
    "nested": nested,
    "shapes found": lambda: Counted(
        lambda b, F, x, w: F.FullyConnected(x, w, num_hidden=3, no_bias=True), w=(3, 0)
    ),
    "shapes found in children": lambda: Counted(
        lambda b, F, x: b.norm(b.first(x)), children(first=lambda: nn.Dense(3), norm=nn.BatchNorm)
    ),
    "two devices": lambda: Counted(
        elsewhere, children(first=lambda: nn.Dense(5), second=lambda: nn.Dense(3))
    ),
    "captured and given back": lambda: Counted(captured),
    "paused": lambda: Counted(paused, w=(4,)),
    "random": lambda: Counted(
        lambda b, F, x, w: (
            F.Dropout(x, p=0.5, mode="always") * w + F.random.uniform(shape=(4,), ctx=on(0))
        ),
        w=(4,),
    ),
    "given back as it is": lambda: Counted(lambda b, F, x, w: ([x, w], (x, x + w)), w=(4,)),
    "an unused parameter": lambda: Counted(lambda b, F, x, w, v: x + w, w=(4,), v=(2,)),
    "no operator": lambda: Counted(lambda b, F, x: x),
}


def start(name):
    mx.random.seed(3)
    net = BLOCKS[name]()
    net.initialize(mx.init.Uniform(0.5), ctx=on(0))
    if name == "two devices":
        net.second.collect_params().reset_ctx(on(1))
    net.mask = nd.array([1, 0, 2, 1], ctx=on(0))
    return net


def batch(rows, seed=0):
    return nd.array(np.random.RandomState(seed).randn(rows, 4), ctx=on(0))


def counts(block):
    """Returns the run counts of the block and its children."""
    found = []
    block.apply(lambda one: found.append(one.runs) if isinstance(one, Counted) else None)
    return found


def flat(value):
    return (
        [a for part in value for a in flat(part)] if isinstance(value, (list, tuple)) else [value]
    )


def results(net, x, record):
    """Returns the outputs of a call, and the gradients if it is recorded."""
    x = x.copy()
    x.attach_grad()
    mx.random.seed(5)
    if not record:
        return [a.asnumpy() for a in flat(net(x))]
    with autograd.record():
        outputs = flat(net(x))
        total = sum(out.sum() for out in outputs)
    total.backward()
    params = [p for p in net.collect_params().values() if p.grad_req != "null"]
    return [a.asnumpy() for a in (*outputs, x.grad, *[p.grad() for p in params])]


@pytest.mark.parametrize("name", BLOCKS)
def test_first_call_runs_python_code_once(name):
    eager, net = start(name), start(name)
    net.hybridize(exact=True)
    each = 2 if name == "nested" else 1  # calls per run of the parent
    for step, (rows, record) in enumerate(
        [(2, False), (2, False), (2, True), (2, True), (3, True), (3, False), (2, False)]
    ):
        expected = results(eager, batch(rows, step), record)
        found = results(net, batch(rows, step), record)
        assert len(expected) == len(found), step
        assert all(map(np.array_equal, expected, found)), (step, rows, record)
        runs = [1, 1, 2, 2, 3, 4, 4][step]
        assert counts(net) == ([runs * each, runs, runs] if name == "nested" else [runs])


@pytest.mark.parametrize("option", [{"recompute": True}, {"recompute": "1MB"}, {"exact": False}])
def test_first_call_traces_once_with_recompute_options(option):
    eager, net = start("nested"), start("nested")
    net.hybridize(**option)
    for record in (True, False):
        expected, found = results(eager, batch(3), record), results(net, batch(3), record)
        assert all(np.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(expected, found))
    assert counts(net) == [4, 2, 2]
    entry = net.compiled()[0]
    steps = [step for device in entry["devices"].values() for step in device["backward"]]
    assert any(step.get("recomputed", False) for step in steps) == (option.get("recompute") is True)


def test_deferred_parameters_on_two_devices_need_one_trace():
    def body(b, F, x):
        with mx.AttrScope(ctx_group="one"):
            x = b.first(x)
        with mx.AttrScope(ctx_group="two"):
            return b.second(x)

    net = Counted(body, children(first=lambda: nn.Dense(5), second=lambda: nn.Dense(3)))
    net.initialize(ctx=on(0), group2ctx={"one": on(0), "two": on(1)})
    net.hybridize()
    assert net(batch(2)).context == net.second.weight.list_ctx()[0] == on(1)
    assert net.runs == 1


def test_graph_breaks_need_a_second_trace():
    """Covers a block with a graph break, and blocks with loop bodies, which are traced
    separately."""
    bodies = {
        "cut": lambda b, F, x: b.d(F.contrib.boolean_mask(x, x[:, 0] > -9)),
        "branch": lambda b, F, x: b.d(F.contrib.cond(x.sum() > 1e9, lambda: x, lambda: x * 2)),
        "loop": lambda b, F, x: b.d(F.contrib.foreach(lambda row, s: (row * 2, s), x, [])[0]),
    }
    for name, body in bodies.items():
        net = Counted(body, children(d=lambda: nn.Dense(3)))
        net.initialize(ctx=on(0))
        net.hybridize(exact=True)
        x = batch(3)
        found = net(x).asnumpy()
        assert net.runs == 2, name
        assert np.array_equal(net(x).asnumpy(), found) and net.runs == 2, name
        assert np.array_equal(net.hybrid_forward(nd, x).asnumpy(), found), name


def test_pipeline_traces_micro_batch_and_full_batch_only_if_checked():
    for options, runs in (({"check": False}, 2), ({}, 3)):
        net = start("shapes found")
        net.hybridize(pipeline=mx.parallel.Pipeline(2, **options))
        net(batch(4))
        net(batch(4))
        assert net.runs == runs


def test_interrupted_first_call_leaves_no_stale_trace():
    """The interrupted trace holds only for the shapes and captured arrays of that call."""

    def interrupt(number):
        net = start("captured and given back")
        net.hybridize()
        return net, interrupted(lambda: net(batch(2)), number)

    interrupt(0)
    _, count = interrupt(0)
    for number in range(count - 80, count, 7):  # after the trace
        net, _ = interrupt(number)
        net.mask = net.mask * 3
        for rows in (2 + number % 2, 3 - number % 2):
            x = batch(rows)
            expected = net.hybrid_forward(nd, x)
            assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(net(x), expected))
