"""Losses start their own gradient if a head depends on them, even if no gradient reaches them.

As in MXNet, zeros pass through BlockGrad and similar ops, and a loss ignores its output gradient.
"""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.parallel import Pipeline
from support.devices import on

ROWS, CLASSES = 4, 3
X = np.random.RandomState(0).uniform(-2, 2, (ROWS, CLASSES)).astype("float32")
CLASS = np.array([0, 2, 1, 1], "float32")
TARGET = np.random.RandomState(1).uniform(-1, 1, (ROWS, CLASSES)).astype("float32")
HOT = np.eye(CLASSES)[CLASS.astype(int)]


class Tripled(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], in_data[0] * 3)


@mx.operator.register("tripled_gradient")
class TripledProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Tripled()


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


SIGN = 2 * HOT - 1
LOSSES = {  # op, labels, expected gradient
    "SoftmaxOutput": (lambda F, x, y: F.SoftmaxOutput(x, y), CLASS, softmax(X) - HOT),
    "LinearRegressionOutput": (
        lambda F, x, y: F.LinearRegressionOutput(x, y),
        TARGET,
        (X - TARGET) / CLASSES,
    ),
    "MAERegressionOutput": (
        lambda F, x, y: F.MAERegressionOutput(x, y),
        TARGET,
        np.sign(X - TARGET) / CLASSES,
    ),
    "LogisticRegressionOutput": (
        lambda F, x, y: F.LogisticRegressionOutput(x, y),
        TARGET,
        (1 / (1 + np.exp(-X)) - TARGET) / CLASSES,
    ),
    "SVMOutput": (
        lambda F, x, y: F.SVMOutput(x, y),
        CLASS,
        -2 * SIGN * np.maximum(0, 1 - SIGN * X),
    ),
    "MakeLoss": (
        lambda F, x, y: F.MakeLoss(x, grad_scale=0.5),
        CLASS,
        np.full(X.shape, 0.5),
    ),
    "make_loss": (lambda F, x, y: F.make_loss(x), CLASS, np.ones(X.shape)),
    "Custom": (lambda F, x, y: F.Custom(x, op_type="tripled_gradient"), CLASS, 3 * X),
}
CUTS = {
    "BlockGrad": lambda F, p: F.BlockGrad(p),
    "sign": lambda F, p: F.sign(p),
    "argmax": lambda F, p: F.argmax(p, axis=1),
    "floor": lambda F, p: F.floor(p),
    "greater": lambda F, p: p > 0,
    "zeros_like": lambda F, p: F.zeros_like(p),
    "one_hot": lambda F, p: F.one_hot(p, 5),
}


class Net(gluon.HybridBlock):
    """A loss followed by an op that cuts the gradient, or only one of the two."""

    def __init__(self, loss=None, cut=None):
        super().__init__()
        self.loss, self.cut = loss, cut

    def hybrid_forward(self, F, x, y):
        p = self.loss(F, x, y) if self.loss else x
        return self.cut(F, p) if self.cut else p


def by_block(options):
    def run(loss, cut, x, y):
        net = Net(loss, cut)
        if options is not None:
            net.hybridize(**options)
        return lambda: net(x, y)

    return run


def by_two_blocks(first, second):
    def run(loss, cut, x, y):
        nets = Net(loss), Net(None, cut)
        for net, hybridized in zip(nets, (first, second)):
            if hybridized:
                net.hybridize()
        return lambda: nets[1](nets[0](x, y), y)

    return run


WAYS = {
    "eager": by_block(None),
    "hybridized": by_block({}),
    "exact": by_block({"exact": True}),
    "static": by_block({"static_alloc": True, "static_shape": True}),
    "pipelined": by_block({"pipeline": Pipeline(2)}),
    "hybridized loss, eager cut": by_two_blocks(True, False),
    "eager loss, hybridized cut": by_two_blocks(False, True),
    "two hybridized blocks": by_two_blocks(True, True),
}


def arrays(label):
    x, y = nd.array(X, ctx=on(0)), nd.array(label, ctx=on(0))
    x.attach_grad()
    x.grad[:] = 7
    return x, y


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOSSES)
def test_loss_before_gradient_cut_starts_its_gradient(name, way):
    if way == "pipelined" and name == "Custom":
        pytest.skip("pipelines take no Custom ops")
    loss, label, expected = LOSSES[name]
    for cut_name, cut in CUTS.items():
        x, y = arrays(label)
        call = WAYS[way](loss, cut, x, y)
        with autograd.record():
            total = call().sum()
        total.backward()
        np.testing.assert_allclose(
            x.grad.asnumpy(), expected, rtol=1e-5, atol=1e-6, err_msg=cut_name
        )


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_before_gradient_cut_starts_its_gradient_in_executor(name, watched):
    loss, label, expected = LOSSES[name]
    for cut_name, cut in CUTS.items():
        x, y = arrays(label)
        symbol = mx.sym.sum(cut(mx.sym, loss(mx.sym, mx.sym.var("x"), mx.sym.var("y"))))
        names = symbol.list_arguments()
        executor = symbol.bind(
            on(0),
            {key: {"x": x, "y": y}[key] for key in names},
            args_grad={"x": x.grad},
            grad_req={key: "write" if key == "x" else "null" for key in names},
        )
        if watched:
            executor.set_monitor_callback(lambda name, array: None, monitor_all=True)
        executor.forward(is_train=True)
        executor.backward(nd.ones((1,), ctx=on(0)))
        np.testing.assert_allclose(
            x.grad.asnumpy(), expected, rtol=1e-5, atol=1e-6, err_msg=cut_name
        )


