"""Samples of numbers of 8 bits that stand for others."""

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


LOW, HIGH = number(-0.75), number(0.5)
WHOLE = np.array([[-(2**30), 5, 2**28], [77777777, -99999, 2**27 + 12345], [0, 1, 2**29]], "int32")
BYTES = np.array([[-128, -1, 0], [1, 99, 127], [5, -7, 64]], "int8")

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
}
