"""Context parallelism (Mesh.partition): time and memory of a training step with a long sequence.

    python benchmarks/parallel/context.py [--rounds N] [--devices D] [--tokens T] [--heads H]

A Llama on one sequence of T tokens, on one CPU device and cut along time over D devices, with one
thread each. The ways take turns, in a new order in each round; a turn is one step, and the ratio is
the median over the rounds. Memory is the peak of each device in a step, in a process of its own.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

os.environ.setdefault("MPGLUON_CPU_THREADS", "1")

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon.model_zoo import text

WAYS = ("one", "gather", "ulysses", "ring")


class Loss(gluon.HybridBlock):
    """The mean loss of a language model."""

    def __init__(self, args):
        super().__init__()
        config = {
            "model_type": "llama",
            "vocab_size": 512,
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": args.heads,
            "max_position_embeddings": args.tokens,
        }
        with self.name_scope():
            self.net = text.from_config(config)
            self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F, tokens, labels):
        return F.mean(self.loss(self.net(tokens), labels))


def stepper(way, args):
    """Returns a function that runs a training step."""
    devices = [mx.cpu(i) for i in range(args.devices)]
    net = Loss(args)
    net.initialize(mx.init.Normal(0.02), ctx=devices[0])
    if way != "one":
        mesh = mx.parallel.Mesh({"context": args.devices}, devices)
        time_axis = (None, "context")
        mesh.partition(net, {"data0": time_axis, "data1": time_axis}, context=way)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-4})
    row = np.random.RandomState(0).randint(0, 512, (1, args.tokens + 1))
    tokens, labels = (nd.array(part, dtype="int32") for part in (row[:, :-1], row[:, 1:]))

    def step():
        with autograd.record():
            loss = net(tokens, labels)
        loss.backward()
        trainer.step(1)
        nd.waitall()

    return step


def memory(way, args):
    step = stepper(way, args)
    devices = [mx.cpu(i) for i in range(args.devices)]
    for _ in range(3):
        step()
    for ctx in devices:
        mx.context.reset_peak_memory(ctx)
    step()
    print(json.dumps([mx.context.memory_stats(ctx)["peak_in_use"] for ctx in devices]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4, help="key heads")
    parser.add_argument("--memory", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        memory(args.memory, args)
        return
    steps = {way: stepper(way, args) for way in WAYS}
    times = {way: [] for way in WAYS}
    for step in steps.values():
        step()
    for _ in range(args.rounds):
        for way in random.sample(WAYS, len(WAYS)):
            began = time.perf_counter()
            steps[way]()
            times[way].append(time.perf_counter() - began)
    for way in WAYS:
        ratio = statistics.median(b / a for a, b in zip(times["one"], times[way]))
        given = [f"--{key}={getattr(args, key)}" for key in ("devices", "tokens", "heads")]
        output = subprocess.run(
            [sys.executable, __file__, "--memory", way, *given],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        peaks = ", ".join(f"{peak / 2**20:.0f}" for peak in json.loads(output))
        print(
            f"{way}: {statistics.median(times[way]) * 1e3:.0f} ms, {ratio:.2f} of one device; "
            f"peak {peaks} MiB"
        )


if __name__ == "__main__":
    main()
