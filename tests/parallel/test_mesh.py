"""Meshes: replicated and staged networks match one device, and their replicas stay equal."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, _core, autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Mesh, Pipeline, TrainStep, clip_global_norm
from support.compare import close_by_name, same_bits
from support.devices import at_work, cpus_only, held, on
from support.meshes import LOSS, train, values

DEVICES = [on(i) for i in range(8)]
SHAPES = [
    {"data": 2},
    {"stage": 2},
    {"data": 2, "stage": 2},
    {"stage": 2, "data": 3},
    {"data": 4, "stage": 1, "model": 1},
]


def mlp(width=16):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Dense(width, activation="relu"),
            nn.LayerNorm(),
            nn.Dense(width, activation="tanh"),
            nn.Dense(width, activation="relu"),
            nn.Dense(5),
        )
    return net


def batches(count=4, size=12, width=10):
    rng = np.random.default_rng(3)
    return [
        (
            nd.array(rng.standard_normal((size, width)), dtype="float32"),
            nd.array(rng.integers(0, 5, size)),
        )
        for _ in range(count)
    ]


def build(axes, place_first=True, make=mlp, hybrid=True):
    mx.random.seed(5)
    net, mesh = make(), Mesh(axes)
    if place_first:
        assert net.place(mesh) is net
        net.initialize(mx.init.Xavier())
    else:
        net.initialize(mx.init.Xavier())
        net.place(mesh)
    if hybrid:
        net.hybridize()
    return net, mesh


@pytest.fixture(scope="module")
def reference():
    net, mesh = build({"data": 1})
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    return train(net, mesh, trainer, batches()), values(net)


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybridized"])
@pytest.mark.parametrize("axes", SHAPES, ids=str)
def test_mesh_training_matches_one_device(axes, hybrid, reference):
    net, mesh = build(axes, place_first=hybrid, hybrid=hybrid)
    if not hybrid:  # shapes are known only after the first batch
        assert net[0].weight.list_ctx() == mesh.line("data")
    losses = train(
        net, mesh, gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}), batches()
    )
    np.testing.assert_allclose(losses, reference[0], rtol=1e-5)
    result = values(net)
    # Adam's division magnifies the rounding of small gradients
    close_by_name(reference[1], result, 2e-5)
    if mesh.size("data") == 1:
        same_bits(reference[1], result)
    for stage in range(mesh.size("stage")):
        assert any(
            param.list_ctx() == mesh.line("data", stage=stage)
            for param in net.collect_params().values()
        )


def test_one_sgd_step_on_a_mesh_is_within_rounding():
    results = []
    for axes in ({"data": 1}, {"data": 4, "stage": 2}):
        net, mesh = build(axes)
        train(
            net,
            mesh,
            gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}),
            batches(1),
            loop="all backward together",
        )
        results.append(values(net))
    close_by_name(*results, 1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adafactor", "lamb"])
def test_sharded_updates_have_the_same_bits_and_one_state(optimizer):
    results = []
    for sharded in (False, True):
        net, mesh = build({"data": 3, "stage": 2})
        trainer = gluon.Trainer(
            net.collect_params(),
            optimizer,
            {"learning_rate": 0.01, "wd": 0.01},
            update_on_kvstore=False,
            shard_updates=sharded,
        )
        train(net, mesh, trainer, batches())
        results.append(values(net))
        states = sum(len(updater.states) for updater in trainer._state.by_device.values())
        assert states == len(net.collect_params()) * (1 if sharded else 3)
    same_bits(*results)


def test_sharded_updates_spread_and_save_their_states(tmp_path):
    net, mesh = build({"data": 2}, make=lambda: mlp(600))
    trainer = gluon.Trainer(net.collect_params(), "adam", shard_updates=True)
    data = batches()
    train(net, mesh, trainer, data[:2])
    assert {ctx for ctx, updater in trainer._state.by_device.items() if updater.states} == set(
        mesh.devices
    )
    trainer.save_states(str(tmp_path / "states"))
    values_then = values(net)
    train(net, mesh, trainer, data[2:])
    expected = values(net)
    for name, param in net.collect_params().items():
        param.set_data(nd.array(values_then[name]))
    trainer = gluon.Trainer(net.collect_params(), "adam", shard_updates=True)
    trainer.load_states(str(tmp_path / "states"))
    train(net, mesh, trainer, data[2:])
    same_bits(expected, values(net))
    assert not trainer._state.loaded


def test_small_gradients_share_a_bucket():
    net, mesh = build({"data": 2}, make=lambda: mlp(600), hybrid=False)
    train(net, mesh, trainer := gluon.Trainer(net.collect_params(), "sgd"), batches(1))
    buckets = trainer._current_plan().buckets
    # Two matrices of 1.4 MB each have a bucket; all other parameters share one
    assert sorted(len(bucket.params) for bucket in buckets) == [
        1,
        1,
        10 - 2,
    ]
    assert {bucket.home for bucket in buckets} == set(mesh.devices)
    results = []
    for axes in ({"data": 1}, {"data": 2}):
        net, mesh = build(axes, make=lambda: mlp(600))
        train(net, mesh, gluon.Trainer(net.collect_params(), "sgd"), batches(2))
        results.append(values(net))
    close_by_name(*results, 1e-5)


def test_mesh_reduces_parameters_of_several_dtypes():
    results = []
    for axes in ({"data": 1}, {"data": 2}):
        net, mesh = build(axes, hybrid=False, make=lambda: mlp())
        net(mesh.split_and_load(batches(1)[0][0])[0])
        grads = []
        net[0].cast("float64")
        x, y = batches(1)[0]
        for part, label in zip(mesh.split_and_load(x.astype("float64")), mesh.split_and_load(y)):
            with autograd.record():
                h = net[0](part).astype("float32")
                for layer in list(net._children.values())[1:]:
                    h = layer(h)
                grads.append(LOSS(h, label))
        autograd.backward(grads)
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        trainer.step(12)
        results.append(values(net))
    assert results[0]["net_dense0_weight"].dtype == np.float64
    close_by_name(*results, 1e-5)


@pytest.mark.parametrize("axes", [{"data": 1}, {"data": 2, "stage": 2}], ids=str)
def test_accumulation_equals_adding_by_hand(axes):
    data = batches(6)
    net, mesh = build(axes)
    trainer = gluon.Trainer(net.collect_params(), "adam", accumulate=3)
    before = None
    for i, batch in enumerate(data):
        train(net, mesh, trainer, [batch])
        now = values(net)
        if i % 3 == 2:
            assert before is None or any(
                now[name].tobytes() != before[name].tobytes() for name in now
            )
            assert all(
                (grad.asnumpy() == 0).all()
                for param in net.collect_params().values()
                for grad in param.list_grad()
            )
        elif before is not None:
            same_bits(before, now)
        before = now
    net, mesh = build(axes)
    net.collect_params().setattr("grad_req", "add")
    trainer = gluon.Trainer(net.collect_params(), "adam")
    for i in range(0, 6, 3):
        for x, y in data[i : i + 3]:
            for part, label in zip(mesh.split_and_load(x), mesh.split_and_load(y, stage=-1)):
                with autograd.record():
                    loss = LOSS(net(part), label)
                loss.backward()
        trainer.step(36)
        net.zero_grad()
    same_bits(before, values(net))


def test_accumulation_detects_stale_gradients_in_every_step():
    net, mesh = build({"data": 2})
    trainer = gluon.Trainer(net.collect_params(), "sgd", accumulate=2)
    data = batches(1)
    train(net, mesh, trainer, data)
    with pytest.raises(UserWarning, match="has not been updated by backward"):
        trainer.step(1)
    train(net, mesh, trainer, data)
    with pytest.raises(ValueError, match="positive integer"):
        gluon.Trainer(net.collect_params(), "sgd", accumulate=0)


def test_early_update_ends_the_accumulation():
    net, mesh = build({"data": 2})
    trainer = gluon.Trainer(net.collect_params(), "sgd", accumulate=8)
    net(mesh.split_and_load(batches(1)[0][0])[0])
    before = values(net)
    for x, y in batches(2):
        for part, label in zip(mesh.split_and_load(x), mesh.split_and_load(y)):
            with autograd.record():
                loss = LOSS(net(part), label)
            loss.backward()
    trainer.allreduce_grads()
    trainer.update(24)
    assert any(values(net)[name].tobytes() != before[name].tobytes() for name in before)
    assert all(
        (grad.asnumpy() == 0).all()
        for param in net.collect_params().values()
        for grad in param.list_grad()
    )


@pytest.mark.parametrize("sharded", [False, True])
def test_clipping_counts_replicas_once(sharded):
    data, results = batches(3), []
    for axes in ({"data": 1}, {"data": 3, "stage": 2}):
        net, mesh = build(axes)
        trainer = gluon.Trainer(
            net.collect_params(),
            "sgd",
            {"learning_rate": 0.5},
            shard_updates=sharded,
            clip_global_norm=0.05,
        )
        train(net, mesh, trainer, data)
        by_trainer = values(net)
        net, mesh = build(axes)
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", {"learning_rate": 0.5}, shard_updates=sharded
        )
        for x, y in data:
            for part, label in zip(mesh.split_and_load(x), mesh.split_and_load(y, stage=-1)):
                with autograd.record():
                    loss = LOSS(net(part), label)
                loss.backward()
            trainer.allreduce_grads()
            norm = clip_global_norm(trainer, 0.05 * 12)
            assert norm.shape == (1,) and norm.asscalar() > 0.05 * 12
            again = clip_global_norm(trainer if sharded else net.collect_params(), 1e9)
            assert again.asscalar() == pytest.approx(0.05 * 12, rel=1e-5)
            trainer.update(12)
        close_by_name(by_trainer, values(net), 1e-6)
        results.append(by_trainer)
    close_by_name(*results, 1e-5)
    with pytest.raises(ValueError, match="positive"):
        clip_global_norm(trainer, 0)


def test_train_step_on_data_and_stage_axes_matches_one_device():
    data, results, losses = batches(3), [], []
    for axes, pieces in (
        ({"data": 1}, None),
        ({"data": 2, "stage": 2}, 3),
        ({"data": 2, "stage": 2}, 2),
        ({"data": 3}, 2),
    ):
        net, mesh = build(axes, hybrid=pieces is None)
        x, y = data[0]
        net(mesh.split_and_load(x)[0])  # the trainer needs the shapes
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2})
        if pieces is None:
            losses.append(train(net, mesh, trainer, data))
        else:
            step = TrainStep(net, LOSS, trainer, Pipeline(pieces))
            got = [step(x, y) for x, y in data]
            assert all(loss.shape == (12,) for loss in got)
            losses.append([float(loss.mean().asscalar()) for loss in got])
        results.append(values(net))
    for other, loss in zip(results[1:], losses[1:]):
        np.testing.assert_allclose(losses[0], loss, rtol=1e-5)
        close_by_name(results[0], other, 1e-5)


def test_train_step_accepts_a_last_batch_of_few_rows():
    """A replica with fewer rows than micro-batches uses one micro-batch per row. Without any row
    the error has the correct numbers."""
    data, results = [*batches(1), *batches(1, 3)], []
    for axes in ({"data": 1}, {"data": 2, "stage": 2}):
        net, mesh = build(axes, hybrid=False)
        net(mesh.split_and_load(data[0][0])[0])
        step = TrainStep(
            net,
            LOSS,
            gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2}),
            Pipeline(4),
        )
        assert [step(x, y).shape for x, y in data] == [(12,), (3,)]
        results.append(values(net))
    close_by_name(*results, 1e-5)
    with pytest.raises(
        ValueError, match="a batch of 1 row along axis 0 cannot be divided among 2 replicas"
    ):
        step(data[0][0][:1], data[0][1][:1])


def test_train_step_on_replicas_joins_losses_along_the_divided_axis():
    x, y = [nd.random.uniform(shape=(2, 6, width), ctx=on(0)) for width in (3, 4)]
    found = []
    for replicas in (1, 2):
        mx.random.seed(1)
        net = nn.Dense(4, in_units=3, flatten=False)
        Mesh({"data": replicas}, [on(i) for i in range(replicas)]).place(net)
        net.initialize()
        step = TrainStep(net, lambda out, y: ((out - y) ** 2).mean(-1), None, Pipeline(2, axis=1))
        found.append(step(x, y).asnumpy())
    assert found[0].shape == found[1].shape == (2, 6)
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_pipelined_loop_on_data_and_stage_axes_matches_one_device():
    data, results = batches(3), []
    for axes, pieces in (({"data": 1}, None), ({"data": 2, "stage": 2}, 3)):
        net, mesh = build(axes)
        if pieces:
            net.hybridize(pipeline=Pipeline(pieces))
        train(net, mesh, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2}), data)
        results.append(values(net))
    close_by_name(*results, 1e-5)


@cpus_only
def test_last_stage_is_reduced_before_the_first_stages_backward_ends():
    """The last stage's gradients are summed once they are final, without a wait for the first
    stage."""
    net, mesh = build({"data": 2, "stage": 2})
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
    x, y = nd.random.normal(shape=(16, 12)), nd.zeros(16)
    train(net, mesh, trainer, [(x, y)], loop="all backward together")
    with autograd.record():
        losses = [
            LOSS(net(part), label)
            for part, label in zip(mesh.split_and_load(x), mesh.split_and_load(y, stage=-1))
        ]
    nd.waitall()
    first, last = mesh.line("data", stage=0), mesh.line("data", stage=1)
    with held(first[0]), held(first[1]):
        autograd.backward(losses)
        trainer.allreduce_grads()
        sums = [
            param.list_grad() for param in net.collect_params().values() if param.list_ctx() == last
        ]
        assert sums
        for grads in sums:
            assert (
                np.array_equal(grads[0].asnumpy(), grads[1].asnumpy()) and grads[0].asnumpy().any()
            )
        assert all(at_work(ctx) for ctx in first)
    trainer.update(16)


@cpus_only
@pytest.mark.parametrize("stages", [1, 2])
def test_gradient_sums_overlap_backward(stages):
    """A gradient is final at a tick inside the backward program, and its sum waits for that tick.
    The last gradient is final at the end."""
    net, mesh = build({"data": 2, "stage": stages}, make=lambda: mlp(800))
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
    x, y = nd.random.normal(shape=(1024, 800)), nd.zeros(1024)
    train(net, mesh, trainer, [(x, y)], loop="all backward together")
    nd.waitall()
    # Some megabytes each; backward computes the last layer's first
    first, last = [list(net[layer].weight.gradients.values())[1] for layer in (0, 3)]
    overlapped = False
    for attempt in range(100):  # a loaded machine may delay the side queue's thread
        if overlapped:
            break
        mx.profiler.start()
        with autograd.record():
            losses = [
                LOSS(net(part), label)
                for part, label in zip(mesh.split_and_load(x), mesh.split_and_load(y, stage=-1))
            ]
        autograd.backward(losses)
        ticks = [_core.written_at(grad) for grad in (first, last)]
        trainer.allreduce_grads()
        nd.waitall()
        mx.profiler.stop()
        # Not the last tick queued on the device
        assert ticks[1][0] < ticks[1][1] or stages == 2
        if stages == 1:
            assert ticks[0][1] == ticks[1][1] and ticks[1][0] < ticks[0][0] <= ticks[0][1]
        events = mx.profiler.events()
        sums = [event for event in events if event["name"] == "sum of replicas"]
        backward = [
            event
            for event in events
            if event["backward"] and event["device"] == str(mesh.device(data=1))
        ]
        assert sums and all(event["device"].endswith(" side") for event in sums)
        overlapped = overlapped or min(event["begin"] for event in sums) < max(
            event["end"] for event in backward
        )
        trainer.update(1024)
    assert overlapped


@cpus_only
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_sum_replicas_sums_in_place(dtype, everywhere):
    rng = np.random.default_rng(4)
    values = [
        [rng.standard_normal(shape) for shape in ((3, 5), (70000,), (0, 2))] for _ in range(3)
    ]
    lists = [
        [nd.array(value, dtype=dtype, ctx=ctx) for value in own]
        for own, ctx in zip(values, DEVICES)
    ]
    expected = [
        nd.add_n(*[own[i].as_in_context(DEVICES[0]) for own in lists]).asnumpy() for i in range(3)
    ]
    before = [[array.asnumpy() for array in own] for own in lists]
    assert _core.sum_replicas(lists, 1, everywhere)
    for replica, own in enumerate(lists):
        for i, array in enumerate(own):
            wanted = expected[i] if everywhere or replica == 1 else before[replica][i]
            np.testing.assert_array_equal((array * 1).asnumpy(), wanted)
    for bad, text in (
        ([lists[0], lists[1][:2]], "must have the same length"),
        ([lists[0], lists[1][::-1]], "array 0 of replica 1 differs in shape or dtype"),
    ):
        with pytest.raises(ValueError, match=text):
            _core.sum_replicas(bad, 0, True)
    with pytest.raises(ValueError, match="arrays of replica 0 must be on one device"):
        _core.sum_replicas([[lists[0][0], lists[1][0]]], 0, True)
    with pytest.raises(ValueError, match="home must be the index of one"):
        _core.sum_replicas(lists, 3, True)


@cpus_only
def test_failed_gradient_fails_only_its_sum():
    """Later sums succeed."""
    lists = [[nd.ones((3,), ctx=ctx), nd.ones((2,), ctx=ctx)] for ctx in DEVICES[:2]]
    nd.waitall()
    with held(DEVICES[1]):  # the following work is queued and fails later
        nd.broadcast_add(
            lists[1][0],
            nd.linalg.potrf(-nd.ones((1, 1), ctx=DEVICES[1])).reshape((1,)),
            out=lists[1][0],
        )
        assert _core.sum_replicas(lists, 0, True)
    for own in lists:
        with pytest.raises(MXNetError):
            own[0].asnumpy()
    nd.waitall()  # the error was already reported
    fresh = [[nd.ones((3,), ctx=ctx)] for ctx in DEVICES[:2]]
    assert _core.sum_replicas(fresh, 1, True)
    assert (fresh[0][0].asnumpy() == 2).all()


class Inception(gluon.HybridBlock):
    def __init__(self, width):
        super().__init__(prefix="inception_")
        with self.name_scope():
            self.branches = []
            for i in range(2):
                branch = nn.HybridSequential()
                with branch.name_scope():
                    branch.add(
                        nn.Conv2D(
                            width, 3 + 2 * i, padding=1 + i, activation="relu", in_channels=3
                        ),
                        nn.Conv2D(width, 3, padding=1, in_channels=width),
                    )
                self.branches.append(branch)
                self.register_child(branch, f"branch{i}")
            self.out = nn.Dense(5, in_units=2 * width * 16 * 16)

    def hybrid_forward(self, F, x):
        return self.out(F.concat(*[branch(x) for branch in self.branches], dim=1))


@pytest.fixture
def one_thread():
    """Gives each device one thread, independent of the number of open devices."""
    mx.context.set_threads(1)
    yield
    mx.context.set_threads(0)


@cpus_only  # needs the times of CPU work
@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybridized"])
def test_branches_on_several_devices_overlap(hybrid, one_thread):
    x, results = nd.random.normal(shape=(8, 3, 16, 16)), []
    for axes, stages in (({"stage": 1}, [[]]), ({"stage": 2}, [["branch0", "out"], ["branch1"]])):
        mx.random.seed(5)
        net, mesh = Inception(96), Mesh(axes)
        mesh.place(net, None if axes["stage"] == 1 else stages)
        net.initialize()
        if hybrid:
            net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        overlap = False
        # A loaded machine may delay the overlap
        for attempt in range(10 if axes["stage"] == 1 else 100):
            if attempt >= 10 and overlap:
                break
            mx.profiler.start()
            with autograd.record():
                loss = LOSS(net(x), nd.zeros(8))
            loss.backward()
            trainer.step(8)
            nd.waitall()
            mx.profiler.stop()
            if attempt == 9:
                results.append(values(net))
            spans = {str(ctx): [] for ctx in mesh.devices}
            for event in mx.profiler.events():
                if "onvolution" in event["name"]:
                    spans[str(event["device"])].append((event["begin"], event["end"]))
            one, *two = spans.values()
            assert one and all(two)
            overlap = overlap or any(
                a < d and c < b for a, b in one for other in two for c, d in other
            )
        assert overlap == (axes["stage"] == 2)
    same_bits(*results)


class Tied(gluon.HybridBlock):
    """The last stage reuses the first layer's weight."""

    def __init__(self):
        super().__init__(prefix="tied_")
        with self.name_scope():
            self.embed = nn.Embedding(20, 16)
            self.hidden = nn.Dense(16, in_units=16, activation="tanh", flatten=False)
            self.out = nn.Dense(
                20, in_units=16, use_bias=False, params=self.embed.params, flatten=False
            )

    def hybrid_forward(self, F, x):
        return self.out(self.hidden(self.embed(x)))


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybridized"])
def test_tied_weights_across_stages_match_one_device(hybrid):
    x = nd.array(np.random.default_rng(0).integers(0, 20, (8, 6)))
    results = []
    for axes in ({"data": 1}, {"stage": 3}, {"data": 2, "stage": 3}):
        mx.random.seed(5)
        net, mesh = Tied(), Mesh(axes)
        mesh.place(net, [["embed"], ["hidden"], ["out"]] if "stage" in axes else None)
        net.initialize(mx.init.Xavier())
        if hybrid:
            net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
        for _ in range(3):
            for part in mesh.split_and_load(x):
                with autograd.record():
                    out = net(part)
                    loss = LOSS(
                        out.reshape((-1, 20)), part.as_in_context(out.context).reshape((-1,))
                    )
                loss.backward()
            trainer.step(48)
        results.append(values(net))
    assert net.embed.weight.list_ctx() == mesh.line("data")
    same_bits(*results[:2])
    close_by_name(results[0], results[2], 1e-5)


