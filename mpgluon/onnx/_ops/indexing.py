"""Indexing ops, and sorting ops."""

from __future__ import annotations

import math

import numpy as np

from ... import symbol as sym
from .._graph import value
from .._source import Open
from .._table import exports, imports


def _within(g, indices, x, axis, mode):
    """Casts indices to int64, and clips or wraps those out of range, according to `mode`."""
    found = g.cast(indices, "int64")
    size = x.shape[axis]
    array = getattr(indices, "array", None)
    fixed = isinstance(size, int)
    if array is not None and fixed and array.size and array.min() >= 0 and array.max() < size:
        return found
    size = g.number(size, "int64") if fixed else g.Squeeze(g.sizes([size]), [0])
    if mode == "wrap":
        return g.Mod(found, size)
    zero, one = g.number(0, "int64"), g.number(1, "int64")
    return g.Max(g.Min(found, g.Sub(size, one)), zero)


@exports("take", "Gather")
def take(g, call, x, indices):
    axis = call["axis"]
    return g.Gather(x, _within(g, indices, x, axis, call["mode"]), axis=axis + x.ndim * (axis < 0))


@exports("Embedding _contrib_SparseEmbedding", "Gather")
def embedding(g, call, indices, weight):
    return g.Gather(weight, _within(g, indices, weight, 0, "clip"), axis=0)


@imports("Gather")
def gather_back(node):
    axis, indices = node.attribute("axis", 0), node.value(1)
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        return _one_taken(node, axis, int(indices))
    taken = sym.take(
        node.symbol(0), node.symbol(1), axis=axis, mode=_mode_back(node, axis), name=node.name
    )
    if node.is_scalar(1) and node.ndim(0) > 1:
        return sym.squeeze(taken, axis=axis % node.ndim(0))
    return taken


def _mode_back(node, axis):
    """Returns the mode of `take` for the indices of a file. 'wrap' lets negative indices count from
    the end, but requires that the size is known; otherwise returns 'clip'."""
    shape = node.shape(0)
    return "wrap" if shape and not isinstance(shape[axis], Open) else "clip"


def _one_taken(node, axis, index):
    ndim = node.ndim(0)
    end = None if index == -1 else index + 1
    found = sym.slice_axis(node.symbol(0), axis=axis, begin=index, end=end)
    if ndim == 1:
        return found
    return sym.squeeze(found, axis=axis % ndim, name=node.name)


@exports("pick", "GatherElements")
def pick(g, call, x, index):
    axis = call.axis()
    if index.ndim < x.ndim:
        index = g.Unsqueeze(index, [axis])
    found = g.GatherElements(x, _within(g, index, x, axis, call["mode"]), axis=axis)
    if call["keepdims"]:
        return found
    return g.Reshape(found, [1]) if x.ndim == 1 else g.Squeeze(found, [axis])


@imports("GatherElements")
def gather_elements_back(node):
    axis = node.attribute("axis", 0)
    axis += node.ndim(0) * (axis < 0)
    if node.shape(1)[axis] != 1:
        return node.refuse("only one index along the axis is supported")
    return sym.pick(node.symbol(0), node.symbol(1), axis=axis, keepdims=True, name=node.name)


@exports("batch_take", "GatherElements")
def batch_take(g, call, x, indices):
    index = g.Reshape(_within(g, indices, x, 1, "clip"), [-1, 1])
    return g.Reshape(g.GatherElements(x, index, axis=1), [-1])


def _last(g, indices):
    """Moves the first axis of the indices, which holds the coordinates, to the end, where ONNX
    expects it."""
    found = g.cast(indices, "int64")
    return g.Transpose(found, perm=[*range(1, indices.ndim), 0]) if indices.ndim > 1 else found


@exports("gather_nd", "GatherND")
def gather_nd(g, call, x, indices):
    return g.GatherND(x, _last(g, indices))


@imports("ScatterND")
def scatter_nd_back(node):
    if node.attribute("reduction", "none") != "none":
        return node.refuse("reduction is not supported")
    x, indices, y = [node.symbol(place) for place in range(3)]
    ndim = node.ndim(1)
    indices = sym.transpose(indices, axes=(ndim - 1, *range(ndim - 1)))
    shape = node.shape(0)
    if shape is None or any(isinstance(size, Open) for size in shape):
        return node.refuse("the shape of its input must be known")
    return sym._internal._scatter_set_nd(x, y, indices, shape=shape, name=node.name)


@imports("GatherND")
def gather_nd_back(node):
    if node.attribute("batch_dims", 0):
        return node.refuse("batch_dims is not supported")
    ndim = node.ndim(1)
    axes = (ndim - 1, *range(ndim - 1))
    return sym.gather_nd(node.symbol(0), sym.transpose(node.symbol(1), axes=axes), name=node.name)


@exports("scatter_nd", "ScatterND")
def scatter_nd(g, call, data, indices):
    return g.ScatterND(g.full(call.shape, 0, call.dtype), _last(g, indices), data)


@exports("_scatter_set_nd", "ScatterND")
def scatter_set_nd(g, call, x, y, indices):
    return g.ScatterND(x, _last(g, indices), y)


@exports("_contrib_index_copy", "ScatterND")
def index_copy(g, call, old, indices, new):
    return g.ScatterND(old, g.Unsqueeze(g.cast(indices, "int64"), [1]), new)


