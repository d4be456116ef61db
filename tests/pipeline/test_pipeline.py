"""Pipelines have the bits of accumulating the micro-batches on one device, for any schedule and
placement."""

import gc
import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, ScheduleError, TrainStep, schedules
from mpgluon.parallel._pipeline import stages
from support.devices import on
from support.pipelines import (
    DEVICES,
    NETS,
    TARGETS,
    TOKENS,
    Chain,
    Recurrent,
    big,
    data,
    dense,
    equal,
    gradients,
    loss_of,
    token_loss,
)
from support.stand_in import ON_CARD

PLACEMENTS = {"2": [0, 1], "3": [0, 1, 2], "4": [0, 1, 2, 3], "back and forth": [0, 1, 0, 1]}


def loop(kind, devices, pipeline):
    """Runs the ordinary loop; returns output, loss and gradients."""
    make, shape, _ = NETS[kind]
    net = make(devices)
    net.hybridize(exact=True, pipeline=pipeline)
    mx.random.seed(5)
    with autograd.record():
        out = net(data(shape))
        loss = loss_of(out)
    loss.backward()
    return out.asnumpy(), loss.asnumpy(), gradients(net)


def step(kind, devices, pipeline):
    make, shape, _ = NETS[kind]
    net = make(devices)
    mx.random.seed(5)
    train = TrainStep(net, lambda out: loss_of(out), None, pipeline, exact=True)
    return train(data(shape), []).asnumpy(), gradients(net)


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_pipeline_has_the_bits_of_accumulated_micro_batches(kind, placement):
    devices = PLACEMENTS[placement]
    one = [0] * len(devices)
    whole, whole_losses, _ = loop(kind, one, None)
    pieces, losses, accumulated = loop(kind, one, Pipeline(4))
    out, loss, grads = loop(kind, devices, Pipeline(4))
    assert np.array_equal(out, pieces) and np.array_equal(loss, losses)
    assert equal(grads, accumulated)
    close = (lambda a, b: np.allclose(a, b, 1e-4, 1e-5)) if ON_CARD else np.array_equal
    assert close(out, whole) and close(loss, whole_losses)
    for schedule in schedules.NAMES:
        loss, grads = step(kind, devices, Pipeline(4, schedule))
        assert np.array_equal(loss, losses), schedule
        assert equal(grads, accumulated), schedule


def test_pipeline_has_the_bits_of_manual_accumulation():
    """Runs the micro-batches one by one with grad_req 'add', without a pipeline."""
    net = NETS["branches"][0]([0, 1])
    net.collect_params().setattr("grad_req", "add")
    net.hybridize(exact=True)
    for begin, end in ((0, 3), (3, 6), (6, 8), (8, 10)):
        with autograd.record():
            loss = loss_of(net(data((10, 16))[begin:end]))
        loss.backward()
    assert equal(gradients(net), step("branches", [0, 1], Pipeline(4))[1])


def test_pipeline_honors_grad_req_add_and_null():
    net = NETS["dense"][0]([0, 1])
    params = list(net.collect_params().values())
    params[0].grad_req = "null"
    params[1].grad_req = "add"
    params[1].grad()[:] = 3
    train = TrainStep(net, loss_of, None, Pipeline(2), exact=True)
    mx.random.seed(5)
    train(data((10, 16)), [])
    other = NETS["dense"][0]([0, 1])
    mx.random.seed(5)
    TrainStep(other, loss_of, None, Pipeline(2), exact=True)(data((10, 16)), [])
    expected = list(other.collect_params().values())
    assert np.allclose(params[1].grad().asnumpy(), expected[1].grad().asnumpy() + 3)
    assert np.array_equal(params[2].grad().asnumpy(), expected[2].grad().asnumpy())


def test_pipeline_computes_input_gradients():
    net = NETS["dense"][0]([0, 1])
    results = []
    for pipeline in (None, Pipeline(3)):
        net.hybridize(exact=True, pipeline=pipeline)
        x = data((10, 16))
        x.attach_grad()
        mx.random.seed(5)
        with autograd.record():
            loss = loss_of(net(x * 1))
        loss.backward()
        results.append(x.grad.asnumpy())
    assert np.array_equal(*results)


