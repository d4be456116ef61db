"""Low-rank adapters: `mx.contrib.lora`."""

import copy
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.contrib import lora
from mpgluon.gluon import nn
from support.compare import same_bits
from support.devices import on
from support.text.adapters import LOSS, fill, trained, values


class Layer(gluon.HybridBlock):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.query = nn.Dense(units, flatten=False, in_units=units)
            self.value = nn.Dense(units, flatten=False, in_units=units, use_bias=False)
            self.up = nn.Dense(units, flatten=False, in_units=units, activation="relu")

    def hybrid_forward(self, F, x):
        return x + self.up(F.tanh(self.query(x)) * self.value(x))


class Model(gluon.HybridBlock):
    """A language model whose head may be tied to the embedding."""

    def __init__(self, tied=False, units=8, vocabulary=11, **kwargs):
        super().__init__(prefix="model_", **kwargs)
        with self.name_scope():
            self.embed = nn.Embedding(vocabulary, units)
            self.layers = nn.HybridSequential()
            self.layers.add(Layer(units), Layer(units), Layer(units))
            shared = self.embed.params if tied else None
            self.head = nn.Dense(
                vocabulary, flatten=False, use_bias=False, in_units=units, params=shared
            )

    def hybrid_forward(self, F, ids):
        return self.head(self.layers(self.embed(ids)))


TARGETS = {r".*\.(query|value|up)": 2}


def model(tied=False, dtype="float32"):
    mx.random.seed(7)
    net = Model(tied)
    net.initialize(mx.init.Xavier())
    if dtype != "float32":
        net.cast(dtype)
    return net


def batch(rows=4, seed=0):
    random = np.random.RandomState(seed)
    ids = random.randint(0, 11, (rows, 5))
    return nd.array(ids), nd.array(random.randint(0, 11, (rows, 5)))


def test_adapters_change_nothing_at_first_and_are_found_by_path():
    net = model()
    ids, _ = batch()
    before = net(ids).asnumpy()
    paths = lora.apply(net, {r".*\.query": 4, "layers.2.(value|up)": 2, "embed": 3, "head": 2})
    assert paths == [
        "embed",
        "layers.0.query",
        "layers.1.query",
        "layers.2.query",
        "layers.2.value",
        "layers.2.up",
        "head",
    ]
    assert net.layers[0].query.lora_A_default.shape == (4, 8)
    assert net.embed.lora_A_default.shape == (11, 3)
    same_bits(net(ids).asnumpy(), before)
    assert "layers.0.query.weight" in net._collect_params_with_prefix()


@pytest.mark.parametrize("rslora", [False, True])
def test_result_is_that_of_the_sum_of_weights(rslora):
    net = model()
    lora.apply(net, {r".*\.(query|value|up)": 2, "embed": 3, "head": 2}, alpha=6, rslora=rslora)
    fill(net)
    plain = model()
    for path, layer in (
        ("embed", net.embed),
        ("head", net.head),
        *(
            (f"layers.{i}.{n}", getattr(net.layers[i], n))
            for i in range(3)
            for n in ("query", "up")
        ),
        *((f"layers.{i}.value", net.layers[i].value) for i in range(3)),
    ):
        a, b = (getattr(layer, f"lora_{x}_default").data().asnumpy() for x in "AB")
        rank = b.shape[1]
        delta = (b @ a.T if False else a @ b.T) if path == "embed" else b @ a
        scale = 6 / np.sqrt(rank) if rslora else 6 / rank
        weight = plain._collect_params_with_prefix()[f"{path}.weight"]
        weight.set_data(weight.data() + nd.array(scale * delta))
    ids, _ = batch()
    np.testing.assert_allclose(net(ids).asnumpy(), plain(ids).asnumpy(), rtol=2e-4, atol=2e-5)


def test_only_adapters_are_trained():
    net = model()
    before = values(net)
    requests = {name: p.grad_req for name, p in net._collect_params_with_prefix().items()}
    lora.apply(net, TARGETS)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
    losses = trained(net, batch, 10, trainer, same=True)
    assert losses[-1].mean() < losses[0].mean()
    after = values(net)
    for name in before:
        same_bits(after[name], before[name], name)
        assert net._collect_params_with_prefix()[name].grad_req == "null"
    assert all(p.grad_req == "write" for p in lora.parameters(net).values())
    own = set(lora.parameters(net).values())
    assert len(own) == 18 and all(np.abs(p.data().asnumpy()).sum() > 0 for p in own)
    lora.remove(net)
    assert requests == {n: p.grad_req for n, p in net._collect_params_with_prefix().items()}
    assert list(values(net)) == list(before)


