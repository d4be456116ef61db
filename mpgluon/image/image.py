"""Reading, resizing, cropping and rotating images."""

from __future__ import annotations

import random
import warnings
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ndarray as nd
from .._internal import kinds
from .._internal.files import open_regular
from .._internal.hints import of_package
from ..base import MXNetAssertionError, MXNetError, MXNetValueError
from . import _resize
from ._files import decode
from ._plain import plain

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from .._core import NDArray

__all__ = [
    "center_crop",
    "color_normalize",
    "copyMakeBorder",
    "fixed_crop",
    "imdecode",
    "imread",
    "imresize",
    "imrotate",
    "random_crop",
    "random_rotate",
    "random_size_crop",
    "resize_short",
    "scale_down",
]


def _result(values, out, src=None):
    """Returns the values as a new array of the kind of `src`, or copies them to `out` and returns
    that. Without `src`, the switch of mx.np selects the kind."""
    values = np.ascontiguousarray(values)
    array = nd.array(values, dtype=values.dtype)
    if out is not None:
        return _placed(kinds.like(array, out), out)
    return kinds.of_mode(array) if src is None else kinds.like(array, src)


def _placed(image, out):
    """Returns the image, or copies it to `out` and returns that."""
    if out is None:
        return image
    if out.shape != image.shape:
        raise MXNetValueError(f"out has shape {out.shape}, but the image has shape {image.shape}")
    out[:] = image
    return out


def imdecode(
    buf: bytes | bytearray | np.ndarray[Any, Any] | NDArray,
    flag: int = 1,
    to_rgb: bool | int = True,
    out: NDArray | None = None,
) -> NDArray:
    """Decodes the bytes of an image file: JPEG, PNG, BMP, GIF, TIFF, WebP or PPM.

    Parameters
    ----------
    buf : bytes, bytearray, or an array of uint8
        The bytes.
    flag : {0, 1}, default 1
        0 decodes to gray, with one channel; 1 to color, with three.
    to_rgb : bool, default True
        True for channels in the order red, green, blue; False for blue, green, red.
    out : NDArray, optional
        Receives the image.

    Returns
    -------
    NDArray
        uint8 of shape (height, width, channels), on the CPU.

    Raises
    ------
    MXNetError
        If the bytes are empty, truncated or not an image, or if the image has more pixels than
        ``PIL.Image.MAX_IMAGE_PIXELS``.
    ValueError
        If `flag` is neither 0 nor 1.
    ImportError
        If Pillow is not installed.
    """
    if isinstance(buf, nd.NDArray):
        buf = buf.asnumpy()
    if isinstance(buf, np.ndarray):
        if buf.dtype != np.uint8:
            raise MXNetValueError(f"the bytes of an image must be of uint8, not {buf.dtype}")
        buf = buf.tobytes()
    elif not isinstance(buf, (bytes, bytearray, memoryview)):
        raise ValueError(
            f"imdecode: expected bytes, bytearray or an array of uint8, got {type(buf).__name__}"
        )
    if flag not in (0, 1):
        raise MXNetValueError(f"flag must be 0 (grayscale) or 1 (color), got {flag!r}")
    values = decode(buf, int(flag))
    return _result(values[:, :, ::-1] if flag and not to_rgb else values, out)


def imread(
    filename: str | os.PathLike[str],
    flag: int = 1,
    to_rgb: bool | int = True,
    out: NDArray | None = None,
) -> NDArray:
    """Reads an image from a file.

    Parameters
    ----------
    filename : str
        Path of the file.
    flag : {0, 1}, default 1
        0 decodes to gray, with one channel; 1 to color, with three.
    to_rgb : bool, default True
        True for channels in the order red, green, blue; False for blue, green, red.
    out : NDArray, optional
        Receives the image.

    Returns
    -------
    NDArray
        uint8 of shape (height, width, channels), on the CPU.

    Raises
    ------
    MXNetError
        If the file cannot be read, or is not an image.
    ValueError
        If `flag` is neither 0 nor 1.
    """
    try:
        with open_regular(filename) as file:
            data = file.read()
    except OSError as error:
        raise MXNetError(f"imread: {error}") from error
    try:
        return imdecode(data, flag, to_rgb, out)
    except MXNetValueError:
        raise
    except MXNetError as error:
        raise MXNetError(f"imread: {filename}: {error}") from None


