"""The examples at a small size."""

import glob
import os
import re

import numpy as np
import pytest

from support.paths import ROOT
from support.processes import ran

EXAMPLES = os.path.join(ROOT, "examples")


def run(script, *arguments, cwd, **settings):
    """Runs an example in `cwd` with the package under test; returns its output."""
    result = ran(os.path.join(EXAMPLES, script), *arguments, cwd=cwd, **settings)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_why(output, name, picture):
    """Checks that the output has the speed relative to one device and its two factors, and that the
    image exists."""
    pattern = rf"^{re.escape(name)}  .* ([\d.]+) = ([\d.]+) x ([\d.]+)$"
    fast, more, less = map(float, re.search(pattern, output, re.M).groups())
    assert more * less == pytest.approx(fast, rel=0.1, abs=0.03)
    assert picture.read_bytes().startswith(b"\x89PNG")


SHARED = ("common.py", "corpus.py", "glyphs.py", "measuring.py")
SCRIPTS = sorted(
    os.path.relpath(path, EXAMPLES)
    for path in glob.glob(os.path.join(EXAMPLES, "*.py"))
    if os.path.basename(path) not in SHARED
)


@pytest.mark.parametrize("script", [*SCRIPTS, os.path.join("cluster", "train.py")])
def test_example_starts_with_its_idea(script):
    """No definition precedes the idea, it is short, and the script has the common options."""
    with open(os.path.join(EXAMPLES, script)) as file:
        text = file.read()
    before, idea, *rest = re.split(r"^# --- (?:The idea.*?)?-*$", text, flags=re.M)
    assert not re.search(r"^(def|class) ", before, re.M)
    section = re.split(r"^# --- |^def main", idea, maxsplit=1, flags=re.M)[0]
    assert 3 <= len([line for line in section.splitlines() if line.strip()]) <= 60
    assert "parser(__doc__, devices=" in text and "ArgumentParser(" not in text
    assert "--steps" not in text.split('"""')[2] and "options.steps" in text


@pytest.mark.parametrize("script", SCRIPTS)
def test_example_is_listed_in_the_readme(script):
    with open(os.path.join(EXAMPLES, "README.md")) as file:
        assert f"({script})" in file.read()


SMALL = [
    "--hidden",
    "24",
    "--vocab",
    "200",
    "--batch",
    "8",
    "--bptt",
    "12",
    "--check-steps",
    "3",
    "--limit",
    "150000",
]


def test_model_parallel_lm_learns_a_simple_text(tmp_path):
    """The text follows a simple rule that the model must learn."""
    pytest.importorskip("matplotlib")
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 400)
    output = run(
        "model_parallel_lm.py",
        *SMALL,
        "--text",
        "text.txt",
        "--steps",
        "1500",
        "--lr",
        "0.01",
        "--out",
        "out",
        cwd=tmp_path,
    )
    assert "vocabulary 11" in output  # eight words, space, line end and unknown
    assert "equal bit for bit: yes" in output
    perplexity, unigram = map(
        float,
        re.search(
            r"validation perplexity ([\d.]+); a unigram model has (\d+\.\d+)", output
        ).groups(),
    )
    assert perplexity < 0.35 * unigram
    single, double = re.search(
        r"validation perplexity ([\d.]+) \(two devices: ([\d.]+)\)", output
    ).groups()
    assert single == double
    assert (
        "cpu(0) forward: ModelParallelLM.embed/Embedding, ModelParallelLM.lstm1/_rnn, copy"
        in output
    )
    assert (tmp_path / "out" / "lm.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "lm.params",
        "lm.png",
        "lm.states",
    ]


@pytest.mark.slow
def test_model_parallel_lm_runs_on_the_standard_library(tmp_path):
    pytest.importorskip("matplotlib")
    output = run("model_parallel_lm.py", *SMALL, "--steps", "8", cwd=tmp_path)
    assert "equal bit for bit: yes" in output and "vocabulary 200" in output


@pytest.mark.slow
def test_model_parallel_lm_rejects_an_invalid_device(tmp_path):
    with pytest.raises(AssertionError, match="'cpu0' is not a device; expected cpu"):
        run("model_parallel_lm.py", *SMALL, "--devices", "cpu0", "cpu1", cwd=tmp_path)


