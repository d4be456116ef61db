"""Accuracy of ops, and handling of NaN, infinities and the sign of zero."""

import itertools
import math

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core
from support.devices import on
from support.training import variable


@pytest.fixture(autouse=True)
def first_device():
    with on(0):
        yield


def softrelu(x):
    return np.logaddexp(0, x)


def of_double(name):
    return lambda x: getattr(mx.nd, name)(mx.nd.array(x, dtype="float64")).asnumpy()


# Maximum errors in units in the last place (ULP): bounds of our own functions
# (kernels/common/vector_math.h), and of functions that GPUs take from their math library
# (vector_math_mixed.h).
OWN = {
    "exp": (mx.nd.exp, np.exp, -87, 88.7, 1.05),
    "expm1": (mx.nd.expm1, np.expm1, -87, 88.7, 1.5),
    "log": (mx.nd.log, np.log, 1e-38, 3e38, 0.85),
    "log1p": (mx.nd.log1p, np.log1p, -0.9999999, 3e38, 0.85),
    "log2": (mx.nd.log2, np.log2, 1e-38, 3e38, 1.0),
    "log10": (mx.nd.log10, np.log10, 1e-38, 3e38, 0.95),
    "sin": (mx.nd.sin, np.sin, -1e30, 1e30, 1.2),
    "cos": (mx.nd.cos, np.cos, -1e30, 1e30, 1.2),
    "sinh": (mx.nd.sinh, np.sinh, -89.4, 89.4, 0.8),
    "cosh": (mx.nd.cosh, np.cosh, -89.4, 89.4, 0.95),
    "tanh": (mx.nd.tanh, np.tanh, -20, 20, 0.95),
    "erf": (mx.nd.erf, np.vectorize(math.erf), -6, 6, 1.1),
    "sigmoid": (mx.nd.sigmoid, lambda x: 1 / (1 + np.exp(-x)), -87, 87, 2.4),
    "softrelu": (lambda x: mx.nd.Activation(x, act_type="softrelu"), softrelu, -87, 87, 1.7),
    "log_sigmoid": (mx.nd.log_sigmoid, lambda x: -softrelu(-x), -87, 87, 1.7),
    "mish": (mx.nd.mish, lambda x: x * np.tanh(softrelu(x)), -80, 80, 3.0),
    "gammaln": (mx.nd.gammaln, np.vectorize(math.lgamma), -100, 1e30, 0.51),
    "sqrt": (mx.nd.sqrt, np.sqrt, 0, 3e38, 0.51),
    "rsqrt": (mx.nd.rsqrt, lambda x: 1 / np.sqrt(x), 1e-37, 3e38, 1.5),
}
WITHOUT_FMA = {"cos": 1.3, "sin": 1.4, "tanh": 1.05}  # if FMA and non-FMA bounds differ
LIBRARY = {
    "tan": (mx.nd.tan, np.tan, -1e30, 1e30, 1.0),  # beyond 2^20 the C library's function
    "arcsin": (mx.nd.arcsin, np.arcsin, -1, 1, 0.51),
    "arccos": (mx.nd.arccos, np.arccos, -1, 1, 0.51),
    "arctan": (mx.nd.arctan, np.arctan, -3e38, 3e38, 0.51),
    "arcsinh": (mx.nd.arcsinh, np.arcsinh, -3e38, 3e38, 0.51),
    "arccosh": (mx.nd.arccosh, np.arccosh, 1, 3e38, 0.51),
    "arctanh": (mx.nd.arctanh, np.arctanh, -1, 1, 0.51),
    "cbrt": (mx.nd.cbrt, np.cbrt, -3e38, 3e38, 0.51),
    "rcbrt": (mx.nd.rcbrt, lambda x: 1 / np.cbrt(x), -3e38, 3e38, 0.51),
    "erfinv": (mx.nd.erfinv, of_double("erfinv"), -1, 1, 0.51),
    "gamma": (mx.nd.gamma, np.vectorize(math.gamma), -33, 35, 0.51),
}


# Maximum errors in units in the last place that NVIDIA documents for its functions
CUDA_BOUNDS = {"sin": 2, "cos": 2, "gammaln": 6}


