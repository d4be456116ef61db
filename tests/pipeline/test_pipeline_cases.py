"""Pipelines of many kinds of networks have the bits of one device, in a loop and with
TrainStep."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, ScheduleError, TrainStep, schedules
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
    equal,
    gradients,
    loss_of,
    token_loss,
)


class Parts(gluon.HybridBlock):
    """Layers a and b on two devices, combined by a function."""

    def __init__(self, devices, body, in_units=6):
        super().__init__()
        self.body, self.one, self.two = body, DEVICES[devices[0]], DEVICES[devices[1]]
        with self.name_scope():
            self.a, self.b = (
                nn.Dense(6, in_units=in_units, flatten=False),
                nn.Dense(6, in_units=6, flatten=False),
            )
        mx.random.seed(3)
        self.a.initialize(mx.init.Xavier(), ctx=self.one)
        self.b.initialize(mx.init.Xavier(), ctx=self.two)

    def hybrid_forward(self, F, x, *more):
        return self.body(self, F, x, *more)


def forward(net, F, x):
    return net.b(net.a(x).as_in_context(net.two))


def several(net, F, x, y):
    return net.b(net.a(x * y).as_in_context(net.two)) + y.as_in_context(net.two)


def nested(net, F, x, pair):
    y, (z,) = pair
    return net.b(net.a(x * y).as_in_context(net.two)) * z.as_in_context(net.two)


def whole_table(net, F, x, table):
    return net.b(net.a(F.dot(x, table)).as_in_context(net.two))


def class_token(net, F, x, token):
    rows = x.shape[0]
    repeated = [
        F.broadcast_to(token, (rows, 6)),
        F.tanh(F.broadcast_axis(token, axis=0, size=rows)) * 2,
        F.tile(token, reps=(rows, 1)) + token,
        F.repeat(token, repeats=rows, axis=0),
    ]
    return net.b(net.a(F.mean(F.stack(x, *repeated, axis=1), axis=1)).as_in_context(net.two))


def row_for_each_head(net, F, x, token):
    """Lengths or masks of attention are repeated for each sample, then for each head."""
    rows = x.shape[0]
    tokens = F.repeat(F.tile(token, reps=(rows, 1)), repeats=2, axis=0)
    heads = F.repeat(x, repeats=2, axis=0) * F.tanh(tokens)
    return net.b(net.a(F.mean(heads.reshape((rows, 2, 6)), axis=1)).as_in_context(net.two))


def several_results(net, F, x):
    h = net.a(x)
    return [net.b(h.as_in_context(net.two)), (h * 2, h.as_in_context(net.two).sum(axis=1))]


def results_on_both(net, F, x):
    h = net.a(x)
    return net.b(h.as_in_context(net.two)).as_in_context(net.one), h


def run_loop(body, devices, pipeline, inputs, **options):
    net = Parts(devices, body, **options)
    net.hybridize(exact=True, pipeline=pipeline)
    with autograd.record():
        out = net(*inputs)
        flat = [out] if isinstance(out, nd.NDArray) else list(flattened(out))
        losses = [loss_of(o) for o in flat]
        autograd.backward(losses)
    return [o.asnumpy() for o in flat], gradients(net)


def flattened(value):
    if isinstance(value, nd.NDArray):
        yield value
    else:
        for item in value:
            yield from flattened(item)


X, Y = data((7, 6)), data((7, 6), 1)
CASES = {
    "several inputs": (several, (X, Y)),
    "nested inputs": (nested, (X, [Y, (Y,)])),
    "an input that is not divided": (whole_table, (X, data((6, 6), 2))),
    "several results": (several_results, (X,)),
    "one row repeated for each sample": (class_token, (X, data((1, 6), 2))),
    "one row repeated for each head": (row_for_each_head, (X, data((1, 6), 2))),
    "results on both devices": (results_on_both, (X,)),
}


@pytest.mark.parametrize("case", CASES)
def test_inputs_and_results_of_many_shapes_keep_the_bits(case):
    """3 micro-batches of 3, 2 and 2 rows. Each receives the whole 6 x 6 input."""
    body, inputs = CASES[case]
    expected = run_loop(body, (0, 0), Pipeline(3), inputs)
    whole = run_loop(body, (0, 0), None, inputs)
    got = run_loop(body, (0, 1), Pipeline(3), inputs)
    assert equal(expected[1], got[1])
    for a, b, c in zip(expected[0], got[0], whole[0]):
        assert np.array_equal(a, b) and np.array_equal(a, c)


def test_split_selects_the_divided_inputs():
    table = data((7, 6), 2)  # as many rows as the batch, but not divided

    def body(net, F, x, table):
        return net.b(net.a(x + F.sum(table, axis=0, keepdims=True)).as_in_context(net.two))

    expected = run_loop(body, (0, 0), None, (X, table))
    got = run_loop(body, (0, 1), Pipeline(3, split=[0]), (X, table))
    assert np.array_equal(expected[0][0], got[0][0])
    with pytest.raises(ValueError, match=r"split=\[5\] does not match the 2 inputs"):
        run_loop(body, (0, 1), Pipeline(3, split=[5]), (X, table))
    with pytest.raises(ValueError, match="input 1 has 6 rows along axis 0, but input 0 has 7"):
        run_loop(body, (0, 1), Pipeline(3, split=[0, 1]), (X, data((6, 6))))


def test_auxiliary_losses_accept_labels_on_any_device():
    def body(net, F, x):
        h = net.a(x)
        return net.b(h.as_in_context(net.two)), h

    def losses(outputs, y):
        out, hidden = outputs
        return [((out - y) ** 2).mean(axis=1), 0.3 * (hidden**2).mean(axis=1)]

    results = []
    for devices, label in (
        ((0, 0), Y),
        ((0, 1), Y),
        ((0, 1), Y.as_in_context(DEVICES[1])),
        ((0, 1), Y.as_in_context(DEVICES[2])),
    ):
        net = Parts(devices, body)
        got = TrainStep(net, losses, None, Pipeline(3), exact=True)(X, label)
        results.append(([loss.asnumpy() for loss in got], gradients(net)))
    for got in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0][0], got[0]))
        assert equal(results[0][1], got[1])


@pytest.mark.parametrize("assigned", [False, True])
@pytest.mark.parametrize("schedule", [None, *schedules.NAMES])
def test_parameter_shared_by_two_stages_keeps_the_bits(schedule, assigned):
    """The last layer shares the first one's parameters but is on another device. It uses a copy,
    whose gradient is sent back."""

    def run(devices, schedule):
        net = nn.HybridSequential()
        first = nn.Dense(16, in_units=16, activation="tanh")
        last = nn.Dense(16, in_units=16, params=None if assigned else first.params)
        net.add(first, nn.Dense(16, in_units=16), last)
        if assigned:
            last.weight, last.bias = first.weight, first.bias
        net.place(
            mx.parallel.Mesh({"stage": len(devices)}, devices=devices),
            stages=[[net[0], net[1]], [net[2]]] if len(devices) == 2 else None,
        )
        mx.random.seed(4)
        net.initialize(mx.init.Xavier())
        if schedule is None:
            net.hybridize(exact=True, pipeline=Pipeline(4))
            with autograd.record():
                loss = loss_of(net(data((10, 16))))
            loss.backward()
        else:
            loss = TrainStep(net, loss_of, None, Pipeline(4, schedule), exact=True)(
                data((10, 16)), []
            )
        return loss.asnumpy(), gradients(net)

    expected, got = run([DEVICES[0]], None), run([DEVICES[0], DEVICES[1]], schedule)
    assert np.array_equal(expected[0], got[0]) and equal(expected[1], got[1])


def test_deferred_shapes_are_inferred_in_a_pipeline():
    net = Parts((0, 1), forward, in_units=0)
    other = Parts((0, 1), forward)
    train = TrainStep(net, loss_of, None, Pipeline(3), exact=True)
    mx.random.seed(9)
    train(X, [])
    assert net.a.weight.shape == (6, 6)
    for mine, its in zip(net.collect_params().values(), other.collect_params().values()):
        its.set_data(mine.data())
    TrainStep(other, loss_of, None, Pipeline(3), exact=True)(X, [])
    assert equal(gradients(net), gradients(other))


def test_train_step_accepts_batches_of_other_sizes():
    net = NETS["dense"][0]([0, 1])
    train = TrainStep(net, loss_of, None, Pipeline(4), exact=True)
    for rows in (4, 5, 11, 4):
        x = data((rows, 16))
        mx.random.seed(2)
        loss = train(x, []).asnumpy()
        got = gradients(net)
        one = NETS["dense"][0]([0, 0])
        mx.random.seed(2)
        assert np.array_equal(
            loss, TrainStep(one, loss_of, None, Pipeline(4), exact=True)(x, []).asnumpy()
        )
        assert equal(got, gradients(one))


def trained(devices, pipeline, way):
    net = NETS["branches"][0](devices)
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    )
    train = TrainStep(net, gluon.loss.L2Loss(), trainer, pipeline, exact=True)
    loss = gluon.loss.L2Loss()
    if way == "loop":
        net.hybridize(exact=True, pipeline=pipeline)
    for number in range(5):
        x, y = data((10, 16), number), data((10, 16), 50 + number)
        if way == "step":
            train(x, y)
            continue
        with autograd.record():
            out = net(x)
            value = loss(out, y.as_in_context(out.context))
        value.backward()
        trainer.step(10)
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def test_momentum_over_steps_keeps_the_bits():
    expected = trained([0, 0, 0], Pipeline(4), "loop")
    for way, schedule in (("loop", "1f1b"), ("step", "1f1b"), ("step", "zero_bubble")):
        assert equal(expected, trained([0, 1, 2], Pipeline(4, schedule), way))


def test_grad_req_add_accumulates_over_steps():
    def accumulated(devices):
        net = NETS["branches"][0](devices)
        net.collect_params().setattr("grad_req", "add")
        train = TrainStep(net, loss_of, None, Pipeline(3), exact=True)
        for number in range(3):
            train(data((9, 16), number), [])
        return gradients(net)

    got, expected = accumulated([0, 1, 2]), accumulated([0, 0, 0])
    assert equal(got, expected)
    net = NETS["branches"][0]([0, 0, 0])
    TrainStep(net, loss_of, None, Pipeline(3), exact=True)(data((9, 16), 0), [])
    assert not equal(got, gradients(net))


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_recompute_in_a_pipeline_keeps_bits_and_saves_memory(schedule):
    def run(recompute):
        net = Chain([0, 1], big)
        train = TrainStep(net, loss_of, None, Pipeline(4, schedule), exact=True)
        if recompute:
            for part in net.parts:
                part.hybridize(recompute=True)
        loss = train(data((512, 256)), []).asnumpy()
        return loss, gradients(net), train.pipeline.report().planned_bytes

    loss, grads, planned = run(False)
    again, grads_again, planned_again = run(True)
    assert np.array_equal(loss, again) and equal(grads, grads_again)
    # The second device starts backward immediately, so recompute saves nothing there.
    assert (
        planned_again[DEVICES[0]] < 0.9 * planned[DEVICES[0]]
        and planned_again[DEVICES[1]] <= planned[DEVICES[1]]
    )


class Wide(gluon.HybridBlock):
    """The second half of a transformer block: its inner activations are eight times as large as its
    input and output."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.norm = nn.LayerNorm(in_channels=64)
            self.inner, self.outer = (
                nn.Dense(512, in_units=64, flatten=False, activation="tanh"),
                nn.Dense(64, in_units=512, flatten=False),
            )

    def hybrid_forward(self, F, x):
        return x + self.outer(self.inner(self.norm(x)))


