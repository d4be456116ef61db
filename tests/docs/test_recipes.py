"""Each recipe of docs/recipes.md runs on its own after the page's setup, and does its task."""

import gc
import os
import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.devices import cpus_only
from support.paths import ROOT

PAGE = os.path.join(ROOT, "docs", "recipes.md")
if not os.path.isfile(PAGE):
    pytest.skip("the docs are not here", allow_module_level=True)


def code_of(text):
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))


with open(PAGE, encoding="utf-8") as page:
    HEAD, *SECTIONS = re.split(r"^## ", page.read(), flags=re.M)
RECIPES = {section.splitlines()[0]: code_of(section) for section in SECTIONS}


def frozen(scope, printed):
    assert "[0.]" in printed
    assert [p.grad_req for p in scope["net"].collect_params().values()] == ["null"] * 2 + [
        "write"
    ] * 2


def replaced(scope, printed):
    assert "[0.]" in printed
    assert scope["net"](scope["data"]).shape == (256, 5)


def tied(scope, printed):
    assert printed.splitlines()[-1] == "True"
    net = scope["net"]
    assert len(net.collect_params()) == 4 and net.embed.weight.list_ctx() == [mx.cpu(0)]


def packed(scope, printed):
    assert re.search(r"# (PackedTokens.*)", RECIPES["Train on packed documents"])[1] in printed
    assert np.isfinite(scope["losses"].asnumpy()).all()
    assert scope["scores"].shape == (1, 16, 100)


def of_many_classes(scope, printed):
    assert scope["losses"].shape == (8,) and np.isfinite(scope["losses"].asnumpy()).all()
    assert scope["net"](scope["tokens"]).shape == (8, 17, 100)


def owned(scope, printed):
    net, data = scope["net"], scope["data"].asnumpy()
    assert net.offset.grad_req == "null" and "gain" in printed
    np.testing.assert_allclose(net(scope["data"]).asnumpy(), data + np.arange(8), rtol=1e-5)


def warmed_up(scope, printed):
    rates = [float(line.split()[1]) for line in re.findall(r"^\d+ .*$", printed, re.M)]
    assert rates[0] == 0.01 and rates[-1] == pytest.approx(0.0001)
    assert rates == sorted(rates, reverse=True) and scope["schedule"](1) < 0.01


def decayed(scope, printed):
    assert printed.splitlines()[-1] == "[0.0, 0.0]"
    groups = scope["trainer"].param_groups
    assert [[len(p.shape) for p in group["params"]] for group in groups] == [[2, 2], [1, 1]]
    assert [group["weight_decay"] for group in groups] == [0.1, 0]


def orthogonalized(scope, printed):
    kinds = [type(scope["trainer"].optimizer.of(i)).__name__ for i in range(4)]
    assert sorted(kinds) == ["AdamW"] * 3 + ["Muon"]
    loss = scope["loss"](scope["net"](scope["data"]), scope["labels"].as_in_context(mx.cpu(1)))
    assert loss.mean().item() < 0.5


def clipped(scope, printed):
    grads = [p.grad().asnumpy() for p in scope["net"].collect_params().values()]
    norm = np.sqrt(sum((grad**2).sum() for grad in grads)) / len(scope["data"])
    assert norm == pytest.approx(0.5, rel=1e-4)  # 0.63 without clipping


def mixed(scope, printed):
    assert np.isfinite(scope["losses"].asnumpy()).all()
    assert scope["net"][0].weight.grad().dtype == np.float32
    assert nd.dot(nd.ones((1, 1)), nd.ones((1, 1))).dtype == np.float32  # turned off


def validated(scope, printed):
    accuracy, cross_entropy = scope["validate"](scope["net"], scope["batches"])
    assert 0 <= accuracy <= 1 and np.isfinite(cross_entropy)


def stopped(scope, printed):
    assert scope["epoch"] < 99 and scope["waited"] == 3
    losses = scope["loss"](scope["net"](scope["data"]), scope["labels"].as_in_context(mx.cpu(1)))
    assert losses.mean().item() == pytest.approx(scope["best"], rel=1e-5)


def driven(scope, printed):
    assert scope["trainer"].optimizer.num_update == 10 and "validation accuracy" in printed
    assert "checkpoints" in os.listdir() and scope["step"].pipeline.report().micro_batches == 4


def alternated(scope, printed):
    assert "[0.]" not in printed and scope["out"].shape == (256, 3)


def written(scope, printed):
    assert os.listdir("logs")


def exported(scope, printed):
    assert "[0.]" in printed and scope["served"](scope["data"]).context == mx.cpu(0)


def leaked(scope, printed):
    in_use = [bytes_of_second for _, bytes_of_second in scope["in_use"]]
    assert in_use == sorted(set(in_use))


def compared(scope, printed):
    rows = re.findall(r"^(\w+): .* ms, idle \d+%, (\d+) bytes$", printed, re.M)
    held = {name: int(peak) for name, peak in rows}
    assert list(held) == ["gpipe", "1f1b", "zero_bubble"] and held["1f1b"] < held["gpipe"]


CHECKS = {
    "Freeze layers": frozen,
    "Replace the head": replaced,
    "Tie weights": tied,
    "Train on packed documents": packed,
    "Train with many classes": of_many_classes,
    "Own a parameter": owned,
    "Warm up the learning rate": warmed_up,
    "Exclude norms and biases from weight decay": decayed,
    "Train hidden matrices with Muon": orthogonalized,
    "Clip gradients": clipped,
    "Mixed precision": mixed,
    "Validate": validated,
    "Stop early": stopped,
    "Use an Estimator": driven,
    "Run Python in a pipeline": alternated,
    "TensorBoard": written,
    "Export": exported,
    "Find a memory leak": leaked,
    "Choose a schedule": compared,
}


@cpus_only
@pytest.mark.parametrize("title", RECIPES)
def test_recipe_does_its_task(title, tmp_path, monkeypatch, capsys):
    if title == "TensorBoard":
        try:
            mx.contrib.tensorboard.SummaryWriter(str(tmp_path))
        except ImportError as error:
            pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    gc.collect()
    mx.random.seed(3)
    scope = {}
    try:
        exec(compile(code_of(HEAD), f"{PAGE}, setup", "exec"), scope)
        exec(compile(RECIPES[title], f"{PAGE}, {title}", "exec"), scope)
        nd.waitall()
    finally:
        mx.contrib.amp.turn_off()
    CHECKS[title](scope, capsys.readouterr().out)


def test_every_recipe_is_checked_and_short():
    """At most 20 lines of code, in the width of the site's code blocks."""
    assert list(RECIPES) == list(CHECKS)
    for code in [code_of(HEAD), *RECIPES.values()]:
        lines = code.splitlines()
        assert len([line for line in lines if line]) <= 20
        assert max(map(len, lines)) <= 88
