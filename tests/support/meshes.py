"""Replicated, sharded and partitioned networks: training, and assembled parameters."""

import math
import re

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from support.devices import on

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def train(net, mesh, trainer, data, loop="replica by replica"):
    losses = []
    for x, y in data:
        own = []
        for part, label in zip(
            gluon.utils.split_and_load(x, mesh), mesh.split_and_load(y, stage=-1)
        ):
            with autograd.record():
                own.append(LOSS(net(part), label))
            if loop == "replica by replica":
                own[-1].backward()
        if loop != "replica by replica":
            autograd.backward(own)
        trainer.step(len(x))
        losses.append(float(np.mean(np.concatenate([loss.asnumpy() for loss in own]))))
    return losses


def whole(params, values):
    """Returns arrays by global parameter name, with shards assembled."""
    found = {}
    for param, value in zip(params, values):
        if isinstance(param, par.ShardedParameter):
            target = found.setdefault(
                param.global_name, np.full(param.global_shape, np.nan, value.dtype)
            )
            at = 0
            for begin, end in param.ranges:
                index = (slice(None),) * param.axis
                target[(*index, slice(begin, end))] = value[(*index, slice(at, at + end - begin))]
                at += end - begin
        else:
            found[param.name] = value
    return found


def gradients(net):
    params = [p for p in net.collect_params().values() if p.grad_req != "null"]
    return whole(params, [p.grad().asnumpy() for p in params])


def values(net):
    """Returns all parameters with shards assembled; asserts that replicas have equal bits."""
    params = list(net.collect_params().values())
    first = []
    for param in params:
        copies = [copy.asnumpy() for copy in param.list_data()]
        assert all(copy.tobytes() == copies[0].tobytes() for copy in copies[1:]), param.name
        first.append(copies[0])
    return whole(params, first)


def inputs_of(shape, integers=0):
    rng = np.random.RandomState(3)
    return (
        rng.randint(0, integers, shape).astype("float32")
        if integers
        else rng.standard_normal(shape).astype("float32")
    )


# --- Partitioned networks, compared with the same networks on one device ---

SGD = "sgd", {"learning_rate": 0.1, "momentum": 0.9}
ADAM = "adam", {"learning_rate": 0.01}
TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


def mesh_of(axes, first=0):
    count = math.prod(n if isinstance(n, int) else len(n) for n in axes.values())
    return mx.parallel.Mesh(axes, [on(first + i) for i in range(count)])


def build(
    make,
    axes=None,
    plan=None,
    partition="fast",
    dtype="float64",
    leaves=None,
    context="auto",
    zero=3,
    **flags,
):
    """Returns an initialized network, partitioned if `axes` are given, and hybridized unless
    `flags` are active=False. With `leaves`, sums are trees."""
    mx.random.seed(3)
    net = make()
    net.initialize(mx.init.Uniform(0.3), ctx=on(0))
    net.cast(dtype)
    if axes is not None:
        trees = {"sums": "tree", "leaves": leaves} if leaves else {}
        mesh_of(axes).partition(net, plan, partition, **trees, context=context, zero=zero)
    net.hybridize(**flags)
    return net


def inputs(*shapes, dtype="float64", high=None):
    """Returns an array for each shape: uniform numbers, or integers below `high`."""
    random = np.random.RandomState(5)
    if high is not None:
        return [nd.array(random.randint(0, high, s), dtype="int32", ctx=on(0)) for s in shapes]
    return [nd.array(random.uniform(-1, 1, s), ctx=on(0)).astype(dtype) for s in shapes]


def flat(outputs):
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def arrays(named):
    """Returns arrays as float64, without the number in the name of a decoder."""
    return {re.sub(r"^(de|en)coder\d+_", "", k): np.asarray(v, "float64") for k, v in named.items()}


def backward(net, batch):
    """Calls a network and its backward with fixed gradients of the outputs. Returns the outputs."""
    with autograd.record():
        outputs = flat(net(*batch))
    random = np.random.RandomState(7)
    heads = [nd.array(random.uniform(-1, 1, o.shape), ctx=o.context) for o in outputs]
    heads = [
        h.as_np_ndarray() if isinstance(o, mx.np.ndarray) else h for h, o in zip(heads, outputs)
    ]
    autograd.backward(outputs, [head.astype(o.dtype) for head, o in zip(heads, outputs)])
    return outputs


def trained(net, batches, optimizer=SGD, steps=3):
    """Returns outputs, gradients and parameters of some steps, by name. Without an optimizer,
    nothing is updated."""
    mx.random.seed(11)
    trainer = optimizer and gluon.Trainer(net.collect_params(), *optimizer)
    found = {}
    for step in range(steps):
        outputs = backward(net, batches[step % len(batches)])
        found.update(
            {f"{step} output {i}": o.astype("float64").asnumpy() for i, o in enumerate(outputs)}
        )
        found.update({f"{step} gradient {k}": g for k, g in arrays(cast(gradients, net)).items()})
        if trainer:
            trainer.step(4)
    found.update(arrays(cast(values, net)))
    for i, out in enumerate(flat(net(*batches[0]))):
        found[f"prediction {i}"] = out.astype("float64").asnumpy()
    return found


def cast(function, net):
    return {name: np.asarray(array).astype("float64") for name, array in function(net).items()}


def check(found, wanted, dtype="float64"):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].shape == array.shape, name
        limit = TOLERANCE[dtype] * max(np.abs(array).max(initial=0), 0.1)
        assert np.abs(found[name] - array).max(initial=0) <= limit, name
