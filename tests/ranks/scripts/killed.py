"""Trains a network on four devices of all ranks and saves a checkpoint after each step. Continues
from an existing checkpoint. test_kills.py kills this program.

mpirun -n 2 python killed.py FOLDER STEPS
"""

import os
import sys

FOLDER, STEPS = sys.argv[1], int(sys.argv[2])


def note(name, text):
    with open(os.path.join(FOLDER, name), "a") as file:
        file.write(text + "\n")


note("processes", str(os.getpid()))

import hashlib  # noqa: E402

from parallel_programs import LOSS, Transformer, inputs, labels, values  # noqa: E402

import mpgluon as mx  # noqa: E402
from mpgluon import autograd, gluon, parallel as par  # noqa: E402


def main():
    ranks = par.num_ranks()
    devices = [mx.cpu(i // ranks, rank=i % ranks) for i in range(4)]
    mx.random.seed(3)
    net = Transformer(devices)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-2})
    checkpoint, first = os.path.join(FOLDER, "checkpoint"), 0
    if os.path.exists(os.path.join(checkpoint, "index.json")):
        first = par.load(checkpoint, net, trainer)["position"]["step"]
    if par.rank() == 0:
        note("begun", str(first))
    for step in range(first, STEPS):
        with autograd.record():
            loss = LOSS(net(inputs(step, (8, 3, 16), devices[0])), labels(8, 5, devices[-1]))
        loss.backward()
        trainer.step(8)
        par.save(checkpoint, net, trainer, position={"step": step + 1}, progress=False)
        if par.rank() == 0:
            note("saved", str(step + 1))
    sha = hashlib.sha256(b"".join(array.asnumpy().tobytes() for array in par.fetch(values(net))))
    if par.rank() == 0:
        note("bits", sha.hexdigest())


main()
