"""Unknown names and options and values of the wrong type: errors list the valid ones."""

import importlib
import importlib.util
import inspect
import pkgutil

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, gluon, nd
from mpgluon.base import MXNetError
from mpgluon.gluon import nn
from support.calls import raises, text_of

# Ops of MXNet 1.9.1 added last or missing: those available work under mx.nd and mx.sym, and the
# error for the others names an alternative.
LATER = """
    op.cast_storage
    contrib.SparseEmbedding contrib.calibrate_entropy contrib.count_sketch contrib.dequantize
    contrib.dgl_adjacency contrib.dgl_csr_neighbor_non_uniform_sample
    contrib.dgl_csr_neighbor_uniform_sample contrib.dgl_graph_compact contrib.dgl_subgraph
    contrib.edge_id contrib.getnnz contrib.group_adagrad_update contrib.hawkesll contrib.quantize
    contrib.quantize_asym contrib.quantize_v2 contrib.quantized_act contrib.quantized_batch_norm
    contrib.quantized_concat contrib.quantized_conv contrib.quantized_elemwise_add
    contrib.quantized_elemwise_mul contrib.quantized_embedding contrib.quantized_flatten
    contrib.quantized_fully_connected contrib.quantized_pooling contrib.quantized_rnn
    contrib.requantize
""".split()
PLACES = {
    "op": [(mx.nd, "op"), (mx.nd, None), (mx.sym, "op"), (mx.sym, None)],
    "contrib": [
        (mx.nd, "contrib"),
        (mx.sym, "contrib"),
        *((mx.contrib, name) for name in ("nd", "ndarray", "sym", "symbol")),
    ],
}


@pytest.mark.parametrize("op", LATER)
def test_missing_ops_raise_with_an_alternative(op):
    space, name = op.split(".")
    for package, module in PLACES[space]:
        module = getattr(package, module) if module else package
        try:
            assert callable(getattr(module, name))
        except AttributeError as error:
            assert f"'{name}': this op of MXNet is not available; " in str(error)
    graph = {
        "nodes": [{"op": f"_contrib_{name}", "name": "one", "attrs": {}, "inputs": []}],
        "arg_nodes": [],
        "heads": [[0, 0, 0]],
    }
    if f"_contrib_{name}" not in _core.ops() and space == "contrib":
        with pytest.raises(MXNetError, match=f"this build has no op '_contrib_{name}'; "):
            mx.symbol.fromjson(str(graph).replace("'", '"'))


def test_mxnet_op_aliases_exist_or_raise_with_a_hint():
    for package in (mx.nd, mx.sym):
        assert package.op.Custom is package.Custom
    assert nd.op.CachedOp is nd.CachedOp
    raises(AttributeError, r"use mx\.image\.imdecode", lambda: nd.imdecode)


@pytest.mark.parametrize(
    "name, way",
    [
        ("notebook", "mx.callback"),
        ("contrib.svrg_optimization", "mx.mod.Module"),
        ("operator.NumpyOp", "mx.operator.CustomOp"),
        ("test_utils.simple_forward", "Symbol.eval"),
    ],
)
def test_names_left_out_of_mxnet_raise_with_an_alternative(name, way):
    *outer, last = name.split(".")
    module = importlib.import_module(".".join(["mpgluon", *outer]))
    raises(AttributeError, f"no attribute '{last}'; use {way}", lambda: getattr(module, last))
    assert last not in dir(module)


def classes_of(base):
    # The library of GPU kernels is in the package but is not a Python module.
    left_out = {"mpgluon._cuda"}
    if importlib.util.find_spec("torch") is None:
        left_out.add("mpgluon.interop._gluon_module")
    for module in pkgutil.walk_packages(mx.__path__, "mpgluon."):
        if "__main__" not in module.name and module.name not in left_out:
            importlib.import_module(module.name)
    found, waiting = set(), [base]
    while waiting:
        kind = waiting.pop()
        ours = kind.__module__.startswith("mpgluon.") and "parallel" not in kind.__module__
        if kind not in found and ours:
            found.add(kind)
            waiting += kind.__subclasses__()
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


@pytest.mark.parametrize("base", [gluon.Block, mx.optimizer.Optimizer])
def test_blocks_and_optimizers_name_unknown_options(base):
    classes = [kind for kind in classes_of(base) if not kind.__name__.startswith("_")]
    assert len(classes) > 10
    for kind in classes:
        required = {
            p.name: "relu" if p.name == "activation" else 1
            for p in list(inspect.signature(kind.__init__).parameters.values())[1:]
            if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD
        }
        text = text_of(TypeError, lambda: kind(**required, prefxi=1))
        assert text.startswith(f"{kind.__name__} has no option 'prefxi'")


