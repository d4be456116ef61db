"""Layers of transformers against NumPy, and networks over devices, splits, dtypes and files."""

import os
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.contrib import lora
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from mpgluon.gluon.model_zoo.text._layers import ACTIVATIONS
from ranks import launching
from support.processes import finished

RNG = np.random.RandomState(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def close(got, want, tolerance=1e-6):
    got = got.asnumpy() if isinstance(got, nd.NDArray) else got
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= tolerance * max(1.0, np.abs(want).max())


# --- Norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset):
    x = normal(2, 5, 6)
    norm = nn.RMSNorm(epsilon=1e-3, offset=offset, in_channels=6)
    norm.initialize()
    assert (norm.gamma.data().asnumpy() + offset == 1).all()
    gamma = normal(6)
    norm.gamma.set_data(nd.array(gamma))
    wide = x.astype("float64")
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3)
    close(norm(nd.array(x)), want * (offset + gamma))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rms_norm_of_halves_is_rounded_once(dtype):
    x = nd.array(normal(3, 512) * 50, dtype=dtype)
    norm = nn.RMSNorm(in_channels=512)
    norm.initialize()
    norm.cast(dtype)
    wide = x.astype("float64").asnumpy()
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    assert (norm(x).asnumpy() == nd.array(want, dtype=dtype).asnumpy()).mean() > 0.995


# --- Rotary embeddings ----------------------------------------------------------------------------


def inverse_of(size, scaling, options, length):
    """Returns the inverse frequencies in float64."""
    inverse = 10000.0 ** -(np.arange(0, size, 2) / size)
    if scaling == "linear":
        return inverse / options["factor"]
    if scaling == "longrope":
        long = length > options["original_length"]
        return inverse / np.array(options["long_factors" if long else "factors"])
    if scaling == "llama3":
        factor, whole = options["factor"], options["original_length"]
        low, high = options["low_freq_factor"], options["high_freq_factor"]
        found = []
        for value in inverse:
            wave = 2 * np.pi / value
            if wave < whole / high:
                found.append(value)
            elif wave > whole / low:
                found.append(value / factor)
            else:
                smooth = (whole / wave - low) / (high - low)
                found.append((1 - smooth) * value / factor + smooth * value)
        return np.array(found)
    return inverse


SCALINGS = {
    "none": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_length": 16,
    },
    "longrope": {
        "factors": [1.0, 1.5, 2.0, 2.5],
        "long_factors": [3.0, 4.0, 5.0, 6.0],
        "original_length": 12,
        "attention_factor": 1.25,
    },
}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("style", ["half", "pairs"])
@pytest.mark.parametrize("size", [8, 14])
@pytest.mark.parametrize("length", [7, 20])
def test_rotary(scaling, style, size, length):
    x, options = normal(2, length, 3, size), SCALINGS[scaling]
    inverse = inverse_of(8, scaling, options, length)
    angles = np.arange(length)[:, None] * inverse
    cos, sin = (f(angles)[:, None] * options.get("attention_factor", 1.0) for f in (np.cos, np.sin))
    want = x.astype("float64")
    if style == "half":
        first, second = slice(0, 4), slice(4, 8)
    else:
        first, second = slice(0, 8, 2), slice(1, 8, 2)
    want[..., first] = x[..., first] * cos - x[..., second] * sin
    want[..., second] = x[..., second] * cos + x[..., first] * sin
    layer = nn.MultiHeadAttention(
        3 * size, 3, rotary={"dims": 8, "style": style, "scaling": scaling, **options}
    )
    close(layer._rotated(nd, nd.array(x), None, nd.array(x)), want, 2e-6)


def test_rotary_angles_of_long_texts_are_exact():
    x = np.zeros((1, 40000, 1, 2), "float32")
    x[..., 0] = 1
    got = nd.contrib.rotary(nd.array(x)).asnumpy()[0, :, 0]
    close(got, np.stack([np.cos(np.arange(40000.0)), np.sin(np.arange(40000.0))], 1), 1e-7)


