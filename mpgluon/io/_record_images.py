"""Image augmentation of `ImageRecordIter`. Images are NumPy arrays (height, width, channels) of
uint8. Each image has its own random number generator, so results do not depend on threads."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import ndarray as nd
from ..base import MXNetError
from ..image import _files, _resize
from ..image.augment import COLOR_VALUES, COLOR_VECTORS, GRAY

if TYPE_CHECKING:
    Pixels = np.ndarray[Any, Any]


class ImageSettings(NamedTuple):
    """The augmentation parameters of `ImageRecordIter`."""

    data_shape: tuple[int, int, int]
    resize: int
    rand_crop: bool
    random_resized_crop: bool
    max_rotate_angle: int
    max_aspect_ratio: float
    min_aspect_ratio: float | None
    max_shear_ratio: float
    max_crop_size: int
    min_crop_size: int
    max_random_scale: float
    min_random_scale: float
    max_random_area: float
    min_random_area: float
    max_img_size: float
    min_img_size: float
    brightness: float
    contrast: float
    saturation: float
    pca_noise: float
    random_h: int
    random_s: int
    random_l: int
    rotate: int
    fill_value: int
    inter_method: int
    pad: int
    mirror: bool
    rand_mirror: bool


def decode(data: bytes, channels: int, where: str) -> Pixels:
    """Decodes the image in the bytes of a file. Raises MXNetError, which starts with `where`, for
    invalid images or a different number of channels."""
    try:
        values = _files.decode(data, {1: 0, 3: 1, 4: None}[channels])
    except MXNetError as error:
        raise MXNetError(f"{where}: {error}") from None
    if values.shape[2] != channels:
        raise MXNetError(f"{where}: the image has {values.shape[2]} channels, expected {channels}")
    return values


def resized(values: Pixels, width: int, height: int, method: int, draw: random.Random) -> Pixels:
    """Resizes the image. See `image.resize_short` for `method`."""
    width, height = max(1, width), max(1, height)
    method = _resize.chosen_interp(method, (*values.shape[:2], height, width), draw)
    image = nd.array(values, dtype=values.dtype)
    return _resize.resize(image, width, height, method).asnumpy()


def resized_short(values: Pixels, size: int, method: int, draw: random.Random) -> Pixels:
    """Resizes the image so that its shorter edge has length `size`."""
    rows, columns = values.shape[:2]
    if rows > columns:
        return resized(values, size, size * rows // columns, method, draw)
    return resized(values, size * columns // rows, size, method, draw)


def _aspect_limits(settings):
    largest, least = settings.max_aspect_ratio, settings.min_aspect_ratio
    return (1 - largest, 1 + largest) if least is None else (least, largest)


def _has_random_area(settings):
    limits = settings.min_random_area, settings.max_random_area, *_aspect_limits(settings)
    return settings.random_resized_crop and limits != (1, 1, 1, 1)


def check(settings: ImageSettings) -> None:
    """Raises MXNetError if parameters contradict each other."""
    if settings.random_resized_crop:
        others = {
            "rand_crop": False,
            "max_random_scale": 1,
            "min_random_scale": 1,
            "max_crop_size": -1,
            "min_crop_size": -1,
        }
        given = [name for name, usual in others.items() if getattr(settings, name) != usual]
        if given:
            raise MXNetError(
                "ImageRecordIter: random_resized_crop=True chooses position and size itself; "
                f"omit {', '.join(given)}, or random_resized_crop"
            )
    pairs = [("min_crop_size", settings.min_crop_size, "max_crop_size", settings.max_crop_size)]
    if _has_random_area(settings):
        least, most = _aspect_limits(settings)
        pairs += [
            (
                "min_random_area",
                settings.min_random_area,
                "max_random_area",
                settings.max_random_area,
            ),
            ("the least aspect ratio", least, "the largest", most),
        ]
        if least <= 0:
            raise MXNetError(
                "ImageRecordIter: the least aspect ratio (min_aspect_ratio, or else 1 - "
                f"max_aspect_ratio) must be above 0, not {least}"
            )
    for low, less, high, more in pairs:
        if less > more:
            raise MXNetError(f"ImageRecordIter: {low} {less} exceeds {high}, {more}")


def _is_warped(settings):
    return (
        settings.max_rotate_angle > 0
        or settings.rotate > 0
        or settings.max_shear_ratio > 0
        or settings.max_random_scale != 1
        or settings.min_random_scale != 1
        or (_aspect_limits(settings) != (1, 1) and not settings.random_resized_crop)
        or settings.max_img_size != 1e10
        or settings.min_img_size != 0
    )


def _warped(values, settings, draw):
    """Rotates, shears and scales the image about its center, with Pillow."""
    rows, columns = values.shape[:2]
    degrees = settings.rotate
    if degrees <= 0:
        degrees = draw.randint(-settings.max_rotate_angle, settings.max_rotate_angle)
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    shear = draw.uniform(-settings.max_shear_ratio, settings.max_shear_ratio)
    scale = draw.uniform(settings.min_random_scale, settings.max_random_scale)
    limits = (1, 1) if settings.random_resized_crop else _aspect_limits(settings)
    ratio = draw.uniform(*limits)
    high = 2 * scale / (1 + ratio)
    wide = ratio * high
    matrix = np.array(
        [
            [high * cosine - shear * sine * wide, high * sine + shear * cosine * wide],
            [-sine * wide, cosine * wide],
        ]
    )
    sizes = [
        max(1.0, settings.min_img_size, min(settings.max_img_size, scale * size))
        for size in (columns, rows)
    ]
    if abs(np.linalg.det(matrix)) < 1e-12:
        raise MXNetError("ImageRecordIter: the scale or the aspect ratio of an image is 0")
    inverse = np.linalg.inv(matrix)
    # An affine map from positions in the result to positions in the image. It maps the center to
    # the center.
    begin = np.array([columns, rows]) / 2 - inverse @ (np.array(sizes) / 2)
    begin += 0.5 - inverse @ [0.5, 0.5]  # in Pillow, the center of a pixel is at 0.5
    coefficients = (*inverse[0], begin[0], *inverse[1], begin[1])
    pillow = _files.pillow()
    method = {0: pillow.Resampling.NEAREST, 2: pillow.Resampling.BICUBIC}.get(
        settings.inter_method, pillow.Resampling.BILINEAR
    )
    single = values.shape[2] == 1
    picture = pillow.fromarray(values[:, :, 0] if single else values)
    fill = settings.fill_value if single else (settings.fill_value,) * values.shape[2]
    size = int(sizes[0]), int(sizes[1])
    out = picture.transform(size, pillow.Transform.AFFINE, coefficients, method, fillcolor=fill)
    out = np.asarray(out)
    return out[:, :, None] if single else out


def _part(values, height, width, anywhere, draw):
    """Crops a rectangle, at a random position if `anywhere`, or in the center."""
    rows, columns = values.shape[0] - height, values.shape[1] - width
    if anywhere:
        y, x = draw.randint(0, rows), draw.randint(0, columns)
    else:
        y, x = rows // 2, columns // 2
    return values[y : y + height, x : x + width]


def _cropped(values, settings, draw):
    """Crops the image to the size of `data_shape`."""
    _, height, width = settings.data_shape
    method = settings.inter_method
    if _has_random_area(settings):
        rows, columns = values.shape[:2]
        for _ in range(10):
            area = draw.uniform(settings.min_random_area, settings.max_random_area)
            ratio = draw.uniform(*_aspect_limits(settings))
            h = round(math.sqrt(area * rows * columns / ratio))
            w = round(math.sqrt(area * rows * columns * ratio))
            if draw.random() < 0.5:
                h, w = w, h
            if 0 < h <= rows and 0 < w <= columns:
                part = _part(values, h, w, True, draw)
                return resized(part, width, height, method, draw)
    elif settings.max_crop_size != -1 or settings.min_crop_size != -1:
        size = draw.randint(settings.min_crop_size, settings.max_crop_size)
        if not 0 < size <= min(values.shape[:2]):
            raise MXNetError(
                f"ImageRecordIter: a square of {size} pixels cannot be cropped from an image of "
                f"{values.shape[1]} x {values.shape[0]}; change min_crop_size and max_crop_size"
            )
        part = _part(values, size, size, settings.rand_crop, draw)
        return resized(part, width, height, method, draw)
    if values.shape[0] < height:
        values = resized(values, height * values.shape[1] // values.shape[0], height, method, draw)
    if values.shape[1] < width:
        values = resized(values, width, width * values.shape[0] // values.shape[1], method, draw)
    return _part(values, height, width, settings.rand_crop, draw)


def _recolored(values, settings, draw):
    """Changes brightness, contrast and saturation of the image randomly."""
    out = values.astype(np.float32)
    factors = [
        ("brightness", settings.brightness),
        ("contrast", settings.contrast),
        ("saturation", settings.saturation),
    ]
    draw.shuffle(factors)
    for kind, width in factors:
        factor = 1 + draw.uniform(-width, width)
        if kind != "brightness" and out.shape[2] >= 3:
            gray = out[:, :, :3] @ np.array(GRAY, np.float32)
            gray = gray.mean() if kind == "contrast" else gray[:, :, None]
            out[:, :, :3] = out[:, :, :3] * factor + gray * (1 - factor)
        elif kind != "saturation":
            middle = out.mean() if kind == "contrast" else 0
            out = out * factor + middle * (1 - factor)
    return np.rint(out).clip(0, 255).astype(np.uint8)


def _with_noise(values, settings, draw):
    """Adds random multiples of the principal components of ImageNet's colors to the image."""
    parts = np.array([draw.gauss(0, settings.pca_noise) for _ in range(3)])
    out = values.astype(np.float32)
    out[:, :, :3] += np.dot(np.array(COLOR_VECTORS) * parts, COLOR_VALUES)
    return out.clip(0, 255).astype(np.uint8)


