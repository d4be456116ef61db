"""Every layer split over all devices, synchronised after each layer: tensor parallelism against one
device, on real pictures.

An ordinary convolutional network is written as for one device; `mx.parallel.shard` splits its
layers by their names: convolutions by channels, the large dense layer by units, the one behind it
by inputs. After every layer the devices exchange what they made. The pictures are digits in many
fonts (glyphs.py), or those of the file that ``--data`` names (an .npz with x and y); the network
learns the same on one device and on many.

    python split_layers.py                              # cpu(0), cpu(1), cpu(2)
    python split_layers.py --devices "gpu(0)" "gpu(1)"
"""

import argparse
import re
import time
from typing import Any

import numpy as np

import glyphs
import mpgluon as mx
from mpgluon import autograd, gluon
from mpgluon.gluon import nn

PLAN = {".*conv[0-9]": "channel", ".*hidden": "column", ".*out": "row"}


def network(width: int) -> Any:
    net = nn.HybridSequential(prefix="digits_")
    with net.name_scope():
        net.add(nn.Conv2D(width, 3, padding=1, activation="relu", prefix="conv1_"))
        net.add(nn.Conv2D(2 * width, 3, padding=1, activation="relu", prefix="conv2_"))
        net.add(nn.MaxPool2D(2))
        net.add(nn.Dense(8 * width, activation="relu", prefix="hidden_"))
        net.add(nn.Dense(10, prefix="out_"))
    return net


def read(path: str) -> tuple[np.ndarray, np.ndarray]:
    """(pictures (n, 1, height, width) in [0, 1], labels), in a fixed random order."""
    if path:
        with np.load(path) as file:
            x, y = file["x"], file["y"]
    else:
        x, y = glyphs.digits(2000, glyphs.fonts()[0], seed=0)
        # Half as large.
        x = x.reshape(len(x), glyphs.SIZE // 2, 2, glyphs.SIZE // 2, 2).mean(axis=(2, 4))
    x = x.astype("float32") / max(float(x.max()), 1)
    order = np.random.RandomState(0).permutation(len(x))
    return x[order].reshape(len(x), 1, *x.shape[-2:]), y[order].astype("float32")


def device(text: str) -> mx.Context:
    match = re.fullmatch(r"(cpu|gpu)\((\d+)\)", text)
    if match is None:
        raise SystemExit(f"'{text}' is no device; there are 'cpu(0)', 'gpu(1)' and so on")
    return mx.Context(match[1], int(match[2]))


def train(
    options: argparse.Namespace, devices: list[mx.Context], x: np.ndarray, y: np.ndarray
) -> Any:
    """The losses of all steps, validation accuracy, seconds, and the network."""
    mx.random.seed(options.seed)
    net = network(options.width)
    if len(devices) > 1:
        mx.parallel.shard(net, PLAN, devices)
    net.initialize(mx.init.Xavier(), ctx=devices[0])
    net.hybridize()
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    cut = len(x) * 4 // 5
    start, losses, trainer = time.time(), [], None
    for _ in range(options.epochs):
        for begin in range(0, cut - options.batch + 1, options.batch):
            data, label = (
                mx.nd.array(a[begin : begin + options.batch], ctx=devices[0]) for a in (x, y)
            )
            with autograd.record():
                loss = loss_of(net(data), label)
            loss.backward()
            trainer = trainer or gluon.Trainer(
                net.collect_params(), "adam", {"learning_rate": options.lr}
            )
            trainer.step(options.batch)
            losses.append(loss.mean())
    values = np.array([float(loss.asscalar()) for loss in losses])
    seconds = time.time() - start
    right = net(mx.nd.array(x[cut:], ctx=devices[0])).asnumpy().argmax(axis=1) == y[cut:]
    return values, float(right.mean()), seconds, net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--devices", nargs="+", default=["cpu(0)", "cpu(1)", "cpu(2)"])
    parser.add_argument("--data", help="an .npz file with x (n, height, width) and y")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    devices = [device(text) for text in options.devices]
    x, y = read(options.data)
    one = train(options, devices[:1], x, y)
    many = train(options, devices, x, y)
    for name, (_, accuracy, seconds, net) in (
        ("one device", one),
        (f"{len(devices)} devices", many),
    ):
        print(f"{name}: validation accuracy {accuracy:.4f}, {seconds:.1f} s")
        held: dict[mx.Context, int] = {}
        for param in net.collect_params().values():
            held[param.list_ctx()[0]] = (
                held.get(param.list_ctx()[0], 0) + int(np.prod(param.shape)) * 4
            )
        print(
            "  bytes of parameters: " + ", ".join(f"{ctx} {size:,}" for ctx, size in held.items())
        )
    print(
        "largest difference of the losses of the first ten steps: "
        f"{np.abs(one[0][:10] - many[0][:10]).max() / one[0][0]:.1e}"
    )
    print(many[3])


if __name__ == "__main__":
    main()
