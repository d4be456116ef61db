"""Sums over ranks of arrays on GPUs, checked by each rank. The first argument names the program.
`apart` means that each rank has its own card, so the GPUs compute the sums.

mpirun -n 3 python gpu_sums.py bits_of_cpus apart
"""

import ctypes
import os
import signal
import sys
import threading

import numpy as np

import mpgluon as mx
from mpgluon import nd
from mpgluon._internal.ranks import gpus, own_arrays
from mpgluon._internal.transport import default_transport

RANK, RANKS = mx.parallel.rank(), mx.parallel.num_ranks()
APART = "apart" in sys.argv[2:]
GPU = mx.gpu(0)
SHAPES = [(3, 5), (1000, 77), (1,), (0, 4), (1 << 19,), (70_001,)]
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def add_up(arrays, in_place=False):
    where = gpus.joined([array.context for array in arrays], default_transport())
    return own_arrays.add_up(arrays, in_place, where)


def values(rank, dtype):
    state = np.random.RandomState(rank)
    return [nd.array(state.randint(0, 99, shape) / 8, dtype=dtype) for shape in SHAPES]


def bits(arrays):
    return [array.astype("float64").asnumpy().tobytes() for array in arrays]


@program
def bits_of_cpus():
    """GPUs add in the order of ranks, like CPUs."""
    for dtype in ("float32", "float16", "bfloat16", "float64", "int64", "uint8"):
        here = values(RANK, dtype)
        expected = bits(own_arrays.add_up(here))
        for in_place in (False, True):
            there = [array.as_in_context(GPU) for array in here]
            sums = add_up(there, in_place=in_place)
            assert bits(sums) == expected and all(total.context == GPU for total in sums)
            assert bits(there) == (expected if in_place else bits(here))
    assert gpus.can_sum((0,) * RANKS, default_transport()) == APART


@program
def any_order():
    """MPGLUON_RANKS_SUMS=mpi adds in NCCL's order, within the rounding error of the worst order."""
    for dtype, unit in (("float32", 2.0**-24), ("float16", 2.0**-11), ("int32", 0)):
        parts = [
            (np.random.RandomState(rank).randn(300_001) * 100).astype(dtype)
            for rank in range(RANKS)
        ]
        expected = sum(part.astype("float64") for part in parts)
        magnitude = sum(np.abs(part.astype("float64")) for part in parts)
        (found,) = add_up([nd.array(parts[RANK], dtype=dtype, ctx=GPU)])
        error = np.abs(found.asnumpy().astype("float64") - expected)
        assert (error <= (RANKS - 1) * unit * magnitude).all()


@program
def of_each_rank():
    """Unrecorded all_reduce of an array on a GPU of each rank."""
    arrays = [nd.full((300_000,), rank + 1, ctx=mx.gpu(0, rank=rank)) for rank in range(RANKS)]
    total = RANKS * (RANKS + 1) / 2
    sums = mx.parallel.all_reduce(arrays)
    assert gpus.can_sum((0,) * RANKS, "auto", with_ranks=True) == APART
    assert (sums[RANK].asnumpy() == total).all()
    assert (arrays[RANK].asnumpy() == RANK + 1).all()
    assert (mx.parallel.fetch(sums[RANKS - 1]).asnumpy() == total).all()


