"""A residual network on a mesh of replicas and stages, as a new user writes it from the docs.

It trains on one device and is then placed on the mesh, with BatchNorm statistics, updates sharded
among the replicas, a different batch size, recomputed layers, and weights saved and loaded on one
device.
"""

import os

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn

CLASSES, CHANNELS, SIZE = 3, 4, 6


class Residual(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.body = nn.HybridSequential()
            for _ in range(2):
                self.body.add(
                    nn.Conv2D(CHANNELS, 3, padding=1, use_bias=False, in_channels=CHANNELS),
                    nn.BatchNorm(in_channels=CHANNELS),
                    nn.Activation("relu"),
                )

    def hybrid_forward(self, F, x):
        return F.relu(x + self.body(x))


def make():
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="resnet_")
    with net.name_scope():
        net.add(nn.Conv2D(CHANNELS, 3, padding=1, in_channels=1), Residual(), Residual())
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(CLASSES, in_units=CHANNELS))
    return net


def data(number, rows):
    draw = np.random.RandomState(number)
    labels = draw.randint(0, CLASSES, rows)
    images = draw.normal(0, 0.3, (rows, 1, SIZE, SIZE)) + labels[:, None, None, None]
    return nd.array(images), nd.array(labels)


def train_on_one(net, trainer, loss, steps):
    losses = []
    for number in steps:
        x, y = data(number, 8)
        with autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(len(x))
        losses.append(float(value.mean().asscalar()))
    return losses


def train_on_mesh(net, trainer, loss, mesh, steps, rows):
    losses = []
    for number in steps:
        x, y = data(number, rows)
        parts, labels = mesh.split_and_load(x), mesh.split_and_load(y, stage=-1)
        values = []
        for part, label in zip(parts, labels):
            with autograd.record():
                values.append(loss(net(part), label))
        autograd.backward(values)
        trainer.step(len(x))
        losses.append(float(np.mean([value.mean().asscalar() for value in values])))
    return losses


def main(folder, devices):
    """Returns the losses and the predictions on the mesh and on one device."""
    net, loss = make(), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    options = {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}
    trainer = gluon.Trainer(net.collect_params(), "nag", options, clip_global_norm=5.0)
    losses = train_on_one(net, trainer, loss, range(4))
    states = os.path.join(folder, "trainer.states")
    trainer.save_states(states)

    mesh = mx.parallel.Mesh({"data": 2, "stage": 2}, devices)
    net.place(mesh)
    for block in (net[1], net[2]):
        block.hybridize(recompute=True)
    trainer = gluon.Trainer(
        net.collect_params(), "nag", options, shard_updates=True, clip_global_norm=5.0
    )
    trainer.load_states(states)
    losses += train_on_mesh(net, trainer, loss, mesh, range(4, 9), 8)
    losses += train_on_mesh(net, trainer, loss, mesh, range(9, 12), 12)

    x, _ = data(20, 5)
    weights = os.path.join(folder, "net.params")
    net.save_parameters(weights)
    alone = make()
    alone.load_parameters(weights, ctx=devices[0])
    net.place(devices[0], verbose=False)
    net.load_parameters(weights)
    return losses, net(x.as_in_context(devices[0])).asnumpy(), alone(x).asnumpy()
