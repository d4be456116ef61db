"""Samplers of places at equal distances."""

from __future__ import annotations

from ...data import sampler

__all__ = ["IntervalSampler"]


class IntervalSampler(sampler.IntervalSampler):
    """The numbers 0, `interval`, 2 `interval`, ... below `length`; with `rollover` then 1, 1 +
    `interval`, ... until all were there.

    Parameters
    ----------
    length, interval : int
        How many samples there are, and how far apart the ones of a round are. AssertionError if
        `interval` is the larger one.
    rollover : bool, default True
        Whether to go on with the samples that were passed over.

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
