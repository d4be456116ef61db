"""Executors (symbols bound to arrays) and blocks created from symbols."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.base import MXNetError
from mpgluon.gluon import nn
from support.calls import raises
from support.devices import on
from support.training import backward_of


def values(*shape, seed=0):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, shape))


def bound(symbol, grad_req="write", **arrays):
    gradients = {name: mx.nd.ones(array.shape) * 5 for name, array in arrays.items()}
    return symbol.bind(on(0), arrays, gradients, grad_req)


def trained(executor, *heads):
    executor.forward(is_train=True)
    executor.backward(*heads)


def test_executor_computes_results_and_gradients():
    a, b = values(3, 4), values(3, 4, seed=1)
    executor = bound(mx.sym.var("a") * mx.sym.var("b"), a=a, b=b)
    (out,) = executor.forward(is_train=True)
    np.testing.assert_array_equal(out.asnumpy(), a.asnumpy() * b.asnumpy())
    head = values(3, 4, seed=2)
    executor.backward(head)
    np.testing.assert_array_equal(executor.grad_dict["a"].asnumpy(), (head * b).asnumpy())
    executor.backward([head * 2])  # second backward of the same forward
    np.testing.assert_array_equal(executor.grad_arrays[1].asnumpy(), (head * 2 * a).asnumpy())
    assert executor.output_dict.keys() == {"_mul0_output"} or len(executor.output_dict) == 1


def test_executor_has_the_bits_of_autograd():
    """Compares with the same ops recorded one by one."""
    rng = np.random.RandomState(3)
    arrays = {
        name: mx.nd.array(rng.uniform(-1, 1, shape))
        for name, shape in {"x": (4, 6), "w": (5, 6), "b": (5,)}.items()
    }
    x, w, b = (mx.sym.var(name) for name in "xwb")
    symbol = mx.sym.log_softmax(mx.sym.tanh(mx.sym.FullyConnected(x, w, b, num_hidden=5)))
    executor = bound(symbol, **arrays)
    trained(executor, mx.nd.ones((4, 5)))
    copies = [array.copy() for array in arrays.values()]
    for array in copies:
        array.attach_grad()
    with mx.autograd.record():
        out = mx.nd.log_softmax(mx.nd.tanh(mx.nd.FullyConnected(*copies, num_hidden=5)))
    out.backward()
    np.testing.assert_array_equal(executor.outputs[0].asnumpy(), out.asnumpy())
    for array, name in zip(copies, arrays):
        np.testing.assert_allclose(
            executor.grad_dict[name].asnumpy(), array.grad.asnumpy(), rtol=1e-6, atol=1e-7
        )


def test_grad_req_adds_writes_or_skips_gradients():
    x = mx.sym.var("x")
    executor = bound(x * x, grad_req="add", x=mx.nd.array([2.0]))
    trained(executor, mx.nd.ones(1))
    assert executor.grad_dict["x"].asscalar() == 9
    executor = bound(
        x * mx.sym.var("y"), grad_req={"x": "write"}, x=mx.nd.array([2.0]), y=mx.nd.array([3.0])
    )
    trained(executor, mx.nd.ones(1))
    assert executor.grad_dict["x"].asscalar() == 3 and executor.grad_dict["y"].asscalar() == 5
    executor = bound(
        mx.sym.BlockGrad(x) * mx.sym.var("y"), x=mx.nd.array([2.0]), y=mx.nd.array([3.0])
    )
    trained(executor, mx.nd.ones(1))
    assert executor.grad_dict["x"].asscalar() == 0  # written although no gradient flows there
    with pytest.raises(ValueError):
        bound(x * 2, grad_req="sometimes", x=mx.nd.ones(1))
    bound(x * 2, grad_req="null", x=mx.nd.ones(1)).backward(mx.nd.ones(1))


def test_executor_does_not_write_into_the_users_gradients():
    x = mx.nd.ones(2)
    x.attach_grad()
    executor = bound(mx.sym.var("x") * 3, x=x)
    trained(executor, mx.nd.ones(2))
    assert executor.grad_dict["x"].asnumpy().tolist() == [3, 3]
    assert x.grad.asnumpy().tolist() == [0, 0]


def test_loss_layers_need_no_head_gradient():
    data = mx.sym.var("data")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), name="softmax")
    executor = net.simple_bind(on(0), data=(2, 4))
    executor.arg_dict["data"][:] = 1
    trained(executor)
    np.testing.assert_allclose(
        executor.grad_dict["fc_bias"].asnumpy(), [2 / 3 - 2, 2 / 3, 2 / 3], rtol=1e-6
    )
    loss = mx.sym.MakeLoss(data * data).simple_bind(on(0), data=(2,))
    loss.forward(is_train=True, data=np.array([1.0, 2.0]))
    loss.backward()
    assert loss.grad_dict["data"].asnumpy().tolist() == [2, 4]
    plain = (data * 2).simple_bind(on(0), data=(2,))
    plain.forward(is_train=True)
    raises(mx.MXNetError, "make_loss", plain.backward)
    with pytest.raises(TypeError):
        plain.backward(3)


def test_backward_after_prediction_computes_gradients():
    executor = bound(mx.sym.square(mx.sym.var("x")), x=mx.nd.array([3.0]))
    executor.forward()
    executor.backward(mx.nd.ones(1))
    assert executor.grad_dict["x"].asscalar() == 6


def test_gradient_arrays_may_have_another_dtype():
    x = mx.nd.ones(4, dtype="float64")
    executor = (mx.sym.var("x") * 2).bind(on(0), [x], [mx.nd.zeros(4)])
    trained(executor, mx.nd.ones(4) * 3)
    assert executor.grad_arrays[0].dtype == np.float32
    assert executor.grad_arrays[0].asnumpy().tolist() == [6, 6, 6, 6]
    x.attach_grad()
    function = mx._core.CachedOp(lambda a: [a * 2], {})
    with mx.autograd.record():
        (y,) = function(x)
    raises(TypeError, "float64", lambda: y.backward(mx.nd.ones(4)))


def test_outputs_keep_their_identity():
    executor = bound(mx.sym.var("x") + 1, x=mx.nd.zeros(2))
    (out,) = executor.forward()
    executor.forward(x=mx.nd.ones(2))
    assert out.asnumpy().tolist() == [2, 2] and executor.outputs[0] is out
    before = bound(mx.sym.var("x") + 1, x=mx.nd.zeros(2))
    assert before.outputs[0].asnumpy().tolist() == [1, 1]


def test_training_updates_auxiliary_states():
    executor = mx.sym.BatchNorm(mx.sym.var("x"), name="bn", momentum=0.5).simple_bind(
        on(0), x=(8, 2)
    )
    executor.copy_params_from({"bn_gamma": mx.nd.ones(2)}, {"bn_moving_var": mx.nd.ones(2)})
    executor.forward(is_train=True, x=mx.nd.ones((8, 2)) * 4)
    assert executor.aux_dict["bn_moving_mean"].asnumpy().tolist() == [2, 2]
    executor.forward(is_train=False)
    assert executor.aux_arrays[0].asnumpy().tolist() == [2, 2]
    with pytest.raises(ValueError):
        executor.copy_params_from({"nothing": mx.nd.ones(2)})
    with pytest.raises(mx.MXNetError, match=r"bn_gamma has shape \(1,\), expected \(2,\)"):
        executor.copy_params_from({"bn_gamma": mx.nd.ones(1)})
    assert executor.get_optimized_symbol().list_outputs() == list(executor.output_dict)
    executor.copy_params_from({"nothing": mx.nd.ones(2)}, allow_extra_params=True)


def test_dropout_follows_is_train():
    executor = mx.sym.Dropout(mx.sym.var("x"), p=0.5).simple_bind(on(0), x=(1000,))
    executor.arg_dict["x"][:] = 1
    assert executor.forward(is_train=False)[0].asnumpy().min() == 1
    assert set(np.unique(executor.forward(is_train=True)[0].asnumpy())) == {0, 2}


def test_invalid_binds_raise():
    symbol = mx.sym.var("a") + mx.sym.var("b")
    one = mx.nd.ones(2)
    for error, call in (
        (ValueError, lambda: symbol.bind(on(0), [one])),
        (ValueError, lambda: symbol.bind(on(0), {"a": one})),
        (TypeError, lambda: symbol.bind(on(0), [one, 3])),
        (TypeError, lambda: symbol.bind("cpu", [one, one])),
        (mx.MXNetError, lambda: symbol.bind(on(0), [one, one.as_in_context(on(1))])),
        (mx.MXNetError, lambda: symbol.bind(on(0), [one, mx.nd.ones(3)]).forward()),
        (mx.MXNetError, lambda: symbol.bind(on(0), [one, one], [mx.nd.ones(3), one])),
        (mx.MXNetError, lambda: symbol.simple_bind(on(0))),
        (mx.MXNetError, lambda: symbol.simple_bind(on(0), a=(2,), b=(3,))),
        (TypeError, lambda: bound(symbol, a=one, b=one).forward(c=one)),
        (ValueError, lambda: bound(symbol, a=one, b=one).forward(a=mx.nd.ones(3))),
    ):
        with pytest.raises(error):
            call()
    with pytest.raises(ValueError, match="Duplicate"):
        mx.sym.Group([symbol, symbol]).bind(on(0), [one, one]).output_dict


def test_errors_name_the_node():
    symbol = mx.sym.dot(mx.sym.var("a"), mx.sym.var("b"), name="product")
    with pytest.raises(mx.MXNetError, match="product"):
        symbol.eval(a=mx.nd.ones((2, 3)), b=mx.nd.ones((2, 3)))


def test_reshape_shares_memory():
    net = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="fc")
    executor = net.simple_bind(on(0), x=(5, 4))
    executor.arg_dict["fc_weight"][:] = 1
    executor.arg_dict["x"][:] = 1
    smaller = executor.reshape(x=(2, 4))
    assert smaller.forward()[0].shape == (2, 3)
    assert smaller.arg_dict["fc_weight"] is executor.arg_dict["fc_weight"]
    assert smaller.outputs[0].asnumpy().min() == 4  # shares memory with the larger executor
    raises(mx.MXNetError, "allow_up_sizing", lambda: executor.reshape(x=(6, 4)))
    assert executor.reshape(allow_up_sizing=True, x=(6, 4)).forward()[0].shape == (6, 3)
    raises(mx.MXNetError, "partial_shaping", lambda: executor.reshape(x=(5, 3)))
    trained(smaller, mx.nd.ones((2, 3)))
    assert executor.grad_dict["fc_weight"].asnumpy().min() == 2


def test_monitor_receives_outputs_and_gradients():
    seen = []
    net = mx.sym.relu(mx.sym.var("x") + 1, name="r")
    executor = bound(net, x=mx.nd.ones(2))
    executor.set_monitor_callback(
        lambda name, array: seen.append((name, array.asnumpy().tolist())), monitor_all=True
    )
    trained(executor, mx.nd.ones(2))
    assert [name for name, _ in seen][-4:-2] == ["r_data", "r_output"] and seen[-3][1] == [2, 2]
    assert seen[-2:] == [
        ("r_backward_output", [1, 1]),
        (f"{net.get_children().name}_backward_output", [1, 1]),
    ]
    assert executor.grad_dict["x"].asnumpy().tolist() == [1, 1]


def test_shared_arguments_are_the_same_arrays():
    net = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="fc")
    first = net.simple_bind(on(0), x=(5, 4))
    second = net.simple_bind(
        on(0), x=(2, 4), shared_arg_names=["fc_weight", "fc_bias"], shared_exec=first
    )
    assert second.arg_dict["fc_weight"] is first.arg_dict["fc_weight"]
    assert second.grad_dict["fc_bias"] is first.grad_dict["fc_bias"]
    buffer = {}
    third = net.simple_bind(on(0), x=(5, 4), shared_buffer=buffer)
    assert buffer["x"] is third.arg_dict["x"]
    fourth = net.simple_bind(on(0), x=(2, 4), shared_buffer=buffer)
    third.arg_dict["x"][:] = 7
    assert fourth.arg_dict["x"].asnumpy().min() == 7


def test_deep_chain_runs():
    symbol = x = mx.sym.var("x")
    for _ in range(2000):
        symbol = symbol + x
    executor = bound(symbol, x=mx.nd.ones(2))
    trained(executor, mx.nd.ones(2))
    assert executor.grad_dict["x"].asnumpy().tolist() == [2001, 2001]


def test_zero_sizes_of_created_arrays_are_inferred():
    """A size of 0 in sym.zeros and similar ops is unknown and follows from the array's uses."""
    state = mx.sym.zeros((0, 4)) + 1
    net = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=4, no_bias=True, name="fc") + state
    assert net.infer_shape(x=(3, 5))[1] == [(3, 4)]
    executor = net.simple_bind(on(0), x=(3, 5))
    assert executor.forward(is_train=True)[0].asnumpy().tolist() == [[1] * 4] * 3
    executor.backward(mx.nd.ones((3, 4)))
    assert executor.reshape(x=(2, 5)).forward()[0].shape == (2, 4)
    block = gluon.SymbolBlock(net, mx.sym.var("x"))
    block.initialize()
    assert block(mx.nd.ones((6, 5))).shape == (6, 4) and block(mx.nd.ones((2, 5))).shape == (2, 4)


