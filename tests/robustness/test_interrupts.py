"""Ctrl-C at any point: temporary changes are undone, and later work gives the same numbers as
without the interrupt.

Python runs signal handlers at function entry, after calls and at backward jumps of loops.
`interrupted` raises KeyboardInterrupt at these points of the package's code, one after the other.
`test_interval_timer_interrupts_leave_a_network_usable` uses real signals.
"""

import gc
import random
import signal
import threading
import time
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn
from support.failures import Session
from support.interrupts import check_clean, sweep

# Python reports exceptions from finalizers and garbage collector callbacks on stderr.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Deferred(gluon.HybridBlock):
    """Deferred shapes, a loop, a recomputed part and two devices."""

    def __init__(self):
        super().__init__(prefix="deferred_")
        with self.name_scope():
            self.first, self.norm, self.last = nn.Dense(6), nn.BatchNorm(), nn.Dense(3)

    def hybrid_forward(self, F, x):
        hidden = self.norm(self.first(x))
        rows, _ = F.contrib.foreach(
            lambda row, state: (row + state, F.tanh(row)),
            hidden,
            [F.zeros_like(x[0, :1]).broadcast_to((6,))][0],
        )
        return self.last(F.relu(rows).as_in_context(mx.cpu(1)))


def deferred(options):
    mx.random.seed(3)
    net = Deferred()
    net.initialize(mx.init.Xavier())
    net.last.initialize(mx.init.Xavier(), ctx=mx.cpu(1), force_reinit=True)
    if options is not None:
        net.hybridize(**options)
        net.first.hybridize(**{**options, "recompute": True})
    return net


def trained(net):
    x = nd.array(np.random.RandomState(1).rand(4, 5))
    with autograd.record():
        out = net(x)
    out.backward()
    return out.asnumpy().tobytes(), net.first.weight.grad().asnumpy().tobytes()


def at_places(few, many):
    """Runs a test with interrupts at a few places, and as a slow test at many."""
    return pytest.mark.parametrize("places", [few, pytest.param(many, marks=pytest.mark.slow)])


@at_places(8, 60)
@pytest.mark.parametrize("way", ["eager", "hybridized", "pipelined", "train step"])
def test_interrupts_of_each_operation_are_clean(way, tmp_path, places):
    (tmp_path / "kept").mkdir()
    (tmp_path / "other").mkdir()
    kept = Session(way)
    kept.step()
    kept.save(tmp_path / "kept")

    def again(session):
        session.load(tmp_path / "kept")
        mx.random.seed(9)
        return (
            session.step(),
            session.net.out.weight.data().asnumpy().tobytes(),
            session.net.norm.running_mean.data().asnumpy().tobytes(),
        )

    again(kept)
    expected = again(kept)

    def check(session):
        assert again(session) == expected, "the step after an interrupt differs"

    sweep(lambda: kept, Session.step, check, places)
    sweep(lambda: kept, lambda session: session.save(tmp_path / "other"), check, places)
    sweep(lambda: kept, lambda session: session.load(tmp_path / "kept"), check, places)
    sweep(lambda: Session(way), Session.step, check, places)  # includes compilation


@at_places(20, 200)
@pytest.mark.parametrize("options", [None, {}], ids=["eager", "hybridized"])
def test_interrupts_of_a_first_call_are_clean(options, places):
    expected = trained(deferred(options))

    def check(net):
        assert trained(net) == expected and trained(deferred(options)) == expected

    sweep(lambda: deferred(options), trained, check, places)


class Chain(gluon.nn.HybridSequential):
    """Three layers, for plans and checkpoints."""

    def __init__(self):
        super().__init__(prefix="chain_")
        with self.name_scope():
            self.add(
                nn.Dense(6, in_units=5, activation="relu"),
                nn.Dense(6, in_units=6),
                nn.Dense(2, in_units=6),
            )


def chain():
    mx.random.seed(4)
    net = Chain()
    net.initialize(mx.init.Xavier())
    return net, gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})


