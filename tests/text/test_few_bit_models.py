"""Folders with weights in few bits: GPTQ, AWQ, compressed-tensors, bitsandbytes; rounding while
loading; saving."""

import contextlib
import json
import tracemalloc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.base import MXNetError
from mpgluon.contrib import huggingface as hf
from mpgluon.contrib.quantization import quantize_weights
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from support.processes import finished
from support.text.few_bits import awq, compressed, gptq, nf4, rounded, write_folder

CONFIG = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
SHAPES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (128, 64),
    "mlp.up_proj": (128, 64),
    "mlp.down_proj": (64, 128),
}
FILE_NAMES = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.proj": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
TOKENS = np.array([[3, 17, 5, 0, 39, 9, 30], [1, 2, 3, 4, 27, 6, 7]])


def tokens():
    return nd.array(TOKENS, dtype="int32")


def plain_arrays(rng, dtype="float16"):
    """Returns the arrays of the model that are not quantized."""
    arrays = {"model.embed_tokens.weight": rng.normal(size=(40, 64)) * 0.5}
    arrays["lm_head.weight"] = rng.normal(size=(40, 64)) * 0.2
    arrays["model.norm.weight"] = rng.uniform(0.5, 1.5, 64)
    for i in range(2):
        for name in ("input_layernorm", "post_attention_layernorm"):
            arrays[f"model.layers.{i}.{name}.weight"] = rng.uniform(0.5, 1.5, 64)
    return {name: value.astype(dtype) for name, value in arrays.items()}


def write_model(folder, quantization, pack, seed=0, config=CONFIG, dtype="float16"):
    """Writes a model whose layers `pack(rng, name, units, in_units)` packs. Returns the values of
    their weights, by the path of the layer."""
    rng = np.random.default_rng(seed)
    arrays, values = plain_arrays(rng, dtype), {}
    for i in range(2):
        for path, name in FILE_NAMES.items():
            stem = f"model.layers.{i}.{name}"
            packed, values[f"layers.{i}.{path}"] = pack(rng, stem, *SHAPES[name])
            arrays.update(packed)
    write_folder(folder, {**config, "quantization_config": quantization}, arrays)
    return values


def layers_of(net):
    found = {}
    for i, layer in enumerate(net.layers):
        for part, names in (
            ("attention", ("query", "key", "value", "proj")),
            ("mlp", ("gate", "up", "down")),
        ):
            for name in names:
                found[f"layers.{i}.{part}.{name}"] = getattr(getattr(layer, part), name)
    return found


def check_model(folder, values, format, group, dtype="float16", cast=()):
    """Checks a loaded model: the layers' formats and values, and the scores of a float network."""
    net = text.from_pretrained(folder, dtype="float32")
    layers = layers_of(net)
    for path, want in values.items():
        layer = layers[path]
        assert type(layer) is nn.QuantizedDense and layer.format == format, path
        assert layer.group in (group, 0)
        assert np.array_equal(layer.dequantized("float32").asnumpy(), want), path
    plain = text.from_pretrained(folder, dtype="float32", quantize=False)
    for path, layer in layers_of(plain).items():
        assert type(layer) is nn.Dense
        assert np.array_equal(layer.weight.data().asnumpy(), values[path]), path
    want = plain(tokens()).asnumpy()
    assert np.isfinite(want).all()
    assert np.abs(net(tokens()).asnumpy() - want).max() < 1e-4 * np.abs(want).max()
    half = text.from_pretrained(folder)
    assert str(np.dtype(half.norm.gamma.dtype)) == dtype
    assert layers_of(half)["layers.1.mlp.down"].packed.data().asnumpy().tobytes() == (
        layers["layers.1.mlp.down"].packed.data().asnumpy().tobytes()
    )
    return net


# --- GPTQ -----------------------------------------------------------------------------------------


