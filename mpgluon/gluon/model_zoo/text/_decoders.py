"""Options of `Decoder` and names of weights for the language models of Hugging Face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._huggingface.entries import Drop, Entry, Prefix, Rename, Split, Stack, Transpose
from ._config import MOST_LAYERS, Config, rotary_options
from ._decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Options = dict[str, Any]


# --- Options --------------------------------------------------------------------------------------


def _base(config: Config) -> Options:
    """Returns the options that all models with rotary embeddings have in common."""
    heads, units = config.size("num_attention_heads"), config.size("hidden_size")
    config.ignore("max_position_embeddings", "initializer_range")
    return {
        "vocab": config.size("vocab_size"),
        "units": units,
        "layers": config.size("num_hidden_layers", most=MOST_LAYERS),
        "heads": heads,
        "hidden": config.size("intermediate_size"),
        "kv_heads": config.size("num_key_value_heads", heads),
        "epsilon": config.number("rms_norm_eps", 1e-6),
        "tied": config.flag("tie_word_embeddings", False),
        "attention_dropout": config.number("attention_dropout", 0.0),
        "deviation": config.number("initializer_range", 0.02),
    }


def _with_heads(
    config: Config, options: Options, default: int | None = None, partial: bool = False
) -> Options:
    """Adds the size of heads and the rotary embeddings."""
    if default is None:
        if options["units"] % options["heads"] and "head_dim" not in config:
            raise config.error("num_attention_heads", "must divide hidden_size")
        default = options["units"] // options["heads"]
    size = config.size("head_dim", default)
    rotary = rotary_options(config, size, partial_default=partial)
    return {**options, "head_dim": size, "rotary": rotary}


def _window(config: Config, default: int | None = None) -> int:
    """Returns sliding_window for all layers; 0 if it is None."""
    config.get("sliding_window")
    if config.values.get("sliding_window", default) is None:
        return 0
    return config.size("sliding_window", default)


def _windows(config: Config, layers: int, slides: Callable[[int], bool], default: int) -> list[int]:
    """Returns the window of each layer: ``layer_types`` of the config, or else of the layers for
    which `slides` is true."""
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if slides(i) else "full_attention" for i in range(layers)]
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or any(kind not in ("full_attention", "sliding_attention") for kind in kinds)
    ):
        raise config.error(
            "layer_types",
            f"is not supported; it must list 'full_attention' or 'sliding_attention' for {layers} "
            "layers",
        )
    if "sliding_attention" not in kinds:
        config.ignore("sliding_window")
        return [0] * layers
    window = config.size("sliding_window", default)
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def _llama(config: Config) -> Options:
    return {
        **_with_heads(config, _base(config)),
        "activation": config.activation("hidden_act", "silu"),
        "attention_bias": config.flag("attention_bias", False),
        "mlp_bias": config.flag("mlp_bias", False),
    }


def _mistral(config: Config) -> Options:
    return {
        **_with_heads(config, _base(config)),
        "activation": config.activation("hidden_act", "silu"),
        "window": _window(config, 4096),
    }


def _qwen(config: Config, head_dim: int | None = None) -> Options:
    options = _with_heads(config, _base(config), head_dim)
    config.ignore("max_window_layers", "sliding_window", "layer_types")
    if config.flag("use_sliding_window", False):
        first = config.get("max_window_layers", 28)
        options["window"] = _windows(config, options["layers"], lambda i: i >= first, 4096)
    return {**options, "activation": config.activation("hidden_act", "silu")}


def _qwen2(config: Config) -> Options:
    bias = {"query": True, "key": True, "value": True, "proj": False}
    return {**_qwen(config), "attention_bias": bias}


def _qwen3(config: Config, head_dim: int = 128) -> Options:
    return {
        **_qwen(config, head_dim),
        "attention_bias": config.flag("attention_bias", False),
        "qk_norm": True,
    }


def _gemma_base(config: Config) -> Options:
    options = _base(config)
    config.expect("use_bidirectional_attention", False)
    return {
        **options,
        "head_dim": config.size("head_dim", 256),
        "tied": config.flag("tie_word_embeddings", True),
        "attention_bias": config.flag("attention_bias", False),
        "norm_offset": 1.0,
        "embed_scale": options["units"] ** 0.5,
    }


def _gemma(config: Config) -> Options:
    key = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    config.ignore("hidden_act")
    # The first files say 'gelu' in hidden_act and mean its approximation.
    legacy = key == "hidden_act" and config.get(key) == "gelu"
    options = _gemma_base(config)
    return {
        **options,
        "activation": "gelu_tanh" if legacy else config.activation(key, "gelu_pytorch_tanh"),
        "rotary": rotary_options(config, options["head_dim"]),
    }


def _gemma2(config: Config) -> Options:
    options = _gemma2_base(config)
    return {**options, "rotary": rotary_options(config, options["head_dim"])}


def _gemma2_base(config: Config) -> Options:
    options = _gemma_base(config)
    config.ignore("hidden_act")
    # Another name of sliding_window in some files
    config.expect("sliding_window_size", config.get("sliding_window", 4096))
    return {
        **options,
        "activation": config.activation("hidden_activation", "gelu_pytorch_tanh"),
        "window": _windows(config, options["layers"], lambda i: i % 2 == 0, 4096),
        "scale": config.number("query_pre_attn_scalar", 256) ** -0.5,
        "softcap": _softcap(config, "attn_logit_softcapping", 50.0),
        "head_softcap": _softcap(config, "final_logit_softcapping", 30.0),
        "sandwich": True,
    }


def _softcap(config: Config, key: str, default: float) -> float:
    """Returns a softcap; 0 if it is None. The default holds if the key is missing."""
    config.get(key)
    return 0.0 if config.values.get(key, default) is None else config.number(key, default)


def _gemma3(config: Config) -> Options:
    pattern = config.size("_sliding_window_pattern", config.size("sliding_window_pattern", 6))
    options = _gemma2_base(config)
    windows = _windows(config, options["layers"], lambda i: bool((i + 1) % pattern), 4096)
    size = options["head_dim"]
    whole = rotary_options(config, size, "full_attention", 1000000.0)
    base = config.number("rope_local_base_freq", 10000.0)
    if config.get("rope_parameters") is None:
        local = {"base": base}  # rope_scaling concerns the other layers
    else:
        local = rotary_options(config, size, "sliding_attention", base)
    return {
        **options,
        "window": windows,
        "rotary": [local if window else whole for window in windows],
        "softcap": _softcap(config, "attn_logit_softcapping", 0.0),
        "head_softcap": _softcap(config, "final_logit_softcapping", 0.0),
        "qk_norm": True,
    }


def _phi3(config: Config) -> Options:
    options = _with_heads(config, _base(config), partial=True)
    config.ignore("original_max_position_embeddings")
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        config.expect(key, False)
    for key in ("full_attn_mod", "interpolate_factor"):
        config.expect(key, 1)
    return {
        **options,
        "epsilon": config.number("rms_norm_eps", 1e-5),
        "activation": config.activation("hidden_act", "silu"),
        "window": _window(config),
        "dropout": config.number("resid_pdrop", 0.0),
        "embed_dropout": config.number("embd_pdrop", 0.0),
    }


def _check_router_losses(config: Config) -> None:
    """Raises an error for the load-balancing loss of transformers. It multiplies means over all
    layers, whereas `aux_loss` of nn.MoE multiplies the means of each layer."""
    if config.flag("output_router_logits", False):
        raise config.error(
            "output_router_logits",
            "adds one load-balancing loss of all layers to the training, which is not supported; "
            "set it to false, and for a loss of each layer create text.Decoder with the option "
            "aux_loss in experts",
        )


def _mixtral(config: Config) -> Options:
    _check_router_losses(config)
    config.expect("router_jitter_noise", 0.0, 0)
    options = _with_heads(config, _base(config))
    return {
        **options,
        "epsilon": config.number("rms_norm_eps", 1e-5),
        "window": _window(config),
        "experts": {
            "hidden": options["hidden"],
            "experts": config.size("num_local_experts", 8),
            "k": config.size("num_experts_per_tok", 2),
            "activation": config.activation("hidden_act", "silu"),
        },
    }


def _qwen3_moe(config: Config) -> Options:
    _check_router_losses(config)
    heads = config.size("num_attention_heads")
    default = config.size("hidden_size") // heads
    options = _qwen3(config, default)
    if config.flag("use_sliding_window", False):
        options["window"] = config.size("sliding_window", 4096)
    step, dense = config.size("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(type(i) is int for i in dense):
        raise config.error("mlp_only_layers", "must be a list of integers")
    # The number of experts has two names; older files use the second one.
    default = config.size("num_experts", 128)
    return {
        **options,
        "experts": {
            "hidden": config.size("moe_intermediate_size", 768),
            "experts": config.size("num_local_experts", default),
            "k": config.size("num_experts_per_tok", 8),
            "activation": options["activation"],
            "renormalize": config.flag("norm_topk_prob", False),
        },
        "expert_layers": [i not in dense and (i + 1) % step == 0 for i in range(options["layers"])],
    }


def _olmo(config: Config) -> Options:
    config.expect("clip_qkv", None)
    return {**_llama(config), "norm": "plain", "epsilon": 1e-5}


def _olmo2(config: Config) -> Options:
    epsilon = config.number("rms_norm_eps", 1e-5)
    norms = {"sandwich": True, "pre_norm": False, "qk_norm": "whole"}
    return {**_llama(config), "epsilon": epsilon, **norms}


def _gpt2(config: Config) -> Options:
    units, heads, layers = (
        config.size("n_embd", 768),
        config.size("n_head", 12),
        config.size("n_layer", 12, MOST_LAYERS),
    )
    if units % heads:
        raise config.error("n_head", f"must divide n_embd = {units}")
    config.expect("add_cross_attention", False)
    scale = (units // heads) ** -0.5 if config.flag("scale_attn_weights", True) else 1.0
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    return {
        "vocab": config.size("vocab_size", 50257),
        "units": units,
        "layers": layers,
        "heads": heads,
        "hidden": config.size("n_inner", 4 * units),
        "norm": "layer",
        "epsilon": config.number("layer_norm_epsilon", 1e-5),
        "activation": config.activation("activation_function", "gelu_new"),
        "gated": False,
        "attention_bias": True,
        "mlp_bias": True,
        "positions": config.size("n_positions", 1024),
        "tied": config.flag("tie_word_embeddings", True),
        "scale": [scale / (i + 1) for i in range(layers)] if by_layer else scale,
        "attention_dropout": config.number("attn_pdrop", 0.1),
        "dropout": config.number("resid_pdrop", 0.1),
        "embed_dropout": config.number("embd_pdrop", 0.1),
        "deviation": config.number("initializer_range", 0.02),
    }


# --- Names of weights -----------------------------------------------------------------------------

_LAYER = r"layers\.(\d+)\."
_VALUES = "(weight|bias)"


def _llama_names(options: Options, sandwich: bool = False) -> list[Entry]:
    attention = _LAYER + r"self_attn\."
    norms = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_post_norm" if sandwich else "mlp_norm",
    }
    if sandwich:
        norms["pre_feedforward_layernorm"] = "mlp_norm"
        norms["post_feedforward_layernorm"] = "mlp_post_norm"
    return [
        Prefix("model.", besides=r"lm_head\.weight"),
        Drop(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
        *(
            Rename(attention + f"{file}_proj\\.{_VALUES}", f"layers.\\1.attention.{name}.\\2")
            for file, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "proj"))
        ),
        *(
            Rename(attention + f"{file}_norm\\.weight", f"layers.\\1.attention.{name}_norm.gamma")
            for file, name in (("q", "query"), ("k", "key"))
        ),
        Rename(_LAYER + rf"mlp\.(gate|up|down)_proj\.{_VALUES}", r"layers.\1.mlp.\2.\3"),
        *(
            Rename(_LAYER + file + r"\.weight", f"layers.\\1.{name}.gamma")
            for file, name in norms.items()
        ),
        Rename(r"embed_tokens\.weight", "embed.weight"),
        Rename(r"norm\.weight", "norm.gamma"),
        Rename(r"lm_head\.weight", "head.weight"),
    ]


def _gemma_names(options: Options) -> list[Entry]:
    return _llama_names(options, options.get("sandwich", False))


def _phi3_names(options: Options) -> list[Entry]:
    size = options["head_dim"]
    queries, keys = options["heads"] * size, options["kv_heads"] * size
    return [
        *_llama_names(options)[:2],
        Split(
            _LAYER + r"self_attn\.qkv_proj\.weight",
            [f"layers.\\1.self_attn.{name}_proj.weight" for name in "qkv"],
            sizes=[queries, keys, keys],
        ),
        Split(
            _LAYER + r"mlp\.gate_up_proj\.weight",
            [f"layers.\\1.mlp.{name}_proj.weight" for name in ("gate", "up")],
        ),
        *_llama_names(options)[2:],
    ]


def _mixtral_names(options: Options) -> list[Entry]:
    return _expert_names(options, r"block_sparse_moe\.", {"gate": "w1", "up": "w3", "down": "w2"})


def _qwen3_moe_names(options: Options) -> list[Entry]:
    parts = ("gate", "up", "down")
    return _expert_names(options, r"mlp\.", {part: f"{part}_proj" for part in parts})


def _expert_names(options: Options, block: str, files: Mapping[str, str]) -> list[Entry]:
    """Returns the map of a network for files that store the weights of each expert separately."""
    block = _LAYER + block
    return [
        *_llama_names(options)[:2],
        *(
            Stack(block + rf"experts\.{{}}\.{file}\.weight", f"layers.\\1.mlp.{name}_weight")
            for name, file in files.items()
        ),
        Rename(block + r"gate\.weight", r"layers.\1.mlp.router.weight"),
        *_llama_names(options)[2:],
    ]


def _gpt2_names(options: Options) -> list[Entry]:
    layer = r"h\.(\d+)\."
    return [
        Prefix("transformer.", besides=r"lm_head\.weight"),
        Drop(r"h\.\d+\.attn\.(bias|masked_bias)"),
        Transpose(r"h\.\d+\.(attn|mlp)\.c_\w+\.weight"),
        Split(
            layer + rf"attn\.c_attn\.{_VALUES}",
            [f"layers.\\1.attention.{name}.\\2" for name in ("query", "key", "value")],
        ),
        *(
            Rename(layer + file + rf"\.{_VALUES}", f"layers.\\1.{name}.\\2")
            for file, name in (
                (r"attn\.c_proj", "attention.proj"),
                (r"mlp\.c_fc", "mlp.up"),
                (r"mlp\.c_proj", "mlp.down"),
            )
        ),
        *(
            Rename(file + rf"\.{value}", name + f".{own}")
            for value, own in (("weight", "gamma"), ("bias", "beta"))
            for file, name in (
                (layer + "ln_1", r"layers.\1.attention_norm"),
                (layer + "ln_2", r"layers.\1.mlp_norm"),
                ("ln_f", "norm"),
            )
        ),
        Rename(r"wte\.weight", "embed.weight"),
        Rename(r"wpe\.weight", "positions.weight"),
        Rename(r"lm_head\.weight", "head.weight"),
    ]


# model_type -> (options from a config, names of weights)
_MODELS: dict[str, tuple[Callable[[Config], Options], Callable[[Options], list[Entry]]]] = {
    "llama": (_llama, _llama_names),
    "mistral": (_mistral, _llama_names),
    "qwen2": (_qwen2, _llama_names),
    "qwen3": (_qwen3, _llama_names),
    "gemma": (_gemma, _gemma_names),
    "gemma2": (_gemma2, _gemma_names),
    "gemma3_text": (_gemma3, _gemma_names),
    "phi3": (_phi3, _phi3_names),
    "mixtral": (_mixtral, _mixtral_names),
    "qwen3_moe": (_qwen3_moe, _qwen3_moe_names),
    "olmo": (_olmo, _llama_names),
    "olmo2": (_olmo2, _gemma_names),
    "gpt2": (_gpt2, _gpt2_names),
}


def create(config: Config, kind: str) -> tuple[Decoder, list[Entry]]:
    """Returns the network for a config, and the map of its weights."""
    read, names = _MODELS[kind]
    options = read(config)
    config.finish()
    return Decoder(**options), names(options)


KINDS = tuple(_MODELS)
