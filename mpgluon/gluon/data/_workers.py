"""Worker processes of a DataLoader.

Workers are forked, so they share the data set without copying it. Each worker has a socket to the
loader's process. The loader sends tasks. The worker sends a short header for each finished batch,
and the batch itself in an anonymous shared memory file, whose descriptor accompanies the header.
Messages therefore never fill a socket, so the two processes cannot deadlock while both send, and a
killed process leaves no files. The death of a worker is detected at once through its sentinel.
"""

import contextlib
import io
import os
import pickle
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
import warnings
import weakref

from ..._internal import kinds
from ...base import dtype_name
from ...context import set_threads
from ...ndarray import NDArray, array
from ._streams import END, Drop, Stream, WorkerStream
from ._timeout import LoaderTimeoutError
from ._worker_info import WorkerInfo, mixed, seed_all, set_worker_info
from .dataloader import to_array

# Header of a message: round, batch number, kind, bytes of the pickle, bytes of the whole payload.
_HEADER = struct.Struct("<QQBQQ")
_BATCH, _ERROR = 0, 1
_INLINE = 2048  # payloads up to this size are sent inside the message
_ALIGNMENT = 64
_PARENT_CHECK_S = 5.0


def _restore(values, dtype, context, numpy):
    with context:
        # NumPy lacks bfloat16, so bfloat16 values were sent as float32.
        same = values.dtype.name == dtype
        return kinds.of_kind(to_array(values) if same else array(values, dtype=dtype), numpy)


class _Pickler(pickle.Pickler):
    """Pickles NDArrays as NumPy arrays. Their buffers are passed to the buffer callback instead of
    being copied into the pickle (out-of-band, protocol 5)."""

    def reducer_override(self, value):
        if isinstance(value, NDArray):
            dtype = dtype_name(value.dtype)
            return _restore, (value.asnumpy(), dtype, value.context, kinds.is_numpy(value))
        return NotImplemented


def _pad(size):
    return -size % _ALIGNMENT


