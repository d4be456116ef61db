"""Products in row panels with fused epilogues: equal bits and no memory for group-local values."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, nd
from support.compare import same_bits
from support.devices import on
from support.functions import as_list, check, compiled, draw, groups, planned, train


def dense(x, w, *bias, **params):
    return nd.FullyConnected(x, w, *bias, num_hidden=w.shape[0], no_bias=not bias, **params)


# The last panel is partial
X, W, BIAS, RESIDUAL = (
    (2150, 40),
    (1024, 40),
    (1024,),
    (2150, 1024),
)
FUNCTIONS = {
    "bias, relu": (lambda x, w, b, r: nd.relu(dense(x, w, b)), ["FullyConnected", "relu"]),
    "bias, gelu, dropout, residual": (
        lambda x, w, b, r: (
            nd.Dropout(nd.LeakyReLU(dense(x, w, b), act_type="gelu"), p=0.3, mode="always") + r
        ),
        ["FullyConnected", "LeakyReLU", "Dropout", "broadcast_add"],
    ),
    "residual": (lambda x, w, b, r: r + dense(x, w), ["FullyConnected", "broadcast_add"]),
    "rows": (
        lambda x, w, b, r: nd.exp(-nd.square(nd.dot(x, w, transpose_b=True))).sum(axis=1),
        ["dot", "square", "_mul_scalar", "exp", "sum"],
    ),
    "columns": (
        lambda x, w, b, r: nd.tanh(dense(x, w, b)).max(axis=0),
        ["FullyConnected", "tanh", "max"],
    ),
    "everything": (
        lambda x, w, b, r: nd.square(dense(x, w, b) - r).mean(),
        ["FullyConnected", "broadcast_sub", "square", "mean"],
    ),
    "cast": (
        lambda x, w, b, r: nd.broadcast_mul(dense(x, w, b), b.reshape((1, -1))).astype("float16"),
        ["FullyConnected", "broadcast_mul", "Cast"],
    ),
    "kept, too": (
        lambda x, w, b, r: (lambda y: [y, nd.tanh(y)])(dense(x, w, b)),
        ["FullyConnected", "tanh"],
    ),
    "joined": (
        lambda x, w, b, r: nd.sigmoid(r * 2) * dense(x, w, b),
        ["_mul_scalar", "sigmoid", "FullyConnected", "broadcast_mul"],
    ),
    "views": (
        lambda x, w, b, r: (
            nd.relu(
                nd.FullyConnected(x.reshape((43, 50, 40)), w, b, num_hidden=1024, flatten=False)
            ).reshape((2150, 32, 32))
            + 1
        ),
        ["FullyConnected", "relu", "_plus_scalar"],
    ),
    "gated": (lambda x, w, b, r: dense(x, w, b) * nd.sigmoid(dense(x, w * 2)), None),
    "over its own input": (
        lambda x, w, b, r: nd.relu(nd.dot(nd.tanh(r), nd.dot(w, w, transpose_b=True)) + r),
        None,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("threads", [1, 2, 20])
def test_fused_product_epilogue_is_bitwise_equal(name, threads):
    function, members = FUNCTIONS[name]
    mx.context.set_threads(threads)
    try:
        arrays = [a * 0.3 for a in draw(X, W, BIAS, RESIDUAL)]
        op = check(function, arrays)
        if members:
            found = groups(op, entry=1)
            assert sorted(map(sorted, found)) == [sorted(members)], found
    finally:
        mx.context.set_threads(0)


def test_values_read_only_inside_group_need_no_memory():
    arrays = draw(X, W, BIAS, RESIDUAL)
    for name, bytes_of_planned in [("bias, relu", 0), ("rows", 0), ("cast", 0), ("kept, too", 0)]:
        function, _ = FUNCTIONS[name]
        op, apart = compiled(function), _core.CachedOp(function, {"exact": True, "fuse": False})
        same_bits(
            [o.asnumpy() for o in as_list(op(*arrays))],
            [o.asnumpy() for o in as_list(apart(*arrays))],
        )
        assert planned(op) == bytes_of_planned
    assert planned(apart) == 0  # both are results


def test_groups_dump_shows_product_epilogue():
    op = compiled(FUNCTIONS["rows"][0])
    op(*draw(X, W, BIAS, RESIDUAL))
    assert (
        op.groups()
        == """forward on cpu(0) (2150 | 1024)
  panel = dot(in0, in1) in panels of 128 rows
  slot0 = square(panel) : float32 (2150, 1024)
  slot0 = _mul_scalar(slot0) : float32 (2150, 1024)
  slot0 = exp(slot0) : float32 (2150, 1024)
  out0 = sum(slot0) : float32 (2150, 1)
"""
    )


def test_backward_fuses_relu_gradient_and_bias_sum_into_product():
    """The gradient of a product's input is a product, and relu's gradient and the bias sum fuse
    into it."""

    def f(x, w, b, v):
        return dense(nd.relu(dense(x, w, b)), v)

    arrays = [a * 0.3 for a in draw(X, W, BIAS, (64, 1024))]
    op = check(f, arrays)
    assert groups(op, "forward") == [["FullyConnected", "relu"]]
    assert groups(op, "backward") == [["dot", "_backward_relu", "sum"]]


def test_product_epilogues_on_two_devices_match_one_device():
    arrays = [a.as_in_context(on(60)) * 0.3 for a in draw(X, W, BIAS, RESIDUAL)]

    def f(x, w, b, r):
        other = on(61)
        y = nd.relu(dense(x.as_in_context(other), w.as_in_context(other), b.as_in_context(other)))
        return (y.as_in_context(on(60)) + r).sum(axis=0)

    expected = train(f, arrays)
    for mode, seed in [("async", 0), ("shuffle", 1)]:
        mx.engine.set_mode(mode, seed)
        op = compiled(f)
        same_bits(train(op, arrays), expected)
        assert sorted(groups(op, entry=1)) == [["FullyConnected", "relu"], ["broadcast_add", "sum"]]
    mx.engine.set_mode("async")


def test_fused_product_is_one_profiler_event():
    arrays = draw(X, W, BIAS, RESIDUAL)
    op = compiled(FUNCTIONS["residual"][0])
    op(*arrays)
    mx.nd.waitall()
    _core.profiler_start()
    op(*arrays)
    mx.nd.waitall()
    _core.profiler_stop()
    assert [e[1] for e in _core.profiler_events() if e[2] == "op"] == [
        "FullyConnected+broadcast_add"
    ]


def test_large_product_matches_float64_reference():
    x, w, b = (a * 0.3 for a in draw(X, W, BIAS))
    found = dense(x, w, b).asnumpy()
    np.testing.assert_allclose(
        found, x.asnumpy().astype("float64") @ w.asnumpy().T + b.asnumpy(), rtol=1e-5, atol=1e-5
    )
