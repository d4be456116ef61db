"""Symbols: graphs of op calls, attributes, composition, inference, JSON."""

import copy
import json
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core
from support.devices import on
from support.processes import finished


def mlp():
    data = mx.sym.Variable("data")
    hidden = mx.sym.FullyConnected(data, name="fc1", num_hidden=8)
    active = mx.sym.Activation(hidden, act_type="relu", name="act")
    out = mx.sym.FullyConnected(active, name="fc2", num_hidden=3)
    return mx.sym.SoftmaxOutput(out, name="softmax")


def test_missing_inputs_become_variables():
    net = mlp()
    assert (
        net.list_arguments() == "data fc1_weight fc1_bias fc2_weight fc2_bias softmax_label".split()
    )
    assert net.list_outputs() == ["softmax_output"]
    without = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2, no_bias=True, name="fc")
    assert without.list_arguments() == ["x", "fc_weight"]


def test_batch_norm_symbol_has_auxiliary_states():
    norm = mx.sym.BatchNorm(mx.sym.var("x"), name="bn")
    assert norm.list_arguments() == ["x", "bn_gamma", "bn_beta"]
    assert norm.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert norm.list_inputs() == ["x", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]
    assert norm.attr_dict()["bn_moving_var"]["__init__"] == '["one", {}]'


def test_automatic_names_match_mxnet():
    with mx.name.NameManager():
        x = mx.sym.var("x")
        assert (x + x).name == "_plus0" and (x + x).name == "_plus1"
        assert (x * 2).name == "_mulscalar0"
        assert (2 - x).name == "_rminusscalar0"
        assert (x > x).name == "_greater0"
        assert mx.sym.linalg.gemm2(x, x).name == "gemm20"
        with mx.name.Prefix("pre_"):
            assert mx.sym.FullyConnected(x, num_hidden=1).name == "pre_fullyconnected0"


def test_outputs_children_and_internals_are_indexed():
    parts = mx.sym.split(mx.sym.var("x"), num_outputs=3, name="s")
    assert len(parts) == 3 and parts.list_outputs() == ["s_output0", "s_output1", "s_output2"]
    assert parts[1].list_outputs() == ["s_output1"]
    assert parts["s_output2"].list_outputs() == ["s_output2"]
    assert parts[-1].list_outputs() == ["s_output2"]
    assert [part.list_outputs()[0] for part in parts] == parts.list_outputs()
    assert parts[1:].list_outputs() == ["s_output1", "s_output2"]
    assert parts.get_children().list_outputs() == ["x"] and mx.sym.var("x").get_children() is None
    assert (
        mlp().get_internals().list_outputs()
        == (
            "data fc1_weight fc1_bias fc1_output act_output fc2_weight fc2_bias fc2_output"
            " softmax_label softmax_output"
        ).split()
    )
    active = mlp().get_internals()["act_output"]
    assert active.list_arguments() == ["data", "fc1_weight", "fc1_bias"]
    for wrong, error in (("none", ValueError), (3, IndexError), (1.5, TypeError)):
        with pytest.raises(error):
            parts[wrong]
    group = mx.sym.Group([parts[0], mx.sym.var("y")])
    assert group.list_outputs() == ["s_output0", "y"]
    assert group.name is None
    assert repr(group) == "<Symbol group [s, y]>"
    with pytest.raises(TypeError):
        mx.sym.Group([])
    with pytest.raises(mx.MXNetError, match="single"):
        mx.sym.relu(parts)


def test_attributes_come_from_scopes_and_arguments():
    with mx.AttrScope(ctx_group="dev1", __own__="1"):
        x = mx.sym.var(
            "x", lr_mult=2, shape=(2, 3), dtype="float16", init=mx.init.One(), attr={"mood": "fine"}
        )
        y = mx.sym.FullyConnected(x, num_hidden=np.int64(4), name="fc", attr={"__own__": "2"})
    assert x.attr("lr_mult") == x.attr("__lr_mult__") == "2.0" or x.attr("lr_mult") == "2"
    assert x.attr("ctx_group") == "dev1"
    assert x.attr("mood") == "fine"
    assert x.attr("__shape__") == "(2, 3)"
    assert x.attr("nothing") is None
    assert y.attr("__own__") == "2" and y.attr("num_hidden") == "4"
    assert y.attr_dict()["fc_weight"]["__ctx_group__"] == "dev1"
    y._set_attr(wd_mult="0")
    assert y.list_attr()["__wd_mult__"] == "0"
    with pytest.raises(ValueError):
        y._set_attr(a=1)
    with pytest.raises(mx.MXNetError, match="__mine__"):
        mx.sym.relu(x, attr={"mine": "1"})
    with pytest.raises(ValueError):
        mx.sym.var("x", own="1")


