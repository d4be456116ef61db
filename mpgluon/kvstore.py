"""`KVStore`: values by key, to which devices push and from which they pull.

Arrays that several devices push under a key are summed on the device of the value, in the given
order. The sum replaces the value, or an updater applies it. A store is in one process or, for
'dist_sync', in all processes that ``mpirun`` started. `Trainer` and `Module` sum and update on
their own, in the same order; a store is for programs that call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import optimizer as optimizers
from ._core import NotSupportedError, write_file
from ._internal.files import open_regular
from ._internal.hints import near, near_names
from .base import MXNetError, MXNetValueError
from .ndarray import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar, NoReturn

    from ._internal.types import Arrays, Class, Keys, Values
    from .optimizer import Optimizer


__all__ = ["KVStore", "KVStoreBase", "KVStoreServer", "TestStore", "create"]

near_names(__name__)

_KINDS = (
    "local",
    "local_update_cpu",
    "local_allreduce_cpu",
    "local_allreduce_device",
    "device",
    "nccl",
)
_OF_RANKS = ("dist", "dist_sync", "dist_device_sync", "dist_sync_device")
_OF_SERVERS = ("dist_async", "dist_device_async", "dist_async_device")
_SPANNING = ("dist", "p3", "horovod", "byteps")


class KVStoreBase:
    """Base of stores; `create` makes a subclass decorated with `KVStoreBase.register` by name."""

    OPTIMIZER = "optimizer"
    kv_registry: ClassVar[dict[str, Any]] = {}
    spans_ranks = False  # True if the values are shared by all ranks
    needs_optimizer = False  # True if only the store's own optimizer changes values

    @staticmethod
    def register(klass: Class) -> Class:
        """Registers a class under its name in lower case."""
        KVStoreBase.kv_registry[klass.__name__.lower()] = klass
        return klass

    def broadcast(self, key: Keys, value: Values, out: Values, priority: int = 0) -> None:
        """Sets the value of a key, and copies it to `out`."""
        raise NotImplementedError(f"{type(self).__name__} does not define broadcast")

    def pushpull(
        self, key: Keys, value: Values, out: Values | None = None, priority: int = 0
    ) -> None:
        """Pushes, then pulls."""
        raise NotImplementedError(f"{type(self).__name__} does not define pushpull")

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Sets the optimizer that updates values with pushed gradients."""
        raise NotImplementedError(f"{type(self).__name__} does not define set_optimizer")

    @staticmethod
    def is_capable(capability: str) -> bool:
        """True if the store has the capability, such as ``KVStoreBase.OPTIMIZER``."""
        raise NotImplementedError("the class does not define is_capable")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states to a file, with `dump_optimizer` the optimizer as well."""
        raise NotImplementedError(f"{type(self).__name__} does not define save_optimizer_states")

    def load_optimizer_states(self, fname: str, trusted: bool = False) -> None:
        """Reads a file written by `save_optimizer_states`.

        A file that contains the optimizer is a pickle, which can run code; it is only read with
        ``trusted=True``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define load_optimizer_states")

    @property
    def type(self) -> str:
        """The name of the kind of store."""
        raise NotImplementedError(f"{type(self).__name__} does not define type")

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return 0

    @property
    def num_workers(self) -> int:
        """The number of processes."""
        return 1


def sum_on(context: Any, arrays: list[NDArray]) -> NDArray:
    """Sums the arrays on a device, in their order, into a new array."""
    total = arrays[0].copyto(context)
    for array in arrays[1:]:
        total = total + array.as_in_context(context)
    return total


def arrays_of(value: Any, what: str) -> list[NDArray]:
    """Returns one array or several as a list."""
    arrays = [value] if isinstance(value, NDArray) else list(value)
    for array in arrays:
        if not isinstance(array, NDArray):
            raise TypeError(
                f"{what}: expected NDArrays, or lists of them for several devices, got "
                f"{type(array).__name__}"
            )
    return arrays


def pairs_of(key: Any, value: Any, what: str) -> list[tuple[Any, list[NDArray]]]:
    """Returns (key, arrays) for a key or for each of a list of keys."""
    if not isinstance(key, (list, tuple)):
        return [(key, arrays_of(value, what))]
    if len(key) != len(value):
        raise ValueError(f"{what}: got {len(key)} keys, but {len(value)} values")
    return [(one, arrays_of(arrays, what)) for one, arrays in zip(key, value)]


