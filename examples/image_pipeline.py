"""Image classification with a convolutional network, pipelined over two devices against one: what
is the same, and what BatchNorm changes.

Without BatchNorm a pipeline computes what the whole batch would: gradients are sums over rows, only
added up micro-batch by micro-batch; what differs is rounding, which training makes larger step by
step. BatchNorm takes means over rows, and in a pipeline over the rows of a micro-batch: training
differs, which is measured here, in losses and in the accuracy on fonts that were not trained on.
Against the same micro-batches on one device, all bits are equal either way.

    python image_pipeline.py                            # about two minutes on two cores
    python image_pipeline.py --devices "gpu(0)" "gpu(1)"
"""

import argparse
from typing import Any

import numpy as np

import glyphs
import mpgluon as mx
from common import difference, milliseconds, parameters, parser, plain_step, print_table, take_turns
from mpgluon import gluon
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep


class Classifier(gluon.HybridBlock):
    """Convolutions on `ctx1`, more of them and the classifier on `ctx2`."""

    def __init__(self, channels: int, norm: bool, ctx1: mx.Context, ctx2: mx.Context) -> None:
        super().__init__(prefix="net_")
        self.ctx1, self.ctx2 = ctx1, ctx2
        with self.name_scope():
            self.first, self.second = nn.HybridSequential(), nn.HybridSequential()
            with self.first.name_scope():
                self.add(self.first, 1, channels, norm)
                self.add(self.first, channels, channels, norm)
                self.first.add(nn.MaxPool2D())
            with self.second.name_scope():
                self.add(self.second, channels, 2 * channels, norm)
                self.add(self.second, 2 * channels, 2 * channels, norm)
                self.second.add(
                    nn.MaxPool2D(), nn.Dense(10, in_units=2 * channels * (glyphs.SIZE // 4) ** 2)
                )
        self.first.initialize(mx.init.Xavier(), ctx=ctx1)
        self.second.initialize(mx.init.Xavier(), ctx=ctx2)

    @staticmethod
    def add(part: nn.HybridSequential, inputs: int, outputs: int, norm: bool) -> None:
        part.add(nn.Conv2D(outputs, 3, padding=1, in_channels=inputs))
        if norm:
            part.add(nn.BatchNorm(in_channels=outputs))
        part.add(nn.Activation("relu"))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.second(self.first(x).as_in_context(self.ctx2))


def way(
    options: argparse.Namespace, norm: bool, contexts: list[mx.Context], pipeline: Any = None
) -> Any:
    """A function that trains on a batch, and its network."""
    mx.random.seed(options.seed)
    net = Classifier(options.channels, norm, *contexts)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": options.lr})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    net.hybridize()
    step = (
        plain_step(net, loss, trainer)
        if pipeline is None
        else TrainStep(net, loss, trainer, pipeline)
    )
    return lambda x, y: step(mx.nd.array(x, ctx=net.ctx1), mx.nd.array(y, ctx=net.ctx2)), net


def accuracy(net: Classifier, pictures: np.ndarray, labels: np.ndarray, batch: int = 100) -> Any:
    metric = mx.metric.Accuracy()
    for i in range(0, len(labels), batch):
        metric.update(
            mx.nd.array(labels[i : i + batch]),
            net(mx.nd.array(pictures[i : i + batch], ctx=net.ctx1)).as_in_context(mx.cpu()),
        )
    return metric.get()[1]


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=120)
    arguments.add_argument("--train", type=int, default=4000, help="pictures to train on")
    arguments.add_argument("--valid", type=int, default=1000, help="pictures to validate on")
    arguments.add_argument("--channels", type=int, default=32)
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--micro-batches", type=int, default=8)
    arguments.add_argument("--lr", type=float, default=1e-3)
    options = arguments.parse_args()
    if len(options.devices) != 2:
        raise SystemExit("--devices takes two devices")
    mx.context.set_threads(1)  # the same threads on every device: then placement can't change a bit
    one, two = options.devices[:1] * 2, options.devices
    train, valid = glyphs.data(options.train, options.valid, options.seed)
    passes = iter(range(10**9))

    rows = [
        (
            "",
            "ms a step",
            "mean loss of last 10",
            "accuracy",
            "first 10 losses, all losses against whole batch",
            "parameters against micro-batches on 1 device",
        )
    ]
    for norm in (False, True):
        print(f"\n{'with' if norm else 'without'} BatchNorm:", flush=True)
        pipeline = Pipeline(options.micro_batches)
        made = {
            "whole batch, 1 device": way(options, norm, one),
            "micro-batches, 1 device": way(options, norm, one, Pipeline(options.micro_batches)),
            "pipelined, 2 devices": way(options, norm, two, pipeline),
        }
        results = take_turns(
            {name: step for name, (step, _) in made.items()},
            lambda: glyphs.batches(*train, options.batch, options.seed + next(passes)),
            options.steps,
        )
        whole, reference = (
            results["whole batch, 1 device"][0],
            parameters(made["micro-batches, 1 device"][1]),
        )
        for name, (losses, seconds) in results.items():
            net = made[name][1]
            rows.append(
                (
                    f"{name}{', BatchNorm' if norm else ''}",
                    milliseconds(seconds),
                    f"{np.mean(losses[-10:]):.4f}",
                    f"{accuracy(net, *valid):.1%}",
                    f"{difference(whole[:10], losses[:10])}, {difference(whole, losses)}",
                    difference(reference, parameters(net)),
                )
            )
        print(f"the last pipelined step:\n{pipeline.report()}")
    print()
    print_table(*rows)


if __name__ == "__main__":
    main()
