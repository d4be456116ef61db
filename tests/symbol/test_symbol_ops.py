"""Every op as a symbol node, inferred, saved as JSON, loaded and run, equals the imperative
function."""

import json

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core
from mpgluon.symbol._functions import Function
from samples.base import all_samples
from support.devices import on

SAMPLES = all_samples()
FLAGS = {name: _core.get_op(name).describe()["flags"] for name in SAMPLES}
CASES = [
    pytest.param(name, sample, id=f"{name}-{i}")
    for name, rows in SAMPLES.items()
    if not {"dynamic", "hidden"} & set(FLAGS[name]) and name != "reset_arrays"  # has no outputs
    for i, sample in enumerate(rows[:2])
]


@pytest.mark.parametrize("name, sample", CASES)
def test_symbol_equals_imperative(name, sample):
    arrays = [
        mx.nd.array(values, dtype=sample.dtypes[0] if sample.made(i) else values.dtype)
        for i, values in enumerate(sample.arrays(sample.dtypes[0]))
    ]
    symbol = Function(_core.get_op(name), name)(
        *[mx.sym.var(f"in{i}") for i in range(len(arrays))], **(sample.params or {})
    )
    loaded = mx.sym.load_json(symbol.tojson(remove_amp_cast=False))
    assert loaded.tojson() == symbol.tojson()
    assert len(loaded.list_inputs()) == len(arrays)
    given = {f"in{i}": array for i, array in enumerate(arrays)}
    copies = {key: array.copy() for key, array in given.items()}
    mx.random.seed(5)
    with mx.autograd.train_mode() if sample.train else mx.autograd.predict_mode():
        expected = _core.get_op(name)(*copies.values(), **(sample.params or {}))
    expected = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    executor = loaded.bind(
        on(0),
        {key: given[key] for key in loaded.list_arguments()},
        aux_states={key: given[key] for key in loaded.list_auxiliary_states()},
    )
    mx.random.seed(5)
    outputs = executor.forward(is_train=sample.train)
    assert len(outputs) == len(expected)
    for got, want in zip(outputs, expected):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got.asnumpy(), want.asnumpy())
    for key in given:  # arrays that the op writes are equal
        np.testing.assert_array_equal(given[key].asnumpy(), copies[key].asnumpy())
    if all(0 not in array.shape for array in (*arrays, *outputs)):
        shapes = loaded.infer_shape(
            **{key: array.shape for key, array in given.items() if array.shape}
        )[1]
        if shapes is not None:
            assert shapes == [out.shape for out in outputs]
        types = loaded.infer_type(**{key: array.dtype for key, array in given.items()})[1]
        if types is not None:
            assert types == [out.dtype for out in outputs]


@pytest.mark.parametrize(
    "name, params",
    [
        ("uniform", (1.0, 2.0)),
        ("normal", (5.0, 0.1)),
        ("gamma", (2.0, 3.0)),
        ("exponential", (4.0,)),
        ("poisson", (3.0,)),
    ],
)
def test_like_draws_equal_draws_of_that_shape(name, params):
    """``random.NAME_like`` has the draws of ``random.NAME``, in mx.nd and in mx.sym."""
    data, x = mx.nd.zeros((2, 3)), mx.sym.var("x")
    draws = []
    for draw in (
        lambda: getattr(mx.nd.random, name)(
            *(1 / p if name == "exponential" else p for p in params), shape=(2, 3)
        ),
        lambda: getattr(mx.nd.random, name + "_like")(data, *params),
        lambda: getattr(mx.sym.random, name + "_like")(x, *params).eval(x=data)[0],
    ):
        mx.random.seed(3)
        draws.append(draw().asnumpy())
    assert np.array_equal(draws[0], draws[1]) and np.array_equal(draws[0], draws[2])


def test_correlation_infers_either_input_from_the_other():
    correlation = mx.sym.Correlation(mx.sym.var("a"), mx.sym.var("b"), max_displacement=1)
    assert correlation.infer_type(b="float16")[0] == [np.float16] * 2
    shapes, (out,), _ = correlation.infer_shape(b=(1, 2, 5, 6))
    assert shapes == [(1, 2, 5, 6)] * 2 and out == (1, 9, 3, 4)


def test_histogram_symbol_counts_values():
    x, edges = mx.sym.var("x"), mx.sym.var("edges")
    values = np.array([0.1, 0.5, 0.9, 3, np.nan], "float32")
    bounds = np.array([0, 0.5, 1], "float32")
    for symbol in (mx.sym.histogram(x, bins=2, range=(0, 1)), mx.sym.histogram(x, bins=edges)):
        given = {"x": values, "edges": bounds}
        arrays = {name: mx.nd.array(given[name]) for name in symbol.list_arguments()}
        counts, found = symbol.eval(**arrays)
        assert counts.asnumpy().tolist() == [1, 2] and (found.asnumpy() == bounds).all()
    with pytest.raises(ValueError, match="range"):
        mx.sym.histogram(x, bins=2)
    with pytest.raises(mx.MXNetError, match="low < high"):
        mx.sym.histogram(x, bins=2, range=(1, 1)).infer_shape(x=(3,))


