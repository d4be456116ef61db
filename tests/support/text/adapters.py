"""Low-rank adapters of small language models: their values and their training."""

import numpy as np

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.contrib import lora

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def values(net, pattern=""):
    """Returns the values of the parameters with `pattern` in their path."""
    return {
        name: param.reduced().astype("float32").asnumpy()
        for name, param in net._collect_params_with_prefix().items()
        if pattern in name
    }


def fill(net, seed=3):
    """Gives all adapters, even their zeros, random values."""
    random = np.random.RandomState(seed)
    for param in lora.parameters(net).values():
        whole = getattr(param, "global_shape", param.shape)
        param.set_data(nd.array(random.randn(*whole) / 16).astype(param.dtype))


def trained(net, batch, steps=3, trainer=None, same=False):
    """Trains the adapters on the batches `batch(seed=step)`, or all steps on the first one. Returns
    the losses."""
    trainer = trainer or gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
    losses = []
    mx.random.seed(5)
    for step in range(steps):
        ids, labels = batch(seed=0 if same else step)
        with autograd.record():
            out = net(ids)
            loss = LOSS(out, labels.as_in_context(out.context))
        loss.backward()
        trainer.step(4)
        losses.append(loss.astype("float32").asnumpy())
    return losses
