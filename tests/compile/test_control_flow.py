"""Loops and branches, and shapes that depend on values: eager, hybridized, as symbols, over devices."""

import json
import os
import re

import numpy as np
import pytest
from support.compare import same_bits
from support.devices import on
from support.paths import TESTS

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.base import MXNetError

CONTROL = os.path.join(TESTS, "data", "control_flow-symbol.json")


class Function(gluon.HybridBlock):
    """A block of a function ``f(F, *arrays)``, with a Dense layer and a Dropout for its use."""

    def __init__(self, f, ctx=None):
        super().__init__()
        self.f = f
        with self.name_scope():
            self.dense = gluon.nn.Dense(4, in_units=4, flatten=False)
            self.late = gluon.nn.Dense(3, flatten=False)
            self.drop = gluon.nn.Dropout(0.4)

    def forward(self, x, *args):
        return self.f(self, mx.nd, x, *args)


def run(f, rows, calls=3, hybrid=False, ctx=None, exact=True, arrays=2):
    """Everything that comes out of some steps of training and prediction."""
    mx.random.seed(7)
    net = Function(f)
    net.initialize(mx.init.Normal(0.4), ctx=ctx or on(0))
    if hybrid:
        net.hybridize(exact=exact)
    found = []
    for call in range(calls):
        rng = np.random.RandomState(call % 2)
        inputs = [nd.array(rng.randn(rows, 5, 4).astype("float32")), nd.array(rng.randn(5, 4).astype("float32"))][:arrays]
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
    out, last = F.contrib.foreach(lambda a, st: ([net.drop(F.tanh(net.dense(a) + st[0])), a], [st[0] * 0.5 + a, st[1] + s]), F.relu(x), [s, s * 2])
    return [out[0], out[1], *last]


def search(net, F, x, s):
    out, (i, v) = F.contrib.while_loop(
        lambda i, v: F.broadcast_lesser(i, F.sum(F.abs(s)) * 0.1 + 1), lambda i, v: (v * i, [i + 1, net.drop(net.dense(v)) + x[0]]), [F.ones((1,)), s], max_iterations=6
    )
    return [out, i, v]


def never(net, F, x, s):
    out, v = F.contrib.while_loop(lambda v: F.sum(v) * 0 > 1, lambda v: ([v * 2, v], v * 3), s * 2, max_iterations=2)
    return [*(out or [F.zeros((2, 5, 4))] * 2), v, net.dense(x)]


def branch(net, F, x, s):
    y = F.contrib.cond(F.sum(x) > 0, lambda: [net.drop(net.dense(s)), s], lambda: [s * 2, x[0]])
    return [y[0] + 1, y[1], net.drop(y[0])]


def nested(net, F, x, s):
    def step(a, st):
        def inner(i, v):
            return v + i, [i + 1, F.contrib.cond(F.sum(v) > 0, lambda: net.drop(v), lambda: net.dense(v) + a)]

        out, (_, v) = F.contrib.while_loop(lambda i, v: i < 3, inner, [F.zeros((1,)), st], max_iterations=3)
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
def test_hybridized_equals_eager(f, rows):
    eager, _ = run(f, rows)
    exact, net = run(f, rows, hybrid=True)
    same_bits(eager, exact)
    default, _ = run(f, rows, hybrid=True, exact=False)
    for a, b in zip(eager, default):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert len(net.compiled()) > 0


@pytest.mark.parametrize("count", [2, 700, 1100])
def test_foreach_of_many_steps(count):
    def f(net, F, x, s):
        data = F.broadcast_mul(F.arange(count).reshape((count, 1, 1)) / count, s.expand_dims(0))
        out, last = F.contrib.foreach(lambda a, st: (net.dense(a) + st * 0.5, st * 0.5 + a), data, s)
        return [out, last, x]

    same_bits(run(f, 1, 2)[0], run(f, 1, 2, hybrid=True)[0])


