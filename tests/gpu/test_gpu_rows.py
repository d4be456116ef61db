"""Row kernels on a GPU compared with the CPU, for sizes and addresses with and without 16-byte
access. Moves of long rows and dropout are exact; softmax, cross entropy and LayerNorm match to
rounding."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, nd
from support.compare import at
from support.stand_in import needs_gpu

pytestmark = needs_gpu

DTYPES = ["float32", "float64", "float16", "bfloat16"]


def on_both(function):
    """Returns pairs of the function's results on a CPU and a GPU as NumPy arrays."""
    found = []
    for ctx in (mx.cpu(0), mx.gpu(0)):
        mx.random.seed(5)
        found.append([a.astype("float64").asnumpy() for a in function(ctx)])
    return zip(*found, strict=True)


def numbers(size, ctx, dtype, place=0):
    """Returns `size` elements that start at element `place` of their memory."""
    flat = nd.zeros(size + place, ctx=ctx, dtype=dtype)
    flat[place:] = nd.arange(1, size + 1, ctx=ctx).astype(dtype)
    return flat[place:]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 40, 512, 3000])
def test_take_and_transpose_of_rows_equal_the_cpu(width, dtype):
    """Rows of one element up to several per thread, in one and in several arrays of rows."""
    for before, place in ((1, 0), (3, 0), (3, 1)):

        def function(ctx, before=before, place=place):
            data = numbers(before * 50 * width, ctx, dtype, place).reshape((before, 50, width))
            chosen = nd.array(np.arange(70) * 7 % 50, ctx=ctx, dtype="int32")
            return [nd.take(data, chosen, axis=1), nd.transpose(data, (2, 0, 1))]

        for a, b in on_both(function):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 1003, 4104])
def test_dropout_masks_equal_the_cpu(size, dtype):
    """Compares results and gradients, which use the drawn mask, also with a shared mask."""
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


CLOSE = {"float64": 1e-12, "float32": 1e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LENGTHS = [1, 7, 8, 64, 65, 256, 511, 512, 768, 1000, 1024, 1025]
LENGTHS += [2048, 3001, 4096, 8192, 8200, 65537]


def as_on_a_cpu(function, dtype, close=CLOSE, least=0):
    """Checks that function(ctx, place) matches on a CPU and a GPU within rounding, and that on a
    GPU the address does not change a bit."""
    found = []
    for ctx, place in ((mx.cpu(0), 0), (mx.gpu(0), 0), (mx.gpu(0), 1)):
        found.append([a.astype("float64").asnumpy() for a in function(ctx, place)])
    close = close[dtype]
    for on_cpu, on_gpu, elsewhere in zip(*found, strict=True):
        scale = np.nanmax(np.abs(on_cpu), initial=least, where=np.isfinite(on_cpu))
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=close, atol=close * scale)
        np.testing.assert_array_equal(on_gpu, elsewhere)


def recorded(call, *arrays):
    """Returns the result of a call and the gradients of its arrays."""
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        y = call(*arrays)
    head = (nd.arange(y.size, ctx=y.ctx).reshape(y.shape) % 7 - 3).astype(y.dtype)
    y.backward(head)
    return [y, *(array.grad for array in arrays)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 128), (7, 136), (513, 264), (2, 900, 1024)])
def test_column_sums_match_the_cpu_at_any_address(shape, dtype):
    values = np.random.RandomState(1).randn(*shape)
    as_on_a_cpu(lambda ctx, place: [at(values, ctx, dtype, place).sum(axis=len(shape) - 2)], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_softmax_matches_the_cpu(length, dtype):
    values = np.random.RandomState(length).randn(5, length) * 3

    def function(ctx, place):
        x = at(values, ctx, dtype, place)
        lengths = nd.array([0, 1, length // 2, length, length - 1], ctx=ctx, dtype="int32")
        return [
            *recorded(nd.softmax, x),
            *recorded(nd.log_softmax, x),
            *recorded(lambda x: nd.softmin(x, temperature=2), x),
            nd.softmax(x, lengths, use_length=True),
        ]

    as_on_a_cpu(function, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [5, 64, 1000, 2048, 65537])
def test_softmax_of_infinities_and_nan_matches_the_cpu(length, dtype):
    """Masked parts as large as a thread's share of a row, wholly masked rows, and NaN."""
    values = np.random.RandomState(length).randn(6, length)
    values[0, : length // 2] = values[1, length // 2 :] = values[2] = -np.inf
    values[3, -1] = np.inf
    values[4, 0] = np.nan

    def function(ctx, place):
        x = at(values, ctx, dtype, place)
        return [nd.softmax(x), nd.log_softmax(x)]

    as_on_a_cpu(function, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_cross_entropy_matches_the_cpu(length, dtype):
    """Includes labels at the ends of rows and out of range."""
    random = np.random.RandomState(length)
    values = random.randn(37, length) * 3
    labels = np.concatenate([[0, length - 1, -5, length + 9], random.randint(0, length, 33)])

    def function(ctx, place):
        x = at(values, ctx, dtype, place)
        label = nd.array(labels, ctx=ctx, dtype="int32")
        return [
            *recorded(lambda x: nd._internal._softmax_ce(x, label), x),
            *recorded(lambda x: nd.softmax_cross_entropy(x, label), x),
        ]

    as_on_a_cpu(function, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", LENGTHS)
def test_fused_cross_entropy_has_the_bits_of_its_parts(length, dtype):
    x = at(np.random.RandomState(length).randn(5, length), mx.gpu(0), dtype, 0)
    label = nd.array([0, length // 3, length // 2, length - 1, 0], ctx=mx.gpu(0), dtype="int32")
    fused = recorded(lambda x: nd._internal._softmax_ce(x, label), x)
    parts = recorded(lambda x: -nd.pick(nd.log_softmax(x), label), x)
    for a, b in zip(fused, parts, strict=True):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())  # zeros may differ in sign


WIDTHS = [(1, 1), (70, 24), (50, 100), (300, 256), (37, 700), (65, 1024), (35, 2000), (5, 8192)]
CLOSE_NORMS = {"float64": 1e-10, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, width", [*WIDTHS, (3, 8200)])
def test_layer_norm_matches_the_cpu_at_any_address(rows, width, dtype):
    random = np.random.RandomState(width)
    values = [random.randn(rows, width) + 2, random.randn(width), random.randn(width)]

    def function(ctx, place):
        return recorded(nd.LayerNorm, *(at(value, ctx, dtype, place) for value in values))

    as_on_a_cpu(function, dtype, CLOSE_NORMS, least=1)
