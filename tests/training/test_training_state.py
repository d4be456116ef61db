"""Training state is moved, saved and loaded as a whole at any point of a step."""

import copy
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.gluon.trainer import set_loss_scaler
from support.calls import raises
from support.devices import on
from support.training import backward, backward_of, network, same, train, values

CPU = [mx.cpu(i) for i in range(4)]
OPTIMIZERS = {
    "sgd": {"momentum": 0.9},
    "adam": {},
    "adamax": {},
    "nadam": {},
    "ftml": {},
    "lamb": {},
    "adagrad": {},
    "lbsgd": {"momentum": 0.9},
    "sgld": {},
}


def trainer_of(net, optimizer="adam", **options):
    chosen = {"learning_rate": 0.1, **OPTIMIZERS[optimizer]}
    return gluon.Trainer(net.collect_params(), optimizer, chosen, **options)


def placed(net, devices, capsys):
    net.place({str(i): CPU[d] for i, d in enumerate(devices)})
    capsys.readouterr()


def events(folder, capsys):
    """Returns functions that move, save or reload a network and a trainer, which then continue."""

    def checkpoint(net, trainer, remake, to=None):
        mx.parallel.save(folder, net, trainer)
        net, trainer = remake()
        if to is not None:
            placed(net, to, capsys)
        mx.parallel.load(folder, net, trainer)
        return net, trainer

    def states(net, trainer, remake, to=None):
        net.save_parameters(str(folder / "p"))
        trainer.save_states(str(folder / "s"))
        state = mx.random.get_state()
        net, trainer = remake()
        mx.random.set_state(state)
        net.load_parameters(str(folder / "p"))
        trainer.load_states(str(folder / "s"))
        if to is not None:
            placed(net, to, capsys)
        return net, trainer

    def moved(how):
        def move(net, trainer, remake):
            how(net)
            return net, trainer

        return move

    return {
        "place": moved(lambda net: placed(net, [0, 1], capsys)),
        "place back and forth": moved(
            lambda net: [placed(net, to, capsys) for to in ([2, 1], [0, 0], [1, 0])]
        ),
        "reset_ctx": moved(lambda net: net.reset_ctx(CPU[2])),
        "cast": moved(lambda net: net.cast("float32")),
        "checkpoint": checkpoint,
        "checkpoint onto two": lambda *args: checkpoint(*args, to=[0, 1]),
        "states": states,
        "states, then place": lambda *args: states(*args, to=[1, 0]),
    }


KINDS = {"each step": {}, "accumulate": {"accumulate": 3}, "clip": {"clip_global_norm": 0.5}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_moving_saving_or_loading_keeps_the_bits_of_training(optimizer, kind, tmp_path, capsys):
    """Holds at any step, before it and between its backward and update."""

    def remake():
        net = network()
        return net, trainer_of(net, optimizer, **KINDS[kind])

    def run(event=None, at=None, between=False):
        net, trainer = remake()
        for i in range(5):
            if i == at and not between:
                net, trainer = event(net, trainer, remake)
            backward(net, i)
            if i == at and between:
                net, trainer = event(net, trainer, remake)
            trainer.step(5)
        return net

    expected = run()
    for number, (name, event) in enumerate(events(tmp_path, capsys).items()):
        for between in (False, True):
            at = 1 + (number + between) % 4
            assert same(expected, run(event, at, between)), (name, at, between)


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_of_grad_req_add_move_and_are_saved(sparse, tmp_path, capsys):
    """Gradient sums of grad_req='add' are part of the state, as those of accumulate."""

    def remake():
        mx.random.seed(1)
        net = nn.HybridSequential(prefix="e_")
        with net.name_scope():
            net.add(nn.Embedding(6, 3, sparse_grad=sparse), nn.Dense(2, in_units=3, flatten=False))
        net.initialize(mx.init.Xavier())
        net.collect_params().setattr("grad_req", "add")
        return net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})

    def run(event=None, at=None):
        net, trainer = remake()
        for i in range(6):
            if i == at:
                net, trainer = event(net, trainer, remake)
            ctx = net[0].weight.list_ctx()[0]
            backward_of(lambda: (net(nd.array([[i % 6, 1, (i + 2) % 6]], ctx=ctx)) ** 2).sum())
            if i % 3 == 2:
                trainer.step(3)
                net.collect_params().zero_grad()
        return net

    expected = run()
    for name, event in events(tmp_path, capsys).items():
        for at in (2, 3, 5):
            assert same(expected, run(event, at)), (name, at)


