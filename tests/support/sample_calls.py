"""Calls of ops on their samples (tests/samples)."""

import mpgluon as mx
from mpgluon import _core, autograd


def call(name, arrays, params, **more):
    result = _core.get_op(name)(*arrays, **(params or {}), **more)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def place(sample, dtype, ctx=None, seed=0):
    ctx = ctx or mx.current_context()
    arrays = []
    for i, values in enumerate(sample.arrays(dtype, seed)):
        kind = dtype if sample.made(i) else values.dtype
        arrays.append(mx.nd.array(values, ctx=ctx, dtype=kind))
    return arrays


def mode(sample):
    return autograd.train_mode() if sample.train else autograd.predict_mode()