def test_simple_bind_uses_variable_dtype_and_reports_memory():
    executor = (mx.sym.var("x", dtype="float64") * 2).simple_bind(on(0), x=(512, 1024))
    assert executor.arg_arrays[0].dtype == np.float64
    assert "MB allocated" in executor.debug_str()


# --- Gluon ----------------------------------------------------------------------------------------


def network():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, padding=1),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.MaxPool2D(),
            nn.Flatten(),
            nn.Dense(5),
            nn.LayerNorm(),
        )
    return net


def test_block_called_with_a_symbol_returns_a_symbol():
    net = network()
    symbol = net(mx.sym.var("data"))
    assert isinstance(symbol, mx.sym.Symbol) and "net_conv0_weight" in symbol.list_arguments()
    assert symbol.list_auxiliary_states() == [
        "net_batchnorm0_running_mean",
        "net_batchnorm0_running_var",
    ]
    assert "net_relu0_fwd_output" in symbol.get_internals().list_outputs()
    assert net(mx.sym.var("data")).list_arguments() == symbol.list_arguments()


def test_exported_block_is_imported(tmp_path):
    net = network()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = values(2, 3, 8, 8)
    raises(RuntimeError, "hybridize", lambda: net.export(str(tmp_path / "net")))
    expected = net(x).asnumpy()
    symbol_file, param_file = net.export(str(tmp_path / "net"), epoch=3)
    assert param_file.endswith("net-0003.params")
    assert {name[:4] for name in mx.nd.load(param_file)} == {"arg:", "aux:"}
    block = gluon.SymbolBlock.imports(symbol_file, ["data"], param_file)
    np.testing.assert_array_equal(block(x).asnumpy(), expected)
    backward_of(lambda: (block(x) ** 2).sum())
    backward_of(lambda: (net(x) ** 2).sum())
    for name, param in net.collect_params().items():
        if param.grad_req != "null":
            np.testing.assert_allclose(
                block.params[name].grad().asnumpy(), param.grad().asnumpy(), rtol=1e-5, atol=1e-6
            )
    with pytest.raises(ValueError, match="no input"):
        gluon.SymbolBlock.imports(symbol_file, ["dta"], param_file)
    arrays = mx.nd.load(param_file)
    arrays.popitem()
    mx.nd.save(param_file, arrays)
    with pytest.raises(AssertionError, match="missing"):
        gluon.SymbolBlock.imports(symbol_file, ["data"], param_file)