def test_invalid_symbol_calls_raise():
    x = mx.sym.var("x")
    for call in (
        lambda: mx.sym.FullyConnected(x),  # without num_hidden
        lambda: mx.sym.FullyConnected(x, num_hidden=0),
        lambda: mx.sym.FullyConnected(x, num_hidden="many"),
        lambda: mx.sym.FullyConnected(x, num_hidden=2, wrong=1),
        lambda: mx.sym.FullyConnected(np.ones(3), num_hidden=2),
        lambda: mx.sym.FullyConnected(x, x, x, num_hidden=2, no_bias=True),
        lambda: mx.sym.Activation(x, act_type="none"),
        lambda: mx.sym.Concat(x, 3),
    ):
        with pytest.raises((mx.MXNetError, TypeError, ValueError)):
            call()
    with pytest.raises(mx.base.NotImplementedForSymbol):
        bool(x)
    for name in ("asnumpy", "wait_to_read", "backward"):
        with pytest.raises(mx.base.NotImplementedForSymbol):
            getattr(x, name)()
    with pytest.raises(TypeError):
        x + "1"


BETWEEN = [f"x {sign} y" for sign in "+ - * / % ** > >= < <= == !=".split()]
WITH_NUMBERS = "x+2 2+x x-2 2-x x*2.5 x/2 2/x x%2 3%x x**2 2**x -x abs(x) x>1 x==1".split()


@pytest.mark.parametrize("text", BETWEEN + WITH_NUMBERS)
def test_symbol_operators_equal_array_operators(text):
    values = {
        "x": mx.nd.array([[1.0, -2.0], [3.0, 1.0]]),
        "y": mx.nd.array([[2.0, 1.0], [3.0, 4.0]]),
    }
    symbol = eval(text, {"x": mx.sym.var("x"), "y": mx.sym.var("y")})
    (got,) = symbol.eval(**{name: values[name] for name in symbol.list_arguments()})
    np.testing.assert_array_equal(got.asnumpy(), eval(text, dict(values)).asnumpy())


@pytest.mark.parametrize("number", [np.float64(3), np.float32(3), np.int64(3)])
def test_numpy_scalars_work_on_either_side_of_operators(number):
    x = mx.sym.var("x")
    for text in ("n + x", "n - x", "n * x", "n / x", "n ** x", "n % x", "x - n", "n > x", "n == x"):
        ours, plain = (eval(text, {"n": n, "x": x}) for n in (number, number.item()))
        results = [y.eval(x=mx.nd.array([2]))[0].asscalar() for y in (ours, plain)]
        assert results[0] == results[1], text
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.exp(x)
    with pytest.raises(TypeError):
        np.ones(3) * x


def test_symbol_functions_accept_symbols_and_numbers():
    x = mx.sym.var("x")
    value = mx.nd.array([1.0, 4.0])
    for symbol, expected in (
        (mx.sym.maximum(x, 2), [2, 4]),
        (mx.sym.minimum(3, x), [1, 3]),
        (mx.sym.pow(2, x), [2, 16]),
        (mx.sym.hypot(x, 3), [np.sqrt(10), 5]),
        (x.sum(), [5]),
        (x.reshape((2, 1)).transpose((1, 0)), [[1, 4]]),
        (x.astype("int32"), [1, 4]),
        (mx.sym.broadcast_add(x, mx.sym.ones(2)), [2, 5]),
    ):
        np.testing.assert_allclose(symbol.eval(x=value)[0].asnumpy(), expected, rtol=1e-6)
    assert mx.sym.maximum(1, 2) == 2 and mx.sym.pow(2, 3) == 8
    np.testing.assert_array_equal(mx.sym.arange(2, 5).eval()[0].asnumpy(), [2, 3, 4])
    np.testing.assert_array_equal(mx.sym.full((2,), 7).eval()[0].asnumpy(), [7, 7])
    pieces = mx.sym.split_v2(x, 2).eval(x=value)
    assert [piece.asscalar() for piece in pieces] == [1, 4]
    draw = mx.sym.random.uniform(3, 4, shape=(50,)).eval()[0].asnumpy()
    assert draw.shape == (50,) and draw.min() >= 3 and draw.max() < 4


