"""Programs on four devices that are divided among ranks. Prints a hash of each program's results.

mpirun -n 2 python programs.py      or, all in one process:  python programs.py
"""

import gc
import sys

import numpy as np
import parallel_programs  # noqa: F401
import placed_programs  # noqa: F401
from registered import LOSS, PROGRAMS, inputs, main, program

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.contrib import amp
from mpgluon.gluon import nn


def train(net, devices, steps=3, optimizer="sgd", settings=None, shape=(8, 6), classes=3):
    """Trains and returns the losses, the final outputs and all parameters."""
    trainer = gluon.Trainer(
        net.collect_params(),
        optimizer,
        {"learning_rate": 0.1, "momentum": 0.9} if settings is None else settings,
    )
    kept = []
    for step in range(steps):
        x = inputs(step, shape, devices[0])
        label = nd.array(np.arange(shape[0]) % classes, ctx=devices[-1])
        with autograd.record():
            out = net(x)
            loss = LOSS(out, label)
        loss.backward()
        trainer.step(shape[0])
        kept.append(loss)
    kept.append(net(x))
    return kept + [p.data() for p in net.collect_params().values()]


class Chain(gluon.HybridBlock):
    """Layers on the devices in turn, each followed by dropout."""

    def __init__(self, devices, depth=5):
        super().__init__()
        self.devices = devices
        with self.name_scope():
            self.layers = nn.HybridSequential()
            for i in range(depth):
                self.layers.add(nn.Dense(12, activation="tanh", in_units=12 if i else 6))
            self.drop = nn.Dropout(0.3)
            self.output = nn.Dense(3, in_units=12)
        for i, layer in enumerate(self.layers):
            layer.initialize(mx.init.Xavier(), ctx=devices[i % len(devices)])
        self.output.initialize(ctx=devices[-1])

    def hybrid_forward(self, F, x):
        for i, layer in enumerate(self.layers):
            x = self.drop(layer(x.as_in_context(self.devices[i % len(self.devices)])))
        return self.output(x.as_in_context(self.devices[-1]))


class Branches(gluon.HybridBlock):
    """Two branches on two devices. Both pass through a shared layer on a third device and are
    joined on a fourth device."""

    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        with self.name_scope():
            self.left = nn.Dense(10, activation="relu", in_units=6)
            self.right = nn.Dense(10, activation="sigmoid", in_units=6)
            self.shared = nn.Dense(10, in_units=10)
            self.output = nn.Dense(3, in_units=10)
        for layer, device in zip((self.left, self.right, self.shared, self.output), devices):
            layer.initialize(mx.init.Xavier(), ctx=device)

    def hybrid_forward(self, F, x):
        d = self.devices
        a = self.left(x.as_in_context(d[0]))
        b = self.right(x.as_in_context(d[1]))
        a = self.shared(a.as_in_context(d[2])).as_in_context(d[0]) + a
        b = self.shared(b.as_in_context(d[2])).as_in_context(d[1]) * b
        both = F.concat(a.as_in_context(d[3]), b.as_in_context(d[3]), dim=0)
        return self.output(F.slice_axis(both, axis=0, begin=0, end=8))


MODES = {"eager": None, "exact": {"exact": True}, "hybridized": {}}


def in_mode(net, mode):
    if MODES[mode] is not None:
        net.hybridize(**MODES[mode])
    return net


for mode in MODES:

    def chain(devices, mode=mode):
        return train(in_mode(Chain(devices), mode), devices, optimizer="adam", settings={})

    def branches(devices, mode=mode):
        return train(in_mode(Branches(devices), mode), devices)

    PROGRAMS[f"chain_{mode}"], PROGRAMS[f"branches_{mode}"] = chain, branches


