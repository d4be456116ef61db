"""Collectives: values, gradients and errors, for any number of devices and sizes that divide and that don't."""


import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import on
from support.processes import output_of

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon import parallel as par

DEVICES = [on(i) for i in range(5)]


@pytest.fixture(autouse=True)
def local():
    with par.collectives.transport("local"):
        yield


def arrays_of(count, shape, seed=0, scale=True):
    """One a device, of very different sizes, so that another order of summation has other bits."""
    rng = np.random.RandomState(seed)
    values = [(rng.standard_normal(shape) * (7.0**i if scale else 1)).astype("float32") for i in range(count)]
    return values, [nd.array(v, ctx=ctx) for v, ctx in zip(values, DEVICES)]


def in_order(values):
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def cut(value, count, axis):
    return [np.take(value, range(begin, end), axis) for begin, end in par.collectives.divide(value.shape[axis], count)]


# name -> (call on arrays, the same on NumPy arrays, the gradients of the inputs for gradients of the outputs)
def cases(count, axis):
    devices = DEVICES[:count]
    split = lambda values: [cut(v, count, axis) for v in values]
    join = lambda values: np.concatenate(values, axis)

    def exchange(values):
        parts = split(values)
        return [join([parts[rank][i] for rank in range(count)]) for i in range(count)]

    def lengths(values, like):
        """`values` joined, then cut as the arrays of `like` were."""
        ends = np.cumsum([v.shape[axis] for v in like])[:-1]
        return np.split(join(values), ends, axis)

    everywhere = lambda values: [in_order(values)] * count
    return {
        "all_reduce": (lambda x: par.all_reduce(x, "one_shot"), everywhere, lambda x, g: [in_order(g)] * count),
        "two_shot": (lambda x: par.all_reduce(x, "two_shot"), everywhere, lambda x, g: [in_order(g)] * count),
        "reduce": (lambda x: [par.reduce(x, DEVICES[count - 1])], lambda x: [in_order(x)], lambda x, g: g * count),
        "reduce_scatter": (lambda x: par.reduce_scatter(x, axis), lambda x: cut(in_order(x), count, axis), lambda x, g: [join(g)] * count),
        "all_gather": (lambda x: par.all_gather(x, axis), lambda x: [join(x)] * count, lambda x, g: lengths([in_order(g)], x)),
        "gather": (lambda x: [par.gather(x, axis=axis)], lambda x: [join(x)], lambda x, g: lengths(g, x)),
        "scatter": (lambda x: par.scatter(x[0], devices, axis), lambda x: cut(x[0], count, axis), lambda x, g: [join(g)] + [0 * v for v in x[1:]]),
        "broadcast": (lambda x: par.broadcast(x[0], devices), lambda x: [x[0]] * count, lambda x, g: [in_order(g)] + [0 * v for v in x[1:]]),
        "all_to_all": (lambda x: par.all_to_all(x, axis, axis), exchange, lambda x, g: _back(x, g, count, axis)),
    }


def _back(x, grads, count, axis):
    """all_to_all back: gradient d holds the d-th part of every rank's array."""
    result = [[] for _ in range(count)]
    for d, grad in enumerate(grads):
        sizes = [cut(v, count, axis)[d].shape[axis] for v in x]
        for rank, part in enumerate(np.split(grad, np.cumsum(sizes)[:-1], axis)):
            result[rank].append(part)
    return [np.concatenate(parts, axis) for parts in result]


NAMES = list(cases(2, 0))


class Collective(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arrays):
        return self.function(list(arrays))


def check(count, shape, axis, name, hybridize=False, seed=0):
    call, reference, backward = cases(count, axis)[name]
    values, arrays = arrays_of(count, shape, seed)
    if hybridize:
        block = Collective(call)
        block.hybridize()
        call = lambda x: block(*x)
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        outputs = call(arrays)
        if name in ("scatter", "broadcast"):
            outputs = list(outputs) + [0 * a for a in arrays[1:]]
    expected = reference(values)
    rng = np.random.RandomState(seed + 1)
    grads = [(rng.standard_normal(e.shape) * 5.0**i).astype("float32") for i, e in enumerate(expected)]
    heads = [nd.array(g, ctx=out.context) for g, out in zip(grads, outputs)]
    heads += [nd.zeros(out.shape, ctx=out.context) for out in outputs[len(heads) :]]
    autograd.backward(outputs, heads)
    for out, value in zip(outputs, expected):
        assert out.shape == value.shape
        assert np.array_equal(out.asnumpy(), value), name
    for array, grad in zip(arrays, backward(values, grads)):
        assert array.grad.context == array.context
        assert np.array_equal(array.grad.asnumpy(), grad), name
    return outputs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
