"""Batches of a data set, prefetched by worker processes or threads."""

from __future__ import annotations

import collections
import itertools
import weakref
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import ndarray as nd
from ..._core import is_np_array, is_np_shape
from ..._internal import kinds
from ..._internal.hints import OptionsChecked
from ...base import MXNetAssertionError, MXNetError, MXNetTypeError, MXNetValueError
from ...context import cpu, cpu_pinned, current_context
from ...util import set_np
from ..utils import brief
from . import sampler as _sampler
from ._streams import END, SharedStream, Stream, batches as _stream_batches
from .iterable import IterableDataset

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
            return kinds.of_mode(nd.stack(*data))
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
    """Converts a NumPy array without other references to an array. Reuses its memory if
    possible."""
    if current_context() == _HOST and values.dtype in _SHARED and values.flags.carray:
        return kinds.of_mode(nd.from_dlpack(values))
    return kinds.of_mode(nd.array(values, dtype=values.dtype))


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
    """The requested batches of one iteration. `done` has the finished ones by number, and `streams`
    is True for an IterableDataset."""

    _numbers = itertools.count()

    def __init__(self, streams: bool = False) -> None:
        self.number: int = next(Round._numbers)
        self.done: dict[int, Any] = {}
        self.streams = streams
        self.shared: SharedStream | None = None


class _ThreadPool:
    """The interface of WorkerPool, implemented with threads of this process."""

    def __init__(self, num_workers, dataset, batchify):
        from concurrent.futures import ThreadPoolExecutor

        self._executor = ThreadPoolExecutor(
            num_workers,
            thread_name_prefix="mpgluon-data",
            initializer=set_np,  # the loader's switches
            initargs=(is_np_shape(), is_np_array()),
        )
        self._dataset = dataset
        self._batchify = batchify
        self.closed = False

    def _make(self, samples):
        return self._batchify([self._dataset[i] for i in samples])

    def _next(self, shared, number, stream):
        samples = shared.take(number, stream)
        return END if samples is END else self._batchify(samples)

    def submit(self, round_, number, samples, seed, worker=None):
        if round_.streams:
            if round_.shared is None:
                round_.shared = SharedStream(self._dataset)
            task = self._next, round_.shared, number, samples
        else:
            task = self._make, samples
        round_.done[number] = self._executor.submit(*task)

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
        if round_.shared is not None:
            round_.shared.close()
        for batch in round_.done.values():
            batch.cancel()

    def close(self):
        self.closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)


class _Prefetcher:
    """Iterates over the batches of one round in order, and keeps `prefetch` batches requested
    ahead. `batches` yields lists of indices. For a stream, it yields the request for the next batch
    without end, and the workers `live` receive the requests in turns."""

    def __init__(self, pool, batches, prefetch, seed, timeout, finish, live=None):
        self._pool = pool
        self._round = Round(live is not None)
        self._batches = iter(batches)
        self._seed = seed
        self._timeout = timeout
        self._finish = finish
        self._live = None if live is None else collections.deque(live)
        self._workers = {}  # worker of each requested batch of a stream
        self._submitted = self._given = 0
        for _ in range(prefetch):
            self._submit()

    def _submit(self):
        batch = None if self._live is not None and not self._live else next(self._batches, None)
        if batch is None:
            return
        worker = None
        if self._live is not None:
            worker = self._workers[self._submitted] = self._live[0]
            self._live.rotate(-1)
        self._pool.submit(self._round, self._submitted, batch, self._seed, worker)
        self._submitted += 1

    def _end_of(self, worker):
        if worker in self._live:
            self._live.remove(worker)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            while True:
                self._submit()
                if self._given == self._submitted:
                    raise StopIteration
                batch = self._pool.get(self._round, self._given, self._timeout)
                worker = self._workers.pop(self._given, None)
                self._given += 1
                if batch is not END:
                    return self._finish(batch)
                self._end_of(worker)
        except BaseException:
            self.close()
            raise

    def close(self):
        self._batches, self._given = iter(()), self._submitted
        if not self._pool.closed:
            self._pool.abandon(self._round)

    def __del__(self):
        self.close()


