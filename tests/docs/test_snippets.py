"""The code of README.md and of the site's pages runs unchanged, one block after the other, given
the networks and batches that the text mentions."""

import codeop
import json
import os
import re
import textwrap

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from support.devices import cpus_only
from support.paths import ROOT
from support.processes import compiled, finished
from support.text.gguf_models import write_model

SHELL = re.compile(
    r"(pip|python|make|git|nvcc|mxnet_suite\.py|MPGLUON_\w+=|PYTHONPATH=|tests/|\$ )"
)


def blocks(path):
    """Returns the Python code of a document: fenced as such, or indented by four columns below a
    paragraph."""
    with open(os.path.join(ROOT, path)) as file:
        text = file.read()
    found = [
        (m.start(), textwrap.dedent(m[2]))
        for m in re.finditer(r"^( *)```python\n(.*?)^\1```$", text, re.M | re.S)
    ]
    rest = re.sub(
        r"^( *)```.*?^\1```$", lambda m: re.sub(r"[^\n]", ".", m[0]), text, flags=re.M | re.S
    )
    for m in re.finditer(r"(?<=\n\n)((?: {4}.*\n|\n(?= {4}))+)", rest):
        code = textwrap.dedent(m[1])
        if not SHELL.match(code):
            found.append((m.start(), code))
    return [code for _, code in sorted(found)]


def chain(*sizes):
    net = nn.HybridSequential()
    for inputs, units in zip(sizes, sizes[1:]):
        net.add(nn.Dense(units, in_units=inputs))
    return net


def names(net, **more):
    """Returns the names that the documents assume."""
    x, y = nd.random.normal(shape=(16, 8)), nd.array(np.arange(16) % 4)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    return {
        "mx": mx,
        "gluon": gluon,
        "autograd": autograd,
        "nd": nd,
        "nn": nn,
        "rnn": rnn,
        "net": net,
        "loss": loss,
        "x": x,
        "y": y,
        "data": x,
        "labels": y,
        **more,
    }


def ready(net, **more):
    net.initialize()
    return names(net, trainer=gluon.Trainer(net.collect_params(), "adam"), **more)


def run(path, given, tmp_path, monkeypatch, capsys):
    """Runs each block of a document in the scope from its function in `given`; returns (scope,
    output) of each."""
    monkeypatch.chdir(tmp_path)
    found, results = blocks(path), []
    assert len(found) == len(given), (
        f"{path} has {len(found)} blocks of code, of which this test knows {len(given)}"
    )
    for number, (code, make) in enumerate(zip(found, given)):
        scope = make()
        capsys.readouterr()
        exec(compile(code, f"{path}, block {number}", "exec"), scope)
        nd.waitall()
        results.append((scope, capsys.readouterr().out))
    return results


@pytest.fixture(autouse=True)
def afterwards():
    yield
    mx.context.set_threads(0)


def together(path, tmp_path, monkeypatch, capsys, **given):
    """Runs the blocks of a document in one scope, as if typed by a reader; returns the scope and
    all output."""
    monkeypatch.chdir(tmp_path)
    scope = dict(given)
    capsys.readouterr()
    for number, code in enumerate(blocks(path)):
        exec(compile(code, f"{path}, block {number}", "exec"), scope)
    nd.waitall()
    return scope, capsys.readouterr().out


