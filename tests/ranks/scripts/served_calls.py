"""Calls of the kvstore with servers, checked by each worker. The arguments name the programs.

DMLC_NUM_SERVER=2 mpirun -n 4 python served_calls.py pushed
"""

import sys

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def pulled(store, key, shape):
    out = nd.zeros(shape)
    store.pull(key, out=out)
    return out.asnumpy()


def told(call, *texts):
    try:
        call()
    except (mx.MXNetError, ValueError) as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError("nothing was raised")


@program
def pushed():
    """Sums over all workers and their devices. Integers make the sums independent of the order."""
    store = mx.kv.create("dist_async")
    count, mine = store.num_workers, store.rank + 1
    shapes = {3: (4,), "a": (2, 3), "b": (5, 1), 8: (60, 50)}
    keys = list(shapes)
    store.init(keys, [nd.full(shape, mine) for shape in shapes.values()])
    assert all((pulled(store, key, shapes[key]) == 1).all() for key in keys)  # from worker 0
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1, wd=0))
    for _ in range(5):
        grads = [[nd.full(s, mine), nd.full(s, mine, ctx=mx.cpu(1))] for s in shapes.values()]
        store.push(keys, grads)
    store.barrier()
    expected = 1 - 5 * 2 * count * (count + 1) / 2
    assert all((pulled(store, key, shapes[key]) == expected).all() for key in keys)
    store.init("h", nd.ones(3, dtype="bfloat16"))
    out = nd.zeros(3, dtype="bfloat16")
    store.pull("h", out=out)
    assert out.dtype == nd.zeros(1, dtype="bfloat16").dtype and out.asnumpy().tolist() == [1] * 3


@program
def rows():
    store = mx.kv.create("dist_async")
    store.init("a", nd.ones((9, 2)).tostype("row_sparse"))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1, wd=0))
    mine = [store.rank, 7]
    store.push("a", nd.sparse.row_sparse_array((nd.ones((2, 2)), mine), shape=(9, 2)))
    store.barrier()
    out = nd.sparse.zeros("row_sparse", (9, 2))
    store.row_sparse_pull("a", out=out, row_ids=nd.array([0, 7, 8]))
    store.init("b", nd.ones((9, 2)).tostype("row_sparse") * 2)
    two = [nd.sparse.zeros("row_sparse", (9, 2)) for _ in "ab"]
    store.row_sparse_pull(["a", "b"], out=two, row_ids=[nd.array([8]), nd.array([1, 2])])
    assert [one.asnumpy().sum() for one in two] == [2, 8]
    expected = np.zeros((9, 2))
    expected[8] = 1  # no worker pushed row 8; worker 0 reduced row 0 to 0
    expected[7] = 1 - store.num_workers
    assert (out.asnumpy() == expected).all(), out


@program
def compressed():
    store = mx.kv.create("dist_async")
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store.init("a", nd.zeros((3, 3)))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1, wd=0))
    for _ in range(4):  # 0.2 per push; the third push reaches the threshold 0.5
        store.push("a", nd.full((3, 3), 0.2))
    store.barrier()
    assert (pulled(store, "a", (3, 3)) == -0.5 * store.num_workers).all()


def trained(net, trainer, steps=4, size=8):
    """Trains on random batches and returns the parameters."""
    for step in range(steps):
        data = nd.array(np.random.RandomState(step).randn(size, 5))
        with autograd.record():
            loss = (net(data) ** 2).mean()
        loss.backward()
        if step == 2:
            trainer.set_learning_rate(0.05)
        trainer.step(1 + step % 2)  # different batch sizes
    return [param.data().asnumpy() for param in net.collect_params().values()]


def network(sparse=False):
    mx.random.seed(7)
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Dense(6, activation="tanh", in_units=5), nn.Dense(2, in_units=6))
    net.initialize(mx.init.Xavier())
    return net


@program
def one_worker():
    """Training with one worker has the same bits as training without servers."""
    options = {"learning_rate": 0.1, "momentum": 0.9}
    there, here = network(), network()
    store = mx.kv.create("dist_async")
    assert store.num_workers == 1
    served = trained(there, gluon.Trainer(there.collect_params(), "sgd", options, store))
    alone = trained(here, gluon.Trainer(here.collect_params(), "sgd", options))
    assert all((one == other).all() for one, other in zip(served, alone))

    def grouped(*store):
        """Trains with parameter groups, the second time with another rate of one group."""
        net = network()
        groups = [
            {"params": net.collect_params(".*weight"), "lr": 0.05},
            {"params": net.collect_params(".*bias"), "momentum": 0.5},
        ]
        trainer = gluon.Trainer(groups, "sgd", options, *store)
        trained(net, trainer)
        trainer.param_groups[0]["lr"] = 0.2
        return trained(net, trainer)

    served, alone = grouped(mx.kv.create("dist_async")), grouped()
    assert all((one == other).all() for one, other in zip(served, alone))

    embedding = nn.Embedding(20, 3, sparse_grad=True)
    embedding.initialize()
    trainer = gluon.Trainer(embedding.collect_params(), "sgd", {"learning_rate": 1}, "dist_async")
    before = embedding.weight.data().asnumpy()
    with autograd.record():
        loss = embedding(nd.array([4, 9])).sum()
    loss.backward()
    trainer.step(1)
    before[[4, 9]] -= 1
    np.testing.assert_allclose(embedding.weight.data().asnumpy(), before, rtol=1e-6)


@program
def module():
    """Several workers train a Module to classify two clusters of points."""
    store = mx.kv.create("dist_async")
    random = np.random.RandomState(store.rank)
    label = random.randint(0, 2, 64).astype("float32")
    data = random.randn(64, 4).astype("float32") + 3 * label[:, None]
    batches = mx.io.NDArrayIter(data, label, 16)
    logits = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    model = mx.mod.Module(mx.sym.SoftmaxOutput(logits, name="softmax"))
    options = {"learning_rate": 0.2}
    model.fit(batches, num_epoch=6, kvstore=store, optimizer="sgd", optimizer_params=options)
    told(lambda: model.save_optimizer_states("x"), "servers")
    batches.reset()
    assert dict(model.score(batches, "acc"))["accuracy"] > 0.9


@program
def wrong():
    store = mx.kv.create("dist_async")
    told(lambda: store.push("x", nd.ones(2)), "'x' has no value")
    store.init("x", nd.ones(2))
    told(lambda: store.init("x", nd.ones(2)), "already has a value")
    told(lambda: store.push("x", nd.ones(3)), "(2,)", "(3,)")
    store.push("x", nd.ones(2))
    told(lambda: pulled(store, "x", 2), "before set_optimizer", "server")
    assert (pulled(store, "x", 2) == 1).all()  # the error is raised once, and the server continues
    told(lambda: store.save_optimizer_states("x"), "servers")
    net = network()
    told(
        lambda: gluon.Trainer(net.collect_params(), "sgd", {}, store, update_on_kvstore=False).step(
            1
        ),
        "update_on_kvstore",
    )
    store.barrier()


@program
def raises():
    """One worker fails while all others wait in a barrier."""
    store = mx.kv.create("dist_async")
    store.init("x", nd.ones(2))
    if store.rank == 1:
        raise ArithmeticError("a mistake of a worker")
    store.barrier()


for name in sys.argv[1:]:
    PROGRAMS[name]()
    print(f"worker {mx.parallel.rank()}: {name} done", flush=True)
