"""Leak tests: no way of running leaks per step. Counts Python objects, memory of malloc and of the
device pools, and, on a debug build of CPython, all references.

`python tests/robustness/test_leaks.py [--seconds S] [--steps N] [WAY ...]` runs ways for longer
and prints the leaks per step."""

import argparse
import contextlib
import gc
import inspect
import itertools
import os
import pickle
import sys
import tempfile
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.base import MXNetError
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline, TrainStep

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

from support.devices import on
from support.leaks import leaks, resident
from support.training import variable

pytestmark = pytest.mark.usefixtures("garbage_set_aside")
A, B = on(0), on(1)
WAYS = {}


def way(make):
    """Registers a way: a function that prepares a run and returns a function for one step, or a
    generator that then runs a step for each `next`."""
    steps = inspect.isgeneratorfunction(make)
    WAYS[make.__name__] = (lambda: make().__next__) if steps else make
    return make


class Spanning(gluon.HybridBlock):
    """Two layers on two devices. If `back`, the result is normalized and returns to the first."""

    def __init__(self, back=True):
        super().__init__()
        self.back = back
        with self.name_scope():
            self.first = nn.Dense(8, in_units=8, activation="tanh")
            self.last = nn.Dense(8, in_units=8)
            self.norm = nn.BatchNorm(in_channels=8) if back else None
        self.initialize(ctx=B)
        self.first.initialize(ctx=A, force_reinit=True)

    def hybrid_forward(self, F, x):
        x = F.Dropout(self.first(x), p=0.2).as_in_context(B)
        return self.last(self.norm(x)).as_in_context(A) if self.back else self.last(x)


def data(shape=(4, 8), ctx=A):
    return nd.array(np.linspace(-1, 1, int(np.prod(shape))).reshape(shape), ctx=ctx)


def dense(**options):
    net = nn.HybridSequential()
    net.add(nn.Dense(8, in_units=8, activation="relu"), nn.Dense(8, in_units=8))
    net.initialize(ctx=A)
    net.hybridize(**options)
    return net


def train(net, x):
    with autograd.record():
        loss = (net(x) ** 2).mean()
    loss.backward()


@contextlib.contextmanager
def refused(*kinds):
    try:
        yield
    except kinds:
        return
    raise AssertionError("a mistake went unnoticed")


@way
def eager():
    x, y = data(), data()
    return lambda: nd.concat(
        (x + y) * 2 - x / 3, nd.dot(x, y, transpose_b=True).sum(axis=1, keepdims=True), dim=1
    ).sum()


@way
def eager_over_devices():
    x = data()
    return lambda: (x.as_in_context(B) * 2).copyto(A) + x


def training(options, back=True):
    net, x = Spanning(back), data((8, 8))
    if options is not None:
        net.hybridize(**options)
    return lambda: train(net, x)


WAYS["eager_training"] = lambda: training(None)
WAYS["hybridized"] = lambda: training({})
WAYS["hybridized_exact"] = lambda: training({"exact": True})
WAYS["pipeline"] = lambda: training({"pipeline": Pipeline(4, schedule="1f1b")}, back=False)


@way
def prediction():
    net, x = Spanning(), data()
    net.hybridize()
    return lambda: net(x)


@way
def recorded_without_backward():
    net, eager_net, x = dense(), Spanning(), data()
    while True:
        with autograd.record():
            net(x) + eager_net(x)
        yield


