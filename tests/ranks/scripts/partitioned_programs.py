"""Networks that are partitioned over four devices, which are divided among ranks. Prints a hash of
each program's results.

mpirun -n 2 python partitioned_programs.py      or, all in one process, without mpirun
"""

import sys
import tempfile

from registered import LOSS, PROGRAMS, inputs, main, program, values

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon._internal import ranks
from mpgluon.gluon import nn
from support.pipelines import Attention

SHARD = {"data": 2, "shard": 2}, None
UNEVEN = {"shard": [3, 1, 2, 1]}, None
MODEL = (
    {"data": 2, "model": 2},
    {"data0": "data", "0.weight": "model", "2.weight": (None, "model")},
)
QUARTERS = (
    {"shard": 2, "model": 2},
    {"data0": "shard", "0.weight": "model+shard", "2.weight": (None, "model+shard")},
)
STAGES = {"stage": 2, "model": 2}, {"0.weight": "model", "2.weight": (None, "model")}
STAGES_OF_SHARDS = {"shard": 2, "stage": 2}, None
ADAM = "adam", {"learning_rate": 1e-2}


def mlp():
    net = nn.HybridSequential()
    net.add(nn.Dense(64, in_units=48, activation="relu"), nn.LayerNorm(in_channels=64))
    net.add(nn.Dense(40, in_units=64), nn.Dense(10, in_units=40))
    return net


def build(make, devices, where, **flags):
    mx.random.seed(3)
    net = make()
    net.initialize(mx.init.Xavier(), ctx=devices[0])
    if where is not None:
        par.Mesh(where[0], devices).partition(net, *where[1:2], **dict(where[2:]))
    net.hybridize(**flags)
    return net


def labels(count, ctx):
    return nd.array([k % 10 for k in range(count)], ctx=ctx)


def train(net, device, trainer, numbers=(0, 1, 2), shape=(8, 48)):
    kept = []
    for i in numbers:
        x = inputs(i, shape, device)
        with autograd.record():
            y = net(x)
            loss = LOSS(y, labels(shape[0], y.context))
        loss.backward()
        trainer.step(shape[0])
        kept.append(loss)
    return [*kept, net(x)]


WHERE = {
    "shard": (SHARD, ["hybridized", "eager"], [(1, "gpipe"), (4, "gpipe")]),
    "uneven": (UNEVEN, ["recomputed", "clipped"], [(4, "gpipe")]),
    "model": (MODEL, ["hybridized", "clipped"], [(4, "gpipe")]),
    "quarters": (QUARTERS, ["hybridized", "clipped"], [(4, "gpipe")]),
    "stages": (STAGES, ["hybridized", "clipped"], [(4, "gpipe"), (4, "1f1b")]),
    "stages_of_shards": (STAGES_OF_SHARDS, ["recomputed", "eager"], [(1, "gpipe"), (4, "1f1b")]),
}
FLAGS = {
    "hybridized": {},
    "clipped": {},
    "eager": {"active": False},
    "recomputed": {"recompute": True},
}

for name, (where, ways, pipelines) in WHERE.items():
    for way in ways:

        def loop(devices, where=where, way=way):
            net = build(mlp, devices, where, **FLAGS[way])
            clipping = {"clip_global_norm": 0.5} if way == "clipped" else {}
            trainer = gluon.Trainer(net.collect_params(), *ADAM, **clipping)
            return [*train(net, devices[0], trainer), *values(net)]

        PROGRAMS[f"{name}_{way}"] = loop

    for micro_batches, schedule in pipelines:

        def steps(devices, where=where, micro_batches=micro_batches, schedule=schedule):
            net = build(mlp, devices, where)
            last = par.Mesh(where[0], devices).device(stage=-1)
            trainer = gluon.Trainer(net.collect_params(), *ADAM)
            step = par.TrainStep(net, LOSS, trainer, par.Pipeline(micro_batches, schedule))
            losses = [step(inputs(i, (8, 48), devices[0]), labels(8, last)) for i in range(3)]
            return [*losses, *values(net)]

        PROGRAMS[f"{name}_steps_{micro_batches}_{schedule}"] = steps


@program
def attention(devices):
    """Heads along 'model', and the batch along 'data', with dropout."""

    def make():
        net = nn.HybridSequential()
        for _ in range(2):
            net.add(Attention(16))
        net.add(nn.Dense(10, in_units=48))
        return net

    plan = {"data0": "data", ".*qkv.weight": "model:3", ".*out.weight": (None, "model")}
    net = build(make, devices, ({"data": 2, "model": 2}, plan))
    trainer = gluon.Trainer(net.collect_params(), *ADAM)
    return [*train(net, devices[0], trainer, shape=(8, 3, 16)), *values(net)]


@program
def ring(devices):
    """Causal attention along time, with dropout."""

    def make():
        net = nn.HybridSequential()
        for _ in range(2):
            net.add(nn.MultiHeadAttention(16, 4, in_units=16, causal=True, dropout=0.3))
        net.add(nn.Dense(10, in_units=144))
        return net

    where = {"context": 4}, {"data0": (None, "context")}, ("context", "ring")
    net = build(make, devices, where)
    trainer = gluon.Trainer(net.collect_params(), *ADAM)
    return [*train(net, devices[0], trainer, shape=(8, 9, 16)), *values(net)]


