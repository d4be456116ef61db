"""Every registered op on the samples of tests/samples."""

import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from samples.base import FIRST_ORDER_ONLY, all_samples
from support.calls import call, call_in_block, mode, place
from support.compare import with_sorted_eigenvalues

SAMPLES = all_samples()
OPS = sorted(_core.list_ops())
CASES = [
    pytest.param(name, sample, id=f"{name}-{sample.name or index}")
    for name in OPS
    for index, sample in enumerate(SAMPLES.get(name, []))
]


def wide(array):
    """Returns NumPy values with floats widened to float64."""
    values = array.asnumpy()
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def flags(name):
    return _core.get_op(name).describe()["flags"]


def variadic(name):
    return any(i["variadic"] for i in _core.get_op(name).describe()["inputs"])


def same_bits(a, b):
    a, b = a.asnumpy(), b.asnumpy()
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_every_op_has_samples():
    # A host step has results only in a pipeline (pipeline/test_host_steps.py).
    missing = [name for name in OPS if not SAMPLES.get(name) and name != "_host_step"]
    assert not missing, f"ops without samples: {missing}"


def test_every_sample_belongs_to_an_op():
    unknown = sorted(set(SAMPLES) - set(OPS))
    assert not unknown, f"samples of ops that do not exist: {unknown}"


@pytest.mark.parametrize("name, sample", CASES)
def test_op_value_matches_reference(name, sample):
    for dtype in sample.dtypes:
        arrays = place(sample, dtype)
        before = [wide(a) for a in arrays]
        with mode(sample):
            outputs = call(name, arrays, sample.params)
        for output in outputs:
            output.wait_to_read()
        if sample.reference is None:
            continue
        expected = sample.reference(*before, **(sample.params or {}))
        expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        assert len(expected) <= len(outputs)
        rtol, atol = sample.tolerance(dtype)
        found = [wide(output) for output in outputs]
        if outputs[0].context.device_type == "gpu":
            found, expected = (with_sorted_eigenvalues(name, a) for a in (found, expected))
        for output, wanted in zip(found, expected):
            wanted = np.asarray(wanted)
            assert output.shape == wanted.shape, (
                f"{dtype}: shape {output.shape}, expected {wanted.shape}"
            )
            np.testing.assert_allclose(
                output.astype(np.float64),
                wanted.astype(np.float64),
                rtol=rtol,
                atol=atol,
                err_msg=dtype,
            )


def cotangents(outputs, seed):
    random = np.random.RandomState(seed)
    return [
        mx.nd.array(random.uniform(-1, 1, o.shape), ctx=o.context, dtype=o.dtype)
        if np.dtype(o.dtype).kind == "f"
        else None
        for o in outputs
    ]


def projected(name, sample, arrays, heads=None, squared=False):
    """Returns the sum over outputs of <output, cotangent> as a one-element array, and the
    cotangents.

    With `squared`, uses output * output so that linear ops also have a second gradient.
    """
    outputs = call(name, arrays, sample.params)
    heads = heads or cotangents(outputs, 7)
    total = None
    for output, head in zip(outputs, heads):
        if head is None:
            continue
        term = mx.nd.sum(output * output * head if squared else output * head)
        total = term if total is None else total + term
    return total, heads


def differences(function, arrays, index, gradient, step, rtol, atol, what):
    """Compares <gradient, v> with the central difference along random directions v."""
    random = np.random.RandomState(11)
    base = arrays[index].asnumpy()
    for _ in range(2):
        direction = random.uniform(-1, 1, base.shape)
        values = []
        for sign in (1, -1):
            moved = list(arrays)
            moved[index] = mx.nd.array(
                base + sign * step * direction, ctx=arrays[index].context, dtype="float64"
            )
            values.append(float(function(moved).asscalar()))
        numeric = (values[0] - values[1]) / (2 * step)
        analytic = float((gradient * direction).sum())
        assert abs(numeric - analytic) <= atol + rtol * max(abs(numeric), abs(analytic)), (
            f"{what}: difference {numeric}, gradient {analytic}"
        )


@pytest.mark.parametrize("name, sample", [c for c in CASES if c.values[1].gradient_inputs()])
def test_op_gradient_matches_finite_differences(name, sample):
    arrays = place(sample, "float64")
    wanted = sample.gradient_inputs()
    for i in wanted:
        arrays[i].attach_grad()
    mx.random.seed(3)
    with autograd.record(train_mode=sample.train):
        total, heads = projected(name, sample, arrays)
    total.backward()

    def function(moved):
        mx.random.seed(3)
        with mode(sample):
            return projected(name, sample, moved, heads)[0]

    for i in wanted:
        if arrays[i].size:
            differences(
                function,
                arrays,
                i,
                arrays[i].grad.asnumpy(),
                1e-5,
                2e-4,
                1e-6,
                f"{name}, input {i}",
            )