def step_of(net, trainer):
    x = nd.array(np.random.RandomState(1).rand(8, 5))
    with autograd.record():
        loss = (net(x) ** 2).mean()
    loss.backward()
    trainer.step(1)
    return loss.asscalar()


@at_places(6, 60)
def test_interrupted_checkpoints_are_whole(tmp_path, places):
    net, trainer = chain()
    step_of(net, trainer)
    mx.parallel.save(str(tmp_path / "kept"), net, trainer)
    expected = [step_of(net, trainer) for _ in range(2)]

    def load(thing, where="kept"):
        mx.parallel.load(str(tmp_path / where), *thing)

    def check(thing, where="kept"):
        load(thing, where)
        assert [step_of(*thing) for _ in range(2)] == expected

    sweep(chain, load, check, places)
    load((net, trainer))
    mx.parallel.save(str(tmp_path / "other"), net, trainer)
    # The folder holds the previous checkpoint or the new one
    sweep(
        lambda: (load((net, trainer)), (net, trainer))[1],
        lambda thing: mx.parallel.save(str(tmp_path / "other"), *thing),
        lambda thing: check(thing, "other"),
        places,
    )


@pytest.mark.slow
def test_interrupted_plans_are_clean():
    x, y = nd.array(np.random.RandomState(1).rand(8, 5)), nd.zeros((8, 2))
    expected = step_of(*chain())

    def plan(thing):
        devices = [mx.cpu(0), mx.cpu(1)]
        options = {"micro_batches": 2, "repeats": 1, "trials": 1}
        mx.parallel.plan(thing[0], x, devices, labels=y, loss=gluon.loss.L2Loss(), **options)

    def check(thing):
        assert all(param.list_ctx() == [mx.cpu(0)] for param in thing[0].collect_params().values())
        assert not any(block._forward_hooks for block in thing[0]._children.values())
        assert step_of(*thing) == expected

    sweep(chain, plan, check, 12)


@at_places(12, 150)
def test_interrupted_module_calls_are_clean(places):
    data = mx.sym.var("data")
    out = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), name="softmax")
    batch = mx.io.DataBatch([nd.ones((4, 5))], [nd.zeros((4,))])

    def run(module):
        if not module.binded:
            module.bind([("data", (4, 5))], [("softmax_label", (4,))])
        if not module.params_initialized:
            module.init_params(mx.init.One())
        if not module.optimizer_initialized:
            module.init_optimizer()
        module.forward_backward(batch)
        module.update()
        return module.get_outputs()[0].asnumpy().tobytes()

    expected = run(mx.mod.Module(out, label_names=["softmax_label"]))

    def check(module):
        assert run(mx.mod.Module(out, label_names=["softmax_label"])) == expected
        run(module)
        np.testing.assert_array_equal(np.isfinite(module.get_outputs()[0].asnumpy()), True)

    sweep(lambda: mx.mod.Module(out, label_names=["softmax_label"]), run, check, places)


def symbols():
    data = mx.sym.var("data")
    with mx.name.Prefix("m_"), mx.AttrScope(__mood__="good"), mx.util.np_shape(), mx.engine.bulk(3):
        return mx.sym.FullyConnected(data, num_hidden=3), gluon.nn.HybridSequential()


def test_interrupted_symbol_and_name_scopes_are_restored():
    sweep(lambda: None, lambda _: symbols(), lambda _: symbols(), 60)


def whole(read, make, work, places, heal=lambda thing: None):
    """Checks that each part that `read` returns by name has its value before `work` or its value
    after it, for interrupts at all `places`."""
    for _ in range(2):
        thing = make()
        before = read(thing)
        work(thing)
        after = read(thing)

    def check(thing):
        heal(thing)
        for name, value in read(thing).items():
            assert value in (before.get(name), after.get(name)), (
                f"{name} is neither what it was nor what it is to be"
            )

    sweep(make, work, check, places)


