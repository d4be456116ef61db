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
    everything(way, tmp_path, 150)


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
    first_calls(options, 400)
