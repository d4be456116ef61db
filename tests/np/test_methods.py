"""Methods of mx.np.ndarray against NumPy's, eagerly, recorded and compiled."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd

VALUES = np.random.default_rng(0).permutation(24).reshape(2, 3, 4).astype("float32") - 11


def array(values, dtype=None):
    values = np.asarray(values)
    return nd.array(values, dtype=dtype or values.dtype).as_np_ndarray()


CALLS = {
    "T": lambda x: x.T,
    "all": lambda x: (x > -20).all(),
    "all axis": lambda x: (x > 0).all(axis=1, keepdims=True),
    "any": lambda x: (x > 11).any(axis=(0, 2)),
    "argmax": lambda x: x.argmax(),
    "argmax axis": lambda x: x.argmax(1),
    "argmax kept": lambda x: x.argmax(1, keepdims=True),
    "argmin": lambda x: x.argmin(axis=-1),
    "argmin kept": lambda x: x.argmin(axis=0, keepdims=True),
    "argsort": lambda x: x.argsort(),
    "astype": lambda x: x.astype("int32"),
    "clip": lambda x: x.clip(-2, 3),
    "clip below": lambda x: x.clip(min=0),
    "cumsum": lambda x: x.cumsum(),
    "cumsum axis": lambda x: x.cumsum(axis=1),
    "dot": lambda x: x.dot(x[0, :2].T),
    "flatten": lambda x: x.flatten(),
    "max": lambda x: x.max(),
    "max axis": lambda x: x.max(axis=1, keepdims=True),
    "mean": lambda x: x.mean(),
    "mean axis": lambda x: x.mean((0, 1)),
    "mean dtype": lambda x: x.mean(dtype="float64"),
    "min": lambda x: x.min(axis=(0, 1)),
    "prod": lambda x: x[0].prod(axis=1),
    "ravel": lambda x: x.ravel(),
    "repeat": lambda x: x.repeat(2),
    "repeat axis": lambda x: x.repeat(3, axis=1),
    "reshape": lambda x: x.reshape(4, -1),
    "reshape tuple": lambda x: x.reshape((6, 4)),
    "reshape 0-d": lambda x: x[0, 0, 0].reshape(()),
    "reshape flat": lambda x: x.reshape(-1),
    "round": lambda x: (x / 3).round(),
    "round decimals": lambda x: (x / 3).round(2),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "squeeze axis": lambda x: x[:1, :1].squeeze(axis=1),
    "std": lambda x: x.std(),
    "std axis": lambda x: x.std(axis=1, ddof=1, keepdims=True),
    "sum": lambda x: x.sum(),
    "sum axis": lambda x: x.sum(axis=(0, 2), keepdims=True),
    "swapaxes": lambda x: x.swapaxes(0, -1),
    "transpose": lambda x: x.transpose(),
    "transpose axes": lambda x: x.transpose(1, 2, 0),
    "transpose tuple": lambda x: x.transpose((2, 0, 1)),
    "var": lambda x: x.var(axis=0),
    "floor divide": lambda x: x // 2.5,
    "divided number": lambda x: 7 // x,
    "divmod": lambda x: divmod(x, 3)[1],
    "matmul": lambda x: x @ x.swapaxes(1, 2),
    "matmul vector": lambda x: x[0] @ x[0, 0],
}
DIFFERENT = {"all", "all axis", "any", "astype", *(call for call in CALLS if call[:3] == "arg")}


@pytest.mark.parametrize("call", CALLS)
def test_methods_match_numpys(call):
    function = CALLS[call]
    expected = function(VALUES)
    x = array(VALUES)
    x.attach_grad()
    with autograd.record():
        recorded = function(x)
    compiled = _core.CachedOp(lambda y: [function(y)])(x)[0]
    for result in (function(x), recorded, compiled):
        assert type(result) is type(x) and result.shape == np.shape(expected)
        assert result.dtype == expected.dtype or call in DIFFERENT
        np.testing.assert_allclose(result.asnumpy(), expected, rtol=2e-5, atol=1e-5)
    if call not in DIFFERENT:
        recorded.backward()
        assert type(x.grad) is type(x) and x.grad.shape == x.shape


def test_astype_of_none_is_float32():
    assert array([1, 2], "int32").astype(None).dtype == "float32"


def test_sorting_returns_a_copy():
    x = array(VALUES)
    assert np.array_equal(x.sort(axis=1).asnumpy(), np.sort(VALUES, axis=1))
    assert np.array_equal(x.asnumpy(), VALUES)


def test_reshape_takes_sizes_as_numpy_does():
    x = array(np.zeros((0, 3), "float32"))
    assert x.reshape(3, 0).shape == (3, 0) and x.reshape((0,)).shape == (0,)
    y = array(VALUES)
    for shape in ((5, -1), (-1, -1), (23,), (0, -1)):
        with pytest.raises((ValueError, mx.MXNetError)):
            y.reshape(*shape)
    with pytest.raises(NotImplementedError, match="order"):
        y.reshape(24, order="F")
    with pytest.raises(TypeError, match="reverse"):
        y.reshape(24, reverse=True)
    view = y.reshape_view(-1)
    view[0] = 99
    assert y[0, 0, 0] == 99
    y.reshape(-1)[0] = 0
    assert y[0, 0, 0] == 99


def test_results_are_written_to_out():
    x = array(VALUES)
    for call, shape in (
        (lambda out: x.sum(axis=0, out=out), (3, 4)),
        (lambda out: x.max(axis=2, out=out), (2, 3)),
        (lambda out: x.clip(0, 1, out=out), (2, 3, 4)),
        (lambda out: x.mean(out=out), ()),
        (lambda out: x.std(axis=1, out=out), (2, 4)),
    ):
        out = array(np.zeros(shape, "float32"))
        assert call(out) is out and out.asnumpy().any()
