"""The planner: exact optima on synthetic profiles, memory limits, and a small real network."""

import itertools
import json
import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.gluon.contrib.nn import HybridConcurrent
from mpgluon.parallel import Pipeline, Plan, Profile, TrainStep, plan, schedules
from mpgluon.parallel._planner import layer_profile, trial_runs
from mpgluon.parallel._planner.layer_profile import Trial
from mpgluon.parallel._planner.search import Search
from support.plans import CPU, SCHEDULES, square, synthetic


def brute_force(profile, micro_batches, names, limits=None, contiguous=True):
    """Returns the fastest candidate by simulating every placement, None if none has room."""
    search, best = Search(profile, limits, micro_batches, names), None
    for placement in itertools.product(range(len(profile.devices)), repeat=len(search.free)):
        changes = [d for d, former in zip(placement, (None, *placement)) if d != former]
        if contiguous and len(set(changes)) != len(changes):
            continue
        for m in micro_batches:
            for name in names:
                candidate = search.evaluate(placement, m, name)
                if not search.excess(candidate)[0] and (
                    best is None or candidate.seconds < best.seconds
                ):
                    best = candidate
    return best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "devices, speeds",
    [(2, None), (2, [1, 1.7]), (3, None), (3, [2, 1, 1.3])],
    ids=["2", "2 unequal", "3", "3 unequal"],
)
def test_contiguous_search_finds_the_optimum(seed, devices, speeds):
    profile = synthetic(seed, 7, devices, speeds)
    chosen = Search(profile, None, [2, 4], SCHEDULES).run()
    least = brute_force(profile, [2, 4], SCHEDULES).seconds
    assert chosen.seconds <= least * (1 + 1e-9)  # a scattered placement may be faster
    assert len(chosen.placement) == 7


@pytest.mark.parametrize("seed", range(3))
def test_search_finds_the_optimum_within_memory_limits(seed):
    profile = synthetic(seed, 7, 2, [1, 1.2])
    free = brute_force(profile, [2, 4], SCHEDULES)
    needed = [sum(pair) for pair in free.memory]
    limits = {CPU[0]: needed[0] - 1000, CPU[1]: 200_000}
    best = brute_force(profile, [2, 4], SCHEDULES, limits)
    chosen = Search(profile, limits, [2, 4], SCHEDULES).run()
    assert chosen.seconds <= best.seconds * (1 + 1e-9)
    assert Search(profile, None, [2, 4], SCHEDULES).run().seconds <= chosen.seconds
    assert sum(chosen.memory[0]) <= limits[CPU[0]]


@pytest.mark.parametrize("seed", range(3))
def test_branches_are_placed_apart_if_that_is_optimal(seed):
    """0 -> (1, 2, 3) -> join -> 5"""
    sources = {
        1: [(0, 4000)],
        2: [(0, 4000)],
        3: [(0, 4000)],
        4: [(1, 4000), (2, 4000), (3, 4000)],
        5: [(4, 12000)],
    }
    profile = synthetic(seed, 6, 2, None, sources, {4: 1})
    chosen = Search(profile, None, [1, 2], SCHEDULES).run()
    assert chosen.seconds == pytest.approx(
        brute_force(profile, [1, 2], SCHEDULES, contiguous=False).seconds, rel=1e-9
    )
    assert chosen.seconds <= brute_force(profile, [1, 2], SCHEDULES).seconds


def test_dynamic_programming_is_near_the_listed_optimum(monkeypatch):
    """Forces dynamic programming on a size that can also be listed."""
    from mpgluon.parallel._planner import search as search_module

    profile = synthetic(5, 14, 3)
    listed = Search(profile, None, [4], ["1f1b"]).run()
    monkeypatch.setattr(search_module, "LISTED", 10)
    found = Search(profile, None, [4], ["1f1b"])
    assert found.placements("1f1b") is None
    assert found.run().seconds <= listed.seconds * 1.01
    limits = {ctx: int(sum(listed.memory[d]) * 1.02) for d, ctx in enumerate(CPU[:3])}
    within = Search(profile, limits, [4], ["1f1b"])
    assert not within.excess(within.run())[0]


