"""Calls of ops on their samples (tests/samples), and calls that must raise."""

import pytest

import mpgluon as mx
from mpgluon import _core, autograd
from mpgluon.ndarray._control import dynamic


def call(name, arrays, params, **more):
    result = _core.get_op(name)(*arrays, **(params or {}), **more)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def call_in_block(name, arrays, params):
    """Like `call`, but hybridized blocks may contain the call if the op has a dynamic shape."""
    if "dynamic" not in _core.get_op(name).describe()["flags"]:
        return call(name, arrays, params)
    return list(dynamic(_core.OpCall(name, params or {}), list(arrays)))


def place(sample, dtype, ctx=None, seed=0):
    ctx = ctx or mx.current_context()
    arrays = []
    for i, values in enumerate(sample.arrays(dtype, seed)):
        kind = dtype if sample.made(i) else values.dtype
        arrays.append(mx.nd.array(values, ctx=ctx, dtype=kind))
    return arrays


def mode(sample):
    return autograd.train_mode() if sample.train else autograd.predict_mode()


def raises(error, text, call):
    """Asserts that a call raises an error of this type whose text matches a pattern."""
    with pytest.raises(error, match=text):
        call()


def text_of(error, call):
    """Returns the text of the error of this type that a call must raise."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)