def test_pipelined_prediction_has_the_bits_of_one_device():
    net = NETS["dense"][0]([0, 1])
    expected = net(data((7, 16))).asnumpy()
    net.hybridize(exact=True, pipeline=Pipeline(3))
    assert np.array_equal(net(data((7, 16))).asnumpy(), expected)


def test_train_step_with_batch_norm_reduces_the_loss():
    """Running statistics are updated once per micro-batch."""
    net = Chain([0, 1], lambda i: nn.HybridSequential())
    for part, ctx in zip(net.parts, net.devices):
        part.add(nn.Dense(16, in_units=16), nn.BatchNorm(in_channels=16))
        part.initialize(mx.init.Xavier(), ctx=ctx)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    train = TrainStep(net, gluon.loss.L2Loss(), trainer, Pipeline(4))
    x, y = data((32, 16)), data((32, 16), 1)
    losses = [train(x, y).mean().asscalar() for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]


# --- Along time ---


def recurrent(devices, pieces, schedule=None, dropout=0.0):
    net = Recurrent(devices, dropout)
    mx.random.seed(5)
    if schedule:
        train = TrainStep(
            net, token_loss, None, Pipeline(pieces, schedule, along="time"), exact=True
        )
        loss, states = train(TOKENS, TARGETS, net.states(3))
    else:
        net.hybridize(exact=True, pipeline=Pipeline(pieces, along="time"))
        with autograd.record():
            out, states = net(TOKENS, net.states(3))
            loss = token_loss(out, TARGETS.as_in_context(out.context))
        loss.backward()
    return loss.asnumpy(), [s.asnumpy() for pair in states for s in pair], gradients(net)


def test_time_pipeline_has_the_bits_of_successive_calls():
    """Compares with a plain loop over the pieces and one backward at the end."""
    net = Recurrent([0, 0], 0.0)
    states, losses = net.states(3), []
    with autograd.record():
        for begin, end in ((0, 4), (4, 8), (8, 11)):
            out, states = net(TOKENS[begin:end], states)
            losses.append(token_loss(out, TARGETS[begin:end]))
        autograd.backward(losses)
    loss, after, grads = recurrent([0, 1], 3)
    assert np.array_equal(loss, np.concatenate([piece.asnumpy() for piece in losses]))
    assert all(
        np.array_equal(a, s.asnumpy()) for a, s in zip(after, [s for pair in states for s in pair])
    )
    assert equal(grads, gradients(net))


@pytest.mark.parametrize("pieces", [1, 3, 5])
def test_time_pipeline_bits_do_not_depend_on_placement(pieces):
    one = recurrent([0, 0, 0], pieces, dropout=0.4)
    for devices in ([0, 1, 2], [0, 1, 0]):
        for schedule in (None, "gpipe", "zero_bubble"):
            other = recurrent(devices, pieces, schedule, 0.4)
            assert np.array_equal(one[0], other[0]) and equal(one[2], other[2])
            assert all(np.array_equal(a, b) for a, b in zip(one[1], other[1]))


def test_dropout_does_not_depend_on_the_number_of_pieces():
    """A piece draws the same random numbers as its part of the whole."""
    whole, pieces = recurrent([0, 1], 1, dropout=0.4), recurrent([0, 1], 4, dropout=0.4)
    assert np.allclose(whole[0], pieces[0], rtol=1e-5, atol=1e-6)
    assert all(
        np.allclose(a, b, rtol=1e-4, atol=1e-6)
        for a, b in zip(whole[2].values(), pieces[2].values())
    )


def test_pipeline_supports_any_batch_axis():
    class Flat(gluon.HybridBlock):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def hybrid_forward(self, F, x, *states):
            return self.net(x, [list(pair) for pair in zip(states[::2], states[1::2])])[0]

    results = []
    for pieces in (1, 3):
        block = Flat(Recurrent([0, 1], 0.4))
        block.hybridize(exact=True, pipeline=Pipeline(pieces, axis=1))
        mx.random.seed(5)
        with autograd.record():
            out = block(TOKENS, *[s for pair in block.net.states(3) for s in pair])
        out.backward()
        results.append((out.asnumpy(), gradients(block)))
    assert np.allclose(results[0][0], results[1][0], atol=1e-6)
    assert all(
        np.allclose(a, b, rtol=1e-4, atol=1e-6)
        for a, b in zip(results[0][1].values(), results[1][1].values())
    )


