"""Arrays that a hybridized block creates from numbers, uses and then writes.

As in eager execution, each use sees the contents at that point.
"""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.parallel import Pipeline
from support.captures import MODES


def written_whole(F, x):
    k = nd.array([1.0, 2.0, 3.0])
    y = F.broadcast_mul(x, k)
    k[:] = 5
    return y, F.broadcast_add(x, k)


def written_in_part(F, x):
    k = nd.array([1.0, 2.0, 3.0])
    y = F.broadcast_mul(x, k)
    k[1:2] = 7
    z = F.broadcast_mul(x, k)
    k[0] = -1
    return y, z, F.broadcast_mul(x, k)


def added_to(F, x):
    k, results = nd.array([1.0, 2.0, 3.0]), []
    for _ in range(4):
        results.append(F.broadcast_mul(x, k))
        k += 1
    return results


def written_through_a_view(F, x):
    k = nd.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    y = F.broadcast_mul(x, k[0:1])
    view = k.reshape((6,))
    view[0:3] = 9
    return y, F.broadcast_mul(x, k[0:1]), F.broadcast_mul(x, k[1:2])


def view_of_what_is_written(F, x):
    k = nd.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    y = F.broadcast_mul(x, k[1:2])
    k[:] = 0
    return y


def out(F, x):
    k, other = nd.array([1.0, 2.0, 3.0]), nd.array([4.0, 4.0, 4.0])
    y = F.broadcast_mul(x, k)
    nd.elemwise_add(k, other, out=k)
    return y, F.broadcast_mul(x, k)


def copied_to(F, x):
    k = nd.array([1.0, 2.0, 3.0])
    y = F.broadcast_mul(x, k)
    nd.array([7.0, 7.0, 7.0]).copyto(k)
    return y, F.broadcast_mul(x, k)


def updated(F, x):
    weight, gradient = nd.array([1.0, 2.0, 3.0]), nd.array([1.0, 1.0, 1.0])
    y = F.broadcast_mul(x, weight)
    nd.sgd_update(weight, gradient, lr=0.5, out=weight)
    return y, F.broadcast_mul(x, weight)


def variable(F, x):
    k = nd.array([1.0, 2.0, 3.0])
    k.attach_grad()
    y = F.broadcast_mul(x, k)
    with autograd.pause():
        k[:] = 5
    return y, F.broadcast_mul(x, k)


def in_the_body_of_a_loop(F, x):
    k = nd.array([1.0, 2.0, 3.0])
    y, _ = F.contrib.foreach(lambda row, state: (row * k, state), x, [])
    k[:] = 5
    return y, F.broadcast_mul(x, k)


def one_buffer_for_all(F, x):
    buffer, results = nd.array([0.0, 0.0, 0.0]), []
    for i in range(3):
        buffer[i] = 1
        results.append(F.broadcast_mul(x, buffer))
    return F.stack(*results, axis=1)


BODIES = [
    written_whole,
    written_in_part,
    added_to,
    written_through_a_view,
    view_of_what_is_written,
    out,
    copied_to,
    updated,
    variable,
    in_the_body_of_a_loop,
    one_buffer_for_all,
]


class Net(gluon.HybridBlock):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def hybrid_forward(self, F, x):
        return self.body(F, x)


def run(body, **flags):
    """Results and input gradients of two calls on different inputs."""
    net, found = Net(body), []
    if flags:
        net.hybridize(**flags)
    for seed in range(2):
        x = nd.array(np.random.RandomState(seed).uniform(1, 2, (4, 3)))
        x.attach_grad()
        with autograd.record():
            results = net(x)
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            loss = sum((i + 1) * result.sum() for i, result in enumerate(results))
        loss.backward()
        found += [a.asnumpy() for a in [*results, x.grad, *[net(x)[0]]]]
    return found


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "eager"])
def test_each_use_sees_array_contents_at_that_point(body, mode):
    expected, found = run(body), run(body, **{"active": True, **MODES[mode]})
    assert len(expected) == len(found)
    for a, b in zip(expected, found):
        np.testing.assert_allclose(a, b, rtol=1e-6)


# A pipeline supports neither variables created inside (clear error) nor loops over the batch.
@pytest.mark.parametrize("body", [b for b in BODIES if b not in (variable, in_the_body_of_a_loop)])
def test_each_use_sees_array_contents_at_that_point_in_pipeline(body):
    for a, b in zip(run(body), run(body, pipeline=Pipeline(2))):
        np.testing.assert_allclose(a, b, rtol=1e-6)


class Kept(gluon.HybridBlock):
    """Creates its array in the first call and keeps it."""

    k = None

    def hybrid_forward(self, F, x):
        if self.k is None:
            self.k = nd.array([1.0, 2.0, 3.0])
        return F.broadcast_mul(x, self.k)


def test_writes_after_trace_are_seen_by_later_calls():
    net, x = Kept(), nd.ones((1, 3))
    net.hybridize()
    assert net(x).asnumpy().tolist() == [[1, 2, 3]]
    net.k[:] = 4
    assert net(x).asnumpy().tolist() == [[4, 4, 4]]


class Cut(gluon.HybridBlock):
    """Runs as two programs with host code between them."""

    def hybrid_forward(self, F, x):
        k = nd.array([1.0, 2.0, 3.0])
        y = F.broadcast_mul(x, k)
        k[:] = 5
        y = F.contrib.boolean_mask(y, F.sum(y, axis=1) > 0)
        z = F.broadcast_mul(y, k)
        k[:] = 7
        return z


def test_each_use_sees_array_contents_at_that_point_across_break():
    found = []
    for hybridized in (False, True):
        net = Cut()
        net.hybridize(hybridized)
        found.append([net(nd.ones((2, 3)) * i).asnumpy().tolist() for i in (1, 2)])
    assert found[0] == found[1]


@pytest.mark.parametrize("grad_req", ("write", "add", "null"))
def test_attach_grad_in_a_hybridized_forward_raises_an_error(grad_req):
    outside = nd.ones(3)

    class Attaching(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            outside.attach_grad(grad_req)
            return x + outside

    net = Attaching()
    net.hybridize()
    with pytest.raises(mx.MXNetError, match="attach_grad cannot be called inside"):
        net(nd.ones(3))
