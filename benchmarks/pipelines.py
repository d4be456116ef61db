"""Pipelines on two CPU devices with a thread each, relative to the ideal throughput. The ideal is
the total of two independent trainings of the whole network, one on each device at the same time
with batches of a micro-batch's size, times M / (M + n - 1).

    python benchmarks/pipelines.py [--rounds N] [--cases transformer,mlp,lstm] [--json FILE]

mpgluon runs in one process. If installed, PyTorch trains the same networks: transformer and MLP by
torch.distributed.pipelining in two processes with a thread each, the LSTM in one process with two
threads. Contenders take turns, and the best round of each counts. JSON format:
{"machine": text, "libraries": {name: version}, "cases": {case: {contender: {"ms": t, ...}}}}.
"""

import argparse
import json
import os
import sys
import time

os.environ["MPGLUON_CPU_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import mpgluon as mx
import sizes
from bench import processor
from contender import Contender
from models_gluon import make_models
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline, TrainStep

DEVICES = [mx.cpu(0), mx.cpu(1)]


class Halves(gluon.HybridBlock):
    """Layers with the first half on one device and the second on another."""

    def __init__(self, layers, contexts):
        super().__init__()
        self.contexts = contexts
        half = len(layers) // 2
        with self.name_scope():
            self.first, self.second = nn.HybridSequential(), nn.HybridSequential()
            self.first.add(*layers[:half])
            self.second.add(*layers[half:])
        self.first.initialize(mx.init.Xavier(), ctx=contexts[0])
        self.second.initialize(mx.init.Xavier(), ctx=contexts[1])

    def hybrid_forward(self, F, x):
        return self.second(
            self.first(x.as_in_context(self.contexts[0])).as_in_context(self.contexts[1])
        )


def transformer_layers():
    """Returns the layers of a GPT without its embeddings and output."""
    return list(
        make_models(mx)["GPT"](
            8, sizes.STAGED_UNITS, sizes.STAGED_HEADS, sizes.STAGED_LAYERS, sizes.STAGED_LENGTH
        ).layers
    )


def transformer(contexts):
    return Halves(transformer_layers(), contexts), sizes.STAGED_SHAPE


def mlp(contexts):
    widths = sizes.STAGED_MLP
    return Halves(
        [nn.Dense(b, in_units=a, activation="relu") for a, b in zip(widths, widths[1:])], contexts
    ), (sizes.STAGED_MLP_BATCH, widths[0])


class LSTMHalves(gluon.HybridBlock):
    def __init__(self, contexts, units):
        super().__init__()
        self.contexts = contexts
        with self.name_scope():
            self.first, self.second = (
                rnn.LSTM(units, 2, input_size=units),
                rnn.LSTM(units, 2, input_size=units),
            )
        self.first.initialize(mx.init.Xavier(), ctx=contexts[0])
        self.second.initialize(mx.init.Xavier(), ctx=contexts[1])

    def states(self, batch):
        return [
            layer.begin_state(batch, ctx=ctx)
            for layer, ctx in zip((self.first, self.second), self.contexts)
        ]

    def hybrid_forward(self, F, x, states):
        x, one = self.first(x, states[0])
        x, two = self.second(x.as_in_context(self.contexts[1]), states[1])
        return x, [one, two]


def square_loss(out, *_):
    return (out.reshape((out.shape[0], -1)) ** 2).mean(axis=1)


def take_turns(contenders, shortest, seconds):
    """Runs the contenders alternately, call by call, for `seconds` each; updates the shortest call
    of each."""
    end = time.perf_counter() + seconds * len(contenders)
    while time.perf_counter() < end:
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            nd.waitall()
            shortest[name] = min(shortest[name], time.perf_counter() - begin)


def trainer_of(net):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4})


