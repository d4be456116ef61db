"""Every layer split over all devices and synchronized after each layer: tensor parallelism compared
with one device, on real images.

An ordinary convolutional network is written as for one device. `mx.parallel.shard` splits its
layers by name: convolutions by channels, the large dense layer by units, the next one by inputs.
After every layer the devices exchange their results. The images are digits in many fonts
(glyphs.py), or those of the file ``--data`` (an .npz with x and y). The network learns the same on
one device and on many.

    python split_layers.py                              # cpu(0), cpu(1), cpu(2)
    python split_layers.py --devices "gpu(0)" "gpu(1)"
"""

import argparse
from typing import Any

import numpy as np

import glyphs
import mpgluon as mx
from common import megabytes, output, parser, print_table
from measuring import milliseconds, plain_step, save_timelines, take_turns, why
from mpgluon import gluon
from mpgluon.gluon import nn

# --- The idea -------------------------------------------------------------------------------------
PLAN = {".*conv[0-9]": "channel", ".*hidden": "column", ".*out": "row"}


def split(net: gluon.HybridBlock, devices: list[mx.Context]) -> None:
    """Splits the layers that `PLAN` names; call it before initialization. Inputs and outputs stay
    on the first device, and the training loop is unchanged."""
    mx.parallel.shard(net, PLAN, devices)


# --- A network, and its data ----------------------------------------------------------------------
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
    """Returns (images (n, 1, height, width) in [0, 1], labels) in a fixed random order."""
    if path:
        with np.load(path) as file:
            x, y = file["x"], file["y"]
    else:
        x, y = glyphs.digits(2000, glyphs.fonts()[0], seed=0)
        # Halves the size.
        x = x.reshape(len(x), glyphs.SIZE // 2, 2, glyphs.SIZE // 2, 2).mean(axis=(2, 4))
    x = x.astype("float32") / max(float(x.max()), 1)
    order = np.random.RandomState(0).permutation(len(x))
    return x[order].reshape(len(x), 1, *x.shape[-2:]), y[order].astype("float32")


def way(options: argparse.Namespace, devices: list[mx.Context], x: np.ndarray) -> Any:
    """Returns a function that trains on a batch, and its network."""
    mx.random.seed(options.seed)
    net = network(options.width)
    if len(devices) > 1:
        split(net, devices)
    net.initialize(mx.init.Xavier(), ctx=devices[0])
    net.hybridize()
    net(mx.nd.array(x[:1], ctx=devices[0]))  # infers the shapes
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": options.lr})
    step = plain_step(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    return lambda a, b: step(*(mx.nd.array(part, ctx=devices[0]) for part in (a, b))), net


def main() -> None:
    arguments = parser(__doc__, devices=3, steps=200)
    arguments.add_argument("--data", help="an .npz file with x (n, height, width) and y")
    arguments.add_argument("--width", type=int, default=16)
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--lr", type=float, default=0.002)
    options = arguments.parse_args()
    mx.context.set_threads(1)
    devices = options.devices
    x, y = read(options.data)
    cut = len(x) * 4 // 5
    made = {
        "1 device": way(options, devices[:1], x),
        f"{len(devices)} devices": way(options, devices, x),
    }
    ways = {name: train for name, (train, _) in made.items()}
    results = take_turns(
        ways, lambda: glyphs.batches(x[:cut], y[:cut], options.batch, options.seed), options.steps
    )
    rows = [("", "ms a step", "validation accuracy", "MB of parameters")]
    for name, (_, net) in made.items():
        right = net(mx.nd.array(x[cut:], ctx=devices[0])).asnumpy().argmax(axis=1) == y[cut:]
        rows.append((name, milliseconds(results[name][1]), f"{right.mean():.4f}", megabytes(net)))
    print()
    print_table(*rows)
    one, many = (losses for losses, _ in results.values())
    print(
        "largest difference of the losses of the first ten steps: "
        f"{np.abs(one[:10] - many[:10]).max() / one[0]:.1e}"
    )
    print(made[f"{len(devices)} devices"][1])
    works = why(ways, (x[: options.batch], y[: options.batch]), devices)
    save_timelines(output(options, "split_layers.png"), works)


if __name__ == "__main__":
    main()
