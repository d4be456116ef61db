"""Ranks: the processes of a program that was started with mpirun.

MPI is initialized on the first use of a rank. mpi4py initializes MPI and assigns the ranks. The
core calls the MPI library that mpi4py has loaded, so arrays never pass through Python
(``csrc/device/ranks``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ... import _core
from ...base import MXNetError

_Result = TypeVar("_Result")

# Environment variables set by launchers: Open MPI and PRRTE, MPICH's Hydra and other PMI launchers,
# Slurm
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALNRANKS")
_LIMIT = "MPGLUON_RANKS_TIMEOUT"
_ORDER = "MPGLUON_RANKS_SUMS"

# Duplicate of MPI.COMM_WORLD for messages of this package. None before `begin`, or if there is only
# one rank.
_world = None
_count = 0  # number of ranks; 0 before `begin`
_own = 0
_limit = 60.0  # seconds
_in_any_order = False  # True if MPI may choose the order of sums
_failure = None  # text of the error that ended this rank's program


def count() -> int:
    """Returns the number of ranks. Initializes MPI if a launcher started this process."""
    if not _count:
        begin()
    return _count


def own() -> int:
    """Returns the rank of this process, counted from 0."""
    count()
    return _own


def any_order() -> bool:
    """True if sums over ranks may use an order other than rank order."""
    count()
    return _in_any_order


def world() -> Any:
    """Returns mpi4py's communicator for messages other than the transfers of arrays."""
    return _world


def launched() -> bool:
    """True if a launcher seems to have started this process, or if mpi4py.MPI is imported."""
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
        raise ValueError(
            f"environment variable {_LIMIT} is {text!r}; it must be a number of seconds from 1 to "
            "1000000"
        )
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
    """Returns {dtype number: MPI type} for the dtypes that MPI may sum. Byte types are missing,
    because Open MPI's sums of bytes saturate but ours wrap around."""
    numbers = {  # as in csrc/tensor/dtype.h
        0: mpi.FLOAT,
        1: mpi.DOUBLE,
        4: mpi.INT32_T,
        6: mpi.INT64_T,
    }
    return {number: mpi_type.handle for number, mpi_type in numbers.items()}


def begin() -> None:
    """Initializes MPI and connects the ranks, once for each process."""
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
    """Warns if mpirun has bound this rank to a single core, Open MPI's default for up to two
    ranks."""
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
        if os.getpid() != process:  # a forked child is not a rank
            former(kind, error, trace)
            return
        _failure = f"{kind.__name__}: {error}"
        _core.ranks_tell_end(_failure)
        former(kind, error, trace)

    sys.excepthook = hook


def _agree(mpi, any_order, wrong):
    """Raises an error on all ranks if a rank cannot start, or if versions or settings differ
    between ranks."""
    from ...libinfo import __version__

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
    sums = ["mpi" if order else "ordered" for order in orders]
    for what, found in (("versions of mpgluon", versions), (_ORDER, sums), (_LIMIT, limits)):
        if len(set(found)) > 1:
            by_rank = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(found))
            raise MXNetError(f"the ranks have different {what}: {by_rank}")


def wait(request: Any, what: str, works: bool = False) -> None:
    """Waits for an MPI request. Ctrl-C and other Python threads are not blocked.

    Parameters
    ----------
    request : mpi4py.MPI.Request
        Any object with a method ``Test``.
    what : str
        The name of the operation in errors.
    works : bool, default False
        True if all ranks have started the operation and only its completion is pending. The wait
        then has a time limit (``MPGLUON_RANKS_TIMEOUT``).

    Raises
    ------
    MXNetError
        If a rank is lost or in a deadlock, or if the time limit has passed.
    """
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
            # Run queued work meanwhile, because other ranks may wait for its results.
            _core.run_ready()
            lost, why, _ = _core.ranks_find_lost()
            if lost >= 0:
                raise MXNetError(f"{what}: {why}")
            if waited - looked > 0.05 and not works:
                looked = waited
                progress = _core.ranks_poll(what, progress or 0, progress is not None)
            # Without `works` the wait is unlimited, because another rank may compute for a long
            # time. A rank that is silent, has ended or is in a deadlock is reported as lost.
            if waited > _limit and works:
                raise MXNetError(
                    f"{what}: rank {_own} has waited {waited:.0f} s for the other ranks, which "
                    f"have not finished ({_LIMIT})"
                )
        time.sleep(pause)


