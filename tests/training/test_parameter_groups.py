"""Parameter groups of a Trainer: options, rates, placements, and files."""

import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn
from mpgluon.lr_scheduler import CosineScheduler, FactorScheduler
from support.compare import close_by_name
from support.devices import on
from support.meshes import values


def network(seed=0, norm=True):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(6, in_units=4, activation="tanh"))
        if norm:
            net.add(nn.LayerNorm(in_channels=6))
        net.add(nn.Dense(3, in_units=6))
    mx.random.seed(seed)
    net.initialize(mx.init.Xavier())
    return net


def groups_of(net, first=(), second=()):
    return [
        {"params": net.collect_params(".*weight"), **dict(first)},
        {"params": net.collect_params(".*(bias|gamma|beta)"), **dict(second)},
    ]


def train(net, trainer, steps=4, seed=0):
    rng = np.random.RandomState(seed)
    for _ in range(steps):
        with autograd.record():
            loss = (net(nd.array(rng.uniform(-1, 1, (5, 4)))) ** 2).sum()
        loss.backward()
        trainer.step(5)
    return values(net)


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


OPTIONS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.01},
    "adamw": {"learning_rate": 0.01},
    "lion": {"learning_rate": 0.01},
    "adafactor": {"learning_rate": 0.05},
    "lamb": {"learning_rate": 0.01},
    "lars": {"learning_rate": 0.1, "momentum": 0.9},
    "sgld": {"learning_rate": 0.01},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_groups_with_the_same_options_change_no_bits(name):
    wanted = train(net := network(), gluon.Trainer(net, name, OPTIONS[name]))
    net = network()
    trainer = gluon.Trainer(groups_of(net), name, OPTIONS[name])
    same(train(net, trainer), wanted)
    net = network()
    trainer = gluon.Trainer(groups_of(net), mx.optimizer.create(name, **OPTIONS[name]))
    same(train(net, trainer), wanted)


@pytest.mark.parametrize("name", OPTIONS)
def test_rates_and_decays_of_groups_equal_multipliers(name):
    """Powers of two, so that products are exact."""
    options = {**OPTIONS[name], "learning_rate": 0.03125, "wd": 0.125}
    net = network()
    net.collect_params(".*weight").setattr("lr_mult", 0.5)
    net.collect_params(".*(bias|gamma|beta)").setattr("wd_mult", 0.0)
    wanted = train(net, gluon.Trainer(net, name, options))
    for lr, wd in (("lr", "weight_decay"), ("learning_rate", "wd")):
        net = network()
        groups = groups_of(net, {lr: 0.015625}, {wd: 0})
        same(train(net, gluon.Trainer(groups, name, options)), wanted)


def test_multipliers_of_parameters_multiply_the_options_of_groups():
    def run(lr, mult, wd, wd_mult):
        net = network()
        net.collect_params(".*weight").setattr("lr_mult", mult)
        net.collect_params(".*weight").setattr("wd_mult", wd_mult)
        groups = groups_of(net, {"lr": lr, "wd": wd})
        return train(net, gluon.Trainer(groups, "adamw", {"learning_rate": 0.125}))

    same(run(0.0625, 1, 0.25, 1), run(0.125, 0.5, 0.125, 2))


@pytest.mark.parametrize("first", [{"beta1": 0.5}, {"epsilon": 0.1}, {"clip_gradient": 0.01}])
def test_other_options_of_a_group_take_precedence(first):
    """Each group is trained as by a trainer of its own."""
    net = network()
    weights, others = (group["params"] for group in groups_of(net))
    own = {"learning_rate": 0.02, "wd": 0.1}
    trainers = [
        gluon.Trainer(weights, "adamw", {**own, **first}),
        gluon.Trainer(others, "adamw", own),
    ]
    for _ in range(4):
        with autograd.record():
            loss = (net(nd.ones((5, 4))) ** 2).sum()
        loss.backward()
        for trainer in trainers:
            trainer.step(5)
    wanted = values(net)
    net = network()
    trainer = gluon.Trainer(groups_of(net, first), "adamw", own)
    for _ in range(4):
        with autograd.record():
            loss = (net(nd.ones((5, 4))) ** 2).sum()
        loss.backward()
        trainer.step(5)
    same(values(net), wanted)
    (key,) = first
    assert [group[key] for group in trainer.param_groups] == [
        first[key],
        getattr(mx.optimizer.AdamW(), key),
    ]


