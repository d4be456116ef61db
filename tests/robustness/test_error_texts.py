"""Error messages for user mistakes: the cause, its location and the remedy."""

import json
import os
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon._internal import hints as hint_tables
from mpgluon.base import MXNetError
from mpgluon.gluon import nn
from support.calls import text_of
from support.processes import ended, output_of

HERE = os.path.basename(__file__)


class Net(gluon.HybridBlock):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def hybrid_forward(self, F, x):
        return self.body(F, x)


def second_device(F, x):
    return x + x.as_in_context(mx.cpu(1))


def differentiate(F, x):
    return autograd.grad(F.sum(x * x), [x])[0]


def go_backward(F, x):
    y = F.sum(x * x)
    y.backward()
    return y


LINES = {  # body of a block -> parts of its error
    second_device: [
        "broadcast_add: the inputs are on different devices: lhs on cpu(0), rhs on cpu(1)",
        "rhs.as_in_context(mx.cpu(0))",
    ],
    differentiate: ["autograd.grad cannot be called inside a hybridized block", "Call it outside"],
    go_backward: [
        "backward cannot be called inside a hybridized block",
        "call the block without hybridize()",
    ],
}


@pytest.mark.parametrize("body, words", LINES.items())
def test_errors_name_the_outer_block_and_its_failing_line(body, words):
    """The block that the user calls is named once, with its failing line."""
    net = Net(body)
    net.hybridize()
    text = text_of(MXNetError, lambda: net(nd.ones((2, 3))))
    for word in [
        *words,
        f"{HERE}:{body.__code__.co_firstlineno + (2 if body is go_backward else 1)} in "
        f"{body.__name__}",
    ]:
        assert word in text, text
    assert text.count("Net") == 1 and text.count(HERE) == 1, text


def test_eager_device_error_names_block_and_remedy():
    text = text_of(MXNetError, lambda: Net(second_device)(nd.ones((2, 3))))
    assert "in block Net: " in text
    assert "rhs.as_in_context(mx.cpu(0))" in text
    assert text.count("Net") == 1


def test_array_used_after_its_trace_raises():
    kept = []
    net = Net(lambda F, x: (kept.append(x * 2), x)[1])
    net.hybridize()
    net(nd.ones((2, 3)))
    for use in (lambda: kept[-1].asnumpy(), lambda: kept[-1] + 1):
        assert "Return it from the block to use it outside" in text_of(MXNetError, use)


X = nd.ones((2, 4))
BACKEND = "unknown backend 'TensorRT'"


@pytest.mark.parametrize(
    "words, call",
    [
        (
            ["pipeline must be an mx.parallel.Pipeline", "not 3"],
            lambda net: net.hybridize(pipeline=3),
        ),
        (["exact must be True or False", "'no'"], lambda net: net.hybridize(exact="no")),
        (
            ["recompute must be a number of bytes", "64XB"],
            lambda net: net.hybridize(recompute="64XB"),
        ),
        ([BACKEND, "omit the argument"], lambda net: net.hybridize(backend="TensorRT")),
        ([BACKEND], lambda net: net.optimize_for(X, backend="TensorRT")),
        (
            ["unknown option 'static_aloc'", "'static_alloc'"],
            lambda net: net.optimize_for(X, static_aloc=True),
        ),
        ([BACKEND], lambda net: net(mx.sym.var("x")).optimize_for("TensorRT")),
        ([BACKEND], lambda net: net(mx.sym.var("x")).get_backend_symbol("TensorRT")),
        (["Dense", "must hold an NDArray"], lambda net: net(None)),
        (["must be NDArrays (nd.array converts", "ndarray"], lambda net: net(np.ones((2, 4)))),
        (
            ["Dense", "must hold an NDArray", "ndarray", "nd.array(x)"],
            lambda net: (net.hybridize(False), net(np.ones((2, 4)))),
        ),
        (["Net", "must hold an NDArray or a Symbol"], lambda net: Net(lambda F, x: x)(None)),
    ],
)
def test_invalid_options_raise_and_keep_the_network(words, call):
    net = nn.Dense(3)
    net.initialize()
    net.hybridize()
    text = text_of((MXNetError, ValueError), lambda: call(net))
    assert all(word in text for word in words), text
    assert net(nd.ones((2, 4))).shape == (2, 3)  # still works


