"""x[key] and x[key] = value of arrays of mx.np, against NumPy."""

import numpy as np
import pytest
from index_keys import SHAPES, on_device, random_key, random_value

import mpgluon as mx
from mpgluon import _core, autograd, nd


def array(values, dtype=None):
    values = np.asarray(values)
    return nd.array(values, dtype=dtype or values.dtype).as_np_ndarray()


def random_cases(seed, count):
    """Yields (values, key, key with arrays on the device, the selection or an error)."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        shape = SHAPES[draw.integers(len(SHAPES))]
        values = np.arange(int(np.prod(shape)), dtype="float32").reshape(shape)
        key = random_key(draw, shape)
        try:
            selected = values[key]
        except IndexError as error:
            selected = error
        yield draw, values, key, on_device(draw, key, array), selected


@pytest.mark.parametrize("seed", range(4))
def test_random_keys_select_the_elements_that_numpy_selects(seed):
    for _, values, key, given, selected in random_cases(seed, 1500):
        x = array(values)
        if isinstance(selected, IndexError):
            with pytest.raises(IndexError):
                x[given]
            with pytest.raises(IndexError):
                x[given] = 1
            continue
        result = x[given]
        assert type(result) is type(x) and result.shape == selected.shape, repr(key)
        assert np.array_equal(result.asnumpy(), selected), repr(key)
        if selected.size and isinstance(selected, np.ndarray):
            shared = np.shares_memory(selected, values)
            view = result._place[0] == x._place[0]
            assert view == (shared and selected.flags.c_contiguous), repr(key)


@pytest.mark.parametrize("seed", range(4, 7))
def test_gradients_of_random_keys_are_scattered(seed):
    for _, values, key, given, selected in random_cases(seed, 700):
        if isinstance(selected, IndexError):
            continue
        x = array(values)
        x.attach_grad()
        for factor in (1, 2):
            with autograd.record():
                y = x[given] * 2 if factor == 2 else x[given]
            y.backward()
            expected = np.zeros_like(values)
            np.add.at(expected, key, factor)
            assert np.array_equal(x.grad.asnumpy(), expected), repr(key)


@pytest.mark.parametrize("seed", range(7, 11))
def test_random_assignments_match_numpy(seed):
    for draw, values, key, given, selected in random_cases(seed, 1500):
        if isinstance(selected, IndexError):
            continue
        value, given_value = random_value(draw, selected, array)
        x, expected = array(values), values.copy()
        expected[key] = value
        x[given] = given_value
        assert np.array_equal(x.asnumpy(), expected), repr(key)


@pytest.mark.parametrize("key", [0.5, "a", (0, 1.0), np.float32(1), [0.5, "a"]], ids=str)
def test_entries_that_are_no_indices_raise_index_error(key):
    x = array(np.zeros((2, 3)))
    with pytest.raises(IndexError, match="cannot be an index"):
        x[key]
    with pytest.raises(IndexError, match="cannot be an index"):
        x[key] = 1


def test_iteration_ends_and_length_without_dimensions_raises():
    x = array(np.arange(6.0).reshape(2, 3))
    rows = [row.asnumpy().tolist() for row in x]
    assert rows == [[0, 1, 2], [3, 4, 5]]
    assert [v.shape for v in x[0]] == [(), (), ()] and len(x[0]) == 3
    for act in (len, list, lambda v: v[0], lambda v: v[:]):
        with pytest.raises((TypeError, IndexError)):
            act(x[0, 0])
    assert x[5:].shape == (0, 3) and list(x[5:]) == []


def test_views_of_everything_are_new_arrays_that_share_memory():
    x = array(np.zeros((2, 3), "float32"))
    for key in (slice(None), Ellipsis, (), None, (slice(None), slice(None))):
        view = x[key]
        assert view is not x
        view += 1
    assert x.asnumpy().tolist() == [[5] * 3] * 2
    x[1, 2][()] = 7
    assert x.asnumpy()[1, 2] == 7


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "float64"])
def test_masks_select_and_assign_for_every_dtype(dtype):
    values = (np.arange(24).reshape(4, 3, 2) % 5).astype(dtype)
    draw = np.random.default_rng(3)
    for ndim in (1, 2, 3):
        for share in (0, 0.5, 1):
            mask = draw.random(values.shape[:ndim]) < share
            x, expected = array(values), values.copy()
            assert np.array_equal(x[array(mask)].asnumpy(), values[mask])
            for value in (1, np.ones(values[mask].shape, dtype), np.zeros((), dtype)):
                x[array(mask)] = value if np.isscalar(value) else array(value)
                expected[mask] = value
                assert np.array_equal(x.asnumpy(), expected) and x.dtype == values.dtype


def test_masks_update_in_place():
    values = np.arange(12, dtype="float32").reshape(3, 4)
    x = array(values)
    x[x > 5] += 10
    x[x < 2] *= 3
    values[values > 5] += 10
    values[values < 2] *= 3
    assert np.array_equal(x.asnumpy(), values)


def test_masks_of_other_sizes_raise():
    x = array(np.ones((5, 4, 3)))
    for mask in (np.ones(1), np.ones(6), np.ones((4, 4)), np.ones((5, 4, 3, 1))):
        mask = mask.astype(bool)
        for given in (mask, array(mask), mask.tolist()):
            with pytest.raises(IndexError):
                x[given]
            with pytest.raises(IndexError):
                x[given] = 0


def test_large_integers_are_assigned_exactly():
    x = array(np.zeros(3, "int64"))
    x[1] = 2**53 + 1
    x[array([False, False, True])] = 2**62 + 1
    assert x.asnumpy().tolist() == [0, 2**53 + 1, 2**62 + 1]


def test_assigning_arrays_of_the_other_kind_raises():
    x = array(np.zeros((2, 3), "float32"))
    for target, value in ((x, nd.ones(3)), (x.as_nd_ndarray(), array(np.ones(3)))):
        for key in (0, slice(None), [0, 1], Ellipsis):
            with pytest.raises(TypeError, match=r"convert it with as_n[dp]_ndarray\(\)"):
                target[key] = value
    assert not x.asnumpy().any()


def test_assignment_to_recorded_array_raises():
    x = array(np.ones((2, 3), "float32"))
    mask = x > 0
    x.attach_grad()
    with autograd.record():
        y = x * 2
        for target in (x, y):
            for key in (0, mask, [0, 1], (slice(None), 1), Ellipsis):
                with pytest.raises(mx.MXNetError, match="Inplace operations"):
                    target[key] = 1
            with pytest.raises(mx.MXNetError, match="record"):
                target += 1
        fresh = array(np.zeros((2, 3), "float32"))
        fresh[y > 1] = 5
        with pytest.raises(mx.MXNetError, match="Inplace operations"):
            fresh[mask] = y[mask]
        with pytest.raises(mx.MXNetError, match="Inplace operations"):
            fresh[:, 2:2] = y[:, 2:2]
    assert (fresh.asnumpy() == 5).all()


TRACED = {
    "rows": lambda x, i, j: x[i],
    "columns": lambda x, i, j: x[:, j],
    "pairs": lambda x, i, j: x[i, j],
    "numbers": lambda x, i, j: x[1, j],
    "after a slice": lambda x, i, j: x[1:, None, j],
    "at the end": lambda x, i, j: x[..., j, 1:],
    "grid": lambda x, i, j: x[i.reshape((2, 1)), j],
    "with a list": lambda x, i, j: x[[0, 3], j, 0],
}


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
@pytest.mark.parametrize("name", TRACED)
def test_traced_index_arrays_match_numpy(name, dtype):
    function = TRACED[name]
    values, i, j = np.arange(60.0).reshape(4, 3, 5).astype("float32"), [3, -1], [-2, 0]
    x, rows, columns = array(values), array(i, dtype), array(j, dtype)
    expected = function(values, np.array(i), np.array(j))
    compiled = _core.CachedOp(lambda *arrays: [function(*arrays)])
    x.attach_grad()
    with autograd.record():
        result = compiled(x, rows, columns)[0]
    result.backward()
    assert result.shape == expected.shape and np.array_equal(result.asnumpy(), expected)
    gradient = np.zeros_like(values)
    positions = function(np.arange(60).reshape(4, 3, 5), np.array(i), np.array(j))
    np.add.at(gradient.reshape(-1), positions, 1)
    assert np.array_equal(x.grad.asnumpy(), gradient)


class Masked(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        y = x * 2
        return y[y > 3] * 3


@pytest.mark.parametrize("hybridized", [False, True])
def test_masks_in_blocks_are_differentiated(hybridized):
    block = Masked()
    block.hybridize(hybridized)
    for shape in ((5,), (2, 3), (2, 3), (2, 3)):
        values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        x = array(values)
        x.attach_grad()
        with autograd.record():
            y = block(x)
        y.backward()
        assert type(y) is type(x.grad) is type(x)
        assert np.array_equal(y.asnumpy(), values[values * 2 > 3] * 6)
        assert np.array_equal(x.grad.asnumpy(), 6 * (values * 2 > 3))


def test_traced_indices_that_need_values_raise():
    x, i = array(np.zeros((2, 3, 4), "float32")), array([0, 1], "int32")
    for function in (lambda x, i: [x[i, :, i]], lambda x, i: [x[i, i > 0]]):
        with pytest.raises(mx.MXNetError):
            _core.CachedOp(function)(x, i)
    with pytest.raises(mx.MXNetError, match="never overwritten"):
        _core.CachedOp(lambda x, i: x.__setitem__(i > 0, 1) or [x])(x, i)
