"""Compiled functions (`_core.CachedOp`): bits equal to eager, planned memory, device programs."""

import gc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd
from support.calls import raises
from support.devices import on
from support.training import backward_of, variable


@pytest.fixture(params=["async", "sync", "shuffle"])
def engine(request):
    mx.engine.set_mode(request.param, 11)
    yield request.param
    mx.engine.set_mode("async")


def array(shape, seed, ctx=None, scale=1.0):
    return nd.array(
        (np.random.RandomState(seed).randn(*shape) * scale).astype("float32"), ctx=ctx or on(0)
    )


def gradients(function, arrays):
    """Outputs and gradients of sum(out * out) over all outputs, as NumPy arrays."""
    for a in arrays:
        a.attach_grad()
    with autograd.record():
        outs = function(*arrays)
        losses = [(o * o).sum() for o in outs]
    autograd.backward(losses)
    return [o.asnumpy() for o in outs] + [a.grad.asnumpy() for a in arrays]


def check(function, arrays, times=3, exact=True):
    op = _core.CachedOp(function, {"exact": exact})
    predicted = [o.asnumpy() for o in op(*arrays)]
    assert all(np.array_equal(a, b.asnumpy()) for a, b in zip(predicted, function(*arrays)))
    eager = gradients(function, arrays)
    for _ in range(times):
        compiled = gradients(op, arrays)
        assert len(eager) == len(compiled)
        for a, b in zip(eager, compiled):
            assert np.array_equal(a, b)
    return op


def chain(devices, residual=True):
    def function(x, *weights):
        h = x
        for w, d in zip(weights, devices):
            h = h.as_in_context(d)
            y = nd.tanh(nd.dot(h, w))
            h = y + h if residual else y
        return [h]

    return function, [array((5, 6), 0, devices[0])] + [
        array((6, 6), 1 + i, d, 0.5) for i, d in enumerate(devices)
    ]


ONE, TWO, BACK, THREE = [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 1]


@pytest.mark.parametrize("placement", [ONE, TWO, BACK, THREE])
def test_chain_matches_eager_for_every_placement(engine, placement):
    check(*chain([on(i) for i in placement]))


def test_compiled_gradient_bits_do_not_depend_on_placement():
    results = []
    for placement in (ONE, TWO, BACK, THREE):
        function, arrays = chain([on(i) for i in placement])
        results.append(gradients(_core.CachedOp(function, {}), arrays))
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other))


def test_branches_on_several_devices_match_eager(engine):
    d = [on(i) for i in range(4)]

    def function(x, a, b, c):
        left = nd.relu(nd.dot(x.as_in_context(d[1]), a)).as_in_context(d[3])
        right = nd.sigmoid(nd.dot(x.as_in_context(d[2]), b)).as_in_context(d[3])
        both = left * right + left
        return [nd.dot(both, c), both.as_in_context(d[0]) + x]

    op = check(
        function,
        [array((3, 4), 0), array((4, 4), 1, d[1]), array((4, 4), 2, d[2]), array((4, 2), 3, d[3])],
    )
    [entry] = [e for e in op.compiled() if e["recording"]]
    assert set(entry["devices"]) == {str(on(0)), str(on(1)), str(on(2)), str(on(3))}


def test_parameter_shared_across_devices_matches_eager(engine):
    d = [on(0), on(1)]

    def function(x, w):
        h = nd.dot(x, w)
        h = nd.tanh(h).as_in_context(d[1])
        h = nd.dot(h, w.as_in_context(d[1])).as_in_context(d[0])
        return [nd.dot(h, w) + h]

    check(function, [array((3, 4), 0), array((4, 4), 1)])


def test_outputs_may_be_inputs_views_copies_and_duplicates(engine):
    def function(x, y):
        z = x * y
        return [z, x, z, z.reshape((-1,)), y.as_in_context(on(1)), z + 1]

    x, y = array((2, 3), 0), array((2, 3), 1)
    op = check(function, [x, y])
    outs = op(x, y)
    assert [o.context.device_id for o in outs] == [0, 0, 0, 0, 1, 0]
    assert outs[3].shape == (6,)
    assert np.array_equal(outs[1].asnumpy(), x.asnumpy())


