"""`MNISTIter`: batches of MNIST images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base import MXNetError
from .idx_file import read_idx
from .io import DataDesc
from .mx_data_iter import MXDataIter, part_of, rows_of, warn_of_unused

if TYPE_CHECKING:
    from typing import Any

    from .mx_data_iter import Samples


__all__ = ["MNISTIter"]


class MNISTIter(MXDataIter):
    """Batches of images from files in MNIST's format, which are read completely: data of float32
    from 0 to 1 (batch_size, 1, height, width), labels of float32 (batch_size,).

    An incomplete last batch is dropped.

    Parameters
    ----------
    image : str, default './train-images-idx3-ubyte'
        File with the images, which may be compressed (`.gz`).
    label : str, default './train-labels-idx1-ubyte'
        File with the labels, which may be compressed (`.gz`).
    batch_size : int, default 128
        Images in a batch.
    shuffle : bool, default True
        Whether to shuffle the images of the part, in the same order for every epoch.
    flat : bool, default False
        Whether the shape of data is (batch_size, height * width).
    seed : int, default 0
        Seed of the order.
    silent : bool, default False
        Accepted and ignored; nothing is printed.
    num_parts, part_index : int, default 1 and 0
        Number of parts of the images, and the index of the part to read. Parts are disjoint ranges
        of the file, shuffled separately. Raises MXNetError if the part does not exist.
    prefetch_buffer, ctx
        Accepted and ignored; the images are in memory.
    dtype : str, optional
        Data type of data and labels: float32 or another floating dtype. Raises MXNetError for
        others.
    data_name, label_name : str
        Names of the data and of the labels in a batch.
    **others
        Ignored with a warning.

    Raises
    ------
    FileNotFoundError
        If a file does not exist.
    MXNetError
        If a file is damaged, or the part has fewer images than a batch.
    MXNetValueError
        If `batch_size` is less than 1.

    Examples
    --------
    >>> import os, struct, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> image, label = os.path.join(folder, "images"), os.path.join(folder, "labels")
    >>> with open(image, "wb") as file:
    ...     _ = file.write(struct.pack(">4B3I", 0, 0, 8, 3, 4, 2, 2) + bytes(16))
    >>> with open(label, "wb") as file:
    ...     _ = file.write(struct.pack(">4BI", 0, 0, 8, 1, 4) + bytes(4))
    >>> [batch.data[0].shape for batch in mx.io.MNISTIter(image, label, batch_size=2)]
    [(2, 1, 2, 2), (2, 1, 2, 2)]
    """

    def __init__(
        self,
        image: str = "./train-images-idx3-ubyte",
        label: str = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int = 0,
        silent: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        prefetch_buffer: int = 4,
        ctx: str = "gpu",
        dtype: str | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **others: Any,
    ) -> None:
        warn_of_unused(type(self).__name__, others)
        kind = np.dtype(dtype or "float32")
        if kind.kind != "f":
            raise MXNetError(
                "MNISTIter: dtype must be a floating-point type, because values are 0 to 1, not "
                f"{kind}"
            )
        images, labels = read_idx(image, 3), read_idx(label, 1)
        if len(images) != len(labels):
            raise MXNetError(
                f"{image} has {len(images)} images, but {label} has {len(labels)} labels"
            )
        if not 0 <= part_index < num_parts:
            raise MXNetError(
                f"MNISTIter: part_index must be 0 to {num_parts - 1} for {num_parts} parts, not "
                f"{part_index}"
            )
        order = np.arange(*part_of(len(images), num_parts, part_index))
        if shuffle:
            np.random.RandomState(seed).shuffle(order)
        self._order: np.ndarray[Any, Any] = order
        size = len(order)
        if size < batch_size:
            raise MXNetError(f"MNISTIter: {size} images are fewer than a batch of {batch_size}")
        self._set_up(batch_size, size, "discard")
        shape = (-1,) if flat else (1, *images.shape[1:])
        scaled = images[order].reshape((size, *shape)) * np.float32(1 / 256)
        self._data: np.ndarray[Any, Any] = scaled.astype(kind)
        self._label: np.ndarray[Any, Any] = labels[order].astype(kind)
        self.provide_data: list[DataDesc] = [
            DataDesc(data_name, (batch_size, *self._data.shape[1:]), kind.type)
        ]
        self.provide_label: list[DataDesc] = [DataDesc(label_name, (batch_size,), kind.type)]

    def _samples(self, rows: np.ndarray[Any, Any]) -> Samples:
        return rows_of(self._data, rows), rows_of(self._label, rows), self._order[rows]
