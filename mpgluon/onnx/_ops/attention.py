"""Softmax, and the matrix products of attention."""

from __future__ import annotations

import math

from ... import symbol as sym
from .._table import exports, imports


def _prepared(g, call, x):
    temperature = call["temperature"]
    x = g.cast(x, call.dtype)
    return x if temperature in (None, 1) else g.Div(x, g.number(temperature, call.dtype))


def _inside(g, call, length, axis):
    """Returns a mask along an axis: True at positions before `length`."""
    size, zero = g.Squeeze(g.sizes([call.shape[axis]]), [0]), g.number(0, "int64")
    steps = g.Range(zero, size, g.number(1, "int64"))
    behind = len(call.shape) - axis - 1
    steps = g.Unsqueeze(steps, list(range(1, behind + 1))) if behind else steps
    return g.Less(steps, g.Unsqueeze(g.cast(length, "int64"), [axis]))


def _enter(op, onnx, negative):
    @exports(op, onnx)
    def softmax(g, call, x, length=None):
        g.number_dtype, axis = call.dtype, call.axis()
        x = _prepared(g, call, x)
        x = g.Neg(x) if negative else x
        if length is None:
            return g.emit(onnx, x, axis=axis)
        inside = _inside(g, call, length, axis)
        found = g.emit(onnx, g.Where(inside, x, float("-inf")), axis=axis)
        return g.Where(inside, found, 0.0)


_enter("softmax", "Softmax", False)
_enter("softmin", "Softmax", True)
_enter("log_softmax", "LogSoftmax", False)


@exports("SoftmaxActivation", "Softmax")
def softmax_activation(g, call, x):
    return g.Softmax(x, axis=1 if call["mode"] == "channel" else x.ndim - 1)


@imports("Softmax LogSoftmax")
def softmax_back(node):
    function = {"Softmax": sym.softmax, "LogSoftmax": sym.log_softmax}[node.op]
    if node.opset >= 13:
        return function(node.symbol(0), axis=node.attribute("axis", -1), name=node.name)
    axis, ndim = node.attribute("axis", 1), node.ndim(0)
    axis += ndim * (axis < 0)
    if axis == ndim - 1:
        return function(node.symbol(0), axis=-1, name=node.name)
    # Before opset 13, Softmax flattens `axis` and all following axes into one.
    front = [0] * axis
    flat = sym.reshape(node.symbol(0), shape=(*front, -1))
    return sym.reshape_like(function(flat, axis=-1), node.symbol(0), name=node.name)


@exports("_contrib_div_sqrt_dim", "Div")
def div_sqrt_dim(g, call, x):
    size = x.shape[-1]
    if isinstance(size, int):
        return g.Div(x, math.sqrt(size))
    return g.Div(x, g.Sqrt(g.cast(g.sizes([size]), x.dtype, "int64")))


# --- Interleaved projections ----------------------------------------------------------------------


def _heads(g, x, heads, parts):
    """Splits interleaved projections of shape (length, batch, heads * parts * size).

    Returns the parts, each of shape (batch, heads, length, size), and the size.
    """
    size = x.size(2) // heads // parts
    shape = (*x.shape[:2], heads, parts, size)
    apart = g.Transpose(g.reshape(x, shape, x.shape), perm=[3, 1, 2, 0, 4])
    return [g.Squeeze(part, [0]) for part in g.Split(apart, axis=0, outputs=parts)], size


def _scores(g, call, queries, keys, size):
    queries = g.Div(queries, math.sqrt(size))
    found = g.MatMul(queries, g.Transpose(keys, perm=[0, 1, 3, 2]))
    return g.reshape(found, call.shape, ())


@exports("_contrib_interleaved_matmul_selfatt_qk", "Transpose, Split, MatMul")
def selfatt_qk(g, call, x):
    (queries, keys, _), size = _heads(g, x, call["heads"], 3)
    return _scores(g, call, queries, keys, size)


@exports("_contrib_interleaved_matmul_encdec_qk", "Transpose, Split, MatMul")
def encdec_qk(g, call, x, y):
    (queries,), size = _heads(g, x, call["heads"], 1)
    (keys, _), _ = _heads(g, y, call["heads"], 2)
    return _scores(g, call, queries, keys, size)


def _weighted(g, call, values, attention, batch):
    heads = call["heads"]
    shape = (batch, heads, *attention.shape[1:])
    found = g.MatMul(g.reshape(attention, shape, ()), values)
    return g.reshape(g.Transpose(found, perm=[2, 0, 1, 3]), call.shape, call.shape[:2])


@exports("_contrib_interleaved_matmul_selfatt_valatt", "Transpose, Split, MatMul")
def selfatt_valatt(g, call, x, attention):
    (_, _, values), _ = _heads(g, x, call["heads"], 3)
    return _weighted(g, call, values, attention, x.shape[1])


@exports("_contrib_interleaved_matmul_encdec_valatt", "Transpose, Split, MatMul")
def encdec_valatt(g, call, x, attention):
    (_, values), _ = _heads(g, x, call["heads"], 2)
    return _weighted(g, call, values, attention, x.shape[1])
