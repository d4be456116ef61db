"""Symbols of mx.sym.np: kinds, inference, executors, and functions of mx.np that are written in
Python."""

import inspect
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.symbol.numpy import _arity, _composition, _Symbol


def var(name, **options):
    return mx.sym.var(name, **options).as_np_ndarray()


def run(symbol, **arrays):
    arrays = {name: nd.array(value, dtype=value.dtype) for name, value in arrays.items()}
    return symbol.bind(mx.cpu(), arrays).forward()[0]


X = np.arange(6, dtype="float32").reshape(2, 3) - 2
OPERATORS = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: 2 - x - y,
    "multiply": lambda x, y: 3 * x * y,
    "divide": lambda x, y: 1 / (x + 4) / y,
    "power": lambda x, y: 2**x + (x + 4) ** y,
    "mod": lambda x, y: (x + 4) % y + 5 % (x + 4),
    "floor_divide": lambda x, y: (
        (x + 4) // y + 9 // (x + 4) + divmod(x, 2)[0] + divmod(7, x + 4)[1]
    ),
    "comparisons": lambda x, y: (x < y) == (x >= 0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_broadcast_as_in_numpy(name):
    function, y = OPERATORS[name], np.array([1, 2, 3], "float32")
    symbol = function(var("x"), var("y"))
    assert type(symbol) is _Symbol
    expected = function(X, y)
    result = run(symbol, x=X, y=y)
    assert type(result) is nd.NDArray and result.dtype == expected.dtype.type
    np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-6)
    assert symbol.infer_shape(x=(2, 3), y=(3,))[1] == [(2, 3)]


def test_kinds_do_not_mix():
    x, y = mx.sym.var("x"), var("y")
    with pytest.raises(TypeError, match=r"argument 0 is a symbol of mx.sym.*as_np_ndarray\(\)"):
        x + y
    with pytest.raises(TypeError, match="argument 1 is a symbol of mx.sym"):
        y * x
    with pytest.raises(TypeError, match="argument 0 is a symbol of mx.sym"):
        mx.sym.concat(x, y, dim=0)
    z = x.as_np_ndarray() + y
    assert type(z) is type(z[0]) is type(z.get_internals()) is _Symbol
    assert type(z.as_nd_ndarray()) is mx.sym.Symbol
    assert z.as_nd_ndarray().as_np_ndarray().list_arguments() == ["x", "y"]


def test_functions_of_sym_follow_their_inputs():
    data = var("data")
    layer = mx.sym.FullyConnected(data, num_hidden=4, name="fc")
    assert type(layer) is _Symbol and layer.list_arguments() == ["data", "fc_weight", "fc_bias"]
    shapes, outputs, _ = layer.infer_shape(data=(2, 3))
    assert shapes == [(2, 3), (4, 3), (4,)] and outputs == [(2, 4)]
    assert type(mx.sym.sum(mx.sym.var("x"))) is mx.sym.Symbol


def test_nodes_of_both_kinds_in_one_graph():
    x = mx.sym.var("x")
    old = mx.sym.sum(x)  # shape (1,)
    new = mx.sym.sum(x.as_np_ndarray())  # shape ()
    both = mx.sym.Group([old, new, old.as_np_ndarray() + new])
    assert type(both) is mx.sym.Symbol
    with mx.util.np_shape(True):
        assert both.infer_shape(x=(2, 3))[1] == [(1,), (), (1,)]
    executor = both.simple_bind(mx.cpu(), x=(2, 3))
    executor.arg_dict["x"][:] = X
    results = executor.forward(is_train=True)
    assert [a.shape for a in results] == [(1,), (), (1,)]
    assert all(type(a) is nd.NDArray for a in results)
    executor.backward([nd.ones(a.shape) for a in results])
    assert executor.grad_dict["x"].asnumpy().tolist() == [[4] * 3] * 2


