"""The processes of a program that mpirun has started: MPI begins when a rank is first asked for.

mpi4py starts MPI, finds out who is who, and lends the core the library that it has opened; arrays
never go through Python (``csrc/device/ranks``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

from .. import _core
from ..base import MXNetError

# Variables that launchers set in the processes that they start: Open MPI and PRRTE, MPICH's Hydra
# and other PMI launchers, Slurm.
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALNRANKS")
_LIMIT = "MPGLUON_RANKS_TIMEOUT"
_ORDER = "MPGLUON_RANKS_SUMS"

_world = None  # of MPI, with messages apart from the program's own; None: not begun, or one process
_count = 0  # 0: not begun
_own = 0
_limit = 60.0  # seconds
_in_any_order = False  # sums
_failure = None  # the text of an exception that nobody has caught


def count() -> int:
    """The number of ranks. Begins with MPI where a launcher has started this process."""
    if not _count:
        begin()
    return _count


def own() -> int:
    """The rank of this process, from 0."""
    count()
    return _own


def any_order() -> bool:
    """Whether sums may be taken in another order than that of ranks."""
    count()
    return _in_any_order


def world() -> Any:
    """mpi4py's communicator for messages beside those of the program's transfers."""
    return _world


def launched() -> bool:
    """Whether this process was started as one of several, as far as the environment tells."""
    return "mpi4py.MPI" in sys.modules or any(name in os.environ for name in _LAUNCHED)


def _import_mpi():
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MXNetError(
            "ranks need MPI and mpi4py, which `pip install mpgluon[mpi]` installs; importing "
            f"mpi4py failed: {error}"
        ) from error
    return MPI


def _read_limit():
    text = os.environ.get(_LIMIT, "")
    try:
        limit = float(text or 60)
    except ValueError:
        limit = -1
    if not 1 <= limit <= 1e6:
        raise ValueError(f"environment variable {_LIMIT} is {text!r}; it must be seconds, 1 to 1e6")
    return limit


def _any_order():
    text = os.environ.get(_ORDER, "") or "ordered"
    if text not in ("ordered", "mpi"):
        raise ValueError(
            f"environment variable {_ORDER} is {text!r}; it must be 'ordered' (sums in the "
            "order of ranks) or 'mpi' (sums in MPI's own order)"
        )
    return text == "mpi"


def _types(mpi):
    """MPI's types of the dtypes that it can sum, by their numbers. Not of bytes: Open MPI's sums of
    these stop at the largest number, where ours wrap around."""
    numbers = {  # of csrc/tensor/dtype.h
        0: mpi.FLOAT,
        1: mpi.DOUBLE,
        4: mpi.INT32_T,
        6: mpi.INT64_T,
    }
    return {number: mpi_type.handle for number, mpi_type in numbers.items()}


def begin() -> None:
    """Begins, unless that has been done."""
    global _count, _limit
    if _count:
        return
    if not launched():
        _count = 1
        return
    try:
        _limit, any_order, wrong = _read_limit(), _any_order(), None
    except ValueError as error:
        _limit, any_order, wrong = 60.0, False, str(error)
    _core.ranks_begin_within(_limit)
    try:
        mpi = _import_mpi()
        if mpi.COMM_WORLD.size == 1:
            _count = 1
            return
        _agree(mpi, any_order, wrong)
        _begin_with(mpi, any_order)
    finally:
        _core.ranks_begun()


def _begin_with(mpi, any_order):
    global _world, _count, _own, _in_any_order
    _in_any_order = any_order
    _world = mpi.COMM_WORLD.Dup()
    transfers = mpi.COMM_WORLD.Dup()
    _core.ranks_begin(
        mpi.__file__,
        _world.rank,
        _world.size,
        transfers.handle,
        mpi.BYTE.handle,
        transfers.Get_attr(mpi.TAG_UB),
        mpi._sizeof(mpi.Request),
        _limit,
        mpi.SUM.handle,
        int(mpi.IN_PLACE),
        any_order,
        _types(mpi),
    )
    _own, _count = _world.rank, _world.size
    atexit.register(_end, os.getpid())
    _note_uncaught()
    _warn_of_binding()


def _warn_of_binding():
    """Open MPI's mpirun binds one or two ranks to a core each, which is seldom what is wanted."""
    ranks = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
    cores, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if _own == 0 and cores == 1 and ranks.isdigit() and all_cores >= 2 * int(ranks):
        warnings.warn(
            f"mpirun has bound this rank to one of {all_cores} cores, so each of its CPU "
            "devices has one thread; use mpirun --bind-to none to let all ranks use all cores",
            stacklevel=2,
        )


