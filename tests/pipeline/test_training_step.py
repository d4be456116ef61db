"""TrainStep: nested and invalid arguments, and the devices of labels."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep
from support.devices import on
from support.pipelines import data, equal, gradients


class ByName(gluon.HybridBlock):
    """Takes and returns a dict; its heads are on two devices."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.a, self.b = nn.Dense(3, in_units=4), nn.Dense(2, in_units=4)
        mx.random.seed(3)
        self.a.initialize(mx.init.Xavier(), ctx=on(0))
        self.b.initialize(mx.init.Xavier(), ctx=on(1))

    def hybrid_forward(self, F, inputs):
        x = inputs["x"] * inputs["scale"]
        return {"a": self.a(x), "b": self.b(x.as_in_context(on(1)))}


class Heads(ByName):
    def hybrid_forward(self, F, x, scale):
        heads = super().hybrid_forward(F, {"x": x, "scale": scale})
        return heads["a"], heads["b"]


L2 = gluon.loss.L2Loss()
X, SCALE = data((8, 4)), data((8, 1), seed=4)
Y, Z = data((8, 3), seed=1), data((8, 2), seed=2)


def losses(outputs, y, z):
    return [L2(outputs[0], y), L2(outputs[1], z)]


def losses_by_name(outputs, labels):
    return [L2(outputs[name], labels[name]) for name in ("a", "b")]


def by_hand():
    net = Heads()
    net.collect_params().setattr("grad_req", "add")
    for i in range(0, 8, 2):
        with autograd.record():
            heads = net(X[i : i + 2], SCALE[i : i + 2])
            found = losses(heads, Y[i : i + 2], Z[i : i + 2].as_in_context(on(1)))
        autograd.backward(found)
    return gradients(net)


def test_labels_move_to_the_devices_of_their_outputs():
    net = Heads()
    TrainStep(net, losses, None, Pipeline(4), exact=True)([X, SCALE], [Y, Z])
    assert equal(gradients(net), by_hand())


def test_one_label_moves_to_the_device_of_the_first_output():
    net = Heads()

    def loss(outputs, y):
        return L2(outputs[0], y)

    step = TrainStep(net, loss, None, Pipeline(4))
    assert step([X, SCALE], Y.as_in_context(on(1))).context == on(0)


def test_train_step_accepts_dicts():
    net = ByName()
    step = TrainStep(net, losses_by_name, None, Pipeline(4), exact=True)
    found = step({"x": X, "scale": SCALE}, {"a": Y, "b": Z})
    assert equal(gradients(net), by_hand())
    assert [loss.shape for loss in found] == [(8,), (8,)]
    assert step.bytes_of_step({"x": X, "scale": SCALE}, {"a": Y, "b": Z})


def test_trainer_divides_by_the_rows_of_a_dict():
    net = ByName()
    before = net.a.weight.data().asnumpy()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    step = TrainStep(net, losses_by_name, trainer, Pipeline(2))
    step({"x": X, "scale": SCALE}, {"a": Y, "b": Z})
    moved = before - net.a.weight.data().asnumpy()
    np.testing.assert_allclose(moved, net.a.weight.grad().asnumpy() / 8, rtol=1e-4, atol=1e-6)