@way
def retained():
    net, x = dense(), data()
    while True:
        with autograd.record():
            loss = net(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        yield


@way
def gradients_added():
    net, x = dense(), data()
    net.collect_params().setattr("grad_req", "add")
    while True:
        train(net, x)
        train(net, x)
        net.collect_params().zero_grad()
        yield


@way
def in_place():
    x, y, rows = data(), data(), nd.array([0, 2], ctx=A)
    while True:
        x[1:3] = 5
        x[:, 1] = y[:, 2]
        x[rows] = 3
        x[0, 1:3] = np.ones(2, dtype="float32")
        nd.sin(y, out=x)
        z = x[1:2]
        z += 1
        z *= x.reshape((2, 16))[0, :8]
        yield


@way
def exceptions():
    x, other, net = data(), data(ctx=B), dense()
    wrong = [
        lambda: x + nd.ones((3, 3), ctx=A),
        lambda: x + other,
        lambda: x[99],
        lambda: x[1, 2, 3],
        lambda: x.reshape((7, 7)),
        lambda: nd.sum(x, nothing=1),
        lambda: nd.array("a"),
        lambda: nd.sum(),
        lambda: nd.dot(x, x, x),
        lambda: nd.Activation(x, act_type="none"),
        lambda: net(nd.ones((2, 3), ctx=A)),
        lambda: nd.take(x, nd.array([9], ctx=A), mode="raise").asnumpy(),
        lambda: nd.concat(x, x[0], dim=1),
        lambda: x.__setitem__((0, 99), 1),
        lambda: x.__setitem__(slice(0, 2), np.ones((3, 5))),
        lambda: x.__setitem__([0, "a"], 1),
        lambda: nd.zeros((-2, 3)),
        lambda: nd.zeros(("a",)),
        lambda: nd.zeros((2,), dtype="none"),
        lambda: x.astype("none"),
        lambda: bool(x),
        lambda: x.asscalar(),
        lambda: mx.Context("none"),
        lambda: x.backward(),
        lambda: autograd.grad(x, x),
        lambda: nd.add_n(),
        lambda: nd.add_n(x, 1),
        lambda: nd.split(x, num_outputs=3),
        lambda: nd.sum(x, out=3),
        lambda: nd.sum(x, out=x),
        lambda: nd.from_dlpack(3),
        lambda: np.from_dlpack(data().asnumpy()).tolist()[9],
        lambda: x.copyto(3),
        lambda: nd.reshape(x, shape="abc"),
        lambda: nd.arange("a"),
        lambda: nd.random.uniform(0, "a", shape=(2,)),
        lambda: x ** "a",
        lambda: x < "a",
        lambda: nd.load_frombuffer(b"abc"),
        lambda: mx.sym.var("a") + "b",
        lambda: mx.sym.load_json("{"),
        lambda: mx.nd.NDArray("a"),
        lambda: nd.array([[1, 2], [3]]),
        lambda: x.as_in_context("none"),
        lambda: x.attach_grad("none"),
        lambda: nd.save("/none/there", [x, "a"]),
        lambda: nd.save("/none/there", [x]),
        lambda: nd.load("/none/there"),
        lambda: mx.autograd.backward([x, 1]),
        lambda: mx.parallel.all_reduce([x, nd.ones((2,), ctx=B)]),
        lambda: mx.parallel.all_reduce([x, "a"]),
    ]
    while True:
        for mistake in wrong:
            with refused(MXNetError, TypeError, ValueError, IndexError, OSError, AttributeError):
                mistake()
        yield


@way
def exceptions_while_compiled():
    class Refuses(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            y = F.sin(x)
            raise KeyError(y.shape)

    x = data()
    while True:
        net = Refuses()
        net.hybridize()
        with refused(KeyError), autograd.record():
            net(x)
        yield


@way
def exceptions_in_backward():
    class Refuses(autograd.Function):
        def forward(self, x):
            return x * 2

        def backward(self, dy):
            raise KeyError("no")

    x = variable(data())
    while True:
        with autograd.record():
            y = (Refuses()(x * 2) * 3).sum()
        with refused(KeyError):
            y.backward()
        yield


@way
def work_that_fails_later():
    x, far = data(), nd.array([99.0], ctx=B)
    while True:
        with refused(MXNetError):  # raised at run time or at queueing
            (nd.take(x.as_in_context(B), far, mode="raise").as_in_context(A) + 1).asnumpy()
        yield


@way
def through_time():
    cell, x = rnn.LSTMCell(8, input_size=8), data()
    cell.initialize(ctx=A)
    cell.hybridize()
    states = cell.begin_state(4, ctx=A)
    while True:
        states = [state.detach() for state in states]
        with autograd.record():
            for _ in range(3):
                y, states = cell(x, states)
        y.backward()
        yield


@way
def recurrent_layer():
    layer, x = rnn.GRU(8, input_size=8), data((3, 2, 8))
    layer.initialize(ctx=A)
    layer.hybridize()
    states = layer.begin_state(2, ctx=A)
    while True:
        with autograd.record():
            y, states = layer(x, [state.detach() for state in states])
        y.backward()
        yield


@way
def second_order():
    net, x = dense(), data()
    x.attach_grad()
    while True:
        for f in (nd.tanh, net):
            with autograd.record():
                first = autograd.grad((f(x) ** 3).sum(), x, create_graph=True)[0].sum()
            first.backward()
        yield


@way
def functions():
    class Twice(autograd.Function):
        def forward(self, x):
            self.save_for_backward(x)
            return x * 2

        def backward(self, dy):
            self.saved_tensors
            return dy * 2

    x = variable(data())
    while True:
        with autograd.record():
            y = Twice()(x)
            Twice()(x)
        y.backward()
        yield


@way
def train_step():
    net = Spanning(back=False)
    one = TrainStep(
        net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), "adam"), Pipeline(2)
    )
    x, y = data((8, 8)), data((8, 8), B)
    return lambda: one(x, y)


@way
def pipeline_without_backward():
    net, x = Spanning(back=False), data((8, 8))
    net.hybridize(pipeline=Pipeline(2))
    while True:
        net(x)
        with autograd.record():
            net(x)
        yield