def backward_ops(net):
    """The number of backward ops of the network's compiled program, on all devices."""
    net.hybridize()
    ids, labels = batch()
    with autograd.record():
        LOSS(net(ids), labels).backward()
    (entry,) = net.compiled()
    return sum(len(device["backward"]) for device in entry["devices"].values())


def test_no_gradient_is_computed_below_the_lowest_adapter():
    counts = []
    for targets in ({"layers.0.*": 2}, {"layers.2.*": 2}, {"head": 2}):
        net = model()
        lora.apply(net, {**targets})
        counts.append(backward_ops(net))
    full = backward_ops(model())
    assert counts[0] > counts[1] > counts[2] and counts[2] <= 5 < full
    # A layer with frozen weights has two products fewer in its backward pass: the gradients of the
    # weight and bias. Each adapter adds its own.
    frozen = model()
    frozen.collect_params().setattr("grad_req", "null")
    frozen.layers[2].up.weight.grad_req = "write"
    assert backward_ops(frozen) < counts[1]


FORMS = ["eager", "hybridized", "two devices", "pipeline", "step"]


def prepared(form, net):
    if form in ("two devices", "pipeline", "step"):
        # A tied weight is on the first device that uses it.
        net.place({"embed": on(0), "layers.0": on(0), "layers.[12]": on(1)}, verbose=False)
        if net.head.weight is not net.embed.weight:
            net.place({"embed": on(0), "layers.0": on(0), "": on(1)}, verbose=False)
    return net


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("options", [{}, {"dora": True}, {"rslora": True, "dropout": 0.25}])
def test_training_has_the_bits_of_one_device(form, tied, options):
    results = []
    for place in (False, True):
        net = prepared(form if place else "eager", model(tied))
        mx.random.seed(9)
        targets = TARGETS if options.get("dora") else {**TARGETS, "head": 2, "embed": 2}
        lora.apply(net, targets, alpha=4, **options)
        if form == "step" or form == "pipeline":
            schedule = mx.parallel.Pipeline(micro_batches=2)
        if form == "step":
            trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
            step = mx.parallel.TrainStep(net, LOSS, trainer, schedule)
            mx.random.seed(5)
            losses = [step(*batch(seed=i)).asnumpy() for i in range(3)]
        else:
            net.hybridize(
                form != "eager",
                exact=True,
                **({"pipeline": schedule} if form == "pipeline" else {}),
            )
            losses = trained(net, batch)
        results.append([*losses, values(net)])
    same_bits(*results)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_base_has_adapters_of_float32(dtype):
    net = model(dtype=dtype)
    lora.apply(net, {**TARGETS, "embed": 2})
    assert {mx._core.dtype_name(p.dtype) for p in lora.parameters(net).values()} == {"float32"}
    fill(net)
    ids, _ = batch()
    out = net(ids)
    assert out.dtype == nd.ones(1, dtype=dtype).dtype
    reference = model()
    for name, param in reference._collect_params_with_prefix().items():
        param.set_data(net._collect_params_with_prefix()[name].data().astype("float32"))
    lora.apply(reference, {**TARGETS, "embed": 2})
    fill(reference)
    np.testing.assert_allclose(
        out.astype("float32").asnumpy(), reference(ids).asnumpy(), rtol=0.05, atol=0.05
    )
    net.hybridize()
    same_bits(net(ids).astype("float32").asnumpy(), out.astype("float32").asnumpy())
    losses = trained(net, batch, 5, same=True)
    assert losses[-1].mean() < losses[0].mean()


def test_adapters_may_have_the_half_dtype():
    net = model(dtype="bfloat16")
    lora.apply(net, TARGETS, dtype="bfloat16")
    assert net.layers[0].query.lora_A_default.data().dtype == mx.bfloat16
    trained(net, batch, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"dora": True}])
def test_unmerge_restores_every_bit(options, dtype):
    net = model(dtype=dtype)
    ids, _ = batch()
    lora.apply(net, TARGETS, **options)
    fill(net)
    net.hybridize()
    before, base = net(ids).astype("float32").asnumpy(), values(net)
    lora.merge(net)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 0.1, "atol": 0.1}
    np.testing.assert_allclose(net(ids).astype("float32").asnumpy(), before, **tolerance)
    assert not np.array_equal(values(net)["layers.0.up.weight"], base["layers.0.up.weight"])
    with pytest.raises(ValueError, match=r"merged; call lora\.unmerge first"):
        lora.merge(net)
    lora.unmerge(net)
    same_bits(values(net), base)
    same_bits(net(ids).astype("float32").asnumpy(), before)
    with pytest.raises(ValueError, match="no adapters of 'model' are merged"):
        lora.unmerge(net)