def test_symbol_without_parameters_is_imported(tmp_path):
    x = mx.sym.var("data")
    (x * 2).save(str(tmp_path / "a-symbol.json"))
    mx.nd.save(str(tmp_path / "a-0000.params"), {})
    block = gluon.SymbolBlock.imports(
        str(tmp_path / "a-symbol.json"), "data", str(tmp_path / "a-0000.params")
    )
    assert block(mx.nd.ones((2,))).asnumpy().tolist() == [2, 2]


def test_symbol_block_returns_internal_outputs():
    net = network()
    net.initialize()
    x = values(2, 3, 8, 8)
    expected = [net[:3](x).asnumpy(), net(x).asnumpy()]
    symbol = net(mx.sym.var("data"))
    block = gluon.SymbolBlock(
        [symbol.get_internals()["net_relu0_fwd_output"], symbol],
        mx.sym.var("data"),
        params=net.collect_params(),
    )
    for _ in range(2):
        for got, want in zip(block(x), expected):
            np.testing.assert_allclose(got.asnumpy(), want, rtol=1e-6, atol=1e-6)
        block.hybridize(False)
    nested = nn.HybridSequential()
    nested.add(
        gluon.SymbolBlock(symbol, mx.sym.var("data"), params=net.collect_params()), nn.Dense(2)
    )
    nested[1].initialize()
    nested.hybridize()
    assert nested(x).shape == (2, 2)
    again = nested(mx.sym.var("other"))
    assert "other" in again.list_arguments() and "data" not in again.list_arguments()


