"""Markers for GPU tests, with or without the stand-in for a GPU (docs/cuda.md)."""

import os
import shutil

import pytest

import mpgluon as mx
from support.devices import test_devices

STAND_IN = os.environ.get("MPGLUON_CUDA_LIBRARY", "")
ON_STAND_IN = "hostcuda" in STAND_IN
# NVIDIA's libraries choose algorithms by size, so parts of a batch differ in bits from the whole.
ON_CARD = test_devices()[0].device_type == "gpu" and not ON_STAND_IN
needs_gpu = pytest.mark.skipif(
    mx.num_gpus() == 0, reason="no GPU, and no stand-in for one (docs/cuda.md)"
)
needs_stand_in = pytest.mark.skipif(not ON_STAND_IN, reason="needs the stand-in (docs/cuda.md)")


def failing(tmp_path, condition):
    """Returns settings with which the stand-in for NVRTC fails if `condition` holds."""
    compiler = tmp_path / "c++"
    compiler.write_text(f"""#!/bin/sh
if {condition}; then echo 'no such architecture' >&2; exit 1; fi
exec {shutil.which("c++")} "$@"
""")
    compiler.chmod(0o755)
    return {
        "HOSTCUDA_NVRTC_CACHE": str(tmp_path / "cache"),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
