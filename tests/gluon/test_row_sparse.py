"""Parameters with row_sparse gradients or storage: backward, lazy updates and their cost."""

import copy
import gc
import pickle
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.calls import raises
from support.training import backward_of


class Net(gluon.HybridBlock):
    """Uses two weights in several ways, and two devices."""

    def __init__(self, sparse):
        super().__init__()
        stype = "row_sparse" if sparse else "default"
        with self.name_scope():
            self.embedding = nn.Embedding(7, 3, sparse_grad=sparse)
            self.dense = nn.Dense(4, flatten=False, in_units=7)
            self.weight = self.params.get("weight", shape=(7, 3), grad_stype=stype)

    def hybrid_forward(self, F, x, weight):
        h = self.embedding(x) + self.embedding((x * 2) % 7)
        h = F.tanh(h) + F.take(weight, x + 1, mode="wrap")
        h = F.dot(h.reshape((-1, 3)), weight, transpose_b=True)
        return self.dense(h.as_in_context(mx.cpu(1))).as_in_context(mx.cpu(0)), h


def trained(sparse, hybrid, grad_req):
    mx.random.seed(0)
    rng = np.random.RandomState(0)
    net = Net(sparse)
    net.embedding.initialize(mx.init.Normal(0.5))
    net.weight.initialize(mx.init.Normal(0.5))
    net.dense.initialize(mx.init.Normal(0.5), ctx=mx.cpu(1))
    net.collect_params().setattr("grad_req", grad_req)
    if hybrid:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.005})
    for length in (3, 4, 3, 3):
        x = nd.array(rng.randint(0, 7, (2, length)))
        for _ in range(2 if grad_req == "add" else 1):
            with autograd.record():
                results = [net(x), net((x + 3) % 7)]
                loss = sum((y**2).sum() + h.sum() for y, h in results)
            loss.backward()
        trainer.step(2)
        if grad_req == "add":
            net.collect_params().zero_grad()
        net(x)
    return [param.data(param.list_ctx()[0]).asnumpy() for param in net.collect_params().values()]


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_training_equals_dense_gradients(grad_req):
    expected = trained(False, False, grad_req)
    for hybrid in (False, True):
        for a, b in zip(trained(True, hybrid, grad_req), expected):
            assert np.allclose(a, b, rtol=1e-5, atol=1e-6)


def embedding(rows=10, width=4, hybrid=False, prefix=None, **kwargs):
    layer = nn.Embedding(rows, width, sparse_grad=True, prefix=prefix)
    layer.initialize("ones", **kwargs)
    if hybrid:
        layer.hybridize()
    return layer


@pytest.mark.parametrize("hybrid", [False, True])
def test_gradient_holds_only_the_rows_used(hybrid):
    layer = embedding(hybrid=hybrid)
    gradient = layer.weight.grad()
    assert gradient.stype == "row_sparse" and gradient.data.shape == (0, 4)
    x = nd.array([[3, 4], [3, 1]])
    with autograd.record():
        y = layer(x)
    x[:] = 0  # the indices were copied by the forward pass
    assert gradient.data.shape == (0, 4)
    y.backward()
    assert gradient.indices.asnumpy().tolist() == [1, 3, 4]
    assert gradient.data.asnumpy()[:, 0].tolist() == [1, 2, 1]
    assert layer.weight.grad() is gradient and layer.weight.data().grad is gradient
    y = backward_of(lambda: layer(nd.array([9])) * 3)
    assert gradient.indices.asnumpy().tolist() == [9] and gradient.asnumpy()[9].tolist() == [3] * 4
    layer.collect_params().zero_grad()
    assert gradient.asnumpy().sum() == 0 and gradient.data.shape == (0, 4)


