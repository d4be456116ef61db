"""The pages of docs/parallel: the code of each runs from top to bottom, as pasted by a reader, and
has the results that the page describes."""

import os
import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.parallel import schedules
from support.devices import cpus_only
from support.paths import ROOT

FOLDER = os.path.join(ROOT, "docs", "parallel")
if not os.path.isdir(FOLDER):
    pytest.skip("the docs are not here", allow_module_level=True)

PAGES = {}
for file_name in sorted(os.listdir(FOLDER)):
    with open(os.path.join(FOLDER, file_name), encoding="utf-8") as page:
        PAGES[file_name.removesuffix(".md")] = page.read()


def blocks(text, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def devices_of(net):
    return [parameter.list_ctx() for parameter in net.collect_params().values()]


def chosen(scope, printed):
    advice = re.findall(r"-> Layout\((.*?): .*? device, (\w+ ?\w*)", printed)
    assert advice == [
        ("one device", "fits"),
        ("one device", "fits with"),
        ("shard 7:3", "fits with"),
        ("shard 4", "fits"),
        ("stage 4", "lacks 13"),
    ]


def compared_by_memory(scope, printed):
    (wanted,) = blocks(PAGES["layouts"], "text")
    names = [re.sub(r" +[\d.]+ [KMG]?B.*", "", line) for line in wanted.splitlines()]
    found = printed.splitlines()
    assert [re.sub(r" +[\d.]+ [KMG]?B.*", "", line) for line in found[: len(names)]] == names
    assert found[0] == wanted.splitlines()[0] and scope["best"].fits
    assert "'shard 4:1'" in found[-1]


def compared(scope, printed):
    assert printed == "True\n"
    assert scope["losses"]([1])[0] > scope["losses"]([1])[-1]


def placed(scope, printed):
    (wanted,) = blocks(PAGES["place"], "text")
    wanted, found = [re.sub(r"hybridsequential\d+", "net", text) for text in (wanted, printed)]
    assert found.startswith(wanted)
    assert "[cpu(0)]" in printed and printed.splitlines()[-1] == "0.0"
    assert scope["losses"].context == mx.cpu(1)


def pipelined(scope, printed):
    assert "(128,)" in printed and "2 stages, 8 micro-batches by 1f1b" in printed
    assert os.path.getsize("timeline.png") and scope["losses"].shape == (128,)


def scheduled(scope, printed):
    rows = re.findall(r"^(\w+): [\d.]+ ms, idle \d+%$", printed, re.M)
    assert rows == ["gpipe", "1f1b", "zero_bubble", "1f1b", "interleaved"]
    assert "4 stages, 8 micro-batches by " in printed


def split(scope, printed):
    kinds = [type(child).__name__ for child in scope["net"]]
    assert kinds == ["ColumnParallelDense", "RowParallelDense"]
    assert "_shard1_weight (512, 256) [cpu(1)]" in printed
    difference = scope["block"](scope["tokens"]) - scope["before"]
    assert 0 <= difference.abs().max().item() < 1e-5
    assert type(scope["block"][0]).__name__ == "ParallelHeads"


def replicated(scope, printed):
    assert printed.splitlines() == ["[cpu(0), cpu(1)]", "(64,)"]
    assert all(np.isfinite(loss.asnumpy()).all() for loss in scope["losses"])
    means = scope["net"][1].running_mean.list_data()
    assert (means[0].asnumpy() == means[1].asnumpy()).all()


def partitioned(scope, printed):
    assert "because of" in printed and "reduce  FullyConnected" in printed
    assert scope["staged"][1].shard1_weight.list_ctx() == [mx.cpu(3)]


def stored_in_parts(scope, printed):
    shape, first, second, names = printed.splitlines()
    assert shape == "(128, 256)" and first.startswith("cpu(0)") and second.startswith("cpu(1)")
    assert names.count("shard") == 2 and scope["net"][6].shard1_weight.list_ctx() == [mx.cpu(1)]
    assert scope["net"][7].weight.list_ctx() == [mx.cpu(0)]


def the_same_on_all(scope, printed):
    results = re.findall(r"(\d): (\S+?)[,}]", printed)
    assert [count for count, _ in results] == ["1", "2", "3", "4"]
    assert len({value for _, value in results}) == 1


def cut_along_time(scope, printed):
    kinds = [" ".join(line.split()[:2]) for line in printed.splitlines()]
    assert kinds == ["gather _contrib_rotary", "gather Reshape"] * 2 + [kinds[-1]]
    assert kinds[-1].startswith("gather") and "512" in printed.splitlines()[-1]
    assert np.isfinite(scope["loss"].asnumpy()).all()


def divided_by_expert(scope, printed):
    moved = [line.split() for line in printed.splitlines()]
    assert "reduce_scatter" in [line[0] for line in moved if line[1:2] == ["_contrib_combine"]]
    gate = scope["net"][1].shard3_gate_weight
    assert gate.shape == (2, 224, 64) and gate.list_ctx() == [mx.cpu(3)]


def meshed(scope, printed):
    assert "cpu(5)" in printed and "_shard1_weight [cpu(1), cpu(5)]" in printed
    assert [loss.context for loss in scope["losses"]] == [mx.cpu(2), mx.cpu(6)]
    assert "ColumnParallelDense" in printed


def planned(scope, printed):
    assert "predicted" in printed and "measured" in printed and "512 x 2" in printed
    assert scope["plan"].micro_batches and "8 micro-batches, gpipe" in printed


def resumed(scope, printed):
    assert scope["found"]["position"] == {"epoch": 3, "batch": 120}
    assert (scope["losses"].asnumpy() == scope["other_losses"].asnumpy()).all()
    assert scope["saving"].done() and os.path.getsize("trainer.states")


def saved(scope, printed):
    assert scope["recomputed"] < scope["one_f_one_b"] < scope["gpipe"] < scope["whole"]
    assert scope["every"] - scope["once"] >= 257 * 1024 * 4  # a state of Adam


def offloaded(scope, printed):
    *used, where, near, far = printed.splitlines()
    assert near.startswith("cpu(0) ") and int(near.split()[1]) < int(far.split()[1]) / 3
    used = {ctx: int(count) for ctx, count in map(str.split, used)}
    assert set(used) == {"cpu(0)", "cpu(1)"} and used["cpu(1)"] >= 16 * 8 * 257 * 256
    assert where == "[cpu(1)]"
    states = [state for updater in scope["trainer"]._updaters for state in updater.states.values()]
    assert {array.context for state in states for array in state if array.size > 1024} == {
        mx.cpu(1)
    }


def stored_in_files(scope, printed):
    device, used, shown = printed.split(maxsplit=2)
    assert device == str(mx.context.file_device(scope["directory"]))
    assert int(used) >= 16 * 8 * 256 * 256
    assert f"states on {device} (files in {scope['directory']!r})" in shown


def timed(scope, printed):
    assert "idle ms" in printed and "Total ms" in printed and "copies out" in printed
    for path in ("timeline.png", "trace.json", "profile.json"):
        assert os.path.getsize(path)


def debugged(scope, printed):
    assert (
        "label.as_in_context(mx.cpu(1))" in printed and "Bytes of parameters on cpu(1)" in printed
    )
    assert "not finite" not in printed and scope["losses"].context == mx.cpu(1)


def summed(scope, printed):
    assert printed == "[[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]\n"


CHECKS = {
    "choose": chosen,
    "place": placed,
    "pipeline": pipelined,
    "schedule": scheduled,
    "tensor-parallel": split,
    "replicas": replicated,
    "mesh": meshed,
    "partition": partitioned,
    "fsdp": stored_in_parts,
    "tree-sums": the_same_on_all,
    "context": cut_along_time,
    "experts": divided_by_expert,
    "layouts": compared_by_memory,
    "planner": planned,
    "checkpoints": resumed,
    "memory": saved,
    "offload": offloaded,
    "files": stored_in_files,
    "timeline": timed,
    "debug": debugged,
    "comparison": compared,
    "reference": summed,
}


@cpus_only
@pytest.mark.parametrize("name", CHECKS)
def test_page_code_runs_and_does_what_it_says(name, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    mx.random.seed(3)
    scope = {}
    try:
        for number, code in enumerate(blocks(PAGES[name])):
            exec(compile(code, f"docs/parallel/{name}.md, block {number}", "exec"), scope)
        nd.waitall()
        CHECKS[name](scope, capsys.readouterr().out)
    finally:
        mx.engine.set_mode("async")
        mx.context.set_memory_limit(mx.cpu(0), 0)


def test_every_page_is_checked_and_in_the_index():
    """tests/ranks/test_ranks_page.py runs the page on ranks."""
    assert set(CHECKS) | {"ranks"} == set(PAGES)
    with open(os.path.join(ROOT, "docs", "parallel.md"), encoding="utf-8") as file:
        index = file.read()
    listed = index.partition("{toctree}")[2].split("```")[0].split()[3:]
    wanted = [*CHECKS]
    wanted.insert(wanted.index("planner") + 1, "ranks")
    assert listed == [f"parallel/{name}" for name in wanted]
    for name in PAGES:
        assert f"](parallel/{name}.md" in index


@pytest.mark.parametrize("name", PAGES)
def test_page_is_short(name):
    text = PAGES[name]
    assert name == "reference" or text.count("\n") <= 130
    assert not [
        item for item in re.findall(r"^- .*(?:\n  .*)*", text, re.M) if item.count("\n") > 2
    ]
    lines = [line for code in blocks(text) for line in code.splitlines()]
    assert lines and max(map(len, lines)) <= 80
    assert not re.search(r"^    \S", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)


def test_table_of_schedules_matches_the_simulation():
    """Idle time and the micro-batches that the first device holds."""
    for name, deferred, rounds in (
        ("1f1b", False, 1),
        ("gpipe", False, 1),
        ("interleaved", False, 2),
        ("zero_bubble", True, 1),
    ):
        count = 4 * rounds
        before = [[]] + [[stage] for stage in range(count - 1)]
        stages = schedules.StageGraph([*range(4)] * rounds, before, deferred=deferred)
        table = schedules.make_table(stages, 8, name)
        costs = {"F": 1 / rounds, "B": (1 if deferred else 2) / rounds, "W": 1 / rounds}
        times = {(kind, stage): costs[kind] for kind in "FBW" for stage in range(count)}
        idle = schedules.simulate(table, stages, 8, times).bubble
        held = most = 0
        for action in table[0]:
            held += {"F": 1, "B": -1, "W": 0}[action.kind]
            most = max(most, held)
        row = next(
            line for line in PAGES["schedule"].splitlines() if line.startswith(f'| `"{name}')
        )
        assert f"| {idle:.0%}" in row and f"| {most} " in row
