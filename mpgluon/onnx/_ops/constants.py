"""Ops whose results depend only on parameters and shapes."""

from __future__ import annotations

import numpy as np

from ... import ndarray as nd, symbol as sym
from .._package import dtype_of
from .._sizes import Dynamic
from .._source import Open
from .._table import exports, function_exports, imports


def _enter_full(op, number):
    @exports(op, "a constant, or ConstantOfShape")
    def full(g, call, *inputs):
        return g.full(call.shape, call[number] if isinstance(number, str) else number, call.dtype)


for _op, _number in (
    ("_zeros", 0),
    ("_ones", 1),
    ("_full", "value"),
    ("zeros_like", 0),
    ("ones_like", 1),
    ("_full_like", "fill_value"),
):
    _enter_full(_op, _number)


@function_exports("_npi_full_like", "a constant, or ConstantOfShape")
def full_like(g, call, x):
    return g.full(call.shape, call["fill_value"], call.dtype)


def made(g, call, inputs=()):
    """Computes a call whose result depends only on shapes, and returns the result as a constant."""
    if any(isinstance(size, Dynamic) for size in call.shape):
        call.refuse("its result depends on a dynamic size; make fewer axes dynamic")
    # If the result has a fixed shape, it does not depend on the inputs' dynamic sizes.
    shapes = [
        [size[0] if isinstance(size, Dynamic) else size for size in source.shape]
        for source in inputs
    ]
    arrays = [nd.zeros(shape, dtype=source.dtype) for shape, source in zip(shapes, inputs)]
    return [g.constant(item.asnumpy()) for item in call.node.call.run(arrays)]


@exports("_eye _linspace", "a constant")
def constant(g, call):
    return made(g, call)


@exports("_contrib_MultiBoxPrior _contrib_index_array", "a constant")
def of_shape(g, call, x):
    return made(g, call, [x])


@exports("_arange", "a constant")
def arange(g, call):
    (size,) = call.shape
    if not call["infer_range"] and not isinstance(size, Dynamic):
        return made(g, call)
    return _counted(g, call, size)


@exports("_contrib_arange_like", "a constant, or Range")
def arange_like(g, call, x):
    sizes = call.shape
    if not any(isinstance(size, Dynamic) for size in sizes):
        return made(g, call, [x])
    if call["axis"] is None:
        count = g.Size(x)
        return g.reshape(_counted(g, call, None, count), sizes, ())
    return _counted(g, call, sizes[0])


def _counted(g, call, size, count=None):
    """Returns start, start + step, ... with `count` elements."""
    repeat = call["repeat"]
    if repeat != 1:
        call.refuse("repeat with a dynamic size cannot be converted")
    count = g.Squeeze(g.sizes([size]), [0]) if count is None else count
    start, step = float(call["start"]), float(call["step"])
    steps = g.cast(g.Range(g.number(0, "int64"), count, g.number(1, "int64")), call.dtype, "int64")
    return g.Add(
        g.Mul(steps, g.number(step, call.dtype)),
        g.number(start, call.dtype),
    )


@exports("shape_array", "Shape")
def shape_array(g, call, x):
    return g.Shape(x)


@exports("size_array", "Size")
def size_array(g, call, x):
    return g.Reshape(g.Size(x), [1])


@exports("diag", "Gather, or ScatterND")
def diag(g, call, x):
    if x.ndim == 1:
        return _on_diagonal(g, call, x)
    first, second = [axis % x.ndim for axis in (call["axis1"], call["axis2"])]
    rest = [axis for axis in range(x.ndim) if axis not in (first, second)]
    rows, columns, k = x.size(first), x.size(second), call["k"]
    places = [i * columns + i + k for i in range(rows) if 0 <= i + k < columns]
    # Gather from the elements of each matrix.
    shape = (*[x.shape[axis] for axis in rest], rows, columns)
    matrices = g.Transpose(x, perm=[*rest, first, second])
    flat = g.reshape(matrices, (*shape[:-2], rows * columns), shape)
    return g.Gather(flat, np.asarray(places, dtype=np.int64), axis=len(rest))


def _on_diagonal(g, call, x):
    """Returns the matrix with the elements of a vector on a diagonal."""
    k, count = call["k"], x.size(0)
    rows = np.arange(count) + max(-k, 0)
    places = np.stack([rows, rows + k], axis=1)
    return g.ScatterND(g.full(call.shape, 0, call.dtype), places, x)


# --- Import: known shapes are folded, and open sizes are computed at run time ---------------------


@imports("ConstantOfShape")
def constant_of_shape_back(node):
    """Imports a ConstantOfShape with open sizes. At run time, it takes these sizes from other
    arrays that have them."""
    found = node.attribute("value")
    number = 0 if found is None else node.graph.tensor(found).reshape(-1)[0]
    dtype = "float32" if found is None else dtype_of(found.data_type)
    sizes = node.sizes(0)
    shape = tuple([1 if isinstance(size, Open) else size for size in sizes])
    result = sym.full(shape=shape, val=float(number), dtype=dtype)
    return opened(node, result, sizes, dtype)


def opened(node, x, sizes, dtype):
    """Broadcasts x along the axes whose size is open."""
    added = "int32" if dtype == "bool" else dtype  # bool cannot be added
    x = sym.cast(x, dtype=added) if added != dtype else x
    for axis, size in enumerate(sizes):
        if isinstance(size, Open):
            zeros = node.graph.vector(size, axis, len(sizes))
            x = sym.broadcast_add(x, sym.cast(zeros, dtype=added))
    return sym.cast(x, dtype=dtype) if added != dtype else x


@imports("Range")
def range_back(node):
    """Imports a range up to an open size."""
    start, (limit,), step = node.number(0), node.sizes(1), node.number(2)
    if not isinstance(limit, Open) or start != 0 or step != 1:
        return node.refuse("only a range from 0 to a size is supported")
    steps = sym.contrib.arange_like(node.graph.vector(limit, 0, 1), axis=0)
    return sym.cast(steps, dtype=node.dtype(0))


@imports("Trilu")
def trilu_back(node):
    x, ndim, k = node.symbol(0), node.ndim(0), int(node.number(1) or 0)
    everywhere = sym.zeros_like(sym.cast(x, dtype="int32"))
    rows = sym.expand_dims(sym.contrib.arange_like(everywhere, axis=ndim - 2), axis=1)
    columns = sym.expand_dims(sym.contrib.arange_like(everywhere, axis=ndim - 1), axis=0)
    right = sym.broadcast_sub(columns, rows)
    kept = right >= k if node.attribute("upper", 1) else right <= k
    mask = sym.broadcast_add(everywhere, sym.cast(kept, dtype="int32"))
    return sym.where(mask, x, sym.zeros_like(x))


@imports("Size")
def size_back(node):
    shape = node.shape(0)
    if shape is None or any(isinstance(size, Open) for size in shape):
        return node.refuse("the size of its input is not known")
    return np.asarray(int(np.prod(shape)), dtype=np.int64)
