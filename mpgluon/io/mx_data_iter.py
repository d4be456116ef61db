"""`MXDataIter`: the base of iterators over samples in files."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

import numpy as np

from .. import ndarray as nd
from ..base import NotSupportedError
from .io import DataBatch, DataDesc, WholeBatchIter

if TYPE_CHECKING:
    from typing import Any

    from .._core import NDArray

__all__ = ["MXDataIter"]


class MXDataIter(WholeBatchIter):
    """The base of `CSVIter`, `MNISTIter`, `ImageRecordIter` and others, for `isinstance`.

    Parameters
    ----------
    handle, data_name, label_name, **_
        In MXNet, of an iterator in C; there are none here: NotSupportedError.

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
            "there are no handles of iterators in C: make an iterator by its class, such as "
            "mx.io.ImageRecordIter"
        )

    def _set_up(self, batch_size, count, last_batch):
        """In place of `__init__`. `last_batch` of `count` samples: 'discard'; 'pad' it with the
        first ones; or 'round': pad it, and leave these out of the next epoch."""
        WholeBatchIter.__init__(self, batch_size)
        self._count = count
        self._last_batch = last_batch
        self._begin = 0  # of the coming batch; beyond the end: of the coming epoch
        self._always_first = False
        self.current_batch: Any = None

    def _samples(self, rows: np.ndarray[Any, Any]) -> tuple[NDArray, NDArray]:
        """Data and labels of the samples of these numbers."""
        raise NotImplementedError

    def reset(self) -> None:
        """Starts over."""
        rounds = self._last_batch == "round" and self._begin > self._count
        self._begin = self._begin - self._count if rounds else 0

    def iter_next(self) -> bool:
        if self._always_first and self.current_batch is not None:
            return True
        count, begin = self._count, self._begin
        end = begin + self.batch_size
        if begin >= count or (end > count and self._last_batch == "discard"):
            return False
        rows = np.arange(begin, end) % count
        data, label = self._samples(rows)
        self._begin = end
        self.current_batch = DataBatch([data], [label], max(end - count, 0), rows)
        return True

    def getdata(self) -> list[NDArray]:
        """The data of the current batch."""
        return self.current_batch.data[0]

    def getlabel(self) -> list[NDArray]:
        """The labels of the current batch."""
        return self.current_batch.label[0]

    def debug_skip_load(self) -> None:
        """From now on every batch is the first one: for measuring what is done with batches."""
        self._always_first = True
        logging.info("%s gives its first batch from now on", type(self).__name__)


def warn_of_unused(name: str, parameters: dict[str, Any]) -> None:
    """A warning where an iterator is given parameters that it does not have: MXNet's iterators
    take any."""
    if parameters:
        plural = "s" if len(parameters) > 1 else ""
        text = f"{name} has no parameter{plural} {', '.join(parameters)}: of no effect"
        warnings.warn(text, stacklevel=3)


def rows_of(values: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> NDArray:
    """An array of the rows of these numbers."""
    return nd.array(values[rows], dtype=values.dtype)