@pytest.mark.parametrize("way", WAYS)
def test_loss_before_detach_does_not_start_its_gradient(way):
    """x.detach() leaves the tape, as in MXNet: no gradient is computed before it."""
    if way == "pipelined":
        pytest.skip("one output of a pipelined block is the loss itself")
    x, y = arrays(CLASS)
    w = nd.ones((1,), ctx=on(0))
    w.attach_grad()
    call = WAYS[way](LOSSES["SoftmaxOutput"][0], lambda F, p: p.detach(), x, y)
    with autograd.record():
        total = (call() * w).sum()
    total.backward()
    np.testing.assert_allclose(w.grad.asnumpy(), [ROWS], rtol=1e-5)
    assert (x.grad.asnumpy() == 7).all()


class Two(gluon.HybridBlock):
    def hybrid_forward(self, F, x, y):
        return F.SoftmaxOutput(x, y), F.square(x)


@pytest.mark.parametrize("hybridized", [False, True])
def test_loss_unrelated_to_heads_does_not_start_its_gradient(hybridized):
    net = Two()
    if hybridized:
        net.hybridize()
    x, y = arrays(CLASS)
    with autograd.record():
        probabilities, squares = net(x, y)
    squares.backward(retain_graph=True)
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * X, rtol=1e-6)
    with autograd.record():
        total = nd.BlockGrad(probabilities).sum() + squares.sum()
    total.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * X + softmax(X) - HOT, rtol=1e-5)


@pytest.mark.parametrize("hybridized", [False, True])
def test_softmax_output_with_out_grad_gets_zeros_after_gradient_cut(hybridized):
    """The gradient is multiplied by the output gradient, which is zero."""
    net = Net(lambda F, x, y: F.SoftmaxOutput(x, y, out_grad=True), CUTS["BlockGrad"])
    if hybridized:
        net.hybridize()
    x, y = arrays(CLASS)
    with autograd.record():
        total = net(x, y).sum()
    total.backward()
    assert (x.grad.asnumpy() == 0).all()


@pytest.mark.parametrize("hybridized", [False, True])
def test_sparsity_penalty_before_gradient_cut_starts_its_gradient(hybridized):
    class Penalized(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.average = self.params.get("average", shape=(CLASSES,), grad_req="null")

        def hybrid_forward(self, F, x, average):
            return F.IdentityAttachKLSparseReg(F.sigmoid(x), average, penalty=0.1, momentum=0)

    gradients = []
    for factor in (lambda p: p * 0, nd.BlockGrad):
        net = Penalized()
        net.average.initialize(mx.init.Constant(0.5), ctx=on(0))
        if hybridized:
            net.hybridize()
        x, _ = arrays(CLASS)
        with autograd.record():
            total = factor(net(x)).sum()
        total.backward()
        gradients.append(x.grad.asnumpy())
    assert abs(gradients[0]).max() > 1e-3
    np.testing.assert_array_equal(*gradients)


def test_function_before_gradient_cut_gets_zeros():
    class Own(autograd.Function):
        def forward(self, x):
            return x + 0

        def backward(self, dy):
            assert (dy.asnumpy() == 0).all()
            return dy + 4

    x, _ = arrays(CLASS)
    with autograd.record():
        total = nd.BlockGrad(Own()(x)).sum()
    total.backward()
    assert (x.grad.asnumpy() == 4).all()


@pytest.mark.parametrize("hybridized", [False, True])
def test_cross_entropy_metric_over_softmax_output_trains(hybridized):
    """Sockeye's loss: the reported value cuts the gradient and SoftmaxOutput supplies it."""

    class CrossEntropy(gluon.HybridBlock):
        def hybrid_forward(self, F, logits, labels):
            p = F.SoftmaxOutput(logits, labels, normalization="batch")
            return -F.log(F.pick(F.BlockGrad(p), labels) + 1e-8).sum()

    net, loss = gluon.nn.Dense(CLASSES, in_units=CLASSES), CrossEntropy()
    net.initialize(mx.init.Xavier(), ctx=on(0))
    if hybridized:
        net.hybridize()
        loss.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 2.0})
    x, y = nd.array(X, ctx=on(0)), nd.array(CLASS, ctx=on(0))
    values = []
    for _ in range(30):
        with autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(1)
        values.append(value.asscalar())
    assert values[-1] < 0.3 * values[0]


@pytest.mark.parametrize("options", [None, {}, {"pipeline": Pipeline(2)}], ids=str)
def test_eager_loss_before_cutting_block_starts_its_gradient(options):
    class Cut(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.BlockGrad(x)

    net, x = Cut(), nd.array([[1.0, 2.0, 3.0]] * 4)
    if options is not None:
        net.hybridize(**options)
    x.attach_grad()
    with autograd.record():
        out = net(nd.SoftmaxOutput(x, nd.zeros(4)))
    out.backward()
    expected = nd.softmax(x).asnumpy() - np.eye(3)[0]
    np.testing.assert_allclose(x.grad.asnumpy(), expected, rtol=1e-5, atol=1e-6)
