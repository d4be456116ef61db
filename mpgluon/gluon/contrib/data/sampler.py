"""Samplers of places at equal distances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["IntervalSampler"]


class IntervalSampler(Sampler):
    """The numbers 0, `interval`, 2 `interval`, ... below `length`; with `rollover` then 1, 1 +
    `interval`, ... until all were there.

    Parameters
    ----------
    length, interval : int
        How many samples there are, and how far apart the ones of a round are.
    rollover : bool, default True
        Whether to go on with the samples that were passed over.
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        if interval > length:
            raise AssertionError(
                f"Interval {interval} must be smaller than or equal to length {length}"
            )
        self._length = length
        self._interval = interval
        self._rollover = rollover

    def __iter__(self) -> Iterator[int]:
        for first in range(self._interval if self._rollover else 1):
            yield from range(first, self._length, self._interval)

    def __len__(self) -> int:
        return self._length if self._rollover else len(range(0, self._length, self._interval))
