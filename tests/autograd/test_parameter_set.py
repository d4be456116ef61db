"""Batched gradients of parameters bound to compiled calls.

backward handles these parameters as one set if possible and one by one otherwise, with equal
results.
"""

import gc

import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.base import MXNetError

A, B = mx.cpu(0), mx.cpu(1)


class Net(gluon.HybridBlock):
    """x * a + b * c. With `exact=True`, eager and compiled results are bitwise equal."""

    def __init__(self, share=None, unused=False, blocked=False, second=None):
        super().__init__()
        self.unused, self.blocked, self.second = unused, blocked, second
        with self.name_scope():
            for name in "abc":
                self._reg_params[name] = (
                    share._reg_params[name]
                    if share is not None and name != "c"
                    else self.params.get(name, shape=(3, 4))
                )
                self.params._params[self._reg_params[name].name] = self._reg_params[name]

    def hybrid_forward(self, F, x, a, b, c):
        if self.blocked:
            return F.BlockGrad(x * a + b * c)
        y = x * a + b * (x if self.unused else c)
        return (y.as_in_context(self.second) * 2).as_in_context(A) if self.second else y


def make(hybrid, **options):
    mx.random.seed(3)
    net = Net(**options)
    net.initialize(mx.init.Uniform(1), ctx=A)
    if hybrid:
        net.hybridize(exact=True)
    return net


def grads(*nets):
    return [
        [
            p.grad(p.list_ctx()[0]).asnumpy().copy()
            for p in net._reg_params.values()
            if p.grad_req != "null"
        ]
        for net in nets
    ]


X = nd.array([[1, 2, 3, 4], [0.5, 0.25, 2, 1], [3, 1, 4, 1.5]])


def once(hybrid, **options):
    net = make(hybrid, **options)
    with autograd.record():
        y = net(X)
    y.backward()
    return grads(net)


def twice_called(hybrid):
    net = make(hybrid)
    with autograd.record():
        y = net(net(X)) * net(X + 1)
    y.backward()
    return grads(net)


def two_nets(hybrid):
    first, second = make(hybrid), make(hybrid)
    out = []
    for _ in range(2):
        with autograd.record():
            y = second(first(X)) + first(X).sum() * 0
        y.backward()
        with autograd.record():
            y = second(first(X))
        y.backward()
        out += grads(first, second)
    return out


def sharing_nets(hybrid):
    first = make(hybrid)
    second = make(hybrid, share=first)
    out = []
    for _ in range(3):
        with autograd.record():
            y = second(first(X))
        y.backward()
        out += grads(first, second)
    return out


def used_outside(hybrid):
    net = make(hybrid)
    with autograd.record():
        y = net(X)
        loss = y.sum() + (net._reg_params["a"].data() ** 2).sum()
    loss.backward()
    return grads(net)


def a_head_is_a_parameter(hybrid):
    net = make(hybrid)
    with autograd.record():
        y = net(X)
    autograd.backward([y, net._reg_params["b"].data()])
    return grads(net)


def added(hybrid):
    net = make(hybrid)
    net._reg_params["a"].grad_req = "add"
    net._reg_params["b"].grad_req = "null"
    out = []
    for k in range(3):
        with autograd.record():
            y = net(X * k)
        y.backward()
        out += grads(net)
    net._reg_params["a"].zero_grad()
    net._reg_params["b"].grad_req = "add"
    for k in range(2):
        with autograd.record():
            y = net(X + k)
        y.backward(retain_graph=True)
        y.backward()
        out += grads(net)
    return out


def two_pending(hybrid):
    """Runs two forward passes, then their backward passes in reverse order."""
    net = make(hybrid)
    for p in net._reg_params.values():
        p.grad_req = "add"
    with autograd.record():
        y, z = net(X), net(X * 2)
    z.backward()
    y.backward()
    return grads(net)


def input_wanted(hybrid):
    net, x = make(hybrid), X.copy()
    x.attach_grad()
    with autograd.record():
        y = (net(x) * x).sum()
    y.backward()
    return [*grads(net), [x.grad.asnumpy()]]


def parameter_is_input_too(hybrid):
    net = make(hybrid)
    with autograd.record():
        y = net(net._reg_params["a"].data())
    y.backward()
    return grads(net)


def asked_one_by_one(hybrid):
    net = make(hybrid)
    with autograd.record():
        y = net(X)
        found = autograd.grad(
            y, [net._reg_params["c"].data(), net._reg_params["a"].data()], retain_graph=True
        )
    y.backward()
    return [[g.asnumpy() for g in found], *grads(net)]


