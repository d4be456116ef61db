"""Ops that reshape, join and split arrays."""

from __future__ import annotations

import math

from ... import symbol as sym
from .._package import ONNXError
from .._sizes import Dynamic
from .._source import Open, runs_of, size_of
from .._table import exports, imports
from .constants import opened

# Slice bounds that include the last element of an axis, or the first one for negative steps.
END, START = (1 << 63) - 1, -(1 << 63) + 1


@exports(
    "Reshape _reshape_numpy _reshape_codes Flatten reshape_like squeeze expand_dims", "Reshape"
)
def reshape(g, call, x, like=None):
    return g.reshape(x, call.shape)


@imports("Reshape")
def reshape_back(node):
    shape = node.sizes(1, "shape")
    if node.attribute("allowzero", 0) and 0 in shape:
        raise ONNXError("Reshape to a size of 0 is not supported")
    return sym.reshape(node.symbol(0), shape=tuple(_codes(node, shape)), name=node.name)


def _codes(node, shape):
    """Converts a target shape with open sizes to codes of Reshape."""
    places = [axis for axis, size in enumerate(shape) if isinstance(size, Open) or size == -1]
    if len(places) <= 1:
        return [-1 if axis in places else size for axis, size in enumerate(shape)]
    known = node.shape(0)
    sizes = [known[axis] if size == 0 else size for axis, size in enumerate(shape)]
    codes = None if -1 in sizes else _matched(list(known), sizes)
    if codes is None:
        raise ONNXError("the new shape has several dynamic sizes")
    return codes


def _matched(old, new):
    """Returns codes that keep, merge and split axes in order, or None if that is impossible."""
    if not old and not new:
        return []
    ways = []
    if old and new and old[0] == new[0]:
        ways.append(([0], 1, 1))
    if len(old) > 1 and new and _product(old[:2]) == new[0]:
        ways.append(([-3], 2, 1))
    if old and len(new) > 1 and old[0] == _product(new[:2]):
        split = [-1 if isinstance(size, Open) else size for size in new[:2]]
        if split != [-1, -1]:
            ways.append(([-4, *split], 1, 2))
    for codes, used, made in ways:
        rest = _matched(old[used:], new[made:])
        if rest is not None:
            return codes + rest
    return None


def _product(sizes):
    return size_of(math.prod(runs) for runs in zip(*[runs_of(size) for size in sizes]))


@imports("Flatten")
def flatten_back(node):
    axis = node.attribute("axis", 1)
    axis += node.ndim(0) * (axis < 0)
    if axis == 1:
        return sym.flatten(node.symbol(0), name=node.name)
    if axis == 0:
        return sym.reshape(node.symbol(0), shape=(1, -1), name=node.name)
    front = math.prod(node.size(0, place) for place in range(axis))
    return sym.reshape(node.symbol(0), shape=(front, -1), name=node.name)


@imports("Squeeze")
def squeeze_back(node):
    axes = node.integers(1, "axes")
    return sym.squeeze(node.symbol(0), axis=None if axes is None else tuple(axes), name=node.name)


@imports("Unsqueeze")
def unsqueeze_back(node):
    axes, found = node.integers(1, "axes"), node.symbol(0)
    ndim = node.ndim(0) + len(axes)
    for axis in sorted(axis % ndim for axis in axes):
        found = sym.expand_dims(found, axis=axis)
    return found


@exports("transpose", "Transpose")
def transpose(g, call, x):
    if not x.ndim:
        return x
    axes = call["axes"] or range(x.ndim)[::-1]
    return g.Transpose(x, perm=[axis % x.ndim for axis in axes])


@imports("Transpose")
def transpose_back(node):
    axes = tuple(node.attribute("perm") or ())
    return sym.transpose(node.symbol(0), axes=axes, name=node.name)


@exports("SwapAxis", "Transpose")
def swap_axis(g, call, x):
    axes = list(range(x.ndim))
    first, second = call["dim1"], call["dim2"]
    axes[first], axes[second] = axes[second], axes[first]
    return g.Transpose(x, perm=axes)


