"""Fully sharded data parallelism (Mesh.partition) against replicas: time and memory of a step.

    python benchmarks/parallel/partitioned.py [--rounds N] [--devices D] [--case mlp|llama]

With --trees, sums by trees against sums in the order of the devices. With --split, a GPT whose
layers are divided by annotations against the same layers split by name (mx.parallel.shard).

The networks run on the same D CPU devices with one thread each and take turns, in a new order in
each round; a turn is the fastest of five steps. The ratio is the median over the rounds. Memory is
the peak of each device in a step, in bytes for each parameter, measured in a process of its own.
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
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text


def mlp():
    net = nn.HybridSequential()
    for _ in range(12):
        net.add(nn.Dense(512, activation="relu", in_units=512))
    return net, nd.random.normal(shape=(256, 512)), nd.random.normal(shape=(256, 512))


def llama():
    config = {
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    tokens = nd.array(np.random.RandomState(0).randint(0, 512, (8, 65)), dtype="int32")
    return text.from_config(config), tokens[:, :-1], tokens[:, 1:].astype("float32")


def gpt():
    config = {
        "model_type": "gpt2",
        "vocab_size": 512,
        "n_embd": 256,
        "n_layer": 8,
        "n_head": 8,
        "n_positions": 128,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    tokens = nd.array(np.random.RandomState(0).randint(0, 512, (8, 65)), dtype="int32")
    return text.from_config(config), tokens[:, :-1], tokens[:, 1:].astype("float32")


BY_NAME = {
    r"layers\.\d+\.attention": "heads",
    r"layers\.\d+\.mlp\.up": "column",
    r"layers\.\d+\.mlp\.down": "row",
}
ATTENTION = {f".*attention.{name}.(weight|bias)": "model" for name in ("query", "key", "value")}
ANNOTATED = {
    **ATTENTION,
    ".*attention.proj.weight": (None, "model"),
    ".*mlp.up.(weight|bias)": "model",
    ".*mlp.down.weight": (None, "model"),
}
WAYS = {
    "split by name": BY_NAME,
    "annotated": ("model", {"plan": ANNOTATED}),
    "replicas": None,
    "fsdp": ("shard", {}),
    "zero 2": ("shard", {"zero": 2}),
    "undivided": (None, {}),
    "data": ("data", {}),
    "2 leaves": ("data", {"sums": "tree", "leaves": 2}),
    "4 leaves": ("data", {"sums": "tree", "leaves": 4}),
    "8 leaves": ("data", {"sums": "tree", "leaves": 8}),
}
CASES = {
    "mlp": (mlp, gluon.loss.L2Loss),
    "llama": (llama, gluon.loss.SoftmaxCELoss),
    "gpt": (gpt, gluon.loss.SoftmaxCELoss),
}


def stepper(case, way, devices):
    """Returns a function that runs a training step, and the number of parameters."""
    make, loss_class = CASES[case]
    net, x, y = make()
    loss = loss_class()
    if way == "replicas":
        mesh = mx.parallel.Mesh({"data": len(devices)}, devices)
        mesh.place(net)
        net.initialize(mx.init.Normal(0.02))
        parts = list(zip(mesh.split_and_load(x), mesh.split_and_load(y)))
    elif way == "split by name":
        mx.parallel.shard(net, BY_NAME, devices)
        net.initialize(mx.init.Normal(0.02), ctx=devices[0])
        parts = [(x, y)]
    else:
        net.initialize(mx.init.Normal(0.02), ctx=devices[0])
        axis, options = WAYS[way]
        if axis is not None:
            mx.parallel.Mesh({axis: len(devices)}, devices).partition(net, **options)
        parts = [(x, y)]
    net.hybridize()
    loss.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-4})
    count = sum(int(np.prod(param.shape)) for param in net.collect_params().values())

    def step():
        with autograd.record():
            losses = [loss(net(part), label) for part, label in parts]
        autograd.backward(losses)
        trainer.step(x.shape[0])
        nd.waitall()

    return step, count


def memory(case, way, count):
    devices = [mx.cpu(i) for i in range(count)]
    step, parameters = stepper(case, way, devices)
    for _ in range(3):
        step()
    for ctx in devices:
        mx.context.reset_peak_memory(ctx)
    step()
    peaks = [mx.context.memory_stats(ctx)["peak_in_use"] / parameters for ctx in devices]
    print(json.dumps(peaks))


def compare(case, ways, args):
    devices = [mx.cpu(i) for i in range(args.devices)]
    steps = {way: stepper(case, way, devices)[0] for way in ways}
    times = {way: [] for way in steps}
    for step in steps.values():
        step()
    for _ in range(args.rounds):
        for way in random.sample(ways, len(ways)):
            turns = []
            for _ in range(5):
                began = time.perf_counter()
                steps[way]()
                turns.append(time.perf_counter() - began)
            times[way].append(min(turns))
    print(f"{case}, {args.devices} devices")
    for way in ways:
        command = [sys.executable, __file__, "--memory", case, way, "--devices", str(args.devices)]
        output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        peaks = ", ".join(f"{peak:.2f}" for peak in json.loads(output))
        ratio = statistics.median(b / a for a, b in zip(times[ways[0]], times[way]))
        print(
            f"  {way}: {statistics.median(times[way]) * 1e3:.1f} ms, ratio to {ways[0]} "
            f"{ratio:.2f}, peak bytes for each parameter {peaks}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--trees", action="store_true")
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        memory(*args.memory, args.devices)
        return
    ways = ["replicas", "fsdp", "zero 2"]
    if args.trees:
        ways = ["data" if args.devices > 1 else "undivided", "2 leaves", "4 leaves", "8 leaves"]
    if args.split:
        ways, args.case = ["split by name", "annotated"], "gpt"
    for case in [args.case] if args.case else ("mlp", "llama"):
        compare(case, ways, args)


if __name__ == "__main__":
    main()
