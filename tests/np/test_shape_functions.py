"""Reductions, changes of shape and creation functions of mx.np against NumPy's."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd

X = np.arange(24, dtype="float32").reshape(2, 3, 4)[:, ::-1] % 7
V = np.array([3, 1, 2, 1], "float32")
M = np.array([[1, 2, 3], [4, 5, 6]], "float32")
EMPTY = np.zeros((0, 3), "float32")
SCALAR = np.array(2.5, "float32")

# Name -> (function of the module and arrays, arrays). The results are NumPy's, except for dtypes.
CASES = {
    "sum": (lambda F, x: F.sum(x), X),
    "sum-axes": (lambda F, x: F.sum(x, axis=(0, -1), keepdims=True), X),
    "sum-no-axes": (lambda F, x: F.sum(x, axis=(), keepdims=True), X),
    "max-no-axes": (lambda F, x: F.max(x, axis=()), X),
    "mean-no-axes": (lambda F, x: F.mean(x, axis=(), dtype="float64"), X),
    "any-no-axes": (lambda F, x: F.any(x, axis=()), X),
    "sum-empty": (lambda F, x: F.sum(x, axis=0), EMPTY),
    "sum-scalar": (lambda F, x: F.sum(x), SCALAR),
    "prod-no-axes-positions": (lambda F, x: F.prod(x, (), None, None, True), M),
    "sum-scalar-axis": (lambda F, x: F.sum(x, axis=0, keepdims=True), SCALAR),
    "any-scalar-axis": (lambda F, x: F.any(x, axis=0), SCALAR),
    "max-scalar-axis": (lambda F, x: F.max(x, -1), SCALAR),
    "argmax-scalar-axis": (lambda F, x: F.argmax(x, axis=0), SCALAR),
    "argmin-scalar-axis": (lambda F, x: F.argmin(x, axis=-1, keepdims=True), SCALAR),
    "sum-dtype": (lambda F, x: F.sum(x, axis=1, dtype="float64"), X),
    "prod": (lambda F, x: F.prod(x, axis=-1), M),
    "prod-empty": (lambda F, x: F.prod(x), EMPTY),
    "mean": (lambda F, x: F.mean(x, axis=1), X),
    "mean-dtype": (lambda F, x: F.mean(x, dtype="float64"), X),
    "max": (lambda F, x: F.max(x, axis=(1, 2)), X),
    "max-all": (lambda F, x: F.max(x, keepdims=True), X),
    "amin": (lambda F, x: F.amin(x, axis=-1), X),
    "argmax": (lambda F, x: F.argmax(x, axis=1), X),
    "argmax-all": (lambda F, x: F.argmax(x), V),
    "argmax-keepdims": (lambda F, x: F.argmax(x, axis=0, keepdims=True), V),
    "argmin": (lambda F, x: F.argmin(x, axis=-1), M),
    "cumsum": (lambda F, x: F.cumsum(x), M),
    "cumsum-axis": (lambda F, x: F.cumsum(x, axis=0), M),
    "any": (lambda F, x: F.any(x, axis=0), X),
    "any-empty": (lambda F, x: F.any(x), EMPTY),
    "all": (lambda F, x: F.all(x, axis=(0, 1), keepdims=True), X),
    "all-empty": (lambda F, x: F.all(x), EMPTY),
    "all-nan": (lambda F, x: F.all(x * np.float32("nan")), V),
    "sort": (lambda F, x: F.sort(x, axis=1), X),
    "argsort": (lambda F, x: F.argsort(x, kind="stable"), V),
    "reshape": (lambda F, x: F.reshape(x, (4, -1)), X),
    "reshape-number": (lambda F, x: F.reshape(x, -1), X),
    "reshape-empty": (lambda F, x: F.reshape(x, (5, 0)), EMPTY),
    "reshape-scalar": (lambda F, x: F.reshape(F.sum(x), (1, 1)), X),
    "transpose": (lambda F, x: F.transpose(x), X),
    "transpose-axes": (lambda F, x: F.transpose(x, (1, 2, 0)), X),
    "swapaxes": (lambda F, x: F.swapaxes(x, 0, -1), X),
    "moveaxis": (lambda F, x: F.moveaxis(x, (0, 1), (-1, 0)), X),
    "squeeze": (lambda F, x: F.squeeze(x[:1, :1, :1]), X),
    "squeeze-axis": (lambda F, x: F.squeeze(x[:1], axis=0), X),
    "expand_dims": (lambda F, x: F.expand_dims(x, -1), X),
    "expand_dims-scalar": (lambda F, x: F.expand_dims(x, 0), SCALAR),
    "broadcast_to": (lambda F, x: F.broadcast_to(x, (2, 2, 3)), M),
    "broadcast_to-empty": (lambda F, x: F.broadcast_to(x, (0, 4)), V),
    "broadcast_to-number": (lambda F, x: F.broadcast_to(2.5, (2, 3)) + x, SCALAR),
    "squeeze-scalar": (lambda F, x: F.squeeze(x, -1), SCALAR),
    "flip": (lambda F, x: F.flip(x), X),
    "flip-no-axes": (lambda F, x: F.flip(x, ()), X),
    "flip-axes": (lambda F, x: F.flip(x, (0, 2)), X),
    "tile": (lambda F, x: F.tile(x, (2, 1, 2)), M),
    "repeat": (lambda F, x: F.repeat(x, 2), M),
    "repeat-axis": (lambda F, x: F.repeat(x, 3, axis=1), M),
    "concatenate": (lambda F, x: F.concatenate([x, x * 2], axis=1), M),
    "concatenate-flat": (lambda F, x: F.concatenate([x, x[0]], axis=None), M),
    "stack": (lambda F, x: F.stack([x, x * 2], axis=-1), M),
    "split": (lambda F, x: F.split(x, 2, axis=2)[1], X),
    "split-indices": (lambda F, x: F.split(x, [1, 3], axis=-1)[1], X),
    "split-empty": (lambda F, x: F.split(x, [0, 1])[0], M),
    "clip": (lambda F, x: F.clip(x, 2, 4), M),
    "clip-low": (lambda F, x: F.clip(x, 2, None), M),
    "clip-high": (lambda F, x: F.clip(x, None, a_max=4), M),
    "where": (lambda F, x: F.where(x > 2, x, -x), M),
    "where-number": (lambda F, x: F.where(x > 2, x, 0.5), M),
    "where-broadcast": (lambda F, x: F.where(x > 2, 7, x[0]), M),
    "take": (lambda F, x: F.take(x, F.argsort(x[0, :2, 0]), axis=1), X),
    "take-flat": (lambda F, x: F.take(x, F.argmax(x)), M),
    "take-wrap": (lambda F, x: F.take(x, F.argmax(x) + 1, mode="wrap"), M),
    "diag": (lambda F, x: F.diag(x, 1), V),
    "diag-matrix": (lambda F, x: F.diag(x, k=-1), M),
    "copy": (lambda F, x: F.copy(x), M),
    "pad": (lambda F, x: F.pad(x, ((1, 0), (2, 1))), M),
    "pad-value": (lambda F, x: F.pad(x, 1, constant_values=3), V),
    "pad-edge": (lambda F, x: F.pad(x, (1, 2), mode="edge"), M),
    "pad-reflect": (lambda F, x: F.pad(x, (1, 3), mode="reflect"), V),
    "pad-symmetric": (lambda F, x: F.pad(x, ((0, 1), (5, 2)), mode="symmetric"), M),
    "pad-maximum": (lambda F, x: F.pad(x, ((0, 1), (1, 2)), mode="maximum"), M),
    "pad-minimum": (lambda F, x: F.pad(x, 2, mode="minimum"), V),
    "dot": (lambda F, x: F.dot(x, x.T), M),
    "dot-vectors": (lambda F, x: F.dot(x, x), V),
    "dot-matrix-vector": (lambda F, x: F.dot(x, x[0]), M),
    "dot-stack": (lambda F, x: F.dot(x[:, :, :3], x), X),
    "dot-number": (lambda F, x: F.dot(x, F.sum(x)), M),
    "around": (lambda F, x: F.around(x / 4), X),
    "around-decimals": (lambda F, x: F.around(x / 7, 2), X),
    "around-tens": (lambda F, x: F.around(x * 7, -1), X),
    "full_like": (lambda F, x: F.full_like(x, 2), M),
    "zeros_like": (lambda F, x: F.zeros_like(x, dtype="int32"), M),
    "ones_like": (lambda F, x: F.ones_like(x), EMPTY),
    "empty_like": (lambda F, x: F.empty_like(x) * 0, M),
    "meshgrid": (lambda F, x: F.meshgrid(x, x[:2])[1], V),
    "meshgrid-ij": (lambda F, x: F.meshgrid(x, x[:2], indexing="ij")[0], V),
    "meshgrid-sparse": (lambda F, x: F.meshgrid(x, x[:2], x, sparse=True)[1], V),
}


def array(values, dtype="float32"):
    return nd.array(np.asarray(values), dtype=dtype).as_np_ndarray()


@pytest.mark.parametrize("name", CASES)
def test_functions_agree_with_numpy(name):
    function, values = CASES[name]
    expected = np.asarray(function(np, values))
    x = array(values)
    x.attach_grad()
    with autograd.record():
        recorded = function(mx.np, x)
    if recorded._on_tape:
        recorded.backward()
        assert x.grad.shape == x.shape
    traced = _core.CachedOp(lambda x: [function(mx.np, x)])(x)[0]
    for result in (function(mx.np, array(values)), recorded, traced):
        assert type(result) is mx.np.ndarray and result.shape == expected.shape
        assert result.dtype.kind == expected.dtype.kind
        np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-5, atol=1e-6)


DTYPES = {
    "sum": {"bool": "int64", "int8": "int8", "int32": "int32", "float16": "float16"},
    "prod": {"bool": "int64", "uint8": "uint8", "float64": "float64"},
    "cumsum": {"bool": "int64", "int8": "int8", "float16": "float16"},
    "mean": {"bool": "float32", "int8": "float32", "int64": "float32", "float16": "float16"},
    "max": {"bool": "bool", "int8": "int8", "float64": "float64"},
    "argmax": {"bool": "int64", "int8": "int64", "float64": "int64"},
    "argsort": {"int32": "int64", "float16": "int64"},
    "any": {"bool": "bool", "int8": "bool", "float16": "bool"},
    "all": {"bool": "bool", "float64": "bool"},
    "around": {"int32": "int32", "float64": "float64"},
}


@pytest.mark.parametrize(
    "name, dtype", [(name, dtype) for name, pairs in DTYPES.items() for dtype in pairs]
)
def test_dtypes_of_results(name, dtype):
    values = np.array([1, 0, 1, 1]).astype(dtype)
    function = getattr(mx.np, name)
    expected = getattr(np, name)(values)
    for result in (
        function(array(values, dtype)),
        _core.CachedOp(lambda x: [function(x)])(array(values, dtype))[0],
    ):
        assert result.dtype == DTYPES[name][dtype]
        assert np.array_equal(result.asnumpy(), expected)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "cumsum"])
def test_dtype_is_the_dtype_of_the_result(name):
    values = np.array([1, 2, 3], "int8")
    result = getattr(mx.np, name)(array(values, "int8"), dtype="float64")
    assert result.dtype == "float64"
    np.testing.assert_allclose(result.asnumpy(), getattr(np, name)(values, dtype="float64"))


@pytest.mark.parametrize(
    "name, make",
    {
        "sum": lambda x, out: mx.np.sum(x, axis=1, out=out),
        "any": lambda x, out: mx.np.any(x, axis=1, out=out),
        "around": lambda x, out: mx.np.around(x[:, 0], 1, out=out),
        "clip": lambda x, out: mx.np.clip(x[:, 0], 2, None, out=out),
        "concatenate": lambda x, out: mx.np.concatenate([x[:1, 0], x[1:, 0]], out=out),
        "take": lambda x, out: mx.np.take(x, array([0, 1]), out=out),
    }.items(),
)
def test_results_are_written_into_out(name, make):
    x = array(M)
    expected = make(x, None)
    out = array(np.zeros(expected.shape), expected.dtype)
    assert make(x, out) is out
    assert np.array_equal(out.asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("name", ["sum", "max", "argmin"])
def test_axis_out_of_range_of_an_array_without_dimensions_raises(name):
    with pytest.raises(mx.MXNetError, match="axis 1 is out of range"):
        getattr(mx.np, name)(array(SCALAR), axis=1)


def test_argmax_of_no_axes_raises():
    with pytest.raises(TypeError, match="argmax: axis must be an integer or None"):
        mx.np.argmax(array(M), axis=())


def test_where_finds_true_elements():
    found = mx.np.where(array([[0, 1], [1, 1]]))
    assert [x.asnumpy().tolist() for x in found] == [[0, 1, 1], [1, 0, 1]]
    block = mx.gluon.nn.HybridLambda(lambda F, x: F.np.where(x)[1] + 1)
    block.hybridize()
    assert block(array(M)).tolist() == [1, 2, 3, 1, 2, 3]
    x = mx.np.where(array([1, 0]), np.array([3.0, 4.0]), array([5, 6]))
    assert x.dtype == "float32" and x.tolist() == [3, 6]
    with pytest.raises(ValueError, match="both x and y"):
        mx.np.where(array(M), array(M))


def test_broadcast_to_keeps_sizes():
    assert mx.np.broadcast_to(array(M), (4, -2, -2)).shape == (4, 2, 3)
    with pytest.raises(mx.MXNetError, match="negative size, -1"):
        mx.np.broadcast_to(array(M), (4, -1, 3))


def test_reshape_codes():
    x = array(X)
    assert mx.npx.reshape(x, (-2, -2, 2, -1)).shape == (2, 3, 2, 2)
    assert mx.npx.reshape(x, (-5, 4)).shape == (6, 4)
    assert mx.npx.reshape(x, (-6, 1, 2, -4)).shape == (1, 2, 3, 4)
    assert mx.npx.reshape(x[:0], (-6, 0, 2, -4)).shape == (0, 2, 3, 4)
    assert mx.npx.reshape(x, (-4, -6, 2, -1), reverse=True).shape == (2, 3, 2, 2)
    assert mx.npx.reshape(x, (-1, -4)).shape == (2, 3, 4)
    assert mx.npx.reshape(x[:1], (-3, -5)).shape == (12,)
    assert mx.npx.reshape(x, (-5, -2), reverse=True).shape == (6, 4)
    with pytest.raises(mx.MXNetError, match="does not have size 1"):
        mx.npx.reshape(x, (-3, -1))
    for function, number in ((mx.np.reshape, -2), (mx.npx.reshape, -7)):
        with pytest.raises(mx.MXNetError, match=f"newshape contains {number}"):
            function(x, (number, -1))


CREATION = {
    "zeros": lambda F: F.zeros((2, 3)),
    "zeros-number": lambda F: F.zeros(3, dtype="int32"),
    "zeros-scalar": lambda F: F.zeros(()),
    "zeros-empty": lambda F: F.zeros((0, 2)),
    "ones": lambda F: F.ones((2, 0), dtype="float64"),
    "full": lambda F: F.full((2, 2), 3, dtype="int64"),
    "full-bool": lambda F: F.full((2,), True),
    "full-array": lambda F: F.full((2, 2), F.arange(2)),
    "empty": lambda F: F.empty((2, 3)) * 0 if F is mx.np else np.zeros((2, 3)),
    "arange": lambda F: F.arange(5),
    "arange-step": lambda F: F.arange(1, 6, 2, dtype="int32"),
    "arange-down": lambda F: F.arange(5, 0, -2),
    "arange-empty": lambda F: F.arange(3, 1),
    "arange-none": lambda F: F.arange(0, 5, None),
    "arange-fraction": lambda F: F.arange(0, 1, 0.25),
    "eye": lambda F: F.eye(3),
    "eye-columns": lambda F: F.eye(2, 4, 1, dtype="int32"),
    "eye-empty": lambda F: F.eye(2, 0),
    "eye-none": lambda F: F.eye(3, None, k=-1),
    "identity": lambda F: F.identity(3, dtype="float64"),
    "linspace": lambda F: F.linspace(0, 1, 5),
    "linspace-open": lambda F: F.linspace(1, 3, 4, endpoint=False),
    "linspace-one": lambda F: F.linspace(1, 3, 1),
    "linspace-none": lambda F: F.linspace(1, 3, 0),
    "linspace-step": lambda F: F.linspace(0, 10, 5, retstep=True)[1],
    "linspace-arrays": lambda F: F.linspace(F.zeros(2), F.arange(2), 3, axis=1),
    "linspace-int": lambda F: F.linspace(-3, 3, 5, dtype="int32"),
    "logspace": lambda F: F.logspace(0, 2, 3, base=2),
    "indices": lambda F: F.indices((2, 3)),
    "array": lambda F: F.array([[1.5, 2], [3, 4]]),
    "array-scalar": lambda F: F.array(2.5),
    "array-empty": lambda F: F.array([]),
    "array-dtype": lambda F: F.array([1, 2], dtype="int32"),
    "array-of-numpy": lambda F: F.array(np.arange(3)),
    "array-int": lambda F: F.array([1, 2], dtype=int),
    "asarray": lambda F: F.asarray(np.array([True, False])),
}


INTEGERS = {
    "linspace": lambda F, x: F.linspace(x, 10 - x, 5),
    "linspace-number": lambda F, x: F.linspace(x, 10, 5, endpoint=False),
    "linspace-step": lambda F, x: F.linspace(0, x, 5, retstep=True)[1],
    "logspace": lambda F, x: F.logspace(x - x, x % 3, 4),
    "around": lambda F, x: F.around(x, 2),
    "around-number": lambda F, x: round(x[0], 1),
    "around-tens": lambda F, x: F.around(x, -1),
    "around-hundreds": lambda F, x: x.round(-2),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_functions_of_integers_agree_with_numpy(name, dtype):
    values = np.array([2, 5, 50, 114, np.iinfo(dtype).max // 13], dtype)
    expected = np.asarray(INTEGERS[name](np, values))
    for result in (
        INTEGERS[name](mx.np, array(values, dtype)),
        _core.CachedOp(lambda x: [INTEGERS[name](mx.np, x)])(array(values, dtype))[0],
    ):
        assert result.dtype.kind == expected.dtype.kind
        np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-5)


def test_around_refuses_decimals_beyond_the_range_of_float64():
    with pytest.raises(ValueError, match="decimals must be from -308 to 308, got 400"):
        mx.np.around(array(M), 400)


@pytest.mark.parametrize("name", CREATION)
def test_creation_functions_agree_with_numpy(name):
    expected, result = np.asarray(CREATION[name](np)), CREATION[name](mx.np)
    if name == "linspace-step":
        assert result == expected
        return
    assert type(result) is mx.np.ndarray and result.shape == expected.shape
    given = any(word in name for word in ("dtype", "int", "of", "bool", "asarray", "down-"))
    if expected.dtype == "float64" and name not in ("ones", "identity"):
        assert result.dtype == "float32"
    elif given or expected.dtype == "float64":
        assert result.dtype == expected.dtype
    np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-6)


def test_default_dtypes():
    F = mx.np
    assert F.array([1, 2]).dtype == F.array([True]).dtype == F.arange(3).dtype == "float32"
    assert F.array(np.ones(2)).dtype == "float64" and F.array([1], dtype=float).dtype == "float64"
    assert F.array(F.ones(2, dtype="int8")).dtype == "int8"
    assert F.full((2,), 1).dtype == "float32" and F.full((2,), True).dtype == "bool"
    assert F.indices((2,)).dtype == "int32" and F.eye(2).dtype == "float32"
    with pytest.raises(ValueError, match="use as_np_ndarray"):
        F.array(nd.ones(2))


def test_arrays_are_created_on_a_device():
    ctx = mx.cpu(1)
    for make in (
        lambda **key: mx.np.zeros(2, **key),
        lambda **key: mx.np.array([1, 2], **key),
        lambda **key: mx.np.full(2, 1, **key),
        lambda **key: mx.np.arange(2, **key),
        lambda **key: mx.np.eye(2, **key),
        lambda **key: mx.np.linspace(0, 1, 2, **key),
        lambda **key: mx.np.indices((2,), **key),
        lambda **key: mx.np.empty(2, **key),
    ):
        assert make(ctx=ctx).ctx == make(device=ctx).ctx == ctx
        assert make().ctx == mx.cpu(0)


def test_only_row_major_order_is_supported():
    for make in (mx.np.zeros, mx.np.ones, mx.np.empty):
        assert make((2,), order="C").shape == (2,)
        with pytest.raises(NotImplementedError, match="order must be 'C'"):
            make((2,), order="F")
    with pytest.raises(NotImplementedError, match="order must be 'C'"):
        mx.np.reshape(array(M), (3, 2), order="F")


def test_constants_and_dtypes():
    F = mx.np
    assert F.pi == np.pi and F.newaxis is None and F.NINF == -np.inf and np.isnan(F.NaN)
    assert F.float32 is np.float32 and F.bool_ is F.bool is np.bool_ and F.int64 is np.int64
    assert F.finfo("float16").max == np.finfo("float16").max


@pytest.mark.parametrize("axes", [(0, 0, 1), (0, 1, 3), (0, 1)])
def test_wrong_axes_of_transpose_raise_value_errors(axes):
    x = mx.np.zeros((3, 4, 5))
    for call in (lambda: mx.np.transpose(x, axes), lambda: x.transpose(axes)):
        with pytest.raises(ValueError, match="_np_transpose: ax"):
            call()
        with pytest.raises(mx.MXNetError):
            call()