@pytest.mark.parametrize("name", sorted(OWN) + sorted(LIBRARY))
def test_float32_functions_stay_within_error_bounds(name):
    function, exact, low, high, bound = OWN.get(name) or LIBRARY[name]
    if on(0).device_type != "cpu":
        bound = max(bound, CUDA_BOUNDS.get(name, 5.0 if name in LIBRARY else 0))
    if _core.build_info()["isa"] == "base":
        bound = WITHOUT_FMA.get(name, bound)
    random = np.random.RandomState(0)
    x = np.exp2(random.uniform(-30, np.log2(max(abs(low), abs(high))), 30000)) * random.choice(
        [-1.0, 1.0], 30000
    )
    x = np.concatenate([x, random.uniform(max(low, -8), min(high, 8), 70000)]).astype("float32")
    x = x[(x > low) & (x < high)]
    with np.errstate(all="ignore"):
        expected = exact(x.astype("float64"))
        rounded = expected.astype("float32")
    normal = np.isfinite(rounded) & (np.abs(rounded) >= 2.0**-126)
    error = np.abs(function(mx.nd.array(x)).asnumpy() - expected) / np.spacing(np.abs(rounded))
    at = np.argmax(np.where(normal, error, 0))
    assert error[at] <= bound, (x[at], error[at])


def test_functions_keep_the_sign_of_zero():
    zeros = np.array([-0.0, 0.0] * 20)
    for dtype in ("float32", "float64"):
        x = mx.nd.array(zeros, dtype=dtype)
        for name in (
            "sin tan arcsin arctan sinh tanh arcsinh arctanh expm1 log1p erf erfinv sqrt cbrt round"
            " rint fix floor ceil trunc degrees radians softsign relu negative"
        ).split():
            sign = np.signbit(getattr(mx.nd, name)(x).asnumpy())
            assert (sign == np.signbit(-zeros if name == "negative" else zeros)).all(), (
                name,
                dtype,
            )
        for act_type in ("elu", "selu", "gelu", "leaky"):
            assert (
                np.signbit(mx.nd.LeakyReLU(x, act_type=act_type).asnumpy()) == np.signbit(zeros)
            ).all(), (act_type, dtype)
        assert (
            np.signbit(
                mx.nd.rint(x + mx.nd.array(zeros - 0.25 * np.signbit(zeros), dtype=dtype)).asnumpy()
            )
            == np.signbit(zeros)
        ).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_at_infinity_and_nan_have_expected_limits(dtype):
    inf, nan = np.inf, np.nan
    x = mx.nd.array([-inf, inf, nan], dtype=dtype)
    for name, expected in {
        "sinh": [-inf, inf, nan],
        "cosh": [inf, inf, nan],
        "tanh": [-1, 1, nan],
        "expm1": [-1, inf, nan],
        "exp": [0, inf, nan],
        "log1p": [nan, inf, nan],
        "log2": [nan, inf, nan],
        "sin": [nan, nan, nan],
        "erf": [-1, 1, nan],
    }.items():
        np.testing.assert_array_equal(getattr(mx.nd, name)(x).asnumpy(), expected, err_msg=name)
    a = mx.nd.array([inf, nan, -inf, 3, nan], dtype=dtype)
    b = mx.nd.array([nan, -inf, 1, 4, 1], dtype=dtype)
    np.testing.assert_array_equal(mx.nd.broadcast_hypot(a, b).asnumpy(), [inf, inf, inf, 5, nan])
    for name, points in {
        "tan": {0: 0, inf: nan, nan: nan},
        "arcsin": {1: np.pi / 2, -1: -np.pi / 2, 1.5: nan, inf: nan, nan: nan},
        "arccos": {1: 0, -1: np.pi, 2: nan, -inf: nan, nan: nan},
        "arctan": {inf: np.pi / 2, -inf: -np.pi / 2, nan: nan},
        "arcsinh": {inf: inf, -inf: -inf, nan: nan},
        "arccosh": {1: 0, inf: inf, 0.5: nan, -3: nan, -inf: nan, nan: nan},
        "arctanh": {1: inf, -1: -inf, 1.5: nan, -inf: nan, nan: nan},
        "cbrt": {inf: inf, -inf: -inf, nan: nan, 27: 3, -8: -2},
        "rcbrt": {-0.0: -inf, inf: 0, nan: nan, -8: -0.5},
        "erfinv": {1: inf, -1: -inf, 1.5: nan, -inf: nan, nan: nan},
        "gamma": {-0.0: -inf, -1: nan, -(2.0**30): nan, inf: inf, -inf: nan, nan: nan, 1: 1, 5: 24},
        "gammaln": {0: inf, -1: inf, -2: inf, -7: inf, 1: 0, 2: 0, inf: inf, nan: nan},
        "log2": {0: -inf, 8: 3, 0.25: -2, -1: nan, inf: inf},
        "log10": {0: -inf, 1: 0, -1: nan, inf: inf},
    }.items():
        result = getattr(mx.nd, name)(mx.nd.array(list(points), dtype=dtype)).asnumpy()
        np.testing.assert_allclose(
            result, list(points.values()), rtol=1e-6 if dtype == "float32" else 1e-14, err_msg=name
        )