def of_gradients(hybrid):
    net = make(hybrid)
    with autograd.record():
        y = (net(X) ** 2).sum()
        (g,) = autograd.grad(y, [net._reg_params["a"].data()], create_graph=True)
        z = (g**2).sum()
    z.backward()
    return grads(net)


CASES = [
    twice_called,
    two_nets,
    sharing_nets,
    used_outside,
    a_head_is_a_parameter,
    added,
    two_pending,
    input_wanted,
    parameter_is_input_too,
    asked_one_by_one,
    of_gradients,
]
CASES += [
    pytest.param(lambda hybrid, options=options: once(hybrid, **options), id=name)
    for name, options in [
        ("once", {}),
        ("unused", {"unused": True}),
        ("blocked", {"blocked": True}),
        ("two devices", {"second": B}),
    ]
]


@pytest.mark.parametrize("case", CASES)
def test_parameter_gradients_match_eager(case):
    expected, found = case(False), case(True)
    assert len(expected) == len(found)
    for ours, theirs in zip(found, expected):
        for a, b in zip(ours, theirs):
            assert (a == b).all(), (a, b)


def gradients(net):
    return [p.grad().asnumpy().copy() for p in net._reg_params.values()]


def test_gradients_use_parameter_values_read_by_the_call():
    net = make(True)
    a, b, c = [p.data() for p in net._reg_params.values()]
    for write in (
        lambda: b.__setitem__(slice(None), 1),
        lambda: net._reg_params["c"].set_data(nd.ones((3, 4))),
        lambda: c.__iadd__(1),
        lambda: a.__setitem__(slice(None), 3),  # its gradient reads x
        lambda: [p.__imul__(2) for p in (a, b, c)],
    ):
        with autograd.record():
            y = net(X)
        y.backward(retain_graph=True)
        expected = gradients(net)
        write()
        y.backward(retain_graph=True)
        write()
        y.backward()
        for found, wanted in zip(gradients(net), expected):
            assert (found == wanted).all()


def test_each_pending_call_keeps_its_parameter_values_across_write():
    net = make(True)
    b = net._reg_params["b"].data()
    former = b.asnumpy()
    with autograd.record():
        y = net(X)
    b[:] = 2
    with autograd.record():
        z = net(X)
    y.backward()
    assert (net._reg_params["c"].grad().asnumpy() == former).all()
    z.backward()
    assert (net._reg_params["c"].grad().asnumpy() == 2).all()


def test_backward_reads_the_arrays_of_its_forward():
    """Replacing the arrays of parameters after a recorded call does not affect its backward."""
    net = make(True)
    old = [p.data() for p in net._reg_params.values()]
    with autograd.record():
        y = net(X)
    net.initialize(mx.init.Zero(), ctx=A, force_reinit=True)
    y.backward()
    assert (old[0].grad.asnumpy() == X.asnumpy()).all() and (
        old[1].grad.asnumpy() == old[2].asnumpy()
    ).all()
    assert (net._reg_params["a"].grad().asnumpy() == 0).all()
    w = old[0]
    w.attach_grad()
    with autograd.record():
        net(X).backward()
    assert (net._reg_params["a"].grad().asnumpy() == X.asnumpy()).all() and (
        w.grad.asnumpy() == 0
    ).all()


def test_gradients_pending_copy_to_another_device_are_not_overwritten():
    net = make(True)
    big = nd.ones((600, 600), ctx=B)
    for k in range(1, 20):
        with autograd.record():
            y = net(X * k)
        y.backward()
        for _ in range(3):
            nd.dot(big, big)  # keeps the other device busy, so the copy runs later
        copy = net._reg_params["a"].grad().as_in_context(B)
        with autograd.record():
            y = net(X * 100)
        y.backward()
        assert (copy.asnumpy() == (X * k).asnumpy()).all()


def test_gradients_are_marked_fresh_and_memory_is_freed():
    net = make(True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with autograd.record():
        y = net(X)
    y.backward()
    trainer.step(1)
    with pytest.raises(UserWarning, match="has not been updated by backward"):
        trainer.step(1)
    with pytest.raises(MXNetError, match="retain_graph"):
        y.backward()
    nd.waitall()
    gc.collect()
    before = mx.context.memory_stats(A)["in_use"]
    del y, net, trainer
    gc.collect()
    nd.waitall()
    assert mx.context.memory_stats(A)["in_use"] <= before - 2 * 3 * 4 * 4 * 3