def gptq_config(**changes):
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, **changes}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("group", [32, -1])
def test_gptq_values_are_exact_in_both_versions(tmp_path, group, first):
    def pack(rng, name, units, in_units):
        return gptq(name, *rounded(rng, units, in_units, max(group, 0)), first=first)

    key = "checkpoint_format" if group > 0 else "format"  # GPTQModel writes either
    changes = {} if first else {key: "gptq_v2"}
    config = gptq_config(group_size=group, desc_act=False, **changes)
    check_model(tmp_path, write_model(tmp_path, config, pack), "int4", max(group, 0))


def test_gptq_zero_0_of_first_version_is_stored_as_15(tmp_path):
    def pack(rng, name, units, in_units):
        q, scales, zeros = rounded(rng, units, in_units, 32)
        arrays, values = gptq(name, q, scales, zeros * 0)
        assert (arrays[f"{name}.qzeros"] == -1).all()
        return arrays, values

    check_model(tmp_path, write_model(tmp_path, gptq_config(), pack), "int4", 32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_order_of_activations_is_applied(tmp_path, bits, symmetric):
    def pack(rng, name, units, in_units):
        q, scales, zeros = rounded(rng, units, in_units, 32, bits)
        if symmetric:
            zeros[:] = 1 << (bits - 1)
        index = rng.permutation(np.arange(in_units) // 32)
        return gptq(name, q, scales, zeros, bits, index)

    config = gptq_config(bits=bits, sym=symmetric, desc_act=True)
    values = write_model(tmp_path, config, pack)
    if bits == 8 and not symmetric:
        with pytest.raises(MXNetError, match="stored in 8 bits with zeros"):
            text.from_pretrained(tmp_path)
        plain = layers_of(text.from_pretrained(tmp_path, dtype="float32", quantize=False))
        for path, want in values.items():
            assert np.array_equal(plain[path].weight.data().asnumpy(), want)
        return
    net = check_model(tmp_path, values, "int4" if bits == 4 else "int8", 32)
    layer = net.layers[0].mlp.down
    assert layer.order is not None and (layer.zeros is None) == symmetric


def test_gptq_symmetric_file_with_other_zeros_raises_error(tmp_path):
    def pack(rng, name, units, in_units):
        return gptq(name, *rounded(rng, units, in_units, 32))

    write_model(tmp_path, gptq_config(sym=True), pack)
    with pytest.raises(MXNetError, match="sym is true, but .*qzeros' has zeros other than 8"):
        text.from_pretrained(tmp_path)


def test_gptq_config_of_older_files_is_read(tmp_path):
    def pack(rng, name, units, in_units):
        return gptq(name, *rounded(rng, units, in_units, 32))

    values = write_model(tmp_path, {}, pack)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    old = {"bits": 4, "group_size": 32, "sym": False, "desc_act": False, "damp_percent": 0.01}
    (tmp_path / "quantize_config.json").write_text(json.dumps(old))
    check_model(tmp_path, values, "int4", 32)


def test_gptq_biases_that_are_0_are_dropped(tmp_path):
    def pack(rng, name, units, in_units):
        arrays, values = gptq(name, *rounded(rng, units, in_units, 32))
        return {**arrays, f"{name}.bias": np.zeros(units, "float16")}, values

    check_model(tmp_path, write_model(tmp_path, gptq_config(), pack), "int4", 32)

    def biased(rng, name, units, in_units):
        arrays, values = pack(rng, name, units, in_units)
        return {**arrays, f"{name}.bias": np.ones(units, "float16")}, values

    write_model(tmp_path, gptq_config(), biased)
    with pytest.raises(MXNetError, match="the network lacks .*bias"):
        text.from_pretrained(tmp_path)


def test_biases_of_packed_layers_are_loaded(tmp_path):
    def pack(rng, name, units, in_units):
        arrays, values = gptq(name, *rounded(rng, units, in_units, 32))
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            arrays[f"{name}.bias"] = rng.normal(size=units).astype("float16")
        return arrays, values

    config = {**CONFIG, "model_type": "qwen2"}
    values = write_model(tmp_path, gptq_config(), pack, config=config)
    net = check_model(tmp_path, values, "int4", 32)
    want = hf.Weights(tmp_path).read("model.layers.1.self_attn.k_proj.bias")
    assert np.array_equal(net.layers[1].attention.key.bias.data().asnumpy(), want)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"bits": 3}, "bits = 3 is not supported; it must be 4 or 8"),
        ({"bits": 4.0}, r"bits = 4\.0 is not supported; it must be 4 or 8"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin' is not supported"),
        ({"group_size": 0}, "group_size = 0 must be a positive integer or -1"),
        ({"group_size": 48}, "does not fit groups of 48"),
        ({"group_size": 16}, r"scales' has shape \(2, 64\), expected \(4, 64\)"),
        ({"dynamic": {"+:x": {"bits": 8}}}, "dynamic"),
        ({"quant_method": "aqlm"}, "quant_method = 'aqlm' is not supported; the methods are gptq"),
        ({"quant_method": None}, "quant_method = None is not supported"),
    ],
)
def test_gptq_unsupported_config_raises_error(tmp_path, changes, reason):
    def pack(rng, name, units, in_units):
        return gptq(name, *rounded(rng, units, in_units, 32))

    write_model(tmp_path, gptq_config(**changes), pack)
    with pytest.raises(MXNetError, match=reason) as error:
        text.from_pretrained(tmp_path)
    assert "config.json" in str(error.value)