@pytest.mark.slow
def test_split_layers_example_learns_bars(tmp_path):
    """The images contain horizontal or vertical bars at ten positions."""
    rng = np.random.RandomState(0)
    x, y = rng.uniform(0, 0.3, (480, 8, 8)), rng.randint(0, 10, 480)
    for picture, place in zip(x, y):
        if place < 5:
            picture[place + 1] = 1
        else:
            picture[:, place - 4] = 1
    np.savez(tmp_path / "bars.npz", x=x, y=y)
    output = run(
        "split_layers.py",
        "--data",
        "bars.npz",
        "--width",
        "6",
        "--batch",
        "32",
        "--steps",
        "72",
        "--lr",
        "0.005",
        cwd=tmp_path,
    )
    table = r"^\d devices?  +[\d.]+  +(\d\.\d{4})  +(.*)$"
    (accuracy, one), (other, many) = re.findall(table, output, re.M)
    assert min(float(accuracy), float(other)) > 0.9
    assert float(re.search(r"losses of the first ten steps: (\S+)", output)[1]) < 1e-5
    sizes = [float(size) for size in re.findall(r"cpu\(\d\): ([\d.e-]+)", f"{one} {many}")]
    assert len(sizes) == 4 and max(sizes[1:]) < 0.5 * sizes[0]
    check_why(output, "3 devices", tmp_path / "example-output" / "split_layers.png")


@pytest.mark.slow
def test_bucketing_lm_example_learns_sentences(tmp_path):
    """The sentences have four lengths and few variants."""
    lines = [
        "a dog ran",
        "the cat sat on the mat",
        "a bird flew over the dog and the cat",
        "the big dog and the small cat sat on the old log of the yard",
    ]
    (tmp_path / "text.txt").write_text(
        "\n".join(lines[(i * i) % 4 if i % 3 else i % 4] for i in range(2400))
    )
    small = [
        "--hidden",
        "24",
        "--batch",
        "16",
        "--buckets",
        "6",
        "9",
        "12",
        "18",
        "--vocab",
        "50",
        "--steps",
        "260",
        "--lr",
        "0.01",
    ]
    output = run("bucketing_lm.py", *small, "--text", "text.txt", cwd=tmp_path)
    assert "equal bit for bit on one device: yes" in output
    assert float(re.search(r"validation perplexity ([\d.]+)", output)[1]) < 3
    assert re.search(r"cpu\(2\): decode, layer2; .* for [34] buckets", output)
    check_why(output, "3 devices", tmp_path / "example-output" / "bucketing_lm.png")


@pytest.mark.slow
def test_matrix_factorization_example_splits_its_tables(tmp_path):
    small = [
        "--users",
        "300",
        "--items",
        "200",
        "--ratings",
        "20000",
        "--batch",
        "64",
        "--steps",
        "1500",
    ]
    output = run(
        "matrix_factorization.py", *small, "--devices", "cpu(0)", "cpu(1)", "cpu(2)", cwd=tmp_path
    )
    mean = float(re.search(r"the mean has a validation error of ([\d.]+)", output)[1])
    table = {line.split("  ")[0]: line for line in output.split("\nwhy, ")[0].splitlines()}
    assert {"1 device", "split by table", "split by rows"} <= table.keys()
    for name in ("1 device", "split by table", "split by rows"):
        row = re.split(r"  +", table[name])
        assert float(row[2]) < 0.5 * mean and row[3] == "equal bit for bit"
        assert (
            row[4].count("cpu(") == {"1 device": 1, "split by table": 2, "split by rows": 3}[name]
        )
    sizes = [
        float(size)
        for size in re.findall(r": ([\d.]+)", re.split(r"  +", table["split by rows"])[4])
    ]
    assert max(sizes) < 0.012 and "cpu(0): 0.032" in table["1 device"]  # one third of each table
    check_why(output, "split by rows", tmp_path / "example-output" / "matrix_factorization.png")
    with pytest.raises(AssertionError, match="--devices must name at least two devices"):
        run("matrix_factorization.py", *small, "--devices", "cpu(0)", cwd=tmp_path)


