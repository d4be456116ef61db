"""Update plans of a trainer: groups of weights that are updated together, with their devices and
gradients."""

from __future__ import annotations

import itertools
import math

from .. import _core
from .._core import dtype_name
from .._internal.kinds import plain
from ..base import MXNetError
from ..optimizer import multi
from ..optimizer.grouped import updates_parts
from ._gradient_buckets import make_buckets
from ._offload import changed, copies, in_batches
from .parameter._parameter import parameter_changes


class _Group:
    """The weights on one device that are updated together.

    If the weights are parts of split parameters whose parts must be updated together, `line` is the
    tuple of the devices of all parts. There is a group for each of these devices, and the k-th
    weights of these groups are the parts of one parameter.

    If the states are offloaded, `ctx` is their device, and `copies` has the `Copies` of each
    weight, which the optimizer updates. Otherwise, `copies` is empty.
    """

    __slots__ = (
        "ctx",
        "line",
        "indices",
        "grads",
        "weights",
        "copies",
        "versions",
        "known",
        "parts",
        "size",
        "multi",
        "updates",
        "used",
    )

    def __init__(self, ctx, line=None):
        self.ctx, self.line = ctx, line
        self.indices, self.grads, self.weights, self.copies = [], [], [], []
        # `_core.versions` of the weights when their copies were equal, or None.
        self.versions = None
        self.known = set()  # indices of the group's parameters
        # Cached result of Updater.alike, and the maximum number of weights for which the result is
        # valid.
        self.parts, self.size = (
            None,
            0,
        )
        self.multi = None  # `MultiStep` that updates all weights, created after the first updates
        self.updates = 0  # number of steps without `multi`, for the exponential backoff
        # Change (`_core.at_once`) that marks the gradients as used.
        self.used = _core.gradients_used, self.weights

    def holds(self, updater):
        """True if `multi` is valid: the updater still has the states that it was created for."""
        if self.multi is None:
            return False
        if self.multi.holds(updater):
            return True
        self.multi = None
        return False

    def prepare(self, updater, changes):
        """Creates `multi` if possible. Retries with exponential backoff if it is not, or if it does
        not stay valid."""
        if updater.aggregate_updates and self.updates & (self.updates - 1) == 0:
            self.multi = multi.prepare(
                updater,
                updater.alike(self.indices, *self.arrays(), len(self.weights)),
                changes,
            )

    def update(self, updater):
        self.multi = None
        self.updates += 1
        size = updater.largest_list
        if size <= 0:
            updater(self.indices, *self.arrays())
            return
        if self.size != size:
            self.parts, self.size = updater.alike(self.indices, *self.arrays(), size), size
        updater.update_alike(self.ctx.count_key, self.parts)

    def arrays(self):
        """Returns the gradients and weights that the optimizer gets."""
        if not self.copies:
            return self.grads, self.weights
        return [copy.grad for copy in self.copies], [copy.weight for copy in self.copies]

    def refresh(self):
        """Copies weights to the device of their states, unless the copies there are equal."""
        stale = changed(self.weights, self.versions) if self.copies else []
        if stale:
            _, own = self.arrays()
            _core.at_once(*copies([self.weights[k] for k in stale], [own[k] for k in stale]))

    def fetches(self):
        """Returns the changes (`_core.at_once`) that copy the gradients to the device of the
        states."""
        return copies(self.grads, self.arrays()[0]) if self.copies else []

    def sends(self):
        """Returns the changes that copy the updated weights back."""
        if not self.copies:
            return []
        versions = [number + 1 for number in _core.versions(self.weights)]
        back = copies(self.arrays()[1], self.weights)
        return [*back, (_core.set_attributes, self, "versions", versions)]

    def add(self, index, grad, weight, copy=None):
        self.known.add(index)
        self.indices.append(index)
        self.grads.append(grad)
        self.weights.append(weight)
        if copy is not None:
            self.copies.append(copy)

    def fresh(self):
        """Returns the subset of the group whose gradients backward has written since the last
        step."""
        group = _Group(self.ctx, self.line)
        group.updates = 3  # skip creating `multi`, which does not pay off for a single step
        every = itertools.zip_longest(self.indices, self.grads, self.weights, self.copies)
        for index, grad, weight, copy in every:
            if weight._fresh_grad:
                group.add(index, grad, weight, copy)
        return group