@pytest.mark.parametrize(
    "part, value, reason",
    [
        ("qzeros", None, "the file lacks '.*down_proj.qzeros'"),
        ("qzeros", np.zeros((4, 7), "int32"), r"qzeros' has shape \(4, 7\), expected \(4, 8\)"),
        ("scales", np.zeros((4, 64), "int32"), "scales' is int32, expected float16"),
        ("qweight", np.zeros((16, 64), "float32"), "qweight' is float32, expected int32"),
        ("qweight", np.zeros(16, "int32"), r"qweight' has shape \(16,\)"),
        ("g_idx", np.full(128, -5, "int32"), "does not divide the inputs into 4 groups"),
        ("g_idx", np.full(128, 1 << 20, "int32"), "does not divide the inputs into 4 groups"),
        ("weight", np.zeros((64, 128), "float16"), "both quantized and not quantized"),
    ],
)
def test_gptq_damaged_file_names_array(tmp_path, part, value, reason):
    def pack(rng, name, units, in_units):
        arrays, values = gptq(name, *rounded(rng, units, in_units, 32))
        if name == "model.layers.1.mlp.down_proj":
            arrays[f"{name}.{part}"] = value
        return {name: array for name, array in arrays.items() if array is not None}, values

    write_model(tmp_path, gptq_config(), pack)
    with pytest.raises(MXNetError, match=reason):
        text.from_pretrained(tmp_path)


# --- AWQ ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [32, -1])
def test_awq_values_are_exact(tmp_path, group):
    def pack(rng, name, units, in_units):
        return awq(name, *rounded(rng, units, in_units, max(group, 0)))

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
    values = write_model(tmp_path, {**config, "version": "gemm"}, pack)
    check_model(tmp_path, values, "int4", max(group, 0))


@pytest.mark.parametrize("changes", [{"version": "gemv"}, {"bits": 8}])
def test_awq_unsupported_config_raises_error(tmp_path, changes):
    def pack(rng, name, units, in_units):
        return awq(name, *rounded(rng, units, in_units, 32))

    config = {"quant_method": "awq", "bits": 4, "group_size": 32, **changes}
    write_model(tmp_path, config, pack)
    with pytest.raises(MXNetError, match=f"{next(iter(changes))} = .* is not supported"):
        text.from_pretrained(tmp_path)


# --- compressed-tensors ---------------------------------------------------------------------------


