"""Ops on boxes, regions of interest and sampling grids."""

from __future__ import annotations

import math

import numpy as np

from ... import symbol as sym
from .._table import exports, imports


def _columns(g, x, begin, end):
    """Slices the last axis."""
    return g.Slice(x, [begin], [end], [x.ndim - 1])


# --- box_nms --------------------------------------------------------------------------------------


def _other_format(g, boxes, to):
    """Converts boxes to the other format: corners, or center and size."""
    first, second = g.Split(boxes, axis=2, outputs=2)
    if to == "center":
        return g.Concat(g.Mul(g.Add(first, second), 0.5), g.Sub(second, first), axis=2)
    half = g.Mul(second, 0.5)
    return g.Concat(g.Sub(first, half), g.Add(first, half), axis=2)


def _by_class(g, corners, ids):
    """Offsets boxes by class, so that boxes of different classes do not overlap and non-maximum
    suppression treats classes separately."""
    low = g.ReduceMin(corners, axes=[0, 1, 2], keepdims=1)
    span = g.Add(g.Sub(g.ReduceMax(corners, axes=[0, 1, 2], keepdims=1), low), 1.0)
    return g.Add(g.Sub(corners, low), g.Mul(ids, span))


@exports("_contrib_box_nms", "TopK, NonMaxSuppression, ScatterND, GatherElements")
def box_nms(g, call, x):
    """Returns rows sorted by score; suppressed rows come last, as -1."""
    if call["topk"] == 0:
        return x
    if x.dtype != "float32":
        call.refuse(f"NonMaxSuppression needs float32, not {x.dtype}; cast before it")
    shape, count, width = x.shape, x.size(x.ndim - 2), x.size(x.ndim - 1)
    batch = shape[0] if x.ndim == 3 else 1 if x.ndim == 2 else math.prod(x.sizes[:-2])
    rows = x if x.ndim == 3 else g.reshape(x, (batch, count, width))
    rows, scores, ids, most = _best_rows(g, call, rows, count, width)
    start = call["coord_start"]
    boxes = g.Slice(rows, [start], [start + 4], [2])
    corners = boxes if call["in_format"] == "corner" else _other_format(g, boxes, "corner")
    if ids is not None and not call["force_suppress"]:
        corners = _by_class(g, corners, ids)
    chosen = g.NonMaxSuppression(
        corners,
        g.Transpose(scores, perm=[0, 2, 1]),
        g.number(most, "int64"),
        g.number(call["overlap_thresh"], "float32"),
        g.number(call["valid_thresh"], "float32"),
    )
    if call["in_format"] != call["out_format"]:
        turned = _other_format(g, boxes, call["out_format"])
        parts = [g.Slice(rows, [0], [start], [2]), turned, g.Slice(rows, [start + 4], [width], [2])]
        rows = g.Concat(
            *[part for part, size in zip(parts, (start, 4, width - start - 4)) if size], axis=2
        )
    found = _kept(g, rows, scores, chosen, (count, most, width))
    return found if x.ndim == 3 else g.reshape(found, shape, ())


def _best_rows(g, call, rows, count, width):
    """Returns the rows with the highest scores, sorted, as (rows, scores, ids, count). Rows of the
    background class get a low score."""
    score, identity = call["score_index"], call["id_index"]
    most = min(call["topk"], count) if call["topk"] > 0 else count
    scores = g.Slice(rows, [score], [score + 1], [2])
    if identity >= 0:
        ids = g.Slice(rows, [identity], [identity + 1], [2])
        background = g.Equal(ids, float(call["background_id"]))
        scores = g.Where(background, g.number(np.finfo(np.float32).min, "float32"), scores)
    scores, order = g.TopK(scores, [most], axis=1, largest=1, sorted=1, outputs=2)
    rows = g.GatherElements(rows, g.Tile(order, [1, 1, width]), axis=1)
    ids = g.Slice(rows, [identity], [identity + 1], [2]) if identity >= 0 else None
    return rows, scores, ids, most


def _kept(g, rows, scores, chosen, sizes):
    """Moves the selected rows to the front, in order, and fills the rest with -1."""
    count, most, width = sizes
    places = g.Gather(chosen, g.integers([0, 2]), axis=1)
    ones = g.cast(
        g.Add(g.Mul(g.Slice(chosen, [0], [1], [1]), g.number(0, "int64")), g.number(1, "int64")),
        "float32",
        "int64",
    )
    flags = g.Mul(g.Squeeze(scores, [2]), 0.0)
    flags = g.Where(g.IsNaN(flags), 0.0, flags)
    kept = g.ScatterND(flags, places, g.Squeeze(ones, [1]))
    # Sort key. Its descending order puts the kept rows first and otherwise preserves the order.
    rank = g.Sub(g.Mul(kept, float(2 * most)), np.arange(most, dtype=np.float32))
    flag = g.Unsqueeze(kept, [2])
    rows = g.Where(g.Greater(flag, 0.5), rows, -1.0)
    _, order = g.TopK(rank, [most], axis=1, largest=1, sorted=1, outputs=2)
    rows = g.GatherElements(rows, g.Tile(g.Unsqueeze(order, [2]), [1, 1, width]), axis=1)
    if most == count:
        return rows
    return g.Pad(rows, [0, 0, 0, 0, count - most, 0], -1.0, mode="constant")