def test_function_without_ops_returns_its_inputs_or_nothing():
    assert _core.CachedOp(lambda x: [], {})(nd.ones((2,))) == []
    [same] = _core.CachedOp(lambda x: [x], {})(nd.ones((2,)))
    assert np.array_equal(same.asnumpy(), [1, 1])


def test_captured_constant_array_is_read_at_call_time():
    table = nd.array([1.0, 2.0, 3.0])

    def function(x):
        return [x * table + nd.ones((3,)) * 2]

    op = _core.CachedOp(function, {})
    x = nd.array([1.0, 1.0, 1.0])
    assert np.array_equal(op(x)[0].asnumpy(), [3, 4, 5])
    table[:] = 0  # the function reads the array itself, not a copy
    assert np.array_equal(op(x)[0].asnumpy(), [2, 2, 2])


def test_captured_variable_gets_gradient():
    w = variable(nd.array([2.0, 3.0]))
    op = _core.CachedOp(lambda x: [x * w], {})
    backward_of(lambda: op(nd.array([5.0, 7.0]))[0])
    assert np.array_equal(w.grad.asnumpy(), [5, 7])


def test_nested_compiled_functions_are_inlined():
    inner = _core.CachedOp(lambda x, w: [nd.tanh(x * w)], {})

    def function(x, w):
        return [inner(inner(x, w)[0], w)[0] + x]

    op = check(function, [array((3, 3), 0), array((3, 3), 1)])
    assert op.dump().count("tanh(") == 2 * len(op.compiled())


def test_two_recorded_calls_may_precede_backward(engine):
    function, arrays = chain([on(0), on(1), on(1), on(0)])
    op = _core.CachedOp(function, {})
    x1, x2 = arrays[0], array((5, 6), 77)
    for a in arrays + [x2]:
        a.attach_grad()
    expected = []
    for x in (x1, x2):
        backward_of(lambda: function(x, *arrays[1:])[0])
        expected.append([x.grad.asnumpy()] + [a.grad.asnumpy() for a in arrays[1:]])
    with autograd.record():
        y1 = op(x1, *arrays[1:])[0]
        y2 = op(x2, *arrays[1:])[0]
    assert op.compiled()[0]["frames"] == 2
    y2.backward()
    second = [x2.grad.asnumpy()] + [a.grad.asnumpy() for a in arrays[1:]]
    y1.backward()
    first = [x1.grad.asnumpy()] + [a.grad.asnumpy() for a in arrays[1:]]
    assert op.compiled()[0]["frames"] == 0 and op.compiled()[0]["bytes_held"] == 0
    for a, b in zip(expected[0] + expected[1], first + second):
        assert np.array_equal(a, b)


def test_retain_graph_allows_repeated_compiled_backward(engine):
    function, arrays = chain([on(0), on(1)])
    op = _core.CachedOp(function, {})
    for a in arrays:
        a.attach_grad()
    with autograd.record():
        y = op(*arrays)[0]
    y.backward(retain_graph=True)
    first = [a.grad.asnumpy() for a in arrays]
    y.backward(retain_graph=True)
    y.backward()
    assert all(np.array_equal(a, b.grad.asnumpy()) for a, b in zip(first, arrays))
    raises(mx.MXNetError, "retain_graph", y.backward)


def test_grad_req_add_accumulates_compiled_gradients(engine):
    def function(x, w):
        return [nd.dot(x, w)]

    op, x, w = _core.CachedOp(function, {}), array((3, 4), 0), array((4, 2), 1)
    x.attach_grad("add")
    w.attach_grad("add")
    once = None
    for _ in range(2):
        backward_of(lambda: op(x, w)[0])
        once = w.grad.asnumpy() if once is None else once
    assert np.allclose(w.grad.asnumpy(), 2 * once)


def test_backward_from_subset_of_outputs_matches_eager(engine):
    def function(x, w):
        h = nd.tanh(nd.dot(x, w))
        whole = (x * 5).astype("int32")
        return [h, (h * x).sum(), x * x, whole * (w * 5).astype("int64").astype("int32")]

    x, w = array((3, 3), 0), array((3, 3), 1)
    op = _core.CachedOp(function, {})
    for which in ([0], [1], [2], [3], [0, 2], [1, 3], [0, 1, 2]):
        results = []
        for f in (function, op):
            for a in (x, w):
                a.attach_grad()
            with autograd.record():
                outs = f(x, w)
            autograd.backward([outs[i] for i in which])
            results.append([x.grad.asnumpy(), w.grad.asnumpy()])
        assert all(np.array_equal(a, b) for a, b in zip(*results))


