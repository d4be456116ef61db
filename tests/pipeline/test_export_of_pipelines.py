"""Export, ONNX and checkpoints of a transformer that reads ``x.shape``, on one device, placed and
pipelined."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from mpgluon.gluon.contrib import estimator as est
from support.devices import on


class Attention(gluon.HybridBlock):
    def __init__(self, units, heads, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        with self.name_scope():
            self.norm = nn.LayerNorm(in_channels=units)
            self.qkv = nn.Dense(3 * units, flatten=False, in_units=units)
            self.proj = nn.Dense(units, flatten=False, in_units=units)
        self.mask = nd.array(np.triu(np.full((16, 16), -1e9, "float32"), 1))

    def hybrid_forward(self, F, x):
        b, t, d = x.shape
        size = d // self.heads
        qkv = self.qkv(self.norm(x)).reshape((b, t, 3, self.heads, size))
        q, k, v = (
            part.reshape((b * self.heads, t, size))
            for part in F.split(qkv.transpose((2, 0, 3, 1, 4)), 3, axis=0)
        )
        mask = self.mask.as_in_context(x.context)[:t, :t]
        weights = F.softmax(F.batch_dot(q, k, transpose_b=True) / np.sqrt(size) + mask)
        y = F.batch_dot(weights, v).reshape((b, self.heads, t, size)).transpose((0, 2, 1, 3))
        return x + self.proj(y.reshape((b, t, d)))


class Model(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="gpt_")
        with self.name_scope():
            self.embed = nn.Embedding(11, 8)
            self.position = nn.Embedding(16, 8)
            self.layers = nn.HybridSequential()
            self.layers.add(Attention(8, 2), Attention(8, 2))
            self.head = nn.Dense(11, flatten=False, in_units=8)

    def hybrid_forward(self, F, ids):
        b, t = ids.shape
        x = self.embed(ids) + self.position(F.arange(t, ctx=ids.context)).reshape((1, t, 8))
        return self.head(self.layers(x))


FORMS = ["one device", "placed", "pipelined"]


def made(form):
    mx.random.seed(1)
    net = Model()
    net.initialize(mx.init.Xavier(), ctx=on(0))
    if form != "one device":
        net.place({"layers.1": on(1), "head": on(1), "": on(0)}, verbose=False)
    return net


def ids():
    return nd.array(np.random.RandomState(0).randint(0, 11, (4, 6)), ctx=on(0))


def called(form):
    net = made(form)
    pipeline = {"pipeline": mx.parallel.Pipeline(2)} if form == "pipelined" else {}
    net.hybridize(**pipeline)
    return net, net(ids()).asnumpy()


@pytest.mark.parametrize("form", FORMS)
def test_exported_files_compute_the_same(form, tmp_path):
    net, expected = called(form)
    symbol, params = net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(symbol, ["data"], params, ctx=on(0))
    np.testing.assert_allclose(block(ids()).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    fewer = block(ids()[:3]).asnumpy()
    np.testing.assert_allclose(fewer, expected[:3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_onnx_file_computes_the_same(form, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    net, expected = called(form)
    path = str(tmp_path / "net.onnx")
    mx.onnx.export_model(net, in_shapes=[(4, 6)], onnx_file_path=path)
    session = runtime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: ids().asnumpy()})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_estimator_saves_its_symbol_and_checkpoints(form, tmp_path):
    net = made(form)
    pipeline = mx.parallel.Pipeline(2) if form == "pipelined" else None
    net.hybridize(pipeline is None)
    random = np.random.RandomState(2)
    tokens, labels = (random.randint(0, 11, (8, 6)).astype("float32") for _ in range(2))
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(tokens, labels), batch_size=4)
    one = est.Estimator(
        net,
        gluon.loss.SoftmaxCrossEntropyLoss(),
        trainer=gluon.Trainer(net.collect_params(), "adam"),
        context=on(0),
        pipeline=pipeline,
    )
    one.logger.setLevel("ERROR")
    one.fit(data, data, epochs=1, event_handlers=est.CheckpointHandler(str(tmp_path)))
    assert one.val_metrics[0].num_inst == 48  # one class a token
    last = made(form)
    last.load_parameters(str(tmp_path / "model-epoch0batch2.params"))
    arguments = mx.sym.load(str(tmp_path / "model-symbol.json")).list_inputs()
    assert set(net.collect_params()) < set(arguments)
    np.testing.assert_allclose(last(ids()).asnumpy(), net(ids()).asnumpy(), rtol=1e-5, atol=1e-6)