def imresize(src: NDArray, w: int, h: int, interp: int = 1, out: NDArray | None = None) -> NDArray:
    """Resizes an image.

    Parameters
    ----------
    src : NDArray
        The image, (height, width, channels), of uint8 or float.
    w, h : int
        The new width and height.
    interp : {0, 1, 2, 3, 4}, default 1
        0 is nearest neighbor, 1 bilinear, 2 bicubic, 3 area averaging, and 4 Lanczos over 8 x 8
        pixels. Only 3 antialiases an image that shrinks.
    out : NDArray, optional
        Receives the result.

    Returns
    -------
    NDArray

    Examples
    --------
    >>> mx.image.imresize(nd.ones((4, 6, 3)), 3, 2).shape
    (2, 3, 3)
    """
    return _placed(_resize.resize(src, w, h, interp), out)


def scale_down(src_size: tuple[int, int], size: tuple[float, float]) -> tuple[int, int]:
    """Returns the largest size that fits into an image and has the aspect ratio of `size`.

    The result is not larger than `size`.

    Parameters
    ----------
    src_size : tuple of int
        Width and height of the image.
    size : tuple of int
        The requested width and height.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> mx.image.scale_down((640, 480), (720, 120))
    (640, 106)
    """
    (width, height), (w, h) = plain(src_size), plain(size)
    if height < h:
        w, h = float(w * height) / h, height
    if width < w:
        w, h = width, float(h * width) / w
    return int(w), int(h)


# Border types, by OpenCV's ids.
_BORDERS = {0: "constant", 1: "edge", 2: "symmetric", 3: "wrap", 4: "reflect"}
_ISOLATED = 16


def copyMakeBorder(
    src: NDArray,
    top: int,
    bot: int,
    left: int,
    right: int,
    type: int = 0,
    value: float = 0.0,
    values: Sequence[float] = (),
    out: NDArray | None = None,
) -> NDArray:
    """Adds a border around an image.

    Parameters
    ----------
    src : NDArray
        The image, (height, width, channels).
    top, bot, left, right : int
        The widths of the border.
    type : {0, 1, 2, 3, 4}, default 0
        0 is a constant, 1 repeats the edge, 2 mirrors the image, 3 wraps around, and 4 mirrors the
        image without its edge.
    value : float, default 0
        The constant.
    values : tuple of float, optional
        One constant for each channel.
    out : NDArray, optional
        Receives the result.

    Returns
    -------
    NDArray

    Examples
    --------
    >>> mx.image.copyMakeBorder(nd.ones((2, 3, 1)), 1, 0, 1, 0).shape
    (3, 4, 1)
    """
    top, bot, left, right = plain((top, bot, left, right))
    if min(top, bot, left, right) < 0:
        raise MXNetValueError(f"borders must not be negative, got {(top, bot, left, right)}")
    if type & ~_ISOLATED not in _BORDERS:
        raise MXNetValueError(f"type must be 0 to 4, got {type!r}")
    image = src.asnumpy()
    widths, kind = ((top, bot), (left, right), (0, 0)), _BORDERS[type & ~_ISOLATED]
    if kind != "constant":
        return _result(np.pad(image, widths, kind), out, src)
    fill = np.zeros(image.shape[2])
    # As in OpenCV, a single value applies only to the first three channels.
    constants = list(values) if len(values) else [value] * 3
    fill[: len(constants)] = constants[: len(fill)]
    if image.dtype == np.uint8:
        fill = np.rint(fill).clip(0, 255)
    framed = np.empty(
        (image.shape[0] + top + bot, image.shape[1] + left + right, image.shape[2]), image.dtype
    )
    framed[:] = fill
    framed[top : top + image.shape[0], left : left + image.shape[1]] = image
    return _result(framed, out, src)


def chosen_interp(interp: int, sizes: Sequence[int] = ()) -> int:
    """Resolves the interpolation method `interp`; see `_resize.chosen_interp`."""
    return _resize.chosen_interp(interp, sizes, random)