def test_foreach_compiles_once_however_long():
    def nodes(count):
        def f(net, F, x, s):
            h = x
            for _ in range(10):
                h = F.tanh(h)
            return [F.contrib.foreach(lambda a, st: (a * st, F.tanh(net.dense(st) + a)), F.tile(h, (count, 1, 1)), s)[1]]

        net = run(f, 1, 1, hybrid=True)[1]
        return sum(entry["ops"] for entry in net.compiled()), net

    (short, _), (long, net) = nodes(300), nodes(1000)
    assert short == long
    assert any(entry["calls"] >= 1000 for entry in net.compiled())


def test_foreach_whose_state_changes_its_shape_is_unrolled():
    def f(net, F, x, s):
        out, last = F.contrib.foreach(lambda a, st: (a, F.concat(st, a, dim=0)), x, s)
        return [out, last]

    same_bits(run(f, 4)[0], run(f, 4, hybrid=True)[0])


def test_masks_inside_foreach_are_unrolled():
    def f(net, F, x, s):
        return list(F.contrib.foreach(lambda a, st: (F.sum(F.contrib.boolean_mask(a, a[:, 0] > 0), axis=0), st + 1), x, s))

    same_bits(run(f, 3)[0], run(f, 3, hybrid=True)[0])


def test_structures():
    def f(net, F, x, s):
        out, last = F.contrib.foreach(lambda a, st: ([a[0], [a[1] * 2, a[0] + st[1][0]]], [st[0] + 1, [st[1][0] * 2]]), [x, x * 2], [s, [s + 1]])
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
    loops, v = F.contrib.while_loop(lambda v: F.sum(v) < 100, lambda v: (v.as_in_context(on(0)) + s[0, 0], v + 30 + F.abs(v)), F.sum(m, axis=0), max_iterations=5)
    return [out, last, m.as_in_context(on(2)), loops, v]


@pytest.mark.parametrize("rows", [2, 400])
def test_over_devices(rows):
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
            found.append([[r.asnumpy() for r in results] + [x.grad.asnumpy(), s.grad.asnumpy()] + [p.grad().asnumpy() for p in net.collect_params().values()],
                          [str(r.context) for r in results]])  # fmt: skip
    for call in range(2):
        same_bits(found[call][0], found[2 + call][0])
        assert found[call][1] == found[2 + call][1]


def test_dropout_numbers_follow_the_program():
    """A draw behind a loop depends on how many draws the loop made, as it does eagerly."""

    def f(net, F, x, s):
        _, (i, v) = F.contrib.while_loop(lambda i, v: i < F.sum(x) * 0 + 3, lambda i, v: ([], [i + 1, net.drop(v)]), [F.zeros((1,)), s], max_iterations=9)
        return [v, net.drop(s)]

    same_bits(run(f, 1)[0], run(f, 1, hybrid=True)[0])


def test_statistics_are_updated_once():
    """The first call, which traces, runs every part once."""

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


def test_shapes_are_cached():
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
    assert len(traced) == 1 + 4  # to see what it uses, then once for each shape
    parts = [entry["part"]["after"] for entry in net.compiled()]
    assert (("boolean_mask", ((3, 4),)),) in parts and () in parts
    assert "Function, first part for prediction" in str(net.compiled())
    assert "Function, after boolean_mask -> (3, 4) for prediction" in str(net.compiled())


def test_cache_is_bounded(monkeypatch):
    from mpgluon import _graph_breaks

    monkeypatch.setattr(_graph_breaks, "LIMIT", 8)

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


def test_parameters_move_and_grow_late():
    """Parameters whose shapes are found behind a cut, and parameters that move to another device."""

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


def test_block_that_changes_its_mind_is_told():
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
    with pytest.raises(MXNetError, match="computed something else when it was traced again"):
        net(nd.ones((1, 5, 4)) * nd.array([1, 1, -1, 1, 1]).reshape((1, 5, 1)), nd.ones((5, 4)))


