"""Data sets: samples by index."""

from __future__ import annotations

import bisect
import itertools
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import MXNetAssertionError
from ...ndarray import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .sampler import Sampler

__all__ = [
    "ArrayDataset",
    "ConcatDataset",
    "Dataset",
    "RecordFileDataset",
    "SimpleDataset",
    "Subset",
    "random_split",
]


class Dataset:
    """Base class of data sets: `dataset[i]` returns a sample, `len(dataset)` the number of samples.
    A sample with several parts is a tuple.

    Examples
    --------
    >>> data = gluon.data.SimpleDataset([1, 2, 3, 4]).filter(lambda x: x % 2 == 0)
    >>> list(data.transform(lambda x: 10 * x))
    [20, 40]
    """

    def __getitem__(self, idx: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must define __len__")

    def __add__(self, other: Dataset) -> Dataset:
        return ConcatDataset([self, other])

    def filter(self, fn: Callable[[Any], Any]) -> Dataset:
        """Returns a data set of the samples for which `fn(sample)` is true. Evaluates all samples
        immediately."""
        from .sampler import FilterSampler

        return Subset(self, FilterSampler(fn, self))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Returns shard `index` of `num_shards` consecutive shards of nearly equal length. The
        first shards are longer by one if the length is not divisible."""
        if num_shards < 1:
            raise MXNetAssertionError(f"num_shards must be at least 1, got {num_shards}")
        if not 0 <= index < num_shards:
            raise MXNetAssertionError(
                f"index must be 0 to {num_shards - 1} of {num_shards} shards, got {index}"
            )
        length, over = divmod(len(self), num_shards)
        begin = length * index + min(index, over)
        return Subset(self, range(begin, begin + length + (index < over)))

    def take(self, count: int | None) -> Dataset:
        """Returns the first `count` samples, or all of them if `count` is larger or None."""
        size = len(self)
        if count is not None and count < 0:
            raise ValueError(f"count must not be negative, got {count}")
        return Subset(self, range(size if count is None else min(count, size)))

    def sample(self, sampler: Sampler) -> Dataset:
        """Returns the samples at the indices of a Sampler, which is iterated once, immediately."""
        from .sampler import Sampler

        if not isinstance(sampler, Sampler):
            raise TypeError(f"expected a gluon.data.Sampler, got {type(sampler).__name__}")
        return Subset(self, sampler)

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Dataset:
        """Returns a data set of `fn(*sample)`, computed on each access, or immediately unless
        `lazy`."""
        transformed = _Transformed(self, fn)
        return (
            transformed
            if lazy
            else SimpleDataset([transformed[i] for i in range(len(transformed))])
        )

    def transform_first(self, fn: Callable[..., Any], lazy: bool = True) -> Dataset:
        """Applies `transform` only to the first part of each sample, such as the image of a
        pair."""
        return self.transform(_First(fn), lazy)


class _Sized(Dataset):
    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_')}(samples: {len(self)})"


class SimpleDataset(_Sized):
    """A list, or any object with indices and a length, as a data set.

    Examples
    --------
    >>> gluon.data.SimpleDataset(["a", "b"])[1]
    'b'
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: int) -> Any:
        return self._data[idx]


class ArrayDataset(_Sized):
    """Several arrays or lists of equal length. Sample i is the tuple of their i-th items, or the
    item itself if there is only one array.

    Examples
    --------
    >>> gluon.data.ArrayDataset([1, 2, 3], ["a", "b", "c"])[1]
    (2, 'b')
    """

    def __init__(self, *args: Any) -> None:
        if not args:
            raise MXNetAssertionError("ArrayDataset needs at least one array")
        self._length = len(args[0])
        for i, data in enumerate(args):
            if len(data) != self._length:
                raise MXNetAssertionError(
                    f"all arrays must have the same length: array 0 has {self._length}, array "
                    f"{i} has {len(data)}"
                )
        # Store vectors as NumPy arrays, so that their items are numbers.
        self._data = [
            data.asnumpy() if isinstance(data, NDArray) and len(data.shape) == 1 else data
            for data in args
        ]

    def __getitem__(self, idx: int) -> Any:
        if len(self._data) == 1:
            return self._data[0][idx]
        return tuple(data[idx] for data in self._data)

    def __len__(self) -> int:
        return self._length


class Subset(_Sized):
    """The samples of `dataset` at a list of `indices`, in their order.

    Examples
    --------
    >>> data = gluon.data.SimpleDataset(["a", "b", "c"])
    >>> list(gluon.data.Subset(data, [2, 0]))
    ['c', 'a']
    """

    def __init__(self, dataset: Any, indices: Iterable[int]) -> None:
        self.dataset = dataset
        self.indices: list[int] = list(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, idx: int) -> Any:
        return self.dataset[self.indices[idx]]


