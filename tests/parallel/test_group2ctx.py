"""AttrScope(ctx_group=...) with group2ctx: parts of a symbol on separate devices."""

import numpy as np
import pytest

import mpgluon as mx
from support.devices import on

GROUPS = {"one": on(1), "two": on(2)}


def network():
    with mx.AttrScope(ctx_group="one"):
        net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="fc1")
        net = mx.sym.Activation(net, act_type="tanh", name="act")
        side = mx.sym.relu(net, name="side")
    with mx.AttrScope(ctx_group="two"):
        net = mx.sym.FullyConnected(net, num_hidden=8, name="fc2")
        net = mx.sym.BatchNorm(net, name="bn")
    with mx.AttrScope(ctx_group="one"):  # returns to the first group
        net = mx.sym.FullyConnected(net, num_hidden=16, name="fc3") + side
    return mx.sym.SoftmaxOutput(net, name="softmax")


def bound(group2ctx, grad_req="write"):
    executor = network().simple_bind(on(0), group2ctx=group2ctx, grad_req=grad_req, data=(4, 10))
    rng = np.random.RandomState(0)
    for name, array in executor.arg_dict.items():
        array[:] = (
            rng.uniform(0, 15, array.shape).astype(int)
            if name == "softmax_label"
            else rng.uniform(-1, 1, array.shape)
        )
    executor.aux_dict["bn_moving_var"][:] = 1
    return executor


def test_arrays_are_allocated_on_their_groups_device():
    executor = bound(GROUPS)
    where = {
        name: array.context
        for name, array in (*executor.arg_dict.items(), *executor.aux_dict.items())
    }
    for name, ctx in where.items():
        assert ctx == GROUPS["two" if name.startswith(("fc2", "bn")) else "one"], name
    for name, array in executor.grad_dict.items():
        assert array.context == where[name]


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_grouped_symbol_has_the_bits_of_one_device(grad_req):
    executors = [
        bound(None, grad_req),
        bound(GROUPS, grad_req),
        bound({"one": on(0), "two": on(0)}, grad_req),
    ]
    for _ in range(3):
        for executor in executors:
            executor.forward(is_train=True)
            executor.backward()
    alone = executors[0]
    for other in executors[1:]:
        np.testing.assert_array_equal(other.outputs[0].asnumpy(), alone.outputs[0].asnumpy())
        for kind in ("grad_dict", "aux_dict"):
            for name, array in getattr(alone, kind).items():
                np.testing.assert_array_equal(
                    getattr(other, kind)[name].asnumpy(), array.asnumpy(), err_msg=name
                )
    assert executors[1].outputs[0].context == GROUPS["one"]


def test_ops_run_on_their_groups_device():
    executor = bound(GROUPS)
    executor.forward(is_train=True)
    executor.backward()
    (entry,) = [one for one in executor._call.compiled() if one["calls"]]
    ops = {
        name: [step["op"] for step in device["forward"] if step["kind"] == "run"]
        for name, device in entry["devices"].items()
    }
    assert (
        "BatchNorm" in ops[str(on(2))]
        and "SoftmaxOutput" in ops[str(on(1))]
        and not ops.get(str(on(0)))
    )
    forward = [copy for copy in entry["copies"] if copy["phase"] == "forward"]
    assert {(copy["from"], copy["to"]) for copy in forward} == {
        (str(on(1)), str(on(2))),
        (str(on(2)), str(on(1))),
    } and len(forward) == 2


def test_bind_copies_arrays_between_devices():
    with mx.AttrScope(ctx_group="one"):
        net = mx.sym.var("a") + mx.sym.var("b")
    with mx.AttrScope(ctx_group="two"):
        net = net * mx.sym.var("c")
    shapes = {"a": on(1), "b": on(0), "c": on(2)}  # b is not on its group's device
    arrays = {name: mx.nd.ones(3, ctx=ctx) * 2 for name, ctx in shapes.items()}
    grads = {name: mx.nd.zeros(3, ctx=ctx) for name, ctx in shapes.items()}
    executor = net.bind(on(0), arrays, grads, group2ctx=GROUPS)
    (out,) = executor.forward(is_train=True)
    assert out.context == on(2) and out.asnumpy().tolist() == [8, 8, 8]
    executor.backward(mx.nd.ones(3))  # the head gradient is not on the output's device
    assert {name: (grad.context, grad.asnumpy().tolist()) for name, grad in grads.items()} == {
        "a": (on(1), [2, 2, 2]),
        "b": (on(0), [2, 2, 2]),
        "c": (on(2), [4, 4, 4]),
    }
    assert "Copy" in executor.debug_str()