def test_second_gradient_of_compiled_function_matches_formula():
    op = _core.CachedOp(lambda x, y: [x * x * x * y], {})
    x, y = nd.array([1.0, 2.0]), nd.array([3.0, 4.0])
    x.attach_grad()
    with autograd.record():
        z = op(x, y)[0]
        g = autograd.grad(z, [x], create_graph=True)[0]
        s = (g * g).sum()
    s.backward()
    v, u = x.asnumpy(), y.asnumpy()
    assert np.allclose(g.asnumpy(), 3 * v**2 * u)
    assert np.allclose(x.grad.asnumpy(), 2 * (3 * v**2 * u) * 6 * v * u)


# Values with several uses on both sides of a device copy, so that their gradients are summed
SECOND = {
    "moves": lambda x, w, d: [
        nd.concat(nd.dot(x.as_in_context(d), w), x.as_in_context(d) * 2, dim=1)
        * nd.concat(x, x, dim=1).as_in_context(d)
    ],
    "twice the same": lambda x, w, d: [
        nd.tanh(x.as_in_context(d)) * w.sum()
        + nd.tanh(x).as_in_context(d) * nd.tanh(nd.tanh(x)).as_in_context(d)
    ],
    "constants": lambda x, w, d: [
        x.as_in_context(d) * nd.BlockGrad(x).as_in_context(d)
        + nd.dot(nd.BlockGrad(nd.round(x) - x).as_in_context(d), w) ** 2,
        nd.contrib.gradientmultiplier(x, scalar=3.0) * nd.make_loss(x),
    ],
    "several results": lambda x, w, d: [
        nd.dot(x.as_in_context(d), w).as_in_context(x.context) * x,
        x * x,
        nd.sigmoid(x.as_in_context(d) * 2),
    ],
    "dropout": lambda x, w, d: [
        nd.Dropout(nd.dot(x.as_in_context(d), w), p=0.4) * x.as_in_context(d)
    ],
}


@pytest.mark.parametrize("name", SECOND)
def test_second_gradient_is_bitwise_equal_to_eager(name):
    """Includes first gradients in the same backward and two calls, on one device and two."""
    body = SECOND[name]

    def run(d, flags):
        mx.random.seed(5)
        x, w = array((5, 6), 0), array((6, 6), 1, d, 0.5)
        x.attach_grad()
        w.attach_grad("add")
        function = lambda x, w: body(x, w, d)
        function = function if flags is None else _core.CachedOp(function, flags)
        with autograd.record():
            once = function(x, w)
            outputs = once + function(
                nd.slice_axis(once[-1], axis=1, begin=0, end=6).as_in_context(on(0)), w
            )
            loss = nd.add_n(*[(o * o).mean().as_in_context(on(0)) for o in outputs])
            g = autograd.grad(loss, [x, w], create_graph=True, retain_graph=True)
            again = autograd.grad((g[0] ** 2).sum(), [x], create_graph=True, retain_graph=True)
            total = (
                loss + (g[0] ** 2).sum() + (g[1] ** 2).sum().as_in_context(on(0)) + again[0].sum()
            )
        total.backward()
        return [a.asnumpy() for a in (*g, *again, x.grad, w.grad)]

    eager, default = run(on(0), None), run(on(0), {})
    for d in (on(0), on(1)):
        for flags, wanted in ((None, eager), ({"exact": True}, eager), ({}, default)):
            for a, b in zip(run(d, flags), wanted):
                np.testing.assert_array_equal(a, b, err_msg=f"{d}, {flags}")


def test_second_gradient_is_refused_if_input_was_overwritten():
    op = _core.CachedOp(lambda x, y: [x * 2 + y], {})
    x, y = nd.array([1.0, 2.0]), nd.array([3.0, 4.0])
    x.attach_grad()
    with autograd.record():
        z = op(x, y)[0] ** 2
    y[:] = 0
    with pytest.raises(
        mx.MXNetError,
        match=r"its input 1 \(float32 \(2,\)\) was overwritten after the forward pass",
    ):
        autograd.grad(z, [x], create_graph=True)