def test_stages_are_cut_by_bytes_or_by_request():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        inner = nn.HybridSequential()
        with inner.name_scope():
            inner.add(
                nn.Dense(100, in_units=100), nn.Activation("relu"), nn.Dense(100, in_units=100)
            )
        net.add(inner, nn.Dense(10, in_units=100), nn.Dense(10, in_units=10))
    mesh = Mesh({"stage": 2})
    net.place(mesh)
    net.initialize()
    assert [param.list_ctx()[0].device_id for param in net.collect_params().values()] == [
        0,
        0,
        1,
        1,
        1,
        1,
        1,
        1,
    ]
    assert net(nd.ones((2, 100))).context == on(1)
    # Alternating stages, moved after initialization
    net.place(mesh, stages={"0": 1, "1": 0, "2": 1})
    assert [param.list_ctx()[0].device_id for param in net.collect_params().values()] == [
        1,
        1,
        1,
        1,
        0,
        0,
        1,
        1,
    ]
    assert net(nd.ones((2, 100))).context == on(1)
    net.place(Mesh({"data": 2}, devices=DEVICES[4:6]), [[net]])
    assert net(nd.ones((2, 100), ctx=DEVICES[5])).context == DEVICES[5]


def test_mesh_device_and_line_index_devices():
    mesh = Mesh({"data": 2, "stage": 3}, devices=DEVICES[1:7])
    assert (
        mesh.device(data=1, stage=2) == on(6)
        and mesh.device(stage=-1) == on(3)
        and mesh.size("model") == 1
    )
    assert (
        mesh.line("data", stage=1) == [on(2), on(5)] and mesh.line("stage", data=1) == DEVICES[4:7]
    )
    assert [piece.context for piece in mesh.split_and_load(np.ones((4, 2)), stage=-1)] == [
        on(3),
        on(6),
    ]
    with pytest.raises(IndexError, match="axis 'stage' has 3 devices"):
        mesh.device(stage=3)


