"""Samples of region-of-interest ops: pooling, proposals, bipartite matching and correlation."""

import math

import numpy as np

from samples.base import Sample
from samples.sampling import ROIS, apart, at

random = np.random.RandomState(11)
HIGH = {"dtypes": ("float64",)}


def nearest(x):
    """Rounds halves away from zero, as C does."""
    return np.sign(x) * np.floor(abs(x) + 0.5)


def edges(low, high, scale, bins, size):
    """Returns the element ranges [begin, end) of the bins along an axis, for integer regions."""
    first, last = (int(nearest(x * scale)) for x in (low, high))
    step = max(last - first + 1, 1) / bins
    limits = [
        (math.floor(i * step) + first, math.ceil((i + 1) * step) + first) for i in range(bins)
    ]
    return [tuple(min(max(x, 0), size) for x in pair) for pair in limits]


def roi_pooling(data, rois, pooled_size, spatial_scale):
    out = np.zeros((len(rois), data.shape[1], *pooled_size))
    for n, (picture, left, top, right, bottom) in enumerate(rois):
        rows = edges(top, bottom, spatial_scale, pooled_size[0], data.shape[2])
        columns = edges(left, right, spatial_scale, pooled_size[1], data.shape[3])
        for i, (y, ye) in enumerate(rows):
            for j, (x, xe) in enumerate(columns):
                if y < ye and x < xe:
                    out[n, :, i, j] = data[int(picture), :, y:ye, x:xe].max((1, 2))
    return out


def largest_places(data, rois, pooled_size, spatial_scale):
    values = roi_pooling(data, rois, pooled_size, spatial_scale)
    places = np.full(values.shape, -1, "int64")
    for place in np.ndindex(values.shape):
        if values[place]:
            places[place] = np.flatnonzero(data.ravel() == values[place])[0]
    return places


def rounded(roi, scale, shift):
    """Returns the lower corner and the size (y, x) of a region with rounded corners."""
    left, top, right, bottom = nearest(roi[1:])
    begin = np.array([top, left]) * scale + shift
    return begin, np.maximum(np.array([bottom + 1, right + 1]) * scale + shift - begin, 0.1)


