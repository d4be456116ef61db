"""Every function of mx.np and mx.npx computes the same in a file as in the block, also for other
numbers of rows."""

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import gluon, np, npx
from mpgluon.numpy import _fallback
from support.functions import Calling

# Functions whose results have shapes that depend on values, or that files cannot contain
SKIPPED = {
    *[
        "np." + name
        for name in "delete empty empty_like nonzero unique where linalg.cholesky".split()
    ],
    *["npx.constraint_check", "npx.nonzero"],
}
# Functions of one or two matrices whose results depend on the number of rows in other ways: they
# read each row on its own, select elements of the sorted array, compare the numbers of rows and
# columns, or have a result without axes for one row.
FIXED = {
    "cov",
    "corrcoef",
    *["np." + name for name in "column_stack concatenate corrcoef cov dstack hstack".split()],
    *["np." + name for name in "median percentile quantile row_stack stack vstack".split()],
    *["np.linalg." + name for name in "cond matrix_rank pinv qr svd".split()],
}


def matrix(rows, seed=0, columns=3):
    draw = onp.random.default_rng(seed)
    return np.array(draw.uniform(0.1, 0.9, (rows, columns)), dtype="float32")


def indices(x):
    return np.argsort(x, axis=-1)


def add_slice(part, total):
    return np.tanh(part) * 2, np.tanh(part) + total


def stack(x):
    """Returns a matrix for each row of a matrix. No axes of its values can be exchanged."""
    return x[:, :, None] + np.sin(2 * x[:, None])


# Calls of functions that a call with one or two arrays does not test
CALLS = {
    "inner": lambda x: np.inner(x, np.cos(x)),
    "inner of a vector": lambda x: np.inner(x, np.cos(x[0])),
    "tensordot of rows": lambda x: np.tensordot(x, np.cos(x), axes=([0], [0])),
    "tensordot of columns": lambda x: np.tensordot(x, np.cos(x), axes=([1], [1])),
    "tensordot of stacks": lambda x: np.tensordot(x[:, None], np.cos(x)[None], axes=([2], [2])),
    "dot of a stack": lambda x: np.dot(x, stack(x)),
    "dot of two stacks": lambda x: np.dot(stack(x), np.cos(stack(x))),
    "dot of 4 dimensions": lambda x: np.dot(x, stack(x)[:, None]),
    "dot of a vector and a stack": lambda x: np.dot(x[0], stack(x)),
    **{
        f"tensordot of axes {i} and {j}": lambda x, axes=([i], [j]): np.tensordot(
            stack(x), np.cos(stack(x)), axes=axes
        )
        for i, j in [(0, 0), (1, 1), (1, 2), (2, 1), (2, 2)]
    },
    "tensordot of two axes": lambda x: np.tensordot(stack(x), stack(x), axes=([0, 1], [0, 2])),
    "einsum of a stack": lambda x: np.einsum("ab,cbd->acd", x, stack(x)),
    "einsum of two stacks": lambda x: np.einsum("abc,dce->abde", stack(x), stack(x)),
    "einsum": lambda x: np.einsum("ij,kj->ik", x, np.cos(x)),
    "einsum of stacks": lambda x: np.einsum("bid,bjd->bij", x[:, None], np.cos(x)[:, None]),
    "cov": lambda x: np.cov(x),
    "corrcoef": lambda x: np.corrcoef(x),
    "reshape": lambda x: np.reshape(x[:, None], (x.shape[0], -1)),
    "reshape to its own shape": lambda x: (x * 2).reshape(x.shape),
    "split axes": lambda x: x.reshape(x.shape[0], 1, x.shape[1], 1),
    "npx.reshape": lambda x: npx.reshape(x, (x.shape[0], -1)),
    "where": lambda x: np.where(x[:, :1] > 0.5, x, 0.0),
    "where of three shapes": lambda x: np.where(x[:, :1] > 0.5, x[0], x[:, 1:2]),
    "where of a constant": lambda x: np.where(np.tril(np.ones((3, 3))) > 0, x[:, None], -1e9),
    "tril": lambda x: np.tril(x[:, None] * x[:, :, None]),
    "masked_softmax": lambda x: npx.masked_softmax(x[:, None], x[:, None, :] > 0.5),
    "masked_softmax of a mask": lambda x: npx.masked_softmax(x, np.array([[1.0, 0, 1]]) > 0),
    "take_along_axis": lambda x: np.take_along_axis(x, indices(x), -1),
    "take_along_axis of one": lambda x: np.take_along_axis(x, indices(x)[:, :1], 1),
    "index": lambda x: x[:, np.array([0, 2], dtype="int32")],
    "index of two axes": lambda x: x[:, :, None][:, np.array([0, 2], dtype="int32"), :],
    "index of rows": lambda x: x[np.array([0, 0], dtype="int32")],
    "broadcast_to": lambda x: np.broadcast_to(x.mean(-1, keepdims=True), x.shape),
    "broadcast_to of a row": lambda x: np.broadcast_to(x[0], x.shape),
    "broadcast_to of new axes": lambda x: np.broadcast_to(x, (2, *x.shape)),
    "broadcast_to of new rows": lambda x: np.broadcast_to(x[0], (x.shape[0], 2, x.shape[1])),
    "median": lambda x: np.median(x[:, None], axis=-1),
    "median of an axis": lambda x: np.median(x[:, None], axis=1),
    "positions": lambda x: x + np.arange(x.shape[0])[:, None],
    "full": lambda x: np.concatenate([x, np.full((x.shape[0], 1), 2.0)], axis=1),
    "foreach": lambda x: npx.foreach(add_slice, x.swapaxes(0, 1), np.zeros_like(x[:, 0])),
    "foreach of mx.nd": lambda x: mx.nd.contrib.foreach(add_slice, x, np.zeros_like(x[0])),
    "while_loop": lambda x: npx.while_loop(
        lambda i, h: i < 5, lambda i, h: (h, [i + 1, h * 2]), [x.sum() * 0, x], max_iterations=4
    ),
    "cond": lambda x: npx.cond(x.sum() > 4, lambda: x * 2, lambda: np.exp(x)),
}