def test_every_public_op_exists_in_mx_sym():
    from mpgluon import _core

    for name, op in _core.ops().items():
        flags = op.describe()["flags"]
        if "hidden" not in flags and not name.startswith("_"):
            assert callable(getattr(mx.sym, name)), name
    assert mx.symbol is mx.sym
    assert mx.sym.op.relu.__doc__
    assert mx.sym.contrib
    assert mx.sym.image
    assert mx.sym._internal._plus_scalar


def test_call_composes_symbols():
    base = mx.sym.FullyConnected(mx.sym.var("a"), num_hidden=4, name="fc")
    other = mx.sym.relu(mx.sym.var("b"), name="r")
    composed = base(a=other, name="new")
    assert composed.list_arguments() == ["b", "fc_weight", "fc_bias"] and composed.name == "new"
    assert base.list_arguments() == ["a", "fc_weight", "fc_bias"] and base.name == "fc"  # unchanged
    assert base(other).list_arguments() == ["b", "fc_weight", "fc_bias"]
    with pytest.raises(mx.MXNetError, match="unknown argument 'z'"):
        base(z=other)
    with pytest.raises(TypeError):
        base(other, fc_weight=other)


def test_copied_symbols_are_independent():
    net = mlp()
    for other in (
        copy.copy(net),
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),
        mx.sym.load_json(net.tojson()),
    ):
        assert other.tojson() == net.tojson()
        other._set_attr(lr_mult="3")
        assert net.attr("lr_mult") is None


def test_infer_shape_returns_all_shapes_or_warns():
    net = mlp()
    arguments, outputs, states = net.infer_shape(data=(5, 7))
    assert dict(zip(net.list_arguments(), arguments))["fc1_weight"] == (8, 7)
    assert outputs == [(5, 3)] and states == []
    with pytest.warns(UserWarning, match="Cannot decide shape"):
        assert net.infer_shape() == (None, None, None)
    arguments, outputs, _ = net.infer_shape_partial()
    assert arguments[:3] == [(), (), (8,)] and outputs == [()]
    with pytest.raises(mx.MXNetError, match="fc1"):
        net.infer_shape(data=(5, 7), fc1_weight=(8, 6))
    with pytest.raises(TypeError):
        net.infer_shape(data=5)


def test_infer_shape_propagates_in_both_directions():
    a, b = mx.sym.var("a", shape=(0, 10)), mx.sym.var("b", shape=(12, 0))
    assert (a + b).infer_shape()[0] == [(12, 10), (12, 10)]
    batch = mx.sym.FullyConnected(mx.sym.var("x", shape=(0, 4)), num_hidden=3) + mx.sym.var(
        "y", shape=(6, 0)
    )
    assert dict(zip(batch.list_arguments(), batch.infer_shape()[0]))["x"] == (6, 4)
    joined = mx.sym.Concat(
        mx.sym.var("p", shape=(0, 2)), mx.sym.var("q", shape=(3, 0)), dim=1
    ) + mx.sym.var("r", shape=(0, 7))
    assert joined.infer_shape()[0] == [(3, 2), (3, 5), (3, 7)]
    split = mx.sym.split(mx.sym.var("x"), num_outputs=2, axis=1)[0] + mx.sym.var("y", shape=(2, 3))
    assert split.infer_shape()[0][0] == (2, 6)
    with mx.np_shape():
        assert mx.sym.relu(mx.sym.var("x")).infer_shape_partial() == ([None], [None], [])
        assert mx.sym.transpose(mx.sym.var("x")).infer_shape_partial(x=(-1, 4))[1] == [(4, -1)]


