"""Base class of optimizers that update several weights at once, and helpers for their updates."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from .. import ndarray as nd
from .._core import at_once, versions
from .._internal import domain, kinds
from ..ndarray.sparse import BaseSparseNDArray
from ._lazy import update_rows
from ._nested_states import map_arrays
from .optimizer import HALF, Optimizer, as_lists, dtype_name, zeros_like_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .._internal.types import NDArray

# Maximum number of weights of a multi-weight update op. More weights need several calls.
LARGEST_GROUP = 60


def aggregation_size() -> int:
    """Returns the maximum number of weights in one call: the environment variable
    MXNET_OPTIMIZER_AGGREGATION_SIZE, at most LARGEST_GROUP."""
    setting = os.environ.get("MXNET_OPTIMIZER_AGGREGATION_SIZE", "")
    try:
        size = int(setting) if setting else LARGEST_GROUP
    except ValueError:
        raise ValueError(
            "environment variable MXNET_OPTIMIZER_AGGREGATION_SIZE must be an integer, got "
            f"{setting!r}"
        ) from None
    return max(1, min(size, LARGEST_GROUP))


class GroupedOptimizer(Optimizer):
    """An optimizer whose `update` accepts single arrays or lists of any length, on one device, and
    updates them in groups.

    A subclass defines `_step(indices, weights, grads, states, lrs, wds)` for a group,
    `_step_one(index, weight, grad, state, lr, wd)`, or, with `combines`, `_phases`.
    """

    # True if a user's `update` of a subclass gets lists, as in MXNet for SGD, LARS and LAMB.
    _passes_lists = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        grouped = self._passes_lists or not self._is_overridden()
        self.aggregate_num: int = aggregation_size() if grouped else 0

    def _is_overridden(self):
        """True if a user's subclass overrides the update."""
        kind = type(self)
        return (
            kind.update is not GroupedOptimizer.update
            or kind.update_multi_precision is not Optimizer.update_multi_precision
        )

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        indices, weights, grads, states = as_lists(index, weight, grad, state)
        if kinds.is_numpy(weights[0]):
            weights, grads, states = map_arrays(kinds.plain, [weights, grads, states])
        for i in indices:
            self.refuse_part(i)
        if any(isinstance(array, BaseSparseNDArray) for array in (*grads, *weights)):
            for one in zip(indices, weights, grads, states):
                update_rows(self, *one)
            return
        written = self._written(weights, states)
        with self._counting_changes([(self._index_update_count, indices, written)]):
            self._update_all(indices, weights, grads, states)

    def _written(self, weights, states):
        """Returns for each weight an array that every update writes, to detect updates."""
        return weights

    @contextmanager
    def _counting_changes(self, parts: Sequence[tuple[Any, Any, Any]]) -> Iterator[None]:
        """Returns the scope of an update of `parts`: (update counts, indices, arrays). After an
        error or an interrupt, weights whose array did not change are not counted."""
        num_update = self.num_update
        before = [
            (counts, i, counts.get(i), array, version)
            for counts, indices, arrays in parts
            for i, array, version in zip(indices, arrays, versions(arrays))
        ]
        try:
            yield
        except BaseException:  # includes interrupts
            same = [one for one in before if versions([one[3]]) == [one[4]]]
            for counts, i, count, _, _ in same:
                counts[i] = count
                if count is None:
                    del counts[i]
            if len(same) == len(before):
                self.num_update = num_update
            raise

    def update_parts(self, parts: Sequence[tuple[int, Any, Any, Any, Any]]) -> None:
        """Updates all parts of parameters that are split along an axis with `combines`.

        Parameters
        ----------
        parts : list of tuple
            For each device, the key of its update counts, and lists of indices, weights, gradients
            and states. The k-th entries of all lists belong to the k-th parameter.
        """
        counted = [
            (self.count_on(key), indices, self._written(weights, states))
            for key, indices, weights, _, states in parts
        ]
        with self._counting_changes(counted):
            begun, casts = [], []
            for key, indices, weights, grads, states in parts:
                self.count_on(key)
                rates = self._begin(indices)
                *arrays, own_casts = self._masters(weights, grads, states)
                begun.append(self._begin_phases(indices, *arrays, *rates))
                casts += own_casts
            self._run_phases(begun, casts)

    # An optimizer with `combines` defines the generator
    # _phases(indices, weights, grads, states, lrs, wds) for the weights on one device. It first
    # yields tuples (changes (`_core.at_once`), arrays), usually one; these changes, or ops that ran
    # before, fill the arrays with sums over the weights' elements. The caller replaces the arrays
    # in place by their totals over all parts. Finally, the generator yields the list of the changes
    # that update weights and states. If the changes of a tuple are empty, the arrays already hold
    # the totals when the generator resumes. Otherwise, all changes run together at the end.

    def _phases(self, indices, weights, grads, states, lrs, wds):
        raise NotImplementedError(f"{type(self).__name__} must define _step, _step_one or _phases")

    _total = staticmethod(nd.sum)  # op that computes a total along axis 0

    def _begin_phases(self, *arguments):
        """Returns the generator and its first result."""
        phases = self._phases(*arguments)
        return phases, next(phases)

    def _run_phases(self, begun, also=()):
        """Runs the changes of all parts and the changes `also`. `begun` has the result of
        `_begin_phases` for each part."""
        phases, results = zip(*begun)
        held = []
        while isinstance(results[0], tuple):
            firsts, sums = zip(*results)
            changes = list(chain(*firsts, *[self._totals(arrays) for arrays in zip(*sums)]))
            if any(firsts):
                held += changes
            else:
                at_once(*changes)
            results = [next(phase) for phase in phases]
        at_once(*held, *chain(*results), *also)

    def _totals(self, arrays):
        """Returns the changes that replace the arrays, one on each device, by their sum
        (all-reduce)."""
        first, *others = arrays
        if not others:
            return []
        every = nd.empty((len(arrays), *first.shape), ctx=first.context, dtype=first.dtype)
        return [
            *[(array.copyto, every[i]) for i, array in enumerate(arrays)],
            (partial(self._total, every, axis=0, out=first),),
            *[(first.copyto, other) for other in others],
        ]

    def _update_all(self, indices, weights, grads, states):
        lrs, wds = self._begin(indices)
        if len(indices) <= LARGEST_GROUP:
            self._step(indices, weights, grads, states, lrs, wds)
            return
        for i in range(0, len(indices), LARGEST_GROUP):
            group = slice(i, i + LARGEST_GROUP)
            self._step(
                indices[group], weights[group], grads[group], states[group], lrs[group], wds[group]
            )

    def _begin(self, indices):
        """Counts the updates. Returns learning rates and weight decays, all checked before anything
        changes."""
        if not math.isfinite(self.rescale_grad):
            raise ValueError(
                f"{type(self).__name__}: rescale_grad must be a finite number, got "
                f"{self.rescale_grad}"
            )
        self._update_count(indices)
        return self._get_lrs(indices), self._get_wds(indices)

    draws_one_by_one = False

    def _step(self, indices, weights, grads, states, lrs, wds):
        for arguments in zip(indices, weights, grads, states, lrs, wds):
            with self.numbers_of(arguments[0]):
                self._step_one(*arguments)

    def _step_one(self, *arguments):
        self._run_phases([self._begin_phases(*[[value] for value in arguments])])

    def _multi_numbers(self, count):
        raise NotImplementedError(f"{type(self).__name__} must define _multi_numbers, as _multi")

    # An optimizer that updates all weights of a device with one op may define two methods for
    # MultiStep. _multi(weights, states) returns the op's name and the lists of its arrays other
    # than weights and gradients, or None if it does not support these weights.
    # _multi_numbers(count) returns a factor for the learning rates of the count-th update, and the
    # op's options.

    # True if a `clip_gradient` of 0 clips gradients to zero, as in MXNet for some optimizers.
    # Otherwise, it disables clipping.
    _clips_to_zero = False

    def _family(self, index):
        """Returns the family of a parameter that is a part of a split parameter, or None."""
        return getattr(self.param_dict.get(index), "family", None)

    def _options(self, **options):
        """Adds the options that all update ops share to the given options, and returns them."""
        options["rescale_grad"] = self.rescale_grad
        if self.clip_gradient or (self._clips_to_zero and self.clip_gradient is not None):
            options["clip_gradient"] = self.clip_gradient
        return options

    def _gradient(self, grad):
        """Returns the gradient for the formulas: rescaled, then clipped."""
        grad = grad * self.rescale_grad
        return (
            grad
            if self.clip_gradient is None
            else nd.clip(grad, -self.clip_gradient, self.clip_gradient)
        )


