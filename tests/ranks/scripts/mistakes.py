"""Mistakes on several ranks and ways in which rank 1 ends or stops. Each rank prints its errors in
one line."""

import functools
import json
import os
import signal
import sys
import time

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon._internal.ranks import own_arrays
from mpgluon.gluon import nn
from mpgluon.parallel import _checkpoint

RANK, RANKS = par.rank(), par.num_ranks()
DEVICES = [mx.cpu(0, rank=i) for i in range(par.num_ranks())]


class Different(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, in_units=3)
        self.dense.initialize(ctx=DEVICES[0])

    def hybrid_forward(self, F, x):
        x = self.dense(x)
        return (F.relu(x) if RANK else F.tanh(x)).as_in_context(DEVICES[1])


def different_graphs():
    net = Different()
    net.hybridize()
    net(nd.ones((2, 3), ctx=DEVICES[0]))


def different_counts():
    x = nd.ones((4,), ctx=DEVICES[0])
    if RANK == 0:
        x.as_in_context(DEVICES[1])
    par.barrier()


def failed_work():
    """The kernel detects an index past the last row, and all ranks wait for the result."""
    rows = nd.ones((4, 20_000), ctx=DEVICES[0])
    par.fetch(nd.take(rows, nd.array([7.0], ctx=DEVICES[0]), mode="raise")).wait_to_read()


def reading():
    nd.ones((2,), ctx=DEVICES[1 - RANK]).asnumpy()


def unknown_rank():
    mx.cpu(0, rank=2)


def partitioned(axes):
    """A layer over two ranks. `axes` is the annotation of its input."""
    net = nn.Dense(4, in_units=3)
    net.initialize(ctx=DEVICES[0])
    par.Mesh({"data": 2}, DEVICES).partition(net, {"data0": axes})
    net.hybridize()
    return net


def local_input_of_a_partition():
    partitioned("data")(nd.ones((2, 3)))


def different_partitions():
    partitioned("data" if RANK else (None, None))(nd.ones((2, 3), ctx=DEVICES[0]))


def two_ranks_in_one_op():
    nd.ones((2,), ctx=DEVICES[0]) + nd.ones((2,), ctx=DEVICES[1])


def printing():
    """The owner prints values. Other ranks can print the array without values, for logs and
    debuggers."""
    text = str(nd.ones((3,), ctx=DEVICES[0]))
    html = nd.ones((3,), ctx=DEVICES[0])._repr_html_()
    if RANK == 0:
        assert text == "\n[1. 1. 1.]\n<NDArray 3 @cpu(0, rank=0)>" and "1. 1." in html
    else:
        assert text == "<NDArray 3 float32 @cpu(0, rank=0), whose values are on rank 0>"
        assert "whose values are on rank 0" in html


def many_arrays():
    """More arrays than a single operator accepts."""
    arrays = [nd.full((2,), i + RANK) for i in range(4097)]
    assert own_arrays.copies_of(1, arrays)[4096].asnumpy().tolist() == [4097, 4097]
    assert own_arrays.add_up(arrays)[4096].asnumpy().tolist() == [8193, 8193]


class Branch(gluon.HybridBlock):
    """Branches on a value of rank 0. If `fetched` is True, all ranks get the value first."""

    def __init__(self, fetched):
        super().__init__()
        self.fetched = fetched

    def hybrid_forward(self, F, x):
        value = par.fetch(x.sum()) if self.fetched else x.sum()
        return F.contrib.cond(value > 2, lambda: x * 2, lambda: x)


def branches_on_fetched_values():
    x = nd.ones((3,), ctx=DEVICES[0])
    for hybridize in (False, True):
        net = Branch(fetched=True)
        net.hybridize(hybridize)
        assert par.fetch(net(x)).asnumpy().tolist() == [2, 2, 2]


def eager_branch():
    Branch(fetched=False)(nd.ones((3,), ctx=DEVICES[0]))


def hybridized_branch():
    net = Branch(fetched=False)
    net.hybridize()
    net(nd.ones((3,), ctx=DEVICES[0]))


def eager_loop():
    i = nd.zeros((1,), ctx=DEVICES[0])
    nd.contrib.while_loop(lambda i: i < 2, lambda i: (i, [i + 1]), [i], max_iterations=3)


MISTAKES = [
    printing,
    branches_on_fetched_values,
    eager_branch,
    hybridized_branch,
    eager_loop,
    many_arrays,
    different_graphs,
    failed_work,
    reading,
    unknown_rank,
    local_input_of_a_partition,
    different_partitions,
]
MISTAKES += [two_ranks_in_one_op, different_counts]


def told():
    texts = {}
    for mistake in MISTAKES:
        try:
            mistake()
            texts[mistake.__name__] = None
        except (mx.MXNetError, ValueError, IndexError) as error:
            texts[mistake.__name__] = f"{type(error).__name__}: {error}"
    return texts


