"""Collectives compared bit for bit with NumPy references: values and gradients."""

import numpy as np

from mpgluon import autograd, gluon, nd, parallel as par
from support.devices import on

DEVICES = [on(i) for i in range(5)]


def arrays_of(count, shape, seed=0, scale=True):
    """Returns one array per device with very different scales, to expose the summation order."""
    rng = np.random.RandomState(seed)
    values = [
        (rng.standard_normal(shape) * (7.0**i if scale else 1)).astype("float32")
        for i in range(count)
    ]
    return values, [nd.array(v, ctx=ctx) for v, ctx in zip(values, DEVICES)]


def in_order(values):
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def cut(value, count, axis):
    return [
        np.take(value, range(begin, end), axis)
        for begin, end in par.collectives.divide(value.shape[axis], count)
    ]


# name -> (function of arrays, the same for NumPy arrays, input gradients for output gradients)
def cases(count, axis):
    devices = DEVICES[:count]
    split = lambda values: [cut(v, count, axis) for v in values]
    join = lambda values: np.concatenate(values, axis)

    def exchange(values):
        parts = split(values)
        return [join([parts[rank][i] for rank in range(count)]) for i in range(count)]

    def lengths(values, like):
        """Joins `values`, then splits the result like the arrays of `like`."""
        ends = np.cumsum([v.shape[axis] for v in like])[:-1]
        return np.split(join(values), ends, axis)

    everywhere = lambda values: [in_order(values)] * count
    return {
        "all_reduce": (
            lambda x: par.all_reduce(x, "one_shot"),
            everywhere,
            lambda x, g: [in_order(g)] * count,
        ),
        "two_shot": (
            lambda x: par.all_reduce(x, "two_shot"),
            everywhere,
            lambda x, g: [in_order(g)] * count,
        ),
        "reduce": (
            lambda x: [par.reduce(x, DEVICES[count - 1])],
            lambda x: [in_order(x)],
            lambda x, g: g * count,
        ),
        "reduce_scatter": (
            lambda x: par.reduce_scatter(x, axis),
            lambda x: cut(in_order(x), count, axis),
            lambda x, g: [join(g)] * count,
        ),
        "all_gather": (
            lambda x: par.all_gather(x, axis),
            lambda x: [join(x)] * count,
            lambda x, g: lengths([in_order(g)], x),
        ),
        "gather": (
            lambda x: [par.gather(x, axis=axis)],
            lambda x: [join(x)],
            lambda x, g: lengths(g, x),
        ),
        "scatter": (
            lambda x: par.scatter(x[0], devices, axis),
            lambda x: cut(x[0], count, axis),
            lambda x, g: [join(g)] + [0 * v for v in x[1:]],
        ),
        "broadcast": (
            lambda x: par.broadcast(x[0], devices),
            lambda x: [x[0]] * count,
            lambda x, g: [in_order(g)] + [0 * v for v in x[1:]],
        ),
        "all_to_all": (
            lambda x: par.all_to_all(x, axis, axis),
            exchange,
            lambda x, g: _back(x, g, count, axis),
        ),
    }


def _back(x, grads, count, axis):
    """Inverse of all_to_all: gradient d holds the d-th part of every rank's array."""
    result = [[] for _ in range(count)]
    for d, grad in enumerate(grads):
        sizes = [cut(v, count, axis)[d].shape[axis] for v in x]
        for rank, part in enumerate(np.split(grad, np.cumsum(sizes)[:-1], axis)):
            result[rank].append(part)
    return [np.concatenate(parts, axis) for parts in result]


NAMES = list(cases(2, 0))


class Collective(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arrays):
        return self.function(list(arrays))


def check(count, shape, axis, name, hybridize=False, seed=0):
    call, reference, backward = cases(count, axis)[name]
    values, arrays = arrays_of(count, shape, seed)
    if hybridize:
        block = Collective(call)
        block.hybridize()
        call = lambda x: block(*x)
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        outputs = call(arrays)
        if name in ("scatter", "broadcast"):
            outputs = list(outputs) + [0 * a for a in arrays[1:]]
    expected = reference(values)
    rng = np.random.RandomState(seed + 1)
    grads = [
        (rng.standard_normal(e.shape) * 5.0**i).astype("float32") for i, e in enumerate(expected)
    ]
    heads = [nd.array(g, ctx=out.context) for g, out in zip(grads, outputs)]
    heads += [nd.zeros(out.shape, ctx=out.context) for out in outputs[len(heads) :]]
    autograd.backward(outputs, heads)
    for out, value in zip(outputs, expected):
        assert out.shape == value.shape
        assert np.array_equal(out.asnumpy(), value), name
    for array, grad in zip(arrays, backward(values, grads)):
        assert array.grad.context == array.context
        assert np.array_equal(array.grad.asnumpy(), grad), name
    return outputs
