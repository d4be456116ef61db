"""linear_cross_entropy over several blocks of rows and classes, and the loss of Gluon."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from samples.loss import linear_cross_entropy, linear_cross_entropy_back
from support.devices import cpus_only, on

# More than one block of rows and of classes in kernels/cpu/math/linear_cross_entropy.c. Blocks on
# GPUs have more rows.
ROWS, UNITS, CLASSES = 1100, 16, 4300
BLOCKS = [(ROWS, CLASSES)] if on(0).device_type == "cpu" else [(70, CLASSES), (4200, 9)]
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}


def wide(array):
    return array.astype("float64").asnumpy()


def case(dtype, biased=False, ignored=0.0, rows=ROWS, classes=CLASSES, units=UNITS):
    with on(0):
        return _case(dtype, biased, ignored, rows, classes, units)


def _case(dtype, biased, ignored, rows, classes, units):
    random = np.random.RandomState(0)
    data = nd.array(random.randn(rows, units), dtype=dtype)
    weight = nd.array(random.randn(classes, units) * 0.3, dtype=dtype)
    label = random.randint(0, classes, rows)
    label[random.rand(rows) < ignored] = -100
    bias = [nd.array(random.randn(classes), dtype=dtype)] if biased else []
    head = nd.array(random.rand(rows), dtype="float64" if dtype == "float64" else "float32")
    return [data, weight, nd.array(label, dtype="int32"), *bias], head


def run(arrays, head, **params):
    """Returns the loss, and the gradients of data, weight and bias."""
    trained = [array for i, array in enumerate(arrays) if i != 2]
    for array in trained:
        array.attach_grad()
    with autograd.record():
        loss = nd.contrib.linear_cross_entropy(*arrays, **params)
    loss.backward(head)
    return [loss, *(array.grad for array in trained)]


@pytest.mark.parametrize("rows, classes", BLOCKS)
@pytest.mark.parametrize("biased, ignored", [(False, 0.0), (True, 0.4)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_blocks_match_numpy(dtype, biased, ignored, rows, classes):
    arrays, head = case(dtype, biased, ignored, rows, classes)
    params = {"z_loss": 0.01, "softcap": 3.0} if biased else {}
    found = run(arrays, head, **params)
    given = [wide(array) for array in arrays]
    loss, *statistics = linear_cross_entropy(*given, **params)
    back = linear_cross_entropy_back(
        wide(head), *given[:3], *statistics, *given[3:], gradients=7 if biased else 3, **params
    )
    assert found[0].dtype == (np.float64 if dtype == "float64" else np.float32)
    for name, array, expected in zip(("loss", "data", "weight", "bias"), found, [loss, *back]):
        error = abs(wide(array) - expected).max() / abs(expected).max()
        assert error < (TOLERANCE[dtype] if name != "loss" else 1e-5), name


def test_rows_do_not_depend_on_ignored_rows():
    (data, weight, label), head = case("float32", rows=BLOCKS[0][0])
    some = label.copy()
    some[::3] = -100
    kept = some.asnumpy() != -100
    whole, part = run([data, weight, label], head), run([data.copy(), weight, some], head)
    np.testing.assert_allclose(part[0].asnumpy(), whole[0].asnumpy() * kept, rtol=1e-5)
    np.testing.assert_allclose(
        part[1].asnumpy(), whole[1].asnumpy() * kept[:, None], rtol=1e-4, atol=1e-7
    )
    assert not part[1].asnumpy()[~kept].any()


@cpus_only
def test_ignored_rows_may_be_nan():
    """On GPUs, 0 * nan makes the weight's gradient nan."""
    (data, weight, label), head = case("float32", rows=6, classes=5)
    data[2] = np.nan
    label[2] = -100
    assert all(np.isfinite(array.asnumpy()).all() for array in run([data, weight, label], head))


