"""`CSVIter`: batches of lines from a CSV file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._internal.files import open_regular
from ..base import MXNetError
from .io import DataDesc
from .mx_data_iter import MXDataIter, files_of, rows_of, shape_of, warn_of_unused

if TYPE_CHECKING:
    from typing import Any

    from .._internal.types import DType, Shape
    from .mx_data_iter import Samples


__all__ = ["CSVIter"]


def _read(path, shape, dtype):
    """Returns the lines of a file, or of all files in a folder, each with the given shape."""
    files = files_of(path)
    if not files:
        raise MXNetError(f"CSVIter: the folder {path} has only empty files or none")
    return np.concatenate([_read_file(file, shape, dtype) for file in files])


def _read_file(path, shape, dtype):
    with open_regular(path):
        pass  # raises an error for a pipe, because reading it with NumPy would block
    try:
        values = np.loadtxt(path, delimiter=",", dtype=dtype, ndmin=2)
    except ValueError as error:
        raise MXNetError(f"CSVIter: {path}: {error}") from None
    size = int(np.prod(shape))
    if values.shape[0] == 0:
        raise MXNetError(f"CSVIter: {path} is empty")
    if values.shape[1] != size:
        raise MXNetError(
            f"CSVIter: the lines of {path} have {values.shape[1]} numbers, but the shape "
            f"{shape} has {size}"
        )
    return values.reshape((-1, *shape))


class CSVIter(MXDataIter):
    """Batches of lines from a CSV file, which is read completely. Instead of a file, a folder may
    be given: its files are concatenated in the order of their names.

    Parameters
    ----------
    data_csv : str
        File with the data; each line is a sample.
    data_shape : int or tuple of int
        Shape of a sample.
    label_csv : str, optional
        File with the labels. If it is omitted or 'NULL', labels are zeros.
    label_shape : int or tuple of int, default (1,)
        Shape of a label.
    batch_size : int
        Samples in a batch.
    round_batch : bool, default True
        Whether the samples that pad the last batch count as the first ones of the next epoch. A
        batch that would need more samples than an epoch has raises MXNetError.
    dtype : str, default 'float32'
        Data type of data and labels.
    data_name, label_name : str
        Names of the data and of the labels in a batch.
    prefetch_buffer : int, default 4
        Accepted and ignored; batches are read on demand.
    **others
        Ignored with a warning.

    Raises
    ------
    MXNetError
        If a file is empty, not a CSV file, or has lines with a different number of values than the
        shape.
    MXNetValueError
        If `batch_size` is less than 1.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "data.csv")
    ...     np.savetxt(path, [[1, 2], [3, 4]], delimiter=",")
    ...     batches = list(mx.io.CSVIter(path, data_shape=(2,), batch_size=2))
    >>> batches[0].data[0].asnumpy().tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """

    def __init__(
        self,
        data_csv: str,
        data_shape: int | Shape,
        label_csv: str | None = None,
        label_shape: int | Shape = (1,),
        batch_size: int = 1,
        round_batch: bool = True,
        dtype: DType = "float32",
        data_name: str = "data",
        label_name: str = "softmax_label",
        prefetch_buffer: int = 4,
        **others: Any,
    ) -> None:
        warn_of_unused(type(self).__name__, others)
        dtype = np.dtype(_core.dtype_name(dtype or "float32"))
        label_shape = shape_of(label_shape)
        self._data = _read(data_csv, shape_of(data_shape), dtype)
        count = len(self._data)
        self._label = (
            np.zeros((count, *label_shape), dtype)
            if label_csv in (None, "NULL")
            else _read(label_csv, label_shape, dtype)
        )
        if len(self._label) != count:
            raise MXNetError(
                f"CSVIter: {data_csv} has {count} lines, but {label_csv} has {len(self._label)}"
            )
        if label_shape == (1,):
            self._label = self._label.reshape((-1,))
        self._set_up(batch_size, count, "round" if round_batch else "pad")
        self.provide_data: list[DataDesc] = [
            DataDesc(data_name, (batch_size, *self._data.shape[1:]), dtype.type)
        ]
        self.provide_label: list[DataDesc] = [
            DataDesc(label_name, (batch_size, *self._label.shape[1:]), dtype.type)
        ]

    def _samples(self, rows: np.ndarray[Any, Any]) -> Samples:
        return rows_of(self._data, rows), rows_of(self._label, rows), rows
