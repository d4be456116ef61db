"""Common helpers of the examples: command line options, tables, comparisons."""

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

import mpgluon as mx
from mpgluon import gluon


def device(text: str) -> mx.Context:
    """Converts ``cpu(0)`` or ``gpu(1)`` from the command line to a Context."""
    match = re.fullmatch(r"(cpu|gpu)\((\d+)\)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a device; expected cpu(0), gpu(1), ...")
    return mx.Context(match[1], int(match[2]))


def parser(
    doc: str | None,
    devices: int,
    steps: int,
    count: int | None = None,
    out: str = "example-output",
) -> argparse.ArgumentParser:
    """Returns an argument parser with the common options: ``--devices`` (by default `devices` CPU
    devices; exactly `count`, or any number), ``--steps``, ``--out`` and ``--seed``."""
    result = argparse.ArgumentParser(
        description=(doc or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument(
        "--devices",
        nargs=count or "+",
        type=device,
        default=[mx.cpu(i) for i in range(devices)],
        help="such as cpu(0) gpu(1)",
    )
    result.add_argument("--steps", type=int, default=steps, help="training steps")
    result.add_argument("--out", default=out, help="folder for pictures and other files")
    result.add_argument("--seed", type=int, default=1)
    return result


def add_text_options(arguments: argparse.ArgumentParser, limit: int = 1_000_000) -> None:
    """Adds the options of examples that learn a text."""
    arguments.add_argument(
        "--text", help="a text file to learn, instead of Python's standard library"
    )
    arguments.add_argument(
        "--limit", type=int, default=limit, help="characters of text to read at most"
    )


def output(options: argparse.Namespace, name: str) -> str:
    """Returns the path of a file in the folder of ``--out``, which is created."""
    os.makedirs(options.out, exist_ok=True)
    return os.path.join(options.out, name)


def parameters(net: gluon.Block) -> dict[str, np.ndarray]:
    """Returns all parameters as NumPy arrays by name."""
    return {
        name: param.data(param.list_ctx()[0]).asnumpy()
        for name, param in net.collect_params().items()
    }


def megabytes(net: gluon.Block) -> str:
    """Returns the size of the parameters on each device as text."""
    held: dict[mx.Context, float] = {}
    for param in net.collect_params().values():
        for ctx in param.list_ctx():
            held[ctx] = held.get(ctx, 0.0) + param.data(ctx).size * 4 / 1e6
    return ", ".join(
        f"{ctx}: {held[ctx]:.3g}"
        for ctx in sorted(held, key=lambda c: (c.device_type, c.device_id))
    )


def difference(first: Any, second: Any) -> str:
    """Describes the difference of two sets of arrays: 'equal bit for bit', or the largest
    difference."""
    pairs = (
        [(first[name], second[name]) for name in first]
        if isinstance(first, dict)
        else [(first, second)]
    )
    if all(a.tobytes() == b.tobytes() for a, b in pairs):
        return "equal bit for bit"
    return f"{max(float(np.abs(a - b).max()) for a, b in pairs):.1e}"


def print_table(*rows: Sequence[object]) -> None:
    """Prints rows of cells; the first is the header."""
    table = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table)]
    table.insert(1, ["-" * width for width in widths])
    print(
        "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            for row in table
        )
    )
