"""Functions of mx.npx: ops under MXNet's names, and combinations of ops."""

import inspect

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd

F, npx = mx.np, mx.npx
FUNCTIONS = {name: f for name, f in vars(npx).items() if isinstance(f, _core.NumPyFunction)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_parameters_of_their_ops(name):
    function = FUNCTIONS[name]
    assert function.__module__ == "mpgluon.numpy_extension" and function.__name__ == name
    assert "Examples\n--------\n>>> " in function.__doc__ and f"npx.{name}(" in function.__doc__
    parameters = inspect.signature(function).parameters
    op = inspect.signature(_core.get_op(function.op_name)).parameters
    for key, (role, target) in function.arguments.items():
        if role == "parameter" and name != "reshape":
            assert parameters[key].default == op[target].default


def compiled(function, *arrays):
    return _core.CachedOp(lambda *x: [function(*x)])(*arrays)[0]


def test_masked_softmax_ignores_hidden_elements():
    x = F.array([[1, 2, 3], [4, 5, 6]])
    mask = F.array([[1, 1, 0], [0, 0, 0]])
    weights = np.exp([1, 2]) / np.exp([1, 2]).sum()
    expected = np.array([[*weights, 0], [0, 0, 0]])
    x.attach_grad()
    with autograd.record():
        result = npx.masked_softmax(x, mask)
        result[0, 0].backward()
    for found in (result, compiled(npx.masked_softmax, x, mask)):
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6)
    slope = weights[0] * weights[1]
    np.testing.assert_allclose(x.grad.asnumpy(), [[slope, -slope, 0], [0, 0, 0]], atol=1e-6)


def test_masked_log_softmax_of_hidden_elements_is_minus_infinity():
    x, mask = F.array([[1, 2, 3]]), F.array([[1, 0, 1]])
    expected = [[-np.log1p(np.exp(2)), -np.inf, 2 - np.log1p(np.exp(2))]]
    for found in (npx.masked_log_softmax(x, mask), compiled(npx.masked_log_softmax, x, mask)):
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["index_add", "index_update"])
@pytest.mark.parametrize("rows", [[[0, 2, 2]], [[0, 1, 1], [2, 0, 1]]])
def test_elements_are_changed_at_indices(name, rows):
    a = np.arange(12, dtype="float32").reshape(3, 4)
    shape = (3, 4)[len(rows) :]
    values = np.arange(1, 2 + int(np.prod((3, *shape))), dtype="float32")[:-1].reshape(3, *shape)
    if name == "index_update":  # the order of writes to one element is not specified
        rows = [row[:2] for row in rows]
        values = values[:2]
    expected, key = a.copy(), tuple(np.array(rows))
    np.add.at(expected, key, values) if name == "index_add" else expected.__setitem__(key, values)
    function = getattr(npx, name)
    x, indices, given = F.array(a), F.array(rows, dtype="int32"), F.array(values)
    given.attach_grad()
    with autograd.record():
        result = function(x, indices, given)
    result.backward()
    assert (given.grad.asnumpy() == 1).all() and np.array_equal(x.asnumpy(), a)
    for found in (result, compiled(function, x, indices, given)):
        assert np.array_equal(found.asnumpy(), expected)
    number = function(x, indices, F.array(5.0))
    assert number.asnumpy()[key].min() >= 5


def test_nonzero_has_one_row_per_element():
    x = F.array([[0, 7, 0], [1, 0, 2]])
    block = mx.gluon.nn.HybridLambda(lambda F, x: F.npx.nonzero(x) * 2)
    block.hybridize()
    expected = np.transpose(np.nonzero(x.asnumpy()))
    assert npx.nonzero(x).dtype == "int64"
    assert np.array_equal(npx.nonzero(x).asnumpy(), expected)
    assert np.array_equal(block(x).asnumpy(), expected * 2)


def test_constraint_check_raises_if_an_element_is_false():
    x = F.array([1, 2])
    assert npx.constraint_check(x > 0, "must be positive").item() is True
    with pytest.raises(ValueError, match="must be positive"):
        npx.constraint_check(x > 1, "must be positive")
    assert compiled(lambda x: npx.constraint_check(x > 1, "must be positive"), x).shape == ()
