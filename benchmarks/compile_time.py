"""Measures the seconds to trace and compile networks, forward and backward, by number of layers,
and planned bytes relative to the lower bound. Then measures the milliseconds that a new length of a
known network takes, the bytes that many lengths use, and the milliseconds that a pipeline's
`TrainStep` takes for a new batch size.

    python benchmarks/compile_time.py
"""

import time
import warnings

import numpy as np

import mpgluon as mx
import networks
from mpgluon import autograd, nd
from mpgluon.parallel import Pipeline, TrainStep

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


def nodes_of(entry):
    """Returns the number of nodes of the compiled graphs; a fused group counts its members."""
    return sum(
        1 + step["op"].count("+")
        for device in entry["devices"].values()
        for part in ("invariants", "forward", "backward")
        for step in device[part]
        if step["kind"] == "run"
    )


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
    ops, nodes = net.compiled()[0]["ops"], nodes_of(net.compiled()[0])
    print(
        f"{name:10s} {'recorded' if record else 'prediction':10s} {ops:4d} ops, {nodes} nodes: new "
        f"length {new[0]:.2f} ms of this thread, {new[1]:.2f} ms until done; known length "
        f"{known[0]:.2f} and {known[1]:.2f} ms; {100 * (new[0] - known[0]) / nodes:.2f} ms per 100 "
        f"nodes; {used / 2**20:.1f} MiB more in use after {len(LENGTHS)} lengths"
    )


def step_time(step, rows):
    """Returns the CPU milliseconds of this thread until a training step is queued."""
    x = nd.zeros((rows, 16))
    nd.waitall()
    busy = time.thread_time()
    step(x, [])
    return 1e3 * (time.thread_time() - busy)


def measure_new_batch_sizes(name, micro_batches, **sizes):
    """Measures training steps of a pipeline with batch sizes that it has not seen."""
    net, _ = networks.ALL[name](**sizes)
    net.initialize()
    step = TrainStep(
        net, lambda out: nd.mean(nd.flatten(out), axis=1), None, Pipeline(micro_batches)
    )
    step_time(step, micro_batches)
    rows = [micro_batches * k for k in range(2, 26)]
    new, known = [np.median([step_time(step, count) for count in rows]) for _ in range(2)]
    nodes = nodes_of(step.compiled()[0])
    print(
        f"{name:10s} TrainStep, {micro_batches} micro-batches, {nodes} nodes: new batch size "
        f"{new:.2f} ms of this thread, known batch size {known:.2f} ms; "
        f"{100 * (new - known) / nodes:.2f} ms per 100 nodes"
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
        for micro_batches in (1, 4):
            measure_new_batch_sizes(name, micro_batches, **sizes)
