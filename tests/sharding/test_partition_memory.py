"""Memory of parameters that are stored in parts (the axis `shard`), measured by the pools."""

import gc

import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on

LAYERS, UNITS = 12, 256
LAYER = UNITS * UNITS  # parameters of a layer
ADAM = 16  # bytes for each parameter: weight, gradient and two states


def in_use(devices):
    gc.collect()
    nd.waitall()
    return [mx.context.memory_stats(ctx)["in_use"] for ctx in devices]


def train_three_steps(net, devices):
    """Returns the peak memory of the last step on each device."""
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    x = nd.random.normal(shape=(8, UNITS), ctx=devices[0])
    for step in range(3):
        if step == 2:
            for ctx in devices:
                mx.context.reset_peak_memory(ctx)
        with autograd.record():
            y = net(x)
        y.backward()
        trainer.step(8)
        nd.waitall()
    return [mx.context.memory_stats(ctx)["peak_in_use"] for ctx in devices]


def make_layers(ctx):
    net = nn.HybridSequential()
    for _ in range(LAYERS):
        net.add(nn.Dense(UNITS, activation="relu", use_bias=False, in_units=UNITS))
    net.initialize(ctx=ctx)
    return net


@pytest.mark.parametrize("shares", [[1, 1], [1, 1, 1], [3, 1]], ids=str)
def test_devices_hold_their_share_and_the_layers_in_use(shares):
    """The bound is ZeRO-3's: each device holds its share of everything, two whole layers (in
    use, and the next one) and the gradient of one."""
    devices = [on(i) for i in range(len(shares))]
    before = in_use(devices)
    net = make_layers(devices[0])
    axis = len(shares) if len(set(shares)) == 1 else shares
    mx.parallel.Mesh({"shard": axis}, devices).partition(net)
    for peak, share, base in zip(train_three_steps(net, devices), shares, before):
        own = ADAM * LAYERS * LAYER * share / sum(shares)
        assert own <= peak - base <= 1.03 * (own + 3 * 4 * LAYER), (peak / LAYER, own / LAYER)
    [entry] = net.compiled()
    for device in entry["devices"].values():
        assert device["planned"]["total"] <= 3.5 * 4 * LAYER


def test_weights_are_kept_for_the_backward_pass():
    """ZeRO-2: each device holds whole weights during a step, and the gradient of one layer."""
    devices = [on(0), on(1)]
    before = in_use(devices)
    net = make_layers(devices[0])
    mx.parallel.Mesh({"shard": 2}, devices).partition(net, zero=2)
    for peak, base in zip(train_three_steps(net, devices), before):
        own = (ADAM / 2 + 4) * LAYERS * LAYER
        assert own <= peak - base <= 1.03 * (own + 4 * LAYER), (peak / LAYER, own / LAYER)
    copies = [
        sum(step["kind"] == "copy" and step.get("recomputed", False) for step in device["backward"])
        for device in net.compiled()[0]["devices"].values()
    ]
    assert copies == [0, 0]


def test_parts_of_split_layers_are_stored_in_parts():
    """Each device holds a quarter of everything, and gathers the half of a layer that it uses."""
    devices = [on(i) for i in range(4)]
    before = in_use(devices)
    net = make_layers(devices[0])
    cut = ("model", "shard")
    plan = {f"{i}.weight": (None, cut) if i % 2 else (cut,) for i in range(LAYERS)}
    mesh = mx.parallel.Mesh({"shard": 2, "model": 2}, devices)
    mesh.partition(net, {**plan, "data0": "shard"})
    for peak, base in zip(train_three_steps(net, devices), before):
        own = ADAM * LAYERS * LAYER / 4
        assert own <= peak - base <= 1.03 * (own + 3 * 4 * LAYER / 2), (peak / LAYER, own / LAYER)
    moves = net.compiled().shardings().transfers
    gathered = sum(
        move["bytes"] for move in moves if "sharded" in move["op"] and move["kind"] == "gather"
    )
    assert gathered == LAYERS * 4 * LAYER  # a quarter of a layer for each device


@pytest.mark.parametrize("shares", [[1, 1], [1, 1, 1], [3, 1]], ids=str)
def test_devices_send_their_parts_before_they_compute(shares):
    """Otherwise, the devices take turns: one waits until the other has computed with the whole."""
    devices = [on(i) for i in range(len(shares))]
    net = nn.HybridSequential()
    for _ in range(5):
        net.add(nn.Dense(64, activation="relu", in_units=64))
    net.initialize(ctx=devices[0])
    axis = len(shares) if len(set(shares)) == 1 else shares
    mx.parallel.Mesh({"shard": axis}, devices).partition(net)
    net.hybridize()
    with autograd.record():
        y = net(nd.ones((12, 64), ctx=devices[0]))
    y.backward()
    [entry] = net.compiled()
    for device in entry["devices"].values():
        for phase in ("forward", "backward"):
            first = {}  # (block, kind of step) -> position
            for position, step in enumerate(device[phase]):
                if phase == "forward" or step.get("recomputed"):  # not copies of gradients
                    kind = "copy" if step["kind"] == "copy" else step.get("op")
                    first.setdefault((step.get("scope"), kind), position)
            gathered = [block for block, kind in first if kind == "Concat" and "." in block]
            assert len(gathered) == (5 if phase == "forward" else 4)
            for block in gathered:
                assert first[block, "copy"] < first[block, "Concat"], (phase, block)