def compressed_config(**weights):
    scheme = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": {**scheme, "input_activations": None}},
    }


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 0])
def test_compressed_values_of_4_bits_are_exact(tmp_path, group, symmetric, ordered):
    def pack(rng, name, units, in_units):
        q, scales, zeros = rounded(rng, units, in_units, group)
        index = rng.permutation(np.arange(in_units) // 32) if ordered and group else None
        return compressed(name, q, scales, None if symmetric else zeros, g_idx=index)

    values = write_model(tmp_path, compressed_config(), pack)
    check_model(tmp_path, values, "int4", group)


def test_compressed_values_of_8_bits_are_exact(tmp_path):
    def pack(rng, name, units, in_units):
        q, scales, _ = rounded(rng, units, in_units, 0, 8)
        return compressed(name, q, scales, None, 8)

    check_model(tmp_path, write_model(tmp_path, compressed_config(num_bits=8), pack), "int8", 0)


def test_compressed_scale_of_tensor_applies_to_all_rows(tmp_path):
    def pack(rng, name, units, in_units):
        q, scales, _ = rounded(rng, units, in_units, 0)
        scales[:] = scales[0, 0]
        arrays, values = compressed(name, q, scales)
        arrays[f"{name}.weight_scale"] = scales[0]
        return arrays, values

    check_model(tmp_path, write_model(tmp_path, compressed_config(), pack), "int4", 0)


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda c: c.update(format="float-quantized"), "format = 'float-quantized'"),
        (lambda c: c.update(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
        (lambda c: c.update(config_groups=[1]), "config_groups = .* must be an object"),
        (lambda c: c["config_groups"].update(group_0=3), "group_0 = 3 must be an object"),
        (
            lambda c: c["config_groups"]["group_0"].update(input_activations={"num_bits": 8}),
            "activations",
        ),
        (lambda c: c["config_groups"]["group_0"]["weights"].update(type="float"), "type 'float'"),
        (lambda c: c["config_groups"]["group_0"]["weights"].update(num_bits=3), "3 bits"),
    ],
)
def test_compressed_unsupported_config_raises_error(tmp_path, change, reason):
    def pack(rng, name, units, in_units):
        return compressed(name, *rounded(rng, units, in_units, 32)[:2])

    config = compressed_config()
    change(config)
    write_model(tmp_path, config, pack)
    with pytest.raises(MXNetError, match=reason):
        text.from_pretrained(tmp_path)


# --- bitsandbytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_nf4_values_are_exact(tmp_path, nested):
    def pack(rng, name, units, in_units):
        return nf4(name, rng, units, in_units, 32, nested)

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    check_model(tmp_path, write_model(tmp_path, config, pack), "nf4", 32)


def test_int8_rows_of_bitsandbytes_are_exact(tmp_path):
    def pack(rng, name, units, in_units):
        q = rng.integers(-127, 128, (units, in_units)).astype(np.int8)
        scb = rng.uniform(0.1, 0.5, units).astype(np.float32)
        arrays = {f"{name}.weight": q, f"{name}.SCB": scb}
        arrays[f"{name}.weight_format"] = np.zeros(1, np.uint8)
        return arrays, q * (scb / np.float32(127))[:, None]

    config = {"load_in_8bit": True}
    check_model(tmp_path, write_model(tmp_path, config, pack), "int8", 0)


@pytest.mark.parametrize(
    "state, reason",
    [
        ({"nested_blocksize": "x"}, "nested_blocksize = 'x' of '.*' must be a positive integer"),
        ({"nested_offset": 10**400}, "nested_offset = 1.* must be a finite number"),
        ({"nested_offset": float("nan")}, "nested_offset = nan of '.*' must be a finite number"),
    ],
)
def test_nf4_damaged_nested_state_raises_error(tmp_path, state, reason):
    write_model(tmp_path, {"quant_method": "bitsandbytes"}, nested_with(state))
    with pytest.raises(MXNetError, match=reason):
        text.from_pretrained(tmp_path)


