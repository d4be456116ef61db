"""Ops written in Python: eager, in hybridized blocks and in symbols."""

import gc
import json
import weakref

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.calls import raises
from support.compare import close, same_bits
from support.devices import on
from support.training import backward_of, variable


class Power(mx.operator.CustomOp):
    def __init__(self, exponent):
        self.exponent = exponent

    def forward(self, is_train, req, in_data, out_data, aux):
        aux[0][:] += 1
        self.assign(
            out_data[0],
            req[0],
            mx.nd.array(in_data[0].asnumpy() ** self.exponent, ctx=in_data[0].context),
        )
        self.assign(out_data[1], "add", in_data[0] + int(is_train))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(
            in_grad[0],
            req[0],
            self.exponent * in_data[0] ** (self.exponent - 1) * out_grad[0] + out_grad[1],
        )


@mx.operator.register("test_power")
class PowerProp(mx.operator.CustomOpProp):
    def __init__(self, exponent="2"):
        super().__init__()
        self.exponent = int(exponent)

    def list_outputs(self):
        return ["power", "same"]

    def list_auxiliary_states(self):
        return ["calls"]

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0]] * 2, [(1,)]

    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Power(self.exponent)


@mx.operator.register("test_softmax")
class SoftmaxProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],)], [in_shape[0]], []

    def create_operator(self, ctx, in_shapes, in_dtypes):
        class Softmax(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                self.assign(out_data[0], req[0], mx.nd.softmax(in_data[0]))

            def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
                label = mx.nd.one_hot(in_data[1], in_data[0].shape[1])
                self.assign(in_grad[0], req[0], out_data[0] - label)

        return Softmax()


@pytest.mark.parametrize("device", [mx.cpu(0), mx.cpu(2)])
@pytest.mark.parametrize("hybrid", [False, True])
def test_custom_op_works_in_eager_and_hybridized_blocks(hybrid, device):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x, calls):
            power, same = F.Custom(F.relu(x), calls, op_type="test_power", exponent=3)
            return power * 2 + same

    net = Net()
    net.hybridize(hybrid)
    x, calls = mx.nd.array([1, 2, -3], ctx=device), mx.nd.zeros(1, ctx=device)
    x.attach_grad()
    for call in range(1, 4):
        y = backward_of(lambda: net(x, calls))
        assert y.asnumpy().tolist() == [4, 19, 1]
        assert x.grad.asnumpy().tolist() == [7, 25, 0]
        assert calls.asscalar() == call
        assert y.context == device
    assert net(x, calls).asnumpy().tolist() == [3, 18, 0]  # "same" adds 1 only in training


def test_custom_op_is_a_symbol_node_that_saves_and_loads():
    power = mx.sym.Custom(
        data=mx.sym.var("x") + 1,
        op_type="test_power",
        exponent=3,
        name="p",
        attr={"ctx_group": "g"},
    )
    assert power.list_outputs() == ["p_power", "p_same"]
    assert power.list_auxiliary_states() == ["p_calls"]
    assert power.attr("op_type") == "test_power" and power.attr("ctx_group") == "g"
    assert power.infer_shape(x=(2, 3)) == ([(2, 3)], [(2, 3)] * 2, [(1,)])
    assert power.infer_type(x="float64")[1] == [np.float64] * 2
    net = mx.sym.load_json((power[0] * 2 + power[1]).tojson())
    executor = net.simple_bind(mx.cpu(), x=(3,), group2ctx={"g": mx.cpu(1)})
    for _ in range(3):
        executor.forward(is_train=True, x=mx.nd.array([0, 1, 2]))
        executor.backward([mx.nd.ones(3)])
    assert executor.outputs[0].asnumpy().tolist() == [4, 19, 58]
    assert executor.grad_dict["x"].asnumpy().tolist() == [7, 25, 55]
    assert executor.aux_dict["p_calls"].asscalar() == 3
    executor.set_monitor_callback(lambda name, array: None)
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones(3)])
    assert executor.grad_dict["x"].asnumpy().tolist() == [7, 25, 55]


