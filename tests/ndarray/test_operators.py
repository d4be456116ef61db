"""Array operators, and functions of arrays and numbers."""

import operator

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd

OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.mod, operator.pow]
COMPARISONS = [operator.eq, operator.ne, operator.gt, operator.ge, operator.lt, operator.le]


@pytest.mark.parametrize("op", OPERATORS + COMPARISONS, ids=lambda op: op.__name__)
def test_operators_match_numpy_for_every_operand_type(op):
    a = np.array([[1, 2, 3], [4, 5, 6]], "float32")
    b = np.array([[2, 2, 1]], "float32")
    x, y = nd.array(a), nd.array(b)

    def same(result, expected):
        assert isinstance(result, nd.NDArray) and result.dtype == np.float32
        np.testing.assert_allclose(result.asnumpy(), expected.astype("float32"), rtol=1e-6)

    same(op(x, y), op(a, b))
    same(op(y, x), op(b, a))
    for number in (2, 2.0, True, np.float32(2), np.float64(2), np.int64(2), np.int32(2)):
        same(op(x, number), op(a, np.float32(number)))
        same(op(number, x), op(np.float32(number), a))
    for other in (b, b.astype("float64")):
        same(op(x, other), op(a, b))
        same(op(other, x), op(b, a))


@pytest.mark.parametrize(
    "name",
    [
        "add",
        "subtract",
        "multiply",
        "divide",
        "modulo",
        "power",
        "maximum",
        "minimum",
        "equal",
        "not_equal",
        "greater",
        "greater_equal",
        "lesser",
        "lesser_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
    ],
)
def test_operator_functions_match_numpy(name):
    function = getattr(nd, name)
    reference = {"lesser": np.less, "lesser_equal": np.less_equal, "modulo": np.mod}.get(
        name
    ) or getattr(np, name)
    a, b = np.array([[1.0], [2], [0]], "float32"), np.array([1, 2, 3], "float32")
    for left, right in ((a, b), (a, 2.0), (3, b)):
        result = function(
            nd.array(left) if isinstance(left, np.ndarray) else left,
            nd.array(right) if isinstance(right, np.ndarray) else right,
        )
        np.testing.assert_allclose(result.asnumpy(), reference(left, right).astype("float32"))
    assert function(3, 2) == reference(3, 2)
    for wrong in ("a", None, [1]):
        with pytest.raises(TypeError):
            function(nd.ones(2), wrong)


@pytest.mark.parametrize(
    "op",
    [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.imod],
    ids=lambda op: op.__name__,
)
def test_in_place_operators_write_the_same_array(op):
    a = np.array([[1, 2, 3], [4, 5, 6]], "float32")
    for other in (np.array([2, 3, 4], "float32"), 2, np.float32(3)):
        x = alias = nd.array(a)
        expected = op(a.copy(), other)
        x = op(x, nd.array(other) if isinstance(other, np.ndarray) else other)
        assert x is alias
        np.testing.assert_allclose(x.asnumpy(), expected, rtol=1e-6)
    x = nd.array(a)
    row = x[1]
    row *= 10
    np.testing.assert_array_equal(x.asnumpy(), [[1, 2, 3], [40, 50, 60]])
    with pytest.raises(mx.MXNetError):
        row += nd.ones((3, 3))


def test_unary_operators_work_and_unsupported_operands_are_refused():
    x = nd.array([-1, 2])
    assert (-x).asnumpy().tolist() == [1, -2] and abs(x).asnumpy().tolist() == [1, 2] and (+x) is x
    for op in OPERATORS:
        for wrong in ("a", None, [1, 2], {}):
            with pytest.raises(TypeError):
                op(x, wrong)
            if not (op is operator.mod and isinstance(wrong, str)):  # str % x formats
                with pytest.raises(TypeError):
                    op(wrong, x)
    assert (x == None) is False and (x != "a") is True  # noqa: E711
    assert (nd.ones((2, 3)) @ nd.ones((3, 4))).shape == (2, 4)