def nested_with(changes):
    """Returns a function that packs a weight of nf4 and changes its nested state."""

    def pack(rng, name, units, in_units):
        arrays, values = nf4(name, rng, units, in_units, 64, True)
        key = f"{name}.weight.quant_state.bitsandbytes__nf4"
        state = json.dumps({**json.loads(arrays[key].tobytes()), **changes})
        return {**arrays, key: np.frombuffer(state.encode(), np.uint8)}, values

    return pack


def test_large_numbers_in_files_allocate_no_memory(tmp_path):
    def act_order(rng, name, units, in_units):
        arrays, values = gptq(name, *rounded(rng, units, in_units, 32))
        arrays[f"{name}.g_idx"] = np.full(in_units, 1 << 25, "int32")
        return arrays, values

    cases = (
        ({"quant_method": "bitsandbytes"}, nested_with({"nested_blocksize": 1 << 25})),
        (gptq_config(), act_order),
    )
    for config, pack in cases:
        write_model(tmp_path, config, pack)
        tracemalloc.start()
        try:
            with contextlib.suppress(MXNetError):
                text.from_pretrained(tmp_path)
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()


def test_nf4_damaged_state_raises_error(tmp_path):
    for text_of_state, reason in (
        (b"{", "quant_state of '.*' is damaged"),
        (b'{"shape": [64, 64], "blocksize": 48}', "not a multiple of the block size 48"),
        (b'{"shape": [64, -64], "blocksize": 32}', "not a positive integer"),
        (b'{"shape": [64, 32], "blocksize": 32}', "does not hold"),
    ):

        def pack(rng, name, units, in_units, raw=text_of_state):
            arrays, values = nf4(name, rng, units, in_units, 32)
            if name.endswith("q_proj"):
                state = np.frombuffer(raw, np.uint8)
                arrays[f"{name}.weight.quant_state.bitsandbytes__nf4"] = state
            return arrays, values

        write_model(tmp_path, {"quant_method": "bitsandbytes"}, pack)
        with pytest.raises(MXNetError, match=reason):
            text.from_pretrained(tmp_path)


# --- Other networks and placements ----------------------------------------------------------------


def test_fused_projections_are_split_in_packed_form(tmp_path):
    rng = np.random.default_rng(3)
    arrays = plain_arrays(rng)
    for i in range(2):
        for name, shape in (
            ("self_attn.qkv_proj", (128, 64)),
            ("self_attn.o_proj", (64, 64)),
            ("mlp.gate_up_proj", (256, 64)),
            ("mlp.down_proj", (64, 128)),
        ):
            packed, values = awq(f"model.layers.{i}.{name}", *rounded(rng, *shape, 32))
            arrays.update(packed)
            if name == "self_attn.qkv_proj":
                fused = values
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 32}
    config = {**CONFIG, "model_type": "phi3", "quantization_config": quantization}
    config.update(pad_token_id=0, sliding_window=None)
    write_folder(tmp_path, config, arrays)
    net = text.from_pretrained(tmp_path, dtype="float32")
    attention = net.layers[1].attention
    for layer, rows in (
        (attention.query, (0, 64)),
        (attention.key, (64, 96)),
        (attention.value, (96, 128)),
    ):
        assert np.array_equal(layer.dequantized().asnumpy(), fused[slice(*rows)])


