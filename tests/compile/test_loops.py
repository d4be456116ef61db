"""Loops with compiled bodies run in one core call and match eager loops step by step."""

import gc
import os
import re
import signal
import sys
import threading
import weakref
from contextlib import suppress

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.context import set_memory_limit
from support.calls import raises
from support.devices import on

STEPS = 1100  # too many to unroll


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
    """Swapped, constant and row states; outputs that are inputs; duplicate outputs."""
    out, last = F.contrib.foreach(
        lambda a, st: ([a, st[0], F.dot(a, w), st[2]], [st[1], st[0], st[2], a]),
        x,
        [s, s * 2, s * 3, s],
    )
    return [*out, *last]


def apart(F, x, s, w):
    def step(a, st):
        there = (F.dot(st, w) + a).as_in_context(on(1)) * 0.5
        return there, F.tanh(there.as_in_context(on(0)))

    return F.contrib.foreach(step, x, s)


def several(F, x, s, w):
    """Rows of several arrays, and outputs computed from rows only."""
    out, last = F.contrib.foreach(
        lambda a, st: ([a[0] * a[1]], [st[0] + F.dot(a[1], w)]), [x, x * 2], [s]
    )
    return [out[0], last[0]]


def condition(F, x, s, w):
    out, last = F.contrib.while_loop(
        lambda i, st: F.broadcast_lesser(i, F.sum(x * 0) + 700),
        lambda i, st: (st * i, [i + 1, F.tanh(F.dot(st, w))]),
        [F.zeros((1,)), s],
        max_iterations=720,
    )
    return [out, *last]


def never(F, x, s, w):
    out, last = F.contrib.while_loop(
        lambda st: F.sum(st) * 0 > 1,
        lambda st: ([st * 2, F.dot(st, w)], st * 3),
        s,
        max_iterations=3,
    )
    return [*(out or [F.zeros((3, 2, 4))] * 2), last]


# Nested loops and branches. None is unrolled: inner loops have many ops or a condition.


def positive(F, a):
    return F.sum(a) > 0


def dense(F, st, a, w):
    return F.tanh(F.dot(st, w) + a)


def branch_in_foreach(F, x, s, w):
    return F.contrib.foreach(
        lambda a, st: (
            (F.contrib.cond(positive(F, a), lambda: dense(F, st, a, w), lambda: st - a),) * 2
        ),
        x,
        s,
    )


def branch_in_while(F, x, s, w):
    def step(i, st):
        new = F.contrib.cond(
            positive(F, st), lambda: [dense(F, st, x[0], w), st], lambda: [st * -0.5, st + i]
        )
        return new[1], [i + 1, new[0]]

    out, last = F.contrib.while_loop(lambda i, st: i < 9, step, [F.zeros((1,)), s], 12)
    return [out, *last]


def branch_in_branch(F, x, s, w):
    return [
        F.contrib.cond(
            positive(F, x),
            lambda: F.contrib.cond(positive(F, s), lambda: dense(F, s, x[0], w), lambda: s * 2),
            lambda: F.contrib.cond(
                positive(F, s), lambda: s + x[1], lambda: dense(F, s, x[1], w) * 3
            ),
        )
    ]


def foreach_in_branch(F, x, s, w):
    def loop(y):
        return lambda: list(
            F.contrib.foreach(lambda a, st: (dense(F, st, a, w), st * 0.5 + a), y, s)
        )

    return F.contrib.cond(positive(F, s), loop(x), loop(x * 0.5))


def while_in_branch(F, x, s, w):
    def loop(count):
        return lambda: [
            *F.contrib.while_loop(
                lambda i, st: i < count,
                lambda i, st: (st * 2, [i + 1, dense(F, st, x[0], w)]),
                [F.zeros((1,)), s],
                6,
            )[1]
        ]

    return F.contrib.cond(positive(F, s), loop(4), loop(0))


def foreach_in_foreach(F, x, s, w):
    def outer(rows, st):
        out, last = F.contrib.foreach(
            lambda a, t: (dense(F, t, a, w), t * 0.5 + a), rows, st + rows[0]
        )
        return [out, last], last

    out, last = F.contrib.foreach(outer, F.tile(F.expand_dims(x[:400], 0), (3, 1, 1, 1)), s)
    return [*out, last]


def foreach_in_while(F, x, s, w):
    def outer(i, st):
        out, last = F.contrib.foreach(lambda a, t: (dense(F, t, a, w), t * 0.5 + a), x[:400], st)
        return [F.sum(out, axis=0)], [i + 1, last]

    out, last = F.contrib.while_loop(lambda i, st: i < 2, outer, [F.zeros((1,)), s], 3)
    return [out[0], *last]


