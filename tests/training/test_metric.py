"""Metrics: MXNet's values, local and global sums, configs, and invalid arguments."""

import copy
import math

import numpy as np
import pytest

import mpgluon as mx

PROBABILITIES = np.array(
    [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4], [0.25, 0.5, 0.25]], "float32"
)
CLASSES = np.array([0, 1, 0, 2], "float32")
BINARY = [
    (
        np.array([0, 1, 1, 1, 0], "float32"),
        np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.7, 0.3], [0.45, 0.55]], "float32"),
    ),
    (np.array([1, 1, 0], "float32"), np.array([[0.2, 0.8], [0.6, 0.4], [0.3, 0.7]], "float32")),
]
MULTI = [(CLASSES, PROBABILITIES), (CLASSES[::-1].copy(), PROBABILITIES)]
VALUES = np.array([0.5, -1.0, 2.0, 3.5], "float32")
TARGETS = np.array([0.25, -0.5, 2.5, 3.0], "float32")
REGRESSION = [(TARGETS, VALUES), (TARGETS * 2, VALUES)]

# name, options, updates, and MXNet 1.9.1's values after the first update, after reset_local and
# the remaining updates, and globally.
CASES = [
    ("acc", {}, MULTI, [0.5, 0.0, 0.25]),
    ("top_k_accuracy", {"top_k": 2}, MULTI, [0.75, 0.25, 0.5]),
    ("f1", {}, BINARY, [0.6666666666666666, 0.5, 0.5833333333333333]),
    ("f1", {"average": "micro"}, BINARY, [0.6666666666666666, 0.5, 0.6]),
    ("mcc", {}, BINARY, [0.16666666666666666, -0.5, -0.16666666666666669]),
    ("mcc", {"average": "micro"}, BINARY, [0.16666666666666666, -0.5, -0.06666666666666667]),
    (
        "perplexity",
        {"ignore_label": None},
        MULTI,
        [2.373681039062061, 6.042750915419798, 3.787289699997465],
    ),
    (
        "perplexity",
        {"ignore_label": 0},
        MULTI,
        [2.581988915604924, 5.77350281925045, 3.860974007102151],
    ),
    ("mae", {}, REGRESSION, [0.4375, 1.375, 0.90625]),
    ("mse", {}, REGRESSION, [0.203125, 3.8125, 2.0078125]),
    ("rmse", {}, REGRESSION, [0.45069390535354614, 1.9525624513626099, 1.201628178358078]),
    ("ce", {}, MULTI, [0.8644419312477112, 1.7988593578338623, 1.3316506445407867]),
    ("nll_loss", {}, MULTI, [0.8644419312477112, 1.7988593578338623, 1.3316506445407867]),
    ("pearsonr", {}, REGRESSION, [0.9681411556675489, 0.9681411556675489, 0.9681411556675489]),
    ("pcc", {}, MULTI, [0.3, -0.5, -0.1]),
]


def pair(update):
    return [mx.nd.array(update[0])], [mx.nd.array(update[1])]


@pytest.mark.parametrize(
    "name,options,updates,expected",
    CASES,
    ids=[f"{c[0]}-{'-'.join(map(str, c[1].values()))}" for c in CASES],
)
def test_metrics_match_mxnet(name, options, updates, expected):
    """Also of a metric created from the config, which, as in MXNet, has no `average`."""
    metric = mx.metric.create(name, **options)
    from_config = mx.metric.create(metric.get_config())
    from_config.update(*pair(updates[0]))
    assert from_config.get()[1] == pytest.approx(expected[0], rel=1e-5)
    assert math.isnan(metric.get()[1])
    metric.update(*pair(updates[0]))
    first = metric.get()[1]
    metric.reset_local()
    for update in updates[1:]:
        metric.update(*pair(update))
    assert [first, metric.get()[1], metric.get_global()[1]] == pytest.approx(expected, rel=1e-5)
    metric.reset()
    assert math.isnan(metric.get()[1]) and math.isnan(metric.get_global()[1])


def test_pearson_micro_sees_all_values_together():
    metric = mx.metric.create("pearsonr", average="micro")
    metric.update(*pair((TARGETS, VALUES)))
    metric.update(*pair((TARGETS * 2 + 100, VALUES)))
    together = np.corrcoef(np.r_[TARGETS, TARGETS * 2 + 100], np.r_[VALUES, VALUES])[0, 1]
    assert metric.get()[1] == pytest.approx(together, rel=1e-6)


def test_loss_metric_and_its_aliases_average():
    for name in ("loss", "torch", "caffe"):
        metric = mx.metric.create(name)
        metric.update(None, mx.nd.array(VALUES))
        metric.update(None, [mx.nd.array([[1.0, 2.0]])])
        assert metric.get() == (name, pytest.approx((VALUES.sum() + 3) / 6))


