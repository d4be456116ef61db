"""Placement, meshes, pipelines, split layers and checkpoints on arrays of mx.np: the bits of
mx.nd."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd, npx
from mpgluon.gluon import nn
from mpgluon.parallel import Mesh, Pipeline
from support.kinds import Momentum, both, new

DATA = np.random.RandomState(6).uniform(-1, 1, (6, 4)).astype("float32")
DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.fixture(autouse=True)
def _off():
    yield
    npx.reset_np()


def trained(net, options, data, steps=2):
    """Returns the losses and the weights of a training."""
    trainer = gluon.Trainer(net.collect_params(), *options)
    losses = []
    for _ in range(steps):
        with autograd.record():
            losses.append((net(data) ** 2).sum())
        losses[-1].backward()
        trainer.step(1)
    return [
        *[one.reshape((1,)) for one in losses],
        *[param.data() for param in net.collect_params().values()],
    ]


class Grouped(gluon.HybridBlock):
    """Converts arrays to the other kind and back in a group."""

    def hybrid_forward(self, F, x):
        with mx.AttrScope(ctx_group="there"):
            plain = nd.tanh(x.as_nd_ndarray())
            assert type(plain) is nd.NDArray
            numpy = plain.as_np_ndarray() * 2
            assert type(numpy) is mx.np.ndarray
        return numpy


def test_arrays_change_their_kind_in_a_group_of_devices():
    x = mx.np.array(DATA)
    net = Grouped()
    net.hybridize(group2ctx={"there": mx.cpu(1)})
    y = net(x)
    assert type(y) is mx.np.ndarray
    np.testing.assert_array_equal(y.asnumpy(), (mx.np.tanh(x) * 2).asnumpy())


def test_pipelines_merge_running_statistics_of_batches():
    def train(numpy):
        net = nn.HybridSequential()
        net.add(nn.Dense(4, in_units=4), nn.BatchNorm(in_channels=4), nn.Dense(2, in_units=4))
        net.initialize(mx.init.Xavier())
        net.hybridize(pipeline=Pipeline(2, statistics="batch"))
        return trained(net, ["sgd"], new.array(DATA))

    both(train)


class Summing(gluon.HybridBlock):
    """Adds a state of any dtype, and returns one of float32."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.layer = nn.Dense(4, in_units=4, flatten=False)

    def hybrid_forward(self, F, x, state):
        state = F.broadcast_add(self.layer(x), F.cast(state, dtype="float32"))
        return state, F.mean(state, axis=0, keepdims=True)


def test_pipelines_along_time_carry_states_of_another_dtype():
    def run(numpy):
        net = Summing()
        net.initialize(mx.init.Xavier())
        net.hybridize(pipeline=Pipeline(3, along="time", axis=0))
        return net(new.array(DATA), new.zeros((1, 4), dtype="float16"))

    both(run)


def test_meshes_split_host_data_into_arrays_of_the_mode():
    mesh = Mesh({"data": 2}, DEVICES)

    def split(numpy):
        parts = mesh.split_and_load(DATA, stage=-1)
        assert {type(part) for part in parts} == {mx.np.ndarray if numpy else nd.NDArray}
        return parts

    both(split)


@pytest.mark.parametrize("size", [0, 4])
def test_split_layers_train_to_the_bits_of_nd(size):
    """Without input sizes, shapes are completed at the first call."""

    def train(numpy):
        net = nn.HybridSequential()
        net.add(
            mx.parallel.ColumnParallelDense(8, DEVICES, in_units=size, flatten=False),
            mx.parallel.RowParallelDense(4, DEVICES, in_units=2 * size, flatten=False),
            mx.parallel.SequenceParallelLayerNorm(DEVICES, in_channels=size),
        )
        net.initialize(mx.init.Xavier())
        return trained(net, ["sgd"], new.array(DATA.reshape(2, 3, 4)))

    both(train)


def test_meshes_split_layers_of_unknown_sizes():
    def run(numpy):
        net = nn.HybridSequential()
        net.add(nn.Dense(8, flatten=False), nn.Dense(4, flatten=False))
        Mesh({"model": 2}, DEVICES).place(net, split={"0": "column", "1": "row"})
        net.initialize(mx.init.Xavier())
        return [net(new.array(DATA.reshape(2, 3, 4)))]

    both(run)


