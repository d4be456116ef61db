"""Loops and branches in symbols: saving, export, several devices, and errors."""

import json
import os

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.base import MXNetError
from support.calls import raises
from support.compare import same_bits
from support.devices import on
from support.paths import TESTS

CONTROL = os.path.join(TESTS, "data", "control_flow-symbol.json")


# --- Symbols --------------------------------------------------------------------------------------


def symbols():
    x, s, w = mx.sym.var("x"), mx.sym.var("s"), mx.sym.var("w")
    outs, last = mx.sym.contrib.foreach(
        lambda a, st: (
            mx.sym.FullyConnected(a + st[0] * w, num_hidden=3, name="fc"),
            [mx.sym.broadcast_add(st[0] * 2, mx.sym.sum(x))],
        ),
        x,
        [s],
    )
    return mx.sym.Group([outs, last[0]])


def loops():
    i, s, w = mx.sym.var("i"), mx.sym.var("s"), mx.sym.var("w")
    outs, last = mx.sym.contrib.while_loop(
        lambda i, s: i < 4,
        lambda i, s: ([mx.sym.broadcast_add(s * w, i)], [i + 1, s * 1.5]),
        [i, s],
        max_iterations=6,
    )
    return mx.sym.Group([outs[0], *last])


def choice():
    a, b = mx.sym.var("a"), mx.sym.var("b")
    return mx.sym.contrib.cond(
        mx.sym.sum(a * b) < 5, lambda: (a + 5) * (b + 5), lambda: (a - 5) * (b - 5)
    )


def values(symbol, shapes, train=True):
    rng = np.random.RandomState(1)
    exe = symbol.simple_bind(on(0), **shapes)
    for name, array in exe.arg_dict.items():
        array[:] = rng.randn(*array.shape) if name != "i" else 0
    found = [a.asnumpy() for a in exe.forward(is_train=train)]
    exe.backward([nd.ones(o.shape) for o in exe.outputs])
    return found + [exe.grad_dict[name].asnumpy() for name in sorted(exe.grad_dict)]


SHAPES = [
    (symbols, {"x": (5, 2, 4), "s": (2, 4), "w": (1,)}),
    (loops, {"i": (1,), "s": (2, 3), "w": (2, 3)}),
    (choice, {"a": (2,), "b": (2,)}),
]


@pytest.mark.parametrize("make, shapes", SHAPES, ids=["foreach", "while_loop", "cond"])
def test_control_flow_symbols_are_saved_and_loaded(make, shapes):
    if make is symbols:
        shapes = {"x": (5, 2, 4), "s": (2, 4), "w": (2, 4)}
    symbol = make()
    again = mx.sym.load_json(symbol.tojson())
    assert again.tojson() == symbol.tojson()
    assert again.list_arguments() == symbol.list_arguments()
    assert again.list_outputs() == symbol.list_outputs()
    assert again.infer_shape(**shapes) == symbol.infer_shape(**shapes)
    same_bits(values(symbol, shapes), values(again, shapes))
    copied = mx.sym.load_json(symbol.__copy__().tojson())
    assert copied.tojson() == symbol.tojson()