def test_custom_loss_trains_module_like_builtin():
    data = np.random.RandomState(0).uniform(-1, 1, (64, 4)).astype("float32")
    label = (data.sum(axis=1) > 0).astype("float32")
    params = []
    for custom in (True, False):
        scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
        loss = (
            mx.sym.Custom(
                scores, mx.sym.var("softmax_label"), op_type="test_softmax", name="softmax"
            )
            if custom
            else mx.sym.SoftmaxOutput(scores, name="softmax")
        )
        module = mx.mod.Module(loss)
        mx.random.seed(0)
        module.fit(mx.io.NDArrayIter(data, label, 16), num_epoch=2, initializer=mx.init.Xavier())
        params.append(module.get_params()[0])
    for name, array in params[0].items():
        np.testing.assert_allclose(array.asnumpy(), params[1][name].asnumpy(), rtol=1e-5, atol=1e-7)
    inferred = mx.sym.Custom(data=mx.sym.var("x"), op_type="test_softmax", name="s")
    assert inferred.list_arguments() == ["x", "s_label"]
    assert inferred.infer_shape(x=(5, 3))[0] == [(5, 3), (5,)]


def test_custom_op_that_keeps_its_results_is_freed():
    class Keeping(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * 2)
            self.kept = out_data
            made.append(weakref.ref(self))

    @mx.operator.register("keeping")
    class KeepingProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Keeping()

    made = []
    x = variable(nd.ones((2,)))
    with autograd.record():
        y = nd.Custom(x, op_type="keeping")
    del y
    gc.collect()
    assert made[0]() is None


def test_custom_op_errors_are_reported():
    @mx.operator.register("test_wrong")
    class Wrong(mx.operator.CustomOpProp):
        def __init__(self, what="forward"):
            super().__init__()
            self.what = what

        def infer_shape(self, in_shape):
            if self.what == "shape":
                raise KeyError("oops")
            if self.what == "size":
                return in_shape, [[-1, 3]], []
            return in_shape, [in_shape[0]] * (2 if self.what == "count" else 1), []

        def create_operator(self, ctx, in_shapes, in_dtypes):
            what = self.what

            class Op(mx.operator.CustomOp):
                def forward(self, is_train, req, in_data, out_data, aux):
                    if what == "forward":
                        raise ValueError("bad input")
                    self.assign(out_data[0], req[0], in_data[0])

            return Op()

    x = mx.nd.ones(3)
    with pytest.raises(TypeError, match="'data' is a ndarray"):
        mx.nd.Custom(x.asnumpy(), op_type="test_wrong")
    for what, message in [
        ("forward", "forward of 'test_wrong' failed: ValueError: bad input"),
        ("shape", "infer_shape of 'test_wrong' failed.*oops"),
        ("count", "returned 2 outputs"),
        ("size", "infer_shape of 'test_wrong' failed.*negative"),
    ]:
        raises(mx.MXNetError, message, lambda: mx.nd.Custom(x, op_type="test_wrong", what=what))
    x.attach_grad()
    with autograd.record():
        y = mx.nd.Custom(x, op_type="test_wrong", what="none")
    with pytest.raises(mx.MXNetError, match="backward of 'test_wrong' failed: NotImplementedError"):
        y.backward()
    with pytest.raises(mx.MXNetError, match="constructor of 'test_wrong' failed"):
        mx.nd.Custom(x, op_type="test_wrong", unknown=1)
    with pytest.raises(mx.MXNetError, match="no op is registered as 'nothing'"):
        mx.sym.Custom(mx.sym.var("x"), op_type="nothing")
    with pytest.raises(mx.MXNetError, match="p: Custom: no op is registered as 'gone'"):
        mx.sym.load_json(
            mx.sym.Custom(mx.sym.var("x"), op_type="test_wrong", name="p")
            .tojson()
            .replace("test_wrong", "gone")
        )
    raises(TypeError, "'label' is missing", lambda: mx.nd.Custom(x, op_type="test_softmax"))
    with pytest.raises(mx.MXNetError, match=r"different devices: label on cpu\(1\)"):
        mx.nd.Custom(mx.nd.ones((2, 2)), mx.nd.ones(2, ctx=mx.cpu(1)), op_type="test_softmax")
    for calls, message in [
        (mx.nd.zeros((2,)), r"infer_shape of 'test_power' expected calls to be \(1,\), got \(2,\)"),
        (
            mx.nd.zeros((1,), dtype="int32"),
            "infer_type of 'test_power' expected calls to be float32",
        ),
    ]:
        raises(mx.MXNetError, message, lambda: mx.nd.Custom(x, calls, op_type="test_power"))
    raises(TypeError, "not a subclass", lambda: mx.operator.register("x")(int))
    raises(ValueError, "assign", lambda: mx.operator.CustomOp().assign(x, "put", x))


