"""Samples of the ops of transformers."""

import numpy as np

from samples.base import Sample


def rms_norm(data, gamma=None, eps=1e-6, offset=0):
    out = data / np.sqrt((data**2).mean(-1, keepdims=True) + eps)
    return out if gamma is None else out * (gamma + offset)


def rms_norm_backward(grad, data, rms, gamma=None, eps=1e-6, offset=0):
    scaled = grad if gamma is None else grad * (gamma + offset)
    slope = (scaled * data).mean(-1, keepdims=True) / rms**2
    result = (scaled - data * slope) / rms
    if gamma is None:
        return result
    return result, (grad * data / rms).reshape(-1, data.shape[-1]).sum(0)


def rotary(
    data, positions=None, base=10000, dims=0, style="half", layout="bthd", sign=1, **scaling
):
    x = data if layout == "bthd" else data.transpose(0, 2, 1, 3)
    pairs = (dims or x.shape[-1]) // 2
    frequencies = (base ** (-np.arange(pairs) / pairs)).astype("float32").astype("float64")
    if positions is None:
        positions = np.arange(x.shape[1])
    if scaling:
        frequencies = frequencies / scaling["factor"]
    angles = np.broadcast_to(positions, x.shape[:2])[..., None, None] * frequencies
    cosine, sine = np.cos(angles), sign * np.sin(angles)
    first = np.s_[..., :pairs] if style == "half" else np.s_[..., 0 : 2 * pairs : 2]
    second = np.s_[..., pairs : 2 * pairs] if style == "half" else np.s_[..., 1 : 2 * pairs : 2]
    out = np.array(x)
    out[first] = x[first] * cosine - x[second] * sine
    out[second] = x[second] * cosine + x[first] * sine
    return out if layout == "bthd" else out.transpose(0, 2, 1, 3)


def rotated_back(data, positions=None, **params):
    return rotary(data, positions, sign=-1, **params)


EACH = np.array([[3, 0, 7], [1000, 2, 2]], "int32")

SAMPLES = {
    "_contrib_rms_norm": [
        Sample([(4, 6), (6,)], {}, rms_norm, name="rows"),
        Sample([(2, 3, 5)], dict(eps=1e-2), rms_norm, name="without_gamma"),
        Sample([(2, 3, 7), (7,)], dict(offset=1.0), rms_norm, name="offset"),
        Sample([(40, 650), (650,)], {}, rms_norm, grad=False, name="large"),
        Sample([(3, 9000), (9000,)], {}, rms_norm, grad=False, name="wide"),
        Sample([(0, 6), (6,)], {}, rms_norm, name="no_rows"),
    ],
    "_backward_rms_norm": [
        Sample(
            [(4, 6), (4, 6), (4, 1), (6,)],
            {},
            rms_norm_backward,
            grad=False,
            ranges=[None, None, (0.5, 1.5), None],
            dtypes=("float32", "float64"),
            name="rows",
        ),
        Sample(
            [(300, 70), (300, 70), (300, 1), (70,)],
            dict(offset=1.0),
            rms_norm_backward,
            grad=False,
            ranges=[None, None, (0.5, 1.5), None],
            dtypes=("float32", "float64"),
            rtol=1e-4,
            atol=1e-4,
            name="pieces",
        ),
        Sample(
            [(4, 6), (4, 6), (4, 1)],
            {},
            rms_norm_backward,
            grad=False,
            ranges=[None, None, (0.5, 1.5)],
            dtypes=("float32", "float64"),
            name="without_gamma",
        ),
    ],
    "_contrib_rotary": [
        Sample([(2, 3, 2, 8)], {}, rotary, name="half"),
        Sample([(2, 3, 2, 8)], dict(style="pairs", base=100.0), rotary, name="pairs"),
        Sample([(2, 3, 2, 8), np.array([5, 1, 90], "int64")], {}, rotary, grad=[0], name="shared"),
        Sample([(2, 4, 3, 6), EACH], dict(layout="bhtd", dims=4), rotary, grad=[0], name="each"),
        Sample([(1, 9, 2, 64)], dict(scaling="linear", factor=4.0), rotary, name="linear"),
        Sample([(0, 3, 2, 8)], {}, rotary, name="empty"),
    ],
    "_backward_rotary": [
        Sample([(2, 3, 2, 8)], {}, rotated_back, name="half"),
        Sample([(2, 3, 2, 9), EACH], dict(dims=6), rotated_back, grad=[0], name="each"),
    ],
}
