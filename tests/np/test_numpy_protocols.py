"""NumPy's functions of arrays of mx.np that call functions of mx.np."""

import inspect

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd, numpy_dispatch_protocol as lists
from mpgluon.ndarray import _numpy_protocol as nd_rules
from mpgluon.numpy import _dispatch
from support.processes import output_of

VALUES = onp.array([[0.2, 0.45, 0.6], [0.3, 0.9, 0.5]], "float32")


def array(values, ctx=None):
    values = onp.asarray(values)
    return nd.array(values, ctx, dtype=values.dtype).as_np_ndarray()


def test_dispatch_lists_name_functions_of_mx_np():
    """Functions on copies are not in the lists."""
    for name in lists._NUMPY_ARRAY_FUNCTION_LIST:
        module, _, short = name.rpartition(".")
        short = _dispatch._NAMES.get(short, short)
        assert hasattr(getattr(mx.np, module) if module else mx.np, short)
    assert "matmul" in lists._NUMPY_ARRAY_UFUNC_LIST
    assert "tensordot" in lists._NUMPY_ARRAY_FUNCTION_LIST
    assert not {"interp", "gradient"} & {*lists._NUMPY_ARRAY_FUNCTION_LIST}
    for decorator in (lists.with_array_function_protocol, lists.with_array_ufunc_protocol):
        assert decorator(len) is len


def condition_like(a):
    """Returns constant bools of the kind of an array."""
    return array(VALUES > 0.5, mx.cpu(1)) if isinstance(a, mx.np.ndarray) else VALUES > 0.5


UFUNCS = {
    "exp": lambda a: onp.exp(a) * 2,
    "arctan2": lambda a: onp.arctan2(a, a**2),
    "alias": lambda a: onp.atan2(2, a) if hasattr(onp, "atan2") else onp.arctan2(2, a),
    "divide": lambda a: onp.divide(1, a),
    "maximum": lambda a: onp.maximum(a, 0.48),
    "matmul": lambda a: onp.matmul(a, a.T),
    "outer": lambda a: onp.outer(a[0], a[1]),
    "list": lambda a: onp.multiply(a, [1, 2, 3]),
    "official array": lambda a: onp.add(a**2, onp.arange(3) / 2),
    "official array first": lambda a: onp.subtract(onp.ones(3), a),
    "official arrays in a list": lambda a: onp.vstack([onp.ones(3), a**2, onp.zeros((1, 3))]),
    "official scalar": lambda a: onp.float64(2) * a,
    "tensordot": lambda a: onp.tensordot(a, VALUES, axes=([1], [1])),
    "pad": lambda a: onp.pad(a**2, onp.array([[1, 0], [0, 2]])),
    "roll": lambda a: onp.roll(a**2, onp.int64(1), axis=1),
    "condition first": lambda a: onp.where(condition_like(a), a**2, VALUES.astype("float64")),
    "condition and floats first": lambda a: onp.where(condition_like(a), onp.ones((2, 3)), a**2),
}


@pytest.mark.parametrize("case", UFUNCS)
@pytest.mark.parametrize("compiled", [False, True])
def test_numpy_functions_call_recorded_ops(case, compiled):
    function = UFUNCS[case]
    x = array(VALUES, mx.cpu(1))
    x.attach_grad()
    call = _core.CachedOp(lambda a: [function(a)]) if compiled else lambda a: [function(a)]
    with autograd.record():
        (y,) = call(x)
    y.backward()
    assert type(y) is mx.np.ndarray and y.context == mx.cpu(1) and y.dtype == onp.float32
    onp.testing.assert_allclose(y.asnumpy(), function(VALUES), rtol=1e-5)
    wide = VALUES.astype("float64")
    for index in onp.ndindex(2, 3):
        step = onp.zeros((2, 3))
        step[index] = 1e-5
        slope = (function(wide + step) - function(wide - step)).sum() / 2e-5
        assert abs(x.grad.asnumpy()[index] - slope) < 2e-3


def test_lists_have_numpys_type():
    for call in (
        lambda a: onp.atleast_1d(a, a),
        lambda a: onp.broadcast_arrays(a, a[:1]),
        lambda a: onp.broadcast_arrays(2, a, [0.5], 4.5),
    ):
        assert type(call(array(VALUES))) is type(call(VALUES))


def test_shared_memory_is_detected():
    x = array(VALUES)
    for function in (onp.shares_memory, onp.may_share_memory, mx.np.may_share_memory):
        assert function(x, x.detach()) and function(x, x[1]) and not function(x[0], x[1])
        assert not function(x, array(VALUES))


def test_comparisons_are_bool():
    for y in (onp.isnan(array(VALUES)), onp.greater(array(VALUES), 0.5)):
        assert type(y) is mx.np.ndarray and y.dtype == onp.bool_


