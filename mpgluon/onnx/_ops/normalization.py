"""Normalization ops."""

from __future__ import annotations

import numpy as np

from ... import symbol as sym
from .._table import exports, imports


def _axis_second(g, x, axis, function):
    """Applies a function that requires the channels in axis 1 to an array with channels in
    `axis`."""
    if axis == 1:
        return function(x)
    order = [0, axis, *[i for i in range(1, x.ndim) if i != axis]]
    back = [order.index(i) for i in range(x.ndim)]
    return g.Transpose(function(g.Transpose(x, perm=order)), perm=back)


def _batch_norm(g, call, axis, x, gamma, beta, mean, variance):
    if len(call.outputs) > 1:
        call.refuse("output_mean_var=True cannot be converted")
    if call["fix_gamma"]:
        gamma = g.full(gamma.shape, 1, gamma.dtype)
    epsilon = float(call["eps"])
    return _axis_second(
        g,
        x,
        axis,
        lambda y: g.BatchNormalization(y, gamma, beta, mean, variance, epsilon=epsilon),
    )


@exports("BatchNorm", "BatchNormalization")
def batch_norm(g, call, *arrays):
    return _batch_norm(g, call, call.axis(), *arrays)


@exports("_contrib_SyncBatchNorm", "BatchNormalization")
def sync_batch_norm(g, call, *arrays):
    return _batch_norm(g, call, 1, *arrays)


@imports("BatchNormalization")
def batch_norm_back(node):
    if node.attribute("training_mode", 0):
        return node.refuse("training_mode=1 is not supported")
    x, *parameters = [node.symbol(place) for place in range(5)]
    epsilon = node.attribute("epsilon", 1e-5)
    momentum = node.attribute("momentum", 0.9)
    return sym.BatchNorm(
        x, *parameters, eps=epsilon, momentum=momentum, fix_gamma=False, name=node.name
    )


@exports("LayerNorm", "LayerNormalization")
def layer_norm(g, call, x, gamma, beta):
    if len(call.outputs) > 1:
        call.refuse("output_mean_var=True cannot be converted")
    axis, epsilon, last = call.axis(), float(call["eps"]), x.ndim - 1
    if axis == last:
        return g.LayerNormalization(x, gamma, beta, axis=last, epsilon=epsilon)
    order = [*[i for i in range(x.ndim) if i != axis], axis]
    back = [order.index(i) for i in range(x.ndim)]
    turned = g.Transpose(x, perm=order)
    found = g.LayerNormalization(turned, gamma, beta, axis=last, epsilon=epsilon)
    return g.Transpose(found, perm=back)


@imports("LayerNormalization")
def layer_norm_back(node):
    ndim = node.ndim(0)
    axis = node.attribute("axis", -1) % ndim
    epsilon = node.attribute("epsilon", 1e-5)
    x, gamma = node.symbol(0), node.symbol(1)
    beta = node.symbol(2) if node.has(2) else sym.zeros_like(gamma)
    if axis == ndim - 1:
        return sym.LayerNorm(x, gamma, beta, axis=-1, eps=epsilon, name=node.name)
    flat = [sym.reshape(part, shape=(-1,)) for part in (gamma, beta)]
    rows = sym.reshape(x, shape=(*[0] * axis, -1))
    return sym.reshape_like(sym.LayerNorm(rows, *flat, axis=-1, eps=epsilon), x, name=node.name)


@exports("InstanceNorm", "InstanceNormalization")
def instance_norm(g, call, x, gamma, beta):
    return g.InstanceNormalization(x, gamma, beta, epsilon=float(call["eps"]))


@imports("InstanceNormalization")
def instance_norm_back(node):
    parts = [node.symbol(place) for place in range(3)]
    return sym.InstanceNorm(*parts, eps=node.attribute("epsilon", 1e-5), name=node.name)


