"""Optimizers update split parameters like whole ones: by norms and random numbers of the whole."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn, rnn
from mpgluon.kvstore import KVStoreBase
from mpgluon.optimizer._nested_states import take_apart
from support.compare import close_by_name
from support.devices import on
from support.interrupts import sweep
from support.meshes import values

DEVICES = [on(i) for i in range(4)]
# By registered name. A small epsilon would turn rounding differences of gradients into steps.
OPTIMIZERS = {
    "adadelta": {},
    "adafactor": {"learning_rate": 0.05, "wd": 0.1, "epsilon1": 0.01},
    "adagrad": {"learning_rate": 0.1},
    "adam": {"learning_rate": 0.01, "epsilon": 0.01},
    "adamax": {"learning_rate": 0.01},
    "adamw": {"learning_rate": 0.01, "epsilon": 0.01, "wd": 0.1, "amsgrad": True},
    "dcasgd": {"learning_rate": 0.1, "momentum": 0.9},
    "ftml": {"learning_rate": 0.01, "epsilon": 0.01},
    "ftrl": {"learning_rate": 0.1},
    "groupadagrad": {"learning_rate": 0.1},
    "lamb": {"learning_rate": 0.05, "epsilon": 0.01, "wd": 0.1, "upper_bound": 1.5},
    "lars": {"learning_rate": 0.1, "momentum": 0.9, "eta": 0.1, "wd": 0.1},
    "lbsgd": {"learning_rate": 0.1, "warmup_strategy": "lars", "wd": 0.1, "batch_scale": 3},
    "lion": {"learning_rate": 0.001, "wd": 0.1},
    "muon": {"learning_rate": 0.02},
    "nadam": {"learning_rate": 0.01, "epsilon": 0.01},
    "nag": {"learning_rate": 0.1, "momentum": 0.9},
    "rmsprop": {"learning_rate": 0.01, "centered": True, "epsilon": 0.01},
    "sgd": {"learning_rate": 0.1, "momentum": 0.9},
    "sgld": {"learning_rate": 0.01},
    "signum": {"learning_rate": 0.001},
}
COMBINING = ("groupadagrad", "muon", "adafactor", "lamb", "lars", "lbsgd")
OF_MATRICES = ("groupadagrad", "muon")
PLAN = {"0": "vocab", "1": "column", "2": "row"}
OTHER_PLAN = {"1": "row", "2": "column", "3": "row"}


def dense(plan=None, count=2, bias=True):
    net = nn.HybridSequential(prefix="net_")
    options = {"activation": "tanh", "use_bias": bias}
    with net.name_scope():
        net.add(nn.Embedding(11, 6), nn.Dense(9, in_units=18, **options))
        net.add(nn.Dense(8, in_units=9, **options), nn.Dense(4, in_units=8, use_bias=bias))
    return par.shard(net, plan, DEVICES[:count]) if plan else net


class Gated(gluon.HybridBlock):
    """Parameters that consist of blocks, so that a part has several ranges."""

    def __init__(self, count):
        super().__init__(prefix="gated_")
        with self.name_scope():
            self.embed, self.lstm = nn.Embedding(11, 6), rnn.LSTM(6, layout="NTC", input_size=6)
            self.attention = par.ParallelSelfAttention(6, 3, DEVICES[:count])
        if count > 1:
            par.shard(self, {"lstm": "gates"}, DEVICES[:count])

    def hybrid_forward(self, F, x):
        return F.sum(self.attention(self.lstm(self.embed(x))), axis=1)[:, :4]


def trainer_of(net, name, more=(), **options):
    return gluon.Trainer(net, name, {**OPTIMIZERS.get(name, {}), **dict(more)}, **options)


def train(net, trainer, steps=4, mesh=None, seed=0):
    rng = np.random.RandomState(seed)
    for _ in range(steps):
        x, y = nd.array(rng.randint(0, 11, (6, 3))), nd.array(rng.uniform(-1, 1, (6, 4)))
        pairs = [(x, y)]
        if mesh is not None:
            pairs = zip(mesh.split_and_load(x), mesh.split_and_load(y, stage=-1))
        with autograd.record():
            losses = [((net(a) - b.astype(net(a).dtype)) ** 2).sum() for a, b in pairs]
        autograd.backward(losses)
        trainer.step(len(x))


def run(net, name, more=(), steps=4, dtype="float32", **options):
    """Returns the weights after training, and the next random numbers."""
    mx.random.seed(3)
    net.initialize(mx.init.Xavier())
    if dtype == "float16":
        # A bias that begins at 0 is a sum of gradients, with their relative rounding errors.
        for param in net.collect_params(".*bias").values():
            param.set_data(nd.full(param.shape, 0.5))
    net.cast(dtype)
    train(net, trainer_of(net, name, more, **options), steps)
    return {**values(net), "drawn": nd.random.uniform(shape=3).asnumpy()}


def test_every_optimizer_is_covered():
    registry = mx.optimizer.Optimizer.opt_registry
    own = {name for name, kind in registry.items() if kind.__module__.startswith("mpgluon.")}
    assert own - {"ccsgd", "test"} == set(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("plan", [PLAN, OTHER_PLAN], ids=["column row", "row column row"])
@pytest.mark.parametrize("count", [2, 3])
def test_updates_of_parts_equal_updates_of_the_whole(name, plan, count):
    bias = name not in OF_MATRICES
    wanted = run(dense(bias=bias), name)
    close_by_name(wanted, run(dense(plan, count, bias), name))


@pytest.mark.parametrize("name", [*COMBINING[2:], "sgld"])
def test_updates_of_parts_with_several_ranges_equal_the_whole(name):
    close_by_name(run(Gated(1), name), run(Gated(3), name))


@pytest.mark.parametrize("name", [*COMBINING, "sgld"])
@pytest.mark.parametrize(
    "more",
    [
        {"multi_precision": True, "dtype": "float16"},
        {"dtype": "float16"},
        {"dtype": "float64"},
        {"clip_global_norm": 0.1},
        {"accumulate": 2},
        {"update_on_kvstore": True},
    ],
    ids=str,
)
def test_split_updates_equal_whole_ones_with_options(name, more):
    options = {key: value for key, value in more.items() if key != "multi_precision"}
    own = {"multi_precision": True} if "multi_precision" in more else {}
    bias, dtype = name not in OF_MATRICES, more.get("dtype")
    wanted = run(dense(bias=bias), name, own, **options)
    found = run(dense(PLAN, 3, bias), name, own, **options)
    exact = 1e-7 if name == "lars" else 1e-13  # LARS has float32 norms and rates
    close_by_name(wanted, found, {"float16": 4e-3, "float64": exact}.get(dtype, 1e-5))


def on_mesh(axes, name, steps=4, seed=0, **options):
    mx.random.seed(3)
    devices = DEVICES[: np.prod(list(axes.values()))]
    net, mesh = dense(bias=name not in OF_MATRICES), par.Mesh(axes, devices=devices)
    mesh.place(net, split=PLAN if "model" in axes else None)
    net.initialize(mx.init.Xavier())
    trainer = trainer_of(net, name, **options)
    train(net, trainer, steps, mesh, seed)
    return net, mesh, trainer


@pytest.mark.parametrize("name", [*COMBINING, "sgld"])
@pytest.mark.parametrize(
    "options", [{}, {"update_on_kvstore": False}, {"shard_updates": True}], ids=str
)
def test_replicas_of_parts_are_updated_alike(name, options):
    """All update modes have the same bits, and `values` compares the bits of replicas."""
    wanted, *_ = on_mesh({"data": 1}, name)
    first = values(on_mesh({"data": 2, "model": 2}, name)[0])
    close_by_name(values(wanted), first)
    net, _, trainer = on_mesh({"data": 2, "model": 2}, name, **options)
    found = values(net)
    assert all(found[key].tobytes() == first[key].tobytes() for key in first)
    close_by_name(values(wanted), found)
    if "shard_updates" in options:
        states = [len(updater.states) for updater in trainer._state.by_device.values()]
        assert sum(states) == len(net.collect_params())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checkpoints_of_states_load_onto_any_split(tmp_path, name):
    bias = name not in OF_MATRICES
    makers = [
        lambda: dense(bias=bias),
        lambda: dense(PLAN, 3, bias),
        lambda: dense(OTHER_PLAN, 2, bias),
    ]
    for number, make in enumerate(makers):
        mx.random.seed(3)
        net = make()
        net.initialize(mx.init.Xavier())
        trainer = trainer_of(net, name)
        train(net, trainer)
        path = str(tmp_path / str(number))
        par.save(path, net, trainer)
        train(net, trainer, seed=1)
        for other_make in makers:
            other = other_make()
            other.initialize()
            other_trainer = trainer_of(other, name)
            par.load(path, other, other_trainer)
            train(other, other_trainer, seed=1)
            close_by_name(values(net), values(other))


def test_draws_are_in_the_order_of_whole_parameters():
    """The name of a part sorts differently than the name of the whole."""

    def make(plan=None):
        net = nn.HybridSequential(prefix="")
        net.add(nn.Dense(4, in_units=3, prefix="a_"), nn.Dense(4, in_units=4, prefix="a_t_"))
        return par.shard(net, plan, DEVICES[:2]) if plan else net

    results = []
    for plan in (None, {"0": "column"}):
        for given in (lambda net: net, lambda net: net.collect_params()):
            mx.random.seed(3)
            net = make(plan)
            net.initialize(mx.init.Zero())
            trainer = gluon.Trainer(given(net), "sgld", {"learning_rate": 0.1})
            with autograd.record():
                loss = (net(nd.ones((2, 3))) ** 2).sum()
            loss.backward()
            trainer.step(1)
            results.append(values(net))
    for result in results[1:]:
        close_by_name(results[0], result)


class Store(KVStoreBase):
    """A user's store that runs the optimizer."""

    type = "users"

    @staticmethod
    def is_capable(capability):
        return capability == KVStoreBase.OPTIMIZER

    def set_optimizer(self, optimizer):
        self.updater = mx.optimizer.get_updater(optimizer)

    def broadcast(self, key, value, out, priority=0):
        value.copyto(out if not isinstance(out, list) else out[0])

    def pushpull(self, key, value, out=None, priority=0):
        self.updater(key, value[0], out[0])


