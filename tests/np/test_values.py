"""Comparisons, differences, nonzero and different elements, polynomials and windows of mx.np."""

import numpy as np
import pytest

from mpgluon import _core, autograd, nd, numpy as mnp
from support.functions import Function
from support.numpy_functions import array, check, listed, values_of

INF, NAN = np.inf, np.nan
PAIRS = [
    ([1.0, 2.0], [1.0, 2.0 + 1e-7]),
    ([1.0, 2.0], [1.0, 2.1]),
    ([INF, -INF, 1.0, INF], [INF, INF, INF, 1.0]),
    ([NAN, 1.0], [NAN, 1.0]),
    ([[1.0], [2.0]], [1.0, 2.0]),
    ([1, 2], [1, 3]),
    ([], []),
]


@pytest.mark.parametrize("a, b", PAIRS, ids=str)
@pytest.mark.parametrize("equal_nan", [False, True])
def test_isclose_matches_numpy(a, b, equal_nan):
    a, b = np.array(a), np.array(b)
    check(
        lambda a, b: mnp.isclose(a, b, equal_nan=equal_nan),
        lambda a, b: np.isclose(a, b, equal_nan=equal_nan),
        a,
        b,
        gradient=False,
    )
    wanted = np.allclose(a, b, equal_nan=equal_nan)
    assert mnp.allclose(array(a), array(b), equal_nan=equal_nan) is wanted
    compiled = _core.CachedOp(lambda a, b: [mnp.allclose(a, b, equal_nan=equal_nan)])
    assert bool(compiled(array(a), array(b))[0]) is wanted


def test_isclose_accepts_numbers():
    x = array([1.0, 2.0])
    assert mnp.isclose(x, 1).asnumpy().tolist() == [True, False]
    assert mnp.isclose(2, x).asnumpy().tolist() == [False, True]
    assert mnp.allclose(x, 1.5, atol=0.5) and not mnp.allclose(x, 1.5, rtol=0, atol=0.1)
    with pytest.raises(TypeError, match="isclose: b must be an array of mx.np"):
        mnp.isclose(1, 2)


@pytest.mark.parametrize("function", ["isclose", "allclose", "array_equal", "array_equiv"])
def test_comparisons_accept_other_dtypes_and_arrays_of_numpy(function):
    ours, theirs = getattr(mnp, function), getattr(np, function)
    rows = np.array([2**24 + 1, 2], "int32"), np.array([2**24, 2], "float32"), np.ones(2, "bool")
    for a in rows:
        for b in (*rows, np.array([2, 2], "float64"), np.array([2**53 + 1, 2])):
            for second in (array(b), b, b.tolist()):
                assert np.array_equal(np.asarray(ours(array(a), second)), theirs(a, b)), (a, b)
            assert np.array_equal(np.asarray(ours(b, array(a))), theirs(b, a)), (a, b)
    with pytest.raises(TypeError, match="must be an array of mx.np, not NDArray; convert it"):
        ours(array(rows[0]), nd.ones(2))


@pytest.mark.parametrize("a, b", PAIRS, ids=str)
def test_equality_matches_numpy(a, b):
    a, b = np.array(a), np.array(b)
    for nan in (False, True):
        assert mnp.array_equal(array(a), array(b), nan) is np.array_equal(a, b, nan)
    assert mnp.array_equiv(array(a), array(b)) is np.array_equiv(a, b)


def test_array_equiv_broadcasts():
    x = array(np.ones((2, 3)))
    assert mnp.array_equiv(x, x[0]) is True
    assert mnp.array_equiv(x, array(np.ones(2))) is False
    assert mnp.array_equal(x, x[0]) is False


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_diff_matches_numpy(n, axis):
    check(lambda x: mnp.diff(x, n, axis), lambda x: np.diff(x, n, axis), values_of((3, 4)))
    for dtype in ("int8", "bool"):
        x = values_of((3, 4), dtype)
        check(lambda x: mnp.diff(x, n, axis), lambda x: np.diff(x, n, axis), x)


