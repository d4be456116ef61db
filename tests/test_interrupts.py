"""Ctrl-C anywhere: nothing that was changed for a while stays changed, and what comes next gives the numbers it would have given.

Python runs signal handlers when a function is entered, behind calls and when a loop starts over. `interrupted` raises KeyboardInterrupt in such places, one
after the other, wherever code of this package runs; `test_signals` has real signals raise it.
"""

import os
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, _groups, _split, autograd, gluon, nd
from mpgluon.gluon import _statistics, _tracing, nn
from test_failures import Session

PACKAGE = os.path.dirname(mx.__file__) + os.sep
# What is raised in a finalizer or a callback of the collector is told on stderr, as Python does.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def interrupted(work, n):
    """Runs `work` with an interrupt at its n-th place (0: at none); how many places were met."""
    places = 0

    def watch(frame, event, _):
        nonlocal places
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            places += 1
            if places == n:
                raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return places


def check_clean():
    """Nothing is in force that belongs to the time of a call."""
    assert _tracing.current() is None and _split.current() is None and _statistics.active() is None
    assert _core.swap_trace(None) is None
    assert not autograd.is_recording() and not autograd.is_training()
    assert _core.get_scope() == 0 and _core.get_steps() == 0 and _core.set_group(None) is None
    assert not _groups.running() and _groups.current() is None
    assert getattr(gluon.block._NameScope._current, "value", None) is None
    assert type(mx.name.NameManager.current()) is mx.name.NameManager and mx.AttrScope.current().get(None) == {}
    assert mx.current_context() == mx.cpu(0) and not mx.util.is_np_shape()


def sweep(make, work, after, places):
    """Interrupts ``work(make())`` at about so many of its places, and calls ``after(what make gave)`` behind each."""
    for _ in range(2):
        count = interrupted(lambda thing=make(): work(thing), 0)
    stride = max(count / places, 1)
    number = random.Random(7).random() * stride
    while number < count:
        thing = make()
        interrupted(lambda: work(thing), int(number) + 1)
        check_clean()
        nd.waitall()
        after(thing)
        number += stride


class Deferred(gluon.HybridBlock):
    """Shapes are found by the first call; a loop; a part that is computed again; two devices."""

    def __init__(self):
        super().__init__(prefix="deferred_")
        with self.name_scope():
            self.first, self.norm, self.last = nn.Dense(6), nn.BatchNorm(), nn.Dense(3)

    def hybrid_forward(self, F, x):
        hidden = self.norm(self.first(x))
        rows, _ = F.contrib.foreach(lambda row, state: (row + state, F.tanh(row)), hidden, [F.zeros_like(x[0, :1]).broadcast_to((6,))][0])
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


def everything(way, folder, places):
    (folder / "kept").mkdir()
    (folder / "other").mkdir()
    kept = Session(way)
    kept.step()
    kept.save(folder / "kept")

    def again(session):
        session.load(folder / "kept")
        mx.random.seed(9)
        return session.step(), session.net.out.weight.data().asnumpy().tobytes(), session.net.norm.running_mean.data().asnumpy().tobytes()

    again(kept)
    expected = again(kept)

    def check(session):
        assert again(session) == expected, "the step behind an interrupt is another"

    sweep(lambda: kept, Session.step, check, places)
    sweep(lambda: kept, lambda session: session.save(folder / "other"), check, places)
    sweep(lambda: kept, lambda session: session.load(folder / "kept"), check, places)
    sweep(lambda: Session(way), Session.step, check, places)  # which compiles


WAYS = ["eager", "hybridized", "pipelined", "train step"]


@pytest.mark.parametrize("way", WAYS)
def test_some_places_of_everything(way, tmp_path):
    everything(way, tmp_path, 8)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_many_places_of_everything(way, tmp_path):
    everything(way, tmp_path, 60)


def first_calls(options, places):
    expected = trained(deferred(options))

    def check(net):
        assert trained(net) == expected and trained(deferred(options)) == expected

    sweep(lambda: deferred(options), trained, check, places)


OPTIONS = [None, {}]


@pytest.mark.parametrize("options", OPTIONS, ids=["eager", "hybridized"])
def test_some_places_of_a_first_call(options):
    first_calls(options, 20)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=["eager", "hybridized"])
def test_many_places_of_a_first_call(options):
    first_calls(options, 200)


class Chain(gluon.nn.HybridSequential):
    """Three layers, for plans and checkpoints."""

    def __init__(self):
        super().__init__(prefix="chain_")
        with self.name_scope():
            self.add(nn.Dense(6, in_units=5, activation="relu"), nn.Dense(6, in_units=6), nn.Dense(2, in_units=6))


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


def checkpoints(folder, places):
    net, trainer = chain()
    step_of(net, trainer)
    mx.parallel.save(str(folder / "kept"), net, trainer)
    expected = [step_of(net, trainer) for _ in range(2)]

    def load(thing, where="kept"):
        mx.parallel.load(str(folder / where), *thing)

    def check(thing):
        load(thing)
        assert [step_of(*thing) for _ in range(2)] == expected

    def saved(thing):  # what is there is the former checkpoint or the new one
        load(thing, "kept")
        mx.parallel.save(str(folder / "other"), *thing)
        sweep_one(thing)

    def sweep_one(thing):
        load(thing, "other")
        assert [step_of(*thing) for _ in range(2)] == expected

    sweep(chain, load, check, places)
    load((net, trainer))
    mx.parallel.save(str(folder / "other"), net, trainer)
    sweep(lambda: (load((net, trainer)), (net, trainer))[1], lambda thing: mx.parallel.save(str(folder / "other"), *thing), sweep_one, places)


def test_some_places_of_checkpoints(tmp_path):
    checkpoints(tmp_path, 6)


def plans(places, trials):
    x, y = nd.array(np.random.RandomState(1).rand(8, 5)), nd.zeros((8, 2))
    expected = step_of(*chain())

    def plan(thing):
        devices = [mx.cpu(0), mx.cpu(1)]
        mx.parallel.plan(thing[0], x, devices, labels=y, loss=gluon.loss.L2Loss(), micro_batches=2, repeats=1, trials=trials)

    def check(thing):
        assert all(param.list_ctx() == [mx.cpu(0)] for param in thing[0].collect_params().values())
        assert not any(block._forward_hooks for block in thing[0]._children.values())
        assert step_of(*thing) == expected

    sweep(chain, plan, check, places)


def modules(places):
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


def test_some_places_of_a_module():
    modules(12)


def symbols():
    data = mx.sym.var("data")
    with mx.name.Prefix("m_"), mx.AttrScope(__mood__="good"), mx.util.np_shape(), mx.engine.bulk(3):
        return mx.sym.FullyConnected(data, num_hidden=3), gluon.nn.HybridSequential()


def test_scopes_of_symbols_and_names():
    sweep(lambda: None, lambda _: symbols(), lambda _: symbols(), 60)


@pytest.mark.slow
def test_many_places_of_checkpoints_plans_and_modules(tmp_path):
    checkpoints(tmp_path, 60)
    plans(12, 1)
    modules(150)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no interval timers")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals arrive in the main thread")
def test_signals():
    """An interval timer interrupts first calls, which are traced and compiled."""
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
