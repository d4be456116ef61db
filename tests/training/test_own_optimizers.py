"""Optimizers of a program's own, whose states are nested and have shapes of their own."""

import collections
import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from support.compare import same_bits
from support.devices import on
from support.training import backward_of, network, train, values

CPU = [on(i) for i in range(4)]
Moments = collections.namedtuple("Moments", "mean count")


class Keeps(mx.optimizer.Optimizer):
    """SGD whose step depends on every part of a nested state, and that changes every part."""

    def create_state(self, index, weight):
        def zeros(*shape, **options):
            return nd.zeros(shape, ctx=weight.context, dtype=weight.dtype, **options)

        return {
            "mean": zeros(*weight.shape),
            "history": [zeros(7), [0, "few"]],
            "rows": (zeros(weight.shape[0], 1), None, True),
            "norm": zeros(1),
            3: ({"factor": 0.5}, [], ()),
            "sparse": zeros(*weight.shape, stype="row_sparse"),
        }

    def update(self, index, weight, grad, state):
        history, (count, _) = state["history"]
        state["mean"] += grad * self.rescale_grad
        history[count % 7 : count % 7 + 1] = grad.reshape(-1)[:1] + count
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
def test_nested_states_of_any_shape_are_restored(through, multi_precision, tmp_path):
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
    states, its_states = trainer._state.all_states(), its_trainer._state.all_states()
    assert states.keys() == its_states.keys() == {0, 1, 2, 3}
    for index, state in states.items():
        assert described(state) == described(its_states[index])
    train(net, trainer, 3, 5)
    train(other, its_trainer, 3, 5)
    same_bits(values(net), values(other))


@pytest.mark.parametrize("dump_optimizer", [False, True])
def test_stores_restore_nested_states_of_any_shape(dump_optimizer, tmp_path):
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
    same_bits(values(net), values(moved))
    states, its_states = trainer._state.all_states(), its_trainer._state.all_states()
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


def nested(levels, part):
    for _ in range(levels):
        part = [part] if levels % 2 else (part,)
    return part


def cyclic():
    part = [1]
    part += [part, part]
    return part


def saved_and_loaded(state, tmp_path, kind):
    """Returns a state after it was saved in one of three ways."""

    class Own(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return state

        def update(self, index, weight, grad, state):
            weight -= self.lr * grad

    net = nn.Dense(1, in_units=1, use_bias=False, prefix="n_")
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), Own())
    other = gluon.Trainer(net.collect_params(), Own())
    backward_of(lambda: net(nd.ones((1, 1))))
    trainer.step(1)
    if kind == "states":
        trainer.save_states(str(tmp_path / "states"))
        other.load_states(str(tmp_path / "states"))
    elif kind == "checkpoint":
        mx.parallel.save(tmp_path, net, trainer)
        mx.parallel.load(tmp_path, net, other)
    else:
        updater = other._state.updater(CPU[0])
        updater.set_states(trainer._state.updater(CPU[0]).get_states())
        return updater.states[0]
    return other._state.all_states()[0]


SAVES = pytest.mark.parametrize("kind", ["states", "checkpoint", "updater"])


@SAVES
@pytest.mark.parametrize(
    "state, text",
    [
        (nested(900, 1), "nested more than 200 levels"),
        (nested(5000, 1), "nested more than 200 levels"),
        (cyclic(), "contains itself"),
        ([{"count": 10**5000}], "holds an integer of 16610 bits"),
        ({10**5000: 1}, "holds an integer of 16610 bits"),
        ([np.complex64(1)], "holds a complex, which cannot be saved"),
    ],
    ids=["deep", "deeper", "cyclic", "integer", "key", "complex"],
)
def test_states_that_files_cannot_hold_raise_when_saved(kind, state, text, tmp_path):
    with pytest.raises(mx.MXNetError, match=f"state of parameter '[^']*(weight|0).*{text}"):
        saved_and_loaded(state, tmp_path, kind)


