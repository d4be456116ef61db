"""Replicated and sharded networks: training, and assembled parameters."""

import numpy as np

from mpgluon import autograd, gluon, parallel as par

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