@pytest.mark.skipif(on(0).device_type != "cpu", reason="bounds of the CPU kernels")
@pytest.mark.parametrize(
    "name, low, high, bound",
    [
        ("sin", -1e9, 1e9, 1.0),
        ("cos", -1e9, 1e9, 1.0),
        ("tan", -1e9, 1e9, 2.3),
        ("log2", 0, 1e308, 2.0),
        ("log10", 0, 1e308, 2.0),
        ("exp", -708, 709.7, 1.2),
        ("expm1", -708, 709.7, 2.2),
        ("log", 0, 1e308, 1.0),
        ("log1p", -1, 1e308, 1.0),
        ("tanh", -20, 20, 3.0),
        ("erf", -7, 7, 2.0),
    ],
)
def test_float64_functions_stay_within_error_bounds(name, low, high, bound):
    random = np.random.RandomState(0)
    x = np.exp2(random.uniform(-40, np.log2(max(abs(low), abs(high))), 20000)) * random.choice(
        [-1.0, 1.0], 20000
    )
    x = np.concatenate([x, random.uniform(max(low, -8), min(high, 8), 20000)])
    x = x[(x > low) & (x < high)]
    exact = (
        np.vectorize(math.erf)(x) if name == "erf" else getattr(np, name)(x.astype("longdouble"))
    )
    error = np.abs(
        getattr(mx.nd, name)(mx.nd.array(x, dtype="float64")).asnumpy() - exact
    ) / np.spacing(np.abs(exact.astype("float64")))
    assert error.max() <= bound, (x[np.argmax(error)], error.max())


