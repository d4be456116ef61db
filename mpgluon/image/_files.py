"""Decodes and encodes image files with Pillow, which is imported on first use."""

import io

import numpy as np

from ..base import MXNetError, MXNetValueError

# The formats that are decoded. By default Pillow tries some 40 more, including EPS, which it passes
# to Ghostscript, a program that runs the code in the file.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")


def pillow():
    """Returns Pillow's image module."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading and writing images needs Pillow: pip install pillow") from error
    return Image


def _plain(picture, channels):
    """Converts the image to `channels` (1 or 3) channels of 8 bits. If `channels` is None, the
    image keeps its number of channels."""
    if picture.mode.startswith(("I", "F")):  # 16 bits or more: keep the upper 8
        values = np.asarray(picture).clip(0, 65535)
        values = np.nan_to_num(values, copy=False).astype(np.uint16, copy=False) >> 8
        picture = pillow().fromarray(values.astype(np.uint8))
    if channels is not None:
        mode = "L" if channels == 1 else "RGB"
        return picture if picture.mode == mode else picture.convert(mode)  # convert always copies
    if picture.mode in ("1", "L"):
        return picture.convert("L")
    alpha = picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info
    return picture.convert("RGBA" if alpha else "RGB")


def _check_pixels(picture, limit):
    """Rejects an image by its header if decoding it would take too much memory."""
    pixels = picture.width * picture.height
    if limit is not None and pixels > limit:
        raise MXNetError(
            f"{picture.width} x {picture.height} pixels exceed the limit of {limit}; if the "
            "file is trusted, increase PIL.Image.MAX_IMAGE_PIXELS"
        )


def decode(data, flag):
    """Decodes a file's bytes into a uint8 array (height, width, channels).

    Parameters
    ----------
    data : bytes-like
    flag : {0, 1, None}
        0 decodes to gray (1 channel), 1 to color (red, green, blue), None to the file's channels.
    """
    image = pillow()
    if not len(data):
        raise MXNetError("the image cannot be decoded: the input is an empty buffer")
    try:
        with image.open(io.BytesIO(data), formats=FORMATS) as picture:
            _check_pixels(picture, image.MAX_IMAGE_PIXELS)
            if flag == 0:
                picture.draft("L", None)  # JPEG stores gray values directly
            picture = _plain(picture, None if flag is None else 3 if flag else 1)
            values = np.asarray(picture)
    # The exception type for a damaged file depends on the format.
    except Exception as error:
        raise MXNetError(f"the image cannot be decoded: {error}") from None
    return values if values.ndim == 3 else values[:, :, None]


def encode(values, suffix, quality):
    """Returns the bytes of an image file."""
    image = pillow()
    if values.dtype != np.uint8:
        raise MXNetValueError(f"an image to be stored must have dtype uint8, not {values.dtype}")
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[2] in (3, 4)):
        raise MXNetValueError(
            "an image to be stored must have shape (height, width) or (height, width, 3), got "
            f"{values.shape}"
        )
    if 0 in values.shape:
        raise MXNetValueError(f"an image of shape {values.shape} has no pixels")
    options = {
        ".jpg": ("JPEG", {"quality": quality}),
        ".jpeg": ("JPEG", {"quality": quality}),
        # The maximum compression level is 9. MXNet's default quality of 95 is meant for JPEG.
        ".png": ("PNG", {"compress_level": min(max(quality, 0), 9)}),
    }
    if suffix.lower() not in options:
        raise MXNetValueError(f"img_fmt must be one of {', '.join(options)}, got {suffix!r}")
    kind, option = options[suffix.lower()]
    if kind == "JPEG":
        values = values[:, :, :3] if values.ndim == 3 else values
    out = io.BytesIO()
    image.fromarray(np.ascontiguousarray(values)).save(out, kind, **option)
    return out.getvalue()
