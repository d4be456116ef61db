"""Images: reading files into arrays, and transforming images before batching."""

from . import detection
from .augment import *
from .augment import __all__ as _augment
from .det_iter import ImageDetIter
from .detection import *
from .detection import __all__ as _detection
from .image import *
from .image import __all__ as _image
from .image_iter import ImageIter

det = detection

__all__ = [*_augment, *_detection, *_image, "ImageDetIter", "ImageIter"]
