"""Batches of a data set, prefetched by worker processes or threads."""

from __future__ import annotations

import itertools
import weakref
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import ndarray as nd
from ..._internal.hints import OptionsChecked
from ...base import MXNetAssertionError, MXNetError, MXNetTypeError, MXNetValueError
from ...context import cpu, cpu_pinned, current_context
from ..utils import brief
from . import sampler as _sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .dataset import Dataset
    from .sampler import Sampler

# Names of MXNet's module, which other packages use. They are loaded on first use.
_MXNET_NAMES = {
    "ConnectionWrapper": "ConnectionWrapper",
    "ForkingPickler": "ForkingPickler",
    "_MultiWorkerIter": "MultiWorkerIter",
    "_as_in_context": "as_in_context",
    "_worker_fn": "worker_fn",
    "_worker_initializer": "worker_initializer",
}

_HOST = cpu(0)
_SHARED = [np.dtype(name) for name in ("float32", "float64", "float16", "uint8", "int32", "int64")]

__all__ = ["DataLoader", "default_batchify_fn", "default_mp_batchify_fn"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MXNET_NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import _multi_worker_iter

        return getattr(_multi_worker_iter, _MXNET_NAMES[name])


def _gather(data, convert):
    """Combines samples into a batch: arrays are stacked, tuples are combined element by element,
    and numbers become `convert` of a NumPy array."""
    first = data[0]
    if isinstance(first, tuple):
        return [_gather(part, convert) for part in zip(*data)]
    try:
        if isinstance(first, nd.NDArray):
            return nd.stack(*data)
        values = np.asarray(data)
    except (ValueError, MXNetError):
        shapes = list(dict.fromkeys(np.shape(sample) for sample in data))
        if len(shapes) == 1:
            raise
        raise MXNetValueError(
            f"DataLoader: the samples of a batch have the shapes {brief(shapes)}; convert them "
            "to one shape with dataset.transform, or pass a batchify_fn"
        ) from None
    if values.dtype.kind in "OUS":
        raise MXNetTypeError(
            "DataLoader: samples must be arrays, numbers or tuples of these, got "
            f"{type(first).__name__}; pass a batchify_fn for other types"
        )
    return convert(values)


def to_array(values: np.ndarray[Any, Any]) -> nd.NDArray:
    """Converts a NumPy array without other references to an NDArray. Reuses its memory if
    possible."""
    if current_context() == _HOST and values.dtype in _SHARED and values.flags.carray:
        return nd.from_dlpack(values)
    return nd.array(values, dtype=values.dtype)


def default_batchify_fn(data: Sequence[Any]) -> Any:
    """Stacks samples along a new first axis. NDArrays, NumPy arrays or numbers become an NDArray;
    tuples become a list of NDArrays.

    Examples
    --------
    >>> gluon.data.dataloader.default_batchify_fn([nd.zeros(3), nd.ones(3)]).shape
    (2, 3)
    """
    return _gather(data, to_array)


def default_mp_batchify_fn(data: Sequence[Any]) -> Any:
    """Returns the same batch as `default_batchify_fn`, by the two steps that run in a worker
    process and in the loader."""
    return _from_numpy(_to_numpy(data))


def _to_numpy(data):
    """Combines samples into a batch with NumPy arrays, which the loader's process converts to
    NDArrays."""
    return _gather(data, lambda values: values)


def _from_numpy(batch):
    if isinstance(batch, list):
        return [_from_numpy(part) for part in batch]
    return batch if isinstance(batch, nd.NDArray) else to_array(batch)


class Round:
    """The requested batches of one iteration. `done` has the finished ones by number."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number: int = next(Round._numbers)
        self.done: dict[int, Any] = {}


class _ThreadPool:
    """The interface of WorkerPool, implemented with threads of this process."""

    def __init__(self, num_workers, dataset, batchify):
        from concurrent.futures import ThreadPoolExecutor

        self._executor = ThreadPoolExecutor(num_workers, thread_name_prefix="mpgluon-data")
        self._dataset = dataset
        self._batchify = batchify
        self.closed = False

    def _make(self, samples):
        return self._batchify([self._dataset[i] for i in samples])

    def submit(self, round_, number, samples, seed):
        round_.done[number] = self._executor.submit(self._make, samples)

    def get(self, round_, number, timeout):
        from concurrent.futures import TimeoutError as FutureTimeout

        batch = round_.done.pop(number)
        try:
            return batch.result(timeout)
        except FutureTimeout:
            if batch.done():  # the user's code has raised this TimeoutError
                raise
            from ._timeout import LoaderTimeoutError

            raise LoaderTimeoutError(timeout, "it") from None

    def abandon(self, round_):
        for batch in round_.done.values():
            batch.cancel()

    def close(self):
        self.closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)


class _Prefetcher:
    """Iterates over the batches of one round in order, and keeps `prefetch` batches requested
    ahead."""

    def __init__(self, pool, batches, prefetch, seed, timeout, finish):
        self._pool = pool
        self._round = Round()
        self._batches = iter(batches)
        self._seed = seed
        self._timeout = timeout
        self._finish = finish
        self._submitted = self._given = 0
        for _ in range(prefetch):
            self._submit()

    def _submit(self):
        batch = next(self._batches, None)
        if batch is not None:
            self._pool.submit(self._round, self._submitted, batch, self._seed)
            self._submitted += 1

    def __iter__(self):
        return self

    def __next__(self):
        try:
            self._submit()
            if self._given == self._submitted:
                raise StopIteration
            batch = self._pool.get(self._round, self._given, self._timeout)
            self._given += 1
            return self._finish(batch)
        except BaseException:
            self.close()
            raise

    def close(self):
        self._batches, self._given = iter(()), self._submitted
        if not self._pool.closed:
            self._pool.abandon(self._round)

    def __del__(self):
        self.close()


class DataLoader(OptionsChecked):
    """Iterates over a data set in batches.

    Parameters
    ----------
    dataset : Dataset
        Any object with indices and a length.
    batch_size, shuffle, sampler, last_batch
        Samples per batch; whether to shuffle them, or a Sampler of indices; treatment of an
        incomplete last batch: "keep" (default), "discard" or "rollover" into the next round.
    batch_sampler : Sampler
        Sampler of lists of indices, which replaces the four parameters above.
    batchify_fn : callable
        Combines a list of samples into a batch; defaults to `default_batchify_fn`.
    num_workers : int
        Number of forked processes, or with `thread_pool` of threads, that prefetch batches. With 0,
        batches are loaded on demand.
    pin_memory, pin_device_id
        Whether to copy batches into pinned memory, ``mx.cpu_pinned(pin_device_id)``, from which
        GPUs copy asynchronously.
    prefetch : int
        Number of batches to prefetch; defaults to twice `num_workers`.
    timeout : float
        Seconds to wait for a batch. After that, raises a TimeoutError that is also
        multiprocessing's.
    auto_reload : bool
        Whether to start the next round as soon as one ends.
    thread_pool : bool, default False
        Whether to use threads instead of processes.

    Errors of the data set or of `batchify_fn` are raised by the iteration, even if they occurred in
    a worker. If a worker process dies, RuntimeError describes the cause. The loader can be iterated
    again after either error. In worker processes, `random`, `numpy.random` and `mx.random` are
    seeded for each batch from the state of `numpy.random`, the number of the round and the batch
    number, so results do not depend on the number of workers.

    Raises
    ------
    ValueError
        If options contradict each other, or `timeout` is not positive.

    Examples
    --------
    >>> data = gluon.data.ArrayDataset(nd.arange(5), nd.ones((5, 2)))
    >>> [(x.shape, y.shape) for x, y in gluon.data.DataLoader(data, batch_size=2)]
    [((2,), (2, 2)), ((2,), (2, 2)), ((1,), (1, 2))]
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Sampler | None = None,
        last_batch: str | None = None,
        batch_sampler: Sampler | None = None,
        batchify_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: float = 120,
        auto_reload: bool = False,
    ) -> None:
        if not timeout > 0:
            raise MXNetAssertionError(f"timeout must be positive, got {timeout}")
        self._pool = None
        self._dataset = dataset
        self._pin_memory = pin_memory
        self._pin_device_id = pin_device_id
        self._thread_pool = thread_pool
        self._timeout = timeout
        if batch_sampler is None:
            if batch_size is None:
                raise ValueError("batch_size must be given unless batch_sampler is")
            if sampler is not None and shuffle:
                raise ValueError("shuffle must not be set when sampler is given")
            if sampler is None:
                if not hasattr(dataset, "__len__"):
                    raise TypeError(
                        "DataLoader: the data set must support len() and indexing, got "
                        f"{type(dataset).__name__}; use list(data), or a Dataset"
                    )
                sampler = (_sampler.RandomSampler if shuffle else _sampler.SequentialSampler)(
                    len(dataset)
                )
            batch_sampler = _sampler.BatchSampler(sampler, batch_size, last_batch or "keep")
        elif batch_size is not None or shuffle or sampler is not None or last_batch is not None:
            raise ValueError(
                "batch_size, shuffle, sampler and last_batch must not be given together with "
                "batch_sampler"
            )
        self._batch_sampler = batch_sampler
        self._num_workers = max(0, num_workers)
        self._prefetch = max(0, int(2 * self._num_workers if prefetch is None else prefetch))
        # The loader's process converts NumPy samples to NDArrays, so worker processes need no
        # device.
        self._remote = (
            self._num_workers > 0
            and not thread_pool
            and batchify_fn in (None, default_batchify_fn, default_mp_batchify_fn)
        )
        self._batchify_fn = default_batchify_fn if batchify_fn is None else batchify_fn
        self._rounds = 0
        self.auto_reload = auto_reload
        if self._num_workers:
            self._start()
        self._ahead = self._round() if auto_reload else None

    def __repr__(self) -> str:
        workers = (
            f", {'threads' if self._thread_pool else 'worker processes'}: {self._num_workers}"
            if self._num_workers
            else ""
        )
        return f"DataLoader({self._dataset!r}, batches: {len(self)}{workers})"

    def _start(self):
        if self._thread_pool:
            self._pool = _ThreadPool(self._num_workers, self._dataset, self._batchify_fn)
        else:
            from ._workers import WorkerPool

            nd.waitall()  # finish all work before the fork, because children do not inherit it
            self._pool = WorkerPool(
                self._num_workers, self._dataset, _to_numpy if self._remote else self._batchify_fn
            )
        weakref.finalize(self, self._pool.close)

    def _round(self):
        """Starts a round and returns an iterator over its batches."""
        if self._num_workers == 0:
            return (
                self._batchify_fn([self._dataset[i] for i in batch])
                for batch in self._batch_sampler
            )
        if self._pool.closed:
            self._start()
        kind, key, position, *_ = np.random.get_state(legacy=True)
        seed = zlib.crc32(key.tobytes() + str((kind, position, self._rounds)).encode())
        self._rounds += 1
        finish = _from_numpy if self._remote else lambda batch: batch
        return _Prefetcher(
            self._pool, self._batch_sampler, self._prefetch, seed, self._timeout, finish
        )

    def _pinned(self, batch):
        """Copies the arrays of a batch to pinned memory."""
        if isinstance(batch, nd.NDArray):
            return batch.as_in_context(cpu_pinned(self._pin_device_id))
        if isinstance(batch, dict):
            return {key: self._pinned(part) for key, part in batch.items()}
        if isinstance(batch, (list, tuple)):
            parts = [self._pinned(part) for part in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        return batch

    def refresh(self) -> None:
        """Starts a round ahead of time; the next iteration uses it."""
        self._ahead = self._round()

    def clean(self) -> None:
        """Discards a round that was started ahead of time."""
        self._ahead = None

    def __iter__(self) -> Iterator[Any]:
        batches, self._ahead = self._ahead or self._round(), None
        yield from map(self._pinned, batches) if self._pin_memory else batches
        if self.auto_reload and self._ahead is None:
            self.refresh()

    def __len__(self) -> int:
        return len(self._batch_sampler)