# --- Joining and splitting ------------------------------------------------------------------------


@exports("Concat _rnn_param_concat", "Concat")
def concat(g, call, *inputs):
    return g.Concat(*inputs, axis=call.axis("dim"))


@imports("Concat")
def concat_back(node):
    parts = [node.symbol(place) for place in range(node.count)]
    return sym.concat(*parts, dim=node.attribute("axis", 1), name=node.name)


@exports("stack", "Unsqueeze, Concat")
def stack(g, call, *inputs):
    axis = call.axis(ndim=inputs[0].ndim + 1)
    return g.Concat(*[g.Unsqueeze(x, [axis]) for x in inputs], axis=axis)


@exports("SliceChannel", "Split")
def slice_channel(g, call, x):
    axis = call.axis()
    parts = g.Split(x, axis=axis, outputs=call["num_outputs"])
    return [g.Squeeze(part, [axis]) for part in parts] if call["squeeze_axis"] else parts


@exports("_split_v2", "Slice")
def split(g, call, x):
    axis, sections = call.axis(), call["sections"]
    if sections:
        parts = g.Split(x, axis=axis, outputs=sections)
    else:
        begins = list(call["indices"])
        begins = begins if len(begins) == len(call.outputs) else [0, *begins]
        ends = [*begins[1:], END]
        parts = [g.Slice(x, [begin], [end], [axis]) for begin, end in zip(begins, ends)]
    return [g.Squeeze(part, [axis]) for part in parts] if call["squeeze_axis"] else parts


