"""Configs of Hugging Face: those of well-known models, and keys that are not supported."""

import json

import pytest

from mpgluon.base import MXNetError
from mpgluon.gluon._tree import huggingface_of
from mpgluon.gluon.model_zoo import text

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}


def small(kind="llama", **more):
    return {"model_type": kind, **SMALL, **more}


def llama_like(kind, architecture, sizes, **more):
    """Returns a config as published, with the keys that all models have in common."""
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    )
    return {
        "architectures": [architecture],
        "model_type": kind,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0",
        "use_cache": True,
        **dict(zip(names, sizes)),
        **more,
    }


GEMMA = {
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "pad_token_id": 0,
}
# Keys without effect that older versions of transformers wrote into each part of CLIP's config
LEGACY = {
    "_name_or_path": "",
    "add_cross_attention": False,
    "architectures": None,
    "bad_words_ids": None,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "encoder_no_repeat_ngram_size": 0,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "initializer_factor": 1.0,
    "is_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "length_penalty": 1.0,
    "max_length": 20,
    "num_beams": 1,
    "output_attentions": False,
    "prefix": None,
    "problem_type": None,
    "pruned_heads": {},
    "temperature": 1.0,
    "tie_encoder_decoder": False,
    "tie_word_embeddings": True,
    "top_k": 50,
    "typical_p": 1.0,
    "use_bfloat16": False,
}
BERT = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
}
# name -> (config, number of parameters)
PUBLISHED = {
    "Llama 3.1 8B": (
        llama_like(
            "llama",
            "LlamaForCausalLM",
            (4096, 14336, 32, 32, 8, 128256),
            attention_bias=False,
            mlp_bias=False,
            pretraining_tp=1,
            rope_theta=500000.0,
            rope_scaling={
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
        ),
        8_030_261_248,
    ),
    "Llama 2 7B": (
        llama_like(
            "llama",
            "LlamaForCausalLM",
            (4096, 11008, 32, 32, 32, 32000),
            pretraining_tp=1,
            rope_scaling=None,
        ),
        6_738_415_616,
    ),
    "Mistral 7B 0.1": (
        llama_like(
            "mistral", "MistralForCausalLM", (4096, 14336, 32, 32, 8, 32000), sliding_window=4096
        ),
        7_241_732_096,
    ),
    "Qwen 2.5 7B": (
        llama_like(
            "qwen2",
            "Qwen2ForCausalLM",
            (3584, 18944, 28, 28, 4, 152064),
            max_window_layers=28,
            rope_theta=1000000.0,
            sliding_window=131072,
            use_mrope=False,
            use_sliding_window=False,
        ),
        7_615_616_512,
    ),
    "Qwen 3 8B": (
        llama_like(
            "qwen3",
            "Qwen3ForCausalLM",
            (4096, 12288, 36, 32, 8, 151936),
            attention_bias=False,
            head_dim=128,
            max_window_layers=36,
            rope_scaling=None,
            rope_theta=1000000,
            sliding_window=None,
            use_sliding_window=False,
        ),
        8_190_735_360,
    ),
    "Gemma 2B": (
        llama_like(
            "gemma",
            "GemmaForCausalLM",
            (2048, 16384, 18, 8, 1, 256000),
            **{**GEMMA, "hidden_act": "gelu", "hidden_activation": None},
            tie_word_embeddings=True,
        ),
        2_506_172_416,
    ),
    "Gemma 2 9B": (
        llama_like(
            "gemma2",
            "Gemma2ForCausalLM",
            (3584, 14336, 42, 16, 8, 256000),
            **GEMMA,
            attn_logit_softcapping=50.0,
            cache_implementation="hybrid",
            final_logit_softcapping=30.0,
            query_pre_attn_scalar=256,
            sliding_window=4096,
            sliding_window_size=4096,
            tie_word_embeddings=True,
        ),
        9_241_705_984,
    ),
    "Gemma 3 1B": (
        llama_like(
            "gemma3_text",
            "Gemma3ForCausalLM",
            (1152, 6912, 26, 4, 1, 262144),
            **{**GEMMA, "hidden_act": None},
            attn_logit_softcapping=None,
            cache_implementation="hybrid",
            final_logit_softcapping=None,
            query_pre_attn_scalar=256,
            rope_local_base_freq=10000,
            rope_scaling=None,
            rope_theta=1000000,
            sliding_window=512,
            sliding_window_pattern=6,
            tie_word_embeddings=True,
        ),
        999_885_952,
    ),
    "Phi 3 mini": (
        llama_like(
            "phi3",
            "Phi3ForCausalLM",
            (3072, 8192, 32, 32, 32, 32064),
            auto_map={"AutoConfig": "configuration_phi3.Phi3Config"},
            attention_bias=False,
            embd_pdrop=0.0,
            original_max_position_embeddings=4096,
            resid_pdrop=0.0,
            rope_scaling=None,
            sliding_window=2047,
        ),
        3_821_079_552,
    ),
    "Phi 3 mini 128k": (
        llama_like(
            "phi3",
            "Phi3ForCausalLM",
            (3072, 8192, 32, 32, 32, 32064),
            embd_pdrop=0.0,
            max_position_embeddings=131072,
            original_max_position_embeddings=4096,
            resid_pdrop=0.0,
            rope_scaling={
                "long_factor": [1.5] * 48,
                "short_factor": [1.0] * 48,
                "type": "longrope",
            },
            sliding_window=262144,
        ),
        3_821_079_552,
    ),
    "Mixtral 8x7B": (
        llama_like(
            "mixtral",
            "MixtralForCausalLM",
            (4096, 14336, 32, 32, 8, 32000),
            num_experts_per_tok=2,
            num_local_experts=8,
            output_router_logits=False,
            rope_theta=1000000.0,
            router_aux_loss_coef=0.02,
            sliding_window=None,
        ),
        46_702_792_704,
    ),
    "GPT-2": (
        {
            "activation_function": "gelu_new",
            "architectures": ["GPT2LMHeadModel"],
            "attn_pdrop": 0.1,
            "bos_token_id": 50256,
            "embd_pdrop": 0.1,
            "eos_token_id": 50256,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05,
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "resid_pdrop": 0.1,
            "summary_activation": None,
            "summary_first_dropout": 0.1,
            "summary_proj_to_labels": True,
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
            "vocab_size": 50257,
        },
        124_439_808,
    ),
    "BERT": (
        {
            **BERT,
            "architectures": ["BertForMaskedLM"],
            "gradient_checkpointing": False,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "bert",
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
            "type_vocab_size": 2,
            "vocab_size": 30522,
        },
        109_514_298,
    ),
    "RoBERTa": (
        {
            **BERT,
            "architectures": ["RobertaForMaskedLM"],
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 514,
            "model_type": "roberta",
            "pad_token_id": 1,
            "type_vocab_size": 1,
            "vocab_size": 50265,
        },
        124_697_433,
    ),
    "ViT": (
        {
            **BERT,
            "attention_probs_dropout_prob": 0.0,
            "architectures": ["ViTForImageClassification"],
            "hidden_dropout_prob": 0.0,
            "id2label": {str(i): f"LABEL_{i}" for i in range(1000)},
            "image_size": 224,
            "label2id": {f"LABEL_{i}": i for i in range(1000)},
            "layer_norm_eps": 1e-12,
            "model_type": "vit",
            "num_channels": 3,
            "patch_size": 16,
            "qkv_bias": True,
        },
        86_567_656,
    ),
    "CLIP": (
        {
            "architectures": ["CLIPModel"],
            "initializer_factor": 1.0,
            "logit_scale_init_value": 2.6592,
            "model_type": "clip",
            "projection_dim": 512,
            "text_config_dict": None,
            "text_config": {
                **LEGACY,
                "attention_dropout": 0.0,
                "bos_token_id": 0,
                "dropout": 0.0,
                "eos_token_id": 2,
                "hidden_act": "quick_gelu",
                "hidden_size": 512,
                "intermediate_size": 2048,
                "max_position_embeddings": 77,
                "model_type": "clip_text_model",
                "num_attention_heads": 8,
                "num_hidden_layers": 12,
                "projection_dim": 512,
                "vocab_size": 49408,
            },
            "vision_config_dict": None,
            "vision_config": {
                **LEGACY,
                "attention_dropout": 0.0,
                "dropout": 0.0,
                "hidden_act": "quick_gelu",
                "hidden_size": 768,
                "image_size": 224,
                "intermediate_size": 3072,
                "model_type": "clip_vision_model",
                "num_attention_heads": 12,
                "num_hidden_layers": 12,
                "patch_size": 32,
                "projection_dim": 512,
            },
        },
        151_277_313,
    ),
    "T5 small": (
        {
            "architectures": ["T5ForConditionalGeneration"],
            "d_ff": 2048,
            "d_kv": 64,
            "d_model": 512,
            "decoder_start_token_id": 0,
            "dropout_rate": 0.1,
            "eos_token_id": 1,
            "initializer_factor": 1.0,
            "is_encoder_decoder": True,
            "layer_norm_epsilon": 1e-06,
            "model_type": "t5",
            "n_positions": 512,
            "num_heads": 8,
            "num_layers": 6,
            "output_past": True,
            "pad_token_id": 0,
            "relative_attention_num_buckets": 32,
            "task_specific_params": {"summarization": {"early_stopping": True}},
            "vocab_size": 32128,
        },
        60_506_624,
    ),
    "Flan-T5 small": (
        {
            "architectures": ["T5ForConditionalGeneration"],
            "d_ff": 1024,
            "d_kv": 64,
            "d_model": 512,
            "dropout_rate": 0.1,
            "feed_forward_proj": "gated-gelu",
            "layer_norm_epsilon": 1e-06,
            "model_type": "t5",
            "num_decoder_layers": 8,
            "num_heads": 6,
            "num_layers": 8,
            "relative_attention_max_distance": 128,
            "relative_attention_num_buckets": 32,
            "tie_word_embeddings": False,
            "vocab_size": 32128,
        },
        76_961_152,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_has_the_published_number_of_parameters(tmp_path, name):
    config, count = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    net = text.from_config(tmp_path)
    total = 0
    for param in set(net.collect_params().values()):
        size = 1
        for length in param.shape:
            size *= length
        total += size
    assert total == count


@pytest.mark.parametrize("name", PUBLISHED)
def test_map_of_names_can_be_inverted(name):
    net = text.from_config(PUBLISHED[name][0])
    from mpgluon.gluon._tree import parameters_by_path

    class Shape:
        def __init__(self, shape):
            self.shape, self.dtype, self.slow_axis = shape, "float32", 0

    seen, arrays = set(), {}
    for path, param in parameters_by_path(net).items():
        if param not in seen:
            seen.add(param)
            arrays[path] = Shape(param.shape)
    entries, _ = huggingface_of(net)
    file = arrays
    for entry in reversed(entries):
        file = entry.save(file)
    again = file
    for entry in entries:
        again = entry.load(again)
    assert {path: array.shape for path, array in again.items()} == {
        path: array.shape for path, array in arrays.items()
    }


@pytest.mark.parametrize(
    "config, message",
    [
        ({"model_type": "mamba"}, "model_type = 'mamba' is not supported; the types are bert, "),
        ({}, "model_type = None"),
        ({"model_type": "llama"}, "the key 'num_attention_heads' is missing"),
        (small(hidden_act="mish"), "hidden_act = 'mish' is not supported; the activations are"),
        (small(rope_scaling={"type": "dynamic", "factor": 2.0}), "rope_type = 'dynamic'"),
        (
            small(rope_scaling={"type": "default", "mrope_section": [1, 2]}),
            "rope_scaling: mrope_section = .* not supported",
        ),
        (
            small(rope_parameters={"rope_type": "linear", "factor": "2"}),
            "rope_parameters: factor = '2' must be a number",
        ),
        (small(rope_scaling=[2]), "rope_scaling = .* must be an object"),
        (small(rope_parameters={"rope_type": "longrope"}), "short_factor = None must be a list"),
        (
            small(partial_rotary_factor=0.1, rope_scaling={"type": "linear", "factor": 2.0}),
            "partial_rotary_factor",
        ),
        *(
            (small(model_type=kind, output_router_logits=True), "output_router_logits.* aux_loss")
            for kind in ("mixtral", "qwen3_moe")
        ),
        (small(quantization_config={"bits": 4}), "quantization_config .* may change the results"),
        (small(residual_multiplier=0.5), "residual_multiplier = 0.5 is not supported, and it may"),
        (small(attention_bias="yes"), "attention_bias = 'yes' must be true or false"),
        (small(num_hidden_layers=2.5), "num_hidden_layers = 2.5 must be a positive integer"),
        (small(num_hidden_layers=0), "num_hidden_layers = 0 must be a positive integer"),
        (small(hidden_size=1 << 40), "hidden_size = .* must be a positive integer of at most"),
        (small(num_hidden_layers=1 << 30), "num_hidden_layers = .* at most 10000"),
        ({"model_type": "gpt2", "n_layer": 1 << 30}, "n_layer = .* at most 10000"),
        ({"model_type": "vit", "num_hidden_layers": 1 << 30}, "num_hidden_layers = .* at most"),
        ({"model_type": "t5", "num_layers": 1 << 30}, "num_layers = .* at most 10000"),
        ({"model_type": "t5", "num_decoder_layers": 1 << 30}, "num_decoder_layers = .* at most"),
        ({"model_type": "t5", "relative_attention_max_distance": 1 << 30}, "max_distance"),
        (small(hidden_size=30), "num_attention_heads = 4 must divide hidden_size"),
        (small(rms_norm_eps=float("nan")), "rms_norm_eps = nan must be finite"),
        (small("qwen2", layer_types=["linear_attention"] * 4, use_sliding_window=True), "layer_t"),
        (small("gemma2", layer_types=["full_attention"]), "for 4 layers"),
        (small("gemma", use_bidirectional_attention=True), "use_bidirectional_attention = True"),
        (small("gemma2", sliding_window=9, sliding_window_size=8), "sliding_window_size = 8"),
        (small("mixtral", router_jitter_noise=0.1), "router_jitter_noise = 0.1"),
        (small("phi3", lm_head_bias=True), "lm_head_bias = True"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention = True"),
        ({"model_type": "gpt2", "n_embd": 10, "n_head": 3}, "n_head = 3 must divide n_embd = 10"),
        (
            {"model_type": "bert", "vocab_size": 9, "position_embedding_type": "relative_key"},
            "position_embedding_type = 'relative_key' is not supported; it must be 'absolute'",
        ),
        ({"model_type": "bert", "vocab_size": 9, "is_decoder": True}, "is_decoder = True"),
        (
            {"model_type": "bert", "vocab_size": 9, "architectures": ["BertForPreTraining"]},
            "architectures = .* must be one of BertModel",
        ),
        ({"model_type": "vit", "image_size": 10, "patch_size": 3}, "patch_size = 3 must divide"),
        ({"model_type": "clip", "text_config": 3}, "text_config = 3 must be an object"),
        ({"model_type": "clip", "text_config": {"hidden_act": "x"}}, "text_config: hidden_act"),
        ({"model_type": "t5", "feed_forward_proj": "gated-mish"}, "feed_forward_proj = 'gated-mi"),
        ({"model_type": "t5", "feed_forward_proj": 3}, "feed_forward_proj = 3"),
    ],
)
def test_config_that_is_not_supported_names_the_key(config, message):
    with pytest.raises(MXNetError, match=message):
        text.from_config(config)


def test_damaged_config_names_the_file(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(MXNetError, match="config.json' cannot be read"):
        text.from_config(tmp_path)
    for content in ("", "[]", "{", '"llama"', "\xff", "[" * 100000):
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(MXNetError, match="config.json' is damaged"):
            text.from_config(path)


def test_inactive_unknown_keys_are_accepted():
    text.from_config(small(new_feature=None, another=False, more={}, list_of=[]))


def test_from_pretrained_needs_a_local_folder():
    with pytest.raises(
        MXNetError, match="neither a local folder nor a GGUF file; download the model"
    ):
        text.from_pretrained("meta-llama/Llama-3.1-8B")