def test_projections_of_gpt2_are_not_transposed(tmp_path):
    rng = np.random.default_rng(3)
    arrays, values = {}, {}
    for name, size in (("wte", 40), ("wpe", 16)):
        arrays[f"transformer.{name}.weight"] = rng.normal(size=(size, 64)).astype("float16")
    norms = ["transformer.ln_f", "transformer.h.0.ln_1", "transformer.h.0.ln_2"]
    for name in norms:
        arrays[f"{name}.weight"] = np.ones(64, "float16")
        arrays[f"{name}.bias"] = np.zeros(64, "float16")
    shapes = {"attn.c_attn": (192, 64), "attn.c_proj": (64, 64)}
    shapes.update({"mlp.c_fc": (256, 64), "mlp.c_proj": (64, 256)})
    for name, shape in shapes.items():
        packed, values[name] = gptq(f"transformer.h.0.{name}", *rounded(rng, *shape, 32))
        arrays.update(packed)
        arrays[f"transformer.h.0.{name}.bias"] = rng.normal(size=shape[0]).astype("float16")
    config = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 1, "vocab_size": 40}
    config.update(n_positions=16, quantization_config=gptq_config(checkpoint_format="gptq"))
    write_folder(tmp_path, config, arrays)
    layer = text.from_pretrained(tmp_path, dtype="float32").layers[0]
    assert np.array_equal(layer.attention.proj.dequantized().asnumpy(), values["attn.c_proj"])
    assert np.array_equal(
        layer.attention.key.dequantized().asnumpy(), values["attn.c_attn"][64:128]
    )
    assert np.array_equal(layer.mlp.down.dequantized().asnumpy(), values["mlp.c_proj"])
    plain = text.from_pretrained(tmp_path, dtype="float32", quantize=False).layers[0]
    assert np.array_equal(plain.attention.proj.weight.data().asnumpy(), values["attn.c_proj"])


