"""Optimizers of a program's own, whose states are nested."""

import collections
import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on

CPU = [on(i) for i in range(4)]
Moments = collections.namedtuple("Moments", "mean count")


class Keeps(mx.optimizer.Optimizer):
    """SGD whose step depends on every part of a nested state, and that changes every part."""

    def create_state(self, index, weight):
        def zeros(*shape, **options):
            return nd.zeros(shape, ctx=weight.context, dtype=weight.dtype, **options)

        return {
            "mean": zeros(*weight.shape),
            "history": [zeros(1), [0, "few"]],
            "rows": (zeros(weight.shape[0], 1), None, True),
            "norm": zeros(1),
            3: ({"factor": 0.5}, [], ()),
            "sparse": zeros(*weight.shape, stype="row_sparse"),
        }

    def update(self, index, weight, grad, state):
        history, (count, _) = state["history"]
        state["mean"] += grad * self.rescale_grad
        history[:] = grad.reshape(-1)[:1] + count
        state["rows"][0][:] += nd.sum(grad.reshape((grad.shape[0], -1)), axis=1, keepdims=True)
        state["norm"][:] += nd.mean(state["mean"])
        state["history"][1] = [count + 1, "many" if count else "few"]
        state[3][0]["factor"] *= 0.75
        state["sparse"][:] = (state["mean"] * 0.5).tostype("row_sparse")
        step = state["mean"] + nd.sum(history) * state[3][0]["factor"] + state["norm"]
        step = step + state["sparse"].tostype("default")
        if len(weight.shape) == 2:
            step = step + state["rows"][0]
        weight -= self.lr * step


