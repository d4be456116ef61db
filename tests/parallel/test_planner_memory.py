"""Plans within memory limits: accepted plans fit, and rejected ones need the bytes that the error
reports."""

import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.context import memory_stats
from mpgluon.gluon import nn
from mpgluon.gluon.contrib.nn import HybridConcurrent
from mpgluon.parallel import Plan, Profile, TrainStep, plan
from mpgluon.parallel._planner import memory_measurement
from mpgluon.parallel._planner.layer_profile import Trial, key_of
from mpgluon.parallel._planner.search import Search
from support.plans import CPU, SCHEDULES, square, synthetic


def dense():
    return chain(*[nn.Dense(units, activation="relu") for units in (48, 96, 32, 64, 24)]), (16, 40)


def convolutions():
    return chain(
        nn.Conv2D(8, 3, padding=1, activation="relu"),
        nn.Conv2D(16, 3, 2, 1),
        nn.BatchNorm(),
        nn.Dense(12),
        nn.Dense(4),
    ), (8, 3, 8, 8)


def branches():
    both = HybridConcurrent(axis=1)
    both.add(nn.Dense(32, activation="relu"), nn.Dense(48))
    return chain(nn.Dense(40), both, nn.Dense(24)), (16, 30)


def chain(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    net.initialize(mx.init.Xavier())
    return net


def need(error):
    """Returns the largest number of bytes on one device that the error reports as needed."""
    found = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) bytes on cpu", str(error))]
    return max(found)


def measured(net, made, x):
    """Returns the peak bytes of parameters, gradients, states and a step on each device."""
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    step, found = TrainStep(net, square, trainer, made.pipeline()), {}
    for _ in range(2):
        step(x, [])
    nd.waitall()
    before = {ctx: memory_stats(ctx)["in_use"] for ctx in made.devices}
    for ctx in made.devices:
        mx.context.reset_peak_memory(ctx)
    losses = step(x, [])
    nd.waitall()
    for ctx in made.devices:
        own = [p for p in net.collect_params().values() if p.list_ctx() == [ctx]]
        # Data, gradient and momentum
        held = sum(p.data().size * 4 * (3 if p.grad_req != "null" else 1) for p in own)
        found[ctx] = (
            held
            + memory_stats(ctx)["peak_in_use"]
            - before[ctx]
            - (losses.size * 4 if losses.context == ctx else 0)
        )
    return found


OPTIONS = {
    "loss": square,
    "micro_batches": [2, 4],
    "optimizer": "sgd",
    "optimizer_params": {"momentum": 0.9},
    "progress": False,
}


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [dense, convolutions, branches])
def test_every_limit_from_the_reported_need_on_is_planned(make, devices):
    net, shape = make()
    x = nd.array(np.random.RandomState(2).rand(*shape))
    free = plan(net, x, CPU[:devices], repeats=1, trials=0, **OPTIONS)

    def limited(bytes_of_all):
        # Without the bytes of earlier compiled plans
        own = Profile.from_json({**free.profile.to_json(), "weights": []})
        return plan(net, x, CPU[:devices], memory=bytes_of_all, profile=own, **OPTIONS)

    with pytest.raises(mx.MXNetError, match="no placement fits .* needs") as error:
        limited(1)
    least = need(error.value)
    with pytest.raises(
        mx.MXNetError, match=f"needs {least:,} bytes on .*, 1 more than its limit of {least - 1:,}"
    ):
        limited(least - 1)
    for share in (1, 1.02, 1.3, 2):
        made = limited(int(share * least))
        assert max(made.memory.values()) <= share * least and made.fits(), share
        other, _ = make()
        other.place(made)
        for ctx, size in measured(other, made, x).items():
            assert size <= 1.05 * made.memory[ctx] + 256, share


@pytest.mark.parametrize("make", [dense, branches])
def test_reported_need_is_the_minimum_of_all_plans(make):
    """Compiles every searched placement with every schedule and number of micro-batches."""
    net, shape = make()
    x = nd.ones(shape)
    profile = plan(net, x, CPU[:2], repeats=1, trials=0, **OPTIONS).profile
    with pytest.raises(mx.MXNetError) as error:
        plan(net, x, CPU[:2], memory=1, profile=profile, **OPTIONS)
    search, every = Search(profile, None, [2, 4]), Profile.from_json(profile.to_json())
    meter = memory_measurement.MemoryMeter(every, lambda c: Plan(every, {}, c), net, x, [], square)
    keys = {(p, m, s) for m, s, listed in search._forms() for p in listed}
    assert len(keys) > 20
    needs = []
    for key in keys:
        meter.measure(search.even(*key))
        needs.append(max(map(sum, Search(every).evaluate(*key).memory)))
    assert need(error.value) <= min(needs)


