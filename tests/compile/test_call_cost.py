"""Cost of a compiled call: no repeated parameter lookup and no allocation in the steady state."""

import gc
import os
import sys
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd

MANY = 1 << 40


class Chain(gluon.HybridBlock):
    """`ops` elementwise ops on a chain of `params` parameters."""

    def __init__(self, ops, params, devices=1):
        super().__init__()
        self._ops, self._names, self._devices = ops, [f"w{i}" for i in range(params)], devices
        with self.name_scope():
            for name in self._names:
                self._reg_params[name] = self.params.get(name, shape=(8, 8))

    def hybrid_forward(self, F, x, **weights):
        for i in range(self._ops):
            k = i // 2
            x = (
                F.tanh(x)
                if i % 2
                else F.broadcast_mul(x, weights[self._names[k]])
                if k < len(self._names)
                else x * 1.01
            )
            if self._devices > 1 and i == self._ops // 2:
                x = (x.as_in_context(mx.cpu(1)) * 2).as_in_context(mx.cpu(0))
        return x


def chain(ops, params, devices=1):
    net = Chain(ops, params, devices)
    net.initialize(mx.init.Uniform(1), ctx=mx.cpu(0))
    net.hybridize()
    return net


def allocations(call, times):
    """Returns the number of bookkeeping allocations in `times` calls."""
    gc.collect()
    _core._memory_fail_after(MANY)
    for _ in range(times):
        call()
    nd.waitall()
    made = MANY - _core._memory_until_failure()
    _core._memory_fail_after(0)
    return made


def steady(call, times=50, most=0):
    """True if one of twenty rounds of `times` calls allocates at most `most` times.

    The number of overlapping calls, which need separate memory, depends on the workers.
    """
    return any(allocations(call, times) <= most for _ in range(20))


@pytest.mark.parametrize("ops, params, devices", [(10, 3, 1), (300, 40, 1), (300, 40, 2)])
def test_steady_calls_allocate_nothing(ops, params, devices):
    net, x = chain(ops, params, devices), nd.ones((8, 8))

    def call():
        for _ in range(5):
            y = net(x)
        y.wait_to_read()

    assert steady(call)


def test_steady_recorded_calls_allocate_nothing():
    net, x = chain(100, 40), nd.ones((8, 8))

    def call():
        with autograd.record():
            y = net(x)
        y.backward()
        nd.waitall()

    assert steady(call)


@pytest.mark.parametrize("devices", [1, 2])
def test_steady_recorded_calls_with_an_eager_loss_allocate_nothing(devices):
    net, x, loss = chain(100, 40, devices), nd.ones((8, 8)), gluon.loss.L2Loss()

    def call():
        with autograd.record():
            y = loss(net(x), x)
        y.backward()
        nd.waitall()

    assert steady(call)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("ops, params, devices", [(100, 40, 1), (1000, 40, 2), (300, 150, 2)])
def test_steady_training_allocates_nothing(ops, params, devices, optimizer):
    net, x, loss = chain(ops, params, devices), nd.ones((8, 8)), gluon.loss.L2Loss()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-3})

    def call():
        with autograd.record():
            y = loss(net(x), x)
        y.backward()
        trainer.step(8)
        nd.waitall()

    assert steady(call)


@pytest.mark.parametrize("devices", [1, 2])
def test_heads_of_same_kind_share_initial_gradients(devices):
    """Heads of the same kind share one initial gradient, even if some heads are variables.

    The results match those of separate initial gradients.
    """
    from mpgluon import profiler

    found = []
    for given in (False, True):
        variables = [nd.full((3, 2), 1.5 + i, ctx=mx.cpu(i % devices)) for i in range(6)]
        for i, variable in enumerate(variables):
            variable.attach_grad("add" if i > 3 else "write")
        for _ in range(2):
            with autograd.record():
                heads = (
                    [variable * variable for variable in variables]
                    + variables
                    + [variables[0].sum(), variables[0] + variables[0]]
                )
            profiler.set_state("run")
            autograd.backward(
                heads, [nd.ones(head.shape, ctx=head.context) for head in heads] if given else None
            )
            nd.waitall()
            profiler.set_state("stop")
        made = sum(event["name"] == "_full_like" for event in profiler.events())
        if not given and devices == 1:
            assert made == 3, made
        found.append([variable.grad.asnumpy() for variable in variables])
    assert all((a == b).all() for a, b in zip(*found))
    assert (found[0][1] == 2 * 2.5 + 1).all() and (found[0][5] == 2 * (2 * 6.5 + 1)).all()


