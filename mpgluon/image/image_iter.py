"""`ImageIter`: batches of images from files."""

from __future__ import annotations

import logging
import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ndarray as nd, recordio
from .._internal import kinds
from .._internal.files import open_regular
from ..base import MXNetAssertionError, MXNetError, MXNetValueError
from ..io.io import DataBatch, DataDesc, DataIter
from ._lists import entry_of, read_list
from ._plain import plain
from .augment import CreateAugmenter
from .image import imdecode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._core import NDArray

__all__ = ["ImageIter"]

_LABEL_DTYPES = ("int32", "float32", "int64", "float64")
_LAST_BATCHES = ("pad", "discard", "roll_over")


class ImageIter(DataIter):
    """Batches of images, augmented at random, from a RecordIO file or from a list of files.

    Batches have float32 data (batch_size, channels, height, width), and labels. Subclasses may
    override the methods that create a sample.

    Parameters
    ----------
    batch_size : int
        Images in a batch.
    data_shape : tuple of int
        3 (channels), height and width; ValueError otherwise.
    label_width : int, default 1
        The length of a label.
    path_imgrec : str, optional
        A RecordIO file. AssertionError if neither it nor a list is given.
    path_imglist : str, optional
        A list: lines ``number<TAB>label...<TAB>path``. With `path_imgrec`, its labels replace those
        in the records of the same number.
    path_root : str, optional
        The folder of relative paths in the list.
    path_imgidx : str, optional
        The index of `path_imgrec`, required for shuffling and parts; AssertionError otherwise.
    shuffle : bool, default False
        True to shuffle the images in each `reset`.
    part_index, num_parts : int, default 0 and 1
        The index of this iterator's part, and the number of equal parts.
    aug_list : list of Augmenter, optional
        The augmenters; by default ``CreateAugmenter(data_shape, **kwargs)``.
    imglist : list, optional
        Entries ``[label..., path]``, in place of `path_imglist`.
    data_name, label_name : str, default 'data' and 'softmax_label'
        Names in `provide_data` and `provide_label`.
    dtype : str, default 'float32'
        The labels' dtype in a list: int32, int64, float32 or float64; AssertionError otherwise.
    last_batch_handle : {'pad', 'discard', 'roll_over'}, default 'pad'
        The handling of images after the last full batch. 'pad' adds a batch that is filled with the
        first images; their number is its `pad`. 'discard' drops the images. 'roll_over' puts them
        at the start of the first batch after `reset`.
    **kwargs
        Parameters of `CreateAugmenter`.

    Attributes
    ----------
    imgrec : MXRecordIO or None
        The RecordIO file.
    imgidx : list or None
        The keys of its index.
    imglist : dict or None
        The label (an NDArray) and the path for each number of the list.

    Examples
    --------
    >>> import os, tempfile
    >>> root = tempfile.mkdtemp()
    >>> path = os.path.join(root, "some.png")
    >>> from PIL import Image
    >>> Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    >>> images = [[0, "some.png"]] * 4
    >>> batches = mx.image.ImageIter(2, (3, 4, 4), imglist=images, path_root=root)
    >>> [batch.data[0].shape for batch in batches]
    [(2, 3, 4, 4), (2, 3, 4, 4)]
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple[int, int, int],
        label_width: int = 1,
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
        label_name: str = "softmax_label",
        dtype: str = "float32",
        last_batch_handle: str = "pad",
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size)
        if not (path_imgrec or path_imglist or isinstance(imglist, list)):
            raise MXNetAssertionError(
                f"{type(self).__name__} needs images: path_imgrec, path_imglist, or a list imglist"
            )
        if np.dtype(dtype).name not in _LABEL_DTYPES:
            raise MXNetAssertionError(
                f"the dtype of labels must be one of {', '.join(_LABEL_DTYPES)}, not {dtype}"
            )
        if last_batch_handle not in _LAST_BATCHES:
            raise MXNetValueError(
                f"last_batch_handle must be one of {', '.join(_LAST_BATCHES)}, not "
                f"{last_batch_handle!r}"
            )
        self.check_data_shape(data_shape)
        data_shape = tuple(plain(data_shape))
        self.data_shape: tuple[int, int, int] = data_shape
        self.label_width = label_width
        self.shuffle = shuffle
        self.path_root = path_root
        self.last_batch_handle = last_batch_handle
        self.provide_data: list[DataDesc] = [DataDesc(data_name, (batch_size, *data_shape))]
        label_shape = (batch_size, label_width) if label_width > 1 else (batch_size,)
        self.provide_label: list[DataDesc] = [DataDesc(label_name, label_shape)]

        self.imgrec: recordio.MXRecordIO | None = None
        self.imgidx: list[Any] | None = None
        self.imglist: dict[Any, tuple[NDArray, str]] | None = None
        entries: list[Any] | None = None
        if path_imglist:
            entries = read_list(path_imglist, dtype)
        elif isinstance(imglist, list):
            entries = [(str(i), *entry_of(entry, dtype)) for i, entry in enumerate(imglist, 1)]
        if entries is not None:
            self.imglist = {
                key: (kinds.of_mode(nd.array(labels, dtype=dtype)), path)
                for key, labels, path in entries
            }
        self.seq: list[Any] | None = None if path_imgrec else list(self.imglist or ())
        if path_imgrec and path_imgidx:
            self.imgrec = recordio.MXIndexedRecordIO(path_imgidx, path_imgrec, "r")
            self.imgidx = list(self.imgrec.keys)
            self.seq = list(self.imgidx)
        elif path_imgrec:
            self.imgrec = recordio.MXRecordIO(path_imgrec, "r")
        if self.seq is None and (shuffle or num_parts > 1):
            raise MXNetAssertionError(
                "shuffle and num_parts need the index of records: path_imgidx"
            )
        if self.seq is not None and num_parts > 1:
            if not 0 <= part_index < num_parts:
                raise MXNetAssertionError(
                    f"part_index must be 0 to {num_parts - 1} for {num_parts} parts, not "
                    f"{part_index}"
                )
            size = len(self.seq) // num_parts
            self.seq = self.seq[part_index * size : (part_index + 1) * size]
        self.num_image: int | None = None if self.seq is None else len(self.seq)
        self.auglist: list[Any] = (
            list(CreateAugmenter(data_shape, **kwargs)) if aug_list is None else list(aug_list)
        )
        self.cur: int = 0
        self._finished = False
        self._begun: tuple[NDArray, NDArray, int] | None = None  # incomplete batch that rolls over
        self.reset()

    def reset(self) -> None:
        """Returns to the beginning; images that roll over are kept."""
        if self.seq is not None and self.shuffle:
            random.shuffle(self.seq)
        if self._begun is None:
            self._rewind()
        self._finished = False

    def hard_reset(self) -> None:
        """Returns to the beginning and drops images that roll over."""
        self._begun = None
        self.reset()

    def _rewind(self):
        if self.imgrec is not None:
            self.imgrec.reset()
        self.cur = 0
        self._finished = False

    def next_sample(self) -> tuple[Any, bytes]:
        """Returns the label and the file of the next image; raises StopIteration at the end."""
        if self._finished:
            raise StopIteration
        if self.seq is None:
            record = self.imgrec.read()
            if record is None:
                raise StopIteration
            self.cur += 1
            header, image = recordio.unpack(record)
            return header.label, image
        if self.cur >= len(self.seq):
            raise StopIteration
        key = self.seq[self.cur]
        self.cur += 1
        if self.imgrec is None:
            label, path = self.imglist[key]
            return label, self.read_image(path)
        header, image = recordio.unpack(self.imgrec.read_idx(key))
        if self.imglist is None:
            return header.label, image
        if key not in self.imglist:
            raise MXNetError(f"{self.imgrec.uri}: the list has no labels for record {key}")
        return self.imglist[key][0], image

    def _empty_batch(self):
        label = self.provide_label[0].shape
        data = nd.zeros((self.batch_size, *self.data_shape))
        return kinds.of_mode(data), kinds.of_mode(nd.zeros(label))

    def _make_sample(self, label, data):
        """Returns (label, image) for a batch, or None to skip an invalid image."""
        try:
            self.check_valid_image(data)
        except RuntimeError as error:
            self._log_left_out(error)
            return None
        return label, self.augmentation_transform(data)

    def _log_left_out(self, error):
        logging.debug("%s is skipped: %s", self._last_sample(), error)

    def _put_label(self, batch_label, place, label):
        batch_label[place] = label

    def _fill(self, batch_data, batch_label, place):
        """Fills a batch and returns the number of its samples, which is smaller at the end."""
        while place < self.batch_size:
            try:
                label, file = self.next_sample()
            except StopIteration:
                break
            sample = self._make_sample(label, self.imdecode(file))
            if sample is None:
                continue
            label, data = sample
            data = self.postprocess_data(data)
            if data.shape != batch_data.shape[1:]:
                raise MXNetValueError(
                    f"{self._last_sample()}: the augmenters returned an image of shape "
                    f"{data.shape}, but data_shape is {self.data_shape}"
                )
            batch_data[place] = data
            self._put_label(batch_label, place, label)
            place += 1
        return place

    def next(self) -> DataBatch:
        """Returns the next batch; raises StopIteration at the end."""
        if self._finished:
            raise StopIteration
        begun, self._begun = self._begun, None
        data, label, count = begun or (*self._empty_batch(), 0)
        if begun is None:
            count = self._fill(data, label, 0)
            if not count:
                raise StopIteration
        pad = self.batch_size - count
        if pad and begun is None and self.last_batch_handle != "pad":
            if self.last_batch_handle == "roll_over":
                self._rewind()
                self._begun = (data, label, count)
            self._finished = True
            raise StopIteration
        rewound = begun is not None
        while count < self.batch_size:
            if not rewound:
                self._rewind()
            rewound, before = False, count
            count = self._fill(data, label, count)
            if count == before:
                raise MXNetError(f"{type(self).__name__} has no image to fill a batch with")
        self._finished = bool(pad) and begun is None
        return DataBatch([data], [label], pad=pad)

    def check_data_shape(self, data_shape: Sequence[int]) -> None:
        """Raises ValueError if batches cannot have images of that shape."""
        if len(data_shape) != 3:
            raise MXNetValueError(
                f"data_shape must be (channels, height, width), not {tuple(data_shape)}"
            )
        if data_shape[0] != 3:
            raise MXNetValueError(f"data_shape must have 3 channels, not {data_shape[0]}")

    def check_valid_image(self, data: NDArray | Sequence[NDArray]) -> None:
        """Raises RuntimeError if `data`, or the first of a list, is invalid; it is then skipped."""
        image = data[0] if isinstance(data, (list, tuple)) else data
        if not image.shape:
            raise MXNetError("an image has dimensions")

    def imdecode(self, s: bytes) -> NDArray:
        """Decodes the bytes of a file; raises RuntimeError with its name if it is damaged."""
        try:
            return imdecode(s)
        except MXNetError as error:
            raise MXNetError(f"{self._last_sample()}: {error}") from None

    def _last_sample(self):
        """Returns the location of the last sample, for errors."""
        if self.seq is None:
            return f"record {self.cur - 1} of {self.imgrec.uri}"
        key = self.seq[self.cur - 1]
        if self.imgrec is not None:
            return f"record {key} of {self.imgrec.uri}"
        return self.imglist[key][1]

    def read_image(self, fname: str) -> bytes:
        """Reads the bytes of a file in `path_root`."""
        with open_regular(os.path.join(self.path_root or "", fname)) as file:
            return file.read()

    def augmentation_transform(self, data: NDArray) -> NDArray:
        """Applies `auglist` to the image."""
        for augmenter in self.auglist:
            data = augmenter(data)
        return data

    def postprocess_data(self, datum: NDArray) -> NDArray:
        """Transposes an image (height, width, channels) to (channels, height, width)."""
        return nd.transpose(datum, axes=(2, 0, 1))