def test_composite_metric_reports_all_children():
    metric = mx.metric.create(["acc", mx.metric.create("ce")])
    metric.update(*pair(MULTI[0]))
    assert metric.get_name_value() == [
        ("accuracy", 0.5),
        ("cross-entropy", pytest.approx(0.86444193)),
    ]
    assert metric.get_metric(0).name == "accuracy"
    with pytest.raises(IndexError):
        metric.get_metric(2)
    metric.reset()
    assert math.isnan(metric.get()[1][0])


@pytest.mark.parametrize(
    "names, values, expected",
    [
        (["a", "b"], np.array([1.0, 2.0]), [("a", 1), ("b", 2)]),
        (("a", "b"), (1.0, 2.0), [("a", 1), ("b", 2)]),
        (("ab",), mx.nd.array([1.0]), [("ab", 1)]),
        ("ab", np.float32(1), [("ab", 1)]),
        ("ab", np.array(1.0), [("ab", 1)]),
        ("ab", mx.nd.ones(()), [("ab", 1)]),
    ],
)
def test_composite_metric_flattens_children_with_several_values(names, values, expected):
    class Several(mx.metric.EvalMetric):
        def get(self):
            return names, values

        def update(self, labels, preds):
            pass

    metric = mx.metric.CompositeEvalMetric([Several("several"), mx.metric.Loss()])
    metric.update(None, mx.nd.array([3]))
    assert metric.get_name_value() == [*expected, ("loss", 3)]
    assert metric.get_global_name_value() == [*expected, ("loss", 3)]


@pytest.mark.parametrize(
    "name", ["mse", "rmse", "mae", "ce", "nll_loss", "loss", "pearsonr", "acc"]
)
def test_metric_sums_do_not_drift(name):
    """3000 identical updates have the mean of one."""
    metric, alone = mx.metric.create(name), mx.metric.create(name)
    random = np.random.RandomState(0)
    label = mx.nd.array(
        random.randint(0, 3, 3)
        if name in ("ce", "nll_loss", "acc")
        else random.uniform(0, 1, (3, 3))
    )
    pred = mx.nd.array(random.uniform(0.1, 0.4, (3, 3)))
    alone.update([label], [pred])
    for _ in range(3000):
        metric.update([label], [pred])
    assert metric.get()[1] == pytest.approx(alone.get()[1], rel=1e-12)
    assert metric.get_global()[1] == pytest.approx(alone.get()[1], rel=1e-12)
    assert all(type(total) is float for total in (metric.sum_metric, metric.global_sum_metric))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_precision_values_do_not_overflow(dtype):
    pred, label = mx.nd.full((300, 2), 400, dtype=dtype), mx.nd.zeros((300, 2), dtype=dtype)
    for name, expected in {"mse": 160000, "mae": 400, "rmse": 400, "loss": 400}.items():
        metric = mx.metric.create(name)
        metric.update([label], [pred])
        assert metric.get()[1] == pytest.approx(expected)
    metric = mx.metric.create("ce")
    metric.update([mx.nd.zeros((300,))], [label])
    assert metric.get()[1] == pytest.approx(-np.log(1e-12), rel=1e-6)


def test_custom_metric_calls_the_function():
    metric = mx.metric.np(lambda label, pred: float(np.abs(label - pred).max()))
    metric.update(*pair(REGRESSION[0]))
    assert metric.get() == ("custom(<lambda>)", pytest.approx(0.5))
    metric = mx.metric.create(lambda label, pred: (float((label == pred).sum()), len(label)))
    metric.update([mx.nd.array([1, 2, 3])], [mx.nd.array([1, 0, 3])])
    assert metric.get()[1] == pytest.approx(2 / 3)
    with pytest.raises(NotImplementedError):
        metric.get_config()


def test_update_dict_selects_by_name():
    metric = mx.metric.Accuracy(output_names=["p"], label_names=["l"])
    metric.update_dict(
        {"l": mx.nd.array(CLASSES), "x": None}, {"q": None, "p": mx.nd.array(PROBABILITIES)}
    )
    assert metric.get()[1] == 0.5


def test_metric_accepts_predictions_on_another_device():
    metric = mx.metric.Perplexity(None)
    metric.update([mx.nd.array(CLASSES)], [mx.nd.array(PROBABILITIES, ctx=mx.cpu(1))])
    assert metric.get()[1] == pytest.approx(2.373681, rel=1e-5)


@pytest.mark.parametrize("name", ["f1", "mcc"])
def test_binary_metrics_expose_counts(name):
    metric = mx.metric.create(name, average="micro")
    for update in BINARY:
        metric.reset_local()
        metric.update(*pair(update))
    counts = metric.metrics
    assert (counts.precision, counts.recall, counts.total_examples) == (0.5, 0.5, 3)
    assert counts.global_precision == counts.global_recall == 3 / 5
    assert (counts.global_true_positives, counts.global_total_examples) == (3, 8)
    assert counts.global_matthewscc() == pytest.approx(3 / 5 - 2 / 3)
    if name == "f1":
        assert counts.fscore == metric.get()[1] and counts.global_fscore == metric.get_global()[1]
    again = copy.deepcopy(metric)
    metric.reset()
    assert counts.global_precision == counts.total_examples == 0
    assert again.metrics.global_true_positives == 3
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        counts.other
    macro = mx.metric.create(name)
    macro.update(*pair(BINARY[0]))
    assert macro.metrics.total_examples == macro.metrics.global_total_examples == 0


