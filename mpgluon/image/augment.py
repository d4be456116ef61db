"""Augmenters, which change images of a training set at random.

Each maps an image (height, width, channels) to an image.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ndarray as nd
from .._internal import kinds
from ..base import MXNetAssertionError
from ._plain import Described, plain
from .image import (
    area_of,
    center_crop,
    chosen_interp,
    color_normalize,
    imresize,
    random_crop,
    random_size_crop,
    resize_short,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core import NDArray
    from .._internal.types import DType

    Colors = Sequence[float] | np.ndarray[Any, Any] | NDArray

__all__ = [
    "Augmenter",
    "BrightnessJitterAug",
    "CastAug",
    "CenterCropAug",
    "ColorJitterAug",
    "ColorNormalizeAug",
    "ContrastJitterAug",
    "CreateAugmenter",
    "ForceResizeAug",
    "HorizontalFlipAug",
    "HueJitterAug",
    "LightingAug",
    "RandomCropAug",
    "RandomGrayAug",
    "RandomOrderAug",
    "RandomSizedCropAug",
    "ResizeAug",
    "SaturationJitterAug",
    "SequentialAug",
]

# Statistics of ImageNet's images: red, green, blue.
IMAGENET_MEAN, IMAGENET_STD = (123.68, 116.28, 103.53), (58.395, 57.12, 57.375)
COLOR_VALUES = (55.46, 4.794, 1.148)
COLOR_VECTORS = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)
GRAY = (0.299, 0.587, 0.114)  # weights of the channels
# Conversion matrices between RGB and YIQ. In YIQ, hue is an angle.
_TO_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.321), (0.211, -0.523, 0.311))
_FROM_YIQ = ((1.0, 0.956, 0.621), (1.0, -0.272, -0.647), (1.0, -1.107, 1.705))


class Augmenter(Described):
    """The base of augmenters. Subclasses define `__call__`.

    Parameters
    ----------
    **kwargs
        The augmenter's parameters, which `dumps` returns.

    Examples
    --------
    >>> class Invert(mx.image.Augmenter):
    ...     def __call__(self, src):
    ...         return 255 - src
    >>> Invert()(nd.zeros((1, 1, 1), dtype="uint8")).item()
    255
    """

    def __call__(self, src: NDArray) -> NDArray:
        """Returns the transformed image."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__")


class SequentialAug(Augmenter):
    """Applies augmenters in order.

    Parameters
    ----------
    ts : list of Augmenter
        The augmenters.

    Examples
    --------
    >>> augment = mx.image.SequentialAug([mx.image.ResizeAug(4), mx.image.CastAug()])
    >>> augment(nd.zeros((8, 8, 3), dtype="uint8")).shape
    (4, 4, 3)
    """

    def __init__(self, ts: Sequence[Augmenter]) -> None:
        super().__init__()
        self.ts: list[Augmenter] = list(ts)

    def dumps(self) -> list[Any]:
        """Returns the class name and the dumps of its augmenters, as lists."""
        return [type(self).__name__.lower(), [augmenter.dumps() for augmenter in self.ts]]

    def __call__(self, src: NDArray) -> NDArray:
        for augmenter in self.ts:
            src = augmenter(src)
        return src


class RandomOrderAug(SequentialAug):
    """Applies augmenters in random order.

    Parameters
    ----------
    ts : list of Augmenter
        The augmenters.

    Examples
    --------
    >>> parts = [mx.image.BrightnessJitterAug(0.1), mx.image.CastAug()]
    >>> augment = mx.image.RandomOrderAug(parts)
    >>> augment(nd.zeros((1, 1, 3))).shape
    (1, 1, 3)
    """

    def __call__(self, src: NDArray) -> NDArray:
        random.shuffle(self.ts)
        return super().__call__(src)