def bits(state):
    if isinstance(state, (tuple, list)):
        return tuple(map(bits, state))
    return state.asnumpy().tobytes() if isinstance(state, nd.NDArray) else state


def in_training(optimizer, steps, contexts=None, **options):
    """Returns a network with gradients after some steps."""
    mx.random.seed(4)
    net = Chain()
    net.initialize(mx.init.Xavier(), ctx=contexts)
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01}, **options)
    for number in range(steps + 1):
        losses = []
        with autograd.record():
            for ctx in contexts or [mx.cpu()]:
                losses.append(
                    (net(nd.array(np.random.RandomState(number).rand(4, 5), ctx=ctx)) ** 2).mean()
                )
        autograd.backward(losses)
        if number < steps:
            trainer.step(1)
    return net, trainer


def by_parameter(thing):
    """Returns the set of distinct (weight, state, number of updates) of the copies of each
    parameter."""
    net, trainer = thing
    found, every = {}, trainer.optimizer._all_index_update_counts
    for index, param in enumerate(trainer._params):
        found[param.name] = copies = set()
        for ctx, array in param.arrays.items():
            count = every.get(ctx.device_id, {}).get(index, 0)
            # An unused state is the same as no state
            copies.add(
                (
                    bits(array),
                    bits(trainer._state.updater(ctx).states.get(index)) if count else None,
                    count,
                )
            )
    found["waiting"] = trainer._state.waiting
    return found


SLOW_OPTIMIZERS = "adamax ftml ftrl lars nag rmsprop sgld signum".split()
OPTIMIZERS = "adam sgd adadelta lamb nadam dcasgd lbsgd".split()
SLOW = [(name, steps) for name in OPTIMIZERS + SLOW_OPTIMIZERS for steps in (0, 3)]


@pytest.mark.parametrize(
    "optimizer, steps, places",
    [(name, 2, 8) for name in OPTIMIZERS]
    + [pytest.param(*case, 60, marks=pytest.mark.slow) for case in SLOW],
)
def test_interrupted_step_updates_each_parameter_wholly_or_not(optimizer, steps, places):
    make = lambda: in_training(optimizer, steps)
    whole(by_parameter, make, lambda thing: thing[1].step(1), places)


EACH_COPY = {"update_on_kvstore": False}


def replicas(places, options, steps):
    """Checks that all copies are equal after further training, wherever a step was interrupted."""
    contexts = [mx.cpu(0), mx.cpu(1)]

    def check(thing):
        net, trainer = thing
        for number in range(2):
            x = nd.array(np.random.RandomState(9 + number).rand(4, 5))
            with autograd.record():
                losses = [(net(x.as_in_context(ctx)) ** 2).mean() for ctx in contexts]
            autograd.backward(losses)
            trainer.step(1)
        for copies in list(by_parameter(thing).values())[:-1]:
            assert len({copy[0] for copy in copies}) == 1
            assert options != EACH_COPY or len(copies) == 1

    sweep(
        lambda: in_training("adam", steps, contexts, **options),
        lambda thing: thing[1].step(1),
        check,
        places,
    )


@pytest.mark.parametrize(
    "options",
    [EACH_COPY, {}, {"shard_updates": True}, {"offload": {"states": mx.cpu(2)}}],
    ids=["updated", "on kvstore", "sharded", "offloaded"],
)
def test_replicas_are_equal_after_an_interrupted_step(options):
    replicas(6, options, 1)
    replicas(4, options, 3)


def test_interrupted_accumulating_step_is_atomic():
    """Either the call of step counts and an update resets the accumulated gradients, or nothing
    changes."""
    for steps in (0, 1):

        def read(thing):
            used = {param.name: bits(param.grad()) for param in thing[1]._params}
            return {"all": (*by_parameter(thing).items(), *used.items())}

        whole(
            lambda thing: {name: str(value) for name, value in read(thing).items()},
            lambda: in_training("adam", steps, accumulate=2),
            lambda thing: thing[1].step(1),
            25,
        )


