"""NumPy's dialect of ops: results without dimensions, bools, promotion, and the kinds of arrays."""

import operator

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
WIDTH = {"bool": 0, "uint8": 1, "int8": 1, "int32": 4, "int64": 8}
WIDTH |= {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def array(values, dtype="float32"):
    return nd.array(values, dtype=dtype).as_np_ndarray()


def name(x):
    return _core.dtype_name(x.dtype)


def common(a, b):
    """Returns the dtype of the sum of two arrays."""
    if "bool" in (a, b):
        return b if a == "bool" else a
    if ("float" in a) != ("float" in b):
        return a if "float" in a else b
    if WIDTH[a] != WIDTH[b]:
        return max(a, b, key=WIDTH.get)
    return a if a == b else "float32" if "float" in a else "int32"


@pytest.mark.parametrize("a", DTYPES)
@pytest.mark.parametrize("b", DTYPES)
def test_arithmetic_promotes_dtypes(a, b):
    x, y = array([3, 2, 3], a), array([1, 0, 1], b)
    wanted = common(a, b)
    assert name(x + y) == name(x * y) == wanted
    assert name(x / y) == (wanted if "float" in wanted else "float32")
    if wanted == "bool":
        assert (x + y).asnumpy().all()
        assert (x * y).asnumpy().tolist() == [True, False, True]
        with pytest.raises(mx.MXNetError, match="bool is not supported"):
            x - y
    else:
        values = x.astype("float32").asnumpy(), y.astype("float32").asnumpy()
        assert np.array_equal((x - y).astype("float32").asnumpy(), values[0] - values[1])


def test_gradients_of_promoted_operands_have_their_dtypes():
    x, y = array([1, 2], "float16"), array([3, 4], "float64")
    x.attach_grad()
    y.attach_grad()
    for function in (lambda a, b: [a * b + a], _core.CachedOp(lambda a, b: [a * b + a])):
        with autograd.record():
            z = function(x, y)[0]
        z.backward()
        assert name(z) == "float64"
        assert name(x.grad) == "float16" and x.grad.asnumpy().tolist() == [4, 5]
        assert name(y.grad) == "float64" and y.grad.asnumpy().tolist() == [1, 2]


REAL = "sqrt cbrt exp expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh "
REAL += "arcsinh arccosh arctanh degrees radians deg2rad rad2deg"


@pytest.mark.parametrize("name_", REAL.split())
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:divide:RuntimeWarning")
def test_functions_with_fractions_return_float32_for_integers(name_, dtype):
    values = np.array([0, 1, 2, 3, 100], dtype)
    wanted = getattr(np, name_)(values.astype("float32"))
    x, function = array(values, dtype), getattr(mx.np, name_)
    symbol = getattr(mx.sym.np, name_)(mx.sym.var("x", dtype=dtype).as_np_ndarray())
    assert symbol.infer_type(x=dtype)[1] == [np.float32]
    compiled = _core.CachedOp(lambda a: [function(a)])(x)[0]
    for result in (function(x), getattr(np, name_)(x), compiled, symbol.eval(x=x)[0]):
        assert name(result) == "float32"
        np.testing.assert_allclose(result.asnumpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name_", ["sigmoid", "erf", "erfinv", "gamma", "gammaln", "digamma"])
def test_extensions_with_fractions_return_float32_for_integers(name_):
    x, function = array([0, 1, 3], "int32"), getattr(mx.npx, name_)
    assert np.array_equal(
        function(x).asnumpy(), function(x.astype("float32")).asnumpy(), equal_nan=True
    )


def test_hypot_promotes():
    x, y = array([3, 1], "int32"), array([4, 1], "int64")
    for result in (mx.np.hypot(x, y), mx.np.hypot(x, 4.0)):
        assert name(result) == "float32" and result.asnumpy()[0] == 5
    assert name(mx.np.hypot(x, array([4, 1], "float16"))) == "float16"


@pytest.mark.parametrize("operator_", ["add", "sub", "mul", "truediv", "pow", "mod"])
@pytest.mark.parametrize("number", [2.5, np.float32(2.5), np.array(2.5)])
def test_bools_and_floats_are_float32(operator_, number):
    values, function = np.array([True, False]), getattr(operator, operator_)
    x = array(values, "bool")
    for args, wanted in (
        ((x, number), function(values, 2.5)),
        ((number, x), function(2.5, values.astype(float)) if operator_ in "add sub mul" else None),
    ):
        if wanted is not None:
            result = function(*args)
            assert name(result) == "float32" and np.array_equal(
                result.asnumpy(), wanted.astype("float32")
            )
    assert name(function(x, 2)) == ("float32" if operator_ == "truediv" else "int64")
    assert (x == 0.5).asnumpy().tolist() == [False, False]
    assert (x < 0.5).asnumpy().tolist() == [False, True]


CONDITIONS = {
    "equal": lambda F, x: x == 2,
    "greater_equal": lambda F, x: x >= x[::-1].copy() if F is np else x >= F.reverse(x, axis=0),
    "isnan": lambda F, x: np.isnan(x) if F is np else F.contrib.isnan(x),
    "logical_not": lambda F, x: F.logical_not(x),
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("size", [1, 3, 2000])
def test_conditions_are_bool(condition, dtype, size):
    values = (np.arange(size) % 4).astype(dtype)
    x = array(values, dtype)
    function = CONDITIONS[condition]
    expected = function(np, values)
    for result in (function(nd, x), _core.CachedOp(lambda a: [function(nd, a)])(x)[0]):
        assert name(result) == "bool" and type(result) is type(x)
        assert np.array_equal(result.asnumpy(), expected)


def test_integers_are_compared_with_fractions():
    x = array([1, 2], "int32")
    assert (x < 1.5).asnumpy().tolist() == [True, False]
    assert (x == 1.5).asnumpy().tolist() == [False, False]


def gradient_of_bools(kind, compiled, request, function):
    x = nd.array([True, False], dtype="bool")
    x = x.as_np_ndarray() if kind == "np" else x
    x.attach_grad(request)
    call = _core.CachedOp(lambda a: [function(a)]) if compiled else lambda a: [function(a)]
    for _ in range(2):
        with autograd.record():
            y = call(x)[0]
        y.backward()
    return x.grad


@pytest.mark.parametrize("kind", ["nd", "np"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("request_", ["write", "add"])
def test_gradients_of_bools_are_added(kind, compiled, request_):
    for function in (lambda x: x.reshape((1, 2)), lambda x: nd.stack(x, x)):
        grad = gradient_of_bools(kind, compiled, request_, function)
        assert name(grad) == "bool" and grad.asnumpy().tolist() == [True, True]


def test_out_of_another_dtype_raises_type_error():
    with pytest.raises(TypeError, match=r"the result is bool \(2,\), but out is float32 \(2,\)"):
        mx.np.isnan(array([1, 2]), out=array([0, 0]))
    with pytest.raises(mx.MXNetError, match=r"out is float32 \(3,\)"):
        mx.np.exp(array([1, 2]), out=array([0, 0, 0]))


@pytest.mark.parametrize("compiled", [False, True])
def test_composed_reductions_have_no_dimensions(compiled):
    def function(x):
        square_sum = _core.get_op("_square_sum")
        few = nd.moments(x, axes=1) + [square_sum(x, axis=1)]
        kept = nd.moments(x, axes=(0, 1), keepdims=True)
        return nd.moments(x, axes=(0, 1)) + [square_sum(x)] + few + kept

    x = array([[1, 2, 3]])
    shapes = [()] * 3 + [(1,)] * 3 + [(1, 1)] * 2
    for given in (x, x.as_nd_ndarray()):
        results = _core.CachedOp(function)(given) if compiled else function(given)
        wanted = shapes if given is x else [shape or (1,) for shape in shapes]
        assert [r.shape for r in results] == wanted
        assert [float(r) for r in results[:3]] == pytest.approx([2, 2 / 3, 14])


@pytest.mark.parametrize("compiled", [False, True])
def test_reductions_have_no_dimensions(compiled):
    def function(x):
        return [nd.sum(x), nd.max(x), nd.dot(x[0], x[0]), nd.argmax(x, axis=1)[0], x[1, 2]]

    x = array([[1, 2, 3], [4, 5, 6]])
    results = _core.CachedOp(function)(x) if compiled else function(x)
    assert [r.shape for r in results] == [()] * 5
    assert [float(r) for r in results] == [21, 6, 14, 2, 6]
    x = x.as_nd_ndarray()
    results = _core.CachedOp(function)(x) if compiled else function(x)
    assert [r.shape for r in results] == [(1,)] * 5


def test_kinds_share_memory_and_gradient():
    x = array([1, 2])
    x.attach_grad()
    y = x.as_nd_ndarray()
    assert type(y) is nd.NDArray and y.as_np_ndarray().shape == (2,)
    with autograd.record():
        z = (y * y).sum()
    z.backward()
    assert z.shape == (1,) and type(x.grad) is type(x)
    assert x.grad.asnumpy().tolist() == y.grad.asnumpy().tolist() == [2, 4]
    y += 1
    assert x.asnumpy().tolist() == [2, 3]


def test_mixed_kinds_raise():
    x, y = array([1, 2]), nd.ones(2)
    with pytest.raises(TypeError, match=r"rhs is an array of mx.nd.*as_np_ndarray\(\)"):
        x + y
    with pytest.raises(TypeError, match=r"rhs is an array of mx.np.*as_nd_ndarray\(\)"):
        y * x
    with pytest.raises(TypeError, match=r"function is of mx.np"):
        _core.get_op("_npi_exp")(y)


def test_compiled_calls_of_both_kinds_differ():
    op = _core.CachedOp(lambda x: [nd.sum(x), x])
    x = array([1, 2])
    for _ in range(2):
        for given in (x, x.as_nd_ndarray()):
            total, same = op(given)
            assert type(total) is type(same) is type(given)
            assert total.shape == (() if given is x else (1,))


ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "numpy.add": np.add,
    "numpy.multiply": np.multiply,
    "numpy.matmul": np.matmul,
    "mx.np.add": lambda a, b: mx.np.add(a, b),
}
NUMPYS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
INTEGERS = ["bool", "uint8", "int8", "int32", "int64"]


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("ours", INTEGERS)
@pytest.mark.parametrize("theirs", NUMPYS)
def test_numpy_integers_promote_as_arrays_do(name, ours, theirs):
    """The result is as if the NumPy array were converted first."""
    if "bool" in (ours, theirs) and name in ("-", "%", "//", "**", "@", "numpy.matmul", "/"):
        return
    wider = {"int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
    function = ARITHMETIC[name]
    x = np.array([1, 2, 7], "int64").astype(ours)
    most = 1 if theirs == "bool" else min(np.iinfo(theirs).max, 2**40)
    y = np.array([3, 1, most], "int64").astype(theirs)
    if name == "**":
        y //= most if most > 3 else 1
    converted = array(y, wider.get(theirs, theirs))
    for given in ((array(x, ours), y), (y, array(x, ours))):
        if name.startswith("mx.") and given[0] is y:
            continue
        wanted = function(*(converted if v is y else v for v in given))
        result = function(*given)
        assert type(result) is mx.np.ndarray and result.dtype == wanted.dtype
        assert np.array_equal(result.asnumpy(), wanted.asnumpy())


@pytest.mark.parametrize("name", ["+", "*", "/", "//", "numpy.add", "numpy.multiply"])
@pytest.mark.parametrize("ours", ["int32", "float16", "float64"])
def test_numpy_floats_on_both_sides_give_equal_dtypes(name, ours):
    x, y = array([1, 2, 7], ours), np.array([3.5, 1, 2])
    wanted = "float32" if ours == "int32" else ours
    for args in ((x, y), (y, x)):
        result = ARITHMETIC[name](*args)
        assert type(result) is mx.np.ndarray and result.dtype == wanted


SAME_DTYPE = {
    "==": operator.eq,
    "<": operator.lt,
    "&": operator.and_,
    "maximum": lambda a, b: mx.np.maximum(a, b),
    "numpy.minimum": lambda a, b: np.minimum(a, b),
    "numpy.greater": lambda a, b: np.greater(a, b),
    "concatenate": lambda a, b: mx.np.concatenate([a, b]),
    "where": lambda a, b: mx.np.where(a > 1, a, b),
    "where, broadcast": lambda a, b: mx.np.where(a[:1] > 0, b, a),
    "numpy.where": lambda a, b: np.where(a > 1, a, b),
    "numpy.concatenate": lambda a, b: np.concatenate([a, b]),
    "+=": lambda a, b: operator.iadd(a.copy(), b),
}


@pytest.mark.parametrize("name", SAME_DTYPE)
@pytest.mark.parametrize("ours", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("theirs", ["int16", "uint16", "int64", "uint64"])
def test_numpy_integers_do_not_wrap(name, ours, theirs):
    """Functions that require equal dtypes raise an error for integers of NumPy that don't fit.
    Comparisons and bitwise operators then convert the array, and NumPy's functions compute with
    copies."""
    x, fits = np.array([1, 2, 7], ours), np.array([7, 2, 100], theirs)
    result = SAME_DTYPE[name](array(x, ours), fits)
    wanted = SAME_DTYPE[name](array(x, ours), array(fits, ours))
    assert result.dtype == wanted.dtype and np.array_equal(result.asnumpy(), wanted.asnumpy())
    most = np.iinfo(theirs).max
    if most <= np.iinfo(ours).max:
        return
    large = np.array([0, 0, most], theirs)
    if (name.startswith("numpy.") or name in ("==", "<", "&")) and theirs != "uint64":
        result = SAME_DTYPE[name](array(x, ours), large)
        assert np.array_equal(result.asnumpy(), SAME_DTYPE[name](x, large))
        return
    with pytest.raises((mx.MXNetError, OverflowError)):
        SAME_DTYPE[name](array(x, ours), large)


LARGE = 2**53 + 1
ROUNDED = {
    "arange": lambda x: mx.np.arange(LARGE, LARGE + 4, dtype="int64"),
    "arange-even": lambda x: mx.np.arange(LARGE - 1, LARGE + 1, dtype="int64"),
    "full": lambda x: mx.np.full((1,), LARGE, dtype="int64"),
    "full-numpy": lambda x: mx.np.full((1,), np.int64(LARGE), dtype="int64"),
    "full-out": lambda x: mx.np.full((2,), LARGE, out=x),
    "full_like": lambda x: mx.np.full_like(x, LARGE),
    "pad": lambda x: mx.np.pad(x, 1, constant_values=LARGE),
    "insert": lambda x: mx.np.insert(x, 0, LARGE),
    "clip": lambda x: mx.np.clip(x, 0, LARGE),
    "method clip": lambda x: x.clip(-LARGE, 0),
    "where": lambda x: mx.np.where(x > 0, x, LARGE),
    "maximum": lambda x: mx.np.maximum(x, LARGE),
    "add": lambda x: x + LARGE,
    "add-numpy": lambda x: x + np.int64(LARGE),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_integers_that_a_double_rounds_raise(name):
    x = array([1, 2], "int64")
    with pytest.raises((OverflowError, mx.MXNetError), match="exactly|from -2.53 to 2.53"):
        ROUNDED[name](x)
    assert x.tolist() == [1, 2]


def test_large_integers_that_doubles_hold_are_exact():
    x = array([LARGE, -LARGE, 5], "int64")
    assert mx.np.clip(x, -(2**60), 2**60).tolist() == x.tolist()
    assert mx.np.clip(x, -np.inf, np.inf).tolist() == x.tolist()
    assert mx.np.clip(x, 6, 2**54).tolist() == [LARGE, 6, 6]
    assert mx.np.full((1,), 2**62, dtype="int64").item() == 2**62
    assert mx.np.full((1,), LARGE).item() == 2**53
    assert mx.np.arange(2**53 - 2, 2**53, dtype="int64").tolist() == [2**53 - 2, 2**53 - 1]
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="integers cannot be"):
            mx.np.full((1,), value, dtype="int32")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float32"])
@pytest.mark.parametrize("low, high", [(1, 3), (3, 1), (-1.5, 2.5), (-2.5, -1.5), (0.5, 0.25)])
def test_clip_is_the_minimum_of_the_maximum(dtype, low, high):
    values = np.array([-3, -2, -1, 0, 1, 2, 3, 9]).astype(dtype)
    if dtype == "uint8" and high < 0:
        return
    wanted = np.minimum(np.maximum(values, np.float64(low)), np.float64(high)).astype(dtype)
    assert mx.np.clip(array(values, dtype), low, high).tolist() == wanted.tolist()


IN_PLACE = ["iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imod", "imatmul"]
IN_PLACE += ["iand", "ior", "ixor"]


@pytest.mark.parametrize("name_", IN_PLACE)
@pytest.mark.parametrize("size", [3, 100])
def test_in_place_operators_write_into_small_and_large_arrays(name_, size):
    """Ops of small arrays run at once, ops of large arrays are queued."""
    function, dtype = getattr(operator, name_), "int32" if name_ in IN_PLACE[-3:] else "float64"
    values = (np.arange(size * size).reshape(size, size) % 5 + 1).astype(dtype)
    for other in (values % 3 + 1, 2):
        if name_ == "imatmul" and isinstance(other, int):
            continue
        x, wanted = array(values, dtype), values.copy()
        view = x[1]
        result = function(x, other if isinstance(other, int) else array(other, dtype))
        wanted = function(wanted, other)
        assert result is x and name(x) == dtype
        assert np.allclose(x.asnumpy(), wanted) and np.allclose(view.asnumpy(), wanted[1])


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("number", [2, 2**40, -(2**40), 0.5])
def test_comparisons_write_into_small_and_large_arrays(size, number):
    values = np.arange(size, dtype="int32") % 4
    for name_ in ("less", "equal", "not_equal", "greater", "less_equal", "greater_equal"):
        out = mx.np.zeros(size, dtype="bool")
        assert getattr(mx.np, name_)(array(values, "int32"), number, out=out) is out
        assert np.array_equal(out.asnumpy(), getattr(np, name_)(values, number))


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
def test_sparse_arrays_are_not_arrays_of_np(stype):
    x = nd.ones((2, 3)).tostype(stype)
    with pytest.raises(ValueError, match=f"of stype {stype}; use x.tostype"):
        x.as_np_ndarray()
    y = nd.ones((2, 3)).as_np_ndarray()
    for function in (lambda: x * y, lambda: y * x, lambda: nd.dot(x, y.T), lambda: x + y):
        with pytest.raises(TypeError, match="sparse arrays are of mx.nd, but another"):
            function()
    assert (x.tostype("default").as_np_ndarray() * y).shape == (2, 3)
