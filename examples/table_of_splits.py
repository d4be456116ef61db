"""Splits of a network over two devices: the predicted and measured time of each, its memory, and
the planner's choice.

`mx.parallel.plan` measures the layers once. From that it predicts the time of every split and the
best one; here all of them run.

    python table_of_splits.py
    python table_of_splits.py --devices "gpu(0)" "gpu(1)" --width 2048
"""

import math
import time
from typing import Any

import mpgluon as mx
from common import output, parser, print_table
from measuring import new_figure, print_against, save, sharing
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import TrainStep, plan


# --- The idea -------------------------------------------------------------------------------------
def planned(net: Any, x: Any, y: Any, devices: list[mx.Context], micro_batches: int) -> Any:
    """Returns the best split: ``net.place(planned(...))`` places the layers, and its ``pipeline()``
    trains them. Its printed form has the expected time and memory."""
    return plan(
        net, x, devices, loss=loss, labels=y, micro_batches=micro_batches, schedules=["1f1b"]
    )


def loss(out: Any, label: Any) -> Any:
    return ((out - label) ** 2).mean(axis=1)


# --- All splits, measured -------------------------------------------------------------------------
class Measured:
    """The fastest of some steps: its seconds, the busy seconds of each device, and its report."""

    def __init__(self, net: Any, made: Any, x: Any, y: Any, steps: int) -> None:
        net.place(made, verbose=False)
        pipeline = made.pipeline()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3})
        step = TrainStep(net, loss, trainer, pipeline)
        self.seconds = math.inf
        for _ in range(steps + 1):
            begin = time.perf_counter()
            step(x, y)
            nd.waitall()
            seconds = time.perf_counter() - begin
            if seconds < self.seconds:
                self.seconds, self.report = seconds, pipeline.report()
        self.busy = self.report.busy


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=5, count=2)
    arguments.add_argument("--width", type=int, default=512)
    arguments.add_argument("--layers", type=int, default=8)
    arguments.add_argument("--batch", type=int, default=256)
    arguments.add_argument("--micro-batches", type=int, default=4)
    options = arguments.parse_args()
    mx.context.set_threads(1)
    mx.random.seed(options.seed)
    devices = options.devices
    net = nn.HybridSequential()
    with net.name_scope():
        for i in range(options.layers):
            net.add(nn.Dense(options.width * (1 + i % 2), activation="relu"))
        net.add(nn.Dense(10))
    net.initialize(mx.init.Xavier(), ctx=devices[0])
    x = nd.random.normal(shape=(options.batch, options.width), ctx=devices[0])
    y = nd.random.normal(shape=(options.batch, 10), ctx=devices[0])

    made = planned(net, x, y, devices, options.micro_batches)
    print(made)
    chosen, layers = dict(made.placement), list(made.placement)
    head = [f"layers on {devices[0]}", "predicted ms", "measured ms"]
    rows: list[list[object]] = [[*head, *(f"bytes on {ctx}" for ctx in devices), ""]]
    tried: list[tuple[int, float, Measured]] = []
    for cut in range(1, len(layers) + 1):
        for i, layer in enumerate(layers):
            made.move(layer, devices[i >= cut])
        tried.append((cut, made.seconds, Measured(net, made, x, y, options.steps)))
        times = [f"{seconds * 1e3:.2f}" for seconds in (made.seconds, tried[-1][2].seconds)]
        memory = [f"{made.memory[ctx]:,}" for ctx in devices]
        rows.append([cut, *times, *memory, "<- chosen" if made.placement == chosen else ""])
    print()
    print_table(*rows)
    for layer, ctx in chosen.items():
        made.move(layer, ctx)
    choice = Measured(net, made, x, y, options.steps)
    print(f"\nthe choice, predicted beside measured\n{made.compare(choice.report)}")

    figure, axes = new_figure(8, 4)
    cuts = [cut for cut, _, _ in tried]
    axes.plot(cuts, [seconds * 1e3 for _, seconds, _ in tried], "o--", label="predicted")
    axes.plot(cuts, [work.seconds * 1e3 for _, _, work in tried], "o-", label="measured")
    axes.set(xlabel=f"layers on {devices[0]}, of {len(layers)}", ylabel="ms a step", ylim=0)
    axes.legend()
    save(figure, output(options, "table_of_splits.png"))

    print("\nwhy, on this machine:")
    print_against({"1 device": tried[-1][2], "the choice": choice}, "1 device")
    print(
        f"When both devices multiply matrices, each takes {sharing(devices):.2f} times as long as "
        "alone: the planner's measures are of one layer at a time."
    )


if __name__ == "__main__":
    main()
