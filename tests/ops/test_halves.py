"""Half-precision ops: float32 results, rounded once, for all half values and for products of a few
rows, which read the weight as it is stored."""

import itertools
import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, nd
from support.processes import output_of
from support.training import backward_of

# Functions with exact results in half precision, rounded functions and transcendental ones
UNARY = "abs negative sign relu floor ceil trunc rint round square reciprocal sqrt exp tanh sigmoid"
FUNCTIONS = [getattr(nd, name) for name in (*UNARY.split(), "erf", "expm1", "softsign", "log1p")]
FUNCTIONS.append(lambda x: nd.LeakyReLU(x, act_type="gelu"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_is_computed_as_float32_and_rounded_once(dtype):
    bits = np.arange(65536, dtype="uint32")
    wide = (bits << 16).view("float32") if dtype == "bfloat16" else bits.astype("uint16")
    wide = wide if dtype == "bfloat16" else wide.view("float16").astype("float32")
    # The row length is not a multiple of a vector; the second operand is a permutation of the first
    x, y = wide[:-5], wide[np.random.RandomState(0).permutation(65536)][:-5]
    halves = [nd.array(v).astype(dtype) for v in (x, y)]
    wide = [half.astype("float32") for half in halves]
    pairs = [nd.add, nd.subtract, nd.multiply, nd.divide, nd.maximum, nd.minimum]
    for function, count in [(f, 1) for f in FUNCTIONS] + [(f, 2) for f in pairs]:
        found = function(*halves[:count]).astype("float32").asnumpy()
        expected = function(*wide[:count]).astype(dtype).astype("float32").asnumpy()
        np.testing.assert_array_equal(found, expected, err_msg=str(function))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bound", [0.3, 0.1, 1 / 3, 0.25])
def test_clipped_cell_states_have_no_gradient(dtype, bound):
    """Holds whether or not the dtype can represent the bound exactly."""
    x, h = nd.ones((1, 1, 2), dtype=dtype), nd.zeros((1, 1, 3), dtype=dtype)
    c = nd.array([[[4, -4, 0]]], dtype=dtype)
    weights = nd.array(np.random.RandomState(0).uniform(-0.1, 0.1, 84), dtype=dtype)
    for array in (x, weights, c):
        array.attach_grad()
    with autograd.record():
        y = nd.RNN(
            x,
            weights,
            h,
            c,
            state_size=3,
            num_layers=1,
            mode="lstm",
            lstm_state_clip_min=-bound,
            lstm_state_clip_max=bound,
        )
    y.backward()
    found = c.grad.astype("float64").asnumpy().ravel()
    assert found[0] == found[1] == 0 and abs(found[2]) > 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_prelu_slope_gradient_ignores_positive_infinity(dtype):
    """Positive elements do not contribute to the slope's gradient, whatever their value."""
    x = nd.array([[np.inf, -2, 3, -np.inf]], dtype=dtype)
    slope = nd.array([0.5, 0.5, 0.5, 0.5], dtype=dtype)
    for array in (x, slope):
        array.attach_grad()
    backward_of(lambda: nd.LeakyReLU(x, slope, act_type="prelu"))
    wide = [a.grad.astype("float64").asnumpy() for a in (slope, x)]
    np.testing.assert_array_equal(wide[0], [0, -2, 0, -np.inf])
    np.testing.assert_array_equal(wide[1], [[1, 0.5, 1, 0.5]])


# Ops whose gradient is computed from the input, and the tested range.
SLOPES = {
    "arcsin": (-0.99, 0.99),
    "arccos": (-0.99, 0.99),
    "arctanh": (-0.99, 0.99),
    "arccosh": (1.01, 4),
    **dict.fromkeys(
        "arctan arcsinh erf softsign mish sin cos sinh cosh expm1 log1p".split(), (0, 4)
    ),
    **dict.fromkeys("log log2 log10 gammaln square".split(), (0.1, 4)),
}


@pytest.mark.parametrize("dtype, unit", [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
@pytest.mark.parametrize("name", SLOPES)
def test_half_precision_gradients_lose_no_digits(name, dtype, unit):
    """The error is at most a few roundings, even if the terms of the formula nearly cancel."""
    x = nd.array(np.linspace(*SLOPES[name], 4001), dtype=dtype)
    slopes = []
    for array in (x, x.astype("float64")):
        array.attach_grad()
        backward_of(lambda: getattr(nd, name)(array))
        slopes.append(array.grad.astype("float64").asnumpy())
    found, exact = slopes
    near = np.abs(found - exact) <= 4 * unit * np.abs(exact) + (6e-8 if dtype == "float16" else 0)
    assert near.all(), x.astype("float64").asnumpy()[~near]


# Products of a few rows

DTYPES = ["bfloat16", "float16"]
ERROR = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# Sizes around the sizes of vectors and blocks. Products of all sizes are too large for the kernels
# of tiny products.
SIZES = [(300, 31), (129, 64), (64, 257), (1023, 65), (67, 1000), (1, 9000), (9000, 1), (4, 2049)]


def halves(random, dtype, *shape):
    return nd.array(random.standard_normal(shape)).astype(dtype)


def wide(array):
    return array.astype("float64").asnumpy()


def check(found, expected, dtype, size):
    """Allows one rounding of the result, and the roundings of float32 sums."""
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
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_over_an_empty_axis_are_zero(dtype, transpose_b):
    n = 20000  # more results than in the products that run inline
    for m in (1, 2, 17):
        a, b = (
            nd.zeros((m, 0), dtype=dtype),
            nd.zeros((n, 0) if transpose_b else (0, n), dtype=dtype),
        )
        assert not wide(nd.dot(a, b, transpose_b=transpose_b)).any()
        a, b = a.expand_dims(0), b.expand_dims(0)
        assert not wide(nd.batch_dot(a, b, transpose_b=transpose_b)).any()


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


# The last four consist of whole blocks. Sums of more than 512 or 1024 elements have several parts.
SIZES_OF_ROWS = [
    (1003, 517),
    (130, 1500),
    (65, 2817),
    (300, 768),
    (96, 1056),
    (96, 2048),
    (160, 64),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("n", "k"), SIZES_OF_ROWS)
def test_bits_of_a_row_do_not_depend_on_rows_threads_or_alignment(dtype, transpose_b, n, k):
    """The products of more than 16 rows have another kernel."""
    random = np.random.RandomState(3)
    x, w = halves(random, dtype, 40, k), halves(random, dtype, *((n, k) if transpose_b else (k, n)))
    shifted = nd.concat(nd.zeros((1,), dtype=dtype), w.reshape((-1,)), dim=0)[1:].reshape(w.shape)
    whole = wide(nd.dot(x, w, transpose_b=transpose_b))
    for threads, weight in itertools.product((1, 3), (w, shifted)):
        mx.context.set_threads(threads)
        for rows in (*range(1, 10), 16, 17, 40):
            found = wide(nd.dot(x[:rows], weight, transpose_b=transpose_b))
            assert (found == whole[:rows]).all(), (threads, rows)
    mx.context.set_threads(0)


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
