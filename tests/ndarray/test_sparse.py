"""Sparse arrays: creation, methods and ops."""

import pickle
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, nd
from mpgluon.ndarray.sparse import CSRNDArray, RowSparseNDArray

VALUES = np.array([[0, 1, 0], [2, 0, -3], [0, 0, 0], [0, 0, 4]], "float32")
STYPES = ["row_sparse", "csr"]


def sparse(stype, values=VALUES, **kwargs):
    return nd.array(values, **kwargs).tostype(stype)


def same(array, expected):
    return np.array_equal(array.asnumpy(), expected, equal_nan=True)


@pytest.mark.parametrize("stype", STYPES)
def test_storage_conversions_keep_values(stype):
    x = sparse(stype)
    assert isinstance(x, nd.NDArray) and x.stype == stype
    assert type(x) is {"row_sparse": RowSparseNDArray, "csr": CSRNDArray}[stype]
    assert (x.shape, x.ndim, x.dtype, len(x), x.context) == ((4, 3), 2, np.float32, 4, mx.cpu(0))
    assert same(x, VALUES) and same(x.tostype("default"), VALUES) and same(x.tostype(stype), VALUES)
    assert np.array_equal(np.asarray(x), VALUES)
    assert x.tostype("default").stype == "default"
    with pytest.raises(ValueError, match="not supported"):
        x.tostype({"csr": "row_sparse", "row_sparse": "csr"}[stype])
    with pytest.raises(ValueError, match="unknown storage type"):
        nd.array(VALUES).tostype("rows")
    with pytest.raises(NotImplementedError):
        _ = x.size
    x.check_format()


def test_sparse_arrays_expose_their_parts():
    rows = sparse("row_sparse")
    assert rows.indices.asnumpy().tolist() == [0, 1, 3] and rows.indices.dtype == np.int64
    assert same(rows.data, VALUES[[0, 1, 3]])
    elements = sparse("csr")
    assert elements.data.asnumpy().tolist() == [1, 2, -3, 4]
    assert elements.indices.asnumpy().tolist() == [1, 0, 2, 2]
    assert elements.indptr.asnumpy().tolist() == [0, 1, 3, 3, 4]
    elements.data[:] = 0  # a copy
    assert same(elements, VALUES)


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0), (2, 3, 4)])
def test_row_sparse_supports_any_shape(shape):
    values = np.arange(np.prod(shape)).reshape(shape)
    assert same(sparse("row_sparse", values), values)
    assert same(nd.sparse.zeros("row_sparse", shape), np.zeros(shape))


@pytest.mark.parametrize("shape", [(3,), (1, 2, 3)])
def test_csr_requires_two_dimensions(shape):
    with pytest.raises(ValueError, match="two dimensions"):
        nd.ones(shape).tostype("csr")
    with pytest.raises(ValueError, match="two dimensions"):
        nd.sparse.zeros("csr", shape)


@pytest.mark.parametrize("stype", STYPES)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8"])
def test_sparse_arrays_keep_dtype_and_move_devices(stype, dtype):
    values = np.abs(VALUES).astype(dtype)
    x = nd.array(values, dtype=dtype).tostype(stype)
    assert x.dtype == np.dtype(dtype) and same(x, values)
    moved = x.as_in_context(mx.cpu(1))
    assert moved.context == mx.cpu(1) and moved.stype == stype and same(moved, values)
    assert moved.as_in_context(mx.cpu(1)) is moved
    cast = x.astype("float32")
    assert cast.dtype == np.float32 and cast.stype == stype and same(cast, values)
    assert x.astype(dtype, copy=False) is x and x.astype(dtype) is not x


