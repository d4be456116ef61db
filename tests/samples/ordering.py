"""Samples of sorting, top-k and arg-reductions."""

import numpy as np

from samples.base import Sample

HALVES = ("float32", "float64", "float16", "bfloat16")
TIES = np.array([[3, 1, 2, 3, 1], [0, 5, 5, -2, 5]], "float32")
LONG = (np.arange(600) * 7919 % 101).astype("float32").reshape(2, 300)


def order(x, axis=-1, is_ascend=True, **_):
    """Returns the sorting indices, stable in both directions, with NaN as the largest value."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    if is_ascend:
        return np.argsort(x, axis, kind="stable")
    flipped = np.flip(x, axis)
    return x.shape[axis] - 1 - np.flip(np.argsort(flipped, axis, kind="stable"), axis)


def sort(x, axis=-1, is_ascend=True):
    if axis is None:
        x, axis = x.reshape(-1), 0
    return np.take_along_axis(x, order(x, axis, is_ascend), axis)


def topk(x, axis=-1, k=1, ret_typ="indices", is_ascend=False, dtype="float32"):
    shape = x.shape
    if axis is None:
        x, axis = x.reshape(-1), 0
    chosen = order(x, axis, is_ascend)
    if k > 0:
        chosen = np.take(chosen, np.arange(k), axis)
    if ret_typ == "indices":
        return chosen
    if ret_typ == "mask":
        mask = np.zeros(x.shape)
        np.put_along_axis(mask, chosen, 1, axis)
        return mask.reshape(shape)
    values = np.take_along_axis(x, chosen, axis)
    return (values, chosen) if ret_typ == "both" else values


def arg(function):
    def run(x, axis=None, keepdims=False):
        if axis is None:
            result = np.array([function(x)])
            return result.reshape((1,) * x.ndim) if keepdims else result
        result = function(x, axis)
        if keepdims:
            return np.expand_dims(result, axis)
        return result if result.ndim else result.reshape(1)

    return run


argmax, argmin = arg(np.argmax), arg(np.argmin)


def scatter(data, indices, axis, size):
    shape = list(data.shape)
    shape[axis] = size
    result = np.zeros(shape)
    np.put_along_axis(result, indices.astype("int64"), data, axis)
    return result


def histogram(x, edges=None, bin_cnt=None, range=None):
    return np.histogram(x, edges if bin_cnt is None else bin_cnt, range)


EDGES = np.array([-2, -0.5, 0, 0.25, 0.5, 1.5], "float32")

SAMPLES = {
    "_histogram": [
        Sample([(30, 7)], {"bin_cnt": 5, "range": (-0.5, 1.0)}, histogram, grad=False),
        Sample([(50,), EDGES], None, histogram, grad=False, dtypes=("float32",), name="edges"),
        Sample([np.array([0, 1, 3, 3, 4, 5], "int32")], {"bin_cnt": 4, "range": (0, 4)}, histogram),
        Sample([(0, 2)], {"bin_cnt": 1, "range": (0, 1)}, histogram, grad=False, name="empty"),
    ],
    "sort": [
        Sample([(3, 7)], None, sort, grad2=True, dtypes=HALVES),
        Sample([(3, 7)], {"is_ascend": False, "axis": 0}, sort),
        Sample([(2, 3)], {"axis": None}, sort, grad2=True),
        Sample([(4, 300)], None, sort, name="radix"),
        Sample([np.array([2, np.nan, 1, -np.inf, np.inf])], None, sort, grad=False, name="nan"),
        Sample([np.array([-3, 2, -128, 127], "int8")], None, sort, grad=False),
        Sample(
            [np.array([-3, 2**40, -(2**50), 7], "int64")], {"is_ascend": False}, sort, grad=False
        ),
        Sample([(0, 3)], None, sort, name="empty"),
        Sample([(3, 0)], None, sort, name="empty-axis"),
    ],
    "argsort": [
        Sample([TIES], None, order, grad=False),
        Sample([TIES], {"is_ascend": False, "dtype": "int32"}, order, grad=False),
        Sample([TIES], {"axis": None}, order, grad=False),
        Sample([LONG], {"is_ascend": False}, order, grad=False, name="radix"),
        Sample([LONG.astype("float64")], {"axis": 1}, order, grad=False, name="pairs"),
        Sample([LONG.astype("int64")], {"axis": 0, "dtype": "int64"}, order, grad=False),
        Sample(
            [np.array([2, np.nan, 1], "float32")],
            {"is_ascend": False},
            lambda x, is_ascend: np.array([1, 0, 2]),
            grad=False,
            name="nan",
        ),
    ],
    "topk": [
        Sample([TIES], {"k": 2}, topk, grad=False),
        Sample([(3, 7)], {"k": 3, "ret_typ": "value"}, topk, grad2=True, dtypes=HALVES),
        Sample([(3, 7)], {"k": 2, "ret_typ": "both", "axis": 0, "dtype": "int32"}, topk),
        Sample([TIES], {"k": 2, "ret_typ": "mask"}, topk, grad=False),
        Sample(
            [TIES.astype("int32")], {"k": 2, "ret_typ": "mask", "is_ascend": True}, topk, grad=False
        ),
        Sample([TIES], {"k": 3, "axis": None, "ret_typ": "mask"}, topk, grad=False),
        Sample([(2, 4)], {"k": 3, "axis": None, "ret_typ": "value"}, topk, grad2=True),
        Sample([LONG], {"k": 5, "is_ascend": True}, topk, grad=False, name="heap"),
        Sample([LONG.astype("float64")], {"k": 7}, topk, grad=False, name="heap-pairs"),
        Sample([TIES], {"k": 0}, topk, grad=False, name="all"),
    ],
    "argmax": [
        Sample([TIES], {"axis": 1}, argmax, grad=False),
        Sample([TIES], None, argmax, grad=False),
        Sample([TIES], {"keepdims": True}, argmax, grad=False),
        Sample([(2, 3, 4)], {"axis": 1, "keepdims": True}, argmax, grad=False, dtypes=HALVES),
        Sample([np.array([1, np.nan, 3])], {"axis": 0}, argmax, grad=False, name="nan"),
        Sample([np.arange(300, dtype="uint8")], {"axis": 0}, argmax, grad=False),
        Sample([(0, 3)], {"axis": 1}, argmax, grad=False, name="empty"),
    ],
    "argmin": [
        Sample([TIES], {"axis": 1}, argmin, grad=False),
        Sample([(2, 3, 4)], {"axis": -1}, argmin, grad=False),
        Sample([TIES.astype("int64")], {"axis": 0}, argmin, grad=False),
    ],
    "argmax_channel": [
        Sample([(3, 4)], None, lambda x: x.argmax(1), grad=False),
        Sample([(2, 3, 4)], None, lambda x: x.argmax(1), grad=False),
    ],
    "_gather_along": [
        Sample(
            [(2, 4), np.array([[3, 0], [1, 2]], "int64")],
            {"axis": 1, "size": 0},
            lambda x, i, axis, size: np.take_along_axis(x, i, axis),
            grad=[0],
            grad2=True,
            dtypes=HALVES,
        ),
    ],
    "_scatter_along": [
        Sample(
            [(2, 2), np.array([[3, 0], [1, 2]], "int64")],
            {"axis": 1, "size": 4},
            scatter,
            grad=[0],
            grad2=True,
            dtypes=HALVES,
        ),
        Sample(
            [(2, 3), np.array([[1, 0, 1], [0, 2, 2]], "int32")],
            {"axis": 0, "size": 3},
            scatter,
            grad=[0],
        ),
    ],
}