class OwnLAMB(mx.optimizer.LAMB):
    def update(self, index, weight, grad, state):
        super().update(index, weight, grad, state)


def split_net():
    net = dense(PLAN)
    net.initialize(mx.init.Xavier())
    return net


def test_updates_of_single_parts_raise():
    net = split_net()
    before = values(net)
    with pytest.raises(MXNetError, match="its update depends on the other parts"):
        train(net, trainer_of(net, "lamb", kvstore=Store(), update_on_kvstore=True))
    with pytest.raises(MXNetError, match="its update depends on the other parts"):
        train(net, trainer_of(net, OwnLAMB()))
    params = {k: v for k, v in net.collect_params().items() if "shard1" not in k}
    with pytest.raises(MXNetError, match="give the Trainer all parts"):
        train(net, gluon.Trainer(params, "lars"))
    net[1].shard1_weight.grad_req = "null"
    with pytest.raises(MXNetError, match="give the Trainer all parts"):
        train(net, trainer_of(net, "lamb"))
    after = values(net)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_stale_parts_are_skipped_together_or_raise():
    layer = par.ColumnParallelDense(4, DEVICES[:2], in_units=4, gather_output=False)
    other = nn.Dense(1, in_units=4)
    for block in (layer, other):
        block.initialize(mx.init.Xavier())
    trainer = gluon.Trainer({**layer.collect_params(), **other.collect_params()}, "lamb")
    before = values(layer)

    def changed(used):
        """Trains with the outputs of some parts. Returns whether each parameter has changed."""
        with autograd.record():
            parts = layer(nd.ones((2, 4)))[:used]
            total = other(nd.ones((2, 4))).sum()
            total = nd.add_n(total, *[part.sum().as_in_context(on(0)) for part in parts])
        total.backward()
        trainer.step(1, ignore_stale_grad=True)
        return {(before[name] != value).any() for name, value in values(layer).items()}

    assert changed(0) == {False}
    with pytest.raises(MXNetError, match="updates all 2 parts"):
        changed(1)
    assert changed(2) == {True}