def test_second_gradient_of_constant_output_is_refused():
    op = _core.CachedOp(lambda x: [x * x, nd.arange(2)], {})
    x = variable(nd.array([1.0, 2.0]))
    with autograd.record():
        y, z = op(x)
        with pytest.raises(
            mx.MXNetError, match="array 0 of the heads: it was not computed from variables"
        ):
            autograd.grad(z, [x], create_graph=True)


def test_expanded_call_frees_its_memory():
    """After expansion its ops replace the call.

    Their saved arrays are freed by the first backward that does not retain the graph.
    """
    op = _core.CachedOp(lambda x: [nd.tanh(nd.tanh(nd.tanh(x)))], {})
    x = variable(array((64, 1024), 0))
    for _ in range(2):
        with autograd.record():
            y = op(x)[0]
            loss = y.sum() + (autograd.grad(y, [x], create_graph=True)[0] ** 2).sum()
        loss.backward()
    nd.waitall()
    del y
    before = mx.context.memory_stats(on(0))["in_use"]
    del loss, op
    assert mx.context.memory_stats(on(0))["in_use"] >= before - 64  # the loss itself


def test_compiled_dropout_draws_same_mask_as_eager(engine):
    def function(x):
        h = nd.Dropout(x, p=0.5)
        return [nd.Dropout(h.as_in_context(on(1)) + 1, p=0.3)]

    x = array((20, 30), 0)
    op = _core.CachedOp(function, {})
    results = []
    for f in (function, op, function, op):
        mx.random.seed(5)
        with autograd.train_mode():
            results.append([f(x)[0].asnumpy(), f(x)[0].asnumpy()])
    for other in results[1:]:
        assert np.array_equal(results[0][0], other[0]) and np.array_equal(results[0][1], other[1])
    assert not np.array_equal(results[0][0], results[0][1])


def test_moving_statistics_are_updated_in_place(engine):
    def function(x, gamma, beta, mean, var):
        return [nd.BatchNorm(x.as_in_context(on(1)), gamma, beta, mean, var, fix_gamma=False)]

    def fresh():
        one = on(1)
        return [
            nd.ones((3,), ctx=one),
            nd.zeros((3,), ctx=one),
            nd.zeros((3,), ctx=one),
            nd.ones((3,), ctx=one),
        ]

    x, results = array((8, 3, 2, 2), 0), []
    for f in (function, _core.CachedOp(function, {})):
        params = fresh()
        for a in [x] + params[:2]:
            a.attach_grad()
        for _ in range(3):
            y = backward_of(lambda: f(x, *params)[0])
        results.append([y.asnumpy(), x.grad.asnumpy()] + [p.asnumpy() for p in params])
        assert params[2].asnumpy().any()
    assert all(np.array_equal(a, b) for a, b in zip(*results))


def test_shape_or_device_change_recompiles_within_cache_limit():
    op = _core.CachedOp(lambda x: [x + 1], {})
    for _ in range(3):
        op(nd.ones((2,)))
        op(nd.ones((3,)))
        op(nd.ones((2,), ctx=on(1)))
    assert sorted(e["calls"] for e in op.compiled()) == [3, 3, 3]
    for n in range(1, 101):
        op(nd.ones((n,)))
    assert len(op.compiled()) == 64


def test_function_is_traced_once_per_signature():
    calls = []

    def function(x):
        calls.append(x.shape)
        return [x * 2]

    op = _core.CachedOp(function, {})
    for _ in range(5):
        op(nd.ones((2,)))
    assert calls == [(2,)]


