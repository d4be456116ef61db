"""Samples of the softmax family."""

import numpy as np

from samples.base import Sample

HALVES = ("float32", "float64", "float16", "bfloat16")
LABELS = np.array([0, 3, 2], "int32")


def softmax(x, length=None, axis=-1, temperature=None, dtype=None, use_length=False):
    x = x / (1 if temperature is None else temperature)
    if length is not None:
        place = np.moveaxis(
            np.broadcast_to(np.arange(x.shape[axis]), np.moveaxis(x, axis, -1).shape), -1, axis
        )
        x = np.where(place < np.expand_dims(length, axis), x, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True))
        return np.nan_to_num(e / e.sum(axis, keepdims=True))


def softmin(x, **params):
    return softmax(-x, **params)


def log_softmax(x, axis=-1, temperature=None, dtype=None):
    x = x / (1 if temperature is None else temperature)
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def softmax_back(grad, y, axis=-1, scale=1):
    return y * (grad - (grad * y).sum(axis, keepdims=True)) * scale


def log_softmax_back(grad, y, axis=-1, scale=1):
    return (grad - np.exp(y) * grad.sum(axis, keepdims=True)) * scale


def activation(x, mode="instance"):
    return softmax(x, axis=1 if mode == "channel" else -1)


def losses(x, label):
    places = np.clip(label.reshape(x.shape[:-1] + (1,)).astype(int), 0, x.shape[-1] - 1)
    return -np.take_along_axis(log_softmax(x), places, -1)[..., 0]


def ce_back(grad, x, label, m, log_sum):
    p = np.exp(x - m[..., None] - log_sum[..., None])
    return (p - np.eye(x.shape[-1])[np.clip(label.astype(int), 0, x.shape[-1] - 1)]) * grad[
        ..., None
    ]


SAMPLES = {
    "softmax": [
        Sample([(3, 5)], None, softmax, grad2=True, dtypes=HALVES),
        Sample([(2, 3, 4)], {"axis": 1, "temperature": 0.5}, softmax, grad2=True),
        Sample([(2, 3, 40)], {"axis": 1}, softmax, dtypes=HALVES, name="tiles"),
        Sample([(2, 700)], None, softmax, ranges=[(-30, 30)], name="long"),
        Sample([(3, 4), np.array([1, 4, 0], "int32")], {"use_length": True}, softmax, grad=[0]),
        Sample(
            [(2, 4, 3), np.array([[1, 4, 2], [3, 3, 0]], "int64")],
            {"use_length": True, "axis": 1},
            softmax,
            grad=[0],
        ),
        Sample([(3, 5)], {"dtype": "float64"}, softmax, dtypes=("float32", "float64"), rtol=1e-6),
        Sample([(0, 5)], None, None, name="empty"),
    ],
    "softmin": [
        Sample([(3, 5)], None, softmin, grad2=True),
        Sample([(3, 5)], {"axis": 0, "temperature": 2.0}, softmin),
    ],
    "log_softmax": [
        Sample([(3, 5)], None, log_softmax, grad2=True, dtypes=HALVES),
        Sample([(2, 3, 4)], {"axis": 1, "temperature": 0.5}, log_softmax, grad2=True),
        Sample([(2, 700)], None, log_softmax, ranges=[(-30, 30)], name="long"),
        Sample([(3, 0)], None, None, name="empty"),
    ],
    "_softmax_backward": [
        Sample(
            [(3, 5), (3, 5)], {"axis": -1, "scale": 0.5}, softmax_back, grad2=True, dtypes=HALVES
        ),
        Sample([(2, 5, 3), (2, 5, 3)], {"axis": 1}, softmax_back, grad2=True),
    ],
    "_log_softmax_backward": [
        Sample(
            [(3, 5), (3, 5)],
            {"axis": -1, "scale": 0.5},
            log_softmax_back,
            grad2=True,
            dtypes=HALVES,
        ),
        Sample([(2, 5, 3), (2, 5, 3)], {"axis": 1}, log_softmax_back, grad2=True),
    ],
    "SoftmaxActivation": [
        Sample([(2, 3, 4)], None, activation, grad2=True),
        Sample([(2, 3, 4)], {"mode": "channel"}, activation, grad2=True),
    ],
    "softmax_cross_entropy": [
        Sample(
            [(3, 4), LABELS],
            None,
            lambda x, label: losses(x, label).sum(keepdims=True),
            grad=[0],
            grad2=True,
        )
    ],
    "_softmax_ce": [
        Sample([(3, 4), LABELS], None, losses, grad=[0], grad2=True, dtypes=HALVES),
        Sample([(2, 3, 4), np.array([[0, 1, 2], [3, 9, -1]], "float32")], None, losses, grad=[0]),
        Sample([(0, 4), np.zeros((0,), "int32")], None, None, grad=False, name="empty"),
    ],
    "_softmax_ce_backward": [
        Sample(
            [(3,), (3, 4), LABELS, (3,), (3,)],
            None,
            ce_back,
            grad=False,
            dtypes=("float32", "float64"),
        ),
    ],
}
