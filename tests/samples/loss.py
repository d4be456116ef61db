"""Samples of output layers.

Their gradients are not the derivatives of their outputs. tests/ops/test_output_layers.py checks
them by formula.
"""

import itertools

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
    return (
        (y - hot * (1 - smooth_alpha) - (1 - hot) * smooth_alpha / (k - 1))
        * grad_scale
        * (1 if grad is None else grad)
    )


def ctc_loss(
    x, label, *lengths, use_data_lengths=False, use_label_lengths=False, blank_label="first"
):
    """Reference by enumerating all paths whose decoded labels match."""
    lengths = list(lengths)
    frames = lengths.pop(0).astype(int) if use_data_lengths else [len(x)] * x.shape[1]
    blank, padding = (0, 0) if blank_label == "first" else (x.shape[2] - 1, -1)
    counts = (
        lengths.pop(0).astype(int)
        if use_label_lengths
        else [int(np.cumprod(row != padding).sum()) for row in label]
    )
    losses = []
    for n, (steps, count) in enumerate(zip(frames, counts)):
        wanted, p = [int(k) for k in label[n, :count]], softmax(x[:steps, n])
        total = 0.0
        for path in itertools.product(range(x.shape[2]), repeat=int(steps)):
            if [
                k for k, before in zip(path, (None, *path)) if k != before and k != blank
            ] == wanted:
                total += np.prod(p[np.arange(steps), path])
        losses.append(-np.log(total) if total else 0.0)
    return np.array(losses)


def ctc_loss_back(head, x, label, *lengths, **params):
    """Gradient by finite differences."""
    result, step = np.zeros(x.shape), 1e-5
    for place in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            ends.append(ctc_loss(moved, label, *lengths, **params)[place[1]])
        result[place] = head[place[1]] * (ends[0] - ends[1]) / (2 * step)
    return result


def same(x, *_, **__):
    return x


CTC = [
    ("padded", [np.array([[1, 2], [2, 0]])], {}),
    ("last", [np.array([[0, 0], [1, -1]])], {"blank_label": "last"}),
    (
        "lengths",
        [np.array([[1, 2], [1, 1]]), np.array([3, 2]), np.array([1, 2])],
        {"use_data_lengths": True, "use_label_lengths": True},
    ),
    ("too_long", [np.array([[1, 1], [0, 0]]), np.array([2, 0])], {"use_data_lengths": True}),
    ("only_labels", [np.array([[1, 2], [2, 2]]), np.array([0, 1])], {"use_label_lengths": True}),
]


def labelled(op_reference, params=None, **more):
    """One sample per dtype, because data and labels share a dtype."""
    return [
        Sample(
            [np.random.RandomState(1).uniform(-1, 1, (3, 4)).astype(t), LABELS.astype(t)],
            params,
            op_reference,
            grad=False,
            dtypes=(t,),
            name=f"{t}-{params}",
            **more,
        )
        for t in ("float32", "float64", "float16")
    ]


def pairs(reference):
    return [
        Sample(
            [(3, 4), (3, 4)],
            {"grad_scale": 2.0},
            reference,
            grad=False,
            dtypes=("float32", "float64", "float16", "bfloat16"),
        )
    ]


def _linear_scores(data, weight, bias, softcap):
    scores = data.reshape(-1, data.shape[-1]) @ weight.T + (0 if bias is None else bias)
    return softcap * np.tanh(scores / softcap) if softcap else scores


def linear_cross_entropy(
    data, weight, label, bias=None, ignore_index=-100, z_loss=0, softcap=0, gradients=0
):
    """Returns the losses, the maxima of the scores and the logarithms of the sums."""
    scores = _linear_scores(data, weight, bias, softcap)
    chosen = np.clip(label.ravel().astype(int), 0, len(weight) - 1)
    largest = scores.max(-1)
    log_sum = np.log(np.exp(scores - largest[:, None]).sum(-1))
    total = largest + log_sum
    loss = total - scores[np.arange(len(scores)), chosen] + z_loss * total**2
    kept = label.ravel() != ignore_index
    return tuple(np.where(kept, a, 0).reshape(label.shape) for a in (loss, largest, log_sum))


