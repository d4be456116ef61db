"""Samples of 8-bit quantized ops."""

import numpy as np

from samples.base import Sample

FLOAT32 = {"dtypes": ("float32",), "grad": False}


def number(x):
    return np.array([x], "float32")


def limited(x, dtype):
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x), limits.min, limits.max)


def reach(low, high):
    return max(abs(float(low)), abs(float(high)))


def by_range(x, low, high, out_type, half):
    low, high = float(np.ravel(low)[0]), float(np.ravel(high)[0])
    most, largest = reach(low, high), {"int8": 127, "uint8": 255}[out_type] + half
    ends = (-most, most) if out_type == "int8" else (low, high)
    return limited(x * largest / most, out_type), *map(number, ends)


def quantize(x, low, high, out_type="uint8"):
    return by_range(x, low, high, out_type, 0)


def quantize_v2(x, out_type="int8", min_calib_range=None, max_calib_range=None):
    low, high = (
        (x.min(), x.max()) if min_calib_range is None else (min_calib_range, max_calib_range)
    )
    if out_type == "auto":
        out_type = "uint8" if min_calib_range is not None and low >= 0 else "int8"
    return by_range(x, low, high, out_type, 0.5)


def quantize_asym(x, min_calib_range=None, max_calib_range=None):
    low, high = (
        (x.min(), x.max()) if min_calib_range is None else (min_calib_range, max_calib_range)
    )
    scale = 255 / (high - low)
    shift = 255 - high * scale
    return limited(x * scale + shift, "uint8"), number(scale), number(shift)


def dequantize(x, low, high):
    return x * (reach(low[0], high[0]) / {"int8": 127.5, "uint8": 255.5}[str(x.dtype)])


def requantize(x, low, high, out_type="int8", min_calib_range=None, max_calib_range=None):
    unit = reach(low[0], high[0]) / 2**31
    most = abs(x.astype("float64")).max() * unit
    if min_calib_range is not None:
        most = reach(min_calib_range, max_calib_range)
    largest = {"int8": 127, "uint8": 255}[out_type]
    ends = (-most if out_type == "int8" else 0, most)
    return limited(x * unit * largest / most, out_type), *map(number, ends)


RANGE = {"int8": 127.5, "uint8": 255.5}


def step(x, low, high):
    """Returns the real value of one quantization step."""
    return reach(low[0], high[0]) / RANGE[str(np.asarray(x).dtype)]


def product_ends(x, low, high, low2, high2):
    steps = reach(low[0], high[0]) / {"int8": 127, "uint8": 255}[str(x.dtype)]
    most = steps * reach(low2[0], high2[0]) / 127 * 2**31
    return number(-most), number(most)


def with_bias(sums, x, shape, arrays):
    low, high, low2, high2 = arrays[-6:-2] if len(arrays) == 7 else arrays
    ends = product_ends(x, low, high, low2, high2)
    if len(arrays) == 7:
        bias, own_low, own_high = arrays[0], arrays[-2], arrays[-1]
        unit = step(x, low, high) * reach(low2[0], high2[0]) / 127.5
        steps = bias * (reach(own_low[0], own_high[0]) / 127.5 / unit)
        sums = sums + np.rint(np.round(steps, 3)).reshape(shape)
    return sums, *ends


def quantized_dense(x, weight, *arrays, num_hidden, no_bias=False, flatten=True):
    rows = x.reshape(len(x), -1) if flatten else x
    sums = rows.astype("int64") @ weight.T.astype("int64")
    return with_bias(sums, x, -1, arrays)


def quantized_conv(x, weight, *arrays, kernel, num_filter, no_bias=False, pad=(0, 0), layout=None):
    if layout == "NHWC":
        x, weight = np.moveaxis(x, 3, 1), np.moveaxis(weight, 3, 1)
    wide = np.pad(x.astype("int64"), ((0, 0), (0, 0), *((n, n) for n in pad)))
    views = np.lib.stride_tricks.sliding_window_view(wide, kernel, (2, 3))
    sums = np.einsum("nchwij,fcij->nfhw", views, weight.astype("int64"))
    sums, *ends = with_bias(sums, x, (1, -1, 1, 1), arrays)
    return np.moveaxis(sums, 1, 3) if layout == "NHWC" else sums, *ends