@exports("_contrib_box_decode", "Split, Exp, Concat")
def box_decode(g, call, x, anchors):
    if call["format"] == "corner":
        anchors = _other_format(g, anchors, "center")
    places, sizes = g.Split(anchors, axis=2, outputs=2)
    moves, growths = g.Split(x, axis=2, outputs=2)
    moves = g.Mul(moves, _pair(call["std0"], call["std1"], x))
    growths = g.Mul(growths, _pair(call["std2"], call["std3"], x))
    if float(call["clip"]) > 0:
        growths = g.Min(growths, float(call["clip"]))
    center = g.Add(g.Mul(moves, sizes), places)
    half = g.Mul(g.Mul(g.Exp(growths), sizes), 0.5)
    return g.Concat(g.Sub(center, half), g.Add(center, half), axis=2)


def _pair(first, second, x):
    return np.asarray([first, second], dtype=x.dtype)


@exports("_contrib_MultiBoxDetection", "an error that says what to use")
def multi_box_detection(g, call, *inputs):
    call.refuse(
        "it cannot be converted; use contrib.box_decode and contrib.box_nms, which become "
        "NonMaxSuppression"
    )


# --- Regions --------------------------------------------------------------------------------------


@exports("_contrib_ROIAlign", "RoiAlign")
def roi_align(g, call, x, rois):
    if call["position_sensitive"]:
        call.refuse("position_sensitive=True cannot be converted")
    height, width = call["pooled_size"]
    numbers, zero = g.Squeeze(g.cast(_columns(g, rois, 0, 1), "int64"), [1]), g.number(0, "int64")
    found = g.RoiAlign(
        x,
        _columns(g, rois, 1, 5),
        g.Max(numbers, zero),
        output_height=height,
        output_width=width,
        sampling_ratio=max(call["sample_ratio"], 0),
        spatial_scale=float(call["spatial_scale"]),
        coordinate_transformation_mode="half_pixel" if call["aligned"] else "output_half_pixel",
    )
    # A region with a negative image index results in zeros.
    none = g.Unsqueeze(g.Less(numbers, zero), [1, 2, 3])
    return g.Where(none, 0.0, found)


@exports("ROIPooling", "MaxRoiPool")
def roi_pooling(g, call, x, rois):
    return g.MaxRoiPool(
        x,
        rois,
        pooled_shape=list(call["pooled_size"]),
        spatial_scale=float(call["spatial_scale"]),
    )


# --- Grids ----------------------------------------------------------------------------------------


def _affine(g, x, height, width, dtype):
    """Returns the sampling grid of affine maps, each given by six numbers. Its shape is (batch, 2,
    height, width)."""
    rows, columns = np.linspace(-1, 1, height), np.linspace(-1, 1, width)
    x_places, y_places = np.meshgrid(columns, rows)
    points = np.stack([x_places.ravel(), y_places.ravel(), np.ones(height * width)])
    found = g.MatMul(g.Reshape(x, [-1, 2, 3]), points.astype(dtype))
    return g.Reshape(found, [-1, 2, height, width])


def _sampled(g, x, grid):
    grid = g.Transpose(grid, perm=[0, 2, 3, 1])
    return g.GridSample(x, grid, align_corners=1, mode="bilinear", padding_mode="zeros")


@exports("GridGenerator", "MatMul, or Div and Add")
def grid_generator(g, call, x):
    if call["transform_type"] == "affine":
        return _affine(g, x, *call["target_shape"], x.dtype)
    height, width = x.size(2), x.size(3)
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = np.stack([columns, rows]).astype(x.dtype)
    scale = np.asarray([(width - 1) / 2, (height - 1) / 2], dtype=x.dtype).reshape(2, 1, 1)
    return g.Sub(g.Div(g.Add(x, places), scale), 1.0)


@exports("BilinearSampler", "GridSample")
def bilinear_sampler(g, call, x, grid):
    return _sampled(g, x, grid)


@exports("SpatialTransformer", "MatMul, GridSample")
def spatial_transformer(g, call, x, loc):
    return _sampled(g, x, _affine(g, loc, *call["target_shape"], x.dtype))


# --- Import ---------------------------------------------------------------------------------------


@imports("GridSample")
def grid_sample_back(node):
    mode = node.attribute("mode", "bilinear")
    if mode not in ("bilinear", "linear") or not node.attribute("align_corners", 0):
        return node.refuse("only mode='bilinear' with align_corners=1 is supported")
    if node.attribute("padding_mode", "zeros") != "zeros":
        return node.refuse("only padding_mode='zeros' is supported")
    grid = sym.transpose(node.symbol(1), axes=(0, 3, 1, 2))
    return sym.BilinearSampler(node.symbol(0), grid, name=node.name)


@imports("RoiAlign")
def roi_align_back(node):
    if node.attribute("mode", "avg") != "avg":
        return node.refuse("only mode='avg' is supported")
    kind = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    kind = node.attribute("coordinate_transformation_mode", kind)
    numbers = sym.expand_dims(sym.cast(node.symbol(2), dtype=node.dtype(1)), axis=1)
    return sym.contrib.ROIAlign(
        node.symbol(0),
        sym.concat(numbers, node.symbol(1), dim=1),
        pooled_size=(node.attribute("output_height", 1), node.attribute("output_width", 1)),
        spatial_scale=node.attribute("spatial_scale", 1.0),
        sample_ratio=node.attribute("sampling_ratio", 0) or -1,
        aligned=kind == "half_pixel",
        name=node.name,
    )


@imports("MaxRoiPool")
def roi_pooling_back(node):
    return sym.ROIPooling(
        node.symbol(0),
        node.symbol(1),
        pooled_size=tuple(node.attribute("pooled_shape")),
        spatial_scale=node.attribute("spatial_scale", 1.0),
        name=node.name,
    )
