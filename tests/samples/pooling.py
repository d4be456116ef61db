"""Samples of pooling. The references are plain loops over windows."""

import itertools

import numpy as np

from samples.base import Sample
from samples.convolution import laid_out, tuple_of


def pooling(
    data,
    kernel=(),
    pool_type="max",
    global_pool=False,
    pooling_convention="valid",
    stride=(),
    pad=(),
    p_value=None,
    count_include_pad=True,
):
    n = data.ndim - 2
    kernel = data.shape[2:] if global_pool else kernel
    stride, pad = tuple_of(stride, 1, n), tuple_of(pad, 0, n)
    if pooling_convention == "same":
        out = tuple(-(-i // s) for i, s in zip(data.shape[2:], stride))
    else:
        steps = [(i + 2 * p - k, s) for i, p, k, s in zip(data.shape[2:], pad, kernel, stride)]
        out = tuple(1 + (-(-d // s) if pooling_convention == "full" else d // s) for d, s in steps)
    result = np.zeros(data.shape[:2] + out)
    for at in itertools.product(*map(range, out)):
        begin = [a * s - p for a, s, p in zip(at, stride, pad)]
        end = [min(b + k, i + p) for b, k, i, p in zip(begin, kernel, data.shape[2:], pad)]
        counted = np.prod([e - b for b, e in zip(begin, end)])
        cut = tuple(slice(max(b, 0), min(e, i)) for b, e, i in zip(begin, end, data.shape[2:]))
        window = data[(slice(None), slice(None)) + cut]
        window = window.reshape(data.shape[:2] + (int(np.prod(window.shape[2:])),))
        if not count_include_pad:
            counted = window.shape[-1]
        if pool_type == "max":
            value = window.max(-1)
        elif pool_type == "lp":
            value = (window**p_value).sum(-1)
            value = np.cbrt(value) if p_value == 3 else value ** (1 / p_value)
        else:
            value = window.sum(-1) / (counted if pool_type == "avg" else 1)
        result[(slice(None), slice(None)) + at] = value
    return result


def pooling_backward(grad, data, output, **params):
    """Gradient of pooling, computed from the pooling of unit arrays or of marked maxima.

    This works because pooling is piecewise linear, except for Lp.
    """
    result = np.zeros(data.shape)
    for at in itertools.product(*map(range, data.shape)):
        unit = np.zeros(data.shape)
        unit[at] = 1
        slope = (
            pooling(unit, **params)
            if params.get("pool_type", "max") != "max"
            else pooling_at_max(unit, data, **params)
        )
        result[at] = (slope * grad).sum()
    return result


def pooling_at_max(values, data, **params):
    """Gathers `values` at the maxima of `data` by adding a tiny multiple of them.

    The elements of `data` must be well separated.
    """
    return (pooling(data + 1e-6 * values, **params) - pooling(data, **params)) / 1e-6


def distinct(*shape):
    """Values separated enough that a small change does not move the maximum."""
    return (
        np.random.RandomState(3).permutation(int(np.prod(shape))).reshape(shape)
        / np.prod(shape)
        * 2.0
        - 1.0
    )


def pool(shape, name, dtypes=("float32", "float64", "float16"), **params):
    return Sample(
        [shape],
        params,
        laid_out(pooling),
        name=name,
        grad2=params.get("pool_type", "max") in ("avg", "sum"),
        dtypes=dtypes,
    )


# Positions in 3x3 windows that are inside the data everywhere, or none (255).
WHICH = np.random.RandomState(4).choice([4, 5, 7, 8, 255], (2, 3, 2, 5)).astype(np.uint8)


def from_index(grad, index, kernel, stride, pad, shape):
    result = np.zeros(shape)
    for n, y, x, c in itertools.product(*map(range, grad.shape)):
        if index[n, y, x, c] != 255:
            a, b = divmod(int(index[n, y, x, c]), kernel[1])
            result[n, y * stride[0] - pad[0] + a, x * stride[1] - pad[1] + b, c] += grad[n, y, x, c]
    return result


SAMPLES = {
    "_backward_Pooling": [
        Sample(
            [(1, 2, 2, 2), distinct(1, 2, 4, 4), (1, 2, 2, 2)],
            dict(kernel=(2, 2), stride=(2, 2)),
            pooling_backward,
            grad=[0],
            grad2=True,
            dtypes=("float64",),
            rtol=1e-6,
            atol=1e-8,
            name="max",
        ),
        Sample(
            [(1, 2, 2, 2), (1, 2, 4, 4), (1, 2, 2, 2)],
            dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg"),
            pooling_backward,
            grad=[0],
            grad2=True,
            name="avg",
        ),
        Sample(
            [(1, 2, 2, 2), distinct(1, 4, 4, 2), (1, 2, 2, 2)],
            dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1), layout="NHWC"),
            laid_out(pooling_backward, False),
            grad=[0],
            grad2=True,
            dtypes=("float64",),
            rtol=1e-6,
            atol=1e-8,
            name="max_last",
        ),
    ],
    "_pooling_at_max": [
        Sample(
            [(1, 2, 4, 4), distinct(1, 2, 4, 4)],
            dict(kernel=(2, 2)),
            pooling_at_max,
            grad=[0],
            grad2=True,
            dtypes=("float64",),
            rtol=1e-6,
            atol=1e-8,
            name="max",
        ),
    ],
    "Pooling": [
        Sample(
            [distinct(2, 6, 5, 2)],
            dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1), layout="NHWC"),
            laid_out(pooling),
            grad=[0],
            grad2=True,
            name="max_last",
        ),
        Sample(
            [distinct(2, 7, 3)],
            dict(kernel=(3,), stride=(2,), layout="NWC"),
            laid_out(pooling),
            grad=[0],
            name="max_last_one_axis",
        ),
        pool(
            (2, 4, 4, 70),
            "avg_last",
            kernel=(3, 3),
            stride=(2, 2),
            pad=(1, 1),
            pool_type="avg",
            layout="NHWC",
        ),
        pool(
            (1, 3, 4, 4, 2),
            "avg_last_exclude_pad",
            kernel=(2, 3, 3),
            pad=(1, 1, 1),
            pool_type="avg",
            count_include_pad=False,
            layout="NDHWC",
        ),
        pool((2, 3, 4, 5), "avg_last_global", global_pool=True, pool_type="avg", layout="NHWC"),
        Sample(
            [(2, 5, 4, 2)],
            dict(kernel=(2, 2), pool_type="lp", p_value=2, layout="NHWC"),
            laid_out(pooling),
            name="l2_last",
        ),
        Sample(
            [distinct(2, 2, 7)],
            dict(kernel=(3,), stride=(2,)),
            pooling,
            grad=[0],
            name="max_one_axis",
        ),
        Sample(
            [distinct(2, 2, 6, 5)],
            dict(kernel=(2, 2), stride=(2, 2)),
            pooling,
            grad=[0],
            grad2=True,
            name="max",
        ),
        Sample(
            [distinct(2, 2, 5, 5)],
            dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1), pooling_convention="full"),
            pooling,
            grad=[0],
            name="max_full_pad",
        ),
        Sample(
            [distinct(1, 2, 4, 3, 5)],
            dict(kernel=(2, 2, 2)),
            pooling,
            grad=[0],
            name="max_three_axes",
        ),
        Sample(
            [distinct(2, 3, 4, 4)], dict(global_pool=True), pooling, grad=[0], name="max_global"
        ),
        Sample(
            [distinct(2, 2, 5)],
            dict(kernel=(2,), stride=(2,), pad=(0, 0, 0), pooling_convention="same"),
            pooling,
            grad=[0],
            name="max_same",
        ),
        pool((2, 2, 6, 5), "avg", kernel=(2, 3), stride=(2, 2), pool_type="avg"),
        pool((2, 2, 5, 5), "avg_pad", kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg"),
        pool(
            (2, 2, 5, 5),
            "avg_exclude_pad",
            kernel=(3, 3),
            stride=(2, 2),
            pad=(1, 1),
            pool_type="avg",
            count_include_pad=False,
        ),
        pool(
            (2, 2, 6, 6),
            "avg_full",
            kernel=(3, 3),
            stride=(2, 2),
            pool_type="avg",
            pooling_convention="full",
        ),
        pool((2, 3, 4, 4), "avg_global", global_pool=True, pool_type="avg"),
        pool((2, 2, 6), "sum", kernel=(3,), pool_type="sum"),
        Sample([(2, 2, 5, 4)], dict(kernel=(2, 2), pool_type="lp", p_value=2), pooling, name="l2"),
        Sample(
            [(2, 2, 5)],
            dict(kernel=(2,), pool_type="lp", p_value=3),
            pooling,
            ranges=[(0.5, 1)],
            name="l3",
        ),
        pool((0, 2, 6, 5), "no_rows", kernel=(2, 2)),
    ],
    "Pooling_v1": [
        Sample(
            [distinct(2, 3, 7, 6)],
            dict(kernel=(3, 2), pool_type=pool_type, pooling_convention=convention, stride=(2, 2)),
            pooling,
            name=f"{pool_type}_{convention}",
        )
        for pool_type in ("max", "avg", "sum")
        for convention in ("valid", "full")
    ]
    + [Sample([(1, 2, 3, 4)], dict(global_pool=True, pool_type="avg"), pooling, name="global")],
    "_max_pooling_channels_last": [
        Sample(
            [distinct(2, 6, 5, 3)],
            dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1), layout="NHWC"),
            laid_out(pooling),
            name="two_axes",
        ),
        Sample(
            [distinct(1, 7, 70)],
            dict(kernel=(3,), stride=(2,), layout="NWC", pooling_convention="full"),
            laid_out(pooling),
            name="one_axis",
        ),
        Sample(
            [distinct(2, 3, 4, 5, 2)],
            dict(global_pool=True, layout="NDHWC"),
            laid_out(pooling),
            name="global",
        ),
        Sample(
            [(0, 6, 5, 3)], dict(kernel=(3, 3), layout="NHWC"), laid_out(pooling), name="no_rows"
        ),
    ],
    "_backward_max_pooling_channels_last": [
        Sample(
            [(2, 3, 2, 5), WHICH],
            dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1), shape=(2, 6, 4, 5)),
            from_index,
            grad=False,
            name="plain",
        ),
    ],
}