def test_states_of_np_layers_are_updated():
    norm = mx.sym.BatchNorm(var("x"), fix_gamma=False, momentum=0.5, name="norm")
    executor = norm.simple_bind(mx.cpu(), x=(4, 3))
    executor.arg_dict["x"][:] = 2
    executor.forward(is_train=True)
    assert executor.aux_dict["norm_moving_mean"].asnumpy().tolist() == [1, 1, 1]


def test_monitored_gradients_of_np_symbols():
    x, y = mx.sym.var("x"), var("y")
    symbol = mx.sym.sum(x.as_np_ndarray() * y + x.as_np_ndarray())
    args = {"x": nd.array([1, 2]), "y": nd.array([3, 4])}
    found = []
    for monitored in (False, True):
        grads = {name: nd.zeros(2) for name in args}
        executor = symbol.bind(mx.cpu(), args, grads)
        if monitored:
            seen = []
            executor.set_monitor_callback(lambda name, array: seen.append(name))
        executor.forward(is_train=True)
        executor.backward([nd.ones(())])
        found.append({name: grad.asnumpy().tolist() for name, grad in grads.items()})
    assert found[0] == found[1] == {"x": [4, 5], "y": [1, 2]}
    assert "multiply" in " ".join(seen)


def test_unknown_and_empty_sizes():
    x = var("x")
    total = mx.sym.sum(x, axis=0)
    with mx.util.np_shape(True):
        assert total.infer_shape_partial(x=(-1, 3)) == ([(-1, 3)], [(3,)], [])
        assert total.infer_shape_partial(x=(2, -1)) == ([(2, -1)], [(-1,)], [])
        assert total.infer_shape(x=(0, 3)) == ([(0, 3)], [(3,)], [])
        assert total.infer_shape(x=(3, 0)) == ([(3, 0)], [(0,)], [])
        assert total.infer_shape_partial() == ([None], [None], [])
        assert (x * 2).infer_shape(x=())[1] == [()]
        assert var("v", shape=(0, 2)).infer_shape()[1] == [(0, 2)]
        assert var("v", shape=(-1, 2)).infer_shape_partial()[1] == [(-1, 2)]
    assert total.infer_shape_partial(x=(0, 3)) == ([(0, 3)], [(3,)], [])
    assert total.infer_shape_partial() == ([()], [()], [])
    assert var("v", shape=(0, 2)).infer_shape_partial()[1] == [(0, 2)]


@pytest.mark.parametrize(
    "shapes",
    [
        *[((3, 5, 4), (5, 4, 3)), ((3, 4), (5, 4, 3)), ((4,), (5, 4, 3)), ((3, 4, 5), (5, 2))],
        *[((3,), (3,)), ((), (3, 2)), ((3, 2), ()), ((0, 4), (4, 2)), ((3, 0), (0, 2))],
    ],
    ids=str,
)
def test_dot_of_any_number_of_dimensions(shapes):
    draw = np.random.RandomState(0)
    a, b = [draw.uniform(-1, 1, shape).astype("float32") for shape in shapes]
    dot = mx.sym.np.dot(var("a"), var("b"))
    assert "__function__" not in dot.tojson()  # the node of MXNet
    with mx.util.np_shape(True):
        for symbol in (dot, mx.sym.load_json(dot.tojson())):
            assert symbol.infer_shape(a=a.shape, b=b.shape)[1] == [np.dot(a, b).shape]
            found = run(symbol, a=a, b=b).asnumpy()
            np.testing.assert_allclose(found, np.dot(a, b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 2)), ((3, 4), (5, 4, 3)), ((3, 5, 4), (4,)), ((4,), (4, 2))], ids=str
)
def test_dot_is_exported_to_onnx(tmp_path, shapes):
    pytest.importorskip("onnx")
    draw = np.random.RandomState(0)
    a, b = [draw.uniform(-1, 1, shape).astype("float32") for shape in shapes]
    dot, path = mx.sym.np.dot(var("a"), var("b")), str(tmp_path / "dot.onnx")
    mx.onnx.export_model(dot, {"b": nd.array(b)}, [a.shape], ["float32"], path)
    loaded, args, _ = mx.onnx.import_model(path)
    found = loaded.bind(mx.cpu(), {"a": nd.array(a), **args}).forward()[0].asnumpy()
    np.testing.assert_allclose(found, np.dot(a, b), rtol=1e-5, atol=1e-6)


