"""ONNX export and import: onnxruntime and the reimported network give the same results."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon
from mpgluon.gluon import nn, rnn
from mpgluon.gluon.model_zoo import vision
from support.calls import raises
from support.devices import on
from support.model_zoo import CLASSES, fill, image, size_of
from support.onnx_files import error, listed, onnx, run

QUICK = {"mobilenet0.25", "mobilenetv2_0.25", "squeezenet1.1"}


def arrays_of(shapes, dtype="float32"):
    random = np.random.RandomState(0)
    if dtype.startswith("int"):
        return [random.randint(0, 5, shape).astype(dtype) for shape in shapes]
    return [random.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


def results(net, arrays):
    return listed(net(*[mx.nd.array(array, dtype=array.dtype) for array in arrays]))


def check(net, path, arrays, more=(), tolerance=1e-4, **options):
    """Exports the network and compares it with onnxruntime and with the reimported block.

    The comparison also covers the inputs `more`, and eager and hybridized execution. Returns the
    ONNX model.
    """
    path = str(path)
    results(net, arrays)  # infers parameter shapes
    mx.onnx.export_model(
        net,
        in_shapes=[array.shape for array in arrays],
        in_types=[array.dtype for array in arrays],
        onnx_file_path=path,
        **options,
    )
    onnx.checker.check_model(path, full_check=True)
    back = mx.onnx.import_to_gluon(path)
    for given in (arrays, *more):
        expected = results(net, given)
        assert error(run(path, given), expected) < tolerance
        assert error(results(back, given), expected) < tolerance
    back.hybridize()
    assert error(results(back, arrays), results(net, arrays)) < tolerance
    return onnx.load(path)


def initialized(net, scale=0.5):
    net.initialize(mx.init.Uniform(scale))
    return net


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in sorted(vision._MODELS)
    ],
)
def test_model_zoo_network_round_trips(name, tmp_path):
    net = vision.get_model(name, prefix="net_", classes=CLASSES)
    x = image(size_of(name))
    net.initialize()
    net.infer_shape(mx.nd.array(x))
    fill(net, mx.nd)
    two = np.concatenate([x, -x])
    model = check(
        net,
        tmp_path / "net.onnx",
        [x],
        [[two]],
        dynamic=True,
        dynamic_input_shapes=[("batch", *x.shape[1:])],
    )
    assert [item.version for item in model.opset_import] == [17]
    (given,) = model.graph.input
    assert given.type.tensor_type.shape.dim[0].dim_param == "batch"
    names = {tensor.name for tensor in model.graph.initializer}
    assert names >= {key for key in net.collect_params() if key.endswith("weight")}


LAYERS = {
    "lstm": lambda **more: rnn.LSTM(6, **more),
    "gru": lambda **more: rnn.GRU(6, **more),
    "rnn_tanh": lambda **more: rnn.RNN(6, activation="tanh", **more),
    "rnn_relu": lambda **more: rnn.RNN(6, activation="relu", **more),
}


@pytest.mark.parametrize("bidirectional", (False, True))
@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_recurrent_layers_round_trip(kind, bidirectional, tmp_path):
    net = initialized(LAYERS[kind](num_layers=2, bidirectional=bidirectional))
    check(net, tmp_path / "a.onnx", arrays_of([(5, 3, 4)]))
    net = initialized(LAYERS[kind](num_layers=1, bidirectional=bidirectional, layout="NTC"))
    check(
        net,
        tmp_path / "b.onnx",
        arrays_of([(3, 5, 4)]),
        [arrays_of([(7, 2, 4)])],
        dynamic=True,
        dynamic_input_shapes=[("batch", "steps", 4)],
    )


class States(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.layer = rnn.LSTM(6, num_layers=2, bidirectional=True)

    def hybrid_forward(self, F, x, hidden, cell):
        out, (hidden, cell) = self.layer(x, [hidden, cell])
        return out, hidden, cell


def test_recurrent_parameters_may_be_inputs(tmp_path):
    """The parameter vector is split when the file runs."""
    names = ("data", "parameters", "state", "cell")
    options = {"state_size": 6, "num_layers": 2, "bidirectional": True, "state_outputs": True}
    size = sum(2 * 24 * (width + 6 + 2) for width in (4, 12))
    arrays = arrays_of([(5, 3, 4), (size,), (4, 3, 6), (4, 3, 6)])
    symbol = mx.sym.RNN(*map(mx.sym.var, names), mode="lstm", **options)
    path = str(tmp_path / "a.onnx")
    mx.onnx.export_model(symbol, {}, [array.shape for array in arrays], onnx_file_path=path)
    given = [mx.nd.array(array) for array in arrays]
    expected = listed(mx.nd.RNN(*given, mode="lstm", **options))
    assert error(run(path, arrays), expected) < 1e-4


def test_recurrent_states_may_be_inputs_and_outputs(tmp_path):
    """Exports states as inputs and outputs."""
    arrays = arrays_of([(5, 3, 4), (4, 3, 6), (4, 3, 6)])
    more = arrays_of([(2, 7, 4), (4, 7, 6), (4, 7, 6)])
    sizes = [("t", "n", 4), (4, "n", 6), (4, "n", 6)]
    net = initialized(States())
    check(net, tmp_path / "a.onnx", arrays, [more], dynamic=True, dynamic_input_shapes=sizes)


class Cells(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.cell = rnn.HybridSequentialRNNCell()
        self.cell.add(rnn.LSTMCell(5, input_size=4))
        self.cell.add(rnn.ResidualCell(rnn.GRUCell(5, input_size=5)))
        self.cell.add(rnn.ZoneoutCell(rnn.RNNCell(3, input_size=5), 0.1))

    def hybrid_forward(self, F, x):
        return self.cell.unroll(3, x, layout="NTC", merge_outputs=True)[0]


@pytest.mark.parametrize("hybrid", (False, True))
def test_recurrent_layer_exports_with_or_without_states(hybrid, tmp_path):
    """Exports a layer as a block; `in_shapes` decides whether the states are inputs."""

    def layer_of():
        layer = initialized(rnn.LSTM(6, input_size=4))
        if hybrid:
            layer.hybridize()
        return layer

    layer, path = layer_of(), str(tmp_path / "a.onnx")
    x, *states = arrays_of([(5, 3, 4), (1, 3, 6), (1, 3, 6)])
    expected = results(layer, [x])
    mx.onnx.export_model(layer, in_shapes=[x.shape], onnx_file_path=path)
    assert error(run(path, [x]), expected) < 1e-4
    if hybrid:
        layer = layer_of()
        expected = listed(layer(mx.nd.array(x), [mx.nd.array(state) for state in states]))
        shapes = [array.shape for array in (x, *states)]
        mx.onnx.export_model(layer, in_shapes=shapes, onnx_file_path=path)
        assert error(run(path, [x, *states]), expected) < 1e-4


def test_recurrent_cells_round_trip(tmp_path):
    check(initialized(Cells()), tmp_path / "a.onnx", arrays_of([(2, 3, 4)]))


class Transformer(gluon.HybridBlock):
    """Attention by reshapes with MXNet's codes and by the interleaved products."""

    def __init__(self, width=16, heads=4, longest=32):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(20, width)
        self.positions = self.params.get("positions", shape=(1, longest, width))
        self.norms = nn.HybridSequential()
        self.norms.add(*[nn.LayerNorm(in_channels=width) for _ in range(3)])
        self.inside = nn.Dense(3 * width, flatten=False, in_units=width)
        self.outside = nn.Dense(width, flatten=False, in_units=width)
        self.interleaved = nn.Dense(3 * width, flatten=False, in_units=width)
        self.queries = nn.Dense(width, flatten=False, in_units=width)
        self.keys_values = nn.Dense(2 * width, flatten=False, in_units=width)
        self.forward_layers = nn.HybridSequential()
        self.forward_layers.add(
            nn.Dense(4 * width, flatten=False, in_units=width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Dense(width, flatten=False, in_units=4 * width),
        )

    def by_heads(self, F, x):
        x = F.reshape(x, shape=(0, 0, -4, self.heads, -1))
        return F.reshape(F.transpose(x, axes=(0, 2, 1, 3)), shape=(-3, -2))

    def attention(self, F, x):
        parts = F.split(self.inside(x), num_outputs=3, axis=2)
        query, key, value = [self.by_heads(F, part) for part in parts]
        scores = F.contrib.div_sqrt_dim(F.batch_dot(query, key, transpose_b=True))
        x = F.batch_dot(F.softmax(scores), value)
        x = F.reshape(x, shape=(-4, -1, self.heads, 0, 0))
        return self.outside(F.reshape(F.transpose(x, axes=(0, 2, 1, 3)), shape=(0, 0, -3)))

    def by_interleaved(self, F, x):
        x = F.swapaxes(x, 0, 1)
        all_three = self.interleaved(x)
        scores = F.contrib.interleaved_matmul_selfatt_qk(all_three, heads=self.heads)
        weights = F.softmax(scores)
        y = F.contrib.interleaved_matmul_selfatt_valatt(all_three, weights, heads=self.heads)
        query, both = self.queries(y), self.keys_values(x)
        scores = F.contrib.interleaved_matmul_encdec_qk(query, both, heads=self.heads)
        weights = F.softmax(scores)
        y = F.contrib.interleaved_matmul_encdec_valatt(both, weights, heads=self.heads)
        return F.swapaxes(y, 0, 1)

    def hybrid_forward(self, F, tokens, positions):
        x = self.embed(tokens)
        x = F.broadcast_add(x, F.slice_like(positions, x, axes=(1,)))
        x = x + self.attention(F, self.norms[0](x))
        x = x + self.by_interleaved(F, self.norms[1](x))
        return self.forward_layers(self.norms[2](x))


@pytest.mark.parametrize("sizes", (None, (None, 7), ("batch", "steps"), ()))
def test_transformer_round_trips_with_dynamic_sizes(sizes, tmp_path):
    """Covers fixed sizes, some dynamic sizes, and all sizes dynamic (`()`)."""
    net = initialized(Transformer())
    options, more = {}, []
    if sizes is not None:
        options = {"dynamic": True, "dynamic_input_shapes": [sizes] if sizes else None}
        steps = 7 if sizes == (None, 7) else 11
        more = [arrays_of([(5, steps)], "int64")]
    check(net, tmp_path / "a.onnx", arrays_of([(2, 7)], "int64"), more, **options)


class Spread(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(6), nn.Dense(3)
        self.first.initialize(ctx=on(0))
        self.second.initialize(ctx=on(1))

    def hybrid_forward(self, F, x):
        there = F.relu(self.first(x)).as_in_context(on(1))
        return self.second(there).as_in_context(on(0))


def test_device_copies_are_not_exported(tmp_path):
    """Copies between devices do not appear in the file."""
    model = check(Spread(), tmp_path / "a.onnx", arrays_of([(2, 5)]))
    assert [node.op_type for node in model.graph.node] == ["Gemm", "Relu", "Gemm"]


def test_float16_network_round_trips(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D())
    net.add(nn.Flatten(), nn.Dense(3))
    initialized(net)(mx.nd.zeros((1, 3, 8, 8)))
    net.cast("float16")
    arrays = arrays_of([(2, 3, 8, 8)], "float16")
    model = check(net, tmp_path / "a.onnx", arrays, tolerance=5e-3)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    weights = [kind for name, kind in types.items() if name.endswith("weight")]
    assert weights == [onnx.TensorProto.FLOAT16] * 2


def test_bfloat16_network_round_trips(tmp_path):
    """onnxruntime has no bfloat16 kernels, so this only reimports the file."""
    net, path = initialized(nn.Dense(3, in_units=4)), str(tmp_path / "a.onnx")
    net.cast("bfloat16")
    mx.onnx.export_model(net, in_shapes=[(2, 4)], in_types="bfloat16", onnx_file_path=path)
    onnx.checker.check_model(path, full_check=True)
    back, x = mx.onnx.import_to_gluon(path), mx.nd.array(arrays_of([(2, 4)])[0], dtype="bfloat16")
    assert {param.dtype for param in back.collect_params().values()} == {mx.bfloat16}
    assert error(listed(back(x)), listed(net(x))) == 0


class Boxes(gluon.HybridBlock):
    """The head of a detector: scores and boxes of anchors, decoded, with non-maximum
    suppression."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Conv2D(2, 3, padding=1)
        self.moves = nn.Conv2D(8, 3, padding=1)

    def hybrid_forward(self, F, x):
        anchors = F.contrib.MultiBoxPrior(x, sizes=(0.3, 0.5), ratios=(1,))
        moves = F.reshape(F.transpose(self.moves(x), axes=(0, 2, 3, 1)), shape=(0, -1, 4))
        scores = F.reshape(F.transpose(self.scores(x), axes=(0, 2, 3, 1)), shape=(0, -1, 1))
        boxes = F.contrib.box_decode(moves, anchors, format="corner", std0=0.1, std1=0.1)
        rows = F.concat(F.zeros_like(scores), F.sigmoid(scores), boxes, dim=2)
        return F.contrib.box_nms(
            rows, overlap_thresh=0.45, valid_thresh=0.4, topk=20, id_index=0, score_index=1
        )


def test_detection_outputs_match_onnxruntime(tmp_path):
    net, (x,) = initialized(Boxes()), arrays_of([(2, 3, 6, 6)])
    expected = results(net, [x])
    assert (expected[0][:, :, 0] >= 0).sum() > 4 and (expected[0][:, :, 0] < 0).any()
    path = str(tmp_path / "a.onnx")
    mx.onnx.export_model(net, in_shapes=[x.shape], onnx_file_path=path)
    assert error(run(path, [x]), expected) < 1e-4


# --- Functions ------------------------------------------------------------------------------------


def network():
    data = mx.sym.var("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=5, name="a"), "relu")
    hidden = mx.sym.BatchNorm(hidden, name="norm", fix_gamma=False)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="b"), name="out")


def values():
    shapes = {"a_weight": (5, 4), "a_bias": (5,), "b_weight": (3, 5), "b_bias": (3,)}
    shapes.update(norm_gamma=(5,), norm_beta=(5,))
    arguments = {name: mx.nd.random.uniform(-1, 1, shape) for name, shape in shapes.items()}
    return arguments, {"norm_moving_mean": mx.nd.ones(5), "norm_moving_var": mx.nd.ones(5) * 2}


def test_export_accepts_every_form_of_symbol_and_parameters(tmp_path):
    """Covers parameters together, separate, with prefixes and as checkpoint files. Labels are not
    inputs.
    """
    path, symbol, (arguments, states) = str(tmp_path / "a.onnx"), network(), values()
    prefix = str(tmp_path / "net")
    mx.model.save_checkpoint(prefix, 0, symbol, arguments, states)
    marked = {f"arg:{name}": array for name, array in arguments.items()}
    marked.update({f"aux:{name}": array for name, array in states.items()})
    x, files = arrays_of([(2, 4)])[0], []
    for sym, params in (
        (symbol, {**arguments, **states}),
        (symbol, [arguments, states]),
        (symbol, marked),
        (f"{prefix}-symbol.json", f"{prefix}-0000.params"),
    ):
        assert mx.contrib.onnx.export_model(sym, params, [(2, 4)], np.float32, path) == path
        files.append(run(path, [x])[0])
    inputs = {"data": mx.nd.array(x), "out_label": mx.nd.zeros(2)}
    executor = symbol.bind(mx.cpu(), {**arguments, **inputs}, aux_states=states)
    (expected,) = executor.forward(is_train=False)
    assert all(error([found], [expected.asnumpy()]) < 1e-5 for found in files)
    mx.onnx.export_model(symbol, [arguments, states], [(2, 4), (2,)], onnx_file_path=path)
    assert [info.name for info in onnx.load(path).graph.input] == ["data", "out_label"]
    assert error(run(path, [x, np.zeros(2, np.float32)]), [expected.asnumpy()]) < 1e-5
    mx.onnx.export_model(symbol, [arguments, states], [(2, 4)], onnx_file_path=path)
    metadata = mx.contrib.onnx.get_model_metadata(path)
    assert metadata == {
        "input_tensor_data": [("data", (2, 4))],
        "output_tensor_data": [("out_output", (2, 3))],
    }


def test_import_model_separates_arguments_and_states(tmp_path):
    """Arguments and states are separate and keep the names in the file."""
    path, (arguments, states) = str(tmp_path / "a.onnx"), values()
    mx.onnx.export_model(network(), [arguments, states], input_shape=[(2, 4)], onnx_file_path=path)
    symbol, found, others = mx.contrib.onnx.import_model(path)
    assert sorted(found) == sorted(arguments) and sorted(others) == sorted(states)
    assert all(np.array_equal(found[key].asnumpy(), arguments[key].asnumpy()) for key in found)
    x = mx.nd.array(arrays_of([(2, 4)])[0])
    module = mx.mod.Module(symbol, data_names=["data"], label_names=None)
    module.bind([("data", (2, 4))], for_training=False)
    module.set_params(found, others)
    module.forward(mx.io.DataBatch([x]))
    assert error(listed(module.get_outputs()), run(path, [x.asnumpy()])) < 1e-5


def test_imported_block_trains(tmp_path):
    net, path = nn.HybridSequential(), str(tmp_path / "a.onnx")
    net.add(nn.Dense(8, activation="relu", in_units=4), nn.Dense(1, in_units=8))
    mx.onnx.export_model(initialized(net), in_shapes=[(4, 4)], onnx_file_path=path)
    back = mx.onnx.import_to_gluon(path, ctx=on(1))
    assert all(param.list_ctx() == [on(1)] for param in back.collect_params().values())
    trainer = gluon.Trainer(back.collect_params(), "sgd", {"learning_rate": 0.1})
    x, losses = mx.nd.array(arrays_of([(4, 4)])[0], ctx=on(1)), []
    for _ in range(20):
        with mx.autograd.record():
            loss = mx.nd.square(back(x) - 1).mean()
        loss.backward()
        trainer.step(1)
        losses.append(float(loss.asscalar()))
    assert losses[-1] < losses[0] / 10


def test_large_model_data_is_stored_in_separate_file(tmp_path):
    net, (x,) = initialized(nn.Dense(300, in_units=400)), arrays_of([(2, 400)])
    path = str(tmp_path / "a.onnx")
    for _ in range(2):  # the second export replaces the first
        mx.onnx.export_model(net, in_shapes=[x.shape], onnx_file_path=path, large_model=True)
    size = (tmp_path / "a.onnx.data").stat().st_size
    assert 4 * 300 * 400 <= size < 5 * 300 * 400 and (tmp_path / "a.onnx").stat().st_size < 5000
    assert error(run(path, [x]), results(net, [x])) < 1e-5
    assert error(results(mx.onnx.import_to_gluon(path), [x]), results(net, [x])) < 1e-5


def test_invalid_dynamic_sizes_are_refused(tmp_path):
    net = initialized(nn.Dense(3, in_units=12))
    path = str(tmp_path / "a.onnx")
    options = {"in_shapes": [(2, 3, 4)], "onnx_file_path": path, "dynamic": True}
    with pytest.raises(mx.MXNetError, match="make fewer axes dynamic"):
        mx.onnx.export_model(net, dynamic_input_shapes=[(None, None, 4)], **options)
    mx.onnx.export_model(net, **options)  # every size that can be dynamic
    sizes = [size.dim_param for size in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
    assert [bool(size) for size in sizes] == [True, False, False]
    for wrong in ([(None, 3)], [(None, 3, 4), (1,)]):
        with pytest.raises(ValueError, match="dynamic_input_shapes"):
            mx.onnx.export_model(net, dynamic_input_shapes=wrong, **options)


def test_invalid_export_arguments_are_refused(tmp_path):
    net, path = initialized(nn.Dense(3, in_units=4)), str(tmp_path / "a.onnx")
    symbol, (arguments, states) = network(), values()
    raises(ValueError, "in_shapes", lambda: mx.onnx.export_model(net, onnx_file_path=path))
    with pytest.raises(ValueError, match="in_shapes"):
        mx.onnx.export_model(net, in_shapes=(1, 4), onnx_file_path=path)
    with pytest.raises(ValueError, match="in_types"):
        mx.onnx.export_model(net, in_shapes=[(1, 4)], in_types=["int8"] * 2, onnx_file_path=path)
    with pytest.raises(ValueError, match="positive"):
        mx.onnx.export_model(net, in_shapes=[(0, 4)], onnx_file_path=path)
    with pytest.raises(ValueError, match="its own"):
        mx.onnx.export_model(net, {}, [(1, 4)], onnx_file_path=path)
    with pytest.raises(ValueError, match="data, b_weight"):
        mx.onnx.export_model(
            symbol,
            {key: array for key, array in {**arguments, **states}.items() if key != "b_weight"},
            [(1, 4)],
            onnx_file_path=path,
        )
    raises(TypeError, "Symbol", lambda: mx.onnx.export_model(3, {}, [(1, 4)], onnx_file_path=path))
    with pytest.raises(mx.MXNetError, match="weight must have the shape"):
        mx.onnx.export_model(symbol, [arguments, states], [(2, 7)], onnx_file_path=path)
    assert not (tmp_path / "a.onnx").exists()


def test_get_operator_support_lists_ops_per_opset():
    assert "Convolution" in mx.onnx.get_operator_support(17)
    assert mx.onnx.get_operator_support(11) == []


class Anchors(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        sizes = ([0.2], [0.3])
        anchors = [F.contrib.MultiBoxPrior(x, sizes=size) for size in sizes]
        return F.concat(*anchors, dim=1), x * 2


def test_result_of_constants_is_exported(tmp_path):
    """The anchors of a detector with two scales are folded to one constant."""
    check(Anchors(), tmp_path / "net.onnx", arrays_of([(1, 3, 4, 4)]))