@pytest.mark.parametrize("hybrid", [False, True])
def test_second_backward_overwrites_rows(hybrid):
    layer = embedding(hybrid=hybrid)
    with autograd.record():
        first, second = layer(nd.array([1, 2])), layer(nd.array([2, 3]))
    first.backward()
    second.backward()  # overwrites the result of the first backward
    assert layer.weight.grad().indices.asnumpy().tolist() == [2, 3]
    with autograd.record():
        y = layer(nd.array([5]))
    y.backward(retain_graph=True)
    assert layer.weight.grad().asnumpy()[5, 0] == 1
    y.backward(nd.full((1, 4), 2))
    assert layer.weight.grad().asnumpy().sum(1).tolist() == [0] * 5 + [8] + [0] * 4
    layer.weight.grad_req = "add"
    with autograd.record():
        y = layer(nd.array([5, 5]))
    y.backward(retain_graph=True)
    y.backward()
    y = backward_of(lambda: layer(nd.array([6])))
    assert layer.weight.grad().asnumpy()[:, 0].tolist() == [0, 0, 0, 0, 0, 4, 1, 0, 0, 0]


@pytest.mark.parametrize("hybrid", [False, True])
def test_recorded_calls_without_backward_free_memory(hybrid):
    layer, x = embedding(hybrid=hybrid), nd.array([1, 2])
    gradient = layer.weight.grad()

    def in_use():
        assert gradient.indices.shape == (0,)
        nd.waitall()
        gc.collect()  # includes garbage of other tests
        return mx.context.memory_stats(mx.cpu(0))["in_use"]

    for count in (1, 20):
        for _ in range(count):
            with autograd.record():
                layer(x)
        if count == 1:
            before = in_use()
    assert in_use() == before


def test_out_of_range_indices_are_clipped():
    layer = embedding()
    backward_of(lambda: layer(nd.array([-5, 3, 100])))
    assert layer.weight.grad().indices.asnumpy().tolist() == [0, 3, 9]


def test_dense_uses_of_the_weight_produce_all_rows():
    layer, other = embedding(), nn.Embedding(10, 4)
    other.initialize("ones")

    def loss(layer):
        w = layer.weight.data()
        with autograd.record():
            moved = w.as_in_context(mx.cpu(1))
            y = (layer(nd.array([1, 2])) * 2).sum() + (w * 2).sum() + (1 - w[3]).sum() + w.T.sum()
            y = y + moved.take(nd.array([3, 3], ctx=mx.cpu(1))).as_in_context(mx.cpu(0)).sum()
            y = y + nd.dot(w, nd.ones((4, 2))).sum() + abs(w.reshape((4, 10))).sum()
        y.backward()

    loss(layer), loss(other)
    assert np.allclose(layer.weight.grad().asnumpy(), other.weight.grad().asnumpy())


class Double(autograd.Function):
    def forward(self, x):
        return x * 2

    def backward(self, gradient):
        return gradient * 2


def assigned(weight):
    y = nd.zeros(weight.shape)
    y[:] = weight
    return y


@pytest.mark.parametrize(
    "function",
    [
        assigned,
        lambda w: w.norm(),
        lambda w: nd.norm(w, axis=1),
        lambda w: nd.zeros_like(w) + w,
        lambda w: nd.multiply(w, 3),
        lambda w: nd.add(nd.ones((10, 4)), w),
        lambda w: nd.power(w, 2),
        lambda w: nd.maximum(w, nd.full((10, 4), 0.5)),
        lambda w: np.float32(3) * w,
        lambda w: np.multiply(w, w),
        lambda w: nd.ones((10, 4)).__iadd__(w),
        lambda w: w.tostype("row_sparse") * 2,
        lambda w: nd.take(w, 3),
        lambda w: nd.take(w, np.array([3, 4])),
        lambda w: Double()(w),
        lambda w: nd.contrib.foreach(lambda row, state: (row * 2, state), w, nd.ones(1))[0],
    ],
)
def test_functions_of_the_whole_weight_equal_dense(function):
    layer, other = embedding(), nn.Embedding(10, 4)
    other.initialize("ones")
    found = []
    for each in (layer, other):
        y = backward_of(lambda: function(each.weight.data()))
        value = function(each.weight.data())  # without the tape
        found.append([y.asnumpy(), value.asnumpy(), each.weight.grad().asnumpy()])
    for a, b in zip(*found):
        assert np.allclose(a, b)