def test_values_and_gradients_bit_for_bit(name, count, hybridize):
    """Against sums in the order of the ranks, forward and backward: also with sizes that don't divide evenly."""
    outputs = check(count, (7, 5), 0, name, hybridize)
    if len(outputs) == count:
        assert [out.context for out in outputs] == DEVICES[:count]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(0, 6), min_size=1, max_size=3), st.data(), st.integers(0, 99))
def test_any_sizes(count, shape, data, seed):
    axis = data.draw(st.integers(0, len(shape) - 1))
    name = data.draw(st.sampled_from(NAMES))
    check(count, tuple(shape), axis, name, data.draw(st.booleans()), seed)


def test_gathered_arrays_may_differ_along_the_axis():
    sizes = [3, 1, 2]
    arrays = [nd.random.normal(shape=(2, n), ctx=ctx) for n, ctx in zip(sizes, DEVICES)]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        outputs = par.all_gather(arrays, axis=-1)
        losses = [(out * nd.arange(6, ctx=out.context)).sum() for out in outputs]
    assert [out.shape for out in outputs] == [(2, 6)] * 3
    autograd.backward(losses)
    assert np.array_equal(arrays[2].grad.asnumpy(), 3 * np.array([[4, 5]] * 2))


def test_gradients_are_added_where_asked():
    _, arrays = arrays_of(3, (4,), scale=False)
    for array in arrays:
        array.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            losses = [out.sum() for out in par.all_reduce(arrays)]
        autograd.backward(losses)
    assert all((array.grad.asnumpy() == 6).all() for array in arrays)