def test_dot_infers_the_size_that_is_summed_over():
    dot = mx.sym.np.dot(var("a"), var("b"))
    with mx.util.np_shape(True):
        found = dot.infer_shape_partial(a=(3, 4), b=(-1, 5))
        assert found == ([(3, 4), (4, 5)], [(3, 5)], [])
        assert dot.infer_shape_partial(a=(3, -1), b=(4,)) == ([(3, 4), (4,)], [(3,)], [])
        assert dot.infer_shape_partial(a=(3, -1), b=(-1, 5))[1] == [(3, 5)]
        assert dot.infer_shape_partial(a=(3, -1), b=(2, 4, 5))[1] == [None]
        with pytest.raises(mx.MXNetError, match="must be equal"):
            dot.infer_shape_partial(a=(-1, 3), b=(4, 5))


def test_constraint_check_of_symbols_raises():
    symbol = mx.sym.npx.constraint_check(var("x") > 0, "must be positive")
    assert run(symbol, x=X + 3).asnumpy()
    with pytest.raises(ValueError, match="must be positive"):
        run(symbol, x=X)


def test_dtypes_are_promoted():
    x, y = var("x"), var("y")
    assert (x + y).infer_type(x="int32", y="float16")[1] == [np.float16]
    assert (x / y).infer_type(x="int32", y="int32")[1] == [np.float32]
    assert (x < y).infer_type(x="int8", y="int8")[1] == [np.bool_]
    # As in MXNet, an unknown operand has the dtype of the other one.
    assert (x + y).infer_type(x="float64") == ([np.float64] * 2, [np.float64], [])
    result = run(x + y, x=X.astype("int32"), y=X.astype("float16"))
    assert result.dtype == np.float16


def spread(a, axis=None, scale=1.0, parts=(1,)):
    """A function of mx.np that needs the shape of its array."""
    count = a.shape[0] if axis is None else a.shape[axis]
    mean = nd.sum(a, axis=axis, keepdims=True) / count
    return (a - mean) * scale * len(parts)


def pair(arrays, weight=2):
    return [arrays[0] + arrays[1], arrays[0] * weight]


@pytest.fixture
def functions(monkeypatch):
    monkeypatch.setattr(mx.np, "spread", spread, raising=False)
    monkeypatch.setattr(mx.np, "pair", pair, raising=False)
    monkeypatch.setitem(_arity.FIXED, "np.pair", 2)


def test_python_functions_run_when_shapes_are_known(functions):
    x = var("x")
    symbol = _composition.compose("np.spread", (x,), {"axis": 1, "scale": 0.5, "name": "s"})
    assert symbol.list_outputs() == ["s_output"] and symbol.attr("axis") == "1"
    assert symbol.infer_shape(x=(2, 3))[1] == [(2, 3)]
    assert symbol.infer_type(x="float64")[1] == [np.float64]
    with pytest.warns(UserWarning, match="Cannot decide shape"):
        assert symbol.infer_shape() == (None, None, None)
    expected = (X - X.mean(1, keepdims=True)) / 2
    loaded = mx.sym.load_json(symbol.tojson())
    mx.util.set_np_shape(False)
    for one in (symbol, loaded, pickle.loads(pickle.dumps(symbol))):
        assert type(one) is _Symbol and one.tojson() == symbol.tojson()
        np.testing.assert_allclose(run(one, x=X).asnumpy(), expected, rtol=1e-6)
    executor = (symbol * symbol).simple_bind(mx.cpu(), x=(2, 3))
    executor.arg_dict["x"][:] = X
    executor.forward(is_train=True)
    executor.backward([nd.ones((2, 3))])
    np.testing.assert_allclose(executor.grad_dict["x"].asnumpy(), expected, atol=1e-6)


