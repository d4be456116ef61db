"""`LibSVMIter`: batches of csr data from files in LIBSVM's format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import ndarray as nd
from ..base import MXNetError, lines_of
from ..ndarray.sparse import csr_matrix
from .io import DataDesc
from .mx_data_iter import MXDataIter, files_of, part_of, rows_of, shape_of, warn_of_unused

if TYPE_CHECKING:
    from typing import Any

    from .._internal.types import Shape
    from .mx_data_iter import Samples

__all__ = ["LibSVMIter"]


def _lines(path):
    """Yields (file, line number, text) for each non-empty line of a file, or of all files in a
    folder."""
    for file in files_of(path):
        for number, line in lines_of(file):
            text = line.partition("#")[0].strip()
            if text:
                yield file, number, text


def _read(path, width):
    """Returns (labels, csr matrix with `width` columns) of a file in LIBSVM's format with
    zero-based columns."""
    labels, values, columns, pointers = [], [], [], [0]
    for file, number, text in _lines(path):
        first, *pairs = text.split()
        try:
            label, _, weight = first.partition(":")
            labels.append(float(label))
            float(weight or 0)
            if pairs and pairs[0].startswith("qid:"):
                int(pairs.pop(0)[4:])
            here = [pair.split(":") for pair in pairs]
            columns += [int(column) for column, _ in here]
            values += [float(value) for _, value in here]
        except ValueError:
            raise MXNetError(
                f"LibSVMIter: {file}, line {number}: expected a label or label:weight, an "
                f"optional qid:number, and 'column:value' pairs, got {text[:60]!r}"
            ) from None
        pointers.append(len(values))
    if not labels:
        raise MXNetError(f"LibSVMIter: {path} is empty")
    matrix = csr_matrix(
        (np.array(values, "float32"), np.array(columns, "int64"), np.array(pointers, "int64")),
        shape=(len(labels), width),
    )
    try:
        matrix.check_format()
    except MXNetError as error:
        raise MXNetError(f"LibSVMIter: {path}: {error}") from None
    return np.array(labels, "float32"), matrix


def _width(shape, what):
    shape = shape_of(shape)
    if len(shape) != 1:
        raise MXNetError(f"LibSVMIter: {what} must have one dimension, not {shape}")
    return shape[0]


class LibSVMIter(MXDataIter):
    """Batches, stored as csr, of lines from a file in LIBSVM's format: a label, and a
    ``column:value`` pair for each nonzero value. Columns start at 0 and must be ascending. The
    weight in ``label:weight``, and a ``qid:number`` after it, are ignored.

    Parameters
    ----------
    data_libsvm : str
        File with the data, or a folder of such files.
    data_shape : int or tuple of int
        Shape of a sample; must have one dimension.
    label_libsvm : str, optional
        File with labels in the same format, which are then csr. Without it, labels are the first
        values of the data lines.
    label_shape : int or tuple of int, default (1,)
        Shape of a label in `label_libsvm`. Without that file, it must have one element; otherwise,
        raises MXNetError.
    batch_size : int
        Samples in a batch.
    num_parts, part_index : int
        Number of parts of the samples, and the index of the part to read.
    round_batch : bool, default True
        Whether the samples that pad the last batch count as the first ones of the next epoch. A
        batch that would need more samples than an epoch has raises MXNetError.
    data_name, label_name : str
        Names of the data and of the labels in a batch.
    prefetch_buffer : int, default 4
        Accepted and ignored; the file is read completely.
    **others
        Ignored with a warning.

    Raises
    ------
    MXNetError
        If a file is empty or not in this format, or the part does not exist.
    MXNetValueError
        If `batch_size` is less than 1.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "data.t")
    ...     with open(path, "w") as file:
    ...         _ = file.write("1.0 0:0.5 2:1.25\\n-2.0\\n")
    ...     (batch,) = mx.io.LibSVMIter(path, data_shape=(3,), batch_size=2)
    >>> batch.data[0].stype, batch.data[0].asnumpy().tolist()
    ('csr', [[0.5, 0.0, 1.25], [0.0, 0.0, 0.0]])
    >>> batch.label[0].asnumpy()
    array([ 1., -2.], dtype=float32)
    """

    def __init__(
        self,
        data_libsvm: str,
        data_shape: int | Shape,
        label_libsvm: str | None = None,
        label_shape: int | Shape = (1,),
        num_parts: int = 1,
        part_index: int = 0,
        batch_size: int = 1,
        round_batch: bool = True,
        data_name: str = "data",
        label_name: str = "softmax_label",
        prefetch_buffer: int = 4,
        **others: Any,
    ) -> None:
        warn_of_unused(type(self).__name__, others)
        if not 0 <= part_index < num_parts:
            raise MXNetError(
                f"LibSVMIter: part_index {part_index} is out of range for {num_parts} parts"
            )
        self._label, self._data = _read(data_libsvm, _width(data_shape, "data_shape"))
        if label_libsvm not in (None, "NULL"):
            if np.prod(shape_of(label_shape)) == 1:
                raise MXNetError(
                    f"LibSVMIter: labels of {label_libsvm} are csr rows of more than one "
                    "number; pass their label_shape, or put single numbers into data_libsvm"
                )
            _, self._label = _read(label_libsvm, _width(label_shape, "label_shape"))
        elif np.prod(shape_of(label_shape)) != 1:
            raise MXNetError(
                "LibSVMIter: label_shape must be (1,) for the labels in data_libsvm, not "
                f"{label_shape}; for other labels pass label_libsvm"
            )
        count = len(self._data)
        if len(self._label) != count:
            raise MXNetError(
                f"LibSVMIter: {data_libsvm} has {count} lines, but {label_libsvm} has "
                f"{len(self._label)}"
            )
        begin, end = part_of(count, num_parts, part_index)
        self._data, self._label = self._data[begin:end], self._label[begin:end]
        self._set_up(batch_size, end - begin, "round" if round_batch else "pad")
        self.provide_data: list[DataDesc] = [
            DataDesc(data_name, (batch_size, self._data.shape[1]), np.float32)
        ]
        self.provide_label: list[DataDesc] = [
            DataDesc(label_name, (batch_size, *self._label.shape[1:]), np.float32)
        ]

    def _samples(self, rows: np.ndarray[Any, Any]) -> Samples:
        data = nd.take(self._data, nd.array(rows, dtype="int64"))
        if isinstance(self._label, np.ndarray):
            return data, rows_of(self._label, rows), rows
        return data, nd.take(self._label, nd.array(rows, dtype="int64")), rows