@pytest.mark.parametrize("way", ["checkpoint", "states"])
def test_load_discards_later_steps_and_gradients(way, tmp_path):
    """A load replaces the phase and sums of accumulate, stray gradients and the schedule."""

    def run(stray, unused):
        net = network()
        schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.1)
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", {"lr_scheduler": schedule}, accumulate=2
        )
        train(net, trainer, 0, 3)
        if way == "checkpoint":
            mx.parallel.save(tmp_path, net, trainer)
        else:
            net.save_parameters(str(tmp_path / "p"))
            trainer.save_states(str(tmp_path / "s"))
        train(net, trainer, 20, 20 + stray)
        if unused:
            backward(net, 30)
        if way == "checkpoint":
            mx.parallel.load(tmp_path, net, trainer)
        else:
            net.load_parameters(str(tmp_path / "p"))
            trainer.load_states(str(tmp_path / "s"))
        train(net, trainer, 3, 7)
        return net

    expected = run(0, False)
    for stray in (0, 1, 2, 5):
        assert same(expected, run(stray, True)), stray


def test_load_within_accumulation_into_a_network_of_unknown_shapes(tmp_path):
    net = network()
    trainer = trainer_of(net, accumulate=3)
    train(net, trainer, 0, 4)
    mx.parallel.save(tmp_path, net, trainer)
    other = nn.HybridSequential(prefix="n_")
    with other.name_scope():
        other.add(nn.Dense(4, activation="tanh"), nn.Dense(2))
    other.initialize()
    resumed = trainer_of(other, accumulate=3)
    mx.parallel.load(tmp_path, other, resumed)
    for each in ((net, trainer), (other, resumed)):
        train(*each, 4, 8)
    assert same(net, other)


def test_states_follow_recreated_replicas():
    """A recreated replica has the current momentum, not that of its former existence."""

    def run(*contexts):
        net = network()
        trainer = trainer_of(net, "sgd")
        for i, ctx in enumerate(contexts):
            net.reset_ctx(ctx)
            parts = gluon.utils.split_and_load(nd.array(np.eye(4, 3) + i), ctx)
            with autograd.record():
                losses = [(net(x) ** 2).sum() for x in parts]
            autograd.backward(losses)
            trainer.step(4)
        return net, trainer

    both = CPU[:2]
    net, trainer = run(both, [CPU[0]], [CPU[0]], both, both)
    expected, _ = run(both, [CPU[2]], [CPU[2]], both, both)
    for one in (net, expected):
        for param in one.collect_params().values():
            a, b = param.list_data()
            assert (a.asnumpy() == b.asnumpy()).all()
    assert same(net, expected)


def test_merged_replicas_keep_the_sum_of_their_gradients():
    param = gluon.Parameter("p", shape=(2,))
    param.initialize(ctx=CPU[:3])
    with autograd.record():
        losses = [(param.data(ctx) * (i + 1)).sum() for i, ctx in enumerate(CPU[:3])]
    autograd.backward(losses)
    param.reset_ctx(CPU[3])
    assert param.grad().asnumpy().tolist() == [6, 6]
    param.reset_ctx(CPU[:2])
    assert [grad.asnumpy().tolist() for grad in param.list_grad()] == [[6, 6], [0, 0]]
    trainer = gluon.Trainer([param], "sgd", {"learning_rate": 1.0})
    before = param.list_data()[0].asnumpy()
    trainer.step(1)  # no gradient is stale
    for data in param.list_data():
        assert np.allclose(data.asnumpy(), before - 6)


def test_error_after_a_move_between_forward_and_backward_names_it(capsys):
    net = network()
    trainer = trainer_of(net, "sgd")
    with autograd.record():
        loss = net(nd.ones((2, 3))).sum()
    placed(net, [1, 1], capsys)
    loss.backward()
    raises(UserWarning, "moved or cast", lambda: trainer.step(2))


def test_copied_networks_keep_gradient_sums_but_no_trainer():
    net = network()
    trainer = trainer_of(net, "sgd", accumulate=2)
    train(net, trainer, 0, 3)
    copied = copy.deepcopy(net)
    for one, other in zip(net.collect_params().values(), copied.collect_params().values()):
        for two in (other, pickle.loads(pickle.dumps(one))):
            assert (one.grad().asnumpy() == two.grad().asnumpy()).all()
            assert two.grad_req == "add" and abs(two.grad().asnumpy()).sum() > 0
    new = trainer_of(copied, "sgd", accumulate=2)  # starts with zero sums
    assert all(not p.grad().asnumpy().any() for p in copied.collect_params().values())
    train(copied, new, 0, 2)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_a_trainer_raises_and_suggests_save_states(how):
    net = network()
    trainer = trainer_of(net)
    train(net, trainer, 0, 2)
    raises(TypeError, "save_states", lambda: how(trainer))


