"""Images: reading files into arrays, and transforming images before batching."""

from . import detection
from .augment import *
from .augment import __all__ as _augment
from .det_iter import ImageDetIter
from .detection import *
from .detection import __all__ as _detection
from .image import (
    center_crop,
    color_normalize,
    copyMakeBorder,
    fixed_crop,
    imdecode,
    imread,
    imresize,
    imrotate,
    random_crop,
    random_rotate,
    random_size_crop,
    resize_short,
    scale_down,
)
from .image_iter import ImageIter

det = detection

__all__ = [
    *_augment,
    *_detection,
    "ImageDetIter",
    "ImageIter",
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