@pytest.mark.parametrize("hybrid", [False, True])
def test_custom_op_has_no_second_gradient(hybrid):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x, calls):
            return F.Custom(F.relu(x), calls, op_type="test_power", exponent=3)[0]

    net = Net()
    net.hybridize(hybrid)
    x = variable(mx.nd.array([1.0, 2.0]))
    with autograd.record():
        (g,) = autograd.grad(net(x, mx.nd.zeros(1)), [x], create_graph=True)
    assert g.asnumpy().tolist() == [3, 12]
    raises(mx.MXNetError, "has no gradient", g.backward)


def test_registered_ops_and_their_arguments_are_listed():
    assert {"Convolution", "dot"} <= set(mx.operator.get_all_registered_operators())
    found = mx.operator.get_operator_arguments("Activation")
    assert found.names == ["data", "act_type"] and found.narg == 2


@pytest.mark.parametrize("hybrid", [False, True])
def test_custom_op_inputs_move_to_its_device_group(hybrid):
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            with mx.AttrScope(ctx_group="a"):
                scores = F.relu(x)
            with mx.AttrScope(ctx_group="b"):
                if not hybrid:
                    scores = variable(scores.detach())
                    assert scores.grad.context == scores.context
                return F.Custom(scores, x.sum(axis=1), op_type="test_softmax")

    net = Net()
    net.initialize(group2ctx={"a": mx.cpu(1), "b": mx.cpu(2)})
    net.hybridize(hybrid)
    assert net(mx.nd.ones((2, 3))).context == mx.cpu(2)


# Storage types, devices and profiles


class Squares(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.seen = [array.stype for array in (*in_data, *out_data)]
        assert mx.current_context() == in_data[0].context == nd.zeros((1,)).context
        self.assign(out_data[0], req[0], nd.sparse.square(in_data[0]))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 2 * in_data[0].tostype("default") * out_grad[0])


class SquaresProp(mx.operator.CustomOpProp):
    made = []

    def create_operator(self, ctx, in_shapes, in_dtypes):
        assert isinstance(ctx, mx.Context)
        self.made.append(Squares())
        return self.made[-1]


@mx.operator.register("test_squares")
class SparseSquaresProp(SquaresProp):
    def infer_storage_type(self, in_stype):
        return in_stype, in_stype, []


mx.operator.register("test_dense_squares")(SquaresProp)


def test_custom_op_supports_sparse_arrays():
    dense = nd.array([[0, 2, 0], [3, 0, 0]])
    x = dense.tostype("csr")
    y = nd.Custom(x, op_type="test_squares")
    assert y.stype == "csr" and SquaresProp.made.pop().seen == ["csr", "csr"]
    np.testing.assert_array_equal(y.asnumpy(), dense.asnumpy() ** 2)
    x.attach_grad()
    y = backward_of(lambda: nd.Custom(x, op_type="test_squares"))
    np.testing.assert_array_equal(x.grad.asnumpy(), 2 * dense.asnumpy())
    assert nd.Custom(dense, op_type="test_squares").stype == "default"
    with pytest.raises(
        mx.MXNetError, match="test_dense_squares.*input 0 is csr; an op with sparse"
    ):
        nd.Custom(x, op_type="test_dense_squares")
    prop = SquaresProp()
    assert prop.infer_storage_type_backward(["csr"], ["csr"], ["csr"], ["csr"], []) == (
        *[["default"]] * 4,
        [],
    )