def weights(net):
    return [bits(param.data()) for param in net.collect_params().values()]


def parameters(net):
    found = {}
    for name, param in net.collect_params().items():
        assert _core.dtype_name(param.dtype) == _core.dtype_name(param.data().dtype)
        if param.grad_req != "null":  # backward writes to the reported gradient array
            with autograd.record():
                out = (param.data() * 2).sum()
            out.backward()
            assert (param.grad().asnumpy() == 2).all() and param.grad().dtype == param.data().dtype
            param.zero_grad()
        found[name] = param.grad_req, str(param.data().dtype), param.list_ctx(), bits(param.data())
    return found


SETTINGS = {
    "add": lambda net: net.collect_params().setattr("grad_req", "add"),
    "null": lambda net: net.collect_params().setattr("grad_req", "null"),
    "write again": lambda net: (
        net.collect_params().setattr("grad_req", "null"),
        net.collect_params().setattr("grad_req", "write"),
    ),
    "cast": lambda net: net.cast("float64"),
    "reset_ctx": lambda net: net.reset_ctx(mx.cpu(1)),
    "set_data": lambda net: [
        param.set_data(nd.ones(param.shape)) for param in net.collect_params().values()
    ],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_interrupted_parameter_settings_can_be_repeated(name):
    net, change = chain()[0], SETTINGS[name]
    change(net)
    final = parameters(net)

    def check(net):
        parameters(net)
        change(net)
        assert parameters(net) == final

    sweep(lambda: chain()[0], change, check, 40 if name == "add" else 8)


def test_interrupted_initialization_can_be_completed_or_restarted():
    """Completing it initializes the remaining parameters. Restarting it gives the values of an
    uninterrupted run."""
    x = nd.array(np.random.RandomState(1).rand(4, 5))

    def initialize(net, again=False):
        mx.random.seed(4)
        net.initialize(mx.init.Xavier(), force_reinit=again)

    def trained(net):
        trainer = gluon.Trainer(net.collect_params(), "adam")
        with autograd.record():
            loss = net(x).sum()
        loss.backward()
        trainer.step(4)
        return weights(net)

    def unknown():
        net = nn.HybridSequential(prefix="late_")
        with net.name_scope():
            net.add(nn.Dense(3), nn.BatchNorm(), nn.Dense(2))
        return net

    for make in (Chain, unknown):
        net = make()
        initialize(net)
        expected = trained(net)

        def check(net, expected=expected):
            initialize(net, True)
            assert trained(net) == expected

        def go_on(net):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # parameters that are already initialized
                net.initialize(mx.init.Xavier())
            trained(net)

        sweep(make, initialize, check, 6)
        sweep(make, initialize, go_on, 6)


def test_interrupted_load_is_atomic(tmp_path):
    other = Chain()
    other.initialize(mx.init.One())
    other.save_parameters(str(tmp_path / "net"))
    full = str(tmp_path / "names")
    other.collect_params().save(full)
    everything = lambda thing: {"all": weights(thing[0])}
    whole(everything, chain, lambda thing: thing[0].load_parameters(str(tmp_path / "net")), 12)
    whole(everything, chain, lambda thing: thing[0].collect_params().load(full), 12)
    other = in_training("adam", 3)[1]
    other.save_states(str(tmp_path / "states"))
    whole(
        lambda thing: {"all": str(states(thing[1]))},
        lambda: in_training("adam", 1),
        lambda thing: thing[1].load_states(str(tmp_path / "states")),
        15,
    )


def states(trainer):
    arrays = {}
    return trainer._state.describe(
        arrays, {i: param.name for i, param in enumerate(trainer._params)}
    ), {name: bits(array) for name, array in arrays.items()}


def module_in_training(folder=None):
    data = mx.sym.var("data")
    out = mx.sym.SoftmaxOutput(
        mx.sym.BatchNorm(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), name="norm"),
        name="softmax",
    )
    module = mx.mod.Module(out, context=[mx.cpu(0), mx.cpu(1)])
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.init_params(mx.init.Constant(0.5))
    module.init_optimizer(optimizer="adam")
    return module