def _note_uncaught():
    former, process = sys.excepthook, os.getpid()

    def hook(kind, error, trace):
        global _failure
        if os.getpid() != process:  # a fork, which is no rank
            former(kind, error, trace)
            return
        _failure = f"{kind.__name__}: {error}"
        _core.ranks_tell_end(_failure)
        former(kind, error, trace)

    sys.excepthook = hook


def _agree(mpi, any_order, wrong):
    """MXNetError on all ranks, unless all can begin and mean the same."""
    from ..libinfo import __version__

    level = mpi.Query_thread()
    said = mpi.COMM_WORLD.allgather((wrong, level, __version__, any_order, _limit))
    wrongs, levels, versions, orders, limits = zip(*said)
    for rank, text in enumerate(wrongs):
        if text:
            raise ValueError(text if rank == mpi.COMM_WORLD.rank else f"on rank {rank}: {text}")
    if min(levels) < mpi.THREAD_MULTIPLE:
        raise MXNetError(
            "ranks need MPI with the thread level MPI_THREAD_MULTIPLE, but rank "
            f"{levels.index(min(levels))} has a lower level; keep the default of "
            "mpi4py.rc.thread_level, or install another MPI library"
        )
    for what, found in (("versions of mpgluon", versions), (_ORDER, orders), (_LIMIT, limits)):
        if len(set(found)) > 1:
            by_rank = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(found))
            raise MXNetError(f"the ranks have different {what}: {by_rank}")


def wait(request: Any, what: str, works: bool = False) -> None:
    """Waits for MPI's request; Ctrl-C and other threads get their turns. MXNetError when a rank is
    lost or never comes. works: all ranks are here, and what they wait for
    takes its time."""
    if request.Test():
        return
    try:
        _wait_and_look(request, what, works)
    finally:
        _core.ranks_poll_end()


def _wait_and_look(request, what, works):
    begin, pause, looked, progress = time.monotonic(), 0.0, 0.0, None
    while not request.Test():
        waited = time.monotonic() - begin
        if waited > 0.001:
            pause = min(pause * 1.5 + 0.00002, 0.002)
            _core.run_ready()  # the other ranks may wait for that work
            lost, why, _ = _core.ranks_find_lost()
            if lost >= 0:
                raise MXNetError(f"{what}: {why}")
            if waited - looked > 0.05 and not works:
                looked = waited
                progress = _core.ranks_poll(what, progress or 0, progress is not None)
            # Without `works` there is no limit to the wait: a rank may compute for long, and one
            # that is silent, has ended or waits, too, is lost.
            if waited > _limit and works:
                raise MXNetError(
                    f"{what}: rank {_own} has waited {waited:.0f} s for the other ranks, which "
                    f"have not finished ({_LIMIT})"
                )
        time.sleep(pause)