def test_groups_may_have_optimizers_of_their_own():
    net = network()
    weights, others = (group["params"] for group in groups_of(net))
    trainers = [
        gluon.Trainer(weights, "muon", {"learning_rate": 0.02}),
        gluon.Trainer(others, "adamw", {"learning_rate": 0.01}),
    ]
    for _ in range(4):
        with autograd.record():
            loss = (net(nd.ones((5, 4))) ** 2).sum()
        loss.backward()
        for trainer in trainers:
            trainer.step(5)
    wanted = values(net)
    net = network()
    groups = groups_of(net, {"lr": 0.02}, {"optimizer": "adamw", "lr": 0.01})
    trainer = gluon.Trainer(groups, "muon")
    for _ in range(4):
        with autograd.record():
            loss = (net(nd.ones((5, 4))) ** 2).sum()
        loss.backward()
        trainer.step(5)
    same(values(net), wanted)
    assert trainer.param_groups[0]["momentum"] == 0.95
    assert trainer.param_groups[1]["weight_decay"] == 0.01


def test_assigned_options_change_the_next_update():
    def run(change):
        net = network()
        trainer = gluon.Trainer(groups_of(net), "adamw", {"learning_rate": 0.01})
        train(net, trainer, 3)
        change(trainer.param_groups)
        return train(net, trainer, 1)

    before = run(lambda groups: None)

    def assign(key, value):
        def change(groups):
            groups[0][key] = value
            assert groups[0][key] == value
            assert groups[1][key] != value

        return change

    for key, value in (("lr", 0.05), ("weight_decay", 0.5), ("beta1", 0.3)):
        after = run(assign(key, value))
        changed = {name for name in after if (after[name] != before[name]).any()}
        assert changed == {name for name in after if "weight" in name}, key


def test_set_learning_rate_scales_all_groups():
    trainer = gluon.Trainer(
        groups_of(network(), {"lr": 0.1}, {"optimizer": "adamw"}), "sgd", {"learning_rate": 0.2}
    )
    trainer.set_learning_rate(0.1)
    assert trainer.learning_rate == 0.1
    assert [group["lr"] for group in trainer.param_groups] == [0.05, 0.0005]


def test_rates_of_groups_stay_in_proportion_after_a_rate_of_zero():
    groups = groups_of(network(), {"lr": 0.5}, {"lr": 0})
    trainer = gluon.Trainer(groups, "sgd", {"learning_rate": 0.25})
    rates = []
    for lr in (0, 0.125, 0, 0, 0.25):
        trainer.set_learning_rate(lr)
        rates.append([group["lr"] for group in trainer.param_groups])
    assert rates == [[0, 0], [0.25, 0], [0, 0], [0, 0], [0.5, 0]]
    trainer.param_groups[1]["lr"] = 1.0
    trainer.set_learning_rate(0)
    trainer.set_learning_rate(0.5)
    assert [group["lr"] for group in trainer.param_groups] == [1.0, 2.0]


def test_schedulers_that_are_assigned_later_scale_the_rates_of_all_groups():
    trainer = gluon.Trainer(groups_of(network(), {"lr": 0.5}), "sgd", {"learning_rate": 0.25})
    trainer.param_groups[0]["lr"] = 1.0
    for base in (0.125, 0.5):
        trainer.optimizer.lr_scheduler = FactorScheduler(1, 0.5, base_lr=base)
        assert [group["lr"] for group in trainer.param_groups] == [4 * base, base]
    trainer.param_groups[0]["initial_lr"] = 0.25
    assert [group["lr"] for group in trainer.param_groups] == [0.25, 0.5]


