"""Image transforms, applied to samples before they are combined into batches. All are blocks.
Those that are HybridBlocks run on any device and can be hybridized."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import image
from ...._internal import domain
from ....base import MXNetTypeError, MXNetValueError
from ....image._plain import plain
from ...block import Block, HybridBlock
from ...nn import HybridSequential, Sequential

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...._core import NDArray
    from ...._internal.types import DType

__all__ = [
    "Cast",
    "CenterCrop",
    "Compose",
    "CropResize",
    "Normalize",
    "RandomApply",
    "RandomBrightness",
    "RandomColorJitter",
    "RandomContrast",
    "RandomFlipLeftRight",
    "RandomFlipTopBottom",
    "RandomHue",
    "RandomLighting",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSaturation",
    "Resize",
    "Rotate",
    "ToTensor",
]


class Compose(Sequential):
    """Applies transforms in sequence.

    Consecutive HybridBlocks are combined into a HybridSequential. It is not hybridized by default,
    because every image size would be compiled separately. If all images have the same size, call
    `hybridize`.

    Parameters
    ----------
    transforms : list of Block
        Transforms to apply.

    Examples
    --------
    >>> transforms = gluon.data.vision.transforms
    >>> transform = transforms.Compose([transforms.CenterCrop(4), transforms.ToTensor()])
    >>> transform(nd.zeros((8, 6, 3), dtype="uint8")).shape
    (3, 4, 4)
    """

    def __init__(self, transforms: Sequence[Block]) -> None:
        super().__init__()
        hybrid: list[HybridBlock] = []
        for transform in [*transforms, None]:
            if isinstance(transform, HybridBlock):
                hybrid.append(transform)
                continue
            if len(hybrid) == 1:
                self.add(hybrid[0])
            elif hybrid:
                together = HybridSequential()
                together.add(*hybrid)
                self.add(together)
            hybrid = []
            if transform is not None:
                self.add(transform)


class RandomApply(Sequential):
    """Applies a transform with a given probability.

    Parameters
    ----------
    transforms : Block
        Transform to apply; use `Compose` for several. Raises TypeError for a list.
    p : float, default 0.5
        Probability of applying it.

    Examples
    --------
    >>> transforms = gluon.data.vision.transforms
    >>> transforms.RandomApply(transforms.Cast(), p=0)(nd.zeros(1, dtype="uint8")).dtype
    <class 'numpy.uint8'>
    """

    def __init__(self, transforms: Callable[[Any], Any], p: float = 0.5) -> None:
        super().__init__()
        if not callable(transforms):
            raise MXNetTypeError(
                f"transforms must be one block, not a {type(transforms).__name__}; combine "
                "several with Compose"
            )
        self.transforms = transforms
        self.p = p

    def forward(self, x: Any) -> Any:
        return x if self.p < random.random() else self.transforms(x)


class Cast(HybridBlock):
    """Casts an array to another dtype.

    Parameters
    ----------
    dtype : str or type, default 'float32'
        Target dtype.

    Examples
    --------
    >>> gluon.data.vision.transforms.Cast("float16")(nd.zeros(1)).dtype
    <class 'numpy.float16'>
    """

    def __init__(self, dtype: DType = "float32") -> None:
        super().__init__()
        self._dtype = dtype

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.cast(x, self._dtype)


class ToTensor(HybridBlock):
    """Converts an image (height, width, channels) with values from 0 to 255, or a batch of images,
    to float32 (channels, height, width) with values from 0 to 1.

    Examples
    --------
    >>> image = nd.full((2, 4, 3), 51, dtype="uint8")
    >>> tensor = gluon.data.vision.transforms.ToTensor()(image)
    >>> tensor.shape, round(tensor.max().item(), 3)
    ((3, 2, 4), 0.2)
    """

    def __init__(self) -> None:
        super().__init__()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.to_tensor(x)


class Normalize(HybridBlock):
    """Computes ``(x - mean) / std`` of an image (channels, height, width), or of a batch.

    Parameters
    ----------
    mean : float or tuple of float, default 0
        Mean to subtract, for all channels or for each.
    std : float or tuple of float, default 1
        Standard deviation to divide by, for all channels or for each.

    Examples
    --------
    >>> normalize = gluon.data.vision.transforms.Normalize(mean=(0, 1, 2), std=(1, 2, 4))
    >>> normalize(nd.ones((3, 1, 1))).asnumpy().ravel()
    array([ 1.  ,  0.  , -0.25], dtype=float32)
    """

    def __init__(
        self, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0
    ) -> None:
        super().__init__()
        self._mean = mean
        self._std = std

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.normalize(x, self._mean, self._std)


def _check_float32(x, transform):
    if x.dtype != np.float32:
        raise MXNetTypeError(
            f"{type(transform).__name__} needs images of float32, not {np.dtype(x.dtype)}; put "
            "ToTensor before it"
        )


class Rotate(Block):
    """Rotates images about their centers; see `image.imrotate`.

    Parameters
    ----------
    rotation_degrees : float
        Angle in degrees.
    zoom_in : bool, default False
        Whether to enlarge the image so that the result contains no padding.
    zoom_out : bool, default False
        Whether to shrink the image so that all of it is visible.

    Examples
    --------
    >>> rotate = gluon.data.vision.transforms.Rotate(180)
    >>> rotate(nd.array([[[1, 2], [3, 4]]])).asnumpy().round().ravel()
    array([4., 3., 2., 1.], dtype=float32)
    """

    def __init__(
        self, rotation_degrees: float, zoom_in: bool = False, zoom_out: bool = False
    ) -> None:
        super().__init__()
        self._args = (rotation_degrees, zoom_in, zoom_out)

    def forward(self, x: NDArray) -> NDArray:
        _check_float32(x, self)
        return image.imrotate(x, *self._args)


class RandomRotation(Block):
    """Rotates images by random angles; see `image.random_rotate`.

    Parameters
    ----------
    angle_limits : tuple of float
        Smallest and largest angle, in degrees. Raises ValueError if they are not in this order.
    zoom_in, zoom_out : bool, default False
        See `Rotate`.
    rotate_with_proba : float, default 1
        Probability of rotating the image.

    Examples
    --------
    >>> rotate = gluon.data.vision.transforms.RandomRotation((-10, 10), zoom_in=True)
    >>> rotate(nd.ones((3, 4, 4))).shape
    (3, 4, 4)
    """

    def __init__(
        self,
        angle_limits: tuple[float, float],
        zoom_in: bool = False,
        zoom_out: bool = False,
        rotate_with_proba: float = 1.0,
    ) -> None:
        super().__init__()
        lower, upper = angle_limits
        if lower >= upper:
            raise MXNetValueError(f"angle_limits must be (least, largest), got {angle_limits}")
        if not 0 <= rotate_with_proba <= 1:
            raise MXNetValueError(f"rotate_with_proba must be 0 to 1, got {rotate_with_proba}")
        self._args = (angle_limits, zoom_in, zoom_out)
        self.rotate_with_proba = rotate_with_proba

    def forward(self, x: NDArray) -> NDArray:
        if np.random.random() > self.rotate_with_proba:
            return x
        _check_float32(x, self)
        return image.random_rotate(x, *self._args)


def _pair(size):
    size = plain(size)
    return (size, size) if isinstance(size, (int, float)) else tuple(size)


class RandomResizedCrop(Block):
    """Crops a random rectangle, with random position, area and aspect ratio, and resizes it; see
    `image.random_size_crop`.

    Parameters
    ----------
    size : int or tuple of int
        Width and height of the result.
    scale : tuple of float, default (0.08, 1)
        Smallest and largest fraction of the image's area.
    ratio : tuple of float, default (3/4, 4/3)
        Smallest and largest aspect ratio, width / height.
    interpolation : int, default 1
        See `image.resize_short`.

    Examples
    --------
    >>> crop = gluon.data.vision.transforms.RandomResizedCrop((4, 2))
    >>> crop(nd.zeros((8, 6, 3))).shape
    (2, 4, 3)
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: int = 1,
    ) -> None:
        super().__init__()
        self._args = (_pair(size), scale, ratio, interpolation)

    def forward(self, x: NDArray) -> NDArray:
        return image.random_size_crop(x, *self._args)[0]


