"""Simulations of networks on clusters: hand-computed times, and invalid arguments."""

import re

import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon import nn
from mpgluon.parallel import Cluster, Profile, simulate
from mpgluon.parallel._planner.layer_profile import Cost, Layer

FORWARD, BACKWARD, SIZE = 0.01, 0.02, 1000  # per layer and micro-batch of 8 rows: s, s, bytes


def profile(layers=8, rows=64, params=10_000):
    """Returns a chain of equal layers with times proportional to the rows."""
    device = mx.cpu(0)
    cost = Cost(FORWARD, BACKWARD, BACKWARD / 2, BACKWARD / 2, SIZE, 0)
    return Profile(
        [
            Layer(
                str(i), "Dense", [(i - 1, 8 * SIZE)] if i else [], None, {f"w{i}": (params, True)}
            )
            for i in range(layers)
        ],
        [device],
        rows,
        {device: {8: [cost] * layers}},
        {device: 1e-6},
        home=device,
    )


FAST = {"inside": (0.0, 1e18), "between": (0.0, 1e18)}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_chain_takes_the_ideal_time(schedule, stages):
    (found,) = simulate(
        profile(),
        Cluster(stages, **FAST),
        schedule=schedule,
        mesh={"stage": stages},
        micro_batches=8,
    ).outcomes
    ideal = (8 + stages - 1) * (FORWARD + BACKWARD) * 8 / stages
    update = 1e-6 * 10_000 * 8 / stages
    assert found.seconds == pytest.approx(ideal + update)
    assert found.bubble == pytest.approx((stages - 1) / (8 + stages - 1))
    assert found.rows_per_second == pytest.approx(64 / found.seconds)


def test_gradient_sum_takes_ring_bytes_and_tree_latency():
    """The slower link applies if replicas are on several hosts."""
    links = {"inside": (1e-3, 1e6), "between": (2e-3, 1e5)}
    cluster = Cluster([2, 4, 8, 1024], per_host=4, **links)
    found = simulate(profile(), cluster, mesh={"stage": 1}, micro_batches=8).outcomes
    trained, alone = 80_000, found[0].seconds - found[0].sum_seconds
    for outcome, latency, rate, rounds in zip(
        found, (1e-3, 1e-3, 2e-3, 2e-3), (1e6, 1e6, 1e5, 1e5), (1, 2, 3, 10)
    ):
        r = outcome.devices
        assert outcome.data == r
        assert outcome.sum_seconds == pytest.approx(
            2 * (r - 1) / r * trained / rate + 2 * rounds * latency
        )
        assert outcome.seconds == pytest.approx(alone + outcome.sum_seconds)
    assert found[0].efficiency > found[1].efficiency > found[2].efficiency > 0


def test_stage_transfers_use_the_link_between_hosts():
    """A step of one micro-batch crosses each boundary twice, over the slow link between hosts."""
    links = {"inside": (0.0, 1e18), "between": (0.5, 1e18)}
    for per_host, borders in ((4, 0), (2, 1), (1, 3)):
        (found,) = simulate(
            profile(params=0), Cluster(4, per_host, **links), mesh={"stage": 4}, micro_batches=1
        ).outcomes
        passes = 8 * (FORWARD + BACKWARD) * 8
        assert found.seconds == pytest.approx(passes + 2 * 0.5 * borders)


def test_memory_limit_selects_more_stages():
    cluster = Cluster(8, **FAST)
    (freely,) = simulate(profile(), cluster).outcomes
    assert freely.stages == 1 and freely.fits
    limit = freely.bytes // 2
    (found,) = simulate(profile(), Cluster(8, memory=limit, **FAST)).outcomes
    assert found.stages > 1 and found.fits and found.bytes <= limit
    nothing = simulate(profile(), Cluster(8, memory=10, **FAST))
    assert not nothing.outcomes[0].fits and repr(nothing).endswith("NO")


def test_speed_and_at_once_scale_the_time():
    def seconds(**more):
        (found,) = simulate(
            profile(), Cluster(4, **FAST, **more), mesh={"data": 4}, micro_batches=8
        ).outcomes
        return found.seconds

    assert seconds(speed=2.0) == pytest.approx(seconds() / 2)
    update = 1e-6 * 80_000
    assert seconds(at_once=2) - update == pytest.approx(2 * (seconds() - update))


def test_simulate_measures_a_network():
    net = nn.HybridSequential()
    net.add(*[nn.Dense(32, in_units=32) for _ in range(4)])
    net.initialize()
    found = simulate(
        net,
        Cluster([2, 1024], per_host=8),
        nd.ones((64, 32)),
        loss=mx.gluon.loss.L2Loss(),
        labels=nd.ones((64, 32)),
        optimizer="adam",
        mesh={"stage": 2},
        repeats=1,
        progress=False,
    )
    title, columns, *rows = repr(found).splitlines()
    assert "64 rows for each replica, 1f1b" in title and len(rows) == 2
    assert [re.split(r"  +", row.strip())[:2] for row in rows] == [
        ["2", "1 x 2"],
        ["1024", "512 x 2"],
    ]
    assert len(re.split(r"  +", columns.strip())) == 10
    again = simulate(Profile.from_json(found.profile.to_json()), found.cluster, mesh={"stage": 2})
    assert again.outcomes == found.outcomes


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda p: simulate(p, 4), "must be a Cluster, not int"),
        (lambda p: simulate(p, Cluster(4), nd.ones((4, 4))), "sample must not be given"),
        (lambda p: simulate("net", Cluster(4), nd.ones((4, 4))), "expected a HybridBlock"),
        (lambda p: simulate(p, Cluster(4), mesh={"stage": 3}), "does not have 4 devices"),
        (lambda p: simulate(p, Cluster(4), mesh={"data": 3}), "does not have 4 devices"),
        (lambda p: simulate(p, Cluster(4), mesh={"rows": 2}), "'rows': 2"),
        (lambda p: simulate(p, Cluster(4), mesh={"stage": 0}), "'stage': 0"),
        (lambda p: simulate(p, Cluster(4), mesh={"model": 2}), "are not supported"),
        (lambda p: simulate(p, Cluster(16), mesh={"stage": 16}), "too few for 16 stages"),
        (lambda p: simulate(p, Cluster(4), micro_batches=65), "cannot be divided into 65"),
        (lambda p: simulate(p, Cluster(4), schedule="none"), "none"),
        (lambda p: Cluster(0), "devices must be positive integers"),
        (lambda p: Cluster([]), "devices must be positive integers"),
        (lambda p: Cluster(2, per_host=1.5), "per_host must be positive integers"),
        (lambda p: Cluster(2, inside=(0, 0)), "inside must be the latency in seconds"),
        (lambda p: Cluster(2, speed=0), "must not be negative, got 0 and None"),
        (lambda p: Cluster.of_ranks(), "one process"),
    ],
)
def test_simulate_rejects_invalid_arguments(call, text):
    with pytest.raises((ValueError, mx.MXNetError), match=re.escape(text)):
        call(profile())