def while_in_foreach(F, x, s, w):
    def outer(a, st):
        out, (i, t) = F.contrib.while_loop(
            lambda i, t: (i < 1) + (i < 4) * positive(F, t),
            lambda i, t: (t * i, [i + 1, dense(F, t, a, w)]),
            [F.zeros((1,)), st + F.abs(a)],
            5,
        )
        return [out, i], t

    out, last = F.contrib.foreach(outer, x[:20], s)
    return [*out, last]


def while_in_while(F, x, s, w):
    def outer(k, st):
        out, (_, t) = F.contrib.while_loop(
            lambda i, t: i < k,
            lambda i, t: (t - i, [i + 1, dense(F, t, x[0], w)]),
            [F.zeros((1,)), st],
            5,
        )
        return out, [k + 1, t]

    out, last = F.contrib.while_loop(lambda k, st: k < 4, outer, [F.ones((1,)), s], 6)
    return [out, *last]


def all_of_them(F, x, s, w):
    def inner(a, t):
        return F.contrib.cond(
            positive(F, t),
            lambda: F.Dropout(dense(F, t, a, w), p=0.3),
            lambda: F.contrib.while_loop(
                lambda i, v: i < 2, lambda i, v: ([], [i + 1, v * -0.5 + a]), [F.zeros((1,)), t], 3
            )[1][1],
        )

    def outer(rows, st):
        out, last = F.contrib.foreach(lambda a, t: (a * 2, inner(a, t)), rows, st)
        return out, last

    return F.contrib.foreach(outer, x[:60].reshape((4, 15, 2, 4)), s)


inside = {
    function.__name__.replace("_", " "): function
    for function in (
        branch_in_foreach,
        branch_in_while,
        branch_in_branch,
        foreach_in_branch,
        while_in_branch,
        foreach_in_foreach,
        foreach_in_while,
        while_in_foreach,
        while_in_while,
        all_of_them,
    )
}


def spread(function):
    """Moves the parameter and its uses in every body to another device and back."""

    class Elsewhere:
        def __init__(self, F):
            self.F = F

        def __getattr__(self, name):
            return getattr(self.F, name)

        def dot(self, a, w):
            return self.F.dot(a.as_in_context(on(1)), w).as_in_context(on(0))

    return lambda F, x, s, w: function(Elsewhere(F), x, s, w.as_in_context(on(1)))


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


def results(function, hybrid, request="write", sign=1, exact=True):
    net, (x, s) = make(function, hybrid, exact=exact), arrays()
    net.w.grad_req = request
    s = nd.abs(s) * sign
    for array in (x, s):
        array.attach_grad(request)
    found = [array.asnumpy() for array in net(x, s)]
    for _ in range(2):
        with autograd.record():
            out = net(x, s)
            loss = sum((array.as_in_context(on(0)) * (k + 1)).sum() for k, array in enumerate(out))
        loss.backward()
    return [
        *found,
        *[array.asnumpy() for array in out],
        *[array.asnumpy() for array in (net.w.grad(), x.grad, s.grad)],
    ]


@pytest.mark.parametrize("request_", ["write", "add"])
@pytest.mark.parametrize(
    "function", [plain, swapped, apart, several, condition, never], ids=lambda f: f.__name__
)
def test_compiled_loops_match_eager(function, request_):
    for a, b in zip(results(function, True, request_), results(function, False, request_)):
        assert a.shape == b.shape and (a == b).all()


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", inside)
def test_nested_loops_and_branches_match_eager(name, devices):
    function = inside[name] if devices == 1 else spread(inside[name])
    expected = [results(inside[name], False, sign=sign) for sign in (1, -1)]
    for sign, eager in zip((1, -1), expected):
        for a, b in zip(results(function, True, sign=sign), eager):
            assert a.shape == b.shape and (a == b).all()
        for a, b in zip(results(function, True, sign=sign, exact=False), eager):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_nested_bodies_run_without_python_code():
    called = []

    def function(F, x, s, w):
        called.append("the block")
        return all_of_them(F, x, s, w)

    net, (x, s) = make(function, True), arrays()
    for training in (False, True):
        with autograd.record(training):
            net(x, s)
            before, kept = len(called), sys.getprofile()
            sys.setprofile(
                lambda frame, event, _: (
                    called.append(frame.f_code.co_filename) if event == "call" else None
                )
            )
            try:
                net(x, s)
            finally:
                sys.setprofile(kept)
        assert len(called) - before < 40, called[before:]