@pytest.mark.parametrize("stype", STYPES)
def test_sparse_copies_and_assignments_keep_values(stype):
    x, y = sparse(stype), nd.zeros((4, 3), stype=stype)
    assert x.copyto(y) is y and same(y, VALUES)
    dense = nd.zeros((4, 3))
    assert x.copyto(dense) is dense and same(dense, VALUES)
    assert nd.array(2 * VALUES).copyto(y) is y and same(y, 2 * VALUES)
    dense[:] = y
    assert same(dense, 2 * VALUES)
    dense += x
    assert same(dense, 3 * VALUES)
    dense[1:3] = sparse(stype, VALUES[1:3])
    assert same(dense[1:3], VALUES[1:3])
    y[:] = x
    assert same(y, VALUES)
    y[:] = 3 * VALUES
    assert same(y, 3 * VALUES) and y.stype == stype
    y[:] = 0
    assert y.data.shape[0] == 0 and same(y, 0 * VALUES)
    with pytest.raises(TypeError, match="the whole array"):
        y[0] = 1
    with pytest.raises(ValueError, match="shape"):
        y[:] = sparse(stype, VALUES[:2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x.copyto(x)
    assert "itself" in str(caught[0].message)
    for copy in (x.copy(), pickle.loads(pickle.dumps(x)), nd.array(x)):
        assert copy is not x and copy.stype == stype and same(copy, VALUES)
    with pytest.raises(TypeError, match="from"):
        x.copyto(nd.zeros((4, 3), stype=STYPES[1 - STYPES.index(stype)]))


def test_number_assignment_fills_row_sparse_only():
    x = nd.zeros((2, 3), stype="row_sparse")
    x[:] = 2
    assert same(x, np.full((2, 3), 2))
    with pytest.raises(ValueError, match="only arrays"):
        nd.zeros((2, 3), stype="csr")[:] = 2


def test_csr_slicing_matches_dense():
    x = sparse("csr")
    for key in (slice(1, 3), slice(-1, None), slice(0, 0), slice(3, 1), slice(None)):
        assert x[key].stype == "csr" and same(x[key], VALUES[key])
    assert same(x[1], VALUES[1:2]) and same(x[-1], VALUES[3:])
    assert same(nd.slice(x, begin=(1, 1), end=(4, 3)), VALUES[1:4, 1:3])
    assert same(nd.slice(x, begin=(None, 1), end=(None, 2)), VALUES[:, 1:2])
    assert same(nd.slice(x, begin=0, end=4, step=2), VALUES[::2])
    with pytest.raises(IndexError):
        x[4]
    with pytest.raises(ValueError):
        x[0, 1]
    with pytest.raises(TypeError):
        sparse("row_sparse")[0]


def test_csr_matrix_accepts_valid_sources_and_refuses_invalid_ones():
    parts = [1, 2, -3, 4], [1, 0, 2, 2], [0, 1, 3, 3, 4]
    assert same(nd.sparse.csr_matrix(parts and tuple(parts), shape=(4, 3)), VALUES)
    assert nd.sparse.csr_matrix(tuple(parts)).shape == (4, 3)
    assert same(nd.sparse.csr_matrix(VALUES), VALUES)
    assert same(nd.sparse.csr_matrix(VALUES.tolist(), ctx=mx.cpu(1)), VALUES)
    assert same(nd.sparse.csr_matrix((2, 3)), np.zeros((2, 3)))
    coo = nd.sparse.csr_matrix(([1, 2, 3, 4], ([0, 1, 1, 1], [1, 0, 2, 2])), shape=(2, 3))
    assert same(coo, [[0, 1, 0], [2, 0, 7]])
    assert nd.sparse.csr_matrix(VALUES.astype("float64")).dtype == np.float64
    for wrong in (
        lambda: nd.sparse.csr_matrix((2, 3), shape=(3, 2)),
        lambda: nd.sparse.csr_matrix(VALUES, shape=(3, 4)),
        lambda: nd.sparse.csr_matrix(([], [], [0])),
        lambda: nd.sparse.csr_matrix(sparse("row_sparse")),
        lambda: nd.sparse.csr_matrix(([[1]], [[0]], [0, 1]), shape=(1, 1)),
    ):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(AssertionError):
        nd.sparse.array(nd.ones((2, 2)))


def test_row_sparse_array_accepts_valid_sources_and_refuses_invalid_ones():
    parts = [[1, 2], [3, 4]], [1, 3]
    x = nd.sparse.row_sparse_array(parts, shape=(5, 2))
    assert x.asnumpy().tolist() == [[0, 0], [1, 2], [0, 0], [3, 4], [0, 0]]
    assert nd.sparse.row_sparse_array(parts).shape == (4, 2)
    assert same(nd.sparse.row_sparse_array(VALUES), VALUES)
    assert same(nd.sparse.row_sparse_array(x), x.asnumpy())
    assert nd.sparse.row_sparse_array((2, 3, 4)).shape == (2, 3, 4)
    for wrong in (
        lambda: nd.sparse.row_sparse_array((2, 3), shape=(3, 2)),
        lambda: nd.sparse.row_sparse_array(([], [])),
        lambda: nd.sparse.row_sparse_array(sparse("csr")),
        lambda: nd.sparse.row_sparse_array(([1, 2], [0, 1]), shape=(4, 2)),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_scipy_matrices_convert_both_ways():
    scipy = pytest.importorskip("scipy.sparse")
    matrix = scipy.random(6, 7, 0.4, format="coo", dtype="float32")
    for make in (nd.array, nd.sparse.array, nd.sparse.csr_matrix):
        x = make(matrix)
        assert x.stype == "csr" and same(x, matrix.toarray())
    assert (x.asscipy() != matrix.tocsr()).nnz == 0


@pytest.mark.parametrize(
    "data, indices, indptr",
    [
        ([7, 8, 9], [0, 2, 1], [0, 5, 2, 3]),
        ([7, 8, 9], [2, 1, 1], [0, 2, 2, 3]),
        ([7, 8, 9], [1, 2, 1], [0, 2, 2, 4]),
        ([7, 8, 9], [0, 2, 1], [0, -2, 2, 3]),
        ([7, 8, 9], [0, 4, 1], [0, 2, 2, 3]),
        ([7, 8, 9], [0, 2], [0, 2, 2, 3]),
    ],
)
def test_check_format_detects_invalid_csr(data, indices, indptr):
    with pytest.raises(mx.MXNetError, match="check_format"):
        nd.sparse.csr_matrix((data, indices, indptr), shape=(3, 4)).check_format()
    nd.sparse.csr_matrix(([7, 8, 9], [1, 3, 0], [0, 2, 2, 3]), shape=(3, 4)).check_format()


@pytest.mark.parametrize("indices", [[1, 4], [1, 0], [1, -2], [1]])
def test_check_format_detects_invalid_row_sparse(indices):
    with pytest.raises(mx.MXNetError, match="check_format"):
        nd.sparse.row_sparse_array(([[1, 2], [3, 4]], indices), shape=(3, 2)).check_format()


@pytest.mark.parametrize("data, indices", [((2, 5), 2), ((2, 1), 2), ((2, 3, 1), 2), ((2,), 2)])
def test_row_sparse_data_of_wrong_shape_is_refused(data, indices):
    with pytest.raises(ValueError, match="do not fit an array of shape .3, 3"):
        nd.sparse.row_sparse_array((np.ones(data), np.arange(indices)), shape=(3, 3))


UNARY = (
    "abs sign rint ceil floor trunc fix round square sqrt cbrt log1p expm1 sin tan arcsin arctan "
    "degrees radians sinh tanh arcsinh arctanh relu"
).split()


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("stype", STYPES)
def test_zero_preserving_functions_keep_storage_type(name, stype):
    x = sparse(stype, VALUES / 8)
    result = getattr(nd, name)(x)
    assert result.stype == stype and same(result, getattr(nd, name)(nd.array(VALUES / 8)).asnumpy())
    method = getattr(x, name)()
    assert method.stype == stype and same(method, result.asnumpy())


@pytest.mark.parametrize("stype", STYPES)
def test_other_functions_return_dense_or_write_out(stype):
    x = sparse(stype)
    assert x.cos().stype == "default" and same(x.cos(), nd.cos(nd.array(VALUES)).asnumpy())
    assert x.clip(-1, 1).stype == stype and same(x.clip(-1, 1), VALUES.clip(-1, 1))
    assert x.clip(1, 2).stype == "default" and same(x.clip(1, 2), VALUES.clip(1, 2))
    assert same(x.T, VALUES.T) and same(nd.softmax(x), nd.softmax(nd.array(VALUES)).asnumpy())
    assert x.zeros_like().stype == stype and same(nd.ones_like(x), np.ones((4, 3)))
    out = nd.zeros((4, 3), stype=stype)
    assert nd.cos(x, out=out) is out and same(out, x.cos().asnumpy())
    dense = nd.zeros((4, 3))
    nd.sqrt(x.abs(), out=dense)
    assert same(dense, np.sqrt(np.abs(VALUES)))


@pytest.mark.parametrize("stype", STYPES)
@pytest.mark.parametrize(
    "function, keeps",
    [
        (lambda x: x * 2, True),
        (lambda x: 2 * x, True),
        (lambda x: x / 2, True),
        (lambda x: -x, True),
        (lambda x: abs(x), True),
        (lambda x: x + 0, True),
        (lambda x: x - 0, True),
        (lambda x: x + 1, False),
        (lambda x: 1 - x, False),
        (lambda x: x**2, True),
        (lambda x: 2**x, False),
        (lambda x: x > 1, True),
        (lambda x: x > -1, False),
        (lambda x: 1 < x, True),
        (lambda x: x == 0, False),
        (lambda x: x != 0, True),
        (lambda x: x * np.float32(3), True),
    ],
)
def test_sparse_with_number_keeps_storage_type_if_zero_preserving(stype, function, keeps):
    result = function(sparse(stype))
    assert result.stype == (stype if keeps else "default")
    assert same(result, function(VALUES))


OTHER = np.array([[5, 0, 0], [0, 0, 2], [1, 0, 0], [0, 0, 3]], "float32")
OPERATORS = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "<": lambda x, y: x < y,
    "==": lambda x, y: x == y,
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("left", [*STYPES, "default"])
@pytest.mark.parametrize("right", [*STYPES, "default"])
def test_binary_operators_match_dense_for_every_storage_pair(operator, left, right):
    function = OPERATORS[operator]
    result = function(nd.array(VALUES).tostype(left), nd.array(OTHER).tostype(right))
    assert same(result, function(VALUES, OTHER))
    if left == right and operator in "+-*":
        assert result.stype == left
        result.check_format() if left != "default" else None


@pytest.mark.parametrize("stype", STYPES)
def test_in_place_operators_keep_sparse_storage(stype):
    x = kept = sparse(stype)
    x += sparse(stype, OTHER)
    x *= 2
    x -= nd.array(OTHER)
    assert x is kept and x.stype == stype and same(x, 2 * VALUES + OTHER)
    x /= 2
    assert same(x, VALUES + OTHER / 2)


@pytest.mark.parametrize("other", [[[2, 3, 4]], [2, 3, 4], [[1], [2], [3], [4]], [[2]], [2]])
def test_csr_broadcasting_matches_numpy(other):
    x, other = sparse("csr"), np.array(other, "float32")
    for function in (lambda x, y: x * y, lambda x, y: x / y):
        assert function(x, nd.array(other)).stype == "csr"
        assert same(function(x, nd.array(other)), function(VALUES, other))
    assert same(x + nd.array(other), VALUES + other)
    assert same(nd.array(other) - x, other - VALUES)
    assert same(nd.sparse.multiply(nd.array(other), x), VALUES * other)


@pytest.mark.parametrize("stype", STYPES)
def test_sparse_reductions_match_dense(stype):
    x = sparse(stype)
    for options in ({}, {"axis": 0}, {"axis": 1}, {"axis": 1, "keepdims": True}):
        assert np.allclose(x.sum(**options).asnumpy(), nd.array(VALUES).sum(**options).asnumpy())
        assert np.allclose(x.mean(**options).asnumpy(), nd.array(VALUES).mean(**options).asnumpy())
    assert np.allclose(x.norm().asscalar(), np.linalg.norm(VALUES))
    assert nd.zeros((2, 2), stype=stype).norm().asscalar() == 0
    total = nd.add_n(x, x, sparse(stype, OTHER))
    assert total.stype == stype and same(total, 2 * VALUES + OTHER)
    assert same(nd.add_n(x, nd.ones((4, 3)), x), 2 * VALUES + 1)


def test_csr_concat_take_and_where_match_dense():
    x = sparse("csr")
    joined = nd.concat(x, nd.zeros((2, 3), stype="csr"), x, dim=0)
    assert joined.stype == "csr" and same(
        joined, np.concatenate([VALUES, np.zeros((2, 3)), VALUES])
    )
    taken = nd.take(x, nd.array([3, 1, 1, 7, -1]))
    assert taken.stype == "csr" and same(taken, VALUES[[3, 1, 1, 3, 0]])
    assert same(nd.take(x, nd.array([-1, 5]), mode="wrap"), VALUES[[3, 1]])
    with pytest.raises(IndexError):
        nd.take(x, nd.array([4]), mode="raise")
    assert nd.contrib.getnnz(x).asscalar() == 4
    assert nd.contrib.getnnz(x, axis=1).asnumpy().tolist() == [1, 2, 0, 1]
    chosen = nd.where(x, nd.ones((4, 3)), nd.zeros((4, 3)))
    assert same(chosen, VALUES != 0)


def test_positional_out_accepts_sparse_and_dense():
    x = nd.array([[1, 0], [-2, 3]])
    sparse, out, kept = x.tostype("csr"), nd.zeros((2, 2)), nd.zeros((2, 2)).tostype("csr")
    assert nd.relu(sparse, out) is out and out.asnumpy().tolist() == [[1, 0], [0, 3]]
    assert sparse.square(kept) is kept and kept.asnumpy().tolist() == [[1, 0], [4, 9]]
    assert nd.abs(x, kept) is kept and kept.asnumpy().tolist() == [[1, 0], [2, 3]]
    assert nd.zeros_like(sparse, out) is out and out.asnumpy().tolist() == [[0, 0], [0, 0]]
    with pytest.raises(TypeError, match="at most 3 arguments"):
        nd.relu(sparse, None, None, None)


def test_integer_csr_mean_does_not_overflow():
    x = nd.full((3, 2), 200, dtype="uint8").tostype("csr")
    assert x.mean(axis=0).asnumpy().tolist() == [200, 200]


def test_csr_without_columns_is_supported():
    x = nd.sparse.zeros("csr", (3, 0))
    assert x.asnumpy().shape == (3, 0) and (x + x).asnumpy().shape == (3, 0)
    assert nd.dot(nd.ones((2, 3)), x).asnumpy().shape == (2, 0)


def test_retain_keeps_selected_rows():
    x = sparse("row_sparse")
    for indices in (nd.array([1, 2]), nd.array([2, 1], dtype="int64")):
        kept = nd.sparse.retain(x, indices)
        assert kept.indices.asnumpy().tolist() == [1, 2]
        assert same(kept, VALUES * [[0], [1], [0], [0]])
    assert same(x.retain(nd.array([0])), VALUES * [[1], [0], [0], [0]])
    with pytest.raises(mx.MXNetError, match="row_sparse"):
        nd.sparse.retain(nd.ones((2, 2)), nd.array([0]))


DENSE = np.arange(12, dtype="float32").reshape(4, 3)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_dot_with_csr_on_the_right_returns_csr(transpose_b):
    x, y = nd.array([[1, 2], [0, 3]]), nd.array([[0, 4], [5, 6]])
    expected = nd.dot(x, y, transpose_b=transpose_b).asnumpy()
    for forward_stype, stype in ((None, "csr"), ("csr", "csr"), ("default", "default")):
        product = nd.dot(x, y.tostype("csr"), transpose_b=transpose_b, forward_stype=forward_stype)
        assert product.stype == stype
        np.testing.assert_array_equal(product.asnumpy(), expected)


@pytest.mark.parametrize("right", ["default", "row_sparse"])
@pytest.mark.parametrize("ctx", [mx.cpu(0), mx.cpu(1)])
def test_csr_dot_products_match_dense(right, ctx):
    x = sparse("csr", ctx=ctx)
    y = nd.array(DENSE, ctx=ctx).tostype(right)
    assert same(nd.dot(x, y.tostype("default").T), VALUES @ DENSE.T)
    product = nd.dot(x, y, transpose_a=True)
    assert product.stype == "row_sparse" and same(product, VALUES.T @ DENSE)
    product = nd.dot(x, y, transpose_a=True, forward_stype="default")
    assert product.stype == "default" and same(product, VALUES.T @ DENSE)
    assert same(nd.dot(x, nd.array(DENSE, ctx=ctx), transpose_b=True), VALUES @ DENSE.T)
    product = nd.dot(nd.array(DENSE.T, ctx=ctx), x)
    assert product.stype == "csr" and same(product, DENSE.T @ VALUES)
    assert same(nd.dot(nd.array(DENSE, ctx=ctx), x, transpose_b=True), DENSE @ VALUES.T)
    assert same(x @ nd.array(DENSE.T, ctx=ctx), VALUES @ DENSE.T)
    assert same(nd.dot(x, nd.array([1, 2, 3], ctx=ctx)), VALUES @ [1, 2, 3])
    with pytest.raises(ValueError, match="columns"):
        nd.dot(x, nd.ones((4, 3), ctx=ctx))


def test_gradients_pass_through_sparse_arrays():
    x = nd.array(VALUES)
    x.attach_grad()
    for stype in STYPES:
        with mx.autograd.record():
            y = (x.tostype(stype) * 3).tostype("default").sum()
        y.backward()
        assert same(x.grad, np.full((4, 3), 3))
    weight, data = nd.array(DENSE.T), sparse("csr")
    weight.attach_grad()
    with mx.autograd.record():
        y = (nd.dot(data, weight) * nd.array(DENSE @ DENSE.T)).sum()
    y.backward()
    assert same(weight.grad, VALUES.T @ (DENSE @ DENSE.T))


def test_sparse_arrays_do_not_expose_dense_buffers():
    x = sparse("csr")
    with pytest.raises(BufferError):
        memoryview(x)
    assert nd.NDArray.asnumpy(x).shape == (0,)  # the core array is empty
    assert repr(x) == "\n<CSRNDArray 4x3 @cpu(0)>"


@pytest.mark.parametrize("stype", [*STYPES, "default"])
@pytest.mark.parametrize("grad_stype", [None, *STYPES, "default"])
def test_attach_grad_honors_storage_type(stype, grad_stype):
    x = nd.array(VALUES).tostype(stype)
    x.attach_grad(stype=grad_stype)
    assert x.grad.stype == (grad_stype or stype) and same(x.grad, np.zeros((4, 3)))
    assert x.detach().stype == stype
    for factor in (2, 3):
        with mx.autograd.record():
            y = (x * x * factor).sum() + x.tostype("default").sum()
        y.backward()
        assert same(x.grad, 2 * factor * VALUES + 1)
    x[:] = nd.array(OTHER)
    with mx.autograd.record():
        y = nd.dot(x, nd.ones((3, 2)))
    y.backward()
    assert same(x.grad, np.full((4, 3), 2))
    x.attach_grad("add")
    for _ in range(2):
        with mx.autograd.record():
            y = x * 3
        y.backward(nd.ones((4, 3)).tostype("csr"))
    assert same(x.grad, np.full((4, 3), 6)) and x.grad_req == "add"


def test_mark_variables_accepts_sparse_gradients():
    x, y = sparse("csr"), nd.array(OTHER)
    gradients = [nd.zeros((4, 3), stype="csr"), nd.zeros((4, 3), stype="row_sparse")]
    mx.autograd.mark_variables([x, y], gradients)
    with mx.autograd.record():
        z = x * y
    mx.autograd.backward([z])
    assert same(gradients[0], OTHER) and same(gradients[1], VALUES)
    with pytest.raises(ValueError):
        mx.autograd.mark_variables([x, y], gradients[:1])


def test_random_sparse_arrays_follow_their_options():
    rows, (values, indices) = mx.test_utils.rand_sparse_ndarray(
        (5, 2), "row_sparse", rsp_indices=[3, 1], data_init=2, modifier_func=lambda x: x + 1
    )
    assert rows.indices.asnumpy().tolist() == indices.tolist() == [1, 3]
    assert (values == 3).all() and rows.asnumpy().sum() == 12
    csr = mx.test_utils.rand_ndarray((4, 16), "csr", density=0.5, distribution="powerlaw")
    assert np.diff(csr.indptr.asnumpy()).tolist() == [1, 2, 4, 8]
    csr = mx.test_utils.rand_ndarray((50, 40), "csr", density=0.3, dtype="float64")
    csr.check_format()
    assert csr.dtype == np.float64 and 0.2 < csr.data.size / 2000 < 0.4
    with pytest.raises(ValueError, match="powerlaw"):
        mx.test_utils.rand_ndarray((4, 4), "row_sparse", distribution="powerlaw")


@pytest.mark.parametrize("stype", ["row_sparse", "csr"])
def test_sparse_maximum_minimum_and_hypot_match_numpy(stype):
    a, b = (mx.test_utils.rand_ndarray((7, 5), stype, density=0.4) - 0.5 * n for n in (0, 0))
    a, b = (x.tostype(stype) * 2 for x in (a, -b))
    for op in ("maximum", "minimum", "hypot"):
        result = getattr(nd._internal, f"_{op}")(a, b)
        assert result.stype == stype
        np.testing.assert_allclose(
            result.asnumpy(), getattr(np, op)(a.asnumpy(), b.asnumpy()), rtol=1e-6
        )
    if stype == "csr":
        product = nd.elemwise_mul(a, nd.full((7, 5), 3))
        assert product.stype == "csr" and (product.asnumpy() == a.asnumpy() * 3).all()


ROWS = (np.ones((2, 3), "float32"), [1, 9])
CSR = {
    "column": ([1.0, 2.0], [0, 7], [0, 1, 2]),
    "negative": ([1.0, 2.0], [0, -7], [0, 1, 2]),
    "pointers": ([1.0, 2.0], [0, 1], [0, 2, 1]),
    "end": ([1.0, 2.0], [0, 1], [0, 5, 2]),
}


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.asnumpy(),
        lambda x: x.tostype("default"),
        lambda x: x.check_format(),
        lambda x: x * 2 + x,
        lambda x: nd.dot(x, nd.ones((3, 2)), transpose_a=x.stype == "csr" and x.shape[0] == 3),
        lambda x: nd.exp(x),
    ],
)
def test_out_of_range_indices_are_reported_on_use(use):
    """Errors are raised on use and nothing is truncated."""
    for parts in CSR.values():
        with pytest.raises(mx.MXNetError, match="out of range|must increase"):
            use(nd.sparse.csr_matrix(parts, shape=(2, 3)))
    with pytest.raises(mx.MXNetError, match="index 1 is row 9, which is out of range"):
        use(nd.sparse.row_sparse_array(ROWS, shape=(5, 3)))
    with pytest.raises(mx.MXNetError, match="2 rows, but 1 indices|2 rows, but indices of shape"):
        use(nd.sparse.row_sparse_array((ROWS[0], [1]), shape=(5, 3)))


def test_retain_returns_all_requested_rows():
    x = nd.sparse.row_sparse_array(([[1, 2], [3, 4]], [1, 3]), shape=(5, 2))
    for wanted in ([3, 0, 1], [3], [0, 4], [], [1, 1]):
        found = nd.sparse.retain(x, nd.array(wanted))
        assert found.indices.asnumpy().tolist() == sorted(set(wanted))
        dense = x.asnumpy()
        dense[[i for i in range(5) if i not in wanted]] = 0
        np.testing.assert_array_equal(found.asnumpy(), dense)
    for wanted in ([5], [-1, 2]):
        with pytest.raises(IndexError, match="row (5|-1) is out of range .0 to 4"):
            nd.sparse.retain(x, nd.array(wanted))


def test_row_sparse_pull_of_missing_row_is_refused():
    store = mx.kv.create("local")
    store.init("a", nd.ones((4, 2)).tostype("row_sparse"))
    with pytest.raises(IndexError, match="row 9 is out of range"):
        store.row_sparse_pull(
            "a", out=nd.zeros((4, 2), stype="row_sparse"), row_ids=nd.array([1, 9])
        )


BINARY = [
    f"{kind}_{what}" for kind in ("elemwise", "broadcast") for what in ("add", "sub", "mul", "div")
]


@pytest.mark.parametrize("name", [*BINARY, "broadcast_maximum", "broadcast_hypot", "dot", "add_n"])
def test_errors_name_the_op_that_was_called(name):
    kinds = {
        f"{dtype} {size} {stype}": nd.ones((size, size), dtype=dtype).tostype(stype)
        for dtype in ("float32", "float64")
        for size in (2, 3)
        for stype in ("default", "csr", "row_sparse")
    }
    for a, left in kinds.items():
        for b, right in kinds.items():
            if left.dtype == right.dtype and left.shape == right.shape:
                continue
            with pytest.raises(mx.MXNetError) as caught:
                getattr(nd, name)(left, right)
            assert str(caught.value).startswith(f"{name}: "), (a, b)


def test_csr_dot_with_zero_dimensional_array_is_refused():
    x = nd.ones((2, 2)).tostype("csr")
    for transpose in (False, True):
        with pytest.raises(
            ValueError, match="dot: a csr matrix cannot be multiplied by a 0-d array"
        ):
            nd.dot(x, nd.array(3.0), transpose_a=transpose)


def test_csr_axis_out_of_range_is_refused():
    x = nd.ones((2, 2)).tostype("csr")
    with pytest.raises(mx.MXNetError, match="sum: axis 5 is out of range"):
        nd.sum(x, axis=5)
    with pytest.raises(mx.MXNetError, match="slice: begin has 3 values"):
        nd.slice(x, begin=(0, 0, 0), end=(1, 1, 1))


STATES = {"sgd_update": [], "sgd_mom_update": ["mom"], "adam_update": ["mean", "var"]}


@pytest.mark.parametrize("name", [*STATES, "ftrl_update"])
@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_row_sparse_updates_are_lazy(name, stype):
    """Rows missing from the gradient keep their weights and states.

    The other rows match an update by the dense gradient.
    """
    values, kept = np.arange(1, 7, dtype="float32").reshape(3, 2), [1]
    options = {"lr": 0.1, "wd": 0.5, **({"momentum": 0.9} if "mom" in name else {})}
    sparse = nd.array([[1, 1], [0, 0], [2, 3]]).tostype("row_sparse")
    states = STATES.get(name, ["z", "n"])

    def run(grad, stored, **more):
        weight, *given = [nd.array(values + i).tostype(stored) for i in range(1 + len(states))]
        result = getattr(nd, name)(weight, grad, *given, out=weight, **options, **more)
        assert result is weight and weight.stype == stored
        return [array.asnumpy() for array in (weight, *given)]

    found = run(sparse, stype)
    whole = run(sparse.tostype("default"), "default")
    lazy = name in STATES or stype == "row_sparse"
    for i, (some, every) in enumerate(zip(found, whole)):
        expected = every.copy()
        if lazy:
            expected[kept] = (values + i)[kept]
        np.testing.assert_allclose(some, expected, rtol=1e-6)
    if name in STATES:
        for some, every in zip(run(sparse, stype, lazy_update=False), whole):
            np.testing.assert_allclose(some, every, rtol=1e-6)


@pytest.mark.parametrize("how", ["rebound", "marked again", "of a function", "marked by the user"])
def test_sparse_gradients_outlive_their_variables(how):
    x = nd.array([[0, 1, 0], [2, 0, 3]]).tostype("csr")

    def gradient():
        weight = nd.ones((3, 2))
        if how == "marked by the user":
            own = nd.zeros((3, 2), stype="row_sparse")
            mx.autograd.mark_variables([weight], [own])
        else:
            weight.attach_grad(stype="row_sparse")
            own = weight.grad
        with mx.autograd.record():
            y = nd.dot(x, weight)
        y.backward()
        if how == "rebound":
            weight = weight * 2
        if how == "marked again":
            weight.attach_grad(stype="row_sparse")
            with mx.autograd.record():
                y = nd.dot(x, weight) * 3
            y.backward()
            assert weight.grad.asnumpy().tolist() == [[6, 6], [3, 3], [9, 9]]
        return own

    assert gradient().asnumpy().tolist() == [[2, 2], [1, 1], [3, 3]]


def test_ops_are_identical_in_all_namespaces():
    """Regression test: `nd.sparse.cast_storage` was the dense op."""
    shared = [name for name in _core.ops() if name in nd.__all__]
    assert len(shared) > 200
    for space in (nd.op, nd.sparse):
        strange = [n for n in shared if getattr(space, n, None) not in (None, getattr(nd, n))]
        assert strange == []
    assert mx.sym.op.UpSampling is mx.sym.sparse.UpSampling is mx.sym.UpSampling
    x = nd.array([[0, 1], [0, 2]])
    assert nd.sparse.cast_storage(x, "csr").stype == "csr"


SPARSE = {
    "product": lambda F, x, s: x * s,
    "dot": lambda F, x, s: F.dot(s, x),
    "sum": lambda F, x, s: s + x,
    "dense": lambda F, x, s: x + s.tostype("default"),
    "returned": lambda F, x, s: s,
    "cast": lambda F, x, s: x.tostype(s.stype),
}


@pytest.mark.parametrize("way", [{}, {"pipeline": mx.parallel.Pipeline(1)}])
@pytest.mark.parametrize("stype", ["row_sparse", "csr"])
@pytest.mark.parametrize("name", SPARSE)
def test_captured_sparse_array_is_refused_in_a_hybridized_block(name, stype, way):
    class Keeping(mx.gluon.HybridBlock):
        def __init__(self, kept):
            super().__init__()
            self.kept = kept

        def hybrid_forward(self, F, x):
            return SPARSE[name](F, x, self.kept)

    dense, x = nd.array([[0, 1], [0, 3]]), nd.ones((2, 2))
    net = Keeping(dense.tostype(stype))
    expected = net(x).asnumpy()
    net.hybridize(**way)
    with pytest.raises(mx.MXNetError, match=rf"a {stype} array .* x.tostype\('default'\)"):
        net(x)
    if name != "cast":
        net = Keeping(dense)
        net.hybridize(**way)
        np.testing.assert_array_equal(net(x).copy().asnumpy(), expected)