def test_merge_for_good_removes_the_adapters():
    net, ids = model(), batch()[0]
    lora.apply(net, {**TARGETS, "embed": 2})
    fill(net)
    before = net(ids).asnumpy()
    lora.merge(net, keep=False)
    np.testing.assert_allclose(net(ids).asnumpy(), before, rtol=1e-4, atol=1e-5)
    assert all(p.grad_req == "write" for p in net.collect_params().values())
    assert list(values(net)) == list(values(model()))


def test_merge_refuses_a_tied_weight():
    net = model(tied=True)
    lora.apply(net, {"head": 2})
    with pytest.raises(ValueError, match="'embed', 'head' share the weight of 'head'"):
        lora.merge(net)


@pytest.mark.parametrize("hybridize", [False, True])
def test_adapters_are_switched_by_name(hybridize):
    net, ids = model(), batch()[0]
    net.hybridize(hybridize)
    base = net(ids).asnumpy()
    lora.apply(net, TARGETS, name="one")
    fill(net, 1)
    one = net(ids).asnumpy()
    lora.apply(net, {r".*\.query": 3, "embed": 2}, name="two")
    assert {p.grad_req for p in lora.parameters(net, "one").values()} == {"null"}
    same_bits(net(ids).asnumpy(), base)
    for i, param in enumerate(lora.parameters(net, "two").values()):
        param.set_data(nd.array(np.random.RandomState(i).randn(*param.shape) / 4))
    two = net(ids).asnumpy()
    lora.enable(net, "one")
    same_bits(net(ids).asnumpy(), one)
    assert {p.grad_req for p in lora.parameters(net, "two").values()} == {"null"}
    with lora.disable(net):
        same_bits(net(ids).asnumpy(), base)
    same_bits(net(ids).asnumpy(), one)
    lora.enable(net, "two")
    same_bits(net(ids).asnumpy(), two)
    lora.enable(net, "one", "two")
    both = net(ids).asnumpy()
    assert not np.array_equal(both, one) and not np.array_equal(both, two)
    lora.remove(net, "two")
    same_bits(net(ids).asnumpy(), one)
    lora.remove(net, "one")
    same_bits(net(ids).asnumpy(), base)


@pytest.mark.parametrize("shared", [False, True])
def test_copies_keep_their_adapters(shared):
    net, ids = model(tied=shared), batch()[0]
    lora.apply(net, {**TARGETS, "head": 2})
    fill(net)
    expected = net(ids).asnumpy()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        same_bits(twin(ids).asnumpy(), expected)
        lora.remove(twin)
        assert twin.layers[0].query.weight.grad_req == "write"
    same_bits(net(ids).asnumpy(), expected)


def test_parameters_are_saved_with_the_network(tmp_path):
    net, ids = model(), batch()[0]
    lora.apply(net, TARGETS)
    fill(net)
    net.save_parameters(str(tmp_path / "net.params"))
    other = model()
    lora.apply(other, TARGETS)
    other.load_parameters(str(tmp_path / "net.params"))
    same_bits(other(ids).asnumpy(), net(ids).asnumpy())
    net.hybridize()
    net(ids)
    symbol, params = net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(symbol, ["data"], params)
    np.testing.assert_allclose(block(ids).asnumpy(), net(ids).asnumpy(), rtol=1e-5, atol=1e-6)


def test_uninitialized_layers_of_unknown_size_get_adapters():
    net = nn.HybridSequential()
    net.add(nn.Dense(8), nn.Dense(3))
    lora.apply(net, {"[01]": 2})
    net.initialize()
    net.hybridize()
    x = nd.ones((2, 5))
    with autograd.record():
        net(x).backward()
    assert net[0].lora_A_default.shape == (2, 5) and net[1].lora_A_default.shape == (2, 8)


SPLITS = [
    {"layers.1.(query|value)": "column"},
    {"layers.1.(query|value)": "row"},
    {"layers.1.query": "column", "layers.1.up": "row", "head": "column", "embed": "vocab"},
]


