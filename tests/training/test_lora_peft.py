"""Adapters in both directions between `mx.contrib.lora` and the PEFT library, and its training."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from mpgluon import autograd, gluon, nd
from mpgluon.contrib import lora
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from support.paths import ROOT

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

NAMES = {r"body\.(\d)": r"body.\1.proj", "head": "lm_head", "embed": "wte"}
MODULES = ["wte", "body.0.proj", "body.1.proj", "lm_head"]


class Projection(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.proj(x))


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(9, 6)
        self.body = torch.nn.Sequential(Projection(), Projection())
        self.lm_head = torch.nn.Linear(6, 9, bias=False)

    def forward(self, ids):
        return self.lm_head(self.body(self.wte(ids)))


class Ours(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.body = nn.HybridSequential()
        for _ in range(2):
            self.body.add(nn.Dense(6, activation="tanh", flatten=False, in_units=6))
        self.head = nn.Dense(9, use_bias=False, flatten=False, in_units=6)

    def hybrid_forward(self, F, ids):
        return self.head(self.body(self.embed(ids)))


def pair():
    torch.manual_seed(0)
    theirs, ours = Theirs(), Ours()
    ours.initialize()
    state = theirs.state_dict()
    for name, param in ours._collect_params_with_prefix().items():
        path, _, kind = name.rpartition(".")
        param.set_data(nd.array(state[f"{lora._files._module(NAMES, path)}.{kind}"].numpy()))
    ours.hybridize()
    return theirs, ours


IDS = np.random.RandomState(0).randint(0, 9, (3, 4))
LABELS = np.random.RandomState(1).randint(0, 9, (3, 4))
CONFIGS = {
    "lora": {"target_modules": MODULES, "r": 2, "lora_alpha": 6},
    "rslora": {"target_modules": ["proj"], "r": 3, "lora_alpha": 6, "use_rslora": True},
    "dora": {"target_modules": ["proj", "lm_head"], "r": 2, "lora_alpha": 4, "use_dora": True},
    "patterns": {
        "target_modules": ["proj", "lm_head"],
        "r": 2,
        "lora_alpha": 4,
        "rank_pattern": {"lm_head": 3},
        "alpha_pattern": {"body.1.proj": 10},
    },
}


def adapted(theirs, config):
    """The model with an adapter of random values."""
    model = peft.get_peft_model(theirs, peft.LoraConfig(**config))
    generator = torch.Generator().manual_seed(1)
    for name, param in model.named_parameters():
        if "lora_" in name:
            noise = torch.randn(param.shape, generator=generator) / 4
            param.data = param.data + noise if "magnitude" in name else noise
    return model


def outputs(model, ours):
    with torch.no_grad():
        expected = model(torch.tensor(IDS)).numpy()
    return ours(nd.array(IDS)).asnumpy(), expected


@pytest.mark.parametrize("kind", CONFIGS)
def test_adapter_of_peft_is_loaded(kind, tmp_path):
    theirs, ours = pair()
    base = outputs(theirs, ours)
    np.testing.assert_allclose(*base, rtol=1e-5, atol=1e-6)
    model = adapted(theirs, CONFIGS[kind])
    model.save_pretrained(str(tmp_path))
    lora.load(ours, tmp_path, name_map=NAMES)
    found, expected = outputs(model, ours)
    assert np.abs(expected - base[1]).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    lora.merge(ours)
    np.testing.assert_allclose(outputs(model, ours)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_peft_loads_a_saved_adapter(kind, tmp_path):
    theirs, ours = pair()
    adapted(theirs, CONFIGS[kind]).save_pretrained(str(tmp_path / "first"))
    lora.load(ours, tmp_path / "first", name_map=NAMES)
    lora.save(ours, tmp_path / "second", name_map=NAMES)
    first, second = (
        {
            k: v.asnumpy()
            for k, v in nd.load(str(tmp_path / f / "adapter_model.safetensors")).items()
        }
        for f in ("first", "second")
    )
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)
    fresh, _ = pair()
    model = peft.PeftModel.from_pretrained(fresh, str(tmp_path / "second"))
    found, expected = outputs(model, ours)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    config = json.loads((tmp_path / "second" / "adapter_config.json").read_text())
    assert not set(config) - set(peft.LoraConfig().to_dict())


@pytest.mark.parametrize("kind", CONFIGS)
def test_training_follows_peft(kind, tmp_path):
    theirs, ours = pair()
    model = adapted(theirs, CONFIGS[kind])
    model.save_pretrained(str(tmp_path))
    lora.load(ours, tmp_path, name_map=NAMES)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    trainer = gluon.Trainer(ours.collect_params(), "sgd", {"learning_rate": 0.1})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(6):
        logits = model(torch.tensor(IDS)).reshape(-1, 9)
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS).reshape(-1))
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        with autograd.record():
            found = loss(ours(nd.array(IDS)), nd.array(LABELS)).mean()
        found.backward()
        trainer.step(1)
        np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-5)
    found, expected = outputs(model, ours)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_half_base_follows_peft(tmp_path):
    theirs, ours = pair()
    theirs.to(torch.bfloat16)
    ours.cast("bfloat16")
    model = adapted(theirs, CONFIGS["lora"])
    model.save_pretrained(str(tmp_path))
    lora.load(ours, tmp_path, name_map=NAMES)
    with torch.no_grad():
        expected = model(torch.tensor(IDS)).float().numpy()
    found = ours(nd.array(IDS)).astype("float32").asnumpy()
    np.testing.assert_allclose(found, expected, rtol=0.03, atol=0.03)


def test_auto_class_of_peft_loads_a_saved_adapter(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    net = text.from_pretrained(tmp_path / "model")
    lora.apply(net, {r".*mlp\.up": 2}, alpha=8)
    for param in lora.parameters(net).values():
        param.set_data(nd.random.normal(0, 0.3, shape=param.shape))
    names = {r"layers\.(\d+)\.mlp\.up": r"model.layers.\1.mlp.up_proj"}
    for task in (None, "FEATURE_EXTRACTION"):
        lora.save(
            net,
            tmp_path / "adapter",
            name_map=names,
            base_model=str(tmp_path / "model"),
            task_type=task,
        )
        written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
        assert written["task_type"] == (task or "CAUSAL_LM")
        if task is None:
            model = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    with torch.no_grad():
        expected = model(torch.tensor(IDS)).logits.numpy()
    found = net(nd.array(IDS, dtype="int32")).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Gemma"])
def test_map_of_the_page_names_the_modules_of_transformers(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    page = (Path(ROOT) / "docs" / "transformers.md").read_text()
    scope = {}
    exec(re.search(r"^names = \{\n.*?^\}$", page, re.M | re.S)[0], scope)
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
    )
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config)
    theirs.save_pretrained(tmp_path / "model")
    net = text.from_pretrained(tmp_path / "model")
    lora.apply(net, {r".*attention\.\w+": 2, r".*mlp\.\w+": 2}, alpha=8)
    base = net(nd.array(IDS, dtype="int32")).asnumpy()
    for param in lora.parameters(net).values():
        param.set_data(nd.random.normal(0, 0.3, shape=param.shape))
    lora.save(net, tmp_path / "adapter", name_map=scope["names"])
    model = peft.PeftModel.from_pretrained(theirs, str(tmp_path / "adapter"))
    with torch.no_grad():
        expected = model(torch.tensor(IDS)).logits.numpy()
    found = net(nd.array(IDS, dtype="int32")).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(found - base).max() > 0.01
