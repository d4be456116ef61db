"""The trainer, which applies an optimizer to parameters on any devices."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from .. import _core, autograd, kvstore as kvstores, optimizer as opt
from .._internal.hints import TRAINER, OptionsChecked, absent, present
from ..base import MXNetAssertionError
from ..optimizer._lazy import sum_rows
from ._offload import Offload
from ._trainer_groups import Given
from ._trainer_state import TrainerState, unique_names
from ._trainer_store import TrainerStore
from ._update import clip, ended, equalize, overflows, update
from ._update_plan import Plan
from .parameter._gradient_contents import changes_to
from .parameter._parameter import parameter_changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .._internal.types import NDArray
    from ..kvstore import KVStoreBase
    from ..optimizer._parameter_groups import ParameterGroup
    from ..optimizer.optimizer import Optimizer
    from .block import Block
    from .parameter import Parameter, ParameterDict

__all__ = ["Trainer"]


def _attribute_of(member: str, name: str) -> Any:
    """Returns a property for the attribute `name` of a member object."""

    def get(self):
        return getattr(getattr(self, member), name)

    def set(self, value):
        setattr(getattr(self, member), name, value)

    return property(get, set)


class Trainer(OptionsChecked):
    """Applies an optimizer to parameters. One trainer updates all parameters of a model, on any
    devices.

    Each parameter is on one device or replicated on several. Gradients of replicas are summed in
    the order of the parameter's devices, and all replicas stay bitwise equal. (Between several
    GPUs, NCCL sums in its own order, see `mx.parallel.collectives.transport`.) Small gradients are
    bucketed, and buckets are balanced over the replicas. Updates run asynchronously on each
    parameter's device, many parameters at once.

    Parameters
    ----------
    params : Block, ParameterDict, dict or list of Parameter, or list of dict
        Parameters to update. Each must be initialized, possibly deferred. A list of dicts defines
        parameter groups, see `param_groups`.
    optimizer : str or Optimizer
        The optimizer, or its name, such as ``'adam'``. An Optimizer object belongs to one trainer;
        another trainer with other parameters warns.
    optimizer_params : dict, optional
        Arguments of the optimizer: ``{'learning_rate': 0.1}``.
    kvstore : str, KVStoreBase or None, default 'device'
        Within one process, all names select the same sum. With 'dist_sync' and 'dist_device_sync',
        each rank (``mpirun``) has a copy of all parameters on its own devices, initially with rank
        0's values; gradients are also summed over ranks, in place, whatever the value of
        `update_on_kvstore`. With 'dist_async', servers update each parameter by each worker's
        gradient as it arrives. A store of a user's class is called for each parameter.
    compression_params : dict, optional
        For distributed stores, ``{'type': '2bit', 'threshold': 0.5}``; also passed to a user's
        store.
    update_on_kvstore : bool, optional
        If True, `step` sums into separate arrays, updates each replicated parameter on one device
        and copies it to the others. Gradients are not changed, and `allreduce_grads` and `update`
        raise AssertionError. If False, gradients are summed in place, and each copy is updated. By
        default, the first call decides: `step` selects True if a parameter has replicas.
    shard_updates : bool, default False
        Whether to update each replicated parameter on only one of its devices and copy the new
        weights to the others. Optimizer states then exist once instead of once for each replica.
        The results are bit-identical.
    accumulate : int, default 1
        Number of calls of `step` for each update. Until the update, gradients accumulate on their
        devices, and replicas are not summed. Parameters whose `grad_req` is 'write' are set to
        'add', and their gradients are reset to zero after an update. The batch size is the sum over
        these calls.
    clip_global_norm : float, optional
        Before each update, scales the gradients so that their joint 2-norm, divided by the batch
        size, is at most this value. Asynchronous. Replicas are counted once.
    offload : dict, optional
        Devices of the optimizer's states: ``{'states': mx.cpu(1)}``, or a dict from the devices of
        parameters to the devices of their states, ``{'states': {mx.gpu(0): mx.cpu_pinned(0)}}``. A
        path to a directory in place of a device stores the states in temporary files there
        (`context.file_device`).
        Updates run where the states are. Gradients are copied there as soon as they are final, and
        the new weights back. Replicated parameters are updated once, as with `shard_updates`. The
        results are bit-identical if both devices compute the same bits, as CPU devices do.

    Raises
    ------
    ValueError
        If `params` are not parameters, two have the same name, a parameter is in two groups, or an
        option is invalid.
    MXNetError
        If a parameter was never initialized.

    Examples
    --------
    >>> net = nn.Dense(1, in_units=2)
    >>> net.initialize("ones")
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    >>> with mx.autograd.record():
    ...     loss = net(nd.ones((4, 2))).sum()
    ...
    >>> loss.backward()
    >>> trainer.step(batch_size=4)
    >>> net.weight.data().asnumpy().tolist()
    [[0.5, 0.5]]
    """

    def __init__(
        self,
        params: Block
        | ParameterDict
        | Mapping[str, Parameter]
        | Sequence[Parameter]
        | Sequence[Mapping[str, Any]],
        optimizer: str | Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: str | KVStoreBase | None = "device",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
        shard_updates: bool = False,
        accumulate: int = 1,
        clip_global_norm: float | None = None,
        offload: Mapping[str, Any] | None = None,
    ) -> None:
        given = Given(params)
        params = given.params
        if not params:
            warnings.warn(
                "Trainer: params is empty; net.collect_params() returns the parameters of a "
                "whole network, net.params only the block's own",
                stacklevel=2,
            )
        self._state = TrainerState(params, unique_names(params, given.paths), accumulate)
        self._store = TrainerStore(self._state, kvstore, compression_params, update_on_kvstore)
        if not isinstance(accumulate, int) or accumulate < 1:
            raise ValueError(f"Trainer: accumulate must be a positive integer, not {accumulate!r}")
        if clip_global_norm is not None and not clip_global_norm > 0:
            raise ValueError(
                f"Trainer: clip_global_norm must be positive, not {clip_global_norm!r}"
            )
        self._shard_updates, self._max_norm = bool(shard_updates), clip_global_norm
        if offload is not None:
            self._state.offload = Offload(offload)
            self._state.offload.check(params)
        self._init_optimizer(optimizer, optimizer_params or {})
        own = None if isinstance(optimizer, opt.Optimizer) else optimizer_params or {}
        given.add_groups(self._optimizer, own)
        self._groups = given.as_dicts(self._optimizer)
        self._scale = self._optimizer.rescale_grad
        for param in params:
            param.list_ctx()  # raises an error if the parameter was never initialized
            param.set_trainer(self)
            if accumulate > 1 and param.grad_req == "write":
                param.grad_req = "add"
        if accumulate > 1:  # clear sums that were accumulated before this trainer
            _core.at_once(*[change for p in params for change in changes_to(p, None)])
        if kvstores.is_of_ranks(kvstore):
            self._ready()  # all ranks start with the values of rank 0

    def _init_optimizer(self, optimizer, optimizer_params):
        by_index = dict(enumerate(self._params))
        if isinstance(optimizer, opt.Optimizer):
            if optimizer_params:
                raise MXNetAssertionError(
                    "optimizer_params must be None if optimizer is an instance of Optimizer "
                    "instead of str"
                )
            if optimizer.param_dict and optimizer.param_dict != by_index:
                warnings.warn(
                    "Trainer: this optimizer already belongs to other parameters, whose "
                    "multipliers and update counts it now mixes with those of this Trainer; "
                    "create an optimizer for each Trainer",
                    stacklevel=3,
                )
            self._optimizer = optimizer
            self._optimizer.param_dict = by_index
        else:
            self._optimizer = opt.create(optimizer, param_dict=by_index, **optimizer_params)
        self._optimizer.idx2name = dict(enumerate(self._state.names))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "Trainer: it cannot be pickled or copied, because it holds its parameters' arrays "
            "on devices; save its state with trainer.save_states(file) or "
            "mx.parallel.save(folder, net, trainer), and load it into a new Trainer"
        )

    def __dir__(self) -> list[str]:
        return present(self, super().__dir__())

    def __repr__(self) -> str:
        devices = dict.fromkeys(str(ctx) for param in self._params for ctx in param.list_ctx())
        states = "" if self._state.offload is None else f", states on {self._state.offload}"
        return (
            f"Trainer({self._optimizer!r}, parameters: {len(self._params)}, on "
            f"{', '.join(devices)}{states})"
        )

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters, in the order of their indices in the optimizer."""
        return self._params

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return self._optimizer

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """The parameter groups: dicts with the options that each group uses.

        A trainer is given groups as a list of dicts. ``'params'`` is a block, a parameter, or a
        dict or iterable of parameters. ``'lr'`` (or ``'learning_rate'``), ``'weight_decay'`` (or
        ``'wd'``) and other options of the optimizer take precedence over `optimizer_params`.
        ``'optimizer'`` names another optimizer for a group, which then inherits only
        `multi_precision` and `clip_gradient`. Parameters that are in no group are not updated.
        Without groups, the list has one dict.

        Assigning an option changes the next update, as in ``trainer.param_groups[0]['lr'] = 0.1``.
        An `lr_scheduler` changes the rates of all groups in proportion: a group's rate is
        ``lr_scheduler(num_update) * initial_lr / base_lr``, where ``'initial_lr'`` is the group's
        own rate. `lr_mult` and `wd_mult` of parameters multiply the options of their groups.

        Examples
        --------
        >>> net = nn.Dense(1, in_units=2)
        >>> net.initialize()
        >>> groups = [
        ...     {"params": net.collect_params(".*weight")},
        ...     {"params": net.collect_params(".*bias"), "weight_decay": 0},
        ... ]
        >>> trainer = gluon.Trainer(groups, "adamw", {"learning_rate": 0.001, "wd": 0.1})
        >>> [group["weight_decay"] for group in trainer.param_groups]
        [0.1, 0]
        """
        return self._groups

    @property
    def learning_rate(self) -> float:
        """The current learning rate, to which those of parameter groups are in proportion."""
        return self._optimizer.learning_rate

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate, and those of parameter groups in proportion. Raises an error if a
        scheduler controls it."""
        self._optimizer.set_learning_rate(lr)

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Sums the gradients of replicas and updates all parameters. Call it after ``backward``,
        outside ``record``.

        Parameters
        ----------
        batch_size : int
            Divisor for the gradients; 1 if the loss is already a mean.
        ignore_stale_grad : bool, default False
            Whether to skip parameters whose gradient backward has not written since the last step.
            Otherwise, they raise an error.

        Raises
        ------
        UserWarning
            If a gradient is stale.
        """
        state, store = self._state, self._store
        waiting, size = state.waiting
        self._set_scale(size + batch_size)
        if not store.created or store.left:
            self._ready()
        if waiting + 1 < state.accumulate:
            self._wait(batch_size, ignore_stale_grad)
            return
        if store.called is not None and store.updates:
            self._step_in_store(ignore_stale_grad)
            return
        self._allreduce_grads()
        self._update(ignore_stale_grad)

    def _step_in_store(self, ignore_stale_grad):
        """Runs a step with a user's store that has the optimizer."""
        plan = self._current_plan()
        if not plan.fresh():
            plan.check_stale(ignore_stale_grad)
        plan.forget_left()
        with autograd.pause():
            if overflows(self._state, plan, plan.work):
                return
            if self._max_norm is not None:
                clip(self._state, plan, plan.work, self._max_norm)
            self._store.sum_in_called()
        _core.at_once((_core.gradients_used, plan.weights), *ended(self._state, plan))

    def _wait(self, batch_size, ignore_stale_grad):
        """Counts a call of `step` that only accumulates gradients."""
        plan = self._current_plan()
        fresh = plan.fresh()
        if not fresh:
            plan.check_stale(ignore_stale_grad)
        waiting, size = self._state.waiting
        used = [(_core.gradients_used, plan.weights)] if fresh and not ignore_stale_grad else []
        _core.at_once(*used, (vars(self._state), "waiting", (waiting + 1, size + batch_size)))

    def allreduce_grads(self) -> None:
        """Sums the gradients of replicas, so that all of them hold the sum (with `shard_updates`,
        only the replica that is updated). For use with `update`. Raises AssertionError if the
        kvstore updates."""
        self._ready(update=False)
        self._store.refuse("allreduce_grads")
        self._allreduce_grads()

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Updates all parameters with their current gradients, regardless of `accumulate`; see
        `step`."""
        self._ready(update=False)
        self._store.refuse("update")
        self._set_scale(self._state.waiting[1] + batch_size)
        self._update(ignore_stale_grad)

    def _set_scale(self, batch_size):
        if not batch_size > 0:
            raise ValueError(f"Trainer: batch_size must be positive, not {batch_size}")
        state = self._state
        state.optimizer.rescale_grad = state.scale / batch_size

    def save_states(self, fname: str | os.PathLike[str]) -> None:
        """Writes the trainer's state, keyed by parameter name.

        The state consists of the optimizer's state of each parameter, update counts, the loss
        scale, and, between a backward pass and its update, the gradients. It can be loaded onto any
        placement. For parameters that `parallel.Mesh.partition` has divided, it has the state of
        the whole parameter. If an optimizer of a user's class has a state that cannot be divided
        like the parameter, the file has the states of the parts.

        The file is an array file like ``.params`` files. It does not contain multipliers such as
        ``lr_mult``, which belong to the parameters, schedulers, or the random state.
        """
        self._state.save(fname)

    def load_states(self, fname: str | os.PathLike[str]) -> None:
        """Reads a file of `save_states` or of MXNet 1.x. No code in the file is run. Parameters may
        be on other devices than when they were saved.

        States are matched by parameter name. If the names of all parameters differ only in their
        numbers, as in a network that was created a second time, they are matched in the order of
        these numbers. Gradients that no update has used are replaced as well. Without a scheduler,
        the learning rate is replaced, and for parameter groups all rates, or none if the file has
        another number of groups.

        Raises
        ------
        MXNetError
            If the file holds no trainer states, or belongs to other parameters, to parts of
            another division or to another optimizer. Nothing changes in this case.
        """
        self._state.load(fname)

    def notice(self, param: Parameter) -> None:
        """Resets a store that holds the parameter. Must be called before the parameter's value is
        replaced."""
        if self._store.updates and not any(param is other for other in self._store.pending):
            self._reset_kvstore()

    def _ready(self, update=None):
        """Creates the store if it does not exist yet, and gives it the remaining parameters."""
        store = self._store
        if not store.created:
            self._init_kvstore(update)
        if store.left and (store.called or store.of_ranks) is not None:
            self._init_params()

    def _current_plan(self):
        """Returns the update plan, rebuilt if a parameter's arrays were replaced."""
        state, store, now = self._state, self._store, parameter_changes.count
        plan, in_store = state.plan, store.updates is True
        # mode: (True if updates run only on the owner's device, True if sums are separate from
        # gradients).
        once = self._shard_updates or in_store or state.offload is not None
        mode = once, in_store and store.called is None
        if plan is not None and plan.mode == mode:
            if plan.changes == now:
                return plan
            for param, data, grad in plan.seen:
                if param.arrays is not data or param.gradients is not grad:
                    break
            else:
                plan.changes = now
                return plan
        made = Plan(state.params, state.optimizer, *mode, state.offload)
        if state.params and all(param.grad_req == "null" for param in state.params):
            warnings.warn(
                "Trainer: all parameters have grad_req='null', so a step updates nothing; for "
                "those to train, set param.grad_req = 'write'. If the network has adapters, create "
                "the Trainer after lora.apply",
                stacklevel=4,
            )
        state.check_sums(made)
        with autograd.pause():
            casts = state.casts(plan.dtypes, made.dtypes) if plan is not None else []
            _core.at_once(*casts)
            _core.at_once(*state.moves(made), (vars(state).update, {"plan": made}))
        return made

    def _allreduce_grads(self):
        plan, store = self._current_plan(), self._store
        by_itself = store.called is None and store.of_ranks is None
        if not plan.buckets and not plan.sparse and by_itself:
            return
        with autograd.pause():
            if store.called is not None:
                store.sum_in_called()
                return
            for bucket in plan.buckets:
                bucket.sum(everywhere=not plan.mode[0])
            for _, param in plan.sparse:
                sum_rows(list(param.gradients.values()))
            if store.of_ranks is not None:
                store.sum_over_ranks(plan)

    def _update(self, ignore_stale_grad):
        _core.ranks_note_step()
        plan, state = self._current_plan(), self._state
        work, optimizer = plan.work, state.optimizer
        if self._store.of_ranks is not None or any(group.ctx.rank is not None for group in work):
            _core.ranks_note_update(optimizer.rescale_grad, optimizer.learning_rate)
        if not plan.fresh():
            plan.check_stale(ignore_stale_grad)
            work = plan.fresh_work()
        if plan.left:
            plan.forget_left()
        with autograd.pause(), _core.Scope((_core.set_uncast, True)):  # amp only applies to nets
            if overflows(state, plan, work):
                return
            if self._max_norm is not None:
                clip(state, plan, work, self._max_norm)
            if state.unequal:
                equalize(state, plan)
            if not any(member.draws for member in optimizer.members):
                update(state, plan, work)
                return
            indices = {index for group in work for index in group.indices}
            indices.update(index for index, param in plan.sparse if plan.fresh_rows(param))
            with optimizer.draws_by(sorted(indices)):
                update(state, plan, work)

    # MXNet's private names, which subclasses override and programs read.

    _params: list[Parameter] = _attribute_of("_state", "params")
    _param2idx: dict[str, int] = _attribute_of("_state", "indices")
    _optimizer: Optimizer = _attribute_of("_state", "optimizer")
    _scale: float = _attribute_of("_state", "scale")
    _amp_loss_scaler: Any = _attribute_of("_state", "loss_scaler")
    _amp_original_scale: float = _attribute_of("_state", "original_scale")
    _kvstore: KVStoreBase | None = _attribute_of("_store", "kvstore")
    _kvstore_params: dict[str, Any] = _attribute_of("_store", "choice")
    _kv_initialized: bool = _attribute_of("_store", "created")
    _update_on_kvstore: bool | None = _attribute_of("_store", "updates")
    _compression_params: Any = _attribute_of("_store", "compression_params")
    _distributed: bool | None = _attribute_of("_store", "distributed")
    _params_to_init: list[Parameter] = _attribute_of("_store", "pending")
    _contains_sparse_weight: bool = _attribute_of("_store", "has_sparse_weight")
    _contains_sparse_grad: bool = _attribute_of("_store", "has_sparse_gradient")

    @property
    def _contexts(self):
        """The devices of the parameters."""
        return list(dict.fromkeys(ctx for param in self._params for ctx in param.list_ctx()))

    def _check_contexts(self):
        return self._contexts

    @property
    def _updaters(self):
        """Updaters of the copies on each device of `_contexts`, with their states."""
        homes = dict.fromkeys(map(self._state.home, self._contexts))
        return [self._state.complete_updater(ctx) for ctx in homes]

    def _init_kvstore(self, update: bool | None = None) -> None:
        self._store.create(update)

    def _init_params(self) -> None:
        self._store.add_parameters()

    def _reset_kvstore(self) -> None:
        self._store.reset()

    def _row_sparse_pull(
        self, parameter: Parameter, out: Any, row_id: NDArray, full_idx: bool = False
    ) -> None:
        """Copies rows of a parameter into row_sparse arrays."""
        self._ready()
        for array in [out] if not isinstance(out, (list, tuple)) else out:
            ctx = array.context if array.context in parameter.list_ctx() else None
            rows = parameter.rows_on(row_id, ctx or parameter.list_ctx()[0])
            array[:] = rows.as_in_context(array.context)


