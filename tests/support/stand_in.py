"""Marks of the tests of GPUs, with the stand-in for one (docs/cuda.md) or without."""

import os

import pytest

import mpgluon as mx

STAND_IN = os.environ.get("MPGLUON_CUDA_LIBRARY", "")
ON_STAND_IN = "hostcuda" in STAND_IN
needs_gpu = pytest.mark.skipif(
    mx.num_gpus() == 0, reason="no GPU, and no stand-in for one (docs/cuda.md)"
)
needs_stand_in = pytest.mark.skipif(not ON_STAND_IN, reason="needs the stand-in (docs/cuda.md)")