def test_other_constructors_name_unknown_options():
    kinds = [gluon.Trainer, gluon.data.DataLoader]
    for base in (gluon.data.Sampler, mx.lr_scheduler.LRScheduler):
        kinds += [kind for kind in classes_of(base) if not kind.__name__.startswith("_")]
    assert len(kinds) > 8
    for kind in kinds:
        named = f"{kind.__name__}( has no option 'prefxi'|\\(\\) takes no arguments)"
        raises(TypeError, named, lambda: kind(prefxi=1))
    for name, near, call in (
        ("lr", "optimizer_params", lambda: gluon.Trainer({}, "sgd", lr=0.1)),
        ("drop_last", "last_batch", lambda: gluon.data.DataLoader([1, 2], 2, drop_last=True)),
        # An unknown name in place of a required one
        ("out_channels", "channels", lambda: nn.Conv2D(out_channels=4, kernel_size=3)),
        ("in_features", "in_units", lambda: nn.Dense(in_features=3, out_features=4)),
    ):
        raises(TypeError, f"has no option '{name}'; did you mean '{near}'", call)
    assert list(inspect.signature(gluon.Trainer).parameters)[0] == "params"


def test_samplers_with_other_bases_are_constructed():
    class Numbers(gluon.data.Sampler, tuple):
        __iter__, __len__ = tuple.__iter__, tuple.__len__

    class Once:
        def __new__(cls, number):
            return super().__new__(cls)

    class Own(gluon.data.Sampler, Once):
        def __init__(self, number):
            self.number = number

    assert list(Numbers([1, 2, 3])) == [1, 2, 3] and Own(3).number == 3

    class Plain(gluon.data.Sampler):
        pass

    raises(TypeError, r"Plain\(\) takes no arguments", lambda: Plain(3))


@pytest.mark.parametrize(
    "module, wrong, right",
    [
        (mx.init, "Xaver", "Xavier"),
        (mx.metric, "Acuracy", "Accuracy"),
        (mx.lr_scheduler, "FactorSheduler", "FactorScheduler"),
        (mx.io, "NDArrayIterator", "NDArrayIter"),
        (gluon.data, "Dataloader", "DataLoader"),
        (gluon.rnn, "LSTMcel", "LSTMCell"),
        (gluon.utils, "split_and_loud", "split_and_load"),
        (mx.kv, "creat", "create"),
    ],
)
def test_unknown_module_attributes_suggest_the_nearest(module, wrong, right):
    with pytest.raises(AttributeError, match=f"no attribute '{wrong}'; did you mean '{right}'"):
        getattr(module, wrong)


def test_hints_offer_only_accepted_options():
    class Own(gluon.Block):
        def __init__(self, width):
            super().__init__()

    for call, text in (
        (
            lambda: Own(2, widht=3),
            "Own has no option 'widht'; did you mean 'width'?; it takes width",
        ),
        (lambda: Own(2, prefix="a"), "Own has no option 'prefix'; it takes width"),
        (lambda: nn.LayerNorm(eps=1e-3), "LayerNorm has no option 'eps'; did you mean 'epsilon'?"),
    ):
        assert text_of(TypeError, call).startswith(text)
    assert str(inspect.signature(gluon.Block)).startswith("(prefix:")


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda **more: nd.zeros((2, 3), **more), "zeros"),
        (lambda **more: nd.zeros((2, 3), stype="csr", **more), "zeros"),
        (lambda **more: nd.sparse.zeros("row_sparse", (2, 3), **more), "zeros"),
        (lambda **more: nd.sparse.zeros("default", (2, 3), **more), "zeros"),
        (lambda **more: nd.ones(2, **more), "ones"),
        (lambda **more: nd.eye(3, **more), "eye"),
    ],
)
def test_functions_name_unknown_options(call, text):
    for option, near in (("device", "ctx"), ("dtyp", "dtype"), ("ctxt", "ctx")):
        wanted = (
            rf"{text}(\(\))? has no (option|parameter) '{option}'; did you mean '{near}'\?; it "
        )
        raises(TypeError, wanted, lambda: call(**{option: None}))


