"""ONNX files of other programs: nodes of old and new opsets, and damaged files."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon.gluon import nn
from mpgluon.onnx._package import ONNXError
from support.onnx_files import error, listed, onnx, run

TYPES = {np.dtype("float32"): 1, np.dtype("int32"): 6, np.dtype("int64"): 7}


def random(*shape):
    return np.random.RandomState(sum(shape)).uniform(-2, 2, shape).astype(np.float32)


def integers(*values):
    return np.array(values, dtype=np.int64)


def save(path, nodes, inputs, constants=(), opset=17, outputs=("out",), sizes=None):
    """Writes a graph. `inputs` and `constants` are dicts of arrays; `sizes` are the declared
    shapes."""
    make = onnx.helper
    graph = make.make_graph(
        nodes,
        "g",
        [
            make.make_tensor_value_info(
                name, TYPES[array.dtype], (sizes or {}).get(name, array.shape)
            )
            for name, array in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in dict(constants).items()],
    )
    opsets = [make.make_opsetid("", opset)]
    model = make.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 19 else 10)
    model = onnx.shape_inference.infer_shapes(model)  # infers the types of the outputs
    for info in model.graph.output:
        if not info.type.HasField("tensor_type"):
            info.type.CopyFrom(model.graph.input[0].type)
    onnx.save_model(model, str(path))
    return str(path)


def node(op, count=1, outputs=("out",), **attributes):
    return onnx.helper.make_node(op, [f"x{i}" for i in range(count)], list(outputs), **attributes)


def given(op, opset, *arrays, **attributes):
    """Describes a node. (2, 3) is a random input of this shape, [2, 3] a random constant of the
    file, and (array,) another constant."""
    inputs = []
    for array in arrays:
        if isinstance(array, list):
            array = (random(*array),)
        elif isinstance(array, tuple) and isinstance(array[0], int):
            array = random(*array)
        inputs.append(array)
    return op, opset, inputs, attributes


NODES = {
    "clip-7": given("Clip", 7, (3, 4), min=-0.5, max=1.0),
    "clip-13": given("Clip", 13, (3, 4), (np.float32(-1),), (np.float32(1),)),
    "clip-13-above": given("Clip", 13, (3, 4), (np.float32(-1),)),
    "round-halves": given("Round", 11, np.float32([[-1.5, -0.5, 0.5], [1.5, 2.5, 0.7]])),
    "softmax-11": given("Softmax", 11, (2, 3, 4), axis=1),
    "softmax-13": given("Softmax", 13, (2, 3, 4), axis=1),
    "log-softmax-9": given("LogSoftmax", 9, (2, 3, 4), axis=-1),
    "gemm": given("Gemm", 13, (2, 3), [4, 3], [4], transB=1),
    "gemm-scaled": given("Gemm", 11, (3, 2), [3, 4], [2, 1], transA=1, alpha=0.5, beta=2.0),
    "matmul-vector": given("MatMul", 13, (2, 3, 4), (4,)),
    "matmul-stack": given("MatMul", 13, (5, 2, 3, 4), (5, 2, 4, 3)),
    "matmul-broadcast": given("MatMul", 13, (5, 2, 3, 4), (2, 4, 3)),
    "conv-same": given(
        "Conv", 11, (1, 2, 6, 7), [3, 2, 4, 3], auto_pad="SAME_UPPER", strides=[2, 1]
    ),
    "conv-same-lower": given("Conv", 11, (1, 2, 6, 7), [3, 2, 4, 4], auto_pad="SAME_LOWER"),
    "conv-one-side": given(
        "Conv", 11, (1, 2, 6, 7), [3, 2, 3, 3], [3], pads=[1, 0, 0, 2], kernel_shape=[3, 3]
    ),
    "conv-1d": given("Conv", 11, (1, 2, 9), [3, 2, 3], pads=[2, 0], dilations=[2]),
    "conv-3d": given("Conv", 11, (1, 2, 4, 4, 5), [2, 1, 2, 2, 2], group=2),
    "conv-transpose": given(
        "ConvTranspose",
        11,
        (1, 2, 4, 4),
        [2, 3, 3, 3],
        [3],
        strides=[2, 2],
        output_padding=[1, 1],
        pads=[1, 1, 1, 1],
    ),
    "max-pool": given(
        "MaxPool", 12, (1, 2, 7, 7), kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]
    ),
    "max-pool-ceil": given(
        "MaxPool", 12, (1, 2, 6, 6), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1
    ),
    "average-pool-one-side": given(
        "AveragePool", 11, (1, 2, 6, 6), kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]
    ),
    "average-pool-counted": given(
        "AveragePool", 11, (1, 2, 6, 6), kernel_shape=[3, 3], pads=[1, 0, 1, 1], count_include_pad=1
    ),
    "lp-normalization": given("LpNormalization", 7, (3, 4), axis=1, p=2),
    "lrn": given("LRN", 13, (1, 5, 3, 3), size=3, alpha=0.1, bias=2.0),
    "batch-norm-9": given(
        "BatchNormalization",
        9,
        (2, 3, 4),
        *[(np.abs(random(3)) + k,) for k in range(4)],
        epsilon=1e-3,
    ),
    "layer-norm": given("LayerNormalization", 17, (2, 3, 4), [3, 4], [3, 4], axis=1),
    "layer-norm-no-bias": given("LayerNormalization", 17, (2, 3, 4), [4]),
    "group-norm-21": given("GroupNormalization", 21, (2, 4, 3), [4], [4], num_groups=2),
    "gelu-20": given("Gelu", 20, (3, 4)),
    "gelu-20-tanh": given("Gelu", 20, (3, 4), approximate="tanh"),
    "mish-18": given("Mish", 18, (3, 4)),
    "hard-swish": given("HardSwish", 14, (3, 4)),
    "hard-sigmoid": given("HardSigmoid", 7, (3, 4), alpha=0.3),
    "selu": given("Selu", 7, (3, 4), alpha=1.5, gamma=0.7),
    "elu": given("Elu", 7, (3, 4), alpha=0.3),
    "leaky": given("LeakyRelu", 16, (3, 4)),
    "prelu": given("PRelu", 16, (2, 3, 4), [3, 1]),
    "softplus": given("Softplus", 7, (3, 4)),
    "sum": given("Sum", 13, (3, 4), (4,), (3, 1)),
    "mean": given("Mean", 13, (3, 4), (4,)),
    "max": given("Max", 13, (3, 4), (4,)),
    "min": given("Min", 13, (3, 4), (4,)),
    "pow": given("Pow", 15, np.abs(random(3, 4)), (np.float32(1.5),)),
    "reduce-mean-13": given("ReduceMean", 13, (2, 3, 4), axes=[1, -1], keepdims=0),
    "reduce-mean-18": given("ReduceMean", 18, (2, 3, 4), (integers(1),)),
    "reduce-sum-11": given("ReduceSum", 11, (2, 3, 4), axes=[0]),
    "reduce-sum-13": given("ReduceSum", 13, (2, 3, 4), (integers(2),), keepdims=0),
    "reduce-l2": given("ReduceL2", 13, (2, 3, 4), axes=[1]),
    "reduce-log-sum-exp": given("ReduceLogSumExp", 13, (2, 3), axes=[1], keepdims=0),
    "reduce-prod": given("ReduceProd", 13, (2, 3), axes=[1]),
    "argmax": given("ArgMax", 13, (2, 3, 4), axis=1, keepdims=0),
    "cumsum": given("CumSum", 14, (2, 3), (np.array(1),), reverse=1),
    "squeeze-11": given("Squeeze", 11, (1, 3, 1), axes=[0]),
    "squeeze-13": given("Squeeze", 13, (1, 3, 1), (integers(-1),)),
    "unsqueeze-11": given("Unsqueeze", 11, (3, 4), axes=[0, 3]),
    "unsqueeze-13": given("Unsqueeze", 13, (3, 4), (integers(-1, 0),)),
    "flatten": given("Flatten", 13, (2, 3, 4), axis=2),
    "flatten-0": given("Flatten", 13, (2, 3, 4), axis=0),
    "reshape": given("Reshape", 14, (2, 3, 4), (integers(0, -1),)),
    "transpose": given("Transpose", 13, (2, 3, 4)),
    "slice-9": given("Slice", 9, (5, 6), starts=[1, -3], ends=[4, 100], axes=[0, 1]),
    "slice-13": given(
        "Slice",
        13,
        (5, 6),
        (integers(4, 0),),
        (integers(-100, 5),),
        (integers(0, 1),),
        (integers(-2, 2),),
    ),
    "gather": given("Gather", 13, (5, 3), (integers([0, -1], [2, 4]),)),
    "gather-one": given("Gather", 13, (5, 3), (np.array(-1),), axis=1),
    "gather-nd": given("GatherND", 13, (5, 3), (integers([0, 1], [4, 2]),)),
    "expand": given("Expand", 13, (3, 1), (integers(2, 1, 4),)),
    "tile": given("Tile", 13, (2, 3), (integers(2, 1),)),
    "pad-7": given("Pad", 7, (1, 2, 3, 3), pads=[0, 0, 1, 0, 0, 0, 2, 1], value=3.0),
    "pad-13": given("Pad", 13, (2, 3), (integers(1, 0, 0, 2),), (np.float32(2),)),
    "pad-reflect": given(
        "Pad", 13, (1, 2, 4, 4), (integers(0, 0, 1, 1, 0, 0, 1, 2),), mode="reflect"
    ),
    "one-hot": given(
        "OneHot", 11, np.array([0, 2, 1]), (np.array(4),), (np.array([1, 5], dtype=np.float32),)
    ),
    "upsample-9": given(
        "Upsample", 9, (1, 2, 3, 4), (np.array([1, 1, 2, 2], dtype=np.float32),), mode="nearest"
    ),
    "depth-to-space-crd": given("DepthToSpace", 13, (1, 8, 2, 3), blocksize=2, mode="CRD"),
    "space-to-depth": given("SpaceToDepth", 13, (1, 2, 4, 6), blocksize=2),
    "det": given("Det", 11, (2, 3, 3)),
    "trilu": given("Trilu", 14, (3, 4), (np.array(1),), upper=0),
    "mod": given("Mod", 13, integers(-5, 5, 7), integers(3, -3, 4)),
    "dropout": given("Dropout", 13, (3, 4)),
    "rnn-reverse": given(
        "RNN", 14, (4, 2, 3), [1, 5, 3], [1, 5, 5], hidden_size=5, direction="reverse"
    ),
    "lstm-no-bias": given(
        "LSTM", 14, (4, 2, 3), [2, 20, 3], [2, 20, 5], hidden_size=5, direction="bidirectional"
    ),
    "lstm-lengths": given(
        "LSTM",
        14,
        (4, 3, 3),
        [2, 20, 3],
        [2, 20, 5],
        [2, 40],
        np.array([2, 4, 1], dtype=np.int32),
        hidden_size=5,
        direction="bidirectional",
    ),
    "gru-lengths-reverse": given(
        "GRU",
        14,
        (4, 2, 3),
        [1, 15, 3],
        [1, 15, 5],
        [1, 30],
        np.array([3, 1], dtype=np.int32),
        hidden_size=5,
        direction="reverse",
        linear_before_reset=1,
    ),
}


@pytest.mark.parametrize("name", sorted(NODES))
def test_onnx_node_matches_onnxruntime(name, tmp_path):
    op, opset, given_inputs, attributes = NODES[name]
    inputs, constants = {}, {}
    for i, array in enumerate(given_inputs):
        if isinstance(array, tuple):
            constants[f"x{i}"] = np.asarray(array[0])
        else:
            inputs[f"x{i}"] = array
    nodes = [node(op, len(given_inputs), **attributes)]
    path = save(tmp_path / "a.onnx", nodes, inputs, constants, opset)
    expected = run(path, list(inputs.values()))
    block = mx.onnx.import_to_gluon(path)
    arrays = [mx.nd.array(array, dtype=array.dtype) for array in inputs.values()]
    assert error(listed(block(*arrays)), expected) < 1e-4


def test_nodes_with_several_outputs_match_onnxruntime(tmp_path):
    x = random(2, 7)
    constants = {"x1": integers(3, 4), "k": integers(2)}
    nodes = [
        onnx.helper.make_node("Split", ["x0", "x1"], ["a", "b"], axis=1),
        onnx.helper.make_node("TopK", ["b", "k"], ["values", "places"]),
        onnx.helper.make_node("Split", ["values"], ["c", "d"], axis=1),
    ]
    outputs = ("a", "values", "places", "d")
    path = save(tmp_path / "a.onnx", nodes, {"x0": x}, constants, outputs=outputs)
    found = listed(mx.onnx.import_to_gluon(path)(mx.nd.array(x)))
    assert error(found, run(path, [x])) < 1e-6


def test_where_broadcasts_its_inputs(tmp_path):
    x, y = random(3, 1), random(4)
    nodes = [
        onnx.helper.make_node("Greater", ["x0", "x1"], ["c"]),
        onnx.helper.make_node("Where", ["c", "x0", "low"], ["out"]),
    ]
    constants = {"low": np.array(-np.inf, dtype=np.float32)}
    path = save(tmp_path / "a.onnx", nodes, {"x0": x, "x1": y}, constants)
    found = listed(mx.onnx.import_to_gluon(path)(mx.nd.array(x), mx.nd.array(y)))
    assert error(found, run(path, [x, y])) == 0


def test_computed_shapes_match_onnxruntime(tmp_path):
    """Shapes computed from an input whose sizes are dynamic in the file."""
    make = onnx.helper.make_node
    nodes = [
        make("Shape", ["x0"], ["shape"]),
        make("Gather", ["shape", "zero"], ["batch"]),
        make("Gather", ["shape", "one"], ["steps"]),
        make("Unsqueeze", ["batch", "axes"], ["batch1"]),
        make("Unsqueeze", ["steps", "axes"], ["steps1"]),
        make("Concat", ["batch1", "steps1", "four"], ["sizes"], axis=0),
        make("Reshape", ["x0", "sizes"], ["apart"]),
        make("ConstantOfShape", ["sizes"], ["zeros"]),
        make("Concat", ["steps1", "four"], ["row"], axis=0),
        make("Expand", ["half", "row"], ["rows"]),
        make("Add", ["apart", "zeros"], ["sum"]),
        make("Add", ["sum", "rows"], ["out"]),
    ]
    constants = {
        "zero": np.array(0),
        "one": np.array(1),
        "axes": integers(0),
        "four": integers(4),
        "half": np.array([0.5], dtype=np.float32),
    }
    x = random(2, 3, 4)
    sizes = {"x0": ("batch", "steps", 4)}
    path = save(tmp_path / "a.onnx", nodes, {"x0": x}, constants, sizes=sizes)
    block = mx.onnx.import_to_gluon(path)
    for array in (x, random(5, 2, 4)):
        assert error(listed(block(mx.nd.array(array))), run(path, [array])) < 1e-6


# --- Refused files ------------------------------------------------------------------------------


def small(path):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(2, 3, in_channels=1), nn.BatchNorm(in_channels=2), nn.MaxPool2D(2))
    net.add(nn.Flatten(), nn.Dense(2, in_units=8))
    net.initialize()
    mx.onnx.export_model(net, in_shapes=[(1, 1, 6, 6)], onnx_file_path=str(path))
    return path.read_bytes()


def test_damaged_onnx_file_is_read_or_refused(tmp_path):
    """A file truncated or changed anywhere is either read or raises an MXNetError."""
    path = tmp_path / "a.onnx"
    whole, draw = small(path), np.random.RandomState(0)
    damaged = [whole[:size] for size in draw.randint(0, len(whole), 40)]
    for _ in range(150):
        changed = bytearray(whole)
        for place in draw.randint(0, len(whole), draw.randint(1, 4)):
            changed[place] = draw.randint(256)
        damaged.append(bytes(changed))
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            mx.onnx.import_model(str(path))
        except mx.MXNetError:
            refused += 1
    assert refused > 60


@pytest.mark.parametrize("data", (b"", b"no model", b"{}", bytes(1000), b"\x08\x08\x3a\x00"))
def test_file_that_is_not_onnx_is_refused(data, tmp_path):
    path = tmp_path / "a.onnx"
    path.write_bytes(data)
    for function in (mx.onnx.import_model, mx.onnx.import_to_gluon, mx.onnx.get_model_metadata):
        with pytest.raises(mx.MXNetError, match="not a valid ONNX file"):
            function(str(path))
        with pytest.raises(FileNotFoundError):
            function(str(tmp_path))


def refused(path, match):
    with pytest.raises(ONNXError, match=match):
        mx.onnx.import_model(path)


def test_unsupported_node_is_refused_by_name(tmp_path):
    """The error names the op and its node."""
    path, x = tmp_path / "a.onnx", {"x0": random(2, 3)}
    loop = onnx.helper.make_node("NonZero", ["x0"], ["out"], name="where")
    refused(save(path, [loop], x), "node 'where': the op NonZero cannot be converted")
    gru = node("GRU", 3, hidden_size=5)
    weights = {"x1": random(1, 15, 3), "x2": random(1, 15, 5)}
    refused(
        save(path, [gru], {"x0": random(4, 2, 3)}, weights),
        r"node 'out' \(op GRU\): linear_before_reset",
    )
    shapes = [onnx.helper.make_node("Reshape", ["x0", "x1"], ["out"])]
    refused(save(path, shapes, {**x, "x1": integers(3, 2)}), "must be a constant")
    model = onnx.load(save(path, [node("Relu")], x))
    model.opset_import[0].version = 6
    onnx.save_model(model, str(path))
    refused(str(path), "opset 6")
    own = onnx.helper.make_node("Relu", ["x0"], ["out"], domain="of.mine")
    model.graph.node[0].CopyFrom(own)
    model.opset_import[0].version = 17
    model.opset_import.append(onnx.helper.make_opsetid("of.mine", 1))
    onnx.save_model(model, str(path))
    refused(str(path), "of.mine.Relu")


def test_huge_onnx_sizes_are_refused(tmp_path):
    path, x = tmp_path / "a.onnx", {"x0": random(2, 3)}
    huge = [
        onnx.helper.make_node("ConstantOfShape", ["n"], ["a"]),
        onnx.helper.make_node("Add", ["x0", "a"], ["out"]),
    ]
    refused(save(path, huge, x, {"n": integers(1 << 40, 3)}), "too large")
    many = [
        onnx.helper.make_node("Range", ["a", "n", "b"], ["c"]),
        onnx.helper.make_node("Add", ["x0", "c"], ["out"]),
    ]
    numbers = {"a": np.array(0), "b": np.array(1), "n": np.array(1 << 50)}
    refused(save(path, many, x, numbers), "too large")
    model = onnx.load(save(path, [node("Add", 2)], x, {"x1": random(2, 3)}))
    model.graph.initializer[0].dims[:] = [1 << 40, 1 << 40]
    onnx.save_model(model, str(path))
    refused(str(path), "not a valid ONNX file")


def test_external_tensor_outside_folder_is_refused(tmp_path):
    """A file may not refer to data outside its folder."""
    (tmp_path / "secret").write_bytes(bytes(24))
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "a.onnx"
    model = onnx.load(save(path, [node("Add", 2)], {"x0": random(2, 3)}, {"x1": random(2, 3)}))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    path.write_bytes(model.SerializeToString())
    refused(str(path), "not a valid ONNX file")


def test_missing_onnx_package_is_named_in_error(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ImportError, match=r"mpgluon\[onnx\]"):
        mx.onnx.import_model(str(tmp_path / "a.onnx"))
    with pytest.raises(ImportError, match=r"mpgluon\[onnx\]"):
        mx.onnx.export_model(nn.Dense(1), in_shapes=[(1, 1)])


@pytest.mark.parametrize(
    "function",
    [
        *[lambda x: x % 0.3, lambda x: 0.3 % x, lambda x: x % (x + 1)],
        *[lambda x: np.floor(x / 0.3) % 2, lambda x: (x % 0.3) * (x % 0.3)],
    ],
)
def test_nodes_may_share_a_constant(function, tmp_path):
    class Block(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return function(x)

    block, path = Block(), str(tmp_path / "net.onnx")
    block.hybridize()
    x = mx.nd.array(random(2, 3))
    expected = block(x).asnumpy()
    mx.onnx.export_model(block, in_shapes=[(2, 3)], onnx_file_path=path)
    symbol, args, _ = mx.onnx.import_model(path)
    (found,) = symbol.eval(ctx=mx.cpu(), data=x, **args)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5, atol=1e-6)
