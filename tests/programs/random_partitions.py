"""Random networks with random annotations, divided over devices, compute the same as on one device.

    python tests/programs/random_partitions.py --count 1000 [--seed 7]

A failure is printed with its seed; that `--seed` and `--count 1` reproduce it.

The networks come from random_networks.py, in double precision. Parameters, the input and values
between the nodes are cut along random axes of a random mesh, evenly or not. The rows are the time
of attention and rotary embeddings. Some networks add up by trees, and then have the same bits on
fewer devices. The nodes of some networks are on random stages, each of which is divided over its
own devices. In some cases, the uncut parameters are stored on another device. Files hold whole
parameters.
"""

import math
import os
import sys
import tempfile
from itertools import starmap
from unittest import mock

import numpy as np

import mpgluon as mx
from mpgluon import autograd, nd
from mpgluon.gluon import nn
from mpgluon.gluon._compiled import offload
from mpgluon.gluon._tree import parameters_by_path
from mpgluon.parallel import _partition

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

from programs import random_networks
from programs.random_blocks import hunt
from support.devices import on
from support.meshes import gradients, values

WIDTH = random_networks.WIDTH
MESHES = [
    {"data": 2},
    {"shard": 2},
    {"shard": 3},
    {"shard": [3, 1]},
    {"model": 2},
    {"data": 2, "model": 2},
    {"data": 2, "shard": 2},
    {"shard": 2, "model": 2},
    {"data": [1, 2], "model": 3},
    {"data": 2, "context": 2, "model": 2},
]
# A difference in the last bit may change the results of discontinuous functions.
REPLACED = {
    **dict.fromkeys(["through", "made_loss", "regression"], "tanh"),
    "tokens": "weighted",
    "classes": "weighted",
    "unbiased": "lookup",
}


def counted(F, x):
    """Rotates the rows by their positions, and adds multiples of these."""
    steps = F.contrib.arange_like(x, axis=0)
    turned = F.contrib.rotary(F.reshape(x, shape=(1, -1, 1, WIDTH)), dims=4, base=50)
    return F.broadcast_add(
        F.reshape(turned, shape=(-1, WIDTH)), F.expand_dims(F.sin(steps), axis=1) * 0.1
    )


def wide_heads(F, x, **options):
    """Attention over the rows, with a key for each of three heads."""
    query = F.reshape(x, shape=(1, -1, 3, 2))
    return F.reshape(F.contrib.attention(query, query, F.tanh(query), **options), (-1, WIDTH))


# Ops that count rows or have several key heads, in place of other kinds
OWN = {
    "rotary": counted,
    "limited_heads": lambda F, x: wide_heads(F, x, causal=True),
    "wide_heads": lambda F, x: wide_heads(F, x, causal=True, window=3, softcap=2.0),
    "thinned_wide_heads": lambda F, x: wide_heads(F, x, scale=0.5, p=0.3),
}
VOCABULARY = 5
OFFLOADED = {"offload": {"activations": on(18)}}
WAYS = [{}, {}, {}, {"static_alloc": True}, {"recompute": True}, OFFLOADED, None]


class Network(random_networks.Network):
    """A network whose values are annotated. Without a mesh, annotations have no effect."""

    @staticmethod
    def make(kind):
        if kind == "lookup":
            return nn.Embedding(VOCABULARY, WIDTH)
        return random_networks.Network.make(kind)

    def __init__(self, case):
        self.marks = case.marks
        super().__init__(case, True)

    def move_to(self, places):
        """Computes the nodes of each stage on its first device."""
        self.places = places
        self.captured = [array.as_in_context(ctx) for array, ctx in zip(self.captured, places)]

    def compute(self, F, node, inputs):
        own = OWN.get(node.kind)
        if node.kind == "lookup":
            numbers = F.contrib.arange_like(inputs[0], axis=0)
            value = inputs[0] + self.layers[node.layer](numbers * 2 % VOCABULARY)
        elif node.kind == "weighted":
            x = random_networks.rows(F, inputs[0], 3, 2)
            weights = F.softmax(F.batch_dot(x, x, transpose_b=True) * 0.5)
            value = F.reshape(F.batch_dot(weights, x), shape=(-1, WIDTH))
        elif own:
            value = own(F, *inputs)
        else:
            value = super().compute(F, node, inputs)
        axes = self.marks.get(self.case.nodes.index(node))
        return value if axes is None else F.contrib.sharded(value, axes=axes)