# --- Schedules ---


def linear(stages, devices=None, **options):
    return schedules.StageGraph(
        range(stages) if devices is None else devices,
        [[s - 1] if s else [] for s in range(stages)],
        **options,
    )


def test_schedules_have_their_theoretical_bubbles():
    for count in (2, 3, 4):
        for name in ("gpipe", "1f1b"):
            table = schedules.make_table(linear(count), 8, name)
            assert schedules.simulate(table, linear(count), 8).makespan == 3 * (8 + count - 1)
    graph = linear(4, deferred=True)
    assert schedules.simulate(
        schedules.make_table(graph, 8, "zero_bubble"), graph, 8
    ).makespan < 3 * (8 + 3)
    graph = linear(4, [0, 1, 0, 1])
    assert (
        schedules.simulate(schedules.make_table(graph, 8, "interleaved"), graph, 8).makespan
        == 2 * 3 * 8 + 3
    )


def test_1f1b_holds_few_micro_batches_at_once():
    table = schedules.make_table(linear(4), 16, "1f1b")
    for stage, row in enumerate(table):
        held = most = 0
        for action in row:
            held += 1 if action.kind == "F" else -1
            most = max(most, held)
        assert most == 4 - stage


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t[0].pop(), "backward of stage 0, micro-batch 1 is missing"),
        (lambda t: t[0].append(("F", 0, 0)), "twice"),
        (lambda t: t[0].append(("F", 7, 0)), "stage 7"),
        (lambda t: t[0].append(("F", 0, 9)), "micro-batch 9"),
        (
            lambda t: t[0].append(("W", 0, 0)),
            "weight gradients of stage 0, micro-batch 1 is missing",
        ),
        (lambda t: t[1].append(t[0].pop()), "is on device 0"),
        (lambda t: t[0].reverse(), "out of order"),
        (
            lambda t: (t[1].remove(("B", 1, 0)), t[1].insert(0, ("B", 1, 0))),
            "deadlock: backward of stage 1, micro-batch 0 waits for the forward of stage 1",
        ),
        (lambda t: t.pop(), "1 devices, but the pipeline spans 2"),
        (lambda t: t[0].append(("X", 0, 0)), "'F', 'B' or 'W'"),
        (lambda t: t[0].append(3), "must be"),
        (lambda t: t[0].append(("F", "a", 0)), "stage and micro-batch must be integers"),
        (lambda t: t[0].append(("F", 0, 0.5)), "stage and micro-batch must be integers"),
        (lambda t: t[0].append(("F", -1, 0)), "stage -1"),
        (
            lambda t: t[1].insert(0, t[1].pop(2)),
            "deadlock: backward of stage 1, micro-batch 0 waits for the forward of stage 1",
        ),
    ],
)
def test_invalid_schedule_table_error_names_the_fault(change, message):
    table = [[tuple(a) for a in row] for row in schedules.make_table(linear(2), 2, "gpipe")]
    change(table)
    train = TrainStep(NETS["dense"][0]([0, 1]), loss_of, None, Pipeline(2, table))
    with pytest.raises(ScheduleError, match=message):
        train(data((10, 16)), [])


def test_custom_schedule_table_has_the_same_bits():
    table = [["F0 F1 F2 B0 B1 B2"], ["F0 B0 F1 F2 B1 B2"]]
    table = [[(a[0], d, int(a[1])) for a in row[0].split()] for d, row in enumerate(table)]
    loss, grads = step("dense", [0, 1], Pipeline(3, table))
    expected = step("dense", [0, 0], Pipeline(3))
    assert np.array_equal(loss, expected[0]) and equal(grads, expected[1])