class Loop(gluon.HybridBlock):
    """A loop whose data or initial state is a weight."""

    def __init__(self, data):
        super().__init__()
        self.data = data
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(4, 2), grad_stype="row_sparse")

    def hybrid_forward(self, F, x, weight):
        starts = (weight, x) if self.data else (x, weight)
        return F.contrib.foreach(lambda row, state: (row * state, state * 2), *starts)


@pytest.mark.parametrize("data", [False, True])
def test_hybridized_loops_over_weights_equal_eager(data):
    found = []
    for hybrid in (False, True):
        net = Loop(data)
        net.initialize("ones")
        net.hybridize(hybrid)
        with autograd.record():
            outputs, state = net(nd.array([[1, 2], [3, 4], [5, 6]] if not data else [1, 2]))
            loss = outputs.sum() + state.sum()
        loss.backward()
        found.append(net.weight.grad().asnumpy())
    assert found[0].any() and np.allclose(*found)


class Lookups(gluon.HybridBlock):
    """A lookup in each step of a loop; the weight and the rows have the same shape."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(1, 2, sparse_grad=True)

    def hybrid_forward(self, F, x):
        return F.contrib.foreach(lambda i, state: (self.embedding(i) * state, state), x, x[0])[0]


def test_hybridized_lookup_in_a_loop_body_raises():
    net, x = Lookups(), nd.zeros((3, 1))
    net.initialize("ones")
    with autograd.record():
        net(x)
    net.hybridize()
    with (
        autograd.record(),
        pytest.raises(mx.base.NotSupportedError, match=r"in the body of a loop"),
    ):
        net(x)


def test_product_with_csr_has_sparse_gradient():
    weight = gluon.Parameter("weight", shape=(5, 2), grad_stype="row_sparse")
    weight.initialize("ones")
    x = nd.array([[0, 2, 0, 0, 1], [0, 3, 0, 0, 0]]).tostype("csr")
    with autograd.record():
        y = nd.dot(x, weight.data())
    assert y.asnumpy().tolist() == [[3, 3], [3, 3]]
    y.backward()
    assert weight.grad().indices.asnumpy().tolist() == [1, 4]
    assert weight.grad().asnumpy()[:, 0].tolist() == [0, 5, 0, 0, 1]


def test_parameter_changes_keep_sparse_gradients():
    layer = embedding()
    layer.weight.set_data(nd.full((10, 4), 2))
    assert layer(nd.array([1])).asnumpy().sum() == 8
    layer.weight.grad_req = "null"
    assert type(layer.weight.data()) is nd.NDArray and layer.weight.data().grad is None
    layer.weight.grad_req = "write"
    layer.cast("float64")
    backward_of(lambda: layer(nd.array([1])))
    assert layer.weight.grad().dtype == np.float64 and layer.weight.grad().data.shape == (1, 4)
    layer.collect_params().reset_ctx(mx.cpu(1))
    assert layer.weight.grad().context == mx.cpu(1)
    for other in (copy.deepcopy(layer.weight), pickle.loads(pickle.dumps(layer.weight))):
        assert other.grad().stype == "row_sparse" and other.data().asnumpy().sum() == 80
    raises(ValueError, "grad_stype", lambda: gluon.Parameter("w", shape=(1,), grad_stype="csr"))


OPTIMIZERS = {
    "sgd": {},
    "sgd with momentum": {"momentum": 0.9},
    "adam": {},
    "adagrad": {},
    "ftrl": {},
    "rmsprop": {},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_lazy_updates_change_only_used_rows(name, dtype):
    """Used rows equal those of a dense update; all other rows are unchanged."""
    lazy = name != "rmsprop"
    options = {**OPTIMIZERS[name], "learning_rate": 0.1, "wd": 0.0 if name == "adagrad" else 0.01}
    options["multi_precision"] = dtype == "float16"
    layers = embedding(), nn.Embedding(10, 4)
    layers[1].initialize("ones")
    trainers = []
    for layer in layers:
        layer.cast(dtype)
        trainers.append(gluon.Trainer(layer.collect_params(), name.partition(" ")[0], options))
    for _ in range(3):
        for layer, trainer in zip(layers, trainers):
            backward_of(lambda: (layer(nd.array([2, 5, 2])) ** 2).sum())
            trainer.step(1)
    found, expected = [layer.weight.data().asnumpy() for layer in layers]
    assert np.allclose(found[[2, 5]], expected[[2, 5]], rtol=1e-3 if dtype == "float16" else 1e-6)
    others = np.delete(np.arange(10), [2, 5])
    assert (found[others] == 1).all() if lazy else np.allclose(found, expected)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_lazy_update_false_equals_dense_updates(name):
    layers = embedding(), nn.Embedding(10, 4)
    layers[1].initialize("ones")
    for layer in layers:
        options = {"learning_rate": 0.1, "wd": 0.01, "lazy_update": False}
        trainer = gluon.Trainer(layer.collect_params(), name, options)
        for number in (2, 5):
            backward_of(lambda: (layer(nd.array([number])) ** 2).sum())
            trainer.step(1)
    found, expected = [layer.weight.data().asnumpy() for layer in layers]
    assert np.allclose(found, expected, rtol=1e-6) and (found != 1).all()


@pytest.mark.parametrize("hybrid", [False, True])
def test_replicas_share_the_sum_of_sparse_gradients(hybrid):
    contexts = [mx.cpu(0), mx.cpu(1)]
    layer = embedding(hybrid=hybrid, ctx=contexts)
    trainer = gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 1, "momentum": 0.5})
    for _ in range(2):
        with autograd.record():
            losses = [
                layer(nd.array(x, ctx=ctx)).sum() for x, ctx in zip(([1, 2], [2, 3]), contexts)
            ]
        autograd.backward(losses)
        trainer.step(1)
    for ctx in contexts:
        assert layer.weight.grad(ctx).asnumpy()[:, 0].tolist() == [0, 1, 2, 1, 0, 0, 0, 0, 0, 0]
        assert layer.weight.data(ctx).asnumpy()[:, 0].tolist() == [1, -1.5, -4, -1.5] + [1] * 6


def test_stale_sparse_gradients_raise():
    layer = embedding()
    trainer = gluon.Trainer(layer.collect_params(), "sgd")
    raises(UserWarning, "weight", lambda: trainer.step(1))
    trainer.step(1, ignore_stale_grad=True)
    backward_of(lambda: layer(nd.array([1])))
    trainer.step(1)
    raises(UserWarning, "weight", lambda: trainer.step(1))


def test_accumulation_and_clipping_equal_dense():
    results = []
    for sparse in (True, False):
        layer = nn.Embedding(10, 4, sparse_grad=sparse)
        layer.initialize("ones")
        trainer = gluon.Trainer(
            layer.collect_params(), "sgd", {"learning_rate": 1}, accumulate=2, clip_global_norm=0.5
        )
        for number in (1, 2, 2, 3):
            backward_of(lambda: layer(nd.array([number, 5])) * 3)
            trainer.step(1)
        results.append(layer.weight.data().asnumpy())
    assert np.allclose(*results, rtol=1e-5)


def test_sparse_trainer_states_are_saved_and_loaded(tmp_path):
    layer = embedding(prefix="net_")
    trainer = gluon.Trainer(layer.collect_params(), "adam")
    for _ in range(2):
        backward_of(lambda: layer(nd.array([1])))
        trainer.step(1)
    trainer.save_states(tmp_path / "states")
    layer.save_parameters(str(tmp_path / "params"))
    other = embedding(prefix="net_")
    other.load_parameters(str(tmp_path / "params"))
    again = gluon.Trainer(other.collect_params(), "adam")
    again.load_states(tmp_path / "states")
    for net, one in ((layer, trainer), (other, again)):
        backward_of(lambda: net(nd.array([1, 2])))
        one.step(1)
    assert (layer.weight.data().asnumpy() == other.weight.data().asnumpy()).all()


def test_row_sparse_storage_trains_and_saves(tmp_path):
    layer = gluon.contrib.nn.SparseEmbedding(6, 2)
    layer.initialize("ones", ctx=[mx.cpu(0), mx.cpu(1)])
    raises(mx.MXNetError, "Trainer", lambda: layer(nd.array([1])))
    trainer = gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 1})
    raises(mx.MXNetError, "two", lambda: gluon.Trainer(layer.collect_params(), "sgd"))
    raises(mx.MXNetError, "row_sparse_data", lambda: layer.weight.data())
    with autograd.record():
        losses = [
            layer(nd.array([[1, 2], [2, 5]], ctx=ctx)).sum() for ctx in layer.weight.list_ctx()
        ]
    autograd.backward(losses)
    trainer.step(1)
    rows = layer.weight.row_sparse_data(nd.array([5, 2, 0, 2], ctx=mx.cpu(1)))
    assert rows.stype == "row_sparse" and rows.context == mx.cpu(1) and rows.shape == (6, 2)
    assert rows.indices.asnumpy().tolist() == [0, 2, 5]
    assert rows.data.asnumpy()[:, 0].tolist() == [1, -3, -1]
    assert len(layer.weight.list_row_sparse_data(nd.array([0]))) == 2
    raises(mx.MXNetError, "6 rows", lambda: layer.weight.row_sparse_data(nd.array([6])))
    layer.save_parameters(str(tmp_path / "params"))
    assert nd.load(str(tmp_path / "params"))["weight"].stype == "row_sparse"
    other = nn.Embedding(6, 2)
    other.load_parameters(str(tmp_path / "params"))
    assert other.weight.data().asnumpy()[:, 0].tolist() == [1, -1, -3, 1, 1, -1]
    layer.load_parameters(str(tmp_path / "params"))

    class Hybrid(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.weight = self.params.get("weight", shape=(2, 2), stype="row_sparse")

        def hybrid_forward(self, F, x, weight):
            return x + weight

    net = Hybrid()
    net.initialize()
    raises(RuntimeError, "row_sparse_data", lambda: net(nd.ones((2, 2))))


def test_hybridized_python_branch_before_a_sparse_lookup_raises():
    class Loop(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 2, sparse_grad=True)

        def hybrid_forward(self, F, x):
            if F.sum(x).asscalar() > 0:
                x = x + 1
            return self.embedding(x)

    net = Loop()
    net.initialize()
    net.hybridize()
    with pytest.raises(mx.MXNetError), autograd.record():
        net(nd.array([1]))


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_step_cost_depends_on_rows_touched_only(hybrid, optimizer):
    """Compares a step for a thousand rows with a step for a million."""

    def train(rows):
        layer = nn.Embedding(rows, 16, sparse_grad=True)
        layer.initialize("zeros")
        if hybrid:
            layer.hybridize()
        trainer = gluon.Trainer(layer.collect_params(), optimizer)
        rng, times = np.random.RandomState(0), []
        for step in range(12):
            if step == 2:
                nd.waitall()
                before = mx.context.memory_stats(mx.cpu(0))["in_use"]
                mx.context.reset_peak_memory(mx.cpu(0))
            x = nd.array(rng.randint(0, rows, (8, 10)), dtype="int64")
            begin = time.perf_counter()
            backward_of(lambda: (layer(x) ** 2 - layer(x)).sum())
            trainer.step(1)
            nd.waitall()
            times.append(time.perf_counter() - begin)
        return np.median(times[2:]), mx.context.memory_stats(mx.cpu(0))["peak_in_use"] - before

    (few_time, _), (many_time, memory) = train(1000), train(1000000)
    assert memory < 1e6  # the weight takes 64e6 bytes
    assert many_time < 5 * few_time + 5e-3
