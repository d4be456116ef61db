"""Functions of arrays, compiled and eager: equal bits and fused groups. Blocks of a function."""

import numpy as np

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from support.compare import same_bits


def compiled(function):
    return _core.CachedOp(function, {"exact": True})


def as_list(values):
    return list(values) if isinstance(values, (list, tuple)) else [values]


def is_float(array):
    return np.dtype(array.dtype).kind == "f"


def steps(op, phase="forward", entry=0):
    return [
        i
        for device in op.compiled()[entry]["devices"].values()
        for i in device[phase]
        if i["kind"] == "run"
    ]


def groups(op, phase="forward", entry=0):
    return [i["fused"] for i in steps(op, phase, entry) if "fused" in i]


def planned(op, what="total", entry=0):
    return sum(device["planned"][what] for device in op.compiled()[entry]["devices"].values())


def train(function, arrays, add=False):
    """Returns results and gradients of a function of arrays; `add` accumulates gradients."""
    leaves = [array.copy() for array in arrays]
    for leaf in leaves:
        if is_float(leaf):
            leaf.attach_grad("add" if add else "write")
    found = []
    for _ in range(2):
        mx.random.seed(3)
        with autograd.record():
            outputs = as_list(function(*leaves))
            heads = [
                (o * (i + 1)).sum().as_in_context(leaves[0].ctx)
                for i, o in enumerate(outputs)
                if is_float(o)
            ]
        if heads and any(leaf.grad is not None for leaf in leaves):
            autograd.backward(heads)
        found += [o.asnumpy() for o in outputs] + [
            leaf.grad.asnumpy() for leaf in leaves if leaf.grad is not None
        ]
    mx.random.seed(4)
    return found + [o.asnumpy() for o in as_list(function(*leaves))]


def check(function, arrays, **options):
    op = compiled(function)
    same_bits(train(op, arrays, **options), train(function, arrays, **options))
    return op


def draw(*shapes, dtype="float32", seed=0):
    state = np.random.RandomState(seed)
    return [nd.array(state.uniform(-2, 2, shape), dtype=dtype) for shape in shapes]


class Function(gluon.HybridBlock):
    """A block of a function ``f(F, *arrays)`` that may use its Dense and Dropout layers."""

    def __init__(self, f, ctx=None):
        super().__init__()
        self.f = f
        with self.name_scope():
            self.dense = gluon.nn.Dense(4, in_units=4, flatten=False)
            self.late = gluon.nn.Dense(3, flatten=False)
            self.drop = gluon.nn.Dropout(0.4)

    def forward(self, x, *args):
        return self.f(self, mx.nd, x, *args)


class Calling(gluon.HybridBlock):
    """A block that calls a function of arrays."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)