def test_auto_selects_the_schedule_with_the_shortest_simulation():
    net = Chain([0, 1, 2], big)
    pipeline = Pipeline(4, "auto")
    train = TrainStep(net, loss_of, None, pipeline, exact=True)
    losses = [train(data((64, 256)), []).asnumpy() for _ in range(4)]
    assert all(np.array_equal(losses[0], loss) for loss in losses)
    report = pipeline.report()
    assert report.schedule in schedules.NAMES and f"by {report.schedule}: " in str(report)
    assert f"schedule='auto', last {report.schedule}" in repr(pipeline)
    makespans = {
        name: schedules.simulate(
            schedules.make_table(report.stages.graph, 4, name), report.stages.graph, 4, report.times
        ).makespan
        for name in schedules.NAMES
    }
    assert report.planned.makespan <= min(makespans.values()) * 1.5


def test_random_schedule_tables_have_the_same_bits(shuffled_engine):
    """Any topological order has the same bits, and no execution order exposes a missing
    dependency."""
    random = np.random.RandomState(3)
    expected = step("branches", [0, 1, 2], Pipeline(4, "gpipe"))
    for _ in range(6):
        times = {(kind, s): random.rand() + 0.1 for kind in "FB" for s in range(8)}
        net = NETS["branches"][0]([0, 1, 2])
        pipeline = Pipeline(4, "1f1b")
        TrainStep(net, loss_of, None, pipeline, exact=True)(data((10, 16)), [])
        graph = pipeline.report().stages.graph
        table = schedules.make_table(graph, 4, "1f1b", times, in_flight=int(random.randint(1, 5)))
        loss, grads = step("branches", [0, 1, 2], Pipeline(4, table))
        assert np.array_equal(loss, expected[0]) and equal(grads, expected[1])


@pytest.fixture
def shuffled_engine():
    mx.engine.set_mode("shuffle", 7)
    yield
    mx.engine.set_mode("async")


# --- Memory ---


def peaks_of(schedule, pieces=8, rows=512):
    net = Chain([0, 1, 2], big)
    train = TrainStep(net, loss_of, None, Pipeline(pieces, schedule))
    x = data((rows, 256))
    for _ in range(2):
        train(x, [])
    nd.waitall()
    before = {}
    for ctx in DEVICES[:3]:
        mx.context.reset_peak_memory(ctx)
        before[ctx] = mx.context.memory_stats(ctx)["in_use"]
    loss = train(x, [])
    nd.waitall()
    measured = {ctx: mx.context.memory_stats(ctx)["peak_in_use"] - before[ctx] for ctx in before}
    assert loss.shape == (rows,)
    return train.pipeline.report().planned_bytes, measured


@pytest.mark.parametrize("schedule", schedules.NAMES)
def test_planned_peak_memory_equals_measured(schedule):
    planned, measured = peaks_of(schedule)
    for ctx in planned:
        assert abs(measured[ctx] - planned[ctx]) <= 0.05 * planned[ctx] + 3 * 512 * 4, (
            ctx,
            planned,
            measured,
        )


def test_planned_peak_memory_of_uneven_micro_batches_equals_measured():
    """Lanes of different sizes must not share memory, even if the pool rounds them to one size."""
    planned, measured = peaks_of("1f1b", 12, 510)
    for ctx in planned:
        assert abs(measured[ctx] - planned[ctx]) <= 3 * 512 * 4, (ctx, planned, measured)


def test_1f1b_takes_less_memory_than_gpipe():
    few, all_of_them = peaks_of("1f1b")[1], peaks_of("gpipe")[1]
    assert few[DEVICES[2]] < 0.5 * all_of_them[DEVICES[2]]
    assert few[DEVICES[0]] < 0.8 * all_of_them[DEVICES[0]]


def test_gradients_are_accumulated_one_by_one():
    net = Chain([0, 1], big)
    train = TrainStep(net, loss_of, None, Pipeline(4))
    train(data((4, 256)), [])
    weights = sum(p.data().size * 4 for p in net.parts[0].collect_params().values())
    # Room for the gradients of one of three layers
    assert train.pipeline.report().planned_bytes[DEVICES[0]] < 0.6 * weights


