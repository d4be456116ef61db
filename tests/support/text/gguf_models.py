"""Writes models as GGUF files in the way of llama.cpp's converter: names, metadata, permuted rows
of queries and keys, and norms of Gemma."""

import re

import numpy as np

from mpgluon.contrib import huggingface as hf
from support.text.few_bits import BLOCKS, gguf_bytes, gguf_tensor, gguf_values

SIZES = {
    "vocab_size": 48,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
GEMMA = {"head_dim": 64, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh"}
GEMMA2 = {**GEMMA, "sliding_window": 4, "query_pre_attn_scalar": 64}
CONFIGS = {
    "llama": {"rope_theta": 5000.0, "tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    "qwen3": {"head_dim": 64, "rope_theta": 1e6},
    "phi3": {"sliding_window": 5, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": {
        **GEMMA2,
        "num_hidden_layers": 6,
        "rope_theta": 1e6,
        "sliding_window_pattern": 6,
    },
}

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def config_for(kind):
    """Returns the config of a small model."""
    return {"model_type": kind, **SIZES, **CONFIGS[kind]}


def metadata_for(config):
    """Returns the metadata of a GGUF file for a config."""
    arch = {"gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    size = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    values = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", 1e-6),
        "rope.dimension_count": size,
        "rope.freq_base": config.get("rope_theta", 10000.0),
        "vocab_size": config["vocab_size"],
    }
    if arch.startswith("gemma") or arch == "phi3":
        if config.get("sliding_window"):
            values["attention.sliding_window"] = config["sliding_window"]
    if arch == "gemma2":
        values["attn_logit_softcapping"] = config.get("attn_logit_softcapping", 50.0)
        values["final_logit_softcapping"] = config.get("final_logit_softcapping", 30.0)
    return {
        "general.architecture": arch,
        "general.name": "a model",
        **{f"{arch}.{key}": value for key, value in values.items()},
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(config["vocab_size"])],
    }


def _pairs(value, heads):
    """Permutes rows from halves to adjacent pairs, as llama.cpp's converter."""
    rows = value.reshape(heads, 2, len(value) // heads // 2, *value.shape[1:])
    return rows.swapaxes(1, 2).reshape(value.shape)


def tensors_for(config, arrays, kind="F32", rng=None):
    """Returns the tensors of a GGUF file for the arrays of a folder. Matrices have the type `kind`;
    if it has few bits, their values are random."""
    found = {}
    gemma = config["model_type"].startswith("gemma")
    names = {**_NAMES, **(_SANDWICH if config["model_type"] in ("gemma2", "gemma3_text") else {})}
    fixed = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, value in arrays.items():
        stem, ending = name.rsplit(".", 1)
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", stem)
        new = fixed[stem] if layer is None else f"blk.{layer[1]}.{names[layer[2]]}"
        if gemma and "norm" in stem:
            value = value + 1
        if config["model_type"] == "llama" and new.endswith(("attn_q", "attn_k")):
            key = "num_attention_heads" if new.endswith("q") else "num_key_value_heads"
            value = _pairs(value, config[key])
        value = np.ascontiguousarray(value, np.float32)
        if value.ndim == 2 and kind in BLOCKS:
            found[f"{new}.{ending}"] = gguf_tensor(rng, kind, value.shape)
        else:
            found[f"{new}.{ending}"] = "F32", value.shape, value.tobytes()
    return found


def write_model(path, net, folder, kind="F32", seed=0, extra=None, metadata=None):
    """Writes a network as a GGUF file. Returns its tensors."""
    from mpgluon.gluon._tree import huggingface_of

    net.save_parameters(str(folder), format="huggingface")
    weights, config = hf.Weights(folder), huggingface_of(net)[1]
    arrays = {name: weights.read(name) for name in weights.shapes()}
    tensors = tensors_for(config, arrays, kind, np.random.default_rng(seed))
    tensors.update(extra or {})
    path.write_bytes(gguf_bytes({**metadata_for(config), **(metadata or {})}, tensors))
    return tensors


def values_of(tensors):
    """Returns the float32 values of tensors."""
    return {name: gguf_values(*tensor) for name, tensor in tensors.items()}