class CenterCrop(Block):
    """Crops the center of an image, which is resized if it is smaller.

    Parameters
    ----------
    size : int or tuple of int
        Width and height of the result.
    interpolation : int, default 1
        See `image.resize_short`.

    Examples
    --------
    >>> gluon.data.vision.transforms.CenterCrop((4, 2))(nd.zeros((8, 6, 3))).shape
    (2, 4, 3)
    """

    def __init__(self, size: int | tuple[int, int], interpolation: int = 1) -> None:
        super().__init__()
        self._args = (_pair(size), interpolation)

    def forward(self, x: NDArray) -> NDArray:
        return image.center_crop(x, *self._args)[0]


class CropResize(HybridBlock):
    """Crops a rectangle of an image (height, width, channels), or of each image of a batch.

    Parameters
    ----------
    x, y : int
        Left and top edge of the rectangle.
    width, height : int
        Size of the rectangle.
    size : int or tuple of int, optional
        Width and height to resize the result to.
    interpolation : int, optional
        See `Resize`; defaults to 1.

    Examples
    --------
    >>> crop = gluon.data.vision.transforms.CropResize(1, 2, 3, 4, size=(5, 6))
    >>> crop(nd.zeros((8, 8, 3))).shape
    (6, 5, 3)
    """

    def __init__(
        self,
        x: int,
        y: int,
        width: int,
        height: int,
        size: int | tuple[int, int] | None = None,
        interpolation: int | None = None,
    ) -> None:
        super().__init__()
        self._rectangle = (x, y, width, height)
        self._size = size
        self._interpolation = 1 if interpolation is None else interpolation

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        out = F.image.crop(x, *self._rectangle)
        if self._size is None:
            return out
        return F.image.resize(out, self._size, False, self._interpolation)


