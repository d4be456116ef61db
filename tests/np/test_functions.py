"""Functions of mx.np that are ops: signatures, arguments and results against NumPy's."""

import inspect
import pickle
import pydoc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd

FUNCTIONS = {
    name: value for name, value in vars(mx.np).items() if isinstance(value, _core.NumPyFunction)
}
ELEMENTWISE = {name: f for name, f in FUNCTIONS.items() if "casting" in f.arguments}
INTEGERS = ("bitwise_not", "invert", "lcm", "bitwise_and", "bitwise_or", "bitwise_xor")
CONDITIONS = (
    *("isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not", "equal", "not_equal"),
    *("greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor"),
)


def array(values, dtype="float32"):
    return nd.array(np.asarray(values), dtype=dtype).as_np_ndarray()


def operands(name, count, shape=(2, 3), dtype="float32"):
    """Returns NumPy arrays in the domain of a function."""
    rng = np.random.default_rng(0)
    if name in INTEGERS:
        return [rng.integers(1, 9, shape).astype("int32") for _ in range(count)]
    low = 1.1 if name == "arccosh" else 0.2
    high = 0.8 if name in ("arcsin", "arccos", "arctanh") else 3
    return [rng.uniform(low, high, shape).astype(dtype) for _ in range(count)]


def numpys(name, values):
    if name == "ldexp":
        return values[0] * 2.0 ** values[1]
    return getattr(np, name)(*values)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_functions_agree_with_numpy(name):
    function, count = FUNCTIONS[name], 1 + ("x2" in FUNCTIONS[name].arguments)
    for shape in ((2, 3), (), (0, 3)):
        values = operands(name, count, shape)
        given = [array(value, value.dtype) for value in values]
        expected = np.asarray(numpys(name, values))
        traced = _core.CachedOp(lambda *x: [function(*x)])(*given)[0]
        for result in (function(*given), traced):
            assert type(result) is mx.np.ndarray and result.shape == shape
            assert result.dtype == ("bool" if name in CONDITIONS else values[0].dtype)
            np.testing.assert_allclose(result.asnumpy(), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, f in ELEMENTWISE.items() if "x2" in f.arguments])
def test_operands_may_be_numbers(name):
    function, (values,) = FUNCTIONS[name], operands(name, 1)
    number = 2 if name in INTEGERS else 1.5
    for pair in ((values, number), (number, values)):
        given = [array(x, x.dtype) if x is values else x for x in pair]
        expected = np.asarray(numpys(name, pair))
        out = array(np.zeros(values.shape), expected.dtype if name in CONDITIONS else values.dtype)
        assert function(*given, out=out) is out
        for result in (function(*given), out, _core.CachedOp(lambda x: [function(*given)])(out)[0]):
            assert type(result) is mx.np.ndarray
            np.testing.assert_allclose(result.asnumpy(), expected, rtol=2e-5)
    assert function(3, 2) == numpys(name, (3, 2)) and not isinstance(function(3, 2), nd.NDArray)


@pytest.mark.parametrize("name", ["arctan2", "copysign", "ldexp"])
@pytest.mark.parametrize("dtypes", ["int32 int32", "int64 float32", "float16 int8", "bool bool"])
def test_float_functions_of_integers_are_float(name, dtypes):
    function, dtypes = FUNCTIONS[name], dtypes.split()
    wanted = next((dtype for dtype in dtypes if "float" in dtype), "float32")
    values = [np.array(x).astype(dtype) for x, dtype in zip(([3, 0, 1], [1, 2, 0]), dtypes)]
    given = [array(value, value.dtype) for value in values]
    for call, pair in (
        (function, values),
        (lambda a, b: function(a, 2.5), [values[0], 2.5]),
        (lambda a, b: function(2.5, a), [2.5, values[0]]),
    ):
        expected = numpys(name, [np.float64(x) for x in pair])
        own = wanted if pair is values or "float" in dtypes[0] else "float32"
        for result in (call(*given), _core.CachedOp(lambda *x: [call(*x)])(*given)[0]):
            assert result.dtype == own
            np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-3)


