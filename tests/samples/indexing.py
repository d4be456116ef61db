"""Samples of ops that gather and scatter by index."""

import numpy as np

from samples.base import Sample

MOVES = ("float32", "float64", "float16", "bfloat16")


def ints(*values, dtype="int32"):
    return np.array(values, dtype=dtype)


def safe(indices, size, mode="clip"):
    indices = np.trunc(indices).astype("int64")
    return indices % size if mode == "wrap" else np.clip(indices, 0, size - 1)


def take(a, indices, axis=0, mode="clip"):
    return np.take(a, safe(indices, a.shape[axis], mode), axis)


def take_back(grad, indices, shape, axis=0, mode="clip"):
    result = np.zeros(shape)
    moved = np.moveaxis(result, axis, 0)
    places = safe(indices, shape[axis], mode)
    axis = axis % len(shape)
    source = np.moveaxis(grad, tuple(range(axis, axis + indices.ndim)), tuple(range(indices.ndim)))
    np.add.at(moved, places, source)
    return result


def pick(data, index, axis=-1, keepdims=False, mode="clip"):
    if index.ndim < data.ndim:
        index = np.expand_dims(index, axis)
    result = np.take_along_axis(data, safe(index, data.shape[axis], mode), axis)
    return result if keepdims else np.squeeze(result, axis)


def pick_back(grad, index, shape, axis=-1, mode="clip"):
    result = np.zeros(shape)
    wide = [np.expand_dims(x, axis) if x.ndim < len(shape) else x for x in (grad, index)]
    np.put_along_axis(result, safe(wide[1], shape[axis], mode), wide[0], axis)
    return result


def one_hot(indices, depth, on_value=1, off_value=0, dtype="float32"):
    hit = np.trunc(indices)[..., None] == np.arange(depth)
    return np.where(hit, on_value, off_value)


def where(condition, x, y):
    if condition.ndim < x.ndim:
        condition = condition.reshape((-1,) + (1,) * (x.ndim - 1))
    return np.where(condition != 0, x, y)


def gather_nd(data, indices):
    return data[tuple(indices.astype("int64"))]


def scatter_nd(data, indices, shape):
    result = np.zeros(shape)
    result[tuple(indices.astype("int64"))] = data
    return result


def scatter_add(data, indices, shape):
    result = np.zeros(shape)
    np.add.at(result, tuple(indices.astype("int64")), data)
    return result


def scatter_set(lhs, rhs, indices, shape):
    result = lhs.copy()
    result[tuple(indices.astype("int64"))] = rhs
    return result


def sequence(function):
    """Decorates function(steps, counts, axis) to run on time-first data with sequence lengths."""

    def run(data, lengths=None, use_sequence_length=False, axis=0, **params):
        x = np.swapaxes(data, 0, 1) if axis == 1 else data
        count = (
            np.full(x.shape[1], x.shape[0])
            if lengths is None
            else np.clip(lengths, 0, x.shape[0]).astype(int)
        )
        return function(x, count, axis, **params)

    return run


@sequence
def sequence_mask(x, count, axis, value=0):
    x = x.copy()
    for b, n in enumerate(count):
        x[n:, b] = value
    return np.swapaxes(x, 0, 1) if axis == 1 else x


@sequence
def sequence_last(x, count, axis):
    return np.stack([x[max(n, 1) - 1, b] for b, n in enumerate(count)])


@sequence
def sequence_reverse(x, count, axis):
    x = x.copy()
    for b, n in enumerate(count):
        x[:n, b] = x[:n, b][::-1].copy()
    return x


def sequence_last_back(grad, lengths=None, use_sequence_length=False, axis=0, shape=None):
    result = np.zeros(shape)
    x = np.swapaxes(result, 0, 1) if axis == 1 else result
    for b in range(x.shape[1]):
        n = x.shape[0] if lengths is None else min(max(int(lengths[b]), 1), x.shape[0])
        x[n - 1, b] = grad[b]
    return result


def index_array(x, axes=None):
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in x.shape], indexing="ij"), -1)
    return indices if axes is None else indices[..., list(axes)]


def index_copy(old, index, new):
    result = old.copy()
    result[index.astype(int)] = new
    return result