def test_search_considers_plans_that_were_run_or_chosen_within_limits():
    """Includes placements that the search itself does not list."""
    profile, scattered = synthetic(0, 9, 2), (0, 1, 0, 1, 1, 0, 1, 0, 1)
    free = Search(profile, None, [4], SCHEDULES).run()
    assert scattered not in Search(profile).placements("1f1b")
    profile.trials[scattered, 4, "1f1b"] = Trial(free.seconds / 2, [0, 0], None, None)
    for limits in (None, {CPU[0]: 10**12}):
        found = Search(profile, limits, [4], SCHEDULES).run()
        assert found.placement == scattered and found.seconds == free.seconds / 2
    assert Search(profile, None, [2], SCHEDULES).run().placement != scattered


@pytest.mark.parametrize("seed, layers", [(3, 14), (4, 9), (13, 9), (5, 11)])
def test_more_memory_never_lengthens_the_predicted_step(seed, layers):
    """Without limits, the search also finds scattered placements, which the full list of contiguous
    ones lacks."""
    profile = synthetic(seed, layers, 2)
    free = Search(profile, None, [2, 4], SCHEDULES).run()
    limits = dict.fromkeys(CPU[:2], max(map(sum, free.memory)))
    for share in (1.0, 0.9, 0.8):
        profile.chosen.clear()
        shared = {ctx: int(limit * share) for ctx, limit in limits.items()}
        found = Search(profile, shared, [2, 4], SCHEDULES).find()
        assert found is None or found.seconds >= free.seconds * (1 - 1e-9)


def test_impossible_plan_error_states_the_missing_bytes():
    profile = synthetic(0, 5)
    with pytest.raises(
        mx.MXNetError,
        match=r"no placement fits .* needs ([\d,]+) bytes on cpu\(\d\), ([\d,]+) more than its "
        r"limit of 4,000: [\d,]+ for parameters",
    ) as error:
        Search(profile, dict.fromkeys(CPU[:2], 4000), [2, 4], SCHEDULES).run()
    import re

    needed, over = (
        int(n.replace(",", ""))
        for n in re.search(r"needs ([\d,]+) bytes on .*?, ([\d,]+) more", str(error.value)).groups()
    )
    assert needed - over == 4000


def layered():
    net = nn.HybridSequential()
    with net.name_scope():
        branches = HybridConcurrent(axis=1)
        branches.add(nn.Dense(16, activation="relu"), nn.Dense(16, activation="tanh"))
        net.add(
            nn.Dense(24, activation="relu"),
            branches,
            nn.Dropout(0.25),
            nn.Dense(12),
            nn.BatchNorm(),
            nn.Dense(4),
        )
    net.initialize(mx.init.Xavier())
    return net


def train(net, pipeline, steps=3):
    step = TrainStep(
        net,
        square,
        gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
        pipeline,
    )
    x = nd.array(np.random.RandomState(3).rand(12, 10))
    mx.random.seed(7)
    losses = [step(x, []).asnumpy() for _ in range(steps)]
    return losses, [p.data().asnumpy() for p in net.collect_params().values()]


def small_plan(net, **options):
    return plan(
        net,
        nd.ones((12, 10)),
        CPU[:2],
        loss=square,
        micro_batches=[2, 4],
        repeats=1,
        progress=False,
        optimizer="adam",
        **options,
    )


