"""Inception: the branches of a layer run on several devices at the same time. `mx.profiler`
measures their overlap.

Each module has four branches (1x1, 3x3, 5x5 convolutions, and pooling) that read the same input and
whose outputs are concatenated. The larger kernels follow 1x1 convolutions that reduce the channels,
so that no branch has most of the work. The branches are distributed over the devices with
``as_in_context``. The block is hybridized as a whole, so every branch with a ready input runs,
forward and backward. The trace shows the waits of the devices. The images are digits in many fonts
(glyphs.py).

    python inception_branches.py                            # about a minute on two cores
    python inception_branches.py --devices "gpu(0)" "gpu(1)" "gpu(2)"
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import glyphs
import mpgluon as mx
from common import difference, output, parameters, parser, print_table
from measuring import milliseconds, overlap, plain_step, profiled, save_timelines, take_turns, why
from mpgluon import gluon
from mpgluon.gluon import nn


# --- The idea -------------------------------------------------------------------------------------
def joined(F: Any, branches: Sequence[gluon.HybridBlock], places: list[mx.Context], x: Any) -> Any:
    """Returns the branches' outputs, concatenated on the device of `x`. In a hybridized block they
    run at the same time: a device's program waits only for its inputs."""
    outputs = [part(x.as_in_context(ctx)) for part, ctx in zip(branches, places)]
    return F.concat(*[out.as_in_context(x.context) for out in outputs], dim=1)


# --- The network ----------------------------------------------------------------------------------
def branch(*layers: Callable[[], gluon.HybridBlock]) -> nn.HybridSequential:
    part = nn.HybridSequential()
    with part.name_scope():
        for layer in layers:
            part.add(layer())
    return part


def conv(inputs: int, outputs: int, kernel: int) -> Callable[[], gluon.HybridBlock]:
    return lambda: nn.Conv2D(
        outputs, kernel, padding=kernel // 2, in_channels=inputs, activation="relu"
    )


class Inception(gluon.HybridBlock):
    """Four branches with `width` channels each, distributed over `contexts`; their concatenation is
    on the first."""

    def __init__(self, inputs: int, width: int, contexts: list[mx.Context]) -> None:
        super().__init__()
        with self.name_scope():
            self.branches = [
                branch(conv(inputs, width, 1), conv(width, width, 3)),
                branch(conv(inputs, width // 2, 1), conv(width // 2, width, 5)),
                branch(conv(inputs, width, 1)),
                branch(lambda: nn.MaxPool2D(3, 1, 1), conv(inputs, width, 1)),
            ]
        # Heavy branches first, starting at the last device, because the first one also computes the
        # concatenation and the sum of the gradients.
        self.places = [
            contexts[-1 - ((i + 1) * len(contexts) - 1) // len(self.branches)]
            for i in range(len(self.branches))
        ]
        for number, (part, ctx) in enumerate(zip(self.branches, self.places)):
            self.register_child(part, f"branch{number}")
            part.initialize(mx.init.Xavier(), ctx=ctx)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return joined(F, self.branches, self.places, x)


def network(options: argparse.Namespace, contexts: list[mx.Context]) -> Any:
    mx.random.seed(options.seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(options.width, 3, padding=1, in_channels=1, activation="relu"), nn.MaxPool2D()
        )
        inputs = options.width
        for _ in range(options.modules):
            net.add(Inception(inputs, options.width, contexts))
            inputs = 4 * options.width
        net.add(nn.MaxPool2D(), nn.Dense(10, in_units=inputs * (glyphs.SIZE // 4) ** 2))
    for child in net:
        if not isinstance(child, Inception):
            child.initialize(mx.init.Xavier(), ctx=contexts[0])
    net.hybridize()
    return net


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=120)
    arguments.add_argument("--train", type=int, default=4000, help="pictures to train on")
    arguments.add_argument("--valid", type=int, default=1000, help="pictures to validate on")
    arguments.add_argument("--width", type=int, default=32, help="channels of a branch")
    arguments.add_argument("--modules", type=int, default=3)
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--lr", type=float, default=1e-3)
    options = arguments.parse_args()
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    train, valid = glyphs.data(options.train, options.valid, options.seed)
    home = options.devices[0]
    places = {"1 device": options.devices[:1], f"{len(options.devices)} devices": options.devices}
    loss, nets, ways = gluon.loss.SoftmaxCrossEntropyLoss(), {}, {}
    for name, contexts in places.items():
        nets[name] = network(options, contexts)
        step = plain_step(
            nets[name],
            loss,
            gluon.Trainer(nets[name].collect_params(), "adam", {"learning_rate": options.lr}),
        )
        ways[name] = lambda x, y, step=step: step(
            mx.nd.array(x, ctx=home), mx.nd.array(y, ctx=home)
        )
    results = take_turns(
        ways, lambda: glyphs.batches(*train, options.batch, options.seed), options.steps
    )

    same = {
        name: difference(parameters(nets["1 device"]), parameters(net))
        for name, net in nets.items()
    }
    sample = next(glyphs.batches(*train, options.batch, options.seed))
    rows: list[tuple[object, ...]] = [
        ("", "ms a step", "last loss", "accuracy", "parameters against 1 device")
    ]
    for name, (losses, seconds) in results.items():
        predicted = nets[name](mx.nd.array(valid[0], ctx=home)).asnumpy().argmax(axis=1)
        right = f"{(predicted == valid[1]).mean():.1%}"
        rows.append((name, milliseconds(seconds), f"{losses[-1]:.4f}", right, same[name]))
    print()
    print_table(*rows)
    works = why(ways, sample, options.devices)
    for name, work in works.items():
        print(f"{name}: two or more at work in {overlap(work.events):.0%} of the time")
    save_timelines(output(options, "inception_branches.png"), works)
    trace = output(options, "inception_branches.json")
    mx.profiler.set_config(filename=trace)
    profiled(lambda: ways[name](*sample))
    mx.profiler.dump()
    print(f"trace of a step on {name}, for Perfetto: {trace}")


if __name__ == "__main__":
    main()
