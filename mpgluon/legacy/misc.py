"""MXNet's module of this name: learning rates by iteration, which `mx.lr_scheduler` replaced."""

from __future__ import annotations

import logging

__all__ = ["FactorScheduler", "LearningRateScheduler"]


class LearningRateScheduler:
    """The base: ``scheduler(iteration)`` returns a rate; `base_lr` is the first one.

    Examples
    --------
    >>> mx.misc.LearningRateScheduler().base_lr
    0.01
    """

    def __init__(self) -> None:
        self.base_lr: float = 0.01

    def __call__(self, iteration: int) -> float:
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


class FactorScheduler(LearningRateScheduler):
    """Multiplies the rate by `factor` every `step` iterations.

    Examples
    --------
    >>> mx.misc.FactorScheduler(10, 0.5)(25)
    0.0025
    """

    def __init__(self, step: int, factor: float = 0.1) -> None:
        super().__init__()
        if step < 1:
            raise ValueError("Schedule step must be greater or equal than 1 round")
        if factor >= 1.0:
            raise ValueError("Factor must be less than 1 to make lr reduce")
        self.step: int = step
        self.factor: float = factor
        self.old_lr: float | None = None

    def __call__(self, iteration: int) -> float:
        rate = self.base_lr * self.factor ** (iteration // self.step)
        if self.old_lr is not None and rate != self.old_lr:
            logging.info("At Iteration [%d]: the learning rate is %.5f", iteration, rate)
        self.old_lr = rate
        return rate