@pytest.mark.parametrize("recompute", [False, True])
def test_options_of_hybridize(recompute):
    """Groups of devices, and recomputation, go through cuts."""

    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.first = gluon.nn.Dense(4, in_units=4, flatten=False)
                with mx.AttrScope(ctx_group="dev1"):
                    self.second = gluon.nn.Dense(4, in_units=4, flatten=False)

        def hybrid_forward(self, F, x):
            h = self.second(F.tanh(self.first(x)))
            out, last = F.contrib.foreach(lambda a, s: (self.second(F.tanh(a)) + s, self.first(s)), h, h[0])
            m = F.contrib.boolean_mask(last, F.sum(h[0], axis=1) > 0)
            return F.contrib.cond(F.sum(out) > 0, lambda: self.second(out), lambda: self.second(out * 2)) + F.sum(m) + F.sum(self.first(h))

    groups = {"dev1": on(1)}
    found = []
    for hybridize, spread in ((False, False), (True, False), (True, True)):
        mx.random.seed(3)
        net = Net()
        net.initialize(mx.init.Normal(0.5), **({"group2ctx": groups} if spread else {}))
        if hybridize:
            net.hybridize(exact=True, **({"recompute": True} if recompute else {}))
        for call in range(2):
            x = nd.array(np.random.RandomState(call).randn(3, 5, 4))
            x.attach_grad()
            with autograd.record():
                y = net(x)
                loss = (y * y).sum()
            loss.backward()
            found.append([y.asnumpy(), x.grad.asnumpy(), *[p.grad().asnumpy() for p in net.collect_params().values()]])
    for call in range(2):
        same_bits(found[call], found[2 + call])
        same_bits(found[call], found[4 + call])


# --- Errors ---------------------------------------------------------------------------------------------------------


def hybrid(f):
    net = Function(f)
    net.initialize()
    net.hybridize()
    return lambda: net(nd.ones((2, 5, 4)), nd.ones((5, 4)))


@pytest.mark.parametrize(
    "f, kind, words",
    [
        (lambda net, F, x, s: F.contrib.while_loop(lambda v: F.sum(v) < 3, lambda v: ([], F.concat(v, v, dim=0)), s, max_iterations=3)[1],
         ValueError, r"loop_vars keep shapes.*number 0 goes in as float32 \(5, 4\) on [cg]pu\(0\) and comes out of func as float32 \(10, 4\)"),
        (lambda net, F, x, s: F.contrib.while_loop(lambda v: v, lambda v: ([], v), s, max_iterations=3)[1], ValueError, "one number, not an array of shape"),
        (lambda net, F, x, s: F.contrib.while_loop(lambda v: True, lambda v: ([], v), s, max_iterations=3)[1], ValueError, "cond has to return an array, not bool"),
        (lambda net, F, x, s: F.contrib.while_loop(lambda v: F.sum(v), lambda v: v, s, max_iterations=3)[1], ValueError, r"func returns \(outputs, loop_vars\)"),
        (lambda net, F, x, s: F.contrib.while_loop(lambda v: F.sum(v), lambda v: ([], [v, v]), s, max_iterations=3)[1], ValueError, "as many loop_vars as it gets, 1, not 2"),
        (lambda net, F, x, s: F.contrib.while_loop(lambda v: F.sum(v), lambda v: ([], v), s)[1], ValueError, "max_iterations has to be given"),
        (lambda net, F, x, s: F.contrib.while_loop(lambda: 1, lambda: ([], []), [], 3)[1], ValueError, "at least one of loop_vars"),
        (lambda net, F, x, s: F.contrib.cond(F.sum(s), lambda: s, lambda: x), ValueError, r"output 0 is float32 \(5, 4\) on [cg]pu\(0\) from then_func and float32 \(2, 5, 4\)"),
        (lambda net, F, x, s: F.contrib.cond(F.sum(s), lambda: s, lambda: s.as_in_context(on(1))), ValueError, r"from else_func|from then_func and float32 \(5, 4\) on [cg]pu\(1\)"),
        (lambda net, F, x, s: F.contrib.cond(F.sum(s), lambda: s, lambda: [s, s]), ValueError, "then_func returned 1 arrays, else_func 2"),
        (lambda net, F, x, s: F.contrib.cond(s, lambda: s, lambda: s), ValueError, "pred has to be one number"),
        (lambda net, F, x, s: F.contrib.cond(F.sum(s), lambda: F.contrib.boolean_mask(s, s[:, 0]), lambda: s), NotImplementedError, "inside cond, whose steps are compiled"),
        (lambda net, F, x, s: F.contrib.while_loop(lambda v: F.sum(v), lambda v: (F.contrib.boolean_mask(s, s[:, 0]), v), s, max_iterations=2)[1],
         NotImplementedError, "boolean_mask: the shape of its result depends on values.*while_loop"),
        (lambda net, F, x, s: F.contrib.foreach(lambda a, st: (a + st, st.as_in_context(on(1)) + st), x, s)[0], MXNetError, r"different devices.*as_in_context\(mx.[cg]pu\(1\)\)"),
    ],
)  # fmt: skip
def test_errors(f, kind, words):
    call = hybrid(f)
    for _ in range(2):
        with pytest.raises(kind, match=words):
            call()
    assert nd.ones((1,)).asscalar() == 1