@pytest.mark.parametrize("way", ["eager", "hybridized", "symbol"])
def test_profiler_names_the_custom_op(way):
    mx.profiler.start()
    x = variable(nd.array([1, 2], ctx=on(1)))
    if way == "symbol":
        sym = mx.sym.Custom(mx.sym.var("x"), op_type="test_squares")
        executor = sym.bind(on(1), [x], {"x": nd.zeros((2,), ctx=on(1))})
        executor.forward(is_train=True)
        executor.backward(nd.ones((2,), ctx=on(1)))
    else:
        net = gluon.nn.HybridLambda(lambda F, x: F.Custom(x, op_type="test_squares"))
        if way == "hybridized":
            net.hybridize()
        backward_of(lambda: net(x))
    nd.waitall()
    mx.profiler.stop()
    times = json.loads(mx.profiler.dumps(format="json"))["Time"]["Custom Operator"]
    for name in ("", "_backward_"):
        assert times[f"{name}test_squares::pure_python"]["Count"] == 1
    assert times["test_squares::square"]["Count"] == 1
    assert {"test_squares::_zeros", "_backward_test_squares::_mul_scalar"} <= set(times)
    assert "test_squares::square" in mx.profiler.dumps()


@mx.operator.register("test_no_input")
class NoInputProp(mx.operator.CustomOpProp):
    def __init__(self, length):
        super().__init__()
        self.length = int(length)

    def list_arguments(self):
        return []

    def infer_shape(self, in_shape):
        return [], [(self.length,)], []

    def infer_type(self, in_type):
        return [], [np.float64], []

    def create_operator(self, ctx, in_shapes, in_dtypes):
        class Counts(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                self.assign(out_data[0], req[0], np.arange(out_data[0].size))

        return Counts()


def test_custom_op_without_inputs_runs():
    with autograd.record():
        y = nd.Custom(length=3, op_type="test_no_input")
    assert y.dtype == np.float64 and y.asnumpy().tolist() == [0, 1, 2]


@mx.operator.register("test_row_scale")
class RowScaleProp(mx.operator.CustomOpProp):
    def list_arguments(self):
        return ["data", "scale", "shift"]

    def list_auxiliary_states(self):
        return ["calls"]

    def infer_shape(self, in_shape):
        rows, columns = in_shape[0]
        return [in_shape[0], (columns,), (rows, 1)], [in_shape[0]], [(1,)]

    def create_operator(self, ctx, shapes, dtypes):
        class RowScale(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                aux[0][:] += 1
                self.assign(out_data[0], req[0], in_data[0] * in_data[1] + in_data[2])

            def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
                self.assign(in_grad[0], req[0], out_grad[0] * in_data[1])
                self.assign(in_grad[1], req[1], (out_grad[0] * in_data[0]).sum(axis=0))
                self.assign(in_grad[2], req[2], out_grad[0].sum(axis=1, keepdims=True))

        return RowScale()


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
def test_custom_infer_shape_determines_parameter_shapes(hybridize, by_name):
    class Layer(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            for name, shape, init in (
                ("scale", (0,), "ones"),
                ("shift", (0, 0), "ones"),
                ("calls", (0,), "zeros"),
            ):
                param = self.params.get(name, shape=shape, init=init, allow_deferred_init=True)
                setattr(self, name, param)

        def hybrid_forward(self, F, x, scale, shift, calls):
            if by_name:
                return F.Custom(x, calls=calls, shift=shift, scale=scale, op_type="test_row_scale")
            return F.Custom(x, scale, shift, calls, op_type="test_row_scale")

    layer = Layer()
    layer.initialize()
    if hybridize:
        layer.hybridize()
    out = backward_of(lambda: layer(nd.array([[1, 2, 3], [4, 5, 6]])))
    assert out.asnumpy().tolist() == [[2, 3, 4], [5, 6, 7]]
    assert layer.scale.grad().asnumpy().tolist() == [5, 7, 9]
    assert layer.shift.grad().asnumpy().tolist() == [[3], [3]] and layer.calls.shape == (1,)


class Product(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], nd.exp(in_data[0]) * in_data[1])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * out_data[0])
        self.assign(in_grad[1], req[1], out_grad[0] * nd.exp(in_data[0]))


@mx.operator.register("product_of_exp")
class ProductProp(mx.operator.CustomOpProp):
    def list_arguments(self):
        return ["left", "right"]

    def create_operator(self, ctx, shapes, dtypes):
        return Product()


def product(F, x, y):
    return F.Custom(x, y, op_type="product_of_exp")


@pytest.mark.parametrize("hybrid", [False, True])
def test_custom_op_gradient_uses_values_before_overwrite(hybrid):
    """Gradients use the values that forward read."""
    block = mx.gluon.nn.HybridLambda(product)
    if hybrid:
        block.hybridize()
    x, y = nd.array([0.0, 1.0]), nd.array([2.0, 3.0])
    x.attach_grad()
    y.attach_grad()
    for _ in range(2):
        x[:], y[:] = nd.array([0.0, 1.0]), nd.array([2.0, 3.0])
        with autograd.record():
            out = block(x, y)
        x[:], y[:] = 7, 8
        out *= 9
        out.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), np.exp([0, 1]) * [2, 3], rtol=1e-6)
        np.testing.assert_allclose(y.grad.asnumpy(), np.exp([0, 1]), rtol=1e-6)


