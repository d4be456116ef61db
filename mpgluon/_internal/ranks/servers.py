"""Asynchronous parameter servers: the kvstore 'dist_async'.

The last ranks are servers. They store the values and apply each push on arrival. The other ranks
are workers, which do not wait for each other. A server starts to serve when the program creates the
store, and its process exits after all workers have ended. Values are distributed over the servers
by key and never split.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

from ... import _core, ndarray as nd, optimizer as optimizers
from ..._core import NDArray, dtype_name
from ...base import MXNetError
from ...kvstore import OptimizingStore, pairs_of, rows_wanted, sum_on
from .. import ranks
from . import own_arrays
from .two_bits import TwoBits, decompressed

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ...optimizer import Optimizer
    from ..types import Arrays, Keys, Values

_SERVERS = "DMLC_NUM_SERVER"  # set by MXNet's launcher
_REQUEST, _REPLY = 1, 2  # MPI tags
_IDLE = 0.001  # longest pause in seconds between a server's polls for requests
_LOOK = 0.05  # seconds between checks for lost ranks


# --- Messages -----------------------------------------------------------------------------------


def _packed(array):
    """Converts an array to a tuple that pickle supports."""
    dtype = dtype_name(array.dtype)
    if array.stype == "row_sparse":
        return "row_sparse", dtype, array.shape, _numbers(array.data), _numbers(array.indices)
    return "default", dtype, array.shape, _numbers(array)


def _numbers(array):
    exact = array.astype("float32") if dtype_name(array.dtype) == "bfloat16" else array
    return exact.asnumpy()


def _unpacked(packed):
    kind, dtype, shape, data, *rest = packed
    if kind == "2bit":
        threshold = rest[0]
        return decompressed(nd.array(data, dtype="uint8"), shape, threshold)
    values = nd.array(data, dtype=dtype)
    if kind == "row_sparse":
        return nd.sparse.row_sparse_array((values, rest[0]), shape=shape, dtype=dtype)
    return values


class _Message:
    """Request for `ranks.wait` that completes when a reply from a server has arrived."""

    def __init__(self, comm, source):
        self._comm, self._source, self._found = comm, source, None

    def Test(self) -> bool:
        self._found = self._found or self._comm.improbe(source=self._source, tag=_REPLY)
        return self._found is not None

    def read(self) -> Any:
        return self._found.recv()


class _Channel:
    """Exchanges messages between workers and servers. A process has one channel for all stores."""

    def __init__(self, servers):
        world = ranks.world()
        self.num_workers = world.size - servers
        self.servers = range(self.num_workers, world.size)
        self.comm, request = world.Idup()
        ranks.wait(request, "kvstore 'dist_async'")
        self.serves = world.rank in self.servers
        self.workers = self.comm.Split(int(self.serves), world.rank)
        self.numbers = itertools.count()  # store ids
        self._sent, self._lock = [], threading.RLock()
        if not self.serves:
            atexit.register(self._end, os.getpid())

    def post(self, rank: int, said: Any, tag: int) -> None:
        """Sends a message without waiting. Keeps the request until the message has left."""
        with self._lock:
            self._sent = [request for request in self._sent if not request.Test()]
            self._sent.append(self.comm.isend(said, rank, tag=tag))

    def send(self, server: int, *said: Any) -> None:
        self.post(server, said, _REQUEST)

    def ask(self, questions: dict[int, tuple[Any, ...]], what: str) -> list[Any]:
        """Sends {server: request} and returns the replies in the same order."""
        with self._lock:
            for server, question in questions.items():
                self.send(server, *question)
            answers = []
            for server in questions:
                message = _Message(self.comm, server)
                ranks.wait(message, f"{what}: the kvstore's server on rank {server}")
                answers.append((server, message.read()))
        for server, (failure, _) in answers:
            if failure:
                raise MXNetError(f"{what}: on the kvstore's server, rank {server}: {failure}")
        return [answer for _, (_, answer) in answers]

    def _end(self, process):
        if os.getpid() == process:  # a forked child must not end the channel
            for server in self.servers:
                self.send(server, "end")
            self.flush()

    def flush(self) -> None:
        """Returns when all sent messages have left."""
        for request in self._sent:
            ranks.wait(request, "the end of the kvstore")


_channel: _Channel | None = None


def _number_of_servers():
    text = os.environ.get(_SERVERS, "") or "1"
    count = ranks.count()
    if not text.isdecimal() or not 1 <= int(text) < count:
        raise MXNetError(
            "create: 'dist_async' needs servers and at least one worker, but the program has "
            f"{count} rank{'' if count == 1 else 's'} and the number of servers is {text} "
            f"(environment variable {_SERVERS}, 1 by default); start more ranks with mpirun -n"
        )
    return int(text)


def create(kind: str) -> AsyncKVStore | NoReturn:
    """Returns the store on a worker. A server serves requests in this call, and raises SystemExit
    after all workers have ended. All ranks call it together for their first store."""
    global _channel
    if _channel is None:
        servers = _number_of_servers()
        if len(set(ranks.gather("kvstore 'dist_async'", str(servers)))) > 1:
            raise MXNetError(f"create: the ranks have different values of {_SERVERS}")
        _channel = _Channel(servers)
        if _channel.serves:
            _Server(_channel).run()
            raise SystemExit(0)
    return AsyncKVStore(kind, _channel)


# --- Workers ------------------------------------------------------------------------------------


class AsyncKVStore(TwoBits, OptimizingStore):
    """Key-value store of asynchronous parameter servers: ``mx.kv.create('dist_async')``.

    A push does not wait for the server. The server applies it on arrival, without waiting for other
    workers. A pull returns the current value, which includes all earlier pushes of this worker. All
    workers call `init`, `set_optimizer` and `barrier` together. The first worker provides the
    initial values and the optimizer.
    """

    needs_optimizer = True

    def __init__(self, kind: str, channel: _Channel) -> None:
        super().__init__()
        self._kind, self._channel, self._number = kind, channel, next(channel.numbers)
        self._optimizer: Optimizer | None = None
        self._keys: dict[int | str, tuple[int, ...]] = {}  # {key: shape of its value}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._kind!r}, worker {self.rank} of {self.num_workers}, "
            f"{len(self._channel.servers)} servers, {len(self._keys)} keys)"
        )

    @property
    def rank(self) -> int:
        """Index of this worker."""
        return ranks.own()

    @property
    def num_workers(self) -> int:
        return self._channel.num_workers

    def _server_of(self, key):
        number = key if isinstance(key, int) else zlib.crc32(str(key).encode())
        return self._channel.servers[number % len(self._channel.servers)]

    def _ask(self, what, parts):
        """Sends each (key, request) in `parts` to the key's server. Returns {key: reply}."""
        by_server = {}
        for key, said in parts:
            by_server.setdefault(self._server_of(key), []).append((key, said))
        questions = {
            server: (what, self._number, together) for server, together in by_server.items()
        }
        answers = {}
        for (_, _, together), answer in zip(questions.values(), self._channel.ask(questions, what)):
            answers.update(zip((key for key, _ in together), answer))
        return answers

    def init(self, key: Keys, value: Values) -> None:
        """Sets the initial values of keys, once for each key. All workers call it, and the first
        worker's values are used."""
        pairs = pairs_of(key, value, "init")
        for one, arrays in pairs:
            if not isinstance(one, (int, str)):
                raise MXNetError(
                    f"KVStore: a key must be an int or a str, not {type(one).__name__}"
                )
            if one in self._keys:
                raise MXNetError(f"KVStore: the key {one!r} already has a value")
            own_arrays.check_own(arrays[0], "init")
        if self.rank == 0:
            self._ask("init", [(one, _packed(arrays[0])) for one, arrays in pairs])
        self._keys.update((one, arrays[0].shape) for one, arrays in pairs)
        self.barrier()

    def _check(self, key):
        if key not in self._keys:
            raise MXNetError(f"KVStore: the key {key!r} has no value; call init first")

    def push(self, key: Keys, value: Values, priority: int = 0) -> None:
        """Sums the arrays of all devices for a key and sends the sum to the key's server, which
        updates the value.

        Waits for the sum, but not for the server. The next pull or `barrier` raises errors of the
        server. Takes the parameters of `KVStore.push`.
        """
        for one, arrays in pairs_of(key, value, "push"):
            self._check(one)
            if any(array.shape != self._keys[one] for array in arrays):
                raise MXNetError(
                    f"push: the value of {one!r} has shape {self._keys[one]}, but the pushed "
                    f"arrays have shapes {[array.shape for array in arrays]}"
                )
            total = sum_on(arrays[0].context, arrays)
            own_arrays.check_own(total, "push")
            if self._threshold is None:
                said = _packed(total)
            else:
                bits = self._compressed(one, total).asnumpy()
                said = "2bit", "float32", total.shape, bits, self._threshold
            settings = None
            if self._optimizer is not None:
                own = self._optimizer.of(one)
                settings = own.rescale_grad, None if own.lr_scheduler else own.learning_rate
            self._channel.send(
                self._server_of(one), "push", self._number, [(one, (said, settings))]
            )

    def pull(
        self, key: Keys, out: Values | None = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copies values into `out`. Takes the parameters of `KVStore.pull`."""
        if out is None:
            raise AssertionError("pull: the arrays to copy into (out=) must be given")
        wanted = {}
        for one, arrays in pairs_of(key, out, "pull"):
            self._check(one)
            wanted[one] = [a for a in arrays if not ignore_sparse or a.stype == "default"]
        found = self._ask("pull", [(one, None) for one, arrays in wanted.items() if arrays])
        for one, packed in found.items():
            value = _unpacked(packed)
            for array in wanted[one]:
                value.copyto(array)

    def row_sparse_pull(
        self, key: Keys, out: Values | None = None, priority: int = 0, row_ids: Arrays | None = None
    ) -> None:
        """Copies rows of values into row_sparse arrays. Takes the parameters of
        `KVStore.row_sparse_pull`."""
        for one, wanted in rows_wanted(key, out, row_ids):
            self._check(one)
            for array, numbers in wanted:
                if array.stype != "row_sparse":
                    raise MXNetError(
                        f"row_sparse_pull: the array that {one!r} is copied into must be "
                        f"row_sparse, not {array.stype}"
                    )
                found = self._ask("pull", [(one, numbers.asnumpy())])
                array[:] = _unpacked(found[one]).as_in_context(array.context)

    def barrier(self) -> None:
        """Returns when all workers have called it and the servers have applied all their pushes."""
        said = {server: ("flush", self._number, []) for server in self._channel.servers}
        self._channel.ask(said, "barrier")
        ranks.wait(self._channel.workers.Ibarrier(), "barrier of the workers")

    _barrier = barrier

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Makes the servers update the values with `optimizer` on each later push.

        All workers call it. Each push carries the worker's `rescale_grad`, and its learning rate
        unless the optimizer has a scheduler.
        """
        self._optimizer = optimizer
        if self.rank == 0:
            said = "optimizer", self._number, pickle.dumps(optimizer)
            self._channel.ask(dict.fromkeys(self._channel.servers, said), "set_optimizer")
        self.barrier()

    def updater_by(self, optimizer: Optimizer) -> optimizers.Updater:
        """Sets the optimizer and returns an updater that pushes gradients and pulls weights."""
        self.set_optimizer(optimizer)
        return _Updater(self, optimizer)

    def _set_updater(self, updater: Callable[[Any, Any, Any], Any]) -> NoReturn:
        raise MXNetError(f"{self._kind!r}: servers update the values; call set_optimizer")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> NoReturn:
        raise MXNetError(
            f"save_optimizer_states: only the servers of {self._kind!r} have the states"
        )

    def load_optimizer_states(self, fname: str, trusted: bool = False) -> NoReturn:
        raise MXNetError(
            f"load_optimizer_states: only the servers of {self._kind!r} have the states"
        )


class _Updater(optimizers.Updater):
    """Updater that pushes gradients and pulls weights. The servers own its states."""

    def __init__(self, store, optimizer):
        super().__init__(optimizer)
        self._store = store

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        self._store.pushpull(index, grad, out=weight)

    def get_states(self, dump_optimizer: bool = False) -> NoReturn:
        self._store.save_optimizer_states("")

    def set_states(self, states: bytes, trusted: bool = False) -> NoReturn:
        self._store.load_optimizer_states("")


# --- Servers ------------------------------------------------------------------------------------


class _Server:
    """Serves the requests of the workers, one at a time."""

    def __init__(self, channel):
        self._channel, self._working = channel, set(range(channel.num_workers))
        self._values: dict[tuple[int, Any], NDArray] = {}  # (store, key) -> value
        self._updaters: dict[int, Any] = {}  # store -> updater
        self._failures: dict[int, str] = {}  # worker -> error to report in the next reply to it

    def run(self) -> None:
        idle, looked = 0.0, time.monotonic()
        while self._working:
            message = self._channel.comm.improbe(tag=_REQUEST)
            if message is not None:
                self._serve(message)
                idle = 0.0
                continue
            if time.monotonic() - looked > _LOOK:
                lost, why, _ = _core.ranks_find_lost()
                if lost >= 0:
                    raise MXNetError(f"the kvstore's server on rank {ranks.own()}: {why}")
                looked = time.monotonic()
            time.sleep(idle)
            idle = min(idle * 1.5 + 0.00002, _IDLE)
        self._channel.flush()

    def _serve(self, message):
        from mpi4py import MPI

        status = MPI.Status()
        what, *said = message.recv(status)
        worker = status.source
        if what == "end":
            self._working.discard(worker)
            return
        answer = None
        try:
            answer = getattr(self, f"_{what}")(*said)
        except Exception as error:  # reported in the reply to the worker's next request
            self._failures.setdefault(worker, f"{type(error).__name__}: {error}")
        if what != "push":
            self._channel.post(worker, (self._failures.pop(worker, None), answer), _REPLY)

    def _init(self, store, parts):
        self._values.update(((store, key), _unpacked(packed)) for key, packed in parts)
        return [None] * len(parts)

    def _optimizer(self, store, pickled):
        self._updaters[store] = optimizers.get_updater(pickle.loads(pickled))

    def _flush(self, store, parts):
        nd.waitall()

    def _push(self, store, parts):
        updater = self._updaters.get(store)
        if updater is None:
            raise MXNetError("a value was pushed before set_optimizer was called")
        for key, (packed, settings) in parts:
            if settings is not None:
                own = updater.optimizer.of(key)
                own.rescale_grad, rate = settings
                if rate is not None:
                    own.set_learning_rate(rate)
            updater(key, _unpacked(packed), self._values[store, key])

    def _pull(self, store, parts):
        found = []
        for key, rows in parts:
            value = self._values[store, key]
            found.append(_packed(value if rows is None else value.retain(nd.array(rows))))
        return found
