"""Products of a few float16 or bfloat16 rows, which read the weight as it is stored."""

import itertools
import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.processes import output_of

DTYPES = ["bfloat16", "float16"]
ERROR = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# Sizes around those of vectors and blocks. All are larger than those of tiny products.
SIZES = [(300, 31), (129, 64), (64, 257), (1023, 65), (67, 1000), (1, 9000), (9000, 1), (4, 2049)]


def halves(random, dtype, *shape):
    return nd.array(random.standard_normal(shape)).astype(dtype)


def wide(array):
    return array.astype("float64").asnumpy()


def check(found, expected, dtype, size):
    """Allows one rounding of the result, and those of float32 sums."""
    scale = np.sqrt(size) * 2.0**-20
    np.testing.assert_allclose(wide(found), expected, rtol=ERROR[dtype], atol=scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_dot_of_a_few_rows_is_rounded_once(dtype, n, k):
    random = np.random.RandomState(0)
    for m, ta, tb in itertools.product((1, 2, 3, 4, 5, 16, 17), (False, True), (False, True)):
        a = halves(random, dtype, *((k, m) if ta else (m, k)))
        b = halves(random, dtype, *((n, k) if tb else (k, n)))
        x, y = wide(a), wide(b)
        expected = (x.T if ta else x) @ (y.T if tb else y)
        check(nd.dot(a, b, transpose_a=ta, transpose_b=tb), expected, dtype, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("use_bias", [False, True])
def test_dense_layer_of_a_few_rows_is_rounded_once(dtype, use_bias):
    random = np.random.RandomState(1)
    for (n, k), m in itertools.product(SIZES, (1, 3, 8)):
        x, w, bias = (halves(random, dtype, *shape) for shape in ((m, k), (n, k), (n,)))
        given = [x, w, bias] if use_bias else [x, w]
        found = nd.FullyConnected(*given, num_hidden=n, no_bias=not use_bias)
        check(found, wide(x) @ wide(w).T + (wide(bias) if use_bias else 0), dtype, k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_dot_of_a_few_rows_is_rounded_once(dtype):
    random = np.random.RandomState(2)
    for m, tb, n in itertools.product((1, 3), (False, True), (1, 130, 257)):
        k = 9000 if n == 1 else 70
        a, b = halves(random, dtype, 3, m, k), halves(random, dtype, 3, *((n, k) if tb else (k, n)))
        expected = wide(a) @ (wide(b).swapaxes(1, 2) if tb else wide(b))
        check(nd.batch_dot(a, b, transpose_b=tb), expected, dtype, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("n", "k"), [(1003, 517), (300, 768), (130, 1500), (65, 2817)])
def test_bits_of_a_row_do_not_depend_on_rows_threads_or_alignment(dtype, transpose_b, n, k):
    """The products of more than 16 rows have another kernel."""
    random = np.random.RandomState(3)
    x, w = halves(random, dtype, 40, k), halves(random, dtype, *((n, k) if transpose_b else (k, n)))
    shifted = nd.concat(nd.zeros((1,), dtype=dtype), w.reshape((-1,)), dim=0)[1:].reshape(w.shape)
    found = set()
    for threads, weight in itertools.product((1, 3), (w, shifted)):
        mx.context.set_threads(threads)
        for rows in (1, 2, 3, 4, 5, 8, 16, 17, 40):
            found.add(wide(nd.dot(x[:rows], weight, transpose_b=transpose_b)[:1]).tobytes())
    mx.context.set_threads(0)
    assert len(found) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_stay_in_their_elements(dtype):
    random = np.random.RandomState(4)
    w = random.standard_normal((300, 67))
    w[5, 66], w[7, 0], w[9, 64] = np.nan, np.inf, -np.inf
    w, x = nd.array(w).astype(dtype), nd.ones((2, 67), dtype=dtype)
    for found in (nd.dot(x, w, transpose_b=True), nd.dot(x, w.T.copy())):
        found = wide(found)
        assert np.isnan(found[:, 5]).all()
        assert (found[:, [7, 9]] == [np.inf, -np.inf]).all()
        assert np.isfinite(np.delete(found, [5, 7, 9], axis=1)).all()


PROGRAM = """
import json, sys
import numpy as np
from mpgluon import nd
random, errors = np.random.RandomState(5), {}
for m, n, k in [(1, 130, 129), (2, 300, 64), (4, 65, 517), (7, 257, 95), (16, 200, 600)]:
    for transposed in (False, True):
        a = nd.array(random.standard_normal((m, k))).astype("bfloat16")
        b = nd.array(random.standard_normal((n, k) if transposed else (k, n))).astype("bfloat16")
        x, y = a.astype("float64").asnumpy(), b.astype("float64").asnumpy()
        exact = x @ (y.T if transposed else y)
        found = nd.dot(a, b, transpose_b=transposed).astype("float64").asnumpy()
        error = np.abs(found - exact).max() / np.abs(exact).max()
        errors[f"{m} {n} {k} {transposed}"] = float(error)
json.dump(errors, sys.stdout)
"""


@pytest.mark.parametrize("isa", ["AVX512_CORE", "AVX2"])
def test_processors_without_bfloat16_products(isa):
    errors = json.loads(output_of(PROGRAM, ONEDNN_MAX_CPU_ISA=isa))
    assert len(errors) == 10
    for case, error in errors.items():
        assert error < 2.0**-8, (case, error)