def test_pcc_exposes_confusion_matrices():
    metric = mx.metric.PCC()
    metric.update([mx.nd.array([0, 1, 2])], [mx.nd.array([0, 2, 2])])
    metric.reset_local()
    metric.update([mx.nd.array([1])], [mx.nd.array([0])])
    assert metric.lcm.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert metric.gcm.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 1]]


def update(metric, labels, preds):
    metric = mx.metric.create(metric) if isinstance(metric, str) else metric
    metric.update([mx.nd.zeros(labels)], [mx.nd.zeros(preds)])


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (lambda: mx.metric.create("acc").update([mx.nd.zeros(2)], []), ValueError, "number of lab"),
        (
            lambda: mx.metric.create("f1").update([mx.nd.array([0, 1, 2])], [mx.nd.zeros((3, 2))]),
            ValueError,
            "F1 supports two classes",
        ),
        (lambda: mx.metric.create("acccuracy"), AssertionError, "unknown metric"),
        (lambda: mx.metric.create(None), AssertionError, "got NoneType"),
        (lambda: mx.metric.create(mx.metric.Accuracy(), axis=2), AssertionError, "further argum"),
        (lambda: mx.metric.TopKAccuracy(1), AssertionError, "2 or more"),
        (lambda: update(mx.metric.TopKAccuracy(2), 2, (2, 2, 2)), AssertionError, "2 dimensions"),
        (lambda: update(mx.metric.Perplexity(None), 3, (2, 2)), AssertionError, "Perplexity: lab"),
        (lambda: mx.metric.Perplexity(None).update([1], []), AssertionError, "number of labels"),
        (lambda: update("ce", 3, (2, 2)), AssertionError, r"CrossEntropy: .*\(3,\).*\(2, 2\)"),
        (lambda: update("nll_loss", 3, 3), AssertionError, r"NegativeLog.*\(3, classes\).*\(3,\)"),
        (lambda: update("f1", 3, 3), ValueError, r"F1: labels of shape \(3,\) need .*\(3,\)"),
        (lambda: update("mcc", 3, (2, 2)), ValueError, r"MCC: .*\(3, classes\), got \(2, 2\)"),
        (lambda: update("pcc", 3, 2), ValueError, r"PCC: .*\(3, classes\), got \(2,\)"),
        (lambda: update("pcc", 3, (2, 2)), ValueError, "PCC: "),
        (lambda: update("mae", (7, 2), (7, 3)), ValueError, r"MAE: .*\(7, 2\) and \(7, 3\)"),
        (lambda: update("rmse", 7, (8, 3)), ValueError, r"RMSE: .*\(7, 1\) and \(8, 3\)"),
        (
            lambda: mx.metric.create("ce").update([mx.nd.array([0, 5])], [mx.nd.ones((2, 5))]),
            IndexError,
            "CrossEntropy: label 5 is out of range.* 5 classes",
        ),
        (
            lambda: mx.metric.create("nll_loss").update([mx.nd.array([-6])], [mx.nd.ones((1, 5))]),
            IndexError,
            "NegativeLogLikelihood: .*label -6",
        ),
    ],
)
def test_metrics_reject_invalid_arguments(wrong, error, words):
    with pytest.raises(error, match=words) as caught:
        wrong()
    assert isinstance(caught.value, mx.MXNetError)


def test_metrics_accept_multi_axis_and_negative_labels():
    """As in MXNet, labels may have several axes, and negative ones count from the last class."""
    f1 = mx.metric.F1()
    f1.update([mx.nd.ones((2, 3))], [mx.nd.array(np.arange(12).reshape(2, 2, 3))])
    assert f1.get()[1] == 1
    ce = mx.metric.create("ce")
    ce.update([mx.nd.array([-1])], [mx.nd.array([[0.0, 1.0]])])
    assert ce.get()[1] == pytest.approx(0)


def test_metric_configs_have_mxnets_keys():
    for name in ("f1", "mcc", "pearsonr"):
        keys = set(mx.metric.create(name).get_config())
        assert keys == {"metric", "name", "output_names", "label_names"}


@pytest.mark.parametrize("label_dtype", ["float32", "int32"])
def test_accuracy_of_half_scores_counts_classes_beyond_2048(label_dtype):
    classes = [4097, 2049, 3001]
    scores = np.zeros((3, 5000), "float16")
    scores[range(3), classes] = 1
    metric = mx.metric.Accuracy()
    metric.update([mx.nd.array(classes, dtype=label_dtype)], [mx.nd.array(scores, dtype="float16")])
    assert metric.get()[1] == 1.0
