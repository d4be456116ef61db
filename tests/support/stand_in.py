"""Tests of GPUs, with the stand-in for one (docs/cuda.md) or without: marks, and processes of their own."""

import os
import subprocess
import sys
import textwrap

import pytest
from support.paths import TESTS

import mpgluon as mx

STAND_IN = os.environ.get("MPGLUON_CUDA_LIBRARY", "")
ON_STAND_IN = "hostcuda" in STAND_IN
needs_gpu = pytest.mark.skipif(mx.num_gpus() == 0, reason="no GPU, and no stand-in for one (docs/cuda.md)")
needs_stand_in = pytest.mark.skipif(not ON_STAND_IN, reason="needs the stand-in (docs/cuda.md)")


def finished(code, timeout=120, **environment):
    """A process that has run the code, without an error. It finds the tests' modules, wherever it starts (PYTHONSAFEPATH)."""
    paths = [TESTS, os.environ.get("PYTHONPATH")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)), **environment)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run(code, **environment):
    """What the code prints."""
    return finished(code, **environment).stdout
