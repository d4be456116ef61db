"""Files of images to arrays and back, by Pillow, which is loaded when it is first needed."""

import io

import numpy as np

from ..base import MXNetError, MXNetValueError

# The formats that are decoded. Pillow knows some 40 more and tries them all by default: EPS among
# them, which it hands to Ghostscript, a program that runs the code in the file.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")


def pillow():
    """Pillow's module of images."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "reading and writing of images needs Pillow: pip install pillow"
        ) from error
    return Image


def _plain(picture, channels):
    """The picture with 1 or 3 channels of 8 bits, or, with None, with those that it has."""
    if picture.mode.startswith(("I", "F")):  # of 16 bits or more: the upper 8
        values = np.asarray(picture).clip(0, 65535)
        values = np.nan_to_num(values, copy=False).astype(np.uint16, copy=False) >> 8
        picture = pillow().fromarray(values.astype(np.uint8))
    if channels is not None:
        mode = "L" if channels == 1 else "RGB"
        return picture if picture.mode == mode else picture.convert(mode)  # which always copies
    if picture.mode in ("1", "L"):
        return picture.convert("L")
    alpha = picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info
    return picture.convert("RGBA" if alpha else "RGB")


def _check_pixels(picture, limit):
    """Refuses an image by its header if decoding it would take too much memory."""
    pixels = picture.width * picture.height
    if limit is not None and pixels > limit:
        raise MXNetError(
            f"{picture.width} x {picture.height} pixels are more than the limit of {limit}; if the "
            "file is trusted, raise PIL.Image.MAX_IMAGE_PIXELS"
        )


def decode(data, flag):
    """A uint8 array (height, width, channels) of a file's bytes.

    Parameters
    ----------
    data : bytes-like
    flag : {0, 1, None}
        In grey (1 channel), in colours (red, green, blue), or as the file has it.
    """
    image = pillow()
    if not len(data):
        raise MXNetError("the image cannot be decoded: the input is an empty buffer")
    try:
        with image.open(io.BytesIO(data), formats=FORMATS) as picture:
            _check_pixels(picture, image.MAX_IMAGE_PIXELS)
            if flag == 0:
                picture.draft("L", None)  # JPEG has the grey values as such
            picture = _plain(picture, None if flag is None else 3 if flag else 1)
            values = np.asarray(picture)
    # Which errors a damaged file leads to depends on its format.
    except Exception as error:
        raise MXNetError(f"the image cannot be decoded: {error}") from None
    return values if values.ndim == 3 else values[:, :, None]


def encode(values, suffix, quality):
    """The bytes of an image file."""
    image = pillow()
    if values.dtype != np.uint8:
        raise MXNetValueError(f"an image to be stored has the dtype uint8, not {values.dtype}")
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[2] in (3, 4)):
        raise MXNetValueError(
            "an image to be stored has the shape (height, width) or (height, width, 3), got "
            f"{values.shape}"
        )
    if 0 in values.shape:
        raise MXNetValueError(f"an image of the shape {values.shape} has no pixels")
    options = {
        ".jpg": ("JPEG", {"quality": quality}),
        ".jpeg": ("JPEG", {"quality": quality}),
        # 9 is the most; MXNet's default of 95 is meant for JPEG
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
