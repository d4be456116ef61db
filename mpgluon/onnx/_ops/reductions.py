"""Reductions."""

from __future__ import annotations

from ... import symbol as sym
from .._graph import value
from .._table import exports, imports


def _axes(call, x):
    """Returns the axes that an op reduces; None means all."""
    axes = call["axis"]
    if axes is None or axes == ():
        return None
    axes = [axis + x.ndim * (axis < 0) for axis in ((axes,) if isinstance(axes, int) else axes)]
    return [axis for axis in range(x.ndim) if axis not in axes] if call["exclude"] else sorted(axes)


def reduced(g, call, x, onnx, axes, keepdims, shape=None, source=None):
    """Adds a reduction over some or all axes. A full reduction is reshaped to one axis, because
    mx.nd returns an array of shape (1,)."""
    shape = call.shape if shape is None else shape
    whole = axes is None and not keepdims
    axes = list(range(x.ndim)) if axes is None else axes
    keep = int(keepdims)
    if not axes and x.ndim:
        return source or x
    if onnx == "ReduceSum":  # in opset 17, only this reduction has the axes as an input
        found = g.ReduceSum(source or x, axes, keepdims=keep)
    else:
        found = g.emit(onnx, source or x, axes=axes or None, keepdims=keep)
    return g.Reshape(found, [1]) if whole or (len(axes) == x.ndim and not keep) else found


# The dtypes in which reductions are computed, for those that onnxruntime has no kernels for.
_WIDE = {
    "ReduceMax": {"bool": "uint8"},
    "ReduceMin": {"bool": "uint8"},
    **dict.fromkeys(
        ("ReduceSum", "ReduceProd"), {"bool": "int32", "int8": "int32", "uint8": "int32"}
    ),
}
REDUCTIONS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "_square_sum": "ReduceSumSquare",
}


def _enter(op, onnx):
    @exports(op, onnx)
    def reduction(g, call, x):
        wide = _WIDE.get(onnx, {}).get(call.dtype, call.dtype)
        source = g.cast(x, wide)  # in mx.np, totals of bools are int64 and means are floats
        found = reduced(g, call, x, onnx, _axes(call, x), call["keepdims"], source=source)
        return g.cast(found, call.dtype, wide)


for _op, _onnx in REDUCTIONS.items():
    _enter(_op, _onnx)


def _enter_nan(op, onnx, number):
    @exports(op, f"IsNaN, {onnx}")
    def reduction(g, call, x):
        filled = g.Where(g.IsNaN(x), number, x)
        return reduced(g, call, x, onnx, _axes(call, x), call["keepdims"], source=filled)


_enter_nan("nansum", "ReduceSum", 0.0)
_enter_nan("nanprod", "ReduceProd", 1.0)


@exports("norm", "ReduceL1, ReduceL2")
def norm(g, call, x):
    axes = call["axis"]
    axes = None if axes is None or axes == () else [axes] if isinstance(axes, int) else list(axes)
    axes = axes and [axis + x.ndim * (axis < 0) for axis in axes]
    kind = "ReduceL1" if call["ord"] == 1 else "ReduceL2"
    wide = call.dtype if "float" in call.dtype else "float32"
    source = g.cast(x, wide)
    found = reduced(g, call, x, kind, axes, call["keepdims"], source=source)
    return g.cast(found, call.dtype, wide)


@exports("moments", "ReduceMean")
def moments(g, call, x):
    axes = call["axes"]
    axes = list(axes) if axes else list(range(x.ndim))
    mean = g.ReduceMean(x, axes=axes, keepdims=1)
    away = g.Sub(x, mean)
    variance = g.ReduceMean(g.Mul(away, away), axes=axes, keepdims=1)
    return [
        g.reshape(part, shape, [1 if i in axes else size for i, size in enumerate(x.shape)])
        for part, (shape, _) in zip((mean, variance), call.outputs)
    ]


