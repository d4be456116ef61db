"""NumPy functions on NDArrays: ops if available, otherwise NumPy on copies."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd

VALUES = np.array([[0.2, 0.45, 0.6], [0.3, 0.9, 0.5]], "float32")
WHOLE = np.array([[4, 1, 3], [2, 5, 2]], "int32")
OTHER = np.arange(6, dtype="float32").reshape(2, 3) + 1

# Functions backed by ops: values are compared with NumPy, gradients with difference quotients.
SMOOTH = {
    "exp": lambda a: np.exp(a) * OTHER,
    "exp2": lambda a: np.exp2(a),
    "sum": lambda a: np.sum(a**2),
    "sum of an axis": lambda a: np.sum(a**2, axis=-1, keepdims=True),
    "sum of no axis": lambda a: np.sum(a, axis=()),
    "reduce": lambda a: np.add.reduce(a**2),
    "mean": lambda a: np.mean(a**2, axis=0),
    "prod": lambda a: np.prod(a, 0),
    "max": lambda a: np.max(a, axis=0) ** 2,
    "var": lambda a: np.var(a, axis=1, ddof=1),
    "std": lambda a: np.std(a),
    "norm": lambda a: np.linalg.norm(a, axis=1),
    "cumsum": lambda a: np.cumsum(a, axis=1) ** 2,
    "sort": lambda a: np.sort(a, axis=1) * OTHER,
    "clip": lambda a: np.clip(a, 0.25, 0.55) ** 2,
    "clip by an array": lambda a: np.clip(a, None, OTHER / 7) ** 2,
    "maximum": lambda a: np.maximum(OTHER / 8, a),
    "operators": lambda a: np.float64(3) * a + OTHER * a - np.float32(1) / a,
    "list": lambda a: np.multiply([1, 2, 3], a),
    "where": lambda a: np.where(a > 0.48, a**2, 0),
    "where of a row": lambda a: np.where(np.array([True, False, True]), a, -a),
    "concatenate": lambda a: np.concatenate([a, OTHER, a * 2], axis=-1) ** 2,
    "concatenate flat": lambda a: np.concatenate([a, a[:1] ** 2], axis=None),
    "stack": lambda a: np.stack([a, OTHER], -1) ** 2,
    "vstack": lambda a: np.vstack([a[0] ** 2, OTHER[1]]),
    "hstack": lambda a: np.hstack([a, OTHER]) ** 2,
    "split": lambda a: np.split(a, [1], axis=1)[1] ** 2,
    "take": lambda a: np.take(a, [0, -1], axis=1) ** 2,
    "take flat": lambda a: np.take(a, [[5, 0]]) ** 2,
    "reshape": lambda a: np.reshape(a, (3, -1)) ** 2,
    "transpose": lambda a: np.transpose(a, (-1, 0)) ** 2,
    "expand_dims": lambda a: np.expand_dims(a, (0, -1)) ** 2,
    "broadcast_to": lambda a: np.broadcast_to(a, (4, 2, 3)) ** 2,
    "repeat": lambda a: np.repeat(a, 2) ** 2,
    "tile": lambda a: np.tile(a, (2, 1)) ** 2,
    "flip": lambda a: np.flip(a, 1) * OTHER,
    "matmul": lambda a: np.matmul(OTHER.T, a),
    "matmul from the right": lambda a: a @ OTHER.T,
    "dot": lambda a: np.dot(a, a[0]),
    "outer": lambda a: np.outer(a, a[0]),
    "atleast_1d": lambda a: np.atleast_1d(np.sum(a**2)) ** 2,
    "atleast_2d": lambda a: np.atleast_2d(a[0]) ** 2,
    "atleast_3d": lambda a: np.atleast_3d(a) ** 2,
    "dstack": lambda a: np.dstack([a, OTHER]) ** 2,
    "column_stack": lambda a: np.column_stack([a[:, 0], OTHER, a[:, 1]]) ** 2,
    "append": lambda a: np.append(a, a[0] ** 2),
    "append along": lambda a: np.append(a, OTHER, axis=0) ** 2,
    "array_split": lambda a: np.array_split(a, 2, axis=1)[0] ** 2,
    "vsplit": lambda a: np.vsplit(a, 2)[1] ** 2,
    "hsplit": lambda a: np.hsplit(a, 3)[1] ** 2,
    "flipud": lambda a: np.flipud(a) * OTHER,
    "fliplr": lambda a: np.fliplr(a) * OTHER,
    "roll": lambda a: np.roll(a, -1) * OTHER,
    "roll along": lambda a: np.roll(a, (1, 2), axis=(0, 1)) * OTHER,
    "pad": lambda a: np.pad(a, ((1, 0), (0, 2)), constant_values=3) ** 2,
    "pad by the edge": lambda a: np.pad(a, 1, mode="edge") ** 2,
    "pad by the maximum": lambda a: np.pad(a, ((0, 1), (0, 0)), mode="maximum") ** 2,
    "diag": lambda a: np.diag(a[:, :2], -1) ** 2,
    "diag of a vector": lambda a: np.diag(a[0], 1) ** 2,
    "trace": lambda a: np.trace(a, 1) ** 2,
    "trace of two axes": lambda a: np.trace(np.expand_dims(a, 1), 0, 0, 2) ** 2,
    "tril": lambda a: np.tril(a) ** 2,
    "triu": lambda a: np.triu(a, 1) ** 2,
    "tensordot": lambda a: np.tensordot(a, OTHER, axes=([1], [1])),
    "tensordot of all": lambda a: np.tensordot(a, a),
    "inner": lambda a: np.inner(a, OTHER),
    "vdot": lambda a: np.vdot(a, OTHER),
    "diff": lambda a: np.diff(a, axis=1) ** 2,
    "diff twice": lambda a: np.diff(a, 2) ** 2,
    "ptp": lambda a: np.ptp(a, axis=0) ** 2,
    "average": lambda a: np.average(a**2, axis=1, weights=OTHER),
    "average of vectors": lambda a: np.average(a, axis=1, weights=OTHER[0], keepdims=True) ** 2,
    "returned weights": lambda a: np.average(OTHER, axis=0, weights=a, returned=True)[1] ** 2,
    "full_like": lambda a: a * np.full_like(a, 2.5),
}
EXACT = {
    "rint": lambda a: np.rint(a),
    "rint of halves": lambda a: np.rint(np.concatenate([a[0] * 0 - 1.5, a[1] * 0 + 2.5])),
    "round": lambda a: np.round(a, 1),
    "floor": lambda a: np.floor(a * 3),
    "argmax": lambda a: np.argmax(a),
    "argmin": lambda a: np.argmin(a, keepdims=True),
    "argsort": lambda a: np.argsort(a, axis=None, kind="stable"),
    "mean": lambda a: np.mean(a),
    "mean in float64": lambda a: np.mean(a, dtype="float64"),
    "prod": lambda a: np.prod(a),
    "sqrt": lambda a: np.sqrt(a),
    "hypot": lambda a: np.hypot(a, a),
    "maximum": lambda a: np.maximum(a, 2.5),
    "minimum": lambda a: np.minimum(OTHER, a),
    "clip": lambda a: np.clip(a, 0.5, 2.5),
    "concatenate": lambda a: np.concatenate([a, OTHER]),
    "squeeze": lambda a: np.squeeze(a[:1]),
    "vstack in float64": lambda a: np.vstack([a, a], dtype="float64"),
    "trace": lambda a: np.trace(a),
    "inner": lambda a: np.inner(a, a),
    "tensordot": lambda a: np.tensordot(a, a),
    "vdot": lambda a: np.vdot(a, a),
}
BY_NUMPY = {
    "median": lambda a: np.median(a),
    "unique": lambda a: np.unique(a),
    "einsum": lambda a: np.einsum("ij,kj", a, a),
    "arctan2": lambda a: np.arctan2(a, 2),
    "initial": lambda a: np.sum(a, initial=3),
    "where=": lambda a: np.sum(a, where=[True, False, True]),
    "reshape": lambda a: np.reshape(a, 6, order="F"),
    "add.outer": lambda a: np.add.outer(a[0], a[0]),
    "nested": lambda a: np.block([[a, a]]),
}


@pytest.mark.parametrize("case", SMOOTH)
def test_numpy_functions_with_ops_have_values_and_gradients(case):
    function = SMOOTH[case]
    x = nd.array(VALUES)
    x.attach_grad()
    with autograd.record():
        y = function(x)
    y.backward()
    assert isinstance(y, nd.NDArray)
    np.testing.assert_allclose(y.asnumpy(), function(VALUES), rtol=2e-6, atol=1e-6)
    exact = VALUES.astype("float64")
    steps = np.eye(6).reshape(6, 2, 3) * 1e-6
    slopes = [np.sum(function(exact + step)) - np.sum(function(exact - step)) for step in steps]
    slopes = np.reshape(slopes, (2, 3)) / 2e-6
    np.testing.assert_allclose(x.grad.asnumpy(), slopes, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", EXACT)
def test_numpy_functions_match_numpy_results(case):
    for values in (VALUES, WHOLE) if "halves" not in case else (VALUES,):
        expected = EXACT[case](values)
        result = EXACT[case](nd.array(values, dtype=values.dtype))
        assert isinstance(result, nd.NDArray) and result.shape == np.shape(expected)
        assert np.dtype(result.dtype).kind == expected.dtype.kind
        np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("case", BY_NUMPY)
def test_numpy_functions_without_op_fall_back_to_numpy(case):
    """Returns NumPy's result, or raises an error if a gradient would be lost."""
    x = nd.array(VALUES)
    np.testing.assert_array_equal(BY_NUMPY[case](x), BY_NUMPY[case](VALUES))
    x.attach_grad()
    with autograd.record():
        with pytest.raises(mx.MXNetError, match="the gradient of a recorded array would be lost"):
            BY_NUMPY[case](x)
        np.testing.assert_array_equal(BY_NUMPY[case](x.detach()), BY_NUMPY[case](VALUES))


