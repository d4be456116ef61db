"""The type mx.np.ndarray: text, pickles, operators and exchange with other libraries."""

import copy
import operator
import pickle
import threading

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd
from support.functions import compiled

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def array(values, dtype=None, ctx=None):
    values = np.asarray(values)
    return nd.array(values, ctx, dtype or values.dtype).as_np_ndarray()


TEXTS = {
    "array([0., 1.])": ([0, 1], "float32"),
    "array([ True, False])": ([True, False], "bool"),
    "array([1., 2.], dtype=float64)": ([1, 2], "float64"),
    "array([1, 2], dtype=int64)": ([1, 2], "int64"),
    "array([1, 2], dtype=uint8)": ([1, 2], "uint8"),
    "array([1. , 2.5], dtype=bfloat16)": ([1, 2.5], "bfloat16"),
    "array(3.)": (3, "float32"),
    "array(3, dtype=int32)": (3, "int32"),
    "array([], shape=(0, 3))": (np.zeros((0, 3)), "float32"),
    "array([], dtype=float64)": ([], "float64"),
    "array([[1., 2.],\n       [3., 4.]])": ([[1, 2], [3, 4]], "float32"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_repr_is_numpys_text_without_float32(text):
    values, dtype = TEXTS[text]
    x = array(values, dtype)
    assert repr(x) == text
    assert str(x) == str(x.asnumpy())


def test_text_follows_numpys_print_options():
    x = array(np.arange(2000, dtype="float32") / 3)
    with np.printoptions(precision=2, threshold=5, edgeitems=1):
        assert repr(x).startswith("array([  0.  , ..., 666.33]")
        assert str(x) == "[  0.   ... 666.33]"


def test_long_text_ends_without_dtype():
    x = array(np.arange(10, dtype="float32") * 1234.5678)
    expected = repr(x.asnumpy())
    assert "\n      dtype" in expected  # NumPy writes the dtype on a line of its own
    assert repr(x) == expected[: expected.rindex(",")] + ")"


def test_format_accepts_numbers_only():
    x = array(3.14159, "float32")
    assert f"{x:.2f}" == "3.14" and f"{array([1.0]):}" == "[1.]" and f"{x}" == "3.14159"
    with pytest.raises(TypeError, match="format"):
        f"{array([1.0]):.2f}"


def test_traced_arrays_have_a_repr():
    texts = []
    _core.CachedOp(lambda x: texts.append((repr(x), str(x), f"{x}")) or [x])(array(np.ones(2)))
    assert all("ndarray 2 float64 @cpu(0), traced by hybridize()" in t for t in texts[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 1), (3,)])
def test_copies_and_pickles_keep_everything(dtype, shape):
    for ctx in (mx.cpu(), mx.cpu(1)):
        x = array(np.ones(shape), dtype, ctx)
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            y = pickle.loads(pickle.dumps(x, protocol))
            assert type(y) is type(x) and y.context == ctx and y.dtype == x.dtype
            assert y.shape == shape and np.array_equal(y.asnumpy(), x.asnumpy())
        for y in (copy.copy(x), copy.deepcopy(x), x.copy()):
            y[...] = 0
            assert type(y) is type(x) and y.context == ctx and y.dtype == x.dtype
            assert y.shape == shape and (x.asnumpy() == 1).all()


def test_names_of_nd_are_hidden():
    x = array(np.ones(2, "float32"))
    for name, way in {"exp": "np.exp(x)", "asscalar": "x.item()", "softmax": "npx.softmax"}.items():
        assert not hasattr(x, name) and name not in dir(x) and hasattr(x.as_nd_ndarray(), name)
        with pytest.raises(AttributeError, match="use ") as caught:
            getattr(x, name)
        assert way in str(caught.value)
    assert {"sum", "reshape_view", "as_in_ctx", "item", "T"} <= {*dir(x)}


def test_arrays_have_no_hash():
    for x in (array(np.ones(())), array(np.ones(2))):
        with pytest.raises(TypeError, match="unhashable"):
            hash(x)
        assert x in [x] or x.size > 1


def test_options_of_numpy_without_effect_raise():
    x = array(np.ones(2, "float32"))
    assert x.astype("float32", copy=False) is x and x.astype("float32") is not x
    for act in (
        lambda: x.copy(order="F"),
        lambda: x.astype("int32", casting="safe"),
        lambda: x.astype("int32", order="F"),
        lambda: x.flatten(order="F"),
        lambda: x.ravel(order="F"),
    ):
        with pytest.raises(NotImplementedError):
            act()


def test_device_is_the_context():
    x = array(np.ones(2, "float32"), ctx=mx.cpu(1))
    assert x.device == x.ctx == x.context == mx.cpu(1)
    assert x.to_device(mx.cpu()).device == x.as_in_ctx(mx.cpu()).ctx == mx.cpu()


@pytest.mark.parametrize("operator", ["and", "or", "xor"])
@pytest.mark.parametrize("other", ["array", "numpy", "bool"])
def test_bools_are_combined_by_operators(operator, other):
    act = getattr(np, f"logical_{operator}")
    a, b = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
    if other == "bool":
        b = True
    given = {"array": array, "numpy": lambda v: v, "bool": lambda v: v}[other](b)
    symbol = {"and": "&", "or": "|", "xor": "^"}[operator]
    x = array(a)
    result = eval(f"x {symbol} given")
    assert result.dtype == bool and np.array_equal(result.asnumpy(), act(a, b))
    if other != "numpy":
        swapped = eval(f"given {symbol} x")
        assert np.array_equal(swapped.asnumpy(), act(a, b))
    same = x
    same = {"and": same.__iand__, "or": same.__ior__, "xor": same.__ixor__}[operator](given)
    assert same is x and np.array_equal(x.asnumpy(), act(a, b))
    assert np.array_equal((~x).asnumpy(), ~act(a, b))


def test_floats_have_no_bits():
    x = array(np.ones(2, "float32"))
    for act in (lambda: x & x, lambda: x | True, lambda: ~x, lambda: x ^ 1):
        with pytest.raises(TypeError, match="expects integers or bools"):
            act()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "float16", "float64"])
