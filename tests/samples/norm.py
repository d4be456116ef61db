"""Samples of normalization ops."""

from functools import partial

import numpy as np

from samples.base import Sample


def along(vector, ndim, axis):
    shape = [1] * ndim
    shape[axis] = -1
    return vector.reshape(shape)


def batch_norm(
    train,
    data,
    gamma,
    beta,
    moving_mean,
    moving_var,
    eps=1e-3,
    momentum=0.9,
    fix_gamma=True,
    use_global_stats=False,
    output_mean_var=False,
    axis=1,
):
    axis %= data.ndim
    rest = tuple(i for i in range(data.ndim) if i != axis)
    mean, var = moving_mean, moving_var
    if train and not use_global_stats:
        mean, var = data.mean(rest), data.var(rest)
    inverse = 1 / np.sqrt(var + eps)
    shaped = [
        along(v, data.ndim, axis)
        for v in (mean, inverse, np.ones_like(gamma) if fix_gamma else gamma, beta)
    ]
    out = (data - shaped[0]) * shaped[1] * shaped[2] + shaped[3]
    return (out, mean, inverse) if output_mean_var else out


def trained(*inputs, **params):
    return batch_norm(True, *inputs, **params)


def predicted(*inputs, **params):
    return batch_norm(False, *inputs, **params)


def alone(train, *inputs, key, ndev=1, **params):
    """SyncBatchNorm without other participants."""
    return batch_norm(train, *inputs, **params)


def batch_norm_relu(train, *inputs, add=False, **params):
    added = batch_norm(train, *inputs[:5], axis=-1, **params)
    return np.maximum(added + inputs[5] if add else added, 0)


def masked(mask, channels):
    """Decodes the mask of _batch_norm_relu into gradient factors.

    Each row holds one bit per element for values above 0, one bit per element for NaN, and one byte
    that is nonzero if the row contains NaN.
    """
    width = (channels + 7) // 8
    above, nan = (
        np.unpackbits(part.astype(np.uint8), axis=-1, bitorder="little")[:, :channels]
        for part in (mask[:, :width], mask[:, width:-1])
    )
    return np.where(nan & (mask[:, -1:] != 0), np.nan, above)


def batch_norm_relu_backward(
    grad, data, gamma, mean, inverse, mask, fix_gamma=True, batch_stats=True, add=False
):
    rows = data.reshape(-1, data.shape[-1])
    dz = grad.reshape(rows.shape) * masked(mask, rows.shape[1])
    gamma = np.ones_like(gamma) if fix_gamma else gamma
    unit = (rows - mean) * inverse
    about = (rows - rows.mean(0)) * inverse if batch_stats else unit  # see batch_norm_backward
    dx = dz - dz.mean(0) - unit * (dz * about).mean(0) if batch_stats else dz
    dgamma = np.zeros_like(gamma) if fix_gamma else (dz * about).sum(0)
    results = [(dx * inverse * gamma).reshape(data.shape), dgamma, dz.sum(0)]
    return results + ([dz.reshape(data.shape)] if add else [])


RELU_MASK = np.random.RandomState(5).randint(0, 256, (200, 21)).astype(np.uint8)
RELU_MASK[:, 20] = 0


def layer_norm(data, gamma, beta, axis=-1, eps=1e-5, output_mean_var=False):
    mean, std = data.mean(axis, keepdims=True), np.sqrt(data.var(axis, keepdims=True) + eps)
    out = (data - mean) / std * along(gamma, data.ndim, axis) + along(beta, data.ndim, axis)
    return (out, mean, std) if output_mean_var else out


