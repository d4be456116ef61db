"""Arguments whose conversion runs Python code that changes the shape of the array.

Outputs of an executor keep their identity across calls of `forward`, so an `__index__` that calls
it changes the shape and the memory of an array during an operation. Each operation must raise or
use the array's new state. Under ASan, no access may be outside an array's memory.
"""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.base import MXNetError

LARGE = 1 << 18


@pytest.fixture
def victim():
    """Returns an array of LARGE rows and a function that shrinks it to one row."""
    mask = mx.sym.contrib.boolean_mask(mx.sym.var("x"), mx.sym.var("m"))
    executor = mask.bind(mx.cpu(), {"x": nd.ones((LARGE, 2)), "m": nd.ones(LARGE)})
    (output,) = executor.forward()

    def shrink():
        mask = executor.arg_dict["m"]
        mask[:] = 0
        mask[0] = 1
        executor.forward()

    return output, shrink


def plain(shrink, value):
    class Index:
        def __index__(self):
            shrink()
            return value

    return Index()


def numpy_scalar(shrink, value):
    class Index(np.int64):
        def __index__(self):
            shrink()
            return value

        __int__ = __index__

    return Index(value)


def integer(shrink, value):
    class Index(int):
        def __index__(self):
            shrink()
            return value

    return Index(value)


class Items:
    """A sequence that changes the array when its items are read."""

    def __init__(self, shrink, values):
        self._shrink, self._values = shrink, values

    def __len__(self):
        return len(self._values)

    def __getitem__(self, i):
        self._shrink()
        return self._values[i]


KEYS = {
    "slice": lambda i: slice(i, None),
    "end": lambda i: slice(LARGE - 8, i),
    "step": lambda i: slice(LARGE - 8, None, i),
    "row": lambda i: i,
    "element": lambda i: (i, 1),
    "slice of a slice": lambda i: (slice(LARGE - 8, None), slice(0, i)),
    "strided": lambda i: (slice(i, None, 2), slice(None)),
    "new axes": lambda i: (None, Ellipsis, i),
    "with rows": lambda i: (slice(i, None), [0, 1]),
    "rows and slice": lambda i: ([0, LARGE - 1], slice(0, i)),
    "list": lambda i: [0, i],
    "lists": lambda i: ([0, i], [0, 1]),
}


def after(array):
    """Reads the whole array in its final state."""
    nd.waitall()
    assert array.asnumpy().size == array.size


@pytest.mark.parametrize("make", [plain, numpy_scalar, integer])
@pytest.mark.parametrize("key", KEYS)
def test_keys_that_shrink_the_array_read_within_its_memory(victim, key, make):
    array, shrink = victim
    try:
        found = array[KEYS[key](make(shrink, LARGE - 4))]
        assert found.size == 0 or (found.asnumpy() == 1).all()
    except (MXNetError, IndexError, TypeError, ValueError):
        pass
    after(array)


VALUES = {
    "number": lambda: 7,
    "row": lambda: nd.full((2,), 7),
    "numpy": lambda: np.full((2,), 7),
    "list": lambda: [7, 7],
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("make", [plain, numpy_scalar])
@pytest.mark.parametrize("key", KEYS)
def test_keys_that_shrink_the_array_write_within_its_memory(victim, key, make, value):
    array, shrink = victim
    before = nd.full((64,), 3)
    try:
        array[KEYS[key](make(shrink, LARGE - 4))] = VALUES[value]()
    except (MXNetError, IndexError, TypeError, ValueError):
        pass
    after(array)
    assert (before.asnumpy() == 3).all()


class Values:
    """Changes the array while it is converted to an array itself."""

    def __init__(self, shrink):
        self._shrink = shrink

    def __array__(self, dtype=None, copy=None):
        self._shrink()
        return np.full((LARGE, 2), 7, np.float32)


CALLS = {
    "assign": lambda a, shrink: a.__setitem__(slice(None), Values(shrink)),
    "assign a part": lambda a, shrink: a.__setitem__(slice(1, None), Values(shrink)),
    "assign in steps": lambda a, shrink: a.__setitem__(slice(0, None, 2), Values(shrink)),
    "assign to rows": lambda a, shrink: a.__setitem__([0, LARGE - 1], Values(shrink)),
    "reshape": lambda a, shrink: a.reshape((plain(shrink, LARGE), 2)),
    "reshape of items": lambda a, shrink: a.reshape(Items(shrink, (LARGE, 2))),
    "slice": lambda a, shrink: nd.slice(a, begin=(plain(shrink, LARGE - 4), 0), end=(LARGE, 2)),
    "slice_axis": lambda a, shrink: a.slice_axis(0, plain(shrink, LARGE - 4), LARGE),
    "transpose": lambda a, shrink: a.transpose(Items(shrink, (1, 0))),
    "take": lambda a, shrink: a.take(nd.array([LARGE - 1]), axis=plain(shrink, 0)),
    "clip": lambda a, shrink: a.clip(plain(shrink, 0), 5),
    "item": lambda a, shrink: a.item(plain(shrink, 2 * LARGE - 1)),
    "pick": lambda a, shrink: a.pick(nd.zeros(LARGE), axis=plain(shrink, 1)),
    "broadcast_to": lambda a, shrink: a.broadcast_to(Items(shrink, (LARGE, 2))),
    "repeat": lambda a, shrink: a.repeat(plain(shrink, 2), 0),
    "split": lambda a, shrink: a.split(plain(shrink, 2)),
    "numpy": lambda a, shrink: np.array(a, dtype=Values(shrink)),
    "add": lambda a, shrink: a + numpy_scalar(shrink, 3),
    "out": lambda a, shrink: nd.ones((LARGE, plain(shrink, 2)), out=a),
}


@pytest.mark.parametrize("call", CALLS)
def test_arguments_that_shrink_the_array_do_not_corrupt_memory(victim, call):
    array, shrink = victim
    try:
        result = CALLS[call](array, shrink)
        if isinstance(result, nd.NDArray):
            after(result)
    except (MXNetError, IndexError, TypeError, ValueError):
        pass
    after(array)


def test_array_as_a_shape_is_checked_for_length_first():
    with pytest.raises(ValueError, match="shape has 10000000 entries; at most"):
        nd.reshape(nd.ones(2), shape=nd.zeros((10_000_000,), dtype="int8"))
