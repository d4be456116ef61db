"""Layers split over 2, 3 and 4 devices equal the ordinary layer on one: initial values, results,
gradients and training."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn, rnn
from support.compare import close
from support.devices import on
from support.meshes import gradients, inputs_of, whole
from support.processes import output_of

DEVICES = [on(i) for i in range(4)]
COUNTS = pytest.mark.parametrize("count", [2, 3, 4])
MODES = pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])


def weights(net):
    params = list(net.collect_params().values())
    return whole(params, [p.data().asnumpy() for p in params])


def run(make, x, hybridize=False, steps=3, seed=5):
    """Returns initial values, output, gradients, and output and values after training."""
    mx.random.seed(seed)
    net = make()
    net.initialize(mx.init.Xavier())
    if hybridize:
        net.hybridize()
    x = nd.array(x)
    x.attach_grad()
    net(x)
    initial = weights(net)
    factor = nd.array(np.random.RandomState(9).standard_normal(net(x).shape).astype("float32"))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
    result = None
    for _ in range(steps):
        with autograd.record():
            out = net(x)
            loss = (out * factor).sum() + (out * out).sum() * 0.1
        loss.backward()
        result = result or (out, x.grad.asnumpy(), gradients(net))
        trainer.step(x.shape[0])
    out, grad, grads = result
    assert out.context == x.context
    return initial, out.asnumpy(), grad, grads, net(x).asnumpy(), weights(net)


def compare(ordinary, split, x, hybridize):
    one, many = run(ordinary, x), run(split, x, hybridize)
    for a, b in ((one[0], many[0]), (one[3], many[3]), (one[5], many[5])):
        assert a.keys() == b.keys()
    for name, value in one[0].items():
        assert np.array_equal(many[0][name], value), f"initial values of {name}"
    for index in (1, 2, 4):
        close(many[index], one[index])
    for index in (3, 5):
        for name, value in one[index].items():
            close(many[index][name], value)


LAYERS = {
    "column": (
        lambda: nn.Dense(11, prefix="a_"),
        lambda ctx: par.ColumnParallelDense(11, ctx, prefix="a_"),
        (6, 7),
    ),
    "column activation": (
        lambda: nn.Dense(
            8, activation="tanh", flatten=False, in_units=5, use_bias=False, prefix="a_"
        ),
        lambda ctx: par.ColumnParallelDense(
            8, ctx, activation="tanh", flatten=False, in_units=5, use_bias=False, prefix="a_"
        ),
        (3, 4, 5),
    ),
    "row": (
        lambda: nn.Dense(5, prefix="a_"),
        lambda ctx: par.RowParallelDense(5, ctx, prefix="a_"),
        (6, 2, 5),
    ),
    "row activation": (
        lambda: nn.Dense(5, activation="relu", flatten=False, prefix="a_"),
        lambda ctx: par.RowParallelDense(5, ctx, activation="relu", flatten=False, prefix="a_"),
        (3, 4, 9),
    ),
    "convolution": (
        lambda: nn.Conv2D(6, 3, padding=1, activation="relu", prefix="a_"),
        lambda ctx: par.ParallelConv2D(6, 3, ctx, padding=1, activation="relu", prefix="a_"),
        (2, 3, 6, 6),
    ),
    "groups": (
        lambda: nn.Conv2D(8, 3, strides=2, groups=4, use_bias=False, in_channels=8, prefix="a_"),
        lambda ctx: par.ParallelConv2D(
            8, 3, ctx, strides=2, groups=4, use_bias=False, in_channels=8, prefix="a_"
        ),
        (2, 8, 7, 7),
    ),
    "lstm": (
        lambda: rnn.LSTM(6, num_layers=2, prefix="a_"),
        lambda ctx: par.ParallelLSTM(6, ctx, num_layers=2, prefix="a_"),
        (4, 3, 5),
    ),
    "lstm NTC": (
        lambda: rnn.LSTM(7, layout="NTC", input_size=4, prefix="a_"),
        lambda ctx: par.ParallelLSTM(7, ctx, layout="NTC", input_size=4, prefix="a_"),
        (3, 2, 4),
    ),
    "lstm bidirectional": (
        lambda: rnn.LSTM(5, num_layers=2, bidirectional=True, dropout=0.4, prefix="a_"),
        lambda ctx: par.ParallelLSTM(
            5, ctx, num_layers=2, bidirectional=True, dropout=0.4, prefix="a_"
        ),
        (4, 3, 6),
    ),
    "lstm dropout": (
        lambda: rnn.LSTM(8, num_layers=3, dropout=0.6, layout="NTC", prefix="a_"),
        lambda ctx: par.ParallelLSTM(8, ctx, num_layers=3, dropout=0.6, layout="NTC", prefix="a_"),
        (3, 4, 6),
    ),
    "layer norm": (
        lambda: nn.LayerNorm(prefix="a_"),
        lambda ctx: par.SequenceParallelLayerNorm(ctx, prefix="a_"),
        (3, 7, 5),
    ),
    "attention": (
        lambda: par.ParallelSelfAttention(8, 4, DEVICES[:1], prefix="a_"),
        lambda ctx: par.ParallelSelfAttention(8, 4, ctx, prefix="a_"),
        (2, 5, 8),
    ),
    "causal attention": (
        lambda: par.ParallelSelfAttention(8, 4, DEVICES[:1], causal=True, dropout=0.3, prefix="a_"),
        lambda ctx: par.ParallelSelfAttention(8, 4, ctx, causal=True, dropout=0.3, prefix="a_"),
        (2, 5, 8),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
@COUNTS
@MODES
def test_split_layers_equal_ordinary_ones(name, count, hybridize):
    ordinary, split, shape = LAYERS[name]
    compare(ordinary, lambda: split(DEVICES[:count]), inputs_of(shape), hybridize)


@COUNTS
@MODES
def test_vocabulary_parallel_embedding_equals_embedding(count, hybridize):
    x = inputs_of((4, 5), integers=12)
    x[0, :2] = -3, 40  # clipped to the first and the last row

    def make(embed):
        def build():
            net = nn.HybridSequential(prefix="n_")
            with net.name_scope():
                net.add(embed("embed_"))
                net.add(nn.Dense(3, flatten=False, in_units=6))
            return net

        return build

    def results(build, hybrid):
        mx.random.seed(2)
        net = build()
        net.initialize()
        net.hybridize(hybrid)
        with autograd.record():
            out = net(nd.array(x))
            loss = (out * out).sum()
        loss.backward()
        return weights(net), out.asnumpy(), gradients(net)

    one = results(make(lambda p: nn.Embedding(11, 6, prefix=p)), False)
    many = results(
        make(lambda p: par.VocabParallelEmbedding(11, 6, DEVICES[:count], prefix=p)), hybridize
    )
    assert all(np.array_equal(many[0][k], v) for k, v in one[0].items())
    assert np.array_equal(one[1], many[1])  # exact: only one summand per row is nonzero
    for name, value in one[2].items():
        close(many[2][name], value)


@COUNTS
@MODES
def test_infinite_and_nan_rows_of_a_split_embedding_affect_only_themselves(count, hybridize):
    table = np.arange(24, dtype="float32").reshape(8, 3)
    special = {0: np.nan, 3: np.inf, 4: -np.inf, 7: np.nan}  # includes the ends of all parts
    for row, value in special.items():
        table[row, 1] = value
    x, out_grad = nd.array([1, 2, 5, 6, 4]), np.ones((5, 3), "float32")
    out_grad[0, 0], out_grad[3, 2] = np.nan, np.inf

    def results(embed, hybrid):
        embed.initialize()
        for param in embed.collect_params().values():
            begin = getattr(param, "ranges", [(0, 8)])[0][0]
            param.set_data(nd.array(table[begin : begin + param.shape[0]]))
        embed.hybridize(hybrid)
        with autograd.record():
            out = embed(x)
        out.backward(nd.array(out_grad))
        return out.asnumpy(), gradients(embed)

    out, grads = results(nn.Embedding(8, 3, prefix="e_"), False)
    split_out, split_grads = results(
        par.VocabParallelEmbedding(8, 3, DEVICES[:count], prefix="e_"), hybridize
    )
    np.testing.assert_array_equal(split_out, out)
    for name, value in grads.items():
        np.testing.assert_array_equal(split_grads[name], value)


@COUNTS
@MODES
def test_infinite_logits_of_split_classes_affect_only_themselves(count, hybridize):
    logits = inputs_of((4, 8))
    logits[:, [0, 3, 4, 7]] = -np.inf  # masked classes, at the ends of the parts
    label = nd.array([1, 2, 5, 6])
    expected = gluon.loss.SoftmaxCELoss()(nd.array(logits), label).asnumpy()
    loss = par.VocabParallelSoftmaxCELoss()
    loss.hybridize(hybridize)
    parts = par.scatter(nd.array(logits), DEVICES[:count], axis=1)
    close(loss(parts, label).asnumpy(), expected)


class Scores(gluon.HybridBlock):
    """Class scores and their loss, split or on one device."""

    def __init__(self, ctx, classes, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            if ctx:
                self.dense = par.ColumnParallelDense(
                    classes, ctx, flatten=False, gather_output=False, prefix="dense_"
                )
                self.loss = par.VocabParallelSoftmaxCELoss()
            else:
                self.dense, self.loss = (
                    nn.Dense(classes, flatten=False, prefix="dense_"),
                    gluon.loss.SoftmaxCrossEntropyLoss(),
                )

    def forward(self, x, label):
        return self.loss(self.dense(x), label)


@COUNTS
@MODES
def test_vocabulary_parallel_loss_equals_softmax_loss(count, hybridize):
    x, label = inputs_of((4, 3, 6)) * 30, nd.array(inputs_of((4, 3), integers=10))

    def results(ctx, hybrid):
        mx.random.seed(2)
        net = Scores(ctx, 10, prefix="s_")
        net.initialize(mx.init.Normal(1))
        net.hybridize(hybrid)
        data = nd.array(x)
        data.attach_grad()
        with autograd.record():
            loss = net(data, label)
        loss.backward()
        if hybrid and ctx:  # no device holds all logits
            for device in net.compiled()[0]["devices"].values():
                assert all(
                    not (s["kind"] == "copy" and s["bytes"] >= 4 * 3 * 10 * 4)
                    for s in device["forward"]
                )
        return loss.asnumpy(), data.grad.asnumpy(), gradients(net)

    one, many = results(None, False), results(DEVICES[:count], hybridize)
    close(many[0], one[0])
    close(many[1], one[1])
    for name, value in one[2].items():
        close(many[2][name], value)


@COUNTS
@MODES
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_dropout_has_the_mask_of_the_whole_sequence(count, hybridize, axis):
    x = np.ones((5, 9, 4), "float32")

    def masks(net):
        mx.random.seed(4)
        net.hybridize(hybridize)
        data = nd.array(x)
        data.attach_grad()
        found = []
        for _ in range(2):
            with autograd.record():
                out = net(data)
            out.backward()
            found += [out.asnumpy(), data.grad.asnumpy(), nd.random.uniform(shape=(3,)).asnumpy()]
        return found

    one, many = (
        masks(nn.Dropout(0.4)),
        masks(par.SequenceParallelDropout(0.4, DEVICES[:count], axis=axis)),
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, many))
    assert 0 < (one[0] == 0).sum() < x.size and not np.array_equal(one[0], one[3])


class Pair(gluon.HybridBlock):
    """Two matrix products with a split intermediate result, inside sequence-parallel layers."""

    def __init__(self, ctx, sequence, **kwargs):
        super().__init__(**kwargs)
        self.ctx = ctx
        self.sequence = sequence
        around = {"gather_input": 1} if sequence else {}
        with self.name_scope():
            if sequence:
                self.norm = par.SequenceParallelLayerNorm(ctx, prefix="norm_", in_channels=6)
            else:
                self.norm = nn.LayerNorm(prefix="norm_", in_channels=6)
            self.up = par.ColumnParallelDense(
                8,
                ctx,
                activation="relu",
                flatten=False,
                gather_output=False,
                prefix="up_",
                in_units=6,
                **around,
            )
            self.down = par.RowParallelDense(
                6,
                ctx,
                flatten=False,
                input_is_parallel=True,
                scatter_output=1 if sequence else None,
                prefix="down_",
                in_units=8,
            )

    def forward(self, x):
        if not self.sequence:
            return x + self.down(self.up(self.norm(x)))[0]
        parts = par.scatter(x, self.ctx, 1)
        outs = [part + more for part, more in zip(parts, self.down(self.up(self.norm(parts))))]
        return par.gather(outs, x.context, 1)


class OrdinaryPair(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.norm = nn.LayerNorm(prefix="norm_", in_channels=6)
            self.up = nn.Dense(8, activation="relu", flatten=False, prefix="up_", in_units=6)
            self.down = nn.Dense(6, flatten=False, prefix="down_", in_units=8)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)))


@COUNTS
@MODES
@pytest.mark.parametrize("sequence", [False, True])
def test_column_and_row_pair_equals_ordinary_layers(count, hybridize, sequence):
    compare(
        lambda: OrdinaryPair(prefix="p_"),
        lambda: Pair(DEVICES[:count], sequence, prefix="p_"),
        inputs_of((3, 5, 6)),
        hybridize,
    )


def ordinary_net():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Embedding(13, 8, prefix="embed_"))
        net.add(nn.LayerNorm(prefix="norm_"))
        net.add(nn.Dropout(0.2))
        net.add(nn.Dense(12, activation="relu", flatten=False, prefix="qkv_"))
        net.add(nn.Dense(8, flatten=False, prefix="out_"))
        net.add(rnn.LSTM(6, layout="NTC", input_size=8, prefix="lstm_"))
    return net


PLAN = {
    ".*qkv": "column",
    ".*out": "row",
    ".*embed": "vocab",
    ".*norm": "sequence",
    "2": "sequence",
    ".*lstm": "gates",
}


@pytest.mark.parametrize("when", ["initialized", "deferred"])
@pytest.mark.parametrize("way", ["shard", "place"])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
@pytest.mark.parametrize("ignore", [False, True])
def test_trainer_of_layers_split_later_raises(when, way, options, ignore):
    """The error says that its parameters no longer belong to the network, not that gradients are
    stale."""
    known = when == "initialized"
    net = chain(nn.Dense(4, in_units=3 * known), nn.Dense(2, in_units=4 * known))
    net.initialize()
    params = net.collect_params()
    trainer = gluon.Trainer(params, "sgd", **options)
    par.shard(net, {"1": "column"}, CTX) if way == "shard" else net.place(
        par.Mesh({"model": 2}, devices=CTX), split={"1": "column"}
    )
    with autograd.record():
        value = net(nd.ones((2, 3), ctx=CTX[0])).sum()
    value.backward()
    text = (
        f"is no longer part of the network: {'shard' if way == 'shard' else 'Mesh.place'} has "
        "split its layer '1' over devices.*Trainer afterwards"
    )
    with pytest.raises(mx.MXNetError, match=text):
        trainer.step(2, ignore_stale_grad=ignore)
    with pytest.raises(mx.MXNetError, match=text):
        gluon.Trainer(params, "sgd")
    gluon.Trainer(net.collect_params(), "sgd").step(2)


def trained(net, dtype, pipeline=None, steps=3):
    """Returns losses, the first gradients and the final weights.

    Weights are comparable only in float64. Adam normalizes gradients, so a gradient that is
    mostly rounding error moves a weight by a full step: in float32 a gradient of 4e-7 (others are
    up to 0.1) changes by 1 % with the order of summation, in float64 by 1e-9.
    """
    data, target = (
        nd.array(a, dtype=dtype) for a in (inputs_of((8, 5), integers=13), inputs_of((8, 5, 6)))
    )
    loss = gluon.loss.L2Loss()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    losses, first = [], None
    if pipeline is not None:
        net.hybridize(pipeline=pipeline)
    for _ in range(steps):
        with autograd.record():
            value = loss(net(data), target)
        value.backward()
        losses.append(value.asnumpy())
        first = first or gradients(net)
        trainer.step(8)
    return losses, first, weights(net) if dtype == "float64" else {}


def compare_trained(one, many):
    for a, b in zip(many[0], one[0]):
        close(a, b)
    for found, expected in zip(many[1:], one[1:]):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            close(found[name], value, scale=1)


@COUNTS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("when", ["before", "deferred", "after"])
def test_shard_by_name_equals_ordinary_layers(count, when, dtype):
    """The network is split with initialized, deferred or uninitialized parameters."""
    results = []
    for split in (False, True):
        mx.random.seed(6)
        net = ordinary_net()
        net.cast(dtype)
        if when != "before":
            net.initialize(mx.init.Xavier())
        if when == "after":
            net(nd.array(inputs_of((8, 5), integers=13), dtype=dtype))
        if split:
            assert par.shard(net, PLAN, DEVICES[:count]) is net
        if when == "before":
            net.initialize(mx.init.Xavier())
        net.hybridize()
        results.append(trained(net, dtype))
    compare_trained(*results)
    assert isinstance(net[3], par.ColumnParallelDense) and isinstance(net[5], par.ParallelLSTM)


@COUNTS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pipelined_split_layers_equal_one_device(count, dtype):
    results = []
    for devices, pipeline in (
        (1, None),
        (count, par.Pipeline(micro_batches=4)),
        (count, par.Pipeline(micro_batches=3, schedule="gpipe")),
    ):
        mx.random.seed(6)
        net = ordinary_net()
        net.cast(dtype)
        net = par.shard(net, PLAN, DEVICES[:devices])
        net.initialize(mx.init.Xavier())
        results.append(trained(net, dtype, pipeline))
    for many in results[1:]:
        compare_trained(results[0], many)


def test_split_parameters_describe_their_part():
    net = par.ColumnParallelDense(
        12, DEVICES[:2], blocks=3, unit=2, gather_output=False, in_units=5, prefix="qkv_"
    )
    net.initialize(ctx=on(3))  # ctx is ignored: parameters stay on the layer's devices
    first, second = net.shard0_weight, net.shard1_weight
    assert (first.name, first.global_name, first.global_shape, first.shape) == (
        "qkv_shard0_weight",
        "qkv_weight",
        (12, 5),
        (6, 5),
    )
    assert (second.axis, second.index, second.count) == (0, 1, 2) and second.ranges == [
        (2, 4),
        (6, 8),
        (10, 12),
    ]
    assert first.list_ctx() == [on(0)] and second.list_ctx() == [on(1)]
    second.set_data(nd.arange(60).reshape((12, 5)))
    assert second.data()[:, 0].asnumpy().tolist() == [10, 15, 30, 35, 50, 55]


def test_split_parameters_are_saved_and_loaded(tmp_path):
    x, path = nd.array(inputs_of((3, 5))), str(tmp_path / "p.params")
    nets = [par.ColumnParallelDense(7, DEVICES[:3]) for _ in range(2)]
    for net in nets:
        net.initialize(mx.init.Normal(1))
        net(x)
    nets[0].save_parameters(path)
    nets[1].load_parameters(path)
    assert np.array_equal(nets[0](x).asnumpy(), nets[1](x).asnumpy())
    fresh = par.ColumnParallelDense(7, DEVICES[:3], in_units=5)
    fresh.load_parameters(path, ctx=on(0))
    assert np.array_equal(nets[0](x).asnumpy(), fresh(x).asnumpy())


def test_split_layers_accept_and_return_lists():
    ctx = DEVICES[:3]
    layer = par.ColumnParallelDense(7, ctx, in_units=4)
    layer.initialize()
    x = nd.array(inputs_of((2, 4)))
    outs = layer(par.broadcast(x, ctx))
    assert [out.context for out in outs] == ctx and all(
        np.array_equal(out.asnumpy(), layer(x).asnumpy()) for out in outs
    )
    row = par.RowParallelDense(4, ctx, in_units=4, output_ctx=on(3))
    row.initialize()
    assert row(x).context == on(3) == row(par.broadcast(x, ctx)).context


def states_of(layer, x):
    mx.random.seed(8)
    layer.initialize(mx.init.Xavier())
    shape = layer.state_info(3)[0]["shape"]
    begin = [nd.array(inputs_of(shape)), nd.array(inputs_of(shape) * 0.5)]
    out, states = layer(x, begin)
    return [out, *states]


@COUNTS
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}], ids=["one way", "both ways"])
def test_parallel_lstm_states_equal_lstm(count, options):
    x = nd.array(inputs_of((4, 3, 5)))
    many = states_of(par.ParallelLSTM(6, DEVICES[:count], num_layers=2, prefix="l_", **options), x)
    for a, b in zip(many, states_of(rnn.LSTM(6, num_layers=2, prefix="l_", **options), x)):
        close(a, b)
        assert a.context == on(0)


CTX = DEVICES[:2]


def chain(*layers):
    net = nn.HybridSequential(prefix="c_")
    net.add(*layers)
    return net


def ready(layer):
    layer.initialize()
    return layer


def shared():
    first = nn.Dense(4, in_units=4, prefix="d_")
    return chain(first, nn.Dense(4, in_units=4, params=first.params))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda: par.ColumnParallelDense(3, DEVICES),
            ValueError,
            r"'.*weight' of shape \(3, 0\) cannot be split over 4 devices: it has only 3 along "
            r"axis 0",
        ),
        (lambda: par.ParallelSelfAttention(8, 2, DEVICES), ValueError, "only 2 groups of 4"),
        (
            lambda: par.ParallelSelfAttention(8, 3, CTX),
            ValueError,
            "8 units cannot be divided into 3 heads",
        ),
        (lambda: par.ColumnParallelDense(3, []), ValueError, "list of Contexts"),
        (
            lambda: ready(par.RowParallelDense(3, CTX, in_units=4, input_is_parallel=True))(
                nd.ones((2, 4))
            ),
            mx.MXNetError,
            "not one array",
        ),
        (
            lambda: ready(par.ColumnParallelDense(3, CTX, in_units=4))([nd.ones((2, 4))] * 2),
            mx.MXNetError,
            r"one array on each of \[[cg]pu\(0\), [cg]pu\(1\)\]",
        ),
        (lambda: par.ColumnParallelDense(3, CTX)(mx.sym.var("x")), mx.MXNetError, "no symbol"),
        (
            lambda: par.VocabParallelSoftmaxCELoss()(nd.ones((2, 3)), nd.ones((2,))),
            mx.MXNetError,
            "list of arrays",
        ),
        (
            lambda: par.SequenceParallelLayerNorm(CTX, axis=2)(nd.ones((2, 3, 4))),
            mx.MXNetError,
            "cannot be the last axis",
        ),
        (
            lambda: par.shard(chain(nn.Dense(3)), {"nothing": "row"}, CTX),
            ValueError,
            r"'nothing' does not match the whole path or name of any layer.* are 0 \(dense",
        ),
        (
            lambda: par.shard(chain(nn.Dense(3, activation="relu")), {"*": "row"}, CTX),
            ValueError,
            r"'\*' is not a regular expression: nothing to repeat",
        ),
        (
            lambda: par.shard(
                chain(nn.Dense(3, activation="relu"), nn.Flatten()), {"x": "row"}, CTX
            ),
            ValueError,
            r"the layers are 0 \(dense\d+\), 1 \(flatten",
        ),
        (
            lambda: par.shard(chain(nn.Dense(3)), {"0": "diagonal"}, CTX),
            ValueError,
            "unknown split 'diagonal'",
        ),
        (
            lambda: par.shard(chain(nn.Dense(3)), {"0": "vocab"}, CTX),
            mx.MXNetError,
            "'0' is a Dense, which cannot be split by 'vocab'; that split supports Embedding",
        ),
        (
            lambda: par.shard(chain(nn.BatchNorm()), {"0": "sequence"}, CTX),
            mx.MXNetError,
            "BatchNorm",
        ),
        (
            lambda: par.shard(chain(nn.Dense(1)), {"0": "column"}, CTX),
            ValueError,
            r"shard: '0' \(Dense\).*cannot be split over 2 devices",
        ),
        (
            lambda: par.shard(chain(rnn.LSTM(4, state_clip_max=1.0)), {"0": "gates"}, CTX),
            NotImplementedError,
            "clipped states",
        ),
        (
            lambda: par.shard(chain(rnn.LSTM(4, projection_size=2)), {"0": "gates"}, CTX),
            NotImplementedError,
            r"shard: '0' \(LSTM\): LSTMs with a projection",
        ),
        (
            lambda: par.shard(chain(nn.Embedding(6, 2, sparse_grad=True)), {"0": "vocab"}, CTX),
            NotImplementedError,
            r"shard: '0' \(Embedding\): an Embedding with sparse_grad=True cannot be split",
        ),
        (lambda: par.shard(shared(), {"0": "row"}, CTX), mx.MXNetError, "shares parameter"),
        (
            lambda: ready(par.ColumnParallelDense(4, CTX, in_units=4)).reset_ctx(on(0)),
            mx.MXNetError,
            r"cannot leave [cg]pu\(1\)",
        ),
    ],
)
def test_invalid_split_layers_raise(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_failed_shard_keeps_the_network():
    net = chain(nn.Dense(4), nn.Dense(1))
    with pytest.raises(ValueError, match="cannot be split"):
        par.shard(net, {"0": "column", "1": "column"}, CTX)
    assert all(type(layer) is nn.Dense for layer in net)


def subclass(klass, **members):
    """Returns a layer class with other members, and a layer of it."""
    return type(f"My{klass.__name__}", (klass,), members)


def with_parameter(layer):
    layer.scale = layer.params.get("scale", shape=(1,))
    return layer


def with_child(layer):
    layer.extra = nn.Dense(2)
    return layer


def with_forward(layer):
    layer.hybrid_forward = lambda F, x, **params: x
    return layer


@pytest.mark.parametrize(
    "layer, kind, text",
    [
        (subclass(nn.Dense, forward=lambda self, x: x)(4), "column", "overrides forward"),
        (subclass(nn.Dense, hybrid_forward=lambda self, F, x: x)(4), "row", "overrides hybrid_"),
        (subclass(nn.Conv2D, __call__=lambda self, x: x)(4, 3), "channel", "overrides __call__"),
        (subclass(nn.Embedding, hybrid_forward=lambda *_: 0)(4, 3), "vocab", "overrides hybrid_"),
        (subclass(rnn.LSTM, forward=lambda *_: 0)(4), "gates", "overrides forward"),
        (subclass(nn.LayerNorm, cast=lambda *_: 0)(), "sequence", "overrides cast"),
        (subclass(nn.Dropout, forward=lambda *_: 0)(0.5), "sequence", "overrides forward"),
        (with_forward(nn.Dense(4)), "column", "overrides hybrid_forward"),
        (with_parameter(nn.Dense(4)), "column", "has the additional parameter 'scale'"),
        (with_child(nn.Dense(4)), "column", "has the additional child 'extra'"),
    ],
)
def test_layers_with_additions_to_their_class_are_not_split(layer, kind, text):
    net = chain(nn.Dense(6), layer)
    with pytest.raises(mx.MXNetError, match=rf"shard: '1' \({type(layer).__name__}\) {text}"):
        par.shard(net, {"0": "column", "1": kind}, CTX)
    mesh = par.Mesh({"model": 2}, devices=CTX)
    with pytest.raises(mx.MXNetError, match=f"Mesh.place: '1' .*{text}"):
        mesh.place(net, split={"0": "column", "1": kind})
    assert type(net[0]) is nn.Dense and net[1] is layer
    mesh.place(net)  # by default, it splits the plain layers
    assert type(net[0]) is par.ColumnParallelDense and net[1] is layer


def test_subclass_with_its_own_defaults_is_split():
    class Wide(nn.Dense):
        def __init__(self, **kwargs):
            super().__init__(6, activation="relu", **kwargs)

    net = chain(Wide(in_units=4))
    par.shard(net, {"0": "column"}, CTX)
    net.initialize()
    assert net(nd.ones((2, 4), ctx=CTX[0])).shape == (2, 6)


def test_hooks_move_to_the_split_layer():
    calls, net = [], chain(nn.Dense(6, in_units=4))
    handle = net[0].register_forward_hook(lambda block, x, y: calls.append((block, y.shape)))
    net[0].register_forward_pre_hook(lambda block, x: calls.append(block))
    net[0].register_op_hook(lambda name, op, array: calls.append(op))
    par.shard(net, {"0": "column"}, CTX)
    net.initialize()
    net(nd.ones((2, 4), ctx=CTX[0]))
    assert calls == [net[0], "FullyConnected", "FullyConnected", (net[0], (2, 6))]
    handle.detach()
    net(nd.ones((2, 4), ctx=CTX[0]))
    assert calls[4:] == [net[0], "FullyConnected", "FullyConnected"]


def test_split_layers_have_the_same_results_in_any_engine_order():
    script = (
        "from parallel import test_tensor_parallel as t\nfor name in t.LAYERS:\n  o, s, shape = "
        "t.LAYERS[name]\n  t.compare(o, lambda: s(t.DEVICES[:3]), t.inputs_of(shape), "
        "True)\nprint('same')"
    )
    assert output_of(script, timeout=280, MPGLUON_ENGINE="shuffle").strip() == "same"


def test_pattern_splits_a_layer_with_its_activation():
    net = chain(
        nn.Conv2D(4, 3, in_channels=2, activation="relu", prefix="conv_"),
        nn.Conv2D(4, 3, in_channels=4, activation="tanh", prefix="conv2_"),
    )
    par.shard(net, {"conv.*": "channel"}, CTX)
    assert [type(layer) for layer in net] == [par.ParallelConv2D] * 2
