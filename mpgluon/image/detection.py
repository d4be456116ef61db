"""Augmenters for images with bounding boxes.

Each maps an image (height, width, channels) and its label to an image and a label. A label is a
NumPy array (objects, 5 or more): class, then left, top, right and bottom edge as fractions of the
image's width and height.
"""

from __future__ import annotations

import math
import random
import warnings
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import ndarray as nd
from ..base import MXNetAssertionError, MXNetTypeError, MXNetValueError
from ._plain import Described
from .augment import Augmenter, CastAug, ForceResizeAug, ResizeAug, color_augmenters
from .image import copyMakeBorder, fixed_crop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core import NDArray

    Label: TypeAlias = np.ndarray[Any, Any]
    Range: TypeAlias = float | tuple[float, float]

__all__ = [
    "CreateDetAugmenter",
    "CreateMultiRandCropAugmenter",
    "DetAugmenter",
    "DetBorrowAug",
    "DetHorizontalFlipAug",
    "DetRandomCropAug",
    "DetRandomPadAug",
    "DetRandomSelectAug",
]


class DetAugmenter(Described):
    """The base of augmenters for images with boxes. Subclasses define `__call__`.

    Parameters
    ----------
    **kwargs
        The augmenter's parameters, which `dumps` returns.

    Examples
    --------
    >>> class Forget(mx.image.DetAugmenter):
    ...     def __call__(self, src, label):
    ...         return src, label[:1]
    >>> Forget()(nd.zeros((2, 2, 3)), np.zeros((3, 5)))[1].shape
    (1, 5)
    """

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        """Returns the transformed image and label."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__")


class DetBorrowAug(DetAugmenter):
    """Applies an `Augmenter` that does not move objects.

    Parameters
    ----------
    augmenter : Augmenter
        The augmenter; TypeError for any other type.

    Examples
    --------
    >>> augment = mx.image.DetBorrowAug(mx.image.CastAug("float64"))
    >>> augment(nd.zeros((2, 2, 3)), np.zeros((1, 5)))[0].dtype
    <class 'numpy.float64'>
    """

    def __init__(self, augmenter: Augmenter) -> None:
        if not isinstance(augmenter, Augmenter):
            raise MXNetTypeError(
                f"DetBorrowAug expected an image.Augmenter, got {type(augmenter).__name__}"
            )
        super().__init__(augmenter=augmenter.dumps())
        self.augmenter = augmenter

    def dumps(self) -> list[Any]:
        """Returns the class name and the dumps of its augmenter."""
        return [type(self).__name__.lower(), self.augmenter.dumps()]

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        return self.augmenter(src), label


class DetRandomSelectAug(DetAugmenter):
    """Applies one of several augmenters, selected at random, or none.

    Parameters
    ----------
    aug_list : DetAugmenter or list of them
        The augmenters; ValueError for any other type.
    skip_prob : float, default 0
        The probability of applying none.

    Examples
    --------
    >>> flip = mx.image.DetHorizontalFlipAug(1)
    >>> select = mx.image.DetRandomSelectAug([flip], skip_prob=1)
    >>> select(nd.array([[[1], [2]]]), np.zeros((1, 5)))[0].asnumpy().ravel()
    array([1., 2.], dtype=float32)
    """

    def __init__(
        self, aug_list: DetAugmenter | Sequence[DetAugmenter], skip_prob: float = 0
    ) -> None:
        super().__init__(skip_prob=skip_prob)
        augmenters = list(aug_list) if isinstance(aug_list, (list, tuple)) else [aug_list]
        for augmenter in augmenters:
            if not isinstance(augmenter, DetAugmenter):
                raise MXNetValueError(
                    f"DetRandomSelectAug expected DetAugmenters, got {type(augmenter).__name__}"
                )
        self.aug_list: list[DetAugmenter] = augmenters
        self.skip_prob: float = skip_prob if augmenters else 1

    def dumps(self) -> list[Any]:
        """Returns the class name and the dumps of its augmenters, as lists."""
        return [type(self).__name__.lower(), [augmenter.dumps() for augmenter in self.aug_list]]

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        if random.random() < self.skip_prob:
            return src, label
        random.shuffle(self.aug_list)
        return self.aug_list[0](src, label)


class DetHorizontalFlipAug(DetAugmenter):
    """Mirrors an image and its boxes with a given probability.

    Parameters
    ----------
    p : float
        The probability.

    Examples
    --------
    >>> flip = mx.image.DetHorizontalFlipAug(1)
    >>> flip(nd.zeros((2, 2, 3)), np.array([[0, 0.25, 0, 0.5, 1]]))[1]
    array([[0.  , 0.5 , 0.  , 0.75, 1.  ]])
    """

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        if random.random() >= self.p:
            return src, label
        label = label.copy()
        label[:, [1, 3]] = 1.0 - label[:, [3, 1]]
        return nd.flip(src, axis=1), label


def _range(value):
    return (value, value) if isinstance(value, Number) else tuple(value)


def _areas(boxes):
    """Returns the areas of boxes (n, 4)."""
    return np.maximum(0, boxes[:, 2] - boxes[:, 0]) * np.maximum(0, boxes[:, 3] - boxes[:, 1])


class _RandomRectangle(DetAugmenter):
    """The base of cropping and padding: a random rectangle inside or around the image."""

    def __init__(
        self, aspect_ratio_range: Range, area_range: Range, max_attempts: int, **others: Any
    ) -> None:
        ratios, areas = _range(aspect_ratio_range), _range(area_range)
        super().__init__(
            aspect_ratio_range=ratios, area_range=areas, max_attempts=max_attempts, **others
        )
        self.aspect_ratio_range: tuple[float, float] = ratios
        self.area_range: tuple[float, float] = areas
        self.max_attempts = max_attempts
        self.enabled: bool = True
        for name, (least, largest), usable in (
            ("area_range", areas, areas[1] > self._least_area),
            ("aspect_ratio_range", ratios, ratios[0] > 0),
        ):
            if self.enabled and not (usable and least <= largest):
                self.enabled = False
                warnings.warn(
                    f"{type(self).__name__} does nothing: {name} is {(least, largest)}",
                    stacklevel=3,
                )

    _least_area: float = 0

    def _proposals(self, height, width):
        """Yields (ratio, minimum height, maximum height) of `max_attempts` rectangles.

        The area determines the heights.
        """
        least, largest = (part * height * width for part in self.area_range)
        for _ in range(self.max_attempts if self.enabled and height and width else 0):
            ratio = random.uniform(*self.aspect_ratio_range)
            yield (
                ratio,
                round(math.sqrt(least / ratio)),
                round(math.sqrt(largest / ratio)),
            )


class DetRandomCropAug(_RandomRectangle):
    """Crops a random rectangle of an image, with the objects in it.

    Parameters
    ----------
    min_object_covered : float, default 0.1
        The minimum covered fraction of each object that overlaps the rectangle.
    aspect_ratio_range : tuple of float, default (0.75, 1.33)
        The range of the rectangle's aspect ratio, width / height.
    area_range : tuple of float, default (0.05, 1)
        The range of the rectangle's area, as a fraction of the image's.
    min_eject_coverage : float, default 0.3
        Objects are dropped if no more than this fraction of them is in the rectangle.
    max_attempts : int, default 50
        The number of rectangles to try before the image is left unchanged.

    Examples
    --------
    >>> crop = mx.image.DetRandomCropAug(min_object_covered=0.5)
    >>> image, label = crop(nd.zeros((32, 32, 3)), np.array([[0, 0.2, 0.2, 0.8, 0.8]]))
    >>> label.shape
    (1, 5)
    """

    def __init__(
        self,
        min_object_covered: float = 0.1,
        aspect_ratio_range: Range = (0.75, 1.33),
        area_range: Range = (0.05, 1.0),
        min_eject_coverage: float = 0.3,
        max_attempts: int = 50,
    ) -> None:
        super().__init__(
            aspect_ratio_range,
            area_range,
            max_attempts,
            min_object_covered=min_object_covered,
            min_eject_coverage=min_eject_coverage,
        )
        self.min_object_covered = min_object_covered
        self.min_eject_coverage = min_eject_coverage

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        height, width = src.shape[:2]
        for ratio, least, largest in self._proposals(height, width):
            size = self._size(ratio, least, largest, height, width)
            if size is None:
                continue
            h, w = size
            y, x = random.randint(0, height - h), random.randint(0, width - w)
            box = np.array([x / width, y / height, (x + w) / width, (y + h) / height])
            cropped = self._cropped(label, box, height * width) if h * w >= 2 else None
            if cropped is not None:
                return fixed_crop(src, x, y, w, h), cropped
        return src, label

    def _size(self, ratio, least, largest, height, width):
        """Returns height and width of a rectangle in the image, or None if it does not fit."""
        if round(largest * ratio) > width:
            largest = int((width + 0.4999999) / ratio)
        largest = min(largest, height)
        h = min(least, largest)
        if h < largest:
            h = random.randint(h, largest)
        low, high = (part * height * width for part in self.area_range)
        # Rounding may have moved the area out of its range. If so, correct the height.
        if h * round(h * ratio) < low:
            h += 1
        if h * round(h * ratio) > high:
            h -= 1
        w = round(h * ratio)
        return (h, w) if low <= h * w <= high and h <= height and w <= width else None

    def _cropped(self, label, box, pixels):
        """Returns the label relative to `box`, or None if the box is not acceptable.

        This is the case if an object is cut too much, or if none is left.
        """
        areas = _areas(label[:, 1:5])
        low = np.maximum(label[:, 1:3], box[:2])
        high = np.minimum(label[:, 3:5], box[2:])
        # Fraction of each object's area that is inside the box. Objects of at most two pixels are
        # ignored.
        with np.errstate(divide="ignore", invalid="ignore"):
            covered = _areas(np.concatenate([low, high], 1)) / areas
        cut = covered[(areas * pixels > 2) & (covered > 0)]
        if not cut.size or cut.min() <= self.min_object_covered:
            return None
        size = box[2:] - box[:2]
        out = label.copy()
        out[:, 1:3] = ((out[:, 1:3] - box[:2]) / size).clip(0, 1)
        out[:, 3:5] = ((out[:, 3:5] - box[:2]) / size).clip(0, 1)
        kept = (out[:, 3] > out[:, 1]) & (out[:, 4] > out[:, 2])
        kept &= covered > self.min_eject_coverage
        return out[kept] if kept.any() else None


class DetRandomPadAug(_RandomRectangle):
    """Places an image at a random position in a larger one.

    Parameters
    ----------
    aspect_ratio_range : tuple of float, default (0.75, 1.33)
        The range of the result's aspect ratio, width / height.
    area_range : tuple of float, default (1, 3)
        The range of the result's area, as a multiple of the image's.
    max_attempts : int, default 50
        The number of sizes to try before the image is left unchanged.
    pad_val : float or tuple of float, default (128, 128, 128)
        The padding value, for all channels or for each.

    Examples
    --------
    >>> pad = mx.image.DetRandomPadAug(area_range=(2, 3))
    >>> image, label = pad(nd.zeros((32, 32, 3)), np.array([[0, 0, 0, 1.0, 1]]))
    >>> image.shape[0] * image.shape[1] > 32 * 32 and label[0, 3] - label[0, 1] < 1
    np.True_
    """

    _least_area = 1

    def __init__(
        self,
        aspect_ratio_range: Range = (0.75, 1.33),
        area_range: Range = (1.0, 3.0),
        max_attempts: int = 50,
        pad_val: float | tuple[float, ...] = (128, 128, 128),
    ) -> None:
        super().__init__(aspect_ratio_range, area_range, max_attempts, pad_val=pad_val)
        self.pad_val: Any = (pad_val,) * 3 if isinstance(pad_val, Number) else tuple(pad_val)

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        height, width = src.shape[:2]
        for ratio, least, largest in self._proposals(height, width):
            h = int((width + 0.499999) / ratio) if round(least * ratio) < width else least
            h = min(max(h, height), largest)
            if h < largest:
                h = random.randint(h, largest)
            w = round(h * ratio)
            if h - height < 2 or w - width < 2:
                continue
            y, x = random.randint(0, h - height), random.randint(0, w - width)
            out = label.copy()
            out[:, [1, 3]] = (out[:, [1, 3]] * width + x) / w
            out[:, [2, 4]] = (out[:, [2, 4]] * height + y) / h
            borders = (y, h - y - height, x, w - x - width)
            return copyMakeBorder(src, *borders, values=self.pad_val), out
        return src, label


def CreateMultiRandCropAugmenter(
    min_object_covered: float | list[float] = 0.1,
    aspect_ratio_range: Range | list[Range] = (0.75, 1.33),
    area_range: Range | list[Range] = (0.05, 1.0),
    min_eject_coverage: float | list[float] = 0.3,
    max_attempts: int | list[int] = 50,
    skip_prob: float = 0,
) -> DetRandomSelectAug:
    """Creates a random choice between several `DetRandomCropAug`.

    Parameters
    ----------
    min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts
        As in `DetRandomCropAug`: one value for all, or a list with one for each. AssertionError for
        lists of different lengths.
    skip_prob : float, default 0
        The probability of applying none.

    Returns
    -------
    DetRandomSelectAug

    Examples
    --------
    >>> select = mx.image.CreateMultiRandCropAugmenter(min_object_covered=[0.1, 0.5, 0.9])
    >>> len(select.aug_list)
    3
    """
    given = (min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts)
    lists = [value if isinstance(value, list) else [value] for value in given]
    count = max(map(len, lists))
    if any(len(values) not in (1, count) for values in lists):
        raise MXNetAssertionError(
            f"CreateMultiRandCropAugmenter: lists must have 1 or {count} elements, not "
            f"{', '.join(str(len(values)) for values in lists)}"
        )
    each = zip(*(values if len(values) == count else values * count for values in lists))
    return DetRandomSelectAug([DetRandomCropAug(*settings) for settings in each], skip_prob)


def CreateDetAugmenter(
    data_shape: tuple[int, int, int],
    resize: int = 0,
    rand_crop: float = 0,
    rand_pad: float = 0,
    rand_gray: float = 0,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    pca_noise: float = 0,
    hue: float = 0,
    inter_method: int = 2,
    min_object_covered: float | list[float] = 0.1,
    aspect_ratio_range: Range | list[Range] = (0.75, 1.33),
    area_range: Range | list[Range] = (0.05, 3.0),
    min_eject_coverage: float | list[float] = 0.3,
    max_attempts: int | list[int] = 50,
    pad_val: float | tuple[float, ...] = (127, 127, 127),
) -> list[DetAugmenter]:
    """Creates the augmenters of a typical detection training.

    Parameters
    ----------
    data_shape : tuple of int
        Channels, height and width of the results.
    resize : int, default 0
        If above 0, the length to which the shorter edge is resized first.
    rand_crop : float, default 0
        The probability of `DetRandomCropAug`.
    rand_pad : float, default 0
        The probability of `DetRandomPadAug`.
    rand_gray : float, default 0
        The probability of gray.
    rand_mirror : bool, default False
        True to mirror images with probability 0.5.
    mean, std : array or True, optional
        Subtracted from the channels, and their divisor; True means ImageNet's.
    brightness, contrast, saturation, hue, pca_noise : float, default 0
        As in `CreateAugmenter`.
    inter_method : int, default 2
        As in `resize_short`.
    min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts
        As in `CreateMultiRandCropAugmenter`; the maximum of `area_range` also applies to padding.
    pad_val : tuple of float, default (127, 127, 127)
        As in `DetRandomPadAug`.

    Returns
    -------
    list of DetAugmenter

    Examples
    --------
    >>> augmenters = mx.image.CreateDetAugmenter((3, 8, 8), rand_pad=0.5, rand_mirror=True)
    >>> [type(augmenter).__name__ for augmenter in augmenters]
    ['DetHorizontalFlipAug', 'DetRandomSelectAug', 'DetBorrowAug', 'DetBorrowAug']
    """
    _, height, width = data_shape
    augmenters: list[DetAugmenter] = []
    if resize > 0:
        augmenters.append(DetBorrowAug(ResizeAug(resize, inter_method)))
    if rand_crop > 0:
        augmenters.append(
            CreateMultiRandCropAugmenter(
                min_object_covered,
                aspect_ratio_range,
                area_range,
                min_eject_coverage,
                max_attempts,
                skip_prob=1 - rand_crop,
            )
        )
    if rand_mirror:
        augmenters.append(DetHorizontalFlipAug(0.5))
    if rand_pad > 0:
        ratios, areas, attempts = (
            value[0] if isinstance(value, list) else value
            for value in (aspect_ratio_range, area_range, max_attempts)
        )
        pad = DetRandomPadAug(ratios, (1.0, _range(areas)[1]), attempts, pad_val)
        augmenters.append(DetRandomSelectAug([pad], 1 - rand_pad))
    augmenters.append(DetBorrowAug(ForceResizeAug((width, height), inter_method)))
    augmenters.append(DetBorrowAug(CastAug()))
    colors = color_augmenters(
        brightness, contrast, saturation, hue, pca_noise, rand_gray, mean, std
    )
    return [*augmenters, *map(DetBorrowAug, colors)]