@pytest.mark.parametrize(
    "name, more", [("lamb", {}), ("lars", {}), ("lbsgd", {}), ("lbsgd", {"batch_scale": 1})]
)
def test_interrupted_step_updates_all_parts_of_a_parameter_or_none(name, more):
    def make():
        mx.random.seed(3)
        net = split_net()
        trainer = trainer_of(net, name, more)
        train(net, trainer, steps=1)
        with autograd.record():
            loss = net(nd.ones((2, 3))).sum()
        loss.backward()
        return net, trainer

    def read(thing):
        """Returns the value, and states and update counts of all parts, by name of the whole."""
        net, trainer = thing
        found = {name: [value.tobytes()] for name, value in values(net).items()}
        states = trainer._state.all_states()
        for index, param in enumerate(trainer.parameters):
            own, arrays = found[getattr(param, "global_name", param.name)], {}
            take_apart(states[index], "", arrays)
            own += [array.asnumpy().tobytes() for array in arrays.values()]
            own += [counts.get(index) for counts in trainer.optimizer.update_counts.values()]
        return found

    def step(thing):
        thing[1].step(1)

    before = read(make())
    thing = make()
    step(thing)
    after = read(thing)

    def check(thing):
        for name, found in read(thing).items():
            assert found in (before[name], after[name]), name

    sweep(make, step, check, 30)
