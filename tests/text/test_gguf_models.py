"""Language models in GGUF files: configs, names, packed layers, placement, training."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.base import MXNetError
from mpgluon.gluon import nn
from mpgluon.gluon._huggingface import gguf
from mpgluon.gluon.model_zoo import text
from support.text.few_bits import gguf_tensor, gguf_values
from support.text.gguf_models import CONFIGS, config_for, values_of, write_model

TOKENS = np.array([[3, 17, 5, 0, 41, 9, 30], [1, 2, 3, 4, 47, 6, 7]])
PACKED = ["Q8_0", "Q4_0", "Q4_K", "Q6_K"]


def tokens():
    return nd.array(TOKENS, dtype="int32")


def network(kind, **changes):
    mx.random.seed(5)
    net = text.from_config({**config_for(kind), **changes})
    net.initialize(mx.init.Normal(0.1))
    return net


@pytest.mark.parametrize("kind", CONFIGS)
def test_float_file_gives_scores_of_original(tmp_path, kind):
    net = network(kind)
    write_model(tmp_path / "m.gguf", net, tmp_path / "hf")
    want = net(tokens()).asnumpy()
    found = text.from_pretrained(tmp_path / "m.gguf")
    assert not any(isinstance(block, nn.QuantizedDense) for block in blocks(found))
    assert np.abs(found(tokens()).asnumpy() - want).max() < 2e-5 * np.abs(want).max()


def blocks(net):
    found = []
    net.apply(found.append)
    return found


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("packing", PACKED)
def test_packed_file_gives_scores_of_dequantized_weights(tmp_path, kind, packing):
    tensors = write_model(tmp_path / "m.gguf", network(kind), tmp_path / "hf", packing)
    path = tmp_path / "m.gguf"
    net, plain = text.from_pretrained(path), text.from_pretrained(path, quantize=False)
    layers = [block for block in blocks(net) if isinstance(block, nn.QuantizedDense)]
    assert len(layers) == 7 * len(net.layers) + 1
    assert {layer.format for layer in layers} == {packing.lower()}
    assert not any(isinstance(block, nn.QuantizedDense) for block in blocks(plain))
    values = values_of(tensors)
    own = plain.collect_params()
    assert np.array_equal(
        own[plain.embed.weight.name].data().asnumpy(), values["token_embd.weight"]
    )
    down = plain.layers[1].mlp.down.weight.data().asnumpy()
    assert np.array_equal(down, values["blk.1.ffn_down.weight"])
    raw = tensors["blk.1.ffn_down.weight"][2]
    assert net.layers[1].mlp.down.packed.data().asnumpy().tobytes() == raw
    want = plain(tokens()).asnumpy()
    difference = np.abs(net(tokens()).asnumpy() - want).max()
    assert difference < 1e-4 * np.abs(want).max()


def test_mixed_types_keep_each_layers_format(tmp_path):
    rng = np.random.default_rng(1)
    extra = {
        "blk.0.ffn_down.weight": gguf_tensor(rng, "Q6_K", (256, 512)),
        "blk.0.ffn_up.weight": gguf_tensor(rng, "F16", (512, 256)),
        "output.weight": gguf_tensor(rng, "Q8_0", (48, 256)),
    }
    write_model(tmp_path / "m.gguf", network("llama"), tmp_path / "hf", "Q4_K", extra=extra)
    net = text.from_pretrained(tmp_path / "m.gguf")
    mlp = net.layers[0].mlp
    assert mlp.gate.format == "q4_k" and mlp.down.format == "q6_k" and net.head.format == "q8_0"
    want = gguf_values(*extra["blk.0.ffn_up.weight"])
    assert np.array_equal(mlp.up.weight.data().asnumpy(), want)


def test_tied_head_is_packed_and_embedding_is_dequantized(tmp_path):
    tensors = write_model(tmp_path / "m.gguf", network("qwen2"), tmp_path / "hf", "Q6_K")
    assert "output.weight" not in tensors
    net = text.from_pretrained(tmp_path / "m.gguf")
    raw = tensors["token_embd.weight"]
    assert net.head.packed.data().asnumpy().tobytes() == raw[2]
    assert np.array_equal(net.embed.weight.data().asnumpy(), gguf_values(*raw))


def test_divisors_of_frequencies_are_applied(tmp_path):
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    net = network("llama", rope_scaling=scaling)
    # The divisors as llama.cpp's converter computes them
    frequencies = 5000.0 ** -(np.arange(0, 64, 2) / 64)
    lengths = 2 * np.pi / frequencies
    smooth = np.clip((32 / lengths - 1) / (4 - 1), 0, 1)
    factors = (1 / ((1 - smooth) / 8 + smooth)).astype("<f4")
    extra = {"rope_freqs.weight": ("F32", (32,), factors.tobytes())}
    write_model(tmp_path / "m.gguf", net, tmp_path / "hf", extra=extra)
    want, found = net(tokens()).asnumpy(), text.from_pretrained(tmp_path / "m.gguf")(tokens())
    assert np.abs(found.asnumpy() - want).max() < 2e-5 * np.abs(want).max()
    write_model(tmp_path / "m.gguf", net, tmp_path / "hf")
    plain = text.from_pretrained(tmp_path / "m.gguf")(tokens())
    assert np.abs(plain.asnumpy() - want).max() > 1e-3 * np.abs(want).max()


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_of_positions_is_applied(tmp_path, kind):
    scaling = {"rope_type": kind, "factor": 4.0}
    metadata = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 4.0}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = 16
        metadata["llama.rope.scaling.original_context_length"] = 16
    net = network("llama", rope_scaling=scaling)
    write_model(tmp_path / "m.gguf", net, tmp_path / "hf", metadata=metadata)
    want, found = net(tokens()).asnumpy(), text.from_pretrained(tmp_path / "m.gguf")(tokens())
    assert np.abs(found.asnumpy() - want).max() < 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("kind", ["llama", "phi3"])
def test_dimension_count_rotates_a_part_of_each_head(tmp_path, kind):
    # Only Phi-3 uses the factor with the type 'default'.
    scaling = {"rope_type": "linear", "factor": 1.0} if kind == "llama" else None
    net = network(kind, partial_rotary_factor=0.5, rope_scaling=scaling)
    config = config_for(kind)
    size = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    metadata = {f"{kind}.rope.dimension_count": size // 2}
    write_model(tmp_path / "m.gguf", net, tmp_path / "hf", metadata=metadata)
    want, found = net(tokens()).asnumpy(), text.from_pretrained(tmp_path / "m.gguf")(tokens())
    assert np.abs(found.asnumpy() - want).max() < 2e-5 * np.abs(want).max()


@pytest.mark.parametrize(
    "metadata, reason",
    [
        (
            {"general.architecture": "mamba"},
            "'mamba' is not supported; the architectures are llama",
        ),
        ({"llama.expert_count": 8}, r"llama\.expert_count = 8 is not supported"),
        ({"llama.attention.clamp": 2.0}, r"llama\.attention\.clamp = 2\.0 is not supported"),
        ({"llama.attention.value_length": 32}, "must be attention.key_length = 64"),
        ({"llama.attention.head_count": [4, 2]}, "differs between layers"),
        ({"llama.block_count": 0}, "must be a positive integer"),
        ({"llama.block_count": 1 << 30}, "exceeds the number of tensors"),
        ({"general.architecture": [1, 2]}, "is not supported; the architectures are llama"),
        ({"general.architecture": ["llama"]}, "is not supported; the architectures are llama"),
        ({"llama.rope.freq_base": "x"}, "must be a finite number"),
        ({"llama.rope.scaling.type": "dynamic"}, "scaling.type = 'dynamic'"),
        ({"llama.rope.dimension_count": 66}, "must be even and at most 64"),
    ],
)
def test_unsupported_metadata_names_key(tmp_path, metadata, reason):
    write_model(tmp_path / "m.gguf", network("llama"), tmp_path / "hf", metadata=metadata)
    with pytest.raises(MXNetError, match=reason):
        text.from_pretrained(tmp_path / "m.gguf")


def test_header_is_read_once(tmp_path, monkeypatch):
    opened, read = [], gguf.GGUF.__init__

    def count(file, path):
        opened.append(path)
        read(file, path)

    write_model(tmp_path / "m.gguf", network("llama"), tmp_path / "hf", "Q8_0")
    monkeypatch.setattr(gguf.GGUF, "__init__", count)
    for create in (text.from_pretrained, text.from_config):
        opened.clear()
        create(tmp_path / "m.gguf")
        assert len(opened) == 1, create


def test_unsupported_type_and_missing_tensor_name_tensor(tmp_path):
    extra = {"blk.0.ffn_up.weight": gguf_tensor(np.random.default_rng(0), "Q5_0", (512, 256))}
    write_model(tmp_path / "m.gguf", network("llama"), tmp_path / "hf", extra=extra)
    with pytest.raises(MXNetError, match=r"'blk\.0\.ffn_up\.weight' has the type Q5_0"):
        text.from_pretrained(tmp_path / "m.gguf")
    extra = {"blk.0.ffn_gate_inp.weight": gguf_tensor(np.random.default_rng(0), "F32", (4, 256))}
    write_model(tmp_path / "m.gguf", network("llama"), tmp_path / "hf", extra=extra)
    with pytest.raises(MXNetError, match="ffn_gate_inp"):
        text.from_pretrained(tmp_path / "m.gguf")


def test_two_devices_have_bits_of_one(tmp_path):
    write_model(tmp_path / "m.gguf", network("llama"), tmp_path / "hf", "Q4_K")
    path, first, second = tmp_path / "m.gguf", mx.cpu(0), mx.cpu(1)
    halves = {"embed": first, r"layers\.0": first, r"layers\.1": second, "norm|head": second}
    one, two = text.from_pretrained(path), text.from_pretrained(path, ctx=halves)
    assert two.layers[1].mlp.up.packed.list_ctx() == [second]
    assert (one(tokens()).asnumpy() == two(tokens()).asnumpy()).all()
    prompts = [[1, 15, 7, 3], [22, 9]]
    assert text.generate(one, prompts, max_new=6) == text.generate(two, prompts, max_new=6)
    plain = text.from_pretrained(path, quantize=False)
    assert text.generate(one, prompts, max_new=6) == text.generate(plain, prompts, max_new=6)


def test_dtype_applies_to_norms_and_embedding(tmp_path):
    write_model(tmp_path / "m.gguf", network("qwen2"), tmp_path / "hf", "Q8_0")
    net = text.from_pretrained(tmp_path / "m.gguf", dtype="bfloat16")
    assert net.embed.weight.data().dtype == net.norm.gamma.data().dtype
    assert "bfloat16" in str(net.embed.weight.dtype)
    want = text.from_pretrained(tmp_path / "m.gguf")(tokens()).asnumpy()
    found = net(tokens())
    assert "bfloat16" in str(found.dtype)
    assert np.abs(found.astype("float32").asnumpy() - want).max() < 0.05 * np.abs(want).max()


def test_network_of_config_is_loaded_and_checked(tmp_path):
    write_model(tmp_path / "m.gguf", network("llama"), tmp_path / "hf", "Q4_0")
    write_model(tmp_path / "other.gguf", network("llama"), tmp_path / "hf", "Q8_0")
    net = text.from_config(tmp_path / "m.gguf")
    net.load_parameters(tmp_path / "m.gguf", format="huggingface")
    want = text.from_pretrained(tmp_path / "m.gguf")(tokens())
    assert (net(tokens()).asnumpy() == want.asnumpy()).all()
    with pytest.raises(MXNetError, match="stored as q8_0, and the layer has q4_0"):
        net.load_parameters(tmp_path / "other.gguf", format="huggingface")


def test_norms_and_embedding_can_be_trained(tmp_path):
    write_model(tmp_path / "m.gguf", network("qwen3"), tmp_path / "hf", "Q4_K")
    losses = []
    for quantize in (None, False):
        net = text.from_pretrained(tmp_path / "m.gguf", quantize=quantize)
        params = net.collect_params(".*(gamma|embed).*")
        for param in net.collect_params().values():
            if param.name not in params:
                param.grad_req = "null"
        trainer = gluon.Trainer(params, "sgd", {"learning_rate": 0.05})
        loss, found = gluon.loss.SoftmaxCrossEntropyLoss(), []
        for _ in range(3):
            with autograd.record():
                error = loss(net(tokens()), nd.array(TOKENS[:, ::-1].copy())).mean()
            error.backward()
            trainer.step(1)
            found.append(error.asscalar())
        losses.append(found)
    assert losses[0][-1] < losses[0][0]
    assert np.allclose(*losses, rtol=1e-4)


def transformers_scores(folder, name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32
    )
    with torch.no_grad():
        return model.eval()(torch.from_numpy(TOKENS)).logits.numpy()


# transformers ignores these metadata and uses its defaults.
DEFAULTS = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "gemma2": {"head_dim": 256, "query_pre_attn_scalar": 256},
    "gemma3_text": {"head_dim": 256, "query_pre_attn_scalar": 256},
    "phi3": {"sliding_window": None},
}


@pytest.mark.parametrize("packing", ["F32", "Q4_0", "Q6_K"])
@pytest.mark.parametrize("kind", DEFAULTS)
def test_scores_agree_with_transformers(tmp_path, kind, packing):
    metadata = {f"tokenizer.ggml.{name}_token_id": 0 for name in ("padding", "bos", "eos")}
    net = network(kind, **DEFAULTS[kind])
    write_model(tmp_path / "m.gguf", net, tmp_path / "hf", packing, metadata=metadata)
    want = transformers_scores(str(tmp_path), "m.gguf")
    found = text.from_pretrained(tmp_path / "m.gguf")(tokens()).asnumpy()
    assert np.abs(found - want).max() < 2e-4 * np.abs(want).max()
