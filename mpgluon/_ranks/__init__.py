"""The processes of a program that mpirun has started: MPI begins when a rank is first asked for.

mpi4py starts MPI, finds out who is who, and lends the core the library that it has opened; arrays
never go through Python (``csrc/device/ranks``).
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from .. import _core
from ..base import MXNetError

# Variables that launchers set in the processes that they start: Open MPI and PRRTE, MPICH's Hydra
# and other PMI launchers, Slurm.
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALNRANKS")

_world = None  # of MPI, with messages apart from the program's own; None: not begun, or one process
_count = 0  # 0: not begun
_own = 0


def count() -> int:
    """The number of ranks. Begins with MPI where a launcher has started this process."""
    if not _count:
        begin()
    return _count


def own() -> int:
    """The rank of this process, from 0."""
    count()
    return _own


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


def begin() -> None:
    """Begins, unless that has been done."""
    global _world, _count, _own
    if _count:
        return
    if not launched():
        _count = 1
        return
    mpi = _import_mpi()
    if mpi.COMM_WORLD.size == 1:
        _count = 1
        return
    level = mpi.Query_thread()
    if mpi.COMM_WORLD.allreduce(level, op=mpi.MIN) < mpi.THREAD_MULTIPLE:
        raise MXNetError(
            "ranks need MPI with the thread level MPI_THREAD_MULTIPLE, and a rank of this program "
            "has less; leave mpi4py.rc.thread_level as it is, or install another MPI library"
        )
    _world = mpi.COMM_WORLD.Dup()
    transfers = mpi.COMM_WORLD.Dup()
    _core.ranks_begin(
        mpi.__file__,
        _world.rank,
        _world.size,
        transfers.handle,
        mpi.BYTE.handle,
        transfers.Get_attr(mpi.TAG_UB),
    )
    _own, _count = _world.rank, _world.size
    _agree_on_version()
    atexit.register(_end)


def _agree_on_version():
    from ..libinfo import __version__

    versions = gather_text(f"mpgluon {__version__}")
    if len(set(versions)) > 1:
        raise MXNetError(f"the ranks run different versions: {versions}")


def _wait(request):
    """Waits for MPI's request; Ctrl-C and other threads get their turns."""
    begin, pause = time.monotonic(), 0.0
    while not request.Test():
        if time.monotonic() - begin > 0.001:
            pause = min(pause * 1.5 + 0.00002, 0.002)
        time.sleep(pause)


def gather_text(text: str) -> list[str]:
    """The texts of all ranks, by rank. All ranks call it."""
    if count() == 1:
        return [text]
    import numpy

    data = numpy.frombuffer(text.encode(), numpy.uint8)
    sizes = numpy.empty(_count, numpy.int64)
    _wait(_world.Iallgather(numpy.array([len(data)], numpy.int64), sizes))
    starts = numpy.concatenate([[0], numpy.cumsum(sizes)[:-1]])
    everything = numpy.empty(int(sizes.sum()), numpy.uint8)
    _wait(_world.Iallgatherv(data, (everything, (sizes, starts))))
    return [
        everything[start : start + size].tobytes().decode() for start, size in zip(starts, sizes)
    ]


def barrier() -> None:
    """Returns when all ranks have called it. They must have queued the same transfers so far."""
    if count() == 1:
        return
    transfers = gather_text(str(_core.ranks_statistics()["transfers"]))
    if len(set(transfers)) > 1:
        raise MXNetError(
            "the ranks run different programs: so many transfers between ranks have been queued "
            "by each: " + ", ".join(f"{n} by rank {r}" for r, n in enumerate(transfers))
        )


def _end():
    """Other ranks may still wait for what this one has sent."""
    while not _core.ranks_flushed():
        time.sleep(0.0005)
    _wait(_world.Ibarrier())
    _core.ranks_end()
