"""nn.QuantizedDense and quantize_weights."""

import copy

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from support.devices import on
from support.networks import PROMPTS, decoder
from support.pipelines import data

quantize_weights = mx.contrib.quantization.quantize_weights


def network(**options):
    net = nn.HybridSequential()
    net.add(
        nn.Dense(64, in_units=32, activation="relu", **options),
        nn.GatedMLP(64, 96, in_units=64),
        nn.Dense(8, in_units=64, flatten=False),
    )
    net.initialize(mx.init.Normal(0.3))
    return net


def dense_of(net):
    """Returns the network with unpacked weights."""
    net = copy.deepcopy(net)

    def visit(block):
        for name, child in list(block._children.items()):
            if isinstance(child, nn.QuantizedDense):
                new = nn.Dense(
                    child._units,
                    in_units=child._in_units,
                    use_bias=child.bias is not None,
                    flatten=child._flatten,
                )
                new.initialize()
                new.weight.set_data(child.dequantized())
                if child.bias is not None:
                    new.bias.set_data(child.bias.data())
                new.act = child.act
                block.replace_child(name, new)
            else:
                visit(child)

    visit(net)
    return net


@pytest.mark.parametrize("format", ["int8", "int4", "nf4", "q8_0", "q4_0"])
def test_networks_equal_those_of_unpacked_weights(format):
    net = network()
    x = nd.random.uniform(-1, 1, (4, 32))
    before = net(x)
    assert quantize_weights(net, format) is net
    assert isinstance(net[1].up, nn.QuantizedDense)
    after = net(x)
    np.testing.assert_allclose(after.asnumpy(), dense_of(net)(x).asnumpy(), rtol=1e-4, atol=1e-4)
    change = np.abs((after - before).asnumpy()).max() / np.abs(before.asnumpy()).max()
    assert 0 < change < 0.3
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), after.asnumpy(), rtol=1e-4, atol=1e-4)
    net.hybridize(exact=True)
    np.testing.assert_array_equal(net(x).asnumpy(), after.asnumpy())


def test_rows_are_flattened_as_in_dense():
    layer = nn.QuantizedDense(3, 12)
    layer.initialize()
    assert layer(nd.ones((2, 3, 4))).shape == (2, 3)
    keeping = nn.QuantizedDense(3, 4, flatten=False)
    keeping.initialize()
    assert keeping(nd.ones((2, 3, 4))).shape == (2, 3, 3)


@pytest.mark.parametrize("format", ["int8", "int4", "nf4", "q8_0", "q4_0", "q4_k", "q6_k"])
def test_a_new_layer_is_zero(format):
    layer = nn.QuantizedDense(3, 256, format=format)
    layer.initialize()
    assert (layer.dequantized().asnumpy() == 0).all()
    assert {name for name, p in layer.collect_params().items() if p.grad_req != "null"} == {
        layer.bias.name
    }


