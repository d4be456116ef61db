"""Data-parallel training of ResNet-18 with a single-threaded rank per replica.

    mpirun -n 2 python benchmarks/ranks/replicas.py [--rounds N] [--seconds S]

In "alone", each rank trains its part of the batch at the same time, without sums over ranks. On two
ranks, if installed, PyTorch trains the same network by DistributedDataParallel in two processes
with gloo. Contenders take turns; the best call of each counts.
"""

import argparse
import os
import sys

os.environ["MPGLUON_CPU_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from together import Beside, timed

import mpgluon as mx
import sizes
from models_gluon import make_models
from mpgluon import autograd, gluon, nd, parallel

RANK, RANKS = parallel.rank(), parallel.num_ranks()
BATCH = sizes.RESNET_BATCH // RANKS


def replica(over_ranks):
    net = make_models(mx)["resnet18"]()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    options = {"learning_rate": 0.1, "momentum": 0.9}
    if over_ranks:
        parallel.broadcast_parameters(net.collect_params())
        trainer = parallel.DistributedTrainer(net.collect_params(), "sgd", options)
    else:
        trainer = gluon.Trainer(net.collect_params(), "sgd", options)
    x = nd.random.normal(shape=(BATCH, 3, sizes.RESNET_IMAGE, sizes.RESNET_IMAGE))
    y = nd.random.randint(0, sizes.RESNET_CLASSES, (BATCH,))
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    def train():
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(BATCH)

    return train


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each contender in a round")
    args = parser.parse_args()
    contenders = {"alone": replica(False), "replicas over ranks": replica(True)}
    peer = Beside("work_pytorch_distributed") if RANKS == 2 else None
    shortest = dict.fromkeys(contenders, float("inf"))
    if peer and peer.version:
        shortest["PyTorch"] = float("inf")
    for _ in range(args.rounds):
        for name, run in contenders.items():
            shortest[name] = min(shortest[name], timed(run, args.seconds))
        if "PyTorch" in shortest:
            taken = peer.ask(time="resnet18, replicas", seconds=args.seconds)
            shortest["PyTorch"] = min(shortest["PyTorch"], taken)
    if peer:
        peer.close()
    if RANK:
        return
    print(f"{RANKS} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| a batch of 16 | ms |\n| --- | --- |")
    for name, seconds in shortest.items():
        print(f"| {name} | {seconds * 1e3:.1f} |")
    if "PyTorch" in shortest:
        print(f"{shortest['PyTorch'] / shortest['replicas over ranks']:.2f}x PyTorch's rate")


if __name__ == "__main__":
    main()
