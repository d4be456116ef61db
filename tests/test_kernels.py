"""The CPU kernels with and without their libraries, and that bits do not depend on threads or devices."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import mpgluon as mx

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(mx.__file__)))

PROGRAM = """
import json, sys
import numpy as np
import mpgluon as mx
from mpgluon import _core

random = np.random.RandomState(0)
a, b = random.uniform(-1, 1, (70, 130)), random.uniform(-1, 1, (130, 90))
x, w = random.uniform(-1, 1, (2, 6, 14, 13)), random.uniform(-1, 1, (8, 3, 3, 3))
result = {"libraries": {l["name"]: l["found"] for l in _core.libraries()}}
for dtype in ("float32", "float64", "float16"):
    data, weight = (mx.nd.array(v, dtype=dtype) for v in (x, w))
    data.attach_grad()
    weight.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Convolution(data, weight, kernel=(3, 3), stride=(2, 1), pad=(1, 1), num_filter=8, num_group=2, no_bias=True)
    y.backward()
    product = mx.nd.dot(mx.nd.array(a, dtype=dtype), mx.nd.array(b, dtype=dtype))
    stack = mx.nd.array(np.stack([a, a + 1]), dtype=dtype)
    products = mx.nd.batch_dot(stack, stack, transpose_b=True)
    result[dtype] = [v.asnumpy().astype("float64").tolist() for v in (product, products, y, data.grad, weight.grad)]
