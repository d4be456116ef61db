"""A single Trainer for parameters on any devices."""

import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon
from mpgluon.gluon import nn
from support.calls import raises
from support.compare import same_bits
from support.devices import on
from support.training import backward_of

OPTIMIZERS = [
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("adam", {"learning_rate": 0.05}),
]


class Split(gluon.HybridBlock):
    """Two layers; the second is on a separate device."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first = nn.Dense(6, activation="tanh", in_units=4)
            self.second = nn.Dense(3, in_units=6)

    def hybrid_forward(self, F, x):
        return self.second(self.first(x).as_in_context(self.second.weight.list_ctx()[0]))


def make(first=on(0), second=on(1)):
    net = Split(prefix="net_")
    mx.random.seed(5)
    net.first.initialize(mx.init.Xavier(), ctx=first)
    net.second.initialize(mx.init.Xavier(), ctx=second)
    return net


def batches(count, seed=0):
    draw = np.random.RandomState(seed)
    return [draw.uniform(-1, 1, (5, 4)).astype("float32") for _ in range(count)]


def train(net, trainer, data):
    for x in data:
        with autograd.record():
            y = net(mx.nd.array(x, ctx=net.first.weight.list_ctx()[0]))
            loss = (y * y).sum()
        loss.backward()
        trainer.step(len(x))


def values(net):
    return {
        name: param.data(param.list_ctx()[0]).asnumpy()
        for name, param in net.collect_params().items()
    }


def test_step_without_trained_parameters_warns_once():
    net = make()
    net.collect_params().setattr("grad_req", "null")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    before = values(net)
    with pytest.warns(UserWarning, match="all parameters have grad_req='null'") as caught:
        for _ in range(3):
            trainer.step(1)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    same_bits(values(net), before)
    net.second.bias.grad_req = "write"
    (x,) = batches(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(net, trainer, [x])
    assert (values(net)["net_dense1_bias"] != before["net_dense1_bias"]).any()


@pytest.mark.parametrize("name, options", OPTIMIZERS)
def test_updates_do_not_depend_on_placement(name, options):
    results = []
    for second in (on(0), on(1)):
        net = make(second=second)
        trainer = gluon.Trainer(net.collect_params(), name, dict(options))
        start = values(net)
        train(net, trainer, batches(5))
        results.append(values(net))
        assert any((results[-1][key] != start[key]).any() for key in start)
    same_bits(*results)


@pytest.mark.parametrize("name, options", OPTIMIZERS)
def test_states_load_onto_another_placement(tmp_path, name, options):
    path = str(tmp_path / "trainer.states")
    net = make()
    trainer = gluon.Trainer(net.collect_params(), name, dict(options))
    train(net, trainer, batches(3))
    trainer.set_learning_rate(0.02)
    trainer.save_states(path)
    net.save_parameters(str(tmp_path / "net.params"))
    train(net, trainer, batches(3, seed=1))

    other = make(second=on(0))
    other.load_parameters(str(tmp_path / "net.params"))
    second = gluon.Trainer(other.collect_params(), name, dict(options))
    second.load_states(path)
    assert second.learning_rate == 0.02
    train(other, second, batches(3, seed=1))
    same_bits(values(other), values(net))


def test_moved_parameters_keep_their_state():
    net, moved = make(), make()
    trainers = [gluon.Trainer(each.collect_params(), "adam") for each in (net, moved)]
    for each, trainer in zip((net, moved), trainers):
        train(each, trainer, batches(2))
    moved.reset_ctx(on(2))
    for each, trainer in zip((net, moved), trainers):
        train(each, trainer, batches(2, seed=1))
    same_bits(values(net), values(moved))


def test_replicas_stay_equal_after_updates():
    contexts = [on(0), on(1), on(2)]
    net = nn.Dense(3, in_units=4)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    start = net.weight.data(contexts[0]).asnumpy()
    gradients = []
    for x in batches(3):
        with autograd.record():
            losses = [
                net(mx.nd.array(x, ctx=ctx) * (i + 1)).sum() for i, ctx in enumerate(contexts)
            ]
        autograd.backward(losses)
        gradients.append(sum(net.weight.grad(ctx).asnumpy() for ctx in contexts))
        trainer.allreduce_grads()
        for ctx in contexts:
            np.testing.assert_allclose(
                net.weight.grad(ctx).asnumpy(), gradients[-1], rtol=1e-5, atol=1e-6
            )
            np.testing.assert_array_equal(
                net.weight.grad(ctx).asnumpy(), net.weight.grad(contexts[0]).asnumpy()
            )
        trainer.update(len(x))
        weights = [net.weight.data(ctx).asnumpy() for ctx in contexts]
        for weight in weights[1:]:
            np.testing.assert_array_equal(weight, weights[0])
    assert (weights[0] != start).any()


def test_data_parallel_equals_one_device_within_rounding():
    contexts = [on(0), on(1)]
    results = []
    for ctx in (contexts[:1], contexts):
        mx.random.seed(3)
        net = nn.Dense(3, in_units=4, prefix="net_")
        net.initialize(mx.init.Xavier(), ctx=ctx)
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}
        )
        for x in batches(4):
            with autograd.record():
                losses = [(net(part) ** 2).sum() for part in gluon.utils.split_and_load(x[:4], ctx)]
            autograd.backward(losses)
            trainer.step(4)
        results.append(values(net))
    for name in results[0]:
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-5, atol=1e-6)


def test_stale_gradients_raise():
    net = make()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    raises(UserWarning, "net_dense", lambda: trainer.step(1))
    train(net, trainer, batches(1))
    raises(UserWarning, "has not been updated by backward", lambda: trainer.step(1))
    before = values(net)
    backward_of(lambda: net.first(mx.nd.ones((2, 4))))
    trainer.step(1, ignore_stale_grad=True)
    after = values(net)
    assert (before["net_dense0_weight"] != after["net_dense0_weight"]).any()
    np.testing.assert_array_equal(before["net_dense1_weight"], after["net_dense1_weight"])


def test_zero_lr_mult_and_null_grad_req_freeze_parameters():
    net = make()
    net.first.collect_params().setattr("grad_req", "null")
    net.second.weight.lr_mult = 0
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    before = values(net)
    train(net, trainer, batches(1))
    after = values(net)
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed == {"net_dense1_bias"}


def test_learning_rate_can_be_set_or_scheduled():
    net = make()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    trainer.set_learning_rate(0.25)
    assert trainer.learning_rate == 0.25 and trainer.optimizer.learning_rate == 0.25
    scheduled = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"lr_scheduler": mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=1.0)},
    )
    train(net, scheduled, batches(4))
    assert scheduled.learning_rate < 1
    with pytest.raises(UserWarning):
        scheduled.set_learning_rate(1)


def test_invalid_learning_rates_and_batch_sizes_raise():
    net = make()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    before = values(net)
    for rate in (float("nan"), float("inf"), -1):
        with pytest.raises(ValueError):
            trainer.set_learning_rate(rate)
    for batch_size in (0, -3, float("nan")):
        raises(ValueError, "batch_size", lambda: trainer.step(batch_size))
    same_bits(before, values(net))


def test_trainer_rejects_invalid_arguments():
    net = make()
    params = net.collect_params()
    raises(ValueError, "list or dict of Parameters", lambda: gluon.Trainer(3, "sgd"))
    raises(ValueError, "list of", lambda: gluon.Trainer([3], "sgd"))
    with pytest.raises(ValueError, match="net_dense0_weight"):
        gluon.Trainer([params["net_dense0_weight"]] * 2, "sgd")
    with pytest.raises(ValueError, match="compression"):
        gluon.Trainer(params, "sgd", compression_params={"type": "2bit"})
    with pytest.raises(ValueError, match="unknown store"):
        gluon.Trainer(params, "sgd", kvstore="carrier pigeon")
    with pytest.raises(mx.MXNetError, match="has not been initialized"):
        gluon.Trainer(nn.Dense(3).collect_params(), "sgd")
    with pytest.raises(ValueError):
        gluon.Trainer(params, mx.optimizer.SGD(), {"learning_rate": 1})


def test_mismatched_or_damaged_state_files_raise(tmp_path):
    net = make()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    train(net, trainer, batches(1))
    path = str(tmp_path / "trainer.states")
    trainer.save_states(path)

    other = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
    raises(mx.MXNetError, "Adam.*SGD", lambda: other.load_states(path))
    fewer = gluon.Trainer(net.first.collect_params(), "adam")
    raises(mx.MXNetError, "net_dense1", lambda: fewer.load_states(path))
    bigger = (
        nn.Dense(7, in_units=4, prefix="net_dense0_"),
        nn.Dense(3, in_units=7, prefix="net_dense1_"),
    )
    params = gluon.ParameterDict()
    for layer in bigger:
        layer.initialize()
        params.update(layer.collect_params())
    raises(mx.MXNetError, "shape", lambda: gluon.Trainer(params, "adam").load_states(path))
    (tmp_path / "junk").write_bytes(b"\x00" * 100)
    raises(mx.MXNetError, "junk", lambda: trainer.load_states(str(tmp_path / "junk")))
    data = (tmp_path / "trainer.states").read_bytes()
    (tmp_path / "short").write_bytes(data[: len(data) // 2])
    raises(mx.MXNetError, "short", lambda: trainer.load_states(str(tmp_path / "short")))
    net.save_parameters(path)
    raises(mx.MXNetError, "not a file of trainer states", lambda: trainer.load_states(path))
    with pytest.raises(FileNotFoundError):
        trainer.load_states(str(tmp_path / "missing"))
    before = values(net)
    train(net, trainer, batches(1))
    assert (before["net_dense0_weight"] != values(net)["net_dense0_weight"]).any()


def test_clip_global_norm_spans_devices():
    arrays = [
        mx.nd.ones((3, 3), ctx=on(0)) * 2,
        mx.nd.ones((2,), ctx=on(1)),
        mx.nd.ones((1, 1, 1), ctx=on(2)),
    ]
    expected = np.sqrt(9 * 4 + 2 + 1)
    norm = gluon.utils.clip_global_norm(arrays, 1.0)
    assert isinstance(norm, float) and norm == pytest.approx(expected, rel=1e-6)
    assert np.sqrt(sum((array.asnumpy() ** 2).sum() for array in arrays)) == pytest.approx(
        1.0, rel=1e-5
    )
    assert [array.context for array in arrays] == [on(0), on(1), on(2)]
    copies = [array.copy() for array in arrays]
    norm = gluon.utils.clip_global_norm(arrays, 100.0, check_isfinite=False)
    assert isinstance(norm, mx.nd.NDArray) and norm.shape == (1,)
    for a, b in zip(arrays, copies):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
    with pytest.warns(UserWarning, match="nan or inf"):
        gluon.utils.clip_global_norm([mx.nd.array([np.inf])], 1.0)
    with pytest.raises(ValueError):
        gluon.utils.clip_global_norm([], 1.0)


def test_split_data_and_split_and_load_slice_batches():
    data = mx.nd.arange(20).reshape((5, 4))
    raises(ValueError, "evenly", lambda: gluon.utils.split_data(data, 2))
    raises(ValueError, "Too many slices", lambda: gluon.utils.split_data(data, 6))
    assert [part.shape for part in gluon.utils.split_data(data, 2, even_split=False)] == [
        (3, 4),
        (2, 4),
    ]
    pieces = gluon.utils.split_data(mx.nd.arange(11), 4, even_split=False)
    assert [part.asnumpy().tolist() for part in pieces] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10],
    ]
    assert [part.shape for part in gluon.utils.split_data(data, 2, batch_axis=1)] == [
        (5, 2),
        (5, 2),
    ]
    parts = gluon.utils.split_and_load(np.arange(8).reshape(4, 2), [on(0), on(1)])
    assert [part.context for part in parts] == [on(0), on(1)]
    assert parts[1].asnumpy().tolist() == [[4, 5], [6, 7]]


def test_download_verifies_sha1(tmp_path):
    source = tmp_path / "source.txt"
    source.write_text("text")
    (tmp_path / "to").mkdir()
    sha1 = "372ea08cab33e71c02c651dbc83a474d32c676ea"
    path = gluon.utils.download(source.as_uri(), str(tmp_path / "to"), sha1_hash=sha1)
    assert open(path).read() == "text" and gluon.utils.check_sha1(path, sha1)
    with pytest.raises(mx.MXNetError, match="SHA-1"):
        gluon.utils.download(source.as_uri(), str(tmp_path / "bad"), sha1_hash="0" * 40)
    assert not (tmp_path / "bad").exists()
    with pytest.raises(mx.MXNetError, match="absent"):
        gluon.utils.download((tmp_path / "absent").as_uri(), str(tmp_path / "to"))


@pytest.mark.parametrize(
    "optimizer, options",
    [("adam", {}), ("sgd", {"momentum": 0.9}), ("lamb", {}), ("ftml", {}), ("adafactor", {})],
)
def test_optimizer_states_follow_a_cast_network(optimizer, options):
    def train(dtypes):
        mx.random.seed(1)
        net = mx.gluon.nn.Dense(2, in_units=3)
        net.initialize(mx.init.Xavier())
        trainer = mx.gluon.Trainer(net, optimizer, {"learning_rate": 0.1, **options})
        for step, dtype in enumerate(dtypes):
            net.cast(dtype)
            x = mx.nd.array([[1, 2, 3], [step, -1, 0.5]], dtype=dtype)
            backward_of(lambda: (net(x) ** 2).sum())
            trainer.step(2)
        return net.weight.data().asnumpy()

    np.testing.assert_allclose(
        train(["float32"] * 2 + ["float64"] * 2), train(["float32"] * 4), rtol=1e-4, atol=1e-5
    )


def test_multi_precision_states_reject_a_cast_network():
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = mx.gluon.Trainer(net, "adam", {"multi_precision": True})
    for dtype in ("float32", "float16"):
        net.cast(dtype)
        backward_of(lambda: net(mx.nd.ones((1, 3), dtype=dtype)).sum())
        if dtype == "float32":
            trainer.step(1)
    with pytest.raises(
        mx.MXNetError, match="cast from float32 to float16 during training.*create a new Trainer"
    ):
        trainer.step(1)