def gather(what: str, text: str) -> list[str]:
    """Returns the texts of all ranks, by rank. All ranks call it with the same `what`."""
    if count() == 1:
        return [text]
    lost, why, _ = _core.ranks_find_lost()
    # After a failure, ranks may have left an earlier call at different points, so collective calls
    # no longer match.
    if lost >= 0:
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
    """Scope for creating arrays that other ranks do not create. They are excluded from the sequence
    of arrays that the ranks compare."""
    former = _core.ranks_name_arrays(False)
    try:
        yield
    finally:
        _core.ranks_name_arrays(former)


def compare(what: str, said: str) -> None:
    """Raises an MXNetError on all ranks unless all of them pass the same `said`. All ranks call
    it."""
    by_rank = gather(what, said)
    if len(set(by_rank)) > 1:
        raise MXNetError(
            f"the ranks run different programs; {what} has been called "
            + ", ".join(f"with {text} by rank {rank}" for rank, text in enumerate(by_rank))
        )


def barrier() -> None:
    """Returns when all ranks have called it. Raises an MXNetError if they have queued different
    numbers of transfers."""
    if count() == 1:
        return
    transfers = gather("barrier", str(_core.ranks_statistics()["transfers"]))
    if len(set(transfers)) > 1:
        raise MXNetError(
            "barrier: the ranks run different programs; numbers of queued transfers between ranks: "
            + ", ".join(f"{n} on rank {r}" for r, n in enumerate(transfers))
        )


def join(found: dict[int, Any]) -> dict[int, Any]:
    """Returns the merged dicts of all ranks. Keys are integers, and values can be stored as JSON.
    All ranks call it."""
    if count() == 1:
        return found
    import json

    joined = {}
    for text in gather("results", json.dumps(found)):
        joined.update((int(key), value) for key, value in json.loads(text).items())
    return joined


def all_succeed(what: str, work: Callable[[], _Result]) -> _Result:
    """Returns the result of `work`, or raises its error. If `work` fails on any rank, all other
    ranks raise an MXNetError that names the rank and its error. All ranks call this function."""
    if count() == 1:
        return work()
    result, error = None, None
    try:
        result = work()
    except BaseException as failure:  # even Ctrl-C: the other ranks wait for the outcome
        error = failure
    text = "" if error is None else f"{type(error).__name__}: {error}"
    texts = gather(what, text.encode("utf-8", "backslashreplace").decode())
    if error is not None:
        raise error
    for rank, failed in enumerate(texts):
        if failed:
            raise MXNetError(f"{what}: rank {rank} has failed: {failed}")
    return result


def agree_on_trace(text: str) -> None:
    """Checks that all ranks have traced the same graph. Otherwise, raises an MXNetError on all
    ranks, which shows the first differing line. The core calls it when it compiles a graph with
    devices of several ranks."""
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
    """Prints the reason of a failure and makes the process exit with an error status."""
    global _failure
    sys.stdout.flush()
    print(f"mpgluon, rank {_own}: {text}", file=sys.stderr, flush=True)
    _core.set_exit_status(1)
    _failure = text


def _finish_work():
    """Waits for the queued work, because other ranks may depend on it, and reports its errors."""
    try:
        _core.waitall()
    except BaseException as error:  # even Ctrl-C: no later code could handle it
        _report(f"pending work failed at the end of the program: {error}")
        _core.ranks_tell_end(_failure)


def _end(process):
    """Sends the remaining data to the other ranks, then waits until all ranks have ended, because
    finalizing MPI is a collective call."""
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
        _world.Abort(1)  # the other ranks have been notified or do not respond