def kept(function):
    return lambda x, low, high, **params: (function(x, **params), low, high)


def pooled(x, kernel, pool_type="max", stride=None):
    views = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), kernel, (2, 3))
    return limited(views.max((4, 5)) if pool_type == "max" else views.mean((4, 5)), x.dtype)


def quantized_sum(x, y, *ends, min_calib_range=None, max_calib_range=None):
    total = x * step(x, *ends[:2]) + y * step(y, *ends[2:])
    if min_calib_range is None:
        most = reach(*(e[0] for e in ends[:2])) + reach(*(e[0] for e in ends[2:]))
        whole = np.clip(np.rint(total * (2**31 / most)), 128 - 2**31, 2**31 - 128)
        return whole, number(-most), number(most)
    dtype = x.dtype if x.dtype == y.dtype else np.dtype("int8")
    most = reach(min_calib_range, max_calib_range)
    known = number(min_calib_range), number(max_calib_range)
    return limited(total * RANGE[str(dtype)] / most, dtype), *known


def quantized_product(
    x, y, *ends, min_calib_range=None, max_calib_range=None, enable_float_output=False
):
    product = x.astype("int64") * y
    true = product * step(x, *ends[:2]) * step(y, *ends[2:])
    if enable_float_output:
        return true
    if min_calib_range is None:
        steps = reach(ends[0][0], ends[1][0]) * reach(ends[2][0], ends[3][0])
        most = steps * 2**31 / np.prod([{"int8": 127, "uint8": 255}[str(a.dtype)] for a in (x, y)])
        return product, number(-most), number(most)
    most = reach(min_calib_range, max_calib_range)
    cut = np.clip(np.trunc(true * 127.5 / most), -128, 127)
    return cut, number(min_calib_range), number(max_calib_range)


def quantized_concat(*arrays, dim=1):
    count = len(arrays) // 3
    parts, ends = arrays[:count], arrays[count:]
    low = min(0.0, *(float(e[0]) for e in ends[::2]))
    high = max(0.0, *(float(e[0]) for e in ends[1::2]))
    dtype = "int8" if any(a.dtype == "int8" for a in parts) else "uint8"
    scale = RANGE[dtype] / reach(low, high)
    made = [
        limited(a * step(a, ends[2 * i], ends[2 * i + 1]) * scale, dtype)
        for i, a in enumerate(parts)
    ]
    return np.concatenate(made, dim), number(low), number(high)


def quantized_norm(x, gamma, beta, mean, var, low, high, **params):
    factor = 1 / np.sqrt(var + params.get("eps", 1e-3))
    if not params.get("fix_gamma", True):
        factor = factor * gamma
    y = (x * step(x, low, high) - mean[:, None]) * factor[:, None] + beta[:, None]
    ends = params["min_calib_range"], params["max_calib_range"]
    return limited(y * 127.5 / reach(*ends), "int8"), *map(number, ends)


RANDOM = np.random.RandomState(3)


def numbers(shape, dtype="int8"):
    limits = np.iinfo(dtype)
    return RANDOM.randint(limits.min, limits.max + 1, shape).astype(dtype)


LOW, HIGH = number(-0.75), number(0.5)
WHOLE = np.array([[-(2**30), 5, 2**28], [77777777, -99999, 2**27 + 12345], [0, 1, 2**29]], "int32")
BYTES = np.array([[-128, -1, 0], [1, 99, 127], [5, -7, 64]], "int8")

RANGES = [number(-1.5), number(1)]
VECTORS = [np.array(v, "float32") for v in ([1, 2, 3], [-0.5, 0, 0.5], [0.1, 0.2, -0.3], [1, 2, 4])]
EXACT = {"grad": False, "rtol": 1e-6}


