"""Matrix products."""

from __future__ import annotations

import math

from ... import symbol as sym
from .._source import Open
from .._table import exports, function_exports, imports
from .elementwise import WIDE


def _turned(g, x, turn=True):
    """Transposes matrices, that is, swaps the last two axes. Returns x unchanged if `turn` is
    false."""
    return g.Transpose(x, perm=[*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]) if turn else x


@exports("FullyConnected", "Gemm, or MatMul")
def fully_connected(g, call, x, weight, bias=None):
    if call["flatten"]:
        flat = x if x.ndim == 2 else g.reshape(x, (x.shape[0], math.prod(_fixed(x))))
        return g.Gemm(flat, weight, bias, transB=1)
    found = g.MatMul(x, g.Transpose(weight, perm=[1, 0]))
    return found if bias is None else g.Add(found, bias)


def _fixed(x):
    return [x.size(axis) for axis in range(1, x.ndim)]


@imports("Gemm")
def gemm_back(node):
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    turned = node.attribute("transA", 0), node.attribute("transB", 0)
    x, weight, shape = node.symbol(0), node.symbol(1), node.shape(1)
    if (
        turned == (0, 1)
        and alpha == beta == 1
        and isinstance(shape[0], int)
        and _is_bias(node, shape[0])
    ):
        bias = {"bias": node.symbol(2)} if node.has(2) else {"no_bias": True}
        return sym.FullyConnected(x, weight, num_hidden=shape[0], name=node.name, **bias)
    found = sym.dot(x, weight, transpose_a=bool(turned[0]), transpose_b=bool(turned[1]))
    found = found if alpha == 1 else found * alpha
    if node.has(2):
        bias = node.symbol(2)
        found = sym.broadcast_add(found, bias if beta == 1 else bias * beta)
    return found


def _is_bias(node, size):
    return not node.has(2) or node.shape(2) == (size,)


@exports("dot", "MatMul")
def dot(g, call, x, y):
    turn_x, turn_y = call["transpose_a"], call["transpose_b"]
    if x.ndim == y.ndim == 2:
        return g.MatMul(_turned(g, x, turn_x), _turned(g, y, turn_y))
    if not x.ndim or not y.ndim:
        return g.Mul(x, y)
    if y.ndim <= 2 and not turn_x and not turn_y:
        found = g.MatMul(x, y)
        return found if x.ndim > 1 or y.ndim > 1 else g.Reshape(found, [1])
    last = y.ndim - 2
    if last > 0 and call.node.call.numpy:  # NumPy sums over this axis of y
        y = g.Transpose(y, perm=[last, *range(last), last + 1])
    axis = 0 if turn_x else x.ndim - 1
    inner = x.size(axis)
    left = g.Reshape(x, [inner, -1] if turn_x else [-1, inner])
    left = g.Transpose(left, perm=[1, 0]) if turn_x else left
    right = g.Reshape(y, [-1, inner] if turn_y else [inner, -1])
    right = g.Transpose(right, perm=[1, 0]) if turn_y else right
    return g.reshape(g.MatMul(left, right), call.shape, ())


@function_exports("_npi_matmul", "MatMul")
def matmul(g, call, x, y):
    wide = WIDE.get(call.dtype, call.dtype)
    return g.cast(g.MatMul(g.cast(x, wide), g.cast(y, wide)), call.dtype, wide)


@exports("batch_dot", "MatMul")
def batch_dot(g, call, x, y):
    return g.MatMul(_turned(g, x, call["transpose_a"]), _turned(g, y, call["transpose_b"]))


def _scaled(g, x, factor):
    return x if factor == 1 else g.Mul(x, float(factor))


def _last_axes(call):
    if call["axis"] != -2:
        call.refuse("only axis=-2 can be converted")


@exports("_linalg_gemm2", "MatMul")
def gemm2(g, call, x, y):
    _last_axes(call)
    return _scaled(g, batch_dot(g, call, x, y), call["alpha"])


@exports("_linalg_gemm", "MatMul, Add")
def gemm(g, call, x, y, z):
    return g.Add(gemm2(g, call, x, y), _scaled(g, z, call["beta"]))


@exports("_linalg_syrk", "MatMul")
def syrk(g, call, x):
    other = _turned(g, x)
    pair = (other, x) if call["transpose"] else (x, other)
    return _scaled(g, g.MatMul(*pair), call["alpha"])


@exports("_linalg_det", "Det")
def det(g, call, x):
    found = g.Det(x)
    return g.Reshape(found, [1]) if x.ndim == 2 else found


@imports("Det")
def det_back(node):
    return sym.linalg.det(node.symbol(0), name=node.name)


@imports("MatMul")
def matmul_back(node):
    x, y = node.symbol(0), node.symbol(1)
    left, right = node.ndim(0), node.ndim(1)
    if "float" not in node.dtype(0) and left > 1 and right > 1:
        return _of_integers(node, x, y, max(left, right))
    if right <= 2:
        return sym.dot(x, y, name=node.name)
    if left == right == 3 and node.shape(0)[:1] == node.shape(1)[:1]:
        return sym.batch_dot(x, y, name=node.name)
    if left == right and node.shape(0)[:-2] == node.shape(1)[:-2]:
        return sym.linalg.gemm2(x, y, name=node.name)
    if left < 2:
        return sym.dot(sym.swapaxes(y, dim1=right - 2, dim2=right - 1), x, name=node.name)
    return _with_broadcast(node, x, y)


def _of_integers(node, x, y, ndim):
    """Multiplies matrices of integers, which `dot` does not support."""
    for _ in range(ndim - node.ndim(0)):
        x = sym.expand_dims(x, axis=0)
    for _ in range(ndim - node.ndim(1)):
        y = sym.expand_dims(y, axis=0)
    pairs = sym.broadcast_mul(sym.expand_dims(x, axis=ndim), sym.expand_dims(y, axis=ndim - 2))
    return sym.sum(pairs, axis=ndim - 1, name=node.name)


def _with_broadcast(node, x, y):
    """Multiplies batches of matrices after broadcasting the batch dimensions."""
    front_x, front_y = node.shape(0)[:-2], node.shape(1)[:-2]
    ndim = max(len(front_x), len(front_y))
    front_x = (*[1] * (ndim - len(front_x)), *front_x)
    front_y = (*[1] * (ndim - len(front_y)), *front_y)
    if any(isinstance(size, Open) for size in (*front_x, *front_y)):
        return node.refuse("the shapes of stacks that broadcast must be known")
    front = tuple([max(pair) for pair in zip(front_x, front_y)])
    for _ in range(ndim + 2 - node.ndim(0)):
        x = sym.expand_dims(x, axis=0)
    for _ in range(ndim + 2 - node.ndim(1)):
        y = sym.expand_dims(y, axis=0)
    x = sym.broadcast_to(x, shape=(*front, 0, 0)) if front != front_x else x
    y = sym.broadcast_to(y, shape=(*front, 0, 0)) if front != front_y else y
    return sym.linalg.gemm2(x, y, name=node.name)
