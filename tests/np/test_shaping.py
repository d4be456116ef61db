"""Functions of mx.np that join, split and rearrange arrays."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import numpy as mnp
from support.numpy_functions import array, check, listed, values_of

DTYPES = ["float64", "float32", "float16", "int64", "int8", "bool"]
SHAPES = [(), (3,), (2, 3), (2, 1, 3), (0,), (0, 3), (2, 3, 2, 2)]


def both(name, *args, **kwargs):
    """Returns a function of mx.np and the one of NumPy, called with arrays and then `args`."""
    return (
        lambda *x: getattr(mnp, name)(*x, *args, **kwargs),
        lambda *x: getattr(np, name)(*x, *args, **kwargs),
    )


def both_of_list(name):
    return lambda *x: getattr(mnp, name)([*x]), lambda *x: getattr(np, name)([*x])


@pytest.mark.parametrize("name", ["atleast_1d", "atleast_2d", "atleast_3d", "ravel", "diagflat"])
@pytest.mark.parametrize("shape", SHAPES)
def test_dimensions_match_numpy(name, shape):
    check(*both(name), values_of(shape))
    check(*both(name), values_of(shape, "int64"))


def test_atleast_returns_a_list_for_several_arrays():
    found = mnp.atleast_2d(array(values_of(())), array(values_of(3)))
    assert isinstance(found, list) and [x.shape for x in found] == [(1, 1), (1, 3)]


@pytest.mark.parametrize("name", ["vstack", "row_stack", "hstack", "dstack", "column_stack"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_joins_match_numpy(name, shape, dtype):
    reference = "vstack" if name == "row_stack" else name
    inputs = values_of(shape, dtype), values_of(shape, dtype, 1)
    check(both_of_list(name)[0], both_of_list(reference)[1], *inputs)


def test_joins_accept_one_array():
    x = values_of((2, 3))
    assert np.array_equal(mnp.hstack(array(x)).asnumpy(), np.hstack(x))
    out = array(np.zeros((4, 3)))
    assert mnp.vstack((array(x), array(x)), out=out) is out
    assert np.array_equal(out.asnumpy(), np.vstack([x, x]))


def test_joins_report_invalid_arguments():
    x = array(values_of((2, 3)))
    with pytest.raises(ValueError, match="hstack: arrays must have at least one array"):
        mnp.hstack([])
    with pytest.raises(TypeError, match="vstack: arrays must be an array of mx.np, not NDArray"):
        mnp.vstack([x, mx.nd.ones((2, 3))])
    with pytest.raises(TypeError, match="dstack: arrays must be a sequence"):
        mnp.dstack(3)
    with pytest.raises(mx.MXNetError):
        mnp.hstack([x, x.astype("int32")])


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_append_matches_numpy(axis):
    check(*both("append", axis=axis), values_of((2, 3)), values_of((2, 3), seed=1))


def test_append_reports_invalid_axis():
    x = array(values_of((2, 3)))
    with pytest.raises(ValueError, match="axis 2 is out of range for an array with 2 dimensions"):
        mnp.append(x, x, axis=2)


@pytest.mark.parametrize("sections", [1, 2, 4, 9, [1], (1, 3), [0, 2, 2, 9], [3, 1], [-2], []])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_array_split_matches_numpy(sections, axis):
    check(*both("array_split", sections, axis), values_of((5, 4, 3)), gradient=False)


@pytest.mark.parametrize("count", [24, 25, 513, 600])
def test_splits_into_many_parts_match_numpy(count):
    x = values_of((2, count))
    for sections in (count, [*range(1, count)], [*range(0, count, 2)], [1] * count):
        check(*both("array_split", sections, 1), x, gradient=False)
        check(*both("split", sections, 1), x, gradient=False)
    check(*both("array_split", count + 3, 1), x, gradient=False)
    check(*both("split", count, 1), values_of((2, 0)), gradient=False)


def test_gradients_of_many_parts():
    x = array(values_of((30, 2)))
    x.attach_grad()
    with mx.autograd.record():
        parts = mnp.split(x, [*range(1, 30)])
        loss = sum(i * part.sum() for i, part in enumerate(parts))
    loss.backward()
    expected = np.repeat(np.arange(30.0).reshape(-1, 1), 2, axis=1)
    np.testing.assert_array_equal(x.grad.asnumpy(), expected)


def test_array_split_has_gradients():
    check(*both("array_split", 2), values_of((3, 2)))
    check(*both("array_split", [2, 1]), values_of((3, 2)))


@pytest.mark.parametrize(
    "name, shape, sections",
    [
        ("split", (6, 2), 3),
        ("split", (5,), [3, 1, 9, -2]),
        ("hsplit", (4,), 2),
        ("hsplit", (2, 4), 2),
        ("hsplit", (2, 4, 1), [1]),
        ("vsplit", (4, 2), 2),
        ("vsplit", (4, 2), (1, 3)),
        ("dsplit", (1, 2, 4), 4),
        ("hsplit", (2, 0), 2),
    ],
)
def test_splits_match_numpy(name, shape, sections):
    check(*both(name, sections), values_of(shape))


def test_splits_report_invalid_arguments():
    x = array(values_of((4,)))
    with pytest.raises(ValueError, match="hsplit: the array must have at least 1 dimensions"):
        mnp.hsplit(array(values_of(())), 1)
    with pytest.raises(ValueError, match="vsplit: the array must have at least 2 dimensions"):
        mnp.vsplit(x, 2)
    with pytest.raises(ValueError, match="dsplit: the array must have at least 3 dimensions"):
        mnp.dsplit(x, 2)
    with pytest.raises(ValueError, match="an axis of size 4 cannot be split into 3 equal parts"):
        mnp.hsplit(x, 3)
    with pytest.raises(ValueError, match="sections must be at least 1, not 0"):
        mnp.array_split(x, 0)


@pytest.mark.parametrize(
    "shift, axis",
    [
        (1, None),
        (-7, None),
        ((1, 2), None),
        (1, 0),
        (-1, 1),
        (5, -1),
        (0, 0),
        ((1, 2), (0, 1)),
        (1, (0, 1)),
        ((1, 2), 0),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3), (4, 1, 2), (0, 2)])
def test_roll_matches_numpy(shape, shift, axis):
    check(*both("roll", shift, axis), values_of(shape))


def test_roll_accepts_arrays_without_dimensions():
    check(*both("roll", 2), values_of(()))


def test_roll_reports_invalid_arguments():
    x = array(values_of((2, 3)))
    with pytest.raises(ValueError, match="axis 2 is out of range"):
        mnp.roll(x, 1, 2)
    with pytest.raises(ValueError, match=r"shift \(1, 2, 3\) and axis \(0, 1\) must have equal"):
        mnp.roll(x, (1, 2, 3), (0, 1))


@pytest.mark.parametrize("k", range(-3, 5))
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, -1)])
def test_rot90_matches_numpy(k, axes):
    check(*both("rot90", k, axes), values_of((2, 3)))
    check(*both("rot90", k, axes), values_of((2, 3, 2), "int32"))


def test_rot90_reports_invalid_axes():
    x = array(values_of((2, 3)))
    for axes, message in (((0,), "two axes"), ((0, 0), "twice"), ((0, 2), "out of range")):
        with pytest.raises(ValueError, match=message):
            mnp.rot90(x, 1, axes)


@pytest.mark.parametrize("name", ["flipud", "fliplr"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 2, 2)])
def test_flips_match_numpy(name, shape):
    check(*both(name), values_of(shape))


def test_flips_report_missing_dimensions():
    with pytest.raises(ValueError, match="flipud: the array must have at least 1 dimensions"):
        mnp.flipud(array(values_of(())))
    with pytest.raises(ValueError, match="fliplr: the array must have at least 2 dimensions"):
        mnp.fliplr(array(values_of(3)))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("width", [0, 2, (1, 3), ((0, 1), (2, 0))])
def test_pad_matches_numpy(mode, width):
    check(*both("pad", width, mode), values_of((2, 3)))


@pytest.mark.parametrize("mode", ["maximum", "minimum"])
def test_pad_with_extremes_matches_numpy(mode):
    check(*both("pad", ((1, 2), (0, 1)), mode), values_of((2, 3)))
    check(*both("pad", (1, 2), mode), values_of((4,), "int32"))


def test_pad_with_constants_matches_numpy():
    for dtype in ("float64", "int32"):
        check(*both("pad", (1, 2), constant_values=7), values_of((2, 3), dtype))
    check(*both("pad", (1, 2)), values_of((0, 2)))


@pytest.mark.parametrize("shape", [(), (7,), (2, 3), (4, 0), 5, (2, 2, 2)])
def test_resize_matches_numpy(shape):
    check(*both("resize", shape), values_of((2, 2)))
    check(*both("resize", shape), values_of((0, 2), "int32"))


def test_broadcast_arrays_matches_numpy():
    inputs = values_of((2, 1)), values_of(3), values_of(())
    function = lambda f: lambda *x: listed(f.broadcast_arrays(*x))
    check(function(mnp), function(np), *inputs)
    with pytest.raises(ValueError, match=r"shapes \(2,\), \(3,\) cannot be broadcast together"):
        mnp.broadcast_arrays(array(values_of(2)), array(values_of(3)))


def test_broadcast_arrays_converts_numbers_and_lists():
    x = array(values_of((2, 1), "float32"))
    results = mnp.broadcast_arrays(4, x, [1.5, 2.5], mx.np.ones((2, 2), "int32"))
    assert [y.dtype for y in results] == [np.int64, np.float32, np.float32, np.int32]
    for y, value in zip(results, (4, x.asnumpy(), [1.5, 2.5], 1), strict=True):
        np.testing.assert_array_equal(y.asnumpy(), np.broadcast_to(value, (2, 2)))
    with pytest.raises(TypeError, match="args must be an array of mx.np, not int"):
        mnp.broadcast_arrays(1, 2)
    with pytest.raises(TypeError, match="args must be an array of mx.np, not NDArray"):
        mnp.broadcast_arrays(x, mx.nd.ones(2))


def test_ravel_accepts_only_order_c():
    with pytest.raises(NotImplementedError, match="ravel: order must be 'C', not 'F'"):
        mnp.ravel(array(values_of((2, 3))), order="F")
