"""Output layers with their own gradients, fused cross-entropy, invalid indices, thread
determinism."""

import os

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd
from support.training import backward_of, variable

op = _core.get_op


def gradient(name, arrays, head=None, **params):
    arrays = [mx.nd.array(a, dtype=a.dtype) for a in arrays]
    arrays[0].attach_grad()
    with autograd.record():
        out = op(name)(*arrays, **params)
    out.backward(None if head is None else mx.nd.array(head, dtype=head.dtype))
    return out.asnumpy(), arrays[0].grad.asnumpy()


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


X = np.random.RandomState(0).randn(3, 4)
LABEL = np.array([0.0, -1.0, 2.0])


@pytest.mark.parametrize("normalization, divisor", [("null", 1), ("batch", 3), ("valid", 2)])
@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("out_grad", [False, True])
def test_softmax_output_gradient_matches_formula(normalization, divisor, ignore, alpha, out_grad):
    head = np.random.RandomState(1).randn(3, 4)
    out, grad = gradient(
        "SoftmaxOutput",
        [X, LABEL],
        head,
        normalization=normalization,
        use_ignore=ignore,
        smooth_alpha=alpha,
        out_grad=out_grad,
        grad_scale=1.5,
    )
    hot = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]])
    expected = softmax(X) - hot * (1 - alpha) - (1 - hot) * alpha / 3
    if ignore:
        expected[1] = 0
    expected = expected * 1.5 / divisor * (head if out_grad else 1)
    np.testing.assert_allclose(out, softmax(X), rtol=1e-12)
    np.testing.assert_allclose(grad, expected, rtol=1e-9, atol=1e-12)


def test_softmax_output_batch_normalization_counts_all_rows():
    """With preserve_shape, each row of the last axis is a sample of the batch.

    Expected values are from MXNet.
    """
    x, label = np.ones((3, 2, 4)), np.zeros((3, 2))
    grad = gradient("SoftmaxOutput", [x, label], preserve_shape=True, normalization="batch")[1]
    np.testing.assert_allclose(grad[0, 0], [-0.125, 1 / 24, 1 / 24, 1 / 24], rtol=1e-9)
    grad = gradient(
        "SoftmaxOutput", [x, np.zeros((3, 4))], multi_output=True, normalization="batch"
    )[1]
    np.testing.assert_allclose(grad[0, :, 0], [-0.5 / 12, 0.5 / 12], rtol=1e-9)


@pytest.mark.parametrize(
    "shape, divisor", [((3, 4), 3), ((2, 3, 4), 6), ((5,), 1), ((2, 1, 1, 7), 2)]
)
def test_make_loss_batch_normalization_counts_all_rows(shape, divisor):
    grad = gradient("MakeLoss", [np.ones(shape)], normalization="batch")[1]
    np.testing.assert_allclose(grad, np.full(shape, 1 / divisor), rtol=1e-12)


def test_softmax_output_along_channels_matches_formula():
    x = np.random.RandomState(2).randn(2, 3, 4)
    label = np.random.RandomState(3).randint(0, 3, (2, 4)).astype("float64")
    out, grad = gradient("SoftmaxOutput", [x, label], multi_output=True)
    hot = np.moveaxis(np.eye(3)[label.astype(int)], -1, 1)
    np.testing.assert_allclose(out, softmax(x, 1), rtol=1e-12)
    np.testing.assert_allclose(grad, (softmax(x, 1) - hot) / 4, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name, forward, residual",
    [
        ("LinearRegressionOutput", lambda x: x, lambda d: d),
        ("LogisticRegressionOutput", lambda x: 1 / (1 + np.exp(-x)), lambda d: d),
        ("MAERegressionOutput", lambda x: x, np.sign),
    ],
)
def test_regression_output_gradients_match_formula(name, forward, residual):
    label = np.random.RandomState(4).rand(3, 4)
    out, grad = gradient(name, [X, label], grad_scale=2.0)
    np.testing.assert_allclose(out, forward(X), rtol=1e-12)
    np.testing.assert_allclose(grad, residual(forward(X) - label) * 2 / 4, rtol=1e-9)
    column, column_grad = gradient(name, [X[:, :1], label[:, 0]])
    np.testing.assert_allclose(column_grad, residual(forward(X[:, :1]) - label[:, :1]), rtol=1e-9)


def test_make_loss_and_svm_ignore_head_gradients():
    head = np.full((3, 4), 7.0)
    assert (
        gradient("MakeLoss", [X], head, grad_scale=2.0, normalization="batch")[1] == 2 / 3
    ).all()
    positive = gradient("MakeLoss", [X], head, normalization="valid", valid_thresh=0.5)[1]
    np.testing.assert_allclose(positive, np.full(X.shape, 1 / (X > 0.5).sum()), rtol=1e-12)
    none = gradient("MakeLoss", [X], head, normalization="valid", valid_thresh=1e9)[1]
    assert (none == 1).all()
    sign = np.eye(4)[[0, 3, 2]] * 2 - 1
    for linear, slope in ((False, 2 * (0.7 - sign * X)), (True, 1)):
        _, grad = gradient(
            "SVMOutput", [X, np.array([0.0, 3, 2])], head, margin=0.7, use_linear=linear
        )
        np.testing.assert_allclose(grad, -sign * np.where(sign * X < 0.7, slope, 0), rtol=1e-9)