@pytest.mark.parametrize("plan", SPLITS)
@pytest.mark.parametrize("hybridize", [False, True])
def test_adapters_of_split_layers(plan, hybridize, tmp_path):
    targets = {r"layers\.1\..*": 2, "head": 2, "embed": 2}
    nets = []
    for split in (False, True):
        net = model()
        if split:
            mx.parallel.shard(net, plan, [on(0), on(1)])
        mx.random.seed(9)
        lora.apply(net, targets)
        net.hybridize(hybridize)
        nets.append(net)
    plain, net = nets
    ids, _ = batch()
    for step in range(2):
        np.testing.assert_allclose(net(ids).asnumpy(), plain(ids).asnumpy(), rtol=1e-4, atol=1e-5)
        if not step:
            np.testing.assert_allclose(
                trained(plain, batch), trained(net, batch), rtol=1e-3, atol=1e-5
            )
    for layer, kind in ((net.layers[1].query, plan.get("layers.1.(query|value)", "column")),):
        split, whole = ("B", "A") if kind == "column" else ("A", "B")
        parts = [getattr(layer, f"shard{i}_lora_{split}_default") for i in (0, 1)]
        assert [part.list_ctx() for part in parts] == [[on(0)], [on(1)]]
        assert getattr(layer, f"lora_{whole}_default").list_ctx() == [on(0)]
    # Files hold whole arrays, so they fit any split.
    lora.save(net, tmp_path)
    other = model()
    lora.load(other, tmp_path)
    np.testing.assert_allclose(other(ids).asnumpy(), net(ids).asnumpy(), rtol=1e-4, atol=1e-5)
    third = model()
    mx.parallel.shard(third, plan, [on(0), on(1)])
    lora.load(third, tmp_path)
    same_bits(third(ids).asnumpy(), net(ids).asnumpy())
    before = net(ids).asnumpy()
    base = values(net)
    lora.merge(net)
    np.testing.assert_allclose(net(ids).asnumpy(), before, rtol=1e-4, atol=1e-5)
    lora.unmerge(net)
    same_bits(values(net), base)


def test_adapters_follow_casts_and_moves_of_their_layers():
    net, ids = model(), batch()[0]
    lora.apply(net, {**TARGETS, "embed": 2})
    fill(net)
    expected = net(ids).asnumpy()
    net.place({"embed": on(0), "layers": on(1), "head": on(0)}, verbose=False)
    assert net.layers[2].up.lora_B_default.list_ctx() == [on(1)]
    same_bits(net(ids).asnumpy(), expected)
    net.reset_ctx(on(2))
    assert net.embed.lora_A_default.list_ctx() == [on(2)]
    same_bits(net(ids.as_in_context(on(2))).asnumpy(), expected)
    net.cast("float64")
    assert net.layers[0].up.lora_A_default.dtype == "float64"
    found = net(ids.as_in_context(on(2))).asnumpy()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    net.cast("bfloat16")
    assert net(ids.as_in_context(on(2))).dtype == mx.bfloat16
    lora.merge(net)
    lora.unmerge(net)


def test_adapters_on_a_mesh_have_replicas():
    mesh = mx.parallel.Mesh({"data": 2, "stage": 2}, [on(i) for i in range(4)])
    net = model()
    mesh.place(net, stages={"embed": 0, "layers.0": 0, "layers.1": 1, "layers.2": 1, "head": 1})
    mx.random.seed(9)
    lora.apply(net, TARGETS)
    assert net.layers[1].up.lora_A_default.list_ctx() == [on(1), on(3)]
    plain = model()
    mx.random.seed(9)
    lora.apply(plain, TARGETS)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    ids, labels = batch()
    with autograd.record():
        losses = []
        for part, x, y in zip((0, 2), (ids[:2], ids[2:]), (labels[:2], labels[2:])):
            out = net(x.as_in_context(on(part)))
            losses.append(LOSS(out, y.as_in_context(out.context)))
    autograd.backward(losses)
    trainer.step(4)
    other = gluon.Trainer(plain.collect_params(), "sgd", {"learning_rate": 0.1})
    with autograd.record():
        loss = LOSS(plain(ids), labels)
    loss.backward()
    other.step(4)
    for name, param in lora.parameters(net).items():
        same_bits(*[copy.asnumpy() for copy in param.list_data()])
        expected = lora.parameters(plain)[name].data().asnumpy()
        np.testing.assert_allclose(param.list_data()[0].asnumpy(), expected, rtol=1e-4, atol=1e-7)


