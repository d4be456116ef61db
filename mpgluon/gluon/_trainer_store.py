"""Key-value stores of trainers.

If a store is given by name or is one of this package's own, the trainer does the store's work: it
sums, updates and copies many parameters at once, and the store gives access to the results. Stores
of the user's own classes (`KVStoreBase`) are called for each parameter.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from .. import kvstore as kvstores, ndarray as nd
from .._core import at_once
from .._internal.hints import OptionsChecked
from .._internal.ranks.own_arrays import add_up
from ..base import MXNetAssertionError, MXNetError
from ..model import create_kvstore, create_sparse_kvstore
from ..ndarray import NDArray
from ..optimizer import Updater
from ._values_of_ranks import take_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..context import Context
    from ..kvstore import KVStoreBase
    from ..optimizer.optimizer import Optimizer
    from .parameter import Parameter
    from .trainer import Trainer

NO_STATE = object()


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

    def __init__(self, trainer):
        self._trainer = trainer
        self.states_synced = {}

    @property
    def optimizer(self) -> Optimizer:
        return self._trainer.optimizer

    @property
    def states(self) -> dict[int, Any]:
        return self._trainer.all_states()

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        first = weight[0] if isinstance(weight, (list, tuple)) else weight
        self._trainer.updater_on(first.context)(index, grad, weight)

    def set_states(self, states: bytes, trusted: bool = False) -> None:
        read = Updater(self._trainer.optimizer)
        read.set_states(states, trusted)
        self._trainer.replace_states(read.states)


class TrainerStore(OptionsChecked):
    """The part of `Trainer` that manages its store, with MXNet's names."""

    _params: list[Parameter]
    _optimizer: Optimizer

    def _choose_store(
        self, kvstore: Any, compression_params: Any, update_on_kvstore: bool | None
    ) -> None:
        """Records the constructor's choice. The store itself is created on first use."""
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
        self._compression_params = compression_params
        self._kvstore_params = {
            "kvstore": kvstore or None,
            "update_on_kvstore": update_on_kvstore,
        }
        self._distributed: bool | None = None
        self._forget_store()

    def _forget_store(self) -> None:
        self._kv_initialized = False
        self._kvstore: KVStoreBase | None = None
        self._update_on_kvstore: bool | None = None
        self._called_store: Any = None  # a store of a user's class
        self._store_of_ranks: Any = None  # a distributed store, such as 'dist_sync'
        self._params_left = list(self._params)  # parameters that the store does not have yet

    def _reset_kvstore(self) -> None:
        if self._distributed:
            raise RuntimeError("Cannot reset distributed KVStore.")
        self._forget_store()

    @property
    def _contexts(self) -> list[Context]:
        """The devices of the parameters."""
        return list(dict.fromkeys(ctx for param in self._params for ctx in param.list_ctx()))

    def _check_contexts(self) -> list[Context]:
        return self._contexts

    @property
    def _updaters(self) -> list[Updater]:
        """Updaters of the copies on each device of `_contexts`, with their states."""
        return [self._brought(ctx) for ctx in self._contexts]

    @property
    def _params_to_init(self) -> list[Parameter]:
        """Parameters that the store does not have yet."""
        if (self._called_store or self._store_of_ranks) is not None or not self._kv_initialized:
            return self._params_left
        return [] if self._kvstore is None else [p for p in self._params if p.arrays is None]

    @property
    def _contains_sparse_weight(self) -> bool:
        return any(param.stype != "default" for param in self._params)

    @property
    def _contains_sparse_grad(self) -> bool:
        return any(param.grad_stype != "default" for param in self._params)

    def _init_kvstore(self, update: bool | None = None) -> None:
        """Creates the store and decides where updates run, as MXNet does. `update` is the default
        if the user did not choose `update_on_kvstore`."""
        kvstore = self._kvstore_params["kvstore"]
        wanted = self._kvstore_params["update_on_kvstore"]
        number = max((len(param.list_ctx()) for param in self._params), default=1)
        if self._contains_sparse_weight:
            store, on_store = create_sparse_kvstore(kvstore)
            if wanted is False:
                raise ValueError(
                    "Trainer: parameters with row_sparse storage are updated on the kvstore; "
                    "update_on_kvstore must not be False"
                )
        else:
            shapes = [param.shape or () for param in self._params]
            store, on_store = create_kvstore(kvstore, number, shapes)
            sparse = self._contains_sparse_grad
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
        if store is not None and self._compression_params:
            store.set_gradient_compression(self._compression_params)
        sparse = self._contains_sparse_weight or self._contains_sparse_grad
        of_ranks = store is not None and store.spans_ranks
        own = type(store) is kvstores.KVStore or (sparse and isinstance(store, kvstores.KVStore))
        called = store is not None and not own
        # The store keeps no copies: gradients are summed in place, and each rank updates.
        if of_ranks:
            called = on_store = False
        if called and on_store:
            for index in range(len(self._params)):
                self._optimizer.refuse_part(index)
            store.set_optimizer(self._optimizer)
        elif store is not None and not called:
            kvstores.show(store, _StoreUpdater(self) if on_store else None, _Weights(self._params))
        self._kvstore = store
        self._update_on_kvstore = None if store is None else bool(on_store)
        self._called_store = store if called else None
        self._store_of_ranks = store if of_ranks else None
        self._distributed = store is not None and "dist" in store.type
        self._check_plan()
        self._kv_initialized = True

    def _init_params(self) -> None:
        """Gives the store the parameters whose arrays exist now."""
        if not self._kv_initialized:
            raise MXNetAssertionError("Trainer: the kvstore is not initialized yet")
        if self._store_of_ranks is not None:
            self._take_first_values()
            return
        if self._called_store is None:
            return
        left = []
        for param in self._params_left:
            if param.arrays is None:
                left.append(param)
                continue
            arrays = list(param.arrays.values())
            self._called_store.broadcast(self._number(param), arrays[0], arrays)
        self._params_left = left

    def _take_first_values(self) -> None:
        """Copies rank 0's values to all ranks. Parameters with unknown shapes remain pending."""
        what = f"Trainer(kvstore={self._store_of_ranks.type!r})"
        self._params_left = take_values(0, self._params_left, what)

    def _sum_over_ranks(self, plan: Any) -> None:
        """Sums over all ranks the gradients that each rank has summed over its devices."""
        params = [self._params[index] for index in plan.owners]
        grads = [param.gradients[ctx] for param, ctx in zip(params, plan.owners.values())]
        totals = self._store_of_ranks.add_up(list(plan.owners), grads, in_place=True)
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
            (total,) = self._store_of_ranks.add_up([index], [first])
            for grad in grads:
                grad[:] = total.as_in_context(grad.context)
                grad.mark(bool(fresh))

    def _number(self, parameter: Parameter) -> int:
        return next(index for index, one in enumerate(self._params) if one is parameter)

    def _ready(self, update: bool | None = None) -> None:
        """Creates the store if it does not exist yet, and gives it the remaining parameters."""
        if not self._kv_initialized:
            self._init_kvstore(update)
        if self._params_left and (self._called_store or self._store_of_ranks) is not None:
            self._init_params()

    def _refuse_on_store(self, method: str) -> None:
        if self._update_on_kvstore:
            raise MXNetAssertionError(
                f"Trainer: {method}() cannot be called if the kvstore updates parameters; "
                "create the Trainer with update_on_kvstore=False"
            )

    def _sum_in_store(self) -> None:
        """Sums gradients in the user's store, which also updates parameters if it has an
        optimizer."""
        for index, param in enumerate(self._params):
            if param.grad_req != "null":
                out = param.list_data() if self._update_on_kvstore else None
                self._called_store.pushpull(index, param.list_grad(), out=out, priority=-index)

    def _row_sparse_pull(
        self, parameter: Parameter, out: Any, row_id: NDArray, full_idx: bool = False
    ) -> None:
        """Copies rows of a parameter into row_sparse arrays."""
        self._ready()
        for array in [out] if not isinstance(out, (list, tuple)) else out:
            ctx = array.context if array.context in parameter.list_ctx() else None
            rows = parameter.rows_on(row_id, ctx or parameter.list_ctx()[0])
            array[:] = rows.as_in_context(array.context)

    def notice(self, param: Parameter) -> None:
        """Must be called before a parameter's value is replaced. Resets a store that holds the
        parameter."""
        if self._update_on_kvstore and not any(param is left for left in self._params_to_init):
            self._reset_kvstore()


def unique_names(params: list[Parameter], paths: dict[int, str], owner: type[Trainer]) -> list[str]:
    """Returns a unique name for each parameter: its own name, or, if several share it, its path in
    the block or a number. `paths` has the paths by the parameters' ids."""
    if len(set(map(id, params))) < len(params):
        twice = next(p for i, p in enumerate(params) if any(p is other for other in params[:i]))
        raise ValueError(f"{owner.__name__}: the parameter '{twice.name}' is given twice")
    seen: dict[str, int] = {}
    for param in params:
        seen[param.name] = seen.get(param.name, 0) + 1
    names, number = [], {}
    for param in params:
        if seen[param.name] == 1:
            names.append(param.name)
            continue
        number[param.name] = number.get(param.name, -1) + 1
        names.append(paths.get(id(param), f"{param.name}#{number[param.name]}"))
    if len(set(names)) < len(names):
        name = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{owner.__name__}: two parameters are called '{name}'")
    return names
