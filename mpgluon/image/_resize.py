"""Image resizing: selection of the method, and `nd.image.resize` for one image."""

import numpy as np

from .. import ndarray as nd
from ..base import MXNetValueError

LINEAR, CUBIC, AREA = 1, 2, 3


def chosen_interp(interp, sizes, draw):
    """Resolves the interpolation methods 9 and 10; returns any other one unchanged.

    9 depends on the change in size, and 10 is drawn from `draw` at random. `sizes` holds old
    height, old width, new height and new width.
    """
    if interp == 9:
        if not sizes:
            return CUBIC
        height, width, new_height, new_width = sizes
        if new_height > height and new_width > width:
            return CUBIC
        smaller = new_height < height and new_width < width
        return AREA if smaller else LINEAR
    if interp == 10:
        return draw.randint(0, 4)
    if interp not in range(5):
        raise ValueError(f"interp must be 0 to 4, 9 or 10, got {interp!r}")
    return interp


def resize(image, width, height, interp):
    """Resizes an NDArray (height, width, channels); the dtype is preserved."""
    dtype = np.dtype(image.dtype)
    if dtype not in (np.uint8, np.float32, np.float64):
        raise MXNetValueError(
            f"an image to be resized must have dtype uint8, float32 or float64, not {dtype}"
        )
    if image.ndim != 3 or 0 in image.shape:
        raise MXNetValueError(
            f"an image to be resized must have shape (height, width, channels), got {image.shape}"
        )
    if width < 1 or height < 1:
        raise MXNetValueError(
            f"an image must be at least 1 pixel wide and high, not {width} x {height}"
        )
    if interp not in range(5):
        raise MXNetValueError(f"interp must be 0 to 4, got {interp!r}")
    return nd.image.resize(image, size=(width, height), interp=interp)
