"""Loops whose bodies are compiled run in one call of the core, step by step like eager ones."""

import os
import re
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from places import on

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.context import set_memory_limit

STEPS = 1100  # more than are unrolled


class Loop(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function
        with self.name_scope():
            self.w = self.params.get("w", shape=(4, 4))

    def hybrid_forward(self, F, x, s, w):
        return self.function(F, x, s, w)


def plain(F, x, s, w):
    return F.contrib.foreach(lambda a, st: (F.tanh(F.dot(st, w) + a), st * 0.5 + a), x, s)


def swapped(F, x, s, w):
    """States that change places, stay as they are, or are a row; outputs that are inputs, and the same twice."""
    out, last = F.contrib.foreach(lambda a, st: ([a, st[0], F.dot(a, w), st[2]], [st[1], st[0], st[2], a]), x, [s, s * 2, s * 3, s])
    return [*out, *last]


def apart(F, x, s, w):
    def step(a, st):
        there = (F.dot(st, w) + a).as_in_context(on(1)) * 0.5
        return there, F.tanh(there.as_in_context(on(0)))

    return F.contrib.foreach(step, x, s)


def several(F, x, s, w):
    """Rows of several arrays, and nothing but rows."""
    out, last = F.contrib.foreach(lambda a, st: ([a[0] * a[1]], [st[0] + F.dot(a[1], w)]), [x, x * 2], [s])
    return [out[0], last[0]]


def condition(F, x, s, w):
    out, last = F.contrib.while_loop(
        lambda i, st: F.broadcast_lesser(i, F.sum(x * 0) + 700), lambda i, st: (st * i, [i + 1, F.tanh(F.dot(st, w))]), [F.zeros((1,)), s], max_iterations=720
    )
    return [out, *last]


def never(F, x, s, w):
    out, last = F.contrib.while_loop(lambda st: F.sum(st) * 0 > 1, lambda st: ([st * 2, F.dot(st, w)], st * 3), s, max_iterations=3)
    return [*(out or [F.zeros((3, 2, 4))] * 2), last]


def make(function, hybrid, **options):
    mx.random.seed(1)
    net = Loop(function)
    net.initialize(mx.init.Uniform(0.5))
    if hybrid:
        net.hybridize(**options)
    return net


def arrays():
    draw = np.random.RandomState(0)
    return nd.array(draw.uniform(-1, 1, (STEPS, 2, 4))), nd.array(draw.uniform(-1, 1, (2, 4)))


def results(function, hybrid, request="write"):
    net, (x, s) = make(function, hybrid, exact=True), arrays()
    net.w.grad_req = request
    for array in (x, s):
        array.attach_grad(request)
    found = [array.asnumpy() for array in net(x, s)]
    for _ in range(2):
        with autograd.record():
            out = net(x, s)
            loss = sum((array.as_in_context(on(0)) * (k + 1)).sum() for k, array in enumerate(out))
        loss.backward()
    return [*found, *[array.asnumpy() for array in out], *[array.asnumpy() for array in (net.w.grad(), x.grad, s.grad)]]


@pytest.mark.parametrize("request_", ["write", "add"])
@pytest.mark.parametrize("function", [plain, swapped, apart, several, condition, never], ids=lambda f: f.__name__)
def test_loops_are_those_of_eager_code(function, request_, monkeypatch):
    expected = results(function, False, request_)
    calls = []
    run_loop = _core.run_loop
    monkeypatch.setattr(_core, "run_loop", lambda name, *rest: (calls.append(name), run_loop(name, *rest))[1])
    for a, b in zip(results(function, True, request_), expected):
        assert a.shape == b.shape and (a == b).all()
    assert len(calls) >= 3


def test_gradients_of_gradients_go_through_loops():
    found = []
    for hybrid in (False, True):
        net, (x, s) = make(plain, hybrid, exact=True), arrays()
        s.attach_grad()
        with autograd.record():
            out, _ = net(x, s)
            (g,) = autograd.grad((out**2).sum(), [s], create_graph=True)
            z = (g**2).sum()
        z.backward()
        found.append([s.grad.asnumpy(), net.w.grad().asnumpy()])
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # gradients of gradients are taken op by op, and entries near 0 are sums that cancel


def test_loops_without_end_are_interrupted():
    net = make(lambda F, x, s, w: F.contrib.while_loop(lambda st: F.sum(st) * 0 < 1, lambda st: ([], F.tanh(F.dot(st, w))), s, max_iterations=10**9)[1], True)
    x, s = arrays()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    begin = time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            net(x, s).wait_to_read()
    finally:
        timer.cancel()
    assert time.monotonic() - begin < 20
    assert (nd.ones((2,)) + 1).asnumpy().sum() == 4


def test_out_of_memory_names_the_step():
    device = on(60)
    mx.random.seed(1)
    net = Loop(lambda F, x, s, w: F.contrib.foreach(lambda a, st: (F.dot(st, w) + a, F.concat(st[1:], st[:1], dim=0) * a), x, s))
    net.initialize(ctx=device)
    net.hybridize()
    x, s = nd.ones((STEPS, 1, 4), ctx=device), nd.ones((2048, 4), ctx=device)
    set_memory_limit(device, 8 << 20)
    try:
        with pytest.raises(MemoryError, match=r"foreach, step \d+: .*[cg]pu\([60]+\)"):
            with autograd.record():
                out = net(x, s)[0]
            out.wait_to_read()
    finally:
        set_memory_limit(device, None)
    out, last = net(x, s)
    assert out.shape == (STEPS, 2048, 4) and np.isfinite(last.asnumpy()).all()


def test_run_loop_checks_what_it_gets():
    op = _core.CachedOp(lambda a, b: [a + b])
    x, s = nd.ones((3, 2)), nd.ones((2,))
    step = (op, [], [0, 1], 1, [0, 0])
    steps, (rows, last) = _core.run_loop("foreach", 3, [x], [s], step, None)
    assert steps == 3 and rows.shape == (3, 2) and (last.asnumpy() == 4).all()
    for error, arguments in (
        (TypeError, ("foreach", 3, [1], [s], step, None)),
        (TypeError, ("foreach", 3, [x], [s], (lambda: 0, [], [0, 1], 1, [0, 0]), None)),
        (TypeError, ("foreach", 3, [x], [s], [op], None)),
        (ValueError, ("foreach", 4, [x], [s], step, None)),
        (ValueError, ("foreach", 3, [x], [s], (op, [], [0, 2], 1, [0, 0]), None)),
        (ValueError, ("foreach", 3, [x], [s], (op, [], [0, 1], 1, [0, 1]), None)),
        (ValueError, ("foreach", 3, [x], [s], (op, [], [0, 1], 1, []), None)),
        (TypeError, ("foreach", 3, [x], [s], (op, [], [0, "a"], 1, [0, 0]), None)),
        (ValueError, ("foreach, step 0", 3, [x], [s], (op, [], [0, 1], 2, [0, 1]), None)),
        (ValueError, ("while_loop", 3, [], [s], (op, [], [0, 0], 1, [0]), step)),
    ):
        with pytest.raises(error):
            _core.run_loop(*arguments)


class Factors(gluon.HybridBlock):
    """Cholesky factors of a matrix that stops to be positive definite: its first entry is 1.6 - 0.3 * step."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def hybrid_forward(self, F, rows, m, less):
        def step(row, m):
            return F.linalg_potrf(m + row), m - less

        def condition(i, m):
            return i < 2000

        if self.kind == "foreach":
            return F.contrib.foreach(step, rows, m)[0]
        if self.kind == "while_loop":
            return F.contrib.while_loop(condition, lambda i, m: (F.linalg_potrf(m), [i + 1, m - less]), [F.zeros((1,)), m], 2000)[0]
        return F.contrib.foreach(lambda row, m: (F.contrib.foreach(step, rows, m + row * 0 + less * 1e-9)[0], m), rows[:3], m - less * 0)[0]


@pytest.mark.parametrize("kind, where", [
    ("foreach", "step 6 of a loop[,\\]]|foreach, step 6: "), ("while_loop", "step 6 of a loop[,\\]]|while_loop, step 6: "),
    ("nested", "step \\d+ of a loop in step [0-2] of another[,\\]]|foreach, step \\d+: "),  # whichever is met first
])  # fmt: skip
def test_failed_kernels_name_the_step(kind, where):
    net = Factors(kind)
    net.hybridize()
    rows, less = nd.zeros((STEPS, 2, 2)), nd.array([[0.3, 0], [0, 0]])

    def call(first):
        _core._stall(mx.cpu(0), 0.2)  # what follows is queued, and fails later; where a condition is read, or the device has become idle, it fails at once
        out = net(rows, nd.array([[first, 0], [0, 1]]), less)
        return (out[0] if isinstance(out, (list, tuple)) else out).asnumpy()

    for _ in range(2):
        assert np.isfinite(call(1e6)[:3]).all()
        with pytest.raises(mx.MXNetError, match="not positive definite") as caught:
            call(1.6)
        assert re.search(where, str(caught.value)), caught.value
        with suppress(mx.MXNetError):
            nd.waitall()  # the steps behind it
    assert _core.set_steps(0) == 0


def test_an_error_in_a_step_leaves_no_step_behind():
    def fails(a, s):
        raise KeyError("no")

    for loop in (lambda: nd.contrib.foreach(fails, nd.ones((3, 2)), nd.ones((2,))), lambda: nd.contrib.while_loop(lambda s: s < 3, lambda s: fails(s, s), nd.ones((1,)), 5)):
        with pytest.raises(KeyError):
            loop()
        assert _core.set_steps(0) == 0
    with pytest.raises(TypeError):
        _core.set_steps("a")
    with pytest.raises(OverflowError):
        _core.set_steps(-1)
