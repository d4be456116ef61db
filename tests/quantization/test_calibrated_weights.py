"""quantize_weights with calibration data: GPTQ and AWQ."""

import contextlib

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.contrib import _weight_only
from mpgluon.contrib.quantization import quantize_weights
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from support.devices import on

GROUPED = [
    {"format": "int4", "group": 16},
    {"format": "int4", "group": 0},
    {"format": "int4", "group": 16, "use_zeros": True},
    {"format": "nf4", "group": 32},
    {"format": "int8"},
]


def correlated(rows, inputs, seed=0):
    """Returns rows whose elements depend on few factors, and with some large channels."""
    random = np.random.RandomState(seed)
    mixing = np.random.RandomState(99).randn(max(2, inputs // 4), inputs)
    x = random.randn(rows, len(mixing)) @ mixing / 4 + 0.1 * random.randn(rows, inputs)
    scale = np.ones(inputs)
    scale[:: inputs // 4] = 8
    return nd.array(x * scale)


def dense_network():
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(
        nn.Dense(48, in_units=64, activation="relu"),
        nn.Dense(64, in_units=48),
        nn.Dense(16, in_units=64, use_bias=False),
    )
    net.initialize(mx.init.Normal(0.2))
    return net


def decoder(kind="llama", **changes):
    mx.random.seed(4)
    net = text.from_config(
        {
            "model_type": kind,
            "vocab_size": 40,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            **changes,
        }
    )
    net.initialize(mx.init.Normal(0.25))
    for layer in net.layers:  # some channels of the norms are large, as in trained networks
        for norm in (layer.attention_norm, layer.mlp_norm):
            gamma = norm.gamma.data().asnumpy()
            gamma[::7] += 6
            norm.gamma.set_data(nd.array(gamma))
    return net


def tokens(seed=0, rows=8):
    random = np.random.RandomState(seed)
    return nd.array(random.randint(0, 40, (rows, 12)), dtype="int32")


def error(net, want, x):
    return float(np.square(net(x).asnumpy() - want).mean())


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("options", GROUPED, ids=str)
def test_error_of_one_layer_is_smaller_than_by_rounding(options, method):
    x, test = correlated(512, 64), correlated(256, 64, seed=1)
    errors = {}
    for each in ("rtn", method):
        mx.random.seed(1)
        net = nn.HybridSequential()
        net.add(nn.Dense(40, in_units=64))
        net.initialize(mx.init.Normal(0.2))
        want = net(test).asnumpy()
        data = {} if each == "rtn" else {"data": x}
        assert quantize_weights(net, method=each, **options, **data) is net
        assert type(net[0]) is nn.QuantizedDense
        errors[each] = error(net, want, test)
    assert errors[method] < (0.8 if method == "gptq" else 0.99) * errors["rtn"]


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("hybridize", [False, True])
def test_error_of_network_is_smaller_than_by_rounding(method, hybridize):
    x, test = correlated(512, 64), correlated(256, 64, seed=1)
    errors = {}
    for each in ("rtn", method):
        net = dense_network()
        net.hybridize(hybridize)
        want = net(test).asnumpy()
        data = {} if each == "rtn" else {"data": [x[:256], x[256:]]}
        quantize_weights(net, "int4", group=16, method=each, **data)
        errors[each] = error(net, want, test)
        assert net._active == hybridize
    assert errors[method] < 0.8 * errors["rtn"]


@pytest.mark.parametrize("kind", ["llama", "gemma", "qwen2"])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_error_of_language_model_is_smaller_than_by_rounding(method, kind):
    errors = {}
    for each in ("rtn", method):
        net = decoder(kind, head_dim=8) if kind == "gemma" else decoder(kind)
        want = net(tokens(1)).asnumpy()
        data = {} if each == "rtn" else {"data": [tokens(2, 32), tokens(3, 32)]}
        quantize_weights(net, "int4", group=16, method=each, skip="head", **data)
        errors[each] = error(net, want, tokens(1))
    assert errors[method] < 0.8 * errors["rtn"]


def test_divided_inputs_keep_results_of_network(monkeypatch):
    """AWQ with weights that are not rounded must not change the network."""
    from mpgluon.contrib import _calibrated_weights as calibrated

    def factors(fold, values, x, size, options):
        count = len(fold.reduced(size[fold.layers[0]]))
        return np.exp(np.random.RandomState(count).randn(count)).astype(np.float32)

    monkeypatch.setattr(calibrated, "_best_scale", factors)
    monkeypatch.setattr(calibrated, "_clipped", lambda weight, *_: weight)
    nets = [decoder("llama"), decoder("gemma", head_dim=8), decoder("qwen2")]
    cell = nn.TransformerEncoderCell(32, hidden=64, heads=4)
    post = nn.TransformerEncoderCell(32, hidden=64, heads=4, pre_norm=False)
    for net in (cell, post):
        net.initialize(mx.init.Normal(0.3))
        nets.append(net)
    for net in nets:
        x = tokens() if net not in (cell, post) else nd.random.normal(shape=(2, 5, 32))
        want = net(x).asnumpy()
        before = {id(p): p.data().asnumpy() for p in net.collect_params().values()}
        layers = {}
        net.apply(
            lambda b, layers=layers: layers.update({b: b.name} if type(b) is nn.Dense else {})
        )
        replaced = []

        def replace(layer, weight, replaced=replaced):
            replaced.append(layer)
            layer.weight.set_data(nd.array(weight))

        groups = dict.fromkeys(layers.values(), 0)
        task = calibrated.Task("", net, layers, [(x,)], replace, "int8", groups, False)
        calibrated.awq(task, contextlib.ExitStack())
        assert len(replaced) == len(layers)
        changed = [
            p.name
            for p in net.collect_params().values()
            if not np.array_equal(before[id(p)], p.data().asnumpy())
        ]
        norms = [name for name in changed if "norm" in name]
        assert bool(norms) == (net is not post)
        assert any("value" in name for name in changed)
        assert np.abs(net(x).asnumpy() - want).max() < 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("options", [GROUPED[2], {"format": "int8"}], ids=str)
def test_gptq_in_order_of_importance(options):
    x, test = correlated(512, 64), correlated(256, 64, seed=1)
    net = dense_network()
    want = net(test).asnumpy()
    quantize_weights(net, method="gptq", data=x, use_order=True, **options)
    assert sorted(net[0].order.data().asnumpy().tolist()) == list(range(64))
    plain = dense_network()
    quantize_weights(plain, **options)
    assert error(net, want, test) < 0.8 * error(plain, want, test)


def test_gptq_of_uncorrelated_inputs_rounds_to_nearest():
    net, plain = dense_network(), dense_network()
    x = nd.array(np.eye(64) * 3)
    options = {"format": "int4", "group": 16, "layers": "0"}
    quantize_weights(net, method="gptq", data=x, **options)
    quantize_weights(plain, **options)
    assert np.array_equal(net[0].packed.data().asnumpy(), plain[0].packed.data().asnumpy())
    assert np.array_equal(net[0].scales.data().asnumpy(), plain[0].scales.data().asnumpy())


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_placed_network_has_values_of_one_device(method):
    found = []
    for place in (False, True):
        net = decoder()
        if place:
            net.place({"embed": on(0), r"layers\.0": on(0), "": on(1)}, verbose=False)
        quantize_weights(net, "int4", group=16, method=method, data=tokens())
        if place:
            assert net.layers[1].mlp.down.packed.list_ctx() == [on(1)]
        found.append({n: p.data().asnumpy() for n, p in net._collect_params_with_prefix().items()})
    for name, value in found[0].items():
        assert np.array_equal(value, found[1][name]), name


def test_inputs_that_are_unused_or_constant_are_accepted():
    x = np.zeros((64, 64), "float32")
    x[:, 3] = 1  # all other inputs are 0, so the Gram matrix is singular
    for method in ("gptq", "awq"):
        net = dense_network()
        want = net(nd.array(x)).asnumpy()
        quantize_weights(net, "int8", method=method, data=nd.array(x))
        assert np.isfinite(net(nd.array(x)).asnumpy()).all()
        assert np.abs(net(nd.array(x)).asnumpy() - want).max() < 0.1 * np.abs(want).max()


def test_layers_with_several_inputs_of_the_network():
    class Two(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.first = nn.Dense(8, in_units=16, flatten=False)
            self.second = nn.Dense(8, in_units=16)

        def hybrid_forward(self, F, a, b):
            return self.first(a).sum(axis=1) + self.second(b)

    net = Two()
    net.initialize()
    a, b = nd.random.normal(shape=(4, 3, 16)), nd.random.normal(shape=(4, 4, 4))
    want = net(a, b).asnumpy()
    quantize_weights(net, "int8", method="gptq", data=[(a, b), (a * 2, b)])
    assert np.abs(net(a, b).asnumpy() - want).max() < 0.05 * np.abs(want).max()


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"method": "gptq"}, "needs data, some typical inputs"),
        ({"method": "gptq", "data": 3}, "data must be an array"),
        ({"method": "gptq", "data": ["x"]}, "must consist of NDArrays"),
        ({"method": "gptq", "data": []}, "data has no batches"),
        ({"method": "rtn", "data": nd.ones((2, 64))}, "needs neither data"),
        ({"method": "best"}, "method must be 'rtn', 'gptq' or 'awq'"),
        (
            {"method": "gptq", "format": "q8_0", "layers": "0", "data": nd.ones((2, 64))},
            "needs a format",
        ),
        ({"method": "awq", "use_order": True, "data": nd.ones((2, 64))}, "use_order needs method"),
        ({"method": "gptq", "use_zeros": True, "data": nd.ones((2, 64))}, "only 'int4' has zeros"),
        ({"method": "gptq", "data": nd.ones((2, 64)) * np.inf}, "are not finite"),
    ],
)
def test_wrong_options_raise_error_and_change_nothing(options, reason):
    net = dense_network()
    with pytest.raises(ValueError, match=reason):
        quantize_weights(net, **options)
    assert all(type(layer) is nn.Dense for layer in net)