# Functions that other modules of the package call.


def state_of(trainer: Trainer) -> Any:
    """Returns the part of the trainer that checkpoints save and load."""
    return trainer._state


def current_plan(trainer: Trainer) -> Any:
    """Returns the trainer's update plan."""
    return trainer._current_plan()


def loss_scaling(trainer: Trainer) -> Any:
    """Returns the trainer's loss scaler, or None. Returns None for objects of other classes."""
    return getattr(trainer, "_amp_loss_scaler", None)


def set_loss_scaler(trainer: Trainer, scaler: Any) -> None:
    """Sets the loss scaler of a trainer, which then skips updates whose gradients overflow."""
    state = trainer._state
    if state.loss_scaler is None:
        state.original_scale = state.scale
    state.loss_scaler = scaler


def scaled_by(trainer: Trainer, scale: float) -> None:
    """Makes the trainer's next step divide gradients by the loss scale."""
    trainer._state.scale = trainer._state.original_scale / scale


def scaled_losses(losses: list[Any], trainer: Trainer) -> list[Any]:
    """Returns the losses, multiplied by the trainer's loss scale (contrib.amp) if it has one."""
    scaler = loss_scaling(trainer)
    if scaler is None:
        return losses
    scaled_by(trainer, scaler.loss_scale)
    return [loss * scaler.loss_scale for loss in losses]


def adds_up(trainer: Trainer) -> bool:
    """True if the next call of `step` only accumulates gradients."""
    return trainer._state.waiting[0] + 1 < trainer._state.accumulate


absent(Trainer, TRAINER)
