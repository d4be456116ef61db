"""Normalisation of arrays that have no elements."""

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
def test_norms_of_nothing(name, shape, dtype):
    """Arrays with an axis of no elements have gradients like others; sanitizers look on."""
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