def dense(numpy=True):
    net = nn.Dense(3, in_units=4)
    net.initialize(mx.init.Xavier(), ctx=DEVICES)
    return net


@pytest.mark.parametrize("way", ["checkpoint", "states"])
@pytest.mark.parametrize("optimizer", [Momentum, mx.optimizer.Adam])
def test_loaded_states_have_the_kind_of_the_optimizer(way, optimizer, tmp_path):
    def train(numpy):
        net = dense()
        trainer = gluon.Trainer(net.collect_params(), optimizer(learning_rate=0.1))
        for number in range(4):
            if number == 2 and way == "states":
                trainer.save_states(str(tmp_path / "states"))
                trainer.load_states(str(tmp_path / "states"))
            elif number == 2:
                mx.parallel.save(str(tmp_path / f"{numpy}"), net, trainer).wait()
                net = dense()
                trainer = gluon.Trainer(net.collect_params(), optimizer(learning_rate=0.1))
                mx.parallel.load(str(tmp_path / f"{numpy}"), net, trainer, progress=False)
            with autograd.record():
                losses = [(net(new.array(DATA, ctx=ctx)) ** 2).sum() for ctx in DEVICES]
            autograd.backward(losses)
            trainer.step(6)
        return [array for param in net.collect_params().values() for array in param.list_data()]

    both(train)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16"])
def test_mean_of_copies_keeps_the_dtype(dtype):
    def mean(numpy):
        param = gluon.Parameter("x", shape=(2, 2), dtype=dtype, grad_req="null", init="ones")
        param.initialize(ctx=DEVICES)
        param.data(DEVICES[1])[:] = 6
        reduced = param.reduced()
        assert type(reduced) is (mx.np.ndarray if numpy else nd.NDArray)
        assert reduced.dtype == np.dtype(dtype)
        return [reduced]

    both(mean)


class Heads(gluon.HybridBlock):
    """Attention of functions of mx.np, with a dropout between the heads."""

    def __init__(self):
        super().__init__()
        self.heads = 4
        self.qkv = nn.Dense(3 * 16, in_units=16, flatten=False)
        self.out = nn.Dense(16, in_units=16, flatten=False)

    def hybrid_forward(self, F, x):
        q, k, v = [
            F.np.transpose(F.npx.reshape(part, (-2, -2, self.heads, -1)), (0, 2, 1, 3))
            for part in F.np.split(self.qkv(x), 3, axis=-1)
        ]
        weights = F.npx.softmax(F.np.matmul(q, F.np.swapaxes(k, 2, 3)) / 2)
        parts = F.np.matmul(F.npx.dropout(weights, p=0.3), v)
        return self.out(F.npx.reshape(F.np.transpose(parts, (0, 2, 1, 3)), (-2, -2, -1)))


class ForwardHeads(Heads):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        q, k, v = [
            npx.reshape(part, (-2, -2, self.heads, -1)).transpose(0, 2, 1, 3)
            for part in mx.np.split(self.qkv(x), 3, axis=-1)
        ]
        assert mx.util.is_np_array()
        weights = self.drop(npx.softmax(mx.np.matmul(q, k.swapaxes(2, 3)) / 2))
        parts = mx.np.matmul(weights, v).transpose(0, 2, 1, 3)
        return self.out(npx.reshape(parts, (-2, -2, -1)))


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("kind", [Heads, ForwardHeads])
def test_attention_of_functions_of_np_is_split_by_heads(kind, hybridize):
    npx.set_np()
    x = mx.np.array(np.random.RandomState(3).normal(size=(2, 6, 16)), dtype="float32")
    net = nn.HybridSequential()
    net.add(kind())
    net.initialize("normal")

    def trained():
        mx.random.seed(3)
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        return loss.asnumpy()

    expected = net(x).asnumpy()
    loss = trained()
    mx.parallel.shard(net, {"0": "heads"}, DEVICES)
    if hybridize:
        net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(trained(), loss, rtol=1e-5)