@pytest.mark.parametrize(
    "name, sample",
    [
        c
        for c in CASES
        if c.values[1].gradient_inputs()
        and c.values[1].grad2
        and c.values[0] not in FIRST_ORDER_ONLY
    ],
)
def test_op_second_gradient_matches_finite_differences(name, sample):
    arrays = place(sample, "float64")
    wanted = sample.gradient_inputs()
    _, heads = projected(name, sample, arrays)

    def gradient_sum(values, create):
        mx.random.seed(3)
        with autograd.record(train_mode=sample.train):
            total, _ = projected(name, sample, values, heads, squared=True)
            gradients = autograd.grad(
                total, [values[i] for i in wanted], create_graph=create, retain_graph=True
            )
            result = None
            for k, gradient in enumerate(gradients):
                weight = mx.nd.array(
                    np.random.RandomState(20 + k).uniform(-1, 1, gradient.shape), dtype="float64"
                )
                term = mx.nd.sum(gradient * weight)
                result = term if result is None else result + term
        return result

    for i in wanted:
        arrays[i].attach_grad()
    gradient_sum(arrays, True).backward()
    second = [arrays[i].grad.asnumpy() for i in wanted]

    def function(moved):
        for i in wanted:
            moved[i] = moved[i].copy()
            moved[i].attach_grad()
        return gradient_sum(moved, False)

    for k, i in enumerate(wanted):
        if arrays[i].size:
            differences(
                function,
                arrays,
                i,
                second[k],
                1e-5,
                1e-3,
                1e-5,
                f"second gradient of {name}, input {i}",
            )


@pytest.mark.parametrize("name", sorted(FIRST_ORDER_ONLY))
def test_first_order_op_refuses_second_gradient(name):
    sample = next(s for s in SAMPLES[name] if s.gradient_inputs())
    arrays = place(
        sample, "float64" if not sample.dtypes or "float64" in sample.dtypes else sample.dtypes[0]
    )
    wanted = [arrays[i] for i in sample.gradient_inputs()]
    for array in wanted:
        array.attach_grad()
    with autograd.record(train_mode=sample.train):
        total, _ = projected(name, sample, arrays, squared=True)
        gradients = autograd.grad(total, wanted, create_graph=True)
        total = sum((gradient * gradient).sum() for gradient in gradients)
    with pytest.raises(
        mx.MXNetError, match=r"has no gradient; compute it under autograd.pause\(\)"
    ):
        total.backward()


@pytest.mark.parametrize("name, sample", CASES)
def test_hybridized_op_matches_eager(name, sample):
    dtype = sample.dtypes[0] if sample.dtypes else "float32"
    if "dynamic" in flags(name):
        pytest.skip("the output shape depends on values")
    mx.random.seed(5)
    arrays = place(sample, dtype)
    with mode(sample):
        eager = call(name, arrays, sample.params)
    mx.random.seed(5)
    arrays = place(sample, dtype)
    if not arrays:
        pytest.skip("no inputs to trace from")
    compiled = _core.CachedOp(lambda *traced: call(name, traced, sample.params), {"exact": True})
    with mode(sample):
        hybrid = list(compiled(*arrays))
    assert len(eager) == len(hybrid)
    for one, other in zip(eager, hybrid):
        assert same_bits(one, other)


@pytest.mark.parametrize("name, sample", CASES)
def test_op_bits_do_not_depend_on_device(name, sample, devices):
    if not sample.inputs:
        pytest.skip("the device is a parameter")
    for ctx in devices[:2]:
        mx.nd.zeros(1, ctx=ctx)  # a new device would change the threads of the others below
    results = []
    for ctx in devices[:2]:
        mx.random.seed(5)
        arrays = place(sample, sample.dtypes[0] if sample.dtypes else "float32", ctx)
        with mode(sample):
            results.append(call(name, arrays, sample.params))
        assert all(output.context == ctx for output in results[-1]) or name == "_copyto"
    for one, other in zip(*results):
        assert same_bits(one, other)


