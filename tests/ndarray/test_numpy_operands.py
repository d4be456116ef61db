"""Operators of mx.np treat numbers of Python, numbers of NumPy and arrays of NumPy alike, on both
sides of the operator."""

import operator

import numpy as onp
import pytest

from mpgluon import np

ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
BITWISE = ["and_", "or_", "xor"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
NUMBERS = [True, False, 1, 2, 3, 300, 2.5, 0.5]
VALUES = [
    onp.array([True, False, True]),
    onp.array([1, 2, 3]),
    onp.array([1, 2, 300]),
    onp.array([2.5, 0.5, 1]),
    onp.array([2.5, 0.5, 1], "float32"),
    onp.array([1, 2, 3], "uint8"),
]


def array(dtype):
    return np.array(onp.array([1, 0, 3]), dtype=dtype)


def outcome(function, a, b):
    """Returns the dtype and the values of a result, or the kind of error."""
    try:
        result = function(a, b)
    except (TypeError, OverflowError, ValueError, RuntimeError) as error:
        return "OverflowError" if isinstance(error, OverflowError) else "error"
    assert isinstance(result, np.ndarray)
    return str(result.dtype), repr(result.tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARITHMETIC + BITWISE + COMPARISONS)
def test_numbers_of_numpy_act_as_numbers_of_python(name, dtype):
    function, x = getattr(operator, name), array(dtype)
    for number in NUMBERS:
        scalar = onp.array(number)[()]
        for same in (scalar, onp.array(number)):
            assert outcome(function, x, same) == outcome(function, x, number), (number, "right")
            assert outcome(function, same, x) == outcome(function, number, x), (number, "left")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARITHMETIC + BITWISE + COMPARISONS)
def test_dtype_does_not_depend_on_the_side_of_a_numpy_array(name, dtype):
    function, x = getattr(operator, name), array(dtype)
    mirrored = getattr(operator, MIRRORED.get(name, name))
    for values in VALUES:
        if {x.dtype, values.dtype} == {onp.dtype("bool")} and name in ("sub", "mod", "pow"):
            continue  # mx.np rejects two arrays of bools, and NumPy computes some of them on copies
        left, right = outcome(function, values, x), outcome(mirrored, x, values)
        assert left[0] == right[0], values
        if name in BITWISE + COMPARISONS:
            assert left == right, values
        if name in BITWISE + COMPARISONS and left != "error":
            expected = function(values, x.asnumpy())
            assert left[1] == repr(expected.tolist()), values


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bitwise_functions_act_as_the_operators(name, dtype):
    operators = {"bitwise_and": "and_", "bitwise_or": "or_", "bitwise_xor": "xor"}
    function, x = getattr(operator, operators[name]), array(dtype)
    for number in [*NUMBERS, *VALUES]:
        expected = outcome(function, x, number)
        assert outcome(getattr(np, name), x, number) == expected, number
        assert outcome(getattr(np, name), number, x) == expected, number


@pytest.mark.parametrize("number", [True, 1, 2, 0.5])
def test_bools_are_divided_by_numbers_as_they_are_multiplied(number):
    x = np.array([True, False, True], dtype="bool")
    assert (x // number).dtype == (x % number).dtype
    assert (x // number).tolist() == (x.asnumpy() // number).tolist()
    y = np.array([True, True], dtype="bool")
    assert (number // y).tolist() == (number // y.asnumpy()).tolist()
    assert (y // np.array([1, 2], dtype="uint8")).dtype == "uint8"
    assert (y // y).dtype == "int8"


def test_floats_are_divided_by_infinity_as_in_numpy():
    values = onp.array([-1, 1, 0, -0.0, onp.inf, onp.nan], "float32")
    for number in (onp.inf, -onp.inf):
        with onp.errstate(invalid="ignore"):
            expected = values // onp.float32(number)
        onp.testing.assert_array_equal((np.array(values) // number).asnumpy(), expected)
    with pytest.raises(OverflowError, match="integers cannot be divided by"):
        np.array([1], dtype="int32") // onp.inf


def test_floats_and_integers_are_multiplied_as_matrices():
    floats, integers = np.array([[2.5, 1]]), np.array([[1], [2]], dtype="int8")
    assert (floats @ integers).tolist() == [[4.5]]
    assert (integers @ floats).tolist() == [[2.5, 1], [5, 2]]
    for result in (
        integers @ floats.asnumpy(),
        floats.asnumpy() @ integers,
        onp.array([[2.5, 1]]) @ integers,
    ):
        assert isinstance(result, np.ndarray) and result.dtype == "float32"