@program
def convolutions(devices):
    """Channels along 'model'; BatchNorm in training is computed on the first device."""

    def make():
        net = nn.HybridSequential()
        net.add(nn.Conv2D(8, 3, in_channels=3), nn.BatchNorm(in_channels=8))
        net.add(nn.Conv2D(8, 3, in_channels=8, activation="relu"), nn.GlobalAvgPool2D())
        net.add(nn.Dense(10, in_units=8))
        return net

    plan = {"data0": "data", "[02].weight": "model"}
    net = build(make, devices, ({"data": 2, "model": 2}, plan))
    trainer = gluon.Trainer(net.collect_params(), *ADAM)
    return [*train(net, devices[0], trainer, shape=(4, 3, 8, 8)), *values(net)]


@program
def initialized_after(devices):
    """The parts are initialized on their devices."""
    net = mlp()
    par.Mesh({"shard": 4}, devices).partition(net)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), *ADAM)
    return [*train(net, devices[0], trainer), *values(net)]


@program
def tree_sums(devices):
    net = build(mlp, devices, None, active=False)
    mesh = par.Mesh({"data": 2, "model": 2}, devices)
    mesh.partition(net, MODEL[1], sums="tree", leaves={"data": 4, "model": 2})
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), *ADAM)
    return [*train(net, devices[0], trainer), *values(net)]


@program
def gradient_of_gradient(devices):
    net = build(mlp, devices, SHARD)
    x = inputs(0, (8, 48), devices[0])
    x.attach_grad()
    with autograd.record():
        y = (net(x) ** 2).sum()
        first = autograd.grad(y, x, create_graph=True, retain_graph=True)[0]
        z = (first**2).sum() + y
    z.backward()
    return [first, x.grad, *[p.grad() for p in net.collect_params().values()]]


@program
def checkpoints(devices):
    """A checkpoint of a partitioned network continues on any other mesh."""
    kept, states = [], [SHARD, MODEL, UNEVEN, STAGES, None, STAGES_OF_SHARDS]
    with tempfile.TemporaryDirectory() as folder:
        folder = ranks.gather("the folder", folder)[0]
        for number, where in enumerate(states):
            net = build(mlp, devices, where)
            trainer = gluon.Trainer(net.collect_params(), *ADAM)
            if number:
                par.load(folder, net, trainer)
            kept += [*train(net, devices[0], trainer, [number]), *values(net)]
            par.save(folder, net, trainer)
        par.barrier()
    return kept


@program
def offload(devices):
    """Parameters are offloaded in one process. Over ranks, this raises an error, and the network
    stays whole."""
    net, mesh, plan = build(mlp, devices, None), par.Mesh(SHARD[0], devices), {"data0": "data"}
    try:
        mesh.partition(net, plan, offload={"parameters": mx.cpu(9)})
        assert par.num_ranks() == 1
    except mx.MXNetError as error:
        assert par.num_ranks() > 1 and "combined with a mesh over ranks" in str(error), error
        mesh.partition(net, plan)
    return train(net, devices[0], gluon.Trainer(net.collect_params(), *ADAM))


@program
def experts(devices):
    """Each device computes the rows of its experts, alone or in groups of devices."""

    def make():
        net = nn.HybridSequential()
        net.add(nn.Dense(16, in_units=48), nn.MoE(16, 24, experts=5, k=2, in_units=16))
        net.add(nn.Dense(10, in_units=16))
        return net

    results = []
    for axes, data in (({"expert": 4}, "expert"), ({"data": 2, "expert": 2}, "data")):
        plan = {"data0": data, ".*1.(gate|up|down)_weight": "expert"}
        net = build(make, devices, (axes, plan))
        trainer = gluon.Trainer(net.collect_params(), *ADAM)
        results += [*train(net, devices[0], trainer), *values(net)]
    return results


@program
def memory(devices):
    """Each device holds its share of the parameters and a few whole layers. Weights that arrive
    from another rank wait for the device that gathers them."""
    layers, units = 12, 128
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(nn.Dense(units, activation="relu", use_bias=False, in_units=units))
    own = [ctx for ctx in devices if ctx.rank in (None, par.rank())]
    before = {ctx: mx.context.memory_stats(ctx)["in_use"] for ctx in own}
    net.initialize(ctx=devices[0])
    par.Mesh({"shard": 4}, devices).partition(net)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    x = inputs(0, (8, units), devices[0])
    for step in range(3):
        nd.waitall()
        par.barrier()
        for ctx in own if step == 2 else ():
            mx.context.reset_peak_memory(ctx)
        with autograd.record():
            y = net(x)
        y.backward()
        trainer.step(8)
    nd.waitall()
    layer = 4 * units * units
    for ctx in own:
        peak = (mx.context.memory_stats(ctx)["peak_in_use"] - before[ctx]) / layer
        # Arrays of earlier programs may be freed in the meantime.
        assert 0.95 * layers <= peak <= 1.05 * (layers + 3), (ctx, peak)
    return [y]


if __name__ == "__main__":
    main(sys.argv[1:])
