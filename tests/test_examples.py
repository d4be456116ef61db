"""The examples, in small form."""

import os
import re
import subprocess
import sys

import pytest

EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples")


def run(script, *arguments, cwd, **environment):
    """Runs an example in `cwd`; its output. The package is the one that the tests use."""
    import mpgluon

    path = os.path.dirname(os.path.dirname(os.path.abspath(mpgluon.__file__)))
    env = dict(os.environ, PYTHONPATH=path, **environment)
    result = subprocess.run(
        [sys.executable, os.path.join(EXAMPLES, script), *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=280
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


SMALL = ["--hidden", "24", "--vocab", "200", "--batch", "8", "--bptt", "12", "--check-steps", "3", "--limit", "150000"]


def test_model_parallel_lm(tmp_path):
    """On a text with a simple rule, which it must learn."""
    pytest.importorskip("matplotlib")
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 400)
    output = run("model_parallel_lm.py", *SMALL, "--text", "text.txt", "--steps", "1500", "--lr", "0.01", "--out", "out", cwd=tmp_path)
    assert "vocabulary 11" in output  # eight words, the space, the line end, and the unknown
    assert "equal bit for bit: yes" in output
    perplexity, unigram = map(float, re.search(r"validation perplexity ([\d.]+); a unigram model has (\d+\.\d+)", output).groups())
    assert perplexity < 0.35 * unigram
    single, double = re.search(r"validation perplexity ([\d.]+) \(two devices: ([\d.]+)\)", output).groups()
    assert single == double
    assert "cpu(0) forward: ModelParallelLM.embed/Embedding, ModelParallelLM.lstm1/_rnn, copy" in output
    assert (tmp_path / "out" / "lm.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["lm.params", "lm.png", "lm.states"]


def test_model_parallel_lm_on_the_standard_library(tmp_path):
    pytest.importorskip("matplotlib")
    output = run("model_parallel_lm.py", *SMALL, "--steps", "8", cwd=tmp_path)
    assert "equal bit for bit: yes" in output and "vocabulary 200" in output


def test_model_parallel_lm_names_a_wrong_device(tmp_path):
    with pytest.raises(AssertionError, match="--devices takes two names"):
        run("model_parallel_lm.py", *SMALL, "--devices", "cpu0", "cpu1", cwd=tmp_path)


def test_bucketing_lm(tmp_path):
    """Sentences of four lengths, each made of few."""
    lines = ["a dog ran", "the cat sat on the mat", "a bird flew over the dog and the cat", "the big dog and the small cat sat on the old log of the yard"]
    (tmp_path / "text.txt").write_text("\n".join(lines[(i * i) % 4 if i % 3 else i % 4] for i in range(2400)))
    small = ["--hidden", "24", "--batch", "16", "--buckets", "6", "9", "12", "18", "--vocab", "50", "--epochs", "2", "--lr", "0.01"]
    output = run("bucketing_lm.py", *small, "--text", "text.txt", "--check", cwd=tmp_path)
    assert "equal bit for bit on one device: yes" in output
    assert float(re.search(r"validation perplexity ([\d.]+)", output)[1]) < 3
    assert re.search(r"cpu\(2\): decode, layer2; .* for [34] buckets", output)
    with pytest.raises(AssertionError, match="'cpu0' is no device"):
        run("bucketing_lm.py", *small, "--devices", "cpu0", cwd=tmp_path)


def test_matrix_factorization(tmp_path):
    output = run("matrix_factorization.py", "--users", "300", "--items", "200", "--ratings", "20000", "--batch", "64", "--epochs", "6", cwd=tmp_path)
    error, mean = map(float, re.search(r"validation error ([\d.]+); the mean has ([\d.]+)", output).groups())
    assert error < 0.5 * mean
    assert "user_table_weight (300, 16) on cpu(0)" in output and "user_hidden_weight (32, 16) on cpu(1)" in output
