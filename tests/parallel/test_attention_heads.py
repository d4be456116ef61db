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
