"""Learning rates that change with the number of updates.

A scheduler is called with the number of updates done so far and returns the learning rate. During
the first `warmup_steps` updates the rate rises linearly from `warmup_begin_lr` to `base_lr`, or
stays at `warmup_begin_lr` (mode "constant").
"""

from __future__ import annotations

import logging
import math
import warnings

from ._internal import domain
from ._internal.domain import Default
from ._internal.hints import SCHEDULERS, OptionsChecked, constructed, near_names

__all__ = [
    "LRScheduler",
    "FactorScheduler",
    "MultiFactorScheduler",
    "PolyScheduler",
    "CosineScheduler",
]

near_names(__name__, **SCHEDULERS)


def _set(scheduler, **values):
    """Sets related attributes atomically: after an interrupt, all have their old or all their new
    values."""
    vars(scheduler).update(values)


def _check_factor(factor):
    domain.number(factor=factor)
    if factor > 1.0:
        raise ValueError(
            f"factor must be at most 1 so that the learning rate decreases, got {factor}"
        )


class LRScheduler(OptionsChecked):
    """Base of all schedulers.

    Parameters: `base_lr` is the rate after warm-up, `warmup_steps` the number of warm-up updates,
    `warmup_begin_lr` the rate of the first of them, and `warmup_mode` "linear" or "constant".
    Raises ValueError if a rate is not finite or `warmup_begin_lr` is above `base_lr`.

    Examples
    --------
    >>> class Halved(mx.lr_scheduler.LRScheduler):
    ...     def __call__(self, num_update):
    ...         return self.base_lr / 2
    ...
    >>> mx.optimizer.SGD(lr_scheduler=Halved(base_lr=0.5)).learning_rate
    0.25
    """

    def __init__(
        self,
        base_lr: float = Default(0.01),
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        domain.number(base_lr=base_lr, warmup_begin_lr=warmup_begin_lr)
        domain.size(0, warmup_steps=warmup_steps)
        # An optimizer's default learning rate does not replace a base_lr that the program passed.
        self.base_lr_given: bool = not isinstance(base_lr, Default)
        self.base_lr: float = base_lr if self.base_lr_given else float(base_lr)
        self.warmup_steps = warmup_steps
        self.warmup_final_lr: float = self.base_lr
        self.warmup_begin_lr = warmup_begin_lr
        if warmup_begin_lr > base_lr:
            raise ValueError(
                f"warmup_begin_lr ({warmup_begin_lr}) must not exceed base_lr ({base_lr})"
            )
        if warmup_mode not in ("linear", "constant"):
            raise ValueError(f"warmup_mode must be 'linear' or 'constant', got {warmup_mode!r}")
        self.warmup_mode = warmup_mode

    def __repr__(self) -> str:
        return constructed(self, ("base_lr",))

    def get_warmup_lr(self, num_update: int) -> float:
        """Returns the rate at an update before `warmup_steps`."""
        if num_update >= self.warmup_steps:
            raise ValueError(f"update {num_update} is past the {self.warmup_steps} warm-up steps")
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        rise = (
            (self.warmup_final_lr - self.warmup_begin_lr)
            * float(num_update)
            / float(self.warmup_steps)
        )
        return self.warmup_begin_lr + rise

    def __call__(self, num_update: int) -> float:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(num_update)")


class _Falling(LRScheduler):
    """Base of schedulers whose `base_lr` falls as updates pass.

    A Trainer that loads an earlier state asks for an earlier update; the decay then restarts from
    the first rate.
    """

    _start: dict[str, float] | None = None  # attributes before the first decay
    count: int

    def _keep_start(self):
        if self._start is None:
            names = ("base_lr", "count", "cur_step_ind")
            _set(self, _start={name: vars(self)[name] for name in names if name in vars(self)})

    def _rewind(self, num_update):
        if self._start is not None and num_update <= self.count:
            _set(self, **self._start, _start=None)


class FactorScheduler(_Falling):
    """Multiplies the rate by `factor` after every `step` updates, down to `stop_factor_lr`.

    Examples
    --------
    >>> schedule = mx.lr_scheduler.FactorScheduler(step=10, factor=0.5, base_lr=1.0)
    >>> [schedule(update) for update in (1, 11, 21)]
    [1.0, 0.5, 0.25]
    """

    def __init__(
        self,
        step: int,
        factor: float = 1,
        stop_factor_lr: float = 1e-8,
        base_lr: float = Default(0.01),
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        domain.at_least(1, step=step)
        domain.number(stop_factor_lr=stop_factor_lr)
        self.step = step
        _check_factor(factor)
        self.factor = factor
        self.stop_factor_lr = stop_factor_lr
        self.count = 0

    def __call__(self, num_update: int) -> float:
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        self._rewind(num_update)
        while num_update > self.count + self.step:
            lr = self.base_lr * self.factor
            floor = lr < self.stop_factor_lr
            self._keep_start()
            _set(self, count=self.count + self.step, base_lr=self.stop_factor_lr if floor else lr)
            logging.info(
                "Update[%d]: learning rate %s %0.5e",
                num_update,
                "has reached its floor," if floor else "is now",
                self.base_lr,
            )
        return self.base_lr


class MultiFactorScheduler(_Falling):
    """Multiplies the rate by `factor` after each of the update numbers in `step`, which increase.

    Examples
    --------
    >>> schedule = mx.lr_scheduler.MultiFactorScheduler([5, 8], factor=0.5, base_lr=1.0)
    >>> [schedule(update) for update in (1, 6, 9)]
    [1.0, 0.5, 0.25]
    """

    def __init__(
        self,
        step: list[int],
        factor: float = 1,
        base_lr: float = Default(0.01),
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if not isinstance(step, list) or not step:
            raise TypeError(f"step must be a list of at least one update number, got {step!r}")
        for one in step:
            domain.at_least(1, step=one)
        if any(later <= earlier for earlier, later in zip(step, step[1:])):
            raise ValueError(f"update numbers in step must be increasing, got {step}")
        self.step = step
        self.cur_step_ind = 0
        _check_factor(factor)
        self.factor = factor
        self.count = 0

    def __call__(self, num_update: int) -> float:
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        self._rewind(num_update)
        while self.cur_step_ind < len(self.step) and num_update > self.step[self.cur_step_ind]:
            self._keep_start()
            _set(
                self,
                count=self.step[self.cur_step_ind],
                cur_step_ind=self.cur_step_ind + 1,
                base_lr=self.base_lr * self.factor,
            )
            logging.info("Update[%d]: learning rate is now %0.5e", num_update, self.base_lr)
        return self.base_lr


class _Annealing(LRScheduler):
    """Base of schedulers that follow a curve from `base_lr` to `final_lr` in `max_update` updates.

    `max_update` includes the warm-up. The rate is constant afterwards.
    """

    def __init__(
        self,
        max_update: int,
        base_lr: float,
        final_lr: float,
        warmup_steps: int,
        warmup_begin_lr: float,
        warmup_mode: str,
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        domain.size(1, max_update=max_update)
        domain.number(final_lr=final_lr)
        self.max_update = max_update
        self.base_lr_orig: float = self.base_lr
        self.final_lr = final_lr
        self.max_steps: int = self.max_update - self.warmup_steps
        if self.max_steps <= 0:
            warnings.warn(
                f"{type(self).__name__}: max_update ({max_update}) includes the "
                f"{warmup_steps} warm-up steps, so the rate never decays; pass a larger max_update",
                stacklevel=3,
            )

    def _curve(self, span, done):
        """Returns the remainder of `span`, `base_lr - final_lr`, after `done` of `max_steps`
        updates."""
        raise NotImplementedError(f"{type(self).__name__} does not define _curve")

    def __call__(self, num_update: int) -> float:
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        if self.max_steps > 0:
            span, done = self.base_lr_orig - self.final_lr, min(num_update, self.max_update)
            self.base_lr: float = self.final_lr + self._curve(span, done - self.warmup_steps)
        return self.base_lr


class PolyScheduler(_Annealing):
    """Decays the rate as a power.

    The rate is `final_lr + (base_lr - final_lr) * (1 - t / max_steps) ** pwr`.

    Examples
    --------
    >>> schedule = mx.lr_scheduler.PolyScheduler(max_update=10, base_lr=1.0, pwr=1)
    >>> [schedule(update) for update in (0, 5, 10)]
    [1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        max_update: int,
        base_lr: float = Default(0.01),
        pwr: float = 2,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(max_update, base_lr, final_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        domain.number(pwr=pwr)
        self.power = pwr

    def _curve(self, span, done):
        return span * (1 - float(done) / float(self.max_steps)) ** self.power


class CosineScheduler(_Annealing):
    """Decays the rate along half a cosine.

    The rate is `final_lr + (base_lr - final_lr) * (1 + cos(pi * t / max_steps)) / 2`.

    Examples
    --------
    >>> schedule = mx.lr_scheduler.CosineScheduler(max_update=10, base_lr=1.0)
    >>> [round(schedule(update), 3) for update in (0, 5, 10)]
    [1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        max_update: int,
        base_lr: float = Default(0.01),
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(max_update, base_lr, final_lr, warmup_steps, warmup_begin_lr, warmup_mode)

    def _curve(self, span, done):
        return span * (1 + math.cos(math.pi * done / self.max_steps)) / 2
