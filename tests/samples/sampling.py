"""Samples of ops that interpolate images.

Covers resizing, adaptive pooling, grids, deformable convolutions and regions.
"""

import itertools
import math

import numpy as np

from samples.base import Sample

random = np.random.RandomState(5)


def along(x, axis, size, positions):
    """Linear interpolation along an axis, with positions clamped to its ends."""
    n = x.shape[axis]
    positions = np.clip(positions, 0, n - 1)
    low = np.floor(positions).astype(int)
    part = (positions - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return x.take(low, axis) * (1 - part) + x.take(np.minimum(low + 1, n - 1), axis) * part


def resize(x, height, width, align_corners=True, axes=(2, 3)):
    for axis, size in zip(axes, (height, width)):
        n = x.shape[axis]
        if align_corners:
            positions = np.arange(size) * ((n - 1) / (size - 1) if size > 1 else 0)
        else:
            still = size <= 1 and align_corners is False  # as in BilinearResize2D
            positions = (np.arange(size) + 0.5) * (0 if still else n / size) - 0.5
        x = along(x, axis, size, positions) if size != n else x
    return x


def bilinear_resize(x, like=None, height=1, width=1, mode="size", align_corners=True, **scales):
    h, w = x.shape[2:]
    if mode == "like":
        height, width = like.shape[2:]
    elif mode == "odd_scale":
        height, width = (
            int((n - 1) * scale) + 1 if n % 2 else int(n * scale)
            for n, scale in ((h, scales["scale_height"]), (w, scales["scale_width"]))
        )
    elif mode != "size":
        step = 1 if mode.endswith("up") else -1
        height, width = (n if n % 2 == ("odd" in mode) else n + step for n in (h, w))
    elif scales:
        height, width = int(h * scales["scale_height"]), int(w * scales["scale_width"])
    return resize(x, height, width, align_corners)


def cubic(t):
    t, a = abs(t), -0.75
    near, far = (a + 2) * t**3 - (a + 3) * t**2 + 1, a * (t**3 - 5 * t**2 + 8 * t - 4)
    return np.where(t < 1, near, np.where(t < 2, far, 0))


def lanczos(t):
    return np.where(abs(t) < 4, np.sinc(t) * np.sinc(t / 4), 0)


def matrix(n, size, interp, shrinks):
    """Returns (size, n) resampling weights, as in OpenCV."""
    scale, j, i = n / size, np.arange(size)[:, None], np.arange(n)
    if interp == 3 and shrinks:
        covered = np.minimum((j + 1) * scale, i + 1) - np.maximum(j * scale, i)
        return np.maximum(covered, 0) / scale
    if interp == 3:  # linear with other positions
        low = np.floor(j * scale)
        part = np.maximum(j + 1 - (low + 1) / scale, 0)
        position, kernel, reach = low + part % 1, lambda t: np.maximum(1 - abs(t), 0), 2
    else:
        position = (j + 0.5) * scale - 0.5
        kernel, reach = (cubic, 3) if interp == 2 else (lanczos, 5)
    weights = np.zeros((size, n))
    for k in range(-reach, n + reach):
        weights[:, min(max(k, 0), n - 1)] += kernel(position - k)[:, 0]
    return weights / weights.sum(1, keepdims=True)


def resample(x, axis, length, size, kind=1, align_corners=False, transposed=False):
    if kind == 0:
        weights = np.eye(length)[np.floor(np.arange(size) * (length / size)).astype(int)]
    elif kind == 1:
        weights = resize(np.eye(length), size, 0, align_corners or None, (0,))
    else:
        weights = matrix(length, size, kind, False)
    moved = np.moveaxis(x, axis, 0)
    return np.moveaxis(np.tensordot(weights.T if transposed else weights, moved, 1), 0, axis)


def image_resize(x, size, keep_ratio=False, interp=1):
    h, w = x.shape[-3:-1]
    size = (size,) if isinstance(size, int) else size
    width, height = size[0], size[-1]
    if len(size) == 1 and keep_ratio:
        width, height = (width, h * width // w) if h > w else (w * height // h, height)
    axes = (x.ndim - 3, x.ndim - 2)
    if interp == 0:
        for axis, n in zip(axes, (height, width)):
            places = np.floor(np.arange(n) * (1 / (n / x.shape[axis])))
            x = x.take(np.minimum(places, x.shape[axis] - 1).astype(int), axis)
        return x
    if interp > 1:
        shrinks = height <= h and width <= w
        rows, columns = matrix(h, height, interp, shrinks), matrix(w, width, interp, shrinks)
        result = np.einsum("...ijc,yi,xj->...yxc", x.astype("float64"), rows, columns)
        return np.round(np.clip(result, 0, 255)).astype("uint8") if x.dtype == np.uint8 else result
    result = resize(x.astype("float64"), height, width, None, axes)
    return np.round(result).astype("uint8") if x.dtype == np.uint8 else result


def adaptive(x, output_size=1):
    h, w = (output_size,) * 2 if isinstance(output_size, int) else output_size
    out = np.zeros((*x.shape[:2], h, w))
    for i, j in np.ndindex(h, w):
        rows = slice(i * x.shape[2] // h, -(-(i + 1) * x.shape[2] // h))
        columns = slice(j * x.shape[3] // w, -(-(j + 1) * x.shape[3] // w))
        out[:, :, i, j] = x[:, :, rows, columns].mean((2, 3))
    return out


def at(picture, y, x):
    """Returns the (channels,) value of an image between its elements, with zeros outside."""
    result, (h, w) = np.zeros(picture.shape[0]), picture.shape[1:]
    top, left = int(np.floor(y)), int(np.floor(x))
    for i, j in itertools.product((top, top + 1), (left, left + 1)):
        if 0 <= i < h and 0 <= j < w:
            result = result + picture[:, i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
    return result


def sampler(data, grid):
    (batch, channels, h, w), (rows, columns) = data.shape, grid.shape[2:]
    out = np.zeros((batch, channels, rows, columns))
    for n, i, j in np.ndindex(batch, rows, columns):
        x, y = grid[n, :, i, j]
        out[n, :, i, j] = at(data[n], (y + 1) * (h - 1) / 2, (x + 1) * (w - 1) / 2)
    return out


def grid(data, transform_type, target_shape=(0, 0)):
    if transform_type == "affine":
        rows, columns = target_shape
        y, x = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
        places = np.stack([x.ravel(), y.ravel(), np.ones(rows * columns)])
        return (data.reshape(-1, 2, 3) @ places).reshape(-1, 2, rows, columns)
    rows, columns = data.shape[2:]
    y, x = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    return np.stack(
        [
            (data[:, 0] + x) / ((columns - 1) / 2) - 1,
            (data[:, 1] + y) / ((rows - 1) / 2) - 1,
        ],
        1,
    )


def transformer(data, loc, target_shape, **params):
    return sampler(data, grid(loc, "affine", target_shape))


def deformable(data, offset, *arrays, mask=None, **p):
    weight, bias = arrays[0], arrays[1] if len(arrays) > 1 else None
    (kh, kw), (sh, sw) = p["kernel"], p.get("stride", (1, 1))
    (dh, dw), (ph, pw) = p.get("dilate", (1, 1)), p.get("pad", (0, 0))
    groups, parts = p.get("num_group", 1), p.get("num_deformable_group", 1)
    batch, channels, h, w = data.shape
    rows, columns = offset.shape[2:]
    out = np.zeros((batch, p["num_filter"], rows, columns))
    for n, i, j in np.ndindex(batch, rows, columns):
        patch = np.zeros((channels, kh, kw))
        for part, a, b in np.ndindex(parts, kh, kw):
            at_part = slice(part * channels // parts, (part + 1) * channels // parts)
            k = 2 * (part * kh * kw + a * kw + b)
            y = i * sh - ph + a * dh + offset[n, k, i, j]
            x = j * sw - pw + b * dw + offset[n, k + 1, i, j]
            if mask is None and (0 <= y < h and 0 <= x < w):  # the edge value extends outside
                patch[at_part, a, b] = at(data[n, at_part], min(y, h - 1), min(x, w - 1))
            elif mask is not None:
                patch[at_part, a, b] = at(data[n, at_part], y, x) * mask[n, k // 2, i, j]
        for group in range(groups):
            filters = slice(*(f * p["num_filter"] // groups for f in (group, group + 1)))
            inputs = slice(*(c * channels // groups for c in (group, group + 1)))
            out[n, filters, i, j] = np.tensordot(weight[filters], patch[inputs], 3)
    return out if bias is None else out + bias.reshape(1, -1, 1, 1)


def modulated(data, offset, mask, *arrays, **params):
    return deformable(data, offset, *arrays, mask=mask, **params)


def roi_align(
    data, rois, pooled_size, spatial_scale, sample_ratio=-1, aligned=False, position_sensitive=False
):
    (h, w), (high, wide) = data.shape[2:], pooled_size
    channels = data.shape[1] // (high * wide if position_sensitive else 1)
    out = np.zeros((len(rois), channels, high, wide))
    for n, roi in enumerate(rois):
        left, top, right, bottom = roi[1:] * spatial_scale - (0.5 if aligned else 0)
        size = np.array([bottom - top, right - left])
        size = (size if aligned else np.maximum(size, 1)) / pooled_size
        rows, columns = (sample_ratio if sample_ratio > 0 else math.ceil(s) for s in size)
        for i, j, a, b in np.ndindex(high, wide, rows, columns):
            y = top + size[0] * (i + (a + 0.5) / rows)
            x = left + size[1] * (j + (b + 0.5) / columns)
            if -1 <= y <= h and -1 <= x <= w:
                picture = data[int(roi[0])]
                if position_sensitive:
                    picture = picture[i * wide + j :: high * wide]
                sample = at(picture, np.clip(y, 0, h - 1), np.clip(x, 0, w - 1))
                out[n, :, i, j] += sample / (rows * columns)
    return out


def apart(*shape, scale=0.8):
    """Offsets that avoid integer positions, at which gradients jump."""
    return np.round(random.uniform(-scale, scale, shape), 1) + 0.03


WIDE = ("float32", "float64")
CLOSE = {"rtol": 1e-4, "atol": 1e-5, "dtypes": WIDE}
BYTES = random.randint(0, 256, (5, 4, 3)).astype("uint8")
ROIS = np.array(
    [[0, 0.3, 0.7, 4.1, 3.9], [1, 1.2, -2.3, 2.1, 9.4], [0, 2, 2, 2.2, 2.2], [1, -1, -1, 15, 16]]
)

SAMPLES = {
    "_image_resize": [
        Sample([(5, 4, 3)], {"size": (6, 3)}, image_resize, **CLOSE),
        Sample([(2, 5, 4, 1)], {"size": 8, "keep_ratio": True}, image_resize, **CLOSE),
        Sample([(3, 8, 1)], {"size": 6, "keep_ratio": True}, image_resize, **CLOSE),
        Sample([(5, 4, 3)], {"size": (7, 3), "interp": 0}, image_resize, **CLOSE, name="nearest"),
        Sample([(5, 4, 3)], {"size": (4, 5)}, image_resize, **CLOSE, name="same"),
        Sample([(5, 4, 3)], {"size": (1, 2)}, image_resize, **CLOSE, name="thin"),
        *(
            Sample([(5, 6, 2)], {"size": size, "interp": i}, image_resize, **CLOSE, name=name)
            for i, size, name in [
                (2, (9, 3), "cubic"),
                (3, (4, 2), "area"),
                (3, (7, 3), "area and larger"),
                (4, (9, 3), "Lanczos"),
            ]
        ),
        Sample(
            [BYTES],
            {"size": (9, 3), "interp": 2},
            image_resize,
            grad=False,
            dtypes=("uint8",),
            atol=1,
            name="cubic bytes",
        ),
        Sample(
            [BYTES],
            {"size": (6, 3)},
            image_resize,
            grad=False,
            dtypes=("uint8",),
            atol=1,
            name="bytes",
        ),
    ],
    "_resample": [
        Sample([shape], params, resample, grad2=True, **CLOSE, name=name)
        for name, shape, params in [
            ("wide", (2, 5, 40), {"axis": 1, "length": 5, "size": 8}),
            ("last", (70, 6), {"axis": 1, "length": 6, "size": 3, "align_corners": True}),
            ("pixels", (3, 70, 3), {"axis": 1, "length": 70, "size": 130}),
            ("first", (9, 2), {"axis": 0, "length": 9, "size": 1}),
            ("nearest", (7, 3), {"axis": 0, "length": 7, "size": 9, "kind": 0}),
            ("cubic", (7, 3), {"axis": 0, "length": 7, "size": 4, "kind": 2}),
            ("Lanczos", (4, 6), {"axis": 1, "length": 6, "size": 9, "kind": 4}),
            ("back", (2, 9, 2), {"axis": 1, "length": 4, "size": 9, "transposed": True}),
            (
                "cubic back",
                (2, 5),
                {"axis": 1, "length": 8, "size": 5, "kind": 2, "transposed": True},
            ),
            ("far back", (1300, 2), {"axis": 0, "length": 70, "size": 1300, "transposed": True}),
            ("empty", (0, 3), {"axis": 1, "length": 3, "size": 5}),
        ]
    ],
    "_contrib_BilinearResize2D": [
        Sample([(2, 3, 4, 5)], {"height": 7, "width": 3}, bilinear_resize, **CLOSE),
        Sample([(1, 1, 1, 5)], {"height": 3, "width": 1}, bilinear_resize, **CLOSE, name="thin"),
        Sample([(1, 2, 4, 5)], {"height": 4, "width": 5}, bilinear_resize, **CLOSE, name="same"),
        Sample([(1, 2, 4, 5)], {"mode": "to_even_up"}, bilinear_resize, **CLOSE, name="even up"),
        Sample([(1, 2, 4, 5)], {"mode": "to_odd_down"}, bilinear_resize, **CLOSE, name="odd down"),
        Sample(
            [(1, 2, 4, 5), (1, 1, 6, 2)],
            {"mode": "like"},
            bilinear_resize,
            grad=[0],
            **CLOSE,
            name="like",
        ),
        Sample(
            [(1, 2, 4, 5)],
            {"mode": "odd_scale", "scale_height": 2, "scale_width": 2},
            bilinear_resize,
            **CLOSE,
            name="odd scale",
        ),
        Sample(
            [(1, 2, 4, 5)],
            {"scale_height": 0.5, "scale_width": 1.7, "align_corners": False},
            bilinear_resize,
            **CLOSE,
            name="edges",
        ),
    ],
    "_contrib_AdaptiveAvgPooling2D": [
        Sample([(2, 3, 5, 7)], {"output_size": (2, 3)}, adaptive, **CLOSE),
        Sample([(2, 3, 4, 6)], {"output_size": 2}, adaptive, **CLOSE, name="whole"),
        Sample([(2, 3, 4, 6)], {}, adaptive, **CLOSE, name="all"),
        Sample([(1, 2, 2, 3)], {"output_size": (5, 4)}, adaptive, **CLOSE, name="larger"),
    ],
    "GridGenerator": [
        Sample([(2, 6)], {"transform_type": "affine", "target_shape": (3, 4)}, grid, **CLOSE),
        Sample([(2, 2, 3, 4)], {"transform_type": "warp"}, grid, **CLOSE, name="warp"),
    ],
    "BilinearSampler": [
        Sample(
            [(2, 3, 4, 5), apart(2, 2, 3, 2, scale=1.3)],
            {},
            sampler,
            grad=[0],
            dtypes=("float64",),
        ),
        Sample(
            [(1, 2, 4, 5), (1, 2, 3, 2)],
            {},
            sampler,
            ranges=[None, (0.02, 0.3)],
            grad2=False,
            **CLOSE,
            name="grid",
        ),
    ],
    "SpatialTransformer": [
        Sample(
            [(2, 3, 4, 5), np.array([[0.7, 0.1, 0.03, -0.2, 0.8, 0.1]] * 2)],
            {"target_shape": (3, 2), "transform_type": "affine", "sampler_type": "bilinear"},
            transformer,
            grad=[0],
            dtypes=("float64",),
        ),
    ],
    "_contrib_DeformableConvolution": [
        Sample(
            [(2, 4, 5, 6), apart(2, 18, 3, 4), (6, 4, 3, 3), (6,)],
            {"kernel": (3, 3), "num_filter": 6},
            deformable,
            grad=[0, 2, 3],
            dtypes=("float64",),
        ),
        Sample(
            [(1, 4, 5, 6), apart(1, 16, 3, 4), (6, 2, 2, 2)],
            {
                "kernel": (2, 2),
                "num_filter": 6,
                "no_bias": True,
                "num_group": 2,
                "num_deformable_group": 2,
                "stride": (2, 2),
                "pad": (1, 1),
                "dilate": (2, 1),
            },
            deformable,
            grad=[0, 2],
            dtypes=("float64",),
            name="groups",
        ),
    ],
    "_contrib_ModulatedDeformableConvolution": [
        Sample(
            [(2, 4, 4, 5), apart(2, 16, 4, 5), (2, 8, 4, 5), (4, 4, 2, 2), (4,)],
            {
                "kernel": (2, 2),
                "num_filter": 4,
                "num_deformable_group": 2,
                "pad": (1, 1),
                "dilate": (2, 2),
            },
            modulated,
            grad=[0, 2, 3, 4],
            dtypes=("float64",),
        ),
    ],
    "_contrib_ROIAlign": [
        Sample(
            [(2, channels, 6, 5), ROIS],
            {"pooled_size": (2, 3), "spatial_scale": 0.9, **more},
            roi_align,
            grad=[0],
            dtypes=("float64",),
            name=name,
        )
        for name, channels, more in [
            ("", 3, {"sample_ratio": 2}),
            ("aligned", 3, {"sample_ratio": 2, "aligned": True}),
            ("by size", 3, {}),
            ("by size, aligned", 3, {"aligned": True}),
            ("position sensitive", 12, {"sample_ratio": 3, "position_sensitive": True}),
            ("position sensitive, by size", 12, {"position_sensitive": True}),
        ]
    ],
}
