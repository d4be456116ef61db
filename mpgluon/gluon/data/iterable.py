"""Data sets without indices: streams of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["IterableDataset"]


class IterableDataset(Dataset):
    """Base class of streams of samples, for data that has no indices: files that are read in order,
    queues, generators. A subclass defines ``__iter__``, and ``__len__`` if the length is known.

    A DataLoader reads a stream with `batch_size` and ``last_batch="keep"`` or ``"discard"``. It
    cannot shuffle a stream or use a sampler.

    In each of `num_workers` processes, the loader iterates over a copy of the data set, and takes
    every `num_workers`-th batch. The batches are the same for each number of workers, but every
    worker reads the whole stream. If reading is the expensive part, let ``__iter__`` call
    `get_worker_info` and yield only the samples of its worker, as in PyTorch. The loader then takes
    all of them, in turns from each worker. PyTorch repeats a stream that does not do so
    `num_workers` times.

    `filter`, `transform` and `transform_first` return streams. Methods that need indices or the
    length raise an error.

    Examples
    --------
    >>> class Lines(gluon.data.IterableDataset):
    ...     def __init__(self, count):
    ...         self.count = count
    ...     def __iter__(self):
    ...         info = gluon.data.get_worker_info()
    ...         first, step = (0, 1) if info is None else (info.id, info.num_workers)
    ...         return iter(range(first, self.count, step))
    ...
    >>> loader = gluon.data.DataLoader(Lines(5), batch_size=2)
    >>> [batch.asnumpy().tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    >>> loader = gluon.data.DataLoader(Lines(5), batch_size=2, num_workers=2)
    >>> [batch.asnumpy().tolist() for batch in loader]
    [[0, 2], [1, 3], [4]]
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")

    def __getitem__(self, idx: int) -> Any:
        raise TypeError(
            f"{type(self).__name__} is a stream without indices; iterate over it, or use list(data)"
        )

    def __len__(self) -> int:
        raise TypeError(f"the length of {type(self).__name__} is unknown; it defines no __len__")

    def __add__(self, other: Dataset) -> Dataset:
        raise TypeError("streams cannot be concatenated; chain them in __iter__ of another one")

    def filter(self, fn: Any) -> IterableDataset:
        """Returns a stream of the samples for which `fn(sample)` is true."""
        return _Filtered(self, fn)

    def transform(self, fn: Any, lazy: bool = True) -> Dataset:
        """Returns a stream of `fn(*sample)`, or a SimpleDataset of all of them unless `lazy`."""
        from .dataset import SimpleDataset

        stream = _Mapped(self, fn)
        return stream if lazy else SimpleDataset(list(stream))


class _Filtered(IterableDataset):
    def __init__(self, dataset, fn):
        self._dataset, self._fn = dataset, fn

    def __iter__(self):
        return filter(self._fn, self._dataset)


class _Mapped(IterableDataset):
    def __init__(self, dataset, fn):
        self._dataset, self._fn = dataset, fn

    def __iter__(self):
        for sample in self._dataset:
            yield self._fn(*sample) if isinstance(sample, tuple) else self._fn(sample)

    def __len__(self):
        return len(self._dataset)