def _memory_file():
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("mpgluon-batch"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _write_all(file, data):
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[file.write(view) :]


def _encode(value):
    """Returns (pickle, buffers) of a batch."""
    buffers = []
    out = io.BytesIO()
    _Pickler(out, 5, buffer_callback=buffers.append).dump(value)
    return out.getvalue(), [buffer.raw() for buffer in buffers]


def _send(connection, ticket, kind, value):
    """Sends a result. `ticket` is (round, batch number)."""
    body, buffers = _encode(value)
    # Layout: sizes of the buffers (as a prefix of the pickle), the pickle, then the aligned
    # buffers.
    body = (
        struct.pack(f"<Q{len(buffers)}Q", len(buffers), *(buffer.nbytes for buffer in buffers))
        + body
    )
    total = len(body)
    for buffer in buffers:
        total += _pad(total) + buffer.nbytes
    header = _HEADER.pack(*ticket, kind, len(body), total)
    if total <= _INLINE and not buffers:
        connection.send_bytes(header + body)
        return
    with _memory_file() as file:
        _write_all(file, body)
        position = len(body)
        for buffer in buffers:
            _write_all(file, b"\0" * _pad(position))
            _write_all(file, buffer)
            position += _pad(position) + buffer.nbytes
        connection.send_bytes(header)
        with _socket(connection) as other:
            socket.send_fds(other, [b"\0"], [file.fileno()])


def _socket(connection):
    """Returns the socket of a connection for sending file descriptors, which connections do not
    support. The caller must close it."""
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def _receive(connection):
    """Returns (ticket, kind, value) of the next message."""
    message = connection.recv_bytes()
    round_, number, kind, body_size, total = _HEADER.unpack_from(message)
    if len(message) > _HEADER.size:
        payload = memoryview(message)[_HEADER.size :]
    else:
        import mmap

        with _socket(connection) as other:
            descriptors = socket.recv_fds(other, 1, 1, socket.MSG_CMSG_CLOEXEC)[1]
        if not descriptors:
            raise EOFError
        descriptor = descriptors[0]
        try:
            # No other process can access this memory, because the worker has closed its descriptor.
            payload = memoryview(mmap.mmap(descriptor, total))
        finally:
            os.close(descriptor)
    (count,) = struct.unpack_from("<Q", payload)
    sizes = struct.unpack_from(f"<{count}Q", payload, 8)
    buffers, position = [], body_size
    for size in sizes:
        position += _pad(position)
        buffers.append(payload[position : position + size])
        position += size
    return (round_, number), kind, pickle.loads(payload[8 + 8 * count : body_size], buffers=buffers)


class RemoteError(Exception):
    """Describes an exception in a worker: class, text and traceback."""


def _describe(error):
    """Returns the exception, or None if it cannot be pickled, and its traceback as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    # The exception cannot be pickled or unpickled. Its arguments may lack support for pickling, or
    # its constructor may not accept them.
    except Exception:
        error = None
    return error, text


def _work(connection, to_close, dataset, batchify, parent, worker, num_workers):
    """Runs a worker: processes tasks until the loader closes the connection."""
    # Ignore Ctrl-C, which also interrupts the loader. The loader terminates the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for other in to_close:
        other.close()
    set_threads(1)  # the workers share the machine, so each uses one core
    streams = {}  # streams by round
    set_worker_info(WorkerInfo(worker, num_workers, worker, dataset), asked=True)

    def load(ticket, seed, samples):
        if isinstance(samples, Stream):
            if ticket[0] not in streams:
                streams[ticket[0]] = WorkerStream(dataset, worker, num_workers, seed)
            samples = streams[ticket[0]].take(samples)
            return END if samples is END else batchify(samples)
        seed_all(mixed(seed, ticket[1]))  # does not depend on the worker
        return batchify([dataset[i] for i in samples])

    try:
        while True:
            while not connection.poll(_PARENT_CHECK_S):
                if os.getppid() != parent:
                    return
            ticket, seed, samples = pickle.loads(connection.recv_bytes())
            if isinstance(samples, Drop):
                streams.pop(ticket[0], None)
                continue
            try:
                _send(connection, ticket, _BATCH, load(ticket, seed, samples))
            except (BrokenPipeError, ConnectionResetError):
                return
            except Exception as error:  # an error in the user's code, which the loader raises
                _send(connection, ticket, _ERROR, _describe(error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the loader has exited


class WorkerPool:
    """Forked processes that load batches. May be used by one thread of one process at a time.

    A finished batch is stored in the round (`dataloader.Round`) that requested it, or dropped if
    the round no longer exists. If a worker dies, the pool is closed and `get` raises.
    """

    def __init__(self, num_workers, dataset, batchify):
        import multiprocessing

        if "fork" not in multiprocessing.get_all_start_methods():
            raise RuntimeError(
                "DataLoader: worker processes need fork, which this system does not support; "
                "use thread_pool=True"
            )
        context = multiprocessing.get_context("fork")
        self._owner = os.getpid()
        self._workers = []  # (process, connection)
        self._load = []  # pending (round, number) of each worker
        self._rounds = weakref.WeakValueDictionary()  # rounds that are still iterated over
        self._death = None
        sys.stdout.flush()
        sys.stderr.flush()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for worker in range(num_workers):
                ours, theirs = context.Pipe(duplex=True)
                to_close = [connection for _, connection in self._workers] + [ours]
                process = context.Process(
                    target=_work,
                    args=(theirs, to_close, dataset, batchify, self._owner, worker, num_workers),
                    daemon=True,
                )
                with warnings.catch_warnings():
                    # Forking a process that has device threads is safe, because the child recreates
                    # its devices.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                theirs.close()
                self._workers.append((process, ours))
                self._load.append(set())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    @property
    def closed(self):
        """True if the workers were stopped, so no more batches can be requested."""
        return not self._workers

    def submit(self, round_, number, samples, seed, worker=None):
        """Sends a list of sample indices or a Stream to a worker. By default, this is the worker
        with the fewest pending batches."""
        self._check()
        self._rounds[round_.number] = round_
        if worker is None:
            worker = min(range(len(self._workers)), key=lambda i: len(self._load[i]))
        ticket = (round_.number, number)
        try:
            self._workers[worker][1].send_bytes(pickle.dumps((ticket, seed, samples), 5))
            self._load[worker].add(ticket)
        except (BrokenPipeError, ConnectionResetError):
            self._bury(worker)
        except BaseException:  # interrupted: the message may be sent partially
            self.close()
            raise

    def get(self, round_, number, timeout):
        """Returns a batch. Raises the worker's exception, RuntimeError if a worker died, and
        TimeoutError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while number not in round_.done:
            self._check()
            self._collect(max(0.0, deadline - time.monotonic()), timeout)
        kind, value = round_.done.pop(number)
        if kind == _ERROR:
            error, text = value
            if error is None:
                raise RuntimeError(f"a DataLoader worker failed:\n{text}")
            raise error from RemoteError(f"in a DataLoader worker:\n{text}")
        return value

    def abandon(self, round_):
        """Drops all batches of a round that is no longer iterated over, and its streams."""
        self._rounds.pop(round_.number, None)
        if round_.streams and os.getpid() == self._owner:
            for _, connection in self._workers:
                with contextlib.suppress(OSError):  # the worker has died; the next batch raises
                    connection.send_bytes(pickle.dumps(((round_.number, 0), 0, Drop()), 5))

    def _check(self):
        if self._death:
            raise RuntimeError(self._death)
        if self.closed:
            raise RuntimeError("the DataLoader's workers have been stopped")

    def _collect(self, wait_s, timeout):
        """Waits for a message and processes all that have arrived."""
        from multiprocessing.connection import wait

        connections = {connection: i for i, (_, connection) in enumerate(self._workers)}
        sentinels = {process.sentinel: i for i, (process, _) in enumerate(self._workers)}
        ready = wait([*connections, *sentinels], wait_s)
        if not ready:
            raise LoaderTimeoutError(timeout, "a worker")
        for item in ready:
            worker = connections.get(item)
            if worker is not None:
                try:
                    ticket, kind, value = _receive(item)
                    self._load[worker].discard(ticket)
                    round_ = self._rounds.get(ticket[0])
                    if round_ is not None:
                        round_.done[ticket[1]] = (kind, value)
                except (EOFError, ConnectionResetError, BrokenPipeError):
                    self._bury(worker)
                except BaseException:  # interrupted: the message may be received partially
                    self.close()
                    raise
        for item in ready:
            worker = sentinels.get(item)
            if worker is not None and not self._workers[worker][1].poll():
                self._bury(worker)

    def _bury(self, worker):
        """Handles the death of a worker: stops the other workers and raises RuntimeError."""
        process = self._workers[worker][0]
        process.join(1.0)
        code = process.exitcode
        if code is not None and code < 0:
            try:
                how = f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                how = f"was killed by signal {-code}"
            if -code == signal.SIGKILL:
                how += " (perhaps the machine ran out of memory)"
        else:
            how = f"exited with code {code}"
        self._death = f"DataLoader: worker process {process.pid} {how} while it was loading a batch"
        self.close()
        raise RuntimeError(self._death)

    def close(self):
        """Stops the workers and discards their tasks. Idempotent."""
        workers, self._workers = self._workers, []
        self._load = []
        # In a forked child, this is a copy of the pool. The workers belong to the parent.
        if os.getpid() != self._owner:
            return
        for _, connection in workers:
            connection.close()
        for process, _ in workers:
            process.terminate()
        for process, _ in workers:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