@pytest.mark.parametrize("op", OPERATORS + COMPARISONS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_float_array_with_numpy_integers_stays_float32(op, dtype):
    a, b = np.array([[0.5, 2, 3]], "float32"), np.arange(1, 4, dtype=dtype)
    for found, expected in ((op(nd.array(a), b), op(a, b)), (op(b, nd.array(a)), op(b, a))):
        assert isinstance(found, nd.NDArray) and found.dtype == np.float32
        np.testing.assert_allclose(found.asnumpy(), expected.astype("float32"), rtol=1e-6)
    x = nd.array(a)
    x += b
    np.testing.assert_array_equal(x.asnumpy(), a + b)
    np.testing.assert_array_equal(np.maximum(nd.array(a), b).asnumpy(), np.maximum(a, b))


def test_integer_array_with_numpy_floats_is_refused():
    x, fractions = nd.array([1, 2], dtype="int32"), np.array([1.5, 2.5])
    for call in (lambda: x * fractions, lambda: fractions * x):
        with pytest.raises(mx.MXNetError, match="must be int32|not int32"):
            call()


def test_integer_arrays_keep_their_dtype():
    x = nd.array([5, 7], dtype="int32")
    assert (x + 2).dtype == np.int32 and (x + 2).asnumpy().tolist() == [7, 9]
    assert (x + np.array([1, 2])).dtype == np.int32
    assert (x == 5).dtype == np.int32


def test_only_single_element_arrays_convert_to_scalars():
    one = nd.array([2.5])
    assert one.asscalar() == np.float32(2.5) and isinstance(one.asscalar(), np.float32)
    assert one.item() == 2.5 and isinstance(one.item(), float)
    assert float(one) == 2.5 and int(one) == 2 and bool(one)
    assert not nd.array([0]) and not nd.zeros((0,))
    assert [1, 2, 3][nd.array([1], dtype="int32")] == 2
    with pytest.raises(TypeError):
        [1, 2][one]
    for what in (bool, lambda x: x.asscalar(), lambda x: x.item()):
        with pytest.raises(ValueError):
            what(nd.ones(2))
    for what in (float, int, range):
        with pytest.raises(TypeError):
            what(nd.ones(2))
    assert nd.arange(6).reshape((2, 3)).item(1, 2) == 5
    with pytest.raises(TypeError):
        len(nd.array(1))


def test_bool_arrays_with_numbers_give_int64():
    b = nd.array([1, 0], dtype="bool")
    for result, expected in (
        (b + 1, [2, 1]),
        (1 + b, [2, 1]),
        (b - 1, [0, -1]),
        (1 - b, [0, 1]),
        (b * 2.5, [2, 0]),
        (b / 2, [0, 0]),
        (b % 2, [1, 0]),
        (b**2, [1, 0]),
        (2**b, [2, 1]),
        (-b, [-1, 0]),
        (b > 0, [1, 0]),
        (b == 1, [1, 0]),
        (0 <= b, [1, 1]),
        (nd.maximum(b, 0), [1, 0]),
        (nd.logical_and(b, 1), [1, 0]),
    ):
        assert result.dtype == np.int64
        np.testing.assert_array_equal(result.asnumpy(), expected)
    with pytest.raises(mx.MXNetError, match="out is bool"):
        b += 1


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_comparison_with_out_of_range_number_is_exact(dtype):
    x = nd.array([1, 100], dtype=dtype)
    for number in (
        257,
        -3 if dtype == "uint8" else -200,
        3e9,
        -3e9,
        1e10,
        -1e10,
        1e30,
        -1e30,
        float("inf"),
        -float("inf"),
    ):
        if dtype == "int64" and abs(number) < 300:
            continue
        expected = [int(number > 0)] * 2
        for result, wanted in (
            (x < number, expected),
            (x <= number, expected),
            (x > number, [1 - e for e in expected]),
            (x >= number, [1 - e for e in expected]),
            (x == number, [0, 0]),
            (x != number, [1, 1]),
        ):
            assert result.asnumpy().tolist() == wanted, (dtype, number)


def test_in_place_power_creates_new_array():
    x = y = nd.array([2.0, 3.0])
    x **= 2
    assert y.asnumpy().tolist() == [2, 3] and x.asnumpy().tolist() == [4, 9]
    z = nd.array([1.0, 2.0])
    z.attach_grad()
    with mx.autograd.record():
        w = z * z
        w **= 2
    w.backward()
    assert z.grad.asnumpy().tolist() == [4, 32]
    for sign in ("//=", "@="):
        with pytest.raises(TypeError):
            exec(f"x {sign} 2", {"x": x})


def test_numpy_ufuncs_accept_arrays():
    x = nd.array([1, 4])
    assert (
        np.all(x == x)
        and np.sum(x) == 5
        and np.sqrt(x).tolist() == [1, 2]
        and isinstance(np.add(x, 1), nd.NDArray)
    )
    values = np.ones(2, "float32")
    values += x
    assert values.tolist() == [2, 5]
    assert np.add.reduce(x) == 5 and not isinstance(x, mx.np.ndarray)


def test_numpy_bool_operands_are_numbers():
    x = nd.array([1, 4])
    mask = np.array([True, False])
    for result, expected in ((x * mask, [1, 0]), (mask + x, [2, 4]), (x == mask, [1, 0])):
        assert result.dtype == np.float32 and result.asnumpy().tolist() == expected
    assert (nd.array([3, 5], dtype="int32") * mask).asnumpy().tolist() == [3, 0]


@pytest.mark.parametrize("number", [2**63, 2**53 + 1, -(2**70), 2**62 + 1])
def test_integer_that_a_double_cannot_hold_is_refused(number):
    """Ops take numbers as doubles; MXNet rounds or wraps these integers."""
    x = nd.array([1], dtype="int64")
    for call in (
        lambda: x + number,
        lambda: number - x,
        lambda: x * number,
        lambda: x.__iadd__(number),
        lambda: nd.full((2,), number, dtype="int64"),
    ):
        with pytest.raises(OverflowError, match=f"{number} cannot be .* exactly"):
            call()
    assert (x < number).asscalar() == (number > 1)
    assert np.isfinite((x.astype("float32") + number).asscalar())
    assert np.isfinite(nd.full((2,), number).asnumpy()).all()


def test_int64_arithmetic_beyond_2_to_the_53_is_exact():
    x = nd.array([2**62 + 1], dtype="int64")
    assert (x + 2**60).asscalar() == 2**62 + 1 + 2**60
    assert (x + nd.array([1], dtype="int64")).asscalar() == 2**62 + 2
    assert nd.full((1,), 2**60, dtype="int64").asscalar() == 2**60


def test_randint_bounds_that_int32_cannot_hold_are_refused():
    with pytest.raises(mx.MXNetError, match="out of range for int32; pass dtype='int64'"):
        nd.random.randint(-(2**62), 2**62, shape=(3,))
    drawn = nd.random.randint(-(2**62), 2**62, shape=(30,), dtype="int64").asnumpy()
    assert abs(drawn).max() > 2**40
    assert nd.random.randint(2**31 - 1, 2**31, shape=(1,)).asscalar() == 2**31 - 1
