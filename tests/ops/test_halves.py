"""Half-precision ops over all half values: float32 results, rounded once."""

import numpy as np
import pytest

from mpgluon import autograd, nd
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
