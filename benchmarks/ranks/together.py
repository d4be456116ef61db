"""Joint measurements of all ranks: their own calls, and a contender that is not a rank."""

import os
import sys
import time

from mpi4py import MPI

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from contender import Contender
from mpgluon import nd, parallel

WORLD = MPI.COMM_WORLD


def timed(run, seconds):
    """Returns the shortest joint call. The ranks start each call together and make the same number
    of calls."""

    def call():
        parallel.barrier()
        begin = time.perf_counter()
        run()
        nd.waitall()
        return time.perf_counter() - begin

    call()
    one = WORLD.allreduce(call(), MPI.MAX)
    shortest = min(call() for _ in range(max(int(seconds / one), 2)))
    return WORLD.allreduce(shortest, MPI.MAX)


def _start(module):
    """Starts a contender on all cores; launchers bind ranks and their children to some of them."""
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count()))
    try:
        return Contender("PyTorch", 1, sys.executable, module)
    finally:
        os.sched_setaffinity(0, bound)


class Beside:
    """A contender that runs on behalf of rank 0 while the ranks sleep. All ranks create it and make
    the same calls. `version` is None if it is not installed."""

    def __init__(self, module):
        self._contender = _start(module) if WORLD.rank == 0 else None
        self.version = WORLD.bcast(self._contender and self._contender.version)

    def ask(self, **request):
        answer = self._contender.ask(**request) if self._contender else None
        over = WORLD.Ibarrier()
        while not over.Test():
            time.sleep(0.05)  # the contender needs the cores
        return WORLD.bcast(answer)

    def close(self):
        if self._contender:
            self._contender.close()
