"""Automatic mixed precision."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.contrib import amp
from mpgluon.gluon import nn
from support.calls import raises
from support.compare import same_bits
from support.devices import on
from support.training import backward_of, variable

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
OPTIMIZERS = [
    name
    for name, kind in sorted(mx.optimizer.Optimizer.opt_registry.items())
    if kind.__module__.startswith("mpgluon.")
]


@pytest.fixture(params=["bfloat16", "float16"])
def low(request):
    amp.init(request.param)
    yield request.param
    amp.turn_off()


def name_of(array):
    return np.dtype(array.dtype).name if array.dtype != mx.bfloat16 else "bfloat16"


def test_amp_casts_ops_by_kind(low):
    x, half = nd.ones((2, 3)), nd.ones((2, 3), dtype=low)
    double, whole = nd.ones((2, 3), dtype="float64"), nd.ones((2, 3), dtype="int32")
    for op, arrays, dtype in (
        (lambda a: nd.FullyConnected(a, nd.ones((4, 3)), no_bias=True, num_hidden=4), [x], low),
        (lambda a: a + a, [half], low),
        (lambda a, b: a + b, [x, half], "float32"),
        (lambda a, b: nd.concat(a, b, dim=1), [half, x], "float32"),
        (nd.contrib.gated, [half, x], "float32"),
        (nd.contrib.gated, [half, half], low),
        (nd.softmax, [half], "float32"),
        (lambda a: a**2, [half], "float32"),
        (lambda a: a.sum(), [half], "float32"),
        (nd.relu, [half], low),
        (nd.transpose, [x], "float32"),
        (lambda a: nd.Activation(a, "softrelu"), [half], "float32"),
        (lambda a: nd.Activation(a, act_type="tanh"), [half], low),
        (lambda a: nd.LeakyReLU(a, act_type="elu"), [half], "float32"),
        (lambda a: nd.LeakyReLU(a, act_type="leaky"), [half], low),
        (lambda a: nd.FullyConnected(a, a, no_bias=True, num_hidden=2), [double], "float64"),
        (lambda a: a.sum(), [whole], "int32"),
    ):
        assert name_of(op(*arrays)) == dtype
    out = nd.zeros((2, 3), dtype=low)
    nd.broadcast_add(x, half, out=out)
    assert out.asnumpy().tolist() == [[2] * 3] * 2
    weight = variable(nd.ones((1, 3)))
    backward_of(lambda: nd.FullyConnected(x, weight, no_bias=True, num_hidden=1))
    assert name_of(weight.grad) == "float32" and weight.grad.asnumpy().tolist() == [[2, 2, 2]]


def test_batch_norm_statistics_stay_float32(low):
    layer = nn.BatchNorm(in_channels=3)
    layer.initialize()
    with autograd.record():
        out = layer(nd.random.normal(3, 1, (8, 3), dtype=low))
    assert name_of(out) == low and name_of(layer.running_mean.data()) == "float32"
    assert layer.running_mean.data().asnumpy().all()


@pytest.mark.parametrize("state", ["float32", "float64", "low"])
def test_cached_attention_computes_in_the_dtype_of_its_caches(low, state):
    """Casts of a cache would lose the new keys and values."""
    state = low if state == "low" else state
    caches = [nd.zeros((1, 3, 2, 4), dtype=state) for _ in range(2)]
    query = nd.ones((1, 1, 2, 4), dtype=low)
    lengths = nd.array([1], dtype="int32")
    out = nd.contrib.cached_attention(query, 2 * query, nd.ones((1, 1, 2, 4)), *caches, lengths)
    assert name_of(out) == name_of(caches[0]) == state
    for cache, value in zip(caches, (2, 1)):
        assert cache.astype("float32").asnumpy()[0, :, 1, 3].tolist() == [0, value, 0]


def network(seed=1, split=None, **options):
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(8, 3, padding=1, activation="relu"),
            nn.BatchNorm(),
            nn.MaxPool2D(2),
            nn.Flatten(),
            nn.Dense(16, activation="tanh"),
            nn.LayerNorm(),
            nn.Dense(4),
        )
    return net


class Split(gluon.HybridBlock):
    """The network on one or two devices."""

    def __init__(self, net, devices):
        super().__init__(prefix="split_")
        self.net, self.devices = net, devices
        for i, layer in enumerate(net):
            layer.initialize(mx.init.Xavier(), ctx=devices[i > 3])

    def hybrid_forward(self, F, x):
        for i, layer in enumerate(self.net):
            x = layer(x.as_in_context(self.devices[i > 3]))
        return x


def scale(trainer, start=128.0):
    """Gives a trainer a loss scale at which these networks do not overflow."""
    amp.init_trainer(trainer)
    vars(trainer._amp_loss_scaler).update(_loss_scale=start, _next_loss_scale=start)


def batch(number):
    random = np.random.RandomState(number)
    return nd.array(random.randn(16, 3, 8, 8)), nd.array(random.randint(0, 4, 16))


def trained(devices, hybridize, scaled=False, pipeline=None):
    net = Split(network(), devices)
    if hybridize:
        net.hybridize(exact=True, pipeline=pipeline)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    if scaled:
        scale(trainer)
    losses = []
    for number in range(6):
        x, y = batch(number)
        with autograd.record():
            loss = LOSS(net(x), y.as_in_context(devices[1]))
            if scaled:
                with amp.scale_loss(loss, trainer) as scaled_loss:
                    autograd.backward(scaled_loss)
        if not scaled:
            loss.backward()
        trainer.step(16)
        losses.append(loss.mean().asscalar())
    params = net.collect_params().values()
    assert {name_of(param.list_data()[0]) for param in params} == {"float32"}
    return losses, [param.list_data()[0].asnumpy() for param in params]


@pytest.mark.parametrize("scaled", [False, True])
def test_low_precision_training_is_near_float32_on_any_placement(scaled):
    expected, _ = trained([on(0), on(0)], False)
    for dtype in ("bfloat16", "float16"):
        amp.init(dtype)
        try:
            losses, weights = trained([on(0), on(0)], False, scaled)
            np.testing.assert_allclose(losses, expected, rtol=0.03 if dtype == "bfloat16" else 3e-3)
            for devices, hybridize in ((0, True), (1, False), (1, True)):
                same_bits(trained([on(0), on(devices)], hybridize, scaled)[1], weights)
        finally:
            amp.turn_off()


def test_low_precision_pipeline_is_near_one_device(low):
    """Uses only Dense layers, because BatchNorm computes its statistics per micro-batch."""

    def run(pipeline):
        mx.random.seed(2)
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(nn.Dense(8, activation="tanh", in_units=6), nn.Dense(3, in_units=8))
        net.initialize(mx.init.Xavier())
        if pipeline is not None:
            net.hybridize(exact=True, pipeline=pipeline)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
        scale(trainer)
        for number in range(3):
            random = np.random.RandomState(number)
            with autograd.record():
                loss = LOSS(net(nd.array(random.randn(8, 6))), nd.array(random.randint(0, 3, 8)))
                with amp.scale_loss(loss, trainer) as scaled:
                    autograd.backward(scaled)
            trainer.step(8)
        return [param.data().asnumpy() for param in net.collect_params().values()]

    expected = run(None)
    for found, wanted in zip(run(mx.parallel.Pipeline(micro_batches=4)), expected):
        np.testing.assert_allclose(found, wanted, rtol=0.02, atol=0.02)


def test_train_steps_scale_their_losses(low):
    results = []
    for scaled in (False, True):
        mx.random.seed(3)
        net = nn.Dense(3, in_units=6)
        net.initialize(mx.init.Xavier())
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
        if scaled:
            scale(trainer)
        step = mx.parallel.TrainStep(net, LOSS, trainer, mx.parallel.Pipeline(micro_batches=2))
        step(nd.random.normal(shape=(8, 6)), nd.zeros(8))
        assert (trainer._scale != 1) == scaled
        results.append(net.weight.data().asnumpy())
    np.testing.assert_allclose(*results, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("update_on_kvstore", [None, False])
def test_overflow_skips_the_step_and_halves_the_scale(devices, update_on_kvstore):
    amp.init()
    try:
        contexts = [on(i) for i in range(devices)]
        net = nn.Dense(2, in_units=2, use_bias=False)
        net.initialize("ones", ctx=contexts)
        trainer = gluon.Trainer(
            net.collect_params(),
            "sgd",
            {"learning_rate": 1.0, "momentum": 0.9},
            update_on_kvstore=update_on_kvstore,
        )
        amp.init_trainer(trainer)
        scaler = trainer._amp_loss_scaler

        def step(factor):
            with autograd.record():
                losses = [(net(nd.ones((1, 2), ctx=ctx)) * factor).sum() for ctx in contexts]
                with amp.scale_loss(losses, trainer) as scaled:
                    autograd.backward(scaled)
            trainer.step(devices)
            return [weight.asnumpy().tolist() for weight in net.weight.list_data()]

        assert scaler.loss_scale == 2**16
        # 65536 overflows to infinity in float16
        assert step(1) == [[[1, 1], [1, 1]]] * devices and scaler.loss_scale == 2**15
        assert step(1) == [[[0, 0], [0, 0]]] * devices and scaler.loss_scale == 2**15
        assert step(4) == [[[0, 0], [0, 0]]] * devices and scaler.loss_scale == 2**14
        raises(UserWarning, "has not been updated", lambda: trainer.step(1))
        scaler._scale_seq_len = 2
        step(0.5), step(0.5)
        assert scaler.loss_scale == 2**15
    finally:
        amp.turn_off()


def test_unscale_divides_gradients_by_the_loss_scale():
    amp.init("bfloat16")
    try:
        net = nn.Dense(1, in_units=2, use_bias=False)
        net.initialize("ones")
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
        raises(AssertionError, "init_trainer", lambda: amp.unscale(trainer))
        amp.init_trainer(trainer)
        with autograd.record(), amp.scale_loss(net(nd.ones((1, 2))), trainer) as scaled:
            autograd.backward(scaled)
        amp.unscale(trainer)
        assert net.weight.grad().asnumpy().tolist() == [[1, 1]]
        trainer.step(1)
        assert net.weight.data().asnumpy().tolist() == [[0, 0]]
    finally:
        amp.turn_off()


def test_output_layer_gradients_are_scaled(low):
    trainer = gluon.Trainer([], "sgd")
    amp.init_trainer(trainer)
    x = variable(nd.zeros((1, 2)))
    backward_of(lambda: nd.SoftmaxOutput(x, nd.zeros(1), grad_scale=2))
    assert x.grad.asnumpy().tolist() == [[-(2.0**16), 2.0**16]]

    class Layer(gluon.HybridBlock):
        def hybrid_forward(self, F, x, label):
            return F.SoftmaxOutput(x, label)

    layer = Layer()
    layer.hybridize()
    raises(mx.MXNetError, "changing loss scale", lambda: layer(x, nd.zeros(1)))


def test_amp_init_and_turn_off_recompile_blocks():
    net = nn.Dense(2, in_units=2)
    net.initialize()
    net.hybridize()
    x = nd.ones((1, 2))
    assert name_of(net(x)) == "float32"
    amp.init("bfloat16")
    assert name_of(net(x)) == "bfloat16"
    amp.turn_off()
    assert name_of(net(x)) == "float32"


def test_amp_init_takes_user_op_lists():
    amp.init("float16", ["dot"], [("Activation", "act_type", ["relu"])], ["tanh"])
    try:
        half, x = nd.ones((2, 2), dtype="float16"), nd.ones((2, 2))
        assert name_of(nd.dot(x, x)) == "float16" and name_of(nd.tanh(half)) == "float32"
        assert name_of(nd.FullyConnected(x, x, no_bias=True, num_hidden=2)) == "float32"
        assert name_of(nd.exp(half)) == "float16"
        assert name_of(nd.Activation(half, "relu")) == "float32"
    finally:
        amp.turn_off()
    for lists in ((["dot"], None, ["dot"]), (["nothing"],), ("dot",)):
        with pytest.raises((AssertionError, ValueError)):
            amp.init("float16", *lists)
    raises(AssertionError, "not", lambda: amp.init("float32"))
    raises(AssertionError, "init", lambda: amp.init_trainer(gluon.Trainer([], "sgd")))
    every = [
        name
        for get in (
            amp.list_lp16_ops,
            amp.list_fp32_ops,
            amp.list_lp16_fp32_ops,
            amp.list_widest_type_cast,
        )
        for name in get("float16")
    ] + [name for name, _, _ in amp.list_conditional_fp32_ops("float16")]
    assert len(every) == len(set(every)) > 400
    assert amp.list_lp16_use_fp32_params("float16") is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("optional", [False, True])
def test_converted_network_is_near_float32(dtype, optional):
    net = network()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = batch(0)[0]
    expected = net(x).asnumpy()
    converted = amp.convert_hybrid_block(net, dtype, cast_optional_params=optional)
    found = converted(x)
    np.testing.assert_allclose(found.astype("float32").asnumpy(), expected, rtol=0.05, atol=0.05)
    types = {name: name_of(p.data()) for name, p in converted.collect_params().items()}
    assert types["net_conv0_weight"] == (dtype if optional else "float32")
    assert types["net_batchnorm0_running_var"] == types["net_layernorm0_gamma"] == "float32"

    symbol = net(mx.sym.var("data"))
    params = {name: p.data() for name, p in net.collect_params().items()}
    states = set(symbol.list_auxiliary_states())
    args = {name: value for name, value in params.items() if name not in states}
    aux = {name: params[name] for name in states}
    casts, args, aux = amp.convert_model(
        symbol,
        args,
        aux,
        dtype,
        excluded_sym_names=["net_dense1_fwd"],
        cast_optional_params=optional,
    )
    assert args["net_dense1_weight"].dtype == np.float32
    texts = [node for node in casts.get_internals().list_outputs() if "amp_cast" in node]
    assert any(text.endswith(f"amp_cast_{dtype}_output") for text in texts)
    out = casts.bind(x.context, {**args, "data": x}, aux_states=aux).forward()[0]
    assert out.dtype == np.float32
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=0.05, atol=0.05)
    assert "amp_cast" not in casts.tojson() and "amp_cast" in casts.tojson(remove_amp_cast=False)
    x = mx.sym.var("x")
    both = amp.convert_symbol(mx.sym.broadcast_add(mx.sym.relu(x), x), dtype)
    assert "amp_multicast" in both.tojson(remove_amp_cast=False)
    with pytest.raises(AssertionError):
        amp.convert_symbol(net)


def dense(seed=1, devices=None):
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Dense(16, activation="tanh", in_units=6),
            nn.LayerNorm(in_channels=16),
            nn.Dense(12, activation="relu", in_units=16),
            nn.Dense(3, in_units=12),
        )
    return net


def rows(number):
    random = np.random.RandomState(number)
    return nd.array(random.randn(16, 6)), nd.array(random.randint(0, 3, 16))


def first_values(net):
    return [param.list_data()[0].asnumpy() for param in net.collect_params().values()]


class Weighted(gluon.loss.Loss):
    """A loss that a large sample weight makes overflow."""

    def __init__(self):
        super().__init__(weight=1.0, batch_axis=0)
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F, pred, label, weight):
        return self.loss(pred, label) * weight


SCHEDULES = ["gpipe", "1f1b", "interleaved", "zero_bubble", "auto"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pipelines_have_the_bits_of_one_device(low, schedule):
    def by_hand():
        net = dense()
        net.initialize(mx.init.Xavier())
        net.hybridize(exact=True)
        net.collect_params().setattr("grad_req", "add")
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2})
        scale(trainer)
        for number in range(2):
            net.collect_params().zero_grad()
            for x, y in zip(*[array.split(4, axis=0) for array in rows(number)]):
                with autograd.record(), amp.scale_loss(LOSS(net(x), y), trainer) as scaled:
                    autograd.backward(scaled)
            trainer.step(16)
        return first_values(net)

    def piped(stages):
        net = dense()
        mx.parallel.Mesh({"stage": stages}, [on(i) for i in range(stages)]).place(net)
        net.initialize(mx.init.Xavier())
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2})
        scale(trainer)
        pipeline = mx.parallel.Pipeline(4, schedule)
        step = mx.parallel.TrainStep(net, LOSS, trainer, pipeline, exact=True)
        for number in range(2):
            step(*rows(number))
        return first_values(net)

    expected = by_hand()
    for stages in (2, 4):
        same_bits(piped(stages), expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("replicas", [1, 2])
def test_one_overflow_skips_the_step_on_the_whole_mesh(low, schedule, replicas):
    axes = {"data": replicas, "stage": 2, "model": 2}
    net = dense()
    mx.parallel.Mesh(axes, [on(i) for i in range(4 * replicas)]).place(net)
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.2})
    scale(trainer)
    step = mx.parallel.TrainStep(net, Weighted(), trainer, mx.parallel.Pipeline(4, schedule))
    steps = []
    for factor in (1, 1e37, 1):
        x, y = rows(0)
        weights = nd.ones(16)
        weights[13] = factor
        step(x, [y, weights])
        for param in net.collect_params().values():
            values = [array.asnumpy() for array in param.list_data()]
            same_bits(values, values[:1] * len(values))
        steps.append(first_values(net))
    same_bits(steps[0], steps[1])
    assert all(np.isfinite(value).all() for value in steps[2])
    assert any((a != b).any() for a, b in zip(steps[1], steps[2]))
    assert trainer._amp_loss_scaler.loss_scale == 64 and trainer.optimizer.num_update == 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"update_on_kvstore": True},
        {"update_on_kvstore": False},
        {"shard_updates": True, "accumulate": 2},
        {"clip_global_norm": 1.0},
        {"kvstore": None},
    ],
    ids=str,
)
def test_one_overflow_skips_the_step_on_all_replicas(low, options):
    devices = [on(i) for i in range(3)]
    net = dense()
    net.initialize(mx.init.Xavier(), ctx=devices)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.2}, **options)
    scale(trainer)
    steps = []
    for factor in (1, 1e37, 1):
        for number in range(options.get("accumulate", 1)):
            x, y = rows(number)
            with autograd.record():
                losses = [
                    LOSS(net(x.as_in_context(ctx)), y.as_in_context(ctx))
                    * (factor if ctx == devices[1] else 1)
                    for ctx in devices
                ]
                with amp.scale_loss(losses, trainer) as scaled:
                    autograd.backward(scaled)
            trainer.step(48)
        for param in net.collect_params().values():
            values = [array.asnumpy() for array in param.list_data()]
            same_bits(values, values[:1] * 3)
        steps.append(first_values(net))
    same_bits(steps[0], steps[1])
    assert any((a != b).any() for a, b in zip(steps[1], steps[2]))
    assert trainer._amp_loss_scaler.loss_scale == 64 and trainer.optimizer.num_update == 2


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_overflow_in_stale_gradients_is_ignored(low, stype):
    used, left = [
        nn.Embedding(3, 2, sparse_grad=stype == "row_sparse", weight_initializer="ones")
        for _ in range(2)
    ]
    params = []
    for net in (used, left):
        net.initialize()
        params += net.collect_params().values()
    trainer = gluon.Trainer(params, "sgd", {"learning_rate": 1.0})
    scale(trainer)

    def step(net, factor):
        with autograd.record(), amp.scale_loss(net(nd.array([1])) * factor, trainer) as scaled:
            autograd.backward(scaled)
        trainer.step(1, ignore_stale_grad=True)
        return trainer._amp_loss_scaler.loss_scale, net.weight.data().asnumpy()[1, 0]

    assert step(left, 1e37) == (64, 1)
    assert step(used, 1) == (64, 0)
    assert step(used, 1) == (64, -1)


def test_unscale_in_mid_accumulation_raises(low):
    results = []
    for unscaled in (False, True):
        net = dense()
        net.initialize(mx.init.Xavier())
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, accumulate=2)
        scale(trainer)
        for number in range(4):
            x, y = rows(number)
            with autograd.record(), amp.scale_loss(LOSS(net(x), y), trainer) as scaled:
                autograd.backward(scaled)
            if unscaled and number % 2 == 0:
                raises(mx.MXNetError, "before the step that updates", lambda: amp.unscale(trainer))
            elif unscaled:
                amp.unscale(trainer)
            trainer.step(16)
        results.append(first_values(net))
    same_bits(*results)


def test_init_trainer_may_be_repeated(low):
    net = dense()
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    for _ in range(2):
        scale(trainer)
        with amp.scale_loss(nd.ones(1), trainer):
            assert trainer._scale == 1 / 128
    scaler = trainer._amp_loss_scaler
    scaler.loss_scale = 1024
    with amp.scale_loss(nd.ones(1), trainer) as scaled:
        assert scaled.asscalar() == 1024
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="positive"):
            scaler.loss_scale = wrong


def test_checkpoints_keep_the_loss_scale(low, tmp_path):
    def trainer_of(net):
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
        amp.init_trainer(trainer)
        return trainer

    net = dense()
    net.initialize()
    trainer = trainer_of(net)
    trainer._amp_loss_scaler.state = 512.0, 7
    mx.parallel.save(tmp_path, net, trainer)
    trainer.save_states(str(tmp_path / "states"))
    other = trainer_of(net)
    other.load_states(str(tmp_path / "states"))
    assert other._amp_loss_scaler.state == (512, 7)
    other._amp_loss_scaler.loss_scale = 2.0**16
    assert other._amp_loss_scaler.state == (2.0**16, 0)
    assert mx.parallel.load(tmp_path, net, other)["loss_scale"] == 512
    assert other._amp_loss_scaler.state == (512, 7)
    amp.turn_off()
    plain = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    assert mx.parallel.load(tmp_path, net, plain)["loss_scale"] == 512


@pytest.mark.parametrize("pipeline", [None, mx.parallel.Pipeline(4)])
def test_estimators_scale_losses(low, pipeline):
    from mpgluon.gluon.contrib import estimator as est

    def prepared():
        net = dense()
        if pipeline is not None:
            mx.parallel.Mesh({"stage": 2}, [on(0), on(1)]).place(net)
        net.initialize(mx.init.Xavier())
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
        scale(trainer)
        return net, trainer

    data = gluon.data.DataLoader(gluon.data.ArrayDataset(*rows(0)), 8)
    net, trainer = prepared()
    fitting = est.Estimator(net, LOSS, trainer=trainer, context=on(0), pipeline=pipeline)
    fitting.logger.setLevel("ERROR")
    fitting.fit(data, epochs=2)
    expected, trainer = prepared()
    step = mx.parallel.TrainStep(expected, LOSS, trainer, pipeline) if pipeline else None
    for x, y in [*data, *data]:
        if pipeline is not None:
            step(x, y)
            continue
        with autograd.record(), amp.scale_loss(LOSS(expected(x), y), trainer) as scaled:
            autograd.backward(scaled)
        trainer.step(8)
    assert fitting.trainer._scale == 1 / 128
    same_bits(first_values(net), first_values(expected))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("optional", [False, True])
def test_converted_bucketing_model_is_near_float32(dtype, optional):
    def network_of(length):
        x = mx.sym.Embedding(mx.sym.var("data"), input_dim=5, output_dim=4, name="embed")
        y = mx.sym.FullyConnected(mx.sym.sum(x, axis=1), num_hidden=2, name="fc")
        return mx.sym.SoftmaxOutput(y, name="softmax"), ("data",), ("softmax_label",)

    def batch_of(length):
        return mx.io.DataBatch(
            [nd.array(np.arange(2 * length).reshape(2, length) % 5)],
            [nd.zeros(2)],
            bucket_key=length,
            provide_data=[mx.io.DataDesc("data", (2, length))],
            provide_label=[mx.io.DataDesc("softmax_label", (2,))],
        )

    module = mx.mod.BucketingModule(network_of, default_bucket_key=6)
    raises(AssertionError, "bound", lambda: amp.convert_bucketing_module(module))
    raises(AssertionError, "bucketing module", lambda: amp.convert_bucketing_module(None))
    module.bind([("data", (2, 6))], [("softmax_label", (2,))])
    module.init_params(mx.init.Xavier())
    module.forward(batch_of(4), is_train=False)
    converted = amp.convert_bucketing_module(module, dtype, cast_optional_params=optional)
    converted.bind([("data", (2, 6))], [("softmax_label", (2,))], for_training=False)
    for length in (6, 4, 3):
        found = []
        for one in (module, converted):
            one.forward(batch_of(length), is_train=False)
            found.append(one.get_outputs()[0].astype("float32").asnumpy())
        np.testing.assert_allclose(*found, atol=0.02)
        nodes = converted.symbol.get_internals().list_outputs()
        assert any("amp_cast" in node for node in nodes)
    weight = converted.get_params()[0]["fc_weight"]
    assert name_of(weight) == (dtype if optional else "float32")


def test_shape_inference_passes_back_through_amp_casts():
    x, weight, bias = [mx.sym.var(name) for name in ("x", "weight", "bias")]
    cast = mx.sym.amp_cast(weight, dtype="float16")
    both = mx.sym.amp_multicast(cast, bias, num_outputs=2)
    y = mx.sym.FullyConnected(x, both[0], both[1], num_hidden=2)
    assert y.infer_shape(x=(3, 4)) == ([(3, 4), (2, 4), (2,)], [(3, 2)], [])


@pytest.mark.parametrize("hybrid", [False, True])
def test_recurrent_layers_cast_inputs_but_not_sequence_lengths(low, hybrid):
    """Inputs are cast to the dtype of the parameters; sequence lengths keep their dtype."""
    net, layer = nn.Dense(8, flatten=False), gluon.rnn.LSTM(6, use_sequence_length=True)
    for block in (net, layer):
        block.initialize(mx.init.Uniform(0.5))
        if hybrid:
            block.hybridize()
    x, lengths = nd.ones((4100, 2, 4)), nd.array([4097, 3])
    y = backward_of(lambda: layer(net(x), None, lengths))
    assert y.asnumpy()[4096, 0].any() and not y.asnumpy()[4097, 0].any()
    assert np.isfinite(net.weight.grad().asnumpy()).all()


def test_convert_hybrid_block_keeps_sequence_lengths():
    net = gluon.rnn.GRU(4, use_sequence_length=True, input_size=3)
    net.initialize(mx.init.Uniform(0.5))
    net.hybridize()
    inputs = nd.ones((2060, 1, 3)), *net.begin_state(1), nd.array([2049])
    net(inputs[0], [inputs[1]], inputs[2])
    converted = amp.convert_hybrid_block(net, "float16", cast_optional_params=True)
    output = converted(*inputs)[0].asnumpy()
    assert output[2048].any() and not output[2049:].any()


class Broken(gluon.HybridBlock):
    """A host step between two layers."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.last = gluon.nn.Dense(4, in_units=4), gluon.nn.Dense(2, in_units=4)

    def hybrid_forward(self, F, x):
        h = self.first(x)
        h = F.contrib.cond(F.sum(h) != 0, lambda: h / 3, lambda: h)
        return self.last(h)