class Case(random_networks.Case):
    """A network, its annotations and its training, generated from a seed."""

    def __init__(self, seed):
        super().__init__(seed)
        self.dtype = "float64"
        for node in self.nodes:
            node.kind = REPLACED.get(node.kind, node.kind)
        draw = self.draw = np.random.RandomState(seed + 1)
        self.axes = dict(MESHES[draw.randint(len(MESHES))])
        self.way = WAYS[draw.randint(len(WAYS))]
        self.leaves = self.fewer = None
        if draw.rand() < 0.4:  # sums='tree'
            self.leaves = {k: n if isinstance(n, int) else sum(n) for k, n in self.axes.items()}
            self.fewer = {k: int(draw.randint(1, n + 1)) for k, n in self.leaves.items()}
        # Ulysses needs a key head for each part, and room for a second cut of the heads.
        alone = len(self.axes) == 1 and all(node.kind != "attention" for node in self.nodes)
        few = max((self.leaves or {"": 2}).values()) <= 3
        self.context = "ulysses" if alone and few and seed % 2 else "gather"
        if self.context == "gather" and seed % 3:
            self.context = "ring" if seed % 3 == 1 and not self.leaves else "auto"
        self.zero = 2 + seed % 2
        for node in self.nodes:
            if self.context == "ulysses" and node.kind in ("heads", "thinned_heads"):
                node.kind = node.kind.replace("heads", "wide_heads")
        self.sizes = [int(n) for n in draw.choice([1, 2, 3, 4, 5, 8], 2)]
        # The rows of values vary, and annotations ignore axes with too few of them.
        self.marks = {
            number: ",".join(self.entries((None, WIDTH)))
            for number in range(len(self.nodes))
            if draw.rand() < 0.2
        }
        self.plan = {"data0": self.entries((None, WIDTH))}
        for path, param in parameters_by_path(Network(self)).items():
            if draw.rand() < 0.4 and param.differentiable:
                self.cut(path, param.shape)
        self.cut_experts()
        self.offload = {"parameters": on(19)} if draw.rand() < 0.3 else None
        self.draw_stages(np.random.RandomState(seed + 3))

    def cut_experts(self):
        """Divides all weights of some mixtures of experts by expert."""
        draw = np.random.RandomState(self.seed + 4)
        for number in {node.layer for node in self.nodes if node.kind == "experts"}:
            axis = str(draw.choice([*self.axes]))
            entry = self.entry(axis, 3)
            if draw.rand() < 0.7 and entry == axis:
                for name in ("gate", "up", "down"):
                    self.plan[f"layer{number}.{name}_weight"] = (entry,)

    def draw_stages(self, draw):
        """Assigns the nodes to stages. Every stage must have a layer."""
        shares = [n if isinstance(n, int) else len(n) for n in self.axes.values()]
        layers = {node.layer for node in self.nodes} - {None}
        most = min(len(layers), 3 if np.prod(shares) <= 4 else 1)
        self.devices = draw.randint(2, most + 1) if most > 1 and draw.rand() < 0.5 else 1
        first = draw.randint(self.devices)
        stages = {layer: (layer + first) % self.devices for layer in layers}
        for node in self.nodes:
            node.device = stages.get(node.layer, int(draw.randint(self.devices)))
        self.stages = {f"layer{layer}": stage for layer, stage in stages.items()}
        if self.devices > 1:
            place = draw.randint(len(self.axes) + 1)
            for axes in (self.axes, self.fewer) if self.leaves else (self.axes,):
                former = [*axes.items()]
                axes.clear()
                axes.update([*former[:place], ("stage", self.devices), *former[place:]])

    def entry(self, axis, size):
        """Returns an annotation of `size` indices that leaves an index for each device."""
        shares = (self.leaves or self.axes)[axis]
        count, weights = (shares, None) if isinstance(shares, int) else (len(shares), shares)
        choices = [(1, 1)] if size is None else [(1, 1), (1, 2), (2, 1), (3, 1)]
        found = [axis] if size is None else []
        for blocks, unit in choices if size is not None else ():
            each = size // blocks // unit
            parts = mx.parallel.collectives.divide(each, count, weights)
            if blocks * unit * each == size and all(starmap(int.__lt__, parts)):
                found.append(axis if blocks == unit == 1 else f"{axis}:{blocks}:{unit}")
        return found[self.draw.randint(len(found))] if found else ""

    def entries(self, shape):
        """Annotates random dimensions with different axes of the mesh."""
        result = [""] * len(shape)
        for axis in map(str, self.draw.permutation([*self.axes])):
            dim = self.draw.randint(len(shape) + 1)
            if dim == len(shape):
                continue
            if not result[dim]:
                result[dim] = self.entry(axis, shape[dim])
            elif ":" not in result[dim]:
                result[dim] += f"+{axis}"
        return result

    def cut(self, path, shape):
        """Adds a parameter to the plan, cut along one axis, and possibly along 'shard' as well."""
        axis = str(self.draw.choice([*self.axes]))
        dim = self.draw.randint(len(shape))
        entry = self.entry(axis, shape[dim])
        if entry and axis == "model" and "shard" in self.axes:
            sizes = self.leaves or self.axes
            parts = sizes["model"] * sizes["shard"]
            pieces = math.prod(int(number) for number in entry.split(":")[1:]) * parts
            if shape[dim] % pieces == 0 and self.draw.rand() < 0.6:
                entry += "+shard"
        if entry:
            self.plan[path] = (*[None] * dim, entry)

    def __str__(self):
        trees = f", {self.leaves} leaves on {self.fewer}" if self.leaves else ""
        own = f"{self.axes}, {self.plan}, {self.marks}, {self.way}, {self.context}{trees}"
        own += f", zero={self.zero}"
        return f"{super().__str__()}\n  {own}, offload={self.offload}"

    @mock.patch.object(offload, "SMALLEST", 1)
    @mock.patch.object(_partition, "_SMALLEST", 1)
    def train(self, flags, axes=None, nudge=0.0):
        """Returns results, gradients and parameters of all steps by name. `nudge` is a relative
        change of the inputs."""
        net = Network(self)
        if axes is not None:
            shares = [n if isinstance(n, int) else len(n) for n in axes.values()]
            mesh = mx.parallel.Mesh(axes, [on(i) for i in range(int(np.prod(shares)))])
            net.move_to(mesh.line("stage"))
            plan = {
                path: tuple(tuple(entry.split("+")) if entry else None for entry in entries)
                if path == "data0"
                else entries
                for path, entries in self.plan.items()
                if path == "data0" or path in parameters_by_path(net)
            }
            options = {"context": self.context, "zero": self.zero, "offload": self.offload}
            if self.leaves:
                options.update(sums="tree", leaves=self.leaves)
            if self.devices > 1:
                options["stages"] = self.stages
            mesh.partition(net, plan, **options)
        if flags is not None:
            net.hybridize(**flags)
        mx.random.seed(self.seed + 1)
        found = {}
        for step, size in enumerate(self.sizes):
            rows = np.random.RandomState(step).uniform(-1, 1, (size, WIDTH))
            rows *= 1 + nudge * np.random.RandomState(99).uniform(-1, 1, rows.shape)
            x = nd.array(rows, dtype=self.dtype, ctx=on(0))
            x.attach_grad()
            with autograd.record():
                outputs = net(x)
                loss = nd.add_n(*[(out * out).mean() * (i + 1) for i, out in enumerate(outputs)])
                if self.second:
                    (gradient,) = autograd.grad(loss, [x], create_graph=True, retain_graph=True)
                    loss = loss + (gradient * gradient).sum()
            loss.backward()
            for i, out in enumerate(outputs):
                found[f"output {i} of step {step}"] = out.asnumpy()
            found[f"gradient of the input in step {step}"] = x.grad.asnumpy()
            for name, gradient in gradients(net).items():
                found[f"gradient of {name} in step {step}"] = gradient
            for param in net.collect_params().values():
                if param.grad_req != "null":
                    param.set_data(param.data() - 0.1 * param.grad())
        found.update(values(net))
        x = nd.array(np.random.RandomState(98).uniform(-1, 1, (3, WIDTH)), on(0), self.dtype)
        found.update({f"prediction {i}": out.asnumpy() for i, out in enumerate(net(x))})
        if axes is not None:
            self.check_file(net)
        return found

    def check_file(self, net):
        """Saves the partitioned network and loads it into one that is not partitioned."""
        other = Network(self)
        with tempfile.NamedTemporaryFile() as file:
            net.collect_params().save(file.name)
            other.collect_params().load(file.name)
        wanted = values(net)
        for name, value in values(other).items():
            assert value.tobytes() == wanted[name].tobytes(), f"file: {name} differs\n{self}"

    def check(self):
        one, many = self.train(self.way), self.train(self.way, self.axes)
        # Some networks, such as norms of constants, are ill-conditioned.
        nudged = self.train(self.way, nudge=1e-13)
        assert one.keys() == many.keys()
        if self.way is OFFLOADED:
            for name, value in self.train({}, self.axes).items():
                assert value.tobytes() == many[name].tobytes(), f"bits of {name} differ\n{self}"
        if self.leaves and self.way is not None:
            for name, value in self.train(self.way, self.fewer).items():
                assert value.tobytes() == many[name].tobytes(), f"bits of {name} differ\n{self}"
        for name, wanted in one.items():
            if not np.abs(wanted).max(initial=0) < 1e8:  # training has diverged
                return
            scale = np.abs(wanted).max(initial=0.1)
            allowed = 1e-9 * scale + 1e4 * np.abs(nudged[name] - wanted).max(initial=0)
            difference = np.abs(many[name] - wanted).max(initial=0)
            assert difference <= allowed, f"{name} differs by {difference}, {allowed=}\n{self}"


if __name__ == "__main__":
    sys.exit(hunt(lambda seed, options: Case(seed)))