@cpus_only
def test_readme_code_trains_and_plots(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    scope, _ = together("README.md", tmp_path, monkeypatch, capsys)
    assert scope["losses"].shape == (256,) and (tmp_path / "timeline.png").stat().st_size


@cpus_only
def test_quickstart_code_trains_with_the_same_losses(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    _, printed = together("docs/quickstart.md", tmp_path, monkeypatch, capsys)
    assert (tmp_path / "timeline.png").stat().st_size
    losses = [float(line) for line in printed.splitlines() if re.fullmatch(r"\d\.\d+", line)]
    one, two, _, pipelined = losses  # the third is the difference between one device and two
    assert pipelined < two < one and losses[2] == 0
    assert "2 stages, 8 micro-batches" in printed and "bytes out" in printed


@cpus_only
def test_tasks_code_runs(tmp_path, monkeypatch, capsys):
    scope, printed = together("docs/tasks.md", tmp_path, monkeypatch, capsys)
    assert printed.splitlines()[-1] == "2" and scope["losses"].context == mx.cpu(1)


@cpus_only
def test_index_code_trains_over_two_devices(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    scope, _ = together("docs/index.md", tmp_path, monkeypatch, capsys)
    assert scope["losses"].shape == (256,) and scope["losses"].context == mx.cpu(1)
    assert (tmp_path / "timeline.png").stat().st_size


@cpus_only
def test_from_pytorch_code_runs(tmp_path, monkeypatch, capsys):
    together("docs/from-pytorch.md", tmp_path, monkeypatch, capsys, **names(None))


def test_schedules_code_prints_the_bubble(tmp_path, monkeypatch, capsys):
    _, printed = together("docs/schedules.md", tmp_path, monkeypatch, capsys)
    assert "bubble=25.0%" in printed


@pytest.mark.parametrize("path", ["README.md", "docs/index.md", "docs/quickstart.md"])
def test_blocks_can_be_pasted_into_a_prompt(path):
    """The prompt of Python 3.12 and older reads lines; an empty line ends an indented block."""
    for block in blocks(path):
        lines = []
        for line in [*block.splitlines(), ""]:
            lines.append(line)
            if codeop.compile_command("\n".join(lines), symbol="single") is not None:
                lines = []
        assert not lines


def test_every_page_with_code_is_tested():
    """By this file or by a more specific test."""
    pages = ("add-an-op", "architecture", "interop", "numpy-interface", "recipes")
    elsewhere = {f"docs/{page}.md" for page in pages}
    with open(__file__, encoding="utf-8") as file:
        run_here = set(re.findall(r'"((?:docs/)?[\w-]+\.md)"', file.read()))
    pages = [os.path.join("docs", name) for name in os.listdir(os.path.join(ROOT, "docs"))]
    pages = [path for path in [*pages, "README.md"] if path.endswith(".md")]
    assert {path for path in pages if blocks(path)} <= run_here | elsewhere


def dataset():
    return gluon.data.ArrayDataset(nd.ones((600, 8)), nd.zeros(600))


def test_horovod_page_code_trains(tmp_path, monkeypatch, capsys):
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    given = [lambda: names(chain(8, 4), dataset=dataset(), loss_of=loss_of)]
    ((trained, _),) = run("docs/horovod.md", given, tmp_path, monkeypatch, capsys)
    assert trained["trainer"].optimizer.num_update == 2


def test_onnx_page_code_exports_and_imports(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnx")
    given = [lambda: ready(chain(8, 4))] * 3
    _, (written, _), (read, _) = run("docs/onnx.md", given, tmp_path, monkeypatch, capsys)
    assert read["net"](nd.ones((5, 8))).shape == (5, 4)
    assert sorted(read["arg_params"]) == sorted(written["net"].collect_params())


def test_lora_page_code_trains_merges_and_saves(tmp_path, monkeypatch, capsys):
    scope, printed = together("docs/lora.md", tmp_path, monkeypatch, capsys)
    assert printed.count("lora_A_default") == 5
    trained = scope["lora"].parameters(scope["net"], "default")
    found = scope["lora"].parameters(scope["other"], "default")
    for a, b in zip(trained.values(), found.values()):
        np.testing.assert_array_equal(a.data().asnumpy(), b.data().asnumpy())
    assert not np.array_equal(scope["served"].asnumpy(), scope["base"].asnumpy())
    assert type(scope["packed"].layers[0].query) is nn.Dense
    assert type(scope["packed"].head) is nn.QuantizedDense


def test_packed_weights_page_code_packs_a_network(tmp_path, monkeypatch, capsys):
    path = "docs/quantized-weights.md"
    scope, printed = together(path, tmp_path, monkeypatch, capsys)
    before = scope["before"].asnumpy()
    assert printed.count("QuantizedDense") == 2 and printed.endswith("(2, 64)\n")
    np.testing.assert_allclose(scope["y"].asnumpy(), before, atol=0.2 * abs(before).max())


def saved_models(folder):
    """Writes the folders `model` and `bert` that the pages on transformers assume."""
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "vocab_size": 32,
    }
    for kind, more in (
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 2}),
        ("bert", {"architectures": ["BertForMaskedLM"]}),
    ):
        net = gluon.model_zoo.text.from_config({"model_type": kind, **sizes, **more})
        net.initialize(mx.init.Normal(0.3))
        path = folder / {"llama": "model"}.get(kind, kind)
        net.save_parameters(path, format="huggingface")
    sizes.update(hidden_size=32, intermediate_size=64)
    net = gluon.model_zoo.text.from_config(
        {"model_type": "llama", "max_position_embeddings": 64, "num_key_value_heads": 2, **sizes}
    )
    net.initialize(mx.init.Normal(0.3))
    write_model(folder / "model.gguf", net, folder / "source", "Q4_0")


@cpus_only
def test_transformers_page_generates_trains_and_saves(tmp_path, monkeypatch, capsys):
    saved_models(tmp_path)
    scope, printed = together("docs/transformers.md", tmp_path, monkeypatch, capsys)
    placement, tokens, path = re.split(r"\n(?=\[|layers)", printed)
    assert "cpu(1): layers.2, layers.3, norm, head" in placement
    assert len(eval(tokens)) == 16
    assert path.strip() == "layers.0.attention.query"
    assert scope["losses"].shape == (8,) and scope["trainer"].learning_rate < 2e-4
    # The mask gives the mean over the labels that count, which differ in number between rows.
    labels = np.array([[3, -100, 2], [-100, -100, 1]])
    scores = nd.random.normal(shape=(2, 3, 4))
    mask = scope["mask_of"](nd.array(labels))
    found = scope["loss"](scores, nd.maximum(nd.array(labels), 0), mask).mean()
    logs = scores.log_softmax(-1).asnumpy()
    expected = -np.mean([logs[i, t, labels[i, t]] for i, t in np.argwhere(labels != -100)])
    np.testing.assert_allclose(found.asscalar(), expected, rtol=1e-5)
    assert scope["scores"].shape == (2, 5, 32)
    for name in ("tuned/config.json", "run/index.json"):
        assert (tmp_path / name).exists()
    modules = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert {one.rpartition(".layers.")[2][2:] for one in modules["target_modules"]} == {
        *(f"self_attn.{one}_proj" for one in "qkvo"),
        *(f"mlp.{one}_proj" for one in ("gate", "up", "down")),
    }


@cpus_only
def test_huggingface_page_loads_places_trains_and_saves(tmp_path, monkeypatch, capsys):
    saved_models(tmp_path)
    scope, printed = together("docs/huggingface.md", tmp_path, monkeypatch, capsys)
    same, difference, generated, smaller, shape, shapes = (
        line for line in printed.splitlines() if re.match(r"[\d\[({TF]", line)
    )
    assert printed.splitlines()[-1] == "QuantizedDense"
    assert type(scope["small"].layers[0].mlp.up) is nn.QuantizedDense
    assert type(scope["small"].head) is nn.Dense
    assert type(scope["closer"].layers[3].mlp.down) is nn.QuantizedDense
    assert (tmp_path / "plain" / "model.safetensors").exists()
    assert same == "[1.]" or float(same) == 1
    assert float(difference.strip("[]")) < 1e-5
    assert generated == "16 True"
    assert smaller == "True"
    assert shape == "(4, 2)"
    assert "'model.qkv.weight': (8, 24)" in shapes
    assert (tmp_path / "tuned" / "config.json").exists()


@cpus_only
def test_generation_page_code_gives_the_same_tokens_each_way(tmp_path, monkeypatch, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    sizes = {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "vocab_size": 32,
    }
    for folder, layers in (("model", 4), ("small", 1)):
        net = gluon.model_zoo.text.from_config({**sizes, "num_hidden_layers": layers})
        net.initialize(mx.init.Normal(0.3))
        net.save_parameters(tmp_path / folder, format="huggingface")
    words = {letter: i for i, letter in enumerate("</abcdefghijklmnopqrstuvwxyz .?\n")}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    own.decoder = tokenizers.decoders.Fuse()
    own.save(str(tmp_path / "model" / "tokenizer.json"))
    config = {
        "eos_token": "<",
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    scope, printed = together("docs/generation.md", tmp_path, monkeypatch, capsys)
    lines = printed.splitlines()
    assert [line for line in lines if line in ("True", "False")] == ["True"] * 3
    assert "2 16" in lines and "16" in lines and "to be or not?" in lines
    assert scope["copied"] == scope["new"] and len(scope["scores"]) == 2
    assert all(isinstance(answer, str) for answer in scope["answers"])


def test_custom_ops_page_code_compiles_and_runs(tmp_path):
    """Runs in a subprocess, because an op of a library cannot be unloaded."""
    with open(os.path.join(ROOT, "docs", "custom-ops.md")) as file:
        (source,) = re.findall(r"^```c\n(.*?)^```$", file.read(), re.M | re.S)
    (tmp_path / "soft_clip.c").write_text(source)
    compiled(tmp_path / "libsoft_clip.so", "-Wall", "-Werror", source=tmp_path / "soft_clip.c")
    (code,) = blocks("docs/custom-ops.md")
    head = (
        f"import os\nos.chdir({str(tmp_path)!r})\n"
        "import mpgluon as mx\nfrom mpgluon import autograd, gluon, nd\n"
        "from mpgluon.gluon import nn\n"
    )
    printed = finished(
        head + code + "\nprint(nd.soft_clip(nd.array([9]), limit=2).asnumpy().round(2))\n"
    )
    assert "limit : number 0.., default 1" in printed.stdout
    assert printed.stdout.splitlines()[-1] == "[2.]"
