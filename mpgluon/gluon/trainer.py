"""The trainer, which updates parameters on any devices by their gradients."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

from .. import _core, autograd, kvstore as kvstores, ndarray as nd, optimizer as opt
from .._internal import ranks
from .._internal.hints import TRAINER, absent, present
from ..base import MXNetAssertionError
from ..optimizer._lazy import sum_rows
from ..optimizer._nested_states import copy_state
from ..optimizer.optimizer import GroupedOptimizer
from ._trainer_state import TrainerState
from ._trainer_store import TrainerStore, unique_names
from ._tree import parameters_by_path
from ._update_plan import Plan, update_parts
from .block import Block
from .parameter import Parameter, ParameterDict
from .parameter._gradient_contents import changes_to
from .parameter._parameter import parameter_changes
from .parameter._parameter_dict import name_of_whole
from .utils import global_norm, scale_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..kvstore import KVStoreBase
    from ..optimizer.optimizer import Optimizer

__all__ = ["Trainer"]


class Trainer(TrainerStore, TrainerState):
    """Applies an optimizer to parameters. One trainer updates all parameters of a model, on any
    devices.

    Each parameter is on one device or replicated on several. Gradients of replicas are summed in
    the order of the parameter's devices, and all replicas get the same bits. (Between several GPUs,
    NCCL sums in its own order, see `mx.parallel.collectives.transport`.) Small gradients are
    bucketed, and buckets are balanced over the replicas. Updates run asynchronously on each
    parameter's device, many parameters at once.

    Parameters
    ----------
    params : Block, ParameterDict, or dict or list of Parameter
        Parameters to update. Each must be initialized, possibly deferred.
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
        The results have the same bits.
    accumulate : int, default 1
        Number of calls of `step` for each update. Until the update, gradients accumulate on their
        devices, and replicas are not summed. Parameters whose `grad_req` is 'write' are set to
        'add', and their gradients are reset to zero after an update. The batch size is the sum over
        these calls.
    clip_global_norm : float, optional
        Before each update, scales the gradients so that their joint 2-norm, divided by the batch
        size, is at most this value. Asynchronous. Replicas are counted once.

    Raises
    ------
    ValueError
        If `params` are not parameters, two have the same name, or an option is invalid.
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

    _amp_loss_scaler: Any = None  # set by contrib.amp: a LossScaler, and the scale without it
    _amp_original_scale: float = 1.0

    def __init__(
        self,
        params: Block | ParameterDict | Mapping[str, Parameter] | Sequence[Parameter],
        optimizer: str | Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: str | KVStoreBase | None = "device",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
        shard_updates: bool = False,
        accumulate: int = 1,
        clip_global_norm: float | None = None,
    ) -> None:
        paths = {}
        if isinstance(params, Block):
            by_path = parameters_by_path(params)
            paths = {id(param): path for path, param in by_path.items()}
            params = sorted(dict.fromkeys(by_path.values()), key=lambda p: _sorting_name(p.name, p))
        if isinstance(params, (dict, ParameterDict)):
            names = sorted(params.keys(), key=lambda name: _sorting_name(name, params[name]))
            params = [params[name] for name in names]
        if not isinstance(params, (list, tuple)):
            raise ValueError(
                "First argument must be a list or dict of Parameters, or a Block, got "
                f"{type(params)}."
            )
        for param in params:
            if not isinstance(param, Parameter):
                raise ValueError(
                    "First argument must be a list or dict of Parameters, got list of "
                    f"{type(param)}."
                    + " For groups with factors of their own, set lr_mult and wd_mult of their "
                    "Parameters" * isinstance(param, dict)
                )
            if param.replaced:
                raise param.replaced_error()
        self._params = list(params)
        if not self._params:
            warnings.warn(
                "Trainer: params is empty; net.collect_params() returns the parameters of a "
                "whole network, net.params only the block's own",
                stacklevel=2,
            )
        self._names = unique_names(self._params, paths, Trainer)
        self._param2idx = {name: i for i, name in enumerate(self._names)}
        self._plan = None
        self._choose_store(kvstore, compression_params, update_on_kvstore)
        if not isinstance(accumulate, int) or accumulate < 1:
            raise ValueError(f"Trainer: accumulate must be a positive integer, not {accumulate!r}")
        if clip_global_norm is not None and not clip_global_norm > 0:
            raise ValueError(
                f"Trainer: clip_global_norm must be positive, not {clip_global_norm!r}"
            )
        self._shard_updates, self._accumulate, self._max_norm = (
            bool(shard_updates),
            accumulate,
            clip_global_norm,
        )
        self._init_optimizer(optimizer, optimizer_params or {})
        # Calls of step that wait for an update, and the number of their samples.
        self._waiting = 0, 0
        self._unequal = (
            False  # true while a step runs: replicas may have received different updates
        )
        for param in self._params:
            param.list_ctx()  # raises an error for parameters that were never initialized
            param.set_trainer(self)
            if accumulate > 1 and param.grad_req == "write":
                param.grad_req = "add"
        self._scale = self._optimizer.rescale_grad
        self._by_device = {}  # device -> updater, which holds the states of the copies there
        self._loaded = {}  # index -> loaded state that is not yet on its device
        if accumulate > 1:  # reset sums from before this trainer
            _core.at_once(*[change for p in self._params for change in changes_to(p, None)])
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
        self._optimizer.idx2name = dict(enumerate(self._names))

    def __dir__(self) -> list[str]:
        return present(self, super().__dir__())

    def __repr__(self) -> str:
        devices = dict.fromkeys(str(ctx) for param in self._params for ctx in param.list_ctx())
        return (
            f"Trainer({self._optimizer!r}, parameters: {len(self._params)}, on "
            f"{', '.join(devices)})"
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
    def learning_rate(self) -> float:
        """The current learning rate."""
        return self._optimizer.learning_rate

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate. Raises an error if a scheduler controls it."""
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
        waiting, size = self._waiting
        self._set_scale(size + batch_size)
        if not self._kv_initialized or self._params_left:
            self._ready()
        if waiting + 1 < self._accumulate:
            self._wait(batch_size, ignore_stale_grad)
            return
        if self._called_store is not None and self._update_on_kvstore:
            self._step_in_store(ignore_stale_grad)
            return
        self._allreduce_grads()
        self._update(ignore_stale_grad)

    def _step_in_store(self, ignore_stale_grad):
        """Runs a step with a user's store that has the optimizer."""
        plan = self._current_plan()
        if not plan.fresh():
            self._check_stale(plan, ignore_stale_grad)
        plan.forget_left()
        with autograd.pause():
            if self._overflows(plan, plan.work):
                return
            if self._max_norm is not None:
                self._clip(plan, plan.work)
            self._sum_in_store()
        _core.at_once((_core.gradients_used, plan.weights), *self._ended(plan))

    def _wait(self, batch_size, ignore_stale_grad):
        """Counts a call of `step` that only accumulates gradients."""
        plan = self._current_plan()
        fresh = plan.fresh()
        if not fresh:
            self._check_stale(plan, ignore_stale_grad)
        waiting, size = self._waiting
        used = [(_core.gradients_used, plan.weights)] if fresh and not ignore_stale_grad else []
        _core.at_once(*used, (vars(self), "_waiting", (waiting + 1, size + batch_size)))

    def allreduce_grads(self) -> None:
        """Sums the gradients of replicas, so that all of them hold the sum (with `shard_updates`,
        only the replica that is updated). For use with `update`. Raises AssertionError if the
        kvstore updates."""
        self._ready(update=False)
        self._refuse_on_store("allreduce_grads")
        self._allreduce_grads()

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Updates all parameters with their current gradients, regardless of `accumulate`; see
        `step`."""
        self._ready(update=False)
        self._refuse_on_store("update")
        self._set_scale(self._waiting[1] + batch_size)
        self._update(ignore_stale_grad)

    def _set_scale(self, batch_size):
        if not batch_size > 0:
            raise ValueError(f"Trainer: batch_size must be positive, not {batch_size}")
        self._optimizer.rescale_grad = self._scale / batch_size

    def _current_plan(self):
        """Returns the update plan, rebuilt if a parameter's arrays were replaced."""
        plan, now = self._plan, parameter_changes.count
        if plan is not None:
            if plan.changes == now:
                return plan
            for param, data, grad in plan.seen:
                if param.arrays is not data or param.gradients is not grad:
                    break
            else:
                plan.changes = now
                return plan
        made = Plan(self._params, self._optimizer, *self._mode())
        self._check_sums(made)
        with autograd.pause():
            casts = self._casts(plan.dtypes, made.dtypes) if plan is not None else []
            _core.at_once(*casts)
            _core.at_once(*self._moves(made), (vars(self).update, {"_plan": made}))
        return made

    def _at_home(self):
        """True if each parameter is updated on only one of its devices."""
        return self._shard_updates or self._update_on_kvstore is True

    def _mode(self):
        """Returns whether updates run only at home, and whether sums are separate from
        gradients."""
        return self._at_home(), self._update_on_kvstore is True and self._called_store is None

    def _check_plan(self):
        """Discards a plan that was built for another mode."""
        if self._plan is not None and self._plan.mode != self._mode():
            self._plan = None

    def _allreduce_grads(self):
        plan = self._current_plan()
        by_itself = self._called_store is None and self._store_of_ranks is None
        if not plan.buckets and not plan.sparse and by_itself:
            return
        with autograd.pause():
            if self._called_store is not None:
                self._sum_in_store()
                return
            for bucket in plan.buckets:
                bucket.sum(everywhere=not self._at_home())
            for _, param in plan.sparse:
                sum_rows(list(param.gradients.values()))
            if self._store_of_ranks is not None:
                self._sum_over_ranks(plan)

    def _clip(self, plan, work):
        """Clips the gradients that are about to be used by their global norm."""
        once, grads = plan.gradients(work)
        if not once:
            return
        norm = global_norm(once)
        scale_arrays(
            grads, nd.minimum(self._max_norm / (self._optimizer.rescale_grad * norm + 1e-8), 1.0)
        )

    def _update(self, ignore_stale_grad):
        _core.ranks_note_step()
        plan = self._current_plan()
        work = plan.work
        if self._store_of_ranks is not None or any(group.ctx.rank is not None for group in work):
            optimizer = self._optimizer
            _core.ranks_note_update(optimizer.rescale_grad, optimizer.learning_rate)
        if not plan.fresh():
            self._check_stale(plan, ignore_stale_grad)
            work = plan.fresh_work()
        if plan.left:
            plan.forget_left()
        with autograd.pause(), _core.Scope((_core.set_uncast, True)):  # amp is for networks
            if self._amp_loss_scaler is not None and self._overflows(plan, work):
                return
            if self._max_norm is not None:
                self._clip(plan, work)
            if self._unequal:
                self._equalize(plan)
            if not self._optimizer.draws:
                self._run(plan, work)
                return
            indices = {index for group in work for index in group.indices}
            indices.update(index for index, param in plan.sparse if plan.fresh_rows(param))
            with self._optimizer.draws_by(sorted(indices)):
                self._run(plan, work)

    def _run(self, plan, work):
        """Updates all weights, after their states exist on all devices."""
        for group in work:  # prepare all devices before any state changes
            updater = self._updater(group.ctx)
            if group.holds(updater):
                continue
            if not updater.states.keys() >= group.known:
                _core.at_once(*self._moves(plan))
            group.prepare(updater, plan.changes)
        if plan.buckets:
            self._unequal = True
        optimizer = self._optimizer
        if optimizer.number_before is None:  # a step that failed is completed with its number
            optimizer.number_before = optimizer.num_update
        try:
            if len(work) + len(plan.sparse) > 1 or isinstance(optimizer, GroupedOptimizer):
                self._count_ahead(plan, work)
            self._check_rates(plan, work)
            self._update_groups(plan, work)
        except BaseException:  # includes interrupts
            counts = itertools.chain(*map(dict.values, optimizer.update_counts.values()))
            optimizer.num_update = max(optimizer.number_before, *counts, 0)
            raise
        optimizer.number_before = None

    def _count_ahead(self, plan, work):
        """Sets the number of updates to its value after this step, before the first group computes
        its rates. Parameters that were frozen for a while have lower counts. Their rate, and the
        step that LARS takes them to belong to, must not depend on whether a group with higher
        counts comes first."""
        optimizer = self._optimizer
        number = optimizer.num_update
        for group in work:
            if group.multi is not None and group.multi.counts is not None:
                number = max(number, group.multi.count + 1)
                continue
            counts = optimizer.update_counts.get(group.ctx.count_key, {})
            first = optimizer.begin_num_update
            number = max([number, *[counts.get(i, first) + 1 for i in group.indices]])
        for index, param in plan.sparse:
            for ctx, grad in param.gradients.items():
                if grad.fresh:
                    counts = optimizer.update_counts.get(ctx.count_key, {})
                    number = max(number, counts.get(index, optimizer.begin_num_update) + 1)
        optimizer.num_update = number

    def _check_rates(self, plan, work):
        """Raises ValueError if a rate or weight decay is invalid, before any weight changes."""
        optimizer = self._optimizer
        # The first group checks the scheduler's rate, which all groups share.
        lr = 1.0 if optimizer.lr_scheduler is not None else optimizer.lr
        if not plan.factors_fit(lr, optimizer.wd):
            indices = [index for group in work for index in group.indices]
            indices += [index for index, param in plan.sparse if plan.fresh_rows(param)]
            optimizer.check_rates(indices)

    def _update_groups(self, plan, work):
        """Updates the weights of groups, and the weights with row_sparse gradients."""
        steps, num_update = [], self._optimizer.num_update
        for groups in plan.joined(work):
            group = groups[0]
            if group.multi is not None:
                counted = group.multi.step(steps, group.ctx.count_key, plan.changes, num_update)
                if counted is not None:
                    num_update = counted
                    steps.append(group.used)
                    continue
            _core.at_once(*steps)
            if group.line is None:
                group.update(self._updater(group.ctx))
            else:
                update_parts(groups, [self._updater(part.ctx) for part in groups])
            steps, num_update = [part.used for part in groups], self._optimizer.num_update
        if plan.buckets or self._accumulate > 1:
            steps += self._ended(plan)
        _core.at_once(*steps)
        for index, param in plan.sparse:
            self._update_rows(index, param)

    def _overflows(self, plan, work):
        """True if the gradients of the groups `work`, or fresh row_sparse gradients, contain
        infinities or NaN. If so, marks them all as used."""
        if self._amp_loss_scaler is None:
            return False
        grads = [grad for group in work for grad in group.grads]
        rows = [grad for _, param in plan.sparse for grad in param.gradients.values()]
        grads += [grad for grad in rows if grad.fresh]
        if not self._amp_loss_scaler.overflows(grads):
            return False
        ended = self._ended(plan) if plan.buckets or self._accumulate > 1 else []
        _core.at_once((_core.gradients_used, plan.weights), *ended)
        for grad in rows:
            if self._accumulate > 1:
                grad[:] = 0
            grad.used()
        return True

    def _update_rows(self, index, param):
        """Updates a parameter by its row_sparse gradients. All ranks call the updater, so that
        states, update counts and random calls agree."""
        fresh = {ctx: grad for ctx, grad in param.gradients.items() if grad.fresh}
        for ctx, grad in fresh.items():
            with ranks.alone():  # the number of rows decides which ops it calls
                self._updater(ctx)(index, grad.for_update(), param.arrays[ctx])
                if self._accumulate > 1:
                    grad[:] = 0
            grad.used()

    def _ended(self, plan):
        """Returns the changes (`_core.at_once`) that follow the update of all weights."""
        changes = []
        if self._at_home():
            changes += [change for bucket in plan.buckets for change in bucket.spread()] + [
                (_core.gradients_used, plan.weights)
            ]
        if self._accumulate > 1:
            changes += [
                (grad.__setitem__, slice(None), 0)
                for param in self._params
                if param.grad_req == "add" and param.grad_stype == "default"
                for grad in param.gradients.values()
            ]
        return [*changes, (vars(self).update, {"_waiting": (0, 0), "_unequal": False})]

    def _equalize(self, plan):
        """Makes the replicas of each parameter and their optimizer states equal, after an
        interrupted step that may have updated only some of them."""
        if self._at_home():
            _core.at_once(*[change for bucket in plan.buckets for change in bucket.spread()])
            return
        counts = self._optimizer.update_counts
        for index in plan.owners:
            (first, weight), *others = self._params[index].arrays.items()
            known, count = self._updater(first).states, counts.get(first.count_key, {}).get(index)
            for ctx, other in others:
                weight.copyto(other)
                updater, its_counts = self._updater(ctx), counts.setdefault(ctx.count_key, {})
                updater.states.pop(index, None)
                its_counts.pop(index, None)
                if index in known:
                    updater.states[index], updater.states_synced[index] = (
                        copy_state(known[index], ctx),
                        True,
                    )
                if count is not None:
                    its_counts[index] = count

    def _check_stale(self, plan, ignore_stale_grad):
        """Raises an error for gradients that backward has not written, unless they are ignored."""
        for param in self._params:
            if param.replaced:
                raise param.replaced_error()
        if ignore_stale_grad:
            return
        lost = plan.lost()
        plan.forget_left()
        for moved, _ in lost:  # these gradients are incomplete until the next backward pass
            for weight in moved.arrays.values():
                weight._fresh_grad = False
        param, ctx = next(
            (param, ctx)
            for param, data, _ in plan.seen
            for ctx, weight in data.items()
            if param.grad_req != "null" and not weight._fresh_grad
        )
        raise UserWarning(
            f"Gradient of Parameter `{param.name}` on context {ctx} has not been updated by "
            "backward since last `step`. Either the loss does not depend on it, or the forward "
            "pass was not recorded, or the parameter was moved or cast (place, reset_ctx, cast) "
            "between the forward pass and backward, or its layer was replaced in the network and "
            "needs a new Trainer. If only some of the Parameters are used, "
            "call step with ignore_stale_grad=True to leave the other Parameters unchanged"
        )

    def _updater(self, ctx):
        updater = self._by_device.get(ctx)
        if updater is None:
            updater = self._by_device[ctx] = opt.get_updater(self._optimizer)
        return updater


def _sorting_name(name, param):
    """Returns the name by which a parameter is sorted. The parts of a split parameter are together,
    at the place of the whole."""
    return name if param.family is None else name_of_whole(name)


# Used by other modules of the package.


def current_plan(trainer: Trainer) -> Any:
    """Returns the trainer's update plan."""
    return trainer._current_plan()


def loss_scaling(trainer: Trainer) -> Any:
    """Returns the trainer's loss scaler, or None. Returns None for objects of other classes."""
    return getattr(trainer, "_amp_loss_scaler", None)


def set_loss_scaler(trainer: Trainer, scaler: Any) -> None:
    """Sets the loss scaler of a trainer, which then skips updates whose gradients overflow."""
    if trainer._amp_loss_scaler is None:
        trainer._amp_original_scale = trainer._scale
    trainer._amp_loss_scaler = scaler


def scaled_by(trainer: Trainer, scale: float) -> None:
    """Makes the trainer's next step divide gradients by the loss scale."""
    trainer._scale = trainer._amp_original_scale / scale


def scaled_losses(losses: list[Any], trainer: Trainer) -> list[Any]:
    """Returns the losses, multiplied by the trainer's loss scale (contrib.amp) if it has one."""
    scaler = loss_scaling(trainer)
    if scaler is None:
        return losses
    scaled_by(trainer, scaler.loss_scale)
    return [loss * scaler.loss_scale for loss in losses]


def adds_up(trainer: Trainer) -> bool:
    """True if the next call of `step` only accumulates gradients."""
    return trainer._waiting[0] + 1 < trainer._accumulate


absent(Trainer, TRAINER)