_get_interp_method = chosen_interp  # MXNet's private name, which packages use


def resize_short(src: NDArray, size: int, interp: int = 2) -> NDArray:
    """Resizes an image, preserving its aspect ratio, so that its shorter edge has length `size`.

    Parameters
    ----------
    src : NDArray
        The image, (height, width, channels).
    size : int
        Length of the shorter edge.
    interp : int, default 2
        As in `imresize`; 9 is bicubic to enlarge and area averaging to shrink, 10 is random.

    Returns
    -------
    NDArray

    Examples
    --------
    >>> mx.image.resize_short(nd.ones((4, 6, 3)), 2).shape
    (2, 3, 3)
    """
    height, width, _ = src.shape
    size = plain(size)
    if height > width:
        new_height, new_width = size * height // width, size
    else:
        new_height, new_width = size, size * width // height
    interp = chosen_interp(interp, (height, width, new_height, new_width))
    return imresize(src, new_width, new_height, interp=interp)


def fixed_crop(
    src: NDArray,
    x0: int,
    y0: int,
    w: int,
    h: int,
    size: tuple[int, int] | None = None,
    interp: int = 2,
) -> NDArray:
    """Crops a rectangle of an image.

    Parameters
    ----------
    src : NDArray
        The image, (height, width, channels).
    x0, y0 : int
        Left and top edge of the rectangle.
    w, h : int
        Width and height of the rectangle.
    size : tuple of int, optional
        Width and height to resize the result to.
    interp : int, default 2
        As in `resize_short`.

    Returns
    -------
    NDArray

    Examples
    --------
    >>> mx.image.fixed_crop(nd.ones((4, 6, 3)), 1, 1, 2, 3).shape
    (3, 2, 3)
    """
    x0, y0, w, h = plain((x0, y0, w, h))
    width, height = (w, h) if size is None else _checked(size)
    out = src[y0 : y0 + h, x0 : x0 + w]
    if not out.size:
        raise MXNetValueError(
            f"a rectangle of {w} x {h} at ({x0}, {y0}) lies outside of an image of "
            f"{src.shape[1]} x {src.shape[0]}"
        )
    if (w, h) != (width, height):
        out = imresize(out, width, height, interp=chosen_interp(interp, (h, w, height, width)))
    return out


def _checked(size):
    """Returns the width and the height of a valid size; raises MXNetValueError otherwise."""
    try:
        width, height = plain(size)
        fits = width > 0 and height > 0
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise MXNetValueError(f"a size must be (width, height), both above 0, not {size!r}")
    return width, height


def _crop_at(src, size, interp, place):
    """Crops a rectangle with the aspect ratio of `size`; `place` returns its start on an axis."""
    height, width, _ = src.shape
    new_width, new_height = scale_down((width, height), _checked(size))
    x0, y0 = place(width - new_width), place(height - new_height)
    out = fixed_crop(src, x0, y0, new_width, new_height, size, interp)
    return out, (x0, y0, new_width, new_height)


def random_crop(
    src: NDArray, size: tuple[int, int], interp: int = 2
) -> tuple[NDArray, tuple[int, int, int, int]]:
    """Crops a rectangle at a random position; it is resized if the image is smaller.

    Parameters
    ----------
    src : NDArray
        The image, (height, width, channels).
    size : tuple of int
        Width and height of the result.
    interp : int, default 2
        As in `resize_short`.

    Returns
    -------
    out : NDArray
    rectangle : tuple of int
        Left and top edge, width and height of the cropped rectangle.

    Examples
    --------
    >>> out, rectangle = mx.image.random_crop(nd.ones((4, 6, 3)), (3, 2))
    >>> out.shape, rectangle[2:]
    ((2, 3, 3), (3, 2))
    """
    return _crop_at(src, size, interp, lambda room: random.randint(0, room))


