"""``mx.contrib.io``: Gluon's data loaders as iterators for modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import ndarray as nd
from ..io import DataDesc, DataIter

if TYPE_CHECKING:
    from ..gluon.data import DataLoader
    from ..ndarray import NDArray

__all__ = ["DataLoaderIter"]


class DataLoaderIter(DataIter):
    """The batches (data, label) of a DataLoader, in the form that `Module.fit` accepts.

    A smaller last batch is padded with zeros, and `getpad` returns the padding.

    Parameters
    ----------
    loader : gluon.data.DataLoader
        Yields pairs of arrays.
    data_name, label_name : str
        Names of the arrays.
    dtype : str, default 'float32'
        The dtype of data and labels.

    Examples
    --------
    >>> data = gluon.data.ArrayDataset(nd.ones((5, 2)), nd.zeros(5))
    >>> batches = mx.contrib.io.DataLoaderIter(gluon.data.DataLoader(data, 2))
    >>> [batch.pad for batch in batches]
    [0, 0, 1]
    """

    def __init__(
        self,
        loader: DataLoader,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self._loader = loader
        self.dtype: str = dtype
        data, label = next(iter(loader))
        self.batch_size: int = data.shape[0]
        self.provide_data: list[DataDesc] = [DataDesc(data_name, data.shape, dtype)]
        self.provide_label: list[DataDesc] = [DataDesc(label_name, label.shape, dtype)]
        self.reset()

    def reset(self) -> None:
        self._batches = iter(self._loader)
        self._batch: tuple[NDArray, NDArray] | None = None

    def iter_next(self) -> bool:
        self._batch = next(self._batches, None)
        return self._batch is not None

    def _filled(self, place):
        if self._batch is None:
            raise StopIteration
        array = self._batch[place].astype(self.dtype)
        rows = self.batch_size - array.shape[0]
        if rows == 0:
            return [array]
        more = nd.zeros((rows, *array.shape[1:]), dtype=self.dtype, ctx=array.context)
        return [nd.concat(array, more, dim=0)]

    def getdata(self) -> list[NDArray]:
        return self._filled(0)

    def getlabel(self) -> list[NDArray]:
        return self._filled(1)

    def getpad(self) -> int:
        return 0 if self._batch is None else self.batch_size - self._batch[0].shape[0]

    def getindex(self) -> None:
        return None