PIPELINES = {
    "lstm_pipeline.py": [
        "--hidden",
        "24",
        "--vocab",
        "100",
        "--limit",
        "100000",
        "--steps",
        "5",
        "--length",
        "17",
        "--pieces",
        "4",
    ],
    "gpt_pipeline.py": [
        "--units",
        "16",
        "--vocab",
        "100",
        "--layers",
        "4",
        "--limit",
        "100000",
        "--steps",
        "5",
        "--length",
        "16",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("script", PIPELINES)
def test_pipelined_language_models_have_the_losses_of_one_device(script, tmp_path):
    pytest.importorskip("matplotlib")
    output = run(script, *PIPELINES[script], "--out", "out", cwd=tmp_path)
    rows = {
        "lstm_pipeline.py": ["1 device, same pieces"],
        "gpt_pipeline.py": ["2 devices, 1f1b", "2 devices, zero_bubble"],
    }[script]
    for row in rows:
        assert re.search(rf"^{row} .*equal bit for bit", output, re.M), output
    losses = re.findall(r"^[12] devices?.*?  +[\d.]+ .*?(\d\.\d{4})  ", output, re.M)
    assert len(losses) >= 3 and len(set(losses)) == 1, output
    assert "bubble" in output
    name = {"lstm_pipeline.py": "2 devices, pipelined"}.get(script, "2 devices, 1f1b")
    check_why(output, name, tmp_path / "out" / script.replace(".py", ".png"))


def test_llama_example_learns_saves_and_tunes_its_own_model(tmp_path):
    """Trains all weights of the random model, then adapters of the saved one, on a text of one
    sentence, which it then continues."""
    pytest.importorskip("matplotlib")
    sentence = "the cat sat on the mat and the dog sat on the log. "
    (tmp_path / "text.txt").write_text(sentence * 200)
    small = ["--text", "text.txt", "--length", "32", "--tokens", "60", "--temperature", "0"]
    prompt = ["--prompt", "the cat sat"]
    output = run(
        "llama.py",
        *small,
        *prompt,
        "--steps",
        "60",
        "--out",
        "first",
        "--save",
        "--check",
        cwd=tmp_path,
    )
    assert "771,200 numbers are trained" in output
    assert "the same tokens on cpu(0) alone: yes" in output
    assert float(re.search(r"([\d.]+) at the last", output)[1]) < 1
    assert re.search(r"^training: [\d,]+ tokens/s$", output, re.M)
    assert re.search(r"^generating: [\d,]+ tokens/s$", output, re.M)
    for row in ("loading", "training", "generating"):
        sizes = re.search(rf"^MB, {row} +([\d.]+) +([\d.]+)$", output, re.M).groups()
        assert all(1 < float(size) < 100 for size in sizes)
    assert "the cat sat on the mat and the dog sat" in output
    assert (tmp_path / "first" / "llama.png").read_bytes().startswith(b"\x89PNG")

    tuned = ["--model", "first/llama", "--memory", "0.002", "0.001", "0.002"]
    devices = ["--devices", "cpu(0)", "cpu(1)", "cpu(2)"]
    output = run("llama.py", *small, *prompt, *tuned, *devices, "--steps", "2", cwd=tmp_path)
    assert re.search(r"cpu\(1\): layers.\d \(", output)
    assert "149,504 numbers are trained" in output
    assert "the cat sat on the mat" in output

    packed = [*tuned[:2], "--quantize", "int4", "--check"]
    output = run("llama.py", *small, *prompt, *packed, "--steps", "2", cwd=tmp_path)
    assert "149,504 numbers are trained" in output
    assert "the cat sat on" in output and "alone: yes" in output
    sizes = re.search(r"^MB, loading +([\d.]+) +([\d.]+)$", output, re.M).groups()
    assert all(0 < float(size) < 0.8 for size in sizes)


def test_llama_example_only_generates_without_a_text(tmp_path):
    run("llama.py", "--steps", "0", "--tokens", "3", "--save", cwd=tmp_path)
    model = ["--model", "example-output/llama"]
    output = run("llama.py", *model, "--tokens", "3", cwd=tmp_path)
    assert "training" not in output and "generating: " in output
    with pytest.raises(AssertionError, match="--memory needs a number for each"):
        run("llama.py", *model, "--memory", "1", cwd=tmp_path)
    with pytest.raises(AssertionError, match="no division into consecutive layers fits"):
        run("llama.py", *model, "--memory", "0.001", "0.001", cwd=tmp_path)


@pytest.mark.slow
def test_image_pipeline_losses_match_without_batch_norm(tmp_path):
    """Without BatchNorm the pipeline has the losses of the whole batch, with BatchNorm those of the
    micro-batches."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("PIL")
    small = [
        "--train",
        "200",
        "--valid",
        "100",
        "--channels",
        "4",
        "--steps",
        "4",
        "--batch",
        "16",
        "--micro-batches",
        "4",
    ]
    output = run("image_pipeline.py", *small, cwd=tmp_path)
    rows = [
        re.split(r"  +", line)
        for line in output.splitlines()
        if line.startswith("pipelined, 2 devices") and "%" in line
    ]
    assert [row[0] for row in rows] == ["pipelined, 2 devices", "pipelined, 2 devices, BatchNorm"]
    assert all(row[5] == "equal bit for bit" for row in rows)
    first, norm = (row[4].split(", ")[0] for row in rows)
    assert first == "equal bit for bit" or float(first) < 1e-5
    assert float(norm) > 1e-4
    check_why(output, "pipelined, 2 devices", tmp_path / "example-output" / "image_pipeline.png")


@pytest.mark.slow
def test_three_devices_example_runs(tmp_path):
    output = run(
        "three_devices.py",
        "--limit",
        "100000",
        "--vocab",
        "100",
        "--units",
        "32",
        "--steps",
        "5",
        cwd=tmp_path,
    )
    rows = re.findall(r"^\d devices?(?:, pipelined)?  .* equal bit for bit .*$", output, re.M)
    assert len(rows) == 6 and rows[2].count("cpu(") == 3
    picture = tmp_path / "example-output" / "three_devices.png"
    check_why(output, "3 devices, pipelined", picture)


@pytest.mark.slow
def test_inception_branches_example_overlaps_branches(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("PIL")
    output = run(
        "inception_branches.py",
        "--train",
        "100",
        "--valid",
        "50",
        "--width",
        "8",
        "--steps",
        "4",
        "--devices",
        "cpu(0)",
        "cpu(1)",
        "cpu(2)",
        cwd=tmp_path,
    )
    assert re.search(r"^1 device: two or more at work in 0% of the time$", output, re.M)
    assert re.search(r"^3 devices .* equal bit for bit$", output, re.M)
    assert re.search(r"^3 devices .*cpu\(0\): .*cpu\(1\): .*cpu\(2\): ", output, re.M)
    assert (tmp_path / "example-output" / "inception_branches.json").stat().st_size
    check_why(output, "3 devices", tmp_path / "example-output" / "inception_branches.png")


@pytest.mark.slow
def test_encoder_decoder_example_learns_to_write(tmp_path):
    """Uses few syllables, which the model must learn to write."""
    small = [
        "--syllables",
        "30",
        "--length",
        "2",
        "--units",
        "32",
        "--steps",
        "300",
        "--batch",
        "32",
        "--lr",
        "0.01",
    ]
    output = run("encoder_decoder.py", *small, cwd=tmp_path)
    assert re.search(r"^1 device .* equal bit for bit +equal bit for bit ", output, re.M)
    assert float(re.search(r"right in new texts: ([\d.]+)%", output)[1]) > 60
    check_why(output, "3 devices", tmp_path / "example-output" / "encoder_decoder.png")
    with pytest.raises(AssertionError, match="--devices: expected 3 arguments"):
        run("encoder_decoder.py", *small, "--devices", "cpu(0)", cwd=tmp_path)


@pytest.mark.slow
def test_data_model_parallel_example_matches_one_device(tmp_path):
    output = run("data_model_parallel.py", "--steps", "160", cwd=tmp_path)
    rows = re.findall(r"^(\S.*?)  +[\d.]+  +\d\.\d{4}  +([\d.]+)$", output, re.M)
    single, mesh, moved = (float(accuracy) for _, accuracy in rows)
    assert single > 0.9 and abs(mesh - single) < 0.03 and abs(moved - single) < 0.03
    assert re.search(r"^cpu\(3\): net_layernorm\d_gamma \.\.\. net_dense\d_bias$", output, re.M)
    assert rows[2][0] == "from step 80 on 4 stages"
    check_why(output, rows[1][0], tmp_path / "example-output" / "data_model_parallel.png")


@pytest.mark.slow
def test_table_of_splits_example_prints_its_table(tmp_path):
    output = run(
        "table_of_splits.py",
        "--width",
        "32",
        "--layers",
        "3",
        "--batch",
        "32",
        "--steps",
        "1",
        cwd=tmp_path,
    )
    rows = re.findall(r"^\d  +[\d.]+  +[\d.]+  +[\d,]+  +[\d,]+", output, re.M)
    assert len(rows) == 4 and "predicted beside measured" in output
    check_why(output, "the choice", tmp_path / "example-output" / "table_of_splits.png")
