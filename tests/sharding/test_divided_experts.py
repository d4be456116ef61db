"""Mixtures of experts on several devices: each device computes the rows of its experts from copies
of all tokens, and sends the results back to the devices of the tokens."""

import numpy as np
import pytest

from mpgluon import autograd, gluon
from mpgluon.gluon import nn
from support.meshes import ADAM, build, check, gradients, inputs, trained

UNITS, HIDDEN = 16, 24
EXPERTS = {"moe.(gate|up|down)_weight": "expert"}
HIDDEN_UNITS = {"moe.(gate|up)_weight": (None, "model")}
TOKENS = {"data0": "expert", **EXPERTS}


class Block(gluon.HybridBlock):
    """A mixture of experts between two dense layers."""

    def __init__(self, **options):
        super().__init__(prefix="net_")
        options = {"experts": 8, "k": 2, **options}
        with self.name_scope():
            self.before = nn.Dense(UNITS, flatten=False, in_units=UNITS)
            self.moe = nn.MoE(UNITS, HIDDEN, in_units=UNITS, prefix="moe_", **options)
            self.after = nn.Dense(4, flatten=False, in_units=UNITS)

    def hybrid_forward(self, F, x):
        return self.after(self.moe(self.before(x)))


class Twice(gluon.HybridBlock):
    """Experts whose sorted rows have a second use."""

    def __init__(self):
        super().__init__(prefix="net_")
        self.router = nn.Dense(4, in_units=UNITS, use_bias=False, prefix="router_")
        self.moe_up_weight = gluon.Parameter("moe_up_weight", shape=(4, UNITS, UNITS))

    def hybrid_forward(self, F, x, moe_up_weight):
        order, counts, weights, _ = F.contrib.route(self.router(x), k=2)
        rows = F.contrib.dispatch(x, order)
        y = F.contrib.combine(F.contrib.grouped_dot(rows, moe_up_weight, counts), order, weights)
        return y + F.contrib.combine(F.tanh(rows), order, weights)


def of(**options):
    return lambda: Block(**options)


def result(net, batch):
    with autograd.record():
        out = net(batch)
    out.backward()
    return out.astype("float64").asnumpy()


def transfers(net, of="_contrib_combine"):
    return [t for t in net.compiled().shardings().transfers if t["op"] == of]


@pytest.mark.parametrize("axes", [{"expert": 2}, {"expert": 4}, {"expert": [5, 2, 1]}])
@pytest.mark.parametrize(
    "options",
    [{}, {"k": 1}, {"k": 3, "shared": 1}, {"capacity": 0.75}, {"router": "sigmoid"}],
    ids=str,
)
@pytest.mark.parametrize("plan", [TOKENS, EXPERTS], ids=["cut tokens", "whole tokens"])
def test_bits(axes, options, plan):
    """Results and the gradients of experts have the bits of one device."""
    batch = inputs((24, 3, UNITS), dtype="float32")[0]
    nets = [build(of(**options), *args, dtype="float32") for args in ((axes, plan), ())]
    found, wanted = (result(net, batch) for net in nets)
    np.testing.assert_array_equal(found, wanted)
    found, wanted = map(gradients, nets)
    check(found, wanted, "float32")
    for name in ("gate", "up", "down"):
        key = next(key for key in wanted if key.endswith(f"moe_{name}_weight"))
        np.testing.assert_array_equal(found[key], wanted[key])


@pytest.mark.parametrize(
    ("axes", "plan"),
    [
        ({"expert": 4}, TOKENS),
        ({"expert": 2}, {"data0": (None, "expert"), **EXPERTS}),
        ({"data": 2, "expert": 2}, {"data0": "data", **EXPERTS}),
        ({"data": 2, "expert": 2}, {"data0": (("data", "expert"),), **EXPERTS}),
        ({"data": 2, "expert": 2}, {"data0": (("expert", "data"),), **EXPERTS}),
        ({"data": 2, "expert": 2}, {"data0": ("data", "expert"), **EXPERTS}),
        ({"expert": 2, "shard": 2}, {"data0": "shard", **EXPERTS}),
        ({"expert": 2}, {"after.weight": (None, "expert"), **EXPERTS}),
    ],
    ids=str,
)
@pytest.mark.parametrize("flags", [{}, {"recompute": True}, {"static_alloc": True}], ids=str)
def test_training(axes, plan, flags):
    batches = [inputs((8, 4, UNITS)), inputs((4, 6, UNITS))]
    make = of(aux_loss=0.1, z_loss=0.01)
    net = build(make, axes, plan, **flags)
    found = trained(net, batches, ADAM)
    check(found, trained(build(make), batches, ADAM), "float64")
    assert [t["kind"] for t in transfers(net)][0] in ("reduce", "reduce_scatter")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    batch = inputs((24, 4, UNITS), dtype=dtype)[0]
    found, wanted = (
        result(build(Block, *args, dtype=dtype), batch) for args in (({"expert": 4}, TOKENS), ())
    )
    np.testing.assert_array_equal(found, wanted)


def test_trees():
    """With sums by trees, the number of devices does not matter."""
    batch = inputs((24, 3, UNITS))
    found, wanted = (
        trained(build(Block, {"expert": n}, TOKENS, leaves={"expert": 4}), [batch]) for n in (4, 2)
    )
    for key, value in wanted.items():
        np.testing.assert_array_equal(found[key], value)


def test_bytes():
    """Each device receives the tokens of the others once, and k rows for each of its tokens from
    each of them. Hidden values stay where they are."""
    devices, tokens, k, bytes_per_row = 4, 64, 2, UNITS * 4
    net = build(Block, {"expert": devices}, TOKENS, dtype="float32")
    result(net, inputs((tokens, UNITS), dtype="float32")[0])
    assert [(t["kind"], t["bytes"]) for t in transfers(net)] == [
        ("reduce_scatter", (devices - 1) * tokens * k * bytes_per_row)
    ]
    gathered = (devices - 1) * tokens * bytes_per_row
    assert ("gather", gathered) in [
        (t["kind"], t["bytes"]) for t in transfers(net, "FullyConnected")
    ]
    assert not transfers(net, "_contrib_grouped_dot") + transfers(net, "_contrib_dispatch")


@pytest.mark.parametrize(
    ("make", "axes", "plan"),
    [
        (Twice, {"expert": 2}, TOKENS),
        (Block, {"expert": 2, "model": 2}, {"moe.down_weight": "expert", **HIDDEN_UNITS}),
        (Block, {"expert": 2}, {"moe.down_weight": "expert"}),
        (Block, {"expert": 2}, {"before.weight": "expert", **EXPERTS}),
        (Block, {"expert": 2, "model": 2}, {"before.weight": "model", **EXPERTS}),
        (Block, {"expert": 2, "model": 2}, {"after.weight": (None, "model"), **EXPERTS}),
    ],
    ids=["two uses", "hidden units", "one product", "cut inputs", "cut units", "cut results"],
)
def test_other_divisions(make, axes, plan):
    """Other networks add up the rows after each product."""
    batches = [inputs((24, UNITS))]
    net = build(make, axes, plan)
    check(trained(net, batches), trained(build(make), batches), "float64")
    assert any(t["kind"] == "reduce" for t in transfers(net, "_contrib_grouped_dot"))
