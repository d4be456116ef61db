"""Models in GGUF files: their config and arrays in the layout of Hugging Face.

The metadata become a ``config.json``, and tensors get the names that transformers writes, so that
the rest of the loader does not differ between the formats. Each key of the architecture must be
used or known to be irrelevant, as in a config.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import MXNetError
from .entries import Alias, Drop, Permute, Shift

if TYPE_CHECKING:
    from collections.abc import Callable

    from .entries import Entry
    from .gguf import GGUF
    from .values import LazyArray

    Values = dict[str, Any]

__all__ = ["arrays_of", "config_of"]

_EMBED, _HEAD = "token_embd.weight", "output.weight"
# Keys of an architecture that do not change the results. vocab_size may count padding.
_IRRELEVANT = {
    "vocab_size",
    "rope.scaling.finetuned",
    "attention.causal",
    "pooling_type",
    "tensor_data_layout",
}


class _Metadata:
    """The metadata of an architecture. Keys are counted when they are used."""

    def __init__(self, file: GGUF) -> None:
        self.file = file
        self.kind = file.metadata.get("general.architecture")
        if not isinstance(self.kind, str) or self.kind not in _KINDS:
            raise MXNetError(
                f"GGUF file '{file.path}': general.architecture = {self.kind!r} is not supported; "
                f"the architectures are {', '.join(_KINDS)}"
            )
        self._prefix = f"{self.kind}."
        self._used: set[str] = set()

    def error(self, key: str, advice: str) -> MXNetError:
        """Returns the error for the value of a key."""
        value = self.file.metadata.get(self._prefix + key)
        return MXNetError(f"GGUF file '{self.file.path}': {self._prefix}{key} = {value!r} {advice}")

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self.file.metadata

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value, or the default if it is missing."""
        self._used.add(key)
        value = self.file.metadata.get(self._prefix + key, default)
        if isinstance(value, np.ndarray):  # one value for each layer
            if value.size and (value == value[0]).all():
                return value[0].item()
            raise self.error(key, "differs between layers, which is not supported")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """Returns a positive integer."""
        value = self.get(key, default)
        if value is None:
            raise MXNetError(f"GGUF file '{self.file.path}' lacks the key '{self._prefix}{key}'")
        if type(value) is not int or not 0 < value < 1 << 31:
            raise self.error(key, "must be a positive integer")
        return value

    def number(self, key: str, default: float) -> float:
        """Returns a finite number."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.error(key, "must be a finite number")
        return float(value)

    def rows(self, name: str) -> int:
        """Returns the number of rows of a tensor."""
        shape = self.file.shapes().get(name)
        if shape is None:
            raise MXNetError(f"GGUF file '{self.file.path}' lacks the tensor '{name}'")
        return shape[0]

    def vector(self, name: str, size: int) -> list[float]:
        """Returns the values of a tensor of `size` numbers."""
        if self.file.shapes()[name] != (size,):
            raise MXNetError(
                f"GGUF file '{self.file.path}': '{name}' has shape {self.file.shapes()[name]}, "
                f"expected {(size,)}"
            )
        return self.file.read(name).astype(float).tolist()

    def finish(self) -> None:
        """Raises an error for a key that is neither used nor irrelevant."""
        for full in self.file.metadata:
            if full.startswith(self._prefix):
                key = full.removeprefix(self._prefix)
                if key not in self._used and key not in _IRRELEVANT:
                    raise self.error(key, "is not supported, and it may change the results")


def config_of(file: GGUF) -> Values:
    """Returns the config of the model in a file.

    Raises MXNetError if the architecture, or a key of it, is not supported.
    """
    data = _Metadata(file)
    config = _KINDS[data.kind][0](data)
    data.finish()
    return config


def arrays_of(file: GGUF) -> dict[str, LazyArray]:
    """Returns the tensors of the model in a file, with the names and layout of Hugging Face."""
    data = _Metadata(file)
    arrays = dict(file.arrays)
    if not _is_tied(file) and _HEAD not in arrays and _EMBED in arrays:
        arrays[_HEAD] = arrays[_EMBED]
    for entry in _KINDS[data.kind][1](data):
        arrays = entry.load(arrays)
    return arrays


def _is_tied(file):
    """True if the head uses the embedding's array. If this array is quantized, the embedding is
    dequantized, and the head has the packed array."""
    plain = file.types().get(_EMBED) in ("F64", "F32", "F16", "BF16")
    return plain and _HEAD not in file.types()


# --- Configs --------------------------------------------------------------------------------------


def _base(data: _Metadata, kind: str, default_dim: int | None = None) -> Values:
    """Returns the keys that all architectures have in common."""
    heads, units = data.size("attention.head_count"), data.size("embedding_length")
    if data.get("expert_count", 0):
        raise data.error("expert_count", "is not supported: networks with experts")
    data.get("expert_used_count")
    layers, tensors = data.size("block_count"), len(data.file.shapes())
    if layers > tensors:
        raise data.error("block_count", f"exceeds the number of tensors, {tensors}")
    size = data.size("attention.key_length", default_dim or max(1, units // heads))
    if size % 2:
        raise data.error("attention.key_length", f"must be even, not {size}")
    if data.size("attention.value_length", size) != size:
        raise data.error("attention.value_length", f"must be attention.key_length = {size}")
    return {
        "model_type": kind,
        "vocab_size": data.rows(_EMBED),
        "hidden_size": units,
        "intermediate_size": data.size("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": data.size("attention.head_count_kv", heads),
        "head_dim": size,
        "max_position_embeddings": data.size("context_length", 2048),
        "rms_norm_eps": data.number("attention.layer_norm_rms_epsilon", 1e-6),
        "tie_word_embeddings": _is_tied(data.file),
    }


def _rotary(data: _Metadata, config: Values, base: float = 10000.0) -> Values:
    """Returns the keys of rotary embeddings."""
    size = config["head_dim"]
    dims = data.size("rope.dimension_count", size)
    if dims > size or dims % 2:
        raise data.error("rope.dimension_count", f"must be even and at most {size}")
    found: Values = {"rope_theta": data.number("rope.freq_base", base)}
    if dims != size:
        found["partial_rotary_factor"] = dims / size
    scaling = _scaling(data, config, dims)
    if scaling is None and dims != size and config["model_type"] != "phi3":
        # These models ignore partial_rotary_factor if the type is 'default'.
        scaling = {"rope_type": "linear", "factor": 1.0}
    if scaling is not None:
        found["rope_scaling"] = scaling
    return found


def _scaling(data, config, dims):
    """Returns ``rope_scaling``, or None."""
    kind = data.get("rope.scaling.type", "none")
    factor = data.number("rope.scaling.factor", data.number("rope.scale_linear", 1.0))
    length = data.size("rope.scaling.original_context_length", config["max_position_embeddings"])
    attention = data.number("rope.scaling.attn_factor", 1.0)
    names = data.file.shapes()
    if "rope_freqs.weight" in names:
        # llama.cpp stores the divisors of the frequencies of 'llama3'.
        if kind not in ("none", "linear") or factor != 1 or attention != 1:
            raise data.error("rope.scaling.type", "cannot be used with rope_freqs.weight")
        factors = data.vector("rope_freqs.weight", dims // 2)
        return _by_factors(factors, factors, config["max_position_embeddings"], 1.0)
    if "rope_factors_long.weight" in names:
        if kind not in ("none", "longrope"):
            raise data.error("rope.scaling.type", "cannot be used with rope_factors_long.weight")
        short = data.vector("rope_factors_short.weight", dims // 2)
        long = data.vector("rope_factors_long.weight", dims // 2)
        return _by_factors(short, long, length, attention)
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    if kind == "linear" and attention == 1:
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and attention == 1:
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": length,
            "beta_fast": data.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": data.number("rope.scaling.yarn_beta_slow", 1.0),
        }
    raise data.error("rope.scaling.type", f"with attn_factor {attention} is not supported")


def _by_factors(short, long, length, attention):
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": length,
        "attention_factor": attention,
    }


def _llama(data: _Metadata) -> Values:
    config = _base(data, "llama")
    bias = "blk.0.attn_q.bias" in data.file.shapes()
    return {**config, **_rotary(data, config), "attention_bias": bias}


def _qwen2(data: _Metadata) -> Values:
    config = _base(data, "qwen2")
    return {**config, **_rotary(data, config)}


def _qwen3(data: _Metadata) -> Values:
    config = _base(data, "qwen3")
    return {**config, **_rotary(data, config)}


def _phi3(data: _Metadata) -> Values:
    config = _base(data, "phi3")
    window = data.get("attention.sliding_window", 0)
    return {**config, **_rotary(data, config), "sliding_window": window or None}


def _gemma(data: _Metadata) -> Values:
    config = _base(data, "gemma", 256)
    return {**config, **_rotary(data, config), "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(data: _Metadata, kind: str = "gemma2", large: int = 46) -> Values:
    config = _base(data, kind, 256)
    units, heads = config["hidden_size"], config["num_attention_heads"]
    # As in llama.cpp: only the largest model divides scores by another size.
    scalar = units // heads if config["num_hidden_layers"] == large else config["head_dim"]
    return {
        **config,
        **_rotary(data, config, 10000.0 if kind == "gemma2" else 1000000.0),
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": data.size("attention.sliding_window", 4096),
        "attn_logit_softcapping": data.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": data.number("final_logit_softcapping", 30.0) or None,
    }


def _gemma3(data: _Metadata) -> Values:
    config = _gemma2(data, "gemma3_text", 62)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        config[key] = data.number(key, 0.0) or None
    return {
        **config,
        "rope_local_base_freq": data.number("rope.freq_base_swa", 10000.0),
        "sliding_window_pattern": data.size("attention.sliding_window_pattern", 6),
    }


# --- Names ----------------------------------------------------------------------------------------

_VALUES = "(weight|bias)"


def _names(sandwich: bool = False) -> list[Entry]:
    """Returns the entries that rename tensors."""
    layer, own = r"blk\.(\d+)\.", r"model.layers.\1."
    parts = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_norm": "input_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "ffn_norm": "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm",
    }
    if sandwich:
        parts["post_attention_norm"] = "post_attention_layernorm"
        parts["post_ffw_norm"] = "post_feedforward_layernorm"
    return [
        Drop(r"rope_freqs\.weight|rope_factors_(long|short)\.weight"),
        Drop(r"blk\.\d+\.attn_rot_embd\.weight"),
        Alias(r"token_embd\.weight", "model.embed_tokens.weight"),
        Alias(r"output_norm\.weight", "model.norm.weight"),
        Alias(r"output\.weight", "lm_head.weight"),
        *(Alias(layer + rf"{file}\.{_VALUES}", rf"{own}{name}.\2") for file, name in parts.items()),
    ]


def _llama_names(data: _Metadata) -> list[Entry]:
    """llama.cpp rotates adjacent pairs of the rows of queries and keys."""
    config = _base(data, "llama")
    return [Permute(rf"blk\.\d+\.attn_[qk]\.{_VALUES}", config["head_dim"]), *_names()]


def _phi3_names(data: _Metadata) -> list[Entry]:
    fused = Alias(r"blk\.(\d+)\.ffn_up\.weight", r"model.layers.\1.mlp.gate_up_proj.weight")
    return [fused, *_names()]


def _gemma_names(data: _Metadata) -> list[Entry]:
    """llama.cpp stores the factors of norms, and Gemma the factors minus 1."""
    return [Shift(r".*norm\.weight", -1.0), *_names(data.kind != "gemma")]


_KINDS: dict[str, tuple[Callable[[_Metadata], Values], Callable[[_Metadata], list[Entry]]]] = {
    "llama": (_llama, _llama_names),
    "qwen2": (_qwen2, lambda data: _names()),
    "qwen3": (_qwen3, lambda data: _names()),
    "phi3": (_phi3, _phi3_names),
    "gemma": (_gemma, _gemma_names),
    "gemma2": (_gemma2, _gemma_names),
    "gemma3": (_gemma3, _gemma_names),
}