def test_adapters_of_layers_split_on_a_mesh_have_replicas():
    mesh = mx.parallel.Mesh({"data": 2, "model": 2}, [on(i) for i in range(4)])
    net = model()
    mesh.place(net, split={r"layers.*\.query": "column", r"layers.*\.up": "row"})
    lora.apply(net, TARGETS)
    fill(net)
    assert net.layers[0].query.shard1_lora_B_default.list_ctx() == [on(1), on(3)]
    plain = model()
    lora.apply(plain, TARGETS)
    names = plain._collect_params_with_prefix()
    for layer, twin in zip(net.layers, plain.layers):
        for kind in ("query", "value", "up"):
            for letter in "AB":
                parts = mx.contrib.lora._adapters.parts_of(getattr(layer, kind), "default")
                own = [p for key, p in parts.items() if f"lora_{letter}" in key]
                whole = mx.contrib.lora._files._whole(own)
                getattr(getattr(twin, kind), f"lora_{letter}_default").set_data(whole)
    assert names
    ids, _ = batch()
    for part in (0, 2):
        out = net(ids.as_in_context(on(part))).asnumpy()
        np.testing.assert_allclose(out, plain(ids).asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"rslora": True, "dropout": 0.5}, {"dora": True}])
def test_files_are_read_back(options, tmp_path):
    net, other, ids = model(), model(), batch()[0]
    targets = {r".*\.query": 3, r".*\.up": 2}
    lora.apply(net, targets if options.get("dora") else {**targets, "embed": 2}, **options)
    fill(net)
    name_map = {r"layers\.(\d+)\.(\w+)": r"model.layers.\1.self_attn.\2_proj", "embed": "embed"}
    lora.save(net, tmp_path, name_map=name_map, base_model="meta/llama")
    paths = lora.load(other, tmp_path, name="read", name_map=name_map)
    assert "layers.1.up" in paths
    same_bits(other(ids).asnumpy(), net(ids).asnumpy())
    option = other.layers[0].query._adapters.options["read"]
    assert option == net.layers[0].query._adapters.options["default"]


@pytest.mark.parametrize("tied", [False, True])
def test_base_weights_in_files_replace_those_of_the_network(tmp_path, tied):
    """PEFT writes them for embeddings with adapters."""
    net, ids = model(tied), batch()[0]
    lora.apply(net, {"embed": 2, "head": 2})
    fill(net)
    for layer in (net.embed, net.head):
        layer.weight.set_data(nd.random.normal(shape=layer.weight.shape))
    lora.save(net, tmp_path)
    path = str(tmp_path / "adapter_model.safetensors")
    arrays, root = nd.load(path), "base_model.model."
    assert f"{root}embed.lora_embedding_A" in arrays
    for name, layer in (("embed", net.embed), ("head", net.head)):
        arrays[f"{root}{name}.base_layer.weight"] = layer.weight.data()
    nd.save(path, arrays)
    other = model(tied)
    assert lora.load(other, tmp_path) == ["embed", "head"]
    same_bits(other(ids).asnumpy(), net(ids).asnumpy())
    assert other.embed.weight.grad_req == "null"
    arrays[f"{root}embed.base_layer.weight"] = nd.zeros((12, 8))
    nd.save(path, arrays)
    third = model(tied)
    want = values(third)
    with pytest.raises(ValueError, match=r"weight of 'embed' has shape \(12, 8\) in the file"):
        lora.load(third, tmp_path)
    same_bits(values(third), want)


def test_files_that_do_not_fit_change_nothing(tmp_path):
    net, other = model(), model()
    lora.apply(net, {"head": 2})
    lora.save(net, tmp_path, name_map={"head": "lm_head"})
    with pytest.raises(ValueError, match="lm_head.*no layer of this name.*name_map"):
        lora.load(other, tmp_path)
    assert all(p.grad_req == "write" for p in other.collect_params().values())
    wide = Model(units=4)
    wide.initialize()
    with pytest.raises(ValueError, match=r"lora_A of 'head' has shape \(2, 8\).*needs \(2, 4\)"):
        lora.load(wide, tmp_path, name_map={"head": "lm_head"})
    config = (tmp_path / "adapter_config.json").read_text()
    for old, new, message in (
        ('"LORA"', '"IA3"', "peft_type 'IA3'"),
        ('"none"', '"all"', "bias='all'"),
        ('"init_lora_weights": true', '"init_lora_weights": "pissa"', "changes the base weights"),
        ('"modules_to_save": null', '"modules_to_save": ["head"]', "modules_to_save="),
    ):
        (tmp_path / "adapter_config.json").write_text(config.replace(old, new))
        with pytest.raises(ValueError, match=message):
            lora.load(other, tmp_path, name_map={"head": "lm_head"})
    with pytest.raises(mx.MXNetError, match="cannot read"):
        lora.load(other, tmp_path / "none")


