"""Recorded arrays among other arguments: recorded, or an error instead of a lost gradient."""

import numpy as onp
import pytest

from mpgluon import autograd, gluon, nd, np, npx


@pytest.fixture
def x():
    x = np.array([1, 2, 3])
    x.attach_grad()
    return x


ARRAYS = {
    "numbers": (lambda x: np.array([x.sum(), x.max(), 2.0]), [1, 1, 2]),
    "weighted": (lambda x: np.array([x.sum(), x.max()]) * x[:2], [7, 4, 3]),
    "rows": (lambda x: np.asarray([x, [1, 2, 3], onp.ones(3)]), [1, 1, 1]),
    "nested": (lambda x: np.array(([x[0], 1], (x[1], x[0]))), [2, 1, 0]),
    "dtype": (lambda x: np.array([x.sum()], dtype="float64"), [1, 1, 1]),
    "lower bound": (lambda x: np.clip(x, x.min() * 1.5, 10), [1.5, 1, 1]),
    "upper bound": (lambda x: x.clip(0, x.sum() / 4), [1.5, 0.5, 0.5]),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("hybridize", [False, True])
def test_array_of_a_list_records_its_arrays(x, name, hybridize):
    function, expected = ARRAYS[name]

    class Block(gluon.HybridBlock):
        def forward(self, x):
            return function(x)

    block = Block()
    if hybridize:
        block.hybridize()
    values = block(x)
    with autograd.record():
        result = block(x)
        total = result.sum()
    total.backward()
    assert type(result) is np.ndarray and result.dtype == values.dtype
    assert onp.array_equal(result.asnumpy(), function(np.array([1, 2, 3])).asnumpy())
    assert onp.allclose(x.grad.asnumpy(), expected)


PARAMETERS = {
    "full_like": lambda x: np.full_like(x, x.sum()),
    "clip of nd": lambda x: nd.clip(x.as_nd_ndarray(), x.sum(), 9),
    "pad": lambda x: np.pad(x, 1, constant_values=x.sum()),
    "leaky_relu": lambda x: npx.leaky_relu(-x, slope=x[0]),
    "smooth_l1": lambda x: npx.smooth_l1(x, scalar=x.sum()),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_recorded_parameter_raises(x, name):
    function = PARAMETERS[name]
    function(x)
    with autograd.record():
        with pytest.raises(TypeError, match="is a recorded array, whose gradient would be lost"):
            function(x)
        with autograd.pause():
            function(x)


LISTS = {
    "insert": lambda x: np.insert(x, 0, [x.sum(), x[0]]),
    "ediff1d": lambda x: np.ediff1d(x, to_begin=[x.sum()]),
    "normal": lambda x: np.random.normal([x.sum()], 1),
    "ufunc": lambda x: onp.multiply(x, [x[0], x[1], x[2]]),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, [x[0]] * 3),
}


@pytest.mark.parametrize("name", LISTS)
def test_recorded_arrays_in_a_list_raise(x, name):
    function = LISTS[name]
    function(x)
    with (
        autograd.record(),
        pytest.raises(TypeError, match="recorded arrays, whose gradients would be lost; use np.st"),
    ):
        function(x)


@pytest.mark.parametrize("key", [slice(None), slice(0, 2), [0, 1]], ids=str)
def test_recorded_arrays_in_an_assigned_list_raise(x, key):
    y = np.zeros(2)
    y[key] = [x[0], x.sum()]
    assert y.tolist() == [1, 6]
    with autograd.record(), pytest.raises(RuntimeError, match="a recorded value cannot be ass"):
        y[key] = [x[0], x.sum()]
