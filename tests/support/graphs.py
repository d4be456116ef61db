"""Compiled graphs of functions, and their results."""

import numpy as np

import mpgluon as mx
from mpgluon import _core, autograd, nd
from support.devices import on

F32 = np.float32


def array(shape, seed, ctx=None, scale=1.0):
    return nd.array(
        np.random.RandomState(seed).randn(*shape).astype(F32) * F32(scale), ctx=ctx or on(0)
    )


def dump(function, *arrays, train=False, **flags):
    """Returns the compiled graph of a function on arrays, without input lines and shapes."""
    op = _core.CachedOp(lambda *a: [function(*a)], flags)
    with autograd.record(train_mode=train):
        op(*arrays)
    lines = [line.split(" : ")[0] for line in op.dump().splitlines()]
    return [line for line in lines if not line.endswith("= input")]


def ops(function, *arrays, **flags):
    return [
        line.split(" = ")[1].split("(")[0]
        for line in dump(function, *arrays, **flags)
        if " = " in line
    ]


def run(function, arrays, head_seed=7, hybridize=True, **flags):
    """Returns outputs and gradients of a function on arrays."""
    for a in arrays:
        if a.dtype in (np.float32, np.float64):
            a.attach_grad()
    op = _core.CachedOp(lambda *a: [function(*a)], flags) if hybridize else function
    mx.random.seed(11)
    with autograd.record():
        y = op(*arrays)
        y = y[0] if isinstance(y, list) else y
    y.backward(
        nd.array(np.random.RandomState(head_seed).randn(*y.shape), ctx=y.context, dtype=y.dtype)
    )
    return [y.asnumpy()] + [a.grad.asnumpy() for a in arrays if a.grad is not None]


def error(a, b):
    """Returns the largest distance of two results relative to their norm.

    The distance is absolute for gradients that are zero up to rounding.
    """
    return max(
        np.linalg.norm(x.astype(np.float64) - y) / max(np.linalg.norm(y.astype(np.float64)), 1e-3)
        for x, y in zip(a, b)
    )


def check(function, arrays, tolerance=1e-6):
    """Compares the default with eager in norm, and exact with eager in bits."""
    eager = run(function, arrays, hybridize=False)
    for a, b in zip(run(function, arrays, exact=True), eager):
        assert np.array_equal(a, b)
    default = run(function, arrays)
    assert [a.shape for a in default] == [a.shape for a in eager]
    assert error(default, eager) < tolerance
    return default