class Loop(gluon.HybridBlock):
    """A loop cut out of the graph because it is too long to unroll or has a condition."""

    def __init__(self, kind, steps, devices):
        super().__init__()
        self.kind, self.steps, self.devices = kind, steps, devices
        with self.name_scope():
            self.w = self.params.get("w", shape=(8, 8))

    def hybrid_forward(self, F, x, w):
        def step(state):
            state = F.tanh(F.dot(state, w))
            return (
                (state.as_in_context(mx.cpu(1)) * 2).as_in_context(mx.cpu(0))
                if self.devices > 1
                else state
            )

        if self.kind == "branches":
            return self.inside_each_other(F, x, step)
        if self.kind == "foreach":
            rows = F.broadcast_add(F.zeros((self.steps, 8, 8)), x.expand_dims(0))
            y, s = F.contrib.foreach(lambda row, s: (step(s) + row,) * 2, rows, x)
        else:
            y, (_, s) = F.contrib.while_loop(
                lambda i, s: i < self.steps,
                lambda i, s: (s, [i + 1, step(s)]),
                [F.zeros((1,)), x],
                self.steps,
            )
        return y.sum() + s.sum()

    def inside_each_other(self, F, x, step):
        def inner(i, s):
            return s, [i + 1, F.contrib.cond(F.sum(s) > 0, lambda: step(s), lambda: s * -0.5)]

        def outer(i, s):
            y, (_, s) = F.contrib.while_loop(lambda k, s: k < 20, inner, [F.zeros((1,)), s], 20)
            return y.sum(), [i + 1, s]

        y, (_, s) = F.contrib.while_loop(
            lambda i, s: i < self.steps // 20, outer, [F.zeros((1,)), x], self.steps // 20
        )
        return y.sum() + s.sum()


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", ["foreach", "while_loop", "branches"])
def test_steady_predictions_of_loops_allocate_nothing(kind, devices):
    net, x = Loop(kind, 400, devices), nd.ones((8, 8))
    net.initialize()
    net.hybridize()

    def call():
        net(x).wait_to_read()
        nd.waitall()

    # On two devices the number of overlapping steps, and so of buffers, depends on the workers.
    assert steady(call, 1, 0 if devices == 1 else net.steps // 20)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", ["foreach", "while_loop", "branches"])
def test_steady_loops_do_not_allocate_per_step(kind, devices):
    for steps in (400, 800):
        net, x = Loop(kind, steps, devices), nd.ones((8, 8))
        net.initialize()
        net.hybridize()

        def call():
            with autograd.record():
                y = net(x)
            y.backward()
            nd.waitall()

        # Thread scheduling decides how many buffers are needed at a time.
        assert steady(call, 1, 99)


def test_compiled_call_hands_over_work_before_first_kernel():
    net, x = chain(300, 40, devices=2), nd.ones((8, 8))
    net(x).wait_to_read()
    assert _core.handed_over(mx.cpu(0)) is None
    mx.profiler.set_state("run")
    begin = time.perf_counter()
    y = net(x)
    end = time.perf_counter()
    nd.waitall()
    mx.profiler.set_state("stop")
    for device in (mx.cpu(0), mx.cpu(1)):
        first = min(
            event["begin"]
            for event in mx.profiler.events()
            if event["program"] and event["device"] == str(device)
        )
        assert begin <= _core.handed_over(device) <= min(end, first)
    assert y.shape == (8, 8)
    with pytest.raises((TypeError, ValueError)):
        _core.handed_over("nowhere(0)")


def test_allocation_counter_counts_compilation():
    assert allocations(lambda: chain(4, 2)(nd.ones((8, 8))).wait_to_read(), 1) > 10


def queue_time(net, x):
    """Returns the best queueing time of a call in microseconds."""
    best = 1e9
    for _ in range(60):
        begin = time.perf_counter()
        y = net(x)
        best = min(best, time.perf_counter() - begin)
        y.wait_to_read()
    return best * 1e6


@pytest.mark.slow
def test_call_cost_does_not_grow_with_graph_size():
    x = nd.ones((8, 8))
    small, large = (queue_time(chain(ops, ops // 2), x) for ops in (100, 2000))
    assert large < 4 * small + 10, (small, large)


# Changes of bound arrays must be detected.


def test_parameters_are_rebound_after_each_kind_of_change(tmp_path):
    net, x = chain(4, 2), nd.ones((8, 8))
    weights = list(net._reg_params.values())

    def expected():
        y = x.asnumpy().astype("float64")
        for i in range(4):
            y = (
                np.tanh(y)
                if i % 2
                else y * weights[i // 2].data(weights[i // 2].list_ctx()[0]).asnumpy()
            )
        return y

    def check():
        np.testing.assert_allclose(net(x).asnumpy(), expected(), rtol=1e-5)

    check()
    weights[0].set_data(nd.full((8, 8), 0.5))
    check()
    weights[0].data()[:] = 0.25
    check()
    weights[1].data()[2:3] = 7
    check()
    net.save_parameters(str(tmp_path / "a.params"))
    weights[1].set_data(nd.zeros((8, 8)))
    check()
    net.load_parameters(str(tmp_path / "a.params"))
    check()
    net.initialize(mx.init.Uniform(2), force_reinit=True)
    check()
    net.collect_params().reset_ctx(mx.cpu(1))
    with pytest.raises(mx.base.MXNetError):
        net(x).wait_to_read()
    x = x.as_in_context(mx.cpu(1))
    check()
    net.collect_params().setattr("grad_req", "null")
    check()
    net.cast("float64")
    x = x.astype("float64")
    check()


def test_gradients_follow_grad_req_changes():
    net, x = chain(4, 2), nd.ones((8, 8))
    w0, w1 = net._reg_params.values()

    def gradients():
        with autograd.record():
            y = net(x)
        y.backward()
        return [None if w.grad_req == "null" else w.grad().asnumpy() for w in (w0, w1)]

    both = gradients()
    w0.grad_req = "null"
    first, second = gradients()
    assert first is None and (second == both[1]).all()
    w0.grad_req = "add"
    gradients()
    assert (gradients()[0] == 2 * both[0]).all()
    with autograd.record():
        assert net(x) is not None
    with autograd.pause():
        net(x)
    w0.data().attach_grad("write")
    with autograd.record():
        y = net(x)
    y.backward()
    assert (w0.data().grad.asnumpy() == both[0]).all()


def test_old_parameter_arrays_are_freed_after_reset_ctx():
    net, x = chain(4, 2), nd.ones((8, 8))
    with autograd.record():
        y = net(x)
    y.backward()
    del y
    nd.waitall()
    gc.collect()
    before = mx.context.memory_stats(mx.cpu(0))["in_use"]
    net.collect_params().reset_ctx(mx.cpu(1))
    nd.waitall()
    gc.collect()
    weights = 2 * 2 * 8 * 8 * 4  # values and gradients
    assert mx.context.memory_stats(mx.cpu(0))["in_use"] <= before - weights


def test_bind_requires_arrays_and_unbind_restores_arguments():
    op = _core.CachedOp(lambda a, b: [a + b])
    with pytest.raises(TypeError, match="bind"):
        op.bind([1])
    op.bind([nd.ones((2,))])
    assert (op(nd.ones((2,)))[0].asnumpy() == 2).all()
    op.unbind()
    assert op(nd.ones((2,))) is None
    op.bind([])
    with pytest.raises(TypeError):
        op(nd.ones((2,)))
    assert (op(nd.ones((2,)), nd.zeros((2,)))[0].asnumpy() == 1).all()


def test_compiled_call_runs_few_python_functions():
    """Control passes from gluon/block/_block.py into gluon/_compiled/call.py and never back."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16), gluon.nn.Dense(16))
    net.initialize()
    net.hybridize()
    x = mx.nd.ones((4, 16))
    net(x)
    net(x)
    files = []

    def note(frame, event, _):
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            files.append(os.path.basename(frame.f_code.co_filename))

    sys.setprofile(note)
    net(x)
    sys.setprofile(None)
    at = files.index("call.py")
    assert "call.py" not in files[at + 1 :] and "_block.py" not in files[at:]
    assert len(files) <= 7, files
