"""Several calls of a pipelined block before one backward, which sums their gradients."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on


class Branching(gluon.HybridBlock):
    """Two results; only the second needs the last layer."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.last = nn.Dense(4, in_units=3), nn.Dense(2, in_units=4)

    def hybrid_forward(self, F, x):
        h = self.first(x)
        return h, self.last(h)


def gradients(pipelined, grad_req, use, eager_use):
    """Returns the gradients after one backward of the results `use(net(x))` of several calls; they
    are initialized to 7."""
    mx.random.seed(1)
    net = Branching()
    net.initialize(mx.init.Uniform(1), ctx=on(0))
    net.place({"first": on(0), "last": on(1)}, verbose=False)
    if pipelined:
        net.hybridize(pipeline=mx.parallel.Pipeline(2))
    params = list(net.collect_params().values())
    for param in params:
        param.grad_req = grad_req
        for array in param.list_grad():
            array[:] = 7
    heads = []
    for seed in range(len(use)):
        x = nd.array(np.random.RandomState(seed).rand(4, 3), ctx=on(0))
        with autograd.record():
            heads.append(nd.square(net(x)[use[seed]]).sum(axis=1))
    if eager_use:
        with autograd.record():
            heads.append(nd.square(net.first.weight.data()).sum())
    autograd.backward(heads)
    return [param.grad().asnumpy() for param in params]


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("eager_use", [False, True])
@pytest.mark.parametrize("use", [(1, 1), (1, 0), (0, 1), (1, 0, 1)])
def test_gradients_of_several_calls_are_summed(use, eager_use, grad_req):
    wanted = gradients(False, grad_req, use, eager_use)
    for a, b in zip(gradients(True, grad_req, use, eager_use), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("retain", [False, True])
def test_autograd_grad_sums_several_calls(retain):
    found = []
    for pipelined in (False, True):
        mx.random.seed(1)
        net = Branching()
        net.initialize(mx.init.Uniform(1), ctx=on(0))
        net.hybridize(**({"pipeline": mx.parallel.Pipeline(2)} if pipelined else {}))
        x = nd.array(np.random.RandomState(3).rand(4, 3), ctx=on(0))
        with autograd.record():
            heads = [nd.square(net(x)[i]).sum() for i in (0, 1, 0)]
        weights = [net.first.weight.data(), net.last.weight.data()]
        for _ in range(1 + retain):
            grads = autograd.grad(heads, weights, retain_graph=retain)
        found.append([grad.asnumpy() for grad in grads])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_row_sparse_gradients_of_several_calls_are_summed():
    found = []
    for pipelined in (False, True):
        mx.random.seed(1)
        net = nn.HybridSequential()
        net.add(nn.Embedding(10, 3, sparse_grad=True), nn.Dense(2, in_units=3, flatten=False))
        net.initialize(mx.init.Uniform(1), ctx=on(0))
        if pipelined:
            net.hybridize(pipeline=mx.parallel.Pipeline(2))
        with autograd.record():
            heads = [nd.square(net(nd.array(rows, ctx=on(0)))) for rows in ([1, 2], [2, 5])]
        autograd.backward(heads)
        found.append([p.grad().tostype("default").asnumpy() for p in net.collect_params().values()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class Partial(gluon.HybridBlock):
    """Only the results after the first depend on `late`, and none depends on `unused`."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            for name in ("weight", "late", "unused"):
                setattr(self, name, self.params.get(name, shape=(1, 3), init="ones"))

    def hybrid_forward(self, F, x, weight, late, unused):
        h = F.broadcast_mul(x, weight)
        return h, F.broadcast_mul(h, late), F.broadcast_add(F.BlockGrad(h), late)


class Detached(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.shift = self.params.get("shift", shape=(1, 3), init="ones")

    def hybrid_forward(self, F, x, shift):
        return F.broadcast_add(x.detach(), shift)


WAYS = {
    "hybridized": dict,
    "static": lambda: {"static_alloc": True, "static_shape": True},
    "pipelined": lambda: {"pipeline": mx.parallel.Pipeline(2)},
}


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("use", [(0,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2, 2), (0, "detached")])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_that_no_call_reaches_are_unchanged_and_stale(way, use, grad_req):
    found = []
    for flags in (None, WAYS[way]()):
        net, after = Partial(), Detached()
        params = [*net.collect_params().values(), *after.collect_params().values()]
        for block in (net, after):
            block.initialize(ctx=on(0))
            if flags is not None:
                block.hybridize(**flags)
        for param in params:
            param.grad_req = grad_req
            param.grad()[:] = 7
        x = nd.array(np.random.RandomState(0).rand(4, 3), ctx=on(0))
        with autograd.record():
            heads = [after(net(x)[1]) if i == "detached" else net(x)[i] for i in use]
        autograd.backward(heads)
        found.append([(p.data()._fresh_grad, p.grad().asnumpy().tolist()) for p in params])
    for (fresh, grad), (wanted_fresh, wanted) in zip(*reversed(found), strict=True):
        assert fresh == wanted_fresh
        np.testing.assert_allclose(grad, wanted, rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_autograd_grad_of_unreached_parameters_is_zero(way):
    net = Partial()
    net.initialize(ctx=on(0))
    net.hybridize(**WAYS[way]())
    x = nd.ones((4, 3), ctx=on(0))
    with autograd.record():
        heads = [net(x)[0] for _ in range(2)]
    params = [net.weight, net.late, net.unused]
    grads = autograd.grad(heads, [param.data() for param in params])
    assert [grad.asnumpy().tolist() for grad in grads] == [[[8.0] * 3], [[0.0] * 3], [[0.0] * 3]]
