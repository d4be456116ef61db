"""Convolutions, pooling and resizing."""

from __future__ import annotations

import math

import numpy as np

from ... import symbol as sym
from .._graph import value
from .._sizes import Dynamic
from .._table import exports, imports
from .shapes import padded


def _each(sizes, count, default):
    """Returns a list with a parameter's value for each of `count` spatial axes."""
    if isinstance(sizes, int):
        return [sizes] * count
    return list(sizes) if sizes else [default] * count


def _geometry(call):
    """Returns (kernel, stride, dilation, padding) of a convolution."""
    kernel = _each(call["kernel"], 1, 1)
    count = len(kernel)
    return kernel, *[
        _each(call[key], count, default)
        for key, default in (("stride", 1), ("dilate", 1), ("pad", 0))
    ]


def _channels_second(g, call, x, *weights):
    """Moves the channels to axis 1, as ONNX requires. Returns (x, weights, a function that restores
    the layout of a result)."""
    layout = call["layout"]
    if layout is None or layout[1] == "C":
        return x, weights, lambda name: name
    ndim = x.ndim
    to, back = [0, ndim - 1, *range(1, ndim - 1)], [0, *range(2, ndim), 1]
    shape = tuple([x.shape[axis] for axis in to])
    turned = value(g.Transpose(x, perm=to), shape, x.dtype)
    return (
        turned,
        [g.Transpose(weight, perm=to) for weight in weights],
        lambda name: g.Transpose(name, perm=back),
    )


@exports("Convolution", "Conv")
def convolution(g, call, x, weight, bias=None):
    kernel, stride, dilation, pad = _geometry(call)
    x, (weight,), back = _channels_second(g, call, x, weight)
    found = g.Conv(
        x,
        weight,
        bias,
        kernel_shape=kernel,
        strides=stride,
        dilations=dilation,
        pads=pad * 2,
        group=call["num_group"],
    )
    return back(found)


@exports("Deconvolution", "ConvTranspose")
def deconvolution(g, call, x, weight, bias=None):
    kernel, stride, dilation, pad = _geometry(call)
    adjusted = _each(call["adj"], len(kernel), 0)
    x, (weight,), back = _channels_second(g, call, x, weight)
    target = call["target_shape"]
    if target and any(_each(target, len(kernel), 0)):
        pad, adjusted = _to_target(x, kernel, stride, dilation, _each(target, len(kernel), 0))
    found = g.ConvTranspose(
        x,
        weight,
        bias,
        kernel_shape=kernel,
        strides=stride,
        dilations=dilation,
        pads=pad * 2,
        output_padding=adjusted,
        group=call["num_group"],
    )
    return back(found)


def _to_target(x, kernel, stride, dilation, target):
    """Returns the padding and the output adjustment of a deconvolution for which the result has the
    target size."""
    over = [
        s * (x.size(axis + 2) - 1) + d * (k - 1) + 1 - size
        for axis, (k, s, d, size) in enumerate(zip(kernel, stride, dilation, target))
    ]
    adjusted = [size % 2 for size in over]
    return [(size + more) // 2 for size, more in zip(over, adjusted)], adjusted


def _window(node, kernel):
    """Returns (stride, dilation, pairs of padding) of a window in a file."""
    count = len(kernel)
    stride = list(node.attribute("strides") or [1] * count)
    dilation = list(node.attribute("dilations") or [1] * count)
    pads = list(node.attribute("pads") or [0] * (2 * count))
    kind = node.attribute("auto_pad", "NOTSET")
    pairs = list(zip(pads[:count], pads[count:]))
    if kind in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation)):
            size = node.size(0, axis + 2)
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if kind == "SAME_UPPER" else (more, less))
    return stride, dilation, pairs


def _split_padding(x, pairs, number=0.0):
    """Returns (x, padding); asymmetric padding is applied to x itself."""
    if all(before == after for before, after in pairs):
        return x, tuple([before for before, _ in pairs])
    return padded(x, [(0, 0), (0, 0), *pairs], number=number), (0,) * len(pairs)


@imports("Conv")
def convolution_back(node):
    shape = node.shape(1)
    kernel = list(node.attribute("kernel_shape") or shape[2:])
    stride, dilation, pairs = _window(node, kernel)
    x, pad = _split_padding(node.symbol(0), pairs)
    bias = {"bias": node.symbol(2)} if node.has(2) else {"no_bias": True}
    return sym.Convolution(
        x,
        node.symbol(1),
        kernel=tuple(kernel),
        stride=tuple(stride),
        dilate=tuple(dilation),
        pad=pad,
        num_filter=shape[0],
        num_group=node.attribute("group", 1),
        name=node.name,
        **bias,
    )


