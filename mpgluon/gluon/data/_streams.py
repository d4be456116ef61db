"""Batches of an IterableDataset, in the loader's process, its threads or its worker processes."""

import itertools
import threading
from typing import Any, NamedTuple

from ._worker_info import WorkerInfo, mixed, seed_all, set_worker_info, was_asked


class Stream(NamedTuple):
    """Request for the next batch of a data set's stream."""

    batch_size: int
    discard: bool  # whether an incomplete last batch is dropped


class Drop:
    """Request to forget the stream of a round that is no longer iterated over."""


class END:
    """The batch after the last one of a stream: the class itself, which pickles by name."""


def next_samples(samples, stream):
    """Returns the samples of the next batch, or END."""
    batch = list(itertools.islice(samples, stream.batch_size))
    return batch if batch and not (stream.discard and len(batch) < stream.batch_size) else END


def batches(dataset, stream):
    """Yields lists of samples."""
    samples = iter(dataset)
    while (batch := next_samples(samples, stream)) is not END:
        yield batch


class SharedStream:
    """A stream from which several threads take batches, in the order of the batches' numbers."""

    def __init__(self, dataset: Any) -> None:
        self._samples = iter(dataset)
        self._next = 0
        self._closed = False
        self._turn = threading.Condition()

    def close(self) -> None:
        """Ends the stream, so that no thread waits for a batch that was canceled."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    def take(self, number: int, stream: Stream) -> Any:
        with self._turn:
            self._turn.wait_for(lambda: self._closed or self._next == number)
            if self._closed:
                return END
        # Only the thread whose turn it is reads. It holds no lock, because the read may take
        # forever, and `close` must not wait for it.
        try:
            return next_samples(self._samples, stream)
        finally:
            with self._turn:
                self._next += 1
                self._turn.notify_all()


class WorkerStream:
    """The share of a worker process: its own stream if the data set asks for the worker, otherwise
    every n-th batch of the whole stream, of n workers.

    In the second case, all workers use the same seed, so that they have the same stream, and the
    batches do not depend on the number of workers.
    """

    def __init__(self, dataset, worker, num_workers, seed):
        seed_all(mixed(seed, 0))
        set_worker_info(WorkerInfo(worker, num_workers, mixed(seed, 1 + worker), dataset))
        self._samples = iter(dataset)
        self._worker, self._others = worker, num_workers - 1
        self._shared = None  # whether the loader divides the stream; unknown before a sample

    def take(self, stream):
        if self._shared is None:
            first = list(itertools.islice(self._samples, 1))
            self._shared = not was_asked()
            self._samples = itertools.chain(first, self._samples)
            self._skip(self._worker, stream)
        elif self._shared:
            self._skip(self._others, stream)
        batch = next_samples(self._samples, stream)
        if self._shared and was_asked():
            raise RuntimeError(
                "IterableDataset: get_worker_info() was called after the first sample; call it "
                "at the start of __iter__"
            )
        return batch

    def _skip(self, batches, stream):
        if self._shared:
            for _ in itertools.islice(self._samples, batches * stream.batch_size):
                continue