def test_reported_need_does_not_depend_on_measurements():
    needs = set()
    for _ in range(2):
        net, shape = dense()
        with pytest.raises(mx.MXNetError) as error:
            plan(net, nd.ones(shape), CPU[:2], memory=4000, repeats=1, **OPTIONS)
        needs.add(str(error.value))
    assert len(needs) == 1
    least = need(needs.pop())
    # Runs trials
    made = plan(dense()[0], nd.ones(dense()[1]), CPU[:2], memory=least, repeats=1, **OPTIONS)
    assert max(made.memory.values()) <= least


def test_error_names_every_device_that_lacks_memory():
    profile = synthetic(3, 5)
    with pytest.raises(
        mx.MXNetError,
        match=r"by estimate, needs .* on cpu\(\d\), .* for micro-batches in flight; .* bytes on "
        r"cpu\(\d\), ",
    ) as error:
        Search(profile, dict.fromkeys(CPU[:2], 1000), [2], SCHEDULES).run()
    assert len(re.findall("more than its limit of 1,000", str(error.value))) == 2


@pytest.mark.slow
def test_estimates_plan_every_limit_from_their_reported_need_on():
    for seed in range(4):
        profile = synthetic(seed, 6, 3, [1, 1.4, 1.2])
        with pytest.raises(mx.MXNetError) as error:
            Search(profile, dict.fromkeys(CPU[:3], 1), [2, 4], SCHEDULES).run()
        least = need(error.value)
        for share in (1, 1.05, 1.3, 2):
            limit = int(share * least)
            assert (
                max(
                    map(
                        sum,
                        Search(profile, dict.fromkeys(CPU[:3], limit), [2, 4], SCHEDULES)
                        .run()
                        .memory,
                    )
                )
                <= limit
            )


def test_dynamic_programming_plans_tight_limits(monkeypatch):
    """Only an even split keeps the limit, and placements are not listed."""
    from mpgluon.parallel._planner import search as search_module

    profile = synthetic(5, 14, 3)
    with pytest.raises(mx.MXNetError) as error:
        Search(profile, dict.fromkeys(CPU[:3], 1), [4], ["1f1b"]).run()
    monkeypatch.setattr(search_module, "LISTED", 10)
    with pytest.raises(mx.MXNetError) as rough:
        Search(profile, dict.fromkeys(CPU[:3], 1), [4], ["1f1b"]).run()
    assert need(error.value) <= need(rough.value) <= 1.1 * need(error.value)
    found = Search(profile, dict.fromkeys(CPU[:3], need(rough.value)), [4], ["1f1b"]).run()
    assert max(map(sum, found.memory)) <= need(rough.value)


class Fake:
    """A meter that measures `factor` times the estimated bytes."""

    def __init__(self, profile, factor):
        self.profile, self.factor, self.weighed = profile, factor, []

    def measure(self, candidate):
        self.weighed.append(key_of(candidate))
        self.profile.measured_bytes[key_of(candidate)] = [
            round(self.factor * m) for _, m in candidate.memory
        ]


@pytest.mark.parametrize("factor", [0.85, 1.0, 1.5])
def test_measured_bytes_override_estimates(factor):
    """Compiled plans may need more or fewer bytes than estimated."""
    profile, numbers = synthetic(1, 6), [2, 4]
    free = Search(profile, None, numbers, SCHEDULES).run()
    for share in (0.5, 0.8, 0.95, 1.5):
        limits = dict.fromkeys(CPU[:2], round(share * max(map(sum, free.memory))))
        own = synthetic(1, 6)
        meter = Fake(own, factor)
        try:
            made = memory_measurement.best_within(own, limits, numbers, SCHEDULES, meter)
        except mx.MXNetError as error:
            assert need(error) > max(limits.values()) and share < 1
            continue
        assert own.is_measured(made) and max(map(sum, made.memory)) <= max(limits.values())
        assert made.memory == [
            (fixed, m) for (fixed, _), m in zip(made.memory, own.measured_bytes[key_of(made)])
        ]


def test_leaner_table_replaces_a_trial_over_the_limit():
    profile = synthetic(4, 6)
    found = Search(profile, None, [4], ["zero_bubble"]).run()
    key, sizes = key_of(found), [m for _, m in found.memory]
    profile.trials[key] = Trial(0.5, [2 * m for m in sizes], found.times)
    profile.measured_bytes[key] = sizes
    fixed = [f for f, _ in found.memory]
    tight = {ctx: f + m for ctx, f, m in zip(CPU, fixed, sizes)}
    assert [m for _, m in Search(profile, None, [4]).evaluate(*key).memory] == [
        2 * m for m in sizes
    ]
    leaner = Search(profile, tight, [4]).evaluate(*key)
    assert [m for _, m in leaner.memory] == sizes and leaner.order is None and leaner.seconds != 0.5
    assert Profile.from_json(profile.to_json()).measured_bytes == profile.measured_bytes