@imports("ConvTranspose")
def deconvolution_back(node):
    shape, groups = node.shape(1), node.attribute("group", 1)
    kernel = list(node.attribute("kernel_shape") or shape[2:])
    stride, dilation, pairs = _window(node, kernel)
    told = node.attribute("output_shape")
    if told or any(before != after for before, after in pairs):
        return node.refuse("output_shape and asymmetric padding are not supported")
    adjusted = node.attribute("output_padding") or [0] * len(kernel)
    bias = {"bias": node.symbol(2)} if node.has(2) else {}
    return sym.Deconvolution(
        node.symbol(0),
        node.symbol(1),
        kernel=tuple(kernel),
        stride=tuple(stride),
        dilate=tuple(dilation),
        pad=tuple([before for before, _ in pairs]),
        adj=tuple(adjusted),
        num_filter=shape[1] * groups,
        num_group=groups,
        no_bias=not bias,
        name=node.name,
        **bias,
    )


# --- Pooling --------------------------------------------------------------------------------------


@exports("Pooling", "MaxPool, AveragePool, GlobalMaxPool, GlobalAveragePool, ...")
def pooling(g, call, x):
    x, _, back = _channels_second(g, call, x)
    if call["global_pool"]:
        return back(_global(g, call, x))
    if call["pooling_convention"] == "same":
        call.refuse("pooling_convention='same' cannot be converted; use 'valid' or 'full'")
    return back(_pooled(g, call, x))


def _global(g, call, x):
    kind = call["pool_type"]
    if kind == "max":
        return g.GlobalMaxPool(x)
    if kind == "avg":
        return g.GlobalAveragePool(x)
    if kind == "lp":
        return g.GlobalLpPool(x, p=call["p_value"])
    return g.ReduceSum(x, list(range(2, x.ndim)), keepdims=1)


def _pooled(g, call, x):
    kernel = _each(call["kernel"], 1, 1)
    count, kind = len(kernel), call["pool_type"]
    stride, pad = _each(call["stride"], count, 1), _each(call["pad"], count, 0)
    pads, ceil = _ends(call, x, kernel, stride, pad)
    window = {"kernel_shape": kernel, "strides": stride}
    if any(end >= size for end, size in zip(pads[count:], kernel)):
        x, pads, pad = _padded_ends(g, call, x, pads)
    if kind == "max":
        return g.MaxPool(x, pads=pads, ceil_mode=ceil, **window)
    if kind == "lp":
        return g.LpPool(x, pads=pads, p=call["p_value"], **window)
    if kind == "avg" and not call["count_include_pad"]:
        return g.AveragePool(x, pads=pads, ceil_mode=ceil, count_include_pad=0, **window)
    if any(pad) and (pads != pad * 2 or ceil):
        # The average counts the op's own padding, so add it as explicit zeros. The padding that
        # completes the last window is not counted.
        x = g.Pad(x, [0, 0, *pad, 0, 0, *pad], 0.0, mode="constant")
        pads = [*[0] * count, *[end - size for end, size in zip(pads[count:], pad)]]
        pad = [0] * count
    counted = int(kind == "sum" or pads == pad * 2)
    found = g.AveragePool(x, pads=pads, ceil_mode=ceil, count_include_pad=counted, **window)
    return g.Mul(found, float(math.prod(kernel))) if kind == "sum" else found


def _padded_ends(g, call, x, pads):
    """Pads x explicitly, because onnxruntime requires padding to be smaller than the window.

    Returns (x, padding on both sides, padding).
    """
    count = len(pads) // 2
    if call["pool_type"] != "max":
        call.refuse(
            "pooling_convention='full' with windows entirely in the padding cannot be converted"
        )
    low = float(np.finfo(np.float16 if x.dtype == "float16" else np.float32).min)
    x = g.Pad(x, [0, 0, *pads[:count], 0, 0, *pads[count:]], low, mode="constant")
    return x, [0] * (2 * count), [0] * count