def test_arrays_kept_from_a_body_are_refused():
    kept = []

    def step(a, st):
        kept.append(a * 2)
        return a, st

    def f(net, F, x, s):
        F.contrib.foreach(step, x, s)
        return kept[-1] + 1

    net = Function(f)
    net.initialize()
    net.hybridize()
    with pytest.raises(MXNetError, match="from inside the body of a loop"):
        net(nd.ones((2, 5, 4)), nd.ones((5, 4)))


# --- Symbols ----------------------------------------------------------------------------------------------------------


def symbols():
    x, s, w = mx.sym.var("x"), mx.sym.var("s"), mx.sym.var("w")
    outs, last = mx.sym.contrib.foreach(
        lambda a, st: (mx.sym.FullyConnected(a + st[0] * w, num_hidden=3, name="fc"), [mx.sym.broadcast_add(st[0] * 2, mx.sym.sum(x))]), x, [s]
    )
    return mx.sym.Group([outs, last[0]])


def loops():
    i, s, w = mx.sym.var("i"), mx.sym.var("s"), mx.sym.var("w")
    outs, last = mx.sym.contrib.while_loop(lambda i, s: i < 4, lambda i, s: ([mx.sym.broadcast_add(s * w, i)], [i + 1, s * 1.5]), [i, s], max_iterations=6)
    return mx.sym.Group([outs[0], *last])


def choice():
    a, b = mx.sym.var("a"), mx.sym.var("b")
    return mx.sym.contrib.cond(mx.sym.sum(a * b) < 5, lambda: (a + 5) * (b + 5), lambda: (a - 5) * (b - 5))


def values(symbol, shapes, train=True):
    rng = np.random.RandomState(1)
    exe = symbol.simple_bind(on(0), **shapes)
    for name, array in exe.arg_dict.items():
        array[:] = rng.randn(*array.shape) if name != "i" else 0
    found = [a.asnumpy() for a in exe.forward(is_train=train)]
    exe.backward([nd.ones(o.shape) for o in exe.outputs])
    return found + [exe.grad_dict[name].asnumpy() for name in sorted(exe.grad_dict)]


SHAPES = [(symbols, {"x": (5, 2, 4), "s": (2, 4), "w": (1,)}), (loops, {"i": (1,), "s": (2, 3), "w": (2, 3)}), (choice, {"a": (2,), "b": (2,)})]


@pytest.mark.parametrize("make, shapes", SHAPES, ids=["foreach", "while_loop", "cond"])
def test_symbols_are_saved_and_loaded(make, shapes):
    if make is symbols:
        shapes = {"x": (5, 2, 4), "s": (2, 4), "w": (2, 4)}
    symbol = make()
    again = mx.sym.load_json(symbol.tojson())
    assert again.tojson() == symbol.tojson()
    assert again.list_arguments() == symbol.list_arguments() and again.list_outputs() == symbol.list_outputs()
    assert again.infer_shape(**shapes) == symbol.infer_shape(**shapes)
    same_bits(values(symbol, shapes), values(again, shapes))
    copied = mx.sym.load_json(symbol.__copy__().tojson())
    assert copied.tojson() == symbol.tojson()