@SAVES
@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5),
        np.float32(0.1),
        np.float16(np.inf),
        np.int64(-(2**63)),
        np.uint8(3),
        np.bool_(True),
        np.str_("a"),
        nested(190, 10**4000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numpy_numbers_and_large_values_in_states_are_saved(kind, value, tmp_path):
    loaded = saved_and_loaded([value], tmp_path, kind)[0]
    wanted = value.item() if isinstance(value, np.generic) else value
    assert loaded == wanted and type(loaded) is type(wanted)


def test_lists_in_older_files_are_tuples(tmp_path):
    """The former format had no types: structures are JSON lists, and shapes are missing."""
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"multi_precision": True})
    net.cast("float16")
    train(net, trainer)
    wanted = described(trainer._state.all_states())
    trainer.save_states(str(tmp_path / "states"))
    arrays = nd.load(str(tmp_path / "states"))
    header = json.loads(arrays["trainer_states"].asnumpy().tobytes())
    assert header["states"]["n_dense0_weight"] == ["array", ["array", "array"]]
    assert header.pop("shapes")["n_dense0_weight"] == [4, 3]
    arrays["trainer_states"] = nd.array(list(json.dumps(header).encode()), dtype="uint8")
    nd.save(str(tmp_path / "states"), arrays)
    trainer.load_states(str(tmp_path / "states"))
    assert described(trainer._state.all_states()) == wanted


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_states_of_a_parameter_of_another_shape_are_refused(optimizer, tmp_path):
    nets = [nn.Dense(4, in_units=units, prefix="n_") for units in (3, 1)]
    trainers = []
    for net, units in zip(nets, (3, 1)):
        net.initialize()
        trainers.append(gluon.Trainer(net.collect_params(), optimizer))
        backward_of(lambda: net(nd.ones((2, units))).sum())
        trainers[-1].step(1)
    path = str(tmp_path / "states")
    for saved, loaded in ((0, 1), (1, 0)):
        trainers[saved].save_states(path)
        with pytest.raises(mx.MXNetError, match=r"parameter of shape \(4, .\), but .*'n_weight'"):
            trainers[loaded].load_states(path)


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
    wanted = described(trainer._state.all_states())
    with pytest.raises(mx.MXNetError, match="is damaged"):
        trainer.load_states(path)
    assert described(trainer._state.all_states()) == wanted


# --- Split layers ---------------------------------------------------------------------------------
def split_network(count, kind, seed=1):
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="n_")
    with net.name_scope():
        net.add(nn.Dense(6, in_units=3, activation="tanh"), nn.Dense(4, in_units=6))
    if count > 1:
        mx.parallel.shard(net, {"0": kind}, CPU[:count])
    net.initialize(mx.init.Xavier(), ctx=CPU[0])
    return net


class Shaped(mx.optimizer.Optimizer):
    """Has a state of shapes that a function of the weight's shape returns, filled with numbers
    that do not depend on the split."""

    def __init__(self, shapes, fill=None, **options):
        super().__init__(**options)
        self.shapes, self.fill = shapes, fill or (lambda weight: nd.mean(weight * 0 + 2))

    def create_state(self, index, weight):
        shapes = self.shapes(weight.shape) if len(weight.shape) == 2 else []
        return [
            nd.broadcast_to(self.fill(weight).reshape((1,) * len(shape)), shape=shape)
            for shape in shapes
        ]

    def update(self, index, weight, grad, state):
        for array in state:
            if array.shape[-1:] == (1,) and len(array.shape) == 2 and array.shape[0] > 1:
                array[:] += nd.mean(nd.abs(weight), axis=1, keepdims=True)
            elif array.shape == weight.shape:
                array[:] += weight
            else:
                array[:] += 1


SPLIT = {
    "the weight's shape": lambda shape: [shape, shape],
    "one number per row": lambda shape: [(shape[0], 1)],
    "one element": lambda shape: [(1,), (1, 1), (1, 1, 1)],
}


