"""Ranks whose programs differ in the way that the argument names. No rank fails by itself. Each
rank prints its error in one line."""

import json
import os
import sys

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon._internal.ranks import own_arrays
from mpgluon.gluon import nn

RANK = par.rank()
DEVICES = [mx.cpu(0, rank=i) for i in range(par.num_ranks())]
STEPS = 3  # rank 1 raises its error when it receives, rank 0 once rank 1 has reported it


def turned(values):
    return values[::-1] if RANK else values


def read(arrays):
    """Reads all arrays, then exchanges more, which fails on ranks whose reads all succeeded."""
    for array in arrays:
        par.fetch(array).wait_to_read()
    for _ in range(STEPS):
        x = nd.ones((2,), ctx=DEVICES[1])
        par.fetch(x.as_in_context(DEVICES[0]).as_in_context(DEVICES[1])).wait_to_read()


def order():
    arrays = [(nd.ones((3,)) * i).as_in_context(DEVICES[0]) for i in range(3)]
    read(turned(arrays))


def lines():
    a = nd.ones((3,), ctx=DEVICES[0])
    b = nd.array([1, 2, 3], ctx=DEVICES[0])
    read(turned([a, b]))


def views():
    x = nd.ones((6,), ctx=DEVICES[0])
    read(turned([x[:3], x[3:]]))


def shapes():
    read([nd.ones((2, 3) if RANK else (3, 2), ctx=DEVICES[0])])


def dtypes():
    read([nd.ones((2,), ctx=DEVICES[0], dtype="int32" if RANK else "float32")])


def sizes():
    """Rank 1 has a smaller buffer than rank 0's message."""
    read([nd.ones((10 if RANK else 10_000,), ctx=DEVICES[0])])


def parts():
    """Messages sent in one part and in two parts."""
    read([nd.ones((20_000 if RANK else 10,), ctx=DEVICES[0])])


def graphs():
    """Two networks with the same structure. After compilation, the ranks call them in different
    orders."""
    nets = []
    for _ in range(2):
        net = nn.HybridSequential()
        net.add(nn.Dense(4, in_units=4), nn.Dense(4, in_units=4))
        net.place({"0": DEVICES[0], "1": DEVICES[1]}, verbose=False)
        net.initialize()
        net.hybridize()
        net(nd.ones((2, 4)))
        nets.append(net)
    read([net(nd.ones((2, 4))) for net in turned(nets)])


def train(rate=0.1, batch=8):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4), nn.Dense(4, in_units=4))
    net.place({"0": DEVICES[0], "1": DEVICES[1]}, verbose=False)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate})
    for _ in range(2):
        with autograd.record():
            loss = net(nd.ones((2, 4)))
        loss.backward()
        trainer.step(batch)
    read([loss])


def batches():
    train(batch=8 + RANK)


def rates():
    train(rate=0.1 + RANK)


def replicas():
    net = nn.Dense(4, in_units=4)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync")
    for _ in range(2):
        with autograd.record():
            loss = net(nd.ones((2, 4)))
        loss.backward()
        trainer.step(8 + RANK)
    nd.waitall()


def keys():
    store = mx.kv.create("dist_sync")
    store.init(["a", "b"], [nd.zeros((3,)), nd.zeros((3,))])
    for key in turned(["a", "b"]):
        store.push(key, nd.ones((3,)))
    nd.waitall()


def roots():
    params = gluon.ParameterDict()
    params.get("weight", shape=(3,))
    params.initialize()
    par.broadcast_parameters(params, root_rank=RANK)


def no_difference():
    """Allowed differences: branches, local computation and local reads of each rank."""
    x = nd.ones((4, 4), ctx=DEVICES[0]) * 2
    if RANK == 0:
        print((x * 3).sum().asscalar(), x)
        fetched = par.fetch(x)
    else:
        fetched = par.fetch(x)
    data = nd.array([1, 2], ctx=DEVICES[1]) if RANK else nd.zeros((2,), ctx=DEVICES[1])
    assert par.fetch(data).asnumpy().tolist() == [1, 2]
    assert own_arrays.add_up([fetched])[0].asnumpy().tolist() == [[4] * 4] * 4
    read([x[:2], x.reshape((2, 8)), data])
    net = nn.Dense(2, in_units=3)
    net.initialize("ones", ctx=DEVICES[0])
    net.collect_params().setattr("grad_req", "add")
    weights = [net.weight, net.bias]
    if RANK == 0:  # allocates gradients on this rank only
        print(weights[0].grad())
        weights[0].zero_grad()
    par.save(os.environ["FOLDER"], net, gluon.Trainer(weights, "sgd"))
    weights[0].reset_ctx(DEVICES[1])
    assert weights[RANK].grad().context == DEVICES[1 - RANK]
    with autograd.record():
        y = [weight.data() * 2 for weight in weights]
    autograd.backward(y)
    read([weight.grad() for weight in weights])


text = None
try:
    globals()[sys.argv[1]]()
except mx.MXNetError as error:
    text = str(error)
sys.stdout.write("\n" + json.dumps({"rank": RANK, "told": text}) + "\n")