def test_diff_accepts_values_at_the_ends():
    x, y = values_of((2, 3)), values_of((2, 2), seed=1)
    check(lambda x, y: mnp.diff(x, prepend=y), lambda x, y: np.diff(x, prepend=y), x, y)
    for options in ({"append": 0}, {"prepend": 1.5, "append": 2}, {"append": 7, "axis": 0}):
        check(lambda x, o=options: mnp.diff(x, **o), lambda x, o=options: np.diff(x, **o), x)


def test_diff_reports_invalid_arguments():
    with pytest.raises(ValueError, match="n must not be negative"):
        mnp.diff(array(values_of(3)), -1)
    with pytest.raises(ValueError, match="a must have at least one dimension"):
        mnp.diff(array(values_of(())))
    with pytest.raises(ValueError, match="axis 1 is out of range"):
        mnp.diff(array(values_of(3)), axis=1)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1,), (0,)])
def test_ediff1d_matches_numpy(shape):
    x, ends = values_of(shape), values_of((2, 2), seed=1)
    check(mnp.ediff1d, np.ediff1d, x)
    check(lambda x: mnp.ediff1d(x, 5, -1), lambda x: np.ediff1d(x, 5, -1), x)
    check(lambda x, y: mnp.ediff1d(x, y, y), lambda x, y: np.ediff1d(x, y, y), x, ends)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"nan": 2, "posinf": 3}, {"neginf": -7}], ids=str)
def test_nan_to_num_matches_numpy(dtype, options):
    x = np.array([[1, NAN], [INF, -INF]], dtype)
    check(
        lambda x: mnp.nan_to_num(x, **options),
        lambda x: np.nan_to_num(x, **options),
        x,
        gradient=False,
    )
    given = array(x)
    assert mnp.nan_to_num(given, copy=False, **options) is given
    assert np.array_equal(given.asnumpy(), np.nan_to_num(x, **options))


def test_nan_to_num_has_gradients_of_finite_elements():
    check(mnp.nan_to_num, np.nan_to_num, values_of((2, 3)))
    check(mnp.nan_to_num, np.nan_to_num, values_of((2, 3), "int32"))