@way
def pipeline_of_changing_batches():
    net, rows = Spanning(back=False), 0
    net.hybridize(pipeline=Pipeline(2))
    while True:
        rows = rows % 3 + 1
        train(net, data((2 * rows, 8)))
        yield


@way
def trainer():
    net, x = Spanning(), data()
    net.hybridize()
    train(net, x)
    trainers = [
        gluon.Trainer(net.collect_params(), name)
        for name in ("sgd", "adam", "rmsprop", "ftrl", "lamb")
    ]
    while True:
        for one in trainers:
            one.step(4, ignore_stale_grad=True)
        yield


@way
def replicas():
    net = nn.Dense(4, in_units=8)
    net.initialize(ctx=[A, B])
    net.hybridize()
    one, x = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}), data()
    while True:
        with autograd.record():
            losses = [net(part).sum() for part in gluon.utils.split_and_load(x, [A, B])]
        autograd.backward(losses)
        one.step(4)
        yield


@way
def collectives():
    x = [data(ctx=A), data(ctx=B)]
    while True:
        with autograd.record():
            mx.parallel.all_reduce(x)
            mx.parallel.all_gather(x)
            mx.parallel.reduce_scatter(x)
            mx.parallel.broadcast(x[0], [A, B])
        yield


@way
def data_loader():
    pictures = gluon.data.ArrayDataset(
        np.arange(24.0, dtype="float32").reshape(12, 2), nd.arange(12)
    )
    loader = gluon.data.DataLoader(
        pictures.transform_first(lambda x: x * 2), batch_size=5, shuffle=True
    )
    while True:
        for _ in loader:
            pass
        next(iter(loader))
        yield


@way
def data_loader_of_threads():
    loader = gluon.data.DataLoader(
        gluon.data.ArrayDataset(np.ones((6, 2), dtype="float32")),
        batch_size=2,
        num_workers=1,
        thread_pool=True,
    )
    return lambda: [batch.asnumpy() for batch in loader]


@way
def saved_and_loaded():
    net, x, folder = dense(), data(), tempfile.TemporaryDirectory()
    one = gluon.Trainer(net.collect_params(), "adam")
    train(net, x)
    one.step(1)
    while True:
        path = os.path.join(folder.name, "file")
        nd.save(path, {"x": x, "y": x[1]})
        nd.load(path)
        net.save_parameters(path)
        net.load_parameters(path, ctx=A)
        with refused(MXNetError, AssertionError):
            nn.Dense(3, in_units=3).load_parameters(path)
        one.save_states(path)
        one.load_states(path)
        with open(path, "wb") as file:
            file.write(b"nothing of use")
        with refused(MXNetError):
            nd.load(path)
        pickle.loads(pickle.dumps(x))
        yield


@way
def checkpoints():
    net, folder = Spanning(back=False), tempfile.TemporaryDirectory()
    while True:
        mx.parallel.save(os.path.join(folder.name, "some"), net)
        mx.parallel.load(os.path.join(folder.name, "some"), net)
        yield


@way
def shapes_that_never_repeat():
    """All shapes have the same size, because pools cache some blocks of every size. There are no
    matrix products, because their library caches kernels for many shapes."""
    net = nn.HybridLambda(lambda F, x: (F.sin(x) * 2 + F.relu(x)).as_in_context(B).as_in_context(A))
    net.hybridize()
    shapes = itertools.cycle(
        [
            shape
            for shape in itertools.product((1, 2, 3, 4, 6, 12, 24), repeat=6)
            if np.prod(shape) == 576
        ]
    )
    while True:
        x = variable(nd.ones(next(shapes), ctx=A))
        train(net, x)
        yield


@way
def blocks_that_go():
    x = data()
    while True:
        net = Spanning(back=False)
        net.hybridize()
        train(net, x)
        del net
        gc.collect()
        yield


@way
def cast_and_moved():
    net, x = dense(), data()
    while True:
        net.cast("float16")
        net(x.astype("float16"))
        net.cast("float32")
        net.collect_params().reset_ctx(B)
        net(x.as_in_context(B))
        net.collect_params().reset_ctx(A)
        net.hybridize()
        net(x)
        yield


@way
def exchanges():
    x, there = data(), np.ones((3, 4), dtype="float32")
    while True:
        x.asnumpy()
        nd.array(there, ctx=A)
        nd.from_numpy(there, zero_copy=False)
        nd.from_numpy(np.ones(3, dtype="float32"))
        memoryview(x.as_in_context(mx.cpu(0)))
        np.asarray(x.as_in_context(mx.cpu(0)))
        np.from_dlpack(x.as_in_context(mx.cpu(0)))
        nd.from_dlpack(x.to_dlpack_for_read())
        x.to_dlpack_for_read()
        float(x[0, 0])
        there[0] + x[0, :4]
        yield