def run_in_dialect(name, sample, numpy):
    """Returns the results of an op and the gradients of its inputs, which are of mx.np or mx.nd."""
    arrays = place(sample, sample.dtypes[0] if sample.dtypes else "float32")
    arrays = [x.as_np_ndarray() if numpy else x for x in arrays]
    wanted = [arrays[i] for i in sample.gradient_inputs()]
    for array in wanted:
        array.attach_grad()
    mx.random.seed(5)
    with autograd.record(train_mode=sample.train):
        outputs = call(f"_npi_{name}" if numpy and not arrays else name, arrays, sample.params)
    if wanted:
        heads = [x for x in outputs if np.dtype(x.dtype).kind == "f"]
        autograd.backward(heads, [mx.nd.ones(x.shape, dtype=x.dtype) for x in heads])
    return outputs, [array.grad for array in wanted]


@pytest.mark.parametrize(
    "name, sample",
    [case for case in CASES if case.id != "broadcast_to-keep"],  # 0 is a size
)
def test_op_has_the_same_results_for_arrays_of_numpy(name, sample):
    """Only shapes () and the dtypes of conditions, indices, quotients and means differ."""
    (outputs, gradients), (found, slopes) = (run_in_dialect(name, sample, n) for n in (False, True))
    assert len(outputs) == len(found)
    for one, other in zip(outputs, found):
        assert type(other) is mx.np.ndarray
        assert other.shape == one.shape or (other.shape == () and one.shape == (1,))
        if (name == "mean" or "div" in name) and np.dtype(one.dtype).kind in "iu":
            assert other.dtype == "float32"
        else:
            assert np.array_equal(wide(one).ravel(), wide(other).ravel(), equal_nan=True)
    for one, other in zip(gradients, slopes):
        assert type(other) is mx.np.ndarray and same_bits(one, other)


@pytest.mark.parametrize("name", [n for n in OPS if SAMPLES.get(n)])
def test_misuse_of_op_is_refused(name, devices):
    sample = SAMPLES[name][0]
    arrays = place(sample, sample.dtypes[0] if sample.dtypes else "float32")
    # these ops accept any parameter with a warning
    without = not _core.get_op(name).describe()["params"]
    with (
        pytest.warns(UserWarning, match="no_such_parameter")
        if without
        else pytest.raises((TypeError, mx.base.MXNetError))
    ):
        call(name, arrays, dict(sample.params or {}, no_such_parameter=1))
    if not variadic(name):
        with pytest.raises((TypeError, mx.base.MXNetError)):
            call(name, arrays + [mx.nd.ones((1,))] * 9, sample.params)
    if len(arrays) > 1 and "copy" not in flags(name):
        other = devices[1] if devices[1] != devices[0] else mx.cpu(0)
        with pytest.raises(mx.base.MXNetError, match=re.escape(str(other))):
            call(name, arrays[:-1] + [arrays[-1].copyto(other)], sample.params)


@pytest.mark.parametrize("dtype, low", [("float32", -85), ("float64", -700), ("float16", -14)])
def test_expm1_gradient_is_accurate_for_negative_inputs(dtype, low):
    """The gradient is computed from the input, because result + 1 may round to 0."""
    values = np.linspace(low, 2, 200).astype(dtype)
    x = mx.nd.array(values, dtype=dtype)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.expm1(x)
    y.backward()
    tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    exact = np.exp(values.astype("float64"))
    np.testing.assert_allclose(
        x.grad.asnumpy(), exact, rtol=tolerance, atol=6e-8 * (dtype == "float16")
    )


class Beside(gluon.HybridBlock):
    """Returns the square of its first input, and the results of an op on the other inputs."""

    def __init__(self, name, params):
        super().__init__()
        self.op, self.options = name, params

    def forward(self, x, *arrays):
        return [x * x, *call_in_block(self.op, arrays, self.options)]


@pytest.mark.parametrize(
    "name, sample",
    [case for case in CASES if not _core.get_op(case.values[0]).describe()["differentiable"]],
)
def test_results_without_gradient_are_returned_while_recording(name, sample):
    def run(hybridize):
        net = Beside(name, sample.params)
        net.hybridize(hybridize, exact=True)
        mx.random.seed(3)
        x, *arrays = [nd.array([[1, -2]]), *place(sample, sample.dtypes[0])]
        for array in (x, *arrays):
            array.attach_grad()
        with autograd.record(train_mode=sample.train):
            square, *others = net(x, *arrays)
        square.backward()
        assert x.grad.asnumpy().tolist() == [[2, -4]]
        return others

    found, wanted = run(True), run(False)
    assert len(found) == len(wanted) and all(map(same_bits, found, wanted))
