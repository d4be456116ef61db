"""mx.parallel.check_against_single_device."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn
from mpgluon.parallel import check_against_single_device


class Spread(gluon.HybridBlock):
    def __init__(self, devices=(0, 1, 2)):
        super().__init__()
        self.devices = [mx.cpu(d) for d in devices]
        with self.name_scope():
            self.a = nn.Dense(8, in_units=5, activation="tanh")
            self.norm = nn.BatchNorm(in_channels=8)
            self.b = nn.Dense(6, in_units=8)
            self.drop = nn.Dropout(0.4)
        self.a.initialize(mx.init.Xavier(), ctx=self.devices[0])
        self.norm.initialize(ctx=self.devices[1])
        self.b.initialize(mx.init.Xavier(), ctx=self.devices[2])

    def hybrid_forward(self, F, x):
        x = self.norm(self.a(x).as_in_context(self.devices[1]))
        y = self.drop(self.b(x.as_in_context(self.devices[2])))
        return y * F.arange(6, ctx=self.devices[2]), x.sum()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_check_reports_no_difference_for_a_placed_network(exact, train):
    net = Spread()
    x = nd.array(np.random.RandomState(0).randn(4, 5))
    mean = net.norm.running_mean.data().asnumpy()
    mx.random.seed(3)
    before = mx.random.get_state()
    differences = check_against_single_device(net, x, train=train, exact=exact)
    assert set(differences) >= {"output 0", "output 1", f"the gradient of {net.a.weight.name}"}
    assert not any(differences.values())
    assert mx.random.get_state() == before
    assert np.array_equal(net.norm.running_mean.data().asnumpy(), mean)
    assert not net.a.weight.grad().asnumpy().any()


def staged(x):
    def make():
        net = nn.HybridSequential()
        net.add(nn.Dense(8, in_units=5), nn.Dense(7, in_units=8), nn.Dropout(0.3), nn.Dense(6))
        net.initialize()
        net(x)
        return net

    return make


def on_plan(net, x):
    devices, loss = [mx.cpu(0), mx.cpu(1)], gluon.loss.L2Loss()
    plan = par.plan(net, x, devices, loss=loss, labels=nd.ones((4, 6)), trials=0)
    return plan.move("1", mx.cpu(1)).move("3", mx.cpu(0))


@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize(
    "where",
    [
        lambda net, x: par.Mesh({"stage": 2}),
        lambda net, x: par.Mesh({"data": 2, "stage": 2}),
        lambda net, x: par.Mesh({"stage": 2, "model": 2}),
        lambda net, x: {"0": mx.cpu(1), "3": mx.cpu(2)},
        lambda net, x: mx.cpu(3),
        on_plan,
    ],
    ids=["stages", "replicas", "split", "dict", "device", "plan"],
)
def test_check_accepts_any_placement(where, hybridize):
    x = nd.array(np.random.RandomState(0).randn(4, 5))
    net = staged(x)()
    net.place(where(net, x), verbose=False)
    if hybridize:
        net.hybridize()
    differences = check_against_single_device(net, x, rtol=1e-6)
    assert len(differences) >= 7 and "output 0" in differences


def test_check_names_the_differing_output():
    class Depends(Spread):
        """A network whose output depends on its device."""

        def hybrid_forward(self, F, x):
            out, total = super().hybrid_forward(F, x)
            return out * (1 + (out.context == mx.cpu(2))), total

    with pytest.raises(
        mx.MXNetError, match=r"output 0 differs from the result of one device \(cpu\(0\)\) by up to"
    ):
        check_against_single_device(Depends(), nd.array(np.random.RandomState(0).randn(4, 5)))


def test_check_rejects_plain_blocks_and_accepts_recorded_ones():
    with pytest.raises(mx.MXNetError, match="must be a HybridBlock"):
        check_against_single_device(gluon.loss.L2Loss)
    net = Spread()
    net.hybridize()
    with autograd.record():
        net(nd.ones((4, 5)))
    assert check_against_single_device(net, nd.ones((4, 5)), rtol=1e-6)
