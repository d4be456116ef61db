"""The served network: its creation and training, and functions from rows to scores on one or
several devices or with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn

INPUTS, WIDTH, LAYERS, CLASSES = 64, 2048, 6, 10
ROWS = 16  # rows per micro-batch; the only compiled size
Predict = Callable[[np.ndarray], np.ndarray]


def network() -> nn.HybridSequential:
    net = nn.HybridSequential(prefix="served_")
    sizes = [INPUTS] + [WIDTH] * LAYERS
    with net.name_scope():
        for inputs, units in zip(sizes, sizes[1:]):
            net.add(nn.Dense(units, activation="relu", in_units=inputs))
        net.add(nn.Dense(CLASSES, in_units=WIDTH))
    return net


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns noisy images of ten patterns and their classes."""
    patterns = np.random.RandomState(0).normal(size=(CLASSES, INPUTS))
    draw = np.random.RandomState(seed + 1)
    labels = draw.randint(0, CLASSES, count)
    noisy = patterns[labels] + draw.normal(size=(count, INPUTS))
    return noisy.astype("float32"), labels.astype("float32")


def placed(net: nn.HybridSequential, devices: Sequence[mx.Context]) -> None:
    """Distributes consecutive layers over the devices."""
    layers = len(net)
    places = {str(i): devices[i * len(devices) // layers] for i in range(layers)}
    net.place(places, verbose=False)
    net.hybridize()


def train(path: str, devices: Sequence[mx.Context], steps: int) -> float:
    """Trains the network and writes its parameters; returns the accuracy on new images."""
    mx.random.seed(1)
    net = network()
    net.initialize(mx.init.Xavier())
    placed(net, devices)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-4})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(steps):
        x, y = pictures(64, seed=step)
        with autograd.record():
            losses = loss(net(nd.array(x, ctx=devices[0])), nd.array(y, ctx=devices[-1]))
        losses.backward()
        trainer.step(64)
    net.save_parameters(path)
    x, y = pictures(500, seed=steps)
    return float((net(nd.array(x, ctx=devices[0])).asnumpy().argmax(1) == y).mean())


def over_devices(path: str, devices: Sequence[mx.Context]) -> Predict:
    """Returns a function from rows to scores, pipelined over the devices."""
    net = network()
    placed(net, devices)  # before loading, so that each parameter is loaded onto its device
    net.load_parameters(path)

    def predict(rows: np.ndarray) -> np.ndarray:
        # Calls are asynchronous: while a device computes one micro-batch, the previous device
        # computes the next.
        filled = np.zeros((-(-len(rows) // ROWS) * ROWS, INPUTS), "float32")
        filled[: len(rows)] = rows
        parts = [
            net(nd.array(filled[i : i + ROWS], ctx=devices[0])) for i in range(0, len(filled), ROWS)
        ]
        return np.concatenate([part.asnumpy() for part in parts])[: len(rows)]

    predict(np.zeros((1, INPUTS), "float32"))  # compiles before the first request
    return predict


def by_torch(path: str, threads: int) -> Predict:
    """Returns a function that computes the same network and parameters with PyTorch."""
    import torch

    torch.set_num_threads(threads)
    net = network()
    net.load_parameters(path)
    layers: list[torch.nn.Module] = []
    for i, dense in enumerate(net):
        layer = torch.nn.Linear(dense.weight.shape[1], dense.weight.shape[0])
        layer.weight.data = torch.from_numpy(dense.weight.data().asnumpy())
        layer.bias.data = torch.from_numpy(dense.bias.data().asnumpy())
        layers += [layer] if i == LAYERS else [layer, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers)

    def predict(rows: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(model(torch.from_numpy(np.ascontiguousarray(rows))))

    predict(np.zeros((1, INPUTS), "float32"))
    return predict
