"""Pipelines on two CPU devices with a thread each, against the ideal: what two independent trainings of the whole network, one on each
device at the same time and with batches of a micro-batch's size, make together, times M / (M + n - 1).

    python benchmarks/pipelines.py [--rounds N] [--cases transformer,mlp,lstm] [--json FILE]

Everything runs in one process; contenders take turns, and the best round of each counts.
"""

import argparse
import json
import os
import time

os.environ["MPGLUON_CPU_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402

import mpgluon as mx  # noqa: E402
from models_gluon import make_models  # noqa: E402
from mpgluon import autograd, gluon, nd  # noqa: E402
from mpgluon.gluon import nn, rnn  # noqa: E402
from mpgluon.parallel import Pipeline, TrainStep  # noqa: E402

DEVICES = [mx.cpu(0), mx.cpu(1)]


class Halves(gluon.HybridBlock):
    """Layers, the first half on one device and the second on another."""

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
        return self.second(self.first(x.as_in_context(self.contexts[0])).as_in_context(self.contexts[1]))


def transformer(contexts):
    model = make_models(mx)["GPT"](vocabulary=8, units=256, heads=8, layers=6, length=128)
    return Halves(list(model.layers), contexts), (16, 128, 256)


def mlp(contexts):
    return Halves([nn.Dense(1024, in_units=1024, activation="relu") for _ in range(12)], contexts), (1024, 1024)


class LSTMHalves(gluon.HybridBlock):
    def __init__(self, contexts, units=512):
        super().__init__()
        self.contexts = contexts
        with self.name_scope():
            self.first, self.second = rnn.LSTM(units, 2, input_size=units), rnn.LSTM(units, 2, input_size=units)
        self.first.initialize(mx.init.Xavier(), ctx=contexts[0])
        self.second.initialize(mx.init.Xavier(), ctx=contexts[1])

    def states(self, batch):
        return [layer.begin_state(batch, ctx=ctx) for layer, ctx in zip((self.first, self.second), self.contexts)]

    def hybrid_forward(self, F, x, states):
        x, one = self.first(x, states[0])
        x, two = self.second(x.as_in_context(self.contexts[1]), states[1])
        return x, [one, two]


def square_loss(out, *_):
    return (out.reshape((out.shape[0], -1)) ** 2).mean(axis=1)


def best(run, seconds=1.0):
    """Seconds of the quickest of several calls."""
    run()
    nd.waitall()
    shortest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        nd.waitall()
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest


def trainer_of(net):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4})


def batchwise(make, pieces):
    """Contenders of a pipeline along the batch: name -> function that trains one batch; all do the same work."""
    contenders = {}
    alone = []
    for ctx in DEVICES:
        net, shape = make([ctx, ctx])
        net.hybridize()
        alone.append((net, trainer_of(net), nd.ones((shape[0] // pieces, *shape[1:]), ctx=ctx)))

    def independent():  # together they train two batches
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


def timewise(pieces, units=512, batch=20, steps=64):
    contenders, alone = {}, []
    for ctx in DEVICES:
        net = LSTMHalves([ctx, ctx], units)
        net.hybridize()
        alone.append((net, trainer_of(net), nd.ones((steps // pieces, batch, units), ctx=ctx), net.states(batch)))

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


CASES = {
    "transformer": lambda: (batchwise(transformer, 8), 8),
    "mlp": lambda: (batchwise(mlp, 8), 8),
    "lstm": lambda: (timewise(8), 8),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {}
    for case in args.cases.split(","):
        contenders, pieces = CASES[case]()
        shortest = {name: float("inf") for name in contenders}
        for _ in range(args.rounds):
            for name, run in contenders.items():
                shortest[name] = min(shortest[name], best(run))
        ideal = 2 / shortest["independent"] * pieces / (pieces + len(DEVICES) - 1)  # batches a second
        results[case] = {"independent_ms": shortest["independent"] * 1e3}
        print(f"{case}: two independent trainings {shortest['independent'] * 1e3:.1f} ms for two batches; ideal of a pipeline {1e3 / ideal:.1f} ms a batch")
        for name, seconds in shortest.items():
            if name == "independent":
                continue
            report = contenders[name].pipeline.report()
            results[case][name] = {"ms": seconds * 1e3, "of_ideal": 1 / seconds / ideal, "bubble": report.bubble}
            print(f"  {name}: {seconds * 1e3:.1f} ms, {1 / seconds / ideal:.3f} of the ideal; bubble {report.bubble:.1%}, planned {report.planned_bubble:.1%}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