def mask_back(grad, index):
    result = np.zeros((len(index), *grad.shape[1:]), grad.dtype)
    result[index != 0] = grad
    return result


def fill_element(lhs, mhs, rhs):
    result = lhs.copy()
    result[np.arange(len(lhs)), safe(rhs, lhs.shape[1])] = mhs
    return result


LENGTHS = ints(1, 3, 0, 9)


def sketched(data, places, signs, out_dim):
    out = np.zeros((*data.shape[:-1], out_dim))
    for i, (place, sign) in enumerate(zip(places.reshape(-1).astype(int), signs.reshape(-1))):
        out[..., place] += data[..., i] * sign
    return out


SAMPLES = {
    "take": [
        Sample([(5, 3), ints(0, 4, -2, 9, 1, 1)], None, take, grad=[0], grad2=True, dtypes=MOVES),
        Sample([(5, 3), ints(-1, 5, -7)], {"mode": "wrap"}, take, grad=[0]),
        Sample([(5, 3), ints(0, 4)], {"mode": "raise"}, take, grad=[0]),
        Sample(
            [(2, 4, 3), ints([0, 3], [1, 1], dtype="int64")],
            {"axis": 1},
            take,
            grad=[0],
            grad2=True,
        ),
        Sample([(2, 4), ints(1.7, 0.2, dtype="float32")], {"axis": -1}, take, grad=[0]),
        Sample([(3, 300), np.arange(200, dtype="int64") % 3], None, take, grad=[0], name="wide"),
        Sample([(3, 4), np.zeros((0,), "int32")], None, take, grad=[0], name="empty"),
        Sample(
            [np.arange(12, dtype="uint8").reshape(3, 4), ints(2, 0)],
            None,
            take,
            grad=False,
            dtypes=("float32",),
        ),
    ],
    "_backward_take": [
        Sample(
            [(6, 3), ints(0, 4, -2, 9, 1, 1)],
            {"shape": (5, 3)},
            take_back,
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [(2, 2, 2, 3), ints([0, 3], [1, 1])],
            {"axis": 1, "shape": (2, 4, 3)},
            take_back,
            grad=[0],
        ),
        Sample(
            [(300, 64), np.arange(300, dtype="int32") ** 2 % 7],
            {"shape": (7, 64)},
            take_back,
            grad=[0],
            name="columns",
        ),
        Sample(
            [(9000,), np.arange(9000, dtype="int32") % 100],
            {"shape": (100,)},
            take_back,
            grad=[0],
            name="rows",
        ),
        Sample(
            [(0, 3), np.zeros((0,), "int32")], {"shape": (5, 3)}, take_back, grad=[0], name="empty"
        ),
    ],
    "Embedding": [
        Sample(
            [ints([0, 4], [-1, 9]), (5, 3)],
            {"input_dim": 5, "output_dim": 3},
            lambda i, w, **_: take(w, i),
            grad=[1],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [ints(0, 2, 2, dtype="int64"), (5, 3)],
            {"input_dim": 5, "output_dim": 3},
            lambda i, w, **_: take(w, i),
            grad=[1],
        ),
        Sample(
            [ints(0, 2, 2, dtype="float32"), (5, 3)],
            {"input_dim": 5, "output_dim": 3},
            lambda i, w, **_: take(w, i),
            grad=[1],
        ),
        Sample(
            [np.zeros((2, 0), "int32"), (5, 3)],
            {"input_dim": 5, "output_dim": 3},
            lambda i, w, **_: take(w, i),
            grad=[1],
            name="empty",
        ),
    ],
    "_contrib_count_sketch": [
        Sample(
            [(2, 3, 2, 4), ints(2, 0, 2, 1, dtype="float32").reshape(1, 4), (1, 4)],
            {"out_dim": 5},
            sketched,
            grad=[0, 2],
        ),
        Sample([(2, 4), ints(2, 0, 2, 1), (4,)], {"out_dim": 3}, sketched, grad=[0, 2]),
    ],
    "batch_take": [
        Sample(
            [(3, 4), ints(0, 3, 9)],
            None,
            lambda a, i: pick(a, i),
            grad=[0],
            dtypes=MOVES,
        )
    ],
    "pick": [
        Sample([(3, 4), ints(0, -1, 9)], None, pick, grad=[0], grad2=True, dtypes=MOVES),
        Sample([(3, 4), ints(0, -1, 9, dtype="float32")], {"mode": "wrap"}, pick, grad=[0]),
        Sample(
            [(3, 4), ints(0, 1, 2, 0)], {"axis": 0, "keepdims": True}, pick, grad=[0], grad2=True
        ),
        Sample([(2, 3, 4), ints([[0], [1], [3]], [[2], [2], [0]])], None, pick, grad=[0]),
        Sample([(4,), ints(2)], {"axis": 0}, lambda x, i, axis: x[i.astype(int)], grad=[0]),
        Sample([(0, 4), np.zeros((0,), "int32")], None, pick, grad=[0], name="empty"),
    ],
    "_backward_pick": [
        Sample(
            [(3,), ints(0, -1, 9)], {"shape": (3, 4)}, pick_back, grad=[0], grad2=True, dtypes=MOVES
        ),
        Sample([(1, 4), ints(0, 1, 2, 0)], {"axis": 0, "shape": (3, 4)}, pick_back, grad=[0]),
    ],
    "fill_element_0index": [
        Sample(
            [(3, 4), (3,), ints(0, 3, 9)], None, fill_element, grad=[0, 1], grad2=True, dtypes=MOVES
        )
    ],
    "one_hot": [
        Sample([ints(-1, 0, 2, 3, 1.9, dtype="float32")], {"depth": 3}, one_hot, grad=False),
        Sample(
            [ints([1], [0])],
            {"depth": 3, "on_value": 5, "off_value": 2, "dtype": "int32"},
            one_hot,
            grad=False,
        ),
        Sample([ints(1, 0)], {"depth": 0}, one_hot, grad=False, name="no-depth"),
        Sample([np.zeros((0,), "int32")], {"depth": 3}, one_hot, grad=False, name="empty"),
    ],
    "where": [
        Sample(
            [ints([1, 0, 2], [0, 0, -1]), (2, 3), (2, 3)],
            None,
            where,
            grad=[1, 2],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [ints(0.5, 0, -0.0, np.nan, dtype="float32"), (4, 3), (4, 3)],
            None,
            where,
            grad=[1, 2],
            name="rows",
        ),
        Sample([ints(0.5, 0, -0.0, dtype="float16"), (3,), (3,)], None, where, grad=[1, 2]),
        Sample([np.arange(3000) % 3 == 0, (3000,), (3000,)], None, where, grad=[1, 2], name="long"),
        Sample([np.zeros((0, 3), "int32"), (0, 3), (0, 3)], None, where, grad=[1, 2], name="empty"),
    ],
    "gather_nd": [
        Sample(
            [(3, 4), ints([0, 2, 0], [1, -1, 1])],
            None,
            gather_nd,
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample([(3, 4, 2), ints([[0, 2], [1, 1]])], None, gather_nd, grad=[0]),
        Sample([(3, 4), np.zeros((2, 0), "int64")], None, gather_nd, grad=[0], name="empty"),
    ],
    "scatter_nd": [
        Sample(
            [(3,), ints([0, 2, 1], [1, 3, 1])],
            {"shape": (3, 4)},
            scatter_nd,
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample([(2, 4), ints([2, 0])], {"shape": (3, 4)}, scatter_nd, grad=[0]),
        Sample(
            [ints(1, 2, 3), ints([0, 0, 1])],
            {"shape": (3,)},
            scatter_nd,
            grad=False,
            name="last-counts",
        ),
    ],
    "_backward_gather_nd": [
        Sample(
            [(3,), ints([0, 2, 0], [1, 3, 1])],
            {"shape": (3, 4)},
            scatter_add,
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [ints(1, 2, 3, dtype="int64"), ints([0, 0, 1])],
            {"shape": (3,)},
            scatter_add,
            grad=False,
        ),
    ],
    "_scatter_set_nd": [
        Sample(
            [(3, 4), (2,), ints([0, 2], [1, 3])],
            {"shape": (3, 4)},
            scatter_set,
            grad=[0, 1],
            grad2=True,
            dtypes=MOVES,
        )
    ],
    "_set_rows": [
        Sample(
            [(3, 4), (2,), ints([0, 2], [1, 3])],
            {"shape": (3, 4)},
            scatter_set,
            grad=False,
            dtypes=MOVES,
        )
    ],
    "_ravel_multi_index": [
        Sample(
            [ints([3, 6, 6], [4, 5, 1])],
            {"shape": (7, 6)},
            lambda d, shape: np.ravel_multi_index(tuple(d), shape),
            grad=False,
        ),
        Sample(
            [ints([3, 6], [4, 5], dtype="float32")],
            {"shape": (-1, 6)},
            lambda d, shape: d[0] * 6 + d[1],
            grad=False,
        ),
    ],
    "_unravel_index": [
        Sample(
            [ints(22, 41, 37)],
            {"shape": (7, 6)},
            lambda d, shape: np.stack(np.unravel_index(d, shape)),
            grad=False,
        ),
        Sample(
            [ints([22], [41], dtype="float32")],
            {"shape": (-1, 6)},
            lambda d, shape: np.stack([d // 6, d % 6]),
            grad=False,
        ),
    ],
    "SequenceMask": [
        Sample(
            [(4, 4, 2), LENGTHS],
            {"use_sequence_length": True, "value": -1},
            sequence_mask,
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [(4, 3), LENGTHS], {"use_sequence_length": True, "axis": 1}, sequence_mask, grad=[0]
        ),
        Sample([(4, 3)], None, sequence_mask),
    ],
    "SequenceLast": [
        Sample(
            [(4, 4, 2), LENGTHS],
            {"use_sequence_length": True},
            sequence_last,
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [(4, 3, 2), LENGTHS.astype("float32")],
            {"use_sequence_length": True, "axis": 1},
            sequence_last,
            grad=[0],
        ),
        Sample([(4, 3)], None, sequence_last, grad2=True),
    ],
    "_backward_SequenceLast": [
        Sample(
            [(4, 2), LENGTHS],
            {"use_sequence_length": True, "shape": (4, 4, 2)},
            sequence_last_back,
            grad=[0],
            grad2=True,
        ),
        Sample([(4, 2)], {"axis": 1, "shape": (4, 3, 2)}, sequence_last_back),
    ],
    "SequenceReverse": [
        Sample(
            [(4, 4, 2), LENGTHS],
            {"use_sequence_length": True},
            sequence_reverse,
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample([(4, 3)], None, sequence_reverse),
    ],
    "_contrib_index_copy": [
        Sample(
            [(4, 2), ints(3, 0, dtype="int64"), (2, 2)],
            None,
            index_copy,
            grad=[0, 2],
            grad2=True,
            dtypes=MOVES,
        )
    ],
    "_contrib_boolean_mask": [
        Sample(
            [(4, 3), np.array([1, 0, -2, 0.0], "float32")],
            None,
            lambda data, index, axis=0: data[index != 0],
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [(3, 2), ints(0, 0, 0)],
            None,
            lambda data, index, axis=0: data[index != 0],
            grad=[0],
            name="none",
        ),
        Sample(
            [(0, 2), ints()],
            None,
            lambda data, index, axis=0: data[index != 0],
            grad=False,
            name="empty",
        ),
        Sample(
            [(5,), np.array([True, False, True, True, False])],
            {"axis": 0},
            lambda data, index, axis=0: data[index != 0],
            grad=[0],
            name="bool",
        ),
    ],
    "_boolean_mask_known": [
        Sample(
            [(4, 3), ints(1, 0, 1, 1)],
            {"count": 3},
            lambda data, index, count: data[index != 0],
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        )
    ],
    "_backward_contrib_boolean_mask": [
        Sample([(2, 3), ints(1, 0, 1, 0)], None, mask_back, grad=[0], grad2=True, dtypes=MOVES),
        Sample([(0, 3), ints(0, 0)], None, mask_back, grad=False, name="none"),
    ],
    "_contrib_index_array": [
        Sample([(2, 3)], None, index_array, grad=False),
        Sample([(2, 3, 2)], {"axes": (1, 0)}, index_array, grad=False),
    ],
}