@program
def copies(devices):
    """Copies back and forth, of empty arrays up to arrays sent in several parts, also from and to a
    local device."""
    kept = []
    for size in (0, 1, 7, 1000, 16384, 16385, 300_000):
        x = nd.arange(size, ctx=devices[0]) if size else nd.zeros((0, 2), ctx=devices[0])
        for device in (*devices, *devices[::-1]):
            x = x.as_in_context(device) + 1
        kept.append(x)
    own = nd.arange(5)  # each rank has its own array
    for device in devices:
        kept.append((own.as_in_context(device) * 2).as_in_context(own.context) + own)
    out = nd.zeros((5,), ctx=devices[1])
    own.copyto(out)
    kept.append(out[1:3].copyto(devices[2]))
    return kept


@program
def random_numbers(devices):
    """All ranks count each random call, on any device."""
    kept = [nd.random.normal(shape=(3, 4), ctx=device) for device in devices]
    kept += [nd.Dropout(nd.ones((4, 5), ctx=devices[3]), p=0.5, mode="always")]
    return [*kept, nd.random.uniform(shape=(3,), ctx=devices[2])]


@program
def gradients(devices):
    """Second-order autograd.grad, grad_req "add", and a gradient that returns to a local device."""
    x = inputs(1, (4, 3), devices[0])
    own = inputs(2, (4, 3), mx.cpu(0))
    x.attach_grad("add")
    own.attach_grad()
    with autograd.record():
        y = (x.as_in_context(devices[1]) ** 2 * own.as_in_context(devices[1])).sum()
        first = autograd.grad(y, x, create_graph=True, retain_graph=True)[0]
        z = (first.as_in_context(devices[3]) ** 2).sum() + y.as_in_context(devices[3])
    z.backward()
    return [first, x.grad, own.grad]


class Triple(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 3)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 3)


@mx.operator.register("triple_on_ranks")
class TripleProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Triple()


class Broken(gluon.HybridBlock):
    """Two graph breaks. An array before the first break is in a reference cycle. Rank 1 runs the
    garbage collector, and other ranks keep the array."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(5, in_units=6), nn.Dense(4, in_units=5)
        self.kept = []

    def hybrid_forward(self, F, x):
        h = self.first(x)
        cycle = [h]
        cycle.append(cycle)
        del cycle
        gc.collect() if par.rank() == 1 else self.kept.append(h)
        return F.Custom(
            self.second(F.Custom(h, op_type="triple_on_ranks")), op_type="triple_on_ranks"
        )


@program
def graph_breaks(devices):
    net = Broken()
    net.place({"first": devices[0], "second": devices[1]}, verbose=False)
    net.initialize(mx.init.Xavier())
    return train(in_mode(net, "hybridized"), devices[:2], classes=4)


@program
def amp_float16(devices):
    """An overflow on one rank skips the update and halves the loss scale on all ranks."""
    amp.init("float16")
    try:
        net = nn.HybridSequential()
        net.add(nn.Dense(8, in_units=6), nn.Dense(4, in_units=8))
        net.place({"0": devices[0], "1": devices[1]}, verbose=False)
        net.initialize(mx.init.Xavier())
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        amp.init_trainer(trainer)
        kept = []
        for step in range(3):
            with autograd.record():
                loss = net(inputs(step, (8, 6), devices[0]) * 10 ** (3 - 3 * step)).sum()
                with amp.scale_loss(loss, trainer) as scaled:
                    autograd.backward(scaled)
            trainer.step(8)
            kept += [loss, nd.array([trainer._amp_loss_scaler.loss_scale])]
        return [*kept, *[p.data() for p in net.collect_params().values()]]
    finally:
        amp.turn_off()


@program
def clipped_by_utils(devices):
    """MXNet's gluon.utils.clip_global_norm, which reads the norm."""
    arrays = [inputs(i, (4, 3), device) for i, device in enumerate(devices)]
    norm = gluon.utils.clip_global_norm(arrays, 1.0)
    return [nd.array([norm]), *arrays]


if __name__ == "__main__":
    main(sys.argv[1:])