def psroi_pooling(data, rois, spatial_scale, output_dim, pooled_size, group_size=0):
    groups, bins = group_size or pooled_size, pooled_size
    out = np.zeros((len(rois), output_dim, bins, bins))
    for n, roi in enumerate(rois):
        begin, size = rounded(roi, spatial_scale, 0)
        for i, j in np.ndindex(bins, bins):
            low = np.floor(np.array([i, j]) * size / bins + begin)
            high = np.ceil(np.array([i + 1, j + 1]) * size / bins + begin)
            (y, x), (ye, xe) = (np.clip(a, 0, data.shape[2:]).astype(int) for a in (low, high))
            group = (i * groups // bins) * groups + j * groups // bins
            channels = data[int(roi[0]), group :: groups * groups]
            if y < ye and x < xe:
                out[n, :, i, j] = channels[:, y:ye, x:xe].mean((1, 2))
    return out


def deformable_psroi(
    data,
    rois,
    *trans,
    spatial_scale,
    output_dim,
    group_size,
    pooled_size,
    part_size=0,
    sample_per_part=1,
    trans_std=0,
    no_trans=False,
):
    bins, groups, samples = pooled_size, group_size, sample_per_part
    parts = part_size or bins
    classes = 1 if no_trans else trans[0].shape[1] // 2
    limit = np.array(data.shape[2:])
    out = np.zeros((len(rois), output_dim, bins, bins))
    for n, c, i, j in np.ndindex(out.shape):
        begin, size = rounded(rois[n], spatial_scale, -0.5)
        step = size / bins
        place = begin + np.array([i, j]) * step
        if not no_trans:
            kind = c // (output_dim // classes)
            x, y = trans[0][n, 2 * kind : 2 * kind + 2, i * parts // bins, j * parts // bins]
            place = place + np.array([y, x]) * trans_std * size
        group = (i * groups // bins) * groups + j * groups // bins
        picture = data[int(rois[n][0]), c * groups * groups + group][None]
        values = []
        for k in np.ndindex(samples, samples):
            p = place + np.array(k) * step / samples
            if (p >= -0.5).all() and (p <= limit - 0.5).all():
                values.append(at(picture, *np.clip(p, 0, limit - 1))[0])
        out[n, c, i, j] = np.mean(values) if values else 0
    return out


def rroi_align(data, rois, pooled_size, spatial_scale, sampling_ratio=-1):
    limit = np.array(data.shape[2:])
    out = np.zeros((len(rois), data.shape[1], *pooled_size))
    for n, roi in enumerate(rois):
        center, angle = roi[2:0:-1] * spatial_scale, np.deg2rad(roi[5])
        size = np.maximum(roi[4:2:-1] * spatial_scale, 1)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        counts = np.ceil(size / pooled_size).astype(int)
        counts = [sampling_ratio] * 2 if sampling_ratio > 0 else counts
        for i, j, a, b in np.ndindex(*pooled_size, *counts):
            part = (np.array([a, b]) + 0.5) / counts
            place = turn @ (((np.array([i, j]) + part) / pooled_size - 0.5) * size) + center
            if (place >= -1).all() and (place <= limit).all():
                sample = at(data[int(roi[0])], *np.clip(place, 0, limit - 1))
                out[n, :, i, j] += sample / np.prod(counts)
    return out


def correlation(
    data1,
    data2,
    kernel_size=1,
    max_displacement=1,
    stride1=1,
    stride2=1,
    pad_size=0,
    is_multiply=True,
):
    a, b = (
        np.pad(x, [(0, 0)] * 2 + [(pad_size, pad_size)] * 2).astype("float64")
        for x in (data1, data2)
    )
    border, radius = max_displacement + (kernel_size - 1) // 2, max_displacement // stride2
    rows, columns = (math.ceil((n - 2 * border) / stride1) for n in a.shape[2:])
    out = np.zeros((len(a), (2 * radius + 1) ** 2, rows, columns))
    for k, i, j in np.ndindex(*out.shape[1:]):
        y, x = i * stride1 + max_displacement, j * stride1 + max_displacement
        dy, dx = ((n - radius) * stride2 for n in divmod(k, 2 * radius + 1))
        one = a[:, :, y : y + kernel_size, x : x + kernel_size]
        other = b[:, :, y + dy : y + dy + kernel_size, x + dx : x + dx + kernel_size]
        alike = one * other if is_multiply else abs(one - other)
        out[:, k, i, j] = alike.mean((1, 2, 3))
    return out


def meeting(rows, columns, most, stride=1, step=1):
    """Yields each displacement's index with the matching element positions of the second image."""
    radius = most // stride
    shifts = [n * stride for n in range(-radius, radius + 1)]
    for k, (dy, dx) in enumerate((dy, dx) for dy in shifts for dx in shifts):
        y, x = (most + np.arange(n) * step for n in (rows, columns))
        yield k, np.ix_(y + dy, x + dx)


def products(first, second, **params):
    return np.stack(
        [(first * second[:, :, y, x]).sum(1) for _, (y, x) in meeting(*first.shape[2:], **params)],
        1,
    )


def by_first(grad, second, **params):
    places = meeting(*grad.shape[2:], **params)
    return sum(grad[:, k : k + 1] * second[:, :, y, x] for k, (y, x) in places)


def by_second(grad, first, height, width, **params):
    out = np.zeros((*first.shape[:2], height, width))
    for k, (y, x) in meeting(*grad.shape[2:], **params):
        out[:, :, y, x] += grad[:, k : k + 1] * first
    return out


def pairs(data, threshold, is_ascend=False, topk=-1):
    scores = data.reshape(math.prod(data.shape[:-2]), *data.shape[-2:])
    rows, columns = -np.ones(scores.shape[:2]), -np.ones((len(scores), scores.shape[2]))
    for n, matrix in enumerate(scores):
        count = 0
        for place in np.argsort(matrix if is_ascend else -matrix, axis=None, kind="stable"):
            i, j = divmod(place, matrix.shape[1])
            score = matrix[i, j]
            if (score >= threshold if is_ascend else score <= threshold) or 0 < topk < count:
                break
            if rows[n, i] == -1 and columns[n, j] == -1:
                rows[n, i], columns[n, j], count = j, i, count + 1
    lead = data.shape[:-2]
    return rows.reshape(*lead, data.shape[-2]), columns.reshape(*lead, data.shape[-1])


def anchors(stride, scales, ratios):
    center = (stride - 1) / 2
    for ratio in ratios:
        for scale in scales:
            width = math.floor(math.sqrt(stride * stride // ratio) + 0.5) * scale
            height = math.floor(width / scale * ratio + 0.5) * scale
            half = np.array([width - 1, height - 1]) / 2
            yield np.concatenate([center - half, center + half])


def proposals(
    cls_prob,
    bbox_pred,
    im_info,
    rpn_pre_nms_top_n=6000,
    rpn_post_nms_top_n=300,
    threshold=0.7,
    rpn_min_size=16,
    scales=(4, 8, 16, 32),
    ratios=(0.5, 1, 2),
    feature_stride=16,
    output_score=False,
    iou_loss=False,
):
    bases = list(anchors(feature_stride, scales, ratios))
    rois, scores = [], []
    for n, (high, wide, scale) in enumerate(im_info):
        least, boxes = rpn_min_size * scale, []
        for y, x, a in np.ndindex(*cls_prob.shape[2:], len(bases)):
            box = bases[a] + np.array([x, y, x, y]) * feature_stride
            d, score = bbox_pred[n, 4 * a : 4 * a + 4, y, x], cls_prob[n, len(bases) + a, y, x]
            if iou_loss:
                box = box + d
            else:
                size = box[2:] - box[:2] + 1
                center = box[:2] + (size - 1) / 2 + d[:2] * size
                half = (np.exp(d[2:]) * size - 1) / 2
                box = np.concatenate([center - half, center + half])
            box = np.clip(box, 0, np.array([wide, high] * 2) - 1)
            beyond = y >= high // feature_stride or x >= wide // feature_stride
            if (box[2:] - box[:2] + 1 < least).any():
                box, beyond = box + np.array([-1, -1, 1, 1]) * least / 2, True
            boxes.append((-1 if beyond else score, box))
        boxes.sort(key=lambda b: -b[0])
        kept = []
        for score, box in boxes[: rpn_pre_nms_top_n if rpn_pre_nms_top_n > 0 else None]:
            if all(overlap(box, other) <= threshold for _, other in kept):
                kept.append((score, box))
        for i in range(rpn_post_nms_top_n):
            score, box = kept[i % min(len(kept), rpn_post_nms_top_n)]
            rois.append([n, *box])
            scores.append([score])
    return (np.array(rois), np.array(scores)) if output_score else np.array(rois)


def overlap(a, b):
    both = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + 1, 0))
    return both / (np.prod(a[2:] - a[:2] + 1) + np.prod(b[2:] - b[:2] + 1) - both)


def proposal_arrays(batch, count, high, wide, *sizes):
    return [
        random.permutation(np.linspace(0, 1, batch * 2 * count * high * wide))
        .reshape(batch, 2 * count, high, wide)
        .astype("float32"),
        random.uniform(-0.5, 0.5, (batch, 4 * count, high, wide)).astype("float32"),
        np.array(sizes, "float32"),
    ]


FEW = {"scales": (1, 2), "ratios": (0.5, 1), "feature_stride": 8, "rpn_min_size": 3}
PLAIN = {"grad": False, "dtypes": ("float32",)}
CLOSE = {"rtol": 1e-4, "atol": 1e-3, **PLAIN}
APART = random.permutation(np.linspace(-1, 1, 2 * 3 * 6 * 5)).reshape(2, 3, 6, 5)
ROTATED = np.array([[0, 2.5, 3, 4, 2, 30], [1, 2, 2, 0.5, 7, -75], [1, 4, 1, 9, 9, 0]])
SMALL = np.array([[0, 0.3, 0.7, 3.1, 3.9], [1, 1.2, -2.3, 2.1, 9.4]])

SAMPLES = {
    "ROIPooling": [
        Sample([APART, ROIS], params, roi_pooling, grad=[0], name=name, **HIGH)
        for name, params in [
            ("", {"pooled_size": (2, 3), "spatial_scale": 0.875}),
            ("more bins than elements", {"pooled_size": (7, 4), "spatial_scale": 0.5}),
        ]
    ],
    "_roi_max_places": [
        Sample(
            [APART, ROIS],
            {"pooled_size": (3, 2), "spatial_scale": 1},
            largest_places,
            grad=False,
            **HIGH,
        )
    ],
    "_contrib_PSROIPooling": [
        Sample([(2, 18, 6, 5), ROIS], params, psroi_pooling, grad=[0], name=name, **HIGH)
        for name, params in [
            ("", {"spatial_scale": 0.875, "output_dim": 2, "pooled_size": 3}),
            ("groups", {"spatial_scale": 1, "output_dim": 2, "pooled_size": 4, "group_size": 3}),
        ]
    ],
    "_contrib_DeformablePSROIPooling": [
        Sample(
            [(2, 16, 6, 5), SMALL],
            {
                "spatial_scale": 0.875,
                "output_dim": 4,
                "group_size": 2,
                "pooled_size": 3,
                "sample_per_part": 2,
                "no_trans": True,
            },
            deformable_psroi,
            grad=[0],
            name="at rest",
            **HIGH,
        ),
        Sample(
            [(2, 16, 6, 5), SMALL, apart(2, 4, 2, 2)],
            {
                "spatial_scale": 1,
                "output_dim": 4,
                "group_size": 2,
                "pooled_size": 3,
                "part_size": 2,
                "sample_per_part": 3,
                "trans_std": 0.1,
            },
            deformable_psroi,
            grad=[0, 2],
            grad2=False,
            **HIGH,
        ),
    ],
    "_contrib_RROIAlign": [
        Sample([(2, 3, 6, 5), ROTATED], params, rroi_align, grad=False, name=name, **HIGH)
        for name, params in [
            ("by size", {"pooled_size": (2, 3), "spatial_scale": 0.875}),
            ("two", {"pooled_size": (3, 2), "spatial_scale": 1, "sampling_ratio": 2}),
        ]
    ],
    "Correlation": [
        Sample([(2, 3, 6, 5)] * 2, params, correlation, rtol=1e-4, atol=1e-5, name=name)
        for name, params in [
            ("", {}),
            ("window", {"kernel_size": 3, "pad_size": 2, "stride1": 2}),
            ("steps", {"max_displacement": 2, "stride1": 2, "stride2": 2, "pad_size": 2}),
            ("differences", {"is_multiply": False, "pad_size": 1}),
        ]
    ],
    "_displaced_products": [
        Sample([(2, 3, 2, 3), (2, 3, 7, 9)], {"most": 2, "stride": 2, "step": 2}, products),
        Sample([(1, 2, 3, 2), (1, 2, 5, 4)], {"most": 1}, products, name="each"),
    ],
    "_displaced_first": [
        Sample([(2, 9, 2, 3), (2, 4, 7, 9)], {"most": 2, "stride": 2, "step": 2}, by_first)
    ],
    "_displaced_second": [
        Sample(
            [(2, 9, 2, 3), (2, 4, 2, 3)],
            {"most": 2, "stride": 2, "step": 2, "height": 7, "width": 9},
            by_second,
        )
    ],
    "_contrib_bipartite_matching": [
        Sample([scores], params, pairs, name=name, **PLAIN)
        for name, scores, params in [
            ("", (2, 3, 5, 4), {"threshold": 0.1}),
            ("low", (2, 4, 6), {"threshold": 0.5, "is_ascend": True}),
            ("few", (3, 6, 5), {"threshold": -2, "topk": 2}),
            ("equal", np.array([[1, 1, 0.5], [1, 1, 1]], "float32"), {"threshold": 0.5}),
            ("empty", (2, 3, 0), {"threshold": 0}),
        ]
    ],
    "_contrib_Proposal": [
        Sample(proposal_arrays(1, 4, 3, 4, (24, 30, 1)), params, proposals, name=name, **CLOSE)
        for name, params in [
            ("", {**FEW, "rpn_post_nms_top_n": 8}),
            ("scores", {**FEW, "rpn_post_nms_top_n": 40, "output_score": True}),
        ]
    ],
    "_contrib_MultiProposal": [
        Sample(
            proposal_arrays(2, 4, 3, 4, (24, 30, 1), (20, 32, 1.5)),
            params,
            proposals,
            name=name,
            **CLOSE,
        )
        for name, params in [
            ("few", {**FEW, "rpn_pre_nms_top_n": 12, "rpn_post_nms_top_n": 6, "threshold": 0.3}),
            ("corners", {**FEW, "rpn_pre_nms_top_n": 0, "iou_loss": True, "output_score": True}),
        ]
    ],
}