def test_out_receives_the_result():
    x, out = array(VALUES), array(onp.zeros((2, 3), "float32"))
    assert onp.exp(x, out=out) is out
    onp.testing.assert_allclose(out.asnumpy(), onp.exp(VALUES), rtol=1e-6)
    values = onp.zeros((2, 3), "float32")
    assert onp.exp(x, out=values) is values
    onp.testing.assert_allclose(values, onp.exp(VALUES), rtol=1e-6)


def test_options_without_op_run_numpy_on_copies():
    x = array(VALUES)
    mask = VALUES > 0.4
    out = array(onp.zeros((2, 3), "float32"))
    onp.exp(x, out=out, where=mask)
    expected = onp.exp(VALUES, out=onp.zeros_like(VALUES), where=mask)
    onp.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-6)
    assert onp.exp(x, dtype="float64").dtype == onp.float64
    x.attach_grad()
    with autograd.record():
        with pytest.raises(mx.MXNetError, match="gradient of a recorded array would be lost"):
            onp.exp(x * 2, where=mask)


def test_kinds_cannot_be_mixed():
    for call in (onp.add, onp.maximum, onp.hypot):
        with pytest.raises(TypeError, match="both mx.np and mx.nd"):
            call(array(VALUES), nd.array(VALUES))
    with pytest.raises(TypeError, match="both mx.np and mx.nd"):
        onp.vstack([array(VALUES), nd.array(VALUES)])


SQUARE = VALUES[:, :2]
# NumPy's functions with an argument `out` -> arguments, which follow the array.
WITH_OUT = {
    "all": (0,),
    "any": (0,),
    "argmax": (0,),
    "argmin": (0,),
    "around": (1,),
    "choose": ([SQUARE, SQUARE + 1],),
    "clip": (0.3, 0.5),
    "concatenate": (0,),
    "cumprod": (0,),
    "cumsum": (0,),
    "dot": (SQUARE,),
    "einsum": (),
    "fix": (),
    "max": (0,),
    "mean": (0,),
    "median": (0,),
    "min": (0,),
    "nancumsum": (0,),
    "nanmax": (0,),
    "nanmean": (0,),
    "nansum": (0,),
    "outer": (SQUARE,),
    "percentile": (30, 0),
    "prod": (0,),
    "ptp": (0,),
    "quantile": (0.3, 0),
    "round": (1,),
    "stack": (0,),
    "std": (0,),
    "sum": (0,),
    "take": (onp.array([1, 0]), 0),
    "trace": (),
    "var": (0,),
}


@pytest.mark.parametrize("name", WITH_OUT)
@pytest.mark.parametrize("positional", [False, True])
def test_numpy_functions_write_into_out_of_either_kind(name, positional):
    function, args = getattr(onp, name), WITH_OUT[name]
    names = [*inspect.signature(function).parameters]
    if positional and name == "einsum":
        return  # `out` is always a keyword
    of = {"choose": lambda a: a > 0.4, "concatenate": lambda a: [a, a], "stack": lambda a: [a, a]}
    given = of.get(name, lambda a: a)
    before = ("ij->ji",) if name == "einsum" else ()
    expected = function(*before, given(SQUARE), *args)
    if name == "choose":
        given = lambda a: (a > 0.4).astype("int64")
    x = array(SQUARE.astype(expected.dtype) if expected.dtype.kind == "f" else SQUARE)
    for kind in (onp.array, array):
        out = kind(onp.zeros(expected.shape, expected.dtype))
        call = [*before, given(x), *args]
        if not positional:
            result = function(*call, out=out)
        else:
            defaults = inspect.signature(function).parameters
            middle = names[len(call) : names.index("out")]
            result = function(*call, *(defaults[key].default for key in middle), out)
        assert result is out
        onp.testing.assert_allclose(onp.asarray(out), expected, rtol=1e-5, atol=1e-6)


COUNTS = onp.array([[1, 2, 3], [4, 5, 6]], "int64")
BYTES = onp.array([10, 200], "uint8")
# Arguments that mx.np's functions reject, but NumPy's accept
ACCEPTED_BY_NUMPY = {
    "several new axes": lambda a: onp.expand_dims(a(VALUES), (0, 2)),
    "repeats as a list": lambda a: onp.repeat(a(VALUES), [1, 2], axis=0),
    "indices as a list": lambda a: onp.take(a(VALUES), [0, 1], axis=1),
    "negative index": lambda a: onp.take(a(VALUES), -1, axis=1),
    "weights as a list": lambda a: onp.average(a(VALUES), axis=1, weights=[1.0, 2, 3]),
    "weights of an axis": lambda a: onp.average(a(VALUES), axis=0, weights=a(VALUES[:, 0])),
    "limits as arrays": lambda a: onp.clip(a(VALUES), a(VALUES[0] - 0.1), a(VALUES[0])),
    "pairs of constants": lambda a: onp.pad(a(VALUES), 1, constant_values=((1, 2), (3, 4))),
    "subscripts as lists": lambda a: onp.einsum(a(VALUES), [0, 1], [1, 0]),
    "appended number": lambda a: onp.append(a(VALUES), 300),
    "joined dtypes": lambda a: onp.vstack([a(VALUES.astype("float64")), a(COUNTS)]),
    "product of dtypes": lambda a: onp.dot(a(VALUES), a(COUNTS.T)),
    "product of integers": lambda a: onp.dot(a(COUNTS), a(COUNTS.T)),
    "logic of dtypes": lambda a: onp.logical_and(a(COUNTS), a(VALUES)),
    "comparison of dtypes": lambda a: onp.less(a(BYTES), a(onp.array([300]))),
    "ends of differences": lambda a: onp.ediff1d(a(VALUES), to_end=[1, 2]),
}