def group_norm(data, gamma, beta, num_groups=1, eps=1e-5, output_mean_var=False):
    groups = data.reshape(data.shape[0], num_groups, int(np.prod(data.shape[1:])) // num_groups)
    mean, std = groups.mean(-1), np.sqrt(groups.var(-1) + eps)
    out = (groups - mean[..., None]) / std[..., None] * gamma[:, None] + beta[:, None]
    out = out.reshape(data.shape)
    return (out, mean, std) if output_mean_var else out


def instance_norm(data, gamma, beta, eps=1e-3):
    return group_norm(data, gamma, beta, data.shape[1], eps)


def l2_normalization(data, eps=1e-10, mode="instance"):
    axes = {
        "instance": tuple(range(1, data.ndim)),
        "channel": (1,),
        "spatial": tuple(range(2, data.ndim)),
    }[mode]
    return data / np.sqrt((data * data).sum(axes, keepdims=True) + eps)


def l2_normalization_backward(grad, data, norm, eps=1e-10, mode="instance"):
    axes = tuple(i for i in range(data.ndim) if norm.shape[i] != data.shape[i])
    return (grad - data * (grad * data).sum(axes, keepdims=True) / norm**2) / norm


def lrn(data, nsize, alpha=1e-4, beta=0.75, knorm=2.0):
    half = nsize // 2
    padded = np.pad(data * data, ((0, 0), (half, half), (0, 0), (0, 0)))
    total = sum(padded[:, i : i + data.shape[1]] for i in range(nsize))
    return data * (knorm + alpha / nsize * total) ** -beta


def standard_backward(grad, data, gamma, mean, deviation, axes, channel_axes, statistics=True):
    """Gradient of (data - mean) / deviation * gamma + beta, with statistics over `axes` of the
    data."""
    x = (data - mean) / deviation
    g = grad * gamma
    if statistics:
        g = g - g.mean(axes, keepdims=True) - x * (g * x).mean(axes, keepdims=True)
    return g / deviation, (grad * x).sum(channel_axes), grad.sum(channel_axes)


def batch_norm_backward(grad, data, gamma, mean, inverse, axis=1, fix_gamma=True, batch_stats=True):
    axis %= data.ndim
    rest = tuple(i for i in range(data.ndim) if i != axis)
    # The given statistics may differ from the data's. The formula uses the given ones, but products
    # are centered at the true batch mean.
    m, i, w = (
        along(v, data.ndim, axis)
        for v in (mean, inverse, np.ones_like(gamma) if fix_gamma else gamma)
    )
    centred, count = data - m, data.size / data.shape[axis]
    about = data - data.mean(rest, keepdims=True) if batch_stats else centred
    result = grad
    if batch_stats:
        result = (
            grad
            - grad.sum(rest, keepdims=True) / count
            - centred * i * i * (grad * about).sum(rest, keepdims=True) / count
        )
    dgamma = (grad * about * i).sum(rest) * (not fix_gamma)
    return result * i * w, dgamma, grad.sum(rest)


def layer_norm_backward(grad, data, gamma, mean, std, axis=-1):
    axis %= data.ndim
    rest = tuple(i for i in range(data.ndim) if i != axis)
    return standard_backward(grad, data, along(gamma, data.ndim, axis), mean, std, axis, rest)


def group_norm_backward(grad, data, gamma, mean, std, num_groups=1):
    shape = (data.shape[0], num_groups, -1)
    grad, x, std = grad.reshape(shape), data.reshape(shape), std[..., None]
    # The given statistics may differ from the data's; see batch_norm_backward.
    about = (x - x.mean(2, keepdims=True)) / std
    g = grad * gamma[:, None]
    dx = (
        g
        - g.mean(2, keepdims=True)
        - (x - mean[..., None]) / std * (g * about).mean(2, keepdims=True)
    ) / std
    return dx.reshape(data.shape), (grad * about).sum((0, 2)), grad.sum((0, 2))


def batch_norm_sample(
    shape,
    channels,
    train,
    dtypes=("float32", "float64"),
    vectors=None,
    grad=(0, 1, 2),
    name="",
    reference=batch_norm,
    **params,
):
    inputs = [shape] + (vectors or [(channels,)] * 4)
    ranges = [None, (0.5, 1.5), None, None, (0.5, 1.5)]
    return Sample(
        inputs,
        params,
        partial(reference, train),
        grad=grad,
        dtypes=dtypes,
        ranges=ranges,
        train=train,
        name=name,
        rtol=1e-4,
        atol=1e-5,
    )


FLOAT32_VECTORS = [
    np.array(v, np.float32) for v in ([1.5, 0.5, 1], [0.1, -0.2, 0.3], [0.1, 0.2, 0.3], [1, 2, 0.5])
]
# A small variance magnifies float32 errors.
LOOSE = dict(rtol=1e-4, atol=1e-5)

SAMPLES = {
    "BatchNorm": [
        batch_norm_sample((4, 3, 2, 3), 3, True, fix_gamma=False, name="train"),
        batch_norm_sample((4, 3, 2, 3), 3, False, fix_gamma=False, name="predict"),
        batch_norm_sample((4, 3, 5), 3, True, grad=(0, 2), name="fix_gamma"),
        batch_norm_sample(
            (4, 3, 2, 3), 3, True, fix_gamma=False, use_global_stats=True, name="global_stats"
        ),
        batch_norm_sample((9, 5), 5, True, fix_gamma=False, name="columns"),
        batch_norm_sample((9, 5), 5, False, fix_gamma=False, name="columns_predict"),
        batch_norm_sample(
            (2, 3, 4, 5), 5, True, fix_gamma=False, axis=-1, eps=1e-5, name="last_axis"
        ),
        batch_norm_sample(
            (2, 3, 4, 5),
            4,
            True,
            fix_gamma=False,
            axis=2,
            output_mean_var=True,
            grad=False,
            name="mean_var",
        ),
        batch_norm_sample((300, 70), 70, True, fix_gamma=False, grad=False, name="large_columns"),
        batch_norm_sample(
            (6, 3, 80, 70), 3, True, fix_gamma=False, grad=False, name="large_planes"
        ),
        batch_norm_sample(
            (4, 3, 5),
            3,
            True,
            dtypes=("float16",),
            vectors=FLOAT32_VECTORS,
            grad=False,
            fix_gamma=False,
            name="half",
        ),
        batch_norm_sample((0, 3, 5), 3, False, fix_gamma=False, name="no_rows"),
    ],
    "_batch_norm_relu": [
        Sample(
            [(3, 2, 2, 9), (9,), (9,), (9,), (9,)],
            dict(fix_gamma=False, use_global_stats=glob),
            partial(batch_norm_relu, True),
            train=True,
            grad=(1, 2) if glob else False,
            ranges=[None] * 4 + [(0.5, 1.5)],
            dtypes=("float32", "float64"),
            name=f"global_{glob}",
            **LOOSE,
        )
        for glob in (True, False)
    ]
    + [
        Sample(
            [(40, 80), (80,), (80,), (80,), (80,), (40, 80)],
            dict(fix_gamma=False, add=True),
            partial(batch_norm_relu, True),
            train=True,
            grad=False,
            ranges=[None] * 4 + [(0.5, 1.5), None],
            dtypes=("float32", "float64"),
            name="residual",
            **LOOSE,
        ),
        Sample(
            [(2, 3, 4), (4,), (4,), (4,), (4,), (2, 3, 4)],
            dict(add=True),
            partial(batch_norm_relu, False),
            grad=False,
            ranges=[None] * 4 + [(0.5, 1.5), None],
            dtypes=("float32", "float64"),
            name="predict",
            **LOOSE,
        ),
        Sample(
            [(0, 4), (4,), (4,), (4,), (4,)],
            {},
            partial(batch_norm_relu, False),
            train=True,
            grad=False,
            ranges=[None] * 4 + [(0.5, 1.5)],
            dtypes=("float32",),
            name="no_rows",
        ),
    ],
    "_backward_batch_norm_relu": [
        Sample(
            [(5, 2, 11), (5, 2, 11), (11,), (11,), (11,), RELU_MASK[:10, 16:]],
            dict(fix_gamma=False, add=add, batch_stats=batch),
            batch_norm_relu_backward,
            grad=False,
            ranges=[None] * 4 + [(0.5, 1.5), None],
            dtypes=("float32", "float64"),
            name=f"add_{add}_batch_{batch}",
            **LOOSE,
        )
        for add in (False, True)
        for batch in (False, True)
    ]
    + [
        Sample(
            [(200, 80), (200, 80), (80,), (80,), (80,), RELU_MASK],
            dict(add=True),
            batch_norm_relu_backward,
            grad=False,
            ranges=[None] * 4 + [(0.5, 1.5), None],
            dtypes=("float32", "float64"),
            name="large",
            **LOOSE,
        ),
    ],
    "LayerNorm": [
        Sample([(4, 6), (6,), (6,)], {}, layer_norm, name="rows", **LOOSE),
        Sample([(2, 3, 5), (5,), (5,)], dict(eps=1e-3), layer_norm, name="three_axes", **LOOSE),
        Sample([(2, 4, 3), (4,), (4,)], dict(axis=1), layer_norm, name="middle_axis", **LOOSE),
        Sample([(5, 3), (5,), (5,)], dict(axis=0), layer_norm, name="first_axis", **LOOSE),
        Sample(
            [(2, 3, 4), (4,), (4,)],
            dict(output_mean_var=True),
            layer_norm,
            grad=False,
            name="mean_var",
            **LOOSE,
        ),
        Sample([(40, 650), (650,), (650,)], {}, layer_norm, grad=False, name="large", **LOOSE),
        Sample([(0, 6), (6,), (6,)], {}, layer_norm, name="no_rows"),
    ],
    "GroupNorm": [
        Sample([(2, 6, 3), (3,), (3,)], dict(num_groups=3), group_norm, name="groups", **LOOSE),
        Sample([(2, 4, 3, 2), (1,), (1,)], {}, group_norm, name="one_group", **LOOSE),
        Sample(
            [(2, 4, 3), (2,), (2,)],
            dict(num_groups=2, output_mean_var=True),
            group_norm,
            grad=False,
            name="mean_var",
            **LOOSE,
        ),
    ],
    "InstanceNorm": [
        Sample([(2, 3, 5), (3,), (3,)], {}, instance_norm, name="three_axes", **LOOSE),
        Sample(
            [(2, 3, 4, 2), (3,), (3,)], dict(eps=1e-5), instance_norm, name="four_axes", **LOOSE
        ),
        Sample([(0, 3, 5), (3,), (3,)], {}, instance_norm, name="no_rows"),
    ],
    "L2Normalization": [
        Sample([(3, 4, 2)], dict(mode=mode), l2_normalization, grad2=True, name=mode)
        for mode in ("instance", "channel", "spatial")
    ]
    + [
        Sample([(3, 4)], {}, l2_normalization, name="matrix"),
        Sample([(0, 4, 2)], {}, l2_normalization, name="no_rows"),
        Sample([(5,)], {}, l2_normalization, name="vector"),
        Sample([(2, 5, 70)], {"mode": "channel"}, l2_normalization, name="wide"),
        Sample([(2, 4500)], {}, l2_normalization, grad=False, name="long", **LOOSE),
    ],
    "_backward_L2Normalization": [
        Sample(
            [shape, shape, norms],
            {"mode": mode},
            l2_normalization_backward,
            grad=False,
            ranges=[None, None, (0.5, 1.5)],
            dtypes=("float32", "float64"),
            name=f"{mode}_{shape[-1]}",
            **LOOSE,
        )
        for mode, shape, norms in [
            ("instance", (3, 4, 2), (3, 1, 1)),
            ("instance", (2, 4500), (2, 1)),
            ("channel", (3, 4, 2), (3, 1, 2)),
            ("channel", (2, 5, 70), (2, 1, 70)),
            ("spatial", (3, 4, 2), (3, 4, 1)),
        ]
    ],
    "_backward_BatchNorm": [
        Sample(
            [(4, 3, 5), (4, 3, 5), (3,), (3,), (3,)],
            dict(fix_gamma=fix, batch_stats=batch),
            batch_norm_backward,
            grad=False,
            ranges=[None, None, None, None, (0.5, 1.5)],
            dtypes=("float32", "float64"),
            name=f"fix_{fix}_batch_{batch}",
            **LOOSE,
        )
        for fix in (True, False)
        for batch in (True, False)
    ]
    + [
        Sample(
            [(7, 5), (7, 5), (5,), (5,), (5,)],
            dict(fix_gamma=False),
            batch_norm_backward,
            grad=False,
            dtypes=("float32", "float64"),
            name="columns",
            **LOOSE,
        ),
    ],
    "_contrib_SyncBatchNorm": [
        batch_norm_sample(
            (4, 3, 2, 3), 3, True, reference=alone, fix_gamma=False, key="k", name="train"
        ),
        batch_norm_sample((4, 3), 3, True, reference=alone, grad=(0, 2), key="k", name="fix_gamma"),
        batch_norm_sample(
            (4, 3, 5), 3, False, reference=alone, fix_gamma=False, key="k", ndev=2, name="predict"
        ),
        batch_norm_sample(
            (4, 3, 5),
            3,
            True,
            reference=alone,
            use_global_stats=True,
            fix_gamma=False,
            key="k",
            ndev=2,
            name="global_stats",
        ),
    ],
    "_replicas": [
        Sample(
            [(3, 4)],
            dict(key="k", ndev=1),
            lambda x, **_: x[None],
            dtypes=("float32", "float64"),
            grad2=True,
            name="all",
        ),
        Sample(
            [(1, 3, 4)],
            dict(key="k", ndev=1, sum=True),
            lambda x, **_: x[0],
            dtypes=("float32", "float64"),
            grad2=True,
            name="sum",
        ),
    ],
    "_backward_LayerNorm": [
        Sample(
            [(4, 6), (4, 6), (6,), (4, 1), (4, 1)],
            {},
            layer_norm_backward,
            grad=False,
            ranges=[None] * 4 + [(0.5, 1.5)],
            dtypes=("float32", "float64"),
            name="rows",
            **LOOSE,
        ),
        Sample(
            [(2, 4, 3), (2, 4, 3), (4,), (2, 1, 3), (2, 1, 3)],
            dict(axis=1),
            layer_norm_backward,
            grad=False,
            ranges=[None] * 4 + [(0.5, 1.5)],
            dtypes=("float32", "float64"),
            name="middle_axis",
            **LOOSE,
        ),
    ],
    "_backward_GroupNorm": [
        Sample(
            [(2, 6, 3), (2, 6, 3), (3,), (2, 3), (2, 3)],
            dict(num_groups=3),
            group_norm_backward,
            grad=False,
            ranges=[None] * 4 + [(0.5, 1.5)],
            dtypes=("float32", "float64"),
            name="groups",
            **LOOSE,
        ),
    ],
    "LRN": [
        Sample([(2, 5, 3, 2)], dict(nsize=3, alpha=0.5, beta=0.6, knorm=1.5), lrn, name="three"),
        Sample([(1, 3, 2, 2)], dict(nsize=5, alpha=0.1), lrn, name="wider_than_channels"),
    ],
}
