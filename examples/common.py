"""Helpers that several examples share: devices named on the command line, ways to train that take
turns, tables."""

import argparse
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

import mpgluon as mx
from mpgluon import autograd, gluon


def device(text: str) -> mx.Context:
    """``cpu(0)`` or ``gpu(1)`` from the command line as a Context."""
    match = re.fullmatch(r"(cpu|gpu)\((\d+)\)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no device; write cpu(0), gpu(1), ...")
    return mx.Context(match[1], int(match[2]))


def parser(doc: str | None, devices: int, steps: int) -> argparse.ArgumentParser:
    """An argument parser with what all examples take: ``--devices``, ``--steps``, ``--seed``, and
    defaults in the help."""
    result = argparse.ArgumentParser(
        description=(doc or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument(
        "--devices",
        nargs="+",
        type=device,
        default=[mx.cpu(i) for i in range(devices)],
        help="such as cpu(0) gpu(1)",
    )
    result.add_argument("--steps", type=int, default=steps, help="training steps")
    result.add_argument("--seed", type=int, default=1)
    return result


def plain_step(
    net: gluon.Block, loss: gluon.loss.Loss, trainer: gluon.Trainer
) -> Callable[[Any, Any], Any]:
    """A training step by the ordinary Gluon loop, as `TrainStep` is one: ``step(data, labels)``
    gives the losses."""

    def step(data: mx.nd.NDArray, labels: mx.nd.NDArray) -> Any:
        with autograd.record():
            out = net(data)
            losses = loss(out, labels.as_in_context(out.context))
        losses.backward()
        trainer.step(data.shape[0])
        return losses

    return step


def take_turns(
    ways: dict[str, Callable[..., Any]], batches: Callable[[], Iterable[Any]], steps: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Trains every way on the same batches, step by step in turn, so that whatever else the machine
    does hits all of them.

    `ways` are functions that train on a batch and return its losses, by name. Returns {name:
    (losses, seconds)}, a number for each step.
    """
    losses: dict[str, list[float]] = {name: [] for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with tqdm(total=steps, unit="step", dynamic_ncols=True) as progress:
        while progress.n < steps:
            for batch in batches():
                for name, way in ways.items():
                    begin = time.perf_counter()
                    loss = way(*batch)
                    mx.nd.waitall()
                    seconds[name].append(time.perf_counter() - begin)
                    losses[name].append(loss.asnumpy().mean())
                progress.update()
                progress.set_postfix({name: f"{values[-1]:.3f}" for name, values in losses.items()})
                if progress.n == steps:
                    break
    return {name: (np.array(losses[name]), np.array(seconds[name])) for name in ways}


def milliseconds(seconds: np.ndarray) -> str:
    """The median, without the steps in which things were compiled."""
    return f"{np.median(seconds[min(3, len(seconds) - 1) :]) * 1e3:.1f}"


def parameters(net: gluon.Block) -> dict[str, np.ndarray]:
    """All parameters as NumPy arrays, by name."""
    return {
        name: param.data(param.list_ctx()[0]).asnumpy()
        for name, param in net.collect_params().items()
    }


def difference(first: Any, second: Any) -> str:
    """How far two sets of arrays are apart: 'equal bit for bit', or the largest difference."""
    pairs = (
        [(first[name], second[name]) for name in first]
        if isinstance(first, dict)
        else [(first, second)]
    )
    if all(a.tobytes() == b.tobytes() for a, b in pairs):
        return "equal bit for bit"
    return f"{max(float(np.abs(a - b).max()) for a, b in pairs):.1e}"


def print_table(*rows: Sequence[object]) -> None:
    """Rows of cells; the first is the head."""
    table = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table)]
    table.insert(1, ["-" * width for width in widths])
    print(
        "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            for row in table
        )
    )