def wide_part(i):
    part = nn.HybridSequential()
    with part.name_scope():
        part.add(*[Wide() for _ in range(6)])
    return part


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_recompute_saves_the_planned_memory(schedule):
    """Devices hold the inner activations of one block instead of those of all micro-batches in
    flight, both as planned and as measured."""

    def run(recompute):
        net = Chain([0, 1, 2], wide_part)
        train = TrainStep(net, loss_of, None, Pipeline(8, schedule), exact=True)
        for part in net.parts if recompute else ():
            for block in part:
                block.hybridize(recompute=True)
        x, measured, before = data((1024, 64)), {}, {}
        for _ in range(2):
            train(x, [])
        nd.waitall()
        for ctx in DEVICES[:3]:
            mx.context.reset_peak_memory(ctx)
            before[ctx] = mx.context.memory_stats(ctx)["in_use"]
        loss = train(x, [])
        nd.waitall()
        for ctx in before:
            measured[ctx] = mx.context.memory_stats(ctx)["peak_in_use"] - before[ctx]
        return loss.asnumpy(), gradients(net), train.pipeline.report().planned_bytes, measured

    loss, grads, planned, measured = run(False)
    again, grads_again, planned_again, measured_again = run(True)
    assert np.array_equal(loss, again) and equal(grads, grads_again)
    for before, after in ((planned, planned_again), (measured, measured_again)):
        shares = [after[ctx] / before[ctx] for ctx in DEVICES[:3]]
        # The deferred weight gradients of zero_bubble's later stages keep recomputed activations.
        assert max(shares[: 1 if schedule == "zero_bubble" else 3]) < 0.45, shares
    for plans, peaks in ((planned, measured), (planned_again, measured_again)):
        for ctx in peaks:
            # The losses are not in the plan
            assert abs(peaks[ctx] - plans[ctx]) <= 0.05 * plans[ctx] + 3 * 1024 * 4, (
                ctx,
                plans,
                peaks,
            )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_recompute_of_a_block_that_spans_stages_keeps_the_bits(schedule):
    """Each device recomputes the activations of its stages before their backward passes."""

    def run(recompute):
        net = Chain([0, 1, 2], big)
        net.hybridize(recompute=recompute)
        train = TrainStep(net, loss_of, None, Pipeline(4, schedule), exact=True)
        loss = train(data((64, 256)), []).asnumpy()
        return loss, gradients(net), len(train.pipeline.report().stages)

    loss, grads, stages = run(False)
    again, grads_again, more = run(True)
    assert np.array_equal(loss, again) and equal(grads, grads_again) and more > stages