def batchwise(make, pieces):
    """Returns the contenders of a pipeline along the batch: name -> function that trains one batch.
    All do the same work."""
    contenders = {}
    alone = []
    for ctx in DEVICES:
        net, shape = make([ctx, ctx])
        net.hybridize()
        alone.append((net, trainer_of(net), nd.ones((shape[0] // pieces, *shape[1:]), ctx=ctx)))

    def independent():  # both together train two batches
        for _ in range(pieces):
            for net, trainer, x in alone:
                with autograd.record():
                    loss = square_loss(net(x))
                loss.backward()
        for net, trainer, x in alone:
            trainer.step(shape[0])

    contenders["independent"] = independent
    for schedule in ("gpipe", "1f1b", "zero_bubble"):
        net, _ = make(DEVICES)
        pipeline = Pipeline(pieces, schedule)
        step = TrainStep(net, square_loss, trainer_of(net), pipeline)
        x = nd.ones(shape)

        def train(step=step, x=x):
            step(x, [])

        train.pipeline = pipeline
        contenders[schedule] = train
    return contenders


def timewise(pieces):
    units, batch, steps = sizes.DEEP_UNITS, sizes.DEEP_BATCH, sizes.DEEP_TIME
    contenders, alone = {}, []
    for ctx in DEVICES:
        net = LSTMHalves([ctx, ctx], units)
        net.hybridize()
        alone.append(
            (
                net,
                trainer_of(net),
                nd.ones((steps // pieces, batch, units), ctx=ctx),
                net.states(batch),
            )
        )

    def independent():
        for net, trainer, x, states in alone:
            with autograd.record():
                losses = []
                for _ in range(pieces):
                    out, states = net(x, states)
                    losses.append(square_loss(out))
            autograd.backward(losses)
        for net, trainer, *_ in alone:
            trainer.step(batch)

    contenders["independent"] = independent
    for schedule in ("gpipe", "zero_bubble"):
        net = LSTMHalves(DEVICES, units)
        pipeline = Pipeline(pieces, schedule, along="time")
        step = TrainStep(net, square_loss, trainer_of(net), pipeline)
        x, states = nd.ones((steps, batch, units)), net.states(batch)

        def train(step=step, x=x, states=states):
            step(x, [], states)

        train.pipeline = pipeline
        contenders[schedule] = train
    return contenders


PIECES = sizes.STAGED_PIECES
CASES = {
    "transformer": lambda: batchwise(transformer, PIECES),
    "mlp": lambda: batchwise(mlp, PIECES),
    "lstm": lambda: timewise(PIECES),
}
PEERS = {"transformer": ("gpipe", "1f1b"), "mlp": ("gpipe", "1f1b"), "lstm": ("2 threads",)}


def peers():
    """Returns PyTorch's contenders by threads per process."""
    found = {}
    for threads in (1, 2):
        peer = Contender("PyTorch", threads, sys.executable, "work_pytorch_distributed")
        if not peer.version:
            return {}
        found[threads] = peer
    return found


def measure(case, rounds, seconds, others):
    """Returns the figures of all contenders of a case."""
    contenders = CASES[case]()
    theirs = {f"PyTorch, {kind}": kind for kind in (PEERS[case] if others else ())}
    shortest = dict.fromkeys([*contenders, *theirs], float("inf"))
    take_turns(contenders, dict(shortest), 0.5)  # compiles and warms up
    for _ in range(rounds):
        take_turns(contenders, shortest, seconds)
        for name, kind in theirs.items():
            peer = others[2 if kind == "2 threads" else 1]
            shortest[name] = min(shortest[name], peer.ask(time=f"{case}, {kind}", seconds=seconds))
    ideal = 2 / shortest["independent"] * PIECES / (PIECES + len(DEVICES) - 1)  # batches per second
    figures = {
        "independent": {"ms": shortest.pop("independent") * 1e3},
        "ideal": {"ms": 1e3 / ideal},
    }
    for name, taken in shortest.items():
        figures[name] = {"ms": taken * 1e3, "of_ideal": 1 / taken / ideal}
        if name in contenders:
            report = contenders[name].pipeline.report()
            figures[name].update(bubble=report.bubble, planned_bubble=report.planned_bubble)
    return figures


def table(case, figures):
    """Yields Markdown lines."""
    yield (
        f"{case}: two independent trainings {figures['independent']['ms']:.1f} ms for two batches; "
        f"the ideal of a pipeline is {figures['ideal']['ms']:.1f} ms a batch"
    )
    yield "| | ms | of the ideal | bubble | by plan |"
    yield "| --- | --- | --- | --- | --- |"
    for name, row in figures.items():
        if "of_ideal" in row:
            bubbles = [
                f"{row[key]:.1%}" if key in row else "" for key in ("bubble", "planned_bubble")
            ]
            yield (
                f"| {name} | {row['ms']:.1f} | {row['of_ideal']:.3f} | {bubbles[0]} | {bubbles[1]} "
                "|"
            )
    theirs = [row["ms"] for name, row in figures.items() if name.startswith("PyTorch")]
    best_of_ours = min((row["ms"], name) for name, row in figures.items() if "bubble" in row)
    if "1f1b" in figures:
        yield (
            f"zero_bubble has {figures['1f1b']['ms'] / figures['zero_bubble']['ms']:.3f}x the rate "
            "of 1f1b"
        )
    if theirs:
        for ms, name in sorted(
            {(figures[n]["ms"], n) for n in ("1f1b", "gpipe") if n in figures} | {best_of_ours}
        ):
            yield f"{name} has {min(theirs) / ms:.2f}x PyTorch's rate"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of each contender in each round"
    )
    parser.add_argument("--json")
    args = parser.parse_args()
    others = peers()
    libraries = {"mpgluon": mx.__version__, **({"PyTorch": others[1].version} if others else {})}
    results = {
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "libraries": libraries,
        "cases": {},
    }
    print(f"{results['machine']}, load {os.getloadavg()[0]:.2f}; {', '.join(libraries.values())}")
    for case in args.cases.split(","):
        figures = results["cases"][case] = measure(case, args.rounds, args.seconds, others)
        print("\n".join(["", *table(case, figures)]), flush=True)
    for peer in others.values():
        peer.close()
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
