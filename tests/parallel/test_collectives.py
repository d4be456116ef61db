"""Collectives: values, gradients and errors for any number of devices, with divisible and
indivisible sizes."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import mpgluon as mx
from mpgluon import _core, autograd, nd, parallel as par
from support.collective_cases import DEVICES, NAMES, Collective, arrays_of, cases, check
from support.devices import on
from support.processes import output_of


@pytest.fixture(autouse=True)
def local():
    with par.collectives.transport("local"):
        yield


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
def test_collective_values_and_gradients_are_exact(name, count, hybridize):
    """Equals sums in rank order, forward and backward, with sizes that do not divide evenly."""
    outputs = check(count, (7, 5), 0, name, hybridize)
    if len(outputs) == count:
        assert [out.context for out in outputs] == DEVICES[:count]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 6), min_size=1, max_size=3),
    st.data(),
    st.integers(0, 99),
)
def test_collectives_support_any_sizes(count, shape, data, seed):
    axis = data.draw(st.integers(0, len(shape) - 1))
    name = data.draw(st.sampled_from(NAMES))
    check(count, tuple(shape), axis, name, data.draw(st.booleans()), seed)


def test_gathered_arrays_may_differ_in_size_along_the_axis():
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


def test_grad_req_add_accumulates_collective_gradients():
    _, arrays = arrays_of(3, (4,), scale=False)
    for array in arrays:
        array.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            losses = [out.sum() for out in par.all_reduce(arrays)]
        autograd.backward(losses)
    assert all((array.grad.asnumpy() == 6).all() for array in arrays)


def test_all_reduce_supports_gradients_of_gradients():
    _, (a, b) = arrays_of(2, (4,), scale=False)
    a.attach_grad()
    with autograd.record():
        first, _ = par.all_reduce([a * a * a, b])
        (slope,) = autograd.grad(first, [a], create_graph=True)
        slope.sum().backward()
    np.testing.assert_allclose(a.grad.asnumpy(), 6 * a.asnumpy(), rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_second_gradients_of_collectives_equal_one_device(name):
    """Uses a sum of cubes: gradients are exchanged in reverse, and so are their gradients."""
    call = cases(3, 0)[name][0]

    def second(devices):
        arrays = [
            nd.array(np.random.RandomState(i).standard_normal((6, 2)), ctx=ctx)
            for i, ctx in enumerate(devices)
        ]
        for array in arrays:
            array.attach_grad()
        with autograd.record():
            outputs = alone(arrays) if devices is ONE else call(arrays)
            loss = sum(
                ((out * out * out) * (i + 1)).sum().as_in_context(on(0))
                for i, out in enumerate(outputs)
            )
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
            "all_reduce": lambda: [total() for _ in x],
            "two_shot": lambda: [total() for _ in x],
            "reduce": lambda: [total()],
            "reduce_scatter": lambda: halves(total()),
            "all_gather": lambda: [nd.concat(*x, dim=0) for _ in x],
            "gather": lambda: [nd.concat(*x, dim=0)],
            "scatter": lambda: halves(x[0]),
            "broadcast": lambda: [x[0] * 1 for _ in x],
            "all_to_all": lambda: [
                nd.concat(*parts, dim=0) for parts in zip(*[halves(one) for one in x])
            ],
        }[name]()

    for many, one in zip(second(DEVICES[:3]), second(ONE)):
        np.testing.assert_allclose(many, one, rtol=2e-5, atol=1e-4 * np.abs(one).max())


def test_duplicate_and_missing_devices_are_reported():
    """A device may hold several ranks. Layers and meshes report missing or duplicate devices."""
    x = [nd.ones((2,), ctx=ctx) for ctx in (DEVICES[0], DEVICES[1], DEVICES[0])]
    assert all((out.asnumpy() == 3).all() for out in par.all_reduce(x))
    with pytest.raises(ValueError, match=r"[cg]pu\(1\) is given twice"):
        par.Mesh({"model": 2}, devices=[DEVICES[1]] * 2)
    layer = par.ColumnParallelDense(4, DEVICES[:3], in_units=2)
    layer.initialize()
    with pytest.raises(
        mx.MXNetError,
        match=r"must hold one array on each of \[[cg]pu\(0\), [cg]pu\(1\), [cg]pu\(2\)\], in this "
        r"order, but they are on \[[cg]pu\(0\), [cg]pu\(1\)\]",
    ):
        layer([nd.ones((1, 2), ctx=ctx) for ctx in DEVICES[:2]])


def test_results_do_not_share_memory():
    """Writing to a result changes neither its inputs nor other results."""
    x = nd.ones((2,))
    for result in (
        par.broadcast(x, DEVICES[:2]),
        par.all_reduce([x]),
        [par.gather([x])],
        par.scatter(x, DEVICES[:1]),
        par.broadcast(x, [on(0)] * 2),
    ):
        result[0][:] = 5
        assert (x.asnumpy() == 1).all() and all(
            (other.asnumpy() == 1).all() for other in result[1:]
        )


def test_all_reduce_keeps_dtype():
    for dtype in ("float64", "float16", "int32"):
        outputs = par.all_reduce([nd.array([1, 2, 3], ctx=ctx, dtype=dtype) for ctx in DEVICES[:3]])
        assert all(
            out.dtype == np.dtype(dtype) and out.asnumpy().tolist() == [3, 6, 9] for out in outputs
        )


def plan(count, shape, algorithm="auto", kind="all_reduce"):
    _, arrays = arrays_of(count, shape)
    return _core.collective_plan(kind, arrays, DEVICES[:count], 0, 0, None, algorithm, "local")


def test_all_reduce_algorithm_depends_on_size():
    assert plan(4, (100,))["ops"].count("add_n") == 4 and "_split_v2" not in plan(4, (100,))["ops"]
    large = (1 << 18,)
    assert plan(4, large) == plan(4, large, "two_shot")
    # As in a ring, every device sends 2 (n - 1) / n of an array.
    assert plan(4, large)["bytes"] == 2 * 3 * 4 * large[0]
    assert plan(4, large, "one_shot")["bytes"] == 4 * 3 * 4 * large[0]
    assert (
        plan(3, (5, 3), kind="all_to_all")["copies"] == 6
        and plan(3, (5, 3), kind="gather")["copies"] == 2
    )


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
        (
            lambda x: par.all_reduce([x[0], x[1][:2]]),
            mx.MXNetError,
            r"rank 0 on [cg]pu\(0\) is float32 \(4, 3\), but that of rank 1 on [cg]pu\(1\) is "
            r"float32 \(2, 3\)",
        ),
        (
            lambda x: par.all_gather([x[0], x[1].astype("float64")]),
            mx.MXNetError,
            r"rank 1 on [cg]pu\(1\) is float64 \(4, 3\); they may differ along the axis",
        ),
        (lambda x: par.reduce_scatter(x, 2), ValueError, "reduce_scatter: axis 2 is out of range"),
        (lambda x: par.scatter(x[0], []), ValueError, "list of Contexts"),
        (lambda x: par.all_reduce(x[0]), TypeError, "expected a list of arrays"),
        (lambda x: par.all_reduce([]), ValueError, "empty"),
        (lambda x: par.all_reduce([x[0], 3]), TypeError, "rank 1 is a int"),
        (lambda x: par.gather(x, "cpu"), mx.MXNetError, "must be a Context"),
        (lambda x: par.all_reduce(x, "ring"), ValueError, "unknown algorithm 'ring'"),
        (
            lambda x: par.all_reduce([x[0], x[0].as_in_context(mx.cpu())], transport="nccl"),
            mx.MXNetError,
            "NCCL",
        ),
        (
            lambda x: par.broadcast(x[0], DEVICES, transport="mpi"),
            ValueError,
            "unknown transport 'mpi'",
        ),
    ],
)
def test_invalid_collective_arguments_raise(call, error, text):
    with pytest.raises(error, match=text):
        call(arrays_of(2, (4, 3))[1])


def test_collectives_have_the_same_bits_in_any_engine_order():
    """No dependency between devices is missing in any execution order."""
    script = (
        "from support import collective_cases as t\nfor name in t.NAMES:\n  for hybrid in (False, "
        "True):\n    t.check(3, (7, 5), 1, name, hybrid)\nprint('same')"
    )
    assert (
        output_of(
            script, timeout=280, MPGLUON_ENGINE="shuffle", MPGLUON_COLLECTIVES="local"
        ).strip()
        == "same"
    )