def test_masked_classes_have_no_probability():
    """A bias of -inf removes classes, even a whole first block of them."""
    (data, weight, label, bias), head = case("float32", biased=True, rows=50)
    bias[:4200] = -np.inf
    label = label % 100 + 4200
    loss, data_grad, weight_grad, _ = run([data, weight, label, bias], head)
    expected, *grads = run([data.copy(), weight[4200:], label - 4200, bias[4200:]], head)
    np.testing.assert_allclose(loss.asnumpy(), expected.asnumpy(), rtol=1e-5)
    np.testing.assert_allclose(data_grad.asnumpy(), grads[0].asnumpy(), rtol=1e-4, atol=1e-6)
    assert not weight_grad[:4200].asnumpy().any()


def test_loss_equals_softmax_cross_entropy_of_large_scores():
    (data, weight, label), _ = case("float32", rows=5, classes=7)
    scores = nd.dot(1e4 * data, weight, transpose_b=True)
    expected = -nd.pick(nd.log_softmax(scores), label)
    loss = nd.contrib.linear_cross_entropy(1e4 * data, weight, label)
    np.testing.assert_allclose(loss.asnumpy(), expected.asnumpy(), rtol=1e-6)


@pytest.mark.parametrize("wanted", [(0,), (1,), (3,), (0, 3)])
def test_only_requested_gradients_are_computed(wanted):
    arrays, head = case("float32", biased=True, rows=7, classes=9)
    everything = dict(zip((0, 1, 3), run(arrays, head)[1:]))
    fresh = [array.copy() for array in arrays]
    for i in wanted:
        fresh[i].attach_grad()
    with autograd.record():
        loss = nd.contrib.linear_cross_entropy(*fresh)
    loss.backward(head)
    for i in wanted:
        np.testing.assert_array_equal(fresh[i].grad.asnumpy(), everything[i].asnumpy())


def test_bits_do_not_depend_on_the_device():
    arrays, head = case("float32", biased=True, ignored=0.3, rows=BLOCKS[0][0])
    there = [array.as_in_context(on(1)) for array in arrays]
    for here, other in zip(run(arrays, head), run(there, head.as_in_context(on(1)))):
        np.testing.assert_array_equal(here.asnumpy(), other.asnumpy())


@cpus_only
def test_memory_does_not_hold_all_scores():
    """All scores would be 256 MB, and their gradient as much."""
    arrays, head = case("float32", rows=8192, classes=8192, units=4)
    trained = [array for i, array in enumerate(arrays) if i != 2]
    for array in trained:
        array.attach_grad()
    nd.waitall()
    mx.context.reset_peak_memory(mx.cpu(0))
    before = mx.context.memory_stats(mx.cpu(0))["peak_in_use"]
    run(arrays, head)
    nd.waitall()
    assert mx.context.memory_stats(mx.cpu(0))["peak_in_use"] - before < 64 << 20


@pytest.mark.parametrize(
    "change, message",
    [
        ({0: (5,)}, r"data must have at least 2 axes \(positions, units\)"),
        ({1: (4, 7)}, r"weight must have the shape \(classes, 3\): data has 3 units"),
        ({1: (4, 3, 1)}, r"weight must have 2 axes \(classes, units\)"),
        ({1: (0, 3), 3: (0,)}, "weight must have at least one class"),
        ({2: (4,)}, "label"),
        ({3: (5,)}, "bias"),
    ],
)
def test_wrong_shapes_raise(change, message):
    shapes = [(2, 3), (4, 3), (2,), (4,)]
    for i, shape in change.items():
        shapes[i] = shape
    with pytest.raises(mx.MXNetError, match=message):
        nd.contrib.linear_cross_entropy(*(nd.zeros(shape) for shape in shapes))


def test_wrong_parameters_raise():
    arrays = nd.zeros((2, 3)), nd.zeros((4, 3)), nd.zeros(2)
    for params in ({"z_loss": -1}, {"softcap": -1}, {"ignore_index": "none"}):
        with pytest.raises((mx.MXNetError, TypeError, ValueError), match=next(iter(params))):
            nd.contrib.linear_cross_entropy(*arrays, **params)