def test_plan_of_a_small_network_places_and_trains(tmp_path, capsys):
    mx.random.seed(5)
    net = layered()
    net.infer_shape(nd.ones((12, 10)))
    before = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    state = mx.random.get_state()
    made = small_plan(net)
    assert "cpu(" not in capsys.readouterr().out  # no output about the copies of trials
    assert mx.random.get_state() == state and all(
        (p.data().asnumpy() == before[n]).all() for n, p in net.collect_params().items()
    )
    assert list(made.placement) == ["0", "1.0", "1.1", "2", "3", "4", "5"]
    kinds = [(layer.kind, layer.follows) for layer in made.profile.layers]
    assert kinds == [
        ("Dense", None),
        ("Dense", None),
        ("Dense", None),
        ("join", 1),
        ("Dropout", None),
        ("Dense", None),
        ("BatchNorm", None),
        ("Dense", None),
        ("loss", 7),
    ]
    assert made.profile.layers[3].sources == [(1, 12 * 16 * 4), (2, 12 * 16 * 4)]
    assert made.profile.state_factor == 2  # Adam's two states
    assert all(cost.forward > 0 and cost.backward > 0 for cost in made.profile.costs[CPU[0]][3][:3])
    assert "predicted" in repr(made) and "9 layers" in repr(made.profile)
    assert "predicted" in made._repr_html_() and "<table>" in made.profile._repr_html_()

    again = Plan.from_json(json.loads(json.dumps(made.to_json())))
    assert (
        again.placement == made.placement
        and again.seconds == made.seconds
        and again.memory == made.memory
    )
    made.save(tmp_path / "plan.json")
    assert repr(Plan.load(tmp_path / "plan.json")) == repr(made)
    made.profile.save(tmp_path / "profile.json")
    assert repr(small_plan(net, profile=Profile.load(tmp_path / "profile.json"))) == repr(
        small_plan(net, profile=made.profile)
    )

    for path in made.placement:
        made.move(path, CPU[0])
    made.move("1.1", CPU[1]).move("5", CPU[1]).change(micro_batches=4, schedule="1f1b")
    assert made.placement["1.1"] == CPU[1] and made.fits() and isinstance(made.pipeline(), Pipeline)
    assert [ctx for ctx, _ in made.stages] == [CPU[0], CPU[1], CPU[0], CPU[1]]
    net.place(made)
    assert (
        net[1][1].weight.list_ctx() == [CPU[1]]
        and net[3].weight.list_ctx() == [CPU[0]]
        and net[5].weight.list_ctx() == [CPU[1]]
    )
    pipeline = made.pipeline()
    train(net, pipeline, 1)
    compared = made.compare(pipeline.report())
    assert len(compared.stages) == 4 and compared.measured > 0 and "measured" in repr(compared)
    with pytest.raises(mx.MXNetError, match="the report has 4 micro-batches, but the plan has 2"):
        made.change(micro_batches=2).compare(pipeline.report())
    for path in made.placement:
        made.move(path, CPU[0])
    with pytest.raises(mx.MXNetError, match="another placement"):
        made.change(micro_batches=4).compare(pipeline.report())
    matplotlib = pytest.importorskip("matplotlib")
    assert (
        matplotlib
        and made.plot(tmp_path / "plan.png")
        and (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    )


@pytest.mark.slow
def test_chosen_plan_was_run_and_is_predicted_as_measured():
    made = small_plan(layered())
    key = made.candidate.placement, made.micro_batches, made.schedule
    seconds, sizes, times, _ = made.profile.trials[key]
    assert len(made.profile.trials) <= 6 and made.seconds == seconds
    assert made.pipeline().expected.times == times
    net = layered()
    net.place(made)
    pipeline = made.pipeline()
    train(net, pipeline, 2)
    assert (
        [size for _, size in made.candidate.memory]
        == sizes
        == [pipeline.report().planned_bytes.get(ctx, 0) for ctx in CPU[:2]]
    )
    assert all(
        measured == expected
        for expected, measured in made.compare(pipeline.report()).memory.values()
    )
    assert made.compare(pipeline.report()).predicted == made.profile.trials[key].makespan > 0
    assert not small_plan(layered(), trials=0).profile.trials


@pytest.mark.slow
def test_trials_are_skipped_if_a_copy_exceeds_the_limit(monkeypatch):
    for limit, run in ((9_000_000, False), (90_000_000, True)):
        monkeypatch.setattr(
            trial_runs,
            "memory_stats",
            lambda ctx, limit=limit: {"limit": limit, "in_use": 8_999_000},
        )
        made = small_plan(layered())
        assert bool(made.profile.trials) == run and made.seconds > 0


def test_costs_are_corrected_by_measured_stage_times():
    """A device that was slower than its layer costs predicted receives fewer layers. Costs for
    other numbers of micro-batches are corrected by the same factor."""
    profile = synthetic(1, 6)
    candidate = Search(profile, None, [4], ["1f1b"]).run()
    spans, took = candidate.simulation.spans, {}
    for s, d in enumerate(candidate.where):
        passes = {a.kind: end - begin for a, (begin, end) in spans.items() if a.stage == s}
        took.setdefault(CPU[d], []).append({k: 2 * t if d else t for k, t in passes.items()})
    before = {n: [c.forward for c in column] for n, column in profile.costs[CPU[1]].items()}
    trial_runs._correct(profile, candidate, took, set())
    late = candidate.stages[candidate.where.index(1)]
    for n in (2, 4, 8):
        for i, cost in enumerate(profile.costs[CPU[1]][n]):
            assert cost.forward / before[n][i] == pytest.approx(2 if i in late else 1, rel=0.05)
    again = Search(profile, None, [4], ["1f1b"]).simulated(candidate.placement, 4, "1f1b")
    for a, (begin, end) in again.simulation.spans.items():
        assert end - begin == pytest.approx(
            (spans[a][1] - spans[a][0]) * (2 if candidate.where[a.stage] else 1), rel=1e-6
        )


def test_neighboring_plans_differ_in_one_choice():
    search = Search(synthetic(2, 5), None, [2, 4], ["1f1b", "interleaved"])
    near = search.near(search.evaluate((0, 0, 1, 1, 1), 4, "1f1b"))
    assert set(near) == {
        ((0, 0, 1, 1, 1), m, name) for m in (2, 4) for name in ("1f1b", "interleaved")
    } | {((0, 1, 1, 1, 1), 4, "1f1b"), ((0, 0, 0, 1, 1), 4, "1f1b")}
    branches = synthetic(
        6,
        5,
        sources={1: [(0, 4000)], 2: [(0, 4000)], 3: [(1, 4000), (2, 4000)], 4: [(3, 4000)]},
        follows={3: 1},
    )
    search = Search(branches, None, [4], ["1f1b"])
    assert len(search.near(search.evaluate((0, 0, 0, 0), 4, "1f1b"))) == 1 + 4


def test_trials_run_the_choice_then_its_best_neighbors(monkeypatch):
    """Trials continue while the neighbors are predicted to be nearly as fast."""
    profile = synthetic(3, 6)
    numbers, names, tried = [2, 4], ["1f1b"], []
    while (candidate := trial_runs._next(profile, None, numbers, names, None, True)) is not None:
        assert candidate not in tried
        tried.append(candidate)
        profile.trials[layer_profile.key_of(candidate)] = Trial(
            candidate.seconds, [100, 100], candidate.times
        )
    best = Search(profile, None, numbers, names).run()
    search = Search(synthetic(3, 6), None, numbers, names)
    expected = {
        key
        for key in search.near(best)
        if search.evaluate(*key).seconds <= trial_runs.NEAR * best.seconds
    }
    assert len(tried) > 1 and {layer_profile.key_of(c) for c in tried} >= expected
    assert (
        trial_runs._next(synthetic(3, 6), None, numbers, names, None, False).seconds == best.seconds
    )
    assert trial_runs._next(profile, None, numbers, names, None, False) is None
    monkeypatch.setattr(trial_runs, "NEAR", 1.0)
    assert trial_runs._next(profile, None, numbers, names, None, True) is None


def test_plans_not_run_may_exceed_a_limit_by_the_slack():
    profile = synthetic(1, 6)
    candidate = Search(profile, None, [4], ["1f1b"]).run()
    d, (fixed, moving) = max(enumerate(candidate.memory), key=lambda x: sum(x[1]))
    limits = {CPU[d]: fixed + round(0.9 * moving)}
    assert Search(profile, limits, [4], ["1f1b"]).excess(candidate)[0] == moving - round(
        0.9 * moving
    )
    assert not Search(profile, limits, [4], ["1f1b"], slack=0.2).excess(candidate)[0]
    profile.trials[layer_profile.key_of(candidate)] = Trial(
        candidate.seconds, [m for _, m in candidate.memory], candidate.times
    )
    assert Search(profile, limits, [4], ["1f1b"], slack=0.2).excess(candidate)[0]


def test_measured_plan_keeps_the_times_of_its_schedule():
    """Later cost corrections would produce a different table with different time and memory."""
    profile = synthetic(4, 6)
    found = Search(profile, None, [4], ["zero_bubble"]).run()
    times = {key: 1.5 * seconds for key, seconds in found.times.items()}
    profile.trials[layer_profile.key_of(found)] = Trial(0.5, [300, 200], times)
    for _ in range(2):
        again = Search(profile, None, [4], ["zero_bubble"]).evaluate(*layer_profile.key_of(found))
        assert (
            again.times == times
            and again.seconds == 0.5
            and [m for _, m in again.memory] == [300, 200]
        )
        assert again.simulation.makespan == pytest.approx(1.5 * found.simulation.makespan, rel=0.05)
        for column in profile.costs[CPU[0]].values():
            column[:] = [cost._replace(forward=3 * cost.forward) for cost in column]
    assert Profile.from_json(json.loads(json.dumps(profile.to_json()))).trials == profile.trials


def test_stage_after_a_transfer_only_stage_defers_its_backward():
    candidate = Search(synthetic(1, 6), None, [4], ["zero_bubble"]).evaluate(
        (1, 1, 1, 0, 0, 0), 4, "zero_bubble"
    )
    assert (
        candidate.where == [0, 1, 0]
        and candidate.times["B", 1] == 0
        and candidate.times["W", 1] > candidate.times["W", 0] == 0 < candidate.times["B", 2]
    )


def test_estimated_bytes_match_the_compiled_pipeline():
    """Covers saved activations, gradient memory and transfers of Dense layers."""

    def chain():
        net = nn.HybridSequential(prefix="")
        net.add(
            *[nn.Dense(units, activation="relu") for units in (512, 1024, 1024, 256, 1024, 512)]
        )
        net.initialize()
        return net

    x = nd.ones((64, 512))
    made = plan(
        chain(),
        x,
        CPU[:2],
        loss=square,
        micro_batches=[4, 8],
        schedules="1f1b",
        repeats=1,
        trials=0,
        progress=False,
    )
    for cut in (2, 3, 4):
        for m in (4, 8):
            for i, path in enumerate(made.change(micro_batches=m).placement):
                made.move(path, CPU[i >= cut])
            other = chain()
            other.place(made)
            pipeline = made.pipeline()
            TrainStep(other, square, gluon.Trainer(other.collect_params(), "sgd"), pipeline)(x, [])
            compiled = pipeline.report().planned_bytes
            for ctx, (_, moving) in zip(CPU, made.candidate.memory):
                assert moving == pytest.approx(compiled[ctx], rel=0.15)


def test_transfer_only_stage_does_not_slow_a_pipeline():
    plain = schedules.StageGraph([0, 1], [[], [0]], True)
    sent = schedules.StageGraph([1, 0, 1], [[], [0], [1]], True, transfer_only=[0])
    times = {("F", 0): 2, ("B", 0): 0, ("W", 0): 4, ("F", 1): 2, ("B", 1): 2, ("W", 1): 2}
    longer = {
        ("F", 0): 0,
        ("B", 0): 0,
        ("W", 0): 0,
        **{(kind, s + 1): t for (kind, s), t in times.items()},
    }
    for schedule in ("gpipe", "1f1b", "zero_bubble"):
        one, two = (
            schedules.simulate(schedules.make_table(g, 6, schedule, t), g, 6, t)
            for g, t in ((plain, times), (sent, longer))
        )
        assert two.makespan == one.makespan, schedule
    row = schedules.make_table(sent, 6, "1f1b", longer)[1]
    at = {(a.stage, a.micro_batch): i for i, a in enumerate(row) if a.kind == "F"}
    assert at[0, 5] > at[2, 0]  # the batch is not sent at once


@pytest.mark.parametrize(
    "hybrid", [False] + [pytest.param(way, marks=pytest.mark.slow) for way in (True, "pipeline")]
)
def test_placed_networks_have_the_bits_of_one_device(hybrid):
    """Also holds after a second placement during training."""
    results = []
    for places in ({}, {"1.1": 1, "3": 1, "4": 1}, {"0": 1, "5": 1}):
        mx.random.seed(5)
        net = layered()
        made = small_plan(net, schedules="1f1b")
        for path in made.placement:
            made.move(path, CPU[places.get(path, 0)])
        net.place(made)
        mx.random.seed(9)
        if hybrid == "pipeline":
            results.append(train(net, Pipeline(4)))
            continue
        if hybrid:
            net.hybridize()
        trainer, x, losses = (
            gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}),
            nd.ones((12, 10)) * 0.3,
            [],
        )
        for step in range(4):
            with autograd.record():
                loss = square(net(x))
            loss.backward()
            trainer.step(12)
            losses.append(loss.asnumpy())
            if step == 1 and places:
                net.place(made.move("3", CPU[1]))
        results.append((losses, [p.data().asnumpy() for p in net.collect_params().values()]))
    for losses, params in results[1:]:
        assert all((a == b).all() for a, b in zip(losses, results[0][0])) and all(
            (a == b).all() for a, b in zip(params, results[0][1])
        )


