"""Functions of mx.np that insert, delete and select elements."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, numpy as mnp
from support.numpy_functions import Block, array, check, values_of

INDICES = [
    0,
    -1,
    2,
    [1],
    [-1, 0],
    [2, 0, 2],
    slice(None, None, 2),
    slice(2, 0, -1),
    slice(1, 1),
    [],
]


@pytest.mark.parametrize("obj", INDICES, ids=str)
@pytest.mark.parametrize("shape, axis", [((4,), 0), ((2, 3), None), ((3, 2), 0), ((2, 4), -1)])
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_insert_matches_numpy(obj, shape, axis, dtype):
    x = values_of(shape, dtype)
    check(lambda x: mnp.insert(x, obj, 7, axis), lambda x: np.insert(x, obj, 7, axis), x)


@pytest.mark.parametrize(
    "obj, values, axis",
    [
        (1, (3,), 0),
        (1, (2,), 1),
        (1, (2, 3), 0),
        (1, (2, 2), 1),
        (0, (5,), None),
        ([1], (2, 2), 1),
        ([0, 2], (2,), 1),
        ([0, 2], (2, 1), 1),
        ([2, 0, 1], (3, 3), 0),
        ([1, 1, 1], (3,), None),
        (slice(0, 2), (2, 2), 1),
    ],
    ids=str,
)
def test_insert_broadcasts_values(obj, values, axis):
    x, y = values_of((2, 3)), values_of(values, seed=1)
    check(lambda x, y: mnp.insert(x, obj, y, axis), lambda x, y: np.insert(x, obj, y, axis), x, y)


@pytest.mark.parametrize("places", [[1], [-1, 0], [2, 0, 2], [3, 3], []], ids=str)
@pytest.mark.parametrize("axis", [0, 1, None])
def test_insert_accepts_arrays_of_indices(places, axis):
    x, places = values_of((3, 3)), np.array(places, "int64")
    check(lambda x, i: mnp.insert(x, i, 7, axis), lambda x, i: np.insert(x, i, 7, axis), x, places)
    y = values_of((len(places),), seed=1)
    if len(places) > 1:
        check(
            lambda x, y: mnp.insert(x, array(places), y, None),
            lambda x, y: np.insert(x, places, y),
            x,
            y,
        )


def test_insert_converts_values():
    x = array(np.arange(3, dtype="int32"))
    result = mnp.insert(x, [0, 3], array([7.9, 8.2]))
    assert _core.dtype_name(result.dtype) == "int32" and result.asnumpy().tolist() == [
        7,
        0,
        1,
        2,
        8,
    ]
    assert mnp.insert(x, 1, [5, 6]).asnumpy().tolist() == [0, 5, 6, 1, 2]


def test_insert_reports_invalid_indices():
    x = array(values_of(3))
    with pytest.raises(IndexError, match="insert: index 4 is out of range for an axis of size 3"):
        mnp.insert(x, 4, 1)
    with pytest.raises(IndexError, match=r"insert: index \[-4\] is out of range"):
        mnp.insert(x, [-4], 1)
    with pytest.raises(TypeError, match="obj must be a slice, integers or an array of them"):
        mnp.insert(x, 1.5, 1)
    with pytest.raises(TypeError, match="obj must have integers, not bools"):
        mnp.insert(x, x > 0, 1)
    with pytest.raises(ValueError, match="axis 1 is out of range"):
        mnp.insert(x, 0, 1, axis=1)


@pytest.mark.parametrize("obj", INDICES, ids=str)
@pytest.mark.parametrize("shape, axis", [((4,), 0), ((2, 3), None), ((3, 2), 0), ((2, 4), -1)])
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_delete_matches_numpy(obj, shape, axis, dtype):
    x = values_of(shape, dtype)
    check(lambda x: mnp.delete(x, obj, axis), lambda x: np.delete(x, obj, axis), x)


@pytest.mark.parametrize("places", [[1], [-1, 0], [2, 0, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_delete_accepts_arrays_of_indices(places, axis, dtype):
    x, places = values_of((3, 3)), np.array(places, dtype)
    check(
        lambda x, i: mnp.delete(x, i, axis),
        lambda x, i: np.delete(x, i, axis),
        x,
        places,
        dynamic=True,
    )


def test_delete_has_gradients_for_arrays_of_indices():
    places = np.array([2, 0])
    check(
        lambda x: mnp.delete(x, array(places), 1),
        lambda x: np.delete(x, places, 1),
        values_of((2, 4)),
        dynamic=True,
    )


def test_delete_accepts_masks():
    x, mask = values_of((3, 2)), np.array([True, False, True])
    for given in (mask, mask.tolist(), array(mask)):
        assert np.array_equal(mnp.delete(array(x), given, 0).asnumpy(), x[~mask])
    with pytest.raises(ValueError, match=r"a mask of shape \(3,\) must have shape \(2,\)"):
        mnp.delete(array(x), array(mask), 1)


def test_delete_reports_invalid_indices():
    x = array(values_of(3))
    with pytest.raises(IndexError, match="delete: index 3 is out of range for an axis of size 3"):
        mnp.delete(x, 3)
    with pytest.raises(TypeError, match="delete: arr must be an array of mx.np, not NDArray"):
        mnp.delete(mx.nd.ones(3), 0)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize(
    "shape, places, axis",
    [
        ((3,), [2, 0, 2, -1], 0),
        ((2, 3), [[0], [2]], 1),
        ((2, 3), [[1, 1, 0]], 0),
        ((2, 3), [[0, -1, 1, 1]], 1),
        ((2, 3, 2), [[[0], [1], [1]]], 2),
        ((2, 3), [5, 5, 0], None),
        ((2, 3), np.zeros((2, 0)), 1),
    ],
    ids=str,
)
def test_take_along_axis_matches_numpy(shape, places, axis, dtype):
    places = np.array(places, dtype)
    if np.ndim(places) == len(shape) and axis is not None:
        rest = [1 if i == axis else n for i, n in enumerate(shape)]
        wanted = np.broadcast_to(places, np.broadcast_shapes(places.shape, rest))
    else:
        wanted = places
    check(
        lambda x: mnp.take_along_axis(x, array(places), axis),
        lambda x: np.take_along_axis(x, wanted, axis),
        values_of(shape),
    )
    with pytest.raises(ValueError, match="indices must have 2 dimensions, not 1"):
        mnp.take_along_axis(array(values_of((2, 2))), array(places).reshape(-1), 0)


def test_deletion_by_masks_is_hybridized():
    net = Block(lambda x, mask: mnp.delete(x, mask, 0) * 2)
    x, mask = array(values_of((3, 2))), array(np.array([True, False, True]))
    net.hybridize()
    assert np.array_equal(net(x, mask)[0].asnumpy(), x.asnumpy()[1:2] * 2)


def test_delete_ignores_indices_out_of_range_in_arrays():
    x, places = array(values_of((2, 3))), array(np.array([3, 1, -4]))
    assert np.array_equal(mnp.delete(x, places, 1).asnumpy(), x.asnumpy()[:, [0, 2]])
    assert mnp.delete(array(values_of((2, 0))), array(np.array([0])), 1).shape == (2, 0)
