"""A network in stages, one on each rank of a cluster, trained in a pipeline; its checkpoints are
written by all ranks, and a job that is started again goes on from the newest.

    mpirun -n 4 python examples/cluster/train.py --checkpoints FOLDER

The job files beside this one start it under Slurm and Kubernetes.
"""

import argparse
import os

import mpgluon as mx
from mpgluon import gluon, nd, parallel as par
from mpgluon.gluon import nn

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--checkpoints", default="checkpoints", help="a folder that all ranks see")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
parser.add_argument("--units", type=int, default=256)
options = parser.parse_args()

mx.random.seed(1)
devices = [mx.cpu(0, rank=rank) for rank in range(par.num_ranks())]
net = nn.HybridSequential()
for _ in range(2 * len(devices)):
    net.add(nn.Dense(options.units, in_units=options.units, activation="relu"))
net.place(par.Mesh({"stage": len(devices)}, devices=devices))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
step = par.TrainStep(
    net, gluon.loss.L2Loss(), trainer, par.Pipeline(micro_batches=8, schedule="1f1b")
)

done = 0
if os.path.isdir(options.checkpoints) and os.listdir(options.checkpoints):
    done = par.load(options.checkpoints, net, trainer)["position"]["step"]
while done < options.steps:
    x = nd.random.normal(shape=(64, options.units))
    losses = step(x, x)
    done += 1
    if done % options.every == 0 or done == options.steps:
        loss = float(par.fetch(losses).asnumpy().mean())  # all ranks call it
        par.save(options.checkpoints, net, trainer, position={"step": done})
        if par.rank() == 0:
            print(f"step {done}: loss {loss:.4f}", flush=True)