def test_symbol_block_infers_shapes():
    block = gluon.SymbolBlock(
        mx.sym.FullyConnected(mx.sym.var("a") + mx.sym.var("b"), num_hidden=3, name="fc"),
        [mx.sym.var("a"), mx.sym.var("b")],
    )
    block.initialize()
    assert block(mx.nd.ones((2, 4)), mx.nd.ones((2, 4))).shape == (2, 3)
    assert block.params["fc_weight"].shape == (3, 4)
    with pytest.raises(AssertionError):
        gluon.SymbolBlock(mx.sym.relu(mx.sym.var("a")), mx.sym.relu(mx.sym.var("a")))


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_exported_recurrent_layer_is_imported(tmp_path, layout):
    layer = gluon.rnn.LSTM(4, num_layers=2, bidirectional=True, layout=layout, prefix="lstm_")
    layer.initialize(mx.init.Uniform(0.5))
    layer.hybridize()
    x = values(3, 2, 5)
    expected = layer(x)
    block = gluon.SymbolBlock.imports(
        *layer.export(str(tmp_path / "lstm"))[:1],
        ["data0", "data1", "data2"],
        str(tmp_path / "lstm-0000.params"),
    )
    begin = layer.begin_state(batch_size=2 if layout == "TNC" else 3)
    np.testing.assert_allclose(block(x, *begin).asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)
    other = values(5, 6, 5)  # different length and batch size
    assert block(other, *layer.begin_state(batch_size=6 if layout == "TNC" else 5)).shape == (
        5,
        6,
        8,
    )
    output, states = layer(x, begin)
    symbol = layer(mx.sym.var("x"), [mx.sym.var("h"), mx.sym.var("c")])
    found = mx.sym.Group([symbol[0], *symbol[1]]).eval(
        x=x,
        h=begin[0],
        c=begin[1],
        **{name: param.data() for name, param in layer.collect_params().items()},
    )
    for got, want in zip(found, [output, *states]):
        np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)


