"""Networks written as ONNX files and run by onnxruntime."""

import numpy as np
import pytest

import mpgluon as mx

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def run(path, arrays):
    """Returns the results of a file in onnxruntime. `arrays` are in the order of its inputs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {given.name: array for given, array in zip(session.get_inputs(), arrays)}
    return session.run(None, feed)


def listed(result):
    """Returns the results of a network, nested in any way, as a list of NumPy arrays."""
    if isinstance(result, mx.nd.NDArray):
        return [result.asnumpy()]
    return [array for part in result for array in listed(part)]


def error(found, expected):
    """Returns the largest error relative to the largest value of each array."""
    assert len(found) == len(expected)
    errors = []
    for one, other in zip(found, expected):
        assert one.shape == other.shape and one.dtype == other.dtype
        one, other = one.astype(np.float64), other.astype(np.float64)
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        scale = max(np.abs(other[np.isfinite(other)]).max(initial=0), 1e-30)
        with np.errstate(invalid="ignore"):
            errors.append(np.where(same, 0, np.abs(one - other) / scale).max(initial=0))
    return max(errors)
