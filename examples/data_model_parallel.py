"""Trains a classifier on a mesh: replicas of the network along one axis, its stages along another,
in micro-batches.

    python data_model_parallel.py --data 2 --stages 2 --steps 200

The task is made up: points of a few intertwined spirals. The same training runs on one device for
comparison, and halfway the run on the mesh is saved and goes on from the checkpoint on a mesh of
another shape.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn


def make_net(width: int, classes: int) -> nn.HybridSequential:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(4):
            net.add(nn.Dense(width, activation="tanh"), nn.LayerNorm())
        net.add(nn.Dense(classes))
    return net


def spirals(count: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points of spirals, and which spiral each is of."""
    label = rng.integers(0, classes, count)
    radius = rng.random(count)
    angle = 4 * radius + 2 * np.pi * label / classes + rng.normal(0, 0.1, count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(
        "float32"
    ), label.astype("float32")


class Training:
    """A network on a mesh, its trainer, and a step in micro-batches."""

    def __init__(self, mesh: Any, args: argparse.Namespace) -> None:
        mx.random.seed(args.seed)
        self.mesh, self.net = mesh, make_net(args.width, args.classes)
        self.net.place(mesh)
        self.net.initialize(mx.init.Xavier())
        self.net(nd.zeros((1, 2), ctx=mesh.device()))  # tells the shapes
        options = {"learning_rate": args.lr}
        self.trainer = gluon.Trainer(
            self.net.collect_params(),
            "adam",
            options,
            shard_updates=True,
            clip_global_norm=args.clip,
        )
        pipeline = mx.parallel.Pipeline(args.micro_batches)
        self.step = mx.parallel.TrainStep(
            self.net, gluon.loss.SoftmaxCrossEntropyLoss(), self.trainer, pipeline
        )

    def run(self, batches: Iterable[Any]) -> list[float]:
        losses = [
            self.step(
                nd.array(x, ctx=self.mesh.device()), nd.array(y, ctx=self.mesh.device())
            ).mean()
            for x, y in batches
        ]
        return [float(loss.asscalar()) for loss in losses]

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        out = self.net(nd.array(x, ctx=self.mesh.device())).asnumpy()
        return float((out.argmax(1) == y).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=int, default=2, help="replicas")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--classes", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    batches = [spirals(args.batch, args.classes, rng) for _ in range(args.steps)]
    test = spirals(2000, args.classes, rng)
    half = args.steps // 2

    single = Training(mx.parallel.Mesh({"data": 1}), args)
    expected = single.run(batches)
    print(
        f"one device: loss {expected[0]:.4f} -> {expected[-1]:.4f}, accuracy "
        f"{single.accuracy(*test):.3f}"
    )

    mesh = mx.parallel.Mesh({"data": args.data, "stage": args.stages})
    training = Training(mesh, args)
    for ctx in mesh.devices:
        names = [
            name for name, param in training.net.collect_params().items() if ctx in param.list_ctx()
        ]
        print(f"{ctx}: {names[0]} ... {names[-1]}")
    start = time.time()
    losses = training.run(batches[:half])
    with tempfile.TemporaryDirectory() as directory:
        mx.parallel.save(
            directory, training.net, training.trainer, position=half, background=True
        ).wait()
        other = Training(mx.parallel.Mesh({"stage": args.stages + 1}), args)
        position = mx.parallel.load(directory, other.net, other.trainer)["position"]
    losses += training.run(batches[half:])
    print(
        f"{mesh}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, accuracy "
        f"{training.accuracy(*test):.3f}, {time.time() - start:.1f} s"
    )
    moved = other.run(batches[position:])
    print(
        f"from step {position} on {other.mesh}: loss {moved[-1]:.4f}, accuracy "
        f"{other.accuracy(*test):.3f}"
    )
    # Rounding is all that differs; tanh has no kink that would turn it into more
    early = min(20, half)
    difference = max(abs(a - b) / abs(b) for a, b in zip(losses[:early], expected[:early]))
    print(f"largest relative difference of the first {early} losses: {difference:.1e}")
    assert difference < 1e-5


if __name__ == "__main__":
    main()
