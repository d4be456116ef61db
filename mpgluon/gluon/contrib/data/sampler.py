"""Samplers of evenly spaced indices."""

from __future__ import annotations

from ...data import sampler

__all__ = ["IntervalSampler"]


class IntervalSampler(sampler.IntervalSampler):
    """Samples the indices 0, `interval`, 2 `interval`, ... below `length`. With `rollover`,
    continues with 1, 1 + `interval`, ... until every index was sampled.

    Parameters
    ----------
    length, interval : int
        Number of samples, and distance between consecutive indices. Raises AssertionError if
        `interval` is larger than `length`.
    rollover : bool, default True
        Whether to continue with the indices that were skipped.

    Examples
    --------
    >>> list(gluon.contrib.data.IntervalSampler(6, 3, rollover=False))
    [0, 3]
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        if interval > length:
            raise AssertionError(
                f"Interval {interval} must be smaller than or equal to length {length}"
            )
        super().__init__(length, interval, rollover)
