"""Sizes of images changed as OpenCV does it: each row and column of the result is a weighted sum of
a few of the image, without smoothing where it shrinks (but for the method "area")."""

import numpy as np

from ..base import MXNetValueError

NEAREST, LINEAR, CUBIC, AREA, LANCZOS = range(5)


def _cubic(t):
    """Keys' kernel with the slope that OpenCV takes."""
    a, t = -0.75, np.abs(t)
    return np.where(
        t <= 1,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        np.where(t < 2, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a, 0),
    )


def _lanczos(t):
    return np.where(np.abs(t) < 4, np.sinc(t) * np.sinc(t / 4), 0)


def _taps(size, new, interp):
    """(indices, weights), both of shape (new, taps), of one axis."""
    scale, place = 1 / (new / size), np.arange(new)  # as OpenCV rounds it
    if interp == NEAREST:
        return np.minimum(place * scale, size - 1).astype(int)[:, None], np.ones((new, 1))
    if interp == AREA:  # where it enlarges: pixels with narrow seams between them
        first = np.floor(place * scale).astype(int)
        seam = (place + 1 - (first + 1) * (new / size)).astype(np.float32)
        part = np.where(seam <= 0, 0, seam - np.floor(seam))
    else:
        center = (place + 0.5) * scale - 0.5
        first = np.floor(center).astype(int)
        part = center - first
    if interp in (LINEAR, AREA):
        offsets, weights = np.arange(2), np.stack([1 - part, part], 1)
    else:
        kernel, reach = (_cubic, 2) if interp == CUBIC else (_lanczos, 4)
        offsets = np.arange(1 - reach, reach + 1)
        weights = kernel(offsets - part[:, None])
        weights /= weights.sum(1, keepdims=True)
    return (first[:, None] + offsets).clip(0, size - 1), weights


def _along(values, axis, indices, weights):
    """The weighted sums along an axis."""
    shape = [1] * values.ndim
    shape[axis] = -1
    out = 0
    for index, weight in zip(indices.T, weights.T):
        out = out + values.take(index, axis) * weight.astype(values.dtype).reshape(shape)
    return out


def _averages(values, axis, new):
    """The averages of `new` equal parts of an axis, by its sums up to each place."""
    size = values.shape[axis]
    sums = np.cumsum(values, axis, dtype=np.float64)
    sums = np.concatenate([np.zeros_like(sums.take([0], axis)), sums], axis)
    place = np.arange(new + 1) * (size / new)
    first = np.minimum(place.astype(int), size)
    part = place - first
    indices = np.stack([first, np.minimum(first + 1, size)], 1)
    ends = _along(sums, axis, indices, np.stack([1 - part, part], 1))
    return np.diff(ends, axis=axis) * (new / size)


def resize(values, width, height, interp):
    """An array (height, width, channels) in another size, of its dtype."""
    if values.dtype not in (np.uint8, np.float32, np.float64):
        raise MXNetValueError(
            f"images of uint8, float32 and float64 can be resized, not of {values.dtype}"
        )
    if values.ndim != 3 or 0 in values.shape:
        raise MXNetValueError(
            f"an image to be resized has the shape (height, width, channels), got {values.shape}"
        )
    if width < 1 or height < 1:
        raise MXNetValueError(f"an image is at least 1 pixel wide and high, not {width} x {height}")
    if interp not in range(5):
        raise MXNetValueError(f"interp must be 0 to 4, got {interp!r}")
    sizes, dtype = (height, width), values.dtype
    if sizes == values.shape[:2]:
        return values.copy()
    if interp == NEAREST:
        rows, columns = (_taps(values.shape[i], sizes[i], interp)[0][:, 0] for i in (0, 1))
        return values[rows[:, None], columns]
    shrinks = height <= values.shape[0] and width <= values.shape[1]
    out = values if dtype == np.float64 else values.astype(np.float32)
    for axis in (1, 0):  # in OpenCV's order, and that of `nd.image.resize`
        if sizes[axis] == out.shape[axis]:
            continue
        if interp == AREA and shrinks:
            out = _averages(out, axis, sizes[axis])
        else:
            out = _along(out, axis, *_taps(out.shape[axis], sizes[axis], interp))
    if dtype == np.uint8:
        out = np.floor(out + 0.5).clip(0, 255)  # halves upward, as integers of fixed point are
    return out.astype(dtype)
