"""`HybridBlock.export`: exportable blocks and how their files are imported."""

import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from mpgluon.gluon.contrib import estimator as est
from support.devices import on

PIPELINE = {"pipeline": mx.parallel.Pipeline(2)}


def imported(net, folder, ctx=None):
    symbol, params = net.export(str(folder / "net"))
    return gluon.SymbolBlock.imports(symbol, ["data"], params, ctx=ctx)


def same(net, block, x, **tolerance):
    np.testing.assert_allclose(block(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)


class Spread(gluon.HybridBlock):
    """Two layers on two devices and an array created on the second device."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.a, self.b = nn.Dense(3), nn.Dense(2)
        self.a.initialize(ctx=on(0))
        self.b.initialize(ctx=on(1))

    def hybrid_forward(self, F, x):
        y = self.b(self.a(x).as_in_context(on(1)))
        return F.broadcast_add(y, F.ones(shape=(1, 2), ctx=on(1))).as_in_context(on(0))


class Attention(gluon.HybridBlock):
    """Reads shapes and captures masks, as PyTorch programs do."""

    def __init__(self, ctx=None):
        super().__init__()
        with self.name_scope():
            self.q, self.o = nn.Dense(8, flatten=False), nn.Dense(3, flatten=False)
        self.norm = nn.BatchNorm(axis=-1)
        self.mask = nd.array(np.triu(np.full((5, 5), -9.0), 1))
        self.moves_to = ctx

    def hybrid_forward(self, F, x):
        b, t, d = x.shape
        h = self.norm(self.q(x)).reshape((b, t, 2, 4)).transpose((0, 2, 1, 3))
        h = h.reshape((b * 2, t, 4))
        a = F.broadcast_add(F.batch_dot(h, h, transpose_b=True), self.mask.expand_dims(0))
        a = F.softmax(a + np.zeros((1, t, t), "float32"))
        h = F.batch_dot(a, h).reshape((b, 2, t, 4)).transpose((0, 2, 1, 3)).reshape((b, t, 8))
        h = h if self.moves_to is None else h.as_in_context(self.moves_to)
        return self.o(h)[:, 0]


@pytest.mark.parametrize("options", [{}, PIPELINE], ids=["hybridized", "pipelined"])
def test_block_on_two_devices_is_imported_on_one(tmp_path, options):
    net = Spread()
    net.hybridize(**options)
    x = nd.random.normal(shape=(4, 5))
    net(x)
    block = imported(net, tmp_path)
    same(net, block, x)
    assert block.collect_params().list_ctx() == [on(0)]
    elsewhere = imported(net, tmp_path, ctx=on(2))
    np.testing.assert_allclose(
        elsewhere(x.as_in_context(on(2))).asnumpy(), net(x).asnumpy(), rtol=1e-5
    )
    nodes = json.loads((tmp_path / "net-symbol.json").read_text())["nodes"]
    assert not [node for node in nodes if node["op"] == "_copyto" or "ctx" in node.get("attrs", {})]


@pytest.mark.parametrize("options", [{}, PIPELINE], ids=["hybridized", "pipelined"])
@pytest.mark.parametrize("devices", [1, 2])
def test_block_that_reads_shapes_is_exported_for_any_batch_size(tmp_path, options, devices):
    net = Attention(None if devices == 1 else on(1))
    net.initialize()
    if devices == 2:
        net.o.collect_params().reset_ctx(on(1))
    net.hybridize(**options)
    x = nd.random.normal(shape=(4, 5, 6))
    net(x)
    block = imported(net, tmp_path)
    same(net, block, x)
    same(net, block, nd.random.normal(shape=(7, 5, 6)))
    names = set(block.collect_params())
    assert {"captured0", "captured1"} < names and set(net.collect_params()) < names
    auxiliary = {name for name in names if "running" in name}
    assert auxiliary == set(mx.sym.load(str(tmp_path / "net-symbol.json")).list_auxiliary_states())


@pytest.mark.parametrize("width", [6, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_block_with_an_unbatched_input_is_exported_for_any_batch_size(tmp_path, width, reverse):
    class Shifted(gluon.HybridBlock):
        def hybrid_forward(self, F, x, shift):
            shape = (x.shape[0], width)
            return F.broadcast_add(F.reshape(x, shape=shape, reverse=reverse), shift)

    net = Shifted()
    net.hybridize()
    shift = nd.random.normal(shape=(1, 6))
    net(nd.ones((4, 2, 3)), shift)
    symbol, params = net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(symbol, ["data0", "data1"], params)
    # With reverse, no reshape code can express the batch size next to -1.
    for rows in (4,) if reverse and width == -1 else (4, 7, 1):
        x = nd.random.normal(shape=(rows, 2, 3))
        np.testing.assert_array_equal(block(x, shift).asnumpy(), net(x, shift).asnumpy())


@pytest.mark.parametrize("broadcast", [False, True])
def test_block_that_creates_states_is_exported_for_any_batch_size(tmp_path, broadcast):
    """Exported for one batch size only if an array's shape does not follow from the input's."""

    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.lstm = gluon.rnn.LSTM(3, input_size=6, layout="NTC")
            self.scale = nd.ones((1, 1, 6)) * 2

        def hybrid_forward(self, F, x):
            x = x * self.scale.as_in_context(x.context)
            if broadcast:
                x = x + F.ones((x.shape[0], 1, 6))
            return self.lstm(x).reshape((x.shape[0], -1))

    net = Net()
    net.initialize()
    net.hybridize()
    net(nd.ones((4, 5, 6)))
    block = imported(net, tmp_path)
    for rows in (4,) if broadcast else (4, 7, 1):
        same(net, block, nd.random.normal(shape=(rows, 5, 6)))


def test_block_with_a_fixed_batch_size_is_exported_for_that_size(tmp_path):
    net = nn.HybridLambda(lambda F, x: F.broadcast_add(x, F.arange(x.shape[0]).reshape((-1, 1))))
    net.hybridize()
    x = nd.ones((3, 2))
    net(x)
    same(net, imported(net, tmp_path), x)


@pytest.mark.parametrize("pipelined", [False, True])
def test_onnx_exports_blocks_that_symbols_cannot_run(tmp_path, pipelined):
    pytest.importorskip("onnx")
    net = Attention()
    net.initialize()
    x = nd.random.normal(shape=(4, 5, 6))
    net(x)
    if pipelined:
        net.hybridize(**PIPELINE)
        net(x)
    path = str(tmp_path / "net.onnx")
    mx.onnx.export_model(net, in_shapes=[(4, 5, 6)], onnx_file_path=path)
    block = mx.contrib.onnx.import_to_gluon(path, ctx=mx.cpu())
    same(net, block, x)


@pytest.mark.parametrize("options", [{}, PIPELINE], ids=["hybridized", "pipelined"])
def test_checkpoint_handler_saves_networks_that_symbols_cannot_run(tmp_path, options):
    net = Attention()
    net.initialize()
    net.hybridize(**options)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    loop = est.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    loop.logger.setLevel("ERROR")
    data = gluon.data.ArrayDataset(np.ones((8, 5, 6), "float32"), np.ones((8, 3), "float32"))
    handler = est.CheckpointHandler(str(tmp_path), epoch_period=1)
    loop.fit(gluon.data.DataLoader(data, 4), epochs=1, event_handlers=[handler])
    assert (tmp_path / "model-symbol.json").exists()
    assert list(tmp_path.glob("model-epoch*.params"))


@pytest.mark.parametrize("make", [Attention, lambda: nn.Dense(3)], ids=["shapes", "plain"])
def test_checkpoint_handler_saves_the_symbol_of_a_pipelined_network(tmp_path, make):
    net = make()
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    loop = est.Estimator(
        net, gluon.loss.L2Loss(), trainer=trainer, context=on(0), pipeline=mx.parallel.Pipeline(2)
    )
    loop.logger.setLevel("ERROR")
    data = gluon.data.ArrayDataset(np.ones((8, 5, 6), "float32"), np.ones((8, 3), "float32"))
    handler = est.CheckpointHandler(str(tmp_path), epoch_period=1)
    loop.fit(gluon.data.DataLoader(data, 4), epochs=1, event_handlers=[handler])
    symbol = mx.sym.load(str(tmp_path / "model-symbol.json"))
    names = set(symbol.list_inputs())
    assert "data" in names and set(net.collect_params()) <= names


def test_export_of_a_loop_raises_with_the_reason():
    class Looping(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            total, _ = F.contrib.foreach(lambda d, s: (d + s, d + s), x, F.zeros(x.shape[1:]))
            return total

    net = Looping()
    net.hybridize()
    net(nd.ones((3, 2)))
    with pytest.raises(mx.base.NotSupportedError, match="loop or branch cannot be written"):
        net.export("unused")


def test_export_of_a_custom_function_raises_with_the_reason():
    class Halved(mx.autograd.Function):
        def forward(self, x):
            return nd.tanh(x)  # does not accept a Symbol

        def backward(self, dy):
            return dy * 0.5

    net = nn.HybridLambda(lambda F, x: Halved()(x))
    net.hybridize()
    net(nd.ones((3, 2)))
    with pytest.raises(mx.base.NotSupportedError, match="Halved cannot be written as a symbol"):
        net.export("unused")


class Shaped(gluon.HybridBlock):
    """Layers of two stages; the block reads a shape between them."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.last = nn.Dense(6, in_units=4), nn.Dense(2, in_units=3)

    def hybrid_forward(self, F, x):
        h = self.first(x)
        return self.last(h.reshape((h.shape[0] * 2, 3)))


@pytest.mark.parametrize("how", ["place", "mesh", "replicas"])
def test_placed_block_that_reads_shapes_is_exported(tmp_path, how):
    net = Shaped()
    if how == "place":
        net.initialize(ctx=on(0))
        net.place({"first": on(0), "last": on(1)}, verbose=False)
    else:
        axes = {"stage": 2} if how == "mesh" else {"data": 2, "stage": 2}
        mesh = mx.parallel.Mesh(axes, devices=[on(i) for i in range(2 ** len(axes))])
        mesh.place(net, stages={"first": 0, "last": 1})
        net.initialize()
    net.hybridize()
    x = nd.random.normal(shape=(5, 4), ctx=on(0))
    net(x)
    block = imported(net, tmp_path, on(0))
    same(net, block, x)


def test_block_with_a_loop_and_a_dict_of_results_is_exported(tmp_path):
    class Looping(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            steps, total = F.contrib.foreach(
                lambda d, s: (d * 2, d + s), x, F.zeros_like(F.sum(x, axis=0))
            )
            return {"total": total, "steps": steps}

    net = Looping()
    net.hybridize()
    x = nd.random.normal(shape=(3, 2))
    wanted = net(x)
    found = imported(net, tmp_path)(x)
    for array, name in zip(found, wanted, strict=True):
        np.testing.assert_allclose(array.asnumpy(), wanted[name].asnumpy(), rtol=1e-6)


class Loops(gluon.HybridBlock):
    """Loops and a branch whose bodies copy to another device and create arrays there."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def hybrid_forward(self, F, x):
        def body(row, states):
            far = (row * 2).as_in_context(on(1)) + F.ones(shape=(3,), ctx=on(1))
            total = far.as_in_context(on(0)) + states[0]
            return [total, total.as_in_context(on(0))], [total]

        if self.kind == "foreach":
            return F.contrib.foreach(body, x, [F.zeros(shape=(3,))])[0][1]
        if self.kind == "nested":
            return F.contrib.foreach(
                lambda row, states: (
                    F.contrib.cond(
                        row.sum() < 0,
                        lambda: (row.as_in_context(on(1)) * 2).as_in_context(on(0)),
                        lambda: row.as_in_context(on(1)).as_in_context(on(0)),
                    ),
                    states,
                ),
                x,
                [F.zeros(shape=(3,))],
            )[0]
        _, (_, last) = F.contrib.while_loop(
            lambda i, y: i < 3,
            lambda i, y: ([], [i + 1, (y.as_in_context(on(1)) * 2).as_in_context(on(0))]),
            [F.zeros(shape=(1,)), x],
            max_iterations=4,
        )
        return last


@pytest.mark.parametrize("kind", ["foreach", "while_loop", "nested"])
def test_device_copies_in_loop_bodies_are_not_exported(kind, tmp_path):
    net = Loops(kind)
    net.hybridize()
    x = nd.random.normal(shape=(4, 3))
    net(x)
    block = imported(net, tmp_path, ctx=on(2))
    same(lambda x: net(x.as_in_context(on(0))), block, x.as_in_context(on(2)))
    text = (tmp_path / "net-symbol.json").read_text()
    assert "subgraphs" in text and '"op": "_copyto"' not in text and '"ctx"' not in text


def test_export_inside_a_traced_forward_is_refused(tmp_path):
    class Exporting(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.layer = gluon.nn.Dense(3, in_units=2)

        def hybrid_forward(self, F, x):
            y = self.layer(x)
            self.layer.export(str(tmp_path / "layer"))
            return y

    net = Exporting()
    net.initialize()
    net.layer.hybridize()
    net(nd.ones((3, 2)))  # in eager code, the child was called with values
    assert (tmp_path / "layer-symbol.json").exists()
    net.hybridize()
    with pytest.raises(mx.MXNetError, match="export cannot be called inside .* outside"):
        net(nd.ones((3, 2)))
