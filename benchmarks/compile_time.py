"""Measures the seconds to trace and compile networks, forward and backward, by number of layers,
and planned bytes relative to the lower bound. Then measures the milliseconds that a new length of a
known network takes, and the bytes that many lengths use.

    python benchmarks/compile_time.py
"""

import time
import warnings

import numpy as np

import mpgluon as mx
import networks
from mpgluon import autograd, nd

LENGTHS = range(16, 64)


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


def call(net, x, record):
    """Returns the CPU milliseconds of this thread until the call is queued, and the milliseconds
    until it is done."""
    nd.waitall()
    busy, start = time.thread_time(), time.perf_counter()
    if record:
        with autograd.record():
            y = net(x)
        y.backward()
    else:
        net(x)
    busy = time.thread_time() - busy
    nd.waitall()
    return 1e3 * busy, 1e3 * (time.perf_counter() - start)


def measure_new_shapes(name, record, **sizes):
    """Measures calls with lengths that the network has not seen, and repeated calls."""
    net, _ = networks.ALL[name](**sizes)
    net.initialize()
    net.hybridize()
    call(net, nd.zeros((1, 8)), record)
    used = mx.context.memory_stats(mx.cpu())["in_use"]
    inputs = [nd.zeros((1, length)) for length in LENGTHS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about recompilation
        new, known = [np.median([call(net, x, record) for x in inputs], axis=0) for _ in range(2)]
    used = mx.context.memory_stats(mx.cpu())["in_use"] - used
    ops = net.compiled()[0]["ops"]
    print(
        f"{name:10s} {'recorded' if record else 'prediction':10s} {ops:4d} ops: new length "
        f"{new[0]:.2f} ms of this thread, {new[1]:.2f} ms until done; known length {known[0]:.2f} "
        f"and {known[1]:.2f} ms; {100 * (new[0] - known[0]) / ops:.2f} ms per 100 ops; "
        f"{used / 2**20:.1f} MiB more in use after {len(LENGTHS)} lengths"
    )


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
    for name, sizes in (("gpt", {"layers": 4, "dropout": 0}), ("llama", {})):
        for record in (False, True):
            measure_new_shapes(name, record, **sizes)