def test_order_permutes_the_data():
    layer = nn.QuantizedDense(5, 32, format="int4", group=8, use_zeros=True, use_order=True)
    layer.initialize()
    random = np.random.RandomState(0)
    x = nd.random.uniform(-1, 1, (3, 32))
    assert (layer.order.data().asnumpy() == np.arange(32)).all()
    order = random.permutation(32)
    layer.order.set_data(nd.array(order, dtype="int32"))
    layer.packed.set_data(nd.array(random.randint(0, 256, (5, 16)), dtype="uint8"))
    packed = nd.contrib.dequantize_weight(
        layer.packed.data(), layer.scales.data(), layer.zeros.data(), **layer._options()
    ).asnumpy()
    np.testing.assert_array_equal(layer.dequantized().asnumpy()[:, order], packed)
    want = x.asnumpy() @ layer.dequantized().asnumpy().T
    np.testing.assert_allclose(layer(x).asnumpy(), want, rtol=1e-4, atol=1e-4)
    x.attach_grad()
    with autograd.record():
        y = layer(x)
    y.backward()
    want = layer.dequantized().asnumpy().sum(0)
    np.testing.assert_allclose(x.grad.asnumpy(), np.tile(want, (3, 1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_cast_keeps_packed_weights(dtype):
    net = quantize_weights(network(), "int4")
    before = {n: p.data().asnumpy() for n, p in net.collect_params(".*packed|.*scales").items()}
    x = nd.random.uniform(-1, 1, (2, 32))
    want = net(x).asnumpy()
    net.cast(dtype)
    for name, array in before.items():
        now = net.collect_params()[name].data().asnumpy()
        assert now.dtype == array.dtype
        np.testing.assert_array_equal(now, array)
    got = net(x.astype(dtype))
    assert got.dtype == x.astype(dtype).dtype
    assert net[0].dequantized().dtype == got.dtype
    error = np.abs(got.astype("float32").asnumpy() - want).max()
    assert error < {"float16": 0.01, "bfloat16": 0.05, "float64": 1e-5}[dtype] * np.abs(want).max()


def test_weight_of_a_packed_layer_raises_a_hint():
    layer = quantize_weights(network(), "int8")[0]
    with pytest.raises(AttributeError, match=r"no attribute 'weight'; use layer\.dequantized\(\)"):
        layer.weight
    assert not hasattr(layer, "weight") and "weight" not in dir(layer)
    assert layer.dequantized().shape == (layer.units, layer.in_units)


@pytest.mark.parametrize("dtype", ["int8", "int32", bool])
def test_dtype_that_is_no_float_is_refused(dtype):
    net = quantize_weights(network(), "int8")
    x = nd.random.uniform(-1, 1, (2, 32))
    want = net(x).asnumpy()
    with pytest.raises(ValueError, match="QuantizedDense: dtype must be a float dtype, not"):
        net[0].cast(dtype)
    assert net[0].dtype == "float32" and (net(x).asnumpy() == want).all()
    with pytest.raises(ValueError, match="QuantizedDense: dtype must be a float dtype, not"):
        nn.QuantizedDense(3, 4, dtype=dtype)


@pytest.mark.parametrize("suffix", ["params", "safetensors", "npz"])
def test_parameters_are_saved_and_loaded(tmp_path, suffix):
    net = quantize_weights(network(), "int4", group=32, use_zeros=True)
    x = nd.random.uniform(-1, 1, (2, 32))
    path = str(tmp_path / f"net.{suffix}")
    net.save_parameters(path)
    other = quantize_weights(network(), "int4", group=32, use_zeros=True)
    assert (other(x).asnumpy() != net(x).asnumpy()).any()
    other.load_parameters(path)
    np.testing.assert_array_equal(other(x).asnumpy(), net(x).asnumpy())


def test_copies_are_independent():
    net = quantize_weights(network(), "nf4")
    x = nd.random.uniform(-1, 1, (2, 32))
    other = copy.deepcopy(net)
    np.testing.assert_array_equal(other(x).asnumpy(), net(x).asnumpy())
    other[0].scales.set_data(other[0].scales.data() * 2)
    assert (other(x).asnumpy() != net(x).asnumpy()).any()


@pytest.mark.parametrize("format", ["int8", "int4", "q4_0"])
def test_exported_networks_keep_packed_weights(tmp_path, format):
    net = quantize_weights(network(), format)
    x = nd.random.uniform(-1, 1, (2, 32))
    net.hybridize(exact=True)
    want = net(x).asnumpy()
    net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(
        str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    )
    np.testing.assert_allclose(block(x).asnumpy(), want, rtol=1e-5, atol=1e-5)
    assert any(name.endswith("packed") for name in block.collect_params())


def test_symbols_infer_the_shapes_of_packed_weights():
    data = mx.sym.var("data")
    y = mx.sym.contrib.quantized_dot(
        data, mx.sym.var("p"), mx.sym.var("s"), mx.sym.var("z"), format="int4", group=8,
        units=5, in_units=16
    )  # fmt: skip
    shapes = dict(zip(y.list_arguments(), y.infer_shape(data=(2, 3, 16))[0]))
    assert shapes == {"data": (2, 3, 16), "p": (5, 8), "s": (5, 2), "z": (5, 2)}
    assert y.infer_shape(data=(2, 3, 16))[1] == [(2, 3, 5)]
    types = dict(zip(y.list_arguments(), y.infer_type(data="float16")[0]))
    assert types["p"] == np.uint8 and types["s"] == np.float32


def test_mixed_precision_keeps_the_scales():
    net = quantize_weights(network(), "int8")
    x = nd.random.uniform(-1, 1, (2, 32))
    want = net(x).asnumpy()
    mx.contrib.amp.init("bfloat16")
    try:
        got = net(x)
    finally:
        mx.contrib.amp.turn_off()
    assert got.dtype == x.astype("bfloat16").dtype
    assert np.abs(got.astype("float32").asnumpy() - want).max() < 0.05 * np.abs(want).max()


# --- quantize_weights ----------------------------------------------------------------------------


class Tied(gluon.HybridBlock):
    """A language model whose head has the weight of its embedding."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embed = nn.Embedding(50, 32)
            self.mix = nn.MultiHeadAttention(32, 4, kv_heads=2, in_units=32)
            self.mlp = nn.GatedMLP(32, 64, in_units=32)
            self.head = nn.Dense(
                50, in_units=32, flatten=False, use_bias=False, params=self.embed.params
            )

    def hybrid_forward(self, F, x):
        return self.head(self.mlp(self.mix(self.embed(x))))


def kinds(net):
    found = {}

    def visit(block, path):
        for name, child in block._children.items():
            below = f"{path}.{name}" if path else name
            if isinstance(child, (nn.Dense, nn.QuantizedDense)):
                found[below] = type(child)
            visit(child, below)

    visit(net, "")
    return found


def test_attention_and_mlp_are_replaced_and_tied_heads_stay():
    net = Tied()
    net.initialize(mx.init.Normal(0.2))
    x = nd.array([[1, 2, 3]])
    before = net(x).asnumpy()
    quantize_weights(net, "int8")
    found = kinds(net)
    assert found.pop("head") is nn.Dense
    assert set(found.values()) == {nn.QuantizedDense} and len(found) == 7
    assert net.head.weight is net.embed.weight
    for hybridize in (False, True):
        net.hybridize(hybridize)
        change = np.abs(net(x).asnumpy() - before).max() / np.abs(before).max()
        assert 0 < change < 0.05


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_generation_uses_packed_weights(dtype):
    config = {"model_type": "llama", "vocab_size": 40, "num_attention_heads": 4}
    config |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
    net = text.from_config(config)
    mx.random.seed(2)
    net.initialize(mx.init.Normal(0.3))
    quantize_weights(net, "int8")
    net.cast(dtype)
    (found,) = text.generate(net, [[1, 2, 3]], max_new=8)
    tokens = [1, 2, 3]
    for _ in range(8):  # without a cache
        scores = net(nd.array([tokens])).astype("float32").asnumpy()[0, -1]
        chosen = found[len(tokens) - 3]
        assert scores[chosen] > scores.max() - 0.02 * np.abs(scores).max()
        tokens.append(chosen)


def test_patterns_choose_the_layers():
    net = Tied()
    net.initialize()
    quantize_weights(net, "int8", layers=r"mlp\..*", skip=[r".*\.down"])
    chosen = {path for path, kind in kinds(net).items() if kind is nn.QuantizedDense}
    assert chosen == {"mlp.gate", "mlp.up"}
    quantize_weights(net, "int4", group=8, layers=["mix.query", "mix.proj"])
    assert net.mix.query._format == "int4" and net.mlp.up._format == "int8"


def test_routers_of_experts_stay_unless_a_pattern_names_them():
    def mixture():
        net = nn.HybridSequential()
        net.add(nn.Dense(8, in_units=8), nn.MoE(units=8, hidden=8, experts=4, k=1, in_units=8))
        net.initialize()
        return net

    assert isinstance(quantize_weights(mixture())[1].router, nn.Dense)
    net = quantize_weights(mixture(), layers=r"1\.router")
    assert isinstance(net[1].router, nn.QuantizedDense) and isinstance(net[0], nn.Dense)
    with pytest.raises(ValueError, match="no layer was replaced"):
        quantize_weights(mixture()[1])


def test_layer_at_two_places_is_replaced_at_both():
    net, layer = nn.HybridSequential(), nn.Dense(8, in_units=8)
    net.add(layer, layer)
    net.initialize()
    quantize_weights(net)
    assert net[0] is net[1] and isinstance(net[0], nn.QuantizedDense)


def test_a_dense_layer_itself_is_returned_packed():
    layer = nn.Dense(8, in_units=8, activation="tanh")
    layer.initialize()
    new = quantize_weights(layer)
    assert isinstance(new, nn.QuantizedDense)
    x = nd.random.uniform(-1, 1, (2, 8))
    np.testing.assert_allclose(new(x).asnumpy(), layer(x).asnumpy(), atol=0.01)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"layers": "nothing"}, ValueError, "the Dense layers are"),
        ({"layers": "("}, ValueError, "regular expressions"),
        ({"format": "q4_k"}, ValueError, "'0' has 32 in_units, which is not a multiple of 256"),
        ({"format": "q8_0", "group": 32}, ValueError, "group must be 0"),
        ({"group": 7}, ValueError, "group must divide"),
        ({"format": "int2"}, ValueError, "format must be one of"),
        ({"method": "best"}, ValueError, "method must be"),
        ({"data": [1]}, ValueError, "needs neither data"),
        ({"skip": ".*"}, ValueError, "no layer was replaced"),
        ({"skip": ["2", "lm_head"]}, ValueError, "'lm_head' does not match the whole path or"),
    ],
)
def test_mistakes_leave_the_network_unchanged(options, error, message):
    net = network()
    with pytest.raises(error, match=message):
        quantize_weights(net, **options)
    assert set(kinds(net).values()) == {nn.Dense}


def test_files_of_other_formats_name_the_options(tmp_path):
    nets = {"float": network(), "int8": network(), "int4": network()}
    for name, net in nets.items():
        if name != "float":
            quantize_weights(net, name)
        net.save_parameters(str(tmp_path / f"{name}.params"))
    for name, file, message in (
        ("float", "int8", r"'0.weight' is missing .* few bits \('0.packed'\).*quantize=\.\.\."),
        ("int8", "float", r"'0.packed' is missing .* holds the floats.*before quantize_weights"),
        ("int8", "int4", r"shape incompatible .* formats differ; .*quantize=\.\.\."),
    ):
        before = nets[name](nd.ones((1, 32))).asnumpy()
        with pytest.raises(AssertionError, match=message):
            nets[name].load_parameters(str(tmp_path / f"{file}.params"))
        np.testing.assert_array_equal(nets[name](nd.ones((1, 32))).asnumpy(), before)
    with pytest.raises(mx.base.MXNetIOError, match="is a folder; .*format='huggingface'"):
        nets["float"].load_parameters(tmp_path)


def test_scales_must_be_floats_that_products_accept():
    with pytest.raises(ValueError, match="scale_dtype must be one of .*, not 'int8'"):
        nn.QuantizedDense(4, 64, scale_dtype="int8")


def test_nan_names_layer_and_leaves_network_unchanged():
    net = network()
    last = net[-1].weight
    last.set_data(nd.full(last.shape, np.nan))
    with pytest.raises(ValueError, match=f"the weight of '{len(net) - 1}' has infinite numbers"):
        quantize_weights(net)
    assert set(kinds(net).values()) == {nn.Dense}


def test_uninitialized_layers_are_named():
    net = nn.HybridSequential()
    net.add(nn.Dense(4))
    net.initialize()
    with pytest.raises(ValueError, match="weight of '0' is not initialized"):
        quantize_weights(net)


# --- Devices and training ------------------------------------------------------------------------


def two_parts(devices, format="int4"):
    mx.random.seed(5)
    net = nn.HybridSequential()
    for i in range(4):
        net.add(nn.Dense(32, in_units=32, activation="tanh"))
    net.add(nn.Dense(4, in_units=32))
    net.initialize(mx.init.Normal(0.3))
    net.place({"[01]": devices[0], "[234]": devices[-1]})
    quantize_weights(net, format, layers="[0123]")
    return net


@pytest.mark.parametrize("format", ["int8", "int4", "nf4", "q4_0"])
@pytest.mark.parametrize("way", ["eager", "hybridized", "exact", "pipeline"])
def test_two_devices_have_the_bits_of_one(format, way):
    results = []
    for devices in ([on(0)], [on(0), on(1)]):
        net = two_parts(devices, format)
        assert net[3].packed.list_ctx() == [devices[-1]]
        options = {}
        if way == "exact":
            options["exact"] = True
        if way == "pipeline":
            options["pipeline"] = mx.parallel.Pipeline(micro_batches=4)
        if way != "eager":
            net.hybridize(**options)
        x = data((8, 32))
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
        for _ in range(3):
            with autograd.record():
                loss = gluon.loss.L2Loss()(net(x), data((8, 4), seed=1).as_in_context(devices[-1]))
            loss.backward()
            trainer.step(8)
        results.append([net(x).asnumpy(), net[0].bias.data().asnumpy(), loss.asnumpy()])
    for one, two in zip(*results):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_training_step_passes_gradients_through_packed_layers(schedule):
    results = []
    for devices in ([on(0)], [on(0), on(1)]):
        net = two_parts(devices)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        step = mx.parallel.TrainStep(
            net,
            gluon.loss.L2Loss(),
            trainer,
            pipeline=mx.parallel.Pipeline(micro_batches=4, schedule=schedule),
        )
        for _ in range(3):
            loss = step(data((8, 32)), data((8, 4), seed=1))
        results.append(
            [loss.asnumpy(), net[0].bias.data().asnumpy(), net[4].weight.data().asnumpy()]
        )
        assert np.abs(results[-1][1]).max() > 0
    for one, two in zip(*results):
        np.testing.assert_array_equal(one, two)


def test_packed_layers_cannot_be_split():
    attention, devices = "layers.0.attention", [on(0), on(1)]
    net = quantize_weights(decoder("llama"), "int8")
    for layer, how, message in (
        (attention, "heads", "query, key, value, proj have packed weights, so split the block"),
        ("head", "row", "QuantizedDense, which cannot be split by 'row'"),
    ):
        with pytest.raises((ValueError, mx.MXNetError), match=message):
            mx.parallel.shard(net, {layer: how}, devices)
    net = decoder("llama")
    mx.parallel.shard(net, {attention: "heads"}, devices)
    quantize_weights(net, "int8")
    assert isinstance(net.head, nn.QuantizedDense)
    assert text.generate(net, PROMPTS, max_new=2)
