"""Parts of an array that use its memory in the plan: slices, splits and concatenations of rows."""

import numpy as np
import pytest

from mpgluon import _core, autograd, nd
from support.devices import on
from support.processes import finished

ROWS = 16  # floats; 64 bytes, the alignment of parts


def random_function(random):
    """Returns a function of two arrays that slices, splits and concatenates rows at random."""
    steps = []
    for _ in range(random.randint(4, 16)):
        kind = random.choice(["slice", "split", "concat", "unary", "binary", "reshape", "move"])
        steps.append((kind, *random.randint(0, 1 << 16, 5)))

    def function(*arrays):
        pool = list(arrays)
        for kind, a, b, c, d, e in steps:
            x = pool[a % len(pool)]
            rows = x.shape[0]
            if kind == "slice":
                begin = b % rows
                pool.append(
                    nd.slice_axis(x, axis=0, begin=begin, end=begin + 1 + c % (rows - begin))
                )
            elif kind == "split" and rows > 2:
                pool.extend(
                    nd.split_v2(x, sorted({1 + b % (rows - 1), 1 + c % (rows - 1)}), axis=0)
                )
            elif kind == "concat":
                others = [x, pool[b % len(pool)], pool[c % len(pool)]][: 2 + d % 2]
                if sum(other.shape[0] for other in others) < 64:
                    pool.append(nd.concat(*others, dim=0))
            elif kind == "unary":
                pool.append((nd.relu, nd.tanh, nd.identity, nd.negative)[b % 4](x))
            elif kind == "binary":
                y = pool[b % len(pool)]
                pool.append(x * y if y.shape == x.shape else nd.broadcast_add(x, y[:1]))
            elif kind == "reshape":
                pool.append(nd.tanh(x.reshape((-1, 4))).reshape((rows, -1)))
            elif kind == "move":
                pool.append(x.as_in_context(on(b % 2)).as_in_context(on(0)))
        return [pool[-1], pool[steps[0][1] % len(pool)]]

    return function


def run(function, values, flags):
    arrays = [nd.array(value, ctx=on(0)) for value in values]
    for array in arrays:
        array.attach_grad()
    call = function if flags is None else _core.CachedOp(lambda *a: function(*a), flags)
    for _ in range(2):
        with autograd.record():
            outputs = [out.copy() for out in call(*arrays)]
            total = nd.add_n(*[(out * out).sum() for out in outputs])
        total.backward()
    return [out.asnumpy() for out in outputs] + [array.grad.asnumpy() for array in arrays]


@pytest.mark.parametrize("width", [ROWS, 12])
def test_random_programs_of_row_slices_equal_single_ops(width):
    for seed in range(60):
        random = np.random.RandomState(seed)
        function = random_function(random)
        values = [random.normal(size=(rows, width)).astype("float32") for rows in (6, 3)]
        wanted = run(function, values, None)
        for flags in ({}, {"exact": True}, {"static_alloc": True, "recompute": True}):
            for found, want in zip(run(function, values, flags), wanted):
                np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6, err_msg=str(seed))


SCRIPT = """
from mpgluon import _core, nd

def function(x):
    whole = nd.dot(x, x)
    first, last = nd.split_v2(whole, 2, axis=0)
    return [nd.concat(nd.dot(first, x), nd.dot(last, x), dim=0).sum(), nd.sum(whole)]

_core.CachedOp(function, {"exact": True})(nd.ones((8, 8)))
"""


PLAN = """\
cpu(0) %1 dot: block 0+0
cpu(0) %2 _split_v2: block 0+0, block 0+128
cpu(0) %3 dot: block 0+256
cpu(0) %4 dot: block 0+384
cpu(0) %5 Concat: block 0+256
cpu(0) %6 sum: array 1
cpu(0) %7 sum: array 2
block 0: 512 bytes on cpu(0)
"""


def test_rows_are_planned_in_the_memory_of_the_whole(tmp_path):
    path = tmp_path / "passes.txt"
    finished(SCRIPT, MPGLUON_DUMP=str(path))
    assert path.read_text().split("== forward plan\n")[1] == PLAN
