"""Compiled programs on a GPU as replayed captures (csrc/graph/program/capture.h): the bits of
issuing op by op, with one or two driver calls per step."""

import ctypes
import gc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, TrainStep
from support.processes import output_of
from support.stand_in import STAND_IN, needs_stand_in

pytestmark = needs_stand_in


class Counts:
    """Counts calls of the stand-in by kind since the last look()."""

    def __init__(self):
        self.library = ctypes.CDLL(STAND_IN)
        self.library.hostcuda_count.restype = ctypes.c_long
        self.before = self.now()

    def now(self):
        return {
            what: self.library.hostcuda_count(what.encode())
            for what in ("synchronize", "capture", "instantiate", "update", "graph", "launch")
        }

    def look(self):
        now = self.now()
        found, self.before = {what: now[what] - self.before[what] for what in now}, now
        return found


@pytest.fixture
def counts():
    gc.collect()  # frees of earlier tests' garbage in mid-test would move arrays
    gc.disable()
    nd.waitall()
    yield Counts()
    gc.enable()


class Net(gluon.HybridBlock):
    """Dense layers distributed evenly over the contexts. Without ops between them nothing is
    fused."""

    def __init__(self, contexts, layers=4, drop=0.0):
        super().__init__(prefix="net_")
        self.contexts, self.drop = contexts, drop
        with self.name_scope():
            self.layers = [nn.Dense(16, in_units=16, activation="tanh") for _ in range(layers)]
        for number, layer in enumerate(self.layers):
            self.register_child(layer, f"layer{number}")
            layer.initialize(mx.init.Xavier(), ctx=contexts[number * len(contexts) // layers])

    def hybrid_forward(self, F, x):
        for number, layer in enumerate(self.layers):
            x = layer(
                x.as_in_context(self.contexts[number * len(self.contexts) // len(self.layers)])
            )
            if self.drop:
                x = F.Dropout(x, p=self.drop)
        return x


def training(contexts, steps, batch=8, drop=0.0, look=lambda step: None, keep=True):
    """Returns losses and the trained weights."""
    mx.random.seed(7)
    net = Net(contexts, drop=drop)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    losses = []
    random = np.random.RandomState(0)
    data = [nd.array(random.rand(batch, 16), ctx=contexts[0]) for _ in range(2)]
    nd.waitall()
    for step in range(steps):
        with autograd.record():
            loss = (net(data[step % len(data)]) ** 2).sum()
        loss.backward()
        trainer.step(batch)
        # On the device they would move other arrays to new addresses
        losses = losses + [loss.as_in_context(mx.cpu(0))] if keep else [loss]
        look(step)
    return [value.asscalar() for value in losses], [
        p.data().asnumpy() for p in net.collect_params().values()
    ]


def without_graphs(code):
    """Returns the words that a process without captures prints."""
    return output_of(code, MPGLUON_CUDA_GRAPHS="0").split()


@pytest.mark.parametrize("devices", [1, 2])
def test_steps_are_replayed_with_the_same_bits(devices, counts):
    contexts = [mx.gpu(i) for i in range(devices)]
    seen = []

    def look(step):
        for ctx in contexts:
            nd.zeros((1,), ctx=ctx).wait_to_read()
        seen.append(counts.look())

    losses, _ = training(contexts, 12, look=look)
    plain = without_graphs(f"""
        import mpgluon as mx
        from gpu.test_gpu_graphs import Counts, training
        losses, _ = training([mx.gpu(i) for i in range({devices})], 12)
        assert Counts().now()["capture"] == 0
        print(*[loss.hex() for loss in map(float, losses)])
    """)
    assert [float(loss).hex() for loss in losses] == plain
    # Forward and backward on each device
    assert seen[0]["graph"] == 0 and sum(s["capture"] for s in seen) >= 2 * devices
    steady = seen[-1]
    assert steady["capture"] == steady["instantiate"] == 0 and steady["graph"] >= 2 * devices
    assert steady["launch"] * 2 < seen[0]["launch"]


@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize("devices", [1, 2])
def test_ordinary_loops_stop_capturing_after_a_few_steps(devices, drop, counts):
    """Arrays of a repeated step keep their addresses, so nothing is captured after a few steps,
    except if a worker frees memory earlier or later than usual."""
    gc.collect()  # frees of other tests' garbage in mid-loop would move arrays
    seen = []
    training(
        [mx.gpu(i) for i in range(devices)],
        40,
        drop=drop,
        look=lambda step: seen.append((nd.waitall(), counts.look())[1]),
        keep=False,
    )
    settled = seen[20:]
    made = [look["capture"] + look["instantiate"] + look["update"] for look in seen]
    assert sum(map(bool, made[20:])) <= 2, made
    assert all(look["graph"] >= 2 * devices for look in settled), seen


def test_steps_do_not_synchronize_with_the_card(counts):
    """`waitall` reads progress from host memory."""
    found = []

    def look(step):
        nd.waitall()
        found.append(counts.look()["synchronize"])

    training([mx.gpu(0), mx.gpu(1)], 12, look=look, keep=False)
    assert sum(found[4:]) == 0, found  # the first steps allocate


def test_new_signature_is_captured(counts):
    mx.random.seed(7)
    net = Net([mx.gpu(0)])
    net.hybridize()
    captured = []
    for batch in (8, 5, 8):
        x = nd.ones((batch, 16), ctx=mx.gpu(0)) * batch
        results = [net(x).asnumpy() for _ in range(4)]
        captured.append(counts.look()["capture"])
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])
    # The first capture still exists, but its addresses may have changed
    assert captured[0] >= 1 and captured[1] >= 1 and captured[2] <= 1


def test_captures_follow_changed_addresses(counts):
    """All arrays are kept, so every call has new input and output addresses."""
    net = Net([mx.gpu(0)])
    net.hybridize()
    values = np.random.RandomState(1).rand(60, 8, 16).astype("float32")
    inputs = [nd.array(value, ctx=mx.gpu(0)) for value in values]
    outputs = [net(x) for x in inputs]
    nd.waitall()
    found = counts.look()
    assert found["capture"] > 0 and found["update"] + found["instantiate"] == found["capture"]
    assert found["capture"] <= 12  # capturing stops if addresses keep changing
    again = [net(x) for x in inputs]
    for one, other, x in zip(outputs, again, inputs):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
        expected = x.asnumpy()
        for layer in net.layers:
            expected = np.tanh(
                expected @ layer.weight.data().asnumpy().T + layer.bias.data().asnumpy()
            )
        np.testing.assert_allclose(one.asnumpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_replayed_dropout_draws_new_masks(devices, counts):
    """Dropout is part of the surrounding capture."""
    contexts = [mx.gpu(i) for i in range(devices)]
    graphs = []

    def look(step):
        for ctx in contexts:
            nd.zeros((1,), ctx=ctx).wait_to_read()
        graphs.append(counts.look()["graph"])

    losses, _ = training(contexts, 10, drop=0.5, look=look)
    plain = without_graphs(f"""
        import mpgluon as mx
        from gpu.test_gpu_graphs import training
        losses = training([mx.gpu(i) for i in range({devices})], 10, drop=0.5)[0]
        print(*[float(loss).hex() for loss in losses])
    """)
    assert [float(loss).hex() for loss in losses] == plain
    assert len(set(losses[-4:])) == 4
    np.testing.assert_allclose(losses, training([mx.cpu(0)], 10, drop=0.5)[0], rtol=1e-4)
    if devices == 1:
        assert graphs[2] == 2  # forward, backward
    else:
        assert graphs[2] >= 4


class Masks(gluon.HybridBlock):
    """Adds `times` dropouts of ones to half of the total, which is exact. Every second mask is
    shared along an axis and has a separate kernel; fused kernels draw the others."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def hybrid_forward(self, F, x, total):
        total = total * 0.5
        for number in range(self.times):
            axes = (0,) if number % 2 else ()
            total = total + F.Dropout(x, p=0.5, axes=axes) * (1 + number % 3)
        return total


def masks(ctx, times, seeds, look=lambda: None):
    net = Masks(times)
    net.hybridize()
    x, total = nd.ones((3, 50), ctx=ctx), nd.zeros((3, 50), ctx=ctx)
    nd.waitall()
    with autograd.train_mode():
        for seed in seeds:
            if seed:
                mx.random.seed(seed)
            total = net(x, total)
            look()
    return total.asnumpy()


@pytest.mark.parametrize("times", [6, 70, 140])
def test_replays_in_flight_draw_the_masks_of_the_cpu(times, counts):
    """Calls run without waits, and the seed changes between some of them. More than 64 draws need
    several captures."""
    seeds = [3, 0, 0, 9, 0, 3, 0, 0, 0, 4, 0, 0]
    result = masks(mx.gpu(0), times, seeds)
    found = counts.look()
    assert found["graph"] >= 6 * -(-times // 64)
    np.testing.assert_array_equal(result, masks(mx.cpu(0), times, seeds))
    again = []
    masks(
        mx.gpu(0),
        times,
        [1] * 8,
        look=lambda: again.append((nd.waitall(), counts.look()["graph"])[1]),
    )
    assert again[0] == 0 and again[-1] == -(-times // 64)  # one capture per 64 draws


def attend(F, y, w, p):
    heads = y.reshape((2, 4, 16))
    weights = F.Dropout(F.softmax(F.batch_dot(heads, heads, transpose_b=True) * 0.25), p=0.5)
    return F.batch_dot(weights, heads)


def recur(F, y, w, p):
    state = F.reshape(F.slice_axis(p, axis=0, begin=0, end=32), (2, 4, 4))
    return F.RNN(y.reshape((2, 4, 16)), p, state, state_size=4, num_layers=2, mode="gru", p=0.5)


DRAWING = {
    "dropout": lambda F, y, w, p: F.Dropout(y, p=0.5),
    "dropout along axes": lambda F, y, w, p: F.Dropout(y, p=0.5, axes=(0,)),
    "attention": attend,
    "rnn": recur,
    "rrelu": lambda F, y, w, p: F.LeakyReLU(-y, act_type="rrelu", lower_bound=0.1, upper_bound=0.9)[
        0
    ],
    "uniform": lambda F, y, w, p: F.random.uniform(shape=(8, 16)),
    "normal": lambda F, y, w, p: F.random.normal(shape=(8, 16)),
    "gamma": lambda F, y, w, p: F.random.gamma(shape=(8, 16), alpha=0.7, beta=2.0),
    "exponential": lambda F, y, w, p: F.random.exponential(1 / 3, shape=(8, 16)),
    "poisson": lambda F, y, w, p: F.random.poisson(shape=(8, 16), lam=15.0),
    "negative binomial": lambda F, y, w, p: F.random.negative_binomial(shape=(8, 16), k=3, p=0.4),
    "generalized negative binomial": lambda F, y, w, p: F.random.generalized_negative_binomial(
        shape=(8, 16), mu=3.0, alpha=0.3
    ),
    "sample": lambda F, y, w, p: F.sample_uniform(F.zeros_like(p), F.ones_like(p) * 2, shape=(3,)),
    "multinomial": lambda F, y, w, p: F.sample_multinomial(F.softmax(y), shape=(40,)),
    "shuffle": lambda F, y, w, p: F.shuffle(F.reshape(p, (-1,))),
}


class Draws(gluon.HybridBlock):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def hybrid_forward(self, F, x, w, p):
        y = x
        for _ in range(3):
            y = F.dot(y, w)
        return self.draw(F, y, w, p), y


@pytest.mark.parametrize("name", DRAWING)
def test_every_random_kernel_draws_new_numbers_on_replay(name, counts):
    random = np.random.RandomState(0)
    values = [
        random.rand(*shape).astype("float32") * scale
        for shape, scale in (((8, 16), 1.0), ((16, 16), 0.2), ((384,), 1.0))
    ]
    seeds, results = [5, 6, 7, 8] * 3, {}
    for ctx in (mx.gpu(0), mx.cpu(0)):
        net = Draws(DRAWING[name])
        net.hybridize()
        arrays = [nd.array(value, ctx=ctx) for value in values]
        results[ctx] = []
        for seed in seeds:
            mx.random.seed(seed)
            counts.look()
            with autograd.train_mode(), ctx:
                results[ctx].append(net(*arrays)[0].asnumpy())
            if ctx == mx.gpu(0):
                graphs = counts.look()["graph"]
    assert graphs == 1
    for step, (gpu, cpu) in enumerate(zip(*results.values())):
        # The first step was issued op by op
        np.testing.assert_array_equal(gpu, results[mx.gpu(0)][step % 4])
        np.testing.assert_allclose(gpu, cpu, rtol=2e-5, atol=2e-6)
    assert all((results[mx.gpu(0)][0] != other).any() for other in results[mx.gpu(0)][1:4])


def test_synchronizing_kernels_are_excluded_from_captures(counts):
    """`take(mode='raise')` reads its indices. The segments before and after it are captured once
    this is known."""

    class Looks(gluon.HybridBlock):
        def hybrid_forward(self, F, x, index):
            for _ in range(4):
                x = F.dot(x, x) * 0.1
            x = F.take(x, index, mode="raise")
            for _ in range(4):
                x = F.dot(x, x) * 0.1
            return x

    net = Looks()
    net.hybridize()
    x = nd.array(np.random.RandomState(0).rand(6, 6), ctx=mx.gpu(0))
    index = nd.array([5, 4, 3, 2, 1, 0], ctx=mx.gpu(0))
    results = []
    for _ in range(10):
        results.append(net(x, index).asnumpy())
        found = counts.look()
    assert found["graph"] == 2 and found["capture"] == 0
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    with pytest.raises(mx.base.MXNetError, match="take"):
        net(x, index + 10).wait_to_read()
    np.testing.assert_array_equal(net(x, index).asnumpy(), results[0])


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_pipelines_replay_captured_segments(drop, counts):
    """With dropout, each micro-batch draws its rows of the whole batch's mask, equal to that of a
    CPU without a pipeline."""
    contexts = [mx.gpu(0), mx.gpu(1)]
    losses = pipelined(contexts, drop)
    plain = without_graphs(f"""
        import mpgluon as mx
        from gpu.test_gpu_graphs import pipelined
        print(*[float(loss).hex() for loss in pipelined([mx.gpu(0), mx.gpu(1)], {drop})])
    """)
    assert [float(loss).hex() for loss in losses] == plain
    assert counts.look()["graph"] > 40
    np.testing.assert_allclose(losses, pipelined([mx.cpu(0)], drop, 1), rtol=1e-4)


def pipelined(contexts, drop=0.0, pieces=4):
    mx.random.seed(7)
    net = Net(contexts, drop=drop)
    step = TrainStep(
        net,
        lambda out, *_: (out**2).sum(axis=1),
        gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}),
        Pipeline(pieces, "1f1b"),
    )
    x = nd.array(np.random.RandomState(0).rand(8, 16), ctx=contexts[0])
    return [step(x, []).mean().asscalar() for _ in range(6)]


def test_profiles_list_ops_instead_of_captures(counts):
    net = Net([mx.gpu(0)])
    net.hybridize()
    x = nd.ones((8, 16), ctx=mx.gpu(0))
    for _ in range(4):
        net(x).wait_to_read()
    counts.look()
    mx.profiler.set_config(aggregate_stats=True)
    mx.profiler.set_state("run")
    try:
        net(x).wait_to_read()
    finally:
        mx.profiler.set_state("stop")
    assert "FullyConnected" in mx.profiler.dumps(reset=True)
    assert counts.look()["graph"] == 0


def test_captures_do_not_write_beyond_reallocated_scratch():
    """Reallocated scratch memory may be smaller at the same address. Work captured with the larger
    size is captured again."""
    printed = output_of("""
        import numpy as np, mpgluon as mx
        from mpgluon import nd
        from mpgluon.gluon import nn
        gpu, nets = mx.gpu(0), []
        for units in (32, 64, 96, 128, 192):
            mx.random.seed(units)
            net = nn.HybridSequential()
            for _ in range(4):
                net.add(nn.Dense(units, in_units=units))
            net.initialize(mx.init.Xavier(), ctx=gpu)
            net.hybridize()
            x = nd.array(np.random.RandomState(0).rand(16, units), ctx=gpu)
            nets.append((net, x, net(x).asnumpy()))
        for _ in range(6):
            for net, x, expected in nets:
                for rows in (1, 2, 7):
                    for _ in range(3):
                        assert (net(x).asnumpy() == expected).all()
                    gpu.empty_cache()
                    # Wants little scratch
                    nd.dot(nd.ones((rows, 64), ctx=gpu), nd.ones((64, 8), ctx=gpu)).asnumpy()
                    for _ in range(3):
                        assert (net(x).asnumpy() == expected).all()
        print("done")
    """)
    assert printed.split() == ["done"]
