"""`ImageDetRecordIter`: batches of images with boxes in RecordIO files."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import recordio
from ..base import MXNetError, NotSupportedError
from ._record_images import decode, resized, resized_short
from .image_record_iter import RecordImages
from .io import DataDesc

__all__ = ["ImageDetRecordIter"]

_MODES = ("fit", "force", "shrink")
_NOT_THERE = (
    "max_random_contrast",
    "max_random_hue",
    "max_random_illumination",
    "max_random_saturation",
    "rand_crop_prob",
    "random_contrast_prob",
    "random_hue_prob",
    "random_illumination_prob",
    "random_saturation_prob",
)
_CROPS = (
    "crop_emit_mode",
    "emit_overlap_thresh",
    "max_crop_aspect_ratios",
    "max_crop_object_coverages",
    "max_crop_overlaps",
    "max_crop_sample_coverages",
    "max_crop_scales",
    "max_crop_trials",
    "min_crop_aspect_ratios",
    "min_crop_object_coverages",
    "min_crop_overlaps",
    "min_crop_sample_coverages",
    "min_crop_scales",
    "num_crop_sampler",
)

if TYPE_CHECKING:
    Pixels = np.ndarray[Any, Any]


class ImageDetRecordIter(RecordImages):
    """Batches of images with boxes in a RecordIO file: data of float32 (batch_size, channels,
    height, width), labels of float32 (batch_size, 4 + numbers of a label).

    The label of a record has the numbers: how many stand in front of the objects (2 or more, these
    two included), how many an object has (5 or more), others, then those of each object: class,
    left, upper, right and lower edge, as parts of the image. In a batch there stand in front of it:
    channels, height and width of the image, and how many numbers the label has.

    Parameters
    ----------
    path_imgrec : str, default './data/imgrec.rec'
        The RecordIO file; MXNetError when it is not there.
    data_shape : tuple of int
        Channels (1: gray, 3, or 4), height and width of the results.
    batch_size : int
        Images of a batch.
    path_imglist, path_imgidx, preprocess_threads, verbose, num_parts, part_index
        As of `ImageRecordIter`.
    shuffle, seed, round_batch, prefetch_buffer
        As of `ImageRecordIter`.
    shuffle_chunk_size, shuffle_chunk_seed, ctx
        Accepted; of no effect.
    dtype : str, optional
        NotSupportedError for others than float32.
    aug_seq : str, default 'det_aug_default'
        NotSupportedError for others.
    label_width : int, default -1
        Above 0: MXNetError where a label has not that many numbers.
    label_pad_width : int, default 0
        Above 0: how many numbers labels of batches have behind the first four, at least; else as
        many as the longest has, for which all records are read first.
    label_pad_value : float, default -1
        What stands behind shorter labels.
    resize : int, default -1
        Above 0: the length that the shorter edge gets first.
    rand_pad_prob : float, default 0
        The probability that an image is put at a random place of a larger one.
    max_pad_scale : float, default 1
        The largest width and height of that, as multiples of the image's.
    rand_mirror_prob : float, default 0
        The probability that an image is mirrored.
    fill_value : int, default 127
        The value around padded images.
    inter_method : int, default 1
        As of `image.resize_short`.
    resize_mode : {'force', 'fit', 'shrink'}, default 'force'
        How images get the size of `data_shape`: whatever their proportions; with these, and zeros
        to the right or below; or so, and never enlarged.
    mean_r, mean_g, mean_b, mean_a : float, default 0
        What is taken off the channels.
    std_r, std_g, std_b, std_a : float, default 0
        What the channels are divided by; 0: nothing.
    scale : float, default 1
        What images are multiplied by.
    mean_img : str, default ''
        NotSupportedError for others.
    data_name, label_name : str
        Names of the data and of the labels in a batch.
    **kwargs
        MXNet's parameters of cropping and colors: NotSupportedError where they are to do something;
        `image.ImageDetIter` has such augmenters.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "some.rec")
    >>> record = mx.recordio.MXRecordIO(path, "w")
    >>> label = [2, 5, 0, 0.1, 0.2, 0.5, 0.6]
    >>> record.write(mx.recordio.pack_img((0, label, 0, 0), np.zeros((8, 8, 3), np.uint8)))
    >>> record.close()
    >>> batch = next(mx.io.ImageDetRecordIter(path, (3, 4, 4), batch_size=1))
    >>> batch.label[0].asnumpy()[0, :7].tolist()
    [3.0, 4.0, 4.0, 7.0, 2.0, 5.0, 0.0]
    """

    def __init__(
        self,
        path_imgrec: str = "./data/imgrec.rec",
        data_shape: tuple[int, int, int] = (0, 0, 0),
        batch_size: int = 0,
        path_imglist: str = "",
        path_imgidx: str = "",
        aug_seq: str = "det_aug_default",
        label_width: int = -1,
        preprocess_threads: int = 4,
        verbose: bool = True,
        num_parts: int = 1,
        part_index: int = 0,
        shuffle_chunk_size: int = 0,
        shuffle_chunk_seed: int = 0,
        label_pad_width: int = 0,
        label_pad_value: float = -1,
        shuffle: bool = False,
        seed: int = 0,
        round_batch: bool = True,
        prefetch_buffer: int = 4,
        ctx: str = "gpu",
        dtype: str | None = None,
        resize: int = -1,
        rand_pad_prob: float = 0,
        max_pad_scale: float = 1,
        rand_mirror_prob: float = 0,
        fill_value: int = 127,
        inter_method: int = 1,
        resize_mode: str = "force",
        mean_img: str = "",
        mean_r: float = 0,
        mean_g: float = 0,
        mean_b: float = 0,
        mean_a: float = 0,
        std_r: float = 0,
        std_g: float = 0,
        std_b: float = 0,
        std_a: float = 0,
        scale: float = 1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **kwargs: Any,
    ) -> None:
        unknown = sorted(set(kwargs) - {*_NOT_THERE, *_CROPS})
        if unknown:
            raise TypeError(f"ImageDetRecordIter has no parameter {', '.join(unknown)}")
        wanted = [name for name in _NOT_THERE if kwargs.get(name)]
        wanted += ["mean_img"] if mean_img else []
        wanted += ["aug_seq"] if aug_seq != "det_aug_default" else []
        wanted += ["dtype"] if dtype not in (None, "float32") else []
        if wanted:
            raise NotSupportedError(
                f"ImageDetRecordIter does not know {', '.join(wanted)}; image.ImageDetIter has "
                "augmenters that crop, and that change colors"
            )
        self._check_sizes(data_shape, batch_size)
        if resize_mode not in _MODES:
            raise MXNetError(
                f"ImageDetRecordIter: resize_mode is one of {', '.join(_MODES)}, not "
                f"{resize_mode!r}"
            )
        self._data_shape = tuple(data_shape)
        self._label_width = label_width
        self._pad_value = label_pad_value
        self._seed = seed
        self._resize = resize
        self._padding = (rand_pad_prob, max_pad_scale, fill_value)
        self._mirror = rand_mirror_prob
        self._method = inter_method
        self._mode = resize_mode
        channels = data_shape[0]
        mean = np.array((mean_r, mean_g, mean_b, mean_a)[:channels], np.float32)
        std = np.array((std_r, std_g, std_b, std_a)[:channels], np.float32)
        self._mean: Pixels = mean.reshape(-1, 1, 1)
        self._factor: Pixels = (scale / np.where(std, std, 1)).astype(np.float32).reshape(-1, 1, 1)
        self._open_records(
            path_imgrec,
            path_imgidx,
            path_imglist,
            num_parts,
            part_index,
            shuffle,
            seed,
            batch_size,
            round_batch,
            preprocess_threads,
            prefetch_buffer,
        )
        self._width: int = max(label_pad_width, self._longest() if label_pad_width < 1 else 0)
        self.provide_data: list[DataDesc] = [DataDesc(data_name, (batch_size, *data_shape))]
        self.provide_label: list[DataDesc] = [DataDesc(label_name, (batch_size, 4 + self._width))]

    def _longest(self):
        """How many numbers the longest label has."""
        longest = 0
        for key in self._keys:
            header, _ = recordio.unpack(self._records.read_idx(key))
            longest = max(
                longest, len(self._label_of(header, f"{self._records.uri}: record {key}"))
            )
        return longest

    def _label_of(self, header, where):
        label = self._labels_of(header, where)
        before, width = (int(label[0]), int(label[1])) if len(label) > 1 else (0, 0)
        if before < 2 or width < 5 or len(label) < before or (len(label) - before) % width:
            raise MXNetError(
                f"{where}: the label of an image with boxes is (2, numbers of an object, 5 or "
                f"more, then these of each object), not {len(label)} numbers {label[:8].tolist()}"
            )
        if self._label_width > 0 and len(label) != self._label_width:
            raise MXNetError(
                f"{where}: the label has {len(label)} numbers, label_width is {self._label_width}"
            )
        return label

    def _fitted(self, values, draw):
        """The image as `resize_mode` wants it."""
        _, height, width = self._data_shape
        if self._mode != "force":
            rows, columns = values.shape[:2]
            factor = min(height / rows, width / columns)
            factor = min(factor, 1.0) if self._mode == "shrink" else factor
            height, width = int(rows * factor), int(columns * factor)
        return resized(values, width, height, self._method, draw)

    def _padded(self, values, objects, draw):
        """The image at a random place of a larger one."""
        _, largest, fill = self._padding
        rows, columns, channels = values.shape
        factor = draw.uniform(1, max(1, largest))
        height, width = int(rows * factor), int(columns * factor)
        y, x = draw.randint(0, height - rows), draw.randint(0, width - columns)
        out = np.full((height, width, channels), fill, np.uint8)
        out[y : y + rows, x : x + columns] = values
        objects[:, [1, 3]] = (objects[:, [1, 3]] * columns + x) / width
        objects[:, [2, 4]] = (objects[:, [2, 4]] * rows + y) / height
        return out

    def _make(
        self, header: recordio.IRHeader, data: bytes, where: str, number: tuple[int, int]
    ) -> tuple[np.ndarray[Any, Any], Any]:
        label = self._label_of(header, where).copy()
        if len(label) > self._width:
            raise MXNetError(
                f"{where}: the label has {len(label)} numbers, label_pad_width is {self._width}"
            )
        objects = label[int(label[0]) :].reshape(-1, int(label[1]))
        draw = random.Random(f"{self._seed} {number}")
        values = decode(data, self._data_shape[0], where)
        if self._resize > 0:
            values = resized_short(values, self._resize, self._method, draw)
        if draw.random() < self._padding[0]:
            values = self._padded(values, objects, draw)
        if draw.random() < self._mirror:
            values = values[:, ::-1]
            objects[:, [1, 3]] = 1 - objects[:, [3, 1]]
        values = self._fitted(values, draw)
        rows, columns, channels = values.shape
        out = np.zeros(self._data_shape, np.float32)
        image = values.transpose(2, 0, 1).astype(np.float32)
        out[:, :rows, :columns] = (image - self._mean) * self._factor
        found = np.full(4 + self._width, self._pad_value, np.float32)
        found[:4] = channels, rows, columns, len(label)
        found[4 : 4 + len(label)] = label
        return out, found
