"""Samples of ops that reshape, join and split."""

import numpy as np

from samples.base import Sample

MOVES = ("float32", "float64", "float16", "bfloat16")
INTEGERS = [np.arange(24, dtype=t).reshape(2, 3, 4) for t in ("uint8", "int8", "int32", "int64")]


def exact(reference):
    """A reference that ignores the parameters."""
    return lambda *arrays, **_: reference(*arrays)


def both(shape, params, reference, *, grad2=True, **more):
    """One sample with generated values and one with integers, which must be copied exactly."""
    integers = np.arange(int(np.prod(shape)), dtype="int32").reshape(shape)
    return [
        Sample([shape], params, reference, grad2=grad2, dtypes=MOVES, **more),
        Sample([integers], params, reference, grad=False, dtypes=("float32",)),
    ]


def slices(begin, end, step=()):
    step = step or (None,) * len(begin)
    return tuple(slice(b, e, s) for b, e, s in zip(begin, end, step))


def slice_reference(x, begin, end, step=()):
    return x[slices(begin, end, step)]


def padded_slice(x, begin, end, shape, step=()):
    result = np.zeros(shape, x.dtype)
    result[slices(begin, end, step)] = x
    return result


def assigned(x, value, begin, end, step=()):
    result = x.copy()
    result[slices(begin, end, step)] = value
    return result


def split_reference(x, num_outputs, axis=1, squeeze_axis=False):
    parts = np.split(x, num_outputs, axis)
    return [np.squeeze(p, axis) for p in parts] if squeeze_axis else parts


def split_v2_reference(x, indices, axis=1, squeeze_axis=False, sections=0):
    parts = np.split(x, sections, axis) if sections else np.split(x, list(indices[1:]), axis)
    return [np.squeeze(p, axis) for p in parts] if squeeze_axis else parts


def pad_reference(x, mode, pad_width, constant_value=0):
    width = [(pad_width[2 * i], pad_width[2 * i + 1]) for i in range(x.ndim)]
    if mode == "constant":
        return np.pad(x, width, mode="constant", constant_values=constant_value)
    return np.pad(x, width, mode=mode)


