"""Updates all weights on one device in one call. The call is prepared once. Each step then only
supplies a few numbers, which reduces the overhead on the host."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

from .._core import MultiUpdate, holds, set_attributes
from ..base import MXNetError
from .grouped import multi_numbers
from .optimizer import counting_steps
from .updater import keep_momenta

if TYPE_CHECKING:
    from typing import Any

    from ..optimizer.updater import Updater

# Methods that a subclass may override. If it does, its own code must run.
_STEPS = (
    "update",
    "update_multi_precision",
    "_update_all",
    "_begin",
    "_step",
    "_step_one",
    "_step_alike",
    "_through_master",
    "_update_count",
    "_get_lr",
    "_get_lrs",
    "_get_wd",
    "_get_wds",
    "_multiplier",
    "_multipliers",
    "_options",
    "_sgd",
    "_momentum_option",
    "learning_rate",
)


def _known_steps(optimizer):
    """True if no subclass overrides the steps of the class that defines `_multi`."""
    classes = type(optimizer).__mro__
    own = next((i for i, kind in enumerate(classes) if "_multi" in vars(kind)), None)
    return (
        own is not None
        and not any(name in vars(kind) for kind in classes[:own] for name in _STEPS)
        and not any(name in vars(optimizer) for name in _STEPS)
    )


class MultiStep:
    """Updates lists of weights, gradients and states, as long as these arrays and the multipliers
    of their rates do not change.

    `parts` are tuples (indices, grads, weights), each with weights of one dtype, as returned by
    `Updater.alike`, but without a limit on the length.
    """

    def __init__(self, updater: Updater, parts: Any, changes: int) -> None:
        optimizer = updater.optimizer
        # The optimizer owns this object (`counting_steps`), so a strong reference would be a cycle.
        self._optimizer = weakref.ref(optimizer)
        self._states, self._params = updater.states, optimizer.param_dict
        self._changes, self._momenta = changes, keep_momenta(optimizer)
        self.indices: list[Any] = []
        self._held, self._updates, self._rates = [], [], []
        for indices, grads, weights in parts:
            states = [updater.states[i] for i in indices]
            member = optimizer.of(indices[0])
            op, others = member._multi(weights, states)
            rates = [
                float(factor)
                for i in indices
                for factor in (self._params[i].lr_mult, self._params[i].wd_mult)
            ]
            arrays = [array for arrays in zip(weights, grads, *others) for array in arrays]
            update = MultiUpdate(op, arrays, 2 + len(others), rates)
            self._updates.append((update, None if member is optimizer else member))
            self.indices += indices
            self._held += states
            self._rates += rates
        self._good = all(math.isfinite(rate) for rate in self._rates) and min(self._rates[::2]) >= 0
        self._largest = max(self._rates[::2]), max(map(abs, self._rates[1::2]))
        # The device's update counts if all weights have the same count, else None. `count` is this
        # count. `write_counts` copies it to `counts` lazily; `_written` is the last copied value.
        self.counts: dict[Any, int] | None = None
        self.count: int = 0
        self._written = 0

    def _same_factors(self, changes):
        params = self._params
        if self._rates != [
            factor for i in self.indices for factor in (params[i].lr_mult, params[i].wd_mult)
        ]:
            return False
        self._changes = changes
        return True

    def _same_counts(self, optimizer, counts):
        """True if all weights have been updated the same number of times."""
        if self.counts is counts:
            return True
        for step in counting_steps(optimizer):
            step.write_counts()
        known = {counts.get(i, optimizer.begin_num_update) for i in self.indices}
        count = known.pop()
        if known:
            return False
        self.counts, self.count, self._written = counts, count, count
        counting_steps(optimizer).add(self)
        return True

    def write_counts(self) -> None:
        """Writes the current count to the device's update counts."""
        if self._written != self.count:
            self.counts.update(dict.fromkeys(self.indices, self.count))
            self._written = self.count

    def holds(self, updater: Updater) -> bool:
        """True if the updater still uses the states that this object was created for."""
        return (
            updater.optimizer is self._optimizer()
            and keep_momenta(updater.optimizer) == self._momenta
            and updater.states is self._states
            and holds(self._states, self.indices, self._held)
        )

    def step(self, steps: list[Any], device_id: int, changes: int, num_update: int) -> int | None:
        """Adds the changes (`_core.at_once`) that update and count the weights to `steps`. Returns
        the new `num_update`, or None if a precondition no longer holds."""
        optimizer = self._optimizer()
        if optimizer.param_dict is not self._params:
            return None
        if (
            not self._good
            or not math.isfinite(optimizer.rescale_grad)
            or (changes != self._changes and not self._same_factors(changes))
        ):
            return None
        if not self._same_counts(optimizer, optimizer.count_on(device_id)):
            return None
        for update, _ in self._updates:
            if not update.ready():
                return None
        count = self.count + 1
        num_update = max(num_update, count)
        largest_lr, largest_wd = self._largest
        numbers: dict[Any, tuple[Any, ...]] = {}
        for _, member in self._updates:
            if member in numbers:
                continue
            own = member or optimizer
            lr, wd = own.rate_at(num_update), own.wd
            if not (lr >= 0 and math.isfinite(lr * largest_lr) and math.isfinite(wd * largest_wd)):
                return None
            correction, options = multi_numbers(own)(count)
            numbers[member] = lr, correction, wd, options
        for update, member in self._updates:
            steps.append((update, *numbers[member]))
        steps.append((set_attributes, self, "count", count))
        steps.append((set_attributes, optimizer, "num_update", num_update))
        return num_update


def prepare(updater: Updater, parts: Any, changes: int) -> Any:
    """Returns a MultiStep, or None if the optimizer does not support it for these weights."""
    optimizer = updater.optimizer
    if not parts or not optimizer.param_dict or not all(map(_known_steps, optimizer.members)):
        return None
    for indices, _, weights in parts:
        updater.prepare(indices, weights)
        if (
            not all(i in optimizer.param_dict for i in indices)
            or optimizer.of(indices[0])._multi(weights, [updater.states[i] for i in indices])
            is None
        ):
            return None
    try:
        return MultiStep(updater, parts, changes)
    except MemoryError:
        raise
    except MXNetError:  # for example, weights that share memory
        return None
