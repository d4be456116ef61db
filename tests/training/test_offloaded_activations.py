"""Activations on another device (`hybridize(offload=...)`): bits, memory and errors."""

import gc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.gluon._compiled import offload as option
from mpgluon.parallel import Pipeline, TrainStep
from support.compare import same_bits
from support.devices import on
from support.failures import sweep
from support.meshes import mesh_of

HOME, AWAY = on(0), on(5)
OFFLOAD = {"activations": AWAY}
UNITS, ROWS = 48, 32


class Residual(gluon.HybridBlock):
    """Random numbers, running statistics, a residual, views, and a value that is used twice."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.norm = nn.BatchNorm(in_channels=UNITS)
            self.first = nn.Dense(2 * UNITS, in_units=UNITS)
            self.second = nn.Dense(UNITS, in_units=2 * UNITS)
            self.dropout = nn.Dropout(0.3)

    def hybrid_forward(self, F, x):
        y = F.LeakyReLU(self.first(self.norm(x)), act_type="gelu").reshape((-1, 2, UNITS))
        y = F.swapaxes(y, 1, 2).reshape((-1, 2 * UNITS))
        return x + self.dropout(F.tanh(self.second(y)) * F.sigmoid(x))


class Recurrent(gluon.HybridBlock):
    """A loop whose steps are parts of one graph, and an LSTM."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.cell = rnn.GRUCell(UNITS, input_size=UNITS)
            self.lstm = rnn.LSTM(UNITS, input_size=UNITS)

    def hybrid_forward(self, F, x):
        x = x.reshape((4, -1, UNITS))
        outputs, _ = self.cell.unroll(4, x, layout="TNC", merge_outputs=True)
        return self.lstm(outputs).reshape((-1, UNITS))


class Loop(gluon.HybridBlock):
    """A loop of the core."""

    def hybrid_forward(self, F, x):
        def body(data, state):
            state = F.tanh(data + state)
            return state * data, state

        x = x.reshape((2, -1, UNITS))
        outputs, _ = F.contrib.foreach(body, x, F.ones_like(x[0]))
        return outputs.reshape((-1, UNITS))