@pytest.mark.parametrize("method", ["rtn", "gptq", "awq", "awq, last step"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failure_half_way_leaves_network_unchanged(monkeypatch, method, error):
    net = decoder("qwen2")
    layers, want = named_blocks(net), net(tokens()).asnumpy()
    before = {name: p.data().asnumpy() for name, p in net.collect_params().items()}
    method, *last = method.split(", ")
    owner, name = (gluon.Parameter, "set_data") if last else (_weight_only, "_filled")
    original, calls = getattr(owner, name), []

    def failing(*arguments, **options):
        replaced = any(type(block) is nn.QuantizedDense for block in named_blocks(net).values())
        calls.append(replaced and not (last and type(net.head) is nn.Dense))
        if sum(calls) == 3:
            raise error("half way")
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, failing)
    data = {} if method == "rtn" else {"data": tokens()}
    with pytest.raises(error, match="half way"):
        quantize_weights(net, "int4", group=16, method=method, **data)
    monkeypatch.undo()
    assert named_blocks(net) == layers
    assert all((p.data().asnumpy() == before[n]).all() for n, p in net.collect_params().items())
    assert (net(tokens()).asnumpy() == want).all()
    quantize_weights(net, "int4", group=16, method=method, **data)
    assert type(net.head) is nn.QuantizedDense


def named_blocks(net, path=""):
    """Returns the descendants by path."""
    found = {}
    for name, child in net._children.items():
        found.update({f"{path}{name}": child, **named_blocks(child, f"{path}{name}.")})
    return found


def test_layer_that_is_not_called_is_named():
    net = dense_network()
    net[0].spare = nn.Dense(4, in_units=4)
    net[0].spare.initialize()
    with pytest.raises(ValueError, match=r"'0\.spare' is not called for data"):
        quantize_weights(net, method="gptq", data=nd.ones((2, 64)))
