"""Losses against NumPy."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd
from mpgluon.gluon import loss as losses

draw = np.random.RandomState(1)
PRED = draw.normal(size=(4, 5)).astype("float32")
LABEL = draw.normal(size=(4, 5)).astype("float32")
CLASSES = np.array([0, 4, 2, 1])
SIGNS = np.sign(LABEL)
PROBABILITIES = draw.dirichlet(np.ones(5), 4).astype("float32")
WEIGHTS = draw.uniform(size=(4, 1)).astype("float32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def log_softmax(x, axis=-1):
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def binary(x, z):
    return -(z * np.log(sigmoid(x)) + (1 - z) * np.log(1 - sigmoid(x)))


def huber(rho):
    error = np.abs(PRED - LABEL)
    return np.where(error > rho, error - rho / 2, error**2 / (2 * rho))


HALF = (LABEL > 0).astype("float32")
ROWS = np.arange(4)


def given(make, arrays, expected, **options):
    """Describes a loss, and its elementwise result before weighting and averaging."""
    return make, options, arrays, expected


ELEMENTWISE = {
    "l2": given(losses.L2Loss, (PRED, LABEL), (PRED - LABEL) ** 2 / 2),
    "l2 of another shape": given(
        losses.L2Loss, (PRED, LABEL.reshape(4, 5, 1)), (PRED - LABEL) ** 2 / 2
    ),
    "l1": given(losses.L1Loss, (PRED, LABEL), np.abs(PRED - LABEL)),
    "sigmoid": given(losses.SigmoidBCELoss, (PRED, HALF), binary(PRED, HALF)),
    "from sigmoid": given(
        losses.SigmoidBCELoss, (sigmoid(PRED), HALF), binary(PRED, HALF), from_sigmoid=True
    ),
    "softmax": given(
        losses.SoftmaxCELoss, (PRED, CLASSES), -log_softmax(PRED)[ROWS, CLASSES][:, None]
    ),
    "dense softmax": given(
        losses.SoftmaxCELoss,
        (PRED, PROBABILITIES),
        -(log_softmax(PRED) * PROBABILITIES).sum(1, keepdims=True),
        sparse_label=False,
    ),
    "softmax from logits": given(
        losses.SoftmaxCELoss,
        (log_softmax(PRED), CLASSES),
        -log_softmax(PRED)[ROWS, CLASSES][:, None],
        from_logits=True,
    ),
    "huber": given(losses.HuberLoss, (PRED, LABEL), huber(0.7), rho=0.7),
    "hinge": given(losses.HingeLoss, (PRED, SIGNS), np.maximum(0, 1 - PRED * SIGNS)),
    "squared hinge": given(
        losses.SquaredHingeLoss, (PRED, SIGNS), np.maximum(0, 1 - PRED * SIGNS) ** 2
    ),
    "logistic": given(losses.LogisticLoss, (PRED, SIGNS), np.log(1 + np.exp(-PRED * SIGNS))),
    "binary logistic": given(
        losses.LogisticLoss, (PRED, HALF), binary(PRED, HALF), label_format="binary"
    ),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("hybrid", [False, True])
def test_elementwise_losses_match_numpy(name, hybrid):
    make, options, arrays, expected = ELEMENTWISE[name]
    loss = make(**options)
    loss.hybridize(hybrid)
    arrays = [mx.nd.array(array, dtype="float32") for array in arrays]
    np.testing.assert_allclose(loss(*arrays).asnumpy(), expected.mean(1), rtol=2e-5, atol=1e-6)
    weighted = loss(*arrays, mx.nd.array(WEIGHTS))
    np.testing.assert_allclose(
        weighted.asnumpy(), (expected * WEIGHTS).mean(1), rtol=2e-5, atol=1e-6
    )


def test_loss_applies_weight_and_batch_axis():
    arrays = [mx.nd.array(PRED), mx.nd.array(LABEL)]
    error = np.abs(PRED - LABEL)
    np.testing.assert_allclose(
        losses.L1Loss(weight=3)(*arrays).asnumpy(), 3 * error.mean(1), rtol=1e-5
    )
    np.testing.assert_allclose(
        losses.L1Loss(batch_axis=1)(*arrays).asnumpy(), error.mean(0), rtol=1e-5
    )
    assert repr(losses.L1Loss(batch_axis=1)) == "L1Loss(batch_axis=1, w=None)"
    with pytest.raises(AssertionError, match="number"):
        losses.L1Loss(weight="much")(*arrays)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    "loss, shapes, hint",
    [
        (losses.L2Loss(), [(4, 1), (4, 1), (4,)], r"to \(4, 4\).* here to \(4, 1\) itself"),
        (losses.L2Loss(), [(4, 3, 2), (4, 3, 2), (4, 1, 1, 1)], r"here to \(4, 1, 1\)"),
        (losses.SoftmaxCELoss(), [(4, 4, 5), (4, 4), (4, 4)], r"to \(4, 4, 4\)"),
        (losses.SoftmaxCELoss(), [(1, 3, 5), (1, 3), (1, 3)], r"here to \(1, 3, 1\) itself"),
        (losses.CosineEmbeddingLoss(), [(4, 5), (4, 5), (4,), (4,)], r"broadcasts to \(4, 1\)"),
        (losses.CTCLoss(), [(4, 5, 6), (4, 2), None, None, (4, 1)], r"broadcasts to \(4,\)"),
    ],
)
def test_weights_that_extend_the_loss_warn(loss, shapes, hint, hybrid):
    loss.hybridize(hybrid)
    arrays = [shape and mx.nd.ones(shape) for shape in shapes]
    with pytest.warns(UserWarning, match=hint):
        loss(*arrays)


@pytest.mark.parametrize(
    "loss, shapes",
    [
        (losses.SoftmaxCELoss(), [(4, 4, 5), (4, 4), (4, 4, 1)]),
        (losses.SoftmaxCELoss(), [(4, 4, 5), (4, 4), (4, 1, 1)]),
        (losses.SoftmaxCELoss(), [(4, 4, 5), (4, 4), (1,)]),
        (losses.L1Loss(), [(4, 5), (4, 5), (5,)]),
        (losses.CTCLoss(), [(4, 5, 6), (4, 2), None, None, (4,)]),
    ],
)
def test_weights_that_fit_the_loss_do_not_warn(loss, shapes, recwarn):
    loss(*[shape and mx.nd.ones(shape) for shape in shapes])
    assert not recwarn


def test_sigmoid_bce_loss_applies_pos_weight():
    factor = np.array([[1, 2, 3, 4, 5]], dtype="float32")
    expected = -(factor * HALF * np.log(sigmoid(PRED)) + (1 - HALF) * np.log(1 - sigmoid(PRED)))
    arrays = [mx.nd.array(array) for array in (PRED, HALF)]
    found = losses.SigmoidBCELoss()(*arrays, None, mx.nd.array(factor))
    np.testing.assert_allclose(found.asnumpy(), expected.mean(1), rtol=2e-5)
    arrays[0] = mx.nd.array(sigmoid(PRED))
    found = losses.SigmoidBCELoss(from_sigmoid=True)(*arrays, None, mx.nd.array(factor))
    np.testing.assert_allclose(found.asnumpy(), expected.mean(1), rtol=2e-4)


def test_softmax_loss_supports_any_axis():
    pred = draw.normal(size=(2, 5, 3)).astype("float32")
    label = draw.randint(0, 5, (2, 3))
    logs = log_softmax(pred, 1)
    expected = -np.array([[logs[i, label[i, j], j] for j in range(3)] for i in range(2)]).mean(1)
    found = losses.SoftmaxCELoss(axis=1)(mx.nd.array(pred), mx.nd.array(label))
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)


def test_softmax_cross_entropy_gradient_matches_numpy():
    pred = mx.nd.array(PRED)
    pred.attach_grad()
    with autograd.record():
        loss = losses.SoftmaxCELoss()(pred, mx.nd.array(CLASSES))
    loss.backward()
    expected = np.exp(log_softmax(PRED))
    expected[ROWS, CLASSES] -= 1
    np.testing.assert_allclose(pred.grad.asnumpy(), expected, rtol=1e-4, atol=1e-6)


def test_kl_divergence_loss_matches_numpy():
    logs = log_softmax(PRED)
    expected = (PROBABILITIES * (np.log(PROBABILITIES + 1e-12) - logs)).sum(1)
    label = mx.nd.array(PROBABILITIES)
    np.testing.assert_allclose(
        losses.KLDivLoss()(mx.nd.array(logs), label).asnumpy(), expected, rtol=1e-5
    )
    found = losses.KLDivLoss(from_logits=False)(mx.nd.array(PRED), label)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)


def test_triplet_loss_matches_numpy():
    third = draw.normal(size=(4, 5)).astype("float32")
    expected = np.maximum(0, ((LABEL - PRED) ** 2 - (third - PRED) ** 2).sum(1) + 1)
    found = losses.TripletLoss()(*[mx.nd.array(array) for array in (PRED, LABEL, third)])
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5, atol=1e-5)


def test_poisson_loss_matches_numpy():
    target = draw.poisson(2, (4, 5)).astype("float32")
    arrays = [mx.nd.array(PRED), mx.nd.array(target)]
    expected = np.exp(PRED) - target * PRED
    assert losses.PoissonNLLLoss()(*arrays).asscalar() == pytest.approx(expected.mean(), rel=1e-5)
    mean = mx.nd.array(np.exp(PRED))
    found = losses.PoissonNLLLoss(from_logits=False)(mean, arrays[1])
    assert found.asscalar() == pytest.approx(expected.mean(), rel=1e-4)
    large = target > 1
    safe = np.where(large, target, 1)
    stirling = np.where(large, target * np.log(safe) - target + 0.5 * np.log(2 * np.pi * safe), 0)
    found = losses.PoissonNLLLoss(compute_full=True)(*arrays)
    assert found.asscalar() == pytest.approx((expected + stirling).mean(), rel=1e-5)


def test_cosine_embedding_loss_matches_numpy():
    label = np.array([1, -1, 1, -1], dtype="float32")
    cosine = (PRED * LABEL).sum(1) / np.linalg.norm(PRED, axis=1) / np.linalg.norm(LABEL, axis=1)
    expected = np.where(label == 1, 1 - cosine, np.maximum(0, cosine - 0.1))
    found = losses.CosineEmbeddingLoss(margin=0.1)(
        *[mx.nd.array(array) for array in (PRED, LABEL, label)]
    )
    np.testing.assert_allclose(found.asnumpy().ravel(), expected, rtol=1e-4, atol=1e-6)


def test_losses_stay_finite_for_large_logits():
    far = mx.nd.array([[1000.0, -1000.0]])
    for loss in (losses.SigmoidBCELoss(), losses.LogisticLoss()):
        assert np.isfinite(loss(far, mx.nd.array([[0.0, 1.0]])).asnumpy()).all()
    assert np.isfinite(losses.SoftmaxCELoss()(far, mx.nd.array([1])).asnumpy()).all()


@pytest.mark.parametrize("hybrid", [False, True])
def test_sdml_loss_matches_numpy(hybrid):
    loss = losses.SDMLLoss(smoothing_parameter=0.2)
    if hybrid:
        loss.hybridize()
    a, b = np.random.RandomState(0).uniform(-1, 1, (2, 4, 3)).astype("float32")
    logits = -((a[:, None] - b[None]) ** 2).sum(axis=2)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    labels = np.full((4, 4), 0.2 / 3)
    np.fill_diagonal(labels, 0.8)
    expected = (labels * (np.log(labels) - logs)).sum(axis=1)
    np.testing.assert_allclose(loss(mx.nd.array(a), mx.nd.array(b)).asnumpy(), expected, rtol=1e-5)
    with pytest.raises(AssertionError, match="the same shape"):
        losses.SDMLLoss()(mx.nd.ones((2, 3)), mx.nd.ones((2, 4)))
    with pytest.raises(AssertionError, match="two pairs"):
        losses.SDMLLoss()(mx.nd.ones((1, 3)), mx.nd.ones((1, 3)))