def _enter_arg(op, onnx):
    @exports(op, onnx)
    def arg(g, call, x):
        axis = call["axis"]
        x = value(g.cast(x, "int32"), x.shape, "int32") if x.dtype == "bool" else x
        if axis is None:
            flat = g.Reshape(x, [-1])
            found = g.emit(onnx, flat, axis=0, keepdims=1)
            found = g.reshape(found, call.shape, ())
        else:
            found = g.emit(onnx, x, axis=axis, keepdims=int(call["keepdims"]))
            found = g.Reshape(found, [1]) if x.ndim == 1 else found
        return g.cast(found, call.dtype, "int64")


_enter_arg("argmax", "ArgMax")
_enter_arg("argmin", "ArgMin")


@exports("argmax_channel", "ArgMax")
def argmax_channel(g, call, x):
    return g.cast(g.ArgMax(x, axis=1, keepdims=0), call.dtype, "int64")


@exports("_np_cumsum", "CumSum")
def cumsum(g, call, x):
    axis = call["axis"]
    x = g.cast(x, call.dtype)
    if axis is None:
        x, axis = g.Reshape(x, [-1]), 0
    known = call.dtype in ("int32", "int64", "float32", "float64")
    wide = call.dtype if known else "float32" if "float" in call.dtype else "int64"
    x = g.cast(x, wide, call.dtype)
    found = g.CumSum(x, g.number(axis, "int64"), reverse=int(bool(call["reverse"])))
    return g.cast(found, call.dtype, wide)


# --- Import ---------------------------------------------------------------------------------------

BACK = {
    "ReduceSum": sym.sum,
    "ReduceMean": sym.mean,
    "ReduceMax": sym.max,
    "ReduceMin": sym.min,
    "ReduceProd": sym.prod,
    "ReduceL1": lambda x, **given: sym.sum(sym.abs(x), **given),
    "ReduceL2": lambda x, **given: sym.sqrt(sym.sum(sym.square(x), **given)),
    "ReduceSumSquare": lambda x, **given: sym.sum(sym.square(x), **given),
    "ReduceLogSum": lambda x, **given: sym.log(sym.sum(x, **given)),
}


def _axes_back(node):
    axes = node.integers(1, "axes")
    if not axes:
        return None
    return tuple(axes)


@imports(" ".join(BACK))
def reduce_back(node):
    axes = _axes_back(node)
    if axes is None and node.attribute("noop_with_empty_axes", 0):
        return node.symbol(0)
    keep = bool(node.attribute("keepdims", 1))
    return BACK[node.op](node.symbol(0), axis=axes, keepdims=keep)


@imports("ReduceLogSumExp")
def reduce_log_sum_exp_back(node):
    axes, x, keep = _axes_back(node), node.symbol(0), bool(node.attribute("keepdims", 1))
    top = sym.max(x, axis=axes, keepdims=True)
    total = sym.sum(sym.exp(sym.broadcast_sub(x, top)), axis=axes, keepdims=True)
    found = sym.broadcast_add(sym.log(total), top)
    if keep:
        return found
    return sym.sum(found, axis=axes) if axes else sym.sum(found)


@imports("ArgMax ArgMin")
def arg_back(node):
    if node.attribute("select_last_index", 0):
        return node.refuse("select_last_index=1 is not supported")
    function = {"ArgMax": sym.argmax, "ArgMin": sym.argmin}[node.op]
    axis, keep = node.attribute("axis", 0), bool(node.attribute("keepdims", 1))
    found = function(node.symbol(0), axis=axis, keepdims=keep)
    return sym.cast(found, dtype="int64", name=node.name)


@imports("CumSum")
def cumsum_back(node):
    if node.attribute("exclusive", 0):
        return node.refuse("exclusive=1 is not supported")
    reverse = bool(node.attribute("reverse", 0))
    axis = int(node.number(1))
    return sym._internal._np_cumsum(node.symbol(0), axis=axis, reverse=reverse, name=node.name)
