"""Splits of a network over two devices: what each takes, by prediction and measured, and
what it needs of memory; and the planner's choice.

    python table_of_splits.py [--width N] [--layers N] [--batch N] [--micro-batches M] [--devices
    cpu(0) cpu(1)]
"""

import argparse
import time
from typing import Any

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import TrainStep, plan


def loss(out: Any, label: Any) -> Any:
    return ((out - label) ** 2).mean(axis=1)


def measure(net: Any, made: Any, x: Any, y: Any, steps: int) -> tuple[float, Any]:
    """Milliseconds of the quickest step, and the report of the last."""
    net.place(made)
    pipeline = made.pipeline()
    step = TrainStep(
        net, loss, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}), pipeline
    )
    shortest = float("inf")
    for _ in range(steps + 1):
        begin = time.perf_counter()
        step(x, y)
        nd.waitall()
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest * 1e3, pipeline.report()


def device(name: str) -> mx.Context:
    """The device that is called ``cpu(0)``."""
    kind, _, number = name.rstrip(")").partition("(")
    return mx.Context(kind, int(number))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--devices", nargs=2, default=["cpu(0)", "cpu(1)"])
    args = parser.parse_args()
    devices = [device(name) for name in args.devices]
    net = nn.HybridSequential()
    with net.name_scope():
        for i in range(args.layers):
            net.add(nn.Dense(args.width * (1 + i % 2), activation="relu"))
        net.add(nn.Dense(10))
    net.initialize(mx.init.Xavier())
    x, y = (
        nd.random.normal(shape=(args.batch, args.width)),
        nd.random.normal(shape=(args.batch, 10)),
    )

    made = plan(
        net, x, devices, loss=loss, labels=y, micro_batches=args.micro_batches, schedules=["1f1b"]
    )
    print(made)
    chosen, layers = dict(made.placement), list(made.placement)
    print(
        f"\nlayers on {devices[0]}   predicted ms   measured ms   bytes on {devices[0]}   bytes on "
        f"{devices[1]}"
    )
    for cut in range(1, len(layers) + 1):
        for i, layer in enumerate(layers):
            made.move(layer, devices[i >= cut])
        ms, _ = measure(net, made, x, y, args.steps)
        mark = "   <- chosen" if made.placement == chosen else ""
        print(
            f"{cut:>16}   {made.seconds * 1e3:12.2f}   {ms:11.2f}   "
            f"{made.memory[devices[0]]:15,}   {made.memory[devices[1]]:15,}{mark}"
        )
    for layer, ctx in chosen.items():
        made.move(layer, ctx)
    _, report = measure(net, made, x, y, args.steps)
    print(f"\nthe choice, predicted beside measured\n{made.compare(report)}")


if __name__ == "__main__":
    main()