@pytest.mark.parametrize("way", ("graph break", "pipeline", "step"))
def test_compiled_blocks_follow_amp_being_turned_on_and_off(way):
    net = Broken() if way == "graph break" else gluon.nn.Dense(2, in_units=4)
    net.initialize(mx.init.Uniform(1))
    x, label, pipeline = nd.ones((4, 4)) / 3, nd.zeros((4, 2)), mx.parallel.Pipeline(2)
    step = mx.parallel.TrainStep(net, lambda out, y: out.astype("float32") - y, None, pipeline)

    def run():
        return (step(x, label) if way == "step" else net(x).astype("float32")).asnumpy()

    def low():
        amp.init("bfloat16")
        try:
            return run()
        finally:
            amp.turn_off()

    single, wanted = run(), low()
    if way != "step":
        net.hybridize(exact=True, pipeline=pipeline if way == "pipeline" else None)
    assert np.array_equal(run(), single)
    assert not np.array_equal(wanted, single)
    for _ in range(2):
        assert np.array_equal(low(), wanted)
        assert np.array_equal(run(), single)


OPTIMIZERS = [
    name
    for name, found in mx.optimizer.Optimizer.opt_registry.items()
    if found.__module__.startswith(mx.optimizer.__name__)
]


@pytest.mark.filterwarnings("ignore:.*accumulating in float16")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_optimizers_update_weights_under_amp(name, dtype):
    weights = []
    for low in (False, True):
        mx.random.seed(1)
        updater = mx.optimizer.get_updater(mx.optimizer.create(name))
        weight = nd.array([[0.5, -0.25], [1, 2]], dtype=dtype)
        if low:
            amp.init("bfloat16")
        try:
            for _ in range(2):
                updater(0, nd.array([[1, 0.5], [-1, 0.25]], dtype=dtype), weight)
        finally:
            amp.turn_off()
        weights.append(weight.asnumpy())
    np.testing.assert_allclose(*weights, rtol=1e-2 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_weights_ignore_amp(name, store, dtype):
    def updated(mixed):
        mx.random.seed(3)
        param = gluon.Parameter("w", shape=(3, 4), dtype=dtype)
        param.initialize(mx.init.Constant(0.5), ctx=on(0))
        options = {"warmup_strategy": "lars"} if name == "lbsgd" else {}
        trainer = gluon.Trainer([param], name, options, update_on_kvstore=store)
        if mixed:
            amp.init("bfloat16")
        try:
            for i in range(2):
                with autograd.record():
                    loss = (param.data() * nd.arange(12).reshape((3, 4)).astype(dtype)).sum()
                loss.backward()
                param.grad()[:] = (i + 1) * 0.25
                trainer.step(1)
        finally:
            amp.turn_off()
        return param.data().asnumpy()

    same_bits([updated(True)], [updated(False)])