def test_schedule_needs_only_one_record(monkeypatch):
    """Its entry in `SCHEDULES` suffices for a pipeline, 'auto' and the planner."""
    built = []

    def build(stages, micro_batches):
        built.append(len(stages))
        return schedules.make_table(stages, micro_batches, "gpipe")

    own = {
        "pairs": schedules.Schedule(lambda after, stage: 2, deferred=True),
        "rounds": schedules.Schedule(None, rounds=2, build=build),
    }
    for name, record in own.items():
        monkeypatch.setitem(schedules.SCHEDULES, name, record)
    expected = train(two_stages(), Pipeline(6, "1f1b"))
    for name in own:
        pipeline = Pipeline(6, name)
        assert pipeline.deferred == (name == "pairs")
        losses, params = train(two_stages(), pipeline)
        assert np.array_equal(losses, expected[0])
        assert all(map(np.array_equal, params, expected[1]))
        table = pipeline.report().stages.table(name, 6, "FB")
        most = [most_held(row, "W" if name == "pairs" else "B") for row in table]
        assert most == ([2, 2] if name == "pairs" else [6, 6])
    assert built
    built.clear()
    train(two_stages(), Pipeline(6, "auto"), 4)  # 'auto' builds every schedule
    assert built
    best = Search(synthetic(3, 6), micro_batches=[1, 4], names=["rounds"]).run()
    changes = [d for d, former in zip(best.placement, (None, *best.placement)) if d != former]
    assert best.micro_batches == 4 and len(changes) == 4
    made = small_plan(layered(), schedules="pairs", trials=0)
    assert made.schedule == "pairs" and made.pipeline().schedule == "pairs"
    with pytest.raises(
        ValueError, match="unknown schedule 'lone'; expected one of gpipe.* pairs, rounds"
    ):
        made.change(schedule="lone")


