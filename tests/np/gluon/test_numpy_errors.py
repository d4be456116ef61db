"""Errors and warnings for arrays of mx.np name functions of mx.np and mx.npx, not of mx.nd or F."""

import re

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, np, npx

USES = {
    "bool()": (lambda x: x if x.sum() > 0 else -x, "np.where.*npx.cond.*npx.while_loop"),
    "float()": (lambda x: x * float(x.sum()), "np.where"),
    "item()": (lambda x: x * x.sum().item(), "np.take"),
    "int()": (lambda x: x[int(x.sum())], "npx.foreach"),
    "assignment": (lambda x: x.__setitem__(0, 1), "np.concatenate or npx.index_update"),
    "values": (lambda x: np.array(x.asnumpy()), "np.sum"),
}


class Block(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", USES)
def test_values_in_a_traced_block_suggest_functions_of_mx_np(name):
    function, advice = USES[name]
    block = Block(function)
    block.hybridize()
    with pytest.raises(mx.MXNetError, match=advice) as caught:
        block(np.ones((2, 2)))
    assert " F." not in str(caught.value) and "nd." not in str(caught.value)


def test_assignment_while_recording_suggests_functions_of_mx_np():
    x, y = np.ones((2, 2)), np.ones((2, 2))
    x.attach_grad()
    message = "use np.concatenate, np.where or npx.index_update"
    with autograd.record(), pytest.raises(mx.MXNetError, match=message):
        y[0] = x[0] * 2


def test_inputs_of_numpy_are_named_and_converted_by_np_array(tmp_path):
    values = onp.ones((1, 4), "float32")
    with _core.Scope((_core.set_np_array, True)):
        net = gluon.nn.Dense(2)
        net.initialize()
        with pytest.raises(ValueError, match=r"got 'numpy.ndarray'; .* with np.array\(x\)"):
            net(values)
        onp.save(tmp_path / "a.npy", values)
        with pytest.raises(mx.MXNetError, match=r"use np.array\(numpy.load\(file\)\)"):
            npx.load(str(tmp_path / "a.npy"))
    message = r"must be an array of mx.np, got numpy.ndarray; use np.array\(x\)"
    with pytest.raises(TypeError, match=message):
        npx.save(str(tmp_path / "a.params"), {"a": values})


def test_large_numbers_suggest_np_array():
    with pytest.raises(OverflowError, match=r"use an array, np.array\("):
        np.array([1], dtype="int64") + (2**53 + 1)


@pytest.mark.parametrize("shapes", [((2, 3), (3,)), ((3,), (2, 3)), ((2, 3), (2, 4))], ids=str)
@pytest.mark.parametrize("join", [np.concatenate, lambda arrays: mx.nd.concat(*arrays, dim=0)])
def test_concatenation_reports_the_shapes(join, shapes):
    arrays = [np.ones(shape) for shape in shapes]
    text = ", ".join(f"arg{i}: float32 {shape}" for i, shape in enumerate(shapes))
    with pytest.raises(mx.MXNetError, match=rf"equal sizes.*\({re.escape(text)}\)"):
        join(arrays)


def test_float_indices_that_look_like_a_mask_warn():
    x = np.arange(4)
    with pytest.warns(UserWarning, match=r"use x\[mask.astype\('bool'\)\]"):
        result = x[np.array([False, False, True, True])]
    assert result.tolist() == [0, 0, 1, 1]
    assert x[np.array([False, False, True, True], dtype="bool")].tolist() == [2, 3]


@pytest.mark.parametrize("hybridized", [False, True])
def test_body_of_foreach_with_one_result_is_named(hybridized):
    block = Block(lambda x: npx.foreach(lambda part, state: state, x, x[0])[0])
    if hybridized:
        block.hybridize()
    with pytest.raises(TypeError, match=r"foreach: body must return \(outputs, states\), not"):
        block(np.ones((2, 2)))