class CountedOptimizer(GroupedOptimizer):
    """An optimizer with one op for several weights, whose coefficients depend on the number of
    updates (`_multi_numbers`).

    A subclass sets `_op` to the name of the op. If it sets `_mixed_op`, the op for float32 copies
    of 16-bit weights, the Trainer updates these weights in one call as well.
    """

    _op: str
    _mixed_op: str | None = None

    def _step(self, indices, weights, grads, states, lrs, wds):
        """Updates weights in groups with equal update counts, because their update has the same
        coefficients."""
        groups: dict[int, list[int]] = {}
        for k, index in enumerate(indices):
            groups.setdefault(self._index_update_count[index], []).append(k)
        for count, group in groups.items():
            factor, options = self._multi_numbers(count)
            weights_, grads_, states_, lrs_, wds_ = (
                [values[k] for k in group] for values in (weights, grads, states, lrs, wds)
            )
            update_group(
                getattr(nd._internal, self._op),
                weights_,
                (grads_, *zip(*states_)),
                [lr * factor for lr in lrs_],
                wds_,
                **options,
            )

    def _multi(self, weights, states):
        if not self.multi_precision or dtype_name(weights[0]) not in HALF:
            return self._op, list(zip(*states))
        if self._mixed_op is None:
            return None
        masters, inner = zip(*states)
        return self._mixed_op, [*zip(*inner), masters]


