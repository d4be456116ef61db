"""Offload against everything on one device: time and memory of a training step.

    python benchmarks/parallel/offload.py [--rounds N] [--case mlp|llama] [--files DIRECTORY]

The network computes on cpu(0), with one thread. Its optimizer states, its parameters, or the
activations of its layers are on cpu(1), or in files of a directory. "recompute" recomputes the
activations of layers instead, and "recompute, activations" offloads the inputs of these layers. The
ways take turns, in a new order in each round; a turn is the fastest of three steps. The ratio is
the median over the rounds. Memory is the peak of each device in a step, in bytes for each
parameter, measured in a process of its own.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time

from partitioned import CASES

import mpgluon as mx
from mpgluon import autograd, gluon, nd

DEVICE = mx.cpu(0)
WAYS = "one device", "states", "parameters", "activations", "recompute", "recompute, activations"


def stepper(case, way, other):
    """Returns a function that runs a training step, and the number of parameters. `other` is the
    device of the offloaded values."""
    make, loss_class = CASES[case]
    net, x, y = make()
    loss = loss_class()
    net.initialize(mx.init.Normal(0.02), ctx=DEVICE)
    if way == "parameters":
        mx.parallel.Mesh({"data": 1}, [DEVICE]).partition(net, offload={way: other})
    net.hybridize()
    of_layers = {}
    if "recompute" in way:
        of_layers["recompute"] = True
    if "activations" in way:
        of_layers["offload"] = {"activations": other}
    for layer in getattr(net, "layers", net) if of_layers else ():
        layer.hybridize(**of_layers)
    loss.hybridize()
    adam = {"learning_rate": 1e-4}
    offload = {way: other} if way == "states" else None
    trainer = gluon.Trainer(net.collect_params(), "adam", adam, offload=offload)

    def step():
        with autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(x.shape[0])
        nd.waitall()

    step()
    return step, sum(param.data().size for param in net.collect_params().values())


def memory(case, way, other):
    step, parameters = stepper(case, way, other)
    step()
    for ctx in (DEVICE, other):
        mx.context.reset_peak_memory(ctx)
    step()
    stats = [mx.context.memory_stats(ctx) for ctx in (DEVICE, other)]
    print(json.dumps([device["peak_in_use"] / parameters for device in stats]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--files", metavar="DIRECTORY")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    other = mx.context.file_device(args.files) if args.files else mx.cpu(1)
    if args.memory:
        memory(*args.memory, other)
        return
    files = ["--files", args.files] if args.files else []
    for case in [args.case] if args.case else CASES:
        steps = {way: stepper(case, way, other)[0] for way in WAYS}
        times = {way: [] for way in WAYS}
        for _ in range(args.rounds):
            for way in random.sample(list(steps), len(steps)):
                turns = []
                for _ in range(3):
                    began = time.perf_counter()
                    steps[way]()
                    turns.append(time.perf_counter() - began)
                times[way].append(min(turns))
        for way in WAYS:
            output = subprocess.run(
                [sys.executable, __file__, "--memory", case, way, *files],
                capture_output=True,
                check=True,
                text=True,
            ).stdout
            peaks = ", ".join(f"{peak:.2f}" for peak in json.loads(output))
            ratio = statistics.median(b / a for a, b in zip(times[WAYS[0]], times[way]))
            print(
                f"{case}, {way}: {statistics.median(times[way]) * 1e3:.1f} ms, ratio {ratio:.2f}, "
                f"peak bytes for each parameter: {peaks}"
            )


if __name__ == "__main__":
    main()
