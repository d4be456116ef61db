"""`Module._exec_group`, which MXNet programs use to access a module's arrays."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.devices import on

BATCH = mx.io.DataBatch([nd.array(np.arange(8).reshape(4, 2))], [nd.array([0, 1, 2, 0])])


def bound(count, **options):
    """Returns a module on several devices with a batch norm and a layer of 3 units."""
    net = mx.sym.BatchNorm(mx.sym.var("data"), name="norm", fix_gamma=False)
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc")
    module = mx.mod.Module(
        mx.sym.SoftmaxOutput(net, name="softmax"), context=[on(i) for i in range(count)]
    )
    module.bind([("data", (4, 2))], [("softmax_label", (4,))], **options)
    module.init_params(mx.init.One())
    return module


@pytest.mark.parametrize("count", [1, 2])
def test_executor_group_arrays_are_those_of_the_executors(count):
    module = bound(count, inputs_need_grad=True)
    group = module._exec_group
    for arrays, names in (
        (group.param_arrays, group.param_names),
        (group.aux_arrays, group.aux_names),
    ):
        assert len(arrays) == len(names) > 0 and {len(copies) for copies in arrays} == {count}
    assert group.param_arrays[2][count - 1] is group.execs[-1].arg_dict["fc_weight"]
    assert group.grad_arrays[2][count - 1] is group.execs[-1].grad_dict["fc_weight"]
    assert group.input_grad_arrays[0][count - 1] is group.execs[-1].grad_dict["data"]
    (rows, array) = group.data_arrays[0][count - 1]
    assert rows == slice(4 - 4 // count, 4) and array is group.execs[-1].arg_dict["data"]
    assert group.label_arrays[0][0][0] == slice(0, 4 // count)
    assert group.get_output_shapes() == [("softmax_output", (4, 3))]
    assert group.data_names == ["data"] and group.label_names == ["softmax_label"]
    assert group.grad_req["fc_weight"] == "write" and group.grad_req["softmax_label"] == "null"


@pytest.mark.parametrize("count", [1, 2])
def test_executor_group_gradients_can_be_accumulated_clipped_and_cleared(count):
    module = bound(count, grad_req="add")
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 1.0})

    def step():
        module.forward(BATCH, is_train=True)
        module.backward()

    step()
    once = [[one.asnumpy() for one in copies] for copies in module._exec_group.grad_arrays]
    step()
    for copies, before in zip(module._exec_group.grad_arrays, once):
        for array, value in zip(copies, before):
            np.testing.assert_allclose(array.asnumpy(), 2 * value, rtol=1e-5, atol=1e-6)
            array[:] = 0
    module.update()
    assert (module.get_params()[0]["fc_weight"].asnumpy() == 1).all()
    module._exec_group.grad_arrays[-1][0][:] = 4  # the bias, initially 0; SGD divides by the 4 rows
    module.update()
    assert module.get_params()[0]["fc_bias"].asnumpy().tolist() == [-1, -1, -1]


@pytest.mark.parametrize("count", [1, 2])
def test_executor_group_sets_and_gets_parameters(count):
    module = bound(count)
    group = module._exec_group
    group.set_params({"fc_bias": nd.array([1, 2, 3])}, {})
    arguments, states = {"fc_bias": nd.zeros(3)}, {}
    kept = arguments["fc_bias"]
    group.get_params(arguments, states)
    assert kept.asnumpy().tolist() == [1, 2, 3] and set(states) == set(group.aux_names)
    assert (arguments["fc_weight"].asnumpy() == 1).all()
    group.forward(BATCH, is_train=False)
    assert group.get_outputs()[0].shape == (4, 3)


def test_executor_group_for_prediction_has_no_gradients():
    module = bound(1, for_training=False)
    assert module._exec_group.grad_arrays is None and module._exec_group.input_grad_arrays is None
    assert mx.mod.Module(module.symbol)._exec_group is None
