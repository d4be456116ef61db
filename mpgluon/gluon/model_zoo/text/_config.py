"""Reads ``config.json`` of Hugging Face. Each key must be used, known to be irrelevant, or
inactive; other keys raise an error, since they could change the network's results."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from ....base import MXNetError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Names of activations in configs -> names in `_layers.ACTIVATIONS`.
ACTIVATION_NAMES = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "tanh": "tanh",
}

# Keys that do not change the results of a forward pass. Patterns match whole keys.
_IRRELEVANT = re.compile(
    # where the file comes from
    "architectures|model_type|transformers_version|_name_or_path|name_or_path|auto_map|"
    "finetuning_task|unsloth_.*|task_specific_params|tokenizer_class|_commit_hash|"
    # how transformers runs it
    "torch_dtype|dtype|use_cache|torchscript|use_bfloat16|gradient_checkpointing|return_dict|"
    "use_return_dict|output_attentions|output_hidden_states|is_encoder_decoder|pretraining_tp|"
    "chunk_size_feed_forward|_?attn_implementation.*|cache_implementation|tf_legacy_loss|"
    "remove_invalid_values|reorder_and_upcast_attn|"
    # tokens, labels and generation
    "(bos|eos|pad|sep|cls|mask|unk|image|forced_bos|forced_eos|decoder_start|boi|eoi)_token_(id|index)|"
    "id2label|label2id|num_labels|problem_type|max_length|min_length|do_sample|early_stopping|"
    "num_beams|num_beam_groups|diversity_penalty|temperature|top_[kp]|typical_p|n_ctx|"
    "repetition_penalty|length_penalty|(encoder_)?no_repeat_ngram_size|num_return_sequences|"
    "bad_words_ids|prefix|suppress_tokens|begin_suppress_tokens|exponential_decay_length_penalty|"
    "output_scores|return_dict_in_generate|"
    # initial values
    "initializer_range|initializer_factor|logit_scale_init_value|"
    # heads that are not part of the network, and their losses
    "summary_.*|classifier_dropout|output_router_logits|router_aux_loss_coef|encoder_stride"
)


# Largest number of layers. A network of a damaged config must not use up the memory.
MOST_LAYERS = 10_000


class Config:
    """A config whose keys are counted when they are used.

    Parameters
    ----------
    values : dict
        Contents of ``config.json``.
    source : str
        Name of the config in errors.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source
        self._used: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, key: str, advice: str) -> MXNetError:
        """Returns the error for the value of a key."""
        return MXNetError(f"{self.source}: {key} = {self.values.get(key)!r} {advice}")

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value, or the default if it is missing or None."""
        self._used.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None, most: int = (1 << 31) - 1) -> int:
        """Returns a positive integer of at most `most`."""
        value = self.get(key, default)
        if value is None:
            raise MXNetError(f"{self.source}: the key '{key}' is missing")
        if type(value) is not int or not 0 < value <= most:
            raise self.error(key, f"must be a positive integer of at most {most}")
        return value

    def number(self, key: str, default: float) -> float:
        """Returns a finite number."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "must be a number")
        if not math.isfinite(value):
            raise self.error(key, "must be finite")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Returns a bool."""
        value = self.get(key, default)
        if type(value) is not bool:
            raise self.error(key, "must be true or false")
        return value

    def expect(self, key: str, *allowed: Any) -> None:
        """Raises an error if a key has another value than the allowed ones. The first one is the
        default."""
        if self.get(key, allowed[0]) not in allowed:
            choices = " or ".join(repr(value) for value in allowed)
            raise self.error(key, f"is not supported; it must be {choices}")

    def activation(self, key: str, default: str) -> str:
        """Returns the name of an activation function."""
        name = self.get(key, default)
        if name not in ACTIVATION_NAMES:
            raise self.error(
                key, f"is not supported; the activations are {', '.join(ACTIVATION_NAMES)}"
            )
        return ACTIVATION_NAMES[name]

    def ignore(self, *keys: str) -> None:
        """Marks keys as used that do not change the results of this architecture."""
        self._used.update(keys)

    def finish(self) -> None:
        """Raises an error for a key that is neither used, irrelevant nor inactive."""
        for key, value in self.values.items():
            if key in self._used or _IRRELEVANT.fullmatch(key):
                continue
            if value is None or value is False or value in ("", [], {}):
                continue
            raise self.error(
                key,
                "is not supported, and it may change the results; remove the key if it does not",
            )

    def part(self, key: str) -> Config:
        """Returns a nested config."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, "must be an object")
        return Config(value, f"{self.source}: {key}")


