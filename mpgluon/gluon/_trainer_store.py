"""Key-value stores of trainers.

If a store is given by name or has a class of this package, the trainer itself sums, updates and
copies many parameters at once, and the store only gives access to the results. A store of a user's
class (`KVStoreBase`) is called for each parameter.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from .. import kvstore as kvstores, ndarray as nd
from .._core import at_once
from .._internal.ranks.own_arrays import add_up
from ..base import MXNetAssertionError, MXNetError
from ..model import create_kvstore, create_sparse_kvstore
from ..ndarray import NDArray
from ..optimizer import Updater
from ._values_of_ranks import take_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..kvstore import KVStoreBase
    from ..optimizer.optimizer import Optimizer
    from ._trainer_state import TrainerState
    from .parameter import Parameter


class _Weights(MutableMapping):
    """The values of a store: parameters by index."""

    def __init__(self, params):
        self._params = params

    def __getitem__(self, index: int) -> NDArray:
        param = self._params[index] if isinstance(index, int) else None
        if param is None or param.arrays is None:
            raise KeyError(index)
        return next(iter(param.arrays.values()))

    def __setitem__(self, index: int, value: NDArray) -> None:
        self._params[index].set_data(value)

    def __delitem__(self, index: int) -> None:
        raise MXNetError(
            "KVStore: the store of a Trainer cannot be replaced, because it holds the parameters"
        )

    def __iter__(self) -> Iterator[int]:
        return (index for index, param in enumerate(self._params) if param.arrays is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _StoreUpdater(Updater):
    """The updater of a store, with access to the trainer's states on all devices."""

    def __init__(self, state):
        self._state = state
        self.states_synced = {}

    @property
    def optimizer(self) -> Optimizer:
        return self._state.optimizer

    @property
    def states(self) -> dict[int, Any]:
        return self._state.all_states()

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        first = weight[0] if isinstance(weight, (list, tuple)) else weight
        if self._state.home(first.context) != first.context:
            raise MXNetError(
                "KVStore: the optimizer's states of this Trainer are offloaded, so its store "
                "cannot update an array; call trainer.step"
            )
        self._state.updater(first.context)(index, grad, weight)

    def set_states(self, states: bytes, trusted: bool = False) -> None:
        read = Updater(self._state.optimizer)
        read.set_states(states, trusted)
        self._state.replace_states(read.states)


