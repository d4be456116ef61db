"""A small network, its training steps and its weights."""

import numpy as np

import mpgluon as mx
from mpgluon import autograd, nd
from mpgluon.gluon import nn


def backward_of(compute):
    """Records a computation, computes its gradients, and returns its result."""
    with autograd.record():
        result = compute()
    result.backward()
    return result


def variable(array):
    """Attaches a gradient to an array and returns it."""
    array.attach_grad()
    return array


def network(ctx=None):
    mx.random.seed(1)
    net = nn.HybridSequential(prefix="n_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3, activation="tanh"), nn.Dense(2, in_units=4))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return net


def backward(net, number):
    """Computes the gradients of a network with three inputs for the batch of this number."""
    first = next(iter(net.collect_params().values()))
    x = nd.array(np.random.RandomState(number).randn(5, 3), ctx=first.list_ctx()[0])
    backward_of(lambda: (net(x.astype(first.dtype)) ** 2).sum())


def train(net, trainer, begin=0, end=3):
    for number in range(begin, end):
        backward(net, number)
        trainer.step(5)


def values(net):
    return [p.list_data()[0].asnumpy() for p in net.collect_params().values()]


def same(one, other):
    """True if all weights of two networks are equal."""
    return all(np.array_equal(a, b) for a, b in zip(values(one), values(other), strict=True))