class WithTable(gluon.HybridBlock):
    """Its first input is not divided."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, table, x):
        return self.dense(F.broadcast_add(x, F.sum(table, axis=0, keepdims=True)))


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 8, 20])
def test_trainer_divides_by_the_rows_of_divided_inputs(rows, replicas):
    net = WithTable()
    mx.parallel.Mesh({"data": replicas}, [on(i) for i in range(replicas)]).place(net)
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1})
    step = TrainStep(net, L2, trainer, Pipeline(2, split=[1, 2]))
    step([nd.zeros((rows, 4), ctx=on(0)), nd.ones((8, 4), ctx=on(0))], nd.zeros((8, 3), ctx=on(0)))
    found = net.dense.weight.data(on(0)).asnumpy()
    np.testing.assert_allclose(found, 1 - 4 / 3, rtol=1e-5)  # each output is 4


class SharedScale(gluon.HybridBlock):
    """Multiplies by a parameter that exists on one device only."""

    def __init__(self, scale):
        super().__init__()
        self.dense, self.scales = nn.Dense(3, in_units=4), [scale]

    def hybrid_forward(self, F, x):
        x = self.dense(x)
        return F.broadcast_mul(x, self.scales[0].data(on(0)).as_in_context(x.context))


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_replicas_add_to_gradients_of_one_parameter(grad_req):
    scale = gluon.Parameter("scale", shape=(1, 3))
    scale.initialize(mx.init.One(), ctx=on(0))
    net = SharedScale(scale)
    mx.parallel.Mesh({"data": 3}, [on(i) for i in range(3)]).place(net)
    net.initialize(mx.init.One())
    scale.grad_req = grad_req
    x, y = data((6, 4)), data((6, 3), seed=1)
    for count in range(1, 3):
        TrainStep(net, L2, None, Pipeline(2)).gradients(x, y)
        found = scale.grad().copy()
        with autograd.record():
            loss = L2(nd.broadcast_mul(nd.dot(x, nd.ones((4, 3), ctx=on(0))), scale.data()), y)
        scale.zero_grad()
        loss.backward()
        times = count if grad_req == "add" else 1
        np.testing.assert_allclose(found.asnumpy(), times * scale.grad().asnumpy(), rtol=1e-5)
        scale.grad()[:] = found


@pytest.mark.parametrize("total", [nd.mean, nd.sum])
def test_loss_that_is_not_per_sample_names_the_remedy(total):
    net = nn.Dense(3, in_units=4)
    net.initialize()
    step = TrainStep(net, lambda out, y: total(L2(out, y)), None, Pipeline(2))
    with pytest.raises(mx.MXNetError, match="the loss of each sample, not their mean or sum"):
        step.gradients(X, Y)


def test_loss_with_other_arguments_names_those_of_the_call():
    step = TrainStep(Heads(), lambda a, b, y, z: L2(a, y) + L2(b, z), None, Pipeline(2))
    with pytest.raises(TypeError, match=r"called as loss\(outputs, \*labels\).*2 labels: missing"):
        step.gradients([X, SCALE], [Y, Z])


def test_several_arguments_not_in_lists_raise():
    step = TrainStep(Heads(), losses, None, Pipeline(2))
    with pytest.raises(ValueError, match=r"pass several .* lists: step\(\[x, ids\], \[y, z\]\)"):
        step(X, SCALE, Y, Z)
    with pytest.raises(ValueError, match="at least one array"):
        step({}, Y)


def test_ignore_stale_grad_skips_unused_parameters():
    net = Heads()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    step = TrainStep(net, lambda outputs, y: L2(outputs[0], y), trainer, Pipeline(2))
    unused = net.b.weight.data().asnumpy()
    with pytest.raises(UserWarning, match="not been updated"):
        step([X, SCALE], Y)
    step([X, SCALE], Y, ignore_stale_grad=True)
    assert np.array_equal(net.b.weight.data().asnumpy(), unused)


class TwoLayers(gluon.HybridBlock):
    """The second layer computes on the device of its weight."""

    def __init__(self):
        super().__init__(prefix="two_")
        with self.name_scope():
            self.a, self.b = nn.Dense(4, in_units=4), nn.Dense(3, in_units=4)
        mx.random.seed(1)
        self.initialize(mx.init.Uniform(1), ctx=on(0))

    def hybrid_forward(self, F, x):
        return self.b(self.a(x).as_in_context(self.b.weight.list_ctx()[0]))


@pytest.mark.parametrize("way", ["pipelined", "step"])
def test_layer_may_move_between_calls(way):
    net, expected = TwoLayers(), TwoLayers()
    blocks = (net, expected)
    trainers = [gluon.Trainer(n.collect_params(), "sgd", {"learning_rate": 0.1}) for n in blocks]
    if way == "pipelined":
        net.hybridize(pipeline=Pipeline(2))
    step = TrainStep(net, L2, trainers[0], Pipeline(2))

    def train(block, trainer):
        with autograd.record():
            loss = L2(block(X), Y.as_in_context(block.b.weight.list_ctx()[0]))
        loss.backward()
        trainer.step(8)
        return loss.asnumpy()

    for ctx in (on(0), on(1), on(2), on(0)):
        for block in blocks:
            block.b.collect_params().reset_ctx(ctx)
        for _ in range(2):
            found = step(X, Y).asnumpy() if way == "step" else train(net, trainers[0])
            np.testing.assert_allclose(found, train(expected, trainers[1]), rtol=1e-5)


class Masked(gluon.HybridBlock):
    """Adds a (time, time) mask to its scores."""

    def hybrid_forward(self, F, x, mask):
        return F.broadcast_add(F.batch_dot(x, x, transpose_b=True), F.expand_dims(mask, 0))


class Table(gluon.HybridBlock):
    def hybrid_forward(self, F, x, table):
        return F.Embedding(x, table, input_dim=8, output_dim=4)


@pytest.mark.parametrize(
    "net, x, other",
    [
        (Masked, nd.ones((8, 8, 3)), nd.ones((8, 8))),
        (Table, nd.ones((8, 2)), nd.ones((8, 4))),
    ],
)
def test_undivided_input_as_long_as_the_batch_error_suggests_split(net, x, other):
    block = net()
    expected = block(x, other).asnumpy()
    block.hybridize(pipeline=Pipeline(4))
    with pytest.raises((mx.MXNetError, ValueError), match=r"input 1 is divided .* 8 elements") as e:
        block(x, other)
    assert "Pipeline(split=[0])" in str(e.value)
    block.hybridize(pipeline=Pipeline(4, split=[0]))
    assert np.array_equal(block(x, other).asnumpy(), expected)


def test_missing_pipeline_names_one_for_whole_batches():
    net = nn.Dense(3, in_units=4)
    net.initialize()
    with pytest.raises(TypeError, match=r"pipeline must be an .*, not NoneType; .*Pipeline\(1\)"):
        TrainStep(net, L2, None)
    assert TrainStep(net, L2, None, Pipeline(1))(X, Y).shape == (8,)


def test_trainer_of_another_network_is_named():
    net, other = nn.Dense(3, in_units=4), nn.Dense(3, in_units=4)
    net.initialize()
    other.initialize()
    step = TrainStep(net, L2, gluon.Trainer(other, "sgd"), Pipeline(1))
    with pytest.raises(UserWarning, match="trainer has none of the parameters of the network"):
        step(X, Y)
    # A stale gradient of the network itself keeps its own message.
    step = TrainStep(
        net, L2, gluon.Trainer([*other.params.values(), net.weight], "sgd"), Pipeline(1)
    )
    with pytest.raises(UserWarning, match="Gradient of Parameter"):
        step(X, Y)
