"""Plans of a trainer: which weights are updated together, on which device, by which gradients."""

from __future__ import annotations

from .. import _core
from .._core import dtype_name
from ..optimizer import multi
from ._gradient_buckets import make_buckets
from .parameter._parameter import changes


class _Group:
    """The weights on one device that are updated together."""

    __slots__ = (
        "ctx",
        "indices",
        "grads",
        "weights",
        "known",
        "parts",
        "size",
        "multi",
        "updates",
        "used",
    )

    def __init__(self, ctx):
        self.ctx = ctx
        self.indices, self.grads, self.weights = [], [], []
        self.known = set()  # the indices
        # Their lists, made by Updater.alike for parts of that size
        self.parts, self.size = (
            None,
            0,
        )
        self.multi = None  # all of these in one call, once they have been updated before
        self.updates = 0  # steps without it so far
        self.used = _core.gradients_used, self.weights  # the change (`_core.at_once`) that notes it

    def holds(self, updater):
        """True if `multi` may be used: the states are those that it was made for."""
        if self.multi is None:
            return False
        if self.multi.holds(updater):
            return True
        self.multi = None
        return False

    def prepare(self, updater, changes):
        """Makes `multi` where it can be; tries more and more rarely where it can't, or does not
        last."""
        if updater.optimizer.aggregate_num > 0 and self.updates & (self.updates - 1) == 0:
            self.multi = multi.prepare(
                updater,
                updater.alike(self.indices, self.grads, self.weights, len(self.weights)),
                changes,
            )

    def update(self, updater):
        self.multi = None
        self.updates += 1
        size = updater.optimizer.aggregate_num
        if size <= 0:
            updater(self.indices, self.grads, self.weights)
            return
        if self.size != size:
            self.parts, self.size = (
                updater.alike(self.indices, self.grads, self.weights, size),
                size,
            )
        updater.update_alike(self.ctx.count_key, self.parts)

    def add(self, index, grad, weight):
        self.known.add(index)
        self.indices.append(index)
        self.grads.append(grad)
        self.weights.append(weight)

    def fresh(self):
        """Returns the parameters whose gradient backward has written since the last step."""
        group = _Group(self.ctx)
        group.updates = 3  # one for this step alone is not worth while
        for index, grad, weight in zip(self.indices, self.grads, self.weights):
            if weight._fresh_grad:
                group.add(index, grad, weight)
        return group


class Plan:
    """The weights to update, by device. Parameters change their dicts of arrays as a whole: that
    tells whether it still holds."""

    def __init__(self, params, sharded, apart):
        self.changes, self.mode = changes[0], (sharded, apart)
        self.seen = [(param, param.arrays, param.gradients) for param in params]
        # Arrays from before a move that a backward pass may still reach
        self.left = [
            (param, array) for param in params if param.grad_req != "null" for array in param.left
        ]
        self.owners = {}  # index -> device whose copy stands for all
        self.weights = []
        self.dtypes = {}  # by index
        groups = {}
        self.sparse = [  # (index, parameter) of those with row_sparse gradients
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
            for ctx, weight in param.arrays.items():
                if sharded and ctx != self.owners[index]:
                    continue
                if ctx not in groups:
                    groups[ctx] = _Group(ctx)
                groups[ctx].add(index, sums.get(param, param.gradients[ctx]), weight)
        self.work = list(groups.values())
        self.devices = {index: [] for index in self.dtypes}  # where each is updated
        for group in self.work:
            for index in group.indices:
                self.devices[index].append(group.ctx)
        for index, param in self.sparse:
            self.devices[index] = list(param.arrays)

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
        """(parameter, device) of the gradients that backward has written to arrays from before a
        move, where no update sees them."""
        return [(param, array.context) for param, array in self.left if array._fresh_grad]

    def forget_left(self):
        """Releases the arrays from before a move."""
        for param, _ in self.left:
            param.left = ()
        self.left.clear()

    def fresh_work(self):
        """Returns the groups of the parameters whose gradients backward has written since the last
        step."""
        return self.work if self.fresh() else [group.fresh() for group in self.work]

    @staticmethod
    def fresh_rows(param):
        """Returns the row_sparse gradients that backward has written since the last step."""
        return [grad for grad in param.gradients.values() if grad.fresh]

    def gradients(self, work):
        """Returns the gradients of groups and the fresh ones of rows: one of each parameter, in the
        order of the parameters, so that a norm of them has the same bits on any devices; and
        all."""
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