# --- Networks -------------------------------------------------------------------------------------

SIZES = {"vocab": 32, "units": 16, "layers": 4, "heads": 4, "hidden": 24}
NETS = {
    "llama": {"kv_heads": 2, "rotary": {}},
    "tied with windows": {"rotary": {}, "window": [3, 0, 3, 0], "tied": True, "qk_norm": True},
    "gemma": {
        "rotary": {},
        "tied": True,
        "norm_offset": 1.0,
        "softcap": 5.0,
        "head_softcap": 3.0,
        "embed_scale": 4.0,
        "sandwich": True,
        "activation": "gelu_tanh",
    },
    "experts": {
        "rotary": {"scaling": "linear", "factor": 2.0},
        "experts": {"hidden": 12, "experts": 6, "k": 2, "renormalize": False, "shared": 1},
        "expert_layers": [True, True, False, True],
    },
    "positions": {
        "positions": 12,
        "norm": "layer",
        "gated": False,
        "attention_bias": True,
        "mlp_bias": True,
        "activation": "gelu",
        "embed_dropout": 0.2,
        "attention_dropout": 0.2,
        "dropout": 0.2,
    },
}
TOKENS = RNG.randint(0, 32, (4, 10)).astype("int32")
HALVES = {
    "embed|positions": mx.cpu(0),
    r"layers\.[01]": mx.cpu(0),
    r"layers\.[23]": mx.cpu(1),
    "norm|head": mx.cpu(1),
}


def network(name, place=None, prefix="net_"):
    mx.random.seed(3)
    net = text.Decoder(**SIZES, **NETS[name], deviation=0.3, prefix=prefix)
    if place is not None:
        net.place(place, verbose=False)
    net.initialize()
    return net


def tokens(value=TOKENS):
    return nd.array(value, dtype="int32")


def test_networks_are_pickled_with_each_activation():
    for activation in ACTIVATIONS:
        mlp = {"gated": False, "activation": activation}
        net = text.Decoder(**{**SIZES, "layers": 1}, **mlp)
        net.initialize()
        wanted, found = net(tokens()), pickle.loads(pickle.dumps(net))(tokens())
        assert np.array_equal(wanted.asnumpy(), found.asnumpy())