class Resize(HybridBlock):
    """Resizes an image (height, width, channels), or each image of a batch.

    Parameters
    ----------
    size : int or tuple of int
        Width and height of the result.
    keep_ratio : bool, default False
        Whether an int is the length of the shorter edge and the aspect ratio is kept. Otherwise, it
        is the length of both edges.
    interpolation : {0, 1, 2, 3, 4}, default 1
        See `image.imresize`.

    Examples
    --------
    >>> transforms = gluon.data.vision.transforms
    >>> transforms.Resize(4, keep_ratio=True)(nd.zeros((8, 12, 3))).shape
    (4, 6, 3)
    """

    def __init__(
        self, size: int | tuple[int, int], keep_ratio: bool = False, interpolation: int = 1
    ) -> None:
        super().__init__()
        self._size = size
        self._keep_ratio = keep_ratio
        self._interpolation = interpolation

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.resize(x, self._size, self._keep_ratio, self._interpolation)


class RandomFlipLeftRight(HybridBlock):
    """Mirrors an image (height, width, channels) with probability 0.5.

    Examples
    --------
    >>> gluon.data.vision.transforms.RandomFlipLeftRight()(nd.ones((2, 2, 3))).shape
    (2, 2, 3)
    """

    def __init__(self) -> None:
        super().__init__()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.random_flip_left_right(x)


class RandomFlipTopBottom(HybridBlock):
    """Flips an image (height, width, channels) upside down with probability 0.5.

    Examples
    --------
    >>> gluon.data.vision.transforms.RandomFlipTopBottom()(nd.ones((2, 2, 3))).shape
    (2, 2, 3)
    """

    def __init__(self) -> None:
        super().__init__()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.random_flip_top_bottom(x)


