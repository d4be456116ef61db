"""Files of partitioned networks load into other divisions: parameters by name, and the states of
trainers."""

import tempfile

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.devices import on
from support.meshes import mesh_of, values

UNITS = 12
BIG = {".*weight": "shard"}
DIVISIONS = {
    "undivided": None,
    "shard": ({"shard": 2}, BIG),
    "uneven": ({"shard": [3, 1]}, BIG),
    "model": ({"model": 2}, {"0.weight": "model", "1.weight": (None, "model"), "1.bias": "model"}),
    "stages": ({"stage": 2, "shard": 2}, BIG),
    "quarters": (
        {"model": 2, "shard": 2},
        {"0.weight": "model+shard", "1.weight": (None, "model+shard"), "2.weight": "model:3+shard"},
    ),
    "blocks": ({"model": 2}, {"0.weight": "model:3", "2.weight": "model:1:2"}),
}


class Net(nn.HybridSequential):
    """A network whose names do not depend on the networks before it."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            for _ in range(3):
                self.add(nn.Dense(UNITS, activation="tanh", in_units=UNITS))


def network(division, seed=2):
    net = Net()
    mx.random.seed(seed)
    net.initialize(mx.init.Xavier(), ctx=on(0))
    if DIVISIONS[division]:
        axes, plan = DIVISIONS[division]
        mesh_of(axes).partition(net, plan)
    net.hybridize()
    return net


def trainer_of(net, optimizer="adam", **options):
    rates = {"adam": {"learning_rate": 0.01}, "sgd": {"learning_rate": 0.1, "momentum": 0.9}}
    return gluon.Trainer(net.collect_params(), optimizer, rates.get(optimizer, {}), **options)


def backward(net):
    x = nd.array(np.random.RandomState(4).uniform(-1, 1, (8, UNITS)), ctx=on(0))
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()


def step(net, trainer, count=1):
    for _ in range(count):
        backward(net)
        trainer.step(8)
    return values(net)


def same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def close(one, other):
    """Sums in another order differ in the last bits."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=2e-4, atol=2e-5, err_msg=name)


def wholes(trainer):
    """Returns the trainer's states as a file holds them: arrays of whole parameters by name."""
    with tempfile.NamedTemporaryFile() as file:
        trainer.save_states(file.name)
        arrays = nd.load(file.name)
    return {name: a.asnumpy() for name, a in arrays.items() if name != "trainer_states"}


onto_all = pytest.mark.parametrize("second", DIVISIONS)
from_all = pytest.mark.parametrize("first", DIVISIONS)


@from_all
@onto_all
def test_named_parameters_load_into_other_divisions(first, second, tmp_path):
    net, other = network(first), network(second, seed=3)
    file = str(tmp_path / "a.params")
    net.collect_params().save(file)
    assert set(nd.load(file)) == set(network("undivided").collect_params())
    other.collect_params().load(file)
    same(values(other), values(net))
    same(values(net), values(network("undivided")))


@from_all
def test_deprecated_names_load_into_other_divisions(first, tmp_path):
    file = str(tmp_path / "a.params")
    net = network(first)
    with pytest.warns(DeprecationWarning):
        net.save_params(file)
    assert "dense0_weight" in nd.load(file)
    for second in DIVISIONS:
        other = network(second, seed=3)
        with pytest.warns(DeprecationWarning):
            other.load_params(file)
        same(values(other), values(net))


@onto_all
def test_prefixes_of_whole_parameters(second, tmp_path):
    file = str(tmp_path / "a.params")
    net, other = network("shard"), network(second, seed=3)
    net.collect_params().save(file, strip_prefix="net_")
    other.collect_params().load(file, restore_prefix="net_")
    same(values(other), values(net))
    with pytest.raises(ValueError, match="'net_dense0_bias' does not start with it"):
        net.collect_params().save(file, strip_prefix="net_dense1")


