"""MXNet's iterator over batches from a `multiprocessing.Pool`, which other packages subclass.
`DataLoader` itself uses its own workers."""

import io
import pickle
from multiprocessing.reduction import ForkingPickler

_dataset = None  # the worker process's data set


class ConnectionWrapper:
    """A multiprocessing connection that serializes objects with `ForkingPickler`."""

    def __init__(self, conn):
        self._conn = conn

    def send(self, obj):
        buffer = io.BytesIO()
        ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(obj)
        self._conn.send_bytes(buffer.getvalue())

    def recv(self):
        return pickle.loads(self._conn.recv_bytes())

    def __getattr__(self, name):
        return getattr(self._conn, name)


def worker_initializer(dataset):
    """Sets the data set of a worker process."""
    global _dataset
    _dataset = dataset


def worker_fn(samples, batchify_fn, dataset=None):
    """Returns a pickled batch of the samples with these indices."""
    samples = [(dataset if _dataset is None else _dataset)[i] for i in samples]
    buffer = io.BytesIO()
    ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(batchify_fn(samples))
    return buffer.getvalue()


def as_in_context(data, ctx):
    """Moves arrays in nested lists to a device. Other values are returned unchanged."""
    if hasattr(data, "as_in_context"):
        return data.as_in_context(ctx)
    if isinstance(data, (list, tuple)):
        return [as_in_context(item, ctx) for item in data]
    return data


class MultiWorkerIter:
    """Sends sample indices to a pool, `prefetch` batches ahead, and returns the batches in order.

    Other packages override `_push_next` and use the attributes."""

    def __init__(
        self,
        worker_pool,
        batchify_fn,
        batch_sampler,
        pin_memory=False,
        pin_device_id=0,
        worker_fn=worker_fn,
        prefetch=0,
        dataset=None,
        data_loader=None,
        timeout=120,
    ):
        self._worker_pool, self._worker_fn = worker_pool, worker_fn
        self._batchify_fn, self._batch_sampler = batchify_fn, batch_sampler
        self._pin_memory, self._pin_device_id = pin_memory, pin_device_id
        self._dataset, self._data_loader, self._timeout = dataset, data_loader, timeout
        self._data_buffer = {}  # batch number -> its pending or finished result
        self._sent_idx = self._rcvd_idx = 0
        self._iter = iter(batch_sampler)
        for _ in range(prefetch):
            self._push_next()

    def __len__(self):
        return len(self._batch_sampler)

    def _push_next(self):
        """Sends the indices of the next batch to the pool, if there is one."""
        samples = next(self._iter, None)
        if samples is not None:
            self._data_buffer[self._sent_idx] = self._worker_pool.apply_async(
                self._worker_fn, (samples, self._batchify_fn, self._dataset)
            )
            self._sent_idx += 1

    def __next__(self):
        self._push_next()
        if self._rcvd_idx == self._sent_idx:
            raise StopIteration
        batch = pickle.loads(self._data_buffer.pop(self._rcvd_idx).get(self._timeout))
        self._rcvd_idx += 1
        return batch

    next = __next__

    def __iter__(self):
        return self