class ResizeAug(Augmenter):
    """Applies `resize_short`.

    Parameters
    ----------
    size : int
        Length of the shorter edge.
    interp : int, default 2
        As in `resize_short`.

    Examples
    --------
    >>> mx.image.ResizeAug(4)(nd.zeros((8, 12, 3))).shape
    (4, 6, 3)
    """

    def __init__(self, size: int, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return resize_short(src, self.size, self.interp)


class ForceResizeAug(Augmenter):
    """Resizes an image without preserving its aspect ratio.

    Parameters
    ----------
    size : tuple of int
        Width and height.
    interp : int, default 2
        As in `resize_short`.

    Examples
    --------
    >>> mx.image.ForceResizeAug((4, 2))(nd.zeros((8, 12, 3))).shape
    (2, 4, 3)
    """

    def __init__(self, size: tuple[int, int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        width, height = self.size
        interp = chosen_interp(self.interp, (*src.shape[:2], height, width))
        return imresize(src, width, height, interp=interp)


class RandomCropAug(Augmenter):
    """Applies `random_crop`.

    Parameters
    ----------
    size : tuple of int
        Width and height of the result.
    interp : int, default 2
        As in `resize_short`.

    Examples
    --------
    >>> mx.image.RandomCropAug((4, 2))(nd.zeros((8, 12, 3))).shape
    (2, 4, 3)
    """

    def __init__(self, size: tuple[int, int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return random_crop(src, self.size, self.interp)[0]


class RandomSizedCropAug(Augmenter):
    """Applies `random_size_crop`.

    Parameters
    ----------
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

    Examples
    --------
    >>> mx.image.RandomSizedCropAug((4, 2), 0.2, (0.75, 1.33))(nd.zeros((8, 12, 3))).shape
    (2, 4, 3)
    """

    def __init__(
        self,
        size: tuple[int, int],
        area: float | tuple[float, float],
        ratio: tuple[float, float],
        interp: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(size=size, area=area, ratio=ratio, interp=interp)
        self.size = size
        self.area: float | tuple[float, float] = area_of(area, kwargs, "RandomSizedCropAug")
        self.ratio = ratio
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return random_size_crop(src, self.size, self.area, self.ratio, self.interp)[0]


class CenterCropAug(Augmenter):
    """Applies `center_crop`.

    Parameters
    ----------
    size : tuple of int
        Width and height of the result.
    interp : int, default 2
        As in `resize_short`.

    Examples
    --------
    >>> mx.image.CenterCropAug((4, 2))(nd.zeros((8, 12, 3))).shape
    (2, 4, 3)
    """

    def __init__(self, size: tuple[int, int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return center_crop(src, self.size, self.interp)[0]


def _times(image, weights):
    """Multiplies the channels of each pixel by a matrix or vector of weights."""
    return nd.dot(image, kinds.like(nd.array(weights), image))


def _factor(width):
    return 1.0 + random.uniform(-width, width)


def _gray(image):
    """Returns the gray value of each pixel, (height, width, 1); one channel is gray already."""
    return image if image.shape[2] == 1 else nd.expand_dims(_times(image, GRAY), axis=2)


class BrightnessJitterAug(Augmenter):
    """Multiplies an image by a random factor.

    Parameters
    ----------
    brightness : float
        The factor is from ``1 - brightness`` to ``1 + brightness``.

    Examples
    --------
    >>> mx.image.BrightnessJitterAug(0)(nd.ones((1, 1, 3))).asnumpy().ravel()
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness=brightness)
        self.brightness = brightness

    def __call__(self, src: NDArray) -> NDArray:
        return src * _factor(self.brightness)


class ContrastJitterAug(Augmenter):
    """Scales an image's deviation from its mean gray by a random factor.

    Parameters
    ----------
    contrast : float
        The factor is from ``1 - contrast`` to ``1 + contrast``.

    Examples
    --------
    >>> mx.image.ContrastJitterAug(0)(nd.ones((1, 1, 3))).asnumpy().ravel()
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast=contrast)
        self.contrast = contrast

    def __call__(self, src: NDArray) -> NDArray:
        factor = _factor(self.contrast)
        return src * factor + _gray(src).mean() * (1.0 - factor)


class SaturationJitterAug(Augmenter):
    """Scales each pixel's deviation from its gray value by a random factor.

    Parameters
    ----------
    saturation : float
        The factor is from ``1 - saturation`` to ``1 + saturation``.

    Examples
    --------
    >>> mx.image.SaturationJitterAug(0.5)(nd.ones((1, 1, 3))).shape
    (1, 1, 3)
    """

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation=saturation)
        self.saturation = saturation

    def __call__(self, src: NDArray) -> NDArray:
        factor = _factor(self.saturation)
        return src * factor + _gray(src) * (1.0 - factor)


class HueJitterAug(Augmenter):
    """Rotates an image's hue by a random angle, approximated by a linear map.

    Parameters
    ----------
    hue : float
        The angle is from ``-hue`` to `hue`, in units of 180 degrees.

    Examples
    --------
    >>> mx.image.HueJitterAug(0.1)(nd.ones((1, 1, 3))).shape
    (1, 1, 3)
    """

    def __init__(self, hue: float) -> None:
        super().__init__(hue=hue)
        self.hue = hue

    def __call__(self, src: NDArray) -> NDArray:
        angle = random.uniform(-self.hue, self.hue) * np.pi
        cosine, sine = np.cos(angle), np.sin(angle)
        turn = np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])
        return _times(src, (_FROM_YIQ @ turn @ _TO_YIQ).T)


class ColorJitterAug(RandomOrderAug):
    """Applies random brightness, contrast and saturation in random order. Omits those whose
    parameter is 0.

    Parameters
    ----------
    brightness, contrast, saturation : float
        As in `BrightnessJitterAug`, `ContrastJitterAug` and `SaturationJitterAug`.

    Examples
    --------
    >>> len(mx.image.ColorJitterAug(0.1, 0, 0.1).ts)
    2
    """

    def __init__(self, brightness: float, contrast: float, saturation: float) -> None:
        kinds = (
            (BrightnessJitterAug, brightness),
            (ContrastJitterAug, contrast),
            (SaturationJitterAug, saturation),
        )
        super().__init__([kind(width) for kind, width in kinds if width > 0])


class LightingAug(Augmenter):
    """Adds random multiples of the principal components of a training set's colors.

    Parameters
    ----------
    alphastd : float
        The standard deviation of the factors.
    eigval : numpy.ndarray
        The three eigenvalues.
    eigvec : numpy.ndarray
        The eigenvectors, (3, 3), in columns.

    Examples
    --------
    >>> augment = mx.image.LightingAug(0, np.ones(3), np.eye(3))
    >>> augment(nd.ones((1, 1, 3))).asnumpy().ravel()
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(
        self, alphastd: float, eigval: np.ndarray[Any, Any], eigvec: np.ndarray[Any, Any]
    ) -> None:
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd = alphastd
        self.eigval = eigval
        self.eigvec = eigvec

    def __call__(self, src: NDArray) -> NDArray:
        parts = np.random.normal(0, self.alphastd, 3)
        shift = nd.array(np.dot(np.asarray(self.eigvec) * parts, self.eigval))
        return src + kinds.like(shift, src)


class ColorNormalizeAug(Augmenter):
    """Applies `color_normalize`, which modifies the image in place.

    Parameters
    ----------
    mean : array or None
        Subtracted from each channel.
    std : array or None
        The divisor of each channel.

    Examples
    --------
    >>> mx.image.ColorNormalizeAug([1], [2])(nd.ones((1, 1, 3))).asnumpy().ravel()
    array([0., 0., 0.], dtype=float32)
    """

    def __init__(self, mean: Colors | None, std: Colors | None) -> None:
        super().__init__(mean=mean, std=std)
        self.mean: NDArray | None = None if mean is None else nd.array(mean)
        self.std: NDArray | None = None if std is None else nd.array(std)

    def __call__(self, src: NDArray) -> NDArray:
        mean, std = (
            None if values is None else kinds.like(values, src) for values in (self.mean, self.std)
        )
        return color_normalize(src, mean, std)


class RandomGrayAug(Augmenter):
    """Converts an image to gray with a given probability. It keeps its three channels.

    Parameters
    ----------
    p : float
        The probability.

    Examples
    --------
    >>> mx.image.RandomGrayAug(1)(nd.array([[[1, 0, 0]]])).asnumpy().ravel()
    array([0.21, 0.21, 0.21], dtype=float32)
    """

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray) -> NDArray:
        if random.random() >= self.p:
            return src
        return _times(src, [[0.21] * 3, [0.72] * 3, [0.07] * 3])


class HorizontalFlipAug(Augmenter):
    """Mirrors an image with a given probability.

    Parameters
    ----------
    p : float
        The probability.

    Examples
    --------
    >>> mx.image.HorizontalFlipAug(1)(nd.array([[[1], [2]]])).asnumpy().ravel()
    array([2., 1.], dtype=float32)
    """

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray) -> NDArray:
        return nd.flip(src, axis=1) if random.random() < self.p else src


class CastAug(Augmenter):
    """Casts an image to another dtype.

    Parameters
    ----------
    typ : str, default 'float32'
        The dtype.

    Examples
    --------
    >>> mx.image.CastAug()(nd.zeros((1, 1, 3), dtype="uint8")).dtype
    <class 'numpy.float32'>
    """

    def __init__(self, typ: DType = "float32") -> None:
        super().__init__(type=typ)
        self.typ = typ

    def __call__(self, src: NDArray) -> NDArray:
        return src.astype(self.typ)


def color_augmenters(
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
    pca_noise: float,
    rand_gray: float,
    mean: Any,
    std: Any,
) -> list[Augmenter]:
    """Returns the color augmenters of `CreateAugmenter` and `CreateDetAugmenter`, for float32."""
    augmenters: list[Augmenter] = []
    if brightness or contrast or saturation:
        augmenters.append(ColorJitterAug(brightness, contrast, saturation))
    if hue:
        augmenters.append(HueJitterAug(hue))
    if pca_noise > 0:
        values, vectors = np.array(COLOR_VALUES), np.array(COLOR_VECTORS)
        augmenters.append(LightingAug(pca_noise, values, vectors))
    if rand_gray > 0:
        augmenters.append(RandomGrayAug(rand_gray))
    mean, std = colors_of("mean", mean, IMAGENET_MEAN), colors_of("std", std, IMAGENET_STD)
    if mean is not None or std is not None:
        augmenters.append(ColorNormalizeAug(mean, std))
    return augmenters


def colors_of(name: str, values: Any, default: Sequence[float]) -> np.ndarray[Any, Any] | None:
    """Checks `values`, which must have 1 or 3 numbers, or an array whose first axis has this
    length. Returns `default` if `values` is True."""
    if values is None:
        return None
    array = np.array(default if values is True else plain(values), np.float32)
    if array.shape[:1] not in ((1,), (3,)):
        raise MXNetAssertionError(
            f"{name} must be True, or an array whose first axis has length 1 or 3, not {values!r}"
        )
    return array


def CreateAugmenter(
    data_shape: tuple[int, int, int],
    resize: int = 0,
    rand_crop: bool = False,
    rand_resize: bool = False,
    rand_mirror: bool = False,
    mean: Colors | bool | None = None,
    std: Colors | bool | None = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    rand_gray: float = 0,
    inter_method: int = 2,
) -> list[Augmenter]:
    """Creates the augmenters of a typical training.

    Parameters
    ----------
    data_shape : tuple of int
        Channels, height and width of the results.
    resize : int, default 0
        If above 0, the length to which the shorter edge is resized first.
    rand_crop : bool, default False
        True to crop a random rectangle, False to crop the center.
    rand_resize : bool, default False
        True to give that rectangle a random size; AssertionError without `rand_crop`.
    rand_mirror : bool, default False
        True to mirror images with probability 0.5.
    mean, std : array or True, optional
        Subtracted from the channels, and their divisor; True means ImageNet's.
    brightness, contrast, saturation, hue : float, default 0
        As in `ColorJitterAug` and `HueJitterAug`.
    pca_noise : float, default 0
        The standard deviation of `LightingAug`, with ImageNet's colors.
    rand_gray : float, default 0
        The probability of gray.
    inter_method : int, default 2
        As in `resize_short`.

    Returns
    -------
    list of Augmenter

    Examples
    --------
    >>> augmenters = mx.image.CreateAugmenter(
    ...     (3, 4, 4), resize=6, rand_mirror=True, mean=True)
    >>> [type(augmenter).__name__ for augmenter in augmenters]
    ['ResizeAug', 'CenterCropAug', 'HorizontalFlipAug', 'CastAug', 'ColorNormalizeAug']
    """
    _, height, width = data_shape
    augmenters: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        if not rand_crop:
            raise MXNetAssertionError("CreateAugmenter: rand_resize needs rand_crop=True")
        limits = (3.0 / 4.0, 4.0 / 3.0)
        augmenters.append(RandomSizedCropAug((width, height), 0.08, limits, inter_method))
    else:
        crop = RandomCropAug if rand_crop else CenterCropAug
        augmenters.append(crop((width, height), inter_method))
    if rand_mirror:
        augmenters.append(HorizontalFlipAug(0.5))
    augmenters.append(CastAug())
    augmenters += color_augmenters(
        brightness, contrast, saturation, hue, pca_noise, rand_gray, mean, std
    )
    return augmenters