def depth_to_space(x, block_size):
    n, c, h, w = x.shape
    b = block_size
    return (
        x.reshape(n, b, b, c // b**2, h, w)
        .transpose(0, 3, 4, 1, 5, 2)
        .reshape(n, c // b**2, h * b, w * b)
    )


def space_to_depth(x, block_size):
    n, c, h, w = x.shape
    b = block_size
    return (
        x.reshape(n, c, h // b, b, w // b, b)
        .transpose(0, 3, 5, 1, 2, 4)
        .reshape(n, c * b**2, h // b, w // b)
    )


def diag_reference(x, k=0, axis1=0, axis2=1):
    return np.diag(x, k) if x.ndim == 1 else np.diagonal(x, k, axis1, axis2)


def diag_back_reference(x, shape, k=0, axis1=0, axis2=1):
    places = np.diagonal(np.arange(int(np.prod(shape))).reshape(shape), k, axis1, axis2)
    result = np.zeros(int(np.prod(shape)))
    result[places.ravel()] = x.ravel()
    return result.reshape(shape)


def reshape_to(*shape):
    return exact(lambda x: x.reshape(shape))


def crop_reference(x, like=None, offset=(0, 0), h_w=(0, 0), center_crop=False, **_):
    h, w = h_w if like is None else like.shape[2:]
    y, z = ((x.shape[2] - h) // 2, (x.shape[3] - w) // 2) if center_crop else offset
    return x[:, :, y : y + h, z : z + w]


SAMPLES = {
    "Reshape": [
        *both((2, 3, 4), {"shape": (4, -1)}, reshape_to(4, 6)),
        Sample([(2, 3, 4)], {"shape": (0, -1)}, reshape_to(2, 12)),
        Sample([(2, 3, 4)], {"shape": (-2,)}, reshape_to(2, 3, 4)),
        Sample([(2, 3, 4)], {"shape": (-3, 4)}, reshape_to(6, 4)),
        Sample([(2, 3, 4)], {"shape": (-4, 1, 2, -2)}, reshape_to(1, 2, 3, 4)),
        Sample([(2, 3, 4)], {"shape": (2, -4, -1, 3, 0)}, reshape_to(2, 1, 3, 4)),
        Sample([(10, 5, 4)], {"shape": (-1, 0), "reverse": True}, reshape_to(50, 4)),
        Sample([(8, 3)], {"shape": (-4, 2, -1, 0), "reverse": True}, reshape_to(2, 4, 3)),
        Sample([(2, 3, 4)], {"target_shape": (6, 0)}, reshape_to(6, 4)),
        Sample([(2, 0, 4)], {"shape": (0, 0, 4)}, reshape_to(2, 0, 4), name="empty"),
        Sample([(0, 3)], {"shape": (-1,)}, reshape_to(0), name="empty-inferred"),
    ],
    "_reshape_numpy": [
        *both((2, 3, 4), {"newshape": (4, -1)}, reshape_to(4, 6)),
        Sample([(1, 1)], {"newshape": ()}, reshape_to()),
        Sample([(2, 0, 4)], {"newshape": (0, 7)}, reshape_to(0, 7), name="empty"),
    ],
    "_reshape_codes": [
        *both((2, 3, 4), {"newshape": (-2, -5)}, reshape_to(2, 12)),
        Sample([(2, 3, 4)], {"newshape": (-5, -4)}, reshape_to(6, 4)),
        Sample([(1, 6, 4)], {"newshape": (-3, -6, 2, -1, -4)}, reshape_to(2, 3, 4)),
        Sample([(8, 3)], {"newshape": (-6, 2, -1, -2), "reverse": True}, reshape_to(2, 4, 3)),
        Sample([(2, 0)], {"newshape": (0, -2, 3)}, reshape_to(0, 0, 3), name="empty"),
    ],
    "_contrib_sharded": [
        Sample([(3, 4)], {"axes": "model"}, exact(lambda x: x)),
        Sample([(3, 4)], {"axes": ",data+model", "stored": True}, exact(lambda x: x)),
    ],
    "reshape_like": [
        Sample(
            [(2, 6), (3, 4)], None, exact(lambda a, b: a.reshape(b.shape)), grad=[0], grad2=True
        ),
        Sample(
            [(30, 7), (15, 2, 4)],
            dict(lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2),
            exact(lambda a, b: a.reshape(15, 2, 7)),
            grad=[0],
        ),
        Sample(
            [(7, 30), (15, 2)],
            dict(lhs_begin=-1),
            exact(lambda a, b: a.reshape(7, 15, 2)),
            grad=[0],
        ),
    ],
    "Flatten": [
        *both((2, 3, 4), None, reshape_to(2, 12)),
        Sample([(3,)], None, reshape_to(3, 1)),
        Sample([(0, 3, 2)], None, reshape_to(0, 6)),
    ],
    "expand_dims": [
        Sample([(2, 3)], {"axis": 1}, exact(lambda x: x[:, None]), grad2=True, dtypes=MOVES),
        Sample([(2, 3)], {"axis": -1}, exact(lambda x: x[..., None])),
        Sample([(0, 3)], {"axis": 0}, exact(lambda x: x[None])),
    ],
    "squeeze": [
        Sample([(1, 2, 1)], None, reshape_to(2), grad2=True, dtypes=MOVES),
        Sample([(1, 2, 1)], {"axis": -1}, reshape_to(1, 2)),
        Sample([(1, 2, 1)], {"axis": (0, 2)}, reshape_to(2)),
        Sample([(1, 1)], None, reshape_to(1)),
        Sample([(1, 0, 1)], {"axis": 0}, reshape_to(0, 1)),
    ],
    "transpose": [
        *both((2, 3, 4), None, exact(np.transpose)),
        *both((3, 2, 5, 4), {"axes": (0, 2, 1, 3)}, lambda x, axes: x.transpose(axes)),
        Sample(
            [(2, 3, 4, 5)], {"axes": (2, 0, 3, 1)}, lambda x, axes: x.transpose(axes), dtypes=MOVES
        ),
        Sample([(2, 3, 4)], {"axes": (-1, 0, 1)}, lambda x, axes: x.transpose(axes)),
        Sample([(64, 48)], None, exact(np.transpose), dtypes=MOVES, name="tiles"),
        Sample([(70, 33)], None, exact(np.transpose), dtypes=MOVES, name="ragged"),
        Sample(
            [(3, 40, 50)], {"axes": (0, 2, 1)}, lambda x, axes: x.transpose(axes), name="batched"
        ),
        *[
            Sample(
                [x],
                {"axes": (2, 0, 1)},
                lambda x, axes: x.transpose(axes),
                grad=False,
                dtypes=("float32",),
            )
            for x in INTEGERS
        ],
        Sample([(2, 0, 3)], None, exact(np.transpose), name="empty"),
    ],
    "SwapAxis": [
        *both((2, 3, 4), {"dim1": 0, "dim2": 2}, lambda x, dim1, dim2: np.swapaxes(x, dim1, dim2)),
        Sample([(2, 3)], {"dim1": 0, "dim2": -1}, exact(np.transpose)),
        Sample([(2, 3)], None, exact(lambda x: x)),
    ],
    "Concat": [
        Sample(
            [(2, 3), (2, 1), (2, 4)],
            None,
            lambda *a, dim=1: np.concatenate(a, dim),
            grad2=True,
            dtypes=MOVES,
        ),
        Sample([(2, 3), (1, 3)], {"dim": 0}, lambda *a, dim: np.concatenate(a, dim)),
        Sample([(2, 3, 2), (2, 3, 5)], {"dim": -1}, lambda *a, dim: np.concatenate(a, dim)),
        Sample([(2, 3)], {"dim": 0}, exact(lambda x: x), name="one"),
        Sample([(2, 0), (2, 3)], {"dim": 1}, lambda *a, dim: np.concatenate(a, dim), name="empty"),
        Sample(
            [np.arange(6, dtype="uint8").reshape(2, 3)] * 2,
            None,
            exact(lambda *a: np.concatenate(a, 1)),
            grad=False,
            dtypes=("float32",),
        ),
    ],
    "_rnn_param_concat": [
        Sample([(4,), (6,)], {"dim": 0}, lambda *a, dim: np.concatenate(a, dim), grad2=True)
    ],
    "stack": [
        Sample([(2, 3), (2, 3)], None, exact(lambda *a: np.stack(a)), grad2=True, dtypes=MOVES),
        Sample([(2, 3)] * 3, {"axis": -1}, lambda *a, axis: np.stack(a, axis)),
        Sample([(0, 3)] * 2, {"axis": 1}, lambda *a, axis: np.stack(a, axis), name="empty"),
    ],
    "SliceChannel": [
        Sample([(2, 4)], {"num_outputs": 2}, split_reference, grad2=True, dtypes=MOVES),
        Sample(
            [(3, 4)],
            {"num_outputs": 3, "axis": 0, "squeeze_axis": True},
            split_reference,
            grad2=True,
        ),
        Sample([(2, 3, 4)], {"num_outputs": 4, "axis": -1}, split_reference),
        Sample([(2, 4)], {"num_outputs": 1}, split_reference, name="one"),
        Sample([(0, 4)], {"num_outputs": 2}, split_reference, name="empty"),
    ],
    "_split_v2": [
        Sample([(3, 5)], {"indices": (0, 1, 3)}, split_v2_reference, grad2=True, dtypes=MOVES),
        Sample([(3, 4)], {"indices": (), "axis": 1, "sections": 2}, split_v2_reference),
        Sample(
            [(3, 4)],
            {"indices": (), "axis": 0, "sections": 3, "squeeze_axis": True},
            split_v2_reference,
        ),
        Sample(
            [(3, 5)],
            {"indices": (1, 3)},
            exact(lambda x: [x[:, 1:3], x[:, 3:]]),
            grad2=True,
            name="gap",
        ),
    ],
    "slice": [
        *both((4, 5), {"begin": (1, 0), "end": (3, 4)}, slice_reference),
        Sample(
            [(4, 5)],
            {"begin": (None, 4), "end": (None, None), "step": (2, -2)},
            slice_reference,
            grad2=True,
            dtypes=MOVES,
        ),
        Sample([(4, 5)], {"begin": (-3,), "end": (-1,)}, slice_reference),
        Sample([(4, 5)], {"begin": (1,), "end": (99,)}, slice_reference),
        Sample(
            [(4, 5, 6)],
            {"begin": (3, 0, 5), "end": (0, None, None), "step": (-2, 3, -1)},
            slice_reference,
        ),
        Sample([(4, 5)], {"begin": (3,), "end": (1,)}, slice_reference, name="empty"),
    ],
    "_backward_slice": [
        Sample(
            [(2, 4)],
            {"begin": (1, 0), "end": (3, 4), "shape": (4, 5)},
            padded_slice,
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [(2, 3)],
            {"begin": (None, 4), "end": (None, None), "step": (2, -2), "shape": (4, 5)},
            padded_slice,
        ),
        Sample([(0, 5)], {"begin": (3,), "end": (1,), "shape": (4, 5)}, padded_slice, name="empty"),
    ],
    "_slice_assign": [
        Sample(
            [(4, 5), (2, 4)], {"begin": (1, 0), "end": (3, 4)}, assigned, grad2=True, dtypes=MOVES
        ),
        Sample(
            [(4, 5), (2, 3)], {"begin": (None, 4), "end": (None, None), "step": (2, -2)}, assigned
        ),
        Sample(
            [(4,), (4,)], {"begin": (None,), "end": (None,), "step": (-1,)}, assigned, name="all"
        ),
        Sample([(4, 5), (0, 5)], {"begin": (3,), "end": (1,)}, assigned, name="empty"),
    ],
    "_slice_assign_scalar": [
        Sample(
            [(4, 5)],
            {"scalar": 0.1, "begin": (1, 0), "end": (3, 4)},
            lambda x, scalar, **k: assigned(x, scalar, **k),
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [np.arange(6, dtype="int64")],
            {"scalar": -3, "begin": (4,), "end": (None,), "step": (-2,)},
            lambda x, scalar, **k: assigned(x, scalar, **k),
            grad=False,
        ),
    ],
    "slice_axis": [
        *both(
            (3, 4, 5),
            {"axis": 1, "begin": 1, "end": 3},
            lambda x, axis, begin, end: x[:, begin:end],
        ),
        Sample([(3, 4)], {"axis": -1, "begin": -3, "end": None}, exact(lambda x: x[:, -3:])),
        Sample([(3, 4)], {"axis": 0, "begin": 1, "end": -1}, exact(lambda x: x[1:-1])),
        Sample([(3, 4)], {"axis": 0, "begin": 1, "end": 1}, exact(lambda x: x[1:1]), name="empty"),
    ],
    "slice_like": [
        Sample(
            [(3, 4), (2, 2)],
            None,
            exact(lambda a, b: a[:2, :2]),
            grad=[0],
            grad2=True,
            dtypes=MOVES,
        ),
        Sample([(3, 4), (2, 2, 2)], {"axes": (1,)}, exact(lambda a, b: a[:, :2]), grad=[0]),
        Sample([(3, 4), (2, 2)], {"axes": (-1,)}, exact(lambda a, b: a[:, :2]), grad=[0]),
    ],
    "Crop": [
        Sample([(1, 2, 5, 6)], {"h_w": (3, 2), "offset": (1, 2)}, crop_reference, grad2=True),
        Sample([(1, 2, 5, 6), (1, 1, 3, 4)], {"center_crop": True}, crop_reference, grad=[0]),
    ],
    "reverse": [
        *both((3, 4), {"axis": (0, 1)}, exact(lambda x: x[::-1, ::-1])),
        Sample([(2, 3, 4)], {"axis": 1}, exact(lambda x: x[:, ::-1]), dtypes=MOVES),
        Sample([(0, 4)], {"axis": 1}, exact(lambda x: x), name="empty"),
    ],
    "tile": [
        *both((2, 3), {"reps": (2, 3)}, lambda x, reps: np.tile(x, reps)),
        Sample([(3,)], {"reps": (2, 1, 2)}, lambda x, reps: np.tile(x, reps), grad2=True),
        Sample([(2, 3, 2)], {"reps": (2,)}, lambda x, reps: np.tile(x, reps)),
        Sample([(2, 3)], {"reps": (0, 2)}, lambda x, reps: np.tile(x, reps), name="empty"),
    ],
    "repeat": [
        *both(
            (2, 3), {"repeats": 2, "axis": 1}, lambda x, repeats, axis: np.repeat(x, repeats, axis)
        ),
        Sample([(2, 3)], {"repeats": 3}, lambda x, repeats: np.repeat(x, repeats), grad2=True),
        Sample(
            [(2, 3)],
            {"repeats": 2, "axis": -2},
            lambda x, repeats, axis: np.repeat(x, repeats, axis),
        ),
        Sample(
            [(2, 3)],
            {"repeats": 0, "axis": 0},
            lambda x, repeats, axis: np.repeat(x, repeats, axis),
            name="empty",
        ),
    ],
    "Pad": [
        *both(
            (1, 2, 3, 4),
            {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 2, 0, 1), "constant_value": 3},
            pad_reference,
        ),
        Sample(
            [(1, 2, 3, 4)],
            {"mode": "edge", "pad_width": (0, 0, 0, 0, 1, 2, 3, 1)},
            pad_reference,
            grad2=True,
            dtypes=MOVES,
        ),
        Sample(
            [(1, 2, 3, 4)],
            {"mode": "reflect", "pad_width": (0, 0, 0, 0, 1, 2, 3, 1)},
            pad_reference,
            grad2=True,
            dtypes=MOVES,
        ),
        Sample([(3, 4)], {"mode": "reflect", "pad_width": (2, 0, 0, 3)}, pad_reference),
        Sample(
            [(0, 2)],
            {"mode": "constant", "pad_width": (1, 0, 0, 1), "constant_value": 1},
            pad_reference,
            name="empty",
        ),
    ],
    "depth_to_space": [
        *both((1, 8, 2, 3), {"block_size": 2}, depth_to_space),
        Sample([(0, 4, 1, 1)], {"block_size": 2}, exact(lambda x: x.reshape(0, 1, 2, 2))),
    ],
    "space_to_depth": [
        *both((1, 2, 4, 6), {"block_size": 2}, space_to_depth),
        Sample([(0, 1, 2, 2)], {"block_size": 2}, exact(lambda x: x.reshape(0, 4, 1, 1))),
    ],
    "diag": [
        *both((3, 4), None, diag_reference),
        Sample([(3, 4)], {"k": -1}, diag_reference, grad2=True),
        Sample([(4,)], {"k": 1}, diag_reference, grad2=True, dtypes=MOVES),
        Sample([(2, 3, 4)], {"axis1": 0, "axis2": 2, "k": 1}, diag_reference, grad2=True),
        Sample([(2, 3, 4)], {"axis1": -1, "axis2": 1}, diag_reference),
    ],
    "_backward_diag": [
        Sample(
            [(3, 2)], {"axis1": 0, "axis2": 2, "shape": (2, 3, 4)}, diag_back_reference, grad2=True
        ),
        Sample([(2,)], {"k": -1, "shape": (3, 4)}, diag_back_reference),
    ],
    "shape_array": [Sample([(2, 3)], None, exact(lambda x: np.array(x.shape)), grad=False)],
    "size_array": [
        Sample([(2, 3)], None, exact(lambda x: np.array([x.size])), grad=False),
        Sample([(0, 3)], None, exact(lambda x: np.array([0])), grad=False),
    ],
}
