"""Programs that train in parallel: pipelines, shards, replicas and collectives. programs.py runs
them."""

import os
import tempfile

import numpy as np
from registered import LOSS, PROGRAMS, inputs, program, values

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon._internal import ranks
from mpgluon.gluon import nn, rnn
from support.pipelines import Attention


def labels(count, classes, ctx):
    return nd.array(np.arange(count) % classes, ctx=ctx)


class Transformer(gluon.HybridBlock):
    def __init__(self, places, width=16):
        super().__init__()
        self.places = places
        with self.name_scope():
            self.layers = nn.HybridSequential()
            for _ in places:
                self.layers.add(Attention(width))
            self.output = nn.Dense(5, in_units=width)
        for layer, place in zip(self.layers, places):
            layer.initialize(mx.init.Xavier(), ctx=place)
        self.output.initialize(mx.init.Xavier(), ctx=places[-1])

    def hybrid_forward(self, F, x):
        for layer, place in zip(self.layers, self.places):
            x = layer(x.as_in_context(place))
        return self.output(F.mean(x, axis=1))


def pipelined(places, steps=2, **settings):
    net = Transformer(places)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-2})
    step = par.TrainStep(net, LOSS, trainer, par.Pipeline(micro_batches=4, **settings))
    losses = [
        step(inputs(i, (8, 3, 16), places[0]), labels(8, 5, places[-1])) for i in range(steps)
    ]
    return [*losses, *values(net)]


for schedule in ("gpipe", "1f1b", "zero_bubble"):

    def run(devices, schedule=schedule):
        return pipelined(devices, schedule=schedule)

    PROGRAMS["pipeline_" + schedule] = run


@program
def pipeline_interleaved(devices):
    return pipelined([*devices[:2], *devices[:2]], schedule="interleaved")


class LSTMs(gluon.HybridBlock):
    """Two LSTMs on two devices."""

    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        with self.name_scope():
            self.embed = nn.Embedding(9, 8)
            self.first = rnn.LSTM(8, input_size=8)
            self.second = rnn.LSTM(8, input_size=8)
            self.output = nn.Dense(9, in_units=8, flatten=False)
        for block, device in zip((self.embed, self.first, self.second, self.output), (0, 0, 1, 1)):
            block.initialize(mx.init.Xavier(), ctx=devices[device])

    def hybrid_forward(self, F, x, a, b):
        x, a = self.first(self.embed(x), a)
        x, b = self.second(x.as_in_context(self.devices[1]), b)
        return self.output(x), a, b


@program
def lstm(devices):
    net = LSTMs(devices)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.3})
    kept = []
    a, b = net.first.begin_state(4, ctx=devices[0]), net.second.begin_state(4, ctx=devices[1])
    for i in range(2):
        x = labels(24, 9, devices[0]).reshape((6, 4))
        y = labels(24, 7, devices[1]).reshape((6, 4))
        a, b = [s.detach() for s in a], [s.detach() for s in b]
        with autograd.record():
            out, a, b = net(x, a, b)
            loss = LOSS(out, y)
        loss.backward()
        trainer.step(24)
        kept += [loss, *a, *b]
    return kept + values(net)


@program
def collectives(devices):
    x = [inputs(i, (5, 3), device) for i, device in enumerate(devices)]
    for one in x:
        one.attach_grad()
    with autograd.record():
        total = par.all_reduce(x)
        parts = par.reduce_scatter(x)
        joined = par.all_gather(parts)
        turned = par.all_to_all(x, 0, 1)
        everything = [a * b for a, b in zip(total, joined)]
    autograd.backward(everything)
    big = par.all_reduce([inputs(i, (90_000,), device) for i, device in enumerate(devices)])
    return [*total, *parts, *turned, *[one.grad for one in x], *big, *par.broadcast(x[0], devices)]


@program
def sums_off_the_tape(devices):
    """Unrecorded all_reduce. If the numbers of ranks and arrays match, each rank has one array."""
    results = []
    for count in (2, 3, 4):
        for size, dtype in (
            (7, "float64"),
            (3_000_000, "float32"),
            (1_000, "bfloat16"),
            (0, "int8"),
        ):
            x = [inputs(i, (size,), device) for i, device in enumerate(devices[:count])]
            x = [(one * 20).astype(dtype) for one in x]
            results += par.all_reduce(x)
            results += par.all_reduce([total / 2 for total in results[-count:]])
    return [total.astype("float32") for total in results]


def split_layers(devices, optimizer):
    """Tensor parallelism over all devices."""
    net = nn.HybridSequential()
    net.add(nn.Dense(12, activation="tanh", in_units=6), nn.Dense(10, in_units=12))
    net.add(nn.Dense(4, in_units=10))
    par.shard(net, {"0": "column", "1": "row"}, devices)
    net.initialize(mx.init.Xavier(), ctx=devices[0])
    net.hybridize()
    params = net.collect_params()
    if optimizer == "muon":
        others = {"params": net.collect_params(".*bias"), "optimizer": "lamb"}
        params = [{"params": net.collect_params(".*weight"), "lr": 2e-2}, others]
    trainer = gluon.Trainer(params, optimizer, {"learning_rate": 1e-2})
    kept = []
    for i in range(2):
        with autograd.record():
            loss = LOSS(net(inputs(i, (8, 6), devices[0])), labels(8, 4, devices[0]))
        loss.backward()
        trainer.step(8)
        kept.append(loss)
    return kept + values(net)


