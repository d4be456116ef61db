"""`ImageDetRecordIter`: batches of images with boxes from RecordIO files."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import recordio
from ..base import MXNetError, NotSupportedError
from ._record_boxes import BoxSettings, CropSampler, changed
from ._record_images import decode, resized, resized_short
from .image_record_iter import RecordImages
from .io import DataDesc
from .mx_data_iter import warn_of_unused

__all__ = ["ImageDetRecordIter"]

_Numbers: TypeAlias = "float | tuple[float, ...]"

if TYPE_CHECKING:
    Pixels = np.ndarray[Any, Any]


class ImageDetRecordIter(RecordImages):
    """Batches of images with boxes from a RecordIO file: data of float32 (batch_size, channels,
    height, width), labels of float32 (batch_size, 4 + length of a label).

    The label of a record consists of a header and its objects. The header has the length of the
    header (2 or more), the length of an object (5 or more), and optional further values. Each
    object has its class and its left, top, right and bottom edge as fractions of the image. In a
    batch, a label is preceded by the channels, height and width of the image, and the length of the
    label.

    Parameters
    ----------
    path_imgrec : str, default './data/imgrec.rec'
        RecordIO file. Raises MXNetError if it does not exist.
    data_shape : tuple of int
        Channels (1 for grayscale, 3, or 4), height and width of the results.
    batch_size : int
        Images in a batch.
    path_imglist, path_imgidx, preprocess_threads, verbose, num_parts, part_index
        See `ImageRecordIter`.
    shuffle, seed, round_batch, prefetch_buffer
        See `ImageRecordIter`.
    shuffle_chunk_size, shuffle_chunk_seed, ctx
        Accepted and ignored.
    dtype : str, optional
        Only float32 is supported. Raises NotSupportedError for others.
    aug_seq : str, default 'det_aug_default'
        Raises NotSupportedError for other values.
    label_width : int, default -1
        If above 0, labels with a different length raise MXNetError.
    label_pad_width : int, default 0
        If above 0, the minimum length of labels in batches after their first four values.
        Otherwise, it is the length of the longest label, for which all records are read first.
    label_pad_value : float, default -1
        Value that pads shorter labels.
    resize : int, default -1
        If above 0, the length to which the shorter edge is resized first.
    rand_pad_prob : float, default 0
        Probability of placing an image at a random position of a larger one.
    max_pad_scale : float, default 1
        Maximum width and height of the larger image, as multiples of the image's.
    rand_mirror_prob : float, default 0
        Probability of mirroring an image.
    fill_value : int, default 127
        Value of the padding.
    inter_method : int, default 1
        See `image.resize_short`.
    resize_mode : {'force', 'fit', 'shrink'}, default 'force'
        How images are resized to `data_shape`: 'force' ignores the aspect ratio, 'fit' keeps it and
        pads with zeros on the right or bottom, 'shrink' is like 'fit' but never enlarges.
    mean_r, mean_g, mean_b, mean_a : float, default 0
        Values subtracted from the channels.
    std_r, std_g, std_b, std_a : float, default 0
        Values that divide the channels; 0 disables this.
    scale : float, default 1
        A factor for images.
    mean_img : str, default ''
        A file of `nd.save` with an array ``mean_img`` of shape `data_shape`, which is subtracted
        from images if no mean of channels is given. If the file does not exist, the mean of this
        part's images is computed and written to it first.
    data_name, label_name : str
        Names of the data and of the labels in a batch.
    rand_crop_prob : float, default 0
        Probability of cropping a rectangle.
    num_crop_sampler : int, default 1
        Number of crop samplers, which are tried in random order. Each of the following parameters
        is a number for all samplers, or a tuple with one number for each. Other lengths raise
        MXNetError.
    min_crop_scales, max_crop_scales : float or tuple of float, default 0 and 1
        Limits of the square root of a rectangle's fraction of the image's area.
    min_crop_aspect_ratios, max_crop_aspect_ratios : float or tuple of float, default 1
        Limits of a rectangle's aspect ratio, width / height.
    min_crop_overlaps, max_crop_overlaps : float or tuple of float, default 0 and 1
        Limits of the intersection over union of an object and the rectangle.
    min_crop_sample_coverages, max_crop_sample_coverages : float or tuple, default 0 and 1
        Limits of their intersection as a fraction of the rectangle.
    min_crop_object_coverages, max_crop_object_coverages : float or tuple, default 0 and 1
        Limits of their intersection as a fraction of the object.
    max_crop_trials : int or tuple of int, default 25
        Number of rejected rectangles after which the next sampler is tried.
    crop_emit_mode : {'center', 'overlap'}, default 'center'
        Which objects to keep: those whose center is in the rectangle, or those that overlap it
        enough.
    emit_overlap_thresh : float, default 0.3
        Minimum fraction of an object that must be in the rectangle.
    max_random_hue, max_random_saturation, max_random_illumination : int, default 0
        Limits of random numbers that are added to hue (of 180), saturation and lightness (of 255).
    random_hue_prob, random_saturation_prob, random_illumination_prob : float, default 0
        Probabilities of these changes.
    max_random_contrast : float, default 0
        Images are multiplied by a random number from 1 - this to 1 + this.
    random_contrast_prob : float, default 0
        Probability of this change.
    **others
        Ignored with a warning.

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
        rand_crop_prob: float = 0,
        num_crop_sampler: int = 1,
        min_crop_scales: _Numbers = 0.0,
        max_crop_scales: _Numbers = 1.0,
        min_crop_aspect_ratios: _Numbers = 1.0,
        max_crop_aspect_ratios: _Numbers = 1.0,
        min_crop_overlaps: _Numbers = 0.0,
        max_crop_overlaps: _Numbers = 1.0,
        min_crop_sample_coverages: _Numbers = 0.0,
        max_crop_sample_coverages: _Numbers = 1.0,
        min_crop_object_coverages: _Numbers = 0.0,
        max_crop_object_coverages: _Numbers = 1.0,
        max_crop_trials: int | tuple[int, ...] = 25,
        crop_emit_mode: str = "center",
        emit_overlap_thresh: float = 0.3,
        max_random_hue: int = 0,
        random_hue_prob: float = 0,
        max_random_saturation: int = 0,
        random_saturation_prob: float = 0,
        max_random_illumination: int = 0,
        random_illumination_prob: float = 0,
        max_random_contrast: float = 0,
        random_contrast_prob: float = 0,
        **others: Any,
    ) -> None:
        warn_of_unused(type(self).__name__, others)
        wanted = ["aug_seq"] if aug_seq != "det_aug_default" else []
        wanted += ["dtype"] if dtype not in (None, "float32") else []
        if wanted:
            raise NotSupportedError(f"ImageDetRecordIter: unknown parameters {', '.join(wanted)}")
        self._check_sizes(data_shape, batch_size)
        for name, mode, modes in (
            ("resize_mode", resize_mode, ("force", "fit", "shrink")),
            ("crop_emit_mode", crop_emit_mode, ("center", "overlap")),
        ):
            if mode not in modes:
                raise MXNetError(
                    f"ImageDetRecordIter: {name} must be one of {', '.join(modes)}, not {mode!r}"
                )
        self._data_shape = tuple(data_shape)
        self._label_width = label_width
        self._pad_value = label_pad_value
        self._seed = seed
        self._resize = resize
        limits = {
            "scales": (min_crop_scales, max_crop_scales),
            "aspect_ratios": (min_crop_aspect_ratios, max_crop_aspect_ratios),
            "overlaps": (min_crop_overlaps, max_crop_overlaps),
            "sample_coverages": (min_crop_sample_coverages, max_crop_sample_coverages),
            "object_coverages": (min_crop_object_coverages, max_crop_object_coverages),
        }
        pairs = [
            zip(
                _for_each(f"min_crop_{name}", least, num_crop_sampler),
                _for_each(f"max_crop_{name}", most, num_crop_sampler),
            )
            for name, (least, most) in limits.items()
        ]
        trials = _for_each("max_crop_trials", max_crop_trials, num_crop_sampler)
        self._settings = BoxSettings(
            crop_probability=rand_crop_prob,
            samplers=[CropSampler(*settings) for settings in zip(*pairs, map(int, trials))],
            keeps_by_center=crop_emit_mode == "center",
            least_kept=emit_overlap_thresh,
            pad_probability=rand_pad_prob,
            largest_pad=max_pad_scale,
            fill_value=fill_value,
            mirror_probability=rand_mirror_prob,
            shifts=[
                (max_random_hue, random_hue_prob),
                (max_random_saturation, random_saturation_prob),
                (max_random_illumination, random_illumination_prob),
            ],
            contrast=(max_random_contrast, random_contrast_prob),
        )
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
        if mean_img and not mean.any():
            there = os.path.isfile(mean_img)
            self._mean = self._read_mean(mean_img) if there else self._write_mean(mean_img)
        self._width: int = max(label_pad_width, self._longest() if label_pad_width < 1 else 0)
        self.provide_data: list[DataDesc] = [DataDesc(data_name, (batch_size, *data_shape))]
        self.provide_label: list[DataDesc] = [DataDesc(label_name, (batch_size, 4 + self._width))]

    def _longest(self):
        """Returns the length of the longest label."""
        longest = 0
        for key in self._keys:
            header, _, where = self._record(key)
            longest = max(longest, len(self._label_of(header, where)))
        return longest

    def _label_of(self, header, where):
        label = self._labels_of(header, where)
        known = len(label) > 1 and np.isfinite(label[:2]).all()
        before, width = (int(label[0]), int(label[1])) if known else (0, 0)
        if before < 2 or width < 5 or len(label) < before or (len(label) - before) % width:
            raise MXNetError(
                f"{where}: the label of an image with boxes must be (2, values per object (at "
                f"least 5), then the values of each object), not {len(label)} values "
                f"{label[:8].tolist()}"
            )
        if self._label_width > 0 and len(label) != self._label_width:
            raise MXNetError(
                f"{where}: the label has {len(label)} values, but label_width is "
                f"{self._label_width}"
            )
        return label

    def _fitted(self, values, draw):
        """Resizes the image according to `resize_mode`."""
        _, height, width = self._data_shape
        if self._mode != "force":
            rows, columns = values.shape[:2]
            factor = min(height / rows, width / columns)
            factor = min(factor, 1.0) if self._mode == "shrink" else factor
            height, width = int(rows * factor), int(columns * factor)
        return resized(values, width, height, self._method, draw)

    def _make(
        self, header: recordio.IRHeader, data: bytes, where: str, number: tuple[int, int]
    ) -> tuple[np.ndarray[Any, Any], Any]:
        values, label = self._changed(header, data, where, number)
        if len(label) > self._width:
            raise MXNetError(
                f"{where}: the label has {len(label)} values, but label_pad_width is {self._width}"
            )
        rows, columns, channels = values.shape
        out = np.zeros(self._data_shape, np.float32)
        image = values.transpose(2, 0, 1).astype(np.float32)
        out[:, :rows, :columns] = (image - self._mean[:, :rows, :columns]) * self._factor
        found = np.full(4 + self._width, self._pad_value, np.float32)
        found[:4] = channels, rows, columns, len(label)
        found[4 : 4 + len(label)] = label
        return out, found

    def _plain(self, header, data, where, number):
        values, _ = self._changed(header, data, where, number)
        out = np.zeros(self._data_shape, np.float32)
        out[:, : values.shape[0], : values.shape[1]] = values.transpose(2, 0, 1)
        return out

    def _changed(self, header, data, where, number):
        """Returns a record's augmented and resized image, and its label."""
        label = self._label_of(header, where)
        begin, width = int(label[0]), int(label[1])
        objects = label[begin:].reshape(-1, width)
        draw = random.Random(f"{self._seed} {number}")
        values = decode(data, self._data_shape[0], where)
        if self._resize > 0:
            values = resized_short(values, self._resize, self._method, draw)
        values, objects = changed(values, objects, self._settings, draw)
        label = np.concatenate([label[:begin], objects.ravel()])
        return self._fitted(values, draw), label


def _for_each(name, values, count):
    """Returns a tuple of `count` numbers, from one number or from `count` numbers."""
    values = tuple(np.atleast_1d(values).tolist())
    if len(values) not in (1, count):
        raise MXNetError(
            f"ImageDetRecordIter: {name} has {len(values)} numbers, but num_crop_sampler is {count}"
        )
    return values * (count // len(values))
