"""All combinations of networks, devices, schedules, batch or time axis, and ordinary loop or
TrainStep, bit for bit.

The quick part uses two devices. The sweep over two, three and four devices, both engines and
random schedules is slow.
"""

import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from mpgluon.parallel import Pipeline, TrainStep, schedules
from support.pipelines import DEVICES as PLACES, NETS, data, equal, gradients, loss_of

VOCABULARY, WIDTH = 13, 8
DEVICES = {"2": [0, 0, 1, 1], "3": [0, 1, 2, 2], "4": [0, 1, 2, 3], "back and forth": [0, 1, 0, 1]}


class Model(gluon.HybridBlock):
    """Four layers on devices, between an embedding and a decoder that share a weight: it is on the
    first device, and the last uses a copy."""

    def __init__(self, devices, make, dropout=0.2):
        super().__init__()
        self.devices, self.layers = [PLACES[d] for d in devices], []
        mx.random.seed(11)
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(VOCABULARY, WIDTH))
            for i, ctx in enumerate(self.devices):
                layer = make()
                setattr(self, f"layer{i}", layer)
                self.layers.append(layer)
                layer.initialize(mx.init.Xavier(), ctx=ctx)
            self.drop = nn.Dropout(dropout)
        self.weight.initialize(mx.init.Normal(0.5), ctx=self.devices[0])

    def decode(self, F, x, weight):
        return F.FullyConnected(
            x,
            weight.as_in_context(x.context),
            None,
            no_bias=True,
            num_hidden=VOCABULARY,
            flatten=False,
        )


class LSTM(Model):
    """Takes (time, batch) tokens; states are an argument and a result, or start at zero."""

    def __init__(self, devices, **options):
        super().__init__(devices, lambda: rnn.LSTM(WIDTH, input_size=WIDTH), **options)

    def states(self, batch):
        return [layer.begin_state(batch, ctx=ctx) for layer, ctx in zip(self.layers, self.devices)]

    def hybrid_forward(self, F, x, states=None, weight=None):
        h, after = F.Embedding(x, weight, input_dim=VOCABULARY, output_dim=WIDTH), []
        for i, (layer, ctx) in enumerate(zip(self.layers, self.devices)):
            h = h.as_in_context(ctx)
            h, state = layer(h, states[i]) if states else (layer(h), None)
            h = self.drop(h)
            after.append(state)
        h = self.decode(F, h, weight)
        return (h, after) if states else h


