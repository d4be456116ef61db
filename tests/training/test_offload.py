"""Optimizer states on other devices (`Trainer(offload=...)`): bits, memory, files and errors."""

import gc
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn
from support.devices import on
from support.meshes import values

UNITS = 24
OFFLOAD = {"states": on(2)}
OPTIONS = {
    "sgd": [{"learning_rate": 0.1}, {"learning_rate": 0.1, "momentum": 0.9}],
    "lars": [{"learning_rate": 0.1, "momentum": 0.9}],
    "rmsprop": [{"centered": True}],
}
NAMES = sorted(name for name in mx.optimizer.Optimizer.opt_registry if name != "test")


MATRICES = "groupadagrad", "muon"  # optimizers that only update matrices


def network(layers=3, dtype="float32", ctx=None, units=UNITS, use_bias=True):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(layers):
            net.add(nn.Dense(units, activation="tanh", in_units=units, use_bias=use_bias))
    mx.random.seed(2)
    net.initialize(mx.init.Xavier(), ctx=ctx or on(0))
    net.cast(dtype)
    net.hybridize()
    return net


def batches(count=4, dtype="float32", units=UNITS):
    random = np.random.RandomState(4)
    return [nd.array(random.uniform(-1, 1, (8, units)), ctx=on(0)).astype(dtype)] * count


def train(net, trainer, steps=4):
    dtype = net[0].weight.dtype
    for x in batches(steps, dtype):
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        trainer.step(8)
    return {name: value.astype("float64") for name, value in values(net).items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def devices_of_states(trainer):
    """Returns the devices of all arrays of the optimizer's states."""
    found = set()
    for updater in trainer._updaters:
        for state in updater.states.values():
            mx.optimizer._nested_states.map_arrays(lambda a: found.add(a.context), state)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_keeps_its_bits(name, dtype):
    for options in OPTIONS.get(name, [{}]):
        options = {**options, "multi_precision": dtype != "float32"}
        found = []
        for offload in (None, OFFLOAD):
            net = network(dtype=dtype, use_bias=name not in MATRICES)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trainer = gluon.Trainer(net.collect_params(), name, options, offload=offload)
                found.append(train(net, trainer))
        same(*found)
        assert devices_of_states(trainer) <= {on(2)}


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2},
        {"clip_global_norm": 0.01},
        {"kvstore": None},
        {"update_on_kvstore": True},
        {"shard_updates": True},
    ],
    ids=str,
)
def test_options_keep_the_bits(options):
    found = []
    for offload in ({}, {"offload": OFFLOAD}):
        net = network()
        adam = {"learning_rate": 0.01, "clip_gradient": 0.1}
        trainer = gluon.Trainer(net.collect_params(), "adam", adam, **options, **offload)
        found.append(train(net, trainer))
    same(*found)


def test_compute_device_holds_no_states():
    """The pools show 8 bytes per parameter on the network's device, and 16 on the other one:
    copies of weight and gradient, and two states."""

    def in_use():
        gc.collect()
        nd.waitall()
        return [mx.context.memory_stats(ctx)["in_use"] for ctx in (on(0), on(2))]

    units, layers = 256, 6
    first, second = in_use()
    net = network(layers, units=units)
    trainer = gluon.Trainer(net.collect_params(), "adam", offload=OFFLOAD)
    for x in batches(3, units=units):
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        trainer.step(8)
    del x, loss
    size = layers * (units + 1) * units
    used, offloaded = in_use()
    assert 8 * size <= used - first <= 8 * size + 2**20
    assert 16 * size <= offloaded - second <= 16.5 * size


def test_written_weights_are_copied_before_the_update():
    found = []
    for offload in (None, OFFLOAD):
        net = network()
        trainer = gluon.Trainer(net.collect_params(), "adam", offload=offload)
        train(net, trainer, 2)
        net[0].weight.set_data(net[0].weight.data() * 0.5)
        net[1].weight.data()[:3] = 1
        train(net, trainer, 1)
        net[1].weight.reset_ctx(on(1))
        net[1].weight.reset_ctx(on(0))
        found.append(train(net, trainer, 2))
    same(*found)


