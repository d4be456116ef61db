"""`ImageDetIter`: batches of images with bounding boxes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ndarray as nd
from ..base import MXNetAssertionError, MXNetError, MXNetValueError
from ..io.io import DataDesc
from ._files import pillow
from ._plain import plain
from .augment import IMAGENET_MEAN, IMAGENET_STD, colors_of
from .detection import CreateDetAugmenter
from .image_iter import ImageIter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .._core import NDArray
    from .detection import Label

__all__ = ["ImageDetIter"]


class ImageDetIter(ImageIter):
    """Batches of images with bounding boxes, augmented at random.

    The label of an image in a file or a list is a sequence of numbers: the header length (2 or
    more, including these two), the object width (5 or more), other header values, and then the
    objects. An object is class, left, top, right and bottom edge, as fractions of the image.
    Batches have labels of shape (batch_size, objects, object width), padded with -1.

    Parameters
    ----------
    batch_size : int
        Images in a batch.
    data_shape : tuple of int
        3 (channels), height and width.
    path_imgrec, path_imglist, path_root, path_imgidx : str, optional
        As in `ImageIter`.
    shuffle, part_index, num_parts
        As in `ImageIter`.
    aug_list : list of DetAugmenter, optional
        The augmenters; by default ``CreateDetAugmenter(data_shape, **kwargs)``.
    imglist : list, optional
        Entries ``[label, path]``.
    data_name, label_name : str, default 'data' and 'label'
        Names in `provide_data` and `provide_label`.
    last_batch_handle : {'pad', 'discard', 'roll_over'}, default 'pad'
        As in `ImageIter`.
    **kwargs
        Parameters of `CreateDetAugmenter`.

    Attributes
    ----------
    label_shape : tuple of int
        The number of objects, and the object width, of labels in batches.

    Raises
    ------
    RuntimeError
        If a label has no objects, or has an invalid format.

    Examples
    --------
    >>> import os, tempfile
    >>> root = tempfile.mkdtemp()
    >>> from PIL import Image
    >>> Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(os.path.join(root, "some.png"))
    >>> label = [2, 5, 0, 0.1, 0.1, 0.5, 0.5]
    >>> batches = mx.image.ImageDetIter(
    ...     1, (3, 4, 4), imglist=[[label, "some.png"]], path_root=root)
    >>> next(batches).label[0].shape
    (1, 1, 5)
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple[int, int, int],
        path_imgrec: str | None = None,
        path_imglist: str | None = None,
        path_root: str | None = None,
        path_imgidx: str | None = None,
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: Sequence[Callable[..., Any]] | None = None,
        imglist: list[Any] | None = None,
        data_name: str = "data",
        label_name: str = "label",
        last_batch_handle: str = "pad",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            batch_size,
            data_shape,
            path_imgrec=path_imgrec,
            path_imglist=path_imglist,
            path_root=path_root,
            path_imgidx=path_imgidx,
            shuffle=shuffle,
            part_index=part_index,
            num_parts=num_parts,
            aug_list=CreateDetAugmenter(data_shape, **kwargs) if aug_list is None else aug_list,
            imglist=imglist,
            data_name=data_name,
            label_name=label_name,
            last_batch_handle=last_batch_handle,
        )
        self.label_shape: tuple[int, int] = self._estimate_label_shape()
        self.provide_label: list[DataDesc] = [DataDesc(label_name, (batch_size, *self.label_shape))]

    def _estimate_label_shape(self):
        """Returns the maximum number of objects in an image, and the object width."""
        shapes = []
        try:
            while True:
                shapes.append(self._parse_label(self.next_sample()[0]).shape)
        except StopIteration:
            self.reset()
        if len({width for _, width in shapes}) != 1:
            raise MXNetError(
                "ImageDetIter: the objects of all images must have the same number of values, "
                f"not {sorted({width for _, width in shapes})}"
                if shapes
                else "ImageDetIter has no images"
            )
        return max(count for count, _ in shapes), shapes[0][1]

    def _parse_label(self, label):
        """Parses a label as stored in files into an array (objects, object width)."""
        label = label.asnumpy() if isinstance(label, nd.NDArray) else np.asarray(label)
        raw = label.ravel()
        header, width = (int(raw[0]), int(raw[1])) if raw.size > 1 else (0, 0)
        rest = raw.size - header
        if header < 2 or width < 5 or rest < width or rest % width:
            raise MXNetError(
                f"{self._last_sample()}: the label of an image with boxes must be (2, values "
                f"per object (at least 5), then the values of each object), not {raw.size} "
                f"values {raw[:8].tolist()}"
            )
        objects = raw[header:].reshape(-1, width)
        valid = (objects[:, 3] > objects[:, 1]) & (objects[:, 4] > objects[:, 2])
        if not valid.any():
            raise MXNetError(f"{self._last_sample()}: all objects have an empty area")
        return objects[valid]

    def _check_valid_label(self, label):
        """Raises RuntimeError if an image has no object left after augmentation."""
        if label.ndim != 2 or label.shape[1] < 5:
            raise MXNetError(f"a label must have shape (objects, at least 5), not {label.shape}")
        objects = (label[:, 0] >= 0) & (label[:, 3] > label[:, 1]) & (label[:, 4] > label[:, 2])
        if not objects.any():
            raise MXNetError("no object is left")

    def _empty_batch(self):
        data, label = super()._empty_batch()
        label[:] = -1
        return data, label

    def _make_sample(self, label, data):
        try:
            self.check_valid_image([data])
            data, label = self.augmentation_transform(data, self._parse_label(label))
            self._check_valid_label(label)
        except RuntimeError as error:
            self._log_left_out(error)
            return None
        return label, data

    def _put_label(self, batch_label, place, label):
        padded = np.full(batch_label.shape[1:], -1, np.float32)
        padded[: len(label)] = label
        batch_label[place] = padded

    def augmentation_transform(self, data: NDArray, label: Label) -> tuple[NDArray, Label]:
        """Applies `auglist` to the image and its objects."""
        for augmenter in self.auglist:
            data, label = augmenter(data, label)
        return data, label

    def reshape(
        self,
        data_shape: tuple[int, int, int] | None = None,
        label_shape: tuple[int, int] | None = None,
    ) -> None:
        """Changes the shapes of batches; the augmenters stay the same.

        Parameters
        ----------
        data_shape : tuple of int, optional
            3 (channels), height and width; ValueError otherwise.
        label_shape : tuple of int, optional
            As in `check_label_shape`.
        """
        if data_shape is not None:
            self.check_data_shape(data_shape)
            self.data_shape: tuple[int, int, int] = tuple(plain(data_shape))
            name = self.provide_data[0].name
            self.provide_data: list[DataDesc] = [
                DataDesc(name, (self.batch_size, *self.data_shape))
            ]
        if label_shape is not None:
            self.check_label_shape(label_shape)
            self.label_shape = tuple(label_shape)
            name = self.provide_label[0].name
            self.provide_label = [DataDesc(name, (self.batch_size, *label_shape))]

    def check_label_shape(self, label_shape: Sequence[int]) -> None:
        """Raises ValueError if labels do not fit into batches of that shape.

        The shape is (objects, object width), where the number of objects must not be smaller.
        """
        if len(label_shape) != 2:
            raise MXNetValueError(
                f"label_shape must be (objects, values per object), not {tuple(label_shape)}"
            )
        count, width = self.label_shape
        if label_shape[0] < count or label_shape[1] != width:
            raise MXNetValueError(
                f"label_shape must have at least {count} objects of {width} values, not "
                f"{tuple(label_shape)}"
            )

    def sync_label_shape(self, it: ImageDetIter, verbose: bool = False) -> ImageDetIter:
        """Gives this iterator and `it` the same label shape, the larger of the two.

        Parameters
        ----------
        it : ImageDetIter
            The other iterator; AssertionError if it is of another type or its object width differs.
        verbose : bool, default False
            True to log the shape if it changes.

        Returns
        -------
        ImageDetIter
            `it`.
        """
        if not isinstance(it, ImageDetIter) or it.label_shape[1] != self.label_shape[1]:
            raise MXNetAssertionError(
                "sync_label_shape expected an ImageDetIter whose objects have "
                f"{self.label_shape[1]} values"
            )
        shape = max(self.label_shape, it.label_shape)
        if verbose and self.label_shape != it.label_shape:
            logging.info("ImageDetIter: label_shape is now %s", shape)
        self.reshape(label_shape=shape)
        it.reshape(label_shape=shape)
        return it

    def draw_next(
        self,
        color: tuple[float, float, float] | None = None,
        thickness: int = 2,
        mean: Any = None,
        std: Any = None,
        clip: bool = True,
        waitKey: int | None = None,
        window_name: str = "draw_next",
        id2labels: dict[int, str] | None = None,
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Yields the images with their boxes, drawn by Pillow.

        Parameters
        ----------
        color : tuple of float, optional
            Red, green and blue of boxes; random ones by default.
        thickness : int, default 2
            The line width.
        mean, std : array or True, optional
            The normalization of `ColorNormalizeAug` to undo; True means ImageNet's.
        clip : bool, default True
            True to clip values to [0, 255].
        waitKey : int, optional
            Unless None, Pillow shows each image.
        window_name : str, default 'draw_next'
            The title of the shown images.
        id2labels : dict, optional
            Names of classes, which are drawn into boxes.

        Yields
        ------
        numpy.ndarray
            uint8 of shape (height, width, 3): blue, green and red, as in MXNet.
        """
        mean, std = colors_of("mean", mean, IMAGENET_MEAN), colors_of("std", std, IMAGENET_STD)
        while True:
            try:
                label, file = self.next_sample()
            except StopIteration:
                return
            sample = self._make_sample(label, self.imdecode(file))
            if sample is None:
                continue
            label, data = sample
            values = data.asnumpy().astype(np.float32)
            values = values * (1 if std is None else std) + (0 if mean is None else mean)
            values = values.clip(0, 255) if clip else values
            picture = pillow().fromarray(values.astype(np.uint8))
            _draw(picture, label, color, thickness, id2labels or {})
            if waitKey is not None:
                picture.show(title=window_name)
            yield np.asarray(picture)[:, :, ::-1]


def _draw(picture, label, color, thickness, names):
    """Draws boxes and the names of their classes."""
    from PIL import ImageDraw

    draw = ImageDraw.Draw(picture)
    for kind, *edges in label[:, :5].tolist():
        left, top, right, bottom = (int(edge * size) for edge, size in zip(edges, picture.size * 2))
        if left < 0 or kind < 0:
            continue
        fill = np.random.randint(0, 256, 3) if color is None else color
        line = tuple(int(value) for value in fill)
        draw.rectangle((left, top, max(left, right), max(top, bottom)), None, line, thickness)
        if int(kind) in names:
            draw.text((left + 5, top + 5), names[int(kind)], (255, 255, 255))
