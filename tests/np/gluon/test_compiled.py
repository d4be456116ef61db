"""Compiled networks on arrays of mx.np: kinds across graph breaks, loops, captured arrays, caches,
pipelines. Results have the bits of mx.nd."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn

KINDS = {"nd": lambda x: x, "np": lambda x: x.as_np_ndarray()}


class Function(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def hybrid_forward(self, F, *args):
        return self.function(F, *args)


def both(function, *values):
    """Runs a function on arrays of mx.np, eagerly and hybridized, with gradients."""
    results = []
    for hybridized in (False, True, True):
        block = Function(function)
        if hybridized:
            block.hybridize()
        arrays = [nd.array(v, dtype=v.dtype).as_np_ndarray() for v in values]
        for array in arrays:
            array.attach_grad()
        with autograd.record():
            outputs = block(*arrays)
            outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            total = sum([(o * o).sum() for o in outputs if o.dtype == np.float32])
        total.backward()
        assert all(isinstance(o, mx.np.ndarray) for o in outputs)
        results.append([a.asnumpy() for a in (*outputs, *[array.grad for array in arrays])])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.dtype == b.dtype and np.array_equal(a, b)
    return results[0]


X = np.array([[1, -2, 3], [4, 5, -6]], "float32")


COLUMNS = np.array([True, False, True])
MASKED_KEYS = {
    "x[:, columns]": lambda x, rows, columns: x[:, columns],
    "x[0, columns]": lambda x, rows, columns: x[0, columns],
    "x[None, 0, columns]": lambda x, rows, columns: x[None, 0, columns],
    "x[..., columns, None]": lambda x, rows, columns: x[..., columns, None],
    "x[rows, 1:]": lambda x, rows, columns: x[rows, 1:],
    "x[rows, columns]": lambda x, rows, columns: x[rows, columns],
    "x[None, both]": lambda x, rows, columns: x[None, rows[:, None] * columns],
    "x[:, condition]": lambda x, rows, columns: x[:, x[0] > x[0, 1]],
    "x[rows, indices]": lambda x, rows, columns: x[rows, mx.np.array([1, 2], dtype="int64")],
}


@pytest.mark.parametrize("key", MASKED_KEYS)
@pytest.mark.parametrize("captured", [False, True])
def test_masks_next_to_other_keys_cut_the_graph(key, captured):
    masks = np.array([True, False]), COLUMNS
    arrays = [nd.array(mask, dtype="bool").as_np_ndarray() for mask in masks]

    def function(F, x, rows, columns):
        return MASKED_KEYS[key](x * 2, *(arrays if captured else (rows > 0, columns > 0)))

    result, *_ = both(function, X, *[mask.astype("float32") for mask in masks])
    expected = {"x[:, columns]": (2 * X)[:, COLUMNS], "x[rows, columns]": (2 * X)[0, COLUMNS]}
    if key in expected:
        assert np.array_equal(result, expected[key])


def test_masks_of_other_sizes_raise_in_a_trace():
    x = nd.array(X).as_np_ndarray()
    block = Function(lambda F, x, mask: x[:, mask])
    block.hybridize()
    with pytest.raises(IndexError, match="a mask of size 2 cannot index axis 1 of size 3"):
        block(x, x[:, 0] > 0)


def test_masks_cut_the_graph():
    def function(F, x, mask):
        picked = F.contrib.boolean_mask(x * 2, mask)
        return [picked, picked.sum(), mask == 1]

    mask = np.array([0, 1], "float32")
    picked, total, *_ = both(function, X, mask)
    assert picked.tolist() == [[8, 10, -12]] and total.shape == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, count: mx.np.take(x > 1, count, axis=0, mode="clip"),
        lambda x, count: mx.npx.relu(x.astype("int32")) + count.astype("int32"),
    ],
    ids=["take of bool", "relu of integers"],
)
def test_ops_without_gradient_for_a_dtype_may_follow_a_mask(function):
    """The gradient of another output does not reach them."""
    x = nd.array(X).as_np_ndarray()
    x.attach_grad()
    block = Function(lambda F, x, mask: (x * 2, function(x, mask[mask].sum(axis=0))))
    block.hybridize()
    with autograd.record():
        result = block(x, x[:, 0] > 0)[0].sum()
    result.backward()
    assert x.grad.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_dynamic_shapes_of_np():
    block = Function(lambda F, x: mx.np.unique(x).sum())
    block.hybridize()
    for values in ([1, 2, 2], [3, 3, 3], [1, 2, 3]):
        x = nd.array(values).as_np_ndarray()
        assert float(block(x)) == sum(set(values))


def test_constraint_checks_cut_the_graph(tmp_path):
    block = Function(lambda F, x, ok: x * F.npx.constraint_check(ok, "must be true") * 2)
    block.hybridize()
    x, yes = [nd.array(v, dtype=v.dtype).as_np_ndarray() for v in (np.ones(3), np.ones(2, bool))]
    x.attach_grad()
    for _ in range(2):
        with autograd.record():
            y = block(x, yes)
        y.backward()
        assert y.asnumpy().tolist() == x.grad.asnumpy().tolist() == [2, 2, 2]
        with pytest.raises(ValueError, match="must be true"):
            block(x, yes == 0)
    files = block.export(str(tmp_path / "net"))
    loaded = gluon.SymbolBlock.imports(files[0], ["data0", "data1"])
    assert loaded(x, yes).asnumpy().tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="must be true"):
        loaded(x, yes == 0)


def test_loops_over_vectors():
    def function(F, xs, state):
        def step(x, s):
            assert x.shape == ()
            return x * s, s + x

        return F.contrib.foreach(step, xs, state)

    outputs, last, *_ = both(
        lambda F, xs, s: [*function(F, xs, s)], X[0], np.array(2, "float32").reshape(())
    )
    assert outputs.shape == (3,) and last.shape == () and last == 4


@pytest.mark.parametrize("limit", [4, 2000])
def test_loops_over_matrices(limit):
    xs = np.random.RandomState(0).uniform(-1, 1, (limit, 3)).astype("float32")
    both(
        lambda F, xs, s: [*F.contrib.foreach(lambda x, s: (x * s, s * 0.5 + x), xs, s)],
        xs,
        np.ones(3, "float32"),
    )


@pytest.mark.parametrize("start", [0, 9])
def test_while_loops_with_bool_conditions(start):
    class Loop(gluon.HybridBlock):
        def hybrid_forward(self, F, i, x):
            rows, (i, x) = F.contrib.while_loop(
                lambda i, x: i < 3, lambda i, x: (x * 2, [i + 1, x + 1]), [i, x], max_iterations=5
            )
            return [rows, i, x] if not isinstance(rows, list) else [*rows, i, x]

    block = Loop()
    block.hybridize()
    found = {}
    for kind, of in KINDS.items():
        found[kind] = block(of(nd.array([start])), of(nd.array([1, 2])))
    assert [type(a) for a in found["np"]] == [mx.np.ndarray] * 3
    assert [type(a) for a in found["nd"]] == [nd.NDArray] * 3
    for a, b in zip(found["nd"], found["np"]):
        assert np.array_equal(a.asnumpy(), b.asnumpy())


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_on_bools(sign):
    both(
        lambda F, x: F.contrib.cond(x.sum() > 0, lambda: x * 3, lambda: x - 1),
        X * np.float32(sign),
    )


def test_captured_arrays_of_both_kinds():
    scale = nd.array([2, 3, 4])
    shift = nd.array([1, 1, 1]).as_np_ndarray()

    def function(F, x):
        return x * scale.as_np_ndarray() + shift

    both(function, X)
    block = Function(function)
    block.hybridize()
    x = nd.array(X).as_np_ndarray()
    before = block(x).asnumpy()
    scale[:] = 1
    shift[:] = 0
    assert np.array_equal(block(x).asnumpy(), X) and not np.array_equal(before, X)
    block = Function(lambda F, x: x * scale)
    block.hybridize()
    with pytest.raises(TypeError, match=r"as_np_ndarray\(\)"):
        block(x)


def test_one_block_called_with_both_kinds():
    block = Function(lambda F, x: [F.sum(x), x > 0, F.max(x, axis=1)])
    block.hybridize()
    for _ in range(2):
        for kind, of in KINDS.items():
            total, positive, most = block(of(nd.array(X)))
            assert total.shape == ((1,) if kind == "nd" else ())
            assert positive.dtype == (np.float32 if kind == "nd" else np.bool_)
            assert isinstance(most, mx.np.ndarray) == (kind == "np")


def test_compiled_calls_with_host_steps_of_both_kinds():
    block = Function(lambda F, x, mask: F.contrib.boolean_mask(x, mask).sum())
    block.hybridize()
    for _ in range(2):
        for kind, of in KINDS.items():
            total = block(of(nd.array(X)), of(nd.array([1, 0])))
            assert total.shape == ((1,) if kind == "nd" else ()) and float(total) == 2


def network():
    mx.random.seed(5)
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu", in_units=3), nn.BatchNorm(in_channels=8))
    net.add(nn.Dropout(0.3), nn.Dense(4, in_units=8))
    return net


def trained(kind, way):
    """Trains a network for three steps. Returns its parameters, losses and outputs."""
    if kind == "np":
        mx.util.set_np()
    try:
        net = network()
        net.initialize(mx.init.Xavier())
        if way == "placed":
            net.place({"[0-1]": mx.cpu(0), "[2-3]": mx.cpu(1)})
        if way != "eager":
            net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
        losses = []
        for step in range(3):
            values = np.random.RandomState(step).uniform(-1, 1, (8, 3)).astype("float32")
            x = KINDS[kind](nd.array(values))
            y = KINDS[kind](nd.array(np.arange(8) % 4))
            mx.random.seed(step)
            with autograd.record():
                out = net(x)
                loss = loss_of(out, y.as_in_context(out.context))
            loss.backward()
            trainer.step(8)
            assert isinstance(loss, mx.np.ndarray) == (kind == "np")
            losses.append(loss.asnumpy())
        return [
            *losses,
            *[p.data(p.list_ctx()[0]).asnumpy() for p in net.collect_params().values()],
        ]
    finally:
        mx.util.reset_np()


@pytest.mark.parametrize("way", ["eager", "hybridized", "placed"])
def test_training_has_the_bits_of_nd(way):
    for a, b in zip(trained("nd", way), trained("np", way)):
        assert np.array_equal(a, b)


def test_forward_that_is_overridden_is_traced():
    class Plain(gluon.HybridBlock):
        calls = 0

        def forward(self, x):
            Plain.calls += 1
            return x * x.shape[0] + x.sum()

    block = Plain()
    block.hybridize()
    x = nd.array(X).as_np_ndarray()
    for _ in range(3):
        result = block(x)
    assert np.array_equal(result.asnumpy(), X * 2 + X.sum())
    assert isinstance(result, mx.np.ndarray)
    assert Plain.calls <= 2
