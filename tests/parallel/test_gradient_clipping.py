"""Gradient norms include row_sparse gradients and exclude stale ones."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn

CPU = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("given", ["trainer", "parameters"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_norms_include_row_sparse_gradients(replicas, given, sparse):
    devices = CPU[:replicas]
    net = nn.HybridSequential()
    net.add(
        nn.Embedding(5, 2, sparse_grad=sparse),
        nn.Dense(1, in_units=2, flatten=False, use_bias=False),
    )
    net.initialize(mx.init.One(), ctx=devices)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    with autograd.record():
        losses = [(net(nd.array([[1, 3, 3]], ctx=ctx)) * 4).sum() for ctx in devices]
    autograd.backward(losses)
    trainer.allreduce_grads()
    which = trainer if given == "trainer" else net.collect_params()
    norm = mx.parallel.clip_global_norm(which, 0.5).asscalar()
    expected = replicas * np.sqrt(2 * 4**2 + 2 * 8**2 + 2 * 12**2)
    assert np.isclose(norm, expected, rtol=1e-4)
    for ctx in devices:
        scaled = net[1].weight.grad(ctx).asnumpy()
        assert np.allclose(scaled, 12 * replicas * 0.5 / expected, rtol=1e-4)


def test_norms_exclude_stale_gradients():
    """A norm includes only the gradients that the update uses."""
    params = [gluon.Parameter(name, shape=(1,)) for name in "ab"]
    for param in params:
        param.initialize(mx.init.Zero())
    one, other = params
    trainer = gluon.Trainer(params, "sgd", {"learning_rate": 1.0}, clip_global_norm=1.0)
    with autograd.record():
        loss = one.data() * 3 + other.data() * 400
    loss.backward()
    trainer.step(1)
    one.set_data(nd.zeros(1))
    other.set_data(nd.zeros(1))
    with pytest.raises(ValueError, match="since the last step"):
        mx.parallel.clip_global_norm(trainer, 1.0)
    with autograd.record():
        loss = one.data() * 3
    loss.backward()
    assert mx.parallel.clip_global_norm(trainer, 100.0).asscalar() == 3
    trainer.step(1, ignore_stale_grad=True)
    assert np.allclose([one.data().asscalar(), other.data().asscalar()], [-1, 0])