def test_control_flow_symbols_equal_arrays():
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
            lambda a, st: (
                nd.FullyConnected(
                    a + st[0] * w, arrays["fc_weight"], arrays["fc_bias"], num_hidden=3
                ),
                [nd.broadcast_add(st[0] * 2, nd.sum(x))],
            ),
            x,
            [arrays["s"]],
        )
    autograd.backward([outs, last[0]])
    for a, b in zip(
        found,
        [
            outs.asnumpy(),
            last[0].asnumpy(),
            *[arrays[name].grad.asnumpy() for name in sorted(arrays)],
        ],
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_mxnet_json_gives_mxnets_outputs():
    """The file and the expected outputs were written by MXNet 1.9.1."""
    with open(CONTROL) as file:
        document = json.load(file)
    for case in document["cases"]:
        symbol = mx.sym.load_json(case["symbol"])
        arrays = {
            name: nd.array(np.array(value, "float32")) for name, value in case["arguments"].items()
        }
        grads = {name: nd.zeros(array.shape) for name, array in arrays.items()}
        exe = symbol.bind(on(0), arrays, grads)
        for out, expected in zip(exe.forward(is_train=True), case["outputs"]):
            np.testing.assert_allclose(out.asnumpy(), np.array(expected), rtol=1e-5, atol=1e-5)
        exe.backward([nd.ones(o.shape) for o in exe.outputs])
        for name, expected in case["gradients"].items():
            np.testing.assert_allclose(
                grads[name].asnumpy(), np.array(expected), rtol=1e-5, atol=1e-4
            )
        assert json.loads(symbol.tojson())["nodes"] == json.loads(case["symbol"])["nodes"]


def test_blocks_with_loops_are_exported(tmp_path):
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.cell = gluon.nn.Dense(4, in_units=4)
                self.norm = gluon.nn.BatchNorm(in_channels=4)

        def hybrid_forward(self, F, x):
            out, last = F.contrib.foreach(
                lambda a, st: (self.norm(self.cell(a)), st + a), x, F.sum(x, axis=0)
            )
            return F.contrib.cond(F.sum(last) > 0, lambda: out * 2, lambda: out + 1)

    net = Net()
    net.initialize(mx.init.Normal())
    net.hybridize()
    x = nd.array(np.random.RandomState(0).randn(3, 2, 4))
    expected = net(x).asnumpy()
    files = net.export(str(tmp_path / "net"))
    again = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    np.testing.assert_allclose(again(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_invalid_control_flow_symbols_raise():
    x, s = mx.sym.var("x"), mx.sym.var("s")
    foreach, while_loop = mx.sym.contrib.foreach, mx.sym.contrib.while_loop
    cond = mx.sym.contrib.cond
    for kind, words, wrong in (
        (AssertionError, "does not use s", lambda: foreach(lambda a, st: (a, [a]), x, [s])),
        (MXNetError, "1 .* returned 0", lambda: foreach(lambda a, st: (a + st[0], []), x, [s])),
        (TypeError, "expected a Symbol", lambda: foreach(lambda a, st: (1, st), x, [s])),
        (
            ValueError,
            "the same number of loop_vars",
            lambda: while_loop(lambda a: a, lambda a: ([], []), [x], 3),
        ),
        (ValueError, "return a Symbol", lambda: while_loop(lambda a: 1, lambda a: ([], a), [x], 3)),
        (ValueError, "max_iterations", lambda: while_loop(lambda a: a, lambda a: ([], a), [x])),
        (ValueError, "2 .* else_func returned 1", lambda: cond(x, lambda: [x, s], lambda: x)),
        (ValueError, "pred must be a Symbol", lambda: cond(1, lambda: x, lambda: x)),
    ):
        raises(kind, words, wrong)


def test_boolean_mask_symbol_has_dynamic_shape():
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


def test_symbols_on_conflicting_devices_raise():
    x = mx.sym.var("x")
    plain = x + x.as_in_context(on(1))
    inside = mx.sym.contrib.foreach(
        lambda a, s: (a + s.as_in_context(on(1)), s * 2), x, mx.sym.var("s")
    )[0]
    for symbol, name, arrays in (
        (plain, plain.name, {"x": nd.ones((3, 2))}),
        (inside, "_foreach", {"x": nd.ones((3, 2)), "s": nd.ones((2,))}),
    ):
        with pytest.raises(MXNetError) as caught:
            symbol.bind(on(0), arrays).forward()
        text = str(caught.value)
        assert (
            f"Error in operator {name}" in text
            and f"lhs on {on(0)}, rhs on {on(1)}" in text
            and f"as_in_context(mx.{on(0)})" in text
        ), text
        assert f"made at {__file__}" in text and text.count("made at") == 1, text
