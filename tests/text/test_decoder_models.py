"""Models of Hugging Face, compared with transformers, which creates and saves random networks.

Scores, greedy tokens, losses of six SGD steps, the bits of two devices, and files that transformers
loads again.
"""

import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.contrib import lora
from mpgluon.gluon.model_zoo import text

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def rope(kind, **numbers):
    return {"rope_type": kind, "rope_theta": 10000.0, **numbers}


# name -> (class of the config, class of the model, options)
DECODERS = {
    "llama": ("Llama", "ForCausalLM", {}),
    "llama 3": (
        "Llama",
        "ForCausalLM",
        {
            "tie_word_embeddings": True,
            "rope_parameters": rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
        },
    ),
    "llama with biases and linear scaling": (
        "Llama",
        "ForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": rope("linear", factor=4.0)},
    ),
    "llama with yarn": (
        "Llama",
        "ForCausalLM",
        {"rope_parameters": rope("yarn", factor=4.0, original_max_position_embeddings=16)},
    ),
    "mistral": ("Mistral", "ForCausalLM", {"head_dim": 8, "sliding_window": 5}),
    "qwen 2": (
        "Qwen2",
        "ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
    ),
    "qwen 3": ("Qwen3", "ForCausalLM", {"head_dim": 16}),
    "gemma": ("Gemma", "ForCausalLM", {"head_dim": 16}),
    "gemma 2": (
        "Gemma2",
        "ForCausalLM",
        {
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 12,
            "attn_implementation": "eager",  # the others ignore softcaps
        },
    ),
    "gemma 3": (
        "Gemma3Text",
        "Gemma3ForCausalLM",
        {
            "head_dim": 16,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "phi 3": ("Phi3", "ForCausalLM", {"sliding_window": 7, "bos_token_id": 1, "eos_token_id": 2}),
    "phi 3 with longrope": (
        "Phi3",
        "ForCausalLM",
        {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "original_max_position_embeddings": 16,
            "rope_parameters": rope(
                "longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.0, 2.0, 3.0, 4.0]
            ),
        },
    ),
    "mixtral": ("Mixtral", "ForCausalLM", {"num_local_experts": 4, "sliding_window": 9}),
    "qwen 3 moe": (
        "Qwen3Moe",
        "ForCausalLM",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 20,
            "mlp_only_layers": [1],
            "head_dim": 12,
        },
    ),
    "olmo": ("Olmo", "ForCausalLM", {"tie_word_embeddings": True, "eos_token_id": 2}),
    "olmo 2": ("Olmo2", "ForCausalLM", {"eos_token_id": 2, "rms_norm_eps": 1e-5}),
    "gpt 2": (
        "GPT2",
        "GPT2LMHeadModel",
        {
            "n_embd": 32,
            "n_layer": 4,
            "n_head": 4,
            "n_positions": 64,
            "vocab_size": 64,
            "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "scale_attn_by_inverse_layer_idx": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}
TOKENS = np.random.RandomState(0).randint(1, 64, (4, 20)).astype("int32")
LABELS = np.roll(TOKENS, -1, 1)
FIRST, SECOND = mx.cpu(0), mx.cpu(1)
HALVES = {
    "embed|positions": FIRST,
    r"layers\.[01]": FIRST,
    r"layers\.[23]": SECOND,
    "norm|head": SECOND,
}


def randomized(model, seed=0):
    """Gives all parameters random values, so that no norm or bias is neutral."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            deviation = 0.1 if param.dim() < 2 else 1.5 * param.shape[-1] ** -0.5
            noise = torch.randn(param.shape, generator=generator) * deviation
            param.copy_(noise if param.dim() > 1 else param + noise)
    return model.eval()


def saved(name, folder):
    """Creates a model of transformers and saves it. Returns the model."""
    config, model, options = DECODERS[name]
    sizes = {} if config == "GPT2" else SIZES
    options = dict(options)
    attention = options.pop("attn_implementation", "sdpa")
    config_of = getattr(transformers, config + "Config")
    model_of = getattr(transformers, config + model if model == "ForCausalLM" else model)
    config = config_of(**{**sizes, **options})
    model = randomized(model_of._from_config(config, attn_implementation=attention))
    model.save_pretrained(folder)
    return model


def scores(model, tokens=TOKENS):
    with torch.no_grad():
        return model(torch.tensor(tokens).long()).logits.numpy()


def close(got, want, tolerance=1e-5):
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= tolerance * max(1.0, np.abs(want).max())


@pytest.fixture(params=DECODERS)
def case(request, tmp_path):
    return saved(request.param, tmp_path), tmp_path


def array(tokens):
    return nd.array(tokens, dtype="int32")


def trained(net, steps=6, pipeline=None, hybrid=False):
    """Trains a network. Returns the losses and the weights."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    losses = []
    if pipeline is not None:
        step = mx.parallel.TrainStep(net, loss_of, trainer, pipeline)
        losses = [step(array(TOKENS), nd.array(LABELS)).mean().asscalar() for _ in range(steps)]
    else:
        net.hybridize(hybrid)
        for _ in range(steps):
            with autograd.record():
                out = net(array(TOKENS))
                loss = loss_of(out, nd.array(LABELS, ctx=out.context))
            loss.backward()
            trainer.step(len(TOKENS))
            losses.append(loss.mean().asscalar())
    weights = {name: p.reduced().asnumpy() for name, p in net.collect_params().items()}
    return losses, list(weights.values())


def trained_by_torch(model, steps=6):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    tokens, labels = torch.tensor(TOKENS).long(), torch.tensor(LABELS).long()
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# --- Language models ------------------------------------------------------------------------------


def test_scores_are_those_of_transformers(case):
    model, folder = case
    net = text.from_pretrained(folder)
    want = scores(model)
    close(net(array(TOKENS)).asnumpy(), want)
    net.hybridize()
    close(net(array(TOKENS)).asnumpy(), want)
    close(net(array(TOKENS[:1, :7])).asnumpy(), scores(model, TOKENS[:1, :7]))


@pytest.mark.parametrize("name", ["llama", "gpt 2", "gemma 3", "mistral"])
def test_padding_at_the_beginning_is_hidden_as_by_attention_mask(tmp_path, name):
    model = saved(name, tmp_path)
    mask = np.ones(TOKENS.shape, "int32")
    mask[1, :5], mask[2, :13] = 0, 0
    positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
    with torch.no_grad():
        want = model(
            torch.tensor(TOKENS).long(),
            attention_mask=torch.tensor(mask),
            position_ids=torch.tensor(positions).long(),
        ).logits.numpy()
    net = text.from_pretrained(tmp_path, ctx=HALVES)
    for hybrid in (False, True):
        net.hybridize(hybrid)
        got = net(array(TOKENS), None, None, None, array(mask), array(positions)).asnumpy()
        close(got[mask == 1], want[mask == 1])
    assert np.abs(scores(model)[mask == 1] - want[mask == 1]).max() > 1e-3


def test_greedy_tokens_are_those_of_transformers(case):
    model, folder = case
    net = text.from_pretrained(folder)
    tokens = TOKENS[:1, :6].tolist()
    for _ in range(32):
        tokens[0].append(int(net(array(tokens)).asnumpy()[0, -1].argmax()))
    want = TOKENS[:1, :6].tolist()
    for _ in range(32):  # without a cache, which longrope would fill with other frequencies
        want[0].append(int(scores(model, want)[0, -1].argmax()))
    assert tokens == want


def test_training_losses_are_those_of_torch_and_bits_those_of_one_device(case):
    model, folder = case
    want = trained_by_torch(model)
    pipeline = mx.parallel.Pipeline(2, "1f1b")
    for options in ({}, {"hybrid": True}, {"pipeline": pipeline}):
        losses, weights = trained(text.from_pretrained(folder), **options)
        np.testing.assert_allclose(losses, want, rtol=1e-5)
        placed = text.from_pretrained(folder, ctx=HALVES)
        others, other_weights = trained(placed, **options)
        assert losses == others
        for one, two in zip(weights, other_weights):
            assert (one == two).all()


def test_saved_network_has_the_same_scores_in_transformers(case, tmp_path):
    model, folder = case
    out = tmp_path / "out"
    text.from_pretrained(folder).save_parameters(out, format="huggingface", shard_bytes=20000)
    assert len(list(out.glob("*.safetensors"))) > 1
    again, problems = type(model).from_pretrained(
        out, attn_implementation=model.config._attn_implementation, output_loading_info=True
    )
    assert not any(problems[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (scores(again.eval()) == scores(model)).all()


@pytest.mark.parametrize("name", ["llama 3", "gemma 2"])
def test_half_precision_is_as_close_as_transformers(tmp_path, name):
    model = saved(name, tmp_path)
    exact = scores(model)
    model.to(torch.bfloat16)
    with torch.no_grad():
        rounded = model(torch.tensor(TOKENS).long()).logits.float().numpy()
    theirs = np.abs(rounded - exact).mean()
    net = text.from_pretrained(tmp_path, dtype="bfloat16")
    ours = np.abs(net(array(TOKENS)).astype("float32").asnumpy() - exact).mean()
    assert ours < 1.5 * theirs


# --- Other forms of configs -----------------------------------------------------------------------

# name -> (class of the config, class of the model, options)
FORMS = {
    "a part of each head is rotated": (
        "Phi3",
        "ForCausalLM",
        {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rope_parameters": {**rope("default"), "partial_rotary_factor": 0.75},
        },
    ),
    "types of layers": (
        "Qwen2",
        "ForCausalLM",
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    "scaling of some layers": (
        "Gemma3Text",
        "Gemma3ForCausalLM",
        {
            "head_dim": 16,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": rope("linear", factor=8.0),
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "yarn without truncation": (
        "Llama",
        "ForCausalLM",
        {
            "rope_parameters": rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=16,
                beta_fast=8.0,
                beta_slow=0.5,
                truncate=False,
                mscale=0.8,
                mscale_all_dim=0.5,
            )
        },
    ),
    "one group and large heads": (
        "Gemma",
        "ForCausalLM",
        {"head_dim": 24, "num_key_value_heads": 1},
    ),
    "normalized weights of experts in every other layer": (
        "Qwen3Moe",
        "ForCausalLM",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    "tied experts": ("Mixtral", "ForCausalLM", {"tie_word_embeddings": True, "head_dim": 6}),
}


@pytest.mark.parametrize("keep", [True, False])
def test_merged_adapters_are_saved_in_the_weights(tmp_path, keep):
    saved("llama", tmp_path / "model")
    net, out = text.from_pretrained(tmp_path / "model"), tmp_path / "out"
    lora.apply(net, {r".*(query|up)": 2}, alpha=2)
    for param in lora.parameters(net).values():
        param.set_data(nd.random.normal(0, 0.3, shape=param.shape))
    want = net(array(TOKENS)).asnumpy()
    with pytest.raises(mx.MXNetError, match="'layers.0.attention.query' has adapters.*lora.merge"):
        net.save_parameters(out, format="huggingface")
    assert not out.exists()
    lora.merge(net, keep=keep)
    net.save_parameters(out, format="huggingface")
    assert not any("lora" in name for name in nd.load(str(out / "model.safetensors")))
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    close(scores(model), want)
    close(text.from_pretrained(out)(array(TOKENS)).asnumpy(), want)


@pytest.mark.parametrize("name", FORMS)
def test_scores_for_other_forms_of_configs(monkeypatch, tmp_path, name):
    monkeypatch.setitem(DECODERS, name, FORMS[name])
    model = saved(name, tmp_path)
    close(text.from_pretrained(tmp_path)(array(TOKENS)).asnumpy(), scores(model))


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "mistral",
        "mixtral",
        "qwen 2",
        "qwen 3",
        "qwen 3 moe",
        "gemma",
        "gemma 2",
        "gemma 3",
        "olmo",
        "olmo 2",
    ],
)
def test_partial_rotary_factor_is_ignored_as_in_transformers(monkeypatch, tmp_path, name):
    config, model, options = DECODERS[name]
    parameters = {**rope("default"), "partial_rotary_factor": 0.5}
    if name == "gemma 3":
        parameters = dict.fromkeys(("full_attention", "sliding_attention"), parameters)
    changed = {**options, "rope_parameters": parameters}
    monkeypatch.setitem(DECODERS, name, (config, model, changed))
    model = saved(name, tmp_path)
    assert "partial_rotary_factor" in (tmp_path / "config.json").read_text()
    close(text.from_pretrained(tmp_path)(array(TOKENS)).asnumpy(), scores(model))


def older(config):
    """Converts a config to the form before version 5 of transformers."""
    parameters = config.pop("rope_parameters")
    config["torch_dtype"] = config.pop("dtype")
    if "full_attention" in parameters:
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = 2
        del config["layer_types"]
        config.pop("_sliding_window_pattern", None)
        parameters = parameters["full_attention"]
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **parameters}
    return config


@pytest.mark.parametrize(
    "name", ["llama", "llama 3", "llama with yarn", "gemma 3", "phi 3 with longrope"]
)
def test_older_form_of_a_config_gives_the_same_network(tmp_path, name):
    saved(name, tmp_path)
    want = text.from_pretrained(tmp_path)(array(TOKENS)).asnumpy()
    path = tmp_path / "config.json"
    config = older(json.loads(path.read_text()))
    assert "rope_parameters" not in config
    path.write_text(json.dumps(config))
    assert (text.from_pretrained(tmp_path)(array(TOKENS)).asnumpy() == want).all()