def test_placed_network_reads_packed_weights_to_each_device(tmp_path):
    def pack(rng, name, units, in_units):
        index = rng.permutation(np.arange(in_units) // 32)
        return gptq(name, *rounded(rng, units, in_units, 32), g_idx=index)

    write_model(tmp_path, gptq_config(desc_act=True), pack)
    first, second = mx.cpu(0), mx.cpu(1)
    halves = {"embed": first, r"layers\.0": first, r"layers\.1": second, "norm|head": second}
    one = text.from_pretrained(tmp_path, dtype="float32")
    two = text.from_pretrained(tmp_path, ctx=halves, dtype="float32")
    assert two.layers[1].mlp.up.order.list_ctx() == [second]
    assert (one(tokens()).asnumpy() == two(tokens()).asnumpy()).all()
    one.hybridize()
    assert np.allclose(one(tokens()).asnumpy(), two(tokens()).asnumpy(), atol=1e-5)


def float_model(folder, kind="llama", **changes):
    mx.random.seed(1)
    net = text.from_config({**CONFIG, "model_type": kind, **changes})
    net.initialize(mx.init.Normal(0.2))
    net.save_parameters(str(folder), format="huggingface")
    return net


OPTIONS = [
    "int8",
    "int4",
    "nf4",
    "q8_0",
    "q4_0",
    {"format": "int4", "group": 16, "use_zeros": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rounding_while_loading_equals_rounding_afterwards(tmp_path, options):
    float_model(tmp_path)
    net = text.from_pretrained(tmp_path, quantize=options)
    options = {"format": options} if isinstance(options, str) else options
    want = quantize_weights(text.from_pretrained(tmp_path), **options)
    for name, param in zip(net._collect_params_with_prefix(), want._collect_params_with_prefix()):
        assert name == param
    found, expected = net._collect_params_with_prefix(), want._collect_params_with_prefix()
    for name in expected:
        assert np.array_equal(found[name].data().asnumpy(), expected[name].data().asnumpy()), name
    assert (net(tokens()).asnumpy() == want(tokens()).asnumpy()).all()


def test_rounding_skips_layers_and_tied_heads(tmp_path):
    float_model(tmp_path)
    net = text.from_pretrained(tmp_path, quantize={"format": "int8", "skip": ["head", r".*\.up"]})
    assert type(net.head) is nn.Dense and type(net.layers[0].mlp.up) is nn.Dense
    assert type(net.layers[0].mlp.down) is nn.QuantizedDense
    float_model(tmp_path, tie_word_embeddings=True)
    net = text.from_pretrained(tmp_path, quantize="int8")
    assert type(net.head) is nn.Dense and net.head.weight is net.embed.weight
    with pytest.raises(ValueError, match="format must be one of"):
        text.from_pretrained(tmp_path, quantize="int3")
    with pytest.raises(ValueError, match="not True"):
        text.from_pretrained(tmp_path, quantize=True)
    with pytest.raises(TypeError, match="no option 'method'; .* call mx.contrib.quantization"):
        text.from_pretrained(tmp_path, quantize={"format": "int4", "method": "gptq"})
    with pytest.raises(ValueError, match="dtype must be one of .* not 'int8'; quantize='int8'"):
        text.from_pretrained(tmp_path, dtype="int8")
    with pytest.raises(TypeError, match="must be a format, options or False, not 8"):
        text.from_pretrained(tmp_path, quantize=8)
    assert text.from_pretrained(tmp_path, quantize={}).layers[0].mlp.down.format == "int8"


def test_rounded_network_generates_on_two_devices(tmp_path):
    float_model(tmp_path)
    first, second = mx.cpu(0), mx.cpu(1)
    halves = {"embed": first, r"layers\.0": first, r"layers\.1": second, "norm|head": second}
    one = text.from_pretrained(tmp_path, quantize="int4")
    two = text.from_pretrained(tmp_path, ctx=halves, quantize="int4")
    prompts = [[1, 15, 7, 3], [22, 9]]
    assert text.generate(one, prompts, max_new=6) == text.generate(two, prompts, max_new=6)


def test_peak_host_memory_of_rounding_is_far_below_float_weights(tmp_path):
    code = f"""
        import resource, sys
        import mpgluon as mx
        from mpgluon import nd
        from mpgluon.gluon.model_zoo import text
        if sys.argv[1:] == ["write"]:
            config = {{
                "model_type": "llama", "vocab_size": 64, "hidden_size": 1024,
                "intermediate_size": 4096, "num_hidden_layers": 3, "num_attention_heads": 8,
            }}
            net = text.from_config(config)
            net.initialize()
            net.save_parameters({str(tmp_path)!r}, format="huggingface")
        else:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            net = text.from_pretrained({str(tmp_path)!r}, quantize="int4")
            nd.waitall()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            print(peak / (3 * 16 * 4096))  # KiB for each KiB of float weights
    """
    finished(code.replace("sys.argv[1:]", "['write']"))
    ratio = float(finished(code).stdout.split()[-1])
    assert ratio < 0.6, f"peak memory is {ratio} times the float weights"


# --- Saving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_own_format_keeps_packed_weights(tmp_path, dtype):
    float_model(tmp_path)
    net = text.from_pretrained(tmp_path, quantize="int4", dtype=dtype)
    other = text.from_pretrained(tmp_path, quantize="int4", dtype=dtype)
    for param in other.collect_params().values():
        param.set_data(nd.zeros_like(param.data()))
    for name in ("w.params", "w.safetensors"):
        net.save_parameters(str(tmp_path / name))
        other.load_parameters(str(tmp_path / name))
        want = net(tokens()).astype("float32").asnumpy()
        assert (other(tokens()).astype("float32").asnumpy() == want).all()


def test_huggingface_format_writes_dequantized_weights(tmp_path):
    def pack(rng, name, units, in_units):
        index = rng.permutation(np.arange(in_units) // 32)
        return gptq(name, *rounded(rng, units, in_units, 32), g_idx=index)

    values = write_model(tmp_path, gptq_config(desc_act=True), pack)
    net = text.from_pretrained(tmp_path, dtype="float32")
    net.save_parameters(str(tmp_path / "saved"), format="huggingface")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "float32"
    weights = hf.Weights(tmp_path / "saved")
    for path, want in values.items():
        layer, name = path.split(".", 2)[1:]
        assert np.array_equal(weights.read(f"model.layers.{layer}.{FILE_NAMES[name]}.weight"), want)
    again = text.from_pretrained(tmp_path / "saved")
    want = net(tokens()).asnumpy()
    assert np.abs(again(tokens()).asnumpy() - want).max() < 1e-4 * np.abs(want).max()


def test_config_dict_of_quantized_model_raises_error():
    with pytest.raises(MXNetError, match="quantization_config"):
        text.from_config({**CONFIG, "quantization_config": gptq_config()})