def test_errors_name_the_argument_that_is_no_array():
    with pytest.raises(TypeError, match="add: x1 must be an mx.np.ndarray, got list"):
        mx.np.add([1, 2], 3)
    with pytest.raises(TypeError, match="add: x2 must be an mx.np.ndarray, got object"):
        mx.np.add(array([1, 2]), object())
    with pytest.raises(TypeError, match="exp: x must be an mx.np.ndarray, got list"):
        mx.np.exp([1, 2])


def test_operands_broadcast():
    a, b = np.ones((3, 1), "float32"), np.arange(2, dtype="float32")
    assert np.array_equal(mx.np.add(array(a), array(b)).asnumpy(), a + b)
    assert np.array_equal(mx.np.less(array(a), array(b)).asnumpy(), a < b)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_documented(name):
    function = FUNCTIONS[name]
    assert function.__name__ == function.__qualname__ == name
    assert function.__module__ == "mpgluon.numpy"
    assert pickle.loads(pickle.dumps(function)) is function
    assert list(inspect.signature(function).parameters) == list(function.arguments)
    doc = function.__doc__
    assert f"\n\nSource: numpy.{name}\n\nExamples\n--------\n>>> " in doc and f"np.{name}(" in doc
    assert inspect.isroutine(function) and doc.split("\n")[0] in pydoc.render_doc(function)


def test_options_of_ufuncs_must_keep_their_defaults():
    x = array([1, 2])
    assert mx.np.exp(x, where=True, casting="same_kind", order="K", dtype=None, subok=True).size
    for option in ({"where": False}, {"subok": False}, {"dtype": "int8"}, {"casting": "safe"}):
        with pytest.raises(NotImplementedError, match=f"exp: {next(iter(option))} must be"):
            mx.np.exp(x, **option)
    for option in ({"dtype": "abcdefg"}, {"casting": "mxnet"}):
        with pytest.raises(TypeError, match=f"exp: {next(iter(option))} is invalid"):
            mx.np.exp(x, **option)


def test_misuse_raises():
    x = array([1, 2])
    for wrong, match in (
        (lambda: mx.np.exp([1, 2]), "must be an mx.np.ndarray, got list"),
        (lambda: mx.np.add(x, [1, 2]), "must be an mx.np.ndarray, got list"),
        (lambda: mx.np.exp(nd.ones(2)), "is an array of mx.nd"),
        (lambda: mx.np.add(nd.ones(2), 1), "is an array of mx.nd"),
        (lambda: mx.np.exp(x, out=nd.ones(2)), "out is an array of mx.nd"),
        (lambda: mx.np.exp(), "missing"),
        (lambda: mx.np.exp(x, axis=1), "no parameter 'axis'"),
        (lambda: mx.np.exp(x, x=x), "given twice"),
        (lambda: mx.np.exp(x, None, True), "at most 2 positional"),
    ):
        with pytest.raises(TypeError, match=match):
            wrong()


def test_functions_are_recorded():
    x, y = array([1, 2]), array([3, 4])
    x.attach_grad()
    with autograd.record():
        z = mx.np.multiply(mx.np.exp(x), mx.np.add(y, 1))
    z.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), np.exp([1, 2]) * [4, 5], rtol=1e-6)


def test_symbols_are_passed_to_the_registered_function():
    class Fake:
        pass

    calls, symbol = [], Fake()
    previous = _core.set_symbol_node(Fake, lambda *args: calls.append(args))
    try:
        mx.np.exp(symbol, name="node")
        mx.np.subtract(2, symbol)
        mx.np.subtract(symbol, symbol)
    finally:
        _core.set_symbol_node(*previous)
    assert calls[0] == ("_npi_exp", [symbol], {}, "node")
    assert calls[1][1:] == ([symbol], {"scalar": 2}, None) and calls[1][0].startswith("_npi_r")
    assert calls[2][1:] == ([symbol, symbol], {}, None)


