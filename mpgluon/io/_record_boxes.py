"""Image augmentation of `ImageDetRecordIter`, for images with boxes.

Images are NumPy arrays (height, width, channels) of uint8. Objects are arrays (objects, 5 or more)
with the class, then left, top, right and bottom edge as fractions of the image's width and height.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._record_images import shifted

if TYPE_CHECKING:
    import random

    Pixels = np.ndarray[Any, Any]
    Objects = np.ndarray[Any, Any]


class CropSampler(NamedTuple):
    """Limits of random crop rectangles: scale, aspect ratio, and the overlap of an object with the
    rectangle."""

    scales: tuple[float, float]
    aspect_ratios: tuple[float, float]
    overlaps: tuple[float, float]
    sample_coverages: tuple[float, float]
    object_coverages: tuple[float, float]
    trials: int


class BoxSettings(NamedTuple):
    """The augmentation parameters of `ImageDetRecordIter`."""

    crop_probability: float
    samplers: list[CropSampler]
    keeps_by_center: bool
    least_kept: float
    pad_probability: float
    largest_pad: float
    fill_value: int
    mirror_probability: float
    shifts: list[tuple[float, float]]  # (limit, probability) of hue, saturation, lightness
    contrast: tuple[float, float]


def _areas(boxes):
    return np.maximum(0, boxes[:, 2] - boxes[:, 0]) * np.maximum(0, boxes[:, 3] - boxes[:, 1])


def _common(boxes, box):
    """Returns the areas of the intersections of boxes with a rectangle."""
    low, high = np.maximum(boxes[:, :2], box[:2]), np.minimum(boxes[:, 2:], box[2:])
    return _areas(np.concatenate([low, high], 1))


def _rectangle(sampler, proportion, draw):
    """Returns a random rectangle in the unit square, for an image with the given width / height.
    Returns None if no rectangle is within the limits."""
    scale = draw.uniform(*sampler.scales)
    if not 0 < scale <= 1:
        return None
    least = max(sampler.aspect_ratios[0] / proportion, scale * scale)
    most = min(sampler.aspect_ratios[1] / proportion, 1 / (scale * scale))
    if least > most:
        return None
    ratio = math.sqrt(draw.uniform(least, most))
    width, height = min(1.0, scale * ratio), min(1.0, scale / ratio)
    left, top = draw.uniform(0, 1 - width), draw.uniform(0, 1 - height)
    return np.array([left, top, left + width, top + height])


def _satisfies(sampler, boxes, box):
    """True if the overlap of an object with the rectangle is within the sampler's limits."""
    common, areas, area = _common(boxes, box), _areas(boxes), _areas(box[None])[0]
    shares = (
        (sampler.overlaps, areas + area - common),
        (sampler.sample_coverages, area),
        (sampler.object_coverages, areas),
    )
    fits = np.ones(len(boxes), bool)
    for (least, most), whole in shares:
        if (least, most) != (0, 1):
            share = common / np.maximum(whole, 1e-12)
            fits &= (share >= least) & (share <= most)
    return fits.any()


def _kept(objects, box, settings):
    """Returns the objects relative to the rectangle, without those that are mostly outside it."""
    boxes = objects[:, 1:5]
    if settings.keeps_by_center:
        center = (boxes[:, :2] + boxes[:, 2:]) / 2
        kept = ((center >= box[:2]) & (center <= box[2:])).all(1)
    else:
        kept = _common(boxes, box) > settings.least_kept * _areas(boxes)
    out = objects[kept].copy()
    corner, size = np.tile(box[:2], 2), np.tile(box[2:] - box[:2], 2)
    out[:, 1:5] = ((out[:, 1:5] - corner) / size).clip(0, 1)
    return out


def _cropped(values, objects, settings, draw):
    height, width = values.shape[:2]
    samplers = list(settings.samplers)
    draw.shuffle(samplers)
    for sampler in samplers:
        for _ in range(sampler.trials):
            box = _rectangle(sampler, width / height, draw)
            if box is None or not _satisfies(sampler, objects[:, 1:5], box):
                continue
            left, top = int(box[0] * width), int(box[1] * height)
            right, bottom = int(box[2] * width), int(box[3] * height)
            found = _kept(objects, box, settings)
            if len(found) and right > left and bottom > top:
                return values[top:bottom, left:right], found
    return values, objects


def _padded(values, objects, settings, draw):
    """Places the image at a random position in a larger image. Returns (image, objects)."""
    rows, columns, channels = values.shape
    factor = draw.uniform(1, max(1, settings.largest_pad))
    height, width = int(rows * factor), int(columns * factor)
    y, x = draw.randint(0, height - rows), draw.randint(0, width - columns)
    out = np.full((height, width, channels), settings.fill_value, np.uint8)
    out[y : y + rows, x : x + columns] = values
    objects = objects.copy()
    objects[:, [1, 3]] = (objects[:, [1, 3]] * columns + x) / width
    objects[:, [2, 4]] = (objects[:, [2, 4]] * rows + y) / height
    return out, objects


def _recolored(values, settings, draw):
    shifts = [
        draw.uniform(-limit, limit) if draw.random() < probability else 0.0
        for limit, probability in settings.shifts
    ]
    if any(shifts) and values.shape[2] >= 3:
        values = shifted(values, *shifts)
    limit, probability = settings.contrast
    if limit and draw.random() < probability:
        factor = 1 + draw.uniform(-limit, limit)
        values = np.rint(values * factor).clip(0, 255).astype(np.uint8)
    return values


def changed(
    values: Pixels, objects: Objects, settings: BoxSettings, draw: random.Random
) -> tuple[Pixels, Objects]:
    """Augments an image and its objects at random: recolors, mirrors, pads and crops them."""
    values = _recolored(values, settings, draw)
    if draw.random() < settings.mirror_probability:
        values = values[:, ::-1]
        objects = objects.copy()
        objects[:, [1, 3]] = 1 - objects[:, [3, 1]]
    if draw.random() < settings.pad_probability:
        values, objects = _padded(values, objects, settings, draw)
    if draw.random() < settings.crop_probability:
        values, objects = _cropped(values, objects, settings, draw)
    return values, objects
