"""Image classification with a convolutional network pipelined over two devices, compared with one
device, with and without BatchNorm.

Without BatchNorm a pipeline matches the whole batch: gradients are sums over rows, accumulated
micro-batch by micro-batch. Only rounding differs, which training magnifies step by step. BatchNorm
computes means over rows, in a pipeline over the rows of a micro-batch, so training differs. This is
measured in losses and in the accuracy on fonts that were not trained on. Compared with the same
micro-batches on one device, all bits are equal in both cases.

    python image_pipeline.py                            # about two minutes on two cores
    python image_pipeline.py --devices "gpu(0)" "gpu(1)"
"""

import argparse
from typing import Any

import numpy as np

import glyphs
import mpgluon as mx
from common import difference, output, parameters, parser, print_table
from measuring import milliseconds, new_figure, plain_step, save, take_turns, why
from mpgluon import gluon
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep


# --- The idea -------------------------------------------------------------------------------------
def pipelined(net: "Classifier", trainer: gluon.Trainer, micro_batches: int) -> TrainStep:
    """Returns a training step, ``losses = step(pictures, labels)``, in micro-batches. With
    ``Pipeline(..., statistics="batch")`` BatchNorm would compute means over the whole batch."""
    return TrainStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, Pipeline(micro_batches))


class Classifier(gluon.HybridBlock):
    """Convolutions on `ctx1`, then convolutions and the classifier on `ctx2`."""

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


# --- Ways to train it, compared -------------------------------------------------------------------
def way(options: argparse.Namespace, norm: bool, contexts: list[mx.Context], pipeline: bool) -> Any:
    """Returns a function that trains on a batch, its network and its step."""
    mx.random.seed(options.seed)
    net = Classifier(options.channels, norm, *contexts)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": options.lr})
    net.hybridize()
    step: Any = (
        pipelined(net, trainer, options.micro_batches)
        if pipeline
        else plain_step(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    )
    return (
        lambda x, y: step(mx.nd.array(x, ctx=net.ctx1), mx.nd.array(y, ctx=net.ctx2)),
        net,
        step,
    )


def accuracy(net: Classifier, pictures: np.ndarray, labels: np.ndarray, batch: int = 100) -> Any:
    metric = mx.metric.Accuracy()
    for i in range(0, len(labels), batch):
        metric.update(
            mx.nd.array(labels[i : i + batch]),
            net(mx.nd.array(pictures[i : i + batch], ctx=net.ctx1)).as_in_context(mx.cpu()),
        )
    return metric.get()[1]


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=120, count=2)
    arguments.add_argument("--train", type=int, default=4000, help="pictures to train on")
    arguments.add_argument("--valid", type=int, default=1000, help="pictures to validate on")
    arguments.add_argument("--channels", type=int, default=32)
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--micro-batches", type=int, default=8)
    arguments.add_argument("--lr", type=float, default=1e-3)
    options = arguments.parse_args()
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    one, two = options.devices[:1] * 2, options.devices
    train, valid = glyphs.data(options.train, options.valid, options.seed)
    passes = iter(range(10**9))
    figure, curves = new_figure(12, 4, columns=2)

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
        made = {
            "whole batch, 1 device": way(options, norm, one, pipeline=False),
            "micro-batches, 1 device": way(options, norm, one, pipeline=True),
            "pipelined, 2 devices": way(options, norm, two, pipeline=True),
        }
        ways = {name: train for name, (train, _, _) in made.items()}
        results = take_turns(
            ways,
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
            curves[int(norm)].plot(losses, label=name)
        curves[int(norm)].set(
            title=f"{'with' if norm else 'without'} BatchNorm", xlabel="step", ylabel="loss"
        )
        report = made["pipelined, 2 devices"][2].pipeline.report()
        print(f"the last pipelined step:\n{report}")
    print()
    print_table(*rows)
    curves[0].legend()
    save(figure, output(options, "image_pipeline.png"))
    batch = next(glyphs.batches(*train, options.batch, options.seed))
    why(ways, batch, options.devices, "whole batch, 1 device")


if __name__ == "__main__":
    main()