def rows_wanted(
    key: Any, out: Any, row_ids: Any
) -> list[tuple[Any, list[tuple[NDArray, NDArray]]]]:
    """Returns (key, pairs of an array and its row ids) for the arguments of row_sparse_pull."""
    if out is None or row_ids is None:
        raise AssertionError(
            "row_sparse_pull: the arrays (out=) and the rows (row_ids=) must be given"
        )
    ids = row_ids if isinstance(key, (list, tuple)) else [row_ids]
    if len(ids) == 1 and not isinstance(row_ids, NDArray) and len(key) > 1:
        ids = list(ids) * len(key)
    found = []
    for (one, arrays), rows in zip(pairs_of(key, out, "row_sparse_pull"), ids):
        rows = arrays_of(rows, "row_sparse_pull")
        if len(rows) == 1:
            rows = rows * len(arrays)
        if len(rows) != len(arrays):
            raise MXNetError(
                f"row_sparse_pull: got {len(arrays)} arrays, but {len(rows)} arrays of row_ids"
            )
        found.append((one, list(zip(arrays, rows))))
    return found


class OptimizingStore(KVStoreBase):
    """Base of stores with an optimizer; subclasses define `init`, `push` and `pull`."""

    _kind: str

    @property
    def type(self) -> str:
        return self._kind

    @staticmethod
    def is_capable(capability: str) -> bool:
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise ValueError(f"is_capable: unknown capability {capability!r}")

    def init(self, key: Keys, value: Values) -> None:
        """Sets the first values of keys; each key can be initialized once."""
        raise NotImplementedError

    def push(self, key: Keys, value: Values, priority: int = 0) -> None:
        """Sums the arrays of all devices for a key and updates its value."""
        raise NotImplementedError

    def pull(
        self, key: Keys, out: Values | None = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copies values into `out`."""
        raise NotImplementedError

    def pushpull(
        self, key: Keys, value: Values, out: Values | None = None, priority: int = 0
    ) -> None:
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority, ignore_sparse=False)

    def broadcast(self, key: Keys, value: Values, out: Values, priority: int = 0) -> None:
        self.init(key, value)
        self.pull(key, out, priority, ignore_sparse=False)


class KVStore(OptimizingStore):
    """A store of values by key in this process. Keys are all int or all str.

    Examples
    --------
    >>> store = mx.kv.create("local")
    >>> store.init("a", nd.zeros(2))
    >>> store.push("a", [nd.ones(2), nd.ones(2)])
    >>> out = nd.empty(2)
    >>> store.pull("a", out=out)
    >>> out.asnumpy()
    array([2., 2.], dtype=float32)
    """

    def __init__(self, kind: str = "local") -> None:
        self._kind = kind
        self._values = {}
        self._updater = None
        self._key_type = None

    def __repr__(self) -> str:
        keys = f"{len(self._values)} key{'' if len(self._values) == 1 else 's'}"
        updated = ", values are updated" if self._updater is not None else ""
        return f"{type(self).__name__}({self._kind!r}, {keys}{updated})"

    def _check_key(self, key, new):
        kind = str if isinstance(key, str) else int
        if not isinstance(key, (int, str)):
            raise MXNetError(f"KVStore: a key must be an int or a str, not {type(key).__name__}")
        if self._key_type not in (None, kind):
            raise MXNetError(
                f"KVStore: the keys of this store must be {self._key_type.__name__}, got {key!r}"
            )
        if new and key in self._values:
            raise MXNetError(f"KVStore: the key {key!r} already has a value")
        if not new and key not in self._values:
            raise MXNetError(f"KVStore: the key {key!r} has no value; call init first")
        self._key_type = kind

    def init(self, key: Keys, value: Values) -> None:
        """Sets the initial values of keys to copies on the arrays' devices. Each key can be
        initialized once."""
        pairs = pairs_of(key, value, "init")
        for one, _ in pairs:
            self._check_key(one, True)
        values = self._first_values([arrays[0] for _, arrays in pairs])
        self._values.update(zip((one for one, _ in pairs), values))

    def push(self, key: Keys, value: Values, priority: int = 0) -> None:
        """Sums the arrays of a key. The sum replaces the value, or the updater applies it.

        Parameters
        ----------
        key : int or str, or list of them
            The key, or a list of keys.
        value : NDArray, or list of NDArray for several devices; for a list of keys a list of these
            The value of each key, or a list of arrays to add up.
        priority : int
            Accepted for compatibility with MXNet; ignored.
        """
        keys, totals = [], []
        for one, arrays in pairs_of(key, value, "push"):
            self._check_key(one, False)
            stored = self._values[one]
            if any(array.shape != stored.shape for array in arrays):
                raise MXNetError(
                    f"push: the value of {one!r} has shape {stored.shape}, but the pushed "
                    f"arrays have shapes {[array.shape for array in arrays]}"
                )
            keys.append(one)
            totals.append(sum_on(stored.context, arrays))
        for one, total in zip(keys, self._sums(keys, totals)):
            if self._updater is None:
                self._values[one] = total
            else:
                self._updater(one, total, self._values[one])

    def _first_values(self, arrays):
        """Returns copies of the arrays, for `init`."""
        return [array.copy() for array in arrays]

    def _sums(self, keys, arrays):
        """Returns the sums to push for the keys. In subclasses, the sums include other ranks."""
        return arrays

    def pull(
        self, key: Keys, out: Values | None = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copies values into `out`.

        `out` is an NDArray, or a list of them on several devices; for a list of keys it is a list
        of these. Sparse arrays are skipped if `ignore_sparse`.
        """
        if out is None:
            raise AssertionError("pull: the arrays to copy into (out=) must be given")
        for one, arrays in pairs_of(key, out, "pull"):
            self._check_key(one, False)
            for array in arrays:
                if not ignore_sparse or array.stype == "default":
                    self._values[one].copyto(array)

    def row_sparse_pull(
        self, key: Keys, out: Values | None = None, priority: int = 0, row_ids: Arrays | None = None
    ) -> None:
        """Copies rows of values into row_sparse arrays.

        Parameters
        ----------
        key : int or str, or list of them
            The key, or a list of keys.
        out : RowSparseNDArray, list of them for several devices; for a list of keys a list of these
            The arrays that receive the rows; their other rows become 0.
        priority : int
            Accepted for compatibility with MXNet; ignored.
        row_ids : NDArray, or list of NDArray
            Row indices, in any order: one array for all of `out`, or one for each.

        Examples
        --------
        >>> store = mx.kv.create("local")
        >>> store.init("a", nd.ones((4, 2)).tostype("row_sparse"))
        >>> out = nd.zeros((4, 2), stype="row_sparse")
        >>> store.row_sparse_pull("a", out=out, row_ids=nd.array([3, 1]))
        >>> out.indices.asnumpy()
        array([1, 3])
        """
        for one, wanted in rows_wanted(key, out, row_ids):
            self._check_key(one, False)
            stored = self._values[one]
            for array, numbers in wanted:
                if array.stype != "row_sparse" or stored.stype != "row_sparse":
                    raise MXNetError(
                        f"row_sparse_pull: {one!r} is stored as {stored.stype} and copied into "
                        f"an array of {array.stype}; both must be row_sparse"
                    )
                array[:] = stored.retain(numbers).as_in_context(array.context)

    def set_gradient_compression(self, compression_params: dict[str, Any] | None) -> None:
        """Rejects any type but 'none' with MXNetError: this store has nothing to compress."""
        if (compression_params or {}).get("type", "none") != "none":
            raise MXNetError(
                f"set_gradient_compression: the store {self._kind!r} works in one process and "
                "does not support compression"
            )

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Makes pushed gradients update the values with the optimizer."""
        self._set_updater(optimizers.get_updater(optimizer))

    def _set_updater(self, updater):
        """Makes every push call ``updater(key, pushed, value)``."""
        self._updater = updater

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        if not isinstance(self._updater, optimizers.Updater):
            raise AssertionError("save_optimizer_states: the store has no optimizer")
        write_file(fname, self._updater.get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str, trusted: bool = False) -> None:
        if not isinstance(self._updater, optimizers.Updater):
            raise AssertionError("load_optimizer_states: the store has no optimizer")
        with open_regular(fname) as file:
            try:
                self._updater.set_states(file.read(), trusted)
            except MXNetError as error:
                raise MXNetError(f"{fname}: {error}") from None


@KVStoreBase.register
class TestStore(KVStoreBase):
    """A store without values: `pushpull` sums over devices, and `broadcast` copies."""

    __test__ = False  # tells pytest that this is not a test case

    def broadcast(self, key: Keys, value: Values, out: Values, priority: int = 0) -> None:
        first = arrays_of(value, "broadcast")[0]
        for array in arrays_of(out, "broadcast"):
            if array is not first:
                first.copyto(array)

    def pushpull(
        self, key: Keys, value: Values, out: Values | None = None, priority: int = 0
    ) -> None:
        arrays = arrays_of(value, "pushpull")
        total = sum_on(arrays[0].context, arrays)
        for array in arrays if out is None else arrays_of(out, "pushpull"):
            total.copyto(array)

    @staticmethod
    def is_capable(capability: str) -> bool:
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise ValueError(f"is_capable: unknown capability {capability!r}")

    @property
    def type(self) -> str:
        return "teststore"


class KVStoreServer:
    """MXNet's name for a server process; its `run` raises NotSupportedError.

    In mpgluon the servers of 'dist_async' start when the program calls `create`.

    Examples
    --------
    >>> try:
    ...     mx.kvstore.KVStoreServer(mx.kv.create("local")).run()
    ... except mx.base.NotSupportedError as error:
    ...     print(error)
    KVStoreServer: a server is started by mx.kv.create('dist_async'), not by this class
    """

    def __init__(self, kvstore: KVStore) -> None:
        self.kvstore: KVStore = kvstore

    def run(self) -> NoReturn:
        """Always raises NotSupportedError."""
        raise NotSupportedError(
            "KVStoreServer: a server is started by mx.kv.create('dist_async'), not by this class"
        )


def check_name(name: str) -> None:
    """Checks that a kind of store has the name; raises MXNetError otherwise."""
    if name.lower() not in (*KVStoreBase.kv_registry, *_KINDS, *_OF_RANKS, *_OF_SERVERS):
        create(name)


def is_of_ranks(store: Any) -> bool:
    """True if a store, or the kind of store with that name, has its values on all ranks."""
    return (
        store.lower() in _OF_RANKS
        if isinstance(store, str)
        else bool(isinstance(store, KVStoreBase) and store.spans_ranks)
    )


def show(store: KVStore, updater: Any, values: Any) -> None:
    """Makes a store expose a trainer's updater, and its values by index."""
    store._updater, store._values, store._key_type = updater, values, int


def create(name: str = "local") -> KVStoreBase | Any:
    """Creates a store by name; raises MXNetError for an unknown one.

    'local', 'device' and their variants are stores of this process. 'dist_sync' and its variants
    are shared by all ranks (``mpirun``). 'dist_async' uses servers. Registered stores have their
    own names.

    For 'dist_async' the last ranks are servers: one, or the number in the environment variable
    ``DMLC_NUM_SERVER``. On a server the call does not return: it keeps the values until all other
    ranks have ended, and then ends the process (SystemExit).

    Examples
    --------
    >>> mx.kv.create("local").type
    'local'
    """
    if not isinstance(name, str):
        raise TypeError(f"create: the name of a store must be a str, not {type(name).__name__}")
    kind = name.lower()
    if kind in KVStoreBase.kv_registry:
        return KVStoreBase.kv_registry[kind]()
    if kind in _KINDS:
        return KVStore(name)
    if kind in _OF_RANKS:
        from ._internal.ranks.store import DistKVStore

        return DistKVStore(name)
    if kind in _OF_SERVERS:
        from ._internal.ranks import servers

        return servers.create(name)
    if kind.startswith(_SPANNING):
        raise MXNetError(
            f"create: unknown store {name!r}; across machines (mpirun) use 'dist_sync', whose "
            "values are on all ranks, or 'dist_async', whose values are on servers"
        )
    known = (*_KINDS, *_OF_RANKS, *_OF_SERVERS, *KVStoreBase.kv_registry)
    raise MXNetValueError(
        f"create: unknown store {name!r}{near(name, known)}; expected one of {', '.join(known)}"
    )


def set_updater(store: KVStore, updater: Callable[[Any, Any, Any], Any]) -> None:
    """Makes a store apply pushed gradients with ``updater(key, gradient, weight)``."""
    store._set_updater(updater)
