"""Attention in ordinary blocks with its heads split over devices: equals one device to 1e-5."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, autograd, gluon, nd, parallel as par
from mpgluon.gluon import nn
from support.compare import close
from support.devices import on
from support.meshes import gradients, inputs_of, values

DEVICES = [on(i) for i in range(4)]
UNITS, HEADS, TIME = 12, 4, 5


class Fused(gluon.HybridBlock):
    """One Dense for queries, keys and values; includes the residual, as in a transformer layer."""

    def __init__(self, dropout=0.3, inner=0.2):
        super().__init__(prefix="layer_")
        self.heads, self.size, self.length, self.inner = HEADS, UNITS // HEADS, TIME, inner
        with self.name_scope():
            self.norm1, self.norm2 = nn.LayerNorm(), nn.LayerNorm()
            self.qkv, self.out = (
                nn.Dense(3 * UNITS, flatten=False, prefix="qkv_"),
                nn.Dense(UNITS, flatten=False, prefix="out_"),
            )
            self.widen, self.narrow = (
                nn.Dense(20, flatten=False, activation="relu"),
                nn.Dense(UNITS, flatten=False),
            )
            self.dropout = nn.Dropout(dropout)

    def attention(self, F, x):
        parts = F.transpose(
            F.reshape(self.qkv(x), (0, 0, 3, self.heads, self.size)), (2, 0, 3, 1, 4)
        )
        parts = F.reshape(parts, (3, -3, 0, 0))
        q, k, v = (
            F.reshape(F.slice_axis(parts, axis=0, begin=i, end=i + 1), (-3, -2)) for i in range(3)
        )
        place = F.arange(self.length, ctx=x.context)
        later = F.broadcast_lesser(F.reshape(place, (-1, 1)), F.reshape(place, (1, -1)))
        scores = F.broadcast_add(
            F.batch_dot(q, k, transpose_b=True) * self.size**-0.5,
            F.expand_dims(later * -1e9, axis=0),
        )
        out = F.reshape(
            F.batch_dot(self.dropout(F.softmax(scores)), F.Dropout(v, p=self.inner)),
            (-4, -1, self.heads, 0, 0),
        )
        return self.out(self.dropout(F.reshape(F.transpose(out, (0, 2, 1, 3)), (0, 0, -3))))

    def hybrid_forward(self, F, x):
        x = x + self.dropout(self.attention(F, self.norm1(x)))
        return x + self.narrow(F.Dropout(self.widen(self.norm2(x)), p=self.inner))


class Apart(gluon.HybridBlock):
    """A Dense each for queries, keys and values, 4-d heads, and a mask as an argument."""

    def __init__(self, dropout=0.3):
        super().__init__(prefix="attention_")
        self._num_heads, self._units = HEADS, UNITS
        with self.name_scope():
            for name in ("query", "key", "value", "proj"):
                setattr(
                    self,
                    name,
                    nn.Dense(UNITS, flatten=False, use_bias=name != "key", prefix=name + "_"),
                )
            self.drop = nn.Dropout(dropout)

    def hybrid_forward(self, F, x, memory, mask):
        q, k, v = (
            F.transpose(F.reshape(part, (0, 0, self._num_heads, -1)), (0, 2, 1, 3))
            for part in (self.query(x), self.key(memory), self.value(memory))
        )
        scores = F.broadcast_add(
            F.linalg.gemm2(q, k, transpose_b=True) * (self._num_heads / self._units) ** 0.5,
            F.expand_dims(mask, axis=1),
        )
        out = F.transpose(F.linalg.gemm2(self.drop(F.softmax(scores)), v), (0, 2, 1, 3))
        return self.proj(F.reshape(out, (0, 0, self._units)))


class Around(gluon.HybridBlock):
    def __init__(self, make):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.attention = make()
            self.last = nn.Dense(3)

    def hybrid_forward(self, F, x, *args):
        return self.last(self.attention(x, *args))


def arguments(make):
    x = inputs_of((2, TIME, UNITS))
    if make is Fused:
        return [x]
    mask = np.zeros((2, TIME, TIME), "float32")
    mask[:, :, 3:] = -1e9
    return [x, inputs_of((2, TIME, 7)), mask]


def outcome(make, ctx, hybridize, when="before", where=0, plan=None):
    mx.random.seed(4)
    net = Around(make)
    args = [nd.array(arg, ctx=DEVICES[where]) for arg in arguments(make)]
    if when == "after":
        net.initialize(mx.init.Xavier(magnitude=1), ctx=args[0].context)
        net(*args)
    if ctx:
        par.shard(net, plan or {"attention": "heads"}, ctx)
    if when != "after":
        net.initialize(mx.init.Xavier(magnitude=1), ctx=args[0].context)
    if hybridize:
        net.hybridize()
    mx.random.seed(9)
    args[0].attach_grad()
    for _ in range(2):
        with autograd.record():
            out = net(*args)
            loss = (out * out).sum()
        loss.backward()
    assert out.context == args[0].context
    return (
        net,
        out.asnumpy(),
        args[0].grad.asnumpy(),
        gradients(net),
        nd.random.uniform(shape=(2,)).asnumpy(),
    )


@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize(
    "make, count, when, where",
    [
        (Fused, 2, "before", 0),
        (Fused, 3, "after", 0),
        (Apart, 4, "before", 1),
        (Apart, 3, "after", 3),
    ],
)
def test_split_heads_equal_one_device(make, count, when, where, hybridize):
    _, *one = outcome(make, None, False, when, where)
    net, *many = outcome(make, DEVICES[:count], hybridize, when, where)
    for a, b in zip(many[:2], one[:2]):
        close(a, b)
    assert many[2].keys() == one[2].keys()
    for name, value in one[2].items():
        # the gradient of the key biases is 0 up to rounding noise
        close(many[2][name], value, scale=max(1.0, np.abs(value).max()))
    assert np.array_equal(many[3], one[3])  # the same number of random draws
    assert isinstance(net.attention, par.ParallelHeads) and all(
        param.list_ctx()[0] in DEVICES[:4] for param in net.collect_params().values()
    )


def test_each_device_holds_only_its_heads():
    net, *_ = outcome(Fused, DEVICES[:2], True)
    devices = {}
    for name, param in net.collect_params().items():
        devices.setdefault(param.list_ctx()[0], {})[name] = param.shape
    assert devices[DEVICES[1]]["net_layer_qkv_shard1_weight"] == (3 * UNITS // 2, UNITS)
    assert devices[DEVICES[0]]["net_layer_out_shard0_weight"] == (UNITS, UNITS // 2)


def test_split_heads_combine_with_other_split_layers_on_a_mesh():
    results = []
    for axes in ({"data": 1}, {"data": 2, "model": 2}):
        mx.random.seed(4)
        net, mesh = Around(lambda: Fused(0, 0)), par.Mesh(axes)
        net.place(
            mesh,
            split={"attention": "heads", ".*widen": "column", ".*narrow": "row", "last": "column"},
        )
        net.initialize(mx.init.Xavier(magnitude=1))
        net.hybridize()
        x = nd.array(inputs_of((4, TIME, UNITS)))
        for part in mesh.split_and_load(x):
            net(part)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
        for _ in range(2):
            with autograd.record():
                losses = [(net(part) ** 2).sum() for part in mesh.split_and_load(x)]
            autograd.backward(losses)
            trainer.step(4)
        results.append(values(net))
    for name, value in results[0].items():
        close(results[1][name], value, scale=1)
    assert isinstance(net.attention.widen, par.ColumnParallelDense)


def test_split_heads_support_other_names_and_packings():
    class Packed(gluon.HybridBlock):
        """Packed by head, each with its queries, keys and values."""

        def __init__(self):
            super().__init__(prefix="attention_")
            self.parts_of_units = HEADS
            with self.name_scope():
                self.all, self.last = (
                    nn.Dense(3 * UNITS, flatten=False, prefix="all_"),
                    nn.Dense(UNITS, flatten=False, prefix="last_"),
                )

        def hybrid_forward(self, F, x):
            parts = F.transpose(
                F.reshape(self.all(x), (0, 0, self.parts_of_units, 3, -1)), (3, 0, 2, 1, 4)
            )
            q, k, v = F.split(parts, num_outputs=3, axis=0, squeeze_axis=True)
            out = F.linalg.gemm2(F.softmax(F.linalg.gemm2(q, k, transpose_b=True)), v)
            return self.last(F.reshape(F.transpose(out, (0, 2, 1, 3)), (0, 0, -3)))

    def result(ctx):
        mx.random.seed(2)
        net = nn.HybridSequential()
        net.add(Packed())
        if ctx:
            par.shard(
                net,
                {
                    "0": (
                        "heads",
                        {
                            "inputs": "all",
                            "output": "last",
                            "attributes": "parts_of_units",
                            "blocks": 1,
                        },
                    )
                },
                ctx,
            )
        net.initialize(mx.init.Xavier())
        return net(nd.array(inputs_of((2, TIME, UNITS))))

    close(result(DEVICES[:3]), result(None))


def test_indivisible_attention_raises():
    class Other(Apart):
        def __init__(self, own=False, **names):
            super().__init__()
            for name in names.get("without", ()):
                del self.__dict__[name]
            if own:
                self.bias = self.params.get("bias", shape=(1,))

    class Mixing(Apart):
        """Takes the softmax over heads."""

        def hybrid_forward(self, F, x, memory, mask):
            q = (
                F.softmax(F.reshape(self.query(x), (0, 0, self._num_heads, -1)), axis=2)
                + self.key(memory).mean()
                + self.value(memory).mean()
            )
            return self.proj(F.reshape(q, (0, 0, -3)))

    def split(make, plan="heads"):
        net = Around(make)
        par.shard(net, {"attention": plan}, DEVICES[:2])
        net.initialize()
        return net(*[nd.array(arg) for arg in arguments(Apart)])

    with pytest.raises(
        MXNetError,
        match=r"the attention 'net_attention' \(Mixing\) changes if it is divided by heads "
        r"\(_num_heads: the values differ; _num_heads, _units:",
    ):
        split(Mixing)
    with pytest.raises(
        NotImplementedError,
        match=r"shard: 'attention' \(Other\): the block has its own parameters \(bias\)",
    ):
        split(lambda: Other(own=True))
    with pytest.raises(
        ValueError, match="which attribute is the number of heads .integer attributes: _units"
    ):
        split(lambda: Other(without=["_num_heads"]))
    with pytest.raises(ValueError, match="'heads' has no option 'head'"):
        split(Apart, ("heads", {"head": 3}))
    with pytest.raises(
        ValueError,
        match="'queries' is not a Dense child of the block; its Dense children are query, key, "
        "value, proj",
    ):
        split(Apart, ("heads", {"inputs": ("queries", "key", "value")}))
    with pytest.raises(ValueError, match="12 units of 'query' cannot be divided into 1 x 5 heads"):
        make = Apart()
        make._num_heads = 5
        split(lambda: make)
    with pytest.raises(
        ValueError,
        match="which children compute queries, keys and values .its Dense children are none",
    ):
        split(lambda: nn.HybridSequential(), ("heads", {}))


class Stateful(gluon.HybridBlock):
    """Attention with a number, an array and a counter in attributes, and optional random ops."""

    def __init__(self, kind="", dropout=0.3):
        super().__init__()
        self.heads, self.kind, self.scale, self.calls = HEADS, kind, 1.0, 0
        self.mask = nd.array(np.tril(np.ones((TIME, TIME))))
        with self.name_scope():
            self.qkv = nn.Dense(3 * UNITS, flatten=False, in_units=UNITS)
            self.out = nn.Dense(UNITS, flatten=False, in_units=UNITS)
            self.drop, self.norm = nn.Dropout(dropout), nn.LayerNorm(in_channels=UNITS)

    def hybrid_forward(self, F, x):
        kinds, noisy = self.kind.split(), autograd.is_training()
        self.calls += 1
        if "child" in kinds:
            x = self.drop(x)
        if "dropout" in kinds:
            x = F.Dropout(x, p=0.3)
        if "noise" in kinds and noisy:
            x = x + F.random.normal_like(x)
        gate = F.mean(x, axis=-1, keepdims=True)
        parts = self.qkv(x)
        if "noise between" in self.kind and noisy:
            parts = parts + F.random.normal_like(parts)
        q, k, v = (
            F.reshape(F.transpose(F.reshape(a, (0, 0, self.heads, -1)), (0, 2, 1, 3)), (-3, 0, 0))
            for a in F.split(parts, num_outputs=3, axis=-1)
        )
        mask = F.expand_dims(self.mask.as_in_context(x.context) - 1, 0) * 1e4
        scores = F.batch_dot(q, k, transpose_b=True) * self.scale
        self.scores = F.softmax(F.broadcast_add(scores, mask))
        out = F.reshape(F.batch_dot(self.drop(self.scores), v), (-4, -1, self.heads, 0, 0))
        out = F.reshape(F.transpose(out, (0, 2, 1, 3)), (0, 0, -3))
        return self.norm(x + F.Dropout(self.out(F.broadcast_mul(out, gate)), p=0.2))


def trained(net, x):
    """Returns the results, gradients and next random numbers of two recorded calls."""
    mx.random.seed(9)
    x = nd.array(x, ctx=DEVICES[0])
    x.attach_grad()
    for _ in range(2):
        with autograd.record():
            out = net(x)
            loss = (out * out * out).sum()
        loss.backward()
    return out.asnumpy(), x.grad.asnumpy(), nd.random.uniform(shape=(2,)).asnumpy()


def stateful(kind, split, way="eager", **options):
    mx.random.seed(4)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(Stateful(kind, **options), nn.Dropout(0.2), Stateful(kind, **options))
    if split:
        par.shard(net, {"0|2": "heads"}, DEVICES[:2])
    net.initialize(mx.init.Xavier(magnitude=1), ctx=DEVICES[0])
    if way == "hybrid":
        net.hybridize()
    if way == "pipelined":
        net.hybridize(pipeline=par.Pipeline(2))
    return net


@pytest.mark.parametrize("way", ["eager", "hybrid", "pipelined"])
@pytest.mark.parametrize("kind", ["dropout", "noise", "dropout child noise", "child dropout"])
def test_draws_before_the_heads_are_the_same_on_every_device(kind, way):
    x = inputs_of((4, TIME, UNITS))
    one = trained(stateful(kind, False), x)
    many = trained(stateful(kind, True, way), x)
    for a, b in zip(many[:2], one[:2]):
        close(a, b, scale=max(1.0, np.abs(b).max()))
    assert np.array_equal(many[2], one[2])  # the same number of random draws


@pytest.mark.parametrize("kind", ["", "dropout"])
def test_step_on_the_host_before_the_heads_cannot_follow_draws_in_a_compiled_block(kind):
    class Hosted(Stateful):
        def hybrid_forward(self, F, x):
            if self.kind:
                x = F.Dropout(x, p=0.3)
            x = F.contrib.boolean_mask(x, F.ones(x.shape[0], ctx=x.context))
            return super().hybrid_forward(F, x)

    def net(split):
        mx.random.seed(4)
        net = nn.HybridSequential()
        net.add(Hosted(kind))
        if split:
            par.shard(net, {"0": "heads"}, DEVICES[:2])
        net.initialize(mx.init.Xavier(magnitude=1), ctx=DEVICES[0])
        return net

    x, many = inputs_of((4, TIME, UNITS)), net(True)
    one = trained(net(False), x)
    close(trained(many, x)[0], one[0], scale=1)
    many.hybridize()
    if kind:
        with pytest.raises(NotImplementedError, match="repeat those of an op before a step on"):
            trained(many, x)
    else:
        close(trained(many, x)[0], one[0], scale=1)


@pytest.mark.parametrize("way", ["eager", "hybrid"])
def test_random_ops_between_heads_raise(way):
    net = stateful("noise between", True, way)
    x = inputs_of((4, TIME, UNITS))
    net(nd.array(x, ctx=DEVICES[0]))  # it draws nothing
    with pytest.raises(NotImplementedError, match="random numbers between heads cannot be split"):
        trained(net, x)


def test_subclass_of_dropout_between_heads_raises():
    class Doubled(nn.Dropout):
        def hybrid_forward(self, F, x):
            return F.Dropout(F.Dropout(x, p=0.2), p=0.2)

    net = stateful("", True)
    net[0].drop = Doubled(0.2)
    with pytest.raises(NotImplementedError, match="random numbers between heads cannot be split"):
        trained(net, inputs_of((4, TIME, UNITS)))


def test_dropout_of_whole_units_between_heads_raises():
    class Memory(Apart):
        def hybrid_forward(self, F, x, memory, mask):
            q = self.query(x)
            memory = F.Dropout(memory, p=0.5)
            k, v = self.key(memory), self.value(memory)
            return self.proj(F.broadcast_mul(q, F.mean(k * 0 + 1, axis=1, keepdims=True)) + v * 0)

    net = Around(Memory)
    par.shard(net, {"attention": "heads"}, DEVICES[:2])
    net.initialize()
    x = nd.array(inputs_of((2, TIME, UNITS)))
    with pytest.raises(NotImplementedError, match="the axis of the heads is not known"):
        net(x, nd.array(inputs_of((2, TIME, 8))), x)


def change_scale(layer):
    layer.scale = 2.5


def change_mask(layer):
    layer.mask = nd.array(np.triu(np.ones((TIME, TIME))))


def change_children(layer):
    layer.drop = nn.Dropout(0.0)
    norm = nn.LayerNorm(in_channels=UNITS, gamma_initializer=mx.init.Constant(3.0))
    norm.initialize(ctx=DEVICES[0])
    layer.norm = norm


def change_kind(layer):
    layer.kind = "dropout"
    layer.heads = HEADS  # the same number


@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize("change", [change_scale, change_mask, change_children, change_kind])
def test_attributes_assigned_after_the_split_reach_the_block(change, hybridize):
    x, results = inputs_of((4, TIME, UNITS)), []
    for split in (False, True):
        net = stateful("", split, "hybrid" if split and hybridize else "eager")
        before = trained(net, x)
        for layer in (net[0], net[2]):
            change(layer)
        net.hybridize(split and hybridize)  # programs keep the numbers that they read
        results.append(trained(net, x))
        assert np.abs(before[0] - results[-1][0]).max() > 1e-3
    for a, b in zip(results[1][:2], results[0][:2]):
        close(a, b, scale=max(1.0, np.abs(b).max()))
    assert np.array_equal(results[1][2], results[0][2])


def test_array_assigned_after_the_split_is_read_by_compiled_programs():
    x = nd.array(inputs_of((4, TIME, UNITS)), ctx=DEVICES[0])
    one, many = stateful("", False), stateful("", True, "hybrid")
    many(x)
    for net in (one, many):
        change_mask(net[0])
    close(many(x).asnumpy(), one(x).asnumpy(), scale=1)


def test_attributes_that_the_code_assigns_are_kept():
    x = nd.array(inputs_of((4, TIME, UNITS)), ctx=DEVICES[0])
    one, many = stateful("", False), stateful("", True)
    for calls in (1, 2):
        one(x), many(x)
        assert one[0].calls == many[0].calls == calls
    # An array that is assigned between the heads has a part on each device.
    parts = many[0].scores
    assert [part.context for part in parts] == DEVICES[:2]
    whole = np.concatenate([p.asnumpy().reshape((4, -1, TIME, TIME)) for p in parts], axis=1)
    close(whole, one[0].scores.asnumpy().reshape((4, HEADS, TIME, TIME)), scale=1)
    many[0].scores = None
    assert many[0].scores is None and "scores" in vars(many[0]._block)
    del many[0].scores
    assert not hasattr(many[0], "scores")


def test_assignments_that_would_change_the_split_raise():
    net = stateful("", True)
    with pytest.raises(MXNetError, match="attribute 'heads' counts heads that are split"):
        net[0].heads = 2
    with pytest.raises(MXNetError, match="'qkv' is split over devices with the heads"):
        net[0].qkv = nn.Dense(3 * UNITS, flatten=False)
    with pytest.raises(MXNetError, match="'out' is split over devices with the heads"):
        net[0].register_child(nn.Dense(UNITS), "out")
    with pytest.raises(NotImplementedError, match="a parameter of the block itself .'shift'"):
        net[0].shift = gluon.Parameter("shift", shape=(1,))
    assert net[0].heads == HEADS and isinstance(net[0].qkv, par.ColumnParallelDense)