class DecayedMeans(GroupedOptimizer):
    """Base class of optimizers whose states are two running means, with the decay rates `beta1` and
    `beta2`."""

    def __init__(self, beta1: float, beta2: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        domain.decay(beta1=beta1, beta2=beta2)
        self.beta1 = beta1
        self.beta2 = beta2

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return (zeros_like_state(weight), zeros_like_state(weight))


def replace(*pairs: tuple[NDArray, NDArray]) -> None:
    """Replaces the values of arrays atomically: pairs of (array, new value), in this order."""
    at_once(*[(value.copyto, array) for array, value in pairs])


def group_change(
    op: Callable[..., Any],
    weights: Sequence[NDArray],
    others: Sequence[Sequence[Any]],
    lrs: Sequence[float],
    wds: Sequence[float],
    **options: Any,
) -> tuple[Any]:
    """Returns the change (`_core.at_once`) that calls an update op for several weights. `others`
    are lists (gradients, states, ...) with the length of `weights`."""
    every = 1 + len(others)
    arrays = [None] * (len(weights) * every)
    arrays[::every] = weights
    for i, part in enumerate(others, 1):
        arrays[i::every] = part
    return (
        partial(op, *arrays, out=weights, num_weights=len(weights), lrs=lrs, wds=wds, **options),
    )


def update_group(*args: Any, **options: Any) -> None:
    """Calls an update op for several weights; see `group_change`."""
    at_once(group_change(*args, **options))


def updates_parts(optimizer: Optimizer, axis: int) -> bool:
    """True if `update_parts` must update parameters that are split along an axis. False if a user's
    subclass overrides the update."""
    return optimizer.combines(axis) and type(optimizer).update is GroupedOptimizer.update


def multi_numbers(optimizer: Optimizer) -> Callable[[int], tuple[float, dict[str, Any]]]:
    """Returns a function that maps the number of an update to (factor for its learning rates,
    options of the update op)."""
    return optimizer._multi_numbers
