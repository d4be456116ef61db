"""Trains a network in stages, one per rank of a cluster, in a pipeline. All ranks write the
checkpoints, and a restarted job continues from the newest.

    mpirun -n 4 python examples/cluster/train.py --out FOLDER

The job files in this folder start it under Slurm and Kubernetes.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import mpgluon as mx
from common import parser
from mpgluon import gluon, nd, parallel as par
from mpgluon.gluon import nn

arguments = parser(__doc__, devices=1, steps=20, out="checkpoints")
arguments.add_argument("--every", type=int, default=10, help="steps between checkpoints")
arguments.add_argument("--units", type=int, default=256)
arguments.add_argument("--layers", type=int, default=8, help="at least one for each device")
options = arguments.parse_args()

# --- The idea: devices of all ranks, one network, one pipeline ------------------------------------
mx.random.seed(options.seed)
devices = [
    mx.Context(ctx.device_type, ctx.device_id, rank=rank)
    for rank in range(par.num_ranks())
    for ctx in options.devices
]
net = nn.HybridSequential()
for _ in range(options.layers):
    net.add(nn.Dense(options.units, in_units=options.units, activation="relu"))
net.place(par.Mesh({"stage": len(devices)}, devices=devices))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
step = par.TrainStep(
    net, gluon.loss.L2Loss(), trainer, par.Pipeline(micro_batches=8, schedule="1f1b")
)

# --- Training continues from the newest checkpoint ------------------------------------------------
done = 0
if os.path.isdir(options.out) and os.listdir(options.out):
    done = par.load(options.out, net, trainer)["position"]["step"]
while done < options.steps:
    x = nd.random.normal(shape=(64, options.units))
    losses = step(x, x)
    done += 1
    if done % options.every == 0 or done == options.steps:
        loss = float(par.fetch(losses).asnumpy().mean())  # all ranks must call it
        par.save(options.out, net, trainer, position={"step": done})
        if par.rank() == 0:
            print(f"step {done}: loss {loss:.4f}", flush=True)