def listed(results):
    return list(results) if isinstance(results, (list, tuple)) else [results]


def flat(results):
    """Returns the arrays of nested lists."""
    if not isinstance(results, (list, tuple)):
        return [results]
    return [array for item in results for array in flat(item)]


def matches(loaded, block, arrays):
    """Compares the results of an imported block and the original."""
    for found, expected in zip(flat(loaded(*arrays)), flat(block(*arrays)), strict=True):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        onp.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), 1e-5, 1e-5)


def check(name, function, arrays, folder):
    block = Calling(function)
    block.hybridize()
    block(*arrays)
    symbol, params = block.export(str(folder / "net"))
    names = ["data"] if len(arrays) == 1 else ["data0", "data1"]
    if not {*names} <= {*mx.sym.load(symbol).list_arguments()}:
        return  # the function ignores the values of an array
    loaded = gluon.SymbolBlock.imports(symbol, names, params)
    matches(loaded, block, arrays)
    for rows in (5, 1):
        others = [matrix(rows, seed) for seed in range(len(arrays))]
        try:
            block(*others)
        except Exception:  # the function rejects the shape
            continue
        if name in FIXED:
            with pytest.raises(mx.MXNetError, match="data0?_axis0_must_be_3"):
                matches(loaded, block, others)
        else:
            matches(loaded, block, others)


@pytest.fixture(autouse=True)
def _np_mode():
    npx.set_np()
    yield
    npx.reset_np()


@pytest.mark.parametrize("name", CALLS)
def test_calls_compute_the_same_in_a_file(tmp_path, name):
    check(name, CALLS[name], [matrix(3)], tmp_path)


class Loops(gluon.HybridBlock):
    """The loops and branches of F.npx."""

    def hybrid_forward(self, F, x):
        parts, total = F.npx.foreach(add_slice_of(F), x, F.np.sum(x, axis=0))
        _, (_, last) = F.npx.while_loop(
            lambda i, h: i < 3, lambda i, h: (h, [i + 1, h * 2]), [F.np.sum(x) * 0, total], 4
        )
        return parts, F.npx.cond(F.np.sum(x) > 3, lambda: last, lambda: total)


def add_slice_of(F):
    return lambda part, total: (F.np.tanh(part) * 2, F.np.tanh(part) + total)


def test_loops_of_npx_compute_the_same_in_a_file(tmp_path):
    block = Loops()
    block.hybridize()
    block(matrix(3))
    loaded = gluon.SymbolBlock.imports(block.export(str(tmp_path / "net"))[0], "data")
    for rows in (3, 5):
        matches(loaded, block, [matrix(rows)])


def test_loop_over_shapes_names_the_form_that_can_be_exported(tmp_path):
    block = Calling(lambda x: npx.foreach(add_slice, x, np.zeros(x.shape[1]))[0])
    block.hybridize()
    block(matrix(3))
    with pytest.raises(
        NotImplementedError, match=r"hybrid_forward\(self, F, x\), F.contrib.foreach"
    ):
        block.export(str(tmp_path / "net"))