class Sparse(mx.gluon.HybridBlock):
    """Keeps activations sparse using an average that is a parameter."""

    def __init__(self, **params):
        super().__init__()
        self.penalised = params
        self.average = self.params.get("average", shape=(3,), init="zeros", grad_req="null")

    def hybrid_forward(self, F, x, average):
        return F.IdentityAttachKLSparseReg(x, average, **self.penalised)


SPARSE = {"sparseness_target": 0.2, "penalty": 0.3, "momentum": 0.7}


def penalised(x, average, head, sparseness_target, penalty, momentum):
    """Returns the gradient and the new average by MXNet's formula."""
    average = momentum * average + (1 - momentum) * x.mean(0)
    slope = -sparseness_target / average + (1 - sparseness_target) / (1 - average)
    return head + penalty * slope, average


@pytest.mark.parametrize("hybrid", [False, True])
def test_kl_sparse_regularization_matches_formula_over_steps_and_devices(hybrid):
    random = np.random.RandomState(9)
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = Sparse(**SPARSE)
    net.initialize(ctx=contexts)
    if hybrid:
        net.hybridize()
    averages = [np.zeros(3)] * 2
    for _ in range(3):
        for i, ctx in enumerate(contexts):
            value, head = random.uniform(0.1, 0.9, (5, 3)), random.randn(5, 3)
            x = variable(mx.nd.array(value, ctx=ctx))
            with autograd.record():
                y = net(x)
            y.backward(mx.nd.array(head, ctx=ctx))
            expected, averages[i] = penalised(value, averages[i], head, **SPARSE)
            assert (y.asnumpy() == x.asnumpy()).all()
            np.testing.assert_allclose(x.grad.asnumpy(), expected, rtol=1e-5, atol=1e-5)
            average = net.average.data(ctx)
            np.testing.assert_allclose(average.asnumpy(), averages[i], rtol=1e-5)
            net(x)  # prediction does not update the average
            assert (average.asnumpy() == net.average.data(ctx).asnumpy()).all()
            np.testing.assert_allclose(average.asnumpy(), averages[i], rtol=1e-5)


def test_kl_sparse_regularization_in_symbol_matches_formula():
    x = np.random.RandomState(10).uniform(0.1, 0.9, (4, 3))
    out = mx.sym.IdentityAttachKLSparseReg(mx.sym.sigmoid(mx.sym.var("x")), name="kl", **SPARSE)
    assert out.list_auxiliary_states() == ["kl_moving_avg"]
    executor = mx.sym.load_json(out.tojson()).simple_bind(mx.cpu(), x=x.shape)
    executor.arg_dict["x"][:] = x
    active, average = 1 / (1 + np.exp(-x)), np.zeros(3)
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones(x.shape))
        grad, average = penalised(active, average, 1.0, **SPARSE)
        np.testing.assert_allclose(
            executor.grad_dict["x"].asnumpy(), grad * active * (1 - active), rtol=1e-5
        )
        np.testing.assert_allclose(executor.aux_dict["kl_moving_avg"].asnumpy(), average, rtol=1e-5)
    executor.forward(is_train=False)
    np.testing.assert_allclose(executor.aux_dict["kl_moving_avg"].asnumpy(), average, rtol=1e-5)


@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-12), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_kl_sparse_regularization_of_other_dtypes_matches_formula(dtype, rtol):
    value = np.random.RandomState(11).uniform(0.1, 0.9, (64, 5))
    x = mx.nd.array(value, dtype=dtype)
    average = mx.nd.full((5,), 0.25, dtype="float64" if dtype == "float64" else "float32")
    x.attach_grad()
    y = backward_of(lambda: mx.nd.IdentityAttachKLSparseReg(x, average, **SPARSE))
    exact = x.astype("float64").asnumpy()
    grad, after = penalised(exact, 0.25, 1.0, **SPARSE)
    assert x.grad.dtype == x.dtype and y.dtype == x.dtype
    np.testing.assert_allclose(average.asnumpy(), after, rtol=max(rtol * 1e-3, 1e-12))
    np.testing.assert_allclose(
        x.grad.astype("float64").asnumpy(), np.broadcast_to(grad, (64, 5)), rtol=rtol, atol=rtol
    )


