"""The cost of `mx.parallel.dashboard` for a training step: alternating steps with and without it.

    python benchmarks/dashboard.py

A pipeline of two stages over two devices, whose steps read their losses. Each turn has a few steps
without a dashboard and as many with one, which writes to a terminal that discards its output; the
order alternates. It prints the minimum and median milliseconds per step of both and their ratios;
CPU seconds of the process, which other load on the machine affects less; and the CPU seconds of the
dashboard's own threads relative to the wall time.
"""

import argparse
import io
import statistics
import time

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn


class Terminal(io.StringIO):
    """A terminal that discards its output."""

    def isatty(self):
        return True

    def write(self, text):
        return len(text)


def training(units, layers, rows):
    """Returns a function that trains for a step and waits for the losses."""
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(nn.Dense(units, activation="relu", in_units=units))
    mx.parallel.Mesh({"stage": 2}, [mx.cpu(0), mx.cpu(1)]).place(net)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    pipeline = mx.parallel.Pipeline(4)
    step = mx.parallel.TrainStep(net, gluon.loss.L2Loss(), trainer, pipeline)
    data, labels = nd.random.normal(shape=(rows, units)), nd.zeros((rows, units))
    return lambda: step(data, labels)


def seconds_of(step, steps, board=None):
    """Returns wall and CPU seconds of each of a few steps."""
    found = []
    for _ in range(steps):
        wall, used = time.perf_counter(), time.process_time()
        losses = step()
        if board is not None:
            board.update(losses)
        losses.wait_to_read()
        found.append((time.perf_counter() - wall, time.process_time() - used))
    return found


def main():
    """Measures and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="steps of each way in a turn")
    parser.add_argument("--units", type=int, default=512)
    parser.add_argument("--rows", type=int, default=128)
    options = parser.parse_args()
    step = training(options.units, 6, options.rows)
    seconds_of(step, 5)
    plain, watched, own, begun = [], [], 0.0, 0.0
    for turn in range(options.turns):
        for way in (0, 1) if turn % 2 else (1, 0):
            if way:
                with mx.parallel.dashboard(file=Terminal()) as board:
                    now = time.perf_counter()
                    watched += seconds_of(step, options.steps, board)
                    own, begun = own + board.cpu_seconds(), begun + time.perf_counter() - now
            else:
                plain += seconds_of(step, options.steps)
    print(f"{options.turns * options.steps} steps each; ms of a step")
    print(f"{'':16}{'without':>10}{'with':>10}{'ratio':>8}")
    for column, name in enumerate(("wall", "CPU")):
        for summary in (min, statistics.median):
            a, b = (summary(one[column] for one in way) for way in (plain, watched))
            title = f"{name}, {'least' if summary is min else 'median'}"
            print(f"{title:16}{a * 1e3:10.3f}{b * 1e3:10.3f}{b / a:8.4f}")
    print(f"processor time of the dashboard's threads: {own / begun:.2%} of the wall time")


if __name__ == "__main__":
    main()