def _stream_of(batch_size, shuffle, sampler, last_batch, batch_sampler):
    """Returns the request for batches of an IterableDataset. Checks the loader's options."""
    if shuffle or sampler is not None or batch_sampler is not None:
        raise ValueError(
            "DataLoader: an IterableDataset has no indices, so shuffle, sampler and batch_sampler "
            "must not be given; shuffle in its __iter__"
        )
    if batch_size is None:
        raise ValueError("batch_size must be given unless batch_sampler is")
    if not batch_size >= 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if last_batch not in (None, "keep", "discard"):
        raise ValueError(
            f"last_batch must be 'keep' or 'discard' for an IterableDataset, got {last_batch!r}"
        )
    return Stream(batch_size, last_batch == "discard")


def _count_loader():
    """Returns the number of loaders that have drawn seeds since `numpy.random` was seeded.

    The state of `numpy.random` holds the count, so that seeding or restoring that state restores
    the count as well. It is in the field for the second number of a pair of normal draws while the
    field is unused, so draws of `numpy.random` do not change.
    """
    kind, key, position, has_normal, count = np.random.get_state(legacy=True)
    if has_normal:
        return 0
    np.random.set_state((kind, key, position, 0, count + 1.0))
    return int(count)


class DataLoader(OptionsChecked):
    """Iterates over a data set in batches.

    Parameters
    ----------
    dataset : Dataset
        Any object with indices and a length, or an `IterableDataset`, which has neither.
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
    seeded for each batch from the state of `numpy.random`, the number of loaders since it was
    seeded, the number of the round and the batch number, so results do not depend on the number of
    workers. For an IterableDataset, they are
    seeded once per round.

    Raises
    ------
    ValueError
        If options contradict each other, if `timeout` is not positive, or if an IterableDataset
        should be shuffled.

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
        self._stream = None
        if isinstance(dataset, IterableDataset):
            self._stream = _stream_of(batch_size, shuffle, sampler, last_batch, batch_sampler)
        elif batch_sampler is None:
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
        self._batch_sampler: Any = batch_sampler
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
        self._rounds = self._number = 0
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
        try:
            count = f", batches: {len(self)}"
        except (TypeError, NotImplementedError):  # a stream or batch sampler without __len__
            count = "" if self._stream is None else f", batch_size: {self._stream.batch_size}"
        return f"DataLoader({self._dataset!r}{count}{workers})"

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
        if self._num_workers == 0 and self._stream is not None:
            return map(self._batchify_fn, _stream_batches(self._dataset, self._stream))
        if self._num_workers == 0:
            return (
                self._batchify_fn([self._dataset[i] for i in batch])
                for batch in self._batch_sampler
            )
        if self._pool.closed:
            self._start()
        if self._rounds == 0:
            self._number = 0 if self._thread_pool else _count_loader()
        kind, key, position, *_ = np.random.get_state(legacy=True)
        numbers = (self._rounds, self._number) if self._number else (self._rounds,)
        seed = zlib.crc32(key.tobytes() + str((kind, position, *numbers)).encode())
        self._rounds += 1
        finish = _from_numpy if self._remote else lambda batch: batch
        batches, live = self._batch_sampler, None
        if self._stream is not None:
            # Threads share one stream, whereas each process has one.
            batches, live = itertools.repeat(self._stream), range(self._num_workers)
            if self._thread_pool:
                live = range(1)
        return _Prefetcher(self._pool, batches, self._prefetch, seed, self._timeout, finish, live)

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
        if self._stream is None:
            return len(self._batch_sampler)
        count = len(self._dataset)  # a TypeError if unknown
        size = self._stream.batch_size
        return count // size if self._stream.discard else -(-count // size)
