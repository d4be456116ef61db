"""Aliasing: a write to a result changes no input, head gradient or other result.

Covers every registered op in each execution mode and its gradients by ``autograd.grad``. Views that
share memory on purpose are methods, for example ``reshape`` and slices of the first axis.
"""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.parallel import Pipeline
from mpgluon.symbol._functions import Function
from samples.base import all_samples
from support.calls import call, mode, place
from support.devices import on

SAMPLES = all_samples()
FLAGS = {name: _core.get_op(name).describe()["flags"] for name in SAMPLES}
CASES = [
    pytest.param(name, sample, id=f"{name}-{i}")
    for name, rows in sorted(SAMPLES.items())
    for i, sample in enumerate(rows[:1])
]


def contents(array):
    return array.asnumpy().tobytes()


def overwrite(array):
    """Writes values that differ from the old ones in every element."""
    old = array.asnumpy()
    array[:] = mx.nd.array(~old if old.dtype == bool else np.where(old == 3, 5, 3), ctx=array.ctx)


def assert_separate(results, others, what):
    """Asserts that a write to any result leaves all other arrays unchanged."""
    arrays = [*results, *others]
    before = [contents(array) for array in arrays]
    for i, array in enumerate(results):
        if array.size == 0:
            continue
        overwrite(array)
        before[i] = contents(array)
        for k, other in enumerate(arrays):
            assert contents(other) == before[k], (
                f"{what}: a write to result {i} of {len(results)} changes array {k}"
            )


def sample_arrays(sample):
    return place(sample, sample.dtypes[0] if sample.dtypes else "float32")


def eager(name, sample, arrays):
    with mode(sample):
        return call(name, arrays, sample.params)


def recorded(name, sample, arrays):
    for array in arrays:
        if np.dtype(array.dtype).kind == "f":
            array.attach_grad()
    with autograd.record(train_mode=sample.train):
        return call(name, arrays, sample.params)


def compiled(exact):
    def run(name, sample, arrays):
        if not arrays or "dynamic" in FLAGS[name]:
            pytest.skip("not traced: the output shape depends on values, or there are no inputs")
        function = _core.CachedOp(
            lambda *traced: call(name, traced, sample.params), {"exact": exact}
        )
        with mode(sample):
            return list(function(*arrays))

    return run


def symbolic(name, sample, arrays):
    if {"dynamic", "hidden"} & set(FLAGS[name]) or name == "reset_arrays":
        pytest.skip("no symbol function")
    symbol = Function(_core.get_op(name), name)(
        *[mx.sym.var(f"in{i}") for i in range(len(arrays))], **(sample.params or {})
    )
    given = {f"in{i}": array for i, array in enumerate(arrays)}
    executor = symbol.bind(
        on(0),
        {key: given[key] for key in symbol.list_arguments()},
        aux_states={key: given[key] for key in symbol.list_auxiliary_states()},
    )
    return executor.forward(is_train=sample.train)


WAYS = {
    "eager": eager,
    "recorded": recorded,
    "hybridized": compiled(False),
    "exact": compiled(True),
    "symbolic": symbolic,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name, sample", CASES)
def test_result_is_separate_from_inputs_and_other_results(name, sample, way):
    arrays = sample_arrays(sample)
    results = WAYS[way](name, sample, arrays)
    assert_separate(results, arrays, f"{name}, {way}")


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("compiled_first", [False, True])
@pytest.mark.parametrize("name, sample", [c for c in CASES if c.values[1].gradient_inputs()])
def test_gradient_is_separate_from_inputs_and_heads(name, sample, compiled_first, create_graph):
    arrays = sample_arrays(sample)
    variables = [arrays[i] for i in sample.gradient_inputs()]
    for array in variables:
        array.attach_grad()

    def run(*inputs):
        return call(name, inputs, sample.params)

    if compiled_first:
        if "dynamic" in FLAGS[name]:
            pytest.skip("not traced: the output shape depends on values")
        run = _core.CachedOp(run, {"exact": True})
    with autograd.record(train_mode=sample.train):
        results = [r for r in run(*arrays) if np.dtype(r.dtype).kind == "f"]
    heads = [mx.nd.ones_like(result) for result in results]
    gradients = autograd.grad(results, variables, heads, create_graph=create_graph)
    what = f"gradient of {name}"
    assert_separate(gradients, [*arrays, *heads, *results], what)


class Identity(autograd.Function):
    def forward(self, x):
        return x + 0

    def backward(self, dy):
        return dy


def two_variables():
    a, b = nd.array([1.0, 2.0]), nd.array([3.0, 4.0])
    a.attach_grad()
    b.attach_grad()
    return a, b


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a + b,
        lambda a, b: nd.add_n(a, b),
        lambda a, b: a.reshape((2, 1)).reshape((2,)) + b,
        lambda a, b: Identity()(a) + Identity()(b),
        lambda a, b: a.as_in_context(on(1)) + b.as_in_context(on(1)),
        lambda a, b: a * 1 + nd.BlockGrad(b),
    ],
)
def test_gradients_of_one_call_are_separate(function, create_graph):
    a, b = two_variables()
    with autograd.record():
        z = function(a, b)
    head = nd.array([5.0, 6.0], ctx=z.context)
    gradients = autograd.grad(z, [a, b, a], head, create_graph=create_graph)
    assert_separate(gradients, [a, b, z, head], "gradient")


def test_gradient_written_in_place_keeps_its_graph():
    a, b = two_variables()
    with autograd.record():
        g, h = autograd.grad(a * a + b * a, [a, b], create_graph=True)
        loss = (g * h).sum()
    g *= 100
    h[:] = 7
    loss.backward()
    # The loss is (2 a + b) a
    np.testing.assert_array_equal(a.grad.asnumpy(), (4 * a + b).asnumpy())
    np.testing.assert_array_equal(b.grad.asnumpy(), a.asnumpy())


class Outputs(gluon.HybridBlock):
    """Returns values that the compiler could store in one buffer."""

    def hybrid_forward(self, F, x):
        y = F.relu(x)
        return F.identity(x), y, F.identity(y), F.reshape(y, (0, -1)), F.relu(x), F.Dropout(y)


@pytest.mark.parametrize(
    "options", [{}, {"exact": True}, {"static_alloc": True}, {"pipeline": Pipeline(2)}], ids=str
)
@pytest.mark.parametrize("train", [False, True])
def test_outputs_of_a_block_are_separate(options, train):
    net = Outputs()
    net.hybridize(**options)
    x = nd.array([[1.0, -2.0], [3.0, 4.0], [5.0, 6.0], [-7.0, 8.0]])
    if train:
        x.attach_grad()
        with autograd.record(train_mode=False):
            outputs = net(x)
    else:
        outputs = net(x)
    assert_separate(outputs, [x], str(options))
