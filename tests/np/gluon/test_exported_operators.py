"""Operators with numbers compute the same in a file and as symbols as on arrays, for each dtype and
kind of number."""

import json
import math
import operator

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import gluon, np, npx

DTYPES = "bool uint8 int8 int32 int64 float16 float32 float64".split()
# The largest and smallest numbers of each dtype, and numbers that are common operands
VALUES = {
    "bool": [False, True],
    "uint8": [0, 1, 2, 44, 255],
    "int8": [-128, -1, 0, 1, 2, 44, 127],
    "int32": [-(2**31), -1, 0, 1, 2, 300, 2**31 - 1],
    "int64": [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1],
}
FLOATS = [-2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 2.5]
NUMBERS = {
    "True": True,
    "False": False,
    "bool_": onp.bool_(True),
    "2": 2,
    "0": 0,
    "-1": -1,
    "300": 300,
    "int8": onp.int8(2),
    "2.0": 2.0,
    "0.5": 0.5,
    "1.5": 1.5,
    "-0.5": -0.5,
    "float32": onp.float32(0.5),
    "2**40": 2**40,
    "2**53 + 1": 2**53 + 1,
    "2**63 - 1": 2**63 - 1,
    "-2**63": -(2**63),
    "-2**63 - 1": -(2**63) - 1,
    "2**64": 2**64,
    "inf": math.inf,
    "nan": math.nan,
}
OPERATORS = "add sub mul truediv floordiv mod pow lt le gt ge eq ne and_ or_ xor".split()
FUNCTIONS = (
    "add subtract multiply true_divide floor_divide mod power maximum minimum hypot arctan2 "
    "copysign ldexp less less_equal greater greater_equal equal not_equal bitwise_and bitwise_or "
    "bitwise_xor logical_and logical_or logical_xor"
).split()


def calls(space):
    """Returns functions of (array, number) by name, with the functions of mx.np or mx.sym.np."""
    binary = {name: getattr(operator, name) for name in OPERATORS}
    binary.update({f"np.{name}": getattr(space, name) for name in FUNCTIONS})
    found = {}
    for name, function in binary.items():
        found[f"{name}(x, n)"] = function
        found[f"{name}(n, x)"] = lambda x, n, function=function: function(n, x)
    found["-x"] = lambda x, n: -x
    found["~x"] = lambda x, n: ~x
    found["abs(x)"] = lambda x, n: abs(x)
    found["clip(x, n, None)"] = lambda x, n: space.clip(x, n, None)
    found["clip(x, None, n)"] = lambda x, n: space.clip(x, None, n)
    found["full_like(x, n)"] = space.full_like
    return found


CALLS, SYMBOL_CALLS = calls(np), calls(mx.sym.np)


class Calls(gluon.HybridBlock):
    """Calls functions of an array and a number. A block that reads shapes is exported from its
    trace, others from their symbols."""

    def __init__(self, functions, number, reads_shape):
        super().__init__()
        self.functions, self.number, self.reads_shape = functions, number, reads_shape

    def forward(self, x):
        if self.reads_shape:
            assert x.shape[0]
        return [function(x, self.number) for function in self.functions]


@pytest.fixture(autouse=True)
def _np_mode():
    npx.set_np()
    yield
    npx.reset_np()


def results_on_arrays(x, number):
    """Returns the results by name. Some combinations raise an error."""
    found = {}
    for name, function in CALLS.items():
        try:
            found[name] = function(x, number)
        except (TypeError, ValueError, OverflowError, mx.MXNetError):
            continue
    return found


def is_equal(name, found, expected):
    assert found.dtype == expected.dtype, name
    onp.testing.assert_array_equal(found.asnumpy(), expected.asnumpy(), err_msg=name)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_with_numbers_compute_the_same_in_a_file(tmp_path, dtype, number):
    x = np.array(VALUES.get(dtype, FLOATS), dtype=dtype)
    number = NUMBERS[number]
    expected = results_on_arrays(x, number)
    assert len(expected) > 20
    for reads_shape in (False, True):
        block = Calls([CALLS[name] for name in expected], number, reads_shape)
        block.hybridize()
        block(x)
        symbol, params = block.export(str(tmp_path / "net"))
        loaded = gluon.SymbolBlock.imports(symbol, "data", params)
        for name, found in zip(expected, loaded(x), strict=True):
            is_equal(name, found, expected[name])
    for name in expected:
        symbol = SYMBOL_CALLS[name](mx.sym.var("x").as_np_ndarray(), number)
        is_equal(name, symbol.eval(ctx=mx.cpu(), x=x.as_nd_ndarray())[0], expected[name])
        for node in json.loads(symbol.tojson())["nodes"]:
            attrs = node.get("attrs", {})
            assert all(isinstance(text, str) for text in attrs.values()), attrs
            float(attrs.get("scalar", 0))
            assert attrs.get("is_int", "False") == "False"
