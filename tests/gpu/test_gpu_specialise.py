"""Fused groups as specialized kernels (kernels/cuda/fusion/specialise.h): the bits of single ops
and one compilation per source text."""

import glob
import importlib
import os
import re
import sys

import pytest

from support.paths import ROOT
from support.processes import finished
from support.stand_in import failing, needs_gpu, needs_stand_in

pytestmark = [needs_stand_in, needs_gpu]

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
        arrays = [draw((7, 11), dtype), draw((11,), dtype, 1), draw((11,), dtype, 2)]
        told("mixture " + dtype, mixture, arrays, calls=3)
    for shape in ((5, 3), (300, 41)):
        told("again, other sizes", lambda x, y: nd.sigmoid(x) * y + x,
             [draw(shape, "float32"), draw(shape, "float32", 1)])
    whole = draw((4, 1031), "float32")
    told("not aligned", lambda x, y: nd.sigmoid(x) * y + x, [whole[1, 1:-1], whole[2, 2:]])
    told("other numbers", lambda x: nd.clip(x * 2.5, -1, 1) + 3, [draw((9,), "float32")])
    told("other numbers", lambda x: nd.clip(x * 0.5, -2, 0.25) - 3 + 6.5, [draw((9,), "float32")])
    told("dims", lambda x, s: nd.broadcast_mul(nd.exp(x), s) + 1,
         [draw((3, 4, 5), "float32"), draw((3, 1, 5), "float32", 1)])
    told("casts",
         lambda x: nd.Cast(nd.Cast(nd.exp(x) * 1.1, dtype="float16") + 3, dtype="bfloat16") * 7,
         [draw((33, 5), "float32")])
    told("many", lambda *xs: [nd.tanh(x) * (k + 1) + xs[0] for k, x in enumerate(xs)],
         [draw((41, 3), "float32", k) for k in range(18)])
    print("empty", compiled(lambda x: nd.exp(x) * 2)(nd.zeros((0, 3), ctx=mx.gpu(0)))[0].shape)
    nd.waitall()
    print(counts.library.hostcuda_count(b"specialised"), file=sys.stderr)
"""


def run(**environment):
    done = finished(PROGRAM, timeout=600, **environment)
    return done.stdout, done.stderr.strip()


@pytest.fixture(scope="module")
def one_by_one():
    return run(MPGLUON_CUDA_NVRTC="0")


def test_ops_are_not_fused_without_nvrtc(one_by_one):
    assert one_by_one[1] == "0"


def test_specialized_groups_have_the_bits_of_single_ops(one_by_one, tmp_path):
    out, told = run(MPGLUON_CUDA_GROUPS=str(tmp_path))
    assert out == one_by_one[0]
    launches = int(told)
    texts = [open(path).read() for path in glob.glob(str(tmp_path / "*.cu"))]
    # One text for all sizes, alignments and scalars
    assert launches >= 16 and 9 <= len(texts) < launches
    sigmoids = [
        text for text in texts if text.count("mpg_unary::sigmoid") == 1 and "tanh" not in text
    ]
    assert len(sigmoids) == 1 and "1031" not in sigmoids[0]
    assert any("place_1" in text for text in texts)
    assert any("mpg_bfloat16" in text for text in texts)


def test_failing_nvrtc_disables_fusion_with_one_warning(one_by_one, tmp_path):
    """As with an NVRTC too old for the card."""
    out, told = run(**failing(tmp_path, "true"))
    assert out == one_by_one[0]
    assert told.endswith("\n0")
    assert told.count("fusion of ops on GPUs is disabled") == 1
    assert "no such architecture" in told


def test_group_compilation_error_names_the_setting(tmp_path):
    program = """
        import mpgluon as mx
        from support.functions import compiled
        try:
            compiled(lambda x: mx.nd.exp(x) * 2)(mx.nd.ones(3, ctx=mx.gpu(0)))[0].asnumpy()
        except mx.base.MXNetError as error:
            print(error)
    """
    settings = failing(
        tmp_path, "grep -qs mpg_group $(echo \"$@\" | grep -o '/[^ ]*cpp') /dev/null"
    )
    told = finished(program, timeout=600, **settings).stdout
    assert re.search("NVRTC at .*libnvrtc.* could not compile mpg_group_", told)
    assert "set MPGLUON_CUDA_NVRTC=0 to disable the fusion of ops: no such architecture" in told


def tool(name):
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def test_headers_given_to_nvrtc_include_only_each_other(tmp_path):
    """NVRTC receives only these files, so they must not include others."""
    native_build = tool("native_build")
    given = {name.removeprefix("csrc/") for name in native_build.GENERATED}
    for name in native_build.GENERATED:
        with open(os.path.join(ROOT, name)) as f:
            included = set(re.findall(r'#include "(.*)"', f.read()))
        assert included <= given, name


def test_saved_groups_cover_every_kind_of_source(tmp_path):
    """Groups that differ only in numbers are of the same kind; a different formula, dtype or row
    storage is a different kind."""
    program = """
        import mpgluon as mx
        from mpgluon import nd
        from support.functions import compiled
        from gpu.test_gpu_fused import draw
        for dtype, shape in (("float32", (4, 40)), ("float32", (6, 44)), ("float16", (4, 40)),
                             ("float32", (3, 300))):
            compiled(lambda x: nd.softmax(x * 2) + 1)(draw(shape, dtype))[0].wait_to_read()
        compiled(lambda x: nd.exp(x) * 2)(draw((5, 3), "float32"))[0].wait_to_read()
    """
    finished(program, timeout=600, MPGLUON_CUDA_GROUPS=str(tmp_path))
    paths = glob.glob(str(tmp_path / "*.cu"))
    texts = {path: open(path).read() for path in paths}
    chosen = tool("fused_groups").choose_groups(texts)
    assert len(paths) == 5 and len(chosen) == 4
    assert sum(" / 40" in texts[path] or " / 44" in texts[path] for path in chosen) == 2