def test_incompatible_state_raises_and_changes_nothing(tmp_path):
    """The loading trainer cannot represent the saved sums and phases."""
    net = network()
    trainer = trainer_of(net, "sgd", accumulate=3)
    train(net, trainer, 0, 2)
    name = str(tmp_path / "s")
    trainer.save_states(name)
    mx.parallel.save(tmp_path, net, trainer)
    plain = network()
    other = trainer_of(plain, "sgd")
    before = values(plain)
    for load in (other.load_states, lambda _: mx.parallel.load(tmp_path, plain, other)):
        raises(mx.MXNetError, "create the trainer with the same accumulate=", lambda: load(name))
    assert all(np.array_equal(a, b) for a, b in zip(before, values(plain)))
    other = trainer_of(plain, "sgd", accumulate=3)
    plain.collect_params().setattr("grad_req", "write")
    raises(mx.MXNetError, "grad_req 'add'", lambda: other.load_states(name))
    backward(plain, 0)
    raises(mx.MXNetError, "set it to 'add'", lambda: other.step(5))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_of_lbsgd_follow_their_parameter(tmp_path, dtype, capsys):
    """The training state includes gradients in the middle of a batch of `batch_scale`."""
    options = {"momentum": 0.9, "learning_rate": 0.01, "batch_scale": 3, "updates_per_epoch": 2}
    options["multi_precision"] = dtype == "float16"

    def make():
        net = network()
        net.cast(dtype)
        return net, gluon.Trainer(net.collect_params(), "lbsgd", options)

    wanted, its_trainer = make()
    train(wanted, its_trainer, 0, 7)
    net, trainer = make()
    train(net, trainer, 0, 4)
    mx.parallel.save(tmp_path, net, trainer)
    trainer.save_states(str(tmp_path / "s"))
    placed(net, [1, 0], capsys)
    loaded, other = make()
    mx.parallel.load(tmp_path, loaded, other)
    before = copy.deepcopy(loaded)
    third = gluon.Trainer(before.collect_params(), "lbsgd", options)
    third.load_states(str(tmp_path / "s"))
    for found, found_trainer in ((net, trainer), (loaded, other), (before, third)):
        train(found, found_trainer, 4, 7)
        assert same(found, wanted)


@pytest.mark.parametrize(
    "options", [{}, {"update_on_kvstore": False}, {"shard_updates": True}], ids=str
)
def test_lbsgd_of_replicas_equals_one_device(options):
    results = []
    for devices in (CPU[:1], CPU[:2]):
        net = network()
        net.collect_params().reset_ctx(devices)
        trainer = gluon.Trainer(net.collect_params(), "lbsgd", {"batch_scale": 2}, **options)
        for i in range(5):
            with autograd.record():
                losses = [(net(nd.ones((4, 3), ctx=ctx) * i) ** 2).sum() for ctx in devices]
            autograd.backward(losses)
            trainer.step(4 * len(devices))
        results.append(values(net))
        for param in net.collect_params().values():
            copies = [array.asnumpy() for array in param.list_data()]
            assert all((copies[0] == other).all() for other in copies)
    assert all((a == b).all() for a, b in zip(*results))


def test_states_load_into_a_recreated_network(tmp_path):
    """Names that differ only in their counters match by position, including counters above 9."""
    name = str(tmp_path / "s")

    def make(units=4):
        mx.random.seed(1)
        net = nn.HybridSequential()
        for _ in range(12):
            net.add(nn.Dense(units, in_units=units))
        net.initialize(mx.init.Xavier())
        return net, gluon.Trainer(net.collect_params(), "adam")

    def step(net, trainer):
        backward_of(lambda: (net(nd.ones((2, 4))) ** 2).sum())
        trainer.step(1)

    net, trainer = make()
    step(net, trainer)
    trainer.save_states(name)
    net.save_parameters(str(tmp_path / "p"))
    step(net, trainer)
    again, its_trainer = make()
    again.load_parameters(str(tmp_path / "p"))
    its_trainer.load_states(name)
    step(again, its_trainer)
    assert same(net, again)
    raises(mx.MXNetError, "shape", lambda: make(units=5)[1].load_states(name))
    with pytest.raises(mx.MXNetError, match="does not have"):
        other = nn.Dense(4, in_units=4, prefix="head_")
        other.initialize()
        gluon.Trainer(other.collect_params(), "adam").load_states(name)


