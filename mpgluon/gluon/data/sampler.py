"""Samplers: the orders in which samples of a data set are visited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..._internal import ranks
from ..._internal.hints import OptionsChecked
from ...ndarray import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .dataset import Dataset

__all__ = [
    "Sampler",
    "SequentialSampler",
    "RandomSampler",
    "WeightedRandomSampler",
    "FilterSampler",
    "BatchSampler",
    "IntervalSampler",
    "SplitSampler",
]


class Sampler(OptionsChecked):
    """Base class of samplers. Iteration yields indices, or lists of indices for batches; `len`
    returns their number.

    Examples
    --------
    >>> class Reversed(gluon.data.Sampler):
    ...     def __iter__(self):
    ...         return iter([2, 1, 0])
    ...     def __len__(self):
    ...         return 3
    ...
    >>> data = gluon.data.SimpleDataset(["a", "b", "c"])
    >>> list(gluon.data.DataLoader(data, 2, sampler=Reversed(), batchify_fn=list))
    [['c', 'b'], ['a']]
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must define __len__")


class SequentialSampler(Sampler):
    """Samples `length` indices in order: `start`, `start + 1`, ...

    Examples
    --------
    >>> list(gluon.data.SequentialSampler(3))
    [0, 1, 2]
    """

    def __init__(self, length: int, start: int = 0) -> None:
        self._length = length
        self._start = start

    def __repr__(self) -> str:
        start = f", start={self._start}" if self._start else ""
        return f"{type(self).__name__}({self._length}{start})"

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._start, self._start + self._length))

    def __len__(self) -> int:
        return self._length


class RandomSampler(Sampler):
    """Samples 0 to `length` - 1 in random order, shuffled by `numpy.random` in each iteration.
    `numpy.random.seed` makes the order reproducible.

    Examples
    --------
    >>> sorted(int(i) for i in gluon.data.RandomSampler(3))
    [0, 1, 2]
    """

    def __init__(self, length: int) -> None:
        self._length = length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._length})"

    def __iter__(self) -> Iterator[int]:
        indices = np.arange(self._length)
        np.random.shuffle(indices)
        return iter(indices)

    def __len__(self) -> int:
        return self._length


