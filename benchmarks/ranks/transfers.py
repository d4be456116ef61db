"""Transfers between ranks against the MPI library alone, alternating within one run: sums over
ranks (`Trainer` with `dist_sync`), collectives between devices of ranks, and the transfer of a
stage's output. Needs mpicc, which the Open MPI wheel contains.

mpirun -n 2 python benchmarks/ranks/transfers.py [--megabytes 64] [--rounds 10]
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from mpi4py import MPI

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon._internal.ranks import own_arrays

RANK, RANKS = mx.parallel.rank(), mx.parallel.num_ranks()
DEVICES = [mx.cpu(0, rank=rank) for rank in range(RANKS)]
WORLD = MPI.COMM_WORLD


def mpi_alone():
    """Loads the library of mpi_alone.c, which rank 0 compiles."""
    folder = WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    path = os.path.join(folder, "mpi_alone.so")
    if RANK == 0:
        beside = os.path.join(os.path.dirname(sys.executable), "mpicc")
        compiler = beside if os.path.exists(beside) else "mpicc"
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi_alone.c")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", path, source], check=True)
    WORLD.barrier()
    library = ctypes.CDLL(path)
    library.mpi_all_reduce.restype = library.mpi_ping_pong.restype = ctypes.c_double
    return library


def timed(call):
    mx.parallel.barrier()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def sums(library, megabytes):
    """Returns functions that measure the seconds of each way to sum."""
    size = int(megabytes * 2**18)
    source, target = np.ones(size, "float32"), np.zeros(size, "float32")
    address = [array.ctypes.data_as(ctypes.c_void_p) for array in (source, target)]
    x, y = nd.ones((size,)), nd.zeros((size,))
    replicas = [nd.ones((size,), ctx=device) for device in DEVICES]
    kept = []

    def apart():
        own_arrays.add_up([x])[0].wait_to_read()

    def in_place():
        own_arrays.add_up([y], in_place=True)
        y.wait_to_read()

    def between_devices():
        kept[:] = mx.parallel.collectives.all_reduce(replicas)
        kept[RANK].wait_to_read()

    return {
        "MPI_Allreduce": lambda: library.mpi_all_reduce(*address, size, 0),
        "MPI_Allreduce, in place": lambda: library.mpi_all_reduce(*address, size, 1),
        "sums over ranks": lambda: timed(apart),
        "sums over ranks, in place": lambda: timed(in_place),
        "collectives.all_reduce": lambda: timed(between_devices),
    }


class BackAndForth(gluon.HybridBlock):
    """Stages of one small op each, alternating between ranks 0 and 1."""

    def __init__(self, hops):
        super().__init__()
        self._hops = hops

    def hybrid_forward(self, F, x):
        for hop in range(self._hops):
            x = F.relu(x).as_in_context(DEVICES[(hop + 1) % 2])
        return x


def hand_over(net, x, hops):
    """Returns the seconds of one hop of an array that travels back and forth, in the best of five
    calls, because the caches are cold in the first."""

    def pass_on():
        net(x)
        mx.nd.waitall()

    return min(timed(pass_on) for _ in range(5)) / hops


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    library = mpi_alone()
    cases = sums(library, args.megabytes)
    cases["MPI ping-pong of 4 KB"] = lambda: library.mpi_ping_pong(4096, 1000)
    net, x, hops = BackAndForth(400), nd.ones((1024,), ctx=DEVICES[0]), 400
    net.hybridize()
    cases["hand-over of 4 KB"] = lambda: hand_over(net, x, hops)
    best = dict.fromkeys(cases, 1e9)
    for _ in range(args.rounds):
        for name, call in cases.items():
            best[name] = min(best[name], WORLD.allreduce(call(), op=MPI.MAX))
    if RANK == 0:
        for name, seconds in best.items():
            print(f"{name:28} {seconds * 1e6:12.2f} us")


if __name__ == "__main__":
    main()