def test_symbols_equal_arrays():
    shapes = {"x": (5, 2, 4), "s": (2, 4), "w": (2, 4)}
    symbol = symbols()
    arguments = symbol.list_arguments()
    found = values(symbol, shapes)
    rng = np.random.RandomState(1)
    known = dict(zip(arguments, symbol.infer_shape(**shapes)[0]))
    arrays = {name: nd.array(rng.randn(*known[name]).astype("float32")) for name in arguments}
    for array in arrays.values():
        array.attach_grad()
    with autograd.record():
        x, w = arrays["x"], arrays["w"]
        outs, last = nd.contrib.foreach(
            lambda a, st: (nd.FullyConnected(a + st[0] * w, arrays["fc_weight"], arrays["fc_bias"], num_hidden=3), [nd.broadcast_add(st[0] * 2, nd.sum(x))]), x, [arrays["s"]]
        )
    autograd.backward([outs, last[0]])
    for a, b in zip(found, [outs.asnumpy(), last[0].asnumpy(), *[arrays[name].grad.asnumpy() for name in sorted(arrays)]]):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_json_of_mxnet():
    """A file that MXNet 1.9.1 wrote, with the outputs it computed."""
    with open(CONTROL) as file:
        document = json.load(file)
    for case in document["cases"]:
        symbol = mx.sym.load_json(case["symbol"])
        arrays = {name: nd.array(np.array(value, "float32")) for name, value in case["arguments"].items()}
        grads = {name: nd.zeros(array.shape) for name, array in arrays.items()}
        exe = symbol.bind(on(0), arrays, grads)
        for out, expected in zip(exe.forward(is_train=True), case["outputs"]):
            np.testing.assert_allclose(out.asnumpy(), np.array(expected), rtol=1e-5, atol=1e-5)
        exe.backward([nd.ones(o.shape) for o in exe.outputs])
        for name, expected in case["gradients"].items():
            np.testing.assert_allclose(grads[name].asnumpy(), np.array(expected), rtol=1e-5, atol=1e-4)
        assert json.loads(symbol.tojson())["nodes"] == json.loads(case["symbol"])["nodes"]


