"""Measurements between ranks: the hosts they run on, their clocks, and how quickly data goes from
one to another. All ranks call each function."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from .. import _core, _ranks, ndarray as nd
from ..context import cpu, num_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL, _LARGE = 4 << 10, 16 << 20  # bytes of what latency and bandwidth are measured with
_ROUNDS = 20  # there and back, of latency
# Messages there and back, of which the quickest tells a clock's offset: so many, and more until one
# took less than so many nanoseconds, for so many seconds at most
_PINGS, _QUICK, _PATIENCE = 50, 20_000, 1.0
ALL_PAIRS = 8  # ranks; of more, each measures what lies between it and the next


def gather_to_first(what: str, text: str) -> list[str] | None:
    """The texts of all ranks, by rank, on rank 0; None elsewhere. All call it with the same
    `what`."""
    if _ranks.count() == 1:
        return [text]
    import numpy

    data = numpy.frombuffer(text.encode(), numpy.uint8)
    sizes = [int(size) for size in _ranks.gather(what, str(len(data)))]
    if _ranks.own():
        _ranks.wait(_ranks.world().Isend(data, 0, 1), what)
        return None
    found = [text]
    for rank in range(1, _ranks.count()):
        received = numpy.empty(sizes[rank], numpy.uint8)
        _ranks.wait(_ranks.world().Irecv(received, rank, 1), what)
        found.append(received.tobytes().decode())
    return found


def clock_offsets(clock: Callable[[], int] = time.monotonic_ns) -> list[int]:
    """By rank, nanoseconds that its clock is ahead of rank 0's: of many messages there and back,
    the quickest, halfway through which the other's clock was read."""
    import numpy

    own, world, offsets = _ranks.own(), _ranks.world(), {}
    _ranks.gather("clocks", "")
    message = numpy.zeros(1, numpy.int64)
    for rank in range(1, _ranks.count()):
        best, pings = None, 0  # best: (nanoseconds there and back, offset)
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
    offsets = _ranks.join(offsets)
    return [0, *[offsets[rank] for rank in range(1, _ranks.count())]]


def _spin(request):
    """Waits without sleeping, for a while."""
    for _ in range(20_000):
        if request.Test():
            return
    _ranks.wait(request, "clocks")


def hosts() -> list[dict[str, Any]]:
    """By rank: the name of its `host`, its `process`, its `cores` and `gpus`."""
    import platform

    own = {
        "host": platform.node(),
        "process": os.getpid(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": num_gpus(),
    }
    joined = _ranks.join({_ranks.own(): own})
    return [joined[rank] for rank in range(_ranks.count())]


def library() -> str:
    """The MPI library and its version."""
    from mpi4py import MPI

    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip().rstrip("\0")


def pairs() -> list[tuple[int, int]]:
    """The pairs of ranks that are measured: all, or of many each rank and the next."""
    count = _ranks.count()
    if count > ALL_PAIRS:
        return [(rank, (rank + 1) % count) for rank in range(count)]
    return [(a, b) for a in range(count) for b in range(count) if a != b]


def measure(chosen: list[tuple[int, int]] | None = None) -> dict[tuple[int, int], Any]:
    """By pair of ranks: seconds that 4 KB take from a CPU device of the one to that of the other,
    and bytes a second of 16 MB. One pair after the other, each timed by its first rank, as a
    program's copies go."""
    chosen, count, found = pairs() if chosen is None else chosen, _ranks.count(), {}
    for a, b in chosen:
        ends = cpu(0, rank=a), cpu(0, rank=b)
        small, large = (nd.ones((size,), ctx=ends[0], dtype="uint8") for size in (_SMALL, _LARGE))
        latency = min(_seconds(a, lambda s=small, e=ends: _there_and_back(s, *e))) / (2 * _ROUNDS)
        taken = min(
            _seconds(a, lambda s=large, e=ends: s.as_in_context(e[1])[:1].as_in_context(e[0]))
        )
        if _ranks.own() == a:
            found[a * count + b] = [latency, _LARGE / max(taken - latency, 1e-9)]
    return {divmod(key, count): tuple(value) for key, value in _ranks.join(found).items()}


def _there_and_back(array, here, there):
    for _ in range(_ROUNDS):
        array = array.as_in_context(there).as_in_context(here)
    return array


def _seconds(rank, work, repeats=4):
    """Of the work on that rank, several times; all ranks queue it."""
    taken = []
    for _ in range(repeats):
        _core.waitall()
        _ranks.barrier()
        begin = time.perf_counter()
        result = work()
        if _ranks.own() == rank:
            result.wait_to_read()
        taken.append(time.perf_counter() - begin)
    return taken[1:]
