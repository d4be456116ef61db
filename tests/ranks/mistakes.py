"""Mistakes on two ranks: what each is told, printed in one line; and how rank 1 goes away."""

import json
import os
import signal
import sys

import mpgluon as mx
from mpgluon import gluon, nd, parallel as par
from mpgluon.gluon import nn

RANK = par.rank()
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


def different_sizes():
    x = nd.ones((4 + RANK,), ctx=DEVICES[0])
    par.fetch(x).wait_to_read()
    return "" if RANK == 0 else None


def different_counts():
    x = nd.ones((4,), ctx=DEVICES[0])
    if RANK == 0:
        x.as_in_context(DEVICES[1])
    par.barrier()


def failed_work():
    """A row beyond the last, found when the kernel runs; all wait for the result."""
    rows = nd.ones((4, 20_000), ctx=DEVICES[0])
    par.fetch(nd.take(rows, nd.array([7.0], ctx=DEVICES[0]), mode="raise")).wait_to_read()


def reading():
    nd.ones((2,), ctx=DEVICES[1 - RANK]).asnumpy()


def unknown_rank():
    mx.cpu(0, rank=2)


def two_ranks_in_one_op():
    nd.ones((2,), ctx=DEVICES[0]) + nd.ones((2,), ctx=DEVICES[1])


MISTAKES = [different_graphs, different_sizes, failed_work, reading, unknown_rank]
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
    if RANK == 1:  # its script ends
        return None
    try:
        par.fetch(nd.ones((3,), ctx=DEVICES[1]) * 2).wait_to_read()
        return None
    except mx.MXNetError as error:
        return str(error)


if __name__ == "__main__":
    found = told() if sys.argv[1] == "tell" else leave(sys.argv[1])
    sys.stdout.write("\n" + json.dumps({"rank": RANK, "told": found}) + "\n")
    sys.stdout.flush()
    if sys.argv[1] == "stop":
        os._exit(3)  # and mpirun ends the other