for optimizer in ("adam", "adamw", "lion", "adafactor", "muon", "lamb", "lars", "sgld"):

    def run(devices, optimizer=optimizer):
        return split_layers(devices, optimizer)

    PROGRAMS["split_layers_" + optimizer] = run


def replicated(devices, axes, optimizer="adam", **settings):
    """Trains on a mesh of replicas, stages and shards."""
    mesh = par.Mesh(axes, devices=devices)
    net = nn.HybridSequential()
    for units in (12, 12, 12, 4):
        net.add(nn.Dense(units, activation="tanh", in_units=12 if len(net) else 6))
    net.place(mesh)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-2}, **settings)
    kept = []
    for i in range(2):
        x, y = inputs(i, (8, 6), mx.cpu(0)), labels(8, 4, mx.cpu(0))
        losses = []
        for part, label in zip(mesh.split_and_load(x), mesh.split_and_load(y, stage=-1)):
            with autograd.record():
                losses.append(LOSS(net(part), label))
        autograd.backward(losses)
        trainer.step(8)
        kept += losses
    return kept + values(net)


@program
def replicas(devices):
    return replicated(devices, {"data": 4})


@program
def replicas_and_stages(devices):
    return replicated(devices, {"data": 2, "stage": 2}, clip_global_norm=0.5)


@program
def mesh_of_three(devices):
    return replicated(devices, {"data": 2, "model": 2}, shard_updates=True)


@program
def mesh_of_norms(devices):
    return replicated(devices, {"data": 2, "model": 2}, "lamb")


@program
def checkpoint(devices):
    """Saves a checkpoint during training and loads it into another network. Each rank writes the
    files of its devices. All ranks are on one machine."""

    def make():
        mx.random.seed(3)
        net = Transformer(devices)
        net.hybridize()
        return net, gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-2})

    def steps(net, trainer, numbers):
        kept = []
        for i in numbers:
            with autograd.record():
                loss = LOSS(net(inputs(i, (8, 3, 16), devices[0])), labels(8, 5, devices[-1]))
            loss.backward()
            trainer.step(8)
            kept.append(loss)
        return kept

    folder = os.environ.get("CHECKPOINTS") or tempfile.mkdtemp()
    net, trainer = make()
    first = steps(net, trainer, [0, 1])
    par.save(folder, net, trainer, position={"batch": 2}, background=True).wait()
    after = steps(net, trainer, [2, 3])
    other, its = make()
    found = par.load(folder, other, its)
    again = steps(other, its, range(found["position"]["batch"], 4))
    return [*first, *after, *again, *values(net), *values(other)]


class Words(gluon.HybridBlock):
    """An embedding with a row_sparse gradient and a layer on another device."""

    def __init__(self, devices):
        super().__init__()
        self.device = devices[1]
        with self.name_scope():
            self.words = nn.Embedding(9, 4, sparse_grad=True)
            self.out = nn.Dense(3, in_units=4)
        self.words.initialize(mx.init.Uniform(1), ctx=devices[0])
        self.out.initialize(mx.init.Uniform(1), ctx=devices[1])

    def hybrid_forward(self, F, x):
        return self.out(self.words(x).as_in_context(self.device))


@program
def rows(devices):
    """Row_sparse gradients: each rank updates the rows on its own devices."""
    kept = []
    for pipelined in (False, True):
        net = Words(devices)
        trainer = gluon.Trainer(net.collect_params(), "adam")
        x = nd.array([1, 5, 1, 7, 2, 5], ctx=devices[0])
        label = nd.array([0, 1, 2, 0, 1, 2], ctx=devices[1])
        step = par.TrainStep(net, LOSS, trainer, par.Pipeline(3))
        if not pipelined:
            net.hybridize(exact=True)
        for _ in range(3):
            if pipelined:
                kept.append(step(x, label))
                continue
            with autograd.record():
                kept.append(LOSS(net(x), label))
            kept[-1].backward()
            trainer.step(6)
        kept += [param.data() for param in net.collect_params().values()]
    return kept


def lookup(table, ctx):
    """Runs a backward pass that reaches two rows of an embedding."""
    with autograd.record():
        loss = (table(nd.array([7, 1, 7], ctx=ctx)) ** 2).sum()
    loss.backward()


