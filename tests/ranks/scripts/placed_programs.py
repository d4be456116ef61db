"""Programs whose layers are placed by names or groups, or pipelined along time. programs.py runs
them."""

import numpy as np
from registered import LOSS, PROGRAMS, inputs, program, values

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn, rnn


class Recurrent(gluon.HybridBlock):
    """Two LSTMs on two devices, with states as inputs and outputs."""

    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        with self.name_scope():
            self.first = rnn.LSTM(8, input_size=6)
            self.second = rnn.LSTM(8, input_size=8)
        self.first.initialize(mx.init.Xavier(), ctx=devices[0])
        self.second.initialize(mx.init.Xavier(), ctx=devices[1])

    def hybrid_forward(self, F, x, states):
        x, one = self.first(x, states[0])
        x, two = self.second(x.as_in_context(self.devices[1]), states[1])
        return x, [one, two]


for schedule in ("gpipe", "zero_bubble"):

    def lstm_along_time(devices, schedule=schedule):
        net = Recurrent(devices)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2})
        pipeline = par.Pipeline(4, schedule, along="time")
        step = par.TrainStep(net, lambda out, *_: (out**2).mean(axis=(1, 2)), trainer, pipeline)
        kept = []
        for i in range(2):
            states = [
                layer.begin_state(3, ctx=ctx)
                for layer, ctx in zip((net.first, net.second), devices)
            ]
            result = step(inputs(i, (8, 3, 6), devices[0]), [], states)
            kept.append(result[0] if isinstance(result, (list, tuple)) else result)
        return kept + values(net)

    PROGRAMS[f"lstm_along_time_{schedule}"] = lstm_along_time


@program
def groups_of_a_module(devices):
    """A Module whose symbol groups are placed on ranks by group2ctxs."""
    with mx.AttrScope(ctx_group="one"):
        hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=10, name="first")
        hidden = mx.sym.Activation(hidden, act_type="tanh")
    with mx.AttrScope(ctx_group="two"):
        out = mx.sym.FullyConnected(hidden, num_hidden=4, name="last")
        out = mx.sym.SoftmaxOutput(out, mx.sym.var("softmax_label"), name="softmax")
    module = mx.mod.Module(
        out, context=devices[0], group2ctxs={"one": devices[0], "two": devices[1]}
    )
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.3, "momentum": 0.9})
    kept = []
    for i in range(3):
        label = nd.array(np.arange(8) % 4)
        batch = mx.io.DataBatch([inputs(i, (8, 6), mx.cpu(0))], [label])
        module.forward_backward(batch)
        module.update()
        kept += module.get_outputs()
    arguments, _ = module.get_params()
    return kept + [arguments[name] for name in sorted(arguments)]


@program
def groups_of_an_executor(devices):
    with mx.AttrScope(ctx_group="one"):
        a = mx.sym.var("a")
        b = a * 2 + mx.sym.tanh(a)
    with mx.AttrScope(ctx_group="two"):
        c = mx.sym.dot(b, mx.sym.var("b"))
    given = {"a": inputs(1, (4, 5), devices[0]), "b": inputs(2, (5, 3), devices[2])}
    grads = {name: nd.zeros(array.shape, ctx=array.context) for name, array in given.items()}
    bound = c.bind(
        devices[0], given, args_grad=grads, group2ctx={"one": devices[0], "two": devices[2]}
    )
    outputs = bound.forward(is_train=True)
    bound.backward([nd.ones((4, 3), ctx=devices[2])])
    return [*outputs, *grads.values()]


@program
def placed_by_names(devices):
    net = nn.HybridSequential()
    net.add(
        nn.Dense(12, activation="tanh", in_units=6), nn.Dense(12, activation="relu", in_units=12)
    )
    net.add(nn.Dense(4, in_units=12))
    net.initialize(mx.init.Xavier(), ctx=devices[0])
    net.place({"0": devices[0], "1": devices[3], "2": devices[1]})
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-2})
    kept = []
    for i in range(3):
        if i == 2:  # moves layers to other devices during training
            net.place({"0": devices[2], "1": devices[1], "2": devices[1]})
        label = nd.array(np.arange(8) % 4, ctx=devices[1])
        with autograd.record():
            loss = LOSS(net(inputs(i, (8, 6), devices[0])), label)
        loss.backward()
        trainer.step(8)
        kept.append(loss)
    return kept + values(net)


class Mixed(autograd.Function):
    """Draws, fetches its input, and multiplies by a new compiled layer on another device."""

    def __init__(self, devices):
        super().__init__()
        self.devices = devices

    def forward(self, x):
        layer = nn.Dense(5, in_units=5, flatten=False)
        layer.initialize(mx.init.Constant(0.2), ctx=self.devices[2])
        layer.hybridize()
        y = layer(x.as_in_context(self.devices[2])).as_in_context(x.context)
        noise = nd.random.uniform(shape=(1, 5), ctx=x.context)
        return y * noise + float(np.abs(par.fetch(x).asnumpy()).max())

    def backward(self, dy):
        return dy * 0.5


class Hosted(gluon.HybridBlock):
    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        with self.name_scope():
            self.first, self.last = nn.Dense(5, in_units=6), nn.Dense(3, in_units=5)
        self.first.initialize(mx.init.Xavier(), ctx=devices[0])
        self.last.initialize(mx.init.Xavier(), ctx=devices[1])

    def hybrid_forward(self, F, x):
        h = self.first(x)
        h = Mixed(self.devices)(h) + h
        return self.last(Mixed(self.devices)(h.as_in_context(self.devices[1])))


for schedule in ("gpipe", "1f1b"):

    def host_steps(devices, schedule=schedule):
        net = Hosted(devices)
        net.hybridize(pipeline=par.Pipeline(3, schedule))
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        kept = []
        for i in range(3):
            with autograd.record():
                loss = LOSS(net(inputs(i, (6, 6), devices[0])), nd.ones(6, ctx=devices[1]))
            loss.backward()
            trainer.step(6)
            kept.append(loss)
        return kept + values(net)

    PROGRAMS[f"host_steps_{schedule}"] = host_steps


for method in ("rtn", "gptq", "awq"):

    def packed_weights(devices, method=method):
        net = nn.HybridSequential()
        for _ in range(2):
            net.add(nn.GatedMLP(16, 32, in_units=16), nn.LayerNorm(in_channels=16))
        net.initialize(mx.init.Xavier(), ctx=devices[0])
        net.place({"[01]": devices[0], "[23]": devices[1]})
        data = None if method == "rtn" else [inputs(0, (12, 16), devices[0])]
        mx.contrib.quantization.quantize_weights(net, "int4", method=method, data=data)
        net.hybridize()
        return [net(inputs(1, (3, 16), devices[0])), *values(net)]

    PROGRAMS[f"packed_weights_{method}"] = packed_weights