def functions():
    """Yields (name, function) of mx.np, mx.np.linalg and mx.npx."""
    for path, space in (("np", np), ("np.linalg", np.linalg), ("npx", npx)):
        for name in sorted(set(space.__all__) if hasattr(space, "__all__") else dir(space)):
            function = getattr(space, name)
            if name[0] != "_" and callable(function) and not isinstance(function, type):
                if name not in _fallback.__all__ and f"{path}.{name}" not in SKIPPED:
                    yield f"{path}.{name}", function


@pytest.mark.parametrize("count", [1, 2])
def test_functions_of_matrices_compute_the_same_in_a_file(tmp_path, count):
    tested = set()
    for name, function in functions():
        arrays = [matrix(3, seed) for seed in range(count)]
        try:
            results = listed(function(*arrays))
            block = Calling(function)
            block.hybridize()
            block(*arrays)
        except Exception:  # the function needs other arguments, or cannot be hybridized
            continue
        if results and all(isinstance(result, np.ndarray) for result in results):
            check(name, function, arrays, tmp_path)
            tested.add(name)
    assert len(tested) > 50


# Results whose shape for size 1 does not follow from the trace
SINGLE = {
    "squeeze": lambda x: np.atleast_1d(np.squeeze(x)),
    "branch": lambda x: np.pad(x, 1) if all(size > 2 for size in x.shape) else x,
}


@pytest.mark.parametrize("name", SINGLE)
def test_size_1_is_refused_if_the_shape_of_the_result_differs(tmp_path, name):
    block = Calling(SINGLE[name])
    block.hybridize()
    block(np.ones(4))
    loaded = gluon.SymbolBlock.imports(block.export(str(tmp_path / "net"))[0], "data")
    assert loaded(np.ones(4)).shape == block(np.ones(4)).shape
    with pytest.raises(mx.MXNetError, match="data_axis0_must_be_4"):
        loaded(np.ones(1)).asnumpy()


EMPTY = {
    "new axes": (lambda x: x[None, ..., None], (0,)),
    "roll": (lambda x: np.roll(x, 1), (4, 0)),
    "ediff1d": (np.ediff1d, (0,)),
    "take": (lambda x: np.take(x, np.array([], dtype="int32")), (0,)),
    "take_along_axis": (lambda x: np.take_along_axis(x, indices(x), -1), (0, 3)),
    "take_along_axis of nothing": (lambda x: np.take_along_axis(x, indices(x), -1), (3, 0)),
    "atleast_2d": (np.atleast_2d, (0,)),
    "branch": (lambda x: x.reshape(x.shape[0], -1) if x.shape[0] else x * 2, (0, 3)),
    "reshape": (lambda x: x.reshape(x.shape), (0, 3)),
    "broadcast_to": (lambda x: np.broadcast_to(x, (2, *x.shape)), (0, 3)),
    "where": (lambda x: np.where(x[:, :1] > 0, x, 0.0), (0, 3)),
    "tril": (np.tril, (2, 0, 3)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_blocks_traced_with_empty_arrays_compute_the_same_or_name_the_axis(tmp_path, name):
    function, shape = EMPTY[name]
    block = Calling(function)
    block.hybridize()
    block(np.zeros(shape))
    symbol, params = block.export(str(tmp_path / "net"))
    loaded = gluon.SymbolBlock.imports(symbol, "data", params)
    matches(loaded, block, [np.zeros(shape)])
    for size in (3, 1):
        x = np.ones(tuple([each or size for each in shape]))
        try:
            found = loaded(x).asnumpy()
        except mx.MXNetError as error:
            assert "_must_be_0" in str(error)
        else:
            onp.testing.assert_array_equal(found, block(x).asnumpy())


@pytest.mark.parametrize("reads_shape", [False, True])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32"])
def test_inverted_bits_are_exported(tmp_path, dtype, reads_shape):
    block = Calling(lambda x: ~x.reshape(x.shape) if reads_shape else ~x)
    block.hybridize()
    x = np.array([0, 1, 1], dtype=dtype)
    block(x)
    loaded = gluon.SymbolBlock.imports(block.export(str(tmp_path / "net"))[0], "data")
    assert loaded(x).dtype == x.dtype
    onp.testing.assert_array_equal(loaded(x).asnumpy(), (~x).asnumpy())
