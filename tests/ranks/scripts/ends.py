"""Programs that end in the way that the argument names, with work still queued."""

import sys

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn

DEVICES = [mx.cpu(0, rank=i) for i in range(par.num_ranks())]


def unread():
    """Much work is queued, and none of its results are read."""
    net = nn.HybridSequential()
    net.add(nn.Dense(512, in_units=512), nn.Dense(512, in_units=512))
    net.place({"0": DEVICES[0], "1": DEVICES[1]}, verbose=False)
    net.initialize()
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    loss = gluon.loss.L2Loss()
    label = nd.ones((128, 512), ctx=DEVICES[1])
    for _ in range(10):
        with autograd.record():
            error = loss(net(nd.ones((128, 512))), label)
        error.backward()
        trainer.step(128)
    x = nd.ones((500, 500)).as_in_context(DEVICES[0])
    for _ in range(50):
        x = nd.dot(x, x) * 1e-3
    par.fetch(x)


def left_out():
    """Only the owner makes the last call, which all ranks must make."""
    x = nd.ones((3,)).as_in_context(DEVICES[0])
    if par.rank() == 0:
        par.fetch(x)


def other_root():
    """Both ranks have the same number of transfers, but each rank sends and neither receives."""
    root = par.rank()
    nd.ones((3,)).as_in_context(DEVICES[root]).copyto(mx.cpu(0))


def failed():
    """Work fails when it runs, and its result is never read."""
    rows = nd.ones((4, 20_000), ctx=DEVICES[0])
    par.fetch(nd.take(rows, nd.array([7.0], ctx=DEVICES[0]), mode="raise"))


globals()[sys.argv[1]]()
sys.stdout.write("done\n")