@program
def copied_rows(devices):
    """Copies row_sparse arrays and gradients in both directions. Only the rank that owns a gradient
    knows its number of rows."""
    own, kept = mx.cpu(0), []
    for source, target in ((0, 1), (1, 0), (2, 3), (0, 2)):
        source, target = devices[source], devices[target]
        table = nn.Embedding(9, 4, sparse_grad=True)
        table.initialize(mx.init.Uniform(1), ctx=source)
        lookup(table, source)
        gradient, into = table.weight.grad(), nd.sparse.zeros("row_sparse", (9, 4), ctx=target)
        there = gradient.as_in_context(target)
        gradient.copyto(into)
        array = nd.array([[0], [1], [0], [2]]).tostype("row_sparse").as_in_context(source)
        kept += [gradient, there, there.as_in_context(source), into, gradient.tostype("default")]
        kept += [there.tostype("default"), array, array.as_in_context(target)]
        table.weight.zero_grad()
        kept += [gradient.as_in_context(target), there.as_in_context(own).as_in_context(target)]
    return kept


@program
def moved_rows(devices):
    """Moves a row_sparse gradient between backward and update. The optimizer's states and update
    count move with it. All ranks know the number of random calls."""
    kept = []
    for optimizer in ("adam", "sgld"):
        table, ctx = nn.Embedding(9, 4, sparse_grad=True), devices[0]
        table.initialize(mx.init.Uniform(1), ctx=ctx)
        trainer = gluon.Trainer(table.collect_params(), optimizer)
        for target in (devices[1], devices[1], devices[0], mx.cpu(0), devices[3], devices[2]):
            lookup(table, ctx)
            ctx = target
            table.weight.reset_ctx(ctx)
            trainer.step(2)
            kept += [table.weight.grad(), table.weight.data().copy()]
        kept.append(nd.random.uniform(shape=(3,), ctx=devices[1]))
    return kept


@program
def clipped_rows(devices):
    """Row_sparse arrays of one rank do not change the names of arrays that all ranks create on the
    same line. Those arrays are Adam's states, which move to another rank afterwards."""
    net = Words(devices)
    trainer = gluon.Trainer(net.collect_params(), "adam", clip_global_norm=0.1)
    for device in devices[1:3]:
        net.device = device
        net.out.collect_params().reset_ctx(device)
        with autograd.record():
            loss = net(nd.array([1, 5, 1], ctx=devices[0])).sum()
        loss.backward()
        trainer.step(3)
    return values(net)


@program
def replicated_rows(devices):
    """Replicas on two ranks sum their row_sparse gradients."""
    kept = []
    for optimizer in ("adam", "sgd"):
        table = nn.Embedding(9, 4, sparse_grad=True)
        table.initialize(mx.init.Uniform(1), ctx=devices[:2])
        trainer = gluon.Trainer(table.collect_params(), optimizer)
        for step in range(2):
            for rows, ctx in zip(([7, 1, 7], [2 + step, 1, 3]), devices):
                with autograd.record():
                    loss = (table(nd.array(rows, ctx=ctx)) ** 2).sum()
                loss.backward()
            trainer.step(2)
        kept += [*table.weight.list_data(), *table.weight.list_grad()]
    return kept


@program
def saved_rows(devices):
    """A checkpoint contains accumulated row_sparse and dense gradients that no update has used."""
    net = Words(devices)
    for param in net.collect_params().values():
        param.grad_req = "add"

    def backward():
        with autograd.record():
            loss = net(nd.array([1, 5, 1], ctx=devices[0])).sum()
        loss.backward()

    backward()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with tempfile.TemporaryDirectory() as folder:
        folder = ranks.gather("the folder", folder)[0]
        par.save(folder, net, trainer).wait()
        net.collect_params().zero_grad()
        par.load(folder, net, trainer)
        par.barrier()
    backward()
    return [param.grad() for param in net.collect_params().values()]


@program
def auto_schedule(devices):
    """All ranks choose the same schedule, although each rank measures only its own devices."""
    kept = []
    for _ in range(8):
        net = Words(devices)
        pipeline = par.Pipeline(3, "auto")
        step = par.TrainStep(net, LOSS, gluon.Trainer(net.collect_params(), "sgd"), pipeline)
        x = nd.array([1, 5, 1, 7, 2, 5], ctx=devices[0])
        kept += [step(x, labels(6, 3, devices[1])) for _ in range(4)]
        ranks.compare("the schedule", pipeline.report().schedule)
        kept += [param.data() for param in net.collect_params().values()]
    return kept


@program
def shuffled_engine(devices):
    """The shuffle engine defers work until a thread waits. A rank in a barrier must run that work,
    because other ranks may wait for its messages."""
    former = mx.engine.mode()
    mx.engine.set_mode("shuffle", 3)
    try:
        sent = (nd.ones((3,), ctx=devices[0]) * 2).as_in_context(devices[1])
        if par.rank() == 1:
            sent.wait_to_read()
        par.barrier()
        return [sent]
    finally:
        mx.engine.set_mode(former)


@program
def replicas_of_unknown_shapes(devices):
    """The first forward pass is recorded and initializes the parameters."""
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(6, activation="tanh"), nn.Dense(3))
    net.initialize(mx.init.Xavier(), ctx=devices[:2])
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    losses = []
    for _ in range(2):
        with autograd.record():
            parts = [
                LOSS(net(inputs(i, (4, 5), device)), labels(4, 3, device))
                for i, device in enumerate(devices[:2])
            ]
        autograd.backward(parts)
        trainer.step(8)
        losses += parts
    return [*losses, *values(net)]
