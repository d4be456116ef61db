"""Parts of symbols of mx.sym.np, chosen by integers and slices."""

import numpy as np
import pytest

import mpgluon as mx

KEYS = [
    0,
    np.int64(1),
    -1,
    -2,
    slice(None),
    slice(1, None),
    slice(None, -1),
    slice(None, None, -1),
    (),
    (0, -1),
    (slice(None), 1),
    (slice(None), slice(2, None, -2), -3),
    (-1, slice(None), slice(1, 3)),
    (1, 2, 3),
]
X = np.arange(24, dtype="float32").reshape(2, 3, 4)


@pytest.fixture(autouse=True)
def restore_shapes():
    """Restores MXNet's meaning of 0 in shapes, because reading JSON of mx.np changes it."""
    yield
    mx.util.set_np_shape(False)


def var(name):
    return mx.sym.var(name).as_np_ndarray()


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_parts_of_symbols_match_numpy(key):
    part = mx.sym.load_json(mx.sym.np.abs(var("x")[key]).tojson())
    with mx.util.np_shape(True):
        assert part.infer_shape(x=X.shape)[1] == [X[key].shape]
    args, grads = {"x": mx.nd.array(X)}, {"x": mx.nd.zeros(X.shape)}
    executor = part.bind(mx.cpu(), args, grads)
    result = executor.forward(is_train=True)[0]
    np.testing.assert_array_equal(result.asnumpy(), X[key])
    executor.backward([mx.nd.ones(result.shape)])
    expected = np.zeros_like(X)
    expected[key] = X[key] > 0
    np.testing.assert_array_equal(grads["x"].asnumpy(), expected)


@pytest.mark.parametrize("key", [None, ..., [0], True, 1.0, (0, [1])], ids=str)
def test_parts_of_symbols_reject_other_keys(key):
    with pytest.raises(IndexError, match="an integer, a slice, or a tuple of them, got"):
        var("x")[key]


def test_parts_of_symbols_reject_a_step_of_0():
    with pytest.raises(ValueError, match="slice step cannot be zero"):
        var("x")[::0]
    with pytest.raises(ValueError, match="slice step cannot be zero"):
        var("x")[0, ::0]


def test_integers_outside_of_an_axis_raise():
    for key in (2, -3):
        with pytest.raises(mx.MXNetError):
            var("x")[key].infer_shape(x=X.shape)


def test_indices_of_several_outputs_choose_outputs():
    group = mx.sym.Group([var("x"), var("y")]).as_np_ndarray()
    assert group[1].list_outputs() == ["y"] and group[:1].list_outputs() == ["x"]
    assert [symbol.name for symbol in group] == ["x", "y"]


class Rows(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x[0] + x[1:, -1]


@pytest.mark.filterwarnings("error")
def test_networks_choose_rows_in_both_forms():
    x = mx.np.array(X)
    result = Rows()(var("x")).bind(mx.cpu(), {"x": mx.nd.array(X)}).forward()[0]
    np.testing.assert_array_equal(result.asnumpy(), Rows()(x).asnumpy())