def test_lists_of_symbols_and_several_results(functions):
    both = _composition.compose("np.pair", ([var("x"), var("y")],), {"weight": 3})
    assert len(both) == 2 and type(both[1]) is _Symbol
    both = mx.sym.load_json(both.tojson())
    mx.util.set_np_shape(False)
    results = both.bind(mx.cpu(), {"x": nd.array(X), "y": nd.ones((3,))}).forward()
    assert np.array_equal(results[0].asnumpy(), X + 1)
    assert np.array_equal(results[1].asnumpy(), X * 3)
    with pytest.raises(TypeError, match="got an array; use a variable"):
        _composition.compose("np.pair", ([var("x"), nd.ones(3)],), {})
    with pytest.raises(TypeError, match="as_np_ndarray"):
        _composition.compose("np.pair", ([var("x"), mx.sym.var("y")],), {})


def test_wrong_files_of_functions(functions):
    text = _composition.compose("np.spread", (var("x"),), {}).tojson()
    for old, new, message in (
        ("np.spread", "np.__loader__", "unknown function"),
        ("np.spread", "os.system", "unknown function"),
        ("'$0'", "'$1'", "not one of the 1 inputs"),
        ("{'a': '$0'}", "7", "must be a dict"),
    ):
        with pytest.raises(mx.MXNetError, match=message):
            mx.sym.load_json(text.replace(old, new))


def test_hidden_names_of_nd():
    for name in ("exp", "slice_axis", "one_hot", "expand_dims", "split_v2"):
        with pytest.raises(AttributeError, match=f"has no attribute {name}"):
            getattr(var("x"), name)
    with pytest.raises(mx.base.NotImplementedForSymbol):
        var("x")[0] = 1


def test_loops_and_branches_of_np_symbols():
    x, s = var("x"), var("s")
    outputs, last = mx.sym.contrib.foreach(lambda a, b: (a * b, a + b), x, s)
    assert type(outputs) is type(last) is _Symbol
    branch = mx.sym.contrib.cond(mx.sym.sum(x) > 0, lambda: x * 2, lambda: x - 1)
    assert type(branch) is _Symbol
    group = mx.sym.Group([outputs, last, branch])
    with mx.util.np_shape(True):
        assert group.infer_shape(x=(3,), s=())[1] == [(3,), (), (3,)]
    group = mx.sym.load_json(group.tojson())
    mx.util.set_np_shape(False)
    args = {"x": nd.array([1, 2, 3]), "s": nd.array(2).reshape(())}
    results = group.bind(mx.cpu(), args).forward()
    assert [a.asnumpy().tolist() for a in results] == [[2, 6, 15], 8, [2, 4, 6]]


def test_symbols_of_recorded_np_arrays():
    x = nd.array([1, 2]).as_np_ndarray()
    x.attach_grad()
    with mx.autograd.record():
        y = x * x + 1
    symbol = mx.autograd.get_symbol(y)
    assert type(symbol) is _Symbol
    assert symbol.eval(**{symbol.list_arguments()[0]: nd.array([1, 2])})[0].asnumpy().tolist() == [
        2,
        5,
    ]


# Functions with undefined values, functions that iterate over the rows of a single array, and
# functions whose results depend on values
SKIPPED = {"empty", "empty_like", "may_share_memory", "shares_memory", "concatenate", "stack"}
SKIPPED |= {"histogram", "nonzero", "where"}


def calls_of_functions():
    """Yields (name, arguments) of calls that mx.np accepts."""
    values = X / 4 + 0.6, np.abs(X) + 0.25
    for name in sorted(set(mx.sym.np.__all__) - SKIPPED):
        function = getattr(mx.np, name, None)
        if not callable(function):
            continue
        for count in (1, 2):
            arrays = [nd.array(value).as_np_ndarray() for value in values[:count]]
            try:
                result = function(*arrays)
            except Exception:  # the function needs other arguments
                continue
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            if results and all(isinstance(one, mx.np.ndarray) for one in results):
                yield name, arrays, results
                break