def _around_one(width):
    """Returns the limits of a random factor."""
    return max(0.0, 1.0 - width), 1.0 + width


class RandomBrightness(HybridBlock):
    """Multiplies an image (height, width, channels) by a random factor.

    Parameters
    ----------
    brightness : float
        The factor is from ``max(0, 1 - brightness)`` to ``1 + brightness``.

    Examples
    --------
    >>> brightness = gluon.data.vision.transforms.RandomBrightness(0)
    >>> brightness(nd.ones((1, 1, 3))).asnumpy().ravel()
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, brightness: float) -> None:
        super().__init__()
        domain.at_least(0, brightness=brightness)
        self._limits = _around_one(brightness)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.random_brightness(x, *self._limits)


class RandomContrast(HybridBlock):
    """Changes the contrast of an image (height, width, channels): multiplies the difference from
    its mean gray by a random factor.

    Parameters
    ----------
    contrast : float
        The factor is from ``max(0, 1 - contrast)`` to ``1 + contrast``.

    Examples
    --------
    >>> gluon.data.vision.transforms.RandomContrast(0)(nd.ones((1, 1, 3))).asnumpy().ravel()
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, contrast: float) -> None:
        super().__init__()
        domain.at_least(0, contrast=contrast)
        self._limits = _around_one(contrast)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.random_contrast(x, *self._limits)


class RandomSaturation(HybridBlock):
    """Changes the saturation of an image (height, width, channels): multiplies each pixel's
    difference from its gray value by a random factor.

    Parameters
    ----------
    saturation : float
        The factor is from ``max(0, 1 - saturation)`` to ``1 + saturation``.

    Examples
    --------
    >>> gluon.data.vision.transforms.RandomSaturation(0.5)(nd.ones((1, 1, 3))).shape
    (1, 1, 3)
    """

    def __init__(self, saturation: float) -> None:
        super().__init__()
        domain.at_least(0, saturation=saturation)
        self._limits = _around_one(saturation)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.random_saturation(x, *self._limits)


class RandomHue(HybridBlock):
    """Rotates the hue of an image (height, width, channels) with values up to 255 by a random
    fraction of the full circle.

    Parameters
    ----------
    hue : float
        The fraction is from ``-min(hue, 1)`` to `hue`.

    Examples
    --------
    >>> gluon.data.vision.transforms.RandomHue(0.1)(nd.ones((1, 1, 3))).shape
    (1, 1, 3)
    """

    def __init__(self, hue: float) -> None:
        super().__init__()
        domain.at_least(0, hue=hue)
        self._limits = _around_one(hue)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.random_hue(x, *self._limits)


class RandomColorJitter(HybridBlock):
    """Changes brightness, contrast, saturation and hue of an image (height, width, channels)
    randomly and in random order.

    Parameters
    ----------
    brightness, contrast, saturation, hue : float, default 0
        See `RandomBrightness`, `RandomContrast`, `RandomSaturation` and `RandomHue`.

    Examples
    --------
    >>> jitter = gluon.data.vision.transforms.RandomColorJitter(brightness=0.1, hue=0.1)
    >>> jitter(nd.ones((2, 2, 3))).shape
    (2, 2, 3)
    """

    def __init__(
        self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0
    ) -> None:
        super().__init__()
        domain.at_least(0, brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
        self._args = (brightness, contrast, saturation, hue)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.random_color_jitter(x, *self._args)


class RandomLighting(HybridBlock):
    """Adds random multiples of the principal components of ImageNet's colors to an image (height,
    width, channels).

    Parameters
    ----------
    alpha : float
        Standard deviation of the multiples.

    Examples
    --------
    >>> gluon.data.vision.transforms.RandomLighting(0)(nd.ones((1, 1, 3))).asnumpy().ravel()
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        domain.at_least(0, alpha=alpha)
        self._alpha = alpha

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.image.random_lighting(x, self._alpha)
