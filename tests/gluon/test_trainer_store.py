"""Trainers and key-value stores, as visible to MXNet programs."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.kvstore import KVStoreBase
from support.compare import same_bits
from support.devices import on

STARTS = [0.5, -1.0]


def parameter(contexts, **options):
    param = gluon.Parameter("x", shape=(2,), **options)
    param.initialize(ctx=contexts)
    param.set_data(nd.array(STARTS))
    return param


def backward(param, factors=(1, 2)):
    with autograd.record():
        losses = [(factor * w).sum() for factor, w in zip(factors, param.list_data())]
    autograd.backward(losses)


def momentum(param, **options):
    return gluon.Trainer([param], "sgd", {"learning_rate": 1.0, "momentum": 0.5}, **options)


@pytest.mark.parametrize("by_step", [True, False])
def test_step_sums_gradients_unless_the_store_updates(by_step):
    """If the kvstore updates, each device keeps its own gradient; otherwise each has the sum."""
    param = parameter([on(0), on(1)])
    trainer = momentum(param)
    assert trainer._update_on_kvstore is None and trainer._params_to_init == [param]
    backward(param)
    if by_step:
        trainer.step(1)
        assert trainer._update_on_kvstore is True and trainer._params_to_init == []
        for call in (trainer.allreduce_grads, lambda: trainer.update(1)):
            with pytest.raises(AssertionError, match="update_on_kvstore=False"):
                call()
    else:
        trainer.allreduce_grads()
        trainer.update(1)
        assert trainer._update_on_kvstore is False
    found = [grad.asnumpy().tolist() for grad in param.list_grad()]
    assert found == ([[1, 1], [2, 2]] if by_step else [[3, 3], [3, 3]])
    for weight in param.list_data():
        assert weight.asnumpy().tolist() == [start - 3 for start in STARTS]
    assert trainer._kvstore.type == "device" and trainer._contexts == [on(0), on(1)]
    states = [sorted(updater.states) for updater in trainer._updaters]
    assert states == ([[0], []] if by_step else [[0], [0]])


def test_trainer_on_one_device_has_no_store():
    param = parameter(on(0))
    trainer = momentum(param, update_on_kvstore=True)
    backward(param, [1])
    trainer.step(1)
    assert trainer._kvstore is None and trainer._update_on_kvstore is None
    trainer.allreduce_grads()


def test_trainer_without_parameters_warns():
    with pytest.warns(UserWarning, match="params is empty; net.collect_params"):
        gluon.Trainer(nn.HybridSequential().params, "sgd")


def test_environment_selects_update_on_kvstore(monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    param = parameter([on(0), on(1)])
    trainer = momentum(param)
    backward(param)
    trainer.step(1)
    assert trainer._update_on_kvstore is False
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "x")
    with pytest.raises(ValueError, match="MXNET_UPDATE_ON_KVSTORE must be 0 or 1, not 'x'"):
        mx.model._create_kvstore("local", 2, {})
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "")
    huge, small = nd.zeros((1 << 24) + 1, dtype="int8"), nd.zeros(1)
    assert mx.model._create_kvstore("local", 2, {"a": huge, "b": small})[1] is False
    assert mx.model._create_kvstore("local", 2, {"b": small})[1] is True
    assert mx.model._create_kvstore("local", 1, {"b": small}) == (None, False)
    with pytest.raises(TypeError):
        mx.model._create_kvstore(3, 2, {})


def mlp(contexts, layers=30):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(layers):
            net.add(nn.Dense(3, in_units=3))
    mx.random.seed(3)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    return net


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_all_update_modes_have_the_same_bits(optimizer):
    """Has more small parameters than one multi-tensor op accepts."""
    contexts, results = [on(0), on(1), on(2)], []
    for options in (
        {},
        {"update_on_kvstore": False},
        {"update_on_kvstore": False, "shard_updates": True},
        {"kvstore": mx.kv.create("local")},
    ):
        net = mlp(contexts)
        trainer = gluon.Trainer(net, optimizer, {"learning_rate": 0.1}, **options)
        for number in range(3):
            x = nd.array(np.random.RandomState(number).rand(4, 3))
            with autograd.record():
                losses = [(net(x.as_in_context(c)) ** 2).sum() * k for k, c in enumerate(contexts)]
            autograd.backward(losses)
            trainer.step(12)
        for param in net.collect_params().values():
            first, *others = [copy.asnumpy() for copy in param.list_data()]
            same_bits(others, [first, first])
        params = net.collect_params()
        results.append({name: param.data(on(0)).asnumpy() for name, param in params.items()})
    for other in results[1:]:
        same_bits(results[0], other)


class Counting(KVStoreBase):
    """Sums gradients and records its calls."""

    def __init__(self, optimizer=False):
        self.calls, self.updater = [], None
        self.is_capable = lambda capability: optimizer

    type = "counting"

    def broadcast(self, key, value, out, priority=0):
        self.calls.append(("broadcast", key))
        for array in out:
            array[:] = value

    def set_optimizer(self, optimizer):
        self.updater = mx.optimizer.get_updater(optimizer)

    def pushpull(self, key, value, out=None, priority=0):
        self.calls.append(("pushpull", key))
        total = sum(array.as_in_context(on(0)) for array in value)
        if self.updater is not None:
            self.updater(key, total, out[0])
            total = out[0]
        for array in value if out is None else out:
            array[:] = total.copyto(array.context)


@pytest.mark.parametrize("optimizer", [False, True])
def test_trainer_uses_a_custom_store(optimizer):
    store = Counting(optimizer)
    param = parameter([on(0), on(1)])
    trainer = momentum(param, kvstore=store)
    for _ in range(2):
        backward(param)
        trainer.step(1)
    assert trainer._kvstore is store and trainer._update_on_kvstore is optimizer
    assert store.calls == [("broadcast", 0), ("pushpull", 0), ("pushpull", 0)]
    expected = [start - 3 - 4.5 for start in STARTS]
    assert [weight.asnumpy().tolist() for weight in param.list_data()] == [expected, expected]
    assert param.grad(on(1)).asnumpy().tolist() == ([2, 2] if optimizer else [3, 3])
    if not optimizer:
        with pytest.raises(ValueError, match="update_on_kvstore=False"):
            momentum(param, kvstore=store, update_on_kvstore=True)._init_kvstore()
    else:
        param.set_data(nd.zeros(2))
        assert trainer._kvstore is None and not trainer._kv_initialized
        backward(param)
        trainer.step(1)
        assert store.calls[-2:] == [("broadcast", 0), ("pushpull", 0)]
    with pytest.raises(UserWarning, match="has not been updated by backward"):
        trainer.step(1)


def test_store_exposes_weights_and_optimizer_states(tmp_path):
    param, path = parameter([on(0), on(1)]), str(tmp_path / "states")
    trainer = momentum(param)
    backward(param)
    trainer.step(1)
    store, out = trainer._kvstore, nd.zeros(2)
    store.pull(0, out=out)
    assert out.asnumpy().tolist() == param.data(on(0)).asnumpy().tolist()
    assert store._updater.states[0].asnumpy().tolist() == [-3, -3]
    assert store._updater.optimizer is trainer.optimizer
    trainer.save_states(path)
    backward(param)
    trainer.step(1)
    trainer.load_states(path)
    assert store._updater.states[0].asnumpy().tolist() == [-3, -3]
    store.save_optimizer_states(path)
    backward(param)
    trainer.step(1)
    store.load_optimizer_states(path)
    assert store._updater.states[0].asnumpy().tolist() == [-3, -3]
    param.set_data(nd.zeros(2))  # keeps the momentum
    backward(param)
    trainer.step(1)
    assert param.data(on(1)).asnumpy().tolist() == [-4.5, -4.5]


def test_grad_req_add_accumulates_over_steps():
    param = parameter([on(0), on(1)], grad_req="add")
    trainer = momentum(param)
    for _ in range(2):
        backward(param)
        trainer.step(1)
    assert [grad.asnumpy().tolist() for grad in param.list_grad()] == [[2, 2], [4, 4]]


def test_parameters_of_the_same_name_train_separately(tmp_path):
    layers = [nn.Dense(1, in_units=2, use_bias=False, prefix="same_") for _ in range(2)]
    net = nn.Sequential()
    net.add(*layers)
    for layer in layers:
        layer.initialize("ones")
    for params, second in ((net, "1.weight"), ([layer.weight for layer in layers], "#1")):
        trainer = gluon.Trainer(params, "sgd", {"momentum": 0.5})
        assert second in list(trainer._param2idx)[1]
        with autograd.record():
            loss = net[0](nd.ones((1, 2))) + 2 * net[1](nd.ones((1, 2)))
        loss.backward()
        trainer.step(1)
        trainer.save_states(str(tmp_path / "states"))
        again = gluon.Trainer(params, "sgd", {"momentum": 0.5})
        again.load_states(str(tmp_path / "states"))
        states = again._updaters[0].states
        assert states[1].asnumpy().tolist() == (2 * states[0]).asnumpy().tolist()
    with pytest.raises(ValueError, match="given twice"):
        gluon.Trainer([layers[0].weight] * 2, "sgd")


def test_private_parameter_attributes_match_mxnet():
    contexts = [on(0), on(2)]
    param = parameter(contexts)
    assert param._data == param.list_data() and param._grad == param.list_grad()
    assert param._ctx_list == contexts and param._deferred_init == ()
    assert [place for of_type in param._ctx_map for place in of_type] == [0, None, 1]
    assert param._check_and_get(param._data, list) == param.list_data()
    assert param._check_and_get(param._grad, on(2)) is param.grad(on(2))
    with pytest.raises(RuntimeError, match="was not initialized on context"):
        param._check_and_get(param._data, on(1))
    twin = gluon.Parameter("y", shape=(2,))
    assert twin._data is twin._grad is twin._ctx_list is twin._ctx_map is None
    with pytest.raises(RuntimeError, match="has not been initialized"):
        twin._check_and_get(twin._data, list)
    twin._data, twin._grad = param._data, param._grad
    twin._ctx_list, twin._ctx_map = param._ctx_list, param._ctx_map
    assert twin.data(on(2)) is param.data(on(2)) and twin.grad(on(0)) is param.grad(on(0))


def test_row_sparse_pull_returns_the_requested_rows():
    param = gluon.Parameter("rows", shape=(4, 2), stype="row_sparse", grad_stype="row_sparse")
    param.initialize("ones", ctx=[on(0), on(1)])
    trainer = gluon.Trainer([param], "sgd")
    out = nd.zeros((4, 2), stype="row_sparse", ctx=on(1))
    trainer._row_sparse_pull(param, out, nd.array([3, 1], ctx=on(1)))
    assert out.indices.asnumpy().tolist() == [1, 3] and trainer._update_on_kvstore is True
    with pytest.raises(ValueError, match="row_sparse"):
        momentum(parameter(on(0), grad_stype="row_sparse"), kvstore=Counting())._init_kvstore()


class Distributed(gluon.Trainer):
    """Overrides the methods that trainers of Horovod and BytePS override."""

    def __init__(self, *args, **options):
        self.calls = []
        super().__init__(*args, **options)
        self._scale /= 4

    def _init_optimizer(self, optimizer, optimizer_params):
        self.calls.append("_init_optimizer")
        super()._init_optimizer(optimizer, optimizer_params)

    def _init_kvstore(self, *args):
        self.calls.append("_init_kvstore")
        super()._init_kvstore(*args)
        self._update_on_kvstore = False

    def _allreduce_grads(self):
        self.calls.append("_allreduce_grads")
        for param in self._params:
            grads = param.list_grad()
            total = sum(grad.as_in_context(on(0)) for grad in grads)
            for grad in grads:
                grad[:] = total

    def _update(self, ignore_stale_grad=False):
        self.calls.append("_update")
        super()._update(ignore_stale_grad)


def test_subclasses_override_mxnet_methods():
    param = parameter([on(0), on(1)])
    trainer = Distributed([param], "sgd", {"learning_rate": 1.0})
    backward(param)
    trainer.step(1)
    hooks = ["_init_optimizer", "_init_kvstore", "_allreduce_grads", "_update"]
    assert trainer.calls == hooks and trainer._kvstore.type == "device"
    assert trainer._optimizer is trainer.optimizer and trainer._optimizer.rescale_grad == 0.25
    for weight in param.list_data():
        assert weight.asnumpy().tolist() == [start - 3 / 4 for start in STARTS]
    assert [len(updater.states) for updater in trainer._updaters] == [1, 1]