def test_no_learning_rate_in_a_group_is_that_of_the_trainer():
    groups = groups_of(network(), {"lr": None}, {"lr": None, "optimizer": "adamw"})
    trainer = gluon.Trainer(groups, "sgd", {"learning_rate": 0.25})
    assert [group["lr"] for group in trainer.param_groups] == [0.25, 0.001]


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda: FactorScheduler(2, 0.5, base_lr=0.25, warmup_steps=2),
        lambda: CosineScheduler(8, base_lr=0.25, warmup_steps=2),
    ],
)
def test_schedulers_scale_the_rates_of_all_groups(scheduler):
    net = network()
    groups = groups_of(net, {"lr": 0.125})
    trainer = gluon.Trainer(groups, "sgd", {"lr_scheduler": scheduler()})
    rates, reference = [], scheduler()
    for step in range(1, 7):
        train(net, trainer, 1)
        rates.append([group["lr"] for group in trainer.param_groups])
        assert rates[-1] == [reference(step) * 0.5, reference(step)]
    assert len({rate for rate, _ in rates}) > 2
    assert [group["initial_lr"] for group in trainer.param_groups] == [0.125, 0.25]
    with pytest.raises(UserWarning, match="assign 'initial_lr'"):
        trainer.param_groups[0]["lr"] = 0.1
    trainer.param_groups[0]["initial_lr"] = 0.0625
    assert trainer.param_groups[0]["lr"] == reference(6) * 0.25
    # the same rates, by multipliers
    net = network()
    net.collect_params(".*weight").setattr("lr_mult", 0.5)
    wanted = train(net, gluon.Trainer(net, "sgd", {"lr_scheduler": scheduler()}))
    net = network()
    trainer = gluon.Trainer(groups_of(net, {"lr": 0.125}), "sgd", {"lr_scheduler": scheduler()})
    same(train(net, trainer), wanted)


def test_groups_share_a_function_as_scheduler():
    net = network()
    function = lambda update: 0.5 / update
    wanted = train(net, gluon.Trainer(net, "adamw", {"lr_scheduler": function}))
    net = network()
    trainer = gluon.Trainer(groups_of(net), "adamw", {"lr_scheduler": function})
    same(train(net, trainer), wanted)
    with pytest.raises(ValueError, match="base_lr is None"):
        gluon.Trainer(groups_of(net, {"lr": 1}), "adamw", {"lr_scheduler": function})


def test_parameters_outside_of_groups_are_not_updated():
    net = network()
    before = values(net)
    after = train(net, gluon.Trainer([{"params": net[0].collect_params()}], "adamw"))
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed == {"net_dense0_weight", "net_dense0_bias"}


def test_groups_accept_blocks_iterables_and_single_parameters():
    net = network()
    groups = [
        {"params": net[0]},
        {"params": list(net[1].collect_params().values())},
        {"params": net[2].weight},
        {"params": (param for param in [net[2].bias])},
    ]
    trainer = gluon.Trainer(groups, "adamw")
    names = [[param.name for param in group["params"]] for group in trainer.param_groups]
    assert list(map(len, names)) == [2, 2, 1, 1]
    assert names[2:] == [[net[2].weight.name], [net[2].bias.name]]
    assert "'params': [net_dense0_bias, net_dense0_weight], 'lr': 0.001" in repr(
        trainer.param_groups[0]
    )


def test_groups_of_a_trainer_are_groups_for_another():
    net = network()
    groups = gluon.Trainer(groups_of(net, {"lr": 0.5}), "adamw").param_groups
    other = gluon.Trainer(groups, "adamw", {"learning_rate": 0.25})
    assert [group["lr"] for group in other.param_groups] == [0.5, 0.001]
    assert other.param_groups == groups