class WeightedRandomSampler(Sampler):
    """Samples `num_samples` indices at random, index i with a probability proportional to
    `weights[i]`. `numpy.random.seed` makes the order reproducible.

    Parameters
    ----------
    weights : sequence of float
        One weight for each sample of the data set; they need not sum to 1.
    num_samples : int
        Number of indices in an iteration.
    replacement : bool, default True
        Whether an index may be drawn several times.

    Raises
    ------
    ValueError
        If weights are negative, not finite or all 0, or if fewer than `num_samples` are above 0
        without replacement.

    Examples
    --------
    >>> sampler = gluon.data.WeightedRandomSampler([0.5, 0, 2], 4)
    >>> len(list(sampler)), 1 in sampler
    (4, False)
    """

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True) -> None:
        values = np.asarray(
            weights.asnumpy() if isinstance(weights, NDArray) else weights, "float64"
        )
        if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
            raise ValueError("weights must be a sequence of finite numbers that are not negative")
        if not num_samples >= 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        most = values.max(initial=0)
        if not most > 0:
            raise ValueError("at least one weight must be above 0")
        above = int((values > 0).sum())
        if not replacement and num_samples > above:
            raise ValueError(
                f"num_samples must be at most {above}, the number of weights above 0, without "
                f"replacement; got {num_samples}"
            )
        values = values / most  # so that their sum is finite
        self.weights: np.ndarray[Any, Any] = values / values.sum()
        self.num_samples = num_samples
        self.replacement = replacement

    def __repr__(self) -> str:
        name, replacement = type(self).__name__, self.replacement
        return f"{name}({len(self.weights)}, {self.num_samples}, replacement={replacement})"

    def __iter__(self) -> Iterator[int]:
        size = len(self.weights)
        drawn = np.random.choice(size, self.num_samples, self.replacement, self.weights)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class FilterSampler(Sampler):
    """Samples the indices for which `fn(sample)` is true, in order.

    Examples
    --------
    >>> list(gluon.data.FilterSampler(lambda x: x > 1, gluon.data.SimpleDataset([3, 0, 2])))
    [0, 2]
    """

    def __init__(self, fn: Callable[[Any], Any], dataset: Dataset) -> None:
        self._indices = [i for i in range(len(dataset)) if fn(dataset[i])]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(samples: {len(self)})"

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class BatchSampler(Sampler):
    """Groups the indices of another sampler into lists of `batch_size`.

    An incomplete last batch is returned ("keep"), dropped ("discard"), or prepended to the next
    round ("rollover").

    Examples
    --------
    >>> list(gluon.data.BatchSampler(gluon.data.SequentialSampler(5), 2))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Sampler, batch_size: int, last_batch: str = "keep") -> None:
        if not batch_size >= 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if last_batch not in ("keep", "discard", "rollover"):
            raise ValueError(
                f"last_batch must be 'keep', 'discard' or 'rollover', got {last_batch!r}"
            )
        self._sampler = sampler
        self._batch_size = batch_size
        self._last_batch = last_batch
        self._left = []  # incomplete batch of the previous round

    def __repr__(self) -> str:
        name, last = type(self).__name__, self._last_batch
        return f"{name}({self._sampler!r}, {self._batch_size}, last_batch={last!r})"

    def __iter__(self) -> Iterator[list[Any]]:
        batch, self._left = self._left, []
        for index in self._sampler:
            batch.append(index)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if batch and self._last_batch == "keep":
            yield batch
        elif self._last_batch == "rollover":
            self._left = batch

    def __len__(self) -> int:
        count = len(self._sampler)
        if self._last_batch == "keep":
            return -(-count // self._batch_size)
        if self._last_batch == "rollover":
            count += len(self._left)
        return count // self._batch_size


class IntervalSampler(Sampler):
    """Samples 0, `interval`, 2 * `interval`, ... below `length`. With `rollover`, repeats this from
    1, 2, ... up to `interval` - 1.

    Examples
    --------
    >>> list(gluon.data.IntervalSampler(6, 3))
    [0, 3, 1, 4, 2, 5]
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        if not 1 <= interval <= length:
            raise ValueError(f"interval must be between 1 and the length {length}, got {interval}")
        self._length = length
        self._interval = interval
        self._rollover = rollover

    def __repr__(self) -> str:
        name, rollover = type(self).__name__, self._rollover
        return f"{name}({self._length}, {self._interval}, rollover={rollover})"

    def __iter__(self) -> Iterator[int]:
        for start in range(self._interval if self._rollover else 1):
            yield from range(start, self._length, self._interval)

    def __len__(self) -> int:
        return self._length if self._rollover else -(-self._length // self._interval)


class SplitSampler(Sampler):
    """Samples one of several parts of a shuffled data set, such as this rank's part of each batch.

    The order and the batches are the same for all parts. The parts of the n-th batch, concatenated,
    are the same samples for any number of parts, and all parts have the same number of batches.
    With `batch_size`, use ``DataLoader(data, batch_sampler=SplitSampler(...))``. Without it, the
    order is cut into contiguous parts of equal size and the sampler yields single indices, for
    ``DataLoader(data, batch_size, sampler=SplitSampler(...))``.

    Parameters
    ----------
    length : int
        Number of samples.
    num_parts, part_index : int, optional
        Number of parts, and index of the part from 0. Default to the number of ranks and this
        process's rank.
    batch_size : int, optional
        Samples in a batch of all parts together, a multiple of `num_parts`. An incomplete last
        batch is dropped.
    shuffle : bool, default True
        Whether to shuffle the order in each iteration.
    seed : int, default 0
        Determines the orders, together with the number of the iteration.

    Raises
    ------
    ValueError
        If the part does not exist, or if a batch or the samples cannot be divided into the parts.

    Examples
    --------
    >>> parts = [gluon.data.SplitSampler(9, 2, part, 4, shuffle=False) for part in range(2)]
    >>> [list(part) for part in parts]
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """

    def __init__(
        self,
        length: int,
        num_parts: int | None = None,
        part_index: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        num_parts = ranks.count() if num_parts is None else num_parts
        part_index = ranks.own() if part_index is None else part_index
        if not 0 <= part_index < num_parts:
            raise ValueError(
                f"part_index must be 0 to {num_parts - 1} for {num_parts} parts, not {part_index}"
            )
        if batch_size is not None and (batch_size < 1 or batch_size % num_parts):
            raise ValueError(
                f"a batch of {batch_size} samples cannot be divided into {num_parts} equal parts"
            )
        if length < (batch_size or num_parts):
            raise ValueError(
                f"{length} samples are fewer than "
                + (f"a batch of {batch_size}" if batch_size else f"the {num_parts} parts")
            )
        self._length = length
        self._num_parts = num_parts
        self._part_index = part_index
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._iteration = 0

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._length}, num_parts={self._num_parts}, "
            f"part_index={self._part_index}, batch_size={self._batch_size})"
        )

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next iteration, which determines its order. Use it to resume from
        a checkpoint."""
        self._iteration = epoch

    def __iter__(self) -> Iterator[Any]:
        order = np.arange(self._length)
        if self._shuffle:
            np.random.Generator(np.random.Philox(key=[self._seed, self._iteration])).shuffle(order)
        self._iteration += 1
        size = (self._batch_size or self._length) // self._num_parts
        begin = self._part_index * size
        if self._batch_size is None:
            return iter(order[begin : begin + size].tolist())
        batches = order[: len(self) * self._batch_size].reshape((-1, self._batch_size))
        return iter(batches[:, begin : begin + size].tolist())

    def __len__(self) -> int:
        return self._length // (self._batch_size or self._num_parts)
