"""Calls of kvstores over ranks, checked by each rank. The arguments name the programs.

mpirun -n 3 python kvstore_calls.py push
"""

import sys

import numpy as np

import mpgluon as mx
from mpgluon import nd
from mpgluon._internal.ranks import own_arrays

RANK, RANKS = mx.parallel.rank(), mx.parallel.num_ranks()
SUM = RANKS * (RANKS + 1) / 2  # sum over ranks of the values of `mine`
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def mine(shape, **options):
    return nd.full(shape, RANK + 1.0, **options)


def pulled(store, key, shape):
    out = nd.zeros(shape)
    store.pull(key, out=out)
    return out.asnumpy()


@program
def push():
    for kind in ("dist_sync", "dist_device_sync", "dist"):
        store = mx.kv.create(kind)
        assert (store.rank, store.num_workers, store.type) == (RANK, RANKS, kind)
        shapes = [(3,), (2, 5), (700, 20)]  # the last array is summed in parts
        store.init(list("abc"), [mine(shape) for shape in shapes])
        for key, shape in zip("abc", shapes):
            assert (pulled(store, key, shape) == 1).all()  # the value of rank 0
        store.push(list("abc"), [[mine(shape), mine(shape, ctx=mx.cpu(1))] for shape in shapes])
        for key, shape in zip("abc", shapes):
            assert (pulled(store, key, shape) == 2 * SUM).all()
        both = mine((3,), dtype="float64"), nd.array([RANK, 0], dtype="int32")
        store.init(["d", "e"], list(both))
        store.pushpull(["d", "e"], list(both))
        assert both[0].asnumpy().tolist() == [SUM] * 3
        assert both[1].asnumpy().tolist() == [SUM - RANKS, 0]
        out = nd.zeros(4)
        store.broadcast("f", mine(4), out)
        assert out.asnumpy().tolist() == [1] * 4
        store._barrier()


@program
def order():
    """Sums have the bits of adding in the order of ranks: for whole arrays, arrays in parts,
    in-place sums, and several arrays in one message."""
    sizes = {7: "float64", 5001: "float32", 70_001: "float32", 1_500_003: "float32"}
    sums, store = [], mx.kv.create("dist_sync")
    for size, dtype in sizes.items():
        parts = [
            np.random.RandomState(rank).lognormal(0, 8, size).astype(dtype) for rank in range(RANKS)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        sums.append((nd.array(parts[RANK], dtype=dtype), total))
        store.init(size, nd.zeros(size, dtype=dtype))
        store.push(size, nd.array(parts[RANK], dtype=dtype))
        out = nd.zeros(size, dtype=dtype)
        store.pull(size, out=out)
        assert (out.asnumpy() == total).all()
    arrays = [array for array, _ in sums] + [nd.zeros((0, 3)), mine((2, 9_000), dtype="int8")]
    assert own_arrays.add_up(arrays, in_place=True) == arrays
    assert all((array.asnumpy() == total).all() for array, total in sums)
    assert (arrays[-1].asnumpy() == SUM).all()


@program
def any_order():
    """MPGLUON_RANKS_SUMS=mpi adds in MPI's order, within the rounding error of the worst order."""
    for dtype, tolerance in (("float32", 2 * (RANKS - 1) * 2.0**-24), ("float16", 0), ("int64", 0)):
        wide = "float32" if dtype == "float16" else dtype
        parts = [
            (np.random.RandomState(rank).randn(300_001) * 100).astype(dtype)
            for rank in range(RANKS)
        ]
        expected = sum((part.astype(wide) for part in parts[1:]), parts[0].astype(wide))
        expected, magnitude = expected.astype(dtype), sum(np.abs(part) for part in parts)
        array = nd.array(parts[RANK], dtype=dtype)
        for found in (own_arrays.add_up([array])[0], own_arrays.add_up([array], in_place=True)[0]):
            assert (np.abs(found.asnumpy() - expected) <= tolerance * magnitude).all()


@program
def failed_sum():
    """A failed array of one rank raises an error on all ranks, and the next sum is correct."""
    rows = nd.ones((4, 20_000))
    x = nd.take(rows, nd.array([7.0 if RANK == 1 else 1.0]), mode="raise")
    try:
        own_arrays.add_up([x])[0].wait_to_read()
        raise AssertionError("nothing was raised")
    except mx.MXNetError as error:
        assert "on rank 1" in str(error) or RANK == 1, error
    except IndexError:
        assert RANK == 1
    assert (own_arrays.add_up([rows])[0].asnumpy() == RANKS).all()


@program
def optimizer():
    store = mx.kv.create("dist_sync")
    store.init(3, nd.ones(2))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.5))
    for _ in range(2):
        store.push(3, mine(2))
    np.testing.assert_allclose(pulled(store, 3, 2), 1 - 0.5 * SUM - 0.75 * SUM)