@pytest.mark.skipif(on(0).device_type != "cpu", reason="bounds of the CPU kernels")
@pytest.mark.parametrize("dtype, bound", [("float32", 0.51), ("float64", 1.3)])
def test_power_stays_within_error_bounds(dtype, bound):
    random = np.random.RandomState(0)
    large = 120 if dtype == "float32" else 1000
    x = np.exp2(
        np.concatenate([random.uniform(-1, 1, 20000), random.uniform(-large, large, 20000)])
    ).astype(dtype)
    y = (random.uniform(-1, 1, 40000) * np.minimum(large / np.abs(np.log2(x)), 1e30)).astype(dtype)
    exact = np.power(x.astype("longdouble"), y.astype("longdouble"))
    error = np.abs(
        mx.nd.broadcast_power(mx.nd.array(x, dtype=dtype), mx.nd.array(y, dtype=dtype)).asnumpy()
        - exact
    ) / np.spacing(exact.astype(dtype))
    assert error.max() <= bound, (x[np.argmax(error)], y[np.argmax(error)], error.max())
    ends = [sign * x for x in (0.0, 1, 0.5, 2, 3, 2.5, 1e9, np.inf) for sign in (1, -1)]
    ends += [16777215, 1e-40, 1e38, np.nan]
    a, b = (v.ravel().astype(dtype) for v in np.meshgrid(ends, ends))
    with np.errstate(all="ignore"):
        expected = np.power(a, b)
    result = mx.nd.broadcast_power(
        mx.nd.array(a, dtype=dtype), mx.nd.array(b, dtype=dtype)
    ).asnumpy()
    np.testing.assert_allclose(result, expected, rtol=3e-7 if dtype == "float32" else 1e-15)
    assert (np.signbit(result) == np.signbit(expected))[~np.isnan(expected)].all()
    for number in (2.5, -0.3, 0.0, 7.0):  # an array with a number gives the same bits
        whole = mx.nd.array(np.full_like(x, number), dtype=dtype)
        base = mx.nd.array(np.where(random.rand(x.size) < 0.5, x, -x), dtype=dtype)
        if number != 7.0:
            np.testing.assert_array_equal(
                (base**number).asnumpy(), mx.nd.broadcast_power(base, whole).asnumpy()
            )
        np.testing.assert_array_equal(
            (number**base).asnumpy(), mx.nd.broadcast_power(whole, base).asnumpy()
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_are_exact(dtype):
    random = np.random.RandomState(0)
    info = np.finfo(dtype)
    width = "uint32" if dtype == "float32" else "uint64"
    bits = [random.randint(0, np.iinfo(width).max, 60000, width).view(dtype) for _ in range(2)]
    near = [random.uniform(-50, 50, 20000), random.uniform(-5, 5, 20000)]
    ends = np.meshgrid(
        *[
            [
                0.0,
                -0.0,
                1,
                -1,
                3,
                -3,
                0.5,
                7,
                1e9,
                info.tiny,
                info.max,
                -info.max,
                np.inf,
                -np.inf,
                np.nan,
            ]
        ]
        * 2
    )
    with np.errstate(all="ignore"):
        x, y = (
            np.concatenate([a, b, np.round(b), c.ravel()]).astype(dtype)
            for a, b, c in zip(bits, near, ends)
        )
        expected = np.where(y == 0, 0, np.fmod(x, y)).astype(dtype)
        expected = np.where((expected != 0) & ((expected < 0) != (y < 0)), expected + y, expected)
    result = mx.nd.broadcast_mod(mx.nd.array(x, dtype=dtype), mx.nd.array(y, dtype=dtype)).asnumpy()
    np.testing.assert_array_equal(result, expected)
    assert (np.signbit(result) == np.signbit(expected))[(y != 0) & ~np.isnan(expected)].all()
    for number in (3.0, -0.7):
        np.testing.assert_array_equal(
            (mx.nd.array(x, dtype=dtype) % number).asnumpy(),
            mx.nd.broadcast_mod(
                mx.nd.array(x, dtype=dtype), mx.nd.array([number], dtype=dtype)
            ).asnumpy(),
        )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_element_results_do_not_depend_on_position(dtype):
    """The bits are the same alone, in a row of any length and at any position."""
    random = np.random.RandomState(0)
    values = np.concatenate(
        [
            random.normal(size=600),
            np.exp2(random.uniform(-30, 15, 100)),
            [0, -0.0, np.inf, -np.inf, np.nan, -2.5, -7.3],
        ]
    )
    random.shuffle(values)
    x = mx.nd.array(values, dtype=dtype)
    for name in (
        "exp expm1 log log1p log2 log10 sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh"
        " arccosh arctanh erf erfinv gamma gammaln sqrt rsqrt cbrt rcbrt sigmoid log_sigmoid mish"
        " softsign"
    ).split():
        function = getattr(mx.nd, name)
        whole = function(x).asnumpy()
        for start, end in ((1, 700), (3, 20), (5, 6), (17, 530), (690, 707)):
            np.testing.assert_array_equal(
                function(x[start:end].copy()).asnumpy(),
                whole[start:end],
                err_msg=f"{name} [{start}:{end}]",
            )
    y = mx.nd.array(np.roll(values, 1), dtype=dtype)
    for function in (mx.nd.broadcast_power, mx.nd.broadcast_mod, mx.nd.broadcast_hypot):
        whole = function(x, y).asnumpy()
        for start, end in ((1, 700), (5, 6), (17, 530)):
            np.testing.assert_array_equal(
                function(x[start:end].copy(), y[start:end].copy()).asnumpy(), whole[start:end]
            )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_ops_are_computed_in_float32(dtype):
    """For all 65536 values, the result equals the float32 result, rounded."""
    bits = np.arange(65536, dtype="uint32")
    values = (
        (bits << 16).view("float32")
        if dtype == "bfloat16"
        else bits.astype("uint16").view("float16").astype("float32")
    )
    np.random.RandomState(0).shuffle(values)

    def check(function, *arrays):
        of_floats = (
            function(*[mx.nd.array(a) for a in arrays]).astype(dtype).astype("float32").asnumpy()
        )
        np.testing.assert_array_equal(
            function(*[mx.nd.array(a, dtype=dtype) for a in arrays]).astype("float32").asnumpy(),
            of_floats,
        )

    names = "relu abs sign negative square sqrt rsqrt reciprocal floor ceil rint softsign"
    for name in [*names.split(), "logical_not"]:
        check(getattr(mx.nd, name), values[:-3])
    check(lambda x: mx.nd.clip(x, -0.5, 2), values[:-5])
    check(lambda x: mx.nd.LeakyReLU(x, slope=0.25), values[:-7])
    check(
        lambda x, g: mx.nd.LeakyReLU(x, g, act_type="prelu"),
        values[:65520].reshape(-1, 21),
        np.arange(-10, 11, dtype="float32") / 8,
    )
    other = np.roll(values, 12345)
    for operation in (
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / y,
        mx.nd.maximum,
        mx.nd.minimum,
        lambda x, y: x > y,
        lambda x, y: x <= y,
    ):
        check(operation, values[:-1], other[:-1])
        check(operation, values[:6001], np.array([1.5], "float32"))
        check(operation, np.array([-0.75], "float32"), values[:6001])
        check(operation, values[:6000].reshape(-1, 3), other[:3].reshape(1, 3))
        check(lambda x: operation(x, 0.375), values[:1001])
        check(lambda x: operation(-2.5, x), values[:1001])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_casts_round_to_even(dtype):
    random = np.random.RandomState(0)
    bits = np.concatenate(
        [
            random.randint(0, 2**32, 200001, "uint32"),
            random.randint(0, 2**17, 20000, "uint32") << 15,
        ]
    )
    with np.errstate(all="ignore"):
        if dtype == "float16":
            expected = bits.view("float32").astype("float16").astype("float32")
        else:
            expected = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view("float32")
    expected = np.where(np.isnan(bits.view("float32")), np.nan, expected)
    x = mx.nd.array(bits.view("float32"))
    for start in (0, 5):  # full vectors, and a remainder
        np.testing.assert_array_equal(
            x[start:].astype(dtype).astype("float32").asnumpy(), expected[start:]
        )
    few = expected[:5000]
    doubles = mx.nd.array(bits[:5000].view("float32")).astype("float64")
    np.testing.assert_array_equal(doubles.astype(dtype).astype("float32").asnumpy(), few)


@pytest.mark.parametrize(
    "shape, axis", [((10**6,), 0), ((200000, 3), 0), ((2, 200000), 1), ((100, 20, 200), None)]
)
@pytest.mark.parametrize("offset", [0.1, 1e4])
def test_cumulative_sums_do_not_drift(shape, axis, offset):
    values = (offset + np.random.RandomState(0).normal(size=shape) * 0.01).astype("float32")
    for reverse in (False, True):
        x = variable(mx.nd.array(values))
        with mx.autograd.record():
            y = mx.nd.cumsum(x, axis=axis, reverse=reverse)
        y.backward(x if axis is not None else x.reshape((-1,)))
        for reversed_, result in (
            (reverse, y.asnumpy()),
            (not reverse, x.grad.asnumpy().reshape(y.shape)),
        ):
            exact = (
                values.astype("float64") if axis is not None else values.astype("float64").ravel()
            )
            end = (slice(None),) * (axis or 0) + (slice(None, None, -1 if reversed_ else 1),)
            exact = np.cumsum(exact[end], axis or 0)[end]
            np.testing.assert_allclose(result, exact, rtol=1.3e-7)


@pytest.mark.parametrize("dtype, bound", [("float32", 1e-7), ("float64", 1e-15), ("float16", 1e-3)])
@pytest.mark.parametrize("size", [1, 33, 4095, 100001, 3 * 10**6])
def test_vector_products_do_not_drift(size, dtype, bound):
    if on(0).device_type != "cpu":
        bound = max(bound, 1e-4)  # cuBLAS sums
    random = np.random.RandomState(size)
    a, b = (mx.nd.array(random.uniform(0, 0.1, size), dtype=dtype) for _ in range(2))
    exact = np.dot(a.asnumpy().astype("longdouble"), b.asnumpy().astype("longdouble"))
    row, column = a.reshape((1, -1)), b.reshape((-1, 1))
    for product in (
        mx.nd.dot(a, b),
        mx.nd.linalg.gemm2(row, column, alpha=1.0),
        mx.nd.FullyConnected(row, b.reshape((1, -1)), no_bias=True, num_hidden=1),
    ):
        assert abs(float(product.asscalar()) / exact - 1) < bound
    twice = mx.nd.linalg.gemm(row, column, mx.nd.ones((1, 1), dtype=dtype), alpha=2.0, beta=3.0)
    assert abs(float(twice.asscalar()) / (2 * exact + 3) - 1) < bound


HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_of_a_row_do_not_depend_on_the_number_of_few_rows(dtype):
    random = np.random.RandomState(0)
    for n, k in itertools.product((1, 2, 5, 8, 33), (1, 5, 31, 32, 33, 100, 1000)):
        x, w = (mx.nd.array(random.normal(size=(size, k)), dtype=dtype) for size in (8, n))
        whole = mx.nd.FullyConnected(x, w, num_hidden=n, no_bias=True).asnumpy()
        for m in (1, 2, 3, 7):
            part = mx.nd.FullyConnected(x[:m], w, num_hidden=n, no_bias=True).asnumpy()
            np.testing.assert_array_equal(part, whole[:m], err_msg=f"{m} x {n} x {k}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "low, high", [(0, 1), (-1, 0), (-3, -1), (0, 0.1), (1, 2), (-2e-8, 2e-8), (1000, 1008)]
)
def test_uniform_draws_stay_below_the_end(low, high, dtype):
    ends = mx.nd.array([low, high], dtype=dtype)
    draws = [
        mx.nd.random.uniform(low, high, shape=(200000,), dtype=dtype),
        mx.nd.random.uniform(ends[:1], ends[1:], shape=(200000,), dtype=dtype),
        mx.nd.random.uniform_like(mx.nd.zeros((200000,), dtype=dtype), low, high),
    ]
    for drawn in draws:
        values = drawn.asnumpy().astype("float64").ravel()
        first, end = ends.asnumpy().astype("float64")
        if end - first < 1e-7 and dtype == "float16":
            continue  # both ends round to 0
        assert first <= values.min() and values.max() < end
        assert abs(values.mean() - (low + high) / 2) < 0.005 * (high - low) + HALVES.get(
            dtype, 0
        ) * max(abs(low), abs(high))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size, kernel", [(4, 2), (10, 10)])
def test_max_pooling_keeps_nan_and_infinities(size, kernel, dtype, layout):
    """The maximum of each window matches NumPy's max, and its gradient goes to that element.

    Covers eager and compiled execution.
    """
    nan, inf = np.nan, np.inf
    planes = np.arange(4.0 * size * size).reshape(4, size, size) % 7
    planes[0, :2, :2] = [[1, nan], [2, 3]]
    planes[1] = -inf
    planes[2, 1, 1], planes[2, 3, 3] = -inf, inf
    planes[3, :2, :2] = nan
    values = planes[None] if layout == "NCHW" else np.moveaxis(planes[None], 1, -1)
    steps = size // kernel
    expected = planes.reshape(4, steps, kernel, steps, kernel).max((2, 4))

    class Pool(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.Pooling(x, kernel=(kernel, kernel), stride=(kernel, kernel), layout=layout)

    for mode in ({}, {"active": True, "exact": True}, {"active": True}):
        net = Pool()
        if mode:
            net.hybridize(**mode)
        x = variable(mx.nd.array(values, dtype=dtype))
        with mx.autograd.record():
            y = net(x)
        y.backward(mx.nd.ones_like(y))
        out, slope = y.asnumpy()[0], x.grad.asnumpy()[0]
        if layout == "NHWC":
            out, slope = np.moveaxis(out, -1, 0), np.moveaxis(slope, -1, 0)
        np.testing.assert_array_equal(out, expected)
        slope = slope.reshape(4, steps, kernel, steps, kernel)
        assert (slope.sum((2, 4)) == 1).all()  # one nonzero slope per window, at its maximum
        largest = np.where(slope == 1, planes.reshape(slope.shape), 0).sum((2, 4))
        np.testing.assert_array_equal(largest, expected)


NORMS = {
    "BatchNorm": lambda x, g, b: mx.nd.BatchNorm(
        x, g, b, mx.nd.zeros((3,)), mx.nd.ones((3,)), eps=1e-5, fix_gamma=False
    ),
    "BatchNorm, channels last": lambda x, g, b: mx.nd.BatchNorm(
        x.transpose((0, 2, 3, 1)),
        g,
        b,
        mx.nd.zeros((3,)),
        mx.nd.ones((3,)),
        eps=1e-5,
        fix_gamma=False,
        axis=3,
    ).transpose((0, 3, 1, 2)),
    "InstanceNorm": lambda x, g, b: mx.nd.InstanceNorm(x, g, b, eps=1e-5),
    "GroupNorm": lambda x, g, b: mx.nd.GroupNorm(x, g, b, num_groups=3, eps=1e-5),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("offset", [0, 100, 1e4, 1e6])
def test_norms_are_accurate_far_from_zero(name, offset):
    """Errors are single roundings however far the data is from 0: rounding the mean loses
    nothing."""
    random = np.random.RandomState(0)
    data = (random.normal(size=(4, 3, 20, 21)) + offset).astype("float32")
    gamma = random.uniform(0.5, 1.5, 3).astype("float32")
    beta = random.normal(size=3).astype("float32")
    head = random.normal(size=data.shape).astype("float32")
    x, g, b = (mx.nd.array(v) for v in (data, gamma, beta))
    for array in (x, g, b):
        array.attach_grad()
    with mx.autograd.record():
        y = NORMS[name](x, g, b)
    y.backward(mx.nd.array(head))
    axes = (0, 2, 3) if "Batch" in name else (2, 3)
    centred = data.astype("float64") - data.astype("float64").mean(axes, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
    unit, along = centred * inverse, (1, 3, 1, 1)
    np.testing.assert_allclose(
        y.asnumpy(), unit * gamma.reshape(along) + beta.reshape(along), rtol=0, atol=3e-6
    )
    np.testing.assert_allclose(g.grad.asnumpy(), (head * unit).sum((0, 2, 3)), rtol=0, atol=1e-4)
    slope = (
        head
        - head.mean(axes, keepdims=True, dtype="float64")
        - unit * (head * unit).mean(axes, keepdims=True)
    )
    far = 0 if offset < 1e6 else 0.01  # the part of x's gradient lost to a float32 mean
    np.testing.assert_allclose(
        x.grad.asnumpy(),
        slope * inverse * gamma.reshape(along),
        rtol=0,
        atol=3e-6 + 1e-8 * offset + far,
    )


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("dtype, bits", [("float16", 11), ("bfloat16", 8)])
def test_half_precision_batch_norm_rounds_its_result_once(dtype, bits, axis):
    """Statistics are float32, and differences use the unrounded mean."""
    random = np.random.RandomState(0)
    x = mx.nd.array(random.normal(size=(4, 6, 10, 6)) + 100).astype(dtype)
    data = (
        x.asnumpy().astype("float64")
        if dtype == "float16"
        else x.astype("float32").asnumpy().astype("float64")
    )
    gamma, beta = mx.nd.array([0.5, 1, 2, 3, 0.25, 1.5]), mx.nd.array([0, 1, -1, 0.5, 0.25, 2])
    mean, var = mx.nd.zeros((6,)), mx.nd.ones((6,))
    with mx.autograd.train_mode():
        y = (
            mx.nd.BatchNorm(
                x, gamma, beta, mean, var, eps=1e-3, momentum=0.5, fix_gamma=False, axis=axis
            )
            .astype("float32")
            .asnumpy()
        )
    axes = tuple(i for i in range(4) if i != axis)
    along = tuple(6 if i == axis else 1 for i in range(4))
    exact = (data - data.mean(axes, keepdims=True)) / np.sqrt(
        data.var(axes, keepdims=True) + 1e-3
    ) * gamma.asnumpy().reshape(along) + beta.asnumpy().reshape(along)
    np.testing.assert_allclose(y, exact, rtol=2.0**-bits, atol=1e-5)
    np.testing.assert_allclose(mean.asnumpy(), data.mean(axes) / 2, rtol=2e-7)
    np.testing.assert_allclose(var.asnumpy(), data.var(axes) / 2 + 0.5, rtol=2e-6)


def product(op, *shapes, **options):
    return lambda F, *arrays: getattr(F, op)(*arrays, **options), *shapes


WINDOW = {"kernel": (3, 3), "num_filter": 40, "pad": (1, 1)}
GROUPS = {"kernel": (3,), "num_filter": 12, "stride": (2,), "num_group": 6}
LAST = {"kernel": (1, 3), "num_filter": 32, "dilate": (1, 2), "layout": "NHWC"}
BACK = {"kernel": (4, 4), "num_filter": 20, "stride": (2, 2), "pad": (1, 1), "no_bias": False}
DENSE = {"num_hidden": 80, "flatten": False}
LARGE_PRODUCTS = {  # too large for the small kernels
    "dot": product("dot", (96, 130), (130, 70)),
    "dot, transposed": product("dot", (130, 96), (70, 130), transpose_a=True, transpose_b=True),
    "batch_dot": product("batch_dot", (3, 65, 70), (3, 80, 70), transpose_b=True),
    "FullyConnected": product("FullyConnected", (5, 21, 66), (80, 66), (80,), **DENSE),
    "Convolution": product("Convolution", (2, 24, 15, 13), (40, 24, 3, 3), (40,), **WINDOW),
    "Convolution of groups": product("Convolution", (2, 6, 31), (12, 1, 3), (12,), **GROUPS),
    "Convolution, channels last": product(
        "Convolution", (2, 9, 14, 16), (32, 1, 3, 16), (32,), **LAST
    ),
    "Deconvolution": product("Deconvolution", (2, 16, 7, 8), (16, 20, 4, 4), (20,), **BACK),
}


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("dtype, bits", [("float16", 11), ("bfloat16", 8)])
@pytest.mark.parametrize("name", LARGE_PRODUCTS)
def test_half_precision_products_are_rounded_once(name, dtype, bits, hybrid):
    """Sums are float32, whether a library multiplies halves or floats.

    Results and gradients are exact to half a unit in the last place. On GPUs some convolutions add
    the bias to the rounded sum.
    """
    function, *shapes = LARGE_PRODUCTS[name]
    on_gpu = mx.current_context().device_type == "gpu"
    twice = on_gpu and name in ("Convolution of groups", "Deconvolution")
    random = np.random.RandomState(0)

    def run(arrays, slope):
        layer = mx.gluon.nn.HybridLambda(function)
        if hybrid:
            layer.hybridize(static_alloc=True)
        for array in arrays:
            array.attach_grad()
        with mx.autograd.record():
            y = layer(*arrays)
        y.backward(slope(y))
        return [a.astype("float64").asnumpy() for a in (y, *(array.grad for array in arrays))]

    halves = [mx.nd.array(random.normal(size=shape)).astype(dtype) for shape in shapes]
    slopes = {}

    def slope(y):
        slopes["half"] = mx.nd.array(random.normal(size=y.shape)).astype(dtype)
        return slopes["half"]

    found = run(halves, slope)
    exact = run([h.astype("float64") for h in halves], lambda y: slopes["half"].astype("float64"))
    for i, (one, other) in enumerate(zip(found, exact)):
        slack = 2.0**-bits if twice and i == 0 else 3e-6  # only the result has a bias
        np.testing.assert_allclose(one, other, rtol=2.0**-bits, atol=slack * np.abs(other).max())


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("value", [1, 1e6, 1e8, 16777217, 3e30])
def test_norms_of_constant_channels_return_beta(name, value):
    x = mx.nd.full((2, 3, 75, 77), value)
    g = mx.nd.array([0.5, 1, 2])
    b = mx.nd.array([0.25, -1, 3])
    with mx.autograd.train_mode():
        y = NORMS[name](x, g, b).asnumpy()
    assert (y == np.array([0.25, -1, 3]).reshape((1, 3, 1, 1))).all()


@pytest.mark.parametrize("mode, gates", [("lstm", 4), ("gru", 3), ("rnn_tanh", 1)])
def test_bias_gradients_of_recurrent_layers_do_not_drift(mode, gates):
    """The bias gradient equals that of a column of ones, summed over steps and samples.

    It must be close to float64's.
    """
    steps, batch, size, hidden = 1500, 3, 4, 8
    random = np.random.RandomState(0)
    weights = random.uniform(-0.25, 0.25, gates * hidden * (size + hidden + 2))
    data = random.normal(size=(steps, batch, size))
    head = random.normal(size=(steps, batch, hidden)) + 0.5
    grads = []
    for dtype in ("float32", "float64"):
        x, w = (mx.nd.array(v.astype("float32"), dtype=dtype) for v in (data, weights))
        w.attach_grad()
        states = [mx.nd.zeros((1, batch, hidden), dtype=dtype)] * (2 if mode == "lstm" else 1)
        with mx.autograd.record():
            y = mx.nd.RNN(x, w, *states, state_size=hidden, num_layers=1, mode=mode)
        y.backward(mx.nd.array(head.astype("float32"), dtype=dtype))
        grads.append(w.grad.asnumpy()[-2 * gates * hidden :])
    assert np.abs(grads[0] - grads[1]).max() < 4e-7 * np.abs(grads[1]).max()