def _batch(entries):
    """Returns a group with offloaded states."""
    group = _Group(entries[0][3].weight.context)
    for entry in entries:
        group.add(*entry)
    return group


def update_parts(groups, updaters):
    """Updates the weights of all groups of one line."""
    optimizer = updaters[0].optimizer
    size = max(1, updaters[0].largest_list)
    for parts in zip(
        *[
            updater.alike(group.indices, *group.arrays(), size)
            for group, updater in zip(groups, updaters)
        ]
    ):
        arguments = []
        for group, updater, (indices, grads, weights) in zip(groups, updaters, parts):
            updater.prepare(indices, weights)
            states = [updater.states[index] for index in indices]
            arguments.append((group.ctx.count_key, indices, weights, grads, states))
        optimizer.of(arguments[0][1][0]).update_parts(arguments)


class Plan:
    """The weights to update, by device. Parameters replace their dict of arrays instead of changing
    it, so the plan is valid as long as the dicts are the same objects."""

    def __init__(self, params, optimizer, sharded, apart, offload=None):
        self.changes, self.mode = parameter_changes.count, (sharded, apart)
        self.params, self.optimizer = params, optimizer
        self.factors = None  # see factors_fit
        self.seen = [(param, param.arrays, param.gradients) for param in params]
        # (parameter, array) for arrays that a moved parameter had before. A pending backward pass
        # may still write gradients of these arrays.
        self.left = [
            (param, array) for param in params if param.grad_req != "null" for array in param.left
        ]
        self.owners = {}  # index -> device of the copy that represents all replicas
        self.weights = []
        self.dtypes = {}  # index -> dtypes
        placed = {}  # index -> [(device, gradient, weight)]
        self.sparse = [  # (index, parameter) of the parameters with row_sparse gradients
            (index, param)
            for index, param in enumerate(params)
            if param.grad_req != "null" and param.grad_stype != "default"
        ]
        self.buckets = make_buckets(
            [
                param
                for param in params
                if param.grad_req != "null"
                and param.grad_stype == "default"
                and param.arrays is not None
                and len(param.arrays) > 1
            ],
            apart,
        )
        homes = {param: bucket.home for bucket in self.buckets for param in bucket.params}
        sums = {param: array for b in self.buckets if apart for param, array in b.sums().items()}
        for index, param in enumerate(params):
            if param.grad_req == "null":
                continue
            if param.arrays is None:
                raise param.missing_error()
            if param.grad_stype != "default":
                self.dtypes[index] = dtype_name(next(iter(param.arrays.values())).dtype)
                continue
            self.owners[index] = (
                homes[param] if sharded and param in homes else next(iter(param.arrays))
            )
            self.weights += param.arrays.values()
            self.dtypes[index] = dtype_name(self.weights[-1].dtype)
            placed[index] = [
                (ctx, plain(sums.get(param, param.gradients[ctx])), plain(weight))
                for ctx, weight in param.arrays.items()
                if not sharded or ctx == self.owners[index]
            ]
        self.work = self._groups(placed, offload)
        self._check_parts(self.work)
        # Index -> devices where the parameter is updated.
        self.devices = {index: [] for index in self.dtypes}
        for group in self.work:
            for index in group.indices:
                self.devices[index].append(group.ctx)
        for index, param in self.sparse:
            self.devices[index] = list(param.arrays)

    def _groups(self, placed, offload):
        """Returns the groups of weights to update, starting with the groups without a line.
        `placed` maps a parameter's index to the devices, gradients and weights of its copies.
        `offload` has the devices of the states, or is None if these are with their weights."""
        if offload is not None:
            offload.check(self.params)
        groups, families, moved = {}, {}, []
        for index, replicas in placed.items():
            family = self.params[index].family
            if family is not None and updates_parts(self.optimizer.of(index), family.axis):
                families.setdefault(family, []).append(index)
                continue
            for ctx, grad, weight in replicas:
                copy = offload and offload.copies_of(index, ctx, grad, weight)
                if copy:
                    moved.append((index, grad, weight, copy))
                else:
                    groups.setdefault(ctx, _Group(ctx)).add(index, grad, weight)
        batches = [_batch(entries) for entries in in_batches(moved)]
        lines = {}
        for indices in families.values():
            indices.sort(key=lambda index: self.params[index].index)
            for replicas in zip(*[placed[index] for index in indices]):
                line = tuple(ctx for ctx, _, _ in replicas)
                if line not in lines:
                    homes = [offload.target(ctx) if offload else ctx for ctx in line]
                    lines[line] = [_Group(ctx, line) for ctx in homes]
                for group, index, (ctx, grad, weight) in zip(lines[line], indices, replicas):
                    copy = offload and offload.copies_of(index, ctx, grad, weight)
                    group.add(index, grad, weight, copy)
        return [*groups.values(), *batches, *itertools.chain(*lines.values())]

    def joined(self, work):
        """Returns lists of groups to update together: all groups of a line, or a single group."""
        by_line = itertools.groupby(work, lambda group: group.line or group)
        return [list(groups) for _, groups in by_line]

    def _check_parts(self, work):
        """Raises MXNetError if only some parts of a split parameter would be updated."""
        for groups in self.joined(work):
            found = {}
            for group in groups if groups[0].line else []:
                for index in group.indices:
                    found.setdefault(self.params[index].family, []).append(index)
            for family, indices in found.items():
                if len(indices) < family.count:
                    kind = type(self.optimizer.of(indices[0])).__name__
                    raise MXNetError(
                        f"Trainer: {kind} updates all {family.count} parts of the parameter "
                        f"'{family.name}' together, but only "
                        f"{', '.join(repr(self.params[index].name) for index in indices)} can be "
                        "updated; give the Trainer all parts, with gradients that backward has "
                        "written"
                    )

    def factors_fit(self, lr, wd):
        """True if `lr` and `wd` times the multipliers of any parameter are finite, and the learning
        rates are not negative."""
        if self.factors is None or self.factors[0] != parameter_changes.count:
            params = [self.params[index] for index in self.dtypes]
            lrs, wds = [p.lr_mult for p in params], [abs(p.wd_mult) for p in params]
            # Check the sums, because a sum with NaN is NaN, whereas max and min may skip NaN.
            known = math.isfinite(sum(lrs)) and math.isfinite(sum(wds)) and min(lrs, default=0) >= 0
            self.factors = parameter_changes.count, known, max(lrs, default=0), max(wds, default=0)
        _, known, largest_lr, largest_wd = self.factors
        return (
            known and lr >= 0 and math.isfinite(lr * largest_lr) and math.isfinite(wd * largest_wd)
        )

    def fresh(self):
        """True if backward has written all gradients since the last step."""
        return (
            _core.gradients_fresh(self.weights)
            and (
                not self.sparse
                or all(grad.fresh for _, param in self.sparse for grad in param.gradients.values())
            )
            and not (self.left and self.lost())
        )

    def lost(self):
        """Returns (parameter, device) for each gradient that backward has written for an array from
        before a move, because no update will read it."""
        return [(param, array.context) for param, array in self.left if array._fresh_grad]

    def forget_left(self):
        """Releases the arrays from before a move."""
        for param, _ in self.left:
            param.left = ()
        self.left.clear()

    def fresh_work(self):
        """Returns the groups, restricted to parameters whose gradients backward has written since
        the last step."""
        if self.fresh():
            return self.work
        work = [group.fresh() for group in self.work]
        self._check_parts(work)
        return work

    @staticmethod
    def fresh_rows(param):
        """Returns the row_sparse gradients that backward has written since the last step."""
        return [grad for grad in param.gradients.values() if grad.fresh]

    def gradients(self, work):
        """Returns two lists of gradients: one gradient for each parameter, and all of them.

        Both include fresh row_sparse gradients. The first list is in the order of the parameters,
        so its norm is bit-identical for any placement."""
        once, every = {}, []
        for group in work:
            every += group.grads
            for index, grad in zip(group.indices, group.grads):
                if index not in once or self.owners[index] == group.ctx:
                    once[index] = grad
        for index, param in self.sparse:
            rows = self.fresh_rows(param)
            if rows:
                every += rows
                once[index] = rows[0]
        return [once[index] for index in sorted(once)], every

    def count_ahead(self, work):
        """Sets the number of updates to its value after this step. This must happen before the
        first group computes its rates. Parameters that were frozen for a while have lower counts.
        Their rate, and the step to which LARS assigns them, must not depend on whether a group with
        higher counts is updated first."""
        optimizer = self.optimizer
        number = optimizer.num_update
        for group in work:
            if group.multi is not None and group.multi.counts is not None:
                number = max(number, group.multi.count + 1)
                continue
            counts = optimizer.update_counts.get(group.ctx.count_key, {})
            first = optimizer.begin_num_update
            number = max([number, *[counts.get(i, first) + 1 for i in group.indices]])
        for index, param in self.sparse:
            for ctx, grad in param.gradients.items():
                if grad.fresh:
                    counts = optimizer.update_counts.get(ctx.count_key, {})
                    number = max(number, counts.get(index, optimizer.begin_num_update) + 1)
        optimizer.num_update = number

    def check_rates(self, work):
        """Raises ValueError if a rate or weight decay is invalid, before any weight changes."""
        optimizer = self.optimizer
        # With a scheduler, all groups share its rate, which the first group checks. Here, a rate of
        # 1.0 checks only the multipliers.
        lrs = [1.0 if own.lr_scheduler is not None else own.lr for own in optimizer.members]
        wds = [own.wd for own in optimizer.members]
        if not all(map(self.factors_fit, lrs, wds)):
            indices = [index for group in work for index in group.indices]
            indices += [index for index, param in self.sparse if self.fresh_rows(param)]
            optimizer.check_rates(indices)

    def check_stale(self, ignore_stale_grad):
        """Raises an error for gradients that backward has not written, unless they are ignored."""
        for param in self.params:
            if param.replaced:
                raise param.replaced_error()
        if ignore_stale_grad:
            return
        lost = self.lost()
        self.forget_left()
        for moved, _ in lost:  # gradients lack the part that was lost in the move
            for weight in moved.arrays.values():
                weight._fresh_grad = False
        param, ctx = next(
            (param, ctx)
            for param, data, _ in self.seen
            for ctx, weight in data.items()
            if param.grad_req != "null" and not weight._fresh_grad
        )
        adapter = ""
        if "lora_" in param.name:
            adapter = (
                ", or the adapters of its layer are merged (lora.unmerge(net) takes them out) or "
                "disabled"
            )
        raise UserWarning(
            f"Gradient of Parameter `{param.name}` on context {ctx} has not been updated by "
            "backward since last `step`. Either the loss does not depend on it, or the forward "
            "pass was not recorded, or the parameter was moved or cast (place, reset_ctx, cast) "
            "between the forward pass and backward, or its layer was replaced in the network and "
            f"needs a new Trainer{adapter}. If only some of the Parameters are used, "
            "call step with ignore_stale_grad=True to leave the other Parameters unchanged"
        )