class Sum(gluon.HybridBlock):
    def hybrid_forward(self, F, a, b):
        return a + b


def test_mixed_arrays_and_symbols_raise():
    for args in ((nd.ones(2), mx.sym.var("x")), (mx.sym.var("x"), nd.ones(2))):
        assert "must be all NDArrays or all Symbols" in text_of(
            ValueError, lambda args=args: Sum()(*args)
        )


# --- Parameter files ---


def network(hidden=3, layers=2, dtype="float32"):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(hidden, in_units=4, dtype=dtype))
        for _ in range(layers - 1):
            net.add(nn.Dense(2, in_units=hidden, dtype=dtype))
    return net


@pytest.fixture
def saved(tmp_path):
    net = network()
    net.initialize()
    net.save_parameters(str(tmp_path / "a.params"))
    net.collect_params().save(str(tmp_path / "names.params"))
    return str(tmp_path / "a.params")


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(layers=3), ["'2.weight' is missing", "allow_missing=True"]),
        (
            dict(layers=1),
            ["'1.weight'", "not present in the Block's ParameterDict", "ignore_extra=True"],
        ),
        (
            dict(hidden=5),
            ["'net_dense0_weight'", "'0.weight' of", "expected (5, 4) vs saved (3, 4)"],
        ),
        (
            dict(dtype="float64"),
            ["'0.weight' of", "expected float64 vs saved float32", "cast_dtype=True"],
        ),
    ],
)
def test_mismatched_parameter_files_raise(saved, options, words):
    net = network(**options)
    net.initialize(mx.init.One())
    kind = ValueError if options.get("layers") == 1 else AssertionError  # MXNet's types
    text = text_of(kind, lambda: net.load_parameters(saved))
    assert all(word in text for word in [*words, f"file '{saved}'"]), text
    assert (net[0].weight.data().asnumpy() == 1).all()  # unchanged
    arrays = nd.load(saved)
    text = text_of(kind, lambda: net.load_dict(arrays))
    assert all(word in text for word in [*words, "param_dict"]), text


def test_parameter_file_with_full_names_error_names_the_prefix(saved):
    names = os.path.join(os.path.dirname(saved), "names.params")
    network().load_parameters(names)
    assert f"'net_dense0_weight' of file '{names}'" in text_of(
        AssertionError, lambda: network(hidden=5).load_parameters(names)
    )
    other = nn.Dense(3, prefix="other_")
    text = text_of(AssertionError, lambda: other.load_parameters(names))
    assert f"file '{names}' holds parameters by their full names" in text
    assert "'other_weight'" in text
    assert "same prefix" in text
    other = nn.HybridSequential()
    other.add(nn.Dense(3))
    part = names.replace("names", "part")
    nd.save(part, {"weight": nd.ones((3, 4)), "bias": nd.ones((3,))})  # saved from a single Dense
    text = text_of(AssertionError, lambda: other.load_parameters(part))
    assert "another block ('weight', 'bias')" in text
    assert "'0.weight', '0.bias' in files of save_parameters" in text
    assert "with the same layers as the saved one" in text


