"""Random acyclic networks in pipelines, compared bit for bit with micro-batches accumulated by hand
on one device.

    python tests/programs/random_pipelines.py --count 5000 [--seed 7]

A failure is printed with its seed; that `--seed` and `--count 1` reproduce it.

A network is a list of operators and layers on random devices, each applied to earlier values:
branches, returns to earlier devices, layers used twice, unused values, several results, user code
and control flow on the host. It runs with the schedules and a random table, in the ordinary loop
and in `TrainStep`, along the batch or (with a state carried from a random device to a random
device) along time, with some recomputation.
"""

import argparse
import os
import sys

import numpy as np

from mpgluon import autograd, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep, schedules

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

from programs import random_blocks
from programs.features.blocks import cond, packed, while_loop
from programs.random_blocks import Node, hunt
from support.devices import on

WIDTH = 4
UNARY = (
    "tanh",
    "sigmoid",
    "relu",
    "square",
    "halve",
    "normalise",
    "softmax",
    "mean",
    "stop",
    "split",
    "move",
)
HOSTED = ("function", "two results", "custom", "cond", "while_loop")
LAYERS = ("dense", "unbiased", "prelu", "norm", "batch_norm", "experts", "quantized")
BINARY = ("add", "multiply", "concat", "where")


class Halved(autograd.Function):
    def forward(self, x):
        return x / 2

    def backward(self, dy):
        return dy / 2


class Parted(autograd.Function):
    """Returns x in another shape, and its tanh."""

    def forward(self, x):
        self.save_for_backward(x)
        return nd.expand_dims(x, axis=-1), nd.tanh(x)

    def backward(self, dx, dy):
        (x,) = self.saved_tensors
        return dx.reshape(x.shape) + dy * (1 - nd.square(nd.tanh(x)))


class Network(random_blocks.Network):
    """The nodes of a `Case`, all on one device with `together`."""

    def __init__(self, case, together):
        super().__init__(case, together)
        if case.recompute == "all":
            self.hybridize(recompute=True)
        for layer in self.layers.values():
            if case.recompute == "layers":
                layer.hybridize(recompute=True)

    @staticmethod
    def make(kind):
        if kind == "prelu":
            return nn.PReLU()
        if kind == "experts":
            losses = {"aux_loss": 0.1, "z_loss": 0.05, "balance": "sample"}
            return nn.MoE(WIDTH, 3, experts=3, k=2, in_units=WIDTH, **losses)
        if kind == "quantized":
            return packed(None, WIDTH)
        if kind == "norm":
            return nn.LayerNorm(in_channels=WIDTH)
        if kind == "batch_norm":
            return nn.BatchNorm(axis=-1, in_channels=WIDTH)
        return nn.Dense(WIDTH, in_units=WIDTH, use_bias=kind == "dense", flatten=False)

    def hybrid_forward(self, F, x, state=None):
        values = [x] if state is None else [x, F.broadcast_like(state, x)]
        for node in self.case.nodes:
            values.append(self.compute(F, node, *self.inputs(node, values)))
        outputs = [values[i].as_in_context(self.places[d]) for i, d in self.case.outputs]
        if state is None:
            return outputs
        after, d = self.case.carried
        after = F.mean(values[after], axis=0, keepdims=True).as_in_context(self.places[d])
        return outputs, after.as_in_context(state.context)

    def compute(self, F, node, a, b=None):
        kind = node.kind
        if node.layer is not None:
            return self.layers[node.layer](a)
        if b is not None:
            if kind == "concat":
                return F.slice_axis(F.concat(a, b, dim=-1), axis=-1, begin=2, end=2 + WIDTH)
            return F.where(a > 0, a, b) if kind == "where" else a + b if kind == "add" else a * b
        return {
            "tanh": lambda: F.tanh(a),
            "sigmoid": lambda: F.sigmoid(a),
            "relu": lambda: F.relu(a),
            "square": lambda: F.square(a) / 2,
            "halve": lambda: a / 2,
            "normalise": lambda: F.broadcast_div(a, 1 + F.sum(F.square(a), axis=-1, keepdims=True)),
            "softmax": lambda: F.softmax(a),
            "mean": lambda: F.broadcast_add(a, F.mean(a, axis=-1, keepdims=True)),
            "stop": lambda: F.BlockGrad(a) + a,
            "split": lambda: F.concat(*F.split(a, num_outputs=2, axis=-1)[::-1], dim=-1),
            "move": lambda: a,
            "function": lambda: Halved()(a),
            "two results": lambda: self.joined(F, *Parted()(a)),
            "custom": lambda: F.Custom(a, op_type="feature_double") / 4,
            "cond": lambda: cond(F, a),
            "while_loop": lambda: while_loop(F, a),
        }[kind]()

    @staticmethod
    def joined(F, parted, other):
        return F.reshape(parted, shape=(0, -3) if parted.ndim == 3 else (0, 0, -3)) + other