def test_schedule_over_the_memory_limit_raises():
    net = Chain([0, 1, 2], big)
    train = TrainStep(net, loss_of, None, Pipeline(4, "gpipe"))
    gc.collect()  # otherwise garbage of earlier tests could be freed later and make room
    mx.nd.waitall()
    limit = mx.context.memory_stats(DEVICES[1])["in_use"] + 200_000
    mx.context.set_memory_limit(DEVICES[1], limit)
    try:
        with pytest.raises(ScheduleError, match=r"bytes on [cg]pu\(1\).*more than its limit"):
            train(data((512, 256)), [])
    finally:
        mx.context.set_memory_limit(DEVICES[1], None)
    # The trainer must not use old gradients
    assert not any(param.data()._fresh_grad for param in net.collect_params().values())
    train(data((512, 256)), [])


def test_ordinary_loop_plans_memory_held_between_passes():
    net, x = Chain([0, 1, 2], big), data((512, 256))
    pipeline = Pipeline(8)
    net.hybridize(pipeline=pipeline)

    def loop():
        with autograd.record():
            out = net(x)
        if limited:
            mx.context.set_memory_limit(
                DEVICES[1], mx.context.memory_stats(DEVICES[1])["in_use"] + 10_000
            )
        out.backward()

    limited = False
    for _ in range(2):
        loop()
    nd.waitall()
    for ctx in DEVICES[:2]:  # the third also holds results and their gradients
        mx.context.reset_peak_memory(ctx)
        before = mx.context.memory_stats(ctx)["in_use"]
        loop()
        nd.waitall()
        planned, measured = (
            pipeline.report().planned_bytes[ctx],
            mx.context.memory_stats(ctx)["peak_in_use"] - before,
        )
        assert abs(measured - planned) <= 0.05 * planned, (ctx, planned, measured)
    gc.collect()  # otherwise freed garbage of other tests could make room
    try:
        mx.context.set_memory_limit(
            DEVICES[1], mx.context.memory_stats(DEVICES[1])["in_use"] + 200_000
        )
        with (
            autograd.record(),
            pytest.raises(
                ScheduleError,
                match=r"bytes on [cg]pu\(1\).*ordinary loop all micro-batches are in flight at "
                r"once",
            ),
        ):
            net(x)
        mx.context.set_memory_limit(DEVICES[1], None)
        limited = True
        with pytest.raises(ScheduleError, match=r"bytes on [cg]pu\(1\).*ordinary loop"):
            loop()
    finally:
        limited = False
        mx.context.set_memory_limit(DEVICES[1], None)
    loop()


# --- Reports and errors ---