def test_numpy_predicates_return_python_or_numpy_bools():
    x = nd.array([1, np.nan])
    x.attach_grad()
    with autograd.record():
        y = x * 2
        assert np.isnan(y).any() and not np.isfinite(y).all() and np.any(y == y)
        assert np.array_equal(y, y, equal_nan=True) and np.shape(y) == (2,) and np.size(y) == 2


def test_numpy_out_argument_accepts_ndarrays():
    x = nd.array(VALUES)
    target = nd.zeros((2, 3))
    assert np.add(x, 1, out=target) is target
    np.testing.assert_array_equal(target.asnumpy(), VALUES + 1)
    np.exp(x, out=target, where=OTHER > 3)
    expected = VALUES + 1
    np.testing.assert_allclose(
        target.asnumpy(), np.exp(VALUES, out=expected, where=OTHER > 3), rtol=1e-6
    )
    np.floor_divide(x, 0.25, out=target)
    np.testing.assert_array_equal(target.asnumpy(), VALUES // np.float32(0.25))
    assert np.sum(x, axis=0, out=nd.zeros(3)).shape == (3,)
    values = np.zeros((2, 3), "float32")
    assert np.add(x, 1, out=values) is values and (values == VALUES + 1).all()
    with pytest.raises(ValueError, match="shape"):
        np.exp(x, out=nd.zeros(2))
    x.attach_grad()
    with autograd.record():
        y = np.exp(x * 2, out=nd.zeros((2, 3)))
        with pytest.raises(mx.MXNetError, match="the gradient of a recorded array would be lost"):
            np.exp(x * 2, out=values)
    y.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * np.exp(2 * VALUES), rtol=1e-5)