def gather(what: str, text: str) -> list[str]:
    """The texts of all ranks, by rank. All ranks call it with the same `what`."""
    if count() == 1:
        return [text]
    lost, why, _ = _core.ranks_find_lost()
    if lost >= 0:  # the ranks may have left an earlier call at different points
        raise MXNetError(f"{what}: {why}")
    import numpy

    data = numpy.frombuffer(f"{what}\0{text}".encode(), numpy.uint8)
    sizes = numpy.empty(_count, numpy.int64)
    wait(_world.Iallgather(numpy.array([len(data)], numpy.int64), sizes), what)
    starts = numpy.concatenate([[0], numpy.cumsum(sizes)[:-1]])
    everything = numpy.empty(int(sizes.sum()), numpy.uint8)
    wait(_world.Iallgatherv(data, (everything, (sizes, starts))), what)
    said = [
        everything[start : start + size].tobytes().decode().split("\0", 1)
        for start, size in zip(starts, sizes)
    ]
    if any(place != what for place, _ in said):
        raise MXNetError(
            "the ranks run different programs; they wait for each other at different calls: "
            + ", ".join(f"rank {rank} at {place!r}" for rank, (place, _) in enumerate(said))
        )
    _core.ranks_note_collective()
    return [text for _, text in said]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Leaves the arrays that this thread makes out of the sequence that the ranks compare: this
    rank alone makes them."""
    former = _core.ranks_name_arrays(False)
    try:
        yield
    finally:
        _core.ranks_name_arrays(former)


def compare(what: str, said: str) -> None:
    """MXNetError on all ranks, which call it together, unless all say the same."""
    by_rank = gather(what, said)
    if len(set(by_rank)) > 1:
        raise MXNetError(
            f"the ranks run different programs; {what} has been called "
            + ", ".join(f"with {text} by rank {rank}" for rank, text in enumerate(by_rank))
        )


def barrier() -> None:
    """Returns when all ranks have called it. They must have queued the same transfers so far."""
    if count() == 1:
        return
    transfers = gather("barrier", str(_core.ranks_statistics()["transfers"]))
    if len(set(transfers)) > 1:
        raise MXNetError(
            "the ranks run different programs; numbers of queued transfers between ranks: "
            + ", ".join(f"{n} by rank {r}" for r, n in enumerate(transfers))
        )


def join(found: dict[int, Any]) -> dict[int, Any]:
    """The dicts of all ranks as one; values are what JSON takes, keys numbers. All call it."""
    if count() == 1:
        return found
    import json

    joined = {}
    for text in gather("results", json.dumps(found)):
        joined.update((int(key), value) for key, value in json.loads(text).items())
    return joined


def agree_on_trace(text: str) -> None:
    """Raises on all ranks, showing the first line that differs, unless all have traced the same
    graph. Called by the core when it compiles one with devices of ranks."""
    import hashlib

    if len(set(gather("a new graph", hashlib.sha256(text.encode()).hexdigest()))) == 1:
        return
    graphs = [other.splitlines() for other in gather("graphs that differ", text)]
    first = 0
    while len({tuple(lines[first : first + 1]) for lines in graphs}) == 1:
        first += 1
    raise MXNetError(
        "the ranks have traced different graphs; the first node that differs:\n"
        + "\n".join(
            f"  rank {rank}: {lines[first] if first < len(lines) else 'the end'}"
            for rank, lines in enumerate(graphs)
        )
    )


def _report(text):
    """Prints the reason, and ends the process with an error status."""
    global _failure
    sys.stdout.flush()
    print(f"mpgluon, rank {_own}: {text}", file=sys.stderr, flush=True)
    _core.set_exit_status(1)
    _failure = text


def _finish_work():
    """Finishes the queued work: other ranks may wait for it, and its errors are still unread."""
    try:
        _core.waitall()
    except BaseException as error:  # even Ctrl-C: no later code could handle it
        _report(f"work that was queued when the program ended failed: {error}")
        _core.ranks_tell_end(_failure)


def _end(process):
    """Others may still wait for data of this rank; and MPI ends on all ranks together."""
    if os.getpid() != process:
        return
    if _failure is None:
        _finish_work()
    if _failure is None:
        while not _core.ranks_flushed():
            time.sleep(0.0005)
        _core.ranks_tell_end()
    begin = time.monotonic()
    while True:
        lost, _, all_ended = _core.ranks_find_lost()
        waited = time.monotonic() - begin
        if all_ended or (lost >= 0 and waited > 5) or (_failure is not None and waited > 10):
            break
        time.sleep(0.002)
    flushed = time.monotonic()
    while not _core.ranks_flushed() and time.monotonic() - flushed < 1:
        time.sleep(0.0005)
    difference = _core.ranks_differ() if all_ended and _failure is None else None
    if difference:
        _report(difference)
    _core.ranks_end()
    if all_ended:
        _core.ranks_end_within_limit()
    else:
        sys.stdout.flush()
        sys.stderr.flush()
        _world.Abort(1)  # the others have been told, or do not answer
