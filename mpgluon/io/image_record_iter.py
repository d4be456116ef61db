"""`ImageRecordIter`: batches of images from RecordIO files, decoded by threads."""

from __future__ import annotations

import collections
import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ndarray as nd, recordio
from ..base import MXNetError, MXNetValueError, NotSupportedError
from ..image._lists import read_list
from ._record_images import ImageSettings, changed, check, decode, is_mirrored
from .io import DataDesc, check_batch_size
from .mx_data_iter import MXDataIter, files_of, warn_of_unused

if TYPE_CHECKING:
    from collections.abc import Callable

    from .mx_data_iter import Samples


__all__ = [
    "ImageRecordInt8Iter",
    "ImageRecordIter",
    "ImageRecordIter_v1",
    "ImageRecordUInt8Iter",
    "ImageRecordUInt8Iter_v1",
]


class RecordImages(MXDataIter):
    """Base class of iterators over images in RecordIO files. It reads records in the order of an
    epoch, and creates samples in threads, some batches ahead.

    Examples
    --------
    >>> issubclass(mx.io.ImageRecordIter, mx.io.image_record_iter.RecordImages)
    True
    """

    def _open_records(
        self,
        path_imgrec: str,
        path_imgidx: str,
        path_imglist: str,
        num_parts: int,
        part_index: int,
        shuffle: bool,
        seed: int,
        batch_size: int,
        round_batch: bool,
        threads: int,
        ahead: int,
    ) -> None:
        if not path_imgrec:
            raise MXNetError(f"{type(self).__name__} needs path_imgrec, a RecordIO file")
        if path_imgidx and os.path.isdir(path_imgrec):
            raise MXNetError(
                f"{type(self).__name__}: path_imgidx is the index of one file, but "
                f"{path_imgrec} is a folder; omit path_imgidx"
            )
        try:
            files: list[Any] = (
                [recordio.MXIndexedRecordIO(path_imgidx, path_imgrec, "r")]
                if path_imgidx
                else [recordio.ScannedRecordIO(file) for file in files_of(path_imgrec)]
            )
        except OSError as error:
            raise MXNetError(f"{type(self).__name__}: {error}") from error
        keys = [(file, key) for file in files for key in file.keys]
        if not 0 <= part_index < num_parts:
            raise MXNetError(
                f"{type(self).__name__}: part_index must be 0 to {num_parts - 1} for "
                f"{num_parts} parts, not {part_index}"
            )
        size = -(-len(keys) // num_parts)
        self._keys: list[Any] = keys[part_index * size : (part_index + 1) * size]
        if not self._keys:
            raise MXNetError(f"{type(self).__name__}: {path_imgrec} has no records for this part")
        self._labels: dict[int, np.ndarray[Any, Any]] | None = None
        if path_imglist:
            self._labels = {key: labels for key, labels, _ in read_list(path_imglist)}
        self._shuffle = shuffle
        self._order = random.Random(seed)
        self._epoch = 0
        self._pool = ThreadPoolExecutor(max(1, threads))
        self._ahead = max(1, ahead)
        # Index of a batch's first sample -> (record ids, pending samples), for prefetched batches.
        self._coming: collections.OrderedDict[int, tuple[list[int], list[Any]]] = (
            collections.OrderedDict()
        )
        self._set_up(batch_size, len(self._keys), "round" if round_batch else "pad")
        # Determine the order of the next epoch in advance, because its first samples pad the last
        # batch.
        self._keys = self._order_of_keys()
        self._next_keys = self._order_of_keys()

    def _check_sizes(self, data_shape: tuple[int, ...], batch_size: int) -> None:
        name = type(self).__name__
        if len(data_shape) != 3 or data_shape[0] not in (1, 3, 4) or min(data_shape) < 1:
            raise MXNetError(
                f"{name}: data_shape must be (1, 3 or 4 channels, height, width), not {data_shape}"
            )
        check_batch_size(name, batch_size)

    def _labels_of(self, header: recordio.IRHeader, where: str) -> np.ndarray[Any, Any]:
        """Returns the labels of a record, or its labels in the list: float32, with one
        dimension."""
        labels = header.label
        if self._labels is not None:
            if header.id not in self._labels:
                raise MXNetError(f"{where}: the list has no line with the number {header.id}")
            labels = self._labels[header.id]
        return np.atleast_1d(np.asarray(labels, np.float32))

    def _order_of_keys(self):
        """Returns the keys in a new order for one epoch."""
        keys = list(self._keys)
        if self._shuffle:
            self._order.shuffle(keys)
        return keys

    def reset(self) -> None:
        """Starts the next epoch, in another order if shuffled."""
        super().reset()
        for _, futures in self._coming.values():
            for future in futures:
                future.cancel()
        self._coming.clear()
        self._epoch += 1
        self._keys, self._next_keys = self._next_keys, self._order_of_keys()

    def _record(self, key):
        """Returns the header and the image's bytes of a record, and its name for error messages."""
        file, number = key
        where = f"{file.uri}: record {number}"
        try:
            return *recordio.unpack(file.read_idx(number)), where
        except MXNetValueError as error:
            raise MXNetError(f"{where}: {error}") from None

    def _request(self, begin):
        """Returns the record ids and the samples, as futures, of the batch that starts at
        `begin`."""
        futures, ids = [], []
        for place in range(begin, begin + self.batch_size):
            goes_on = place >= self._count and self._last_batch == "round"
            keys = self._next_keys if goes_on else self._keys
            header, data, where = self._record(keys[place % self._count])
            ids.append(header.id)
            futures.append(self._pool.submit(self._make, header, data, where, (self._epoch, place)))
        return ids, futures

    def _samples(self, rows: np.ndarray[Any, Any]) -> Samples:
        begin = self._begin
        for step in range(self._ahead):
            later = begin + step * self.batch_size
            if later < self._count and later not in self._coming:
                self._coming[later] = self._request(later)
        ids, futures = self._coming.pop(begin)
        found = [future.result() for future in futures]
        return (
            nd.array(np.stack([data for data, _ in found]), dtype=self._dtype),
            nd.array(np.stack([label for _, label in found])),
            np.array(ids),
        )

    _dtype: Any = np.float32

    def _make(
        self, header: recordio.IRHeader, data: bytes, where: str, number: tuple[int, int]
    ) -> tuple[np.ndarray[Any, Any], Any]:
        """Returns the image and the label of a record."""
        raise NotImplementedError

    def _plain(self, header, data, where, number):
        """Returns a record's augmented image, without normalization."""
        raise NotImplementedError

    def _read_mean(self, path):
        """Reads the mean image from a file."""
        name, arrays = type(self).__name__, nd.load(path)
        if not isinstance(arrays, dict) or "mean_img" not in arrays:
            raise MXNetError(f"{name}: {path} has no array mean_img")
        mean = arrays["mean_img"].asnumpy()
        if mean.shape != self._data_shape:
            raise MXNetError(
                f"{name}: mean_img in {path} has shape {mean.shape}, but images have shape "
                f"{self._data_shape}"
            )
        return mean.astype(np.float32)

    def _write_mean(self, path):
        """Computes the mean of the images of an epoch, and writes it to a file."""
        total = np.zeros(self._data_shape)
        for begin in range(0, self._count, 256):  # at most 256 records are in memory at a time
            futures = []
            for place in range(begin, min(begin + 256, self._count)):
                record = self._record(self._keys[place])
                futures.append(self._pool.submit(self._plain, *record, (0, place)))
            for future in futures:
                total += future.result()
        mean = (total / self._count).astype(np.float32)
        nd.save(path, {"mean_img": nd.array(mean)})
        return mean


class ImageRecordIter(RecordImages):
    """Batches of images from a RecordIO file: data (batch_size, channels, height, width), labels of
    float32 (batch_size,) or (batch_size, label_width).

    An image is processed in this order: resized, rotated and scaled, padded, cropped to
    `data_shape`, recolored, mirrored, and normalized: ``((x - mean) * contrast + illumination) *
    scale / std``. Random numbers depend on `seed_aug`, the epoch and the sample, not on threads.

    Parameters
    ----------
    path_imgrec : str
        RecordIO file, or a folder of such files, which are concatenated in the order of their
        names. Raises MXNetError if it does not exist.
    data_shape : tuple of int
        Channels (1 for grayscale, 3, or 4), height and width of the results.
    batch_size : int
        Images in a batch.
    path_imglist : str, default ''
        A list of lines ``number<TAB>label...<TAB>path``, whose labels replace those of the records
        with the same numbers.
    path_imgidx : str, default ''
        Index of the file; without it, the file is scanned first.
    aug_seq : str, default 'aug_default'
        Raises NotSupportedError for other values.
    label_width : int, default 1
        Length of a label. Records with a different length raise MXNetError.
    preprocess_threads : int, default 4
        Number of threads that create samples.
    verbose : bool, default True
        Accepted and ignored; nothing is printed.
    num_parts, part_index : int, default 1 and 0
        Number of parts of the records, and the index of the part to read.
    device_id, ctx, shuffle_chunk_size, shuffle_chunk_seed
        Accepted and ignored.
    seed_aug : int, optional
        Seed of random changes; defaults to `seed`.
    shuffle : bool, default False
        Whether to shuffle the order in each epoch.
    seed : int, default 0
        Seed of the orders.
    round_batch : bool, default True
        Whether the images that pad the last batch are taken from the next epoch, which then
        continues after them; raises MXNetError if it has too few images. Otherwise, they are the
        first images of this epoch.
    prefetch_buffer : int, default 4
        Number of batches to prefetch.
    dtype : str, optional
        Data type; defaults to float32. For int8, the rounded mean is subtracted and results are
        clipped to -128 and 127. Images of int8 are not scaled and images of uint8 are not
        normalized at all; options that request this raise MXNetError.
    resize : int, default -1
        If above 0, the length to which the shorter edge is resized first.
    rand_crop : bool, default False
        Whether to crop at random positions instead of the center.
    random_resized_crop : bool, default False
        Whether rectangles have random areas and aspect ratios; width and height are swapped with
        probability 0.5. Raises MXNetError with `rand_crop`, or limits of scale or of squares.
    max_rotate_angle : int, default 0
        Maximum random rotation in degrees.
    max_aspect_ratio : float, default 0
        Largest aspect ratio, width / height. Without `min_aspect_ratio`, ratios are from 1 - this
        to 1 + this.
    min_aspect_ratio : float, optional
        Smallest aspect ratio.
    max_shear_ratio : float, default 0
        Maximum random shear.
    max_crop_size, min_crop_size : int, default -1
        Limits of the side of a square that is cropped and resized.
    max_random_scale, min_random_scale : float, default 1
        Limits of the scale factor of the size.
    max_random_area, min_random_area : float, default 1
        Limits of the fraction of the area, with `random_resized_crop`.
    max_img_size, min_img_size : float, default 1e10 and 0
        Limits of width and height after rotation.
    brightness, contrast, saturation : float, default 0
        Random factors are from 1 - this to 1 + this, applied in random order.
    pca_noise : float, default 0
        Standard deviation of random multiples of the principal components of ImageNet's colors.
    random_h, random_s, random_l : int, default 0
        Limits of random numbers that are added to hue (of 180), saturation and lightness (of 255).
        Their distribution is denser in the middle.
    rotate : int, default -1
        If above 0, a fixed rotation in degrees.
    fill_value : int, default 255
        Value outside of rotated and padded images.
    inter_method : int, default 1
        See `image.resize_short`; rotation supports 0, 1 and 2.
    pad : int, default 0
        Width of a border around images.
    mirror, rand_mirror : bool, default False
        Whether to mirror all images, or each with probability 0.5.
    mean_img : str, default ''
        A file of `nd.save` with an array ``mean_img`` (channels, height, width). If the file does
        not exist, the mean of this part's images is computed and written to it first.
    mean_r, mean_g, mean_b, mean_a : float, default 0
        Values subtracted from the channels, if there is no `mean_img`.
    std_r, std_g, std_b, std_a : float, default 1
        Values that divide the channels.
    scale : float, default 1
        A factor for images.
    max_random_contrast, max_random_illumination : float, default 0
        Random `contrast` from 1 - this to 1 + this, and random `illumination` from -this to this,
        in the formula above.
    data_name, label_name : str
        Names of the data and of the labels in a batch.
    **others
        Ignored with a warning.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "some.rec")
    >>> record = mx.recordio.MXRecordIO(path, "w")
    >>> for i in range(4):
    ...     picture = np.full((8, 8, 3), i, np.uint8)
    ...     record.write(mx.recordio.pack_img((0, float(i), i, 0), picture, 1, ".png"))
    >>> record.close()
    >>> batches = mx.io.ImageRecordIter(path, (3, 4, 4), batch_size=2, rand_crop=True)
    >>> [(batch.data[0].shape, batch.label[0].asnumpy().tolist()) for batch in batches]
    [((2, 3, 4, 4), [0.0, 1.0]), ((2, 3, 4, 4), [2.0, 3.0])]
    """

    def __init__(
        self,
        path_imgrec: str = "",
        data_shape: tuple[int, int, int] = (0, 0, 0),
        batch_size: int = 0,
        path_imglist: str = "",
        path_imgidx: str = "",
        aug_seq: str = "aug_default",
        label_width: int = 1,
        preprocess_threads: int = 4,
        verbose: bool = True,
        num_parts: int = 1,
        part_index: int = 0,
        device_id: int = 0,
        shuffle_chunk_size: int = 0,
        shuffle_chunk_seed: int = 0,
        seed_aug: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        round_batch: bool = True,
        prefetch_buffer: int = 4,
        ctx: str = "gpu",
        dtype: str | None = None,
        resize: int = -1,
        rand_crop: bool = False,
        random_resized_crop: bool = False,
        max_rotate_angle: int = 0,
        max_aspect_ratio: float = 0,
        min_aspect_ratio: float | None = None,
        max_shear_ratio: float = 0,
        max_crop_size: int = -1,
        min_crop_size: int = -1,
        max_random_scale: float = 1,
        min_random_scale: float = 1,
        max_random_area: float = 1,
        min_random_area: float = 1,
        max_img_size: float = 1e10,
        min_img_size: float = 0,
        brightness: float = 0,
        contrast: float = 0,
        saturation: float = 0,
        pca_noise: float = 0,
        random_h: int = 0,
        random_s: int = 0,
        random_l: int = 0,
        rotate: int = -1,
        fill_value: int = 255,
        inter_method: int = 1,
        pad: int = 0,
        mirror: bool = False,
        rand_mirror: bool = False,
        mean_img: str = "",
        mean_r: float = 0,
        mean_g: float = 0,
        mean_b: float = 0,
        mean_a: float = 0,
        std_r: float = 1,
        std_g: float = 1,
        std_b: float = 1,
        std_a: float = 1,
        scale: float = 1,
        max_random_contrast: float = 0,
        max_random_illumination: float = 0,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **others: Any,
    ) -> None:
        warn_of_unused(type(self).__name__, others)
        name = type(self).__name__
        if aug_seq != "aug_default":
            raise NotSupportedError(f"{name}: aug_seq must be 'aug_default', not {aug_seq!r}")
        self._check_sizes(data_shape, batch_size)
        if inter_method not in (0, 1, 2, 3, 4, 9, 10):
            raise MXNetError(f"{name}: inter_method must be 0 to 4, 9 or 10, not {inter_method}")
        self._dtype = np.dtype(dtype or "float32").type
        self._data_shape = tuple(data_shape)
        self._label_width = label_width
        self._seed_aug = seed if seed_aug is None else seed_aug
        self._jitter = (max_random_contrast, max_random_illumination)
        channels = data_shape[0]
        column = (-1, 1, 1)
        self._mean: np.ndarray[Any, Any] = np.array(
            (mean_r, mean_g, mean_b, mean_a)[:channels], np.float32
        ).reshape(column)
        std = np.array((std_r, std_g, std_b, std_a)[:channels], np.float32)
        if (std == 0).any():
            raise MXNetError(f"{name}: std_r, std_g, std_b and std_a must not be 0")
        self._factor: np.ndarray[Any, Any] = (scale / std).astype(np.float32).reshape(column)
        makes_mean = mean_img and not os.path.isfile(mean_img)
        if mean_img and not makes_mean:
            self._mean = self._read_mean(mean_img)
        has_mean = bool(mean_img or self._mean.any())
        is_scaled = bool((self._factor != 1).any() or any(self._jitter))
        self._normalizes: bool = has_mean or is_scaled
        takes_mean = self._dtype is np.int8
        unwanted = is_scaled or (has_mean and not takes_mean)
        if unwanted and np.issubdtype(self._dtype, np.integer):
            raise MXNetError(
                f"{name}: images of {np.dtype(self._dtype)} cannot be "
                f"{'scaled' if takes_mean else 'normalized'}; omit "
                f"{'' if takes_mean else 'mean, '}std, scale, max_random_contrast and "
                "max_random_illumination, or dtype"
            )
        self._settings = ImageSettings(
            data_shape=self._data_shape,
            resize=resize,
            rand_crop=rand_crop,
            random_resized_crop=random_resized_crop,
            max_rotate_angle=max_rotate_angle,
            max_aspect_ratio=max_aspect_ratio,
            min_aspect_ratio=min_aspect_ratio,
            max_shear_ratio=max_shear_ratio,
            max_crop_size=max_crop_size,
            min_crop_size=min_crop_size,
            max_random_scale=max_random_scale,
            min_random_scale=min_random_scale,
            max_random_area=max_random_area,
            min_random_area=min_random_area,
            max_img_size=max_img_size,
            min_img_size=min_img_size,
            brightness=brightness,
            contrast=contrast,
            saturation=saturation,
            pca_noise=pca_noise,
            random_h=random_h,
            random_s=random_s,
            random_l=random_l,
            rotate=rotate,
            fill_value=fill_value,
            inter_method=inter_method,
            pad=pad,
            mirror=mirror,
            rand_mirror=rand_mirror,
        )
        check(self._settings)
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
        if makes_mean:
            self._mean = self._write_mean(mean_img)
        label_shape = (batch_size,) if label_width == 1 else (batch_size, label_width)
        self.provide_data: list[DataDesc] = [
            DataDesc(data_name, (batch_size, *self._data_shape), self._dtype)
        ]
        self.provide_label: list[DataDesc] = [DataDesc(label_name, label_shape)]

    def _label_of(self, header, where):
        label = self._labels_of(header, where)
        count, wanted = len(label), self._label_width
        # Lines of a list may have additional labels.
        if count < wanted or (count > wanted and self._labels is None):
            raise MXNetError(
                f"{where} has {count} labels, but label_width is {wanted}; pass label_width={count}"
            )
        return label[0] if self._label_width == 1 else label[: self._label_width]

    def _pixels(self, data, where, number):
        """Returns (image, mirror, generator) of a record. The image is neither mirrored nor
        normalized. `mirror` is True if it must be mirrored, and `generator` draws further random
        numbers."""
        draw = random.Random(f"{self._seed_aug} {number}")
        values = changed(decode(data, self._data_shape[0], where), self._settings, draw)
        return values.transpose(2, 0, 1), is_mirrored(self._settings, draw), draw

    def _plain(self, header, data, where, number):
        values, mirrored, _ = self._pixels(data, where, number)
        return values[:, :, ::-1] if mirrored else values

    def _make(
        self, header: recordio.IRHeader, data: bytes, where: str, number: tuple[int, int]
    ) -> tuple[np.ndarray[Any, Any], Any]:
        label = self._label_of(header, where)
        out, mirrored, draw = self._pixels(data, where, number)
        if self._dtype is np.int8:
            mean = np.trunc(self._mean + np.copysign(0.5, self._mean))
            out = (out - mean).clip(-128, 127)
        elif self._normalizes:
            contrast, illumination = (draw.uniform(-limit, limit) for limit in self._jitter)
            out = (out.astype(np.float32) - self._mean) * np.float32(1 + contrast)
            out = (out + np.float32(illumination)) * self._factor
        return (out[:, :, ::-1] if mirrored else out).astype(self._dtype), label


def _of_dtype(name: str, dtype: str, what: str) -> Callable[..., ImageRecordIter]:
    def make(*args: Any, **kwargs: Any) -> ImageRecordIter:
        return ImageRecordIter(*args, **{**kwargs, "dtype": dtype})

    make.__name__ = make.__qualname__ = name
    make.__module__ = __name__
    make.__doc__ = (
        f"`ImageRecordIter` with images of {dtype}, {what}; the parameters\nare those of "
        "`ImageRecordIter`.\n\nReturns\n-------\nImageRecordIter\n"
    )
    return make


ImageRecordUInt8Iter: Callable[..., ImageRecordIter] = _of_dtype(
    "ImageRecordUInt8Iter", "uint8", "which are not normalized"
)
ImageRecordInt8Iter: Callable[..., ImageRecordIter] = _of_dtype(
    "ImageRecordInt8Iter", "int8", "from which the mean is subtracted"
)
ImageRecordIter_v1 = ImageRecordIter
ImageRecordUInt8Iter_v1 = ImageRecordUInt8Iter