def _ends(call, x, kernel, stride, pad):
    """Returns (begin and end padding, ceil_mode). The end padding is extended so that the last
    window, which may exceed the end, fits."""
    if call["pooling_convention"] == "valid":
        return pad * 2, 0
    if any(isinstance(size, Dynamic) for size in x.shape[2:]):
        return pad * 2, 1
    behind = []
    for axis, (k, s, p) in enumerate(zip(kernel, stride, pad)):
        size = x.size(axis + 2)
        steps = -(-(size + 2 * p - k) // s)
        behind.append(max(p, steps * s + k - size - p))
    return [*pad, *behind], 0


@imports("MaxPool")
def max_pool_back(node):
    kernel = node.attribute("kernel_shape")
    stride, dilation, pairs = _window(node, kernel)
    if any(size != 1 for size in dilation):
        return node.refuse("dilations are not supported")
    x, pad = _split_padding(node.symbol(0), pairs, -np.finfo(np.float32).max)
    return _pooling(node, x, kernel, stride, pad, pool_type="max")


def _pooling(node, x, kernel, stride, pad, **options):
    full = "full" if node.attribute("ceil_mode", 0) else "valid"
    return sym.Pooling(
        x,
        kernel=tuple(kernel),
        stride=tuple(stride),
        pad=tuple(pad),
        pooling_convention=full,
        name=options.pop("name", node.name),
        **options,
    )


@imports("AveragePool")
def average_pool_back(node):
    kernel = node.attribute("kernel_shape")
    stride, _, pairs = _window(node, kernel)
    counted = bool(node.attribute("count_include_pad", 0))
    x = node.symbol(0)
    if counted or all(before == after for before, after in pairs):
        x, pad = _split_padding(x, pairs)
        options = {"pool_type": "avg", "count_include_pad": counted or pad == (0,) * len(pad)}
        return _pooling(node, x, kernel, stride, pad, **options)
    # Divide the sum of a window by its number of elements, which excludes padding.
    parts = []
    for part in (x, sym.ones_like(x)):
        around, pad = _split_padding(part, pairs)
        parts.append(_pooling(node, around, kernel, stride, pad, pool_type="sum", name=None))
    return sym.elemwise_div(*parts, name=node.name)


@imports("LpPool")
def lp_pool_back(node):
    kernel = node.attribute("kernel_shape")
    stride, _, pairs = _window(node, kernel)
    x, pad = _split_padding(node.symbol(0), pairs)
    return _pooling(node, x, kernel, stride, pad, pool_type="lp", p_value=node.attribute("p", 2))


@imports("GlobalAveragePool GlobalMaxPool")
def global_pool_back(node):
    kind = {"GlobalAveragePool": "avg", "GlobalMaxPool": "max"}[node.op]
    if node.ndim(0) not in (3, 4, 5):
        return node.refuse("global pooling must have 1 to 3 spatial axes")
    kernel = (1,) * (node.ndim(0) - 2)
    return sym.Pooling(
        node.symbol(0), global_pool=True, kernel=kernel, pool_type=kind, name=node.name
    )


@exports("_contrib_AdaptiveAvgPooling2D", "AveragePool, or MatMul")
def adaptive_pooling(g, call, x):
    height, width = call.shape[2:]
    if (height, width) == (1, 1):
        return g.GlobalAveragePool(x)
    sizes = x.size(2), x.size(3)
    if sizes[0] % height == 0 and sizes[1] % width == 0:
        steps = [sizes[0] // height, sizes[1] // width]
        return g.AveragePool(x, kernel_shape=steps, strides=steps)
    rows = _averages(sizes[0], height, x.dtype)
    columns = _averages(sizes[1], width, x.dtype).T
    return g.MatMul(rows, g.MatMul(x, np.ascontiguousarray(columns)))


def _averages(size, count, dtype):
    """Returns the matrix that averages an axis of length `size` over `count` windows (adaptive
    average pooling)."""
    matrix = np.zeros((count, size), dtype=dtype)
    for place in range(count):
        begin, end = place * size // count, -(-(place + 1) * size // count)
        matrix[place, begin:end] = 1 / (end - begin)
    return matrix


# --- Resizing -------------------------------------------------------------------------------------


@exports("UpSampling", "Resize, or ConvTranspose")
def up_sampling(g, call, x, *others):
    scale = call["scale"]
    if call["sample_type"] == "bilinear":
        size = 2 * scale - scale % 2
        pad = math.ceil((scale - 1) / 2)
        return g.ConvTranspose(
            x,
            others[0],
            kernel_shape=[size] * 2,
            strides=[scale] * 2,
            pads=[pad] * 4,
            group=x.size(1),
        )
    parts = []
    for part in (x, *others):
        times = call.shape[2] / part.size(2) if others else scale
        parts.append(_nearest(g, part, times))
    if not others:
        return parts[0]
    return g.Sum(*parts) if call["multi_input_mode"] == "sum" else g.Concat(*parts, axis=1)


def _nearest(g, x, scale):
    return g.Resize(
        x,
        None,
        np.asarray([1, 1, scale, scale], dtype=np.float32),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


@exports("_contrib_BilinearResize2D", "Resize")
def bilinear_resize(g, call, x, like=None):
    mode = "align_corners" if call["align_corners"] else "half_pixel"
    return g.Resize(
        x,
        None,
        None,
        g.sizes(call.shape),
        mode="linear",
        coordinate_transformation_mode=mode,
    )


@imports("Resize Upsample")
def resize_back(node):
    mode = node.attribute("mode", "nearest")
    places = node.attribute("coordinate_transformation_mode", "half_pixel")
    height, width = node.size(0, 2), node.size(0, 3)
    scales = node.numbers(2 if node.op == "Resize" and node.opset > 10 else 1, "scales")
    sizes = node.integers(3) if node.op == "Resize" and node.has(3) else None
    if sizes is None:
        sizes = [0, 0, math.floor(height * scales[2]), math.floor(width * scales[3])]
    times = sizes[2] / height, sizes[3] / width
    x = node.symbol(0)
    if mode == "nearest" and times[0] == times[1] == int(times[0]):
        return sym.UpSampling(x, scale=int(times[0]), sample_type="nearest", name=node.name)
    if mode == "linear" and places in ("align_corners", "half_pixel", "pytorch_half_pixel"):
        return sym.contrib.BilinearResize2D(
            x,
            height=sizes[2],
            width=sizes[3],
            align_corners=places == "align_corners",
            name=node.name,
        )
    return node.refuse(f"resizing by {mode!r}, {places!r} and {times} is not supported")