def grouped(x, weight, **_):
    views = np.lib.stride_tricks.sliding_window_view(x.astype("int64"), (3, 1, 2), (2, 3, 4))
    views = views[:, :, ::2].reshape(2, 2, 2, *views[:, :, ::2].shape[2:])
    sums = np.einsum(
        "ngcdhwijk,gfcijk->ngfdhw", views, weight.reshape(2, 3, 2, 3, 1, 2).astype(int)
    )
    return sums.reshape(2, 6, *sums.shape[3:])


SAMPLES = {
    "_contrib_quantize": [
        Sample([(3, 4), LOW, HIGH], {"out_type": "int8"}, quantize, **FLOAT32),
        Sample([(3, 4), LOW, HIGH], None, quantize, **FLOAT32),
        Sample(
            [
                np.array([-1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 300], "float32"),
                number(-127),
                HIGH,
            ],
            {"out_type": "int8"},
            quantize,
            name="halves",
            grad=False,
        ),
    ],
    "_contrib_quantize_v2": [
        Sample([(3, 4)], None, quantize_v2, **FLOAT32),
        Sample([(3, 4)], {"out_type": "uint8"}, quantize_v2, **FLOAT32),
        Sample(
            [(3, 4)],
            {"out_type": "auto", "min_calib_range": 0.0, "max_calib_range": 0.7},
            quantize_v2,
            **FLOAT32,
        ),
        Sample(
            [BYTES],
            None,
            lambda x: (x, number(-127.5), number(127.5)),
            name="of bytes",
            grad=False,
        ),
    ],
    "_contrib_quantize_asym": [
        Sample([(3, 4)], None, quantize_asym, **FLOAT32),
        Sample(
            [(3, 4)], {"min_calib_range": -0.5, "max_calib_range": 0.7}, quantize_asym, **FLOAT32
        ),
        Sample(
            [BYTES],
            None,
            lambda x: (x.astype("float64") + 128, number(1), number(128)),
            name="of bytes",
            grad=False,
        ),
    ],
    "_contrib_dequantize": [
        Sample([BYTES, LOW, HIGH], None, dequantize, grad=False, rtol=1e-6),
        Sample([BYTES.astype("uint8"), LOW, HIGH], None, dequantize, grad=False, rtol=1e-6),
    ],
    "_contrib_requantize": [
        Sample([WHOLE, LOW, HIGH], None, requantize, grad=False, rtol=1e-6),
        Sample(
            [WHOLE, LOW, HIGH],
            {"out_type": "uint8", "min_calib_range": -0.1, "max_calib_range": 0.05},
            requantize,
            grad=False,
            rtol=1e-6,
        ),
    ],
    "_contrib_quantized_fully_connected": [
        Sample(
            [numbers((5, 2, 3), dtype), numbers((4, 6)), *RANGES, *RANGES],
            {"num_hidden": 4, "no_bias": True},
            quantized_dense,
            name=dtype,
            **EXACT,
        )
        for dtype in ("int8", "uint8")
    ]
    + [
        Sample(
            [numbers((3, 2, 700)), numbers((4, 700)), numbers(4), *RANGES, *RANGES, *RANGES],
            {"num_hidden": 4, "flatten": False},
            quantized_dense,
            name="bias",
            **EXACT,
        )
    ],
    "_contrib_quantized_conv": [
        Sample(
            [numbers((2, 5, 7, 6), dtype), numbers((4, 5, 3, 2)), *RANGES, *RANGES],
            {"kernel": (3, 2), "num_filter": 4, "no_bias": True, "pad": (1, 0)},
            quantized_conv,
            name=dtype,
            **EXACT,
        )
        for dtype in ("int8", "uint8")
    ]
    + [
        Sample(
            [
                *(numbers((2, 7, 6, 5)), numbers((4, 3, 2, 5)), numbers(4)),
                *(*RANGES, *RANGES, *RANGES),
            ],
            {"kernel": (3, 2), "num_filter": 4, "layout": "NHWC"},
            quantized_conv,
            name="bias, channels last",
            **EXACT,
        )
    ],
    "_contrib_quantized_pooling": [
        Sample([numbers((2, 3, 5, 4)), LOW, HIGH], {"kernel": (3, 2)}, kept(pooled), **EXACT),
        Sample(
            [numbers((2, 3, 5, 4), "uint8"), LOW, HIGH],
            {"kernel": (3, 3), "pool_type": "avg"},
            kept(pooled),
            **EXACT,
        ),
    ],
    "_contrib_quantized_act": [
        Sample(
            [BYTES, LOW, HIGH],
            {"act_type": "relu"},
            kept(lambda x, act_type: np.maximum(x, 0)),
            **EXACT,
        )
    ],
    "_contrib_quantized_flatten": [
        Sample(
            [numbers((2, 3, 4)), LOW, HIGH], None, kept(lambda x: x.reshape(len(x), -1)), **EXACT
        )
    ],
    "_contrib_quantized_embedding": [
        Sample(
            [np.array([[2, 0, 9]], "float32"), numbers((4, 3)), LOW, HIGH],
            {"input_dim": 4, "output_dim": 3},
            lambda i, w, low, high, **_: (w[np.minimum(i.astype(int), 3)], low, high),
            **EXACT,
        )
    ],
    "_contrib_quantized_elemwise_add": [
        Sample([BYTES, BYTES.T.copy(), *RANGES, LOW, HIGH], None, quantized_sum, **EXACT),
        Sample(
            [BYTES, numbers((3, 3), "uint8"), *RANGES, LOW, HIGH],
            {"min_calib_range": -1.5, "max_calib_range": 2.0},
            quantized_sum,
            name="known",
            **EXACT,
        ),
    ],
    "_contrib_quantized_elemwise_mul": [
        Sample([BYTES, BYTES.T.copy(), *RANGES, LOW, HIGH], None, quantized_product, **EXACT),
        Sample(
            [BYTES, BYTES.T.copy(), *RANGES, LOW, HIGH],
            {"min_calib_range": -1.5, "max_calib_range": 0.5},
            quantized_product,
            name="known",
            **EXACT,
        ),
        Sample(
            [BYTES, numbers((3, 3), "uint8"), *RANGES, LOW, HIGH],
            {"enable_float_output": True},
            quantized_product,
            name="float",
            atol=1e-6,
            **EXACT,
        ),
    ],
    "_contrib_quantized_concat": [
        Sample(
            [numbers((2, 3)), numbers((2, 1), "uint8"), *RANGES, number(0), number(0.25)],
            {"dim": 1},
            quantized_concat,
            **EXACT,
        )
    ],
    "_contrib_quantized_batch_norm": [
        Sample(
            [numbers((2, 3, 4), dtype), *VECTORS, LOW, HIGH],
            {"min_calib_range": -2.0, "max_calib_range": 3.0, "fix_gamma": dtype == "int8"},
            quantized_norm,
            name=dtype,
            **EXACT,
        )
        for dtype in ("int8", "uint8")
    ],
    "_integer_fully_connected": [
        Sample(
            [numbers((70, 300), dtype), numbers((33, 300))],
            {"num_hidden": 33},
            lambda x, w, **_: x.astype("int64") @ w.T.astype("int64"),
            name=dtype,
            **EXACT,
        )
        for dtype in ("int8", "uint8")
    ]
    + [
        Sample(
            [numbers((2, 0)), numbers((3, 0))],
            {"num_hidden": 3},
            lambda x, w, **_: np.zeros((2, 3), "int64"),
            name="empty",
            **EXACT,
        )
    ],
    "_integer_convolution": [
        Sample(
            [numbers((2, 4, 9, 3, 4), dtype), numbers((6, 2, 3, 1, 2))],
            {"kernel": (3, 1, 2), "num_filter": 6, "num_group": 2, "stride": (2, 1, 1)},
            grouped,
            name=dtype,
            **EXACT,
        )
        for dtype in ("int8", "uint8")
    ],
}
