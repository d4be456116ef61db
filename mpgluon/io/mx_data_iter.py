"""`MXDataIter`: base class of iterators over samples in files."""

from __future__ import annotations

import logging
import os
import warnings
from typing import TYPE_CHECKING

import numpy as np

from .. import ndarray as nd
from ..base import MXNetError, NotSupportedError
from .io import DataBatch, DataDesc, WholeBatchIter, check_batch_size

if TYPE_CHECKING:
    from typing import Any

    from .._core import NDArray
    from .._internal.types import Shape

    Samples = tuple[NDArray, NDArray, np.ndarray[Any, Any]]

__all__ = ["MXDataIter"]


class MXDataIter(WholeBatchIter):
    """Base class of `CSVIter`, `MNISTIter`, `ImageRecordIter` and other iterators, for
    `isinstance`.

    Parameters
    ----------
    handle, data_name, label_name, **_
        In MXNet, a handle of an iterator in C. Not supported: raises NotSupportedError.

    Examples
    --------
    >>> issubclass(mx.io.MNISTIter, mx.io.MXDataIter)
    True
    """

    provide_data: list[DataDesc]
    provide_label: list[DataDesc]

    def __init__(
        self, handle: Any, data_name: str = "data", label_name: str = "softmax_label", **_: Any
    ) -> None:
        raise NotSupportedError(
            "MXDataIter: handles of C iterators are not supported; create an iterator by its "
            "class, such as mx.io.ImageRecordIter"
        )

    def _set_up(self, batch_size, count, last_batch):
        """Initializes the iterator in place of `__init__`. `last_batch` is the treatment of an
        incomplete last batch: 'discard' it, 'pad' it with the first samples, or 'round': pad it,
        and skip these samples in the next epoch."""
        check_batch_size(type(self).__name__, batch_size)
        WholeBatchIter.__init__(self, batch_size)
        self._count = count
        self._last_batch = last_batch
        # Index of the next batch's first sample. If it is beyond the end, the batch belongs to the
        # next epoch.
        self._begin = 0
        self._always_first = False
        self.current_batch: Any = None

    def _samples(self, rows: np.ndarray[Any, Any]) -> Samples:
        """Returns data and labels of the samples with these indices, and their numbers in the file,
        which become a batch's `index`."""
        raise NotImplementedError

    def reset(self) -> None:
        """Starts the next epoch. With 'round', skips the samples that padded the last batch."""
        rounds = self._last_batch == "round" and self._begin > self._count
        self._begin = self._begin % self._count if rounds else 0

    def iter_next(self) -> bool:
        if self._always_first and self.current_batch is not None:
            return True
        count, begin = self._count, self._begin
        end = begin + self.batch_size
        if begin >= count or (end > count and self._last_batch == "discard"):
            return False
        if end > 2 * count and self._last_batch == "round":
            raise MXNetError(
                f"{type(self).__name__}: batch_size={self.batch_size} is too large for {count} "
                "samples: the next epoch's samples do not fill the last batch; use a smaller "
                "batch_size, or round_batch=False"
            )
        rows = np.arange(begin, end) % count
        data, label, index = self._samples(rows)
        self._begin = end
        self.current_batch = DataBatch([data], [label], max(end - count, 0), index)
        return True

    def getdata(self) -> list[NDArray]:
        """Returns the data of the current batch."""
        return self.current_batch.data[0]

    def getlabel(self) -> list[NDArray]:
        """Returns the labels of the current batch."""
        return self.current_batch.label[0]

    def debug_skip_load(self) -> None:
        """Makes every later batch the first one, to measure the time to process batches."""
        self._always_first = True
        logging.info("%s returns its first batch from now on", type(self).__name__)


def warn_of_unused(name: str, parameters: dict[str, Any]) -> None:
    """Warns if an iterator is given unknown parameters. MXNet's iterators accept any
    parameters."""
    if parameters:
        plural = "s" if len(parameters) > 1 else ""
        text = f"{name}: ignoring unknown parameter{plural} {', '.join(parameters)}"
        warnings.warn(text, stacklevel=3)


def rows_of(values: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> NDArray:
    """Returns an array of the rows with these indices."""
    return nd.array(values[rows], dtype=values.dtype)


def files_of(path: str) -> list[str]:
    """Returns the file, or the non-empty files of the folder in the order of their names."""
    if not os.path.isdir(path):
        return [path]
    files = (os.path.join(path, name) for name in sorted(os.listdir(path)))
    return [file for file in files if os.path.isfile(file) and os.path.getsize(file)]


def shape_of(shape: int | Shape) -> tuple[int, ...]:
    """Returns a shape as a tuple. It may be given as the size of its only dimension."""
    return tuple(np.atleast_1d(shape).tolist())


def part_of(count: int, num_parts: int, part_index: int) -> tuple[int, int]:
    """Returns begin and end of a part of `count` samples. The parts cover all samples."""
    return count * part_index // num_parts, count * (part_index + 1) // num_parts