def layers(split, count=10, width=32):
    devices = [on(1 if split and i >= count // 2 else 0) for i in range(count)]

    def function(x, *weights):
        h = x
        for w, d in zip(weights, devices):
            h = nd.relu(nd.FullyConnected(h.as_in_context(d), w, no_bias=True, num_hidden=width))
        return [h]

    op = _core.CachedOp(function, {})
    arrays = [array((16, width), 0)] + [
        array((width, width), 1 + i, d, 0.2) for i, d in enumerate(devices)
    ]
    gradients(op, arrays)
    [entry] = op.compiled()
    return entry


def test_each_device_plans_only_its_own_layers():
    one, two = layers(False), layers(True)
    planned = [d["planned"]["total"] for d in two["devices"].values()]
    crossing = sum(c["bytes"] for c in two["copies"])
    whole = one["devices"][str(on(0))]["planned"]["total"]
    assert not one["copies"] and len(two["copies"]) == 2
    assert sum(planned) <= 1.05 * (whole + crossing)
    assert max(planned) <= 0.7 * whole
    for name, device in two["devices"].items():
        runs = [i["op"] for i in device["forward"] if i["kind"] == "run"]
        assert runs.count("FullyConnected") == 5
        assert (
            device["planned"]["saved"] <= device["planned"]["forward"] + device["planned"]["lanes"]
        )


def test_plan_reuses_memory_of_dead_arrays():
    def function(x):
        for _ in range(20):
            x = nd.dot(nd.tanh(x), x)
        return [x]

    op = _core.CachedOp(function, {})
    op(array((64, 64), 0, scale=0.1))
    [entry] = op.compiled()
    assert entry["devices"][str(on(0))]["planned"]["total"] <= 3 * 64 * 64 * 4


def test_branches_computed_layer_by_layer_take_the_memory_of_one():
    def function(x, w):
        hidden = [nd.tanh(nd.dot(x, w * i)) for i in range(8)]
        return [nd.add_n(*[y.sum(axis=1) for y in hidden])]

    op = _core.CachedOp(function, {})
    op(array((64, 8), 0), array((8, 512), 1))
    [entry] = op.compiled()
    assert entry["devices"][str(on(0))]["planned"]["total"] <= 2 * 64 * 512 * 4


def test_compiled_calls_release_their_memory():
    function, arrays = chain([on(0), on(1), on(0), on(1)])
    op = _core.CachedOp(function, {})

    def in_use():
        nd.waitall()
        return [_core.memory_stats(on(i))["in_use"] for i in range(2)]

    gradients(op, arrays)
    before = in_use()
    for _ in range(10):
        gradients(op, arrays)
    assert in_use() == before


@pytest.mark.parametrize("mode", ["async", "shuffle"])
def test_kernel_failure_in_program_fails_dependents_on_other_devices(mode):
    """A failure on one device fails dependent work on other devices.

    No thread hangs and later calls work.
    """

    def function(x, index):
        first = x * 2
        h = nd.take(x, index, mode="raise")
        return [(h.as_in_context(on(1)) + 1).as_in_context(on(0)) * 3, first]

    op = _core.CachedOp(function, {})
    x, good, bad = array((4, 3), 0), nd.array([0.0, 1.0]), nd.array([0.0, 9.0])
    x.attach_grad()
    before = op(x, good)[0].asnumpy()
    mx.engine.set_mode(mode, 3)
    try:
        for _ in range(3):
            y = backward_of(lambda: op(x, bad)[0])
            raises((mx.MXNetError, IndexError), "take.*out of range", y.asnumpy)
            raises((mx.MXNetError, IndexError), "out of range", lambda: x.grad.asnumpy())
            assert np.array_equal(op(x, good)[0].asnumpy(), before)
        try:
            nd.waitall()
        except (mx.MXNetError, IndexError):
            pass  # error not read above
        y = backward_of(lambda: op(x, good)[0])
        assert x.grad.asnumpy().any()
    finally:
        mx.engine.set_mode("async")


def test_mixed_devices_are_reported_during_trace():
    def function(x, w):
        return [nd.dot(x, w)]

    with pytest.raises(mx.MXNetError, match=r"dot.*[cg]pu\(0\).*[cg]pu\(1\).*as_in_context"):
        _core.CachedOp(function, {})(nd.ones((2, 2)), nd.ones((2, 2), ctx=on(1)))


def test_values_cannot_be_read_in_a_trace():
    with pytest.raises(mx.MXNetError):
        _core.CachedOp(lambda x: [x * float(x.sum().asscalar())], {})(nd.ones((2,)))


def test_exception_in_traced_function_propagates():
    def function(x):
        raise LookupError("here")

    op = _core.CachedOp(function, {})
    raises(LookupError, "here", lambda: op(nd.ones((2,))))
    with pytest.raises(TypeError):
        _core.CachedOp(lambda x: [1], {})(nd.ones((2,)))
    with pytest.raises(TypeError):
        op(1)
    with pytest.raises(TypeError):
        _core.CachedOp(3, {})
    assert np.array_equal((nd.ones((2,)) + 1).asnumpy(), [2, 2])  # no trace is left active


def test_arrays_kept_from_a_trace_are_unusable():
    kept = []

    def function(x):
        kept.append(x * 2)
        return [kept[-1] + 1]

    op = _core.CachedOp(function, {})
    op(nd.ones((2,)))
    with pytest.raises(mx.MXNetError):
        kept[0] + 1
    with pytest.raises(mx.MXNetError):
        _core.CachedOp(lambda x: [x + kept[0]], {})(nd.ones((2,)))


@pytest.mark.parametrize("devices", [1, 2])
def test_thousand_layers_compile_on_one_and_two_devices(devices):
    def function(x):
        h = x
        for i in range(1000):
            h = nd.tanh(h.as_in_context(on(i % devices if i % 50 == 0 else (i // 50) % devices)))
        return [h.as_in_context(on(0))]

    check(function, [array((2, 3), 0)], times=1)


def sweep(run, expected):
    """Runs with the n-th bookkeeping allocation failing, for every n.

    Each run must raise an error or give the correct result, and leak nothing.
    """
    n, errors = 1, 0
    while True:
        _core._memory_fail_after(n)
        try:
            run()
        except (MemoryError, mx.MXNetError):
            errors += 1
        finally:
            failed = _core._memory_fail_after(0)
        try:
            nd.waitall()
        except (MemoryError, mx.MXNetError):
            errors += 1
        if not failed:
            break
        n += 1
    assert n == 1 or errors > 0
    assert all(np.array_equal(a, b) for a, b in zip(run(), expected))
    return n


@pytest.mark.parametrize("kind", ["eager", "compiled", "second order"])
def test_every_bookkeeping_allocation_may_fail(kind):
    def function(x, w, u):
        h = nd.tanh(nd.dot(x, w)).as_in_context(on(1))
        return [nd.dot(h, u), h]

    arrays = [array((3, 4), 0), array((4, 4), 1), array((4, 2), 2, on(1))]
    for a in arrays:
        a.attach_grad()

    def run():
        f = function if kind == "eager" else _core.CachedOp(function, {})
        with autograd.record():
            loss = (f(*arrays)[0] ** 2).sum()
            if kind == "second order":
                loss = (autograd.grad(loss, [arrays[1]], create_graph=True)[0] ** 2).sum()
        loss.backward()
        return [a.grad.asnumpy() for a in arrays]

    expected = run()
    nd.waitall()
    before = [_core.memory_stats(on(i))["in_use"] for i in range(2)]
    count = sweep(run, expected)
    assert kind == "eager" or count > 50
    nd.waitall()
    assert [_core.memory_stats(on(i))["in_use"] for i in range(2)] == before


def test_full_device_raises_error_and_smaller_calls_still_run():
    """An oversized call raises an exception that names the device; smaller calls still run."""
    function, arrays = chain([on(0), on(1)])
    op = _core.CachedOp(function, {})
    expected = gradients(op, arrays)
    big = [array((4096, 6), 5)] + arrays[1:]
    # Frees cached memory of earlier tests, as the core does when memory is short
    gc.collect()
    nd.waitall()
    on(1).empty_cache()
    held = _core.memory_stats(on(1))["held"]
    _core.set_memory_limit(on(1), held + 50000)
    try:
        raises(mx.MXNetError, r"[cg]pu\(1\).*(limit|memory)", lambda: gradients(op, big))
        assert all(np.array_equal(a, b) for a, b in zip(expected, gradients(op, arrays)))
    finally:
        _core.set_memory_limit(on(1), 0)
    gradients(op, big)


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_repeated_cell_calls_sum_gradients_in_eager_order(engine, grad_req):
    """Gradients from several calls and from outside are added in eager's order, with equal bits."""
    x, w, v = array((3, 5), 0), array((5, 5), 1, scale=0.5), array((5, 5), 2, on(1), scale=0.5)

    def cell(h, w, v):
        a = nd.dot(nd.tanh(nd.dot(h, w)), w).as_in_context(on(1))
        return [nd.dot(nd.tanh(nd.dot(a, v)), v).as_in_context(on(0)) + h]

    results = []
    for f in (cell, _core.CachedOp(cell, {})):
        for a in (x, w, v):
            a.attach_grad(grad_req)
        with autograd.record():
            h = x
            for _ in range(6):
                h = f(h, w, v)[0]
            loss = (h * h).sum() + (w * w).sum() + (v * v).sum().as_in_context(on(0))
        loss.backward()
        results.append([a.grad.asnumpy() for a in (x, w, v)])
    assert all(np.array_equal(a, b) for a, b in zip(*results))


def random_function(seed):
    """A random graph of chains, branches, views, reductions, shared values and copies over three
    devices.
    """
    rng = np.random.RandomState(seed)
    steps = [tuple(rng.randint(0, 1 << 20, 4)) for _ in range(rng.randint(5, 60))]
    num_outputs = rng.randint(1, 4)

    def function(*arrays):
        values = list(arrays)

        def at(n):  # prefers recent values, so that lifetimes differ
            return values[-1 - (n % len(values)) // (1 + n % 3)]

        for kind, a, b, d in steps:
            x = at(a)
            device = x.context
            if kind % 9 == 0:
                y = nd.tanh(x)
            elif kind % 9 == 1:
                y = x * at(b).as_in_context(device)
            elif kind % 9 == 2:
                y = x + at(b).as_in_context(device)
            elif kind % 9 == 3:
                y = nd.dot(x, at(b).as_in_context(device)) * 0.1
            elif kind % 9 == 4:
                y = x.as_in_context(on(d % 3))
            elif kind % 9 == 5:
                y = nd.reshape(x, shape=(-1,))
                y = nd.reshape(y * 0.5, shape=(4, 4))
            elif kind % 9 == 6:
                y = nd.broadcast_add(x, nd.sum(x, axis=0, keepdims=True))
            elif kind % 9 == 7:
                y = nd.Dropout(nd.relu(x), p=0.2)
            else:
                y = nd.reshape(nd.reshape(x, shape=(16,)), shape=(4, 4))
            values.append(y)
        return [at(n) for n in range(0, 5 * num_outputs, 5)] + [values[-1]]

    return function, [array((4, 4), seed + i, on(i % 3)) for i in range(3)]


@pytest.mark.parametrize("mode", ["async", "shuffle"])
@pytest.mark.parametrize("seed", range(40))
def test_random_compiled_graphs_match_eager(seed, mode):
    function, arrays = random_function(seed)
    op = _core.CachedOp(function, {})
    mx.engine.set_mode(mode, seed)
    try:
        results = []
        for f in (function, op, op):
            mx.random.seed(9)
            outs = gradients(f, arrays)
            for a in arrays:
                a.attach_grad("add")
            with autograd.record():
                losses = [(o * o).sum() for o in f(*arrays)]
            losses[0].backward(retain_graph=True)
            autograd.backward(losses)
            results.append(
                outs + [a.grad.asnumpy() for a in arrays] + [o.asnumpy() for o in f(*arrays)]
            )
        for other in results[1:]:
            for k, (a, b) in enumerate(zip(results[0], other)):
                assert np.array_equal(a, b, equal_nan=True), (k, a, b)
    finally:
        mx.engine.set_mode("async")


GOLDEN = f"""\
%0 = input : float32 (2, 3) {on(0)}
%1 = input : float32 (3, 4) {on(1)}
%2 = _copyto(%0) {{ctx={on(1)}}} : float32 (2, 3) {on(1)}
%3 = dot(%2, %1) : float32 (2, 4) {on(1)}
%4 = relu(%3) : float32 (2, 4) {on(1)}
return %4, %4
"""


def test_dump_prints_graph_with_gradient():
    def function(x, w):
        y = nd.relu(nd.dot(x.as_in_context(on(1)), w))
        return [y, y]

    op = _core.CachedOp(function, {})
    op(nd.ones((2, 3)), nd.ones((3, 4), ctx=on(1)))
    assert op.dump() == GOLDEN


def test_programs_list_instructions_and_copies_per_device():
    function, arrays = chain([on(0), on(1)], residual=False)
    op = _core.CachedOp(function, {})
    op(*arrays)
    [entry] = op.compiled()
    kinds = {name: [i["kind"] for i in d["forward"]] for name, d in entry["devices"].items()}
    assert kinds == {
        str(on(0)): ["run", "run", "copy", "signal"],
        str(on(1)): ["wait", "run", "run"],
    }
    assert entry["copies"] == [
        {"from": str(on(0)), "to": str(on(1)), "bytes": 5 * 6 * 4, "phase": "forward", "scope": ""}
    ]
    assert entry["devices"][str(on(1))]["planned"]["lanes"] >= 5 * 6 * 4
    assert entry["devices"][str(on(0))]["planned"]["lanes"] == 0