def two_stages():
    """Returns a network on two devices."""
    mx.random.seed(2)
    net = nn.HybridSequential()
    net.add(
        nn.Dense(8, activation="tanh"),
        nn.HybridLambda(lambda F, x: x.as_in_context(CPU[1])),
        nn.Dense(4),
    )
    net[0].initialize(mx.init.Xavier(), ctx=CPU[0])
    net[2].initialize(mx.init.Xavier(), ctx=CPU[1])
    return net


def most_held(row, last):
    """Returns the maximum number of micro-batches that a device with one stage holds."""
    held = most = 0
    for action in row:
        held += (action.kind == "F") - (action.kind == last)
        most = max(most, held)
    return most


@pytest.mark.slow
def test_plan_rejects_invalid_arguments(tmp_path):
    net, x = layered(), nd.ones((12, 10))
    with pytest.raises(ValueError, match="devices must be a list of different Contexts"):
        plan(net, x, [CPU[0], CPU[0]])
    with pytest.raises(ValueError, match="unknown schedule '2f2b'; expected one of gpipe"):
        plan(net, x, CPU[:2], schedules=["2f2b"])
    with pytest.raises(ValueError, match="12 rows cannot be divided into 13 micro-batches"):
        plan(net, x, CPU[:2], micro_batches=13)
    with pytest.raises(ValueError, match=r"limit for cpu\(3\), which is not one of"):
        plan(net, x, CPU[:2], memory={CPU[3]: 1}, micro_batches=2, repeats=1, progress=False)
    with pytest.raises(mx.MXNetError, match="must be a HybridBlock, not Sequential"):
        plan(nn.Sequential(), x, CPU[:2])
    with pytest.raises(mx.MXNetError, match="not initialized; call net.initialize"):
        plan(_with(nn.Dense(3)), x, CPU[:2])
    with pytest.raises(mx.MXNetError, match="has no children"):
        plan(nn.HybridSequential(), x, CPU[:2])
    for memory in ("1G", -5, True, {CPU[0]: "1G"}):
        with pytest.raises(
            ValueError,
            match="memory must be a number of bytes, or a dict of Context to bytes, not ",
        ):
            plan(net, x, CPU[:2], memory=memory)
    with pytest.raises(ValueError, match="schedules must have at least one of"):
        plan(net, x, CPU[:2], schedules=[])
    for sample in ([], nd.array(3.0).reshape(()), np.ones((4, 10)), [x, 3]):
        with pytest.raises(
            ValueError,
            match="sample must be an NDArray with the batch along axis 0, or a list of these, not ",
        ):
            plan(net, sample, CPU[:2])
    with pytest.raises(ValueError, match="label 1 has 3 rows, but the sample has 12"):
        plan(net, x, CPU[:2], loss=square, labels=[x, nd.ones(3)])
    with pytest.raises(
        ValueError, match="labels must be an NDArray or a list of NDArrays, not int"
    ):
        plan(net, x, CPU[:2], loss=square, labels=3)
    for option in ({"repeats": 0}, {"trials": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be an integer, at least"):
            plan(net, x, CPU[:2], **option)
    with pytest.raises(
        mx.MXNetError,
        match="no placement exists for interleaved and 1 micro-batches of 7 layers on 2 devices",
    ):
        plan(net, x, CPU[:2], schedules="interleaved", micro_batches=1, repeats=1, progress=False)
    with pytest.raises(TypeError, match="a Mesh or a Plan, got str"):
        net.place("cpu")
    made = small_plan(net)
    with pytest.raises(
        TypeError, match="report must be the result of pipeline.report.., not Pipeline"
    ):
        made.compare(made.pipeline())
    with pytest.raises(ValueError, match="unknown layer 'x'; expected one of 0, 1.0, 1.1"):
        made.move("x", CPU[0])
    with pytest.raises(ValueError, match=r"cpu\(3\) is not one of the plan's devices"):
        made.move("0", CPU[3])
    with pytest.raises(
        mx.MXNetError,
        match="for another network: it has a Dense at '1.0', but this network has none",
    ):
        other = _with(nn.Dense(3), nn.Dense(3))
        other.initialize()
        made.place(other)
    with pytest.raises(mx.MXNetError, match="made for batches of 12 rows, but the sample has 6"):
        plan(net, nd.ones((6, 10)), CPU[:2], profile=made.profile)
    with pytest.raises(mx.MXNetError, match=r"no measurements on cpu\(2\)"):
        plan(net, x, CPU[:3], profile=made.profile)
    with pytest.raises(mx.MXNetError, match="no placement fits .* more than its limit of 100"):
        plan(net, x, CPU[:2], memory=100, profile=made.profile)
    with pytest.raises(mx.MXNetError, match="not a plan"):
        Plan.from_json({"format": "else"})
    data = made.to_json()
    del data["placement"]["0"]
    with pytest.raises(mx.MXNetError, match="the plan is damaged: KeyError: '0'"):
        Plan.from_json(data)
    for name, value, said in (
        ("micro_batches", 0, "0 micro-batches"),
        ("micro_batches", 13, "13 micro-batches"),
        ("schedule", "2f2b", "'2f2b'"),
        ("placement", {"0": "cpu(7)"}, ""),
    ):
        with pytest.raises(mx.MXNetError, match=f"the plan is damaged: .*{said}"):
            Plan.from_json({**made.to_json(), name: value})
    data = made.profile.to_json()
    data["layers"][1]["sources"] = [[9, 4]]
    with pytest.raises(mx.MXNetError, match="the profile is damaged: .*later layer"):
        Profile.from_json(data)
    with pytest.raises(mx.MXNetError, match="not a profile"):
        Profile.from_json([])
    grouped = layered()
    grouped[0]._ctx_group = "mine"
    with pytest.raises(mx.MXNetError, match="'0' already belongs to the group 'mine'"):
        made.place(grouped)


def test_layer_called_twice_raises():
    class Twice(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.a = nn.Dense(10, in_units=10)

        def hybrid_forward(self, F, x):
            return self.a(self.a(x))

    net = Twice()
    net.initialize()
    with pytest.raises(mx.MXNetError, match="layer 'a Dense' is called more than once"):
        plan(net, nd.ones((12, 10)), CPU[:2])


def _with(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def test_progress_bars_are_shown_on_request(capfd):
    """For measurements and long searches; progress=False shows none."""
    pytest.importorskip("tqdm")
    net = mx.gluon.nn.HybridSequential()
    net.add(*[mx.gluon.nn.Dense(8, in_units=8) for _ in range(3)])
    net.initialize()
    given = dict(micro_batches=2, repeats=1, trials=0)
    made = mx.parallel.plan(net, nd.ones((8, 8)), CPU[:2], progress=True, **given)
    assert re.search(r"profile: 100%|profile.*3/3", capfd.readouterr().err)
    mx.parallel.plan(net, nd.ones((8, 8)), CPU[:2], progress=False, **given)
    assert not capfd.readouterr().err
    shown = Search(made.profile, micro_batches=[2], progress=True)._shown([1, 2, 3])
    assert list(shown) == [1, 2, 3] and shown.desc.startswith("search")
