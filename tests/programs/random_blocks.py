"""The parts that random networks have in common: nodes on devices, layers that nodes share, and the
hunt for seeds that fail."""

import argparse
import time

import numpy as np

import mpgluon as mx
from mpgluon import gluon
from support.devices import on


class Node:
    """An operator on a device, of values by their numbers. `layer`: the number of its layer, which
    others may share."""

    def __init__(self, kind, device, inputs, layer=None):
        self.kind, self.device, self.inputs, self.layer = kind, device, inputs, layer

    def __repr__(self):
        name = self.kind if self.layer is None else f"{self.kind}{self.layer}"
        return f"{name}({', '.join(f'v{i}' for i in self.inputs)}) on {self.device}"


class Network(gluon.HybridBlock):
    """The nodes of a case, which has `nodes`, `devices`, `dtype` and `seed`, on their devices, or
    `together` on one. Subclasses say how a layer is made (`make`), and compute."""

    def __init__(self, case, together):
        super().__init__(prefix="net_")
        self.case, self.layers = case, {}
        self.places = [on(0 if together else d) for d in range(case.devices)]
        mx.random.seed(case.seed)
        with self.name_scope():
            for node in case.nodes:
                if node.layer is None or node.layer in self.layers:
                    continue
                self.layers[node.layer] = layer = self.make(node.kind)
                setattr(self, f"layer{node.layer}", layer)
                layer.initialize(mx.init.Uniform(0.7), ctx=self.places[node.device])
        self.cast(case.dtype)

    def inputs(self, node, values):
        """Those of a node, on its device."""
        return [values[i].as_in_context(self.places[node.device]) for i in node.inputs]


def fresh_seed():
    return int(np.random.SeedSequence().generate_state(1)[0] % 10**9)


def check_fresh(make, count, program):
    """Checks cases of fresh seeds, which are printed, as are the cases."""
    first = fresh_seed()
    print(
        f"networks with seeds {first} to {first + count - 1}; python tests/programs/{program} "
        "--seed ... --count 1 repeats one"
    )
    for seed in range(first, first + count):
        case = make(seed)
        print(case)
        case.check()


def hunt(make, parser=None):
    """A program's main: checks `make(seed, options)` of many seeds, and tells which of them fail
    and how."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="the first of the seeds; a fresh one by default")
    options = parser.parse_args()
    first = fresh_seed() if options.seed is None else options.seed
    print(f"networks with seeds {first} to {first + options.count - 1}", flush=True)
    findings, begin = 0, time.time()
    for number in range(options.count):
        case = make(first + number, options)
        try:
            case.check()
        except Exception as error:
            findings += 1
            print(f"{case}\n  {type(error).__name__}: {error}", flush=True)
        if number % 500 == 499:
            print(
                f"{number + 1} networks, {findings} findings, {time.time() - begin:.0f} s",
                flush=True,
            )
    print(
        f"{options.count} networks from seed {first}: {findings} findings, "
        f"{time.time() - begin:.0f} s"
    )
    return bool(findings)