@exports("GroupNorm", "InstanceNormalization, Mul, Add")
def group_norm(g, call, x, gamma, beta):
    if len(call.outputs) > 1:
        call.refuse("output_mean_var=True cannot be converted")
    groups, channels = call["num_groups"], x.size(1)
    flat = g.Reshape(x, [0, groups, -1])
    own = gamma.shape == (groups,) and groups != channels
    scale = gamma if own else g.full((groups,), 1, x.dtype)
    shift = beta if own else g.full((groups,), 0, x.dtype)
    found = g.InstanceNormalization(flat, scale, shift, epsilon=float(call["eps"]))
    found = g.reshape(found, x.shape, x.shape[:1])
    if own:
        return found
    shape = (channels, *[1] * (x.ndim - 2))
    gamma, beta = [g.reshape(part, shape) for part in (gamma, beta)]
    return g.Add(g.Mul(found, gamma), beta)


@imports("GroupNormalization")
def group_norm_back(node):
    x, gamma, beta = [node.symbol(place) for place in range(3)]
    groups, epsilon = node.attribute("num_groups"), node.attribute("epsilon", 1e-5)
    channels = node.size(0, 1)
    if node.shape(1) == (groups,):
        return sym.GroupNorm(x, gamma, beta, num_groups=groups, eps=epsilon, name=node.name)
    ones = sym.ones(shape=(groups,), dtype=node.dtype(0))
    found = sym.GroupNorm(x, ones, sym.zeros_like(ones), num_groups=groups, eps=epsilon)
    shape = (channels, *[1] * (node.ndim(0) - 2))
    gamma, beta = [sym.reshape(part, shape=shape) for part in (gamma, beta)]
    return sym.broadcast_add(sym.broadcast_mul(found, gamma), beta, name=node.name)


@exports("L2Normalization", "ReduceSumSquare, Sqrt, Div")
def l2_normalization(g, call, x):
    axes = {
        "instance": list(range(1, x.ndim)),
        "channel": [1],
        "spatial": list(range(2, x.ndim)),
    }[call["mode"]]
    squares = g.ReduceSumSquare(x, axes=axes, keepdims=1) if axes else g.Mul(x, x)
    return g.Div(x, g.Sqrt(g.Add(squares, float(call["eps"]))))


@imports("LpNormalization")
def lp_normalization_back(node):
    axis, x = node.attribute("axis", -1), node.symbol(0)
    order = node.attribute("p", 2)
    return sym.broadcast_div(x, sym.norm(x, ord=order, axis=axis, keepdims=True), name=node.name)


@exports("LRN", "LRN")
def lrn(g, call, x):
    return g.LRN(
        x,
        size=call["nsize"],
        alpha=float(call["alpha"]),
        beta=float(call["beta"]),
        bias=float(call["knorm"]),
    )


@imports("LRN")
def lrn_back(node):
    return sym.LRN(
        node.symbol(0),
        nsize=node.attribute("size"),
        alpha=node.attribute("alpha", 1e-4),
        beta=node.attribute("beta", 0.75),
        knorm=node.attribute("bias", 1.0),
        name=node.name,
    )


@exports("_image_normalize", "Sub, Div")
def image_normalize(g, call, x):
    channels = x.size(x.ndim - 3)
    parts = []
    for key in ("mean", "std"):
        numbers = call[key]
        numbers = [numbers] if isinstance(numbers, (int, float)) else list(numbers)
        numbers = numbers[:channels] if len(numbers) >= channels else numbers[:1] * channels
        parts.append(np.asarray(numbers, dtype=x.dtype).reshape(channels, 1, 1))
    return g.Div(g.Sub(x, parts[0]), parts[1])


@exports("_image_to_tensor", "Transpose, Cast, Div")
def image_to_tensor(g, call, x):
    order = [*range(x.ndim - 3), x.ndim - 1, x.ndim - 3, x.ndim - 2]
    found = g.cast(g.Transpose(x, perm=order), call.dtype, x.dtype)
    return g.Div(found, g.number(255, call.dtype))
