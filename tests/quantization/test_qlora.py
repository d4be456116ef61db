"""QLoRA: low-rank adapters of layers with packed weights."""

import copy
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.contrib import lora
from mpgluon.contrib.quantization import quantize_weights
from mpgluon.gluon import nn
from support.compare import same_bits
from support.devices import on
from support.text.adapters import LOSS, fill, trained, values

FORMATS = [
    {"format": "int8"},
    {"format": "int4", "group": 32},
    {"format": "int4", "group": 32, "use_zeros": True},
    {"format": "nf4", "group": 32},
    {"format": "q4_0"},
]
TARGETS = {r"layers\.\d\.(query|up)": 4, "head": 3}


class Layer(gluon.HybridBlock):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.query = nn.Dense(units, flatten=False, in_units=units)
            self.up = nn.Dense(units, flatten=False, in_units=units, activation="relu")

    def hybrid_forward(self, F, x):
        return x + self.up(F.tanh(self.query(x)))


class Model(gluon.HybridBlock):
    def __init__(self, units=32, vocabulary=12, **kwargs):
        super().__init__(prefix="model_", **kwargs)
        with self.name_scope():
            self.embed = nn.Embedding(vocabulary, units)
            self.layers = nn.HybridSequential()
            self.layers.add(Layer(units), Layer(units), Layer(units))
            self.head = nn.Dense(vocabulary, flatten=False, in_units=units)

    def hybrid_forward(self, F, ids):
        return self.head(self.layers(self.embed(ids)))


def packed(options=None, dtype="float32"):
    mx.random.seed(7)
    net = Model()
    net.initialize(mx.init.Xavier())
    net.cast(dtype)
    return quantize_weights(net, **(options or FORMATS[1]))


def dequantized(options=None):
    """Returns the float network with the values of `packed`."""
    net, source = Model(), packed(options)
    net.initialize()
    pairs = [(net.head, source.head), (net.embed, source.embed)]
    for own, other in zip(net.layers, source.layers):
        pairs += [(own.query, other.query), (own.up, other.up)]
    for own, other in pairs:
        if isinstance(other, nn.QuantizedDense):
            own.weight.set_data(other.dequantized())
            own.bias.set_data(other.bias.data())
        else:
            own.weight.set_data(other.weight.data())
    return net


def batch(seed=0):
    random = np.random.RandomState(seed)
    ids = random.randint(0, 12, (4, 5))
    return nd.array(ids), nd.array(random.randint(0, 12, (4, 5)))


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize(
    "adapter", [{}, {"dora": True}, {"rslora": True, "dropout": 0.25}], ids=str
)
@pytest.mark.parametrize("options", FORMATS, ids=str)
def test_training_agrees_with_dequantized_network(options, adapter, hybridize):
    net, plain, found = packed(options), dequantized(options), []
    base = values(net)
    for each in (net, plain):
        mx.random.seed(9)
        assert lora.apply(each, TARGETS, alpha=8, **adapter) == [
            *(f"layers.{i}.{name}" for i in range(3) for name in ("query", "up")),
            "head",
        ]
        each.hybridize(hybridize)
        found.append(trained(each, batch, 4))
    np.testing.assert_allclose(*found, rtol=2e-4, atol=2e-5)
    ours, theirs = values(net, "lora"), values(plain, "lora")
    assert ours.keys() == theirs.keys() and len(ours) == (21 if adapter.get("dora") else 14)
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=5e-3, atol=5e-4, err_msg=name)
    for name, value in base.items():
        same_bits(values(net)[name], value, name)


def test_only_adapters_have_gradients_and_states():
    net = packed()
    lora.apply(net, TARGETS)
    own = set(lora.parameters(net).values())
    for param in net.collect_params().values():
        assert (param.grad_req == "write") == (param in own), param.name
    losses = trained(net, batch, 10, same=True)
    assert losses[-1].mean() < losses[0].mean()
    lora.remove(net)
    grads = {name for name, p in net._collect_params_with_prefix().items() if p.grad_req == "write"}
    assert grads == {n for n in values(net) if n.endswith((".bias", "embed.weight"))}


@pytest.mark.parametrize("form", ["hybridized", "two devices", "pipeline", "step"])
@pytest.mark.parametrize("adapter", [{}, {"dora": True}, {"dropout": 0.25}], ids=str)
def test_placed_training_has_bits_of_one_device(form, adapter):
    results = []
    for place in (False, True):
        net = packed()
        if place and form != "hybridized":
            net.place({"embed": on(0), "layers.0": on(0), "": on(1)}, verbose=False)
            assert net.layers[2].up.packed.list_ctx() == [on(1)]
        mx.random.seed(9)
        lora.apply(net, TARGETS, alpha=4, **adapter)
        assert (
            not place
            or form == "hybridized"
            or (net.head.lora_A_default.list_ctx() == net.head.packed.list_ctx() == [on(1)])
        )
        schedule = mx.parallel.Pipeline(micro_batches=2)
        if form == "step":
            trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
            step = mx.parallel.TrainStep(net, LOSS, trainer, schedule)
            mx.random.seed(5)
            losses = [step(*batch(i)).asnumpy() for i in range(3)]
        else:
            pipeline = {"pipeline": schedule} if form == "pipeline" else {}
            net.hybridize(place, exact=True, **pipeline)
            if form == "pipeline":
                net.hybridize(exact=True, **pipeline)
            losses = trained(net, batch, 3)
        results.append([*losses, values(net)])
    same_bits(*results)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_network_has_adapters_of_float32(dtype):
    net = packed(dtype=dtype)
    lora.apply(net, TARGETS, alpha=4)
    assert {mx._core.dtype_name(p.dtype) for p in lora.parameters(net).values()} == {"float32"}
    out = net(batch()[0])
    assert mx._core.dtype_name(out.dtype) == dtype
    losses = trained(net, batch, 6, same=True)
    assert losses[-1].mean() < losses[0].mean()