def test_ops_without_gradient_raise_at_bind():
    both = [mx.sym.Variable("x") * 2, mx.sym.Variable("y")]
    finite = mx.sym.multi_all_finite(*both, num_arrays=2, name="finite")
    shapes = {"x": (3, 4), "y": (3,)}
    with pytest.raises(mx.MXNetError, match="finite: multi_all_finite has no gradient"):
        (finite + 1).simple_bind(on(0), **shapes)
    mx.sym.BlockGrad(finite).simple_bind(on(0), **shapes).forward()
    finite.simple_bind(on(0), grad_req="null", **shapes).forward()
    finite.simple_bind(on(0), grad_req={"x": "null", "y": "null"}, **shapes).forward()


def test_variables_of_the_same_name_raise_at_bind():
    """As in MXNet, because the dicts of arrays can hold only one of them."""
    symbol = mx.sym.var("a") * mx.sym.var("a")
    for call in (
        lambda: symbol.bind(on(0), [mx.nd.ones((2,)), mx.nd.ones((2,))]),
        lambda: symbol.simple_bind(on(0), a=(2,)),
    ):
        with pytest.raises(
            mx.MXNetError,
            match="bind: different variables are named 'a'; use the same variable everywhere",
        ):
            call()


def test_cached_op_runs_a_symbol():
    x, w = mx.sym.var("x"), mx.sym.var("w")
    f = nd.CachedOp(mx.sym.Group([x * w + mx.sym.ones((2,)), x - w]), {"static_alloc": "True"})
    a, b = nd.array([1.0, 2.0]), nd.array([3.0, 4.0])
    b.attach_grad()
    for times in (3, 4):
        with mx.autograd.record():
            product, difference = f(a * times, b)
        mx.autograd.backward([product, difference])
        assert product.asnumpy().tolist() == [3 * times + 1, 8 * times + 1]
        assert b.grad.asnumpy().tolist() == [times - 1, 2 * times - 1]
    taken = [nd.zeros(2), nd.zeros(2)]
    assert f(a, b, out=taken) is taken and taken[1].asnumpy().tolist() == [-2, -2]
    assert nd.CachedOp(x * x)(nd.ones((3, 1))).shape == (3, 1)
    raises(MXNetError, "got 1 arrays, but there are 2 inputs: x, w", lambda: f(a))
    raises(MXNetError, "out has 1 arrays, but there are 2 outputs", lambda: f(a, b, out=a))