# --- Along time ---


class Causal(gluon.HybridBlock):
    """Causal convolutions over (time, batch, channels); the last steps are the state."""

    def __init__(self, devices):
        super().__init__()
        self.devices = [DEVICES[d] for d in devices]
        self.layers = []
        mx.random.seed(3)
        with self.name_scope():
            for i, ctx in enumerate(self.devices):
                layer = nn.Dense(6, in_units=18, flatten=False, activation="tanh")
                setattr(self, f"layer{i}", layer)
                self.layers.append(layer)
                layer.initialize(mx.init.Xavier(), ctx=ctx)

    def hybrid_forward(self, F, x, states):
        after = []
        for layer, ctx, state in zip(self.layers, self.devices, states):
            x = F.concat(state, x.as_in_context(ctx), dim=0)
            after.append(F.slice_axis(x, axis=0, begin=-2, end=None))
            windows = [
                F.slice_axis(x, axis=0, begin=k, end=k - 2 if k < 2 else None) for k in range(3)
            ]
            x = layer(F.concat(*windows, dim=2))
        return x, after


def test_causal_networks_along_time_keep_the_bits():
    x = data((11, 3, 6))
    results = []
    for devices, pieces in (([0, 0, 0], 1), ([0, 0, 0], 4), ([0, 1, 2], 4)):
        for schedule in ("gpipe", "zero_bubble"):
            net = Causal(devices)
            states = [nd.zeros((2, 3, 6), ctx=ctx) for ctx in net.devices]
            train = TrainStep(
                net,
                lambda out: (out**2).mean(axis=2),
                None,
                Pipeline(pieces, schedule, along="time"),
                exact=True,
            )
            loss, after = train(x, [], states)
            results.append((loss.asnumpy(), gradients(net), [s.asnumpy() for s in after]))
    for got in results[1:]:
        assert np.allclose(results[0][0], got[0], atol=1e-6)
        assert all(
            np.allclose(a, b, rtol=1e-4, atol=1e-6)
            for a, b in zip(results[0][1].values(), got[1].values())
        )
    for got in results[3:]:
        assert equal(results[2][1], got[1]) and all(
            np.array_equal(a, b) for a, b in zip(results[2][2], got[2])
        )


