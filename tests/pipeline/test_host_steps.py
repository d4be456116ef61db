"""User code inside pipelines: autograd.Function, CustomOp and control flow as host steps."""

import gc
import signal

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep

ONE, TWO = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]
ROWS = 10
LOSS = gluon.loss.L2Loss()
calls = []  # (pass, rows) of each call of user code


class Clipped(autograd.Function):
    """Clips on the host. `trouble` is an exception to raise in the pass and call of `at`."""

    trouble, at = None, None

    @classmethod
    def note(cls, kind, x):
        calls.append((kind, x.shape[0]))
        if cls.trouble is not None and cls.at == (kind, sum(c[0] == kind for c in calls)):
            if cls.trouble is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
                nd.ones(1).asnumpy()
            raise cls.trouble("trouble in user code")

    def forward(self, x):
        self.note("F", x)
        self.save_for_backward(x)
        return nd.array(np.clip(x.asnumpy(), -0.5, 0.5), ctx=x.context)

    def backward(self, dy):
        (x,) = self.saved_tensors
        self.note("B", x)
        return dy * (x.abs() < 1)


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()
    yield
    Clipped.trouble = None


class Lambda(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def hybrid_forward(self, F, x):
        return self.function(x)


def network(devices, *middle, features=8, dense=True):
    """Dense layers on one or two devices, with `middle` in the first part of the last stage."""
    mx.random.seed(1)
    middle = middle or (Lambda(lambda x: Clipped()(x)),)
    net = nn.HybridSequential()
    net.add(nn.Dense(8, in_units=features, activation="tanh"), nn.Dense(8, in_units=8))
    net.add(*middle)
    net.add(nn.Dense(8, activation="relu"), nn.Dense(4))
    net.initialize(mx.init.Xavier(), ctx=devices[0])
    if len(devices) > 1:
        places = {str(i): devices[i > 0] for i in range(len(net))}
        net.place(places, verbose=False)
    return net


def batch(rows=ROWS):
    random = np.random.RandomState(0)
    return nd.array(random.randn(rows, 8)), nd.array(random.randn(rows, 4))


def sizes_of(rows, count):
    return [rows // count + (i < rows % count) for i in range(count)]


def results_of(net, losses):
    params = net.collect_params().values()
    return [np.concatenate(losses), *[param.data().asnumpy() for param in params]]


def trainer_of(net):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})


def eager(net, micro_batches, batches, steps=2):
    """Trains without a pipeline, with the micro-batches one after the other."""
    x, y = batches
    net(x[:1])
    calls.clear()
    trainer, losses = trainer_of(net), []
    params = [p for p in net.collect_params().values() if p.grad_req != "null"]
    for param in params:
        param.grad_req = "add"
    for _ in range(steps):
        begin = 0
        for size in sizes_of(len(x), micro_batches):
            with autograd.record():
                loss = LOSS(net(x[begin : begin + size]), y[begin : begin + size])
            loss.backward()
            losses.append(loss.asnumpy())
            begin += size
        trainer.step(len(x))
        for param in params:
            param.zero_grad()
    return results_of(net, losses)


def pipelined(net, pipeline, batches, way="step", steps=2):
    x, y = batches
    trainer, losses = trainer_of(net), []
    if way == "step":
        step = TrainStep(net, LOSS, trainer, pipeline, exact=True)
    else:
        net.hybridize(pipeline=pipeline, exact=True)
    for _ in range(steps):
        if way == "step":
            loss = step(x, y)
        else:
            with autograd.record():
                out = net(x)
                loss = LOSS(out, y.as_in_context(out.context))
            loss.backward()
            trainer.step(len(x))
        losses.append(loss.asnumpy())
    return results_of(net, losses)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("schedule", [*mx.parallel.schedules.SCHEDULES, "auto"])