class ConcatDataset(_Sized):
    """The samples of several data sets, one after the other; also ``first + second``.

    Examples
    --------
    >>> data = gluon.data.SimpleDataset(["a", "b"]) + gluon.data.SimpleDataset(["c"])
    >>> len(data), data[2], data[-3]
    (3, 'c', 'a')
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        from .iterable import IterableDataset

        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset needs at least one data set")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise TypeError("ConcatDataset needs data sets with indices, not an IterableDataset")
        self.cumulative_sizes: list[int] = list(itertools.accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> Any:
        position = idx + len(self) if idx < 0 else idx
        if not 0 <= position < len(self):
            raise IndexError(f"index {idx} is out of range for {len(self)} samples")
        which = bisect.bisect_right(self.cumulative_sizes, position)
        begin = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][position - begin]


def random_split(
    dataset: Any, lengths: Sequence[int | float], seed: int | None = None
) -> list[Subset]:
    """Splits a data set at random into subsets without common samples.

    Parameters
    ----------
    dataset : Dataset
        Any object with indices and a length.
    lengths : list
        The lengths of the subsets, whose sum is the length of the data set; or fractions whose sum
        is 1. Fractions are rounded down, and the first subsets get the remaining samples.
    seed : int, optional
        Makes the split reproducible. By default, the split depends on `numpy.random.seed`.

    Raises
    ------
    ValueError
        If the lengths have another sum, or are negative.

    Examples
    --------
    >>> data = gluon.data.SimpleDataset(range(10))
    >>> train, test = gluon.data.random_split(data, [0.8, 0.2], seed=1)
    >>> len(train), len(test), sorted([*train, *test]) == list(range(10))
    (8, 2, True)
    """
    size = len(dataset)
    if not all(0 <= length < math.inf for length in lengths):
        raise ValueError(f"lengths must be finite and not negative, got {list(lengths)}")
    counts = [int(length) for length in lengths]
    if counts != list(lengths) or sum(counts) != size:
        if not math.isclose(sum(lengths), 1):
            raise ValueError(
                f"lengths must be integers whose sum is the length {size} of the data set, or "
                f"fractions whose sum is 1, got {list(lengths)}"
            )
        counts = [math.floor(size * length) for length in lengths]
        for i in range(size - sum(counts)):
            counts[i % len(counts)] += 1
    random = np.random if seed is None else np.random.Generator(np.random.Philox(seed))
    order = random.permutation(size).tolist()
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - n : end]) for n, end in zip(counts, ends)]


class RecordFileDataset(_Sized):
    """The records of a RecordIO file as bytes, in the order of its index.

    Parameters
    ----------
    filename : str
        Path of the file `some.rec`; its index is `some.idx`.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "some")
    >>> record = mx.recordio.MXIndexedRecordIO(path + ".idx", path + ".rec", "w")
    >>> record.write_idx(0, b"first")
    >>> record.close()
    >>> gluon.data.RecordFileDataset(path + ".rec")[0]
    b'first'
    """

    def __init__(self, filename: str) -> None:
        from ...recordio import MXIndexedRecordIO

        self.filename = filename
        self.idx_file: str = os.path.splitext(filename)[0] + ".idx"
        self._record = MXIndexedRecordIO(self.idx_file, filename, "r")

    def __getitem__(self, idx: int) -> Any:
        return self._record.read_idx(self._record.keys[idx])

    def __len__(self) -> int:
        return len(self._record.keys)


class _Transformed(_Sized):
    def __init__(self, dataset, fn):
        self._dataset = dataset
        self._fn = fn

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, idx):
        sample = self._dataset[idx]
        return self._fn(*sample) if isinstance(sample, tuple) else self._fn(sample)


class _First:
    """Applies a function to its first argument and passes the other arguments through."""

    def __init__(self, fn):
        self._fn = fn

    def __call__(self, first, *others):
        return (self._fn(first), *others) if others else self._fn(first)


class _DownloadedDataset(Dataset):
    """Base class, used by other packages, of data sets that are read completely from the folder
    `root`. A subclass defines `_get_data`, which sets `_data` and `_label`."""

    def __init__(self, root: str, transform: Callable[[Any, Any], Any] | None) -> None:
        self._transform = transform
        self._data: Any = None
        self._label: Any = None
        self._root = os.path.expanduser(root)
        os.makedirs(self._root, exist_ok=True)
        self._get_data()

    def _get_data(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not define _get_data")

    def __getitem__(self, idx: int) -> Any:
        sample = self._data[idx], self._label[idx]
        return sample if self._transform is None else self._transform(*sample)

    def __len__(self) -> int:
        return len(self._label)