def test_cached_op_updates_auxiliary_states():
    data = mx.sym.var("data")
    net = mx.sym.BatchNorm(data, name="bn", momentum=0.5, fix_gamma=False)
    f = nd.CachedOp(net)
    assert net.list_inputs() == ["data", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]
    mean = nd.zeros(1)
    with mx.autograd.record():
        f(nd.array([[2.0], [4.0]]), nd.ones(1), nd.zeros(1), mean, nd.ones(1))
    assert mean.asscalar() == 1.5


def test_executor_binds_pinned_arrays():
    """Pinned arrays belong to the CPU device of the same index, which also holds the gradients."""
    x = nd.array([1, 2], ctx=mx.cpu_pinned(1))
    for ctx in (mx.cpu(1), mx.cpu_pinned(1)):
        grad = nd.zeros((2,), ctx=mx.cpu(1))
        bound = (mx.sym.var("x") * 3).bind(ctx, {"x": x}, {"x": grad})
        assert bound.forward(is_train=True)[0].asnumpy().tolist() == [3, 6]
        bound.backward([nd.ones((2,), ctx=mx.cpu(1))])
        assert grad.asnumpy().tolist() == [3, 3]
    with pytest.raises(MXNetError, match=r"cpu_pinned\(1\), but the executor is on cpu\(0\)"):
        (mx.sym.var("x") * 3).bind(mx.cpu(0), {"x": x})
