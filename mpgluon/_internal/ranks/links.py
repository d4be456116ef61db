"""Measures properties of ranks: hosts, clock offsets, and the latency and bandwidth between ranks.

All ranks call each function.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ... import _core, ndarray as nd
from ...context import cpu, num_gpus
from .. import ranks

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL, _LARGE = 4 << 10, 16 << 20  # bytes of the copies that measure latency and bandwidth
_ROUNDS = 20  # round trips of a latency measurement
# Measurement of a clock offset: at least _PINGS round trips, then more until a round trip takes
# less than _QUICK nanoseconds or _PATIENCE seconds have passed.
_PINGS, _QUICK, _PATIENCE = 50, 20_000, 1.0
ALL_PAIRS = 8  # largest number of ranks for which all pairs are measured


def gather_to_first(what: str, text: str) -> list[str] | None:
    """Returns the texts of all ranks, by rank, on rank 0 and None on other ranks. All ranks call it
    with the same `what`."""
    if ranks.count() == 1:
        return [text]
    import numpy

    data = numpy.frombuffer(text.encode(), numpy.uint8)
    sizes = [int(size) for size in ranks.gather(what, str(len(data)))]
    if ranks.own():
        ranks.wait(ranks.world().Isend(data, 0, 1), what)
        return None
    found = [text]
    for rank in range(1, ranks.count()):
        received = numpy.empty(sizes[rank], numpy.uint8)
        ranks.wait(ranks.world().Irecv(received, rank, 1), what)
        found.append(received.tobytes().decode())
    return found


def clock_offsets(clock: Callable[[], int] = time.monotonic_ns) -> list[int]:
    """Returns the nanoseconds by which each rank's clock is ahead of rank 0's clock.

    The offset is taken from the fastest of many round trips. It assumes that the other rank read
    its clock halfway through the round trip.
    """
    import numpy

    own, world, offsets = ranks.own(), ranks.world(), {}
    ranks.gather("clocks", "")
    message = numpy.zeros(1, numpy.int64)
    for rank in range(1, ranks.count()):
        best, pings = None, 0  # best: (nanoseconds of the round trip, offset)
        until = time.monotonic() + _PATIENCE
        while own == 0:
            pings += 1
            last = time.monotonic() > until or (pings > _PINGS and best[0] < _QUICK)
            message[0] = last
            begin = clock()
            _spin(world.Isend(message, rank, 2))
            _spin(world.Irecv(message, rank, 2))
            end = clock()
            sample = end - begin, int(message[0]) - (begin + end) // 2
            best = sample if best is None else min(best, sample)
            if last:
                offsets[rank] = best[1]
                break
        while own == rank:
            _spin(world.Irecv(message, 0, 2))
            last = message[0]
            message[0] = clock()
            _spin(world.Isend(message, 0, 2))
            if last:
                break
    offsets = ranks.join(offsets)
    return [0, *[offsets[rank] for rank in range(1, ranks.count())]]


def _spin(request):
    """Waits for a request. Spins at first, because a sleep would add to the measured time."""
    for _ in range(20_000):
        if request.Test():
            return
    ranks.wait(request, "clocks")


def hosts() -> list[dict[str, Any]]:
    """Returns a dict for each rank: the name of its `host`, its `process` id, and its numbers of
    `cores` and `gpus`."""
    import platform

    own = {
        "host": platform.node(),
        "process": os.getpid(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": num_gpus(),
    }
    joined = ranks.join({ranks.own(): own})
    return [joined[rank] for rank in range(ranks.count())]


def library() -> str:
    """Returns the name and the version of the MPI library."""
    from mpi4py import MPI

    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip().rstrip("\0")


def pairs() -> list[tuple[int, int]]:
    """Returns the pairs of ranks to measure: all pairs, or each rank and the next one if there are
    more than `ALL_PAIRS` ranks."""
    count = ranks.count()
    if count > ALL_PAIRS:
        return [(rank, (rank + 1) % count) for rank in range(count)]
    return [(a, b) for a in range(count) for b in range(count) if a != b]


def measure(chosen: list[tuple[int, int]] | None = None) -> dict[tuple[int, int], Any]:
    """Returns {(rank, rank): (latency, bandwidth)} of copies between the ranks' CPU devices.

    Latency is the seconds of a 4 KB copy, and bandwidth the bytes per second of a 16 MB copy. Pairs
    are measured one after another with ordinary array copies. The first rank of a pair takes the
    time.
    """
    chosen, count, found = pairs() if chosen is None else chosen, ranks.count(), {}
    for a, b in chosen:
        ends = cpu(0, rank=a), cpu(0, rank=b)
        small, large = (nd.ones((size,), ctx=ends[0], dtype="uint8") for size in (_SMALL, _LARGE))
        latency = min(_seconds(a, lambda s=small, e=ends: _there_and_back(s, *e))) / (2 * _ROUNDS)
        taken = min(
            _seconds(a, lambda s=large, e=ends: s.as_in_context(e[1])[:1].as_in_context(e[0]))
        )
        if ranks.own() == a:
            found[a * count + b] = [latency, _LARGE / max(taken - latency, 1e-9)]
    return {divmod(key, count): tuple(value) for key, value in ranks.join(found).items()}


def _there_and_back(array, here, there):
    for _ in range(_ROUNDS):
        array = array.as_in_context(there).as_in_context(here)
    return array


def _seconds(rank, work, repeats=4):
    """Runs `work` on all ranks, first as a warm-up, then `repeats` times. Returns the seconds of
    each repetition, measured on `rank`."""
    taken = []
    for _ in range(repeats):
        _core.waitall()
        ranks.barrier()
        begin = time.perf_counter()
        result = work()
        if ranks.own() == rank:
            result.wait_to_read()
        taken.append(time.perf_counter() - begin)
    return taken[1:]
