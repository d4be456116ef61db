"""Samples of output layers. Their gradients are not those of their outputs: tests/test_output_layers.py checks them by formula."""

import numpy as np

from samples.base import Sample
from samples.softmax import softmax

LABELS = np.array([0, 3, 2])


def softmax_output(x, label, multi_output=False, preserve_shape=False, **_):
    if multi_output:
        return softmax(x, axis=1)
    return softmax(x) if preserve_shape else softmax(x.reshape(len(x), -1)).reshape(x.shape)


def softmax_output_back(y, label, grad=None, grad_scale=1.0, smooth_alpha=0.0, **_):
    k = y.shape[1]
    hot = np.eye(k)[label.astype(int)]
    return (y - hot * (1 - smooth_alpha) - (1 - hot) * smooth_alpha / (k - 1)) * grad_scale * (1 if grad is None else grad)


def svm_back(y, label, margin=1.0, regularization_coefficient=1.0, use_linear=False):
    sign = np.eye(y.shape[1])[label.astype(int)] * 2 - 1
    slope = np.where(sign * y < margin, 1 if use_linear else 2 * (margin - sign * y), 0)
    return -sign * slope * regularization_coefficient


def make_loss_back(x, grad_scale=1.0, valid_thresh=0.0, normalization="null"):
    divisor = {"null": 1, "batch": len(x), "valid": max(1, (x > valid_thresh).sum())}[normalization]
    return np.full(x.shape, grad_scale / divisor)


def same(x, *_, **__):
    return x


def labelled(op_reference, params=None, **more):
    """One sample a dtype, as data and labels share theirs."""
    return [
        Sample([np.random.RandomState(1).uniform(-1, 1, (3, 4)).astype(t), LABELS.astype(t)], params, op_reference, grad=False, dtypes=(t,), name=f"{t}-{params}", **more)
        for t in ("float32", "float64", "float16")
    ]


def pairs(reference):
    return [Sample([(3, 4), (3, 4)], {"grad_scale": 2.0}, reference, grad=False, dtypes=("float32", "float64", "float16", "bfloat16"))]


SAMPLES = {
    "SoftmaxOutput": [
        *labelled(softmax_output),
        Sample([(2, 3, 4), (2, 4)], {"multi_output": True}, softmax_output, grad=False),
        Sample([(2, 3, 4), (2, 3)], {"preserve_shape": True}, softmax_output, grad=False),
        Sample([(3, 4), (3, 4)], None, softmax_output, grad=False, name="probabilities"),
    ],
    "_backward_SoftmaxOutput": [*labelled(softmax_output_back, {"grad_scale": 2.0}), *labelled(softmax_output_back, {"smooth_alpha": 0.3})],
    "LinearRegressionOutput": pairs(same),
    "MAERegressionOutput": pairs(same),
    "LogisticRegressionOutput": pairs(lambda x, _, **__: 1 / (1 + np.exp(-x))),
    "SVMOutput": labelled(same),
    "_backward_SVMOutput": [*labelled(svm_back), *labelled(svm_back, {"use_linear": True, "margin": 0.5})],
    "MakeLoss": [Sample([(3, 4)], {"grad_scale": 2.0}, same, grad=False)],
    "_backward_MakeLoss": [Sample([(3, 4)], {"grad_scale": 2.0, "normalization": n}, make_loss_back, grad=False) for n in ("null", "batch", "valid")],
}