json.dump(result, sys.stdout)
"""


def run(**settings):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MPGLUON_ON") and not k.startswith("MPGLUON_OP")}
    environment.update(settings, PYTHONPATH=os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def with_libraries():
    return run()


@pytest.mark.parametrize("settings", [
    {"MPGLUON_ONEDNN": "0"},
    {"MPGLUON_ONEDNN": "0", "MPGLUON_OPENBLAS": "0"},
    {"MPGLUON_ONEDNN": "0", "MPGLUON_OPENBLAS": "0", "MPGLUON_ISA_RUN": "base"},
    {"MPGLUON_ONEDNN": "0", "MPGLUON_OPENBLAS": "0", "MPGLUON_ISA_RUN": "v3"},
], ids=["no_onednn", "plain", "plain_base", "plain_v3"])
def test_every_path_computes_the_same(settings, with_libraries):
    other = run(**settings)
    for name, setting in (("oneDNN", "MPGLUON_ONEDNN"), ("OpenBLAS", "MPGLUON_OPENBLAS")):
        if setting in settings:
            assert not other["libraries"][name]
    for dtype, tolerance in (("float32", 1e-4), ("float64", 1e-11), ("float16", 0.05)):
        for mine, theirs in zip(other[dtype], with_libraries[dtype]):
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=dtype)


def test_a_wrong_folder_is_reported_and_harmless():
    settings = {"MPGLUON_ONEDNN": "/nowhere"}
    program = "from mpgluon import _core; import mpgluon; l = _core.libraries()[0]; print(l['found'], l['reason'])"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **settings, "PYTHONPATH": ROOT}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("False") and "/nowhere" in done.stdout


def test_tiny_products_do_not_depend_on_who_runs_them():
    """Inline in the calling thread, or queued behind other work on the device: the same bits."""
    random = np.random.RandomState(1)
    a, b = (mx.nd.array(random.uniform(-1, 1, (20, 24))) for _ in range(2))
    mx.nd.waitall()
    inline = mx.nd.dot(a, b, transpose_b=True).asnumpy()
    large = mx.nd.array(random.uniform(-1, 1, (600, 600)))
    mx.nd.dot(large, large)
    queued = mx.nd.dot(a, b, transpose_b=True).asnumpy()
    assert inline.tobytes() == queued.tobytes()


def test_more_shapes_than_the_cache_holds():
    for size in list(range(100, 400)) + [100]:
        out = mx.nd.FullyConnected(mx.nd.ones((size, 90)), mx.nd.ones((3, 90)), mx.nd.ones((3,)), num_hidden=3)
        assert (out.asnumpy() == 91).all()


def test_max_pooling_gives_ties_to_the_first():
    data = mx.nd.array([[[[1, 1, 1, 0], [1, 1, 1, 0]]]])
    data.attach_grad()
    with mx.autograd.record():
        out = mx.nd.Pooling(data, kernel=(2, 2), stride=(1, 1))
    out.backward(mx.nd.array([[[[1, 10, 100]]]]))
    assert data.grad.asnumpy().tolist() == [[[[1, 10, 100, 0], [0, 0, 0, 0]]]]


def test_batch_norm_moves_its_statistics():
    random = np.random.RandomState(2)
    x = random.uniform(-1, 1, (5, 3, 4)).astype("float32")
    gamma, beta, mean, var = mx.nd.array([2, 3, 4]), mx.nd.zeros((3,)), mx.nd.ones((3,)), mx.nd.ones((3,)) * 2
    mx.nd.BatchNorm(mx.nd.array(x), gamma, beta, mean, var)
    assert (mean.asnumpy() == 1).all() and (var.asnumpy() == 2).all()
    with mx.autograd.train_mode():
        out = mx.nd.BatchNorm(mx.nd.array(x), gamma, beta, mean, var, momentum=0.75)
    np.testing.assert_allclose(mean.asnumpy(), 0.75 + 0.25 * x.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(var.asnumpy(), 1.5 + 0.25 * x.var((0, 2)), rtol=1e-5)  # the biased variance
    assert abs(out.asnumpy().std((0, 2)) - 1).max() < 1e-2  # gamma is taken as 1


@pytest.mark.parametrize("call, words", [
    (lambda: mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((4, 5))), ["dot", "(2, 3)", "(4, 5)"]),
    (lambda: mx.nd.FullyConnected(mx.nd.ones((2, 3)), mx.nd.ones((4, 5)), mx.nd.ones((4,)), num_hidden=4), ["FullyConnected", "(2, 3)"]),
    (lambda: mx.nd.Convolution(mx.nd.ones((1, 1, 2, 2)), mx.nd.ones((1, 1, 3, 3)), kernel=(3, 3), num_filter=1, no_bias=True),
     ["Convolution", "larger"]),
    (lambda: mx.nd.Convolution(mx.nd.ones((1, 1, 4, 4)), mx.nd.ones((1, 1, 3, 3)), kernel=(3, 3), num_filter=1, no_bias=True, layout="NCW"),
     ["NHWC", "NCHW"]),
    (lambda: mx.nd.Pooling(mx.nd.ones((1, 1, 4, 4)), kernel=(2, 2), stride=(0, 1)), ["Pooling", "stride"]),
    (lambda: mx.nd.Deconvolution(mx.nd.ones((1, 1, 2**20)), mx.nd.ones((1, 1, 2)), kernel=(2,), stride=(2**31,), num_filter=1), []),
    (lambda: mx.nd.LayerNorm(mx.nd.ones((2, 3)), mx.nd.ones((3,)), mx.nd.ones((3,)), axis=2), ["LayerNorm"]),
], ids=["dot", "dense", "window", "layout", "stride", "overflow", "axis"])
def test_mistakes_are_named(call, words):
    with pytest.raises((mx.MXNetError, ValueError, IndexError, MemoryError)) as caught:
        call().wait_to_read()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("size", [7, 64, 200])
def test_softmax_of_numbers_far_apart(size):
    row = np.zeros(size, np.float32)
    row[:7] = [0, -1, -80, -87, -95, -1000, -np.inf]
    rows = np.stack([row, row + 300, row - 300, -row[::-1]])
    rows[3, ~np.isfinite(rows[3])] = 1000
    wide = rows.astype(np.float64) - rows.max(axis=1, keepdims=True).astype(np.float64)
    expected = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    result = mx.nd.softmax(mx.nd.array(rows)).asnumpy()
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=np.finfo(np.float32).tiny)
    assert (result[:3, 5:7] == 0).all()
    rows[1, 2] = np.nan
    assert np.isnan(mx.nd.softmax(mx.nd.array(rows)).asnumpy()[1]).all()
