"""Moves of long rows, and dropout, on a GPU as on a CPU, bit for bit: sizes and addresses that take
16 bytes at a time, and those that do not."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, nd
from support.stand_in import needs_gpu

pytestmark = needs_gpu

DTYPES = ["float32", "float64", "float16", "bfloat16"]


def on_both(function):
    """What a function of a device returns there, as NumPy arrays."""
    found = []
    for ctx in (mx.cpu(0), mx.gpu(0)):
        mx.random.seed(5)
        found.append([a.astype("float64").asnumpy() for a in function(ctx)])
    return zip(*found, strict=True)


def numbers(size, ctx, dtype, place=0):
    """`size` elements that begin `place` elements into their memory."""
    flat = nd.zeros(size + place, ctx=ctx, dtype=dtype)
    flat[place:] = nd.arange(1, size + 1, ctx=ctx).astype(dtype)
    return flat[place:]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 40, 512, 3000])
def test_rows_are_gathered(width, dtype):
    """Rows of one item to some of every thread, one and several arrays of rows."""
    for before, place in ((1, 0), (3, 0), (3, 1)):

        def function(ctx, before=before, place=place):
            data = numbers(before * 50 * width, ctx, dtype, place).reshape((before, 50, width))
            chosen = nd.array(np.arange(70) * 7 % 50, ctx=ctx, dtype="int32")
            return [nd.take(data, chosen, axis=1), nd.transpose(data, (2, 0, 1))]

        for a, b in on_both(function):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 1003, 4104])
def test_dropout(size, dtype):
    """Results, and gradients by the mask that was drawn; also a mask that is shared."""
    for place, axes in ((0, ()), (1, ()), (0, (0,))):

        def function(ctx, place=place, axes=axes):
            x = numbers(size * 3, ctx, dtype, place).reshape((3, size))
            x.attach_grad()
            with autograd.record():
                y = nd.Dropout(x, p=0.3, axes=axes)
            y.backward(nd.ones_like(y))
            return [y, x.grad]

        for a, b in on_both(function):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 128), (7, 136), (513, 264), (2, 900, 1024)])
def test_sums_of_columns(shape, dtype):
    """As on a CPU; an address changes no bit."""
    values = np.random.RandomState(1).randn(*shape).astype("float32")
    found = []
    for ctx, place in ((mx.cpu(0), 0), (mx.gpu(0), 0), (mx.gpu(0), 1)):
        flat = nd.zeros(values.size + place, ctx=ctx, dtype=dtype)
        flat[place:] = nd.array(values.reshape(-1), ctx=ctx).astype(dtype)
        sums = flat[place:].reshape(shape).sum(axis=len(shape) - 2)
        found.append(sums.astype("float64").asnumpy())
    close = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    np.testing.assert_allclose(found[1], found[0], rtol=close, atol=close * np.abs(found[0]).max())
    assert np.array_equal(found[1], found[2])
