"""How near results are to the exact ones, and what becomes of NaN, infinities and the sign of zero."""

import numpy as np
import pytest

import mpgluon as mx
from places import on


@pytest.fixture(autouse=True)
def first_device():
    with on(0):
        yield


@pytest.mark.parametrize("shape, axis", [((10**6,), 0), ((200000, 3), 0), ((2, 200000), 1), ((100, 20, 200), None)])
@pytest.mark.parametrize("offset", [0.1, 1e4])
def test_cumulative_sums_do_not_drift(shape, axis, offset):
    values = (offset + np.random.RandomState(0).normal(size=shape) * 0.01).astype("float32")
    for reverse in (False, True):
        x = mx.nd.array(values)
        x.attach_grad()
        with mx.autograd.record():
            y = mx.nd.cumsum(x, axis=axis, reverse=reverse)
        y.backward(x if axis is not None else x.reshape((-1,)))
        for reversed_, result in ((reverse, y.asnumpy()), (not reverse, x.grad.asnumpy().reshape(y.shape))):
            exact = values.astype("float64") if axis is not None else values.astype("float64").ravel()
            end = (slice(None),) * (axis or 0) + (slice(None, None, -1 if reversed_ else 1),)
            exact = np.cumsum(exact[end], axis or 0)[end]
            np.testing.assert_allclose(result, exact, rtol=1.3e-7)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size, kernel", [(4, 2), (10, 10)])
def test_max_pooling_keeps_nan_and_infinities(size, kernel, dtype, layout):
    """Each window's largest element as NumPy's max has it, and its gradient at that element; eager and compiled."""
    nan, inf = np.nan, np.inf
    planes = np.arange(4.0 * size * size).reshape(4, size, size) % 7
    planes[0, :2, :2] = [[1, nan], [2, 3]]
    planes[1] = -inf
    planes[2, 1, 1], planes[2, 3, 3] = -inf, inf
    planes[3, :2, :2] = nan
    values = planes[None] if layout == "NCHW" else np.moveaxis(planes[None], 1, -1)
    steps = size // kernel
    expected = planes.reshape(4, steps, kernel, steps, kernel).max((2, 4))

    class Pool(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.Pooling(x, kernel=(kernel, kernel), stride=(kernel, kernel), layout=layout)

    for mode in ({}, {"active": True, "exact": True}, {"active": True}):
        net = Pool()
        if mode:
            net.hybridize(**mode)
        x = mx.nd.array(values, dtype=dtype)
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward(mx.nd.ones_like(y))
        out, slope = y.asnumpy()[0], x.grad.asnumpy()[0]
        if layout == "NHWC":
            out, slope = np.moveaxis(out, -1, 0), np.moveaxis(slope, -1, 0)
        np.testing.assert_array_equal(out, expected)
        slope = slope.reshape(4, steps, kernel, steps, kernel)
        assert (slope.sum((2, 4)) == 1).all()  # each window has one, which is its largest
        largest = np.where(slope == 1, planes.reshape(slope.shape), 0).sum((2, 4))
        np.testing.assert_array_equal(largest, expected)
