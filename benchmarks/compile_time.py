"""Measures the seconds to trace and compile networks, forward and backward, by number of layers,
and planned bytes relative to the lower bound.

    python benchmarks/compile_time.py
"""

import time

import numpy as np

import networks
from mpgluon import autograd, nd


def measure(name, **sizes):
    net, inputs = networks.ALL[name](**sizes)
    net.initialize()
    net.hybridize()
    for x in inputs:
        x.attach_grad()
    start = time.perf_counter()
    with autograd.record():
        y = net(*inputs)
    y.backward()
    queued = time.perf_counter() - start
    nd.waitall()
    entry = net.compiled()[0]
    planned = entry["devices"]["cpu(0)"]["planned"]
    print(
        f"{name:10s} {str(sizes):20s} {entry['ops']:6d} ops {queued:8.3f} s; planned "
        f"{planned['total']:12,d} bytes, {planned['total'] / planned['alive']:.3f} of what is "
        "alive at once"
    )
    return queued


if __name__ == "__main__":
    for name in ("mlp", "lstm", "resnet", "inception", "unet"):
        measure(name)
    for name, key, counts in (
        ("gpt", "layers", (6, 12, 24, 48)),
        ("chain", "length", (1000, 10000)),
    ):
        times = [measure(name, **{key: count}) for count in counts]
        print(
            f"{name}: grows as its size to the power "
            f"{np.polyfit(np.log(counts), np.log(times), 1)[0]:.2f}"
        )