def test_functions_of_np_accept_symbols():
    tested = 0
    assert "exp" in mx.sym.np.__all__ and "unwrap" not in mx.sym.np.__all__
    for name, arrays, expected in calls_of_functions():
        symbol = getattr(mx.sym.np, name)(*[var(key) for key, _ in zip("xy", arrays)])
        assert type(symbol) is _Symbol, name
        symbol = mx.sym.load_json(symbol.tojson())
        mx.util.set_np_shape(False)
        args = {key: array.as_nd_ndarray() for key, array in zip("xy", arrays)}
        results = symbol.bind(mx.cpu(), args).forward()
        assert len(results) == len(expected), name
        for a, b in zip(results, expected):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), name
            np.testing.assert_array_equal(a.asnumpy(), b.asnumpy(), err_msg=name)
        tested += 1
    assert tested > 30


def test_functions_of_np_take_names_and_numbers():
    x = var("x")
    node = mx.sym.np.exp(x, name="e")
    assert node.name == "e" and node.list_outputs() == ["e_output"]
    assert type(mx.np.exp(x)) is _Symbol  # the function is the same
    assert run(mx.sym.np.add(x, 2), x=X).asnumpy().tolist() == (X + 2).tolist()
    assert run(mx.sym.np.power(2, x), x=X).asnumpy().tolist() == (2**X).tolist()


SAMPLERS = {
    "binomial": (4, 0.25),
    "choice": (5,),
    "dirichlet": ([1.0, 2.0],),
    "multinomial": (5, [0.5, 0.5]),
    "multivariate_normal": ([0.0, 1.0], [[1.0, 0.0], [0.0, 2.0]]),
    "negative_binomial": (4, 0.25),
    "permutation": (5,),
    "rand": (2, 3),
    "randint": (0, 9),
    "randn": (2, 3),
    "uniform": (0, 2),
}


@pytest.mark.parametrize("name", mx.sym.np.random.__all__)
def test_samplers_of_symbols_draw_the_numbers_of_arrays(name):
    parameters = [*inspect.signature(getattr(mx.np.random, name)).parameters]
    args = SAMPLERS.get(name) or (2,) * parameters.index("size")
    options = {} if name in ("permutation", "rand", "randn") else {"size": (2, 3)}
    mx.random.seed(3)
    expected = getattr(mx.np.random, name)(*args, **options)
    symbol = mx.sym.load_json(getattr(mx.sym.np.random, name)(*args, **options).tojson())
    mx.util.set_np_shape(False)
    mx.random.seed(3)
    result = symbol.bind(mx.cpu(), {}).forward()[0]
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(result.asnumpy(), expected.asnumpy())


class Submodules(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        u, s, vt = F.np.linalg.svd(x)
        ones = F.npx.random.bernoulli(F.np.ones_like(x))
        image = F.npx.image.normalize(x.reshape(1, 2, 3), mean=1.0, std=2.0)
        return F.np.dot(u * s, vt) + ones + image.sum()


def test_networks_use_the_submodules_in_both_forms(tmp_path):
    net = Submodules()
    net.hybridize()
    x = mx.np.array(X)
    expected = net(x).asnumpy()
    np.testing.assert_allclose(expected, X + 1 + ((X - 1) / 2).sum(), rtol=1e-5)
    net.export(str(tmp_path / "net"))
    loaded = mx.gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"])
    assert np.array_equal(loaded(x).asnumpy(), expected)
    result = run(net(var("x")), x=X)
    np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-6)


def test_qr_has_as_many_results_as_its_mode():
    matrix = np.array([[2, 1], [1, 3]], "float32")
    symbol = mx.sym.np.linalg.qr(var("x"), mode="r")
    expected = mx.np.linalg.qr(mx.np.array(matrix), mode="r").asnumpy()
    assert np.array_equal(run(symbol, x=matrix).asnumpy(), expected)
    assert len(mx.sym.np.linalg.qr(var("x")).list_outputs()) == 2