@imports("Split")
def split_back(node):
    axis = node.attribute("axis", 0)
    sizes = node.integers(1, "split")
    if sizes is None:
        count = node.attribute("num_outputs", len(node.outputs))
        size = node.shape(0)[axis]
        if not isinstance(size, Open) and size % count:
            part = -(-size // count)
            sizes = [*[part] * (count - 1), size - part * (count - 1)]
    if sizes is None or (len(set(sizes)) == 1 and len(sizes) > 1):
        parts = sym.split(node.symbol(0), num_outputs=len(node.outputs), axis=axis, name=node.name)
        return [parts] if len(node.outputs) == 1 else list(parts)
    places = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    x = node.symbol(0)
    return [
        sym.slice_axis(x, axis=axis, begin=begin, end=end) for begin, end in zip(places, places[1:])
    ]


@exports("slice", "Slice")
def slice_(g, call, x):
    begins, ends, steps = call["begin"], call["end"], call["step"] or ()
    axes = range(len(begins))
    steps = [*[step or 1 for step in steps], *[1] * (len(begins) - len(steps))]
    begins = [
        (0 if step > 0 else END) if begin is None else begin for begin, step in zip(begins, steps)
    ]
    ends = [(END if step > 0 else START) if end is None else end for end, step in zip(ends, steps)]
    return g.Slice(x, begins, ends, axes, steps)


@exports("slice_axis", "Slice")
def slice_axis(g, call, x):
    end = call["end"]
    return g.Slice(x, [call["begin"]], [END if end is None else end], [call.axis()])


@exports("slice_like", "Slice")
def slice_like(g, call, x, like):
    axes = [axis + x.ndim * (axis < 0) for axis in call["axes"] or range(like.ndim)]
    return g.Slice(x, [0] * len(axes), g.sizes([call.shape[axis] for axis in axes]), axes)


@exports("Crop", "Slice")
def crop(g, call, x, like=None):
    height, width = call.shape[2:]
    if isinstance(height, Dynamic) or isinstance(width, Dynamic):
        call.refuse("a crop to dynamic sizes cannot be converted; fix height and width")
    top, left = call["offset"]
    if call["center_crop"]:
        top, left = (x.size(2) - height) // 2, (x.size(3) - width) // 2
    return g.Slice(x, [top, left], [top + height, left + width], [2, 3])


@exports("_image_crop", "Slice")
def image_crop(g, call, x):
    top, left = call["y"], call["x"]
    axes = [x.ndim - 3, x.ndim - 2]
    return g.Slice(x, [top, left], [top + call["height"], left + call["width"]], axes)


@imports("Slice")
def slice_back(node):
    begins, ends = node.integers(1, "starts"), node.sizes(2, "ends")
    axes = node.integers(3, "axes") or list(range(len(begins)))
    steps = node.integers(4) or [1] * len(begins)
    ndim, found = node.ndim(0), node.symbol(0)
    begin, end, step = [None] * ndim, [None] * ndim, [None] * ndim
    for axis, first, last, stride in zip(axes, begins, ends, steps):
        axis %= ndim
        if isinstance(last, Open):
            found = _to_open(node, found, (first, last, stride), axis)
            continue
        size = node.shape(0)[axis]
        far = 1 << 31 if isinstance(size, Open) else size
        begin[axis] = None if (first >= far if stride < 0 else first <= -far) else first
        end[axis] = None if (last <= -far if stride < 0 else last >= far) else last
        step[axis] = stride
    return sym.slice(found, begin=tuple(begin), end=tuple(end), step=tuple(step), name=node.name)


def _to_open(node, x, cut, axis):
    """Slices an axis from 0 to an open size, which is taken from another array at run time."""
    first, last, stride = cut
    if first != 0 or stride != 1:
        raise ONNXError("a slice to a dynamic size must start at 0")
    return sym.slice_like(x, node.graph.vector(last, axis, node.ndim(0)), axes=(axis,))


@exports("reverse", "Slice")
def reverse(g, call, x):
    axes = call["axis"]
    axes = [axis + x.ndim * (axis < 0) for axis in ((axes,) if isinstance(axes, int) else axes)]
    count = len(axes)
    return g.Slice(x, [END] * count, [START] * count, axes, [-1] * count)


@exports("_image_flip_left_right", "Slice")
def flip_left_right(g, call, x):
    return g.Slice(x, [END], [START], [x.ndim - 2], [-1])


@exports("_image_flip_top_bottom", "Slice")
def flip_top_bottom(g, call, x):
    return g.Slice(x, [END], [START], [x.ndim - 3], [-1])


# --- Repeating and padding ------------------------------------------------------------------------


@exports("tile", "Tile")
def tile(g, call, x):
    reps = call["reps"]
    reps = [reps] if isinstance(reps, int) else list(reps)
    if len(reps) > x.ndim:
        x = g.reshape(x, (*[1] * (len(reps) - x.ndim), *x.shape))
    else:
        reps = [*[1] * (x.ndim - len(reps)), *reps]
    return g.Tile(x, reps)


@imports("Tile")
def tile_back(node):
    return sym.tile(node.symbol(0), reps=tuple(node.integers(1)), name=node.name)


@exports("repeat", "Expand")
def repeat(g, call, x):
    times, axis, shape = call["repeats"], call["axis"], x.shape
    if axis is None:
        flat = g.Reshape(x, [-1, 1])
        return g.Reshape(g.Tile(flat, [1, times]), [-1])
    axis += x.ndim * (axis < 0)
    apart = g.Tile(
        g.Unsqueeze(x, [axis + 1]), [*[1] * (axis + 1), times, *[1] * (x.ndim - axis - 1)]
    )
    return g.reshape(apart, call.shape, (*shape[: axis + 1], times, *shape[axis + 1 :]))


@exports("broadcast_to broadcast_axis", "Expand")
def broadcast_to(g, call, x):
    return g.Expand(x, g.sizes(call.shape))


@exports("broadcast_like", "Expand")
def broadcast_like(g, call, x, like):
    if call["lhs_axes"] is None and x.ndim == like.ndim:
        return g.Expand(x, g.Shape(like))
    return g.Expand(x, g.sizes(call.shape))


@imports("Expand")
def expand_back(node):
    sizes, dtype, found = node.sizes(1), node.dtype(0), node.symbol(0)
    if node.ndim(0) > len(sizes):
        sizes = [*[1] * (node.ndim(0) - len(sizes)), *sizes]
    shape = tuple([1 if isinstance(size, Open) else size for size in sizes])
    if dtype == "bool":  # bool cannot be added
        found = sym.cast(found, dtype="uint8")
        found = sym.broadcast_add(found, sym.zeros(shape=shape, dtype="uint8"))
        return sym.cast(opened(node, found, sizes, "uint8"), dtype="bool")
    zeros = sym.zeros(shape=shape, dtype=dtype)
    return opened(node, sym.broadcast_add(found, zeros), sizes, dtype)


PADS = {"constant": "constant", "edge": "edge", "reflect": "reflect"}


@exports("Pad", "Pad")
def pad(g, call, x):
    width = call["pad_width"]
    sizes = [*width[::2], *width[1::2]]
    number = float(call["constant_value"]) if call["mode"] == "constant" else None
    return g.Pad(x, sizes, number, mode=call["mode"])


@imports("Pad")
def pad_back(node):
    sizes = node.integers(1, "pads")
    mode = node.attribute("mode", "constant")
    axes, ndim = node.integers(3), node.ndim(0)
    if mode not in PADS:
        raise ONNXError(f"Pad with mode {mode!r} is not supported")
    width = [(0, 0)] * ndim
    half = len(sizes) // 2
    for axis, pair in zip(axes or range(ndim), zip(sizes[:half], sizes[half:])):
        width[axis] = pair
    if min(sizes) < 0:
        raise ONNXError("Pad with negative sizes is not supported")
    number = node.attribute("value", node.number(2) or 0.0)
    return padded(node.symbol(0), width, mode, number, node.name)


def padded(x, width, mode="constant", number=0.0, name=None):
    """Pads any axes of any array. `sym.Pad` supports only the spatial axes of 4-d and 5-d
    arrays."""
    ndim = len(width)
    if not any(sum(pair) for pair in width):
        return x
    if ndim in (4, 5) and not any(sum(pair) for pair in width[:2]):
        flat = tuple([size for pair in width for size in pair])
        return sym.pad(x, mode=mode, pad_width=flat, constant_value=number, name=name)
    if ndim == 3 and not any(sum(pair) for pair in width[:2]):
        flat = (0, 0, 0, 0, 0, 0, *width[2])
        x = sym.pad(sym.expand_dims(x, axis=2), mode=mode, pad_width=flat, constant_value=number)
        return sym.squeeze(x, axis=2)
    if mode != "constant":
        raise ONNXError(f"Pad of these axes with mode {mode!r} is not supported")
    for axis, pair in enumerate(width):
        first = sym.slice_axis(x, axis=axis, begin=0, end=1) if sum(pair) else None
        fill = None if first is None else sym.zeros_like(first) + number
        before, after = [
            [sym.tile(fill, reps=(size, *[1] * (ndim - axis - 1)))] if size else [] for size in pair
        ]
        x = sym.concat(*before, x, *after, dim=axis) if sum(pair) else x
    return x


@exports("depth_to_space", "DepthToSpace")
def depth_to_space(g, call, x):
    return g.DepthToSpace(x, blocksize=call["block_size"])


@exports("space_to_depth", "SpaceToDepth")
def space_to_depth(g, call, x):
    return g.SpaceToDepth(x, blocksize=call["block_size"])


@imports("DepthToSpace")
def depth_to_space_back(node):
    size, x = node.attribute("blocksize"), node.symbol(0)
    if node.attribute("mode", "DCR") == "DCR":
        return sym.depth_to_space(x, block_size=size, name=node.name)
    x = sym.reshape(x, shape=(0, -4, -1, size * size, -2))
    x = sym.reshape(x, shape=(0, 0, -4, size, size, -2))
    x = sym.transpose(x, axes=(0, 1, 4, 2, 5, 3))
    return sym.reshape(x, shape=(0, 0, -3, -3), name=node.name)


@imports("SpaceToDepth")
def space_to_depth_back(node):
    size = node.attribute("blocksize")
    return sym.space_to_depth(node.symbol(0), block_size=size, name=node.name)