@pytest.mark.parametrize("shapes", SPLIT)
@pytest.mark.parametrize("source", [1, 2, 3])
def test_states_of_split_layers_load_into_any_split(shapes, source, tmp_path):
    def made(count, seed):
        net = split_network(count, "column", seed)
        return net, gluon.Trainer(net.collect_params(), Shaped(SPLIT[shapes]))

    def whole(net, trainer):
        """Returns the states of the first layer's weight as whole arrays."""
        states = [
            [array.asnumpy() for array in trainer._state.all_states()[i]]
            for i, param in enumerate(trainer.parameters)
            if "dense0" in param.name and param.name.endswith("weight")
        ]
        rows = sum(len(arrays[0]) for arrays in states)
        return [np.concatenate(parts) if rows == 6 else parts[0] for parts in zip(*states)]

    net, trainer = made(source, 1)
    train(net, trainer)
    mx.parallel.save(tmp_path, net, trainer)
    for target in (1, 2, 3):
        other, its_trainer = made(target, 2)
        mx.parallel.load(tmp_path, other, its_trainer)
        for a, b in zip(whole(net, trainer), whole(other, its_trainer), strict=True):
            np.testing.assert_array_equal(a, b)
        train(other, its_trainer, 3, 4)


class Mixed(mx.optimizer.Optimizer):
    """Has a momentum, one number per row, and a count of one element in two shapes."""

    def create_state(self, index, weight):
        ones = (1,) * len(weight.shape)
        shapes = [weight.shape, (*weight.shape[:1], *ones[1:]), ones, (1,)]
        return [nd.zeros(shape, ctx=weight.context) for shape in shapes]

    def update(self, index, weight, grad, state):
        momentum, rows, *counts = state
        momentum[:] = 0.9 * momentum + grad
        rows[:] += nd.sum(nd.abs(weight.reshape((0, -1))), axis=1).reshape(rows.shape)
        for count in counts:
            count[:] += 1
        weight -= 0.1 * momentum / (rows + 1) / counts[0].asscalar() / counts[1].asscalar()


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("steps", [0, 2])  # new states have equal parts
@pytest.mark.parametrize("target", [1, 2, 3])
def test_states_of_parts_of_one_row_load_into_any_split(target, steps, gather, tmp_path):
    def made(count):
        mx.random.seed(1)
        net = nn.HybridSequential(prefix="n_")
        with net.name_scope():
            net.add(nn.Dense(3, in_units=2, prefix="d_"))
        if count > 1:
            mx.parallel.shard(net, {".*d": "column"}, CPU[:count])
        net.initialize(mx.init.Uniform(0.5), ctx=CPU[0])
        return net, gluon.Trainer(net.collect_params(), Mixed())

    def step(net, trainer, begin, end):
        for number in range(begin, end):
            mx.random.seed(number)
            x = nd.random.normal(shape=(4, 2))
            backward_of(lambda: (net(x) * nd.array([[1, 2, 3]])).sum() + (net(x) ** 2).sum())
            trainer.step(4)

    def whole(net):
        params = net.collect_params().values()
        return [
            np.concatenate([p.list_data()[0].asnumpy() for p in params if p.name.endswith(end)])
            for end in ("weight", "bias")
        ]

    one, its_trainer = made(1)
    step(one, its_trainer, 0, steps + 2)
    net, trainer = made(3)  # all parts have one row
    step(net, trainer, 0, steps)
    if not steps:
        for i, param in enumerate(trainer.parameters):
            state = trainer.optimizer.create_state(i, param.data(param.list_ctx()[0]))
            trainer._state.replace_states({**trainer._state.all_states(), i: state})
    mx.parallel.save(tmp_path, net, trainer, gather=gather)
    net, trainer = made(target)
    mx.parallel.load(tmp_path, net, trainer)
    for i, param in enumerate(trainer.parameters):
        new = trainer.optimizer.create_state(i, param.data(param.list_ctx()[0]))
        assert [a.shape for a in trainer._state.all_states()[i]] == [a.shape for a in new]
    step(net, trainer, steps, steps + 2)
    for a, b in zip(whole(one), whole(net)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_differing_states_of_parts_of_one_row_raise_when_loaded_unsplit(tmp_path):
    class Sum(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return nd.zeros(1, ctx=weight.context)

        def update(self, index, weight, grad, state):
            state[:] += nd.sum(weight)

    def made(split):
        net = nn.HybridSequential(prefix="n_")
        net.add(nn.Dense(2, in_units=2, prefix="d_"))
        if split:
            mx.parallel.shard(net, {".*d": "column"}, CPU[:2])
        net.initialize()
        biases = net.collect_params(".*bias")
        for i, param in enumerate(biases.values()):
            param.set_data(nd.arange(i, i + param.shape[0]))
        return net, gluon.Trainer(biases, Sum())

    net, trainer = made(True)
    backward_of(lambda: net(nd.ones((1, 2))).sum())
    trainer.step(1)
    mx.parallel.save(tmp_path, net, trainer)
    mx.parallel.load(tmp_path, *made(True))
    with pytest.raises(mx.MXNetError, match=r"load: .* shape \(1,\) that differed between the 2"):
        mx.parallel.load(tmp_path, *made(False))


def test_group_adagrad_continues_on_a_split_layer(tmp_path):
    def made(count):
        net = split_network(count, "column")
        params = net.collect_params(".*weight")
        return net, gluon.Trainer(params, "groupadagrad", {"learning_rate": 0.1})

    net, trainer = made(2)
    train(net, trainer)
    mx.parallel.save(tmp_path, net, trainer)
    other, its_trainer = made(2)
    mx.parallel.load(tmp_path, other, its_trainer)
    train(net, trainer, 3, 5)
    train(other, its_trainer, 3, 5)
    same_bits(values(net), values(other))


UNSPLIT = {
    "an unrelated shape": (lambda shape: [(7,)], None, r"shape \(7,\), which cannot be split"),
    "a vector of rows": (lambda shape: [shape[:1]], None, "cannot be split along axis 0"),
    "one element that differs": (
        lambda shape: [(1,)],
        lambda weight: nd.sum(nd.abs(weight)),
        r"shape \(1,\) that differs",
    ),
}


@pytest.mark.parametrize("what", UNSPLIT)
def test_states_that_cannot_be_split_raise_when_saved(what, tmp_path):
    shapes, fill, text = UNSPLIT[what]
    net = split_network(2, "column")
    trainer = gluon.Trainer(net.collect_params(), Shaped(shapes, fill))
    train(net, trainer)
    with pytest.raises(mx.MXNetError, match=f"save: the state of parameter '0.weight'.*{text}"):
        mx.parallel.save(tmp_path / "run", net, trainer)
    wanted = described(trainer._state.all_states())
    trainer.save_states(str(tmp_path / "states"))  # keeps the state of each part
    other = split_network(2, "column", 2)
    its_trainer = gluon.Trainer(other.collect_params(), Shaped(shapes, fill))
    its_trainer.load_states(str(tmp_path / "states"))
    assert described(its_trainer._state.all_states()) == wanted


def test_numbers_that_differ_between_parts_raise_when_saved(tmp_path):
    class Counts(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return [index]

        def update(self, index, weight, grad, state):
            state[0] += 1

    net = split_network(2, "column")
    trainer = gluon.Trainer(net.collect_params(), Counts())
    train(net, trainer)
    with pytest.raises(mx.MXNetError, match=r"save: parameter '0.bias' .* different numbers"):
        mx.parallel.save(tmp_path, net, trainer)


def test_states_that_cannot_be_split_raise_when_loaded(tmp_path):
    net, split = split_network(1, "column"), split_network(2, "column", 2)
    trainer, its_trainer = [
        gluon.Trainer(each.collect_params(), Shaped(lambda shape: [(7,)])) for each in (net, split)
    ]
    train(net, trainer)
    mx.parallel.save(tmp_path, net, trainer)
    before = values(split)
    with pytest.raises(mx.MXNetError, match=r"load: .*'0.weight' has an array of shape \(7,\)"):
        mx.parallel.load(tmp_path, split, its_trainer)
    same_bits(values(split), before)
    assert not its_trainer._state.all_states()