def of_executors(module):
    found = {}
    for executor in module._execs:
        for name in module._param_names:
            found.setdefault(name, []).append(bits(executor.arg_dict[name]))
        for name in module._aux_names:
            found.setdefault(name, []).append(bits(executor.aux_dict[name]))
    return found


def test_interrupted_module_set_params_is_atomic(tmp_path):
    module = module_in_training()
    arguments, auxiliary = (
        {name: array * 3 for name, array in part.items()} for part in module.get_params()
    )
    read = lambda module: {
        "all": (
            of_executors(module),
            [{name: bits(array) for name, array in part.items()} for part in module.get_params()],
        )
    }
    whole(read, module_in_training, lambda module: module.set_params(arguments, auxiliary), 10)
    whole(
        read,
        module_in_training,
        lambda module: module.set_params(arguments, auxiliary, allow_missing=True),
        6,
    )


def test_interrupted_module_update_keeps_copies_equal():
    batch = mx.io.DataBatch([nd.array(np.random.RandomState(1).rand(4, 5))], [nd.zeros((4,))])

    def check(module):
        module.forward_backward(batch)
        for name in module._param_names:  # all copies are equal
            assert len(set(of_executors(module)[name])) == 1
        module.update()

    def make():
        module = module_in_training()
        module.forward_backward(batch)
        return module

    sweep(make, lambda module: module.update(), check, 10)
    train = mx.io.NDArrayIter(np.random.RandomState(1).rand(8, 5).astype("float32"), np.zeros(8), 4)

    def fit(module):
        train.reset()
        module.fit(train, num_epoch=1, optimizer="adam", initializer=mx.init.Constant(0.5))

    sweep(module_in_training, fit, check, 8)


def test_interrupted_saves_keep_the_old_file_or_the_new(tmp_path):
    """An existing file is never lost."""
    net, trainer = in_training("adam", 1)
    module, store = module_in_training(), mx.kv.create()
    store.set_optimizer(mx.optimizer.create("adam"))
    store.init(1, nd.ones((2,)))
    store.push(1, nd.ones((2,)))
    path = str(tmp_path / "file")
    numbers = iter(range(10**6))
    ways = {
        "nd.save": lambda: nd.save(path, {"a": nd.full((3,), next(numbers))}),
        "parameters": lambda: net.save_parameters(path),
        "states": lambda: trainer.save_states(path),
        "symbol": lambda: module.symbol.save(path),
        "module": lambda: module.save_params(path),
        "states of a module": lambda: module.save_optimizer_states(path),
        "states of a store": lambda: store.save_optimizer_states(path),
        "a network": lambda: net.save(path),
        "a checkpoint": lambda: module.save_checkpoint(path, 1, True),
    }
    for name, save in ways.items():
        save()
        files = {entry: entry.read_bytes() for entry in tmp_path.iterdir()}

        def check(_, files=files, name=name):
            for entry, former in files.items():
                assert entry.exists() and (name == "nd.save" or entry.read_bytes() == former), name
                if name == "nd.save":
                    nd.load(str(entry))
            assert set(tmp_path.iterdir()) == set(files), name

        sweep(lambda: None, lambda _, save=save: save(), check, 6)
        for entry in files:
            entry.unlink()


def test_interrupted_store_updates_are_atomic():
    def make():
        store = mx.kv.create()
        store.set_optimizer(mx.optimizer.create("adam", learning_rate=0.1))
        for key in "abc":
            store.init(key, nd.ones((2,)))
            store.push(key, nd.ones((2,)))
        return store

    def read(store):
        return {
            key: (
                bits(store._values[key]),
                bits(store._updater.states.get(key)),
                store._updater.optimizer._index_update_count.get(key),
            )
            for key in "abc"
        }

    grads = [[nd.full((2,), 2), nd.full((2,), 3, ctx=mx.cpu(1))]] * 3
    whole(read, make, lambda store: store.push(list("abc"), grads), 20)
    out = [nd.zeros((2,)) for _ in range(3)]
    sweep(
        make,
        lambda store: store.pull(list("abc"), out),
        lambda store: store.pull(list("abc"), out),
        8,
    )