def test_report_has_times_bytes_and_a_plot(tmp_path):
    net = NETS["dense"][0]([0, 1])
    pipeline = Pipeline(4)
    train = TrainStep(net, loss_of, None, pipeline)
    with pytest.raises(mx.base.MXNetError, match="no step has run"):
        pipeline.report()
    for _ in range(2):
        train(data((10, 16)), [])
    report = pipeline.report()
    assert set(report.busy) == {DEVICES[0], DEVICES[1]} and 0 <= report.bubble < 1
    assert len(report.spans) == 2 * 2 * 4
    assert (
        report.bytes_copied[DEVICES[0]] == 10 * 16 * 4
        and report.bytes_copied[DEVICES[1]] == 10 * 16 * 4
    )
    assert "stage" in repr(report)
    for shown in (report, train.compiled()):  # text and HTML have the same cells
        page = shown._repr_html_()
        cells = re.findall(r"<t[hd][^>]*>([^<]+)</t[hd]>", page)
        assert "device" in cells and str(DEVICES[1]) in cells and "bytes" in page
        assert [cell for cell in cells if cell not in repr(shown)] == []
    pytest.importorskip("matplotlib")
    pipeline.plot(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").stat().st_size > 1000


def test_train_step_compiled_lists_stages_and_bytes():
    net = Chain([0, 1, 0], dense)
    train = TrainStep(net, loss_of, None, Pipeline(3, "zero_bubble"))
    assert len(net.compiled()) == 0 and "nothing is compiled" in repr(train.compiled())
    for _ in range(2):
        train(data((10, 16)), [])
    (entry,) = train.compiled()
    report = train.pipeline.report()
    assert (
        entry["rows"] == [4, 3, 3]
        and entry["calls"] == 2
        and entry["train"]
        and "zero_bubble" in entry["pipeline"]
    )
    assert [(stage["device"], stage["blocks"]) for stage in entry["stages"]] == [
        (str(on(0)), "Chain.0"),
        (str(on(1)), "Chain.1"),
        (str(on(0)), "Chain.2"),
    ]
    assert all(
        stage["forward"] and stage["backward"] + stage["deferred"] and stage["copies"]
        for stage in entry["stages"][:2]
    )
    sent = {
        ctx: sum(s["bytes_sent"] for s in entry["stages"] if s["device"] == ctx)
        for ctx in (str(on(0)), str(on(1)))
    }
    # Four rows in each direction
    assert sent == {
        str(on(0)): 2 * 4 * 16 * 4,
        str(on(1)): 2 * 4 * 16 * 4,
    }
    for ctx, device in entry["devices"].items():
        forward, both, arriving = device["planned"][4]
        assert 0 < forward <= both <= device["peak"] and 0 < arriving <= both
        assert device["peak"] == report.planned_bytes[on(int(ctx[4]))]
        assert device["segments"] == sum(
            s["device"] == on(int(ctx[4]))
            for d in (report.stages.forward, report.stages.backward)
            for s in d[0]["segments"]
        )
    text = repr(train.compiled())
    for part in (
        "Chain for training",
        "operators for each micro-batch, called 2 times",
        "rows: 1 of 4, 2 of 3",
        "planned for 4 rows: both passes",
        "Chain.2",
    ):
        assert part in text, part
    net.hybridize(pipeline=Pipeline(3))
    looped = net(data((10, 16)))
    assert (
        looped.shape == (10, 16)
        and "Chain for prediction" in repr(net.compiled())
        and "Chain.1" in net.compiled().programs()
    )


def test_stages_are_named_after_blocks():
    assert [
        stages._name_of(ops)
        for ops in (
            ["net.body.a/dot", "net.body.b/relu", "net/_copyto"],
            ["net.a.x/dot", "net.b/dot"],
            ["net/dot"],
            ["/dot"],
        )
    ] == [
        "net.body",
        "net.a ... net.b",
        "net",
        "dot",
    ]


def test_stages_name_the_layers_of_a_divided_sequence():
    first = ["net.tokens/dot", "net.layers.0.a/dot", "net.layers.1.a/dot", "net.layers.1.b/add"]
    middle = ["net.layers.2.a/dot", "net.layers.3.a/dot"]
    last = ["net.layers.4.a/dot", "net.head/dot"]
    named = [
        stages._name_of(own, stages._prefixes([*one, *other]))
        for own, one, other in ((first, middle, last), (middle, first, last), (last, first, middle))
    ]
    assert named == [
        "net.tokens ... net.layers.1",
        "net.layers.2 ... net.layers.3",
        "net.layers.4 ... net.head",
    ]


def test_invalid_pipelines_and_networks_raise():
    net = NETS["dense"][0]([0, 1])
    with pytest.raises(ValueError, match="positive integer"):
        Pipeline(0)
    with pytest.raises(ValueError, match="unknown schedule"):
        Pipeline(2, "2f2b")
    with pytest.raises(ValueError, match="along must be"):
        Pipeline(2, along="space")
    with pytest.raises(mx.base.MXNetError, match="must be an mx.parallel.Pipeline"):
        net.hybridize(pipeline=4)

    class Mean(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x.mean(axis=0)

    mean = Mean()
    mean.hybridize(pipeline=Pipeline(2))
    with pytest.raises(mx.base.MXNetError, match="mixes data across the batch"):
        mean(data((6, 5)))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"micro_batches": True}, "positive integer"),
        ({"schedule": None}, "schedule must be a name, or for each device a list"),
        ({"schedule": [5, 6]}, "schedule must be a name, or for each device a list"),
        ({"axis": -1}, "axis must be a non-negative integer"),
        ({"axis": "0"}, "axis must be a non-negative integer"),
        ({"split": 0}, "split must be a list of unique input indices"),
        ({"split": []}, "split must be a list of unique input indices"),
        ({"split": [0, 0]}, "unique input indices"),
        ({"carry": {1: 1}}, "carry= needs a pipeline along time"),
        ({"along": "time", "carry": [1]}, "carry must be a dict of integers"),
        ({"along": "time", "carry": {"a": 1}}, "carry must be a dict of integers"),
    ],
)
def test_invalid_pipeline_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        Pipeline(**{"micro_batches": 2, **options})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"pipeline": "1f1b"}, "pipeline must be an mx.parallel.Pipeline, not str"),
        ({"loss": "l2"}, "loss must be callable as"),
        ({"loss": lambda out: None}, "loss must return an array with the loss of each sample"),
        ({"loss": lambda out: out.mean()}, "the loss of each sample, not their mean or sum"),
        ({"net": gluon.loss.L2Loss()}, "must be the network and the second the loss, not L2Loss"),
        ({"trainer": "sgd"}, "trainer must be a gluon.Trainer or None, not str"),
        ({"net": lambda x: x}, "must be a HybridBlock"),
    ],
)
def test_invalid_train_step_arguments_raise(change, message):
    options = {
        "net": NETS["dense"][0]([0, 1]),
        "loss": loss_of,
        "trainer": None,
        "pipeline": Pipeline(2),
        **change,
    }
    with pytest.raises(mx.base.MXNetError, match=message):
        TrainStep(**options)(data((8, 16)), [])


