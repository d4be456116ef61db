"""Errors of loops and branches, and of blocks that cannot be traced."""

import os
import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.base import MXNetError
from support.devices import on
from support.functions import Function

# --- Errors ---------------------------------------------------------------------------------------


def hybrid(f):
    net = Function(f)
    net.initialize()
    net.hybridize()
    return lambda: net(nd.ones((2, 5, 4)), nd.ones((5, 4)))


def while_loop(cond, func, **options):
    """Returns the function of a block that loops over its state."""
    options = options or {"max_iterations": 3}
    return lambda net, F, x, s: F.contrib.while_loop(
        lambda v: cond(F, v), lambda v: func(F, v), s, **options
    )[1]


def cond(then, otherwise, pred=lambda F, s: F.sum(s)):
    return lambda net, F, x, s: F.contrib.cond(
        pred(F, s), lambda: then(F, x, s), lambda: otherwise(F, x, s)
    )


def refused(words, f, kind=ValueError):
    return pytest.param(f, kind, words)


@pytest.mark.parametrize(
    "f, kind, words",
    [
        refused(
            r"loop_vars must keep shapes.*number 0 is float32 \(5, 4\) on [cg]pu\(0\) before "
            r"and float32 \(10, 4\) on [cg]pu\(0\) after func",
            while_loop(lambda F, v: F.sum(v) < 3, lambda F, v: ([], F.concat(v, v, dim=0))),
        ),
        refused(
            "one number, not an array of shape", while_loop(lambda F, v: v, lambda F, v: ([], v))
        ),
        refused(
            "cond must return an array, not bool",
            while_loop(lambda F, v: True, lambda F, v: ([], v)),
        ),
        refused(
            r"func must return \(outputs, loop_vars\)",
            while_loop(lambda F, v: F.sum(v), lambda F, v: v),
        ),
        refused(
            "the same number of loop_vars as it gets, 1, not 2",
            while_loop(lambda F, v: F.sum(v), lambda F, v: ([], [v, v])),
        ),
        refused(
            "max_iterations must be given",
            while_loop(lambda F, v: F.sum(v), lambda F, v: ([], v), max_iterations=None),
        ),
        refused(
            "loop_vars must not be empty",
            lambda net, F, x, s: F.contrib.while_loop(lambda: 1, lambda: ([], []), [], 3)[1],
        ),
        refused(
            r"output 0 is float32 \(5, 4\) on [cg]pu\(0\) from then_func but float32 \(2, 5, 4\)",
            cond(lambda F, x, s: s, lambda F, x, s: x),
        ),
        refused(
            r"from else_func|from then_func but float32 \(5, 4\) on [cg]pu\(1\)",
            cond(lambda F, x, s: s, lambda F, x, s: s.as_in_context(on(1))),
        ),
        refused(
            "then_func returned 1 arrays, but else_func returned 2",
            cond(lambda F, x, s: s, lambda F, x, s: [s, s]),
        ),
        refused(
            "pred must be one number",
            cond(lambda F, x, s: s, lambda F, x, s: s, pred=lambda F, s: s),
        ),
        refused(
            "inside cond, whose steps are compiled",
            cond(lambda F, x, s: F.contrib.boolean_mask(s, s[:, 0]), lambda F, x, s: s),
            NotImplementedError,
        ),
        refused(
            "boolean_mask: the shape of its result depends on values.*while_loop",
            while_loop(lambda F, v: F.sum(v), lambda F, v: (F.contrib.boolean_mask(v, v[:, 0]), v)),
            NotImplementedError,
        ),
        refused(
            r"different devices.*as_in_context\(mx.[cg]pu\(1\)\)",
            lambda net, F, x, s: F.contrib.foreach(
                lambda a, st: (a + st, st.as_in_context(on(1)) + st), x, s
            )[0],
            MXNetError,
        ),
    ],
)
def test_invalid_control_flow_is_refused(f, kind, words):
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