def test_nodes_without_a_group_follow_their_inputs():
    with mx.AttrScope(ctx_group="one"):
        net = mx.sym.relu(mx.sym.var("x"))
    net = mx.sym.FullyConnected(net + 1, num_hidden=2, name="fc") + mx.sym.ones((3, 2))
    executor = net.simple_bind(on(0), group2ctx=GROUPS, x=(3, 4))
    assert executor.arg_dict["fc_weight"].context == on(1)
    assert executor.forward()[0].context == on(1)


def test_groups_without_group2ctx_are_ignored():
    executor = bound(None)
    assert {array.context for array in executor.arg_arrays} == {on(0)}


def test_missing_or_invalid_groups_raise():
    with pytest.raises(mx.MXNetError, match="'two' is not in group2ctx"):
        bound({"one": on(1)})
    with pytest.raises(TypeError):
        bound({"one": str(on(1)), "two": str(on(2))})


def test_reshape_keeps_the_groups():
    executor = bound(GROUPS)
    smaller = executor.reshape(data=(2, 10), softmax_label=(2,))
    assert smaller.forward()[0].shape == (2, 16) and smaller.outputs[0].context == on(1)


def test_as_in_context_places_what_follows():
    net = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="a").as_in_context(on(3))
    net = mx.sym.FullyConnected(net, num_hidden=2, name="b")
    executor = net.simple_bind(on(0), x=(4, 5))
    where = {name: array.context for name, array in executor.arg_dict.items()}
    assert where == {
        "x": on(0),
        "a_weight": on(0),
        "a_bias": on(0),
        "b_weight": on(3),
        "b_bias": on(3),
    }
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((4, 2), ctx=on(3)))
    assert executor.grad_dict["a_weight"].context == on(0)


@pytest.mark.parametrize("watched", [False, True])
def test_loops_take_inputs_from_any_device(watched):
    with mx.AttrScope(ctx_group="one"):
        rows, _ = mx.sym.contrib.foreach(
            lambda x, s: (x * mx.sym.var("w") + s, s + x), mx.sym.var("x"), mx.sym.var("s")
        )
    results = []
    for group2ctx in (None, GROUPS):
        arrays = {"x": mx.nd.arange(6).reshape((3, 2)), "w": mx.nd.ones(2) * 2, "s": mx.nd.ones(2)}
        arrays = {name: array.as_in_context(on(0)) for name, array in arrays.items()}
        grads = {name: mx.nd.zeros_like(array) for name, array in arrays.items()}
        executor = (rows * 2).bind(on(0), arrays, grads, group2ctx=group2ctx)
        if watched:
            executor.set_monitor_callback(lambda name, array: None, True)
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones((3, 2)))
        results.append([executor.outputs[0].asnumpy(), *[g.asnumpy() for g in grads.values()]])
    assert executor.outputs[0].context == on(1)
    for alone, grouped in zip(*results):
        np.testing.assert_array_equal(grouped, alone)


def test_auxiliary_state_on_another_device_raises():
    with mx.AttrScope(ctx_group="one"):
        net = mx.sym.BatchNorm(mx.sym.var("x"), name="bn")
    arrays = [mx.nd.ones(shape, ctx=on(1)) for shape in ((4, 2), 2, 2)]
    states = [mx.nd.zeros(2, ctx=on(0)), mx.nd.ones(2, ctx=on(0))]
    executor = net.bind(on(1), arrays, aux_states=states, group2ctx=GROUPS)
    with pytest.raises(mx.MXNetError, match="moving_mean on"):
        executor.forward(is_train=True)