def test_numpy_functions_that_write_into_arrays_are_refused():
    x = nd.array(VALUES)
    for write in (
        lambda: np.copyto(x, 0),
        lambda: np.put(x, [0], 1),
        lambda: np.fill_diagonal(x, 1),
        lambda: np.add.at(x, 0, 1),
    ):
        with pytest.raises(mx.MXNetError, match="writes into an NDArray"):
            write()
    np.testing.assert_array_equal(x.asnumpy(), VALUES)
    values = np.zeros((2, 3), "float32")
    np.copyto(values, x)
    assert (values == VALUES).all()


def test_numpy_function_errors_match_numpy():
    x = nd.array(VALUES)
    for wrong, error in (
        (lambda a: np.sum(a, axis=2), IndexError),
        (lambda a: np.mean(a, axis=(0, 0)), ValueError),
        (lambda a: np.reshape(a, (4, -1)), ValueError),
        (lambda a: np.squeeze(a, 0), ValueError),
        (lambda a: np.broadcast_to(a, (2, 4)), ValueError),
        (lambda a: np.take(a, [7], axis=0).tolist(), IndexError),
        (lambda a: np.mean(a, axes=0), TypeError),
    ):
        for array in (VALUES, x):
            with pytest.raises(error):
                wrong(array)


class Applied(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def hybrid_forward(self, F, x):
        return self.function(x)


def all_in_one(x):
    y = np.concatenate([np.exp(x), np.where(x > 0.48, x, 0), np.stack([x[0], x[1]])], axis=0)
    return np.std(np.clip(y, 0.1, 1.2), axis=0) * np.shape(x)[0] + np.isnan(np.rint(x[0]))


def test_numpy_functions_work_in_hybridized_blocks():
    x = nd.array(VALUES)
    eager, block = Applied(all_in_one)(x), Applied(all_in_one)
    block.hybridize()
    np.testing.assert_allclose(block(x).asnumpy(), eager.asnumpy(), rtol=1e-5)
    for function in (np.median, lambda a: np.any(a) * a, np.asarray):
        block = Applied(function)
        block.hybridize()
        with pytest.raises(mx.MXNetError, match="needs the value of an array"):
            block(x)


def test_numpy_functions_keep_bfloat16_and_device():
    x = nd.array(VALUES, ctx=mx.cpu(1), dtype="bfloat16")
    y = np.concatenate([np.exp(x), VALUES])
    assert y.dtype is mx.bfloat16 and y.context == mx.cpu(1) and np.sum(y).dtype is mx.bfloat16
    assert np.concatenate([x, nd.array(VALUES, ctx=mx.cpu(1))]).dtype == np.float32


def test_argmax_result_compares_with_labels_and_indexes():
    x = nd.array(VALUES)
    assert (np.argmax(x, axis=1) == nd.array([2, 1])).asnumpy().all()
    assert "abcdef"[np.argmax(x)] == "e"


@pytest.mark.parametrize(
    "other, match",
    [
        (np.ma.array([1.0, 2.0], mask=[False, True]), "no mask"),
        (np.array([1j, 2]), "complex128 cannot be an operand"),
        (
            np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"),
            "datetime64.* cannot be an operand",
        ),
        (np.zeros(2, dtype=[("a", "f4")]), "cannot be an operand"),
    ],
)
def test_operands_that_would_lose_data_are_refused(other, match):
    x = nd.array([1, 2])
    for function in (lambda: x + other, lambda: np.multiply(x, other), lambda: x * other):
        with pytest.raises(mx.MXNetError, match=match):
            function()
    with pytest.raises(mx.MXNetError, match=match):
        x -= other
    for number in (1j, np.complex64(1j), np.array(1j)):
        for function in (lambda: x + number, lambda: number + x):
            with pytest.raises(TypeError):
                function()


def test_ml_dtypes_scalars_are_operands():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    two = ml_dtypes.bfloat16(2)
    for dtype in ("float32", "bfloat16"):
        x = nd.array([1.5, 3], dtype=dtype)
        x.attach_grad()
        with autograd.record():
            results = [x * two, two * x, nd.broadcast_mul(x, two)]
            total = sum(results)
        total.backward()
        for result in results:
            assert result.dtype is x.dtype and result.asnumpy().tolist() == [3, 6]
        assert x.grad.asnumpy().tolist() == [6, 6]


@pytest.mark.parametrize(
    "left, right",
    [
        ((4, 3, 4), (4, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((5, 1, 3, 4), (2, 4, 5)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((0, 3, 4), (0, 4, 5)),
    ],
)
def test_batched_matmul_matches_numpy(left, right):
    random = np.random.RandomState(0)
    a, b = (random.uniform(-1, 1, shape).astype("float32") for shape in (left, right))
    x, y = nd.array(a), nd.array(b)
    x.attach_grad()
    with mx.autograd.record():
        products = [np.matmul(x, y), x @ y, a @ y, x @ b]
    for product in products:
        assert isinstance(product, nd.NDArray) and product.shape == (a @ b).shape
        np.testing.assert_allclose(product.asnumpy(), a @ b, rtol=1e-5, atol=1e-6)
    products[1].backward()
    slope = np.ones_like(a @ b)
    np.testing.assert_allclose((x.grad.asnumpy() * a).sum(), (slope * (a @ b)).sum(), rtol=1e-4)


def test_matmul_of_mismatched_shapes_is_refused():
    x = nd.ones((2, 3, 4))
    for other in (nd.ones((3, 4, 5)), nd.ones((2, 3, 5))):
        with pytest.raises(ValueError, match="shape|columns"):
            np.matmul(x, other)
        with pytest.raises(ValueError, match="shape|columns"):
            x @ other


def test_numpy_divide_of_integers_is_float():
    """NumPy's functions divide exactly; the operator returns integers, as in MXNet."""
    a, b = np.array([[1, 2], [3, 4]], "int32"), np.array([[2, 2], [2, 3]], "int32")
    x, y = nd.array(a, dtype="int32"), nd.array(b, dtype="int32")
    for left, right, exact in ((x, y, a / b), (x, 2, a / 2), (3, x, 3 / a), (x, b, a / b)):
        for function in (np.divide, np.true_divide):
            found = function(left, right)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found.asnumpy(), exact, rtol=1e-6)
    assert (x / y).asnumpy().tolist() == [[0, 1], [1, 1]]


def test_integer_matmul_uses_numpy_and_operator_is_refused():
    """The operator raises the op's error. NumPy's function computes on copies."""
    x = nd.ones((2, 3, 3), dtype="int32")
    with pytest.raises(mx.MXNetError, match="dot: .*int32"):
        x @ x
    assert np.matmul(x, x).shape == (2, 3, 3)