def test_loss_scale_is_saved_with_states(tmp_path):
    """A step after loading divides by the scale of its gradients."""

    def make():
        net = network()
        trainer = trainer_of(net, "sgd")
        set_loss_scaler(trainer, mx.contrib.amp.LossScaler())
        trainer._amp_loss_scaler.loss_scale = 8.0
        return net, trainer

    def pass_of(net, trainer):
        with autograd.record():
            loss = (net(nd.ones((5, 3))) ** 2).sum()
            with mx.contrib.amp.scale_loss(loss, trainer) as scaled:
                scaled.backward()

    net, trainer = make()
    pass_of(net, trainer)
    net.save_parameters(str(tmp_path / "p"))
    trainer.save_states(str(tmp_path / "s"))
    trainer.step(5)
    again, other = make()
    other._amp_loss_scaler.loss_scale = 2.0
    again.load_parameters(str(tmp_path / "p"))
    other.load_states(str(tmp_path / "s"))
    other.step(5)
    assert same(net, again) and other._amp_loss_scaler.loss_scale == 8.0
    with pytest.raises(mx.MXNetError, match="scales losses"):
        trainer_of(network(), "sgd").load_states(str(tmp_path / "s"))


class Noisy(mx.optimizer.Optimizer):
    """Draws the initial state, and several numbers in each update."""

    def create_state(self, index, weight):
        return nd.random.normal(shape=weight.shape, ctx=weight.context)

    def update(self, index, weight, grad, state):
        self._update_count(index)
        for _ in range(index % 3):
            weight += nd.random.uniform(shape=weight.shape, ctx=weight.context)
        weight[:] = weight - self._get_lr(index) * grad + state
        state[:] = nd.random.normal(shape=weight.shape, ctx=weight.context)


class NoisyLists(Noisy):
    """Receives lists of weights."""

    def __init__(self, **options):
        super().__init__(**options)
        self.aggregate_num = 4

    def update(self, index, weight, grad, state):
        for one in zip(index, weight, grad, state):
            super().update(*one)


class NoisySteps(mx.optimizer.SGD):
    def _step(self, indices, *others):
        return mx.optimizer.grouped.GroupedOptimizer._step(self, indices, *others)

    def _step_one(self, index, weight, grad, state, lr, wd):
        weight[:] = weight - lr * grad + nd.random.normal(shape=weight.shape, ctx=weight.context)


@pytest.mark.parametrize("optimizer", [mx.optimizer.SGLD, Noisy, NoisyLists, NoisySteps])
def test_random_updates_do_not_depend_on_placement(optimizer, capsys):
    """Each parameter has its own numbers, and all its replicas use the same ones."""

    def run(devices, replicas=None, **options):
        net = nn.HybridSequential(prefix="n_")
        with net.name_scope():
            for _ in range(3):
                net.add(nn.Dense(3, in_units=3))
        mx.random.seed(1)
        net.initialize(mx.init.Xavier(), ctx=replicas)
        if devices:
            placed(net, devices, capsys)
        trainer = gluon.Trainer(net.collect_params(), optimizer(learning_rate=0.1), **options)
        for _ in range(2):
            xs = [nd.ones((4, 3), ctx=ctx) for ctx in replicas or [net[0].weight.list_ctx()[0]]]
            with autograd.record():
                losses = [net(x).sum() for x in xs]
            autograd.backward(losses)
            trainer.step(4)
        return net

    expected = run(None)
    for devices in ([1, 1, 1], [0, 1, 0], [2, 1, 0]):
        assert same(expected, run(devices)), devices
    copies = [
        [param.list_data() for param in net.collect_params().values()]
        for net in (run(None, CPU[:2], update_on_kvstore=on_store) for on_store in (False, True))
    ]
    for replicas in zip(*copies):
        first, *others = [array.asnumpy() for arrays in replicas for array in arrays]
        for other in others:
            np.testing.assert_array_equal(first, other)