class TrainerStore:
    """The store of a trainer, which is created on first use, and the sums and updates that involve
    the store.

    `called` is the store if it is of a user's class, and `of_ranks` if it spans ranks.
    """

    def __init__(
        self,
        state: TrainerState,
        kvstore: Any,
        compression_params: Any,
        update_on_kvstore: bool | None,
    ) -> None:
        if isinstance(kvstore, str) and kvstore:
            kvstores.check_name(kvstore)
        elif kvstore not in (None, "") and not isinstance(kvstore, kvstores.KVStoreBase):
            raise TypeError(
                "Trainer: kvstore must be the name of a store, a store or None, not "
                f"{type(kvstore).__name__}"
            )
        of_ranks = kvstores.is_of_ranks(kvstore)
        own = isinstance(kvstore, (str, kvstores.KVStore)) and not of_ranks
        if (compression_params or {}).get("type", "none") != "none" and own:
            raise ValueError("Trainer: gradient compression is not available")
        self._state = state
        self.compression_params = compression_params
        self.choice = {"kvstore": kvstore or None, "update_on_kvstore": update_on_kvstore}
        self.distributed: bool | None = None
        self._forget()

    def _forget(self) -> None:
        self.created = False
        self.kvstore: KVStoreBase | None = None
        self.updates: bool | None = None  # True if the store runs the optimizer
        self.called: Any = None
        self.of_ranks: Any = None
        self.left = list(self._state.params)  # parameters that the store does not have yet

    def reset(self) -> None:
        """Discards the store. The next use creates another one."""
        if self.distributed:
            raise RuntimeError("Cannot reset distributed KVStore.")
        self._forget()

    @property
    def pending(self) -> list[Parameter]:
        """Parameters that the store does not have yet."""
        if (self.called or self.of_ranks) is not None or not self.created:
            return self.left
        return [] if self.kvstore is None else [p for p in self._state.params if p.arrays is None]

    @property
    def has_sparse_weight(self) -> bool:
        return any(param.stype != "default" for param in self._state.params)

    @property
    def has_sparse_gradient(self) -> bool:
        return any(param.grad_stype != "default" for param in self._state.params)

    def create(self, update: bool | None = None) -> None:
        """Creates the store and decides where updates run, as MXNet does. `update` is the default
        if the user did not choose `update_on_kvstore`."""
        kvstore = self.choice["kvstore"]
        wanted = self.choice["update_on_kvstore"]
        number = max((len(param.list_ctx()) for param in self._state.params), default=1)
        if self.has_sparse_weight:
            store, on_store = create_sparse_kvstore(kvstore)
            if wanted is False:
                raise ValueError(
                    "Trainer: parameters with row_sparse storage are updated on the kvstore; "
                    "update_on_kvstore must not be False"
                )
        else:
            shapes = [param.shape or () for param in self._state.params]
            store, on_store = create_kvstore(kvstore, number, shapes)
            sparse = self.has_sparse_gradient
            served = store is not None and store.needs_optimizer
            own = served or store is None or isinstance(store, kvstores.KVStore)
            if sparse and not own:
                raise ValueError(
                    "Trainer: row_sparse gradients cannot be sent through a "
                    f"{type(store).__name__}; use a named kvstore, such as 'device'"
                )
            asked = wanted if wanted is not None else False if sparse and not served else update
            on_store = on_store if asked is None else asked
            if on_store and store is not None:
                on_store = store.is_capable(kvstores.KVStoreBase.OPTIMIZER)
                if not on_store and wanted:
                    raise ValueError(
                        f"Trainer: a {type(store).__name__} has no optimizer; set "
                        "update_on_kvstore=False"
                    )
        if store is not None and store.needs_optimizer and not on_store:
            raise ValueError(
                f"Trainer: the servers of {store.type!r} update parameters; remove "
                "update_on_kvstore=False, and call step instead of allreduce_grads and update"
            )
        if store is not None and self.compression_params:
            store.set_gradient_compression(self.compression_params)
        sparse = self.has_sparse_weight or self.has_sparse_gradient
        of_ranks = store is not None and store.spans_ranks
        own = type(store) is kvstores.KVStore or (sparse and isinstance(store, kvstores.KVStore))
        called = store is not None and not own
        # The store keeps no copies of the parameters. Gradients are summed in place, and each rank
        # runs the updates.
        if of_ranks:
            called = on_store = False
        if called and on_store and self._state.offload is not None:
            raise ValueError(
                f"Trainer: states cannot be offloaded if a {type(store).__name__} runs the "
                "optimizer; use a named kvstore, such as 'device', or update_on_kvstore=False"
            )
        if called and on_store:
            for index in range(len(self._state.params)):
                self._state.optimizer.of(index).refuse_part(index)
            store.set_optimizer(self._state.optimizer)
        elif store is not None and not called:
            updater = _StoreUpdater(self._state) if on_store else None
            kvstores.show(store, updater, _Weights(self._state.params))
        self.kvstore = store
        self.updates = None if store is None else bool(on_store)
        self.called = store if called else None
        self.of_ranks = store if of_ranks else None
        self.distributed = store is not None and "dist" in store.type
        self.created = True

    def add_parameters(self) -> None:
        """Gives the store the parameters whose arrays exist now. Between ranks, copies rank 0's
        values to all ranks."""
        if not self.created:
            raise MXNetAssertionError("Trainer: the kvstore is not initialized yet")
        if self.of_ranks is not None:
            what = f"Trainer(kvstore={self.of_ranks.type!r})"
            self.left = take_values(0, self.left, what)
            return
        if self.called is None:
            return
        left = []
        for param in self.left:
            if param.arrays is None:
                left.append(param)
                continue
            arrays = list(param.arrays.values())
            index = next(i for i, one in enumerate(self._state.params) if one is param)
            self.called.broadcast(index, arrays[0], arrays)
        self.left = left

    def sum_over_ranks(self, plan: Any) -> None:
        """Sums over all ranks the gradients that each rank has summed over its devices."""
        params = [self._state.params[index] for index in plan.owners]
        grads = [param.gradients[ctx] for param, ctx in zip(params, plan.owners.values())]
        totals = self.of_ranks.add_up(list(plan.owners), grads, in_place=True)
        at_once(
            *[
                (total.copyto, grad)
                for param, total in zip(params, totals)
                for grad in param.gradients.values()
                if grad is not total
            ]
        )
        for index, param in plan.sparse:
            first, *_ = grads = list(param.gradients.values())
            fresh = add_up([nd.array([float(any(grad.fresh for grad in grads))])])[0].asscalar()
            (total,) = self.of_ranks.add_up([index], [first])
            for grad in grads:
                grad[:] = total.as_in_context(grad.context)
                grad.mark(bool(fresh))

    def refuse(self, method: str) -> None:
        """Raises AssertionError if the store updates parameters."""
        if self.updates:
            raise MXNetAssertionError(
                f"Trainer: {method}() cannot be called if the kvstore updates parameters; "
                "create the Trainer with update_on_kvstore=False"
            )

    def sum_in_called(self) -> None:
        """Sums gradients in the user's store, which also updates parameters if it has an
        optimizer."""
        for index, param in enumerate(self._state.params):
            if param.grad_req != "null":
                out = param.list_data() if self.updates else None
                self.called.pushpull(index, param.list_grad(), out=out, priority=-index)
