"""Data-parallel training with kvstores over ranks. Each rank has its own part of each batch. Prints
a hash of the weights' bits. A single rank trains the same number of replicas in one process.

mpirun -n 2 python data_parallel.py 2      or, all in one process:  python data_parallel.py 2
"""

import hashlib
import json
import os
import sys

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn

RANK, RANKS = mx.parallel.rank(), mx.parallel.num_ranks()
PARTS = int(sys.argv[1])
STORE = "dist_sync" if RANKS > 1 else "device"
DEVICE = getattr(mx, os.environ.get("DEVICE_TYPE", "cpu"))
DEVICES = [DEVICE(0)] if RANKS > 1 else [DEVICE(part) for part in range(PARTS)]
X = np.random.RandomState(0).randn(24, 6).astype("float32")
Y = (np.arange(24) % 3).astype("float32")
BATCH = 12


def batches(epochs):
    """Yields this process's parts of each batch, one for each of its devices."""
    parts = range(PARTS) if RANKS == 1 else [None]
    samplers = [
        gluon.data.SplitSampler(len(X), PARTS if RANKS == 1 else None, part, BATCH)
        for part in parts
    ]
    for _ in range(epochs):
        for numbers in zip(*samplers):
            yield [
                (nd.array(X[part], ctx=ctx), nd.array(Y[part], ctx=ctx))
                for part, ctx in zip(numbers, DEVICES)
            ]


def network(**options):
    # Training starts with rank 0's weights. The other ranks initialize different ones.
    mx.random.seed(7 + RANK)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(2048, activation="relu", in_units=6), nn.Dense(3, **options))
    net.initialize(mx.init.Xavier(), ctx=DEVICES)
    net.hybridize()
    return net


def train(optimizer="sgd", settings=None, **options):
    mx.random.seed(7 + RANK)
    net = network(in_units=2048)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(
        net.collect_params(),
        optimizer,
        {"learning_rate": 0.1, "momentum": 0.9} if settings is None else settings,
        kvstore=STORE,
        **options,
    )
    for parts in batches(2):
        with autograd.record():
            losses = [loss_of(net(x), y) for x, y in parts]
        autograd.backward(losses)
        trainer.step(BATCH)
    return [param.data(DEVICES[0]) for param in net.collect_params().values()]


def module():
    mx.random.seed(3 + RANK)
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="first")
    symbol = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.relu(data), num_hidden=3, name="last"), name="softmax"
    )
    own = slice(None) if RANKS == 1 else slice(RANK, None, RANKS)
    order = np.concatenate([np.arange(24)[part::PARTS].reshape(4, -1) for part in range(PARTS)], 1)
    x, y = (X[order.ravel()], Y[order.ravel()]) if RANKS == 1 else (X[own], Y[own])
    data = mx.io.NDArrayIter(x, y, batch_size=len(x) // 4, label_name="softmax_label")
    net = mx.mod.Module(symbol, context=DEVICES)
    net.fit(
        data,
        num_epoch=2,
        kvstore=STORE,
        optimizer_params={"learning_rate": 0.2, "momentum": 0.9},
        initializer=mx.init.Xavier(),
        eval_metric="acc",
    )
    arguments, _ = net.get_params()
    return [arguments[name] for name in sorted(arguments)]


def rows():
    """Row_sparse gradients with different rows on each rank."""
    mx.random.seed(5 + RANK)
    net = nn.Embedding(30, 4, sparse_grad=True, prefix="rows_")
    net.initialize(mx.init.Normal(), ctx=DEVICES)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=STORE)
    for step in range(3):
        losses = []
        for part, ctx in zip(range(PARTS) if RANKS == 1 else [RANK], DEVICES):
            numbers = nd.array([step, part + 3, part + 3, 9], ctx=ctx)
            with autograd.record():
                losses.append((net(numbers) ** 2).sum())
        autograd.backward(losses)
        trainer.step(4)
    return [net.weight.data(DEVICES[0])]


def averaged():
    """Horovod's API, with parameter shapes deferred until the first batch."""
    net = network()
    if RANKS > 1:
        mx.parallel.broadcast_parameters(net.collect_params())
        trainer = mx.parallel.DistributedTrainer(net, "sgd", {"learning_rate": 0.5})
    else:
        trainer = gluon.Trainer(net, "sgd", {"learning_rate": 0.5}, kvstore=STORE)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for parts in batches(2):
        with autograd.record():
            losses = [loss_of(net(x), y) for x, y in parts]
        autograd.backward(losses)
        trainer.step(BATCH // RANKS)
    return [param.data(DEVICES[0]) for param in net.collect_params().values()]


PROGRAMS = {
    "averaged": averaged,
    "rows": rows,
    "sgd": train,
    "adam_clipped": lambda: train("adam", {"learning_rate": 0.01}, clip_global_norm=0.5),
    "accumulated": lambda: train(accumulate=2),
    "module": module,
}
for name, run in PROGRAMS.items():
    bits = hashlib.sha1(b"".join(array.asnumpy().tobytes() for array in run())).hexdigest()
    print("\n" + json.dumps({"rank": RANK, "program": name, "bits": bits}), flush=True)