def test_merge_is_refused_without_dequantize():
    net = packed()
    lora.apply(net, TARGETS)
    for options in ({}, {"keep": False}, {"dequantize": True}):
        with pytest.raises(
            ValueError, match=r"'layers\.0\.query' is a QuantizedDense, .*dequantize"
        ):
            lora.merge(net, **options)
    alone = nn.QuantizedDense(4, 8)
    alone.initialize()
    lora.apply(alone, {".*": 2})
    with pytest.raises(ValueError, match="put it into a block"):
        lora.merge(alone, keep=False, dequantize=True)


@pytest.mark.parametrize("adapter", [{}, {"dora": True}], ids=str)
@pytest.mark.parametrize("placed", [False, True])
def test_merge_replaces_layers_by_float_ones(placed, adapter):
    net, ids = packed(), batch()[0]
    if placed:
        net.place({"embed|layers.0": on(0), "": on(1)}, verbose=False)
    targets = {r"layers\.\d\.up": 4, "head": 3}
    lora.apply(net, targets, **adapter)
    fill(net)
    net.hybridize()
    before = net(ids).asnumpy()
    lora.merge(net, keep=False, dequantize=True)
    np.testing.assert_allclose(net(ids).asnumpy(), before, rtol=1e-4, atol=1e-5)
    assert type(net.head) is nn.Dense and type(net.layers[1].up) is nn.Dense
    assert type(net.layers[1].query) is nn.QuantizedDense
    assert net.head.weight.list_ctx() == [on(1) if placed else mx.cpu(0)]
    assert net.layers[1].up.act is not None and net.head.weight.grad_req == "write"
    assert not any("lora" in name for name in net._collect_params_with_prefix())
    losses = trained(net, batch, 4, same=True)
    assert losses[-1].mean() < losses[0].mean()


def test_adapters_are_switched_saved_and_copied(tmp_path):
    net, ids = packed(), batch()[0]
    base = net(ids).asnumpy()
    lora.apply(net, TARGETS, name="one")
    fill(net, 1)
    one = net(ids).asnumpy()
    with lora.disable(net):
        same_bits(net(ids).asnumpy(), base)
    lora.save(net, tmp_path / "peft", name="one")
    other = packed()
    lora.load(other, tmp_path / "peft")
    same_bits(other(ids).asnumpy(), one)
    # The same adapter fits the float network.
    plain = dequantized()
    lora.load(plain, tmp_path / "peft")
    np.testing.assert_allclose(plain(ids).asnumpy(), one, rtol=1e-4, atol=1e-5)
    net.save_parameters(str(tmp_path / "net.params"))
    third = packed()
    lora.apply(third, TARGETS, name="one")
    third.load_parameters(str(tmp_path / "net.params"))
    same_bits(third(ids).asnumpy(), one)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        same_bits(twin(ids).asnumpy(), one)
    lora.remove(net)
    same_bits(net(ids).asnumpy(), base)


def test_order_of_inputs_does_not_concern_the_adapter():
    random = np.random.RandomState(0)
    layer = nn.QuantizedDense(6, 8, format="int4", group=4, use_order=True, use_zeros=True)
    layer.initialize()
    layer.packed.set_data(nd.array(random.randint(0, 256, (6, 4)), dtype="uint8"))
    layer.order.set_data(nd.array(random.permutation(8), dtype="int32"))
    x = nd.array(random.randn(3, 8))
    for options in ({}, {"dora": True}):
        net, plain = nn.HybridSequential(), nn.HybridSequential()
        net.add(copy.deepcopy(layer))
        plain.add(nn.Dense(6, in_units=8))
        plain.initialize()
        plain[0].weight.set_data(layer.dequantized())
        for each in (net, plain):
            lora.apply(each, {"0": 2}, **options)
            fill(each)
            each.hybridize()
        np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-4, atol=1e-4)


def test_export_includes_adapters(tmp_path):
    net, ids = packed(), batch()[0]
    lora.apply(net, TARGETS)
    fill(net)
    net.hybridize()
    want = net(ids).asnumpy()
    symbol, params = net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(symbol, ["data"], params)
    np.testing.assert_allclose(block(ids).asnumpy(), want, rtol=1e-5, atol=1e-6)


def test_adapter_is_added_to_model_of_huggingface(tmp_path):
    from mpgluon.gluon.model_zoo import text

    config = {
        "model_type": "llama",
        "vocab_size": 12,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    source = text.from_config(config)
    source.initialize(mx.init.Normal(0.2))
    source.save_parameters(str(tmp_path), format="huggingface")
    net = text.from_pretrained(tmp_path, quantize={"format": "nf4", "group": 32})
    lora.apply(net, {r".*\.(query|value|down)": 4})
    losses = trained(net, batch, 8, same=True)
    assert losses[-1].mean() < losses[0].mean()
    before = text.generate(net, [[1, 2, 3]], max_new=5)
    lora.merge(net, keep=False, dequantize=True)
    assert text.generate(net, [[1, 2, 3]], max_new=5) == before
    net.save_parameters(str(tmp_path / "merged"), format="huggingface")
    merged = text.from_pretrained(tmp_path / "merged")
    ids = batch()[0].astype("int32")
    np.testing.assert_allclose(merged(ids).asnumpy(), net(ids).asnumpy(), rtol=1e-4, atol=1e-4)
