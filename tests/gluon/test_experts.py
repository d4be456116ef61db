"""`nn.MoE` against NumPy, its losses, and the bits of rows in any batch, pipeline or placement."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep

FIRST, SECOND = mx.cpu(0), mx.cpu(1)
FLOATS = ("float32", "float64", "float16", "bfloat16")


def normal(*shape, seed=0):
    return np.random.RandomState(seed).normal(size=shape).astype("float32")


def layer(ctx=None, **options):
    mx.random.seed(2)
    options = {"units": 8, "hidden": 6, "experts": 5, "k": 2, **options}
    net = nn.MoE(**options, weight_initializer=mx.init.Normal(0.5), prefix="moe_")
    net.initialize(ctx=ctx)
    return net


def values(*params):
    return [p.data().asnumpy().astype("float64") for p in params]


def probabilities(scores, router):
    if router == "sigmoid":
        return 1 / (1 + np.exp(-scores))
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gated(x, gate, up, down):
    hidden = x @ gate.T
    return (hidden / (1 + np.exp(-hidden)) * (x @ up.T)) @ down.T


def expected(net, x, k=2, router="softmax", renormalize=True, limit=None):
    router_weight, gate, up, down = values(
        net.router.weight, net.gate_weight, net.up_weight, net.down_weight
    )
    rows = x.reshape(-1, x.shape[-1]).astype("float64")
    p = probabilities(rows @ router_weight.T, router)
    want, used = np.zeros((len(rows), down.shape[1])), np.zeros(len(gate), int)
    for row, probability, out in zip(rows, p, want):
        best = np.argsort(-probability, kind="stable")[:k]
        total = probability[best].sum() if renormalize else 1
        for e in best:
            used[e] += 1
            if limit is None or used[e] <= limit:
                out += probability[e] / total * gated(row, gate[e], up[e], down[e])
    if net.shared is not None:
        shared = values(net.shared.gate.weight, net.shared.up.weight, net.shared.down.weight)
        want += gated(rows, *shared)
    return want.reshape(*x.shape[:-1], -1)


def close(got, want, tolerance=2e-6):
    got = got.asnumpy() if isinstance(got, nd.NDArray) else got
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= tolerance * max(1.0, np.abs(want).max())


# --- Results --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 5},
        {"k": 1, "renormalize": False},
        {"router": "sigmoid", "k": 3},
        {"router": "sigmoid", "renormalize": False},
        {"shared": 2, "units": 7, "in_units": 8},
    ],
    ids=str,
)
def test_moe_adds_the_chosen_experts(options):
    x, net = normal(2, 9, 8), layer(**options)
    routing = {key: options[key] for key in ("k", "router", "renormalize") if key in options}
    net(nd.array(x))
    want = expected(net, x, **routing)
    close(net(nd.array(x)), want)
    close(net(nd.array(x[0])), want[0])
    net.hybridize()
    close(net(nd.array(x)), want)


def test_capacity_skips_later_tokens():
    x, net = normal(2, 10, 8), layer(capacity=0.5, in_units=8)
    want = expected(net, x, limit=4)  # 0.5 * 20 * 2 / 5
    assert np.abs(want - expected(net, x)).max() > 0.1
    close(net(nd.array(x)), want)
    pipelined = layer(capacity=0.5, in_units=8)
    pipelined.hybridize(pipeline=Pipeline(2))
    with pytest.raises(mx.MXNetError, match="the capacity of an expert depends on all tokens"):
        pipelined(nd.array(x))


@pytest.mark.parametrize("dtype", FLOATS)
def test_bits_of_a_token_do_not_depend_on_other_tokens(dtype):
    net = layer(in_units=70, units=50, hidden=33)
    net.cast(dtype)
    x = nd.array(normal(130, 70), dtype=dtype)
    x.attach_grad()
    factor = nd.array(normal(130, 50, seed=1), dtype=dtype)
    with autograd.record():
        whole = net(x)
    whole.backward(factor)
    gradient = x.grad.copy()
    for rows in (slice(0, 40), slice(20, 130), slice(3, 5)):
        part = x[rows].copy()
        part.attach_grad()
        with autograd.record():
            out = net(part)
        out.backward(factor[rows])
        if len(part) <= 32 and dtype in ("float32", "float64"):
            # The products of few rows have another order of additions.
            np.testing.assert_allclose(out.asnumpy(), whole[rows].asnumpy(), 1e-5, 1e-5)
            continue
        assert (out.asnumpy() == whole[rows].asnumpy()).all()
        assert (part.grad.asnumpy() == gradient[rows].asnumpy()).mean() > 0.99


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("transpose_b", [True, False])
def test_bits_of_a_row_do_not_depend_on_its_group(dtype, transpose_b):
    data = nd.array(normal(500, 90), dtype=dtype)
    shape = (3, 70, 90) if transpose_b else (3, 90, 70)
    weight = nd.array(normal(*shape, seed=1), dtype=dtype)

    def product(rows, counts):
        counts = nd.array(counts, dtype="int32")
        return nd.contrib.grouped_dot(rows, weight, counts, transpose_b=transpose_b).asnumpy()

    whole = product(data, [300, 0, 200])
    assert (product(data[200:302], [100, 0, 2]) == whole[200:302]).all()
    assert (product(data[299:], [1, 0, 200]) == whole[299:]).all()
    few = product(data[290:303], [10, 0, 3])
    assert (product(data[291:292], [1, 0, 0]) == few[1:2]).all()
    assert (product(data[289:303], [11, 0, 3])[1:] == few).all()
    np.testing.assert_allclose(few, whole[290:303], 1e-5, 1e-5)
    if not transpose_b or dtype in ("float16", "bfloat16"):
        assert (few == whole[290:303]).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", [250, 252, 480, 504, 755])
def test_bits_of_a_row_do_not_depend_on_the_size_of_a_large_group(dtype, rows):
    data, weight = nd.array(normal(rows, 17), dtype=dtype), nd.array(normal(1, 9, 17), dtype=dtype)

    def product(part):
        counts = nd.array([len(part)], dtype="int32")
        return nd.contrib.grouped_dot(part, weight, counts).asnumpy()

    parts = [product(data[i : i + 100]) for i in range(0, rows - 164, 100)]
    parts.append(product(data[len(parts) * 100 :]))
    assert (product(data) == np.concatenate(parts)).all()


def test_experts_without_tokens_have_gradient_zero():
    net = layer(in_units=8, experts=5, k=1)
    with autograd.record():
        out = net(nd.array(normal(1, 1, 8)))
    out.backward()
    for p in (net.gate_weight, net.up_weight, net.down_weight):
        used = np.abs(p.grad().asnumpy()).reshape(5, -1).max(1) > 0
        assert used.sum() == 1


def test_options_are_checked():
    for options, message in (
        ({"k": 6}, "k = 6 must be at most"),
        ({"router": "top"}, "router must be"),
        ({"balance": "none"}, "balance must be"),
        ({"capacity": 0}, "capacity must be"),
        ({"z_loss": -1}, "z_loss must be"),
        ({"activation": "tanh"}, "activation"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(**options)
    with pytest.raises(mx.MXNetError, match="k = 3 must be at most the number of experts, 2"):
        nd.contrib.route(nd.zeros((4, 2)), k=3)
    with pytest.raises(mx.MXNetError, match=r"tokens \* k must be less than 2\^31"):
        mx.sym.contrib.route(mx.sym.var("scores"), k=2)[0].infer_shape(scores=(2**30, 4))


def ints(*values):
    return nd.array(values, dtype="int32")


@pytest.mark.parametrize(
    "name, inputs, options, message",
    [
        ("route", [nd.ones(3)], {"k": 1}, "scores must have at least 2 axes"),
        ("route", [nd.ones((2, 3))], {"k": 1, "use_bias": True}, "expected 2 input arrays"),
        (
            "dispatch",
            [nd.ones((2, 3)), nd.ones((2, 1), dtype="int32")],
            {},
            "order must have 1 axis",
        ),
        ("dispatch", [nd.ones(2), ints(0, 1)], {}, "data must have at least 2 axes"),
        ("dispatch", [nd.ones((2, 3)), ints(0, 1, 2)], {}, "must have a multiple of 2 elements"),
        ("dispatch", [nd.ones((0, 3)), ints(0)], {}, "order must be empty"),
        ("combine", [nd.ones((2, 3)), ints(0, 1)], {}, "k or weights must be given"),
        ("combine", [nd.ones(2), ints(0, 1)], {"k": 1}, "rows must have 2 axes"),
        (
            "combine",
            [nd.ones((3, 3)), ints(0, 1, 2)],
            {"k": 2},
            "rows must have a multiple of k = 2",
        ),
        ("combine", [nd.ones((2, 3)), ints(0, 1), nd.ones(2)], {}, "weights must have at least 2"),
        ("combine", [nd.ones((2, 3)), ints(0, 1), nd.ones((3, 1))], {}, "one element per row"),
        ("grouped_dot", [nd.ones(2), nd.ones((1, 2, 2)), ints(1)], {}, "data must have 2 axes"),
        ("grouped_dot", [nd.ones((2, 2)), nd.ones((1, 2, 3)), ints(1)], {}, "weight must be"),
        ("grouped_dot", [nd.ones((2, 2)), nd.ones((1, 2, 2)), ints(1, 1)], {}, "weight must be"),
        (
            "grouped_dot",
            [nd.ones((2, 2)), nd.ones((1, 2, 2)), nd.ones((1, 1), dtype="int32")],
            {},
            "counts must have 1 axis",
        ),
        (
            "grouped_dot",
            [nd.ones((2, 2)), nd.ones((1, 2, 2)), ints(1, 1)],
            {"first": 2, "groups": 1},
            "counts has 2 elements, but the matrices are of the groups",
        ),
        ("grouped_dot", [nd.ones((2, 2)), nd.ones((1, 2, 2)), ints(1)], {"first": 1}, "pass both"),
        ("add_loss", [nd.ones(2), ints(1)], {}, "loss must have a float dtype"),
    ],
)
def test_ops_refuse_other_shapes(name, inputs, options, message):
    with pytest.raises(mx.MXNetError, match=message):
        getattr(nd.contrib, name)(*inputs, **options)


@pytest.mark.parametrize(
    "body, message",
    [
        (
            lambda F, x, o, c, w: F.contrib.dispatch(x, F.arange(2, dtype="int32")),
            "order must come",
        ),
        (lambda F, x, o, c, w: F.contrib.dispatch(x, o, F.ones((2, 1))), "weights are the same"),
        (
            lambda F, x, o, c, w: F.contrib.grouped_dot(x, F.ones((3, 2, 3)), c),
            "data must be sorted",
        ),
        (
            lambda F, x, o, c, w: F.contrib.combine(F.contrib.dispatch(x, o), o, k=1),
            "order and weights must be",
        ),
        (lambda F, x, o, c, w: F.contrib.add_loss(x, F.arange(3)), "would add the whole loss"),
    ],
)
def test_pipelines_refuse_ops_without_their_order(body, message):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            order, counts, weights, _ = F.contrib.route(x, k=1)
            return body(F, x, order, counts, weights)

    net = Net()
    net.hybridize(pipeline=Pipeline(2))
    with pytest.raises(mx.MXNetError, match=message):
        net(nd.array(normal(4, 3)))


# --- Devices, pipelines, precision and files ------------------------------------------------------


class Network(gluon.HybridBlock):
    def __init__(self, places=(None, None), **options):
        super().__init__(prefix="net_")
        self.places = places
        with self.name_scope():
            self.body = nn.Dense(8, in_units=8, flatten=False, prefix="body_")
            self.moe = nn.MoE(8, 6, 5, 2, in_units=8, shared=1, **options, prefix="moe_")
            self.head = nn.Dense(3, in_units=8, flatten=False, prefix="head_")
        mx.random.seed(4)
        for block, place in ((self.body, 0), (self.moe, 1), (self.head, 0)):
            block.initialize(mx.init.Normal(0.4), ctx=places[place] or FIRST)

    def hybrid_forward(self, F, x):
        x = self.body(x).as_in_context(self.places[1] or FIRST)
        x = (x + self.moe(x)).as_in_context(self.places[0] or FIRST)
        return self.head(x)


def trained(way, places=(None, None), **options):
    net = Network(places, **options)
    x, labels = nd.array(normal(4, 7, 8)), nd.array(np.arange(28).reshape(4, 7) % 3)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    losses = []
    if isinstance(way, Pipeline):
        step = TrainStep(net, loss_of, trainer, way)
        losses = [step(x, labels).asnumpy() for _ in range(3)]
    else:
        net.hybridize(way != "eager")
        for _ in range(3):
            with autograd.record():
                loss = loss_of(net(x), labels)
            loss.backward()
            trainer.step(4)
            losses.append(loss.asnumpy())
    return np.array(losses), [p.data().asnumpy() for p in net.collect_params().values()]


LOSSES = {"aux_loss": 0.1, "z_loss": 0.05, "balance": "sample"}


@pytest.mark.parametrize("options", [{}, LOSSES], ids=["plain", "losses"])
def test_two_devices_and_pipelines_train_with_the_bits_of_one_device(options):
    want = trained("eager", **options)
    for way in ("eager", "hybrid", Pipeline(2, "1f1b"), Pipeline(4, "gpipe")):
        one, two = trained(way, **options), trained(way, (FIRST, SECOND), **options)
        assert (one[0] == two[0]).all()
        assert all((a == b).all() for a, b in zip(one[1], two[1]))
        np.testing.assert_allclose(one[0], want[0], rtol=1e-5)
        for a, b in zip(one[1], want[1]):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_micro_batches_have_the_bits_of_the_whole_batch():
    net, x = layer(in_units=8), nd.array(normal(6, 5, 8))
    net.hybridize()
    want = net(x).asnumpy()
    for count in (2, 3, 6):
        net.hybridize(pipeline=Pipeline(count))
        assert (net(x).asnumpy() == want).all()


def test_sorted_rows_cannot_leave_a_pipelined_block():
    class Leaks(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            order, counts, _, _ = F.contrib.route(x, k=1)
            return F.contrib.dispatch(x, order)

    class Sums(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            order, counts, weights, _ = F.contrib.route(x, k=1)
            rows = F.softmax(F.contrib.dispatch(x, order), axis=0)
            return F.contrib.combine(rows, order, weights)

    class Multiplies(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            order, counts, weights, _ = F.contrib.route(x, k=1)
            rows = F.contrib.dispatch(x, order)
            rows = F.FullyConnected(F.ones((2, 3)), rows, no_bias=True, num_hidden=2)
            return F.contrib.combine(rows, order, weights)

    class Numbers(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            order, counts, weights, _ = F.contrib.route(x, k=1)
            rows = F.contrib.dispatch(x, order)
            rows = rows * F.arange(rows.shape[0]).reshape((-1, 1))
            return F.contrib.combine(rows, order, weights)

    for block, message in (
        (Leaks, "has rows that are sorted by expert"),
        (Sums, "use contrib.com"),
        (Multiplies, "all rows use this whole input"),
        (Numbers, "is the same for every micro-batch"),
    ):
        net = block()
        net.hybridize(pipeline=Pipeline(2))
        with pytest.raises(mx.MXNetError, match=message):
            net(nd.array(normal(4, 3)))


@pytest.mark.parametrize(
    "body",
    [
        lambda F, x, o, c, w, p: F.contrib.combine(
            F.contrib.dispatch(x, o) + F.contrib.dispatch(x, p), o, w
        ),
        lambda F, x, o, c, w, p: F.contrib.combine(F.contrib.dispatch(x, p), o, w),
        lambda F, x, o, c, w, p: F.contrib.grouped_dot(
            F.contrib.dispatch(x, p), F.ones((3, 2, 3)), c
        ),
    ],
    ids=["sum", "combine", "grouped_dot"],
)
def test_pipelines_refuse_rows_in_two_orders(body):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            order, counts, weights, _ = F.contrib.route(x, k=1)
            other, _, _, _ = F.contrib.route(-x, k=1)
            return body(F, x, order, counts, weights, other)

    net = Net()
    net.hybridize(pipeline=Pipeline(2))
    with pytest.raises(mx.MXNetError, match="rows in different orders"):
        net(nd.array(normal(4, 3)))


@pytest.mark.parametrize(
    "change",
    [
        lambda F, o, c: (o, c + 1),
        lambda F, o, c: (o, F.maximum(c, 1)),
        lambda F, o, c: (o, F.cast(F.cast(c, "float32") / 2, "int32")),
        lambda F, o, c: (F.where(o > 0, o - 1, o), c),
    ],
    ids=["sum", "maximum", "cast", "order"],
)
def test_pipelines_refuse_changes_of_an_order(change):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            order, counts, weights, _ = F.contrib.route(x, k=1)
            order, counts = change(F, order, counts)
            rows = F.contrib.grouped_dot(F.contrib.dispatch(x, order), F.ones((3, 3, 3)), counts)
            return F.contrib.combine(rows, order, weights)

    net = Net()
    net.hybridize(pipeline=Pipeline(2))
    with pytest.raises(mx.MXNetError, match="mixes data across the batch"):
        net(nd.array(normal(4, 3)))


def test_pipelines_copy_orders():
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            order, counts, weights, _ = F.contrib.route(x, k=2)
            rows = F.contrib.dispatch(x, F.identity(order)).as_in_context(SECOND)
            counts = F.BlockGrad(counts.as_in_context(SECOND))
            rows = F.contrib.grouped_dot(rows, weight.as_in_context(SECOND), counts)
            return F.contrib.combine(rows.as_in_context(FIRST), order, weights)

    net, x, weight = Net(), nd.array(normal(5, 3), ctx=FIRST), nd.array(normal(3, 3, 3), ctx=FIRST)
    want = net(x).asnumpy()
    net.hybridize(pipeline=Pipeline(2))
    assert (net(x).asnumpy() == want).all()


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda F, x, y, o, w: F.contrib.dispatch(y, o), "order must come"),
        (lambda F, x, y, o, w: F.contrib.dispatch(x, o, w.swapaxes(0, 1)), "order must come"),
        (
            lambda F, x, y, o, w: F.contrib.combine(F.contrib.dispatch(x, o), o, w.swapaxes(0, 1)),
            "results of one",
        ),
    ],
    ids=["data", "weights", "combine"],
)
def test_pipelines_refuse_tokens_in_another_sequence(body, message):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            order, _, weights, _ = F.contrib.route(x, k=1)
            return body(F, x, x.swapaxes(0, 1), order, weights)

    net = Net()
    net.hybridize(pipeline=Pipeline(2))
    with pytest.raises(mx.MXNetError, match=message):
        net(nd.array(normal(4, 2, 3)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_precision(dtype):
    x, net = nd.array(normal(3, 6, 8)), layer(in_units=8)
    want = net(x).asnumpy()
    mx.contrib.amp.init(dtype)
    try:
        with autograd.record():
            out = net(x)
        out.backward()
        assert out.dtype == np.float16 if dtype == "float16" else "bfloat16" in str(out.dtype)
        close(out.astype("float32").asnumpy(), want, 0.1)
        net.hybridize()
        close(net(x).astype("float32").asnumpy(), want, 0.1)
    finally:
        mx.contrib.amp.turn_off()


def test_export_accepts_other_numbers_of_tokens(tmp_path):
    net, x = layer(in_units=8, shared=1), nd.array(normal(3, 6, 8))
    net.hybridize()
    want = net(x).asnumpy()
    net.export(str(tmp_path / "moe"))
    found = gluon.SymbolBlock.imports(
        str(tmp_path / "moe-symbol.json"), ["data"], str(tmp_path / "moe-0000.params")
    )
    close(found(x), want)
    close(found(x[:1, :4].copy()), want[:1, :4])


def test_onnx_export_names_the_op(tmp_path):
    pytest.importorskip("onnx")
    net, x = layer(in_units=8), nd.array(normal(3, 6, 8))
    net.hybridize()
    net(x)
    with pytest.raises(mx.MXNetError, match="_contrib_route cannot be converted"):
        mx.onnx.export_model(net, None, [(3, 6, 8)], onnx_file_path=str(tmp_path / "moe.onnx"))


def test_lora_refuses_experts_and_adapts_the_router():
    net = Network()
    with pytest.raises(ValueError, match="'moe' is a MoE; adapters support"):
        mx.contrib.lora.apply(net, {"moe": 2})
    mx.contrib.lora.apply(net, {"moe.router": 2})
    assert net(nd.array(normal(2, 3, 8))).shape == (2, 3, 3)


# --- Losses ---------------------------------------------------------------------------------------


def explicit(net, x, aux, z, balance):
    """The losses that the layer adds, of operators in the training loop."""
    scores = net.router(x)
    _, _, _, chosen = nd.contrib.route(scores, k=2)
    p = nd.softmax(scores, axis=-1)
    rows = nd.one_hot(chosen, 5).sum(axis=-2)
    axes = 1 if balance == "sample" else (0, 1)
    each = (rows.mean(axis=axes) * p.mean(axis=axes)).sum(axis=-1) * 5
    balanced = each.sum() * (1 if balance == "sample" else len(x))
    logs = nd.log(nd.exp(scores).sum(axis=-1))
    return aux * balanced + z * (logs**2).mean(axis=1).sum()


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("balance", ["batch", "sample"])
def test_losses_of_the_layer_are_added_to_the_gradients(balance, hybrid):
    x, factor = nd.array(normal(3, 6, 8)), nd.array(normal(3, 6, 8, seed=1))
    results = []
    for own in (True, False):
        options = dict(aux_loss=0.3, z_loss=0.2, balance=balance) if own else {}
        net = layer(in_units=8, **options)
        net.hybridize(hybrid)
        with autograd.record():
            loss = (net(x) * factor).sum()
            if not own:
                loss = loss + explicit(net, x, 0.3, 0.2, balance)
        loss.backward()
        results.append([p.grad().asnumpy() for p in net.collect_params().values()])
    for one, two in zip(*results):
        close(one, two, 1e-5)


def test_losses_change_no_result():
    x = nd.array(normal(3, 6, 8))
    want = layer(in_units=8)(x).asnumpy()
    with autograd.record():
        got = layer(in_units=8, aux_loss=1.0, z_loss=1.0)(x)
    assert (got.asnumpy() == want).all()


def test_balance_of_the_whole_batch_is_refused_in_pipelines():
    net = layer(in_units=8, aux_loss=0.1)
    net.hybridize(pipeline=Pipeline(2))
    with autograd.record(), pytest.raises(mx.MXNetError, match="mixes data across the batch"):
        net(nd.array(normal(4, 6, 8)))


def test_routes_can_be_differentiated_twice():
    scores = nd.array(normal(4, 6), dtype="float64")
    scores.attach_grad()
    with autograd.record():
        _, _, weights, _ = nd.contrib.route(scores, k=3)
        first = autograd.grad((weights**2).sum(), scores, create_graph=True)[0]
        (first**2).sum().backward()
    assert np.abs(scores.grad.asnumpy()).max() > 0


@pytest.mark.parametrize("renormalize", [True, False])
def test_invalid_scores_give_weights_that_are_nan(renormalize):
    scores = nd.array([[np.nan, 1, 2], [np.inf, 0, 0], [0, 0, 0]])
    weights = nd.contrib.route(scores, k=2, renormalize=renormalize)[2].asnumpy()
    assert np.isnan(weights[0]).all() and np.isnan(weights[1]).any()
    assert np.isfinite(weights[2]).all()