def test_misuse_of_kl_sparse_regularization_is_refused():
    call = mx.nd.IdentityAttachKLSparseReg
    for shape, average in [((2, 3, 3), 3), ((3,), 3), ((2, 3), 4)]:
        with pytest.raises(mx.MXNetError, match="IdentityAttachKLSparseReg"):
            call(mx.nd.ones(shape), mx.nd.zeros(average))
    for params in ({"sparseness_target": 1.5}, {"momentum": -0.1}):
        with pytest.raises(mx.MXNetError, match="outside its range"):
            call(mx.nd.ones((2, 3)), mx.nd.zeros(3), **params)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_cross_entropy_gradient_is_rounded_once(dtype):
    """The gradient equals that of float32, rounded, and is not derived from rounded
    log-probabilities."""
    values = mx.nd.array(np.random.RandomState(5).randn(9, 700) * 4).astype(dtype)
    label = mx.nd.array(np.random.RandomState(6).randint(0, 700, 9), dtype="int32")
    found = []
    for wide in (dtype, "float32"):
        x = variable(values.astype(wide))
        backward_of(lambda: op("_softmax_ce")(x, label))
        found.append(x.grad.astype("float32").asnumpy())
    close = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(*found, rtol=1.01 * close, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_fused_cross_entropy_is_bitwise_equal_to_its_parts(dtype):
    values = np.random.RandomState(5).randn(33, 700).astype(dtype)
    label = mx.nd.array(np.random.RandomState(6).randint(0, 700, 33), dtype="int32")
    head = mx.nd.array(np.random.RandomState(7).randn(33), dtype=dtype)
    results = []
    for fused in (True, False):
        x = variable(mx.nd.array(values, dtype=dtype))
        with autograd.record():
            loss = (
                op("_softmax_ce")(x, label) if fused else -op("pick")(op("log_softmax")(x), label)
            )
        loss.backward(head)
        # rounded once only if fused
        grad = b"" if dtype == "float16" else x.grad.asnumpy().tobytes()
        results.append((loss.asnumpy().tobytes(), grad))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda: op("take")(mx.nd.array(X), mx.nd.array([0, 3]), mode="raise"),
            ("take", "3", "size 3"),
        ),
        (lambda: op("gather_nd")(mx.nd.array(X), mx.nd.array([[0, -4]])), ("gather_nd", "-4")),
        (
            lambda: op("scatter_nd")(mx.nd.array([1.0]), mx.nd.array([[5]]), shape=(3,)),
            ("scatter_nd", "5"),
        ),
        (
            lambda: op("_contrib_index_copy")(mx.nd.array(X), mx.nd.array([9]), mx.nd.array(X[:1])),
            ("index 9", "size 3"),
        ),
    ],
)
def test_index_out_of_range_raises_index_error(call, words):
    with pytest.raises(IndexError) as caught:
        call().asnumpy()
    for word in words:
        assert word in str(caught.value)
    assert (mx.nd.array(X, dtype="float64").asnumpy() == X).all()


def test_nan_and_infinite_indices_stay_in_bounds():
    wild = mx.nd.array(np.array([np.nan, np.inf, -np.inf, 1e30]), dtype="float64")
    for mode in ("clip", "wrap"):
        assert np.isin(
            op("take")(mx.nd.array(X[:, 0]), wild, mode=mode).asnumpy(), X[:, 0].astype("float32")
        ).all()
    assert op("one_hot")(wild, depth=3).asnumpy().sum() == 1  # NaN is treated as 0


def test_reversed_self_assignment_is_correct():
    x = mx.nd.array(np.arange(6), dtype="float32")
    op("_slice_assign")(x, x, begin=(None,), end=(None,), step=(-1,), out=x)
    assert x.asnumpy().tolist() == [5, 4, 3, 2, 1, 0]


@pytest.mark.skipif(
    "libtsan" in os.environ.get("LD_PRELOAD", ""),
    reason="ThreadSanitizer does not know OpenMP's barriers",
)
def test_indexing_and_softmax_bits_do_not_depend_on_threads():
    random = np.random.RandomState(8)
    grad, wide = mx.nd.array(random.randn(5000, 48)), mx.nd.array(random.randn(700, 900))
    few = mx.nd.array(random.randint(0, 11, 5000), dtype="int32")
    many = mx.nd.array(random.randint(0, 900, 20000), dtype="int32")
    calls = [
        lambda: op("_backward_take")(grad, few, shape=(11, 48)),
        lambda: op("_backward_take")(mx.nd.array(np.linspace(0, 1, 20000)), many, shape=(900,)),
        lambda: op("softmax")(wide),
        lambda: op("log_softmax")(wide, axis=0),
        lambda: op("softmax_cross_entropy")(wide, few[:700]),
        lambda: op("transpose")(wide),
        lambda: op("sort")(wide),
        lambda: op("topk")(wide, k=9),
    ]
    results = []
    try:
        for threads in (1, 2, 3):
            _core.set_threads(threads)
            results.append([c().asnumpy().tobytes() for c in calls])
    finally:
        _core.set_threads(0)
    assert results[0] == results[1] == results[2]