def test_symbol_infers_the_weight():
    data, weight, label = (mx.sym.var(name) for name in ("data", "weight", "label"))
    loss = mx.sym.contrib.linear_cross_entropy(data, weight, label, ignore_index=1)
    shapes, outputs, _ = loss.infer_shape(data=(2, 3, 5), weight=(7, 0))
    assert shapes == [(2, 3, 5), (7, 5), (2, 3)]
    assert outputs[0] == (2, 3)
    again = mx.sym.load_json(loss.tojson())
    values = {"data": nd.ones((1, 2, 5)), "weight": nd.ones((7, 5)), "label": nd.array([[0, 1]])}
    result = again.bind(on(0), values).forward()[0].asnumpy()
    np.testing.assert_allclose(result, [[np.log(7), 0]], rtol=1e-6)


# --- LinearCrossEntropyLoss ----------------------------------------------------------------------


class Model(gluon.HybridBlock):
    """A language model that returns hidden states in training if `fused`."""

    def __init__(self, tied=False, fused=True):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.mid = nn.Dense(8, flatten=False, activation="tanh", in_units=8)
        params = {"params": self.embed.params} if tied else {}
        self.head = nn.Dense(50, flatten=False, in_units=8, use_bias=not tied, **params)
        self.fused = fused

    def forward(self, tokens):
        hidden = self.mid(self.embed(tokens))
        return hidden if self.fused and autograd.is_training() else self.head(hidden)


def batch():
    random = np.random.RandomState(0)
    return nd.array(random.randint(0, 50, (8, 6))), nd.array(random.randint(0, 50, (8, 6)))


def trained(tied=False, fused=True, way="eager", placed=False, ignored=False):
    """Returns the losses of three steps and the weights after them."""
    mx.random.seed(3)
    net = Model(tied, fused)
    if placed:
        net.place({"embed": on(0), "mid": on(1), "head": on(1)}, verbose=False)
    net.initialize(mx.init.Normal(0.5))
    loss = gluon.loss.LinearCrossEntropyLoss(net.head) if fused else gluon.loss.SoftmaxCELoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    tokens, labels = batch()
    if ignored:
        labels[3, 2:] = -100
    if way == "step":
        step = mx.parallel.TrainStep(net, loss, trainer, mx.parallel.Pipeline(4))
    elif way == "hybridized":
        net.hybridize()
        loss.hybridize()
    losses = []
    for _ in range(3):
        if way == "step":
            value = step(tokens, labels)
        else:
            with autograd.record():
                out = net(tokens)
                value = loss(out, labels.as_in_context(out.context))
            value.backward()
            trainer.step(len(tokens))
        losses.append(value.asnumpy())
    params = net.collect_params().values()
    return np.array(losses), [param.data(param.list_ctx()[0]).asnumpy() for param in params]


