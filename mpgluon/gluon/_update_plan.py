"""Update plans of a trainer: the weights that are updated together, their devices and gradients."""

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
        # The result of Updater.alike for parts of at most `size` weights.
        self.parts, self.size = (
            None,
            0,
        )
        self.multi = None  # one call that updates all weights, created after the first updates
        self.updates = 0  # number of steps without `multi`
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
        """Returns the subset of the group whose gradients backward has written since the last
        step."""
        group = _Group(self.ctx)
        group.updates = 3  # creating `multi` for a single step does not pay off
        for index, grad, weight in zip(self.indices, self.grads, self.weights):
            if weight._fresh_grad:
                group.add(index, grad, weight)
        return group


class Plan:
    """The weights to update, by device. Parameters replace their dicts of arrays as a whole, so a
    changed dict invalidates the plan."""

    def __init__(self, params, sharded, apart):
        self.changes, self.mode = changes[0], (sharded, apart)
        self.seen = [(param, param.arrays, param.gradients) for param in params]
        # Arrays from before a move, which a pending backward pass may still write to.
        self.left = [
            (param, array) for param in params if param.grad_req != "null" for array in param.left
        ]
        self.owners = {}  # index -> device of the copy that represents all
        self.weights = []
        self.dtypes = {}  # dtypes by index
        groups = {}
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
            for ctx, weight in param.arrays.items():
                if sharded and ctx != self.owners[index]:
                    continue
                if ctx not in groups:
                    groups[ctx] = _Group(ctx)
                groups[ctx].add(index, sums.get(param, param.gradients[ctx]), weight)
        self.work = list(groups.values())
        # Index -> devices where the parameter is updated.
        self.devices = {index: [] for index in self.dtypes}
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
        """Returns (parameter, device) for the gradients that backward has written to arrays from
        before a move, which no update reads."""
        return [(param, array.context) for param, array in self.left if array._fresh_grad]

    def forget_left(self):
        """Releases the arrays from before a move."""
        for param, _ in self.left:
            param.left = ()
        self.left.clear()

    def fresh_work(self):
        """Returns the groups, restricted to parameters whose gradients backward has written since
        the last step."""
        return self.work if self.fresh() else [group.fresh() for group in self.work]

    @staticmethod
    def fresh_rows(param):
        """Returns the row_sparse gradients that backward has written since the last step."""
        return [grad for grad in param.gradients.values() if grad.fresh]

    def gradients(self, work):
        """Returns two lists of gradients: one gradient for each parameter, and all of them.

        Both include fresh row_sparse gradients. The first list is in the order of the parameters,
        so its norm has the same bits on any devices."""
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
