"""quantized_dot, dequantize_weight and quantize_array against NumPy and the package gguf."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, nd
from samples.quantized_weights import dequantized, random_weight

quantize_array = mx.contrib.quantization.quantize_array
FORMATS = ["int8", "int4", "nf4", "q8_0", "q4_0", "q4_k", "q6_k"]
# Largest error of an element, relative to the largest element of its group.
ERRORS = {"int8": 0.004, "int4": 0.13, "nf4": 0.16, "q8_0": 0.0045, "q4_0": 0.13, "q4_k": 0.09}
ERRORS["q6_k"] = 0.04


def arrays_of(found):
    return {name: nd.array(array, dtype=array.dtype) for name, array in found.items()}


CASES = [
    ("int8", 96, 0, False),
    ("int8", 96, 32, False),
    ("int8", 51, 17, False),
    ("int4", 128, 32, False),
    ("int4", 128, 32, True),
    ("int4", 300, 0, True),
    ("int4", 30, 3, True),
    ("nf4", 128, 64, False),
    ("q8_0", 288, 0, False),
    ("q4_0", 288, 0, False),
    ("q4_k", 512, 0, False),
    ("q6_k", 512, 0, False),
]


@pytest.mark.parametrize("format, in_units, group, zeros", CASES)
def test_dequantize_weight_equals_numpy(format, in_units, group, zeros):
    found = random_weight(format, 5, in_units, group, zeros)
    options = dict(format=format, group=group, units=5, in_units=in_units)
    want = dequantized(format, **found)
    got = nd.contrib.dequantize_weight(**arrays_of(found), **options)
    np.testing.assert_array_equal(got.asnumpy(), want)
    for dtype in ("float16", "bfloat16"):
        half_ = nd.contrib.dequantize_weight(**arrays_of(found), **options, dtype=dtype)
        np.testing.assert_array_equal(half_.asnumpy(), got.astype(dtype).asnumpy())
    double = nd.contrib.dequantize_weight(**arrays_of(found), **options, dtype="float64")
    np.testing.assert_allclose(double.asnumpy(), want, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 70])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("format, in_units, group, zeros", CASES)
def test_products_equal_those_of_the_unpacked_weight(format, in_units, group, zeros, dtype, rows):
    units = 37
    found = random_weight(format, units, in_units, group, zeros)
    random = np.random.RandomState(1)
    x = nd.array(random.uniform(-1, 1, (rows, in_units))).astype(dtype)
    bias = nd.array(random.uniform(-1, 1, units)).astype(dtype)
    got = nd.contrib.quantized_dot(
        x, **arrays_of(found), bias=bias, format=format, group=group, units=units, in_units=in_units
    )
    assert got.dtype == x.dtype
    wide = x.astype("float64").asnumpy()
    want = wide @ dequantized(format, **found).astype(np.float64).T
    want += bias.astype("float64").asnumpy()
    tolerance = {"float32": 2e-6, "float64": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    error = np.abs(got.astype("float64").asnumpy() - want).max()
    assert error <= tolerance * np.abs(want).max()


@pytest.mark.parametrize("units", [3, 131])
@pytest.mark.parametrize("format", FORMATS)
def test_few_rows_have_bits_independent_of_their_number(format, units):
    group = 64 if format[0] in "in" else 0
    found = arrays_of(random_weight(format, units, 512, group))
    options = dict(format=format, group=group, units=units, in_units=512)
    x = nd.random.uniform(-1, 1, (8, 512))
    whole = nd.contrib.quantized_dot(x, **found, **options).asnumpy()
    for rows in range(1, 8):
        part = nd.contrib.quantized_dot(x[8 - rows :], **found, **options).asnumpy()
        np.testing.assert_array_equal(part, whole[8 - rows :])


@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16"])
def test_scales_may_have_16_bits(scale_dtype):
    found = arrays_of(random_weight("int4", 6, 64, 32, True))
    for name in ("scales", "zeros"):
        found[name] = found[name].astype(scale_dtype)
    options = dict(format="int4", group=32, units=6, in_units=64)
    x = nd.random.uniform(-1, 1, (2, 64))
    wide = {name: a if name == "packed" else a.astype("float32") for name, a in found.items()}
    np.testing.assert_array_equal(
        nd.contrib.quantized_dot(x, **found, **options).asnumpy(),
        nd.contrib.quantized_dot(x, **wide, **options).asnumpy(),
    )


def test_float64_scales_require_float64_data():
    names = ("data", "packed", "scales")
    product = mx.sym.contrib.quantized_dot(*map(mx.sym.var, names), units=3, in_units=16)
    assert product.infer_type(data="float64", scales="float64")[1] == [np.float64]
    assert product.infer_type_partial(scales="float64")[0][2] == np.float64
    with pytest.raises(mx.MXNetError, match="or have the dtype of data"):
        product.infer_type(data="float32", scales="float64")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", [(3, 512), (512,), (2, 3, 512), (0, 512)])
def test_gradient_is_that_of_the_unpacked_weight(format, shape):
    group = 64 if format[0] in "in" else 0
    found = arrays_of(random_weight(format, 4, 512, group))
    options = dict(format=format, group=group, units=4, in_units=512)
    x, bias = nd.random.uniform(-1, 1, shape), nd.zeros(4)
    x.attach_grad()
    bias.attach_grad()
    with autograd.record():
        y = nd.contrib.quantized_dot(x, **found, bias=bias, **options)
    assert y.shape == (*shape[:-1], 4)
    head = nd.random.uniform(-1, 1, y.shape)
    y.backward(head)
    weight = nd.contrib.dequantize_weight(**found, **options)
    want = head.asnumpy() @ weight.asnumpy()
    np.testing.assert_allclose(x.grad.asnumpy(), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        bias.grad.asnumpy(), head.asnumpy().reshape(-1, 4).sum(0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("zeros", [False, True])
def test_rounding_is_nearest(format, zeros):
    if zeros and format != "int4":
        with pytest.raises(ValueError, match="only 'int4' has zeros"):
            quantize_array(nd.ones((2, 256)), format, use_zeros=True)
        return
    group = 32 if format in ("int8", "int4", "nf4") else 0
    random = np.random.RandomState(3)
    values = random.normal(size=(7, 512)).astype(np.float32) * random.uniform(0.1, 9, (7, 1))
    values[2] = 0  # rows without a scale
    weight = nd.array(values)
    arrays = quantize_array(weight, format, group, zeros)
    got = nd.contrib.dequantize_weight(
        **arrays, format=format, group=group, units=7, in_units=512
    ).asnumpy()
    size = group or 32 if format != "q6_k" else 16
    runs = values.reshape(7, -1, size)
    errors = np.abs(got.reshape(runs.shape) - runs).max(-1)
    assert (errors <= ERRORS[format] * np.abs(runs).max(-1) + 1e-7).all()
    assert (got[2] == 0).all()


def test_rounding_refuses_weights_without_a_scale():
    with pytest.raises(ValueError, match="NaN"):
        quantize_array(nd.array([[1, np.nan]]))
    with pytest.raises(ValueError, match="multiple of 256"):
        quantize_array(nd.ones((2, 128)), "q4_k")
    with pytest.raises(ValueError, match="group must divide"):
        quantize_array(nd.ones((2, 128)), "int8", 48)
    with pytest.raises(ValueError, match="format must be one of"):
        quantize_array(nd.ones((2, 128)), "int3")


@pytest.mark.parametrize("format", ["q8_0", "q4_0", "q4_k", "q6_k"])
def test_gguf_reads_the_same_weights(format):
    quants = pytest.importorskip("gguf.quants")
    kind = pytest.importorskip("gguf").GGMLQuantizationType[format.upper()]
    random = np.random.RandomState(5)
    values = random.normal(size=(16, 1024)).astype(np.float32)
    arrays = quantize_array(nd.array(values), format)
    got = nd.contrib.dequantize_weight(**arrays, format=format, units=16, in_units=1024).asnumpy()
    packed = arrays["packed"].asnumpy()
    np.testing.assert_array_equal(got, quants.dequantize(packed, kind))
    if format in ("q8_0", "q4_0"):
        np.testing.assert_array_equal(packed, quants.quantize(values, kind))
    noise = random_weight(format, 6, 1024)["packed"]
    np.testing.assert_array_equal(
        nd.contrib.dequantize_weight(
            nd.array(noise, dtype="uint8"), format=format, units=6, in_units=1024
        ).asnumpy(),
        quants.dequantize(noise, kind),
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"scales": None}, "needs scales"),
        ({"group": 3}, "group must divide in_units"),
        ({"format": "q8_0"}, "omit scales"),
        ({"format": "q8_0", "scales": None, "group": 32}, "group must be 0"),
        ({"format": "q4_k", "scales": None}, "multiple of 256"),
        ({"format": "nf4", "zeros": nd.ones((4, 1))}, "has no zeros"),
        ({"format": "int4"}, "packed"),
        ({"units": 5}, "packed"),
        ({"in_units": 1 << 62, "units": 1 << 62}, "too large"),
        ({"scales": nd.ones((4, 1), dtype="int32")}, "scales must be float32"),
        ({"bias": nd.ones(5)}, "bias"),
    ],
)
def test_mistakes_raise_errors_that_name_the_fix(change, message):
    options = {
        "packed": nd.ones((4, 32), dtype="int8"),
        "scales": nd.ones((4, 1)),
        "units": 4,
        "in_units": 32,
    }
    with pytest.raises(mx.MXNetError, match=message):
        nd.contrib.quantized_dot(nd.ones((2, 32)), **{**options, **change})