@pytest.mark.parametrize("grouped", [False, True])
def test_optimizers_keep_an_attribute_called_groups(grouped):
    class Blocked(mx.optimizer.SGD):
        def __init__(self, groups=4, **options):
            super().__init__(**options)
            self.groups = groups

    net, optimizer = network(), Blocked()
    train(net, gluon.Trainer(groups_of(net) if grouped else net, optimizer))
    assert optimizer.groups == 4


def test_trainers_without_groups_have_one():
    net = network()
    trainer = gluon.Trainer(net, "adamw", {"learning_rate": 0.5})
    (group,) = trainer.param_groups
    assert len(group["params"]) == 6 and group["lr"] == 0.5
    group["lr"] = 0.25
    assert trainer.learning_rate == 0.25
    assert dict(group)["weight_decay"] == 0.01


@pytest.mark.parametrize(
    "groups, options, words",
    [
        (lambda n: [*groups_of(n), {"params": n[0].weight}], {}, "'net_dense0_weight' is in group"),
        (
            lambda n: groups_of(n, {"lrr": 1}),
            {},
            "group 0: AdamW has no option 'lrr'.*it takes.*wd",
        ),
        (lambda n: groups_of(n, {"lr": 1, "learning_rate": 1}), {}, "the same option"),
        (lambda n: groups_of(n, {"lr": -1}), {}, "group 0: learning_rate must be at least 0"),
        (lambda n: groups_of(n, {"lr_scheduler": 1}), {}, "'lr_scheduler' applies to all groups"),
        (lambda n: groups_of(n, {"optimizer": "adamv"}), {}, "group 0: unknown optimizer 'adamv'"),
        (lambda n: [{"lr": 1}], {}, "key 'params', but group 0 is"),
        (lambda n: [{"params": n}, n[0].weight], {}, "group 1 is a Parameter"),
        (lambda n: [{"params": "weight"}], {}, "'params' of group 0 must be .*, got <class 'str'>"),
        (lambda n: [{"params": [1]}], {}, "'params' of group 0 must be .*, got list of .*int"),
        (
            lambda n: groups_of(n, {"lr": 1}),
            {"lr_scheduler": FactorScheduler(1, base_lr=0)},
            "positive base_lr, but its base_lr is 0",
        ),
    ],
)
def test_invalid_groups_raise(groups, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        gluon.Trainer(groups(network()), "adamw", options)


def test_groups_of_an_optimizer_object_set_rates_and_decays_only():
    net = network()
    adamw = mx.optimizer.AdamW(beta1=0.5)
    trainer = gluon.Trainer(groups_of(net, {"lr": 0.5, "wd": 0.25}), adamw)
    assert trainer.param_groups[0]["beta1"] == 0.5
    assert [group["lr"] for group in trainer.param_groups] == [0.5, 0.001]
    with pytest.raises(ValueError, match="only if the Trainer creates the optimizer"):
        gluon.Trainer(groups_of(net, {"beta1": 0.5}), mx.optimizer.AdamW())
    with pytest.raises(TypeError, match="no option 'betas'"):
        gluon.Trainer(groups_of(net, {"betas": 0.5}), mx.optimizer.AdamW())


def test_invalid_assignments_raise_and_change_nothing():
    (group, _) = gluon.Trainer(groups_of(network()), "adamw").param_groups
    for key, value, error, words in (
        ("lr", -1, ValueError, "learning_rate must be at least 0"),
        ("beta1", 2, ValueError, "beta1 must be"),
        ("params", [], TypeError, "create a new Trainer"),
        ("multi_precision", True, ValueError, "create a new Trainer"),
        ("betas", (1, 2), KeyError, "the group has params, lr"),
    ):
        before = dict(group)
        with pytest.raises(error, match=words):
            group[key] = value
        assert dict(group) == before
    with pytest.raises(TypeError, match="cannot be deleted"):
        del group["lr"]


# --- Files ---


def mixed(net, lr=0.02):
    groups = groups_of(net, {"lr": lr}, {"optimizer": "adamw", "lr": 0.01})
    return gluon.Trainer(groups, "muon")


def test_saved_states_continue_with_the_rates_of_groups(tmp_path):
    net = network()
    trainer = mixed(net)
    train(net, trainer)
    trainer.param_groups[0]["lr"] = 0.005
    net.save_parameters(str(tmp_path / "p"))
    trainer.save_states(str(tmp_path / "s"))
    par.save(str(tmp_path / "checkpoint"), net, trainer)
    wanted = train(net, trainer, seed=1)
    for way in ("states", "checkpoint"):
        other = network(seed=5)
        other_trainer = mixed(other)
        if way == "states":
            other.load_parameters(str(tmp_path / "p"))
            other_trainer.load_states(str(tmp_path / "s"))
        else:
            par.load(str(tmp_path / "checkpoint"), other, other_trainer)
        assert other_trainer.param_groups[0]["lr"] == 0.005
        same(train(other, other_trainer, seed=1), wanted)


def test_states_of_another_optimizer_in_a_group_raise(tmp_path):
    net = network()
    trainer = mixed(net)
    train(net, trainer)
    trainer.save_states(str(tmp_path / "s"))
    groups = groups_of(net, {}, {"optimizer": "adam"})
    with pytest.raises(mx.MXNetError, match="group 1 .*AdamW.*Adam"):
        gluon.Trainer(groups, "muon").load_states(str(tmp_path / "s"))


def test_states_load_into_another_division_into_groups(tmp_path):
    net = network()
    trainer = gluon.Trainer(groups_of(net, {"lr": 0.02}), "adamw", {"learning_rate": 0.01})
    train(net, trainer)
    net.save_parameters(str(tmp_path / "p"))
    trainer.save_states(str(tmp_path / "s"))
    other = network(seed=4)
    other.load_parameters(str(tmp_path / "p"))
    single = gluon.Trainer(other, "adamw", {"learning_rate": 0.5})
    single.load_states(str(tmp_path / "s"))
    assert single.learning_rate == 0.01
    one = [{"params": other, "lr": 0.02}]
    trainer_of_one = gluon.Trainer(one, "adamw", {"learning_rate": 0.01})
    trainer_of_one.load_states(str(tmp_path / "s"))
    assert trainer_of_one.param_groups[0]["lr"] == 0.02


def test_rates_stay_in_proportion_after_states_of_another_division_are_loaded(tmp_path):
    net = network()
    trainer = gluon.Trainer(net, "adamw", {"learning_rate": 0.25})
    train(net, trainer)
    trainer.set_learning_rate(0.0625)
    trainer.save_states(str(tmp_path / "s"))
    trainer = gluon.Trainer(groups_of(net, {"lr": 0.5}), "adamw", {"learning_rate": 0.25})
    trainer.load_states(str(tmp_path / "s"))
    trainer.set_learning_rate(0.125)
    assert [group["lr"] for group in trainer.param_groups] == [0.25, 0.125]


def test_loaded_rates_of_groups_stay_in_proportion_after_a_rate_of_zero(tmp_path):
    net = network()
    trainer = gluon.Trainer(groups_of(net, {"lr": 0.5}), "adamw", {"learning_rate": 0.25})
    train(net, trainer)
    trainer.save_states(str(tmp_path / "s"))
    trainer = gluon.Trainer(groups_of(net, {"lr": 0.25}), "adamw", {"learning_rate": 0.25})
    trainer.set_learning_rate(0)
    trainer.load_states(str(tmp_path / "s"))
    for lr in (0, 0.125):
        trainer.set_learning_rate(lr)
    assert [group["lr"] for group in trainer.param_groups] == [0.25, 0.125]


def test_pickled_optimizers_keep_their_groups():
    net = network()
    optimizer = pickle.loads(pickle.dumps(mixed(net).optimizer))
    kinds = {type(optimizer.of(index)).__name__ for index in range(6)}
    assert kinds == {"Muon", "AdamW"}
    weight = nd.ones((2,))
    index = next(i for i in range(6) if type(optimizer.of(i)).__name__ == "AdamW")
    mx.optimizer.get_updater(optimizer)(index, nd.ones((2,)), weight)
    np.testing.assert_allclose(weight.asnumpy(), 1 - 0.01 * 0.01 - 0.01, rtol=1e-5)
    assert optimizer.num_update == 1 == optimizer.of(index).num_update


# --- Placements ---

PLAN = {"0": "column", "1": "row"}


def trained(net, name, mesh=None, steps=3, **options):
    groups = groups_of(net, {"lr": 0.02}, {"weight_decay": 0.0})
    if name == "muon":
        groups[1]["optimizer"] = "adamw"
    trainer = gluon.Trainer(groups, name, {"wd": 0.1}, **options)
    rng = np.random.RandomState(0)
    for _ in range(steps):
        x = nd.array(rng.uniform(-1, 1, (4, 4)))
        parts = [x] if mesh is None else mesh.split_and_load(x)
        with autograd.record():
            losses = [(net(part) ** 2).sum() for part in parts]
        autograd.backward(losses)
        trainer.step(4)
    return values(net), trainer


def plain(name, **options):
    return trained(network(norm=False), name, **options)[0]


@pytest.mark.parametrize("name", ["adamw", "lamb", "adafactor", "muon"])
def test_groups_train_split_layers_like_whole_ones(name):
    net = network(norm=False)
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(6, in_units=4, activation="tanh"), nn.Dense(3, in_units=6))
    par.shard(net, PLAN, [on(0), on(1)])
    net.initialize(mx.init.Xavier())
    close_by_name(plain(name), trained(net, name)[0])