class Attention(gluon.HybridBlock):
    """Causal attention of (batch, time, width) over the carried keys and its own steps."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.norm = nn.LayerNorm(in_channels=WIDTH)
            self.qkv = nn.Dense(3 * WIDTH, in_units=WIDTH, flatten=False)
            self.out = nn.Dense(WIDTH, in_units=WIDTH, flatten=False)

    def hybrid_forward(self, F, x, before=None):
        q, k, v = F.split(self.qkv(self.norm(x)), num_outputs=3, axis=-1)
        if before is not None:
            k, v = F.concat(before[0], k, dim=1), F.concat(before[1], v, dim=1)
        rows, keys = q.shape[1], k.shape[1]
        later = F.broadcast_greater(
            F.arange(keys, ctx=x.context), F.arange(keys - rows, keys, ctx=x.context).expand_dims(1)
        )
        scores = F.broadcast_sub(
            F.batch_dot(q, k, transpose_b=True) / WIDTH**0.5, 1e9 * later.expand_dims(0)
        )
        return x + self.out(F.batch_dot(F.softmax(scores), v)), [k, v]


class Transformer(Model):
    """Takes (batch, time) tokens; states are the number of steps so far and the keys and
    values."""

    def __init__(self, devices, **options):
        super().__init__(devices, Attention, **options)
        with self.name_scope():
            self.positions = self.params.get("positions", shape=(16, WIDTH))
        self.positions.initialize(mx.init.Normal(0.5), ctx=self.devices[0])

    def states(self, batch):
        return [
            nd.zeros((1,), ctx=self.devices[0]),
            *[[nd.zeros((batch, 0, WIDTH), ctx=ctx)] * 2 for ctx in self.devices],
        ]

    def hybrid_forward(self, F, x, states=None, weight=None, positions=None):
        at = F.arange(x.shape[1], ctx=x.context)
        if states:
            at = F.broadcast_add(at, states[0])
        h = F.Embedding(x, weight, input_dim=VOCABULARY, output_dim=WIDTH)
        h = F.broadcast_add(
            h, F.Embedding(at, positions, input_dim=16, output_dim=WIDTH).expand_dims(0)
        )
        after = [states[0] + x.shape[1]] if states else None
        for i, (layer, ctx) in enumerate(zip(self.layers, self.devices)):
            h, state = (
                layer(h.as_in_context(ctx), states[1 + i])
                if states
                else layer(h.as_in_context(ctx))
            )
            h = self.drop(h)
            if states:
                after.append(state)
        h = self.decode(F, h, weight)
        return (h, after) if states else h


class Joined(gluon.HybridBlock):
    """Recurrent branches of (time, batch, features) on two devices, joined on the first."""

    def __init__(self, devices, dropout=0.2):
        super().__init__()
        self.devices = [PLACES[d] for d in devices]
        mx.random.seed(11)
        with self.name_scope():
            self.first, self.left, self.right, self.last = self.layers = [
                rnn.GRU(WIDTH, input_size=WIDTH) for _ in range(4)
            ]
            self.drop = nn.Dropout(dropout)
        for layer, ctx in zip(self.layers, self.devices):
            layer.initialize(mx.init.Xavier(), ctx=ctx)

    def states(self, batch):
        return [layer.begin_state(batch, ctx=ctx) for layer, ctx in zip(self.layers, self.devices)]

    def hybrid_forward(self, F, x, states):
        one, two, three, four = self.devices
        h, a = self.first(x, states[0])
        h = self.drop(h)
        left, b = self.left(h.as_in_context(two), states[1])
        right, c = self.right(h.as_in_context(three), states[2])
        h, d = self.last(left.as_in_context(four) * right.as_in_context(four), states[3])
        return h.as_in_context(one), [a, b, c, d]


def tokens(*shape):
    return nd.array(np.random.RandomState(0).randint(0, VOCABULARY, shape))


def token_loss(out, y):
    return -nd.pick(nd.log_softmax(out), y)


def square_loss(out, y):
    return ((out - y) ** 2).mean(axis=-1)


def sample_loss(out, y):
    """Per-sample loss for any number of axes after the first."""
    return loss_of(out)


class Case:
    """A network, its inputs and how the pipeline divides them."""

    def __init__(self, make, x, y, loss, pieces, states=None, **options):
        self.make, self.x, self.y, self.loss, self.pieces, self.states, self.options = (
            make,
            x,
            y,
            loss,
            pieces,
            states,
            options,
        )

    def pipeline(self, schedule="1f1b"):
        return Pipeline(self.pieces, schedule, **self.options)

    def inputs(self, net):
        return [
            self.x.as_in_context(net.devices[0]),
            *([net.states(self.states)] if self.states else []),
        ]

    def loop(self, devices, pipeline, exact=True):
        """Runs the ordinary loop; returns losses and states, then gradients."""
        net = self.make(devices)
        net.hybridize(exact=exact, pipeline=pipeline)
        mx.random.seed(5)
        with autograd.record():
            out = net(*self.inputs(net))
            out, after = out if self.states else (out, [])
            loss = self.loss(out, self.y.as_in_context(out.context))
        loss.backward()
        return [loss.asnumpy(), *flat(after)], gradients(net)

    def step(self, devices, schedule, steps=1):
        net, results = self.make(devices), None
        train = TrainStep(net, self.loss, None, self.pipeline(schedule), exact=True)
        for _ in range(steps):
            mx.random.seed(5)
            inputs = self.inputs(net)
            loss = train(inputs[0], self.y, *inputs[1:])
            loss, after = loss if self.states else (loss, [])
            results = [loss.asnumpy(), *flat(after)]
        self.graph = train.pipeline.report().stages.graph
        return results, gradients(net)

    def expected(self):
        """Returns the result of the loop on one device, without schedule tables."""
        if not hasattr(self, "_expected"):
            self._expected = self.loop([0, 0, 0, 0], self.pipeline())
        return self._expected

    def by_hand(self):
        """Accumulates gradients piece by piece, without a pipeline and without dropout. Along time
        the last piece runs backward first, which gives the gradients of the states that the
        previous piece returned."""
        net, axis = self.make([0, 0, 0, 0], dropout=0.0), self.options.get("axis", 0)
        net.hybridize(exact=True)
        net.collect_params().setattr("grad_req", "add")
        state, pieces, begin = [net.states(self.states)] if self.states else [], [], 0
        for size in [
            len(part) for part in np.array_split(np.arange(self.x.shape[axis]), self.pieces)
        ]:
            x, y = (
                nd.slice_axis(a, axis=axis, begin=begin, end=begin + size) for a in (self.x, self.y)
            )
            begin += size
            state = cut(state)
            with autograd.record():
                out = net(x, *state)
                out, after = out if state else (out, [])
                pieces.append((self.loss(out, y), arrays(state), arrays(after)))
            state = [after] if state else []
        heads = []
        for loss, before, after in reversed(pieces) if self.states else pieces:
            autograd.backward(
                [loss, *after] if heads else [loss], [nd.ones_like(loss), *heads] if heads else None
            )
            heads = [a.grad for a in before]
        return np.concatenate([loss.asnumpy() for loss, _, _ in pieces], axis=axis), gradients(net)


def arrays(value):
    return [value] if isinstance(value, nd.NDArray) else [a for item in value for a in arrays(item)]


def cut(state):
    """Returns detached arrays with separate gradients."""
    if isinstance(state, nd.NDArray):
        state = state.detach()
        state.attach_grad()
        return state
    return [cut(item) for item in state]


def flat(value):
    return [a.asnumpy() for a in arrays(value)]


def plain(kind):
    make, shape, _ = NETS[kind]

    def made(devices, dropout=None):
        net = make(devices)
        if not hasattr(net, "devices"):
            net.devices = [PLACES[d] for d in devices]
        return net

    x = data(shape)
    return Case(made, x, x, sample_loss, 4)


CASES = {
    "LSTM, batch": Case(LSTM, tokens(5, 7), nd.floor(tokens(5, 7) / 2), token_loss, 3, axis=1),
    "transformer, batch": Case(
        Transformer, tokens(7, 5), nd.floor(tokens(7, 5) / 2), token_loss, 3
    ),
    "convolution, batch": plain("convolution"),
    "branches, batch": plain("branches"),
    "LSTM, time": Case(
        LSTM, tokens(11, 3), nd.floor(tokens(11, 3) / 2), token_loss, 3, 3, along="time"
    ),
    "transformer, time": Case(
        Transformer,
        tokens(3, 11),
        nd.floor(tokens(3, 11) / 2),
        token_loss,
        3,
        3,
        along="time",
        axis=1,
    ),
    "branches, time": Case(
        Joined, data((11, 3, WIDTH)), data((11, 3, WIDTH), 1), square_loss, 3, 3, along="time"
    ),
}


def check(got, expected, what):
    assert len(got[0]) == len(expected[0]) and all(
        np.array_equal(a, b) for a, b in zip(got[0], expected[0])
    ), what
    assert equal(got[1], expected[1]), what


def random_table(case, devices, random):
    """Returns a random topological order: list scheduling by random times, with a random number of
    micro-batches in flight."""
    graph = case.graph
    times = {(kind, s): random.rand() + 0.1 for kind in "FBW" for s in range(len(graph))}
    return schedules.make_table(
        graph, case.pieces, "1f1b", times, in_flight=int(random.randint(1, case.pieces + 1))
    )


@pytest.mark.parametrize("name", CASES)
def test_two_devices_have_the_bits_of_one(name):
    """Covers tied weights, dropout and pieces of different sizes, for all schedules, in the loop
    and with TrainStep."""
    case = CASES[name]
    check(case.loop(DEVICES["2"], case.pipeline()), case.expected(), "loop")
    for schedule in schedules.NAMES:
        check(case.step(DEVICES["2"], schedule), case.expected(), schedule)


@pytest.mark.parametrize("name", ["LSTM, time", "transformer, time", "branches, batch"])
def test_planned_and_measured_order_are_equal(name, tmp_path):
    """No stage waits for the first stage's backward pass, so all of it is deferred; it is still
    reported as a backward pass."""
    case = CASES[name]
    net = case.make(DEVICES["3"])
    train = TrainStep(net, case.loss, None, case.pipeline("zero_bubble"), exact=True)
    inputs = case.inputs(net)
    train(inputs[0], case.y, *inputs[1:])
    report = train.pipeline.report()
    report.trace(tmp_path / "trace.json")
    rows = {}
    for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]:
        if event.get("cat") in ("planned", "measured"):
            row = rows.setdefault(event["cat"], {}).setdefault(event["args"]["stage"], [])
            row.append((event["ts"], event["name"]))
    planned, measured = (
        {s: [n for _, n in sorted(row)] for s, row in rows[k].items()}
        for k in ("planned", "measured")
    )
    assert planned == measured
    backward = [name for row in planned.values() for name in row if name.startswith("backward")]
    pieces = report.micro_batches
    assert {f"backward of stage 0, micro-batch {m}" for m in range(pieces)} <= set(backward)
    for row in rows["planned"].values():  # every box has a nonzero duration
        assert len({ts for ts, _ in row}) == len(row)


@pytest.mark.parametrize("name", [name for name in CASES if "convolution" not in name])
def test_pipeline_has_the_bits_of_eager_micro_batches(name):
    """Compares with micro-batches one after the other in a plain loop."""
    case = CASES[name]
    losses, grads = case.by_hand()
    quiet = Case(
        lambda devices: case.make(devices, dropout=0.0),
        case.x,
        case.y,
        case.loss,
        case.pieces,
        case.states,
        **case.options,
    )
    got = quiet.loop(DEVICES["back and forth"], quiet.pipeline())
    assert np.array_equal(got[0][0], losses) and equal(got[1], grads)


def test_time_pieces_have_the_loss_of_the_whole_sequence():
    """Equals the network on the whole sequence without a pipeline, within rounding."""
    for name in ("LSTM, time", "transformer, time"):
        case = CASES[name]
        whole = case.loop(DEVICES["2"], None, exact=True)
        got = case.expected()
        for a, b in zip(whole[0], got[0]):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        for key, a, b in zip(whole[1], whole[1].values(), got[1].values()):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", [name for name in CASES if "time" in name])
def test_grad_req_add_adds_gradients_along_time(name):
    """Gradients of the pieces are added in reverse order."""
    case, results = CASES[name], []
    for devices, schedule in (([0, 0, 0, 0], "gpipe"), (DEVICES["3"], "zero_bubble")):
        net = case.make(devices)
        net.collect_params().setattr("grad_req", "add")
        for param in net.collect_params().values():
            param.grad()[:] = 3
        train = TrainStep(net, case.loss, None, case.pipeline(schedule), exact=True)
        mx.random.seed(5)
        inputs = case.inputs(net)
        train(inputs[0], case.y, *inputs[1:])
        results.append(gradients(net))
    assert equal(*results)
    for got, fresh in zip(results[0].values(), case.expected()[1].values()):
        np.testing.assert_allclose(got, 3 + fresh, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["async", "shuffle"])
@pytest.mark.parametrize("placement", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_every_schedule_has_the_same_bits_on_any_devices(name, placement, engine):
    case, devices, random = CASES[name], DEVICES[placement], np.random.RandomState(3)
    expected = case.expected()
    mx.engine.set_mode(engine, 11)
    try:
        for schedule in (*schedules.NAMES, "auto"):
            check(case.loop(devices, case.pipeline(schedule)), expected, ("loop", schedule))
            check(
                case.step(devices, schedule, steps=4 if schedule == "auto" else 1),
                expected,
                ("step", schedule),
            )
        case.step(devices, "gpipe")
        for number in range(3):
            check(
                case.step(devices, random_table(case, devices, random)),
                expected,
                ("random table", number),
            )
            case.step(devices, "gpipe")
    finally:
        nd.waitall()
        mx.engine.set_mode("async")