def test_random_state_advances_only_if_updates_draw():
    class Plain(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            self._update_count(index)
            weight -= self._get_lr(index) * grad

    layer = nn.Dense(2, in_units=2)
    layer.initialize()
    for optimizer in (Plain(), mx.optimizer.SGD(), Noisy(), mx.optimizer.SGLD()):
        trainer = gluon.Trainer(layer.collect_params(), optimizer)
        backward_of(lambda: layer(nd.ones((1, 2))))
        before = mx.random.get_state()
        trainer.step(1)
        assert (mx.random.get_state() != before) == isinstance(
            optimizer, (Noisy, mx.optimizer.SGLD)
        )


def test_updates_with_many_draws_share_no_numbers(tmp_path):
    class Many(mx.optimizer.Optimizer):
        def draw(self):
            return [float(mx.nd.random.uniform(shape=1).asscalar()) for _ in range(1500)]

        def create_state(self, index, weight):
            return self.draw()

        def update(self, index, weight, grad, state):
            state += self.draw()

    net = network()
    trainer = gluon.Trainer(net.collect_params(), Many())
    for i in range(2):
        backward(net, i)
        trainer.step(1)
    mx.parallel.save(tmp_path, net, trainer)
    after = mx.random.get_state()
    draws = np.concatenate([*trainer._state.all_states().values(), Many().draw()])
    assert len(draws) == 1500 * (4 * 3 + 1)
    # Floats in [0, 1) may coincide by chance, but not runs of them.
    pairs = list(zip(draws[:-1], draws[1:]))
    assert len(set(pairs)) > len(pairs) - 4
    mx.parallel.load(tmp_path, net, trainer)
    assert mx.random.get_state() == after


def test_overflow_discards_sums_of_row_sparse_gradients():
    layer = nn.Embedding(4, 2, sparse_grad=True)
    layer.initialize(mx.init.One())
    trainer = gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 1.0}, accumulate=2)
    set_loss_scaler(trainer, mx.contrib.amp.LossScaler())

    def step(factor):
        with autograd.record():
            loss = layer(nd.array([1, 2])).sum() * factor
            with mx.contrib.amp.scale_loss(loss, trainer) as scaled:
                scaled.backward()
        trainer.step(1)

    step(float("inf"))
    step(1)
    step(1)
    step(1)
    assert np.allclose(layer.weight.data().asnumpy(), [[1, 1], [0, 0], [0, 0], [1, 1]])


def test_rate_of_unfrozen_layers_does_not_depend_on_placement(capsys):
    """The scheduler receives the same update number for all parameters."""

    def run(devices):
        net = network()
        if devices:
            placed(net, devices, capsys)
        schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.1)
        options = {"lr_scheduler": schedule, "learning_rate": 0.1}
        trainer = gluon.Trainer(net.collect_params(), "adam", options)
        for i, req in enumerate(["null", "null", "write", "write", "write", "write"]):
            for param in net[0].collect_params().values():
                param.grad_req = req
            train(net, trainer, i, i + 1)
        return net

    expected = run(None)
    assert same(expected, run([0, 1])) and same(expected, run([1, 0]))


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("optimizer", ["lbsgd", "lars", "sgd", "nadam"])
def test_rates_after_skipped_updates_do_not_depend_on_placement(optimizer, scheduled, capsys):
    def run(devices, **settings):
        net = network()
        if devices:
            placed(net, devices, capsys)
        options = {"learning_rate": 0.2}
        if optimizer in ("sgd", "lars"):
            options["momentum"] = 0.9
        if scheduled:
            options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=0.2)
        trainer = gluon.Trainer(net.collect_params(), optimizer, options)
        vars(trainer.optimizer).update(settings)
        for i, rate in enumerate([0.2, 0.1, 0.4, 0.05, 0.1, 0.3, 0.2]):
            if not scheduled:
                trainer.set_learning_rate(rate)
            with autograd.record():
                x = nd.array(np.random.RandomState(i).randn(4, 3), ctx=on((devices or [0])[0]))
                y = net[0](x) if i in (0, 3, 4, 5) else nd.ones((4, 4), ctx=x.context)
                if i != 4:
                    y = net[1](y.as_in_context(net[1].weight.list_ctx()[0]))
                loss = (y**2).sum()
            loss.backward()
            trainer.step(4, ignore_stale_grad=True)
        return net

    expected = run(None)
    for devices in ([0, 1], [1, 0]):
        assert same(expected, run(devices))
    assert same(expected, run(None, aggregate_num=1))  # several groups on one device