THREADS = {"num_workers": 2, "thread_pool": True}


@pytest.mark.parametrize(
    "options, places",
    [
        ({}, 10),
        (THREADS, 10),
        ({"num_workers": 1}, 8),
        pytest.param({"num_workers": 2}, 60, marks=pytest.mark.slow),
        pytest.param(THREADS, 60, marks=pytest.mark.slow),
    ],
)
def test_interrupted_loaders_stay_usable(options, places):
    data = gluon.data.ArrayDataset(np.arange(40, dtype="float32"), np.arange(40))
    loader = gluon.data.DataLoader(data, batch_size=4, **options)
    expected = [(bits(x), bits(y)) for x, y in loader]
    assert len(expected) == 10

    def work(_):
        for number, _batch in enumerate(loader):
            if number == 3:
                break

    def check(_):
        assert [(bits(x), bits(y)) for x, y in loader] == expected
        if getattr(loader._pool, "_rounds", None):
            gc.collect()  # the interrupt's traceback may be garbage in a cycle
        assert not getattr(loader._pool, "_rounds", None), "batches that nobody asks for are kept"

    sweep(lambda: None, work, check, places)


def test_interrupted_prefetching_iterator_stays_usable():
    source = mx.io.NDArrayIter(np.arange(24, dtype="float32").reshape(12, 2), np.arange(12), 4)
    batches = mx.io.PrefetchingIter(source)

    def epoch(_):
        batches.reset()
        return [bits(batch.data[0]) for batch in batches]

    expected = epoch(None)
    sweep(
        lambda: None, epoch, lambda _: epoch(None) == expected or pytest.fail("other batches"), 12
    )


def test_interrupted_pipeline_updates_running_averages_together():
    class Twice(gluon.nn.HybridSequential):
        def hybrid_forward(self, F, x):
            return self[1](self[0](self[1](x)))

    x, y = nd.array(np.random.RandomState(0).rand(6, 4)), nd.zeros((6, 4))

    def make():
        mx.random.seed(1)
        net = Twice()
        net.add(nn.BatchNorm(in_channels=4), nn.BatchNorm(in_channels=4))
        net.initialize()
        step = mx.parallel.TrainStep(
            net, gluon.loss.L2Loss(), None, mx.parallel.Pipeline(2, statistics="batch")
        )
        step(x, y)
        return net, step

    read = lambda thing: {
        "all": tuple(
            bits(p.data()) for name, p in thing[0].collect_params().items() if "running" in name
        )
    }
    whole(read, make, lambda thing: thing[1](x, y), 30)


def test_interrupted_schedulers_keep_their_rate():
    for make in (
        lambda: mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=1.0),
        lambda: mx.lr_scheduler.MultiFactorScheduler([2, 4, 6], 0.5, base_lr=1.0),
    ):
        sweep(
            make,
            lambda scheduler: scheduler(9),
            lambda scheduler, make=make: scheduler(9) == make()(9) or pytest.fail("another rate"),
            30,
        )


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no interval timers")
@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(),
    reason="signals arrive in the main thread",
)
def test_interval_timer_interrupts_leave_a_network_usable():
    """Signals arrive during first calls, which trace and compile."""
    numbers, expected = random.Random(0), trained(deferred({}))
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        until, longest = time.monotonic() + 1, 0.02
        while time.monotonic() < until:
            net = deferred({})
            try:
                signal.setitimer(signal.ITIMER_REAL, numbers.uniform(1e-5, longest))
                trained(net)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
            check_clean()
            assert trained(net) == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
