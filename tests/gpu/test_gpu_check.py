"""`make gpu-check`, tried on the stand-in: what it writes, and that what fails keeps nothing else
from running."""

import json
import os
import signal
import subprocess
import sys

import pytest

from support.paths import TESTS
from support.stand_in import STAND_IN, needs_stand_in

pytest.importorskip("torch", reason="what is checked is held against PyTorch")
pytestmark = needs_stand_in
PROGRAM = os.path.join(TESTS, "programs", "gpu_check.py")


def check(folder, *options, **environment):
    command = [sys.executable, PROGRAM, str(folder), "--tiny", "--workers", "1", *options]
    settings = dict(os.environ, MPGLUON_CUDA_LIBRARY=os.path.abspath(STAND_IN), **environment)
    done = subprocess.run(command, capture_output=True, text=True, env=settings)
    with open(folder / "gpu-check.json") as f:
        return done, json.load(f), (folder / "gpu-check.md").read_text()


def test_a_part_that_fails_keeps_no_other_from_running(tmp_path):
    done, found, table = check(
        tmp_path,
        "--parts",
        "build,add,pipeline,suites-1",
        "--tests",
        "gpu/test_gpu_nothing.py gpu/test_gpu.py",
        HOSTCUDA_MEMORY="100000",
    )
    assert done.returncode == 1
    held = {part: told["held"] for part, told in found["parts"].items()}
    assert held == {
        "build": True,
        "add": True,
        "pipeline": False,
        "gpu_nothing-1": False,
        "gpu-1": False,
    }, done.stdout
    assert "is out of memory" in found["parts"]["pipeline"]["told"] and "## pipeline" in table
    assert found["cases"]["add"]["mpgluon"]["seconds"] > 0
    assert found["suites"]["gpu-1"]["failed"] and "2 of 5 parts held" in table


def test_what_it_tells(tmp_path):
    done, found, table = check(
        tmp_path, "--parts", "build,product,recorded,suites-4", "--tests", "gpu/test_gpu.py"
    )
    assert done.returncode == 0, done.stdout
    assert found["suites"]["gpu-4"]["passed"] > 10 and found["suites"]["gpu-4"]["gpus"] == 4
    assert (
        "| gpu/test_gpu.py | 4 | " in table
        and "3 of 3" not in table
        and "4 of 4 parts held" in table
    )
    assert found["tiny"] and "the figures mean nothing" in table


def test_without_time_parts_fail_at_once(tmp_path):
    done, found, _ = check(tmp_path, "--parts", "add,gpt", "--minutes", "0")
    assert done.returncode == 1
    assert [told["held"] for told in found["parts"].values()] == [False, False]
    assert "there was no time left" in found["parts"]["gpt"]["told"]


def test_what_was_found_is_there_when_it_is_stopped(tmp_path):
    command = [
        sys.executable,
        PROGRAM,
        str(tmp_path),
        "--tiny",
        "--parts",
        "build,add,recorded,gpt",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, MPGLUON_CUDA_LIBRARY=os.path.abspath(STAND_IN)),
    )
    assert process.stdout.readline().startswith("build: held")
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    found = json.loads((tmp_path / "gpu-check.json").read_text())
    assert found["parts"]["build"]["held"] and "gpt" not in found["parts"]
    assert "parts held." in (tmp_path / "gpu-check.md").read_text()
