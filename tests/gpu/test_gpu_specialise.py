"""Fused groups as kernels of their own (kernels/cuda/fusion/specialise.h): the interpreter's bits,
one compilation for each text."""

import glob
import os
import re
import sys

import pytest

from support.paths import ROOT
from support.processes import finished
from support.stand_in import STAND_IN, needs_gpu, needs_stand_in

pytestmark = [needs_stand_in, needs_gpu]
NVRTC = os.path.join(os.path.dirname(os.path.abspath(STAND_IN)), "nvrtc") if STAND_IN else ""

PROGRAM = """
    import sys
    import numpy as np
    import mpgluon as mx
    from mpgluon import nd
    from support.functions import compiled
    from gpu.test_gpu_fused import draw, mixture
    from gpu.test_gpu_graphs import Counts

    counts = Counts()
    def told(name, function, arrays, calls=1):
        op = compiled(function)
        for _ in range(calls):
            results = op(*arrays)
        for result in results:
            print(name, result.shape, result.astype("float32").asnumpy().tobytes().hex()[:20000])

    for dtype in ("float32", "float16", "bfloat16"):
        told("mixture " + dtype, mixture, [draw((7, 11), dtype), draw((11,), dtype, 1), draw((11,), dtype, 2)], calls=3)
    told("again, other sizes", lambda x, y: nd.sigmoid(x) * y + x, [draw((5, 3), "float32"), draw((5, 3), "float32", 1)])
    told("again, other sizes", lambda x, y: nd.sigmoid(x) * y + x, [draw((300, 41), "float32"), draw((300, 41), "float32", 1)])
    whole = draw((4, 1031), "float32")
    told("not aligned", lambda x, y: nd.sigmoid(x) * y + x, [whole[1, 1:-1], whole[2, 2:]])
    told("other numbers", lambda x: nd.clip(x * 2.5, -1, 1) + 3, [draw((9,), "float32")])
    told("other numbers", lambda x: nd.clip(x * 0.5, -2, 0.25) - 3 + 6.5, [draw((9,), "float32")])
    told("dims", lambda x, s: nd.broadcast_mul(nd.exp(x), s) + 1, [draw((3, 4, 5), "float32"), draw((3, 1, 5), "float32", 1)])
    told("casts", lambda x: nd.Cast(nd.Cast(nd.exp(x) * 1.1, dtype="float16") + 3, dtype="bfloat16") * 7, [draw((33, 5), "float32")])
    told("many", lambda *xs: [nd.tanh(x) * (k + 1) + xs[0] for k, x in enumerate(xs)], [draw((41, 3), "float32", k) for k in range(18)])
    print("empty", compiled(lambda x: nd.exp(x) * 2)(nd.zeros((0, 3), ctx=mx.gpu(0)))[0].shape)
    nd.waitall()
    print(counts.library.hostcuda_count(b"specialised"), file=sys.stderr)
"""


def run(**environment):
    done = finished(PROGRAM, timeout=600, **environment)
    return done.stdout, done.stderr.strip()


@pytest.fixture(scope="module")
def interpreted():
    return run(MPGLUON_CUDA_NVRTC="0")


def test_without_nvrtc_groups_are_interpreted(interpreted):
    assert interpreted[1] == "0"


def test_kernels_of_their_own_have_the_interpreters_bits(interpreted, tmp_path):
    out, told = run(MPGLUON_NVRTC=NVRTC, MPGLUON_CUDA_GROUPS=str(tmp_path))
    assert out == interpreted[0]
    launches = int(told)
    texts = [open(path).read() for path in glob.glob(str(tmp_path / "*.cu"))]
    # One for all sizes, alignments and numbers
    assert launches >= 16 and 9 <= len(texts) < launches
    sigmoids = [
        text for text in texts if text.count("mpg_unary::sigmoid") == 1 and "tanh" not in text
    ]
    assert len(sigmoids) == 1 and "1031" not in sigmoids[0]
    assert any("place_1" in text for text in texts) and any(
        "mpg_bfloat16" in text for text in texts
    )


def test_what_cannot_be_compiled_is_interpreted_and_said_once(interpreted, tmp_path):
    """A compiler that fails, as one that is too old for the card."""
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'no such architecture' >&2\nexit 1\n")
    compiler.chmod(0o755)
    out, told = run(MPGLUON_NVRTC=NVRTC, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert out == interpreted[0]
    assert (
        told.endswith("\n0")
        and told.count("could not be compiled by NVRTC") == 1
        and "no such architecture" in told
    )


def test_generated_code_names_the_files_it_includes(tmp_path):
    """NVRTC gets these and no others: what they include is among them."""
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    try:
        import native_build
    finally:
        sys.path.pop(0)
    given = {name.removeprefix("csrc/") for name in native_build.GENERATED}
    for name in native_build.GENERATED:
        with open(os.path.join(ROOT, name)) as f:
            included = set(re.findall(r'#include "(.*)"', f.read()))
        assert included <= given, name
