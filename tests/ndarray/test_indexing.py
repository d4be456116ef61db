"""x[key] and x[key] = value against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import mpgluon as mx
from mpgluon import autograd, nd

SHAPE = (4, 3, 5)


def source():
    values = np.arange(60, dtype="float32").reshape(SHAPE)
    return values, nd.array(values)


BASIC = [
    np.s_[0],
    np.s_[-1],
    np.s_[1:3],
    np.s_[:],
    np.s_[::2],
    np.s_[::-1],
    np.s_[3:0:-2],
    np.s_[...],
    np.s_[1, 2],
    np.s_[1, 2, 3:5],
    np.s_[:, 1],
    np.s_[:, -1, ::2],
    np.s_[..., 0],
    np.s_[..., 1:4],
    np.s_[1, ..., 2],
    np.s_[None],
    np.s_[:, None, 1],
    np.s_[..., None],
    np.s_[1:2, 0:3, 1:5],
    np.s_[2:2],
    np.s_[:, 3:],
    np.s_[10:],
    np.s_[-10:2],
    np.s_[1:, :, ::-1],
    np.s_[np.int64(2)],
    np.s_[0:4, 0:3, 0:5],
    np.s_[:, :, None, None, 1],
]
ADVANCED = [
    np.s_[[0, 2]],
    np.s_[[0, -1, 0]],
    np.s_[[[0, 1], [2, 3]]],
    np.s_[:, [0, 2]],
    np.s_[:, :, [4, 0, -1]],
    np.s_[:, [[0, -1], [2, 2]]],
    np.s_[:, []],
    np.s_[:, [True, False, True]],
    np.s_[[0, 1], [1, 2]],
    np.s_[[0, 1], :, [1, 2]],
    np.s_[:, [0, 1], [1, 2]],
    np.s_[[[0], [1]], [[1, 2]]],
    np.s_[1, :, [0, 1]],
    np.s_[1:3, [0, 1]],
    np.s_[..., [0, 1]],
    np.s_[[0, 1], ..., None, 0],
    np.s_[None, [0, 1]],
    np.s_[::-1, [2, 0], ::2],
    np.s_[np.array([1, 2])],
    np.s_[np.array(1), np.array([1, 2])],
    np.s_[range(3)],
    np.s_[[]],
    np.s_[[0, 1], [1, 2], [3, 4]],
    np.arange(60).reshape(SHAPE) % 7 == 0,
    np.array([True, False, True, False]),
    (slice(None), np.array([True, False, True])),
    np.arange(12).reshape(4, 3) % 2 == 0,
    (np.array([True, False, True, False]), [0, 2]),
    np.zeros(SHAPE, bool),
]


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
def test_indexing_matches_numpy(key):
    values, array = source()
    expected = values[key]
    result = array[key]
    assert result.shape == (expected.shape or (1,))
    np.testing.assert_array_equal(result.asnumpy().reshape(expected.shape), expected)


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
@pytest.mark.parametrize("kind", ["number", "numpy", "array", "broadcast", "float64"])
def test_index_assignment_matches_numpy(key, kind):
    values, array = source()
    region = values[key]
    new = -1 - np.arange(region.size, dtype="float32").reshape(region.shape)
    if kind == "number":
        new = value = 7.5
    elif kind == "numpy":
        value = new
    elif kind == "float64":
        value = new = new.astype("float64")
    elif kind == "array":
        value = nd.array(new)
    else:
        new = new[..., :1] if new.ndim else new
        value = nd.array(new)
    values[key] = new
    array[key] = value
    np.testing.assert_array_equal(array.asnumpy(), values)


def test_index_arrays_of_every_type_match_numpy():
    values, array = source()
    for index in (
        [2, 0],
        (2, 0),
        np.array([2, 0], "int32"),
        np.array([2, 0], "uint8"),
        nd.array([2, 0], dtype="int32"),
        nd.array([2, 0]),
        nd.array([2, 0], dtype="int64"),
    ):
        if isinstance(index, tuple):
            np.testing.assert_array_equal(array[list(index)].asnumpy(), values[[2, 0]])
        else:
            np.testing.assert_array_equal(array[index].asnumpy(), values[[2, 0]])
    mask = nd.array([1, 0, 0, 1], dtype="bool")
    np.testing.assert_array_equal(array[mask].asnumpy(), values[[0, 3]])
    np.testing.assert_array_equal(
        array[nd.array([1, 2]), nd.array([0, 1])].asnumpy(), values[[1, 2], [0, 1]]
    )


index_entry = st.one_of(
    st.integers(-5, 5),
    st.slices(5),
    st.just(None),
    st.just(Ellipsis),
    st.lists(st.integers(-3, 2), min_size=2, max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(index_entry)
    | st.tuples(index_entry, index_entry)
    | st.tuples(index_entry, index_entry, index_entry)
)
def test_random_keys_match_numpy(key):
    values, array = source()
    try:
        expected = values[key].copy()
    except IndexError:
        with pytest.raises(IndexError):
            array[key]
        with pytest.raises(IndexError):
            array[key] = 1
        return
    np.testing.assert_array_equal(array[key].asnumpy().reshape(expected.shape), expected)
    values[key] = expected * 2 + 1
    array[key] = nd.array(expected * 2 + 1)
    np.testing.assert_array_equal(array.asnumpy(), values)


def test_basic_views_share_memory():
    _, array = source()
    row, part, whole = array[1], array[1:3], array[:]
    array[:] = 0
    row[:] = 5
    part[1] = 6
    whole[0, 0, 0] = 9
    result = array.asnumpy()
    assert (result[1] == 5).all() and (result[2] == 6).all() and result[0, 0, 0] == 9
    reshaped = array.reshape((12, 5))
    reshaped[0] = 3
    assert (array.asnumpy()[0, 0] == 3).all()
    copy = array[:, 1]
    copy[:] = -1
    assert (array.asnumpy() != -1).all()


@pytest.mark.parametrize(
    "key",
    [
        4,
        -5,
        (0, 3),
        (0, 0, 5),
        [4],
        [0, -5],
        np.array([9]),
        (slice(None), [3]),
        (0, 0, 0, 0),
        (..., ...),
    ],
    ids=str,
)
def test_invalid_keys_raise_index_error(key):
    _, array = source()
    with pytest.raises(IndexError) as caught:
        array[key]
    assert isinstance(caught.value, mx.MXNetError)
    with pytest.raises(IndexError):
        array[key] = 0


def test_values_of_wrong_shape_or_type_are_refused():
    _, array = source()
    for value in (np.ones(2), nd.ones(2), np.ones((2, 4, 3, 5)), nd.ones((5, 4))):
        for key in (
            slice(None),
            (slice(1, 3), slice(None), slice(None, None, 2)),
            [0, 1],
            0,
            (0, slice(None), 1),
        ):
            with pytest.raises(ValueError) as caught:  # as in MXNet and NumPy
                array[key] = value
            assert isinstance(caught.value, mx.MXNetError)
    for value in ("text", object()):
        with pytest.raises(TypeError):
            array[0] = value
    with pytest.raises(TypeError, match="int32"):
        array.astype("int32")[0] = None
    for key in ("a", 1.5, (0, "a"), (0, 1.5)):
        with pytest.raises(ValueError, match="cannot be an index"):
            array[key]
        with pytest.raises(ValueError, match="cannot be an index"):
            array[key] = 0
    with pytest.raises(ValueError):
        array[::0]
    with pytest.raises(TypeError):
        del array[0]
    np.testing.assert_array_equal(array.asnumpy(), source()[0])


def test_full_slice_returns_the_array_itself():
    for array in (source()[1], nd.ones((0, 3)), nd.array(2.0)):
        assert array[:] is array and array[()] is array and array[slice(None)] is array
    _, array = source()
    assert array[0:4] is not array and array[:, :] is not array and array[...] is not array
    assert nd.exp(nd.zeros_like(array), out=array[:]) is array and (array.asnumpy() == 1).all()
    array.attach_grad()
    with mx.autograd.record():
        assert array[:] is array


def test_bool_keys_are_treated_as_integers():
    _, array = source()
    np.testing.assert_array_equal(array[True].asnumpy(), array[1].asnumpy())
    np.testing.assert_array_equal(array[0, False].asnumpy(), array[0, 0].asnumpy())
    array[False] = 7
    assert (array[0].asnumpy() == 7).all() and not (array[1].asnumpy() == 7).any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_assigning_none_writes_nan(dtype):
    for key in (slice(None), 0, slice(1, None), (slice(None), 1), [0], nd.array([1])):
        array = nd.ones((2, 3), dtype=dtype)
        expected = np.ones((2, 3), "float32")
        array[key] = None
        expected[key.asnumpy().astype(int) if isinstance(key, nd.NDArray) else key] = np.nan
        np.testing.assert_array_equal(array.asnumpy(), expected)


def test_iteration_and_length_follow_first_axis():
    values, array = source()
    assert len(array) == 4
    for row, expected in zip(array, values):
        np.testing.assert_array_equal(row.asnumpy(), expected)
    assert len(list(array)) == 4
    assert nd.array([1, 2, 3])[1].shape == (1,)


@pytest.mark.parametrize(
    "key",
    [
        np.s_[1],
        np.s_[1:3],
        np.s_[:, 1],
        np.s_[::2, :, 1:3],
        np.s_[::-1],
        np.s_[[0, 0, 2]],
        np.s_[:, [2, 0, 2]],
        np.s_[[0, 1], :, [1, 1]],
        np.s_[..., None, 0],
    ],
    ids=str,
)
def test_gradient_of_indexing_is_scattered(key):
    values, array = source()
    array.attach_grad()
    with autograd.record():
        part = array[key]
        loss = (part * part).sum()
    loss.backward()
    expected = np.zeros_like(values)
    np.add.at(expected, key, 2 * values[key])
    np.testing.assert_array_equal(array.grad.asnumpy(), expected)


@pytest.mark.parametrize("key", [np.s_[None, -5:3:-1], np.s_[:, -4::-1, 1], np.s_[2:2:-1]])
def test_empty_reversed_slices_are_recorded(key):
    values, array = source()
    array.attach_grad()
    with autograd.record():
        part = array[key]
    part.backward()
    assert part.shape == values[key].shape and not array.grad.asnumpy().any()


def test_assignment_to_recorded_array_is_refused():
    _, array = source()
    array.attach_grad()
    with autograd.record():
        other = array * 2
        for target in (array, other):
            for key in (0, slice(None), (slice(None), 1), [0, 1]):
                with pytest.raises(mx.MXNetError, match="record"):
                    target[key] = 1
        with autograd.pause():
            array[0] = 1
    row = nd.array([1, 2, 3])
    row.attach_grad()
    with autograd.record():
        fresh = nd.zeros((2, 3))
        fresh[0] = 5
        for key in (0, [0, 1], (slice(None), slice(None, None, 2))):
            with pytest.raises(mx.MXNetError, match="record"):
                fresh[key] = row[:1] * 2
        whole = nd.zeros(3)
        whole[:] = row * 2
    whole.backward()
    np.testing.assert_array_equal(row.grad.asnumpy(), [2, 2, 2])


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "uint8", "int8", "int32", "int64", "bool"]
)
def test_indexing_and_assignment_work_for_every_dtype(dtype):
    values = (np.arange(12).reshape(3, 4) % 2).astype("float32")
    array = nd.array(values, dtype=dtype)
    array[1:, ::2] = 1
    values[1:, ::2] = 1
    array[[0, 2], [1, 3]] = nd.array([0, 1])
    values[[0, 2], [1, 3]] = [0, 1]
    assert array.dtype == nd.zeros(1, dtype=dtype).dtype
    np.testing.assert_array_equal(array.asnumpy().astype("float32"), values)
    np.testing.assert_array_equal(array[:, [1, 2]].asnumpy().astype("float32"), values[:, [1, 2]])


def test_assigned_large_integers_are_exact():
    array = nd.zeros(3, dtype="int64")
    array[1] = 2**53 + 1
    array[:1] = 2**62
    assert array.asnumpy().tolist() == [2**62, 2**53 + 1, 0]


def test_scalars_and_empty_arrays_can_be_indexed():
    scalar = nd.array(5.0)
    assert scalar.shape == () and scalar[()].asscalar() == 5
    scalar[()] = 6
    assert scalar.asscalar() == 6
    with pytest.raises(IndexError):
        scalar[0]
    empty = nd.zeros((0, 3))
    assert empty[:, 1].shape == (0,)
    empty[:] = 3


NOTHING = {
    "all": (slice(None), (0, 3)),
    "rows": (slice(2, 2), (4, 3)),
    "backwards": ((slice(None, None, -1), slice(2, 2)), (4, 3)),
    "a mask": (np.zeros(4, bool), (4, 3)),
    "no places": ([], (4, 3)),
}


@pytest.mark.parametrize("name", NOTHING)
def test_empty_selection_still_checks_value_shape(name):
    key, shape = NOTHING[name]
    wanted = np.zeros(shape)[key].shape
    for value in (
        1,
        np.zeros(1),
        nd.ones((1,)),
        np.zeros(wanted),
        np.zeros((9, 9)),
        nd.zeros((9, 9)),
        np.zeros(7),
        [1, 2, 3, 4],
    ):
        x, plain = nd.zeros(shape), np.zeros(shape)
        try:
            plain[key] = value.asnumpy() if isinstance(value, nd.NDArray) else value
        except ValueError:
            with pytest.raises(ValueError):
                x[key] = value
        else:
            x[key] = value


@pytest.mark.parametrize("shape", [(1, 0), (2, 0), (1, 0, 4), (3, 0, 4), (2, 3)])
def test_rows_without_elements_have_correct_shape_and_gradient(shape):
    """In a shape passed to Reshape, 0 would mean the size of the input's axis."""
    row = mx.gluon.nn.HybridLambda(lambda F, x: x[0])
    for compiled in (False, True):
        row.hybridize(compiled)
        x = nd.ones(shape)
        x.attach_grad()
        with mx.autograd.record():
            y = row(x)
        y.backward()
        assert y.shape == shape[1:] and x.grad.shape == shape
