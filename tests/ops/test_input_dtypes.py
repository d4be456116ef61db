"""An op that accepts inputs of different dtypes reads each by its own dtype. A kernel that reads an
input by the dtype of another one can also read or write beyond its end."""

import contextlib

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, nd
from samples.traced_calls import traced_calls

OTHERS = {"float32": ("float64", "float16"), "float16": ("float32",)}


def array(seed, shape, dtype):
    """Returns an array whose values all dtypes represent."""
    floats = dtype.startswith(("float", "bfloat"))
    values = np.random.RandomState(seed).uniform(0.25, 1, shape) if floats else np.ones(shape)
    return nd.array(values.astype("float16"), dtype=dtype)


def run(call, inputs):
    mx.random.seed(1)
    arrays = [array(i, *one) for i, one in enumerate(inputs)]
    results = _core.get_op(call.op)(*arrays, **dict(call.params))
    results = results if isinstance(results, (list, tuple)) else [results]
    return [result.astype("float64").asnumpy() for result in results]


def changed(call):
    """Yields the inputs of a call with another dtype of one of them, and the results, if the op
    accepts them."""
    for i, (shape, dtype) in enumerate(call.inputs):
        for other in OTHERS.get(dtype, ()):
            inputs = [*call.inputs[:i], (shape, other), *call.inputs[i + 1 :]]
            with contextlib.suppress(mx.MXNetError, ValueError, TypeError):
                yield inputs, run(call, inputs)


def test_ops_read_inputs_by_their_own_dtype():
    accepted, wrong = 0, []
    for call in traced_calls():
        if len(call.inputs) < 2:
            continue
        for inputs, results in changed(call):
            accepted += 1
            for result, value in zip(results, run(call, call.inputs)):
                if not np.allclose(result, value, rtol=2e-2, atol=2e-2, equal_nan=True):
                    wrong.append((call, inputs))
    assert accepted > 100 and not wrong, wrong[:5]


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("name", ["_backward_BatchNorm", "_backward_batch_norm_relu"])
def test_gradient_of_batch_norm_checks_dtypes(name, number):
    shapes = [(3, 16), (3, 16), (16,), (16,), (16,)]
    dtypes = ["float64"] * 5
    dtypes[number] = "float16"
    arrays = [nd.ones(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes)]
    if name.endswith("relu"):
        arrays.append(nd.zeros((3, 5), dtype="uint8"))
    with pytest.raises(mx.MXNetError, match="must be float64"):
        _core.get_op(name)(*arrays)
