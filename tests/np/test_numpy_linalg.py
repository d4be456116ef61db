"""mx.np.linalg: values, batches, empty arrays, gradients, hybridized calls, devices and errors."""

import doctest
import inspect
import itertools
import types
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd

linalg = mx.np.linalg


def array(values, dtype="float32", ctx=None):
    return nd.array(values, dtype=dtype, ctx=ctx).as_np_ndarray()


class Function(gluon.HybridBlock):
    """Calls a function with its inputs as arrays."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def hybrid_forward(self, F, *inputs):
        return self.function(*inputs)


def outputs_of(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def generator(*key):
    return np.random.default_rng([ord(c) for c in repr(key)])


def well(shape, seed=0):
    """Returns square matrices with condition numbers near 3 and distinct singular values."""
    n = shape[-1]
    draws = generator(shape, seed)
    u, _ = np.linalg.qr(draws.normal(size=(*shape[:-2], n, n)))
    v, _ = np.linalg.qr(draws.normal(size=(*shape[:-2], n, n)))
    return u * np.linspace(1, 3, n) @ v


def definite(shape):
    """Returns symmetric, positive definite matrices with distinct eigenvalues."""
    n = shape[-1]
    u, _ = np.linalg.qr(generator(shape).normal(size=(*shape[:-2], n, n)))
    return u * np.linspace(1, 4, n) @ np.swapaxes(u, -1, -2)


def real_eigenvalues(shape):
    """Returns matrices with distinct, real eigenvalues."""
    v = well(shape, 1)
    return v * np.linspace(-2, 3, shape[-1]) @ np.linalg.inv(v)


def rectangular(shape):
    return generator(shape).normal(size=shape)


def check(function, expected, *inputs, dtypes=("float32", "float64"), gradient=True):
    """Compares a function with NumPy's, hybridized with eager calls and on another device, and
    gradients with finite differences. `expected` are the values, for any dtype."""
    draws = generator("weights")
    for dtype in dtypes:
        rtol, atol = (2e-4, 2e-5) if dtype == "float32" else (1e-9, 1e-10)
        arrays = [array(x, dtype) for x in inputs]
        results = outputs_of(function(*arrays))
        net = Function(function)
        net.hybridize()
        there = [x.as_in_context(mx.cpu(1)) for x in arrays]
        for other in (outputs_of(net(*arrays)), outputs_of(function(*there))):
            for a, b in zip(results, other):
                assert np.array_equal(a.asnumpy(), b.asnumpy(), equal_nan=True)
        assert other[0].context == mx.cpu(1)
        for result, value in zip(results, outputs_of(expected), strict=True):
            assert type(result) is mx.np.ndarray and result.dtype == dtype
            assert result.shape == np.shape(value)
            assert np.allclose(result.asnumpy(), value, rtol=rtol, atol=atol)
    if not gradient or not all(np.size(x) for x in inputs):
        return
    weights = [array(draws.normal(size=np.shape(v)), "float64") for v in outputs_of(expected)]
    directions = [draws.normal(size=np.shape(x)) for x in inputs]

    def total(*arrays):
        return sum((w * y).sum() for w, y in zip(weights, outputs_of(function(*arrays))))

    for run in (total, Function(total)):
        if run is not total:
            run.hybridize()
        arrays = [array(x, "float64") for x in inputs]
        for x in arrays:
            x.attach_grad()
        with autograd.record():
            value = run(*arrays)
        value.backward()
        found = sum((x.grad.asnumpy() * d).sum() for x, d in zip(arrays, directions))
        step = 1e-6
        ends = [
            total(*[array(x + s * d, "float64") for x, d in zip(inputs, directions)]).item()
            for s in (-step, step)
        ]
        assert np.isclose(found, (ends[1] - ends[0]) / (2 * step), rtol=1e-5, atol=1e-6)


SQUARE = [(1, 1), (3, 3), (2, 4, 4), (2, 1, 3, 3)]
EMPTY = [(0, 0), (1, 0, 0), (0, 3, 3), (0, 5, 3, 3), (3, 3, 0, 0)]


@pytest.mark.parametrize("shape", SQUARE + EMPTY)
@pytest.mark.parametrize("name", ["det", "slogdet", "inv"])
def test_functions_of_square_matrices(name, shape):
    x = well(shape) if 0 not in shape else np.ones(shape)
    check(getattr(linalg, name), getattr(np.linalg, name)(x), x)


def test_results_of_one_matrix_have_no_dimensions():
    x = array(well((3, 3)))
    assert linalg.det(x).shape == linalg.slogdet(x)[1].shape == linalg.norm(x).shape == ()


@pytest.mark.parametrize("shape", SQUARE + EMPTY)
def test_cholesky(shape):
    x = definite(shape) if 0 not in shape else np.ones(shape)

    def symmetric(a):  # finite differences move mirrored elements together
        return linalg.cholesky((a + a.swapaxes(-1, -2)) / 2)

    lower = np.linalg.cholesky(x)
    check(symmetric, lower, x)
    upper = linalg.cholesky(array(np.triu(x), "float64"), upper=True).asnumpy()
    assert np.allclose(upper, np.swapaxes(lower, -1, -2))
    assert np.allclose(linalg.cholesky(array(np.tril(x), "float64")).asnumpy(), lower)


@pytest.mark.parametrize("shape", SQUARE + EMPTY)
@pytest.mark.parametrize("UPLO", ["L", "U", "l"])
def test_eigh(shape, UPLO):
    x = definite(shape) if 0 not in shape else np.ones(shape)
    values = np.linalg.eigvalsh(x)

    def symmetric(a):
        return (a + a.swapaxes(-1, -2)) / 2

    check(lambda a: linalg.eigvalsh(symmetric(a), UPLO), values, x)
    check(lambda a: linalg.eigh(symmetric(a), UPLO)[0], values, x)
    if 0 in shape:
        assert linalg.eigh(array(x), UPLO)[1].shape == shape
        return

    def rebuilt(a):
        w, v = linalg.eigh(symmetric(a), UPLO)
        return (v * w[..., None, :]) @ v.swapaxes(-1, -2) if a.ndim == 2 else v * v

    vectors = linalg.eigh(array(x, "float64"), UPLO)[1].asnumpy()
    assert np.allclose(vectors * values[..., None, :] @ np.swapaxes(vectors, -1, -2), x)
    check(rebuilt, x if len(shape) == 2 else vectors**2, x)
    one_triangle = np.tril(x) if UPLO != "U" else np.triu(x)
    assert np.allclose(linalg.eigvalsh(array(one_triangle, "float64"), UPLO).asnumpy(), values)


@pytest.mark.parametrize("shape", SQUARE + EMPTY)
def test_eig(shape):
    x = real_eigenvalues(shape) if 0 not in shape else np.ones(shape)
    w, v = np.linalg.eig(x)
    check(lambda a: linalg.eig(a)[0], w, x)
    check(linalg.eigvals, w, x)
    signs = np.sign((v * linalg.eig(array(x, "float64"))[1].asnumpy()).sum(-2, keepdims=True))
    check(lambda a: linalg.eig(a)[1] * linalg.eig(a)[1], v * signs * v * signs, x)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64"])
def test_integers_are_converted(dtype):
    x = array([[1, 0], [0, 1]], dtype)
    for name in ("det", "inv", "norm", "cholesky", "eigvals", "eigvalsh", "pinv", "cond", "qr"):
        result = outputs_of(getattr(linalg, name)(x))[0]
        assert result.dtype == "float32" and np.allclose(abs(result.asnumpy()).max(), 1, atol=0.5)


@pytest.mark.parametrize(
    "shape",
    [(3, 3), (3, 5), (5, 3), (1, 2), (2, 3, 4), (2, 1, 4, 3), (0, 1), (1, 0), (0, 3, 3), (3, 0, 0)],
)
def test_svd(shape):
    x = rectangular(shape)
    left, values, right = np.linalg.svd(x, full_matrices=False)
    check(lambda a: linalg.svd(a)[1], values, x)
    ours = [y.asnumpy() for y in linalg.svd(array(x, "float64"))]
    assert [y.shape for y in ours] == [left.shape, values.shape, right.shape]
    assert np.allclose(ours[0] * ours[1][..., None, :] @ ours[2], x)
    for rows in (np.swapaxes(ours[0], -1, -2), ours[2]):
        assert np.allclose(rows @ np.swapaxes(rows, -1, -2), np.eye(rows.shape[-2]))

    def squares(a):  # independent of the signs of the vectors
        u, s, v = linalg.svd(a)
        return u * u, s, v * v

    check(squares, (left**2, values, right**2), x)


@pytest.mark.parametrize(
    "shape", [(3, 3), (5, 6), (6, 5), (2, 3, 4), (2, 1, 4, 3), (0, 2), (2, 0), (0, 2, 3)]
)
def test_pinv(shape):
    x = rectangular(shape)
    check(linalg.pinv, np.linalg.pinv(x), x)


def test_pinv_with_cutoffs():
    x = rectangular((2, 3, 4, 3))
    cutoffs = np.array([0.1, 0.5, 0.9])
    for rcond in (0.5, cutoffs, np.array([[0.2], [0.7]])):
        given = rcond if np.isscalar(rcond) else array(rcond)
        expected = np.linalg.pinv(x, rcond)
        assert np.allclose(linalg.pinv(array(x, "float64"), given).asnumpy(), expected)
    singular = np.array([[1.0, 2], [2, 4]])
    expected = np.linalg.pinv(singular)
    assert np.allclose(linalg.pinv(array(singular), 1e-5).asnumpy(), expected, atol=1e-5)
    x = definite((2, 3, 3)) - 2.1 * np.eye(3)
    check(lambda a: linalg.pinv((a + a.swapaxes(-1, -2)) / 2, hermitian=True), np.linalg.inv(x), x)


@pytest.mark.parametrize(
    "a, b",
    [
        ((3, 3), (3,)),
        ((3, 3), (3, 2)),
        ((2, 3, 3), (2, 3)),
        ((2, 3, 3), (2, 3, 4)),
        ((2, 3, 3), (3,)),
        ((2, 3, 3), (3, 4)),
        ((3, 3), (5, 3, 2)),
        ((2, 1, 3, 3), (4, 3, 1)),
        ((0, 0), (0,)),
        ((0, 3, 3), (0, 3, 2)),
        ((3, 3), (3, 0)),
    ],
)
def test_solve(a, b):
    x, y = well(a) if 0 not in a else np.ones(a), rectangular(b)
    vectors = len(b) == 1 or b == a[:-1]
    expected = np.linalg.solve(x, y[..., None])[..., 0] if vectors else np.linalg.solve(x, y)
    check(linalg.solve, expected, x, y)


@pytest.mark.parametrize("shape, ind", [((4, 2, 2), 1), ((2, 3, 6), 2), ((2, 1, 2, 1), 2)])
def test_tensorinv(shape, ind):
    size = int(np.prod(shape[:ind]))
    x = well((size, size)).reshape(shape)
    check(lambda a: linalg.tensorinv(a, ind), np.linalg.tensorinv(x, ind), x)


@pytest.mark.parametrize(
    "a, b, axes",
    [
        ((4, 4), (4,), None),
        ((6, 2, 3), (6,), None),
        ((2, 3, 6), (6,), (0, 1)),
        ((3, 4, 2, 3, 2), (3, 4), None),
        ((2, 3, 3, 4, 2), (3, 4), (0, 2, -1)),
        ((1, 1, 1), (), None),
        ((1, 1), (1, 1, 1, 1, 1), None),
    ],
)
def test_tensorsolve(a, b, axes):
    size = int(np.prod(b))
    if axes is None:
        x = well((size, size)).reshape(a)
    else:
        moved = [i % len(a) for i in axes]
        order = [i for i in range(len(a)) if i not in moved] + moved
        x = well((size, size)).reshape([a[i] for i in order]).transpose(np.argsort(order))
    y = rectangular(b)
    expected = np.linalg.tensorsolve(x, y, axes and [i % len(a) for i in axes])
    check(lambda p, q: linalg.tensorsolve(p, q, axes), expected, x, y)


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 3), (2, 1, 3, 4), (4, 1)])
def test_qr(shape):
    x = rectangular(shape)
    q, r = (y.asnumpy() for y in linalg.qr(array(x, "float64")))
    assert np.allclose(q @ r, x) and np.allclose(np.triu(r), r)
    expected = np.linalg.qr(x)
    signs = np.sign((q * expected[0]).sum(-2, keepdims=True))
    expected = expected[0] * signs, expected[1] * np.swapaxes(signs, -1, -2)
    check(linalg.qr, expected, x)
    check(lambda a: linalg.qr(a, "r"), expected[1], x)
    assert linalg.qr(array(x), "complete")[0].shape == (*shape[:-1], shape[-2])


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    "shape, axis",
    [((4,), None), ((4,), 0), ((2, 3), 1), ((2, 3, 4), 1), ((2, 3, 4), -1), ((2, 0, 3), 2)],
)
@pytest.mark.parametrize("order", [None, 0, 1, 2, 3, 4, 0.5, -1, -2, -3.2, np.inf, -np.inf])
def test_norms_of_vectors(order, shape, axis, keepdims):
    x = rectangular(shape)
    expected = np.linalg.norm(x, order, axis, keepdims)
    check(lambda a: linalg.norm(a, order, axis, keepdims), expected, x)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    "shape, axis",
    [
        ((3, 4), None),
        ((4, 3), (1, 0)),
        ((2, 3, 4), (2, 1)),
        ((3, 2, 4, 5), (-1, 1)),
        ((3, 0, 4), (0, 2)),
    ],
)
@pytest.mark.parametrize("order", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_norms_of_matrices(order, shape, axis, keepdims):
    x = rectangular(shape)
    expected = np.linalg.norm(x, order, axis, keepdims)
    check(lambda a: linalg.norm(a, order, axis, keepdims), expected, x)


def test_norms_of_whole_arrays_and_names_of_orders():
    x = rectangular((2, 3, 4))
    check(linalg.norm, np.linalg.norm(x), x)
    check(lambda a: linalg.norm(a, keepdims=True), np.linalg.norm(x, keepdims=True), x)
    for text, order in (("inf", np.inf), ("-inf", -np.inf)):
        for axis in (1, (0, 2)):
            found = linalg.norm(array(x, "float64"), text, axis).asnumpy()
            assert np.allclose(found, np.linalg.norm(x, order, axis))
    assert linalg.norm(array(-3)).item() == 3
    assert linalg.norm(array([0] * 0)).item() == 0


@pytest.mark.parametrize("order", [None, 3, -2])
def test_norms_neither_overflow_nor_underflow(order):
    for dtype, size in itertools.product(["float32", "float64"], [1, -1]):
        scale = 10.0 ** (size * (30 if dtype == "float32" else 300))
        x = np.array([3.0, 4.0, 1.0])
        found = linalg.norm(array(x * scale, dtype), order).item()
        assert np.isclose(found / scale, np.linalg.norm(x, order), rtol=1e-5)
    assert linalg.norm(array([np.inf, 1])).item() == np.inf
    assert np.isnan(linalg.norm(array([np.nan, 1])).item())


@pytest.mark.parametrize("order", [None, 1, 2, 3, np.inf])
def test_gradients_of_norms_of_zeros_are_zero(order):
    x = array(np.array([[0, 0], [3, 4]]))
    x.attach_grad()
    with autograd.record():
        y = linalg.norm(x, order, axis=1)
    y.backward()
    assert y[0].item() == 0 and (x.grad[0].asnumpy() == 0).all()
    assert np.isfinite(x.grad.asnumpy()).all() and x.grad[1].asnumpy().any()


def test_cond_and_matrix_rank():
    x = rectangular((2, 3, 3))
    for order in (None, 2, -2, 1, np.inf, "fro"):
        check(lambda a, p=order: linalg.cond(a, p), np.linalg.cond(x, order), x)
    check(linalg.cond, np.linalg.cond(x[:, :2]), x[:, :2])
    x = np.stack([np.ones((3, 4)), np.eye(3, 4), np.zeros((3, 4))])
    ranks = linalg.matrix_rank(array(x))
    assert ranks.dtype == "int64" and ranks.asnumpy().tolist() == [1, 3, 0]
    assert linalg.matrix_rank(array(x), array([4, 0, 0])).asnumpy().tolist() == [0, 3, 0]
    assert linalg.matrix_rank(array(x[:, :, :3]), hermitian=True).asnumpy().tolist() == [1, 3, 0]
    assert linalg.matrix_rank(array([1, 0])).item() == 1
    assert linalg.matrix_rank(array([0, 0])).item() == 0


@pytest.mark.parametrize("power", [-3, -1, 0, 1, 2, 5])
def test_matrix_power(power):
    x = well((2, 3, 3))
    expected = np.linalg.matrix_power(x, power)
    check(lambda a: linalg.matrix_power(a, power), expected, x, gradient=power != 0)


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3), (3, 4)],
        [(2, 30), (30, 4), (4, 5)],
        [(3,), (3, 4), (4, 2), (2,)],
        [(9, 2), (2, 8), (8, 1), (1, 7), (7,)],
    ],
)
def test_multi_dot(shapes):
    inputs = [rectangular(shape) for shape in shapes]
    expected = np.linalg.multi_dot(inputs)
    check(lambda *arrays: linalg.multi_dot(arrays), expected, *inputs)
    out = array(np.zeros_like(expected))
    assert linalg.multi_dot([array(x) for x in inputs], out=out) is out
    assert np.allclose(out.asnumpy(), expected, rtol=1e-4, atol=1e-4)


def test_lstsq_is_that_of_numpy():
    a, b = rectangular((5, 3)), rectangular((5,))
    ours = linalg.lstsq(array(a, "float64"), array(b, "float64"), rcond=None)
    theirs = np.linalg.lstsq(a, b, rcond=None)
    assert np.allclose(ours[0].asnumpy(), theirs[0])
    x = array(a)
    x.attach_grad()
    with autograd.record(), pytest.raises(ValueError, match="lstsq"):
        linalg.lstsq(x * 2, array(b))


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda x: linalg.inv(x),
            r"inv: the matrices must be square, but a has .* \(2, 3\)",
        ),
        (lambda x: linalg.det(x), "square"),
        (lambda x: linalg.eigh(x), "square"),
        (lambda x: linalg.cholesky(x), "square"),
        (lambda x: linalg.matrix_power(x, 2), "square"),
        (lambda x: linalg.svd(x[0]), r"at least two dimensions, but has the shape \(3,\)"),
        (lambda x: linalg.eigvalsh(x[:, :2], "X"), "UPLO must be 'L' or 'U', got 'X'"),
        (lambda x: linalg.solve(x[:, :2], x[0]), r"a has the shape \(2, 2\) and b \(3,\)"),
        (lambda x: linalg.solve(x[:, :2], x.sum()), "solve: b must have"),
        (lambda x: linalg.tensorinv(x, 1), "ind is 1 and a has the shape"),
        (lambda x: linalg.tensorinv(x, 0), "ind is 0"),
        (lambda x: linalg.tensorsolve(x, x[0]), r"a has the shape \(2, 3\) and b \(3,\)"),
        (lambda x: linalg.tensorsolve(x, x[0], axes=[2]), "tensorsolve: axis 2 is out of range"),
        (lambda x: linalg.norm(x, 3), "ord must be None, 'fro'"),
        (lambda x: linalg.norm(x[0], "fro"), "a number for vectors, got 'fro'"),
        (lambda x: linalg.norm(x[None], 2), r"x has the shape \(1, 2, 3\)"),
        (lambda x: linalg.norm(x, 2, (0, 0)), "linalg.norm: axis .* lists an axis twice"),
        (lambda x: linalg.norm(x, 2, 2), "linalg.norm: axis 2 is out of range"),
        (lambda x: linalg.multi_dot([x]), "two or more matrices"),
        (lambda x: linalg.multi_dot([x, x]), "fitting sizes"),
    ],
)
def test_invalid_arguments_raise_value_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call(array(np.ones((2, 3))))


def test_arrays_of_nd_raise_type_errors():
    for values in (nd.ones((2, 2)), np.ones((2, 2)), [[1]]):
        for function in (linalg.norm, linalg.inv, linalg.svd):
            with pytest.raises(TypeError, match="must be an array of mx.np"):
                function(values)


@pytest.mark.parametrize(
    "function, message",
    [
        (linalg.inv, "matrix 1 is singular"),
        (lambda a: linalg.solve(a, a), "matrix 1 is singular"),
        (linalg.cholesky, "matrix 1 is not positive definite"),
    ],
)
def test_singular_matrices_raise_errors(function, message):
    x = array([[[1, 0], [0, 1]], [[1, 1], [1, 1]]])
    if function is linalg.cholesky:
        x = x - 1.5 * array([[[0, 0], [0, 0]], [[1, 0], [0, 1]]])
    with pytest.raises(mx.MXNetError, match=message):
        function(x).asnumpy()


def test_complex_eigenvalues_raise_errors():
    with pytest.raises(mx.MXNetError, match="complex"):
        linalg.eigvals(array([[0, 1], [-1, 0]])).asnumpy()


def test_determinant_of_singular_matrices():
    x = array([[1, 1], [1, 1]])
    sign, logarithm = linalg.slogdet(x)
    assert linalg.det(x).item() == sign.item() == 0 and logarithm.item() == -np.inf


def test_examples_run():
    names = types.SimpleNamespace(linalg=linalg, array=array)
    failures = []
    for name in linalg.__all__:
        text = inspect.getdoc(getattr(linalg, name))
        assert ">>>" in text or name == "lstsq", name
        test = doctest.DocTestParser().get_doctest(text, {"mx": mx, "np": names}, name, None, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            doctest.DocTestRunner(verbose=False).run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 3, 0), (4, 0, 0), (0, 0, 3)], ids=str)
def test_norms_and_ranks_of_empty_arrays_match_numpy(shape):
    x, values = mx.np.zeros(shape), np.zeros(shape)
    assert linalg.matrix_rank(x).tolist() == np.asarray(np.linalg.matrix_rank(values)).tolist()
    for order in (None, 1, 2, np.inf):
        wanted = np.asarray(np.linalg.norm(values, order, -1))
        assert linalg.norm(x, order, -1).tolist() == wanted.tolist()
        if len(shape) > 1:
            axes = (-1, 0)
            wanted = np.asarray(np.linalg.norm(values, order, axes))
            assert linalg.norm(x, order, axes).tolist() == wanted.tolist()