@pytest.mark.parametrize("hybrid", [False, True])
def test_custom_op_accepts_empty_inputs(hybrid):
    block = mx.gluon.nn.HybridLambda(product)
    if hybrid:
        block.hybridize()
    x = variable(nd.zeros((0, 3)))
    out = backward_of(lambda: block(x, nd.zeros((0, 3))))
    assert out.shape == x.grad.shape == (0, 3)


def test_custom_op_input_given_twice_is_refused():
    x, s = nd.ones(2), mx.sym.var("x")
    raises(TypeError, "'left' twice", lambda: nd.Custom(x, x, left=x, op_type="product_of_exp"))
    raises(TypeError, "'left' twice", lambda: mx.sym.Custom(s, s, left=s, op_type="product_of_exp"))


@pytest.mark.parametrize("what", ["list_arguments", "list_outputs", "infer_type"])
def test_custom_op_prop_method_returning_none_is_reported(what):
    name = f"gives_no_{what}"
    mx.operator.register(name)(type("Nothing", (ProductProp,), {what: lambda self, *_: None}))
    with pytest.raises(mx.MXNetError, match=f"{what} of '{name}'"):
        nd.Custom(nd.ones(2), nd.ones(2), op_type=name)


class LayerOp(mx.operator.CustomOp):
    """Applies a layer with parameters, and differentiates it with a tape of its own."""

    def __init__(self, layer):
        self.layer = layer

    def forward(self, is_train, req, in_data, out_data, aux):
        assert not autograd.is_recording() and autograd.is_training() == is_train
        assert not in_data[0]._in_trace
        self.assign(out_data[0], req[0], self.layer(in_data[0]))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], layer_gradient(self.layer, in_data[0], out_grad[0]))


def layer_gradient(layer, x, top):
    assert not autograd.is_recording()
    x = variable(x.copy())
    with autograd.record():
        y = layer(x)
    y.backward(top)
    return x.grad


class LayerProp(mx.operator.CustomOpProp):
    def infer_shape(self, in_shape):
        return in_shape, [(in_shape[0][0], 5)], []

    def create_operator(self, ctx, shapes, dtypes):
        return LayerOp(self.layer)


class LayerFunction(autograd.Function):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        self.save_for_backward(x)
        return self.layer(x)

    def backward(self, top):
        return layer_gradient(self.layer, self.saved_tensors[0], top)


class HostLayer(gluon.HybridBlock):
    """A layer that an op on the host calls, directly or in a loop or branch."""

    def __init__(self, function, where, units):
        super().__init__()
        self.function, self.where = function, where
        with self.name_scope():
            self.inner = gluon.nn.HybridSequential()
            self.inner.add(
                gluon.nn.Dense(5, in_units=units, activation="tanh"),
                gluon.nn.BatchNorm(in_channels=units),
                gluon.nn.Dropout(0.5),
            )
        self.op = f"layer_of_{self.name}"
        mx.operator.register(self.op)(type("Prop", (LayerProp,), {"layer": self.inner}))

    def on_host(self, F, x):
        return LayerFunction(self.inner)(x) if self.function else F.Custom(x, op_type=self.op)

    def hybrid_forward(self, F, x):
        if self.where == "foreach":
            rows = x.reshape((2, -1, 5))
            return F.contrib.foreach(
                lambda r, s: (self.on_host(F, r) + s, s), rows, F.ones((1, 5))
            )[0].reshape((-1, 5))
        if self.where == "cond":
            return F.contrib.cond(
                x.sum() > 0, lambda: self.on_host(F, x), lambda: self.on_host(F, -x)
            )
        return self.on_host(F, x)


