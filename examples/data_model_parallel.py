"""Trains a classifier on a mesh in micro-batches: replicas of the network along one axis, its
stages along another.

The task is synthetic: points of a few intertwined spirals. The same training runs on one device for
comparison. Halfway, the run on the mesh is saved and resumed from the checkpoint on a mesh of a
different shape.

    python data_model_parallel.py                         # four devices: 2 replicas of 2 stages
    python data_model_parallel.py --replicas 4 --devices "gpu(0)" "gpu(1)" "gpu(2)" "gpu(3)"
"""

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import mpgluon as mx
from common import output, parser, print_table
from measuring import milliseconds, new_figure, save, take_turns, why
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Mesh, Pipeline, TrainStep


# --- The idea -------------------------------------------------------------------------------------
def on_mesh(
    net: gluon.HybridBlock, mesh: Mesh, micro_batches: int, lr: float
) -> tuple[TrainStep, gluon.Trainer]:
    """Returns a training step of `net` on a mesh with the axes "data" (replicas) and "stage"
    (consecutive layers). Each replica receives its part of a batch and passes it through its stages
    in micro-batches. Gradients are summed over replicas, and each replica updates a part of the
    parameters."""
    net.place(mesh, verbose=False)
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(
        net.collect_params(),
        "adam",
        {"learning_rate": lr},
        shard_updates=True,
        clip_global_norm=1.0,
    )
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    return TrainStep(net, loss, trainer, Pipeline(micro_batches)), trainer


# --- A network, and its data ----------------------------------------------------------------------
def network(width: int, classes: int) -> nn.HybridSequential:
    net = nn.HybridSequential(prefix="net_")
    sizes = [2] + [width] * 4
    with net.name_scope():
        for inputs, units in zip(sizes, sizes[1:]):
            net.add(nn.Dense(units, activation="tanh", in_units=inputs))
            net.add(nn.LayerNorm(in_channels=units))
        net.add(nn.Dense(classes, in_units=width))
    return net


def spirals(count: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns points of spirals and the spiral index of each."""
    label = rng.integers(0, classes, count)
    radius = rng.random(count)
    angle = 4 * radius + 2 * np.pi * label / classes + rng.normal(0, 0.1, count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(
        "float32"
    ), label.astype("float32")


class Training:
    """A network on a mesh, its step and its trainer."""

    def __init__(self, mesh: Mesh, options: argparse.Namespace) -> None:
        mx.random.seed(options.seed)
        self.mesh, self.net = mesh, network(options.width, options.classes)
        self.step, self.trainer = on_mesh(self.net, mesh, options.micro_batches, options.lr)

    def train(self, x: np.ndarray, y: np.ndarray) -> Any:
        home = self.mesh.device()
        return self.step(nd.array(x, ctx=home), nd.array(y, ctx=home))

    def classes_of(self, x: np.ndarray) -> np.ndarray:
        scores = self.net(nd.array(x, ctx=self.mesh.device()))
        classes: np.ndarray = np.argmax(scores.asnumpy(), 1)
        return classes


def draw(path: str, training: Training, x: np.ndarray, y: np.ndarray, classes: int) -> None:
    """Draws the points and the predicted class of each position of the plane."""
    figure, axes = new_figure(5, 5)
    line = np.linspace(-1.2, 1.2, 120, dtype="float32")
    plane = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    levels = np.arange(classes + 1) - 0.5
    axes.contourf(line, line, training.classes_of(plane).reshape(120, 120), levels, alpha=0.3)
    axes.scatter(*x.T, c=y, s=5)
    axes.set(title="classes, by the network on the mesh", aspect="equal")
    save(figure, path)


def main() -> None:
    arguments = parser(__doc__, devices=4, steps=300)
    arguments.add_argument("--replicas", type=int, default=2)
    arguments.add_argument("--micro-batches", type=int, default=4)
    arguments.add_argument("--batch", type=int, default=128)
    arguments.add_argument("--width", type=int, default=64)
    arguments.add_argument("--classes", type=int, default=3)
    arguments.add_argument("--lr", type=float, default=0.003)
    options = arguments.parse_args()
    devices, replicas = options.devices, options.replicas
    if len(devices) % replicas:
        raise SystemExit("--devices must be a multiple of --replicas")
    mx.context.set_threads(1)
    rng = np.random.default_rng(options.seed)
    batches = [spirals(options.batch, options.classes, rng) for _ in range(options.steps)]
    points, labels = spirals(2000, options.classes, rng)
    half = options.steps // 2

    single = Training(Mesh({"data": 1}, devices[:1]), options)
    stages = len(devices) // replicas
    training = Training(Mesh({"data": replicas, "stage": stages}, devices), options)
    for ctx in training.mesh.devices:
        params = training.net.collect_params().items()
        names = [name for name, param in params if ctx in param.list_ctx()]
        print(f"{ctx}: {names[0]} ... {names[-1]}")
    ways: dict[str, Callable[..., Any]] = {
        "1 device": single.train,
        f"{replicas} replicas of {stages} stages": training.train,
    }
    first = take_turns(ways, lambda: batches[:half], half)

    # Saved on one mesh, loaded onto another
    other = Training(Mesh({"stage": len(devices)}, devices), options)
    with tempfile.TemporaryDirectory() as folder:
        parts = training.net, training.trainer
        mx.parallel.save(folder, *parts, position=half, background=True).wait()
        position = mx.parallel.load(folder, other.net, other.trainer)["position"]
    moved = f"from step {position} on {len(devices)} stages"
    ways[moved] = other.train
    second = take_turns(ways, lambda: batches[position:], options.steps - position)

    rows: list[tuple[str, ...]] = [("", "ms a step", "last loss", "accuracy")]
    for (name, (losses, seconds)), run in zip(second.items(), (single, training, other)):
        accuracy = float((run.classes_of(points) == labels).mean())
        rows.append((name, milliseconds(seconds), f"{losses[-1]:.4f}", f"{accuracy:.3f}"))
    print()
    print_table(*rows)
    draw(output(options, "data_model_parallel.png"), training, points, labels, options.classes)
    # Only rounding differs; tanh is smooth, so it does not amplify the difference
    expected, losses = (values[:20] for values, _ in first.values())
    difference = float((abs(losses - expected) / abs(expected)).max())
    print(f"largest relative difference of the first {len(losses)} losses: {difference:.1e}")
    assert difference < 1e-5
    why(ways, batches[0], devices)


if __name__ == "__main__":
    main()