@pytest.mark.parametrize("dtype", ["float64", "int32", "bool"])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 2, 3), (0, 2)])
def test_nonzero_matches_numpy(dtype, shape):
    x = (values_of(shape, "int32") // 2).astype(dtype)
    for name in ("nonzero", "argwhere", "flatnonzero"):
        check(getattr(mnp, name), getattr(np, name), x, gradient=False, dynamic=True)


@pytest.mark.parametrize("axis", [None, 0, (0, 1), -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_count_nonzero_matches_numpy(axis, keepdims):
    for dtype in ("float64", "int8", "bool"):
        check(
            lambda x: mnp.count_nonzero(x, axis, keepdims=keepdims),
            lambda x: np.count_nonzero(x, axis, keepdims=keepdims),
            (values_of((3, 4), "int8") // 2).astype(dtype),
            gradient=False,
        )


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_unique_matches_numpy(axis, dtype):
    x = (values_of((6, 3), "int64") // 2).astype(dtype)
    options = {"return_index": True, "return_inverse": True, "return_counts": True, "axis": axis}

    def reference(x):
        values, index, inverse, counts = np.unique(x, **options)
        return [values, index, inverse.reshape(-1), counts]

    check(lambda x: listed(mnp.unique(x, **options)), reference, x, gradient=False, dynamic=True)
    check(
        lambda x: mnp.unique(x, axis=axis),
        lambda x: np.unique(x, axis=axis),
        x,
        gradient=False,
        dynamic=True,
    )
    values, counts = mnp.unique(array(x), return_counts=True)
    assert counts.asnumpy().sum() == x.size and _core.dtype_name(values.dtype) == dtype
    with pytest.raises(ValueError, match="axis 2 is out of range"):
        mnp.unique(array(x), axis=2)


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("axis, options", [(None, {}), (0, {}), (1, {"return_counts": True})])
def test_unique_has_the_gradient_of_the_first_occurrences(axis, options, hybridized):
    values = np.array([[2, 1, 2], [3, 1, 3], [2, 1, 2]], "float32")
    x = array(values)
    x.attach_grad()

    def weighted(x):
        found = mnp.unique(x, axis=axis, **options)
        found = found[0] if options else found
        return found * found

    block = Function(lambda block, F, x: weighted(x))
    if hybridized:
        block.hybridize()
    with autograd.record():
        result = block(x)
    result.backward()
    expected, index = np.unique(values, return_index=True, axis=axis)
    assert np.array_equal(result.asnumpy(), expected**2)
    gradient = np.zeros_like(values)
    if axis is None:
        gradient.reshape(-1)[index] = 2 * expected
    elif axis == 0:
        gradient[index] = 2 * expected
    else:
        gradient[:, index] = 2 * expected
    assert np.array_equal(x.grad.asnumpy(), gradient)


def test_constants_of_recorded_arrays_have_the_gradient_zero():
    for function, shape in [
        (lambda x: mnp.linalg.matrix_power(x, 0), (2, 2)),
        (lambda x: mnp.resize(x, (2, 3)), (0, 2)),
    ]:
        x = array(np.ones(shape, "float32"))
        x.attach_grad()
        with autograd.record():
            result = function(x)
        result.backward()
        assert np.array_equal(x.grad.asnumpy(), np.zeros(shape))
        plain = function(x).asnumpy()
        assert np.array_equal(result.asnumpy(), plain) and plain.dtype == "float32"
    assert mnp.linalg.matrix_power(array(np.full((2, 2), np.inf)), 0).asnumpy().tolist() == [
        [1, 0],
        [0, 1],
    ]


def test_polynomials_of_many_coefficients():
    p, x = np.linspace(-1, 1, 30), np.array([0.5, -0.9])
    found = mnp.polyval(array(p), array(x))
    np.testing.assert_allclose(found.asnumpy(), np.polyval(p, x), rtol=1e-6)


@pytest.mark.parametrize("degree", [1, 2, 5])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_polyval_matches_numpy(degree, shape):
    check(mnp.polyval, np.polyval, values_of(degree), values_of(shape, seed=1))
    check(mnp.polyval, np.polyval, values_of(degree, "int64"), values_of(shape, "int64"))


def test_polyval_accepts_no_coefficients():
    check(mnp.polyval, np.polyval, values_of(0), values_of(3))
    with pytest.raises(ValueError, match="p must have one dimension, not 2"):
        mnp.polyval(array(values_of((2, 2))), array(values_of(3)))


@pytest.mark.parametrize("name", ["hanning", "hamming", "blackman"])
@pytest.mark.parametrize("size", [-1, 0, 1, 2, 7, 100])
def test_windows_match_numpy(name, size):
    wanted = getattr(np, name)(size)
    window = getattr(mnp, name)(size)
    assert _core.dtype_name(window.dtype) == "float32" and window.shape == wanted.shape
    np.testing.assert_allclose(window.asnumpy(), wanted, atol=1e-7)
    precise = getattr(mnp, name)(size, dtype="float64").asnumpy()
    np.testing.assert_allclose(precise, wanted, atol=1e-15)
    with pytest.raises(TypeError, match=f"{name}: M must be an integer, not float"):
        getattr(mnp, name)(2.5)


def test_nan_to_num_does_not_overwrite_values_of_hybridized_blocks():
    x = array([NAN, 1.0])
    op = _core.CachedOp(lambda x: [mnp.nan_to_num(x, copy=False)])
    assert op(x)[0].asnumpy().tolist() == [0, 1] and np.isnan(x.asnumpy()[0])


def test_diff_of_no_steps_ignores_the_ends():
    x = array([1.0, 2.0])
    assert mnp.diff(x, n=0, prepend=1, append=x).tolist() == [1, 2]
    assert mnp.diff(x, prepend=[5, 7]).tolist() == np.diff([1, 2], prepend=[5, 7]).tolist()
    x.attach_grad()
    with autograd.record():
        y = mnp.diff(x, n=0, prepend=1)
    y.backward()
    assert x.grad.tolist() == [1, 1]