def test_blocks_are_exported(tmp_path):
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.cell = gluon.nn.Dense(4, in_units=4)
                self.norm = gluon.nn.BatchNorm(in_channels=4)

        def hybrid_forward(self, F, x):
            out, last = F.contrib.foreach(lambda a, st: (self.norm(self.cell(a)), st + a), x, F.sum(x, axis=0))
            return F.contrib.cond(F.sum(last) > 0, lambda: out * 2, lambda: out + 1)

    net = Net()
    net.initialize(mx.init.Normal())
    net.hybridize()
    x = nd.array(np.random.RandomState(0).randn(3, 2, 4))
    expected = net(x).asnumpy()
    files = net.export(str(tmp_path / "net"))
    again = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    np.testing.assert_allclose(again(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_symbol_errors():
    x, s = mx.sym.var("x"), mx.sym.var("s")
    for wrong, kind, words in (
        (lambda: mx.sym.contrib.foreach(lambda a, st: (a, [a]), x, [s]), AssertionError, "does not use s"),
        (lambda: mx.sym.contrib.foreach(lambda a, st: (a + st[0], []), x, [s]), MXNetError, "gets 1 states and returned 0"),
        (lambda: mx.sym.contrib.foreach(lambda a, st: (1, st), x, [s]), TypeError, "expected a Symbol"),
        (lambda: mx.sym.contrib.while_loop(lambda a: a, lambda a: ([], []), [x], 3), ValueError, "as many loop_vars"),
        (lambda: mx.sym.contrib.while_loop(lambda a: 1, lambda a: ([], a), [x], 3), ValueError, "has to return a Symbol"),
        (lambda: mx.sym.contrib.while_loop(lambda a: a, lambda a: ([], a), [x]), ValueError, "max_iterations"),
        (lambda: mx.sym.contrib.cond(x, lambda: [x, s], lambda: x), ValueError, "2 symbols, else_func 1"),
        (lambda: mx.sym.contrib.cond(1, lambda: x, lambda: x), ValueError, "pred has to be a Symbol"),
    ):
        with pytest.raises(kind, match=words):
            wrong()


def test_masks_in_symbols():
    x, m = mx.sym.var("x"), mx.sym.var("m")
    symbol = mx.sym.contrib.boolean_mask(x * 2, m, name="mask") + 1
    assert symbol.infer_shape_partial(x=(4, 3), m=(4,))[1] == [(0, 3)]
    assert mx.sym.load_json(symbol.tojson()).tojson() == symbol.tojson()
    data = np.arange(12, dtype="float32").reshape(4, 3)
    arrays, grads = {"x": nd.array(data), "m": nd.array([1, 0, 0, 1])}, {"x": nd.zeros((4, 3))}
    exe = symbol.bind(on(0), arrays, grads)
    assert np.array_equal(exe.forward(is_train=True)[0].asnumpy(), data[[0, 3]] * 2 + 1)
    exe.backward(nd.ones((2, 3)))
    assert grads["x"].asnumpy()[:, 0].tolist() == [2, 0, 0, 2]
    arrays["m"][:] = nd.array([0, 1, 0, 0])
    assert np.array_equal(exe.forward()[0].asnumpy(), data[[1]] * 2 + 1)
    arrays["m"][:] = 0
    assert exe.forward()[0].shape == (0, 3)


def test_gradient_of_gradient_through_a_cut():
    def f(net, F, x, s):
        return [F.contrib.boolean_mask(net.dense(x[0]) ** 2, x[0][:, 0] > 0)]

    found = []
    for hybridize in (False, True):
        mx.random.seed(1)
        net = Function(f)
        net.initialize(mx.init.Normal(1))
        if hybridize:
            net.hybridize(exact=True)
        x = nd.array(np.random.RandomState(2).randn(1, 5, 4))
        x.attach_grad()
        with autograd.record():
            y = (net(x, x)[0] ** 3).sum()
            g = autograd.grad(y, x, create_graph=True, retain_graph=True)[0]
            z = (g * g).sum()
        z.backward()
        found.append([g.asnumpy(), x.grad.asnumpy()])
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=1e-5)


# --- Blocks that can't be traced: op, block path, line and the way out ---------------------------------------------------


class Outer(gluon.HybridBlock):
    def __init__(self, f):
        super().__init__()
        self.body = Lambda(f)

    def hybrid_forward(self, F, x):
        return self.body(x)


class Lambda(gluon.HybridBlock):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def hybrid_forward(self, F, x):
        return self.f(F, x)


STORE = nd.zeros((3, 4))


def overwrite(F, x):
    y = x * 2
    y += 1
    return y


def overwrite_part(F, x):
    y = x * 2
    y[0] = 1
    return y


def write_outside(F, x):
    STORE[:] = 1
    return x + STORE


def write_traced_outside(F, x):
    x.copyto(STORE)
    return x


def write_out(F, x):
    nd.relu(STORE, out=STORE)
    return x


def write_in_body(F, x):
    counter = nd.array([0.0])

    def body(row, state):
        counter[:] = counter + 1
        return row, state

    return F.contrib.foreach(body, x, x[0])[0]


@pytest.mark.parametrize(
    "f, what, way",
    [
        (lambda F, x: x if F.sum(x) > 0 else -x, r"bool\(\) needs the value of an array of shape \(1,\)", "F.contrib.cond between computations"),
        (lambda F, x: x if x > 0 else -x, r"bool\(\) needs the value of an array of shape \(3, 4\)", "F.where"),
        (lambda F, x: max(x[0], x[1]), r"bool\(\) needs", "F.where"),
        (lambda F, x: [x for _ in iter(lambda: bool(x.sum() > 0), False)], r"bool\(\) needs", "F.contrib.while_loop repeats"),
        (lambda F, x: x * float(x.sum()), r"float\(\) needs", "array of one element and compute with F"),
        (lambda F, x: F.topk(x, k=int(x.sum())), r"int\(\) needs", "a size has to follow from shapes"),
        (lambda F, x: [x for _ in range(x[0, 0])], "an index needs", "F.take and F.pick"),
        (lambda F, x: x * x.sum().asscalar(), r"asscalar\(\) needs", "array of one element"),
        (lambda F, x: nd.array(x.asnumpy()), r"asnumpy\(\) needs the value of an array of shape \(3, 4\)", "with the ops of F .*or do this step outside"),
        (lambda F, x: nd.array(np.asarray(x)), r"__array__\(\) needs", "with the ops of F"),
        (lambda F, x: x.wait_to_read() or x, r"wait_to_read\(\) needs", "outside of the block"),
        (lambda F, x: x[(x[:, 0] > 0).astype("bool")], "indexing by this array", "F.contrib.boolean_mask picks rows"),
        (overwrite, "_plus_scalar: out= is not possible", r"y = y \+ x instead of y \+= x"),
        (overwrite_part, r"x\[...\] = value overwrites an array of shape", "F.where, F.concat, F.scatter_nd"),
        (write_outside, r"x\[...\] = value: an array from outside", "Return the value from the block"),
        (write_traced_outside, "_copyto: an array from outside", "write it outside"),
        (write_out, "relu: an array from outside", "would happen once"),
        (write_in_body, "an array from outside of a hybridized block, or of the body of a loop", "Return the value"),
        (lambda F, x: F.reshape(x, shape=(x[0, 0], -1)), "Reshape: shape has to be", "traced by hybridize"),
        (lambda F, x: x + nd.ones((3, 4), ctx=on(1)), "inputs are on different devices.* on [cg]pu.0., .* on [cg]pu.1.", r"as_in_context\(mx.[cg]pu\(0\)\)"),
        (lambda F, x: F.contrib.foreach(lambda a, s: (a + s.as_in_context(on(1)), s), x, x[0])[0],
         "inputs are on different devices.* on [cg]pu.0., .* on [cg]pu.1.", r"as_in_context\(mx.[cg]pu\(0\)\)"),
    ],
)  # fmt: skip
def test_blocks_that_cannot_be_traced(f, what, way):
    net = Outer(f)
    net.hybridize()
    for _ in range(2):
        with pytest.raises(MXNetError) as caught:
            net(nd.ones((3, 4)))
        text = str(caught.value)
        assert re.search(what, text), text
        assert re.search(way, text), text
        assert "Outer.body" in text, text
        assert f"{os.path.basename(__file__)}:{line_of(f)}" in text or any(f"{os.path.basename(__file__)}:{n}" in text for n in range(line_of(f), line_of(f) + 8)), text
    assert np.array_equal(STORE.asnumpy(), np.zeros((3, 4)))


def line_of(f):
    return f.__code__.co_firstlineno


def test_arrays_made_inside_may_be_written_inside():
    def f(F, x):
        table = nd.array(np.arange(4))
        table[0] = 5
        return x * table

    net = Outer(f)
    net.hybridize()
    assert net(nd.ones((1, 4))).asnumpy().tolist() == [[5, 1, 2, 3]]


def test_devices_of_symbols_that_disagree():
    x = mx.sym.var("x")
    plain = x + x.as_in_context(on(1))
    inside = mx.sym.contrib.foreach(lambda a, s: (a + s.as_in_context(on(1)), s * 2), x, mx.sym.var("s"))[0]
    for symbol, name, arrays in ((plain, plain.name, {"x": nd.ones((3, 2))}), (inside, "_foreach", {"x": nd.ones((3, 2)), "s": nd.ones((2,))})):
        with pytest.raises(MXNetError) as caught:
            symbol.bind(on(0), arrays).forward()
        text = str(caught.value)
        assert f"Error in operator {name}" in text and f"lhs on {on(0)}, rhs on {on(1)}" in text and f"as_in_context(mx.{on(0)})" in text, text
        assert f"made at {__file__}" in text and text.count("made at") == 1, text