def test_infer_type_propagates_dtypes():
    data = mx.sym.var("data")
    net = mx.sym.FullyConnected(mx.sym.cast(data, dtype="float64"), num_hidden=2, name="fc")
    arguments, outputs, _ = net.infer_type(data="float16")
    assert arguments == [np.float16, np.float64, np.float64] and outputs == [np.float64]
    assert net.infer_type_partial()[0] == [None, np.float64, np.float64]
    assert net.infer_type() == (None, None, None)


def test_tojson_matches_mxnets_format():
    net = mx.sym.BatchNorm(mlp(), name="bn")
    document = json.loads(net.tojson())
    assert document["attrs"]["mxnet_version"] == ["int", 10901]
    assert document["nodes"][-1] == {
        "op": "BatchNorm",
        "name": "bn",
        "inputs": [[9, 0, 0], [10, 0, 0], [11, 0, 0], [12, 0, 1], [13, 0, 1]],
    }
    assert document["heads"] == [[14, 0, 0]]
    assert document["arg_nodes"] == [0, 1, 2, 5, 6, 8, 10, 11, 12, 13]
    assert document["nodes"][3]["attrs"] == {"num_hidden": "8"}


def test_symbol_is_saved_and_loaded(tmp_path):
    path = str(tmp_path / "net-symbol.json")
    mlp().save(path)
    assert mx.sym.load(path).tojson() == mlp().tojson()
    with pytest.raises(OSError):
        mx.sym.load(str(tmp_path / "none.json"))
    with pytest.raises(TypeError):
        mx.sym.load(3)


def test_json_before_0_9_is_read():
    """That format separates "param" and "attr", has two numbers per input, no auxiliary states, and
    short names of multipliers."""

    def node(op, name, inputs=(), param=(), **more):
        more = more if op != "null" else {"backward_source_id": -1, **more}
        return {"op": op, "name": name, "inputs": inputs, "param": dict(param), **more}

    nodes = [
        node("null", "data", attr={"lr_mult": "3"}),
        node("null", "bn_gamma"),
        node("null", "bn_beta"),
        node("BatchNorm", "bn", [[0, 0], [1, 0], [2, 0]], {"eps": "0.01"}),
        node("argmax", "am", [[3, 0]], {"axis": "-1"}),
    ]
    nodes[3]["attr"] = {"ctx_group": "a", "gamma_lr_mult": "5"}
    document = {"nodes": nodes, "arg_nodes": [0, 1, 2], "heads": [[4, 0]]}
    net = mx.sym.load_json(json.dumps(document))
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    attributes = net.attr_dict()
    assert attributes["bn"]["eps"] == "0.01"
    assert attributes["bn"]["__ctx_group__"] == "a"
    assert attributes["data"]["__lr_mult__"] == "3"
    assert attributes["bn_gamma"]["__lr_mult__"] == "5" and "axis" not in attributes.get("am", {})


def _old(nodes, version=None):
    rows = [{"op": op, "name": name, "inputs": inputs, **more} for op, name, inputs, more in nodes]
    tag = {"attrs": {"mxnet_version": ["int", version]}} if version else {}
    return mx.sym.load_json(
        json.dumps({"nodes": rows, "arg_nodes": [], "heads": [[len(rows) - 1, 0]], **tag})
    )


def test_json_before_0_9_gets_missing_variables():
    """Before 0.9, files omit variables without an explicit name; they get the attributes of their
    op."""
    nodes = [
        ("null", "data", [], {}),
        (
            "FullyConnected",
            "fc",
            [[0, 0]],
            {"param": {"num_hidden": "4"}, "attr": {"ctx_group": "a"}},
        ),
    ]
    net = _old(nodes)
    assert net.list_arguments() == ["data", "fc_weight", "fc_bias"]
    assert net.attr_dict()["fc_weight"]["__ctx_group__"] == "a"
    with pytest.raises(mx.MXNetError, match="needs 3 inputs, but the file has 1"):
        _old(nodes, 900)


