"""The benchmark driver and models, on which the published measurements depend."""

import json
import os

import numpy as np
import pytest

import mpgluon as mx
from support.paths import ROOT
from support.processes import ran

BENCHMARKS = os.path.join(ROOT, "benchmarks")
if not os.path.isdir(BENCHMARKS):
    pytest.skip("the benchmarks are not here", allow_module_level=True)


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_operation_counts_match_published_numbers():
    import sizes

    # the published 1.81 G multiplications
    assert sum(sizes.resnet18_forward(1)) == pytest.approx(2 * 1.814e9, rel=1e-3)
    words = sizes.LSTM_TIME * sizes.LSTM_BATCH
    assert sizes.lstm_lm() == 3 * 2 * words * (2 * 8 * 650 * 650 + 650 * 10000)
    assert sizes.mlp_training() == 2 * 128 * (2 * 784 * 512 + 3 * 512 * 512 + 3 * 512 * 10)


def test_gpu_operation_counts_match_published_numbers(monkeypatch):
    monkeypatch.delenv("GPU_CHECK_TINY", raising=False)
    from on_gpu import sizes as gpu_sizes

    assert not gpu_sizes.TINY
    # the published 4.09 G multiplications of a forward pass
    assert gpu_sizes.resnet_training() / 256 / 3 == pytest.approx(2 * 4.09e9, rel=0.02)
    weights = 12 * 12 * 768 * 768 + 768 * 50304
    assert (
        gpu_sizes.gpt_training()
        == 6 * 32 * 1024 * weights + 3 * 12 * 32 * 2 * 2 * (1024 * 1025 // 2) * 768
    )


def parameters(net):
    return sum(int(np.prod(p.shape)) for p in net.collect_params().values() if p.grad_req != "null")


def test_models_are_the_same_in_both_libraries():
    torch = pytest.importorskip("torch")
    import models_torch
    import networks
    import sizes
    from models_gluon import make_models

    ours = make_models(mx)

    def weights(net):
        return sum(p.numel() for p in net.parameters())

    assert parameters(ours["mlp"]()) == weights(models_torch.mlp())
    assert parameters(ours["resnet18"]()) == weights(models_torch.resnet18())
    assert parameters(ours["LanguageModel"](50, 16, 2)) == weights(
        models_torch.LanguageModel(50, 16, 2)
    )
    # The published number of parameters
    assert (
        parameters(networks.resnet()[0])
        == weights(models_torch.resnet_bottleneck((3, 4, 6, 3), 64, 1000))
        == 25557032
    )
    gluon, peer = ours["GPT"](50, 32, 4, 2, 12), models_torch.GPT(50, 32, 4, 2, 12)
    assert parameters(gluon) == weights(peer)
    gluon.initialize(mx.init.Normal(0.3))
    # Both create their layers in the same order: norm1 of a PyTorch layer precedes its products, as
    # here.
    theirs = list(peer.parameters())
    for mine, other in zip(gluon.collect_params().values(), theirs):
        assert mine.shape == tuple(other.shape)
        with torch.no_grad():
            other.copy_(torch.from_numpy(mine.data().asnumpy()))
    words = np.random.RandomState(1).randint(0, 50, (3, 12))
    got = gluon(mx.nd.array(words)).asnumpy()
    gluon.hybridize()
    compiled = gluon(mx.nd.array(words)).asnumpy()
    want = peer(torch.from_numpy(words)).detach().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(compiled, want, rtol=1e-4, atol=1e-4)
    assert sizes.GPT_UNITS % sizes.GPT_HEADS == 0


@pytest.mark.slow
def test_bench_writes_times_and_memory(tmp_path):
    file = tmp_path / "figures.json"
    bench = os.path.join(BENCHMARKS, "bench.py")
    options = "--rounds 1 --seconds 0 --threads 1 --json".split() + [str(file)]
    done = ran(bench, *options, "--cases", "add,mlp")
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    assert figures["cases"]["add"]["1"]["seconds"]["mpgluon"] > 0
    assert figures["cases"]["mlp"]["1"]["peak"]["mpgluon"] > 0
    memory = figures["memory"]["mlp"]["mpgluon"]
    assert memory["peak"] >= memory["imported"] and memory["pools"] > 4 * 784 * 512
    assert "| MLP, training |" in done.stdout and "% |" in done.stdout
    assert "mlp 1/1" in done.stderr

    again = ran(bench, *options, "--add", "--measure", "speed", "--cases", "exp")
    assert again.returncode == 0, again.stderr
    assert set(json.loads(file.read_text())["cases"]) == {"add", "mlp", "exp"}


def test_bench_rejects_unknown_cases():
    done = ran(os.path.join(BENCHMARKS, "bench.py"), "--cases", "nothing")
    assert (
        done.returncode == 2 and "unknown case nothing" in done.stderr and "resnet18" in done.stderr
    )


def test_ratios_compare_with_the_faster_library():
    from report import tables

    row = {
        "seconds": {"mpgluon": 0.010, "PyTorch": 0.015, "MXNet": 0.012},
        "peak": {"mpgluon": 0.1, "PyTorch": 0.2},
    }
    figures = {
        "libraries": {"mpgluon": "1", "PyTorch": "2", "MXNet": "3"},
        "cases": {"mlp": {"2": row}},
        "memory": {},
    }
    text = "\n".join(tables(figures))
    assert "1.20x" in text and "172 GFLOP/s" in text
    import sizes

    assert f"{sizes.mlp_training() / 0.010 / (2 * 2048**3 / 0.1):.0%}" in text


@pytest.mark.slow
def test_single_op_benchmark_writes_times(tmp_path):
    file = tmp_path / "ops.json"
    pytest.importorskip("torch")
    options = "--rounds 1 --seconds 0 --threads 1".split() + ["--json", str(file)]
    only = ["--only", "move: flip", "clip, 100000x3"]
    done = ran(os.path.join(BENCHMARKS, "ops.py"), *options, *only)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(file.read_text())) == {
        "move: flip, 1000x1000",
        "elementwise: clip, 100000x3",
    }
    assert "| elementwise: clip, 100000x3 |" in done.stdout and "2 cases" in done.stdout