def test_missing_returned_states_raise():
    class Forgets(gluon.HybridBlock):
        def hybrid_forward(self, F, x, states):
            return x * 2

    net = Forgets()
    net.hybridize(pipeline=Pipeline(2, along="time"))
    with pytest.raises(
        mx.base.MXNetError, match="Forgets: .* called as net.x, states. and returns .out, states."
    ):
        net(data((4, 3)), nd.zeros((1, 3)))
    train = TrainStep(
        Recurrent([0, 1], 0.0), token_loss, None, Pipeline(2, along="time", carry={1: 7})
    )
    with pytest.raises(
        mx.base.MXNetError, match="Recurrent: argument 1 has 4 arrays of state, but result 7"
    ):
        train(TOKENS, TARGETS, Recurrent([0, 1], 0.0).states(3))


def test_gradients_of_gradients_raise():
    net = NETS["dense"][0]([0, 1])
    net.hybridize(pipeline=Pipeline(2))
    x = data((4, 16))
    x.attach_grad()
    with autograd.record():
        loss = loss_of(net(x)).sum()
        with pytest.raises(mx.base.MXNetError, match="gradients of gradients"):
            autograd.grad(loss, [x], create_graph=True)


def test_gradients_use_the_values_that_the_forward_read():
    net = NETS["dense"][0]([0, 1])
    net.hybridize(pipeline=Pipeline(2))
    found, rows = [], data((4, 16))
    for write in (False, True):
        x = rows.copy()
        mx.random.seed(3)
        with autograd.record():
            loss = loss_of(net(x))
        parameters = list(net.collect_params().values())
        former = [p.data().copy() for p in parameters]
        if write:
            x[:] = 0
            for p in parameters:
                p.set_data(nd.zeros(p.shape))
        loss.backward()
        found.append([p.grad().asnumpy().copy() for p in parameters])
        for p, value in zip(parameters, former):
            p.set_data(value)
    for a, b in zip(*found):
        assert (a == b).all()


CAPTURED = nd.full((1, 3), 2)
OVERWRITTEN = {
    "captured array 0": (4, lambda F, x: x * CAPTURED, lambda x, out: CAPTURED),
    "input 0": (
        4,
        lambda F, x: F.square(x.reshape((-1,))).reshape((-1, 3)),
        lambda x, out: x,
    ),  # the op reads a view
    "result 0": (
        3,
        lambda F, x: F.exp(x) if x.shape[0] == 1 else F.exp(x) + 0,
        lambda x, out: out,
    ),  # only the last piece reads it
}


@pytest.mark.parametrize("named", OVERWRITTEN)
def test_overwriting_arrays_after_the_forward_keeps_gradients(named):
    rows, function, written = OVERWRITTEN[named]

    class Block(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return function(F, x)

    net = Block()
    net.hybridize(pipeline=Pipeline(2, check=False))
    x = data((rows, 3))
    x.attach_grad()
    found = []
    for write in (False, True):
        with autograd.record():
            out = net(x)
        if write:
            written(x, out)[:] = 1
        out.backward()
        found.append(x.grad.asnumpy().copy())
    assert (found[0] == found[1]).all()
