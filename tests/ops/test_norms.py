"""Normalization of empty arrays and in half precision."""

import numpy as np
import pytest

import mpgluon as mx

NORMS = {
    "LayerNorm": lambda F, x, g, b: F.LayerNorm(x, g, b),
    "LayerNorm along axis 0": lambda F, x, g, b: F.LayerNorm(x, g, b, axis=0),
    "BatchNorm": lambda F, x, g, b: F.BatchNorm(x, g, b, F.zeros_like(g), F.ones_like(g)),
    "L2Normalization": lambda F, x, g, b: F.L2Normalization(x) + 0 * F.sum(g) + 0 * F.sum(b),
    "softmax": lambda F, x, g, b: F.softmax(x) + 0 * F.sum(g) + 0 * F.sum(b),
    "log_softmax": lambda F, x, g, b: F.log_softmax(x, axis=0) + 0 * F.sum(g) + 0 * F.sum(b),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", [(4, 3, 0), (4, 0, 3), (0, 3, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_norms_of_empty_arrays_have_zero_gradients(name, shape, dtype):
    """Arrays with an empty axis have gradients; sanitizer builds check memory accesses."""
    size = shape[{"LayerNorm": 2, "LayerNorm along axis 0": 0}.get(name, 1)]
    wide = "float32" if name == "BatchNorm" and "16" in dtype else dtype
    arrays = [mx.nd.ones(shape, dtype=dtype), *(mx.nd.ones(size, dtype=wide) for _ in "gb")]
    for array in arrays:
        array.attach_grad()
    with mx.autograd.record():
        y = NORMS[name](mx.nd, *arrays)
    y.backward()
    assert y.shape == shape and y.asnumpy().size == 0
    for array in arrays[1:]:
        assert (array.grad.astype("float32").asnumpy() == 0).all()


ROWS = {
    "LayerNorm": (lambda x, g, b, **kw: mx.nd.LayerNorm(x, g, b, **kw), 90),
    "LayerNorm along axis 1": (lambda x, g, b, **kw: mx.nd.LayerNorm(x, g, b, axis=1, **kw), 6),
    "GroupNorm": (lambda x, g, b, **kw: mx.nd.GroupNorm(x, g, b, num_groups=3, **kw), 3),
    "InstanceNorm": (lambda x, g, b: mx.nd.InstanceNorm(x, g, b), 6),
    **{
        f"L2Normalization, {mode}": (
            lambda x, g, b, mode=mode: mx.nd.L2Normalization(x, mode=mode) + 0 * (g + b),
            1,
        )
        for mode in ("instance", "channel", "spatial")
    },
}


def gradients(name, values, dtype, **params):
    """Returns the gradients of data, gamma and beta, and the op's other outputs."""
    call, size = ROWS[name]
    arrays = [values.astype(dtype)]
    arrays += [mx.nd.linspace(low, 2, size).astype("bfloat16").astype(dtype) for low in (1, -1)]
    for array in arrays:
        array.attach_grad()
    with mx.autograd.record():
        y = call(*arrays, **params)
    y, *more = y if isinstance(y, list) else [y]
    y.backward(
        mx.nd.array(np.random.RandomState(4).randn(*y.shape)).astype("bfloat16").astype(dtype)
    )
    return [array.grad.astype("float32").asnumpy() for array in arrays], more


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_norm_gradients_are_rounded_once(name, dtype):
    """Gradients equal the rounded float32 gradients.

    Rows are far from 0, where half precision has few digits for mean and deviation.
    """
    values = mx.nd.array(np.random.RandomState(3).randn(4, 6, 90) + 30).astype("bfloat16")
    close = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    halves, _ = gradients(name, values, dtype)
    for half, single in zip(halves, gradients(name, values, "float32")[0], strict=True):
        np.testing.assert_allclose(half, single, rtol=1.01 * close, atol=1e-5)
    if name.startswith(("InstanceNorm", "L2Normalization")):
        return
    shown, moments = gradients(name, values, dtype, output_mean_var=True)
    assert [m.dtype for m in moments] == [values.astype(dtype).dtype] * 2  # as in MXNet
    for a, b in zip(halves, shown, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", ["instance", "channel", "spatial"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_l2_normalization_is_rounded_once(mode, dtype):
    """The result equals the rounded float32 result."""
    x = mx.nd.array(np.random.RandomState(5).randn(3, 5, 700) + 1).astype(dtype)
    exact = mx.nd.L2Normalization(x.astype("float32"), mode=mode).astype(dtype)
    result = mx.nd.L2Normalization(x, mode=mode)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(
        result.astype("float32").asnumpy(), exact.astype("float32").asnumpy()
    )