def _shift(limit, draw):
    """Returns a random number from -limit to limit with MXNet's distribution, which is denser in
    the middle."""
    return int(limit * (2 * (draw.random() + 4 * draw.random()) / 5 - 1))


def shifted(values: Pixels, h: float, s: float, light: float) -> Pixels:
    """Changes hue, saturation and lightness of the image, in the units of OpenCV: up to 180, 255
    and 255."""
    colors = values[:, :, :3].astype(np.float32) / 255
    high, low = colors.max(2), colors.min(2)
    span, middle = high - low, (high + low) / 2
    safe = np.where(span > 0, span, 1)
    red, green, blue = np.moveaxis(colors, 2, 0)
    hue = np.where(
        high == red,
        (green - blue) / safe % 6,
        np.where(high == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    hue = ((hue * 30) + h).clip(0, 180) / 15  # in units of a twelfth of the circle
    room = 1 - np.abs(2 * middle - 1)
    strength = np.where(span > 0, span / np.where(room > 0, room, 1), 0)
    strength = (strength + s / 255).clip(0, 1)
    middle = (middle + light / 255).clip(0, 1)
    reach = strength * np.minimum(middle, 1 - middle)
    out = values.copy()
    for channel, place in enumerate((0, 8, 4)):
        k = (place + hue) % 12
        color = middle - reach * np.minimum(np.minimum(k - 3, 9 - k), 1).clip(-1, 1)
        out[:, :, channel] = np.rint(color * 255).clip(0, 255)
    return out


def changed(values: Pixels, settings: ImageSettings, draw: random.Random) -> Pixels:
    """Augments an image at random and crops it to the size of `data_shape`. The caller mirrors
    it."""
    if settings.resize > 0:
        values = resized_short(values, settings.resize, settings.inter_method, draw)
    if _is_warped(settings):
        values = _warped(values, settings, draw)
    if settings.pad > 0:
        border = (settings.pad, settings.pad)
        values = np.pad(values, (border, border, (0, 0)), constant_values=settings.fill_value)
    values = _cropped(values, settings, draw)
    if settings.brightness or settings.contrast or settings.saturation:
        values = _recolored(values, settings, draw)
    limits = settings.random_h, settings.random_s, settings.random_l
    if any(limits) and values.shape[2] >= 3:
        values = shifted(values, *(_shift(limit, draw) for limit in limits))
    if settings.pca_noise > 0 and values.shape[2] >= 3:
        values = _with_noise(values, settings, draw)
    return values


def is_mirrored(settings: ImageSettings, draw: random.Random) -> bool:
    """True if the image must be mirrored. This is done last, after the mean image was
    subtracted."""
    return settings.mirror or (settings.rand_mirror and draw.random() < 0.5)