def test_floor_division_and_remainder_match_numpy(dtype):
    a = np.array([7, 100, 0, 5, 120], dtype)
    b = np.array([2, 7, 3, 5, 11], dtype)
    pairs = [(a, b), (a, 3), (100, b), (a[0], b), (a[:, None], b)]
    if dtype != "uint8":
        pairs += [(-a, b), (a, -b), (-a, -3), (-7, b)]
    for p, q in pairs:
        given = [array(v) if isinstance(v, np.ndarray) else v for v in (p, q)]
        if isinstance(p, np.generic):
            given[0] = array(p)
        quotients = given[0] // given[1], mx.np.floor_divide(*given)
        for result, expected in zip((*quotients, *divmod(*given)), (p // q, p // q, *divmod(p, q))):
            assert result.dtype == np.dtype(dtype)
            assert np.array_equal(result.asnumpy(), expected), (p, q)
    x = array(np.array([2**60 + 1], "int64"))
    assert (x // array(np.array([1], "int64"))).item() == 2**60 + 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_floor_divide_of_extreme_integers_agrees_with_numpy(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    random = np.random.default_rng(0).integers(low, high, 30, dtype)
    values = np.array([low, low + 1, 0, 1, 2, 3, 4, high - 1, high, *random], dtype)
    divisors = [1, 2, 3, 7, 100] + ([-1, -2, -3, -100] if low else [])
    x = array(values)
    with np.errstate(all="ignore"):
        assert ((x[:, None] // x).asnumpy() == values[:, None] // values).all()
        traced = _core.CachedOp(lambda x: [x[:, None] // x])(x)[0]
        assert (traced.asnumpy() == values[:, None] // values).all()
        for number in divisors:
            assert ((x // number).asnumpy() == values // number).all()
            assert ((number // x).asnumpy() == number // values).all()


def test_floor_divide_writes_to_out_and_is_called_by_numpy():
    x, out = array([7.0, -7]), array([0.0, 0])
    assert mx.np.floor_divide(x, 2, out=out) is out and out.tolist() == [3, -4]
    assert np.floor_divide(x, 2).tolist() == [3, -4] and mx.np.floor_divide(7, 2) == 3
    counts = array(np.array([7, -7], "int32"))
    for divisor in (np.array([2, 3]), np.array(2), np.int64(2)):
        result = counts // divisor
        assert result.dtype == ("int64" if np.ndim(divisor) else "int32")
        assert result.tolist() == (counts.asnumpy() // divisor).tolist()
    target = array(np.zeros(2, "int32"))
    assert mx.np.floor_divide(counts, 2, target) is target and target.tolist() == [3, -4]


def test_operands_of_numpy_are_converted():
    x = array(np.array([1, 2], "float32"))
    for result in (x + np.ones(2), np.float64(1) + x, x * np.array(2.0), 3 - x):
        assert type(result) is type(x) and result.dtype == np.float32 and result.shape == (2,)
    assert (x + np.ones((3, 1))).shape == (3, 2)


BOUNDS = [2**7, 2**8, 2**31, 2**53, 2**63, 2**70]
NUMBERS = [0, 1, 1.5, 1e30, -1e30, np.inf, -np.inf, np.nan, np.int64(2**53 + 1), np.float64(1e20)]
NUMBERS += [np.array(2**53 + 1), np.array(2**63 - 1), np.array(2**63, "uint64")]
NUMBERS += [sign * bound + step for bound in BOUNDS for sign in (1, -1) for step in (-1, 0, 1)]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64"])
def test_comparisons_with_numbers_beyond_the_dtype_are_exact(dtype):
    values = [0, 1] if dtype == "bool" else [0, 1, np.iinfo(dtype).min, np.iinfo(dtype).max]
    if dtype == "int64":
        values += [2**53, 2**53 + 1, 2**53 + 2, -(2**53) - 1]
    x = array(np.array(values, dtype))
    for number in NUMBERS:
        exact = number.item() if isinstance(number, (np.generic, np.ndarray)) else number
        for compare in COMPARISONS:
            for result in (compare(x, number), compiled(lambda a: [compare(a, number)])(x)[0]):
                assert result.dtype == bool
                expected = [compare(value, exact) for value in values]
                assert result.asnumpy().tolist() == expected, (compare, number)
            expected = [compare(exact, value) for value in values]
            assert compare(number, x).asnumpy().tolist() == expected, (compare, number)


IN_PLACE = [
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.imod,
    operator.ipow,
    operator.ifloordiv,
    operator.imatmul,
    operator.iand,
    operator.ior,
    operator.ixor,
]


@pytest.mark.parametrize("operation", IN_PLACE)
def test_operators_in_place_write_into_the_array(operation):
    name = operation.__name__
    dtype = "int32" if name in ("iand", "ior", "ixor") else "float32"
    values = np.array([[7, 8], [3, 2]], dtype)
    others = [values.T.copy()] if name == "imatmul" else [values.T.copy(), values[:1].copy(), 2]
    for other in others:
        for wrap in (array, lambda value: value):  # an array of mx.np, or of NumPy
            x = same = array(values)
            view, expected = x[1], values.copy()
            x = operation(x, wrap(other) if isinstance(other, np.ndarray) else other)
            expected = operation(expected, other)
            assert x is same and x.dtype == dtype
            np.testing.assert_allclose(x.asnumpy(), expected)
            np.testing.assert_allclose(view.asnumpy(), expected[1])
    x = array(values)
    if dtype == "float32":
        with pytest.raises((TypeError, mx.MXNetError), match="float64"):
            operation(x, array(values.astype("float64")))
        x.attach_grad()
        with autograd.record():
            y = x * 2
            with pytest.raises(mx.MXNetError, match="part of the computation that autograd is rec"):
                operation(y, array(values))
    with pytest.raises((ValueError, mx.MXNetError)):
        operation(array(values[:1]), array(np.stack([values, values])))
    assert operation(x, 2) is x if name != "imatmul" else True
    with pytest.raises(TypeError, match="unsupported operand"):
        operation(x, "2")


def test_results_in_place_keep_the_dtype():
    x, y = array(np.array([4, 6], "int32")), array(np.array([4, 6], "float32"))
    for act in (
        lambda: x.__itruediv__(2),
        lambda: x.__iadd__(y),
        lambda: y.__iadd__(y.astype("float64")),
    ):
        with pytest.raises(mx.MXNetError, match="dtype|int32|float32"):
            act()
    z = x
    z += 1
    assert z is x and x.asnumpy().tolist() == [5, 7] and x.dtype == np.int32
    assert y.asnumpy().tolist() == [4, 6]


def test_memory_is_shared_by_protocols():
    x = array(np.arange(6, dtype="float32").reshape(2, 3))
    view = np.asarray(memoryview(x))
    y = nd.from_dlpack(x).as_np_ndarray()
    z = nd.from_dlpack(x.to_dlpack_for_write()).as_np_ndarray()
    z[0, 0] = 9
    x.wait_to_read()
    mx.nd.waitall()
    assert view[0, 0] == y[0, 0].item() == x.item(0) == np.from_dlpack(x)[0, 0] == 9
    scalar = array(np.float32(5))
    assert nd.from_dlpack(scalar).shape == np.asarray(memoryview(scalar)).shape == ()
    assert np.array(x, dtype="int64").tolist() == x.tolist() == [[9, 1, 2], [3, 4, 5]]


def test_threads_use_arrays_at_the_same_time():
    x, results = array(np.arange(1000, dtype="float32")), []

    def work(number):
        y = x
        for _ in range(50):
            y = (y[y >= 0][::-1] + number)[::-1]
        results.append((number, y.asnumpy()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for number, values in results:
        assert np.array_equal(values, np.arange(1000) + 50 * number)


def test_nd_array_of_an_np_array_is_of_nd():
    x = array(np.ones((), "float32"))
    assert type(nd.array(x)) is nd.NDArray and nd.array(x).shape == ()
    assert type(x.as_nd_ndarray().as_np_ndarray()) is type(x)


@pytest.mark.parametrize("kind", ["np", "nd", "csr"])
@pytest.mark.parametrize("values", [[1, 1], (1, 1), []], ids=str)
def test_comparison_with_a_list_raises(kind, values):
    """As in MXNet. Without the error, Python would compare the identities."""
    x = nd.ones((2, 2))
    x = {"np": x.as_np_ndarray(), "nd": x, "csr": x.tostype("csr")}[kind]
    name = "np" if kind == "np" else "nd"
    for compare in (lambda: x == values, lambda: x != values, lambda: values == x):
        with pytest.raises(TypeError, match=f"an array cannot be compared .* with {name}.array"):
            compare()
    assert (x == None) is False and (x != "text") is True  # noqa: E711