CELL = gluon.contrib.rnn.Conv2DLSTMCell
NEAR = {
    "kvstore": (lambda: mx.kv.create("devise"), "device"),
    "model": (lambda: gluon.model_zoo.vision.get_model("resnet50"), "resnet50_v"),
    "optimizer": (lambda: mx.optimizer.create("adamm"), "adam"),
    "metric": (lambda: mx.metric.create("acuracy"), "accuracy"),
    "initializer": (lambda: mx.init.create("xavir"), "xavier"),
    "Activation": (lambda: nn.Activation("rulu"), "relu"),
    "Dense": (lambda: nn.Dense(3, activation="rulu"), "relu"),
    "Conv": (lambda: nn.Conv2D(3, 3, activation="sigmiod"), "sigmoid"),
    "Deformable": (lambda: gluon.contrib.cnn.DeformableConvolution(3, activation="rulu"), "relu"),
    "RNN": (lambda: gluon.rnn.RNN(3, activation="rulu"), "relu"),
    "RNNCell": (lambda: gluon.rnn.RNNCell(3, activation="tnah"), "tanh"),
    "LSTMCell": (lambda: gluon.rnn.LSTMCell(3, recurrent_activation="sigmoyd"), "sigmoid"),
    "Conv2DLSTMCell": (lambda: CELL((3, 8, 8), 3, 3, 3, activation="rulu"), "relu"),
}


@pytest.mark.parametrize("case", NEAR)
def test_unknown_names_suggest_the_nearest(case):
    call, name = NEAR[case]
    assert f"; did you mean '{name}" in text_of((ValueError, AssertionError), call)


def test_names_that_are_not_strings_raise():
    array = nd.ones((2,))
    for call in (
        lambda: mx.kv.create(array),
        lambda: gluon.model_zoo.vision.get_model(array),
        lambda: mx.optimizer.create(array),
        lambda: mx.metric.create(array),
        lambda: mx.init.create(array),
        lambda: nn.Dense(2, activation=nn.LeakyReLU(0.1)),
    ):
        raises((TypeError, AssertionError), "NDArray|LeakyReLU", call)


def test_arrays_as_parameters_are_named_by_shape_and_dtype():
    """Errors of every op show the shape and dtype of such an array, not its values."""
    values = nd.ones((2, 2)), nd.ones((20,)) / 2
    told = 0
    for name, op in _core.ops().items():
        about = op.describe()
        inputs = [values[0]] * sum(not one["optional"] for one in about["inputs"])
        for param in about["params"]:
            for wrong in (values[1], values[1].asnumpy()):
                try:
                    op(*inputs, **{param["name"]: wrong})
                except Exception as error:  # only the message is checked
                    assert "<NDArray" not in str(error) and "0.5" not in str(error), name
                    told += "of shape (20,) and dtype float32" in str(error)
    assert told > 1000


def test_errors_do_not_print_large_values():
    for call in (
        lambda: nd.zeros((2,), dtype=nd.ones((2,))),
        lambda: nd.zeros((2,), dtype="x" * 5000),
        lambda: nd.ones((2,)).astype(np.ones(2000)),
        lambda: nd.sum(nd.ones((2,)), axis="x" * 5000),
        lambda: nd.ones((2,))["x" * 5000],
        lambda: nd.ones((2,))[(0,) * 5000],
    ):
        text = text_of((TypeError, ValueError, IndexError), call)
        assert len(text) < 400 and "<NDArray" not in text


def test_errors_of_ops_without_inputs_name_the_values():
    for call, end in (
        (lambda: nd.arange(0, 1, 0), "step must not be 0"),
        (lambda: nd.random.randint(5, 2), "they are 5 and 2"),
        (lambda: nd.random.uniform(dtype="int8"), "of dtype int8"),
        (lambda: nd.random.uniform(3, 2), "they are 3 and 2"),
        (lambda: nd.zeros((-3, 2)), "negative dimension -3 in shape (?, 2)"),
    ):
        assert text_of(MXNetError, call).endswith(end)


@pytest.mark.parametrize("name", mx.nd.random.__all__)
def test_draws_with_zero_parameters_give_limits_or_raise(name):
    """Returns the limit distribution as in docs/porting.md, or raises MXNetError."""
    for space in (nd, mx.sym):
        function = getattr(space.random, name)
        count = sum(
            parameter.name
            in ("low", "high", "loc", "scale", "lam", "alpha", "beta", "k", "p", "mu")
            for parameter in inspect.signature(function).parameters.values()
        )
        if not count or name == "randn":
            continue
        for zero in (0, 0.0, np.float32(0)):
            try:
                drawn = function(*[zero] * count, shape=(2,))
                drawn = drawn.eval()[0] if space is mx.sym else drawn
                assert (drawn.asnumpy() == 0).all()
            except MXNetError as error:
                assert name in ("randint", "negative_binomial")
                assert "0" in str(error)
    assert nd.random.exponential(0, shape=(3,)).asnumpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda value: mx.init.Xavier(magnitude=value),
        lambda value: mx.init.Uniform(value),
        lambda value: mx.init.Normal(value),
    ],
)
def test_initializers_with_negative_widths_raise(make):
    for value in (-3, float("nan")):
        raises(ValueError, "must be at least 0, .*got", lambda: make(value))
    make(0)
