"""BatchNorm on a GPU, alone and with relu: data of many shapes, far from zero, with NaN, and at any
address."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd
from support.compare import at, same_bits
from support.stand_in import needs_gpu

pytestmark = needs_gpu

CLOSE = {"float64": 1e-10, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}

# (rows, channels, spatial shape). LAST covers tiles of 8 and 256 channels with remainders and one
# or several chunks of rows. FIRST covers planes of all alignments, of several chunks, and several
# per chunk.
LAST = [
    (*rows, ()) for rows in ((1, 5), (40, 3), (700, 8), (3000, 24), (70, 264), (37, 530), (9, 2))
]
FIRST = [
    (3, 5, (7,)),
    (2, 3, (9001,)),
    (3, 2, (128, 128)),
    (41, 4, (8, 8)),
    (300, 3, (6, 6)),
    (2, 2, (2,)),
]


def arrays(shape, channels, dtype, seed, offset=0.0):
    random = np.random.RandomState(seed)
    x = random.randn(*shape) + offset
    return x, random.uniform(0.5, 2, channels), random.randn(channels)


def run(op, shape, axis, dtype, ctx, place=0, offset=0.0, nan=False, residual=False, **params):
    """Returns results, running statistics and gradients; data starts at element `place` of its
    memory."""
    channels = shape[axis]
    x, gamma, beta = arrays(shape, channels, dtype, 1, offset)
    if nan:
        x[-1, -1] = np.nan
        x[0, 0] = np.inf
    single = "float64" if dtype == "float64" else "float32"

    array = lambda values, kind: at(values, ctx, kind, place)
    data = [array(x, dtype), array(gamma, single), array(beta, single)]
    moving = [nd.zeros(channels, ctx=ctx, dtype=single), nd.ones(channels, ctx=ctx, dtype=single)]
    rest = [array(np.random.RandomState(2).randn(*shape), dtype)] if residual else []
    for a in data + rest:
        a.attach_grad()
    with autograd.record():
        y = _core.get_op(op)(*data, *moving, *rest, eps=1e-3, fix_gamma=False, **params)
        y = y[0] if isinstance(y, list | tuple) else y
    y.backward(array(np.random.RandomState(3).randn(*shape), dtype))
    found = [y, *moving, *(a.grad for a in data + rest)]
    return [a.astype("float64").asnumpy() for a in found]


def same(found, expected, dtype):
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        close = CLOSE[dtype] * max(1, np.abs(b[np.isfinite(b)]).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=CLOSE[dtype], atol=close, err_msg=f"array {index}")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("outer,channels,inner", LAST + FIRST)
def test_batch_norm_matches_the_cpu_at_any_address(outer, channels, inner, dtype):
    """Equals the CPU within rounding, and the address does not change a bit."""
    shape = (outer, channels, *inner)
    results = [
        run("BatchNorm", shape, 1, dtype, ctx, place)
        for ctx, place in ((mx.cpu(0), 0), (mx.gpu(0), 0), (mx.gpu(0), 1))
    ]
    same(results[1], results[0], dtype)
    same_bits(results[1], results[2])


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("outer,channels,inner", LAST)
def test_batch_norm_with_relu_and_addition_matches_the_cpu(
    outer, channels, inner, dtype, residual, nan
):
    """NaN propagates forward and backward."""
    results = [
        run(
            *("_batch_norm_relu", (outer, channels), 1, dtype, ctx, place),
            nan=nan,
            residual=residual,
            add=residual,
        )
        for ctx, place in ((mx.cpu(0), 0), (mx.gpu(0), 0), (mx.gpu(0), 3))
    ]
    # Near 0, rounding decides whether relu passes an element, so a few may differ.
    y, z = results[0][0], results[1][0]
    assert np.mean((y == 0) != (z == 0)) < 0.01
    same(results[1][:3], results[0][:3], dtype)
    if nan:
        assert np.array_equal(np.isnan(y), np.isnan(z)) and np.isnan(z).any()
        for a, b in zip(results[0][3:], results[1][3:]):
            assert np.array_equal(np.isnan(a), np.isnan(b))
    for a, b in zip(results[1], results[2]):
        assert np.array_equal(a, b, equal_nan=True)


@pytest.mark.parametrize("shape", [(3000, 16), (20, 3, 40, 40), (2, 3, 9001)])
def test_variance_of_data_far_from_zero_is_accurate(shape):
    """The variance stays accurate even if the first element is far from the others."""
    for offset, outlier in ((3e4, 0), (0, 1e3), (3e4, -1e3)):
        x, gamma, beta = arrays(shape, shape[1], "float32", 1, offset)
        x[0, :] += outlier
        x = x.astype("float32")
        params = [nd.array(v, ctx=mx.gpu(0)) for v in (gamma, beta)]
        moving = [nd.zeros(shape[1], ctx=mx.gpu(0)) for _ in range(2)]
        with autograd.record():
            y = nd.BatchNorm(
                *(nd.array(x, ctx=mx.gpu(0)), *params, *moving),
                eps=1e-5,
                fix_gamma=False,
                momentum=0,
            )
        axes = (0, *range(2, len(shape)))
        wide = x.astype("float64")
        mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
        away = np.abs(moving[0].asnumpy() - mean.reshape(-1))
        assert np.all(away < 1e-6 * (np.abs(mean) + np.sqrt(variance)).reshape(-1))
        np.testing.assert_allclose(moving[1].asnumpy(), variance.reshape(-1), rtol=2e-5)
        across = (1, -1, *(1 for _ in axes[1:]))
        expected = (wide - mean) / np.sqrt(variance + 1e-5) * gamma.reshape(across)
        np.testing.assert_allclose(
            y.asnumpy(),
            expected + beta.reshape(across),
            rtol=2e-5,
            atol=2e-5 * np.abs(expected).max(),
        )
