"""Parameters assigned as attributes of a block, as in PyTorch: new ones and shared ones."""

import copy
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.compare import same_bits
from support.devices import on


class Scaled(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.g = gluon.Parameter("g", shape=(3,), init="ones")
        self.offset = gluon.Constant("offset", [1.0, 2.0, 3.0])

    def hybrid_forward(self, F, x, g, offset):
        return x * F.broadcast_add(F.broadcast_mul(F.ones_like(x), g), offset)


class Plain(gluon.Block):
    def __init__(self):
        super().__init__()
        self.g = gluon.Parameter("g", shape=(3,), init="ones")

    def forward(self, x):
        return x * self.g.data()


def trained(net, hybridize=False):
    if hybridize:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    x = nd.ones((1, 3))
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    trainer.step(1)
    return trainer


@pytest.mark.parametrize("hybridize", [False, True])
def test_parameter_of_a_hybrid_block_is_trained(hybridize):
    net = nn.HybridSequential()
    net.add(Scaled(), Scaled())
    net.initialize()
    assert len(net.collect_params()) == 4
    trained(net, hybridize)
    for layer in net:
        assert (layer.g.data().asnumpy() < 1).all()
        assert layer.offset.data().asnumpy().tolist() == [1, 2, 3]
        assert layer.g.name == layer.prefix + "g" and layer.g.var().name == layer.g.name


def test_parameter_of_a_plain_block_is_trained_and_moved():
    net = Plain()
    net.initialize()
    trained(net)
    assert net.g.data().asnumpy().tolist() == [0.5] * 3
    net.collect_params().reset_ctx(on(1))
    assert net.g.list_ctx() == [on(1)]


def test_parameters_as_attributes_are_saved_loaded_and_copied(tmp_path):
    net, other = Scaled(), Scaled()
    for each in (net, other):
        each.initialize()
    trainer = trained(net)
    net.save_parameters(str(tmp_path / "a.params"))
    other.load_parameters(str(tmp_path / "a.params"))
    expected = net(nd.ones((1, 3))).asnumpy()
    np.testing.assert_array_equal(other(nd.ones((1, 3))).asnumpy(), expected)
    trainer.save_states(str(tmp_path / "a.states"))
    trainer.load_states(str(tmp_path / "a.states"))
    mx.parallel.save(str(tmp_path / "all"), net, trainer)
    other.g.set_data(nd.zeros(3))
    mx.parallel.load(str(tmp_path / "all"), other)
    np.testing.assert_array_equal(other(nd.ones((1, 3))).asnumpy(), expected)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert list(twin.collect_params()) == list(net.collect_params())
        np.testing.assert_array_equal(twin(nd.ones((1, 3))).asnumpy(), expected)
    net.hybridize()
    net(nd.ones((1, 3)))
    symbol, params = net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(symbol, ["data"], params)
    np.testing.assert_array_equal(block(nd.ones((1, 3))).asnumpy(), expected)


def test_parameter_assigned_to_two_blocks_is_shared():
    tied = gluon.Parameter("tied", shape=(3,), init="ones")
    net = nn.Sequential()
    net.add(Plain(), Plain())
    for layer in net:
        layer.tied = tied
    params = net.collect_params()
    assert sum(param is tied for param in params.values()) == 1 and len(params) == 3
    assert tied in net[0].collect_params().values() and tied in net[1].collect_params().values()


def test_parameter_of_another_blocks_dict_stays_its_own():
    """As in MXNet, the attribute is only an argument of hybrid_forward."""
    dense, net = nn.Dense(3, in_units=3), Plain()
    net.weight = dense.weight
    assert list(net.collect_params()) == [net.g.name]
    assert dense.weight.name == dense.prefix + "weight"


def test_second_parameter_of_the_same_name_in_a_block_raises():
    net = Plain()
    with pytest.raises(AssertionError, match="give the parameters of a block different names"):
        net.h = gluon.Parameter("g", shape=(2,))
    assert not hasattr(net, "h") and len(net.collect_params()) == 1


class Tied(gluon.HybridBlock):
    """The head has the weight of the embedding, given as `params` or assigned."""

    def __init__(self, assigned):
        super().__init__(prefix="tied_")
        with self.name_scope():
            self.embed = nn.Embedding(5, 4)
            given = {} if assigned else {"params": self.embed.params}
            self.head = nn.Dense(5, flatten=False, in_units=4, **given)
            if assigned:
                self.head.weight = self.embed.weight

    def hybrid_forward(self, F, x):
        return self.head(self.embed(x))


@pytest.mark.parametrize("hybrid", [False, True])
def test_assigned_parameters_are_shared(hybrid, tmp_path):
    x, results = nd.array([[0, 3, 2]]), []
    for assigned in (False, True):
        mx.random.seed(1)
        net = Tied(assigned)
        net.initialize(mx.init.Xavier())
        net.hybridize(hybrid)
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
        for _ in range(3):
            with autograd.record():
                loss = (net(x) ** 2).sum()
            loss.backward()
            trainer.step(1)
        assert len(net.collect_params()) == 2 and len(net.head.collect_params()) == 2
        net.save_parameters(str(tmp_path / "net"))
        again = Tied(assigned)
        again.load_parameters(str(tmp_path / "net"))
        assert again.head.weight is again.embed.weight
        same_bits(again(x), net(x))
        results.append(net(x).asnumpy())
    same_bits(results[1], results[0])


def test_assigned_parameters_replace_those_of_compiled_blocks():
    net, other = nn.Dense(3, in_units=4), nn.Dense(3, in_units=4)
    for block in (net, other):
        block.initialize()
    net.hybridize()
    x = nd.random.uniform(-1, 1, (2, 4))
    net(x)
    net.weight = other.weight
    net.bias = gluon.Parameter("bias", shape=(3,), init="ones")
    net.bias.initialize()
    same_bits(net(x), other(x) + 1)
    assert {*net.collect_params()} == {other.weight.name, net.prefix + "bias"}


@pytest.mark.parametrize("options", [{"in_units": 5}, {"in_units": 4, "dtype": "float64"}])
def test_assigned_parameters_must_match(options):
    net = nn.Dense(3, in_units=4)
    weight, names = net.weight, [*net.collect_params()]
    with pytest.raises(AssertionError, match="cannot be replaced.*shape and dtype must match"):
        net.weight = nn.Dense(3, **options).weight
    assert net.weight is weight and [*net.collect_params()] == names


def test_assigned_parameters_need_names_of_their_own():
    net = nn.Dense(3, in_units=4)
    weight, names = net.weight, [*net.collect_params()]
    with pytest.raises(AssertionError, match="already exists"):
        net.weight = gluon.Parameter("bias", shape=(3, 4))
    assert net.weight is weight and [*net.collect_params()] == names


class Unnamed(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = gluon.Parameter(shape=(3,), init="ones")
        self.offset = gluon.Constant([1.0, 2.0, 3.0])
        self.shift = gluon.Constant(value=nd.ones(3))

    def hybrid_forward(self, F, x, scale, offset, shift):
        return x * (scale + offset + shift)


def test_unnamed_parameters_take_the_names_of_their_attributes(tmp_path):
    net, other = Unnamed(), Unnamed()
    for block in (net, other):
        names = [block.prefix + name for name in ("scale", "offset", "shift")]
        assert list(block.collect_params()) == names
        assert [p.name for p in block.collect_params().values()] == names
        block.initialize()
    trained(net, hybridize=True)
    assert net.scale.data().asnumpy().tolist() == [0.5] * 3
    net.save_parameters(str(tmp_path / "own.params"))
    other.load_parameters(str(tmp_path / "own.params"))
    assert other.scale.data().asnumpy().tolist() == [0.5] * 3
    assert copy.deepcopy(net).scale.name == net.scale.name


def test_names_of_unnamed_parameters_start_with_the_prefix():
    net = nn.Block(prefix="weight")
    net.weight = gluon.Parameter(shape=(2,))
    assert net.weight.name == "weightweight"
    assert gluon.Parameter(shape=(2,)).name == "weight" and gluon.Constant([2.0]).name == "const"


def test_a_constant_requires_a_value():
    for args in ((), ("name",)):
        with pytest.raises(TypeError, match="argument value is missing"):
            gluon.Constant(*args)
