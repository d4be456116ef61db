"""Blocks in np mode: parameters, files, hooks, casts, ops of programs, and errors."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, init, nd, npx
from mpgluon.contrib import amp, lora, quantization
from mpgluon.gluon import nn
from mpgluon.gluon.contrib.estimator import Estimator
from support.compare import same_bits

draw = np.random.RandomState(6)
DATA = draw.uniform(-1, 1, (5, 3)).astype("float32")


@pytest.fixture(autouse=True)
def _np_mode():
    npx.set_np()
    yield
    npx.reset_np()


def array(values, dtype="float32"):
    return nd.array(values, dtype=dtype).as_np_ndarray()


def network(ctx=None):
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Dense(4, activation="relu"), nn.BatchNorm(), nn.Dense(2))
    net.initialize(init.Xavier(), ctx=ctx)
    return net


def kinds_of(net):
    return {type(array) for param in net.collect_params().values() for array in param.list_data()}


def test_unknown_sizes_are_minus_one():
    param = gluon.Parameter("weight", shape=(4, 0), allow_deferred_init=True)
    assert param.shape == (4, -1)
    with mx.np_array(False), mx.np_shape(False):
        assert param.shape == (4, 0)
    param.shape = (4, 3)
    assert param.shape == (4, 3)
    net = nn.Dense(4)
    assert net.weight.shape == (4, -1)
    net.initialize()
    net(array(DATA))
    assert net.weight.shape == (4, 3)


def test_parameters_may_have_no_dimensions():
    param = gluon.Parameter("scale", shape=(), init="ones")
    param.initialize()
    assert param.data().shape == param.grad().shape == () and float(param.data()) == 1
    param.set_data(array(3.0).reshape(()))
    assert float(param.data()) == 3


def test_constants_and_gradients_are_numpy_arrays():
    class Shift(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.by = self.params.get_constant("by", DATA[0])
            self.scale = self.params.get("scale", shape=(3,), init="ones")

        def hybrid_forward(self, F, x, by, scale):
            assert type(x) is type(by) is type(scale) is mx.np.ndarray
            return (x + by) * scale

    for hybridize in (False, True):
        net = Shift()
        net.initialize()
        if hybridize:
            net.hybridize()
        with autograd.record():
            result = net(array(DATA))
        result.backward()
        assert type(net.scale.grad()) is type(net.by.data()) is mx.np.ndarray
        np.testing.assert_allclose(result.asnumpy(), DATA + DATA[0], rtol=1e-6)
        net.scale.zero_grad()
        assert not net.scale.grad().asnumpy().any()


def test_files_are_interchangeable(tmp_path):
    path = str(tmp_path / "net.params")
    net = network()
    expected = net(array(DATA)).asnumpy()
    net.save_parameters(path)
    other = network()
    other.load_parameters(path)
    assert kinds_of(other) == {mx.np.ndarray}
    same_bits(other(array(DATA)).asnumpy(), expected)
    npx.reset_np()
    plain = network()
    plain.load_parameters(path)
    assert kinds_of(plain) == {nd.NDArray}
    same_bits(plain(nd.array(DATA)).asnumpy(), expected)
    plain.save_parameters(path)
    npx.set_np()
    other.load_parameters(path)
    assert kinds_of(other) == {mx.np.ndarray}
    same_bits(other(array(DATA)).asnumpy(), expected)


def test_training_states_are_interchangeable(tmp_path):
    path = str(tmp_path / "trainer.states")

    def step(net, trainer, data):
        with autograd.record():
            loss = (net(data) ** 2).sum()
        loss.backward()
        trainer.step(1)

    net = network()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    step(net, trainer, array(DATA))
    trainer.save_states(path)
    values = [param.data().asnumpy() for param in net.collect_params().values()]
    step(net, trainer, array(DATA))
    expected = [param.data().asnumpy() for param in net.collect_params().values()]
    for numpy in (False, True):
        (npx.set_np if numpy else npx.reset_np)()
        other = network()
        other(array(DATA) if numpy else nd.array(DATA))
        for param, value in zip(other.collect_params().values(), values):
            param.set_data(value)
        again = gluon.Trainer(other.collect_params(), "adam")
        again.load_states(path)
        step(other, again, array(DATA) if numpy else nd.array(DATA))
        same_bits([p.data().asnumpy() for p in other.collect_params().values()], expected)


def test_mixed_kinds_name_the_conversion():
    net = network()
    net(array(DATA))
    for hybridize in (False, True):
        net.hybridize(hybridize)
        with pytest.raises(TypeError, match=r"parameters are arrays of mx.np.*as_np_ndarray\(\)"):
            net(nd.array(DATA))
    npx.reset_np()
    net = network()
    net(nd.array(DATA))
    with pytest.raises(TypeError, match=r"parameters are arrays of mx.nd.*set_np\(\)"):
        net(array(DATA))


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("kind", [tuple, list])
def test_results_of_both_kinds_are_refused(kind, hybridize):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x, *extra):
            return kind([x.as_nd_ndarray() * 2, *extra, F.np.square(x)][: 1 if extra else None])

    net = Net()
    net.hybridize(hybridize)
    with pytest.raises(TypeError, match=r"results are arrays of mx.np and of mx.nd.*as_np_ndarray"):
        net(array(DATA))
    assert type(net(array(DATA), array(DATA))[0]) is nd.NDArray  # of one kind
    npx.reset_np()
    assert [type(y) for y in net(array(DATA))] == [nd.NDArray, mx.np.ndarray]


@pytest.mark.parametrize("hybridize", [False, True])
def test_dot_of_an_array_infers_unknown_shapes(hybridize):
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            get = self.params.get
            self.first = get("first", shape=(0, 4), allow_deferred_init=True)
            self.second = get("second", shape=(-1,), allow_deferred_init=True)

        def hybrid_forward(self, F, x, first, second):
            return F.np.dot(x.dot(first), second)

    net = Net()
    net.initialize(init.One())
    net.hybridize(hybridize)
    np.testing.assert_allclose(net(array(DATA)).asnumpy(), DATA.sum(1) * 4, rtol=1e-5)
    assert net.first.shape == (3, 4) and net.second.shape == (4,)


def test_sparse_gradients_are_refused():
    net = nn.Embedding(5, 3, sparse_grad=True)
    with pytest.raises(mx.base.NotSupportedError, match="row_sparse .* need arrays of mx.nd"):
        net.initialize()
    with pytest.raises(mx.base.NotSupportedError, match="row_sparse .* need arrays of mx.nd"):
        gluon.Parameter("weight", shape=(3, 2), stype="row_sparse").initialize()


def test_hooks_casts_and_summaries(capsys):
    net, seen = network(), []
    net.summary(array(DATA))
    assert "Dense" in capsys.readouterr().out
    handle = net.register_forward_hook(lambda block, inputs, output: seen.append(type(output)))
    net(array(DATA))
    handle.detach()
    net.register_op_hook(lambda name, op, one: seen.append(type(one)), monitor_all=True)
    net(array(DATA))
    assert set(seen) == {mx.np.ndarray}
    net = network()
    net.cast("float16")
    assert np.dtype(net(array(DATA, "float16")).dtype) == np.float16
    assert kinds_of(net) == {mx.np.ndarray}


def test_replicas_and_moved_parameters_stay_numpy_arrays():
    devices = [mx.cpu(0), mx.cpu(1)]
    net = network(ctx=devices)
    outputs = [net(array(DATA).as_in_context(ctx)) for ctx in devices]
    same_bits(outputs[0].asnumpy(), outputs[1].asnumpy())
    net.collect_params().reset_ctx(devices[1])
    assert kinds_of(net) == {mx.np.ndarray}
    npx.reset_np()
    net.collect_params().reset_ctx(devices[0])
    net.cast("float64")
    assert kinds_of(net) == {mx.np.ndarray}


class Square(autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        assert type(x) is mx.np.ndarray
        return x * x

    def backward(self, grad):
        (x,) = self.saved_tensors
        assert type(x) is type(grad) is mx.np.ndarray
        return 2 * x * grad


class SquareOp(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        assert {type(a) for a in in_data + out_data} == {mx.np.ndarray}
        self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        arrays = in_data + out_data + out_grad + in_grad
        assert {type(a) for a in arrays} == {mx.np.ndarray}
        self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])


@mx.operator.register("square_of_numpy_arrays")
class SquareProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return SquareOp()


SQUARES = {
    "Function": lambda F, x: Square()(x),
    "CustomOp": lambda F, x: F.Custom(x, op_type="square_of_numpy_arrays"),
}


@pytest.mark.parametrize("way", ["eager", "hybridized", "pipelined"])
@pytest.mark.parametrize("name", SQUARES)
def test_ops_of_programs_get_numpy_arrays(name, way):
    net = nn.HybridLambda(lambda F, x: SQUARES[name](F, x * 2) + 1)
    if way == "hybridized":
        net.hybridize()
    if way == "pipelined":
        net.hybridize(pipeline=mx.parallel.Pipeline(5))
    x = array(DATA)
    x.attach_grad()
    for _ in range(2):
        with autograd.record():
            result = net(x)
        result.backward()
        assert type(result) is mx.np.ndarray
        np.testing.assert_allclose(result.asnumpy(), 4 * DATA**2 + 1, rtol=1e-6)
        np.testing.assert_allclose(x.grad.asnumpy(), 8 * DATA, rtol=1e-6)


def test_stores_take_numpy_arrays():
    for name in ("local", "device"):
        store = mx.kv.create(name)
        store.init(3, array([1, 2]))
        out = array([0, 0])
        store.push(3, [array([1, 1]), array([2, 2])])
        store.pull(3, out=out)
        assert out.asnumpy().tolist() == [3, 3]
        both = [array([0, 0]), array([0, 0])]
        store.pushpull(3, [array([1, 1]), array([2, 4])], out=both)
        assert [x.asnumpy().tolist() for x in both] == [[3, 5], [3, 5]]
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1))
        store.init(5, array([1, 2]))
        store.push(5, array([1, 1]))
        store.pull(5, out=out)
        assert out.asnumpy().tolist() == [0, 1] and type(out) is mx.np.ndarray


def test_adapters_and_rounded_weights():
    net = nn.HybridSequential()
    net.add(nn.Dense(64, in_units=64), nn.Dense(8, in_units=64))
    net.initialize()
    x = array(draw.uniform(size=(2, 64)))
    before = net(x).asnumpy()
    lora.apply(net, {".*": 2})
    assert kinds_of(net) == {mx.np.ndarray}
    same_bits(net(x).asnumpy(), before)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    with autograd.record():
        result = net(x).sum()
    result.backward()
    trainer.step(1)
    lora.merge(net)
    assert type(net(x)) is mx.np.ndarray
    net = nn.HybridSequential()
    net.add(nn.Dense(64, in_units=64), nn.Dense(8, in_units=64))
    net.initialize()
    small = quantization.quantize_weights(net)
    assert type(small(x)) is mx.np.ndarray


def test_mixed_precision_trains_numpy_arrays():
    net = network()
    amp.init("bfloat16")
    try:
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        amp.init_trainer(trainer)
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(array(DATA)), array(DATA[:, :2]))
            with amp.scale_loss(loss, trainer) as scaled:
                autograd.backward(scaled)
        trainer.step(5)
    finally:
        amp.turn_off()
    assert kinds_of(net) == {mx.np.ndarray}


def test_estimators_fit_numpy_arrays():
    data = gluon.data.ArrayDataset(DATA, np.float32([0, 1, 0, 1, 1]))
    net = network()
    estimator = Estimator(
        net,
        gluon.loss.SoftmaxCrossEntropyLoss(),
        train_metrics=mx.metric.Accuracy(),
        trainer=gluon.Trainer(net.collect_params(), "sgd"),
    )
    estimator.fit(gluon.data.DataLoader(data, 2), epochs=2)
    assert kinds_of(net) == {mx.np.ndarray}


def test_overridden_forward_is_traced():
    class Net(gluon.HybridBlock):
        calls = 0

        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.hidden = nn.Dense(4)

        def forward(self, x):
            Net.calls += 1
            return nd.relu(self.hidden(x)) * 2

    net = Net()
    net.initialize()
    expected = net(array(DATA)).asnumpy()
    net.hybridize()
    net(array(DATA))
    calls = Net.calls
    same_bits(net(array(DATA)).asnumpy(), expected)
    assert Net.calls == calls


def test_functions_of_numpy_infer_unknown_shapes():
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            get = self.params.get
            self.weight = get("weight", shape=(3, 0), allow_deferred_init=True)
            self.bias = get("bias", shape=(0,), init="zeros", allow_deferred_init=True)

        def hybrid_forward(self, F, x, weight, bias):
            y = F.npx.fully_connected(x, weight, bias=bias, num_hidden=3, no_bias=False)
            return F.np.sum(F.npx.relu(y), axis=1)

    results = []
    for hybridize in (False, True):
        mx.random.seed(2)
        net = Net()
        net.initialize()
        if hybridize:
            net.hybridize()
        results.append(net(array(DATA)).asnumpy())
        assert net.weight.shape == (3, 3) and net.bias.shape == (3,)
    same_bits(*results)
    assert nd.np is mx.np and nd.npx is mx.npx


@pytest.mark.parametrize("hybridize", [False, True])
def test_constant_without_dimensions(hybridize):
    class Scaled(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.scale = gluon.Constant("scale", mx.np.array(5.0))

        def forward(self, x):
            return x * self.scale.data()

    npx.set_np()
    net = Scaled()
    net.initialize()
    if hybridize:
        net.hybridize()
    assert net(mx.np.ones(3)).tolist() == [5, 5, 5]
    net.scale.set_data(mx.np.array(2.0))
    assert net.scale.data().shape == () and net(mx.np.ones(3)).tolist() == [2, 2, 2]