# --- Errors and edge cases ---


def test_results_across_the_batch_raise():
    def total(net, F, x):
        return net.b(net.a(x).as_in_context(net.two)).sum(axis=0, keepdims=True)

    net = Parts((0, 1), total)
    net.hybridize(pipeline=Pipeline(3))
    with pytest.raises(mx.MXNetError, match="mixes data across the batch"):
        net(X)


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble", "a table"])
@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_than_micro_batches_keep_the_bits(schedule, rows):
    """The last batch of an epoch uses one micro-batch per row, with the bits, steps and statistics
    of accumulating them."""

    def make(devices):
        net = Chain(
            devices,
            lambda i: (
                nn.Dense(16, in_units=16, activation="tanh")
                if i != 1
                else nn.BatchNorm(in_channels=16, momentum=0.7)
            ),
        )
        return net, gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})

    def table(count):
        net = make([0, 1, 1])[0]
        train = TrainStep(net, loss_of, None, Pipeline(count))
        train(data((count, 16)), [])
        return schedules.make_table(
            train.pipeline.report().stages.graph, count, "1f1b", in_flight=1
        )

    (net, trainer), (one, its) = make([0, 1, 1]), make([0, 0, 0])
    train = TrainStep(
        net,
        loss_of,
        trainer,
        Pipeline(4, table(4) if schedule == "a table" else schedule),
        exact=True,
    )
    one.collect_params().setattr("grad_req", "add")
    for number, count in enumerate((8, rows, 8)):
        x = data((count, 16), number)
        loss = train(x, []).asnumpy()
        assert train.pipeline.report().micro_batches == min(count, 4)
        one.collect_params().zero_grad()
        losses = []
        for begin in range(0, count, max(count // 4, 1)):
            with autograd.record():
                losses.append(loss_of(one(x[begin : begin + max(count // 4, 1)])))
            losses[-1].backward()
        its.step(count)
        assert np.array_equal(loss, nd.concat(*losses, dim=0).asnumpy())
    for mine, other in zip(net.collect_params().values(), one.collect_params().values()):
        assert np.array_equal(mine.data().asnumpy(), other.data().asnumpy()), mine.name


@pytest.mark.parametrize("statistics", ["micro_batch", "batch"])
def test_batch_without_rows_equals_a_hybridized_block(statistics):
    """Compares results and gradients with those of a hybridized block."""
    results = []
    for pipeline in (None, Pipeline(4, statistics=statistics)):
        net = Chain(
            [0, 1], lambda i: nn.Dense(16, in_units=16) if i else nn.BatchNorm(in_channels=16)
        )
        net.hybridize(pipeline=pipeline)
        with autograd.record():
            out = net(data((0, 16)))
        out.backward()
        results.append(
            (
                out.shape,
                [p.data().asnumpy().tolist() for p in net.collect_params().values()],
                [g.tolist() for g in gradients(net).values()],
            )
        )
    assert results[0] == results[1] and results[0][0] == (0, 16)


def test_fewer_time_steps_than_pieces_keep_the_bits():
    """11 time steps in 12 pieces equal 11 pieces."""
    results = []
    for pieces in (12, 11):
        net = Recurrent([0, 1], 0.0)
        train = TrainStep(net, token_loss, None, Pipeline(pieces, along="time"), exact=True)
        loss, _ = train(TOKENS, TARGETS, net.states(3))
        results.append((loss.asnumpy(), gradients(net)))
    assert np.array_equal(results[0][0], results[1][0]) and equal(results[0][1], results[1][1])


def test_deadlocked_schedule_error_names_the_cycle():
    table = [
        [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)],
        [("F", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1)],
    ]
    table[0] = [("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1)]
    table[1] = [("F", 1, 0), ("F", 1, 1), ("B", 1, 0), ("B", 1, 1)]
    train = TrainStep(NETS["dense"][0]([0, 1]), loss_of, None, Pipeline(2, table))
    with pytest.raises(
        ScheduleError,
        match="deadlock: backward of stage 0, micro-batch 0 waits for the backward of stage 1, "
        "micro-batch 0, which the schedule puts "
        "after the forward of stage 1, micro-batch 1, which waits for the forward of stage 0, "
        "micro-batch 1, which the schedule puts after the backward of stage 0, micro-batch 0",
    ):
        train(data((10, 16)), [])


# --- All combinations ---


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("devices", [[0, 1], [0, 1, 2], [0, 1, 2, 3]], ids=["2", "3", "4"])
def test_all_schedules_on_all_networks_keep_the_bits(kind, devices):
    make, shape, _ = NETS[kind]
    one = make([0] * len(devices))
    mx.random.seed(5)
    expected = (
        TrainStep(one, loss_of, None, Pipeline(4), exact=True)(data(shape), []).asnumpy(),
        gradients(one),
    )
    for engine in ("async", "shuffle"):
        mx.engine.set_mode(engine, 11)
        try:
            for schedule in (*schedules.NAMES, "auto"):
                net = make(devices)
                train = TrainStep(net, loss_of, None, Pipeline(4, schedule), exact=True)
                for _ in range(3 if schedule == "auto" else 1):
                    mx.random.seed(5)
                    loss = train(data(shape), []).asnumpy()
                assert np.array_equal(loss, expected[0]) and equal(gradients(net), expected[1]), (
                    engine,
                    schedule,
                )
                net.hybridize(exact=True, pipeline=Pipeline(4, schedule))
                mx.random.seed(5)
                with autograd.record():
                    loss = loss_of(net(data(shape)))
                loss.backward()
                assert np.array_equal(loss.asnumpy(), expected[0]) and equal(
                    gradients(net), expected[1]
                ), (engine, schedule)
        finally:
            nd.waitall()
            mx.engine.set_mode("async")


def test_labels_of_another_length_raise():
    net = Parts((0, 1), forward)
    loss = lambda out, label, weight: (out - label) ** 2 * weight
    x, label, weight = data((9, 6)), data((9, 6), 1), nd.array([2.0])
    assert TrainStep(net, loss, None, Pipeline(3))(
        x, [label, weight.as_in_context(DEVICES[1])]
    ).shape == (9, 6)
    # As long as a micro-batch, so each micro-batch would use the whole label
    with pytest.raises(ValueError, match="label 0 has 3 rows along axis 0, but the data has 9"):
        TrainStep(net, loss, None, Pipeline(3))(x, [label[:3], weight])
    assert TrainStep(net, loss, None, Pipeline(3, split=[0], check=False))(
        x, [label[:3], weight]
    ).shape == (9, 6)


def test_bfloat16_is_reported_with_its_name_and_size():
    """In compiled graphs and layer profiles; to NumPy it is an 8-byte object."""
    net = Chain([0, 1], lambda i: nn.Dense(16, in_units=16))
    net.cast("bfloat16")
    net.hybridize(pipeline=Pipeline(2))
    net(data((4, 16)).astype("bfloat16"))
    assert "bfloat16" in str(net.compiled())
    optimizer = {"optimizer_params": {"multi_precision": True}}
    profile = mx.parallel.plan(
        net, data((4, 16)).astype("bfloat16"), DEVICES[:2], trials=0, **optimizer
    ).profile
    assert profile.layers[0].param_bytes == 2 * (16 * 16 + 16) and profile.input_bytes == 2 * 4 * 16


@pytest.mark.parametrize("request_, times", [("write", 1), ("add", 2)])
def test_train_step_computes_gradients_of_its_data(request_, times):
    net = nn.Dense(3, in_units=4)
    net.initialize(mx.init.Uniform(1))
    x, y, loss = nd.random.uniform(shape=(5, 4)), nd.ones((5, 3)), gluon.loss.L2Loss()
    x.attach_grad(request_)
    step = TrainStep(net, loss, None, Pipeline(2), exact=True)
    for _ in range(times):
        step(x, y)
    found = x.grad.asnumpy()
    x.attach_grad()
    with autograd.record():
        whole = loss(net(x), y)
    whole.backward()
    np.testing.assert_array_equal(found, times * x.grad.asnumpy())


def test_train_step_accepts_nested_inputs_and_results():
    """Lists and dicts of arrays are divided like flat arguments, on one and on two replicas."""

    class Sum(gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="sum_")
            with self.name_scope():
                self.dense = nn.Dense(2, in_units=3)

        def hybrid_forward(self, F, inputs, scale):
            h = self.dense(inputs["a"] + inputs["b"][0])
            return {"h": F.broadcast_mul(h, scale), "raw": h}

    def train(mesh):
        mx.random.seed(2)
        net = Sum()
        if mesh is not None:
            net.place(mesh, verbose=False)
        net.initialize(mx.init.Xavier(), **({} if mesh is not None else {"ctx": on(0)}))
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        loss = lambda out, label: nd.mean(nd.square(out["h"] - label), axis=1)
        step = TrainStep(net, loss, trainer, Pipeline(2), exact=True)
        a, b, label = (
            nd.array(np.random.RandomState(i).rand(4, n), ctx=on(0))
            for i, n in ((1, 3), (2, 3), (3, 2))
        )
        losses = step([{"a": a, "b": [b]}, nd.full((1, 2), 0.5, ctx=on(0))], label)
        return losses.asnumpy(), net.dense.weight.list_data()[0].asnumpy()

    losses, weight = train(None)
    on_mesh, found = train(mx.parallel.Mesh({"data": 2}, [on(0), on(1)]))
    np.testing.assert_allclose(on_mesh, losses, rtol=1e-5)
    np.testing.assert_allclose(found, weight, rtol=1e-5)


def test_custom_table_excludes_the_device_of_inputs():
    table = [
        [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)],
        [("F", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1)],
    ]

    def losses(where):
        mx.random.seed(3)
        net = nn.HybridSequential()
        net.add(nn.Dense(8, in_units=6), nn.Dense(4, in_units=8))
        net.place({"0": mx.cpu(0), "1": mx.cpu(1)}, verbose=False)
        net.initialize(mx.init.Xavier())
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        step = TrainStep(net, gluon.loss.L2Loss(), trainer, Pipeline(2, table))
        x = nd.arange(24).reshape((4, 6)).as_in_context(where)
        y = nd.ones((4, 4)).as_in_context(where)
        return [step(x[:rows], y[:rows]).asnumpy().tolist() for rows in (4, 4, 1)]

    assert losses(mx.cpu(2)) == losses(mx.cpu(0))