def test_weights_written_by_other_libraries_are_copied():
    torch = pytest.importorskip("torch")
    found = []
    for offload in (None, OFFLOAD):
        net = network(ctx=mx.cpu(0))
        trainer = gluon.Trainer(net.collect_params(), "adam", offload=offload)
        train(net, trainer, 2)
        nd.waitall()
        torch.from_dlpack(net[0].weight.data()).mul_(0.5)
        found.append(train(net, trainer, 2))
    same(*found)


def test_replicas_are_updated_once():
    found = []
    for options in ({"update_on_kvstore": False}, {"offload": OFFLOAD}):
        net = network(ctx=[on(0), on(1)])
        trainer = gluon.Trainer(net.collect_params(), "adam", **options)
        for x in batches():
            with autograd.record():
                losses = [(net(x.as_in_context(ctx)) ** 2).sum() for ctx in (on(0), on(1))]
            autograd.backward(losses)
            trainer.step(16)
        found.append(values(net))
    same(*found)
    assert devices_of_states(trainer) == {on(2)}


def test_allreduce_and_update_keep_the_bits():
    found = []
    for options in ({}, {"offload": OFFLOAD}):
        net = network(ctx=[on(0), on(1)])
        trainer = gluon.Trainer(net.collect_params(), "adam", update_on_kvstore=False, **options)
        for x in batches():
            with autograd.record():
                losses = [(net(x.as_in_context(ctx)) ** 2).sum() for ctx in (on(0), on(1))]
            autograd.backward(losses)
            trainer.allreduce_grads()
            par.clip_global_norm(trainer, 0.1)
            trainer.update(16)
        found.append(values(net))
    same(*found)


@pytest.mark.parametrize("where", [on(2), {on(0): on(2), on(1): on(3)}, {on(1): on(2)}], ids=str)
def test_pipeline_keeps_the_bits(where):
    found = []
    for offload in (None, {"states": where}):
        net = network(4)
        net.place({"0": on(0), "1": on(0), "2": on(1), "3": on(1)}, verbose=False)
        trainer = gluon.Trainer(net.collect_params(), "adam", offload=offload, accumulate=2)
        step = par.TrainStep(net, gluon.loss.L2Loss(), trainer, par.Pipeline(2, "1f1b"))
        for x in batches():
            step(x, x)
        found.append(values(net))
    same(*found)
    assert devices_of_states(trainer) == (
        {where} if isinstance(where, mx.Context) else {where.get(on(0), on(0)), where[on(1)]}
    )


@pytest.mark.parametrize("optimizer", ["adam", "lamb", "lars"])
@pytest.mark.parametrize("axis", ["model", "shard"])
def test_divided_parameters_keep_the_bits(optimizer, axis):
    """LAMB and LARS update all parts of a parameter together."""
    found = []
    for offload in (None, OFFLOAD):
        net = network(units=64)
        plan = {".*weight": "model"} if axis == "model" else None
        par.Mesh({axis: 2}, [on(0), on(1)]).partition(net, plan)
        net.hybridize()
        options = {"momentum": 0.9} if optimizer == "lars" else {}
        trainer = gluon.Trainer(net.collect_params(), optimizer, options, offload=offload)
        for x in batches(units=64):
            with autograd.record():
                loss = (net(x) ** 2).sum()
            loss.backward()
            trainer.step(8)
        found.append(values(net))
    same(*found)
    assert devices_of_states(trainer) == {on(2)}


@pytest.mark.parametrize("first, second", [(None, OFFLOAD), (OFFLOAD, None), (OFFLOAD, OFFLOAD)])
def test_states_are_saved_and_loaded(first, second, tmp_path):
    net = network()
    whole = train(net, gluon.Trainer(net.collect_params(), "adam"), 6)
    for way in ("states", "checkpoint"):
        net = network()
        trainer = gluon.Trainer(net.collect_params(), "adam", offload=first)
        train(net, trainer, 3)
        if way == "states":
            net.save_parameters(str(tmp_path / "p"))
            trainer.save_states(str(tmp_path / "s"))
        else:
            par.save(str(tmp_path / "c"), net, trainer)
        net = network()
        trainer = gluon.Trainer(net.collect_params(), "adam", offload=second)
        if way == "states":
            net.load_parameters(str(tmp_path / "p"))
            trainer.load_states(str(tmp_path / "s"))
        else:
            par.load(str(tmp_path / "c"), net, trainer)
        assert devices_of_states(trainer) <= {on(2) if second else on(0)}
        same(train(net, trainer, 3), whole)


