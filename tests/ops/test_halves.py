"""Ops of all numbers that halves have: those of float32, rounded once."""

import numpy as np
import pytest

from mpgluon import nd

# Those whose results halves have exactly, those that are rounded, and functions
UNARY = "abs negative sign relu floor ceil trunc rint round square reciprocal sqrt exp tanh sigmoid"
FUNCTIONS = [getattr(nd, name) for name in (*UNARY.split(), "erf", "expm1", "softsign", "log1p")]
FUNCTIONS.append(lambda x: nd.LeakyReLU(x, act_type="gelu"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_is_computed_as_float32_and_rounded_once(dtype):
    bits = np.arange(65536, dtype="uint32")
    wide = (bits << 16).view("float32") if dtype == "bfloat16" else bits.astype("uint16")
    wide = wide if dtype == "bfloat16" else wide.view("float16").astype("float32")
    # A row that is no multiple of a vector, and all in another order beside it
    x, y = wide[:-5], wide[np.random.RandomState(0).permutation(65536)][:-5]
    halves = [nd.array(v).astype(dtype) for v in (x, y)]
    wide = [half.astype("float32") for half in halves]
    pairs = [nd.add, nd.subtract, nd.multiply, nd.divide, nd.maximum, nd.minimum]
    for function, count in [(f, 1) for f in FUNCTIONS] + [(f, 2) for f in pairs]:
        found = function(*halves[:count]).astype("float32").asnumpy()
        expected = function(*wide[:count]).astype(dtype).astype("float32").asnumpy()
        np.testing.assert_array_equal(found, expected, err_msg=str(function))
