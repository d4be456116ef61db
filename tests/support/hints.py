"""Names for the code in hints: arrays, networks and functions that check results."""

import itertools
import os

import numpy

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.contrib import lora
from mpgluon.gluon import nn, rnn
from mpgluon.gluon.model_zoo import text
from support.networks import decoder


class Double(autograd.Function):
    def forward(self, x):
        return 2 * x

    def backward(self, dy):
        return 5 * dy


def queries():
    """A network with a layer at 'layers.0.query', and another layer."""
    net, layer = nn.HybridSequential(), nn.HybridSequential()
    net.layers = nn.HybridSequential()
    net.layers.add(layer)
    layer.query = nn.Dense(3, in_units=3)
    net.initialize()
    return net, nn.Dense(3, in_units=3)


def hooked():
    x = nd.array([1])
    x.attach_grad()
    with autograd.record():
        y = Double()(x)
    y.backward()
    return x.grad


def recorded(*functions):
    """Returns an array and the results of applying the functions to it in turn, recorded."""
    found = [nd.array([[1, 2, 3], [4, 5, 6]])]
    found[0].attach_grad()
    with autograd.record():
        for function in functions:
            found.append(function(found[-1]))
    return found


def same(found, wanted):
    found = found.asnumpy() if isinstance(found, nd.NDArray) else numpy.asarray(found)
    return found.shape == numpy.shape(wanted) and numpy.allclose(found, wanted, 1e-5)


def inside(manager, function):
    with manager:
        return function()


def recording(manager):
    """Returns whether autograd records before, in and after a context manager in record()."""
    with autograd.record():
        before = autograd.is_recording()
        during = inside(manager, autograd.is_recording)
        return [before, during, autograd.is_recording()]


def made(layer, x):
    layer.initialize()
    return layer(x)


def built(kind, *blocks):
    net = kind()
    net.add(*blocks)
    return net


def by_channels(layer, ndim=2):
    with autograd.record():
        found = layer(nd.ones((4, 8) + (3,) * ndim)).asnumpy().reshape(32, -1)
    return set(found.std(1)) == {0} and set(found[:, 0]) == {0, 2}


def drawn(init):
    """Returns the initial weight of a layer of 200 inputs and 100 units."""
    layer = nn.Dense(100, in_units=200)
    layer.initialize(init)
    return layer.weight.data().asnumpy()


def owned(kind):
    class Scale(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.g = kind("g", shape=(3,), init=mx.init.Constant(2))

        def hybrid_forward(self, F, x, g):
            return x * g

    net = Scale()
    net.initialize()
    return net


def replicas(mesh, net):
    mesh.place(net)
    return net[0].weight.list_ctx()


def llama(folder):
    """Writes the folder of a small network."""
    sizes = {"hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 1}
    sizes.update(num_hidden_layers=1, vocab_size=8, model_type="llama")
    net = text.from_config(sizes)
    net.initialize()
    net.save_parameters(folder, format="huggingface")
    return folder


def convolve(inputs, **options):
    weight = nd.ones((2, inputs, 2, 2))
    options.update(kernel=(2, 2), num_filter=2, no_bias=True)
    return nd.Convolution(nd.ones((1, 2, 4, 4)), weight, **options)


def generated(tokens=((1, 5, 3),), **options):
    """Returns the continuation of tokens by a small network."""
    return text.generate(decoder(), tokens, **options)


def scope_of(tmp_path):
    """Returns the values of all names in the code of hints and conditions."""
    net = built(nn.HybridSequential, nn.Dense(3, in_units=3), nn.Dense(3, in_units=3))
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    x, y = nd.array([[1, 2, 3], [4, 5, 6]]), nd.array([[1, 5, 2], [4, 1, 3]])

    def trained():
        with autograd.record():
            out = net(x)
        out.backward()

    class Chained(gluon.data.IterableDataset):
        def __iter__(self):
            return itertools.chain(range(2), range(2))

    seen, exponents = [], numpy.exp(x.asnumpy())
    given = dict(axis=1, axes=(1, 0), shape=(3, 2), value=7, mask=x > 2, dtype="int64", rate=0.5)
    given.update(values=nd.array([9, 8]), rows=[0, 1], columns=[1, 2], repeats=2, num_outputs=3)
    given.update(low=2, high=3, loc=9, scale=0.01, a_min=2, a_max=4, size=2, count=2, num_shards=2)
    given.update(name="own", function=seen.append, block=nn.Dense(2), batch_size=2, seen=seen)
    given.update(blocks=[nn.Dense(2), nn.Dense(3)], file=str(tmp_path / "file"), labels=None)
    given.update(labels=nd.array([0, 2]), image=nd.ones((1, 2, 4, 4)), param=net[0].weight)
    given.update(
        X=x.asnumpy(), Y=y.asnumpy(), EXP=exponents, self=gluon.HybridBlock(), Double=Double
    )
    given["LOG_P"] = numpy.log(exponents / exponents.sum(1, keepdims=True))
    given["devices"] = lambda net: {p.list_ctx()[0] for p in net.collect_params().values()}
    given["dtypes"] = lambda net: {numpy.dtype(p.dtype).name for p in net.collect_params().values()}
    given["frozen"] = lambda net: {p.grad_req for p in net.collect_params().values()} == {"null"}
    given.update(text=text, llama=llama, lora=lora)
    given.update(dataset=gluon.data.SimpleDataset(list(range(5))), chained=Chained)
    helpers = (
        queries,
        hooked,
        recorded,
        same,
        inside,
        recording,
        made,
        built,
        by_channels,
        drawn,
        owned,
        convolve,
        decoder,
        generated,
    )
    given.update({one.__name__: one for one in helpers}, replicas=replicas)
    given.update(mx=mx, nd=nd, nn=nn, rnn=rnn, gluon=gluon, autograd=autograd, numpy=numpy, os=os)
    given.update(net=net, trainer=trainer, trained=trained, x=x, y=y, loss=gluon.loss.L2Loss())
    return given