@pytest.mark.parametrize("way", ["eager", "hybridized", "step"])
@pytest.mark.parametrize("tied", [False, True])
def test_loss_trains_as_softmax_cross_entropy(tied, way):
    losses, weights = trained(tied, way=way)
    expected_losses, expected = trained(tied, fused=False, way=way)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for one, other in zip(weights, expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", ["eager", "hybridized", "step"])
@pytest.mark.parametrize("tied", [False, True])
def test_placed_loss_has_the_bits_of_one_device(tied, way):
    losses, weights = trained(tied, way=way, ignored=True)
    placed_losses, placed_weights = trained(tied, way=way, ignored=True, placed=True)
    np.testing.assert_array_equal(losses, placed_losses)
    for one, other in zip(weights, placed_weights):
        np.testing.assert_array_equal(one, other)


def test_loss_averages_over_positions_that_are_not_ignored():
    head = nn.Dense(4, flatten=False, in_units=3, use_bias=False)
    head.initialize(mx.init.Zero())
    labels = nd.array([[0, 1], [2, -1], [-1, -1]])
    loss = gluon.loss.LinearCrossEntropyLoss(head, ignore_index=-1, weight=2)
    expected = 2 * np.log(4) * np.array([1, 1, 0])
    np.testing.assert_allclose(loss(nd.ones((3, 2, 3)), labels).asnumpy(), expected, rtol=1e-6)
    weighted = loss(nd.ones((3, 2, 3)), labels, nd.array([[1], [0.5], [1]]))
    np.testing.assert_allclose(weighted.asnumpy(), expected * [1, 0.5, 1], rtol=1e-6)
    flat = loss(nd.ones((3, 3)), nd.array([0, -1, 3]))
    np.testing.assert_allclose(flat.asnumpy(), 2 * np.log(4) * np.array([1, 0, 1]), rtol=1e-6)


def test_loss_weights_positions():
    loss = gluon.loss.LinearCrossEntropyLoss(nn.Dense(7, in_units=3, flatten=False))
    loss.initialize(mx.init.Normal(1))
    hidden = nd.random.normal(shape=(2, 2, 3))
    labels, weights = nd.array([[1, 4], [0, 6]]), nd.array([[1, 0.5], [0, 2]])
    apart = nd.stack(*[loss(hidden[:, i : i + 1], labels[:, i : i + 1]) for i in (0, 1)], axis=1)
    for given, each in [(weights, weights), (weights[:, :1], weights[:, :1])]:
        np.testing.assert_allclose(
            loss(hidden, labels, given).asnumpy(),
            (apart * each).mean(axis=1).asnumpy(),
            rtol=1e-5,
        )
    for shape in [(2, 2, 1), (1, 2, 2)]:
        with pytest.raises(ValueError, match=r"LinearCross.*: sample_weight .* to \(2, 2\)"):
            loss(hidden, labels, nd.ones(shape))


def test_loss_infers_a_deferred_weight():
    head = nn.Dense(5, flatten=False)
    head.initialize()
    loss = gluon.loss.LinearCrossEntropyLoss(head)
    assert loss(nd.ones((2, 3)), nd.zeros(2)).shape == (2,)
    assert head.weight.shape == (5, 3)


def test_loss_has_the_parameters_of_its_head():
    head = nn.Dense(5, flatten=False, in_units=3)
    loss = gluon.loss.LinearCrossEntropyLoss(head)
    assert set(loss.collect_params()) == set(head.collect_params())
    loss.initialize()
    assert head.weight.data().shape == (5, 3)


@pytest.mark.parametrize(
    "head, message",
    [
        (lambda: nn.Dense(3, flatten=False, activation="relu"), "must not have an activation"),
        (lambda: nn.Conv2D(3, 1), "must be a Dense or Embedding layer, not Conv2D"),
    ],
)
def test_loss_refuses_other_heads(head, message):
    with pytest.raises(ValueError, match=message):
        gluon.loss.LinearCrossEntropyLoss(head())


def test_loss_refuses_negative_factors():
    head = nn.Dense(3, flatten=False)
    for options in ({"z_loss": -1}, {"softcap": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            gluon.loss.LinearCrossEntropyLoss(head, **options)


def test_mixed_precision_keeps_labels():
    """bfloat16 could not hold label 301."""
    head = nn.Dense(400, flatten=False, in_units=3)
    head.initialize(mx.init.Normal(1))
    hidden, labels = nd.ones((2, 3)), nd.array([301, 303])
    expected = gluon.loss.LinearCrossEntropyLoss(head)(hidden, labels).asnumpy()
    mx.contrib.amp.init("bfloat16")
    try:
        loss = gluon.loss.LinearCrossEntropyLoss(head)(hidden, labels)
        assert loss.dtype == np.float32
        np.testing.assert_allclose(loss.asnumpy(), expected, rtol=0.02)
        assert not np.array_equal(loss.asnumpy(), expected)
    finally:
        mx.contrib.amp.turn_off()


def test_export_and_import_of_the_loss(tmp_path):
    head = nn.Dense(6, flatten=False, in_units=3)
    head.initialize(mx.init.Normal(1))
    loss = gluon.loss.LinearCrossEntropyLoss(head)
    loss.hybridize()
    hidden, labels = nd.ones((2, 4, 3)), nd.array([[0, 1, 2, -100]] * 2)
    expected = loss(hidden, labels).asnumpy()
    loss.export(str(tmp_path / "loss"))
    again = gluon.SymbolBlock.imports(
        str(tmp_path / "loss-symbol.json"), ["data0", "data1"], str(tmp_path / "loss-0000.params")
    )
    np.testing.assert_allclose(again(hidden, labels).asnumpy(), expected, rtol=1e-6)