def test_another_shape_of_the_whole_raises(tmp_path):
    net = network("shard")
    before = values(net)
    arrays = {name: nd.zeros((UNITS // 2, UNITS)) for name in network("undivided").collect_params()}
    with pytest.raises(AssertionError, match=r"net_dense0_weight.*shape \(6, 12\).*has \(12, 12\)"):
        net.collect_params().load_dict(arrays)
    same(values(net), before)


def test_some_parts_are_saved_as_parts(tmp_path):
    net = network("shard")
    file = str(tmp_path / "a.params")
    net.collect_params(".*shard0.*").save(file)
    assert set(nd.load(file)) == {f"net_dense{i}_shard0_weight" for i in range(3)}


def test_parameters_with_names_of_their_own(tmp_path):
    """The file has the name of the parameter, not a name that the block would give it."""

    class Own(nn.HybridBlock):
        def __init__(self):
            super().__init__(prefix="own_")
            self.table = gluon.Parameter("mine", shape=(4, 6))

        def forward(self, x):
            return nd.dot(x, self.table.data())

    file = str(tmp_path / "a.params")
    nets = []
    for axes in (None, {"shard": 2}):
        net = Own()
        net.initialize(mx.init.Uniform(1), ctx=on(0))
        if axes:
            mesh_of(axes).partition(net, {"table": "shard"})
        nets.append(net)
    nets[1].collect_params().save(file)
    assert set(nd.load(file)) == set(nets[0].collect_params()) == {"own_mine"}
    nets[0].collect_params().load(file)
    np.testing.assert_array_equal(
        nets[0].table.data().asnumpy(), next(iter(values(nets[1]).values()))
    )


@from_all
@onto_all
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_states_load_into_other_divisions(optimizer, first, second, tmp_path):
    net = network(first)
    trainer = trainer_of(net, optimizer)
    step(net, trainer, 2)
    net.save_parameters(str(tmp_path / "p"))
    trainer.save_states(str(tmp_path / "s"))
    other = network(second, seed=3)
    loaded = trainer_of(other, optimizer)
    other.load_parameters(str(tmp_path / "p"))
    loaded.load_states(str(tmp_path / "s"))
    same(values(other), values(net))
    same(wholes(loaded), wholes(trainer))
    compare = same if first == second else close
    compare(step(other, loaded, 2), step(net, trainer, 2))
    compare(wholes(loaded), wholes(trainer))
    assert loaded.optimizer.num_update == trainer.optimizer.num_update == 4


@from_all
@onto_all
def test_accumulated_gradients_load_into_other_divisions(first, second, tmp_path):
    net = network(first)
    trainer = trainer_of(net, accumulate=2)
    step(net, trainer, 3)
    net.save_parameters(str(tmp_path / "p"))
    trainer.save_states(str(tmp_path / "s"))
    other = network(second, seed=3)
    loaded = trainer_of(other, accumulate=2)
    other.load_parameters(str(tmp_path / "p"))
    loaded.load_states(str(tmp_path / "s"))
    (same if first == second else close)(step(other, loaded), step(net, trainer))


@pytest.mark.parametrize("optimizer", sorted({*mx.optimizer.Optimizer.opt_registry} - {"test"}))
def test_states_of_every_optimizer_load_into_an_undivided_network(optimizer, tmp_path):
    net = network("uneven")
    for layer in net:  # some optimizers only update matrices
        layer.bias.grad_req = "null"
    trainer = trainer_of(net, optimizer)
    step(net, trainer, 2)
    net.save_parameters(str(tmp_path / "p"))
    trainer.save_states(str(tmp_path / "s"))
    for second in ("undivided", "model", "shard"):
        other = network(second, seed=3)
        for layer in other:
            layer.collect_params(".*bias").setattr("grad_req", "null")
        loaded = trainer_of(other, optimizer)
        other.load_parameters(str(tmp_path / "p"))
        loaded.load_states(str(tmp_path / "s"))
        same(wholes(loaded), wholes(trainer))


def test_states_of_parts_of_one_row_load_into_an_undivided_network(tmp_path):
    """The state of a part of one row does not show whether it is divided."""
    nets = []
    for axes in ({"shard": 2}, None):
        net = nn.Dense(2, in_units=4, use_bias=False, prefix="net_")
        net.initialize(mx.init.Uniform(1), ctx=on(0))
        if axes:
            mesh_of(axes).partition(net, {"weight": "shard"})
        nets.append((net, gluon.Trainer(net.collect_params(), "adam")))
    for net, trainer in nets[:1]:
        with autograd.record():
            loss = net(nd.ones((2, 4), ctx=on(0))).sum()
        loss.backward()
        trainer.step(1)
        trainer.save_states(str(tmp_path / "s"))
    nets[1][1].load_states(str(tmp_path / "s"))
    same(wholes(nets[1][1]), wholes(nets[0][1]))


class Odd(mx.optimizer.SGD):
    """Has a state that cannot be divided like its parameter."""

    def create_state(self, index, weight):
        return nd.full((7,), index, ctx=weight.context)


@onto_all
def test_states_of_parts_load_only_into_the_same_division(second, tmp_path):
    net = network("shard")
    trainer = gluon.Trainer(net.collect_params(), Odd())
    for index, param in enumerate(trainer.parameters):
        trainer._state.updater(param.list_ctx()[0]).states[index] = nd.ones((7,)) * index
    trainer.save_states(str(tmp_path / "s"))
    other = network(second, seed=3)
    loaded = gluon.Trainer(other.collect_params(), Odd())
    if second in ("shard", "stages"):  # the same ranges
        loaded.load_states(str(tmp_path / "s"))
        same(wholes(loaded), wholes(trainer))
        return
    own = "not divided" if second == "undivided" else "the range 0 to"
    with pytest.raises(
        mx.MXNetError,
        match=r"net_dense\d_shard0_weight', which is the range 0 to 6 along axis 0 of a parameter "
        r"of shape \(12, 12\).*"
        f"is {own}.*use mx.parallel.save and mx.parallel.load",
    ):
        loaded.load_states(str(tmp_path / "s"))


def test_states_of_another_shape_raise(tmp_path):
    net = nn.Dense(UNITS // 2, in_units=UNITS, prefix="net_")
    net.initialize(ctx=on(0))
    trainer = gluon.Trainer(net.collect_params(), "adam")
    with autograd.record():
        loss = net(nd.ones((2, UNITS), ctx=on(0))).sum()
    loss.backward()
    trainer.step(1)
    trainer.save_states(str(tmp_path / "s"))
    other = nn.Dense(UNITS, in_units=UNITS, prefix="net_")
    other.initialize(ctx=on(0))
    mesh_of({"shard": 2}).partition(other, {"weight": "shard", "bias": "shard"})
    loaded = gluon.Trainer(other.collect_params(), "adam")
    with pytest.raises(
        mx.MXNetError, match=r"shape \(6,.*, but parameter 'net_.*' has shape \(12,"
    ):
        loaded.load_states(str(tmp_path / "s"))


def test_networks_created_again_load_states_by_their_numbers(tmp_path):
    def create(axes):
        net = nn.HybridSequential()
        with net.name_scope():
            net.add(nn.Dense(UNITS, in_units=UNITS), nn.Dense(UNITS, in_units=UNITS))
        net.initialize(mx.init.Xavier(), ctx=on(0))
        if axes:
            mesh_of(axes).partition(net, BIG)
        return net, gluon.Trainer(net.collect_params(), "adam")

    net, trainer = create({"shard": 2})
    step(net, trainer, 2)
    trainer.save_states(str(tmp_path / "s"))
    for axes in (None, {"shard": [3, 1]}, {"shard": 2}):
        _, loaded = create(axes)
        loaded.load_states(str(tmp_path / "s"))
        one, other = (
            {name.partition("_")[2]: array for name, array in wholes(each).items()}
            for each in (loaded, trainer)
        )
        same(one, other)