def test_functions_of_wrong_types_name_the_argument():
    x = mx.np.ones((2, 3))
    for name, function in {
        "empty_like: prototype must be an array": lambda: mx.np.empty_like(3),
        "cov: fweights must be an array": lambda: mx.np.cov(x, fweights=2.0),
        r"cov: aweights must have the shape \(3,\)": lambda: mx.np.cov(x, aweights=mx.np.ones(5)),
        "axis must be an integer, got tuple": lambda: mx.np.append(x, x, axis=(0, 5)),
        "axis must be an integer, got str 'F'": lambda: mx.np.average(x, axis="F"),
        "dstack: arrays must have at least one": lambda: mx.np.dstack(mx.np.ones((0, 3))),
        "constraint_check: x must be": lambda: mx.npx.constraint_check(np.ones(1), "m"),
        "masked_softmax: mask must be": lambda: mx.npx.masked_softmax(x, np.ones((2, 3))),
    }.items():
        with pytest.raises((TypeError, ValueError), match=name):
            function()


def test_numbers_are_rounded():
    assert mx.np.around(5.128, 2) == 5.13 and mx.np.round_(5, 2) == 5 and mx.np.around(5) == 5


def test_linspace_between_arrays_may_have_no_numbers():
    x = mx.np.zeros((2, 3))
    for axis in (0, 1, -1):
        wanted = np.linspace(np.zeros((2, 3)), 1, 0, axis=axis).shape
        assert mx.np.linspace(x, 1, 0, axis=axis).shape == wanted


def assigned(key):
    def assign(x, number):
        x = x.copy()
        x[key] = number
        return x

    return assign


FILLS = {
    "full": lambda x, number: mx.np.full((2,), number, dtype=x.dtype),
    "full_like": lambda x, number: mx.np.full_like(x, number),
    "where": lambda x, number: mx.np.where(x > 1, x, number),
    "pad": lambda x, number: mx.np.pad(x, 1, constant_values=number),
    "insert": lambda x, number: mx.np.insert(x, 1, number),
    "element": assigned(0),
    "all": assigned(slice(None)),
    "slice": assigned(slice(None, None, 2)),
    "list": assigned([0, 1]),
}


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_numbers_beyond_the_dtype_are_refused(name, dtype):
    x, limits = mx.np.array([1, 2, 3], dtype=dtype), np.iinfo(dtype)
    for number in (limits.min, limits.max, 2.5):
        assert int(number) in FILLS[name](x, number).tolist()
    for number in (limits.max + 1, limits.min - 1):
        with pytest.raises((ValueError, TypeError), match="out of (range|bounds)"):
            FILLS[name](x, number)


LAYERS = {
    "softmax": mx.npx.softmax,
    "log_softmax": mx.npx.log_softmax,
    "gelu": mx.npx.gelu,
    "leaky_relu": mx.npx.leaky_relu,
    "activation": lambda x: mx.npx.activation(x, act_type="sigmoid"),
    "masked_softmax": lambda x: mx.npx.masked_softmax(x, x != 0),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64"])
def test_layers_of_integers_return_float32(name, dtype):
    x = mx.np.array([0, 1, 1], dtype=dtype)
    wanted = LAYERS[name](x.astype("float32")).asnumpy()
    for function in (LAYERS[name], lambda x: _core.CachedOp(lambda x: [LAYERS[name](x)])(x)[0]):
        result = function(x)
        assert result.dtype == "float32" and np.array_equal(result.asnumpy(), wanted)


def test_clip_accepts_arrays_of_bounds():
    values = np.arange(6, dtype="float32").reshape(2, 3)
    low, high = np.array([1, 2, 3], "float32"), np.array([[4], [3]], "float32")
    x = mx.np.array(values)
    for bounds in ((low, high), (low, None), (None, high), (low, 4), (1, high)):
        wanted = np.clip(values, *bounds)
        arrays = [mx.np.array(b) if isinstance(b, np.ndarray) else b for b in bounds]
        for given in (bounds, arrays):
            assert np.array_equal(mx.np.clip(x, *given).asnumpy(), wanted)
            assert np.array_equal(x.clip(*given).asnumpy(), wanted)
    x.attach_grad()
    with autograd.record():
        y = mx.np.clip(x, mx.np.array(low), 4)
    y.backward()
    assert x.grad.tolist() == [[0, 0, 0], [1, 1, 0]]


def test_dot_multiplies_with_numbers():
    x = mx.np.array([[1, 2], [3, 4]])
    for result in (mx.np.dot(x, 2), mx.np.dot(2, x), x.dot(2), np.dot(x, np.float32(2))):
        assert result.tolist() == [[2, 4], [6, 8]]
    assert mx.np.dot(2, 3) == 6