def linear_cross_entropy_back(
    head, data, weight, label, largest, log_sum, bias=None, gradients=3, **params
):
    """Gradients by the formula, from the given statistics."""
    softcap = params.get("softcap", 0)
    scores = _linear_scores(data, weight, bias, softcap)
    chosen = np.clip(label.ravel().astype(int), 0, len(weight) - 1)
    total = (largest + log_sum).reshape(-1, 1)
    slope = np.exp(scores - total) * (1 + 2 * params.get("z_loss", 0) * total)
    slope -= np.eye(len(weight))[chosen]
    slope *= head.reshape(-1, 1) * (1 - (scores / softcap) ** 2 if softcap else 1)
    slope *= (label.ravel() != params.get("ignore_index", -100))[:, None]
    rows = data.reshape(-1, data.shape[-1])
    grads = ((slope @ weight).reshape(data.shape), slope.T @ rows, slope.sum(0))
    return tuple(grad for i, grad in enumerate(grads) if gradients >> i & 1)


# (name, inputs, parameters)
LINEAR = [
    ("plain", [(3, 5), (4, 5), LABELS.astype("int32")], {}),
    ("ignored", [(2, 3, 5), (4, 5), np.array([[0, -100, 2], [3, 9, -1]], "float32")], {}),
    (
        "all",
        [(2, 2, 5), (7, 5), np.array([[0, 6], [2, 5]], "int64"), (7,)],
        {"ignore_index": 2, "z_loss": 0.1, "softcap": 2.0},
    ),
]

SAMPLES = {
    "_contrib_linear_cross_entropy": [
        *(
            Sample(
                inputs,
                params,
                lambda *a, **k: linear_cross_entropy(*a, **k)[0],
                grad2=False,
                dtypes=("float32", "float64", "float16", "bfloat16"),
                name=name,
            )
            for name, inputs, params in LINEAR
        ),
        Sample([(0, 5), (4, 5), np.zeros(0, "int32")], None, None, grad=False, name="empty"),
        Sample(
            [(2, 5), (4, 5), np.full(2, -100, "int32"), (4,)],
            None,
            lambda data, weight, label, bias: np.zeros(2),
            grad2=False,
            name="all ignored",
        ),
    ],
    "_backward_linear_cross_entropy": [
        Sample(
            [label.shape, data, weight, label, label.shape, label.shape, *bias],
            {**params, "gradients": 7 if bias else 3},
            linear_cross_entropy_back,
            grad=False,
            dtypes=("float32", "float64"),
            name=name,
        )
        for name, (data, weight, label, *bias), params in LINEAR
    ],
    "SoftmaxOutput": [
        *labelled(softmax_output),
        Sample([(2, 3, 4), (2, 4)], {"multi_output": True}, softmax_output, grad=False),
        Sample([(2, 3, 4), (2, 3)], {"preserve_shape": True}, softmax_output, grad=False),
        Sample([(3, 4), (3, 4)], None, softmax_output, grad=False, name="probabilities"),
    ],
    "_backward_SoftmaxOutput": [
        *labelled(softmax_output_back, {"grad_scale": 2.0}),
        *labelled(softmax_output_back, {"smooth_alpha": 0.3}),
    ],
    "LinearRegressionOutput": pairs(same),
    "MAERegressionOutput": pairs(same),
    "LogisticRegressionOutput": pairs(lambda x, _, **__: 1 / (1 + np.exp(-x))),
    "SVMOutput": labelled(same),
    "CTCLoss": [
        Sample(
            [(4, 2, 3), *more],
            params,
            ctc_loss,
            grad=(0,),
            dtypes=("float32", "float64"),
            name=name,
        )
        for name, more, params in CTC
    ],
    "_backward_CTCLoss": [
        Sample(
            [(2,), (4, 2, 3), *more],
            params,
            ctc_loss_back,
            grad=False,
            dtypes=("float32", "float64"),
            rtol=1e-4,
            atol=1e-6,
            name=name,
        )
        for name, more, params in CTC
    ],
    "MakeLoss": [Sample([(3, 4)], {"grad_scale": 2.0}, same, grad=False)],
    "IdentityAttachKLSparseReg": [
        Sample(
            [(3, 4), (4,)],
            {"penalty": 0.5, "momentum": 0.5},
            same,
            dtypes=("float32", "float64"),
            ranges=[(0.1, 0.9), (0.1, 0.9)],
            train=True,
            grad=False,
            name="train",
        ),
        Sample([(3, 4), (4,)], None, same, dtypes=("float32", "float64"), grad=(0,)),
    ],
    "_attach_gradient": [
        Sample([(3, 4), (4,)], None, same, grad=False),
        Sample([(3, 4), (3, 4)], None, same, grad=False, name="whole"),
    ],
}