@pytest.mark.slow
def test_single_ops_compute_the_same_in_both_libraries():
    torch = pytest.importorskip("torch")
    from single_ops import in_mpgluon, in_pytorch
    from single_ops.case import draw
    from single_ops.cases import CASES

    tolerances = {"float64": 1e-9, "float16": 2e-2, "bfloat16": 5e-2}
    with torch.no_grad():
        for case in CASES:
            if "'always'" in case.ours:  # random
                continue
            dtypes, arrays = {name: dtype for name, _, dtype in case.inputs}, draw(case)
            ours = eval(
                case.ours,
                {
                    "F": mx.nd,
                    "step": in_mpgluon.step,
                    **{k: mx.nd.array(v, dtype=dtypes[k]) for k, v in arrays.items()},
                },
            )
            peers = {
                k: torch.from_numpy(v).to(getattr(torch, dtypes[k])) for k, v in arrays.items()
            }
            theirs = eval(
                case.theirs,
                {"F": torch.nn.functional, "torch": torch, "step": in_pytorch.step, **peers},
            )
            if isinstance(theirs, list):
                ours, theirs = mx.nd.concat(*ours, dim=0), torch.cat(theirs)
            theirs = theirs.double().numpy()
            tolerance = max(tolerances.get(dtype, 2e-5) for dtype in dtypes.values())
            got = ours.astype("float64").asnumpy()
            slack = (
                tolerance
                * max(1, np.abs(theirs[np.isfinite(theirs)]).max())
                * (10 if "cumsum" in case.name or case.name == "common 4096x1024: norm" else 1)
            )
            np.testing.assert_allclose(
                got.reshape(theirs.shape),
                theirs,
                rtol=tolerance,
                atol=slack,
                equal_nan=True,
                err_msg=case.name,
            )