@pytest.mark.parametrize("units", [5, 0])
@pytest.mark.parametrize(
    "function, where",
    [
        *[(function, where) for where in ("block", "foreach", "placed") for function in (0, 1)],
        (False, "cond"),  # a Function's result has an unknown shape, which branches reject
    ],
)
def test_layers_run_on_values_inside_host_ops(function, where, units):
    """No trace is active in a CustomOp or Function, so layers there run as in eager code."""

    def train(hybrid, inner_hybrid, **options):
        mx.random.seed(3)
        net = gluon.nn.HybridSequential()
        host = HostLayer(function, where, units)
        net.add(gluon.nn.Dense(5, in_units=5), host, gluon.nn.Dense(3, in_units=5))
        if where == "placed":
            mx.parallel.Mesh({"stage": 3}, [mx.cpu(0), mx.cpu(1), mx.cpu(2)]).place(net)
        net.initialize(mx.init.Xavier())
        net.hybridize(hybrid, exact=True, **options)
        host.inner.hybridize(inner_hybrid, exact=True)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        x, results = nd.random.uniform(shape=(4, 5)), []
        for _ in range(3):
            y = backward_of(lambda: net(x))
            trainer.step(4)
            results.append(y.asnumpy())
        results.append(net(x).asnumpy())
        return results + [p.data().asnumpy() for p in net.collect_params().values()]

    wanted = train(False, False)
    for inner_hybrid in (False, True):
        same_bits(train(True, inner_hybrid), wanted)
    same_bits(train(True, False, recompute=True), wanted)


def test_layers_run_in_host_ops_after_a_pipelined_block():
    def train(pipelined):
        mx.random.seed(4)
        body, head = gluon.nn.HybridSequential(), HostLayer(False, "block", 5)
        body.add(gluon.nn.Dense(5, in_units=5, activation="tanh"), gluon.nn.Dense(5, in_units=5))
        if pipelined:
            mx.parallel.Mesh({"stage": 2}, [mx.cpu(0), mx.cpu(1)]).place(body)
            body.hybridize(pipeline=mx.parallel.Pipeline(2), exact=True)
            head.hybridize(exact=True)
        for block in (body, head):
            block.initialize(mx.init.Xavier())
        params = {**body.collect_params(), **head.collect_params()}
        trainer = gluon.Trainer(params, "sgd", {"learning_rate": 0.1})
        x = nd.random.uniform(shape=(4, 5))
        for _ in range(2):
            y = backward_of(lambda: head(body(x).as_in_context(mx.cpu(0))))
            trainer.step(4)
        return [y, *[p.data() for p in params.values()]]

    for found, wanted in zip(train(True), train(False)):
        close(found, wanted)


class Backward(mx.operator.CustomOp):
    """Calls backward in its forward, on a computation that the test recorded."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)
        BackwardProp.run()

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("calls_backward")
class BackwardProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Backward()


class BackwardFunction(autograd.Function):
    def forward(self, x):
        BackwardProp.run()
        return x * 2

    def backward(self, top):
        return top * 2


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda x: nd.Custom(x, op_type="calls_backward"), "forward of 'calls_backward'"),
        (lambda x: BackwardFunction()(x), "BackwardFunction.forward"),
    ],
)
def test_backward_in_forward_may_not_release_the_outer_computation(call, name):
    x = variable(nd.ones(2))
    with autograd.record():
        hidden = x * 3
        BackwardProp.run = staticmethod(lambda: hidden.backward(retain_graph=True))
        y = call(hidden)
    assert x.grad.asnumpy().tolist() == [3, 3]
    y.backward()
    assert x.grad.asnumpy().tolist() == [6, 6]
    with autograd.record():
        hidden = x * 3
        BackwardProp.run = staticmethod(hidden.backward)
        raises(mx.MXNetError, f"{name} called backward .* retain_graph=True", lambda: call(hidden))
        BackwardProp.run = staticmethod(lambda: None)
        y = call(nd.ones(2))
    raises(mx.MXNetError, "not computed from variables .* retain_graph=True", y.backward)
