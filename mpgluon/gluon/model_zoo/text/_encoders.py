"""Options of `Encoder` and names of weights for BERT, RoBERTa, ViT and CLIP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._huggingface.entries import Alias, Drop, Entry, Prefix, Rename, Reshape
from ._config import MOST_LAYERS
from ._encoder import CLIP, Encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...block import HybridBlock
    from ._config import Config

    Options = dict[str, Any]

_VALUES = "(weight|bias)"


def _sizes(config: Config) -> Options:
    """Returns the options that all encoders have in common."""
    heads, units = config.size("num_attention_heads", 12), config.size("hidden_size", 768)
    if units % heads:
        raise config.error("num_attention_heads", f"must divide hidden_size = {units}")
    return {
        "units": units,
        "layers": config.size("num_hidden_layers", 12, MOST_LAYERS),
        "heads": heads,
        "hidden": config.size("intermediate_size", 3072),
        "deviation": config.number("initializer_range", 0.02),
    }


def _architecture(config: Config, known: Sequence[str]) -> str:
    """Returns the class of the model in the file, by default the first of the known ones."""
    names = config.get("architectures", known[:1])
    if not isinstance(names, list) or len(names) != 1 or names[0] not in known:
        raise config.error(
            "architectures", f"is not supported; it must be one of {', '.join(known)}"
        )
    return names[0]


def _classes(config: Config) -> int:
    labels = config.get("id2label")
    return len(labels) if isinstance(labels, dict) and labels else config.size("num_labels", 2)


def _norms(*pairs: tuple[str, str]) -> list[Entry]:
    """Returns the entries for norms, given (pattern, name)."""
    return [
        Rename(file + rf"\.{value}", f"{name}.{own}")
        for file, name in pairs
        for value, own in (("weight", "gamma"), ("bias", "beta"))
    ]


def _same(*pairs: tuple[str, str]) -> list[Entry]:
    """Returns the entries for products, given (pattern, name) with the same number of groups."""
    return [
        Rename(file + rf"\.{_VALUES}", rf"{name}.\{file.count('(') + 1}") for file, name in pairs
    ]


# --- BERT and RoBERTa -----------------------------------------------------------------------------


def _bert(config: Config, kind: str) -> tuple[HybridBlock, list[Entry]]:
    """Creates BERT or RoBERTa."""
    title = {"bert": "Bert", "roberta": "Roberta"}[kind]
    known = [
        f"{title}{name}"
        for name in (
            "Model",
            "ForMaskedLM",
            "ForSequenceClassification",
            "ForTokenClassification",
        )
    ]
    model = _architecture(config, known)[len(title) :]
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    config.ignore("tie_word_embeddings")
    options = _sizes(config)
    padding = config.get("pad_token_id", 1) if kind == "roberta" else None
    dropout = config.number("hidden_dropout_prob", 0.1)
    own_rate = config.number("classifier_dropout", dropout)
    if model.endswith("Classification") and own_rate != dropout:
        raise config.error("classifier_dropout", f"must be hidden_dropout_prob = {dropout}")
    vocab, classes = config.size("vocab_size"), _classes(config)
    tied = config.flag("tie_word_embeddings", True)
    heads: dict[str, Options] = {
        "Model": {"classes": 0, "pooled": True, "both": True},
        "ForMaskedLM": {"vocab": vocab, "tied": tied},
        "ForTokenClassification": {"classes": classes, "each": True},
        "ForSequenceClassification": {
            "classes": classes,
            "pooled": True,
            "before": kind == "roberta",  # another dropout before the first product
        },
    }
    epsilon = config.number("layer_norm_eps", 1e-12 if kind == "bert" else 1e-5)
    activation = config.activation("hidden_act", "gelu")
    if kind == "roberta" and activation != "gelu" and model == "ForMaskedLM":
        raise config.error("hidden_act", "must be 'gelu', which the head of RoBERTa uses")
    net = Encoder(
        **options,
        embed={
            "vocab": vocab,
            "length": config.size("max_position_embeddings", 512),
            "types": config.size("type_vocab_size", 2),
            "norm": True,
            "padding": padding,
        },
        head=heads[model],
        final_norm=False,
        norm_first=False,
        activation=activation,
        epsilon=epsilon,
        attention_dropout=config.number("attention_probs_dropout_prob", 0.1),
        dropout=dropout,
    )
    config.finish()
    return net, _bert_names(kind, model)


def _bert_names(kind: str, model: str) -> list[Entry]:
    layer = r"encoder\.layer\.(\d+)\."
    heads: dict[tuple[str, str], list[Entry]] = {
        ("bert", "ForMaskedLM"): [
            *_same((r"cls\.predictions\.transform\.dense", "head.dense")),
            *_norms((r"cls\.predictions\.transform\.LayerNorm", "head.norm")),
            Drop(r"cls\.predictions\.decoder\.bias"),  # the same as cls.predictions.bias
            Rename(r"cls\.predictions\.decoder\.weight", "head.scores.weight"),
            Rename(r"cls\.predictions\.bias", "head.bias"),
        ],
        ("roberta", "ForMaskedLM"): [
            *_same((r"lm_head\.dense", "head.dense")),
            *_norms((r"lm_head\.layer_norm", "head.norm")),
            Drop(r"lm_head\.decoder\.bias"),
            Rename(r"lm_head\.decoder\.weight", "head.scores.weight"),
            Rename(r"lm_head\.bias", "head.bias"),
        ],
        ("roberta", "ForSequenceClassification"): _same(
            (r"classifier\.dense", "head.pooler"), (r"classifier\.out_proj", "head.scores")
        ),
    }
    head = heads.get((kind, model))
    if head is None:
        head = _same((r"pooler\.dense", "head.pooler"), ("classifier", "head.scores"))
    besides = ".*" if model == "Model" else r"(cls|lm_head|classifier)\..*"
    # Files can hold heads that the architecture does not have.
    unused = r"cls\.seq_relationship\..*"
    if model in ("ForMaskedLM", "ForTokenClassification") or (kind, model) in heads:
        unused += r"|pooler\..*"
    return [
        Prefix(f"{kind}.", besides=besides),
        Drop(r"embeddings\.(position_ids|token_type_ids)"),
        Alias(r"(.*LayerNorm)\.gamma", r"\1.weight"),
        Alias(r"(.*LayerNorm)\.beta", r"\1.bias"),
        Drop(unused),
        Rename(r"embeddings\.word_embeddings\.weight", "embed.tokens.weight"),
        Rename(r"embeddings\.position_embeddings\.weight", "embed.positions.weight"),
        Rename(r"embeddings\.token_type_embeddings\.weight", "embed.types.weight"),
        *_norms(
            (r"embeddings\.LayerNorm", "embed.norm"),
            (layer + r"attention\.output\.LayerNorm", r"layers.\1.attention_norm"),
            (layer + r"output\.LayerNorm", r"layers.\1.mlp_norm"),
        ),
        *_same(
            (layer + r"attention\.self\.(query|key|value)", r"layers.\1.attention.\2"),
            (layer + r"attention\.output\.dense", r"layers.\1.attention.proj"),
            (layer + r"intermediate\.dense", r"layers.\1.mlp.up"),
            (layer + r"output\.dense", r"layers.\1.mlp.down"),
        ),
        *head,
    ]


# --- Images ---------------------------------------------------------------------------------------


def _patches(config: Config, default: int) -> Options:
    image, patch = config.size("image_size", 224), config.size("patch_size", default)
    if image % patch:
        raise config.error("patch_size", f"must divide image_size = {image}")
    return {"image": image, "patch": patch, "channels": config.size("num_channels", 3)}


def _vit(config: Config, kind: str) -> tuple[HybridBlock, list[Entry]]:
    """Creates ViT."""
    model = _architecture(config, ["ViTModel", "ViTForImageClassification"])
    config.ignore("tie_word_embeddings")
    options, bare = _sizes(config), model == "ViTModel"
    units, patches = options["units"], _patches(config, 16)
    if bare:
        head: Options = {
            "classes": 0,
            "pooled": True,
            "both": True,
            "pooled_units": config.size("pooler_output_size", units),
            "activation": config.activation("pooler_act", "tanh"),
        }
    else:
        head = {"classes": _classes(config)}
        config.ignore("pooler_output_size", "pooler_act")
    dropout = config.number("hidden_dropout_prob", 0.0)
    if dropout and not bare:
        raise config.error("hidden_dropout_prob", "is not supported; it must be 0")
    net = Encoder(
        **options,
        embed=patches,
        head=head,
        activation=config.activation("hidden_act", "gelu"),
        use_bias=config.flag("qkv_bias", True),
        epsilon=config.number("layer_norm_eps", 1e-12),
        attention_dropout=config.number("attention_probs_dropout_prob", 0.0),
        dropout=dropout,
    )
    config.finish()
    layer = r"encoder\.layer\.(\d+)\."
    rows = (patches["image"] // patches["patch"]) ** 2 + 1
    return net, [
        Prefix("vit.", besides=".*" if bare else r"classifier\..*"),
        Reshape(r"embeddings\.cls_token", (1, 1, units), (units,)),
        Reshape(r"embeddings\.position_embeddings", (1, rows, units), (rows, units)),
        Rename(r"embeddings\.cls_token", "embed.token"),
        Rename(r"embeddings\.position_embeddings", "embed.positions"),
        *_norms(
            (layer + "layernorm_before", r"layers.\1.attention_norm"),
            (layer + "layernorm_after", r"layers.\1.mlp_norm"),
            ("layernorm", "norm"),
        ),
        *_same(
            (r"embeddings\.patch_embeddings\.projection", "embed.patches"),
            (layer + r"attention\.attention\.(query|key|value)", r"layers.\1.attention.\2"),
            (layer + r"attention\.output\.dense", r"layers.\1.attention.proj"),
            (layer + r"intermediate\.dense", r"layers.\1.mlp.up"),
            (layer + r"output\.dense", r"layers.\1.mlp.down"),
            (r"pooler\.dense", "head.pooler"),
            ("classifier", "head.scores"),
        ),
    ]


def _clip(config: Config, kind: str) -> tuple[HybridBlock, list[Entry]]:
    """Creates CLIP."""
    _architecture(config, ["CLIPModel"])
    config.ignore("tie_word_embeddings")
    project = config.size("projection_dim", 512)
    text, image = config.part("text_config"), config.part("vision_config")

    def options(part, hidden, units, heads):
        part.ignore("projection_dim", "tie_word_embeddings")  # those of the whole model hold
        part.expect("dropout", 0.0, 0)
        sizes = {
            "units": part.size("hidden_size", units),
            "layers": part.size("num_hidden_layers", 12, MOST_LAYERS),
            "heads": part.size("num_attention_heads", heads),
            "hidden": part.size("intermediate_size", hidden),
            "deviation": part.number("initializer_range", 0.02),
        }
        if sizes["units"] % sizes["heads"]:
            raise part.error("num_attention_heads", "must divide hidden_size")
        return {
            **sizes,
            "activation": part.activation("hidden_act", "quick_gelu"),
            "epsilon": part.number("layer_norm_eps", 1e-5),
            "attention_dropout": part.number("attention_dropout", 0.0),
        }

    end = text.get("eos_token_id", 49407)
    net = CLIP(
        text={
            **options(text, 2048, 512, 8),
            "causal": True,
            "embed": {
                "vocab": text.size("vocab_size", 49408),
                "length": text.size("max_position_embeddings", 77),
            },
            # Older configs have 2, which is not the token that ends texts.
            "head": {"project": project, "end": None if end == 2 else end},
        },
        image={
            **options(image, 3072, 768, 12),
            "embed": {**_patches(image, 32), "use_bias": False, "norm": True},
            "head": {"project": project},
        },
        logit_scale=config.number("logit_scale_init_value", 2.6592),
    )
    for part in (config, text, image):
        part.finish()
    return net, _clip_names()


def _clip_names() -> list[Entry]:
    found: list[Entry] = [
        Drop(r"(text|vision)_model\.embeddings\.position_ids"),
        Reshape("logit_scale", (), (1,)),
        Rename(r"text_model\.embeddings\.token_embedding\.weight", "text.embed.tokens.weight"),
        Rename(
            r"text_model\.embeddings\.position_embedding\.weight", "text.embed.positions.weight"
        ),
        Rename(r"vision_model\.embeddings\.class_embedding", "image.embed.token"),
        Rename(r"vision_model\.embeddings\.patch_embedding\.weight", "image.embed.patches.weight"),
        Rename(r"vision_model\.embeddings\.position_embedding\.weight", "image.embed.positions"),
        Rename(r"text_projection\.weight", "text.head.weight"),
        Rename(r"visual_projection\.weight", "image.head.weight"),
        *_norms(
            (r"text_model\.final_layer_norm", "text.norm"),
            (r"vision_model\.pre_layrnorm", "image.embed.norm"),
            (r"vision_model\.post_layernorm", "image.norm"),
        ),
    ]
    for file, name in (("text", "text"), ("vision", "image")):
        layer, own = rf"{file}_model\.encoder\.layers\.(\d+)\.", rf"{name}.layers.\1."
        found += _norms(
            (layer + "layer_norm1", own + "attention_norm"),
            (layer + "layer_norm2", own + "mlp_norm"),
        )
        found += _same(
            (layer + r"self_attn\.q_proj", own + "attention.query"),
            (layer + r"self_attn\.k_proj", own + "attention.key"),
            (layer + r"self_attn\.v_proj", own + "attention.value"),
            (layer + r"self_attn\.out_proj", own + "attention.proj"),
            (layer + r"mlp\.fc1", own + "mlp.up"),
            (layer + r"mlp\.fc2", own + "mlp.down"),
        )
    return found


CREATORS = {"bert": _bert, "roberta": _bert, "vit": _vit, "clip": _clip}