def leave(how):
    par.fetch(nd.ones((2,), ctx=DEVICES[1])).wait_to_read()
    if RANK == 1 and how == "raise":
        raise ArithmeticError("a mistake of rank 1")
    if RANK == 1 and how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if RANK == 1:  # rank 1's script ends
        return None
    try:
        if how == "end before a graph":
            net = OneSide()
            net.hybridize()
            net(nd.ones((3,), ctx=DEVICES[1])).wait_to_read()
            return None
        par.fetch(nd.ones((3,), ctx=DEVICES[1]) * 2).wait_to_read()
        return None
    except mx.MXNetError as error:
        return str(error)


class OneSide(gluon.HybridBlock):
    """A block that only one rank calls."""

    def hybrid_forward(self, F, x):
        return F.relu(x).as_in_context(mx.cpu(0))


def fetched(place):
    net = OneSide()
    net(nd.ones((3,), ctx=DEVICES[place])).wait_to_read()


def summed():
    own_arrays.add_up([nd.ones((100_000,))])[0].wait_to_read()


# Waits of ranks 0 and 1. All other ranks wait for rank 0.
WAITS = {
    "transfers": (lambda: fetched(1), lambda: fetched(0)),
    "barrier": (par.barrier, lambda: fetched(0)),
    "sum": (summed, lambda: fetched(0)),
}


def stand(how):
    """Deadlock of ranks that took different branches. Returns the error and the seconds waited."""
    net = nn.Dense(2, in_units=3)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    for _ in range(2):
        with autograd.record():
            loss = net(nd.ones((1, 3)))
        loss.backward()
        trainer.step(1)
    begin = time.monotonic()
    try:
        WAITS[how][RANK]() if RANK < 2 else fetched(0)
        text = None
    except mx.MXNetError as error:
        text = str(error)
    return {"text": text, "seconds": time.monotonic() - begin}


def busy():
    """One rank computes for longer than the limit while the other waits. This is not an error."""
    x = nd.ones((2,), ctx=DEVICES[1])
    if RANK == 1:
        time.sleep(7)
    return par.fetch(x + RANKS).asnumpy().tolist()


def full():
    """More data is queued for a stopped rank than the limit allows. The sender is released."""
    x = nd.ones((4 << 20,), ctx=DEVICES[0])
    par.fetch(x).wait_to_read()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    for _ in range(40):  # 16 MB each
        x.as_in_context(DEVICES[1])
    x.wait_to_read()
    y = nd.ones((2,), ctx=DEVICES[0]) + 1  # queued after the transfers
    return y.asnumpy().tolist()


def idle():
    """Only ranks 0 and 1 have devices. Other ranks run the same script and fetch the results."""
    mx.random.seed(5)
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3, activation="tanh"), nn.Dense(2, in_units=4))
    net.initialize(ctx=DEVICES[0])
    net.place({"0": DEVICES[0], "1": DEVICES[1]}, verbose=False)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    for _ in range(3):
        with autograd.record():
            loss = (net(nd.ones((3, 3), ctx=DEVICES[0])) ** 2).mean(axis=1)
        loss.backward()
        trainer.step(3)
    par.barrier()
    return par.fetch(loss).asnumpy().tolist()


def checkpoint_errors():
    """Each step of a save and a load fails on one rank, and the next save and load succeed. Returns
    the errors by step."""
    folder = os.environ["CHECKPOINTS"]
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))
    net[0].initialize(mx.init.One(), ctx=DEVICES[0])
    net[1].initialize(mx.init.One(), ctx=DEVICES[1])

    def fail(*_, **__):
        raise OSError(28, "No space left")

    errors = {}
    for step, rank, place, name in (
        ("begin", 1, os, "makedirs"),
        ("generation", 0, _checkpoint, "_generation"),
        ("write", 1, _checkpoint._safetensors, "write"),
        ("commit", 0, _checkpoint, "_commit"),
        ("read", 1, _checkpoint, "read_index"),
    ):
        par.save(folder, net, step=7)
        works = getattr(place, name)
        if rank == RANK:
            setattr(place, name, fail)
        try:
            errors[step] = (par.load if step == "read" else par.save)(folder, net)
        except (OSError, mx.MXNetError) as error:
            errors[step] = f"{type(error).__name__}: {error}"
        setattr(place, name, works)
        assert par.load(folder, net)["step"] == 7  # the checkpoint before the failed save
    par.barrier()
    return errors


WAYS = {
    "tell": told,
    "checkpoint errors": checkpoint_errors,
    "idle": idle,
    "busy": busy,
    "full": full,
    **{how: functools.partial(stand, how) for how in WAITS},
}

if __name__ == "__main__":
    way = sys.argv[1]
    found = WAYS[way]() if way in WAYS else leave(way)
    sys.stdout.write("\n" + json.dumps({"rank": RANK, "told": found}) + "\n")
    sys.stdout.flush()
    if sys.argv[1] in ("stop", "full"):
        os._exit(3)  # makes mpirun end the other rank