def test_invalid_meshes_raise():
    with pytest.raises(MXNetError, match="data 2 x stage 2 needs 4 devices, but 3 were given"):
        Mesh({"data": 2, "stage": 2}, devices=DEVICES[:3])
    with pytest.raises(ValueError, match="given twice"):
        Mesh({"data": 2}, devices=[on(0), on(0)])
    with pytest.raises(ValueError, match="unknown axis 'pipe'"):
        Mesh({"pipe": 2})
    with pytest.raises(ValueError, match="positive integer"):
        Mesh({"data": 0})
    with pytest.raises(TypeError, match="dict of names"):
        Mesh(4)
    with pytest.raises(MXNetError, match="does not exist: this machine has"):
        Mesh({"data": 1}, devices=[mx.gpu(99)])
    net = mlp()
    with pytest.raises(MXNetError, match="5 consecutive parts .* too few for 6 stages"):
        net.place(Mesh({"stage": 6}))
    with pytest.raises(MXNetError, match="no block at path 'nine'"):
        net.place(Mesh({"stage": 2}), [["nine"], [net[1]]])
    with pytest.raises(MXNetError, match="is not a descendant"):
        net.place(Mesh({"stage": 2}), [[nn.Dense(1)], [net[1]]])
    with pytest.raises(MXNetError, match="stage 1 of 2 has no blocks"):
        net.place(Mesh({"stage": 2}), {"0": 0})
    with pytest.raises(MXNetError, match="is assigned to both stages 0 and 1"):
        net.place(Mesh({"stage": 2}), [[net[1]], [net[1]]])
    with pytest.raises(MXNetError, match="is assigned to stage 2, but the mesh has stages 0 to 1"):
        net.place(Mesh({"stage": 2}), {"0": 2})
    with mx.AttrScope(ctx_group="mine"):
        grouped = nn.Dense(2, in_units=2)
    with pytest.raises(MXNetError, match="already belongs to ctx_group 'mine'"):
        grouped.place(Mesh({"data": 2}))
    net.place(Mesh({"data": 2}))
    with pytest.raises(ValueError, match="omit ctx"):
        net.initialize(ctx=on(0))
    net.initialize()
    with pytest.raises(MXNetError, match=r"its input is on [cg]pu\(7\)"):
        net(nd.ones((2, 10), ctx=DEVICES[7]))
    with pytest.raises(ValueError, match="cannot be split evenly"):
        gluon.utils.split_and_load(nd.ones((3, 2)), Mesh({"data": 2}))
