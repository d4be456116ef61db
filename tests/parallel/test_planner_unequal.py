"""Plans for devices of different speed or memory, from synthetic costs."""

import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Profile, TrainStep, plan
from mpgluon.parallel._planner.layer_profile import Cost, Layer
from mpgluon.parallel._planner.search import Search
from support.plans import CPU, SCHEDULES, square, synthetic


def even(layers, speeds, update=1e-12, rows=16):
    """Returns a profile of equal layers; device d takes `speeds[d]` times as long."""
    described = [
        Layer(f"{i}", "Dense", [(i - 1, 4000)] if i else [], None, {f"w{i}": (1000, True)})
        for i in range(layers)
    ]
    devices = CPU[: len(speeds)]
    costs = {
        ctx: {
            n: [
                Cost(
                    1e-3 * f * n / rows,
                    2e-3 * f * n / rows,
                    1e-3 * f * n / rows,
                    1e-3 * f * n / rows,
                    100 * n,
                    10 * n,
                )
            ]
            * layers
            for n in range(1, rows + 1)
        }
        for ctx, f in zip(devices, speeds)
    }
    return Profile(
        described, devices, rows, costs, dict.fromkeys(devices, update), 1.0, None, devices[0], 1000
    )


@pytest.mark.parametrize("slow_first", [False, True])
@pytest.mark.parametrize("factor", [1.5, 2, 3, 5])
def test_slower_device_receives_fewer_layers(factor, slow_first):
    speeds = [factor, 1] if slow_first else [1, factor]
    chosen = Search(even(24, speeds), None, [8], ["1f1b"]).run()
    on_slow = sum(speeds[d] == factor for d in chosen.placement)
    assert 0 < on_slow < 12 and abs(on_slow - 24 / (1 + factor)) <= 2
    assert (
        chosen.seconds
        < Search(even(24, speeds), None, [8], ["1f1b"])
        .evaluate((speeds.index(1),) * 24, 8, "1f1b")
        .seconds
    )


def test_far_too_slow_device_receives_no_layer():
    chosen = Search(even(10, [60, 1, 1]), None, [4, 8], SCHEDULES).run()
    assert set(chosen.placement) == {1, 2} and 4 <= chosen.placement.count(1) <= 6
    assert set(Search(even(10, [60, 1]), None, [4, 8], SCHEDULES).run().placement) == {1}


@pytest.mark.parametrize("seed", range(3))
def test_device_with_less_memory_holds_less(seed):
    profile = synthetic(seed, 8, 3)
    whole = sum(size for layer in profile.layers for size, _ in layer.params.values()) * 3
    limits = {CPU[0]: whole // 8, CPU[1]: None, CPU[2]: whole // 2}
    chosen = Search(
        profile, {ctx: limit for ctx, limit in limits.items() if limit}, [2, 4], SCHEDULES
    ).run()
    held = [sum(pair) for pair in chosen.memory]
    assert held[0] <= limits[CPU[0]] and held[2] <= limits[CPU[2]] and held[1] > held[0]
    assert chosen.seconds >= Search(profile, None, [2, 4], SCHEDULES).run().seconds


def test_plan_for_a_slow_device_places_and_runs():
    """In the measured profile, one device takes three times as long."""

    def chain():
        net = nn.HybridSequential(prefix="")
        net.add(*[nn.Dense(16, activation="relu", in_units=16) for _ in range(8)])
        net.initialize()
        return net

    net, x = chain(), nd.ones((12, 16))
    measured = plan(
        net,
        x,
        CPU[:2],
        loss=square,
        micro_batches=[4],
        schedules="1f1b",
        repeats=1,
        trials=0,
        progress=False,
    ).profile.to_json()
    for ctx, factor in (("cpu(0)", 3), ("cpu(1)", 1)):
        for rows, column in measured["costs"][ctx].items():
            column[:] = [
                [factor * 1e-3, factor * 2e-3, factor * 1e-3, factor * 1e-3, *cost[4:]]
                for cost in column
            ]
    profile = Profile.from_json(measured)
    made = plan(
        net,
        x,
        CPU[:2],
        loss=square,
        micro_batches=[4],
        schedules="1f1b",
        profile=profile,
        progress=False,
    )
    slow = [path for path, ctx in made.placement.items() if ctx == CPU[0]]
    assert 0 < len(slow) <= 3
    net.place(made)
    pipeline = made.pipeline()
    TrainStep(net, square, gluon.Trainer(net.collect_params(), "sgd"), pipeline)(x, [])
    assert set(pipeline.report().busy) == set(CPU[:2]) and str(made.placement["0"]) in repr(made)

    need = dict(made.memory)
    tight = plan(
        net,
        x,
        CPU[:2],
        memory={CPU[1]: need[CPU[1]] - 1},
        loss=square,
        micro_batches=[4],
        schedules="1f1b",
        profile=profile,
        progress=False,
    )
    assert tight.memory[CPU[1]] < need[CPU[1]] and tight.seconds >= made.seconds
    with pytest.raises(mx.MXNetError, match=r"bytes on cpu\(1\), .* more than its limit of 10: "):
        plan(
            net,
            x,
            CPU[:2],
            memory={CPU[0]: 10, CPU[1]: 10},
            loss=square,
            micro_batches=[4],
            schedules="1f1b",
            profile=profile,
            progress=False,
        )