def center_crop(
    src: NDArray, size: tuple[int, int], interp: int = 2
) -> tuple[NDArray, tuple[int, int, int, int]]:
    """Crops the center of an image; it is resized if the image is smaller.

    Parameters
    ----------
    src : NDArray
        The image, (height, width, channels).
    size : tuple of int
        Width and height of the result.
    interp : int, default 2
        As in `resize_short`.

    Returns
    -------
    out : NDArray
    rectangle : tuple of int
        Left and top edge, width and height of the cropped rectangle.

    Examples
    --------
    >>> out, rectangle = mx.image.center_crop(nd.ones((4, 6, 3)), (2, 2))
    >>> out.shape, rectangle
    ((2, 2, 3), (2, 1, 2, 2))
    """
    return _crop_at(src, size, interp, lambda room: room // 2)


def random_size_crop(
    src: NDArray,
    size: tuple[int, int],
    area: float | tuple[float, float],
    ratio: tuple[float, float],
    interp: int = 2,
    **kwargs: Any,
) -> tuple[NDArray, tuple[int, int, int, int]]:
    """Crops and resizes a rectangle of random position, area and aspect ratio.

    After ten rectangles that do not fit, it crops the center.

    Parameters
    ----------
    src : NDArray
        The image, (height, width, channels).
    size : tuple of int
        Width and height of the result.
    area : float or tuple of float
        The minimum and maximum fraction of the image's area; a single number is the minimum, and
        the maximum is then 1.
    ratio : tuple of float
        The minimum and maximum aspect ratio, width / height.
    interp : int, default 2
        As in `resize_short`.
    **kwargs
        `min_area`, the old name of `area`.

    Returns
    -------
    out : NDArray
    rectangle : tuple of int
        Left and top edge, width and height of the cropped rectangle.

    Examples
    --------
    >>> out, _ = mx.image.random_size_crop(nd.ones((8, 8, 3)), (4, 4), 0.2, (0.75, 1.33))
    >>> out.shape
    (4, 4, 3)
    """
    area = area_of(area, kwargs, "random_size_crop")
    height, width, _ = src.shape
    low, high = (area, 1.0) if isinstance(area, Number) else area
    for _ in range(10):
        target = random.uniform(low, high) * height * width
        proportion = np.exp(random.uniform(np.log(ratio[0]), np.log(ratio[1])))
        new_width = int(round(np.sqrt(target * proportion)))
        new_height = int(round(np.sqrt(target / proportion)))
        if new_width <= width and new_height <= height:
            x0 = random.randint(0, width - new_width)
            y0 = random.randint(0, height - new_height)
            out = fixed_crop(src, x0, y0, new_width, new_height, size, interp)
            return out, (x0, y0, new_width, new_height)
    return center_crop(src, size, interp)


def area_of(area: Any, options: dict[str, Any], function: str) -> Any:
    """Returns `area`, or the deprecated option `min_area`."""
    if "min_area" in options:
        warnings.warn("min_area was renamed to area", DeprecationWarning, stacklevel=3)
        area = options.pop("min_area")
    if options:
        raise MXNetAssertionError(f"{function} has no parameter {', '.join(options)}")
    return area


def color_normalize(
    src: NDArray, mean: NDArray | float | None, std: NDArray | float | None = None
) -> NDArray:
    """Subtracts `mean` from an image and divides it by `std`, in place, and returns it.

    Parameters
    ----------
    src : NDArray
        The image, (height, width, channels), of float.
    mean : NDArray or None
        Subtracted from each channel.
    std : NDArray, optional
        The divisor of each channel.

    Returns
    -------
    NDArray

    Examples
    --------
    >>> mean, std = nd.array([0, 1]), nd.array([2, 2])
    >>> mx.image.color_normalize(nd.ones((1, 1, 2)), mean, std).asnumpy()
    array([[[0.5, 0. ]]], dtype=float32)
    """
    if mean is not None:
        src -= mean
    if std is not None:
        src /= std
    return src


def _sample(images, x, y):
    """Samples images (N, C, H, W) at positions (N, H, W) by bilinear interpolation. Pixels outside
    the image are 0."""
    count, _, height, width = images.shape
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    number = np.arange(count)[:, None, None]
    out = 0
    for row in (top, top + 1):
        for column in (left, left + 1):
            weight = (1 - np.abs(y - row)) * (1 - np.abs(x - column))
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            # (N, H, W, C)
            pixels = images[number, :, row.clip(0, height - 1), column.clip(0, width - 1)]
            out = out + pixels * (weight * inside)[..., None]
    return out.transpose(0, 3, 1, 2)


def imrotate(
    src: NDArray,
    rotation_degrees: float | NDArray,
    zoom_in: bool = False,
    zoom_out: bool = False,
) -> NDArray:
    """Rotates images about their centers; pixels from outside an image are 0.

    Parameters
    ----------
    src : NDArray
        An image (channels, height, width), or a batch of them, of float32.
    rotation_degrees : float or NDArray
        The angle; for a batch also an array with one angle for each image.
    zoom_in : bool, default False
        True to enlarge the image until no pixels from outside are visible.
    zoom_out : bool, default False
        True to shrink the image until all of it is visible.

    Returns
    -------
    NDArray

    Examples
    --------
    >>> mx.image.imrotate(nd.array([[[1, 2], [3, 4]]]), 180).asnumpy().round()
    array([[[4., 3.],
            [2., 1.]]], dtype=float32)
    """
    if zoom_in and zoom_out:
        raise ValueError("zoom_in and zoom_out cannot both be True")
    if src.dtype != np.float32:
        raise TypeError(f"imrotate: expected images of float32, got {src.dtype}")
    if src.ndim not in (3, 4):
        raise ValueError(f"imrotate: expected images of 3 or 4 dimensions, got {src.ndim}")
    scalar = isinstance(rotation_degrees, Number)
    if src.ndim == 3 and not scalar:
        raise TypeError("the angle of a single image must be a number")
    images = src.asnumpy()
    images = images[None] if src.ndim == 3 else images
    degrees = np.full(len(images), rotation_degrees) if scalar else rotation_degrees.asnumpy()
    if len(degrees) != len(images):
        raise ValueError(f"imrotate: got {len(images)} images but {len(degrees)} angles")
    angle = np.deg2rad(degrees.astype(np.float64))[:, None, None]
    height, width = images.shape[2:]
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    y, x = np.arange(height)[:, None] - middle_y, np.arange(width) - middle_x
    if zoom_in or zoom_out:
        # Half the extent of the rotated rectangle, from the angles of its corners.
        diagonal, corner = np.hypot(height, width), np.arctan2(height, width)
        corners = corner + np.abs(angle), corner - np.abs(angle)
        reach_x = np.maximum(*(np.abs(diagonal * np.cos(turned)) for turned in corners))
        reach_y = np.maximum(*(np.abs(diagonal * np.sin(turned)) for turned in corners))
        if zoom_out:
            scale = np.maximum(reach_x / width, reach_y / height)
        else:
            scale = np.minimum(width / reach_x, height / reach_y)
    else:
        scale = 1.0
    turned_x = (x * np.cos(angle) - y * np.sin(angle)) * scale
    turned_y = (x * np.sin(angle) + y * np.cos(angle)) * scale
    out = _sample(images, turned_x + middle_x, turned_y + middle_y).astype(np.float32)
    return kinds.like(nd.array(out[0] if src.ndim == 3 else out, ctx=src.context), src)


def random_rotate(
    src: NDArray,
    angle_limits: tuple[float, float],
    zoom_in: bool = False,
    zoom_out: bool = False,
) -> NDArray:
    """Rotates images by random angles, a separate one for each.

    Parameters
    ----------
    src : NDArray
        An image (channels, height, width), or a batch of them, of float32.
    angle_limits : tuple of float
        The minimum and maximum angle, in degrees.
    zoom_in, zoom_out : bool, default False
        As in `imrotate`.

    Returns
    -------
    NDArray

    Examples
    --------
    >>> mx.image.random_rotate(nd.ones((2, 3, 4, 4)), (-10, 10)).shape
    (2, 3, 4, 4)
    """
    if src.ndim == 3:
        degrees = np.random.uniform(*angle_limits)
    else:
        degrees = nd.array(np.random.uniform(*angle_limits, size=src.shape[0]))
    return imrotate(src, degrees, zoom_in=zoom_in, zoom_out=zoom_out)


if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__

    def __getattr__(name: str) -> object:
        return of_package(__name__, name)