def test_truncated_parameter_files_raise(saved, tmp_path):
    content = open(saved, "rb").read()
    short = str(tmp_path / "short.params")
    for size in (0, 3, 8, 20, len(content) // 2, len(content) - 1):
        with open(short, "wb") as file:
            file.write(content[:size])
        text = text_of(OSError, lambda: network().load_parameters(short))
        assert short in text and "damaged or was cut off" in text, text


# --- Symbols in JSON ---


def document():
    fc = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    return json.loads(mx.sym.concat(fc, mx.sym.relu(fc), dim=0, name="joined").tojson())


def node(number, **changes):
    def change(doc):
        for key, value in changes.items():
            doc["nodes"][number][key] = value

    return change


@pytest.mark.parametrize(
    "change, words",
    [
        (
            node(5, attrs={"num_args": "3", "dim": "0"}),
            ["joined: Concat has num_args=3, but the file has 2 inputs"],
        ),
        (
            node(5, attrs={"num_args": "1", "dim": "0"}),
            ["joined: Concat has num_args=1, but the file has 2 inputs"],
        ),
        (node(5, attrs={"num_args": "2000000000", "dim": "0"}), ["num_args=2000000000"]),
        (node(3, inputs=[[5, 0, 0], [1, 0, 0], [2, 0, 0]]), ["node 3: an input refers to node 5"]),
        (node(3, inputs=[[3, 0, 0], [1, 0, 0], [2, 0, 0]]), ["node 3: an input refers to node 3"]),
        (node(3, inputs=[[0, 0, 0]]), ["fc: FullyConnected needs 3 inputs, but the file has 1"]),
        (node(4, inputs=[[3, 7, 0]]), ["node 4: fc has no output 7"]),
        (node(4, inputs=[[-1, 0, 0]]), ["node 4: an input refers to node -1"]),
        (node(4, inputs=[[1.5, 0, 0]]), ["node 4: an input should be int, not float"]),
        (node(3, op="Frobnicate"), ["fc: this build has no op 'Frobnicate'", "mx.library.load"]),
        (
            node(3, attrs={"num_hidden": "9" * 50}),
            ["fc: FullyConnected: parameter num_hidden must be an integer"],
        ),
        (node(3, attrs={"num_hidden": "-4"}), ["num_hidden = -4 is outside its range"]),
        (lambda doc: doc.update(heads=[]), ["it has no heads"]),
        (lambda doc: doc.update(heads=[[50, 0, 0]]), ["a head refers to node 50"]),
        (lambda doc: doc.update(nodes={}), ["nodes should be list, not dict"]),
    ],
)
def test_invalid_symbol_file_errors_name_file_and_node(change, words, tmp_path):
    changed = document()
    change(changed)
    text = text_of(MXNetError, lambda: mx.sym.load_json(json.dumps(changed)))
    assert all(word in text for word in words), text
    path = str(tmp_path / "wrong-symbol.json")
    with open(path, "w") as file:
        json.dump(changed, file)
    for read in (mx.sym.load, lambda path: gluon.SymbolBlock.imports(path, ["data"])):
        assert text_of(MXNetError, lambda read=read: read(path)) == f"{path}: {text}"


def test_truncated_or_hostile_symbol_files_raise(tmp_path):
    content = json.dumps(document())
    for wrong in (
        *(content[:size] for size in (0, 1, 10, len(content) // 2, len(content) - 1)),
        "[" * 100000,
        '{"nodes":' * 100000,
    ):
        assert "invalid JSON of a symbol" in text_of(
            MXNetError, lambda wrong=wrong: mx.sym.load_json(wrong)
        )
    path = tmp_path / "bytes-symbol.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert f"{path} is not a text file" in text_of(MXNetError, lambda: mx.sym.load(str(path)))


def test_foreach_over_a_vector_passes_one_element_rows():
    """Holds eager, hybridized and as a symbol."""

    class Scan(gluon.HybridBlock):
        def hybrid_forward(self, F, x, s):
            assert x.shape == (3,)
            return F.contrib.foreach(
                lambda a, states: (F.elemwise_mul(a, states[0]), [states[0] * 2]), x, [s]
            )[0]

    x, s = nd.arange(3), nd.ones(1)
    want = [[0], [2], [8]]
    net = Scan()
    assert net(x, s).asnumpy().tolist() == want
    net.hybridize()
    assert net(x, s).asnumpy().tolist() == want
    x.attach_grad()
    with autograd.record():
        net(x, s).backward()
    assert x.grad.asnumpy().tolist() == [1, 2, 4]
    out, states = mx.sym.contrib.foreach(
        lambda a, states: (mx.sym.elemwise_mul(a, states[0]), [states[0] * 2]),
        mx.sym.var("x"),
        [mx.sym.var("s")],
    )
    assert mx.sym.Group([out, *states]).infer_shape(x=(3,), s=(1,))[1] == [(3, 1), (1,)]
    assert np.array_equal(out.bind(mx.cpu(), {"x": x, "s": s}).forward()[0].asnumpy(), want)


def _two_heads():
    x = nd.ones((2,))
    x.attach_grad()
    with autograd.record():
        y = x * 2
    autograd.backward([y], [y, y])


def _nothing_wants_a_gradient():
    x = nd.ones((2,))
    x.attach_grad("null")
    with autograd.record():
        y = x * 2
    y.backward()


def _dense(**options):
    net = nn.Dense(2, in_units=2, **options)
    net.initialize()
    return net


# Exception types of MXNet 1.9.1, which programs catch.
KINDS = {
    "grad_req": (KeyError, lambda: nd.ones((2,)).attach_grad("foo")),
    "grad_req of variables": (
        KeyError,
        lambda: autograd.mark_variables([nd.ones((2,))], [nd.ones((2,))], "foo"),
    ),
    "grad_req of a parameter": (AssertionError, lambda: gluon.Parameter("a", grad_req="foo")),
    "context": (KeyError, lambda: mx.Context("foo")),
    "context with a number": (KeyError, lambda: mx.Context("foo", 0)),
    "seed": (ValueError, lambda: mx.random.seed("a")),
    "options beside an optimizer": (
        AssertionError,
        lambda: gluon.Trainer(
            _dense().collect_params(), mx.optimizer.SGD(), {"learning_rate": 0.1}
        ),
    ),
    "optimizer": (ValueError, lambda: mx.optimizer.create("foo")),
    "metric": (AssertionError, lambda: mx.metric.create("foo")),
    "initializer": (AssertionError, lambda: mx.init.create("foo")),
    "nothing to clip": (AssertionError, lambda: gluon.utils.clip_global_norm([], 1)),
    "nothing to join": (AssertionError, lambda: nd.concatenate([])),
    "lengths of arrays": (
        AssertionError,
        lambda: gluon.data.ArrayDataset(nd.ones((3,)), nd.ones((2,))),
    ),
    "head gradients": (AssertionError, _two_heads),
    "no variables": (AssertionError, lambda: autograd.grad(nd.ones((2,)), [])),
    "no gradient wanted": (MXNetError, _nothing_wants_a_gradient),
    "save a tuple": (ValueError, lambda: nd.save("no-such-file", (nd.ones((2,)),))),
    "save a number": (ValueError, lambda: nd.save("no-such-file", 3)),
    "save a list of numbers": (TypeError, lambda: nd.save("no-such-file", [3])),
    "unknown argument of a symbol": (
        MXNetError,
        lambda: (mx.sym.var("a") + 1).infer_shape(a=(2,), b=(3,)),
    ),
    "several elements as a number": (TypeError, lambda: float(nd.ones((2,)))),
    "several elements as a truth value": (ValueError, lambda: bool(nd.ones((2,)))),
    "several elements as a scalar": (ValueError, lambda: nd.ones((2,)).asscalar()),
    "key": (ValueError, lambda: nd.ones((2,))["a"]),
    "index": (IndexError, lambda: nd.ones((2,))[2]),
    "value": (ValueError, lambda: nd.ones((2,)).__setitem__(slice(None), nd.ones((3,)))),
}


@pytest.mark.parametrize("case", KINDS)
def test_exception_types_match_mxnet(case):
    kind, call = KINDS[case]
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert len(text) > 10 and not (text[0] == text[-1] and text[0] in "'\""), (
        "a sentence, not a quoted key"
    )


# Foreign names outside the tables of mpgluon._internal.hints, near names and unknown names.
FOREIGN = {
    "nn.Conv2d": (lambda: nn.Conv2d, "use nn.Conv2D(channels, kernel_size"),
    "nn.MSELoss": (lambda: nn.MSELoss, "use mx.gluon.loss.L2Loss(weight=2)"),
    "nn.LSTM": (lambda: nn.LSTM, "use mx.gluon.rnn.LSTM"),
    "nd.cat": (lambda: nd.cat, "nd.concat"),
    "nd.randint": (lambda: nd.randint, "use nd.random.randint"),
    "sym.cat": (lambda: mx.sym.cat, "use sym.concat"),
    "sym.Linear": (lambda: mx.sym.Linear, "nn.Dense"),
    "random.manual_seed": (lambda: mx.random.manual_seed, "use mx.random.seed"),
    "mx.distributed": (lambda: mx.distributed, "dist_sync"),
    "mx.tensor": (lambda: mx.tensor, "nd.array"),
    "mx.zeros": (lambda: mx.zeros, "use nd.zeros"),
    "nd.softmx": (lambda: nd.softmx, "did you mean 'softmax'?"),
    "nn.Dens": (lambda: nn.Dens, "did you mean 'Dense'?"),
    "mx.gloun": (lambda: mx.gloun, "did you mean 'gluon'?"),
    "loss.L1los": (lambda: gluon.loss.L1los, "did you mean 'L1Loss'?"),
    "mx.float16": (lambda: mx.float16, "use dtype='float16'"),
    "x.requires_grad = True": (lambda: setattr(nd.ones(2), "requires_grad", True), "attach_grad"),
    "x.foo": (lambda: nd.ones((2,)).foo, "no attribute 'foo'"),
    "net.foo": (lambda: nn.Dense(2).foo, "no attribute 'foo'"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_names_of_other_frameworks_raise_with_a_hint(name):
    call, words = FOREIGN[name]
    assert words in text_of(AttributeError, call)


def two():
    return nd.ones((2, 2))


CALLS = {  # PyTorch idioms; the error names the equivalent here
    "x & y": (lambda: two() & two(), "use nd.logical_and(x, y)"),
    "x | True": (lambda: two() | True, "use nd.logical_or(x, y)"),
    "True ^ x": (lambda: True ^ two(), "use nd.logical_xor(x, y)"),
    "~x": (lambda: ~two(), "use nd.logical_not(x)"),
    "softmax(x, -1)": (lambda: nd.softmax(two(), -1), "give parameters by name, such as axis="),
    "concat((x, x), 0)": (lambda: nd.concat((two(), two()), 0), "such as dim=0"),
    "stack([x, x], 1)": (lambda: nd.stack([two(), two()], 1), "such as axis=1"),
    "zeros(3, 4)": (lambda: nd.zeros(3, 4), "such as nd.zeros((3, 4))"),
    "ones(3, 4)": (lambda: nd.ones(3, 4), "such as nd.ones((3, 4))"),
    "HybridSequential([a])": (lambda: nn.HybridSequential([nn.Dense(2)]), "net.add(block, ...)"),
    "DataLoader(generator)": (
        lambda: gluon.data.DataLoader((i for i in range(3)), 2),
        "must support len() and indexing, got generator; use list(data)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_other_frameworks_raise_with_a_hint(name):
    call, words = CALLS[name]
    assert words in text_of((TypeError, MXNetError), call)


class Reflected:
    def __rand__(self, other):
        return "reflected"


def test_bitwise_operators_defer_to_reflected_operators():
    assert two() & Reflected() == "reflected"


def test_unknown_layer_options_raise_with_a_hint():
    class Own(gluon.Block):
        def __init__(self, width, **kwargs):
            super().__init__(**kwargs)

    assert (
        text_of(TypeError, lambda: nn.Dense(2, activaton="relu"))
        == "Dense has no option 'activaton'; did you mean 'activation'?; it takes activation, "
        "bias_initializer, dtype, flatten, in_units, params, prefix, units, use_bias, "
        "weight_initializer"
    )
    assert "BatchNorm has no option 'num_features'; did you mean 'in_channels'?" in text_of(
        TypeError, lambda: nn.BatchNorm(num_features=3)
    )
    assert text_of(TypeError, lambda: Own(2, wdth=3)) == (
        "Own has no option 'wdth'; did you mean 'width'?; it takes params, prefix, width"
    )


@pytest.mark.parametrize("namespace", [nd, mx.sym])
def test_unknown_op_parameters_raise_with_a_hint(namespace):
    x = nd.ones((2, 3)) if namespace is nd else mx.sym.var("x")
    for call, name in (
        (lambda: namespace.sum(x, axs=1), "axis"),
        (lambda: namespace.sum(x, dim=1), "axis"),
        (lambda: namespace.Convolution(x, kernal=(1, 1), num_filter=2), "kernel"),
        (lambda: namespace.clip(x, min=0, a_max=1), "a_min"),
    ):
        assert f"; did you mean '{name}'?; it takes" in text_of((TypeError, MXNetError), call)


ONLY_OF_ARRAYS = {"getnnz", "group_adagrad_update", "calibrate_entropy"}  # missing in mx.sym


def test_names_with_hints_are_missing_and_raise_the_hint():
    x, net = nd.ones((2,)), nn.Dense(2)
    for thing, hints in (
        (x, hint_tables.ARRAY),
        (net, hint_tables.BLOCK),
        (nn, hint_tables.LAYERS),
        (nd, hint_tables.FUNCTIONS),
        (nd.contrib, {k: v for k, v in hint_tables.CONTRIB.items() if k not in ONLY_OF_ARRAYS}),
        (gluon, hint_tables.GLUON),
        (gluon.data, hint_tables.DATA),
        (mx.optimizer, hint_tables.OPTIMIZERS),
        (mx.sym.contrib, hint_tables.CONTRIB),
        (autograd, hint_tables.AUTOGRAD),
        (gluon.loss, hint_tables.LOSSES),
        (gluon.Trainer([], "sgd"), hint_tables.TRAINER),
    ):
        for name, hint in hints.items():
            assert hint in text_of(AttributeError, lambda: getattr(thing, name))
            assert name not in dir(thing)


def test_foreign_name_hints_keep_attribute_access_fast():
    """Neither a class __getattr__ nor a materialized __dict__, both of which disable CPython's fast
    attribute lookup."""
    assert not hasattr(gluon.Block, "__getattr__")
    assert not hasattr(gluon.Parameter, "__getattr__")
    assert not hasattr(nd.NDArray, "__getattr__")
    net = nn.Dense(2)
    assert "Block.parameters" not in text_of(AttributeError, lambda: gluon.Block.parameters)
    assert "collect_params" in text_of(AttributeError, lambda: gluon.Block.parameters)
    net.parameters, net.fit = 3, "own"  # user attributes
    assert (net.parameters, net.fit) == (3, "own") and "parameters" in dir(net)
    with pytest.raises(AttributeError) as caught:
        net.modules
    assert caught.value.name == "modules" and caught.value.obj is net


@pytest.mark.parametrize(
    "module",
    [mx, nd, mx.sym, mx.gluon, nn, mx.parallel, mx.optimizer, mx.metric],
    ids=lambda module: module.__name__,
)
def test_dir_lists_only_existing_names(module):
    for name in dir(module):
        getattr(module, name)
    assert all(hasattr(nd.ones((2,)), name) for name in dir(nd.ones((2,))))
    assert dir(mx.parallel) == sorted(mx.parallel.__all__)


def test_missing_super_init_raises():
    class NoSuper(gluon.HybridBlock):
        def __init__(self):
            self.layer = nn.Dense(2)

    class NoSuperNoLayer(gluon.Block):
        def __init__(self):
            self.number = 2

    assert "NoSuper.__init__ must call super().__init__()" in text_of(AttributeError, NoSuper)
    assert "NoSuperNoLayer.__init__ must call super().__init__()" in text_of(
        AttributeError, lambda: NoSuperNoLayer()(nd.ones((2,)))
    )


def test_trainer_reports_optimizer_errors_first():
    net = nn.Dense(2)  # not initialized
    assert "did you mean 'adam'?" in text_of(ValueError, lambda: gluon.Trainer(net, "adamm"))
    text = text_of(TypeError, lambda: gluon.Trainer(net, "adam", {"learning_rat": 0.1}))
    assert "no option 'learning_rat'; did you mean 'learning_rate'?" in text and "beta1" in text
    assert "SGD has no option 'lr'; did you mean 'learning_rate'?; it takes" in text_of(
        TypeError, lambda: gluon.Trainer(net, "sgd", {"lr": 0.1})
    )
    assert "did you mean 'accuracy'?" in text_of(ValueError, lambda: mx.metric.create("acuracy"))
    net = _dense()
    assert gluon.Trainer(net, "sgd")._params == gluon.Trainer(net.collect_params(), "sgd")._params


NO_KERNELS = """
import mpgluon as mx
try:
    mx.nd.ones(1, ctx=mx.gpu(0)).wait_to_read()
except mx.MXNetError as error:
    print(error)
"""


def test_gpu_error_without_kernels_suggests_cpu_devices():
    library = os.path.join(os.path.dirname(mx.__file__), "_cuda.so")
    if os.path.exists(library) or "MPGLUON_CUDA_LIBRARY" in os.environ:
        pytest.skip("there is a library of GPU kernels")
    assert "python -m mpgluon.port --write --cpu" in output_of(NO_KERNELS)


def test_data_of_another_dtype_raises_with_both_conversions():
    for layer, shape in (
        (nn.Dense(2, in_units=3), (1, 3)),
        (nn.Conv2D(2, 1, in_channels=3), (1, 3, 2, 2)),
    ):
        layer.initialize()
        assert (
            "convert the data with x.astype('float32'), or the network with net.cast('float64')"
            in text_of(MXNetError, lambda: layer(nd.ones(shape, dtype="float64")))
        )


@pytest.mark.parametrize("rows", [2, 3])
def test_mask_without_the_axis_of_classes_names_expand_dims(rows):
    """Masks (batch, time) of square batches broadcast to the loss, so they warn."""
    net, loss = nn.Dense(4, in_units=3, flatten=False), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize()
    step = mx.parallel.TrainStep(net, loss, None, mx.parallel.Pipeline(1))
    x, labels, mask = nd.ones((rows, 3, 3)), nd.zeros((rows, 3)), nd.ones((rows, 3))
    if rows == 3:
        with pytest.warns(UserWarning, match=r"mask\.expand_dims\(-1\)"):
            step(x, [labels, mask])
    else:
        for call in (lambda: step(x, [labels, mask]), lambda: loss(net(x), labels, mask)):
            assert (
                "(2, 3), but the elementwise loss has shape (2, 3, 1); pass mask.expand_dims(-1)"
                in (text_of(MXNetError, call))
            )
    same = step(x, [labels, mask.expand_dims(-1)])
    assert (same == loss(net(x), labels)).asnumpy().all()


def test_one_hot_labels_raise_and_suggest_sparse_label_false():
    pred, loss = nd.ones((3, 4)), gluon.loss.SoftmaxCrossEntropyLoss()
    assert "sparse_label=False" in text_of(
        ValueError, lambda: loss(pred, nd.one_hot(nd.array([0, 1, 2]), 4))
    )
    assert loss(nd.ones((3, 1)), nd.zeros((3,))).shape == (3,)


@pytest.mark.parametrize(
    "labels, place, value",
    [("[0, 4, -1]", 1, "4"), ("[0, 1, -1]", 2, "-1"), ("[float('nan'), 1, 2]", 0, "nan")],
)
def test_out_of_range_labels_raise_under_the_sync_engine(labels, place, value):
    code = (
        "import mpgluon as mx; mx.gluon.loss.SoftmaxCELoss()(mx.nd.ones((3, 4)), "
        f"mx.nd.array({labels}))"
    )
    assert (
        f"there are 4 classes, 0 to 3, but label[{place}] is {value}"
        in ended(code, MPGLUON_ENGINE="sync").stderr
    )


def test_out_of_range_labels_of_a_head_raise_under_the_sync_engine():
    code = (
        "import mpgluon as mx; head = mx.gluon.nn.Dense(4, flatten=False); head.initialize(); "
        "loss = mx.gluon.loss.LinearCrossEntropyLoss(head); x = mx.nd.ones((2, 3)); "
        "loss(x, mx.nd.array([0, -100])); loss(x, mx.nd.array([3, 4]))"
    )
    assert (
        "LinearCrossEntropyLoss: there are 4 classes, 0 to 3, but label[1] is 4"
        in ended(code, MPGLUON_ENGINE="sync").stderr
    )


def test_boolean_like_float_index_warns():
    x = nd.array([[1, 2, 3], [4, 5, 6]])
    with pytest.warns(UserWarning, match="boolean_mask"):
        x[x > 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x[nd.array([0, 1])], x[nd.array([1, 1, 0, 1])], x[nd.array([0, 1, 1], dtype="int32")]


def test_files_of_other_formats_raise_with_a_hint(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY" + bytes(100))
    assert "for that format use" in text_of(MXNetError, lambda: nd.load(tmp_path / "a.npy"))
    assert "torch.save" in text_of(
        MXNetError, lambda: _dense().save_parameters(str(tmp_path / "b.pt"))
    )
    assert "for that format" not in text_of(MXNetError, lambda: nd.load(tmp_path / "missing.npy"))


@pytest.mark.parametrize("limit, kind", [(-5, ValueError), ("abc", TypeError), (1.5, TypeError)])
def test_invalid_memory_limits_raise(limit, kind):
    assert "the limit must be a number of bytes" in text_of(
        kind, lambda: mx.context.set_memory_limit(mx.cpu(0), limit)
    )


def test_object_reprs_show_their_arguments():
    data = gluon.data.ArrayDataset(nd.ones((3, 2)), nd.ones((3,)))
    trainer = gluon.Trainer(_dense(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    pipeline = mx.parallel.Pipeline(2)
    shown = {
        "Trainer(SGD(learning_rate=0.1, momentum=0.9, wd=0.0), parameters: 2, on cpu(0))": trainer,
        "Adam(learning_rate=0.001, wd=0.0)": mx.optimizer.Adam(),
        "FactorScheduler(step=3, factor=0.5, base_lr=0.01)": mx.lr_scheduler.FactorScheduler(
            3, 0.5
        ),
        "Accuracy(name='accuracy')": mx.metric.Accuracy(),
        "Accuracy(axis=2, name='a')": mx.metric.Accuracy(axis=2, name="a"),
        "TopKAccuracy(top_k=2, name='top_k_accuracy')": mx.metric.TopKAccuracy(2),
        "CrossEntropy(eps=0.1, name='ce')": mx.metric.CrossEntropy(0.1, "ce"),
        "CompositeEvalMetric([MAE(name='mae')])": mx.metric.create(["mae"]),
        "CustomMetric(max, name='max')": mx.metric.CustomMetric(max),
        "Updater(Adam(learning_rate=0.001, wd=0.0), states: 0)": mx.optimizer.get_updater(
            mx.optimizer.Adam()
        ),
        "Xavier(rnd_type='uniform', factor_type='avg', magnitude=3)": mx.init.Xavier(),
        "Mixed(['.*bias', '.*'], [Zero(), One()])": mx.init.Mixed(
            [".*bias", ".*"], [mx.init.Zero(), mx.init.One()]
        ),
        "Load(arrays: 1, default_init=Zero())": mx.init.Load({"a": nd.ones(1)}, mx.init.Zero()),
        "SequentialSampler(5, start=2)": gluon.data.SequentialSampler(5, 2),
        "RandomSampler(5)": gluon.data.RandomSampler(5),
        "FilterSampler(samples: 3)": gluon.data.FilterSampler(lambda sample: True, data),
        "BatchSampler(SequentialSampler(5), 2, last_batch='keep')": gluon.data.BatchSampler(
            gluon.data.SequentialSampler(5), 2
        ),
        "IntervalSampler(6, 3, rollover=True)": gluon.data.IntervalSampler(6, 3),
        "L2Loss(batch_axis=0, w=1.0)": gluon.loss.L2Loss(),
        "ArrayDataset(samples: 3)": data,
        "Transformed(samples: 3)": data.transform(lambda *sample: sample),
        "Subset(samples: 2)": data.take(2),
        "DataLoader(ArrayDataset(samples: 3), batches: 2)": gluon.data.DataLoader(
            data, batch_size=2
        ),
        "NDArrayIter(data (3, 2), softmax_label (3,); batch_size=2)": mx.io.NDArrayIter(
            nd.ones((3, 2)), nd.ones((3,)), batch_size=2
        ),
        f"TrainStep(HybridSequential, L2Loss, {trainer!r}, {pipeline!r})": mx.parallel.TrainStep(
            nn.HybridSequential(), gluon.loss.L2Loss(), trainer, pipeline
        ),
    }
    for text, thing in shown.items():
        assert repr(thing) == text


def test_html_reprs_show_layers_and_arrays():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=2), nn.Dropout(0.5), nn.Dense(2))
    assert ">?<" in net._repr_html_()  # a deferred shape
    net.initialize(ctx=mx.cpu(1))
    net(nd.zeros((1, 2), ctx=mx.cpu(1)))
    page = net._repr_html_()
    assert "0: Dense(2 -&gt; 3, linear)" in page and "cpu(1)" in page
    assert ">17<" in page and ">68<" in page  # total parameters and bytes
    shown = nd.arange(1000).reshape((10, 100))._repr_html_()
    assert "..." in shown and shown.endswith("<div>NDArray 10 × 100, float32, cpu(0)</div>")
    assert "<pre>[]</pre>" in nd.zeros((0, 3))._repr_html_()
    assert not hasattr(mx.sym.var("x"), "_repr_html_")