# --- Untraceable blocks: the error names the op, block path, line and remedy ----------------------


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
        (
            lambda F, x: x if F.sum(x) > 0 else -x,
            r"bool\(\) needs the value of an array of shape \(1,\)",
            "F.contrib.cond between computations",
        ),
        (
            lambda F, x: x if x > 0 else -x,
            r"bool\(\) needs the value of an array of shape \(3, 4\)",
            "F.where",
        ),
        (lambda F, x: max(x[0], x[1]), r"bool\(\) needs", "F.where"),
        (
            lambda F, x: [x for _ in iter(lambda: bool(x.sum() > 0), False)],
            r"bool\(\) needs",
            "F.contrib.while_loop repeats",
        ),
        (
            lambda F, x: x * float(x.sum()),
            r"float\(\) needs",
            "array of one element and compute with F",
        ),
        (lambda F, x: F.topk(x, k=int(x.sum())), r"int\(\) needs", "sizes must follow from shapes"),
        (lambda F, x: [x for _ in range(x[0, 0])], "an index needs", "F.take and F.pick"),
        (lambda F, x: x * x.sum().asscalar(), r"asscalar\(\) needs", "array of one element"),
        (
            lambda F, x: nd.array(x.asnumpy()),
            r"asnumpy\(\) needs the value of an array of shape \(3, 4\)",
            "with the ops of F .*or move this step out",
        ),
        (lambda F, x: nd.array(np.asarray(x)), r"__array__\(\) needs", "with the ops of F"),
        (lambda F, x: x.wait_to_read() or x, r"wait_to_read\(\) needs", "out of the block"),
        (
            lambda F, x: x[(x[:, 0] > 0).astype("bool")],
            "indexing by this array",
            "F.contrib.boolean_mask picks rows",
        ),
        (overwrite, "_plus_scalar: out= cannot be used", r"y = y \+ x instead of y \+= x"),
        (
            overwrite_part,
            r"x\[...\] = value overwrites an array of shape",
            "F.where, F.concat, F.scatter_nd",
        ),
        (
            write_outside,
            r"x\[...\] = value: an array from outside",
            "Return the value from the block",
        ),
        (write_traced_outside, "_copyto: an array from outside", "write it outside"),
        (write_out, "relu: an array from outside", "would happen once"),
        (
            write_in_body,
            "an array from outside of a hybridized block, or of the body of a loop",
            "Return the value",
        ),
        (
            lambda F, x: F.reshape(x, shape=(x[0, 0], -1)),
            "Reshape: shape must be",
            "traced by hybridize",
        ),
        (
            lambda F, x: x + nd.ones((3, 4), ctx=on(1)),
            "inputs are on different devices.* on [cg]pu.0., .* on [cg]pu.1.",
            r"as_in_context\(mx.[cg]pu\(0\)\)",
        ),
        (
            lambda F, x: F.contrib.foreach(lambda a, s: (a + s.as_in_context(on(1)), s), x, x[0])[
                0
            ],
            "inputs are on different devices.* on [cg]pu.0., .* on [cg]pu.1.",
            r"as_in_context\(mx.[cg]pu\(0\)\)",
        ),
    ],
)
def test_untraceable_block_error_names_op_block_and_line(f, what, way):
    net = Outer(f)
    net.hybridize()
    for _ in range(2):
        with pytest.raises(MXNetError) as caught:
            net(nd.ones((3, 4)))
        text = str(caught.value)
        assert re.search(what, text), text
        assert re.search(way, text), text
        assert "Outer.body" in text, text
        assert f"{os.path.basename(__file__)}:{line_of(f)}" in text or any(
            f"{os.path.basename(__file__)}:{n}" in text for n in range(line_of(f), line_of(f) + 8)
        ), text
    assert np.array_equal(STORE.asnumpy(), np.zeros((3, 4)))


def line_of(f):
    return f.__code__.co_firstlineno


def test_arrays_created_in_block_may_be_written_in_block():
    def f(F, x):
        table = nd.array(np.arange(4))
        table[0] = 5
        return x * table

    net = Outer(f)
    net.hybridize()
    assert net(nd.ones((1, 4))).asnumpy().tolist() == [[5, 1, 2, 3]]


OUTSIDE = {
    "check_against_single_device": lambda net, x: mx.parallel.check_against_single_device(
        net, x, ctx=on(0)
    ),
    "plan": lambda net, x: mx.parallel.plan(net, x, [on(0), on(1)], progress=False),
    "TrainStep": lambda net, x: mx.parallel.TrainStep(
        net, gluon.loss.L2Loss(), None, mx.parallel.Pipeline(1)
    )(x, x),
}


class Calling(gluon.HybridBlock):
    """Calls a function with itself or a child."""

    def __init__(self, function, child):
        super().__init__()
        self.function, self.child = function, child
        self.layers = gluon.nn.HybridSequential()
        self.layers.add(gluon.nn.Dense(4, in_units=4), gluon.nn.Dense(4, in_units=4))

    def hybrid_forward(self, F, x):
        self.function(self.layers if self.child else self, x)
        return self.layers(x)


@pytest.mark.parametrize("child, hybridize", [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", OUTSIDE)
def test_method_that_traces_is_refused_inside_forward(name, child, hybridize):
    """Called for the running block, the method would call itself endlessly."""
    net = Calling(OUTSIDE[name], child)
    net.initialize(ctx=on(0))
    net.hybridize(hybridize)
    with pytest.raises(MXNetError, match=f"{name} cannot be called inside a block's forward"):
        net(nd.ones((2, 4), ctx=on(0)))


def test_method_that_traces_may_be_called_for_a_child_in_eager_code():
    for name, function in OUTSIDE.items():
        if name != "export":  # only hybridized blocks can be exported
            net = Calling(function, True)
            net.initialize(ctx=on(0))
            net(nd.ones((2, 4), ctx=on(0)))