@pytest.mark.parametrize("case", ACCEPTED_BY_NUMPY)
def test_numpy_computes_calls_that_functions_of_mx_np_reject(case):
    function = ACCEPTED_BY_NUMPY[case]
    result, expected = function(lambda values: array(values, mx.cpu(1))), function(onp.asarray)
    assert type(result) is mx.np.ndarray and result.context == mx.cpu(1)
    assert result.shape == onp.shape(expected)
    onp.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-6)


def test_calls_that_both_reject_raise_the_error_of_mx_np():
    x = array(VALUES)
    with pytest.raises(_core.MXNetError, match="expand_dims: "):
        onp.expand_dims(x, 7)
    x.attach_grad()
    with autograd.record(), pytest.raises(TypeError, match="axis"):
        onp.expand_dims(x * 2, (0, 2))  # NumPy's result would lose the gradient


def test_functions_recorded_for_arrays_of_mx_nd_are_recorded_for_mx_np():
    """Except functions of shapes and addresses, which have no gradient."""
    recorded = {*nd_rules._UNARY, *nd_rules._FUNCTIONS}
    without = {"may_share_memory", "ndim", "shape", "shares_memory", "size"}
    assert len(recorded) > 90
    others = {f.__name__ for f in recorded if not _dispatch.has_ops(f)}
    assert others == without | {*_dispatch._COMPOSED}


COMPOSED = {
    "exp2": lambda a: onp.exp2(a),
    "nanprod": lambda a: onp.nanprod(a, axis=1),
    "nansum": lambda a: onp.nansum(a, axis=0, keepdims=True),
    "positive": lambda a: onp.positive(a),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_functions_match_numpy_and_have_gradients(name):
    values = VALUES.copy()
    if name.startswith("nan"):
        values[0, 1] = onp.nan
    x = array(values)
    x.attach_grad()
    with autograd.record():
        y = COMPOSED[name](x)
    y.backward()
    assert type(y) is mx.np.ndarray
    onp.testing.assert_allclose(y.asnumpy(), COMPOSED[name](values), rtol=1e-6)
    expected = onp.zeros_like(values)
    for i in onp.ndindex(values.shape):
        steps = [values.astype("float64") for _ in range(2)]
        steps[0][i] -= 1e-4
        steps[1][i] += 1e-4
        low, high = (COMPOSED[name](each).sum() for each in steps)
        expected[i] = (high - low) / 2e-4
    onp.testing.assert_allclose(x.grad.asnumpy(), expected, rtol=1e-4, atol=1e-6)
    integers = array(onp.array([[1, 2, 3]]))
    if name != "exp2":
        result = COMPOSED[name](integers)
        onp.testing.assert_array_equal(result.asnumpy(), COMPOSED[name](onp.array([[1, 2, 3]])))


def test_composed_functions_write_to_out():
    x, out = array(VALUES), array(VALUES * 0)
    assert onp.positive(x, out=out) is out and out.asnumpy().tolist() == VALUES.tolist()
    total = array(onp.float32(0))
    assert onp.nansum(x, out=total) is total
    assert abs(total.item() - VALUES.sum()) < 1e-5


@pytest.mark.parametrize("numpy", [False, True])
def test_numpy_shuffle_of_an_array_raises_and_keeps_its_elements(numpy):
    """Elements are views, so NumPy's exchange of two elements would copy one of them twice."""
    code = f"""
        import numpy
        from mpgluon import nd, np
        for shape in ((5,), (5, 2)):
            x = np.arange(10)[: 5 * len(shape)].reshape(shape)
            x = x if {numpy} else x.as_nd_ndarray()
            for shuffle in (numpy.random.shuffle, numpy.random.default_rng(0).shuffle):
                values = x.asnumpy().tolist()
                try:
                    shuffle(x)
                except UserWarning as warning:
                    print("may contain duplicates" in str(warning), x.asnumpy().tolist() == values)
    """
    assert output_of(code).split() == ["True"] * 8


def test_elements_are_exchanged_by_an_index():
    x = mx.np.arange(3)
    x[[0, 2]] = x[[2, 0]]
    assert x.tolist() == [2, 1, 0]
