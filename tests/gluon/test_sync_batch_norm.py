"""SyncBatchNorm over replicas: its results equal those of BatchNorm on the concatenated batches
on one device."""

import os
import threading

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon.contrib.nn import SyncBatchNorm
from support.calls import raises
from support.devices import on
from support.training import backward_of

pytestmark = pytest.mark.skipif(
    os.environ.get("MPGLUON_ENGINE", "async") != "async", reason="replicas run side by side"
)
CLOSE = {"rtol": 1e-7, "atol": 1e-9}  # in float64


def devices(count):
    return [on(i) for i in range(count)]


class Branches(gluon.HybridBlock):
    """Two independent normalizations; one of them is called twice."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.second = norm(), norm()
        self.left, self.right = gluon.nn.Dense(6), gluon.nn.Dense(6)

    def hybrid_forward(self, F, x):
        left = self.first(self.left(x))
        return left * 2 + self.second(self.right(F.relu(x))) + F.tanh(self.first(self.right(x)))


def network(norm):
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(4, 3, padding=1, use_bias=False),
        norm(),
        gluon.nn.Activation("relu"),
        Branches(norm),
        gluon.nn.Dense(3),
    )
    return net


def pair(count, initialized=True, make=network):
    """Returns a network with SyncBatchNorm on several devices and one with BatchNorm on one."""
    nets = [make(lambda: SyncBatchNorm(num_devices=count)), make(gluon.nn.BatchNorm)]
    mx.random.seed(3)
    for net, ctx in zip(nets, [devices(count), on(0)]):
        net.cast("float64")
        net.initialize(mx.init.Xavier(), ctx=ctx)
    if initialized:
        for net in nets:
            net(nd.zeros((1, 2, 5, 5), dtype="float64"))
        copy_values(*nets)
    return nets


def copy_values(source, target):
    for one, other in zip(source.collect_params().values(), target.collect_params().values()):
        other.set_data(one.list_data()[0])


def batches(sizes, seed=0, shape=(2, 5, 5), dtype="float64"):
    """Returns parts with a mean far from zero, each on its device, and their concatenation on the
    first device."""
    values = np.random.RandomState(seed).normal(20, 3, (sum(sizes), *shape))
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return [nd.array(part, ctx=on(i), dtype=dtype) for i, part in enumerate(parts)], nd.array(
        values, dtype=dtype
    )


def train(net, parts, together):
    for part in parts:
        part.attach_grad()
    with autograd.record():
        outputs = [net(part) for part in parts]
        losses = [(out * out + out).sum() for out in outputs]
    if together:
        autograd.backward(losses)
    else:
        for loss in losses:
            loss.backward()
    return [np.concatenate([a.asnumpy() for a in arrays]) for arrays in (outputs, gradients(parts))]


def gradients(arrays):
    return [array.grad for array in arrays]


def compare(nets, sizes, together, steps=3):
    trainers = [
        gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore="device")
        for net in nets
    ]
    for step in range(steps):
        parts, whole = batches(sizes, step)
        for mine, wanted in zip(train(nets[0], parts, together), train(nets[1], [whole], together)):
            np.testing.assert_allclose(mine, wanted, **CLOSE)
        for trainer in trainers:
            trainer.step(sum(sizes))
        params = [net.collect_params().values() for net in nets]
        for one, other in zip(*params):
            copies = [array.asnumpy() for array in one.list_data()]
            for copy in copies:  # replicas are bit-identical, including running averages
                np.testing.assert_array_equal(copy, copies[0], err_msg=one.name)
            np.testing.assert_allclose(copies[0], other.data().asnumpy(), err_msg=one.name, **CLOSE)
    parts, whole = batches(sizes, 99)
    predicted = np.concatenate([nets[0](part).asnumpy() for part in parts])
    np.testing.assert_allclose(predicted, nets[1](whole).asnumpy(), **CLOSE)


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
@pytest.mark.parametrize("sizes", [(4, 4), (7, 1), (3, 1, 2, 4)], ids=str)
@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
def test_training_equals_the_concatenated_batch(hybrid, sizes, together):
    nets = pair(len(sizes))
    for net in nets:
        net.hybridize(hybrid)
    compare(nets, sizes, together)


@pytest.mark.parametrize("options", [{"static_alloc": True}, {"recompute": True}], ids=str)
def test_hybridize_options_keep_sync_results(options):
    nets = pair(2)
    for net in nets:
        net.hybridize(**options)
    compare(nets, (3, 2), True)


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
def test_deferred_shapes_are_inferred_in_the_first_step(hybrid):
    """Parameters are created while a device waits for the call of the next replica."""
    nets = pair(2, initialized=False)
    nets[0].hybridize(hybrid)
    parts, whole = batches((3, 3))
    nets[1](whole)
    with autograd.record():
        outputs = [nets[0](part) for part in parts]
    for out in outputs:
        out.wait_to_read()
    started = [param.list_data() for param in nets[0].collect_params().values()]
    assert all((a.asnumpy() == b.asnumpy()).all() for a, b in started)
    nets = [nets[0], network(gluon.nn.BatchNorm)]
    nets[1].cast("float64")
    nets[1].initialize()
    nets[1](whole)
    copy_values(*nets)
    compare(nets, (3, 3), False)


def test_bits_do_not_depend_on_replica_order():
    results = []
    for order in ((0, 1, 2), (2, 0, 1)):
        net, _ = pair(3, make=lambda norm: norm())
        parts, _ = batches((2, 3, 4))
        outputs = [None] * 3
        for part in parts:
            part.attach_grad()
        with autograd.record():
            for i in order:
                outputs[i] = net(parts[i])
        autograd.backward([outputs[i] for i in order])
        results.append([a.asnumpy() for a in (*outputs, *gradients(parts))])
    for one, other in zip(*results):
        np.testing.assert_array_equal(one, other)


def test_half_precision_with_fixed_scale_equals_batch_norm():
    layers = [SyncBatchNorm(num_devices=2, scale=False), gluon.nn.BatchNorm(scale=False)]
    parts, whole = batches((4, 3), shape=(3, 4))
    results = []
    for layer, given in zip(layers, (parts, [whole])):
        layer.initialize(ctx=[part.context for part in given])
        layer.cast("float16")
        with autograd.record():
            outputs = [layer(part.astype("float16")) for part in given]
        autograd.backward(outputs)
        assert outputs[0].dtype == np.float16 and layer.gamma.data().dtype == np.float32
        results.append(np.concatenate([out.asnumpy() for out in outputs]))
    np.testing.assert_allclose(*results, rtol=5e-3, atol=5e-3)


def states(ctx, channels=3):
    return [
        nd.full((channels,), value, ctx=ctx) for value in (2, 1, 0, 1)
    ]  # gamma, beta, moving mean and variance


def test_sync_batch_norm_op_returns_mean_and_variance():
    parts, whole = batches((2, 5), shape=(3, 4), dtype="float32")
    with autograd.train_mode():
        results = [
            nd.contrib.SyncBatchNorm(
                part, *states(part.context), key="of the op", ndev=2, output_mean_var=True
            )
            for part in parts
        ]
        _, mean, variance = nd.contrib.SyncBatchNorm(
            whole, *states(whole.context), key="one", output_mean_var=True
        )
    for found in results:
        np.testing.assert_allclose(found[1].asnumpy(), whole.asnumpy().mean((0, 2)), rtol=1e-5)
        np.testing.assert_allclose(found[2].asnumpy(), whole.asnumpy().var((0, 2)), rtol=1e-4)
    np.testing.assert_allclose(mean.asnumpy(), whole.asnumpy().mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance.asnumpy(), whole.asnumpy().var((0, 2)), rtol=1e-4)


def test_prediction_and_global_statistics_do_not_synchronize():
    part = batches((4, 4), dtype="float32")[0][0]
    layer = SyncBatchNorm(num_devices=2)
    layer.initialize()
    np.testing.assert_allclose(layer(part).asnumpy(), part.asnumpy(), rtol=1e-4)
    layer = SyncBatchNorm(num_devices=2, use_global_stats=True)
    layer.initialize()
    out = backward_of(lambda: layer(part))
    np.testing.assert_allclose(out.asnumpy(), part.asnumpy(), rtol=1e-4)


def test_sync_batch_norm_exports_as_symbol(tmp_path):
    norm = mx.sym.contrib.SyncBatchNorm(mx.sym.var("x"), key="k", ndev=2, name="norm")
    assert norm.list_arguments() == ["x", "norm_gamma", "norm_beta"]
    assert norm.list_auxiliary_states() == ["norm_moving_mean", "norm_moving_var"]
    net, _ = pair(2)
    part = batches((2, 2))[0][0]
    net.hybridize()
    wanted = net(part).asnumpy()
    net.export(str(tmp_path / "net"))
    loaded = gluon.SymbolBlock.imports(
        str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    )
    np.testing.assert_array_equal(loaded(part).asnumpy(), wanted)


@pytest.mark.parametrize("stages", [1, 2])
def test_mesh_replicas_synchronize(stages):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(6, in_units=5), SyncBatchNorm(in_channels=6, num_devices=2))
    net.add(gluon.nn.Dense(6, in_units=6), SyncBatchNorm(in_channels=6, num_devices=2))
    mesh = mx.parallel.Mesh(
        {"data": 2, "stage": stages}, devices=[on(i) for i in range(2 * stages)]
    )
    net.place(mesh)
    net.initialize()
    net.hybridize()
    whole = batches((4, 4), shape=(5,), dtype="float32")[1]
    with autograd.record():
        outputs = [net(part) for part in mesh.split_and_load(whole)]
    autograd.backward(outputs)
    joined = np.concatenate([out.asnumpy() for out in outputs])
    np.testing.assert_allclose(joined.mean(0), np.zeros(6), atol=1e-5)
    np.testing.assert_allclose(joined.std(0), np.ones(6), rtol=0.01)  # eps biases the variance
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with pytest.raises(mx.MXNetError, match="mixes data across the batch"):
        mx.parallel.TrainStep(net, gluon.loss.L2Loss(), trainer, mx.parallel.Pipeline(2))(
            whole, nd.zeros((8, 6))
        )


def test_replicas_called_from_threads_synchronize():
    net, _ = pair(2)
    parts, whole = batches((3, 2))
    results = [None, None]

    def call(i):
        out = backward_of(lambda: net(parts[i]))
        results[i] = out.asnumpy()

    threads = [threading.Thread(target=call, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.isfinite(result).all() for result in results)


# --- Missing replicas -------- ------------------------------------------------------------


@pytest.mark.parametrize(
    "hybrid",
    [pytest.param(False, id="eager"), pytest.param(True, id="hybrid", marks=pytest.mark.slow)],
)
def test_reading_before_all_replicas_were_called_raises(hybrid):
    net, _ = pair(2, make=lambda norm: norm())
    net.hybridize(hybrid)
    parts, _ = batches((3, 2))
    with autograd.record():
        out = net(parts[0])
    with pytest.raises(mx.MXNetError) as error:
        out.asnumpy()
    text = str(error.value)
    assert f"'{net.prefix}': statistics of SyncBatchNorm need all 2 devices" in text
    assert f"1 has joined ({on(0)})" in text and "in block SyncBatchNorm" in text
    net.initialize(ctx=devices(2), force_reinit=True)
    with autograd.record():
        outputs = [net(part) for part in parts]
    autograd.backward(outputs)
    assert all(np.isfinite(out.asnumpy()).all() for out in outputs)


@pytest.mark.slow
def test_backward_of_too_few_replicas_raises():
    net, _ = pair(3, make=lambda norm: norm())
    parts, _ = batches((3, 2, 2))
    for part in parts:
        part.attach_grad()
    with autograd.record():
        outputs = [net(part) for part in parts]
    autograd.backward(outputs[:2])
    with pytest.raises(
        mx.MXNetError,
        match=r"gradients of SyncBatchNorm need all 3 .* 2 have joined \(\w+\(0\), \w+\(1\)\)",
    ):
        parts[0].grad.asnumpy()
    raises(mx.MXNetError, "need all 3", lambda: parts[1].grad.asnumpy())
    assert np.isfinite(outputs[0].asnumpy()).all()


@pytest.mark.slow
def test_earlier_failure_of_a_replica_is_reported():
    net, _ = pair(2, make=lambda norm: norm())
    parts, _ = batches((3, 2))
    bad = nd.zeros((2, 2, 5, 5), ctx=on(1), dtype="float64")
    _core._stall(on(1), 0.2)  # the op must fail at run time, after all work is queued
    bad += nd.take(bad, nd.full((2,), 9, ctx=on(1)), mode="raise")
    with autograd.record():
        outputs = [net(parts[0]), net(bad)]
    raises(mx.MXNetError, "or the work of another device has failed", lambda: outputs[0].asnumpy())
    raises(mx.MXNetError, "take", lambda: outputs[1].asnumpy())


def test_replicas_of_different_shapes_raise():
    for ctx in devices(2):
        _core._stall(ctx, 0.2)  # both must be queued before the first one fails
    with autograd.train_mode():
        outputs = [
            nd.contrib.SyncBatchNorm(
                nd.ones((2, channels), ctx=ctx), *states(ctx, channels), key="differ", ndev=2
            )
            for ctx, channels in ((on(0), 3), (on(1), 4))
        ]
    for out in outputs:
        with pytest.raises(mx.MXNetError, match=r"'differ': replicas differ in .*\(3, [34]\) of"):
            out.asnumpy()


def test_synchronous_engine_modes_raise():
    part = batches((2, 2), shape=(3, 4), dtype="float32")[0][0]
    for mode in ("sync", "shuffle"):
        _core.set_engine_mode(mode)
        try:
            with (
                pytest.raises(mx.base.NotSupportedError, match=f"mode '{mode}'"),
                autograd.train_mode(),
            ):
                nd.contrib.SyncBatchNorm(part, *states(part.context), key="mode", ndev=2).asnumpy()
        finally:
            _core.set_engine_mode("async")