def test_histogram_counts_the_extremes_of_its_range():
    x = mx.sym.var("x")
    for bins in range(1, 30):
        values = np.random.default_rng(bins).normal(size=6).round(3)
        limits = values.min(), values.max()
        counts, edges = mx.sym.histogram(x, bins=bins, range=limits).eval(
            x=mx.nd.array(values, dtype="float64")
        )
        assert counts.asnumpy().sum() == 6
        np.testing.assert_allclose(edges.asnumpy(), np.linspace(*limits, bins + 1), atol=1e-15)


@pytest.mark.parametrize("name", ["adamw", "mp_adamw", "lamb", "mp_lamb"])
def test_multi_weight_update_symbols_equal_arrays(name):
    """Compares with the same update of arrays."""
    kinds = ["weight", "grad", "mean", "var"] + ["copy"] * name.startswith("mp")
    values = np.random.RandomState(0).uniform(0.1, 1, (len(kinds), 2, 3)).astype("float32")
    if name.startswith("mp"):
        values[4] = values[0]
    rates = {"lrs": [0.1, 0.2], "wds": [0.01, 0]}
    rates.update(
        {"step_count": [1, 3]} if "lamb" in name else {"etas": [1, 0.5], "rescale_grad": 1.0}
    )
    arrays = [[mx.nd.array(one) for one in both] for both in values]
    expected = getattr(mx.nd.contrib, f"multi_{name}_update")(*arrays, **rates)
    names = [[f"{kind}{i}" for i in range(2)] for kind in kinds]
    symbols = [[mx.sym.var(one) for one in both] for both in names]
    group = getattr(mx.sym.contrib, f"multi_{name}_update")(*symbols, **rates)
    given = {one: mx.nd.array(x) for both, xs in zip(names, values) for one, x in zip(both, xs)}
    states = {one: given[one] for one in group.list_auxiliary_states()}
    bound = {one: given[one] for one in group.list_arguments()}
    results = group.bind(mx.cpu(), bound, aux_states=states).forward()
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.asnumpy(), wanted.asnumpy(), rtol=1e-6)
    for both, kept in zip(names[2:4], arrays[2:4]):
        for one, array in zip(both, kept):
            np.testing.assert_allclose(states[one].asnumpy(), array.asnumpy(), rtol=1e-6)


def test_group_adagrad_keeps_one_history_per_row():
    weight, history = mx.nd.array([[1, 2], [3, 4]]), mx.nd.array([[0], [3]])
    grad = mx.nd.array([[2, 2], [30, 30]])
    mx.nd.contrib.group_adagrad_update(
        weight, grad, history, lr=1, rescale_grad=0.5, clip_gradient=1, epsilon=0, out=weight
    )
    assert history.asnumpy().tolist() == [[1], [4]]
    assert weight.asnumpy().tolist() == [[0, 1], [2.5, 3.5]]
    with pytest.raises(mx.MXNetError, match="history"):
        mx.nd.contrib.group_adagrad_update(weight, grad, weight, lr=1)


WITH_OPTIONAL_INPUTS = (
    "Convolution Deconvolution FullyConnected softmax CTCLoss SequenceMask SequenceLast "
    "SequenceReverse _contrib_attention _contrib_route _contrib_dispatch _contrib_combine "
    "_contrib_quantized_dot _contrib_dequantize_weight _contrib_DeformableConvolution "
    "_contrib_ModulatedDeformableConvolution"
).split()


@pytest.mark.parametrize("name", WITH_OPTIONAL_INPUTS)
@pytest.mark.parametrize("more", [-1, 1])
def test_files_must_have_the_inputs_that_parameters_enable(name, more):
    for sample in SAMPLES[name]:
        expected = len(sample.arrays(sample.dtypes[0]))
        count = expected + more
        nodes = [{"op": "null", "name": f"in{i}", "inputs": []} for i in range(count)]
        attrs = {key: str(value) for key, value in (sample.params or {}).items()}
        inputs = [[i, 0, 0] for i in range(count)]
        nodes.append({"op": name, "name": "op", "attrs": attrs, "inputs": inputs})
        version = {"mxnet_version": ["int", 10900]}
        file = {"nodes": nodes, "arg_nodes": [], "heads": [[count, 0, 0]], "attrs": version}
        with pytest.raises(mx.MXNetError, match=f"needs {expected} inputs, but the file has"):
            mx.sym.load_json(json.dumps(file))