def test_json_before_0_9_4_gets_initializers_of_states():
    """Before 0.9.4, auxiliary states have no initializer attribute."""
    variables = ["data", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]
    nodes = [("null", name, [], {}) for name in variables] + [
        ("BatchNorm", "bn", [[i, 0, int(i > 2)] for i in range(5)], {"attrs": {"eps": "0.001"}})
    ]
    for version, there in ((901, True), (903, True), (904, False), (10901, False)):
        attributes = _old(nodes, version).attr_dict()
        assert attributes.get("bn_moving_var") == ({"__init__": '["one", {}]'} if there else None)
    prelu = [
        ("null", "data", [], {}),
        ("null", "g", [], {}),
        ("LeakyReLU", "a", [[0, 0], [1, 0]], {"param": {"act_type": "prelu"}}),
    ]
    assert _old(prelu).attr_dict()["g"]["__init__"] == '["Constant", {"value": 0.25}]'


def test_old_json_moves_prefixed_attributes_to_inputs():
    """``weight_lr_mult`` of an op applies to its input `weight`, independent of the variable's
    name."""
    nodes = [
        ("null", "x", [], {}),
        ("null", "w", [], {"attr": {"lr_mult": "9"}}),
        ("null", "b", [], {}),
        (
            "FullyConnected",
            "fc",
            [[0, 0], [1, 0], [2, 0]],
            {"param": {"num_hidden": "4"}, "attr": {"weight_lr_mult": "2", "bias_wd_mult": "0"}},
        ),
    ]
    attributes = _old(nodes).attr_dict()
    assert attributes["w"]["__lr_mult__"] == "2"
    assert attributes["b"]["__wd_mult__"] == "0"
    assert "weight_lr_mult" not in attributes["fc"]


@pytest.mark.parametrize(
    "op, params, shape",
    [
        ("Convolution", {"kernel": "(3,3)", "num_filter": "4"}, (2, 4, 6, 6)),
        ("Pooling", {"kernel": "(2,2)", "stride": "(2,2)", "pool_type": "max"}, (2, 3, 4, 4)),
        ("BatchNorm", {}, (2, 3, 8, 8)),
    ],
)
def test_old_json_maps_v1_layers(op, params, shape):
    net = _old([("null", "x", [], {}), (f"{op}_v1", "a", [[0, 0]], {"param": params})])
    assert net.infer_shape(x=(2, 3, 8, 8))[1] == [shape]


@pytest.mark.parametrize(
    "call, given, found",
    [
        (
            lambda x: mx.sym.RNN(
                x, state_size=4, num_layers=2, mode="lstm", state_outputs=True, name="r"
            ),
            (5, 0, 3),
            ([(304,), (2, 0, 4), (2, 0, 4)], [(5, 0, 4), (2, 0, 4), (2, 0, 4)]),
        ),
        (lambda x: x.reshape((-1, 4)), (0, 4), ([], [(0, 4)])),
        (lambda x: x.expand_dims(1).swapaxes(0, 2), (0, 4), ([], [(4, 1, 0)])),
        (lambda x: mx.sym.SoftmaxOutput(x, name="s"), (0, 4), ([(0,)], [(0, 4)])),
        (lambda x: mx.sym.split(x, num_outputs=2, axis=1), (0, 4), ([], [(0, 2), (0, 2)])),
        (lambda x: x.slice_axis(axis=0, begin=0, end=5) * 2, (0, 4), ([], [(0, 4)])),
        (
            lambda x: mx.sym.UpSampling(x, scale=2, sample_type="nearest"),
            (0, 3, 0, 4),
            ([], [(0, 3, 0, 8)]),
        ),
    ],
)
def test_infer_shape_partial_with_unknown_sizes(call, given, found):
    arguments, outputs, _ = call(mx.sym.var("x")).infer_shape_partial(x=given)
    assert (arguments[1:], outputs) == found


def test_output_names_match_mxnet():
    x = mx.sym.var("x")
    rnn = mx.sym.RNN(x, state_size=4, num_layers=1, mode="lstm", state_outputs=True, name="r")
    assert rnn.list_outputs() == ["r_output", "r_state_output", "r_statecell_output"]
    assert mx.sym.make_loss(x, name="m").list_outputs() == ["m_loss"]
    assert mx.sym.sort(x, name="s").list_outputs() == ["s_output0"]
    assert mx.sym.linalg.det(x, name="d").list_outputs() == ["d_output0"]

    assert mx.sym.topk(x, ret_typ="value", name="t").list_outputs() == ["t_output0"]
    assert mx.sym.topk(x, name="t").list_outputs() == ["t_output"]
    assert mx.sym.topk(x, ret_typ="both", name="t").list_outputs() == ["t_output0", "t_output1"]
    assert mx.sym.SliceChannel(x, num_outputs=1, name="c").list_outputs() == ["c_output0"]