@pytest.mark.parametrize("way", ["eager", "hybrid", "recompute", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("name", NETS)
def test_two_devices_train_with_the_bits_of_one(name, way):
    loss_of, results = gluon.loss.SoftmaxCrossEntropyLoss(), []
    labels = np.roll(TOKENS, -1, 1)
    for place in (None, HALVES):
        net = network(name, place)
        trainer = gluon.Trainer(net.collect_params(), "adam")
        mx.random.seed(5)
        if way in ("1f1b", "zero_bubble"):
            schedule = mx.parallel.Pipeline(2, way)
            step = mx.parallel.TrainStep(net, loss_of, trainer, schedule)
            losses = [step(tokens(), nd.array(labels)).asnumpy() for _ in range(3)]
        else:
            net.hybridize(way != "eager", **({"recompute": True} if way == "recompute" else {}))
            losses = []
            for _ in range(3):
                with autograd.record():
                    out = net(tokens())
                    loss = loss_of(out, nd.array(labels, ctx=out.context))
                loss.backward()
                trainer.step(4)
                losses.append(loss.asnumpy())
        results.append(losses + [p.reduced().asnumpy() for p in net.collect_params().values()])
    for one, two in zip(*results):
        assert (one == two).all()


@pytest.mark.parametrize("name", NETS)
def test_split_layers_and_heads(name, tmp_path):
    net = network(name)
    want = net(tokens()).asnumpy()
    net.save_parameters(tmp_path, format="huggingface")
    devices = [mx.cpu(0), mx.cpu(1)]
    plan = {r"layers\.\d+\.attention": "heads"}
    if name != "experts":
        plan.update({r"layers\.\d+\.mlp\.(gate|up)": "column", r"layers\.\d+\.mlp\.down": "row"})
    split = text.Decoder(**SIZES, **NETS[name], prefix="net_")
    mx.parallel.shard(split, plan, devices)
    split.load_parameters(tmp_path, format="huggingface")
    close(split(tokens()), want, 1e-5)
    split.hybridize()
    close(split(tokens()), want, 1e-5)


@pytest.mark.parametrize("hybrid", [False, True])
def test_norms_between_split_heads_train_as_on_one_device(hybrid):
    results, devices = [], [mx.cpu(0), mx.cpu(1)]
    loss_of, labels = gluon.loss.SoftmaxCrossEntropyLoss(), nd.array(np.roll(TOKENS, -1, 1))
    for split in (False, True):
        net = network("tied with windows")
        if split:
            mx.parallel.shard(net, {r"layers\.\d+\.attention": "heads"}, devices)
        net.hybridize(hybrid)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
        for _ in range(3):
            with autograd.record():
                loss = loss_of(net(tokens()), labels)
            loss.backward()
            trainer.step(4)
        norms = [
            norm.gamma.data().asnumpy()
            for layer in net.layers
            for norm in (layer.attention.query_norm, layer.attention.key_norm)
        ]
        assert all(np.abs(gamma - 1).max() > 1e-4 for gamma in norms)
        results.append([loss.asnumpy(), *norms])
    for one, two in zip(*results):
        close(two, one, 1e-5)


class NormOverHeads(nn.MultiHeadAttention):
    """Normalizes the queries of all heads together."""

    def hybrid_forward(self, F, x):
        query = F.reshape(F.contrib.rms_norm(self.query(x)), (0, 0, self._heads, -1))
        key, value = (
            F.reshape(product(x), (0, 0, self._heads, -1)) for product in (self.key, self.value)
        )
        return self.proj(F.reshape(F.contrib.attention(query, key, value), (0, 0, -3)))


def test_norm_over_all_heads_cannot_be_split():
    net = nn.HybridSequential()
    net.add(NormOverHeads(8, 2, in_units=8))
    mx.parallel.shard(net, {"0": "heads"}, [mx.cpu(0), mx.cpu(1)])
    net.initialize()
    with pytest.raises(mx.MXNetError, match="changes if it is divided by heads"):
        net(nd.array(normal(2, 4, 8)) * nd.array(np.arange(8)))


@pytest.mark.parametrize("name", NETS)
def test_export_accepts_other_batch_sizes_and_lengths(name, tmp_path):
    net = network(name)
    net.hybridize()
    short = tokens(TOKENS[:2, :5])
    want, want_short = net(tokens()).asnumpy(), net(short).asnumpy()
    net.export(str(tmp_path / "net"))
    found = gluon.SymbolBlock.imports(
        str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    )
    close(found(tokens()), want, 1e-5)
    close(found(short), want_short, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in NETS if name != "experts"])
def test_halves_are_near_float32(name, dtype):
    net = network(name)
    want = net(tokens()).asnumpy()
    net.cast(dtype)
    got = net(tokens())
    assert np.dtype(got.dtype).name == dtype if dtype == "float16" else "bfloat16" in str(got.dtype)
    error = np.abs(got.astype("float32").asnumpy() - want).mean() / np.abs(want).mean()
    assert error < (0.01 if dtype == "float16" else 0.06)


@pytest.mark.parametrize("name", NETS)
def test_float64_is_near_float32(name):
    net = network(name)
    want = net(tokens()).asnumpy()
    net.cast("float64")
    got = net(tokens())
    assert got.dtype == np.float64
    close(got, want, 1e-5)


def saved_llama(folder):
    """Saves a small network. Returns it with its scores."""
    config = {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 32,
    }
    net = text.from_config(config)
    net.initialize(mx.init.Normal(0.3))
    net.save_parameters(folder, format="huggingface")
    return net, net(tokens()).asnumpy()


@pytest.mark.slow
def test_planned_network_is_loaded_onto_its_plan(tmp_path):
    net, want = saved_llama(tmp_path)
    plan = mx.parallel.plan(net, tokens(), [mx.cpu(0), mx.cpu(1)])
    assert {path.split(".")[0] for path in plan.placement} == {"embed", "layers", "norm", "head"}
    again = text.from_pretrained(tmp_path, ctx=plan)
    assert (again(tokens()).asnumpy() == want).all()
    devices = {p.list_ctx()[0] for p in again.collect_params().values()}
    assert devices == set(plan.placement.values())


def test_from_pretrained_accepts_placements_devices_and_dtypes(tmp_path):
    _, want = saved_llama(tmp_path)
    mesh = mx.parallel.Mesh({"data": 2}, [mx.cpu(0), mx.cpu(1)])
    halves = {"embed": mx.cpu(0), r"layers\..|norm|head": mx.cpu(1)}
    for where in (halves, mesh):
        again = text.from_pretrained(tmp_path, ctx=where)
        assert (again(tokens()).asnumpy() == want).all()
    again = text.from_pretrained(tmp_path, ctx=mx.cpu(1))
    assert (again(tokens().as_in_context(mx.cpu(1))).asnumpy() == want).all()
    replicas = text.from_pretrained(tmp_path, ctx=mesh)
    assert replicas.head.weight.list_ctx() == [mx.cpu(0), mx.cpu(1)]
    half = text.from_pretrained(tmp_path, dtype="bfloat16")
    assert "bfloat16" in str(half.head.weight.data().dtype)


def test_names_of_transformers_raise_errors_with_the_replacement(tmp_path):
    saved_llama(tmp_path)
    for option, way in (
        (
            {"device_map": "auto"},
            r"'ctx'\? \(ctx=\[mx.gpu\(0\), mx.gpu\(1\)\] divides the layers\)",
        ),
        ({"max_memory": {0: "1GB"}}, "'memory'"),
        ({"torch_dtype": "auto"}, "'dtype'"),
        ({"load_in_8bit": True}, r"'quantize'\? \(quantize='int8'\)"),
        ({"low_cpu_mem_usage": True}, "it takes ctx, dtype, quantize, memory, grad_req"),
    ):
        with pytest.raises(TypeError, match=rf"has no option '{next(iter(option))}'.*{way}"):
            text.from_pretrained(tmp_path, **option)
    with pytest.raises(AttributeError, match=r"use text.from_pretrained\(folder\)"):
        text.AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(AttributeError, match="did you mean 'from_pretrained'"):
        text.from_pretrain


def test_loading_without_gradients_takes_the_memory_of_the_parameters(tmp_path):
    _, want = saved_llama(tmp_path)
    net = text.from_pretrained(tmp_path, grad_req="null")
    assert {param.grad_req for param in net.collect_params().values()} == {"null"}
    assert (net(tokens()).asnumpy() == want).all()
    with pytest.raises(mx.MXNetError, match="has no gradient because its grad_req is 'null'"):
        net.head.weight.grad()
    lora.apply(net, {".*query": 2})
    assert {param.grad_req for param in lora.parameters(net).values()} == {"write"}
    lora.remove(net)
    assert net.head.weight.grad_req == "null"


def test_progress_bar_of_loading_is_shown_only_on_request(tmp_path, capsys):
    saved_llama(tmp_path)
    text.from_pretrained(tmp_path)
    assert capsys.readouterr().err == ""
    text.from_pretrained(tmp_path, progress=True)
    assert "loading: 100%" in capsys.readouterr().err


def test_files_with_several_dtypes_are_loaded_as_float32(tmp_path):
    saved_llama(tmp_path)
    path = str(tmp_path / "model.safetensors")
    arrays = nd.load(path)
    for name in list(arrays)[::2]:
        arrays[name] = arrays[name].astype("bfloat16")
    nd.save(path, arrays)
    got = text.from_pretrained(tmp_path)(tokens())
    assert got.dtype == np.float32
    nd.save(path, {name: array.astype("float32") for name, array in arrays.items()})
    assert (text.from_pretrained(tmp_path)(tokens()).asnumpy() == got.asnumpy()).all()


OLDER = {
    # The first files of GPT-2 have no prefix, and hold masks.
    "gpt2": (
        {"n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 12, "vocab_size": 32},
        lambda name: name.replace("transformer.", ""),
        {"h.0.attn.bias": (1, 1, 12, 12), "h.1.attn.masked_bias": ()},
    ),
    "llama": (
        {},
        lambda name: name,
        {"model.layers.0.self_attn.rotary_emb.inv_freq": (2,), "lm_head.weight": None},
    ),
    # The first files of BERT call the parameters of norms gamma and beta.
    "bert": (
        {"architectures": ["BertForMaskedLM"]},
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ),
        {
            "bert.embeddings.position_ids": (1, 512),
            "bert.pooler.dense.weight": (16, 16),
            "bert.pooler.dense.bias": (16,),
            "cls.predictions.decoder.weight": None,
            "cls.seq_relationship.weight": (2, 16),
            "cls.seq_relationship.bias": (2,),
        },
    ),
}


@pytest.mark.parametrize("kind", OLDER)
def test_files_with_older_names_and_unused_arrays_are_loaded(kind, tmp_path):
    more, renamed, unused = OLDER[kind]
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 32,
        "tie_word_embeddings": True,
    }
    net = text.from_config({"model_type": kind, **({} if kind == "gpt2" else sizes), **more})
    net.initialize(mx.init.Normal(0.3))
    net.save_parameters(tmp_path, format="huggingface")
    path = str(tmp_path / "model.safetensors")
    arrays = nd.load(path)
    (shared,) = (
        name
        for name in arrays
        if name.endswith(("wte.weight", "_tokens.weight", "word_embeddings.weight"))
    )
    found = {renamed(name): array for name, array in arrays.items()}
    for name, shape in unused.items():  # None: a copy of the shared weight
        found[name] = arrays[shared] if shape is None else nd.ones(shape or (1,))
    nd.save(path, found)
    again = text.from_pretrained(tmp_path)
    assert (again(tokens()).asnumpy() == net(tokens()).asnumpy()).all()
    again.save_parameters(tmp_path, format="huggingface")
    assert sorted(nd.load(path)) == sorted(arrays)


@pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
def test_ranks_read_only_their_own_layers(tmp_path):
    net, _ = saved_llama(tmp_path)
    script = os.path.join(launching.SCRIPTS, "huggingface.py")
    done = launching.run(2, script, str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    want = net(nd.array([[1, 5, 3, 2]], dtype="int32")).asnumpy()
    assert [text for kind, text in lines if kind == "scores"] == [want.tobytes().hex()] * 2
    assert sorted(int(text) for kind, text in lines if kind == "read") == [1 + 2 * 9, 2 * 9 + 2]
    errors = [text for kind, text in lines if kind == "error"]
    assert len(errors) == 2
    assert all("save with mx.parallel.save" in error for error in errors)


def test_positions_that_do_not_exist_raise():
    with pytest.raises(ValueError, match="13 tokens, but there are only 12 positions"):
        network("positions")(nd.zeros((1, 13), dtype="int32"))


def test_tied_head_shares_the_parameter():
    net = network("gemma")
    assert net.head.weight is net.embed.weight
    assert isinstance(net.layers, nn.HybridSequential)
    assert len(net.layers) == 4


def test_transformers_is_not_imported(tmp_path):
    network("llama").save_parameters(tmp_path, format="huggingface")
    finished(
        f"""
        import sys
        import mpgluon as mx
        from mpgluon.gluon.model_zoo import text
        net = text.Decoder(**{SIZES!r}, **{NETS["llama"]!r})
        net.load_parameters({os.fspath(tmp_path)!r}, format="huggingface")
        assert not {{"torch", "transformers", "safetensors"}} & set(sys.modules)
        """
    )