def rotary_options(
    config: Config,
    head_dim: int,
    key: str | None = None,
    base: float = 10000.0,
    partial_default: bool = False,
) -> dict[str, Any]:
    """Returns the option `rotary` of `MultiHeadAttention`.

    They are in ``rope_parameters`` (`key` selects those of one type of layer), or in ``rope_theta``
    and ``rope_scaling`` of older files. `base` is the default of ``rope_theta``. As in
    transformers, embeddings of the type 'default' use ``partial_rotary_factor`` only if
    `partial_default` is true.
    """
    default = config.number("rope_theta", base)
    partial = config.number("partial_rotary_factor", 1.0)
    parameters = config.get("rope_parameters")
    scaling = config.get("rope_scaling")
    if key is not None and isinstance(parameters, dict) and isinstance(parameters.get(key), dict):
        source, values = f"rope_parameters.{key}", parameters[key]
    elif parameters is not None:
        source, values = "rope_parameters", parameters
    else:
        source, values = "rope_scaling", scaling or {}
    if not isinstance(values, dict):
        raise config.error(source, "must be an object")
    rope = Config(values, f"{config.source}: {source}")
    options: dict[str, Any] = {"base": rope.number("rope_theta", default)}
    old = rope.get("type", "default")
    kind = rope.get("rope_type", old)
    if kind not in _SCALINGS:
        raise MXNetError(
            f"{rope.source}: rope_type = {kind!r} is not supported; the types are "
            f"{', '.join(_SCALINGS)}"
        )
    partial = rope.number("partial_rotary_factor", partial)
    if kind == "default" and not partial_default:
        partial = 1.0
    dims = int(head_dim * partial)
    if not 0 < dims <= head_dim or dims % 2:
        raise config.error("partial_rotary_factor", f"cannot be used with heads of {head_dim}")
    if dims != head_dim:
        options["dims"] = dims
    options.update(_SCALINGS[kind](rope, config, dims))
    rope.finish()
    return options


def _original_length(rope, config):
    whole = config.size("max_position_embeddings", 2048)
    original = config.size("original_max_position_embeddings", whole)
    return rope.size("original_max_position_embeddings", original)


def _linear(rope, config, dims):
    return {"scaling": "linear", "factor": rope.number("factor", 1.0)}


def _llama3(rope, config, dims):
    return {
        "scaling": "llama3",
        "factor": rope.number("factor", 8.0),
        "low_freq_factor": rope.number("low_freq_factor", 1.0),
        "high_freq_factor": rope.number("high_freq_factor", 4.0),
        "original_length": _original_length(rope, config),
    }


def _yarn(rope, config, dims):
    original = _original_length(rope, config)
    whole = config.size("max_position_embeddings", original)
    factor = rope.number("factor", whole / original)

    def magnitude(scale, by=1.0):
        return 0.1 * by * math.log(scale) + 1.0 if scale > 1 else 1.0

    by, by_all = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    default = magnitude(factor, by) / magnitude(factor, by_all) if by and by_all else None
    return {
        "scaling": "yarn",
        "factor": factor,
        "original_length": original,
        "beta_fast": rope.number("beta_fast", 32.0),
        "beta_slow": rope.number("beta_slow", 1.0),
        "truncate": rope.flag("truncate", True),
        "attention_factor": rope.number(
            "attention_factor", magnitude(factor) if default is None else default
        ),
    }


def _longrope(rope, config, dims):
    original = _original_length(rope, config)
    whole = config.size("max_position_embeddings", original)
    factor = rope.number("factor", whole / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return {
        "scaling": "longrope",
        "original_length": original,
        "attention_factor": rope.number("attention_factor", default),
        "factors": _factors(rope, "short_factor", dims),
        "long_factors": _factors(rope, "long_factor", dims),
    }


def _factors(rope, key, dims) -> Sequence[float]:
    values = rope.get(key)
    if not isinstance(values, list) or len(values) != dims // 2:
        raise rope.error(key, f"must be a list of {dims // 2} numbers")
    if not all(type(value) in (int, float) and 0 < value < math.inf for value in values):
        raise rope.error(key, "must consist of positive numbers")
    return [float(value) for value in values]


_SCALINGS: dict[str, Any] = {
    "default": lambda rope, config, dims: {},
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