def test_map_must_match_all_adapters(tmp_path):
    net = model()
    lora.apply(net, {r".*\.(query|up)": 2})
    names = {r"layers\.(\d+)\.query": r"layers.\1.q_proj"}
    with pytest.raises(ValueError, match=r"adapters of 'layers\.0\.up', .*'layers\.2\.up'; map"):
        lora.save(net, tmp_path / "out", name_map=names)
    with pytest.raises(ValueError, match=r"no adapter matches its keys 'layer\.up'"):
        lora.save(net, tmp_path / "out", name_map={**names, "layer.up": "up_proj"})
    assert not (tmp_path / "out").exists()
    lora.save(net, tmp_path / "out", name_map={**names, r".*\.up": None, "head": "lm_head"})
    arrays = nd.load(str(tmp_path / "out" / "adapter_model.safetensors"))
    assert len(arrays) == 6 and all(".q_proj." in name for name in arrays)


@pytest.mark.filterwarnings("error")
def test_experts_without_adapters_are_reported():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4), nn.MoE(units=4, hidden=4, experts=3, k=1, in_units=4))
    with pytest.warns(UserWarning, match=r"'1\.router' get adapters, but the experts") as caught:
        lora.apply(net, {r"1\.\w+": 2, "0": 2})
    assert len(caught) == 1 and caught[0].filename == __file__
    lora.remove(net)
    assert lora.apply(net, {r".*router": 2}) == ["1.router"]
    lora.remove(net)
    assert lora.apply(net, {"0": 2}) == ["0"]


class Own(nn.Dense):
    def hybrid_forward(self, F, x, weight, bias=None):
        return F.dot(x, weight, transpose_b=True)


def test_invalid_targets_name_the_remedy():
    net = model()
    with pytest.raises(ValueError, match=r"q_proj' does not match .* 'layers.0.query'"):
        lora.apply(net, {".*q_proj": 2})
    with pytest.raises(TypeError, match="must be a dict of patterns to ranks"):
        lora.apply(net, ["query"])
    with pytest.raises(ValueError, match="rank of 'head' must be at least 1, not 0"):
        lora.apply(net, {"head": 0})
    with pytest.raises(ValueError, match="letters, digits and underscores"):
        lora.apply(net, {"head": 2}, name="a.b")
    with pytest.raises(ValueError, match="dora=True needs nn.Dense"):
        lora.apply(net, {"embed": 2}, dora=True)
    other = nn.HybridSequential()
    other.add(nn.Conv2D(2, 1), Own(3), nn.Embedding(4, 4, sparse_grad=True))
    for index, message in enumerate(
        ("is a Conv2D; adapters support", "overrides hybrid_forward of Dense", "sparse_grad=True")
    ):
        with pytest.raises(ValueError, match=message):
            lora.apply(other, {str(index): 2})
    with pytest.raises(ValueError, match="no adapter 'default'; its adapters are none"):
        lora.enable(net, "default")
    lora.apply(net, {"head": 2})
    with pytest.raises(ValueError, match="'head' already has an adapter 'default'"):
        lora.apply(net, {"head": 2})
    with pytest.raises(ValueError, match="no adapter 'other'; its adapters are 'default'"):
        lora.enable(net, "other")
    with pytest.raises(mx.MXNetError, match="apply them after splitting"):
        mx.parallel.shard(net, {"head": "column"}, [on(0), on(1)])


@pytest.mark.parametrize("grad_req", ["write", "null"])
def test_trainer_from_before_the_adapters_names_the_order(grad_req):
    net = model()
    net.collect_params().setattr("grad_req", grad_req)
    trainer = gluon.Trainer(net, "sgd")
    lora.apply(net, TARGETS)
    with pytest.warns(UserWarning, match=r"create the Trainer after lora\.apply"):
        trainer.step(1)


def test_stale_gradients_of_merged_adapters_name_unmerge():
    net = model()
    lora.apply(net, {**TARGETS, "embed": 2})
    step = mx.parallel.TrainStep(
        net, gluon.loss.SoftmaxCELoss(), gluon.Trainer(net, "sgd"), mx.parallel.Pipeline(1)
    )
    step(*batch())
    lora.merge(net)
    with pytest.raises(UserWarning, match=r"adapters .* are merged \(lora\.unmerge\(net\)"):
        step(*batch())
    lora.unmerge(net)
    step(*batch())