class Breaks(gluon.HybridBlock):
    """An operator whose result's shape depends on values, between two layers."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = nn.Dense(UNITS, activation="tanh", in_units=UNITS)
            self.second = nn.Dense(UNITS, activation="tanh", in_units=UNITS)

    def hybrid_forward(self, F, x):
        x = F.contrib.boolean_mask(self.first(x), x.sum(axis=1) > -100)
        return self.second(x) * F.tanh(x)


def convolutions():
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.HybridLambda(lambda F, x: x.reshape((-1, 3, 4, 4))))
        net.add(nn.Conv2D(8, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=8))
        net.add(nn.Activation("relu"), nn.MaxPool2D(2, strides=1), nn.Conv2D(4, 2, in_channels=8))
        net.add(nn.Flatten(), nn.Dense(UNITS, in_units=16))
    return net


def gated():
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.RMSNorm(in_channels=UNITS), nn.GatedMLP(UNITS, 96, in_units=UNITS, dropout=0.2))
        net.add(nn.LayerNorm(in_channels=UNITS))
    return net


ZOO = {
    "residual": Residual,
    "convolutions": convolutions,
    "gated": gated,
    "recurrent": Recurrent,
    "loop": Loop,
    "graph break": Breaks,
}


def network(make=Residual, layers=3, dtype="float32", ctx=HOME):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for i in range(layers):
            net.add(make())
            net.add(nn.Dense(UNITS, activation="relu", in_units=UNITS, prefix=f"between{i}_"))
    mx.random.seed(2)
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.cast(dtype)
    return net


def batch(dtype="float32"):
    return nd.array(np.random.RandomState(4).randn(ROWS, UNITS), ctx=HOME).astype(dtype)


def train(net, steps=2, dtype="float32"):
    """Returns losses, gradients and parameters as NumPy arrays."""
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x = batch(dtype)
    x.attach_grad()
    mx.random.seed(6)
    found = []
    for _ in range(steps):
        with autograd.record():
            y = net(x)
        y.backward()
        trainer.step(ROWS)
        found += [y.astype("float32").asnumpy(), x.grad.astype("float32").asnumpy()]
    params = net.collect_params().values()
    return found + [p.data(p.list_ctx()[0]).astype("float32").asnumpy() for p in params]


def planned(net):
    """Returns the planned bytes by device, of all parts of the network."""
    found = {}
    for entry in net.compiled():
        for name, device in entry["devices"].items():
            own = found.setdefault(name, {})
            for kind, size in device["planned"].items():
                own[kind] = own.get(kind, 0) + size
    return found


def copied(net, device=AWAY):
    """Returns the planned bytes of activations on another device."""
    return planned(net).get(str(device), {"lanes": 0})["lanes"]


WAYS = {
    "hybridized": ({}, {}),
    "static": ({"static_alloc": True, "static_shape": True}, {}),
    "exact": ({"exact": True}, {}),
    "recompute": ({"recompute": True}, {}),
    "units": ({}, {"offload": OFFLOAD}),
    "recomputed units": ({}, {"offload": OFFLOAD, "recompute": True}),
    "eager": (None, {"offload": OFFLOAD}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ZOO)
def test_training_keeps_the_bits(name, way):
    flags, of_units = WAYS[way]
    found = []
    for offload in (False, True):
        net = network(ZOO[name])
        if flags is not None:
            own = {} if of_units or not offload else {"offload": OFFLOAD}
            net.hybridize(**flags, **own)
        for unit in net:
            if of_units:
                unit.hybridize(**{**of_units, "offload": OFFLOAD if offload else None})
        found.append(train(net))
    same_bits(found[1], found[0])
    if flags is not None and way != "recompute":
        assert copied(net) > 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions_keep_the_bits(dtype):
    found = []
    for offload in (None, OFFLOAD):
        net = network(gated, dtype=dtype)
        net.hybridize(offload=offload)
        found.append(train(net, dtype=dtype))
    same_bits(found[1], found[0])
    assert copied(net) > 0


@pytest.mark.parametrize("mode", [("sync",), ("shuffle", 1), ("shuffle", 2)], ids=str)
def test_engine_modes_keep_the_bits(mode):
    net = network()
    net.hybridize()
    expected = train(net)
    try:
        mx.engine.set_mode(*mode)
        net = network()
        net.hybridize(offload=OFFLOAD)
        same_bits(train(net), expected)
    finally:
        mx.engine.set_mode("async")


def test_retained_graphs_and_several_calls_keep_the_bits():
    found = []
    for offload in (None, OFFLOAD):
        net, x, grads = network(), batch(), []
        net.hybridize(offload=offload)
        for param in net.collect_params().values():
            if param.grad_req != "null":
                param.grad_req = "add"
        mx.random.seed(3)
        with autograd.record():
            first, second = net(x), net(x * 2)
        first.backward(retain_graph=True)
        second.backward()
        first.backward(nd.ones_like(first) * 3)
        for param in net.collect_params().values():
            if param.grad_req != "null":
                grads.append(param.grad().asnumpy())
        found.append(grads)
    same_bits(found[1], found[0])


def test_second_gradients_keep_the_bits():
    found = []
    for offload in (None, OFFLOAD):
        net, x = network(Loop), batch()
        net.hybridize(offload=offload)
        x.attach_grad()
        with autograd.record():
            (gradient,) = autograd.grad(net(x).sum(), [x], create_graph=True, retain_graph=True)
            penalty = (gradient**2).sum()
        penalty.backward()
        found.append([x.grad.asnumpy(), net[1].weight.grad().asnumpy()])
    same_bits(found[1], found[0])


def test_values_return_to_their_own_devices():
    found = []
    for offload in (None, OFFLOAD):
        net = network(layers=4)
        net.place({str(i): on(i // 4) for i in range(8)}, verbose=False)
        net.hybridize(offload=offload)
        found.append(train(net))
    same_bits(found[1], found[0])
    [entry] = net.compiled()
    backward = entry["devices"][str(AWAY)]["backward"]
    assert {step["to"] for step in backward if step["kind"] == "copy"} == {str(HOME), str(on(1))}
    assert all(planned(net)[str(ctx)]["saved"] < copied(net) / 4 for ctx in (HOME, on(1)))


@pytest.mark.parametrize("plan", [{"data0": "data"}, {"1.weight": "data"}, {}], ids=str)
@pytest.mark.parametrize("parameters", [None, {"parameters": on(6)}], ids=str)
def test_partitioned_networks_keep_the_bits(plan, parameters):
    found = []
    for offload in (None, OFFLOAD):
        net = network(gated)
        mesh_of({"data": 2}).partition(net, plan, offload=parameters)
        net.hybridize(offload=offload)
        found.append(train(net))
    same_bits(found[1], found[0])
    assert copied(net) > 0


def layers(count=8, units=256):
    net = nn.HybridSequential()
    for _ in range(count):
        unit = nn.HybridSequential()
        unit.add(
            nn.Dense(units, activation="tanh", in_units=units), nn.Dense(units), nn.LayerNorm()
        )
        net.add(unit)
    net.initialize(ctx=HOME)
    return net


def peaks(flags, units=256, rows=512):
    """Returns the peak memory of both devices in a step, without parameters, gradients and input,
    and the network."""

    def stats(name):
        gc.collect()
        nd.waitall()
        return [mx.context.memory_stats(ctx)[name] for ctx in (HOME, AWAY)]

    net, x = layers(units=units), nd.random.normal(shape=(rows, units), ctx=HOME)
    net.hybridize()
    for unit in net:
        unit.hybridize(**flags)
    for step in range(3):
        if step == 2:
            before = stats("in_use")
            for ctx in (HOME, AWAY):
                mx.context.reset_peak_memory(ctx)
        with autograd.record():
            y = net(x)
        y.backward()
        del y
    return [peak - base for peak, base in zip(stats("peak_in_use"), before)], net


def test_peak_memory_falls():
    """A layer keeps three values. Without offload, all of them are in memory at the end of the
    forward pass. With it, the device has room for the values of one layer and their gradients."""
    value = 512 * 256 * 4
    kept, _ = peaks({})
    offloaded, net = peaks({"offload": OFFLOAD})
    recomputed, _ = peaks({"recompute": True})
    both, _ = peaks({"offload": OFFLOAD, "recompute": True})
    assert kept[0] >= 8 * 3 * value and kept[1] <= value
    assert offloaded[0] <= 6.5 * value and offloaded[1] >= (8 * 3 - 2) * value
    assert both[0] < recomputed[0] and both[1] <= 8 * value
    own = planned(net)[str(HOME)]
    assert own["saved"] <= value / 8 and own["backward"] <= 3 * value


def test_copies_back_wait_for_the_backward_pass():
    """Each copy is sent when the device reaches its position, and at most one value ahead."""
    _, net = peaks({"offload": OFFLOAD})
    [entry] = net.compiled()
    steps = [step["kind"] for step in entry["devices"][str(AWAY)]["backward"]]
    assert steps == ["wait", "copy", "signal"] * (len(steps) // 3)
    kinds = [step["kind"] for step in entry["devices"][str(HOME)]["backward"]]
    runs = [kinds[:i].count("run") for i, kind in enumerate(kinds) if kind == "signal"]
    assert runs[:2] == [0, 0] and len(set(runs)) > 12


def test_small_values_inputs_and_outputs_stay():
    net = layers(units=16)
    net.hybridize(offload=OFFLOAD)
    x = nd.ones((8, 16), ctx=HOME)
    with autograd.record():
        net(x).backward()
    assert str(AWAY) not in planned(net)
    x = nd.ones((64, 16), ctx=HOME)
    with autograd.record():
        net(x).backward()
    assert copied(net) == 64 * 16 * 4 * (8 * 3 - 1)  # the last result is an output


def test_values_on_the_other_device_stay():
    net = network()
    net.hybridize(offload={"activations": HOME})
    train(net)
    assert list(planned(net)) == [str(HOME)]


def test_units_choose_their_own_device():
    net = network()
    net.hybridize(offload=OFFLOAD)
    train(net, 1)
    whole = copied(net)
    net[2].hybridize(offload={"activations": on(6)})
    train(net, 1)
    assert 0 < copied(net) < whole and copied(net, on(6)) > 0
    net.hybridize()
    train(net, 1)
    assert list(planned(net)) == [str(HOME)]


def test_a_change_of_a_unit_compiles_its_parent_again():
    net = network()
    net.hybridize()
    train(net, 1)
    net[2].hybridize(offload=OFFLOAD)
    train(net, 1)
    assert copied(net) > 0
    net[2].hybridize()
    train(net, 1)
    assert copied(net) == 0


def test_prediction_copies_nothing():
    net = network()
    net.hybridize(offload=OFFLOAD)
    net(batch())
    assert list(planned(net)) == [str(HOME)]


def test_written_values_stay(monkeypatch):
    """A value that a later operator overwrites is read by the backward pass as it is then."""
    monkeypatch.setattr(option, "SMALLEST", 1)

    class Norms(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm(in_channels=UNITS)

        def hybrid_forward(self, F, x):
            return self.norm(self.norm(x) * F.tanh(x))

    found = []
    for offload in (None, OFFLOAD):
        net = network(Norms)
        net.hybridize(offload=offload)
        found.append(train(net))
    same_bits(found[1], found[0])


def test_failed_allocations_leave_a_usable_network():
    net = network(gated, layers=1)

    def work():
        net.hybridize(offload=OFFLOAD)
        with autograd.record():
            net(batch()).backward()

    work()
    assert sweep(work, stride=7) > 0
    net.hybridize(offload=OFFLOAD)
    expected = network(gated, layers=1)
    expected.hybridize()
    same_bits(train(net), train(expected))


@pytest.mark.parametrize(
    "value, error, text",
    [
        ({"states": AWAY}, ValueError, "hybridize: offload must be a dict from"),
        ({**OFFLOAD, "parameters": AWAY}, ValueError, "parameters by Mesh.partition"),
        (AWAY, ValueError, "hybridize: offload must be a dict from"),
        ({"activations": "cpu"}, mx.MXNetError, "to 'cpu'.*expected a device or an existing"),
        ({"activations": None}, TypeError, "must be a device or the path of a directory, not None"),
    ],
    ids=str,
)
def test_invalid_values_raise(value, error, text):
    with pytest.raises(error, match=text.replace("(", r"\(")):
        network().hybridize(offload=value)


def test_a_memory_budget_raises():
    net = network()
    net.hybridize(recompute="64KB")
    net[0].hybridize(offload=OFFLOAD)
    net(batch())  # prediction keeps nothing
    with autograd.record(), pytest.raises(mx.MXNetError, match="block with a memory budget"):
        net(batch())


def test_pipelines_raise():
    net = network(gated)
    net.place({str(i): on(i // 3) for i in range(6)}, verbose=False)
    net.hybridize(pipeline=Pipeline(2), offload=OFFLOAD)
    with autograd.record(), pytest.raises(mx.MXNetError, match="offloaded in a pipeline"):
        net(batch())
    net.hybridize(offload=OFFLOAD)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    step = TrainStep(net, gluon.loss.L2Loss(), trainer, Pipeline(2))
    with pytest.raises(mx.MXNetError, match="TrainStep"):
        step(batch(), batch().as_in_context(on(1)))
