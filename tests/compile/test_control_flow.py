"""Loops, branches and data-dependent shapes: eager, hybridized, as symbols and over devices."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.base import MXNetError
from support.compare import same_bits
from support.devices import on
from support.functions import Function
from support.training import variable


def run(f, rows, calls=3, hybrid=False, ctx=None, exact=True, arrays=2):
    """Returns all outputs and gradients of several training and prediction steps."""
    mx.random.seed(7)
    net = Function(f)
    net.initialize(mx.init.Normal(0.4), ctx=ctx or on(0))
    if hybrid:
        net.hybridize(exact=exact)
    found = []
    for call in range(calls):
        rng = np.random.RandomState(call % 2)
        inputs = [
            nd.array(rng.randn(rows, 5, 4).astype("float32")),
            nd.array(rng.randn(5, 4).astype("float32")),
        ][:arrays]
        for array in inputs:
            array.attach_grad()
        with autograd.record():
            results = net(*inputs)
            loss = sum((r.as_in_context(on(0)) ** 2).sum() for r in results)
        loss.backward()
        found += [r.asnumpy() for r in results] + [a.grad.asnumpy() for a in inputs]
        found += [
            p.grad(c).asnumpy()
            for p in net.collect_params().values()
            if p.arrays is not None
            for c in p.list_ctx()
        ]
        found += [r.asnumpy() for r in net(*inputs)]
    return found, net


def scan(net, F, x, s):
    out, last = F.contrib.foreach(
        lambda a, st: ([net.drop(F.tanh(net.dense(a) + st[0])), a], [st[0] * 0.5 + a, st[1] + s]),
        F.relu(x),
        [s, s * 2],
    )
    return [out[0], out[1], *last]


def search(net, F, x, s):
    out, (i, v) = F.contrib.while_loop(
        lambda i, v: F.broadcast_lesser(i, F.sum(F.abs(s)) * 0.1 + 1),
        lambda i, v: (v * i, [i + 1, net.drop(net.dense(v)) + x[0]]),
        [F.ones((1,)), s],
        max_iterations=6,
    )
    return [out, i, v]


def never(net, F, x, s):
    out, v = F.contrib.while_loop(
        lambda v: F.sum(v) * 0 > 1, lambda v: ([v * 2, v], v * 3), s * 2, max_iterations=2
    )
    return [*(out or [F.zeros((2, 5, 4))] * 2), v, net.dense(x)]


def branch(net, F, x, s):
    y = F.contrib.cond(F.sum(x) > 0, lambda: [net.drop(net.dense(s)), s], lambda: [s * 2, x[0]])
    return [y[0] + 1, y[1], net.drop(y[0])]


def nested(net, F, x, s):
    def step(a, st):
        def inner(i, v):
            return v + i, [
                i + 1,
                F.contrib.cond(F.sum(v) > 0, lambda: net.drop(v), lambda: net.dense(v) + a),
            ]

        out, (_, v) = F.contrib.while_loop(
            lambda i, v: i < 3, inner, [F.zeros((1,)), st], max_iterations=3
        )
        return out, v

    out, last = F.contrib.foreach(step, x, s)
    return [out, last]


def masks(net, F, x, s):
    h = net.drop(net.dense(x.reshape((-1, 4))))
    m = F.contrib.boolean_mask(h, F.sum(h, axis=1) > 0)
    y = net.late(m) * m.shape[0]
    z = F.contrib.boolean_mask(y, y[:, 0] > y[:, 1])
    return [net.drop(z) + 1, m, F.sum(y, axis=0) + F.sum(s)]


BODIES = [scan, search, never, branch, nested, masks]


@pytest.mark.parametrize("f", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("rows", [1, 6])
def test_hybridized_control_flow_matches_eager(f, rows):
    eager, _ = run(f, rows)
    exact, net = run(f, rows, hybrid=True)
    same_bits(eager, exact)
    default, _ = run(f, rows, hybrid=True, exact=False)
    for a, b in zip(eager, default):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert len(net.compiled()) > 0


@pytest.mark.parametrize("count", [2, 700, 1100])
def test_long_foreach_matches_eager(count):
    def f(net, F, x, s):
        data = F.broadcast_mul(F.arange(count).reshape((count, 1, 1)) / count, s.expand_dims(0))
        out, last = F.contrib.foreach(
            lambda a, st: (net.dense(a) + st * 0.5, st * 0.5 + a), data, s
        )
        return [out, last, x]

    same_bits(run(f, 1, 2)[0], run(f, 1, 2, hybrid=True)[0])


def test_foreach_graph_size_does_not_depend_on_length():
    def nodes(count):
        def f(net, F, x, s):
            h = x
            for _ in range(10):
                h = F.tanh(h)
            return [
                F.contrib.foreach(
                    lambda a, st: (a * st, F.tanh(net.dense(st) + a)), F.tile(h, (count, 1, 1)), s
                )[1]
            ]

        net = run(f, 1, 1, hybrid=True)[1]
        return sum(entry["ops"] for entry in net.compiled()), net

    (short, _), (long, net) = nodes(300), nodes(1000)
    assert short == long
    assert any(entry["calls"] >= 1000 for entry in net.compiled())


def test_foreach_with_growing_state_is_unrolled():
    def f(net, F, x, s):
        out, last = F.contrib.foreach(lambda a, st: (a, F.concat(st, a, dim=0)), x, s)
        return [out, last]

    same_bits(run(f, 4)[0], run(f, 4, hybrid=True)[0])


def test_masks_inside_foreach_are_unrolled():
    def f(net, F, x, s):
        return list(
            F.contrib.foreach(
                lambda a, st: (F.sum(F.contrib.boolean_mask(a, a[:, 0] > 0), axis=0), st + 1), x, s
            )
        )

    same_bits(run(f, 3)[0], run(f, 3, hybrid=True)[0])


def test_foreach_keeps_nested_structures():
    def f(net, F, x, s):
        out, last = F.contrib.foreach(
            lambda a, st: ([a[0], [a[1] * 2, a[0] + st[1][0]]], [st[0] + 1, [st[1][0] * 2]]),
            [x, x * 2],
            [s, [s + 1]],
        )
        assert isinstance(out[1], list) and isinstance(last[1], list)
        one, state = F.contrib.foreach(lambda a, st: ([], st + a), x, s)
        assert one == []
        return [out[0], *out[1], last[0], last[1][0], state]

    same_bits(run(f, 3)[0], run(f, 3, hybrid=True)[0])


def on_two(net, F, x, s):
    there = on(1)

    def step(a, st):
        h = F.tanh(net.dense(a) + st)
        g = h.as_in_context(there) * 2
        return g, net.drop(g + 1).as_in_context(on(0))

    out, last = F.contrib.foreach(step, x, s)
    flags = last.as_in_context(there)
    y = F.contrib.cond(F.sum(flags) > 0, lambda: net.late(flags), lambda: net.late(flags * 2))
    m = F.contrib.boolean_mask(y, y[:, 0] > 0)
    loops, v = F.contrib.while_loop(
        lambda v: F.sum(v) < 100,
        lambda v: (v.as_in_context(on(0)) + s[0, 0], v + 30 + F.abs(v)),
        F.sum(m, axis=0),
        max_iterations=5,
    )
    return [out, last, m.as_in_context(on(2)), loops, v]


@pytest.mark.parametrize("rows", [2, 400])
def test_control_flow_over_devices_matches_eager(rows):
    def made(f, spread):
        def placed(net, F, x, s):
            return f(net, F, x, s)

        mx.random.seed(7)
        net = Function(placed)
        net.initialize(mx.init.Normal(0.4), ctx=on(0))
        net.late.initialize(mx.init.Normal(0.4), ctx=spread, force_reinit=True)
        return net

    found = []
    for hybrid in (False, True):
        net = made(on_two, on(1))
        if hybrid:
            net.hybridize(exact=True)
        for call in range(2):
            rng = np.random.RandomState(call)
            x, s = nd.array(rng.randn(rows, 5, 4)), nd.array(rng.randn(5, 4))
            x.attach_grad(), s.attach_grad()
            with autograd.record():
                results = net(x, s)
                loss = sum((r.as_in_context(on(0)) ** 2).sum() for r in results)
            loss.backward()
            found.append(
                [
                    [r.asnumpy() for r in results]
                    + [x.grad.asnumpy(), s.grad.asnumpy()]
                    + [p.grad().asnumpy() for p in net.collect_params().values()],
                    [str(r.context) for r in results],
                ]
            )
    for call in range(2):
        same_bits(found[call][0], found[2 + call][0])
        assert found[call][1] == found[2 + call][1]


def test_dropout_after_loop_draws_same_numbers_as_eager():
    """As in eager mode, a draw after a loop depends on the number of draws in the loop."""

    def f(net, F, x, s):
        _, (i, v) = F.contrib.while_loop(
            lambda i, v: i < F.sum(x) * 0 + 3,
            lambda i, v: ([], [i + 1, net.drop(v)]),
            [F.zeros((1,)), s],
            max_iterations=9,
        )
        return [v, net.drop(s)]

    same_bits(run(f, 1)[0], run(f, 1, hybrid=True)[0])


def test_first_call_updates_moving_statistics_once():
    """The first call, which traces, runs every part only once."""

    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.norm = gluon.nn.BatchNorm()

        def hybrid_forward(self, F, x):
            y = self.norm(x)
            return self.norm(F.contrib.boolean_mask(y, x[:, 0] > 0))

    states = []
    for hybrid in (False, True):
        net = Net()
        net.initialize()
        if hybrid:
            net.hybridize(exact=True)
        for n in (6, 6, 9):
            with autograd.record():
                net(nd.array(np.random.RandomState(n).randn(n, 3)))
        states.append([p.data().asnumpy() for p in net.collect_params().values()])
    same_bits(*states)


def test_data_dependent_shapes_are_cached():
    traced = []

    def f(net, F, x, s):
        traced.append(1)
        kept = F.contrib.boolean_mask(x[0], x[0][:, 0] > 0)
        return [kept * 2 if kept.shape[0] else s]

    net = Function(f)
    net.initialize()
    net.hybridize()

    def call(positive):
        x = np.full((1, 5, 4), -1.0, "float32")
        x[0, :positive] = 1
        return net(nd.array(x), nd.ones((5, 4)))[0]

    shapes = [call(n).shape[0] for n in (3, 2, 3, 0, 2, 5, 0)]
    assert shapes == [3, 2, 3, 5, 2, 5, 5]
    assert len(traced) == 1 + 4  # one trace to detect captures, then one per shape
    parts = [entry["part"]["after"] for entry in net.compiled()]
    assert (("boolean_mask", ((3, 4),)),) in parts and () in parts
    assert "Function, first part for prediction" in str(net.compiled())
    assert "Function, after boolean_mask -> (3, 4) for prediction" in str(net.compiled())


def test_cache_of_data_dependent_shapes_is_bounded(monkeypatch):
    from mpgluon._internal import graph_breaks

    monkeypatch.setattr(graph_breaks, "LIMIT", 8)

    def f(net, F, x, s):
        return [F.contrib.boolean_mask(x[0], x[0][:, 0] > 0) * 2 + 1]

    net = Function(f)
    net.initialize()
    net.hybridize()
    for rows in (*range(20), 3, 19):
        x = np.full((1, 30, 4), -1.0, "float32")
        x[0, :rows] = 1
        assert net(nd.array(x), nd.ones((5, 4)))[0].shape == (rows, 4)
        assert len(net.compiled()) <= 8


def test_parameters_after_cut_initialize_late_and_move_devices():
    """Covers parameters whose shapes are inferred after a cut and parameters that change device."""

    def f(net, F, x, s):
        kept = F.contrib.boolean_mask(s, s[:, 0] > 0)
        return [net.late(kept.as_in_context(net.late.weight.list_ctx()[0]))]

    net = Function(f)
    net.initialize()
    net.hybridize()
    s = nd.array(np.random.RandomState(0).randn(5, 4))
    first = net(s, s)[0].asnumpy()
    assert net.late.weight.shape == (3, 4)
    net.late.collect_params().reset_ctx(on(1))
    second = net(s, s)[0]
    assert second.context == on(1) and np.array_equal(first, second.asnumpy())


def test_block_that_traces_differently_is_refused():
    extra = []

    def f(net, F, x, s):
        h = x[0] * 2
        for _ in extra:
            h = h + 1
        return [F.contrib.boolean_mask(h, h[:, 0] > 0)]

    net = Function(f)
    net.initialize()
    net.hybridize()
    net(nd.ones((1, 5, 4)), nd.ones((5, 4)))
    extra.append(1)
    with pytest.raises(MXNetError, match="computed something else when it was re-traced"):
        net(nd.ones((1, 5, 4)) * nd.array([1, 1, -1, 1, 1]).reshape((1, 5, 1)), nd.ones((5, 4)))


@pytest.mark.parametrize("recompute", [False, True])
def test_hybridize_options_apply_across_graph_breaks(recompute):
    """Device groups and recomputation work across graph breaks."""

    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.first = gluon.nn.Dense(4, in_units=4, flatten=False)
                with mx.AttrScope(ctx_group="dev1"):
                    self.second = gluon.nn.Dense(4, in_units=4, flatten=False)

        def hybrid_forward(self, F, x):
            h = self.second(F.tanh(self.first(x)))
            out, last = F.contrib.foreach(
                lambda a, s: (self.second(F.tanh(a)) + s, self.first(s)), h, h[0]
            )
            m = F.contrib.boolean_mask(last, F.sum(h[0], axis=1) > 0)
            return (
                F.contrib.cond(
                    F.sum(out) > 0, lambda: self.second(out), lambda: self.second(out * 2)
                )
                + F.sum(m)
                + F.sum(self.first(h))
            )

    groups = {"dev1": on(1)}
    found = []
    for hybridize, spread in ((False, False), (True, False), (True, True)):
        mx.random.seed(3)
        net = Net()
        net.initialize(mx.init.Normal(0.5), **({"group2ctx": groups} if spread else {}))
        if hybridize:
            net.hybridize(exact=True, **({"recompute": True} if recompute else {}))
        for call in range(2):
            x = variable(nd.array(np.random.RandomState(call).randn(3, 5, 4)))
            with autograd.record():
                y = net(x)
                loss = (y * y).sum()
            loss.backward()
            found.append(
                [
                    y.asnumpy(),
                    x.grad.asnumpy(),
                    *[p.grad().asnumpy() for p in net.collect_params().values()],
                ]
            )
    for call in range(2):
        same_bits(found[call], found[2 + call])
        same_bits(found[call], found[4 + call])


def test_second_gradient_passes_through_a_graph_break():
    def f(net, F, x, s):
        return [F.contrib.boolean_mask(net.dense(x[0]) ** 2, x[0][:, 0] > 0)]

    found = []
    for hybridize in (False, True):
        mx.random.seed(1)
        net = Function(f)
        net.initialize(mx.init.Normal(1))
        if hybridize:
            net.hybridize(exact=True)
        x = variable(nd.array(np.random.RandomState(2).randn(1, 5, 4)))
        with autograd.record():
            y = (net(x, x)[0] ** 3).sum()
            g = autograd.grad(y, x, create_graph=True, retain_graph=True)[0]
            z = (g * g).sum()
        z.backward()
        found.append([g.asnumpy(), x.grad.asnumpy()])
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_foreach_first_step_receives_states_unconverted():
    kinds = []

    def body(row, states):
        kinds.append(type(states))
        return row, states

    nd.contrib.foreach(body, nd.ones((1, 2)), (nd.ones(1),))
    nd.contrib.foreach(body, nd.ones((1, 2)), nd.ones((1, 2)).tostype("csr"))
    assert kinds == [tuple, nd.sparse.CSRNDArray]