def test_gradients_of_gradients():
    _, (a, b) = arrays_of(2, (4,), scale=False)
    a.attach_grad()
    with autograd.record():
        first, _ = par.all_reduce([a * a * a, b])
        (slope,) = autograd.grad(first, [a], create_graph=True)
        slope.sum().backward()
    np.testing.assert_allclose(a.grad.asnumpy(), 6 * a.asnumpy(), rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_second_gradients_of_each(name):
    """Of the cubes of what is exchanged: gradients are exchanged back, and so are theirs. Against the same written out on one device."""
    call = cases(3, 0)[name][0]

    def second(devices):
        arrays = [nd.array(np.random.RandomState(i).standard_normal((6, 2)), ctx=ctx) for i, ctx in enumerate(devices)]
        for array in arrays:
            array.attach_grad()
        with autograd.record():
            outputs = alone(arrays) if devices is ONE else call(arrays)
            loss = sum(((out * out * out) * (i + 1)).sum().as_in_context(on(0)) for i, out in enumerate(outputs))
            used = arrays[:1] if name in ("scatter", "broadcast") else arrays
            slopes = autograd.grad(loss, used, create_graph=True)
            total = sum((slope * slope).sum().as_in_context(on(0)) for slope in slopes)
        total.backward()
        return [array.grad.asnumpy() for array in used]

    ONE = [on(0)] * 3

    def alone(x):
        total = lambda: nd.add_n(*x)
        halves = lambda whole: nd.split(whole, 3, axis=0)
        return {
            "all_reduce": lambda: [total() for _ in x], "two_shot": lambda: [total() for _ in x], "reduce": lambda: [total()],
            "reduce_scatter": lambda: halves(total()), "all_gather": lambda: [nd.concat(*x, dim=0) for _ in x], "gather": lambda: [nd.concat(*x, dim=0)],
            "scatter": lambda: halves(x[0]), "broadcast": lambda: [x[0] * 1 for _ in x],
            "all_to_all": lambda: [nd.concat(*parts, dim=0) for parts in zip(*[halves(one) for one in x])],
        }[name]()  # fmt: skip

    for many, one in zip(second(DEVICES[:3]), second(ONE)):
        np.testing.assert_allclose(many, one, rtol=2e-5, atol=1e-4 * np.abs(one).max())


def test_devices_that_are_listed_twice_or_missing():
    """A device may have several ranks; layers and meshes say which device is missing or named twice."""
    x = [nd.ones((2,), ctx=ctx) for ctx in (DEVICES[0], DEVICES[1], DEVICES[0])]
    assert all((out.asnumpy() == 3).all() for out in par.all_reduce(x))
    with pytest.raises(ValueError, match=r"[cg]pu\(1\) is named twice"):
        par.Mesh({"model": 2}, devices=[DEVICES[1]] * 2)
    layer = par.ColumnParallelDense(4, DEVICES[:3], in_units=2)
    layer.initialize()
    with pytest.raises(mx.MXNetError, match=r"must hold one array on each of \[[cg]pu\(0\), [cg]pu\(1\), [cg]pu\(2\)\], in this order, but they are on \[[cg]pu\(0\), [cg]pu\(1\)\]"):
        layer([nd.ones((1, 2), ctx=ctx) for ctx in DEVICES[:2]])


def test_results_are_arrays_of_their_own():
    """Writing to a result leaves what it came from alone, and other results."""
    x = nd.ones((2,))
    for result in (par.broadcast(x, DEVICES[:2]), par.all_reduce([x]), [par.gather([x])], par.scatter(x, DEVICES[:1]), par.broadcast(x, [on(0)] * 2)):
        result[0][:] = 5
        assert (x.asnumpy() == 1).all() and all((other.asnumpy() == 1).all() for other in result[1:])


def test_dtypes():
    for dtype in ("float64", "float16", "int32"):
        outputs = par.all_reduce([nd.array([1, 2, 3], ctx=ctx, dtype=dtype) for ctx in DEVICES[:3]])
        assert all(out.dtype == np.dtype(dtype) and out.asnumpy().tolist() == [3, 6, 9] for out in outputs)


def plan(count, shape, algorithm="auto", kind="all_reduce"):
    _, arrays = arrays_of(count, shape)
    return _core.collective_plan(kind, arrays, DEVICES[:count], 0, 0, None, algorithm, "local")


def test_the_algorithm_is_chosen_by_shapes():
    assert plan(4, (100,))["ops"].count("add_n") == 4 and "_split_v2" not in plan(4, (100,))["ops"]
    large = (1 << 18,)
    assert plan(4, large) == plan(4, large, "two_shot")
    # A ring's bytes: every device sends 2 (n - 1) / n of an array.
    assert plan(4, large)["bytes"] == 2 * 3 * 4 * large[0]
    assert plan(4, large, "one_shot")["bytes"] == 4 * 3 * 4 * large[0]
    assert plan(3, (5, 3), kind="all_to_all")["copies"] == 6 and plan(3, (5, 3), kind="gather")["copies"] == 2


def test_compiled_collectives_are_copies_between_programs():
    block = Collective(lambda x: par.all_reduce(x))
    block.hybridize()
    _, arrays = arrays_of(3, (4, 4))
    block(*arrays)
    (entry,) = block.compiled()
    kinds = [step["kind"] for device in entry["devices"].values() for step in device["forward"]]
    assert kinds.count("copy") == 6 and len(entry["devices"]) == 3


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda x: par.all_reduce([x[0], x[1][:2]]), mx.MXNetError, r"rank 0 on [cg]pu\(0\) is float32 \(4, 3\), but that of rank 1 on [cg]pu\(1\) is float32 \(2, 3\)"),
        (lambda x: par.all_gather([x[0], x[1].astype("float64")]), mx.MXNetError, r"rank 1 on [cg]pu\(1\) is float64 \(4, 3\); they may differ along the axis"),
        (lambda x: par.reduce_scatter(x, 2), ValueError, "reduce_scatter: axis 2 is out of range"),
        (lambda x: par.scatter(x[0], []), ValueError, "list of Contexts"),
        (lambda x: par.all_reduce(x[0]), TypeError, "expected a list of arrays"),
        (lambda x: par.all_reduce([]), ValueError, "empty"),
        (lambda x: par.all_reduce([x[0], 3]), TypeError, "rank 1 is a int"),
        (lambda x: par.gather(x, "cpu"), mx.MXNetError, "must be a Context"),
        (lambda x: par.all_reduce(x, "ring"), ValueError, "no algorithm 'ring'"),
        (lambda x: par.all_reduce([x[0], x[0].as_in_context(mx.cpu())], transport="nccl"), mx.MXNetError, "NCCL"),
        (lambda x: par.broadcast(x[0], DEVICES, transport="mpi"), NotImplementedError, "MPI"),
        (lambda x: par.broadcast(x[0], DEVICES, transport="smoke"), ValueError, "no transport 'smoke'"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(arrays_of(2, (4, 3))[1])


def test_shuffled_orders():
    """No dependency between devices is missing, whatever the order of the work."""
    script = "from parallel import test_collectives as t\nfor name in t.NAMES:\n  for hybrid in (False, True):\n    t.check(3, (7, 5), 1, name, hybrid)\nprint('same')"
    assert output_of(script, timeout=280, MPGLUON_ENGINE="shuffle", MPGLUON_COLLECTIVES="local").strip() == "same"