@pytest.mark.parametrize("devices", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_function_in_a_stage_trains_like_eager_micro_batches(schedule, devices, micro_batches):
    expected = eager(network(ONE), micro_batches, batch())
    eager_calls = sorted(calls)
    for way in ("step", "loop"):
        calls.clear()
        found = pipelined(network(devices), Pipeline(micro_batches, schedule), batch(), way)
        assert_same(found, expected)
        assert sorted(calls) == eager_calls
        for kind in "FB":  # in the order of the micro-batches
            rows = [size for k, size in calls if k == kind]
            assert rows == 2 * sizes_of(ROWS, micro_batches)


def test_prediction_calls_user_code_once_for_each_micro_batch():
    x, _ = batch()
    plain = network(ONE)
    expected = [plain(part).asnumpy() for part in (x[:4], x[4:7], x[7:])]
    calls.clear()
    net = network(TWO)
    net.hybridize(pipeline=Pipeline(3), exact=True)
    for _ in range(2):
        np.testing.assert_array_equal(net(x).asnumpy(), np.concatenate(expected))
    assert calls == 2 * [("F", 4), ("F", 3), ("F", 3)]


def test_other_batch_sizes_use_the_shapes_of_the_first_trace():
    net, plain = network(TWO), network(ONE)
    net.hybridize(pipeline=Pipeline(3), exact=True)
    for rows in (6, 8, 3, 2, 9):
        x, _ = batch(rows)
        begin, expected = 0, []
        for size in sizes_of(rows, min(3, rows)):
            expected.append(plain(x[begin : begin + size]).asnumpy())
            begin += size
        np.testing.assert_array_equal(net(x).asnumpy(), np.concatenate(expected))


def test_user_code_follows_batch_norm_and_dropout():
    """The first trace must leave running averages and random numbers as they are."""

    def middle():
        return nn.BatchNorm(in_channels=8), nn.Dropout(0.5), Lambda(lambda x: Clipped()(x))

    results = []
    for devices, way in ((ONE, "step"), (TWO, "step"), (TWO, "loop")):
        net = network(devices, *middle())
        mx.random.seed(7)
        results.append(pipelined(net, Pipeline(2), batch(), way))
        norm = net[2]
        results[-1] += [norm.running_mean.data().asnumpy(), norm.running_var.data().asnumpy()]
    for other in results[1:]:
        assert_same(other, results[0])
    net, plain = (
        network(ONE, nn.BatchNorm(in_channels=8), Lambda(lambda x: Clipped()(x))) for _ in range(2)
    )
    x, y = batch()
    pipelined(net, Pipeline(2), (x, y), steps=1)
    with autograd.record():
        for begin in (0, 5):
            plain(x[begin : begin + 5])
    for name in ("running_mean", "running_var"):
        found, expected = (getattr(n[2], name).data().asnumpy() for n in (net, plain))
        np.testing.assert_array_equal(found, expected)


class Split(autograd.Function):
    """Several results, of other shapes and dtypes than the input."""

    def forward(self, x, scale):
        self.save_for_backward(x)
        self.scale = scale
        half = nd.slice_axis(x, axis=1, begin=0, end=4) * scale
        return half.astype("float64"), x.expand_dims(1), (x > 0).astype("int32")

    def backward(self, half, whole, _):
        grad = whole.reshape((whole.shape[0], -1))
        padded = nd.concat(
            half.astype("float32") * self.scale, nd.zeros_like(half).astype("float32"), dim=1
        )
        return grad + padded


def split_and_join(x):
    half, whole, positive = Split()(x, 2.0)
    joined = whole.reshape((-1, 8)) * positive.astype("float32")
    return joined + nd.concat(half.astype("float32"), half.astype("float32"), dim=1)


def test_function_with_several_results_of_other_shapes_and_dtypes():
    expected = eager(network(ONE, Lambda(split_and_join)), 3, batch())
    for way in ("step", "loop"):
        net = network(TWO, Lambda(split_and_join))
        assert_same(pipelined(net, Pipeline(3), batch(), way), expected)


class CountOp(mx.operator.CustomOp):
    """Adds the number of earlier calls, which is an auxiliary state."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] + aux[0])
        aux[0] += 1

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


class CountProp(mx.operator.CustomOpProp):
    def list_auxiliary_states(self):
        return ["count"]

    def infer_shape(self, shapes):
        return shapes, shapes, [(1,)]

    def create_operator(self, ctx, shapes, dtypes):
        return CountOp()


mx.operator.register("pipelined_count")(CountProp)


class Counted(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.count = self.params.get("count", shape=(1,), init="zeros", grad_req="null")

    def hybrid_forward(self, F, x, count):
        return F.Custom(x, count, op_type="pipelined_count")


def test_custom_op_updates_its_state_once_for_each_micro_batch():
    for devices in (ONE, TWO):
        net = network(devices, Counted())
        pipelined(net, Pipeline(3, "gpipe"), batch(), steps=2)
        assert net[2].count.data().asscalar() == 6
    plain = network(ONE, Counted())
    plain(batch()[0])
    plain[2].count.set_data(nd.zeros(1))
    x, y = batch()
    trainer = trainer_of(plain)
    for param in plain.collect_params().values():
        if param.grad_req != "null":
            param.grad_req = "add"
    for begin, end in ((0, 4), (4, 7), (7, 10)):
        with autograd.record():
            loss = LOSS(plain(x[begin:end]), y[begin:end])
        loss.backward()
    trainer.step(ROWS)
    found = pipelined(network(TWO, Counted()), Pipeline(3), (x, y), steps=1)
    assert_same(found[1:5], results_of(plain, [loss.asnumpy()])[1:5])


@pytest.mark.parametrize("way", ["step", "loop"])
@pytest.mark.parametrize("at", [("F", 1), ("F", 2), ("B", 1), ("B", 2)])
@pytest.mark.parametrize("trouble", [ZeroDivisionError, ValueError, KeyboardInterrupt])
def test_exception_in_user_code_propagates_and_training_continues(trouble, at, way):
    x, y = batch()
    expected = eager(network(ONE), 3, (x, y), steps=1)
    net = network(TWO)
    trainer = trainer_of(net)
    step = TrainStep(net, LOSS, trainer, Pipeline(3), exact=True)
    if way == "loop":
        net.hybridize(pipeline=Pipeline(3), exact=True)

    def train():
        if way == "step":
            return step(x, y)
        with autograd.record():
            out = net(x)
            loss = LOSS(out, y.as_in_context(out.context))
        loss.backward()
        trainer.step(ROWS)
        return loss

    calls.clear()
    Clipped.trouble, Clipped.at = trouble, at
    with pytest.raises(trouble) as error:
        train()
    if trouble is not KeyboardInterrupt:
        assert str(error.value) == "trouble in user code"
    Clipped.trouble = None
    mx.nd.waitall()
    assert_same(results_of(net, [train().asnumpy()]), expected)


def test_gradients_of_some_micro_batches_cannot_be_read_after_an_exception():
    net = network(TWO)
    step = TrainStep(net, LOSS, None, Pipeline(3), exact=True)
    step(*batch())
    calls.clear()
    Clipped.trouble, Clipped.at = ZeroDivisionError, ("B", 2)
    with pytest.raises(ZeroDivisionError):
        step(*batch())
    with pytest.raises(mx.MXNetError, match="trouble in user code"):
        net[4].weight.grad().asnumpy()


class Varying(autograd.Function):
    wider = False

    def forward(self, x):
        return nd.concat(x, x, dim=1) if type(self).wider else x * 1

    def backward(self, dy):
        return dy


def test_results_of_another_shape_raise_an_error_with_both_shapes():
    net = network(ONE, Lambda(lambda x: Varying()(x)))
    net.hybridize(pipeline=Pipeline(2))
    net(batch()[0])
    Varying.wider = True
    try:
        with pytest.raises(
            mx.MXNetError,
            match=r"HybridSequential.2: Varying returned float32 \(5, 16\) .*float32 \(5, 8\) ",
        ):
            net(batch()[0])
    finally:
        Varying.wider = False
    net(batch()[0])


def test_memory_of_user_code_is_freed():
    net = network(TWO)
    net.hybridize(pipeline=Pipeline(5), exact=True)
    x, y = batch(100)

    def used():
        gc.collect()
        mx.nd.waitall()
        return [mx.context.memory_stats(ctx)["in_use"] for ctx in TWO]

    def train(backward=True):
        with autograd.record():
            out = net(x)
            loss = LOSS(out, y.as_in_context(out.context))
        if backward:
            loss.backward()

    train()
    train()
    before = used()
    for backward in (True, False, True):
        train(backward)
        assert all(now <= then for now, then in zip(used(), before))
    step = TrainStep(net, LOSS, None, Pipeline(5))
    step(x, y)
    before = used()
    step(x, y)
    assert all(now <= then for now, then in zip(used(), before))


def test_retained_graph_runs_the_gradient_of_user_code_again():
    net = network(TWO)
    net.hybridize(pipeline=Pipeline(2), exact=True)
    with autograd.record():
        loss = net(batch()[0]).sum()
    loss.backward(retain_graph=True)
    first = net[0].weight.grad().asnumpy()
    net[0].weight.zero_grad()
    loss.backward()
    np.testing.assert_array_equal(net[0].weight.grad().asnumpy(), first)
    assert calls == [("F", 5)] * 2 + [("B", 5)] * 4


def test_recompute_does_not_call_user_code_twice():
    expected = eager(network(ONE), 2, batch())
    net = network(TWO)
    for block in net:
        block.hybridize(active=True, recompute=True)
    calls.clear()
    assert_same(pipelined(net, Pipeline(2), batch()), expected)
    assert sorted(calls) == [("B", 5)] * 4 + [("F", 5)] * 4


class Joined(autograd.Function):
    """Takes arrays of two devices, and returns one for each of them."""

    def forward(self, a, b):
        calls.append(("F", a.shape[0]))
        home = b.as_in_context(a.context)
        return a + home, b * a.as_in_context(b.context).mean(axis=1, keepdims=True)

    def backward(self, da, db):
        return da, da.as_in_context(db.context) + db


class Branches(gluon.HybridBlock):
    def __init__(self, devices):
        super().__init__()
        self.left, self.right = nn.Dense(8, in_units=8), nn.Dense(8, in_units=8)
        self.last = nn.Dense(4, in_units=8)
        self.home, self.other = devices[0], devices[-1]

    def hybrid_forward(self, F, x):
        other = self.right(x.as_in_context(self.other))
        a, b = Joined()(self.left(x), other)
        Joined()(a, b)  # results that nothing uses
        return self.last(F.tanh(a).as_in_context(self.other) + b)


def test_function_of_arrays_on_two_devices():
    results = []
    for devices, micro_batches in ((ONE, None), (ONE, 2), (TWO, 2)):
        mx.random.seed(3)
        net = Branches(devices)
        net.left.initialize(mx.init.Xavier(), ctx=devices[0])
        net.right.initialize(mx.init.Xavier(), ctx=devices[-1])
        net.last.initialize(mx.init.Xavier(), ctx=devices[-1])
        calls.clear()
        if micro_batches is None:
            results.append(eager(net, 2, batch()))
        else:
            results.append(pipelined(net, Pipeline(micro_batches), batch()))
        assert calls == 8 * [("F", 5)]
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


class Recurrent(gluon.HybridBlock):
    def __init__(self, devices):
        super().__init__()
        self.lstm = gluon.rnn.LSTM(8, layout="NTC", input_size=8)
        self.last = nn.Dense(4, flatten=False, in_units=8)
        self.other = devices[-1]

    def hybrid_forward(self, F, x, states):
        out, states = self.lstm(x, states)
        return self.last(Clipped()(out).as_in_context(self.other)), states


def test_user_code_in_a_pipeline_along_time():
    x = nd.array(np.random.RandomState(0).randn(2, 9, 8))
    y = nd.array(np.random.RandomState(1).randn(2, 9, 4))
    results = []
    for devices, chunks in ((ONE, 1), (ONE, 3), (TWO, 3)):
        mx.random.seed(5)
        net = Recurrent(devices)
        net.lstm.initialize(mx.init.Xavier(), ctx=devices[0])
        net.last.initialize(mx.init.Xavier(), ctx=devices[-1])
        states = net.lstm.begin_state(2, ctx=devices[0])
        pipeline = Pipeline(chunks, along="time", axis=1)
        step = TrainStep(net, lambda out, label: nd.square(out - label), None, pipeline)
        calls.clear()
        losses, _ = step(x, y, states)
        params = net.collect_params().values()
        results.append([losses.asnumpy(), *[p.grad().asnumpy() for p in params]])
        assert calls == [("F", 2)] * chunks + [("B", 2)] * chunks
    assert_same(results[2], results[1])
    for a, b in zip(results[1], results[0]):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


CONTROL = {
    "cond": lambda x: nd.contrib.cond(nd.ones(1, ctx=x.context) > 0, lambda: x * 2, lambda: x * 3),
    "while_loop": lambda x: nd.contrib.while_loop(
        lambda i, v: i < 2,
        lambda i, v: ([], [i + 1, v * 2]),
        [nd.zeros((1,), ctx=x.context), x],
        max_iterations=4,
    )[1][1],
    "boolean_mask": lambda x: nd.contrib.boolean_mask(x, nd.ones(x.shape[0], ctx=x.context)),
    "foreach": lambda x: nd.contrib.foreach(
        lambda row, s: (nd.Custom(row, op_type="pipelined_double"), s), x, []
    )[0],
    "Custom": lambda x: nd.Custom(x, op_type="pipelined_double"),
}


class DoubleOp(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


class DoubleProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return DoubleOp()


mx.operator.register("pipelined_double")(DoubleProp)


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_and_custom_ops_in_a_stage(name):
    expected = eager(network(ONE, Lambda(CONTROL[name])), 2, batch())
    for way in ("step", "loop"):
        net = network(TWO, Lambda(CONTROL[name]))
        assert_same(pipelined(net, Pipeline(2), batch(), way), expected)


def test_result_without_rows_raises_an_error_that_names_the_function():
    class Mean(autograd.Function):
        def forward(self, x):
            return x.mean(axis=0)

        def backward(self, dy):
            return dy.broadcast_like(dy)

    net = network(ONE, Lambda(lambda x: x + Mean()(x).expand_dims(0)))
    net.hybridize(pipeline=Pipeline(2))
    with pytest.raises(
        mx.MXNetError, match="Mean in block HybridSequential.2 mixes data across the batch"
    ):
        net(batch()[0])


@pytest.mark.parametrize("devices", [ONE, TWO], ids=["one", "two"])
def test_function_after_lookups_with_row_sparse_gradients(devices):
    """The network has lookups and a Function, whose result shapes the trace of lookups needs."""

    def make(places, sparse):
        mx.random.seed(2)
        net = nn.HybridSequential()
        net.add(nn.Embedding(7, 8, sparse_grad=sparse), Lambda(split_and_join), nn.Dense(4))
        net.initialize(mx.init.Xavier(), ctx=places[0])
        net.place({"0": places[0], "1": places[-1], "2": places[-1]}, verbose=False)
        return net

    x, (_, y) = nd.array(np.arange(ROWS) % 7), batch()
    expected = pipelined(make(ONE, False), Pipeline(3), (x, y))
    for way in ("step", "loop"):
        found = pipelined(make(devices, True), Pipeline(3), (x, y), way)
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_estimator_trains_a_pipelined_block_with_user_code():
    """Drives a TrainStep, as a loop over its calls does."""
    x, y = batch(12)
    expected = network(TWO)
    step = TrainStep(expected, LOSS, trainer_of(expected), Pipeline(3))
    for begin in (0, 6):
        step(x[begin : begin + 6], y[begin : begin + 6])
    net = network(TWO)
    step = TrainStep(net, LOSS, trainer_of(net), Pipeline(3))
    fit = gluon.contrib.estimator.Estimator(net, LOSS, context=TWO[0], train_step=step)
    fit.logger.setLevel("ERROR")
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), batch_size=6)
    calls.clear()
    fit.fit(data, val_data=data, epochs=1)
    assert calls.count(("B", 2)) == 6
    assert_same(results_of(net, [np.zeros(1)]), results_of(expected, [np.zeros(1)]))