@program
def rows():
    store = mx.kv.create("dist_sync")
    start = nd.sparse.row_sparse_array((mine((2, 2)), [1, 3]), shape=(6, 2))
    store.init("a", start)
    out = nd.sparse.zeros("row_sparse", (6, 2))
    store.row_sparse_pull("a", out=out, row_ids=nd.array([3, 0]))
    assert out.asnumpy().tolist() == [[0, 0], [0, 0], [0, 0], [1, 1], [0, 0], [0, 0]]
    # Rank 0 pushes no rows. Each other rank pushes its own row and row 4.
    pushed = nd.sparse.row_sparse_array((mine((2, 2)), [RANK, 4]), shape=(6, 2))
    store.push("a", pushed if RANK else nd.sparse.zeros("row_sparse", (6, 2)))
    store.row_sparse_pull("a", out=out, row_ids=nd.arange(6))
    expected = np.zeros((6, 2))
    for rank in range(1, RANKS):
        expected[[rank, 4]] += rank + 1
    assert out.asnumpy().tolist() == expected.tolist()


@program
def compressed():
    """2-bit gradients with residuals match NumPy. The 35 values do not fill whole bytes."""
    store = mx.kv.create("dist_sync")
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store.init("a", nd.zeros((5, 7)))
    residuals = [np.zeros((5, 7), "float32") for _ in range(RANKS)]
    for step in range(4):
        total = np.zeros((5, 7), "float32")
        for rank, residual in enumerate(residuals):
            pushed = np.random.RandomState(10 * step + rank).randn(5, 7).astype("float32")
            if rank == RANK:
                store.push("a", nd.array(pushed))
            residual += pushed
            rounded = np.where(residual >= 0.5, 0.5, np.where(residual <= -0.5, -0.5, 0))
            residual -= rounded.astype("float32")
            total += rounded.astype("float32")
        assert (pulled(store, "a", (5, 7)) == total).all() and (total != 0).any()


@program
def differs():
    """Ranks push arrays of different sizes, which raises an error."""
    store = mx.kv.create("dist_sync")
    store.init("a", nd.zeros(4))
    store.init("b", nd.zeros(5))
    store.push("b" if RANK else "a", nd.zeros(5 if RANK else 4))
    mx.nd.waitall()


@program
def wrong():
    store = mx.kv.create("dist_sync")
    messages = []
    for call in (
        lambda: store.init("r", nd.zeros(2, ctx=mx.cpu(0, rank=1))),
        lambda: store.set_gradient_compression({"type": "1bit"}),
        lambda: store.set_gradient_compression({"type": "2bit", "threshold": 0}),
        lambda: mx.kv.create("p3store_dist"),
        lambda: mx.parallel.broadcast_parameters({}, root_rank=9),
    ):
        try:
            call()
        except mx.MXNetError as error:
            messages.append(str(error))
    expected = (
        "names no rank",
        "'1bit'",
        "must be above 0",
        "unknown store 'p3store_dist'",
        "rank 9 is out of range",
    )
    assert len(messages) == 5, messages
    assert all(part in message for part, message in zip(expected, messages)), messages


for name in sys.argv[1:]:
    PROGRAMS[name]()
    print(f"rank {RANK}: {name} done", flush=True)