@way
def control_flow():
    x = data()

    class Loops(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            out, last = F.contrib.foreach(lambda a, s: (a * s, s + a), x, x[0])
            _, (count, total) = F.contrib.while_loop(
                lambda i, v: i < 3,
                lambda i, v: (v, [i + 1, v * 2]),
                [F.zeros((1,), ctx=A), last],
                max_iterations=4,
            )
            return F.contrib.cond(F.sum(total) > 0, lambda: total * out[0], lambda: total)

    net = Loops()
    net.hybridize()
    loops, z = Loops(), data()
    z.attach_grad()
    while True:
        train(net, z)
        loops(x)
        yield


@mx.operator.register("leaks_square")
class SquareProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        class Square(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                self.assign(out_data[0], req[0], in_data[0] * in_data[0])

            def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
                self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])

        return Square()


@way
def custom_ops():
    x = variable(data())
    net = nn.HybridLambda(lambda F, x: F.Custom(x + 1, op_type="leaks_square"))
    net.hybridize()
    while True:
        train(net, x)
        train(lambda x: nd.Custom(x, op_type="leaks_square"), x)
        yield


@way
def symbols():
    x = data()
    while True:
        a, b = mx.sym.var("a"), mx.sym.var("b")
        out = mx.sym.Group([mx.sym.FullyConnected(a, b, no_bias=True, num_hidden=3) * 2, a + 1])
        mx.sym.load_json(out.tojson()).infer_shape(a=(2, 3), b=(3, 3))
        out.get_internals().list_outputs()
        with refused(MXNetError):
            out.infer_shape(a=(2, 3), b=(5, 5))
        (a * 2).eval(a=x, ctx=A)
        yield


@way
def executors():
    a, b = mx.sym.var("a"), mx.sym.var("b")
    out = mx.sym.tanh(a * b)
    one = out.bind(A, {"a": data(), "b": data()}, args_grad={"a": data(), "b": data()})
    two = (a * 2).bind(A, {"a": one.outputs[0]} if one.outputs else {"a": data()})
    while True:
        one.forward(is_train=True)
        one.backward(data())
        one.forward(is_train=True)
        two.forward()
        one.forward(a=data())
        yield


@way
def modules():
    out = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="softmax"
    )
    net = mx.mod.Module(out, context=A)
    batches = mx.io.NDArrayIter(np.ones((8, 4), dtype="float32"), np.zeros(8, dtype="float32"), 4)
    net.bind(batches.provide_data, batches.provide_label)
    net.init_params()
    net.init_optimizer()
    metric = mx.metric.Accuracy()
    while True:
        batches.reset()
        for batch in batches:
            net.forward_backward(batch)
            net.update()
            net.update_metric(metric, batch.label)
        metric.reset()
        net.get_params()
        yield


@way
def watched():
    """Inspection: repr, compiled graphs, memory statistics, queue status and iteration."""
    net, x = Spanning(), data()
    net.hybridize()
    net(x)
    while True:
        repr(x)
        net.compiled()
        repr(net)
        mx.context.memory_stats(A)
        mx._core.engine_queue_status()
        for p in net.collect_params().values():
            p.data().grad, p.data().context, p.data().shape, p.list_data()
        list(x), len(x), [row.sum() for row in x]
        yield


STEPS = {"shapes_that_never_repeat": 70}  # warm-up steps; the default is 8


@pytest.mark.parametrize("name", WAYS)
def test_steps_do_not_leak(name):
    step = WAYS[name]()
    for _ in range(STEPS.get(name, 8)):
        step()
    assert not leaks(step, 5)


def run(name, most, seconds):
    """Runs a way for the given time; returns steps, leaks, and the bytes by which the process grew
    in the last three quarters."""
    step, steps, begin = WAYS[name](), 0, time.process_time()
    while steps < most // 4 and (
        time.process_time() - begin < seconds / 4 or steps < STEPS.get(name, 4)
    ):
        step()
        steps += 1
    size = resident()
    return 4 * steps, leaks(step, steps), resident() - size


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_many_steps_do_not_leak(name):
    steps, found, grown = run(name, 100000, 1)
    assert not found and grown < (1 << 21) + 16 * steps, (steps, found, grown)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("ways", nargs="*")
    options = parser.parse_args()
    for name in options.ways or WAYS:
        steps, found, grown = run(name, options.steps, options.seconds)
        print(
            f"{name:32} {steps:7} steps, {grown / 1024:7.0f} KiB more, "
            f"{f'leaks {found}' if found else 'nothing left'}",
            flush=True,
        )
