"""row_sparse gradients in pipelines: the bits of micro-batches accumulated by hand, and time and
memory proportional to the rows used."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep

LABELS, ROWS = 3, 11


class Words(gluon.HybridBlock):
    """Two lookups in one weight and one in another, on two devices, then an optional BatchNorm."""

    def __init__(self, sparse=True, batch_axis=0, norm=False):
        super().__init__(prefix="words_")
        self._axis = batch_axis
        with self.name_scope():
            self.words = nn.Embedding(ROWS, 4, sparse_grad=sparse)
            self.kinds = nn.Embedding(5, 4, sparse_grad=sparse)
            self.norm = nn.BatchNorm(axis=-1, in_channels=4) if norm else None
            self.out = nn.Dense(LABELS, in_units=4, flatten=False)

    def hybrid_forward(self, F, x):
        both = self.words(x) * self.words(x + 1) + self.kinds(F.clip(x, 0, 4))
        both = both if self.norm is None else self.norm(both)
        both = both.as_in_context(mx.cpu(1))
        return self.out(both if self._axis else F.sum(both, axis=1))


def made(**kwargs):
    net = Words(**kwargs)
    mx.random.seed(5)
    net.initialize(mx.init.Uniform(1), ctx=mx.cpu(0))
    net.out.collect_params().reset_ctx(mx.cpu(1))
    return net


def batch(rows, steps=3, seed=0):
    random = np.random.RandomState(seed)
    x = nd.array(random.randint(0, ROWS - 1, (rows, steps)))
    return x, nd.array(random.rand(rows, LABELS), ctx=mx.cpu(1))


def gradients(net):
    return {
        name: param.grad()
        for name, param in net.collect_params().items()
        if param.grad_req != "null"
    }


def accumulated(net, data, labels, parts, axis=0):
    """Returns the gradients of micro-batches, summed op by op in order."""
    net.collect_params().setattr("grad_req", "add")
    net.collect_params().zero_grad()
    begin, rows = 0, data.shape[axis]
    for k in range(parts):
        end = begin + rows // parts + (k < rows % parts)
        part = [nd.slice_axis(a, axis=axis, begin=begin, end=end) for a in (data, labels)]
        with autograd.record():
            loss = gluon.loss.L2Loss(batch_axis=axis)(net(part[0]), part[1])
        loss.backward()
        begin = end
    return gradients(net)


def check(found, wanted, sparse=2):
    for name, gradient in wanted.items():
        assert found[name].stype == gradient.stype, name
        if gradient.stype == "row_sparse":
            assert found[name].indices.asnumpy().tolist() == gradient.indices.asnumpy().tolist()
        np.testing.assert_array_equal(found[name].asnumpy(), gradient.asnumpy(), err_msg=name)
    assert sum(gradient.stype == "row_sparse" for gradient in found.values()) == sparse


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("rows, parts", [(8, 4), (7, 3), (3, 5), (4, 1)])
def test_train_step_has_the_bits_of_micro_batches_by_hand(schedule, rows, parts):
    data, labels = batch(rows)
    net, other = made(), made()
    step = TrainStep(net, gluon.loss.L2Loss(), None, Pipeline(parts, schedule=schedule), exact=True)
    for seed in range(2):  # the second overwrites the first
        data, labels = batch(rows, seed=seed)
        step(data, labels)
        check(gradients(net), accumulated(other, data, labels, min(parts, rows)))


@pytest.mark.parametrize("request_", ["write", "add"])
def test_recorded_loop_has_the_bits_of_micro_batches_by_hand(request_):
    net, other = made(), made()
    net.collect_params().setattr("grad_req", request_)
    net.hybridize(pipeline=Pipeline(2), exact=True)
    wanted = accumulated(other, *batch(6), 2)
    data, labels = batch(6)
    net(data)  # prediction and training alternate
    for _ in range(2):
        net.collect_params().zero_grad()
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(data), labels)
        loss.backward()
        assert net(data).shape == (6, LABELS)
        check(gradients(net), wanted)
    if request_ == "add":
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(data), labels)
        loss.backward()
        twice = {name: gradient.asnumpy() for name, gradient in gradients(net).items()}
        for name, gradient in wanted.items():
            np.testing.assert_allclose(twice[name], 2 * gradient.asnumpy(), rtol=1e-5, atol=1e-6)


def test_batch_along_axis_1_keeps_the_bits():
    """The rows of a micro-batch are not contiguous."""
    net, other = made(batch_axis=1), made(batch_axis=1)
    data, _ = batch(7)
    data, labels = data.T, nd.random.uniform(shape=(3, 7, LABELS), ctx=mx.cpu(1))
    net.hybridize(pipeline=Pipeline(3, axis=1), exact=True)
    with autograd.record():
        loss = gluon.loss.L2Loss(batch_axis=1)(net(data), labels)
    loss.backward()
    check(gradients(net), accumulated(other, data, labels, 3, 1))


class Chain(gluon.HybridBlock):
    """Two lookups per time step, and a state that is carried to the next piece."""

    def __init__(self):
        super().__init__(prefix="chain_")
        with self.name_scope():
            self.words = nn.Embedding(ROWS, 4, sparse_grad=True)

    def hybrid_forward(self, F, x, state):
        read = self.words(x) + self.words(x + 1) ** 2
        out = F.tanh(F.broadcast_add(read.as_in_context(mx.cpu(1)), state))
        return out, F.sum(out, axis=0, keepdims=True)


def test_time_pipeline_has_the_gradients_of_one_backward():
    """Compares with one backward through all pieces."""
    net, other = Chain(), Chain()
    for one in (net, other):
        mx.random.seed(2)
        one.initialize(mx.init.Uniform(1))
    data, _ = batch(6, 2)
    state = nd.zeros((1, 2, 4), ctx=mx.cpu(1))
    net.hybridize(pipeline=Pipeline(3, along="time"), exact=True)
    with autograd.record():
        loss = (net(data, state)[0] ** 2).sum()
    loss.backward()
    with autograd.record():
        outs, now = [], state
        for k in range(0, 6, 2):
            out, now = other(data[k : k + 2], now)
            outs.append(out)
        loss = (nd.concat(*outs, dim=0) ** 2).sum()
    loss.backward()
    check(gradients(net), gradients(other), sparse=1)


def test_whole_batch_statistics_match_dense_gradients():
    net, dense = made(norm=True), made(norm=True, sparse=False)
    data, labels = batch(8)
    for one in (net, dense):
        pipeline = Pipeline(4, statistics="batch")
        TrainStep(one, gluon.loss.L2Loss(), None, pipeline, exact=True)(data, labels)
    wanted = gradients(dense)
    for name, gradient in gradients(net).items():
        np.testing.assert_allclose(gradient.asnumpy(), wanted[name].asnumpy(), 1e-5, 1e-6)
    mean = net.norm.running_mean.data().asnumpy()
    np.testing.assert_array_equal(mean, dense.norm.running_mean.data().asnumpy())


def test_trainer_updates_only_used_rows():
    net = made()
    before = net.words.weight.data().asnumpy()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    step = TrainStep(net, gluon.loss.L2Loss(), trainer, Pipeline(2))
    data, labels = nd.array([[1, 2, 1], [4, 2, 1]]), nd.ones((2, LABELS), ctx=mx.cpu(1))
    first = step(data, labels).asnumpy().mean()
    moved = np.flatnonzero((net.words.weight.data().asnumpy() != before).any(axis=1))
    assert moved.tolist() == [1, 2, 3, 4, 5]
    for _ in range(20):
        last = step(data, labels).asnumpy().mean()
    assert last < first / 2


def test_memory_is_proportional_to_rows_used():
    rows, width = 400_000, 16

    class Wide(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(rows, width, sparse_grad=True)

        def hybrid_forward(self, F, x):
            return self.words(x).as_in_context(mx.cpu(1))

    net = Wide()
    net.initialize(ctx=mx.cpu(0))
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    step = TrainStep(net, gluon.loss.L2Loss(), trainer, Pipeline(4))
    data, labels = nd.arange(64).reshape((16, 4)), nd.ones((16, 4, width), ctx=mx.cpu(1))
    step(data, labels).wait_to_read()
    mx.context.reset_peak_memory(mx.cpu(0))
    before = mx.context.memory_stats(mx.cpu(0))["in_use"]
    step(data, labels).wait_to_read()
    mx.nd.waitall()
    assert mx.context.memory_stats(mx.cpu(0))["peak_in_use"] - before < rows * width * 4 / 10


class Both(gluon.HybridBlock):
    """Looks up rows and also multiplies by the whole weight."""

    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(5, 4), grad_stype="row_sparse")

    def hybrid_forward(self, F, x, weight):
        return F.dot(F.Embedding(x, weight, input_dim=5, output_dim=4), weight, transpose_b=True)


class InALoop(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4, sparse_grad=True)

    def hybrid_forward(self, F, x):
        steps = F.swapaxes(x, dim1=0, dim2=1)
        return F.contrib.foreach(lambda row, s: (self.words(row), s), steps, [])[0]


@pytest.mark.parametrize("block", [Both, InALoop])
def test_unsupported_sparse_uses_raise(block):
    net = block()
    net.initialize()
    net.hybridize(pipeline=Pipeline(2))
    with (
        autograd.record(),
        pytest.raises(mx.base.NotSupportedError, match="row_sparse|sparse_grad"),
    ):
        net(nd.array([[1, 2], [3, 4]]))
