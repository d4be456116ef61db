"""Smoke test of every family of ops on a GPU: the first sample of each op, forward and backward,
compared with the CPU. It is short and meant as the first run on a new card; test_gpu.py covers the
rest."""

import importlib
import pkgutil

import numpy as np
import pytest

import mpgluon as mx
import samples
from mpgluon import autograd
from support.calls import call, place
from support.compare import with_sorted_eigenvalues
from support.gpu_kernels import MISSING
from support.stand_in import needs_gpu

pytestmark = needs_gpu

FAMILIES = sorted(module.name for module in pkgutil.iter_modules(samples.__path__))
# Tolerances of values and gradients relative to the largest.
CLOSE = {"float64": 1e-10, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}


def results(name, sample, dtype, ctx):
    """Returns outputs and gradients on a device."""
    mx.random.seed(5)
    arrays = place(sample, dtype, ctx)
    leaves = [arrays[i] for i in sample.gradient_inputs()]
    for leaf in leaves:
        leaf.attach_grad()
    with ctx, autograd.record(train_mode=sample.train):
        outputs = call(name, arrays, sample.params)
    if leaves and all(np.dtype(output.dtype).kind in "fV" for output in outputs):
        autograd.backward(outputs)
    return with_sorted_eigenvalues(name, [output.asnumpy() for output in outputs]) + [
        leaf.grad.asnumpy() for leaf in leaves
    ]


def assert_close(cpu, gpu, dtype, where):
    assert cpu.shape == gpu.shape and cpu.dtype == gpu.dtype, where
    if cpu.dtype.kind not in "fV":
        np.testing.assert_array_equal(gpu, cpu, err_msg=where)
        return
    cpu, gpu = cpu.astype(np.float64), gpu.astype(np.float64)
    finite = np.abs(cpu)[np.isfinite(cpu)]
    largest = max(1.0, finite.max() if finite.size else 0.0)
    tolerance = CLOSE.get(dtype, 2e-5)
    np.testing.assert_allclose(gpu, cpu, rtol=tolerance, atol=tolerance * largest, err_msg=where)


@pytest.mark.parametrize("family", FAMILIES)
def test_first_samples_of_a_family_match_the_cpu(family):
    table = getattr(importlib.import_module(f"samples.{family}"), "SAMPLES", {})
    for name, rows in sorted(table.items()):
        if name in MISSING or not rows:
            continue
        for dtype in rows[0].dtypes[:1] + rows[0].dtypes[2:3]:  # the first and a half dtype
            cpu, gpu = (results(name, rows[0], dtype, ctx) for ctx in (mx.cpu(0), mx.gpu(0)))
            for one, other in zip(cpu, gpu):
                assert_close(one, other, dtype, f"{name} in {dtype}")