def test_never_updated_parameters_load_without_states(tmp_path):
    def make():
        net = network()
        return net, trainer_of(net)

    net, trainer = make()
    for param in net[0].collect_params().values():
        param.grad_req = "null"
    train(net, trainer, 0, 1)
    for param in net[0].collect_params().values():
        param.grad_req = "write"
    net.save_parameters(str(tmp_path / "p"))
    trainer.save_states(str(tmp_path / "s"))
    mx.parallel.save(tmp_path / "c", net, trainer)
    train(net, trainer, 1, 3)
    for way in ("states", "checkpoint"):
        other, its_trainer = make()
        if way == "states":
            other.load_parameters(str(tmp_path / "p"))
            its_trainer.load_states(str(tmp_path / "s"))
        else:
            mx.parallel.load(tmp_path / "c", other, its_trainer)
        train(other, its_trainer, 1, 3)
        assert same(net, other), way


MOVES = {
    "reset_ctx": lambda net: net.collect_params().reset_ctx(on(1)),
    "place": lambda net: net.place(on(1), verbose=False),
    "cast": lambda net: net.cast("float64"),
}


class Summed(gluon.HybridBlock):
    def __init__(self, kind):
        super().__init__()
        with self.name_scope():
            if kind == "sparse":
                self.layer = gluon.nn.Embedding(4, 3, sparse_grad=True)
            else:
                self.layer = gluon.nn.Dense(3, in_units=2)

    def hybrid_forward(self, F, x):
        return self.layer(x)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("kind", ["dense", "hybridized", "sparse"])
def test_move_between_forward_and_backward_raises_after_earlier_backward(kind, req, move):
    if kind == "sparse" and move == "cast":
        pytest.skip("indices are cast with the inputs")
    net = Summed(kind)
    net.initialize(ctx=on(0))
    if kind == "hybridized":
        net.hybridize()
    params = net.collect_params()
    params.setattr("grad_req", req)
    trainer = gluon.Trainer(params, "sgd", {"learning_rate": 0.1})

    def forward():
        param = next(iter(params.values()))
        with autograd.record():
            return net(nd.ones((2, 2), ctx=param.list_ctx()[0], dtype=param.dtype)).sum()

    forward().backward()  # these gradients exist when the parameters move
    loss = forward()
    MOVES[move](net)
    loss.backward()
    for _ in range(2):
        raises(UserWarning, "place, reset_ctx, cast", lambda: trainer.step(1))
    params.zero_grad()
    forward().backward()
    trainer.step(1)
    assert not any(param.left for param in params.values())


@pytest.mark.parametrize("hybridize", [False, True])
def test_move_after_backward_keeps_no_old_arrays(hybridize):
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize(ctx=on(0))
    if hybridize:
        net.hybridize()
    net.collect_params().setattr("grad_req", "add")
    backward_of(lambda: net(nd.ones((2, 2), ctx=on(0))).sum())
    net.collect_params().reset_ctx(on(1))
    assert not any(param.left for param in net.collect_params().values())


def test_states_of_one_number_per_row_are_loaded(tmp_path):
    net = network()
    trainer = gluon.Trainer(net.collect_params(".*weight"), "groupadagrad", {"learning_rate": 0.1})
    train(net, trainer, 0, 2)
    trainer.save_states(str(tmp_path / "states"))
    mx.parallel.save(tmp_path / "run", net, trainer)
    results = []
    for load in (
        lambda: trainer.load_states(str(tmp_path / "states")),
        lambda: mx.parallel.load(tmp_path / "run", net, trainer),
    ):
        mx.parallel.load(tmp_path / "run", net)
        load()
        train(net, trainer, 2, 4)
        results.append(values(net))
    assert all(np.array_equal(a, b) for a, b in zip(*results))


def test_lars_continues_with_the_rate_of_its_last_update(tmp_path):
    def trainer_with_schedule(net):
        schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.1)
        options = {"momentum": 0.9, "lr_scheduler": schedule}
        return gluon.Trainer(net.collect_params(), "lars", options)

    net = network()
    trainer = trainer_with_schedule(net)
    train(net, trainer, 0, 2)
    mx.parallel.save(tmp_path, net, trainer)
    other = network()
    resumed = trainer_with_schedule(other)
    mx.parallel.load(tmp_path, other, resumed)
    for each in ((net, trainer), (other, resumed)):
        train(*each, 2, 5)
    assert same(net, other)