@exports("one_hot", "OneHot")
def one_hot(g, call, indices):
    values = g.constant(np.asarray([call["off_value"], call["on_value"]], dtype=np.float32))
    depth, index = g.number(call["depth"], "int64"), g.cast(indices, "int64")
    index = index if indices.ndim else g.Reshape(index, [1])  # OneHot needs an axis
    # In mx.nd, negative indices select nothing. ONNX counts them from the end, so replace them by
    # `depth`, which is out of range.
    index = g.Where(g.Less(index, g.number(0, "int64")), depth, index)
    found = g.OneHot(index, depth, g.cast(values, "float32", "float32"), axis=-1)
    found = found if indices.ndim else g.Reshape(found, [call["depth"]])
    return g.cast(found, call.dtype, "float32")


@imports("OneHot")
def one_hot_back(node):
    if node.attribute("axis", -1) != -1:
        return node.refuse("only axis=-1 is supported")
    off, on = [float(item) for item in node.constant(2)]
    depth = int(node.number(1))
    return sym.one_hot(
        node.symbol(0), depth=depth, on_value=on, off_value=off, dtype=node.dtype(2), name=node.name
    )


# --- Sorting --------------------------------------------------------------------------------------


def _top(g, x, axis, count, largest):
    """Returns the (values, indices) of the first `count` elements in order."""
    size = g.sizes([x.shape[axis] if count is None else count])
    wide = {"bool": "int32", "int8": "int32", "uint8": "int32"}.get(x.dtype, x.dtype)
    source = g.cast(x, wide)
    values, indices = g.TopK(source, size, axis=axis, largest=int(largest), sorted=1, outputs=2)
    return g.cast(values, x.dtype, wide), indices


@exports("topk", "TopK")
def topk(g, call, x):
    axis, count, kind = call["axis"], call["k"], call["ret_typ"]
    if axis is None:
        x = _flat(g, x)
        axis = 0
    count = count if count > 0 else x.size(axis)
    values, indices = _top(g, x, axis, count, not call["is_ascend"])
    if kind == "mask":
        return _marked(g, call, x, axis % x.ndim, indices, count)
    indices = g.cast(indices, call.outputs[-1][1], "int64")
    return {"value": [values], "indices": [indices], "both": [values, indices]}[kind]


def _marked(g, call, x, axis, indices, count):
    """Returns ones at the indices, and zeros elsewhere."""
    shape = [count if i == axis else size for i, size in enumerate(x.shape)]
    ones, zeros = g.full(shape, 1, call.dtype), g.full(x.shape, 0, call.dtype)
    return g.reshape(g.ScatterElements(zeros, indices, ones, axis=axis), call.shape, ())


def _flat(g, x):
    return value(g.Reshape(x, [-1]), (math.prod(x.sizes),), x.dtype)


@exports("sort", "TopK")
def sort(g, call, x):
    axis = call["axis"]
    x, axis = (_flat(g, x), 0) if axis is None else (x, axis)
    return _top(g, x, axis, None, not call["is_ascend"])[0]


@exports("argsort", "TopK")
def argsort(g, call, x):
    axis = call["axis"]
    x, axis = (_flat(g, x), 0) if axis is None else (x, axis)
    return g.cast(_top(g, x, axis, None, not call["is_ascend"])[1], call.dtype, "int64")


@imports("TopK")
def topk_back(node):
    count = int(node.number(1)) if node.has(1) else node.attribute("k")
    values, indices = sym.topk(
        node.symbol(0),
        axis=node.attribute("axis", -1),
        k=count,
        ret_typ="both",
        is_ascend=not node.attribute("largest", 1),
        dtype="int64",
        name=node.name,
    )
    return [values, indices]


# --- Sequences with lengths -----------------------------------------------------------------------


def _steps(g, x, axis):
    return g.Range(
        g.number(0, "int64"),
        g.Squeeze(g.sizes([x.shape[axis]]), [0]),
        g.number(1, "int64"),
    )


def _at_most(g, lengths, x, axis):
    """Clips lengths to the number of steps."""
    longest = g.Squeeze(g.sizes([x.shape[axis]]), [0])
    return g.Min(g.cast(lengths, "int64"), longest)


@exports("SequenceMask", "Range, Less, Where")
def sequence_mask(g, call, x, lengths=None):
    if lengths is None:
        return x
    axis = call["axis"]
    steps = g.Unsqueeze(_steps(g, x, axis), [1 - axis])
    inside = g.Less(steps, g.Unsqueeze(g.cast(lengths, "int64"), [axis]))
    if x.ndim > 2:
        inside = g.Unsqueeze(inside, list(range(2, x.ndim)))
    return g.Where(inside, x, float(call["value"]))


@exports("SequenceLast", "Gather, or GatherND")
def sequence_last(g, call, x, lengths=None):
    axis = call["axis"]
    if lengths is None:
        return g.Gather(x, g.number(-1, "int64"), axis=axis)
    if axis == 0:
        x = g.Transpose(x, perm=[1, 0, *range(2, x.ndim)])
    last = g.Sub(_at_most(g, lengths, call.inputs[0], axis), g.number(1, "int64"))
    last = g.Max(last, g.number(0, "int64"))
    return g.GatherND(x, g.Unsqueeze(last, [1]), batch_dims=1)


@exports("SequenceReverse", "ReverseSequence")
def sequence_reverse(g, call, x, lengths=None):
    if lengths is None:
        return g.Slice(x, [(1 << 63) - 1], [-(1 << 63) + 1], [0], [-1])
    return g.ReverseSequence(x, _at_most(g, lengths, x, 0), batch_axis=1, time_axis=0)
