"""Pipelines over single-threaded ranks, relative to the ideal and to simulations.

    mpirun -n 2 python benchmarks/ranks/stages.py [--rounds N] [--seconds S]

The ideal is the total batches per second of independent trainings of the whole network, one on each
rank at the same time with batches of a micro-batch's size, times M / (M + n - 1). On two ranks, if
installed, torch.distributed.pipelining trains the same network in two processes with gloo.
Contenders take turns; the best call of each counts. The last line is the prediction of
`mx.parallel.simulate` for the same step.
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
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn
from pipelines import square_loss, trainer_of, transformer_layers

RANK, RANKS = par.rank(), par.num_ranks()
DEVICES = [mx.cpu(0, rank=rank) for rank in range(RANKS)]
PIECES, SHAPE = sizes.STAGED_PIECES, sizes.STAGED_SHAPE


class Staged(gluon.HybridBlock):
    """Layers in equal stages, one per device."""

    def __init__(self, contexts):
        super().__init__()
        self.contexts, layers = contexts, transformer_layers()
        each = -(-len(layers) // len(contexts))
        with self.name_scope():
            self.stages = nn.HybridSequential()
            for number, ctx in enumerate(contexts):
                stage = nn.HybridSequential()
                stage.add(*layers[number * each : (number + 1) * each])
                stage.initialize(mx.init.Xavier(), ctx=ctx)
                self.stages.add(stage)

    def hybrid_forward(self, F, x):
        for stage, ctx in zip(self.stages, self.contexts):
            x = stage(x.as_in_context(ctx))
        return x


def independent():
    """Trains a batch on this rank alone, in parts of a micro-batch's size."""
    net = Staged([mx.cpu(0)])
    net.hybridize()
    trainer, x = trainer_of(net), nd.ones((SHAPE[0] // PIECES, *SHAPE[1:]))

    def train():
        for _ in range(PIECES):
            with autograd.record():
                loss = square_loss(net(x))
            loss.backward()
        trainer.step(SHAPE[0])

    return train


def pipelined(schedule):
    net = Staged(DEVICES)
    step = par.TrainStep(net, square_loss, trainer_of(net), par.Pipeline(PIECES, schedule))
    x = nd.ones(SHAPE)
    return lambda: step(x, [])


def simulated(schedule):
    """Returns the simulated seconds of a step, from layers measured on as many ranks as cores."""
    net = nn.HybridSequential()
    net.add(*transformer_layers())
    net.initialize(mx.init.Xavier())
    cores = os.cpu_count()
    plan = par.plan(
        net,
        nd.ones(SHAPE),
        DEVICES[:cores],
        loss=square_loss,
        micro_batches=PIECES,
        trials=0,
        schedules=schedule,
        progress=False,
    )
    cluster = par.Cluster.of_ranks(at_once=min(cores, RANKS))
    found = par.simulate(
        plan.profile, cluster, schedule=schedule, mesh={"stage": RANKS}, micro_batches=PIECES
    )
    return found.outcomes[0].seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each contender in a round")
    args = parser.parse_args()
    contenders = {"independent": independent()}
    contenders.update((name, pipelined(name)) for name in ("gpipe", "1f1b", "zero_bubble"))
    shortest = dict.fromkeys(contenders, float("inf"))
    peer = Beside("work_pytorch_distributed") if RANKS == 2 else None
    theirs = {}
    for _ in range(args.rounds):
        for name, run in contenders.items():
            shortest[name] = min(shortest[name], timed(run, args.seconds))
        for kind in ("gpipe", "1f1b") if peer and peer.version else ():
            taken = peer.ask(time=f"transformer, {kind}", seconds=args.seconds)
            theirs[kind] = min(theirs.get(kind, taken), taken)
    guesses = {name: simulated(name) for name in ("gpipe", "1f1b")}
    if peer:
        peer.close()
    if RANK:
        return
    ideal = shortest["independent"] / RANKS * (PIECES + RANKS - 1) / PIECES
    print(
        f"{RANKS} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; the ideal is "
        f"{ideal * 1e3:.1f} ms a batch"
    )
    print("| | ms | of the ideal | simulated | off by |\n| --- | --- | --- | --- | --- |")
    for name in contenders:
        if name != "independent":
            guess = guesses.get(name)
            cells = (
                (f"{guess * 1e3:.1f}", f"{guess / shortest[name] - 1:+.1%}") if guess else ("", "")
            )
            print(
                f"| {name} | {shortest[name] * 1e3:.1f} | {ideal / shortest[name]:.3f} | "
                f"{cells[0]} | {cells[1]} |"
            )
    for kind, taken in theirs.items():
        print(f"| PyTorch, {kind} | {taken * 1e3:.1f} | {ideal / taken:.3f} | | |")
    if theirs:
        best = min(shortest[name] for name in contenders if name != "independent")
        print(f"{min(theirs.values()) / best:.2f}x PyTorch's rate")


if __name__ == "__main__":
    main()