class Failing(mx.optimizer.SGD):
    """Raises an error at the second weight."""

    fails = False

    def update(self, index, weight, grad, state):
        for one in zip(index, weight, grad, state):
            if self.fails and one[0] == 1:
                raise RuntimeError("no update")
            super().update(*([part] for part in one))


def test_weights_agree_with_states_after_a_failed_step():
    net = network()
    optimizer = Failing(learning_rate=0.1, momentum=0.9)
    trainer = gluon.Trainer(net.collect_params(), optimizer, offload=OFFLOAD)
    train(net, trainer, 2)
    before = values(net)
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="no update"):
        train(net, trainer, 1)
    after, copies = values(net), trainer._state.offload.copies
    assert 0 < sum((before[name] != after[name]).any() for name in after) < len(after)
    for index, param in enumerate(trainer.parameters):
        np.testing.assert_array_equal(copies[index].weight.asnumpy(), after[param.name])


def test_gradients_without_update_are_skipped():
    found = []
    for offload in (None, OFFLOAD):
        net = network(4)
        trainer = gluon.Trainer(net.collect_params(), "adam", offload=offload)
        for number, x in enumerate(batches(6)):
            with autograd.record():
                loss = (nn.HybridSequential.forward(net, x) if number % 2 else net[2](x)).sum()
            loss.backward()
            trainer.step(8, ignore_stale_grad=True)
        found.append(values(net))
    same(*found)


def test_states_stay_on_the_device_of_their_weights_if_it_is_the_target():
    net = network(ctx=on(2))
    trainer = gluon.Trainer(net.collect_params(), "adam", offload=OFFLOAD)
    x = batches(1)[0].as_in_context(on(2))
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    trainer.step(8)
    assert devices_of_states(trainer) == {on(2)}
    assert not trainer._state.offload.copies


def test_pinned_memory():
    net, plain = network(ctx=mx.cpu(0)), network(ctx=mx.cpu(0))
    trainer = gluon.Trainer(net.collect_params(), "adam", offload={"states": mx.cpu_pinned(1)})
    same(train(net, trainer), train(plain, gluon.Trainer(plain.collect_params(), "adam")))
    assert devices_of_states(trainer) == {mx.cpu_pinned(1)}


@pytest.mark.parametrize(
    "offload, error, text",
    [
        (mx.cpu(1), ValueError, r"a dict from 'states' to .*, not cpu\(1\)"),
        ({"parameters": mx.cpu(1)}, ValueError, "parameters by Mesh.partition"),
        ({"states": 3}, TypeError, "must be a device or directory, or a dict .* not 3"),
        ({"states": {mx.cpu(0): 1}}, TypeError, "must be a device or directory, or a dict"),
    ],
)
def test_invalid_devices_raise(offload, error, text):
    with pytest.raises(error, match=text):
        gluon.Trainer(network().collect_params(), "adam", offload=offload)


def test_row_sparse_gradients_raise():
    net = nn.Embedding(10, 4, sparse_grad=True)
    net.initialize(ctx=on(0))
    with pytest.raises(mx.MXNetError, match="row_sparse; create its layer with sparse_grad=False"):
        gluon.Trainer(net.collect_params(), "adam", offload=OFFLOAD)


def test_store_of_an_offloaded_trainer_cannot_update():
    net = network(ctx=[on(0), on(1)])
    trainer = gluon.Trainer(net.collect_params(), "adam", update_on_kvstore=True, offload=OFFLOAD)
    for x in batches(1):
        with autograd.record():
            losses = [net(x.as_in_context(ctx)).sum() for ctx in (on(0), on(1))]
        autograd.backward(losses)
        trainer.step(8)
    weight = net[0].weight.data(on(0))
    with pytest.raises(mx.MXNetError, match="states of this Trainer are offloaded"):
        trainer._kvstore._updater(0, weight, weight)