@pytest.mark.parametrize("name", ["adamw", "lamb", "adafactor", "muon"])
def test_groups_train_replicas_with_the_same_bits(name):
    def run(**options):
        mx.random.seed(0)
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(nn.Dense(6, in_units=4, activation="tanh"), nn.Dense(3, in_units=6))
        mesh = par.Mesh({"data": 2}, devices=[on(0), on(1)])
        mesh.place(net)
        net.initialize(mx.init.Xavier())
        return trained(net, name, mesh, **options)

    first, _ = run()
    close_by_name(plain(name), first)
    for options in ({"shard_updates": True}, {"update_on_kvstore": False}):
        found, trainer = run(**options)
        same(found, first)
        if "shard_updates" in options:
            states = [len(updater.states) for updater in trainer._state.by_device.values()]
            assert sum(states) == 4


@pytest.mark.parametrize("name", ["adamw", "lion", "adafactor", "muon"])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_global_norm": 0.1}], ids=str)
def test_groups_train_placed_layers_with_the_same_bits(name, options):
    net = network(norm=False)
    net.place({"0": on(0), "1": on(1)})
    same(trained(net, name, steps=4, **options)[0], plain(name, steps=4, **options))


def test_groups_work_with_train_steps():
    def run(placed):
        net = network()
        if placed:
            net.place({"0": on(0), "1": on(1), "2": on(1)})
        groups = groups_of(net, {"lr": 0.02}, {"weight_decay": 0.0})
        trainer = gluon.Trainer(groups, "adamw")
        step = par.TrainStep(net, gluon.loss.L2Loss(), trainer, par.Pipeline(2))
        for seed in range(3):
            rng = np.random.RandomState(seed)
            x, y = (nd.array(rng.uniform(-1, 1, (4, size))) for size in (4, 3))
            step(x, y)
        return values(net)

    same(run(False), run(True))


def test_parts_of_a_split_parameter_must_be_in_one_group():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(6, in_units=4), nn.Dense(3, in_units=6))
    par.shard(net, PLAN, [on(0), on(1)])
    net.initialize()
    groups = [
        {"params": net.collect_params(".*shard0.*")},
        {"params": net.collect_params(".*shard1.*")},
    ]
    with pytest.raises(ValueError, match="put all parts into one group"):
        gluon.Trainer(groups, "adamw")