def network(ctx=None):
    mx.random.seed(1)
    net = nn.HybridSequential(prefix="n_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3, activation="tanh"), nn.Dense(2, in_units=4))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return net


def train(net, trainer, begin=0, end=3):
    first = next(iter(net.collect_params().values()))
    for i in range(begin, end):
        x = nd.array(np.random.RandomState(i).randn(5, 3), ctx=first.list_ctx()[0])
        x = x.astype(first.dtype)
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        trainer.step(5)


def values(net):
    return [p.list_data()[0].asnumpy() for p in net.collect_params().values()]


def described(state):
    """Returns a nested state with its types, and arrays as NumPy arrays with their storage types,
    for comparison."""
    if isinstance(state, nd.NDArray):
        return state.stype, state.dtype, state.asnumpy().tolist()
    if isinstance(state, dict):
        return type(state), {key: described(part) for key, part in state.items()}, list(state)
    if isinstance(state, (tuple, list)):
        return type(state), [described(part) for part in state]
    return type(state), state


def through_trainer(path, net, trainer, other, its_trainer):
    trainer.save_states(str(path))
    other.load_dict({k: v.data() for k, v in net._collect_params_with_prefix().items()})
    its_trainer.load_states(str(path))


def through_checkpoint(path, net, trainer, other, its_trainer):
    mx.parallel.save(path, net, trainer)
    mx.parallel.load(path, other, its_trainer)


def through_background_checkpoint(path, net, trainer, other, its_trainer):
    mx.parallel.save(path, net, trainer, background=True).wait()
    mx.parallel.load(path, other, its_trainer)


FILES = [through_trainer, through_checkpoint, through_background_checkpoint]


@pytest.mark.parametrize("through", FILES)
@pytest.mark.parametrize("multi_precision", [False, True])
def test_nested_states_are_restored(through, multi_precision, tmp_path):
    def made():
        net = network()
        if multi_precision:
            net.cast("float16")
        optimizer = Keeps(learning_rate=0.05, multi_precision=multi_precision)
        return net, gluon.Trainer(net.collect_params(), optimizer)

    (net, trainer), (other, its_trainer) = made(), made()
    train(net, trainer)
    train(other, its_trainer, 0, 1)
    through(tmp_path / "saved", net, trainer, other, its_trainer)
    states, its_states = trainer.all_states(), its_trainer.all_states()
    assert states.keys() == its_states.keys() == {0, 1, 2, 3}
    for index, state in states.items():
        assert described(state) == described(its_states[index])
    train(net, trainer, 3, 5)
    train(other, its_trainer, 3, 5)
    for a, b in zip(values(net), values(other)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dump_optimizer", [False, True])
def test_stores_restore_nested_states(dump_optimizer, tmp_path):
    stores = []
    for _ in range(2):
        store = mx.kv.create("local")
        store.set_optimizer(Keeps(learning_rate=0.05))
        store.init("w", nd.ones((4, 3)))
        store.push("w", nd.ones((4, 3)))
        stores.append(store)
    store, other = stores
    store.push("w", nd.arange(12).reshape((4, 3)))
    path = str(tmp_path / "states")
    store.save_optimizer_states(path, dump_optimizer)
    other.load_optimizer_states(path, trusted=dump_optimizer)
    states, its_states = store._updater.states, other._updater.states
    assert described(states) == described(its_states)
    store.push("w", nd.ones((4, 3)))
    other.push("w", nd.ones((4, 3)))
    assert described(states) == described(its_states)


def test_place_and_cast_keep_the_types_of_nested_states(capsys):
    (net, trainer), (moved, its_trainer) = [
        (net, gluon.Trainer(net.collect_params(), Keeps(learning_rate=0.05)))
        for net in (network(), network())
    ]
    train(net, trainer)
    train(moved, its_trainer, 0, 2)
    moved.place({"0": CPU[1], "1": CPU[2]})
    capsys.readouterr()
    moved.cast("float64")
    moved.cast("float32")
    train(moved, its_trainer, 2, 3)
    for a, b in zip(values(net), values(moved)):
        np.testing.assert_array_equal(a, b)
    states, its_states = trainer.all_states(), its_trainer.all_states()
    assert described(states) == described(its_states)
    assert its_states[0]["mean"].context == its_states[0]["history"][0].context == CPU[1]


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_updates_of_sparse_weights_change_numbers_in_states(stype):
    updater = mx.optimizer.get_updater(Keeps(learning_rate=0.05))
    weight = nd.ones((4, 3)).tostype(stype)
    for step in range(3):
        state = updater.states.get(0)
        updater(0, nd.ones((4, 3)).tostype("row_sparse"), weight)
        assert step == 0 or updater.states[0] is state
    assert updater.states[0]["history"][1] == [3, "many"]
    assert updater.states[0][3][0] == {"factor": 0.5 * 0.75**3}
    dense = mx.optimizer.get_updater(Keeps(learning_rate=0.05))
    its_weight = nd.ones((4, 3))
    for _ in range(3):
        dense(0, nd.ones((4, 3)), its_weight)
    np.testing.assert_array_equal(weight.asnumpy(), its_weight.asnumpy())
    assert described(updater.states) == described(dense.states)


UNSAVED = {
    "Moments": lambda zeros: Moments(zeros, 0),
    "OrderedDict": lambda zeros: collections.OrderedDict(mean=zeros),
    "dict": lambda zeros: {(0, 1): zeros},
    "ndarray": lambda zeros: [zeros.asnumpy()],
    "set": lambda zeros: (zeros, {1}),
}


@pytest.mark.parametrize("kind", UNSAVED)
def test_states_of_other_types_train_and_move_but_raise_when_saved(kind, tmp_path):
    class Own(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return UNSAVED[kind](nd.zeros(weight.shape, ctx=weight.context))

        def update(self, index, weight, grad, state):
            assert type(state) is type(UNSAVED[kind](grad))
            weight -= self.lr * grad

    net = network()
    trainer = gluon.Trainer(net.collect_params(), Own())
    train(net, trainer)
    net.collect_params().reset_ctx(CPU[1])
    train(net, trainer)
    updater = mx.optimizer.get_updater(Own())
    updater(0, nd.ones(2), nd.ones(2))
    for name, save in {
        "n_dense0_bias": lambda: trainer.save_states(str(tmp_path / "states")),
        "0.bias": lambda: mx.parallel.save(tmp_path / "run", net, trainer),
        "0": updater.get_states,
    }.items():
        with pytest.raises(mx.MXNetError, match=f"'{name}[:'].*holds a {kind}, which cannot be"):
            save()


def test_lists_in_older_files_are_tuples(tmp_path):
    """The former format had no types: structures are JSON lists."""
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"multi_precision": True})
    net.cast("float16")
    train(net, trainer)
    wanted = described(trainer.all_states())
    trainer.save_states(str(tmp_path / "states"))
    arrays = nd.load(str(tmp_path / "states"))
    header = json.loads(arrays["trainer_states"].asnumpy().tobytes())
    assert header["states"]["n_dense0_weight"] == ["array", ["array", "array"]]
    trainer.load_states(str(tmp_path / "states"))
    assert described(trainer.all_states()) == wanted


STRUCTURES = {
    "a string": "tuple",
    "a list of no list": {"list": {"0": "array"}},
    "a dict of no pairs": {"dict": ["array"]},
    "a dict with another key": {"dict": [[None, "array"]]},
    "a dict with a list as key": {"dict": [[[1], "array"]]},
    "a value of another type": {"value": {"a": 1}},
    "an unknown type": {"set": []},
    "a missing array": {"list": ["array"] * 3},
    "deep": "deep",
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_invalid_structures_of_states_raise(name, tmp_path):
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    train(net, trainer)
    path = str(tmp_path / "states")
    trainer.save_states(path)
    arrays = nd.load(path)
    header = json.loads(arrays["trainer_states"].asnumpy().tobytes())
    header["states"]["n_dense0_weight"] = STRUCTURES[name]
    text = json.dumps(header)
    if name == "deep":
        text = text.replace('"deep"', '{"list":[' * 400 + '"array"' + "]}" * 400)
    arrays["trainer_states"] = nd.array(list(text.encode()), dtype="uint8")
    nd.save(path, arrays)
    wanted = described(trainer.all_states())
    with pytest.raises(mx.MXNetError, match="is damaged"):
        trainer.load_states(path)
    assert described(trainer.all_states()) == wanted