@program
def mixed():
    """Ranks whose arrays for a key are on GPUs with different indices or on a CPU device. One store
    sums the keys in sequence, and the last turn moves some arrays to other devices."""
    places = [
        [mx.gpu(0)] * 6,
        [mx.gpu(0), mx.gpu(1), mx.gpu(1), mx.cpu(0), mx.gpu(0), mx.gpu(1)],
        [mx.gpu(1), mx.gpu(0), mx.gpu(1), mx.gpu(0), mx.cpu(1), mx.gpu(1)],
    ][RANK]
    store, total = mx.kv.create("dist_sync"), RANKS * (RANKS + 1) / 2
    store.init(list(range(6)), [nd.zeros((70_001,), ctx=ctx) for ctx in places])
    for turn in range(3):
        for key in range(6):
            ctx = places[(key + turn // 2) % 6]  # some arrays move in the last turn
            out = nd.zeros((70_001,), ctx=ctx)
            store.pushpull(key, nd.full((70_001,), RANK + 1, ctx=ctx), out=out)
            assert (out.asnumpy() == total).all() and out.context == ctx
    for numbers in ((0, 0, 0), (1, 0, 1), (0, 1, 0), (0, 0, 0)):
        arrays = [
            nd.full((9,), rank + 1, ctx=mx.gpu(number, rank=rank))
            for rank, number in enumerate(numbers)
        ]
        assert (mx.parallel.all_reduce(arrays)[RANK].asnumpy() == total).all()


@program
def by_nccl():
    """MPGLUON_COLLECTIVES=nccl sums GPU arrays and rejects an array on a CPU device."""
    arrays = [nd.full((9,), rank + 1, ctx=mx.gpu(0, rank=rank)) for rank in range(RANKS)]
    total = RANKS * (RANKS + 1) / 2
    for found in (
        mx.parallel.all_reduce(arrays)[RANK],
        add_up([nd.full((9,), RANK + 1, ctx=GPU)])[0],
    ):
        assert (found.asnumpy() == total).all()
    try:
        add_up([nd.ones((2,), ctx=mx.cpu(0) if RANK == 1 else GPU)])
        raise AssertionError("nothing was raised")
    except mx.MXNetError as error:
        assert "NCCL cannot sum over ranks: rank 1: its array is not on a GPU" in str(error)
    assert (add_up([nd.ones((2,))])[0].asnumpy() == RANKS).all()


@program
def wrong():
    """A failed or differently sized array of one rank raises an error on all ranks. The next sum is
    correct."""
    rows = nd.ones((4, 20_000), ctx=GPU)
    number = nd.array([7.0 if RANK == 1 else 1.0], ctx=GPU)
    for array, said in (
        (nd.take(rows, number, mode="raise"), "index 7 is out of range"),
        (rows if RANK == 1 else rows[:2], "the ranks run different programs"),
    ):
        try:
            add_up([array])[0].wait_to_read()
            raise AssertionError(f"{said}: nothing was raised")
        except (mx.MXNetError, IndexError) as error:
            assert said in str(error), error
        assert (add_up([rows])[0].asnumpy() == RANKS).all()


@program
def failed_copy():
    """An error that a rank's GPU detects is raised on all ranks that read a copy of the result. The
    next copy is correct."""
    here, there = mx.gpu(0, rank=0), mx.gpu(0, rank=1)
    rows = nd.ones((4, 20_000), ctx=here)
    bad = nd.take(rows, nd.array([7.0], ctx=here), mode="raise")
    copies = [bad.as_in_context(there), (bad + 1).as_in_context(mx.cpu(0, rank=1))]
    reads = [mx.parallel.fetch(array).wait_to_read for array in copies]
    if RANK == 0:  # an unread error of this rank would fail the program at exit
        reads += [bad.wait_to_read]
    for read in reads:
        try:
            read()
            raise AssertionError("nothing was raised")
        except (mx.MXNetError, IndexError) as error:
            assert "index 7 is out of range" in str(error), error
    good = nd.take(rows, nd.array([1.0], ctx=here), mode="raise").as_in_context(there)
    assert (mx.parallel.fetch(good).asnumpy() == 1).all()


@program
def broken():
    """Rank 1's card breaks during sums. These and later sums raise an error on all ranks."""
    array = nd.ones((1 << 20,), ctx=GPU)
    add_up([array])[0].wait_to_read()
    if RANK == 1:
        library = ctypes.CDLL(os.environ["MPGLUON_CUDA_LIBRARY"])
        threading.Timer(0.2, lambda: library.hostcuda_break(0)).start()
    for _ in range(2):
        try:
            while True:
                add_up([array])[0].wait_to_read()
        except mx.MXNetError as error:
            print(f"rank {RANK}: {error}", flush=True)


@program
def stopped():
    """Rank 1 stops during sums. These and later sums raise an error that names rank 1."""
    array = nd.ones((1 << 20,), ctx=GPU)
    add_up([array])[0].wait_to_read()
    if RANK == 1:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
    for _ in range(2):
        try:
            while True:
                add_up([array])[0].wait_to_read()
        except mx.MXNetError as error:
            print(f"rank {RANK}: {error}")


@program
def refused():
    """MPGLUON_COLLECTIVES=nccl with ranks that share a card."""
    add_up([nd.ones((3,), ctx=GPU)])


name = sys.argv[1]
PROGRAMS[name]()
print(f"rank {RANK}: {name} done", flush=True)
