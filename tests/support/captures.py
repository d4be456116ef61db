"""Blocks that apply a body to an input, a parameter and a captured array, in every mode."""

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.devices import on


def same(x, y):
    return x.shape == y.shape and np.allclose(
        x, y, rtol=1e-5, atol=1e-5 * max(1, np.abs(x).max(initial=0))
    )


class Net(gluon.HybridBlock):
    """Applies a body to an input, a parameter and a captured array.

    The second half runs on another device if there is one.
    """

    def __init__(self, body, captured=None):
        super().__init__()
        self.body, self.captured = body, captured
        self.w = self.params.get("w", shape=(2, 3), init=mx.init.Constant(0.5))
        self.initialize(ctx=on(0))

    def hybrid_forward(self, F, x, w):
        return self.body(F, x, w, self.captured)


MODES = {
    "eager": None,
    "hybridized": {},
    "exact": {"exact": True},
    "static": {"static_alloc": True, "static_shape": True},
}


def make(body, mode, captured=None):
    net = Net(body, captured)
    if MODES[mode] is not None:
        net.hybridize(**MODES[mode])
    return net


def array(seed, shape=(2, 3), ctx=None):
    return nd.array(
        np.random.RandomState(seed).uniform(0.5, 1.5, shape).astype("float32"), ctx=ctx or on(0)
    )


def check_alike(eager, other, what):
    assert len(eager) == len(other), what
    for a, b in zip(eager, other):
        assert (
            str(a) == str(b) if isinstance(a, Exception) or isinstance(b, Exception) else same(a, b)
        ), what


def paused(function):
    with autograd.pause():
        return function()


def first_of(value):
    return value[0] if isinstance(value, list) else value