def test_unknown_json_attributes_raise_or_are_kept():
    """As in MXNet, ops with parameters raise an error. Ops without parameters keep them, and every
    op keeps attributes between underscores."""
    text = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="f").tojson()
    with pytest.raises(
        mx.MXNetError,
        match="f: FullyConnected has no parameter 'num_hiden'; its parameters are flatten, "
        "no_bias, num_hidden",
    ):
        mx.sym.load_json(text.replace('"num_hidden": "3"', '"num_hidden": "3", "num_hiden": "4"'))
    assert (
        mx.sym.load_json(
            text.replace('"num_hidden": "3"', '"num_hidden": "3", "__mine__": "4"')
        ).attr("__mine__")
        == "4"
    )
    with mx.AttrScope(__mine__="5"):
        text = mx.sym.relu(mx.sym.var("x")).tojson()
    assert mx.sym.load_json(text.replace("__mine__", "mine")).attr("mine") == "5"


def graph(op, inputs, **more):
    """Returns the JSON of a variable and an op on it."""
    nodes = [
        {"op": "null", "name": "x", "inputs": []},
        {"op": op, "name": "a", "inputs": inputs, **more},
    ]
    return json.dumps({"nodes": nodes, "heads": [[1, 0, 0]]})


VERSION = {"attrs": {"mxnet_version": ["int", 10901]}}
HOSTILE = {
    "empty": "",
    "no json": "{",
    "a list": "[]",
    "no nodes": "{}",
    "deep": "[" * 200000,
    "deeper": '{"nodes":' * 100000,
    "cut": mlp().tojson()[:700],
    "cyclic": graph("relu", [[1, 0, 0]]),
    "forward": json.dumps(
        {"nodes": json.loads(graph("relu", [[1, 0, 0]]))["nodes"][::-1], "heads": [[0, 0, 0]]}
    ),
    "negative": graph("relu", [[-1, 0, 0]]),
    "output": graph("relu", [[0, 7, 0]]),
    "head": '{"nodes":[{"op":"null","name":"a","inputs":[]}],"heads":[[9,0,0]]}',
    "no heads": '{"nodes":[{"op":"null","name":"a","inputs":[]}],"heads":[]}',
    "unknown op": graph("Nonesuch", []),
    "missing parameter": graph("FullyConnected", [[0, 0, 0]] * 3),
    "wrong parameter": graph("relu", [[0, 0, 0]], attrs=[1]),
    "few inputs": json.dumps({**json.loads(graph("elemwise_add", [[0, 0, 0]])), **VERSION}),
    "many inputs": graph("relu", [[0, 0, 0]] * 2),
    "huge count": graph("Concat", [[0, 0, 0]], attrs={"num_args": "999999999999"}),
    "huge outputs": graph("split", [[0, 0, 0]], attrs={"num_outputs": "99999999"}),
    "huge number": graph("relu", [[99999999999999999999999, 0, 0]]),
    "text for a number": graph("relu", [["0", 0, 0]]),
    "subgraph": graph("_foreach", [], subgraphs=[{}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_raises(name):
    with pytest.raises(mx.MXNetError):
        mx.sym.load_json(HOSTILE[name])


def test_hidden_ops_in_json_raise():
    hidden = [
        name for name in _core.list_ops() if "hidden" in _core.get_op(name).describe()["flags"]
    ]
    assert len(hidden) > 50
    for name in hidden:
        nodes = [
            {"op": "null", "name": "x", "inputs": []},
            {"op": name, "name": "y", "inputs": [[0, 0, 0]] * 2},
        ]
        with pytest.raises(mx.MXNetError, match=f"y: {name} is an internal op of"):
            mx.sym.load_json(json.dumps({"nodes": nodes, "heads": [[1, 0, 0]]}))


def test_deep_chains_are_copied_inferred_and_evaluated():
    x = symbol = mx.sym.var("x")
    for _ in range(3000):
        symbol = symbol + 1
    assert len(symbol.get_internals()) == 3001
    again = copy.deepcopy(mx.sym.load_json(symbol.tojson()))
    assert again.infer_shape(x=(2,))[1] == [(2,)]
    assert again(x=x).list_arguments() == ["x"]
    assert again.eval(x=mx.nd.zeros(2))[0].asnumpy().tolist() == [3000, 3000]
    del symbol, again


def test_debug_str_lists_nodes():
    text = mlp().debug_str()
    assert "Op:FullyConnected, Name=fc2" in text
    assert "Variable:fc1_bias" in text
    assert "num_hidden=8" in text
    assert "output[0]=softmax(0)" in text


def test_symbol_as_in_context_moves_its_value():
    moved = mx.sym.var("x").as_in_context(on(1)) * 2
    (out,) = moved.eval(x=mx.nd.ones(3, ctx=on(0)))
    assert out.context == on(1) and out.asnumpy().tolist() == [2, 2, 2]
    assert mx.sym.load_json(moved.tojson()).tojson() == moved.tojson()


def test_symbols_load_lazily():
    """Importing the package does not load mpgluon.symbol."""
    code = (
        "import sys, mpgluon as mx; assert 'mpgluon.symbol' not in sys.modules; mx.sym.var('x'); "
        "assert mx.symbol.Symbol is mx.Symbol"
    )
    finished(code)


@pytest.mark.parametrize("scale", [2, 3])
def test_bilinear_upsampling_keeps_constants_and_ramps(scale, tmp_path):
    """Holds away from the edges."""
    net = mx.sym.UpSampling(
        mx.sym.var("data"), scale=scale, sample_type="bilinear", num_filter=2, name="up", num_args=2
    )
    size = 2 * scale - scale % 2
    assert net.list_arguments() == ["data", "up_weight"] and net.list_outputs() == ["up_output"]
    assert net.infer_shape(data=(1, 2, 4, 5)) == (
        [(1, 2, 4, 5), (2, 1, size, size)],
        [(1, 2, 4 * scale, 5 * scale)],
        [],
    )
    weight = mx.nd.zeros((2, 1, size, size))
    mx.init.Mixed([".*"], [mx.init.Xavier()])(
        mx.init.InitDesc("up_weight", net.attr_dict()["up_weight"]), weight
    )
    ramp = mx.nd.broadcast_to(mx.nd.arange(5).reshape((1, 1, 1, 5)), (1, 2, 4, 5))
    found = net.bind(on(0), {"data": ramp, "up_weight": weight}).forward()[0].asnumpy()
    inner = found[0, 1, scale:-scale, scale:-scale]
    np.testing.assert_allclose(np.diff(inner, axis=1), 1 / scale, rtol=1e-5)
    np.testing.assert_array_equal(
        mx.nd.UpSampling(ramp, weight, scale=scale, sample_type="bilinear", num_filter=2).asnumpy(),
        found,
    )
    node = {
        "op": "UpSampling",
        "name": "up",
        "attrs": {"scale": str(scale), "sample_type": "bilinear", "num_filter": "2", "__a__": "b"},
        "inputs": [[0, 0], [1, 0]],
    }
    document = {
        "nodes": [
            {"op": "null", "name": "data", "inputs": []},
            {"op": "null", "name": "w", "inputs": []},
            node,
        ],
        "heads": [[2, 0]],
    }
    read = mx.sym.load_json(json.dumps(document))
    assert read.attr_dict()["up"]["__a__"] == "b"
    np.testing.assert_array_equal(
        read.bind(on(0), {"data": ramp, "w": weight}).forward()[0].asnumpy(), found
    )
    node["attrs"]["scale"] = "two"
    with pytest.raises(mx.MXNetError, match="up: "):
        mx.sym.load_json(json.dumps(document))
    with pytest.raises(ValueError, match="num_filter"):
        mx.nd.UpSampling(ramp, weight, scale=scale, sample_type="bilinear")
    with pytest.raises(TypeError, match="got 1 arrays"):
        mx.nd.UpSampling(ramp, scale=scale, sample_type="bilinear", num_filter=2)


def test_types_are_inferred_backwards():
    """As in MXNet, through every op whose output has the dtype of its input."""
    a, b = mx.sym.var("a"), mx.sym.var("b")
    half = [np.float16]
    product = mx.sym.dot(mx.sym.Activation(a, act_type="relu"), b)
    assert product.infer_type(b="float16") == (half * 2, half, [])
    quotient = (mx.sym.zeros((2, 2)) + mx.sym.Flatten(a)) / b
    assert quotient.infer_type() == ([np.float32] * 2, [np.float32], [])
    ops = [
        mx.sym.relu,
        mx.sym.transpose,
        mx.sym.Flatten,
        lambda x: mx.sym.sum(x, axis=0),
        lambda x: mx.sym.reshape(x, shape=(-1,)),
        lambda x: mx.sym.clip(x, 0, 1),
        lambda x: x * 2,
        lambda x: mx.sym.concat(x, x, dim=0),
        mx.sym.softmax,
        lambda x: mx.sym.slice_axis(x, axis=0, begin=0, end=1),
        lambda x: mx.sym.Dropout(x, p=0.5),
    ]
    for op in ops:
        found = (op(a) + b).infer_type(b="float64")
        assert found == ([np.float64] * 2, [np.float64], []), op(a).name
    cast = mx.sym.Cast(a, dtype="float64") + b
    assert cast.infer_type_partial(b="float64")[0] == [None, np.float64]


def test_shapes_and_types_are_inferred_independently():
    data = mx.sym.var("a", shape=(2, 3))
    norm = mx.sym.InstanceNorm(data, mx.sym.var("g"), mx.sym.var("h"))
    assert norm.infer_type(a="float32")[0] == [np.float32] * 3
    with pytest.raises(mx.MXNetError):
        norm.infer_shape()
    total = mx.sym.zeros((2,)) + mx.sym.var("a", dtype="float64")
    assert total.infer_shape(a=(2,)) == ([(2,)], [(2,)], [])
    with pytest.raises(mx.MXNetError):
        total.infer_type()


@pytest.mark.parametrize(
    "what", ["infer_shape", "infer_shape_partial", "infer_type", "infer_type_partial"]
)
def test_inference_rejects_unknown_names(what):
    value = (2, 3) if "shape" in what else "float32"
    net = mx.sym.BatchNorm(mx.sym.var("data"), name="n")
    with pytest.raises(
        mx.MXNetError,
        match="no argument named dat; the arguments are data, n_gamma, n_beta, n_moving_mean, "
        "n_moving_var",
    ):
        getattr(net, what)(dat=value)
    getattr(net, what)(data=value)


def test_group_has_the_attributes_of_its_first_output():
    first = mx.sym.FullyConnected(mx.sym.var("a"), num_hidden=3)
    assert (
        mx.sym.Group([first, mx.sym.var("b")]).list_attr()
        == first.list_attr()
        == {"num_hidden": "3"}
    )


@pytest.mark.parametrize("unknown", [0, -1])
def test_unknown_sizes_propagate_through_transpose(unknown):
    for axes, made in (None, (unknown, unknown, 2)), ((1, 2, 0), (unknown, 2, unknown)):
        other = mx.sym.transpose(mx.sym.ones(shape=made), **({"axes": axes} if axes else {}))
        both = mx.sym.ones(shape=(2, 3, unknown)) + other + mx.sym.zeros(shape=(2, 3, 4))
        assert both.infer_shape()[1] == [(2, 3, 4)]
        assert both.bind(mx.cpu(), args={}).forward()[0].asnumpy().tolist() == [[[2] * 4] * 3] * 2
    x = mx.sym.var("x")
    assert (mx.sym.transpose(x, axes=(1, 0)) + mx.sym.ones((2, 3))).infer_shape()[0] == [(3, 2)]
    with pytest.raises(mx.MXNetError, match="negative dimension"):
        mx.sym.ones(shape=(-1, 2)).bind(mx.cpu(), args={}).forward()
    for symbols in (mx.sym, mx.sym.np):
        with pytest.raises(mx.MXNetError, match="negative dimension"):
            symbols.ones(shape=(-5, 2)).infer_shape()


def test_symbol_block_rejects_sparse_parameters():
    weight = mx.sym.var("weight", stype="row_sparse")
    with pytest.raises(AssertionError, match="'weight' has sparse storage"):
        mx.gluon.SymbolBlock(mx.sym.dot(mx.sym.var("data"), weight), mx.sym.var("data"))