class Case:
    """A case generated from a seed, except for the given attributes."""

    def __init__(self, seed, devices=6, **given):
        self.seed, self.every_schedule = seed, False
        random = np.random.RandomState(seed)
        choose = lambda items: items[random.randint(len(items))]
        self.devices = int(random.randint(2, devices + 1))
        self.timewise = random.rand() < 0.2
        self.rows, self.micro_batches = int(random.randint(1, 18)), int(random.randint(1, 7))
        self.dtype = choose(["float32"] * 4 + ["float64", "float16", "bfloat16"])
        self.recompute = choose([None] * 4 + ["all", "layers"])
        self.statistics = (
            choose(["micro_batch"] * 3 + ["batch"]) if not self.timewise else "micro_batch"
        )
        self.add = random.rand() < 0.2
        self.nodes, layers, hosted = [], [], random.rand() < 0.3
        first = 2 if self.timewise else 1
        kinds = [
            kind for kind in LAYERS if kind != "batch_norm" or self.dtype in ("float32", "float64")
        ]
        for _ in range(random.randint(3, 21)):
            count = first + len(self.nodes)

            def earlier():
                near = max(count - random.geometric(0.45), 0)
                return int(near if random.rand() < 0.7 else random.randint(count))

            device, kind = int(random.randint(self.devices)), choose([UNARY, LAYERS, BINARY])
            if hosted and random.rand() < 0.25:
                kind = HOSTED
            if kind is LAYERS and layers and random.rand() < 0.25:
                number, kind, device = choose(layers)
                self.nodes.append(Node(kind, device, [earlier()], number))
            elif kind is LAYERS:
                layers.append((len(layers), choose(kinds), device))
                self.nodes.append(Node(layers[-1][1], device, [earlier()], layers[-1][0]))
            else:
                inputs = [earlier() for _ in range(2 if kind is BINARY else 1)]
                self.nodes.append(Node(choose(kind), device, inputs))
        count = first + len(self.nodes)
        ends = {int(random.randint(first, count)) for _ in range(random.randint(1, 4))} | {
            count - 1
        }
        self.outputs = [(end, int(random.randint(self.devices))) for end in sorted(ends)]
        self.carried = (int(random.randint(1, count)), int(random.randint(self.devices)))
        # results that contribute to a loss
        self.used = [bool(random.rand() < 0.8) for _ in self.outputs]
        self.used[int(random.randint(len(self.used)))] = True
        self.wants_input, self.axes = (
            random.rand() < 0.4,
            3 if self.timewise or random.rand() < 0.3 else 2,
        )
        self.__dict__.update(given)
        shape = (self.rows, 2, WIDTH) if self.axes == 3 else (self.rows, WIDTH)
        self.x = nd.array(random.uniform(-1, 1, shape), ctx=on(0), dtype=self.dtype)
        self.state = (
            nd.array(random.uniform(-1, 1, (1, 2, WIDTH)), ctx=on(0), dtype=self.dtype)
            if self.timewise
            else None
        )
        self.random = random

    def __repr__(self):
        lines = [
            f"seed {self.seed}: {self.devices} devices, {self.rows} rows in {self.micro_batches}, "
            f"{self.dtype}, recompute={self.recompute}, add={self.add}, "
            f"statistics={self.statistics}"
        ]
        first = 2 if self.timewise else 1
        lines += [f"  v{first + i} = {node}" for i, node in enumerate(self.nodes)]
        carried = f", carried {self.carried}" if self.timewise else ""
        return "\n".join([*lines, f"  results {self.outputs}, with a loss {self.used}{carried}"])

    def learns(self):
        """True if results depend on parameters; otherwise, backward without an input gradient
        raises."""
        first = 2 if self.timewise else 1
        left = [end for end, _ in self.outputs] + ([self.carried[0]] if self.timewise else [])
        while left:
            at = left.pop() - first
            if at >= 0 and self.nodes[at].layer is not None:
                return True
            left += self.nodes[at].inputs if at >= 0 else []
        return False

    # The loop has losses of the used results, `TrainStep` of all.

    @staticmethod
    def loss(out):
        return (out * out).mean(axis=-1)

    def losses(self, outputs, every):
        return [self.loss(out) for out, used in zip(outputs, self.used) if used or every]

    def parts(self):
        begin, parts = 0, []
        for part in np.array_split(np.arange(self.rows), min(self.micro_batches, self.rows)):
            parts.append((begin, begin + len(part)))
            begin += len(part)
        return parts

    def results(self, net, losses, x_grad):
        params = net.collect_params().values()
        found = [*losses, *[param.grad() for param in params if param.grad_req != "null"]]
        if self.statistics != "batch":  # running averages
            found += [param.data() for param in params if param.grad_req == "null"]
        found += [] if x_grad is None else [x_grad]
        return [array.astype("float32").asnumpy() for array in found]

    def network(self, together, add):
        net = Network(self, together)
        for param in net.collect_params().values():
            if param.grad_req != "null" and add:
                param.grad_req = "add"
                if self.add:
                    param.grad()[:] = 1
        return net

    def by_hand(self, every):
        """Runs micro-batch by micro-batch on one device. Along time, the last one runs backward
        first and gives the head gradient of the previous state."""
        net, x, state = self.network(True, True), self.x.copy(), self.state
        # User code would divide a hybridized block into calls, and their gradients are summed in
        # another order.
        hosted = any(node.kind in HOSTED for node in self.nodes)
        options = {"recompute": True} if self.recompute == "all" and not hosted else {}
        net.hybridize(active=not hosted, exact=True, **options)
        pieces, x_grads, heads = [], [], None
        for begin, end in self.parts():
            part = x[begin:end].copy()
            part.attach_grad()
            if self.timewise:
                state = state.detach()
                state.attach_grad()
            with autograd.record():
                outputs = net(part, state) if self.timewise else net(part)
                outputs, after = outputs if self.timewise else (outputs, None)
                pieces.append((self.losses(outputs, every), part, state, after))
            if not self.timewise:
                autograd.backward(pieces[-1][0])
                x_grads.append(part.grad)
            state = after
        for losses, part, before, after in reversed(pieces) if self.timewise else ():
            ends, grads = list(losses), [nd.ones_like(loss) for loss in losses]
            if heads is not None:
                ends, grads = [*ends, after], [*grads, heads]
            autograd.backward(ends, grads)
            heads = before.grad
            x_grads.insert(0, part.grad)
        joined = [
            nd.concat(*[losses[i] for losses, *_ in pieces], dim=0)
            for i in range(len(pieces[0][0]))
        ]
        x_grad = nd.concat(*x_grads, dim=0) if self.wants_input and not every else None
        results, predicted, state = self.results(net, joined, x_grad), [], self.state
        if every:
            return results
        for begin, end in self.parts():
            outputs = net(x[begin:end], state) if self.timewise else net(x[begin:end])
            outputs, state = outputs if self.timewise else (outputs, None)
            predicted.append(outputs)
        return results + self.predicted(
            [nd.concat(*parts, dim=0) for parts in zip(*predicted)], state
        )

    def predicted(self, outputs, state):
        """Returns predictions after training; none if running averages differ from by_hand's."""
        arrays = [*outputs, *([] if state is None else [state])]
        return [a.astype("float32").asnumpy() for a in arrays if self.statistics != "batch"]

    def pipeline(self, schedule):
        along = "time" if self.timewise else "batch"
        options = {"along": along, "statistics": self.statistics, "check": not self.timewise}
        return Pipeline(self.micro_batches, schedule, **options)

    def loop(self, schedule):
        net, x = self.network(False, self.add), self.x.copy()
        flags = {"recompute": True} if self.recompute == "all" else {}
        net.hybridize(exact=True, pipeline=self.pipeline(schedule), **flags)
        if self.wants_input or not self.learns():
            x.attach_grad()
        with autograd.record():
            outputs = net(x, self.state) if self.timewise else net(x)
            losses = self.losses(outputs[0] if self.timewise else outputs, False)
        autograd.backward(losses)
        results = self.results(net, losses, x.grad if self.wants_input else None)
        outputs = net(x, self.state) if self.timewise else net(x)
        return results + self.predicted(*(outputs if self.timewise else (outputs, None)))

    def step(self, schedule):
        net = self.network(False, self.add)
        loss = lambda outputs, *_: [self.loss(out) for out in outputs]
        train = TrainStep(net, loss, None, self.pipeline(schedule), exact=True)
        losses = train(self.x, [], self.state) if self.timewise else train(self.x, [])
        losses = losses[0] if self.timewise else losses
        self.train = train
        return self.results(net, losses if isinstance(losses, list) else [losses], None)

    def table(self):
        """Returns a random topological order as a schedule table."""
        graph, times = self.train.pipeline.report().stages.graph, {}
        for s in range(len(graph)):
            times.update({(kind, s): self.random.rand() + 0.1 for kind in "FBW"})
        count = len(self.parts())
        return schedules.make_table(
            graph, count, "1f1b", times, in_flight=int(self.random.randint(1, count + 1))
        )

    def check(self):
        """Raises AssertionError on any difference."""
        names = [*schedules.NAMES, "auto"]
        if not self.every_schedule:
            names = [names[i] for i in self.random.permutation(len(names))[:2]]
        wanted = self.by_hand(False), self.by_hand(True)
        for name in names:
            self.compare(self.loop(name), wanted[0], f"the loop, {name}")
            self.compare(self.step(name), wanted[1], f"TrainStep, {name}")
        if self.micro_batches <= self.rows:
            self.compare(self.step(self.table()), wanted[1], "TrainStep, a random table")

    @staticmethod
    def compare(got, wanted, what):
        assert len(got) == len(wanted), what
        for i, (a, b) in enumerate(zip(got, wanted)):
            assert np.array_equal(a, b, equal_nan=True), (
                f"{what}: array {i} of {len(got)} differs by {np.abs(a - b).max()}"
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--every", action="store_true", help="every schedule of every network")
    return hunt(
        lambda seed, options: Case(seed, options.devices, every_schedule=options.every), parser
    )


if __name__ == "__main__":
    sys.exit(main())
