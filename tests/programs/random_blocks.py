"""Common parts of random networks: nodes on devices, layers that nodes share, and the search for
failing seeds."""

import argparse
import copy
import os
import time

import numpy as np

import mpgluon as mx
from mpgluon import gluon
from support.devices import on


class Node:
    """An operator on a device; `inputs` are the indices of its values. `layer` is the index of its
    layer, which other nodes may share."""

    def __init__(self, kind, device, inputs, layer=None):
        self.kind, self.device, self.inputs, self.layer = kind, device, inputs, layer

    def __repr__(self):
        name = self.kind if self.layer is None else f"{self.kind}{self.layer}"
        return f"{name}({', '.join(f'v{i}' for i in self.inputs)}) on {self.device}"


class Network(gluon.HybridBlock):
    """The nodes of a case (with `nodes`, `devices`, `dtype` and `seed`) on their devices, or
    `together` on one. Subclasses define how to create a layer (`make`) and how to compute."""

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
        """Returns the inputs of a node on its device."""
        return [values[i].as_in_context(self.places[node.device]) for i in node.inputs]


def fresh_seed():
    return int(np.random.SeedSequence().generate_state(1)[0] % 10**9)


def seed_of_tests():
    """Returns MPGLUON_SEED, or always the same seed: a test that fails must fail again when it is
    repeated. `make hunt` draws fresh seeds."""
    return int(os.environ.get("MPGLUON_SEED", 10**6))


def check_many(make, count, program):
    """Checks cases of `seed_of_tests` and the seeds after it; prints the seeds and the cases."""
    first = seed_of_tests()
    print(
        f"networks with seeds {first} to {first + count - 1}; python tests/programs/{program} "
        "--seed ... --count 1 repeats one"
    )
    for seed in range(first, first + count):
        case = make(seed)
        print(case)
        case.check()


SHRINK_SECONDS = 30


def failure(case):
    """Returns the error of a case, or None."""
    try:
        case.check()
    except Exception as error:
        return error
    return None


def smaller(case):
    """Yields copies of a case in which one node forwards its first input or one result is gone."""
    for i, node in enumerate(case.nodes):
        if node.kind != "move":
            other = copy.deepcopy(case)
            other.nodes[i] = Node("move", node.device, node.inputs[:1])
            yield other
    for i in range(len(case.outputs) if len(case.outputs) > 1 else 0):
        other = copy.deepcopy(case)
        del other.outputs[i]
        if hasattr(other, "used"):  # results that contribute to a loss
            del other.used[i]
            if not any(other.used):
                continue
        yield other


def shorter(case, error):
    """Returns the smallest case found that fails with the same type of error, and its error."""
    end = time.monotonic() + SHRINK_SECONDS
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for other in smaller(case):
            found = failure(other)
            if type(found) is type(error):
                case, error, changed = other, found, True
                break
            if time.monotonic() > end:
                break
    return case, error


def hunt(make, parser=None):
    """The main function of a program: checks `make(seed, options)` for many seeds and prints each
    failing case, minimized."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="instead of a count")
    parser.add_argument("--seed", type=int, help="the first of the seeds; a fresh one by default")
    options = parser.parse_args()
    first = fresh_seed() if options.seed is None else options.seed
    print(f"networks from seed {first}", flush=True)
    findings, number, begin = 0, 0, time.monotonic()
    while (
        number < options.count
        if options.seconds is None
        else time.monotonic() - begin < options.seconds
    ):
        case = make(first + number, options)
        error = failure(case)
        if error is not None:
            findings += 1
            small, error = shorter(case, error)
            print(
                f"seed {first + number} fails, made smaller:\n{small}\n  "
                f"{type(error).__name__}: {error}",
                flush=True,
            )
        number += 1
        if number % 500 == 0:
            print(
                f"{number} networks, {findings} findings, {time.monotonic() - begin:.0f} s",
                flush=True,
            )
    print(
        f"{number} networks from seed {first}: {findings} findings, "
        f"{time.monotonic() - begin:.0f} s"
    )
    return bool(findings)