def test_custom_op_inside_body_matches_eager():
    """An op written in Python can also run between compiled parts of a body."""
    expected = results(with_custom, False)
    for a, b in zip(results(with_custom, True), expected):
        assert a.shape == b.shape and (a == b).all()


def with_custom(F, x, s, w):
    def step(a, st):
        doubled = F.Custom(st, op_type="test_loops_double")
        return F.contrib.cond(
            positive(F, a),
            lambda: dense(F, doubled, a, w),
            lambda: F.Custom(st - a, op_type="test_loops_double"),
        ), doubled * 0.25 + a

    return F.contrib.foreach(step, x[:30], s)


@mx.operator.register("test_loops_double")
class DoubleProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=True)

    def create_operator(self, ctx, shapes, dtypes):
        return Double()


class Double(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


def test_second_gradient_passes_through_loop():
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
        # Second gradients are computed op by op; entries near 0 are sums that cancel
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_endless_loop_can_be_interrupted():
    net = make(
        lambda F, x, s, w: F.contrib.while_loop(
            lambda st: F.sum(st) * 0 < 1,
            lambda st: ([], F.tanh(F.dot(st, w))),
            s,
            max_iterations=10**9,
        )[1],
        True,
    )
    x, s = arrays()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()  # without the interrupt it would run for hours
    try:
        with pytest.raises(KeyboardInterrupt):
            net(x, s).wait_to_read()
    finally:
        timer.cancel()
    assert (nd.ones((2,)) + 1).asnumpy().sum() == 4


def test_out_of_memory_error_names_loop_step():
    device = on(60)
    mx.random.seed(1)
    net = Loop(
        lambda F, x, s, w: F.contrib.foreach(
            lambda a, st: (F.dot(st, w) + a, F.concat(st[1:], st[:1], dim=0) * a), x, s
        )
    )
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


def test_routine_validates_its_arguments():
    loop, sequence, branch = _core.Routine.loop, _core.Routine.sequence, _core.Routine.branch
    add, x, s = _core.CachedOp(lambda a, b: [a + b]), nd.ones((3, 2)), nd.ones((2,))
    step = sequence(2, [(add, None, [0, 1], 1)], [2, 2])
    row = ((2,), "float32", mx.cpu(0), False)
    rows, last = loop("foreach", 3, 1, 1, step, 0, None, 0, [row])([x, s])
    assert rows.shape == (3, 2) and (last.asnumpy() == 4).all()
    twice = sequence(
        1,
        [(lambda arrays: [arrays[0] * 2, arrays[0]], None, [0], 2), (add, None, [1, 2], 1)],
        [3, 0],
    )
    assert [array.asnumpy().tolist() for array in twice([s])] == [[3, 3], [1, 1]]
    either = branch(twice, 1, sequence(1, [], [0, 0]), 1, 2)
    for truth, expected in ((0, 5), (2, 3)):
        assert either([nd.array([truth]), s, s * 5])[0].asnumpy().tolist() == [expected] * 2
    foreach = lambda steps, body=step, rows=(row,), more=0: loop(
        "foreach", steps, 1, 1, body, more, None, 0, list(rows)
    )
    called = lambda function, outputs=2: sequence(1, [(function, None, [0], outputs)], [1])
    one = sequence(2, [(add, None, [0, 1], 2)], [2, 3])
    for error, words, make in (
        (TypeError, "CachedOp, a Routine or a function", lambda: foreach(3, 5)),
        (ValueError, "must not be negative", lambda: foreach(-1)),
        (
            ValueError,
            "cannot have data",
            lambda: loop("while_loop", 1, 1, 1, step, 0, step, 0, [row]),
        ),
        (TypeError, "described by a tuple", lambda: foreach(3, rows=[2])),
        (TypeError, "a call must be a tuple", lambda: sequence(1, [add], [0])),
        (ValueError, "slot 2 is out of range", lambda: sequence(2, [(add, None, [0, 2], 1)], [2])),
        (ValueError, "slot -1 is out", lambda: sequence(2, [(add, None, [0, 1], 1)], [-1])),
        (TypeError, "int", lambda: sequence(2, [(add, None, [0, "a"], 1)], [2])),
        (TypeError, "not iterable", lambda: sequence(2, 3, [2])),
        (TypeError, "cannot create", _core.Routine),
        (ValueError, "expects 2 arrays and returns 2, not 1 and 2", lambda: step([x])),
        (TypeError, "expected an NDArray", lambda: step([x, 1])),
        (TypeError, "takes only a list of arrays", lambda: step([x, s], a=1)),
        (ValueError, "foreach: the data must .* each of 4", lambda: foreach(4)([x, s])),
        (ValueError, "step 0: the function returns 1.*, not 2", lambda: foreach(3, one)([x, s])),
        (ValueError, "step 0: the routine expects 2", lambda: foreach(3, more=1)([x, s, s])),
        (ValueError, "one number, not an array of shape", lambda: either([s, s, s])),
        (ValueError, "returned 1 arrays, not 2", lambda: called(lambda arrays: arrays)([s])),
        (TypeError, "list of arrays", lambda: called(lambda arrays: 3)([s])),
        (TypeError, "expected an NDArray", lambda: called(lambda arrays: [s, 3])([s])),
        (ZeroDivisionError, "division", lambda: called(lambda arrays: 1 / 0)([s])),
    ):
        raises(error, words, make)


def test_routine_in_reference_cycle_is_collected():
    class Holds:
        def __call__(self, arrays):
            return arrays

    holds = Holds()
    holds.routine = _core.Routine.sequence(1, [(holds, None, [0], 1)], [1])
    assert holds.routine([nd.ones((2,))])[0].shape == (2,)
    gone = weakref.ref(holds)
    del holds
    gc.collect()
    assert gone() is None


def test_loop_survives_each_bookkeeping_allocation_failure():
    """Each bookkeeping allocation fails once; a repeated call works."""
    net, (x, s) = make(inside["branch in foreach"], True, exact=True), arrays()
    x = x[:40]

    def call():
        with autograd.record():
            out = net(x, s)
        out[0].backward()
        return [array.asnumpy() for array in (*out, net.w.grad())]

    expected, failed = call(), 0
    for n in range(1, 60):
        net.hybridize(exact=True)
        _core._memory_fail_after(n)
        try:
            call()
        except MemoryError:
            failed += 1
        _core._memory_fail_after(0)
    assert failed > 20
    net.hybridize(exact=True)
    for a, b in zip(call(), expected):
        assert (a == b).all()


class Factors(gluon.HybridBlock):
    """Cholesky factors of a matrix that becomes indefinite: its first entry is 1.6 - 0.3 * step."""

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
            return F.contrib.while_loop(
                condition,
                lambda i, m: (F.linalg_potrf(m), [i + 1, m - less]),
                [F.zeros((1,)), m],
                2000,
            )[0]
        return F.contrib.foreach(
            lambda row, m: (F.contrib.foreach(step, rows, m + row * 0 + less * 1e-9)[0], m),
            rows[:3],
            m - less * 0,
        )[0]


@pytest.mark.parametrize(
    "kind, where",
    [
        ("foreach", "step 6 of a loop[,\\]]|foreach, step 6: "),
        ("while_loop", "step 6 of a loop[,\\]]|while_loop, step 6: "),
        (
            "nested",
            "step \\d+ of a loop in step [0-2] of another[,\\]]|foreach, step \\d+: ",
        ),  # whichever the device reaches first
    ],
)
def test_failed_kernel_error_names_loop_step(kind, where):
    net = Factors(kind)
    net.hybridize()
    rows, less = nd.zeros((STEPS, 2, 2)), nd.array([[0.3, 0], [0, 0]])

    def call(first):
        # The stall keeps the work queued, so it fails later. It fails immediately if a condition is
        # read or the device has become idle.
        _core._stall(mx.cpu(0), 0.2)
        out = net(rows, nd.array([[first, 0], [0, 1]]), less)
        return (out[0] if isinstance(out, (list, tuple)) else out).asnumpy()

    for _ in range(2):
        assert np.isfinite(call(1e6)[:3]).all()
        with pytest.raises(mx.MXNetError, match="not positive definite") as caught:
            call(1.6)
        assert re.search(where, str(caught.value)), caught.value
        with suppress(mx.MXNetError):
            nd.waitall()  # drains the later steps
    assert _core.set_steps(0) == 0


def test_error_in_loop_step_resets_step_counter():
    def fails(a, s):
        raise KeyError("no")

    for loop in (
        lambda: nd.contrib.foreach(fails, nd.ones((3, 2)), nd.ones((2,))),
        lambda: nd.contrib.while_loop(lambda s: s < 3, lambda s: fails(s, s), nd.ones((1,)), 5),
    ):
        with pytest.raises(KeyError):
            loop()
        assert _core.set_steps(0) == 0
    with pytest.raises(TypeError):
        _core.set_steps("a")
    with pytest.raises(OverflowError):
        _core.set_steps(-1)
