"""Checks of functions of mx.np against NumPy: eager, hybridized and differentiated."""

import numpy as np

import mpgluon as mx
from mpgluon import _core, autograd

TOLERANCES = {"float16": 5e-3, "float32": 2e-5, "float64": 1e-10}


def array(values, dtype=None):
    """Returns an array of mx.np with the dtype of a NumPy array, or of float32."""
    if dtype is None:
        dtype = values.dtype if isinstance(values, (np.ndarray, np.generic)) else "float32"
    return mx.nd.array(np.asarray(values), dtype=dtype).as_np_ndarray()


def values_of(shape, dtype="float64", seed=0):
    """Returns random values, which differ from each other if they are real."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.uniform(-2, 2, size=shape).astype(dtype)
    return rng.integers(0, 2 if dtype == "bool" else 5, size=shape).astype(dtype)


def listed(results):
    return [*results] if isinstance(results, (list, tuple)) else [results]


class Block(mx.gluon.HybridBlock):
    """A function as a block, in which calls of dynamic shape split the compiled program."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arrays):
        return listed(self.function(*arrays))


def check(function, reference, *inputs, gradient=True, dtype=None, dynamic=False):
    """Compares function(*arrays) with reference(*NumPy arrays).

    The results may be lists. The hybridized function must give the same bits as eager calls. With
    `gradient`, gradients of float64 inputs are compared with finite differences. `dynamic` marks
    functions whose shapes depend on values.
    """
    arrays = [array(x) for x in inputs]
    results = listed(function(*arrays))
    expected = listed(reference(*inputs))
    assert len(results) == len(expected)
    for x, wanted in zip(results, expected):
        wanted = np.asarray(wanted)
        assert type(x) is _core.ndarray
        assert x.shape == wanted.shape
        name = _core.dtype_name(x.dtype)
        assert name == str(dtype or wanted.dtype)
        close = TOLERANCES.get(name, 0)
        np.testing.assert_allclose(
            x.asnumpy().astype("float64"), wanted.astype("float64"), rtol=close, atol=close
        )
    if dynamic:
        compiled = Block(function)
        compiled.hybridize()
    else:
        compiled = _core.CachedOp(lambda *given: listed(function(*given)))
    for x, y in zip(results, listed(compiled(*arrays))):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_array_equal(x.asnumpy(), y.asnumpy())
    if gradient and all(x.dtype == "float64" for x in inputs) and all(x.size for x in inputs):
        for call in (function, compiled):
            check_gradient(call, inputs)


def check_gradient(function, inputs, step=1e-6):
    """Compares the gradients of a weighted sum of the results with finite differences."""
    arrays = [array(x) for x in inputs]
    for x in arrays:
        x.attach_grad()
    with autograd.record():
        results = listed(function(*arrays))
    weights = [values_of(x.shape, seed=7 + i) for i, x in enumerate(results)]
    autograd.backward(results, [array(w) for w in weights])

    def total(values):
        made = listed(function(*map(array, values)))
        return sum((x.asnumpy() * w).sum() for x, w in zip(made, weights))

    for i, x in enumerate(inputs):
        wanted = np.zeros(x.shape)
        for index in np.ndindex(x.shape):
            sides = []
            for move in (step, -step):
                changed = [np.array(y) for y in inputs]
                changed[i][index] += move
                sides.append(total(changed))
            wanted[index] = (sides[0] - sides[1]) / (2 * step)
        assert arrays[i].grad.shape == x.shape
        np.testing.assert_allclose(arrays[i].grad.asnumpy(), wanted, rtol=1e-5, atol=1e-6)
